"""Faults of vertical runs on loopback: late and foreign nodes, full disks, slow uploads."""

import json
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import test_vertical
from checks import one_result
from disks import SmallDisk
from loopback import (
    HOST,
    hooked_app,
    policy_text,
    register_command,
    set_up_node,
    supernode_command,
)
from processes import free_ports
from relay import Relay
from stage import LET_IN, Stage
from test_vertical import (
    APP,
    BOUNDS,
    CENTERS,
    DELTA,
    POLICY,
    begin_and_wait_for_round_1,
    check_charges,
    columns_of,
    print_row,
    settings,
)

from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.messages import decode_reply
from flower_kmeans.protocol.wire import encode
from flower_kmeans.vertical.protocol.messages import Joined

HOOKS = Path(__file__).resolve().parent / "vertical_fault_app"
WIDTHS = (2, 1)
TIMEOUT = 120  # seconds of a round trip
LATE = 150.0  # seconds after which no request of the first round trip lives
SLOW = 2_000  # bytes per second
NODE_DISK = 1_000_000  # bytes
SERVER_DISK = 200_000_000

pytestmark = pytest.mark.deployment
needs_mounts = pytest.mark.skipif(
    not SmallDisk.can_be_made(), reason="needs root on Linux, for a small file system"
)


def set_up(directory, **more):
    """Return the deployment of two parties, whose nodes have hooks."""
    for party in range(2):
        (directory / f"hooks{party}").mkdir()
    app = hooked_app(directory / "app", HOOKS, app=APP)
    files = {"hooks": str(directory / "hooks{node}")}
    return test_vertical.set_up(directory, WIDTHS, app=app, files=files, **more)


def config_of(**changes):
    """Return the settings of a run."""
    return settings(TIMEOUT, radius=False, **changes)


def admit(running, name, said=None):
    """Admit a node that is on no roster, and start it; it may always say the same."""
    node = running.directory / name
    hooks = running.directory / f"hooks-{name}"
    hooks.mkdir()
    if said is not None:
        (hooks / "say").write_bytes(said)
    policy = policy_text(BOUNDS[:2], {**POLICY, "member_key_file": None})
    files = {"ids": str(running.directory / "ids0.txt"), "hooks": str(hooks)}
    config = set_up_node(node, columns_of(WIDTHS)[0], policy, files)
    running.processes.run(f"register-{name}", register_command(node / "node.pub"), 60)
    (port,) = free_ports(1)
    process = f"supernode-{name}"
    running.processes.start(
        process, supernode_command(node, running.fleet, port, config)
    )
    running.processes.wait_until(
        lambda: LET_IN in running.processes.log(process), 120, f"Node {name}"
    )


def wait_for_end(running, name="run"):
    """Wait for the end of a run, however it ends."""
    running.processes.wait_until(
        lambda: running.processes.ended(name), 1_500, f"The end of {name}"
    )


def run_again(running, config, name):
    """Give the command of a run again, and wait for its end."""
    running.processes.start(name, running.command(config))
    wait_for_end(running, name)


def check_completed(running, directory):
    """Check the result and the charges of a run that completed."""
    assert running.processes.left() == []
    centroids, _ = one_result(running)
    assert matched_centroid_error(centroids, CENTERS[:, : sum(WIDTHS)]) < 0.01
    check_charges(directory)


def incidents(running):
    """Return the report's incidents."""
    return json.loads(running.report.read_text("utf-8"))["incidents"]


def test_a_party_that_returns_after_its_request_expired_finishes_the_run(tmp_path):
    with set_up(tmp_path) as running:
        processes, begun = running.processes, time.monotonic()
        begin_and_wait_for_round_1(running, config_of())
        processes.kill("supernode1")
        stage = Stage(running, TIMEOUT)
        stage.sleep(LATE)
        processes.keep("supernode1")
        processes.restart("supernode1")
        wait_for_end(running)
        print_row("party 1 late", running, begun)
        assert running.statuses()[-1] == "finished:completed", processes.log("run")
    check_completed(running, tmp_path)


def test_strangers_do_not_disturb_a_run(tmp_path):
    with set_up(tmp_path) as running:
        admit(running, "keyless")
        admit(running, "junk", token(100))
        begun = time.monotonic()
        running.run(config_of(), timeout=1_500)
        print_row("strangers", running, begun)
        named = incidents(running)
    check_completed(running, tmp_path)
    assert len({each["node_id"] for each in named}) == 2


