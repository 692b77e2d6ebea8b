"""Write the page of claims from the tests: ``python .ci/claims.py [REPORT ...]``.

A claim is a sentence of a document, a numbered row of the threat model, or a theorem of
the guarantees. Tests carry its marker, ``@pytest.mark.claim(page, id, ...)``, and
``.ci/claims.toml`` has the sentences by page and id. Markers are read from the source of
the tests, so nothing is imported. Reports are those of ``pytest --junitxml``; without
them the page keeps the results that it has. The tests of each theorem are written, too.
"""

import ast
import re
import sys
import textwrap
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/tables/claims.md"
SENTENCES = ROOT / ".ci/claims.toml"
AT_ROOT = ("README", "CONTRIBUTING", "SECURITY")  # pages that are not in docs/

NOT_TESTED = {
    "44": "nobody checks a server that clients must trust",
    "45": "a client that has the key can give it away: nothing is defended",
    "46": "what others on the network see without TLS is what the server sees",
    "47": "visible, by design",
    "60": "a signature can be shown, by design",
    "V17": "visible, by design",
}
"""Numbered rows of the threat model that no test can show, with the reason."""

INTRODUCTION = """\
# What shows each claim

Each row is a claim of a page in its own words, with the tests that show it: with `::` one test
or class, otherwise a whole file. The claims are sentences of the documents, the numbered rows
of the [threat model](../threat-model.md), and the theorems of the
[guarantees](../guarantees.md). `python .ci/claims.py` writes this page from the tests' markers
(`@pytest.mark.claim`), and the last results from reports of `pytest --junitxml`.
"""
NO_RUN = "Last results: of no run yet."
NO_RESULT = "not run"
WIDTH = 128  # columns of the documents

Key = tuple[str, str]
"""The page of a claim and its id there."""


class Marker(NamedTuple):
    """Where a test carries the markers of a claim."""

    key: Key
    test: str


class Theorem(NamedTuple):
    """A theorem of the guarantees: its page from the root, its heading and its text."""

    page: str
    heading: str
    text: str


# --------------------------------------------------------------------------- documents


def plain(text: str) -> str:
    """Return Markdown without links, bold type and line breaks."""
    without_links = re.sub(r"!?\[([^\]]*)\]\([^)\s]+\)", r"\1", text)
    return " ".join(without_links.replace("**", "").split())


def file_of(page: str) -> Path:
    """Return the file of a page, which markers name without folder ``docs`` and ending."""
    folder = ROOT if page in AT_ROOT else ROOT / "docs"
    return folder / f"{page}.md"


def sentences() -> dict[Key, str]:
    """Return the claims that are sentences, by page and id."""
    pages = tomllib.loads(SENTENCES.read_text("utf-8"))
    return {
        (page, name): sentence
        for page, named in pages.items()
        for name, sentence in named.items()
    }


def attacks() -> dict[Key, str]:
    """Return the claims that are numbered rows of the threat model."""
    text = file_of("threat-model").read_text("utf-8")
    rows = re.findall(r"^\| (V?\d+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    return {
        ("threat-model", number): plain(f"{attack}: {outcome}")
        for number, attack, outcome in rows
    }


def theorems() -> dict[int, Theorem]:
    """Return the theorems of the guarantees by their numbers."""
    found: dict[int, Theorem] = {}
    for path in sorted(ROOT.glob("docs/guarantees/*.md")):
        page = path.relative_to(ROOT).as_posix()
        for section in re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE):
            heading, _, text = section.partition("\n")
            number = re.match(r"Theorem (\d+) \(.+\)$", heading)
            if number is None:
                continue
            if int(number[1]) in found:
                raise ValueError(f"Expected one Theorem {number[1]}. Got two.")
            found[int(number[1])] = Theorem(page, heading, text)
    return found


def claims() -> dict[Key, str]:
    """Return all claims, in the words of their documents."""
    numbered = {
        ("guarantees", str(number)): theorem.heading
        for number, theorem in sorted(theorems().items())
    }
    return sentences() | attacks() | numbered


# ------------------------------------------------------------------------------- tests


