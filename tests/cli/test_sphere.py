"""Directions and balls on the command line: simulate, inspect, check, plan, assign, report."""

import csv
import json
import re

import numpy as np
import pytest
from report_pages import read
from typer.testing import CliRunner

from flower_kmeans.cli.app import app

SPHERE = '[sphere]\ncolumns = ["x", "y", "z"]\n'
BALL = '[ball]\ncolumns = ["x", "y"]\nradius = 4\n'
POLICY = 'trusts = ["distributed-noise"]\nstate_dir = "state"\ndomain = "s.toml"\n'
N, NULL = 900, 5
CENTERS = np.eye(3)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(4)
    records = CENTERS[np.arange(N) % 3] + rng.normal(0, 0.1, (N, 3))
    records *= np.exp(rng.normal(0, 1, (N, 1)))
    records[:NULL] = 0
    np.savetxt("d.csv", records, delimiter=",", header="x,y,z", comments="")
    for name, text in (("s.toml", SPHERE), ("b.toml", BALL), ("policy.toml", POLICY)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "d.csv").chmod(0o600)

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


def simulate(run, *options):
    return run(
        "simulate", "--data", "d.csv", "--clusters", 3, "--n-records", N, "--clients", 4,
        "--epsilon", 4, *options,
    )  # fmt: skip


@pytest.mark.claim("own-data", "only-direction-counts")
@pytest.mark.parametrize("options", [("--sphere",), ("--domain", "s.toml")])
def test_directions_are_clustered_and_said(run, tmp_path, options):
    result = simulate(run, *options)
    assert result.exit_code == 0, result.output
    assert (
        f"{NULL} of {N} records have length zero; each counts as none." in result.output
    )
    found = re.search(
        r"mean cosine similarity (0\.\d+) to their centroids", result.output
    )
    assert float(found[1]) > 0.97
    assert "Verdict  The clusters are as good as without privacy" in result.output
    assert f"in {N - NULL} records" in result.output
    out = tmp_path / "flower-kmeans-out"
    with np.load(out / "centroids.npz") as file:
        centroids = file["centroids"]
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-12)
    assert (centroids @ CENTERS.T).max(axis=0).min() > 0.98
    report = json.loads((out / "report.json").read_text())
    assert report["bounds"]["kind"] == "Sphere"
    assert "lower" not in report
    assert any("divided by their length" in words for words in report["statements"])
    page = (out / "report.html").read_text()
    assert "directions: records are divided by their length" in page
    assert "the middle direction of its records, of length 1" in page
    read(page)
    # The page can be made again, and the file assigns clusters.
    assert run("report", out / "report.json").exit_code == 0
    domain = options if options[0] == "--domain" else ()
    done = run("assign", "--data", "d.csv", "--output", "a.csv", *domain)
    assert done.exit_code == 0, done.output
    assert f"{NULL} with missing cells or of length zero have none" in done.output
    with open("a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows):
        if i < NULL:
            assert (row["cluster"], row["distance"]) == ("", "")
            continue
        record = np.array([float(row[name]) for name in "xyz"])
        cosines = centroids @ record / np.linalg.norm(record)
        assert int(row["cluster"]) == cosines.argmax()
        distance = np.sqrt(2 - 2 * cosines.max())
        assert float(row["distance"]) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize("options", [("--ball", 4), ("--domain", "b.toml")])
def test_a_ball_is_an_option_too(run, tmp_path, options):
    result = simulate(run, *options)
    assert result.exit_code == 0, result.output
    assert "records are outside the ball, and are moved to it" in result.output
    assert "Verdict  The clusters are " in result.output
    report = json.loads((tmp_path / "flower-kmeans-out/report.json").read_text())
    width = 3 if options[0] == "--ball" else 2
    assert report["bounds"]["radius"] == 4
    assert report["bounds"]["center"] == [0.0] * width


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sphere", "--ball", 2), "Expected --sphere or --ball. Got both."),
        (("--sphere", "--lower", 0, "--upper", 1), "Expected --sphere without"),
        (("--sphere", "--bounds", "x=0:1"), "Expected --sphere without"),
        (("--ball", 2, "--bounds-from-data"), "Expected --ball without"),
        (("--ball", 2, "--domain", "s.toml"), "Expected --ball without"),
        (("--ball", -2), "radius positive"),
        (
            ("--sphere", "--weight", "x=2"),
            "Expected no --weight with a ball or a sphere",
        ),
        (
            ("--domain", "s.toml", "--columns", "x"),
            "Expected --domain, which has columns",
        ),
        (("--sphere", "--strategy", "vertical"), "a Box"),
    ],
)
def test_options_that_contradict_are_one_sentence(run, tmp_path, options, words):
    arguments = ("--data", "d.csv", "--clusters", 3, "--n-records", N, *options)
    result = run("simulate", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "flower-kmeans-out").exists()


def test_inspect_counts_what_such_a_domain_changes(run):
    text = run("inspect", "d.csv", "--domain", "s.toml").output
    assert "A run clusters by the direction of x, y, z" in text
    assert f"{NULL} of {N} records would count as none" in text
    assert "or all cells are 0" in text
    text = run("inspect", "d.csv", "--domain", "b.toml").output
    assert "A run clusters by x, y within a ball of radius 4 around (0, 0)." in text
    assert re.search(rf"\d+ of {N} records are outside the ball", text)
    assert "Left out: z (not declared)." in text


def test_plan_is_of_such_a_domain(run):
    options = ("--clusters", 3, "--n-records", N)
    for domain in ("s.toml", "b.toml"):
        result = run("plan", "--domain", domain, *options)
        assert result.exit_code == 0, result.output
        assert "Epsilon 1" in result.output


def test_check_reads_the_declared_columns(run, tmp_path):
    result = run("check", "--policy-file", "policy.toml", "--data", "d.csv")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.replace("│", " ").split())
    assert "the direction of x, y, z: records are divided by their length" in text
    assert "3 declared columns" in text
    assert "only directions of 3 columns count" in text
    assert "under 1 % of the records count as none" in text
    result = run(
        "check", "--policy-file", "policy.toml", "--data", "d.csv", "--domain", "b.toml"
    )
    assert result.exit_code == 1
    text = " ".join(result.output.replace("│", " ").split())
    assert "kind sphere" in text


def test_assign_requires_the_domain_of_the_run(run):
    assert simulate(run, "--sphere").exit_code == 0
    result = run("assign", "--data", "d.csv", "--output", "a.csv", "--domain", "b.toml")
    assert result.exit_code == 1
    assert "Got one with another kind" in result.stderr


def test_the_help_has_both_options(run):
    text = run("simulate", "--help").output
    own = text[text.index("Options") : text.index("Strategy and privacy")]
    assert "--sphere" in own
    assert "--ball RADIUS" in own
