"""Every fault on a real deployment, checked, and a table of what each did.

One SuperLink and its SuperNodes are set up anew for every fault: three under oblivious-server, five
under clients-only, of which four can add. The transport is that of the installed Flower;
interpreters of other environments add theirs, and work at the same time.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path

import fault_checks as checks
import numpy as np
from fault_runs import FAULTS, SECRET, VICTIM, Fault, KeptProcesses, Stage
from loopback import APP, deployment, example_partitions, fleet_is_grpc
from numpy.typing import NDArray
from relay import Relay

HOOKS = Path(__file__).resolve().parent / "fault_app"
TIMEOUT = 60.0  # seconds; an answer takes some 4 where nothing else runs, a return up to a minute
# Nodes of a deployment, and the fewest that a round needs: while one is away and one waits, fewer.
TRUSTS = {"oblivious-server": (3, 2), "clients-only": (5, 4)}


@dataclass
class Outcome:
    """What a fault did.

    Attributes
    ----------
    fault, trust, transport : str
    statuses : list of str
        How the runs ended, in Flower's words.
    seconds : list of float
        How long each run took, from ``flwr run`` to its end.
    dropped : list of str
        Which nodes were dropped when and why, by the last run's report.
    incidents : int
        How many entries its ``incidents`` has.
    charged : str
        How many runs the nodes' ledgers charged, and their epsilon; once if all have the same.
    ciphertexts : str
        How many ciphertexts were made, and how many differ.
    notes : list of str
    complaints : list of str
        Checks that failed; empty if all passed.
    """

    fault: str
    trust: str
    transport: str
    statuses: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    incidents: int = 0
    charged: str = ""
    ciphertexts: str = ""
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def transport() -> str:
    """Return the installed Flower and how its nodes speak."""
    return f"{version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'}"


def run_fault(
    name: str, directory: Path, trust: str = "oblivious-server", timeout: float = TIMEOUT
) -> Outcome:
    """Set a deployment up, produce one fault, check what followed and take all down.

    Parameters
    ----------
    name : str
        One of ``FAULTS``.
    directory : Path
        An empty directory.
    trust : str
        One of ``TRUSTS``.
    timeout : float
        Seconds after which a round trip ends in any case.
    """
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
            relays.append(Relay(address))
            stack.callback(relays[-1].close)
            return relays[-1].address

        processes = KeptProcesses(directory)
        running = stack.enter_context(
            deployment(
                directory,
                partitions,
                app=_hooked_app(directory / "app"),
                policy={"min_clients": 2, "trusts": [trust], **fault.policy},
                settings={"hooks": str(directory / "hooks{node}")},
                processes=processes,
                route=route,
            )
        )
        config = {"trust": trust, "min-clients": least}
        stage = Stage(running, processes, timeout, config, relays[0] if relays else None)
        fault.play(stage)
        outcome.statuses = running.statuses()
    outcome.seconds = [round(seconds, 1) for seconds in stage.runs]
    outcome.notes = stage.notes
    _check(outcome, fault, stage, partitions)
    if left := processes.left():
        outcome.complaints.append(f"{len(left)} processes are left")
    return outcome


def _check(
    outcome: Outcome, fault: Fault, stage: Stage, partitions: Sequence[NDArray[np.float64]]
) -> None:
    """Fill in what the files of a deployment show."""
    directory, results = stage.running.directory, stage.running.results
    sent = [checks.sent_by(stage.hooks(i)) for i in range(len(results))]
    every = [line for lines in sent for line in lines]
    complain = outcome.complaints.extend
    if outcome.statuses != list(fault.statuses):
        complain([f"the runs are {outcome.statuses} instead of {list(fault.statuses)}"])
    survivors = [i for i in range(len(results)) if i != VICTIM or fault.returns]
    complain(checks.result_complaints(results, survivors, partitions))
    report = json.loads(stage.report(len(stage.runs)).read_text("utf-8"))
    epsilon, delta = report["epsilon"], report["delta"]
    states = [directory / f"node{i}" / "state" for i in range(len(results))]
    complain(checks.ledger_complaints(states, len(fault.statuses), epsilon, delta))
    accounts = [checks.charged(state, delta) for state in states]
    outcome.charged = "; ".join(
        dict.fromkeys(f"{runs} (ε {total:.3g})" for runs, total in accounts)
    )
    complain(checks.secrecy_complaints(every))
    outcome.ciphertexts = "{} made, {} differ".format(*checks.n_ciphertexts(every))
    servers = [
        *directory.glob("report*"),  # each as JSON and as a page
        *(path for path in stage.processes.logs.glob("*.log") if "supernode" not in path.name),
        *(directory / "link").glob("superlink.db*"),
    ]
    complain(checks.leak_complaints(servers, results, partitions, [SECRET]))
    nodes = {line["node"]: i for i, lines in enumerate(sent) for line in lines}
    outcome.incidents = len(report["incidents"])
    dropped = list(checks.dropped(report, nodes))
    outcome.dropped = [f"node {node}, round {t}: {reason}" for node, t, reason in dropped]
    missed = {t for node, t, _ in dropped if node == VICTIM}
    if others := {node for node, _, _ in dropped} - {VICTIM}:
        complain([f"nodes {sorted(others)} were dropped, which nothing disturbed"])
    if lacking := set(fault.missed) - missed:
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
    lines = [
        "| fault | trust | flwr | the run | seconds (undisturbed) | the report's `dropped` | "
        "runs that each ledger charged | ciphertexts | checks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        usual = ", ".join(f"{s:.0f}" for s in plain.get((one.trust, one.transport), [])) or "-"
        cells = [
            one.fault,
            one.trust,
            one.transport,
            ", then ".join(status.removeprefix("finished:") for status in one.statuses),
            f"{' + '.join(f'{s:.0f}' for s in one.seconds)} ({usual})",
            " ".join(one.dropped + [f"({note})" for note in one.notes]) or "nobody",
            one.charged,
            one.ciphertexts,
            "passed" if not one.complaints else "FAILED: " + "; ".join(one.complaints),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _run_here(
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


@contextmanager
def _running_there(
    pythons: Sequence[str],
    names: Sequence[str],
    trusts: Sequence[str],
    directory: Path,
    timeout: float,
) -> Iterator[Callable[[], list[Outcome]]]:
    """Run the same with other interpreters at the same time; yield what awaits their outcomes."""
    outputs = [directory / f"outcomes-{i}.json" for i in range(len(pythons))]
    script, there = str(Path(__file__).resolve()), []
    for python, output in zip(pythons, outputs, strict=True):
        options = [
            "--faults",
            ",".join(names),
            "--trust",
            ",".join(trusts),
            "--directory",
            str(directory),
            "--json",
            str(output),
        ]
        there.append(subprocess.Popen([python, script, *options, "--timeout", str(timeout)]))

    def outcomes() -> list[Outcome]:
        for process in there:
            process.wait()
        values = [one for output in outputs for one in json.loads(output.read_text("utf-8"))]
        return [Outcome(**one) for one in values]

    try:
        yield outcomes
    finally:
        for process in there:
            process.terminate()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run faults and print their table; end with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", help=f"by default all: {', '.join(FAULTS)}")
    parser.add_argument("--trust", help=f"by default all: {', '.join(TRUSTS)}")
    parser.add_argument(
        "--flwr-python",
        action="append",
        default=[],
        metavar="PATH",
        help="the Python of another environment, with another Flower; may be repeated",
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="of one round trip, seconds")
    parser.add_argument("--directory", type=Path, help="default: a temporary one")
    parser.add_argument("--markdown", type=Path, help="write the table here, too")
    parser.add_argument("--json", type=Path, help="write all outcomes here, too")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # takes the processes down, too
    names = options.faults.split(",") if options.faults else list(FAULTS)
    if unknown := set(names) - set(FAULTS):
        parser.error(f"Expected faults from {list(FAULTS)}. Got {sorted(unknown)} instead.")
    trusts = options.trust.split(",") if options.trust else list(TRUSTS)
    if unknown := set(trusts) - set(TRUSTS):
        parser.error(f"Expected trust from {list(TRUSTS)}. Got {sorted(unknown)} instead.")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flower-kmeans-faults-"))
    directory.mkdir(parents=True, exist_ok=True)
    work = names, trusts, directory, options.timeout
    with _running_there(options.flwr_python, *work) as rest:
        outcomes = _run_here(*work) + rest()
    text = table(outcomes)
    print(text)
    print(f"Logs, reports and ledgers are in {directory}")
    if options.markdown:
        options.markdown.write_text(text, "utf-8")
    if options.json:
        values = [asdict(outcome) for outcome in outcomes]
        options.json.write_text(json.dumps(values, indent=1), "utf-8")
    sys.exit(any(outcome.complaints for outcome in outcomes))


if __name__ == "__main__":
    main()
