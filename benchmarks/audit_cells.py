"""The cells of the privacy audit: strategies, trust models, units, data and adversaries.

A cell is a strategy with a trust model and a unit of privacy. Its two neighbours differ
in a target: one record, or all records of one client or one person. The target changes
every release by as much as the plan allows, in nearly every round. For sums and second
moments it is a record in a corner or on the sphere. For FastLloyd it is a record at the
radius of the round from a centroid that many other records hold in place. A protected
person has some equal records. For SynopsisKMeans it is a
record far from the cells that other records hold in place. For ConstrainedLloyd it
takes the slot of another record, and moves a third one between clusters. A protected
client has so many equal records that it is clipped in every release. Relative sums, and
a cost beside them, change most if the centroids are held a radius away.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal
from unittest import mock

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans import Ball, Box, PrivacyBudget, strategies
from flower_kmeans.algorithms.numerics.column_groups import ColumnGroups
from flower_kmeans.arrays import FloatArray
from flower_kmeans.strategies import KMeansStrategy

DELTA = 1e-5
N_CLIENTS, COLLUDERS = 3, 1
CLIENT_RECORDS = 10
"""Planned records of a client. A protected client counts as at most so many."""
MANY = 60
"""Records of the attacked client."""
PERSON_RECORDS = 8
"""Records of the attacked person, whose weights add up to the whole of W."""

# Variants, beside "" for the usual setting of a strategy:
# The server and tau members pool one client's shares, which reveal nothing.
BELOW = "below the threshold"
# So many members pool shares that they reconstruct one client's answers.
BEYOND = "beyond the threshold"
COALITION = "2 of 4 collude"
# cost, offsets in a radius, clients' means
COST, RELATIVE, MEANS = "cost", "relative", "means"
# so many columns that one joint bound on a record's sums would need far more noise
COLUMNS = "columns"
PAPER = "paper, two rounds"  # no relocation: each round's radius is the sensitivity
# a first round finds ranges of the columns, and later rounds read records within them
RANGES = "ranges"
# FastLloyd with so few records that its sums are weighted by nearness
WEIGHTED = "weighted"
# ConstrainedLloyd with the nearest slots of each cluster, which may share slots
NEAREST = "nearest"
# SynopsisKMeans with products of columns and groups of columns, as in long messages
GROUPS = "groups"

SEES = {
    "oblivious-server": "a client or reader of results: opens every sum with the group key, does "
    "not know the server's noise",
    "trusted-server": "a client or outsider: sees every noisy sum",
    "distributed-noise": f"the server, which opens every sum, and {COLLUDERS} of {N_CLIENTS} "
    "clients, whose share of the noise it subtracts",
    "clients-only": f"the server and {COLLUDERS} of {N_CLIENTS} clients, which open every sum and "
    "subtract their own share of the noise",
    COALITION: "the server and 2 of 4 clients, whose shares of the noise it subtracts",
    BELOW: "the server, which holds all sealed shares of one client's answers, and as many "
    "committee members as the threshold allows, who open their own; the claim is that they see "
    "nothing, ε = 0",
    BEYOND: "as many committee members as open a sum, with the shares of one client's answers, "
    "which its own share of the noise covers; the claim is √M' μ",
}


SHARED = ("distributed-noise", "clients-only")
_ALL = ("oblivious-server", *SHARED, "trusted-server")
TRUSTS = dict.fromkeys(
    (
        "FastLloyd",
        "GLloyd",
        "PEMeans",
        "HDPEMeans",
        "SynopsisKMeans",
        "ConstrainedLloyd",
    ),
    _ALL,
) | {
    "SuLloyd": ("oblivious-server", "trusted-server"),
    "FedDPKMeans": ("distributed-noise", "trusted-server"),
}
"""Private trust models of every strategy."""
PERSONS = (
    ("FastLloyd", "oblivious-server", ""),
    ("GLloyd", "clients-only", ""),
    ("SuLloyd", "trusted-server", ""),
    ("SuLloyd", "trusted-server", COLUMNS),
    ("FedDPKMeans", "distributed-noise", ""),
    ("PEMeans", "distributed-noise", ""),
    ("HDPEMeans", "trusted-server", ""),
    ("SynopsisKMeans", "distributed-noise", ""),
)
"""Strategies, trust models and variants with attacks on persons.

