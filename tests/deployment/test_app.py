"""The Flower app of docs/deploy.md in this process: its settings, and what nodes refuse."""

import json
import re
import shutil
import stat
import tomllib

import loopback
import numpy as np
import pytest
from checks import NEVER_SEEN, PAGE, read_result, server_points
from declared import DECLARED
from flwr.app import Context, RecordDict
from report_pages import read, tables
from scripts import load_script
from typer.testing import CliRunner

from flower_kmeans import Box, ClientPolicy
from flower_kmeans.cli.app import app as flower_kmeans
from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.client import ClientResult
from flower_kmeans.errors import ConfigurationError, DataError, TooFewClientsError
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import (
    FastLloyd,
    FedDPKMeans,
    HDPEMeans,
    PEMeans,
    SynopsisKMeans,
)

PROJECT = tomllib.loads((loopback.APP / "pyproject.toml").read_text("utf-8"))
SETTINGS = PROJECT["tool"]["flwr"]["app"]["config"]
RELAYED = {"roster_file": None, "member_key_file": None}  # a policy without a roster
ODD = 2  # a node with a policy that differs


def test_the_app_installs_nothing_and_fits_its_example():
    # see test_bundles.py
    assert PROJECT["project"]["dependencies"] == ["flwr>=1.39,<2"]
    assert SETTINGS["bounds"] == ",".join(
        f"{low:g}:{high:g}" for low, high in loopback.BOUNDS
    )
    assert SETTINGS["min-clients"] == ClientPolicy().min_clients
    assert SETTINGS["n-records"] == sum(map(len, loopback.example_partitions()))


def write_policy(node, bounds=None, settings=None, name="a"):
    path = node / "policy.toml"
    path.write_text(
        loopback.policy_text(bounds or loopback.BOUNDS, settings, name), "utf-8"
    )
    path.chmod(0o600)
    return path


