"""PE-means and HDPE-means: private evolution of centroids by votes."""

from flower_kmeans.algorithms.pe_means import HDPEMeansAlgorithm, PEMeansAlgorithm

from ._base import KMeansStrategy


class PEMeans(KMeansStrategy):
    """PE-means (Algorithms 1 and 2): every round is a histogram of votes.

    A population of public candidates is voted on: every record votes for the nearest.
    Weighted k-means on the noisy votes selects the centroids, and random variations of
    these are the next population. A record has one vote, whatever the domain's radius
    is, so a radius that is too wide adds no noise. With more than 16 columns take
    `HDPEMeans`.

    ``domain`` is best a `Ball`; of a `Box`, the enclosing ball is meant, cut to the
    box.

    Notes
    -----
    Formal guarantee (docs/guarantees.md, PE-means): one record changes the votes of a round by 1 in
    l2, and one plan composes all rounds. A query is k centroids and 16 bytes, from which clients
    make the population themselves. A server that sees the sums sends it; under
    ``trust="clients-only"`` and ``"oblivious-server"`` clients compute it from the sums that they
    open.

    Examples
    --------
    >>> from flower_kmeans import Ball, PrivacyBudget
    >>> from flower_kmeans.strategies import PEMeans
    >>> strategy = PEMeans(5, Ball(4.0, [0, 0, 0]), PrivacyBudget(1.0), 10_000, n_clients=20)
    >>> strategy.trust, strategy.n_rounds
    ('distributed-noise', 6)
    """

    ALGORITHM = PEMeansAlgorithm
    TRUST = "distributed-noise"
    ROUNDS = "n_vote_rounds"


class HDPEMeans(KMeansStrategy):
    """HDPE-means (Algorithm 3): PE-means on a random projection to 16 columns, for more of them.

    The last round adds up the records of each projected centroid, which lifts the
    centroids to all columns; its noise grows with the domain's radius.

    ``n_rounds`` counts the rounds of votes, without the last round; "auto" takes two
    less than PE-means would in 16 columns, and their privacy pays for sums and counts.

    Notes
    -----
    Formal guarantee (docs/guarantees.md, PE-means): as `PEMeans`; in the last round one record
    changes the sums by the domain's l2 bound and the counts by 1.
    """

    ALGORITHM = HDPEMeansAlgorithm
    TRUST = PEMeans.TRUST
    ROUNDS = PEMeans.ROUNDS
