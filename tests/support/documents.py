"""Small run documents, right or with changed fields."""

from typing import Any

import numpy as np

from flower_kmeans.algorithms import registry
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.algorithms.lloyd import (
    GLloydAlgorithm,
    LloydAlgorithm,
    SuLloydAlgorithm,
)
from flower_kmeans.algorithms.pe_means import HDPEMeansAlgorithm, PEMeansAlgorithm
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.data.domain import Box
from flower_kmeans.imports import imported
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.noise import sampler_of
from flower_kmeans.protocol.run import PROTOCOL, Horizontal, RunDocument
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import decode, encode

BOX = Box([0.0, 0.0], [1.0, 1.0])
TRUSTS = (
    "clients-only",
    "distributed-noise",
    "oblivious-server",
    "trusted-server",
    "plain",
)
_OPTIONS: dict[type[Algorithm], dict[str, Any]] = {
    GLloydAlgorithm: {"n_rounds": 3},
    FastLloydAlgorithm: {"n_rounds": 3},
    LloydAlgorithm: {"n_rounds": 3},
    SuLloydAlgorithm: {"n_rounds": 2},
    FedDPAlgorithm: {"server_data": np.random.default_rng(0).random((20, 2))},
}
KINDS = {
    kind.name: kind
    for kind in (*_OPTIONS, SynopsisAlgorithm, PEMeansAlgorithm, HDPEMeansAlgorithm)
}


def library_algorithms() -> dict[str, type[Algorithm]]:
    """Return the library's algorithms by name: every class below `Algorithm` that has its own."""
    for path in registry._LATER.values():
        imported(path)
    found, waiting = dict[str, type[Algorithm]](), list[type[Algorithm]]([Algorithm])
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if "name" in vars(kind) and kind.__module__.startswith("flower_kmeans."):
            found[kind.name] = kind
    return found


def make_algorithm(kind: type[Algorithm], trust: str = "", **options: Any) -> Algorithm:
    """Return a small algorithm on the unit square, private unless nobody adds noise."""
    budget = PrivacyBudget(None if trust == "plain" else 1.0)
    given = {"n_records": 1000, **_OPTIONS.get(kind, {}), **options}
    # it projects
    domain = Box([0.0] * 20, [1.0] * 20) if kind is HDPEMeansAlgorithm else BOX
    return kind.planned(2, domain, budget, **given)  # type: ignore[call-arg]


def make_document(
    trust: str = "clients-only",
    kind: type[Algorithm] | None = None,
    algorithm: Algorithm | None = None,
    **changes: Any,
) -> RunDocument:
    """Return the document of a small run; ``changes`` are fields, whether they fit or not."""
    model = trust_model(trust)
    algorithm = algorithm or make_algorithm(
        kind or (GLloydAlgorithm if model.is_private else LloydAlgorithm), trust
    )
    plan = algorithm.plan()
    least = changes.get("min_clients", 3)
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "run": bytes(16),
        "trust": trust,
        "keys": "relayed" if model.is_protected else "none",
        "min_clients": least,
        "words": tuple(
            algorithm.layout(t).n_words + 1 for t in range(1, algorithm.n_rounds + 1)
        ),
        "privacy": plan.to_config(),
        "share_variance": f"1/{least - 1}" if model.shares_noise else "none",
        "sampler": sampler_of(plan, model.shares_noise),
        "body": Horizontal(
            algorithm=algorithm_to_config(algorithm),
            domain=algorithm.domain.to_config(),
        ),
    }
    return RunDocument(**{**fields, **changes})


def assert_survives(algorithm: Algorithm) -> None:
    """Assert that a client makes the same algorithm from what its document says of it."""
    config = decode(encode(algorithm_to_config(algorithm)), dict[str, Any])
    again = algorithm_from_config(config, algorithm.domain, algorithm.budget)
    assert (type(again), again, hash(again)) == (
        type(algorithm),
        algorithm,
        hash(algorithm),
    )
    assert algorithm_to_config(again) == config
    assert again.plan() == algorithm.plan()
