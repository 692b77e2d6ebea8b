"""Plant small faults into the library, one at a time, and print which tests kill which.

    python .ci/mutants.py check        # every fault is found, is the only one there, and compiles
    python .ci/mutants.py map          # which test reaches which line (the whole suite, once)
    python .ci/mutants.py map --suite default       # the same for the default tests alone
    python .ci/mutants.py run          # every fault against the tests that reach it (a night)
    python .ci/mutants.py table        # write .ci/mutants.md again from the results

Maps and results are in `build/mutants`. `run --resume` goes on where a run ended;
`run --fault NAME ...` chooses. A change of the library needs a new map, a new test
needs one to be counted.

The faults are in `.ci/faults.toml`. Each is anchored by function and expression, not by
line. `run` plants a fault into a copy of the tree, never into the tree itself. It runs
the tests that reach the fault's lines, in batches, the cheapest and those whose names
are most like the fault's first: those of the default
suite (`python -m pytest`), and then, if none of them fails, those that only the whole
suite has (`-m "not slow and not deployment"`). A batch ends after a few failures, and
the first batch with one is the last: the table names some of the tests that kill a
fault, not all of them. A killer counts once it has passed in the copy without a fault.
A test that runs ten times longer than it should, and at least half a minute, has
failed.

The map is made by coverage with one context for each test. Four rules decide what
reaches a line:

- caches of the library are emptied before each test, so that no test profits from
  another;
- what a fixture of a module or session runs is reached by all tests that ask for the
  fixture, and what a test module runs while it is imported by all of its tests;
- lines that run when the library is imported (constants, class bodies) are reached by
  all tests that run any other line of that file;
- other processes that a test starts are traced where they inherit its environment and
  end by themselves. Ray's workers do neither for sure, nor do processes that are
  killed.

The documents of two libraries were read. mutmut 3 and Cosmic Ray make their mutants by
operators. mutmut knows the tests of a function, and changes no code outside of
functions. Cosmic Ray runs one test command for all mutants. Neither takes a list of
chosen faults with anchors.
"""

import argparse
import ast
import functools
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutants_plugin import PACKAGE, ROOMS

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / ".ci" / "faults.toml"
TABLE = ROOT / ".ci" / "mutants.md"
WORK = ROOT / "build" / "mutants"
WHOLE = "not slow and not deployment"
SUITES = {"default": f"not thorough and {WHOLE}", "whole": WHOLE}
NOT_COPIED = (".git", "build", "dist", "site", ".venv", ".*_cache", ".hypothesis")
# It reads the anchors, so it fails with every fault, and is evidence of none.
OWN_TEST = "tests/test_mutants.py"
# Tests and recorded seconds of the first batches; the last batch has all others.
BATCHES = ((40, 15.0), (200, 45.0), (600, 120.0))
KILLS = 3
SLOWER, PATIENCE = 10.0, 30.0
STUCK = 120.0  # seconds between tests and while a test module is imported
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class FaultError(Exception):
    """A fault of the list cannot be planted, or a step lacks what an earlier one makes."""


# ------------------------------------------------------------------------------ faults


@dataclass(frozen=True)
class Fault:
    """One small fault: in a function, the code ``old`` becomes ``new``."""

    name: str
    file: str  # within the package
    # as `Ledger.charge`; `<module>` and classes stand for their own statements
    function: str
    old: str
    new: str
    # of equal places in source order, from 1; 0 where there is one place only
    nth: int = 0
    why: str = ""
    planted_in: str = ""  # the test that plants the same by other means

    @property
    def room(self) -> str:
        """The room of the faulty file."""
        return self.file.partition("/")[0]

    @property
    def path(self) -> str:
        """The faulty file within the repository."""
        return f"{PACKAGE}/{self.file}"


