"""A Flower grid that runs every client in this process, one after the other.

It calls the ClientApp that a SuperNode would call, with real Flower messages and contexts.
Only this file touches Flower's internals: in a deployment the SuperLink sets message ids,
and creating a message needs the identity of the running task.
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]
"""Function that answers a client's message, as a ClientApp does."""

CLIENT_RAISED = 2  # Flower's code for an exception of a ClientApp
_RUN_ID = 1
_SERVER_NODE_ID = 1
# Node ids are above the server's id, and far from partition ids, so that none is mistaken
# for another.
_FIRST_NODE_ID = 1001
_PAUSE = 0.02  # seconds
_numbers = count(1)  # numbers of messages, for all grids of this process

# The names are private, because Flower's properties raise while nothing is set.
_IDENTITY = {"_task_id": 1, "_run_id": _RUN_ID, "_node_id": _SERVER_NODE_ID}
# Runs can be in several threads, so they can overlap in any order.
_lock = threading.Lock()
_overlapping = 0
_set_here: list[
    str
] = []  # names that were not set when the first overlapping run began


@contextmanager
def task_identity() -> Iterator[None]:
    """Give this process the identity that Flower requires for creating messages.

    The identity belongs to the process, and is the same for all simulations: of
    overlapping ones, the first sets it and the last removes it. An identity that Flower
    has set, for example for a ServerApp that simulates, stays, because other threads
    create messages with it.
    """
    global _overlapping
    with _lock:
        if _overlapping == 0:
            _set_here[:] = [
                name for name in _IDENTITY if getattr(TaskIdentity, name) is None
            ]
            for name in _set_here:
                setattr(TaskIdentity, name, _IDENTITY[name])
        _overlapping += 1
    try:
        yield
    finally:
        with _lock:
            _overlapping -= 1
            # Flower may have set another identity in the meantime.
            is_ours = all(
                getattr(TaskIdentity, name) == _IDENTITY[name] for name in _set_here
            )
            if _overlapping == 0 and is_ours:
                for name in _set_here:
                    setattr(TaskIdentity, name, None)


class PolledGrid(Grid):
    """A grid whose ``pull_messages`` never waits. Its ``known_lost`` is complete."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def set_run(self, run: Run) -> None:
        """Set the run of this grid."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of this grid."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message. Flower's interface requires this method."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    @abstractmethod
    def known_lost(self, message_ids: Iterable[str]) -> set[str]:
        """Return the messages that will never be answered."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and return their replies."""
        waiting = list(self.push_messages(messages))
        replies = list[Message]()
        started = time.monotonic()
        while waiting and (timeout is None or time.monotonic() - started < timeout):
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            done = {reply.metadata.reply_to_message_id for reply in arrived}
            done |= self.known_lost(waiting)
            waiting = [message_id for message_id in waiting if message_id not in done]
            if waiting and not arrived:
                time.sleep(_PAUSE)
        return replies


def new_contexts(n_nodes: int) -> dict[int, Context]:
    """Return a context for each node, by node id. Node ids ascend with the partition id."""
    contexts = {}
    for partition in range(n_nodes):
        node_id = _FIRST_NODE_ID + partition
        contexts[node_id] = Context(
            run_id=_RUN_ID,
            node_id=node_id,
            node_config={"partition-id": partition, "num-partitions": n_nodes},
            state=RecordDict(),
            run_config={},
        )
    return contexts


def new_run() -> Run:
    """Return the run of a simulated grid."""
    return Run.create_empty(run_id=_RUN_ID)


def numbered(message: Message) -> str:
    """Give a message an id, as a SuperLink does, and return the id."""
    message_id = str(next(_numbers))
    # Flower has no setter, because a SuperLink sets the id when it stores the message.
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def answered(client_app: App, message: Message, context: Context) -> Message:
    """Return a client's reply, or its error as Flower's runtime reports it."""
    try:
        return client_app(message, context)
    except Exception as error:
        return Message(Error(code=CLIENT_RAISED, reason=repr(error)), reply_to=message)


class InProcessGrid(PolledGrid):
    """A grid whose nodes are function calls, one at a time.

    Flower's older servers ask each client in its own thread. Clients are written for their
    own process and need not be thread-safe, so they answer one at a time.
    """

    def __init__(self, client_app: App, n_nodes: int) -> None:
        super().__init__(new_run())
        self._client_app = client_app
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._replies: dict[str, Message] = {}
        self._contexts = new_contexts(n_nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Store the messages. A client runs when its reply is pulled."""
        pushed = {numbered(message): message for message in messages}
        self._replies |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Run the clients of the given messages and yield their replies one by one."""
        for message_id in list(message_ids):
            # No client answers a message twice, even if two threads pull.
            with self._lock:
                message = self._replies.pop(message_id, None)
            if message is not None:
                yield self._answer(message)

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        # Python itself is not thread-safe here: before 3.11.8, NumPy could fail to read an
        # array if another thread read one while the garbage collector ran in
        # ast.literal_eval.
        with self._turn:
            return answered(self._client_app, message, context)

    def known_lost(self, message_ids: Iterable[str]) -> set[str]:
        """Return the messages that will not be answered: all that were pulled."""
        return {
            message_id for message_id in message_ids if message_id not in self._replies
        }
