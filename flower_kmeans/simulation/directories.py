"""Temporary directories of a simulation."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import reason_and_cure


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a temporary directory that only this user can read.

    Raises
    ------
    ConfigurationError
        If it cannot be made.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="flower-kmeans-")
    except OSError as error:
        raise ConfigurationError(
            "Expected a temporary directory for the files of this run. "
            f"Got none: {reason_and_cure(error)}."
        ) from None
    with made as name:
        yield Path(name)
