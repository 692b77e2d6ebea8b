"""The server of a vertical run: which party is sent which turn, and who receives which parcel.

It is a relay (docs/protocol.md, section 13): parties seal what they send each other,
and the server puts each parcel into the mailboxes of its receivers, which are delivered
with their next turn. No party can be missing. A party that does not reply as planned is
sent the same bytes once more; then the run ends. A run that ends by an error is ended
at all parties by an `Abort`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import msgspec

from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.cohort import MALFORMED, UNCLAIMED
from flower_kmeans.protocol.messages import (
    Code,
    Delivery,
    Joined,
    Parcel,
    Peer,
    Reply,
    Request,
    Sent,
    Step,
    Turn,
)
from flower_kmeans.protocol.parcels import (
    DIGESTS,
    PUBLIC,
    Planned,
    in_parts,
    planned,
    shape_of,
)
from flower_kmeans.protocol.resume import Journal, KeptParty, KeptRelay
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.server import NO_ANSWER, STRAY, Replies, Trip
from flower_kmeans.protocol.wire import MAX_MESSAGE, decode, encode
from flower_kmeans.report.report import Dropped, Kind
from flower_kmeans.secagg.key_agreement import is_acceptable

COMPUTING = 0
"""Slot of the party that computes."""
_SET_UP = ("keys", "join", "encrypt")
_ROUND = ("step", "open")
_MOST_NODES = 4  # with one party's key that the server remembers
_SHOWN = 5
_OVERHEAD = 2**20  # of a message, beside the parcels that it holds
_SEAL = 16  # bytes that a parcel has more than its plaintext
_DELIVERY = 256  # bytes of a delivery beside its data, at most
_TAKEN = "Another node has the party's slot."
_OTHER_SLOT = "The node is named for another slot."
_NO_IDS = "The party has no row ids, which the run compares."


@dataclass(frozen=True)
class Party:
    """A party that takes part: its node, and what it stated when it joined."""

    node_id: int
    public: Joined

    @property
    def peer(self) -> Peer:
        """The party as others are sent it."""
        public = self.public
        return Peer(public.slot, public.public_key, self.node_id, public.claim)


class _TakenOverError(Exception):
    """Another node has a party's place: the set-up begins again."""


