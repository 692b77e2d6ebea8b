"""docs/deploy.md on loopback: real processes, certificates and keys, and the installed Flower."""

import ipaddress
import json
import re
import shlex
import shutil
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from deployments import (
    FOLDER,
    NEVER_SEEN,
    PAGE,
    ROOT,
    ROUNDS,
    check_feddp_outcome,
    check_outcome,
    check_shared_outcome,
    left_after,
    load_script,
)
from flwr.app import Context, RecordDict
from report_pages import read, tables
from typer.testing import CliRunner

from flower_kmeans import Box, ClientPolicy
from flower_kmeans.cli import app as flower_kmeans
from flower_kmeans.errors import ConfigurationError, DataError, TooFewClientsError
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity
from flower_kmeans.protocol.roster import Roster, read_identity, write_members
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, HDPEMeans, PEMeans, SynopsisKMeans


@pytest.fixture
def loopback(monkeypatch):
    return load_script(monkeypatch, "loopback")


@pytest.fixture
def credentials(monkeypatch):
    return load_script(monkeypatch, "credentials")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --------------------------------------------------------------------------- a whole run


@pytest.mark.deployment
def test_three_nodes_learn_the_same_and_the_server_nothing(loopback, tmp_path):
    partitions = loopback.example_partitions()
    with loopback.deployment(tmp_path, partitions) as running:
        running.run({"n-rounds": ROUNDS}, timeout=900)
    assert left_after(running.processes) == []
    check_outcome(running, partitions)


@pytest.mark.deployment
def test_four_nodes_and_a_server_that_sees_no_sum(loopback, tmp_path):
    """``clients-only`` with pinned keys: every client adds a noise share, and clients open."""
    partitions = loopback.example_partitions(4)
    policy = {"trusts": ["clients-only"]}
    with loopback.deployment(tmp_path, partitions, policy=policy) as running:
        running.run({"n-rounds": ROUNDS, "trust": "clients-only"}, timeout=900)
    assert left_after(running.processes) == []
    check_outcome(running, partitions, "clients-only")


def server_points():
    """Return points of the server's own: some near the records' clusters, most anywhere."""
    rng = np.random.default_rng(6)
    near = np.array([[-6.0, -6.0], [6.0, -7.0], [1.0, 7.0]])
    return np.vstack([near + rng.normal(size=(3, 2)), rng.uniform(-12, 12, (20, 2))])


@pytest.mark.deployment
def test_the_server_starts_feddp_from_points_that_stay_with_it(loopback, tmp_path):
    partitions, points = loopback.example_partitions(), server_points()
    data = tmp_path / "server.npy"
    np.save(data, points)
    config = {"strategy": "feddp", "server-data": str(data), "trust": "distributed-noise"}
    policy = {"trusts": ["distributed-noise"], "max_epsilon": 1.5, "algorithms": ["feddp"]}
    with loopback.deployment(tmp_path, partitions, policy=policy) as running:
        running.run({"n-rounds": ROUNDS, **config}, timeout=900)
    assert left_after(running.processes) == []
    check_feddp_outcome(running, partitions, points)


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("name", "strategy", "asked", "n_rounds"),
    [("synopsis", "SynopsisKMeans", 0, 8), ("pe-means", "PEMeans", 4, 4)],
)
def test_nodes_and_server_learn_the_same_where_it_asks(
    loopback, tmp_path, name, strategy, asked, n_rounds
):
    partitions = loopback.example_partitions()
    config = {"strategy": name, "trust": "distributed-noise", "n-rounds": asked}
    policy = {"trusts": ["distributed-noise"], "max_epsilon": 1.5, "algorithms": [name]}
    with loopback.deployment(tmp_path, partitions, policy=policy) as running:
        running.run(config, timeout=900)
    assert left_after(running.processes) == []
    check_shared_outcome(running, partitions, strategy, n_rounds)


@pytest.mark.deployment
def test_a_process_that_ends_ends_the_deployment(loopback, tmp_path):
    processes = loopback.Processes(tmp_path)
    try:
        processes.start("superlink", ["flower-superlink", "--no-such-option"])
        with pytest.raises(loopback.DeploymentError, match="superlink ended with 2"):
            processes.wait_for_port(loopback.HOST, loopback.free_ports(1)[0], 60)
    finally:
        processes.stop()
    assert left_after(processes) == []


