"""A whole deployment on this machine: one SuperLink and three SuperNodes, each process a real one.

Everything that docs/deploy.md sets up on several machines is set up here on 127.0.0.1,
in a separate directory: certificates, node keys, members' keys and their roster, the
processes, one run. Then all of it is stopped. The commands are the page's.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from processes import DeploymentError, Processes, free_ports

from flower_kmeans.files import open_private
from flower_kmeans.protocol.roster import write_members

ROOT = Path(__file__).resolve().parents[2]
CREDENTIALS = ROOT / "simulations" / "deployment" / "credentials.py"
APP = ROOT / "simulations" / "deployment" / "app"
NAME = "deployment"  # of the SuperLink in Flower's configuration
HOST = "127.0.0.1"
# of the made-up records, as in the app's configuration
BOUNDS = ((-14.0, 14.0), (-14.0, 14.0))


def fleet_is_grpc() -> bool:
    """Return whether nodes of the installed Flower speak gRPC, as 1.39 is the last to do."""
    return [int(part) for part in version("flwr").split(".")[:2]] <= [1, 39]


# ------------------------------------------------------------------ the page's commands


def make_link(directory: Path, names: Sequence[str]) -> None:
    """Make the SuperLink's certificate for these names and addresses, as on the page."""
    _credentials(
        "link", str(directory), *(word for name in names for word in ("--name", name))
    )


def make_node(directory: Path) -> None:
    """Make the key pair of one SuperNode, as on the page."""
    _credentials("node", str(directory))


