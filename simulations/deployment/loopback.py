"""A whole deployment on this machine: one SuperLink and three SuperNodes, each process a real one.

Everything that docs/deploy.md sets up on several machines is set up here on 127.0.0.1, in a
directory of its own: certificates, node keys, a group key, the processes, one run. Then all of it
is stopped. The commands are the page's.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from credentials import make_group, make_link, make_node
from numpy.typing import NDArray

APP = Path(__file__).resolve().parent / "app"
NAME = "deployment"  # of the SuperLink in Flower's configuration
HOST = "127.0.0.1"
_POLL = 0.2
_GRACE = 10.0


class DeploymentError(Exception):
    """A process ended, or something took longer than it may."""


def fleet_is_grpc() -> bool:
    """Return whether nodes of the installed Flower speak gRPC, as 1.39 is the last to do."""
    return [int(part) for part in version("flwr").split(".")[:2]] <= [1, 39]


# ------------------------------------------------------------------------------ the page's commands


def superlink_command(directory: Path | str, host: str, port: int, fleet: str | None) -> list[str]:
    """Return the command of the SuperLink.

    Parameters
    ----------
    directory : path
        What ``credentials.py link`` made.
    host, port : str, int
        Where it listens to HTTP.
    fleet : str, optional
        Where it listens to gRPC from nodes, ``HOST:PORT``: flwr 1.39 only.
    """
    grpc = [] if fleet is None else ["--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet]
    return [
        "flower-superlink",
        *("--ssl-ca-certfile", f"{directory}/ca.crt"),
        *("--ssl-certfile", f"{directory}/server.pem"),
        *("--ssl-keyfile", f"{directory}/server.key"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--database", f"{directory}/superlink.db"),
        *("--host", host, "--port", str(port)),
        *grpc,
    ]


def supernode_command(
    directory: Path | str, superlink: str, port: int, config: Mapping[str, str]
) -> list[str]:
    """Return the command of one SuperNode.

    Parameters
    ----------
    directory : path
        What ``credentials.py node`` made, with the SuperLink's ``ca.crt`` beside it.
    superlink : str
        ``HOST:PORT`` where the SuperLink awaits nodes.
    port : int
        For the node's own processes only, on its 127.0.0.1.
    config : mapping from str to str
        The app's settings on this node.
    """
    return [
        "flower-supernode",
        *("--root-certificates", f"{directory}/ca.crt"),
        *("--auth-supernode-private-key", f"{directory}/node.key"),
        *("--superlink", superlink),
        *("--port", str(port)),
        *("--node-config", " ".join(f'{key}="{value}"' for key, value in config.items())),
    ]


def register_command(public_key: Path | str) -> list[str]:
    """Return the command that admits a node's public key."""
    return ["flwr", "supernode", "register", str(public_key), NAME]


def run_command(app: Path | str, config: Mapping[str, Any]) -> list[str]:
    """Return the command that runs the app and shows its log until it ends."""
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    return ["flwr", "run", str(app), NAME, "--stream", "--run-config", text]


def status_command() -> list[str]:
    """Return the command that says how runs went: ``flwr run`` ends with 0 in any case."""
    return ["flwr", "ls", NAME, "--format", "json"]


def flower_config(address: str, certificate: Path | str) -> str:
    """Return ``config.toml`` of whoever registers nodes and submits runs."""
    return (
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        f'address = "{address}"\nroot-certificates = "{certificate}"\n'
    )


# ------------------------------------------------------------------------------ processes


