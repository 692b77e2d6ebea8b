"""Processes of a deployment: started with logs, watched while others are awaited, all ended."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import flower_kmeans

_POLL = 0.2
_GRACE = 10.0
_LASTING = "super"  # SuperLink and SuperNodes: not meant to end by themselves


class DeploymentError(Exception):
    """A process ended, or something took longer than it may."""


class Processes:
    """Processes that share a Flower home, and all end with this object's `stop`.

    A subclass may run them elsewhere: it says with which words a command begins (`command_of`) and
    whether somebody listens (`listens`).

    Parameters
    ----------
    directory : Path
        Flower's home and one log per process are kept here.
    """

    def __init__(self, directory: Path) -> None:
        self.home = directory / "flwr-home"
        self.logs = directory / "logs"
        self.home.mkdir()
        self.logs.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            # Flower starts its own programs by name.
            "PATH": _joined(Path(sys.executable).parent, os.environ["PATH"]),
            "PYTHONUNBUFFERED": "1",
        }
        library = Path(flower_kmeans.__file__).resolve().parents[1]
        if (library / "pyproject.toml").exists():  # used from a checkout, perhaps not installed
            paths = _joined(library, os.environ.get("PYTHONPATH", ""))
            self._environment["PYTHONPATH"] = paths

    def command_of(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the words that start a process: its command, and whatever must come before it."""
        return [_program(command[0]), *command[1:]]

    def listens(self, host: str, port: int) -> bool:
        """Return whether somebody listens."""
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((host, port)) == 0

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in a group of its own; its log goes on where an earlier one ended."""
        with (self.logs / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(
                self.command_of(name, command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait(self, name: str, timeout: float) -> None:
        """Wait for the end of a process while all others run.

        Raises
        ------
        DeploymentError
            If it fails or does not end in time, or another process ends.
        """
        deadline = time.monotonic() + timeout
        while (code := self._running[name].poll()) is None:
            self.check(deadline, f"The end of {name}")
        del self._running[name]
        if code:
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
        """Wait until somebody listens. Raises as `wait` does."""
        deadline = time.monotonic() + timeout
        while not self.listens(host, port):
            self.check(deadline, f"A listener on port {port}")

    def check(self, deadline: float, what: str) -> None:
        """Sleep a moment, unless it is too late or one of the lasting processes has ended."""
        for name, process in list(self._running.items()):
            if process.poll() is not None and name.startswith(_LASTING):
                self.on_end(name, process.returncode)
        if time.monotonic() > deadline:
            raise DeploymentError(f"{what} took too long; the logs are in {self.logs}")
        time.sleep(_POLL)

    def on_end(self, name: str, code: int) -> None:
        """Decide what the unexpected end of a lasting process means: here, that of them all."""
        raise DeploymentError(f"{name} ended with {code}: {self.log(name)}")

    def log(self, name: str) -> str:
        """Return what a process wrote."""
        path = self.logs / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """End a process and its group without a warning, as a loss of power does."""
        process = self._running.pop(name)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, nodes first; whoever does not end by itself is killed."""
        for process in reversed(self._running.values()):
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
        # The SuperLink starts a helper in a session of its own, which no group signal reaches.
        for pid in self.left():
            _signal(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Return the ids of processes of this deployment that still run (Linux only)."""
        marker, found = f"FLWR_HOME={self.home}".encode(), []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            pid = int(entry.parent.name)
            try:
                if marker in entry.read_bytes().split(b"\0") and pid != os.getpid():
                    found.append(pid)
            except OSError:
                continue  # it has ended, or belongs to somebody else
        return found


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _joined(first: Path, rest: str) -> str:
    return os.pathsep.join(filter(None, (str(first), rest)))


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _program(name: str) -> str:
    """Return the path of a program that lies beside this Python, or else wherever it is found."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(f"There is no command {name}: is flwr installed?")
    return found
