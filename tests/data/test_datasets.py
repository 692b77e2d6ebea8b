"""Tables of every format give the same records; every split is a partition."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.data import datasets
from flower_kmeans.data.datasets import (
    load_table,
    split_by_column,
    split_by_partitioner,
    split_dirichlet,
    split_iid,
    tiles,
)
from flower_kmeans.data.reading import Reading
from flower_kmeans.errors import ConfigurationError, DataError

pa = pytest.importorskip("pyarrow")
X = np.array([[1.5, -2.0, 0.25], [3.0, 4.0, 5.0], [-1e9, 0.0, 7.0], [2.0, 2.0, 2.0]])
NAMES = ("a", "b", "c")
LABELS = ["red", "blue", "red", "blue"]


def write(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        rows = [",".join([*NAMES, "kind"])]
        rows += [
            f"{a},{b},{c},{kind}" for (a, b, c), kind in zip(X, LABELS, strict=True)
        ]
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


def read(tmp_path, text, **options):
    path = tmp_path / "data.csv"
    path.write_bytes(text.encode("latin-1"))
    return load_table(path, **options)


def lenient(tmp_path, text, **options):
    return read(tmp_path, text, malformed="nan", **{"header": True, **options})


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_every_format_gives_the_same_table(tmp_path, suffix):
    path = write(tmp_path, suffix)
    for options in ({}, {"malformed": "nan", "header": True}):
        table = load_table(path, label="kind", **options)
        assert table.columns == NAMES
        assert table.records.dtype == np.float64
        np.testing.assert_array_equal(table.records, X)
        assert [str(label) for label in table.labels] == LABELS
    table = load_table(path, features=["c", "a"])
    assert table.columns == ("c", "a")
    np.testing.assert_array_equal(table.records, X[:, [2, 0]])
    # A text column to split by is no feature.
    table = load_table(path, keep=["kind", "b"])
    assert table.columns == NAMES
    assert [len(part) for part in split_by_column(table.column("kind"))] == [2, 2]
    np.testing.assert_array_equal(table.column("b"), X[:, 1])
    for call in (lambda: load_table(path, label="d"), lambda: table.column("d")):
        with pytest.raises(ConfigurationError, match=r"a, b, c.*'d'"):
            call()
    path.write_bytes(b'"\x93NUMPY\x00PAR1' + path.read_bytes()[20:40])
    with pytest.raises(DataError):
        load_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,city\n1,Paris\n2,Rome\n", "'city'"),
        *(
            (f"a,b\n1,2\n3,{bad}\n5,77.125\n", r"1 of 3 cells of 'b'")
            for bad in ("inf", "0x1")
        ),
        ("a,b\n1,2\nsecret,3,4\n", r"1 of 2 lines .* line 3\)"),
        ("a,b\n1,secret\nsecret,3\n", "1 of 2 cells of 'a'.*1 of 2 cells of 'b'"),
        ("a,a\n1,2\n", "same name"),
    ],
)
def test_bad_values_are_named_and_not_shown(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, text)
    assert not any(value in str(error.value) for value in ("Paris", "77.125", "secret"))


def test_names_in_another_encoding_than_utf_8_are_one_sentence(tmp_path):
    (tmp_path / "data.csv").write_text("\xe2ge,b\n1,2\n", "latin-1")
    with pytest.raises(DataError, match=r"data\.csv in utf-8.*cp1252"):
        load_table(tmp_path / "data.csv")
    table = load_table(tmp_path / "data.csv", reading=Reading(encoding="cp1252"))
    assert table.columns == ("\xe2ge", "b")


@pytest.mark.parametrize("cell", ["", "nan", "NULL", "N/A", " "])
def test_a_record_with_a_missing_cell_is_left_out_and_counted(tmp_path, cell, caplog):
    table = read(tmp_path, f"a,b,kind\n1,2,x\n3,{cell},y\n5,6,z\n", label="kind")
    np.testing.assert_array_equal(table.records, [[1, 2], [5, 6]])
    assert list(table.labels) == ["x", "z"]
    assert (table.findings.n_void, table.findings.columns[1].n_missing) == (1, 1)
    assert "1 of 3 records count as none; missing cells: 1 of 'b'" in caplog.text


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_a_damaged_npz_file_is_one_sentence(tmp_path, change):
    """zipfile raises other errors, for an archive without an end and for a wrong checksum."""
    path = tmp_path / "data.npz"
    np.savez(path, X=X)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content if change == "other" else content[:-40])
    with pytest.raises(DataError, match="not a NumPy file"):
        load_table(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_without_header(tmp_path, delimiter):
    path = tmp_path / "data.csv"
    np.savetxt(path, X, delimiter=delimiter)
    table = load_table(path, label="x2")
    assert table.columns == ("x0", "x1")
    np.testing.assert_array_equal(table.records, X[:, :2])
    # text as it is written
    np.testing.assert_array_equal(table.labels.astype(float), X[:, 2])
    np.savetxt(path, X, delimiter=delimiter, header=delimiter.join(NAMES), comments="")
    for options in ({"header": True}, {"header": True, "malformed": "nan"}):
        np.testing.assert_array_equal(load_table(path, **options).records, X)


@pytest.mark.parametrize(
    ("text", "header", "columns", "records"),
    [
        ("a,b\n1,true\n2,false\n", None, ("a", "b"), [[1, 1], [2, 0]]),
        ("1,2\n3,4\n", ["a", "b"], ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4\n", True, ("1", "2"), [[3, 4]]),
    ],
)
def test_headers_and_types_of_a_csv_file(tmp_path, text, header, columns, records):
    table = read(tmp_path, text, header=header)
    assert table.columns == columns
    np.testing.assert_array_equal(table.records, records)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": X, "z": X},
        {"x": X[0], "y": X[:2, 0]},
        {"x": np.zeros((2, 2, 2))},
        {},
        {"x": X, "columns": np.array(["a", "b", "b"])},
        {"x": np.array([[1, None]])},
    ],
)
def test_ambiguous_npz_is_refused(tmp_path, arrays):
    path = tmp_path / "data.npz"
    np.savez(path, a=X[:, 0], b=X[:, 1])
    np.testing.assert_array_equal(load_table(path).records, X[:, :2])
    np.savez(path, **arrays)
    with pytest.raises(DataError):
        load_table(path)


@pytest.mark.parametrize(
    "array", [X[0], np.zeros((2, 2, 2)), np.array([[1, None]]), np.empty((3, 0))]
)
def test_arrays_that_are_no_table_are_refused(tmp_path, array):
    np.save(tmp_path / "data.npy", array, allow_pickle=True)
    with pytest.raises(DataError):
        load_table(tmp_path / "data.npy")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": "a", "features": ["a", "b"]}, ConfigurationError, "'a'"),
        ({"features": ["a", "a"]}, ConfigurationError, "once"),
        ({"malformed": "skip"}, ConfigurationError, "malformed"),
        ({"malformed": "nan"}, ConfigurationError, "header"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        read(tmp_path, "a,b\n1,2\n", **options)
    with pytest.raises(ConfigurationError, match=r"\.parquet.*data\.docx"):
        load_table(tmp_path / "data.docx")
    with pytest.raises(DataError, match="does not exist"):
        load_table(tmp_path / "none.csv", malformed="nan", header=True)


@pytest.mark.parametrize("name", ["data.parquet", None])
def test_without_a_package_the_extra_is_named(tmp_path, monkeypatch, name):
    path = tmp_path / (name or "")
    path.touch()
    for package in ("pyarrow", "PIL"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigurationError, match=r"(pyarrow|Pillow).*flower-kmeans\[simulation\]"
    ):
        load_table(path) if name else datasets.load_photo()


def test_a_csv_file_needs_no_further_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    np.testing.assert_array_equal(read(tmp_path, "a,b\n1,2\n").records, [[1, 2]])


# ---------------------------------------------------------------------- malformed="nan"

LINES = [
    *("0.5,n/a", "0.5,", "0.5", "1,2,3", "nan,1", "\xff,1", "0.5,inf", "\0,1"),
    *('"0.5,2', '"a"b",1'),
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("header", [True, ["a", "b"]])
def test_one_bad_line_leaves_all_others_as_they_are(line, place, header, tmp_path):
    lines = ["0.1,0.2", '"3", 4e-3 ', "true,-1"]
    first = ["a,b"] if header is True else []
    good = lenient(tmp_path, "\n".join([*first, *lines]), header=header)
    np.testing.assert_array_equal(good.records, [[0.1, 0.2], [3, 4e-3], [1, -1]])
    lines.insert(place, line)
    table = lenient(tmp_path, "\n".join([*first, *lines]) + "\n", header=header)
    assert table.columns == ("a", "b")
    assert not np.isfinite(table.records[place]).all()
    np.testing.assert_array_equal(np.delete(table.records, place, axis=0), good.records)


def test_a_column_of_text_is_one_of_nan(tmp_path):
    for keep in ([], ["city"]):
        table = lenient(tmp_path, "a,city\n1,Paris\n2,Rome\n", keep=keep)
        expected = [[1, np.nan], [2, np.nan]]
        np.testing.assert_array_equal(
            table.records, np.array(expected)[:, : 2 - len(keep)]
        )
    np.save(tmp_path / "x.npy", np.array([["1", "2"], ["3", "x"]]))
    table = load_table(tmp_path / "x.npy", malformed="nan")
    np.testing.assert_array_equal(table.records, [[1, 2], [3, np.nan]])


@pytest.mark.parametrize(
    ("text", "header", "n"),
    [("", ["a", "b"], 0), ("a,b\n", True, 0), ("a,b\n\n1,2\n\n", True, 1)],
)
def test_a_file_without_lines_is_a_table_without_rows(tmp_path, text, header, n):
    assert lenient(tmp_path, text, header=header).records.shape == (n, 2)


def test_what_no_record_decides_is_still_an_error(tmp_path):
    with pytest.raises(DataError, match="different names"):
        lenient(tmp_path, "a,a\n1,2\n")
    with pytest.raises(ConfigurationError, match="a, b"):
        lenient(tmp_path, "a,b\n1,2\n", features=["c"])


# --------------------------------------------------------------------------- splits


def assert_partition(parts, n_records, n_clients):
    assert len(parts) == n_clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n_records))


sizes = st.tuples(st.integers(0, 200), st.integers(1, 30), st.integers(0, 2**32 - 1))


@given(sizes, st.sampled_from([1e-9, 0.1, 1.0, 1e6]), st.integers(1, 5))
def test_random_splits_are_partitions(size, alpha, n_labels):
    n_records, n_clients, seed = size
    rng = np.random.default_rng(seed)
    parts = split_iid(n_records, n_clients, rng)
    assert_partition(parts, n_records, n_clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    labels = rng.integers(n_labels, size=n_records)
    assert_partition(
        split_dirichlet(labels, n_clients, alpha, rng), n_records, n_clients
    )


def test_dirichlet_alpha_says_how_clients_differ():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], 5000)
    assert all(
        abs(len(part) - 1000) < 50 for part in split_dirichlet(labels, 10, 1e6, rng)
    )
    assert max(map(len, split_dirichlet(labels, 10, 0.01, rng))) > 3000


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
    sides = [[np.ptp(axis) + 1 for axis in np.divmod(part, width)] for part in parts]
    assert [rows * columns for rows, columns in sides] == [len(part) for part in parts]
    assert n_tiles != 20 or sides[0] == [107, 128]  # nearly square


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda n=n: tiles(427, 640, n), str(n)) for n in (0, -1, 641, 1283)),
        *(
            (
                lambda a=a: split_dirichlet([0, 1], 2, a, np.random.default_rng(0)),
                "alpha",
            )
            for a in (0.0, -1.0, np.nan, np.inf)
        ),
        (lambda: datasets.photo_tile(20, 20), "20"),
        (lambda: datasets.photo_tile(-1, 20), "-1"),
    ],
)
def test_impossible_splits_are_refused(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_photo_tiles_differ_and_make_up_the_photo():
    photo = datasets.photo_records()
    assert photo.shape == (datasets.PHOTO_RECORDS, len(datasets.PHOTO_COLUMNS))
    assert 0 <= photo.min() < 200 < photo.max() <= 255
    parts = [datasets.photo_tile(client, 20) for client in range(20)]
    assert sum(map(len, parts)) == datasets.PHOTO_RECORDS
    assert np.ptp([part.mean(axis=0) for part in parts], axis=0).min() > 30


# ------------------------------------------------------------------------ flwr-datasets

SITES = np.repeat(["SECRET-a", "SECRET-b", "SECRET-c"], [60, 30, 10])
AGES = np.random.default_rng(5).normal(size=100)


def partitioned(text, n_clients=4, seed=0):
    columns = {"site": SITES, "age": AGES}
    return split_by_partitioner(text, columns.__getitem__, 100, n_clients, seed)


@pytest.mark.claim("reference/command", "simulate-split-takes-partitioner")
@pytest.mark.parametrize(
    ("text", "n_clients"),
    [
        ("IidPartitioner()", 4),
        (" IidPartitioner(num_partitions = 7)", 7),
        ("LinearPartitioner()", 4),
        ("ExponentialPartitioner(num_partitions=3)", 3),
        ("SizePartitioner(partition_sizes=[50, 30, 20])", 3),
        (
            "DirichletPartitioner(partition_by='site', alpha=5.0, min_partition_size=1)",
            4,
        ),
        (
            "PathologicalPartitioner(partition_by='site', num_classes_per_partition=2)",
            4,
        ),
        (
            "ShardPartitioner(partition_by='site', shard_size=9, keep_incomplete_shard=True)",
            4,
        ),
        ("ContinuousPartitioner(partition_by='age', strictness=0.5)", 4),
        ("NaturalIdPartitioner(partition_by='site')", 3),
    ],
)
def test_a_partitioner_gives_each_record_to_one_client(text, n_clients):
    parts = partitioned(text)
    assert len(parts) == n_clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))
    assert all(part.dtype == np.int64 for part in parts)


def test_a_partitioner_divides_by_the_column_that_it_names():
    for part, other in zip(
        partitioned("NaturalIdPartitioner(partition_by='site')"),
        split_by_column(SITES),
        strict=True,
    ):
        np.testing.assert_array_equal(part, other)
    parts = partitioned("ContinuousPartitioner(partition_by='age', strictness=1)")
    ends = [(AGES[part].min(), AGES[part].max()) for part in parts]
    assert all(high <= low for (_, high), (low, _) in pairwise(sorted(ends)))


def test_the_seed_of_a_partitioner_is_that_of_the_run_unless_it_has_its_own():
    text = "ShardPartitioner(partition_by='site', num_shards_per_partition=2{})"
    free, fixed = text.format(""), text.format(", seed=3")

    def same(one, other):
        return all(map(np.array_equal, one, other))

    assert same(partitioned(free, seed=3), partitioned(free, seed=3))
    assert not same(partitioned(free, seed=3), partitioned(free, seed=4))
    assert same(partitioned(fixed, seed=4), partitioned(free, seed=3))


@pytest.mark.claim("reference/command", "simulate-split-takes-partitioner")
@pytest.mark.parametrize(
    "text",
    [
        "IidPartitioner",
        "IidPartitioner(4)",
        "IidPartitioner(num_partitions=open('x'))",
        "IidPartitioner(num_partitions=__import__('os').getpid())",
        "os.IidPartitioner()",
        "IidPartitioner(); IidPartitioner()",
        "(" * 500 + "IidPartitioner()",
        "\0Partitioner()",
    ],
)
def test_what_is_no_call_with_plain_values_is_not_run(text):
    with pytest.raises(
        ConfigurationError, match="Expected a partitioner as NAMEPartitioner"
    ):
        partitioned(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Partitioner()", "Expected a partitioner in"),
        ("VerticalEvenPartitioner(num_partitions=2)", "Expected a partitioner in"),
        ("NoPartitioner()", "Expected a partitioner in"),
        ("IidPartitioner(num_partitions=0)", "Got a ValueError of flwr-datasets"),
        ("IidPartitioner(**{'no': 1})", "Got a TypeError of flwr-datasets"),
        ("SizePartitioner(partition_sizes=[500])", "Got a ValueError of flwr-datasets"),
        (
            "PathologicalPartitioner(partition_by='site', num_classes_per_partition=9)",
            "Got a ValueError of flwr-datasets",
        ),
    ],
)
def test_what_a_partitioner_refuses_is_one_sentence_without_values(text, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        partitioned(text)
    assert "SECRET" not in str(caught.value)


def test_a_partitioner_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[partitioners\]"):
        partitioned("IidPartitioner()")
