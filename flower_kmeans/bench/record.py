"""meta.json: which commands made the rows beside it, when, and with what."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flower_kmeans.bench.harness import Suite
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.version import __version__

NAME = "meta.json"
PACKAGES = ("flwr", "numpy", "scipy", "scikit-learn")


def command_of(arguments: Sequence[str]) -> str:
    """Return a command line as one would type it, without what belongs to one machine alone.

    An installed command is told without its folder. A script, and whatever else is a path from
    elsewhere, is told from its checkout on if it is in one, else from the working directory on, and
    by its name alone if it is in neither.
    """
    program, given = arguments[0], [_argument_told(each) for each in arguments[1:]]
    if not program.endswith(".py"):
        return shlex.join([Path(program).name, *given])
    return shlex.join(["python", _path_told(Path(program)), *given])


def _argument_told(text: str) -> str:
    option, is_option, value = text.partition("=") if text.startswith("-") else ("", "", text)
    if Path(value).is_absolute() or ".." in Path(value).parts:
        value = _path_told(Path(value))
    return f"{option}{is_option}{value}"


def _path_told(path: Path) -> str:
    here = Path.cwd()
    path = Path(os.path.normpath(here / path))
    for folder in (*(each for each in path.parents if (each / ".git").exists()), here):
        if path.is_relative_to(folder) and folder != Path(folder.anchor):
            return path.relative_to(folder).as_posix()
    return path.name


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and what its figures depend on."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "flower-kmeans": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the checkout that this library runs from, "+" if files differ from it.

    ``None`` for an installed library, or without git.
    """
    folder = Path(__file__).parents[1]
    try:
        _git(folder, "ls-files", "--error-unmatch", "version.py")
        found = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return found + ("+" if changed else "")


def now() -> str:
    """Return the time as text, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(suite: Suite, directory: Path) -> dict[str, Any]:
    """Return what stands in meta.json; a beginning if there is none.

    Raises
    ------
    DataError
        If the file is none of ours.
    ConfigurationError
        If it belongs to another suite, or to other settings.
    """
    path = directory / NAME
    mine = {"suite": suite.name, "settings": dict(suite.settings)}
    if not path.exists():
        return {**mine, "protocol": suite.protocol, "commands": []}
    try:
        meta: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = {key: meta[key] for key in mine}
        list(meta["commands"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"Expected {path} to be a benchmark's. Got another file.") from None
    if found != mine:
        raise ConfigurationError(
            f"Expected {directory} with runs of {_words(mine)}. Got those of {_words(found)} "
            "instead: choose another --output."
        )
    return {**meta, "protocol": suite.protocol}


def remember(
    directory: Path, meta: dict[str, Any], sources: Mapping[str, Mapping[str, Any]]
) -> None:
    """Keep what the rows of data sets are of, by the names that rows have for them.

    Of a name that has rows from before such things were kept, this command's are taken.

    Raises
    ------
    ConfigurationError
        If rows of one of these names are of other records, another number of clusters, or whatever
        else a source tells.
    """
    known = meta.setdefault("files", {})
    for name, mine in sources.items():
        found = known.setdefault(name, dict(mine))
        differing = [
            "other contents" if key == "sha256" else f"{key} {mine.get(key)}, not {found.get(key)}"
            for key in sorted({*found, *mine})
            if found.get(key) != mine.get(key)
        ]
        if differing:
            raise ConfigurationError(
                f"Expected {name} to be what {directory} holds runs of by that name. "
                f"Got {'; '.join(differing)}: choose another --output."
            )


def write(directory: Path, meta: dict[str, Any]) -> None:
    """Write meta.json at once."""
    partial = directory / f"{NAME}.partial"
    partial.write_text(json.dumps(meta, indent=2) + "\n", "utf-8")
    os.replace(partial, directory / NAME)


def entry(arguments: Sequence[str], jobs: int | None, skipped: Sequence[str]) -> dict[str, Any]:
    """Return what is kept of a command that begins; its end and its number of rows come later."""
    return {
        "command": command_of(arguments),
        "started": now(),
        "ended": None,
        "rows": None,
        "skipped": list(skipped),
        "cores": os.cpu_count(),
        "jobs": jobs,
        "versions": versions(),
        "commit": commit(),
    }


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


def _words(mine: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in mine["settings"].items())
    return f"suite {mine['suite']}" + (f" with {settings}" if settings else "")
