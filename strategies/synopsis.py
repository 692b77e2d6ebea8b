"""SynopsisKMeans: k-means from a private synopsis of the records."""

from collections.abc import Mapping
from functools import partial
from typing import Unpack

from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.strategies._base import CommonOptions, KMeansStrategy


class SynopsisKMeans(KMeansStrategy):
    """k-means from a private synopsis of the records, and a few Lloyd rounds.

    The first query is for second moments. One to three rounds build a synopsis: counts, clipped
    residuals and their squared lengths, of the records by nearest cell, with cells that are made
    for what the round before found. Weighted k-means on the cells gives centroids, which four Lloyd
    rounds refine whose residuals are clipped to a shrinking radius. Nothing has to be tuned.

    A ``Box`` stands for the ball around it, so a `Ball` that fits the records is better.
    ``n_rounds`` is ``"auto"``: rounds have different tasks, and their number follows from
    ``n_records``, ``n_clusters``, the columns and the budget. Beside what `KMeansStrategy` takes:

    Parameters
    ----------
    clips : mapping of str to float, optional
        With ``unit="client"``: records' worth of one client by release, in place of ``clip``,
        whose default is the root of ``n_records / n_clients`` here.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.

    Notes
    -----
    Formal guarantee (docs/guarantees.md, SynopsisKMeans): one plan over all releases; one record
    changes the second moments by D^2, and one cell's sums, counts and slacks by 1 together. A
    server that sees the sums sends the queries. Under ``trust="clients-only"`` and
    ``"oblivious-server"`` clients compute them from the sums that they open.

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

    TRUST = "distributed-noise"
    TAKES_INITIAL = False

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        clips: Mapping[str, float] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        algorithm = partial(SynopsisAlgorithm, clips=clips)
        super().__init__(algorithm, n_clusters, domain, privacy, n_records, **options)
