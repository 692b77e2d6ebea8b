"""Records from anywhere: the same blocks, whatever they come from and however it is divided."""

import os
import shutil

import numpy as np
import pytest
from databases import sqlite_table
from hypothesis import given, settings
from hypothesis import strategies as st
from switches import small_blocks

from flower_kmeans.data import sources
from flower_kmeans.data.records import check_records
from flower_kmeans.data.sources import (
    as_source,
    checked_source,
    finite_source,
    is_stream,
)
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.errors import ConfigurationTypeError, DataError

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["a", "b", "c"]
TABLE = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
TABLE[[3, 500, 501, 999], [0, 1, 2, 0]] = np.nan, np.inf, -np.inf, np.nan
GOOD = TABLE[np.isfinite(TABLE).all(axis=1)]


def arrow(values=TABLE, names=NAMES):
    return pa.table(dict(zip(names, np.transpose(values), strict=True)))


def parquet(path, table=None, **options):
    pq.write_table(
        arrow() if table is None else table, path, row_group_size=130, **options
    )
    return path


def mapped(path):
    np.save(path, TABLE)
    return np.load(path, mmap_mode="r")


def chunks_of(sizes):
    return lambda: (TABLE[i : i + sizes] for i in range(0, len(TABLE), sizes))


def folder(path):
    path.mkdir()
    for i in range(3):
        parquet(path / f"{i}.parquet", arrow(TABLE[i * 400 : (i + 1) * 400]))
    return ds.dataset(path)


KINDS = {
    "array": lambda path: TABLE,
    "float64": lambda path: TABLE.astype(np.float64),
    "columns first": lambda path: np.asfortranarray(TABLE),
    "map": lambda path: mapped(path / "x.npy"),
    "chunks": lambda path: chunks_of(77),
    "lists": lambda path: lambda: [TABLE[:500].tolist(), TABLE[500:].tolist()],
    "tables": lambda path: lambda: arrow().to_batches(max_chunksize=99),
    "table": lambda path: arrow(),
    "ParquetFile": lambda path: pq.ParquetFile(parquet(path / "x.parquet")),
    "data set": lambda path: ds.dataset(parquet(path / "x.parquet")),
    "folder": lambda path: folder(path / "parts"),
    "filtered": lambda path: ds.dataset(parquet(path / "x.parquet")).filter(
        ~ds.field("a").is_null()
    ),
    "in memory": lambda path: ds.dataset(arrow()),
    "SQLite": lambda path: SqlQuery(
        sqlite_table(
            path / f"{len(os.listdir(path))}.db", NAMES, TABLE.astype(float).tolist()
        ),
        "SELECT * FROM t",
    ),
    "union": lambda path: ds.dataset(
        [folder(path / "parts"), ds.dataset(arrow(TABLE[:0]))]
    ),
}


@pytest.mark.claim("own-data", "blocks-read-once-per")
@pytest.mark.parametrize("block", [64, 300, 2**20])
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_has_the_same_records_in_the_same_order(
    kind, block, tmp_path, monkeypatch
):
    small_blocks(monkeypatch, 3 * block)
    monkeypatch.setattr(sources, "_CHECKED_NUMBERS", 3 * 41)
    for columns in (None, NAMES):
        source = as_source(KINDS[kind](tmp_path), 3, columns)
        for _ in range(2):  # any number of times
            blocks = [b.copy() for b in source.blocks()]
            assert all(len(b) == block for b in blocks[:-1])
            assert {b.dtype for b in blocks} == {source.dtype}
            np.testing.assert_array_equal(np.concatenate(blocks), GOOD)
            assert source.n_null == 4
        rows = source.loaded(keep_null=True)
        np.testing.assert_array_equal(np.isfinite(rows), np.isfinite(TABLE))
        shutil.rmtree(tmp_path / "parts", ignore_errors=True)


