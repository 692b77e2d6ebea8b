"""Options and source.toml: how one party reads its own file."""

import sqlite3
from datetime import date
from tempfile import NamedTemporaryFile

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from flower_kmeans import TableDomain
from flower_kmeans.data.reading import Reading, read_source_file
from flower_kmeans.data.sources import as_source
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.data.tables import (
    load_persons,
    load_records,
    load_table,
    open_table,
)
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError

TEXT = "alter;preis\n40;1.000,5\n50;2\n"
DAYS = date(2020, 1, 1), date(2024, 12, 31)
SOURCE = (
    'data = "t.csv"\ndelimiter = ";"\ndecimal = ","\nthousands = "."\nheader = true\n'
)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "t.csv").write_text(TEXT)
    path = tmp_path / "source.toml"
    path.write_text(SOURCE)
    path.chmod(0o600)
    return path


def test_a_source_file_says_how_its_data_is_read(source, tmp_path, monkeypatch):
    monkeypatch.chdir("/")  # its paths are from its own directory
    for options in ({}, {"malformed": "nan"}):
        table = load_table(source, **options)
        assert table.columns == ("alter", "preis")
        assert table.records.tolist() == [[40, 1000.5], [50, 2]]
    data, reading = read_source_file(source)
    assert data == str(tmp_path / "t.csv")
    assert reading == Reading(True, ";", ",", ".")


def test_an_option_holds_in_place_of_what_the_file_says(source, tmp_path):
    (tmp_path / "t.csv").write_text(TEXT.replace(";", "|"))
    opened = open_table(source, Reading(delimiter="|"))
    assert opened.names == ("alter", "preis")


def test_a_node_needs_the_header_from_its_settings(source):
    source.write_text(SOURCE.replace("header = true\n", ""))
    assert load_table(source).columns == ("alter", "preis")
    with pytest.raises(ConfigurationError, match="header"):
        load_table(source, malformed="nan")
    source.write_text(SOURCE.replace("true", '["a", "b"]'))
    table = load_table(source, malformed="nan")
    assert (table.columns, len(table.records)) == (("a", "b"), 3)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_source_file_that_others_may_read_is_refused(source, mode):
    source.chmod(mode)
    with pytest.raises(ConfigurationError, match="with mode 0600"):
        load_table(source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('data = "t.csv"\ndecimals = ","\n', r"among .*'decimal'.* Got \['decimals'\]"),
        ("delimiter = ';'\n", "Expected data in the source file"),
        ("data = 3\n", "Expected data in the source file"),
        ('data = "t.csv"\ndecimal = 5\n', r"source\.toml: Expected decimal"),
        ('data = "t.csv"\nheader = "a,b"\n', r"source\.toml: Expected header"),
        ("data", "is not TOML"),
        *(
            (f"data = {'[' * n}{']' * n}", "is not TOML.* 32 deep")
            for n in (900, 100_000)
        ),
    ],
)
def test_a_source_file_with_a_mistake_is_one_sentence(source, text, words):
    source.write_text(text)
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=words):
        read_source_file(source)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"delimiter": text}, "delimiter as one")
            for text in (";;", '"', "\n", "\u00a7")
        ),
        ({"delimiter": ",", "decimal": ","}, "delimiter other than decimal"),
        *(
            ({"encoding": name}, "encoding as one")
            for name in ("nonsense", "utf-7", "cp037", "utf-32", "base64", "a\0")
        ),
        *(  # of which a broken character is an error, whatever stands for it
            ({"encoding": name}, "encoding as one")
            for name in (
                "unicode_escape",
                "raw-unicode-escape",
                "iso2022_jp",
                "iso-2022-kr",
                "hz",
            )
        ),
        ({"header": "a,b"}, "header as True"),
        ({"header": [1]}, "header as True"),
        ({"sheet": 1}, "sheet as a text"),
        ({"query": ""}, "query as a text"),
        ({"person": 3}, "person as a text"),
    ],
)
def test_what_is_no_reading_is_refused(options, words):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=words):
        Reading(**options)


