"""Faults, really produced: what is killed, cut or delayed while a deployment works, and its checks.

One SuperLink and its SuperNodes are set up anew for every fault: three under oblivious-server, five
under clients-only, of which four can add. The transport is that of the installed Flower.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import checks
import numpy as np
from loopback import APP, HOST, Deployment, deployment, example_partitions, fleet_is_grpc
from numpy.typing import NDArray
from processes import DeploymentError, Processes
from relay import Relay

HOOKS = Path(__file__).resolve().parent / "fault_app"
# Seconds; an answer takes some 4 where nothing else runs, a return up to a minute.
TIMEOUT = float(os.environ.get("FAULT_TIMEOUT", "60"))
# Nodes of a deployment, and the fewest that a round needs: while one is away and one waits, fewer.
TRUSTS = {"oblivious-server": (3, 2), "clients-only": (5, 4)}
COMPLETED, FAILED = "finished:completed", "finished:failed"
ROUNDS = 4
VICTIM = 2  # the node that the fault is about; the others are survivors
VICTIM_NODE = f"supernode{VICTIM}"  # its process
WITNESS = 0  # a survivor that can be made to wait, so that a round is still open when it must be
SECRET = "a record says 271828.182845"  # in the text of a client's exception  # noqa: S105
_TTL_MARGIN = 10.0  # of the strategy: its messages live so much longer than its timeout
_LET_IN = "SuperNode ID:"  # in a node's log, when the SuperLink has let it in
_LONG = 43_200.0  # Flower's own: 12 hours
_DEAD = 30.0  # seconds for which a node that is needed is away; Flower lets it in after a minute
_PATIENCE = 600.0  # the strategy's
_STALE = 4  # the code of a refusal
_SENDING = 8.0  # seconds that an answer needs at most from the client's process to the server
_ARRIVING = 4.0  # less than the grace time, in which the others must answer

Faults = Sequence[Mapping[str, Any]]


def hold(*rounds: int) -> Faults:
    """Return faults that make a node wait in the middle of its answers of these rounds."""
    return [{"action": "hold", "t": t} for t in rounds]


@dataclass
class Stage:
    """A deployment at work, and the means to disturb it."""

    running: Deployment
    timeout: float
    config: Mapping[str, Any] = field(default_factory=dict)
    relay: Relay | None = None
    runs: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _begun: float = 0.0

    @property
    def processes(self) -> Processes:
        return self.running.processes

    @property
    def nodes(self) -> list[str]:
        return [f"supernode{i}" for i in range(len(self.running.results))]

    def hooks(self, node: int) -> Path:
        """Return the directory of a node's faults and answers."""
        return self.running.directory / f"hooks{node}"

    def begin_run(self, victim: Faults = (), witness: Faults = (), **config: Any) -> None:
        """Start a run with the faults of two nodes; `end_run` waits for its end."""
        for node, faults in ((VICTIM, victim), (WITNESS, witness)):
            (self.hooks(node) / "faults.json").write_text(json.dumps(list(faults)), "utf-8")
        n = len(self.runs) + 1
        settings = {
            "n-rounds": ROUNDS,
            "timeout": self.timeout,
            "report": str(self.report(n)),
            **self.config,
            **config,
        }
        self._begun = time.monotonic()
        self.processes.start(f"run{n}", self.running.command(settings))

    def begin_and_hold(self, witness: Faults = (), **config: Any) -> int:
        """Start a run; return the victim's client, which waits with its answer of round 2."""
        self.begin_run(hold(2), witness, **config)
        return self.wait_held(VICTIM, 2)

    def end_run(self) -> None:
        """Wait for the end of the run."""
        n = len(self.runs) + 1
        seconds = 60 + (ROUNDS + 4) * (self.timeout + 5)
        self.wait_until(lambda: self.processes.ended(f"run{n}"), seconds, f"The end of run {n}")
        self.runs.append(time.monotonic() - self._begun)

    def report(self, n: int) -> Path:
        """Return where the server writes the report of the n-th run."""
        return self.running.directory / f"report{n}.json"

    def last_report(self) -> dict[str, Any]:
        """Return the report of the last run."""
        report: dict[str, Any] = json.loads(self.report(len(self.runs)).read_text("utf-8"))
        return report

    def wait_held(self, node: int, t: int) -> int:
        """Wait until a node waits in the middle of its answer; return its client's process."""
        path = self.hooks(node) / f"held-{t}"
        self.wait_until(path.exists, 60 + t * (self.timeout + 5), f"Node {node} in round {t}")
        return int(path.read_text("utf-8"))

    def let_go(self, node: int, t: int) -> None:
        """Let a node that waits go on."""
        (self.hooks(node) / f"go-{t}").touch()

    def sent(self, node: int) -> list[checks.Sent]:
        """Return what a node answered, oldest first."""
        return checks.sent_by(self.hooks(node))

    def asked(self, node: int, t: int) -> list[checks.Sent]:
        """Return what a node replied to `ask` in a round."""
        return [line for line in self.sent(node) if (line["kind"], line["t"]) == ("ask", t)]

    def wait_answered(self, node: int, t: int) -> None:
        """Wait until a node has answered in a round, and that has arrived."""
        what = f"An answer of node {node} in round {t}"
        self.wait_until(lambda: bool(self.asked(node, t)), 2 * self.timeout, what)
        self.sleep(_ARRIVING)

    def wait_while_open(self, t: int, done: Callable[[], bool]) -> None:
        """Wait until something is so, but no longer than the witness can keep a round open."""
        self.wait_held(WITNESS, t)
        end = self.asked(WITNESS, t)[0]["created"] + self.timeout - _SENDING
        what = f"Round {t}"
        self.wait_until(lambda: done() or time.time() > end, self.timeout + 5, what)

    def sleep(self, seconds: float) -> None:
        """Let time pass while the processes are watched."""
        end = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= end, seconds + 1, "A moment")

    def sleep_until(self, clock: float) -> None:
        """Let time pass until the clock says so."""
        self.sleep(max(0.0, clock - time.time()))

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something is so, while the processes are watched."""
        self.processes.wait_until(done, seconds, what)

    def restart_victim(self) -> None:
        """Start the victim's SuperNode again, and again until it is let in."""
        self.processes.keep(VICTIM_NODE)
        self.processes.restart(VICTIM_NODE)

    def kill_superlink(self) -> None:
        """Kill the SuperLink and the processes that it started, as a loss of power does."""
        self.processes.kill("superlink")
        for pid in self.processes.left():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                ours = "flower-supernode" not in " ".join(words[:2])
                if ours and self.running.address in words:
                    os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------ the faults


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
    # Round 3, which begins at once, must be open until the SuperLink lets the node in again.
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

    In the last round it is sent the same request once more. With a ``ttl`` the request lives so
    long, in seconds, and is stale when it is delivered.
    """
    last = ROUNDS + 1
    config = {"n-rounds": last, "replay": 1, "ttl": ttl}
    stage.begin_and_hold(hold(3, ROUNDS, last), **config)
    stage.processes.kill(VICTIM_NODE)
    stage.wait_while_open(3, lambda: False)
    stage.let_go(WITNESS, 3)
    asked = stage.asked(WITNESS, 3)[0]["created"]
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN + 1)
    before = stage.processes.log(VICTIM_NODE).count(_LET_IN)
    stage.restart_victim()

    def is_back() -> bool:  # and has received what waited for it
        if ttl:
            return len(stage.asked(VICTIM, 2)) > 1
        return stage.processes.log(VICTIM_NODE).count(_LET_IN) > before

    # What a node is sent while it is away is withdrawn: it must be there before the last round.
    stage.wait_while_open(ROUNDS, is_back)
    stage.sleep(4)  # a node asks for messages every 3 seconds
    stage.let_go(WITNESS, ROUNDS)
    _finish_with_all(stage, last)


def superlink_killed(stage: Stage) -> None:
    """Kill the SuperLink in the middle of a round, start it on its database, and run again."""
    stage.begin_and_hold()
    stage.kill_superlink()
    stage.processes.keep(*stage.nodes)
    stage.sleep(3)
    stage.processes.restart("superlink")
    stage.processes.wait_for_port(HOST, int(stage.running.address.rpartition(":")[2]), 60)
    stage.let_go(VICTIM, 2)
    stage.end_run()
    stage.begin_run()
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


# ------------------------------------------------------------------------------ what else is shown


def _late_answer(stage: Stage) -> list[str]:
    return [] if stage.asked(VICTIM, 2) else ["the slow client made no answer"]


def _waited(stage: Stage) -> list[str]:
    """Require that the node's answer is in every round, each of which took one attempt."""
    report = stage.last_report()
    n, answers, attempts = len(stage.nodes), report["answers"], report["attempts"]
    stage.notes.append(f"answers {answers} in {attempts} attempts")
    return [] if answers == [n] * ROUNDS and attempts == ROUNDS else ["the run did not wait"]


