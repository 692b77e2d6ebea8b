import numpy as np
import pytest

from flower_kmeans.algorithms import Block, Layout, Statistic
from flower_kmeans.privacy.release import Release

LAYOUT = Layout((Block("sums", (3, 2), 16), Block("counts", (3,), 16)))


def test_a_statistic_survives_flattening():
    assert (LAYOUT.n_words, Block("a", (), 16).size) == (9, 1)
    assert LAYOUT.names == ("sums", "counts")
    vector = np.arange(9, dtype=np.int64) - 4
    statistic = LAYOUT.unflatten(vector)
    np.testing.assert_array_equal(
        statistic.blocks["sums"], [[-4, -3], [-2, -1], [0, 1]]
    )
    np.testing.assert_array_equal(statistic.blocks["counts"], [2, 3, 4])
    np.testing.assert_array_equal(LAYOUT.flatten(statistic), vector)


def test_only_vectors_and_blocks_of_the_layout_pass():
    for vector in (np.zeros(8, np.int64), np.zeros(9), np.zeros((1, 9), np.int64)):
        with pytest.raises(ValueError, match="Expected 9 words of int64"):
            LAYOUT.unflatten(vector)
    blocks = {"sums": np.zeros((3, 2), np.int64), "counts": np.zeros(3)}
    with pytest.raises(ValueError, match="Expected block 'counts' as int64"):
        LAYOUT.flatten(Statistic(blocks))


def test_a_release_has_the_words_of_its_blocks_in_their_order():
    np.testing.assert_array_equal(LAYOUT.places["counts"], [6, 7, 8])
    both = Release("both", "gaussian", "l2", 1.0, ("counts", "sums"))
    np.testing.assert_array_equal(LAYOUT.words_of(both), [6, 7, 8, 0, 1, 2, 3, 4, 5])
