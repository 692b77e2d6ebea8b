"""Every strategy with options of small runs, and the records of these."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
from asking import Split
from harness import Outcome, exact_statistic, run_recorded

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms.state import Query
from flower_kmeans.strategies import (
    ConstrainedLloyd,
    FastLloyd,
    FedDPKMeans,
    GLloyd,
    HDPEMeans,
    KMeansStrategy,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
)

RNG = np.random.default_rng
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])
BLIND = ("clients-only", "oblivious-server")
SIGHTED = ("distributed-noise", "trusted-server")
TRUSTS = (*BLIND, *SIGHTED)
N, M = 1200, 6
START = CENTERS / 2
SERVER = (CENTERS + RNG(3).normal(size=(10, 3, 3))).reshape(30, 3)
FOUND = {"initial": START, "n_rounds": 3}
# a round finds the ranges first, of which these bounds are ten times too wide
RANGES = {"domain": Box([-140.0, -100.0, -12.0], [140.0, 180.0, 12.0], tighten=0.2)}
QUALITY = {"quality": True}

# Name: the strategy, its columns, its options, and how far without noise its centroids
# are off.
ROWS = {
    "FastLloyd": (FastLloyd, 3, FOUND, 0.1),
    "FastLloyd, paper": (
        FastLloyd,
        3,
        FOUND | {"relocation": False, "alpha": 2.0},
        0.5,
    ),
    "GLloyd": (GLloyd, 3, FOUND, 0.05),
    "SuLloyd": (SuLloyd, 3, FOUND, 0.05),
    "FedDPKMeans": (FedDPKMeans, 3, {"n_rounds": 2, "server_data": SERVER}, 0.1),
    "PEMeans": (PEMeans, 3, {"n_rounds": 8}, 0.1),
    "HDPEMeans": (HDPEMeans, 20, {"n_rounds": 4}, 0.05),
    "SynopsisKMeans": (SynopsisKMeans, 3, {}, 0.1),
    "SynopsisKMeans, bounds": (
        SynopsisKMeans,
        3,
        {"min_size": 350, "max_size": 450},
        0.1,
    ),
    "GLloyd, ranges": (GLloyd, 3, FOUND | RANGES, 0.05),
    "FedDPKMeans, ranges": (
        FedDPKMeans,
        3,
        RANGES | {"n_rounds": 2, "server_data": SERVER},
        0.1,
    ),
    "SynopsisKMeans, ranges": (SynopsisKMeans, 3, RANGES, 0.1),
    "GLloyd, quality": (GLloyd, 3, FOUND | QUALITY, 0.05),
    "SuLloyd, quality": (SuLloyd, 3, FOUND | QUALITY, 0.05),
    "FedDPKMeans, ranges, quality": (
        FedDPKMeans,
        3,
        RANGES | QUALITY | {"n_rounds": 2, "server_data": SERVER},
        0.1,
    ),
    "HDPEMeans, quality": (HDPEMeans, 20, {"n_rounds": 4, **QUALITY}, 0.05),
    "SynopsisKMeans, ranges, quality": (SynopsisKMeans, 3, RANGES | QUALITY, 0.1),
    "Split": (Split, 3, {"domain": Box([-14.0] * 3, [14.0] * 3)}, np.inf),
}
for _options in (
    {},
    {"mechanism": "laplace"},
    {"assignment": "non-exclusive"},
    {"assignment": "e-exclusive", "max_contribution": 2},
):
    for _aggregation in ("mna", "amn"):
        _usual = FOUND | _options | {"aggregation": _aggregation}
        _name = ", ".join(["constrained", _aggregation, *map(str, _options.values())])
        ROWS[_name] = (ConstrainedLloyd, 3, _usual, 0.5)

ONLY_RECORDS = {
    "SynopsisKMeans, bounds",
    "FedDPKMeans, ranges",
    "FedDPKMeans, ranges, quality",
    "Split",
    *(name for name in ROWS if "constrained" in name),
}
"""Rows that protect single records, and cannot protect whole clients."""
ONLY_A_SERVERS_NOISE = {
    "SuLloyd",
    "SuLloyd, quality",
    *(name for name in ROWS if "laplace" in name),
}
"""Rows with Laplace noise, of which clients cannot add shares."""
ONLY_SEEN_SUMS = {
    "FedDPKMeans",
    "FedDPKMeans, ranges",
    "FedDPKMeans, ranges, quality",
    "Split",
}
"""Rows whose server computes the next query."""


def runs(name: str, trust: str, unit: str = "record") -> bool:
    """Return whether the strategy of a row runs so, without making it."""
    if trust == "plain":
        return unit == "record"
    if unit == "client" and name in ONLY_RECORDS:
        return False
    if name in ONLY_A_SERVERS_NOISE:
        return trust in ("oblivious-server", "trusted-server")
    return name not in ONLY_SEEN_SUMS or trust in SIGHTED


@cache
def parts_of(name: str) -> list[np.ndarray]:
    """Records around three centres, which lie in the first columns, by six clients."""
    d = ROWS[name][1]
    centers = np.zeros((3, d))
    centers[:, :3] = CENTERS
    records = np.repeat(centers, N // 3, axis=0) + RNG(1).normal(0, 0.3, (N, d))
    return np.array_split(RNG(2).permutation(records), M)


def make(
    name: str, trust: str | None, *, unit="record", epsilon=8.0, delta=1e-6, **options
) -> KMeansStrategy:
    """Return the strategy of a row; without noise for the trust "plain"."""
    cls, d, usual, _ = ROWS[name]
    budget = (
        PrivacyBudget(None) if trust == "plain" else PrivacyBudget(epsilon, delta, unit)
    )
    domain = Ball(14.0, [0.0] * d)
    planned = {
        "n_clusters": 3, "domain": domain, "n_records": N, "n_clients": M, "min_clients": 4,
    }  # fmt: skip
    return cls(privacy=budget, trust=trust, **planned | usual | options)


def run(name: str, strategy: KMeansStrategy, parts=None, **options) -> Outcome:
    """Run it with the row's records, or others."""
    return run_recorded(strategy, parts_of(name) if parts is None else parts, **options)


