"""Faults, really produced: what is killed, cut or delayed while a deployment works, and when."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import fault_checks as checks
from loopback import HOST, Deployment
from processes import DeploymentError, Processes
from relay import Relay

COMPLETED, FAILED = "finished:completed", "finished:failed"
ROUNDS = 4
VICTIM = 2  # the node that the fault is about; the others are survivors
WITNESS = 0  # a survivor that can be told to wait, so that a round is still open when it must be
SECRET = "a record says 271828.182845"  # in the text of a client's exception  # noqa: S105
_TTL_MARGIN = 10.0  # of the strategy: its messages live so much longer than its timeout
_HOLDS = [{"action": "hold", "t": 3}, {"action": "hold", "t": ROUNDS}]
_LET_IN = "SuperNode ID:"  # in a node's log, when the SuperLink has let it in
_LONG = 43_200.0  # Flower's own: 12 hours
_STALE = 4  # the code of a refusal
_SENDING = 8.0  # seconds that an answer needs at most from the client's process to the server
_ARRIVING = 4.0  # less than the grace time, in which the others must answer
_RESTART_PAUSE = 2.0


class KeptProcesses(Processes):
    """Processes of which some are started again when they end, as a service manager does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._commands: dict[str, list[str]] = {}
        self._again: dict[str, float] = {}

    def keep(self, name: str, command: Sequence[str]) -> None:
        """Start a process whenever it has ended."""
        self._commands[name] = list(command)

    def on_end(self, name: str, code: int) -> None:
        """Start it again after a pause, if it is one of those."""
        if name not in self._commands:
            super().on_end(name, code)
        now = time.monotonic()
        if now >= self._again.setdefault(name, now + _RESTART_PAUSE):
            del self._again[name]
            self.start(name, self._commands[name])


