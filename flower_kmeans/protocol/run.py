"""The run document: the public description of a run, and the objects that it describes."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.client_clipping import moves_of_a_record
from flower_kmeans.algorithms.registry import algorithm_from_config
from flower_kmeans.data.domain import domain_from_config
from flower_kmeans.errors import ConfigurationError, KMeansError, MessageError
from flower_kmeans.files import is_deep
from flower_kmeans.kept import Kept
from flower_kmeans.privacy.filter import Price, price_of
from flower_kmeans.privacy.plan import PrivacyPlan, plan_from_config
from flower_kmeans.protocol import kinds
from flower_kmeans.protocol.kinds import Body, RunKind
from flower_kmeans.protocol.noise import MAX_LEVELS, NONE, check_shares, sampler_of
from flower_kmeans.protocol.trust import TrustModel, trust_model
from flower_kmeans.protocol.wire import (
    B16,
    B32,
    MAX_DOCUMENT,
    MAX_SLOTS,
    Count,
    Struct,
    VersionError,
    decode,
    encode,
)

PROTOCOL = "flower-kmeans/3"
KEYS = ("roster", "relayed")
EPOCHS = 16
"""Number of committees that a roster beyond 64 slots offers. The server chooses one."""
MAX_ATTEMPTS = 3
MAX_ROUNDS = 4_096
# Processors may differ only in the last digits of a calibrated multiplier.
_RELATIVE_TOLERANCE = 1e-9

Config = dict[str, Any]
Text = Annotated[str, msgspec.Meta(max_length=64)]


class UnacceptableRunError(KMeansError):
    """A run document contradicts itself, or the reader's own computation from it."""


class Horizontal(Struct, Body, tag=kinds.USUAL, frozen=True, kw_only=True):
    """A run over clients that hold different records of the same columns."""

    algorithm: Config
    domain: Config


class RunDocument(Struct, tag="run", frozen=True, kw_only=True):
    """The public description of one run: docs/protocol.md, section 8, explains the fields."""

    protocol: Text
    run: B16
    trust: Text
    keys: Literal["roster", "relayed", "none"]
    roster: B32 | None = None
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=EPOCHS)] = 0
    max_colluders: Count = msgspec.field(name="colluders", default=1)
    min_clients: Count
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 3
    words: Annotated[
        tuple[Count, ...], msgspec.Meta(min_length=1, max_length=MAX_ROUNDS)
    ]
    privacy: Config
    share_variance: Text = NONE
    levels: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_LEVELS)] = ()
    sampler: Text = NONE
    body: Body

    @property
    def rounds(self) -> int:
        """Number T of rounds."""
        return len(self.words)

    @property
    def noise_shares(self) -> int:
        """Number M' of noise shares that make the planned noise: the fewest honest ones."""
        n_noisy = self.body.fewest_noisy(self.min_clients)
        return n_noisy - self.max_colluders


@dataclass(frozen=True, eq=False)
class Run:
    """A run document and the objects that it describes. `verify_plan` checks its plan."""

    document: RunDocument
    algorithm: Algorithm
    plan: PrivacyPlan
    trust: TrustModel
    # cached results that follow from the run; a changed run begins without any
    kept: Kept = field(default_factory=Kept, init=False, repr=False)

    @cached_property
    def kind(self) -> RunKind:
        """The kind of run that the document's body is for."""
        return kinds.run_kind(self.document.body.kind)

    @cached_property
    def data(self) -> bytes:
        """The document's encoding."""
        return encode(self.document)

    @cached_property
    def doc_hash(self) -> bytes:
        """SHA-256 of the document's encoding."""
        return hashlib.sha256(self.data).digest()

    @property
    def guarantee(self) -> tuple[float | None, float | None]:
        """The (epsilon, delta) of one sum of each round; ``(None, None)`` without privacy."""
        if not self.plan.is_private or self.plan.budget.delta is None:
            return None, None
        return self.plan.epsilon(), self.plan.budget.delta

    @cached_property
    def price(self) -> Price | None:
        """The price of the run in a ledger; ``None`` without privacy."""
        plan, moves = self.plan, None
        if not plan.is_private:
            return None
        if plan.budget.protects_clients:
            rounds = range(1, len(plan.rounds) + 1)
            moves = [moves_of_a_record(self.algorithm, t) for t in rounds]
        return price_of(plan.budget.unit, plan.rounds, moves)


def read_document(data: bytes, accepted: frozenset[str] | None = None) -> RunDocument:
    """Return the run document that bytes encode.

    Raises
    ------
    MessageError
        If they encode none.
    KindError
        If it is of none of the ``accepted`` kinds, which by default are all.
    """
    document: RunDocument = decode(data, RunDocument, kinds.body_reader(accepted))
    return document


