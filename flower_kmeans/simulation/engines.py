"""Whole federations on one machine: in this process, or on Ray through Flower's simulation.

Both engines run the strategy and the client code that a deployment runs, over Flower messages.
Where the server must not see the result, it is taken from a client through its ``on_result``, as in
a deployment, and never passes the grid.
"""

import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flower_kmeans.client import (
    ClientPolicy,
    ClientResult,
    LoadData,
    OnResult,
    kmeans_client_app,
)
from flower_kmeans.data.domain import check_records
from flower_kmeans.data.sources import RecordsLike, checked_source, is_stream
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.simulation.faults import Fault, FaultyClientApp, FaultyGrid
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import KMeansStrategy, RoundInfo, VerticalKMeans
from flower_kmeans.vertical.engine import require_tenseal

Engine = Literal["in-process", "ray"]
Records = list[Any]  # of what `as_source` takes
AnyStrategy = KMeansStrategy | VerticalKMeans
Start = Callable[[Grid], None]
MakeApp = Callable[[LoadData, OnResult], ClientApp]

_TIMEOUT = 600.0
_RESULT_FILE = "result"
_MEMBER = "client-%d"


def simulate(
    strategy: AnyStrategy,
    partitions: Sequence[RecordsLike],
    *,
    engine: Engine = "in-process",
    policy: ClientPolicy | None = None,
    faults: Sequence[Fault] = (),
    timeout: float | None = None,
    on_round: Callable[[RoundInfo], None] | None = None,
) -> Clustering:
    """Run a strategy over simulated clients.

    Parameters
    ----------
    strategy : KMeansStrategy or VerticalKMeans
        For example `FastLloyd`.
    partitions : sequence of array-like of shape (n_i, n_features)
        The records of each client, in the user's units; a client may have none. With the engine
        "in-process" also what `register_kmeans` lists for larger records. A strategy that
        was given neither ``n_clients`` nor ``min_clients`` takes their defaults from this number.
        Of `VerticalKMeans` the columns of each party, (n_records, width): the same rows in the
        same order, whose ids are their numbers.
    engine : {"in-process", "ray"}, default: "in-process"
        In this process, one client after the other, or on Ray through Flower's simulation.
    policy : ClientPolicy, optional
        What every client accepts. The default, ``ClientPolicy.for_simulation()``, accepts
        whatever the strategy requests. Under ``keys="roster"`` keys and roster are made for this
        run, in a private directory that is removed after it. Party 0 of `VerticalKMeans` computes
        in one process, unless the policy names more ``workers``.
    faults : sequence of Fault
        Misbehaviour of chosen clients in chosen rounds.
    timeout : float, optional
        Seconds after which a round trip ends in any case. Default: 600, or `VerticalKMeans`'s own.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Returns
    -------
    Clustering
        Centroids in the user's units, noisy sizes, and the report; weights where sizes have bounds.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        If an argument cannot be used; nothing has been sent then.
    TooFewClientsError, RunError
        If the run could not be completed.
    """
    require_type("strategy", strategy, AnyStrategy, "one of flower_kmeans.strategies")
    if engine not in ("in-process", "ray"):
        raise ConfigurationError(
            f"Expected engine in ('in-process', 'ray'). Got {engine!r} instead."
        )
    records = _checked_partitions(strategy, partitions)
    if engine == "ray" and any(is_stream(r) and not isinstance(r, np.ndarray) for r in records):
        raise ConfigurationError(
            "Expected partitions as arrays with engine='ray'. Got chunks or files."
        )
    _check_faults(faults, len(records), strategy)
    require_type("policy", policy, ClientPolicy | None, "a ClientPolicy")
    accepted = _checked_policy(policy, len(records))
    require_type("on_round", on_round, Callable | None, "a callable")
    if timeout is None:
        timeout = getattr(strategy, "default_timeout", _TIMEOUT)

    def start(grid: Grid) -> None:
        strategy.start(FaultyGrid(grid) if faults else grid, timeout=timeout)

    run = _run_in_process if engine == "in-process" else _run_on_ray
    own_on_round = strategy.on_round
    strategy.on_round = on_round or own_on_round
    try:
        with (
            _with_keys(accepted, strategy, len(records)) as keyed,
            _with_work_dir(keyed, strategy) as placed,
            strategy.expecting(len(records)),
        ):
            result = run(start, records, partial(_client_app, placed, faults))
    finally:
        strategy.on_round = own_on_round
    outcome = result.centroids, result.counts, strategy.domain, strategy.report
    return Clustering(*outcome, result.weights, result.size_report)


