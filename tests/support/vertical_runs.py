"""Vertical runs between party objects in one process: documents, parties, and a relay.

Every message goes through its encoding. A party is a `Client` made anew for each
message from what its memory holds, so every message meets a restarted party.

Most tests let runs have `straight_signs`, which take a tenth of the time.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict
from soft import straight_signs as straight_signs

from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.data.domain import Box
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.messages import Reply, Request
from flower_kmeans.protocol.noise import sampler_of
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.run import PROTOCOL, Run, RunDocument, open_run
from flower_kmeans.protocol.session import ClientSession, Pairs, unpack_session
from flower_kmeans.protocol.trips import Replies
from flower_kmeans.protocol.wire import encode
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from flower_kmeans.vertical.protocol import relay
from flower_kmeans.vertical.protocol.body import Vertical
from flower_kmeans.vertical.protocol.messages import Delivery, Joined, VerticalStep
from flower_kmeans.vertical.protocol.parcels import Planned, Seals

N_RECORDS = 400
POLICY = replace(ClientPolicy.for_simulation(), in_memory=False, workers=1)


def make_algorithm(widths=(1, 1), **options: Any) -> VerticalAlgorithm:
    """Return a small algorithm whose noise is small beside its two clusters."""
    d = sum(widths)
    domain = options.pop("domain", None) or Box(
        [0.0] * d, [float(1 + i) for i in range(d)]
    )
    given = {
        "n_records": N_RECORDS,
        "n_parties": len(widths),
        "n_rounds": 2,
        "radius": False,
        "initial": [
            [0.3 * (1 + i) for i in range(d)],
            [0.7 * (1 + i) for i in range(d)],
        ],
        **options,
    }
    budget = PrivacyBudget(given.pop("epsilon", 8.0), delta=1e-6)
    return VerticalAlgorithm.planned(
        given.pop("n_clusters", 2), domain, budget, **given
    )


def make_document(
    widths=(1, 1), algorithm=None, check_ids=False, **changes: Any
) -> RunDocument:
    """Return the document of a small vertical run; ``changes`` are fields, fitting or not."""
    algorithm = algorithm or make_algorithm(widths)
    plan = algorithm.plan()
    colluders = changes.get("max_colluders", 1)
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "run": bytes(16),
        "trust": "vertical",
        "keys": "relayed",
        "min_clients": len(widths),
        "max_attempts": 1,
        "words": tuple(
            algorithm.layout(t).n_words for t in range(1, algorithm.n_rounds + 1)
        ),
        "privacy": plan.to_config(),
        "share_variance": f"1/{algorithm.key_holders + 1 - colluders}",
        "sampler": sampler_of(plan, True),
        "body": Vertical(
            algorithm=algorithm_to_config(algorithm),
            domain=algorithm.domain.to_config(),
            widths=tuple(widths),
            check_ids=check_ids,
        ),
    }
    return RunDocument(**{**fields, **changes})


def blobs(n_records=N_RECORDS, d=2, seed=0):
    """Return records (n, d) in two clusters within the box of `make_algorithm`."""
    random = np.random.default_rng(seed)
    centers = np.array([[0.25] * d, [0.75] * d])
    points = centers[np.arange(n_records) % 2] + random.normal(0, 0.05, (n_records, d))
    return np.clip(points, 0, 1) * np.arange(1, d + 1)


@dataclass
class Party:
    """What outlives a party's messages; ``records`` are those of the moment."""

    directory: Path
    records: Any
    policy: ClientPolicy
    ids: Any = None
    results: list = field(default_factory=list)
    is_failing: bool = False
    node_id: int = 0
    state: RecordDict = field(default_factory=RecordDict)  # of the context

    def ask(self, request: Request | bytes) -> Reply:
        """Let a new process of the party answer a message."""
        data = request if isinstance(request, bytes) else encode(request)
        return messages.decode_reply(self.client.answer_bytes(data))

    @property
    def client(self) -> Client:
        ids = self.ids
        load_ids = None if ids is None else lambda: ids
        return Client(
            self.policy, self.state, self._load, self._keep, load_ids, self.node_id
        )

    def session(self, run: Run) -> ClientSession:
        """Return the client session as it lies in the ledger."""
        with Ledger(self.directory) as ledger:
            return unpack_session(ledger.load(run.doc_hash)[1])

    def _load(self):
        if isinstance(self.records, BaseException):
            raise self.records
        return self.records

    def _keep(self, result):
        if self.is_failing:
            raise OSError("The disk is full.")
        self.results.append(result)

    def copied(self, directory: Path) -> "Party":
        """Return a copy with all that the party remembers, in another directory."""
        shutil.copytree(self.directory, directory)
        policy = replace(self.policy, state_dir=directory)
        state = deepcopy(self.state)
        return replace(
            self, directory=directory, policy=policy, results=[], state=state
        )

    def restart(self) -> None:
        """Lose what a SuperNode keeps of a run in memory; ledger and files stay."""
        self.state = RecordDict()


