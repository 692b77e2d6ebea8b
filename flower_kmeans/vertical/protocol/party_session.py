"""A party's memory of a vertical run: its progress, its answers, and its secrets.

The progress is part of the client session. A joint holder also keeps a `Witness` in the
state of Flower's context (docs/protocol.md, section 13, "Keys, errors and masks").
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import msgspec
import numpy as np
from flwr.app import ConfigRecord, RecordDict

from flower_kmeans.algorithms.layout import COUNTS, SUMS
from flower_kmeans.arrays import IntArray
from flower_kmeans.privacy.filter import Price, no_charges
from flower_kmeans.privacy.noise import draw_share
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.protocol import checks, transcript
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.leftovers import record_name
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.noise import releases_of
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.session import ClientSession, LastAnswer, Memory
from flower_kmeans.protocol.wire import Struct, decode, encode
from flower_kmeans.vertical import keys as vertical_keys
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.body import body_of

_FRESH_BYTES = 32
_WITNESS = "witness"  # name of its record
_require = RefuseError.unless

Digests = dict[str, bytes]


class Progress(Struct, frozen=True, kw_only=True):
    """The memory of a party in its client session, beside that of every client."""

    peers: bytes = b""  # rows of the other parties
    commitments: tuple[bytes, ...] = ()
    public: bytes = b""  # a joint holder's: SHA-256 of the public key that it added up
    files: Digests = msgspec.field(default_factory=dict)  # party 0's files
    # party 0's: digests of the plaintexts that it has
    parcels: Digests = msgspec.field(default_factory=dict)
    # party 0's: SHA-256 of the c1 that it sent in the current round; empty before it
    c1: bytes = b""
    ids: bytes = b""  # digest of the row ids that were compared; empty before that
    fresh: bytes = b""  # a joint holder's r, from its answer to `join` on


class Witness(Struct, frozen=True, kw_only=True):
    """A joint holder's record in the context's state, which no backup restores."""

    fresh: bytes  # r: its secrets follow from it
    commitments: tuple[bytes, ...] = ()  # list for which it revealed its first message


class PartySession:
    """A party's session of one run.

    Parameters
    ----------
    run : Run
        The run.
    slot : int
        Slot of the party.
    memory : Memory
        Memory of sessions and answers, which charges the ledger.
    session : ClientSession
        The client's session, which is changed in place.
    context : RecordDict
        The state of Flower's context.
    """

    def __init__(
        self,
        run: Run,
        slot: int,
        memory: Memory,
        session: ClientSession,
        context: RecordDict,
    ) -> None:
        self.run = run
        self.slot = slot
        self.memory = memory
        self.session = session
        self.doc_hash = run.doc_hash
        self.shape = parcels.shape_of(run)
        self.body = body_of(run)
        self.algorithm = cast(VerticalAlgorithm, run.algorithm)
        self.progress = Progress()
        if session.party:
            self.progress = decode(session.party, Progress)
        self._context = context

    @property
    def is_holder(self) -> bool:
        """Whether this party holds the key, or a part of it."""
        return self.slot in self.shape.holders

    @property
    def is_joint(self) -> bool:
        """Whether this party holds a part of a joint key."""
        return self.shape.is_joint and self.is_holder

    def put(self, **changes: Any) -> None:
        """Change fields of the party's progress in its session."""
        self.progress = msgspec.structs.replace(self.progress, **changes)
        self.session.party = encode(self.progress)

    # ------------------------------------------------------------------ answers

    @property
    def last_answer(self) -> LastAnswer | None:
        """The last recorded answer of this run."""
        return self.memory.last_answer(self.doc_hash)

    def require_order(self, number: int) -> None:
        """Require the number of the last answer, or the next one.

        The set-up's answer has number 1, and the answer of round t has number t + 1.
        """
        last = self.last_answer
        next_number = 1
        if last is not None:
            next_number = last.t + 1
        _require(number <= next_number, Code.NEED)
        checks.require_not_stale(last, number)

    def write(self, number: int, context: bytes, digest: bytes) -> None:
        """Write an answer with the session. The first one charges the whole plan.

        No request has a second answer, and no answer has two requests (``context``).
        """
        answer = LastAnswer(number, 1, context, digest)
        checks.require_one_answer(self.last_answer, answer)
        before = self.progress
        if self.is_joint:
            self.put(fresh=self.fresh)
        try:
            self.memory.answer(self.doc_hash, answer, self._price(), self.session)
        except BaseException:
            # The ledger has r only together with an answer.
            self.put(fresh=before.fresh)
            raise

    def _price(self) -> Price | None:
        """Return the run's price, which the set-up charges as a whole.

        No party can be missing, so all rounds are answered or the run fails.
        """
        price = self.run.price
        if price is None:
            return None
        free_rounds = [no_charges(price.unit)] * self.shape.n_rounds
        return Price(price.unit, (price.whole, *free_rounds))

    # ------------------------------------------------------------------ secrets

    @cached_property
    def secret(self) -> bytes:
        """The secret from which keys, masks and noise follow (z or z')."""
        own = self.session.secret
        if not self.is_joint:
            return own
        return vertical_keys.set_up_secret(own, self.fresh, self.doc_hash)

    @cached_property
    def holder(self) -> KeyHolder:
        """The party's part of the key."""
        return KeyHolder(self.shape.moduli, self.secret, self.doc_hash)

    @property
    def fresh(self) -> bytes:
        """A joint holder's r: from the ledger after `join`, before from the context."""
        own = self.progress.fresh
        if not own and self.witness is not None:
            own = self.witness.fresh
        lost = "The party restarted and lost the random bytes of its keys."
        _require(bool(own), Code.KEY, lost)
        return own

    @property
    def witness(self) -> Witness | None:
        """A joint holder's record in the context's state."""
        record = self._context.get(record_name(self.doc_hash, _WITNESS))
        if not isinstance(record, ConfigRecord):
            return None
        data = record.get("witness")
        if not isinstance(data, bytes):
            return None
        found: Witness = decode(data, Witness)
        return found

    def _keep_witness(self, witness: Witness) -> None:
        record = ConfigRecord({"witness": encode(witness)})
        self._context[record_name(self.doc_hash, _WITNESS)] = record

    def commitment(self) -> bytes:
        """Return a joint holder's commitment to its first message.

        If r was lost, the message is a new one. After this holder revealed its first
        message, it never makes another, because the others' messages may depend on it.
        """
        session = self.session
        is_known = bool(self.progress.fresh or self.witness)
        if not is_known and not self.progress.commitments:
            self._keep_witness(Witness(fresh=token(_FRESH_BYTES)))
        if not is_known or session.commitment == transcript.ZERO:
            session.commitment = self.holder.commitment()
        return session.commitment

    def require_commitments(self, commitments: tuple[bytes, ...]) -> None:
        """Require the list for which this holder revealed its first message."""
        seen = {self.progress.commitments}
        witness = self.witness
        if witness is not None:
            seen.add(witness.commitments)
        _require(seen <= {(), commitments}, Code.CONFLICT)

    def keep_commitments(self, commitments: tuple[bytes, ...]) -> None:
        """Keep the list to which this holder reveals its first message."""
        witness = self.witness
        if witness is not None:
            bound = msgspec.structs.replace(witness, commitments=commitments)
            self._keep_witness(bound)
        self.put(commitments=commitments)

    # ------------------------------------------------------------------ noise

    def noise(self, t: int, stream: Stream) -> IntArray:
        """Return this party's noise share of a round, (values,), in steps of the unit.

        Values are in the order of `SealEngine.cluster`: a cluster's count, then its sums.
        """
        algorithm = self.algorithm
        unit = 2.0**-algorithm.fraction_bits * self.shape.moduli.unit
        n_shares = self.run.document.noise_shares
        noise = np.zeros(self.shape.n_values, dtype=np.int64)
        for release, words, sensitivities in releases_of(algorithm, self.run.plan, t):
            share = draw_share(release, sensitivities * unit, n_shares, stream)
            noise[words] = share
        blocks: Mapping[str, IntArray] = algorithm.layout(t).unflatten(noise).blocks
        return np.column_stack([blocks[COUNTS], blocks[SUMS]]).reshape(-1)
