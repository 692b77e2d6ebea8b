"""The run document: what a client must know to take part, and what it means.

Its hash stands in every key, tag and context, so clients that were given different documents
cannot add up to anything. A client verifies a document once, before it answers anything; later it
reads the document that its session has accepted.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import msgspec

from flower_kmeans.algorithms.base import Algorithm, algorithm_from_config
from flower_kmeans.domain import domain_from_config
from flower_kmeans.errors import ConfigurationError, KMeansError, MessageError
from flower_kmeans.privacy.filter import Price, price_of
from flower_kmeans.privacy.plan import PrivacyPlan, plan_from_config
from flower_kmeans.protocol.noise import NONE, check_shares, sampler_of
from flower_kmeans.protocol.trust import TrustModel, trust_model
from flower_kmeans.protocol.wire import B16, B32, Count, Struct, VersionError, decode, encode

PROTOCOL = "flower-kmeans/2"
KEYS = ("roster", "relayed")
EPOCHS = 16
"""How many committees a roster beyond 64 slots offers; the server chooses one of them."""
MAX_ATTEMPTS = 3
MAX_LEVELS = 4
MAX_SLOTS = 2**17
"""Largest cohort: a client works and stores in proportion to the number that it is told."""
_MAX_DOCUMENT = 2**20
# Two processors may differ in the last digits of a calibrated multiplier, no more.
_RELATIVE_TOLERANCE = 1e-9

Config = dict[str, Any]
Text = Annotated[str, msgspec.Meta(max_length=64)]


class UnacceptableRunError(KMeansError):
    """A run document contradicts itself, or what this side computes from it."""


class Horizontal(Struct, tag="horizontal", frozen=True, kw_only=True):
    """A run over clients that hold different records of the same columns."""

    algorithm: Config
    domain: Config


class RunDocument(Struct, tag="run", frozen=True, kw_only=True):
    """The public description of one run.

    Attributes
    ----------
    protocol : str
    run : bytes
        The run's random identity, 16 bytes.
    trust : str
        Name of a trust model.
    keys : {"roster", "relayed", "none"}
        Where the clients' keys come from; "none" where nothing is protected.
    roster : bytes, optional
        Digest of the roster and its beacon, 32 bytes; only with ``keys="roster"``.
    epoch : int
        Which committee of a roster beyond 64 slots, 0 to 15.
    max_colluders : int
        How many clients may pool what they know, with or without the server.
    min_clients : int
        Fewest clients behind a sum.
    max_attempts : int
        Tries per round, 1 to 3.
    words : tuple of int
        Length of each round's vector, checksum word included.
    privacy : mapping
        The privacy plan, as `PrivacyPlan.to_config` writes it.
    share_variance : str
        Variance of a client's noise share in units of the plan's, always
        ``f"1/{min_clients - max_colluders}"``; "none" where clients add no noise.
    levels : tuple of int
        Numbers of honest answers, ascending from above ``min_clients - max_colluders``, at each of
        which one more part of every noise share is removed. Only where the server opens the sums.
    sampler : str
        Name and version of the noise sampler; "none" in a run without noise.
    body : Horizontal
        Algorithm and domain.
    """

    protocol: Text
    run: B16
    trust: Text
    keys: Literal["roster", "relayed", "none"]
    roster: B32 | None = None
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=EPOCHS)] = 0
    max_colluders: Count = msgspec.field(name="colluders", default=1)
    min_clients: Count
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 2
    words: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    privacy: Config
    share_variance: Text = NONE
    levels: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_LEVELS)] = ()
    sampler: Text = NONE
    body: Horizontal

    @property
    def rounds(self) -> int:
        """T: number of rounds."""
        return len(self.words)

    @property
    def noise_shares(self) -> int:
        """M': the fewest honest noise shares, which make the planned noise together."""
        return self.min_clients - self.max_colluders


@dataclass(frozen=True, eq=False)
class Run:
    """A run document with the objects that it describes.

    The plan is the announced one; `verify_plan` compares it with one's own computation.
    """

    document: RunDocument
    algorithm: Algorithm
    plan: PrivacyPlan
    trust: TrustModel

    @cached_property
    def data(self) -> bytes:
        """The document's encoding."""
        return encode(self.document)

    @cached_property
    def doc_hash(self) -> bytes:
        """SHA-256 of the document's encoding, 32 bytes."""
        return hashlib.sha256(self.data).digest()

    @property
    def guarantee(self) -> tuple[float | None, float | None]:
        """The (epsilon, delta) of all sums that may open; of ``None`` without privacy.

        One sum of a round opens, whatever the number of attempts.
        """
        if not self.plan.is_private or self.plan.budget.delta is None:
            return None, None
        return self.plan.epsilon(), self.plan.budget.delta

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


