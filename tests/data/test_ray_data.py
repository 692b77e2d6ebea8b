"""Records that live on a Ray cluster are read, or added up where they are."""

import os
from functools import partial

import numpy as np
import pytest

from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.data.domain import Box
from flower_kmeans.data.sources import as_source
from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.privacy.budget import PrivacyBudget

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

TABLE = np.random.default_rng(0).normal(size=(5_000, 3))
TABLE[[3, 4_000], [0, 2]] = np.nan, np.inf
GOOD = TABLE[np.isfinite(TABLE).all(axis=1)]
BOX = Box([-2.0] * 3, [2.0] * 3, columns=["a", "b", "c"])
LLOYD = LloydAlgorithm(4, BOX, PrivacyBudget(None))


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one processor each."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    found = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    found.add_node(**options)
    ray.init(address=found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def dataset(cluster):
    """The records in seven blocks, columns in another order."""
    pyarrow = pytest.importorskip("pyarrow")
    tables = [
        pyarrow.table(
            {"c": part[:, 2], "id": np.arange(len(part)), "a": part[:, 0], "b": part[:, 1]}
        )
        for part in np.array_split(TABLE, 7)
    ]
    return ray.data.from_arrow(tables)


def dying_once(path, algorithm, query, block):
    """Kill the worker of the first task that comes here, as a lost machine does."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return algorithm.words_of(query, block)
    os._exit(1)


def test_blocks_come_in_order_or_are_added_up_where_they_are(dataset, tmp_path):
    source = as_source(dataset, 3, BOX.columns)
    np.testing.assert_array_equal(source.loaded(), GOOD)
    assert source.n_null == 2
    query = LLOYD.query(LLOYD.initial_state())
    expected = LLOYD.words_of(query, GOOD)
    words, n_null = source.sum_in_place(partial(LLOYD.words_of, query))
    np.testing.assert_array_equal(words, expected)
    assert n_null == 2
    # A worker that is lost: Ray tries again.
    died = tmp_path / "died"
    words, n_null = source.sum_in_place(partial(dying_once, str(died), LLOYD, query))
    np.testing.assert_array_equal(words, expected)
    assert n_null == 2
    assert died.exists()


def test_whole_records_may_be_one_column(cluster):
    source = as_source(ray.data.from_numpy([TABLE[:100], TABLE[100:]]), 3)
    np.testing.assert_array_equal(source.loaded(), GOOD)
    words, _ = source.sum_in_place(count)
    assert words == len(GOOD)


def tables(*columns):
    """Return a data set of a block for each pair of columns a and b."""
    import pyarrow

    return ray.data.from_arrow([pyarrow.table({"a": a, "b": b}) for a, b in columns])


def blocks_of_one_record_each():
    """Data sets in which one record decides what a block holds, and the records that are good."""
    import pyarrow

    good = [[1.0, 2.0], [3.0, 4.0]]
    not_utf8 = pyarrow.array([b"3", b"\xff"]).view(pyarrow.string())
    return {
        "text": (lambda: tables(([1.0, 3.0], [2.0, 4.0]), ([5.0], ["x"])), good),
        "not UTF-8": (lambda: tables(([1.0], [2.0]), (not_utf8, [4.0, 5.0])), good),
        "filtered": (
            lambda: tables(([1.0, 3.0], [2.0, 4.0]), ([9.0], [6.0])).filter(lambda r: r["a"] < 9),
            good,
        ),
        "all filtered": (lambda: tables(([9.0], [6.0])).filter(lambda r: r["a"] < 9), []),
        "no cell": (lambda: ray.data.from_items([{"a": 1.0, "b": 2.0}, {"a": 3.0}]), good[:1]),
    }


@pytest.mark.parametrize(
    "case", blocks_of_one_record_each().values(), ids=blocks_of_one_record_each()
)
def test_what_one_record_makes_of_its_block_is_no_error(case, cluster):
    make, good = case
    source = as_source(make(), 2, ["a", "b"])
    np.testing.assert_array_equal(source.loaded(), np.reshape(good, (-1, 2)))
    words, _ = source.sum_in_place(count)
    assert words == len(good)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("other", [[3.0] * 3, []])
def test_a_whole_record_of_another_length_is_a_null_record(width, other, cluster):
    items = [[1.0] * width, other, [2.0] * width]
    for n_blocks in (1, 3):  # in one block with others, and in a separate one
        rows = [{"data": each} for each in items]
        source = as_source(ray.data.from_items(rows, override_num_blocks=n_blocks), width)
        np.testing.assert_array_equal(source.loaded(), [items[0], items[2]])
        words, n_null = source.sum_in_place(count)
        assert (words, n_null) == (2, 1)


def count(block):
    return np.array([len(block)])


def broken(block):
    raise ValueError("7.891")


def test_what_cannot_be_read_is_an_error(dataset):
    with pytest.raises(DataError, match=r"columns \['x'\]"):
        as_source(dataset, 3, ["a", "b", "x"])
    with pytest.raises(DataError, match="must have 3 columns, got 4"):
        as_source(dataset, 3).loaded()
    dates = ray.data.from_numpy(np.array(["2020-01-01"], "datetime64[s]"))
    with pytest.raises(ConfigurationTypeError, match="as numbers"):
        as_source(dates, 1).loaded()
    with pytest.raises(DataError, match="can be read") as caught:
        as_source(dataset, 3, BOX.columns).sum_in_place(broken)
    assert "7.891" not in str(caught.value)
