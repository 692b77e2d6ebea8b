"""Lloyd's algorithm with absolute sums: exact, with Laplace noise, with Gaussian noise."""

from typing import Unpack

from flower_kmeans.algorithms.lloyd import (
    GLloydAlgorithm,
    LloydAlgorithm,
    SuLloydAlgorithm,
)
from flower_kmeans.data.domain import Domain
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget

from .kmeans import KMeansStrategy
from .options import CommonOptionsAndInitial


class Lloyd(KMeansStrategy):
    """Lloyd's algorithm, exact and NOT PRIVATE: the server sees every client's sums.

    Records are clipped to the domain, as by all strategies.

    Parameters
    ----------
    privacy : PrivacyBudget, optional
        ``PrivacyBudget(epsilon=None)``, the default. Private budgets are refused.
    n_clusters, domain, n_records, **common
        Options of all strategies: see `KMeansStrategy`.
    """

    ALGORITHM = LloydAlgorithm
    TRUST = "plain"
    OMITS = ("cost",)

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget | None = None,
        n_records: int | None = None,
        **common: Unpack[CommonOptionsAndInitial],
    ) -> None:
        budget = PrivacyBudget(epsilon=None) if privacy is None else privacy
        if isinstance(budget, PrivacyBudget) and budget.is_private:
            raise ConfigurationError(
                "Expected PrivacyBudget(epsilon=None) for Lloyd, which is not private. "
                f"Got epsilon={budget.epsilon} instead; use FastLloyd, GLloyd or SuLloyd."
            )
        super().__init__(n_clusters, domain, budget, n_records, **common)


class SuLloyd(KMeansStrategy):
    """Lloyd's algorithm with Laplace noise (Su, Cao, Li, Bertino & Jin, 2016).

    Clients cannot share Laplace noise, so the server must add it.

    Parameters
    ----------
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 15): in each round one record changes the sums by at
    most the l1 bound of the domain in l1, and the counts by 1. Privacy-loss distributions compose
    the rounds. With a box and a positive delta, and not with ``unit="client"``, each column of the
    sums is a release: the noise is 1.2, 2.2 and 4.2 times less in 2, 16 and 64 columns.
    """

    ALGORITHM = SuLloydAlgorithm
    THEOREMS = (15,)
    TRUST = "oblivious-server"
    OMITS = ("cost",)

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        **common: Unpack[CommonOptionsAndInitial],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            **common,
        )


class GLloyd(KMeansStrategy):
    """Lloyd's algorithm with Gaussian noise (FastLloyd's paper, Appendix B.1).

    Parameters
    ----------
    cost : bool, default: False
        Whether the last round also releases the cost, for ``report.cost``. The server
        must see the sums (docs/guarantees, Theorem 16).
    n_clusters, domain, privacy, n_records, **common
        Options of all strategies: see `KMeansStrategy`.

    Notes
    -----
    Formal guarantee (docs/guarantees, Theorem 15): in each round one record changes the sums by at
    most the l2 bound of the domain in l2, and the counts by 1. Gaussian releases compose exactly.
    """

    ALGORITHM = GLloydAlgorithm
    THEOREMS = (15,)
    TRUST = "oblivious-server"

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        privacy: PrivacyBudget,
        n_records: int | None = None,
        *,
        cost: bool = False,
        **common: Unpack[CommonOptionsAndInitial],
    ) -> None:
        super().__init__(
            n_clusters,
            domain,
            privacy,
            n_records,
            cost=cost,
            **common,
        )
