"""The roster: who may be a client, each by a pinned public key (docs/protocol.md, section 4).

A roster is a TOML file of lines ``name = "64 hexadecimal digits"``, the same at every client. The
slot of a client is its place in the file, so nobody else can assign it. A line ``beacon = "..."``
holds a public random value from which committees are drawn, where there are more clients than a
committee has.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS, roster_digest
from flower_kmeans.protocol.policy_file import parse_toml, read_file
from flower_kmeans.secagg.key_agreement import KEY_BYTES, agree, public_key

ROSTER_FILE = "roster.toml"
BEACON = "beacon"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PUBLIC = re.compile(r"[0-9a-f]{64}")
_BEACON = re.compile(r"([0-9a-f]{2}){16,64}")


@dataclass(frozen=True)
class Roster:
    """Names and X25519 public keys (32 bytes, all different) of all clients, by slot."""

    names: tuple[str, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    beacon: bytes = b""
    """Public random value that was fixed after all keys were; empty where no committee is drawn."""

    def __len__(self) -> int:
        """Return the number of slots, whether their clients are present or not."""
        return len(self.keys)

    @cached_property
    def digest(self) -> bytes:
        """Digest of beacon and keys, 32 bytes: what all clients and the run document agree on."""
        return roster_digest(self.keys, self.beacon)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Roster":
        """Read a roster.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, may be written by others than its owner, is not TOML, holds
            anything but names with public keys, each key once, and a beacon, or lacks the beacon
            where there are more than 64 clients.
        """
        return _parse(f"roster_file {path}", read_file(path, "roster_file"))


# A client reads its roster for every message; the check of each key takes a tenth of a millisecond.
@lru_cache(maxsize=4)
def _parse(file: str, content: bytes) -> Roster:
    values = parse_toml(content, file)
    beacon = values.pop(BEACON, "")
    if beacon != "":
        _require_beacon(beacon, f"the {file}")
    for name, value in values.items():
        if not isinstance(value, str) or not _PUBLIC.fullmatch(value):
            raise ConfigurationError(
                f"Expected {name} in the {file} as a public key of 64 lower-case "
                "hexadecimal digits. Got something else instead."
            )
    publics = tuple(bytes.fromhex(value) for value in values.values())
    if not publics:
        raise ConfigurationError(f"Expected clients in the {file}. Got none.")
    if len(set(publics)) != len(publics):
        raise ConfigurationError(f"Expected every public key once in the {file}. Got one twice.")
    for name, public in zip(values, publics, strict=True):
        try:
            agree(bytes(KEY_BYTES), public)
        except MessageError:
            raise ConfigurationError(
                f"Expected {name} in the {file} as an X25519 public key. "
                "Got a point that gives the same secret to everybody."
            ) from None
    if len(publics) > MAX_POSITIONS and not beacon:
        raise ConfigurationError(
            f"Expected a beacon in the {file}, for it has more than {MAX_POSITIONS} "
            f"clients. Got none: add a line {BEACON} with a public random value that was fixed "
            "after all keys were."
        )
    return Roster(tuple(values), publics, bytes.fromhex(beacon))


def _require_beacon(beacon: object, where: str) -> None:
    if not isinstance(beacon, str) or not _BEACON.fullmatch(beacon):
        raise ConfigurationError(
            f"Expected the beacon of {where} as 32 to 128 lower-case hexadecimal digits. "
            "Got something else instead."
        )


@dataclass(frozen=True)
class Identity:
    """A client's own lasting X25519 key, and its slot on its own roster."""

    roster: Roster
    secret: bytes = field(repr=False)
    public: bytes
    slot: int


def read_identity(
    roster_file: str | os.PathLike[str], member_key_file: str | os.PathLike[str]
) -> Identity:
    """Return who a client is, by the files of its operator.

    Raises
    ------
    ConfigurationError
        If a file cannot be used, or the client's key is not on the roster.
    """
    roster = Roster.from_file(roster_file)
    secret = read_file(member_key_file, "member_key_file", is_secret=True)
    if len(secret) != KEY_BYTES:
        raise ConfigurationError(
            f"Expected member_key_file {member_key_file} of {KEY_BYTES} bytes. "
            f"Got {len(secret)} instead."
        )
    public = public_key(secret)
    if public not in roster.keys:
        raise ConfigurationError(
            f"Expected the public key of member_key_file {member_key_file} in the roster_file "
            f"{roster_file}. Got a key that is not there: its line would end with {public.hex()}."
        )
    return Identity(roster, secret, public, roster.keys.index(public))


# ------------------------------------------------------------------------------ making keys


def write_members(directory: Path, names: Sequence[str], beacon: str | None = None) -> list[Path]:
    """Write a new key ``NAME.key`` (mode 0600) for every client, and their roster.

    Parameters
    ----------
    directory : Path
        Made, with mode 0700, if it does not exist.
    names : sequence of str
        In the order of the clients' slots.
    beacon : str, optional
        In hexadecimal digits. Anyone who knows it before the keys are made could choose keys by it;
        a roster of more than 64 clients cannot be used without one.

    Returns
    -------
    list of Path
        The key files, then the roster.

    Raises
    ------
    ConfigurationError
        If the beacon is none, a name is no file's name or differs from another in case at most, or
        one of the files exists already: then nothing is written.
    """
    wrong = [name for name in names if not _NAME.fullmatch(name) or name == BEACON]
    # Some disks take a.key and A.key for one file, and the second key would find the first's.
    if wrong or not names or len({name.lower() for name in names}) != len(names):
        raise ConfigurationError(
            "Expected members as names of letters, digits, '-' and '_', other than 'beacon', that "
            f"differ in more than case. Got {wrong or list(names)} instead."
        )
    lines = []
    if beacon is not None:
        _require_beacon(beacon, "a new roster")
        lines.append(f'{BEACON} = "{beacon}"\n')
    files: dict[Path, tuple[bytes, int]] = {}
    for name in names:
        secret = token(KEY_BYTES)
        files[directory / f"{name}.key"] = (secret, 0o600)
        lines.append(f'{name} = "{public_key(secret).hex()}"\n')
    files[directory / ROSTER_FILE] = ("".join(lines).encode(), 0o644)
    for path in files:  # a key that is in use would be lost
        if path.exists():
            raise ConfigurationError(
                f"Expected no file {path}: it was left as it is. Choose another place for new keys."
            )
    path = directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            # Never open to others, not even between its creation and a chmod.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
    return list(files)