def _counted(stage: Stage) -> list[str]:
    counted = stage.last_report()["answers"][1]
    return [] if counted == len(stage.nodes) else ["the answer of the dead node was lost"]


def _expired(stage: Stage) -> list[str]:
    answered = [line for line in stage.asked(VICTIM, 2) if line["code"] == 0]
    return [] if len(answered) == 1 else ["the node received an expired request"]


def _repeated(stage: Stage) -> list[str]:
    """Require that a stale request gave the same bytes again, and then a refusal as stale."""
    lines = stage.asked(VICTIM, 2)
    again = [line["words"] for line in lines if line["code"] == 0]
    refused = sum(line["code"] == _STALE for line in lines)
    stage.notes.append(f"{len(again) - 1} time the same bytes again, {refused} time refused")
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
    with_relay: bool = False  # whether the node reaches the SuperLink through a relay
    policy: Mapping[str, Any] = field(default_factory=dict)  # further settings of the nodes'
    also: Callable[[Stage], list[str]] = lambda _: []  # returns what else is wrong


FAULTS = {
    "undisturbed": Fault(undisturbed),
    # With a copy of the records they would be read once, at the enrolment.
    "client-raises": Fault(client_raises, missed=(2,), policy={"copy_records": False}),
    "client-killed": Fault(client_killed, missed=(2,), returns=False),
    "slow-client": Fault(slow_client, missed=(2,), also=_late_answer),
    "supernode-killed": Fault(supernode_killed, missed=(2,)),
    "supernode-needed": Fault(supernode_needed, needs_all=True, also=_waited),
    "supernode-killed-before-add": Fault(supernode_killed_before_add, also=_counted),
    "supernode-late": Fault(supernode_late, missed=(2, 3, 4), also=_expired),
    "stale-messages": Fault(partial(supernode_late, ttl=_LONG), missed=(2, 3, 4), also=_repeated),
    "superlink-killed": Fault(superlink_killed, statuses=(FAILED, COMPLETED)),
    # Nothing goes through, not even an end of a connection; and all connections are refused.
    "network-silent": Fault(partial(network_cut, cut=Relay.silence), missed=(2,), with_relay=True),
    "network-refused": Fault(partial(network_cut, cut=Relay.refuse), missed=(2,), with_relay=True),
}


