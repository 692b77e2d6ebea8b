"""Engines that run whole federations: in this process, or on a Ray cluster.

Both engines run the strategy and the client code of a deployment, over Flower messages.
The result comes from a client's ``on_result``, as in a deployment. If the server must not
see it, it never passes the grid.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid

from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.client import (
    ClientPolicy,
    ClientResult,
    OnResult,
    simulated_client_app,
)
from flower_kmeans.data.domain import Box
from flower_kmeans.data.persons import known
from flower_kmeans.data.sources import (
    RecordsLike,
    checked_source,
    finite_source,
    is_stream,
)
from flower_kmeans.errors import ConfigurationError, DataError, RunError
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS
from flower_kmeans.protocol.roster import ROSTER_FILE, Identity, Roster, new_members
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.report.ranges import column_ranges
from flower_kmeans.simulation.clients import (
    Clients,
    Loading,
    LoadMember,
    Own,
    Unusable,
    is_reference,
    partition_of,
)
from flower_kmeans.simulation.directories import private_directory
from flower_kmeans.simulation.faults import Fault, FaultyClientApp, FaultyGrid
from flower_kmeans.simulation.in_process import App, InProcessGrid, task_identity
from flower_kmeans.simulation.parts import SimulationPart, simulation_part
from flower_kmeans.simulation.ray import (
    RayGrid,
    connected,
    require_one_node,
    require_usable_on_ray,
)
from flower_kmeans.strategies import ClusteringStrategy, RoundInfo

Engine = Literal["in-process", "ray", "auto"]
Place = Literal["in-process", "ray"]
ClientRecords = list[Any]  # each a value that `as_source` takes
AnyStrategy = ClusteringStrategy[Any]
Partitions = Sequence[Any] | Callable[[int], RecordsLike]
StartRun = Callable[[Grid], None]

_TIMEOUT = 600.0  # seconds
_MUCH_WORK = 5e9
"""Rounds x records x clusters x columns that take 20 s in one process; Ray starts in 10 s."""

_lock = threading.Lock()
_at_work: set[int] = set()  # ids of the strategies that have a run in this process


def simulate(
    strategy: AnyStrategy,
    partitions: Partitions,
    *,
    persons: Sequence[Any] | None = None,
    weights: Sequence[Any] | None = None,
    engine: Engine = "in-process",
    ray_address: str | None = None,
    policy: ClientPolicy | None = None,
    faults: Sequence[Fault] = (),
    timeout: float | None = None,
    on_round: Callable[[RoundInfo], None] | None = None,
) -> Clustering:
    """Run a strategy over simulated clients.

    Runs of different strategies can overlap in threads of one process. On Ray they share
    one connection.

    Parameters
    ----------
    strategy : KMeansStrategy or VerticalKMeans
        The strategy, for example a `SynopsisKMeans`.
    partitions : sequence of array-like of shape (n_i, n_features), or callable
        The records of each client, in the user's units: an array, or a table of another
        type (docs/own-data.md, "What load_data may return"). A client can have no
        records. The engine "in-process" also takes the types that `register_kmeans`
        lists for larger records, and Ray takes references to arrays and tables
        (``ray.ObjectRef``). Arrays are checked once and may be read in place, so
        ``on_round`` and other threads must not change them during the run. A strategy
        without ``n_clients`` and ``min_clients`` takes their defaults from the number
        of partitions.

        A callable gets the partition id and returns the records. It is called where and
        as often as they are read: on Ray on the workers, for example to read storage that
        all of them share. The strategy must then have ``n_clients``. Its results, and
        referenced records, are read once before the run, up to the first record that
        counts. If the callable raises an error, its client refuses, as in a deployment.

        For `VerticalKMeans` they are the columns of each party, (n_records, width), with
        the same rows in the same order. The ids of rows are their numbers.
    persons : sequence of sequences, optional
        With ``unit="person"`` only, which requires it: for each client the ids of the
        persons whose its records are, in the order of its records. `register_kmeans`
        explains ids (``load_ids``).
    weights : sequence of array-like of shape (n_i,), optional
        With ``weighted=True`` only, which requires it: for each client the weights of
        its records, in [0, 1], in the order of its records.
    engine : {"in-process", "ray", "auto"}, default: "in-process"
        ``"in-process"`` runs one client after the other in this process, and ``"ray"``
        runs tasks on Ray. ``"auto"`` takes Ray if it is installed, partitions are neither
        chunks nor files, and a run in this process would take about 20 s or more. If Ray
        then cannot be started, the run goes on in this process, with a `RuntimeWarning`
        that has the reason.
    ray_address : str, optional
        ``HOST:PORT`` of a running Ray cluster, whose nodes have the same packages as
        this process. Default: the cluster that this process is connected to, the cluster
        of the environment variable ``RAY_ADDRESS``, or a new one on this machine for this
        run. Tasks of a lost node run again on others. The run ends with a `RunError` if
        a task is lost four times.
    policy : ClientPolicy, optional
        Policy of all clients. The default, ``ClientPolicy.for_simulation()``, accepts all
        requests of the strategy. With ``keys="roster"``, keys and roster are made for
        this run; on Ray a client's key travels with its messages. Party 0 of
        `VerticalKMeans` computes in one process, unless the policy names more
        ``workers``.
    faults : sequence of Fault
        Misbehaviour of chosen clients in chosen rounds.
    timeout : float, optional
        Seconds after which a round trip ends in any case. Default: 600, or the
        ``default_timeout`` of `VerticalKMeans`.
    on_round : callable, optional
        Called with a `RoundInfo` after each round.

    Returns
    -------
    Clustering
        Centroids in the user's units, noisy sizes and the report, and weights if sizes
        have bounds.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        If an argument cannot be used. Nothing has been sent then.
    TooFewClientsError, RunError
        If the run could not be completed.
    """
    require_type(
        "strategy", strategy, ClusteringStrategy, "one of flower_kmeans.strategies"
    )
    require_type(
        "ray_address", ray_address, str | None, "the HOST:PORT of a Ray cluster"
    )
    chosen = choose_engine(strategy, engine, ray_address)
    records = _checked_partitions(strategy, partitions)
    by_person = strategy.privacy.counts_persons
    ids = _checked_beside("persons", persons, records, by_person)
    ids = _known_persons(ids, records)
    is_weighted = strategy.algorithm.weighted
    own_weights = _checked_beside("weights", weights, records, is_weighted)
    stream = _first_stream(records)
    if chosen == "ray" and stream is not None:
        if engine != "auto" or ray_address is not None:
            raise ConfigurationError(
                "Expected partitions as arrays, references or a function with engine='ray'. "
                f"Got chunks or files, a {type(stream).__name__}."
            )
        chosen = "in-process"
    _check_faults(faults, len(records), strategy)
    require_type("policy", policy, ClientPolicy | None, "a ClientPolicy")
    accepted = _checked_policy(policy, len(records))
    require_type("on_round", on_round, Callable | None, "a callable")
    if timeout is None:
        timeout = _default_timeout(strategy)

    def start(grid: Grid) -> None:
        if faults:
            grid = FaultyGrid(grid)
        strategy.start(grid, timeout=timeout)

    with (
        _alone(strategy),
        _told(strategy, on_round),
        started(chosen, ray_address, or_here=engine == "auto") as (place, note),
        _placed(accepted, strategy, place) as placed,
        _with_keys(strategy, len(records)) as (roster, keys),
        strategy.expecting(len(records)),
    ):
        if note is not None:
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        load = None
        if callable(partitions):
            load = partitions
        clients = Clients(
            partial(_client_app, placed, faults),
            load,
            roster,
            has_persons=persons is not None,
            has_weights=weights is not None,
        )
        held = zip(records, keys, ids, own_weights, strict=True)
        own = [Own(*each) for each in held]
        _require_usable(clients, own, strategy, place, timeout)
        if place == "ray":
            result = _run_on_ray(start, clients, own)
        else:
            if _part_of(strategy) is None:
                own = [_checked_once(each) for each in own]
            result = _run_in_process(start, clients, own)
    if result is None:
        raise RunError("No client reported a result.")
    return _clustering(strategy, result)


def _clustering(strategy: AnyStrategy, result: ClientResult) -> Clustering:
    """Return a client's result with the server's report."""
    report = strategy.report
    if strategy.trust_model.is_blind:
        # Only clients know these values. A simulation has their result.
        report = replace(report, warnings=result.warnings, silhouette=result.silhouette)
    domain = strategy.domain
    if isinstance(domain, Box) and domain.tighten is not None:
        found = cast(Box, result.domain)
        domain = domain.within(found.lower, found.upper)
        report = replace(report, ranges=column_ranges(domain, strategy.domain))
    # Clients only know the box. The strategy has the columns of a `TableDomain`.
    synopsis = result.synopsis
    if synopsis is not None:
        synopsis = replace(synopsis, domain=domain)
    return Clustering(
        result.centroids,
        result.counts,
        domain,
        report,
        result.weights,
        result.size_report,
        synopsis,
    )


def _first_stream(records: ClientRecords) -> Any | None:
    """Return the first partition that is read in chunks, or ``None``."""
    for each in records:
        if is_stream(each) and not isinstance(each, np.ndarray):
            return each
    return None


def _default_timeout(strategy: AnyStrategy) -> float:
    part = _part_of(strategy)
    return _TIMEOUT if part is None else part.timeout(strategy)


def _part_of(strategy: AnyStrategy) -> SimulationPart | None:
    return simulation_part(strategy.trust_model.kind)


def choose_engine(
    strategy: AnyStrategy, engine: Engine, ray_address: str | None = None
) -> Place:
    """Return the engine of a run. ``"auto"`` decides by the run's public numbers."""
    if engine not in get_args(Engine):
        raise ConfigurationError(
            f"Expected engine in {get_args(Engine)}. Got {engine!r} instead."
        )
    if engine == "in-process" and ray_address is not None:
        raise ConfigurationError(
            f"Expected engine='ray' with ray_address. Got {engine!r} with {ray_address!r} instead."
        )
    if engine != "auto":
        return engine
    if ray_address is not None:
        return "ray"
    if _part_of(strategy) is not None:
        return "in-process"
    total = planned_total(strategy.algorithm) or 0
    n_values = total * strategy.domain.n_features
    work = strategy.n_rounds * n_values * strategy.n_clusters
    if work > _MUCH_WORK and find_spec("ray") is not None:
        return "ray"
    return "in-process"