@pytest.mark.parametrize(
    "name", ["utf-8", "UTF8", "cp1252", "latin-1", "gbk", "shift_jis", "utf-16"]
)
def test_encodings_of_which_a_byte_stays_in_its_line(name, tmp_path):
    Reading(encoding=name)
    (tmp_path / "t.csv").write_bytes("a,b\n1,2\n3,4\n".encode(name))
    table = load_table(tmp_path / "t.csv", reading=Reading(encoding=name))
    assert table.records.tolist() == [[1, 2], [3, 4]]


_PIECES = [
    b'"',
    b",",
    b";",
    b"1",
    b"nan",
    b" ",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"sep=;",
    b"x",
    b"+",
]
_LINES = st.one_of(
    st.binary(max_size=20), st.lists(st.sampled_from(_PIECES)).map(b"".join)
)


@pytest.mark.claim("decisions", "pythons-csv-module-line")
@given(
    _LINES.map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")),
    st.integers(0, 2),
    st.sampled_from(["utf-8", "cp1252", "gbk", "shift_jis"]),
    st.sampled_from([True, ("a", "b", "c")]),
)
@settings(max_examples=100, deadline=None)
def test_bytes_of_one_line_change_no_other_record(line, place, encoding, header):
    lines = [f"{i},A,2024-01-0{i}".encode() for i in (1, 2, 3)]
    head = [b"a,b,c"] if header is True else []
    domain = TableDomain(
        [
            Number("a", 0, 10, missing=5),
            Category("b", ("A", "B"), "B"),
            Date("c", *DAYS),
        ]
    )

    def read(records):
        with NamedTemporaryFile(suffix=".csv") as file:
            file.write(b"\n".join([*head, *records]))
            file.flush()
            reading = Reading(header=header, delimiter=",", encoding=encoding)
            return load_table(
                file.name, malformed="nan", domain=domain, reading=reading
            ).records.tolist()

    whole = read(lines)
    changed = read([*lines[:place], line, *lines[place + 1 :]])
    if len(changed) == len(whole):
        del changed[place]
    else:
        # A blank line is no record. A byte order mark may precede the first.
        mark = b"" if head or place else b"\xef\xbb\xbf"
        assert not line.removeprefix(mark).strip(b" ")
    del whole[place]
    assert changed == whole


def test_an_index_in_a_parquet_file_is_no_feature(tmp_path):
    records = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[4, 9, 7])
    records.to_parquet(tmp_path / "t.parquet")
    for malformed in ("error", "nan"):
        with pytest.raises(
            DataError, match=r"'__index_level_0__'\. It looks like the row numbers"
        ):
            load_table(tmp_path / "t.parquet", malformed=malformed)
        table = load_table(tmp_path / "t.parquet", malformed=malformed, features=["a"])
        assert table.records.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize(
    "cells", [pa.array([DAYS[0]]), pa.array([[1.0, 2.0]]), pa.array([{"x": 1}])]
)
def test_a_node_refuses_a_type_of_a_parquet_column_that_holds_no_numbers(
    cells, tmp_path
):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": [1.0], "b": cells}), path)
    with pytest.raises(DataError, match="1 of 1 cells of 'b' hold no number"):
        load_table(path)
    with pytest.raises(ConfigurationTypeError, match="column 'b' as numbers"):
        load_records(path)
    assert load_table(path, malformed="nan", features=["a"]).records.tolist() == [[1]]


def test_a_password_in_place_of_a_file_is_not_repeated():
    with pytest.raises(ConfigurationError, match="another text") as caught:
        load_table("host=clinic password=8735")
    assert "8735" not in str(caught.value)


def test_what_load_data_returns(source, tmp_path):
    records = load_records(source)
    assert records.columns == ("alter", "preis")
    (tmp_path / "u.csv").write_text("a,b\n1,x\n3,4\n")
    np.testing.assert_array_equal(
        load_records(tmp_path / "u.csv").records, [[1, np.nan], [3, 4]]
    )
    assert len(load_records(tmp_path / "u.csv", header=["a", "b"]).records) == 3


