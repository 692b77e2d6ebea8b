"""Faults, really produced: what is killed, cut or delayed while a deployment works, and its checks.

One SuperLink and its SuperNodes are set up anew for every fault: three under
oblivious-server, five under clients-only, of which four can add. The transport is that
of the installed Flower.
"""

import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import checks
import msgspec
import numpy as np
from loopback import HOST, deployment, example_partitions, fleet_is_grpc, hooked_app
from numpy.typing import NDArray
from processes import DeploymentError
from relay import Relay
from stage import LET_IN, ROUNDS, VICTIM, VICTIM_NODE, WITNESS, Stage, hold, kill_server

from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.messages import Enrolled, decode_reply
from flower_kmeans.protocol.wire import encode

HOOKS = Path(__file__).resolve().parent / "fault_app"
SETTINGS = "replay = 0\nttl = 0.0\n"  # of the hooked app
# Seconds; an answer takes some 4 where nothing else runs, a return up to a minute.
TIMEOUT = float(os.environ.get("FAULT_TIMEOUT", "60"))
# Nodes of a deployment, and the fewest that a round needs: while one is away and one
# waits, fewer.
TRUSTS = {"oblivious-server": (3, 2), "clients-only": (5, 4)}
COMPLETED, FAILED = "finished:completed", "finished:failed"
SECRET = "a record says 271828.182845"  # in the text of a client's exception  # noqa: S105
_TTL_MARGIN = 10.0  # of the strategy: its messages live so much longer than its timeout
_LONG = 43_200.0  # Flower's own: 12 hours
# seconds for which a node that is needed is away; Flower lets it in after a minute
_DEAD = 30.0
_PATIENCE = 600.0  # the strategy's
_STALE, _LEDGER = 4, 10  # codes of refusals
# bytes per second of an upload, whose head alone has some thousand
_FAST, _SLOW = 2_000, 40
_NODE_DISK, _SERVER_DISK = 1_000_000, 400_000  # bytes

# --------------------------------------------------------------------------- the faults


def undisturbed(stage: Stage) -> None:
    """Disturb nothing."""
    stage.begin_run()
    stage.end_run()


def client_raises(stage: Stage) -> None:
    """Let the code that reads the records raise, with a record in the error's text."""
    stage.begin_run([{"action": "raise", "t": 2, "text": SECRET}])
    stage.end_run()


def client_killed(stage: Stage) -> None:
    """Kill the client's process after it has computed its answer, before it has sent it."""
    os.kill(stage.begin_and_hold(), signal.SIGKILL)
    stage.end_run()


def slow_client(stage: Stage) -> None:
    """Let a client answer when its round is over."""
    late = {"action": "sleep", "t": 2, "until": stage.timeout + 3}
    stage.begin_run([late], hold(ROUNDS))
    _finish_with_all(stage)


def supernode_killed(stage: Stage) -> None:
    """Kill a SuperNode in the middle of an answer; start it again until it is let in."""
    stage.begin_and_hold(hold(3, ROUNDS))
    stage.processes.kill(VICTIM_NODE)
    killed = time.time()
    stage.restart_victim()
    _until_back(stage, killed)


def supernode_needed(stage: Stage) -> None:
    """Kill a SuperNode without which no round can end, in the middle of an answer; start it again.

    The round waits for it, and is charged once.
    """
    stage.begin_and_hold()
    stage.processes.kill(VICTIM_NODE)
    killed = time.time()
    stage.sleep(_DEAD)
    stage.restart_victim()

    def is_back() -> bool:
        return bool(stage.sent(VICTIM)[-1]["answered"] > killed)

    stage.wait_until(is_back, _PATIENCE, "The node's return")
    answered = stage.sent(VICTIM)[-1]["answered"]
    stage.notes.append(f"it answered again after {answered - killed:.0f} s")
    stage.end_run()


def supernode_killed_before_add(stage: Stage) -> None:
    """Kill a SuperNode after its answer has arrived, before it is asked to add; start it again.

    Where no committee adds, its answer alone must count.
    """
    # Round 3, which begins at once, must be open until the SuperLink lets the node in
    # again.
    stage.timeout = max(stage.timeout, 90.0)
    stage.begin_run(witness=hold(2, 3, ROUNDS))
    stage.wait_held(WITNESS, 2)
    stage.wait_answered(VICTIM, 2)
    stage.processes.kill(VICTIM_NODE)
    killed = time.time()
    stage.let_go(WITNESS, 2)
    stage.restart_victim()
    _until_back(stage, killed)


