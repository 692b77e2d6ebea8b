"""FedDP-KMeans: an initialisation from the server's own data, then private Lloyd rounds."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.domain import Domain
from flower_kmeans.initialization import public_generator
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.strategies._base import CommonOptions, KMeansStrategy


class FedDPKMeans(KMeansStrategy):
    """FedDP-KMeans (ICML 2025, Algorithms 1 and 2).

    The server owns a small set of points, which need not be distributed as the clients' records.
    Three releases turn them into initial centroids: the second moments of the records give a
    projection, records vote for the nearest projected server point, and sums and counts of the
    records by nearest projected centre lift the centres back. Lloyd rounds follow.

    ``n_rounds`` counts the Lloyd rounds, without the three releases of the initialisation; "auto"
    takes one or two, and 0 gives the initialisation alone, from which another strategy can start
    (``initial``). Beside what `KMeansStrategy` takes:

    Parameters
    ----------
    server_data : array-like of shape (m, d)
        The server's points, in the user's units, at least ``n_clusters`` of them different. They
        are in no message, but clients see their projections to ``n_clusters`` directions. With as
        many columns or fewer, whoever sees these has the points, up to the grid.
    margin : float, default: 1
        A record takes part in the lift if its nearest projected centre is at most ``margin`` times
        as far as the second. The paper's theory has 1/3.
    min_weight : float, default: 5
        Server points with a smaller noisy weight are dropped.
    sums : {"auto", "absolute", "relative", "narrowing"}, default: "auto"
        What a Lloyd round adds up: records, or offsets within a radius as in FastLloyd; the radius
        can narrow after the first round, to twice the records' root mean square distance.
    alpha : float or "auto", default: "auto"
        Factor of that radius, as in FastLloyd (0.8).
    contribution : {"sums", "means"}, default: "sums"
        With ``unit="client"``: whether lift and Lloyd rounds add clipped sums and counts, or each
        client's means and which clusters it has (the paper's variant).
    clip : float, optional
        With ``unit="client"``: records' worth of one client in each release. By default every
        release has a clip of its own, derived from ``server_data`` and public figures: the median
        norm of what clients would add that hold ``n_records / n_clients`` points drawn from it.
        Clips stand in the run document, so clients learn that much about the server's points.
    clips : mapping of str to float, optional
        With ``unit="client"``: records' worth of one client by release, in place of these.
    cost : bool, default: False
        Whether the last Lloyd round also releases the cost: ``report.cost``.
    shares : mapping of str to float, optional
        Shares of mu^2 by release, in place of the default ones; only their ratios matter.
    mechanisms : {"gaussian", "laplace"} or mapping of str to str, default: "gaussian"
        Noise of counts and cost. Laplace noise exists only under ``trust="trusted-server"``.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.

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

    TRUST = "distributed-noise"
    TAKES_INITIAL = False

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        server_data: ArrayLike,
        margin: float = 1.0,
        min_weight: float = 5.0,
        sums: Literal["auto", "absolute", "relative", "narrowing"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        contribution: Literal["sums", "means"] = "sums",
        clips: Mapping[str, float] | None = None,
        cost: bool = False,
        shares: Mapping[str, float] | None = None,
        mechanisms: str | Mapping[str, str] = "gaussian",
        **options: Unpack[CommonOptions],
    ) -> None:
        def algorithm(*, n_rounds: int | Literal["auto"], **common: Any) -> FedDPAlgorithm:
            return FedDPAlgorithm(
                n_lloyd_rounds=n_rounds,
                server_data=server_data,
                margin=margin,
                min_weight=min_weight,
                sums=sums,
                alpha=alpha,
                contribution=contribution,
                clips=clips,
                cost=cost,
                shares=shares,
                mechanisms=mechanisms,
                **common,
            )

        super().__init__(algorithm, n_clusters, domain, privacy, n_records, **options)

    def elbow(self, k_max: int, rng: np.random.Generator | None = None) -> NDArray[np.float64]:
        """Return the cost of k-means on the weighted server points by k, to choose k from.

        Made from released values after a run: it costs no further privacy. The projection has
        ``n_clusters`` directions, so run with the largest k that comes into question.

        Parameters
        ----------
        k_max : int
            At least 1.
        rng : numpy.random.Generator, optional
            Public randomness; by default from the strategy's seed.

        Returns
        -------
        ndarray of shape (k_max,), float64
            For k = 1, 2, ...; ``flower_kmeans.picture.save_elbow_picture`` draws it.

        Raises
        ------
        RunError
            If no run has begun.
        ConfigurationError, ConfigurationTypeError
            If the weights are not known yet, none is heavy enough, or ``k_max`` is out of range.
        """
        algorithm = cast(FedDPAlgorithm, self.algorithm)
        source = public_generator(self.seed, 0) if rng is None else rng
        return algorithm.elbow(self._running.state, k_max, source)
