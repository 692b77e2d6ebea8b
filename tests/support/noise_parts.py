"""The parts of noise that can be removed from a sum, as docs/protocol.md has them."""

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.privacy.noise import discrete_gaussian, part_variance
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import noise
from flower_kmeans.protocol.noise import releases_of
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.base import SumContext
from flower_kmeans.secagg.primitives import H, noise_key


def lengths(run: Run, context: SumContext) -> tuple[int, int]:
    """Return the bytes of a vector's part, and of one key's part behind it."""
    size = run.trust.sum.part_bytes
    return size(context.n_words, context.sharing), size(
        noise.KEY_WORDS, context.sharing
    )


def key_of_words(words: NDArray[np.int64]) -> bytes:
    """Return a key of 32 bytes from four words of seven bytes and one of four."""
    *whole, last = (int(word) for word in words)
    return b"".join(word.to_bytes(7, "little") for word in whole) + last.to_bytes(
        4, "little"
    )


def noise_of_parts(
    run: Run, round_number: int, context: bytes, key: bytes, n_parts: int
) -> NDArray[np.int64]:
    """Return the noise of a client's first parts, given its key of the last of them.

    A part fills the place between two numbers of noise shares. A key gives those below
    it.
    """
    levels, numbers = run.document.levels, noise.usable(run, round_number)
    drawn = np.zeros(run.algorithm.layout(round_number).n_words, dtype=np.int64)
    for level in reversed(levels[:n_parts]):
        if level in numbers:
            fewer = numbers[numbers.index(level) - 1]
            stream = Stream.from_key(noise_key(key, context))
            for release, words, units in releases_of(
                run.algorithm, run.plan, round_number
            ):
                variances = part_variance(release, units, fewer, level)
                drawn[words] += discrete_gaussian(variances, stream)
        key = H(b"noise part", key)
    return drawn
