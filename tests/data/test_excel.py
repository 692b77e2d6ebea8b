"""Rows of a sheet in an Excel workbook: every kind of cell, and every file that is refused."""

import re
import sys
import warnings
import zipfile
from datetime import date, datetime, time, timedelta

import openpyxl
import pytest
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from flower_kmeans.data.excel import Sheet, open_sheet
from flower_kmeans.errors import ConfigurationError, DataError

pytestmark = pytest.mark.claim("SECURITY", "entities-grow-xml-files")

HEADER = ["name", "age", "share"]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a workbook of named sheets."""

    def written(name="data.xlsx", change=lambda book: None, **sheets):
        book = openpyxl.Workbook()
        book.remove(book.active)
        for title, rows in sheets.items():
            sheet = book.create_sheet(title)
            for row in rows:
                sheet.append(row)
        change(book)
        book.save(tmp_path / name)
        return tmp_path / name

    return written


def rewrite(path, part, change):
    """Change a part of a workbook's file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert change(parts[part]) != parts[part]
    parts[part] = change(parts[part])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def rows_of(path, sheet=None):
    return list(open_sheet(path, sheet).rows())


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("text", "text"),
        ("  spaces ", "  spaces "),
        ("3", "3"),
        ("", None),
        (None, None),
        (3, 3),
        (2.5, 2.5),
        (1e308, 1e308),
        (True, True),
        (False, False),
        (date(2024, 2, 29), datetime(2024, 2, 29)),
        (datetime(2024, 2, 29, 13, 5, 6), datetime(2024, 2, 29, 13, 5, 6)),
        (datetime(9999, 12, 31), datetime(9999, 12, 31)),
        (time(1, 2, 3), time(1, 2, 3)),
        (timedelta(hours=30), timedelta(hours=30)),
        ("#N/A", "#N/A"),
        ("#DIV/0!", "#DIV/0!"),
        ("=1+1", None),  # openpyxl saves no value with a formula
    ],
)
def test_cells_have_the_type_that_the_workbook_has(write, cell, read):
    path = write(only=[["first", "cell", "last"], ["x", cell, 1]])
    found = rows_of(path)[1][1]
    assert found == read
    assert type(found) is type(read)


def test_a_formula_has_the_value_saved_with_it(write):
    path = write(only=[HEADER, ["a", "=1+1", 0.5]])
    rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda xml: re.sub(rb"<v ?/>|<v></v>", b"<v>2</v>", xml),
    )
    assert rows_of(path) == [HEADER, ["a", 2, 0.5]]


def test_percent_and_dates_since_1904_have_the_value_shown(write):
    def change(book):
        book["only"]["C2"].number_format = "0%"
        book.epoch = CALENDAR_MAC_1904

    path = write(only=[HEADER, [date(2024, 2, 29), 1, 0.5]], change=change)
    assert rows_of(path) == [HEADER, [datetime(2024, 2, 29), 1, 0.5]]


@pytest.mark.parametrize("serial", [50_000_000, 1e300])
def test_a_number_that_is_no_date_is_an_error_cell_without_a_warning(write, serial):
    def change(book):
        book["only"]["B2"].number_format = "yyyy-mm-dd"

    path = write(only=[HEADER, ["a", serial, 1]], change=change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows_of(path) == [HEADER, ["a", "#VALUE!", 1]]


def test_of_merged_cells_the_first_has_the_value(write):
    path = write(
        only=[HEADER, ["a", None, 1]],
        change=lambda book: book["only"].merge_cells("A2:B2"),
    )
    assert rows_of(path) == [HEADER, ["a", None, 1]]


OTHER_ROWS = [
    [],
    ["a"],
    ["a", 1, 2, 3, 4],
    [None, None, None],
    ["", "", 5],
    ["x" * 30_000, 1, 1],
]


@pytest.mark.parametrize("row", OTHER_ROWS)
def test_no_row_changes_another(write, row):
    before, after = ["before", 1, None], [None, "after"]
    found = rows_of(write(only=[HEADER, before, row, after]))
    assert found[:2] == [HEADER, before]
    assert found[-1] == [None, "after", None]
    assert len(found) == 3 + any(cell not in (None, "") for cell in row)


def test_rows_without_values_are_left_out(write):
    def change(book):
        book["only"].cell(40, 9).number_format = "0%"

    path = write(only=[[], HEADER, [], ["a", 1, 2]], change=change)
    assert rows_of(path) == [HEADER, ["a", 1, 2]]


def test_a_wrong_size_hides_no_cells(write):
    path = write(only=[HEADER, ["a", 1, 2]])
    wrong = b'<dimension ref="A1"'
    rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda xml: re.sub(rb'<dimension ref="[^"]*"', wrong, xml),
    )
    assert rows_of(path) == [HEADER, ["a", 1, 2]]