@contextmanager
def started(
    engine: Place, ray_address: str | None = None, *, or_here: bool = False
) -> Iterator[tuple[Place, str | None]]:
    """Start an engine, and yield its name, with a note if it is another engine.

    Parameters
    ----------
    engine : {"in-process", "ray"}
        The result of `choose_engine`.
    ray_address : str, optional
        As in `simulate`.
    or_here : bool, default: False
        Whether to go on in this process if Ray cannot be started. It has no effect with
        an address.
    """
    with ExitStack() as stack:
        note = None
        if engine == "ray":
            try:
                stack.enter_context(connected(ray_address))
            except ConfigurationError as error:
                if not or_here or ray_address is not None:
                    raise
                engine = "in-process"
                note = f"The run goes on in this process. {error}"
        yield engine, note


@contextmanager
def _alone(strategy: AnyStrategy) -> Iterator[None]:
    """Require that a strategy has one run at a time: two would mix their results and reports."""
    with _lock:
        if id(strategy) in _at_work:
            raise ConfigurationError(
                "Expected a different strategy for each run at the same time. Got one that has a "
                "run in this process already."
            )
        _at_work.add(id(strategy))
    try:
        yield
    finally:
        with _lock:
            _at_work.discard(id(strategy))


@contextmanager
def _told(
    strategy: AnyStrategy, on_round: Callable[[RoundInfo], None] | None
) -> Iterator[None]:
    """Set the function that a strategy calls after each round inside the context, if any."""
    before = strategy.on_round
    strategy.on_round = on_round or before
    try:
        yield
    finally:
        strategy.on_round = before


