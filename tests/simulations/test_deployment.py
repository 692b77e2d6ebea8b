"""docs/deploy.md on loopback: real processes, certificates and keys, and the installed Flower."""

import ipaddress
import json
import re
import shlex
import stat
import sys
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
from flwr.app import Context, RecordDict
from sklearn.cluster import KMeans

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, simulate
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.federation.in_process import InProcessGrid, task_identity
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import FastLloyd

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "simulations" / "deployment"
PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
BOUNDS = "-14:14,-14:14"
ROUNDS = 3

# In squared units of records that lie within 14 of 0. The noise of such a run makes about 2e-4;
# this is ten standard deviations of it and more.
CLOSE = 0.01


def load(monkeypatch, folder, name):
    """Import a script's module from its folder, and forget it after the test."""
    monkeypatch.syspath_prepend(str(folder))
    for module in ("bounds", "client_app", "server_app", "credentials", "loopback"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    module = __import__(name)
    for loaded in ("bounds", "client_app", "server_app", "credentials", "loopback"):
        if loaded in sys.modules:
            monkeypatch.delitem(sys.modules, loaded)
    return module


@pytest.fixture
def loopback(monkeypatch):
    return load(monkeypatch, FOLDER, "loopback")


@pytest.fixture
def credentials(monkeypatch):
    return load(monkeypatch, FOLDER, "credentials")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --------------------------------------------------------------------------- a whole run


@pytest.mark.deployment
def test_three_nodes_learn_the_same_and_the_server_nothing(loopback, tmp_path):
    partitions = loopback.example_partitions()
    with loopback.deployment(tmp_path, partitions, BOUNDS) as running:
        running.run({"n-rounds": ROUNDS}, timeout=240)
    assert running.processes.left() == []

    results = []
    for path in running.results:
        with np.load(path) as result:
            results.append((result["centroids"], result["counts"]))
    for centroids, counts in results:
        np.testing.assert_array_equal(centroids, results[0][0])
        np.testing.assert_array_equal(counts, results[0][1])

    report = json.loads(running.report.read_text("utf-8"))
    assert report["arrays_at_the_server"] == []
    assert (report["trust"], report["keys"]) == ("oblivious-server", "file")
    assert (report["n_clients"], report["n_rounds"]) == (3, ROUNDS)
    assert report["answers"] == [3] * ROUNDS
    assert report["dropped"] == []
    assert report["epsilon"] == pytest.approx(1)
    # Of whatever the SuperLink kept, nothing holds a centroid's bytes or digits.
    link = tmp_path / "link"
    kept = [running.report, *running.processes.logs.glob("*.log"), *link.glob("superlink.db*")]
    assert link / "superlink.db" in kept
    for path in kept:
        content = path.read_bytes()
        for value in results[0][0].ravel():
            assert np.float64(value).tobytes() not in content
            assert repr(float(value)).encode() not in content

    records = np.vstack(partitions)
    solution = KMeans(3, n_init=5, random_state=0).fit(records).cluster_centers_
    strategy = FastLloyd(
        3,
        Box([-14.0] * 2, [14.0] * 2),
        PrivacyBudget(epsilon=1.0),
        n_records=30_000,
        n_clients=3,
        n_rounds=ROUNDS,
    )
    simulated = simulate(strategy, partitions, engine="in-process").centroids
    assert matched_centroid_error(simulated, solution) < CLOSE
    assert matched_centroid_error(results[0][0], solution) < CLOSE


@pytest.mark.deployment
def test_a_process_that_ends_ends_the_deployment(loopback, tmp_path):
    processes = loopback.Processes(tmp_path)
    try:
        processes.start("superlink", ["flower-superlink", "--no-such-option"])
        with pytest.raises(loopback.DeploymentError, match="superlink ended with 2"):
            processes.wait_for_port(loopback.free_ports(1)[0], 60)
    finally:
        processes.stop()
    assert processes.left() == []


@pytest.mark.deployment
def test_what_takes_too_long_is_stopped(loopback, tmp_path):
    processes = loopback.Processes(tmp_path)
    try:
        processes.start("sleeper", ["sleep", "600"])
        with pytest.raises(loopback.DeploymentError, match="took too long"):
            processes.wait("sleeper", 0)
    finally:
        processes.stop()
    assert processes.left() == []


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
        "bounds": BOUNDS,
        "group-key": "/srv/node/group.key",
        "state": "/srv/node/state",
        "result": "/srv/result.npz",
    }
    link = ("link", "0.0.0.0", 8000)  # noqa: S104
    assert loopback.superlink_command(*link, None) in documented
    assert loopback.superlink_command(*link, "0.0.0.0:9092") in documented
    for address in ("link.example.org:8000", "link.example.org:9092"):
        assert loopback.supernode_command("node", address, 9094, settings) in documented
    assert loopback.register_command("hospital-a.pub") in documented
    assert loopback.status_command() in documented
    config = {"n-clients": 3, "report": "/srv/report.json"}
    assert loopback.run_command("simulations/deployment/app", config) in documented
    assert ["python", "simulations/deployment/loopback.py"] in documented
    text = loopback.flower_config("link.example.org:8000", "/srv/ca.crt")
    assert text in re.sub(r"^ +", "", PAGE, flags=re.MULTILINE)
    assert tomllib.loads(text)["superlink"]["deployment"]["address"] == "link.example.org:8000"


