"""Columns as people have them: declared in a file, encoded cell by cell, and read back."""

import math
import pickle
from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from zoneinfo import ZoneInfo

import mpmath
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset
from habits import EMPTY, READ, REFUSED, X
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import dataset as files
from pyarrow import parquet

from flower_kmeans import Box, PrivacyBudget, TableDomain, simulate
from flower_kmeans.data.domain import GridRecords, difference, domain_from_config
from flower_kmeans.data.sources import as_source
from flower_kmeans.data.spelling import is_missing
from flower_kmeans.data.table_domain import (
    Category,
    Date,
    Number,
    declared_as,
    domain_arrays,
    domain_of,
)
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.sklearn import PrivateKMeans
from flower_kmeans.strategies import GLloyd, Lloyd, SynopsisKMeans

pytestmark = pytest.mark.claim("guarantees", "7")

DAYS = date(2020, 1, 1), date(2024, 12, 31)
AGE = Number("age", 0, 120, missing=40)
INCOME = Number("income", 1000, 1_000_000, scale="log")
WARD = Category("ward", ("surgery", "007", "other"), missing="other")
ADMITTED = Date("admitted", *DAYS)
DOMAIN = TableDomain([AGE, INCOME, WARD, ADMITTED])
GOOD = {"age": 41, "income": 10_000, "ward": "surgery", "admitted": "2024-02-29"}
ROW = [41, 4, 1, 0, 0, date(2024, 2, 29).toordinal()]
NAN = [math.nan] * 6


def encoded(*rows, domain=DOMAIN, malformed="nan"):
    """Return records from rows of changes to a good one."""
    table = {name: [{**GOOD, **row}[name] for row in rows] for name in GOOD}
    return domain.encode(table, malformed)


# ------------------------------------------------------------------------- declarations


def test_a_box_with_names_that_say_what_was_done():
    names = [
        "age",
        "log10(income)",
        "ward=surgery",
        "ward=007",
        "ward=other",
        "days(admitted)",
    ]
    low, high = (float(day.toordinal()) for day in DAYS)
    lower, upper = [0, 3, 0, 0, 0, low], [120, 6, 1, 1, 1, high]
    box = Box(lower, upper, columns=names, categories=[(2, 5)])
    assert DOMAIN.to_config() == box.to_config()
    assert domain_from_config(DOMAIN.to_config()) == box
    assert difference(DOMAIN, box) is difference(box, DOMAIN) is None
    assert pickle.loads(pickle.dumps(DOMAIN)) == DOMAIN  # noqa: S301
    assert hash(DOMAIN) == hash(TableDomain(DOMAIN.declared))


_names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)
_numbers = st.floats(1e-6, 1e9)
_weights = st.sampled_from([0.1, 0.5, 1.0, 3.0])
_dates = st.dates(date(1900, 1, 1), date(2100, 1, 1))


@st.composite
def columns(draw, name):
    kind, stated = (
        draw(st.sampled_from(["number", "category", "date"])),
        draw(st.booleans()),
    )
    if kind == "category":
        values = tuple(draw(st.lists(_names, min_size=2, max_size=5, unique=True)))
        missing = draw(st.sampled_from(values)) if stated else None
        return Category(name, values, missing, weight=draw(_weights))
    lower = draw(_numbers if kind == "number" else _dates)
    width = draw(st.integers(1, 9999))
    upper = lower * (1 + width) if kind == "number" else lower + timedelta(width)
    missing = draw(st.sampled_from([lower, upper])) if stated else None
    if kind == "date":
        return Date(name, lower, upper, missing)
    return Number(name, lower, upper, draw(st.sampled_from(["linear", "log"])), missing)


@st.composite
def domains(draw):
    names = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    marked = draw(st.booleans())
    return TableDomain(
        [draw(columns(f"c {i} {n}")) for i, n in enumerate(names)], marked
    )


@given(domains())
@settings(max_examples=100, deadline=None)
def test_a_file_says_all_of_a_domain(domain):
    text = domain.to_toml()
    again = TableDomain.from_toml(("\ufeff" + text.replace("\n", "\r\n")).encode())
    assert (again, again.digest, again.to_toml()) == (domain, domain.digest, text)
    assert text.startswith("# NOT PRIVATE") == domain.from_records


def test_the_digest_has_what_the_box_has_not():
    others = [
        TableDomain([Number("age", 0, 120, missing=missing)], marked)
        for missing in (None, 40, 41)
        for marked in (False, True)
    ]
    assert len({other.digest for other in others}) == 6
    assert {difference(others[0], other) for other in others} == {None}