def _checked_policy(policy: ClientPolicy | None, n_clients: int) -> ClientPolicy:
    """Return what every client accepts; refuse what only one node can have."""
    if policy is None:
        return ClientPolicy.for_simulation()
    if policy.state_dir is not None and n_clients > 1:
        raise ConfigurationError(
            "Expected policy without a state_dir: a ledger belongs to one node, and simulated "
            f"clients share their policy. Got one with a state_dir for {n_clients} clients."
        )
    if (policy.member_key_file or policy.roster_file) is not None:
        raise ConfigurationError(
            "Expected policy without a roster_file and a member_key_file: simulated clients share "
            "their policy, and keys='roster' makes a roster for them. Got one of the two instead."
        )
    if (policy.party, policy.work_dir) != (None, None):
        raise ConfigurationError(
            "Expected policy without party and work_dir: simulated parties take the number of "
            "their partition, and a directory that is removed. Got one of the two instead."
        )
    return policy


def _checked_partitions(strategy: AnyStrategy, partitions: Sequence[RecordsLike]) -> Records:
    require_type("partitions", partitions, list | tuple, "a list of arrays, one per client")
    if not partitions:
        raise ConfigurationError("Expected partitions for at least one client. Got 0 instead.")
    if strategy.n_clients is not None and strategy.n_clients != len(partitions):
        raise ConfigurationError(
            f"Expected partitions for n_clients={strategy.n_clients} clients. "
            f"Got {len(partitions)} instead."
        )
    with strategy.expecting(len(partitions)):
        pass  # fails now if fewer clients than the strategy needs
    if not isinstance(strategy, VerticalKMeans):
        domain = strategy.domain
        columns = domain.n_features, domain.columns
        records = [
            checked_source(part, *columns, f"partitions[{i}]") for i, part in enumerate(partitions)
        ]
        strategy.algorithm.require_packages()
    else:
        records = [
            check_records(part, width, name=f"partitions[{i}]")
            for i, (part, width) in enumerate(zip(partitions, strategy.widths, strict=True))
        ]
        lengths = [len(part) for part in records]
        if set(lengths) != {strategy.n_records}:
            raise ConfigurationError(
                f"Expected partitions of n_records={strategy.n_records} rows each, the same "
                f"records at every party. Got {lengths} rows instead."
            )
        require_tenseal()
    return records


def _check_faults(faults: Sequence[Fault], n_clients: int, strategy: AnyStrategy) -> None:
    require_type("faults", faults, list | tuple, "a list of Fault")
    for fault in faults:
        require_type("faults", fault, Fault, "a list of Fault")
        if fault.client >= n_clients:
            raise ConfigurationError(
                f"Expected faults of clients below {n_clients}. Got client={fault.client} instead."
            )
        if fault.round > strategy.n_rounds:
            raise ConfigurationError(
                f"Expected faults in rounds up to {strategy.n_rounds}. "
                f"Got round={fault.round} instead."
            )
        if fault.trip == "add" and not strategy.trust_model.has_committee:
            raise ConfigurationError(
                "Expected no faults with trip='add': no committee adds the sums of this run "
                f"(trust={strategy.trust!r})."
            )


# --------------------------------------------------------------------------- files and keys


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Make a directory that only this user can read: clients' keys, and what they load and keep."""
    with tempfile.TemporaryDirectory(prefix="flower-kmeans-") as name:
        yield Path(name)


@contextmanager
def _with_work_dir(policy: ClientPolicy, strategy: AnyStrategy) -> Iterator[ClientPolicy]:
    """Yield a policy that names a directory for the files of a vertical run's party 0."""
    if not isinstance(strategy, VerticalKMeans):
        yield policy
        return
    with _private_directory() as directory:
        free, needed = shutil.disk_usage(directory).free, strategy.costs.disk
        if free < needed:
            raise ConfigurationError(
                f"Expected {needed / 1e6:.0f} MB of free disk for the files of party 0. "
                f"Got {free / 1e6:.0f} MB in {directory.parent}."
            )
        # More processes start scripts that are not guarded again, so only where they are wanted.
        yield replace(policy, work_dir=str(directory), workers=policy.workers or 1)


