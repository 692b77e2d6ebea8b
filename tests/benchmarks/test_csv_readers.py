"""The script that tries readers of csv files: it finds readers that one record disturbs."""

import csv

import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "csv_readers")


@pytest.mark.claim("decisions", "pythons-csv-module-line")
def test_line_by_line_no_record_disturbs_the_others(script, tmp_path):
    found = script.outcomes(script.csv_by_line, tmp_path)
    assert found == {"changes": set(), "refuses": set(), "loses": set()}
    assert script.reads_quotes(script.csv_by_line, tmp_path)
    assert script.reads_cr(script.csv_by_line, tmp_path)


def first_six_lines(path, names):
    """Read at most six records, so that a record can push another out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n").split(",") for line in file][1:7]


def numbers_where_all_are(path, names):
    """Read a column as numbers if every record has one there, as a guess of types does."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        rows = [line.rstrip("\r\n").split(",") for line in file][1:]
    if all(row[0].isalpha() for row in rows):
        return [[row[0].upper(), *row[1:]] for row in rows]
    return rows


def strict_lines(path, names):
    """Read only lines of four cells; others are left out."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        rows = [line.rstrip("\r\n").split(",") for line in file][1:]
    return [row for row in rows if len(row) == len(names)]


@pytest.mark.parametrize(
    ("reader", "outcome", "kind"),
    [
        (first_six_lines, "changes", "quoted line end"),
        (numbers_where_all_are, "changes", "number sign first"),
        (strict_lines, "loses", "too many cells"),
    ],
)
def test_a_reader_that_is_disturbed_is_found(script, tmp_path, reader, outcome, kind):
    assert kind in script.outcomes(reader, tmp_path)[outcome]


def test_the_csv_module_is_disturbed_by_an_open_quote_and_refuses_a_long_cell(
    script, tmp_path
):
    found = script.outcomes(script.csv_module(), tmp_path)
    assert "no quote closes" in found["changes"]
    assert found["refuses"] == {"a cell of 2 million characters"}
    assert csv.field_size_limit() < 2_000_000


def test_the_table_names_readers_that_are_installed(script, monkeypatch):
    name, (_, reader) = next(iter(script.READERS.items()))
    readers = {name: ("csv", reader), "another": ("no_such_package", reader)}
    monkeypatch.setattr(script, "READERS", readers)
    rows = script.table(50).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [f"| {name}"]
