"""The script of counterexamples: what it runs, on which data, and what it shows."""

import numpy as np
import pytest
from scripts import load_script
from suites import cells

from bench.harness import Options, plan_of
from flower_kmeans.errors import ConfigurationError

SMALL = "directions_120_4"


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "counterexamples")


@pytest.fixture
def options(tmp_path):
    """Options of three clusters far from each other under the name of adult."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [9.0, 1.0], [4.0, 8.0]], 30, axis=0)
    np.savez(tmp_path / "adult.npz", X=centres + rng.normal(size=centres.shape))
    return Options(1, data=("adult",), data_dir=tmp_path)


def test_directions_are_unit_vectors_and_always_the_same(script):
    vectors, centres = script.directions(500, 16)
    assert (vectors.shape, centres.shape) == ((500, 16), (script.N_DIRECTIONS, 16))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1.0)
    assert (vectors @ centres.T).max(axis=1).mean() > 0.4
    np.testing.assert_array_equal(vectors, script.directions(500, 16)[0])
    assert script.load(SMALL, Options(1)).n_clusters == script.N_DIRECTIONS
    with pytest.raises(ConfigurationError, match="Expected a data set"):
        script.load("directions_120", Options(1))


def test_constrained_runs_are_those_of_the_thesis(script, options):
    data = script.load("adult", options)
    for method, name, delta in (
        ("SuLloyd", "SuLloyd", 0.0),
        ("GLloyd", "GLloyd", None),
        ("ConstrainedLloyd:laplace", "ConstrainedLloyd", 0.0),
        ("ConstrainedLloyd:amn-gaussian", "ConstrainedLloyd", None),
    ):
        strategy = script.strategy_for(data, script.Task("adult", method, 1.0, 3))
        assert type(strategy).__name__ == name
        assert (strategy.trust, strategy.seed, strategy.n_clients) == (
            "oblivious-server",
            1003,
            2,
        )
        assert (strategy.plan.budget.delta == 0.0) == (delta == 0.0)
        if name == "ConstrainedLloyd":
            chosen = strategy.algorithm
            assert (chosen.min_size, chosen.max_size) == (20, 90)
            assert chosen.assignment == "exclusive"
            expected = ("amn", "gaussian") if ":amn" in method else ("mna", "laplace")
            assert (chosen.aggregation, chosen.mechanism) == expected


def test_costs_are_measured_and_shown(script, options):
    both = Options(1, data=("adult", SMALL), data_dir=options.data_dir)
    methods = {task.method for task in plan_of(script.SUITE, options).tasks}
    assert methods == set(script.METHODS_OF_ADULT)
    tasks = [
        script.Task("adult", "Lloyd", None, 0),
        script.Task("adult", "GLloyd", 4.0, 0),
        script.Task(SMALL, "FastLloyd", 4.0, 0),
        script.Task(SMALL, "SynopsisKMeans", 1.0, 0),
    ]
    rows = [{**vars(task), **script.measure(task, both)} for task in tasks]
    kmeans, one = script.bases("adult", both)
    for row in rows:
        assert row.keys() == script.SUITE.columns.keys()
        assert row["ratio"] > 0.99
    assert rows[1]["cost"] == pytest.approx(kmeans * rows[1]["ratio"])
    assert rows[1]["lost"] == pytest.approx((rows[1]["cost"] - kmeans) / (one - kmeans))
    costs, ratios, made, lost = script.tables_of(rows, both).split("\n\n")[1::2]
    assert [row[1] for row in cells(costs)] == [row[1] for row in cells(ratios)]
    assert [row[1] for row in cells(made)] == ["FastLloyd", "SynopsisKMeans"]
    assert cells(lost)[0][4] == f"{rows[2]['lost']:.3f} (1)"
