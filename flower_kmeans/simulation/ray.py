"""A Flower grid whose clients are tasks of a Ray cluster, on this machine or on many.

A task answers the messages of a few clients, one after the other. It is given their
contexts and returns them, so any worker can answer for any client, and Ray runs the
tasks of a lost node again on another. A worker keeps what the clients of one run share,
which it would otherwise compute again for each task. It reads no file of the driver's
machine.
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

from flower_kmeans.client import ClientResult, LoadData, OnResult
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
"""Records of at most so many bytes travel with their client's messages: a reference costs more."""
_TASKS_PER_CPU = 4
"""Messages that go out together are divided among so many tasks, so that workers end alike."""
_NEW = "local"  # Ray's word for a new cluster on this machine
_CONNECT_SECONDS = 10.0
_RETRIES = 3
"""How often Ray runs a task again whose worker or node was lost."""
_MOST_TEXT = 300  # of the reason why Ray does not start

# On a worker: what the clients of its last run share, by that run's name on the cluster.
# It is of simulated clients alone, whose tasks follow each other on a worker.
_shared_by_run: dict[str, SharedWork] = {}

# A process has one connection, which runs in several of its threads share.
_lock = threading.Lock()
_sharing = 0  # runs that use the connection which one of them made


class _Job(NamedTuple):
    """A message, and the client that it is for."""

    message: Message
    context: Context
    own: Own


class _Done(NamedTuple):
    """Replies, the contexts after them, and a result if a client had one."""

    replies: list[Message]
    contexts: list[Context]
    result: ClientResult | None


def _answer(run: str, clients: Clients, jobs: Sequence[_Job]) -> _Done:
    """Answer some messages of a run; this runs on a worker."""
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
    """Return the shared work of a run on this worker, and drop that of another run."""
    if run not in _shared_by_run:
        _shared_by_run.clear()
        _shared_by_run[run] = SharedWork()
    return _shared_by_run[run]


def _objections(
    clients: Clients, owns: Sequence[tuple[int, Own]], check: Check
) -> list[KMeansError | None]:
    """Return an error or ``None`` for each client's records, on a worker."""
    found = []
    for partition, own in owns:
        load = partial(_readable_records, clients, partition, own)
        found.append(check(partition, load))
    return found


def _readable_records(clients: Clients, partition: int, own: Own) -> Any:
    """Return a client's records, but no data set of Ray, which waits for this task."""
    records = clients.records_of(partition, own)
    if _is_data_set(records):
        raise TypeError("A data set of Ray.")
    return records


def require_usable_on_ray(
    clients: Clients, owns: Sequence[tuple[int, Own]], check: Check, timeout: float
) -> None:
    """Raise the first error of a check of records that only workers have.

    This is before a run begins. Workers that are not free in time check nothing: the
    run itself then ends at its timeout.
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
    load_data: LoadData,
    on_result: OnResult,
    load_member: LoadMember | None,
) -> App:
    """Return an app that refuses data sets of Ray.

    Their tasks would wait for processors, which tasks of clients hold while they wait
    for these.
    """

    def load(context: Context) -> Any:
        records = load_data(context)
        if _is_data_set(records):
            raise ConfigurationTypeError(
                "Expected records that a worker can read by itself. Got a ray.data.Dataset."
            )
        return records

    return make(shared, load, on_result, load_member)


class RayGrid(PolledGrid):
    """A grid whose nodes are clients on the Ray cluster of this process.

    As in a deployment, a client answers one message after the other: its next one waits
    until it has answered.

    Attributes
    ----------
    answers_all : bool
        True: where a task waits for a worker, or runs again, its clients are not late.
    result : ClientResult or None
        That of the clients, which all have the same.
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
        self._waiting: dict[str, Message] = {}  # for a worker, or for their client
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
        """Yield those replies that are there."""
        self._collect()
        for message_id in list(message_ids):
            if message_id in self._replies:
                yield self._replies.pop(message_id)

    def known_lost(self, message_ids: Iterable[str]) -> set[str]:
        """Return the messages without an answer to come: here, all that were pulled."""
        open_ids = {*self._waiting, *self._replies}.union(*self._under_way.values())
        return set(message_ids) - open_ids

    def close(self) -> None:
        """Cancel unfinished tasks, on a cluster that may outlive the run."""
        for task in self._under_way:
            self._ray.cancel(task)

    def _submit(self) -> None:
        """Make tasks of the messages whose clients are free."""
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
        # Not the client's: its errors are replies.
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
    """Return a client's records and key, with a reference in place of a large array."""
    import ray

    if isinstance(own.records, np.ndarray) and own.records.nbytes > _SMALL:
        return replace(own, records=ray.put(own.records))
    return own


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a Ray cluster, with its tasks' output kept from this process.

    A connection that the caller has made is used, and left as it was. Without one, and
    without an address, Ray takes that in RAY_ADDRESS, or else starts on this machine.
    Runs that overlap share the connection that the first of them made, and the last one
    ends it.
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
    """Refuse another cluster than the one that this process is connected to."""
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

    # Not any cluster that this machine happens to have, which may be somebody else's.
    address = address or os.environ.get("RAY_ADDRESS") or _NEW
    _require_cluster(address)
    # Workers inherit the environment, but not what this process added to its own path.
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
            ray.shutdown()  # of what it had started
        if address != _NEW and isinstance(error, ConnectionError | ValueError):
            raise _no_cluster(address) from None
        reason = " ".join(str(error).split())[:_MOST_TEXT].rstrip(".")
        raise ConfigurationError(
            f"Ray cannot be started ({type(error).__name__}: {reason}): mend that, or choose the "
            "engine 'in-process'."
        ) from None


def _require_cluster(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try it for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():  # a word of Ray's own, such as "auto"
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
            f"Expected a Ray cluster with at least 1 CPU, for a client takes one. Got {found:g}."
        )


def require_one_node(reason: str) -> None:
    """Refuse a cluster of several machines, on each of which a client may run."""
    import ray

    found = sum(node["Alive"] for node in ray.nodes())
    if found > 1:
        raise ConfigurationError(
            f"Expected a Ray cluster of one node: {reason}, which other nodes do not have. "
            f"Got {found} nodes."
        )
