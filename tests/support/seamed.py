"""Randomness that is repeated: that of a test by its name, and that of a client by what it is."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from unittest import mock

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_kmeans.privacy import randomness


def bytes_of(name: str) -> Callable[[int], bytes]:
    """Return what stands for the operating system's randomness: a stream with a name."""
    counter = count()
    return lambda n: hashlib.shake_256(f"{name} {next(counter)}".encode()).digest(n)


class NamedSource:
    """Randomness of this process by the name of what draws it; forked processes have others."""

    def __init__(self) -> None:
        self._process, self._bytes = os.getpid(), os.urandom

    def __call__(self, n: int) -> bytes:
        """Return the next bytes."""
        return self._bytes(n) if os.getpid() == self._process else os.urandom(n)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Draw from the stream of a name for a while."""
        before, self._bytes = self._bytes, bytes_of(name)
        yield
        self._bytes = before


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