def _checked_policy(policy: ClientPolicy | None, n_clients: int) -> ClientPolicy:
    """Return the policy of all clients; raise for settings that only one node can have."""
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


def _checked_partitions(strategy: AnyStrategy, partitions: Partitions) -> ClientRecords:
    """Return the records of each client; ``None`` for each if a function returns them."""
    require_type(
        "partitions",
        partitions,
        list | tuple | Callable,
        "a list of arrays or a callable",
    )
    part = _part_of(strategy)
    if callable(partitions):
        if strategy.n_clients is None or part is not None:
            raise ConfigurationError(
                "Expected a strategy with n_clients, and clients with records, where partitions is "
                "a callable: it says nothing about their number. Got one without instead."
            )
        strategy.algorithm.require_packages()
        return [None] * strategy.n_clients
    if not partitions:
        raise ConfigurationError(
            "Expected partitions for at least one client. Got 0 instead."
        )
    if strategy.n_clients is not None and strategy.n_clients != len(partitions):
        raise ConfigurationError(
            f"Expected partitions for n_clients={strategy.n_clients} clients. "
            f"Got {len(partitions)} instead."
        )
    with strategy.expecting(len(partitions)):
        pass  # raises if there are fewer clients than the strategy needs
    if part is not None:
        return part.checked(strategy, partitions)
    return _checked_rows(strategy, partitions)


