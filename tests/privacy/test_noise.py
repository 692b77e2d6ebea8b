import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st
from saying import assert_within
from scipy import stats
from scipy.special import ndtri

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy import noise
from flower_kmeans.privacy.noise import (
    SAMPLERS,
    discrete_gaussian,
    discrete_gaussians,
    draw,
    draw_share,
    part_variance,
    sampler_name,
    share_variance,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.release import Release

pytestmark = pytest.mark.claim("guarantees", "9")

VECTORS = json.loads(Path(__file__).with_name("noise_vectors.json").read_text())
# Public keys: the goodness-of-fit tests below are repeatable. Each would pass for all
# but a millionth of all keys.
KEYS = [bytes([i]) * 32 for i in range(3)]
SIGNIFICANCE = 1e-6

GAUSSIAN = Release("sums", "gaussian", "l2", 3.0, ("sums",))
LAPLACE = Release("sums", "laplace", "l1", 3.0, ("sums",))


def argument(name, scale):
    return scale**2 if name.startswith("discrete") else scale


def sample(name, scale, size, key):
    return SAMPLERS[name](np.full(size, argument(name, scale)), Stream.from_key(key))


def mass(name, scale, limit):
    """Probabilities of -limit..limit, with both tails in the end cells."""
    n = np.arange(-limit, limit + 1)
    if name == "discrete-gaussian/2":
        wide = np.arange(
            -60 * math.ceil(scale) - limit, 60 * math.ceil(scale) + limit + 1
        )
        weight = np.exp(-((wide / scale) ** 2) / 2)
        below = np.cumsum(weight) / weight.sum()
        cdf = below[np.searchsorted(wide, n[:-1])]
    else:
        law = stats.norm if name == "rounded-gaussian/1" else stats.laplace
        cdf = law.cdf((n[:-1] + 0.5) / scale)
    return np.diff(np.concatenate([[0.0], cdf, [1.0]]))


def fit(draws, probability, limit):
    observed = np.bincount(
        np.clip(draws, -limit, limit) + limit, minlength=2 * limit + 1
    )
    return stats.chisquare(observed, probability * draws.size).pvalue


def accepted(what, p_value):
    sentence = f"{what}: under its own law the draws have the p-value"
    assert_within(sentence, p_value, least=SIGNIFICANCE, strict=True)


def rejected(what, p_value, factor):
    sentence = f"{what}: under {factor:.3f} times the scale the draws have the p-value"
    assert_within(sentence, p_value, most=1e-12, strict=True)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: v["sampler"])
def test_vectors(vector):
    stream = Stream.from_key(bytes.fromhex(VECTORS["key"]))
    values = np.array([float.fromhex(text) for text in vector["argument"]])
    drawn = SAMPLERS[vector["sampler"]](values, stream)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == vector["noise"]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.3])
@pytest.mark.parametrize("key", KEYS)
def test_every_small_integer_has_its_probability(name, scale, key):
    limit = math.ceil(4 * scale)
    draws = sample(name, scale, 50_000, key)
    accepted(f"{name} of scale {scale}", fit(draws, mass(name, scale, limit), limit))
    for factor in (2 / 3, 3 / 2):
        p_value = fit(draws, mass(name, scale * factor, limit), limit)
        rejected(f"{name} of scale {scale}", p_value, factor)


def assert_scale(draws, std, law=stats.norm):
    """Assert that draws have the scale, and neither 2/3 nor 3/2 of it.

    Spread within the unit cell, draws at these scales are continuous enough for this
    test: the discrete Gaussian's cells differ by less than a thousandth.
    """
    spread = draws + np.random.default_rng(0).uniform(-0.5, 0.5, draws.size)
    what = f"noise of scale {std} with the deviation {np.std(draws):.4g}"
    accepted(what, stats.kstest(spread / std, law.cdf).pvalue)
    for factor in (2 / 3, 3 / 2):
        rejected(what, stats.kstest(spread / (std * factor), law.cdf).pvalue, factor)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scale", [10.0, 5 * 2.0**16])
def test_scale_is_accepted_and_two_thirds_and_three_halves_are_not(name, scale):
    law = stats.laplace if name == "rounded-laplace/1" else stats.norm
    assert_scale(sample(name, scale, 20_000, KEYS[0]), scale, law)