def make_parties(
    directory: Path, table, widths=(1, 1), ids=None, **changes: Any
) -> list[Party]:
    """Return parties with ledgers that hold the columns of a table."""
    columns = np.split(np.asarray(table), np.cumsum(widths)[:-1], axis=1)
    parties = []
    for slot, own in enumerate(columns):
        path = directory / f"party-{slot}"
        path.mkdir(mode=0o700, parents=True)
        policy = replace(POLICY, state_dir=path, party=slot, **changes)
        parties.append(Party(path, own, policy, ids, node_id=slot))
    return parties


@contextmanager
def interrupted(party: Party) -> Iterator[None]:
    """Undo what a party writes into its ledger meanwhile, as if it had ended before; keep files."""
    (path,) = party.directory.glob("ledger*")
    before = path.read_bytes()
    yield
    path.write_bytes(before)


class Forged:
    """A party that a test plays: it can seal whatever it likes, as its slot's session."""

    def __init__(self, run: Run, slot: int, session=None, identity=None) -> None:
        self.run, self.slot = run, slot
        self.session = session or ClientSession.begin(run.doc_hash, run.data, 1)
        self.pairs = Pairs(run.doc_hash, self.session, identity)

    def seals(self, other: Joined) -> Seals:
        """Return its seals with another party."""
        peers = {other.slot: relay.Party(0, other).peer}
        return Seals(
            self.run.doc_hash, self.session.secret, self.slot, self.pairs, peers
        )

    def deliver(self, to: Joined, data: bytes, step, t=0, number=0) -> Delivery:
        """Return a parcel with any data as another party receives it."""
        plan = Planned(self.slot, step, t, number, (to.slot,), len(data))
        parcel = self.seals(to).seal(plan, data)
        labels = {"step": step, "t": t, "number": number}
        return Delivery(
            sender=self.slot, **labels, key=parcel.keys[:48], data=parcel.data
        )

    def open(self, sender: Joined, delivery: Delivery, n_bytes: int) -> bytes:
        """Return what another party sealed for it."""
        labels = (delivery.step, delivery.t, delivery.number)
        plan = Planned(sender.slot, *labels, (self.slot,), n_bytes)
        return self.seals(sender).open(plan, delivery)


class Relay:
    """The library's server over parties in this process, whose nodes are their places.

    It keeps every byte that it sees. With ``repeats``, everything is requested twice,
    and the second reply must be that of the first. A party that returns ``None`` is
    silent.
    """

    def __init__(
        self, run: Run, parties: list[Party], repeats: bool = False, **server: Any
    ) -> None:
        self.run, self.parties, self.repeats = run, parties, repeats
        self.server = relay.Relay(run, **server)
        self.seen: list[tuple[int, bytes, bytes]] = []

    def trip(
        self, kind: str, requests: Mapping[int, Request], has_enough: Any
    ) -> Replies:
        """Carry a round trip without a loss."""
        for slot, request in requests.items():
            data = encode(request)
            reply = self.parties[slot].ask(data)
            if reply is None:
                continue
            self.seen.append((slot, data, encode(reply)))
            if self.repeats:
                assert encode(self.parties[slot].ask(data)) == encode(reply)
            yield slot, reply

    def enrol(self) -> None:
        self.server._enrol(list(range(len(self.parties))), self.trip)

    def do(self, slots: Iterable[int], step: VerticalStep) -> None:
        """Let parties do a step of the set-up, all parts of it."""
        self.server._step(step, slots, self.trip)

    def take(self, step: VerticalStep) -> None:
        """Play a round ("step"), or the end ("close")."""
        requests = self.server.request(step)
        self.server.take(step, requests, self.trip(step, requests, None), self.trip)


def code_of(reply: Reply) -> int:
    """Return the code of a refusal."""
    assert isinstance(reply, messages.Refusal), "no refusal"  # others are large
    return reply.code


def make_run(*args: Any, **options: Any) -> Run:
    """Return the run of `make_document`."""
    return open_run(encode(make_document(*args, **options)))
