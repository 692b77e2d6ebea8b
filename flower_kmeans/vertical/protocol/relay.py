"""The server of a vertical run: the order of turns, and the mailboxes of the parties.

The server is a relay (docs/protocol.md, section 13): parties send each other sealed
parcels, and the server puts each parcel into the mailboxes of its receivers. A turn
delivers the mail of its party. No party can be missing. A party that does not reply as
planned gets the same bytes once more; then the run ends. After an error, an `Abort` ends
the run at all parties.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import msgspec

from flower_kmeans.errors import RunError
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.incidents import MALFORMED, NO_ANSWER, STRAY
from flower_kmeans.protocol.messages import Code, Reply, Request
from flower_kmeans.protocol.resume import Journal
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.trips import Replies, Trip
from flower_kmeans.protocol.wire import MAX_MESSAGE, decode, encode
from flower_kmeans.report.report import Dropped, IncidentKind
from flower_kmeans.vertical.protocol.kept import KeptParty, KeptRelay
from flower_kmeans.vertical.protocol.messages import (
    MAX_PARCELS,
    Delivery,
    Joined,
    Parcel,
    Sent,
    Turn,
    VerticalStep,
    read_receivers,
    write_receivers,
)
from flower_kmeans.vertical.protocol.parcels import (
    DIGESTS,
    PUBLIC,
    Planned,
    in_parts,
    planned,
    shape_of,
)
from flower_kmeans.vertical.protocol.parties import Parties, Party

COMPUTING = 0
"""Slot of the computing party."""
_SET_UP = ("keys", "join", "encrypt")
_ROUND = ("step", "open")
_MOST_REQUESTS = 2  # most requests to a party for one reply
_SHOWN = 5  # most reasons in an error
_OVERHEAD = 2**20  # bytes of a message beside its parcels
_SEAL = 16  # bytes that sealing adds to a plaintext
_DELIVERY = 256  # most bytes of a delivery beside its data


class Mailboxes:
    """The parties' mail, by slot of the receiver."""

    def __init__(self, n_parties: int) -> None:
        self.sent_bytes = 0  # bytes of parcels from parties
        self.delivered_bytes = 0  # bytes of parcels to parties
        self._boxes: dict[int, list[Delivery]] = {}
        for slot in range(n_parties):
            self._boxes[slot] = []

    def has(self, slot: int) -> bool:
        """Return whether a slot has mail."""
        return bool(self._boxes[slot])

    def add(self, slot: int, delivery: Delivery) -> None:
        """Add a delivery to a slot's mail."""
        self._boxes[slot].append(delivery)

    def all(self) -> Iterator[tuple[int, Delivery]]:
        """Yield all deliveries with their slots."""
        for slot, box in self._boxes.items():
            for delivery in box:
                yield slot, delivery

    def put(self, sender: int, sent: Sent) -> None:
        """Put a party's parcels into the mailboxes of their receivers."""
        for parcel in sent.parcels:
            self.sent_bytes += len(parcel.data)
            keys = messages.split(parcel.keys, messages.ENVELOPE_BYTES)
            receivers = read_receivers(parcel.receivers)
            for receiver, key in zip(receivers, keys, strict=True):
                delivery = Delivery(
                    sender=sender,
                    step=parcel.step,
                    t=parcel.t,
                    number=parcel.number,
                    key=key,
                    data=parcel.data,
                )
                self.add(receiver, delivery)

    def collect(self, slot: int) -> Iterator[Delivery]:
        """Yield and remove mail in order of senders and numbers, up to one message."""
        mail = sorted(self._boxes[slot], key=lambda each: (each.sender, each.number))
        size = 0
        n_taken = 0
        for delivery in mail:
            size += len(delivery.data) + _DELIVERY
            if size > _room() or n_taken == MAX_PARCELS:
                break
            n_taken += 1
            self.delivered_bytes += len(delivery.data)
            yield delivery
        self._boxes[slot] = mail[n_taken:]

    def fits(self, slot: int) -> bool:
        """Return whether a slot's mail fits into one message."""
        mail = self._boxes[slot]
        size = sum(len(each.data) + _DELIVERY for each in mail)
        return size <= _room() and len(mail) <= MAX_PARCELS