def test_the_policy_of_a_node_is_as_strict_as_can_be(tmp_path):
    policy = ClientPolicy.from_file(write_policy(tmp_path, [(0, 1), (-2, 2.5)]))
    assert policy == ClientPolicy(
        trusts=("distributed-noise",),
        domain=Box([0, -2], [1, 2.5]),
        roster_file=str(tmp_path.resolve() / "../member/roster.toml"),
        member_key_file=str(tmp_path.resolve() / "../member/a.key"),
        state_dir=str(tmp_path.resolve() / "state"),
    )
    settings = {"min_clients": 2, "trusts": ["clients-only"], **RELAYED}
    policy = ClientPolicy.from_file(write_policy(tmp_path, settings=settings))
    assert (policy.min_clients, policy.trusts) == (2, ("clients-only",))
    assert policy.accepted_keys == ("relayed",)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return what runs the app's two sides with three nodes, and returns the server's report.

    ``policy`` holds settings of all nodes' policies, ``odd`` and ``bounds`` those of
    one.
    """
    app = load_script(monkeypatch, "client_app", loopback.APP).app
    server = load_script(monkeypatch, "server_app", loopback.APP).app
    names, report = "abc", tmp_path / "report.json"
    *_, roster = write_members(tmp_path / "member", names)

    def client(message, context):
        node = tmp_path / f"node{context.node_config['partition-id']}"
        context.node_config |= {
            "data": str(node / "records.npy"),
            "policy-file": str(node / "policy.toml"),
            "result": str(node / "result.npz"),
        }
        return app(message, context)

    def start(config=None, policy=None, *, odd=None, bounds=None):
        for i, records in enumerate(loopback.example_partitions()):
            node = tmp_path / f"node{i}"
            node.mkdir()
            loopback.write_records(node / "records.npy", records)
            settings = {**(policy or {}), **((odd or {}) if i == ODD else {})}
            write_policy(node, bounds if i == ODD else None, settings, names[i])
        settings = SETTINGS | {
            "timeout": 5,
            "report": str(report),
            "roster": str(roster),
        }
        settings |= config or {}
        if settings["strategy"] != "synopsis":
            settings["n-rounds"] = 2
        context = Context(1, 1, {}, RecordDict(), settings)
        with task_identity():
            server(InProcessGrid(client, len(names)), context)
        assert len(results(tmp_path)) == len(names)
        return json.loads(report.read_text("utf-8"))

    return start


def results(directory):
    """Return what nodes wrote, whole or not."""
    return list(directory.glob("node?/result*"))


def could_take_part(node):
    command = loopback.check_command(node / "policy.toml", node / "records.npy")
    return CliRunner().invoke(flower_kmeans, command[1:]).exit_code == 0


@pytest.mark.claim("deploy", "pages-defaults-on-one", "commands-these-pages-write")
def test_the_apps_two_sides_make_a_run(run, tmp_path):
    report = run()
    assert (report["strategy"], report["trust"]) == (
        "SynopsisKMeans",
        "distributed-noise",
    )
    assert (report["arrays_at_the_server"], report["finished"]) == (
        ["centroids", "counts"],
        True,
    )
    assert all(could_take_part(tmp_path / f"node{i}") for i in range(3))
    written = [*results(tmp_path), tmp_path / "report.json", tmp_path / "report.html"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


@pytest.mark.claim("reading-a-report", "so-does-server-apps")
def test_a_blind_server_has_no_centroid(run, tmp_path):
    report = run(*CHOSEN["fastlloyd"])
    assert (report["arrays_at_the_server"], report["finished"]) == ([], True)
    page = read((tmp_path / "report.html").read_text("utf-8"))
    assert NEVER_SEEN in page.text
    assert "Centroids" not in tables(page)


@pytest.mark.claim("reading-a-report", "so-does-server-apps")
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_the_trust_model_and_the_keys_are_settings(run, trust, keys, tmp_path):
    policy = {"trusts": [trust], **(RELAYED if keys == "relayed" else {})}
    report = run({"trust": trust, "keys": keys, "max-colluders": 1}, policy)
    assert (report["trust"], report["keys"]) == (trust, keys)
    if trust == "clients-only":
        assert report["arrays_at_the_server"] == []
        return
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    centroids, _ = read_result(tmp_path / "node0" / "result.npz")
    head, *rows, _ = tables(read((tmp_path / "report.html").read_text("utf-8")))[
        "Centroids"
    ]
    assert head == ["cluster", "column 1", "column 2"]
    shown = {}
    for row in rows[:3]:
        number, _, _ = row[0].partition(":")
        shown[int(number)] = [float(cell) for cell in row[1:]]
    np.testing.assert_allclose(
        [shown[i] for i in range(3)], centroids, rtol=1e-3, atol=5e-3
    )
    assert all(could_take_part(tmp_path / f"node{i}") for i in range(3))


@pytest.mark.claim("deploy", "app-runs-synopsiskmeans-under")
@pytest.mark.parametrize(
    ("name", "strategy", "n_rounds", "accepted"),
    [
        ("feddp", "FedDPKMeans", 5, ["feddp"]),
        ("synopsis", "SynopsisKMeans", 8, ["synopsis"]),
        ("synopsis", "SynopsisKMeans", 8, None),
        ("pe-means", "PEMeans", 2, ["pe-means"]),
        ("feddp", "FedDPKMeans", 0, ["fastlloyd"]),
    ],
)
def test_algorithms_are_settings_that_policies_may_name(
    run, name, strategy, n_rounds, accepted, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.save("server.npy", server_points())
    config = {"strategy": name, "server-data": "server.npy"}
    policy = {"max_epsilon": 1.5, "algorithms": accepted}
    if not n_rounds:
        with pytest.raises(TooFewClientsError, match="policy"):
            run(config, policy)
        assert not results(tmp_path)
        return
    report = run(config, policy)
    assert (report["strategy"], report["n_rounds"]) == (strategy, n_rounds)
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    assert could_take_part(tmp_path / "node2")


CHOSEN = {  # strategies whose result only the nodes have
    "fastlloyd": (
        {"strategy": "fastlloyd", "trust": "oblivious-server"},
        {"trusts": ["oblivious-server"]},
    ),
    "synopsis": ({"trust": "clients-only"}, {"trusts": ["clients-only"]}),
}


@pytest.mark.claim("deploy", "each-node-now-has")
@pytest.mark.parametrize("name", CHOSEN)
def test_assign_takes_the_result_file_of_a_node(run, name, tmp_path):
    run(*CHOSEN[name])
    node = tmp_path / "node1"
    path, records = node / "result.npz", loopback.example_partitions()[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    command = ["assign", "--centroids", str(path), "--data", str(node / "records.npy")]

    def assigned(*options):
        output = node / "assigned.csv"
        result = CliRunner().invoke(
            flower_kmeans, [*command, "--output", str(output), *options]
        )
        assert result.exit_code == 0, result.output
        return np.loadtxt(output, delimiter=",", skiprows=1, usecols=-2).astype(int)

    centroids, _ = read_result(path)
    nearest = ((records[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(assigned(), nearest)
    with np.load(path) as file:
        assert (list(file["columns"]), bool(file["private"])) == (["x0", "x1"], True)
    # The synopsis is in the file, too: it has clusters of any number.
    if name == "synopsis":
        assert set(assigned("--clusters", "2")) == {0, 1}


@pytest.mark.parametrize(
    ("first", "header"), [("left,right\n", {}), ("", {"header": "left,right"})]
)
@pytest.mark.parametrize("columns", [None, ["age", "income"]])
def test_a_nodes_file_names_the_columns_of_the_run_or_else_its_own(
    monkeypatch, tmp_path, first, header, columns
):
    app = load_script(monkeypatch, "client_app", loopback.APP)
    result = ClientResult(
        np.zeros((2, 2)), np.ones(2), Box([-1, -1], [1, 1], columns=columns), "0"
    )
    (tmp_path / "own.csv").write_text(f"{first}1,2\n", "utf-8")
    paths = {"data": str(tmp_path / "own.csv"), "result": str(tmp_path / "result.npz")}
    app.on_result(result, Context(1, 1, {**paths, **header}, RecordDict(), {}))
    found = read_centroids(tmp_path / "result.npz")
    assert list(found.columns) == (columns or ["left", "right"])
    np.testing.assert_array_equal(found.centroids, result.centroids)


def app_config(**changes):
    """Return the app's run configuration with some settings changed, by their names with _."""
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    assert set(changes) <= set(SETTINGS)  # Flower takes no other
    return SETTINGS | changes


