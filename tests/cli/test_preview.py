"""``plan --simulate``: what it changes, what it measures, and what it advises."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, blocks
from rich.console import Console
from typer.testing import CliRunner

from flower_kmeans import Box, Clustering, PrivacyBudget, Sphere
from flower_kmeans.cli import preview
from flower_kmeans.cli.app import app
from flower_kmeans.cli.preview import (
    PreviewPlan,
    Row,
    advice,
    changes_of,
    compared,
    n_runs_of,
    possible,
    rows_of,
    show_preview,
)
from flower_kmeans.cli.preview_records import MadeUp, Sample
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.strategies import GLloyd

pytestmark = pytest.mark.claim("reference/command", "plan-simulate-also-runs")

BOX = Box([0.0, -1.0], [2.0, 1.0])
SOURCE = MadeUp(BOX, 2)
PLAN = PreviewPlan(600, 2, 1.0, "n_records", 600, 2)
# Two rounds with a trusted server take a few hundredths of a second.
SHORT = ("--strategy", "glloyd", "--rounds", 2, "--trust", "trusted-server")
SMALL = ("--features", 2, "--n-records", 600, "--clusters", 4, "--clients", 3, *SHORT)
WIDE = """\
[[columns]]
kind = "number"
name = "x"
lower = -300
upper = 300

[[columns]]
kind = "number"
name = "y"
lower = -1
upper = 1
"""
MIXED = """\
tighten = 0.2
persons = true

[[columns]]
kind = "category"
name = "ward"
values = ["A", "B", "C"]

[[columns]]
kind = "date"
name = "born"
lower = 1950-01-01
upper = 2020-12-31