def _is_claim(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a node is a call of ``pytest.mark.claim``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "claim"
        and ast.unparse(node.func.value).endswith("mark")
    )


def _keys(node: ast.expr) -> list[Key]:
    """Return the claims that a decorator, or the value of ``pytestmark``, names."""
    marks = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    found = []
    for mark in marks:
        if _is_claim(mark):
            page, *names = (ast.literal_eval(argument) for argument in mark.args)
            found += [(page, name) for name in names]
    return found


def _marked(
    body: list[ast.stmt], decorators: list[ast.expr], name: str
) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions that mark a file or class, or tests in it, with their test."""
    for decorator in decorators:
        yield decorator, name
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "pytestmark"
        ):
            yield node.value, name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node.body, node.decorator_list, f"{name}::{node.name}")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                yield decorator, f"{name}::{node.name}"


def markers_of(source: str, name: str) -> list[Marker]:
    """Return the markers of claims in a file of tests.

    Raises
    ------
    ValueError
        If a marker names no id, or stands where no test has it.
    """
    tree = ast.parse(source)
    is_test = name.rpartition("/")[2].startswith("test_")
    places = list(_marked(tree.body, [], name)) if is_test else []
    read = {mark for place, _ in places for mark in ast.walk(place) if _is_claim(mark)}
    for node in ast.walk(tree):
        if _is_claim(node) and (node not in read or len(node.args) < 2):
            raise ValueError(
                f"Expected the marker of a claim with page and id, at a test, a class of "
                f"tests or pytestmark. Got {name}, line {node.lineno}."
            )
    return [Marker(key, test) for place, test in places for key in _keys(place)]


@cache
def tests_of_claims() -> dict[Key, list[str]]:
    """Return the tests that show each claim, in the order of files and lines."""
    shown: dict[Key, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("tests/**/*.py")):
        source = path.read_text("utf-8")
        if "mark.claim" in source:
            name = path.relative_to(ROOT).as_posix()
            for key, test in markers_of(source, name):
                shown[key].append(test)
    return dict(shown)


def problems() -> list[str]:
    """Return what is wrong with claims and markers, a sentence each."""
    known, shown = claims(), tests_of_claims()
    found = [
        f"{shown[key][0]} has the marker of a claim that no document makes: {key}"
        for key in shown.keys() - known.keys()
    ]
    for page, name in known.keys() - shown.keys():
        if page != "threat-model" or name not in NOT_TESTED:
            found.append(f"no test has the marker of the claim {page}, {name}")
    for name in NOT_TESTED:
        if ("threat-model", name) not in known or ("threat-model", name) in shown:
            found.append(f"row {name} of the threat model is in NOT_TESTED for nothing")
    for (page, name), sentence in sentences().items():
        text = plain(file_of(page).read_text("utf-8"))
        if sentence not in text:
            near = get_close_matches(sentence, re.split(r"(?<=[.:]) ", text), 1, 0.5)
            found.append(
                f"{page} does not say {sentence!r} any more: the claim {name}. "
                f"Nearest: {near}"
            )
    return sorted(found)


# ----------------------------------------------------------------------------- results


def _junit_name(test: str) -> str:
    """Return a test's name as reports have it, without the case's parameters."""
    path, *names = test.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *names])


class Results:
    """The cases of some reports by their tests, and when and with which versions they ran."""

    def __init__(self, reports: list[Path]):
        self.runs: list[str] = []
        self._cases: dict[str, Counter[str]] = defaultdict(Counter)
        for report in reports:
            for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314
                self._add(suite)

    def _add(self, suite: ET.Element) -> None:
        versions = [
            f"{each.get('name')} {each.get('value')}" for each in suite.iter("property")
        ]
        when = suite.get("timestamp", "")[:16].replace("T", " ")
        run = f"{when}, {suite.get('tests')} cases"
        self.runs.append(f"{run} ({', '.join(versions) or 'versions unknown'})")
        for case in suite.iter("testcase"):
            outcome = "passed"
            for child in case:
                if child.tag in ("failure", "error"):
                    outcome = "failed"
                elif child.tag == "skipped":
                    outcome = "skipped"
            name = f"{case.get('classname')}.{case.get('name')}".partition("[")[0]
            self._cases[name][outcome] += 1

    def of(self, tests: list[str]) -> str:
        """Return how many cases of some tests passed, failed and were skipped."""
        total: Counter[str] = Counter()
        for test in tests:
            name = _junit_name(test)
            for case, outcomes in self._cases.items():
                if case == name or case.startswith(f"{name}."):
                    total += outcomes
        parts = [f"{total[each]} {each}" for each in ("failed", "passed", "skipped")]
        return ", ".join(part for part in parts if part[0] != "0") or NO_RESULT


# -------------------------------------------------------------------------------- page


def _link(page: str) -> str:
    """Return a page's heading in the table, with its link."""
    target = f"../../{page}.md" if page in AT_ROOT else f"../{page}.md"
    title = file_of(page).read_text("utf-8").partition("\n")[0].removeprefix("# ")
    return f"| **[{title}]({target})** | | | |"


