"""Files of the operator: the policy itself, and the keys that it names."""

import os
import stat
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flower_kmeans.domain import Ball, Box, Domain
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg.key_agreement import KEY_BYTES


def read_values(
    path: str | os.PathLike[str], known: Collection[str], paths: Collection[str]
) -> dict[str, Any]:
    """Return the settings that a policy file states.

    Parameters
    ----------
    path : path
        A TOML file that nobody but its owner may write.
    known : collection of str
        Names of all settings.
    paths : collection of str
        Settings that are paths; relative ones are taken from the file's own directory.

    Returns
    -------
    dict
        Settings by name: lists as tuples, ``domain`` as a Box or a Ball. Their types and ranges
        are not checked otherwise.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is another user's, may be written by others than its owner, is
        not TOML, or has a setting that is not known.
    """
    path = Path(path)
    content = read_unwritable(path, "policy file")
    try:
        values: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"The policy file {path} is not TOML: {error}.") from None
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigurationError(
            f"Expected keys of ClientPolicy in the policy file {path}. Got {unknown} instead."
        )
    for name, value in values.items():
        if name in paths and isinstance(value, str):
            values[name] = str(path.resolve().parent / value)
        elif name == "domain":
            values[name] = _domain_of(value)
        elif isinstance(value, list):
            values[name] = tuple(value)
    return values


def read_key(path: str | os.PathLike[str], name: str) -> bytes:
    """Return the content of a key file: 32 bytes that only its owner can read.

    Parameters
    ----------
    path : path
    name : str
        The setting that names the file, for messages.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is another user's, has another length than 32 bytes, or is
        open to others.
    """
    path = Path(path)
    mode, content = _read(path, name)
    if mode & 0o077:
        raise ConfigurationError(f"Expected {name} {path} with mode 0600. Got {mode:04o} instead.")
    if len(content) != KEY_BYTES:
        raise ConfigurationError(
            f"Expected {name} {path} of {KEY_BYTES} bytes. Got {len(content)} instead."
        )
    return content


def read_unwritable(path: Path, name: str) -> bytes:
    """Return the content of a file that others may read, but not write.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is another user's, or may be written by others.
    """
    mode, content = _read(path, name)
    if mode & 0o022:
        raise ConfigurationError(
            f"Expected the {name} {path} to be writable by its owner alone. "
            f"Got mode {mode:04o} instead."
        )
    return content


def _read(path: Path, name: str) -> tuple[int, bytes]:
    """Return mode and content of one and the same file, whose owner is this user or root."""
    try:
        with path.open("rb") as file:
            facts, content = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ConfigurationError(f"The {name} {path} cannot be read: {error.strerror}.") from None
    if facts.st_uid not in (0, _user()):
        raise ConfigurationError(
            f"Expected the {name} {path} to belong to this user or to root. "
            f"Got user id {facts.st_uid} instead."
        )
    return stat.S_IMODE(facts.st_mode), content


def _user() -> int:
    """Return the id of the user whose process this is."""
    return os.geteuid() if hasattr(os, "geteuid") else 0  # not on every system


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
