"""Random numbers of given laws, with the same bits on every processor.

NumPy's generators change between versions, and logarithms between libraries. So
everything here starts from raw Philox words, and uses only operations that IEEE 754
rounds correctly (+ - * / sqrt floor, powers of two), element by element.
"""

import math
from functools import cache

import numpy as np

from flower_kmeans.arrays import FloatArray, WordArray

LEVY_BETA = 1.75  # stability of the heavy-tailed law (PE-means, Section III-C)
# Its sigma_u by equation 4. A constant, because gamma functions differ between libraries.
LEVY_SCALE = float.fromhex("0x1.03d08d016489p-1")

_LOG_TERMS = 11  # s^2 is at most 0.0295, so the remainder is below 1e-17
_EXP_TERMS = 13  # powers are of at most 0.347, so the remainder is below 1e-16
_SINE_TERMS = 11  # squares are at most 2.47, so the remainder is below 1e-17
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_GOLDEN = (math.sqrt(5.0) - 1) / 2
_ROOT_HALF = math.sqrt(0.5)  # all processors round a square root correctly


def logarithm(values: FloatArray) -> FloatArray:
    """Return natural logarithms of positive normal numbers, to about 1e-15.

    The method writes ``x = m 2^e`` with ``m`` in [sqrt 1/2, sqrt 2), and uses
    ``log m = 2 artanh((m - 1) / (m + 1))``.
    """
    mantissa, exponent = np.frexp(values)
    low = mantissa < _ROOT_HALF
    mantissa = np.where(low, 2 * mantissa, mantissa)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = np.full_like(s, 1 / (2 * _LOG_TERMS + 1))
    for i in range(_LOG_TERMS - 1, -1, -1):
        series *= square
        series += 1 / (2 * i + 1)
    return np.asarray((exponent - low) * _LN2 + 2 * s * series)


def exponential(values: FloatArray) -> FloatArray:
    """Return ``exp`` of numbers within [-700, 700].

    The relative error is about 1e-15 per unit of the number.
    """
    powers = np.floor(values * (1 / _LN2) + 0.5)
    rest = values - powers * _LN2
    series = np.ones_like(rest)
    for i in range(_EXP_TERMS, 0, -1):
        series *= rest
        series *= 1 / i
        series += 1
    return np.asarray(np.ldexp(series, powers.astype(np.int64)))


def quarter_sine(fractions: FloatArray) -> FloatArray:
    """Return ``sin(pi f / 2)`` of fractions in [0, 1]."""
    angles = fractions * (math.pi / 2)
    square = angles * angles
    series = np.ones_like(angles)
    for i in range(_SINE_TERMS, 0, -1):
        series *= square
        series *= -1 / (2 * i * (2 * i + 1))
        series += 1
    return series * angles


def uniforms(words: WordArray) -> FloatArray:
    """Return uniform numbers in (0, 1) from the upper halves of words.

    They are odd multiples of 2^-33.
    """
    upper_halves = words >> np.uint64(32)
    return (upper_halves.astype(np.float64) + 0.5) * 2.0**-32


def normals(words: WordArray) -> FloatArray:
    """Return a standard normal number from every word, by Box and Muller.

    Radius and angle have 32 random bits each.
    """
    squared = -2 * logarithm(uniforms(words))
    # The lower half of a word gives the sign of the cosine, and an angle within a
    # quarter turn.
    low = words & np.uint64(2**32 - 1)
    angle = (low >> np.uint64(1)).astype(np.float64)
    is_negative = (low & np.uint64(1)).astype(bool)
    sine = quarter_sine((angle + 0.5) * 2.0**-31)
    cosine_square = 1 - sine * sine
    found = np.sqrt(np.maximum(squared * cosine_square, 0.0))
    np.negative(found, out=found, where=is_negative)
    return np.asarray(found)


@cache
def levy_table() -> FloatArray:
    """Return 2^16 equally likely values of Mantegna's heavy-tailed law, read-only.

    The law is that of ``sigma_u u / |v|^(1 / beta)``, where u and v are independent
    standard normal numbers (Mantegna 1994; PE-means, equation 4). They come by Box and
    Muller from the points of a lattice that fills the unit square. Drawing from the
    table takes a fiftieth of the time of drawing u and v. Its largest value is about
    200; longer steps would leave the domain. The second half is the first half with the
    other sign.
    """
    n = 2**15
    points = np.arange(n, dtype=np.float64)
    squared = -2 * logarithm((points + 0.5) * (1 / n))
    turned = points * _GOLDEN
    sine = quarter_sine(turned - np.floor(turned) + 0.5 / n)
    cosine_square = 1 - sine * sine
    steps = np.sqrt(np.maximum(squared * cosine_square, 0.0))
    v_square = squared * sine * sine
    steps *= exponential(logarithm(v_square) * (-0.5 / LEVY_BETA))
    steps *= LEVY_SCALE
    table = np.concatenate([steps, -steps])
    table.setflags(write=False)
    return table


def levy_steps(words: WordArray) -> FloatArray:
    """Return four values of `levy_table` from every word: (4 m,) from (m,)."""
    places = words.astype("<u8", copy=False).view("<u2")
    steps: FloatArray = levy_table()[places]
    return steps
