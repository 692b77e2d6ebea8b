"""How often a run sends messages and waits for the answers: ``python benchmarks/hops.py``.

Hops of whole runs with five clients, by trust model, keys and opening, counted. A number of clients
changes none of them.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from uniform_clients import Size, forget
from weighing import WeighingGrid

from flower_kmeans import ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.federation.roster import write_group_key, write_members
from flower_kmeans.protocol.in_process import task_identity
from flower_kmeans.strategies import GLloyd, KMeansStrategy, Lloyd

N_CLIENTS = 5
KEYS = ("relayed", "file", "roster")
OPENINGS = ("deferred", "immediate", "simple")
NONE = "none"


@dataclass(frozen=True)
class Task:
    """One run."""

    trust: str
    keys: str
    opening: str
    rounds: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every trust model with all keys and openings that it has."""
    for rounds in options.chosen("rounds", (7,), int):
        yield from (Task(trust, NONE, NONE, rounds) for trust in ("plain", "trusted-server"))
        yield from (Task("oblivious-server", keys, NONE, rounds) for keys in KEYS)
        yield from (
            Task("distributed-noise", keys, opening, rounds)
            for keys in KEYS
            for opening in OPENINGS
        )


def strategy_of(task: Task, size: Size) -> KMeansStrategy:
    """Return a strategy of a trust model."""
    if task.trust == "plain":
        return Lloyd(size.clusters, size.box(), n_rounds=task.rounds, n_clients=size.clients)
    given = {"keys": task.keys, "opening": task.opening}
    return GLloyd(
        size.clusters,
        size.box(),
        PrivacyBudget(1.0),
        n_records=1000 * size.clients,
        n_clients=size.clients,
        n_rounds=task.rounds,
        trust=task.trust,
        **{name: value for name, value in given.items() if value != NONE},
    )


def policies_for(keys: str, directory: Path) -> list[ClientPolicy]:
    """Return the clients' policies, with the files that they name."""
    policy = ClientPolicy.for_simulation()
    if keys == "file":
        path = directory / "group.key"
        write_group_key(path)
        return N_CLIENTS * [replace(policy, group_key_file=str(path))]
    if keys == "roster":
        names = [f"member-{i}" for i in range(N_CLIENTS)]
        *secrets, roster = write_members(directory / "members", names)
        return [
            replace(policy, roster_file=str(roster), member_key_file=str(secret))
            for secret in secrets
        ]
    return N_CLIENTS * [policy]


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run it once and count."""
    size = Size(N_CLIENTS, clusters=2)
    strategy = strategy_of(task, size)
    made = (strategy.trust, strategy.keys, strategy.opening)
    if made != (task.trust, task.keys, task.opening):
        raise ValueError(f"Expected a strategy as {task} says. Got {made} instead.")
    with tempfile.TemporaryDirectory() as directory, task_identity():
        policies = policies_for(task.keys, Path(directory))
        apps = [kmeans_client_app(size.load, policy, forget) for policy in policies]

        def app(message: Message, context: Context) -> Message:
            return apps[int(context.node_config["partition-id"])](message, context)

        grid = WeighingGrid(app, N_CLIENTS, lambda hop, client: False)
        strategy.start(grid)
    return {"hops": len(grid.pushes), "messages": sum(grid.pushes)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the hops of each kind of run."""
    lines = [
        [
            *(str(row[name]) for name in ("trust", "keys", "opening", "rounds", "hops")),
            str(row["hops"] - row["rounds"]),
            f"{row['messages'] / N_CLIENTS:.1f}",
        ]
        for row in rows
    ]
    head = ["trust", "keys", "opening", "rounds", "hops", "of them beside the rounds"]
    return tables.markdown([*head, "messages / client"], lines, 3)


SUITE = Suite(
    "hops",
    "How often a run sends messages and waits for the answers, by trust model, keys and opening; "
    f"counted, with {N_CLIENTS} clients.",
    Task,
    {"hops": int, "messages": int},
    tasks_of,
    measure,
    tables_of,
    runs=1,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
