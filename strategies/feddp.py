"""FedDP-KMeans: an initialisation from the server's own data, then private Lloyd rounds."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.algorithms.numerics.initialization import public_generator

from ._base import KMeansStrategy


class FedDPKMeans(KMeansStrategy):
    """FedDP-KMeans (ICML 2025, Algorithms 1 and 2).

    The server owns a small set of points, which need not be distributed as the clients'
    records. Three releases turn them into initial centroids: the second moments of the
    records give a projection, records vote for the nearest projected server point, and
    sums and counts of the records by nearest projected centre lift the centres back.
    Lloyd rounds follow.

    With ``n_rounds=0`` it gives the initialisation alone, from which another strategy
    can start (``initial``).

    Notes
    -----
    Formal guarantee (docs/guarantees.md, FedDP-KMeans): one plan over all releases; one record
    changes the second moments by D^2, weights and counts by one, and sums by D or the radius.
    The server sees every released sum, and computes the next query from it, so FedDP-KMeans runs
    under ``"distributed-noise"`` and ``"trusted-server"`` only.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_kmeans import Ball, PrivacyBudget
    >>> from flower_kmeans.strategies import FedDPKMeans
    >>> points = np.random.default_rng(0).normal(size=(50, 3))
    >>> strategy = FedDPKMeans(
    ...     5, Ball(4.0, [0, 0, 0]), PrivacyBudget(1.0), 10_000, server_data=points, n_clients=20
    ... )
    >>> strategy.trust, strategy.n_rounds
    ('distributed-noise', 5)
    """

    ALGORITHM = FedDPAlgorithm
    TRUST = "distributed-noise"
    ROUNDS = "n_lloyd_rounds"
    OMITS = ("n_server_points",)

    def elbow(
        self, k_max: int, rng: np.random.Generator | None = None
    ) -> NDArray[np.float64]:
        """Return the cost of k-means on the weighted server points for k = 1 to ``k_max``.

        Made from released values after a run, so it costs no further privacy. The
        projection has ``n_clusters`` directions: run with the largest k that is
        possible. ``rng`` is public randomness, by default from the strategy's seed. It
        is a `ConfigurationError` if the weights are not known yet, none is heavy
        enough, or ``k_max`` is out of range.
        """
        algorithm = cast(FedDPAlgorithm, self.algorithm)
        source = public_generator(self.seed, 0) if rng is None else rng
        return algorithm.elbow(self._running.state, k_max, source)
