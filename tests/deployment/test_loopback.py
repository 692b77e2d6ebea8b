"""docs/deploy.md on loopback: real processes, certificates and keys, and the installed Flower."""

import ipaddress
import json
import re
import shlex
import stat
import tomllib
from pathlib import Path

import loopback
import numpy as np
import pytest
from checks import (
    BLIND,
    PAGE,
    ROUNDS,
    check_blind_outcome,
    check_shared_outcome,
    leak_complaints,
    one_result,
    run_once,
    server_files,
    server_points,
)
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from scripts import load_script
from typer.testing import CliRunner

from flower_kmeans import ClientPolicy
from flower_kmeans.cli.app import app as flower_kmeans
from flower_kmeans.protocol.roster import Roster, read_identity


@pytest.fixture
def credentials(monkeypatch):
    return load_script(monkeypatch, "credentials", loopback.CREDENTIALS.parent)


# -------------------------------------------------------------------------- a whole run


@pytest.mark.claim("deploy", "pages-defaults-on-one")
@pytest.mark.deployment
def test_the_pages_defaults_make_a_run(tmp_path):
    partitions = loopback.example_partitions()
    check_shared_outcome(
        run_once(tmp_path, partitions), partitions, "SynopsisKMeans", 8
    )


@pytest.mark.claim("reading-a-report", "page-server-saw-no")
@pytest.mark.deployment
def test_three_nodes_learn_the_same_and_the_server_nothing(tmp_path):
    partitions = loopback.example_partitions()
    policy = {"trusts": [BLIND["trust"]]}
    check_blind_outcome(run_once(tmp_path, partitions, BLIND, policy), partitions)


@pytest.mark.claim("reading-a-report", "page-server-saw-no")
@pytest.mark.deployment
def test_four_nodes_and_a_server_that_sees_no_sum(tmp_path):
    """``clients-only`` with pinned keys: every client adds a noise share, and clients open."""
    partitions = loopback.example_partitions(4)
    config, policy = {**BLIND, "trust": "clients-only"}, {"trusts": ["clients-only"]}
    check_blind_outcome(
        run_once(tmp_path, partitions, config, policy), partitions, "clients-only"
    )


@pytest.mark.claim("deploy", "another-strategy-trust-model")
@pytest.mark.deployment
def test_nodes_and_server_learn_the_same_where_it_asks(tmp_path):
    partitions = loopback.example_partitions()
    config = {"strategy": "pe-means", "n-rounds": 4}
    check_shared_outcome(
        run_shared(tmp_path, partitions, config), partitions, "PEMeans", 4
    )


@pytest.mark.claim("deploy", "nodes-see-projections-points")
@pytest.mark.deployment
def test_the_server_starts_feddp_from_points_that_stay_with_it(tmp_path):
    partitions, points = loopback.example_partitions(), server_points()
    np.save(tmp_path / "server.npy", points)
    config = {"strategy": "feddp", "server-data": str(tmp_path / "server.npy")}
    config["n-rounds"] = ROUNDS
    running = run_shared(tmp_path, partitions, config)
    report = check_shared_outcome(running, partitions, "FedDPKMeans", 3 + ROUNDS)
    assert report["warnings"] == []
    assert leak_complaints(server_files(running), [points]) == []


def run_shared(directory, partitions, config):
    """Run an algorithm that the nodes' policies name, under the default trust model."""
    policy = {"max_epsilon": 1.5, "algorithms": [config["strategy"]]}
    return run_once(directory, partitions, config, policy)


WIDE = """tighten = 0.1

[[columns]]
kind = "number"
name = "x0"
lower = -1400
upper = 1400

[[columns]]
kind = "number"
name = "x1"
lower = -1400
upper = 1400
"""


@pytest.mark.claim("tables/deployments", "persons-within-ranges")
@pytest.mark.deployment
def test_persons_within_ranges_make_a_run(tmp_path):
    """Each person has several records, and the bounds are 100 times too wide."""
    rng = np.random.default_rng(9)
    domain = tmp_path / "domain.toml"
    domain.write_text(WIDE, "utf-8")
    centers = np.array([[-6.0, -6.0], [6.0, -7.0], [1.0, 7.0]])
    partitions = []
    for node in range(3):
        n_records = rng.integers(1, 6, 3_000)
        persons = np.repeat(np.arange(3_000), n_records)
        records = centers[persons % 3] + rng.normal(size=(len(persons), 2))
        partitions.append(records)
        own = tmp_path / f"own{node}"
        own.mkdir(mode=0o700)
        rows = np.column_stack([records, persons])
        header = "x0,x1,patient"
        np.savetxt(own / "visits.csv", rows, "%.9g", ",", header=header, comments="")
        (own / "source.toml").write_text(
            'data = "visits.csv"\nperson = "patient"\n', "utf-8"
        )
        (own / "source.toml").chmod(0o600)
    config = {
        "domain": str(domain),
        "unit": "person",
        "n-persons": 9_000,
        "quality": True,
    }
    policy = {"units": ["person"], "domain": str(domain), "algorithms": ["synopsis"]}
    settings = {
        "data": str(tmp_path / "own{node}" / "source.toml"),
        "domain": str(domain),
    }
    running = run_once(tmp_path / "run", partitions, config, policy, settings)
    report = json.loads(running.report.read_text("utf-8"))
    assert (report["unit"], report["n_persons"]) == ("person", 9_000)
    assert report["dropped"] == []
    found, counts = one_result(running)
    assert np.abs(counts - 3_000).max() < 600
    for center in centers:
        assert np.linalg.norm(found - center, axis=1).min() < 0.5
    for each in report["ranges"]:
        assert each["upper"] - each["lower"] < 200
    released = report["silhouette"]
    assert 0.7 < released["low"] < released["value"] < released["high"] < 1
    value_and_interval = [released[name] for name in ("value", "low", "high")]
    for path in running.results:
        with np.load(path) as saved:
            np.testing.assert_array_equal(saved["silhouette"], value_and_interval)