class Processes:
    """Processes that share a Flower home, and all end with this object's `stop`.

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
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in a group of its own."""
        with (self.logs / f"{name}.log").open("ab") as output:
            self._running[name] = subprocess.Popen(
                [_program(command[0]), *command[1:]],
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

    def run(self, name: str, command: Sequence[str], timeout: float) -> str:
        """Run a command to its end and return what it wrote. Raises as `wait` does."""
        self.start(name, command)
        self.wait(name, timeout)
        return self.log(name)

    def wait_for_port(self, port: int, timeout: float) -> None:
        """Wait until somebody listens. Raises as `wait` does."""
        deadline = time.monotonic() + timeout
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            self.check(deadline, f"A listener on port {port}")

    def check(self, deadline: float, what: str) -> None:
        """Sleep a moment, unless it is too late or one of the lasting processes has ended."""
        for name, process in self._running.items():
            if process.poll() is not None and name.startswith("super"):
                raise DeploymentError(f"{name} ended with {process.returncode}: {self.log(name)}")
        if time.monotonic() > deadline:
            raise DeploymentError(f"{what} took too long; the logs are in {self.logs}")
        time.sleep(_POLL)

    def log(self, name: str) -> str:
        """Return what a process wrote."""
        return (self.logs / f"{name}.log").read_text("utf-8", "replace")

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


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


# ------------------------------------------------------------------------------ a deployment


@dataclass(frozen=True)
class Deployment:
    """A running SuperLink with its SuperNodes.

    Attributes
    ----------
    directory : Path
        Credentials, data, results and logs.
    processes : Processes
    results : tuple of Path
        The result file of each node.
    report : Path
        What the server writes.
    """

    directory: Path
    processes: Processes
    results: tuple[Path, ...]
    report: Path

    def run(self, config: Mapping[str, Any], timeout: float) -> None:
        """Run the app once.

        Raises
        ------
        DeploymentError
            If the run fails or takes too long.
        """
        config = {**config, "n-clients": len(self.results), "report": str(self.report)}
        self.processes.run("run", run_command(APP, config), timeout)
        status = json.loads(self.processes.run("status", status_command(), 60))
        states = [run["status"] for run in status["runs"]]
        if states != ["finished:completed"]:
            raise DeploymentError(f"The run is {states}: {self.processes.log('run')}")


@contextmanager
def deployment(
    directory: Path, partitions: Sequence[NDArray[np.float64]], bounds: str, patience: float = 60.0
) -> Iterator[Deployment]:
    """Set a deployment up, and take it down in any case.

    Parameters
    ----------
    directory : Path
        An empty directory.
    partitions : sequence of ndarray of shape (n_i, d)
        The records of each node: npy for the first, csv for all others.
    bounds : str
        ``LOW:HIGH,...``, as the app reads them.
    patience : float
        Seconds to wait for one process to be ready.
    """
    port, fleet_port, *node_ports = free_ports(2 + len(partitions))
    address = f"{HOST}:{port}"
    fleet = f"{HOST}:{fleet_port}" if fleet_is_grpc() else None
    link = directory / "link"
    make_link(link, [HOST])
    make_group(directory / "group.key")
    processes = Processes(directory)
    (processes.home / "config.toml").write_text(flower_config(address, link / "ca.crt"), "utf-8")
    nodes, results = [], []
    try:
        processes.start("superlink", superlink_command(link, HOST, port, fleet))
        for i, records in enumerate(partitions):
            node = directory / f"node{i}"
            make_node(node)
            shutil.copy(link / "ca.crt", node)
            shutil.copy(directory / "group.key", node)  # keeps the mode
            data, result = node / ("records.csv" if i else "records.npy"), node / "result.npz"
            _write_records(data, records)
            nodes.append(node)
            results.append(result)
        for each in (port, fleet_port) if fleet else (port,):
            processes.wait_for_port(each, patience)
        for i, node in enumerate(nodes):
            processes.run(f"register{i}", register_command(node / "node.pub"), patience)
        for i, (node, node_port) in enumerate(zip(nodes, node_ports, strict=True)):
            settings = {
                "data": str(next(node.glob("records.*"))),
                "bounds": bounds,
                "group-key": str(node / "group.key"),
                "state": str(results[i].with_suffix(".state")),
                "result": str(results[i]),
            }
            processes.start(
                f"supernode{i}", supernode_command(node, fleet or address, node_port, settings)
            )
        yield Deployment(directory, processes, tuple(results), directory / "report.json")
    finally:
        processes.stop()


def _write_records(path: Path, records: NDArray[np.float64]) -> None:
    if path.suffix == ".npy":
        np.save(path, records)
        return
    header = ",".join(f"x{j}" for j in range(records.shape[1]))
    np.savetxt(path, records, fmt="%.17g", delimiter=",", header=header, comments="")


def example_partitions(n_nodes: int = 3) -> list[NDArray[np.float64]]:
    """Return 30,000 made-up records in the bounds of the app's configuration, one part per node."""
    rng = np.random.default_rng(5)
    centers = np.array([[-7.0, -7.0], [7.0, -6.0], [0.0, 8.0]])
    records = centers[rng.integers(3, size=30_000)] + rng.normal(size=(30_000, 2))
    return np.array_split(np.clip(records, -14, 14), n_nodes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Set up, run once on made-up records, show what came out, and take down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", type=Path, help="an empty one; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=0, help="default: the papers' rule")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the run")
    options = parser.parse_args(arguments)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flower-kmeans-"))
    directory.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with deployment(directory.resolve(), example_partitions(), "-14:14,-14:14") as running:
        ready = time.monotonic()
        running.run({"n-rounds": options.rounds}, options.timeout)
        done = time.monotonic()
    report = json.loads(running.report.read_text("utf-8"))
    for path in running.results:
        with np.load(path) as result:
            print(path)
            print(np.round(result["centroids"], 2))
    ends = report["seconds_at_the_end_of_rounds"]
    print(f"arrays at the server: {report['arrays_at_the_server']}")
    print(f"flwr {version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'} to the nodes")
    print(f"set-up {ready - begun:.1f} s, run {done - ready:.1f} s, of it in the strategy:")
    print(f"  rounds ended at {ends} s, all done at {report['seconds']:.1f} s")
    print(f"Everything is in {directory}")


if __name__ == "__main__":
    main()