@pytest.fixture
def strategy_of(monkeypatch):
    """Return the app's function that makes a strategy of settings."""
    return load_script(monkeypatch, "server_app", loopback.APP).strategy_of


@pytest.mark.claim("deploy", "app-runs-synopsiskmeans-under")
@pytest.mark.parametrize(
    ("name", "cls", "bounds", "rounds"),
    [
        ("fastlloyd", FastLloyd, "-14:14,-14:14", {}),
        ("synopsis", SynopsisKMeans, "-14:14,-14:14", {}),
        ("pe-means", PEMeans, "-14:14,-14:14", {"n_rounds": 5}),
        ("hdpe-means", HDPEMeans, ",".join(["-9:9"] * 17), {"n_rounds": 5}),
    ],
)
@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_the_apps_settings_choose_the_strategy(
    strategy_of, name, cls, bounds, rounds, trust
):
    made = strategy_of(app_config(strategy=name, trust=trust, bounds=bounds, **rounds))
    assert (type(made), made.trust, made.keys) == (cls, trust, "roster")
    assert not rounds or made.algorithm.n_vote_rounds == 5


def test_the_apps_settings_choose_feddp_and_its_points(strategy_of, tmp_path):
    points, seen = tmp_path / "server.csv", []
    points.write_text(
        "y,name,x\n" + "".join(f"{i + 0.5},p{i},{-i}\n" for i in range(5))
    )
    settings = {
        "server_data": str(points),
        "bounds": "x=-14:14,y=-14:14",
        "n_rounds": 1,
        "seed": 4,
    }
    config = app_config(strategy="feddp", trust="distributed-noise", **settings)
    made = strategy_of(config, seen.append)
    assert (type(made), made.trust, made.n_rounds) == (
        FedDPKMeans,
        "distributed-noise",
        4,
    )
    assert (made.n_clients, made.min_clients, made.keys, made.seed) == (
        3,
        3,
        "roster",
        4,
    )
    assert (made.privacy.epsilon, made.on_round) == (1.0, seen.append)
    # Columns are found by their names.
    grid = made.domain.to_unit([[-i, i + 0.5] for i in range(5)]) * 2**16
    np.testing.assert_allclose(made.algorithm.server_points, grid, atol=1)


