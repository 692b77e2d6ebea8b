r"""Exact integer noise, vectorised.

Guarantee: if the words of the stream are uniform, every sampler has exactly the law
that it names, not one within some distance of it, and its result is a function of the
words alone, on every processor (docs/guarantees, Theorem 9).

How: a word is the leading bits of a uniform real. Where neither its further bits nor
the error of float64 can change the integer, float64 decides. The rare others (one in
ten million or so at usual scales) are settled with mpmath: the uniform's interval is
compared with the exact boundary, with more words from the branch of that very position
until it lies on one side.

The running time depends on the noise (by far less than a network's jitter), never on
records.
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

# Above it, a draw could leave int64 with more than a negligible probability.
MAX_SCALE = 2.0**55
# Kairouz, Liu & Steinke 2021: from here on a sum of discrete Gaussians is one, up to
# 7e-17.
MIN_SHARE_STD = 2.0
_BELOW_PI_SQUARED = 9.8696  # a smaller value widens the noise

# Bound on the error of ndtri, log and exp, and of the few operations around them,
# relative to 1 + their size: 64 times float64's unit. The tests compare it with mpmath.
_FLOAT_ERROR = 2.0**-46
# Words whose leading bits are all zero carry too little of the uniform for the fast
# path.
_MIN_HEAD = 2**20
_GUARD_BITS = 40
# at once, of the discrete Gaussian; part of the map from words to noise
_PROPOSALS = 64


@dataclass(frozen=True)
class _Law:
    """A symmetric law on the reals, by its upper tail at unit scale: tail(0) = 1/2."""

    # float64: tail probabilities in (0, 1/2] -> x >= 0. Its density is at least 0.79
    # tail, so a relative error r of the tail moves x by at most 1.26 r / (1 - r).
    inverse: Callable[[FloatArray], FloatArray]
    # mpmath, at the working precision.
    exact_tail: Callable[[Any], Any]
    exact_inverse: Callable[[Any], Any]


def _gaussian_quantile(tail: Any) -> Any:
    # here, so that clients that draw no such noise start faster
    from scipy.special import ndtri

    return -ndtri(tail)


def _gaussian_tail(x: Any) -> Any:
    # mpmath overflows far out. A uniform reaches this tail, 2^-(2^39), after 2^33 zero
    # words.
    x = min(x, mpmath.mpf(2**20))
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def _gaussian_inverse(tail: Any) -> Any:
    # Newton's method on the logarithm, which is smooth and nearly a parabola. The
    # caller checks what comes out, so this needs to be good, not proved.
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
    """The next words of streams, one after the other, and further bits of them."""

    def __init__(self, streams: Sequence[Stream], counts: Sequence[int]) -> None:
        self._streams = streams
        self._ends = list(accumulate(counts))
        pairs = zip(streams, counts, strict=True)
        self.taken = np.concatenate([stream.words(n) for stream, n in pairs])

    def branch(self, index: int) -> Iterator[int]:
        """Yield the words that refine the one at an index."""
        number = bisect_right(self._ends, index)
        stream = self._streams[number]
        return stream.branch(stream.position - self._ends[number] + index)


class _Uniform:
    """The uniform in [0, 1) whose first bits are known, refined on demand."""

    def __init__(self, head: int, bits: int, more: Iterator[int]) -> None:
        self._value = head
        self.bits = bits
        self._more = more

    def refine(self) -> None:
        self._value = self._value << 64 | next(self._more)
        self.bits += 64

    def ends(self) -> tuple[Any, Any]:
        """Return the interval's ends, exact at a precision of ``bits`` or more."""
        low = mpmath.ldexp(self._value, -self.bits)
        high = mpmath.ldexp(self._value + 1, -self.bits)
        return low, high


def discrete_gaussian(variance: FloatArray, stream: Stream) -> IntArray:
    """Draw discrete Gaussians: P(n) proportional to exp(-n^2 / (2 variance)).

    Canonne, Kamath & Steinke 2020, Algorithm 3: a discrete Laplace proposal of scale
    t = floor(sqrt(variance)) + 1, in float64, is accepted with probability
    exp(-(|n| - variance / t)^2 / (2 variance)). The law is exact for any t.

    Variances, (m,), are in squared grid units, in [0, 2^111]; 0 gives 0. The stream
    gives two words per proposal. Each of p coordinates makes ``1 + 64 // p`` proposals
    at once, of which the first accepted one counts; those without one propose again, in
    order.
    """
    variances = np.asarray(variance)[None]
    drawn: IntArray = discrete_gaussians(variances, [stream])[0]
    return drawn


