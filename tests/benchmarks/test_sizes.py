"""The suite of cluster sizes within bounds: its measures, the exact methods, and its tables."""

from itertools import product

import numpy as np
import pytest
from scripts import load_script
from suites import cells

from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.bench.harness import Options, plan_of
from flower_kmeans.errors import ConfigurationError


@pytest.fixture
def sizes(monkeypatch):
    return load_script(monkeypatch, "sizes")


def records(n=60, k=3):
    rng = np.random.default_rng(0)
    found = 3.0 * rng.normal(size=(k, 2))[np.arange(n) % k] + rng.normal(size=(n, 2))
    return found / np.linalg.norm(found, axis=1).max()


def test_bounds_are_those_of_the_text(sizes):
    assert sizes.sizes_within("balanced", 5_000, 15) == (333, 334)
    assert sizes.sizes_within("balanced", 150, 3) == (50, 50)
    assert sizes.sizes_within("min", 5_000, 15) == (223, 5_000)
    assert sizes.sizes_within("max", 5_000, 15) == (0, 416)
    assert sizes.bounds_of("balanced", 1, 2) == {"min_size": 1, "max_size": 2}
    assert sizes.bounds_of("min", 1, 9) == {"min_size": 1}
    assert sizes.bounds_of("max", 0, 2) == {"max_size": 2}


@pytest.mark.parametrize(
    ("found", "missed"), [([3, 4, 5], 0), ([2, 4, 6], 1), ([0, 5, 7], 3), ([3, 3, 9], 4)]
)
def test_the_violation_is_the_largest_miss(sizes, found, missed):
    assert sizes.violation(np.array(found), 3, 5) == missed


