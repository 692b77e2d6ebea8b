"""The theorems of the guarantees are whole: statement, assumptions, proof, code and tests."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from pages import PAGES

from flower_kmeans import strategies

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("claims", ROOT / ".ci/claims.py")
claims = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(claims)

THEOREMS = claims.theorems()
FRONT = ROOT / "docs/guarantees.md"
PARTS = ("Statement", "Assumptions", "Proof", "Code", "Tests")


def parts_of(number):
    """Return the parts of a theorem by name; what follows the tests belongs to none."""
    found = re.split(
        rf"^\*\*({'|'.join(PARTS)})\.\*\*", THEOREMS[number].text, flags=re.MULTILINE
    )
    assert tuple(found[1::2]) == PARTS, f"the parts of Theorem {number}"
    texts = dict(zip(PARTS, found[2::2], strict=True))
    texts["Tests"] = texts["Tests"].split("\n\n")[0]
    return texts


# Numbers that theorems on ranges of columns will have.


def test_theorems_are_numbered_without_a_gap():
    numbers = THEOREMS.keys()
    assert sorted(numbers) == list(range(1, max(THEOREMS) + 1))
    assert len(THEOREMS) > 40


@pytest.mark.parametrize("number", sorted(THEOREMS))
def test_a_theorem_has_all_parts(number):
    parts = parts_of(number)
    assert all(len(text.strip()) > 10 for text in parts.values()), parts
    assert parts["Proof"].rstrip().endswith("∎")
    assert THEOREMS[number].text.count("∎") == 1


def names_in(path):
    """Return what a file defines: its functions, methods, classes and constants."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("number", sorted(THEOREMS))
def test_its_code_is_there(number):
    code = " ".join(parts_of(number)["Code"].split()).removesuffix(".")
    for item in code.split("; "):
        file, names = re.fullmatch(
            r"`([\w/]+\.py)` \((`\w+`(?:, `\w+`)*)\)", item
        ).groups()
        missing = set(re.findall(r"`(\w+)`", names)) - names_in(ROOT / file)
        assert not missing, f"{file} has no {missing}"


@pytest.mark.parametrize("number", sorted(THEOREMS))
def test_its_tests_are_the_files_with_its_marker(number):
    named = re.findall(r"`([\w/]+\.py)`", parts_of(number)["Tests"])
    marked = claims.tests_of_claims()["guarantees", str(number)]
    assert named == sorted({test.partition("::")[0] for test in marked})


# --------------------------------------------------------------------------- the front


def front():
    return (ROOT / "docs/guarantees.md").read_text("utf-8")


def test_the_front_page_is_short_and_names_every_theorem():
    assert len(front().splitlines()) <= 120
    for number, theorem in THEOREMS.items():
        title = theorem.heading.removeprefix(f"Theorem {number} ")
        assert f"[{number} {title}](" in front()


def test_the_front_page_has_the_strategies_and_trust_models_of_choosing():
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| ([^|]*) \|$",
        (ROOT / "docs/choosing.md").read_text("utf-8").split("| strategy |")[1],
        re.MULTILINE,
    )
    lines = front().split("| strategy | ")[1].splitlines()
    trusts = re.findall(r"`([\w-]+)`", lines[0])
    found = {}
    for line in lines[3:]:
        if not line:
            break
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        has = {trust for trust, cell in zip(trusts, cells, strict=True) if cell != "–"}
        found[name.strip("`")] = has
    expected = {
        name: set(re.findall(r"`([\w-]+)`", cell))
        for name, cell in rows
        if name not in ("Lloyd", "VerticalKMeans")
    }
    assert found == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_that_name_a_theorem_lead_to_it(page):
    text = " ".join(page.read_text("utf-8").split())
    for number, anchor in re.findall(
        r"\[(?:Theorem )?(\d+)(?: \([^\]]*)?\]\([\w/.-]*#theorem-(\d+)-", text
    ):
        assert number == anchor


# --------------------------------------------------------------------------- citations


CITATION = re.compile(r"docs/guarantees, Theorems? (\d+(?:, \d+)*(?: and \d+)?)")
CODE = [
    path
    for folder in ("flower_kmeans", "strategies")
    for ending in ("py", "j2")
    for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
]


def cited(paths):
    """Return the numbers that files cite, also where a line ends in a citation."""
    found = set()
    for path in paths:
        text = re.sub(r"\n\s*(?:# )?", " ", path.read_text("utf-8"))
        for numbers in CITATION.findall(text):
            found |= {int(number) for number in re.findall(r"\d+", numbers)}
    return found


def test_the_code_cites_every_theorem():
    assert sorted(THEOREMS.keys() - cited(CODE)) == []


def named(strategy):
    """Return the theorems that a strategy's reports name."""
    return getattr(strategies, strategy).THEOREMS


ROW = re.compile(r"^\| `(\w+)` \|(.*)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("strategy", "cells"),
    ROW.findall(FRONT.read_text("utf-8")),
)
def test_a_strategy_names_the_theorems_of_its_row(strategy, cells):
    for cell in cells.strip("| ").split(" | "):
        numbers = re.findall(r"\[(\d+)\]", cell)
        assert cell == "–" or tuple(map(int, numbers)) == named(strategy)


def test_every_private_strategy_has_a_row():
    rows = {strategy for strategy, _ in ROW.findall(FRONT.read_text("utf-8"))}
    classes = {each.__name__ for each in strategies.BY_NAME.values()}
    private = {name for name in classes if named(name)}
    assert rows == private
    # The former has no guarantee, and the reports of the latter have their own words.
    assert classes - private == {"Lloyd", "VerticalKMeans"}


def test_every_number_that_is_cited_exists():
    others = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py"), *PAGES]
    assert cited([*CODE, *others]) <= THEOREMS.keys()


def test_code_cites_numbers_and_no_sections():
    for path in CODE:
        text = path.read_text("utf-8")
        assert not re.search(r"docs/guarantees(?!, ?\n? *#? *Theorem)", text), path
