"""What many clients cost: time against FedAvg on Ray, memory, bytes, hops.

    python benchmarks/load.py [ray] [memory] [in-process] [hops]

Without a name, all four tables are printed.

``ray``: one Flower simulation runs FastLloyd with an oblivious server and Flower's FedAvg in turn,
on the same nodes and workers. FedAvg's clients load the same records and send back, unchanged, an
array of as many 8-byte numbers as a masked reply has. Three things are compared, with the spread
over the repeats: a round (the median of a run's rounds after the first); the whole run, which is
enrolment, keys, rounds and delivery here and the rounds alone there; and the seconds that the
server's process computed in the whole run, which other work on the machine disturbs less than
times. ``FedAvg+`` is Flower's default, which also sends the arrays to all clients for evaluation
after every round.

``memory``: the resident memory of the server's process after chosen rounds of a short and a long
run on Ray, where that process also holds Flower's SuperLink and the memories of all nodes.

``in-process``: runs of all clients in one process, each in a fresh one: seconds, the peak of
resident memory beyond that of the imports, and the bytes that one client was sent and sent, whole
serialised Flower messages.

``hops``: how often a run sends messages and waits for the answers, by trust, keys and opening.
"""

import argparse
import logging
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app, register_kmeans
from flower_kmeans.federation.in_process import InProcessGrid, task_identity
from flower_kmeans.federation.roster import write_group_key, write_members
from flower_kmeans.strategies import FastLloyd, GLloyd, KMeansStrategy, Lloyd, RoundInfo

PRIVATE, FEDAVG, FEDAVG_PLUS = "FastLloyd", "FedAvg", "FedAvg+"


@dataclass(frozen=True)
class Size:
    """The numbers that a run's cost depends on."""

    clients: int
    clusters: int = 15
    columns: int = 2
    records: int = 20  # of each client
    rounds: int = 7

    @property
    def words(self) -> int:
        """Numbers in a reply of FastLloyd: sums, counts and the checksum."""
        return self.clusters * (self.columns + 1) + 1

    def box(self) -> Box:
        """Return the domain."""
        return Box(np.full(self.columns, -1.0), np.full(self.columns, 1.0))

    def load(self, context: Context) -> NDArray[np.float64]:
        """Return a client's records."""
        source = np.random.default_rng(int(context.node_config["partition-id"]))
        return source.uniform(-1, 1, (self.records, self.columns))

    def fastlloyd(self, keys: str, on_round: Callable[[RoundInfo], None]) -> FastLloyd:
        """Return the private strategy."""
        return FastLloyd(
            self.clusters,
            self.box(),
            PrivacyBudget(1.0),
            n_records=self.clients * self.records,
            n_clients=self.clients,
            n_rounds=self.rounds,
            keys=keys,  # type: ignore[arg-type]
            on_round=on_round,
        )


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# --------------------------------------------------------------------------- on Ray


