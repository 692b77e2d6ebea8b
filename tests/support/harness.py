"""What the tests of whole runs share: a recording grid, the noise of a run, statistics."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flower_kmeans.algorithms import registry
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.judged import Judged
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.algorithms.tightened import Tightened, records_of
from flower_kmeans.client import ClientPolicy, simulated_client_app
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.messages import (
    Ask,
    Enrol,
    Entry,
    Reply,
    Request,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.protocol.run import Run, open_run
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.protocol.wire import decode_arrays, from_content
from flower_kmeans.simulation.faults import Fault, FaultyClientApp, FaultyGrid
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import KMeansStrategy

SIMULATED = ClientPolicy.for_simulation()

P_VALUE = 1e-9
"""A statistical test fails by chance about this often, whatever the seed."""

# --------------------------------------------------------------------------- statistics


def byte_p_value(data: bytes) -> float:
    """Return the p-value of these bytes under the uniform law."""
    return float(
        stats.chisquare(
            np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        ).pvalue
    )


def same_law_p_value(first: bytes, second: bytes) -> float:
    """Return the p-value of two sets of bytes under one common law."""
    table = np.array(
        [
            np.bincount(np.frombuffer(x, np.uint8), minlength=256)
            for x in (first, second)
        ]
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


def assert_scale(
    what: str, sample: NDArray[np.float64], law: Any = stats.norm, enough: int = 0
) -> None:
    """Require noise of the scale that it is divided by.

    With ``enough`` words, 2/3 and 3/2 of the scale must be rejected.
    """
    power = 2 if law is stats.norm else 1
    size = np.mean(np.abs(sample) ** power) ** (1 / power)
    measured = (
        f"{what}: the noise of {len(sample)} words is {size:.3f} times the planned one"
    )
    assert fits(sample, law), f"{measured}, or has another shape"
    if len(sample) >= enough:
        for name, factor in (("2/3", 2 / 3), ("3/2", 3 / 2)):
            assert not fits(sample / factor, law), (
                f"{measured}, and {name} of it is accepted too"
            )


@contextmanager
def memory_below(n_bytes: int) -> Iterator[None]:
    """Require that less memory than this is taken meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