def test_a_claim_of_a_partys_slot_by_others_is_refused(tmp_path):
    with set_up(tmp_path) as running:
        owner = tmp_path / "hooks1"
        (owner / "hold").touch()
        begun = time.monotonic()
        running.processes.start("run", running.command(config_of()))
        running.processes.wait_until((owner / "enrolled").exists, 300, "The claim")
        copied = (owner / "enrolled").read_bytes()
        claim = decode_reply(copied)
        assert isinstance(claim, Joined)
        made_up = msgspec.structs.replace(claim, claim=token(len(claim.claim)))
        for name, said in (("copier", copied), ("forger", encode(made_up))):
            admit(running, name, said)
            hooks = tmp_path / f"hooks-{name}"
            running.processes.wait_until((hooks / "asked").exists, 120, name)
        Stage(running, TIMEOUT).sleep(4)  # both must have arrived
        (owner / "go").touch()
        wait_for_end(running)
        print_row("squatters", running, begun)
        assert running.statuses()[-1] == "finished:completed"
        named = incidents(running)
    check_completed(running, tmp_path)
    assert len({each["node_id"] for each in named}) == 2


def test_a_slow_upload_is_waited_for(tmp_path):
    relays = []

    def route(node, address):
        if node != 1:
            return address
        relays.append(Relay(address))
        return relays[-1].address

    try:
        with set_up(tmp_path, route=route) as running:
            begun = time.monotonic()
            begin_and_wait_for_round_1(running, config_of())
            relays[0].throttle(SLOW)
            Stage(running, TIMEOUT).sleep(LATE)
            running.processes.keep("supernode1")
            relays[0].heal()
            wait_for_end(running)
            print_row("slow upload", running, begun)
            assert running.statuses()[-1] == "finished:completed"
    finally:
        for relay in relays:
            relay.close()
    check_completed(running, tmp_path)


def test_a_superlink_that_is_restarted_lets_the_run_go_on(tmp_path):
    config = config_of(resume=str(tmp_path / "kept"))
    with set_up(tmp_path) as running:
        begun = time.monotonic()
        begin_and_wait_for_round_1(running, config)
        Stage(running, TIMEOUT).kill_superlink()
        running.processes.keep("supernode0", "supernode1")
        time.sleep(3)
        running.processes.restart("superlink")
        port = int(running.address.rpartition(":")[2])
        running.processes.wait_for_port(HOST, port, 60)
        wait_for_end(running)
        print_row("SuperLink restarted", running, begun)
        resumed = time.monotonic()
        run_again(running, config, "run2")
        print_row("and resumed", running, resumed)
        assert running.statuses()[-1] == "finished:completed"
    check_completed(running, tmp_path)


def test_two_runs_at_once_both_complete(tmp_path):
    with set_up(tmp_path) as running:
        begun = time.monotonic()
        for name in ("run", "run2"):
            report = str(tmp_path / f"{name}.json")
            config = config_of(report=report)
            running.processes.start(name, running.command(config))
        for name in ("run", "run2"):
            wait_for_end(running, name)
        print_row("two runs at once", running, begun)
        assert running.statuses() == ["finished:completed"] * 2
    centroids, _ = one_result(running)
    assert matched_centroid_error(centroids, CENTERS[:, : sum(WIDTHS)]) < 0.01
    spent = [spent_epsilon(tmp_path / f"node{i}" / "state", DELTA) for i in range(2)]
    np.testing.assert_allclose(spent, 1.45, atol=0.01)


@needs_mounts
def test_a_partys_full_disk_ends_the_run_before_anybody_is_charged(tmp_path):
    state = tmp_path / "node1" / "state"
    with set_up(tmp_path) as running, SmallDisk(state, NODE_DISK) as disk:
        disk.fill()
        begun = time.monotonic()
        running.processes.start("run", running.command(config_of()))
        wait_for_end(running)
        print_row("party 1's disk is full", running, begun)
        assert running.statuses()[-1] == "finished:failed"
        assert "disk is full" in running.processes.log("supernode1")
    assert "privacy ledger" in running.processes.log("run")
    assert not any(path.exists() for path in running.results)
    assert spent_epsilon(tmp_path / "node0" / "state", DELTA) in (None, 0)


@needs_mounts
def test_a_servers_full_disk_is_named_and_the_run_goes_on_with_room(tmp_path):
    with SmallDisk(tmp_path / "disk", SERVER_DISK) as disk:
        config = config_of(resume=str(tmp_path / "disk" / "kept"))
        with set_up(tmp_path) as running:
            disk.fill()
            begun = time.monotonic()
            running.processes.start("run0", running.command(config))
            wait_for_end(running, "run0")
            assert "disk is full" in running.processes.log("run0")
            disk.make_room()
            begin_and_wait_for_round_1(running, config)
            disk.fill()
            wait_for_end(running)
            print_row("server's disk is full", running, begun)
            assert "disk is full" in running.processes.log("run")
            disk.make_room()
            resumed = time.monotonic()
            run_again(running, config, "run2")
            print_row("and resumed", running, resumed)
            assert running.statuses()[-1] == "finished:completed"
        check_completed(running, tmp_path)
