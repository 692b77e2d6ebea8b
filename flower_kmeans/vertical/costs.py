"""Costs of a vertical run: round trips, bytes, CPU time, memory and disk.

They follow from public numbers. Bytes are exact, except for row ids and the result (a
kilobyte). Round trips are exact if party 0's parcels fit into one message
(docs/protocol.md, section 13). CPU time and memory are estimates from measurements of one
core; each constant names its source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.ring import SLOTS, N, packed_bytes

_MESSAGE = 255 * 2**20  # parcels in one message
_SEAL = 16  # bytes that AES-SIV adds to each parcel
# CPU seconds of party 0 for a step of 16,384 records of two parties, on one core, as
# two runs of benchmarks/vertical.py measured them: 1.6 and 1.7 s at k = 2, 4.8 and 5.1
# (3), 17.1 and 18.8 (5), 55.8 and 63.4 (8); with a radius 4.9 (2), 10.8 (3), 30.5 and
# 32.3 (5), 80.8 (8). The constants are a fit to these, within 10 %; beyond k = 8 it is
# an extrapolation.
_SIGN = 1.43
_SIGN_LEVEL = 0.2
_PRODUCT = 0.03
# Keys, a column of 16,384 records, randomising a value and a share of it: the largest
# of the same table. Joint keys are from a prototype, whose own key alone took 3.3 s.
_KEYS_ALONE = 0.6
_KEYS_JOINT = 7.0
_COLUMN = 0.03
_RANDOMISE = 0.008
_SHARE = 0.0005
# GB of party 0 with one worker, measured at k = 2, 3, 5 and 8; at 16 that of a
# prototype in which one process played all parties. With a radius 0.98, 1.10 and 1.28
# were measured at k = 2, 3 and 5. The process of benchmarks/vertical.py takes up to 8 %
# more.
_MEMORY = ((2, 3, 5, 8, 16), (0.87, 0.97, 1.13, 1.43, 3.5))
_RADIUS = 0.09
_RADIUS_CLUSTER = 0.012
_WORKER = 0.9  # of each further worker, which loads the keys, too
_WORKERS = 2  # more need no more disk
_WORD_BYTES = 8
# One for the comparison, then four for each of the three stages of the sign.
_LEVELS_OF_A_WIN = 13


@dataclass(frozen=True)
class RunCosts:
    """Costs of a run.

    Bytes are sent by all parties together. Seconds are CPU time of one core.
    """

    round_trips: int  # without repetitions
    key_bytes: int
    column_bytes: int
    round_bytes: int  # in each round
    n_rounds: int
    step_seconds: float  # of the computing party in each round
    holder_seconds: float  # of a key holder in the whole run
    memory: float  # GB of the computing party with one worker
    worker_memory: float  # GB of each further worker
    disk: int  # bytes of files at the computing party during the run

    @property
    def total_bytes(self) -> int:
        """Bytes that all parties send in the run."""
        return self.key_bytes + self.column_bytes + self.n_rounds * self.round_bytes

    def describe(self) -> tuple[str, ...]:
        """Return the costs as sentences."""
        all_rounds = self.n_rounds * self.round_bytes
        seconds = self.n_rounds * self.step_seconds
        return (
            f"Round trips: {self.round_trips}.",
            f"Parties send {_mb(self.total_bytes)}: keys {_mb(self.key_bytes)}, columns "
            f"{_mb(self.column_bytes)}, rounds {_mb(all_rounds)}.",
            f"CPU of one core, estimated: party 0 {seconds:.3g} s "
            f"({self.step_seconds:.3g} s in each round, divided by its workers), a key holder "
            f"{self.holder_seconds:.2g} s.",
            f"Memory of party 0, estimated: {self.memory:.2g} GB, and {self.worker_memory:.2g} GB "
            f"for each further worker. Disk of party 0: {_mb(self.disk)}.",
        )


def costs(
    n_clusters: int,
    widths: Sequence[int],
    n_records: int,
    n_rounds: int,
    key_holders: int,
    *,
    radius: bool = False,
    check_ids: bool = False,
) -> RunCosts:
    """Return the costs of a run. ``widths`` are the parties' numbers of columns."""
    m = moduli(n_clusters, radius)
    k = n_clusters
    d = sum(widths)
    n_parties = len(widths)
    holders = key_holders
    chunks = -(-n_records // SLOTS)
    public = packed_bytes(m.key)
    data = packed_bytes(m.data)
    digits = len(m.data)
    alone = holders == 1
    values = k * (d + 1)
    squares = int(radius)  # a party also encrypts the squared norm of its columns
    foreign = [width + squares for width in widths[1:]]

    if alone:
        key_bytes = public + digits * public + 2 * _SEAL
        key_seconds = _KEYS_ALONE
        column_sizes = [data + 32] + [2 * data] * (n_parties - 2)
        relin_parts = 1
        trips = 4
    else:
        # Twice its share, once in each round of the relinearisation key; and the sums,
        # once.
        key_bytes = holders * (1 + 3 * digits) * public + (1 + digits) * public
        key_bytes += 64 * holders + _SEAL * (4 * holders + 2)
        key_seconds = _KEYS_JOINT
        column_sizes = [2 * data] * (n_parties - 1)
        relin_parts = 1 + holders
        trips = 5

    column_bytes = 0
    for width, size in zip(foreign, column_sizes, strict=True):
        column_bytes += chunks * width * (size + _SEAL)
    words = values * packed_bytes((m.q0,)) + _SEAL
    shares = holders * (8 * values + _SEAL)

    loaded = public * (1 + digits * relin_parts) + column_bytes
    trips += math.ceil(loaded / _MESSAGE) - 1
    trips += 2 * n_rounds
    if n_parties - 1 > holders:
        trips += 1
    if check_ids:
        trips += 2

    n_signs = k * (k - 1) // 2 + squares * k
    sign_seconds = _SIGN + _SIGN_LEVEL * (m.levels - 14)
    chunk_seconds = n_signs * sign_seconds + _PRODUCT * k * sum(foreign)
    column_seconds = _COLUMN * chunks * max(foreign)
    share_seconds = n_rounds * _SHARE * values

    memory = float(np.interp(k, *_MEMORY))
    if radius:
        memory += _RADIUS + _RADIUS_CLUSTER * k
    return RunCosts(
        round_trips=trips,
        key_bytes=key_bytes,
        column_bytes=column_bytes,
        round_bytes=words + shares,
        n_rounds=n_rounds,
        step_seconds=chunks * chunk_seconds + _RANDOMISE * values,
        holder_seconds=key_seconds + column_seconds + share_seconds,
        memory=memory,
        worker_memory=_WORKER,
        disk=disk_bytes(m, n_records, sum(foreign), d, _WORKERS),
    )


def disk_bytes(
    moduli: Moduli, n_records: int, n_foreign: int, n_features: int, n_workers: int
) -> int:
    """Return the disk that a run takes at the computing party, in bytes.

    ``n_foreign`` is the number of encrypted columns; a radius adds one for each other
    party. Several workers exchange the comparisons of three chunks through files.
    """
    chunks = -(-n_records // SLOTS)
    k = moduli.n_clusters
    polynomials = 2 * len(moduli.data) * len(moduli.key)  # the relinearisation key
    polynomials += chunks * n_foreign * 2 * len(moduli.data)
    polynomials += 2 + k * (1 + n_features)  # the public key modulo q0, a step's c1
    if n_workers > 1:
        n_wins = k * (k - 1) // 2 + moduli.radius * k
        polynomials += 3 * n_wins * 2 * (len(moduli.data) - _LEVELS_OF_A_WIN)
    # The headers of SEAL's files are far below a thousandth.
    return int(polynomials * N * _WORD_BYTES * 1.001)


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
