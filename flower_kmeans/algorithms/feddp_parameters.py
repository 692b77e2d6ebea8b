"""The parameters of FedDP-KMeans: checks, defaults, and the run document."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms.base import IntArray
from flower_kmeans.algorithms.clipping import client_clip
from flower_kmeans.algorithms.feddp_clips import suggested_clips
from flower_kmeans.algorithms.feddp_plan import FedDPPlan
from flower_kmeans.algorithms.feddp_releases import (
    LAPLACE_RELEASES,
    LIFT,
    N_INITIAL,
    PROJECTION,
    WEIGHTS,
    laplace_releases,
    per_release,
)
from flower_kmeans.algorithms.lloyd import (
    MAX_CLUSTERS,
    MAX_ROUNDS,
    MAX_RUN_WORDS,
    MAX_WORDS,
    SUMS,
    Rounds,
    integer,
    planned_records,
)
from flower_kmeans.assignment import check_exactness
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.domain import Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.initialization import check_server_data, public_generator
from flower_kmeans.privacy.budget import PrivacyBudget

MOST_AUTO_LLOYD_ROUNDS = 2
"""Measured: one repairs too little where the server's points miss clusters, three add noise."""
AUTO_NOISE = 0.1
"""Noise of a mean over the domain's radius beyond which a second Lloyd round does harm."""
AUTO_NOISE_OF_CLIENTS = 0.05
"""The same where clients are protected. Measured with clips from the server's points."""
DEFAULT_ALPHA = 0.8
AUTO_RADIUS = 0.6
"""Radius over the domain's up to which relative sums are better. With more, records of a cluster
lie beyond a radius that saves little noise."""
WIDE_ALPHA = 2.7
"""Of a radius that was above `AUTO_RADIUS` at the default, it makes the domain's diameter."""

_ANY_WEIGHT = 1e-6  # no server point is too light without noise

_SUMS = ("auto", "absolute", "relative", "narrowing")
_CONTRIBUTIONS = ("sums", "means")
_FIELDS = {
    "n_clusters": int,
    "n_lloyd_rounds": int,
    "n_server_points": int,
    "seed": int,
    "fraction_bits": int,
    "margin": float,
    "min_weight": float,
    "sums": str,
    "alpha": float,
    "cost": bool,
    "contribution": str,
    "shares": dict,
    "clips": dict,
    "laplace": list,
}


