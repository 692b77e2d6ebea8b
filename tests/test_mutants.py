"""The faults that `.ci/mutants.py` plants: their anchors hold in the code as it is."""

import importlib.util
import sys
from collections import Counter
from dataclasses import replace

import pytest
from scripts import ROOT


@pytest.fixture(scope="module")
def mutants():
    """Load the tool, which is in no package."""
    folder = str(ROOT / ".ci")
    sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(
        "mutants", ROOT / ".ci" / "mutants.py"
    )
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    sys.path.remove(folder)


def test_every_fault_can_be_planted_and_all_rooms_have_some(mutants):
    faults = mutants.read_faults()
    assert mutants.check(faults) == []
    assert (
        len(
            {
                (each.file, each.function, each.old, each.new, each.nth)
                for each in faults
            }
        )
        >= 200
    )
    counts = Counter(each.room for each in faults)
    # All rooms use the former, and the latter's warnings follow from released values.
    assert set(counts) - set(mutants.ROOMS) <= {"files.py", "report"}
    # its tests plant others themselves
    least = dict.fromkeys(mutants.ROOMS, 20) | {"vertical": 5}
    assert all(counts[room] >= n for room, n in least.items())
    for each in faults:
        assert not each.planted_in or (ROOT / each.planted_in).is_file(), each.name


SOURCE = """
LIMIT = 3


class Counter:
    size: int = LIMIT + 1

    def add(self, number, step=LIMIT):
        if (number >
                self.size):  # Grenze
            raise ValueError("zu groß")
        self.size += number
        return self.size + 1, self.size + 1
"""


@pytest.fixture
def fault(mutants):
    return mutants.Fault("f", "data/x.py", "Counter.add", "number > self.size", "False")


def test_a_fault_is_planted_whatever_the_format_of_its_place(mutants, fault):
    found = mutants.plant(fault, SOURCE)
    assert found.text == SOURCE.replace(
        "(number >\n                self.size)", "((False))"
    )
    assert (found.lines, found.at_import) == (range(9, 11), False)
    found = mutants.plant(replace(fault, old="self.size += number", new="pass"), SOURCE)
    assert found.text == SOURCE.replace("self.size += number", "pass")
    assert (found.lines, found.at_import) == (range(12, 13), False)
    found = mutants.plant(replace(fault, old="self.size + 1", new="0", nth=2), SOURCE)
    assert found.text == SOURCE.replace(", self.size + 1", ", (0)")
    found = mutants.plant(replace(fault, old="LIMIT", new="5"), SOURCE)
    assert "step=(5)" in found.text
    assert found.at_import
    for function, old in (("Counter", "LIMIT + 1"), ("<module>", "3")):
        found = mutants.plant(
            replace(fault, function=function, old=old, new="4"), SOURCE
        )
        assert found.at_import
        assert found.text == SOURCE.replace(f"= {old}\n", "= (4)\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": "number < self.size"}, "one place, or nth among the 0 places"),
        ({"old": "self.size + 1", "new": "0"}, "one place, or nth among the 2 places"),
        ({"nth": 2}, "nth=2 among the 1 places"),
        ({"function": "Counter.sub"}, "one definition of 'sub', not 0"),
        ({"function": "<module>"}, "the 0 places"),
        ({"new": "number>self.size"}, "a change"),
        ({"new": "pass"}, "two expressions or as two statements"),
        ({"old": "number >"}, "Python in old and new"),
        ({"old": "self.size += number", "new": "break"}, "code that compiles"),
    ],
)
def test_a_fault_that_lost_its_place_is_named(mutants, fault, change, message):
    with pytest.raises(mutants.FaultError, match="Fault 'f'") as error:
        mutants.plant(replace(fault, **change), SOURCE)
    assert message in str(error.value)


def test_batches_have_like_and_cheap_tests_first(mutants):
    seconds = {
        f"tests/test_{name}.py::test_{i}": cost
        for name, cost in (("own", 2.0), ("cheap", 0.1), ("dear", 9.0))
        for i in range(30)
    }

    def likeness(nodeid):
        return 3.0 if "test_own" in nodeid else 0.0

    first, *others = mutants.in_batches(seconds, seconds, likeness)
    assert {each.split("::")[0] for each in first} == {
        "tests/test_cheap.py",
        "tests/test_own.py",
    }
    assert sum(map(seconds.__getitem__, first)) <= mutants.BATCHES[0][1]
    assert sorted([*first, *(each for batch in others for each in batch)]) == sorted(
        seconds
    )


def test_rare_common_words_make_names_alike(mutants, fault):
    chosen = replace(fault, name="ledger-forgets-charges", file="privacy/ledger.py")
    tests = [
        "tests/test_a.py::test_a_charged_ledger",
        "tests/test_a.py::test_a_ledger",
        "tests/test_a.py::test_another",
        "tests/test_b.py::test_of_ledgers",
    ]
    likeness = mutants.Likeness(tests)
    charged, ledger, other, _ = (likeness.of(chosen, test) for test in tests)
    assert charged > ledger > other == 0.0


def test_the_table_says_who_kills_what(mutants, fault):
    faults = [
        fault,
        replace(fault, name="g"),
        replace(fault, name="h", file="privacy/x.py"),
    ]
    outcomes = {
        "f": mutants.Outcome(
            "f", mutants.definition(fault), "default", ["tests/a.py::b[1|2]"]
        ),
        "h": mutants.Outcome("h", "another definition", "default", ["tests/a.py::b"]),
    }
    text = mutants.table(faults, outcomes)
    assert "| data | 2 | 1 | 0 | 0 | 1 |" in text
    assert "| privacy | 1 | 0 | 0 | 0 | 1 |" in text
    assert "| all | 3 | 1 | 0 | 0 | 2 |" in text
    assert "| `tests/a.py::b[1\\|2]` |" in text
