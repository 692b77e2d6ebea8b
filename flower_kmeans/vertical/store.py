"""The computing party's files of one run: keys, columns, the last step's answer.

The files are too large for a client session, and SEAL reads files only. The session keeps
the SHA-256 digest of each file, so a changed file is refused.
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
    """Require that a directory for runs' files is private, or does not exist yet.

    Another user who can write there could place a link under the name of a run, and so
    choose which files are written and removed.

    Raises
    ------
    ConfigurationError
        If other users can use the directory, or its parent does not exist.
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
    """A private directory of a run's files, created with mode 0700 for the first file.

    ``digests`` has the SHA-256 of every file, for the client session. A file without a
    digest does not count.
    """

    def __init__(
        self, directory: Path, digests: Mapping[str, bytes] | None = None
    ) -> None:
        self.directory = directory
        self.digests = dict(digests or {})

    def require_space(self, n_bytes: int) -> None:
        """Require a private directory and free disk space.

        Raises
        ------
        ConfigurationError
            If the directory is not private, or the disk has less space.
        """
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
        """Write a file of mode 0600 from its pieces: the whole file, or nothing."""
        self._make_directory()
        digest = hashlib.sha256()
        part = self.directory / f"{name}.part"
        try:
            with open_private(part) as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                # The file must be on the disk before the session has its digest: otherwise
                # a crash could lose the run.
                os.fsync(file.fileno())
            part.replace(self.directory / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self.digests[name] = digest.digest()

    def _make_directory(self) -> None:
        """Make the run's directory.

        Raises
        ------
        ConfigurationError
            If other users could have placed it.
        """
        work_dir = self.directory.parent
        require_private(work_dir)
        with _work_dir_errors(work_dir):
            work_dir.mkdir(mode=_MODE, exist_ok=True)
            with suppress(FileExistsError):
                self.directory.mkdir(mode=_MODE)
            # A link may be older than the private mode of its parent.
            if self.directory.is_symlink():
                raise ConfigurationError(
                    f"Expected a directory of this run in work_dir. Got a symbolic link instead: "
                    f"{self.directory}."
                )
            # `mkdir` does not change the mode of an existing directory.
            self.directory.chmod(_MODE)
            _require_own(self.directory.lstat(), self.directory)

    def path(self, name: str) -> Path:
        """Return the path of a file.

        Raises
        ------
        RunError
            If the file is missing or was changed.
        """
        path = self.directory / name
        # The digest is compared at each use, because SEAL trusts its files.
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
        """Remove the directory with all files."""
        self.digests.clear()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
