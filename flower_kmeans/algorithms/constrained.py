"""Lloyd's algorithm with bounds on the sizes of every client's clusters.

The source is Ahmed's thesis "Differentially-Private Multiparty Clustering", chapters 4
to 8. If one record replaces another, further records move along a path through the
clusters, through each at most once. The noise here covers the whole path. The thesis's
noise covers one record of one cluster (docs/guarantees, Theorem 17).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.lloyd import (
    MOST_AUTO_ROUNDS,
    LloydFamily,
    count_share,
    in_papers_range,
)
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.postprocess import MIN_COUNT, quotients, to_grid
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.parameters import LARGEST, checked, choice, integer, whole
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import Mechanism

Assignment = Literal["exclusive", "non-exclusive", "e-exclusive"]
Aggregation = Literal["mna", "amn"]

ASSIGNMENTS = ("exclusive", "non-exclusive", "e-exclusive")
AGGREGATIONS = ("mna", "amn")
MECHANISMS = ("gaussian", "laplace")
MEANS = "means"  # block of the clients' means, with aggregation="amn"
# Most pairs of a slot and a cluster. They take the solver minutes and gigabytes.
MAX_ARCS = 2**22

_TIE_BITS, _TIE_LEVELS = 48, 3  # 10,002 numbers of 48 bits add up to less than 2^62
# It exceeds the cost of any path, and twice it still fits int64.
_FAR = 2**62


@register
@dataclass(frozen=True, kw_only=True)
class ConstrainedLloydAlgorithm(LloydFamily):
    """Lloyd's algorithm with constrained assignment at every client.

    Every client has ``n_slots`` points, independent of its records. It fills empty
    slots with the box's centre. If it has too many records, it leaves out those with
    the largest public hashes. The size of a client's clusters is from
    ``ceil(min_size / n_clients)`` to ``floor(max_size / n_clients)``, which follow from
    public numbers alone.

    Formal guarantee: one record more or less changes the content of one slot, and
    changes a round's releases by at most their sensitivities (docs/guarantees,
    Theorem 17).

    `strategies.ConstrainedLloyd` documents the parameters. Only with
    ``assignment="non-exclusive"`` is ``max_size`` ``None``.
    """

    name: ClassVar[str] = "constrained-lloyd"
    needs_all_records: ClassVar[bool] = True  # one assignment covers all of them
    bounds_clients: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False

    n_records: Annotated[int, whole(1, LARGEST)]
    n_clients: Annotated[int, whole(1, LARGEST)]
    clip: None = field(default=None, init=False)
    cost: bool = field(default=False, init=False)
    assignment: Annotated[Assignment, choice(*ASSIGNMENTS)] = "exclusive"
    aggregation: Annotated[Aggregation, choice(*AGGREGATIONS)] = "mna"
    min_size: Annotated[int, whole()]
    max_size: Annotated[int | None, whole(0, LARGEST)] = None
    max_contribution: Annotated[int, whole()] = 1
    mechanism: Annotated[Mechanism, choice(*MECHANISMS)] = "gaussian"

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        n_records: int | None = None,
        n_clients: int | None = None,
        assignment: Assignment = "exclusive",
        min_size: int | None = None,
        max_size: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the algorithm for a user's options. Bounds that are not given are chosen."""
        _require_records(budget)
        for name, figure in (("n_records", n_records), ("n_clients", n_clients)):
            if figure is None:
                raise ConfigurationError(
                    f"{name} is required: the bounds of every client's clusters follow from it, "
                    "also without privacy. Got None."
                )
        figures = checked(cls, {"n_clusters": n_clusters, "n_records": n_records})
        k = figures["n_clusters"]
        n = figures["n_records"]
        if min_size is None:
            min_size = -(-2 * n // (3 * k))
        if max_size is None and assignment != "non-exclusive":
            max_size = -(-3 * n // k)
        return super().planned(
            n_clusters,
            domain,
            budget,
            n_records=n_records,
            n_clients=n_clients,
            assignment=assignment,
            min_size=min_size,
            max_size=max_size,
            **options,
        )

    def __post_init__(self) -> None:
        """Check every parameter."""
        _require_records(self.budget)
        super().__post_init__()
        _require_contribution(self)
        self._check_bounds()

    # --------------------------------------------------------------- bounds, all public

    @property
    def n_slots(self) -> int:
        """Number of points of every client: ``ceil(n_records / n_clients)``."""
        return -(-self.n_records // self.n_clients)

    @property
    def client_bounds(self) -> tuple[int, int]:
        """Fewest and most records in a cluster of one client."""
        low = -(-self.min_size // self.n_clients)
        if self.max_size is None:
            return low, low
        return low, min(self.max_size // self.n_clients, self.n_slots)

    def require_packages(self) -> None:
        """Require the solver. Only ``"non-exclusive"`` does not need it."""
        if self.assignment != "non-exclusive":
            _solver()

    # ------------------------------------------------------------------ the contract

    def layout(self, round_number: int) -> Layout:
        """Return the layout: sums (k, d) and counts (k,), or the clients' means (k, d).

        All are on one grid. There are no counts if the sizes of all clusters are
        public.
        """
        k = self.n_clusters
        d = self.domain.n_features
        q = self.fraction_bits
        if self.aggregation == "amn":
            return Layout((Block(MEANS, (k, d), q),))
        sums = Block(SUMS, (k, d), q)
        if not self._has_counts:
            return Layout((sums,))
        return Layout((sums, Block(COUNTS, (k,), q)))

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the sums and counts, or the means, of one client's slots.

        In a client without records all slots hold the box's centre.
        """
        centroids = query.arrays["centroids"]
        points, sizes = self._slots(records)
        held = self._assigned(points, sizes, centroids)
        # All are integers below 2^53, so the product is exact.
        sums = (held.T.astype(np.float64) @ points.astype(np.float64)).astype(np.int64)
        counts = held.sum(axis=0)
        if self.aggregation == "amn":
            # Rounding down changes a coordinate by less than a step. The sensitivity
            # includes it.
            return Statistic({MEANS: sums // counts[:, None]})
        blocks = {SUMS: sums, COUNTS: counts << self.fraction_bits}
        names = self.layout(query.round).names
        return Statistic({name: blocks[name] for name in names})

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits on sums and counts of slots, or on the clients' means."""
        found = replace(
            super().meaning(state, answer), times=float(self.max_contribution)
        )
        if self.aggregation == "mna" and self._has_counts:
            return found
        by_client = self.aggregation == "amn"
        each = 1 if by_client else self.client_bounds[0]
        return replace(
            found,
            counts=None,
            sums=MEANS if by_client else SUMS,
            public_size=self._answers_of(answer) * each,
        )

    def _answers_of(self, answer: Statistic) -> int:
        """Return the number of clients that answered."""
        if answer.n_answers is not None:
            return answer.n_answers
        return round(answer.answered * self.n_clients)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state with the noisy means.

        They are sums over counts, or the mean of the clients that answered.
        """
        if self.aggregation == "mna" and self._has_counts:
            return super().update(state, answer, rng)
        old = state.arrays["centroids"]
        n_answers = self._answers_of(answer)
        q = self.fraction_bits
        low, _ = self.client_bounds
        # Either clients' means are summed, or every cluster has a public size.
        by_client = self.aggregation == "amn"
        records = n_answers * (1 if by_client else low)
        sizes = np.full(self.n_clusters, records << q, dtype=np.int64)
        sums = answer.blocks[MEANS if by_client else SUMS]
        means, usable = quotients(sums, sizes, q, MIN_COUNT)
        centroids = np.where(usable[:, None], self._into_domain(to_grid(means)), old)
        # No sizes are released. Sizes of "non-exclusive" are public, and otherwise the
        # mean size is.
        held = self.n_clusters * low
        if self._has_counts:
            held = max(self.n_slots, held)
        counts = np.full_like(sizes, (n_answers * held << q) // self.n_clusters)
        return State(state.round + 1, {"centroids": centroids, "counts": counts})

    def size_noise(self, all_answered: bool) -> float | None:
        """Return ``None``: counts are numbers of slots, and not of records."""
        return None

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return the warning that sizes are public averages, if none are released."""
        if self.aggregation == "mna" and self._has_counts:
            return ()
        return (
            "The run released no sizes: those shown are public averages, not of the records.",
        )

    @classmethod
    def read_config(cls, config: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
        """Return the parameters of a run document."""
        # A field that the assignment does not use would give the same algorithm a
        # second encoding.
        if ("max_size" in config) == (config.get("assignment") == "non-exclusive"):
            raise ConfigurationError(
                f"The fields of algorithm {cls.name!r} are not as expected."
            )
        return super().read_config(config, domain)

    # ------------------------------------------------------------------ parameters

    def _check_bounds(self) -> None:
        """Require bounds that a client's slots can keep."""
        k = self.n_clusters
        is_free = self.assignment == "non-exclusive"
        if is_free and self.max_size is not None:
            raise ConfigurationError(
                "Expected max_size=None with assignment='non-exclusive', where every cluster has "
                f"as many records as it must. Got max_size={self.max_size!r} instead."
            )
        # An empty cluster has no mean. With "non-exclusive" every cluster has exactly
        # the least size.
        needs_one = is_free or self.aggregation == "amn"
        integer("min_size", self.min_size, int(needs_one), self.n_records)
        if not is_free:
            integer("max_size", self.max_size, 0, LARGEST)
        slots = self.n_slots
        if slots * k > MAX_ARCS:
            raise ConfigurationError(
                f"Expected n_clusters ceil(n_records / n_clients) of at most {MAX_ARCS}, which "
                f"every client's assignment has to solve. Got {k} x {slots} instead."
            )
        low, high = self.client_bounds
        if is_free:
            fits = low <= slots
            needed = (
                f"ceil(min_size / n_clients) of at most {slots}, the slots of a client"
            )
        else:
            fits = self._fit(low, high)
            most = self.max_contribution
            times = "n_records" if most == 1 else f"{most} * n_records"
            needed = (
                f"n_clusters * min_size <= {times}, n_records <= n_clusters * max_size, and "
                f"clusters of ceil(min_size / n_clients) to floor(max_size / n_clients) records "
                f"into which the {slots} slots of a client fit"
            )
        if not fits:
            raise ConfigurationError(
                f"Expected min_size, max_size and n_clients with {needed}. "
                f"Got min_size={self.min_size}, max_size={self.max_size}, n_clusters={k}, "
                f"n_records={self.n_records}, n_clients={self.n_clients}: "
                f"{low} to {high} records in each cluster of a client."
            )

    def _fit(self, low: int, high: int) -> bool:
        """Return whether all records, and a client's slots, fit into the clusters."""
        k = self.n_clusters
        n = self.n_records
        most = self.max_contribution
        largest = self.max_size or 0
        fit = (
            low <= high and k * low <= most * self.n_slots and self.n_slots <= k * high
        )
        return fit and k * self.min_size <= most * n <= most * k * largest

    def suitable_rounds(self) -> int:
        """Return the thesis's number of rounds (sections 6.2.4 and 6.3.3).

        It is the number for ``max_contribution=1``.
        """
        epsilon = self.budget.epsilon
        if epsilon is None:
            return MOST_AUTO_ROUNDS
        k = self.n_clusters
        d = self.domain.n_features
        if self.aggregation == "amn":
            return in_papers_range(epsilon * self.min_size / math.sqrt(500 * k * d**3))
        spread = d + count_share(d)
        error = math.sqrt(500 * k**3 * spread * spread * spread)
        return in_papers_range(epsilon * self.n_records / error)

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        # The ratio is Su et al.'s for epsilons. With Gaussian noise it is used for mu^2.
        shares = [float(self.domain.n_features), count_share(self.domain.n_features)]
        norm: Literal["l1", "l2"] = "l1"
        if self.mechanism == "gaussian":
            shares = [math.sqrt(share) for share in shares]
            norm = "l2"
        blocks = self.layout(round_number).blocks
        return tuple(
            Release(block.name, self.mechanism, norm, 1 / share, (block.name,))
            for block, share in zip(blocks, shares, strict=False)
        )

    def _sum_sensitivity(self, round_number: int) -> float:
        """Return the sensitivity of the sums in grid units.

        Each of ``max_contribution`` paths changes every cluster by two records.
        """
        k = self.n_clusters
        most = self.max_contribution
        q = self.fraction_bits
        if self.mechanism == "gaussian":
            # The factor covers the rounding of the square root.
            return 2 * most * math.sqrt(k) * (1 + 2.0**-50) * self.domain.l2_bound(q)
        return 2 * most * k * self.domain.l1_bound(q)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        if self.aggregation == "amn":
            words = self.n_clusters * self.domain.n_features
            rounding = (
                words
                if self.mechanism == "laplace"
                else math.sqrt(words) * (1 + 2.0**-50)
            )
            # This is for the means of one client, before they are rounded down.
            shared = (
                self._sum_sensitivity(round_number)
                / self.client_bounds[0]
                * (1 + 2.0**-50)
            )
            return {MEANS: shared + rounding}
        ends = 2.0 if self.mechanism == "laplace" else math.sqrt(2) * (1 + 2.0**-50)
        counts = ends * self.max_contribution * 2**self.fraction_bits
        sums = {SUMS: self._sum_sensitivity(round_number)}
        return {**sums, COUNTS: counts} if self._has_counts else sums

    @property
    def _has_counts(self) -> bool:
        return self.assignment != "non-exclusive"

    # --------------------------------------------------------------- one client's slots

    def _slots(self, records: GridRecords) -> tuple[IntArray, IntArray]:
        """Return the different points of a client's slots, (g, d), and their slots, (g,).

        Points are ascending, so nothing depends on the order of records. A public order
        of all points decides which records are left out if there are too many. One
        record more replaces one of the others, or is left out itself.
        """
        n, d = records.shape
        grid = np.zeros((max(n, self.n_slots), d), dtype=np.int64)
        start = 0
        for block in records.blocks(2**16):
            grid[start : start + len(block)] = block
            start += len(block)
        points, sizes = np.unique(grid, axis=0, return_counts=True)
        if n > self.n_slots:
            order = np.argsort(self._hashes(b"keep", points, 1)[:, 0], kind="stable")
            before = np.cumsum(sizes[order]) - sizes[order]
            sizes[order] = np.clip(self.n_slots - before, 0, sizes[order])
            points = points[sizes > 0]
            sizes = sizes[sizes > 0]
        return points, sizes.astype(np.int64)

    def _hashes(self, use: bytes, points: IntArray, n_words: int) -> IntArray:
        """Return public random words of points, (g, n_words), in [0, 2^48).

        They are SHAKE-128 of the seed and the point's integers, so all processors get
        the same words.
        """
        head = b"constrained-lloyd/" + use + self.seed.to_bytes(8, "little")
        data = b"".join(
            hashlib.shake_128(head + row.tobytes()).digest(8 * n_words)
            for row in np.ascontiguousarray(points, "<i8")
        )
        words = np.frombuffer(data, "<u8").reshape(len(points), n_words)
        return (words >> np.uint64(64 - _TIE_BITS)).astype(np.int64)

    def _assigned(
        self, points: IntArray, sizes: IntArray, centroids: IntArray
    ) -> IntArray:
        """Return the number of slots of each point in each cluster, (g, k)."""
        k = self.n_clusters
        # Integers below 2^53 (`check_exactness`), so the product is exact.
        x = points.astype(np.float64)
        c = centroids.astype(np.float64)
        squares = (x * x).sum(axis=1)[:, None] - 2 * (x @ c.T) + (c * c).sum(axis=1)
        costs = squares.astype(np.int64)
        low, high = self.client_bounds
        ties = self._hashes(b"tie", points, (_TIE_LEVELS + 1) * k).reshape(
            len(points), -1, k
        )
        if self.assignment == "non-exclusive":
            return nearest_slots(costs, sizes, low, ties[:, 0])
        largest = self.domain.n_features * 4 ** (self.fraction_bits + 1)
        first = blended(costs, ties[:, 0], largest, self.n_slots + k + 2)
        levels = [first, *(ties[:, i + 1] for i in range(_TIE_LEVELS))]
        return bounded_assignment(levels, sizes, low, high, self.max_contribution)


def _require_records(budget: PrivacyBudget) -> None:
    """Refuse a budget that protects whole clients or persons."""
    if budget.protects_clients or budget.counts_persons:
        raise ConfigurationError(
            "Expected a budget with unit='record' for ConstrainedLloyd: the bounds of a "
            f"client's sizes are no bounds of what all records of a {budget.unit} change. "
            f"Got unit={budget.unit!r} instead."
        )


# ---------------------------------------------------------------------- the assignments


def _require_contribution(algorithm: ConstrainedLloydAlgorithm) -> None:
    """Require a ``max_contribution`` that the assignment allows."""
    integer("n_clients", algorithm.n_clients, 1, algorithm.n_records)
    k = algorithm.n_clusters
    most = integer("max_contribution", algorithm.max_contribution, 1, k)
    if most > 1 and algorithm.assignment != "e-exclusive":
        raise ConfigurationError(
            "Expected max_contribution=1 unless assignment='e-exclusive'. "
            f"Got max_contribution={most}, assignment={algorithm.assignment!r} instead."
        )


def nearest_slots(costs: IntArray, sizes: IntArray, n: int, ties: IntArray) -> IntArray:
    """Return the slots of each point among the ``n`` nearest of each cluster, (g, k).

    Equal costs, (g, k), are ordered by ``ties``, and equal ties by the points. ``sizes``,
    (g,), are the slots of each point, together at least ``n``.
    """
    held = np.zeros_like(costs)
    for j in range(costs.shape[1]):
        order = np.lexsort((ties[:, j], costs[:, j]))
        before = np.cumsum(sizes[order]) - sizes[order]
        held[order, j] = np.clip(n - before, 0, sizes[order])
    return held


def blended(costs: IntArray, ties: IntArray, largest: int, n_nodes: int) -> IntArray:
    """Return costs so small that the solver cannot overflow, with bits of ``ties`` below.

    The solver multiplies costs by ``n_nodes + 1``. In each phase a node's price falls
    by at most ``n_nodes`` times the old and the new error bound (Goldberg and Tarjan
    1990). The first error bound is the largest scaled cost, and each phase divides it
    by five. So prices fall by at most 1.5 ``n_nodes`` scaled costs in all, and costs
    below ``2^63 / (4 (n_nodes + 2)^2)`` are safe.

    Costs, (g, k), are in [0, ``largest``], and ties in [0, 2^48). ``largest`` and
    ``n_nodes`` are public bounds.
    """
    bits = ((2**63) // (4 * (n_nodes + 2) ** 2)).bit_length() - 1
    low = bits // 3
    shift = max(largest.bit_length() - (bits - low), 0)
    return np.asarray(((costs >> shift) << low) | (ties >> (_TIE_BITS - low)))


def bounded_assignment(
    levels: Sequence[IntArray], sizes: IntArray, low: int, high: int, most: int = 1
) -> IntArray:
    """Return the cheapest number of slots of each point in each cluster, (g, k).

    A slot is in 1 to ``most`` clusters, at most once in each, and a cluster has ``low``
    to ``high`` slots. These bounds must be possible. If the sums of the first level's
    costs are equal, the second level's sums decide, and so on. So the result is unique
    unless sums are equal on all levels (docs/guarantees, Theorem 18).

    Costs of each level have the shape (g, k). They are in the range of `blended` on the
    first level, and in [0, 2^48) on the others. ``sizes``, (g,), are the slots of each
    point.
    """
    flow = _Flow(levels, sizes, low, high, most)
    flow.solve()
    for level in range(len(levels)):
        flow.settle(level)
    return flow.held[:, :-1]


class _Flow:
    """An assignment of slots to columns, as a flow: k clusters and one last column.

    A slot counts ``most`` times in its row. The last column holds the times that a slot
    is in no cluster, at most ``most - 1`` for each slot. A cycle of moves from column
    to column changes no size and leads to another assignment. So does a path of moves
    that changes two sizes within their bounds. One more node joins the ends of paths,
    so paths are cycles too. The assignment is optimal if no cycle has a negative cost.
    """

    def __init__(
        self,
        levels: Sequence[IntArray],
        sizes: IntArray,
        low: int,
        high: int,
        most: int,
    ) -> None:
        g, k = levels[0].shape
        free = np.zeros((g, 1), dtype=np.int64)
        self.sizes = sizes
        self.most = most
        self.costs = [np.hstack([costs, free]) for costs in levels]
        more = (most - 1) * sizes[:, None]
        self.capacity = np.hstack([np.repeat(sizes[:, None], k, axis=1), more])
        self.low = np.array([low] * k + [0])
        self.high = np.array([high] * k + [(most - 1) * int(sizes.sum())])
        self.held = np.zeros((g, k + 1), dtype=np.int64)
        self.reduced: list[IntArray] = []
        self.prices: list[IntArray] = []

    def solve(self) -> None:
        """Assign slots to columns at the least cost of the first level."""
        g, n_columns = self.held.shape
        sink = g + n_columns
        supply = self.most * self.sizes
        solver = _solver().SimpleMinCostFlow()
        rows, columns = np.nonzero(self.capacity)
        arcs = solver.add_arcs_with_capacity_and_unit_cost(
            rows.astype(np.int32),
            (g + columns).astype(np.int32),
            self.capacity[rows, columns],
            self.costs[0][rows, columns],
        )
        nodes = np.arange(g, sink, dtype=np.int32)
        solver.add_arcs_with_capacity_and_unit_cost(
            nodes,
            np.full(n_columns, sink, dtype=np.int32),
            self.high - self.low,
            np.zeros(n_columns, dtype=np.int64),
        )
        rest = np.array([int(self.low.sum()) - int(supply.sum())])
        solver.set_nodes_supplies(
            np.arange(sink + 1, dtype=np.int32),
            np.concatenate([supply, -self.low, rest]),
        )
        status = solver.solve()
        # Checked bounds and costs never lead here.
        if status != solver.OPTIMAL:
            raise ConfigurationError(
                "Expected ortools to solve every assignment. It does not."
            )
        self.held[rows, columns] = solver.flows(arcs)

    def settle(self, level: int) -> None:
        """Move slots along cycles that cost less on a level, and as much on levels before."""
        while True:
            weights, which = self._moves(level)
            prices, cycle = _prices(weights)
            if cycle is None:
                break
            self._push(cycle, which)
        self.prices.append(prices)
        self.reduced.append(self.costs[level] - prices[:-1])

    def _moves(self, level: int) -> tuple[IntArray, IntArray]:
        """Return the least cost of a move between two columns, and the point that moves.

        Only moves that keep the optimum of all levels before are allowed. The last node
        joins the ends of paths.
        """
        n_columns = self.held.shape[1]
        weights = np.full((n_columns + 1, n_columns + 1), _FAR)
        which = np.zeros((n_columns, n_columns), dtype=np.int64)
        costs = self.costs[level]
        room = self.held < self.capacity
        for a in range(n_columns):
            rows = np.flatnonzero(self.held[:, a])
            if not len(rows):
                continue
            found = costs[rows] - costs[rows, a][:, None]
            usable = room[rows]
            usable[:, a] = False
            for reduced in self.reduced:
                usable &= reduced[rows] == reduced[rows, a][:, None]
            found = np.where(usable, found, _FAR)
            best = found.argmin(axis=0)
            which[a] = rows[best]
            weights[a, :-1] = found[best, np.arange(n_columns)]
        inside = np.ones(n_columns, dtype=bool)
        sizes = self.held.sum(axis=0)
        for prices in self.prices:
            inside &= prices[:-1] == prices[-1]
        weights[-1, :-1] = np.where(inside & (sizes > self.low), 0, _FAR)
        weights[:-1, -1] = np.where(inside & (sizes < self.high), 0, _FAR)
        return weights, which

    def _push(self, cycle: list[int], which: IntArray) -> None:
        """Move one slot along every step of a cycle."""
        last = self.held.shape[1]
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            if last not in (a, b):
                self.held[which[a, b], a] -= 1
                self.held[which[a, b], b] += 1


def _prices(weights: IntArray) -> tuple[IntArray, list[int] | None]:
    """Return shortest distances to all nodes, and a cycle of negative cost or ``None``.

    This is Bellman and Ford's algorithm from a source with arcs of cost 0 to all nodes.
    """
    n = len(weights)
    prices = np.zeros(n, dtype=np.int64)
    before = np.full(n, -1)
    for _ in range(n):
        through = np.where(weights < _FAR, weights + prices[:, None], _FAR)
        best = through.argmin(axis=0)
        found = through[best, np.arange(n)]
        shorter = found < prices
        if not shorter.any():
            return prices, None
        prices = np.where(shorter, found, prices)
        before = np.where(shorter, best, before)
    # A node that still changes after n passes lies behind a cycle. n steps back lead
    # into the cycle.
    node = int(np.flatnonzero(shorter)[0])
    for _ in range(n):
        node = int(before[node])
    cycle = [node]
    while int(before[cycle[-1]]) != node:
        cycle.append(int(before[cycle[-1]]))
    return prices, cycle[::-1]


def _solver() -> Any:
    """Return the module of the exact integer solver. Only this function imports ortools."""
    return require(
        "ortools.graph.python.min_cost_flow",
        "Constrained assignment at a client",
        "constrained",
    )
