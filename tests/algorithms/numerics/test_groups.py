import numpy as np
import pytest

from flower_kmeans.algorithms.numerics.groups import Groups

RNG = np.random.default_rng


@pytest.mark.parametrize("n", [0, 1, 5, 3_000])
@pytest.mark.parametrize("k", [1, 4, 70])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("columns", [(), (1,), (3,), (4,), (8,), (9,)])
def test_sums_are_those_of_each_group_alone(n, k, dtype, columns):
    rng = RNG([n, k])
    labels = rng.integers(0, k, n, dtype=np.int32)
    values = rng.integers(-(2**40), 2**40, (n, *columns)).astype(dtype)
    found = Groups(labels, k).sums(values)
    expected = [values[labels == j].sum(axis=0) for j in range(k)]
    np.testing.assert_array_equal(
        found, np.array(expected, dtype).reshape(found.shape), True
    )
    assert found.shape == (k, *columns)
    assert found.dtype == dtype


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("n", [3, 3_000])
def test_integers_beyond_float64_are_exact(n, columns):
    values = np.full((n, columns), 2**50 + 1)
    expected = [n * (2**50 + 1)] * columns
    assert Groups(np.zeros(n, np.int64), 1).sums(values).tolist() == [expected]


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("n", [3, 3_000])
def test_labels_may_change_in_place(n, columns):
    labels = np.zeros(n, np.int32)
    groups, ones = Groups(labels, 2), np.ones((n, columns))
    assert groups.sums(ones)[:, -1].tolist() == [n, 0]
    labels[1:] = 1
    assert groups.sums(ones)[:, -1].tolist() == [1, n - 1]
