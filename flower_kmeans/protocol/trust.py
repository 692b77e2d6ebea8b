"""Trust models: the source of the noise, the secure sum, and the reader of the sums.

Code uses the properties of a trust model, never its name.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.kinds import USUAL, held_by
from flower_kmeans.secagg.base import SecureSum, secure_sum


@dataclass(frozen=True)
class TrustModel:
    """The roles in a run.

    The reader of the sums also computes the queries and the result. Except under
    ``trusted-server``, no party both adds all of the noise and sees the sum
    (docs/guarantees, Theorem 36).
    """

    name: str
    noise_by: Literal["server", "clients", "nobody"]  # clients add noise shares
    secure_sum: str  # name of the `SecureSum` of the clients' vectors, or "homomorphic"
    sums_seen_by: Literal["server", "clients"]  # who learns the sum
    learns: str = ""  # text on who learns what, for a user who chooses
    kind: str = USUAL  # kind of its runs

    @cached_property
    def sum(self) -> SecureSum:
        """The secure sum of this trust model."""
        return secure_sum(self.secure_sum)

    @cached_property
    def is_homomorphic(self) -> bool:
        """Whether one party computes on the others' encrypted columns, so no vectors are added."""
        return self.secure_sum == HOMOMORPHIC

    @cached_property
    def is_blind(self) -> bool:
        """Whether the server sees no sum, so clients compute the queries themselves."""
        return self.sums_seen_by == "clients"

    @cached_property
    def is_protected(self) -> bool:
        """Whether vectors leave clients protected, which needs keys and fixed slots."""
        return self.is_homomorphic or self.sum.is_protected

    @cached_property
    def has_committee(self) -> bool:
        """Whether a committee of clients adds the shares, in a second round trip."""
        return not self.is_homomorphic and self.sum.by_committee

    @cached_property
    def checksum_words(self) -> int:
        """Number of words in a vector that count the vectors of a sum."""
        return 0 if self.is_homomorphic else 1

    @cached_property
    def shares_noise(self) -> bool:
        """Whether each client adds a noise share."""
        return self.noise_by == "clients"

    @cached_property
    def removes_noise(self) -> bool:
        """Whether the server can remove noise beyond the plan.

        A committee must share the keys of the noise, and the server must see the sums.
        """
        return self.shares_noise and self.has_committee and not self.is_blind

    @cached_property
    def is_private(self) -> bool:
        """Whether anybody adds noise."""
        return self.noise_by != "nobody"

    @cached_property
    def commits_to_records(self) -> bool:
        """Whether a client commits to its records, because one mask must not cover two vectors."""
        is_masked = self.is_protected and not self.has_committee
        return is_masked and not self.is_homomorphic

    def objection(self, algorithm: Algorithm, plan: PrivacyPlan) -> str | None:
        """Return the objection to an algorithm under this trust model, or ``None``."""
        if self.kind != algorithm.kind:
            return f"Its parties hold {held_by(algorithm.kind)}."
        if plan.is_private != self.is_private:
            return "It adds noise." if self.is_private else "It adds no noise."
        if self.is_blind and not algorithm.replayable:
            return "The server computes the next query, so it must see the sums."
        # A sum of Laplace variables does not have a Laplace distribution.
        is_gaussian = all(r.mechanism == "gaussian" for r in plan.releases)
        if self.shares_noise and not is_gaussian:
            return "Laplace noise has no shares."
        return None


TRUST_MODELS: dict[str, TrustModel] = {}
HOMOMORPHIC = "homomorphic"


def register_trust_model(model: TrustModel) -> TrustModel:
    """Make a trust model known under its name."""
    TRUST_MODELS[model.name] = model
    return model


CLIENTS_ONLY = register_trust_model(
    TrustModel(
        "clients-only",
        "clients",
        "shares",
        "clients",
        "only clients see the noisy sums and the result; the server sees them with a client's help",
    )
)
DISTRIBUTED_NOISE = register_trust_model(
    TrustModel(
        "distributed-noise",
        "clients",
        "shares",
        "server",
        "the server sees the noisy sums, and no more together with max_colluders clients",
    )
)
OBLIVIOUS_SERVER = register_trust_model(
    TrustModel(
        "oblivious-server",
        "server",
        "masks",
        "clients",
        "the server adds the noise and sees no sum; with one client it sees every exact answer",
    )
)
TRUSTED_SERVER = register_trust_model(
    TrustModel(
        "trusted-server",
        "server",
        "plain",
        "server",
        "the server sees every client's exact answer and adds the noise",
    )
)
PLAIN = register_trust_model(
    TrustModel(
        "plain",
        "nobody",
        "plain",
        "server",
        "the server sees every client's exact answer, and nobody adds noise",
    )
)
VERTICAL = register_trust_model(
    TrustModel(
        "vertical",
        "clients",
        HOMOMORPHIC,
        "clients",
        "parties hold columns: party 0 sees the noisy sums, every party the result, the server "
        "none; party 0 and all key holders together read every encrypted column",
        kind="vertical",
    )
)


def trust_model(name: object) -> TrustModel:
    """Return the trust model of a name.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if not isinstance(name, str) or name not in TRUST_MODELS:
        raise ConfigurationError(
            f"Expected trust in {sorted(TRUST_MODELS)}. Got {name!r} instead."
        )
    return TRUST_MODELS[name]
