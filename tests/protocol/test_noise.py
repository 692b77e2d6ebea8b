import numpy as np
import pytest
from saying import assert_within

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import LloydAlgorithm, SuLloydAlgorithm
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import check_shares, server_noise

BOX = Box([0.0], [1.0])


def _algorithm(epsilon=1.0, d=2, **options):
    box, budget = Box([0.0] * d, [1.0] * d), PrivacyBudget(epsilon, 1e-10)
    return FastLloydAlgorithm.planned(3, box, budget, n_records=500, **options)


LAPLACE = SuLloydAlgorithm.planned(
    2, BOX, PrivacyBudget(1.0, 0.0), n_records=100, n_rounds=2
)


@pytest.mark.claim("guarantees", "42")
@pytest.mark.parametrize(
    ("algorithm", "shares", "match"),
    [
        # Shares of two grid units are wide enough: their sum is as private as it was
        # planned.
        *((_algorithm(fraction_bits=bits, n_rounds=3), 4, None) for bits in (4, 8)),
        (_algorithm(1e-3, d=1, n_rounds=2), 4, None),
        (
            _algorithm(1e-9, d=1, n_rounds=2),
            4,
            r"at most 2\^40 grid units.*in 4 shares",
        ),
        (_algorithm(200.0, fraction_bits=1, n_rounds=2), 1000, "grid units"),
        (LAPLACE, 2, "Gaussian"),
    ],
    ids=["4 bits", "8 bits", "wide", "too wide", "too narrow", "Laplace"],
)
def test_shares_that_are_missing_too_narrow_or_too_wide_are_refused(
    algorithm, shares, match
):
    if match is None:
        check_shares(algorithm, algorithm.plan(), shares)
        return
    with pytest.raises(ConfigurationError, match=match):
        check_shares(algorithm, algorithm.plan(), shares)


def test_checking_shares_draws_a_few_for_all(monkeypatch):
    """A run document costs a client little, however many words and rounds it describes."""
    drawn = []
    monkeypatch.setattr(
        "flower_kmeans.protocol.noise.draw_share",
        lambda release, units, *_: drawn.append(units),
    )
    algorithm = _algorithm(d=2000, n_rounds=200)
    check_shares(algorithm, algorithm.plan(), 4)
    assert 2 <= sum(map(len, drawn)) <= 8
    extremes = {float(x) for units in drawn for x in units}
    for number in (1, 2, 200):
        units = sensitivities(algorithm, number)
        assert {float(units.min()), float(units.max())} <= extremes


def test_the_noise_follows_the_layout():
    """Every word gets noise of its own block's scale: counts and sums are not exchanged."""
    algorithm = _algorithm(n_rounds=2)
    draws = np.array(
        [
            server_noise(algorithm, algorithm.plan(), 2, Stream.fresh())
            for _ in range(2000)
        ]
    )
    sums, counts = algorithm.plan().rounds[1]
    units = sensitivities(algorithm, 2)
    multiplier = np.repeat([sums.noise_multiplier, counts.noise_multiplier], [9, 3])
    ratio = draws.std(axis=0) / (multiplier * units)
    # A sample deviation over 2,000 draws is within 10 % of the true one but for p <
    # 1e-9.
    what = "the deviation of a word's noise, over the planned one, is"
    assert_within(what, ratio, least=0.9, most=1.1, strict=True)


def test_no_noise_without_privacy():
    algorithm = LloydAlgorithm.planned(2, BOX, PrivacyBudget(None))
    noise = server_noise(algorithm, algorithm.plan(), 1, Stream.fresh())
    assert not noise.any()
    assert noise.shape == (algorithm.layout(1).n_words,)
