"""A party of a vertical run: its turns, in the order of docs/protocol.md, section 13.

Slot 0 computes, slots 1 to H hold the key, slots H + 1 to N - 1 only encrypt. The
server relays: each `Parcel` of a `Sent` goes into the mailboxes of its receivers, as
one `Delivery` each, and leaves with a receiver's next `Turn`. The table of section 13
has the turns, their deliveries and their parcels; `parcels.planned` lists the parcels.

Until the next turn is answered, a repeated turn has the same reply. A repeated close or
finish has it also after the session's end.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flwr.app import RecordDict

from flower_kmeans.arrays import FloatArray, WordArray
from flower_kmeans.data.sources import RecordsLike
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks, transcript
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.leftovers import forget_records
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.session import ClientSession, Memory, Pairs
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg.primitives import DIGEST_BYTES, H
from flower_kmeans.version import installed_version, stated_software
from flower_kmeans.vertical import keys as vertical_keys
from flower_kmeans.vertical.engine import require_tenseal
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.limits import objection_to_slot
from flower_kmeans.vertical.protocol.messages import Joined, Sent, Turn, VerticalStep
from flower_kmeans.vertical.protocol.parcels import (
    COLUMNS,
    DIGESTS,
    HALF,
    PUBLIC,
    RELIN,
)
from flower_kmeans.vertical.protocol.party_mail import PartyMail
from flower_kmeans.vertical.protocol.party_rows import PartyRows
from flower_kmeans.vertical.protocol.party_session import PartySession
from flower_kmeans.vertical.protocol.party_zero import PartyZero
from flower_kmeans.vertical.ring import pack, packed_bytes, unpack

_COMPUTING = 0  # slot of the computing party
_WITH_PARTS = ("keys", "join", "encrypt")
_WITH_ROUND = ("step", "open")
_require = RefuseError.unless

Take = Callable[[Turn], Sent]
Encrypt = Callable[[FloatArray, int], bytes]


@dataclass(eq=False, repr=False)
class VerticalParty:
    """The handling of one message of a vertical run by a party."""

    run: Run
    memory: Memory
    session: ClientSession
    pairs: Pairs
    policy: ClientPolicy
    identity: Identity | None  # the party's lasting key, with a roster
    load_records: Callable[[], RecordsLike]
    load_ids: Callable[[], Iterable[object]] | None
    # hands over an encoded result; returns whether `on_result` succeeded
    deliver: Callable[[bytes], bool]
    node_id: int  # of the context
    state: RecordDict  # the context's

    def __post_init__(self) -> None:
        self._doc_hash = self.run.doc_hash
        self._shape = parcels.shape_of(self.run)
        self._slot = _slot_of(self.run, self.policy, self.identity)
        checks.require_one_slot(self.session, self._slot)
        self.session.slot = self._slot
        self._own = PartySession(
            self.run, self._slot, self.memory, self.session, self.state
        )
        self._rows = PartyRows(self._own, self.policy, self.load_records, self.load_ids)
        self._zero = PartyZero(self._own, self.policy)

    # ------------------------------------------------------------------ any turn

    def take(self, request: Turn) -> Sent:
        """Do a turn, and return the reply with its parcels for the other parties."""
        turn = self._turns().get(request.step)
        has_parts = request.step in _WITH_PARTS
        has_round = request.step in _WITH_ROUND
        is_wrong_part = request.part > 1 and not has_parts
        is_wrong_round = request.t > 0 and not has_round
        if turn is None or is_wrong_part or is_wrong_round:
            raise MessageError("Expected a turn of this party's role.")
        if has_round and not 1 <= request.t <= self._shape.n_rounds:
            expected = f"Expected a round up to {self._shape.n_rounds}."
            raise RefuseError(Code.POLICY, expected)
        if bool(request.commitments) != (turn == self._share_keys):
            expected = "Expected commitments with the first turn of joint holders."
            raise MessageError(expected)

        self._take_peers(request.peers)
        # Parcels of a set-up come in any order and in any number of turns.
        is_load = turn == self._load or (request.step, request.t) == ("step", 1)
        if not is_load:
            self._mail.require(request)
        return turn(request)

    def _turns(self) -> dict[VerticalStep, Take]:
        """Return the turns of this party's role, which follows from its slot."""
        turns: dict[VerticalStep, Take]
        if self._slot == _COMPUTING:
            turns = {"load": self._load, "step": self._step, "close": self._close}
        elif not self._own.is_holder:
            turns = {"encrypt": self._encrypt, "finish": self._finish}
        elif self._shape.is_joint:
            turns = {"keys": self._share_keys, "join": self._join}
            turns |= {"open": self._open, "finish": self._finish}
        else:
            turns = {"keys": self._make_keys}
            turns |= {"open": self._open, "finish": self._finish}
        if self._shape.check_ids:
            is_sender = self._slot != _COMPUTING
            turns["ids"] = self._send_ids if is_sender else self._compare_ids
        return turns

    def _take_peers(self, rows: bytes) -> None:
        """Take the other parties' keys. They cannot change later."""
        others = [slot for slot in range(self._shape.n_parties) if slot != self._slot]
        if [peer.slot for peer in self.pairs.peers(rows)] != others:
            raise MessageError("Expected all other parties, in order of slot.")
        before = self._own.progress
        # Another node may take a party's place as long as nothing but hashes of rows
        # was given.
        has_given = bool(before.commitments or before.parcels)
        is_bound = has_given or self._own.last_answer is not None
        _require(before.peers in (b"", rows) or not is_bound, Code.CONFLICT)
        with RefuseError.of_key():
            for peer in self.pairs.peers(rows):
                self.pairs.require_claim(peer)
                self.pairs.secret(peer.slot, peer.public_key)
        if before.peers != rows:
            # Rows are compared with those of each party.
            self._own.put(peers=rows, ids=b"")

    @cached_property
    def _mail(self) -> PartyMail:
        rows = self._own.progress.peers
        peers = {peer.slot: peer for peer in self.pairs.peers(rows)}
        seals = parcels.Seals(
            self._doc_hash, self.session.secret, self._slot, self.pairs, peers
        )
        return PartyMail(self.run, self._slot, seals)

    # ------------------------------------------------------------------ 1: enrol

    def join(self) -> Joined:
        """Return the reply with which the party takes part: its session's public values."""
        packages = list[str]()
        if self._slot == _COMPUTING:
            packages.append(f"TenSEAL {installed_version('tenseal')}")
            require_tenseal()
            self._zero.require_space()
        if self._shape.check_ids:
            self._rows.require_ids()
            self._rows.require_rows_key()
        commitment = b""
        if self._own.is_joint:
            commitment = self._own.commitment()
        return Joined(
            doc_hash=self._doc_hash,
            slot=self._slot,
            static=self.pairs.static,
            public_key=self.pairs.public_key,
            claim=self.pairs.claim(self.node_id),
            commitment=commitment,
            has_ids=self.load_ids is not None,
            ledger=self.policy.state_dir is not None,
            software=stated_software(*packages),
        )

    # ------------------------------------------------------------------ 2 and 3: ids

    def _send_ids(self, request: Turn) -> Sent:
        """Return the digest of this party's row ids, before keys or columns."""
        self._own.require_order(0)
        digest = self._rows.require_same_ids()
        sent = self._mail.sent(request, lambda _: digest)
        self._own.put(ids=digest)
        return sent

    def _compare_ids(self, request: Turn) -> Sent:
        """Return the agreement of party 0 if all parties have the same row ids, else refuse."""
        self._own.require_order(0)
        digest = self._rows.require_same_ids()
        if set(self._mail.unsealed(request)) != {digest}:
            reason = (
                "The parties have other rows, another order, or another rows_key_file."
            )
            raise RefuseError(Code.DATA, reason)
        self._own.put(ids=digest)
        return Sent(doc_hash=self._doc_hash)

    # ------------------------------------------------------------------ 4: keys

    def _make_keys(self, request: Turn) -> Sent:
        """Return a sole holder's keys, and its encrypted columns in half of the bytes."""
        q = self._shape.moduli
        holder = self._own.holder
        keys = dict[int, bytes]()
        if request.part == 1:
            keys[PUBLIC] = pack(holder.public_share(), q.key)
            keys[RELIN] = pack(holder.relin_alone(), q.key)

        def encrypt(values: FloatArray, number: int) -> bytes:
            nonce, half = holder.encrypt_alone(values, number)
            return nonce + pack(half, q.data)

        return self._set_up(request, keys, encrypt)

    def _share_keys(self, request: Turn) -> Sent:
        """Keep the commitments of all holders, and return this one's first message."""
        commitments = request.commitments
        n_holders = len(self._shape.holders)
        counts = {len(commitments), len(set(commitments))}
        if counts != {n_holders}:
            raise MessageError("Expected a commitment of each holder.")
        self._rows.require_compared()
        # Another commitment in its place is from a lost session.
        is_own = commitments[self._slot - 1] == self._own.commitment()
        expected = "Expected this holder's own commitment in its place."
        _require(is_own, Code.KEY, expected)
        self._own.require_commitments(commitments)
        self._own.keep_commitments(commitments)

        message = self._own.holder.first_message()
        size = packed_bytes(self._shape.moduli.key)
        halves = {PUBLIC: message[:size], RELIN: message[size:]}
        return self._mail.sent(request, halves.__getitem__)

    # ------------------------------------------------------------------ 5: join

    def _join(self, request: Turn) -> Sent:
        """Add up all holders' shares, and return the own columns, encrypted under the sum."""
        commitments = self._own.progress.commitments
        _require(bool(commitments), Code.NEED)
        self._own.require_order(1)
        self._own.require_commitments(commitments)
        mail = self._mail.unsealed(request)
        if request.part == 1:
            keys = self._joined_keys(mail, commitments)
            public = keys[PUBLIC]
        else:
            keys = {}
            public = self._joined_public(mail)
        digest = self._own.progress.public
        encrypt = self._under(public, [digest])
        return self._set_up(request, keys, encrypt, digest)

    def _joined_keys(
        self, mail: Iterator[bytes], commitments: tuple[bytes, ...]
    ) -> dict[int, bytes]:
        """Return this holder's parcels of the joint keys, by number.

        ``mail`` has PUBLIC and RELIN of each other holder, in order of slot.
        """
        q = self._shape.moduli
        others = [each for i, each in enumerate(commitments, 1) if i != self._slot]
        # Two parcels of a holder are its first message.
        pairs_of_parcels = zip(mail, mail, strict=True)
        first_messages = (public + relin for public, relin in pairs_of_parcels)
        with RefuseError.of_key():
            joined = self._own.holder.join(others, first_messages)
        self._own.put(public=joined.digests[0])
        return {
            PUBLIC: pack(joined.public, q.key),
            RELIN: pack(joined.round2, q.key),
            HALF: pack(joined.h1, q.key),
            DIGESTS: b"".join(joined.digests),
        }

    def _joined_public(self, mail: Iterator[bytes]) -> bytes:
        """Return the joint public key, packed, from PUBLIC of the other holders."""
        q = self._shape.moduli
        shares = [self._own.holder.public_share()]
        for data in mail:
            shares.append(unpack(data, q.key))
        return pack(vertical_keys.total(shares, q.key), q.key)

    # ------------------------------------------------------------------ 6: encrypt

    def _encrypt(self, request: Turn) -> Sent:
        """Return the columns of a party without a key, encrypted under the public key."""
        self._own.require_order(1)
        public, *others = self._mail.unsealed(request)
        context = hashlib.sha256(public).digest()
        digests = [context]
        if self._shape.is_joint:
            digests = [data[:DIGEST_BYTES] for data in others]
        encrypt = self._under(public, digests)
        return self._set_up(request, {}, encrypt, context)

    def _under(self, public: bytes, digests: Sequence[bytes]) -> Encrypt:
        """Return a function that encrypts under a public key that the holders confirmed."""
        q = self._shape.moduli
        secret = self._own.secret
        with RefuseError.of_key():
            pk = vertical_keys.confirmed_key(q, self._doc_hash, public, digests)

        def encrypt(values: FloatArray, number: int) -> bytes:
            words = vertical_keys.encrypt(q, pk, values, secret, self._doc_hash, number)
            return pack(words, q.data)

        return encrypt

    def _set_up(
        self,
        request: Turn,
        keys: Mapping[int, bytes],
        encrypt: Encrypt,
        context: bytes = transcript.ZERO,
    ) -> Sent:
        """Charge the plan, and return keys and columns (turns 4 to 6).

        ``context`` is SHA-256 of the public key: columns are encrypted under one key only.
        """
        self._own.require_order(1)
        self._rows.require_compared()
        table = self._rows.columns

        def make(number: int) -> bytes:
            if number < COLUMNS:
                return keys[number]
            ciphertext = number - COLUMNS
            return encrypt(vertical_keys.values_of(table, ciphertext), ciphertext)

        sent = self._mail.sent(request, make)
        self._own.write(1, context, self.session.digest)
        return sent

    # ------------------------------------------------------------------ 7: load

    def _load(self, request: Turn) -> Sent:
        """Store parcels of turns 4 to 6, before the first round."""
        has_begun = bool(self.session.head or self._own.progress.c1)
        _require(not has_begun, Code.STALE)
        self._rows.require_compared()
        self._zero.take_parcels(request, self._mail)
        return Sent(doc_hash=self._doc_hash)

    # ------------------------------------------------------------------ 8: step

    def _step(self, request: Turn) -> Sent:
        """Evaluate a round on encrypted columns, and return c1 of all values.

        Round 1 needs the parcels of the set-up, and a later round the holders' words of
        the round before.
        """
        t = request.t
        self._own.require_order(t)
        is_new = t > self._zero.n_begun
        learned = self._zero.learned
        context = transcript.ZERO
        if t == 1 and is_new:
            self._rows.require_compared()
            self._zero.take_parcels(request, self._mail)
            self._zero.take_keys()
        elif t > 1:
            context, shares = self._shares(request)
            if is_new:
                learned = self._zero.next_learned(t - 1, shares)
                self._zero.forget_keys()

        c1 = self._zero.evaluate(t, self._rows.columns, learned.state)
        data = pack(c1[:, None], (self._shape.moduli.q0,))
        digest = hashlib.sha256(data).digest()
        sent = self._mail.sent(request, lambda _: data)
        if is_new:
            self._zero.keep(t, learned, digest)
        self._own.write(t, context, digest)
        return sent

    def _shares(self, request: Turn) -> tuple[bytes, WordArray]:
        """Return the hash of the holders' words, and the words (H, values)."""
        data = list(self._mail.unsealed(request))
        words = np.stack([np.frombuffer(each, dtype="<u8") for each in data])
        return H(b"vertical shares", *data), words.astype(np.uint64)

    # ------------------------------------------------------------------ 9: open

    def _open(self, request: Turn) -> Sent:
        """Return this holder's words of one round, for one c1 in each round."""
        t = request.t
        self._own.require_order(t + 1)
        (data,) = self._mail.unsealed(request)
        q0 = self._shape.moduli.q0
        c1 = unpack(data, (q0,), (self._shape.n_values,))[:, 0]
        words = self._own.holder.decryption_share(
            t, c1, lambda stream: self._own.noise(t, stream)
        )
        share = words.astype("<u8").tobytes()
        sent = self._mail.sent(request, lambda _: share)
        self.session.head = t
        context = hashlib.sha256(data).digest()
        self._own.write(t + 1, context, hashlib.sha256(share).digest())
        return sent

    # ------------------------------------------------------------------ 10: close

    def _close(self, request: Turn) -> Sent:
        """Return the result for all parties, from the holders' words of the last round."""
        n_rounds = self._shape.n_rounds
        self._own.require_order(n_rounds + 1)
        context, shares = self._shares(request)
        learned = self._zero.next_learned(n_rounds, shares)
        result = self._zero.result(learned)
        sent = self._mail.sent(request, lambda _: result)
        digest = hashlib.sha256(result).digest()
        self._own.write(n_rounds + 1, context, digest)
        return self._ended(result, sent)

    # ------------------------------------------------------------------ 11: finish

    def _finish(self, request: Turn) -> Sent:
        """Take the result, end the session, and return the reply."""
        n_answered = 0
        if self._own.is_holder:
            n_answered = self._shape.n_rounds
        is_too_early = self.session.head != n_answered
        if self._own.last_answer is None or is_too_early:
            raise RefuseError(Code.NEED)
        (result,) = self._mail.unsealed(request)
        return self._ended(result, Sent(doc_hash=self._doc_hash))

    def _ended(self, result: bytes, reply: Sent) -> Sent:
        """End the session if ``on_result`` took the result; return the reply, also for repeats."""
        if self.deliver(result):
            forget_records(self.state, self._doc_hash)
            self.session.end(sessions.DELIVERED)
            self.session.party = encode(reply)
            # The session is saved before files are erased, because a repeat needs them.
            self.memory.save(self._doc_hash, self.session)
            if self._slot == _COMPUTING:
                self._zero.store.erase()
        return reply


def _slot_of(run: Run, policy: ClientPolicy, identity: Identity | None) -> int:
    """Return the slot of this party: its line on the roster, or ``party`` of its policy."""
    slot = policy.party
    if identity is not None:
        slot = identity.slot
        n_parties = parcels.shape_of(run).n_parties
        is_complete = len(identity.roster) == n_parties
        expected = f"Expected a roster of {n_parties} parties."
        _require(is_complete, Code.POLICY, expected)
    if slot is None:
        expected = "Expected a policy with party, this client's slot."
        raise RefuseError(Code.POLICY, expected)
    objection = objection_to_slot(policy, run, slot)
    if objection is not None:
        raise RefuseError(Code.POLICY, objection)
    return slot