@pytest.mark.parametrize(
    ("lower", "upper"), [(1e-3, 1e5), (2, 3), (0.1, 1e300), (5e-300, 7)]
)
def test_logarithms_of_bounds_are_those_of_every_machine(lower, upper):
    """Parties compare bounds to the last bit, and their C libraries round as they like."""
    with mpmath.workprec(200):
        exact = [float(mpmath.log10(mpmath.mpf(bound))) for bound in (lower, upper)]
    domain = TableDomain([Number("x", lower, upper, "log")])
    assert [*domain.lower, *domain.upper] == exact


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "one or more different names"),
        ([AGE, Date("age", *DAYS)], "one or more different names"),
        (
            [Category("a", ("b", "c")), Number("a=b", 0, 1)],
            "one or more different names",
        ),
        ([Number("a\n", 0, 1)], "printable"),
        ([Number("a", 1, 1)], "lower below upper in the column 'a'. Got 1.0 and 1.0"),
        ([Number("a", 0, math.nan)], "lower below upper"),
        ([Number("a", 0, math.inf)], "finite"),
        ([Number("a", 0, 1, "log")], "lower above 0 in the column 'a'"),
        ([Number("a", 0, 1, "sqrt")], "Invalid enum value 'sqrt'"),
        (
            [Number("a", 0, 1, missing=2)],
            "missing of the column 'a' within its bounds. Got 2.0",
        ),
        ([Number("a", "0", 1)], "Expected `float`, got `str`"),
        ([Number("a", True, 1)], "Expected `float`, got `bool`"),
        ([Date("a", DAYS[1], DAYS[0])], "lower below upper"),
        ([Date("a", *DAYS, missing=date(1999, 1, 1))], "within its bounds"),
        ([Category("a", ("b",))], "two or more"),
        ([Category("a", ("b", "b"))], "different names"),
        ([Category("a", ("b", " c"))], "without spaces"),
        (
            [Category("a", ("b", "c"), "d")],
            "missing of the column 'a' as one of its values",
        ),
        (["age"], "got `str`"),
        (7, "not iterable"),
    ],
)
def test_declarations_that_cannot_be_are_one_sentence(declared, message):
    with pytest.raises(ConfigurationError) as error:
        TableDomain(declared)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "columns = 1",
        "[[column]]\nname = 'a'",
        "[[columns]]\nname = 'a'\nlower = 0\nupper = 1",
        "[[columns]]\nkind = 'number'\nname = 'a'\nlower = 0\nupper = 1\nuper = 2",
        "[[columns]]\nkind = 'date'\nname = 'a'\nlower = 2020-01-01\nupper = 7",
        "not TOML",
        f"columns = {'[' * 100_000}{']' * 100_000}",
        f"columns = {'[' * 900}{']' * 900}",
        b"\xff",
    ],
)
def test_files_that_are_no_domain_are_one_sentence(text, tmp_path):
    path = tmp_path / "domain.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        ConfigurationError, match=r"domain file .*domain\.toml as a domain"
    ):
        TableDomain.from_file(path)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        TableDomain.from_file(tmp_path / "nothing.toml")


# --------------------------------------------------------------------- records and back


@given(domains(), st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_encoded_is_read_back(domain, data):
    table = {}
    for column in domain.declared:
        if isinstance(column, Category):
            cells = st.sampled_from(column.values)
        elif isinstance(column, Date):
            cells = st.dates(column.lower, column.upper)
        else:
            cells = st.floats(column.lower, column.upper)
        table[column.name] = data.draw(st.lists(cells, min_size=3, max_size=3))
    records = domain.encode(table)
    assert (np.array(domain.lower) <= records).all()
    assert (records <= np.array(domain.upper)).all()
    read = domain.decode(domain.from_unit(domain.to_unit(records)))
    for column in domain.declared:
        if isinstance(column, Category):
            shares = np.array(
                [read[f"{column.name}={value}"] for value in column.values]
            )
            expected = np.array(
                [[v == c for c in table[column.name]] for v in column.values]
            )
            np.testing.assert_allclose(shares, expected, atol=1e-9)
        elif isinstance(column, Date):
            assert read[column.name] == table[column.name]
        else:
            np.testing.assert_allclose(
                read[column.name], table[column.name], rtol=1e-7, atol=1e-7
            )


def test_no_logarithm_is_rounded_beyond_the_bounds():
    for i in range(1, 200):
        lower, upper = i / 7, i / 3
        domain = TableDomain([Number("x", lower, upper, "log"), Number("y", 0, 1)])
        records = domain.encode({"x": [lower, upper, 0, 1e300], "y": [0] * 4})
        (low, _), (high, _) = domain.lower, domain.upper
        assert ((low <= records[:, 0]) & (records[:, 0] <= high)).all()
        np.testing.assert_allclose(
            records[:, 0], [low, high, low, high], rtol=0, atol=1e-12
        )


def test_values_beyond_the_bounds_are_moved_to_them():
    row = {"age": -3, "income": 0, "admitted": "1999-01-01"}
    (record,) = encoded(row)
    assert record.tolist() == [0, 3, 1, 0, 0, DAYS[0].toordinal()]
    (record,) = DOMAIN.to_unit(
        encoded({"age": 1e300, "income": 1e300, "admitted": "9999-12-31"})
    )
    high, low = math.sqrt(0.5) * 2 / 3, -math.sqrt(0.5) / 3
    assert record.tolist() == pytest.approx([1, 1, high, low, low, 1])


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        ("age", [41.0, "41", " 4.1e1 ", b"41", np.int8(41), 41 + 0j], ROW),
        ("age", ["", None, "n/a", math.nan, " NULL ", b"", pd.NA, pd.NaT], [40, *ROW[1:]]),
        ("age", [math.inf, "1_0", [41], date.max, "x", "0x29", "4,1", b"\xff"],
         [math.nan, *ROW[1:]]),
        ("income", ["", None, "n/a", math.nan, "-inf", object()], [41, math.nan, *ROW[2:]]),
        ("ward", ["surgery", " surgery ", b"surgery", np.str_("surgery")], ROW),
        ("ward", ["", None, "Surgery", "7", 7.0, math.nan, pd.NA, b"\xff", ["surgery"]],
         [41, 4, 0, 0, 1, ROW[5]]),
        ("admitted", ["2024-02-29", " 2024-02-29T23:59 ", date(2024, 2, 29), b"2024-02-29",
                      datetime(2024, 2, 29, 12), pd.Timestamp("2024-02-29 03:00"),
                      np.datetime64("2024-02-29T12:00")], ROW),
        ("admitted", ["", None, "29.2.2024", "2023-02-29", pd.NaT, 45351, math.nan],
         [*ROW[:5], math.nan]),
    ],
)  # fmt: skip
def test_each_cell_is_what_it_is_by_itself(name, cells, expected):
    for cell in cells:
        np.testing.assert_array_equal(encoded({name: cell}), [expected])
        mixed = encoded({}, {name: cell}, {name: "\0"}, {})
        np.testing.assert_array_equal(mixed[[0, 1, 3]], [ROW, expected, ROW])


