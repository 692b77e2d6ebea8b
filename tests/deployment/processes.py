"""Processes of a deployment: started with logs, watched while others are awaited, all ended."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import flower_kmeans

_POLL = 0.2
_GRACE = 10.0
_RESTART_PAUSE = 2.0
_LASTING = "super"  # SuperLink and SuperNodes: not meant to end by themselves


class DeploymentError(Exception):
    """A process ended, or something took longer than it may."""


class Processes:
    """Processes that share a Flower home, and all end at the end of this object's ``with``.

    A subclass may run them elsewhere. It overrides `command_of` and `listens`.
    """

    def __init__(self, directory: Path) -> None:
        self.home = directory / "flwr-home"
        self.logs = directory / "logs"
        self.home.mkdir()
        self.logs.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._kept: set[str] = set()
        self._due: dict[str, float] = {}
        self._environment = os.environ | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            # Flower starts its own programs by name.
            "PATH": _joined(Path(sys.executable).parent, os.environ["PATH"]),
            "PYTHONUNBUFFERED": "1",
        }
        library = Path(flower_kmeans.__file__).resolve().parents[1]
        # used from a checkout, perhaps not installed
        if (library / "pyproject.toml").exists():
            paths = _joined(library, os.environ.get("PYTHONPATH", ""))
            self._environment["PYTHONPATH"] = paths

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def command_of(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the words that start a process: its command, and whatever must come before it."""
        program = shutil.which(command[0], path=self._environment["PATH"])
        if program is None:
            raise DeploymentError(
                f"There is no command {command[0]}: is flwr installed?"
            )
        return [program, *command[1:]]

    def listens(self, host: str, port: int) -> bool:
        """Return whether a process listens there."""
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((host, port)) == 0

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in its own group; its log goes on where an earlier one ended."""
        self._commands[name] = list(command)
        with (self.logs / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(
                self.command_of(name, command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def restart(self, name: str) -> None:
        """Start a process that was killed once more."""
        self.start(name, self._commands[name])

    def keep(self, *names: str) -> None:
        """From now on, start these again when they end, as a service manager does."""
        self._kept.update(names)

    def wait(self, name: str, timeout: float) -> None:
        """Wait for the end of a process while all others run."""
        self.wait_until(lambda: self.ended(name), timeout, f"The end of {name}")
        if code := self._running.pop(name).returncode:
            raise DeploymentError(f"{name} ended with {code}: {self.log(name)}")

    def ended(self, name: str) -> bool:
        """Return whether a process has ended, with whatever code."""
        return name not in self._running or self._running[name].poll() is not None

    def run(self, name: str, command: Sequence[str], timeout: float) -> str:
        """Run a command to its end and return what it wrote. Raises as `wait` does."""
        before = len(self.log(name))
        self.start(name, command)
        self.wait(name, timeout)
        return self.log(name)[before:]

    def wait_for_port(self, host: str, port: int, timeout: float) -> None:
        """Wait until a process listens there. Raises as `wait` does."""
        self.wait_until(
            lambda: self.listens(host, port), timeout, f"A listener on port {port}"
        )

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something is so, while the lasting processes are watched."""
        deadline = time.monotonic() + seconds
        while not done():
            for name in [name for name in self._running if name.startswith(_LASTING)]:
                if self.ended(name):
                    self._revive(name)
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"{what} took too long; the logs are in {self.logs}"
                )
            time.sleep(_POLL)

    def _revive(self, name: str) -> None:
        if name not in self._kept:
            code = self._running[name].returncode
            raise DeploymentError(f"{name} ended with {code}: {self.log(name)}")
        now = time.monotonic()
        # A SuperLink refuses a node that it believes to run already: the next try needs
        # a pause.
        if now >= self._due.setdefault(name, now + _RESTART_PAUSE):
            del self._due[name]
            self.restart(name)

    def log(self, name: str) -> str:
        """Return what a process wrote."""
        path = self.logs / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """End a process and its group without a warning, as a loss of power does."""
        process = self._running.pop(name)
        _signal_group(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, nodes first; those that do not end in time are killed."""
        for process in reversed(self._running.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait()
        self._running.clear()
        # The SuperLink starts helpers in new sessions, which no group signal reaches.
        # They may have started others meanwhile, a process that was killed is there for
        # a moment longer, and one that has just begun shows no environment yet. So
        # nothing may be left twice in a row.
        deadline = time.monotonic() + _GRACE
        n_empty = 0
        while n_empty < 2 and time.monotonic() < deadline:
            left = self.left()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            n_empty = 0 if left else n_empty + 1
            time.sleep(_POLL)

    def left(self) -> list[int]:
        """Return the ids of processes of this deployment that still run (Linux only)."""
        marker, found = f"FLWR_HOME={self.home}".encode(), []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            pid = int(entry.parent.name)
            with suppress(OSError):  # it has ended, or belongs to another user
                if marker in entry.read_bytes().split(b"\0") and pid != os.getpid():
                    found.append(pid)
        return found


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free at this moment."""
    with ExitStack() as stack:  # all at once, so that no two are the same
        sockets = [
            stack.enter_context(socket.create_server((host, 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


def _joined(first: Path, rest: str) -> str:
    return os.pathsep.join(filter(None, (str(first), rest)))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
