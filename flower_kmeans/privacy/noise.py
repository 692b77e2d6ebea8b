r"""Exact integer noise, vectorised.

Guarantee: if the words of the stream are uniform, every sampler has exactly the law
that it names, without any approximation. Its result depends on the words alone, on
every processor (docs/guarantees, Theorem 9).

Method: a word is the leading bits of a uniform real. If neither its further bits nor
the error of float64 can change the integer, float64 decides. The other cases (about one
in ten million at usual scales) are settled with mpmath. There the uniform's interval is
compared with the exact boundary, and refined by words of the position's branch until it
lies on one side.

The running time depends on the noise, by far less than a network's jitter. It never
depends on records.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import require_positive
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.release import Release

# With a larger scale, a draw could exceed int64 with more than negligible probability.
MAX_SCALE = 2.0**55
# Kairouz, Liu & Steinke 2021: from this standard deviation on, a sum of discrete
# Gaussians is a discrete Gaussian up to 7e-17.
MIN_SHARE_STD = 2.0
_BELOW_PI_SQUARED = 9.8696  # a smaller value widens the noise

# Bound on the error of ndtri, log and exp, and of the few operations around them,
# relative to 1 + their size: 64 times float64's unit. The tests compare it with mpmath.
_FLOAT_ERROR = 2.0**-46
# A word whose leading bits are all zero has too few significant bits for float64.
_MIN_HEAD = 2**20
_GUARD_BITS = 40
# Proposals of the discrete Gaussian at once. The map from words to noise depends on it.
_PROPOSALS = 64


@dataclass(frozen=True)
class _Law:
    """A symmetric law on the reals at scale 1, given by its upper tail, tail(0) = 1/2.

    Attributes
    ----------
    inverse : callable
        Takes tail probabilities in (0, 1/2] and returns x >= 0, in float64. The density
        must be at least 0.79 tail. Then a relative error r of the tail moves x by at
        most 1.26 r / (1 - r).
    exact_tail, exact_inverse : callable
        The tail and its inverse in mpmath, at the working precision.
    """

    inverse: Callable[[FloatArray], FloatArray]
    exact_tail: Callable[[Any], Any]
    exact_inverse: Callable[[Any], Any]


def _gaussian_quantile(tail: Any) -> Any:
    # The import is here, so clients that draw no such noise start faster.
    from scipy.special import ndtri

    return -ndtri(tail)


def _gaussian_tail(x: Any) -> Any:
    # mpmath overflows for larger x. A uniform reaches this tail, 2^-(2^39), only after
    # 2^33 zero words.
    x = min(x, mpmath.mpf(2**20))
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def _gaussian_inverse(tail: Any) -> Any:
    # Newton's method on the logarithm, which is smooth and nearly a parabola. The
    # caller checks the result, so convergence needs no proof.
    log_tail = mpmath.log(tail)
    if tail > 1e-300:
        x = mpmath.mpf(_gaussian_quantile(float(tail)))
    else:
        x = mpmath.sqrt(-2 * log_tail)
    for _ in range(64):
        value = _gaussian_tail(x)
        density = mpmath.exp(-x * x / 2)
        slope = density / mpmath.sqrt(2 * mpmath.pi)
        step = (mpmath.log(value) - log_tail) * value / slope
        x += step
        smallest = mpmath.ldexp(1 + abs(x), 8 - mpmath.mp.prec)
        if abs(step) <= smallest:
            break
    return max(x, mpmath.mpf(0))


def _laplace_tail(x: Any) -> Any:
    return mpmath.exp(-x) / 2


_GAUSSIAN = _Law(_gaussian_quantile, _gaussian_tail, _gaussian_inverse)
_LAPLACE = _Law(
    lambda tail: -np.log(2 * tail), _laplace_tail, lambda tail: -mpmath.log(2 * tail)
)


class _UniformWords:
    """The next words of several streams, joined, and further bits of each word."""

    def __init__(self, streams: Sequence[Stream], counts: Sequence[int]) -> None:
        self._streams = streams
        self._ends = list(accumulate(counts))
        pairs = zip(streams, counts, strict=True)
        self.taken = np.concatenate([stream.words(n) for stream, n in pairs])

    def branch(self, index: int) -> Iterator[int]:
        """Yield words with further bits of the word at an index."""
        number = bisect_right(self._ends, index)
        stream = self._streams[number]
        return stream.branch(stream.position - self._ends[number] + index)


class _Uniform:
    """A uniform real in [0, 1) whose first bits are known, refined on demand."""

    def __init__(self, head: int, bits: int, more: Iterator[int]) -> None:
        self._value = head
        self.bits = bits
        self._more = more

    def refine(self) -> None:
        self._value = self._value << 64 | next(self._more)
        self.bits += 64

    def ends(self) -> tuple[Any, Any]:
        """Return the interval's ends, exact if the precision is ``bits`` or more."""
        low = mpmath.ldexp(self._value, -self.bits)
        high = mpmath.ldexp(self._value + 1, -self.bits)
        return low, high