@pytest.mark.deployment
def test_what_takes_too_long_is_stopped(loopback, tmp_path):
    processes = loopback.Processes(tmp_path)
    try:
        processes.start("sleeper", ["sleep", "600"])
        with pytest.raises(loopback.DeploymentError, match="took too long"):
            processes.wait("sleeper", 0)
    finally:
        processes.stop()
    assert left_after(processes) == []


def test_a_demonstration_that_fails_says_why_and_what_to_try(
    loopback, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(loopback.signal, "signal", lambda *_: None)

    def place(directory):
        raise loopback.DeploymentError(f"The end of run took too long; the logs are in {directory}")

    options = loopback.options_of("Demonstrate.").parse_args(
        ["--directory", str(tmp_path), "--timeout", "7"]
    )
    with pytest.raises(SystemExit, match=r"took too long(.|\n)*--timeout above 7"):
        loopback.demonstrate(options, place)
    assert capsys.readouterr().out == f"Setting up in {tmp_path}\n"


# --------------------------------------------------------------------------- the page


def commands():
    """Return the page's commands as lists of words, comments left out."""
    found = []
    for block in re.findall(r"^ *```bash\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                found.append(words)
    return found


def test_the_pages_commands_are_those_that_run(loopback):
    documented = commands()
    settings = {
        "data": "/srv/records.csv",
        "policy-file": "/srv/node/policy.toml",
        "result": "/srv/result.npz",
    }
    link = ("link", "0.0.0.0", 8000)  # noqa: S104
    assert loopback.superlink_command(*link, None) in documented
    assert loopback.superlink_command(*link, "0.0.0.0:9092") in documented
    for address in ("link.example.org:8000", "link.example.org:9092"):
        assert loopback.supernode_command("node", address, 9094, settings) in documented
    assert loopback.register_command("hospital-a.pub") in documented
    assert loopback.status_command() in documented
    assert loopback.keygen_command("a", "member") in documented
    key = ("member/roster.toml", "member/a.key")
    assert loopback.keygen_check_command(*key) in documented
    files = ("/srv/node/policy.toml", "/srv/records.csv")
    assert loopback.check_command(*files) in documented
    link = ("link.example.org:8000", "node/ca.crt")
    assert loopback.check_command(*files, *link) in documented
    config = {"n-clients": 3, "report": "/srv/report.json", "roster": "/srv/roster.toml"}
    assert loopback.run_command("simulations/deployment/app", config) in documented
    for trust in ("clients-only", "distributed-noise"):
        shared = config | {"strategy": "synopsis", "trust": trust}
        assert loopback.run_command("simulations/deployment/app", shared) in documented
    config |= {"strategy": "feddp", "server-data": "/srv/server.csv", "trust": "distributed-noise"}
    assert loopback.run_command("simulations/deployment/app", config) in documented
    assert ["python", "simulations/deployment/loopback.py"] in documented
    page = re.sub(r"^ +", "", PAGE, flags=re.MULTILINE)
    assert loopback.policy_text(loopback.BOUNDS) in page
    text = loopback.flower_config("link.example.org:8000", "/srv/ca.crt")
    assert text in page
    assert tomllib.loads(text)["superlink"]["deployment"]["address"] == "link.example.org:8000"


def test_the_pages_credentials_are_made(credentials, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = [
        words[2:]
        for words in commands()
        if words[1:2] == [str(FOLDER.relative_to(ROOT)) + "/credentials.py"]
    ]
    assert [words[0] for words in made] == ["link", "node"]
    for words in made:
        credentials.main(words)
    written = ["link/ca.crt", "link/server.pem", "link/ca.key", "link/server.key"]
    told = capsys.readouterr().out
    assert all(name in told for name in [*written, "node/node.pub", "node/node.key"])
    keygen = [words[1:] for words in commands() if words[:2] == ["flower-kmeans", "keygen"]]
    own = ["keygen", "a", "--output", "member"]
    assert keygen == [own, ["keygen", "--check", "member/roster.toml", "--key", "member/a.key"]]
    for words in keygen:
        assert CliRunner().invoke(flower_kmeans, words).exit_code == 0
    assert len(Roster.from_file("member/roster.toml")) == 1
    lines = re.findall(r"^ +((?:roster|member_key)_file = .*)$", PAGE, re.MULTILINE)
    Path("node/policy.toml").write_text("\n".join(lines), "utf-8")
    Path("node/policy.toml").chmod(0o600)
    policy = ClientPolicy.from_file("node/policy.toml")
    assert read_identity(policy.roster_file, policy.member_key_file).slot == 0
    lines = ""
    for name in "abc":  # each on its own node, as the page merges them
        words = [name if word == "a" else word for word in own]
        words[-1] = f"from-{name}"
        assert CliRunner().invoke(flower_kmeans, words).exit_code == 0
        lines += Path(f"from-{name}/roster.toml").read_text("utf-8")
    Path("member/roster.toml").write_text(lines, "utf-8")
    assert Roster.from_file("member/roster.toml").names == ("a", "b", "c")
    for place, name in enumerate("abc"):
        assert read_identity("member/roster.toml", f"from-{name}/{name}.key").slot == place
    merge = "cat from-a/roster.toml from-b/roster.toml from-c/roster.toml > member/roster.toml"
    assert shlex.split(merge) in commands()

    authority = x509.load_pem_x509_certificate(Path("link/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate(Path("link/server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    key = load_pem_private_key(Path("link/server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    loopback_address = ipaddress.ip_address("127.0.0.1")
    assert names.get_values_for_type(x509.IPAddress) == [loopback_address]

    private = load_ssh_private_key(Path("node/node.key").read_bytes(), None)
    public = load_ssh_public_key(Path("node/node.pub").read_bytes())
    assert private.public_key() == public
    names = ["link/ca.key", "link/server.key", "node/node.key", "member/a.key"]
    assert [mode(Path(name)) for name in names] == [0o600] * len(names)


def test_keys_are_never_overwritten(credentials, tmp_path, capsys):
    credentials.make_node(tmp_path)
    before = (tmp_path / "node.key").read_bytes()
    with pytest.raises(SystemExit):
        credentials.main(["node", str(tmp_path)])
    assert "it was left as it is" in capsys.readouterr().err
    assert (tmp_path / "node.key").read_bytes() == before


# --------------------------------------------------------------------------- the app


def test_the_app_installs_nothing_and_fits_its_example(loopback):
    config = tomllib.loads((FOLDER / "app" / "pyproject.toml").read_text("utf-8"))
    assert config["project"]["dependencies"] == []
    values = config["tool"]["flwr"]["app"]["config"]
    assert values["bounds"] == ",".join(f"{low:g}:{high:g}" for low, high in loopback.BOUNDS)
    assert values["min-clients"] == ClientPolicy().min_clients
    assert values["n-records"] == sum(map(len, loopback.example_partitions()))


def write_policy(loopback, node, bounds=None, settings=None, name="a"):
    path = node / "policy.toml"
    path.write_text(loopback.policy_text(bounds or loopback.BOUNDS, settings, name), "utf-8")
    path.chmod(0o600)
    return path


def test_the_policy_of_a_node_is_as_strict_as_can_be(loopback, tmp_path):
    policy = ClientPolicy.from_file(write_policy(loopback, tmp_path, [(0, 1), (-2, 2.5)]))
    assert policy == ClientPolicy(
        trusts=("oblivious-server",),
        domain=Box([0, -2], [1, 2.5]),
        roster_file=str(tmp_path.resolve() / "../member/roster.toml"),
        member_key_file=str(tmp_path.resolve() / "../member/a.key"),
        state_dir=str(tmp_path.resolve() / "state"),
    )
    none = {"roster_file": None, "member_key_file": None}
    settings = {"min_clients": 2, "trusts": ["distributed-noise"], **none}
    policy = ClientPolicy.from_file(write_policy(loopback, tmp_path, settings=settings))
    assert (policy.min_clients, policy.trusts) == (2, ("distributed-noise",))
    assert policy.accepted_keys == ("relayed",)


def run_in_process(monkeypatch, loopback, tmp_path, config=None, policies=lambda node: {}):
    """Run the app's two sides in this process; ``policies`` returns what is said in a node's."""
    app = load_script(monkeypatch, "client_app", FOLDER / "app").app
    server = load_script(monkeypatch, "server_app", FOLDER / "app").app
    run_config = tomllib.loads((FOLDER / "app" / "pyproject.toml").read_text("utf-8"))
    run_config = run_config["tool"]["flwr"]["app"]["config"]
    run_config |= {"n-rounds": 2, "timeout": 5, "report": str(tmp_path / "report.json")}
    run_config |= config or {}
    *_, roster = write_members(tmp_path / "member", ["a", "b", "c"])
    run_config["roster"] = str(roster)
    for i, records in enumerate(loopback.example_partitions()):
        node = tmp_path / f"node{i}"
        node.mkdir()
        np.save(node / "records.npy", records)
        write_policy(loopback, node, **policies(i), name="abc"[i])

    def client(message, context):
        node = tmp_path / f"node{context.node_config['partition-id']}"
        context.node_config |= {
            "data": str(node / "records.npy"),
            "policy-file": str(node / "policy.toml"),
            "result": str(node / "result.npz"),
        }
        return app(message, context)

    with task_identity():
        server(InProcessGrid(client, 3), Context(1, 1, {}, RecordDict(), run_config))
    report = json.loads((tmp_path / "report.json").read_text())
    return len(list(tmp_path.glob("node?/result.npz"))), report


def could_take_part(loopback, node):
    command = loopback.check_command(node / "policy.toml", node / "records.npy")
    return CliRunner().invoke(flower_kmeans, command[1:]).exit_code == 0


def test_the_apps_two_sides_make_a_run(monkeypatch, loopback, tmp_path):
    n_results, report = run_in_process(monkeypatch, loopback, tmp_path)
    assert n_results == 3
    assert (report["arrays_at_the_server"], report["finished"]) == ([], True)
    assert all(could_take_part(loopback, tmp_path / f"node{i}") for i in range(3))
    page = read((tmp_path / "report.html").read_text("utf-8"))
    assert NEVER_SEEN in page.text
    assert "Centroids" not in tables(page)


@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_the_trust_model_and_the_keys_are_settings(monkeypatch, loopback, tmp_path, trust, keys):
    def policies(node):
        none = {} if keys == "roster" else {"roster_file": None, "member_key_file": None}
        return {"settings": {"trusts": [trust], **none}}

    config = {"trust": trust, "keys": keys, "max-colluders": 1}
    n_results, report = run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert n_results == 3
    assert (report["trust"], report["keys"]) == (trust, keys)
    assert (report["arrays_at_the_server"] == []) == (trust == "clients-only")


def test_a_server_that_sees_the_sums_shows_the_nodes_result(monkeypatch, loopback, tmp_path):
    def policies(node):
        return {"settings": {"trusts": ["distributed-noise"]}}

    config = {"trust": "distributed-noise"}
    n_results, report = run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert n_results == 3
    assert (report["trust"], report["keys"]) == ("distributed-noise", "roster")
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    with np.load(tmp_path / "node0" / "result.npz") as result:
        centroids = result["centroids"]
    head, *rows, _ = tables(read((tmp_path / "report.html").read_text("utf-8")))["Centroids"]
    assert head[1] == "noisy size"
    shown = {int(row[0]): [float(cell) for cell in row[-2:]] for row in rows}
    np.testing.assert_allclose([shown[i] for i in range(3)], centroids, rtol=1e-3, atol=5e-3)
    assert all(could_take_part(loopback, tmp_path / f"node{i}") for i in range(3))


def test_feddp_is_a_setting_that_policies_may_name(monkeypatch, loopback, tmp_path):
    np.save(tmp_path / "server.npy", server_points())
    config = {
        "strategy": "feddp",
        "server-data": str(tmp_path / "server.npy"),
        "trust": "distributed-noise",
    }

    def policies(node):
        return {
            "settings": {
                "trusts": ["distributed-noise"],
                "max_epsilon": 1.5,
                "algorithms": ["feddp"],
            }
        }

    n_results, report = run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert n_results == 3
    assert (report["strategy"], report["n_rounds"]) == ("FedDPKMeans", 5)
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    assert could_take_part(loopback, tmp_path / "node2")


@pytest.mark.parametrize("named", [True, False])
def test_synopsis_is_a_setting_that_policies_may_name(monkeypatch, loopback, tmp_path, named):
    config = {"strategy": "synopsis", "trust": "distributed-noise", "n-rounds": 0}

    def policies(node):
        algorithms = {"algorithms": ["synopsis"]} if named else {}
        return {"settings": {"trusts": ["distributed-noise"], "max_epsilon": 1.5, **algorithms}}

    n_results, report = run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert n_results == 3
    assert report["strategy"] == "SynopsisKMeans"
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    assert could_take_part(loopback, tmp_path / "node2")


def test_pe_means_is_a_setting_that_policies_may_name(monkeypatch, loopback, tmp_path):
    config = {"strategy": "pe-means", "trust": "distributed-noise", "n-rounds": 2}

    def policies(node):
        return {
            "settings": {
                "trusts": ["distributed-noise"],
                "max_epsilon": 1.5,
                "algorithms": ["pe-means"],
            }
        }

    n_results, report = run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert n_results == 3
    assert (report["strategy"], report["n_rounds"]) == ("PEMeans", 2)
    assert report["arrays_at_the_server"] == ["centroids", "counts"]


def test_feddp_is_refused_by_nodes_that_name_another_algorithm(monkeypatch, loopback, tmp_path):
    np.save(tmp_path / "server.npy", server_points())
    config = {
        "strategy": "feddp",
        "server-data": str(tmp_path / "server.npy"),
        "trust": "distributed-noise",
    }

    def policies(node):
        return {
            "settings": {
                "trusts": ["distributed-noise"],
                "max_epsilon": 1.5,
                "algorithms": ["fastlloyd"],
            }
        }

    with pytest.raises(TooFewClientsError, match="policy"):
        run_in_process(monkeypatch, loopback, tmp_path, config, policies)
    assert not list(tmp_path.glob("node?/result*"))


def app_config(**changes):
    """Return the app's run configuration with some settings changed, by their names with _."""
    config = tomllib.loads((FOLDER / "app" / "pyproject.toml").read_text("utf-8"))
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    config = config["tool"]["flwr"]["app"]["config"]
    assert set(changes) <= set(config)  # Flower takes no other
    return config | changes


def test_the_apps_settings_choose_the_strategy(monkeypatch, tmp_path):
    strategy_of = load_script(monkeypatch, "server_app", FOLDER / "app").strategy_of
    usual = strategy_of(app_config())
    assert (type(usual), usual.trust, usual.keys) == (FastLloyd, "oblivious-server", "roster")
    made = strategy_of(app_config(strategy="synopsis", trust="distributed-noise"))
    assert (type(made), made.trust, made.n_rounds) == (SynopsisKMeans, "distributed-noise", 8)
    blind = strategy_of(app_config(strategy="synopsis"))
    assert (type(blind), blind.trust) == (SynopsisKMeans, "oblivious-server")
    points = tmp_path / "server.csv"
    points.write_text("y,name,x\n" + "".join(f"{i + 0.5},p{i},{-i}\n" for i in range(5)))
    seen = []
    made = strategy_of(
        app_config(
            strategy="feddp",
            server_data=str(points),
            trust="distributed-noise",
            bounds="x=-14:14,y=-14:14",
            n_rounds=1,
            seed=4,
        ),
        seen.append,
    )
    assert (type(made), made.trust, made.n_rounds) == (FedDPKMeans, "distributed-noise", 4)
    assert (made.n_clients, made.min_clients, made.keys, made.seed) == (3, 3, "roster", 4)
    assert made.privacy.epsilon == 1.0
    assert made.on_round == seen.append
    # Columns are found by their names.
    grid = made.domain.to_unit([[-i, i + 0.5] for i in range(5)]) * 2**16
    np.testing.assert_allclose(made.algorithm.server_points, grid, atol=1)


@pytest.mark.parametrize(
    ("name", "cls", "bounds"),
    [("pe-means", PEMeans, "-14:14,-14:14"), ("hdpe-means", HDPEMeans, ",".join(["-9:9"] * 17))],
)
def test_the_apps_settings_choose_private_evolution(name, cls, bounds, monkeypatch):
    strategy_of = load_script(monkeypatch, "server_app", FOLDER / "app").strategy_of
    changes = {"strategy": name, "trust": "distributed-noise", "bounds": bounds, "n_rounds": 5}
    made = strategy_of(app_config(**changes))
    assert (type(made), made.trust) == (cls, "distributed-noise")
    assert made.algorithm.n_vote_rounds == 5
    blind = strategy_of(app_config(strategy=name, bounds=bounds))
    assert (type(blind), blind.trust) == (cls, "oblivious-server")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"strategy": "lloyd"}, "Expected strategy in"),
        ({"strategy": "synopsis", "trust": "distributed-noise", "n_rounds": 3}, "n_rounds='auto'"),
        ({"strategy": "feddp", "server_data": "points.npy"}, "must see the sums"),
        ({"strategy": "feddp", "trust": "distributed-noise"}, "Expected"),
        ({"strategy": "feddp", "trust": "distributed-noise", "server_data": "few.npy"}, "at least"),
        (
            {"strategy": "feddp", "trust": "distributed-noise", "server_data": "no.npy"},
            "no.npy",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, match, monkeypatch, tmp_path):
    strategy_of = load_script(monkeypatch, "server_app", FOLDER / "app").strategy_of
    monkeypatch.chdir(tmp_path)
    np.save("points.npy", server_points())
    np.save("few.npy", server_points()[:2])
    with pytest.raises((ConfigurationError, DataError), match=match):
        strategy_of(app_config(**changes))


def test_the_trust_model_is_a_setting_that_policies_must_accept(monkeypatch, loopback, tmp_path):
    with pytest.raises(TooFewClientsError, match="policy"):
        run_in_process(monkeypatch, loopback, tmp_path, {"trust": "distributed-noise"})
    report = json.loads((tmp_path / "report.json").read_text())
    ended = (report["trust"], report["finished"], report["n_rounds"])
    assert ended == ("distributed-noise", False, 0)
    assert {entry["round"] for entry in report["incidents"]} == {0}


def test_a_node_with_other_bounds_refuses(monkeypatch, loopback, tmp_path):
    def policies(node):
        return {"bounds": [(-14, 14), (-15, 14)]} if node == 2 else {}

    with pytest.raises(TooFewClientsError, match="policy"):
        run_in_process(monkeypatch, loopback, tmp_path, policies=policies)
    assert not list(tmp_path.glob("node?/result*"))
    assert not json.loads((tmp_path / "report.json").read_text())["finished"]
    assert "not finished" in read((tmp_path / "report.html").read_text("utf-8")).text


NAMED = {"bounds": "x0=-14:14,x1=-14:14"}


def columns_of_node_2(*columns):
    """Return what pins these columns at one node."""
    return lambda node: {"settings": {"columns": list(columns)}} if node == 2 else {}


def test_columns_that_are_named_are_those_of_the_policy_and_of_the_file(
    monkeypatch, loopback, tmp_path
):
    n_results, _ = run_in_process(
        monkeypatch, loopback, tmp_path, NAMED, columns_of_node_2("x0", "x1")
    )
    assert n_results == 3
    assert could_take_part(loopback, tmp_path / "node2")


def test_the_page_names_the_columns_of_the_test_before_this_one(loopback):
    assert f'bounds="{NAMED["bounds"]}"' in PAGE
    page = re.sub(r"^ +", "", PAGE, flags=re.MULTILINE)
    (line,) = re.findall(r"^columns = .*$", page, re.MULTILINE)
    assert tomllib.loads(line) == {"columns": ["x0", "x1"]}
    assert tomllib.loads(f"{line}\n{loopback.policy_text(loopback.BOUNDS)}")["columns"]


def test_the_pages_refusal_is_what_a_node_logs(monkeypatch, loopback, tmp_path, caplog):
    def policies(node):
        return {"settings": {"max_epsilon": 0.5}} if node == 2 else {}

    with pytest.raises(TooFewClientsError, match="policy"):
        run_in_process(monkeypatch, loopback, tmp_path, policies=policies)
    report = json.loads((tmp_path / "report.json").read_text())
    (reason,) = {entry["reason"] for entry in report["incidents"]}
    assert f'("{reason}")' in " ".join(PAGE.split())
    (documented,) = re.findall(r"^Refused .*$", PAGE, re.MULTILINE)
    logged = [line for line in caplog.messages if line.startswith("Refused")]
    assert len(logged) == 1
    assert re.sub(r"run \w{8}", "run", logged[0]) == re.sub(r"run \w{8}", "run", documented)


@pytest.mark.parametrize(
    ("config", "columns", "reason"),
    [
        ({}, ("x0", "x1"), "policy"),  # a run that names no columns
        (NAMED, ("x1", "x0"), "policy"),
        ({"bounds": "age=-14:14,income=-14:14"}, ("age", "income"), "loaded or checked"),
    ],
)
def test_a_node_with_other_columns_refuses(
    config, columns, reason, monkeypatch, loopback, tmp_path
):
    with pytest.raises(TooFewClientsError, match=reason):
        run_in_process(monkeypatch, loopback, tmp_path, config, columns_of_node_2(*columns))
    assert not list(tmp_path.glob("node?/result*"))
    assert could_take_part(loopback, tmp_path / "node2") == (columns == ("x0", "x1"))


def test_a_node_with_an_open_key_file_refuses(monkeypatch, loopback, tmp_path):
    def policies(node):
        if node != 2:
            return {}
        shutil.copy(tmp_path / "member" / "c.key", tmp_path / "open.key")
        (tmp_path / "open.key").chmod(0o644)
        return {"settings": {"member_key_file": "../open.key"}}

    with pytest.raises(TooFewClientsError):
        run_in_process(monkeypatch, loopback, tmp_path, policies=policies)
    assert not list(tmp_path.glob("node?/result*"))
    assert not could_take_part(loopback, tmp_path / "node2")
