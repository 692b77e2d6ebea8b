"""Every fault on a real deployment, checked, and a table of what each did.

One SuperLink and its SuperNodes are set up anew for every fault: three under oblivious-server, five
under clients-only, of which four can add. The transport is that of the installed Flower.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path

import checks
import numpy as np
from fault_runs import FAULTS, SECRET, VICTIM, Fault, Stage
from loopback import APP, deployment, example_partitions, fleet_is_grpc
from numpy.typing import NDArray
from relay import Relay

from flower_kmeans.bench import tables

HOOKS = Path(__file__).resolve().parent / "fault_app"
TIMEOUT = 60.0  # seconds; an answer takes some 4 where nothing else runs, a return up to a minute
# Nodes of a deployment, and the fewest that a round needs: while one is away and one waits, fewer.
TRUSTS = {"oblivious-server": (3, 2), "clients-only": (5, 4)}


@dataclass
class Outcome:
    """What a fault did."""

    fault: str
    trust: str
    transport: str
    statuses: list[str] = field(default_factory=list)  # of the runs, in Flower's words
    seconds: list[float] = field(default_factory=list)  # of each run
    dropped: list[str] = field(default_factory=list)  # which nodes, when and why
    charged: str = ""  # runs that the ledgers charged, and their epsilon
    ciphertexts: str = ""  # how many were made, and how many differ
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # checks that failed


def transport() -> str:
    """Return the installed Flower and how its nodes speak."""
    return f"{version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'}"


def run_fault(
    name: str, directory: Path, trust: str = "oblivious-server", timeout: float = TIMEOUT
) -> Outcome:
    """Set a deployment up, produce one fault, check what followed and take all down."""
    fault, outcome = FAULTS[name], Outcome(name, trust, transport())
    n_nodes, least = TRUSTS[trust]
    partitions = example_partitions(n_nodes)
    for i in range(len(partitions)):
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
        config = {"trust": trust, "min-clients": least}
        stage = Stage(running, timeout, config, relays[0] if relays else None)
        fault.play(stage)
        outcome.statuses = running.statuses()
    outcome.seconds = [round(seconds, 1) for seconds in stage.runs]
    outcome.notes = stage.notes
    _check(outcome, fault, stage, partitions)
    if left := stage.processes.left():
        outcome.complaints.append(f"{len(left)} processes are left")
    return outcome


def _check(
    outcome: Outcome, fault: Fault, stage: Stage, partitions: Sequence[NDArray[np.float64]]
) -> None:
    """Fill in what the files of a deployment show."""
    directory, results = stage.running.directory, stage.running.results
    sent = [stage.sent(i) for i in range(len(results))]
    every = [line for lines in sent for line in lines]
    complain = outcome.complaints.extend
    if outcome.statuses != list(fault.statuses):
        complain([f"the runs are {outcome.statuses} instead of {list(fault.statuses)}"])
    must_have = [i for i in range(len(results)) if i != VICTIM or fault.returns]
    complain(checks.result_complaints(results, must_have, partitions))
    report = stage.last_report()
    epsilon, delta = report["epsilon"], report["delta"]
    states = [directory / f"node{i}" / "state" for i in range(len(results))]
    complain(checks.ledger_complaints(states, len(fault.statuses), epsilon, delta))
    accounts = [checks.charged(state, delta) for state in states]
    charged = dict.fromkeys(f"{runs} (ε {total:.3g})" for runs, total in accounts)
    outcome.charged = "; ".join(charged)
    complain(checks.secrecy_complaints(every))
    outcome.ciphertexts = "{} made, {} differ".format(*checks.n_ciphertexts(every))
    # A node's own log may hold its error's text.
    files = [file for file in checks.server_files(stage.running) if "supernode" not in file.name]
    found = [checks.read_result(path)[0] for path in results if path.exists()]
    complain(checks.leak_complaints(files, [*found, *(part[:20] for part in partitions)], [SECRET]))
    ours = {line["node"]: i for i, lines in enumerate(sent) for line in lines}
    dropped = [(ours.get(entry["node_id"], -1), entry) for entry in report["dropped"]]
    outcome.dropped = [f"node {i}, round {one['round']}: {one['reason']}" for i, one in dropped]
    if others := {i for i, _ in dropped} - {VICTIM}:
        complain([f"nodes {sorted(others)} were dropped, which nothing disturbed"])
    if lacking := set(fault.missed) - {one["round"] for i, one in dropped if i == VICTIM}:
        complain([f"the report names nobody for rounds {sorted(lacking)}"])
    if fault.returns and report["answers"][-1] != len(results):
        complain(["the node's answer is not in the last round"])
    complain(fault.also(stage))


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


# ------------------------------------------------------------------------------ the table


def table(outcomes: Iterable[Outcome]) -> str:
    """Return outcomes as a Markdown table, each beside the undisturbed run of its transport."""
    outcomes = list(outcomes)
    plain = {
        (one.trust, one.transport): one.seconds for one in outcomes if one.fault == "undisturbed"
    }
    lines = []
    for one in outcomes:
        usual = ", ".join(f"{s:.0f}" for s in plain.get((one.trust, one.transport), [])) or "-"
        seconds = " + ".join(f"{s:.0f}" for s in one.seconds)
        line = {
            "fault": one.fault,
            "trust": one.trust,
            "flwr": one.transport,
            "the run": ", then ".join(each.removeprefix("finished:") for each in one.statuses),
            "seconds (undisturbed)": f"{seconds} ({usual})",
            "the report's `dropped`": " ".join([*one.dropped, *(f"({n})" for n in one.notes)])
            or "nobody",
            "runs that each ledger charged": one.charged,
            "ciphertexts": one.ciphertexts,
            "checks": "FAILED: " + "; ".join(one.complaints) if one.complaints else "passed",
        }
        lines.append(line)
    cells = [list(line.values()) for line in lines]
    return tables.markdown(list(lines[0]), cells, len(lines[0])) + "\n"


def _run(
    names: Sequence[str], trusts: Sequence[str], directory: Path, timeout: float
) -> list[Outcome]:
    outcomes = []
    for trust, name in product(trusts, names):
        place = directory / f"{transport().replace(', ', '-')}-{trust}-{name}"
        place.mkdir(parents=True)
        begun = time.monotonic()
        try:
            outcome = run_fault(name, place.resolve(), trust, timeout)
        except Exception as error:
            failed = [f"{type(error).__name__}: {error}"]
            outcome = Outcome(name, trust, transport(), complaints=failed)
        outcomes.append(outcome)
        state, seconds = "; ".join(outcome.complaints) or "passed", time.monotonic() - begun
        print(f"{name} ({trust}, {transport()}): {state}, {seconds:.0f} s", flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run faults and print their table; end with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", help=f"by default all: {', '.join(FAULTS)}")
    parser.add_argument("--trust", help=f"by default all: {', '.join(TRUSTS)}")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="of one round trip, seconds")
    parser.add_argument("--directory", type=Path, help="default: a temporary one")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # takes the processes down, too
    names = options.faults.split(",") if options.faults else list(FAULTS)
    trusts = options.trust.split(",") if options.trust else list(TRUSTS)
    for found, known in ((names, list(FAULTS)), (trusts, list(TRUSTS))):
        if unknown := set(found) - set(known):
            parser.error(f"Expected some of {known}. Got {sorted(unknown)} instead.")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flower-kmeans-faults-"))
    directory.mkdir(parents=True, exist_ok=True)
    outcomes = _run(names, trusts, directory, options.timeout)
    print(table(outcomes), f"Logs, reports and ledgers are in {directory}", sep="\n")
    sys.exit(any(outcome.complaints for outcome in outcomes))


if __name__ == "__main__":
    main()
