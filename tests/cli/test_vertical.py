"""The command line for parties that hold columns: simulate, plan and check."""

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner
from vertical_runs import blobs

from flower_kmeans.cli import check as checks
from flower_kmeans.cli.app import app
from flower_kmeans.cli.check import check_node
from flower_kmeans.cli.inputs import InputRecords, photo
from flower_kmeans.cli.options import even_widths
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.vertical import engine

pytestmark = pytest.mark.claim("reference/command", "strategy-vertical-clients-hold")

NAMES = ("age", "income", "visits")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def one_sentence(result):
    assert result.exit_code == 1
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "customers.csv"
    rows = [
        ",".join(NAMES),
        *(",".join(map(repr, row)) for row in blobs(200, 3).tolist()),
    ]
    path.write_text("\n".join(rows), "utf-8")
    return path


# --------------------------------------------------------------------------- simulate


def test_simulate_splits_columns_and_writes_what_parties_learn(
    is_real, table, tmp_path
):
    out = tmp_path / "out"
    result = invoke(
        "simulate", "--data", table, "--strategy", "vertical", "--split",
        "columns:visits,age/income", "--lower", 0, "--upper", 3, "--clusters", 2, "--rounds", 1,
        "--epsilon", 8, "--engine", "in-process", "--output", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "200 records of 2 parties, 3 columns; VerticalKMeans, 2 clusters" in text
    assert "round 1 of 1: 2 parties answered" in text
    assert "per record, trust model vertical" in text
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert report["trust"] == "vertical"
    assert report["comparison"]["n_records"] == 200
    assert f"Verdict {report['comparison']['text']}" in text
    assert report["columns"] == ["visits", "age", "income"]
    assert report["vertical"]["columns"] == [["visits", "age"], ["income"]]
    assert (report["n_records"], report["round_trips"]) == (200, 6)
    assert {row["who"] for row in report["vertical"]["trust_table"]} >= {
        "party 0",
        "the server",
    }
    header = (out / "centroids.csv").read_text("utf-8").splitlines()[0]
    assert header == "cluster,noisy_size,visits,age,income"
    page = (out / "report.html").read_text("utf-8")
    assert "visits, age" in page


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (
            "with each of columns 'age', 'income', 'visits' once",
            ["--split", "columns:age/income"],
        ),
        ("once", ["--split", "columns:age,age/income,visits"]),
        ("columns or columns:NAME,NAME/NAME", ["--split", "iid"]),
        ("not take --clients and --clip: leave", ["--clients", "3", "--clip", "3"]),
        ("leave out --trust", ["--trust", "clients-only"]),
        ("unit='record'", ["--unit", "client"]),
        ("leave out --min-clients", ["--min-clients", "2"]),
        ("n_records=150", ["--n-records", "150"]),
        ("Expected both --lower and --upper", None),
    ],
)
def test_simulate_refuses_what_parties_do_not_have(table, tmp_path, words, arguments):
    bounds = (
        ["--lower", "0"]
        if arguments is None
        else ["--lower", "0", "--upper", "3", *arguments]
    )
    given = ["--data", table, "--strategy", "vertical", "--output", tmp_path / "out"]
    assert words in one_sentence(invoke("simulate", *given, *bounds))


def test_clients_with_records_do_not_split_columns(table, tmp_path):
    given = ["--data", table, "--lower", "0", "--upper", "3", "--output", tmp_path]
    result = invoke("simulate", *given, "--split", "columns")
    assert "Expected --split as iid" in one_sentence(result)
    given += ["--n-records", "200"]
    result = invoke(
        "simulate", *given, "--strategy", "fastlloyd", "--trust", "vertical"
    )
    assert "trust of FastLloyd" in one_sentence(result)


def test_halves_have_most_columns_first():
    source = InputRecords("x", np.zeros((1, 5)), tuple("abcde"), None)
    assert (
        source.parties(None)
        == source.parties("columns")
        == [("a", "b", "c"), ("d", "e")]
    )
    assert source.parties("columns:e/c, d/a,b") == [("e",), ("c", "d"), ("a", "b")]
    assert even_widths(8, 2) == [4, 4]
    assert even_widths(8, 3) == [3, 3, 2]
    for n_features, n_parties in ((8, 1), (2, 3)):
        with pytest.raises(ConfigurationError, match=f"to {n_features} parties"):
            even_widths(n_features, n_parties)


def test_the_photographs_columns_keep_their_order():
    """A picture is drawn of its colours."""
    assert photo().parties("columns:red/green,blue") == [("red",), ("green", "blue")]
    with pytest.raises(ConfigurationError, match="photograph in their order"):
        photo().parties("columns:blue/red,green")


# --------------------------------------------------------------------------- plan


def test_plan_prints_round_trips_bytes_seconds_and_memory():
    arguments = [
        "--strategy",
        "vertical",
        "--features",
        8,
        "--parties",
        2,
        "--clusters",
        5,
    ]
    result = invoke(
        "plan", *arguments, "--n-records", 16384, "--rounds", 5, "--epsilon", 1
    )
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Round trips: 14." in text
    assert "Parties send" in text
    assert "CPU of one core, estimated" in text
    assert "Memory of party 0, estimated: 1.3 GB" in text
    assert text.startswith(
        "Epsilon 1, delta 6.104e-07 per record, trust model vertical. A clu"
    )
    assert "noise factor 1.414" in text


# --------------------------------------------------------------------------- check


def finding(tmp_path, *lines):
    path = tmp_path / "policy.toml"
    state = tmp_path / "state"
    content = ['trusts = ["vertical"]', f'state_dir = "{state}"', *lines]
    path.write_text("\n".join(content), "utf-8")
    path.chmod(0o600)
    return next(each for each in check_node(path) if each.name == "vertical")


def test_check_tests_extra_memory_and_disk_of_party_0(tmp_path, monkeypatch):
    found = finding(tmp_path, "party = 0")
    assert found.is_well
    assert "tenseal works" in found.text
    assert str(tmp_path) in found.text
    usage = checks.shutil.disk_usage("/")._replace(free=10**6)
    for module, name, value, words in (
        (checks.shutil, "disk_usage", usage, "MB of free disk"),
        (checks.os, "sysconf", 10_000, "GB of memory"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda _, value=value: value)
            found = finding(tmp_path, "party = 0")
            assert (found.is_well, words in found.text) == (False, True)
    engine.require_tenseal.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tenseal.sealapi", None)
        found = finding(tmp_path, "party = 0")
        assert not found.is_well
        assert "flower-kmeans[vertical]" in found.text
        assert finding(tmp_path, "party = 1").is_well  # which does not need it