def test_the_pages_credentials_are_made(credentials, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [
        words[2:]
        for words in commands()
        if words[1:2] == [str(FOLDER.relative_to(ROOT)) + "/credentials.py"]
    ]
    assert [words[0] for words in made] == ["link", "node", "group"]
    for words in made:
        credentials.main(words)

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
    secret = [
        Path("link/ca.key"),
        Path("link/server.key"),
        Path("node/node.key"),
        Path("group.key"),
    ]
    assert [mode(path) for path in secret] == [0o600] * 4
    assert len(ClientPolicy(group_key_file="group.key").read_group_key()) == 32


def test_keys_are_never_overwritten(credentials, tmp_path, capsys):
    credentials.make_group(tmp_path / "group.key")
    before = (tmp_path / "group.key").read_bytes()
    with pytest.raises(SystemExit):
        credentials.main(["group", str(tmp_path / "group.key")])
    assert "it was left as it is" in capsys.readouterr().err
    assert (tmp_path / "group.key").read_bytes() == before


# --------------------------------------------------------------------------- the app


def test_the_app_installs_nothing_and_fits_its_example(loopback):
    config = tomllib.loads((FOLDER / "app" / "pyproject.toml").read_text("utf-8"))
    assert config["project"]["dependencies"] == []
    values = config["tool"]["flwr"]["app"]["config"]
    assert values["bounds"] == BOUNDS
    assert values["n-records"] == sum(map(len, loopback.example_partitions()))


def node_context(config):
    return Context(1, 1, config, RecordDict(), {})


def test_a_node_accepts_what_its_operator_said(monkeypatch):
    app = load(monkeypatch, FOLDER / "app", "client_app")
    config = {"bounds": "0:1,-2:2.5", "group-key": "/srv/group.key", "state": "/srv/state"}
    policy = app.policy_of(node_context(config))
    assert policy.domain == Box([0, -2], [1, 2.5])
    assert (policy.trusts, policy.group_key_file) == (("oblivious-server",), "/srv/group.key")
    assert (policy.max_epsilon, policy.min_clients) == (1.0, 3)
    assert policy.state_dir == "/srv/state"
    assert not policy.in_memory
    for missing in config:
        rest = {key: value for key, value in config.items() if key != missing}
        assert app.policy_of(node_context(rest)) == ClientPolicy()


def run_in_process(monkeypatch, loopback, credentials, tmp_path, **changed):
    """Run the app's two sides in this process; ``changed`` settings are those of node 2."""
    credentials.make_group(tmp_path / "group.key")
    partitions = loopback.example_partitions()
    app = load(monkeypatch, FOLDER / "app", "client_app").app
    server = load(monkeypatch, FOLDER / "app", "server_app").app
    run_config = tomllib.loads((FOLDER / "app" / "pyproject.toml").read_text("utf-8"))
    run_config = run_config["tool"]["flwr"]["app"]["config"]
    run_config |= {"n-rounds": 2, "timeout": 5, "report": str(tmp_path / "report.json")}

    def client(message, context):
        node = context.node_config["partition-id"]
        np.save(tmp_path / f"records{node}.npy", partitions[node])
        context.node_config |= {
            "data": str(tmp_path / f"records{node}.npy"),
            "bounds": BOUNDS,
            "group-key": str(tmp_path / "group.key"),
            "state": str(tmp_path / f"state{node}"),
            "result": str(tmp_path / f"result{node}.npz"),
        }
        if node == 2:
            context.node_config |= changed
        return app(message, context)

    with task_identity():
        server(InProcessGrid(client, 3), Context(1, 1, {}, RecordDict(), run_config))
    return sorted(path.name for path in tmp_path.glob("result*"))


def test_the_apps_two_sides_make_a_run(monkeypatch, loopback, credentials, tmp_path):
    names = run_in_process(monkeypatch, loopback, credentials, tmp_path)
    assert names == ["result0.npz", "result1.npz", "result2.npz"]
    assert json.loads((tmp_path / "report.json").read_text())["arrays_at_the_server"] == []


def test_a_node_with_other_bounds_refuses(monkeypatch, loopback, credentials, tmp_path):
    with pytest.raises(TooFewClientsError, match="policy"):
        run_in_process(monkeypatch, loopback, credentials, tmp_path, bounds="-14:14,-15:14")
    assert not list(tmp_path.glob("result*"))


def test_a_node_with_an_open_key_file_refuses(monkeypatch, loopback, credentials, tmp_path):
    (tmp_path / "open.key").write_bytes(bytes(32))
    (tmp_path / "open.key").chmod(0o644)
    key = str(tmp_path / "open.key")
    with pytest.raises(TooFewClientsError):
        run_in_process(monkeypatch, loopback, credentials, tmp_path, **{"group-key": key})
    assert not list(tmp_path.glob("result*"))