Weights come before noise and shares, so they do not depend on the trust model.
"""


RECORDS_ALONE = ("ConstrainedLloyd",)
"""Strategies that protect records, and neither clients nor persons."""
WITH_RANGES = ("FastLloyd", "GLloyd", "SynopsisKMeans")
"""Strategies with attacks on a run that begins with ranges of columns."""
TIGHTEN = 0.1  # of mu^2 for the ranges


@dataclass(frozen=True)
class Cell:
    """An attacked combination of strategy, trust model, unit and variant."""

    strategy: str
    trust: str
    unit: str = "record"
    epsilon: float = 4.0  # of the whole run, at `DELTA`
    variant: str = ""

    @property
    def sees(self) -> str:
        """Who attacks."""
        return SEES.get(self.variant, SEES[self.trust])


@dataclass(frozen=True)
class Setting:
    """A cell's run and its two neighbours.

    The adversary sees the sums, or shares of the first client's own answers. The shares
    are from so few committee members that they reveal nothing ("below"), or from so
    many that they reconstruct the answers ("beyond").
    """

    strategy: KMeansStrategy
    # the clients' records without what is attacked, (n_i, d)
    background: list[FloatArray]
    target: FloatArray  # what the first client holds beside them, or not, (n, d)
    view: Literal["sums", "below", "beyond"] = "sums"

    def partitions(self, present: bool) -> list[FloatArray]:
        """Return the clients' records, with the target or without."""
        first, *others = self.background
        return [np.concatenate([first, self.target]) if present else first, *others]

    def persons(self, present: bool) -> list[list[str]] | None:
        """Return the ids of the clients' records if persons are protected.

        Each record of the background is one person.
        """
        if not self.strategy.privacy.protects_persons:
            return None
        ids = [
            [f"{client}-{row}" for row in range(len(records))]
            for client, records in enumerate(self.background)
        ]
        if present:
            ids[0] += ["target"] * len(self.target)
        return ids

    @property
    def shared(self) -> bool:
        """Whether the clients add the noise."""
        return self.strategy.trust_model.shares_noise

    @property
    def alone(self) -> bool:
        """Whether the first client's own answers are seen, and not the sums."""
        return self.view != "sums"

    @property
    def n_clients(self) -> int:
        """Number of clients. The last ones collude."""
        return len(self.background)

    @property
    def shares(self) -> int:
        """M', the number of clients whose shares have the planned noise together."""
        return self.n_clients - int(self.strategy.max_colluders)


def cells(epsilons: tuple[float, ...] = (4.0,)) -> list[Cell]:
    """Return every strategy under every trust model that it allows, for records and clients.

    And each strategy once for persons. ConstrainedLloyd protects records alone.
    """
    both = ("distributed-noise", "trusted-server")
    found = []
    for epsilon, unit in product(epsilons, ("record", "client")):
        places = [
            (strategy, trust, "")
            for strategy in TRUSTS
            for trust in TRUSTS[strategy]
            if unit == "record" or strategy not in RECORDS_ALONE
        ]
        places.append(("FedDPKMeans", "trusted-server", "laplace"))
        if unit == "record":
            places += [
                (strategy, trust, RANGES)
                for strategy in WITH_RANGES
                for trust in ("oblivious-server", "trusted-server")
            ]
            places += [("SuLloyd", trust, COLUMNS) for trust in TRUSTS["SuLloyd"]]
            places += [
                (strategy, trust, variant)
                for strategy, variant in (
                    ("ConstrainedLloyd", NEAREST),
                    ("ConstrainedLloyd", MEANS),
                    ("SynopsisKMeans", GROUPS),
                )
                for trust in both
            ]
        for variant in (BELOW, BEYOND):
            places.append(("GLloyd", "clients-only", variant))
            places.append(("FedDPKMeans", "distributed-noise", variant))
        places.append(("GLloyd", "distributed-noise", COALITION))
        variants = [
            (strategy, COST) for strategy in ("FastLloyd", "GLloyd", "FedDPKMeans")
        ]
        variants += [
            ("FedDPKMeans", each)
            for each in (RELATIVE, MEANS)[: 1 + (unit == "client")]
        ]
        places += [
            (strategy, trust, variant)
            for strategy, variant in variants
            for trust in both
        ]
        found += [
            Cell(name, trust, unit, epsilon, variant) for name, trust, variant in places
        ]
    for epsilon in epsilons:
        for name, trust, variant in PERSONS:
            found.append(Cell(name, trust, "person", epsilon, variant))
    return found