@pytest.mark.parametrize(
    ("cells", "texts"),
    [([0, 1, 7], "017"), ([0.0, 1.0, 7.0], "017"), ([True, False], "tf")],
)
def test_categories_may_be_whole_numbers_and_truths(cells, texts):
    values = tuple({"t": "true", "f": "false"}.get(text, text) for text in texts)
    domain = TableDomain([Category("c", values)])
    for column in (
        cells,
        np.array(cells),
        [*np.array(cells)],
        pd.Series(cells),
        pa.array(cells),
    ):
        table = {"c": column}
        np.testing.assert_array_equal(domain.encode(table), np.eye(len(cells)))


def test_tables_of_all_kinds_give_the_same_records(tmp_path):
    frame = pd.DataFrame(
        {
            "name": ["x", "y", "z"],
            "admitted": pd.to_datetime(["2024-02-29", "2021-01-01", None]),
            "ward": ["surgery", None, "007"],
            "income": [10_000, 1e4, 1e5],
            "age": [41, None, 3],
        }
    )
    table = pa.Table.from_pandas(frame)
    dates = table.column("admitted").cast(pa.date32())
    wards = table.column("ward").dictionary_encode()
    other = table.set_column(1, "admitted", dates).set_column(2, "ward", wards)
    expected = [ROW, [40, 4, 0, 0, 1, date(2021, 1, 1).toordinal()],
                [3, 5, 0, 1, 0, math.nan]]  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    text = frame.astype(object).where(frame.notna(), "").astype(str)
    np.savez(tmp_path / "t.npz", **{name: text[name].to_numpy(str) for name in text})
    parquet.write_table(other, tmp_path / "t.parquet")
    paths = [tmp_path / f"t.{suffix}" for suffix in ("csv", "npz", "parquet")]
    options = {"domain": DOMAIN, "malformed": "nan", "header": True}
    loaded = [load_table(path, keep=["name"], **options) for path in paths]
    batch = pa.RecordBatch.from_pandas(frame)
    tables = [
        DOMAIN.encode(each, "nan") for each in (frame, table, other, batch, dict(frame))
    ]
    for records in (*tables, *(each.records for each in loaded)):
        np.testing.assert_array_equal(records, expected)
    assert {each.columns for each in loaded} == {DOMAIN.columns}
    assert [each.column("name").tolist() for each in loaded] == [["x", "y", "z"]] * 3
    # Records beyond memory, a batch at a time.
    stored = files.dataset(tmp_path / "t.parquet")
    source = as_source(
        lambda: (DOMAIN.encode(b, "nan") for b in stored.to_batches()), 6
    )
    np.testing.assert_array_equal(source.loaded(), expected[:2])
    assert source.n_null == 1


ONE = {name: [1] for name in GOOD}


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"age": [1]},
        [[1, 2]],
        None,
        {**ONE, "ward": ["a", "b"]},
        {**ONE, "age": np.ones((1, 1))},
        {**ONE, "age": np.ma.masked_array([1.0], [True])},
    ],
)
def test_what_is_no_such_table_is_an_error(table):
    for malformed in ("error", "nan"):
        with pytest.raises(
            DataError, match=r"Expected (the column|columns of one length)"
        ):
            DOMAIN.encode(table, malformed)


# ------------------------------------------------------------------------ missing cells


_some = st.sampled_from(["surgery", "2022-05-05", "5", b"5", b"\xff", pd.NaT, [5]])
_cells = st.one_of(
    _some, st.none(), st.text(max_size=4), st.floats(), st.integers(), st.dates()
)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(GOOD, _cells)), max_size=5))
@settings(max_examples=200, deadline=None)
def test_no_record_raises_or_changes_another(rows):
    records = encoded(*rows, {}) if rows else encoded({})
    assert records.shape == (len(rows) + 1, 6)
    for row, record in zip([*rows, {}], records, strict=True):
        np.testing.assert_array_equal(encoded(row), [record])
        assert np.isfinite(record[[2, 3, 4]]).all() or np.isnan(record).all()
        if is_missing(row.get("age", GOOD["age"])) and not np.isnan(record).all():
            assert record[0] == AGE.missing


def test_a_record_without_any_usable_cell_is_a_null_record():
    domain = TableDomain([AGE, WARD])
    records = domain.encode({"age": ["", "na", "3"], "ward": ["?", "007", None]}, "nan")
    np.testing.assert_array_equal(
        records, [[math.nan] * 4, [40, 0, 1, 0], [3, 0, 0, 1]]
    )
    with pytest.raises(DataError, match="usable cell in every record"):
        domain.encode({"age": [""], "ward": [""]})


def test_a_holder_is_told_which_column_needs_a_rule():
    np.testing.assert_array_equal(
        encoded({"age": ""}, malformed="error"), [[40, *ROW[1:]]]
    )
    with pytest.raises(
        DataError, match=r"1 of 2 cells of 'income'; 1 of 2 cells of 'admitted'"
    ):
        encoded({"income": "", "admitted": None}, {}, malformed="error")
    with pytest.raises(
        DataError, match=r"'income' hold no number.*'admitted' hold no date"
    ) as e:
        encoded({"income": "secret", "admitted": "secret"}, {}, malformed="error")
    assert "secret" not in str(e.value)


