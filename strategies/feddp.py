"""FedDP-KMeans: an initialisation from the server's own data, then private Lloyd rounds."""

from collections.abc import Mapping
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.feddp import Contribution, FedDPAlgorithm
from flower_kmeans.algorithms.feddp_lloyd import Sums
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Mechanism

from .kmeans import KMeansStrategy
from .options import CommonOptions


class FedDPKMeans(KMeansStrategy):
    """FedDP-KMeans (ICML 2025, Algorithms 1 and 2).

    The server owns a small set of points, which need not be distributed as the clients'
    records. Three releases turn them into initial centroids: the second moments of the
    records give a projection, records vote for the nearest projected server point, and
    sums and counts of the records by nearest projected centre lift the centres back.
    Lloyd rounds follow.

    With ``n_rounds=0`` it gives the initialisation alone, from which another strategy
    can start (``initial``).

    Parameters
    ----------
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each
        release. By default each release has a clip from ``server_data``: the median
        norm of what clients would add that hold ``n_records / n_clients`` points drawn
        from it, and no more than that number. Clients see the clips, so they learn that
        much about ``server_data``.
    clips : mapping of str to float, optional
        Clips of single releases, in place of ``clip`` or the default.
    contribution : {"sums", "means"}, default: "sums"
        What a client adds in the lift and in Lloyd rounds: sums and counts of its
        records, or, with ``unit="client"`` only, the mean of its records in each
        cluster and which clusters it holds. Where ``clip`` is given, the latter are
        clipped to ``sqrt(k)`` clusters' worth, which clips nobody.
    n_rounds : int or "auto", default: "auto"
        T, Lloyd rounds after the initialisation; ``strategy.n_rounds`` is ``3 + T``. 0
        gives the initialisation alone, ``"auto"`` two rounds, or one where there is
        much noise.
    margin : float, default: 1.0
        A record takes part in the lift if its nearest projected centre is at most
        ``margin`` times as far as the second; in (0, 1]. The paper's theory has 1/3.
    min_weight : float or "auto", default: "auto"
        Server points of a smaller noisy weight, in records, are dropped. ``"auto"`` is
        two standard deviations of a weight's planned noise, so that few points without
        records stay; without noise it drops those without records alone.
    sums : {"auto", "absolute", "relative", "narrowing"}, default: "auto"
        What a Lloyd round adds up: records, as in the paper, or their offsets within a
        radius, as in FastLloyd. ``"narrowing"`` also releases the sum of squared
        distances in the first round, and narrows the radius of later ones to twice the
        root mean square distance; it is for records, and two rounds or more. ``"auto"``
        takes relative sums where the radius is at most 0.6 D, or where the clip of
        Lloyd sums comes from ``server_data``; narrowing ones if they are possible, the
        budget is private and ``alpha`` is not given.
    alpha : float or "auto", default: "auto"
        The radius of relative sums, as in FastLloyd. ``"auto"`` is 0.8, or, where the
        clip of Lloyd sums comes from ``server_data`` and that radius is more than 0.6
        D, the domain's diameter: noise then follows the clip, and not the radius.
    cost : bool, default: False
        Whether the last Lloyd round also releases what an estimate of the cost needs.
    shares : mapping of str to float, optional
        Shares of mu^2 by release, in place of the default ones; only their ratios
        matter.
    mechanisms : {"gaussian", "laplace"} or mapping of str to str, default: "gaussian"
        Noise of counts and cost, for all or by release. Laplace noise needs a server
        that adds it.
    server_data : array-like of shape (m, d)
        Points that the server holds, in the user's units, at least k of them different;
        clipped to the domain. Clients see their projections to ``min(n_clusters, d)``
        directions: with d directions, the points.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 19): one plan over all releases; one record
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
    THEOREMS = (19, 20, 21)
    TRUST = "distributed-noise"
    ROUNDS = "n_lloyd_rounds"
    OMITS = ("n_server_points", "server_points", "laplace")
    algorithm: FedDPAlgorithm

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        clips: Mapping[str, float] | None = None,
        contribution: Contribution = "sums",
        margin: float = 1.0,
        min_weight: float | Literal["auto"] = "auto",
        sums: Sums | Literal["auto"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        cost: bool = False,
        shares: Mapping[str, float] | None = None,
        mechanisms: Mechanism | Mapping[str, Mechanism] = "gaussian",
        server_data: ArrayLike | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            clips=clips,
            contribution=contribution,
            margin=margin,
            min_weight=min_weight,
            sums=sums,
            alpha=alpha,
            cost=cost,
            shares=shares,
            mechanisms=mechanisms,
            server_data=server_data,
            **common,
        )

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
        source = public_generator(self.seed, 0) if rng is None else rng
        return self.algorithm.seeding.elbow(self._running.state, k_max, source)
