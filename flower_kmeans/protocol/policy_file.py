"""Files of the operator: the policy itself, and the keys that it names."""

import os
import stat
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flower_kmeans.domain import Ball, Box, Domain
from flower_kmeans.errors import ConfigurationError


def read_values(
    path: str | os.PathLike[str], known: Collection[str], paths: Collection[str]
) -> dict[str, Any]:
    """Return the settings of a policy file, whose types and ranges are not checked otherwise.

    Lists become tuples, ``domain`` a Box or a Ball. Relative ``paths`` are taken from the file's
    own directory.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is another user's, may be written by others than its owner, is
        not TOML, or has a setting that is not ``known``.
    """
    values = parse_toml(read_file(path, "policy file"), f"policy file {path}")
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigurationError(
            f"Expected keys of ClientPolicy in the policy file {path}. Got {unknown} instead."
        )
    for name, value in values.items():
        if name in paths and isinstance(value, str):
            values[name] = str(Path(path).resolve().parent / value)
        elif name == "domain":
            values[name] = _domain_of(value)
        elif isinstance(value, list):
            values[name] = tuple(value)
    return values


def _domain_of(values: Any) -> Domain:
    if isinstance(values, dict):
        try:
            if {"lower", "upper"} <= set(values) <= {"lower", "upper", "scale"}:
                return Box(**values)
            if set(values) == {"radius", "center"}:
                return Ball(**values)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"The domain of a policy file is unusable: {error}") from None
    raise ConfigurationError(
        "Expected domain in a policy file as a table of lower, upper and perhaps scale, or of "
        "radius and center. Got something else instead."
    )


def parse_toml(content: bytes, what: str) -> dict[str, Any]:
    """Return the values of a TOML file, which messages name as ``what``."""
    try:
        return tomllib.loads(content.decode("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"The {what} is not TOML: {error}.") from None


def read_file(path: str | os.PathLike[str], name: str, *, is_secret: bool = False) -> bytes:
    """Return the content of a file that others may not write, or, if it is secret, not even read.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is another user's, or is open to others.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:  # mode and content are those of one and the same file
            facts, content = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ConfigurationError(f"The {name} {path} cannot be read: {error.strerror}.") from None
    own = os.geteuid() if hasattr(os, "geteuid") else 0  # not on every system
    if facts.st_uid not in (0, own):
        raise ConfigurationError(
            f"Expected the {name} {path} to belong to this user or to root. "
            f"Got user id {facts.st_uid} instead."
        )
    mode = stat.S_IMODE(facts.st_mode)
    if mode & (0o077 if is_secret else 0o022):
        wanted = (
            "with mode 0600. Got" if is_secret else "to be writable by its owner alone. Got mode"
        )
        raise ConfigurationError(f"Expected the {name} {path} {wanted} {mode:04o} instead.")
    return content
