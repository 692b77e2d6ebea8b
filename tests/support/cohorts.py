"""Real clients and the library's server in memory, for tests of single messages and of attacks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from documents import TRUSTS, make_algorithm, make_document
from flwr.app import RecordDict
from harness import exact_statistic
from numpy.typing import NDArray

from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm
from flower_kmeans.privacy.ledger import Ledger, LifetimeLimit
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import messages, noise, transcript
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import (
    Add,
    Answer,
    Ask,
    Code,
    Entry,
    Peer,
    Refusal,
    Reply,
    Request,
)
from flower_kmeans.protocol.participants import Frame
from flower_kmeans.protocol.participants import Participant as Member
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.protocol.roster import ROSTER_FILE, Identity, Roster, write_members
from flower_kmeans.protocol.run import Run, open_run
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.session import ClientSession, ContextMemory, LedgerMemory
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.trips import Replies
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import encode, encode_arrays
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import SumContext

PROTECTED = tuple(name for name in TRUSTS if trust_model(name).is_protected)
SHARED = tuple(name for name in TRUSTS if trust_model(name).has_committee)
BLIND = tuple(name for name in TRUSTS if trust_model(name).is_blind)
KEYS = ("roster", "relayed")
BEACON = "5f" * 32
change = msgspec.structs.replace


def make_run(
    trust: str,
    keys: str,
    *,
    rounds: int = 3,
    roster: Roster | None = None,
    **fields: Any,
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


def pieces(data: bytes, n: int) -> list[bytes]:
    """Return the equal pieces of bytes that travelled together."""
    assert len(data) % n == 0
    size = len(data) // n
    return [data[start : start + size] for start in range(0, len(data), size)]


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
    node_id: int = 0
    shared: SharedWork = NO_SHARED_WORK
    ids: Any = None
    """Whose each record is; None without a function that loads ids."""
    weights: Any = None
    with_own_sizes: bool = False

    def load(self) -> Any:
        self.n_loads += 1
        return self.records() if callable(self.records) else self.records

    @property
    def client(self) -> Client:
        return Client(
            self.policy,
            self.state,
            self.load,
            self.results.append,
            load_ids=None if self.ids is None else lambda: self.ids,
            node_id=self.node_id,
            shared=self.shared,
            load_weights=None if self.weights is None else lambda: self.weights,
            with_own_sizes=self.with_own_sizes,
        )

    def answer(self, data: bytes) -> bytes:
        """Return the reply to an encoded request."""
        return self.client.answer_bytes(data)

    def send(self, request: Request) -> Reply:
        """Send a request."""
        reply = messages.decode_reply(self.answer(encode(request)))
        return reply if self.change is None else self.change(request, reply)

    def session(self, run: bytes) -> ClientSession | None:
        """Return what the client remembers of a run."""
        if self.policy.state_dir is None:
            return ContextMemory(self.state).load(run)
        with Ledger(self.policy.state_dir) as ledger:
            return LedgerMemory(
                ledger, LifetimeLimit(1, 0.1), self.policy.state_dir
            ).load(run)

    def save(self, run: bytes, session: ClientSession) -> None:
        """Replace what the client remembers of a run."""
        if self.policy.state_dir is None:
            ContextMemory(self.state).save(run, session)
        else:
            with Ledger(self.policy.state_dir) as ledger:
                memory = LedgerMemory(
                    ledger, LifetimeLimit(1, 0.1), self.policy.state_dir
                )
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
    """Return clients with lasting keys and perhaps ledgers in a directory, and their roster.

    They share their work, as those of a simulation.
    """
    names = [f"client{i}" for i in range(n)]
    roster = None
    paths: list[dict[str, Any]] = [{} for _ in names]
    if keys == "roster":
        beacon = BEACON if beacon is None and n > 64 else beacon
        write_members(directory / "keys", names, beacon)
        roster_file = directory / "keys" / ROSTER_FILE
        roster = Roster.from_file(roster_file)
        paths = [
            {
                "roster_file": roster_file,
                "member_key_file": directory / "keys" / f"{name}.key",
            }
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
    shared = SharedWork()
    nodes = [
        Node(
            ClientPolicy(**{**values, **path}), records_of(i), node_id=i, shared=shared
        )
        for i, path in enumerate(paths)
    ]
    return nodes, roster


def kept_pairs(shared: SharedWork) -> dict[Any, bytes]:
    """Return what clients keep of pairs, by the names under which they keep it."""
    return dict(shared.secret.__self__._found)


class Cohort:
    """The library's server and its clients, whose nodes are numbers from 0, in order of slots.

    The server plays honest rounds. Requests by hand follow no rules: a test asks for
    any round, attempt, committee and survivors, and changes what it likes.
    """

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
        roster = self.roster if self.document.keys == "roster" else None
        self.server = Server(self.run, roster=roster)
        self.refusals: list[tuple[int, Refusal]] = []

    # ------------------------------------------------------------------ whole runs

    def send(self, i: int, request: Request) -> Reply:
        """Send one request, and keep the reply if it is a refusal."""
        reply = self.nodes[i].send(request)
        if isinstance(reply, Refusal):
            self.refusals.append((i, reply))
        return reply

    def trip(
        self, _: str, requests: Mapping[int, Request], has_enough: Any = None
    ) -> Replies:
        """Carry a round trip of the server, without a loss."""
        return [(i, self.send(i, request)) for i, request in requests.items()]

    def set_up(self, who: Iterable[int] | None = None) -> "Cohort":
        """Enrol clients, all unless they are named; and further ones at once."""
        chosen = range(len(self.nodes)) if who is None else who
        if not self.enrolled:
            self.server.set_up(chosen, self.trip)
        else:
            for i in chosen:
                self.take(i, self.send(i, messages.Enrol(doc=self.run.data)))
        return self

    def round(self, t: int, who: Iterable[int] | None = None) -> list[int]:
        """Play the next round, with some clients; return those in its sum."""
        requests = self.server.ask()
        asked = requests if who is None else {i: requests[i] for i in who}
        self.server.take_answers(self.trip("ask", asked), self.trip)
        assert self.server.head == t
        return sorted(
            self.enrolled.keys()
            - {d.node_id for d in self.server.dropped if d.round == t}
        )

    def finish(self) -> dict[int, Any]:
        """End the run at all clients."""
        replies = dict(self.trip("finish", self.server.finish_requests()))
        self.server.take_finished(replies.items(), self.trip)
        return replies

    def play(self) -> "Cohort":
        """Set up, play all rounds and finish."""
        self.set_up()
        for t in range(1, self.document.rounds + 1):
            self.round(t)
        self.finish()
        return self

    # ------------------------------------------------------------ what the server knows

    @property
    def _cohort(self) -> Any:
        """What the server keeps of its clients."""
        return self.server._cohort

    @property
    def enrolled(self) -> dict[int, Member]:
        """The clients with a slot."""
        return self._cohort.clients

    @property
    def frame(self) -> Frame:
        """The cohort as it is now."""
        return self._cohort.frame()

    @property
    def committee(self) -> Committee:
        """The committee of a protected run."""
        assert self.frame.committee is not None
        return self.frame.committee

    @property
    def h(self) -> bytes:
        """The transcript's hash."""
        return self.server._announced.h

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The sums that were announced."""
        return tuple(self.server._announced.entries)

    def announce(self, entry: Entry) -> None:
        """Let the server announce a sum that it did not make."""
        self.server._announced.entries[entry] = 0

    def reframe(
        self,
        *,
        present: Iterable[int] | None = None,
        committee: Iterable[int] = (),
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        """Take all but some clients for absent, others for the committee, or other keys."""
        cohort = self._cohort
        self._claims = getattr(self, "_claims", cohort.claims)
        if present is not None:
            cohort.claims = {k: self._claims[k] for k in present}
            if self.document.keys == "relayed":  # slots are those of the present
                cohort._committee = None
        if committee:
            cohort._committee = tuple(committee)
        for i, key in (keys or {}).items():
            self.enrolled[i].public = change(self.enrolled[i].public, public_key=key)
        cohort._frame = None

    def take(self, i: int, reply: Any) -> None:
        """Take up the session of an enrolment or a renewal at once."""
        cohort = self._cohort
        if i not in cohort.clients:
            cohort.take(i, reply)
        elif reply.public_key != cohort.clients[i].public.public_key:
            assert cohort.renew(cohort.clients[i], reply)
        cohort.frame()

    def key(self, i: int) -> bytes:
        """Return the public key of a client's session."""
        return self.enrolled[i].public.public_key

    def peer(self, owner: int) -> Peer:
        """Return a client as it is passed on to others."""
        return self.enrolled[owner].peer

    def keys_of(self) -> messages.Keys:
        """Return the request to a key distributor."""
        return messages.Keys(
            doc_hash=self.doc_hash,
            peers=b"".join(self.peer(j).row for j in self.enrolled),
        )

    def take_envelopes(
        self, by: int, key_id: bytes, envelopes: bytes, who: Iterable[int]
    ) -> None:
        """Take the envelopes of a key distributor for some clients, in place of others."""
        for i, envelope in zip(who, messages.split(envelopes, 48), strict=True):
            self.enrolled[i].wraps = [
                messages.Wrap(
                    distributor=self.peer(by).row, key_id=key_id, envelope=envelope
                )
            ]

    def wraps(self, i: int) -> tuple[messages.Wrap, ...]:
        """Return the envelopes for a client, whether it needs one or not."""
        return tuple(self.enrolled[i].wraps)

    def entry(self, t: int, attempt: int, **fields: Any) -> Entry:
        """Return an entry for the cohort as it is now."""
        frame = self.frame
        cohort = {
            "n_slots": frame.n_slots,
            "root": frame.tree.root,
            "committee": frame.digest,
        }
        return Entry(t=t, attempt=attempt, **cohort, **fields)

    def bitmap(self, who: Iterable[int]) -> bytes:
        """Return the bitmap of clients' slots."""
        return transcript.pack_survivors(self.frame.bits(self.enrolled[i] for i in who))

    def sums(self, t: int, attempt: int, tag: bytes) -> SumContext:
        """Return what the sum of an attempt depends on."""
        frame, h = self.frame, self.h if self.trust.is_blind else ZERO
        cohort = frame.n_slots, frame.tree.root, frame.digest
        digest = transcript.round_context(self.doc_hash, t, attempt, *cohort, h, tag)
        sharing = frame.sharing if self.trust.has_committee else None
        return SumContext(
            digest, self.document.words[t - 1], frame.n_slots, sharing=sharing
        )

    def context(self, t: int, attempt: int, tag: bytes) -> bytes:
        """Return the context of an attempt."""
        return self.sums(t, attempt, tag).digest

    # ----------------------------------------------------------------- requests by hand

    def at(self, i: int, t: int, attempt: int = 1) -> dict[str, Any]:
        """Return what `Ask` and `Add` have in common."""
        frame, own = self.frame, self.enrolled[i]
        values: dict[str, Any] = {"doc_hash": self.doc_hash, "t": t, "attempt": attempt}
        values |= {"n_slots": frame.n_slots, "root": frame.tree.root, "slot": own.slot}
        values |= {"path": frame.tree.path(own.slot), "committee": frame.encoded}
        return {**values, "doc": self.run.data, "wraps": self.wraps(i)}

    def lacking(self, i: int) -> tuple[Entry, ...]:
        """Return the entries that a client lacks."""
        return self.entries[self.enrolled[i].head :]

    def query_data(self) -> bytes:
        """Return the query of a server that sees the sums."""
        return encode_arrays(dict(self.run.algorithm.query(self.server.state).arrays))

    def ask_of(self, i: int, t: int = 1, attempt: int = 1, **changes: Any) -> Ask:
        """Return an honest request for an answer, with some fields changed."""
        values = self.at(i, t, attempt)
        if self.document.keys == "roster" and self.trust.has_committee:
            values["claims"] = self.frame.claims
        if not self.trust.is_blind:
            values["query"] = self.query_data()
        else:
            values["entries"] = self.lacking(i)
            if t == 1 and not any(own.wraps for own in self.enrolled.values()):
                values["peers"] = self.keys_of().peers
        return Ask(**{**values, **changes})

    def ask(self, i: int, t: int = 1, attempt: int = 1, **changes: Any) -> Reply:
        """Ask one client, with some fields changed."""
        return self.send(i, self.ask_of(i, t, attempt, **changes))

    def deal(
        self,
        t: int = 1,
        attempt: int = 1,
        who: Iterable[int] | None = None,
        **changes: Any,
    ) -> dict[int, Any]:
        """Ask clients for their answers, take the first one's envelopes, and return all replies."""
        chosen = list(self.enrolled if who is None else who)
        requests = {i: self.ask_of(i, t, attempt, **changes) for i in chosen}
        replies = dict(self.trip("ask", requests))
        answers = {
            i: reply for i, reply in replies.items() if isinstance(reply, Answer)
        }
        for i, answer in answers.items():
            self.enrolled[i].head = t - 1
            if answer.envelopes and not any(
                own.wraps for own in self.enrolled.values()
            ):
                self.take_envelopes(i, answer.key_id, answer.envelopes, self.enrolled)
        return replies

    def add_of(
        self,
        i: int,
        answers: Mapping[int, Answer],
        t: int = 1,
        attempt: int = 1,
        **changes: Any,
    ) -> Add:
        """Return an honest request for the sum-share of these answers, with fields changed."""
        position = self.committee.positions.get(self.enrolled[i].slot)
        values = {
            "h": self.h if self.trust.is_blind else ZERO,
            "tag": next(iter(answers.values())).tag,
            "survivors": self.bitmap(answers),
            "public_keys": b"".join(map(self.key, sorted(answers))),
            "sealed": b"".join(self._sealed_at(position, answers)),
        }
        return Add(**{**self.at(i, t, attempt), **values, **changes})

    def _sealed_at(
        self, position: int | None, answers: Mapping[int, Answer]
    ) -> Iterator[bytes]:
        """Yield what clients sealed for a position, in the order of their slots."""
        present = self.committee.present
        for i in sorted(answers):
            parts = pieces(answers[i].sealed, len(present))
            yield b"" if position is None else parts[present.index(position)]

    def add(
        self,
        i: int,
        answers: Mapping[int, Answer],
        t: int = 1,
        attempt: int = 1,
        **changes: Any,
    ) -> Reply:
        """Ask one member of the committee to add, with some fields changed."""
        return self.send(i, self.add_of(i, answers, t, attempt, **changes))

    def finish_of(self, i: int, **changes: Any) -> messages.Finish:
        """Return the honest request that ends a run, with some fields changed."""
        if not self.trust.is_blind and not changes:
            return self.server.finish_requests()[i]
        values = {"entries": self.lacking(i), "wraps": self.wraps(i)}
        return messages.Finish(doc_hash=self.doc_hash, **{**values, **changes})

    # ----------------------------------------------------------- what only clients know

    def session(self, i: int) -> ClientSession:
        """Return what a client remembers of the run, secrets included."""
        session = self.nodes[i].session(self.doc_hash)
        assert session is not None
        return session

    def identity(self, i: int) -> Identity:
        """Return a client's lasting keys."""
        return self.nodes[i].policy.read_identity()

    def group_key(self, i: int) -> bytes:
        """Return the group key that a client has."""
        return primitives.group_key(self.session(i).group_secret, self.doc_hash)

    def exact(self, i: int) -> NDArray[np.int64]:
        """Return a client's statistic of round 1, without noise."""
        algorithm = self.run.algorithm
        query = algorithm.query(algorithm.initial_state(None))
        return exact_statistic(algorithm, query, self.nodes[i].records)

    def noise(self, i: int, context: bytes) -> NDArray[np.int64]:
        """Return a client's noise share of round 1 in a context."""
        return noise.client_noise(self.run, 1, self.session(i).secret, context)

    def pair_secret(self, i: int, j: int) -> bytes:
        """Return what two clients have in common, by the secrets of the second."""
        statics = (self.exchange_secret(j), self.exchange_key(i)) if self.roster else ()
        return primitives.pair_secret(self.session(j).ephemeral, self.key(i), *statics)

    def exchange_secret(self, i: int) -> bytes:
        """Return the X25519 half of a client's lasting key."""
        return primitives.exchange_secret(self.identity(i).seed)

    def exchange_key(self, i: int) -> bytes:
        """Return the public half of it."""
        assert self.roster is not None
        return primitives.exchange_key(self.roster.keys[i])

    def pair_key(self, i: int, j: int, context: bytes, position: int) -> bytes:
        """Return the key of dealer i's share for committee member j."""
        shared = self.pair_secret(i, j)
        return primitives.share_key(
            shared, context, i, position, self.key(i), self.key(j)
        )

    def wrap_again(self, i: int, by: int) -> None:
        """Let a client that has the group key seal it for one that began a new session."""
        shared = self.pair_secret(i, by)
        key = primitives.wrap_key(shared, self.doc_hash, self.key(by), self.key(i))
        envelope = primitives.seal(key, self.session(by).group_secret, self.doc_hash)
        group_key = primitives.group_key(self.session(by).group_secret, self.doc_hash)
        key_id = primitives.key_id(group_key, self.doc_hash)
        self.take_envelopes(by, key_id, envelope, [i])


def code(reply: Reply) -> Code | None:
    """Return the code of a refusal, or ``None`` for any other reply."""
    return Code(reply.code) if isinstance(reply, Refusal) else None
