"""Every algorithm and configuration that the contract holds: one row each.

`GRIDS` are for grids that are small enough to enumerate. `RUNS` are whole runs at the
usual resolution. `OPTIONS` are further options of either, whose documents and plans
must hold too.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flower_kmeans.algorithms import (
    Algorithm,
    ConstrainedLloydAlgorithm,
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    HDPEMeansAlgorithm,
    LloydAlgorithm,
    PEMeansAlgorithm,
    Query,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
    ranges,
    tightened,
)
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.numerics.postprocess import into_domain
from flower_kmeans.algorithms.queries import check_query
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from tests.algorithms.test_replay import CASES as REPLAYED

RNG = np.random.default_rng
N = 2000
BUDGET = PrivacyBudget(1.0, 1e-6)
CLIENTS = PrivacyBudget(2.0, 1e-6, unit="client")
OPEN = PrivacyBudget(None)

# -------------------------------------------------------------------------- small grids

Q = 3
"""Bits of a grid that is small enough to enumerate."""
FINE = 12
"""Bits where clients are clipped: truncation costs little."""

DOMAINS = {
    # Bounds are attained by a record in a corner, or by one at a whole radius from its
    # centroid.
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
    "cube": Box([0] * 3, [1] * 3),
    "slab": Box([0, 0, 0], [8, 8, 2], scale="common"),
    "sphere": Ball(1.0, [0] * 17),
    "corner": Box([0] * 17, [1] * 17),
    # A first round finds the ranges of columns.
    "ranges": Box([0, 0], [1, 1], tighten=0.1),
    "cubic ranges": Box([0, 0], [4, 3], scale="common", tighten=0.1),
    "corner ranges": Box([0] * 17, [1] * 17, tighten=0.1),
    "circle": Sphere(2),
    "directions": Sphere(17),
}
FLAT = ("line", "square", "rectangle", "disc", "cube", "circle")


@dataclass(frozen=True)
class Grid:
    """An algorithm on small grids; `clients` are options under which clients are clipped."""

    kind: type[Algorithm]
    options: Mapping[str, Any] = field(default_factory=dict)
    domains: tuple[str, ...] = FLAT
    short: Mapping[str, float] = field(default_factory=dict)
    """What releases reach of their sensitivity where few grid points lie at exactly a radius."""
    clients: tuple[Mapping[str, Any], ...] = ({"clip": 2.0}, {"clip": 0.75})
    changed: Callable[[Algorithm], Mapping[str, Any]] = lambda algorithm: {}

    def make(self, name, budget=BUDGET, **more):
        domain = DOMAINS[name]
        options = {"n_records": 1000, "fraction_bits": Q, **self.options, **more}
        if self.kind is FedDPAlgorithm:
            points = RNG(0).normal(size=(6, domain.n_features)) * 0.4
            options = {
                "server_data": domain.from_unit(domain.to_unit(points)),
                **options,
            }
        made = tightened.planned(self.kind, 2, domain, budget, **options)
        changes = self.changed(made)
        return replace(made, **changes)

    def for_clients(self, name, **more):
        return self.make(
            name, CLIENTS, **{"n_clients": 100, "fraction_bits": FINE, **more}
        )


def box(d):
    return Box([-1.0] * d, [1.0] * d)


def _blind(algorithm):
    """Without second moments, and in fewer directions than there are columns."""
    p = max(1, algorithm.domain.n_features - 1)
    return {"schedule": replace(algorithm.schedule, moments=False, n_directions=p)}


_MEANS = {"contribution": "means", "cost": False, "n_lloyd_rounds": 1}
_OF_FEDDP = (
    {"clip": 2.0},
    {"clips": {"projection": 1.0, "lift-sums": 0.6, "lloyd-counts": 3}},
    {"mechanisms": "laplace"},
    _MEANS,
    {**_MEANS, "mechanisms": "laplace", "clips": {"weights": 2.5}},
    {**_MEANS, "clips": {"lift-sums": 1.2, "lloyd-sums": 1.0}},
)
_SHORT = dict.fromkeys(("sums", "cost", "lloyd-sums", "spread"), 0.75)

GRIDS = {
    # No grid point lies exactly on the diagonal of the disc.
    "sulloyd": Grid(SuLloydAlgorithm, {"n_rounds": 2}, (*FLAT, "slab"), {"sums": 0.9}),
    "glloyd": Grid(GLloydAlgorithm, {"n_rounds": 2, "cost": True}),
    "fastlloyd": Grid(FastLloydAlgorithm, {"n_rounds": 3, "cost": True}),
    "fastlloyd-weighted": Grid(FastLloydAlgorithm, {"n_rounds": 2, "n_records": 40}),
    "fastlloyd-paper": Grid(
        FastLloydAlgorithm,
        {"n_rounds": 2, "cost": True, "relocation": False},
        short=_SHORT,
    ),
    "fastlloyd-none": Grid(
        FastLloydAlgorithm,
        {
            "n_rounds": 2,
            "postprocess": "none",
            "radius": "constant",
            "relocation": False,
        },
        FLAT[:-1],  # a sphere refuses it
        short=_SHORT,
    ),
    "feddp": Grid(
        FedDPAlgorithm,
        {"sums": "absolute", "cost": True, "margin": 0.9, "n_lloyd_rounds": 1},
        clients=_OF_FEDDP,
    ),
    "feddp-relative": Grid(
        FedDPAlgorithm,
        {"sums": "relative", "cost": True, "alpha": 1.0, "n_lloyd_rounds": 1},
        short=_SHORT,
        clients=({"clip": 0.75}, {**_MEANS, "clip": 1.0}),
    ),
    "feddp-narrowing": Grid(
        FedDPAlgorithm,
        {"sums": "narrowing", "cost": True, "alpha": 1.0, "n_lloyd_rounds": 2},
        short=_SHORT,
        clients=(),
    ),
    "synopsis": Grid(
        SynopsisAlgorithm,
        clients=(
            {"clip": 2.0},
            {"clip": 0.75},
            {"clips": {"moments": 1.0, "synopsis": 0.6}},
        ),
    ),
    "synopsis-blind": Grid(SynopsisAlgorithm, changed=_blind, clients=()),
    "synopsis-chosen": Grid(SynopsisAlgorithm, {"min_clusters": 1}, clients=()),
    "synopsis-sized": Grid(
        SynopsisAlgorithm, {"min_size": 300, "max_size": 700}, clients=()
    ),
    "pe-means": Grid(
        PEMeansAlgorithm,
        {"n_records": 100, "n_vote_rounds": 3, "n_variations": 3},
        clients=({}, {"clip": 2.0}, {"clips": {"votes": 0.75}}),
    ),
    "hdpe-means": Grid(
        HDPEMeansAlgorithm,
        {"n_records": 100, "n_vote_rounds": 3, "n_variations": 3},
        ("sphere", "corner", "directions"),
        clients=({}, {"clip": 2.0}, {"clips": {"votes": 0.75}}),
    ),
    # A last round measures the silhouette.
    "glloyd-quality": Grid(GLloydAlgorithm, {"n_rounds": 1, "quality": True}),
    "sulloyd-quality": Grid(
        SuLloydAlgorithm,
        {"n_rounds": 1, "quality": True},
        (*FLAT, "slab"),
        {"sums": 0.9},
    ),
    "fastlloyd-quality": Grid(FastLloydAlgorithm, {"n_rounds": 1, "quality": True}),
    "feddp-quality": Grid(
        FedDPAlgorithm,
        {"sums": "absolute", "n_lloyd_rounds": 1, "quality": True},
        clients=({"clip": 0.75}, {**_MEANS, "clip": 1.0}),
    ),
    "synopsis-quality": Grid(
        SynopsisAlgorithm, {"min_clusters": 1, "quality": True}, clients=({},)
    ),
    "pe-means-quality": Grid(
        PEMeansAlgorithm,
        {"n_vote_rounds": 2, "n_variations": 3, "quality": True},
    ),
    "hdpe-means-quality": Grid(
        HDPEMeansAlgorithm,
        {"n_vote_rounds": 2, "n_variations": 3, "quality": True},
        ("sphere", "corner", "directions"),
    ),
}


def grid_points(algorithm):
    """Return all grid points that a record can be, or of many columns the extremes and some."""
    domain, q = algorithm.domain, algorithm.fraction_bits
    widths, d = domain.grid_half_widths(Q), domain.n_features
    if d > 3:
        rng = RNG(0)
        points = np.concatenate(
            [s * np.eye(d) * widths for s in (1, -1)]
            + [
                rng.choice([-1, 1], (40, d)) * widths,
                rng.integers(-widths, widths + 1, (40, d)),
            ]
        ).astype(np.int64)
    else:
        points = np.array(
            list(itertools.product(*(range(-w, w + 1) for w in widths.tolist())))
        )
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    if isinstance(domain, Sphere):
        directions = domain.to_unit(domain.counted(points.astype(float)))
        rounded = domain.quantise(directions, Q).astype(np.int64)
        # the server's queries begin and end with the axes, which are longest
        axes = np.eye(d, dtype=np.int64) << Q
        points = np.vstack([-axes, np.unique(rounded, axis=0), axes])
    if d == 3:  # enough to reach corners and whole radii: 9 = |(1, 4, 8)|
        kept = np.isin(points, [-8, -7, -4, 0, 4, 8]) | (np.abs(points) == widths)
        points = points[kept.all(axis=1)]
    return points << (q - Q)


def any_queries(algorithm, seed, trials=5):
    """Yield what a server may ask: extremes, grid points, and anything within the ranges."""
    rng = RNG(seed)
    for number in range(1, algorithm.n_rounds + 1):
        ranges = algorithm.query_ranges(number)
        for trial in range(trials if ranges else 1):
            found = {}
            for key, (shape, low, high, *_) in ranges.items():
                low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
                found[key] = _array(algorithm, key, low, high, trial, rng, found)
            yield Query(number, found)


def _array(algorithm, key, low, high, trial, rng, found):
    shape, one = low.shape, 2**algorithm.fraction_bits
    if key == tightened.BOX:
        return _any_box(shape, trial, rng)
    wild = rng.integers(low, high, endpoint=True)
    if trial == 4:  # the ends of every range, which need not make sense together
        wild = np.where(
            rng.random(shape) < 0.5, np.where(rng.random(shape) < 0.5, low, high), wild
        )
    elif key == "projection":
        turned = np.linalg.qr(rng.normal(size=shape))[0]
        grids = tightened.innermost(algorithm).projection
        return grids.matrix(np.eye(*shape) if trial < 2 else turned)
    elif key in ("centroids", "centers", "points", "cells"):
        points = grid_points(algorithm)
        places = rng.integers(len(points), size=shape[0])
        if trial == 0:  # corners, which are the extremes
            places = -(np.arange(shape[0]) % 2)
        if trial == 1:
            places[:] = 0
        wild = points[places][:, : max(shape[1], 1)]
        if "projection" in found:
            matrix = found["projection"].astype(float)
            grids = tightened.innermost(algorithm).projection
            wild = grids.project(points[places].astype(float), matrix)
            wild = wild.astype(np.int64)
    elif key in ("radius", "radii", "factor", "variations"):
        most = np.minimum(high, 4 * one)
        wild = [most, np.maximum(most // 3, low), low, np.maximum(most // 7, low)][
            trial
        ]
    elif key == "weights":
        wild = wild % (one + 1)
    if key in ("centroids", "centers") and "projection" not in found:
        space = getattr(tightened.innermost(algorithm), "space", None)
        if space is not None and key == "centers":
            wild = space.cut(np.asarray(wild, float)).astype(np.int64)
        else:
            wild = into_domain(
                np.asarray(wild), algorithm.domain, algorithm.fraction_bits
            )
    return np.array(np.clip(wild, low, high), dtype=np.int64)


def _any_box(shape, trial, rng):
    """Return ranges that a server may send, (d, 2): the least, the outer bounds, or any."""
    if trial == 0:
        return ranges.outer_box(shape[0])
    low = rng.integers(0, ranges.END - ranges.LEAST_STEPS, shape[0], endpoint=True)
    length = np.full(shape[0], ranges.LEAST_STEPS)
    if trial > 1:
        length = rng.integers(ranges.LEAST_STEPS, ranges.END - low, endpoint=True)
    return np.stack([low, low + length], axis=1)


def added(algorithm, query, points):
    """Return what a client with some grid points adds to the sum, in the units of the noise."""
    rows = np.reshape(points, (-1, algorithm.domain.n_features))
    records = GridRecords.from_grid(rows, algorithm.fraction_bits)
    words = algorithm.layout(query.round).flatten(answer_of(algorithm, query, records))
    return words / sensitivities(algorithm, query.round)


# --------------------------------------------------------------------------- whole runs

BOX = Box([0] * 6, [1, 1, 1, 2, 2, 3], scale="common")
BALL = Ball(1.0, [0.0] * 6)
WIDE = Box([-9] * 6, [9] * 6, scale="common", tighten=0.1)
POINTS = RNG(0).uniform(0, 1, (40, 6))

REPLAYABLE: dict[str, Callable[[], Algorithm]] = {
    **REPLAYED,
    "glloyd-cost": lambda: GLloydAlgorithm.planned(
        5, BALL, BUDGET, n_records=N, n_rounds=3, cost=True
    ),
    "constrained-lloyd-nearest": lambda: ConstrainedLloydAlgorithm.planned(
        4, BOX, BUDGET, n_records=N, n_clients=4, n_rounds=4, assignment="non-exclusive"
    ),
    "fastlloyd-ball": lambda: FastLloydAlgorithm.planned(
        12, BALL, CLIENTS, n_records=N, n_clients=50
    ),
    "fastlloyd-paper": lambda: FastLloydAlgorithm.planned(
        5, BOX, BUDGET, n_records=N, relocation=False
    ),
    "fastlloyd-none": lambda: FastLloydAlgorithm.planned(
        5, BOX, BUDGET, n_records=N, postprocess="none", relocation=False, n_rounds=3
    ),
    "pe-means-exact": lambda: PEMeansAlgorithm.planned(
        3, BALL, OPEN, n_vote_rounds=3, n_variations=50
    ),
    "synopsis-strong": lambda: SynopsisAlgorithm.planned(
        4, BALL, PrivacyBudget(8.0), n_records=10 * N
    ),
    "vertical-sums": lambda: VerticalAlgorithm.planned(
        5, BOX, BUDGET, n_records=N, radius=False
    ),
    "constrained-lloyd-ranges": lambda: tightened.planned(
        ConstrainedLloydAlgorithm,
        3,
        WIDE.tightened(0.2),
        BUDGET,
        n_records=N,
        n_clients=4,
        n_rounds=2,
        assignment="non-exclusive",
    ),
    "constrained-lloyd-quality": lambda: tightened.planned(
        ConstrainedLloydAlgorithm,
        3,
        BOX,
        BUDGET,
        n_records=N,
        n_clients=4,
        n_rounds=2,
        assignment="non-exclusive",
        quality=True,
    ),
    "lloyd-quality": lambda: tightened.planned(
        LloydAlgorithm, 4, WIDE, OPEN, n_rounds=3, quality=True
    ),
    "lloyd-ranges": lambda: tightened.planned(
        LloydAlgorithm, 4, WIDE, OPEN, n_rounds=3, initial=POINTS[:4]
    ),
}
RUNS = {
    **REPLAYABLE,
    "feddp": lambda: FedDPAlgorithm.planned(
        3, BOX, BUDGET, n_records=N, server_data=POINTS
    ),
    "feddp-ranges": lambda: tightened.planned(
        FedDPAlgorithm, 3, WIDE, BUDGET, n_records=N, server_data=POINTS
    ),
    "feddp-quality": lambda: tightened.planned(
        FedDPAlgorithm,
        3,
        BOX,
        BUDGET,
        n_records=N,
        server_data=POINTS,
        cost=True,
        quality=True,
    ),
    "feddp-narrowing": lambda: FedDPAlgorithm.planned(
        3,
        Ball(2.0, [0.0] * 6),
        BUDGET,
        n_records=N,
        server_data=POINTS,
        sums="narrowing",
        n_lloyd_rounds=2,
    ),
}
SUMS = ("data", "noisy data", "noise", "zeros", "largest", "least", "alternating")


def records_of(algorithm):
    """Return records around as many points as there are clusters."""
    rng = RNG(1)
    one, d = 2**algorithm.fraction_bits, algorithm.domain.n_features
    centers = rng.integers(
        -one // (2 * d), one // (2 * d), size=(algorithm.n_clusters, d)
    )
    points = centers[np.arange(N) % len(centers)] + rng.normal(0, one / 50 / d, (N, d))
    widths = algorithm.domain.grid_half_widths(algorithm.fraction_bits) // d
    return GridRecords.from_grid(np.clip(points.astype(np.int64), -widths, widths), 16)


def words_of(algorithm, kind, query, records, rng):
    """Return one round's sum."""
    number = query.round
    words = algorithm.layout(number).n_words
    if kind == "zeros":
        return np.zeros(words, dtype=np.int64)
    if kind in ("largest", "least"):
        return np.full(
            words, 2**63 - 1 if kind == "largest" else -(2**63), dtype=np.int64
        )
    if kind == "alternating":
        return np.where(np.arange(words) % 2, 2**63 - 1, -(2**63)).astype(np.int64)
    found = np.zeros(words, dtype=np.int64)
    if kind != "noise":
        found += algorithm.layout(number).flatten(algorithm.statistic(query, records))
    if kind != "data":
        found += np.rint(
            rng.normal(size=words) * sensitivities(algorithm, number) * 5
        ).astype(np.int64)
    return found