[[columns]]
kind = "number"
name = "fee"
lower = 10
upper = 100000
scale = "log"
weight = 0.5
"""


def make(change, points):
    budget = PrivacyBudget(change.epsilon)
    n_records = round(change.size * 600)
    return GLloyd(
        2,
        change.domain,
        budget,
        n_records,
        n_clients=3,
        n_rounds=2,
        trust="trusted-server",
    )


def clustering(centroids):
    return Clustering(np.array(centroids), np.ones(len(centroids)), BOX, None)


def row(losses, axis="plan", **values):
    """Return a row whose runs have these lost gains."""
    change = replace(changes_of(PLAN, SOURCE)[0], axis=axis, **values)
    return Row(change, tuple(Comparison(1 + loss, 1.0, 2.0, 600) for loss in losses))


def offers(losses, axis, label):
    return row(losses, axis, label=label, is_offer=True)


@pytest.fixture
def planned(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(preview, "RUNS", 1)
    monkeypatch.setattr(preview, "FACTORS", (2.0,))
    (tmp_path / "wide.toml").write_text(WIDE, "utf-8")
    close = WIDE.replace("300", "1")
    (tmp_path / "close.toml").write_text(close, "utf-8")
    (tmp_path / "mixed.toml").write_text(MIXED, "utf-8")
    groups = np.repeat([[-0.9, -0.9], [0.9, 0.9], [-0.9, 0.9], [0.9, -0.9]], 25, axis=0)
    records = groups + np.random.default_rng(0).uniform(-0.1, 0.1, (100, 2))
    np.savetxt("public.csv", records, delimiter=",", header="x,y", comments="")

    def invoke(*arguments):
        return CliRunner().invoke(app, ["plan", "--simulate", *map(str, arguments)])

    return invoke


def cells_of(text):
    """Return the cells of the table, by the name of the change."""
    table = text.partition("Expected result")[2].partition("Seeds of")[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) == 4 and cells[0] != "change":
            found[cells[0]] = cells[1:]
    return found


# ----------------------------------------------------------------------------- changes


def test_epsilon_numbers_and_bounds_are_changed_one_at_a_time():
    first, *others = changes_of(PLAN, SOURCE)
    assert first.label == "as planned"
    assert not first.is_offer
    assert [each.label for each in others] == [
        "epsilon 0.5",
        "epsilon 2",
        "n_records 300",
        "n_records 1,200",
        "bounds 2 times too wide",
        "bounds 10 times too wide",
        "10 times, --tighten 0.1",
    ]
    for each in others:
        as_planned = (each.epsilon, each.size, each.domain == BOX)
        assert (
            sum(a != b for a, b in zip(as_planned, (1.0, 1.0, True), strict=True)) == 1
        )
    assert [each.label for each in others if each.is_offer] == [
        "epsilon 2",
        "n_records 1,200",
    ]


def test_a_sample_offers_its_own_bounds_and_ranges():
    sample = Sample(BOX, np.array([[0.5, 0.0], [0.6, 0.1], [0.7, 0.2]]))
    found = [each for each in changes_of(PLAN, sample) if each.axis == "bounds"]
    assert [(each.label, each.is_offer) for each in found] == [
        ("bounds of the sample", True),
        ("--tighten 0.1", True),
        ("bounds 2 times as wide", False),
    ]


def test_protected_units_are_what_counts():
    clients = PLAN._replace(counted="n_clients", planned=60)
    labels = [each.label for each in changes_of(clients, MadeUp(Sphere(3), 4))]
    assert labels[3:] == ["n_clients 30", "n_clients 120"]


def test_a_change_that_cannot_be_planned_is_left_out_and_the_plan_refused():
    few = PLAN._replace(n_records=4, planned=4)
    found, left_out = possible(changes_of(few, SOURCE), make, few, 2)
    assert [each.change.label for each in left_out] == ["n_records 2"]
    assert "above --clusters" in left_out[0].why
    assert len(found) == 7
    with pytest.raises(ConfigurationError, match="above --clusters"):
        possible(changes_of(few, SOURCE), make, few._replace(n_records=2), 2)
    many = PLAN._replace(n_records=30_000_000)
    with pytest.raises(ConfigurationError, match="at most 50,000,000"):
        possible(changes_of(many, SOURCE), make, many, 2)
    found, left_out = possible(
        changes_of(many, SOURCE), make, many._replace(n_records=20_000_000), 2
    )
    assert [each.change.label for each in left_out] == ["n_records 1,200"]


def test_long_runs_are_fewer():
    assert n_runs_of(100_000, 2) == 9
    assert n_runs_of(100_001, 2) == 5


# -------------------------------------------------------------------------------- runs


def test_much_noise_loses_much_and_little_noise_nothing():
    planned = changes_of(PLAN, SOURCE)[0]
    changes = [replace(planned, epsilon=epsilon) for epsilon in (0.01, 1000.0)]
    much, little = rows_of(changes, compared(changes, make, SOURCE, PLAN, seed=2))
    assert len(much.runs) == len(little.runs) == PLAN.n_runs
    assert max(little.losses) < 0.3 < min(much.losses)
    for one, other in zip(much.runs, little.runs, strict=True):
        # They have the same records.
        assert one.kmeans_cost == other.kmeans_cost
        assert one.one_cluster_cost == other.one_cluster_cost
        assert one.n_records == 600
    assert much.runs[0].kmeans_cost != much.runs[1].kmeans_cost


def test_costs_are_in_units_of_bounds_as_tight_as_the_records(monkeypatch):
    records = np.array([[0.0, 0.0], [0.0, 0.5], [1.0, 0.0], [1.0, 0.5]])
    sample = Sample(BOX, records)
    found = clustering([[0.0, 0.25], [1.0, 0.25]])
    monkeypatch.setattr("flower_kmeans.simulation.simulate", lambda *_: found)
    plan = PLAN._replace(n_records=80, n_clusters=2, n_runs=1)
    changes = changes_of(plan, sample)
    assert {each.domain for each in changes} >= {BOX, sample.judged}
    for change, run in compared(changes, make, sample, plan):
        # Both columns are scaled to [-1, 1]: each record is 1 from its centroid.
        assert run.cost == pytest.approx(round(80 * change.size))
        assert run.ratio == pytest.approx(1.0, abs=0.1)


# ------------------------------------------------------------------------------ advice


def test_a_change_is_better_only_beyond_the_spread_of_the_runs():
    planned = row([0.4, 0.5, 0.6, 0.5, 0.4])
    assert row([0.1, 0.2, 0.3, 0.2, 0.1]).is_better_than(planned)
    assert not planned.is_better_than(row([0.1, 0.2, 0.3, 0.2, 0.1]))
    assert not row([0.1, 0.45, 0.3, 0.7, 0.1]).is_better_than(planned)
    # too little to matter, however sure
    close = row([0.005, 0.006, 0.007, 0.008, 0.009])
    assert not close.is_better_than(row([0.01, 0.011, 0.012, 0.013, 0.014]))
    # A single run that is lost does not hide the others.
    wide = row([0.8, 0.9, 0.7, 0.9, 40.0])
    assert planned.is_better_than(wide)


def test_equal_plans_are_seldom_told_apart():
    rng = np.random.default_rng(0)
    draws = rng.exponential(0.3, (600, 2, 5))
    found = sum(row(one).is_better_than(row(other)) for one, other in draws)
    assert found <= 13  # a hundredth, and three deviations


def test_the_change_that_costs_least_is_first_among_equals():
    sample = Sample(BOX, np.zeros((1, 2)))
    rows = [
        row([0.4, 0.41, 0.42, 0.43, 0.44]),
        offers([0.05, 0.06, 0.07, 0.08, 0.09], "epsilon", "epsilon 2"),
        offers([0.05, 0.06, 0.07, 0.08, 0.10], "size", "n_records 1,200"),
        offers([0.20, 0.21, 0.22, 0.23, 0.24], "bounds", "tighter bounds"),
    ]
    assert advice(rows, sample) == (
        "What to change first: n_records. With n_records 1,200, the lost gain falls from 0.42 to "
        "0.07: usable. Also better than planned: epsilon 2 (0.07), tighter bounds (0.22)."
    )
    rows.append(offers([0.06, 0.07, 0.07, 0.08, 0.09], "bounds", "--tighten 0.1"))
    assert advice(rows, sample).startswith("What to change first: the bounds. With --t")


def test_nothing_is_advised_within_the_spread_or_without_need():
    sample = Sample(BOX, np.zeros((1, 2)))
    good = row([0.01, 0.02, 0.03, 0.04, 0.5])
    best = offers([0.0] * 5, "epsilon", "epsilon 2")
    assert advice([good, best], sample) == (
        "What to change first: nothing. The plan is as good as without privacy in 4 of 5 runs."
    )
    noisy = row([0.1, 0.2, 0.3, 0.4, 0.5])
    unclear = offers([0.0, 0.1, 0.2, 0.3, 0.4], "epsilon", "epsilon 2")
    assert advice([noisy, unclear], sample).startswith(
        "What to change first: no single one of these. None lowers the lost gain of 0.30 clearly"
    )


def test_made_up_records_say_what_bounds_too_wide_would_lose():
    good = row([0.0] * 5)
    wide = row([0.4] * 5, "bounds", label="bounds 10 times too wide")
    found = row([0.1] * 5, "bounds", bounds="tighten")
    text = advice([good, wide, found], SOURCE)
    assert text.endswith(
        "All this is for records that fill the bounds. With bounds 10 times too wide, "
        "the lost gain is 0.40: mostly noise. Then --tighten 0.1 makes it 0.10."
    )
    text = advice([good, row([0.01] * 5, "bounds", label="wide")], SOURCE)
    assert text.endswith("With wide it is not clearly worse.")
    assert "fill" not in advice([good, wide, found], Sample(BOX, np.zeros((1, 2))))


# ------------------------------------------------------------------------- the command


def test_the_table_has_a_row_for_each_change_and_how_records_are_made(planned):
    result = planned(*SMALL, "--epsilon", 100, "--seed", 4)
    assert result.exit_code == 0, result.output
    # the plan comes first
    assert result.stdout.startswith("Epsilon 100, delta 1e-06 per record")
    cells = cells_of(result.stdout)
    assert list(cells) == [
        "as planned",
        "epsilon 200",
        "n_records 1,200",
        "bounds 2 times too wide",
        "bounds 10 times too wide",
        "10 times, --tighten 0.1",
    ]
    for words in (
        "Records are made up: 4 groups of equal sizes; in numbers and dates they are Gaussian",
        "The costs of all rows are in the same scaled units",
        "Seeds of the records: 4 to 4. The noise has none.",
        "What to change first:",
    ):
        assert words in result.stdout
    assert result.stderr == ""


def test_the_command_of_the_page_prints_what_the_page_shows(monkeypatch, tmp_path):
    """Its figures are of the noise, so rows and sentences are compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setattr(preview, "RUNS", 1)
    page = blocks(ROOT / "docs/own-data.md")
    domain = next(block for block in page if block.text.startswith("# domain.toml"))
    (tmp_path / "domain.toml").write_text(domain.text, "utf-8")
    at = next(i for i, block in enumerate(page) if "--simulate" in block.text)
    command = page[at].text.replace("\\\n", " ").split()
    result = CliRunner().invoke(app, command[1:])
    assert result.exit_code == 0, result.output
    shown = page[at + 1].text
    assert [*cells_of(shown)] == [*cells_of(result.stdout)]
    printed = " ".join(result.stdout.split())
    _, made, sentences = " ".join(shown.split()).partition("Records are made up")
    made += sentences.partition(" Seeds of")[0]
    assert made in printed
    assert "verdict" in printed
    assert Path("plan.svg").exists()


