"""SynopsisKMeans: k-means from a private synopsis of the records."""

from collections.abc import Mapping
from typing import Annotated, Unpack

from flower_kmeans.algorithms.synopsis import CLUSTERS, SynopsisAlgorithm
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget

from .kmeans import KMeansStrategy
from .options import CommonOptions


class SynopsisKMeans(KMeansStrategy):
    """k-means from a private synopsis of the records, and a few Lloyd rounds.

    The first round releases second moments. One to three rounds build a synopsis: counts,
    clipped residuals and their squared lengths, of the records by nearest cell. Each of
    these rounds makes its cells from the release of the round before. Weighted k-means on
    the cells gives centroids. Four or eight Lloyd rounds refine them, with residuals
    clipped to a shrinking radius. No option needs tuning.

    A ``Box`` stands for the ball around it, so a `Ball` that fits the records is
    better. On a `Sphere` cells and means lie in the unit ball, and the result has the
    directions of its means. ``n_rounds`` must be ``"auto"``: rounds have different
    tasks, and their number follows from ``n_records``, ``n_clusters``, the columns and
    the budget.

    With ``min_size`` or ``max_size`` the result has weights: a record x is in the
    cluster with the least ``|x - c_j|^2 - w_j``, and ``report.sizes`` has the noisy
    sizes of these clusters. The run aims at the bounds and cannot promise them. They
    take four more rounds and a tenth of mu^2. ``min_size`` is at most
    ``n_records / n_clusters``, and ``max_size`` is at least that.

    Parameters
    ----------
    n_clusters : int, (int, int) or None
        Number of clusters. A pair is the fewest and the most: the whole budget goes to
        the synopsis, and the result is its k-means with the number of clusters that its
        costs suggest (docs/choosing.md). ``None`` is (1, 20). Bounds on sizes need a
        number.
    clips : mapping of str to float, optional
        Clips of releases by name, in place of ``clip``. A name covers all rounds with a
        release of that name.
    min_size, max_size : int, optional
        Bounds on the number of records of each cluster. Clusters are then power cells
        with public weights, and the result's ``size_report`` has the sizes
        (docs/guarantees, Theorem 24). The bounds need ``unit="record"``, and
        ``n_records`` also without privacy.
    domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 22): one plan covers all releases. One record
    changes the second moments by D^2, and one cell's sums, counts and slacks by 1 together. A
    server that sees the sums sends the queries. Under ``trust="clients-only"`` and
    ``"oblivious-server"`` clients compute them from the sums that they unmask.

    Examples
    --------
    >>> from flower_kmeans import Ball, PrivacyBudget
    >>> from flower_kmeans.strategies import SynopsisKMeans
    >>> strategy = SynopsisKMeans(
    ...     5, Ball(4.0, [0, 0, 0]), PrivacyBudget(1.0), 10_000, n_clients=20
    ... )
    >>> strategy.trust, strategy.n_rounds
    ('distributed-noise', 8)
    """

    ALGORITHM = SynopsisAlgorithm
    THEOREMS = (22, 24)
    TRUST = "distributed-noise"
    OMITS = ("schedule", "min_clusters", "most_words")

    def __init__(
        self,
        n_clusters: Annotated[int | tuple[int, int] | None, CLUSTERS],
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        clips: Mapping[str, float] | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            clips=clips,
            min_size=min_size,
            max_size=max_size,
            **common,
        )
