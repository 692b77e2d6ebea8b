"""Rows of the papers' items: from committed tables, and from what a command writes."""

import json
import subprocess
from dataclasses import replace

import pytest

from benchmarks.papers import page, record, rows
from benchmarks.papers.__main__ import main
from benchmarks.papers.items import Item, Paper
from benchmarks.papers.rows import COMMAND, MISSING, Row, Selection

TABLE = """| data | method | loss | printed |
|---|---|--:|--:|
| a | x | 0.50 ± 0.1 (3) | 0.4 |
| a | y | 0.40 ± 0.1 (3) | 0.8 |
| b | x |  | 0.4 |
"""
PAGE = (
    f"# A page\n\n## Losses: a\n\nOf 2026-01-02, abc.\n\n{TABLE}\n## Others\n\nNone.\n"
)
SELECTION = Selection(
    ("data", "method"),
    ("loss",),
    page="page.md#losses-a",
    printed_columns={"loss": "printed"},
    date="2026-01-02",
    commit="abc",
)
ITEM = Item("figure", "1", "losses", "benchmarks/x.py", "x.py", tables=(SELECTION,))
PAPER = Paper("one", "One", "", (ITEM,))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(PAGE, "utf-8")
    monkeypatch.setattr(record, "TABLES", tmp_path)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    monkeypatch.setattr(rows.path_of, "__defaults__", (tmp_path / "rows",))
    return tmp_path


def test_rows_are_taken_over_from_a_committed_table(folders):
    record.take_over(PAPER)
    given = {"date": "2026-01-02", "commit": "abc", "source": "page.md#losses-a"}
    assert rows.read(rows.path_of("one")) == [
        Row("figure 1", "loss: a, x", "0.4", "0.50", "0.1", "3", **given),
        Row("figure 1", "loss: a, y", "0.8", "0.40", "0.1", "3", **given),
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"date": "2026-01-03"}, "Expected 2026-01-03"),
        ({"page": "page.md#others"}, "Expected 1 tables"),
        ({"page": "page.md#nowhere"}, "Expected a heading"),
        ({"where": {"data": ["c"]}}, "Expected lines"),
        ({"columns": ("method",)}, "Expected a number"),
        ({"table": 2}, "Expected 2 tables"),
    ],
)
def test_a_table_that_is_not_there_is_an_error(folders, changed, message):
    selection = Selection(**{**vars(SELECTION), **changed})
    with pytest.raises(ValueError, match=message):
        rows.rows_of_page("figure 1", selection, folders)


def written(command, cwd, check):
    """Write what a script leaves in its directory."""
    output = cwd.joinpath(command[command.index("--output") + 1])
    output.mkdir(parents=True)
    table = "| data | method | loss | printed |\n|---|---|--:|--:|\n"
    line = "| a | x | 0.60 ± 0.2 (5) | 0.4 |\n"
    (output / "tables.md").write_text(table + line, "utf-8")
    entry = {"started": "2026-03-04T05:06:07", "commit": 40 * "f" + "+", "rows": 5}
    unused = {"started": "2026-03-05T05:06:07", "commit": None, "rows": 0}
    text = json.dumps({"commands": [entry, unused]})
    (output / "meta.json").write_text(text, "utf-8")
    (output / "runs.csv").write_text("data,run\na,0\na,1\n", "utf-8")
    return subprocess.CompletedProcess(command, 0)


def test_a_command_records_rows_that_stay(folders, monkeypatch):
    where = "benchmarks.papers.__main__"
    monkeypatch.setattr(f"{where}.papers", lambda: {"one": PAPER})
    monkeypatch.setattr(f"{where}.ROOT", folders)
    monkeypatch.setattr(f"{where}.subprocess.run", written)
    record.take_over(PAPER)
    assert main(["one", "--figure", "1", "--record"]) == 0
    made = {"date": "2026-03-04", "commit": 8 * "f" + "+", "source": COMMAND}
    new = Row("figure 1", "loss: a, x", "0.4", "0.60", "0.2", "5", **made)
    found = rows.read(rows.path_of("one"))
    assert new in found
    assert len(found) == 2
    # The committed table has another number, and the recorded row stays.
    assert main(["--write"]) == 0
    assert new in rows.read(rows.path_of("one"))
    text = page.path_of(PAPER).read_text("utf-8")
    assert "| loss: a, x | 0.4 | 0.60 | 0.2 | 5 | 2026-03-04 |" in text
    assert "ours over printed: loss 0.50 to 1.50 (2 rows)" in text


def test_the_number_of_runs_is_counted_where_cells_lack_it(folders):
    written(["--output", "out"], folders, check=False)
    (folders / "out/tables.md").write_text(TABLE.replace(" (3)", ""), "utf-8")
    selections = (replace(SELECTION, runs="20"), replace(SELECTION, output=0))
    found = rows.rows_of_output("figure 1", selections, folders / "out")
    assert [row.runs for row in found] == ["2", "2"]


def test_tables_that_options_leave_out_have_no_rows(folders):
    written(["--output", "out"], folders, check=False)
    away = replace(SELECTION, keys=("nowhere",))
    found = rows.rows_of_output("figure 1", (SELECTION, away), folders / "out")
    assert [row.quantity for row in found] == ["loss: a, x"]
    with pytest.raises(ValueError, match="Expected lines of figure 1 in out"):
        rows.rows_of_output("figure 1", (away,), folders / "out")


def test_quick_runs_and_items_without_tables_are_not_recorded():
    bare = Item("figure", "2", "none", "benchmarks/x.py", "x.py")
    for item, quick in ((ITEM, True), (bare, False)):
        with pytest.raises(ValueError, match="for --record"):
            record.output_of(PAPER, item, quick)


def test_brackets_that_are_not_runs_are_rows():
    table = "| data | sums |\n|---|--:|\n| s1 | 0.0069 ± 0.0005 (1.93x, 87.3 %) |\n"
    selection = Selection(
        ("data",),
        ("sums",),
        brackets=("times", "accuracy"),
        runs="20",
        printed={"times, sums: s1": "1.98x"},
    )
    (lines,) = rows.tables_of(table)
    assert list(rows.rows_of("table 4", lines, selection)) == [
        Row("table 4", "sums: s1", "", "0.0069", "0.0005", "20"),
        Row("table 4", "times, sums: s1", "1.98x", "1.93x", "", "20"),
        Row("table 4", "accuracy, sums: s1", "", "87.3 %", "", "20"),
    ]


def test_columns_of_one_heading_are_numbered():
    (lines,) = rows.tables_of("| a | b | a |\n|---|---|---|\n| 1 | 2 | 3 |\n")
    assert lines == [{"a": "1", "b": "2", "a#2": "3"}]


def test_one_quantity_has_one_row():
    row = Row("figure 1", "loss")
    with pytest.raises(ValueError, match="one row of figure 1, loss"):
        rows.check_distinct([row, row])


def test_a_page_counts_pairs_and_names_missing_sets():
    item = Item(
        "figure",
        "1",
        "losses",
        "x.py",
        "x.py",
        missing=("c",),
        beside=("x", "y", "less"),
    )
    values = {
        "loss: a, x": "1",
        "loss: a, y": "2",
        "loss: b, x": "3",
        "loss: b, y": "2",
    }
    found = [Row(item.name, name, ours=text) for name, text in values.items()]
    found.append(Row(item.name, "c", ours=MISSING))
    text = page.page_of(Paper("one", "One", "", (item,)), found)
    assert "x has less than y in 1 of 2" in text
    assert "data not at hand: c" in text