def discrete_gaussians(variances: FloatArray, streams: Sequence[Stream]) -> IntArray:
    """Draw `discrete_gaussian` of n streams at once, (n, m) from variances (n, m)."""
    flat = _checked("variance", variances.reshape(-1), 2 * MAX_SCALE**2)
    noise = np.zeros(flat.shape, dtype=np.int64)
    settled = flat == 0
    while (pending := np.flatnonzero(~settled)).size:
        rows = pending // variances.shape[1]
        counts = np.bincount(rows, minlength=len(streams))
        # A pass over few numbers costs as much as one over some hundreds.
        each = 1 + _PROPOSALS // np.maximum(counts, 1)
        proposing = np.repeat(pending, each[rows])
        here = flat[proposing]
        words = _UniformWords(streams, (2 * counts * each).tolist())
        negative, heads = _sign_and_head(words.taken[0::2])
        scale = np.floor(np.sqrt(here)) + 1
        size = _magnitudes(_LAPLACE, scale, 0.0, heads, words, 2)
        taken = _accepted(size, scale, here, words)
        # Zero has one sign only, or it would come twice as often.
        taken &= ~(negative & (size == 0))
        chosen = proposing[taken]
        values = np.where(negative, -size, size)[taken]
        first = np.diff(chosen, prepend=-1) > 0  # of a coordinate's proposals
        noise[chosen[first]] = values[first]
        settled[chosen] = True
    return noise.reshape(variances.shape)


def _rounded(law: _Law, scale: FloatArray, stream: Stream) -> IntArray:
    """Draw floor(scale X + 1/2), X of the law, of one word for every coordinate.

    Scales, (m,), are in grid units, in [0, 2^55]; 0 gives 0. Beyond about 2^40 most
    draws are settled exactly, which is slow. Noise beyond int64 (probability below
    e^-255) wraps modulo 2^64.
    """
    scale = _checked("scale", scale)
    words = _UniformWords([stream], [scale.size])
    negative, heads = _sign_and_head(words.taken)
    size = _magnitudes(law, scale, 0.5, heads, words, 1)
    return np.where(negative, -size, size)


SAMPLERS: dict[str, Callable[[FloatArray, Stream], IntArray]] = {
    # Run documents name the sampler, so that client and server agree on the law that is
    # drawn.
    "rounded-gaussian/1": partial(_rounded, _GAUSSIAN),
    "rounded-laplace/1": partial(_rounded, _LAPLACE),
    "discrete-gaussian/2": discrete_gaussian,
}
"""Samplers by name and version; another map from words to noise is a new version."""


def sampler_name(release: Release, shared: bool = False) -> str:
    """Return the name of the sampler of `draw`, or of `draw_share` if ``shared``."""
    return "discrete-gaussian/2" if shared else f"rounded-{release.mechanism}/1"


def draw(release: Release, sensitivities: FloatArray, stream: Stream) -> IntArray:
    """Draw the noise of one release, (m,), in grid units; zeros if its multiplier is 0.

    ``sensitivities`` are the public units of its coordinates, (m,), in grid units:
    times the noise multiplier, they are the scales of the noise.
    """
    return SAMPLERS[sampler_name(release)](_scale(release, sensitivities), stream)


def draw_share(
    release: Release, sensitivities: FloatArray, shares: int, stream: Stream
) -> IntArray:
    """Draw one client's noise share of a Gaussian release.

    See docs/guarantees, Theorem 41. A discrete Gaussian of variance ``v /
    shares``: the sum of ``shares`` of them carries the planned noise. ``v`` is
    ``(multiplier * unit)^2``, and so much more (about ``1 / pi^2``) that the sum is as
    private as the continuous Gaussian that was planned. Units and result are those of
    `draw`.

    Raises
    ------
    ConfigurationError
        If the release is not Gaussian, ``shares`` is not a positive integer, or a
        share's standard deviation is below 2 grid units.
    """
    if release.mechanism != "gaussian":
        raise ConfigurationError(
            "Noise in shares must be Gaussian: a sum of Laplace variables is not one. Got the "
            f"{release.mechanism} release {release.name!r} instead."
        )
    require_positive("shares", shares)
    # Bytes, because arrays cannot be keys of a cache.
    checked = _checked("sensitivities", sensitivities)
    variance = _drawn_variance(release, checked.tobytes(), shares)
    return discrete_gaussian(variance, stream)


