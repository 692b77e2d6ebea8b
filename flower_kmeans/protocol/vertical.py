"""A party of a vertical run: its turns, what it seals for the others, and what it refuses.

Slot 0 computes, slots 1 to H hold the key, slots H + 1 to N - 1 only encrypt. The
server relays: each `Parcel` of a `Sent` goes into the mailboxes of its receivers, as
one `Delivery` each, and leaves with a receiver's next `Turn`. Which turns there are,
what they bring, and what each parcel holds is in docs/protocol.md, section 13,
"Messages"; `parcels.planned` lists the parcels of a run.

A turn can be requested again, with the same bytes in return, until the next one is
answered; a close or finish also after the session's end.
"""

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import msgspec
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_kmeans import errors
from flower_kmeans.algorithms import plausibility
from flower_kmeans.algorithms.base import COUNTS, SUMS, State, Statistic
from flower_kmeans.algorithms.vertical import VerticalAlgorithm
from flower_kmeans.data.findings import moved_text
from flower_kmeans.data.sources import RecordsLike, as_source
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.filter import Charge, Price
from flower_kmeans.privacy.noise import draw_share
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.protocol import checks, pairs, parcels, transcript
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.leftovers import forget_witness, witness_name, work_dir
from flower_kmeans.protocol.messages import Code, Delivery, Joined, Sent, Step, Turn
from flower_kmeans.protocol.noise import releases_of
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.parcels import (
    COLUMNS,
    DIGESTS,
    HALF,
    IDS,
    PUBLIC,
    RELIN,
    Planned,
)
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import Run, Vertical
from flower_kmeans.protocol.session import ClientSession, LastAnswer, Memory
from flower_kmeans.protocol.wire import (
    Struct,
    decode,
    decode_arrays,
    encode,
    encode_arrays,
)
from flower_kmeans.secagg.hashing import DIGEST_BYTES, H
from flower_kmeans.version import installed_version, stated_software
from flower_kmeans.vertical import keys as vertical_keys
from flower_kmeans.vertical.align import ids_digest
from flower_kmeans.vertical.costs import disk_bytes
from flower_kmeans.vertical.engine import require_tenseal
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.parties import ComputingParty
from flower_kmeans.vertical.ring import (
    SLOTS,
    Floats,
    Integers,
    Words,
    pack,
    packed_bytes,
    unpack,
)
from flower_kmeans.vertical.signs import scaled_columns, scaled_squares
from flower_kmeans.vertical.store import Store

_FINDINGS = "findings"  # beside the arrays of a session's state
_SET_UP = ("keys", "join", "encrypt")
_FRESH_BYTES = 32
_require = RefuseError.unless
log = logging.getLogger("flower_kmeans.client")
log_of_data = logging.getLogger("flower_kmeans.data")

Digests = dict[str, bytes]


class Progress(Struct, frozen=True, kw_only=True):
    """What a party keeps in its client session beside what every client keeps."""

    peers: bytes = b""  # their rows
    commitments: tuple[bytes, ...] = ()
    public: bytes = b""  # a joint holder's: SHA-256 of the public key that it added up
    files: Digests = msgspec.field(default_factory=dict)  # party 0's
    # party 0's: plaintexts that it has
    parcels: Digests = msgspec.field(default_factory=dict)
    # party 0's: SHA-256 of what it sent in the round that is open; empty before it
    c1: bytes = b""
    ids: bytes = b""  # digest of the row ids that were compared; empty before that
    fresh: bytes = b""  # a joint holder's r, from its answer to `join` on


class Witness(Struct, frozen=True, kw_only=True):
    """What a joint holder keeps in the context's state, which no backup of a ledger brings back."""

    fresh: bytes  # r: its secrets follow from it
    commitments: tuple[bytes, ...] = ()  # for which it revealed its first message


