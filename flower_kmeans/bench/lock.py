"""One command at a time writes to a directory of results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from flower_kmeans.errors import ConfigurationError

try:
    fcntl: Any = import_module("fcntl")
except ImportError:  # as on Windows
    fcntl = None

NAME = ".lock"


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Have a directory for oneself; its lock is freed when this process ends, however that is.

    On platforms and file systems that have no such locks, nothing is locked.

    Parameters
    ----------
    directory : Path
        An existing one that can be written to.

    Raises
    ------
    ConfigurationError
        If another command has it, or its file of the lock is another user's.
    """
    if fcntl is None:
        yield
        return
    path = directory / NAME
    descriptor = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Return a file that is locked, and still the one of that path."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError as error:  # left by another user's command that was killed
            raise ConfigurationError(
                f"Expected {path} to be a file that can be opened. Got: {error.strerror}."
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigurationError(
                f"Expected {path.parent} for this command alone. Got another command that is "
                "writing to it: wait for its end, or choose another --output."
            ) from None
        except OSError:  # a file system without locks
            return descriptor
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its owner removed it after it was opened here
