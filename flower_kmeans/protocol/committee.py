"""The committee that adds shares (docs/protocol.md, section 4).

Up to 64 slots all of them are in it. Beyond, a roster's committee is drawn by a hash of keys and a
beacon that nobody chose, so that few colluders are in it except with a probability of 2^-40.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol.run import EPOCHS
from flower_kmeans.secagg.base import SecureSum, Sharing
from flower_kmeans.secagg.hashing import H, u32
from flower_kmeans.secagg.key_agreement import KEY_BYTES
from flower_kmeans.secagg.shares import SharedSum

MAX_POSITIONS = 64
_FAILURE_BITS = 40
_ABSENT = bytes(KEY_BYTES)
_ROW_BYTES = 4 + KEY_BYTES


@lru_cache(maxsize=64)
def corrupt_positions(n_slots: int, max_colluders: int) -> int:
    """Return f: how many positions of a committee may be corrupt.

    All colluders in a committee of all slots. Beyond 64 slots the least number that one of 16
    random draws of 64 exceeds with a probability of at most 2^-40, in exact integers.
    """
    if n_slots <= MAX_POSITIONS:
        return max_colluders
    colluders = min(max_colluders, n_slots)
    draws, above = math.comb(n_slots, MAX_POSITIONS), 0
    for corrupt in range(min(MAX_POSITIONS, colluders), 0, -1):
        others = math.comb(n_slots - colluders, MAX_POSITIONS - corrupt)
        above += math.comb(colluders, corrupt) * others
        if EPOCHS * above << _FAILURE_BITS > draws:
            return corrupt
    return 1


@lru_cache(maxsize=8)
def roster_digest(keys: tuple[bytes, ...], beacon: bytes) -> bytes:
    """Return the digest of a roster's public keys, ordered by slot, and its beacon."""
    return H(b"roster", beacon, *keys)


@lru_cache(maxsize=8)
def drawn(keys: tuple[bytes, ...], beacon: bytes, epoch: int) -> tuple[int, ...]:
    """Return the slots, ascending, of one of the 16 committees of a roster, by its keys' slots.

    The beacon is a public random value that was fixed after all keys were.
    """
    digest = roster_digest(keys, beacon)
    order = sorted(
        range(len(keys)), key=lambda slot: H(b"committee", digest, u32(epoch), keys[slot])
    )
    return tuple(sorted(order[:MAX_POSITIONS]))


@dataclass(frozen=True)
class Committee:
    """The committee of one attempt. A position is a place in its list.

    Attributes
    ----------
    slots : tuple of int
        The slot of each position, ascending.
    public_keys : tuple of bytes
        The ephemeral public key of each position; empty for absent clients.
    n_slots : int
        M: slots of the cohort.
    max_colluders : int
        How many clients of the run may collude.
    """

    slots: tuple[int, ...]
    public_keys: tuple[bytes, ...]
    n_slots: int
    max_colluders: int

    @classmethod
    @lru_cache(maxsize=4)  # clients of one process are sent the same list
    def decode(cls, data: bytes, n_slots: int, max_colluders: int) -> "Committee":
        """Return the committee that a list of slots and keys, as `encode` returns it, names.

        Raises
        ------
        MessageError
            If it is no list of at most 64 slots of the cohort, ascending, with different keys.
        """
        n_rows, rest = divmod(len(data), _ROW_BYTES)
        if not 1 <= n_rows <= MAX_POSITIONS or rest:
            raise MessageError("The committee's list has the wrong length.")
        rows = [data[start : start + _ROW_BYTES] for start in range(0, len(data), _ROW_BYTES)]
        slots = tuple(int.from_bytes(row[:4], "little") for row in rows)
        keys = tuple(b"" if row[4:] == _ABSENT else row[4:] for row in rows)
        if list(slots) != sorted(set(slots)) or slots[-1] >= n_slots:
            raise MessageError("Expected ascending slots of the cohort in the committee's list.")
        present = [key for key in keys if key]
        if len(set(present)) != len(present):
            raise MessageError("Expected different keys in the committee's list.")
        return cls(slots, keys, n_slots, max_colluders)

    def encode(self) -> bytes:
        """Return the list: four bytes and a key for each position, zeros if it is absent."""
        rows = zip(self.slots, self.public_keys, strict=True)
        return b"".join(u32(slot) + (key or _ABSENT) for slot, key in rows)

    @property
    def present(self) -> tuple[int, ...]:
        """Positions whose clients are there."""
        return tuple(position for position, key in enumerate(self.public_keys) if key)

    def position_of(self, slot: int) -> int | None:
        """Return the position of a slot, or ``None`` if it is not in the committee."""
        return self.slots.index(slot) if slot in self.slots else None

    @property
    def n_corrupt(self) -> int:
        """f: positions that may be corrupt."""
        return corrupt_positions(self.n_slots, self.max_colluders)

    def sharing(self, secure_sum: SecureSum) -> Sharing | None:
        """Return how vectors are shared among this committee; ``None`` if they are not.

        Raises
        ------
        ConfigurationError
            If too few positions are present to open a sum, or all may be corrupt.
        """
        return secure_sum.set_up(len(self.slots), self.n_corrupt, len(self.present))

    @cached_property
    def digest(self) -> bytes:
        """Digest, 32 bytes, that stands in every context: list, corrupt positions, thresholds."""
        try:
            sharing = SharedSum().set_up(len(self.slots), self.n_corrupt, len(self.present))
            thresholds = (sharing.privacy, sharing.packing)
        except ConfigurationError:  # sums by masks need no committee that could open
            thresholds = (0, 0)
        numbers = (u32(number) for number in (self.n_corrupt, *thresholds))
        return H(b"committee keys", *numbers, self.encode())


def announced_sharing(
    secure_sum: SecureSum, n_slots: int, max_colluders: int, packing: int
) -> Sharing | None:
    """Return how vectors were shared in a round that an entry announces.

    An entry names no absent clients, so it says what the packing k was. With a wrong packing the
    sum does not open.

    Raises
    ------
    MessageError
        If no committee of so many slots could share a sum, or the packing is impossible.
    """
    n_positions = min(n_slots, MAX_POSITIONS)
    try:
        full = secure_sum.set_up(
            n_positions, corrupt_positions(n_slots, max_colluders), n_positions
        )
    except ConfigurationError:
        raise MessageError("An entry names a cohort that cannot share a sum.") from None
    if full is None:
        return None
    if not 1 <= packing <= n_positions:
        raise MessageError("An entry names an impossible packing.")
    return replace(full, packing=packing)
