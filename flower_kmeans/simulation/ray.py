"""A Flower grid whose clients are tasks of a Ray cluster, on this machine or on many.

A task answers the messages of a few clients, one after the other. It gets their contexts
and returns them, so any worker can answer for any client, and Ray runs the tasks of a lost
node again on another one. A worker caches the shared results of the clients of one run,
which each task would otherwise compute again. It reads no file of the driver's machine.
"""

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message

from flower_kmeans.client import ClientResult, OnResult
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    KMeansError,
    RunError,
)
from flower_kmeans.extras import require
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.simulation.clients import (
    Check,
    Clients,
    Loading,
    LoadMember,
    MakeApp,
    Own,
    partition_of,
)
from flower_kmeans.simulation.in_process import (
    App,
    PolledGrid,
    answered,
    new_contexts,
    new_run,
    numbered,
    task_identity,
)

_SMALL = 2**16
"""Most bytes of records that travel with a client's messages, because a reference costs more."""
_FEW_IDS = 2**12
"""Most ids or weights that travel with a client's messages."""
_TASKS_PER_CPU = 4
"""Tasks per CPU for messages that are sent together, so that workers end at similar times."""
_NEW = "local"  # Ray's address of a new cluster on this machine
_CONNECT_SECONDS = 10.0
_RETRIES = 3
"""Most repetitions of a task whose worker or node was lost."""
_MOST_TEXT = 300  # most characters of the reason why Ray does not start

# Shared work of the clients of a worker's last run, by the run's name on the cluster. Only
# simulated clients use it, and their tasks follow each other on a worker.
_shared_by_run: dict[str, SharedWork] = {}

# A process has one connection, which runs in several of its threads share.
_lock = threading.Lock()
_sharing = 0  # number of runs that use a connection that one of them made


class _Job(NamedTuple):
    """A message, with the context and the data of its client."""

    message: Message
    context: Context
    own: Own


class _Done(NamedTuple):
    """Replies, the contexts after them, and a result if a client had one."""

    replies: list[Message]
    contexts: list[Context]
    result: ClientResult | None


def _answer(run: str, clients: Clients, jobs: Sequence[_Job]) -> _Done:
    """Return the replies to some messages of a run. The function runs on a worker."""
    results: list[ClientResult] = []

    def keep(result: ClientResult, context: Context) -> None:
        results.append(result)

    make = partial(_without_data_sets, clients.make)
    guarded = replace(clients, make=make, shared=_shared_in(run))
    own = {partition_of(job.context): job.own for job in jobs}
    app = guarded.app(own, keep)
    with task_identity():
        replies = [answered(app, job.message, job.context) for job in jobs]
    contexts = [job.context for job in jobs]
    # All clients have the same result.
    return _Done(replies, contexts, results[0] if results else None)


def _shared_in(run: str) -> SharedWork:
    """Return the shared work of a run on this worker, and drop the work of other runs."""
    if run not in _shared_by_run:
        _shared_by_run.clear()
        _shared_by_run[run] = SharedWork()
    return _shared_by_run[run]


def _objections(
    clients: Clients, owns: Sequence[tuple[int, Own]], check: Check
) -> list[KMeansError | None]:
    """Return an error or ``None`` for each client's records. The function runs on a worker."""
    found = []
    for partition, own in owns:
        load = partial(_readable_records, clients, partition, own)
        found.append(check(partition, load))
    return found


def _readable_records(clients: Clients, partition: int, own: Own) -> Any:
    """Return a client's records; raise for a data set of Ray, which would wait for this task."""
    records = clients.records_of(partition, own)
    if _is_data_set(records):
        raise TypeError("A data set of Ray.")
    return records


def require_usable_on_ray(
    clients: Clients, owns: Sequence[tuple[int, Own]], check: Check, timeout: float
) -> None:
    """Raise the first error of a check of records that only workers have.

    It is called before a run begins. Workers that are not free within ``timeout`` seconds
    check nothing: the run itself then ends at its timeout.
    """
    if not owns:
        return
    import ray

    shared = ray.put(clients)
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_objections)
    size = ceil(len(owns) / _n_tasks())
    batches = [owns[start : start + size] for start in range(0, len(owns), size)]
    tasks = [task.remote(shared, batch, check) for batch in batches]
    done, late = ray.wait(tasks, num_returns=len(tasks), timeout=timeout)
    for each in late:
        ray.cancel(each)
    ready = set(done)
    for each in tasks:
        if each not in ready:
            continue
        for objection in _result_of(each):
            if objection is not None:
                raise objection


