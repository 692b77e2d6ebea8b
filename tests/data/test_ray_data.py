"""Records that live on a Ray cluster are read, or added up where they are."""

import os
from functools import partial

import numpy as np
import pytest

from flower_kmeans.algorithms.answers import words_of_rows
from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.data.domain import Box
from flower_kmeans.data.sources import as_source, checked_source
from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.privacy.budget import PrivacyBudget

# a cluster takes ten seconds to start
pytestmark = [pytest.mark.ray, pytest.mark.thorough]
ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

TABLE = np.random.default_rng(0).normal(size=(5_000, 3))
TABLE[[3, 4_000], [0, 2]] = np.nan, np.inf
GOOD = TABLE[np.isfinite(TABLE).all(axis=1)]
BOX = Box([-2.0] * 3, [2.0] * 3, columns=["a", "b", "c"])
LLOYD = LloydAlgorithm.planned(4, BOX, PrivacyBudget(None))


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one processor each."""
    # here, for workers import this file without tests/support
    from ray_clusters import two_nodes

    found = two_nodes(object_store_memory=100 * 2**20)
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
            {
                "c": part[:, 2],
                "id": np.arange(len(part)),
                "a": part[:, 0],
                "b": part[:, 1],
            }
        )
        for part in np.array_split(TABLE, 7)
    ]
    return ray.data.from_arrow(tables)


def dying_once(path, algorithm, query, block):
    """Kill the worker of the first task that comes here, as a lost machine does."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return words_of_rows(algorithm, query, block)
    os._exit(1)


@pytest.mark.claim("own-data", "ray-adds-up-blocks")
def test_blocks_come_in_order_or_are_added_up_where_they_are(dataset, tmp_path):
    source = as_source(dataset, 3, BOX.columns)
    np.testing.assert_array_equal(source.loaded(), GOOD)
    assert source.n_null == 2
    query = LLOYD.query(LLOYD.initial_state())
    expected = words_of_rows(LLOYD, query, GOOD)
    words, n_null = source.sum_in_place(partial(words_of_rows, LLOYD, query))
    np.testing.assert_array_equal(words, expected)
    assert n_null == 2
    # A worker that is lost: Ray tries again.
    died = tmp_path / "died"
    words, n_null = source.sum_in_place(partial(dying_once, str(died), LLOYD, query))
    np.testing.assert_array_equal(words, expected)
    assert n_null == 2
    assert died.exists()


def test_whole_records_may_be_one_column_also_of_objects_that_there_are(cluster):
    parts = TABLE[:100], TABLE[100:]
    for data in (
        ray.data.from_numpy(parts),
        ray.data.from_numpy_refs([*map(ray.put, parts)]),
    ):
        source = as_source(data, 3)
        np.testing.assert_array_equal(source.loaded(), GOOD)
        words, _ = source.sum_in_place(count)
        assert words == len(GOOD)


def tables(*columns):
    """Return a data set of a block for each pair of columns a and b."""
    import pyarrow

    return ray.data.from_arrow([pyarrow.table({"a": a, "b": b}) for a, b in columns])


def of_items(*items):
    """Return a data set of a block for each record."""
    return ray.data.from_items(list(items), override_num_blocks=len(items))


def without_cell(row):
    return row if row["a"] else {"a": row["a"]}


