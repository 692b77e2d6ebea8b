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

    The first query is for second moments. One to three rounds build a synopsis: counts,
    clipped residuals and their squared lengths, of the records by nearest cell, with
    cells that are made for what the round before found. Weighted k-means on the cells
    gives centroids, which four Lloyd rounds refine whose residuals are clipped to a
    shrinking radius. Nothing has to be tuned.

    A ``Box`` stands for the ball around it, so a `Ball` that fits the records is
    better. ``n_rounds`` is ``"auto"``: rounds have different tasks, and their number
    follows from ``n_records``, ``n_clusters``, the columns and the budget.

    With ``min_size`` or ``max_size`` the result has weights: a record x is in the
    cluster with the least ``|x - c_j|^2 - w_j``, and ``size_report`` has the noisy
    sizes of these clusters. The run aims at the bounds and cannot promise them. They
    take four more rounds and a tenth of mu^2; ``min_size`` is at most
    ``n_records / n_clusters``, and ``max_size`` at least that.

    Parameters
    ----------
    n_clusters : int, (int, int) or None
        A pair is the fewest and the most. All of the budget is spent on the synopsis,
        and the result is its k-means with the number of clusters that its costs suggest
        (docs/choosing.md). ``None`` is (1, 20). Not with bounds on sizes.
    clips : mapping of str to float, optional
        Clips of single releases, in all rounds of a name, in place of ``clip``.
    min_size, max_size : int, optional
        Bounds on the records of each cluster. Clusters are then power cells with public
        weights, and the result's ``size_report`` has the sizes (docs/guarantees,
        Theorem 24). Not with ``unit="client"``. They need ``n_records``,
        also without privacy.
    domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 22): one plan over all releases; one record
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
    OMITS = ("schedule", "min_clusters")

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
