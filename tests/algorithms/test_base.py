import math

import numpy as np
import pytest

from flower_kmeans.algorithms import Block, LloydAlgorithm, Query, Statistic
from flower_kmeans.algorithms.base import algorithm_from_config, require_capacity
from flower_kmeans.domain import Box
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget

ALGORITHM = LloydAlgorithm(3, Box([0, 0], [1, 1]), PrivacyBudget(None))


def test_a_block_knows_its_size():
    assert Block("a", (3, 4), 16).size == 12
    assert Block("a", (), 16).size == 1


def test_a_statistic_survives_flattening():
    assert ALGORITHM.words(1) == 9
    vector = np.arange(9, dtype=np.int64) - 4
    statistic = ALGORITHM.unflatten(vector, 1)
    np.testing.assert_array_equal(statistic.blocks["sums"], [[-4, -3], [-2, -1], [0, 1]])
    np.testing.assert_array_equal(statistic.blocks["counts"], [2, 3, 4])
    np.testing.assert_array_equal(ALGORITHM.flatten(statistic, 1), vector)


@pytest.mark.parametrize("vector", [np.zeros(8, np.int64), np.zeros(9), np.zeros((1, 9), np.int64)])
def test_only_a_vector_of_the_layout_is_unflattened(vector):
    with pytest.raises(ValueError, match="Expected 9 words of int64"):
        ALGORITHM.unflatten(vector, 1)


def test_only_blocks_of_the_layout_are_flattened():
    blocks = {"sums": np.zeros((3, 2), np.int64), "counts": np.zeros(3)}
    with pytest.raises(ValueError, match="Expected block 'counts' as int64"):
        ALGORITHM.flatten(Statistic(blocks), 1)


def test_a_question_may_be_nothing_but_its_round():
    assert Query(3).arrays == {}


@pytest.mark.parametrize("config", [{}, {"name": "k-means"}, {"name": 3}, {"name": ["lloyd"]}])
def test_unknown_algorithms_are_refused(config):
    with pytest.raises(ConfigurationError, match="name of an algorithm in"):
        algorithm_from_config(config, ALGORITHM.domain, ALGORITHM.budget)


@pytest.mark.parametrize("bits", [31, 62, 63])
def test_capacity_is_exact(bits):
    require_capacity(2**bits - 1, 2**bits)
    require_capacity(0, 2**bits)
    with pytest.raises(ConfigurationError, match=rf"below 2\^{bits},.*up to 2\^{bits}\.0 instead"):
        require_capacity(2**bits, 2**bits)


def test_words_have_64_bits_unless_a_limit_is_given():
    require_capacity(2**63 - 1)
    with pytest.raises(ConfigurationError):
        require_capacity(2**63)


def test_the_refusal_shows_the_numbers():
    with pytest.raises(ConfigurationError, match=r"2\^31.*2\^40\.0.*n_records=7"):
        require_capacity(2.0**40, 2**31, "It follows from n_records=7.")


@pytest.mark.parametrize("bound", [math.nan, math.inf, -1.0])
def test_meaningless_bounds_are_refused(bound):
    with pytest.raises(ConfigurationError, match=str(bound)):
        require_capacity(bound)
