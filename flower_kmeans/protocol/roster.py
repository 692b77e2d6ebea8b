"""The roster of clients, and other files of the operator (docs/protocol.md, section 4).

A roster is a TOML file of lines ``name = "64 hexadecimal digits"``, the same at every
client. The slot of a client is its place in the file, so nobody else can assign it. A
line ``beacon = "..."`` holds a public random value. It draws the committees of a roster
with more clients than a committee has.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.files import read_file, read_toml
from flower_kmeans.kept import Kept
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS, drawn, roster_digest
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.primitives import KEY_BYTES

ROSTER_FILE = "roster.toml"
BEACON = "beacon"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# possible lengths of a key and of a beacon, in bytes
_KEY, _BEACON = range(KEY_BYTES, KEY_BYTES + 1), range(16, 65)


@dataclass(frozen=True)
class Roster:
    """Names and Ed25519 public keys (32 bytes, all different) of all clients, by slot."""

    names: tuple[str, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    # public random value, fixed after all keys; empty if nothing is drawn
    beacon: bytes = b""
    # cached results that follow from the keys, for all clients that share the object
    kept: Kept = field(default_factory=Kept, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of slots, whether their clients are present or not."""
        return len(self.keys)

    @cached_property
    def digest(self) -> bytes:
        """Digest of beacon and keys, 32 bytes, on which all clients and the run document agree."""
        return roster_digest(self.keys, self.beacon)

    def drawn(self, epoch: int) -> tuple[int, ...]:
        """Return the slots, ascending, of one of the 16 committees of more than 64 slots."""
        return self.kept.once(drawn, self.keys, self.beacon, epoch)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Roster":
        """Read a roster.

        Raises
        ------
        ConfigurationError
            If `read_file` refuses the file; if it holds anything but names with public
            keys, each once, and a beacon; or if it has more than 64 clients and no beacon.
        """
        return _parse(f"roster_file {path}", read_file(path, "roster_file"))

    def has_claimed(
        self, doc_hash: bytes, slot: int, node_id: int, ephemeral: bytes, claim: bytes
    ) -> bool:
        """Return whether the owner of a slot claimed it for this run, node and ephemeral key."""
        return slot < len(self) and primitives.is_claim(
            claim, self.keys[slot], doc_hash, slot, node_id, ephemeral
        )

    def require_points(self) -> None:
        """Require that each key is a point of the curve, because others can never claim a slot.

        The check takes a seventh of a millisecond for each key, so clients do not repeat
        it for every message.
        """
        wrong = [name for name, key in self._lines if not primitives.is_on_curve(key)]
        if wrong:
            raise ConfigurationError(
                f"Expected {wrong[0]} in the roster as an Ed25519 public key. "
                "Got bytes that are no point of the curve, as keys of versions before 0.3 may be."
            )

    @property
    def _lines(self) -> Iterable[tuple[str, bytes]]:
        return zip(self.names, self.keys, strict=True)


def _parse(file: str, content: bytes) -> Roster:
    values = read_toml(content, file)
    line = values.pop(BEACON, "")
    beacon = (
        b""
        if line == ""
        else _octets(line, _BEACON, f"the beacon of the {file} as 32 to 128")
    )
    publics, places = list[bytes](), set[int]()
    for name, value in values.items():
        publics.append(
            _octets(value, _KEY, f"{name} in the {file} as a public key of 64")
        )
        try:
            places.add(primitives.y_of(publics[-1]))
        except MessageError:
            raise ConfigurationError(
                f"Expected {name} in the {file} as an Ed25519 public key. "
                "Got a point of small order, or a number that is too large."
            ) from None
    if not publics:
        raise ConfigurationError(f"Expected clients in the {file}. Got none.")
    # Keys that differ only in their sign make the same secrets.
    if len(places) != len(publics):
        raise ConfigurationError(
            f"Expected every public key once in the {file}. Got one twice."
        )
    if len(publics) > MAX_POSITIONS and not beacon:
        raise ConfigurationError(
            f"Expected a beacon in the {file}, because it has more than {MAX_POSITIONS} clients. "
            "Got none: add a line with a public random value that was fixed after all keys."
        )
    return Roster(tuple(values), tuple(publics), beacon)


