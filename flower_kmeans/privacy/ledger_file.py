"""Where a ledger lies: one file in a directory, both this user's and closed to others.

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
"""Why a ledger cannot be used; none of them is that it does not allow a run."""
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
    """The name of a private file in errors, and their kind."""

    name: str  # of the file
    what: str
    directory: str  # the parameter that names its directory
    error: type[KMeansError]


_LEDGER = PrivateFile(FILE_NAME, "ledger", "state_dir", LedgerError)


def make_private_file(directory: Path, file: PrivateFile = _LEDGER) -> Path:
    """Return the path of a file in a directory, both their owner's alone.

    Both are made if missing. A symbolic link is refused, as is what belongs to others
    or is open to them: who placed it there could choose what is written.
    """
    path = directory / file.name
    with _os_errors(directory, file):
        if not directory.exists():
            # Not its parents: they may be unmounted.
            directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        facts = directory.stat()
        require_own(facts, directory, file.directory, _DIRECTORY_MODE, file.error)
        # Where the system has no such flag, a check before opening is the best there
        # is.
        if not hasattr(os, "O_NOFOLLOW"):
            _require_no_link(path, file)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(path, flags, _FILE_MODE)
        except OSError as error:
            # What O_NOFOLLOW gives for a link.
            if error.errno == errno.ELOOP:
                _require_no_link(path, file)
            raise
        # Of the open file, which nobody can replace in between.
        try:
            require_own(os.fstat(descriptor), path, file.what, _FILE_MODE, file.error)
        finally:
            os.close(descriptor)
    return path


def find_private_file(directory: Path) -> Path | None:
    """Return the ledger's path, or ``None`` if one can be made.

    Nothing changes. ``LedgerError`` is raised where `make_private_file` would raise it.
    """
    path = directory / FILE_NAME
    with _os_errors(directory):
        if not directory.exists():
            _require_writable(directory.parent, "the parent of state_dir")
            return None
        require_own(directory.stat(), directory, "state_dir", _DIRECTORY_MODE)
        _require_writable(directory, "state_dir")
        # exists() follows links, so a dangling one would pass for no ledger.
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
    """Require a place to be this user's or root's, and closed to all others."""
    if not is_own(facts):
        raise error(
            f"Expected {name} {path} to belong to this user or to root. "
            f"Got user id {facts.st_uid} instead."
        )
    mode = stat.S_IMODE(facts.st_mode)
    # Sessions' secrets lie in the file, so others may not even read it.
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
    """Return why the machine let a place of the ledger not be used."""
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
