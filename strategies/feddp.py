"""FedDP-KMeans: an initialisation from the server's own data, then private Lloyd rounds."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms import tightened
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
    records. Three rounds turn them into initial centroids: the second moments of the
    records give a projection, records vote for the nearest projected server point, and
    sums and counts of the records by nearest projected centre lift the centres back.
    Lloyd rounds follow.

    With ``n_rounds=0`` the result is the initialisation, from which another strategy can
    start (``initial``).

    Parameters
    ----------
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each
        release. By default each release has a clip from ``server_data``: the median
        norm of the answers of clients with ``n_records / n_clients`` points drawn from
        it, at least 0.01 and at most that number. Clients see the clips, so they learn
        that much about ``server_data``.
    clips : mapping of str to float, optional
        Clips of single releases by name, in place of ``clip`` or the default.
    contribution : {"sums", "means"}, default: "sums"
        Statistic that a client adds in the lift and in Lloyd rounds. ``"sums"``: sums
        and counts of its records. ``"means"``, with ``unit="client"`` only: the mean of
        its records in each cluster, and which clusters it holds. Where ``clip`` is
        given, means are clipped to ``sqrt(k)`` clusters' worth, which clips nobody.
    n_rounds : int or "auto", default: "auto"
        Number T of Lloyd rounds after the initialisation; ``strategy.n_rounds`` is
        ``3 + T``. 0 gives the initialisation alone. ``"auto"`` is 2, or 1 where there is
        much noise.
    margin : float, default: 1.0
        A record takes part in the lift if its nearest projected centre is at most
        ``margin`` times as far as the second nearest; 1e-6 to 1. The paper's theory has
        1/3.
    min_weight : float or "auto", default: "auto"
        Least noisy weight, in records, of a server point that is kept. ``"auto"`` is two
        standard deviations of a weight's planned noise, so that few points without
        records stay. Without noise it drops only points without records.
    sums : {"auto", "absolute", "relative", "narrowing"}, default: "auto"
        Terms of the sums of a Lloyd round. ``"absolute"``: records, as in the paper.
        ``"relative"``: offsets within a radius, as in FastLloyd. ``"narrowing"`` also
        releases the sum of squared distances in the first Lloyd round, and narrows the
        radius of later ones to twice the root mean square distance; it needs
        ``unit="record"`` and two rounds or more. ``"auto"`` takes relative sums where
        clients add sums and the radius is at most 0.6 D, or where the clip of Lloyd
        sums comes from ``server_data``. It takes narrowing sums instead where they are
        possible, the budget is private and ``alpha`` is not given. D is the longest
        record of the scaled domain.
    alpha : float or "auto", default: "auto"
        The radius of relative sums, as in FastLloyd. ``"auto"`` is 0.8. Where the clip
        of Lloyd sums comes from ``server_data`` and that radius is more than 0.6 D, it
        makes the radius the domain's diameter: noise then follows the clip, and not the
        radius.
    cost : bool, default: False
        Whether the last Lloyd round also releases the cost, for ``report.cost``.
    shares : mapping of str to float, optional
        Fractions of mu^2 by release. Only their ratios matter. By default they are
        the library's.
    mechanisms : {"gaussian", "laplace"} or mapping of str to str, default: "gaussian"
        Noise of counts, spread and cost, for all or by release. With Laplace noise the
        server must add the noise.
    server_data : array-like of shape (m, d)
        Points that the server holds, in the user's units, at least k of them different.
        They are clipped to the domain. Clients see their projections to
        ``min(n_clusters, d)`` directions: with d directions, they see the points.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 19): one plan covers all releases. One record
    changes the second moments by D^2, weights and counts by 1, and sums by D or the radius. The
    server sees every released sum, and computes the next query from it, so FedDP-KMeans runs
    under ``"distributed-noise"`` and ``"trusted-server"`` only.

    The report has no warning about records that fill less than 1/50 of the domain, which
    `SynopsisKMeans` has: with the default shares, two standard deviations of the noise of
    a second moment hide so small a variance unless mu ``n_records`` is above 27,000 in a
    `Ball`, or 27,000 d in a `Box`.

    On a `Sphere` centroids are directions from the lift on. Rows of ``server_data`` must
    then have a direction, too.

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
    OMITS = ("n_server_points", "laplace")
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

        The costs follow from released values of a run, so they spend no privacy. The
        projection has at most ``n_clusters`` directions: run with the largest k that is
        possible.

        Parameters
        ----------
        k_max : int
            Largest number of clusters, 1 to 10,000.
        rng : Generator, optional
            Public randomness. Default: from the strategy's seed.

        Returns
        -------
        array of shape (k_max,), float64
            Costs in squared units, as `Report.cost` has them.

        Raises
        ------
        ConfigurationError
            If the weights are not known yet, no server point reaches ``min_weight``, or
            ``k_max`` is out of range.
        RunError
            If no run has started.
        """
        source = public_generator(self.seed, 0) if rng is None else rng
        state = self._running.state
        # With `tighten` another object has the ranges that the run found.
        within: Any = tightened.innermost(tightened.at(self.algorithm, state))
        elbow: NDArray[np.float64] = within.seeding.elbow(state, k_max, source)
        return elbow
