"""``flower-kmeans report`` makes the page of a run again, from what the run left."""

import json
import stat

import numpy as np
import pytest
from report_pages import PARTITIONS, finished
from typer.testing import CliRunner

from flower_kmeans import Box, Fault, PrivacyBudget, html_report, simulate
from flower_kmeans.cli.app import app
from flower_kmeans.cli.outputs import write_centroids, write_report
from flower_kmeans.report.synopsis import Synopsis
from flower_kmeans.strategies import FastLloyd

pytestmark = pytest.mark.claim("reading-a-report", "flower-kmeans-report-report")

NAMES = ["age", "<visits>"]


def again(directory):
    """Return the page that the command makes, in place of what was there."""
    path = directory / "report.html"
    path.unlink(missing_ok=True)
    result = CliRunner().invoke(app, ["report", str(directory / "report.json")])
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text("utf-8")


def leave(directory, clustering, columns, **values):
    write_report(directory, clustering.report.to_dict() | values)
    write_centroids(directory, clustering, columns)


@pytest.mark.default_cases("()", "('--trust', 'plain')")
@pytest.mark.parametrize("options", [
    (),
    ("--trust", "clients-only", "--min-size", "100", "--max-size", "400"),
    ("--trust", "plain"),
    ("--bounds-from-data",),
    ("--strategy", "vertical", "--rounds", "1", "--epsilon", "8"),
], ids=str)  # fmt: skip
def test_the_page_is_the_one_that_simulate_wrote(tmp_path, options, monkeypatch):
    elbow, elbows = Synopsis.elbow, []
    monkeypatch.setattr(
        Synopsis, "elbow", lambda *its: elbows.append(its) or elbow(*its)
    )
    if "vertical" in options:
        pytest.importorskip("tenseal")
    records = np.random.default_rng(2).uniform(0, 9, (600, 2))
    lines = [",".join(NAMES), *(f"{age},{visits}" for age, visits in records)]
    (tmp_path / "data.csv").write_text("\n".join(lines), "utf-8")
    given = [
        "--data",
        tmp_path / "data.csv",
        "--engine",
        "in-process",
        "--clusters",
        "2",
    ]
    if "--bounds-from-data" not in options:
        given += ["--lower", "0", "--upper", "9"]
    if "vertical" not in options:
        given += ["--n-records", "600", "--clients", "4"]
    given += [*options, "--output", tmp_path / "out"]
    result = CliRunner().invoke(app, ["simulate", *map(str, given)])
    assert result.exit_code == 0, result.output
    assert len(elbows) == ("vertical" not in options)  # for the page and report.json
    written = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert again(tmp_path / "out") == written
    assert "<visits>" not in written


@pytest.mark.parametrize(
    ("name", "trust"),
    [
        ("SuLloyd", "trusted-server"),  # Laplace noise
        ("FedDPKMeans", "distributed-noise"),  # a released cost
        ("HDPEMeans", "trusted-server"),  # a Ball
    ],
)
def test_a_report_and_centroids_are_enough(tmp_path, name, trust):
    clustering = finished(name, trust)
    columns = [f"column {i + 1}" for i in range(clustering.domain.n_features)]
    leave(tmp_path, clustering, columns)
    assert again(tmp_path) == html_report(clustering, columns=columns)


def test_faults_and_the_runs_before_are_told_again(tmp_path):
    box, budget = Box([0, 0], [10, 10]), PrivacyBudget(epsilon=1.0)
    options = {"n_records": 300, "n_clients": 5, "n_rounds": 2, "min_clients": 3}
    run = None
    for _ in range(3):
        strategy = FastLloyd(
            3, box, budget, **options, trust="distributed-noise", initial=run
        )
        run = simulate(
            strategy, PARTITIONS, faults=[Fault(2, 2, "drop"), Fault(3, 2, "shape")]
        )
    assert "cost epsilon" in html_report(run)
    assert run.report.dropped
    assert run.report.committee is not None
    leave(tmp_path, run, ["column 1", "column 2"])
    assert again(tmp_path) == html_report(run)


@pytest.fixture
def left(tmp_path):
    leave(
        tmp_path, finished("SynopsisKMeans", "distributed-noise"), NAMES, n_clusters=3
    )
    return tmp_path / "report.json"


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def refusal(path):
    result = CliRunner().invoke(app, ["report", str(path)])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    return result.output


def test_the_synopsis_beside_must_be_that_of_the_run(left):
    with_it = again(left.parent)
    assert 'id="numbers"' in with_it
    file = left.with_name("synopsis.npz")
    synopsis = Synopsis.load(file)
    Synopsis(synopsis.mixture, Box([0, 0], [10, 11])).save(file)
    assert "Expected the synopsis of the run in" in refusal(left)
    file.write_bytes(b"PK")
    assert "Expected a file that Synopsis.save wrote" in refusal(left)
    file.unlink()
    without = again(left.parent)
    assert 'id="numbers"' not in without
    write_centroids(left.parent, finished("FastLloyd", "trusted-server"), NAMES)
    assert not file.exists()  # that of a run before


def test_versions_are_those_of_the_run(left):
    changed(left, versions={"flower-kmeans": "0.0.7", "flwr": "1.2.3"})
    page = again(left.parent)
    assert "<dd>0.0.7</dd>" in page
    assert "<dd>1.2.3</dd>" in page


@pytest.mark.parametrize("values", [
    {"n_clusters": 4},
    {"columns": ["age", "other"]},
    {"trust": "nobody"},
    {"plan": None},
    {"answers": "five"},
    {"keys": None},
    {"page": {"facts": [["data"]], "not_private": None, "sizes": None}},
], ids=str)  # fmt: skip
def test_files_that_are_not_of_one_run_are_refused(left, values):
    changed(left, **values)
    assert "Expected the report.json of a run" in refusal(left)


def test_what_is_no_report_is_refused(left):
    left.with_name("centroids.npz").rename(left.with_name("kept.npz"))
    assert "Expected the centroids.npz" in refusal(left)
    left.with_name("kept.npz").rename(left.with_name("centroids.npz"))
    deep = '{"earlier":' * 100_000 + "1" + "}" * 100_000
    for text in ("[1]", "{", '"', "\xff", deep, deep.replace('{"earlier":', "[")):
        left.write_bytes(text.encode("latin-1"))
        assert "Expected the report.json of a run" in refusal(left)
    left.unlink()
    assert "Expected the report.json of a run" in refusal(left)


@pytest.mark.claim("threat-model", "files-run-documents-nested")
@pytest.mark.parametrize("depth", [31, 40, 900])
def test_runs_in_runs_that_lie_too_deep_are_refused(left, depth):
    values = json.loads(left.read_text("utf-8")) | {"earlier": "HERE"}
    nested = '{"earlier":' * depth + "1" + "}" * depth
    left.write_text(json.dumps(values).replace('"HERE"', nested), "utf-8")
    assert "Expected the report.json of a run" in refusal(left)


def test_a_plan_that_does_not_meet_its_budget_is_refused(left):
    plan = json.loads(left.read_text("utf-8"))["plan"]
    changed(left, plan=plan | {"budget": plan["budget"] | {"epsilon": (0.5).hex()}})
    assert "Expected the report.json of a run" in refusal(left)
