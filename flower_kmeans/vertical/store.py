"""The computing party's files of one run: keys, columns, the last step's answer.

They are too large for a client session, and SEAL reads files only. The session keeps
what this module returns of each, a SHA-256 digest, so a file that was changed since is
refused.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.files import open_private, reason_and_cure
from flower_kmeans.privacy.ledger_file import require_own

_MODE = 0o700


def require_private(work_dir: Path) -> None:
    """Require a directory for runs' files to be its owner's alone, or not yet made.

    Another user who may write there could place a link under the name of a run, and so
    choose which files are written and removed.
    """
    with _work_dir_errors(work_dir):
        if work_dir.exists():
            _require_own(work_dir.stat(), work_dir)
        elif not work_dir.parent.is_dir():  # it may be unmounted
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _require_own(facts: os.stat_result, path: Path) -> None:
    if not stat.S_ISDIR(facts.st_mode):
        raise ConfigurationError(
            f"Expected work_dir {path} as a directory. Got something else."
        )
    require_own(facts, path, "work_dir", _MODE, ConfigurationError)


@contextmanager
def _work_dir_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"The work_dir {path} cannot be used: {reason_and_cure(error)}."
        ) from None


class Store:
    """A private directory of a run's files, made with mode 0700 for the first one.

    ``digests`` are SHA-256 of every file, for the client session: what is not in it
    does not count.
    """

    def __init__(
        self, directory: Path, digests: Mapping[str, bytes] | None = None
    ) -> None:
        self.directory = directory
        self.digests = dict(digests or {})

    def require_space(self, n_bytes: int) -> None:
        """Require a private place and room on the disk (`ConfigurationError`)."""
        require_private(self.directory.parent)
        parents = self.directory.absolute().parents
        candidates = (self.directory, *parents)
        existing = next(path for path in candidates if path.exists())
        free = shutil.disk_usage(existing).free
        if free < n_bytes:
            raise ConfigurationError(
                f"Party 0 needs {n_bytes / 1e6:.0f} MB in 'work_dir' for the others' keys and "
                f"columns. {free / 1e6:.0f} MB are free at {self.directory}."
            )

    def __contains__(self, name: str) -> bool:
        return name in self.digests

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file from its pieces, mode 0600: whole, or not at all."""
        self._make_directory()
        digest = hashlib.sha256()
        part = self.directory / f"{name}.part"
        try:
            with open_private(part) as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                # On the disk before the session has its digest: after a crash the run
                # would be lost otherwise.
                os.fsync(file.fileno())
            part.replace(self.directory / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self.digests[name] = digest.digest()

    def _make_directory(self) -> None:
        """Make the run's directory.

        A `ConfigurationError` if others could have placed it.
        """
        work_dir = self.directory.parent
        require_private(work_dir)
        with _work_dir_errors(work_dir):
            work_dir.mkdir(mode=_MODE, exist_ok=True)
            with suppress(FileExistsError):
                self.directory.mkdir(mode=_MODE)
            # A link that was placed before the mode was right is still there.
            if self.directory.is_symlink():
                raise ConfigurationError(
                    f"Expected a directory of this run in work_dir. Got a symbolic link instead: "
                    f"{self.directory}."
                )
            # mkdir leaves the mode of a directory that is there already.
            self.directory.chmod(_MODE)
            _require_own(self.directory.lstat(), self.directory)

    def path(self, name: str) -> Path:
        """Return where a file lies; a `RunError` if it is missing, or was changed."""
        path = self.directory / name
        # Compared at each use, since SEAL trusts what it reads.
        with suppress(OSError), path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").digest() == self.digests.get(name):
                return path
        raise RunError(
            f"The file {name!r} of this vertical run is missing in {self.directory}, or was "
            "changed since it was written. The run cannot go on: start a new one."
        )

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        self.digests.pop(name, None)
        (self.directory / name).unlink(missing_ok=True)

    def erase(self) -> None:
        """Remove the directory and all that is in it."""
        self.digests.clear()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