@pytest.mark.parametrize(
    ("strategy", "changes", "match"),
    [
        ("lloyd", {}, "Expected strategy in"),
        ("synopsis", {"n_rounds": 3}, "n_rounds='auto'"),
        (
            "feddp",
            {"server_data": "points.npy", "trust": "oblivious-server"},
            "must see the sums",
        ),
        ("feddp", {}, "Expected"),
        ("feddp", {"server_data": "few.npy"}, "at least"),
        ("feddp", {"server_data": "no.npy"}, "no.npy"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    strategy_of, strategy, changes, match, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    np.save("points.npy", server_points())
    np.save("few.npy", server_points()[:2])
    with pytest.raises((ConfigurationError, DataError), match=match):
        strategy_of(app_config(strategy=strategy, **changes))


NAMED = {"bounds": "x0=-14:14,x1=-14:14"}


@pytest.mark.claim("reading-a-report", "so-does-server-apps")
@pytest.mark.claim("protocol", "policys-domain-columns-pin")
@pytest.mark.claim("reference/domains", "clients-other-declarations-have")
@pytest.mark.parametrize(
    ("config", "odd", "bounds", "reason", "could"),
    [
        # no policy accepts this trust model
        ({"trust": "clients-only"}, {}, None, "policy", True),
        ({}, {}, [(-14, 14), (-15, 14)], "policy", True),
        # the run names no columns
        ({}, {"columns": ["x0", "x1"]}, None, "policy", True),
        (NAMED, {"columns": ["x1", "x0"]}, None, "policy", False),
        ({"bounds": "age=-14:14,income=-14:14"}, {"columns": ["age", "income"]}, None,
         "loaded or checked", False),
        # which others can read
        ({}, {"member_key_file": "../open.key"}, None, "Reasons", False),
    ],
    ids=["trust", "bounds", "no columns", "order", "other columns", "open key"],
)  # fmt: skip
def test_a_node_refuses_what_differs_from_its_policy(
    run, config, odd, bounds, reason, could, tmp_path
):
    shutil.copy(tmp_path / "member" / "c.key", tmp_path / "open.key")
    (tmp_path / "open.key").chmod(0o644)
    with pytest.raises(TooFewClientsError, match=reason):
        run(config, odd=odd, bounds=bounds)
    assert not results(tmp_path)
    assert could_take_part(tmp_path / "node2") == could
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["finished"], report["n_rounds"]) == (False, 0)
    # Policies are compared with the run when nodes enrol, and records when they are
    # first read.
    assert {entry["round"] for entry in report["incidents"]} == {
        int(reason == "loaded or checked")
    }
    assert "not finished" in read((tmp_path / "report.html").read_text("utf-8")).text


@pytest.mark.claim("protocol", "policys-domain-columns-pin")
def test_columns_that_are_named_are_those_of_the_policy_the_file_and_the_page(
    run, tmp_path
):
    run(NAMED, odd={"columns": ["x0", "x1"]})
    assert could_take_part(tmp_path / "node2")
    assert f'bounds="{NAMED["bounds"]}"' in PAGE
    page = re.sub(r"^ +", "", PAGE, flags=re.MULTILINE)
    (line,) = re.findall(r"^columns = .*$", page, re.MULTILINE)
    assert tomllib.loads(line) == {"columns": ["x0", "x1"]}
    assert tomllib.loads(f"{line}\n{loopback.policy_text(loopback.BOUNDS)}")["columns"]


@pytest.mark.claim("threat-model", "refusal-one-line-clients")
def test_the_pages_refusal_is_what_a_node_logs(run, tmp_path, caplog):
    with pytest.raises(TooFewClientsError, match="policy"):
        run(odd={"max_epsilon": 0.5})
    report = json.loads((tmp_path / "report.json").read_text())
    (reason,) = {entry["reason"] for entry in report["incidents"]}
    assert f'("{reason}")' in " ".join(PAGE.split())
    (documented,) = re.findall(r"^Refused .*$", PAGE, re.MULTILINE)
    logged = [line for line in caplog.messages if line.startswith("Refused")]
    assert len(logged) == 1
    assert re.sub(r"run \w{8}", "run", logged[0]) == re.sub(
        r"run \w{8}", "run", documented
    )


# ------------------------------------------------------------------ columns as declared


GROUPS = [("surgery", 4000, "2021-03"), ("medicine", 300_000, "2023-10")]
ODD_LINES = [
    "p,none,surgery,2021-03-04",
    "p,4000,surgery,4.3.2021",
    ",",
    "p,1,2,3,4,5",
    ",,,",
    "\xff",
]


@pytest.fixture
def declared(monkeypatch, tmp_path):
    """Return what runs the app with tables of text, and returns the server's page.

    ``odd`` are lines that one node has more, and ``own`` is the domain that its
    operator pins.
    """
    app = load_script(monkeypatch, "client_app", loopback.APP).app
    server = load_script(monkeypatch, "server_app", loopback.APP).app
    domain, report = tmp_path / "domain.toml", tmp_path / "report.json"
    domain.write_text(DECLARED, "utf-8")
    domain.chmod(0o600)
    sizes = []

    def client(message, context):
        node = tmp_path / f"node{context.node_config['partition-id']}"
        files = {"data": "r.csv", "policy-file": "policy.toml", "result": "result.npz"}
        context.node_config |= {name: str(node / file) for name, file in files.items()}
        context.node_config["domain"] = str(domain)
        reply = app(message, context)
        sizes.append(len(from_content(reply.content)))
        return reply

    def start(odd=(), own=None, **config):
        sizes.clear()
        for i in range(3):
            node = tmp_path / f"node{i}"
            node.mkdir(exist_ok=True)
            lines = [
                f"p{n},{income + n},{ward},{month}-{1 + n % 28:02}"
                for n in range(500)
                for ward, income, month in GROUPS
            ]
            text = "\n".join(
                ["name,income,ward,admitted", *lines, *(odd if i == ODD else ())]
            )
            (node / "r.csv").write_bytes(text.encode("latin-1") + b"\n")
            (node / "r.csv").chmod(0o600)
            pinned = node / "pinned.toml"
            pinned.write_text(own if own and i == ODD else DECLARED, "utf-8")
            pinned.chmod(0o600)
            policy = 'trusts = ["distributed-noise", "plain"]\nstate_dir = "state"\n'
            (node / "policy.toml").write_text(
                policy + 'domain = "pinned.toml"\n', "utf-8"
            )
            (node / "policy.toml").chmod(0o600)
        settings = app_config(
            domain=str(domain), report=str(report), trust="distributed-noise", keys="relayed",
            n_clusters=2, n_records=3000, timeout=5, **{"strategy": "fastlloyd", **config},
        )  # fmt: skip
        with task_identity():
            server(InProcessGrid(client, 3), Context(1, 1, {}, RecordDict(), settings))
        return read(report.with_suffix(".html").read_text("utf-8"))

    start.sizes = sizes
    return start


@pytest.mark.claim("deploy", "categories-dates-missing-cells")
def test_nodes_read_their_tables_by_a_domain_file(declared, tmp_path):
    page = declared(odd=ODD_LINES)
    found = tables(page)
    head, *rows, last = found["Centroids"]
    assert head == ["cluster", "income", "ward", "admitted"]
    assert last[-1] == "2020-01-01 to 2024-12-31"
    of_clusters = rows[:2]
    assert sorted(row[-1][:4] for row in of_clusters) == ["2021", "2023"]
    incomes = sorted(float(row[1].replace(",", "")) for row in of_clusters)
    np.testing.assert_allclose(np.log10(incomes), np.log10([4250, 300_250]), atol=0.2)
    centroids, _ = read_result(tmp_path / "node0" / "result.npz")
    assert centroids.shape == (2, 5)
    check = [
        "check",
        "--policy-file",
        str(tmp_path / "node0" / "policy.toml"),
        "--data",
    ]
    result = CliRunner().invoke(
        flower_kmeans, [*check, str(tmp_path / "node0" / "r.csv")]
    )
    assert result.exit_code == 0, result.output


@pytest.mark.claim("deploy", "categories-dates-missing-cells")
def test_no_malformed_cell_shows_in_what_a_client_sends(declared):
    """As many messages of the same sizes, whatever the cells of a node hold, and no refusal."""
    declared(n_rounds=1)
    usual = sorted(declared.sizes)
    assert len(usual) > 6
    assert usual[0] > 0
    for odd in (ODD_LINES, ["p,nan,inf,"], ["p,9e999,\x00,0001-01-01"]):
        declared(odd=odd, n_rounds=1)
        assert sorted(declared.sizes) == usual


@pytest.mark.claim("deploy", "categories-dates-missing-cells")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"surgery", "medicine"', '"medicine", "surgery"'),
        ("upper = 1000000", "upper = 2000000"),
        ('scale = "log"', 'scale = "linear"'),
        ("2020-01-01", "2020-01-02"),
    ],
)
def test_a_node_that_declares_other_columns_takes_no_part(declared, old, new, tmp_path):
    with pytest.raises(TooFewClientsError, match="policy"):
        declared(own=DECLARED.replace(old, new))
    assert not results(tmp_path)
