"""A fetched checkout of a paper's code, and a run of it in a separate process."""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_kmeans.errors import ConfigurationError, RunError

GIVEN_ARRAYS, GIVEN_FACTS = "given.npz", "given.json"
FOUND_ARRAYS, FOUND_FACTS = "found.npz", "found.json"
"""Files by which the two processes exchange arrays and facts."""


class Answer(NamedTuple):
    """The result of a process: arrays, and facts as JSON has them."""

    arrays: dict[str, Any]
    facts: dict[str, Any]


class Checkout(NamedTuple):
    """A folder with the code of a paper, and the interpreter that has its packages."""

    folder: Path
    python: str

    def digest(self) -> str:
        """Return the SHA-256 of all Python files, in the order of their names."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*.py")):
            digest.update(str(path.relative_to(self.folder)).encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def run(
        self, script: str, arrays: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> Answer:
        """Run a script of this package in a new process, and return its answer.

        The process works in an empty temporary folder.

        Raises
        ------
        RunError
            If the process fails. The error has the last line that it printed.
        """
        path = Path(__file__).with_name(script)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.savez(folder / GIVEN_ARRAYS, **arrays)
            (folder / GIVEN_FACTS).write_text(json.dumps(dict(facts)), "utf-8")
            command = [self.python, str(path), str(self.folder.resolve())]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise RunError(f"The code of {self.folder} failed: {last}")
            with np.load(folder / FOUND_ARRAYS) as found:
                answered = dict(found)
            told = json.loads((folder / FOUND_FACTS).read_text("utf-8"))
        return Answer(answered, told)


def checkout_of(
    folder: Path, python: str, files: Sequence[str], repository: str
) -> Checkout:
    """Return a checkout whose folder has the files that its code needs.

    Raises
    ------
    ConfigurationError
        If a file is missing. The error names the repository to fetch.
    """
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"Expected --reference as a checkout of {repository}, with {files[0]}. "
            f"Got {folder} without {missing[0]}."
        )
    return Checkout(folder, python)