def test_a_sheet_is_read_again_and_lets_its_file_go(write):
    path = write("data.XLSM", only=[HEADER, ["a", 1, 2]])
    sheet = open_sheet(path)
    assert sheet == Sheet(path, "only")
    assert next(sheet.rows()) == HEADER
    assert list(sheet.rows()) == list(sheet.rows()) == [HEADER, ["a", 1, 2]]
    path.unlink()  # would fail on some systems while a file is open


def test_the_only_sheet_with_values_needs_no_name(write):
    path = write(notes=[], data=[HEADER], spare=[[None, ""]])
    assert open_sheet(path).name == "data"
    assert rows_of(path, "notes") == []


def test_several_sheets_with_values_are_listed(write):
    path = write(north=[HEADER], south=[["b"]], empty=[])
    with pytest.raises(
        ConfigurationError, match=r"several sheets with values: 'north', 'south'\."
    ):
        open_sheet(path)
    assert rows_of(path, "south") == [["b"]]
    with pytest.raises(
        ConfigurationError, match=r"'south', 'empty'\. Got 'South' instead"
    ):
        open_sheet(path, "South")


def test_a_workbook_without_values_is_refused(write):
    with pytest.raises(DataError, match="has no sheet with values"):
        open_sheet(write(a=[], b=[[None]]))


PROTECTED = (
    bytes.fromhex("d0cf11e0a1b11ae1")
    + bytes(600)
    + "EncryptedPackage".encode("utf-16-le")
)
FILES = {
    "empty": (b"", "not an Excel workbook"),
    "text": (b"name,age\na,1\n", "not an Excel workbook"),
    "cut": (b"PK\x03\x04rest", "not an Excel workbook"),
    "protected": (PROTECTED, "A password protects the data file"),
    "old": (PROTECTED[:600], "is an .xls workbook: save it as .xlsx or .csv"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_workbook_is_refused_in_one_sentence(tmp_path, name):
    content, words = FILES[name]
    path = tmp_path / "data.xlsx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        open_sheet(path)
    assert caught.value.__cause__ is None
    assert "\n" not in str(caught.value)


def test_a_zip_that_is_no_workbook_is_refused(tmp_path):
    path = tmp_path / "data.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(DataError, match="not an Excel workbook, or it is broken"):
        open_sheet(path)


def test_a_broken_cell_is_refused_without_its_value(write):
    path = write(only=[HEADER, ["a", 1234567, 1]])
    rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda xml: xml.replace(b"1234567", b"12z4567"),
    )
    sheet = open_sheet(path)
    rows = sheet.rows()
    assert next(rows) == HEADER
    with pytest.raises(DataError, match="it is broken") as caught:
        next(rows)
    assert "12z4567" not in str(caught.value)


def test_entities_that_grow_are_refused(write):
    path = write(only=[HEADER, ["a", 1234567, 1]])
    entities = b"".join(
        b'<!ENTITY e%d "%s">' % (level, b"&e%d;" % (level - 1) * 10)
        for level in range(1, 9)
    )
    bomb = b'<!DOCTYPE x [<!ENTITY e0 "0123456789">' + entities + b"]>"
    rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda xml: bomb + xml.replace(b"1234567", b"&e8;"),
    )
    with pytest.raises(DataError, match="it is broken"):
        rows_of(path)


@pytest.mark.parametrize("name", ["data.xls", "data.ods", "data.xlsb", "data"])
def test_other_suffixes_are_refused(tmp_path, name):
    with pytest.raises(
        ConfigurationError, match=r"ends in \.xlsx, \.xlsm\. Got .* save it as"
    ):
        open_sheet(tmp_path / name)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_sheet(tmp_path / "data.xlsx")


def test_a_missing_package_names_the_extra(write, monkeypatch):
    path = write(only=[HEADER])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        ConfigurationError, match=r"pip install 'flower-kmeans\[excel\]'"
    ):
        open_sheet(path)