def supernode_late(stage: Stage, ttl: float = 0.0) -> None:
    """Kill a SuperNode, and start it when a repeated request has expired, or would have.

    In the last round it is sent the same request once more. With a ``ttl`` the request
    lives so long, in seconds, and is stale when it is delivered.
    """
    last = ROUNDS + 1
    config = {"n-rounds": last, "replay": 1, "ttl": ttl}
    stage.begin_and_hold(hold(3, ROUNDS, last), **config)
    stage.processes.kill(VICTIM_NODE)
    stage.wait_while_open(3, lambda: False)
    stage.let_go(WITNESS, 3)
    asked = stage.asked(WITNESS, 3)[0]["created"]
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN + 1)
    before = stage.processes.log(VICTIM_NODE).count(LET_IN)
    stage.restart_victim()

    def is_back() -> bool:  # and has received what waited for it
        if ttl:
            return len(stage.asked(VICTIM, 2)) > 1
        return stage.processes.log(VICTIM_NODE).count(LET_IN) > before

    # What a node is sent while it is away is withdrawn: it must be there before the
    # last round.
    stage.wait_while_open(ROUNDS, is_back)
    stage.sleep(4)  # a node asks for messages every 3 seconds
    stage.let_go(WITNESS, ROUNDS)
    _finish_with_all(stage, last)


def superlink_killed(stage: Stage, is_kept: bool = False) -> None:
    """Kill the SuperLink in the middle of a round, start it on its database, and run again.

    A run that is kept is resumed.
    """
    config = {"resume": str(stage.kept)} if is_kept else {}
    stage.begin_and_hold(**config)
    stage.kill_superlink()
    stage.processes.keep(*stage.nodes)
    stage.sleep(3)
    stage.processes.restart("superlink")
    stage.processes.wait_for_port(
        HOST, int(stage.running.address.rpartition(":")[2]), 60
    )
    stage.let_go(VICTIM, 2)
    stage.end_run()
    stage.begin_run(**config)
    stage.end_run()


def server_killed(stage: Stage) -> None:
    """Kill the server's process in the middle of a round of a run that is kept, and resume it."""
    stage.begin_and_hold(resume=str(stage.kept))
    kill_server(stage.processes)
    stage.let_go(VICTIM, 2)
    stage.end_run()
    stage.begin_run(resume=str(stage.kept))
    stage.end_run()


def two_runs(stage: Stage) -> None:
    """Make two runs at once on the same nodes."""
    stage.timeout *= 2  # each node answers both
    stage.begin_run()
    stage.begin_run()
    stage.end_run(1)
    stage.end_run(2)


def stranger(stage: Stage) -> None:
    """Admit two nodes without a member key; one refuses, and the other answers with junk."""
    stage.admit("keyless", [])
    stage.admit("junk", [{"action": "say", "t": 0, "reply": token(100).hex()}])
    stage.begin_run()
    stage.end_run()


def squatter(stage: Stage) -> None:
    """Let two admitted nodes claim the slot of a client before the client does.

    Both have its public key. One makes a claim up, the other has the client's own.
    """
    stage.timeout = max(stage.timeout, 120.0)  # for two nodes' start
    stage.begin_run(hold(0))
    stage.wait_held(VICTIM, 0)
    owner = bytes.fromhex(stage.sent(VICTIM)[0]["enrolled"])
    claim = decode_reply(owner)
    if not isinstance(claim, Enrolled):
        raise DeploymentError("The owner of the slot did not enrol.")
    forged = encode(msgspec.structs.replace(claim, claim=token(len(claim.claim))))
    for name, reply in (("forger", forged), ("copier", owner)):
        stage.admit(name, [{"action": "say", "t": 0, "reply": reply.hex()}])
    for name in stage.outsiders:
        stage.wait_until(
            lambda name=name: bool(stage.sent(name)), stage.timeout, f"{name}'s claim"
        )
    stage.sleep(4)  # both must have arrived
    stage.let_go(VICTIM, 0)
    stage.end_run()


def slow_upload(stage: Stage) -> None:
    """Make the upload of an answer so slow, once its head has arrived, that its round is over."""
    if stage.relay is None:
        raise DeploymentError("There is no relay.")
    stage.begin_and_hold(hold(3, ROUNDS))
    stage.relay.throttle(_FAST)
    stage.let_go(VICTIM, 2)
    stage.upload_begins()
    stage.relay.throttle(_SLOW)
    begun = time.time()
    asked = stage.asked(VICTIM, 2)[0]["created"]
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN)
    stage.processes.keep(*stage.nodes)
    stage.relay.heal()
    stage.notes.append(f"slow for {time.time() - begun:.0f} s")
    _until_back(stage, time.time())


