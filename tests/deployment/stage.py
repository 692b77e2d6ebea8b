"""A deployment at work, and the means to disturb it."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checks
from disks import SmallDisk
from loopback import (
    BOUNDS,
    Deployment,
    example_partitions,
    policy_text,
    register_command,
    set_up_node,
    supernode_command,
)
from processes import DeploymentError, Processes, free_ports
from relay import Relay

ROUNDS = 4
VICTIM = 2  # the node that the fault is about; the others are survivors
VICTIM_NODE = f"supernode{VICTIM}"  # its process
# a survivor that can be made to wait, so that a round is still open when it must be
WITNESS = 0
# seconds that an answer needs at most from the client's process to the server
_SENDING = 8.0
_ARRIVING = 4.0  # less than the grace time, in which the others must answer
LET_IN = "SuperNode ID:"  # in a node's log, when the SuperLink has let it in

Faults = Sequence[Mapping[str, Any]]


def hold(*rounds: int) -> Faults:
    """Return faults that make a node wait in the middle of its answers of these rounds."""
    return [{"action": "hold", "t": t} for t in rounds]


def kill_server(processes: Processes) -> None:
    """Kill the process of the server's app without a warning."""
    killed = 0
    for pid in processes.left():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if any("flwr-serverapp" in word for word in words[:2]):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    if not killed:
        raise DeploymentError("There is no process of the server's app.")


@dataclass
class Stage:
    """A deployment at work, and the means to disturb it."""

    running: Deployment
    timeout: float
    config: Mapping[str, Any] = field(default_factory=dict)
    relay: Relay | None = None
    cleanup: ExitStack = field(default_factory=ExitStack)  # closed after all checks
    # seconds of each run that ended
    runs: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outsiders: list[str] = field(default_factory=list)  # admitted, and on no roster
    _begun: dict[int, float] = field(default_factory=dict)

    @property
    def processes(self) -> Processes:
        return self.running.processes

    @property
    def nodes(self) -> list[str]:
        return [f"supernode{i}" for i in range(len(self.running.results))]

    def hooks(self, node: int | str) -> Path:
        """Return the directory of a node's faults and answers."""
        return self.running.directory / f"hooks{node}"

    def plan(self, node: int | str, faults: Faults) -> None:
        """Say what a node does wrong from now on."""
        (self.hooks(node) / "faults.json").write_text(json.dumps(list(faults)), "utf-8")

    def begin_run(
        self, victim: Faults = (), witness: Faults = (), **config: Any
    ) -> None:
        """Start a run with the faults of two nodes; `end_run` waits for its end."""
        self.plan(VICTIM, victim)
        self.plan(WITNESS, witness)
        n = len(self._begun) + 1
        settings = {
            "n-rounds": ROUNDS,
            "timeout": self.timeout,
            "report": str(self.report(n)),
            **self.config,
            **config,
        }
        self._begun[n] = time.monotonic()
        self.processes.start(f"run{n}", self.running.command(settings))

    def begin_and_hold(self, witness: Faults = (), **config: Any) -> int:
        """Start a run; return the victim's client, which waits with its answer of round 2."""
        self.begin_run(hold(2), witness, **config)
        return self.wait_held(VICTIM, 2)

    def end_run(self, n: int | None = None) -> None:
        """Wait for the end of the n-th run, or of the last one."""
        n = len(self._begun) if n is None else n
        seconds = 60 + (ROUNDS + 4) * (self.timeout + 5)
        self.wait_until(
            lambda: self.processes.ended(f"run{n}"), seconds, f"The end of run {n}"
        )
        self.runs[n] = time.monotonic() - self._begun[n]

    def report(self, n: int) -> Path:
        """Return where the server writes the report of the n-th run."""
        return self.running.directory / f"report{n}.json"

    def last_report(self) -> dict[str, Any]:
        """Return the report of the last run."""
        return self.read_report(len(self._begun))

    def read_report(self, n: int) -> dict[str, Any]:
        """Return the report of the n-th run."""
        report: dict[str, Any] = json.loads(self.report(n).read_text("utf-8"))
        return report

    @property
    def kept(self) -> Path:
        """The directory in which the server keeps a run that can be resumed."""
        return self.running.directory / "kept"

    def wait_held(self, node: int, t: int) -> int:
        """Wait until a node waits in the middle of its answer; return its client's process."""
        path = self.hooks(node) / f"held-{t}"
        self.wait_until(
            path.exists, 60 + t * (self.timeout + 5), f"Node {node} in round {t}"
        )
        return int(path.read_text("utf-8"))

    def let_go(self, node: int, t: int) -> None:
        """Let a node that waits go on."""
        (self.hooks(node) / f"go-{t}").touch()

    def sent(self, node: int | str) -> list[checks.Sent]:
        """Return what a node answered, oldest first."""
        return checks.sent_by(self.hooks(node))

    def asked(self, node: int, t: int) -> list[checks.Sent]:
        """Return what a node replied to `ask` in a round."""
        return [
            line for line in self.sent(node) if (line["kind"], line["t"]) == ("ask", t)
        ]

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

    def admit(self, name: str, faults: Faults) -> None:
        """Admit one more node, which has no member key, and start it with its faults."""
        running, node = self.running, self.running.directory / name
        self.hooks(name).mkdir()
        self.plan(name, faults)
        policy = {
            "member_key_file": None,
            "trusts": [self.config["trust"]],
            "min_clients": 2,
        }
        config = set_up_node(
            node,
            example_partitions()[0],
            policy_text(BOUNDS, policy),
            {"hooks": str(self.hooks(name))},
        )
        self.processes.run(f"register-{name}", register_command(node / "node.pub"), 60)
        (port,) = free_ports(1)
        process = f"supernode-{name}"
        self.processes.start(
            process, supernode_command(node, running.fleet, port, config)
        )
        self.wait_until(
            lambda: LET_IN in self.processes.log(process), 120, f"Node {name}"
        )
        self.outsiders.append(name)

    def small_disk(self, directory: Path, size: int) -> SmallDisk:
        """Return a small file system that is mounted there until all checks are made."""
        return self.cleanup.enter_context(SmallDisk(directory, size))

    def upload_begins(self) -> None:
        """Wait until the SuperLink has the head of the victim's next answer."""
        node_id = self.sent(VICTIM)[0]["node"]
        line = f"Push replies from node_id={node_id}"
        before = self.processes.log("superlink").count(line)

        def has_begun() -> bool:
            return self.processes.log("superlink").count(line) > before

        self.wait_until(has_begun, self.timeout, "The upload")

    def kill_superlink(self) -> None:
        """Kill the SuperLink and the processes that it started, as a loss of power does."""
        self.processes.kill("superlink")
        for pid in self.processes.left():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                ours = "flower-supernode" not in " ".join(words[:2])
                if ours and self.running.address in words:
                    os.kill(pid, signal.SIGKILL)
