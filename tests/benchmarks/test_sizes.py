"""The suite of cluster sizes within bounds: its measures, the exact methods, and its tables."""

from itertools import product

import numpy as np
import pytest
from scripts import load_script
from suites import cells

from bench.harness import Options, plan_of
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.errors import ConfigurationError

pytestmark = pytest.mark.claim("tables/sizes", "all-true-sizes-were")

IRIS = Options(6, data=("sklearn-iris",))


@pytest.fixture
def sizes(monkeypatch):
    return load_script(monkeypatch, "sizes")


@pytest.mark.parametrize(
    ("bounds", "found", "options"),
    [
        ("balanced", (333, 334), {"min_size": 333, "max_size": 334}),
        ("min", (223, 5_000), {"min_size": 223}),
        ("max", (0, 416), {"max_size": 416}),
    ],
)
def test_bounds_are_those_of_the_text(sizes, bounds, found, options):
    assert sizes.sizes_within(bounds, 5_000, 15) == found
    assert sizes.bounds_of(bounds, *found) == options
    assert sizes.sizes_within("balanced", 150, 3) == (50, 50)


@pytest.mark.parametrize(
    ("found", "missed"),
    [([3, 4, 5], 0), ([2, 4, 6], 1), ([0, 5, 7], 3), ([3, 3, 9], 4)],
)
def test_the_violation_is_the_largest_miss(sizes, found, missed):
    assert sizes.violation(np.array(found), 3, 5) == missed


