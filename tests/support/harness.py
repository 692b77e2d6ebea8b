"""What the tests of whole runs share: a recording grid, a hostile server, statistics."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import Result
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flower_kmeans.algorithms.base import Query, State
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm, LloydFamily
from flower_kmeans.client import ClientPolicy, kmeans_client_app
from flower_kmeans.domain import Box, GridRecords
from flower_kmeans.faults import Fault, FaultyClientApp, FaultyGrid
from flower_kmeans.federation.coordinator import Coordinator
from flower_kmeans.federation.document import RunDocument
from flower_kmeans.federation.in_process import InProcessGrid, task_identity
from flower_kmeans.federation.life import Life, load_life
from flower_kmeans.federation.member import ClientResult, Member
from flower_kmeans.federation.messages import (
    EnrolReply,
    LeadReply,
    OpenReply,
    Refusal,
    Request,
    Round,
    RoundReply,
    to_content,
)
from flower_kmeans.federation.roster import write_members
from flower_kmeans.federation.run import Run
from flower_kmeans.federation.transcript import Entry, first_hash, next_hash, unpack_words
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.secagg import masks
from flower_kmeans.secagg.ring import from_ring
from flower_kmeans.strategies import KMeansStrategy

P_VALUE = 1e-9
"""A statistical test fails by chance about this often, whatever the seed."""

KMEANS = "kmeans"

# --------------------------------------------------------------------------- statistics


def byte_p_value(data: bytes) -> float:
    """Return the p-value of these bytes under the uniform law."""
    return float(stats.chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue)


def same_law_p_value(first: bytes, second: bytes) -> float:
    """Return the p-value of two sets of bytes under one common law."""
    table = np.array(
        [np.bincount(np.frombuffer(x, np.uint8), minlength=256) for x in (first, second)]
    )
    return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)


def fits(sample: NDArray[np.float64], law: Any = stats.norm) -> bool:
    """Test shape (Kolmogorov and Smirnov) and scale (the law of the sum of squares, or sizes)."""
    shape = stats.kstest(sample, law.cdf).pvalue
    if law is stats.norm:
        tail = stats.chi2(len(sample)).cdf(np.sum(sample**2))
    else:
        tail = stats.gamma(len(sample)).cdf(np.sum(np.abs(sample)))
    return bool(min(shape, 2 * tail, 2 * (1 - tail)) > P_VALUE)


# --------------------------------------------------------------------------- recorded runs


@dataclass(frozen=True)
class Recorded:
    """One message as the server process received or sent it."""

    node_id: int
    message_type: str
    data: bytes
    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.fields.get("kind", ""))


def _recorded(message: Message, node_id: int) -> Recorded:
    record = message.content.get(KMEANS) if message.has_content() else None
    fields = dict(record) if isinstance(record, ConfigRecord) else {}
    data = message_to_proto(message).SerializeToString()
    return Recorded(node_id, message.metadata.message_type, data, fields)


class RecordingGrid(InProcessGrid):
    """An in-process grid that keeps every byte that the server process sends and receives."""

    def __init__(self, client_app: Callable[[Message, Context], Message], n_nodes: int) -> None:
        super().__init__(client_app, n_nodes)
        self.sent: list[Recorded] = []
        self.received: list[Recorded] = []
        self.on_push: Callable[[list[Message]], None] | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        if self.on_push is not None:
            self.on_push(listed)
        self.sent += [_recorded(message, message.metadata.dst_node_id) for message in listed]
        return super().push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            self.received.append(_recorded(reply, reply.metadata.src_node_id))
            yield reply

    @property
    def states(self) -> dict[int, RecordDict]:
        """The nodes' memories."""
        return {node: context.state for node, context in self._contexts.items()}


@dataclass
class Outcome:
    """A finished run, seen from everywhere."""

    strategy: KMeansStrategy
    grid: RecordingGrid
    result: Result
    results: dict[int, ClientResult]

    @property
    def one(self) -> ClientResult:
        """The clients' result, which all of them must share."""
        first = next(iter(self.results.values()))
        for other in self.results.values():
            np.testing.assert_array_equal(other.centroids, first.centroids)
            np.testing.assert_array_equal(other.counts, first.counts)
        return first