def test_a_source_file_without_header_has_names_in_the_first_line_of_its_data(tmp_path):
    """As ``check`` reads it, which would otherwise pass what the node refuses."""
    for text, header in (("a,b\n1,2\n", ""), ("1,2\n", 'header = ["a", "b"]\n')):
        (tmp_path / "t.csv").write_text(text)
        source = tmp_path / "source.toml"
        source.write_text(f'data = "t.csv"\n{header}')
        source.chmod(0o600)
        records = load_records(source)
        assert records.columns == ("a", "b")
        np.testing.assert_array_equal(records.records, [[1, 2]])


def test_a_database_is_a_query_that_a_run_makes_once(source, tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("create table visits(age, cost)")
        database.execute("insert into visits values (40, '1,5'), (NULL, '2'), (50, 3)")
    query = 'query = "select * from visits"\n'
    address = f'data = "sqlite:///{tmp_path}/t.db"\ndecimal = ","\n'
    source.write_text(address + query)
    query = load_records(source)
    assert isinstance(query, SqlQuery)
    assert query.names == ("age", "cost")
    expected = [[40, 1.5], [50, 3]]
    np.testing.assert_array_equal(as_source(query, 2).loaded(), expected)
    np.testing.assert_array_equal(load_table(source).records, expected)
    source.write_text(address)
    for load in (load_records, load_table):
        with pytest.raises(
            ConfigurationError, match="Expected a query with a database"
        ):
            load(source)


def test_a_workbook_is_read_as_a_csv_file(tmp_path):
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    for row in (
        ("age", "ward", "day"),
        (40, "A", date(2024, 2, 29)),
        (None, "B", None),
        ("x", 7),
    ):
        sheet.append(row)
    path = tmp_path / "t.xlsx"
    workbook.save(path)
    domain = TableDomain(
        [
            Number("age", 0, 120),
            Category("ward", ("A", "B", "7")),
            Date("day", *DAYS, DAYS[0]),
        ]
    )
    table = load_table(path, domain=domain, malformed="nan", header=True)
    first = date(2024, 2, 29).toordinal()
    lowest = DAYS[0].toordinal()
    nan = np.nan
    np.testing.assert_array_equal(
        table.records,
        [[40, 1, 0, 0, first], [nan, 0, 1, 0, lowest], [nan, 0, 0, 1, lowest]],
    )
    with pytest.raises(DataError, match="1 of 3 cells of 'age' hold no number"):
        load_table(path, domain=domain)
    workbook.create_sheet("other").append((1, 2))
    workbook.save(path)
    with pytest.raises(ConfigurationError, match="several sheets"):
        load_table(path)
    assert load_table(path, reading=Reading(sheet="other")).columns == ("x0", "x1")


# -------------------------------------------------------------------------- persons

VISITS = "patient,age,ward\n007,40,1\n 8 ,x,2\n,50,1\n007,60,2\n1,2\n"
PERSON = 'data = "visits.csv"\nperson = "patient"\n'


@pytest.fixture
def visits(tmp_path):
    (tmp_path / "visits.csv").write_text(VISITS)
    source = tmp_path / "source.toml"
    source.write_text(PERSON)
    source.chmod(0o600)
    return source


@pytest.mark.claim("own-data", "person-column-source-toml")
def test_the_column_of_persons_is_no_feature_and_has_an_id_for_each_record(visits):
    records = load_records(visits)
    assert records.columns == ("age", "ward")
    ids = load_persons(visits)
    # as text, as it stands; of a malformed line nothing is known
    assert ids.tolist() == ["007", "8 ", "", "007", ""]
    assert len(records.records) == len(ids) == 5
    assert records.persons.tolist() == ids.tolist()
    persons = records.findings.persons
    assert (persons.n_persons, persons.n_missing, persons.largest) == (4, 2, 2)


def test_a_command_leaves_out_the_persons_of_the_records_that_it_leaves_out(visits):
    (visits.parent / "visits.csv").write_text("patient,age\na,1\nb,\na,3\n")
    table = load_table(visits)
    assert table.records.tolist() == [[1], [3]]
    assert table.persons.tolist() == ["a", "a"]


def test_an_option_names_the_column_as_well(visits):
    reading = Reading(person="patient")
    table = load_records(visits.parent / "visits.csv", reading=reading)
    assert table.columns == ("age", "ward")
    own = load_table(visits, reading=Reading(person="ward"), features=["age"],
                     malformed="nan", header=True)  # fmt: skip
    assert own.persons.tolist() == ["1", "2", "1", "2", ""]


def test_persons_are_no_labels_and_not_clustered_by(visits):
    domain = TableDomain([Number("patient", 0, 10)])
    for options in (
        {"features": ["patient"]},
        {"label": "patient"},
        {"domain": domain},
    ):
        with pytest.raises(ConfigurationError, match="The column of persons"):
            load_table(visits, header=True, malformed="nan", **options)


def test_persons_need_a_name_of_their_column_which_the_table_has(visits):
    with pytest.raises(
        ConfigurationError, match="Expected the column with the persons"
    ):
        load_persons(visits.parent / "visits.csv")
    for load in (load_persons, load_records):
        with pytest.raises(ConfigurationError, match="Expected one of the columns"):
            load(visits, reading=Reading(person="nobody"))


def test_persons_of_a_database_are_refused(tmp_path):
    source = tmp_path / "source.toml"
    source.write_text(
        'data = "sqlite:///t.db"\nquery = "select 1 as a, 2 as b"\nperson = "a"\n'
    )
    source.chmod(0o600)
    with pytest.raises(ConfigurationError, match="Expected persons of a file"):
        load_persons(source)


@pytest.mark.parametrize("suffix", ["parquet", "xlsx", "npz"])
def test_ids_of_other_files_are_their_own_cells(tmp_path, suffix):
    """A column of numbers with gaps keeps its integers."""
    ids = {"parquet": [7, None, 2**60, 7], "xlsx": [7, None, 8, 7], "npz": [7, 8, 9, 7]}
    own = ids[suffix]
    path = tmp_path / f"t.{suffix}"
    ages = [1.0, 2.0, 3.0, 4.0]
    if suffix == "parquet":
        table = pa.table({"who": own, "age": ages})
        parquet.write_table(table, path)
    elif suffix == "xlsx":
        workbook = openpyxl.Workbook()
        for row in zip(["who", *own], ["age", *ages], strict=True):
            workbook.active.append(row)
        workbook.save(path)
    else:
        np.savez(path, who=np.array(own), age=np.array(ages))
    reading = Reading(person="who")
    assert load_persons(path, reading=reading).tolist() == own
    table = load_records(path, reading=reading)
    assert table.columns == ("age",)
    assert table.persons.tolist() == own


def test_an_id_that_lost_digits_stops_no_node_that_needs_no_ids(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, who=np.array([1.0, 2.0**60]), age=np.array([3.0, 4.0]))
    reading = Reading(person="who")
    records = load_records(path, reading=reading)
    assert records.records.tolist() == [[3], [4]]
    assert records.findings.persons is None
    with pytest.raises(DataError, match="Expected ids as text or integers"):
        load_table(path, reading=reading)


def test_a_command_reads_the_persons_of_a_database_with_its_records(tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("create table visits(who, age)")
        database.execute("insert into visits values (7, 40), (NULL, 50), (7, 60)")
    reading = Reading(person="who", query="select * from visits")
    table = load_table(f"sqlite:///{tmp_path}/t.db", reading=reading)
    assert table.columns == ("age",)
    assert table.persons.tolist() == [7, None, 7]
    assert table.findings.persons.n_persons == 2
