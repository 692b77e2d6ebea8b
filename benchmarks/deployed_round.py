"""Where the seconds of a deployed round go: ``python benchmarks/deployed_round.py`` (Linux).

The deployment of docs/deploy.md is set up on this machine with its defaults: a
SuperLink and three SuperNodes. A run's messages are stamped on their way: at the
server's grid, in the log of each SuperNode, and in the client's process. A round trip
ends with the reply that comes last, so the way of that message, and what the server
does before it sends the next ones, add up to the round. The installed Flower decides
which protocol the nodes speak.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import tables

HERE = Path(__file__).resolve().parent
HOOKS = HERE / "deployed_round_app"
STAMPS = 'stamps = ""\n'  # a setting of the hooked app
sys.path.insert(0, str(HERE.parent / "tests" / "deployment"))

from loopback import deployment, example_partitions, fleet_is_grpc, hooked_app  # noqa: E402

_PAUSE = 0.01  # between looks at the nodes' logs
_LONG_PULL = 0.5  # Flower waits about a second where a reply is not complete yet
_LINE = re.compile(
    rb"(Receiving|Received|Sending|Sent)(?::.*\(ID: (\w+)\)| successfully)"
)

Stamps = Mapping[str, float]
STAGES = (  # (from, to, what passes, whose)
    ("push", "Receiving", "the SuperNode asks for messages, every 3 s", "flwr"),
    (
        "Receiving",
        "started",
        "its SuperExec asks for a task, every second, and starts it",
        "flwr",
    ),
    ("started", "connected", "Python and flwr are imported", "flwr"),
    ("connected", "begun", "the process fetches message and app", "flwr"),
    ("begun", "called", "the app and flower_kmeans are imported", "ours"),
    ("called", "returned", "the client answers", "ours"),
    ("returned", "Sending", "the SuperNode looks for the reply, every 0.5 s", "flwr"),
    ("Sending", "Sent", "the SuperNode sends the reply", "flwr"),
    (
        "Sent",
        "pulled",
        "the server has the reply, for which it looks every 0.25 s",
        "both",
    ),
)


class Logs:
    """Stamps the lines of SuperNodes' logs as they appear."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.stamps: dict[str, dict[str, float]] = defaultdict(dict)  # by message
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(paths,))

    def __enter__(self) -> "Logs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self, paths: Sequence[Path]) -> None:
        files, current = [path.open("rb") for path in paths], dict[int, str]()
        while not self._ended.wait(_PAUSE):
            for i, file in enumerate(files):
                new, now = file.read(), time.time()
                for found in _LINE.finditer(new):
                    what, message_id = found[1].decode(), found[2]
                    if what == "Receiving":  # a node has one message at a time
                        current[i] = message_id.decode()
                    self.stamps[current[i]][what] = now
        for file in files:
            file.close()


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of stamps."""
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


def run(
    directory: Path, timeout: float, config: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run a deployment once, and return the stamps of each message, and the server's as ""."""
    paths = os.pathsep.join(
        filter(None, (str(HOOKS / "python"), os.environ.get("PYTHONPATH")))
    )
    os.environ["PYTHONPATH"] = paths
    # An installed library is compiled. Each process of a checkout would compile it
    # again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    settings = {"stamps": str(directory / "stamps{node}.jsonl")}
    app, server = (
        hooked_app(directory / "app", HOOKS, STAMPS),
        directory / "server.jsonl",
    )
    policy = {"trusts": [config["trust"]]} if "trust" in config else None
    with deployment(
        directory, example_partitions(), app=app, settings=settings, policy=policy
    ) as running:
        nodes = range(len(running.results))
        logs = [running.processes.logs / f"supernode{i}.log" for i in nodes]
        with Logs(logs) as watched:
            begun = time.time()
            running.run({"stamps": str(server), **config}, timeout)
            ended = time.time()
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    found[""] = {"submitted": begun, "ended": ended}
    for line in lines(server):
        found[line.pop("message", None) or line.pop("reply_to", "")] |= line
    for i in nodes:
        for line in lines(directory / f"stamps{i}.jsonl"):
            found[line.pop("message")] |= line
    for message_id, stamps in watched.stamps.items():
        found[message_id] |= stamps
    return found


def trips(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[Stamps]]]:
    """Return the round trips in order, each with its name and the stamps of its messages."""
    by_push: dict[float, list[Mapping[str, Any]]] = defaultdict(list)
    for message_id, stamps in found.items():
        if message_id:
            by_push[stamps["push"]].append(stamps)
    return [(each[0]["group"], each) for _, each in sorted(by_push.items())]


def seconds(message: Stamps) -> list[float]:
    """Return the seconds of each stage of a message."""
    return [message[until] - message[since] for since, until, *_ in STAGES]


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> list[str]:
    """Return median, least and most as text."""
    shown = statistics.median(values), min(values), max(values)
    return [f"{scale * each:.{digits}f}" for each in shown]


def round_of(trip: str) -> int:
    """Return the round of a trip, or 0 if it belongs to none."""
    _, _, number = trip.partition(" ")
    return int(number or 0)


def row(name: str, whose: str, values: Sequence[float], per_round: float) -> list[str]:
    """Return a row of the table of stages."""
    return [name, whose, *spread(values), f"{per_round:.2f}"]


