"""The time of a round with persons, beside that of the same records without.

    python benchmarks/person_round.py --repeats 3

Visits of `persons.py` at one client or at five, in one process. A run with
``unit="record"`` and one with ``unit="person"`` take turns. Printed is the processor time
of a round: the least of the repeats, for both, and their ratio. The first round is left
out, because a simulation reads ids once.
"""

import argparse
import time
from collections.abc import Sequence

from persons import generate

from flower_kmeans import Ball, PrivacyBudget, simulate
from flower_kmeans.cli.printing import quiet_logs
from flower_kmeans.strategies import (
    BY_NAME,
    FastLloyd,
    GLloyd,
    KMeansStrategy,
    PEMeans,
    SynopsisKMeans,
)

STRATEGIES: tuple[type[KMeansStrategy], ...] = (
    SynopsisKMeans,
    FastLloyd,
    GLloyd,
    PEMeans,
)
PERSONS = (2_000, 20_000)
CLIENTS = (1, 5)
_FEATURES = 8
_CLUSTERS = 8
_TRUST = "trusted-server"


def seconds_of(
    kind: type[KMeansStrategy], n_persons: int, n_clients: int, unit: str, seed: int
) -> float:
    """Return the mean processor time of the rounds after the first one."""
    visits = generate(n_persons, _FEATURES, _CLUSTERS, seed)
    owner = visits.persons % n_clients
    parts = [visits.records[owner == i] for i in range(n_clients)]
    numbers = {"n_records": len(visits.records)}
    persons = None
    if unit == "person":
        numbers = {"n_persons": n_persons}
        persons = [visits.persons[owner == i] for i in range(n_clients)]
    strategy = kind(
        _CLUSTERS,
        Ball(1.0, [0.0] * _FEATURES),
        PrivacyBudget(1.0, unit=unit),
        n_clients=n_clients,
        trust=_TRUST,
        **numbers,
    )
    stamps: list[float] = []
    simulate(
        strategy,
        parts,
        persons=persons,
        on_round=lambda _: stamps.append(time.process_time()),
    )
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def row(
    kind: type[KMeansStrategy], n_persons: int, n_clients: int, repeats: int
) -> str:
    """Return a row of the table."""
    found: dict[str, list[float]] = {"record": [], "person": []}
    for seed in range(repeats):
        for unit, seconds in found.items():
            seconds.append(seconds_of(kind, n_persons, n_clients, unit, seed))
    records = min(found["record"])
    persons = min(found["person"])
    name = next(name for name, each in BY_NAME.items() if each is kind)
    cells = (
        name,
        f"{n_persons:,}",
        str(n_clients),
        f"{1e3 * records:.1f}",
        f"{1e3 * persons:.1f}",
        f"{persons / records:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure rounds with persons.")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind")
    parser.add_argument(
        "--persons", type=int, nargs="+", default=PERSONS, help="numbers of persons"
    )
    given = parser.parse_args(arguments)
    with quiet_logs():
        print_table(given.persons, given.repeats)


def print_table(persons: Sequence[int], repeats: int) -> None:
    """Print a row for each strategy, number of persons and number of clients."""
    print("| strategy | persons | clients | records, ms | persons, ms | ratio |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind in STRATEGIES:
        for n_persons in persons:
            for n_clients in CLIENTS:
                print(row(kind, n_persons, n_clients, repeats), flush=True)


if __name__ == "__main__":
    main()
