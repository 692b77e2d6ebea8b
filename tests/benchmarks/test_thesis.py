"""The suite of the thesis's constrained clustering: its clients, its noise, and its tables."""

import math

import numpy as np
import pytest
from scripts import load_script
from suites import cells

from flower_kmeans.algorithms import ConstrainedLloydAlgorithm, GLloydAlgorithm, SuLloydAlgorithm
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options, plan_of
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import Stream

K, D, N = 3, 2, 60


@pytest.fixture
def thesis(monkeypatch):
    return load_script(monkeypatch, "thesis")


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    records = 0.5 * np.array([[-1, -1], [1, -1], [0, 1]])[labels] + 0.1 * rng.normal(size=(N, D))
    return Data("made", records, K, labels=labels)


def algorithm(thesis, method="exclusive MNA", mechanism="laplace", noise="right", epsilon=1.0):
    task = thesis.Task("made", method, mechanism, noise, thesis.TWO, epsilon, 0)
    return thesis.algorithm_of(data(), task)


def test_clients_have_halves_or_whole_clusters(thesis):
    rng = np.random.default_rng(0)
    halves = thesis.parts_of(data(), thesis.TWO, rng)
    assert [len(half) for half in halves] == [30, 30]
    both = np.vstack(halves)
    assert sorted(map(tuple, both)) == sorted(map(tuple, data().records))
    labels = np.arange(N) % 10
    many = Data("made", np.repeat(labels[:, None], D, axis=1).astype(float), 10, labels=labels)
    clients = thesis.parts_of(many, thesis.CLUSTERS, rng)
    assert [set(part[:, 0]) for part in clients] == [{i, i + 5.0} for i in range(5)]
    with pytest.raises(ConfigurationError, match="Expected made with labels"):
        thesis.parts_of(Data("made", many.records, 10), thesis.CLUSTERS, rng)


def test_parameters_are_the_thesis_s(thesis):
    assert thesis.bounds_of(5_000, 15) == (223, 1_000)
    made = algorithm(thesis)
    assert isinstance(made, ConstrainedLloydAlgorithm)
    assert (made.min_size, made.max_size, made.n_clients, made.seed) == (14, 60, 2, 1000)
    assert made.plan().budget.delta == 0
    assert algorithm(thesis, mechanism="gaussian").plan().budget.delta == pytest.approx(1e-6)
    assert algorithm(thesis, "e-exclusive MNA", "gaussian").max_contribution == 2
    assert algorithm(thesis, "non-exclusive MNA", "gaussian").max_size is None
    assert isinstance(algorithm(thesis, "unconstrained"), SuLloydAlgorithm)
    assert isinstance(algorithm(thesis, "unconstrained", "gaussian"), GLloydAlgorithm)
    assert algorithm(thesis, thesis.BOUNDED, "gaussian").min_size == 14
    assert algorithm(thesis, thesis.SYNOPSIS, "gaussian").min_size is None


def test_the_thesis_s_noise_covers_one_record_of_one_cluster(thesis):
    made, one = algorithm(thesis), 2**16
    right, claimed = (thesis.units_of(made, noise, 1) for noise in (thesis.RIGHT, thesis.CLAIMED))
    np.testing.assert_array_equal(claimed, [*[D * one] * (K * D), *[one] * K])
    np.testing.assert_allclose(right / claimed, [*[2 * K] * (K * D), *[2] * K])


def test_the_thesis_s_noise_of_means_is_that_of_the_largest_clusters(thesis):
    """The mean over two clients moves by a record over ``min_size``; the block is their sum."""
    made = algorithm(thesis, "exclusive AMN")
    claimed = thesis.units_of(made, thesis.CLAIMED, 1)
    np.testing.assert_allclose(claimed, 2 * D * 2**16 / 14)
    # 2 k l1 / ceil(14 / 2), and roundings.
    right = thesis.units_of(made, thesis.RIGHT, 1)
    np.testing.assert_allclose(right / claimed, 2 * K * 14 / (2 * 7), rtol=1e-3)


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_noise_has_the_scale_of_its_units(thesis, factor, accepted):
    made, stream = algorithm(thesis), Stream.from_key(bytes(32))
    plan, units = made.plan(), thesis.units_of(made, thesis.CLAIMED, 1)
    draws = [thesis.noise_of(made, plan, 1, units, stream) for _ in range(400)]
    spread = np.abs(np.array(draws, dtype=float)).mean(axis=0)
    sums, counts = plan.rounds[0]
    multipliers = [*[sums.noise_multiplier] * (K * D), *[counts.noise_multiplier] * K]
    ratio = (spread / (factor * units * multipliers)).mean()
    # A mean of 3,600 exponentials deviates by a sixtieth; these are six deviations.
    assert (abs(ratio - 1) < 0.1) == accepted
    # And the budget of the thesis: epsilon is what all of it sums to.
    total = made.n_rounds * (1 / sums.noise_multiplier + 1 / counts.noise_multiplier)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["exclusive MNA", "exclusive AMN"])