def discrete_gaussian(variance: FloatArray, stream: Stream) -> IntArray:
    """Draw discrete Gaussians: P(n) proportional to exp(-n^2 / (2 variance)).

    This is Algorithm 3 of Canonne, Kamath & Steinke 2020. A discrete Laplace proposal
    has the scale t = floor(sqrt(variance)) + 1, computed in float64. It is accepted
    with probability exp(-(|n| - variance / t)^2 / (2 variance)). The law is exact for
    any t.

    Variances, (m,), are in squared grid units, in [0, 2^111]. A variance of 0 gives 0.
    A proposal takes two words of the stream. Each of p coordinates makes ``1 + 64 //
    p`` proposals at once, and takes the first accepted one. Coordinates without one
    propose again, in order.
    """
    variances = np.asarray(variance)[None]
    drawn: IntArray = discrete_gaussians(variances, [stream])[0]
    return drawn


def discrete_gaussians(variances: FloatArray, streams: Sequence[Stream]) -> IntArray:
    """Draw `discrete_gaussian` for n streams at once.

    Variances and result have the shape (n, m). Row i uses stream i.
    """
    flat = _checked("variance", variances.reshape(-1), 2 * MAX_SCALE**2)
    noise = np.zeros(flat.shape, dtype=np.int64)
    settled = flat == 0
    while (pending := np.flatnonzero(~settled)).size:
        rows = pending // variances.shape[1]
        counts = np.bincount(rows, minlength=len(streams))
        # A pass over few numbers takes as long as one over hundreds, so few coordinates
        # make many proposals each.
        each = 1 + _PROPOSALS // np.maximum(counts, 1)
        proposing = np.repeat(pending, each[rows])
        here = flat[proposing]
        words = _UniformWords(streams, (2 * counts * each).tolist())
        negative, heads = _sign_and_head(words.taken[0::2])
        scale = np.floor(np.sqrt(here)) + 1
        size = _magnitudes(_LAPLACE, scale, 0.0, heads, words, 2)
        taken = _accepted(size, scale, here, words)
        # A negative zero is rejected: zero would otherwise occur twice as often.
        taken &= ~(negative & (size == 0))
        chosen = proposing[taken]
        values = np.where(negative, -size, size)[taken]
        # whether it is the first accepted proposal of its coordinate
        first = np.diff(chosen, prepend=-1) > 0
        noise[chosen[first]] = values[first]
        settled[chosen] = True
    return noise.reshape(variances.shape)


def _rounded(law: _Law, scale: FloatArray, stream: Stream) -> IntArray:
    """Draw the integers nearest to scale times X, where X has the law.

    Scales, (m,), are in grid units, in [0, 2^55]. A scale of 0 gives 0. Each coordinate
    takes one word. Above about 2^40 most draws are settled exactly, which is slow.
    Noise beyond int64 (probability below e^-255) wraps modulo 2^64.
    """
    scale = _checked("scale", scale)
    words = _UniformWords([stream], [scale.size])
    negative, heads = _sign_and_head(words.taken)
    size = _magnitudes(law, scale, 0.5, heads, words, 1)
    return np.where(negative, -size, size)


SAMPLERS: dict[str, Callable[[FloatArray, Stream], IntArray]] = {
    # Run documents name the sampler, so client and server agree on the law.
    "rounded-gaussian/1": partial(_rounded, _GAUSSIAN),
    "rounded-laplace/1": partial(_rounded, _LAPLACE),
    "discrete-gaussian/2": discrete_gaussian,
}
"""Samplers by name and version. A change of the map from words to noise needs a new version."""


def sampler_name(release: Release, shared: bool = False) -> str:
    """Return the name of the sampler of `draw`, or of `draw_share` if ``shared``."""
    return "discrete-gaussian/2" if shared else f"rounded-{release.mechanism}/1"


def draw(release: Release, sensitivities: FloatArray, stream: Stream) -> IntArray:
    """Draw the noise of one release, (m,), int64, in grid units.

    ``sensitivities`` are the public sensitivities of its coordinates, (m,), in grid
    units. Multiplied by the noise multiplier, they are the scales of the noise. The
    noise is 0 if the multiplier is 0.
    """
    return SAMPLERS[sampler_name(release)](_scale(release, sensitivities), stream)


