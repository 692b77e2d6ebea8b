"""Real clients and a small honest server in memory, for tests of single messages and of attacks.

The server is as simple as it can be: it sends every message at once and leaves out a client that
refuses. A test takes its messages apart, changes fields and sends them to a client.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from documents import TRUSTS, make_algorithm, make_document
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import State
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm
from flower_kmeans.privacy.ledger import Ledger, Limit
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.committee import Committee, drawn
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Finish,
    Keys,
    Peer,
    Refusal,
    Reply,
    Request,
    Wrap,
    Wrapped,
    decode_reply,
)
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.removal import open_sum
from flower_kmeans.protocol.results import ClientResult, encode_result, result_of
from flower_kmeans.protocol.roster import ROSTER_FILE, Roster, write_members
from flower_kmeans.protocol.run import Run, open_run
from flower_kmeans.protocol.session import ClientSession, ContextMemory, LedgerMemory
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import encode, encode_arrays
from flower_kmeans.secagg.base import SumContext

PROTECTED = tuple(name for name in TRUSTS if trust_model(name).is_protected)
SHARED = tuple(name for name in TRUSTS if trust_model(name).has_committee)
BLIND = tuple(name for name in TRUSTS if trust_model(name).is_blind)
KEYS = ("roster", "relayed")
BEACON = "5f" * 32


def make_run(
    trust: str, keys: str, *, rounds: int = 3, roster: Roster | None = None, **fields: Any
) -> Run:
    """Return a small run with its document; ``fields`` are those of the document."""
    model = trust_model(trust)
    if "algorithm" not in fields and "kind" not in fields:
        kind = GLloydAlgorithm if model.is_private else LloydAlgorithm
        fields["algorithm"] = make_algorithm(kind, trust, n_rounds=rounds)
    if model.shares_noise:
        honest = fields.get("min_clients", 3) - fields.get("max_colluders", 1)
        fields.setdefault("share_variance", f"1/{honest}")
    if model.is_protected:
        fields["keys"] = keys
        fields.setdefault("roster", None if roster is None else roster.digest)
    return open_run(encode(make_document(trust, **{"run": token(16), **fields})))


@dataclass
class Node:
    """A client's process, whose memory a test may look at, lose or put back."""

    policy: ClientPolicy
    records: Any
    state: RecordDict = field(default_factory=RecordDict)
    results: list[ClientResult] = field(default_factory=list)
    n_loads: int = 0
    change: Callable[[Request, Reply], Reply] | None = None
    """Makes a dishonest client: what it sends instead of its reply."""

    def load(self) -> Any:
        self.n_loads += 1
        return self.records() if callable(self.records) else self.records

    @property
    def client(self) -> Client:
        return Client(self.policy, self.state, self.load, self.results.append)

    def answer(self, data: bytes) -> bytes:
        """Return the reply to an encoded request."""
        return self.client.answer_bytes(data)

    def send(self, request: Request) -> Reply:
        """Send a request."""
        reply = decode_reply(self.answer(encode(request)))
        return reply if self.change is None else self.change(request, reply)

    def session(self, run: bytes) -> ClientSession | None:
        """Return what the client remembers of a run."""
        if self.policy.state_dir is None:
            return ContextMemory(self.state).load(run)
        with Ledger(self.policy.state_dir) as ledger:
            return LedgerMemory(ledger, Limit(1, 0.1), self.policy.state_dir).load(run)

    def save(self, run: bytes, session: ClientSession) -> None:
        """Replace what the client remembers of a run."""
        if self.policy.state_dir is None:
            ContextMemory(self.state).save(run, session)
        else:
            with Ledger(self.policy.state_dir) as ledger:
                memory = LedgerMemory(ledger, Limit(1, 0.1), self.policy.state_dir)
                memory.load(run)
                memory.save(run, session)

    def restart(self) -> None:
        """Lose what is in memory only."""
        self.state = RecordDict()


def records_of(index: int, n_records: int = 40) -> NDArray[np.float64]:
    """Return records of one client, in the unit square."""
    return np.random.default_rng(index).random((n_records, 2))


