"""FastLloyd's protocol for one run: what the suites on that paper's figures share.

Columns are scaled to [-1, 1], delta is ``1 / (N ln N)``, and two clients hold random halves
(FastLloyd, section 6.1). Every run is a whole federation in this process. Bounds, N and such a
delta are read off, or too large for, private records: this is for comparing with the paper.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import Box, PrivacyBudget, simulate, strategies
from flower_kmeans.bench.data import to_unit_box
from flower_kmeans.bench.harness import Options, Task
from flower_kmeans.report.clustering import Clustering

FloatArray = NDArray[np.float64]

EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
N_CLIENTS = 2
LLOYD = "Lloyd"
PRIVATE = ("SuLloyd", "GLloyd", "FastLloyd")
OURS = "SynopsisKMeans"
METHODS = (LLOYD, *PRIVATE, OURS)
COLORS = {LLOYD: "0.5", "SuLloyd": "C0", "GLloyd": "C1", "FastLloyd": "C2", OURS: "C3"}


@lru_cache(maxsize=2)
def records_of(name: str, options: Options) -> tuple[FloatArray, int]:
    """Return scaled records, and the number of clusters."""
    data = options.load(name)
    return to_unit_box(data.records), data.n_clusters


def tasks_on(name: str, run: int, methods: Sequence[str] = METHODS) -> Iterator[Task]:
    """Yield one run of each method on a data set, at every epsilon."""
    for method in methods:
        epsilons = (None,) if method == LLOYD else EPSILONS
        yield from (Task(name, method, epsilon, run) for epsilon in epsilons)


def cluster(
    records: FloatArray,
    n_clusters: int,
    method: str,
    epsilon: float | None,
    seed: int,
    **parameters: Any,
) -> Clustering:
    """Run one strategy over two random halves.

    Parameters
    ----------
    records : ndarray of shape (n, d), float64
        In [-1, 1].
    n_clusters : int
    method : str
        A strategy's name; FastLloyd is the paper's, without relocation. SynopsisKMeans runs under
        ``trusted-server``, the others under their default, with the noise of one party as well.
    epsilon : float or None
        None for `LLOYD`.
    seed : int
        Of the division into halves, and of the initial centroids.
    **parameters
        Of the strategy.
    """
    n, d = records.shape
    budget = PrivacyBudget(epsilon, None if epsilon is None else 1 / (n * math.log(n)))
    if method == "FastLloyd":
        parameters = {"relocation": False, **parameters}
    if method == OURS:
        parameters = {"trust": "trusted-server", **parameters}
    strategy = getattr(strategies, method)(
        n_clusters,
        Box(np.full(d, -1.0), np.full(d, 1.0)),
        budget,
        n_records=n,
        n_clients=N_CLIENTS,
        seed=seed,
        **parameters,
    )
    order = np.random.default_rng(seed).permutation(n)
    return simulate(strategy, np.array_split(records[order], N_CLIENTS))
