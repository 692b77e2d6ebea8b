"""ConstrainedLloyd end to end: trust models, noise, dropouts, and what is refused."""

import sys

import numpy as np
import pytest
import rows
from harness import run_recorded, without_noise

from flower_kmeans import Fault, simulate
from flower_kmeans.errors import ConfigurationError, RunError

M, N = rows.M, rows.N
PARTS = rows.parts_of("constrained, mna")
KINDS = pytest.mark.parametrize(
    "name", [name for name in rows.ROWS if "constrained" in name and "laplace" not in name]
)
SOLVER = "ortools.graph.python.min_cost_flow"


def make(name="constrained, mna", trust="oblivious-server", **options):
    return rows.make(name, trust, **options)


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
@KINDS
def test_clients_that_drop_out_do_not_move_the_means(name, trust):
    """Two of six clients with the same records: sums are of four, and so is what divides them."""
    faults = [Fault(1, 2, "drop"), Fault(4, 2, "drop")]
    found = []
    same = [PARTS[0]] * M
    with without_noise():
        for given in ([], faults):
            strategy = make(name, trust, n_rounds=2)
            found.append(run_recorded(strategy, same, faults=given))
    assert found[1].strategy.report.answers == [M, 4]
    np.testing.assert_allclose(found[1].one.centroids, found[0].one.centroids, atol=1e-3)
    np.testing.assert_allclose(found[1].one.counts, found[0].one.counts * 4 / M)


def test_a_client_that_never_joined_does_not_move_the_means():
    """The cohort is then smaller than n_clients, and the mean is still that of the answers."""
    same = [PARTS[0]] * M
    with without_noise():
        one = run_recorded(make("constrained, amn"), same)
        other = run_recorded(make("constrained, amn"), same, faults=[Fault(3, 0, "crash")])
    assert set(other.strategy.report.answers) == {M - 1}
    np.testing.assert_allclose(other.one.centroids, one.one.centroids, atol=1e-3)


def test_clients_may_have_no_records_or_too_many():
    parts = [PARTS[0], PARTS[0][:0], np.vstack(PARTS[1:5]), PARTS[5][:3], PARTS[5], PARTS[5]]
    found = simulate(make(trust="plain"), parts)
    assert found.report.answers == [M] * 3
    assert found.counts.sum() == N  # all slots, at any client


def test_a_simulation_notes_that_no_sizes_were_released():
    found = simulate(make("constrained, amn", "trusted-server"), PARTS)
    assert any("released no sizes" in note for note in found.report.warnings)
    np.testing.assert_array_equal(found.counts, [N / 3] * 3)
    assert not any(
        "released no sizes" in note
        for note in simulate(make(trust="trusted-server"), PARTS).report.warnings
    )


def test_a_missing_solver_is_an_error_before_anything_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, SOLVER, None)
    strategy = make()
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[constrained\]"):
        simulate(strategy, PARTS)
    with pytest.raises(RunError):
        _ = strategy.report  # nothing was started
    simulate(make("constrained, mna, non-exclusive"), PARTS)


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server"])
def test_a_client_without_the_solver_does_not_answer(monkeypatch, caplog, trust):
    """It says so in its own log, when it is asked to join, before any record is read."""
    monkeypatch.setitem(sys.modules, SOLVER, None)
    loaded = []

    def load(context):
        loaded.append(context)
        return PARTS[0]

    with pytest.raises(RunError):
        run_recorded(make(trust=trust), PARTS, load=load, timeout=20)
    assert not loaded
    assert "flower-kmeans[constrained]" in caplog.text