def test_nothing_is_the_problem(planned):
    options = (
        "--domain",
        "close.toml",
        "--sample",
        "public.csv",
        "--trust",
        "trusted-server",
    )
    sizes = ("--n-records", 600, "--clusters", 4, "--clients", 3, "--epsilon", 1000)
    result = planned(*options, *sizes)
    assert result.exit_code == 0, result.output
    assert (
        "nothing. The plan is as good as without privacy in 1 of 1 runs."
        in result.stdout
    )
    assert "drawn with replacement from the sample's 100." in result.stdout
    assert "must be public: no noise covers it" in result.stdout


def test_bounds_are_the_problem(planned, monkeypatch):
    monkeypatch.setattr(preview, "RUNS", 5)
    monkeypatch.setattr(preview, "FACTORS", ())
    options = ("--domain", "wide.toml", "--sample", "public.csv", *SHORT)
    sizes = ("--n-records", 600, "--clusters", 4, "--clients", 3, "--epsilon", 8)
    result = planned(*options, *sizes)
    assert result.exit_code == 0, result.output
    assert (
        "What to change first: the bounds. With bounds of the sample," in result.stdout
    )
    cells = cells_of(result.stdout)
    assert cells["as planned"][2] != "as good as without privacy"
    assert "bounds 2 times as wide" in cells