@dataclass
class Stage:
    """A deployment at work, and the means to disturb it."""

    running: Deployment
    processes: KeptProcesses
    timeout: float
    config: Mapping[str, Any] = field(default_factory=dict)
    relay: Relay | None = None
    runs: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _begun: float = 0.0

    @property
    def port(self) -> int:
        """The SuperLink's port."""
        command = self.running.commands["superlink"]
        return int(command[command.index("--port") + 1])

    def hooks(self, node: int) -> Path:
        """Return the directory of a node's faults and answers."""
        return self.running.directory / f"hooks{node}"

    def plan(self, faults: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Say which node spoils its answer of which round, and how."""
        for node, planned in faults.items():
            (self.hooks(node) / "faults.json").write_text(json.dumps(list(planned)), "utf-8")

    def begin_run(self, config: Mapping[str, Any] | None = None) -> None:
        """Start a run; `end_run` waits for its end."""
        n = len(self.runs) + 1
        settings = {
            "n-rounds": ROUNDS,
            "timeout": self.timeout,
            "report": str(self.report(n)),
            **self.config,
            **(config or {}),
        }
        self._begun = time.monotonic()
        self.processes.start(f"run{n}", self.running.command(settings))

    def end_run(self) -> None:
        """Wait for the end of the run."""
        n = len(self.runs) + 1
        seconds = 60 + (ROUNDS + 4) * (self.timeout + 5)
        self.wait_until(lambda: self.processes.ended(f"run{n}"), seconds, f"The end of run {n}")
        self.runs.append(time.monotonic() - self._begun)

    def report(self, n: int) -> Path:
        """Return where the server writes the report of the n-th run."""
        return self.running.directory / f"report{n}.json"

    def wait_held(self, node: int, t: int) -> int:
        """Wait until a node waits in the middle of its answer; return its client's process."""
        path = self.hooks(node) / f"held-{t}"
        self.wait_until(path.exists, 60 + t * (self.timeout + 5), f"Node {node} in round {t}")
        return int(path.read_text("utf-8"))

    def let_go(self, node: int, t: int) -> None:
        """Let a node that waits go on."""
        (self.hooks(node) / f"go-{t}").touch()

    def asked(self, node: int, t: int) -> list[checks.Sent]:
        """Return what a node replied to `ask` in a round."""
        lines = checks.sent_by(self.hooks(node))
        return [line for line in lines if (line["kind"], line["t"]) == ("ask", t)]

    def wait_answered(self, node: int, t: int) -> None:
        """Wait until a node has answered in a round, and that has arrived."""
        what = f"An answer of node {node} in round {t}"
        self.wait_until(lambda: bool(self.asked(node, t)), 2 * self.timeout, what)
        self.sleep(_ARRIVING)

    def sleep(self, seconds: float) -> None:
        """Let time pass while the processes are watched."""
        end = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= end, seconds + 1, "A moment")

    def sleep_until(self, clock: float) -> None:
        """Let time pass until the clock says so."""
        self.sleep(max(0.0, clock - time.time()))

    def restart(self, name: str) -> None:
        """Start a process again, and again whenever it ends."""
        self.processes.keep(name, self.running.commands[name])
        self.processes.start(name, self.running.commands[name])

    def kill_superlink(self) -> None:
        """Kill the SuperLink and the processes that it started, as a loss of power does."""
        address = f"{HOST}:{self.port}"
        self.processes.kill("superlink")
        for pid in self.processes.left():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if address in words and "flower-supernode" not in " ".join(words[:2]):
                    os.kill(pid, signal.SIGKILL)

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something is so, while the processes are watched."""
        deadline = time.monotonic() + seconds
        while not done():
            self.processes.check(deadline, what)


# ------------------------------------------------------------------------------ the faults


def undisturbed(stage: Stage) -> None:
    """Disturb nothing, and look where the time goes."""
    stage.begin_run()
    stage.end_run()
    rounds = []
    for node in range(len(stage.running.results)):
        for t in range(2, ROUNDS):
            line, after = stage.asked(node, t)[0], stage.asked(node, t + 1)[0]
            times = line["created"], line["asked"], line["answered"], after["created"]
            rounds.append([end - begin for begin, end in pairwise(times)])
    start, answer, rest = (median(column) for column in zip(*rounds, strict=True))
    stage.notes.append(
        f"of a round, in the median: {start:.1f} s until the client's process has started and has "
        f"the request, {answer:.1f} s to answer, {rest:.1f} s until the next round is asked for"
    )


def client_raises(stage: Stage) -> None:
    """Let the code that reads the records raise, with a record in the error's text."""
    stage.plan({VICTIM: [{"action": "raise", "t": 2, "text": SECRET}]})
    stage.begin_run()
    stage.end_run()


def client_killed(stage: Stage) -> None:
    """Kill the client's process after it has computed its answer, before it has sent it."""
    stage.plan({VICTIM: [{"action": "hold", "t": 2}]})
    stage.begin_run()
    os.kill(stage.wait_held(VICTIM, 2), signal.SIGKILL)
    stage.end_run()


def slow_client(stage: Stage) -> None:
    """Let a client answer when its round is over."""
    late = {"action": "sleep", "t": 2, "until": stage.timeout + 3}
    stage.plan({VICTIM: [late], WITNESS: [{"action": "hold", "t": ROUNDS}]})
    stage.begin_run()
    _finish_with_all(stage)


def supernode_killed(stage: Stage) -> None:
    """Kill a SuperNode in the middle of an answer; start it again until it is let in."""
    stage.plan({VICTIM: [{"action": "hold", "t": 2}], WITNESS: _HOLDS})
    stage.begin_run()
    stage.wait_held(VICTIM, 2)
    stage.processes.kill(f"supernode{VICTIM}")
    killed = time.time()
    stage.restart(f"supernode{VICTIM}")
    _until_back(stage, killed)


