"""The committee that adds shares (docs/protocol.md, section 4).

A cohort of up to 64 slots is its own committee. For a larger roster, a hash of the keys
and of a beacon that nobody chose draws the committee. It then has few colluders, except
with a probability of at most 2^-40 (docs/guarantees, Theorem 39).
"""

import math
import struct
from dataclasses import dataclass, replace
from functools import cached_property

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol.run import EPOCHS
from flower_kmeans.secagg.base import SecureSum, Sharing
from flower_kmeans.secagg.primitives import KEY_BYTES, H, u32
from flower_kmeans.secagg.shares import SharedSum

MAX_POSITIONS = 64
_FAILURE_BITS = 40
_ABSENT = bytes(KEY_BYTES)
# a slot and its ephemeral key, or zeros if the client is absent
_ROW = struct.Struct(f"<I{KEY_BYTES}s")


def corrupt_positions(n_slots: int, max_colluders: int) -> int:
    """Return f, the number of positions of a committee that may be corrupt.

    With at most 64 slots it is the number of colluders. Beyond, it is the least number
    that any of 16 random draws of 64 slots exceeds with a probability of at most 2^-40. It
    is computed in exact integers.
    """
    if n_slots <= MAX_POSITIONS:
        return max_colluders
    # The tail is summed from its end, so the first number that exceeds the bound is f.
    colluders = min(max_colluders, n_slots)
    draws, above = math.comb(n_slots, MAX_POSITIONS), 0
    for corrupt in range(min(MAX_POSITIONS, colluders), 0, -1):
        others = math.comb(n_slots - colluders, MAX_POSITIONS - corrupt)
        above += math.comb(colluders, corrupt) * others
        if EPOCHS * above << _FAILURE_BITS > draws:
            return corrupt
    return 1


def roster_digest(keys: tuple[bytes, ...], beacon: bytes) -> bytes:
    """Return the digest of a roster's public keys, ordered by slot, and its beacon."""
    return H(b"roster", beacon, *keys)


def drawn(keys: tuple[bytes, ...], beacon: bytes, epoch: int) -> tuple[int, ...]:
    """Return the slots, ascending, of one of the 16 committees of a roster."""
    digest = roster_digest(keys, beacon)
    order = sorted(
        range(len(keys)), key=lambda i: H(b"committee", digest, u32(epoch), keys[i])
    )
    return tuple(sorted(order[:MAX_POSITIONS]))


@dataclass(frozen=True)
class Committee:
    """The committee of one attempt. A position is a place in its list."""

    slots: tuple[int, ...]  # slot of each position, ascending
    public_keys: tuple[bytes, ...]  # ephemeral keys; empty for absent clients
    n_slots: int  # M, the number of slots of the cohort
    max_colluders: int  # most clients of the run that may collude

    @classmethod
    def decode(cls, data: bytes, n_slots: int, max_colluders: int) -> "Committee":
        """Return the committee of an encoded list.

        Raises
        ------
        MessageError
            Unless the list has 1 to 64 ascending slots of the cohort, and different keys.
        """
        if len(data) not in range(_ROW.size, _ROW.size * MAX_POSITIONS + 1, _ROW.size):
            raise MessageError(
                f"Expected 1 to {MAX_POSITIONS} rows in the committee's list. "
                f"Got {len(data)} bytes instead."
            )
        slots, found = zip(*_ROW.iter_unpack(data), strict=True)
        if list(slots) != sorted(set(slots)) or slots[-1] >= n_slots:
            raise MessageError(
                "Expected ascending slots of the cohort in the committee's list."
            )
        keys = tuple(b"" if key == _ABSENT else key for key in found)
        committee = cls(slots, keys, n_slots, max_colluders)
        # Absent positions have no key, and may be many.
        if len({*keys, b""}) != len(committee.present) + 1:
            raise MessageError("Expected different keys in the committee's list.")
        return committee

    def encode(self) -> bytes:
        """Return the list: four bytes of slot and a key for each position; no key is zeros."""
        return b"".join(map(_ROW.pack, self.slots, self.public_keys))

    @cached_property
    def present(self) -> tuple[int, ...]:
        """Positions whose clients are present."""
        return tuple(position for position, key in enumerate(self.public_keys) if key)

    @cached_property
    def positions(self) -> dict[int, int]:
        """The position of each slot in the committee."""
        return {slot: position for position, slot in enumerate(self.slots)}

    @cached_property
    def n_corrupt(self) -> int:
        """Number f of positions that may be corrupt."""
        return corrupt_positions(self.n_slots, self.max_colluders)

    def sharing(self, secure_sum: SecureSum) -> Sharing | None:
        """Return this committee's sharing of vectors, as `SecureSum.set_up` does."""
        return secure_sum.set_up(len(self.slots), self.n_corrupt, len(self.present))

    @cached_property
    def digest(self) -> bytes:
        """Digest, 32 bytes, of the list, the corrupt positions and the thresholds, for contexts."""
        try:
            sharing = SharedSum().set_up(
                len(self.slots), self.n_corrupt, len(self.present)
            )
            thresholds = (sharing.privacy, sharing.packing)
        except ConfigurationError:  # sums by masks need no committee to reconstruct
            thresholds = (0, 0)
        return H(
            b"committee keys", *map(u32, (self.n_corrupt, *thresholds)), self.encode()
        )


def announced_sharing(
    secure_sum: SecureSum, n_slots: int, max_colluders: int, packing: int
) -> Sharing | None:
    """Return the sharing of a round from its entry, which names the packing.

    Raises
    ------
    MessageError
        If the cohort cannot share a sum, or the packing is impossible.
    """
    n_positions = min(n_slots, MAX_POSITIONS)
    n_corrupt = corrupt_positions(n_slots, max_colluders)
    try:
        full = secure_sum.set_up(n_positions, n_corrupt, n_positions)
    except ConfigurationError:
        raise MessageError(
            "Expected an entry with a cohort that can share a sum."
        ) from None
    if full is None:
        return None
    if not 1 <= packing <= n_positions:
        raise MessageError(
            f"Expected a packing of 1 to {n_positions} in an entry. Got {packing} instead."
        )
    return replace(full, packing=packing)
