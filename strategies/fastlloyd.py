"""FastLloyd: radius-bounded relative updates with Gaussian noise."""

from typing import Literal, Unpack

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget

from .kmeans import KMeansStrategy
from .options import CommonOptionsAndInitial


class FastLloyd(KMeansStrategy):
    """FastLloyd (Diaa, Humphries & Kerschbaum, 2025, Algorithm 1).

    Every record goes to its nearest centroid, and adds its offset from it, clipped to a
    radius. Clients send masked sums of offsets, and counts. The noise is Gaussian. Unlike
    in the paper, badly placed centroids are relocated.

    Parameters
    ----------
    cost : bool, default: False
        Whether the last round also releases the cost, for ``report.cost``. The server
        must see the sums (docs/guarantees, Theorem 16).
    alpha : float, default: 0.8
        Radius in units of ``beta / (2 k^(1/d))``, where beta is the domain's diameter
        (section 5.6). With relocation it is the largest radius from round 2 on.
    radius : {"step", "constant"}, default: "step"
        ``"constant"`` takes the radius of alpha in all rounds. ``"step"`` takes
        ``beta / 2`` in round 1; with relocation, the geometric mean of the two.
    postprocess : {"fold", "truncate", "none"}, default: "fold"
        Treatment of a centroid outside the bounds: ``"fold"`` reflects it at the wall,
        ``"truncate"`` moves it to the wall, and ``"none"`` leaves it (up to twice the
        half widths, as far as distances are exact). On a `Sphere` ``"none"`` is refused,
        because a result has directions.
    relocation : bool, default: True
        Whether to move centroids that have no records or share a cluster, to clip offsets
        to a radius that follows from the released numbers and shrinks slowly while a
        cluster has distant records, and by default to take
        ``clip(mu N / (k sqrt d), 2, 8)`` rounds. Near records weigh more in the sums
        where ``mu N / (k sqrt d)`` is below 32. ``False`` is the paper's algorithm.
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 13): a round releases relative sums and counts. One
    record changes the relative sums of all clusters together by at most the radius of *that*
    round in l2 (with relocation, jointly with the nearness of the records), and the counts by 1.
    Gaussian releases compose exactly. One scale factor makes the run (epsilon, delta).

    On a `Sphere` the last round makes directions of the centroids. In the rounds before,
    they are means within the unit ball, to which offsets are shorter than to directions,
    so fewer are clipped (docs/tables/directions.md).

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
