"""An algorithm whose queries only the server can compute, and strategies for it.

Round 1 counts the records in cells along the first column. The server draws thresholds
from those counts, with public randomness, and a radius from points of its own that no
client ever sees. Round 2 adds up the records within the radius, by the thresholds
between which they lie. Importing this module registers the algorithm.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Unpack

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.layout import Block, Layout, Statistic
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.parameters import whole
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.strategies import CommonOptions, KMeansStrategy

CELLS = 64
FEW = "Few records, or much noise: some thresholds lie in empty cells."


@register
@dataclass(frozen=True, kw_only=True)
class SplitAlgorithm(Algorithm):
    """Means of the records between thresholds that the server draws. It does not clip clients."""

    name: ClassVar[str] = "test-split"
    replayable: ClassVar[bool] = False

    n_clients: None = field(default=None, init=False)
    clip: None = field(default=None, init=False)
    n_clusters: Annotated[int, whole(1, CELLS)]
    n_rounds: ClassVar[int] = 2
    # the server's own: not in the document
    server_points: tuple[tuple[float, ...], ...] = ()

    @property
    def _one(self) -> int:
        return 2**self.fraction_bits

    @property
    def _longest(self) -> float:
        return float(self.domain.l2_bound(self.fraction_bits))

    def layout(self, round_number: int) -> Layout:
        if round_number == 1:
            return Layout((Block("cells", (CELLS,), self.fraction_bits),))
        k, d = self.n_clusters, self.domain.n_features
        sums = Block("sums", (k, d), self.fraction_bits)
        return Layout((sums, Block("counts", (k,), self.fraction_bits)))

    def releases(self, round_number: int) -> tuple[Release, ...]:
        blocks = self.layout(round_number).blocks
        return tuple(Release(b.name, "gaussian", "l2", 1.0, (b.name,)) for b in blocks)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        one = float(self._one)
        return {"cells": one, "sums": self._longest, "counts": one}

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        assert rng is not None
        radius = self._longest * (0.5 + 0.5 * rng.random())
        if self.server_points:
            points = self.domain.to_unit(np.array(self.server_points, dtype=np.float64))
            radius = float(np.sqrt((points * points).sum(axis=1)).max()) * self._one
        return State(0, {"radius": np.array(min(max(radius, 1.0), self._longest))})

    def query_ranges(self, round_number: int) -> dict[str, Range]:
        if round_number == 1:
            return {}
        return {
            "thresholds": Range((self.n_clusters - 1,), -self._one, self._one),
            "radius": Range((), 1.0, self._longest, dtype=np.dtype(np.float64)),
        }

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        grid = np.empty(records.shape)
        records.read(0, grid)
        points = grid.astype(np.int64)
        if query.round == 1:
            cells = (points[:, 0] + self._one) * CELLS // (2 * self._one + 1)
            counts = np.bincount(cells, minlength=CELLS).astype(np.int64)
            return Statistic({"cells": counts << self.fraction_bits})
        radius = math.floor(float(query.arrays["radius"]))
        points = points[(points * points).sum(axis=1) <= radius * radius]
        place = np.searchsorted(query.arrays["thresholds"], points[:, 0], side="right")
        sums = np.zeros((self.n_clusters, points.shape[1]), dtype=np.int64)
        np.add.at(sums, place, points)
        counts = np.bincount(place, minlength=self.n_clusters).astype(np.int64)
        return Statistic({"sums": sums, "counts": counts << self.fraction_bits})

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        assert rng is not None
        if state.round == 0:
            counts = np.maximum(answer.blocks["cells"].astype(np.float64), 0.0) + 1e-6
            cells = rng.choice(
                CELLS, self.n_clusters - 1, replace=False, p=counts / counts.sum()
            )
            width = 2 * self._one // CELLS
            jitter = rng.integers(width, size=self.n_clusters - 1)
            thresholds = np.sort(cells * width + jitter - self._one).astype(np.int64)
            empty = np.array(int((counts[cells] < self._one).any()))
            radius = state.arrays["radius"]
            return State(
                1, {"thresholds": thresholds, "radius": radius, "empty": empty}
            )
        counts = answer.blocks["counts"].astype(np.float64)
        sums = answer.blocks["sums"].astype(np.float64)
        means = sums / np.maximum(counts, self._one)[:, None]
        limit = self.domain.half_widths
        return State(
            2,
            {
                "centroids": np.clip(means, -limit, limit),
                "counts": counts / self._one,
                "empty": state.arrays["empty"],
            },
        )

    def centroids(self, state: State) -> FloatArray | None:
        if "centroids" not in state.arrays:
            return None
        return self.domain.from_unit(state.arrays["centroids"])

    def counts(self, state: State) -> FloatArray | None:
        return state.arrays.get("counts")

    def warnings(self, state: State) -> tuple[str, ...]:
        return (FEW,) if int(state.arrays.get("empty", 0)) else ()


class Split(KMeansStrategy):
    """Means between thresholds."""

    ALGORITHM = SplitAlgorithm
    TRUST = "distributed-noise"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        server_points: tuple[tuple[float, ...], ...] = (),
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            server_points=server_points,
            **common,
        )
