import numpy as np
import pytest

from flower_kmeans.algorithms import Block, LloydAlgorithm, Query, Statistic
from flower_kmeans.algorithms.base import algorithm_from_config
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
