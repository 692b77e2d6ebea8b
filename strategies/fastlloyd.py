"""FastLloyd: radius-bounded relative updates with Gaussian noise."""

from functools import partial
from typing import Literal, Unpack

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.strategies._base import CommonOptions, KMeansStrategy
from flower_kmeans.strategies._checks import require_reader


class FastLloyd(KMeansStrategy):
    """FastLloyd (Diaa, Humphries & Kerschbaum, 2025, Algorithm 1).

    Every record goes to its nearest centroid and counts by its offset, clipped to a radius; clients
    send relative sums and counts, masked, and the noise is Gaussian. Unlike the paper's, badly
    placed centroids are relocated.

    Beside what `KMeansStrategy` takes:

    Parameters
    ----------
    alpha : float, default: 0.8
        Factor of the radius (paper, eq. 25); with relocation, of its largest value.
    radius : {"step", "constant"}, default: "step"
        Whether the first round has a larger radius: half of the domain's diagonal, or with
        relocation the geometric mean of that and the radius.
    postprocess : {"fold", "truncate", "none"}, default: "fold"
        What is done to centroids outside of the domain.
    relocation : bool, default: True
        Clip far records instead of leaving them out, choose the radius from released numbers, move
        centroids that have no records or share a cluster, and run up to 8 rounds. ``False`` is the
        paper's algorithm.
    cost : bool, default: False
        Whether the last round also releases the cost: ``report.cost``. Not where the server sees
        no sums: nobody could report it.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.

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

    TRUST = "oblivious-server"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        alpha: float = 0.8,
        radius: Literal["step", "constant"] = "step",
        postprocess: Literal["fold", "truncate", "none"] = "fold",
        relocation: bool = True,
        cost: bool = False,
        **options: Unpack[CommonOptions],
    ) -> None:
        algorithm = partial(
            FastLloydAlgorithm,
            alpha=alpha,
            radius=radius,
            postprocess=postprocess,
            relocation=relocation,
            cost=cost,
        )
        super().__init__(algorithm, n_clusters, domain, privacy, n_records, **options)
        require_reader(cost, self.trust_model)