@contextmanager
def switching_collector() -> Iterator[None]:
    """Let the garbage collector run often, and other threads go on whenever it runs.

    This happens by chance in a process where Hypothesis has run a test: it leaves a
    callback in the collector.
    """
    threshold = gc.get_threshold()

    def switch(phase: str, info: Any) -> None:
        if phase == "start":
            time.sleep(0.0002)

    gc.callbacks.append(switch)
    gc.set_threshold(10, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(switch)


# ------------------------------------------------------------------------ recorded runs


@dataclass(frozen=True)
class Recorded:
    """One message as the server process received or sent it; ``message`` if it can be read."""

    node_id: int
    message_type: str
    data: bytes
    message: Request | Reply | None

    @property
    def kind(self) -> str:
        """The message's tag: enrol, ask, answer, ...; empty if it cannot be read."""
        return "" if self.message is None else str(self.message.__struct_config__.tag)


def _recorded(
    message: Message, node_id: int, read: Callable[[bytes], Request | Reply]
) -> Recorded:
    content = None
    if message.has_content():
        try:
            content = read(from_content(message.content))
        except MessageError:
            content = None
    data = message_to_proto(message).SerializeToString()
    return Recorded(node_id, message.metadata.message_type, data, content)


class RecordingGrid(InProcessGrid):
    """An in-process grid that keeps every byte that the server process sends and receives."""

    def __init__(
        self, client_app: Callable[[Message, Context], Message], n_nodes: int
    ) -> None:
        super().__init__(client_app, n_nodes)
        self.sent: list[Recorded] = []
        self.received: list[Recorded] = []
        self.on_push: Callable[[list[Message]], None] | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        if self.on_push is not None:
            self.on_push(listed)
        self.sent += [
            _recorded(m, m.metadata.dst_node_id, decode_request) for m in listed
        ]
        return super().push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            self.received.append(
                _recorded(reply, reply.metadata.src_node_id, decode_reply)
            )
            yield reply

    @property
    def states(self) -> dict[int, RecordDict]:
        """The nodes' memories."""
        return {node: context.state for node, context in self._contexts.items()}


@dataclass
class Outcome:
    """A finished run, seen from everywhere; ``sums`` are the opened ones, by round."""

    strategy: KMeansStrategy
    grid: RecordingGrid
    result: Result
    results: dict[int, ClientResult]
    sums: dict[int, NDArray[np.int64]]

    @property
    def server(self) -> Server:
        """The server of the run. Nowhere else do tests look into a strategy for it."""
        return self.strategy._running

    @property
    def announced(self) -> list[Entry]:
        """The sums that the server announced, and keeps."""
        return list(self.server._announced.entries)

    @property
    def run(self) -> Run:
        """The run as its clients read it from the document that was last sent."""
        sent = [
            item.message.doc
            for item in self.grid.sent
            if isinstance(item.message, Enrol)
        ]
        return open_run(sent[-1])

    @property
    def queries(self) -> list[Query]:
        """The queries that a sighted server sent, by round."""
        asked = {
            item.message.t: item.message.query
            for item in self.grid.sent
            if isinstance(item.message, Ask) and item.message.query is not None
        }
        return [Query(t, decode_arrays(asked[t])) for t in sorted(asked)]

    @property
    def one(self) -> ClientResult:
        """The clients' result, which all of them must share."""
        first = next(iter(self.results.values()))
        for other in self.results.values():
            np.testing.assert_array_equal(other.centroids, first.centroids)
            np.testing.assert_array_equal(other.counts, first.counts)
            np.testing.assert_array_equal(other.weights, first.weights)
            assert other.size_report == first.size_report
        return first

    def agreed(self) -> ClientResult:
        """Return the clients' result, which the server, that may see it, must share."""
        arrays = {name: array.numpy() for name, array in self.result.arrays.items()}
        np.testing.assert_array_equal(self.strategy.centroids, self.one.centroids)
        np.testing.assert_array_equal(arrays["centroids"], self.one.centroids)
        np.testing.assert_array_equal(arrays["counts"], self.one.counts)
        np.testing.assert_array_equal(arrays.get("weights"), self.one.weights)
        return self.one


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
    persons: Sequence[Any] | None = None,
    **options: Any,
) -> Outcome:
    """Run a strategy in this process over a recording grid, with one policy or one each."""
    results: dict[int, ClientResult] = {}
    options.setdefault("timeout", 60)

    def keep(result: ClientResult, context: Context) -> None:
        place = int(context.node_config["partition-id"])
        assert place not in results, "on_result must be called once per run"
        results[place] = result
        if on_result is not None:
            on_result(result, context)

    load = load or (
        lambda context: partitions[int(context.node_config["partition-id"])]
    )
    policies = [policy or SIMULATED] if not isinstance(policy, Sequence) else policy
    shared = SharedWork()  # as in `simulate`
    load_ids = None
    if persons is not None:
        load_ids = lambda context: persons[int(context.node_config["partition-id"])]  # noqa: E731
    apps = [
        simulated_client_app(shared, load, each, keep, load_ids) for each in policies
    ]

    def app(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        return apps[place % len(apps)](message, context)

    grid = RecordingGrid(
        FaultyClientApp(app, faults) if faults else app, len(partitions)
    )
    if on_push is not None:
        grid.on_push = lambda messages: on_push(grid, messages)
    with task_identity(), watched_sums() as sums:
        begin = start or type(strategy).start
        result = begin(strategy, FaultyGrid(grid) if faults else grid, **options)
    return Outcome(strategy, grid, result, results, sums)


def stock_start(strategy: KMeansStrategy, grid: Any, **options: Any) -> Result:
    """Drive a strategy by Flower's own loop."""
    options.setdefault("initial_arrays", ArrayRecord())
    return Strategy.start(strategy, grid, num_rounds=strategy.n_rounds, **options)


# ------------------------------------------------------------------- the noise of a run


def exact_statistic(
    algorithm: Algorithm, query: Query, records: ArrayLike
) -> NDArray[np.int64]:
    """Return one client's integers without noise."""
    data = np.asarray(records, dtype=np.float64).reshape(
        -1, algorithm.domain.n_features
    )
    grid = records_of(algorithm, query, data)
    return algorithm.layout(query.round).flatten(answer_of(algorithm, query, grid))


@contextmanager
def watched_sums() -> Iterator[dict[int, NDArray[np.int64]]]:
    """Collect the sum of every round of a run, as an algorithm is given it, by server or client."""
    sums: dict[int, NDArray[np.int64]] = {}
    inside: list[Algorithm] = []

    def watching(update: Callable[..., State]) -> Callable[..., State]:
        def watched(self: Algorithm, state: State, answer: Any, *rng: Any) -> State:
            number = state.round + 1
            if not inside:  # an algorithm behind ranges counts its own rounds
                sums[number] = self.layout(number).flatten(answer)
            inside.append(self)
            try:
                return update(self, state, answer, *rng)
            finally:
                inside.pop()

        return watched

    with ExitStack() as stack:
        for kind in (Tightened, Judged, *registry._REGISTRY.values()):
            patch = mock.patch.object(kind, "update", watching(kind.update))
            stack.enter_context(patch)
        yield sums


def noise_of_run(
    strategy: KMeansStrategy, partitions: Sequence[NDArray[np.float64]], **options: Any
) -> list[NDArray[np.int64]]:
    """Run a strategy and return the noise that every round of it really carried.

    Its algorithm must be one that clients could compute.
    """
    sums = run_recorded(strategy, partitions, **options).sums
    algorithm, n, noise = strategy.algorithm, len(partitions), []
    state = algorithm.initial_state(None)
    for t in range(1, algorithm.n_rounds + 1):
        away = {entry.client for entry in strategy.report.dropped if entry.round == t}
        query, there = algorithm.query(state), [i for i in range(n) if i not in away]
        exact = sum(exact_statistic(algorithm, query, partitions[i]) for i in there)
        noise.append(sums[t] - exact)
        state = algorithm.update(
            state, algorithm.layout(t).unflatten(sums[t], len(there) / n)
        )
    return noise


@contextmanager
def without_noise() -> Iterator[None]:
    """Let all noise be 0, so that results of runs can be compared bit for bit."""

    def zeros(algorithm: Any, plan: Any, round_number: int, sampler: Any) -> Any:
        return np.zeros(algorithm.layout(round_number).n_words, dtype=np.int64)

    def no_parts(run: Any, round_number: int, *_: Any) -> Any:
        return np.zeros(run.algorithm.layout(round_number).n_words, dtype=np.int64)

    with (
        mock.patch("flower_kmeans.protocol.noise._round_noise", zeros),
        mock.patch("flower_kmeans.protocol.noise._removable_noise", no_parts),
    ):
        yield


# --------------------------------------------------------------------------- keys


def write_roster(
    directory: Any, n: int, policy: ClientPolicy = SIMULATED, beacon: str | None = None
) -> tuple[str, list[ClientPolicy]]:
    """Make keys and a roster; return the roster's path and the clients' policies by slot."""
    *secrets, roster = write_members(
        directory / "roster", [f"c-{i}" for i in range(n)], beacon
    )
    return str(roster), [
        replace(policy, roster_file=str(roster), member_key_file=str(secret))
        for secret in secrets
    ]
