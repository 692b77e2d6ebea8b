"""Random numbers of given laws: how exact, how distributed, and the same bits everywhere."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flower_kmeans.algorithms.numerics.initialization import public_words, random_words
from flower_kmeans.algorithms.numerics.portable import (
    LEVY_BETA,
    LEVY_SCALE,
    exponential,
    levy_steps,
    levy_table,
    logarithm,
    normals,
    quarter_sine,
    uniforms,
)

pytestmark = pytest.mark.claim("guarantees", "28")

# A statistic of Kolmogorov and Smirnov exceeds this with a probability of 2 exp(-2 n
# x^2) = 1e-10.
N = 200_000
FAR = math.sqrt(math.log(2e10) / (2 * N))


@given(st.floats(1e-300, 1e300), st.floats(-700, 700), st.floats(0, 1))
def test_functions_are_those_of_the_mathematics(positive, power, fraction):
    log, exp, sine = (
        function(np.array([value]))[0]
        for function, value in (
            (logarithm, positive),
            (exponential, power),
            (quarter_sine, fraction),
        )
    )
    assert log == pytest.approx(math.log(positive), rel=2e-15, abs=2e-16)
    assert exp == pytest.approx(math.exp(power), rel=(1 + abs(power)) * 1e-15)
    assert sine == pytest.approx(math.sin(math.pi / 2 * fraction), rel=1e-14)


def test_the_scale_is_that_of_the_paper():
    b = LEVY_BETA
    top = math.gamma(1 + b) * math.sin(math.pi * b / 2)
    bottom = math.gamma((1 + b) / 2) * b * 2 ** ((b - 1) / 2)
    assert pytest.approx((top / bottom) ** (1 / b), rel=1e-12) == LEVY_SCALE


def test_uniform_and_normal_numbers_have_their_laws():
    ends = uniforms(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0 < ends[0] == 1 - ends[1] < 1e-9
    assert np.isfinite(
        normals(np.array([0, 1, 2**64 - 1, 2**32 - 1], dtype=np.uint64))
    ).all()
    words = random_words(public_words(1), N)
    assert stats.kstest(uniforms(words), "uniform").statistic < FAR
    assert stats.kstest(normals(words), "norm").statistic < FAR


def mantegna(n):
    """Mantegna's law as the paper draws it, from another generator."""
    rng = np.random.default_rng(3)
    u, v = rng.normal(0, LEVY_SCALE, n), rng.normal(size=n)
    return u / np.abs(v) ** (1 / LEVY_BETA)


def test_steps_have_the_law_of_the_paper():
    found = levy_steps(random_words(public_words(4), N // 4))
    assert found.shape == (N,)
    # Two samples of N: the same bound as for one of N / 2.
    bound = FAR * math.sqrt(2)
    expected = mantegna(N)
    assert stats.ks_2samp(found, expected).statistic < bound
    for other in (
        1.2 * expected,
        expected * (np.abs(expected) < 3),
        stats.norm.rvs(size=N, random_state=0),
    ):
        assert stats.ks_2samp(found, other).statistic > bound  # it has the power
    # Far out the tail is that of a stable law.
    sizes = np.abs(mantegna(1_000_000))
    for far in (5.0, 20.0):
        rate = np.mean(np.abs(levy_table()) > far)
        assert rate == pytest.approx(np.mean(sizes > far), rel=0.15)


def digest(array):
    return hashlib.sha256(
        np.ascontiguousarray(array).astype("<f8").tobytes()
    ).hexdigest()[:16]


def test_they_are_the_same_bits_everywhere():
    """Made once; another processor, NumPy or libm must make the same."""
    words = random_words(public_words(2**64 * 5 + 7), 1000)
    assert digest(levy_table()) == "50c998c17eae676e"
    assert digest(normals(words)) == "6a409f759eaf2ffc"
    assert digest(levy_steps(words)) == "cba01ff372c79c3a"
