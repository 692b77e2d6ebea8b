"""The roster: who may be a member, each by a pinned public key (docs/protocol.md, section 5).

A roster is a TOML file of lines ``name = "64 hexadecimal digits"``, the same at every member. A
member's place in the cohort is its place in the file, so it is never the server's word.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.federation.policy_file import read_key, read_unwritable
from flower_kmeans.privacy.randomness import token
from flower_kmeans.secagg import keys

ROSTER_FILE = "roster.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PUBLIC = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Roster:
    """Names and X25519 public keys of all members, in the order of their places.

    Attributes
    ----------
    names : tuple of str
    keys : tuple of bytes
        32 bytes each, all different.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def __len__(self) -> int:
        """Return the number of places, present members or not."""
        return len(self.keys)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Roster":
        """Read a roster.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, may be written by others than its owner, is not TOML, or
            holds anything but names with public keys, each key once.
        """
        path = Path(path)
        try:
            values = tomllib.loads(read_unwritable(path, "roster_file").decode("utf-8"))
        except ValueError as error:
            raise ConfigurationError(f"The roster_file {path} is not TOML: {error}.") from None
        for name, value in values.items():
            if not isinstance(value, str) or not _PUBLIC.fullmatch(value):
                raise ConfigurationError(
                    f"Expected {name} in the roster_file {path} as a public key of 64 lower-case "
                    "hexadecimal digits. Got something else instead."
                )
        publics = tuple(bytes.fromhex(value) for value in values.values())
        if not publics:
            raise ConfigurationError(f"Expected members in the roster_file {path}. Got none.")
        if len(set(publics)) != len(publics):
            raise ConfigurationError(
                f"Expected every public key once in the roster_file {path}. Got one twice."
            )
        for name, public in zip(values, publics, strict=True):
            try:
                keys.require_public_key(public)
            except MessageError:
                raise ConfigurationError(
                    f"Expected {name} in the roster_file {path} as an X25519 public key. "
                    "Got a point that gives the same secret to everybody."
                ) from None
        return cls(tuple(values), publics)


@dataclass(frozen=True)
class Identity:
    """A member's own secret key, and its place on its own roster.

    Attributes
    ----------
    roster : Roster
    secret : bytes
        The member's X25519 secret key, 32 bytes.
    public : bytes
        The public half.
    place : int
        Where it stands on the roster.
    """

    roster: Roster
    secret: bytes
    public: bytes
    place: int


def read_identity(
    roster_file: str | os.PathLike[str], member_key_file: str | os.PathLike[str]
) -> Identity:
    """Return who a client is, by the files of its operator.

    Raises
    ------
    ConfigurationError
        If a file cannot be used, or the member's key is not on the roster.
    """
    roster = Roster.from_file(roster_file)
    secret = read_key(member_key_file, "member_key_file")
    public = keys.public_key(secret)
    if public not in roster.keys:
        raise ConfigurationError(
            f"Expected the public key of member_key_file {member_key_file} in the roster_file "
            f"{roster_file}. Got a key that is not there: its line would end with {public.hex()}."
        )
    return Identity(roster, secret, public, roster.keys.index(public))


# ------------------------------------------------------------------------------ making keys


def write_group_key(path: Path) -> None:
    """Write a new group key: 32 random bytes, mode 0600.

    Raises
    ------
    ConfigurationError
        If there is such a file already, or it cannot be written.
    """
    _write_all({path: (token(keys.KEY_BYTES), 0o600)})


def write_members(directory: Path, names: Sequence[str]) -> list[Path]:
    """Write a new key ``NAME.key`` (mode 0600) for every member, and their roster.

    Parameters
    ----------
    directory : Path
        Made, with mode 0700, if it does not exist.
    names : sequence of str
        In the order of the members' places.

    Returns
    -------
    list of Path
        The key files, then the roster.

    Raises
    ------
    ConfigurationError
        If a name is no file's name, or differs from another in case at most, or if one of the files
        exists already: then nothing is written.
    """
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    # Some disks take a.key and A.key for one file, and the second key would find the first's.
    if wrong or not names or len({name.lower() for name in names}) != len(names):
        raise ConfigurationError(
            "Expected members as names of letters, digits, '-' and '_' that differ in more than "
            f"case. Got {wrong or list(names)} instead."
        )
    files: dict[Path, tuple[bytes, int]] = {}
    lines = []
    for name in names:
        secret = token(keys.KEY_BYTES)
        files[directory / f"{name}.key"] = (secret, 0o600)
        lines.append(f'{name} = "{keys.public_key(secret).hex()}"\n')
    files[directory / ROSTER_FILE] = ("".join(lines).encode(), 0o644)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The directory {directory} cannot be made: {error.strerror}."
        ) from None
    _write_all(files)
    return list(files)


def _write_all(files: dict[Path, tuple[bytes, int]]) -> None:
    """Write new files, and none if one of them exists: a key that is in use would be lost."""
    for path in files:
        if path.exists():
            raise ConfigurationError(
                f"Expected no file {path}: it was left as it is. Choose another place for new keys."
            )
    for path, (content, mode) in files.items():
        try:
            # Never open to others, not even between its creation and a chmod.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
        except OSError as error:
            raise ConfigurationError(
                f"The file {path} cannot be written: {error.strerror}."
            ) from None