@pytest.mark.parametrize("name", SAMPLERS)
def test_coordinates_and_calls_are_independent(name):
    stream = Stream.from_key(KEYS[1])
    values = np.full(20_000, argument(name, 1000.0))
    first, second = SAMPLERS[name](values, stream), SAMPLERS[name](values, stream)
    bound = 5 / math.sqrt(values.size)
    for one, other in [
        (first, second),
        (first[:-1], first[1:]),
        (abs(first), abs(second)),
    ]:
        assert abs(np.corrcoef(one, other)[0, 1]) < bound


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("scale", [0.3, 7.0, 2.0**20, 2.0**36])
def test_the_fast_path_changes_nothing(name, scale, monkeypatch):
    fast = sample(name, scale, 300, KEYS[2])
    # No draw is far enough from a boundary any more: all are settled exactly.
    monkeypatch.setattr(noise, "_FLOAT_ERROR", 1e9)
    np.testing.assert_array_equal(sample(name, scale, 300, KEYS[2]), fast)


def test_a_wrong_fast_path_would_be_seen(monkeypatch):
    monkeypatch.setattr(noise, "_FLOAT_ERROR", 1e9)
    monkeypatch.setattr(
        noise._Uniform, "ends", lambda self: (mpmath.mpf(0.25), mpmath.mpf(0.25))
    )
    assert set(np.abs(sample("rounded-gaussian/1", 1000.0, 50, KEYS[0]))) == {674}


@pytest.mark.parametrize("law", [noise._GAUSSIAN, noise._LAPLACE])
def test_float64_stays_far_within_its_error_bound(law):
    heads = np.concatenate(
        [2.0 ** np.linspace(20, 63, 400), 2.0**63 - 2.0 ** np.linspace(10, 62, 200)]
    )
    tails = (np.floor(heads) + 0.5) * 2.0**-64
    with mpmath.workdps(40):
        exact = [law.exact_inverse(mpmath.mpf(float(tail))) for tail in tails]
        error = [
            abs(float(x - e)) / (1 + float(e))
            for x, e in zip(law.inverse(tails), exact, strict=True)
        ]
    assert max(error) < noise._FLOAT_ERROR / 8


def test_a_straddled_boundary_takes_more_words():
    # The uniform's first 128 bits are those of the tail beyond 1/2, where rounding goes
    # from 0 to 1; only the bits after them decide.
    with mpmath.workprec(400):
        tail = noise._gaussian_tail(mpmath.mpf(0.5))
        bits = int(mpmath.floor(mpmath.ldexp(tail, 256)))
    head, *words = [bits >> shift & (2**64 - 1) for shift in (192, 128, 64, 0)]

    def settle(last):
        more = iter([words[0], words[1] + last, 0, 0])
        uniform = noise._Uniform(head, 64, more)
        size = noise._settled_magnitude(noise._GAUSSIAN, 1.0, 0.5, uniform)
        return size, uniform.bits

    # A smaller tail lies farther out.
    assert settle(-1) == (1, 192)
    assert settle(1) == (0, 192)


@pytest.mark.parametrize("law", [noise._GAUSSIAN, noise._LAPLACE])
@pytest.mark.parametrize("offset", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1e-300, 0.1, 1.0, 1000.0])
def test_words_of_zeros_are_settled(law, offset, scale):
    words = [0, 0, 2**40, 5, 6]
    size = noise._settled_magnitude(
        law, scale, offset, noise._Uniform(0, 64, iter(words))
    )
    with mpmath.workprec(400):
        x = law.exact_inverse(mpmath.ldexp(2**40, -256))
        assert size == int(mpmath.floor(x * scale + offset))


@given(
    scales=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 2.0**34)), max_size=30),
    name=st.sampled_from(sorted(SAMPLERS)),
)
@settings(max_examples=50, deadline=None)
def test_shapes_types_zeros_and_determinism(scales, name):
    values = np.array([argument(name, scale) for scale in scales], dtype=np.float64)
    drawn = SAMPLERS[name](values, Stream.from_key(KEYS[0]))
    assert (drawn.shape, drawn.dtype) == (values.shape, np.int64)
    assert not drawn[values == 0].any()
    np.testing.assert_array_equal(
        drawn, SAMPLERS[name](values, Stream.from_key(KEYS[0]))
    )


@pytest.mark.parametrize("name", ["rounded-gaussian/1", "rounded-laplace/1"])
def test_the_rest_of_a_draw_does_not_depend_on_one_coordinates_scale(name):
    values = np.full(200, 100.0)
    other = np.where(np.arange(200) == 7, 2.0**50, values)
    one, two = (SAMPLERS[name](v, Stream.from_key(KEYS[0])) for v in (values, other))
    np.testing.assert_array_equal(np.delete(one, 7), np.delete(two, 7))