def _is_data_set(records: object) -> bool:
    kind = getattr(sys.modules.get("ray.data"), "Dataset", None)
    return kind is not None and isinstance(records, kind)


def _without_data_sets(
    make: MakeApp,
    shared: SharedWork,
    loading: Loading,
    on_result: OnResult,
    load_member: LoadMember | None,
) -> App:
    """Return an app that refuses data sets of Ray.

    Tasks of a data set would wait for processors that tasks of clients hold, while these
    wait for the data set.
    """

    def load(context: Context) -> Any:
        records = loading.data(context)
        if _is_data_set(records):
            raise ConfigurationTypeError(
                "Expected records that a worker can read by itself. Got a ray.data.Dataset."
            )
        return records

    return make(shared, loading._replace(data=load), on_result, load_member)


class RayGrid(PolledGrid):
    """A grid whose nodes are clients on the Ray cluster of this process.

    As in a deployment, a client answers one message after the other: its next message waits
    until then.

    Attributes
    ----------
    answers_all : bool
        True: clients are not late if their task waits for a worker or runs again.
    result : ClientResult or None
        The result, which is the same at all clients.
    """

    answers_all = True

    def __init__(self, clients: Clients, own: Sequence[Own]) -> None:
        import ray

        super().__init__(new_run())
        self._ray = ray
        self._clients = ray.put(clients)
        self._name = self._clients.hex()
        self._task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_answer)
        self._n_tasks = _n_tasks()
        self._contexts = new_contexts(len(own))
        self._own = dict(zip(self._contexts, map(_placed, own), strict=True))
        self._waiting: dict[str, Message] = {}  # messages without a task
        self._under_way: dict[Any, list[str]] = {}  # the messages of each task
        self._busy: set[int] = set()
        self._replies: dict[str, Message] = {}
        self.result: ClientResult | None = None

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to the workers."""
        pushed = {numbered(message): message for message in messages}
        self._waiting |= pushed
        self._submit()
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies that have arrived."""
        self._collect()
        for message_id in list(message_ids):
            if message_id in self._replies:
                yield self._replies.pop(message_id)

    def known_lost(self, message_ids: Iterable[str]) -> set[str]:
        """Return the messages that will not be answered: all that were pulled."""
        open_ids = {*self._waiting, *self._replies}.union(*self._under_way.values())
        return set(message_ids) - open_ids

    def close(self) -> None:
        """Cancel unfinished tasks, because the cluster may outlive the run."""
        for task in self._under_way:
            self._ray.cancel(task)

    def _submit(self) -> None:
        """Start tasks for the messages whose clients are free."""
        ids = []
        for message_id, message in self._waiting.items():
            node_id = message.metadata.dst_node_id
            if node_id not in self._busy:
                self._busy.add(node_id)
                ids.append(message_id)
        size = ceil(len(ids) / self._n_tasks)
        for start in range(0, len(ids), size or 1):  # no step may be 0
            batch = ids[start : start + size]
            jobs = []
            for message_id in batch:
                message = self._waiting.pop(message_id)
                node_id = message.metadata.dst_node_id
                job = _Job(message, self._contexts[node_id], self._own[node_id])
                jobs.append(job)
            self._under_way[self._task.remote(self._name, self._clients, jobs)] = batch

    def _collect(self) -> None:
        """Take the replies, contexts and result of finished tasks."""
        tasks = list(self._under_way)
        if not tasks:
            return
        over, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in over:
            done: _Done = _result_of(task)
            message_ids = self._under_way.pop(task)
            self._replies |= zip(message_ids, done.replies, strict=True)
            for context in done.contexts:
                self._contexts[context.node_id] = context
                self._busy.discard(context.node_id)
            self.result = done.result or self.result
        if over and self._waiting:
            self._submit()


def _n_tasks() -> int:
    import ray

    return _TASKS_PER_CPU * int(ray.cluster_resources()["CPU"])