def make_nodes(
    n: int,
    directory: Path,
    *,
    keys: str = "roster",
    ledger: bool = False,
    beacon: str | None = None,
    **policy: Any,
) -> tuple[list[Node], Roster | None]:
    """Return clients with lasting keys and perhaps ledgers in a directory, and their roster."""
    names = [f"client{i}" for i in range(n)]
    roster = None
    paths: list[dict[str, Any]] = [{} for _ in names]
    if keys == "roster":
        beacon = BEACON if beacon is None and n > 64 else beacon
        write_members(directory / "keys", names, beacon)
        roster_file = directory / "keys" / ROSTER_FILE
        roster = Roster.from_file(roster_file)
        paths = [
            {"roster_file": roster_file, "member_key_file": directory / "keys" / f"{name}.key"}
            for name in names
        ]
    if ledger:
        for name, path in zip(names, paths, strict=True):
            path["state_dir"] = directory / f"state-{name}"
    values: dict[str, Any] = {
        "trusts": TRUSTS,
        "in_memory": True,
        "max_delta": 1e-5,
        "max_total_epsilon": 10.0,
        **policy,
    }
    nodes = [
        Node(ClientPolicy(**{**values, **path}), records_of(i)) for i, path in enumerate(paths)
    ]
    return nodes, roster


@dataclass
class Session:
    """What a server knows of a client session."""

    slot: int
    commitment: bytes
    static: bytes
    public_key: bytes
    tags: bytes

    @property
    def leaf(self) -> bytes:
        return transcript.leaf(self.slot, self.commitment, self.static, self.public_key)