# Clients of one process are sent the same bytes: they share what these mean.
@lru_cache(maxsize=8)
def parse_document(data: bytes) -> RunDocument:
    """Read a run document; its parameters are not looked at.

    Raises
    ------
    VersionError
        If it is of another version of the protocol.
    MessageError
        If the bytes are no run document.
    """
    if len(data) > _MAX_DOCUMENT:
        raise MessageError(f"Expected a run document of at most {_MAX_DOCUMENT} bytes.")
    document: RunDocument = decode(data, RunDocument)
    if document.protocol != PROTOCOL:
        raise VersionError("The run document is written for another version of the protocol.")
    return document


@lru_cache(maxsize=8)
def open_run(data: bytes) -> Run:
    """Read a run document and make what it describes.

    Raises
    ------
    MessageError
        If the bytes are no run document (`VersionError`: of another version).
    UnacceptableRunError
        If the document contradicts itself.
    """
    document = parse_document(data)
    try:
        trust = trust_model(document.trust)
        plan = plan_from_config(document.privacy)
        domain = domain_from_config(document.body.domain)
        algorithm = algorithm_from_config(document.body.algorithm, domain, plan.budget)
    except (KMeansError, KeyError, TypeError, ValueError, OverflowError):
        raise UnacceptableRunError("The parameters of the run are not acceptable.") from None
    run = Run(document, algorithm, plan, trust)
    objection = trust.objection(algorithm, plan) or _objection(run)
    if objection is not None:
        raise UnacceptableRunError(f"The run contradicts itself. {objection}")
    return run


def _objection(run: Run) -> str | None:
    """Return which fields of a document do not fit each other, or ``None``."""
    document, trust, algorithm = run.document, run.trust, run.algorithm
    words = tuple(algorithm.words(t) + 1 for t in range(1, algorithm.n_rounds + 1))
    if document.words != words:
        return f"Expected words={words}."
    if (document.keys != NONE) != trust.is_protected:
        return "Keys are needed exactly where vectors leave their clients protected."
    if (document.roster is not None) != (document.keys == "roster"):
        return "A digest of the roster belongs to keys='roster'."
    if trust.is_protected and document.max_colluders >= document.min_clients:
        return "Expected max_colluders < min_clients."
    variance = f"1/{document.noise_shares}" if trust.shares_noise else NONE
    if document.share_variance != variance:
        return f"Expected share_variance={variance!r}."
    if document.levels and not trust.removes_noise:
        return "Noise is removed only where the server opens the sums of a committee."
    before = (document.noise_shares, *document.levels)
    if any(b <= a for a, b in zip(before, document.levels, strict=False)):
        return "Expected ascending levels."
    if max(document.levels, default=0) > MAX_SLOTS:
        return "Expected levels that a cohort can reach."
    return None


@lru_cache(maxsize=8)
def verify_plan(data: bytes) -> None:
    """Recompute the privacy plan of a run document and require that it is the announced one.

    Parameters
    ----------
    data : bytes
        Encoding of a document that `open_run` accepts.

    Raises
    ------
    UnacceptableRunError
        If the plans differ, or noise shares could not be drawn.
    """
    run = open_run(data)
    if not _plans_agree(run.plan, run.algorithm.plan()):
        raise UnacceptableRunError("The announced privacy plan is not that of the parameters.")
    if run.document.sampler != sampler_of(run.plan, run.trust.shares_noise):
        raise UnacceptableRunError("The announced sampler is not the one that draws the noise.")
    if run.trust.shares_noise:
        try:
            check_shares(run.algorithm, run.plan, run.document.noise_shares)
        except ConfigurationError:
            raise UnacceptableRunError("The noise cannot be shared among clients.") from None


def _plans_agree(announced: PrivacyPlan, own: PrivacyPlan) -> bool:
    def shape(plan: PrivacyPlan) -> tuple[Any, ...]:
        return plan.n_records, plan.n_clients, [len(releases) for releases in plan.rounds]

    return shape(announced) == shape(own) and all(
        a == replace(b, noise_multiplier=a.noise_multiplier)
        and math.isclose(a.noise_multiplier, b.noise_multiplier, rel_tol=_RELATIVE_TOLERANCE)
        for a, b in zip(announced.releases, own.releases, strict=True)
    )