def parse_document(data: bytes, accepted: frozenset[str] | None = None) -> RunDocument:
    """Return the run document that bytes encode, after checks of its size and version.

    Raises
    ------
    MessageError
        If they encode none, or it is too long or nested too deeply.
    VersionError
        If it is for another version of the protocol.
    KindError
        If it is of none of the ``accepted`` kinds, which by default are all.
    """
    if len(data) > MAX_DOCUMENT:
        raise MessageError(f"Expected a run document of at most {MAX_DOCUMENT} bytes.")
    document = read_document(data, accepted)
    if document.protocol != PROTOCOL:
        raise VersionError(
            "The run document is written for another version of the protocol."
        )
    # Types do not limit the values of these fields.
    if is_deep([document.privacy, document.body.algorithm, document.body.domain]):
        raise MessageError(
            "Expected a run document whose values are not nested so deeply."
        )
    return document


def open_run(data: bytes, accepted: frozenset[str] | None = None) -> Run:
    """Return the run of a document.

    Raises
    ------
    MessageError
        If bytes encode no document of this version.
    UnacceptableRunError
        If the document contradicts itself.
    KindError
        If it is of none of the ``accepted`` kinds, which by default are all.
    """
    document = parse_document(data, accepted)
    # A configuration can hold any value, so any of these errors is the document's fault.
    try:
        trust = trust_model(document.trust)
        plan = plan_from_config(document.privacy)
        domain = domain_from_config(document.body.domain)
        algorithm = algorithm_from_config(
            document.body.algorithm, domain, plan.budget, document.body.kind
        )
    except (KMeansError, KeyError, TypeError, ValueError, OverflowError):
        raise UnacceptableRunError(
            "The parameters of the run are not acceptable."
        ) from None
    run = Run(document, algorithm, plan, trust)
    conflicts = (text for fits, text in _requirements(run) if not fits)
    objection = trust.objection(algorithm, plan) or next(conflicts, None)
    if objection is not None:
        raise UnacceptableRunError(f"The run contradicts itself. {objection}")
    return run


def _requirements(run: Run) -> Iterator[tuple[bool, str]]:
    """Yield (holds, text) for each requirement on a document's fields."""
    document, trust, algorithm = run.document, run.trust, run.algorithm
    body, colluders = document.body, document.max_colluders
    # The usual kind has several trust models. Another kind's trust model has its name.
    named = trust.kind if body.kind == kinds.USUAL else body.kind
    is_of_trust = body.kind == trust.kind
    yield is_of_trust, f"A {named} body belongs to trust={named!r}."
    if run.kind.requirements is not None:
        yield from run.kind.requirements(run)
    words = tuple(
        algorithm.layout(t).n_words + trust.checksum_words
        for t in range(1, algorithm.n_rounds + 1)
    )
    yield document.words == words, f"Expected words={words}."
    fits = (document.keys != NONE) == trust.is_protected
    yield fits, "Keys are needed exactly where vectors leave their clients protected."
    fits = (document.roster is not None) == (document.keys == "roster")
    yield fits, "A digest of the roster belongs to keys='roster'."
    fits = not trust.is_protected or colluders < document.min_clients
    yield fits, "Expected max_colluders < min_clients."
    variance = f"1/{document.noise_shares}" if trust.shares_noise else NONE
    yield document.share_variance == variance, f"Expected share_variance={variance!r}."
    fits = not document.levels or trust.removes_noise
    yield (
        fits,
        "Noise is removed only where the server reconstructs the sums of a committee.",
    )
    steps = (document.noise_shares, *document.levels)
    yield all(a < b for a, b in pairwise(steps)), "Expected ascending levels."
    yield (
        max(steps) <= MAX_SLOTS or not document.levels,
        "Expected levels that a cohort can reach.",
    )


def verify_plan(run: Run) -> None:
    """Require that a run's parameters give the plan and the noise that it announces.

    Raises
    ------
    UnacceptableRunError
        If they do not.
    """
    own = run.algorithm.plan()
    shapes = [
        (p.n_records, p.n_clients, p.n_persons, [*map(len, p.rounds)])
        for p in (run.plan, own)
    ]
    # The plan is computed anew: one with less noise for the same epsilon must not pass.
    if shapes[0] != shapes[1] or not all(
        a == replace(b, noise_multiplier=a.noise_multiplier)
        and math.isclose(
            a.noise_multiplier, b.noise_multiplier, rel_tol=_RELATIVE_TOLERANCE
        )
        for a, b in zip(run.plan.releases, own.releases, strict=True)
    ):
        raise UnacceptableRunError(
            "The announced privacy plan is not that of the parameters."
        )
    if run.document.sampler != sampler_of(run.plan, run.trust.shares_noise):
        raise UnacceptableRunError(
            "The announced sampler is not the one that draws the noise."
        )
    if run.trust.shares_noise:
        try:
            check_shares(run.algorithm, run.plan, run.document.noise_shares)
        except ConfigurationError:
            raise UnacceptableRunError(
                "The noise cannot be shared among clients."
            ) from None
