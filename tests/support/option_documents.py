"""Run documents, or errors, of many options of every strategy: ``python option_documents.py FILE``.

The file holds for each case the SHA-256 of the run document, or the type and text of
the error. Written before and after a change, two files show whether documents changed.
They are equal on one processor only: calibration may differ between processors.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import numpy as np

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import algorithm_from_config
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.protocol.wire import encode
from flower_kmeans.strategies import (
    ConstrainedLloyd,
    FastLloyd,
    FedDPKMeans,
    GLloyd,
    HDPEMeans,
    Lloyd,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
    VerticalKMeans,
)

COLUMNS = (1, 2, 8)
CLUSTERS = (1, 3, 20)
EPSILONS = (None, 0.1, 1.0, 8.0)
RECORDS = (None, 15, 500, 100_000)
CROWDS: tuple[dict[str, Any], ...] = (
    {"unit": "record", "n_clients": 10},
    {"unit": "client", "n_clients": 10},
    {"unit": "client", "n_clients": None},
    {"unit": "client", "n_clients": 300, "clip": 2.5},
)

# Each is combined with a part of the grid above.
OPTIONS: dict[Any, tuple[dict[str, Any], ...]] = {
    Lloyd: (
        {},
        {"n_rounds": 3},
        {"n_rounds": "many"},
        {"initial": "points", "n_rounds": "auto"},
    ),
    SuLloyd: (
        {},
        {"n_rounds": 2, "trust": "trusted-server"},
        {"n_rounds": 2, "delta": 0.0},
        {"n_rounds": 3, "trust": "distributed-noise"},
        {"cost": True},
    ),
    GLloyd: (
        {},
        {"cost": True, "trust": "distributed-noise"},
        {"cost": True},
        {"n_rounds": 0},
        {"initial": "wrong"},
        {"initial": "points", "fraction_bits": 20},
        {"seed": 3, "trust": "clients-only", "n_rounds": 5},
    ),
    FastLloyd: (
        {},
        {"alpha": 0.3, "radius": "constant"},
        {"relocation": False, "postprocess": "none"},
        {"relocation": False, "cost": True, "trust": "trusted-server"},
        {"cost": True, "trust": "trusted-server", "n_rounds": 2},
        {"alpha": 1e-9, "cost": True, "trust": "trusted-server"},
        {"radius": "wide"},
        {"alpha": "wide"},
        {"alpa": 0.8},
        {"n_rounds": 2.0},
        {"initial": "points", "relocation": 1},
        {"trust": "clients-only", "clip": 3},
    ),
    ConstrainedLloyd: (
        {},
        {"assignment": "non-exclusive"},
        {"assignment": "e-exclusive", "max_contribution": 2, "mechanism": "laplace"},
        {"aggregation": "amn", "min_size": 10, "max_size": 100_000},
        {"min_size": 0, "max_size": 30},
        {"assignment": "non-exclusive", "max_size": 30},
        {"max_contribution": 2},
        {"n_rounds": 2, "initial": "points", "trust": "plain"},
    ),
    PEMeans: (
        {},
        {"n_rounds": 3, "n_variations": 4},
        {"n_variations": "auto", "max_candidates": 64},
        {"max_candidates": 3},
        {"clips": {"votes": 2.0}},
        {"clips": {"lift-sums": 2.0}},
        {"n_variations": "many"},
        {"n_variations": 100_000_000, "max_candidates": 2**22, "n_rounds": 100},
        {"initial": "points"},
    ),
    HDPEMeans: (
        {"columns": 20},
        {},
        {"columns": 20, "n_rounds": 3, "clips": {"lift-sums": 2.0}},
        {"columns": 20, "n_variations": 5, "trust": "oblivious-server"},
    ),
    SynopsisKMeans: (
        {},
        {"n_rounds": 3},
        {"n_rounds": "auto", "min_size": 2},
        {"max_size": 60_000, "trust": "clients-only"},
        {"max_size": 3},
        {"n_clusters": (2, 7)},
        {"n_clusters": None},
        {"n_clusters": (7, 2)},
        {"n_clusters": (2, 7), "min_size": 1},
        {"clips": {"moments": 1.5}},
        {"clips": {"votes": 1.5}},
        {"trust": "distributed-noise", "max_colluders": 9},
        {"seed": -1},
    ),
    FedDPKMeans: (
        {"server_data": 60},
        {},
        {"server_data": 60, "n_rounds": 0},
        {"server_data": 60, "n_rounds": 3, "sums": "relative", "margin": 0.5},
        {"server_data": 60, "n_rounds": 2, "sums": "narrowing"},
        {"server_data": 60, "n_rounds": 1, "sums": "narrowing"},
        {"server_data": 60, "sums": "absolute", "alpha": 0.4},
        {"server_data": 60, "alpha": 2.0},
        {"server_data": 60, "alpha": 1e-9, "sums": "relative"},
        {"server_data": 60, "alpha": "wide"},
        {"server_data": 60, "min_weight": 3},
        {"server_data": 60, "min_weight": "small"},
        {"server_data": 60, "cost": True},
        {"server_data": 60, "cost": True, "n_rounds": 0},
        {"server_data": 60, "contribution": "means"},
        {"server_data": 60, "contribution": "means", "clip": 2.0, "n_rounds": 2},
        {"server_data": 60, "mechanisms": "laplace", "trust": "trusted-server"},
        {"server_data": 60, "mechanisms": {"weights": "laplace"}},
        {"server_data": 60, "mechanisms": {"lift-sums": "laplace"}},
        {"server_data": 60, "shares": {"projection": 2}, "clips": {"lloyd-sums": 0.5}},
        {"server_data": 60, "sums": "wide"},
        {"server_data": 2},
    ),
    VerticalKMeans: (
        {},
        {"n_rounds": 3, "radius": False},
        {"key_holders": 1},
        {"n_rounds": "many"},
        {"check_ids": True, "initial": "points"},
    ),
}

MANY = 30  # cases of each row of options whose values fit together
FEW = 6  # further cases of each, of any values


def arguments(strategy: Any, given: dict[str, Any], case: Any) -> dict[str, Any]:
    """Return the arguments of a strategy for one case of the grid."""
    d, k, epsilon, n_records, crowd, is_ball = case
    given = dict(given)
    d = given.pop("columns", d)
    crowd = dict(crowd)
    unit = crowd.pop("unit")
    delta = given.pop("delta", None)
    budget = PrivacyBudget(epsilon, None if epsilon is None else delta, unit)
    domain = Ball(2.0, [0.0] * d) if is_ball else Box([-1.0] * d, [2.0] * d)
    rng = np.random.default_rng(0)
    if "server_data" in given:
        given["server_data"] = rng.uniform(-1, 2, (given["server_data"], d))
    if "initial" in given:
        size = k if given["initial"] == "points" else k + 1
        given["initial"] = rng.uniform(-1, 2, (size, d))
    if strategy is VerticalKMeans:
        crowd = {"parties": (d - d // 2, d // 2)}
    usual = {"n_clusters": k, "domain": domain, "privacy": budget}
    return {**usual, "n_records": n_records, **crowd, **given}


def fits(strategy: Any, case: Any) -> bool:
    """Return whether the values of a case fit together, as far as the options do."""
    d, k, epsilon, n_records, crowd, is_ball = case
    of_clients = crowd["unit"] == "client"
    if n_records is None or n_records < k:
        return strategy is Lloyd and epsilon is None and not of_clients
    if epsilon is None or strategy is Lloyd:
        return epsilon is None and not of_clients
    if of_clients and (crowd["n_clients"] is None or "clip" in crowd):
        # Some of each are enough.
        return strategy is not ConstrainedLloyd and d == 2 and "clip" in crowd
    if strategy in (ConstrainedLloyd, VerticalKMeans) and of_clients:
        return False
    return strategy is not VerticalKMeans or (not is_ball and d > 1 and 2 <= k <= 16)


def cases() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, strategy and arguments of every case."""
    grid = list(product(COLUMNS, CLUSTERS, EPSILONS, RECORDS, CROWDS, (False, True)))
    for strategy, all_options in OPTIONS.items():
        fitting = [case for case in grid if fits(strategy, case)]
        for number, given in enumerate(all_options):
            # Of different options, different cases.
            rng = np.random.default_rng([len(strategy.__name__), number])
            picked = []
            for pool, size in ((fitting, MANY), (grid, FEW)):
                chosen = rng.permutation(len(pool))[:size]
                picked += [pool[i] for i in chosen]
            for case in picked:
                name = f"{strategy.__name__} {given} {case}"
                yield name, strategy, arguments(strategy, given, case)


def outcome(strategy: Any, given: dict[str, Any]) -> str:
    """Return the digest of the run document, or the error."""
    try:
        made = strategy(**given)
        document = made._run(None).document
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    config = document.body.algorithm
    seen = algorithm_from_config(config, made.domain, made.plan.budget)
    if algorithm_to_config(seen) != config:
        return "The document describes another algorithm."
    data = encode(msgspec.structs.replace(document, run=bytes(16)))
    return f"{hashlib.sha256(data).hexdigest()} {made!r} {made.plan.epsilon()}"


def main(path: str) -> None:
    """Write the outcome of every case."""
    found = {name: outcome(strategy, given) for name, strategy, given in cases()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=0)
    n_errors = sum(1 for each in found.values() if "Error:" in each)
    print(f"{len(found)} cases, of which {n_errors} are refused.")


if __name__ == "__main__":
    main(sys.argv[1])