def draw_share(
    release: Release, sensitivities: FloatArray, shares: int, stream: Stream
) -> IntArray:
    """Draw one client's noise share of a Gaussian release, (m,), int64, in grid units.

    The share is a discrete Gaussian of variance ``v / shares``, so the sum of
    ``shares`` shares has the planned noise (docs/guarantees, Theorem 41). ``v`` exceeds
    ``(multiplier * sensitivity)^2`` by about ``1 / pi^2``, which makes the sum as
    private as the planned continuous Gaussian.

    Parameters
    ----------
    release : Release
        A Gaussian release.
    sensitivities : ndarray of shape (m,)
        As in `draw`.
    shares : int
        Number of noise shares that together have the planned noise.
    stream : Stream

    Raises
    ------
    ConfigurationError
        If the release is not Gaussian, ``shares`` is not a positive integer, or the
        standard deviation of a share is below 2 grid units.
    """
    if release.mechanism != "gaussian":
        raise ConfigurationError(
            "Noise in shares must be Gaussian: a sum of Laplace variables is not one. Got the "
            f"{release.mechanism} release {release.name!r} instead."
        )
    require_positive("shares", shares)
    # Arrays cannot be keys of a cache, but bytes can.
    checked = _checked("sensitivities", sensitivities)
    variance = _drawn_variance(release, checked.tobytes(), shares)
    return discrete_gaussian(variance, stream)


@lru_cache(maxsize=8)  # the clients of one process are in the same round
def _drawn_variance(release: Release, sensitivities: bytes, shares: int) -> FloatArray:
    variance = share_variance(release, np.frombuffer(sensitivities), shares)
    narrow = variance[(variance > 0) & (variance < MIN_SHARE_STD**2)]
    if narrow.size:
        raise ConfigurationError(
            f"The standard deviation of a noise share must be at least {MIN_SHARE_STD:g} grid "
            f"units. Got {np.sqrt(narrow.min()):.4g} for the release {release.name!r} in "
            f"{shares} shares; take more fraction_bits, fewer clients, or a smaller epsilon."
        )
    variance.setflags(write=False)
    return variance


def share_variance(
    release: Release, sensitivities: FloatArray, shares: int
) -> FloatArray:
    """Return the variances of one noise share of ``shares``, (m,), in squared grid units.

    They are rounded upward.
    """
    # A coordinate of sensitivity 0, which no record can change, has variance 0.
    scale = _checked("std", _scale(release, sensitivities))
    variance = _upwards(scale * scale)
    # An infinite variance is refused when it is drawn.
    with np.errstate(over="ignore"):
        # 1 / (1 / v - 1 / (pi v)^2): the discrete Gaussian of this variance is as
        # private as the continuous Gaussian of variance v, for any v that a sum of
        # shares may have (docs/guarantees, Theorem 42). The formula needs a variance
        # above 1/pi^2. Below 1 its result is never drawn: such shares are too narrow,
        # and are refused.
        lost = 1.0 / (_BELOW_PI_SQUARED * np.maximum(variance, 1.0))
        wider = variance / (1.0 - lost)
        whole = _upwards(_upwards(wider))
    return np.where(scale > 0, _upwards(whole / shares), 0.0)


def part_variance(
    release: Release, sensitivities: FloatArray, shares: int, more_shares: int
) -> FloatArray:
    """Return the variances, (m,), of the removable part of a noise share.

    A sum of more clients removes this part. Its variance, and the variance of one of
    ``more_shares`` shares, add up to at least the variance of one of ``shares`` shares
    (docs/guarantees, Theorem 41). Variances are in squared grid units.
    """
    kept = share_variance(release, sensitivities, more_shares)
    removed = share_variance(release, sensitivities, shares) - kept
    return np.where(kept > 0, _upwards(removed), 0.0)


def _scale(release: Release, sensitivities: FloatArray) -> FloatArray:
    checked = _checked("sensitivities", sensitivities)
    if not release.noise_multiplier:
        return np.zeros_like(checked)
    return np.where(checked > 0, _upwards(checked * release.noise_multiplier), 0.0)


def _upwards(values: FloatArray) -> FloatArray:
    """Return the next larger float64s, so that rounding never makes noise too small."""
    return np.nextafter(values, np.inf)


def _checked(name: str, values: FloatArray, largest: float = MAX_SCALE) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ConfigurationError(
            f"The '{name}' parameter must have one dimension. Got shape {array.shape} instead."
        )
    outside = array[~((array >= 0) & (array <= largest))]
    if outside.size:
        raise ConfigurationError(
            f"The '{name}' parameter must be within [0, {largest:.4g}] grid units. "
            f"Got {outside[0]!r} instead."
        )
    return array