def endless_upload(stage: Stage) -> None:
    """Stop the upload of an answer for good, once its head has arrived."""
    if stage.relay is None:
        raise DeploymentError("There is no relay.")
    stage.begin_and_hold()
    stage.relay.throttle(_FAST)
    stage.let_go(VICTIM, 2)
    stage.upload_begins()
    stage.relay.throttle(0)
    stage.end_run()


def node_disk_full(stage: Stage) -> None:
    """Let a node's ledger be on a disk that is full from the start."""
    disk = stage.small_disk(
        stage.running.directory / f"node{VICTIM}" / "state", _NODE_DISK
    )
    disk.fill()
    stage.begin_run()
    stage.end_run()


def node_disk_fills(stage: Stage) -> None:
    """Let the disk with a node's ledger be full for two rounds."""
    disk = stage.small_disk(
        stage.running.directory / f"node{VICTIM}" / "state", _NODE_DISK
    )
    stage.begin_run(hold(1), hold(3, ROUNDS))
    stage.wait_held(VICTIM, 1)
    disk.fill()
    stage.let_go(VICTIM, 1)
    stage.wait_held(WITNESS, 3)
    stage.wait_answered(VICTIM, 3)
    disk.make_room()
    stage.let_go(WITNESS, 3)
    _finish_with_all(stage)


def server_disk_full(stage: Stage) -> None:
    """Let the directory of a kept run be on a disk that is full at the start, then in a round.

    After each of both, room is made, and the same command is given again.
    """
    disk = stage.small_disk(stage.running.directory / "disk", _SERVER_DISK)
    kept = str(stage.running.directory / "disk" / "kept")
    disk.fill()
    stage.begin_run(resume=kept)
    stage.end_run()
    disk.make_room()
    stage.begin_and_hold(resume=kept)
    disk.fill()
    stage.let_go(VICTIM, 2)
    stage.end_run()
    disk.make_room()
    stage.begin_run(resume=kept)
    stage.end_run()


def network_cut(stage: Stage, cut: Callable[[Relay], None]) -> None:
    """Cut a node off from the SuperLink for a while, and then let everything through again."""
    if stage.relay is None:
        raise DeploymentError("There is no relay.")
    stage.begin_and_hold(hold(3, ROUNDS))
    cut(stage.relay)
    begun = time.time()
    stage.let_go(VICTIM, 2)  # its answer meets a dead line
    asked = stage.asked(VICTIM, 2)[0]["created"]
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN)
    stage.processes.keep(*stage.nodes)
    stage.relay.heal()
    stage.notes.append(f"cut for {time.time() - begun:.0f} s")
    _until_back(stage, time.time())


def _until_back(stage: Stage, since: float) -> None:
    """Keep round 3 open for as long as it can be, or until the node answers again; then go on."""

    def is_back() -> bool:
        return bool(stage.sent(VICTIM)[-1]["answered"] > since)

    stage.wait_while_open(3, is_back)
    stage.let_go(WITNESS, 3)
    stage.wait_until(is_back, 2 * stage.timeout, "The node's return")
    answered = stage.sent(VICTIM)[-1]["answered"]
    stage.notes.append(f"it answered again after {answered - since:.0f} s")
    _finish_with_all(stage)


def _finish_with_all(stage: Stage, last: int = ROUNDS) -> None:
    """Keep the last round open until the node is back in it."""
    stage.wait_held(WITNESS, last)
    stage.wait_answered(VICTIM, last)
    stage.let_go(WITNESS, last)
    stage.end_run()


# ------------------------------------------------------------------- what else is shown


def _late_answer(stage: Stage) -> list[str]:
    return [] if stage.asked(VICTIM, 2) else ["the slow client made no answer"]


def _waited(stage: Stage) -> list[str]:
    """Require that the node's answer is in every round, each of which took one attempt."""
    report = stage.last_report()
    n, answers, attempts = len(stage.nodes), report["answers"], report["attempts"]
    stage.notes.append(f"answers {answers} in {attempts} attempts")
    return (
        []
        if answers == [n] * ROUNDS and attempts == ROUNDS
        else ["the run did not wait"]
    )


