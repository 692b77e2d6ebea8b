"""Clients whose randomness is a function of who they are, wherever they run."""

import hashlib
from collections.abc import Callable
from unittest import mock

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_kmeans.privacy import randomness


def bytes_of(name: str) -> Callable[[int], bytes]:
    """Return what stands for the operating system's randomness: a stream with a name."""
    counter = iter(range(10**6))
    return lambda n: hashlib.shake_256(f"{name} {next(counter)}".encode()).digest(n)


class SeamedApp(ClientApp):
    """An app whose clients draw from streams with the names of their partitions and messages."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer with the randomness of this client and this kind of message."""
        name = f"{context.node_config['partition-id']} {message.metadata.group_id}"
        with mock.patch.object(randomness, "_os_random", bytes_of(name)):
            return self._app(message, context)