def setting_of(cell: Cell) -> Setting:
    """Return the run of a cell and its neighbours."""
    n, colluders = (4, 2) if cell.variant == COALITION else (N_CLIENTS, COLLUDERS)
    options: dict[str, Any] = {"n_clients": n, "min_clients": n, "trust": cell.trust}
    if cell.trust in SHARED:
        options["max_colluders"] = colluders
    if cell.variant == COST:
        options["cost"] = True
    budget = PrivacyBudget(cell.epsilon, DELTA, cell.unit)
    if cell.variant == RANGES:
        setting = _with_ranges(cell, budget, options)
    else:
        setting = _SETTINGS[cell.strategy](cell, budget, options)
    views: dict[str, Literal["below", "beyond"]] = {BELOW: "below", BEYOND: "beyond"}
    return replace(setting, view=views.get(cell.variant, "sums"))


def _few(d: int, n: int = 12, spread: float = 0.3) -> FloatArray:
    """Return records within the unit ball, always the same."""
    points = np.random.default_rng(17).normal(size=(n, d))
    return spread * points / np.linalg.norm(points, axis=1).max()


def _setting(
    cell: Cell, strategy: KMeansStrategy, records: FloatArray, target: FloatArray
) -> Setting:
    """Spread records over the clients; a client that is attacked has no others."""
    if cell.unit != "client":
        times = PERSON_RECORDS if cell.unit == "person" else 1
        parts = np.array_split(records, strategy.min_clients)
        return Setting(strategy, parts, np.repeat(target, times, axis=0))
    others = np.array_split(records, strategy.min_clients - 1)
    return Setting(strategy, [records[:0], *others], np.repeat(target, MANY, axis=0))


def _held(places: ArrayLike, each: int) -> FloatArray:
    """Return ``each`` equal records at each of the places, to hold centroids there."""
    held = np.repeat(np.asarray(places, dtype=np.float64), each, axis=0)
    return held[np.random.default_rng(3).permutation(len(held))]


def _sized(cell: Cell, options: dict[str, Any], n_units: int) -> dict[str, Any]:
    """Return options with the planning figure: small for clients, of which one is clipped."""
    if cell.unit == "client":
        return {**options, "n_records": N_CLIENTS * CLIENT_RECORDS}
    name = "n_persons" if cell.unit == "person" else "n_records"
    return {**options, name: n_units}


def _box(d: int) -> Box:
    return Box([-1.0] * d, [1.0] * d)


def _ball(d: int) -> Ball:
    return Ball(1.0, [0.0] * d)


def _sphere(d: int) -> FloatArray:
    return np.eye(1, d)


