"""A server that is killed at a message, and the same run resumed by another process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from harness import RecordingGrid
from numpy.typing import ArrayLike

from flower_kmeans.client import ClientPolicy, kmeans_client_app
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.simulation.in_process import task_identity

WHEN = ("before", "unanswered", "answered")
"""Whether the server dies before it sends messages, after it sent them, or with the replies."""


class KilledError(BaseException):
    """The server's process ends here. No `except Exception` may catch it, as none could."""


class KillingGrid(RecordingGrid):
    """A grid whose server dies at its n-th wave of messages, counted from 1."""

    def __init__(
        self, client_app: Callable[[Message, Context], Message], n_nodes: int
    ) -> None:
        super().__init__(client_app, n_nodes)
        self.at = 0
        self.when = ""
        self.n_pushes = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.n_pushes += 1
        if (self.n_pushes, "before") == (self.at, self.when):
            raise KilledError
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        is_due = self.n_pushes == self.at
        if is_due and self.when == "unanswered":
            # no message of the dead process is delivered any more
            self._replies.clear()
            raise KilledError
        replies = list(super().pull_messages(message_ids))
        if is_due and self.when == "answered":
            raise KilledError
        yield from replies


@dataclass
class Federation:
    """Clients that outlive servers, each with what it received and answered."""

    partitions: Sequence[ArrayLike]
    policies: Sequence[ClientPolicy]
    results: dict[int, list[ClientResult]] = field(default_factory=dict)
    grid: KillingGrid = field(init=False)

    def __post_init__(self) -> None:
        def place(context: Context) -> int:
            return int(context.node_config["partition-id"])

        def keep(result: ClientResult, context: Context) -> None:
            self.results.setdefault(place(context), []).append(result)

        def load(context: Context) -> ArrayLike:
            return self.partitions[place(context)]

        apps = [kmeans_client_app(load, each, keep) for each in self.policies]

        def app(message: Message, context: Context) -> Message:
            return apps[place(context)](message, context)

        self.grid = KillingGrid(app, len(self.partitions))

    def run(self, strategy: Any, resume: Path, at: int = 0, when: str = "") -> bool:
        """Start a strategy, whose server perhaps is killed; return whether it lived."""
        self.grid.at, self.grid.when, self.grid.n_pushes = at, when, 0
        with task_identity():
            try:
                strategy.start(self.grid, timeout=60, resume=resume)
            except KilledError:
                return False
        return True
