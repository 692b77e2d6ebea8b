"""The population of PE-means: public candidates that clients and server compute alike.

Every candidate follows from the centroids selected before and from a seed, so messages
contain no population. A population is computed block by block, from raw Philox words
and with operations that IEEE 754 rounds correctly (`portable`). So all processors get
the same integers. Only utility depends on this, because the server reads votes by their
index. No guarantee does: a record has one vote for any candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.initialization import (
    ATTEMPTS,
    public_words,
    random_words,
    take_apart,
)
from flower_kmeans.algorithms.numerics.portable import (
    exponential,
    levy_steps,
    logarithm,
    normals,
    uniforms,
)
from flower_kmeans.algorithms.numerics.postprocess import clip_rows
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import row_sums
from flower_kmeans.threads import single_threaded_blas

GAMMA = 0.01  # scale of a variation, in radii of the domain (PE-means, Section III-C)

_START = 1 << 64  # added to a seed, for the key of the first population
_BLOCK_NUMBERS = 2**18  # numbers in a block of candidates
_FEWEST_ROWS = 256
_MOST_ROWS = 4_096
_DRAWN = 64  # points drawn at once


@dataclass(frozen=True)
class Space:
    """The space of candidates: grid points of a ball that are also in a box.

    Attributes
    ----------
    radius : int
        Radius of the ball, in grid units.
    half_widths : tuple of int
        Half widths of the box around the ball's centre, one for each of p columns, in
        grid units.
    """

    radius: int
    half_widths: tuple[int, ...]

    def cut(self, points: FloatArray) -> FloatArray:
        """Return points, (m, p), moved into the ball, truncated, and moved into the box."""
        # The factor covers the roundings of the correction, so no norm exceeds the
        # radius.
        radius = self.radius * (1 - 2.0**-40)
        inside = np.trunc(clip_rows(points, radius))
        limit = np.array(self.half_widths, dtype=np.float64)
        return np.clip(inside, -limit, limit, out=inside)


def variations(
    centers: IntArray, n_variations: int, key: int, space: Space
) -> Iterator[FloatArray]:
    """Yield the centroids, (k, p), then ``n_variations`` of each (PE-means, equation 5).

    Candidate i of the population is centroid ``i mod k``. For ``i >= k`` a step of the
    heavy-tailed law is added in every column, with the scale ``GAMMA`` radii, from
    public words of the key. Blocks, (m, p), are integers within the space, in float64.
    """
    k, p = centers.shape
    points = centers.astype(np.float64)
    yield points
    source = public_words(key)
    # A word gives four numbers, so blocks with a multiple of four rows use whole words.
    rows = max(_FEWEST_ROWS, _BLOCK_NUMBERS // p)
    rows = min(_MOST_ROWS, rows) // 4 * 4
    total = k * n_variations
    for start in range(0, total, rows):
        stop = min(start + rows, total)
        n_numbers = (stop - start) * p
        n_words = -(-n_numbers // 4)
        words = random_words(source, n_words)
        steps = levy_steps(words)[:n_numbers].reshape(-1, p)
        steps *= GAMMA * space.radius
        steps += points[np.arange(start, stop) % k]
        yield space.cut(steps)


def gather(blocks: Iterator[FloatArray], wanted: NDArray[np.intp]) -> FloatArray:
    """Return the candidates with ``wanted`` indices, (m, p), from a population's blocks.

    ``wanted``, (m,), is ascending.
    """
    found = []
    first = 0
    for block in blocks:
        behind = first + len(block)
        low, high = np.searchsorted(wanted, (first, behind))
        places = wanted[low:high] - first
        found.append(block[places])
        first = behind
    return np.concatenate(found)


@lru_cache(maxsize=4)
def packed(n_points: int, space: Space, seed: int) -> FloatArray:
    """Return points of a ball, (n_points, p), far from each other and from its boundary.

    Random points of the ball are tried in turn. A point is taken if it is at least
    ``a`` from the boundary and ``2 a`` from all points before. ``a`` starts at half of
    the radius, and is halved whenever ``ATTEMPTS`` points in turn were too near (Su et
    al. 2016; PE-means, Section III-A). Points outside the box are then moved into it.
    The result is read-only, with integers in float64.
    """
    source = public_words(seed + _START)
    chosen = np.empty((n_points, len(space.half_widths)))
    margin = space.radius // 2
    n_chosen = 0
    failures = 0
    with single_threaded_blas():
        while n_chosen < n_points:
            drawn = _ball_points(source, space, space.radius - margin)
            separation = 4 * margin * margin
            n_chosen, failures = take_apart(
                drawn, chosen, n_chosen, separation, failures
            )
            if failures == ATTEMPTS:
                margin = margin // 2
                failures = 0
    points = space.cut(chosen)
    points.setflags(write=False)  # all clients of a process share the array
    return points


def _ball_points(source: np.random.Philox, space: Space, radius: int) -> FloatArray:
    """Return uniform points of a ball, (64, p).

    The direction is a normal vector's, and the length a p-th root of a uniform number.
    """
    p = len(space.half_widths)
    shape = _DRAWN, p + 1
    words = random_words(source, _DRAWN * (p + 1)).reshape(shape)
    directions = normals(words[:, :p])
    norms = np.sqrt(row_sums(directions * directions))
    norms = np.maximum(norms, 1e-9)
    logarithms = logarithm(uniforms(words[:, p]))
    lengths = exponential(logarithms * (1 / p)) * radius
    factors = lengths / norms
    return np.trunc(directions * factors[:, None])
