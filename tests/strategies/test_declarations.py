"""A strategy's own options are those of its algorithm: the same names, types and defaults.

Type checkers refuse others before a program runs, and constructors when it does.
"""

import subprocess
import sys
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from flower_kmeans.strategies import (
    BY_NAME,
    CommonOptions,
    CommonOptionsAndInitial,
    KMeansStrategy,
    own_options,
    parameters_of,
)

ROOT = Path(__file__).resolve().parents[2]
STRATEGIES = [each for each in BY_NAME.values() if issubclass(each, KMeansStrategy)]
TYPED = """
from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.strategies import FastLloyd, PEMeans, SynopsisKMeans

box = Box([0, 0], [1, 1])
good = FastLloyd(3, box, PrivacyBudget(1.0), n_records=1000, alpha=0.8)
pair = SynopsisKMeans((2, 20), box, PrivacyBudget(1.0), 1000, n_clients=10)
misspelt = FastLloyd(3, box, PrivacyBudget(1.0), n_records=1000, alpa=0.8)
mistyped = FastLloyd(3, box, PrivacyBudget(1.0), n_records=1000, alpha="wide")
choice = FastLloyd(3, box, PrivacyBudget(1.0), n_records=1000, radius="wide")
both = SynopsisKMeans(3, box, PrivacyBudget(1.0), 1000, n_clients="ten", trsut="x")
started = PEMeans(3, box, PrivacyBudget(1.0), 1000, initial=[[0, 0]])
"""


def own_parameters(strategy: type[KMeansStrategy]) -> dict[str, Parameter]:
    found = signature(strategy.__init__).parameters.values()
    return {each.name: each for each in found if each.kind is Parameter.KEYWORD_ONLY}


def declared_options(strategy: type[KMeansStrategy]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each option of the algorithm, as a user gives it."""
    kind = strategy.ALGORITHM
    types = get_type_hints(kind)
    found = {each.name: (types[each.name], each.default) for each in fields(kind)}
    for holder in reversed(kind.__mro__):
        if "planned" in holder.__dict__:
            hints = get_type_hints(holder.planned)
            for name, each in signature(holder.planned).parameters.items():
                found[name] = (hints[name], each.default)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_names_each_option_of_its_algorithm(strategy):
    found = own_parameters(strategy)
    assert found.keys() == own_options(strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_their_types_and_defaults_agree(strategy):
    options = declared_options(strategy)
    hints = get_type_hints(strategy.__init__)
    for name, each in own_parameters(strategy).items():
        assert (hints[name], each.default) == options[name], name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_takes_the_common_options_and_no_others(strategy):
    start = {"initial"} if "initial" in parameters_of(strategy) else set()
    (rest,) = (
        each.annotation.__args__[0]
        for each in signature(strategy.__init__).parameters.values()
        if each.kind is Parameter.VAR_KEYWORD
    )
    assert rest is (CommonOptionsAndInitial if start else CommonOptions)
    lacking = {"clip", "initial"} - parameters_of(strategy).keys()
    if not strategy.ALGORITHM.takes_weights:
        lacking |= {"n_persons", "max_clients_per_person", "weighted"}
    first = {"n_clusters", "domain", "privacy", "n_records"}
    own = own_parameters(strategy).keys()
    common = rest.__annotations__.keys() - lacking
    assert parameters_of(strategy).keys() == first | own | common


def test_the_base_has_every_common_option_with_its_type_and_a_default():
    base = signature(KMeansStrategy.__init__).parameters
    hints = get_type_hints(KMeansStrategy.__init__, include_extras=True)
    types = get_type_hints(CommonOptionsAndInitial, include_extras=True)
    assert {name: hints[name] for name in types} == types
    assert all(base[name].default is not Parameter.empty for name in types)


@pytest.mark.thorough
def test_type_checkers_refuse_what_no_strategy_takes(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    lines = [int(line.split(":")[1]) for line in errors]
    assert lines == [8, 9, 10, 11, 11, 12], found.stdout
    for word, error in zip(
        ("alpa", "alpha", "radius", "trsut", "n_clients", "initial"),
        errors,
        strict=True,
    ):
        assert f'"{word}"' in error
        assert "Strategy" not in error  # the message names the class