@dataclass(eq=False, repr=False)
class VerticalParty:
    """A party and one message of a vertical run."""

    run: Run
    memory: Memory
    session: ClientSession
    pairs: Pairs
    policy: ClientPolicy
    identity: Identity | None  # for keys of a roster
    load_records: Callable[[], RecordsLike]
    load_ids: Callable[[], Iterable[object]] | None
    # takes an encoded result; returns whether its keeper has it
    deliver: Callable[[bytes], bool]
    node_id: int  # of the context
    state: RecordDict  # the context's

    def __post_init__(self) -> None:
        self._doc_hash, self._shape = self.run.doc_hash, parcels.shape_of(self.run)
        self._body = cast(Vertical, self.run.document.body)
        self._algorithm = cast(VerticalAlgorithm, self.run.algorithm)
        self._progress = Progress()
        if self.session.vertical:
            self._progress = decode(self.session.vertical, Progress)
        self._slot = self.session.slot = self._own_slot()

    def _own_slot(self) -> int:
        slot, n_parties = self.policy.party, self._shape.n_parties
        if self.identity is not None:
            slot = self.identity.slot
            is_complete = len(self.identity.roster) == n_parties
            _require(
                is_complete, Code.POLICY, f"Expected a roster of {n_parties} parties."
            )
        if slot is None:
            raise RefuseError(
                Code.POLICY, "Expected a policy with party, this client's slot."
            )
        objection = self.policy.objection_to_slot(self.run, slot)
        if objection is not None:
            raise RefuseError(Code.POLICY, objection)
        checks.require_one_slot(self.session, slot)
        return slot

    def _put(self, **changes: Any) -> None:
        """Keep what changed of the party's progress."""
        self._progress = msgspec.structs.replace(self._progress, **changes)
        self.session.vertical = encode(self._progress)

    # ------------------------------------------------------------------ requests

    def join(self) -> Joined:
        """Take part: return the session's public values."""
        shape, packages = self._shape, list[str]()
        if self._slot == 0:
            packages.append(f"TenSEAL {installed_version('tenseal')}")
            require_tenseal()
            # as they come, until round 2
            keys = sum(plan.n_bytes for plan in self._key_plans)
            n_records, d = (
                self._algorithm.n_records or 0,
                self._algorithm.domain.n_features,
            )
            n_foreign = sum(shape.widths[1:])
            files = disk_bytes(shape.moduli, n_records, n_foreign, d, self._n_workers)
            self._store.require_space(files + keys)
        if shape.check_ids:
            self._require_ids()
            with RefuseError.of_user():
                self.policy.read_rows_key()
        return Joined(
            doc_hash=self._doc_hash,
            slot=self._slot,
            static=self.pairs.static,
            public_key=self.pairs.public_key,
            claim=self.pairs.claim(self.node_id),
            commitment=self._commitment() if self._is_joint else b"",
            has_ids=self.load_ids is not None,
            ledger=self.policy.state_dir is not None,
            software=stated_software(*packages),
        )

    def take(self, request: Turn) -> Sent:
        """Do a step and return what it gives for the other parties."""
        shape = self._shape
        steps: dict[Step, Callable[[Turn], Sent]] = {"finish": self._finish}
        if self._slot == 0:
            steps = {"load": self._load, "step": self._step, "close": self._close}
        elif self._slot not in shape.holders:
            steps |= {"encrypt": self._encrypt}
        elif shape.is_joint:
            steps |= {"keys": self._share_keys, "join": self._join, "open": self._open}
        else:
            steps |= {"keys": self._make_keys, "open": self._open}
        if shape.check_ids:
            steps["ids"] = self._send_ids if self._slot else self._compare_ids
        step = steps.get(request.step)
        is_set_up, has_round = request.step in _SET_UP, request.step in ("step", "open")
        if (
            step is None
            or (request.part > 1 and not is_set_up)
            or (request.t and not has_round)
        ):
            raise MessageError("Expected a turn of this party's role.")
        if has_round and not 1 <= request.t <= shape.n_rounds:
            raise RefuseError(Code.POLICY, f"Expected a round up to {shape.n_rounds}.")
        if bool(request.commitments) != (step == self._share_keys):
            raise MessageError(
                "Expected commitments with the first turn of joint holders."
            )
        self._take_peers(request.peers)
        if step != self._load and (request.step, request.t) != ("step", 1):
            self._require_mail(request)
        return step(request)

    def _take_peers(self, rows: bytes) -> None:
        """Take the other parties' keys; no others later."""
        others = [slot for slot in range(self._shape.n_parties) if slot != self._slot]
        if [peer.slot for peer in self.pairs.peers(rows)] != others:
            raise MessageError("Expected all other parties, in order of slot.")
        before, last = self._progress, self.memory.last_answer(self._doc_hash)
        # Another node may take a party's place as long as nothing but hashes of rows
        # was given.
        is_bound = bool(before.commitments or before.parcels) or last is not None
        _require(before.peers in (b"", rows) or not is_bound, Code.CONFLICT)
        with RefuseError.of_key():
            for peer in self.pairs.peers(rows):
                self.pairs.require_claim(peer)
                self.pairs.secret(peer.slot, peer.public_key)
        if before.peers != rows:
            self._put(peers=rows, ids=b"")  # rows are compared with those of each party

    # ------------------------------------------------------------------ mail

    @cached_property
    def _seals(self) -> parcels.Seals:
        peers = {peer.slot: peer for peer in self.pairs.peers(self._progress.peers)}
        return parcels.Seals(
            self._doc_hash, self.session.secret, self._slot, self.pairs, peers
        )

    def _due(self, request: Turn) -> tuple[Planned, ...]:
        return parcels.due(self.run, self._slot, request.step, request.t, request.part)

    def _require_mail(self, request: Turn) -> None:
        """Require all that others sealed for this turn, and nothing else."""
        wanted = [each[:4] for each in self._due(request)]
        found = [
            (each.sender, each.step, each.t, each.number) for each in request.deliveries
        ]
        if found != wanted:
            if set(found) < set(wanted):
                raise RefuseError(Code.NEED, "A turn lacks a parcel of another party.")
            raise MessageError("Expected the parcels of this turn, in order.")

    def _opened_mail(self, request: Turn) -> Iterator[tuple[Planned, bytes]]:
        """Yield what others sealed for this turn, one parcel at a time: they are large."""
        for plan, delivery in zip(self._due(request), request.deliveries, strict=True):
            yield plan, self._opened(plan, delivery)

    def _opened(self, plan: Planned, delivery: Delivery) -> bytes:
        with RefuseError.of_key():
            return self._seals.open(plan, delivery)

    def _sent(self, request: Turn, make: Callable[[int], bytes]) -> Sent:
        """Return one part of an answer; ``make`` returns the data of a parcel."""
        parts = parcels.in_parts(
            parcels.planned(self.run, self._slot, request.step, request.t)
        )
        if request.part > len(parts):
            raise MessageError(f"Expected a part up to {len(parts)}.")
        sealed = (
            self._seals.seal(each, make(each.number))
            for each in parts[request.part - 1]
        )
        return Sent(doc_hash=self._doc_hash, parts=len(parts), parcels=tuple(sealed))

    # ------------------------------------------------------------------ ledger

    def _require_order(self, number: int) -> None:
        """Require the answer after the last one, or that one again. The set-up's is number 1."""
        last = self.memory.last_answer(self._doc_hash)
        _require(number <= (1 if last is None else last.t + 1), Code.NEED)
        checks.require_not_stale(last, number)

    def _write(self, number: int, context: bytes, digest: bytes) -> None:
        """Write an answer with the session. The first one charges the whole plan.

        No request has a second answer, and no answer has two requests (``context``).
        """
        answer, before = LastAnswer(number, 1, context, digest), self._progress
        checks.require_one_answer(self.memory.last_answer(self._doc_hash), answer)
        price = self.run.price
        if price is not None:
            rest = [(Charge(), Charge())] * self._shape.n_rounds
            # With the set-up, not round by round: nobody can be missing, so a run is
            # answered whole or fails.
            price = Price(price.unit, (price.whole, *rest))
        if self._is_joint:
            self._put(fresh=self._fresh)
        try:
            self.memory.answer(self._doc_hash, answer, price, self.session)
        except BaseException:
            # it is in the ledger with an answer, or not at all
            self._put(fresh=before.fresh)
            raise

    # ------------------------------------------------------------------ records

    @property
    def _half_widths(self) -> Floats:
        """Half widths of the domain on its grid, (d,), in scaled units."""
        bits = self._algorithm.fraction_bits
        return np.ldexp(
            self._algorithm.domain.grid_half_widths(bits).astype(np.float64), -bits
        )

    @cached_property
    def _columns(self) -> Floats:
        """Columns of this party on the scaled grid, (n, width), clipped; squares follow.

        Over their half widths, unless they stay here (party 0).
        """
        domain, bits = self._algorithm.domain, self._algorithm.fraction_bits
        is_first, own = not self.session.digest, self._body.places(self._slot)
        table = self._table()
        n_missing = int(table.size - np.isfinite(table).sum())
        if n_missing and is_first:
            text = "%d values are missing or not finite; each is the middle of its column's range."
            log.warning(text, n_missing)
        outside = np.zeros(domain.n_features, dtype=np.int64)
        columns, middle = (
            np.empty(table.shape),
            domain.from_unit(np.zeros((1, domain.n_features))),
        )
        # all columns of all records may be too many
        for start in range(0, len(table), SLOTS):
            rows = table[start : start + SLOTS]
            whole = np.repeat(middle, len(rows), axis=0)
            whole[:, own] = np.where(np.isfinite(rows), rows, middle[:, own])
            outside += domain.outside(whole)
            grid = domain.quantise(domain.to_unit(whole), bits)
            columns[start : start + SLOTS] = np.ldexp(grid[:, own], -bits)
        names = domain.columns or [f"column {i}" for i in range(domain.n_features)]
        moved = moved_text(len(table), list(zip(names, outside.tolist(), strict=True)))
        if moved and is_first:
            log_of_data.warning("Run %s: %s.", self._doc_hash.hex()[:8], moved)
        half_widths = self._half_widths[own]
        scaled = scaled_columns(columns, half_widths) if self._slot else columns
        if not self._shape.moduli.radius:
            return scaled
        return np.column_stack([scaled, scaled_squares(columns, half_widths)])

    def _table(self) -> Floats:
        """Return the party's records, (n, width), which are the same in the whole run."""
        domain, own = self._algorithm.domain, self._body.places(self._slot)
        names = None if domain.columns is None else domain.columns[own]
        width = self._body.widths[self._slot]
        with RefuseError.of_user():
            # A copy: another process may write to the loader's memory.
            source = as_source(self.load_records(), width, names)
            if source.is_live:
                raise errors.DataError(
                    "Expected the same records in the same order in the whole vertical run. Got a "
                    "query of a database: write its result to a file first."
                )
            table = source.loaded(keep_null=True)
        if len(table) != self._algorithm.n_records:
            raise RefuseError(
                Code.DATA, f"Expected n_records={self._algorithm.n_records} records."
            )
        digest = transcript.data_digest(table)
        if self.session.digest not in (b"", digest):
            raise RefuseError(Code.DATA, "Expected the same records in the whole run.")
        self.session.digest = digest
        return table

    def _require_ids(self) -> Callable[[], Iterable[object]]:
        if self.load_ids is None:
            raise RefuseError(
                Code.DATA, "Expected load_ids, for the run compares rows. Got none."
            )
        return self.load_ids

    def _own_ids(self) -> bytes:
        load = self._require_ids()
        with RefuseError.of_user():
            key, ids = self.policy.read_rows_key(), list(load())
        if len(ids) != self._algorithm.n_records:
            raise RefuseError(
                Code.DATA, f"Expected n_records={self._algorithm.n_records} ids."
            )
        return ids_digest(ids, key)

    def _require_compared(self) -> None:
        """Require that rows were compared if the run does so, and are the same since."""
        if self._shape.check_ids:
            _require(bool(self._progress.ids), Code.NEED)
            self._require_same_ids()

    def _require_same_ids(self) -> bytes:
        """Return the digest of this party's row ids, which are the same in the whole run."""
        own = self._own_ids()
        if self._progress.ids not in (b"", own):
            raise RefuseError(Code.DATA, "Expected the same row ids in the whole run.")
        return own

    def _send_ids(self, request: Turn) -> Sent:
        """Return the digest of this party's row ids, before keys or columns."""
        self._require_order(0)
        own = self._require_same_ids()
        sent = self._sent(request, lambda _: own)
        self._put(ids=own)
        return sent

    def _compare_ids(self, request: Turn) -> Sent:
        """Agree if all parties have this one's row ids. Nobody has answered from records yet."""
        self._require_order(0)
        own = self._require_same_ids()
        if {data for _, data in self._opened_mail(request)} != {own}:
            raise RefuseError(
                Code.DATA,
                "The parties have other rows, another order, or another rows_key_file.",
            )
        self._put(ids=own)
        return Sent(doc_hash=self._doc_hash)

    # ------------------------------------------------------------------ noise

    def _noise(self, t: int, stream: Stream) -> Integers:
        """Return this party's noise share of a round, (values,), in units of opened integers."""
        run, algorithm = self.run, self._algorithm
        unit = 2.0**-algorithm.fraction_bits * self._shape.moduli.unit
        noise = np.zeros(self._shape.n_values, dtype=np.int64)
        for release, words, sensitivities in releases_of(algorithm, run.plan, t):
            noise[words] = draw_share(
                release, sensitivities * unit, run.document.noise_shares, stream
            )
        blocks = algorithm.unflatten(noise, t).blocks
        # In the order in which `Engine.cluster` gives values: a cluster's count, then
        # its sums.
        return np.column_stack([blocks[COUNTS], blocks[SUMS]]).reshape(-1)

    # ------------------------------------------------------------------ set-up

    @property
    def _is_joint(self) -> bool:
        """Whether this party holds a part of a joint key."""
        return self._shape.is_joint and self._slot in self._shape.holders

    @cached_property
    def _secret(self) -> bytes:
        """The secret from which keys, masks and noise follow."""
        own = self.session.secret
        if not self._is_joint:
            return own
        return vertical_keys.set_up_secret(own, self._fresh, self._doc_hash)

    @property
    def _fresh(self) -> bytes:
        """A joint holder's r: of the ledger once `join` was answered, else of the context."""
        own = self._progress.fresh or (self._witness.fresh if self._witness else b"")
        _require(
            bool(own),
            Code.KEY,
            "The party lost what its keys follow from: it restarted.",
        )
        return own

    @property
    def _witness(self) -> Witness | None:
        record = self.state.get(witness_name(self._doc_hash))
        data = record.get("witness") if isinstance(record, ConfigRecord) else None
        return decode(data, Witness) if isinstance(data, bytes) else None

    def _keep_witness(self, witness: Witness) -> None:
        record = ConfigRecord({"witness": encode(witness)})
        self.state[witness_name(self._doc_hash)] = record

    def _commitment(self) -> bytes:
        """Return a joint holder's commitment to its first message; of a new one if r is lost.

        Not after it revealed that message: the others' may depend on it.
        """
        session, is_known = self.session, bool(self._progress.fresh or self._witness)
        if not is_known and not self._progress.commitments:
            self._keep_witness(Witness(fresh=token(_FRESH_BYTES)))
        if not is_known or session.commitment == transcript.ZERO:
            session.commitment = self._holder.commitment()
        return session.commitment

    def _require_commitments(self, commitments: tuple[bytes, ...]) -> None:
        """Require the list of commitments for which the first message was revealed, if it was."""
        witness = self._witness
        seen = {self._progress.commitments, witness.commitments if witness else ()}
        _require(seen <= {(), commitments}, Code.CONFLICT)

    @cached_property
    def _holder(self) -> KeyHolder:
        return KeyHolder(self._shape.moduli, self._secret, self._doc_hash)

    def _make_keys(self, request: Turn) -> Sent:
        """Make the keys of a sole holder, and encrypt its columns in half of the bytes."""
        q, holder, keys = self._shape.moduli, self._holder, dict[int, bytes]()
        if request.part == 1:
            public, relin = holder.public_share(), holder.relin_alone()
            keys = {PUBLIC: pack(public, q.key), RELIN: pack(relin, q.key)}

        def encrypt(values: Floats, number: int) -> bytes:
            nonce, half = holder.encrypt_alone(values, number)
            return nonce + pack(half, q.data)

        return self._set_up(request, keys, encrypt)

    def _share_keys(self, request: Turn) -> Sent:
        """Keep what all holders committed to, and reveal this one's share of a joint key."""
        commitments, holders = request.commitments, self._shape.holders
        counts = {len(commitments), len(set(commitments))}
        if counts != {len(holders)}:
            raise MessageError("Expected a commitment of each holder.")
        self._require_compared()
        # Another one of its own is of a session that it lost.
        is_own = commitments[self._slot - 1] == self._commitment()
        _require(
            is_own, Code.KEY, "Expected this holder's own commitment in its place."
        )
        self._require_commitments(commitments)
        if self._witness:
            self._keep_witness(
                msgspec.structs.replace(self._witness, commitments=commitments)
            )
        self._put(commitments=commitments)
        message = self._holder.first_message()
        size = packed_bytes(self._shape.moduli.key)
        return self._sent(
            request, {PUBLIC: message[:size], RELIN: message[size:]}.__getitem__
        )

    def _join(self, request: Turn) -> Sent:
        """Add up all holders' shares, answer the sum, and encrypt own columns under it."""
        q, commitments = self._shape.moduli, self._progress.commitments
        _require(bool(commitments), Code.NEED)
        self._require_order(1)
        self._require_commitments(commitments)
        mail, keys = self._opened_mail(request), dict[int, bytes]()
        if request.part == 1:
            others = [c for i, c in enumerate(commitments, 1) if i != self._slot]
            data = (each for _, each in mail)
            # the two parcels of a holder are its first message
            first_messages = (a + b for a, b in zip(data, data, strict=True))
            with RefuseError.of_key():
                joined = self._holder.join(others, first_messages)
            self._put(public=joined.digests[0])
            halves = {PUBLIC: joined.public, RELIN: joined.round2, HALF: joined.h1}
            keys = {number: pack(half, q.key) for number, half in halves.items()}
            public = keys[PUBLIC]
            keys[DIGESTS] = b"".join(joined.digests)
        else:
            own = self._holder.public_share()
            shares = [unpack(data, q.key) for _, data in mail]
            public = pack(vertical_keys.total([own, *shares], q.key), q.key)
        encrypt = self._under(public, [self._progress.public])
        return self._set_up(request, keys, encrypt, self._progress.public)

    def _encrypt(self, request: Turn) -> Sent:
        """Encrypt the columns of a party without a key, under the key that all holders confirm."""
        self._require_order(1)
        (_, public), *others = self._opened_mail(request)
        digests = [data[:DIGEST_BYTES] for _, data in others]
        context = hashlib.sha256(public).digest()
        if not self._shape.is_joint:
            digests = [context]
        return self._set_up(request, {}, self._under(public, digests), context)

    def _under(
        self, public: bytes, digests: Sequence[bytes]
    ) -> Callable[[Floats, int], bytes]:
        """Return a function that encrypts under a public key, which holders confirm."""
        q, doc_hash, secret = self._shape.moduli, self._doc_hash, self._secret
        with RefuseError.of_key():
            pk = vertical_keys.confirmed_key(q, doc_hash, public, digests)

        def encrypt(values: Floats, number: int) -> bytes:
            words = vertical_keys.encrypt(q, pk, values, secret, doc_hash, number)
            return pack(words, q.data)

        return encrypt

    def _set_up(
        self,
        request: Turn,
        keys: Mapping[int, bytes],
        encrypt: Callable[[Floats, int], bytes],
        context: bytes = transcript.ZERO,
    ) -> Sent:
        """Return keys and columns; charge the plan.

        ``context`` is SHA-256 of the public key: columns are encrypted under one.
        """
        self._require_order(1)
        self._require_compared()
        table = self._columns

        def make(number: int) -> bytes:
            if number < COLUMNS:
                return keys[number]
            number -= COLUMNS
            return encrypt(vertical_keys.values_of(table, number), number)

        sent = self._sent(request, make)
        self._write(1, context, self.session.digest)
        return sent

    # ---------------------------------------------------------------- a holder's rounds

    def _open(self, request: Turn) -> Sent:
        """Return this holder's words of one round: one c1 for each round, no more rounds."""
        t, shape = request.t, self._shape
        self._require_order(t + 1)
        ((_, data),) = self._opened_mail(request)
        digest = hashlib.sha256(data).digest()
        c1 = unpack(data, (shape.moduli.q0,), (shape.n_values,))[:, 0]
        words = self._holder.decryption_share(
            t, c1, lambda stream: self._noise(t, stream)
        )
        share = words.astype("<u8").tobytes()
        sent = self._sent(request, lambda _: share)
        self.session.head = t
        self._write(t + 1, digest, hashlib.sha256(share).digest())
        return sent

    def _finish(self, request: Turn) -> Sent:
        """Take the result, and end the session."""
        last = self.memory.last_answer(self._doc_hash)
        is_holder = self._slot in self._shape.holders
        if last is None or self.session.head != (
            self._shape.n_rounds if is_holder else 0
        ):
            raise RefuseError(Code.NEED)
        ((_, data),) = self._opened_mail(request)
        return self._ended(data, Sent(doc_hash=self._doc_hash))

    def _ended(self, result: bytes, reply: Sent) -> Sent:
        """End the session if the result has a keeper; a repeated request has the same reply."""
        if self.deliver(result):
            pairs.forget()
            forget_witness(self.state, self._doc_hash)
            self.session.end(sessions.DELIVERED)
            self.session.vertical = encode(reply)
            # before files that a repeat needs
            self.memory.save(self._doc_hash, self.session)
            if self._slot == 0:
                self._store.erase()
        return reply

    # ------------------------------------------------------------------ party 0

    @property
    def _n_workers(self) -> int:
        return self.policy.workers or max((os.cpu_count() or 1) - 1, 1)

    @cached_property
    def _store(self) -> Store:
        directory = work_dir(self.policy)
        if directory is None:
            raise RefuseError(
                Code.POLICY, "Expected a policy with work_dir or state_dir."
            )
        if self.policy.work_dir is None:
            # Version 0.2 made it with a wider mode, in the closed state_dir.
            with suppress(FileNotFoundError):
                directory.chmod(0o700)
        return Store(directory / self._doc_hash.hex(), self._progress.files)

    @cached_property
    def _computing(self) -> ComputingParty:
        algorithm = self._algorithm
        radius = algorithm.reach * 2.0**-algorithm.fraction_bits
        return ComputingParty(
            self._shape.moduli,
            self._store,
            self.session.secret,
            self._doc_hash,
            self._half_widths,
            self._body.widths,
            radius if self._shape.moduli.radius else None,
            self._n_workers,
        )

    def _load(self, request: Turn) -> Sent:
        _require(not self.session.head and not self._progress.c1, Code.STALE)
        self._require_compared()
        self._take_parcels(request)
        return Sent(doc_hash=self._doc_hash)

    def _take_parcels(self, request: Turn) -> None:
        """Keep what others sealed: columns for SEAL, keys as they are until there are all."""
        wanted = {each[:4]: each for each in parcels.due(self.run, 0, "load")}
        known = dict(self._progress.parcels)
        for each in request.deliveries:
            plan = wanted.get((each.sender, each.step, each.t, each.number))
            if plan is None:
                raise MessageError("Expected parcels of a set-up.")
            data, name = self._opened(plan, each), _name(plan)
            digest = hashlib.sha256(data).digest()
            _require(known.setdefault(name, digest) == digest, Code.CONFLICT)
            if plan.number >= COLUMNS:
                self._keep_column(plan, data)
            else:
                self._store.write(name, [data])
        self._put(parcels=known, files=self._store.digests)

    def _keep_column(self, plan: Planned, data: bytes) -> None:
        q, slot = self._shape.moduli, plan.sender
        if self._shape.set_up(slot) == "keys":
            nonce, half = data[: parcels.NONCE_BYTES], data[parcels.NONCE_BYTES :]
            words = vertical_keys.expand(q, nonce, unpack(half, q.data))
        else:
            words = unpack(data, q.data, (2,))
        chunk, number = divmod(plan.number - COLUMNS, self._shape.widths[slot])
        self._computing.take_column(slot, chunk, number, words)

    @property
    def _key_plans(self) -> list[Planned]:
        return [plan for plan in parcels.due(self.run, 0, "load") if plan.number < IDS]

    def _require_complete(self) -> None:
        """Require all that a set-up sends, and put the keys together."""
        q, wanted = self._shape.moduli, parcels.due(self.run, 0, "load")
        _require(
            all(_name(plan) in self._progress.parcels for plan in wanted), Code.NEED
        )
        names = {(plan.sender, plan.number): _name(plan) for plan in self._key_plans}
        found = {
            key: self._store.path(name).read_bytes() for key, name in names.items()
        }
        public, digits = unpack(found[1, PUBLIC], q.key), (len(q.data),)
        shares = (
            unpack(found[holder, RELIN], q.key, digits)
            for holder in self._shape.holders
        )
        b = vertical_keys.total(shares, q.key)
        a = vertical_keys.relin_common(q, self._doc_hash)
        if self._shape.is_joint:
            halves = [
                hashlib.sha256(found[1, number]).digest() for number in (PUBLIC, HALF)
            ]
            digests = {data for (_, number), data in found.items() if number == DIGESTS}
            if digests != {b"".join(halves)}:
                raise RefuseError(Code.KEY, "The holders do not agree on their keys.")
            a = unpack(found[1, HALF], q.key, digits)
        pk = vertical_keys.public_key(q, self._doc_hash, public)
        self._computing.take_keys(pk, np.stack([b, a], 1))

    def _step(self, request: Turn) -> Sent:
        """Evaluate a round on encrypted columns, after the values of the one before are opened."""
        t, session, algorithm = request.t, self.session, self._algorithm
        self._require_order(t)
        is_new, context = t > session.head + bool(self._progress.c1), transcript.ZERO
        state, findings = self._state(), self._findings()
        if t == 1 and is_new:
            self._require_compared()
            self._take_parcels(request)
            self._require_complete()
        elif t > 1:
            context, shares = self._shares(request)
            if is_new:
                state, findings = self._next_state(t - 1, shares)
                # not before: an interrupted step 1 needs them again
                for plan in self._key_plans:
                    self._store.remove(_name(plan))
        own = self._columns[:, : self._computing.widths[0]]
        centroids = (
            algorithm.query(state).arrays["centroids"] * 2.0**-algorithm.fraction_bits
        )
        c1 = self._computing.step(t, own, centroids)
        data = pack(c1[:, None], (self._shape.moduli.q0,))
        digest = hashlib.sha256(data).digest()
        sent = self._sent(request, lambda _: data)
        if is_new:
            session.head = t - 1
            session.state = encode_arrays({**state.arrays, _FINDINGS: findings})
            self._put(c1=digest, files=self._store.digests)
        self._write(t, context, digest)
        return sent

    def _close(self, request: Turn) -> Sent:
        """Open the last round's values, and send all parties the result."""
        n_rounds, algorithm = self._shape.n_rounds, self._algorithm
        self._require_order(n_rounds + 1)
        context, shares = self._shares(request)
        state, findings = self._next_state(n_rounds, shares)
        counts = state.arrays["counts"] * 2.0**-algorithm.fraction_bits
        centroids = cast(NDArray[Any], algorithm.centroids(state))  # since the start
        # All results of a run are of one size, which the server sees.
        padded = plausibility.padded(findings, n_rounds)
        arrays = {"centroids": centroids, "counts": counts, "findings": padded}
        result = encode_arrays(arrays)
        sent = self._sent(request, lambda _: result)
        self._write(n_rounds + 1, context, hashlib.sha256(result).digest())
        return self._ended(result, sent)

    def _shares(self, request: Turn) -> tuple[bytes, Words]:
        """Return the hash of the holders' words of a round, and the words (H, values)."""
        data = [each for _, each in self._opened_mail(request)]
        words = np.stack([np.frombuffer(each, dtype="<u8") for each in data])
        return H(b"vertical shares", *data), words.astype(np.uint64)

    def _state(self) -> State:
        session = self.session
        if not session.state:
            return self._algorithm.initial_state(None)
        arrays = decode_arrays(session.state)
        arrays.pop(_FINDINGS, None)
        return State(session.head, arrays)

    def _findings(self) -> Floats:
        """Return the findings of the rounds so far, which the session keeps beside the state."""
        empty = np.zeros((0, 6))
        if not self.session.state:
            return empty
        return decode_arrays(self.session.state).get(_FINDINGS, empty)

    def _next_state(self, t: int, shares: Words) -> tuple[State, Floats]:
        """Return the state after a round, from its values under the noise of all parties.

        With it the findings of all rounds so far, as rows.
        """
        algorithm = self._algorithm
        opened = self._computing.open(t, shares, lambda stream: self._noise(t, stream))
        scale = 2.0**algorithm.fraction_bits / self._shape.moduli.unit
        grid = np.rint(opened * scale).astype(np.int64)
        answer, before = (
            Statistic({SUMS: grid[:, 1:], COUNTS: grid[:, 0]}),
            self._state(),
        )
        factor = math.sqrt(self._body.n_noisy / self.run.document.noise_shares)
        found = plausibility.findings_of(algorithm, before, answer, factor)
        rows = np.concatenate([self._findings(), plausibility.to_array(found)])
        return algorithm.update(before, answer), rows


def _name(plan: Planned) -> str:
    """Return the name of a parcel in party 0's store and session."""
    return f"parcel-{plan.sender}-{plan.number}"
