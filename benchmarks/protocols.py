"""Protocols of the papers that several suites share: how records are scaled, and one run.

Scales, and the number of records, are read off the private records, and such deltas (of
FastLloyd's paper ``1 / (N ln N)``, of PE-means' ``N^-1.1``) let one record leak
outright with a probability that matters. The papers do so, to compare; an application
must not: take public bounds, a public ``n_records`` and the default delta.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from bench.data import Data, to_unit_ball, to_unit_box
from bench.harness import Options
from flower_kmeans import Ball, Box, PrivacyBudget, simulate, strategies
from flower_kmeans.metrics import nicv
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.strategies import KMeansStrategy

KMEANS = "KMeans"
"""scikit-learn's, on the pooled records; not private."""
PROJECTED = 16
"""Columns beyond which PE-means' paper recommends HDPE-means."""
N_CLIENTS = 2
OF_THE_SERVER = ("SynopsisKMeans", "PEMeans", "HDPEMeans")
"""Strategies whose server computes the queries: in FastLloyd's protocol it adds all of the noise.

So it does under ``oblivious-server``, the others' default: the noise is always that of
one party.
"""
_VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"paper": {"relocation": False}, "oblivious": {"trust": "oblivious-server"}}
)
"""Changed parameters by the word after the colon in a method's name."""


def fastlloyd_delta(n_records: int) -> float:
    """Return the delta of FastLloyd's paper (section 6)."""
    return 1 / (n_records * math.log(n_records))


def pe_means_delta(n_records: int) -> float:
    """Return the delta of PE-means' paper (section IV)."""
    return float(n_records**-1.1)


@lru_cache(maxsize=4)
def in_box(name: str, options: Options) -> Data:
    """Return a data set with its columns in [-1, 1] (FastLloyd, section 6)."""
    data = options.load(name)
    return replace(data, records=to_unit_box(data.records))


@lru_cache(maxsize=4)
def in_ball(name: str, options: Options) -> Data:
    """Return a data set of a largest norm of 1 around its centre (PE-means, section IV)."""
    data = options.load(name)
    return replace(data, records=to_unit_ball(data.records))


def box_of(data: Data, bound: float = 1.0) -> Box:
    """Return the domain [-bound, bound]^d."""
    d = data.records.shape[1]
    return Box(np.full(d, -bound), np.full(d, bound))


def ball_of(data: Data) -> Ball:
    """Return the unit ball with as many columns as the data."""
    return Ball(1.0, np.zeros(data.records.shape[1]))


def strategy_of(
    method: str,
    data: Data,
    domain: Box | Ball,
    budget: PrivacyBudget,
    seed: int,
    n_clients: int = N_CLIENTS,
    **parameters: Any,
) -> KMeansStrategy:
    """Return a strategy, ``FastLloyd:paper`` without relocation, by its name."""
    name, _, variant = method.partition(":")
    made: KMeansStrategy = getattr(strategies, name)(
        data.n_clusters,
        domain,
        budget,
        n_records=len(data.records),
        n_clients=n_clients,
        seed=seed,
        **parameters | dict(_VARIANTS.get(variant, {})),
    )
    return made


def over_parts(strategy: KMeansStrategy, data: Data, seed: int) -> Clustering:
    """Run a strategy over clients with random parts of the records."""
    order = np.random.default_rng(seed).permutation(len(data.records))
    return simulate(strategy, np.array_split(data.records[order], strategy.n_clients))


def as_fastlloyd(
    data: Data, method: str, epsilon: float | None, seed: int
) -> Clustering:
    """Run one strategy in FastLloyd's protocol: `in_box`, two random halves; None for Lloyd."""
    delta = None if epsilon is None else fastlloyd_delta(len(data.records))
    budget = PrivacyBudget(epsilon, delta)
    parameters = {"trust": "trusted-server"} if method in OF_THE_SERVER else {}
    strategy = strategy_of(method, data, box_of(data), budget, seed, **parameters)
    return over_parts(strategy, data, seed)


def best_of_ten(data: Data, seed: int = 0) -> KMeans:
    """Return scikit-learn's KMeans on the pooled records, the best of ten starts."""
    return KMeans(data.n_clusters, n_init=10, random_state=seed).fit(data.records)


@lru_cache(maxsize=4)
def least(name: str, options: Options) -> tuple[NDArray[np.int64], float]:
    """Return the cluster of each record of `in_ball` without privacy, and the loss."""
    data = in_ball(name, options)
    model = best_of_ten(data)
    return model.labels_.astype(np.int64), nicv(data.records, model.cluster_centers_)