@dataclass(frozen=True, init=False)
class FedDPParameters(FedDPPlan):
    """Parameters of FedDP-KMeans, their checks and their document; see `FedDPAlgorithm`."""

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        server_data: ArrayLike | None = None,
        n_server_points: int | None = None,
        n_records: int | None = None,
        n_clients: int | None = None,
        clip: float | None = None,
        clips: Mapping[str, float] | None = None,
        contribution: Literal["sums", "means"] = "sums",
        n_lloyd_rounds: Rounds = "auto",
        seed: int = 0,
        fraction_bits: int = 16,
        margin: float = 1.0,
        min_weight: float = 5.0,
        sums: Literal["auto", "absolute", "relative", "narrowing"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        cost: bool = False,
        shares: Mapping[str, float] | None = None,
        mechanisms: str | Mapping[str, str] = "gaussian",
    ) -> None:
        put = object.__setattr__  # the dataclass is frozen from here on
        put(self, "n_clusters", integer("n_clusters", n_clusters, 1, MAX_CLUSTERS))
        put(self, "domain", domain)
        put(self, "n_records", planned_records(n_records, self.n_clusters, budget))
        if n_clients is not None:
            n_clients = integer("n_clients", n_clients, 1, 2**53 - 1)
        put(self, "clip", client_clip(budget, self.n_records, n_clients, clip))
        put(self, "n_clients", n_clients)
        n_units = n_clients if budget.protects_clients else self.n_records
        put(self, "budget", budget if n_units is None else budget.resolved(n_units))
        put(self, "clips", per_release("clips", clips))
        put(self, "contribution", contribution)
        self._check_contribution()
        put(self, "seed", integer("seed", seed, 0, 2**53 - 1))
        put(self, "fraction_bits", integer("fraction_bits", fraction_bits, 1, 25))
        check_exactness(domain.n_features, self.fraction_bits)
        put(self, "server_points", self._on_grid(server_data))
        put(self, "n_server_points", self._n_points(n_server_points))
        put(self, "margin", _number("margin", margin, 1e-6, 1.0))
        put(self, "min_weight", _number("min_weight", min_weight, 1e-6, 2.0**53))
        if not isinstance(sums, str) or sums not in _SUMS:
            raise ConfigurationError(f"Expected sums in {list(_SUMS)}. Got {sums!r} instead.")
        suggests = clip is None and self.clip is not None and self.server_points is not None
        self._put_sums(sums, alpha, suggests and "lloyd-sums" not in dict(self.clips))
        put(self, "shares", per_release("shares", shares))
        put(self, "laplace", laplace_releases(mechanisms))
        if not isinstance(cost, bool):
            raise ConfigurationTypeError(f"cost must be a bool, got {type(cost).__name__}.")
        put(self, "cost", cost)
        if suggests and server_data is not None:
            put(self, "clips", self._with_suggested_clips(server_data))
        if isinstance(n_lloyd_rounds, str) and n_lloyd_rounds != "auto":
            raise ConfigurationError(
                f"Expected n_lloyd_rounds as an integer or 'auto'. Got {n_lloyd_rounds!r}."
            )
        rounds = self._auto_rounds() if isinstance(n_lloyd_rounds, str) else n_lloyd_rounds
        put(self, "n_lloyd_rounds", integer("n_lloyd_rounds", rounds, 0, MAX_ROUNDS))
        put(self, "n_rounds", N_INITIAL + self.n_lloyd_rounds)
        self._put_narrowing(sums, alpha)
        if cost and not self.n_lloyd_rounds:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 1 with cost=True, which belongs to the last of them. "
                "Got n_lloyd_rounds=0."
            )
        if self.contribution == "means" and cost:
            raise ConfigurationError(
                "Expected contribution='sums' with cost=True, which needs the records of a "
                "cluster. Got contribution='means'."
            )
        self._check_size()
        self._require_visible_clips()
        self.require_capacity()

    # ------------------------------------------------------------------ the document

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document, without the server's points."""
        config: dict[str, Any] = {"name": self.name}
        for name, kind in _FIELDS.items():
            value = getattr(self, name)
            config[name] = real_to_text(value) if kind is float else value
        config["shares"] = {name: real_to_text(share) for name, share in self.shares}
        config["clips"] = {name: real_to_text(clip) for name, clip in self.clips}
        config["laplace"] = list(self.laplace)
        if self.n_records is not None:
            config["n_records"] = self.n_records
        if self.clip is not None:
            config |= {"n_clients": self.n_clients, "clip": real_to_text(self.clip)}
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described; it has no server points."""
        required = {"name", *_FIELDS}
        if budget.protects_clients:
            required |= {"n_clients", "clip"}
        if not required <= set(config) <= required | {"n_records"}:
            raise ConfigurationError(f"The fields of algorithm {cls.name!r} are not as expected.")
        values = {name: value for name, value in config.items() if name != "name"}
        for name, kind in _FIELDS.items():
            if kind is float:
                values[name] = real_from_text(values[name])
            elif type(values[name]) is not kind:
                raise ConfigurationTypeError(f"{name} has the wrong type in a run document.")
        if values["sums"] == "auto":
            raise ConfigurationError("sums must be resolved in a run document.")
        for name in ("shares", "clips"):
            values[name] = {key: real_from_text(text) for key, text in values[name].items()}
        if budget.protects_clients:
            values["clip"] = real_from_text(values["clip"])
        laplace = values.pop("laplace")
        if not all(name in LAPLACE_RELEASES for name in laplace):
            raise ConfigurationError("The releases with Laplace noise are not as expected.")
        values["mechanisms"] = dict.fromkeys(laplace, "laplace")
        return cls(domain=domain, budget=budget, **values)

    # ------------------------------------------------------------------ details

    def _check_contribution(self) -> None:
        if self.contribution not in _CONTRIBUTIONS:
            raise ConfigurationError(
                f"Expected contribution in {list(_CONTRIBUTIONS)}. Got {self.contribution!r}."
            )
        if self.contribution == "means" and self.budget.unit != "client":
            raise ConfigurationError(
                "Expected contribution='sums' with unit='record': a single record can move a "
                "client's mean as far as the domain allows. Got contribution='means'."
            )
        if self.clips and self.clip is None:
            raise ConfigurationError(
                "Expected clips=None unless the budget is private with unit='client'. "
                f"Got clips for {[name for name, _ in self.clips]}."
            )

    def _with_suggested_clips(self, server_data: ArrayLike) -> tuple[tuple[str, float], ...]:
        """Return the clips that were given, and for other releases those of the server's points."""
        twin = type(self)(
            self.n_clusters,
            self.domain,
            PrivacyBudget(None, unit="client"),
            server_data=server_data,
            contribution=self.contribution,
            n_lloyd_rounds=1,
            seed=self.seed,
            fraction_bits=self.fraction_bits,
            margin=self.margin,
            min_weight=_ANY_WEIGHT,
            sums=self.sums,
            alpha=self.alpha,
            cost=self.cost,
            mechanisms=dict.fromkeys(self.laplace, "laplace"),
        )
        most = {
            release.name: self.plain_clip(release.name, release.norm)
            for number in range(1, twin.n_rounds + 1)
            for release in twin.releases(number)
        }
        records_each = (self.n_records or 1) / (self.n_clients or 1)
        found = suggested_clips(twin, records_each, most, public_generator(self.seed, 0))
        return tuple(sorted((found | dict(self.clips)).items()))

    def _put_sums(self, sums: str, alpha: Any, clips_offsets: bool) -> None:
        """Choose what is added up, and within which radius, where that is left to the library.

        ``clips_offsets`` says that the clip of Lloyd sums comes from the server's points: then it
        is as long as offsets are, not as the radius allows, and a wide radius costs nothing.
        """
        put = object.__setattr__
        bound = AUTO_RADIUS * self.domain.l2_bound(self.fraction_bits)
        given = DEFAULT_ALPHA if isinstance(alpha, str) and alpha == "auto" else alpha
        put(self, "alpha", _number("alpha", given, 1e-9, 1e9))
        is_small = self._radius_of(self.alpha) <= bound
        if sums == "auto":
            of_records = self.contribution == "sums" and is_small
            sums = "relative" if of_records or clips_offsets else "absolute"
        put(self, "sums", sums)
        if given is not alpha and clips_offsets and sums == "relative" and not is_small:
            put(self, "alpha", WIDE_ALPHA)

    def _put_narrowing(self, sums: str, alpha: Any) -> None:
        """Narrow the radius of relative sums after the first Lloyd round, if that is possible.

        Left to the library, it is done where noise is for single records, within a radius that is
        left to the library too.
        """
        radius = 0 if self.sums == "absolute" else self._packing_radius
        can = self.n_lloyd_rounds >= 2 and not self.budget.protects_clients
        can = can and radius**2 >= 2**self.fraction_bits
        if sums == "narrowing" and not can:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 2, unit='record' and a radius whose square is at least "
                f"one grid step of 2^-{self.fraction_bits} with sums='narrowing'. "
                f"Got n_lloyd_rounds={self.n_lloyd_rounds}, unit={self.budget.unit!r} and "
                f"alpha={self.alpha!r} instead."
            )
        if sums == alpha == "auto" and can and radius and self.budget.is_private:
            object.__setattr__(self, "sums", "narrowing")

    def _auto_rounds(self) -> int:
        """Return two rounds, or one where the noise of two would be too long."""
        if self.n_records is None:
            return MOST_AUTO_LLOYD_ROUNDS
        object.__setattr__(self, "n_lloyd_rounds", MOST_AUTO_LLOYD_ROUNDS)
        object.__setattr__(self, "n_rounds", N_INITIAL + MOST_AUTO_LLOYD_ROUNDS)
        noise = self.noise_of(LIFT + 1)[SUMS] * math.sqrt(self.domain.n_features)
        size = self.n_records / self.n_clusters
        if self.contribution == "means":
            size = float(self.n_clients or size)  # if every client holds every cluster
        noise /= self.domain.l2_bound(self.fraction_bits) * size
        most = AUTO_NOISE if self.clip is None else AUTO_NOISE_OF_CLIENTS
        return MOST_AUTO_LLOYD_ROUNDS if noise <= most else 1

    def _on_grid(self, server_data: ArrayLike | None) -> IntArray | None:
        if server_data is None:
            return None
        points = check_server_data(server_data, self.n_clusters, self.domain.n_features)
        grid = self.domain.quantise(self.domain.to_unit(points), self.fraction_bits)
        found: IntArray = grid.astype(np.int64)
        found.setflags(write=False)
        return found

    def _n_points(self, n_server_points: int | None) -> int:
        if self.server_points is None:
            if n_server_points is None:
                raise ConfigurationError(
                    "server_data is required: points of the server's own, (m, "
                    f"{self.domain.n_features}), as many as there are clusters or more. Got None."
                )
            return integer("n_server_points", n_server_points, self.n_clusters, MAX_WORDS)
        m = len(self.server_points)
        if n_server_points is not None and n_server_points != m:
            raise ConfigurationError(
                f"Expected n_server_points={m}, as server_data has. Got {n_server_points} instead."
            )
        return m

    def _check_size(self) -> None:
        """Refuse sizes of hours and gigabytes: a client makes what a run document describes."""
        k, d, m = self.n_clusters, self.domain.n_features, self.n_server_points
        asked = (d + m) * self.projection.n_directions
        for what, words in (
            ("columns", d * (d + 1) // 2),
            ("n_clusters and columns", k * (d + 1)),
            ("n_server_points", asked),
        ):
            if words > MAX_WORDS:
                raise ConfigurationError(
                    f"Expected {what} so that a message has at most {MAX_WORDS} words. "
                    f"Got {words} with {d} columns, n_clusters={k} and {m} server points."
                )
        words = sum(map(self.words, (PROJECTION, WEIGHTS, LIFT)))
        if words + self.n_lloyd_rounds * self.words(LIFT) > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_lloyd_rounds so that each client sends at most {MAX_RUN_WORDS} "
                f"words. Got n_lloyd_rounds={self.n_lloyd_rounds}."
            )
        if self.radius is not None and self.radius < 1:
            raise ConfigurationError(
                f"Expected alpha so large that the radius is at least one grid step of "
                f"2^-{self.fraction_bits}. Got {self.alpha!r} instead."
            )


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigurationTypeError(f"{name} must be a number, got {type(value).__name__}.")
    if not low <= value <= high:
        raise ConfigurationError(f"Expected {name} in [{low:g}, {high:g}]. Got {value!r} instead.")
    return float(value)