@dataclass(frozen=True)
class Planted:
    """The text of a file with a fault, and the lines that reach the fault."""

    text: str
    lines: range
    at_import: bool  # whether these lines run when the file is imported, and then only


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """Return the faults of the list, in its order."""
    found = [
        Fault(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["fault"]
    ]
    twice = [
        name for name, n in Counter(fault.name for fault in found).items() if n > 1
    ]
    if twice:
        raise FaultError(f"Expected every name once. Got {twice} twice.")
    return found


def plant(fault: Fault, source: str) -> Planted:
    """Return a file's text with a fault, or raise `FaultError`."""
    old, new = _parsed(fault, fault.old), _parsed(fault, fault.new)
    if isinstance(old, ast.expr) != isinstance(new, ast.expr):
        raise _wrong(fault, "old and new as two expressions or as two statements")
    node = _place(fault, _tree(source), old)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    replacement = f"({fault.new.strip()})"
    if isinstance(old, ast.stmt):
        indent = " " * node.col_offset
        replacement = textwrap.indent(textwrap.dedent(fault.new).strip(), indent)[
            len(indent) :
        ]
    # Columns count bytes.
    before = lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :]
    changed = [before + replacement.encode() + after]
    function, statement = _around(node)
    unit = function or statement
    first = min(each.lineno for each in (unit, *getattr(unit, "decorator_list", [])))
    faulty = [*lines[first - 1 : node.lineno - 1], *changed]
    faulty += lines[node.end_lineno : unit.end_lineno]
    _require_change(fault, node, new, lines[first - 1 : unit.end_lineno], faulty, first)
    text = b"".join([*lines[: first - 1], *faulty, *lines[unit.end_lineno :]]).decode()
    # Of a statement with a body, the lines above the body reach the fault.
    body = getattr(statement, "body", None)
    last = max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno
    at_import = function is None or function is statement
    return Planted(text, range(statement.lineno, last + 1), at_import)


