"""The attack on whole runs: every algorithm and unit, what is scored, and that it can fail."""

import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from scripts import ROOT, load_script
from seamed import bytes_of

from bench.harness import Options, plan_of
from flower_kmeans import strategies
from flower_kmeans.privacy import randomness
from flower_kmeans.strategies import KMeansStrategy

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def whole(monkeypatch):
    return load_script(monkeypatch, "audit_whole")


@pytest.fixture
def measured(whole):
    """What the script's attacks are made of."""
    return SimpleNamespace(**whole.attack_whole.__globals__)


@pytest.mark.claim("audit", "whole-runs-every-private")
def test_every_private_strategy_is_attacked_for_every_unit_that_it_protects(whole):
    names = {
        name
        for name in strategies.__all__
        if issubclass(getattr(strategies, name), KMeansStrategy)
        if name not in ("KMeansStrategy", "Lloyd")
    }
    wanted = {
        (name, unit)
        for name in names
        for unit in ("record", "client", "person")
        if unit == "record" or name != "ConstrainedLloyd"
    }
    cells = whole.cells()
    assert len(cells) == len(wanted) == 22
    assert {(cell.strategy, cell.unit) for cell in cells} == wanted
    assert {cell.trust for cell in cells} == {
        "oblivious-server",
        "clients-only",
        "distributed-noise",
        "trusted-server",
    }
    tasks = plan_of(whole.SUITE, Options(7)).tasks
    assert [task.cell for task in tasks if not task.bug] == cells
    assert {(t.bug, t.planted) for t in tasks if t.bug} == {
        (name, planted) for name in whole.PLANTED for planted in (True, False)
    }


@pytest.mark.parametrize("shift", [0, 1])
def test_every_run_is_guessed_by_its_own_queries(measured, monkeypatch, shift):
    """Runs give their scores by likelihood: those of each side are counted against 0."""
    asked = []

    def recorded(setting, present, replay):
        assert replay == (len(asked) < 2)
        asked.append(present)
        run = len(asked)
        change = np.full((1, 1), 100 * run)
        residual = change * (present if shift == 0 else 1)
        return [], measured.Views(residual, change)

    def likelihood(answers, views):
        return (views.residual - views.change / 2).sum(axis=1)

    monkeypatch.setitem(measured.attack_whole.__globals__, "recorded", recorded)
    monkeypatch.setitem(measured.attack_whole.__globals__, "log_likelihood", likelihood)
    with mock.patch.object(measured.Answers, "attained", return_value=0.5):
        cell = measured.Cell("GLloyd", "trusted-server")
        line = measured.attack_whole(cell, 20)
    assert asked == [False, True] * 20
    assert (line.tpr, line.fpr) == (1.0, float(shift))
    assert (line.recorded, line.recorded_right) == (40, 40 - 20 * shift)
    assert line.attained == 0.5
    bound = measured.mu_lower_bound(20, 20, 20 * shift, 20)
    assert line.mu_bound == bound
    assert line.verdict == (measured.BELOW if shift else measured.ABOVE)


@pytest.mark.claim("audit", "whole-runs-every-private")
@pytest.mark.default_cases("edge counted twice-True")
@pytest.mark.parametrize(
    ("name", "planted"),
    [
        (name, planted)
        for name in ("noise halved", "edge counted twice")
        for planted in (True, False)
    ],
    ids=lambda value: str(value),
)
def test_planted_bugs_are_caught_by_whole_runs_and_the_code_as_it_is_passes(
    whole, name, planted
):
    """A confidence of 1 - 1e-10 keeps the unplanted bound below the claim."""
    bug = whole.PLANTED[name]
    if planted:
        with mock.patch.object(randomness, "_os_random", bytes_of(f"whole {name}")):
            line = whole.line_of(whole.task_of(bug.cell, 120, name, True))
        assert line.epsilon_bound > line.claimed_epsilon
    else:
        line = whole.attack_whole(bug.cell, 60, 1 - 1e-10)
        assert line.epsilon_bound <= line.claimed_epsilon


@pytest.mark.thorough
def test_the_second_bug_is_not_in_the_repetitions(whole, measured):
    """It is in code that they do not call, so whole runs alone find it."""
    bug = whole.PLANTED["edge counted twice"]
    effort = measured.Effort(1000, 1, 1 - 1e-10)
    line = measured.attack(bug.cell, effort, patch=bug.patch)
    assert line.epsilon_bound <= line.claimed_epsilon


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["record", "person"])
def test_laplace_noise_has_a_threshold_from_repetitions(measured, unit):
    cell = measured.Cell("SuLloyd", "oblivious-server", unit)
    line = measured.attack_whole(cell, 5, 1 - 1e-10, pilot=500)
    assert line.threshold != 0
    assert math.isnan(line.mu_bound)
    assert line.verdict == measured.BELOW


def test_lines_that_are_not_as_they_must_be_are_shown(whole, measured):
    cell = whole.PLANTED["noise halved"].cell
    line = measured.attack_whole(cell, 2)
    high = replace(line, epsilon_bound=9.0, verdict=measured.ABOVE)
    first = whole.task_of(cell, 2)
    planted = whole.task_of(cell, 2, "noise halved", True)

    def shown(one, other):
        rows = [{**asdict(first), **asdict(one)}, {**asdict(planted), **asdict(other)}]
        return whole.tables_of(rows, Options(2))

    assert "All lines are as they must be." in shown(line, high)
    assert "| caught |" in shown(line, high)
    wrong = shown(high, line)
    assert "| MISSED |" in wrong
    assert "GLloyd, trusted-server, record, epsilon 4: ABOVE THE CLAIM." in wrong


@pytest.mark.claim("audit", "whole-runs-every-private")
def test_all_lines_together_give_the_bound_of_their_summed_guesses(whole, measured):
    line = {"epsilon": 4.0, "bug": "", "mu": 0.925}
    one = {**line, "repetitions": 60, "tpr": 0.7, "fpr": 0.3}
    other = {**line, "repetitions": 140, "tpr": 0.65, "fpr": 0.35}
    laplace = {**one, "mu": math.nan}
    bug = {**one, "bug": "noise halved"}
    bound = measured.epsilon_of_mu(measured.mu_lower_bound(133, 200, 67, 200), 1e-5)
    assert whole.together([one, laplace, other, bug]) == (
        "Epsilon 4: the 200 whole runs of each side with Gaussian noise, in 2 lines, "
        f"give {bound:.2f} together."
    )


@pytest.mark.claim("audit", "whole-runs-every-private")
def test_the_page_has_every_line_of_whole_runs(whole):
    text = (ROOT / "docs" / "tables" / "audit.md").read_text("utf-8")
    rows = [
        [part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines()
    ]
    lines = [row for row in rows if len(row) == 13 and row[3] == "4"]
    found = {tuple(row[:3]): row for row in lines if not row[4]}
    for cell in whole.cells():
        row = found[cell.strategy, cell.trust, cell.unit]
        assert float(row[9]) <= float(row[8])
        assert float(row[10]) > 0.95
        assert row[12] == "below"
    bugs = {row[4]: row[12] for row in lines if row[4]}
    for name in whole.PLANTED:
        assert bugs[f"{name}, planted"] == "caught"
        assert bugs[f"{name}, not planted"] == "below"
