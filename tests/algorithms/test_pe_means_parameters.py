"""Parameters of PE-means: checks, the paper's heuristics, the cap, and the run document."""

import math
from typing import Any

import numpy as np
import pytest

from flower_kmeans.algorithms import (
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
    algorithm_from_config,
)
from flower_kmeans.algorithms.lloyd import MAX_PACKING, MAX_WORDS
from flower_kmeans.algorithms.pe_means import NOTES
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.protocol.wire import decode, encode

BUDGET = PrivacyBudget(1.0)
CLIENTS = PrivacyBudget(1.0, unit="client")


def ball(d):
    return Ball(1.0, [0.0] * d)


def build(k=3, d=4, budget=BUDGET, **options):
    cls = options.pop("cls", PEMeansAlgorithm)
    return cls(k, options.pop("domain", ball(d)), budget, **{"n_records": 1000, **options})


# ----------------------------------------------------------------- the paper's heuristics


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("d", [1, 2, 16, 128])
def test_rounds_are_those_of_the_paper(d, epsilon):
    rounds = int(4 * max(1, epsilon) * math.sqrt(d))
    assert build(d=d, budget=PrivacyBudget(epsilon)).n_rounds == rounds
    if d > 16:
        projected = build(d=d, cls=HDPEMeansAlgorithm, budget=PrivacyBudget(epsilon))
        of_16 = int(16 * max(1, epsilon))
        assert (projected.n_vote_rounds, projected.n_rounds) == (of_16 - 2, of_16 - 1)
        # Two rounds less of votes pay for the sums and the counts: of_16 releases in all.
        multiplier = projected.plan().rounds[0][0].noise_multiplier
        mu = mu_of_budget(epsilon, projected.budget.delta)
        assert multiplier == pytest.approx(math.sqrt(of_16) / mu)


def test_rounds_of_a_large_epsilon_are_not_more_than_a_run_can_have():
    assert build(d=100, budget=PrivacyBudget(25.0)).n_rounds == 1000
    assert build(d=100, budget=PrivacyBudget(30.0)).n_rounds == 1000
    assert build(d=100, budget=PrivacyBudget(24.0)).n_rounds == 960


def test_without_privacy_rounds_are_those_of_epsilon_1():
    assert build(d=16, budget=PrivacyBudget(None)).n_rounds == 16


@pytest.mark.parametrize(("n", "expected"), [(5, 4), (19, 4), (25, 5), (1000, 200), (5000, 1000)])
def test_variations_are_those_of_the_paper(n, expected):
    algorithm = build(2, n_records=n)
    assert algorithm.n_variations == algorithm.most_variations == expected
    assert not algorithm.notes(algorithm.initial_state())
    assert algorithm.words(1) == algorithm.n_start == 2 * expected
    assert {algorithm.words(t) for t in range(2, 9)} == {2 * (expected + 1)}


def test_without_a_number_of_records_variations_fill_the_cap():
    algorithm = build(10, budget=PrivacyBudget(None), n_records=None, max_candidates=500)
    assert algorithm.n_variations == 49
    assert not algorithm.notes(algorithm.initial_state())


def test_delta_is_that_of_the_units():
    assert build(n_records=10**5).budget.delta == 1e-7
    many = build(budget=CLIENTS, n_clients=10**5, n_records=10**6)
    assert (many.budget.delta, many.plan().n_clients) == (1e-7, 10**5)


# ----------------------------------------------------------------- the cap


def test_the_cap_binds_and_says_so():
    free = build(10, n_records=1000, max_candidates=2010)
    assert free.notes(free.initial_state()) == ()
    for cap, variations in ((2009, 199), (1000, 99), (20, 1)):
        algorithm = build(10, n_records=1000, max_candidates=cap)
        assert (algorithm.n_variations, algorithm.most_variations) == (200, variations)
        assert algorithm.words(2) == 10 * (variations + 1) <= cap
        assert algorithm.words(1) <= cap
        assert algorithm.notes(algorithm.initial_state()) == (NOTES[0],)


@pytest.mark.parametrize("cap", [19, 0, MAX_WORDS + 1])
def test_a_cap_beyond_a_message_or_below_two_populations_is_refused(cap):
    with pytest.raises(ConfigurationError, match=rf"max_candidates in \[20, {MAX_WORDS}\]"):
        build(10, max_candidates=cap)


