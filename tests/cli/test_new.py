"""A new app is complete: it passes its own test, and runs by Flower's command."""

import csv
import json
import shlex
import stat
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from processes import DeploymentError, Processes, free_ports
from scripts import load_script
from typer.testing import CliRunner

from flower_kmeans.cli.app import app
from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

pytestmark = pytest.mark.claim("existing-app", "without-app-flower-kmeans")

FILES = {"pyproject.toml", "README.md", "tests/test_app.py", "my_app/domain.toml"} | {
    f"my_app/{name}.py" for name in ("__init__", "client_app", "data", "server_app")
}
CENTERS = [[25, 5], [50, 15], [75, 40]]  # of the records that an app makes up


@pytest.fixture
def new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(name):
        return CliRunner().invoke(app, ["new", name])

    return invoke


@pytest.fixture
def made(new, tmp_path):
    result = new("my-app")
    assert result.exit_code == 0, result.output
    return result.output, tmp_path / "my-app"


def lines_of(directory):
    return [
        len(path.read_text("utf-8").splitlines()) for path in directory.rglob("*.*")
    ]


def assert_centroids_in(output):
    with (output / "centroids.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            [float(row["age"]), float(row["visits"])] for row in csv.DictReader(file)
        ]
    np.testing.assert_allclose(sorted(rows), CENTERS, atol=6)
    assert "<caption>Centroids</caption>" in (output / "report.html").read_text("utf-8")
    report = json.loads((output / "report.json").read_text("utf-8"))
    assert (report["epsilon"], report["n_clients"]) == (pytest.approx(1), 5)


def test_it_is_short_and_says_which_commands_come_next(made):
    output, directory = made
    assert {
        str(path.relative_to(directory)) for path in directory.rglob("*.*")
    } == FILES
    assert sum(lines_of(directory)) < 250  # read in five minutes
    readme = (directory / "README.md").read_text("utf-8")
    for line in output.splitlines()[1:]:
        assert line.strip().replace("my-app", ".") in readme


