"""The committee that adds shares (docs/protocol.md, section 4).

Up to 64 slots all of them are in it. Beyond, a roster's committee is drawn by a hash of
keys and a beacon that nobody chose, so that few colluders are in it except with a
probability of 2^-40 (docs/guarantees, Theorem 39).
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
# a slot, and a key that is filled up with zeros
_ROW = struct.Struct(f"<I{KEY_BYTES}s")


def corrupt_positions(n_slots: int, max_colluders: int) -> int:
    """Return f: how many positions of a committee may be corrupt.

    All colluders in a committee of all slots. Beyond 64 slots the least number that one
    of 16 random draws of 64 exceeds with a probability of at most 2^-40, in exact
    integers.
    """
    if n_slots <= MAX_POSITIONS:
        return max_colluders
    # The tail is summed from its end, so the first term that is too much gives the
    # answer.
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

    slots: tuple[int, ...]  # of each position, ascending
    public_keys: tuple[bytes, ...]  # the ephemeral ones; empty for absent clients
    n_slots: int  # M: slots of the cohort
    max_colluders: int  # how many clients of the run may collude

    @classmethod
    def decode(cls, data: bytes, n_slots: int, max_colluders: int) -> "Committee":
        """Return the committee that a list names: at most 64 ascending slots, different keys."""
        if len(data) not in range(_ROW.size, _ROW.size * MAX_POSITIONS + 1, _ROW.size):
            raise MessageError("The committee's list has the wrong length.")
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
        """Return the list: four bytes and a key for each position, zeros if it is absent."""
        return b"".join(map(_ROW.pack, self.slots, self.public_keys))

    @cached_property
    def present(self) -> tuple[int, ...]:
        """Positions whose clients are there."""
        return tuple(position for position, key in enumerate(self.public_keys) if key)

    @cached_property
    def positions(self) -> dict[int, int]:
        """The position of each slot in the committee."""
        return {slot: position for position, slot in enumerate(self.slots)}

    @cached_property
    def n_corrupt(self) -> int:
        """f: positions that may be corrupt."""
        return corrupt_positions(self.n_slots, self.max_colluders)

    def sharing(self, secure_sum: SecureSum) -> Sharing | None:
        """Return how vectors are shared among this committee, as `SecureSum.set_up` does."""
        return secure_sum.set_up(len(self.slots), self.n_corrupt, len(self.present))

    @cached_property
    def digest(self) -> bytes:
        """Digest, 32 bytes, that stands in every context: list, corrupt positions, thresholds."""
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
    """Return how a round was shared: an entry names the packing, and no absent clients."""
    n_positions = min(n_slots, MAX_POSITIONS)
    n_corrupt = corrupt_positions(n_slots, max_colluders)
    try:
        full = secure_sum.set_up(n_positions, n_corrupt, n_positions)
    except ConfigurationError:
        raise MessageError("An entry names a cohort that cannot share a sum.") from None
    if full is None:
        return None
    if not 1 <= packing <= n_positions:
        raise MessageError("An entry names an impossible packing.")
    return replace(full, packing=packing)
