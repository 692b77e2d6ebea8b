"""Whole federations on one machine: in this process, or on Ray through Flower's simulation.

Both engines run the strategy and the client code that a deployment runs, over Flower messages.
Where the server must not see the result, it is taken from a client through its ``on_result``, as in
a deployment, and never passes the grid.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.client import (
    ClientPolicy,
    ClientResult,
    LoadData,
    OnResult,
    kmeans_client_app,
)
from flower_kmeans.clustering import Clustering
from flower_kmeans.domain import check_records
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.faults import Fault, FaultyClientApp, FaultyGrid
from flower_kmeans.files import open_private
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.strategies import KMeansStrategy, RoundInfo
from flower_kmeans.strategies._checks import require_type

Engine = Literal["in-process", "ray"]
Records = list[NDArray[np.float64]]

_RESULT_FILE = "result.npz"


def simulate(
    strategy: KMeansStrategy,
    partitions: Sequence[ArrayLike],
    *,
    engine: Engine = "in-process",
    policy: ClientPolicy | None = None,
    faults: Sequence[Fault] = (),
    timeout: float = 600.0,
    on_round: Callable[[RoundInfo], None] | None = None,
) -> Clustering:
    """Run a strategy over simulated clients.

    Parameters
    ----------
    strategy : KMeansStrategy
        For example `FastLloyd`.
    partitions : sequence of array-like of shape (n_i, n_features)
        The records of each client, in the user's units; a client may have none. A strategy that
        was given neither ``n_clients`` nor ``min_clients`` takes their defaults from this number.
    engine : {"in-process", "ray"}, default: "in-process"
        In this process, one client after the other, or on Ray through Flower's simulation.
    policy : ClientPolicy, optional
        What every client accepts. The default, ``ClientPolicy.for_simulation()``, accepts
        whatever the strategy asks for. Under ``keys="roster"`` keys and roster are made for this
        run, in a private directory that is removed after it.
    faults : sequence of Fault
        Misbehaviour of chosen clients in chosen rounds.
    timeout : float, default: 600
        Seconds after which a round trip ends in any case.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Returns
    -------
    Clustering
        Centroids in the user's units, noisy sizes, and the report.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        If an argument cannot be used; nothing has been sent then.
    TooFewClientsError, RunError
        If the run could not be completed.
    """
    require_type("strategy", strategy, KMeansStrategy, "one of flower_kmeans.strategies")
    if engine not in ("in-process", "ray"):
        raise ConfigurationError(
            f"Expected engine in ('in-process', 'ray'). Got {engine!r} instead."
        )
    records = _checked_partitions(strategy, partitions)
    _check_faults(faults, len(records), strategy)
    require_type("policy", policy, ClientPolicy | None, "a ClientPolicy")
    accepted = ClientPolicy.for_simulation() if policy is None else policy
    if accepted.state_dir is not None:
        raise ConfigurationError(
            "Expected policy without a state_dir: a ledger belongs to one node, and simulated "
            "clients share their policy. Got one with a state_dir instead."
        )
    if (accepted.member_key_file or accepted.roster_file) is not None:
        raise ConfigurationError(
            "Expected policy without a roster_file and a member_key_file: simulated clients share "
            "their policy, and keys='roster' makes a roster for them. Got one of the two instead."
        )
    require_type("on_round", on_round, Callable | None, "a callable")
    run = _run_in_process if engine == "in-process" else _run_on_ray
    own_on_round = strategy.on_round
    strategy.on_round = on_round or own_on_round
    try:
        with (
            _with_keys(accepted, strategy, len(records)) as keyed,
            strategy.expecting(len(records)),
        ):
            result = run(strategy, records, keyed, faults, timeout)
    finally:
        strategy.on_round = own_on_round
    return Clustering(result.centroids, result.counts, strategy.domain, strategy.report)


def _checked_partitions(strategy: KMeansStrategy, partitions: Sequence[ArrayLike]) -> Records:
    require_type("partitions", partitions, list | tuple, "a list of arrays, one per client")
    if not partitions:
        raise ConfigurationError("Expected partitions for at least one client. Got 0 instead.")
    if strategy.n_clients is not None and strategy.n_clients != len(partitions):
        raise ConfigurationError(
            f"Expected partitions for n_clients={strategy.n_clients} clients. "
            f"Got {len(partitions)} instead."
        )
    with strategy.expecting(len(partitions)):
        pass  # fails now if fewer clients than the strategy was told to need
    return [
        check_records(part, strategy.domain.n_features, name=f"partitions[{i}]")
        for i, part in enumerate(partitions)
    ]


def _check_faults(faults: Sequence[Fault], n_clients: int, strategy: KMeansStrategy) -> None:
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


def _with_faults(app: ClientApp, faults: Sequence[Fault]) -> ClientApp:
    return FaultyClientApp(app, faults) if faults else app


# --------------------------------------------------------------------------- keys


@contextmanager
def _with_keys(
    policy: ClientPolicy, strategy: KMeansStrategy, n_clients: int
) -> Iterator[ClientPolicy]:
    """Yield a policy that names the keys of a run; the strategy holds their roster meanwhile.

    The policy names the first client's key: see `_client_app`.
    """
    if strategy.keys != "roster":
        yield policy
        return
    with _private_directory() as directory:
        beacon = token(32).hex() if n_clients > MAX_POSITIONS else None
        *own, roster = write_members(directory, [_member(i) for i in range(n_clients)], beacon)
        before, strategy.roster_file = strategy.roster_file, roster
        try:
            yield replace(policy, roster_file=str(roster), member_key_file=str(own[0]))
        finally:
            strategy.roster_file = before


def _member(partition: int) -> str:
    return f"client-{partition}"


def _client_app(load_data: LoadData, policy: ClientPolicy, on_result: OnResult) -> ClientApp:
    """Return the app of all clients; with a roster, each has a separate key."""
    if policy.roster_file is None:
        return kmeans_client_app(load_data, policy, on_result)
    return _RosterApp(load_data, policy, on_result)


class _RosterApp(ClientApp):
    """Clients whose policies differ in the file of their key."""

    def __init__(self, load_data: LoadData, policy: ClientPolicy, on_result: OnResult) -> None:
        super().__init__()
        self._load_data, self._policy, self._on_result = load_data, policy, on_result

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the client of this context."""
        first = Path(str(self._policy.member_key_file))
        own = first.with_stem(_member(int(context.node_config["partition-id"])))
        policy = replace(self._policy, member_key_file=str(own))
        return kmeans_client_app(self._load_data, policy, self._on_result)(message, context)


