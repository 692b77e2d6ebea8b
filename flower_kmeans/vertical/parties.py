"""The computing party of a vertical run: arrays in, arrays out (docs/protocol.md, section 13)."""

from dataclasses import dataclass

import numpy as np

from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg.hashing import u32
from flower_kmeans.vertical.engine import column_file, relin_file
from flower_kmeans.vertical.keys import Noise, opened, randomise, secret_key
from flower_kmeans.vertical.moduli import Moduli
from flower_kmeans.vertical.ring import Floats, Integers, N, Words, lift
from flower_kmeans.vertical.store import Store
from flower_kmeans.vertical.workers import RELIN_KEY, Step, column_name, evaluate

_PUBLIC_KEY = "public"


@dataclass(frozen=True, repr=False)
class ComputingParty:
    """Party 0: own columns in clear, the others' encrypted, no secret key.

    What arrives goes to the store. A step evaluates all records, adds an encryption of zero to each
    value and gives c1; the constants stay here, so that key holders open values which they never
    see (docs/vertical.md, "How it works"). The same secret and the same input give the same words.
    """

    moduli: Moduli
    store: Store
    secret: bytes  # of the client session: the encryptions of zero follow from it
    doc_hash: bytes
    half_widths: Floats  # (d,), of the scaled box, party 0's columns first
    widths: tuple[int, ...]  # how many columns each party has, party 0 first
    radius: float | None = None  # scaled: records farther from a centroid do not count
    n_workers: int = 1

    def take_keys(self, public: Words, relin: Words) -> None:
        """Keep the public key (2, primes, N) and the relinearisation key (digits, 2, primes, N).

        Raises
        ------
        MessageError
            If the relinearisation key has another shape, or a word is not below its prime.
        """
        self.store.write(RELIN_KEY, relin_file(self.moduli, relin))
        # zero is encrypted at the last level only
        self.store.write(_PUBLIC_KEY, [public[:, 0].astype("<u8").tobytes()])

    def take_column(self, slot: int, chunk: int, number: int, words: Words) -> None:
        """Keep 16,384 records of another party's encrypted column, (2, data primes, N).

        ``number`` is that of one of the party's `signs.scaled_columns`. With a radius, the one
        after its last column is the party's `signs.scaled_squares`.

        Raises
        ------
        MessageError
            If the shape is another one, or a word is not below its prime.
        """
        self.store.write(column_name(slot, chunk, number), column_file(self.moduli, words))

    def step(self, t: int, own: Floats, centroids: Floats) -> Words:
        """Return what the key holders need to open the counts and sums of step t.

        A step that was done before gives what it gave then, from the store. Own columns (n, a) and
        centroids (k, d) are scaled.

        Returns
        -------
        ndarray of shape (k * (1 + d), N), uint64
            c1 of every value modulo q0: for each cluster its count, then its sums.

        Raises
        ------
        RunError
            If a file of the store is missing or was changed, or a worker died.
        """
        name = _step_name(t)
        if name not in self.store:
            half_widths = self.half_widths[: own.shape[1]]
            # Beyond the box the sign diverges, and a failure here would depend on records.
            own = np.clip(np.where(np.isfinite(own), own, 0.0), -half_widths, half_widths)
            step = Step(own, centroids, self.half_widths, self.widths, self.radius)
            words = evaluate(self.store, step, self.n_workers).reshape(-1, 2, N)
            self.store.write(name, [part.astype("<u8").tobytes() for part in self._hide(t, words)])
            # an interrupted request is repeated: it opens the values of the step before again
            self.store.remove(_step_name(t - 2))
        return self._stored(t)[1]

    def _hide(self, t: int, words: Words) -> tuple[Words, Words]:
        """Add encryptions of zero, without which c1 would show which records were used."""
        public = self._array(_PUBLIC_KEY).reshape(2, 1, N)
        parts = [
            randomise(self.moduli, public, value, self.secret, self.doc_hash, u32(t) + u32(i))
            for i, value in enumerate(words)
        ]
        return np.array([c0 for c0, _ in parts], np.uint64), np.stack([c1 for _, c1 in parts])

    def open(self, t: int, shares: Words, noise: Noise) -> Integers:
        """Return a step's values (k, 1 + d) under the noise of all parties.

        They are multiples of 1 / ``moduli.unit``. ``shares`` (H, k * (1 + d)) have one word of each
        key holder for every value, and ``noise`` draws this party's own.

        Raises
        ------
        MessageError
            If a word is not below q0.
        RunError
            If the constants are missing or were changed.
        """
        constants, c1 = self._stored(t)
        q0 = self.moduli.q0
        if (shares >= q0).any():
            raise MessageError("Expected words below q0 of each key holder.")
        key = secret_key(self.secret, self.doc_hash, b"noise " + u32(t), c1)
        own = lift(noise(Stream(key)), q0)
        values = opened(self.moduli, constants, [*shares, own])
        return values.reshape(self.moduli.n_clusters, -1)

    def _stored(self, t: int) -> tuple[Words, Words]:
        both = self._array(_step_name(t))
        n_values = len(both) // (1 + N)
        return both[:n_values], both[n_values:].reshape(n_values, N)

    def _array(self, name: str) -> Words:
        return np.fromfile(self.store.path(name), "<u8").astype(np.uint64)


def _step_name(t: int) -> str:
    return f"step-{t}"