def _checked_rows(strategy: AnyStrategy, partitions: Sequence[Any]) -> ClientRecords:
    """Return the records of clients that hold rows."""
    domain = strategy.domain
    records = []
    for i, part in enumerate(partitions):
        if not is_reference(part):
            name = f"partitions[{i}]"
            part = checked_source(part, domain.n_features, domain.columns, name)
        records.append(part)
    strategy.algorithm.require_packages()
    return records


def _checked_beside(
    name: str, given: Sequence[Any] | None, records: ClientRecords, is_needed: bool
) -> list[Any]:
    """Return the data of each client beside its records; ``None`` for each if none is needed."""
    if (given is not None) != is_needed:
        need = "unit='person'" if name == "persons" else "weighted=True"
        found = "none" if given is None else "some"
        raise ConfigurationError(
            f"Expected {name}, one sequence for each client, exactly with {need}. Got {found}."
        )
    if given is None:
        return [None] * len(records)
    require_type(name, given, list | tuple, "a list with one sequence for each client")
    if len(given) != len(records):
        raise ConfigurationError(
            f"Expected {name} of {len(records)} clients. Got {len(given)} instead."
        )
    # An iterator could be read in one round only.
    held = [each if hasattr(each, "__len__") else list(each) for each in given]
    for i, (each, part) in enumerate(zip(held, records, strict=True)):
        is_name = isinstance(each, str)  # of a column of a data set of Ray
        if is_name or not isinstance(part, np.ndarray):
            continue
        if len(each) != len(part):
            raise DataError(
                f"Expected {name}[{i}] with one entry for each of {len(part)} records. "
                f"Got {len(each)} instead."
            )
    return held


def _known_persons(ids: list[Any], records: ClientRecords) -> list[Any]:
    """Return the persons of records in memory in place of their ids."""
    found = []
    for each, part in zip(ids, records, strict=True):
        is_here = isinstance(part, np.ndarray)
        if each is not None and is_here and not is_reference(each):
            each = known(each, token(32))
        found.append(each)
    return found


def _require_usable(
    clients: Clients,
    owns: Sequence[Own],
    strategy: AnyStrategy,
    place: Place,
    timeout: float,
) -> None:
    """Require usable records of all clients whose records were not checked before."""
    check = Unusable(strategy.domain)
    unchecked = [
        (i, own)
        for i, own in enumerate(owns)
        if clients.load is not None or is_reference(own.records)
    ]
    if place == "ray":
        require_usable_on_ray(clients, unchecked, check, timeout)
        return
    for i, own in unchecked:
        objection = check(i, partial(clients.records_of, i, own))
        if objection is not None:
            raise objection


def _check_faults(
    faults: Sequence[Fault], n_clients: int, strategy: AnyStrategy
) -> None:
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


# ----------------------------------------------------------------------- files and keys