def run_recorded(
    strategy: KMeansStrategy,
    partitions: Sequence[ArrayLike],
    *,
    policy: ClientPolicy | Sequence[ClientPolicy] | None = None,
    faults: Sequence[Fault] = (),
    start: Callable[..., Result] | None = None,
    load: Callable[[Context], ArrayLike] | None = None,
    on_result: Callable[[ClientResult, Context], None] | None = None,
    on_push: Callable[[RecordingGrid, list[Message]], None] | None = None,
    **options: Any,
) -> Outcome:
    """Run a strategy in this process over a recording grid, with one policy or one each."""
    results: dict[int, ClientResult] = {}

    def keep(result: ClientResult, context: Context) -> None:
        place = int(context.node_config["partition-id"])
        assert place not in results, "on_result must be called once per run"
        results[place] = result
        if on_result is not None:
            on_result(result, context)

    load = load or (lambda context: partitions[int(context.node_config["partition-id"])])
    policies = [policy or SIMULATED] if not isinstance(policy, Sequence) else policy
    apps = [kmeans_client_app(load, each, keep) for each in policies]

    def app(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        return apps[place % len(apps)](message, context)

    grid = RecordingGrid(FaultyClientApp(app, faults) if faults else app, len(partitions))
    if on_push is not None:
        grid.on_push = lambda messages: on_push(grid, messages)
    with task_identity():
        begin = start or type(strategy).start
        result = begin(strategy, FaultyGrid(grid) if faults else grid, **options)
    return Outcome(strategy, grid, result, results)


def stock_start(strategy: KMeansStrategy, grid: Any, **options: Any) -> Result:
    """Drive a strategy by Flower's own loop."""
    from flwr.serverapp.strategy import Strategy

    options.setdefault("initial_arrays", ArrayRecord())
    return Strategy.start(strategy, grid, num_rounds=strategy.n_rounds, **options)


# --------------------------------------------------------------------------- what sums opened to


@dataclass
class Opened:
    """The noise that each round of a run carried, and how many clients answered."""

    noise: list[NDArray[np.int64]] = field(default_factory=list)
    survivors: list[NDArray[np.bool_]] = field(default_factory=list)


def open_entries(
    run: Run, entries: Sequence[Entry], group_key: bytes, records: Sequence[NDArray[np.float64]]
) -> Opened:
    """Open a transcript with a group key and subtract the exact sums of the survivors."""
    opened, document, algorithm = Opened(), run.document, run.algorithm
    chain, state = first_hash(document.doc_hash), algorithm.initial_state(None)
    for entry in entries:
        context = entry.context(document.doc_hash, chain)
        words = entry.words
        if document.is_masked:
            key = masks.mask_key(group_key, context)
            words = words - masks.correction(key, entry.survivors, len(words))
        assert int(words[-1]) == entry.n_survivors
        noisy = from_ring(words[:-1])
        question = algorithm.query(state)
        exact = sum(
            exact_statistic(run, question, records[i]) for i in np.flatnonzero(entry.survivors)
        )
        opened.noise.append(noisy - exact)
        opened.survivors.append(entry.survivors)
        state = algorithm.update(state, algorithm.unflatten(noisy, entry.t))
        chain = next_hash(chain, context, entry)
    return opened


def exact_statistic(run: Run, question: Query, records: ArrayLike) -> NDArray[np.int64]:
    """Return one client's integers without noise."""
    algorithm = run.algorithm
    data = np.asarray(records, dtype=np.float64).reshape(-1, algorithm.domain.n_features)
    grid = GridRecords(data, algorithm.domain, algorithm.fraction_bits)
    return algorithm.flatten(algorithm.answer(question, grid), question.round)


def noise_of_run(
    strategy: KMeansStrategy, partitions: Sequence[NDArray[np.float64]], **options: Any
) -> Opened:
    """Run a strategy and return the noise that every round of it really carried.

    The group key is taken from a client's memory just before the run ends and erases it.
    """
    kept: dict[str, Any] = {}

    def look(grid: RecordingGrid, messages: list[Message]) -> None:
        for message in messages:
            record = message.content[KMEANS]
            if record["kind"] == "finish" and "run" not in kept:
                coordinator = strategy._run_state
                kept["run"] = coordinator.run
                kept["entries"] = [closed.entry for closed in coordinator.closed]
                lives = [load_life(state, record["doc_hash"]) for state in grid.states.values()]
                kept["key"] = next((life.group_key for life in lives if life), b"")

    run_recorded(strategy, partitions, on_push=look, **options)
    return open_entries(kept["run"], kept["entries"], kept["key"], partitions)


# --------------------------------------------------------------------------- a hostile server

_REPLIES: dict[str, Any] = {
    cls.KIND: cls for cls in (EnrolReply, LeadReply, RoundReply, OpenReply, Refusal)
}
Answer = EnrolReply | LeadReply | RoundReply | OpenReply | Refusal


def decoded(content: RecordDict) -> Answer:
    """Read any reply, strictly."""
    record = content[KMEANS]
    assert len(content) == 1
    return _REPLIES[record["kind"]].from_record(record)


class Node:
    """A client as a server meets it: an id, a memory, and records that its operator may change."""

    def __init__(self, node_id: int, records: ArrayLike, policy: ClientPolicy) -> None:
        self.node_id = node_id
        self.records: Any = records
        self.policy = policy
        self.state = RecordDict()
        self.results: list[ClientResult] = []
        self.loads = 0

    def _load(self) -> ArrayLike:
        self.loads += 1
        return self.records() if callable(self.records) else self.records

    def handle(self, content: RecordDict) -> RecordDict:
        member = Member(self.policy, self.state, self.node_id, self._load, self.results.append)
        return member.handle(content)

    def ask(self, request: Request) -> Answer:
        return decoded(self.handle(to_content(request)))

    def restart(self) -> None:
        """Lose all memory."""
        self.state = RecordDict()

    def life(self, run: Run) -> Life:
        life = load_life(self.state, run.document.doc_hash)
        assert life is not None
        return life


def make_run(
    trust: str = "oblivious-server",
    *,
    keys: str = "relayed",
    rounds: int = 3,
    min_clients: int = 2,
    max_attempts: int = 2,
    n_clusters: int = 2,
    epsilon: float = 1.0,
    number: int = 1,
    kind: Any = None,
    **changes: Any,
) -> Run:
    """Return a small run on the unit square, or the same with fields of the document changed.

    Its algorithm is of the given kind, by default one that clients replay.
    """
    masked = trust in ("oblivious-server", "distributed-noise")
    shared = trust == "distributed-noise"
    budget = PrivacyBudget(None if trust == "plain" else epsilon)
    usual: Any = (
        LloydAlgorithm if trust == "plain" else GLloydAlgorithm if shared else FastLloydAlgorithm
    )
    algorithm = (kind or usual)(n_clusters, BOX, budget, n_records=1000, n_rounds=rounds)
    plan = algorithm.plan()
    words = [algorithm.words(t) + 1 for t in range(1, rounds + 1)]
    late = "deferred" if isinstance(algorithm, LloydFamily) else "immediate"
    fields: dict[str, Any] = {
        "run": f"{number:032x}",
        "trust": trust,
        "keys": keys if masked else "none",
        "opening": late if shared else "none",
        "algorithm": algorithm.to_config(),
        "domain": BOX.to_config(),
        "privacy": plan.to_config(),
        "words": words[0] if len(set(words)) == 1 else tuple(words),
        "rounds": rounds,
        "min_clients": min_clients,
        "max_attempts": max_attempts,
        "colluders": 1 if shared else 0,
        "share_variance": f"1/{min_clients - 1}" if shared else "none",
        "sampler": "none"
        if trust == "plain"
        else "discrete-gaussian/1"
        if shared
        else "rounded-gaussian/1",
    }
    return Run(RunDocument(**{**fields, **changes}), algorithm, plan)


BOX = Box([0.0, 0.0], [1.0, 1.0])
SIMULATED = ClientPolicy.for_simulation()


class Scene:
    """Nodes and a server that follows the protocol until it is told to do otherwise."""

    def __init__(
        self,
        run: Run | None = None,
        m: int = 4,
        *,
        policy: ClientPolicy = SIMULATED,
        nodes: Sequence[Node] | None = None,
    ) -> None:
        self.run = make_run() if run is None else run
        rng = np.random.default_rng(5)
        self.nodes = list(
            nodes or (Node(2**63 + i, rng.random((6 + i, 2)), policy) for i in range(m))
        )
        self.server = Coordinator(self.run)
        enrol = self.server.enrol_requests(node.node_id for node in self.nodes)
        for node in self.nodes:
            reply = node.ask(enrol[node.node_id])
            if isinstance(reply, Refusal):
                self.server.refuse(node.node_id, reply, 0)
            else:
                self.server.accept_enrol(node.node_id, reply)
        self.server.close_enrolment()
        if self.server.needs_leader:
            for node_id, lead in self.server.lead_requests([0]).items():
                self.server.accept_lead(node_id, self._node(node_id).ask(lead))
        self.requests: dict[int, Round] = {}
        self.replies: dict[int, RoundReply] = {}

    @property
    def doc_hash(self) -> bytes:
        return self.run.document.doc_hash

    def _node(self, node_id: int) -> Node:
        return next(node for node in self.nodes if node.node_id == node_id)

    def open(self, attempt: int = 1) -> None:
        """Begin an attempt at the next round."""
        self.requests, self.replies = self.server.round_requests(attempt), {}

    def request(self, i: int, **changes: Any) -> Round:
        """Return what the server asks member ``i`` in the open attempt, or a changed one."""
        return replace(self.requests[self.nodes[i].node_id], **changes)

    def ask(self, i: int, **changes: Any) -> Answer:
        """Ask member ``i`` without telling the honest part of the server."""
        return self.nodes[i].ask(self.request(i, **changes))

    def answer(self, i: int) -> Answer:
        """Ask member ``i`` and hand its reply to the server."""
        node, reply = self.nodes[i], self.ask(i)
        if isinstance(reply, Refusal):
            self.server.refuse(node.node_id, reply, self.server.head + 1)
        else:
            assert isinstance(reply, RoundReply)
            self.server.accept_round(node.node_id, reply)
            self.replies[i] = reply
        return reply

    def round(self, survivors: Iterable[int] | None = None) -> Entry:
        """Play one honest round with some of the members and return its entry."""
        self.open()
        for i in range(len(self.nodes)) if survivors is None else survivors:
            self.answer(i)
        self.server.try_open()
        assert self.server.close_round()
        return self.server.closed[-1].entry

    def open_hop(self, everyone: bool = False) -> list[Answer]:
        """Ask members to open the last sum in a hop of its own, and try."""
        answers = []
        for node_id, request in self.server.open_requests(everyone).items():
            answers.append(self._node(node_id).ask(request))
            if isinstance(answers[-1], OpenReply):
                self.server.accept_open(node_id, answers[-1])
        self.server.try_open()
        return answers

    def words(self, i: int) -> NDArray[np.uint64]:
        """Return what member ``i`` sent in the open attempt."""
        return unpack_words(self.replies[i].words)

    def finish(self) -> list[Answer]:
        """Deliver the result to all members; those who lack something are asked once more."""
        answers = []
        for node in self.nodes:
            reply = node.ask(self.server.finish_requests()[node.node_id])
            if isinstance(reply, Refusal):
                self.server.refuse(node.node_id, reply, self.server.head + 1)
                reply = node.ask(self.server.finish_requests()[node.node_id])
            if isinstance(reply, OpenReply):
                self.server.accept_finish(node.node_id, reply)
            answers.append(reply)
        self.server.try_open()
        return answers

    def plain(self, i: int, state: State | None = None) -> NDArray[np.int64]:
        """Return the exact integers of member ``i`` in the round after a state."""
        state = self.run.algorithm.initial_state(None) if state is None else state
        return exact_statistic(self.run, self.run.algorithm.query(state), self.nodes[i].records)


def roster_policies(
    directory: Any, n: int, policy: ClientPolicy = SIMULATED, name: str = "roster"
) -> list[ClientPolicy]:
    """Make keys and a roster for ``n`` members and return their policies in the roster's order."""
    *secrets, roster = write_members(directory / name, [f"member-{i}" for i in range(n)])
    return [
        replace(policy, roster_file=str(roster), member_key_file=str(secret)) for secret in secrets
    ]


def digest(data: bytes) -> bytes:
    """Return the hash under which a document is known."""
    return hashlib.sha256(data).digest()


def key_file(directory: Any, content: bytes = b"k" * 32, mode: int = 0o600) -> str:
    """Write a group key file and return its path."""
    path = directory / "group.key"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)
