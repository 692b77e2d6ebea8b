"""Claims of the documents and tests that show them belong together, and their page says how."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("claims", ROOT / ".ci/claims.py")
claims = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(claims)


def test_every_claim_has_a_test_and_every_marker_a_claim():
    assert claims.problems() == []
    assert len(claims.claims()) > 300


def test_the_page_is_that_of_the_markers():
    text = claims.PAGE.read_text("utf-8")
    assert text == claims.rendered(*claims.kept_results(text)), (
        "write it again: python .ci/claims.py"
    )


def test_markers_are_read_at_files_classes_and_tests():
    source = """
import pytest
pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.claim("a", "1", "2")]

@pytest.mark.claim("b", "3")
class TestThis:
    pytestmark = pytest.mark.claim("b", "4")

    @pytest.mark.claim("c", "5")
    def test_that(self):
        pass

@pytest.mark.slow
@pytest.mark.claim("c", "6")
def test_other():
    pass
"""
    assert claims.markers_of(source, "tests/test_x.py") == [
        (("a", "1"), "tests/test_x.py"),
        (("a", "2"), "tests/test_x.py"),
        (("b", "3"), "tests/test_x.py::TestThis"),
        (("b", "4"), "tests/test_x.py::TestThis"),
        (("c", "5"), "tests/test_x.py::TestThis::test_that"),
        (("c", "6"), "tests/test_x.py::test_other"),
    ]


MARK = '@pytest.mark.claim("a", "1")\n'


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (f"{MARK}def test_it(): pass", "tests/support/helper.py"),
        (f"{MARK}def helper(): pass", "tests/test_x.py"),
        (f"{MARK}class Case:\n    def test_it(self): pass", "tests/test_x.py"),
        (
            '@pytest.mark.claim("page-without-id")\ndef test_it(): pass',
            "tests/test_x.py",
        ),
        (
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.claim("a"))])\n'
            "def test_it(x): pass",
            "tests/test_x.py",
        ),
    ],
)
def test_a_marker_that_no_test_has_or_without_an_id_is_refused(source, name):
    with pytest.raises(ValueError, match=rf"Got {name}, line \d"):
        claims.markers_of(source, name)


def test_what_is_wrong_is_said(monkeypatch):
    shown = claims.tests_of_claims()
    stays = {key: shown[key] for key in shown if key != ("threat-model", "2")}
    named = {("threat-model", "99"): ["tests/test_x.py"]}
    monkeypatch.setattr(claims, "tests_of_claims", lambda: stays | named)
    monkeypatch.setattr(claims, "sentences", lambda: {("index", "moon"): "It flies."})
    monkeypatch.setattr(claims, "claims", lambda: dict.fromkeys(shown, ""))
    monkeypatch.setitem(claims.NOT_TESTED, "1", "for no reason")
    found = claims.problems()
    for words in (
        "tests/test_x.py has the marker of a claim that no document makes: ('threat-model', '99')",
        "no test has the marker of the claim threat-model, 2",
        "row 1 of the threat model is in NOT_TESTED for nothing",
        "index does not say 'It flies.' any more: the claim moon. Nearest: []",
    ):
        assert words in found


def test_claims_are_compared_without_links_bold_type_and_line_breaks():
    assert (
        claims.plain("**A [plan\nof it](x.md#y)** has\n`a`.") == "A plan of it has `a`."
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Run two tests in another process, and return the report."""
    path = tmp_path_factory.mktemp("report") / "report.xml"
    here = "tests/test_claims.py"
    cases = [
        f"{here}::test_markers_are_read_at_files_classes_and_tests",
        f"{here}::test_a_marker_that_no_test_has_or_without_an_id_is_refused",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={path}", *cases]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return path


def test_results_are_those_of_the_report(report):
    results = claims.Results([report])
    here = "tests/test_claims.py"
    assert results.of(
        [f"{here}::test_markers_are_read_at_files_classes_and_tests"]
    ) == ("1 passed")
    assert results.of([here]) == "6 passed"
    assert results.of(["tests/test_claim.py"]) == "not run"
    (run,) = results.runs
    assert "6 cases (Python 3." in run
    assert "flwr 1." in run
    assert "numpy " in run


def test_failures_come_first(tmp_path):
    cases = "".join(
        f'<testcase classname="tests.test_x.TestThis" name="test_a[{i}]">{child}</testcase>'
        for i, child in enumerate(("", "<failure/>", "<error/>", "<skipped/>"))
    )
    path = tmp_path / "report.xml"
    path.write_text(
        f'<testsuites><testsuite tests="4">{cases}</testsuite></testsuites>', "utf-8"
    )
    results = claims.Results([path])
    for test in ("tests/test_x.py", "tests/test_x.py::TestThis::test_a"):
        assert results.of([test]) == "2 failed, 1 passed, 1 skipped"


def test_a_page_keeps_its_results():
    text = claims.rendered(
        {("threat-model", "2"): "3 passed"}, "Last results: of then."
    )
    results, runs = claims.kept_results(text)
    assert results["threat-model", "2"] == "3 passed"
    assert results["guarantees", "1"] == "not run"
    assert runs == "Last results: of then."
