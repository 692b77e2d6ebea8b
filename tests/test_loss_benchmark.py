"""The script that makes the tables of losses: its protocol, figures, and going on after a stop."""

import math
from pathlib import Path

import numpy as np
import pytest
from deployments import load_script
from scipy.integrate import trapezoid

from flower_kmeans import strategies

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def loss(monkeypatch):
    """The script as a module."""
    return load_script(monkeypatch, "loss", FOLDER)


def records():
    rng = np.random.default_rng(0)
    return np.repeat([[4.0, 1.0], [-5.0, 9.0]], 60, axis=0) + rng.normal(size=(120, 2))


def test_records_are_centred_and_their_largest_norm_is_1(loss, tmp_path):
    np.savez(tmp_path / "iris.npz", X=records() * 7 + 3)
    data = loss.load("iris", tmp_path)
    assert (data.name, data.n_clusters) == ("iris", 3)
    np.testing.assert_allclose(data.records.mean(axis=0), 0, atol=1e-12)
    assert np.linalg.norm(data.records, axis=1).max() == pytest.approx(1)
    assert loss.load("birch2", tmp_path) is loss.load("iris", None) is None
    own = loss.load(f"{tmp_path / 'iris.npz'}:2", None)
    assert (own.name, own.n_clusters) == ("iris", 2)


def test_blobs_are_those_of_the_paper(loss):
    data = loss.load("blobs_4_4", None)
    assert data.records.shape == (20_000, 4)
    task = loss.Task("blobs_4_4", "KMeans", None, 0)
    printed = loss.PRINTED["blobs_4_4"].non_private_loss
    assert loss.cluster(data, task).loss == pytest.approx(printed, abs=5e-5)


def test_losses_are_means_of_squared_distances(loss):
    points = records()
    centers = np.array([[0.0, 0.0], [3.0, 8.0], [-5.0, 9.0]])
    slow = [min(((x - c) ** 2).sum() for c in centers) for x in points]
    assert loss.loss_of(points, centers) == pytest.approx(np.mean(slow))


def test_areas_are_those_of_trapezoids(loss):
    assert loss.area([1.0] * 5) == pytest.approx(3.75)
    losses = [5.0, 4.0, 2.0, 1.5, 1.0]
    assert loss.area(losses) == pytest.approx(trapezoid(losses, loss.EPSILONS))


def test_a_run_goes_on_where_it_was_stopped(loss, tmp_path, monkeypatch):
    data = [loss.Data("two", loss.to_unit_ball(records()), 2)]
    done = []

    def cluster(each, task):
        done.append(task)
        return loss.Outcome(task, float(len(done)), 0.5, task.method == "PEMeans")

    monkeypatch.setattr(loss, "cluster", cluster)
    path = tmp_path / "runs.csv"
    methods = ["KMeans", "PEMeans", "HDPEMeans"]
    tasks = list(loss.tasks_of(data, methods, 2))
    assert len(tasks) == 2 * (1 + 5)  # two columns need no projection
    assert [task.run for task in tasks] == [0] * 6 + [1] * 6
    loss.run_all(data, tasks, 1, path, until=-math.inf)  # stops after one
    assert len(done) == 1
    first = loss.run_all(data, tasks, 1, path)
    assert done == tasks
    assert loss.run_all(data, tasks, 1, path) == first
    assert len(done) == 12
    assert sum(outcome.capped for outcome in first) == 10


def curves(loss, scale=1.0):
    """Two runs of PE-means on iris, of which the second lacks an epsilon, and one of k-means."""
    outcomes = [
        loss.Outcome(loss.Task("iris", "PEMeans", epsilon, run), scale * (1 + run), 0.1)
        for run in range(3)
        for epsilon in loss.EPSILONS
        if (run, epsilon) != (2, 4.0)
    ]
    outcomes.append(loss.Outcome(loss.Task("iris", "KMeans", None, 0), 0.5, 0.1))
    return loss.curves_of(outcomes)


def test_tables_hold_whole_runs_beside_the_printed_figures(loss, tmp_path):
    found = curves(loss)
    assert loss.areas_of(found["iris", "PEMeans"]) == pytest.approx([3.75, 7.5])
    table = loss.auc_table(found, ["iris"])
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert cells[0] == "iris"
    assert cells[1] == "1.8750 (1)"
    assert cells[2].startswith("5.6250 ± ")
    assert cells[2].endswith(" (2)")
    assert cells[3:] == ["0.2894", "", "0.3979", "1.3048", "0.1361"]
    assert "| PEMeans 5.6250 | 0.2894 | 19.44 |" in loss.comparison(found, ["iris"])
    assert "| iris | PEMeans | 2 ± 2.5 | " in loss.loss_table(found, ["iris"])
    loss.plot(found, ["iris"], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 1000


@pytest.mark.parametrize("method", ["PEMeans", "FastLloyd"])
def test_methods_run_under_the_protocol(loss, method, monkeypatch):
    made = []

    def make(*arguments, **options):
        made.append(cls(*arguments, **{**options, "n_rounds": 2}))
        return made[-1]

    cls = getattr(strategies, method)
    monkeypatch.setattr(strategies, method, make)
    data = loss.Data("two", loss.to_unit_ball(records()), 2)
    outcome = loss.cluster(data, loss.Task("two", method, 4.0, 7))
    (strategy,) = made
    assert strategy.plan.budget.delta == pytest.approx(120**-1.1)
    assert (strategy.trust, strategy.seed, strategy.n_records) == ("trusted-server", 7, 120)
    assert 0 < outcome.loss < 1
    assert strategy.domain.l2_bound(16) <= 2**16 * math.sqrt(2)


def test_the_noise_of_the_lift_is_that_of_sums_over_the_records_of_a_cluster(loss):
    """Summed noise of one multiplier in d columns, over N / k records each."""
    n, k, d = 20_000, 64, 64
    strategy = strategies.HDPEMeans(
        k, loss.Ball(1.0, np.zeros(d)), loss.PrivacyBudget(1.0, n**-1.1), n, n_clients=2
    )
    sigma = math.sqrt(len(strategy.plan.releases)) / strategy.plan.mu
    assert loss.lift_noise("blobs_64_64", 1.0) == pytest.approx(d * (sigma * k / n) ** 2)
    rows = [line.split("|") for line in loss.lift_table().splitlines()[2:]]
    assert [row[1].strip() for row in rows] == [
        name for name, row in loss.PRINTED.items() if row.hdpe is not None
    ]
    # From epsilon 0.5 on alone: more than the figure from 0.25 on.
    assert float(rows[-1][2]) > float(rows[-1][3]) == 0.719
