"""FastLloyd: radius-bounded relative updates with Gaussian noise."""

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm

from ._base import KMeansStrategy


class FastLloyd(KMeansStrategy):
    """FastLloyd (Diaa, Humphries & Kerschbaum, 2025, Algorithm 1).

    Every record goes to its nearest centroid and counts by its offset, clipped to a
    radius; clients send relative sums and counts, masked, and the noise is Gaussian.
    Unlike the paper's, badly placed centroids are relocated.

    Notes
    -----
    Formal guarantee (docs/guarantees.md, Lloyd family): a round releases relative sums, of l2
    sensitivity at most the radius of *that* round over all clusters together (with relocation,
    jointly with how near the records are), and counts, of sensitivity 1. Gaussian releases compose
    exactly; one scale makes the run (epsilon, delta).

    Examples
    --------
    >>> from flower_kmeans import Box, PrivacyBudget
    >>> from flower_kmeans.strategies import FastLloyd
    >>> strategy = FastLloyd(15, Box([0, 0], [10, 10]), PrivacyBudget(1.0), n_records=5000)
    >>> strategy.trust
    'oblivious-server'
    """

    ALGORITHM = FastLloydAlgorithm
    TRUST = "oblivious-server"