def _cell(sentence: str) -> str:
    """Return a sentence as one cell of a table, also if it is a row of one."""
    return sentence.strip("| ").replace(" | ", "; ")


def rendered(results: dict[Key, str], runs: str) -> str:
    """Return the page of claims with these results and this line about their runs."""
    known, shown = claims(), tests_of_claims()
    lines = [INTRODUCTION, runs, "", "| id | claim | shown by | last result |"]
    lines.append("|---|---|---|---|")
    for page in dict.fromkeys(page for page, _ in known):
        lines.append(_link(page))
        for key in (each for each in known if each[0] == page):
            tests = ", ".join(f"`{test}`" for test in shown.get(key, []))
            if not tests:
                tests = NOT_TESTED.get(key[1], "") if page == "threat-model" else ""
            result = results.get(key, NO_RESULT) if key in shown else ""
            lines.append(f"| {key[1]} | {_cell(known[key])} | {tests} | {result} |")
    return "\n".join(lines) + "\n"


def kept_results(text: str) -> tuple[dict[Key, str], str]:
    """Return the results that a page of claims has, and its line about their runs."""
    found: dict[Key, str] = {}
    runs = re.search(r"^Last results: .*$", text, re.MULTILINE)
    page = ""
    for line in text.splitlines():
        heading = re.match(r"\| \*\*\[.*\]\((?:\.\./)+(.*)\.md\)\*\* \|", line)
        row = re.match(r"\| ([\w-]+) \| .* \| (.*) \|$", line)
        if heading:
            page = heading[1]
        elif row and page:
            found[page, row[1]] = row[2]
    return found, runs[0] if runs else NO_RUN


def write_tests_of_theorems() -> None:
    """Write the files with a theorem's marker into its part ``Tests``."""
    for number, theorem in theorems().items():
        tests = tests_of_claims().get(("guarantees", str(number)), [])
        files = sorted({test.partition("::")[0] for test in tests})
        listed = "**Tests.** " + ", ".join(f"`{file}`" for file in files) + "."
        wrapped = textwrap.fill(
            listed, WIDTH, break_long_words=False, break_on_hyphens=False
        )
        text = re.sub(
            r"^\*\*Tests\.\*\*(?:.+\n)+",
            wrapped + "\n",
            theorem.text,
            count=1,
            flags=re.MULTILINE,
        )
        path = ROOT / theorem.page
        page = path.read_text("utf-8")
        path.write_text(page.replace(theorem.text, text), "utf-8")


def main(*reports: str) -> int:
    """Write the page and the tests of theorems; return the exit code."""
    wrong = problems()
    write_tests_of_theorems()
    for each in wrong:
        print(each)
    if reports:
        read = Results([Path(report) for report in reports])
        shown = tests_of_claims()
        results = {key: read.of(tests) for key, tests in shown.items()}
        runs = f"Last results: {'; '.join(read.runs)}."
    else:
        results, runs = kept_results(PAGE.read_text("utf-8"))
    PAGE.write_text(rendered(results, runs), "utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