@functools.lru_cache(maxsize=8)
def _tree(source: str) -> ast.Module:
    """Return the tree of a file, in which every node knows the one that it is in."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            vars(child)["parent"] = node
    return tree


def _around(node: Any) -> tuple[Any, Any]:
    """Return the outermost function and the innermost statement that a node is in."""
    function, statement = None, None
    while not isinstance(node, ast.Module):
        if statement is None and isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        node = node.parent
    return function, statement


def _require_change(
    fault: Fault,
    node: Any,
    new: ast.AST,
    lines: Sequence[bytes],
    faulty: Sequence[bytes],
    first: int,
) -> None:
    """Require that a function or statement differs by the fault, and by nothing else."""
    head = b"if True:\n" if lines[0][:1].isspace() else b"if True: pass\n"
    before = ast.parse(head + b"".join(lines))
    unchanged = ast.dump(before)
    expected = ast.dump(_Replaced(node, new, first - 2).visit(before))
    if expected == unchanged:
        raise _wrong(fault, "a change")
    try:
        found = ast.parse(head + b"".join(faulty))
        compile(found, fault.path, "exec")
    except SyntaxError as error:
        raise _wrong(fault, f"code that compiles ({error})") from None
    if ast.dump(found) != expected:
        raise _wrong(fault, "a place whose text can be replaced")


class _Replaced(ast.NodeTransformer):
    """Puts a node into the place of one with the type and place of another."""

    def __init__(self, old: Any, new: ast.AST, lines_before: int) -> None:
        self._old, self._new, self._shift = old, new, lines_before

    def visit(self, node: Any) -> Any:
        """Return the new node for the old one."""
        old = self._old
        if (
            type(node) is type(old)
            and (node.col_offset, node.end_col_offset)
            == (old.col_offset, old.end_col_offset)
            and node.lineno + self._shift == old.lineno
            and node.end_lineno + self._shift == old.end_lineno
        ):
            return self._new
        return self.generic_visit(node)


def _wrong(fault: Fault, expected: str) -> FaultError:
    where = f"{fault.file}, {fault.function}"
    return FaultError(
        f"Fault {fault.name!r} ({where}): expected {expected}. Old: {fault.old!r}"
    )


def _parsed(fault: Fault, text: str) -> ast.expr | ast.stmt:
    try:
        statements = ast.parse(textwrap.dedent(text).strip()).body
    except SyntaxError as error:
        raise _wrong(fault, f"Python in old and new ({error})") from None
    if len(statements) != 1:
        raise _wrong(fault, "one expression or one statement in old and new")
    (statement,) = statements
    return statement.value if isinstance(statement, ast.Expr) else statement


def _place(fault: Fault, tree: ast.Module, old: ast.AST) -> Any:
    """Return the node that a fault replaces: formatting and line breaks do not count."""
    scope: ast.AST = tree
    for part in () if fault.function == "<module>" else fault.function.split("."):
        inner = [node for node in _own(scope) if getattr(node, "name", None) == part]
        inner = [node for node in inner if isinstance(node, _DEFINITIONS)]
        if len(inner) != 1:
            raise _wrong(fault, f"one definition of {part!r}, not {len(inner)}")
        (scope,) = inner
    nodes = (
        _own(scope) if isinstance(scope, ast.Module | ast.ClassDef) else ast.walk(scope)
    )
    wanted = ast.dump(old)
    places: list[Any] = [
        node for node in nodes if type(node) is type(old) and ast.dump(node) == wanted
    ]
    places.sort(key=lambda node: (node.lineno, node.col_offset))
    if fault.nth and fault.nth <= len(places):
        return places[fault.nth - 1]
    if fault.nth or len(places) != 1:
        nth = f"nth={fault.nth} among" if fault.nth else "one place, or nth among"
        raise _wrong(fault, f"{nth} the {len(places)} places")
    return places[0]


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module, class or function without those of definitions in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _DEFINITIONS):
            yield from _own(child)


def planted_in_tree(fault: Fault) -> Planted:
    """Return the text of a file of this tree with a fault."""
    path = ROOT / fault.path
    if not path.is_file():
        raise _wrong(fault, "a file of that name")
    return plant(fault, path.read_text("utf-8"))


def check(faults: Sequence[Fault]) -> list[str]:
    """Return one sentence for each fault that cannot be planted."""
    wrong = []
    for fault in faults:
        try:
            planted_in_tree(fault)
        except FaultError as error:
            wrong.append(str(error))
    return wrong


# ------------------------------------------------------------------------------ the map


@dataclass
class Map:
    """Which tests reach which lines, as `make_map` found it.

    Attributes
    ----------
    seconds : dict of str to float
        Tests that passed, each with its seconds.
    fixtures : dict of str to list of str
        Shared fixtures, each with the tests that ask for it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    fixtures: dict[str, list[str]] = field(default_factory=dict)
    modules: dict[str, list[str]] = field(default_factory=dict)
    _data: Any = None

    @classmethod
    def read(cls) -> "Map":
        """Return the map that was made last."""
        import coverage

        path = WORK / "coverage"
        if not path.is_file():
            raise FaultError("Expected a map: run `python .ci/mutants.py map` first.")
        found = cls()
        for line in (WORK / "tests.jsonl").read_text("utf-8").splitlines():
            note = json.loads(line)
            if not note["passed"] or note["id"].startswith(OWN_TEST):
                continue
            found.seconds[note["id"]] = note["seconds"]
            found.modules.setdefault(note["id"].partition("::")[0], []).append(
                note["id"]
            )
            for name in note["fixtures"]:
                found.fixtures.setdefault(name, []).append(note["id"])
        found._data = coverage.CoverageData(str(path))
        found._data.read()
        found.contexts = functools.cache(found.contexts)  # type: ignore[method-assign]
        return found

    def contexts(self, path: str) -> dict[int, list[str]]:
        """Return the contexts of every line of a file."""
        found: dict[int, list[str]] = self._data.contexts_by_lineno(str(ROOT / path))
        return found

    def tests_of(self, contexts: Iterable[str]) -> set[str]:
        """Return the tests that passed and belong to contexts."""
        found = set[str]()
        for context in contexts:
            kind, _, name = context.partition(" ")
            if kind == "test":
                found.add(name)
            elif kind == "fixture":
                found.update(self.fixtures.get(context, ()))
            elif kind == "collect":
                found.update(self.modules.get(name, ()))
        return found & self.seconds.keys()

    def reaching(self, fault: Fault, planted: Planted) -> set[str]:
        """Return the tests that reach a fault's lines."""
        by_line = self.contexts(fault.path)
        contexts = {each for line in planted.lines for each in by_line.get(line, ())}
        found = self.tests_of(contexts)
        if planted.at_import or contexts & {"", "import"}:
            found |= self.tests_of({each for line in by_line.values() for each in line})
        return found