def _counted(stage: Stage) -> list[str]:
    counted = stage.last_report()["answers"][1]
    return (
        [] if counted == len(stage.nodes) else ["the answer of the dead node was lost"]
    )


def _all_answered(stage: Stage) -> list[str]:
    """Require that every node is in every round of every run that has a report."""
    expected = [len(stage.nodes)] * ROUNDS
    reports = [stage.read_report(n) for n in stage.runs if stage.report(n).exists()]
    finished = [report for report in reports if report["finished"]]
    answers = [report["answers"] for report in finished]
    return (
        []
        if answers and all(each == expected for each in answers)
        else [f"answers {answers}"]
    )


def _kept_out(stage: Stage) -> list[str]:
    """Require that outsiders were asked to enrol and nothing else, and that the report has them."""
    complaints = _all_answered(stage)
    named = {entry["node_id"] for entry in stage.last_report()["incidents"]}
    for name in stage.outsiders:
        lines = stage.sent(name)
        if {line["kind"] for line in lines} != {"enrol"}:
            complaints.append(f"{name} was asked {[line['kind'] for line in lines]}")
        elif lines[0]["node"] not in named:
            complaints.append(f"the report does not have {name}")
    return complaints


def _both_ran(stage: Stage) -> list[str]:
    """Require that both runs have one result at all nodes, though not the same."""
    results = [
        {path.name: path for path in stage.hooks(i).glob("result-*.npz")}
        for i in range(len(stage.nodes))
    ]
    complaints = _all_answered(stage)
    if any(set(each) != set(results[0]) or len(each) != 2 for each in results):
        return [*complaints, "a node lacks a result of one of two runs"]
    partitions = example_partitions(len(stage.nodes))
    for name in results[0]:
        each = [paths[name] for paths in results]
        complaints += checks.result_complaints(each, range(len(each)), partitions)
    return complaints


def _refused_by_ledger(stage: Stage) -> list[str]:
    """Require that the node whose disk is full said so, and was never asked for an answer."""
    codes = {line["code"] for line in stage.sent(VICTIM)}
    stage.notes.append(f"replied with codes {sorted(codes)}")
    return (
        []
        if codes == {_LEDGER}
        else ["the node did not refuse every time for its ledger"]
    )


def _refused_while_full(stage: Stage) -> list[str]:
    codes = {
        t: [line["code"] for line in stage.asked(VICTIM, t)]
        for t in range(1, ROUNDS + 1)
    }
    stage.notes.append(f"replied with codes {codes}")
    expected = [{0}, {_LEDGER}, {_LEDGER}, {0}]
    found = [set(each) for each in codes.values()]
    return (
        [] if found == expected else ["the node did not refuse while its disk was full"]
    )


def _says_why(stage: Stage) -> list[str]:
    """Require one sentence that names the disk, in both runs that ended by it."""
    complaints = _all_answered(stage)
    for n in (1, 2):
        if "disk is full" not in error_of(stage.processes.log(f"run{n}")):
            complaints.append(f"run {n} does not say that the disk is full")
    return complaints


def end_of_flwr() -> str:
    """Return the installed Flower's version, and how its nodes reach the SuperLink."""
    return f"{version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'}"


def outcome_of(status: str, log: str) -> str:
    """Return how a run ended: its status, and the sentence of its error if there is one."""
    words = status.removeprefix("finished:")
    error = error_of(log) if status == FAILED else ""
    return f"{words} ({error})" if error else words


def error_of(log: str) -> str:
    """Return the sentence with which a run ended that did not complete."""
    # Flower logs the error itself; before 1.40 a traceback, whose last line has it.
    said = re.findall(r"ServerApp raised an exception: (.*)$", log, re.MULTILINE)
    found = said or re.findall(r"^(?:\w+\.)+\w+Error: (.*)$", log, re.MULTILINE)
    return found[-1] if found else ""


def _expired(stage: Stage) -> list[str]:
    answered = [line for line in stage.asked(VICTIM, 2) if line["code"] == 0]
    return [] if len(answered) == 1 else ["the node received an expired request"]


def _repeated(stage: Stage) -> list[str]:
    """Require that a stale request gave the same bytes again, and then a refusal as stale."""
    lines = stage.asked(VICTIM, 2)
    again = [line["words"] for line in lines if line["code"] == 0]
    refused = sum(line["code"] == _STALE for line in lines)
    stage.notes.append(
        f"{len(again) - 1} time the same bytes again, {refused} time refused"
    )
    if len(again) < 2 or len(set(again)) != 1:
        return ["a stale request was not answered with the same bytes"]
    return [] if refused else ["a request that came after its round was not refused"]


