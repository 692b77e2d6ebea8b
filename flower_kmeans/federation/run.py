"""What a run document means, and whether its privacy plan is what one's own code computes.

A client verifies a document once, before it answers anything; a plan with Laplace noise takes a
numerical composition to recompute. Afterwards it reads the document that its life has accepted.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from flower_kmeans.algorithms.base import Algorithm, algorithm_from_config
from flower_kmeans.algorithms.lloyd import LloydFamily
from flower_kmeans.domain import domain_from_config
from flower_kmeans.errors import ConfigurationError, KMeansError
from flower_kmeans.federation.document import RunDocument
from flower_kmeans.federation.release import check_shares, sampler_of
from flower_kmeans.privacy.filter import Price, price_of
from flower_kmeans.privacy.plan import PrivacyPlan, composed_epsilon, plan_from_config

# Two processors may differ in the last digits of a calibrated multiplier, no more.
_RELATIVE_TOLERANCE = 1e-9


class UnacceptableRunError(KMeansError):
    """A run document contradicts itself, or what this side computes from it."""


@dataclass(frozen=True)
class Run:
    """A run document with the objects that it describes.

    Attributes
    ----------
    document : RunDocument
    algorithm : Algorithm
    plan : PrivacyPlan
        As the document announces it; `verify_plan` compares it with one's own computation.
    """

    document: RunDocument
    algorithm: Algorithm
    plan: PrivacyPlan

    @property
    def server_asks(self) -> bool:
        """Whether the server sends questions and result; else clients compute both."""
        return server_asks(self.algorithm, self.document.trust)

    @property
    def worst_case(self) -> tuple[float | None, float | None]:
        """The (epsilon, delta) of all sums that may open; of ``None`` without privacy.

        Where every attempt at a round can end in a separate sum, that is the whole plan as often
        as a round may be asked for.
        """
        plan = self.plan
        if not plan.is_private or plan.budget.delta is None:
            return None, None
        releases = plan.releases * self.document.sums_of_a_round
        return composed_epsilon(releases, plan.budget.delta), plan.budget.delta

    @cached_property
    def price(self) -> Price | None:
        """What the run costs in a ledger; ``None`` without privacy, which has no price."""
        if not self.plan.is_private:
            return None
        moves = None
        if self.plan.budget.protects_clients:
            rounds = range(1, len(self.plan.rounds) + 1)
            moves = [self.algorithm.moves_of_a_record(t) for t in rounds]
        return price_of(self.plan.budget.unit, self.plan.rounds, moves)


def server_asks(algorithm: Algorithm, trust: str) -> bool:
    """Return whether the server sends questions and result, under a trust model.

    Who sees the sums asks: under an oblivious server the clients do. Algorithms with cheap updates
    leave it to them everywhere.
    """
    return not isinstance(algorithm, LloydFamily) and trust != "oblivious-server"


# Clients of one process are sent the same document: they share what it means.
@lru_cache(maxsize=8)
def open_run(data: bytes) -> Run:
    """Read a run document.

    Parameters
    ----------
    data : bytes
        Canonical bytes of the document.

    Raises
    ------
    MessageError
        If the bytes are no run document (``VersionError``: of another version).
    UnacceptableRunError
        If the algorithm refuses the document's parameters, or its sizes do not fit them.
    """
    document = RunDocument.parse(data)
    try:
        plan = plan_from_config(document.privacy)
        domain = domain_from_config(document.domain)
        algorithm = algorithm_from_config(document.algorithm, domain, plan.budget)
    except (KMeansError, KeyError, TypeError, ValueError, OverflowError):
        raise UnacceptableRunError("The parameters of the run are not acceptable.") from None
    fits = document.rounds == algorithm.n_rounds and all(
        document.words_of(t) == algorithm.words(t) + 1 for t in range(1, document.rounds + 1)
    )
    asked = server_asks(algorithm, document.trust)
    if not (asked or algorithm.replayable) or (asked and document.opening == "deferred"):
        raise UnacceptableRunError(
            "The server computes the questions of the run, so it needs each sum before the next."
        )
    if document.levels and not asked:
        # Clients would go on from the sum as it was announced, the server from another one.
        raise UnacceptableRunError("Noise is removed only where the server asks the questions.")
    if not fits or (document.trust == "plain") == plan.is_private:
        raise UnacceptableRunError("The sizes or the trust of the run do not fit its parameters.")
    return Run(document, algorithm, plan)


@lru_cache(maxsize=8)
def verify_plan(data: bytes) -> None:
    """Recompute the privacy plan of a run document and require that it is the announced one.

    Parameters
    ----------
    data : bytes
        Canonical bytes of a document that `open_run` accepts.

    Raises
    ------
    UnacceptableRunError
        If the plans differ, or noise shares could not be drawn.
    """
    run = open_run(data)
    if not _plans_agree(run.plan, run.algorithm.plan()):
        raise UnacceptableRunError("The announced privacy plan is not that of the parameters.")
    shared = run.document.trust == "distributed-noise"
    if run.document.sampler != sampler_of(run.plan, shared):
        raise UnacceptableRunError("The announced sampler is not the one that draws the noise.")
    if shared:
        try:
            check_shares(run.algorithm, run.plan, run.document.shares)
        except ConfigurationError:
            raise UnacceptableRunError("The noise cannot be shared among clients.") from None


def _plans_agree(announced: PrivacyPlan, own: PrivacyPlan) -> bool:
    if (announced.n_records, announced.n_clients) != (own.n_records, own.n_clients):
        return False
    if len(announced.rounds) != len(own.rounds):
        return False
    for theirs, ours in zip(announced.rounds, own.rounds, strict=True):
        if len(theirs) != len(ours):
            return False
        for a, b in zip(theirs, ours, strict=True):
            if a != replace(b, noise_multiplier=a.noise_multiplier):
                return False
            if not math.isclose(
                a.noise_multiplier, b.noise_multiplier, rel_tol=_RELATIVE_TOLERANCE
            ):
                return False
    return True
