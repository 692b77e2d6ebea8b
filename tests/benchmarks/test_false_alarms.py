"""The script that measures false alarms: it finds few, and would find more."""

import math

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans.algorithms import plausibility
from tests.support.documents import library_algorithms

pytestmark = pytest.mark.claim("reading-a-report", "cases-at-limit-what")


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "false_alarms")


def runs(script, name, n_draws=40, **case):
    case = script.Case("", **case)
    algorithm = script.ALGORITHMS[name](math.ceil(script.N * case.factor))
    return script.alarms_in(algorithm, case, n_draws)


def test_every_algorithm_is_measured(script):
    assert {make(script.N).name for make in script.ALGORITHMS.values()} == set(
        library_algorithms()
    )


@pytest.mark.parametrize(
    "case", [{"factor": 1 / 3}, {"factor": 3.0}, {"corners": True}], ids=str
)
@pytest.mark.parametrize("name", ["GLloyd", "SuLloyd", "FastLloyd", "PEMeans"])
@pytest.mark.default_cases("GLloyd-{'factor': 3.0}", "SuLloyd-{'corners': True}")
def test_noise_raises_no_alarm_but_would_with_a_larger_chance(
    script, name, case, monkeypatch
):
    assert not runs(script, name, **case).any()
    if name == "PEMeans" and "corners" in case:
        return  # votes have no sums
    # A union bound over many tests is loose, so the rate stays below the chance.
    monkeypatch.setattr(plausibility, "FALSE_ALARMS", 5.0)
    assert runs(script, name, **case).any()


def test_noise_has_the_planned_law(script):
    algorithm = script.ALGORITHMS["SuLloyd"](script.N)
    rng = np.random.default_rng(0)
    drawn = script.noise_draws(algorithm, 1, 4000, rng)
    for name, places in algorithm.layout(1).places.items():
        planned = algorithm.noise_of(1)[name]
        assert drawn[:, places].std() == pytest.approx(planned, rel=0.05)


def test_the_table_has_a_row_for_each(script, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["false_alarms.py", "--draws", "2", "--only", "GLloyd"]
    )
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| GLloyd |" + " 0 of 2 |" * 5
    assert lines[-1].startswith("0 of 10 runs; at most 0.26 at 95%.")