@dataclass(frozen=True)
class Fault:
    """A fault and what must follow."""

    play: Callable[[Stage], None]  # makes runs, and the fault in them
    missed: tuple[int, ...] = ()  # rounds that must have gone on without the node
    returns: bool = True  # whether the node's answer must be in the last round's sum
    needs_all: bool = False  # whether every round needs the answers of all nodes
    statuses: tuple[str, ...] = (COMPLETED,)  # how the runs must end, first run first
    charges: int = 1  # runs that each ledger must have charged
    uncharged: tuple[int, ...] = ()  # nodes that must be charged nothing
    has_own_results: bool = False  # whether `also` judges the results
    needs_mount: bool = False  # whether it needs a small file system
    with_relay: bool = False  # whether the node reaches the SuperLink through a relay
    # further settings of the nodes'
    policy: Mapping[str, Any] = field(default_factory=dict)
    also: Callable[[Stage], list[str]] = lambda _: []  # returns what else is wrong


UNDISTURBED = "undisturbed"
FAULTS = {
    UNDISTURBED: Fault(undisturbed),
    # With a copy of the records they would be read once, at the enrolment.
    "client-raises": Fault(client_raises, missed=(2,), policy={"copy_records": False}),
    "client-killed": Fault(client_killed, missed=(2,), returns=False),
    "slow-client": Fault(slow_client, missed=(2,), also=_late_answer),
    "supernode-killed": Fault(supernode_killed, missed=(2,)),
    "supernode-needed": Fault(supernode_needed, needs_all=True, also=_waited),
    "supernode-killed-before-add": Fault(supernode_killed_before_add, also=_counted),
    "supernode-late": Fault(supernode_late, missed=(2, 3, 4), also=_expired),
    "stale-messages": Fault(
        partial(supernode_late, ttl=_LONG), missed=(2, 3, 4), also=_repeated
    ),
    "superlink-killed": Fault(
        superlink_killed, statuses=(FAILED, COMPLETED), charges=2
    ),
    "superlink-restarted": Fault(
        partial(superlink_killed, is_kept=True),
        statuses=(FAILED, COMPLETED),
        also=_all_answered,
    ),
    "server-killed": Fault(
        server_killed, statuses=(FAILED, COMPLETED), also=_all_answered
    ),
    "two-runs": Fault(
        two_runs,
        statuses=(COMPLETED, COMPLETED),
        charges=2,
        has_own_results=True,
        also=_both_ran,
    ),
    "stranger": Fault(stranger, also=_kept_out),
    "squatter": Fault(squatter, also=_kept_out),
    "slow-upload": Fault(slow_upload, missed=(2,), with_relay=True),
    "endless-upload": Fault(
        endless_upload, missed=(2,), returns=False, with_relay=True
    ),
    "node-disk-full": Fault(
        node_disk_full,
        returns=False,
        uncharged=(VICTIM,),
        needs_mount=True,
        also=_refused_by_ledger,
    ),
    "node-disk-fills": Fault(
        node_disk_fills, missed=(2, 3), needs_mount=True, also=_refused_while_full
    ),
    "server-disk-full": Fault(
        server_disk_full,
        statuses=(FAILED, FAILED, COMPLETED),
        needs_mount=True,
        also=_says_why,
    ),
    # Nothing goes through, not even an end of a connection; and all connections are
    # refused.
    "network-silent": Fault(
        partial(network_cut, cut=Relay.silence), missed=(2,), with_relay=True
    ),
    "network-refused": Fault(
        partial(network_cut, cut=Relay.refuse), missed=(2,), with_relay=True
    ),
}


# seconds of the undisturbed run of this process, by trust
_undisturbed: dict[str, float] = {}


# --------------------------------------------------------------------- a fault, checked