def _result_of(task: Any) -> Any:
    """Return the result of a finished task."""
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        # It is no error of a client, because those are replies.
        raise RunError(
            f"A Ray worker could not make the clients ({type(error.cause).__name__}). Every "
            "node of the cluster needs the same Python and packages as this process, and the "
            "modules of the functions that partitions and policy are made of."
        ) from None
    except ray.exceptions.RayError as error:
        raise RunError(
            f"Ray lost the workers of a task {_RETRIES + 1} times, at last with "
            f"{type(error).__name__}. Start the run again."
        ) from None


def _placed(own: Own) -> Own:
    """Return a client's data, with references in place of large arrays."""
    import ray

    if isinstance(own.records, np.ndarray) and own.records.nbytes > _SMALL:
        own = replace(own, records=ray.put(own.records))
    if own.persons is not None and len(own.persons) > _FEW_IDS:
        own = replace(own, persons=ray.put(own.persons))
    if own.weights is not None and len(own.weights) > _FEW_IDS:
        own = replace(own, weights=ray.put(own.weights))
    return own


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster inside the context, without the output of its tasks.

    A connection of the caller is used, and stays. Without a connection and an address, the
    cluster of RAY_ADDRESS is used, or a new one on this machine. Overlapping runs share the
    connection that the first of them made, and the last one ends it.
    """
    global _sharing
    ray: Any = require(
        "ray", "The engine 'ray'", instead=", or choose the engine 'in-process'"
    )
    with _lock:
        if not ray.is_initialized():
            _connect(address)
            is_shared = True
        else:
            _require_address(address)
            is_shared = _sharing > 0
        _sharing += is_shared
    try:
        _require_processors()
        yield
    finally:
        with _lock:
            _sharing -= is_shared
            if is_shared and _sharing == 0:
                ray.shutdown()


def _require_address(address: str | None) -> None:
    """Require the cluster that this process is connected to."""
    import ray

    found = ray.get_runtime_context().gcs_address
    if address not in (None, found):
        raise ConfigurationError(
            f"Expected ray_address as {found!r}, to which this process is connected, or None. "
            f"Got {address!r} instead."
        )


def _connect(address: str | None) -> None:
    """Connect this process to a cluster, or start one on this machine."""
    import ray

    # A cluster that this machine happens to run may be somebody else's, so it is not used.
    address = address or os.environ.get("RAY_ADDRESS") or _NEW
    _require_cluster(address)
    # Workers inherit the environment, but not folders that this process added to its path.
    folders = list(sys.path)
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        folders.append(inherited)
    path = os.pathsep.join(folders)
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,  # logs of clients stay with the clients
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
    except Exception as error:  # Ray raises many kinds where it does not start
        with suppress(Exception):
            ray.shutdown()  # it may have started in part
        if address != _NEW and isinstance(error, ConnectionError | ValueError):
            raise _no_cluster(address) from None
        reason = " ".join(str(error).split())[:_MOST_TEXT].rstrip(".")
        raise ConfigurationError(
            f"Ray cannot be started ({type(error).__name__}: {reason}): mend that, or choose the "
            "engine 'in-process'."
        ) from None


def _require_cluster(address: str) -> None:
    """Require an address where somebody listens. Ray would try another for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():  # a name that Ray defines, such as "auto"
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        raise _no_cluster(address) from None


def _no_cluster(address: str) -> ConfigurationError:
    return ConfigurationError(
        "Expected ray_address, or RAY_ADDRESS in the environment, as the HOST:PORT of a running "
        f"Ray cluster. Got {address!r}, where none answers."
    )


def _require_processors() -> None:
    import ray

    found = ray.cluster_resources().get("CPU", 0)
    if found < 1:
        raise ConfigurationError(
            f"Expected a Ray cluster with at least 1 CPU for the clients. Got {found:g} instead."
        )


def require_one_node(reason: str) -> None:
    """Require a cluster of one machine, because clients run on all of them."""
    import ray

    found = sum(node["Alive"] for node in ray.nodes())
    if found > 1:
        raise ConfigurationError(
            f"Expected a Ray cluster of one node: {reason}, which other nodes do not have. "
            f"Got {found} nodes."
        )