@contextmanager
def _with_keys(
    policy: ClientPolicy, strategy: AnyStrategy, n_clients: int
) -> Iterator[ClientPolicy]:
    """Yield a policy that names the keys of a run, the first client's among them."""
    if strategy.keys != "roster":
        yield policy
        return
    with _private_directory() as directory:
        beacon = token(32).hex() if n_clients > MAX_POSITIONS else None
        *own, roster = write_members(directory, [_MEMBER % i for i in range(n_clients)], beacon)
        before, strategy.roster_file = strategy.roster_file, roster
        try:  # the strategy holds the roster meanwhile
            yield replace(policy, roster_file=str(roster), member_key_file=str(own[0]))
        finally:
            strategy.roster_file = before


def _client_app(
    policy: ClientPolicy, faults: Sequence[Fault], load_data: LoadData, on_result: OnResult
) -> ClientApp:
    """Return the app of all clients; with a roster or parties, each has another policy."""
    is_shared = policy.roster_file is None and policy.work_dir is None
    make = kmeans_client_app if is_shared else _DifferentClientsApp
    app = make(load_data, policy, on_result)
    return FaultyClientApp(app, faults) if faults else app


class _DifferentClientsApp(ClientApp):
    """Clients whose policies differ in the file of their key, or in their party."""

    def __init__(self, load_data: LoadData, policy: ClientPolicy, on_result: OnResult) -> None:
        super().__init__()
        self._load_data, self._policy, self._on_result = load_data, policy, on_result

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the client of this context."""
        number, policy = int(context.node_config["partition-id"]), self._policy
        if policy.roster_file is not None:
            own = Path(str(policy.member_key_file)).with_stem(_MEMBER % number)
            policy = replace(policy, member_key_file=str(own))
        elif policy.work_dir is not None:
            policy = replace(policy, party=number)
        app = kmeans_client_app(self._load_data, policy, self._on_result, self._row_numbers)
        return app(message, context)

    def _row_numbers(self, context: Context) -> list[str]:
        return [str(row) for row in range(len(np.asarray(self._load_data(context))))]


# --------------------------------------------------------------------------- in this process


def _run_in_process(start: Start, records: Records, make_app: MakeApp) -> ClientResult:
    results: list[ClientResult] = []
    app = make_app(
        lambda context: records[int(context.node_config["partition-id"])],
        lambda result, context: results.append(result),  # all clients have the same
    )
    with task_identity():
        start(InProcessGrid(app, len(records)))
    if not results:
        raise RunError("No client reported a result.")
    return results[0]


# --------------------------------------------------------------------------- on Ray


def _run_on_ray(start: Start, records: Records, make_app: MakeApp) -> ClientResult:
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise ConfigurationError(
            "The engine 'ray' needs the package ray: install it with "
            "pip install 'flower-kmeans[simulation]', or choose the engine 'in-process'."
        ) from None
    with _private_directory() as directory:
        for i, part in enumerate(records):
            np.save(directory / f"{i}.npy", part)
        app = make_app(partial(_load_partition, directory), partial(_keep_result, directory))
        server_app = ServerApp()

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            start(grid)

        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reports no usage
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            run_simulation(
                server_app,
                app,
                num_supernodes=len(records),
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {"log_to_driver": False},  # client logs stay with the clients
                },
            )
        return _read_result(directory)


def _load_partition(directory: Path, context: Context) -> Any:
    """Load one client's records, which workers read from a file instead of receiving copies."""
    return np.load(directory / f"{context.node_config['partition-id']}.npy")


def _keep_result(directory: Path, result: ClientResult, context: Context) -> None:
    """Keep one client's result; all clients have the same."""
    temporary = directory / f"{context.node_id}.part"
    temporary.write_bytes(pickle.dumps(result))
    temporary.replace(directory / _RESULT_FILE)  # whole, whichever client is the last


def _read_result(directory: Path) -> ClientResult:
    path = directory / _RESULT_FILE
    if not path.exists():
        raise RunError("No client reported a result.")
    # The directory is private, and this run's own workers wrote the file.
    result: ClientResult = pickle.loads(path.read_bytes())  # noqa: S301
    return result