class Cohort:
    """An honest server and its clients, which are named by their index."""

    def __init__(
        self,
        directory: Path,
        trust: str = "distributed-noise",
        keys: str = "roster",
        n: int = 5,
        *,
        ledger: bool = False,
        policy: dict[str, Any] | None = None,
        others: "Cohort | None" = None,
        **document: Any,
    ) -> None:
        if others is not None:
            self.nodes, self.roster = others.nodes, others.roster
        else:
            self.nodes, self.roster = make_nodes(
                n, directory, keys=keys, ledger=ledger, **(policy or {})
            )
        self.run = make_run(trust, keys, roster=self.roster, **document)
        self.document, self.trust = self.run.document, self.run.trust
        self.doc_hash = self.run.doc_hash
        self.enrolled: dict[int, Session] = {}
        self.state: State = self.run.algorithm.initial_state(None)
        self.h = transcript.first_hash(self.doc_hash)
        self.entries: list[Entry] = []
        self.have: dict[int, int] = {}
        self.envelopes: dict[int, tuple[int, bytes]] = {}
        self.opened: dict[int, NDArray[np.int64]] = {}
        self.refusals: list[tuple[int, Refusal]] = []
        self.log: list[tuple[int, bytes]] = []
        self.n_round_trips = 0
        self.noise_factor = 1.0

    # ------------------------------------------------------------------ sending

    def send(self, index: int, request: Request) -> Reply:
        """Send one request and record what travels."""
        reply = self.nodes[index].send(request)
        self.log += [(index, encode(request)), (index, encode(reply))]
        if isinstance(reply, Refusal):
            self.refusals.append((index, reply))
        return reply

    def send_all(self, requests: dict[int, Any]) -> dict[int, Any]:
        self.n_round_trips += 1
        return {index: self.send(index, request) for index, request in requests.items()}

    # ------------------------------------------------------------------ slots

    @property
    def has_roster(self) -> bool:
        return self.roster is not None and self.trust.is_protected

    @property
    def n_slots(self) -> int:
        return len(self.roster) if self.roster and self.has_roster else len(self.enrolled)

    def take(self, index: int, reply: Any) -> None:
        """Take up a client session's public values, of an enrolment or a renewal."""
        slot = len(self.enrolled)
        if index in self.enrolled:
            slot = self.enrolled[index].slot
            if self.enrolled[index].public_key != reply.public_key:
                self.envelopes.pop(index, None)
        elif self.roster is not None and self.has_roster:
            slot = self.roster.keys.index(reply.static)
        self.enrolled[index] = Session(
            slot, reply.commitment, reply.static, reply.public_key, reply.tags
        )

    def set_up(self, who: Iterable[int] | None = None) -> "Cohort":
        """Enrol clients, all unless they are named, and distribute the group key if need be."""
        indices = range(len(self.nodes)) if who is None else who
        for index, reply in self.send_all({i: Enrol(doc=self.run.data) for i in indices}).items():
            if isinstance(reply, Enrolled):
                self.take(index, reply)
        if self.trust.is_blind and not self.trust.has_committee:
            first = min(i for i, own in self.enrolled.items() if own.slot in self.slots)
            reply = self.send_all({first: self.keys_of(first)})[first]
            if isinstance(reply, Wrapped):
                self.take_envelopes(first, reply.envelopes, sorted(self.enrolled))
        return self

    def set_up_late(self, index: int) -> None:
        """Enrol a client during the run."""
        reply = self.send(index, Enrol(doc=self.run.data))
        assert isinstance(reply, Enrolled)
        self.take(index, reply)

    def by_slot(self) -> dict[int, int]:
        """Return the client of each slot that is taken."""
        return {own.slot: index for index, own in self.enrolled.items()}

    @property
    def slots(self) -> tuple[int, ...]:
        """The committee's slots."""
        if self.n_slots <= 64:
            return tuple(range(self.n_slots))
        if self.roster is not None and self.has_roster:
            return drawn(self.roster.keys, self.roster.beacon, self.document.epoch)
        return tuple(range(64))

    def committee(self) -> Committee:
        by_slot = self.by_slot()
        keys = tuple(
            self.enrolled[by_slot[slot]].public_key if slot in by_slot else b""
            for slot in self.slots
        )
        return Committee(self.slots, keys, self.n_slots, self.document.max_colluders)

    @property
    def com(self) -> bytes:
        return self.committee().digest if self.trust.is_protected else ZERO

    def tree(self) -> Tree:
        by_slot = self.by_slot()
        return Tree(
            self.enrolled[by_slot[slot]].leaf if slot in by_slot else EMPTY
            for slot in range(self.n_slots)
        )

    # ------------------------------------------------------------------ keys

    def tag(self, owner: int, reader: int) -> bytes:
        """Return the tag of a client's key for another client."""
        own, slot = self.enrolled[owner], self.enrolled[reader].slot
        everywhere = self.n_slots <= 64 or own.slot in self.slots
        place = slot if everywhere else self.slots.index(slot)
        return own.tags[16 * place : 16 * (place + 1)]

    def peer(self, owner: int, reader: int) -> Peer:
        own = self.enrolled[owner]
        return Peer(slot=own.slot, public_key=own.public_key, tag=self.tag(owner, reader))

    def keys_of(self, index: int, who: Sequence[int] | None = None) -> Keys:
        """Return the request to a key distributor."""
        who = sorted(self.enrolled) if who is None else who
        return Keys(doc_hash=self.doc_hash, peers=tuple(self.peer(i, index) for i in who))

    def take_envelopes(
        self, distributor: int, envelopes: tuple[bytes, ...], who: Sequence[int]
    ) -> None:
        for index, envelope in zip(who, envelopes, strict=True):
            if envelope:
                self.envelopes[index] = (distributor, envelope)

    def wrap_for(self, index: int) -> Wrap | None:
        if index not in self.envelopes:
            return None
        distributor, envelope = self.envelopes[index]
        return Wrap(distributor=self.peer(distributor, index), envelope=envelope)

    # ------------------------------------------------------------------ requests

    def at(self, index: int, t: int, attempt: int = 1) -> dict[str, Any]:
        """Return what `Ask` and `Add` have in common."""
        values: dict[str, Any] = {"doc_hash": self.doc_hash, "t": t, "attempt": attempt}
        tree, own = self.tree(), self.enrolled[index]
        values |= {"n_slots": self.n_slots, "root": tree.root, "slot": own.slot}
        values |= {"path": tree.path(own.slot), "doc": self.run.data}
        if self.trust.is_protected:
            by_slot = self.by_slot()
            values["committee"] = self.committee().encode()
            if self.has_roster:
                values["tags"] = b"".join(
                    self.tag(by_slot[slot], index) if slot in by_slot else bytes(16)
                    for slot in self.slots
                )
        if self.trust.is_blind:
            values["wrap_for"] = self.wrap_for(index)
        return values

    def lacking(self, index: int) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.t > self.have.get(index, 0))

    def query_data(self) -> bytes:
        return encode_arrays(dict(self.run.algorithm.query(self.state).arrays))

    def ask_of(self, index: int, t: int = 1, attempt: int = 1, **changes: Any) -> Ask:
        """Return an honest request for an answer, with some fields changed."""
        values = self.at(index, t, attempt)
        if self.trust.is_blind:
            values["entries"] = self.lacking(index)
        else:
            values["query"] = self.query_data()
        return Ask(**{**values, **changes})

    def deal(
        self, t: int = 1, attempt: int = 1, who: Iterable[int] | None = None, **changes: Any
    ) -> dict[int, Any]:
        """Ask clients for their answers, and return all replies."""
        indices = sorted(self.enrolled) if who is None else who
        return {i: self.send(i, self.ask_of(i, t, attempt, **changes)) for i in indices}

    def add_of(
        self, index: int, answers: dict[int, Answer], t: int = 1, attempt: int = 1, **changes: Any
    ) -> Add:
        """Return an honest request for the sum-share of these answers, with fields changed."""
        who = sorted(answers, key=lambda i: self.enrolled[i].slot)
        position = self.slots.index(self.enrolled[index].slot)
        values = {
            "h": self.h if self.trust.is_blind else ZERO,
            "tag": next(iter(answers.values())).tag,
            "survivors": self.bitmap(who),
            "public_keys": b"".join(self.enrolled[i].public_key for i in who),
            "sealed": tuple(answers[i].sealed[position] for i in who),
        }
        return Add(**{**self.at(index, t, attempt), **values, **changes})

    def bitmap(self, who: Iterable[int]) -> bytes:
        """Return the bitmap of clients' slots."""
        survivors = np.zeros(self.n_slots, dtype=np.bool_)
        survivors[[self.enrolled[i].slot for i in who]] = True
        return transcript.pack_survivors(survivors)

    def context(self, t: int, attempt: int, tag: bytes) -> bytes:
        h = self.h if self.trust.is_blind else ZERO
        return transcript.round_context(
            self.doc_hash, t, attempt, self.n_slots, self.tree().root, self.com, h, tag
        )

    # ------------------------------------------------------------------ whole runs

    def play(self) -> "Cohort":
        """Set up, play all rounds and finish."""
        self.set_up()
        for t in range(1, self.document.rounds + 1):
            self.round(t)
        self.finish()
        return self

    def round(self, t: int) -> list[int]:
        """Play one round; return the clients in its sum."""
        for attempt in range(1, self.document.max_attempts + 1):
            missing = [i for i in sorted(self.enrolled) if i not in self.envelopes]
            requests = {i: self.ask_of(i, t, attempt) for i in sorted(self.enrolled)}
            distributor = self._distributor(missing)
            if distributor is not None:
                peers = tuple(self.peer(i, distributor) for i in missing)
                old = requests[distributor]
                requests[distributor] = msgspec.structs.replace(old, peers=peers)
            replies = self.send_all(requests)
            for index, reply in replies.items():
                if isinstance(reply, Answer):
                    self.have[index] = t - 1
                elif reply.code == Code.NEED:
                    self.have[index] = 0
            answers = self._largest({i: r for i, r in replies.items() if isinstance(r, Answer)})
            if distributor in replies and isinstance(replies[distributor], Answer):
                self.take_envelopes(distributor, replies[distributor].envelopes, missing)
            is_enough = len(answers) >= self.document.min_clients
            if is_enough and self.trust.has_committee:
                self._add(t, attempt, answers)
            elif is_enough:
                self._combine(t, attempt, answers)
            for index, reply in replies.items():  # this attempt's cohort was that before
                if code(reply) == Code.RENEW:
                    self.take(index, reply)
            if is_enough:
                return sorted(answers)
        raise AssertionError(f"Round {t} has too few answers: {self.refusals}")

    def _distributor(self, missing: list[int]) -> int | None:
        if not self.trust.is_blind or not missing:
            return None
        able = [i for i in sorted(self.enrolled) if i not in missing] or sorted(self.enrolled)
        in_committee = [i for i in able if self.enrolled[i].slot in self.slots]
        return in_committee[0]

    @staticmethod
    def _largest(answers: dict[int, Answer]) -> dict[int, Answer]:
        by_tag = sorted(answers.items(), key=lambda item: item[1].tag)
        groups = [dict(g) for _, g in itertools.groupby(by_tag, key=lambda item: item[1].tag)]
        return max(groups, key=len, default={})

    def _sum_context(self, context: bytes, t: int) -> SumContext:
        sharing = self.committee().sharing(self.trust.sum) if self.trust.has_committee else None
        return SumContext(context, self.document.words[t - 1], self.n_slots, sharing=sharing)

    def _add(self, t: int, attempt: int, answers: dict[int, Answer]) -> None:
        by_slot = self.by_slot()
        members = [by_slot[slot] for slot in self.slots if slot in by_slot]
        requests = {i: self.add_of(i, answers, t, attempt) for i in members}
        replies = self.send_all(requests)
        shares = {
            self.slots.index(self.enrolled[i].slot): reply.share
            for i, reply in replies.items()
            if isinstance(reply, Added)
        }
        self.close(t, attempt, answers, shares=tuple(sorted(shares.items())))

    def _combine(self, t: int, attempt: int, answers: dict[int, Answer]) -> None:
        run = self.run
        context = self._sum_context(self.context(t, attempt, next(iter(answers.values())).tag), t)
        parts = [answer.words for answer in answers.values()]
        if self.trust.noise_by == "server":
            noise = server_noise(run.algorithm, run.plan, t, Stream.fresh())
            parts.append(self.trust.sum.encode(np.append(noise, 0)))
        self.close(t, attempt, answers, words=self.trust.sum.combine(parts, context))

    def close(
        self,
        t: int,
        attempt: int,
        answers: dict[int, Answer],
        words: bytes = b"",
        shares: tuple[tuple[int, bytes], ...] = (),
    ) -> None:
        """Announce a sum to clients, or open it."""
        tag = next(iter(answers.values())).tag
        context = self.context(t, attempt, tag)
        sums = self._sum_context(context, t)
        survivors = self.bitmap(answers)
        if self.trust.is_blind:
            entry = Entry(
                t=t,
                attempt=attempt,
                n_slots=self.n_slots,
                root=self.tree().root,
                committee=self.com,
                tag=tag,
                survivors=survivors,
                packing=sums.sharing.packing if sums.sharing else 0,
                words=words,
                shares=shares,
            )
            self.entries.append(entry)
            self.h = transcript.next_hash(self.h, context, entry)
            return
        algorithm = self.run.algorithm
        combined = dict(shares) if shares else {0: words}
        bits = transcript.unpack_survivors(survivors, self.n_slots)
        opened = open_sum(self.run, t, combined, bits, sums)
        self.opened[t], self.noise_factor = opened.vector, opened.factor
        answered = len(answers) / self.n_slots
        statistic = algorithm.unflatten(self.opened[t][:-1], t, answered)
        self.state = algorithm.update(self.state, statistic)

    def finish_of(self, index: int, **changes: Any) -> Finish:
        """Return the honest request that ends a run, with some fields changed."""
        values: dict[str, Any] = {"doc_hash": self.doc_hash}
        if self.trust.is_blind:
            values |= {"entries": self.lacking(index), "wrap_for": self.wrap_for(index)}
        elif "result" not in changes:
            values["result"] = self.result()
        return Finish(**{**values, **changes})

    def result(self) -> bytes:
        result = result_of(self.run, self.state, self.noise_factor)
        assert result is not None
        return encode_result(result)

    def finish(self) -> dict[int, Any]:
        """End the run at all clients."""
        return self.send_all({i: self.finish_of(i) for i in sorted(self.enrolled)})


def code(reply: Reply) -> Code | None:
    """Return the code of a refusal, or ``None`` for any other reply."""
    return Code(reply.code) if isinstance(reply, Refusal) else None