def test_draw_is_the_multiplier_times_the_unit():
    units = np.array([0.0, 1.0, 5.0, 2.0**16] * 2000)
    for release in (GAUSSIAN, LAPLACE):
        drawn = draw(release, units, Stream.from_key(KEYS[0]))
        expected = SAMPLERS[sampler_name(release)](
            3.0 * units, Stream.from_key(KEYS[0])
        )
        np.testing.assert_array_equal(drawn, expected)
        assert sampler_name(release) == f"rounded-{release.mechanism}/1"
        assert sampler_name(release, shared=True) == "discrete-gaussian/2"


@pytest.mark.claim("CONTRIBUTING", "no-seed-reaches-keys")
@pytest.mark.claim("guarantees", "9")
def test_the_same_parameters_twice_give_other_noise():
    one, two = (draw(GAUSSIAN, np.full(50, 1000.0), Stream.fresh()) for _ in range(2))
    assert not np.array_equal(one, two)
    exact = replace(GAUSSIAN, noise_multiplier=0.0)  # which none has without privacy
    assert not draw(exact, np.full(9, 1000.0), Stream.fresh()).any()
    assert not draw_share(exact, np.full(9, 1000.0), 3, Stream.fresh()).any()


@pytest.mark.claim("guarantees", "41")
def test_shares_add_up_to_the_planned_noise():
    """Planned standard deviation: 3 * 20. A sum of discrete Gaussians is one, up to 7e-17."""
    units = np.full(20_000, 20.0)
    total = sum(
        draw_share(GAUSSIAN, units, 5, Stream.from_key(bytes([i]) * 32))
        for i in range(5)
    )
    assert_scale(total, 60)


@pytest.mark.claim("guarantees", "43")
@pytest.mark.parametrize("numbers", [(15, 16, 17, 18, 19), (1, 19), (799, 845, 999)])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_of_a_share_is_never_narrower_than_planned(numbers, seed):
    """In exact arithmetic, for every number of parts that are removed; and hardly wider."""
    units = 10 ** np.random.default_rng(seed).uniform(-3, 12, 200)
    scale = [Fraction(GAUSSIAN.noise_multiplier) * Fraction(unit) for unit in units]
    made = {number: share_variance(GAUSSIAN, units, number) for number in (1, *numbers)}
    assert all(
        x >= std * std for x, std in zip(map(Fraction, made[1]), scale, strict=True)
    )
    whole = [Fraction(x) * (1 + Fraction(1, 10**11)) for x in made[1]]
    base = [Fraction(x) for x in made[numbers[-1]]]
    parts = [
        [Fraction(x) for x in part_variance(GAUSSIAN, units, fewer, more)]
        for fewer, more in itertools.pairwise(numbers)
    ]
    for removed, number in enumerate(numbers):
        left = [sum(kept) for kept in zip(base, *parts[removed:], strict=True)]
        assert all(
            kept >= Fraction(x) for kept, x in zip(left, made[number], strict=True)
        )
        assert all(x * number >= std * std for x, std in zip(left, scale, strict=True))
        assert all(
            kept * number <= most for kept, most in zip(left, whole, strict=True)
        )


@pytest.mark.claim("guarantees", "43")
def test_a_share_in_parts_has_the_law_of_a_share():
    """At the least widths: two grid units for a part, and for what is left when it is removed."""
    unit = np.full(20_000, math.sqrt(4 * 8) / 3)
    rest = draw_share(GAUSSIAN, unit, 8, Stream.from_key(KEYS[0]))
    part = discrete_gaussian(
        part_variance(GAUSSIAN, unit, 4, 8), Stream.from_key(KEYS[1])
    )
    limit = 12
    for draws, std in [(rest, 2.0), (part, 2.0), (rest + part, 8**0.5)]:
        what = f"a share, or a part of it, of deviation {std:.4g}"
        accepted(what, fit(draws, mass("discrete-gaussian/2", std, limit), limit))
        for factor in (2 / 3, 3 / 2):
            wrong = mass("discrete-gaussian/2", std * factor, 6)
            rejected(what, fit(draws, wrong, 6), factor)
    assert not part_variance(GAUSSIAN, np.zeros(9), 4, 8).any()