# --------------------------------------------------------------------------- cases


def listed(*units: str, trusts=TRUSTS, names=ROWS) -> list[tuple[str, str, str]]:
    """Return all of these rows, trust models and units that a strategy runs with."""
    every = [
        (name, trust, unit) for name in names for trust in trusts for unit in units
    ]
    return [case for case in every if runs(*case)]


# ------------------------------------------------------------------------- sums of runs


def queries(outcome: Outcome) -> list[Query]:
    """Return the queries of a run: those that were sent, or those that clients computed."""
    if outcome.queries:
        return outcome.queries
    algorithm, found = outcome.strategy.algorithm, []
    state = algorithm.initial_state()
    for t, n in enumerate(outcome.strategy.report.answers, start=1):
        found.append(algorithm.query(state))
        answer = algorithm.layout(t).unflatten(
            outcome.sums[t], n / len(outcome.grid.states), n
        )
        louder = replace(answer, noise_factor=noise_factor(outcome.strategy, n))
        state = algorithm.update(state, louder)
    return found


def noise_factor(strategy, n_answers: int) -> float:
    """Return the deviation of the noise of a sum over the planned one, if no share is removed."""
    if not strategy.trust_model.shares_noise:
        return 1.0
    return math.sqrt(n_answers / (strategy.min_clients - strategy.max_colluders))


def present(outcome: Outcome, t: int, parts):
    """Return the parts of those in the sum of a round."""
    away = {
        entry.client for entry in outcome.strategy.report.dropped if entry.round == t
    }
    return [part for i, part in enumerate(parts) if i not in away]


def exact(outcome: Outcome, query: Query, parts) -> np.ndarray:
    """Return the sum of some parts' answers without noise."""
    return sum(
        exact_statistic(outcome.strategy.algorithm, query, part) for part in parts
    )
