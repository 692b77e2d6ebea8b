"""The deployment of loopback.py between machines with addresses of their own: network namespaces.

Each machine is a namespace of the Linux kernel with one address, plugged into a switch
that is a namespace too. The network of the computer itself is not touched, and with the
namespaces all of it is gone. Every machine is closed but for the ports of
docs/deploy.md's table: it reaches and answers no others. Only the network is divided;
the machines share files, and a Flower home.

Needs root and iproute2.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loopback import (
    Deployment,
    demonstrate,
    deployment,
    example_partitions,
    fleet_is_grpc,
    options_of,
)
from numpy.typing import NDArray
from processes import DeploymentError, Processes

HTTP_PORT, GRPC_PORT, NODE_PORT = 8000, 9092, 9094  # as on the page
DELAY_MS, JITTER_MS, LOSS = 40, 10, 0.02

# plain  a network without faults
# netem  the kernel's netem: whatever leaves a machine is late, and some packets are lost
# relay  for kernels without netem: some packets that arrive are lost by a filter, and a relay
#        between nodes and SuperLink is late; it delays parts of a stream, not packets
CONDITIONS = ("plain", "netem", "relay")

_PREFIX = f"fk{os.getpid()}-"


@dataclass(frozen=True)
class Machine:
    """One machine, and what its firewall lets through."""

    name: str
    address: str
    serves: tuple[int, ...] = ()  # TCP ports at which others reach it
    reaches: tuple[int, ...] = ()  # TCP ports of others that it reaches


def machines_of(n_nodes: int) -> list[Machine]:
    """Return the machines of a deployment: ``link``, ``operator``, ``relay``, ``node0`` and so on.

    Their firewalls are the page's table of ports. The relay is a stretch of the way to
    the SuperLink and lets through what nodes need.
    """
    fleet = GRPC_PORT if fleet_is_grpc() else HTTP_PORT
    return [
        Machine("link", "10.99.0.1", serves=tuple({HTTP_PORT, fleet})),
        Machine("operator", "10.99.0.2", reaches=(HTTP_PORT,)),
        Machine("relay", "10.99.0.3", serves=(fleet,), reaches=(fleet,)),
        *(
            Machine(f"node{i}", f"10.99.0.{10 + i}", reaches=(fleet,))
            for i in range(n_nodes)
        ),
    ]


class Network:
    """Machines that exist: what `network` made."""

    def __init__(self, machines: Sequence[Machine], condition: str) -> None:
        self.machines = {machine.name: machine for machine in machines}
        self.condition = condition

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command on a machine."""
        return ["ip", "netns", "exec", _PREFIX + name, *command]

    def open_ports(self, name: str) -> set[int]:
        """Return the TCP ports at which a machine listens to others than itself."""
        rows = _do(
            self.inside(
                name, ["ss", "--tcp", "--listening", "--numeric", "--no-header"]
            )
        )
        locals_ = [row.split()[3].rpartition(":") for row in rows.splitlines()]
        return {
            int(port)
            for host, _, port in locals_
            if not host.startswith(("127.", "[::1]"))
        }

    def retransmitted(self, name: str) -> int:
        """Return how many TCP segments a machine had to send again."""
        rows = _do(self.inside(name, ["cat", "/proc/net/snmp"])).splitlines()
        names, values = (row.split() for row in rows if row.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])


@contextmanager
def network(machines: Sequence[Machine], condition: str = "plain") -> Iterator[Network]:
    """Make machines and their network, and remove them in any case."""
    with ExitStack() as stack:
        switch = _namespace(stack, "switch")
        _ip(switch, "link add br0 type bridge")
        _ip(switch, "link set br0 up")
        for i, machine in enumerate(machines):
            inside = _namespace(stack, machine.name)
            _ip(inside, f"link add eth0 type veth peer name port{i} netns {switch}")
            _ip(switch, f"link set port{i} master br0 up")
            _ip(inside, f"address add {machine.address}/24 dev eth0")
            _ip(inside, "link set lo up")
            _ip(inside, "link set eth0 up")
            _close(inside, machine)
            for words in _tc("eth0", condition):
                _do(["ip", "netns", "exec", inside, *words])
        yield Network(machines, condition)


def obstacle(condition: str = "plain") -> str | None:
    """Return why this computer cannot have such a network, or None if it can."""
    for tool in ("ip", "ss", "tc"):
        if shutil.which(tool) is None:
            return f"There is no command {tool}: iproute2 is not installed."
    if os.geteuid() != 0:
        return "Network namespaces need root."
    try:
        with network([Machine("probe", "10.99.0.1", serves=(1,))], condition):
            return None
    except DeploymentError as error:
        return str(error)


