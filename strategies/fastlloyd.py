"""FastLloyd: radius-bounded relative updates with Gaussian noise."""

from typing import Literal, Unpack

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget

from .kmeans import KMeansStrategy
from .options import CommonOptionsAndInitial


class FastLloyd(KMeansStrategy):
    """FastLloyd (Diaa, Humphries & Kerschbaum, 2025, Algorithm 1).

    Every record goes to its nearest centroid and counts by its offset, clipped to a
    radius; clients send relative sums and counts, masked, and the noise is Gaussian.
    Unlike the paper's, badly placed centroids are relocated.

    Parameters
    ----------
    cost : bool, default: False
        Whether the last round also releases the cost, for ``report.cost``; Gaussian
        noise only, and where the server sees the sums (docs/guarantees,
        Theorem 16).
    alpha : float, default: 0.8
        Radius in units of ``beta / (2 k^(1/d))``, beta the domain's diameter (section
        5.6). With relocation the largest one from round 2 on.
    radius : {"step", "constant"}, default: "step"
        ``"step"`` takes ``beta / 2`` in round 1, and the radius of alpha from round 2
        on. With relocation, round 1 has the geometric mean of the two.
    postprocess : {"fold", "truncate", "none"}, default: "fold"
        What happens to a centroid outside the bounds: reflected at the wall, moved to
        the wall, or left there (up to twice the half widths, as far as distances are
        exact).
    relocation : bool, default: True
        Move centroids that have no records or share a cluster, clip offsets to a radius
        that follows from the released numbers, and take
        ``clip(mu N / (k sqrt d), 2, 8)`` rounds. Near records weigh more in the sums
        where ``mu N / (k sqrt d)`` is below 32. ``False`` is the paper's algorithm.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 13): a round releases relative sums, of l2
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
    THEOREMS = (13, 14)
    TRUST = "oblivious-server"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        cost: bool = False,
        alpha: float = 0.8,
        radius: Literal["step", "constant"] = "step",
        postprocess: Literal["fold", "truncate", "none"] = "fold",
        relocation: bool = True,
        **common: Unpack[CommonOptionsAndInitial],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            cost=cost,
            alpha=alpha,
            radius=radius,
            postprocess=postprocess,
            relocation=relocation,
            **common,
        )