def environment(root: Path, **more: str) -> dict[str, str]:
    """Return the environment of tests in a tree."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MUTANTS_")
    }
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    path = os.pathsep.join((str(root), str(root / ".ci")))
    return {**given, **threads, **quiet, "PYTHONPATH": path, **more}


def with_plugin(*options: str) -> list[str]:
    """Return the command that runs tests with the plugin of this file."""
    plugins = ("-p", "no:cacheprovider", "-p", "mutants_plugin")
    return [sys.executable, "-m", "pytest", "-q", *plugins, *options]


def hashes(faults: Iterable[Fault]) -> dict[str, str]:
    """Return the hash of each file with a fault."""
    paths = sorted({fault.path for fault in faults})
    return {
        path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in paths
    }


def make_map(
    faults: Sequence[Fault], suite: str, tests: Sequence[str], jobs: int
) -> int:
    """Run a suite, or some tests of it, and write which lines each test reaches."""
    import coverage

    parts = WORK / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    (WORK / "coverage").unlink(missing_ok=True)
    settings = WORK / "coverage.ini"
    files = "\n    ".join(str(ROOT / path) for path in hashes(faults))
    settings.write_text(
        "[run]\ncore = ctrace\nparallel = true\n"
        f"data_file = {parts / 'coverage'}\ncontext = ${{MUTANTS_CONTEXT}}\n"
        "disable_warnings =\n    no-data-collected\n    module-not-measured\n"
        f"    module-not-imported\ninclude =\n    {files}\n"
    )
    (WORK / "files.json").write_text(json.dumps(hashes(faults)))
    # Coverage starts itself in every process that has this setting, also in those of
    # tests.
    more = {"COVERAGE_PROCESS_START": str(settings), "MUTANTS_MAP": str(parts)}
    command = with_plugin(
        "-m", SUITES[suite], *(["-n", str(jobs)] if jobs > 1 else []), *tests
    )
    code = subprocess.run(
        command, cwd=ROOT, env=environment(ROOT, **more), check=False
    ).returncode
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise FaultError(f"Expected tests that run. pytest ended with {code}.")
    with (WORK / "tests.jsonl").open("w", encoding="utf-8") as file:
        for notes in sorted(parts.glob("tests-*.jsonl")):
            file.write(notes.read_text("utf-8"))
    combined = coverage.Coverage(data_file=str(WORK / "coverage"), config_file=False)
    combined.combine([str(parts)])
    combined.save()
    shutil.rmtree(parts)
    found = Map.read()
    n_tests = len((WORK / "tests.jsonl").read_text("utf-8").splitlines())
    seconds = sum(found.seconds.values())
    print(
        f"{len(found.seconds)} of {n_tests} tests passed, in {seconds:.0f} seconds together."
    )
    return code


# ------------------------------------------------------------------------- the campaign


@dataclass
class Outcome:
    """What became of a fault."""

    fault: str
    definition: str
    # "default" or "thorough": where the killers are; empty if there is none
    suite: str = ""
    killers: list[str] = field(default_factory=list)
    n_reaching: int = 0
    n_default: int = 0
    n_run: int = 0
    whole: bool = True  # whether thorough tests were run too, where they had to be
    seconds: float = 0.0


def definition(fault: Fault) -> str:
    """Return the hash of that which a result belongs to."""
    parts = (fault.file, fault.function, fault.old, fault.new, str(fault.nth))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Copy:
    """A copy of the tree, in which one fault at a time is planted."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self._directory = directory
        shutil.copytree(
            ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED)
        )
        self._stamp = int(time.time())

    def write(self, path: str, text: str) -> None:
        """Write a file of the copy."""
        # Compiled files are valid by whole seconds and length, so no two texts may
        # share a second.
        self._stamp += 1
        (self.root / path).write_text(text, "utf-8")
        os.utime(self.root / path, (self._stamp, self._stamp))

    def failures(
        self, ids: Sequence[str], kills: int, seconds: dict[str, float]
    ) -> list[str]:
        """Return which of some tests fail in the copy: at most about ``kills`` of them."""
        events, plan = self._directory / "events.jsonl", self._directory / "plan.json"
        events.write_text("")
        plan.write_text(json.dumps({"ids": list(ids), "events": str(events)}))
        files = list(dict.fromkeys(each.partition("::")[0] for each in ids))
        options = (
            "-m",
            WHOLE,
            "--maxfail",
            str(kills),
            "--tb",
            "line",
            "--no-header",
            "-rN",
        )
        with (self._directory / "output.txt").open("w") as output:
            process = subprocess.Popen(
                with_plugin(*options, *files),
                cwd=self.root,
                env=environment(self.root, MUTANTS_PLAN=str(plan)),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            is_late = self._wait(process, events, seconds)
        happened = _events(events)
        found = [nodeid for kind, nodeid in happened if kind == "fail"]
        if process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise FaultError(
                f"Expected the tests {list(ids)[:3]} ... in the tree. Got none."
            )
        is_crash = process.returncode not in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
        )
        if is_late or (is_crash and not found):
            # It was ended, or it crashed, in the test or the import of a module that
            # came last.
            found.append(happened[-1][1] if happened else files[0])
        return list(dict.fromkeys(found))

    def _wait(
        self, process: subprocess.Popen[bytes], events: Path, seconds: dict[str, float]
    ) -> bool:
        """Wait for a process; return whether it had to be ended, for nothing happened any more."""
        size, since, limit = 0, time.monotonic(), STUCK
        while process.poll() is None:
            time.sleep(0.05)
            if events.stat().st_size != size:
                size, since, limit = events.stat().st_size, time.monotonic(), STUCK
                last = _events(events)[-1:]
                if last and last[0][0] == "start":
                    limit = PATIENCE + SLOWER * seconds.get(last[0][1], 0.0)
            if time.monotonic() - since > limit:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
        return False


