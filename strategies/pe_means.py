"""PE-means and HDPE-means: private evolution of centroids by votes."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Unpack

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.pe_means import HDPEMeansAlgorithm, PEMeansAlgorithm
from flower_kmeans.algorithms.pe_means_parameters import MAX_CANDIDATES
from flower_kmeans.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.strategies._base import CommonOptions, KMeansStrategy


class PEMeans(KMeansStrategy):
    """PE-means (Algorithms 1 and 2): every round is a histogram of votes.

    A population of public candidates is voted on: every record votes for the nearest. Weighted
    k-means on the noisy votes selects the centroids, and random variations of these are the next
    population. A record has one vote, whatever the domain's radius is, so a radius that is too wide
    adds no noise. With more than 16 columns take `HDPEMeans`.

    ``domain`` is best a `Ball`; of a `Box`, the enclosing ball is meant, cut to the box.
    ``n_rounds`` counts the rounds of votes; "auto" takes ``4 max(1, epsilon) sqrt(d)``. With
    ``unit="client"``, votes are clipped to ``sqrt(n_records / n_clients)`` unless ``clip`` or
    ``clips`` says otherwise. Beside what `KMeansStrategy` takes:

    Parameters
    ----------
    n_variations : int or "auto", default: "auto"
        Variations of each centroid in a population; "auto" takes a fifth of ``n_records``. They are
        halved whenever the noise of a round exceeds its signal.
    max_candidates : int, default: 8192
        The largest population. Every candidate is one word of a client's answer, so 2^22, the words
        of a message, is the most; ``report.warnings`` says when the cap binds.
    clips : mapping of str to float, optional
        With ``unit="client"``: records' worth of one client by release, in place of ``clip``.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range, or parameters contradict each other.

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

    TRUST = "distributed-noise"
    TAKES_INITIAL = False
    _ALGORITHM: ClassVar[type[PEMeansAlgorithm]] = PEMeansAlgorithm

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        n_variations: int | Literal["auto"] = "auto",
        max_candidates: int = MAX_CANDIDATES,
        clips: Mapping[str, float] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        made = partial(
            self._ALGORITHM,
            n_variations=n_variations,
            max_candidates=max_candidates,
            clips=clips,
        )

        def algorithm(*, n_rounds: int | Literal["auto"], **common: Any) -> Algorithm:
            return made(n_vote_rounds=n_rounds, **common)

        super().__init__(algorithm, n_clusters, domain, privacy, n_records, **options)


class HDPEMeans(PEMeans):
    """HDPE-means (Algorithm 3): PE-means on a random projection to 16 columns, for more of them.

    The last round adds up the records of each projected centroid, which lifts the centroids to all
    columns; its noise grows with the domain's radius.

    Takes what `PEMeans` takes. ``n_rounds`` counts the rounds of votes, without the last round;
    "auto" takes two less than PE-means would in 16 columns, and their privacy pays for sums and
    counts.

    Raises
    ------
    ConfigurationError
        As `PEMeans`, and if there are no more than 16 columns.

    Notes
    -----
    Formal guarantee (docs/guarantees.md, PE-means): as `PEMeans`; in the last round one record
    changes the sums by the domain's l2 bound and the counts by 1.

    Examples
    --------
    >>> from flower_kmeans import Ball, PrivacyBudget
    >>> from flower_kmeans.strategies import HDPEMeans
    >>> strategy = HDPEMeans(5, Ball(4.0, [0] * 64), PrivacyBudget(1.0), 10_000, n_clients=20)
    >>> strategy.n_rounds
    15
    """

    _ALGORITHM = HDPEMeansAlgorithm
