"""The Flower app of two companies that share customers: a whole run of its two sides."""

import json
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from scripts import load_script

from flower_kmeans import ClientPolicy
from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.data.table_domain import Category, Number, TableDomain
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

pytestmark = pytest.mark.claim("deploy", "each-node-now-has")

APP = Path(__file__).parents[2] / "simulations" / "vertical"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))
FLOWER = CONFIG["tool"]["flwr"]["app"]
SMALL = {
    "n-clusters": 2,
    "n-records": 600,
    "n-rounds": 1,
    "radius": False,
    "epsilon": 100.0,
}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the app in this process; ``nodes`` is what each operator says, nothing in simulations."""
    client_app = load_script(monkeypatch, "client_app", APP).app
    server_app = load_script(monkeypatch, "server_app", APP).app
    assert isinstance(client_app, ClientApp)
    assert isinstance(server_app, ServerApp)

    def start(nodes=({}, {}), **changes):
        report = tmp_path / "out" / "report.json"
        config = FLOWER["config"] | SMALL | {"report": str(report)} | changes

        def client(message, context):
            context.run_config = config
            context.node_config |= nodes[context.node_config["partition-id"]]
            return client_app(message, context)

        with task_identity():
            grid = InProcessGrid(client, len(nodes))
            server_app(grid, Context(1, 1, {}, RecordDict(), config))
        return report

    return start


def read(path):
    path = Path(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_centroids(path)  # as `assign` does
    return found.centroids, found.counts


def test_it_installs_nothing_and_its_bounds_fit_its_customers(monkeypatch):
    assert CONFIG["project"]["dependencies"] == ["flwr>=1.39,<2"]  # see test_bundles.py
    customers = load_script(monkeypatch, "customers", APP)
    domain, widths = customers.read_parties(FLOWER["config"]["bounds"])
    assert (domain.columns, widths) == (("income", "age", "visits", "basket"), [2, 2])
    whole = np.hstack([customers.made_up(5_000, party) for party in (0, 1)])
    assert np.mean((whole < domain.lower) | (whole > domain.upper)) < 0.02
    unnamed, widths = customers.read_parties("0:1,-2:2.5/3:4")
    assert (unnamed.columns, widths) == (None, [2, 1])
    assert (list(unnamed.lower), list(unnamed.upper)) == ([0, -2, 3], [1, 2.5, 4])


def test_a_simulation_leaves_a_report_and_the_same_result_at_both_parties(is_real, run):
    report = run()
    values = json.loads(report.read_text("utf-8"))
    assert (values["trust"], values["n_clients"], values["finished"]) == (
        "vertical",
        2,
        True,
    )
    assert values["arrays_at_the_server"] == []
    assert "<caption>Centroids</caption>" not in report.with_suffix(".html").read_text(
        "utf-8"
    )
    (centroids, counts), other = (
        read(report.with_name(f"party-{i}.npz")) for i in (0, 1)
    )
    np.testing.assert_array_equal(centroids, other[0])
    np.testing.assert_array_equal(counts, other[1])
    assert centroids.shape == (2, 4)
    if is_real:
        assert counts.sum() == pytest.approx(600, abs=30)
    assert not list((report.parent / "work").iterdir())


def write_node(directory, slot, table):
    """Write what an operator has; return the node's configuration."""
    node = directory / f"node{slot}"
    node.mkdir()
    header = ("a,b", "c")[slot]
    np.savetxt(node / "own.csv", table, delimiter=",", header=header, comments="")
    (node / "ids.txt").write_text(
        "".join(f"{1000 + i}\n" for i in range(len(table))), "utf-8"
    )
    columns = json.dumps(header.split(","))
    lines = [
        'trusts = ["vertical"]',
        "min_clients = 2",
        'state_dir = "state"',
        f"party = {slot}",
    ]
    lines += [
        f"columns = {columns}",
        "max_epsilon = 100.0",
        "max_total_epsilon = 200.0",
    ]
    policy = node / "policy.toml"
    policy.write_text("\n".join(lines), "utf-8")
    policy.chmod(0o600)
    names = {
        "data": node / "own.csv",
        "ids": node / "ids.txt",
        "result": node / "result.npz",
    }
    return {
        **{key: str(path) for key, path in names.items()},
        "policy-file": str(policy),
    }