def supernode_killed_before_add(stage: Stage) -> None:
    """Kill a SuperNode after its answer has arrived, before it is asked to add; start it again.

    Where no committee adds, its answer alone must count.
    """
    # Round 3, which begins at once, must be open until the SuperLink lets the node in again.
    stage.timeout = max(stage.timeout, 90.0)
    stage.plan({WITNESS: [{"action": "hold", "t": 2}, *_HOLDS]})
    stage.begin_run()
    stage.wait_held(WITNESS, 2)
    stage.wait_answered(VICTIM, 2)
    stage.processes.kill(f"supernode{VICTIM}")
    killed = time.time()
    stage.let_go(WITNESS, 2)
    stage.restart(f"supernode{VICTIM}")
    _until_back(stage, killed)


def supernode_late(stage: Stage, ttl: float = 0.0) -> None:
    """Kill a SuperNode, and start it when a repeated request has expired, or would have.

    In the last round it is sent the same request once more.
    """
    last = ROUNDS + 1
    holds = [*_HOLDS, {"action": "hold", "t": last}]
    stage.plan({VICTIM: [{"action": "hold", "t": 2}], WITNESS: holds})
    stage.begin_run({"n-rounds": last, "replay": 1, "ttl": ttl})
    stage.wait_held(VICTIM, 2)
    stage.processes.kill(f"supernode{VICTIM}")
    stage.wait_held(WITNESS, 3)
    asked = stage.asked(WITNESS, 3)[0]["created"]
    stage.sleep_until(asked + stage.timeout - _SENDING)
    stage.let_go(WITNESS, 3)
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN + 1)
    name = f"supernode{VICTIM}"
    before = stage.processes.log(name).count(_LET_IN)
    stage.restart(name)

    def is_back() -> bool:  # and has received what waited for it
        if ttl:
            return len(stage.asked(VICTIM, 2)) > 1
        return stage.processes.log(name).count(_LET_IN) > before

    # What a node is sent while it is away is withdrawn: it must be there before the last round.
    stage.wait_held(WITNESS, ROUNDS)
    end = stage.asked(WITNESS, ROUNDS)[0]["created"] + stage.timeout - _SENDING
    stage.wait_until(lambda: is_back() or time.time() > end, stage.timeout + 5, "Round 4")
    stage.sleep(4)  # a node asks for messages every 3 seconds
    stage.let_go(WITNESS, ROUNDS)
    _finish_with_all(stage, last)


def stale_messages(stage: Stage) -> None:
    """Do the same with a request that lives for 12 hours."""
    supernode_late(stage, ttl=_LONG)


def superlink_killed(stage: Stage) -> None:
    """Kill the SuperLink in the middle of a round, start it on its database, and run again."""
    stage.plan({VICTIM: [{"action": "hold", "t": 2}]})
    stage.begin_run()
    stage.wait_held(VICTIM, 2)
    stage.kill_superlink()
    for name, command in stage.running.commands.items():
        if name != "superlink":
            stage.processes.keep(name, command)
    stage.sleep(3)
    stage.processes.start("superlink", stage.running.commands["superlink"])
    stage.processes.wait_for_port(HOST, stage.port, 60)
    stage.let_go(VICTIM, 2)
    stage.end_run()
    stage.begin_run()
    stage.end_run()


def network_silent(stage: Stage) -> None:
    """Let nothing through between a node and the SuperLink, and then everything again."""
    _cut(stage, lambda relay: relay.silence())


def network_refused(stage: Stage) -> None:
    """End all connections between a node and the SuperLink and refuse others, for a while."""
    _cut(stage, lambda relay: relay.refuse())


def _cut(stage: Stage, cut: Callable[[Relay], None]) -> None:
    if stage.relay is None:
        raise DeploymentError("There is no relay.")
    stage.plan({VICTIM: [{"action": "hold", "t": 2}], WITNESS: _HOLDS})
    stage.begin_run()
    stage.wait_held(VICTIM, 2)
    cut(stage.relay)
    begun = time.time()
    stage.let_go(VICTIM, 2)  # its answer meets a dead line
    asked = stage.asked(VICTIM, 2)[0]["created"]
    stage.sleep_until(asked + stage.timeout + _TTL_MARGIN)
    for name, command in stage.running.commands.items():
        if name != "superlink":
            stage.processes.keep(name, command)
    stage.relay.heal()
    stage.notes.append(f"cut for {time.time() - begun:.0f} s")
    _until_back(stage, time.time())