@pytest.mark.thorough
def test_its_own_test_passes_in_its_directory_and_beside_it(made):
    _, directory = made
    for where in (directory, directory.parent):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(directory),
        ]
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my-app", "my-app instead: File exists"),
        ("nowhere/other", "No such file"),
        ("", "Expected a name"),
        ("class", "neither a keyword of Python"),
        ("2fast", "begins with a letter"),
        ("my app", "lower-case letters"),
        ("My-App", "lower-case letters"),
        # Flower would not build it
        ("my_other_app", "lower-case letters, digits and -"),
        ("a" * 33, "at most 32 characters"),
        ("mine\n", "'mine\\n'"),
        ("json", "nor a package that is installed"),
        ("flower-kmeans", "nor a package that is installed"),
    ],
)
def test_what_exists_or_is_no_package_is_refused(made, new, tmp_path, name, words):
    before = sorted(tmp_path.rglob("*"))
    result = new(name)
    assert result.exit_code == 1
    assert words in result.output
    assert len(result.output.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


# -------------------------------------------------------------------- what its nodes do


def run(directory, monkeypatch, node_config, **run_config):
    """Run the app in this process, every node with this configuration."""
    client_app, server_app = (
        load_script(monkeypatch, f"my_app.{name}", directory).app
        for name in ("client_app", "server_app")
    )
    config = {
        **{
            "n-clusters": 3,
            "epsilon": 1.0,
            "n-records": 3000,
            "n-clients": 5,
            "seed": 0,
        },
        **{
            "trust": "distributed-noise",
            "output": str(directory / "out"),
            **run_config,
        },
    }

    def client(message, context):
        context.node_config |= node_config(context.node_config["partition-id"])
        return client_app(message, context)

    with task_identity():
        server_app(InProcessGrid(client, 5), Context(1, 1, {}, RecordDict(), config))


def test_a_node_with_a_policy_answers_from_its_own_file(made, monkeypatch):
    _, directory = made
    rng = np.random.default_rng(4)

    def node_config(i):
        node = directory / f"node-{i}"
        node.mkdir(exist_ok=True)
        (node / "policy.toml").write_text('state_dir = "state"\nmax_epsilon = 1.0\n')
        (node / "policy.toml").chmod(0o644)
        groups = np.array(CENTERS)[rng.integers(0, 3, 600)] + rng.normal(size=(600, 2))
        lines = [f"n{i},{visits},{age}" for age, visits in groups]
        (node / "own.csv").write_text(
            "\n".join(["name,visits,age", *lines, "n0,,30"]) + "\n"
        )
        names = {"data": "own.csv", "policy-file": "policy.toml", "results": "."}
        return {key: str(node / name) for key, name in names.items()}

    run(directory, monkeypatch, node_config, trust="clients-only")
    assert not (directory / "out" / "centroids.csv").exists()  # the server has none
    for i in range(5):
        # as `assign` does
        found = read_centroids(directory / f"node-{i}" / "centroids.npz")
        np.testing.assert_allclose(sorted(found.centroids.tolist()), CENTERS, atol=3)
        assert (directory / f"node-{i}" / "state").is_dir()  # the ledger


@pytest.mark.claim("deploy", "result-has-own-sizes")
def test_a_node_has_its_own_sizes_in_its_result_and_on_a_page(made, monkeypatch):
    """By the code that the app has, and the server has none of them."""
    _, directory = made
    nodes = [directory / f"node-{i}" for i in range(5)]
    for node in nodes:
        node.mkdir()
    run(directory, monkeypatch, lambda i: {"results": str(nodes[i])})
    for node in nodes:
        with np.load(node / "centroids.npz") as file:
            assert "do not send" in str(file["PRIVATE"])
            own = file["own_sizes"]
            assert file["counts"].sum() > 2 * own.sum()
        # a simulated node has 600 records
        assert own.sum() == 600
        page = node / "own-sizes.html"
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        text = page.read_text("utf-8")
        for size in own:
            assert f'<td class="num">{size:.0f}</td>' in text
    output = directory / "out"
    assert not (output / "own-sizes.html").exists()
    with np.load(output / "centroids.npz") as file:
        assert not {"PRIVATE", "own_sizes"} & set(file)


@pytest.mark.parametrize(
    ("node_config", "run_config", "words"),
    [
        # and no policy: no ledger
        ({"data": "own.csv"}, {}, "records could not be loaded"),
        ({}, {"epsilon": 2.0}, "outside of what the client's policy accepts"),
    ],
)
def test_a_node_refuses_what_nobody_accounts_for(
    made, monkeypatch, node_config, run_config, words
):
    with pytest.raises(TooFewClientsError, match=words):
        run(made[1], monkeypatch, lambda _: node_config, **run_config)


# ------------------------------------------------------------------ by Flower's command


@pytest.mark.claim("deploy", "if-too-few-nodes")
@pytest.mark.deployment
def test_it_runs_by_the_command_that_was_printed(made, tmp_path, monkeypatch):
    output, _ = made
    link, control = free_ports(2)
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(link))
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(control))
    monkeypatch.setenv("HOME", str(tmp_path))  # the app writes to ~/my-app-out
    *_, printed = output.splitlines()
    command = shlex.split(printed)
    with Processes(tmp_path) as processes:
        for _ in range(3):  # a busy machine may be too slow for Flower's own SuperLink
            with suppress(DeploymentError):
                processes.run("run", command, 300)
                break
        output = tmp_path / "my-app-out"
        assert_centroids_in(output)
        page = (output / "report.html").read_bytes()
        assert (
            CliRunner().invoke(app, ["report", str(output / "report.json")]).exit_code
            == 0
        )
        assert (output / "report.html").read_bytes() == page
        (listed,) = json.loads(
            processes.run("list", ["flwr", "ls", "local", "--format", "json"], 60)
        )["runs"]
        assert listed["status"] == "finished:completed"
        # What the clients' policy refuses ends with one sentence.
        refused = processes.run(
            "refused", [*command, "--run-config", "epsilon=2.0"], 300
        )
        (line,) = (
            each for each in refused.splitlines() if "raised an exception" in each
        )
        assert (
            "Simulation raised an exception: Expected at least min_clients=4 clients"
            in line
        )
        assert line.endswith(
            "Reasons: The run is outside of what the client's policy accepts."
        )
        assert "Traceback" not in refused
        assert "TooFewClientsError" not in refused
    assert processes.left() == []