# --------------------------------------------------------------------------- in this process


def _run_in_process(
    strategy: KMeansStrategy,
    records: Records,
    policy: ClientPolicy,
    faults: Sequence[Fault],
    timeout: float,
) -> ClientResult:
    results: list[ClientResult] = []
    app = _client_app(
        lambda context: records[int(context.node_config["partition-id"])],
        policy,
        lambda result, context: results.append(result) if not results else None,
    )
    grid: Grid = InProcessGrid(_with_faults(app, faults), len(records))
    if faults:
        grid = FaultyGrid(grid)
    with task_identity():
        strategy.start(grid, timeout=timeout)
    if not results:
        raise RunError("No client reported a result.")
    return results[0]


# --------------------------------------------------------------------------- on Ray


def _run_on_ray(
    strategy: KMeansStrategy,
    records: Records,
    policy: ClientPolicy,
    faults: Sequence[Fault],
    timeout: float,
) -> ClientResult:
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise ConfigurationError(
            "The engine 'ray' needs the package ray: install it with "
            "pip install 'flower-kmeans[simulation]', or choose the engine 'in-process'."
        ) from None
    with _private_directory() as directory:
        _write_partitions(directory, records)
        app = _client_app(
            partial(_load_partition, str(directory)),
            policy,
            partial(_keep_result, str(directory)),
        )
        server_app = ServerApp()

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            strategy.start(FaultyGrid(grid) if faults else grid, timeout=timeout)

        with warnings.catch_warnings(), _quiet_flower():
            warnings.simplefilter("ignore", DeprecationWarning)
            run_simulation(
                server_app,
                _with_faults(app, faults),
                num_supernodes=len(records),
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {"log_to_driver": False},  # client logs stay with the clients
                },
            )
        return _read_result(directory)


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Make a directory that only this user can read: clients' keys, and what they load and keep."""
    with tempfile.TemporaryDirectory(prefix="flower-kmeans-") as name:
        path = Path(name)
        path.chmod(0o700)
        yield path


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Keep Flower from reporting usage while a simulation runs."""
    before = os.environ.get("FLWR_TELEMETRY_ENABLED")
    os.environ["FLWR_TELEMETRY_ENABLED"] = before or "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FLWR_TELEMETRY_ENABLED"]


def _write_partitions(directory: Path, records: Records) -> None:
    """Write all records into one file that workers map instead of receiving copies."""
    with open_private(directory / "records.npy") as file:
        np.save(file, np.concatenate(records))
    np.save(directory / "ends.npy", np.cumsum([len(part) for part in records]))


def _load_partition(directory: str, context: Context) -> NDArray[np.float64]:
    i = int(context.node_config["partition-id"])
    ends = np.load(os.path.join(directory, "ends.npy"))
    records = np.load(os.path.join(directory, "records.npy"), mmap_mode="r")
    start = int(ends[i - 1]) if i else 0
    return np.asarray(records[start : int(ends[i])])


def _keep_result(directory: str, result: ClientResult, context: Context) -> None:
    """Keep one client's result; all clients have the same."""
    path = os.path.join(directory, _RESULT_FILE)
    temporary = f"{path}.{context.node_id}"
    with open(temporary, "wb") as file:
        np.savez(file, centroids=result.centroids, counts=result.counts, run=result.run)
    os.replace(temporary, path)


def _read_result(directory: Path) -> ClientResult:
    path = directory / _RESULT_FILE
    if not path.exists():
        raise RunError("No client reported a result.")
    with np.load(path, allow_pickle=False) as stored:
        return ClientResult(stored["centroids"], stored["counts"], str(stored["run"]))