@pytest.mark.parametrize(
    ("release", "units", "shares", "message"),
    [
        (LAPLACE, [1000.0], 2, "must be Gaussian"),
        *((GAUSSIAN, [1000.0], shares, "'shares'") for shares in (0, -1, 2.0, True)),
        *(
            (GAUSSIAN, [unit, 100.0], 10, "at least 2 grid units")
            for unit in (2.0, 1e-200)
        ),
        *(
            (GAUSSIAN, [1e3, unit], 2, "must be within")
            for unit in (-1.0, math.nan, 2.0**120)
        ),
    ],
)
def test_shares_are_refused(release, units, shares, message):
    # 3 * 2 / sqrt(9) is exactly the 2 that is enough, 3 * 2 / sqrt(10) is not.
    draw_share(GAUSSIAN, np.array([2.0, 0.0]), 9, Stream.fresh())
    with pytest.raises(ConfigurationError, match=message):
        draw_share(release, np.array(units), shares, Stream.fresh())


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 2.0**120])
def test_scales_out_of_range(value):
    for call in (
        *SAMPLERS.values(),
        lambda units, stream: draw(GAUSSIAN, units, stream),
    ):
        with pytest.raises(ConfigurationError, match="must be within"):
            call(np.array([1.0, value]), Stream.fresh())
    with pytest.raises(ConfigurationError, match="one dimension"):
        draw(GAUSSIAN, np.ones((2, 2)), Stream.fresh())
    for name in SAMPLERS:  # the largest scale fits int64
        assert 2.0**53 < np.abs(sample(name, 2.0**55, 20, KEYS[0])).mean() < 2.0**57
    # the farthest that the fast path can reach
    assert -ndtri(2.0**-44) * 2.0**55 < 2.0**63


@pytest.mark.default_cases("1.4210854715202004e-14")
@pytest.mark.parametrize("error", [noise._FLOAT_ERROR, 1e9])
def test_draws_do_not_depend_on_how_many_are_drawn_at_once(error, monkeypatch):
    """Of many streams, of each stream, and settled exactly: the same noise and words."""
    variances = np.exp2(np.random.default_rng(0).uniform(-6, 110, (40, 3, 5)))
    variances[::4, 1] = 0.0

    def drawn(split):
        streams = [
            [Stream.from_key(bytes([i, j]) * 16) for j in range(3)] for i in range(40)
        ]
        noises = [
            [discrete_gaussian(*pair) for pair in zip(rows, row, strict=True)]
            if split
            else discrete_gaussians(rows, row)
            for rows, row in zip(variances, streams, strict=True)
        ]
        return noises, [[stream.position for stream in row] for row in streams]

    in_arrays, positions = drawn(split=False)
    monkeypatch.setattr(noise, "_FLOAT_ERROR", error)
    for split in (False, True):
        found = drawn(split)
        np.testing.assert_array_equal(found[0], in_arrays)
        assert found[1] == positions
    assert discrete_gaussians(np.zeros((0, 4)), []).shape == (0, 4)


def specified(variances, key):
    """Return noise shares as docs/protocol.md has them, with two words for every uniform."""

    def words(block):
        encryptor = Cipher(AES256(key), CTR(block)).encryptor()
        while True:
            yield int.from_bytes(encryptor.update(bytes(8)), "little")

    def uniform(head, position):
        more = next(words((position + 1).to_bytes(8, "big") + bytes(8)))
        return mpmath.ldexp(head << 64 | more, -128)

    main, positions = words(bytes(16)), itertools.count(step=2)
    values = [0 if v == 0 else None for v in variances]
    while None in values:
        open_ones = [i for i, value in enumerate(values) if value is None]
        for i in np.repeat(open_ones, 1 + 64 // len(open_ones)):
            first, second, at = next(main), next(main), next(positions)
            v, t = mpmath.mpf(variances[i]), int(np.sqrt(variances[i])) + 1
            negative, size = (
                first & 1,
                int(mpmath.floor(-t * mpmath.log(2 * uniform(first >> 1, at)))),
            )
            chance = mpmath.exp(-((size - v / t) ** 2) / (2 * v))
            accepted = uniform(second, at + 1) < chance and not (negative and size == 0)
            if accepted and values[i] is None:
                values[i] = -size if negative else size
    return values


@pytest.mark.parametrize("n", [1, 3, 40, 70])
def test_noise_shares_are_those_of_the_protocols_text(n):
    rng = np.random.default_rng(n)
    variances = np.where(rng.random(n) < 0.8, np.exp2(rng.uniform(0, 80, n)), 0.0)
    variances[0] = 2.0**40
    key = rng.bytes(32)
    with mpmath.workprec(256):
        expected = specified(variances.tolist(), key)
    assert discrete_gaussian(variances, Stream.from_key(key)).tolist() == expected
