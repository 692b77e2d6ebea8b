"""Tables of every format give the same records; every split is a partition."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans import datasets
from flower_kmeans.datasets import load_table, split_by_column, split_dirichlet, split_iid, tiles
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require

pa = pytest.importorskip("pyarrow")
X = np.array([[1.5, -2.0, 0.25], [3.0, 4.0, 5.0], [-1e9, 0.0, 7.0], [2.0, 2.0, 2.0]])
NAMES = ("a", "b", "c")
LABELS = ["red", "blue", "red", "blue"]


def write(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        rows = [",".join([*NAMES, "kind"])]
        rows += [f"{a},{b},{c},{kind}" for (a, b, c), kind in zip(X, LABELS, strict=True)]
        path.write_text("\n".join(rows) + "\n")
    elif suffix == ".parquet":
        from pyarrow import parquet

        columns = {name: X[:, i] for i, name in enumerate(NAMES)} | {"kind": LABELS}
        parquet.write_table(pa.table(columns), path)
    elif suffix == ".npz":
        np.savez(path, X=X, columns=np.array(NAMES), kind=np.array(LABELS))
    else:
        fields = [(name, float) for name in NAMES] + [("kind", "U8")]
        rows = [(*row, kind) for row, kind in zip(X.tolist(), LABELS, strict=True)]
        np.save(path, np.array(rows, dtype=fields))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
class TestEveryFormat:
    def test_gives_records_names_and_labels(self, tmp_path, suffix):
        table = load_table(write(tmp_path, suffix), label="kind")
        assert table.columns == NAMES
        assert table.records.dtype == np.float64
        np.testing.assert_array_equal(table.records, X)
        assert [str(label) for label in table.labels] == LABELS

    def test_features_are_those_named_in_their_order(self, tmp_path, suffix):
        table = load_table(write(tmp_path, suffix), features=["c", "a"])
        assert table.columns == ("c", "a")
        np.testing.assert_array_equal(table.records, X[:, [2, 0]])

    def test_a_text_column_to_split_by_is_no_feature(self, tmp_path, suffix):
        table = load_table(write(tmp_path, suffix), keep=["kind", "b"])
        assert table.columns == NAMES
        assert [len(part) for part in split_by_column(table.column("kind"))] == [2, 2]
        np.testing.assert_array_equal(table.column("b"), X[:, 1])

    def test_unknown_column_is_named(self, tmp_path, suffix):
        with pytest.raises(ConfigurationError, match=r"a, b, c.*'d'"):
            load_table(write(tmp_path, suffix), label="d")

    def test_damaged_file_is_an_error_of_ours(self, tmp_path, suffix):
        path = write(tmp_path, suffix)
        path.write_bytes(b'"\x93NUMPY\x00PAR1' + path.read_bytes()[20:40])
        with pytest.raises(DataError):
            load_table(path)


def test_text_feature_is_refused_by_name(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,city\n1,Paris\n2,Rome\n")
    with pytest.raises(DataError, match="'city'") as error:
        load_table(path)
    assert "Paris" not in str(error.value)


@pytest.mark.parametrize("bad", ["", "nan", "inf"])
def test_missing_and_infinite_values_are_counted_not_shown(tmp_path, bad):
    path = tmp_path / "data.csv"
    path.write_text(f"a,b\n1,2\n3,{bad}\n5,77.125\n")
    with pytest.raises(DataError, match=r"'b'.*1 of 3") as error:
        load_table(path)
    assert "77.125" not in str(error.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_without_header(tmp_path, delimiter):
    path = tmp_path / "data.csv"
    np.savetxt(path, X, delimiter=delimiter)
    table = load_table(path, label="x2")
    assert table.columns == ("x0", "x1")
    np.testing.assert_array_equal(table.records, X[:, :2])
    np.testing.assert_array_equal(table.labels, X[:, 2])


def test_damaged_csv_does_not_quote_its_lines(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\nsecret,3,4\n")
    with pytest.raises(DataError) as error:
        load_table(path)
    assert "secret" not in str(error.value)


def test_integer_and_boolean_columns_are_numbers(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,true\n2,false\n")
    np.testing.assert_array_equal(load_table(path).records, [[1, 1], [2, 0]])


def test_npz_of_columns(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, a=X[:, 0], b=X[:, 1])
    np.testing.assert_array_equal(load_table(path).records, X[:, :2])


@pytest.mark.parametrize(
    "arrays",
    [{"x": X, "z": X}, {"x": X[0], "y": X[:2, 0]}, {"x": np.zeros((2, 2, 2))}, {}],
    ids=["two tables", "lengths", "three-dimensional", "nothing"],
)
def test_ambiguous_npz_is_refused(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError):
        load_table(path)


# --------------------------------------------------------------------------- malformed="nan"


def lenient(path, text, **options):
    path.write_bytes(text.encode("latin-1"))
    return load_table(path, malformed="nan", **{"header": True, **options})


LINES = [
    "0.5,n/a",
    "0.5,",
    "0.5",
    "1,2,3",
    '"0.5,2',
    "nan,1",
    "\xff,1",
    "0.5,inf",
    '"a"b",1',
    "\0,1",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("header", [True, ["a", "b"]])
def test_one_bad_line_leaves_all_others_as_they_are(line, place, header, tmp_path):
    lines = ["0.1,0.2", '"3", 4e-3 ', "true,-1"]
    first = ["a,b"] if header is True else []
    good = lenient(tmp_path / "x.csv", "\n".join([*first, *lines]), header=header)
    np.testing.assert_array_equal(good.records, [[0.1, 0.2], [3, 4e-3], [1, -1]])
    lines.insert(place, line)
    table = lenient(tmp_path / "x.csv", "\n".join([*first, *lines]) + "\n", header=header)
    assert table.columns == ("a", "b")
    assert not np.isfinite(table.records[place]).all()
    np.testing.assert_array_equal(np.delete(table.records, place, axis=0), good.records)


def test_a_good_file_is_the_same_in_both_modes(tmp_path):
    for suffix in (".csv", ".npy", ".npz", ".parquet"):
        path = write(tmp_path, suffix)
        table = load_table(path, label="kind", malformed="nan", header=True)
        np.testing.assert_array_equal(table.records, load_table(path, label="kind").records)
        assert [str(label) for label in table.labels] == LABELS
    path = tmp_path / "random.csv"
    values = np.random.default_rng(0).normal(size=(500, 3)) * 10.0 ** np.arange(-9, 9, 6)
    for delimiter in ",;\t":
        np.savetxt(path, values, delimiter=delimiter, header=delimiter.join(NAMES), comments="")
        table = load_table(path, malformed="nan", header=True)
        np.testing.assert_array_equal(table.records, load_table(path).records)


def test_a_column_of_text_is_one_of_nan(tmp_path):
    table = lenient(tmp_path / "x.csv", "a,city\n1,Paris\n2,Rome\n")
    np.testing.assert_array_equal(table.records, [[1, np.nan], [2, np.nan]])
    table = lenient(tmp_path / "x.csv", "a,city\n1,Paris\n2,Rome\n", keep=["city"])
    assert table.columns == ("a",)
    np.save(tmp_path / "x.npy", np.array([["1", "2"], ["3", "x"]]))
    table = load_table(tmp_path / "x.npy", malformed="nan")
    np.testing.assert_array_equal(table.records, [[1, 2], [3, np.nan]])


def test_a_file_without_lines_is_a_table_without_rows(tmp_path):
    assert lenient(tmp_path / "x.csv", "", header=["a", "b"]).records.shape == (0, 2)
    assert lenient(tmp_path / "x.csv", "a,b\n").records.shape == (0, 2)
    assert lenient(tmp_path / "x.csv", "a,b\n\n1,2\n\n").records.shape == (1, 2)


def test_what_no_record_decides_is_still_an_error(tmp_path):
    path = tmp_path / "x.csv"
    with pytest.raises(DataError, match="different names"):
        lenient(path, "a,a\n1,2\n")
    with pytest.raises(ConfigurationError, match="a, b"):
        lenient(path, "a,b\n1,2\n", features=["c"])
    with pytest.raises(ConfigurationError, match="header"):
        lenient(path, "a,b\n1,2\n", header=None)
    with pytest.raises(ConfigurationError, match="malformed"):
        load_table(path, malformed="skip")
    with pytest.raises(DataError, match="does not exist"):
        load_table(tmp_path / "none.csv", malformed="nan", header=True)


def test_the_header_can_be_said_where_errors_stop_too(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2\n3,4\n")
    assert load_table(path, header=["a", "b"]).columns == ("a", "b")
    assert len(load_table(path, header=["a", "b"]).records) == 2
    assert load_table(path, header=True).columns == ("1", "2")


@pytest.mark.parametrize(
    "array", [X[0], np.zeros((2, 2, 2)), np.array([[1, None]]), np.empty((3, 0))]
)
def test_arrays_that_are_no_table_are_refused(tmp_path, array):
    path = tmp_path / "data.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(DataError):
        load_table(path)


def test_other_suffixes_and_missing_files(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\.parquet.*data\.xlsx"):
        load_table(tmp_path / "data.xlsx")
    with pytest.raises(DataError, match="does not exist"):
        load_table(tmp_path / "data.csv")


def test_label_cannot_be_a_feature(tmp_path):
    with pytest.raises(ConfigurationError, match="'a'"):
        load_table(write(tmp_path, ".csv"), label="a", features=["a", "b"])


def test_missing_package_names_the_extra():
    with pytest.raises(ConfigurationError, match=r"no_such_package.*flower-kmeans\[simulation\]"):
        require("no_such_package", "A test")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, suffix):
    path = write(tmp_path, suffix)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pyarrow.*flower-kmeans\[simulation\]"):
        load_table(path)


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigurationError, match=r"Pillow.*flower-kmeans\[simulation\]"):
        datasets.load_photo()


def assert_partition(parts, n_records, n_clients):
    assert len(parts) == n_clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n_records))


sizes = st.tuples(st.integers(0, 200), st.integers(1, 30), st.integers(0, 2**32 - 1))


@given(sizes)
def test_split_iid_is_an_even_partition(size):
    n_records, n_clients, seed = size
    parts = split_iid(n_records, n_clients, np.random.default_rng(seed))
    assert_partition(parts, n_records, n_clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes, st.sampled_from([1e-9, 0.1, 1.0, 1e6]), st.integers(1, 5))
def test_split_dirichlet_is_a_partition(size, alpha, n_labels):
    n_records, n_clients, seed = size
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_labels, size=n_records)
    assert_partition(split_dirichlet(labels, n_clients, alpha, rng), n_records, n_clients)


def test_dirichlet_alpha_says_how_clients_differ():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], 5000)
    even = split_dirichlet(labels, 10, 1e6, rng)
    skewed = split_dirichlet(labels, 10, 0.01, rng)
    assert all(abs(len(part) - 1000) < 50 for part in even)
    assert max(map(len, skewed)) > 3000


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_dirichlet_refuses_alpha(alpha):
    with pytest.raises(ConfigurationError, match="alpha"):
        split_dirichlet([0, 1], 2, alpha, np.random.default_rng(0))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=50), st.integers(1, 7))
def test_split_by_column_keeps_values_together(values, n_clients):
    values = np.array(values)
    distinct = len(np.unique(values))
    if n_clients > distinct:
        with pytest.raises(ConfigurationError, match=f"{distinct}"):
            split_by_column(values, n_clients)
        return
    parts = split_by_column(values, n_clients)
    assert_partition(parts, len(values), n_clients)
    owned = [set(values[part]) for part in parts]
    assert sum(map(len, owned)) == distinct
    assert all(max(a) < min(b) for a, b in pairwise(owned))


def test_split_by_column_defaults_to_one_client_per_value():
    parts = split_by_column(np.array(["b", "a", None, "b"], dtype=object))
    assert [part.tolist() for part in parts] == [[2], [1], [0, 3]]


@pytest.mark.parametrize("n_tiles", [1, 2, 7, 20, 50, 427])
def test_tiles_are_rectangles_that_cover_the_image(n_tiles):
    height, width = datasets.PHOTO_SIZE
    parts = tiles(height, width, n_tiles)
    assert_partition(parts, height * width, n_tiles)
    for part in parts:
        rows, cols = np.divmod(part, width)
        assert len(part) == (np.ptp(rows) + 1) * (np.ptp(cols) + 1)


def test_twenty_tiles_are_nearly_square():
    rows, cols = np.divmod(tiles(427, 640, 20)[0], 640)
    assert (np.ptp(rows) + 1, np.ptp(cols) + 1) == (107, 128)


@pytest.mark.parametrize("n_tiles", [0, -1, 641, 1283])
def test_impossible_tiles_are_refused(n_tiles):
    with pytest.raises(ConfigurationError, match=str(n_tiles)):
        tiles(427, 640, n_tiles)


def test_photo_is_what_its_constants_say():
    records = datasets.photo_records()
    assert records.shape == (datasets.PHOTO_RECORDS, len(datasets.PHOTO_COLUMNS))
    assert datasets.load_photo().shape[:2] == datasets.PHOTO_SIZE
    assert records.min() >= 0
    assert 200 < records.max() <= 255


def test_photo_tiles_differ_and_make_up_the_photo():
    parts = [datasets.photo_tile(client, 20) for client in range(20)]
    assert sum(map(len, parts)) == datasets.PHOTO_RECORDS
    means = np.array([part.mean(axis=0) for part in parts])
    assert np.ptp(means, axis=0).min() > 30
    with pytest.raises(ConfigurationError, match="20"):
        datasets.photo_tile(20, 20)