# ------------------------------------------------------------------------------ a fault, checked


def run_fault(name: str, directory: Path, trust: str) -> list[str]:
    """Set a deployment up, produce one fault, take all down; print a row, return what is wrong."""
    fault, (n_nodes, least) = FAULTS[name], TRUSTS[trust]
    partitions = example_partitions(n_nodes)
    for i in range(n_nodes):
        (directory / f"hooks{i}").mkdir()
        (directory / f"hooks{i}" / "faults.json").write_text("[]", "utf-8")
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
                app=_hooked_app(directory / "app"),
                policy={"min_clients": 2, "trusts": [trust], **fault.policy},
                settings={"hooks": str(directory / "hooks{node}")},
                route=route,
            )
        )
        least_here = n_nodes if fault.needs_all else least
        config = {"strategy": "fastlloyd", "trust": trust, "min-clients": least_here}
        stage = Stage(running, TIMEOUT, config, relays[0] if relays else None)
        fault.play(stage)
        statuses = running.statuses()
    facts, complaints = _checked(fault, stage, statuses, partitions)
    if left := stage.processes.left():
        complaints.append(f"{len(left)} processes are left")
    flwr = f"{version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'}"
    print("|", " | ".join([name, trust, flwr, *facts, "; ".join(complaints) or "passed"]), "|")
    return complaints


def _checked(
    fault: Fault, stage: Stage, statuses: list[str], partitions: Sequence[NDArray[np.float64]]
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
    complain(checks.result_complaints(results, must_have, partitions))
    report = stage.last_report()
    epsilon, delta = report["epsilon"], report["delta"]
    states = [directory / f"node{i}" / "state" for i in range(len(results))]
    complain(checks.ledger_complaints(states, len(fault.statuses), epsilon, delta))
    accounts = [checks.charged(state, delta) for state in states]
    complain(checks.secrecy_complaints(every))
    # A node's own log may hold its error's text.
    files = [file for file in checks.server_files(stage.running) if "supernode" not in file.name]
    found = [checks.read_result(path)[0] for path in results if path.exists()]
    complain(checks.leak_complaints(files, [*found, *(part[:20] for part in partitions)], [SECRET]))
    ours = {line["node"]: i for i, lines in enumerate(sent) for line in lines}
    dropped = [(ours.get(entry["node_id"], -1), entry) for entry in report["dropped"]]
    if others := {i for i, _ in dropped} - {VICTIM}:
        complain([f"nodes {sorted(others)} were dropped, which nothing disturbed"])
    if lacking := set(fault.missed) - {one["round"] for i, one in dropped if i == VICTIM}:
        complain([f"the report names nobody for rounds {sorted(lacking)}"])
    if fault.returns and report["answers"][-1] != len(results):
        complain(["the node's answer is not in the last round"])
    complain(fault.also(stage))
    names = [f"node {i}, round {one['round']}: {one['reason']}" for i, one in dropped]
    facts = [
        ", then ".join(each.removeprefix("finished:") for each in statuses),
        " + ".join(f"{seconds:.0f} s" for seconds in stage.runs),
        " ".join([*names, *(f"({note})" for note in stage.notes)]) or "nobody",
        "; ".join(dict.fromkeys(f"{runs} (ε {total:.3g})" for runs, total in accounts)),
        "{} made, {} differ".format(*checks.n_ciphertexts(every)),
    ]
    return facts, complaints


def _hooked_app(path: Path) -> Path:
    """Make the Flower app under test: the deployment's own with hooks around it."""
    shutil.copytree(APP, path, ignore=shutil.ignore_patterns("__pycache__"))
    for file in HOOKS.glob("*.py"):
        shutil.copy(file, path)
    project = path / "pyproject.toml"
    text = project.read_text("utf-8")
    for name in ("server", "client"):
        text = text.replace(f'"{name}_app:app"', f'"{name}_hooks:app"')
    project.write_text(text + "replay = 0\nttl = 0.0\n", "utf-8")
    return path
