"""Client-level privacy: the clipping that limits the answer of one client.

One client, with all of its records, changes a release by at most 1 in units of the noise
scale, which is ``clip`` times that of one record (docs/guarantees, Theorem 34).
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.privacy.release import Norm

# Number of roundings that the margin covers beside the additions of a sum.
_ROUNDINGS = 16


def limited(algorithm: Algorithm, statistic: Statistic, round_number: int) -> Statistic:
    """Return a client's answer from its statistic, clipped with ``unit="client"``.

    See docs/guarantees, Theorem 34. With clipping, a word that no release covers becomes 0.
    """
    clipping = algorithm.clipping
    if clipping.adds_means(round_number):
        statistic = means_of(statistic, algorithm.fraction_bits)
    if clipping.clip is None:
        return statistic
    scales = sensitivities(algorithm, round_number)
    layout = algorithm.layout(round_number)
    vector = layout.flatten(statistic)
    parts = []
    for release in algorithm.releases(round_number):
        words = layout.words_of(release)
        factor = clip_factor(vector[words], scales[words], release.norm)
        parts.append((words, factor))
    # A joint factor shrinks sums and counts alike, so a client's means stay.
    least = min((factor for _, factor in parts), default=1.0)
    clipped = np.zeros_like(vector)
    for words, factor in parts:
        kept = least if clipping.is_joint else factor
        clipped[words] = shortened(vector[words], scales[words], kept)
    return layout.unflatten(clipped)


def means_of(statistic: Statistic, fraction_bits: int) -> Statistic:
    """Return the means of a client's records by cluster, and count 1 for clusters that it holds."""
    sums = statistic.blocks[SUMS]
    counts = statistic.blocks[COUNTS] >> fraction_bits
    # Means are rounded toward zero, so that no mean is longer than the records.
    sizes = np.abs(sums) // np.maximum(counts, 1)[:, None]
    means = np.sign(sums) * sizes
    there = np.minimum(counts, 1) << fraction_bits
    return Statistic({**statistic.blocks, SUMS: means, COUNTS: there})


def moves_of_a_record(algorithm: Algorithm, round_number: int) -> tuple[float, ...]:
    """Return the largest change of each release of a round by one record of a protected client.

    A change is in units of the release's noise scale, and in its norm (docs/guarantees,
    Theorem 35).
    """
    clipping = algorithm.clipping
    releases = algorithm.releases(round_number)
    if clipping.adds_means(round_number):
        # One record can move a mean from one end of the clip to the other.
        return (2.0,) * len(releases)
    scales = sensitivities(algorithm, round_number)
    layout = algorithm.layout(round_number)
    steps = [1.0 / clipping.of(release) for release in releases]
    is_joint = clipping.is_joint and len(releases) > 1
    shared = max(steps) if is_joint else None
    return tuple(
        move_of_a_record(scales[layout.words_of(release)], release.norm, step, shared)
        for release, step in zip(releases, steps, strict=True)
    )


def clip_factor(
    values: NDArray[np.int64], sensitivities: NDArray[np.float64], norm: Norm
) -> float:
    """Return the factor of a client's part of a release: ``min(1, 1 / norm)``.

    After `shortened` with the factor, integers ``w`` have ``||w / s|| <= 1`` in real
    arithmetic, not only in floats. The computed norm is enlarged by ``m + 16`` times 2^-52
    for ``m`` values. This is more than the sum of all roundings, in any order of the
    additions.

    ``values`` (m,) and the finite ``sensitivities`` s (m,) are those of the release. A word
    of sensitivity 0 has no noise and does not count. The factor is 0 if sensitivities are
    so small that no integer but 0 fits.
    """
    sizes = _sizes(values)
    used = sensitivities > 0
    with np.errstate(over="ignore", under="ignore"):
        ratios = np.divide(sizes, sensitivities, out=np.zeros_like(sizes), where=used)
        largest = float(ratios.max(initial=0.0))
        if largest == math.inf:
            return 0.0
        if largest > 0:
            # Ratios are relative to the largest, so that no square overflows.
            parts = ratios / largest
            total = np.sqrt(np.sum(parts * parts)) if norm == "l2" else np.sum(parts)
        else:
            total = 0.0
        margin = (values.size + _ROUNDINGS) * 2.0**-52
        size = largest * float(total) * (1.0 + margin)
    # A norm of 1 or less stays as it is, so clipping is the identity for most clients.
    return 1.0 if size <= 1.0 else (1.0 - margin) / size


def move_of_a_record(
    sensitivities: NDArray[np.float64],
    norm: Norm,
    step: float,
    shared: float | None = None,
) -> float:
    """Return the largest change of a release by one record of a client, after clipping.

    The change is in units of the noise scale (docs/guarantees, Theorem 35). A release that
    is clipped alone in l2 changes no more than before clipping, because clipping is then a
    projection. Otherwise the factor changes too: this adds the largest change of the
    release that sets the factor.

    ``step`` is the reciprocal of the clip: the change by one record before clipping.
    ``shared`` is the largest step among releases that one factor shortens together. The
    result is at most 2, the distance from one end of the clip to the other.
    """
    move = step
    if shared is not None:
        move += shared
    elif norm == "l1":
        move += step
    # Truncation moves every word by less than one step of the grid, and the factor
    # itself is within four margins of the exact one.
    with np.errstate(over="ignore"):
        grid = 1.0 / sensitivities[sensitivities > 0]
        truncated = (
            math.sqrt(float(np.sum(grid * grid)))
            if norm == "l2"
            else float(np.sum(grid))
        )
    margin = (sensitivities.size + _ROUNDINGS) * 2.0**-52
    return min(2.0, (move + truncated + 8.0 * margin) * (1.0 + margin))


def shortened(
    values: NDArray[np.int64], sensitivities: NDArray[np.float64], factor: float
) -> NDArray[np.int64]:
    """Return values times a factor of at most 1, truncated toward zero.

    Values of sensitivity 0 become 0. A smaller factor makes no value larger, so a bound that
    holds for one factor holds for all smaller ones.
    """
    used = sensitivities > 0
    if factor == 1.0:
        return np.where(used, values, 0)
    clipped = np.where(used, np.floor(_sizes(values) * factor), 0.0).astype(np.int64)
    return np.where(values < 0, -clipped, clipped)


def _sizes(values: NDArray[np.int64]) -> NDArray[np.float64]:
    # The values become floats first, because -2^63 has no absolute value in int64.
    return np.abs(values.astype(np.float64))