def blocks_of_one_record_each():
    """Data sets in which one record decides what a block holds, and the records that are good."""
    import pyarrow

    good = [[1.0, 2.0], [3.0, 4.0]]
    not_utf8 = pyarrow.array([b"3", b"\xff"]).view(pyarrow.string())
    return {
        "text": (lambda: tables(([1.0, 3.0], [2.0, 4.0]), ([5.0], ["x"])), good),
        "not UTF-8": (lambda: tables(([1.0], [2.0]), (not_utf8, [4.0, 5.0])), good),
        "filtered": (
            lambda: tables(([1.0, 3.0], [2.0, 4.0]), ([9.0], [6.0])).filter(
                lambda r: r["a"] < 9
            ),
            good,
        ),
        "all filtered": (
            lambda: tables(([9.0], [6.0])).filter(lambda r: r["a"] < 9),
            [],
        ),
        "no cell": (lambda: of_items({"a": 1.0, "b": 2.0}, {"a": 3.0}), good[:1]),
        "no cell in the first block": (
            lambda: of_items({"a": 3.0}, {"a": 1.0, "b": 2.0}),
            good[:1],
        ),
        "computed without a cell": (
            lambda: of_items({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 2.0}).map(
                without_cell
            ),
            good[:1],
        ),
        "a cell more": (lambda: of_items({"n": 1.0, "b": 4.0, "a": 3.0}), good[1:]),
        "a date": (
            lambda: of_items(
                {"a": np.datetime64("2020-01-01"), "b": 1.0}, {"b": 2.0, "a": 1.0}
            ),
            good[:1],
        ),
    }


@pytest.mark.claim("own-data", "ray-adds-up-blocks")
@pytest.mark.parametrize(
    "case", blocks_of_one_record_each().values(), ids=blocks_of_one_record_each()
)
def test_what_one_record_makes_of_its_block_is_no_error(case, cluster):
    make, good = case
    dataset = make()
    for _ in range(2):  # what Ray knows of a data set changes as it is read
        source = as_source(dataset, 2, ["a", "b"])
        np.testing.assert_array_equal(source.loaded(), np.reshape(good, (-1, 2)))
        words, _ = source.sum_in_place(count)
        assert words == len(good)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("other", [[3.0] * 3, []])
def test_a_whole_record_of_another_length_is_a_null_record(width, other, cluster):
    items = [[1.0] * width, other, [2.0] * width]
    for n_blocks in (1, 3):  # in one block with others, and in a separate one
        rows = [{"data": each} for each in items]
        source = as_source(
            ray.data.from_items(rows, override_num_blocks=n_blocks), width
        )
        np.testing.assert_array_equal(source.loaded(), [items[0], items[2]])
        words, n_null = source.sum_in_place(count)
        assert (words, n_null) == (2, 1)


def count(block):
    return np.array([len(block)])


def broken(block):
    raise ValueError("7.891")


@pytest.mark.claim("own-data", "ray-adds-up-blocks")
def test_columns_that_are_not_there_are_an_error_before_a_run(dataset):
    """Inside of it they hold null records: a single record decides what Ray knows of columns."""
    for columns, message in (
        (
            ["a", "b", "x"],
            r"Expected the column 'x' in a data set of Ray. Got \['c', 'id', 'a', 'b'",
        ),
        (None, r"Expected the column 'data'.*: name those to read in columns="),
    ):
        with pytest.raises(DataError, match=message):
            checked_source(dataset, 3, columns, "partitions[0]")
        source = as_source(dataset, 3, columns)
        assert len(source.loaded()) == 0
        assert source.n_null == len(TABLE)
    dates = ray.data.from_numpy(np.array(["2020-01-01"], "datetime64[s]"))
    with pytest.raises(
        ConfigurationTypeError, match=r"column .data. as numbers\. Got timestamp"
    ):
        checked_source(dates, 1, None, "partitions[0]")
    assert len(as_source(dates, 1).loaded()) == 0


def test_what_cannot_be_read_is_an_error(dataset):
    with pytest.raises(DataError, match="can be read") as caught:
        as_source(dataset, 3, BOX.columns).sum_in_place(broken)
    assert "7.891" not in str(caught.value)


# ----------------------------------------------------------------------------- persons

SECRET = bytes(32)