LINES = b"age,income,ward,admitted\n41,10000,surgery,2024-02-29\n"


@pytest.mark.parametrize(
    "line", [b",,,", b"1,2", b"1,2,3,4,5", b'"41', b"\xff,\xff,\xff,\xff", b";"]
)
def test_a_malformed_line_of_a_file_is_a_null_record(line, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(LINES + line + b"\n" + LINES.splitlines()[1])
    options = {"domain": DOMAIN, "malformed": "nan", "header": True}
    np.testing.assert_array_equal(load_table(path, **options).records, [ROW, NAN, ROW])
    if line == b",,,":  # all cells are missing, and none is malformed
        np.testing.assert_array_equal(
            load_table(path, domain=DOMAIN).records, [ROW, ROW]
        )
    else:
        with pytest.raises(DataError, match="1 of 3"):
            load_table(path, domain=DOMAIN)


def test_files_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(LINES.replace(b"surgery", b"007"))
    table = load_table(path, domain=DOMAIN, label="ward", keep=["ward"])
    assert table.records.tolist() == [[41, 4, 0, 1, 0, ROW[5]]]
    assert (table.labels.tolist(), table.column("ward").tolist()) == (["007"], ["007"])
    bare = load_table(path, domain=DOMAIN, header=["age", "income", "ward", "admitted"],
                      malformed="nan")  # fmt: skip
    np.testing.assert_array_equal(bare.records, [NAN, table.records[0]])
    with pytest.raises(ConfigurationError, match="features or domain"):
        load_table(path, domain=DOMAIN, features=["age"])
    with pytest.raises(ConfigurationError, match="header"):
        load_table(path, domain=DOMAIN, malformed="nan")
    path.write_bytes(b"age,41\n41,41\n")
    with pytest.raises(DataError, match="'income' once in the table") as error:
        load_table(path, domain=DOMAIN, header=True)
    # which has a number of its run
    assert "41" not in str(error.value).replace(str(path), "")


def test_a_column_may_be_empty_where_its_cells_have_a_rule(tmp_path):
    path, header = tmp_path / "t.csv", LINES.splitlines()[0]
    path.write_bytes(header + b"\n,10000,,2024-02-29\n, 10000, ,2024-02-29\n")
    records = load_table(path, domain=DOMAIN).records
    np.testing.assert_array_equal(records, [[40, 4, 0, 0, 1, ROW[5]]] * 2)
    path.write_bytes(header + b"\n")
    assert load_table(path, domain=DOMAIN).records.shape == (0, 6)
    path.write_bytes(header + b"\n,10000,ICU,2024-02-29\n,10000,,2024-02-29\n")
    with pytest.raises(
        DataError, match=r"1 of 2 cells of 'ward' hold none of its categories"
    ):
        load_table(path, domain=DOMAIN)


def test_one_cell_that_is_not_utf_8_does_not_stop_a_parquet_file(tmp_path):
    cells = pa.array([b"surgery", b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, cells.buffers())
    good = {name: [value] * 2 for name, value in GOOD.items()}
    parquet.write_table(pa.table({**good, "ward": text}), tmp_path / "t.parquet")
    table = load_table(tmp_path / "t.parquet", domain=DOMAIN)
    assert table.records[:, 2:5].tolist() == [[1, 0, 0], [0, 0, 1]]
    numbers = load_table(
        tmp_path / "t.parquet", features=["age", "ward"], malformed="nan"
    )
    np.testing.assert_array_equal(numbers.records, [[41, math.nan]] * 2)
    table = load_table(tmp_path / "t.parquet", features=["age", "income"])
    np.testing.assert_array_equal(table.records, [[41, 10_000]] * 2)


# -------------------------------------------------------------------------- sensitivity


BITS = 4
SMALL = TableDomain(
    [
        Number("x", 1, 100, "log"),
        Category("c", ("a", "b", "c"), "c"),
        Date("d", date(2024, 1, 1), date(2024, 1, 3)),
    ]
)
CELLS = product(
    ["", 0, 1, 10, 99, 1e9], ["a", "b", "c", "?"], ["", "1999-01-01", "2024-01-02"]
)


def every_record():
    """Return every record of a small domain that a table can hold, on its grid, (n, 5)."""
    rows = zip(*CELLS, strict=True)
    records = SMALL.encode(dict(zip("xcd", map(list, rows), strict=True)), "nan")
    (block,) = GridRecords(
        records[np.isfinite(records).all(axis=1)], SMALL, BITS
    ).blocks(999)
    return block


def test_sensitivity_is_that_of_the_box_and_attained():
    """A record adds at most the box's bounds; a category adds the same at every level."""
    grid = every_record()
    high, low = 7.0, -3.0  # of sqrt(0.5) 2^4 (1 - 1/3) = 7.5 and -3.8
    assert len(grid) == 5 * 4 * 2
    norms = np.linalg.norm(grid, axis=1)
    assert norms.max() == pytest.approx(SMALL.l2_bound(BITS), rel=1e-12)
    assert np.abs(grid).sum(axis=1).max() == SMALL.l1_bound(BITS)
    assert {*grid[:, 1:4].ravel()} == {high, low}
    assert {*(grid[:, 1:4] == high).sum(axis=1)} == {1}
    # Replaced by another record: at most two coordinates of a category, by all of their
    # width.
    changes = np.abs(grid[:, None, 1:4] - grid[None, :, 1:4])
    assert {*changes.ravel()} == {0, high - low}
    assert (changes > 0).sum(axis=2).max() == 2
    assert np.linalg.norm(
        grid[:, None] - grid[None], axis=2
    ).max() <= 2 * SMALL.l2_bound(BITS)


@pytest.mark.claim("reference/domains", "policy-pins-domain-runs")
def test_what_was_read_off_records_has_no_private_budget():
    read_off = TableDomain(DOMAIN.declared, from_records=True)
    with pytest.raises(ConfigurationError, match="read off records"):
        GLloyd(2, read_off, PrivacyBudget(1.0), n_records=100)
    with pytest.raises(ConfigurationError, match="public knowledge"):
        PrivateKMeans(2, bounds=read_off, n_records=3).fit(encoded({}, {}, {}))
    assert Lloyd(2, read_off, n_records=100).domain is read_off


def test_sums_of_categories_are_exact_counts():
    """A category has two grid points, whatever the fractional bits: sums count its records."""
    cells = ["a"] * 5 + ["b"] * 3 + ["?"] * 2
    domain = TableDomain([Category("c", ("a", "b", "other"), "other")])
    records = domain.encode({"c": cells, "other column": cells}, "nan")
    # Of a table with one column, a cell that is not declared leaves no usable cell.
    assert int(np.isnan(records).any(axis=1).sum()) == 2
    (grid,) = GridRecords(records[:8], domain, BITS).blocks(99)
    low, high = grid.min(), grid.max()
    assert ((grid.sum(axis=0) - 8 * low) / (high - low)).tolist() == [5, 3, 0]


def test_a_run_over_all_kinds_of_columns_finds_the_groups():
    rng = np.random.default_rng(3)
    n, group = 600, np.repeat([0, 1], 300)
    table = {
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(30 + 40 * group, 5)),
        "income": 10.0 ** rng.normal(3.5 + 1.5 * group, 0.2),
        "ward": np.where(group == 1, "surgery", "007"),
        "admitted": np.datetime64("2021-01-01")
        + (700 * group + rng.integers(0, 30, n)),
    }
    strategy = Lloyd(2, DOMAIN, n_records=n)
    records = DOMAIN.encode(table)
    clustering = simulate(strategy, np.array_split(records[rng.permutation(n)], 4))
    assert clustering.domain is DOMAIN
    found = {
        name: np.array(values)
        for name, values in DOMAIN.decode(clustering.centroids).items()
    }
    order = np.argsort(found["income"])
    np.testing.assert_allclose(np.log10(found["income"][order]), [3.5, 5], atol=0.05)
    # up to a step of the grid
    np.testing.assert_allclose(found["ward=surgery"][order], [0, 1], atol=2.0**-15)
    assert found["admitted"][order][0].year == 2021
    labels = clustering.predict(records)
    assert max(np.mean(labels == group), np.mean(labels != group)) == 1


# --------------------------------------------------------------------- habits of tables

BIG = 2**53
IDS = Category("c", (str(BIG), str(BIG + 1), str(BIG + 2), "7"))
FIRST_IDS = [BIG + 1, None, 7]


def columns_of(cells):
    """Return tables with a column of these cells, of libraries that keep what each cell is."""
    listed = pa.array(cells)
    whole = pd.array(cells, dtype="Int64")
    tables = {
        "list": {"c": cells},
        "Int64": pd.DataFrame({"c": whole}),
        "extension": {"c": whole},
        "pandas pyarrow": pd.DataFrame(
            {"c": pd.array(cells, dtype=pd.ArrowDtype(pa.int64()))}
        ),
        "pandas objects": pd.DataFrame({"c": pd.Series(cells, dtype=object)}),
        "pandas category": pd.DataFrame({"c": pd.Categorical(whole)}),
        "polars": pl.DataFrame({"c": cells}),
        "polars series": {"c": pl.Series(cells)},
        "pyarrow": pa.table({"c": listed}),
        "pyarrow decimals": pa.table({"c": listed.cast(pa.decimal128(20, 1))}),
        "pyarrow dictionary": pa.table({"c": listed.dictionary_encode()}),
        "datasets": Dataset.from_dict({"c": cells}),
        "datasets shuffled": Dataset.from_dict({"c": cells[::-1]}).select(
            range(len(cells))[::-1]
        ),
        "text": {"c": [None if cell is None else str(cell) for cell in cells]},
    }
    codes = [-1 if cell is None else i for i, cell in enumerate(cells)]
    listed_categories = [i if cell is None else cell for i, cell in enumerate(cells)]
    tables["codes"] = pd.DataFrame(
        {"c": pd.Categorical.from_codes(codes, listed_categories)}
    )
    return tables


@pytest.mark.claim("reference/domains", "run-no-cell-error")
@pytest.mark.parametrize("kind", columns_of(FIRST_IDS))
def test_a_large_integer_is_its_category_beside_a_missing_cell(kind):
    encode = TableDomain([IDS]).encode
    nothing = [math.nan] * 4
    expected = [[0, 1, 0, 0], nothing, [0, 0, 0, 1]]
    np.testing.assert_array_equal(encode(columns_of(FIRST_IDS)[kind], "nan"), expected)
    alone = [
        encode(columns_of([cell, 8])[kind], "nan")[0]
        for cell in (BIG + 1, BIG, BIG + 2)
    ]
    np.testing.assert_array_equal(alone, np.eye(4)[[1, 0, 2]])


def test_a_float_that_may_be_another_integer_is_in_no_category():
    """What pandas makes of integers beside a missing cell, unless a type is named."""
    encode = TableDomain([IDS]).encode
    for cells in (
        FIRST_IDS,
        [float(BIG), 1e300, 7.0],
        np.array([BIG, np.inf, 7], np.longdouble),
    ):
        found = encode(pd.DataFrame({"c": cells}), "nan")
        np.testing.assert_array_equal(found, [[math.nan] * 4] * 2 + [[0, 0, 0, 1]])
    for cells in (np.array([BIG + 1, 7]), np.array([BIG + 1, 7], np.uint64)):
        np.testing.assert_array_equal(encode({"c": cells}), np.eye(4)[[1, 3]])


LEAP = date(2024, 2, 29)
NEW_YORK = ZoneInfo("America/New_York")
LATE = datetime(2024, 2, 29, 23, 30, tzinfo=NEW_YORK)  # March in London
STAY = Date("d", *DAYS)
DATES_BY_CELL = [
    LEAP, datetime(2024, 2, 29, 5), LATE, pd.Timestamp(LATE), pd.Period("2024-02-29"),
    np.datetime64("2024-02-29"), np.datetime64("2024-02-29T23", "h"), "2024-02-29",
    "2024-02-29T23:30-05:00", b" 2024-02-29 ",
]  # fmt: skip
NO_DATES = [
    None, pd.NaT, pd.NA, np.datetime64("NaT"), math.nan, 5, "29.2.", b"\xff", object(),
    np.datetime64("20000-01-01"), np.datetime64(2**62, "s"), np.datetime64(2**62, "Y"),
    np.timedelta64(5, "D"),
]  # fmt: skip


@pytest.mark.claim("reference/domains", "run-no-cell-error")
@given(st.lists(st.sampled_from(DATES_BY_CELL + NO_DATES), min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_dates_of_an_object_column_are_each_read_by_themselves(cells):
    days = [
        LEAP.toordinal() if any(c is d for d in DATES_BY_CELL) else math.nan
        for c in cells
    ]
    for table in ({"d": cells}, pd.DataFrame({"d": pd.Series(cells, dtype=object)})):
        found = TableDomain([STAY]).encode(table, "nan")
        np.testing.assert_array_equal(found[:, 0], days)


def date_columns():
    """Return columns of 29 February and a missing cell, of types of dates and times."""
    utc = pd.Series(pd.to_datetime(["2024-03-01 04:30", None], utc=True))
    local = utc.dt.tz_convert("America/New_York")
    late = pa.array([LATE, None], pa.timestamp("us", "America/New_York"))
    return {
        "datetime64": np.array(["2024-02-29T05", "NaT"], "M8[ns]"),
        "pandas with a zone": local,
        "pandas categories": pd.Series(
            pd.Categorical(pd.to_datetime(["2024-02-29", None]))
        ),
        "pandas pyarrow": pd.Series(late, dtype=pd.ArrowDtype(late.type)),
        "pandas periods": pd.Series(pd.PeriodIndex(["2024-02-29", None], freq="D")),
        "pyarrow with a zone": late,
        "pyarrow date32": pa.array([LEAP, None]),
        "pyarrow date64": pa.array([LEAP, None], pa.date64()),
        "polars with a zone": pl.Series([LATE, None]).dt.convert_time_zone(
            "America/New_York"
        ),
        "polars": pl.Series([LEAP, None]),
    }


@pytest.mark.claim("reference/domains", "run-no-cell-error")
@pytest.mark.parametrize("kind", date_columns())
def test_the_date_of_a_time_is_that_in_its_own_zone(kind):
    column, domain = date_columns()[kind], TableDomain([STAY])
    tables = [{"d": column}]
    if isinstance(column, pd.Series):
        tables.append(pd.DataFrame({"d": column}))
    elif isinstance(column, pl.Series):
        tables.append(pl.DataFrame({"d": column}))
    elif isinstance(column, pa.Array):
        tables += [pa.table({"d": column}), Dataset(pa.table({"d": column}))]
    for table in tables:
        found = domain.encode(table, "nan")[:, 0]
        np.testing.assert_array_equal(found, [LEAP.toordinal(), math.nan])


def test_dates_that_are_in_no_calendar_are_none_whatever_the_unit():
    first = DAYS[0].toordinal()
    for unit, far in (
        ("Y", 2**62),
        ("M", 2**62),
        ("W", 2**61),
        ("D", 2**62),
        ("s", 2**62),
    ):
        column = np.array([far, 0, -far], f"M8[{unit}]")
        found = TableDomain([STAY]).encode({"d": column}, "nan")[:, 0]
        np.testing.assert_array_equal(found, [math.nan, first, math.nan])
    for unit in ("ps", "fs", "as"):
        found = TableDomain([STAY]).encode({"d": np.array([5], f"M8[{unit}]")}, "nan")
        assert found.tolist() == [[first]]
    ends = pd.Series(
        [pd.Timestamp.min, pd.Timestamp.max, pd.Timestamp(2024, 2, 29, 12)]
    )
    zoned = pd.DataFrame({"d": ends.dt.tz_localize("UTC").dt.tz_convert(NEW_YORK)})
    assert TableDomain([STAY]).encode(zoned, "nan")[2, 0] == LEAP.toordinal()
    months = pd.DataFrame(
        {"d": pd.PeriodIndex(["2024-02", "9999-12", "2024-03"], freq="M")}
    )
    found = TableDomain([STAY]).encode(months, "nan")[:, 0]
    assert found.tolist() == [date(2024, 2, 1).toordinal(), *[DAYS[1].toordinal()],
                              date(2024, 3, 1).toordinal()]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        (
            pd.date_range("2024", periods=2),
            Number("x", 0, 1),
            "as numbers. Got datetime64",
        ),
        (pl.Series([LEAP] * 2), Number("x", 0, 1), "as numbers. Got Date"),
        (pa.array([[1], [2]]), Number("x", 0, 1), "as numbers. Got list"),
        (pd.to_timedelta([1, 2]), Date("x", *DAYS), "as dates. Got timedelta64"),
        (pl.Series([time(5)] * 2), Date("x", *DAYS), "as dates. Got Time"),
        (pa.array([[LEAP]] * 2), Date("x", *DAYS), "as dates. Got list"),
    ],
)
def test_a_type_that_holds_nothing_of_what_is_declared_is_refused(
    column, declared, message
):
    for malformed in ("error", "nan"):
        with pytest.raises(ConfigurationTypeError, match=f"column 'x' {message}"):
            TableDomain([declared]).encode({"x": column}, malformed)


@pytest.mark.claim("own-data", "refused-type-one-sentence")
@pytest.mark.parametrize("habit", READ)
def test_tables_of_all_kinds_are_encoded_by_their_columns(habit):
    """Those that have names for their columns; others are refused."""
    domain = TableDomain([Number("b", 0, 8), Number("a", 0, 8)])
    table = READ[habit]()
    is_named = isinstance(table, dict) or hasattr(table, "__arrow_c_stream__")
    is_named |= habit in ("structured", "record array") or habit.startswith("datasets")
    if is_named and habit != "dok":
        np.testing.assert_array_equal(domain.encode(table), X[:, ::-1])
        return
    with pytest.raises(
        DataError, match=r"column 'b' once in the table with names of columns\. Got"
    ):
        domain.encode(table)


@pytest.mark.parametrize("habit", ["series", "lazy", "splits", "stream", "transform", "a path",
                                   "masked records", "dict of masks"])  # fmt: skip
def test_what_is_no_table_is_refused_by_its_type(habit):
    make, message = REFUSED[habit]
    with pytest.raises((ConfigurationTypeError, DataError), match=message):
        TableDomain([Number("a", 0, 8)]).encode(make(), "nan")


def test_what_can_be_read_only_once_is_no_table():
    reader = pa.table({"a": [1.0], "b": [2.0]}).to_reader()
    domain = TableDomain([Number("a", 0, 8), Number("b", 0, 8)])
    with pytest.raises(
        ConfigurationTypeError, match=r"RecordBatchReader instead: it can be read only"
    ):
        domain.encode(reader)


def test_a_table_of_nothing_is_a_client_without_records():
    domain = TableDomain([AGE, WARD])
    for habit in ("pandas of nothing", "polars of nothing", "pyarrow of nothing",
                  "datasets of nothing"):  # fmt: skip
        assert domain.encode(EMPTY[habit]()).shape == (0, 4)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_beyond_what_a_library_converts_is_none_and_ends_no_process(unit):
    domain = TableDomain([Date("c", date(2000, 1, 1), date(2100, 1, 1))])
    day = int(np.datetime64("2024-03-31T23:30", unit).astype(np.int64))
    numbers = [-(2**63) + 1, day, 2**63 - 1]
    times = pl.Series(numbers).cast(pl.Datetime(unit, "Europe/Berlin"))
    days = domain.encode({"c": times}, "nan")[:, 0]
    assert days[1] == date(2024, 4, 1).toordinal()
    assert np.isnan(days[[0, 2]]).all()


def test_numpys_sign_for_no_time_stays_one_in_another_zone():
    domain = TableDomain([Date("c", date(2000, 1, 1), date(2100, 1, 1))])
    times = pa.array([-(2**63), 0], pa.timestamp("ns", "Europe/Berlin"))
    days = domain.encode(pa.table({"c": times}), "nan")[:, 0]
    assert np.isnan(days[0])
    assert not np.isnan(days[1])


def test_a_time_is_one_category_beside_whatever_cells():
    column = Category("c", ("2024-03-31", "other"))
    times = np.array(["2024-03-31T10:00"], "datetime64[ns]")
    for cell in (datetime(2024, 3, 31, 10), times[0], pd.Timestamp("2024-03-31T10:00")):
        for cells in ([cell], [cell, "other"]):
            encoded = TableDomain([column]).encode({"c": cells}, "nan")
            np.testing.assert_array_equal(encoded[0], [1, 0])
    np.testing.assert_array_equal(TableDomain([column]).encode({"c": times}), [[1, 0]])


def test_an_endless_number_is_in_no_category_at_once():
    cells = {"c": [Decimal("1E+999999999"), Decimal("1E+1")]}
    encoded = TableDomain([Category("c", ("10", "b"))]).encode(cells, "nan")
    np.testing.assert_array_equal(encoded, [[np.nan, np.nan], [1, 0]])


def test_cells_of_any_sequence_are_each_read_by_themselves():
    # As an array of NumPy, both would be floats, and the integer another one.
    cells = {"c": deque([2**53 + 1, 0.5])}
    encoded = TableDomain([Category("c", (str(2**53 + 1), "0.5"))]).encode(cells, "nan")
    np.testing.assert_array_equal(encoded, [[1, 0], [0, 1]])


# --------------------------------------------------------------------------- ranges


def found_within(domain):
    """Return the domain of a result with ranges, and these."""
    lower, upper = np.array(domain.lower), np.array(domain.upper)
    numbers = domain.numbers
    lower[numbers] += 0.25 * (upper - lower)[numbers]
    return domain.within(lower, upper), lower, upper


PROTECTED = TableDomain(DOMAIN.declared, persons=True)


def test_a_domain_may_say_that_persons_are_protected():
    text = PROTECTED.to_toml()
    assert text.startswith("persons = true\n\n[[columns]]")
    again = TableDomain.from_toml(text)
    assert (again, again.persons) == (PROTECTED, True)
    assert PROTECTED.digest != DOMAIN.digest
    assert PROTECTED.weighted({"age": 2.0}).persons
    assert PROTECTED.tightened(0.1).persons
    assert PROTECTED.within(PROTECTED.lower, PROTECTED.upper).persons
    assert "persons" not in DOMAIN.to_toml()
    with pytest.raises(
        ConfigurationError, match="Line 1, key 'persons': expected true"
    ):
        TableDomain.from_toml(text.replace("true", '"yes"', 1))
    with pytest.raises(ConfigurationTypeError, match="persons as True or False"):
        TableDomain(DOMAIN.declared, persons="yes")


@pytest.mark.parametrize("tighten", [None, 0.1])
def test_a_private_run_over_a_domain_of_persons_protects_persons(tighten):
    domain = PROTECTED.tightened(tighten)
    for budget in (PrivacyBudget(1.0), PrivacyBudget(1.0, unit="client")):
        with pytest.raises(ConfigurationError, match=r"unit='person'.*the domain says"):
            SynopsisKMeans(2, domain, budget, n_records=500, n_clients=5)
    by_person = PrivacyBudget(1.0, unit="person")
    SynopsisKMeans(2, domain, by_person, n_persons=500, n_clients=5)
    SynopsisKMeans(2, domain, PrivacyBudget(None), n_clients=5)


TIGHT = DOMAIN.tightened(0.1)


def test_a_file_says_the_fraction_and_the_digest_has_it():
    text = TIGHT.to_toml()
    assert text.startswith("tighten = 0.1\n\n[[columns]]")
    again = TableDomain.from_toml(text)
    assert (again, again.tighten) == (TIGHT, 0.1)
    assert len({each.digest for each in (DOMAIN, TIGHT, DOMAIN.tightened(0.2))}) == 3
    assert TIGHT.weighted({"age": 2.0}).tighten == 0.1
    assert "tighten" not in DOMAIN.to_toml()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'tighten = "much"\n',
            "Line 1, key 'tighten': expected a number without quotes",
        ),
        ("tighten = 1.5\n", "tighten between 0 and 1.*Got 1.5"),
    ],
)
def test_a_fraction_that_cannot_be_is_one_sentence(text, message):
    with pytest.raises(ConfigurationError, match=message):
        TableDomain.from_toml(text + DOMAIN.to_toml())