class _TakenOverError(Exception):
    """Another node took over a party's slot, so the set-up begins again."""


class Relay:
    """The server of one vertical run.

    A ``roster`` is required exactly with ``keys="roster"``. ``nodes`` are the only nodes
    that can take part; under relayed keys they are in the order of their slots. Methods
    that ask a party for a step raise a `RunError` if the party does not do it. A
    ``journal`` keeps the run, which can go on from there once it is set up.
    """

    def __init__(
        self,
        run: Run,
        roster: Roster | None = None,
        nodes: Sequence[int] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._shape = shape_of(run)
        self.run = run
        self._members = Parties(run, roster, nodes)
        self.incidents: list[
            Dropped
        ] = []  # replies that were not orderly, and their absence
        self.head = 0  # number of complete rounds
        self.round_trips = 0
        self._mail = Mailboxes(self._shape.n_parties)
        self.resumptions = 0  # how often the run went on after its server ended
        self._journal = journal
        self._asked: tuple[int, ...] = ()  # nodes that were asked to take part
        self._is_set_up = False
        self._former: KeptRelay | None = None  # a run that ended in its set-up
        kept = None
        if journal is not None:
            kept = journal.load(KeptRelay)
        if kept is not None and kept.is_set_up:
            self._restore(kept)
        else:
            self._former = kept

    @property
    def parties(self) -> Mapping[int, Party]:
        """Parties that joined, by slot."""
        return self._members.by_slot

    @property
    def sent_bytes(self) -> int:
        """Bytes of parcels from parties."""
        return self._mail.sent_bytes

    @property
    def delivered_bytes(self) -> int:
        """Bytes of parcels to parties."""
        return self._mail.delivered_bytes

    @property
    def n_claims(self) -> int:
        """Number of parties that joined."""
        return len(self.parties)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every party stated that it keeps a ledger. The server cannot check it."""
        stated = [party.public.ledger for party in self.parties.values()]
        return bool(stated) and all(stated)

    # ------------------------------------------------------------------ the run

    def set_up(self, nodes: Iterable[int], trip: Trip) -> None:
        """Let the parties join, make the keys, and encrypt their columns.

        It does nothing for a resumed run, which is set up already.
        """
        if self._is_set_up:
            return
        if self._former is not None:
            former_hash = hashlib.sha256(self._former.document).digest()
            former = messages.Abort(doc_hash=former_hash)
            self._send_abort(former, self._former.nodes, trip)
        named = sorted(self._members.named(nodes))
        self._asked = tuple(named)
        self._keep()
        with self._aborting(trip):
            self._enrol(named, trip)
            is_prepared = False
            while not is_prepared:
                with suppress(_TakenOverError):  # nothing is in the mailboxes then
                    self._prepare(trip)
                    is_prepared = True
        self._is_set_up = True
        self._keep()

    def _prepare(self, trip: Trip) -> None:
        """Do all steps of the set-up after the parties have joined."""
        if self._shape.check_ids:
            # Ids come before keys and columns, so that a party with other rows ends the run
            # without a charge.
            self._step("ids", self._all_but_computing, trip)
            self._step("ids", (COMPUTING,), trip)
        self._step("keys", self._shape.holders, trip)
        if self._shape.is_joint:
            self._step("join", self._shape.holders, trip)
        if self._shape.others:
            self._step("encrypt", self._shape.others, trip)
        while not self._mail.fits(COMPUTING):
            self._ask("load", {COMPUTING: self._turn(COMPUTING, "load")}, trip)

    @property
    def _all_but_computing(self) -> range:
        return range(1, self._shape.n_parties)

    def request(self, step: VerticalStep) -> dict[int, Request]:
        """Return the computing party's next turn, "step" or "close", by node."""
        t = 0
        if step == "step":
            t = self.head + 1
        return self._requests({COMPUTING: self._turn(COMPUTING, step, t)})

    def take(
        self,
        step: VerticalStep,
        request: Mapping[int, Request],
        replies: Replies,
        trip: Trip,
    ) -> None:
        """Take the computing party's reply, and pass it on by "open" or "finish"."""
        self.round_trips += 1
        with self._aborting(trip):
            self._take(step, request, replies, trip)
            if step == "close":
                self._step("finish", self._all_but_computing, trip)
                if self._journal is not None:
                    self._journal.finish(self.run.doc_hash)
            else:
                self._step("open", self._shape.holders, trip, self.head + 1)
                self.head += 1
                self._keep()

    @contextmanager
    def _aborting(self, trip: Trip) -> Iterator[None]:
        """End the run at all parties after an error in the context, so that they erase secrets.

        A kept run can be resumed once it is set up, so its parties keep their secrets.
        """
        try:
            yield
        except Exception:
            if not self._goes_on:
                with suppress(Exception):  # the error that ended the run counts
                    self.abort(trip)
            raise

    @property
    def _goes_on(self) -> bool:
        """Whether a start with the same journal would resume the run."""
        return self._journal is not None and self._is_set_up

    def abort(self, trip: Trip) -> None:
        """Tell all parties to erase their secrets, without a long wait for any."""
        request = messages.Abort(doc_hash=self.run.doc_hash)
        nodes = [party.node_id for party in self._members.all_nodes]
        self._send_abort(request, nodes, trip)

    def _send_abort(
        self, request: messages.Abort, nodes: Iterable[int], trip: Trip
    ) -> None:
        for _ in trip("abort", dict.fromkeys(nodes, request), lambda: True):
            pass

    # ------------------------------------------------------------- resuming (section 9)

    def _keep(self) -> None:
        """Keep the run on the disk, before the messages that depend on it are sent."""
        if self._journal is None:
            return
        parties = []
        if self._is_set_up:
            for _, party in sorted(self.parties.items()):
                one = KeptParty(node_id=party.node_id, public=party.public)
                parties.append(one)
        kept = KeptRelay(
            document=self.run.data,
            nodes=self._asked,
            is_set_up=self._is_set_up,
            parties=tuple(parties),
            head=self.head,
            round_trips=self.round_trips,
            sent_bytes=self.sent_bytes,
            delivered_bytes=self.delivered_bytes,
            incidents=tuple(self.incidents),
            resumptions=self.resumptions,
        )
        mail = map(encode, self._mail.all())
        self._journal.write_parts(kept, enumerate(mail))

    def _restore(self, kept: KeptRelay) -> None:
        """Restore a run between two rounds from the journal of a former process."""
        self._members.restore(kept.parties)
        self._is_set_up = True
        self._asked = kept.nodes
        self.head = kept.head
        self.round_trips = kept.round_trips
        self._mail.sent_bytes = kept.sent_bytes
        self._mail.delivered_bytes = kept.delivered_bytes
        self.incidents = list(kept.incidents)
        self.resumptions = kept.resumptions + 1
        if self._journal is not None:
            for _, content in self._journal.parts():
                slot, delivery = decode(content, tuple[int, Delivery])
                self._mail.add(slot, delivery)

    # ------------------------------------------------------------------ parties

    def join(self, node_ids: Iterable[int]) -> dict[int, messages.Enrol]:
        """Return enrolments for nodes that connect while the parties join."""
        request = messages.Enrol(doc=self.run.data)
        return dict.fromkeys(sorted(self._members.named(node_ids)), request)

    def _enrol(self, nodes: list[int], trip: Trip) -> None:
        request = messages.Enrol(doc=self.run.data)
        for _ in range(_MOST_REQUESTS):
            joined = {party.node_id for party in self._members.all_nodes}
            requests = {node: request for node in nodes if node not in joined}
            self.round_trips += 1
            silent = set(requests)
            for node_id, reply in trip(
                "enrol", requests, lambda: self._members.is_complete
            ):
                silent.discard(node_id)
                self._take_party(node_id, reply)
            if self._members.is_complete:
                return
            for node_id in sorted(silent):
                self._note(-1, node_id, 0, NO_ANSWER)
        self._fail(f"Expected party {self._members.missing[0]} to join.", 0)

    def _take_party(self, node_id: int, reply: Reply | str) -> None:
        if not self._members.named([node_id]):
            return
        if not isinstance(reply, Joined) or reply.doc_hash != self.run.doc_hash:
            self._note(-1, node_id, 0, reply)
            return
        objection = self._members.take(node_id, reply)
        if objection is not None:
            self._note(reply.slot, node_id, 0, objection)

    # ------------------------------------------------------------------ turns

    def _step(
        self, step: VerticalStep, slots: Iterable[int], trip: Trip, t: int = 0
    ) -> None:
        """Ask parties for a step, and put all parts of their parcels into mailboxes.

        Before round 1 the computing party meanwhile loads its mail, so that loading takes
        no further round trip.
        """
        turns = {slot: self._turn(slot, step, t) for slot in slots}
        while turns:
            load = {}
            if step in _SET_UP and self._mail.has(COMPUTING):
                load[COMPUTING] = self._turn(COMPUTING, "load")
            sent = self._ask(step, turns | load, trip)
            turns = {
                slot: _next_part(turn)
                for slot, turn in turns.items()
                if sent[slot].parts > turn.part
            }

    def _turn(self, slot: int, step: VerticalStep, t: int = 0) -> Turn:
        """Return a party's next turn, with as much of its mail as fits."""
        peers = [self.parties[other].peer for other in sorted(self.parties)]
        rows = [peer.row for peer in peers if peer.slot != slot]
        commitments = []
        if step == "keys" and self._shape.is_joint:
            for holder in self._shape.holders:
                commitments.append(self.parties[holder].public.commitment)
        return Turn(
            doc_hash=self.run.doc_hash,
            step=step,
            t=t,
            peers=b"".join(rows),
            commitments=tuple(commitments),
            deliveries=tuple(self._mail.collect(slot)),
        )

    def _requests(self, turns: Mapping[int, Turn]) -> dict[int, Request]:
        return {self.parties[slot].node_id: turn for slot, turn in turns.items()}

    def _ask(
        self, kind: VerticalStep, turns: Mapping[int, Turn], trip: Trip
    ) -> dict[int, Sent]:
        requests = self._requests(turns)
        self.round_trips += 1
        replies = trip(kind, requests, lambda: False)
        return self._take(kind, requests, replies, trip)

    def _take(
        self,
        kind: VerticalStep,
        requests: Mapping[int, Request],
        replies: Replies,
        trip: Trip,
    ) -> dict[int, Sent]:
        """Return the replies by slot. A request without a reply is sent once more."""
        t = self._round_of(kind)
        left = dict(requests)
        found = self._sort(left, replies, t)
        if left:
            self.round_trips += 1
            found |= self._sort(left, trip(kind, left, lambda: False), t)
        self._members.bind(found, has_given=kind != "ids")
        if left:
            slots = self._members.slots
            self._replace(sorted(slots[node_id] for node_id in left), kind, t)
        for slot in sorted(found):
            self._mail.put(slot, found[slot])
        return found

    def _round_of(self, kind: VerticalStep) -> int:
        """Return a step's round in the report: 0 for the set-up, R + 1 for the delivery."""
        if kind in (*_ROUND, "close", "finish"):
            return self.head + 1
        return 0

    def _sort(
        self, left: dict[int, Request], replies: Replies, t: int
    ) -> dict[int, Sent]:
        """Return the orderly replies by slot, and remove their requests from ``left``.

        All other replies, and nodes that sent none, become incidents.
        """
        slots = self._members.slots
        found = dict[int, Sent]()
        silent = set(left)
        for node_id, reply in replies:
            silent.discard(node_id)
            request = left.get(node_id)
            if request is None:
                continue
            slot = slots[node_id]
            if isinstance(reply, Sent) and self._is_orderly(reply, request, slot):
                found[slot] = reply
                del left[node_id]
            else:
                self._note(slot, node_id, t, reply)
        for node_id in silent:
            self._note(slots[node_id], node_id, t, NO_ANSWER)
        return found

    def _replace(self, missing: list[int], kind: VerticalStep, t: int) -> NoReturn:
        """Begin the set-up again with other nodes of some parties, or end the run."""
        if self._members.take_over(missing):
            raise _TakenOverError
        where = ""
        if kind in _ROUND:
            where = f" in round {t}"
        expected = f"Expected an answer from party {missing[0]} to {kind!r}{where}."
        self._fail(expected, t)

    def _is_orderly(self, reply: Sent, request: Request, sender: int) -> bool:
        """Return whether a reply is the planned part, so that no party can fill the mailboxes."""
        if not isinstance(request, Turn) or reply.doc_hash != self.run.doc_hash:
            return False
        parts = in_parts(planned(self.run, sender, request.step, request.t))
        wanted = parts[request.part - 1]
        # Lengths follow from the run document: no party can send more than was planned.
        has_all = len(reply.parcels) == len(wanted) and reply.parts == len(parts)
        return has_all and all(map(_is_planned, reply.parcels, wanted))

    # ------------------------------------------------------------------ faults

    def _note(self, slot: int, node_id: int, t: int, reply: Reply | str) -> None:
        kind: IncidentKind = "failed"
        if reply == NO_ANSWER:
            kind = "silent"
        if isinstance(reply, messages.Refusal):
            reason = Code(reply.code).sentence
            kind = "refused"
        elif isinstance(reply, str):
            reason = reply
        elif reply.doc_hash == self.run.doc_hash:
            reason = MALFORMED
        else:
            reason = STRAY
        self.incidents.append(Dropped(slot, node_id, t, reason, kind))

    def _fail(self, expected: str, t: int) -> NoReturn:
        """End the run with an error that names a party."""
        found = [
            f"Node {each.node_id}: {each.reason}"
            for each in self.incidents
            if each.round == t
        ]
        reasons = list(dict.fromkeys(found))
        got = " ".join(reasons[:_SHOWN]) or "Got nothing."
        end = "The run was ended at all parties; what it charged stays charged."
        if self._goes_on:
            end = "Mend that, and start again with the same resume: the run goes on."
        raise RunError(f"{expected} {got} {end}")


def _room() -> int:
    """Return the most bytes of deliveries in one message."""
    return MAX_MESSAGE - _OVERHEAD


def _is_planned(parcel: Parcel, planned: Planned) -> bool:
    """Return whether a parcel is a planned one, for its receivers and of its length."""
    receivers = write_receivers(planned.receivers)
    name = (planned.step, planned.t, planned.number, receivers)
    found = (parcel.step, parcel.t, parcel.number, parcel.receivers)
    keys_bytes = messages.ENVELOPE_BYTES * len(planned.receivers)
    lengths = (keys_bytes, planned.n_bytes + _SEAL)
    return found == name and (len(parcel.keys), len(parcel.data)) == lengths


def _next_part(turn: Turn) -> Turn:
    """Return the request for the next part of an answer, with the same parcels."""
    again = tuple(each for each in turn.deliveries if each.number in (PUBLIC, DIGESTS))
    return msgspec.structs.replace(turn, part=turn.part + 1, deliveries=again)
