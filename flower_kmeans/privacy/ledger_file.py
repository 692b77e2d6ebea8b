"""The private file of a ledger, in a directory that only its owner can use.

A server keeps a run that may be resumed in such a file, too
(`flower_kmeans.protocol.resume`).
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flower_kmeans.errors import KMeansError, LedgerError
from flower_kmeans.files import is_own, reason_and_cure

FILE_NAME = "ledger.sqlite3"
FULL = "The ledger's disk is full, so make room there"
LOCKED = "The ledger is locked, as another process holds it for long"
READ_ONLY = (
    "The ledger is read-only, and this user must be able to write it and its directory"
)
DAMAGED = "The ledger is damaged, or no ledger, and cannot be used"
"""Causes why the machine cannot use a ledger. None is that its limit refuses a run."""
_CAUSES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
}
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


@dataclass(frozen=True)
class PrivateFile:
    """A kind of private file, and its errors.

    Attributes
    ----------
    name : str
        The name of the file in its directory.
    what : str
        The word for the file in errors.
    directory : str
        The parameter that names its directory.
    error : type of KMeansError
        The type of errors about it.
    """

    name: str
    what: str
    directory: str
    error: type[KMeansError]


_LEDGER = PrivateFile(FILE_NAME, "ledger", "state_dir", LedgerError)


def make_private_file(directory: Path, file: PrivateFile = _LEDGER) -> Path:
    """Return the path of a private file, and make the file and its directory if missing.

    Only their owner can use them. A symbolic link is an error, and so is a file or
    directory that belongs to others or that others can use: they could choose its
    content.
    """
    path = directory / file.name
    with _os_errors(directory, file):
        if not directory.exists():
            # Missing parents are not made: they may be unmounted.
            directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        facts = directory.stat()
        require_own(facts, directory, file.directory, _DIRECTORY_MODE, file.error)
        # A system without this flag can only check before opening.
        if not hasattr(os, "O_NOFOLLOW"):
            _require_no_link(path, file)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(path, flags, _FILE_MODE)
        except OSError as error:
            # With O_NOFOLLOW, a link gives this error.
            if error.errno == errno.ELOOP:
                _require_no_link(path, file)
            raise
        # The open file is checked, which nobody can replace in between.
        try:
            require_own(os.fstat(descriptor), path, file.what, _FILE_MODE, file.error)
        finally:
            os.close(descriptor)
    return path


def find_private_file(directory: Path) -> Path | None:
    """Return the ledger's path, or ``None`` if there is none yet and it can be made.

    Nothing on the disk changes.

    Raises
    ------
    LedgerError
        If `make_private_file` would raise it.
    """
    path = directory / FILE_NAME
    with _os_errors(directory):
        if not directory.exists():
            _require_writable(directory.parent, "the parent of state_dir")
            return None
        require_own(directory.stat(), directory, "state_dir", _DIRECTORY_MODE)
        _require_writable(directory, "state_dir")
        # exists() follows links, so it would not see a dangling link.
        if not os.path.lexists(path):
            return None
        _require_no_link(path)
        require_own(path.stat(), path, "ledger", _FILE_MODE)
        _require_writable(path, "ledger")
    return path


def require_own(
    facts: os.stat_result,
    path: Path,
    name: str,
    expected: int,
    error: type[KMeansError] = LedgerError,
) -> None:
    """Require that a path belongs to this user or to root, and that others cannot use it."""
    if not is_own(facts):
        raise error(
            f"Expected {name} {path} to belong to this user or to root. "
            f"Got user id {facts.st_uid} instead."
        )
    mode = stat.S_IMODE(facts.st_mode)
    # The file holds secrets of sessions, so others must not even read it.
    if mode & 0o077:
        raise error(f"Expected {name} {path} with mode {expected:04o}. Got {mode:04o}.")


def _require_writable(path: Path, name: str) -> None:
    if path.is_dir() != (name != "ledger"):
        raise LedgerError(
            f"Expected {name} {path} as a directory. Got something else instead."
        )
    needed = os.W_OK
    if path.is_dir():
        needed |= os.X_OK
    if not os.access(path, needed):
        raise LedgerError(
            f"Expected {name} {path} to be writable by this user. Got another."
        )


def _require_no_link(path: Path, file: PrivateFile = _LEDGER) -> None:
    if path.is_symlink():
        raise file.error(
            f"Expected {file.what} {path} as a file. Got a symbolic link instead."
        )


def os_sentence(place: str, error: OSError) -> str:
    """Return the sentence on an error of the operating system at a ledger's place."""
    reason = error.strerror or str(error)
    cause = _CAUSES.get(error.errno or 0)
    if cause is None:
        return f"The {place} cannot be used: {reason}."
    return f"{cause}: {reason}."


@contextmanager
def _os_errors(directory: Path, file: PrivateFile = _LEDGER) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if file is _LEDGER:
            raise LedgerError(os_sentence(f"state_dir {directory}", error)) from None
        raise file.error(
            f"Expected {file.directory} {directory} to be usable. Got {reason_and_cure(error)}."
        ) from None
