"""What a run document means: the algorithm and the privacy plan, computed by one's own code."""

import math
from dataclasses import dataclass
from functools import lru_cache

from flower_kmeans.algorithms.base import Algorithm, algorithm_from_config
from flower_kmeans.domain import domain_from_config
from flower_kmeans.errors import KMeansError
from flower_kmeans.federation.document import RunDocument
from flower_kmeans.federation.release import check_shares
from flower_kmeans.privacy.plan import PrivacyPlan, plan_from_config

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
        Computed from the algorithm by this side, not taken from the document.
    """

    document: RunDocument
    algorithm: Algorithm
    plan: PrivacyPlan


# Clients of one process are sent the same document: they share what it means.
@lru_cache(maxsize=8)
def open_run(data: bytes) -> Run:
    """Read a run document, recompute its privacy plan and require that both agree.

    Parameters
    ----------
    data : bytes
        Canonical bytes of the document.

    Raises
    ------
    MessageError
        If the bytes are no run document (``VersionError``: of another version).
    UnacceptableRunError
        If the document's parameters are refused by the algorithm, its announced plan differs from
        the recomputed one, or its sizes do not fit the algorithm.
    """
    document = RunDocument.parse(data)
    try:
        announced = plan_from_config(document.privacy)
        domain = domain_from_config(document.domain)
        algorithm = algorithm_from_config(document.algorithm, domain, announced.budget)
        plan = algorithm.plan()
        if document.trust == "distributed-noise":
            check_shares(algorithm, plan, document.shares)
    except (KMeansError, KeyError, TypeError, ValueError, OverflowError):
        raise UnacceptableRunError("The parameters of the run are not acceptable.") from None
    agree = (
        _plans_agree(announced, plan)
        and document.rounds == algorithm.n_rounds
        and all(
            document.words_of(t) == algorithm.words(t) + 1 for t in range(1, document.rounds + 1)
        )
        and (document.trust == "plain") == (not plan.is_private)
    )
    if not agree:
        raise UnacceptableRunError("The announced privacy plan is not that of the parameters.")
    return Run(document, algorithm, plan)


def _plans_agree(announced: PrivacyPlan, own: PrivacyPlan) -> bool:
    if announced.n_records != own.n_records or len(announced.rounds) != len(own.rounds):
        return False
    for theirs, ours in zip(announced.rounds, own.rounds, strict=True):
        if len(theirs) != len(ours):
            return False
        for a, b in zip(theirs, ours, strict=True):
            if (a.mechanism, a.norm, a.blocks) != (b.mechanism, b.norm, b.blocks):
                return False
            if not math.isclose(
                a.noise_multiplier, b.noise_multiplier, rel_tol=_RELATIVE_TOLERANCE
            ):
                return False
    return True