def send_back(size: Size, message: Message, context: Context) -> Message:
    """Answer a FedAvg round as it was asked."""
    metrics = MetricRecord({"num-examples": len(size.load(context))})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(size: Size, message: Message, context: Context) -> Message:
    """Answer FedAvg's evaluation."""
    metrics = MetricRecord({"num-examples": len(size.load(context)), "loss": 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def client_app(size: Size, policy: ClientPolicy) -> ClientApp:
    """Return an app that takes part in all strategies."""
    app = ClientApp()
    app.train()(partial(send_back, size))
    app.evaluate()(partial(evaluate, size))
    register_kmeans(app, size.load, policy)
    return app


@dataclass
class Clock:
    """What a run took, as it goes on."""

    ends: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """Note that a round has ended."""
        self.ends.append(time.perf_counter())
        self.memory.append(resident())


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    whole: float
    round: float  # median
    computed: float
    memory: tuple[float, ...]  # after each round


def run_fedavg(grid: Grid, size: Size, clock: Clock, *, evaluation: bool) -> None:
    """Run FedAvg once, with arrays of as many bytes as a masked reply."""

    def tell(server_round: int, _: ArrayRecord) -> None:
        if server_round:  # 0 is before the first round
            clock.tick()

    strategy = FedAvg(
        fraction_evaluate=float(evaluation),
        min_train_nodes=size.clients,
        min_evaluate_nodes=size.clients if evaluation else 0,
        min_available_nodes=size.clients,
    )
    arrays = ArrayRecord([np.zeros(size.words)])
    strategy.start(grid, arrays, num_rounds=size.rounds, evaluate_fn=tell)


def timed(run: Callable[[Clock], object]) -> Cost:
    """Run once."""
    clock, computed, started = Clock(), time.process_time(), time.perf_counter()
    run(clock)
    whole = time.perf_counter() - started
    rounds = np.diff(clock.ends)
    middle = float(np.median(rounds)) if len(rounds) else whole
    return Cost(whole, middle, time.process_time() - computed, tuple(clock.memory))


def on_ray(size: Size, keys: str, names: Sequence[str], repeats: int) -> dict[str, list[Cost]]:
    """Run one simulation and return the costs by strategy; every repeat runs all in turn."""
    from flwr.simulation import run_simulation

    costs: dict[str, list[Cost]] = {name: [] for name in names}
    clocks: list[Clock] = []
    # Made before Ray forks its processes: a fork while another thread is inside BLAS can hang.
    strategy = size.fastlloyd(keys, lambda _: clocks[-1].tick())
    server_app = ServerApp()

    def run(grid: Grid, name: str, clock: Clock) -> None:
        clocks.append(clock)
        if name == PRIVATE:
            strategy.start(grid)
        else:
            run_fedavg(grid, size, clock, evaluation=name == FEDAVG_PLUS)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        # The workers start, and import everything, in a run that does not count.
        run_fedavg(grid, replace(size, rounds=1), Clock(), evaluation=False)
        for repeat in range(repeats):
            for name in names if repeat % 2 == 0 else reversed(names):
                costs[name].append(timed(partial(run, grid, name)))

    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policy = ClientPolicy.for_simulation()
        if keys == "file":
            write_group_key(Path(directory, "group.key"))
            policy = replace(policy, group_key_file=str(Path(directory, "group.key")))
        run_simulation(
            server_app,
            client_app(size, policy),
            num_supernodes=size.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
        )
    return costs


def ratio(own: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the ratios of the repeats, and their range."""
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def ray_rows(sizes: Iterable[Size], all_keys: Sequence[str], repeats: int) -> Iterator[str]:
    """Yield the lines that compare FastLloyd with FedAvg."""
    yield (
        "| k | d | clients | keys | against | round s | round, ratio | run s | whole run, ratio |"
        " computed s | computed, ratio |"
    )
    yield "|--:|--:|--:|---|---|--:|--:|--:|--:|--:|--:|"
    for size in sizes:
        for keys in all_keys:
            costs = on_ray(size, keys, (PRIVATE, FEDAVG, FEDAVG_PLUS), repeats)
            own = costs[PRIVATE]
            for name in (FEDAVG, FEDAVG_PLUS):
                cells: list[object] = [size.clusters, size.columns, f"{size.clients:,}", keys, name]
                for part in ("round", "whole", "computed"):
                    a, b = ([getattr(c, part) for c in each] for each in (own, costs[name]))
                    pair = f"{statistics.median(a):.2f} : {statistics.median(b):.2f}"
                    cells += [pair, ratio(a, b)]
                yield "| " + " | ".join(map(str, cells)) + " |"


# --------------------------------------------------------------------------- memory


def memory_rows(size: Size, longer: int) -> Iterator[str]:
    """Yield the lines on the memory of the server's process."""
    shown = sorted({1, 2, size.rounds, 2 * size.rounds, longer})
    yield (
        f"{size.clients:,} clients, {8 * size.words:,} bytes a reply: "
        f"{size.clients * 8 * size.words / 2**20:.0f} MB a round, if all replies were kept"
    )
    yield ""
    yield "| rounds | " + " | ".join(f"MB after round {t}" for t in shown) + " | replies, MB |"
    yield "|--:|" + "--:|" * (len(shown) + 1)
    for rounds in (size.rounds, longer):
        sized = replace(size, rounds=rounds)
        cost = fresh(one_memory, sized)
        cells = [f"{cost.memory[t - 1]:.0f}" if t <= rounds else "" for t in shown]
        replies = rounds * size.clients * 8 * size.words / 2**20
        yield f"| {rounds} | " + " | ".join(cells) + f" | {replies:.0f} |"


def one_memory(size: Size) -> Cost:
    """Run FastLloyd once on Ray, in a process whose main module the workers do not know."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return on_ray(size, "relayed", (PRIVATE,), 1)[PRIVATE][0]


# --------------------------------------------------------------------------- in one process


class CountingGrid(InProcessGrid):
    """An in-process grid that counts hops and messages, and the bytes of its last client's."""

    def __init__(self, client_app: Callable[[Message, Context], Message], n_nodes: int) -> None:
        super().__init__(client_app, n_nodes)
        self.watched = max(self.get_node_ids())
        self.pushes: list[int] = []
        self.sent: list[int] = []
        self.received: list[int] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count a hop."""
        listed = list(messages)
        self.pushes.append(len(listed))
        for message in listed:
            if message.metadata.dst_node_id == self.watched:
                self.sent.append(len(message_to_proto(message).SerializeToString()))
        return super().push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Count the bytes of a reply."""
        for reply in super().pull_messages(message_ids):
            if reply.metadata.src_node_id == self.watched:
                self.received.append(len(message_to_proto(reply).SerializeToString()))
            yield reply


def run_here(
    strategy: KMeansStrategy, size: Size, policies: Sequence[ClientPolicy] | None = None
) -> CountingGrid:
    """Run a strategy in this process, with one policy for all clients or one each."""
    given = policies or [ClientPolicy.for_simulation()]
    apps = [kmeans_client_app(size.load, policy) for policy in given]

    def app(message: Message, context: Context) -> Message:
        return apps[int(context.node_config["partition-id"]) % len(apps)](message, context)

    grid = CountingGrid(app, size.clients)
    with task_identity():
        strategy.start(grid)
    return grid


@dataclass(frozen=True)
class Local:
    """What one run in a process of its own took."""

    cost: Cost
    set_up: float
    peak: float
    sent: list[int]
    received: list[int]


def one_local(size: Size) -> Local:
    """Run FastLloyd once in this process."""
    before, started, began, kept = resident(), time.perf_counter(), [0.0], {}

    def run(clock: Clock) -> None:
        def tell(_: RoundInfo) -> None:
            began[0] = began[0] or time.perf_counter()
            clock.tick()

        kept["grid"] = run_here(size.fastlloyd("relayed", tell), size)

    cost = timed(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before
    grid = kept["grid"]
    return Local(cost, began[0] - started - cost.round, peak, grid.sent, grid.received)


def local_rows(clients: Sequence[int], rounds: Sequence[int]) -> Iterator[str]:
    """Yield the lines on runs in one process."""
    yield (
        "| clients | rounds | run s | set-up s | round s | round ms / client | peak MB |"
        " sent in round 1, bytes | in round 2 | in the last | received in a round |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for t in rounds:
        for m in clients:
            local = fresh(one_local, Size(m, rounds=t))
            cost, enrol = local.cost, 1  # the last client does not lead
            cells = (
                f"{m:,}",
                t,
                f"{cost.whole:.1f}",
                f"{local.set_up:.1f}",
                f"{cost.round:.2f}",
                f"{1e3 * cost.round / m:.2f}",
                f"{local.peak:.0f}",
                *(f"{local.sent[i]:,}" for i in (enrol, enrol + 1, -2)),
                f"{local.received[-2]:,}",
            )
            yield "| " + " | ".join(map(str, cells)) + " |"


def fresh(function: Callable[[Size], object], size: Size) -> object:
    """Call a function in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=quiet) as pool:
        return pool.submit(function, size).result()


# --------------------------------------------------------------------------- hops


def hop_rows(size: Size) -> Iterator[str]:
    """Yield the lines on the hops of a run."""
    yield "| trust | keys | opening | hops | hops - rounds | messages / client |"
    yield "|---|---|---|--:|--:|--:|"
    figures = {"n_records": 1000 * size.clients, "n_clients": size.clients}
    rest = (size.clusters, size.box(), PrivacyBudget(1.0))
    strategies: list[KMeansStrategy] = [
        Lloyd(size.clusters, size.box(), n_rounds=size.rounds, n_clients=size.clients),
        GLloyd(*rest, trust="trusted-server", n_rounds=size.rounds, **figures),
    ]
    for keys in ("relayed", "file", "roster"):
        common = {"keys": keys, "n_rounds": size.rounds, **figures}
        strategies.append(FastLloyd(*rest, **common))
        strategies += [
            GLloyd(*rest, trust="distributed-noise", opening=opening, **common)
            for opening in ("deferred", "immediate", "simple")
        ]
    for strategy in strategies:
        with tempfile.TemporaryDirectory() as directory:
            policies = policies_for(strategy.keys, Path(directory), size.clients)
            pushes = [n for n in run_here(strategy, size, policies).pushes if n]
        cells = (
            strategy.trust,
            strategy.keys,
            strategy.opening,
            len(pushes),
            len(pushes) - size.rounds,
            f"{sum(pushes) / size.clients:.1f}",
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def policies_for(keys: str, directory: Path, clients: int) -> list[ClientPolicy]:
    """Return the clients' policies, with the files that they name."""
    policy = ClientPolicy.for_simulation()
    if keys == "file":
        path = directory / "group.key"
        write_group_key(path)
        return [replace(policy, group_key_file=str(path))]
    if keys == "roster":
        names = [f"member-{i}" for i in range(clients)]
        *secrets, roster = write_members(directory / "members", names)
        return [
            replace(policy, roster_file=str(roster), member_key_file=str(secret))
            for secret in secrets
        ]
    return [policy]


# --------------------------------------------------------------------------- the command


def quiet() -> None:
    """Keep Flower from logging and from reporting usage, and clients from missing on_result."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("flower_kmeans.client").setLevel(logging.ERROR)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = ("ray", "memory", "in-process", "hops")
    parser.add_argument("tables", nargs="*", choices=(*tables, []), default=tables)
    parser.add_argument("--clients", type=int, nargs="+", help="of all tables but the hops")
    parser.add_argument("--shapes", nargs="+", help="clusters x columns, of ray and memory")
    parser.add_argument("--keys", nargs="+", default=["relayed", "file"], help="of ray")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--longer", type=int, default=28, help="rounds of the long run")
    parser.add_argument("--repeats", type=int, default=3, help="of ray")
    options = parser.parse_args()
    quiet()
    for table in options.tables:
        clients = options.clients or ([1000, 10000] if table == "in-process" else [1000])
        shapes = options.shapes or (["64x32"] if table == "memory" else ["15x2"])
        sizes = [
            Size(m, *(int(n) for n in shape.split("x")), rounds=options.rounds)
            for shape in shapes
            for m in clients
        ]
        if table == "ray":
            lines = ray_rows(sizes, options.keys, options.repeats)
        elif table == "memory":
            lines = (line for size in sizes for line in memory_rows(size, options.longer))
        elif table == "in-process":
            lines = local_rows(clients, (options.rounds, options.longer))
        else:
            lines = hop_rows(Size(5, 2, rounds=options.rounds))
        for line in lines:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
