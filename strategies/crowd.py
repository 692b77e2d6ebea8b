"""The crowd of a run: how many clients take part, answer and may collude, under which trust."""

import math
from dataclasses import dataclass
from typing import Self

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel

# With a smaller fraction the noise of all clients would exceed the planned noise by more:
# its standard deviation grows by sqrt(|S| / M') (docs/guarantees, Theorem 41).
_FRACTION_OF_CLIENTS = 0.8
_MIN_CLIENTS = 3
_CLIENTS_PER_COLLUDER = 10


@dataclass(frozen=True)
class Crowd:
    """Public numbers of clients of a run."""

    n_clients: int | None
    """Number of clients, if it is known."""
    min_clients: int
    """Fewest clients behind a sum."""
    max_colluders: int
    """Most clients that may work together."""

    @classmethod
    def of(
        cls,
        trust: TrustModel,
        n_clients: int | None,
        min_clients: int | None,
        max_colluders: int | None,
    ) -> Self:
        """Return the numbers, with defaults where they are ``None``.

        Raises
        ------
        ConfigurationError
            If the numbers contradict each other or the trust model.
        """
        least = min_clients or _default_min_clients(trust, n_clients)
        if n_clients is not None and least > n_clients:
            raise ConfigurationError(
                f"Expected min_clients <= n_clients={n_clients}. Got {least} instead."
            )
        # Without a committee, masks protect against any number of clients, so the number of
        # colluders is only announced.
        clients = (n_clients or least) if trust.has_committee else 1
        most = max_colluders or max(1, clients // _CLIENTS_PER_COLLUDER)
        if trust.is_protected and most >= least:
            raise ConfigurationError(
                f"Expected max_colluders < min_clients={least} under trust={trust.name!r}: a sum "
                f"of so few clients protects nobody. Got {most} instead."
            )
        return cls(n_clients, least, most)


def _default_min_clients(trust: TrustModel, n_clients: int | None) -> int:
    if not trust.is_private:
        return 1
    if not trust.shares_noise:
        return min(_MIN_CLIENTS, n_clients or _MIN_CLIENTS)
    if n_clients is None:
        raise ConfigurationError(
            f"Expected n_clients or min_clients under trust={trust.name!r}, where the noise "
            "is shared among min_clients. Got neither."
        )
    # At least one client must add noise beside a client that colludes.
    return max(2, math.ceil(_FRACTION_OF_CLIENTS * n_clients))


def require_trust(
    trust: TrustModel, algorithm: Algorithm, plan: PrivacyPlan, strategy: str
) -> None:
    """Require that the algorithm runs under the trust model; the error names those that fit."""
    objections = {
        name: model.objection(algorithm, plan) for name, model in TRUST_MODELS.items()
    }
    objection = objections[trust.name]
    if objection is not None:
        fitting = [name for name, each in objections.items() if each is None]
        raise ConfigurationError(
            f"Expected trust of {strategy} with epsilon={plan.budget.epsilon} "
            f"in {fitting}. Got {trust.name!r} instead. {objection}"
        )
