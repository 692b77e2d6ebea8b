"""Which cases of the tests run by default; all others carry the marker ``thorough``."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

NIGHTLY = ("slow", "deployment")
"""Markers of tests that neither the default command nor ``-m thorough`` runs."""

COMMANDS = {
    "thorough": "python -m pytest -n 2 -m thorough",
    "slow": "python -m pytest -m slow",
    "deployment": "python -m pytest -m deployment",
}
"""The command for those tests that the default command leaves out, by their marker."""

STRENGTHS = {"values": 1, "pairs": 2}
"""How many values the combinations have that ``default_cases`` runs once."""


def _value(value: Any) -> Hashable:
    """Return a key that is equal for parameters that look alike."""
    return type(value).__qualname__, repr(value)


def _combinations(case: dict[str, Any], strength: int) -> set[Hashable]:
    """Return the combinations of so many values that a case holds, all if it has fewer."""
    values = sorted((name, _value(value)) for name, value in case.items())
    return set(combinations(values, min(strength, len(values))))


def covering(cases: Sequence[dict[str, Any]], strength: int) -> list[int]:
    """Choose cases that together hold every combination of so many values.

    Parameters
    ----------
    cases : sequence of dict
        The parameters of each case by name.
    strength : int
        1 for every value once, 2 for every pair of values once.

    Returns
    -------
    list of int
        Positions in ``cases``, ascending. The next one chosen always adds the most new
        combinations; of equal ones it is the first.
    """
    held = [_combinations(case, strength) for case in cases]
    missing = set().union(*held)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: len(held[i] & missing))
        chosen.append(best)
        missing -= held[best]
    return sorted(chosen)


def _functions(items: Iterable[pytest.Item]) -> dict[Hashable, list[pytest.Function]]:
    """Return the cases of each test that names its default cases, by the test."""
    functions = defaultdict(list)
    for item in items:
        if item.get_closest_marker("default_cases") and hasattr(item, "callspec"):
            functions[
                item.path, item.getmodpath(stopatmodule=True).partition("[")[0]
            ].append(item)
    return functions


def _chosen(cases: Sequence[pytest.Function]) -> set[pytest.Function]:
    """Return the cases of one test that run by default, by its marker ``default_cases``."""
    kind, *names = cases[0].get_closest_marker("default_cases").args
    if kind in STRENGTHS:
        positions = covering([case.callspec.params for case in cases], STRENGTHS[kind])
        return {cases[i] for i in positions}
    return {case for case in cases if case.callspec.id in (kind, *names)}


def mark_thorough(items: Iterable[pytest.Item]) -> None:
    """Give the marker ``thorough`` to the cases that ``default_cases`` does not choose.

    Cases that carry ``thorough`` or a nightly marker already are not chosen.

    Raises
    ------
    pytest.UsageError
        If several cases of a test are collected, and its marker chooses none of them.
    """
    excluded = ("thorough", *NIGHTLY)
    for cases in _functions(items).values():
        open_cases = [
            case
            for case in cases
            if not any(case.get_closest_marker(name) for name in excluded)
        ]
        if not open_cases:
            continue
        chosen = _chosen(open_cases)
        if not chosen and len(open_cases) > 1:
            raise pytest.UsageError(
                f"default_cases of {open_cases[0].nodeid} chooses no case"
            )
        for case in open_cases:
            if case not in chosen:
                case.add_marker(pytest.mark.thorough)


def count_left_out(items: Iterable[pytest.Item]) -> Counter[str]:
    """Count the deselected cases by the marker whose command runs them."""
    counts: Counter[str] = Counter()
    for item in items:
        markers = [name for name in COMMANDS if item.get_closest_marker(name)]
        counts.update(markers[-1:])
    return counts


def left_out_lines(counts: dict[str, int]) -> list[str]:
    """Return a line for each kind of left out cases, with the command that runs them."""
    return [
        f"Left out: {counts[name]} {name} cases. Run them with: {command}"
        for name, command in COMMANDS.items()
        if counts.get(name)
    ]


def only_thorough(items: Iterable[pytest.Item]) -> set[str]:
    """Return the tests of which no case runs by default, but some run with ``-m thorough``."""
    by_default: dict[str, bool] = defaultdict(bool)
    for item in items:
        if not any(item.get_closest_marker(name) for name in NIGHTLY):
            name = item.nodeid.partition("[")[0]
            by_default[name] |= item.get_closest_marker("thorough") is None
    return {name for name, runs in by_default.items() if not runs}


# ---------------------------------------------------------------------- hooks of pytest

LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""Where a session counts the cases that it leaves out, by their marker."""
ONLY_THOROUGH = pytest.StashKey[set[str]]()
"""Where a session keeps the tests of which no case runs by default."""


def pytest_configure(config):
    config.stash[LEFT_OUT] = {}


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    mark_thorough(items)
    config.stash[ONLY_THOROUGH] = only_thorough(items)


def pytest_deselected(items):
    if items and not items[0].config.option.keyword:
        items[0].config.stash[LEFT_OUT] = count_left_out(items)


def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # a process of pytest-xdist, which collects for the main one
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT].update(
        getattr(node, "workeroutput", {}).get("left_out", {})
    )


def pytest_terminal_summary(terminalreporter, config):
    for line in left_out_lines(config.stash[LEFT_OUT]):
        terminalreporter.write_line(line)
