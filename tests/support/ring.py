"""Elements of the ring of shares as they travel, and linear algebra on dealings."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg import shares
from flower_kmeans.secagg.base import Sharing


def pack(residues: NDArray[Any]) -> bytes:
    """Return elements of the ring, residues of shape (3, n), as words of eight bytes."""
    return shares._joined(residues).astype("<u8").tobytes()


def residues_of(words: NDArray[np.uint64]) -> NDArray[Any]:
    """Return residues of shape (3, n) from words of elements."""
    return shares._fields(words)


def lied(part: bytes, prime: int | slice, block: int = 0, by: int = 1) -> bytes:
    """Return a share or sum-share that is false in one block, modulo one prime or more."""
    residues = residues_of(unpack(part, len(part) // 8)).astype(np.int64)
    primes = np.array(shares.PRIMES)[prime]
    residues[prime, block] = (residues[prime, block] + by) % primes
    return pack(residues)


def unpack(data: bytes, length: int) -> NDArray[np.uint64]:
    """Return the words of so many elements; a `MessageError` if they are none."""
    elements, proper = shares._elements([data], length)
    if not proper.all():
        raise MessageError(
            "A share has the wrong length, or words that are no elements."
        )
    return elements.reshape(length)


def generator(sharing: Sharing, prime: int) -> NDArray[np.int64]:
    """Return the matrix (m, tau + k) from random elements and words to shares."""
    tau, m = sharing.privacy, sharing.n_positions
    nodes = (*range(1, tau + 1), *shares._secret_points(sharing))
    later = shares._lagrange(nodes, tuple(range(tau + 1, m + 1)), prime).astype(
        np.int64
    )
    return np.concatenate([np.eye(tau, tau + sharing.packing, dtype=np.int64), later])


def eliminate(rows: NDArray[np.int64], n_columns: int, prime: int) -> int:
    """Bring the first columns into echelon form, modulo a prime and in place; return their rank."""
    done = 0
    for column in range(n_columns):
        pivots = np.flatnonzero(rows[done:, column])
        if pivots.size:
            rows[[done, done + pivots[0]]] = rows[[done + pivots[0], done]]
            rows[done] = rows[done] * pow(int(rows[done, column]), -1, prime) % prime
            below = rows[done + 1 :]
            rows[done + 1 :] = (below - below[:, column, None] * rows[done]) % prime
            done += 1
    return done