def show_trips(
    all_trips: Sequence[tuple[str, list[Stamps]]], gaps: Sequence[float]
) -> None:
    """Print the time of each round trip, and of the server's work before it."""
    rows = []
    for (name, messages), gap in zip(all_trips, gaps, strict=True):
        took = max(each["pulled"] for each in messages) - messages[0]["push"]
        rows.append([name, f"{took:.2f}", f"{gap:.3f}"])
    print("\nEvery round trip, from its first message to its last reply:")
    print(tables.markdown(["trip", "s", "the server's work before it, s"], rows, 1))


def show_stages(
    all_trips: Sequence[tuple[str, list[Stamps]]], gaps: Sequence[float]
) -> None:
    """Print the seconds of each stage in the rounds after the first, which are alike."""
    later = [i for i, (name, _) in enumerate(all_trips) if round_of(name) > 1]
    n_rounds = len({round_of(all_trips[i][0]) for i in later})
    messages = [each for i in later for each in all_trips[i][1]]
    last = [max(all_trips[i][1], key=lambda each: each["pulled"]) for i in later]
    every = list(zip(*map(seconds, messages), strict=True))
    per_round = [sum(each) / n_rounds for each in zip(*map(seconds, last), strict=True)]
    rows = [
        row(what, whose, values, mean)
        for (*_, what, whose), values, mean in zip(
            STAGES, every, per_round, strict=True
        )
    ]
    work = [gaps[i] for i in later]
    rows.append(
        row("the server works, before it sends", "ours", work, sum(work) / n_rounds)
    )
    rows.append(["all", "", "", "", "", f"{sum(per_round) + sum(work) / n_rounds:.2f}"])
    print(
        f"\n{len(messages)} messages of {n_rounds} rounds after the first. The last column adds up "
        f"those messages of a round whose replies came last in its {len(later) / n_rounds:g} trips."
    )
    print(
        tables.markdown(
            ["stage", "whose", "median s", "least", "most", "s in a round"], rows, 2
        )
    )
    waits = [each["pulled"] - each["pull"] for each in messages]
    n_early = sum(each > _LONG_PULL for each in waits)
    pauses = sum(max(0.0, each["pull"] - each["Sent"]) for each in last) / n_rounds
    print(
        f"\n{n_early} of {len(waits)} replies were looked for before they were complete. The "
        f"strategy's own pauses are {pauses:.2f} s in a round."
    )


def show_answers(messages: Sequence[Mapping[str, Any]]) -> None:
    """Print the seconds of a client's steps in an answer."""
    parts = defaultdict[str, list[float]](list)
    names = dict.fromkeys(name for each in messages for name in each["parts"])
    for each in messages:
        whole = each["returned"] - each["called"]
        for name in names:
            parts[name].append(each["parts"].get(name, 0.0))
        parts["all else"].append(whole - sum(each["parts"].values()))
        parts["all"].append(whole)
    rows = [[name, *spread(values, 1000.0, 1)] for name, values in parts.items()]
    print("\nThe client's answers, in milliseconds:")
    print(tables.markdown(["part", "median ms", "least", "most"], rows, 1))


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the times of round trips, stages and answers."""
    all_trips = trips(found)
    gaps = [0.0]
    for (_, before), (_, after) in pairwise(all_trips):
        gaps.append(after[0]["push"] - max(each["pulled"] for each in before))
    show_trips(all_trips, gaps)
    show_stages(all_trips, gaps)
    show_answers(
        [
            each
            for name, messages in all_trips
            if round_of(name) > 1
            for each in messages
        ]
    )
    server = found[""]
    first = all_trips[0][1][0]["push"]
    end = max(each["pulled"] for each in all_trips[-1][1])
    rows = [
        ["from flwr run to the server's app", server["begun"] - server["submitted"]],
        ["imports of the server's app", server["loaded"] - server["begun"]],
        ["until the first message is sent", first - server["called"]],
        ["from the last reply to the report", server["returned"] - end],
        ["until flwr run ends", server["ended"] - server["returned"]],
    ]
    print("\nBefore and after the messages:")
    print(
        tables.markdown(
            ["what", "s"], [[what, f"{took:.2f}"] for what, took in rows], 1
        )
    )


def main() -> None:
    """Run once, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--directory", type=Path, help="an empty one; default: a temporary one"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for the run"
    )
    parser.add_argument(
        "--strategy", default="synopsis", help="as in the app's configuration"
    )
    parser.add_argument(
        "--trust", default="distributed-noise", help="or clients-only, ..."
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="default: the strategy's rule"
    )
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="flower-kmeans-"))
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "strategy": options.strategy,
        "trust": options.trust,
        "n-rounds": options.rounds,
    }
    before = os.getloadavg()[0]
    found = run(directory.resolve(), options.timeout, config)
    after = os.getloadavg()[0]
    print(
        f"flwr {version('flwr')}, {'gRPC' if fleet_is_grpc() else 'HTTP'} to the nodes; "
        f"{os.cpu_count()} processors; load {before:.1f} before and {after:.1f} after"
    )
    (directory / "stamps.json").write_text(json.dumps(found), "utf-8")
    show(found)
    print(f"All stamps are in {directory / 'stamps.json'}")


if __name__ == "__main__":
    main()