def _credentials(*words: str) -> None:
    command = [sys.executable, str(CREDENTIALS), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def superlink_command(
    directory: Path | str, host: str, port: int, fleet: str | None
) -> list[str]:
    """Return the command of the SuperLink; ``fleet`` is for nodes by gRPC, if any."""
    grpc = (
        []
        if fleet is None
        else ["--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet]
    )
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
    """Return the command of one SuperNode; ``port`` is for the node's own processes only."""
    return [
        "flower-supernode",
        *("--root-certificates", f"{directory}/ca.crt"),
        *("--auth-supernode-private-key", f"{directory}/node.key"),
        *("--superlink", superlink),
        *("--port", str(port)),
        *(
            "--node-config",
            " ".join(f'{key}="{value}"' for key, value in config.items()),
        ),
    ]


def check_command(
    policy_file: Path | str,
    data: Path | str,
    superlink: str | None = None,
    certificate: Path | str = "ca.crt",
) -> list[str]:
    """Return the command that says whether a node could take part, and reach its SuperLink."""
    link = (
        ["--superlink", superlink, "--root-certificates", str(certificate)]
        if superlink
        else []
    )
    words = [
        "flower-kmeans",
        "check",
        "--policy-file",
        str(policy_file),
        "--data",
        str(data),
    ]
    return [*words, *link]


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
    """Return ``config.toml`` for registering nodes and submitting runs."""
    return (
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        f'address = "{address}"\nroot-certificates = "{certificate}"\n'
    )


def policy_text(
    bounds: Sequence[tuple[float, float]],
    settings: Mapping[str, Any] | None = None,
    name: str = "a",
) -> str:
    """Return ``policy.toml`` of a node's operator: with a roster, and noise by the clients alone.

    ``settings`` are what differs from that or comes beside it; ``None`` leaves a
    setting out. A ``domain`` among them is the path of a domain.toml.
    """
    values = {
        "trusts": ["distributed-noise"],
        "roster_file": "../member/roster.toml",
        "member_key_file": f"../member/{name}.key",
        "state_dir": "state",
        **(settings or {}),
    }
    lower, upper = ([pair[side] for pair in bounds] for side in (0, 1))
    given = {key: value for key, value in values.items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    if "domain" not in given:
        lines += ["", "[domain]", f"lower = {lower}", f"upper = {upper}"]
    return "\n".join([*lines, ""])


def hooked_app(path: Path, hooks: Path, settings: str = "", app: Path = APP) -> Path:
    """Make a copy of an app with hooks around its sides, and with further settings."""
    shutil.copytree(app, path, ignore=shutil.ignore_patterns("__pycache__"))
    project = path / "pyproject.toml"
    text = project.read_text("utf-8")
    for file in hooks.glob("*.py"):
        shutil.copy(file, path)
        side = file.stem.removesuffix("_hooks")
        text = text.replace(f'"{side}_app:app"', f'"{side}_hooks:app"')
    project.write_text(text + settings, "utf-8")
    return path


# ------------------------------------------------------------------------- a deployment


@dataclass(frozen=True)
class Deployment:
    """A running SuperLink with its SuperNodes."""

    directory: Path  # of credentials, data, results and logs
    processes: Processes
    address: str  # of the SuperLink for HTTP
    fleet: str  # of the SuperLink for nodes
    results: tuple[Path, ...]  # of each node
    report: Path  # the server's; beside it is the same as a page
    app: Path
    roster: Path  # the data holders', for the server

    def run(self, config: Mapping[str, Any], timeout: float) -> None:
        """Run the app once."""
        self.processes.run("run", self.command(config), timeout)
        status = self.statuses()[-1]
        if status != "finished:completed":
            raise DeploymentError(f"The run is {status}: {self.processes.log('run')}")

    def command(self, config: Mapping[str, Any]) -> list[str]:
        """Return the command that runs the app once; ``None`` leaves a setting to the app."""
        usual = {"n-clients": len(self.results), "report": str(self.report)}
        config = {**usual, "roster": str(self.roster), **config}
        return run_command(self.app, {k: v for k, v in config.items() if v is not None})

    def statuses(self) -> list[str]:
        """Return how the runs went, in Flower's words, oldest first."""
        runs = json.loads(self.processes.run("status", status_command(), 60))["runs"]
        return [str(run["status"]) for run in reversed(runs)]


@contextmanager
def deployment(
    directory: Path,
    partitions: Sequence[NDArray[np.float64]],
    bounds: Sequence[tuple[float, float]] = BOUNDS,
    *,
    is_vertical: bool = False,
    app: Path = APP,
    policy: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    processes: Processes | None = None,
    host: str = HOST,
    listen: str | None = None,
    ports: Sequence[int] | None = None,
    route: Callable[[int, str], str] = lambda node, address: address,
    patience: float = 60.0,
) -> Iterator[Deployment]:
    """Set a deployment up in an empty directory, and take it down in any case.

    ``bounds`` are those of every column, of which a node of a vertical run pins its
    share. ``policy`` and ``settings`` are further ones of every node, ``{node}`` being
    its number. ``route(node, address)`` returns by which address a node reaches the
    SuperLink, whose certificate names that as well. A process may take ``patience``
    seconds to be ready.
    """
    port, fleet_port, *node_ports = ports or free_ports(2 + len(partitions))
    grpc, listen = fleet_is_grpc(), listen or host
    address, link = f"{host}:{port}", directory / "link"
    names = [chr(ord("a") + i) for i in range(len(partitions))]
    *_, roster = write_members(directory / "member", names)
    with processes or Processes(directory) as processes:
        config = flower_config(address, link / "ca.crt")
        (processes.home / "config.toml").write_text(config, "utf-8")
        nodes = [directory / f"node{i}" for i in range(len(partitions))]
        fleet_address = f"{host}:{fleet_port}" if grpc else address
        routes = [route(i, fleet_address) for i in range(len(nodes))]
        make_link(link, [host, *(each.rpartition(":")[0] for each in routes)])
        fleet = f"{listen}:{fleet_port}" if grpc else None
        processes.start("superlink", superlink_command(link, listen, port, fleet))
        for each in (port, fleet_port) if grpc else (port,):
            processes.wait_for_port(host, each, patience)
        commands = {}
        for i, (node, node_port) in enumerate(zip(nodes, node_ports, strict=True)):
            before = sum(each.shape[1] for each in partitions[:i]) if is_vertical else 0
            own_bounds = bounds[before : before + partitions[i].shape[1]]
            config = set_up_node(
                node,
                partitions[i],
                policy_text(own_bounds, policy, names[i]),
                {
                    key: value.replace("{node}", str(i))
                    for key, value in (settings or {}).items()
                },
            )
            commands[f"supernode{i}"] = supernode_command(
                node, routes[i], node_port, config
            )
            processes.run(f"register{i}", register_command(node / "node.pub"), patience)
        for name, command in commands.items():  # when all are admitted
            processes.start(name, command)
        results = tuple(node / "result.npz" for node in nodes)
        report = directory / "report.json"
        yield Deployment(
            directory, processes, address, fleet_address, results, report, app, roster
        )


def set_up_node(
    node: Path, records: NDArray[np.float64], policy: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """Make a node's credentials and files beside the SuperLink's; return its configuration."""
    make_node(node)
    shutil.copy(node.parent / "link" / "ca.crt", node)
    data = node / ("records.npy" if node.name == "node0" else "records.csv")
    policy_file = node / "policy.toml"
    write_records(data, records)
    policy_file.write_text(policy, "utf-8")
    policy_file.chmod(0o600)
    result = str(node / "result.npz")
    return {
        "data": str(data),
        "policy-file": str(policy_file),
        "result": result,
        **settings,
    }


def write_records(path: Path, records: NDArray[np.float64]) -> None:
    """Write a node's records as npy or csv, for its owner alone."""
    header = ",".join(f"x{j}" for j in range(records.shape[1]))
    with open_private(path) as file:
        if path.suffix == ".npy":
            np.save(file, records)
        else:
            np.savetxt(
                file, records, fmt="%.17g", delimiter=",", header=header, comments=""
            )


def example_partitions(n_nodes: int = 3) -> list[NDArray[np.float64]]:
    """Return 30,000 made-up records in the bounds of the app's configuration, one part per node."""
    rng = np.random.default_rng(5)
    centers = np.array([[-7.0, -7.0], [7.0, -6.0], [0.0, 8.0]])
    records = centers[rng.integers(3, size=30_000)] + rng.normal(size=(30_000, 2))
    return np.array_split(np.clip(records, -14, 14), n_nodes)


def options_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every demonstration."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument(
        "--directory", type=Path, help="an empty one; default: a temporary one"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="default: the strategy's rule"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for the run"
    )
    return parser


def demonstrate(
    options: argparse.Namespace,
    place: Callable[[Path], AbstractContextManager[Deployment]],
    config: Mapping[str, Any] | None = None,
) -> None:
    """Set up, run once on made-up records, print the results, and take down."""
    # takes the processes down, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flower-kmeans-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"Setting up in {directory}", flush=True)
    begun, load = time.monotonic(), os.getloadavg()[0]
    try:
        with place(directory.resolve()) as running:
            print(
                f"Set up in {time.monotonic() - begun:.0f} s; now it runs", flush=True
            )
            running.run({"n-rounds": options.rounds, **(config or {})}, options.timeout)
    except DeploymentError as error:
        sys.exit(
            f"Error: {error}\nOn a busy machine try --timeout above {options.timeout:g}."
        )
    report = json.loads(running.report.read_text("utf-8"))
    for path in running.results:
        with np.load(path) as result:
            print(path, np.round(result["centroids"], 2), sep="\n")
    print(f"arrays at the server: {report['arrays_at_the_server']}")
    print(
        f"flwr {version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'} to the nodes"
    )
    ends = report["seconds_at_the_end_of_rounds"]
    print(f"rounds ended at {ends} s, all done at {report['seconds']:.1f} s")
    later = [after - before for before, after in pairwise(ends)]
    print(f"enrolment and round 1: {ends[0]:.1f} s; a later round: {_range(later)}")
    print(
        f"{os.cpu_count()} processors; load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    print(f"Report, logs and results are in {directory}")


def _range(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s" if seconds else "none"


def main(arguments: Sequence[str] | None = None) -> None:
    """Demonstrate a deployment on loopback."""
    parser = options_of(str(__doc__))
    parser.add_argument(
        "--nodes", type=int, default=3, help="number of nodes, at least 3"
    )
    parser.add_argument(
        "--trust", default="distributed-noise", help="or clients-only, ..."
    )
    options = parser.parse_args(arguments)
    partitions, policy = example_partitions(options.nodes), {"trusts": [options.trust]}

    def place(directory: Path) -> AbstractContextManager[Deployment]:
        return deployment(directory, partitions, policy=policy)

    demonstrate(options, place, {"trust": options.trust})


if __name__ == "__main__":
    main()