def test_bounds_that_cut_the_sample_are_the_problem(planned, tmp_path, monkeypatch):
    """All costs are of the moved values, so no row of the table shows it."""
    monkeypatch.setattr(preview, "RUNS", 5)
    monkeypatch.setattr(preview, "FACTORS", ())
    narrow = "".join(
        f'[[columns]]\nkind = "number"\nname = "{name}"\nlower = 0.4\nupper = 0.6\n'
        for name in ("a", "b")
    )
    (tmp_path / "narrow.toml").write_text(narrow)
    values = np.random.default_rng(0).random((200, 2))
    values[:, 1] = 0.5 + (values[:, 1] - 0.5) / 5.2
    rows = [f"{a!r},{b!r}" for a, b in values.tolist()]
    (tmp_path / "uncut.csv").write_text("\n".join(["a,b", *rows, ""]))
    options = ("--domain", tmp_path / "narrow.toml", "--sample", tmp_path / "uncut.csv")
    sizes = ("--n-records", 600, "--clusters", 4, "--clients", 3, "--epsilon", 8)
    result = planned(*options, *sizes, *SHORT)
    assert result.exit_code == 0, result.output
    # Column b is within its bounds.
    assert (
        "What to change first: the bounds, which are too narrow. In the sample, 'a' is outside "
        "the bounds with about 78 % of its values. The"
    ) in result.stdout
    assert "so the table does not show what this loses." in result.stdout


def test_the_number_of_records_is_the_problem(planned, monkeypatch):
    monkeypatch.setattr(preview, "RUNS", 5)
    monkeypatch.setattr(preview, "FACTORS", (100.0,))
    monkeypatch.setattr(MadeUp, "other_bounds", lambda _: [])
    sizes = ("--n-records", 50, "--clusters", 3, "--clients", 3, "--epsilon", 0.1)
    result = planned("--features", 2, *sizes, *SHORT)
    assert result.exit_code == 0, result.output
    assert "What to change first: n_records. With n_records 5,000," in result.stdout
    assert "Also better than planned: epsilon 10" in result.stdout


def test_categories_dates_weights_and_persons_of_a_domain(planned):
    sizes = ("--n-persons", 300, "--clusters", 3, "--clients", 3, "--unit", "person")
    result = planned("--domain", "mixed.toml", *sizes, *SHORT)
    assert result.exit_code == 0, result.output
    cells = cells_of(result.stdout)
    assert "n_persons 600" in cells
    # The domain has ranges, so they are no change.
    assert not any("tighten" in name for name in cells)
    assert "7 of 10 records have the usual category of their group" in result.stdout
    assert "Each person has one record." in result.stdout


def test_a_ball_and_directions_are_simulated(planned, tmp_path):
    (tmp_path / "s.toml").write_text('[sphere]\ncolumns = ["x", "y"]\n', "utf-8")
    ball = '[ball]\ncolumns = ["x", "y"]\nradius = 2\n'
    (tmp_path / "b.toml").write_text(ball, "utf-8")
    sizes = ("--n-records", 300, "--clusters", 3, "--clients", 3, *SHORT)
    result = planned("--domain", "s.toml", *sizes)
    assert result.exit_code == 0, result.output
    assert not any("bounds" in name for name in cells_of(result.stdout))
    assert "about 30 degrees away" in result.stdout
    result = planned("--domain", "b.toml", "--sample", "public.csv", *sizes)
    assert result.exit_code == 0, result.output
    assert "bounds of the sample" in cells_of(result.stdout)


