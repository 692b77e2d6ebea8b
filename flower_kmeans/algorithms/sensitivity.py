"""Sensitivities: the largest change of each word of a round by one record or one client."""

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.numerics.projection import moment_units
from flower_kmeans.arrays import FloatArray


def record_sensitivities(algorithm: Algorithm, round_number: int) -> FloatArray:
    """Return the sensitivity of every word of a round, (words,) float64, for one record.

    They are in grid units, from `Algorithm.block_sensitivities`. Those of second moments
    differ by word, because a product of two columns is smaller than a square.
    """
    units = algorithm.block_sensitivities(round_number)
    parts = []
    for block in algorithm.layout(round_number).blocks:
        if block.are_moments:
            own = moment_units(algorithm.domain, algorithm.fraction_bits)
        else:
            own = np.full(block.size, units[block.name])
        # Otherwise words of the next block would get the noise of this one.
        if own.shape != (block.size,):
            raise ValueError(
                f"Expected the block {block.name!r} with {own.size} words. "
                f"Got {block.size} instead."
            )
        parts.append(own)
    return np.concatenate(parts)


def sensitivities(algorithm: Algorithm, round_number: int) -> FloatArray:
    """Return the noise scale of every word of a round, (words,) float64.

    It is `record_sensitivities` times the clip of the word's release, and times the full
    weight of records with weights. It holds for data sets that differ in one unit of the
    budget: one record, or all records of one client or person.
    """
    found = record_sensitivities(algorithm, round_number)
    found *= algorithm.full_weight or 1
    clipping = algorithm.clipping
    if clipping.clip is None:
        return found
    layout = algorithm.layout(round_number)
    for release in algorithm.releases(round_number):
        found[layout.words_of(release)] *= clipping.of(release)
    return found
