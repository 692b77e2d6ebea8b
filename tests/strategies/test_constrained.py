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
KINDS = [name for name in rows.ROWS if "constrained" in name and "laplace" not in name]
SOLVER = "ortools.graph.python.min_cost_flow"


def make(name="constrained, mna", trust="oblivious-server", **options):
    return rows.make(name, trust, **options)


DROPS = [Fault(1, 2, "drop"), Fault(4, 2, "drop")]


@pytest.mark.claim("guarantees", "17")
@pytest.mark.parametrize(
    ("name", "trust", "faults", "answers"),
    [
        *((name, trust, DROPS, [M, 4]) for name in KINDS for trust in rows.TRUSTS[1:3]),
        ("constrained, amn", "oblivious-server", [Fault(3, 0, "crash")], [M - 1] * 2),
    ],
)
def test_clients_that_are_away_do_not_move_the_means(name, trust, faults, answers):
    """Sums are of those who answer, and so is what divides them, also if the cohort is smaller."""
    with without_noise():
        one, other = (
            run_recorded(make(name, trust, n_rounds=2), [PARTS[0]] * M, faults=given)
            for given in ([], faults)
        )
    assert other.strategy.report.answers == answers
    np.testing.assert_allclose(other.one.centroids, one.one.centroids, atol=1e-3)
    np.testing.assert_allclose(other.one.counts, one.one.counts * answers[-1] / M)


def test_clients_may_have_no_records_or_too_many():
    parts = [
        PARTS[0],
        PARTS[0][:0],
        np.vstack(PARTS[1:5]),
        PARTS[5][:3],
        PARTS[5],
        PARTS[5],
    ]
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