@pytest.mark.claim("own-data", "blocks-read-once-per")
@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 9), st.randoms())
def test_borders_do_not_show(sizes, block, random):
    rows = np.array(
        [[random.choice([1.0, -2.5, np.nan, np.inf])] * 2 for _ in range(sum(sizes))]
    )
    rows = rows.reshape(-1, 2)
    parts = np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []
    with pytest.MonkeyPatch.context() as patched:
        small_blocks(patched, 2 * block, 1)
        found = as_source(lambda: parts, 2).loaded()
    np.testing.assert_array_equal(found, rows[np.isfinite(rows).all(axis=1)])


@pytest.mark.parametrize("kind", ["ParquetFile", "data set", "array", "map"])
def test_short_floats_stay_short(kind, tmp_path):
    assert as_source(KINDS[kind](tmp_path), 3).dtype == np.float32


@pytest.mark.parametrize("value", [1e39, np.longdouble("1e4000"), 1e308])
def test_what_a_type_cannot_hold_is_a_null_record(value):
    assert len(as_source(np.array([[value], [1]]), 1).loaded()) == (
        2 if float(value) < np.inf else 1
    )


def test_sums_that_overflow_are_no_reason_to_leave_a_record_out():
    """Finite cells count, however large: those of a row are never added up."""
    for largest in (np.finfo(np.float32).max, np.finfo(np.float64).max):
        rows = np.full((4, 8), largest)
        assert len(as_source(rows, 8).loaded()) == 4


# -------------------------------------------------------------------- columns and types


def test_columns_are_chosen_by_name(tmp_path):
    path = parquet(tmp_path / "x.parquet")
    for make in (ds.dataset, pq.ParquetFile):
        found = as_source(make(path), 2, ["c", "a"]).loaded()
        np.testing.assert_array_equal(found, GOOD_OF_TWO)
        with pytest.raises(
            DataError, match=r"with 2 columns. Got 3 instead: name those"
        ):
            as_source(make(path), 2)
        with pytest.raises(
            DataError, match=r"Expected the column 'x' once. Got it 0 times"
        ):
            as_source(make(path), 2, ["a", "x"])


GOOD_OF_TWO = TABLE[:, [2, 0]][np.isfinite(TABLE[:, [2, 0]]).all(axis=1)]


CELLS = {
    "integers": (pa.array([1, None, 3]), [1, 3]),
    "booleans": (pa.array([True, None, False]), [1, 0]),
    "decimals": (pa.array([1, None, 3]).cast(pa.decimal128(22, 2)), [1, 3]),
    "text": (pa.array(["1.5", "n/a", " 3"]), [1.5, 3]),
    "dictionary": (pa.array(["1.5", "n/a", "1.5"]).dictionary_encode(), [1.5, 1.5]),
    "half floats": (pa.array(np.array([1, np.nan, 3], np.float16)), [1, 3]),
    "nothing": (pa.nulls(3), []),
}


@pytest.mark.claim("own-data", "cell-without-number-null")
@pytest.mark.parametrize(("cells", "expected"), CELLS.values(), ids=CELLS)
def test_cells_of_any_type_of_numbers(cells, expected, tmp_path):
    """A cell that is none, in a column of text too, is a null record and no error."""
    source = as_source(ds.dataset(pa.table({"x": cells})), 1)
    np.testing.assert_array_equal(source.loaded()[:, 0], expected)
    assert source.n_null == 3 - len(expected)


@pytest.mark.claim("own-data", "cell-without-number-null")
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary("int32", "utf8")]
)
def test_a_cell_of_text_that_is_not_utf8_is_a_null_record(kind, tmp_path):
    """Neither pyarrow nor a parquet file checks the bytes of text before somebody reads them."""
    cells = pa.array([b"1.5", b"\xff", b"3"]).view(pa.string())
    cells = (
        cells.dictionary_encode() if pa.types.is_dictionary(kind) else cells.cast(kind)
    )
    table = pa.table({"x": cells, "y": [1, 2, 3]})
    pq.write_table(table, tmp_path / "x.parquet")
    file = tmp_path / "x.parquet"
    for records in (
        ds.dataset(file),
        pq.ParquetFile(file),
        ds.dataset(table),
        table,
        lambda: [table],
    ):
        np.testing.assert_array_equal(
            as_source(records, 2).loaded(), [[1.5, 1], [3, 3]]
        )


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([0], pa.timestamp("s")),
        pa.array([0], pa.date32()),
        pa.array([[1.0]]),
        pa.array([{"x": 1.0}]),
    ],
)
def test_columns_that_hold_no_numbers_are_refused(cells):
    with pytest.raises(
        ConfigurationTypeError, match="Expected the column 'x' as numbers"
    ):
        as_source(ds.dataset(pa.table({"x": cells})), 1)