@pytest.mark.thorough
def test_the_server_of_feddp_has_points_of_the_same_groups(planned):
    given = ("--strategy", "feddp", "--server-points", 30, "--epsilon", 50)
    sizes = ("--n-records", 1200, "--clusters", 4, "--clients", 3)
    result = planned("--features", 2, *sizes, *given)
    assert result.exit_code == 0, result.output
    assert "The server's 30 points are made in the same way." in result.stdout
    assert float(cells_of(result.stdout)["epsilon 100"][0]) == pytest.approx(1, abs=0.1)
    sample = ("--domain", "wide.toml", "--sample", "public.csv")
    result = planned(*sample, *sizes, *given)
    assert result.exit_code == 0, result.output


@pytest.mark.thorough
def test_whole_clients_and_bounds_on_sizes_are_simulated_too(planned):
    sizes = ("--features", 2, "--n-records", 1200, "--clusters", 4, "--epsilon", 50)
    clients = ("--unit", "client", "--strategy", "glloyd", "--clients", 10)
    result = planned(*sizes, *clients)
    assert result.exit_code == 0, result.output
    assert "n_clients 20" in cells_of(result.stdout)
    assert "each client has as many records" in result.stdout
    result = planned(*sizes, "--clients", 3, "--min-size", 200)
    assert result.exit_code == 0, result.output
    assert "n_records 2,400" in cells_of(result.stdout)


def test_a_strategy_that_cannot_find_ranges_says_so(planned):
    options = ("--features", 2, "--n-records", 300, "--clusters", 3, "--clients", 3)
    result = planned(*options, "--strategy", "sulloyd", "--trust", "trusted-server")
    assert result.exit_code == 0, result.output
    assert "Left out: 10 times, --tighten 0.1." in result.stdout
    assert "histograms of columns need Gaussian noise alone" in result.stdout


@pytest.mark.parametrize("name", ["loss.svg", "loss.png"])
def test_a_chart(planned, tmp_path, name):
    result = planned(*SMALL, "--chart", name)
    assert result.exit_code == 0, result.output
    start = (tmp_path / name).read_bytes()[:100]
    assert start.startswith(b"<?xml" if name.endswith("svg") else b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--chart", "loss.gif"),
            "Expected --chart as a file that ends in .svg, .png, .pdf",
        ),
        (("--chart", "no/loss.svg"), "in a directory that exists"),
        (("--strategy", "lloyd"), "Expected --simulate with a private strategy"),
        (("--trust", "plain"), "Expected --simulate with a private strategy"),
        (("--strategy", "vertical"), "Expected --simulate with a private strategy"),
        (
            ("--n-records", 10**8),
            "Expected --n-records x columns of at most 50,000,000",
        ),
        (("--n-records", 16), "Expected --n-records above --clusters"),
        (
            ("--n-persons", 16, "--unit", "person"),
            "Expected --n-persons above --clusters",
        ),
        (("--sample", "public.csv"), "Expected --sample with --domain"),
        (
            ("--sample", "public.csv", "--features", 2, "--n-records", 600),
            "Expected --sample with --domain",
        ),
        (
            (
                "--sample",
                "public.csv",
                "--domain",
                "mixed.toml",
                "--n-persons",
                600,
                "--unit",
                "person",
            ),
            "'ward'",
        ),
        (
            ("--sample", "none.csv", "--domain", "wide.toml", "--n-records", 600),
            "none.csv does not exist",
        ),
        (
            (
                "--sample",
                "public.csv",
                "--domain",
                "wide.toml",
                "--n-records",
                600,
                "--clusters",
                100,
            ),
            "Expected --sample with more than 100 different records",
        ),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(planned, arguments, words):
    result = planned(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_sample_or_a_chart_needs_runs_and_a_chart_matplotlib(monkeypatch):
    for option in ("--chart", "--sample"):
        result = CliRunner().invoke(app, ["plan", option, "file.svg"])
        assert result.exit_code == 1
        assert f"{option} requires --simulate." in result.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match="matplotlib"):
        show_preview(Console(), make, SOURCE, PLAN, chart="loss.svg")