def run_fault(name: str, directory: Path, trust: str) -> list[str]:
    """Set a deployment up, produce one fault, take all down; print a row, return what is wrong."""
    fault, (n_nodes, least) = FAULTS[name], TRUSTS[trust]
    partitions = example_partitions(n_nodes)
    for i in range(n_nodes):
        (directory / f"hooks{i}").mkdir()
        (directory / f"hooks{i}" / "faults.json").write_text("[]", "utf-8")
    with ExitStack() as cleanup:
        with ExitStack() as stack:
            relays: list[Relay] = []

            def route(node: int, address: str) -> str:
                if not fault.with_relay or node != VICTIM:
                    return address
                relays.append(stack.enter_context(Relay(address)))
                return relays[-1].address

            running = stack.enter_context(
                deployment(
                    directory,
                    partitions,
                    app=hooked_app(directory / "app", HOOKS, SETTINGS),
                    policy={"min_clients": 2, "trusts": [trust], **fault.policy},
                    settings={"hooks": str(directory / "hooks{node}")},
                    route=route,
                )
            )
            least_here = n_nodes if fault.needs_all else least
            config = {
                "strategy": "fastlloyd",
                "trust": trust,
                "min-clients": least_here,
            }
            stage = Stage(
                running, TIMEOUT, config, relays[0] if relays else None, cleanup
            )
            fault.play(stage)
            statuses = running.statuses()
        facts, complaints = _checked(fault, stage, statuses, partitions)
    if left := stage.processes.left():
        complaints.append(f"{len(left)} processes are left")
    if name == UNDISTURBED:
        _undisturbed[trust] = stage.runs[1]
    more = sum(stage.runs.values()) - _undisturbed.get(trust, math.nan)
    facts.insert(2, "?" if math.isnan(more) else f"{more:+.0f} s")
    print(
        "|",
        " | ".join(
            [name, trust, end_of_flwr(), *facts, "; ".join(complaints) or "passed"]
        ),
        "|",
    )
    return complaints


def _checked(
    fault: Fault,
    stage: Stage,
    statuses: list[str],
    partitions: Sequence[NDArray[np.float64]],
) -> tuple[list[str], list[str]]:
    """Return what the files of a deployment show: statuses, seconds and so on; and complaints."""
    directory, results = stage.running.directory, stage.running.results
    sent = [stage.sent(i) for i in range(len(results))]
    every = [line for lines in sent for line in lines]
    complaints: list[str] = []
    complain = complaints.extend
    if statuses != list(fault.statuses):
        complain([f"the runs are {statuses} instead of {list(fault.statuses)}"])
    must_have = [i for i in range(len(results)) if i != VICTIM or fault.returns]
    if not fault.has_own_results:
        complain(checks.result_complaints(results, must_have, partitions))
    report = stage.last_report()
    epsilon, delta = report["epsilon"], report["delta"]
    states = [directory / f"node{i}" / "state" for i in range(len(results))]
    accounts = [checks.charged(state, delta) for state in states]
    charged = [state for i, state in enumerate(states) if i not in fault.uncharged]
    complain(checks.ledger_complaints(charged, fault.charges, epsilon, delta))
    if any(accounts[i] != (0, 0.0) for i in fault.uncharged):
        complain(["a node is charged that must not be"])
    complain(checks.secrecy_complaints(every))
    # A node's own log may hold its error's text.
    files = [
        file
        for file in checks.server_files(stage.running)
        if "supernode" not in file.name
    ]
    found = [checks.read_result(path)[0] for path in results if path.exists()]
    complain(
        checks.leak_complaints(
            files, [*found, *(part[:20] for part in partitions)], [SECRET]
        )
    )
    ours = {line["node"]: str(i) for i, lines in enumerate(sent) for line in lines}
    ours |= {
        line["node"]: name for name in stage.outsiders for line in stage.sent(name)
    }
    dropped = [(ours.get(entry["node_id"], "?"), entry) for entry in report["dropped"]]
    if others := {node for node, _ in dropped} - {str(VICTIM), *stage.outsiders}:
        complain([f"nodes {sorted(others)} were dropped, which nothing disturbed"])
    if lacking := set(fault.missed) - {
        one["round"] for i, one in dropped if i == str(VICTIM)
    }:
        complain([f"the report names nobody for rounds {sorted(lacking)}"])
    if fault.returns and report["answers"][-1] != len(results):
        complain(["the node's answer is not in the last round"])
    complain(fault.also(stage))
    names = [
        f"node {node}, round {one['round']}: {one['reason']}" for node, one in dropped
    ]
    facts = [
        ", then ".join(
            outcome_of(status, stage.processes.log(f"run{n}"))
            for n, status in enumerate(statuses, 1)
        ),
        " + ".join(f"{seconds:.0f} s" for seconds in stage.runs.values()),
        " ".join([*names, *(f"({note})" for note in stage.notes)]) or "nobody",
        "; ".join(dict.fromkeys(f"{runs} (ε {total:.3g})" for runs, total in accounts)),
        "{} made, {} differ".format(*checks.n_ciphertexts(every)),
    ]
    return facts, complaints