@lru_cache(maxsize=8)  # clients of one process are in one round
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
    """Return the variances of one of several noise shares, (m,).

    They are in squared grid units.
    """
    # Rounded upward. A coordinate of unit 0, which no record can change, has variance
    # 0.
    scale = _checked("std", _scale(release, sensitivities))
    variance = _upwards(scale * scale)
    # an infinite variance is refused where it is drawn
    with np.errstate(over="ignore"):
        # 1 / (1 / v - 1 / (pi v)^2): the discrete Gaussian of this variance is as
        # private as a continuous one of variance v, for any v that a sum of shares may
        # have (docs/guarantees, Theorem 42). The formula needs a variance above
        # 1/pi^2. Below 1 nothing is drawn from it: such shares are too narrow, and
        # refused.
        lost = 1.0 / (_BELOW_PI_SQUARED * np.maximum(variance, 1.0))
        wider = variance / (1.0 - lost)
        whole = _upwards(_upwards(wider))
    return np.where(scale > 0, _upwards(whole / shares), 0.0)


def part_variance(
    release: Release, sensitivities: FloatArray, shares: int, more_shares: int
) -> FloatArray:
    """Return the variances of the part of a noise share that larger sums remove.

    Its variance and that of one of ``more_shares`` shares add up to at least that of
    one of ``shares`` shares (docs/guarantees, Theorem 41), in squared grid
    units, (m,).
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
    """Return the next float64 above, so that rounding never makes noise too small."""
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
    """Split words into a fair sign and 63 leading bits of the magnitude's uniform."""
    return (words & np.uint64(1)).astype(bool), words >> np.uint64(1)


def _magnitudes(
    law: _Law,
    scale: FloatArray,
    offset: float,
    heads: NDArray[np.uint64],
    words: _UniformWords,
    stride: int,
) -> IntArray:
    """Return floor(scale |X| + offset), X of the law; head i is of word stride i."""
    head = heads.astype(np.float64)
    # The uniform of tail probabilities lies in [head, head + 1) / 2^64, below 1/2.
    x = law.inverse((head + 0.5) * 2.0**-64)
    value = scale * x + offset
    nearest = np.rint(value)
    # Relative error r of the tail: float64's rounding of 63 bits, and half a step of
    # the word's interval. It moves x by at most 1.26 r / (1 - r) (`_Law`), below the 2
    # r of the next line.
    doubt = 2.0**-52 + 0.5 / np.maximum(head, 1.0)
    error = scale * (_FLOAT_ERROR * (1 + x) + 2 * doubt) + 2.0**-50
    unsettled = (np.abs(value - nearest) <= error) | (heads < _MIN_HEAD)
    # A scale of 0 gives 0 for every word, also where one happens to need more bits.
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
        # Boundaries are computed to a relative 2^-(bits + 20) at least, the interval is
        # exact.
        with mpmath.workprec(uniform.bits + _GUARD_BITS):
            low, high = uniform.ends()
            # An interval that reaches 0 leaves the magnitude without an upper end.
            if low == 0:
                continue
            middle = law.exact_inverse((low + high) / 2)
            size = int(mpmath.floor(middle * scale + offset))
            margin = mpmath.ldexp(1, -uniform.bits - _GUARD_BITS // 2)
            # The real exceeds a boundary exactly where the uniform is below its tail.
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
    # Divided first: squares of large scales stay far from overflow, and errors stay
    # relative to 1 + the exponent.
    std = np.sqrt(variance)
    # Beyond 1e4 the chance is below e^-1e7, and squares might overflow.
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
    # Every uniform is below 1, but the end of its interval may not be.
    if exponent == 0:
        return True
    while True:
        uniform.refine()
        # e^-x loses as many bits as x has before its point.
        extra = max(0, int(exponent)).bit_length()
        with mpmath.workprec(uniform.bits + _GUARD_BITS + extra):
            low, high = uniform.ends()
            chance = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            margin = chance * mpmath.ldexp(1, -uniform.bits - _GUARD_BITS // 2)
            if high <= chance - margin:
                return True
            if low >= chance + margin:
                return False