def _sign_and_head(
    words: NDArray[np.uint64],
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return each word's sign bit, and its 63 other bits for the magnitude's uniform."""
    return (words & np.uint64(1)).astype(bool), words >> np.uint64(1)


def _magnitudes(
    law: _Law,
    scale: FloatArray,
    offset: float,
    heads: NDArray[np.uint64],
    words: _UniformWords,
    stride: int,
) -> IntArray:
    """Return floor(scale |X| + offset), where X has the law.

    ``heads`` are the leading bits of the uniforms. Head i is from word ``stride * i``.
    """
    head = heads.astype(np.float64)
    # The uniform of tail probabilities lies in [head, head + 1) / 2^64, below 1/2.
    x = law.inverse((head + 0.5) * 2.0**-64)
    value = scale * x + offset
    nearest = np.rint(value)
    # The relative error r of the tail: float64's rounding of 63 bits, and half the
    # width of the word's interval. It moves x by at most 1.26 r / (1 - r) (`_Law`),
    # which is below the 2 r of the next line.
    doubt = 2.0**-52 + 0.5 / np.maximum(head, 1.0)
    error = scale * (_FLOAT_ERROR * (1 + x) + 2 * doubt) + 2.0**-50
    unsettled = (np.abs(value - nearest) <= error) | (heads < _MIN_HEAD)
    # A scale of 0 gives 0 for every word, even if the word needs more bits.
    unsettled &= scale > 0
    settled = np.where(unsettled, 0.0, value)
    size = np.floor(settled).astype(np.int64)
    for i in np.flatnonzero(unsettled):
        uniform = _Uniform(int(heads[i]), 64, words.branch(stride * int(i)))
        size[i] = _settled_magnitude(law, float(scale[i]), offset, uniform)
    return size


def _settled_magnitude(
    law: _Law, scale: float, offset: float, uniform: _Uniform
) -> int:
    while True:
        uniform.refine()
        # The interval is exact. Boundaries have a relative error of at most 2^-(bits +
        # 20).
        with mpmath.workprec(uniform.bits + _GUARD_BITS):
            low, high = uniform.ends()
            # If the interval reaches 0, the magnitude has no upper bound yet.
            if low == 0:
                continue
            middle = law.exact_inverse((low + high) / 2)
            size = int(mpmath.floor(middle * scale + offset))
            margin = mpmath.ldexp(1, -uniform.bits - _GUARD_BITS // 2)
            # The real exceeds a boundary exactly if the uniform is below its tail.
            upper = (mpmath.mpf(size) + 1 - offset) / scale
            if low < law.exact_tail(upper) * (1 + margin):
                continue
            if size > 0:
                lower = (mpmath.mpf(size) - offset) / scale
                if high > law.exact_tail(lower) * (1 - margin):
                    continue
        return (size + 2**63) % 2**64 - 2**63


def _accepted(
    size: IntArray, scale: FloatArray, variance: FloatArray, words: _UniformWords
) -> NDArray[np.bool_]:
    """Return whether uniform < exp(-(size - variance / scale)^2 / (2 variance))."""
    # Division comes first, so squares of large scales do not overflow, and errors stay
    # relative to 1 + the exponent.
    std = np.sqrt(variance)
    # Above 1e4 the probability is below e^-1e7, and squares might overflow.
    ratio = np.minimum(size / std, 1e4)
    away = ratio - std / scale
    exponent = away * away / 2
    chance = np.exp(-exponent)
    last = words.taken[1::2]
    uniform = (last.astype(np.float64) + 0.5) * 2.0**-64
    error = chance * (_FLOAT_ERROR * (1 + ratio * ratio))
    error = error + uniform * 2.0**-50 + 2.0**-62
    taken: NDArray[np.bool_] = uniform < chance
    for i in np.flatnonzero(np.abs(uniform - chance) <= error):
        refined = _Uniform(int(last[i]), 64, words.branch(2 * int(i) + 1))
        taken[i] = _settled_acceptance(
            int(size[i]), int(scale[i]), float(variance[i]), refined
        )
    return taken


def _settled_acceptance(
    size: int, scale: int, variance: float, uniform: _Uniform
) -> bool:
    exact = Fraction(variance)
    exponent = (size - exact / scale) ** 2 / (2 * exact)
    # The probability is 1. The uniform is below it, but its interval may end at 1.
    if exponent == 0:
        return True
    while True:
        uniform.refine()
        # e^-x loses as many bits as the integer part of x has.
        extra = max(0, int(exponent)).bit_length()
        with mpmath.workprec(uniform.bits + _GUARD_BITS + extra):
            low, high = uniform.ends()
            chance = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            margin = chance * mpmath.ldexp(1, -uniform.bits - _GUARD_BITS // 2)
            if high <= chance - margin:
                return True
            if low >= chance + margin:
                return False
