"""The default command runs the cases that tests name, and says which it leaves out."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import selection
from selection import ONLY_THOROUGH, covering, left_out_lines

# Of these tests no case runs by default. What covers their behaviour there:
NOT_BY_DEFAULT = {
    # test_states_are_the_same_integers_on_an_older_processor: one environment, three algorithms.
}


def test_no_behaviour_is_left_out_but_by_name(request):
    assert request.config.stash[ONLY_THOROUGH] <= set(NOT_BY_DEFAULT)


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_chosen_cases_hold_every_combination_of_values(strength):
    values = {"a": [1, 2, 3], "b": [{}, {"x": 1}], "c": ["p", "q"]}
    cases = [dict(zip(values, case, strict=True)) for case in itertools.product(*values.values())]
    chosen = [cases[i] for i in covering(cases, strength)]

    def combinations(found):
        return {
            tuple((name, repr(case[name])) for name in names)
            for case in found
            for names in itertools.combinations(sorted(values), strength)
        }

    assert combinations(chosen) == combinations(cases)
    # As few as possible here: 3 values need 3 cases, and 3 x 2 pairs need 6.
    assert len(chosen) == {1: 3, 2: 6, 3: 12}[strength]


def test_equal_parameters_of_two_cases_are_one_value():
    cases = [{"options": {}, "name": "a"}, {"options": {}, "name": "a"}]
    assert covering(cases, 1) == [0]


SUITE = """
import pytest

@pytest.mark.default_cases("values")
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_values(a, b):
    pass

@pytest.mark.default_cases("x", "z")
@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_names(name):
    pass

@pytest.mark.thorough
def test_never():
    pass
"""
CONFIGURATION = """
[pytest]
addopts = -m "not thorough and not slow"
markers =
    default_cases: .
    slow: .
    thorough: .
"""


HOOKS = """
from selection import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
"""


@pytest.fixture
def outcome(tmp_path):
    """Return a function that runs a small suite with this one's hooks, and returns its output."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    support = str(Path(selection.__file__).parent)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options]
        environment = {**os.environ, "PYTHONPATH": support}
        found = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    return run


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_session_runs_the_chosen_cases_and_says_what_it_left_out(outcome, processes):
    output = outcome(*processes)
    named = set(re.findall(r"test_suite\.py::(\S+)", output))
    assert named == {"test_values[1-1]", "test_values[3-2]", "test_names[x]", "test_names[z]"}
    assert "4 passed" in output
    assert "Left out: 4 thorough cases. Run them with: python -m pytest -n 2 -m thorough" in output
    assert "Left out: 2 slow cases. Run them with: python -m pytest -m slow" in output
    assert "deployment" not in output


def test_thorough_runs_all_others(outcome):
    output = outcome("-m", "thorough")
    assert "4 passed, 6 deselected" in output
    assert "test_never PASSED" in output
    assert "thorough cases" not in output


def test_a_marker_that_chooses_nothing_is_an_error(tmp_path, outcome):
    text = SUITE.replace('"x", "z"', '"w"')
    (tmp_path / "test_suite.py").write_text(text)
    with pytest.raises(AssertionError, match=r"default_cases of .*test_names.* chooses no case"):
        outcome()


def test_no_line_is_for_what_was_not_left_out():
    assert left_out_lines({}) == []
    assert left_out_lines({"slow": 0}) == []
