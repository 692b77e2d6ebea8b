"""docs/deploy.md between machines with addresses of their own: network namespaces."""

import itertools
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import namespaces
import pytest
from checks import PAGE, check_shared_outcome
from loopback import ROOT

ANYWHERE = "0.0.0.0"  # noqa: S104
SPARE = 12345  # a port that no firewall of these tests lets through, unless it says so


@pytest.fixture
def network():
    """Return the function that makes a network, or skip with what stands in its way."""

    def make(machines, condition="plain"):
        if reason := namespaces.obstacle(condition):
            pytest.skip(reason)
        return namespaces.network(machines, condition)

    yield make
    assert left() == []


def left():
    """Return the namespaces that this process made and did not remove."""
    return [path.name for path in Path("/run/netns").glob(f"{namespaces._PREFIX}*")]


@contextmanager
def watched(machines):
    """Collect, until the end, at which ports each machine is ever seen to listen to others."""
    seen = {name: set() for name in machines.machines}
    done = threading.Event()

    def watch():
        while not done.wait(1.0):
            for name, ports in seen.items():
                ports |= machines.open_ports(name)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


# -------------------------------------------------------------------------- a whole run


@pytest.mark.claim("tables/deployments", "test-between-network-namespaces")
@pytest.mark.deployment
@pytest.mark.parametrize("condition", ["plain", "netem", "relay"])
def test_three_machines_and_the_server_learn_the_same(network, tmp_path, condition):
    partitions = namespaces.example_partitions()
    machines = namespaces.machines_of(len(partitions))
    with (
        network(machines, condition) as net,
        namespaces.deployed(net, tmp_path, partitions) as running,
        watched(net) as ports,
    ):
        running.run({"timeout": 400}, timeout=1800)
        sent_again = sum(net.retransmitted(name) for name in net.machines)
    assert running.processes.left() == []
    check_shared_outcome(running, partitions, "SynopsisKMeans", 8)
    # What the page's table lists is all that listens: nothing at all on nodes.
    used = [
        machine
        for machine in machines
        if machine.name != "relay" or condition == "relay"
    ]
    assert {name for name, found in ports.items() if found} <= {
        machine.name for machine in used
    }
    for machine in used:
        assert ports[machine.name] == set(machine.serves)
    if condition != "plain":
        assert sent_again > 0  # packets were lost


# -------------------------------------------------------------------------- the network


def rows_of_ports(grpc):
    """Return the page's (from, to, port) of one version of Flower."""
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| (\d+)/tcp \| (.+?) \|$", PAGE, re.MULTILINE
    )
    other = "flwr 1.40" if grpc else "flwr 1.39"
    return {(a, b, int(port)) for a, b, port, use in rows if not use.startswith(other)}


@pytest.mark.claim("deploy", "firewalls-table")
@pytest.mark.parametrize("grpc", [False, True])
def test_firewalls_are_the_pages_table(monkeypatch, grpc):
    monkeypatch.setattr(namespaces, "fleet_is_grpc", lambda: grpc)
    link, operator, relay, *nodes = namespaces.machines_of(3)
    between = {row for row in rows_of_ports(grpc) if "same machine" not in row[1]}
    assert {(row[0], row[2]) for row in between if row[1] == "SuperLink"} == {
        *(("nodes", port) for node in nodes for port in node.reaches),
        *(
            ("operator who registers nodes and submits runs", port)
            for port in operator.reaches
        ),
    }
    assert {row[1] for row in between} == {"SuperLink"}
    assert set(link.serves) == {row[2] for row in between}
    assert (link.reaches, operator.serves) == ((), ())
    assert [node.serves for node in nodes] == [()] * 3
    assert relay.serves == relay.reaches == nodes[0].reaches
    assert (
        "node's helper",
        "node, same machine",
        namespaces.NODE_PORT,
    ) in rows_of_ports(grpc)


