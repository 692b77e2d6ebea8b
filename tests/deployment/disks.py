"""A file system of a few pages, to see what a full disk does."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

_FILLER = "filler"
_CHUNK = 4096


class SmallDisk:
    """A file system in memory, mounted in a directory while its ``with`` lasts (root on Linux).

    Nothing of it is left afterwards.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._size = size

    @staticmethod
    def can_be_made() -> bool:
        """Return whether this user may mount here."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return False
        # In a mount namespace of its own, which ends with the command.
        probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(probe, capture_output=True).returncode == 0

    def __enter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True)
        options = f"size={self._size},mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._directory)]
        subprocess.run(command, check=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a process that is ending may still hold a file.
        subprocess.run(["umount", "--lazy", str(self._directory)], check=True)

    def fill(self) -> None:
        """Write until nothing more fits."""
        with (self._directory / _FILLER).open("ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(_CHUNK))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def make_room(self) -> None:
        """Remove what `fill` wrote."""
        (self._directory / _FILLER).unlink()