@pytest.mark.deployment
def test_a_process_that_ends_or_takes_too_long_ends_the_deployment(tmp_path):
    with loopback.Processes(tmp_path) as processes:
        processes.start("sleeper", ["sleep", "600"])
        with pytest.raises(loopback.DeploymentError, match="took too long"):
            processes.wait("sleeper", 0)
        processes.start("superlink", ["flower-superlink", "--no-such-option"])
        with pytest.raises(loopback.DeploymentError, match="superlink ended with 2"):
            processes.wait_for_port(loopback.HOST, loopback.free_ports(1)[0], 60)
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


@pytest.mark.claim("tables/deployments", "last-row-run-pages")
def test_the_pages_commands_are_those_that_run():
    documented = commands()
    settings = {
        "data": "/srv/records.csv",
        "policy-file": "/srv/node/policy.toml",
        "result": "/srv/result.npz",
    }
    link = ("link", "0.0.0.0", 8000)  # noqa: S104
    command = loopback.superlink_command(*link, None)
    assert command in documented
    more = loopback.superlink_command(*link, "0.0.0.0:9092")[len(command) :]
    assert f"With flwr 1.39 add `{' '.join(more)}`" in PAGE
    address = "link.example.org:8000"
    assert loopback.supernode_command("node", address, 9094, settings) in documented
    assert loopback.register_command("hospital-a.pub") in documented
    assert loopback.status_command() in documented
    for more in ((), ("link.example.org:8000", "node/ca.crt")):
        files = ("/srv/node/policy.toml", "/srv/records.csv")
        assert loopback.check_command(*files, *more) in documented
    config = {
        "n-clients": 3,
        "report": "/srv/report.json",
        "roster": "/srv/roster.toml",
    }
    assert loopback.run_command("simulations/deployment/app", config) in documented
    for more in (
        {"trust": "clients-only"},
        {"strategy": "fastlloyd", "trust": "oblivious-server"},
        {"strategy": "feddp", "server-data": "/srv/server.csv"},
    ):
        assert f"| `{loopback.run_command('', more)[-1]}` |" in PAGE
    assert ["python", "tests/deployment/loopback.py"] in documented
    page = re.sub(r"^ +", "", PAGE, flags=re.MULTILINE)
    assert loopback.policy_text(loopback.BOUNDS) in page
    text = loopback.flower_config("link.example.org:8000", "/srv/ca.crt")
    assert text in page
    assert (
        tomllib.loads(text)["superlink"]["deployment"]["address"]
        == "link.example.org:8000"
    )


@pytest.mark.claim("tables/deployments", "last-row-run-pages")
def test_the_pages_credentials_are_made(credentials, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = [
        words[2:]
        for words in commands()
        if words[1:2] == [loopback.CREDENTIALS.relative_to(loopback.ROOT).as_posix()]
    ]
    assert [words[0] for words in made] == ["link", "node"]
    for words in made:
        credentials.main(words)
    written = ["link/ca.crt", "link/server.pem", "link/ca.key", "link/server.key"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in [*written, "node/node.pub", "node/node.key"])
    keygen = [
        words[1:] for words in commands() if words[:2] == ["flower-kmeans", "keygen"]
    ]
    own = ["keygen", "a", "--output", "member"]
    assert keygen == [
        own,
        ["keygen", "--check", "member/roster.toml", "--key", "member/a.key"],
    ]
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
        assert (
            read_identity("member/roster.toml", f"from-{name}/{name}.key").slot == place
        )
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
    assert private.public_key() == load_ssh_public_key(
        Path("node/node.pub").read_bytes()
    )
    names = ["link/ca.key", "link/server.key", "node/node.key", "member/a.key"]
    modes = {stat.S_IMODE(Path(name).stat().st_mode) for name in names}
    assert modes == {0o600}

    before = Path("node/node.key").read_bytes()
    with pytest.raises(SystemExit):  # keys are never overwritten
        credentials.main(["node", "node"])
    assert "it was left as it is" in capsys.readouterr().err
    assert Path("node/node.key").read_bytes() == before
