"""PE-means and HDPE-means: private evolution of centroids by votes."""

from collections.abc import Mapping
from typing import Literal, Unpack

from flower_kmeans.algorithms.pe_means import (
    MAX_CANDIDATES,
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
)
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget

from .kmeans import KMeansStrategy
from .options import CommonOptions


class PEMeans(KMeansStrategy):
    """PE-means (Algorithms 1 and 2): every round is a histogram of votes.

    Every record votes for the nearest candidate of a public population. Weighted k-means
    on the noisy votes selects the centroids, and random variations of these are the next
    population. A record has one vote, whatever the domain's radius is, so a radius that
    is too wide adds no noise. For more than 16 columns use `HDPEMeans`.

    ``domain`` is best a `Ball`. A `Box` stands for its enclosing ball, cut to the box.
    On a `Sphere` candidates lie in the unit ball, where the means of directions are, and
    the result has the directions of the centroids.

    Parameters
    ----------
    clips : mapping of str to float, optional
        Clips of single releases (``"votes"``), with ``unit="client"`` only.
    n_variations : int or "auto", default: "auto"
        Number L of variations of each centroid in the first rounds. ``"auto"`` follows
        the paper: a fifth of ``n_records``, at least 4. The number is halved whenever the
        noise of a round exceeds its signal.
    max_candidates : int, default: 8192
        The largest population, from 2 k to 2^22. Every candidate is one word of a
        client's answer, and a message holds 2^22 words.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 28): one record changes the votes of a round by 1 in
    l2, and one plan composes all rounds. A query is k centroids and 16 bytes, from which clients
    make the population themselves. A server that sees the sums sends the query. Under
    ``trust="clients-only"`` and ``"oblivious-server"`` clients compute it from the sums that they
    unmask.

    Examples
    --------
    >>> from flower_kmeans import Ball, PrivacyBudget
    >>> from flower_kmeans.strategies import PEMeans
    >>> strategy = PEMeans(5, Ball(4.0, [0, 0, 0]), PrivacyBudget(1.0), 10_000, n_clients=20)
    >>> strategy.trust, strategy.n_rounds
    ('distributed-noise', 6)
    """

    ALGORITHM = PEMeansAlgorithm
    THEOREMS = (28,)
    TRUST = "distributed-noise"
    ROUNDS = "n_vote_rounds"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        clips: Mapping[str, float] | None = None,
        n_variations: int | Literal["auto"] = "auto",
        max_candidates: int = MAX_CANDIDATES,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            clips=clips,
            n_variations=n_variations,
            max_candidates=max_candidates,
            **common,
        )


class HDPEMeans(KMeansStrategy):
    """HDPE-means (Algorithm 3): PE-means on a random projection of wide records to 16 columns.

    The last round adds up the records of each projected centroid, which lifts the
    centroids to all columns; its noise grows with the domain's radius.

    ``n_rounds`` counts the rounds of votes, without the last round. ``"auto"`` takes two
    less than PE-means would in 16 columns.

    Parameters
    ----------
    clips : mapping of str to float, optional
        Clips of single releases (``"votes"``, ``"lift-sums"``, ``"lift-counts"``), with
        ``unit="client"`` only.
    n_variations : int or "auto", default: "auto"
        Number L of variations of each centroid in the first rounds. ``"auto"`` follows
        the paper: a fifth of ``n_records``, at least 4. The number is halved whenever the
        noise of a round exceeds its signal.
    max_candidates : int, default: 8192
        The largest population, from 2 k to 2^22. Every candidate is one word of a
        client's answer, and a message holds 2^22 words.
    equal_noise : bool, default: False
        Whether all releases have the same noise multiplier, as in the paper. By default
        sums and counts of the last round together have 0.6 of mu^2.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 28): as for `PEMeans`. In the last round one record
    changes the sums by at most the domain's l2 bound, and the counts by 1.
    """

    ALGORITHM = HDPEMeansAlgorithm
    THEOREMS = (28,)
    TRUST = PEMeans.TRUST
    ROUNDS = PEMeans.ROUNDS

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        clips: Mapping[str, float] | None = None,
        n_variations: int | Literal["auto"] = "auto",
        max_candidates: int = MAX_CANDIDATES,
        equal_noise: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            clips=clips,
            n_variations=n_variations,
            max_candidates=max_candidates,
            equal_noise=equal_noise,
            **common,
        )
