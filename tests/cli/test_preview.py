"""``plan --simulate``: what it generates, what it measures, and what it says of both."""

import sys

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flower_kmeans import Box, Clustering, PrivacyBudget
from flower_kmeans.cli import preview
from flower_kmeans.cli.app import app
from flower_kmeans.cli.preview import KINDS, PreviewSizes, case_of, losses, show_losses
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.metrics import inertia
from flower_kmeans.strategies import FastLloyd

pytestmark = pytest.mark.claim("reference/command", "plan-simulate-also-runs")

SIZES = PreviewSizes(1200, 2, 4)
SMALL = ("--features", 2, "--n-records", 1200, "--clusters", 4, "--clients", 3)


def make(epsilon, points):
    box = Box([-1.0] * 2, [1.0] * 2)
    return FastLloyd(4, box, PrivacyBudget(epsilon), 1200, n_clients=3)


def clustering(centroids):
    return Clustering(centroids, np.ones(4), Box([-1.0] * 2, [1.0] * 2), None)


@pytest.fixture
def once(monkeypatch):
    """One run for each kind of records and epsilon."""
    monkeypatch.setattr(preview, "RUNS", 1)


@pytest.fixture
def planned(monkeypatch, tmp_path, once):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(preview, "_FACTORS", (1.0, 4.0))

    def invoke(*arguments):
        return CliRunner().invoke(app, ["plan", "--simulate", *map(str, arguments)])

    return invoke


def rows_of(text):
    """Return the cells of the table of losses."""
    lines = text.partition("Expected loss")[2].splitlines()
    cells = [line.replace("(one cluster)", "one").split() for line in lines]
    return {row[0]: row[1:] for row in cells if "of" in row and row[-2:-1] == ["of"]}


@pytest.mark.parametrize("kind", KINDS)
def test_generated_records_fill_their_bounds_and_kmeans_is_at_its_best(kind):
    case = case_of(kind, 3, PreviewSizes(1000, 3, 5, n_points=40))
    assert case.records.shape == (1000, 3)
    assert case.points.shape == (40, 3)
    both = np.concatenate([case.records, case.points])
    np.testing.assert_allclose(
        [both.min(axis=0), both.max(axis=0)], [[-1] * 3, [1] * 3]
    )
    assert case.centers.shape == (5, 3)
    assert case.least <= inertia(case.records, case.centers) < case.single
    spread = ((case.records - case.records.mean(axis=0)) ** 2).sum()
    assert case.single == pytest.approx(spread)
    again, other = (
        case_of(kind, 3, PreviewSizes(1000, 3, 5, 40)),
        case_of(kind, 4, PreviewSizes(1000, 3, 5, 40)),
    )
    np.testing.assert_array_equal(again.records, case.records)
    assert not np.array_equal(other.records, case.records)


def test_easy_clusters_are_told_apart_and_overlapping_ones_are_not():
    right = {}
    for kind in KINDS:
        case = case_of(kind, 0, PreviewSizes(4000, 3, 6))
        distances = np.linalg.norm(case.records[:, None] - case.centers, axis=2)
        near, second = np.sort(distances, axis=1)[:, :2].T
        right[kind] = float(np.mean(near < 0.75 * second))
    assert right["easy"] > 0.9
    assert right["overlapping"] < 0.8


def test_much_noise_costs_much_and_little_noise_nothing(once, monkeypatch):
    monkeypatch.setattr(preview, "_FACTORS", (0.01, 100.0))
    rows = list(losses(make, 1.0, SIZES, seed=2))
    assert [(row.kind, row.epsilon, row.seed) for row in rows] == [
        (kind, epsilon, 2) for kind in KINDS for epsilon in (0.01, 100.0)
    ]
    for much, little in zip(rows[::2], rows[1::2], strict=True):
        assert little.ratio == pytest.approx(1.0, abs=0.02)
        assert little.found == 4
        assert much.ratio > little.ratio + 0.3
        assert much.single == little.single > 1.5


