"""Populations of the FedDP-KMeans experiments: clients, a server with own points, public bounds.

Domains come from the parameters of a mixture or from given bounds, never from records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import Ball, Box
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import ConfigurationError

N_CLUSTERS = 10
N_UNIFORM = 100
N_OF_EACH = 20
SLACK = 1.25
"""Radius of the domain over the root of a record's expected squared distance from its centre."""
DIGIT_BLOCKS = 30
DIGIT_SERVER_BLOCKS = 3
DIGIT_BOUNDS = (0.0, 16.0)


@dataclass(frozen=True)
class Population:
    """Records of all clients, and what is public about them."""

    name: str
    partitions: list[FloatArray]  # each client's records (n_i, d); private
    # component or label of each record (N,), in the clients' order
    classes: NDArray[Any] | None
    # points that the server owns (m, d); none is a client's record
    server_data: FloatArray
    domain: Domain  # public bounds
    n_clusters: int
    # true ones (k, d), where the best clustering starts
    means: FloatArray | None = None

    @property
    def n_records(self) -> int:
        """Records of all clients, the public planning value of the runs."""
        return sum(map(len, self.partitions))


@dataclass(frozen=True)
class Mixture:
    """Parameters of a Gaussian mixture: equal weights, means uniform in [0, 1]^d; all public."""

    n_clients: int
    records_each: int
    d: int = 100
    variance: float = 0.5
    n_clusters: int = N_CLUSTERS
    n_uniform: int = N_UNIFORM
    n_missing: int = 0

    @property
    def domain(self) -> Ball:
        """Return a ball around the middle of the cube, from d and the variances alone.

        A coordinate's expected squared distance from 0.5 is ``variance + 1/12``.
        """
        radius = SLACK * math.sqrt(self.d * (self.variance + 1 / 12))
        return Ball(radius, [0.5] * self.d)

    def draw(self, name: str, run: int) -> Population:
        """Return the population of a run.

        Means and records of a run depend on the run and the parameters alone, and not
        on what the server misses: of the points that it has of all components, those of
        the first ``n_missing`` are taken away.
        """
        root = np.random.SeedSequence((run, self.n_clients, self.records_each, self.d))
        of_clients, of_server = map(np.random.default_rng, root.spawn(2))
        deviation = math.sqrt(self.variance)
        means = of_clients.random((self.n_clusters, self.d))
        n = self.n_clients * self.records_each
        classes = of_clients.integers(self.n_clusters, size=n)
        records = of_clients.normal(scale=deviation, size=(n, self.d))
        records += means[classes]
        known = np.repeat(np.arange(self.n_clusters), N_OF_EACH)
        points = means[known] + of_server.normal(
            scale=deviation, size=(len(known), self.d)
        )
        uniform = of_server.random((self.n_uniform, self.d))
        return Population(
            name,
            np.split(records, self.n_clients),
            classes,
            np.concatenate([points[known >= self.n_missing], uniform]),
            self.domain,
            self.n_clusters,
            means,
        )


def digits() -> Population:
    """Return scikit-learn's digits, clients being blocks of the file.

    The file is ordered by writer, though it does not say where one ends: 30 blocks of
    59 or 60 images differ from each other as writers do. The server owns the first
    three blocks.
    """
    from sklearn.datasets import load_digits

    records, labels = load_digits(return_X_y=True)
    blocks = np.array_split(np.arange(len(records)), DIGIT_BLOCKS)
    clients = np.repeat(np.arange(DIGIT_BLOCKS), list(map(len, blocks)))
    return _by_client(
        "digits",
        records,
        labels,
        clients,
        DIGIT_SERVER_BLOCKS,
        DIGIT_BOUNDS,
        N_CLUSTERS,
    )


def from_file(
    path: Path,
    client_column: str,
    *,
    bounds: Sequence[float],
    n_clusters: int,
    n_server_clients: int,
    label: str | None = None,
) -> Population:
    """Return the records of a file, one client for each value of a column, which is no feature.

    ``bounds`` are the public lower and upper bound of every feature, ``label`` a column
    with classes. So many clients, the first by name, are the server's own data and take
    no part.
    """
    # Read once for its names: a client column that holds numbers would be a feature
    # otherwise.
    names = load_table(path, label=label, keep=[client_column]).columns
    features = [name for name in names if name != client_column]
    table = load_table(path, label=label, features=features, keep=[client_column])
    return _by_client(
        path.stem,
        table.records,
        table.labels,
        table.column(client_column),
        n_server_clients,
        bounds,
        n_clusters,
    )


def _by_client(
    name: str,
    records: FloatArray,
    classes: NDArray[Any] | None,
    clients: NDArray[Any],
    n_server_clients: int,
    bounds: Sequence[float],
    n_clusters: int,
) -> Population:
    names = np.unique(clients)
    if not 1 <= n_server_clients < len(names):
        raise ConfigurationError(
            f"Expected n_server_clients in [1, {len(names) - 1}], fewer than there are clients. "
            f"Got {n_server_clients} instead."
        )
    low, high = bounds
    d = records.shape[1]
    own = np.isin(clients, names[:n_server_clients])
    places = [np.flatnonzero(clients == each) for each in names[n_server_clients:]]
    return Population(
        name,
        [records[place] for place in places],
        None if classes is None else classes[np.concatenate(places)],
        records[own],
        Box(np.full(d, low), np.full(d, high)),
        n_clusters,
    )