def queries_of(algorithm, kind):
    """Yield the query of every round of a run whose sums are of a kind."""
    rng, records = RNG(3), records_of(algorithm)
    state = algorithm.initial_state(RNG(4))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        yield query
        answer = algorithm.layout(number).unflatten(
            words_of(algorithm, kind, query, records, rng)
        )
        state = algorithm.update(state, answer, RNG(number))


def sum_of(algorithm, number, answered=1.0, **blocks):
    """Return a round's sum that has these blocks, and zeros elsewhere."""
    words, places = (
        np.zeros(algorithm.layout(number).n_words, dtype=np.int64),
        algorithm.layout(number).places,
    )
    for name, values in blocks.items():
        words[places[name]] = np.ravel(values)
    return algorithm.layout(number).unflatten(words, answered)


def run_of(algorithm, parts, stream=None, answering=None, until=None):
    """Return the state after a run of clients with these records; with a stream, with noise.

    ``answering`` are the clients that answer a round, by its number; the others all
    answer.
    """
    state, plan = algorithm.initial_state(), algorithm.plan()
    held = [
        GridRecords(part, algorithm.domain, algorithm.fraction_bits) for part in parts
    ]
    for t in range(1, (until or algorithm.n_rounds) + 1):
        query = algorithm.query(state)
        check_query(algorithm, query)
        clients = (answering or {}).get(t, range(len(held)))
        words = sum(
            algorithm.layout(t).flatten(answer_of(algorithm, query, held[i]))
            for i in clients
        )
        if stream is not None:
            words = words + server_noise(algorithm, plan, t, stream)
        answer = algorithm.layout(t).unflatten(words, len(clients) / len(held))
        state = algorithm.update(state, answer, RNG(t))
    return state