@pytest.mark.claim("tables/deployments", "test-between-network-namespaces")
def test_bad_networks_are_as_bad_as_on_the_page():
    late, jitter = namespaces.DELAY_MS, namespaces.JITTER_MS
    text = (ROOT / "docs" / "tables" / "deployments.md").read_text("utf-8")
    page = {
        row.split("`")[1]: row
        for row in re.findall(r"^\| `(?:relay|netem)` .*$", text, re.M)
    }
    assert {"plain", *page} == set(namespaces.CONDITIONS)
    assert f"{late} to {late + jitter} ms late" in page["relay"]
    assert f"{late} ms late, give or take {jitter}" in page["netem"]
    for row in page.values():
        assert f"{100 * namespaces.LOSS:g} %" in row


LISTEN = """
import socket, sys
held = [socket.create_server((sys.argv[1], int(port))) for port in sys.argv[2:]]
print("ready", flush=True)
sys.stdin.read()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)
except (PermissionError, TimeoutError):
    sys.exit(3)
"""


@contextmanager
def listening(net, name, host, *ports):
    command = [sys.executable, "-c", LISTEN, host, *map(str, ports)]
    with subprocess.Popen(
        net.inside(name, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@pytest.mark.claim("deploy", "firewalls-table")
@pytest.mark.thorough
def test_machines_reach_each_other_at_the_ports_of_their_firewalls_only(network):
    link = namespaces.Machine("link", "10.99.0.1", serves=(8000,))
    node = namespaces.Machine("node0", "10.99.0.10", reaches=(8000,))
    # It may go anywhere, so what it does not reach is closed by the other side.
    other = namespaces.Machine("other", "10.99.0.99", (8000, SPARE), (8000, SPARE))
    machines = (link, node, other)
    reached = set()
    with network(machines) as net:
        ports = (8000, SPARE)
        with (
            listening(net, "link", ANYWHERE, *ports),
            listening(net, "node0", ANYWHERE, *ports),
            listening(net, "other", ANYWHERE, *ports),
        ):
            for a, b, port in itertools.product(machines, machines, ports):
                words = [sys.executable, "-c", CONNECT, b.address, str(port)]
                code = subprocess.run(net.inside(a.name, words), check=False).returncode
                assert code in (0, 3)
                if code == 0:
                    reached.add((a.name, b.name, port))
    within = {
        (machine.name, machine.name, port) for machine in machines for port in ports
    }
    between = {
        ("node0", "link", 8000),
        ("node0", "other", 8000),
        ("other", "link", 8000),
    }
    assert reached == within | between


def test_ports_are_open_if_others_can_reach_them(network):
    machine = namespaces.Machine("link", "10.99.0.1")
    with (
        network([machine]) as net,
        listening(net, "link", "127.0.0.1", 8000),
        listening(net, "link", machine.address, 8001),
        listening(net, "link", ANYWHERE, 8002),
    ):
        assert net.open_ports("link") == {8001, 8002}


def test_what_goes_wrong_leaves_no_machine_behind(network):
    good, bad = (
        namespaces.Machine(n, f"10.99.0.{i}") for n, i in (("good", 1), ("bad", 256))
    )
    with (
        pytest.raises(namespaces.DeploymentError, match=r"10\.99\.0\.256"),
        network([good, bad]),
    ):
        pytest.fail("there is no such address")
    assert left() == []

    def interrupted():
        with network([good]):
            assert len(left()) == 2  # the machine and the switch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert left() == []


# ------------------------------------------------------------------- where it cannot be


@pytest.mark.parametrize(
    ("condition", "missing", "user", "expected"),
    [
        ("plain", "ip", 0, "no command ip:"),
        ("plain", "ss", 0, "no command ss:"),
        ("plain", "tc", 0, "no command tc:"),
        ("plain", None, 1000, "root"),
        ("netem", None, 0, "qdisc kind is unknown"),  # a kernel that lacks it
        ("plain", None, 0, None),
        ("relay", None, 0, None),
    ],
)
def test_obstacles_are_found_before_a_network_is_made(
    monkeypatch, condition, missing, user, expected
):
    def run(command, **options):
        code = int("netem" in command)
        said = "Error: Specified qdisc kind is unknown." if code else ""
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(
        namespaces.shutil, "which", lambda tool: None if tool == missing else tool
    )
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: user)
    monkeypatch.setattr(namespaces.subprocess, "run", run)
    found = namespaces.obstacle(condition)
    assert found is None if expected is None else expected in found
