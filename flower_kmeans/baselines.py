"""Methods to compare with, for whoever holds all partitions. None of these is private."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.records import check_records

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class KFed:
    """k-FED, one-shot federated clustering. NOT PRIVATE.

    Every client clusters its own records and hands out its exact local centres, which are means of
    as little as one record: nothing about it is masked or noisy, so it has no strategy here and
    runs only where one process holds all partitions.

    Parameters
    ----------
    n_clusters : int
        k.
    n_local : int, optional
        Centres that each client finds, at most k (the default). The method's theory wants few
        clusters in each client's records.

    References
    ----------
    Dennis, Li & Smith (2021), "Heterogeneity for the Win: One-Shot Federated Clustering",
    Algorithm 2. Local clustering is scikit-learn's k-means instead of Awasthi & Sheffet's method.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_kmeans.baselines import KFed
    >>> parts = [np.array([[0.0], [0.2]]), np.array([[9.0], [9.2], [0.1]])]
    >>> sorted(KFed(2).fit(parts, np.random.default_rng(0)).round(2).ravel().tolist())
    [0.1, 9.1]
    """

    n_clusters: int
    n_local: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_clusters", "n_local"):
            value = getattr(self, name)
            if value is None and name == "n_local":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(
                    f"Expected {name} to be a positive integer. Got {value!r} instead."
                )
        if self.n_local is not None and self.n_local > self.n_clusters:
            raise ConfigurationError(
                f"Expected n_local of at most n_clusters={self.n_clusters}. "
                f"Got {self.n_local} instead."
            )

    def fit(self, partitions: Sequence[ArrayLike], rng: np.random.Generator) -> FloatArray:
        """Return the centroids.

        Parameters
        ----------
        partitions : sequence of array-likes of shape (n_i, d)
            Each client's records; a client may have none.
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of shape (k, d), float64

        Raises
        ------
        DataError
            If records are malformed or differ in width, or all clients together have fewer than k
            local centres.
        """
        parts: list[FloatArray] = []
        for part in partitions:
            parts.append(check_records(part, parts[0].shape[1] if parts else None))
        found = [
            local_centers(part, self.n_local or self.n_clusters, rng) for part in parts if len(part)
        ]
        n_found = sum(map(len, found))
        if n_found < self.n_clusters:
            raise DataError(
                f"Expected at least n_clusters={self.n_clusters} local centres. "
                f"Got {n_found} from {len(found)} clients with records instead."
            )
        return merged_centers(found, self.n_clusters, rng)


def local_centers(records: FloatArray, n_local: int, rng: np.random.Generator) -> FloatArray:
    """Return one client's centres, at most as many as it has different records.

    Parameters
    ----------
    records : ndarray of shape (n, d), float64
        n >= 1.
    n_local : int
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (at most n_local, d), float64
    """
    from sklearn.cluster import KMeans  # a second of import time that others need not pay

    different = np.unique(records, axis=0)
    if len(different) <= n_local:
        return different
    seed = int(rng.integers(2**31))
    return np.asarray(KMeans(n_local, n_init=1, random_state=seed).fit(records).cluster_centers_)


def merged_centers(
    found: Sequence[FloatArray], n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Group local centres around some of them that lie far apart; return the groups' means.

    The first of these are the centres of one client, which its own clustering keeps apart; then
    comes whatever is farthest from all taken before.

    Parameters
    ----------
    found : sequence of ndarrays of shape (k_i, d), float64
    n_clusters : int
        At most the sum of the ``k_i``.
    rng : numpy.random.Generator
        Chooses the first client.

    Returns
    -------
    ndarray of shape (n_clusters, d), float64
    """
    pool = np.concatenate(list(found))
    chosen = list(found[int(rng.integers(len(found)))][:n_clusters])
    nearest = cdist(pool, np.array(chosen)).min(axis=1)
    while len(chosen) < n_clusters:
        chosen.append(pool[int(np.argmax(nearest))])
        nearest = np.minimum(nearest, cdist(pool, chosen[-1:])[:, 0])
    group = cdist(pool, np.array(chosen)).argmin(axis=1)
    return np.array(
        [
            pool[group == j].mean(axis=0) if np.any(group == j) else chosen[j]
            for j in range(n_clusters)
        ]
    )