def population_of(algorithm, query):
    """Return all candidates of a query of PE-means, in order."""
    return np.concatenate(list(algorithm._population(query)))


# ---------------------------------------------------------------------- further options

_OF_CLIENTS = {"budget": CLIENTS, "n_clients": 50}
OPTIONS: list[tuple[type[Algorithm], Mapping[str, Any]]] = [
    (LloydAlgorithm, {"budget": OPEN, "n_records": None}),
    (LloydAlgorithm, {"budget": OPEN, "initial": [[0.1, 0.2], [0.3, 0.4]], "seed": 5}),
    *(
        (kind, {**_OF_CLIENTS, "clip": 1 / 3})
        for kind in (SuLloydAlgorithm, GLloydAlgorithm)
    ),
    (GLloydAlgorithm, {"cost": True, "n_rounds": 4}),
    *(
        (FastLloydAlgorithm, {"postprocess": name})
        for name in ("fold", "truncate", "none")
    ),
    (FastLloydAlgorithm, {"alpha": 0.9, "radius": "constant", "relocation": False}),
    (FastLloydAlgorithm, {**_OF_CLIENTS, "cost": True}),
    (ConstrainedLloydAlgorithm, {"n_clients": 4}),
    (ConstrainedLloydAlgorithm, {"n_clients": 4, "assignment": "non-exclusive"}),
    (
        ConstrainedLloydAlgorithm,
        {
            "n_clients": 4,
            "assignment": "e-exclusive",
            "max_contribution": 2,
            "mechanism": "laplace",
            "initial": [[0.1, 0.2], [0.3, 0.4]],
        },
    ),
    (FedDPAlgorithm, {"budget": OPEN, "n_records": None}),
    (FedDPAlgorithm, {"sums": "relative"}),
    (FedDPAlgorithm, {"alpha": 0.3, "margin": 1 / 3, "min_weight": 2.5, "seed": 9}),
    (
        FedDPAlgorithm,
        {
            "cost": True,
            "shares": {"cost": 0.3, "lift-sums": 1},
            "mechanisms": "laplace",
        },
    ),
    (FedDPAlgorithm, {**_OF_CLIENTS, "clips": {"projection": 1}}),
    (FedDPAlgorithm, {**_OF_CLIENTS, "clip": 3.5, "contribution": "means"}),
    (FedDPAlgorithm, {**_OF_CLIENTS, "contribution": "means"}),
    (FedDPAlgorithm, {**_OF_CLIENTS, "cost": True, "mechanisms": "laplace"}),
    (FedDPAlgorithm, {"n_lloyd_rounds": 0, "mechanisms": {"weights": "laplace"}}),
    (PEMeansAlgorithm, {"seed": 3}),
    (PEMeansAlgorithm, _OF_CLIENTS),
    (PEMeansAlgorithm, {**_OF_CLIENTS, "clips": {"votes": 2.0}}),
    (HDPEMeansAlgorithm, {**_OF_CLIENTS, "clips": {"lift-sums": 2.0}}),
    (SynopsisAlgorithm, {"budget": OPEN, "n_records": None}),
    (SynopsisAlgorithm, {"min_size": 300, "max_size": 700}),
    (SynopsisAlgorithm, {"min_clusters": 1}),
    (SynopsisAlgorithm, {**_OF_CLIENTS, "clips": {"moments": 1.0}}),
    (VerticalAlgorithm, {"radius": False}),
]


def optional(kind, **options):
    """Return a small algorithm with some of `OPTIONS`."""
    domain = DOMAINS["corner" if kind is HDPEMeansAlgorithm else "square"]
    if kind is FedDPAlgorithm:
        points = RNG(0).uniform(0, 1, (12, domain.n_features))
        options = {"server_data": points, **options}
    budget = options.pop("budget", BUDGET)
    return kind.planned(
        options.pop("k", 2), domain, budget, **{"n_records": 1000, **options}
    )