@pytest.mark.parametrize(("low", "high"), [(2, 2), (1, 3), (0, 2), (0, 6), (2, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_a_flow_assigns_at_the_least_cost_of_all_assignments(sizes, low, high, seed):
    def keeps(labels):
        return sizes.violation(np.bincount(labels, minlength=3), low, high) == 0

    costs = np.random.default_rng(seed).uniform(size=(6, 3))
    labels = sizes.flow_labels(costs, low, high)
    assert keeps(labels)
    every = map(np.array, product(range(3), repeat=6))
    least = min(sizes.cost_of(costs, each) for each in every if keeps(each))
    assert sizes.cost_of(costs, labels) == pytest.approx(least, abs=1e-5)


def test_bounds_that_no_assignment_keeps_are_an_error(sizes):
    with pytest.raises(ConfigurationError, match="Expected bounds with k min <= n"):
        sizes.flow_labels(np.ones((6, 3)), 3, 6)


def test_exact_steps_lower_the_cost_until_they_find_balanced_clusters(sizes):
    rng = np.random.default_rng(0)
    points = 3.0 * rng.normal(size=(3, 2))[np.arange(60) % 3] + rng.normal(size=(60, 2))
    points /= np.linalg.norm(points, axis=1).max()
    found = sizes.exact(points, points[:3], 20, 20)
    before, after = (
        sizes.measures_of(points, sizes.Clusters(each), 20, 20, sizes.EXACT)["cost"]
        for each in (points[:3], found)
    )
    assert after < before
    np.testing.assert_allclose(sizes.exact(points, found, 20, 20), found, atol=1e-3)


# Of four records in a line. 0.2 is 0.64 from the second centroid and 0.01 from the
# first: a weight of 0.7 moves it alone, one of 9 moves all.
MEASURED = [
    ("exact", None, None, {"cost": 0.65, "violation": 0}),
    ("SynopsisKMeans:nearest", None, None, {"cost": 0.02, "flow": 0.65, "violation": 1}),
    ("SynopsisKMeans", 0.7, SizeReport((3.0, 1.0), 0.1, 2, 2),
     {"cost": 0.65, "violation": 0, "empty": 0, "covered": False, "open": 0, "missed": 2}),
    ("SynopsisKMeans", 9.0, SizeReport((0.0, 4.0), 1.0, 2, 2),
     {"violation": 2, "empty": 1, "covered": True, "kept": 0, "open": 2, "missed": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "weight", "report", "wanted"), MEASURED)
def test_measures_of_clusters_by_weights_and_of_those_of_a_flow(
    sizes, method, weight, report, wanted
):
    points, centroids = np.array([[0.0], [0.1], [0.2], [1.0]]), np.array([[0.1], [1.0]])
    weights = None if weight is None else np.array([0.0, weight])
    found = sizes.measures_of(
        points, sizes.Clusters(centroids, weights, report), 2, 2, method
    )
    blank = (
        dict.fromkeys(("noise", "covered"))
        if report is None
        else {"noise": report.noise}
    )
    assert {name: found[name] for name in {**wanted, **blank}} == pytest.approx(
        wanted | blank
    )


@pytest.mark.default_cases("SynopsisKMeans")
@pytest.mark.parametrize("method", ["SynopsisKMeans", "SynopsisKMeans:oblivious"])
def test_private_runs_are_near_the_exact_ones(sizes, method, quiet):
    def run(bounds, method, epsilon=50.0):
        return sizes.measure(
            sizes.Task("sklearn-iris", bounds, method, epsilon, 0), IRIS
        )

    exact, found = run("min", sizes.EXACT, None), run("min", method)
    assert found.keys() == exact.keys() == sizes.SUITE.measures.keys()
    assert (exact["violation"], exact["noise"]) == (0, None)
    assert 0.95 * exact["cost"] < found["cost"] < 1.3 * exact["cost"]
    assert found["violation"] <= 5
    assert found["kept"] + found["open"] + found["missed"] == 3
    assert 0 < found["noise"] < 2
    nearest = run("max", sizes.NEAREST)
    assert nearest["cost"] < 1.3 * exact["cost"]
    assert nearest["noise"] is None


def test_tasks_are_those_that_apply(sizes, monkeypatch):
    monkeypatch.setattr(sizes, "find_spec", lambda name: None)
    options = Options(6, data=("uneven_16_16", "sklearn-iris", "uneven_32_8"))
    tasks = plan_of(sizes.SUITE, options).tasks
    assert [task.run for task in tasks] == sorted(task.run for task in tasks)
    assert {task.method for task in tasks} == {*sizes.METHODS} - {sizes.PEER}
    replayed = {
        (t.data, t.bounds, t.epsilon) for t in tasks if t.method == sizes.OBLIVIOUS
    }
    assert replayed == {("uneven_16_16", "balanced", 1.0)}
    assert {task.epsilon for task in tasks} == {None, *sizes.EPSILONS}
    assert {task.bounds for task in tasks if task.data == "uneven_32_8"} == {
        "balanced",
        "min",
    }
    for method, data, runs in (
        (sizes.BOUNDED, "sklearn-iris", 6),
        (sizes.BOUNDED, "uneven_32_8", sizes.FEW["uneven_32_8"]),
        (sizes.EXACT, "sklearn-iris", sizes.STARTS[sizes.EXACT]),
    ):
        found = {
            task.run for task in tasks if (task.method, task.data) == (method, data)
        }
        assert found == set(range(runs))
    with pytest.raises(ConfigurationError, match="pip install k-means-constrained"):
        sizes.measure(sizes.Task("sklearn-iris", "min", sizes.PEER, None, 0), options)
    monkeypatch.setattr(sizes, "find_spec", lambda name: name)
    assert sizes.PEER in {task.method for task in plan_of(sizes.SUITE, options).tasks}


def row(sizes, method, epsilon, run, cost, data="sklearn-iris", **more):
    found = dict.fromkeys(sizes.SUITE.measures) | {
        "flow": cost,
        "violation": 0,
        "empty": 0,
    }
    task = sizes.Task(data, "balanced", method, epsilon, run)
    return {**vars(task), **found, "cost": cost, "seconds": 1.0, **more}


def test_tables_hold_all_methods_over_the_least_exact_cost(sizes):
    said = {"noise": 5.0, "kept": 1, "open": 2, "missed": 0, "covered": True}
    rows = [
        row(sizes, sizes.EXACT, None, 0, 4.0),
        row(sizes, sizes.EXACT, None, 1, 2.0),
        row(sizes, sizes.PEER, None, 0, 3.0),
        row(sizes, sizes.BOUNDED, 1.0, 0, 3.0, violation=10, **said),
        row(
            sizes, sizes.BOUNDED, 1.0, 1, 3.0, violation=0, **{**said, "covered": False}
        ),
        row(sizes, sizes.BOUNDED, 4.0, 0, 2.0, **said),
        row(sizes, sizes.NEAREST, 1.0, 0, 1.0, flow=2.0, violation=25, empty=1),
    ]
    _, costs, _, gains, _, noisy, coverage = sizes.tables_of(rows, IRIS).split("\n\n")
    name = ["sklearn-iris", "balanced"]
    found = ["1.500 ± 0 (1.500) 10%", "1.000 (1.000) 0%", "1 to 2"]
    assert cells(costs) == [
        [*name, "1.000, 1.500", "1.500, 1.500", sizes.BOUNDED, "", "", *found],
        [*name, "", "", sizes.NEAREST, "", "", "0.500 (1.000) 50%, 1 empty", "", "1"],
    ]
    records = sizes.in_ball("sklearn-iris", IRIS).records
    one = float(np.square(records - records.mean(axis=0)).sum())
    lost = [f"{gain / (one - 2.0):.3f}" for gain in (1.0, 0.0)]
    shown = [*name, f"{one / 2:.4f}"]
    assert cells(gains) == [
        [*shown, sizes.BOUNDED, "", "", *lost],
        [*shown, sizes.NEAREST, "", "", "0.000", ""],
    ]
    assert cells(noisy) == [
        [
            *name,
            sizes.BOUNDED,
            "",
            "",
            "10%; 1 / 2 / 0; 1 of 2",
            "10%; 1 / 2 / 0; 1 of 1",
        ]
    ]
    assert coverage.endswith("in 2 of 3 runs (66.7%).")
    # Data on which constants were chosen are marked.
    tuned = [row(sizes, sizes.BOUNDED, 1.0, 0, 3.0, "uneven_16_16")]
    ((first, *_),) = cells(sizes.cost_table(tuned, Options(1, data=("uneven_16_16",))))
    assert first == "uneven_16_16 (tuned on)"


def test_the_quick_command_runs_and_writes_its_tables(sizes, tmp_path, capsys):
    command = ["--quick", "--data", "sklearn-iris", "--bounds", "max", "--jobs", "1"]
    sizes.main(
        [*command, "--methods", sizes.EXACT, sizes.NEAREST, "--output", str(tmp_path)]
    )
    assert "| sklearn-iris | max | 1.000, " in capsys.readouterr().out
    text = (tmp_path / "runs.csv").read_text()
    assert text.count(f",{sizes.NEAREST},1.0,") == 2
    assert text.count(f",{sizes.EXACT},,") == sizes.STARTS[sizes.EXACT]