CENTERS = np.array([[0.2, 0.2, 0.3], [0.8, 0.7, 0.7]])
BOUNDS = "a=0:1,b=0:1/c=0:1"


@pytest.fixture
def nodes(tmp_path):
    """Two nodes with the columns of the same customers."""
    rng = np.random.default_rng(3)
    table = CENTERS[np.arange(600) % 2] + rng.normal(0, 0.05, (600, 3))
    return [
        write_node(tmp_path, slot, table[:, own])
        for slot, own in enumerate(([0, 1], [2]))
    ]


@pytest.mark.claim("threat-model", "policy-app-code-can")
def test_nodes_with_files_follow_their_operators(is_real, run, nodes):
    run(nodes, bounds=BOUNDS)
    centroids, _ = read(nodes[0]["result"])
    np.testing.assert_array_equal(centroids, read(nodes[1]["result"])[0])
    if is_real:
        assert matched_centroid_error(centroids, CENTERS) < 0.01
    for node in nodes:
        policy = ClientPolicy.from_file(node["policy-file"])
        assert list(Path(policy.state_dir).glob("*"))


def declared(tmp_path, *columns):
    path = tmp_path / f"{columns[0].name}.toml"
    path.write_text(TableDomain(columns).to_toml(), "utf-8")
    return str(path)


def test_parties_may_declare_their_columns_in_files(is_real, run, nodes, tmp_path):
    """Party 1 holds a category in place of a number; a run has a column for each value."""
    files = [
        declared(tmp_path, Number("a", 0.0, 1.0), Number("b", 0.0, 1.0)),
        declared(tmp_path, Category("c", ("low", "high"), missing="low")),
    ]
    with Path(nodes[1]["data"]).open("w", encoding="utf-8") as file:
        file.write("c\n" + "low\nhigh\n" * 300)
    policy = Path(nodes[1]["policy-file"])
    text = policy.read_text("utf-8").replace('["c"]', '["c=low", "c=high"]')
    policy.write_text(text, "utf-8")
    run([node | {"domain": file} for node, file in zip(nodes, files, strict=True)],
        domains=",".join(files))  # fmt: skip
    centroids, _ = read(nodes[0]["result"])
    assert centroids.shape == (2, 4)
    smaller, larger = centroids[np.argsort(centroids[:, 0])]
    assert smaller[2] > larger[2] + 0.1  # more records with "low"
    assert smaller[3] < larger[3] - 0.1
    if is_real:
        wanted = np.hstack([CENTERS[:, :2], [[1, 0], [0, 1]]])
        assert matched_centroid_error(centroids, wanted) < 0.01


def test_a_domain_that_was_read_off_records_is_refused(run, tmp_path, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text(
        TableDomain([Number("a", 0.0, 1.0)], from_records=True).to_toml(), "utf-8"
    )
    domain, widths = load_script(monkeypatch, "customers", APP).read_domains(f"{path}")
    assert (domain.from_records, widths) == (True, [1])
    other = declared(tmp_path, Number("b", 0.0, 1.0))
    with pytest.raises(ConfigurationError, match="read off"):
        run(domains=f"{path},{other}")


@pytest.mark.claim("threat-model", "policy-app-code-can", "V14")
def test_rows_in_another_order_end_the_run(is_real, run, nodes, tmp_path):
    ids = Path(nodes[1]["ids"])
    ids.write_text("\n".join(reversed(ids.read_text("utf-8").splitlines())), "utf-8")
    with pytest.raises(RunError, match="party 0"):
        run(nodes, bounds=BOUNDS)
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert report["finished"] is False
    assert report["incidents"][0]["client"] == 0
    assert not Path(nodes[0]["result"]).exists()


@pytest.mark.claim("threat-model", "policy-app-code-can")
def test_a_node_with_data_and_no_policy_answers_no_run(run, nodes):
    del nodes[1]["policy-file"]
    with pytest.raises(RunError, match="party 1 to join"):
        run(nodes, bounds=BOUNDS)