@pytest.mark.claim("own-data", "maps-data-sets-whose")
def test_every_file_of_a_data_set_has_the_columns(tmp_path):
    """Pyarrow would make up nulls, and convert one cell after the other."""
    parquet(tmp_path / "0.parquet")
    for other, message in (
        (arrow(names=["a", "b", "x"]), "Expected the column 'c' in every file"),
        (arrow(TABLE.astype(float)), "Expected the column '.' as float in every file"),
    ):
        parquet(tmp_path / "1.parquet", other)
        source = as_source(ds.dataset(tmp_path), 3, NAMES)
        with pytest.raises(DataError, match=message):
            next(source.blocks())


def test_a_folder_may_name_a_column(tmp_path):
    ds.write_dataset(
        arrow(np.column_stack([GOOD[:, :2], np.arange(len(GOOD)) % 2])),
        tmp_path,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("c", pa.float32())]), flavor="hive"),
    )
    found = as_source(ds.dataset(tmp_path, partitioning="hive"), 3, NAMES).loaded()
    assert sorted(found[:, 2]) == sorted(np.arange(len(GOOD)) % 2)


def test_files_whose_cells_decide_their_types_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n7.891,secret\n")
    source = as_source(ds.dataset(tmp_path / "x.csv", format="csv"), 2)
    with pytest.raises(DataError, match="columns have types") as caught:
        source.loaded()
    assert "secret" not in str(caught.value)


# ---------------------------------------------------------------------- files that fail


@pytest.mark.claim("own-data", "maps-data-sets-whose")
@pytest.mark.parametrize("kind", ["map", "data set", "folder"])
def test_files_that_change_during_a_pass_are_an_error(kind, tmp_path, monkeypatch):
    small_blocks(monkeypatch, 3 * 64)
    source = as_source(KINDS[kind](tmp_path), 3)
    blocks = source.blocks()
    next(blocks)
    for path in tmp_path.rglob("*.*"):
        os.utime(path, ns=(0, 1))
    with pytest.raises(DataError, match="do not change while they are read"):
        list(blocks)
    assert len(source.loaded()) == len(GOOD)  # the next pass begins anew


