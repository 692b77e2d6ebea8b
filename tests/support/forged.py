"""Real clients, and a server that sends them whatever a test makes of honest requests.

A `Scene` does what a server does to make requests: slots, tree, committee, tags, entries. It has
no rule of a server: it asks for any round, any attempt and any set of survivors. Clients are those
of the library, with all of their checks.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from documents import make_document
from flwr.app import RecordDict
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.domain import GridRecords
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.client import Client, ClientResult
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee, drawn
from flower_kmeans.protocol.messages import (
    Add,
    Answer,
    Ask,
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
from flower_kmeans.protocol.noise import noise_share
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.roster import Identity, Roster, read_identity, write_members
from flower_kmeans.protocol.run import Run, open_run
from flower_kmeans.protocol.session import ClientSession, ContextMemory, unpack_session
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, pack_survivors
from flower_kmeans.protocol.wire import encode, encode_arrays
from flower_kmeans.secagg import key_agreement
from flower_kmeans.secagg.base import SumContext

SHARED = ("distributed-noise", "clients-only")
BLIND = ("clients-only", "oblivious-server")
PROTECTED = ("distributed-noise", "clients-only", "oblivious-server")
BEACON = "ab" * 32
POLICY = replace(ClientPolicy.for_simulation(), min_clients=3)


class Node:
    """A client as a server meets it: a memory, and records that its operator may change."""

    def __init__(self, records: ArrayLike, policy: ClientPolicy = POLICY) -> None:
        self.records: Any = records
        self.policy = policy
        self.state = RecordDict()
        self.results: list[ClientResult] = []

    def handle(self, data: bytes) -> bytes:
        client = Client(self.policy, self.state, lambda: self.records, self.results.append)
        return client.answer_bytes(data)

    def send(self, request: Request) -> Reply:
        return decode_reply(self.handle(encode(request)))

    def restart(self) -> None:
        """Lose what a context holds; a ledger stays."""
        self.state = RecordDict()

    def session(self, doc_hash: bytes) -> ClientSession:
        """Return what the client remembers of a run, secrets included."""
        if self.policy.state_dir is None:
            session = ContextMemory(self.state).load(doc_hash)
        else:
            with Ledger(self.policy.state_dir) as ledger:
                found = ledger.load(doc_hash)
            session = None if found is None else unpack_session(found[1])
        assert session is not None
        return session


class Scene:
    """A run with its clients, who are numbered by their slots."""

    def __init__(
        self,
        directory: Path,
        trust: str = "distributed-noise",
        keys: str = "roster",
        n: int = 7,
        *,
        absent: Iterable[int] = (),
        enrolled: bool = True,
        ledger: bool = False,
        policy: dict[str, Any] | None = None,
        nodes: list[Node] | None = None,
        roster: Roster | None = None,
        **changes: Any,
    ) -> None:
        document = make_document(trust, **changes)
        protected = document.keys != "none"
        self.roster, self.identities = roster, []
        given = replace(POLICY, **policy or {})
        if nodes is None:
            policies = [given] * n
            if protected and keys == "roster":
                *files, listed = write_members(
                    directory / "keys", [f"m{i}" for i in range(n)], BEACON
                )
                self.roster = Roster.from_file(listed)
                policies = [
                    replace(given, roster_file=str(listed), member_key_file=str(f)) for f in files
                ]
            if ledger:
                policies = [
                    replace(p, state_dir=str(directory / f"ledger-{i}"), in_memory=False)
                    for i, p in enumerate(policies)
                ]
            rng = np.random.default_rng(7)
            nodes = [Node(rng.random((20, 2)), p) for p in policies]
        self.nodes = nodes
        self.absent = set(absent)
        if protected and keys == "roster" and "keys" not in changes:
            assert self.roster is not None
            document = msgspec.structs.replace(
                document, keys="roster", roster=changes.get("roster") or self.roster.digest
            )
        self.document = document
        self.data = encode(document)
        self.seats: dict[int, Enrolled] = {}
        self.entries: list[Entry] = []
        self.have = dict.fromkeys(range(len(nodes)), 0)
        self.wraps: dict[int, Wrap] = {}
        self.totals: dict[int, NDArray[np.int64]] = {}
        if enrolled:
            self.enrol()

    @property
    def run(self) -> Run:
        return open_run(self.data)

    @property
    def doc_hash(self) -> bytes:
        return self.run.doc_hash

    @property
    def blind(self) -> bool:
        return self.run.trust.is_blind

    # ------------------------------------------------------------------ cohort

    def enrol(self) -> None:
        for i, node in enumerate(self.nodes):
            if i not in self.absent:
                reply = node.send(Enrol(doc=self.data))
                assert isinstance(reply, Enrolled), reply
                self.seats[i] = reply
        self.frame()
        if self.run.trust.commits_to_records:
            self.share_group_key(min(self.seats))

    def frame(self, present: Iterable[int] | None = None, committee: Iterable[int] = ()) -> None:
        """Make the tree and the committee of those that have a seat, or of some of them."""
        there = set(self.seats) if present is None else set(present)
        self.n_slots = len(self.nodes) if self.roster else max(there) + 1
        leaves = [
            transcript.leaf(i, r.commitment, r.static, r.public_key)
            if (r := self.seats.get(i)) and i in there
            else EMPTY
            for i in range(self.n_slots)
        ]
        self.tree = Tree(leaves)
        slots = tuple(committee) or tuple(range(self.n_slots))
        if not committee and self.n_slots > MAX_POSITIONS and self.roster:
            slots = drawn(self.roster.keys, self.roster.beacon, self.document.epoch)
        self.committee = Committee(
            slots,
            tuple(self.seats[i].public_key if i in there else b"" for i in slots),
            self.n_slots,
            self.document.max_colluders,
        )

    def renew(self, i: int, reply: Reply) -> None:
        """Take a client's new session."""
        assert isinstance(reply, Refusal)
        assert reply.commitment is not None, reply
        self.seats[i] = Enrolled(
            doc_hash=self.doc_hash,
            commitment=reply.commitment,
            static=reply.static,
            public_key=reply.public_key,
            tags=reply.tags,
        )
        self.frame()

    def tag(self, owner: int, reader: int) -> bytes:
        """Return the tag that one client made of its key for another."""
        tags = self.seats[owner].tags
        n_tags = len(tags) // 16
        at = reader if n_tags == len(self.nodes) else self.committee.slots.index(reader)
        return tags[16 * at : 16 * at + 16]

    def peer(self, owner: int, reader: int) -> Peer:
        key = self.seats[owner].public_key
        return Peer(slot=owner, public_key=key, tag=self.tag(owner, reader) if self.roster else b"")

    def share_group_key(self, distributor: int) -> None:
        """Let one client seal a group secret for all."""
        peers = tuple(self.peer(i, distributor) for i in sorted(self.seats))
        reply = self.nodes[distributor].send(Keys(doc_hash=self.doc_hash, peers=peers))
        assert isinstance(reply, Wrapped), reply
        self.take_envelopes(distributor, reply.envelopes)

    def take_envelopes(self, distributor: int, envelopes: tuple[bytes, ...]) -> None:
        for i, envelope in zip(sorted(self.seats), envelopes, strict=True):
            self.wraps[i] = Wrap(distributor=self.peer(distributor, i), envelope=envelope)

    def wrap_again(self, i: int, by: int) -> None:
        """Let a client that has the group key seal it for one that began a new session."""
        statics = (self.identity(by).secret, self.roster.keys[i]) if self.roster else ()
        own, key = self.session(by), self.seats[i].public_key
        shared = key_agreement.pair_secret(own.ephemeral, key, *statics)
        public = self.seats[by].public_key
        seal_key = key_agreement.wrap_key(shared, self.doc_hash, public, key)
        envelope = key_agreement.seal(seal_key, own.group_secret, self.doc_hash)
        self.wraps[i] = Wrap(distributor=self.peer(by, i), envelope=envelope)

    # ------------------------------------------------------------------ requests

    def at(self, i: int, t: int, attempt: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "doc_hash": self.doc_hash,
            "t": t,
            "attempt": attempt,
            "n_slots": self.n_slots,
            "root": self.tree.root,
            "slot": i,
            "path": self.tree.path(i),
            "doc": self.data,
        }
        if self.run.trust.is_protected:
            fields["committee"] = self.committee.encode()
            if self.roster is not None:
                rows = zip(self.committee.slots, self.committee.public_keys, strict=True)
                fields["tags"] = b"".join(self.tag(j, i) if key else bytes(16) for j, key in rows)
        if self.blind and i in self.wraps:
            fields["wrap_for"] = self.wraps[i]
        return fields

    def query(self) -> bytes:
        """Return the query of the round after the last sum that the server opened."""
        algorithm = self.run.algorithm
        state = algorithm.initial_state(None)
        for t in sorted(self.totals):
            state = algorithm.update(state, algorithm.unflatten(self.totals[t][:-1], t, 1.0))
        return encode_arrays(dict(algorithm.query(state).arrays))

    def ask_of(self, i: int, t: int = 1, attempt: int = 1, **changes: Any) -> Ask:
        fields = self.at(i, t, attempt)
        if self.blind:
            fields["entries"] = tuple(e for e in self.entries if e.t > self.have[i])
            if not self.wraps and t == 1:
                fields["peers"] = tuple(self.peer(j, i) for j in sorted(self.seats))
        else:
            fields["query"] = self.query()
        return Ask(**{**fields, **changes})

    def ask(self, i: int, t: int = 1, attempt: int = 1, **changes: Any) -> Reply:
        return self.nodes[i].send(self.ask_of(i, t, attempt, **changes))

    def deal(
        self, t: int = 1, attempt: int = 1, who: Iterable[int] | None = None, **changes: Any
    ) -> dict[int, Answer]:
        """Ask clients and return their answers, which they must give."""
        answers = {}
        for i in sorted(self.seats) if who is None else who:
            reply = self.ask(i, t, attempt, **changes)
            assert isinstance(reply, Answer), (i, reply)
            answers[i] = reply
            self.have[i] = t - 1
        if self.blind and not self.wraps:
            first = min(answers)
            self.take_envelopes(first, answers[first].envelopes)
        return answers

    @property
    def h(self) -> bytes:
        """The transcript's hash, which any client knows; zeros where the server asks."""
        if not self.blind:
            return ZERO
        h = transcript.first_hash(self.doc_hash)
        for entry in self.entries:
            h = transcript.next_hash(h, transcript.entry_context(self.doc_hash, h, entry), entry)
        return h

    def context(self, t: int, attempt: int, tag: bytes) -> bytes:
        com = self.committee.digest if self.run.trust.is_protected else ZERO
        return transcript.round_context(
            self.doc_hash, t, attempt, self.n_slots, self.tree.root, com, self.h, tag
        )

    def bitmap(self, slots: Iterable[int], n_slots: int | None = None) -> bytes:
        survivors = np.zeros(n_slots or self.n_slots, dtype=np.bool_)
        survivors[list(slots)] = True
        return pack_survivors(survivors)

    def add_of(
        self, i: int, answers: dict[int, Answer], t: int = 1, attempt: int = 1, **changes: Any
    ) -> Add:
        who = sorted(answers)
        position = self.committee.position_of(i)
        assert position is not None
        fields = {
            **self.at(i, t, attempt),
            "h": self.h,
            "tag": answers[who[0]].tag,
            "survivors": self.bitmap(who),
            "public_keys": b"".join(self.seats[j].public_key for j in who),
            "sealed": tuple(answers[j].sealed[position] for j in who),
        }
        return Add(**{**fields, **changes})

    def add(
        self, i: int, answers: dict[int, Answer], t: int = 1, attempt: int = 1, **changes: Any
    ) -> Reply:
        return self.nodes[i].send(self.add_of(i, answers, t, attempt, **changes))

    # ------------------------------------------------------------------ rounds

    def round(self, t: int, attempt: int = 1, who: Iterable[int] | None = None) -> None:
        """Play one honest round."""
        answers = self.deal(t, attempt, who)
        first = next(iter(answers.values()))
        if not self.run.trust.has_committee:
            total = self.run.trust.sum.combine(
                [a.words for a in answers.values()], self.sums(t, attempt, first.tag)
            )
            if self.blind:
                self.announce(t, attempt, answers, words=total)
            else:
                self.totals[t] = np.frombuffer(total, dtype="<i8").astype(np.int64)
            return
        shares = {}
        for position, slot in enumerate(self.committee.slots):
            if slot in self.seats and self.committee.public_keys[position]:
                reply = self.add(slot, answers, t, attempt)
                assert not isinstance(reply, Refusal), (slot, reply)
                shares[position] = reply.share
        if self.blind:
            sharing = self.committee.sharing(self.run.trust.sum)
            packing = 0 if sharing is None else sharing.packing
            self.announce(t, attempt, answers, packing=packing, shares=tuple(shares.items()))
        else:
            survivors = np.isin(np.arange(self.n_slots), list(answers))
            sums = self.sums(t, attempt, first.tag)
            self.totals[t] = self.run.trust.sum.open(shares, survivors, sums).vector

    def sums(self, t: int, attempt: int, tag: bytes, group_key: bytes = b"") -> SumContext:
        trust = self.run.trust
        sharing = self.committee.sharing(trust.sum) if trust.has_committee else None
        context = self.context(t, attempt, tag)
        return SumContext(context, self.document.words[t - 1], self.n_slots, group_key, sharing)

    def announce(self, t: int, attempt: int, answers: dict[int, Answer], **body: Any) -> Entry:
        entry = Entry(
            t=t,
            attempt=attempt,
            n_slots=self.n_slots,
            root=self.tree.root,
            committee=self.committee.digest,
            tag=answers[min(answers)].tag,
            survivors=self.bitmap(answers),
            **body,
        )
        self.entries.append(entry)
        return entry

    def finish(self) -> list[Reply]:
        """Deliver the result, or the last entries, to all."""
        replies = []
        for i in sorted(self.seats):
            fields: dict[str, Any] = {"doc_hash": self.doc_hash}
            if self.blind:
                fields["entries"] = tuple(e for e in self.entries if e.t > self.have[i])
                fields["wrap_for"] = self.wraps[i]
            else:
                k, d = self.run.algorithm.n_clusters, self.run.algorithm.domain.n_features
                fields["result"] = encode_arrays(
                    {"centroids": np.full((k, d), 0.5), "counts": np.ones(k)}
                )
            replies.append(self.nodes[i].send(Finish(**fields)))
        return replies

    # ------------------------------------------------------------------ what only clients know

    def session(self, i: int) -> ClientSession:
        return self.nodes[i].session(self.doc_hash)

    def identity(self, i: int) -> Identity:
        policy = self.nodes[i].policy
        assert policy.roster_file is not None
        assert policy.member_key_file is not None
        return read_identity(policy.roster_file, policy.member_key_file)

    def group_key(self, i: int) -> bytes:
        return key_agreement.group_key(self.session(i).group_secret, self.doc_hash)

    def exact(self, i: int, t: int = 1, state: Any = None) -> NDArray[np.int64]:
        """Return a client's statistic of round t, without noise."""
        algorithm = self.run.algorithm
        query = algorithm.query(state or algorithm.initial_state(None))
        records = np.asarray(self.nodes[i].records, dtype=np.float64)
        grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
        return algorithm.flatten(algorithm.answer(query, grid), t)

    def noise(self, i: int, context: bytes) -> NDArray[np.int64]:
        """Return a client's noise share of round 1 in a context."""
        algorithm = self.run.algorithm
        key = key_agreement.noise_key(self.session(i).secret, context)
        shares = self.document.noise_shares
        return noise_share(algorithm, self.run.plan, 1, shares, Stream.from_key(key))

    def pair_key(self, i: int, j: int, context: bytes, position: int) -> bytes:
        """Return the key of dealer i's share for committee member j, by the member's secrets."""
        dealer, own = self.seats[i].public_key, self.session(j).ephemeral
        statics = (self.identity(j).secret, self.roster.keys[i]) if self.roster else ()
        ikm = key_agreement.pair_secret(own, dealer, *statics)
        mine = key_agreement.public_key(own)
        return key_agreement.share_key(ikm, context, i, position, dealer, mine)