def test_bounds_without_noise_find_the_clusters(thesis, method, monkeypatch):
    monkeypatch.setattr(thesis, "in_box", lambda name, options: data())
    task = thesis.Task("made", method, "", thesis.NONE, thesis.TWO, None, 0)
    found = thesis.measure(task, Options(1))
    assert found["wcss"] < 2 * 0.1**2 * D * N
    assert (found["empty"], found["by_weights"], found["rounds"]) == (0, None, 7)


def test_every_case_runs(thesis, monkeypatch):
    monkeypatch.setattr(thesis, "in_box", lambda name, options: data())
    for case in thesis.CASES:
        epsilon = None if case.noise == thesis.NONE else 4.0
        found = thesis.measure(thesis.Task("made", *case, epsilon, 0), Options(1))
        assert found.keys() == thesis.SUITE.measures.keys()
        assert 0 < found["wcss"] < N * 16
        assert (found["by_weights"] is None) == (case.method != thesis.BOUNDED)


def test_only_noise_that_is_called_not_private_is_the_thesis_s(thesis):
    of_thesis = [case for case in thesis.CASES if case.noise == thesis.CLAIMED]
    assert {case.method for case in of_thesis} == {"exclusive MNA", "exclusive AMN"}
    assert {case.mechanism for case in of_thesis} == {"laplace"}
    assert thesis.CLAIMED == "NOT PRIVATE"
    for case in thesis.CASES:
        if case.noise == thesis.RIGHT and case.mechanism:
            made = algorithm(thesis, case.method, case.mechanism)
            np.testing.assert_array_equal(
                thesis.units_of(made, case.noise, 1), made.sensitivities(1)
            )


def test_tasks_and_tables(thesis, tmp_path):
    found = data()
    np.savez(tmp_path / "iris.npz", X=found.records)
    np.savez(tmp_path / "s1.npz", X=found.records, y=found.labels)
    np.savez(tmp_path / "birch2.npz", X=found.records)
    options = Options(3, data_dir=tmp_path)
    tasks = plan_of(thesis.SUITE, options).tasks
    clients = {name: {t.clients for t in tasks if t.data == name} for name in ("s1", "iris")}
    assert clients == {
        "s1": {thesis.TWO, thesis.FIVE, thesis.CLUSTERS},
        "iris": {thesis.TWO, thesis.FIVE},
    }
    assert {t.run for t in tasks if t.data == "birch2"} == {0, 1}
    assert all((task.epsilon is None) == (task.noise == thesis.NONE) for task in tasks)
    blank = {"empty": 0, "by_weights": None, "rounds": 2}
    rows = [
        {**vars(thesis.Task("s1", *case, epsilon, run)), **blank, "wcss": 80.0 + run, **more}
        for run in range(2)
        for case, epsilon, more in (
            (thesis.Case("exclusive MNA", "", thesis.NONE), None, {"empty": 1}),
            (thesis.Case("exclusive MNA", "laplace", thesis.CLAIMED), 4.0, {}),
            (thesis.Case(thesis.BOUNDED, "gaussian", thesis.RIGHT), 1.0, {"by_weights": 70.0}),
        )
    ]
    _, without, private = thesis.tables_of(rows, options).split("\n\n")
    half = f"{12.706 / math.sqrt(8) * math.sqrt(2):.2g}"
    assert cells(without) == [["exclusive MNA", thesis.TWO, f"80.5 ± {half} (1)"]]
    assert cells(private) == [
        ["exclusive MNA", "Laplace", "NOT PRIVATE", "2", "", "", f"80.5 ± {half}", "82.8", "2"],
        [thesis.BOUNDED, "Gaussian", "right", "2", "", f"80.5 ± {half}", "", "", "2"],
        [f"{thesis.BOUNDED}, by weights", "Gaussian", "right", "2", "", "70 ± 0", "", "", "2"],
    ]