class Relay:
    """The server of one vertical run; a ``roster`` is needed exactly under ``keys="roster"``.

    ``nodes`` are the only ones that may take part; under relayed keys in the order of
    their slots. Whatever lets a party do a step raises a `RunError` if it does not do
    it. A run with a ``journal`` is kept there, and goes on from there once it is set
    up.
    """

    def __init__(
        self,
        run: Run,
        roster: Roster | None = None,
        nodes: Sequence[int] | None = None,
        journal: Journal | None = None,
    ) -> None:
        shape = shape_of(run)
        if (None if roster is None else roster.digest) != run.document.roster:
            raise ConfigurationError(
                "Expected the roster that the run document names. Got another, or none."
            )
        if roster is not None and len(roster) != shape.n_parties:
            raise ConfigurationError(
                f"Expected a roster of {shape.n_parties} parties, one line for each. "
                f"Got {len(roster)} lines instead."
            )
        if roster is None and nodes is not None and len(nodes) != shape.n_parties:
            raise ConfigurationError(
                f"Expected nodes of {shape.n_parties} parties, one for each slot. "
                f"Got {len(nodes)} instead."
            )
        self.run, self._roster, self._shape = run, roster, shape
        self._nodes = None if nodes is None else tuple(nodes)
        self.parties: dict[int, Party] = {}  # by slot, those that joined
        self._others: dict[int, list[Party]] = {}  # by slot, further nodes with its key
        self._sent_once: set[int] = set()  # slots whose node answered a turn
        # whether a turn was answered that needs the parties' keys for good
        self._is_begun = False
        self.incidents: list[Dropped] = []  # all that was not an orderly reply
        self.head = self.round_trips = 0  # rounds that are complete, and round trips
        # of parcels: from parties, and to them
        self.sent_bytes = self.delivered_bytes = 0
        self._mail: dict[int, list[Delivery]] = {
            slot: [] for slot in range(shape.n_parties)
        }
        self.resumptions = 0  # after the server's process had ended
        self._journal = journal
        self._asked: tuple[int, ...] = ()  # nodes that were asked to take part
        self._is_set_up = False
        self._former: KeptRelay | None = None  # a run that ended in its set-up
        kept = None if journal is None else journal.load(KeptRelay)
        if kept is not None and kept.is_set_up:
            self._restore(kept)
        else:
            self._former = kept

    @property
    def n_claims(self) -> int:
        """Number of parties that joined."""
        return len(self.parties)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every party stated that it keeps a ledger, which only they can know."""
        return bool(self.parties) and all(
            each.public.ledger for each in self.parties.values()
        )

    # ------------------------------------------------------------------ the run

    def set_up(self, nodes: Iterable[int], trip: Trip) -> None:
        """Let the parties join, make the keys, and encrypt their columns.

        A run that was set up in a former process has done so.
        """
        if self._is_set_up:
            return
        if self._former is not None:
            former = messages.Abort(
                doc_hash=hashlib.sha256(self._former.document).digest()
            )
            self._send_abort(former, self._former.nodes, trip)
        named = sorted(nodes if self._nodes is None else set(nodes) & set(self._nodes))
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
            # Before keys and columns: a party with other rows ends the run without a
            # charge.
            self._step("ids", range(1, self._shape.n_parties), trip)
            self._step("ids", (COMPUTING,), trip)
        self._step("keys", self._shape.holders, trip)
        if self._shape.is_joint:
            self._step("join", self._shape.holders, trip)
        if self._shape.others:
            self._step("encrypt", self._shape.others, trip)
        while not self._fits(COMPUTING):
            self._ask("load", {COMPUTING: self._turn(COMPUTING, "load")}, trip)

    def request(self, step: Step) -> dict[int, Request]:
        """Return the computing party's next turn by node: "step" for a round, "close" after all."""
        t = self.head + 1 if step == "step" else 0
        return self._requests({COMPUTING: self._turn(COMPUTING, step, t)})

    def take(
        self, step: Step, request: Mapping[int, Request], replies: Replies, trip: Trip
    ) -> None:
        """Take the computing party's reply, and let others open its values, or take the result."""
        self.round_trips += 1
        with self._aborting(trip):
            self._take(step, request, replies, trip)
            if step == "close":
                self._step("finish", range(1, self._shape.n_parties), trip)
                if self._journal is not None:
                    self._journal.finish(self.run.doc_hash)
            else:
                self._step("open", self._shape.holders, trip, self.head + 1)
                self.head += 1
                self._keep()

    @contextmanager
    def _aborting(self, trip: Trip) -> Iterator[None]:
        """Tell all parties if the run ends here by an error: they erase what is secret.

        A run that is kept may be resumed once it is set up, so its parties wait.
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
        """Whether a start with the same journal would take the run up again."""
        return self._journal is not None and self._is_set_up

    def abort(self, trip: Trip) -> None:
        """Let all parties erase what is secret; no party is waited for long."""
        request = messages.Abort(doc_hash=self.run.doc_hash)
        self._send_abort(request, [party.node_id for party in self._all_nodes], trip)

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
        parties = [
            KeptParty(node_id=party.node_id, public=party.public)
            for _, party in sorted(self.parties.items())
        ]
        kept = KeptRelay(
            document=self.run.data,
            nodes=self._asked,
            is_set_up=self._is_set_up,
            parties=tuple(parties) if self._is_set_up else (),
            head=self.head,
            round_trips=self.round_trips,
            sent_bytes=self.sent_bytes,
            delivered_bytes=self.delivered_bytes,
            incidents=tuple(self.incidents),
            resumptions=self.resumptions,
        )
        mail = [(slot, one) for slot, box in self._mail.items() for one in box]
        self._journal.write_parts(kept, enumerate(map(encode, mail)))

    def _restore(self, kept: KeptRelay) -> None:
        """Take up a run between two rounds, where the process before this one left it."""
        slots = tuple(one.node_id for one in kept.parties)
        if self._roster is None and self._nodes not in (None, slots):
            raise ConfigurationError(
                f"Expected nodes={slots}, in whose order the run in resume gave the slots. "
                f"Got {self._nodes} instead."
            )
        self._is_set_up, self._asked = True, kept.nodes
        self.parties = {
            one.public.slot: Party(one.node_id, one.public) for one in kept.parties
        }
        self.head, self.round_trips = kept.head, kept.round_trips
        self.sent_bytes, self.delivered_bytes = kept.sent_bytes, kept.delivered_bytes
        self.incidents = list(kept.incidents)
        self.resumptions = kept.resumptions + 1
        self._is_begun = True
        self._sent_once = set(self.parties)
        if self._journal is not None:
            for _, content in self._journal.parts():
                slot, delivery = decode(content, tuple[int, Delivery])
                self._mail[slot].append(delivery)

    # ------------------------------------------------------------------ parties

    def join(self, node_ids: Iterable[int]) -> dict[int, messages.Enrol]:
        """Return enrolments for nodes that connect while the parties join."""
        named = (
            set(node_ids) if self._nodes is None else set(node_ids) & set(self._nodes)
        )
        return dict.fromkeys(sorted(named), messages.Enrol(doc=self.run.data))

    def _enrol(self, nodes: list[int], trip: Trip) -> None:
        request = messages.Enrol(doc=self.run.data)
        for _ in range(2):
            joined = {party.node_id for party in self._all_nodes}
            requests = {node: request for node in nodes if node not in joined}
            self.round_trips += 1
            silent = set(requests)
            for node_id, reply in trip("enrol", requests, lambda: self._is_complete):
                silent.discard(node_id)
                self._take_party(node_id, reply)
            if self._is_complete:
                return
            for node_id in sorted(silent):
                self._note(-1, node_id, 0, NO_ANSWER)
        missing = sorted(set(self._mail) - set(self.parties))
        self._fail(f"Expected party {missing[0]} to join.", 0)

    @property
    def _all_nodes(self) -> list[Party]:
        """All nodes that joined, also those that no party needs."""
        return [*self.parties.values(), *chain.from_iterable(self._others.values())]

    @property
    def _is_complete(self) -> bool:
        return len(self.parties) == self._shape.n_parties

    def _take_party(self, node_id: int, reply: Reply | str) -> None:
        if self._nodes is not None and node_id not in self._nodes:
            return
        if not isinstance(reply, Joined) or reply.doc_hash != self.run.doc_hash:
            self._note(-1, node_id, 0, reply)
            return
        objection = self._objection(node_id, reply)
        if objection is not None:
            self._note(reply.slot, node_id, 0, objection)
        elif reply.slot in self.parties:
            # with a roster: the owner of its key has two nodes
            self._others.setdefault(reply.slot, []).append(Party(node_id, reply))
        else:
            self.parties[reply.slot] = Party(node_id, reply)

    def _take_over(self, slots: Iterable[int]) -> bool:
        """Put another node with its key in place of each party; return whether that can be.

        Only before a party's node answered a turn, and before another party gave more
        than a hash of its rows: what was sealed for the first node is lost to the
        second.
        """
        can_be = all(
            self._others.get(slot) and slot not in self._sent_once for slot in slots
        )
        if self._is_begun or not can_be:
            return False
        for slot in slots:
            self.parties[slot] = self._others[slot].pop(0)
        return True

    def _objection(self, node_id: int, reply: Joined) -> str | None:
        """Return why a party cannot take part as it joined, or ``None``."""
        keys, shape = () if self._roster is None else self._roster.keys, self._shape
        is_orderly = (
            reply.slot in self._mail
            and is_acceptable(reply.public_key)
            and reply.static == (keys[reply.slot] if keys else b"")
            and (bool(keys) or not reply.claim)
            and bool(reply.commitment)
            == (shape.is_joint and reply.slot in shape.holders)
        )
        if not is_orderly:
            return MALFORMED
        if self._roster is not None:
            made = reply.slot, node_id, reply.public_key, reply.claim
            if not self._roster.has_claimed(self.run.doc_hash, *made):
                return UNCLAIMED
        elif self._nodes is not None and self._nodes[reply.slot] != node_id:
            return _OTHER_SLOT
        if shape.check_ids and not reply.has_ids:
            return _NO_IDS
        if reply.slot not in self.parties:
            return None
        is_full = len(self._others.get(reply.slot, ())) + 1 == _MOST_NODES
        return _TAKEN if self._roster is None or is_full else None

    # ------------------------------------------------------------------ turns

    def _step(self, step: Step, slots: Iterable[int], trip: Trip, t: int = 0) -> None:
        """Let parties do a step and send all parts of what they made.

        Before round 1, what has come for the computing party is loaded meanwhile, so
        that it takes no round trip.
        """
        turns = {slot: self._turn(slot, step, t) for slot in slots}
        while turns:
            has_mail = step in _SET_UP and self._mail[COMPUTING]
            load = {COMPUTING: self._turn(COMPUTING, "load")} if has_mail else {}
            sent = self._ask(step, turns | load, trip)
            turns = {
                slot: _next_part(turn)
                for slot, turn in turns.items()
                if sent[slot].parts > turn.part
            }

    def _turn(self, slot: int, step: Step, t: int = 0) -> Turn:
        """Return a party's next turn, with as much of its mail as fits."""
        others = (
            self.parties[other] for other in sorted(self.parties) if other != slot
        )
        holders = self._shape.holders if self._shape.is_joint and step == "keys" else ()
        return Turn(
            doc_hash=self.run.doc_hash,
            step=step,
            t=t,
            peers=b"".join(other.peer.row for other in others),
            commitments=tuple(
                self.parties[holder].public.commitment for holder in holders
            ),
            deliveries=tuple(self._collect(slot)),
        )

    def _collect(self, slot: int) -> Iterator[Delivery]:
        """Yield and remove mail in order of senders and numbers, up to one message."""
        mail = sorted(self._mail[slot], key=lambda each: (each.sender, each.number))
        size = n = 0
        for n, delivery in enumerate(mail, 1):
            size += len(delivery.data) + _DELIVERY
            if size > _room() or n > messages.MAX_PARCELS:
                n -= 1
                break
            self.delivered_bytes += len(delivery.data)
            yield delivery
        self._mail[slot] = mail[n:]

    def _fits(self, slot: int) -> bool:
        """Return whether a slot's mail fits into one message."""
        mail = self._mail[slot]
        size = sum(len(each.data) + _DELIVERY for each in mail)
        return size <= _room() and len(mail) <= messages.MAX_PARCELS

    def _requests(self, turns: Mapping[int, Turn]) -> dict[int, Request]:
        return {self.parties[slot].node_id: turn for slot, turn in turns.items()}

    def _ask(
        self, kind: Step, turns: Mapping[int, Turn], trip: Trip
    ) -> dict[int, Sent]:
        requests = self._requests(turns)
        self.round_trips += 1
        return self._take(kind, requests, trip(kind, requests, lambda: False), trip)

    def _take(
        self, kind: Step, requests: Mapping[int, Request], replies: Replies, trip: Trip
    ) -> dict[int, Sent]:
        """Return the replies by slot; a party that sent none is sent the same request once more."""
        # In the report 0 is the set-up, R + 1 the delivery.
        t = self.head + 1 if kind in (*_ROUND, "close", "finish") else 0
        slots = {party.node_id: slot for slot, party in self.parties.items()}
        left, found = dict(requests), dict[int, Sent]()
        for is_repeat in (False, True):
            if is_repeat and left:
                self.round_trips += 1
                replies = trip(kind, left, lambda: False)
            silent = set(left)
            for node_id, reply in replies if left else ():
                silent.discard(node_id)
                request = left.get(node_id)
                if request is None:
                    continue
                if isinstance(reply, Sent) and self._is_orderly(
                    reply, request, slots[node_id]
                ):
                    found[slots[node_id]] = reply
                    del left[node_id]
                else:
                    self._note(slots[node_id], node_id, t, reply)
            for node_id in silent:
                self._note(slots[node_id], node_id, t, NO_ANSWER)
        self._sent_once |= set(found)
        self._is_begun |= bool(found) and kind != "ids"
        if left:
            missing = sorted(slots[node_id] for node_id in left)
            if self._take_over(missing):
                raise _TakenOverError
            where = f" in round {t}" if kind in _ROUND else ""
            self._fail(
                f"Expected an answer from party {missing[0]} to {kind!r}{where}.", t
            )
        for slot in sorted(found):
            self._put(slot, found[slot])
        return found

    def _is_orderly(self, reply: Sent, request: Request, sender: int) -> bool:
        """Return whether a reply is the part that a turn requires, so none fills the mailboxes."""
        if not isinstance(request, Turn) or reply.doc_hash != self.run.doc_hash:
            return False
        parts = in_parts(planned(self.run, sender, request.step, request.t))
        wanted = parts[request.part - 1]
        # Lengths follow from the run document: no party can send more than was planned.
        has_all = len(reply.parcels) == len(wanted) and reply.parts == len(parts)
        return has_all and all(map(_is_planned, reply.parcels, wanted))

    def _put(self, sender: int, sent: Sent) -> None:
        for parcel in sent.parcels:
            self.sent_bytes += len(parcel.data)
            names: dict[str, Any] = {
                "step": parcel.step,
                "t": parcel.t,
                "number": parcel.number,
            }
            keys = messages.split(parcel.keys, messages.ENVELOPE_BYTES)
            receivers = messages.read_receivers(parcel.receivers)
            for receiver, key in zip(receivers, keys, strict=True):
                delivery = Delivery(sender=sender, **names, key=key, data=parcel.data)
                self._mail[receiver].append(delivery)

    # ------------------------------------------------------------------ faults

    def _note(self, slot: int, node_id: int, t: int, reply: Reply | str) -> None:
        kind: Kind = "silent" if reply == NO_ANSWER else "failed"
        if isinstance(reply, messages.Refusal):
            reason, kind = Code(reply.code).sentence, "refused"
        elif isinstance(reply, str):
            reason = reply
        else:
            reason = MALFORMED if reply.doc_hash == self.run.doc_hash else STRAY
        self.incidents.append(Dropped(slot, node_id, t, reason, kind))

    def _fail(self, expected: str, t: int) -> NoReturn:
        """End the run by the error that names a party; it is ended at all parties."""
        reasons = dict.fromkeys(
            f"Node {each.node_id}: {each.reason}"
            for each in self.incidents
            if each.round == t
        )
        got = " ".join(list(reasons)[:_SHOWN]) or "Got nothing."
        end = "The run was ended at all parties; what it charged stays charged."
        if self._goes_on:
            end = "Mend that, and start again with the same resume: the run goes on."
        raise RunError(f"{expected} {got} {end}")


def _room() -> int:
    return MAX_MESSAGE - _OVERHEAD


def _is_planned(parcel: Parcel, planned: Planned) -> bool:
    """Return whether a parcel is a planned one, for its receivers and of its length."""
    receivers = planned.receivers
    name = planned.step, planned.t, planned.number, messages.write_receivers(receivers)
    lengths = messages.ENVELOPE_BYTES * len(receivers), planned.n_bytes + _SEAL
    found = parcel.step, parcel.t, parcel.number, parcel.receivers
    return found == name and (len(parcel.keys), len(parcel.data)) == lengths


def _next_part(turn: Turn) -> Turn:
    """Return the request for the next part of an answer: a party needs these parcels again."""
    again = tuple(each for each in turn.deliveries if each.number in (PUBLIC, DIGESTS))
    return msgspec.structs.replace(turn, part=turn.part + 1, deliveries=again)