def test_many_columns_start_from_fewer_candidates():
    few, many = (build(4, d=d, n_records=10**6, max_candidates=2**20) for d in (2, 800))
    for algorithm, d in ((few, 2), (many, 800)):
        assert algorithm.n_start == math.isqrt(MAX_PACKING // d) < algorithm.words(2)
    projected = build(4, d=800, n_records=10**6, max_candidates=2**20, cls=HDPEMeansAlgorithm)
    assert projected.n_start == math.isqrt(MAX_PACKING // 16)


def test_the_first_population_has_a_candidate_for_every_cluster():
    assert math.isqrt(MAX_PACKING // 1000) < 3000
    assert build(3000, d=1000, n_records=10**6).n_start == 3000
    assert build(5, n_variations=1).n_start == 5


def test_projected_candidates_lie_in_a_ball_of_one_and_a_half_radii():
    """On a grid whose coordinates have one bit more than those of the records."""
    narrow = build(d=20, cls=HDPEMeansAlgorithm)
    assert (narrow.projection.bits, narrow.projection.exponent) == (17, 16)
    assert narrow.space.half_widths == (2**17,) * 16
    assert narrow.space.radius == 3 * 2**15
    # A box of 400 columns has D = 20, and 4 bits less for its fractions.
    domain = Box([-1] * 400, [1] * 400)
    wide = build(d=400, cls=HDPEMeansAlgorithm, domain=domain)
    assert (wide.projection.bits, wide.projection.exponent) == (17, 12)
    assert wide.space.half_widths == (2**17,) * 16
    assert wide.space.radius == 30 * 2**12


def test_a_run_of_128_times_a_million_words_is_the_longest():
    options = {"n_records": 10**8, "max_candidates": 2**20}
    longest = build(4, d=1, n_vote_rounds=128, **options)
    assert longest.words(2) == 2**20
    assert sum(map(longest.words, range(1, 129))) < 2**27
    with pytest.raises(ConfigurationError, match="in 129 rounds"):
        build(4, d=1, n_vote_rounds=129, **options)


def test_rounds_and_candidates_are_bounded_together():
    with pytest.raises(ConfigurationError, match="n_rounds and max_candidates"):
        build(4, n_records=10**8, max_candidates=MAX_WORDS, n_vote_rounds=100)


# ----------------------------------------------------------------- the document


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("cls", [PEMeansAlgorithm, HDPEMeansAlgorithm])
def test_algorithms_survive_the_document(cls, unit):
    clients = {"n_clients": 20, "clips": {"votes": 2.5}} if unit == "client" else {}
    algorithm = build(
        4, 20, PrivacyBudget(1.0, unit=unit), cls=cls, seed=9, n_vote_rounds=5, **clients
    )
    config = decode(encode(algorithm.to_config()), dict[str, Any])
    again = algorithm_from_config(config, algorithm.domain, algorithm.budget)
    assert (type(again), again, hash(again)) == (cls, algorithm, hash(algorithm))
    assert again.plan() == algorithm.plan()
    assert again != build(4, 20, PrivacyBudget(1.0, unit=unit), cls=cls, seed=8, **clients)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"n_variations": "auto"},
        {"n_variations": 2.0},
        {"n_vote_rounds": True},
        {"max_candidates": 1},
        {"seed": -1},
        {"clip": "0x1p+0"},
        {"clips": {}},
        {"name": "pe-mean"},
    ],
)
def test_documents_with_other_fields_are_refused(change):
    config = {**build().to_config(), **change}
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config(config, ball(4), BUDGET)


@pytest.mark.parametrize("change", [{"clips": 5}, {"clips": {"votes": 5}}, {"clips": {"x": "1"}}])
def test_clips_of_a_document_are_checked(change):
    algorithm = build(budget=CLIENTS, n_clients=10)
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config({**algorithm.to_config(), **change}, ball(4), algorithm.budget)


@pytest.mark.parametrize("field", sorted(set(build().to_config()) - {"n_records"}))
def test_documents_without_a_field_are_refused(field):
    config = build().to_config()
    del config[field]
    with pytest.raises(ConfigurationError):
        algorithm_from_config(config, ball(4), BUDGET)


# ----------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_records": None}, "n_records is required"),
        ({"n_records": 2}, "n_clusters of at most"),
        ({"n_vote_rounds": 0}, "n_vote_rounds"),
        ({"n_vote_rounds": "some"}, "n_vote_rounds as an integer or 'auto'"),
        ({"n_variations": 0}, "n_variations"),
        ({"n_variations": "many"}, "n_variations as an integer or 'auto'"),
        ({"clips": {"votes": 1.0}}, "clips=None unless"),
        ({"clip": 1.0}, "clip=None unless"),
        ({"n_clients": 5}, "n_clients=None unless"),
        ({"seed": -1}, "seed"),
        ({"fraction_bits": 26}, "fraction_bits"),
        ({"domain": ball(9), "fraction_bits": 25}, "too fine for 9 columns"),
        ({"n_records": 2**52}, "n_records=4503599627370496"),
    ],
)
def test_parameters_out_of_range_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        build(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "n_clients is required"),
        ({"n_clients": 2**53}, "n_clients in"),
        ({"n_clients": 5, "clips": {"vote": 1.0}}, "releases in"),
        ({"n_clients": 5, "clips": {"lift-sums": 1.0}}, "releases in"),
        ({"n_clients": 5, "clips": {"votes": 0.0}}, "clips between"),
        ({"n_clients": 5, "clips": {"votes": 1e-9}}, "one step of the grid"),
    ],
)
def test_clips_out_of_range_are_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        build(budget=CLIENTS, **options)


def test_a_seed_is_any_integer_below_2_to_the_53():
    assert (build().seed, build(seed=2**53 - 1).seed) == (0, 2**53 - 1)
    with pytest.raises(ConfigurationError, match="seed in"):
        build(seed=2**53)
    assert build().fraction_bits == 16


@pytest.mark.parametrize("name", ["n_vote_rounds", "n_variations", "max_candidates"])
def test_numbers_must_be_integers(name):
    with pytest.raises(ConfigurationTypeError, match=name):
        build(**{name: 5.5})


def test_many_centroids_of_many_columns_are_refused():
    assert build(2048, d=2047, n_records=10**6).words(2) < 2048 * 2048 == MAX_WORDS
    with pytest.raises(ConfigurationError, match=r"k \(d \+ 1\) .*Got n_clusters=2049 and 2047"):
        build(2049, d=2047, n_records=10**6)
    with pytest.raises(ConfigurationError, match=r"k \(d \+ 1\)"):
        build(3000, domain=Box(np.zeros(1600), np.ones(1600)), n_records=10**6)