def test_a_result_has_the_ranges_and_reads_cells_as_before():
    found, lower, upper = found_within(TIGHT)
    assert (found.lower, found.upper) == (tuple(lower), tuple(upper))
    assert (found.tighten, found.outer, found.declared) == (None, TIGHT, TIGHT.declared)
    assert found.factors() == TIGHT.factors()
    rows = [GOOD, {**GOOD, "age": None}, {**GOOD, "age": 1e9}]
    table = {name: [row[name] for row in rows] for name in GOOD}
    np.testing.assert_array_equal(found.encode(table), TIGHT.encode(table))
    heavier = found.weighted({"age": 3.0})
    assert (heavier.lower, heavier.upper) == (found.lower, found.upper)
    assert heavier.weights_by_name()["age"] == 3.0


def test_a_result_with_ranges_survives_a_file():
    found, *_ = found_within(TIGHT)
    assert domain_of(domain_arrays(found)) == found
    assert declared_as(TIGHT, found) == found
    # told by an option of the command
    assert declared_as(DOMAIN, found) == found
    plain = domain_from_config(found.to_config())
    assert declared_as(TIGHT, plain) == found
    for other in (DOMAIN, TIGHT.weighted({"age": 2.0})):
        with pytest.raises(DataError, match="the domain of the run"):
            declared_as(other, plain)
    below = [-1.0, *TIGHT.lower[1:]]
    outside = domain_from_config(TIGHT.within(below, TIGHT.upper).to_config())
    with pytest.raises(DataError, match="the domain of the run"):
        declared_as(TIGHT, outside)