@contextmanager
def _placed(
    policy: ClientPolicy, strategy: AnyStrategy, engine: Place
) -> Iterator[ClientPolicy]:
    """Yield the clients' policy, with the files that their kind of run needs."""
    if engine == "ray" and policy.state_dir is not None:
        require_one_node("the policy names a state_dir")
    part = _part_of(strategy)
    if part is None:
        yield policy
        return
    with part.placed(policy, strategy, engine) as placed:
        yield placed


@contextmanager
def _with_keys(
    strategy: AnyStrategy, n_clients: int
) -> Iterator[tuple[Roster | None, Sequence[bytes]]]:
    """Yield the roster of a run and the clients' keys. Keys are not written to disk."""
    if strategy.keys != "roster":
        yield None, [b""] * n_clients
        return
    with private_directory() as directory:
        beacon = None
        if n_clients > MAX_POSITIONS:
            beacon = token(32).hex()
        names = [f"client-{i}" for i in range(n_clients)]
        keys, content = new_members(names, beacon)
        path = directory / ROSTER_FILE
        path.write_bytes(content)
        # The mode must not depend on the umask: the strategy refuses a file that other users
        # can write.
        path.chmod(0o644)
        before = strategy.roster_file
        strategy.roster_file = path
        try:
            yield Roster.from_file(path), keys
        finally:
            strategy.roster_file = before


def _client_app(
    policy: ClientPolicy,
    faults: Sequence[Fault],
    shared: SharedWork,
    loading: Loading,
    on_result: OnResult,
    load_member: LoadMember | None = None,
) -> App:
    """Return the app of all clients. With a roster or parties, each client has its own policy."""

    def row_numbers(context: Context) -> list[str]:
        n_rows = len(np.asarray(loading.data(context)))
        return [str(row) for row in range(n_rows)]

    # Parties compare rows by their numbers.
    load_ids = row_numbers if loading.ids is None else loading.ids

    def of_one(message: Message, context: Context) -> Message:
        if load_member is None:
            own = replace(policy, party=partition_of(context))
        else:
            own = _MemberPolicy(**vars(policy), member=load_member(context))
        app = app_with(own)
        return app(message, context)

    def app_with(own: ClientPolicy) -> App:
        return simulated_client_app(
            shared, loading.data, own, on_result, load_ids, loading.weights
        )

    has_one_policy = load_member is None and policy.work_dir is None
    app: App = of_one
    if has_one_policy:
        app = app_with(policy)
    if faults:
        app = FaultyClientApp(app, faults)
    return app


@dataclass(frozen=True)
class _MemberPolicy(ClientPolicy):
    """The policy of a simulated client whose key is not in a file."""

    member: Identity | None = None

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Accepted sources of the clients' keys in a protected run."""
        return ("roster",)

    def read_identity(self) -> Identity | None:
        """Return the client's slot on its roster and its own key."""
        return self.member


# --------------------------------------------------------------------------- engines


def _checked_once(own: Own) -> Own:
    """Return a client's data, whose records in memory are not checked again in each round.

    `_checked_rows` has checked that they are finite, and the caller of a simulation waits
    for it. A deployed client copies and checks them in each pass.
    """
    records = own.records
    # The kernel is compiled for arrays that it could write to, without gaps.
    if (
        isinstance(records, np.ndarray)
        and records.flags.carray
        and not is_stream(records)
    ):
        return replace(own, records=finite_source(records))
    return own


def _run_in_process(
    start: StartRun, clients: Clients, own: Sequence[Own]
) -> ClientResult | None:
    results: list[ClientResult] = []

    def keep(result: ClientResult, context: Context) -> None:
        results.append(result)

    app = clients.app(dict(enumerate(own)), keep)
    with task_identity():
        start(InProcessGrid(app, len(own)))
    # All clients have the same result.
    return results[0] if results else None


def _run_on_ray(
    start: StartRun, clients: Clients, own: Sequence[Own]
) -> ClientResult | None:
    grid = RayGrid(clients, own)
    with task_identity(), closing(grid):
        start(grid)
    return grid.result
