"""The field's benchmark: its rows, its tables, its page and its command."""

import subprocess
import sys
from pathlib import Path

import field
import numpy as np
import pytest

from baselines import METHODS
from flower_kmeans.errors import BudgetError, ConfigurationError

ROOT = Path(__file__).parents[2]
SMALL = ["--data", "made_400_6", "g2_2_50", "--epsilons", "1", "8", "--runs", "2"]
CHEATING = """
from baselines import Method
from flower_kmeans.privacy import Release

def releases(problem):
    return (Release("mean", "gaussian", "l2", 0.01, ("mean",)),)

METHOD = Method("cheating", lambda *given: 1 / 0, releases, "all see all")
"""


def test_rows_are_measured_once_and_become_tables(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    chosen = ["--methods", "FastLloyd", "PCA + DP-Lloyd", "--rows", str(rows)]
    field.main([*SMALL, *chosen])
    written = rows.read_text()
    # k-means, one cluster and two floors; two methods at two epsilons, twice.
    assert len(written.splitlines()) == 1 + 2 * (2 + 2 + 8)
    field.main([*SMALL, *chosen])
    assert rows.read_text() == written
    found = field.read_rows(rows)
    assert {row.method for row in found} >= {"k-means", "floor", "PCA + DP-Lloyd"}
    assert len({row.key for row in found}) == len(found)
    tables = field.tables_of(found, {"FastLloyd": "nobody"})
    assert "**Other sets** (2 sets)" in tables
    assert "| FastLloyd | 2 | 2 |" in tables
    assert "Ratio to k-means at ε = 8" in tables
    page = tmp_path / "page.md"
    page.write_text(f"before\n{field._BEGIN}\nold\n{field._END}\nafter\n")
    field.main(["--page", str(page), "--rows", str(rows)])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    field.main(["--page", str(page), "--rows", str(rows)])
    assert page.read_text() == text


def test_a_users_method_that_exceeds_the_budget_does_not_run(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CHEATING)
    with pytest.raises(BudgetError, match="cheating"):
        field.main([*SMALL, "--methods", "--method", f"{file}:METHOD"])


def test_an_unknown_method_and_a_page_without_marks_are_errors(tmp_path):
    with pytest.raises(ConfigurationError, match="SynopsisKMeans"):
        field.main([*SMALL, "--methods", "none"])
    with pytest.raises(ConfigurationError, match="marks"):
        field.written("text", "tables")


def test_sets_are_split_by_design():
    assert not set(field.TUNING) & set(field.HELD_OUT)


def test_the_yardsticks_order_the_scores():
    records = np.random.default_rng(0).normal(0, 0.1, (400, 3))
    rows = [*field.yardstick_rows("own", records, 5, [0.25], set())]
    kmeans, one, floor = (row.cost for row in rows)
    assert kmeans <= floor <= one * (1 + 1e-9)


def test_the_page_has_the_tables_of_the_committed_rows():
    page = (ROOT / "docs" / "tables" / "field.md").read_text("utf-8")
    sees = {method.name: method.sees for method in METHODS.values()}
    sees.setdefault("diffprivlib", "one party sees all records")
    tables = field.tables_of(field.read_rows(field.ROWS), sees)
    assert field.written(page, tables) == page


@pytest.mark.thorough
def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "benchmarks.field", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--reference" in done.stdout