def test_clusters_that_share_a_centroid_are_counted_once(once, monkeypatch):
    monkeypatch.setattr(preview, "_FACTORS", (1.0,))
    case = case_of("easy", 0, SIZES)
    middle = case.centers.mean(axis=0)
    # three centroids that no record has
    far = np.array([case.centers[0], *[middle + 50.0] * 3])
    monkeypatch.setattr("flower_kmeans.simulation.simulate", lambda *_: clustering(far))
    row = next(losses(make, 1.0, SIZES))
    assert row.found == 1
    monkeypatch.setattr(
        "flower_kmeans.simulation.simulate", lambda *_: clustering(case.centers)
    )
    row = next(losses(make, 1.0, SIZES))
    assert row.found == 4
    assert row.ratio == pytest.approx(inertia(case.records, case.centers) / case.least)


def test_each_run_has_its_seed_and_each_epsilon_the_same_records(monkeypatch):
    monkeypatch.setattr(preview, "_FACTORS", (1.0, 2.0))
    far = clustering(np.zeros((4, 2)))  # what it found does not matter here
    monkeypatch.setattr("flower_kmeans.simulation.simulate", lambda *_: far)
    rows = list(losses(make, 1.0, SIZES, seed=5))
    assert sorted({row.seed for row in rows}) == [5, 6, 7]
    assert len(rows) == 2 * 3 * 2
    singles = {(row.kind, row.seed, row.single) for row in rows}
    assert len(singles) == 6


def test_the_table_has_medians_and_what_was_generated(planned):
    result = planned(*SMALL, "--strategy", "glloyd", "--epsilon", 100, "--seed", 4)
    assert result.exit_code == 0, result.output
    # the plan comes first
    assert result.stdout.startswith("Epsilon 100, delta 1e-06 per record")
    rows = rows_of(result.stdout)
    assert list(rows) == ["100", "400", "one"]
    assert rows["400"][1:4] == ["(1.00-1.00)", "4", "of"]
    assert float(rows["one"][0]) > 2
    for words in (
        "1,200 records are generated from 4 Gaussian clusters",
        "2 columns of numbers (no categories)",
        "Easy clusters are well separated (degree 0.3), overlapping ones are not (-0.1).",
        "Seeds of the records: 4 to 4. The noise has none.",
    ):
        assert words in result.stdout


def test_the_server_of_feddp_has_points_of_the_same_clusters(planned):
    given = ("--strategy", "feddp", "--server-points", 30, "--epsilon", 50)
    result = planned(*SMALL, *given)
    assert result.exit_code == 0, result.output
    assert "1,200 records, and 30 for the server, are generated" in result.stdout
    assert float(rows_of(result.stdout)["200"][0]) == pytest.approx(1.0, abs=0.05)


@pytest.mark.thorough
def test_whole_clients_and_bounds_on_sizes_are_simulated_too(planned):
    for given in (("--unit", "client", "--strategy", "glloyd"), ("--min-size", 200)):
        result = planned(*SMALL, "--epsilon", 50, *given)
        assert result.exit_code == 0, result.output
        assert set(rows_of(result.stdout)) == {"50", "200", "one"}


@pytest.mark.parametrize("name", ["loss.svg", "loss.png"])
def test_a_chart(planned, tmp_path, name):
    result = planned(*SMALL, "--strategy", "glloyd", "--chart", name)
    assert result.exit_code == 0, result.output
    start = (tmp_path / name).read_bytes()[:100]
    assert start.startswith(b"<?xml" if name.endswith("svg") else b"\x89PNG")
    assert "The chart has means of the runs." in result.output  # and the table medians


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
            "Expected --n-records x --features of at most 50,000,000",
        ),
        (("--n-records", 16), "Expected --n-records above --clusters"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(planned, arguments, words):
    result = planned(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_chart_needs_losses_and_matplotlib(planned, monkeypatch):
    result = CliRunner().invoke(app, ["plan", "--chart", "loss.svg"])
    assert result.exit_code == 1
    assert "--chart requires --simulate." in result.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match="matplotlib"):
        show_losses(Console(), make, 1.0, SIZES, chart="loss.svg")