def _until_back(stage: Stage, since: float) -> None:
    """Keep round 3 open for as long as it can be, or until the node answers again; then go on."""

    def is_back() -> bool:
        return bool(checks.sent_by(stage.hooks(VICTIM))[-1]["answered"] > since)

    stage.wait_held(WITNESS, 3)
    last = stage.asked(WITNESS, 3)[0]["created"] + stage.timeout - _SENDING
    stage.wait_until(lambda: is_back() or time.time() > last, stage.timeout + 5, "Round 3")
    stage.let_go(WITNESS, 3)
    stage.wait_until(is_back, 2 * stage.timeout, "The node's return")
    answered = checks.sent_by(stage.hooks(VICTIM))[-1]["answered"]
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
    """Require that the slow client made its answer, when its round was over."""
    return [] if stage.asked(VICTIM, 2) else ["the slow client made no answer"]


def _counted(stage: Stage) -> list[str]:
    """Require that an answer counts although its node died before the sum was made."""
    report = json.loads(stage.report(len(stage.runs)).read_text("utf-8"))
    everyone = len(stage.running.results)
    return [] if report["answers"][1] == everyone else ["the answer of the dead node was lost"]


def _expired(stage: Stage) -> list[str]:
    """Require that a node did not receive a request that had expired."""
    answered = [line for line in stage.asked(VICTIM, 2) if line["code"] == 0]
    return [] if len(answered) == 1 else ["the node received an expired request"]


def _repeated(stage: Stage) -> list[str]:
    """Require that a stale request gave the same bytes again, and then a refusal as stale."""
    lines = stage.asked(VICTIM, 2)
    again = sum(line["code"] == 0 for line in lines) - 1
    refused = sum(line["code"] == _STALE for line in lines)
    stage.notes.append(f"{again} time the same bytes again, {refused} time refused as stale")
    if again < 1 or len({line["words"] for line in lines if line["code"] == 0}) != 1:
        return ["a stale request was not answered with the same bytes"]
    return [] if refused else ["a request that came after its round was not refused"]


@dataclass(frozen=True)
class Fault:
    """A fault and what must follow.

    Attributes
    ----------
    play : callable
        Makes runs, and the fault in them.
    missed : tuple of int
        Rounds that must have gone on without the node; others may have.
    returns : bool
        Whether the node's answer must be in the last round's sum.
    statuses : tuple of str
        How the runs must end, in Flower's words, first run first.
    with_relay : bool
        Whether the node reaches the SuperLink through a relay.
    policy : mapping
        Further settings of the nodes' policies.
    also : callable
        Returns what else is wrong, where this fault has more to show.
    """

    play: Callable[[Stage], None]
    missed: tuple[int, ...] = ()
    returns: bool = True
    statuses: tuple[str, ...] = (COMPLETED,)
    with_relay: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    also: Callable[[Stage], list[str]] = lambda _: []


FAULTS = {
    "undisturbed": Fault(undisturbed),
    # With a copy of the records they would be read once, at the enrolment.
    "client-raises": Fault(client_raises, missed=(2,), policy={"copy_records": False}),
    "client-killed": Fault(client_killed, missed=(2,), returns=False),
    "slow-client": Fault(slow_client, missed=(2,), also=_late_answer),
    "supernode-killed": Fault(supernode_killed, missed=(2,)),
    "supernode-killed-before-add": Fault(supernode_killed_before_add, also=_counted),
    "supernode-late": Fault(supernode_late, missed=(2, 3, 4), also=_expired),
    "stale-messages": Fault(stale_messages, missed=(2, 3, 4), also=_repeated),
    "superlink-killed": Fault(superlink_killed, statuses=(FAILED, COMPLETED)),
    "network-silent": Fault(network_silent, missed=(2,), with_relay=True),
    "network-refused": Fault(network_refused, missed=(2,), with_relay=True),
}
