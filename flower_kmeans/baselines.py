"""Methods to compare with. They need all partitions in one place: NOT PRIVATE."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.records import check_records
from flower_kmeans.errors import DataError
from flower_kmeans.extras import require
from flower_kmeans.parameters import integer, require_positive


@dataclass(frozen=True)
class KFed:
    """k-FED, one-shot federated clustering. NOT PRIVATE.

    Every client clusters its own records and sends its exact local centres. A local
    centre may be the mean of a single record, and is neither masked nor noisy. So k-FED
    runs only where one process holds all partitions.

    The method is Algorithm 2 of Dennis, Li & Smith (2021), "Heterogeneity for the Win:
    One-Shot Federated Clustering". The local clustering is scikit-learn's k-means
    instead of Awasthi & Sheffet's method.

    Parameters
    ----------
    n_clusters : int
        Number of clusters, k.
    n_local : int, optional
        Number of centres that each client finds, at most k. Default: k. The method's
        theory requires few clusters in each client's records.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a number is out of range, or not an integer.
    """

    n_clusters: int
    n_local: int | None = None

    def __post_init__(self) -> None:
        require_positive("n_clusters", self.n_clusters)
        if self.n_local is not None:
            integer("n_local", self.n_local, 1, self.n_clusters)

    def fit(
        self, partitions: Sequence[ArrayLike], rng: np.random.Generator
    ) -> FloatArray:
        """Return the centroids, (k, d), of all clients' records.

        Parameters
        ----------
        partitions : sequence of array-like of shape (n_i, d)
            The records of each client. A client may have no records.
        rng : Generator
            Draws the starts of local clusterings, and the first client.

        Raises
        ------
        DataError
            If records are malformed or differ in width, or all clients together have
            fewer than k local centres.
        """
        parts: list[FloatArray] = []
        for part in partitions:
            n_features = parts[0].shape[1] if parts else None
            parts.append(check_records(part, n_features))
        n_local = self.n_local or self.n_clusters
        found = [local_centers(part, n_local, rng) for part in parts if len(part)]
        n_found = sum(map(len, found))
        if n_found < self.n_clusters:
            raise DataError(
                f"Expected at least n_clusters={self.n_clusters} local centres. "
                f"Got {n_found} from {len(found)} clients with records instead."
            )
        return merged_centers(found, self.n_clusters, rng)


def local_centers(
    records: FloatArray, n_local: int, rng: np.random.Generator
) -> FloatArray:
    """Return one client's centres, (m, d), with m <= n_local.

    There are at most as many as the client has different records.
    """
    require("sklearn.cluster", "k-FED", "sklearn")
    # The import takes a second, and other code does not need it.
    from sklearn.cluster import KMeans

    # scikit-learn cannot find more centres than there are different records.
    different = np.unique(records, axis=0)
    if len(different) <= n_local:
        return different
    # scikit-learn takes an int and no `Generator`.
    seed = int(rng.integers(2**31))
    model = KMeans(n_local, n_init=1, random_state=seed).fit(records)
    return np.asarray(model.cluster_centers_)


def merged_centers(
    found: Sequence[FloatArray], n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return the means, (k, d), of groups of local centres around seeds that lie apart.

    The first seeds are the centres of a random client, which its clustering keeps
    apart. Each further seed is the centre that is farthest from all seeds before.
    """
    from scipy.spatial.distance import cdist  # takes half a second

    pool = np.concatenate(list(found))
    first_client = int(rng.integers(len(found)))
    chosen = list(found[first_client][:n_clusters])
    nearest = cdist(pool, np.array(chosen)).min(axis=1)
    while len(chosen) < n_clusters:
        chosen.append(pool[int(np.argmax(nearest))])
        nearest = np.minimum(nearest, cdist(pool, chosen[-1:])[:, 0])
    group = cdist(pool, np.array(chosen)).argmin(axis=1)
    means = list(chosen)
    for j in range(n_clusters):
        members = pool[group == j]
        if len(members):
            means[j] = members.mean(axis=0)
    return np.array(means)