def visits_in_ray(n_blocks, ids, rows=TABLE, own=None, seed=None):
    """Return the records with ids in blocks, of pyarrow or, with a seed, also empty ones."""
    import pyarrow

    places = np.array_split(np.arange(len(rows)), n_blocks)
    if seed is not None:
        ends = np.random.default_rng(seed).integers(0, len(rows), n_blocks - 1)
        places = np.split(np.arange(len(rows)), np.sort(ends))
    blocks = []
    for place in places:
        columns = {"a": rows[place, 0], "b": rows[place, 1], "c": rows[place, 2]}
        columns["who"] = pyarrow.array([ids[i] for i in place], pyarrow.string())
        if own is not None:
            columns["weight"] = own[place]
        blocks.append(pyarrow.table(columns))
    return ray.data.from_arrow(blocks)


def lloyd_of_persons(full_weight, **options):
    from dataclasses import replace

    budget = PrivacyBudget(None, unit="person")
    made = LloydAlgorithm.planned(4, BOX, budget, **options)
    return replace(made, full_weight=full_weight)


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("full_weight", [64, 4096])
def test_persons_in_blocks_weigh_what_they_weigh_in_one(cluster, full_weight, weighted):
    """In any cut into blocks; with persons above W, missing ids, and null records of all."""
    from flower_kmeans.data.sources import weighed
    from flower_kmeans.protocol.records import weighing_of

    rng = np.random.default_rng(1)
    rows = TABLE.copy()
    rows[rng.random(len(rows)) < 0.1] = np.nan
    names = [*(["x"] * 30), *"abcdefgh", " a", "", None]
    ids = [names[i] for i in rng.integers(0, len(names), len(rows))]
    own = rng.random(len(rows)) if weighted else None
    algorithm = lloyd_of_persons(full_weight, weighted=weighted)
    rule = weighing_of(algorithm)
    query = algorithm.query(algorithm.initial_state())
    whole, counts = weighed(as_source(rows, 3), rule, ids, own, SECRET)
    expected = words_of_rows(algorithm, query, whole.loaded())
    assert counts.n_missing
    assert (counts.n_heavy > 0) == (full_weight == 64)
    for n_blocks, seed in ((1, None), (7, None), (13, 2)):
        dataset = visits_in_ray(n_blocks, ids, rows, own, seed)
        source, found = weighed(
            as_source(dataset, 3, BOX.columns), rule, "who", "weight", SECRET
        )
        # Weights that are too small to count are not counted in blocks.
        assert found == counts._replace(n_vanished=0)
        np.testing.assert_array_equal(source.loaded(), whole.loaded())
        part = partial(words_of_rows, algorithm, query)
        words, n_null = source.sum_in_place(part)
        np.testing.assert_array_equal(words, expected)
        assert n_null == int(np.isnan(rows).any(axis=1).sum() + np.isinf(rows).sum())
    # The blocks may come in another order than a list of ids.
    with pytest.raises(DataError, match="names of columns of the data set as ids"):
        weighed(as_source(dataset, 3, BOX.columns), rule, ids, own, SECRET)


def test_blocks_without_ids_or_with_wrong_ones_are_refused(cluster):
    from flower_kmeans.data.sources import weighed
    from flower_kmeans.data.weights import Weighing

    ids = ["a"] * len(TABLE)
    own = np.full(len(TABLE), 0.5)
    own[4_321] = 7.0
    source = as_source(visits_in_ray(3, ids, own=own), 3, BOX.columns)
    with pytest.raises(DataError, match="the column 'patient' once in every block"):
        weighed(source, Weighing(64, 1), "patient", None, SECRET)
    with pytest.raises(DataError, match=r"weights in \[0, 1\]. Got 1 of \d+ outside"):
        weighed(source, Weighing(64, has_weights=True), None, "weight", SECRET)
    array = as_source(TABLE, 3)
    with pytest.raises(ConfigurationTypeError, match="Expected ids as a list"):
        weighed(array, Weighing(64, 1), "who", None, SECRET)
    frames = ray.data.from_pandas(
        [visits_in_ray(1, ids, TABLE[:9]).to_pandas() for _ in range(2)]
    )
    source = as_source(frames, 3, BOX.columns)
    found, _ = weighed(source, Weighing(64, 1), "who", None, SECRET)
    assert set(found.loaded()[:, -1]) == {64 // 16}