def _with_ranges(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    """Let ranges be found that are far from the target, which is read in their corner.

    The range of each column goes from two bins with 20,000 records each to a bin with
    2,000. So the first 40,000 keep both centroids far from the upper corner.
    SynopsisKMeans has long radii where noise is small, so the last bin is farther away.
    """
    n_bins = 60 if cell.strategy == "SynopsisKMeans" else 8
    domain = Box([-1.0] * 2, [1.0] * 2, tighten=TIGHTEN)
    fine = 2 / 1024
    low = -0.5 + 0.2 * fine
    places = [[low] * 2, [low - fine] * 2]
    last = [[low + n_bins * fine] * 2]
    held = np.concatenate([_held(places, 20_000), _held(last, 2_000)])
    if cell.strategy != "SynopsisKMeans":
        options |= {"n_rounds": 2, "initial": places}
    strategy = getattr(strategies, cell.strategy)(
        2, domain, budget, **_sized(cell, options, len(held))
    )
    return _setting(cell, strategy, held, np.ones((1, 2)))


def _fastlloyd(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    if cell.unit == "client":
        # A radius as wide as the domain: the client's many records count wherever
        # centroids go.
        options |= {"alpha": 4.0, "n_rounds": 3, "initial": [[0.3, 0.3], [-0.5, -0.5]]}
        strategy = strategies.FastLloyd(2, _box(2), budget, **_sized(cell, options, 0))
        return _setting(cell, strategy, _few(2), np.ones((1, 2)))
    if cell.variant == WEIGHTED:
        # Wherever a record lies, it uses the whole unit; this one lies where its
        # nearness is most.
        places = [[0.5, 0.5], [-0.5, -0.5]]
        held = _held(places, 40)
        options |= {"n_rounds": 3, "initial": places}
        strategy = strategies.FastLloyd(
            2, _box(2), budget, **_sized(cell, options, len(held))
        )
        return _setting(cell, strategy, held, np.full((1, 2), 0.5))
    # Round 1: the record is almost the first radius of the paper, sqrt 2, away from the
    # first centroid. From round 2 on that lies among 20,000 records which are almost
    # the paper's later radius, 0.8, away from it; the noise moves it by less than what
    # is missing. With relocation, radii are shorter, and a record that is further away
    # adds as much as one at the radius.
    away = 0.8 * (1 - 2e-3) / np.sqrt(2)
    held = _held([[1.0 - away, 1.0 - away], [-0.8, -0.8]], 20_000)
    options |= {"n_rounds": 3, "initial": [[5e-4, 5e-4], [-0.8, -0.8]]}
    if cell.variant == PAPER:
        options |= {"n_rounds": 2, "relocation": False}
    strategy = strategies.FastLloyd(
        2, _box(2), budget, **_sized(cell, options, len(held))
    )
    return _setting(cell, strategy, held, np.ones((1, 2)))


def _lloyd(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    # A corner has the largest norm in l1 and l2. Laplace noise: few words, or none is
    # decisive.
    gaussian = cell.strategy == "GLloyd"
    d, n_rounds = (2, 3) if gaussian else (1, 2)
    if cell.variant == "coarse":
        d, n_rounds, options["fraction_bits"] = 1, 7, 1
    if cell.variant == COLUMNS:
        d = 16
    records = _few(d)
    strategy = getattr(strategies, cell.strategy)(
        2,
        _box(d),
        budget,
        n_rounds=n_rounds,
        **_sized(cell, options, max(1000, len(records))),
    )
    return _setting(cell, strategy, records, np.ones((1, d)))


def _feddp(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    if cell.unit == "client":
        options["clip"] = float(CLIENT_RECORDS)
    if cell.variant in (COST, RELATIVE, MEANS):
        return _feddp_held(cell, budget, options)
    if cell.variant == "laplace":
        options["mechanisms"] = "laplace"
    options |= {"server_data": _few(3, 6, 0.8), "sums": "absolute", "n_rounds": 2}
    strategy = strategies.FedDPKMeans(
        2, _ball(3), budget, **_sized(cell, options, 1000)
    )
    return _setting(cell, strategy, _few(3), _sphere(3))


def _feddp_held(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    """Hold two centroids where the target changes cost, offsets or means by as much as it can.

    In two columns the projection keeps the server's two points, and weights cannot drop
    either. Where clients are protected, whose noise hides all other records, sums of
    the lift have so much noise that none is used, and one Lloyd round asks for these
    points.
    """
    places, target = [[-0.995, 0.02], [-0.995, -0.02]], _sphere(2)
    n_rounds, shares = 2, {}
    if cell.unit == "client":
        n_rounds, shares = 1, {"lift-sums": 0.01, "lift-counts": 0.29}
    options["sums"] = "absolute"
    if cell.variant == COST:
        shares["cost"] = 1.0  # as much as all else has: of 0.02 nothing would be seen
    elif cell.variant == RELATIVE and cell.unit == "client":
        # the diameter: noise does not move it away
        options |= {"sums": "relative", "alpha": 3.0}
    elif cell.variant == RELATIVE:
        alpha = 0.7
        away = 0.995 * alpha / np.sqrt(2)
        places = [[1.0 - away, 0.0], [-0.8, 0.0]]
        options |= {"sums": "relative", "alpha": alpha}
    else:
        # a client with records in both clusters adds two means, each as long as can be
        places, target = [[0.8, 0.0], [-0.8, 0.0]], np.concatenate([target, -target])
        options["contribution"] = "means"
    held = _held(places, 10_000)
    options |= {"server_data": places, "n_rounds": n_rounds, "shares": shares}
    strategy = strategies.FedDPKMeans(
        2, _ball(2), budget, **_sized(cell, options, len(held))
    )
    return _setting(cell, strategy, held, target)


def _pe_means(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    d, kind = (
        (2, strategies.PEMeans)
        if cell.strategy == "PEMeans"
        else (17, strategies.HDPEMeans)
    )
    options |= {"n_rounds": 4, "max_candidates": 16}
    strategy = kind(2, _ball(d), budget, **_sized(cell, options, 1000))
    return _setting(cell, strategy, _few(d), _sphere(d))


def _constrained(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    """Let the target take the slot of another record of a client whose slots are full.

    Which record leaves its slot follows from a public hash of the seed and the records.
    """
    if cell.variant:
        return _constrained_nearest(cell, budget, options)
    # The clients' records hold centroids at both ends of a line, and half of the slots
    # belong to each. A third record lies in the middle, at the far corner. The record
    # that leaves lies on one side of the middle, and the target on the other. So the
    # third record changes its cluster, and both sums change by a diagonal. Sums have
    # 0.99 of mu^2 in so many columns.
    d, each, aside = 64, 2000, 0.02
    line = np.tile([1.0, -1.0], d // 2)
    ends = [0.5 * line, -0.5 * line]
    held = _held(ends, each)
    corner = np.full(d, 1.0 - aside)
    middle = -corner
    leaves = corner - aside * line
    first = np.concatenate([_held(ends, each - 1), [middle, leaves]])
    options |= {"n_rounds": 2, "initial": ends, "seed": 2}
    options |= _of_slots(2 * each, max_size=N_CLIENTS * each)
    strategy = strategies.ConstrainedLloyd(2, _box(d), budget, **options)
    return Setting(strategy, [first, held, held], np.array([corner + aside * line]))


def _constrained_nearest(
    cell: Cell, budget: PrivacyBudget, options: dict[str, Any]
) -> Setting:
    """Let the target be the nearest of all slots to both clusters, at a client far away."""
    n_slots = 2000
    options |= {"assignment": "non-exclusive", "n_rounds": 3, "seed": 1}
    options |= {"initial": [[0.5, 0.5], [0.4, 0.4]]}
    if cell.variant == MEANS:
        options["aggregation"] = "amn"
    options |= _of_slots(n_slots)
    strategy = strategies.ConstrainedLloyd(2, _box(2), budget, **options)
    others = np.ones((n_slots, 2))
    return Setting(strategy, [-others, others, others], np.ones((1, 2)))


def _of_slots(n_slots: int, **more: int) -> dict[str, int]:
    """Return the options that give every client so many slots, and half of them a cluster."""
    n_records = N_CLIENTS * n_slots
    return {"n_records": n_records, "min_size": n_records // 2, **more}


def _synopsis(cell: Cell, budget: PrivacyBudget, options: dict[str, Any]) -> Setting:
    if cell.variant == GROUPS:
        return _synopsis_groups(cell, budget, options)
    # All others are near one point, and so are the cells: the record is a radius away,
    # or more.
    records = _few(3, 2_000, 0.02)
    if cell.unit == "client":
        options["clip"] = 1.0
    strategy = strategies.SynopsisKMeans(
        2, _ball(3), budget, **_sized(cell, options, len(records))
    )
    return _setting(cell, strategy, records, np.full((1, 3), 3**-0.5))


def _synopsis_groups(
    cell: Cell, budget: PrivacyBudget, options: dict[str, Any]
) -> Setting:
    """Let messages be so short that groups of columns stand for columns.

    All columns of a group have the same signed value in the target, so that no record
    has longer numbers.
    """
    d = 40
    records = _few(d, 2_000, 0.02)
    with mock.patch("flower_kmeans.strategies.kmeans.most_words", return_value=16 * d):
        strategy = strategies.SynopsisKMeans(
            2, _ball(d), budget, **_sized(cell, options, len(records))
        )
    algorithm: Any = strategy.algorithm
    groups = ColumnGroups(
        algorithm.domain,
        algorithm.fraction_bits,
        algorithm.schedule.n_groups,
        algorithm.seed,
    )
    # One record for each column, which alone is not 0, shows the column's sign.
    of_columns = groups.numbers(2.0**20 * np.eye(d))
    signs = np.sign(of_columns.sum(axis=1, keepdims=True))
    return _setting(cell, strategy, records, signs.T / np.sqrt(d))


_SETTINGS: dict[str, Any] = {
    "ConstrainedLloyd": _constrained,
    "FastLloyd": _fastlloyd,
    "GLloyd": _lloyd,
    "SuLloyd": _lloyd,
    "FedDPKMeans": _feddp,
    "PEMeans": _pe_means,
    "HDPEMeans": _pe_means,
    "SynopsisKMeans": _synopsis,
}