def _octets(digits: Any, sizes: range, what: str) -> bytes:
    with suppress(TypeError, ValueError):
        octets = bytes.fromhex(digits)
        if octets.hex() == digits and len(octets) in sizes:
            return octets
    raise ConfigurationError(
        f"Expected {what} lower-case hexadecimal digits. Got something else instead."
    )


@dataclass(frozen=True)
class Identity:
    """A client's own lasting key, and its slot on its own roster."""

    roster: Roster
    seed: bytes = field(repr=False)
    public: bytes
    slot: int


def read_identity(
    roster_file: str | os.PathLike[str], member_key_file: str | os.PathLike[str]
) -> Identity:
    """Return a client's key and slot from its operator's files.

    Raises
    ------
    ConfigurationError
        If a file is refused, or the key is not on the roster.
    """
    roster = Roster.from_file(roster_file)
    seed = read_file(member_key_file, "member_key_file", is_secret=True)
    if len(seed) != KEY_BYTES:
        raise ConfigurationError(
            f"Expected member_key_file {member_key_file} of {KEY_BYTES} bytes. "
            f"Got {len(seed)} instead."
        )
    public = primitives.lasting_key(seed)
    if public not in roster.keys:
        raise ConfigurationError(
            f"Expected the public key of member_key_file {member_key_file} in the roster_file "
            f"{roster_file}. Got a key that is not there: its line would have {public.hex()}."
        )
    return Identity(roster, seed, public, roster.keys.index(public))


def new_members(
    names: Sequence[str], beacon: str | None = None
) -> tuple[list[bytes], bytes]:
    """Return a new secret key for every client, by slot, and the content of their roster."""
    lines = []
    if beacon is not None:
        _octets(beacon, _BEACON, "the beacon of a new roster as 32 to 128")
        lines.append(f'{BEACON} = "{beacon}"\n')
    secrets = [token(KEY_BYTES) for _ in names]
    keys = (primitives.lasting_key(secret).hex() for secret in secrets)
    lines += [f'{name} = "{key}"\n' for name, key in zip(names, keys, strict=True)]
    return secrets, "".join(lines).encode()


def write_members(
    directory: Path, names: Sequence[str], beacon: str | None = None
) -> list[Path]:
    """Write a new key ``NAME.key`` (mode 0600) for every client, and their roster.

    ``names`` are in the order of the slots, and ``beacon`` has hexadecimal digits. A
    missing directory is created with mode 0700.

    Returns
    -------
    list of Path
        The paths of the keys, and then the path of the roster.

    Raises
    ------
    ConfigurationError
        If the beacon is malformed, a name cannot name a file or differs from another only
        in case, or one of the files exists. Nothing is written then. Also if a file cannot
        be written.
    """
    wrong = [name for name in names if not _NAME.fullmatch(name) or name == BEACON]
    # Some disks take a.key and A.key for one file.
    if wrong or not names or len({name.lower() for name in names}) != len(names):
        raise ConfigurationError(
            "Expected members as names of letters, digits, '-' and '_', other than 'beacon', that "
            f"differ in more than case. Got {wrong or list(names)} instead."
        )
    keys, content = new_members(names, beacon)
    secrets = {
        directory / f"{name}.key": key for name, key in zip(names, keys, strict=True)
    }
    files = {**secrets, directory / ROSTER_FILE: content}
    for path in files:  # a key that is in use would be lost
        if path.exists():
            raise ConfigurationError(
                f"Expected no file {path}. Got one, which is unchanged: choose another directory."
            )
    path = directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in files.items():
            # A key is private from its creation on, not only after a chmod.
            with open(
                path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o600 if path in secrets else 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}."
        ) from None
    return list(files)