def _namespace(stack: ExitStack, name: str) -> str:
    full = _PREFIX + name
    _do(["ip", "netns", "add", full])
    stack.callback(_do, ["ip", "netns", "delete", full])
    return full


def _close(namespace: str, machine: Machine) -> None:
    # A firewall of routes, which needs nothing but ip: a packet between other ports
    # finds no way out, and no connection comes about without one. Within the machine,
    # all ports are open.
    for port in machine.serves:
        _ip(namespace, f"rule add pref 10 ipproto tcp sport {port} lookup main")
    for port in machine.reaches:
        _ip(namespace, f"rule add pref 10 ipproto tcp dport {port} lookup main")
    _ip(namespace, "rule add pref 20 prohibit")


def _tc(device: str, condition: str) -> list[list[str]]:
    """Return the commands that make a device's network as bad as the condition says."""
    change = ["tc", "qdisc", "add", "dev", device]
    if condition == "netem":
        late = ["delay", f"{DELAY_MS}ms", f"{JITTER_MS}ms"]
        return [[*change, "root", "netem", *late, "loss", f"{100 * LOSS:g}%"]]
    if condition == "relay":
        # Classic BPF. Load a random 32-bit number (at an offset that the kernel
        # reserves for it); from this bound on, return 2 (drop the packet), else -1 (go
        # on).
        bound = round(2**32 * (1 - LOSS))
        program = (
            f"4,32 0 0 {2**32 - 4096 + 56},53 0 1 {bound},6 0 0 2,6 0 0 {2**32 - 1}"
        )
        lose = ["tc", "filter", "add", "dev", device, "ingress", "bpf", "direct-action"]
        return [[*change, "clsact"], [*lose, "bytecode", program]]
    return []


def _ip(namespace: str, words: str) -> None:
    _do(["ip", "-n", namespace, *words.split()])


def _do(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeploymentError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


# ------------------------------------------------------------------------- a deployment


class MachineProcesses(Processes):
    """Processes on machines; all but SuperLink and SuperNodes run on the operator's."""

    def __init__(self, directory: Path, machines: Network) -> None:
        super().__init__(directory)
        self._network = machines

    def command_of(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the words that start a process on its machine."""
        machine = name.removeprefix("super")
        if machine not in self._network.machines:
            machine = "operator"
        return self._network.inside(machine, super().command_of(name, command))

    def listens(self, host: str, port: int) -> bool:
        """Return whether the machine with an address listens to others."""
        found = [
            each for each in self._network.machines.values() if each.address == host
        ]
        return any(port in self._network.open_ports(each.name) for each in found)


def deployed(
    machines: Network, directory: Path, partitions: Sequence[NDArray[np.float64]]
) -> AbstractContextManager[Deployment]:
    """Set a deployment up on a network's machines, and take it down in any case."""
    processes = MachineProcesses(directory, machines)
    relay = machines.machines["relay"].address

    def route(node: int, address: str) -> str:
        if machines.condition != "relay":
            return address
        between = f"{relay}:{address.rpartition(':')[2]}"
        if node == 0:  # one relay serves all nodes
            words = [
                sys.executable,
                str(Path(__file__).with_name("relay.py")),
                address,
                between,
            ]
            late = ["--delay", str(DELAY_MS / 1000), "--jitter", str(JITTER_MS / 1000)]
            processes.start("relay", [*words, *late])
        return between

    return deployment(
        directory,
        partitions,
        processes=processes,
        host=machines.machines["link"].address,
        listen="0.0.0.0",  # noqa: S104  as on the page
        ports=[HTTP_PORT, GRPC_PORT, *[NODE_PORT] * len(partitions)],
        route=route,
        patience=180.0,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Demonstrate a deployment between network namespaces."""
    parser = options_of(str(__doc__))
    parser.add_argument(
        "--network", choices=CONDITIONS, default="plain", help="default: plain"
    )
    options = parser.parse_args(arguments)
    if reason := obstacle(options.network):
        parser.exit(1, f"{reason}\n")
    partitions = example_partitions()

    @contextmanager
    def place(directory: Path) -> Iterator[Deployment]:
        with (
            network(machines_of(len(partitions)), options.network) as machines,
            deployed(machines, directory, partitions) as running,
        ):
            yield running

    demonstrate(options, place)


if __name__ == "__main__":
    main()