@pytest.mark.parametrize(("low", "high"), [(2, 2), (1, 3), (0, 2), (0, 6), (2, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_a_flow_assigns_at_the_least_cost_of_all_assignments(sizes, low, high, seed):
    costs = np.random.default_rng(seed).uniform(size=(6, 3))
    labels = sizes.flow_labels(costs, low, high)
    assert sizes.violation(np.bincount(labels, minlength=3), low, high) == 0
    every = [np.array(each) for each in product(range(3), repeat=6)]
    within = [e for e in every if sizes.violation(np.bincount(e, minlength=3), low, high) == 0]
    least = min(sizes.cost_of(costs, each) for each in within)
    assert sizes.cost_of(costs, labels) == pytest.approx(least, abs=1e-5)


def test_bounds_that_no_assignment_keeps_are_an_error(sizes):
    with pytest.raises(ConfigurationError, match="Expected bounds with k min <= n"):
        sizes.flow_labels(np.ones((6, 3)), 3, 6)


def test_exact_steps_lower_the_cost_until_they_find_balanced_clusters(sizes):
    points, k = records(), 3
    start = points[:k]
    found = sizes.exact(points, start, 20, 20)
    before = sizes.measures_of(points, sizes.Clusters(start), 20, 20, sizes.EXACT)
    after = sizes.measures_of(points, sizes.Clusters(found), 20, 20, sizes.EXACT)
    assert after["cost"] < before["cost"]
    again = sizes.exact(points, found, 20, 20)
    np.testing.assert_allclose(again, found, atol=1e-3)


def test_measures_of_clusters_by_weights_and_of_those_of_a_flow(sizes):
    points = np.array([[0.0], [0.1], [0.2], [1.0]])
    centroids = np.array([[0.1], [1.0]])
    report = SizeReport((3.0, 1.0), 0.1, 2, 2)
    nearest = sizes.measures_of(points, sizes.Clusters(centroids), 2, 2, sizes.NEAREST)
    assert nearest["cost"] == pytest.approx(0.02)
    assert nearest["flow"] == pytest.approx(0.01 + 0.64)
    assert (nearest["violation"], nearest["empty"], nearest["covered"]) == (1, 0, None)
    exact = sizes.measures_of(points, sizes.Clusters(centroids), 2, 2, sizes.EXACT)
    assert (exact["cost"], exact["violation"]) == (exact["flow"], 0)
    # 0.2 is 0.64 from the second centroid and 0.01 from the first: a weight of 0.7 moves it alone.
    weights = np.array([0.0, 0.7])
    found = sizes.Clusters(centroids, weights, report)
    weighted = sizes.measures_of(points, found, 2, 2, sizes.BOUNDED)
    assert weighted["cost"] == pytest.approx(0.65)
    assert (weighted["violation"], weighted["covered"]) == (0, False)
    assert (weighted["kept"], weighted["open"], weighted["missed"]) == (0, 0, 2)
    heavy = sizes.Clusters(centroids, np.array([0.0, 9.0]), SizeReport((0.0, 4.0), 1.0, 2, 2))
    emptied = sizes.measures_of(points, heavy, 2, 2, sizes.BOUNDED)
    assert (emptied["violation"], emptied["empty"], emptied["covered"]) == (2, 1, True)
    assert (emptied["kept"], emptied["open"], emptied["missed"]) == (0, 2, 0)


@pytest.mark.parametrize("method", ["SynopsisKMeans", "SynopsisKMeans:oblivious"])
def test_private_runs_are_near_the_exact_ones(sizes, method, quiet):
    options = Options(1, data=("sklearn-iris",))
    exact = sizes.measure(sizes.Task("sklearn-iris", "min", sizes.EXACT, None, 0), options)
    found = sizes.measure(sizes.Task("sklearn-iris", "min", method, 50.0, 0), options)
    assert found.keys() == exact.keys() == sizes.SUITE.measures.keys()
    assert (exact["violation"], exact["noise"]) == (0, None)
    assert 0.95 * exact["cost"] < found["cost"] < 1.3 * exact["cost"]
    assert found["violation"] <= 5
    assert found["kept"] + found["open"] + found["missed"] == 3
    assert 0 < found["noise"] < 2
    nearest = sizes.measure(sizes.Task("sklearn-iris", "max", sizes.NEAREST, 50.0, 0), options)
    assert nearest["cost"] < 1.3 * exact["cost"]
    assert nearest["noise"] is None


def test_tasks_are_those_that_apply(sizes, monkeypatch):
    monkeypatch.setattr(sizes, "find_spec", lambda name: None)
    options = Options(6, data=("uneven_16_16", "sklearn-iris", "uneven_32_8"))
    tasks = plan_of(sizes.SUITE, options).tasks
    assert [task.run for task in tasks] == sorted(task.run for task in tasks)
    assert {task.method for task in tasks} == {*sizes.METHODS} - {sizes.PEER}
    replayed = {
        (task.data, task.bounds, task.epsilon) for task in tasks if task.method == sizes.OBLIVIOUS
    }
    assert replayed == {("uneven_16_16", "balanced", 1.0)}
    assert {task.epsilon for task in tasks} == {None, *sizes.EPSILONS}
    assert {task.bounds for task in tasks if task.data == "uneven_32_8"} == {"balanced", "min"}

    def most(method, data):
        return 1 + max(task.run for task in tasks if (task.method, task.data) == (method, data))

    assert most(sizes.BOUNDED, "sklearn-iris") == 6
    assert most(sizes.BOUNDED, "uneven_32_8") == sizes.FEW["uneven_32_8"]
    assert most(sizes.EXACT, "sklearn-iris") == sizes.STARTS[sizes.EXACT]
    task = sizes.Task("sklearn-iris", "min", sizes.PEER, None, 0)
    with pytest.raises(ConfigurationError, match="pip install k-means-constrained"):
        sizes.measure(task, options)
    monkeypatch.setattr(sizes, "find_spec", lambda name: name)
    assert sizes.PEER in {task.method for task in plan_of(sizes.SUITE, options).tasks}


def row(sizes, method, epsilon, run, cost, **more):
    found = dict.fromkeys(sizes.SUITE.measures) | {"flow": cost, "violation": 0, "empty": 0}
    task = sizes.Task("sklearn-iris", "balanced", method, epsilon, run)
    return {**vars(task), **found, "cost": cost, "seconds": 1.0, **more}


def test_tables_hold_all_methods_over_the_least_exact_cost(sizes):
    said = {"noise": 5.0, "kept": 1, "open": 2, "missed": 0, "covered": True}
    rows = [
        row(sizes, sizes.EXACT, None, 0, 4.0),
        row(sizes, sizes.EXACT, None, 1, 2.0),
        row(sizes, sizes.PEER, None, 0, 3.0),
        row(sizes, sizes.BOUNDED, 1.0, 0, 3.0, violation=10, **said),
        row(sizes, sizes.BOUNDED, 1.0, 1, 3.0, violation=0, **{**said, "covered": False}),
        row(sizes, sizes.BOUNDED, 4.0, 0, 2.0, **said),
        row(sizes, sizes.NEAREST, 1.0, 0, 1.0, flow=2.0, violation=25, empty=1),
    ]
    options = Options(1, data=("sklearn-iris",))
    _, costs, _, noisy, coverage = sizes.tables_of(rows, options).split("\n\n")
    name = ["sklearn-iris", "balanced"]
    found = ["1.500 ± 0 (1.500) 10%", "1.000 (1.000) 0%", "1 to 2"]
    assert cells(costs) == [
        [*name, "1.000, 1.500", "1.500, 1.500", sizes.BOUNDED, "", "", *found],
        [*name, "", "", sizes.NEAREST, "", "", "0.500 (1.000) 50%, 1 empty", "", "1"],
    ]
    assert cells(noisy) == [
        [*name, sizes.BOUNDED, "", "", "10%; 1 / 2 / 0; 1 of 2", "10%; 1 / 2 / 0; 1 of 1"]
    ]
    assert coverage.endswith("in 2 of 3 runs (66.7%).")


def test_data_on_which_constants_were_chosen_are_marked(sizes):
    rows = [{**row(sizes, sizes.BOUNDED, 1.0, 0, 3.0), "data": "uneven_16_16"}]
    ((name, *_),) = cells(sizes.cost_table(rows, Options(1, data=("uneven_16_16",))))
    assert name == "uneven_16_16 (tuned on)"


def test_the_quick_command_runs_and_writes_its_tables(sizes, tmp_path, capsys):
    command = ["--quick", "--data", "sklearn-iris", "--bounds", "max", "--jobs", "1"]
    sizes.main([*command, "--methods", sizes.EXACT, sizes.NEAREST, "--output", str(tmp_path)])
    assert "| sklearn-iris | max | 1.000, " in capsys.readouterr().out
    text = (tmp_path / "runs.csv").read_text()
    assert text.count(f",{sizes.NEAREST},1.0,") == 2
    assert text.count(f",{sizes.EXACT},,") == sizes.STARTS[sizes.EXACT]