@pytest.mark.claim("own-data", "maps-data-sets-whose")
@pytest.mark.parametrize("kind", ["map", "data set", "folder"])
def test_files_that_vanish_are_an_error(kind, tmp_path):
    source = as_source(KINDS[kind](tmp_path), 3)
    for path in tmp_path.rglob("*.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"do not change|can be read"):
        source.loaded()


@pytest.mark.claim("own-data", "maps-data-sets-whose")
@pytest.mark.parametrize("offset", [0, 3 * 2**16])
def test_a_file_that_became_shorter_than_its_map_is_an_error(offset, tmp_path):
    """To read what it no longer has would end the process."""
    path = tmp_path / "x"
    path.write_bytes(bytes(offset) + TABLE.tobytes())
    table = np.memmap(path, np.float32, "r", offset, TABLE.shape)
    for rows in (table, table[::-1], np.asarray(table)[:, ::-1]):
        source = as_source(rows, 3)
        assert len(source.loaded()) == len(GOOD)
        os.truncate(path, offset + 4096)
        with pytest.raises(DataError, match="as long as when it was mapped"):
            next(source.blocks())
        path.write_bytes(bytes(offset) + TABLE.tobytes())


@pytest.mark.claim("own-data", "maps-data-sets-whose")
@pytest.mark.parametrize("make", [ds.dataset, pq.ParquetFile])
def test_files_that_cannot_be_read_are_an_error_without_their_text(make, tmp_path):
    path = parquet(tmp_path / "x.parquet", compression="snappy")
    source = as_source(make(path), 3)
    data = bytearray(path.read_bytes())
    data[4:2000] = b"7.891" * 399 + b"x"
    path.write_bytes(data)
    with pytest.raises(DataError, match="Expected records that can be read") as caught:
        source.loaded()
    assert "7.891" not in str(caught.value)


def test_a_closed_file_is_an_error(tmp_path):
    file = pq.ParquetFile(parquet(tmp_path / "x.parquet"))
    source = as_source(file, 3)
    file.close(force=True)
    with pytest.raises(DataError, match="can be read"):
        source.loaded()


# --------------------------------------------------------------------------- chunks


def test_a_factory_returns_chunks_anew_at_each_call():
    used_up = chunks_of(100)()
    source = as_source(lambda: used_up, 3)
    source.loaded()
    with pytest.raises(
        ConfigurationTypeError, match=r"anew at each call. Got the same iterator"
    ):
        source.loaded()
    # As in a later message, and in a run after its records were checked.
    generator = (chunk for chunk in [np.ones((2, 3))])
    as_source(lambda: generator, 3).loaded()
    with pytest.raises(ConfigurationTypeError, match="the same iterator twice"):
        as_source(lambda: generator, 3).loaded()
    iterator = iter([np.ones((2, 3))])
    with pytest.raises(ConfigurationTypeError, match="the same iterator twice"):
        checked_source(lambda: iterator, 3, None, "records")
    with pytest.raises(
        ConfigurationTypeError, match=r"iterable of chunks, anew.* Got int"
    ):
        as_source(lambda: 7, 3).loaded()
    for chunks in (chunks_of(100)(), iter([TABLE])):  # not the function
        with pytest.raises(
            ConfigurationTypeError, match=r"Expected a function.* Got the iterable"
        ):
            as_source(chunks, 3)


@pytest.mark.claim("own-data", "columns-domain-chooses-columns")
def test_chunks_are_tables_of_the_runs_columns():
    for chunk, message in (
        (np.zeros((2, 4)), "with 3 columns. Got 4"),
        (np.zeros(3), "two-dimensional"),
        (arrow(names=["a", "c", "b"]), "with the columns"),
    ):
        source = as_source(lambda chunk=chunk: [TABLE, chunk], 3, NAMES)
        with pytest.raises(DataError, match=message):
            source.loaded()


def test_no_chunks_are_no_records():
    assert as_source(lambda: [], 3).loaded().shape == (0, 3)
    assert as_source(ds.dataset(arrow(TABLE[:0])), 3).loaded().shape == (0, 3)


def test_blocks_are_copies_of_bounded_size():
    """What happens to the loader's memory while a block is used changes nothing."""
    table = np.ones((100, 2))
    (block,) = as_source(table, 2).blocks()
    table[:] = 7
    assert (block == 1).all()


# -------------------------------------------------------------------------- simulations


def test_a_simulation_may_tell_which_record_is_malformed(tmp_path, monkeypatch):
    small_blocks(monkeypatch, 3 * 64)
    for kind in ("array", "map", "chunks", "data set"):
        with pytest.raises(
            DataError, match=r"Expected partitions\[4\] to be finite.* in row 3"
        ):
            checked_source(KINDS[kind](tmp_path), 3, None, "partitions[4]")
    late = lambda: [TABLE[10:]]  # noqa: E731
    with pytest.raises(DataError, match="in row 490"):
        checked_source(late, 3, None, "x")
    for good in (GOOD, GOOD.astype(float), lambda: [GOOD]):
        assert checked_source(good, 3, None, "x") is good
    assert is_stream(late)
    assert not is_stream(GOOD)
    np.testing.assert_array_equal(checked_source(GOOD.tolist(), 3, None, "x"), GOOD)
    assert check_records(GOOD).dtype == np.float64


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_finite_records_in_memory_are_read_in_place(kind, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK_NUMBERS", 8)
    rows = np.arange(21, dtype=kind).reshape(7, 3)
    source = finite_source(rows)
    for _ in range(2):
        blocks = list(source.blocks())
        assert all(np.shares_memory(block, rows) for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), rows)
    assert source.n_null == 0
    assert source.loaded().dtype == kind
    assert not np.shares_memory(source.loaded(), rows)