def _events(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text("utf-8").splitlines()
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


@functools.cache
def words_of(text: str) -> frozenset[str]:
    """Return the words of names, each without its ending and in its first letters."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()
    found = re.findall(r"[a-z]{3,}", spaced)
    return frozenset(re.sub(r"(?<=...)(es|s|ed|ing)$", "", word)[:6] for word in found)


class Likeness:
    """How much the names of tests are like the names of a fault.

    A word that both have counts the more, the fewer tests have it.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        numbers = Counter(word for test in tests for word in words_of(test))
        total = max(numbers.values(), default=1)
        self._weights = {word: math.log(total / n) for word, n in numbers.items()}

    def of(self, fault: Fault, test: str) -> float:
        """Return the likeness of a test and a fault, 0 or more."""
        names = f"{fault.name} {fault.function} {Path(fault.file).stem}"
        common = words_of(names) & words_of(test)
        return sum(self._weights.get(word, 0.0) for word in common)


def in_batches(
    tests: Iterable[str], seconds: dict[str, float], likeness: Callable[[str], float]
) -> Iterator[list[str]]:
    """Yield tests in batches: the most like and the cheapest first, each file's together."""

    def price(nodeid: str) -> float:
        return (seconds[nodeid] + 0.02) / (1.0 + likeness(nodeid)) ** 2

    left = sorted(tests, key=lambda nodeid: (price(nodeid), nodeid))
    for most, budget in (*BATCHES, (len(left), float("inf"))):
        batch, spent = list[str](), 0.0
        while (
            left
            and len(batch) < most
            and (not batch or spent + seconds[left[0]] <= budget)
        ):
            spent += seconds[left[0]]
            batch.append(left.pop(0))
        if batch:
            files = list(dict.fromkeys(each.partition("::")[0] for each in batch))
            places = {name: i for i, name in enumerate(files)}
            yield sorted(batch, key=lambda nodeid: places[nodeid.partition("::")[0]])


class Campaign:
    """Faults against tests."""

    def __init__(self, found: Map, default: set[str], kills: int, whole: bool) -> None:
        self._map, self._default, self._kills, self._whole = (
            found,
            default,
            kills,
            whole,
        )
        self._likeness = Likeness(found.seconds)
        # whether a test passes in a copy without a fault
        self._clean: dict[str, bool] = {}
        self._lock = threading.Lock()

    def judge(self, fault: Fault, copy: Copy) -> Outcome:
        """Plant a fault, and return what became of it."""
        start = time.monotonic()
        source = (ROOT / fault.path).read_text("utf-8")
        planted = plant(fault, source)
        reaching = self._map.reaching(fault, planted)
        default = reaching & self._default
        outcome = Outcome(fault.name, definition(fault), whole=self._whole)
        outcome.n_reaching, outcome.n_default = len(reaching), len(default)
        likeness = functools.partial(self._likeness.of, fault)
        suites = {
            "default": default,
            "thorough": reaching - default if self._whole else set(),
        }
        for suite, tests in suites.items():
            for batch in in_batches(tests, self._map.seconds, likeness):
                killers = self._killers(fault, copy, planted.text, source, batch)
                outcome.n_run += len(batch)
                if killers:
                    outcome.suite, outcome.killers = suite, killers
                    break
            if outcome.killers:
                break
        outcome.seconds = round(time.monotonic() - start, 1)
        return outcome

    def _killers(
        self, fault: Fault, copy: Copy, text: str, source: str, batch: list[str]
    ) -> list[str]:
        """Return the tests of a batch that fail with a fault, and pass without."""
        while True:
            tests = [each for each in batch if self._clean.get(each, True)]
            if not tests:
                return []
            copy.write(fault.path, text)
            try:
                failed = copy.failures(tests, self._kills, self._map.seconds)
            finally:
                copy.write(fault.path, source)
            self._try_clean(copy, failed)
            killers = [each for each in failed if self._clean.get(each, True)]
            if killers or not failed:
                return killers

    def _try_clean(self, copy: Copy, failed: list[str]) -> None:
        """Run tests that failed without the fault, once each."""
        # A module that failed while it was imported stands for its tests, which passed
        # in the map.
        new = [
            each
            for each in failed
            if each in self._map.seconds and each not in self._clean
        ]
        if new:
            bad = copy.failures(new, len(new), self._map.seconds)
            with self._lock:
                self._clean.update({each: each not in bad for each in new})


def default_tests() -> set[str]:
    """Return what `python -m pytest` runs."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(ROOT),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise FaultError(
            f"Expected tests that can be collected. Got:\n{done.stdout[-2000:]}"
        )
    return {line for line in done.stdout.splitlines() if "::" in line}


def run(
    chosen: Sequence[Fault], jobs: int, whole: bool, kills: int, resume: bool
) -> int:
    """Judge faults, and append each outcome to the results as it is known."""
    found = Map.read()
    known = json.loads((WORK / "files.json").read_text("utf-8"))
    stale = [path for path, value in hashes(chosen).items() if known.get(path) != value]
    if stale:
        raise FaultError(
            f"Expected a map of the tree as it is. These files changed: {stale}."
        )
    if len(chosen) == len(read_faults()) and not resume:
        (WORK / "results.jsonl").unlink(missing_ok=True)
    done = read_outcomes() if resume else {}
    left = [
        fault
        for fault in chosen
        if fault.name not in done or done[fault.name].definition != definition(fault)
    ]
    default = default_tests()
    new = len(default - found.seconds.keys())
    print(
        f"{len(left)} faults. Default tests that failed in the map or are newer: {new}."
    )
    campaign, lock = Campaign(found, default, kills, whole), threading.Lock()
    queue = iter(left)

    def work(directory: Path) -> None:
        copy = Copy(directory)
        while True:
            with lock:
                fault = next(queue, None)
            if fault is None:
                return
            outcome = campaign.judge(fault, copy)
            with lock, (WORK / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            what = (
                f"{outcome.suite}: {', '.join(outcome.killers)}"
                if outcome.suite
                else "SURVIVES"
            )
            print(f"{outcome.seconds:7.1f} s  {outcome.fault}  {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        places = [Path(directory) / str(i) for i in range(jobs)]
        for place in places:
            place.mkdir()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, places))
    return 0


# ---------------------------------------------------------------------------- the table


def read_outcomes() -> dict[str, Outcome]:
    """Return the last outcome of each fault."""
    path = WORK / "results.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    outcomes = (Outcome(**json.loads(line)) for line in lines)
    return {outcome.fault: outcome for outcome in outcomes}


def table(faults: Sequence[Fault], outcomes: dict[str, Outcome]) -> str:
    """Return the table of all faults, with a summary by room."""
    done = {
        fault: outcomes[fault.name]
        for fault in faults
        if fault.name in outcomes
        and outcomes[fault.name].definition == definition(fault)
    }

    def those(suite: str, room: str = "") -> list[str]:
        return [
            f.name
            for f, o in done.items()
            if o.suite == suite and f.room in (room or f.room)
        ]

    rows = []
    for room in ROOMS:
        n = sum(fault.room == room for fault in faults)
        counts = [len(those(suite, room)) for suite in ("default", "thorough", "")]
        rows.append((room, n, *counts, n - sum(counts)))
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 6))))
    lines = [
        "# Faults and the tests that kill them",
        "",
        "`python .ci/mutants.py run` plants each of these faults alone into a copy of the tree and",
        "runs the tests that reach it. The file says how. `python .ci/mutants.py table` makes this",
        "page again from the results. Tests are some of those that fail, not all.",
        "",
        "| room | planted | killed by default tests | by thorough tests only | by none | not run |",
        "|---|--:|--:|--:|--:|--:|",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
        f"Killed by thorough tests only: {', '.join(those('thorough')) or 'none'}.",
        "",
        f"Killed by no test: {', '.join(those('')) or 'none'}.",
        "",
        "| fault | where | old | new | killed by |",
        "|---|---|---|---|---|",
    ]
    for fault in faults:
        outcome = done.get(fault)
        killed = "not run"
        if outcome is not None:
            killed = "<br>".join(map(_code, outcome.killers)) or "none"
            killed += " (thorough)" if outcome.suite == "thorough" else ""
        where = f"{_code(fault.file)} {_code(fault.function)}"
        cells = (fault.name, where, _code(fault.old), _code(fault.new), killed)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    line = " ".join(text.split())
    shown = line if len(line) <= 100 else f"{line[:97]}..."
    marks = "``" if "`" in shown else "`"
    return f"{marks}{shown.replace('|', chr(92) + '|')}{marks}"


# -------------------------------------------------------------------------- the command


def _checked(faults: Sequence[Fault]) -> int:
    wrong = check(faults)
    print("\n".join(wrong), end="\n" if wrong else "")
    counts = Counter(fault.room for fault in faults)
    rooms = ", ".join(f"{counts[room]} in {room}" for room in ROOMS)
    twins = sum(bool(fault.planted_in) for fault in faults)
    print(
        f"{len(faults)} faults: {rooms}; {twins} are also planted by tests. {len(wrong)} wrong."
    )
    return int(bool(wrong))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Plant small faults, and run tests on them."
    )
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("check", help="see that every fault can be planted")
    mapping = tasks.add_parser("map", help="find which test reaches which line")
    mapping.add_argument(
        "--tests", nargs="+", default=(), help="not the whole suite, but these"
    )
    mapping.add_argument("--suite", choices=tuple(SUITES), default="whole")
    running = tasks.add_parser("run", help="run the tests that reach each fault")
    running.add_argument("--fault", nargs="+", default=(), help="names; all without it")
    running.add_argument("--suite", choices=tuple(SUITES), default="whole")
    running.add_argument(
        "--kills", type=int, default=KILLS, help="failures that end a batch"
    )
    running.add_argument(
        "--resume", action="store_true", help="leave out what has a result"
    )
    for task in (mapping, running):
        task.add_argument("--jobs", type=int, default=2, help="processes at a time")
    tasks.add_parser("table", help="write the table from the results")
    given = parser.parse_args(arguments)
    faults = read_faults()
    tasks_of: dict[str, Callable[[], int]] = {
        "check": lambda: _checked(faults),
        "map": lambda: make_map(faults, given.suite, given.tests, given.jobs),
    }
    try:
        if given.task in tasks_of:
            return tasks_of[given.task]()
        if given.task == "table":
            TABLE.write_text(table(faults, read_outcomes()), "utf-8")
            return 0
        unknown = set(given.fault) - {fault.name for fault in faults}
        if unknown:
            raise FaultError(f"Expected names of faults. Got {sorted(unknown)}.")
        chosen = [
            fault for fault in faults if not given.fault or fault.name in given.fault
        ]
        whole = given.suite == "whole"
        return run(chosen, given.jobs, whole, given.kills, given.resume)
    except FaultError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