def test_a_run_over_declared_columns_finds_the_ranges_of_all_kinds():
    rng = np.random.default_rng(0)
    n = 3000
    kind = np.arange(n) % 2
    first = date(2021, 3, 1).toordinal()
    table = {
        "age": 40 + 10 * kind + rng.normal(0, 1, n),
        "dose": 10.0 ** (2 * kind + rng.normal(0, 0.1, n)),
        "day": [date.fromordinal(first + int(30 * k)) for k in kind],
        "ward": [("A", "B")[k] for k in kind],
    }
    domain = TableDomain(
        [
            Number("age", 0, 1500, missing=0),
            Number("dose", 1e-9, 1e9, scale="log"),
            Date("day", date(1900, 1, 1), date(2100, 1, 1)),
            Category("ward", ("A", "B")),
        ],
        tighten=0.2,
    )
    records = domain.encode(table)
    clustering = simulate(
        GLloyd(2, domain, PrivacyBudget(8.0), n_records=n, n_rounds=3, seed=1),
        np.array_split(records, 3),
    )
    found = clustering.domain
    assert isinstance(found, TableDomain)
    age, dose, day = clustering.report.ranges
    assert 0 < age.lower < 37
    assert 53 < age.upper < 300
    assert 1e-3 < dose.lower < 1
    assert 100 < dose.upper < 1e5
    assert "1990" < day.lower < "2021-03-01"
    assert "2021-04-01" < day.upper < "2050"
    assert [each.column for each in (age, dose, day)] == ["age", "dose", "day"]
    assert found.lower[3:] == (0.0, 0.0)
    assert (np.bincount(2 * clustering.predict(records) + kind) > 0).sum() == 2
