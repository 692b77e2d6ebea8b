"""Reconstruction of records from the sums of successive rounds that somebody sees without noise.

    python benchmarks/reconstruction.py --data sklearn-iris sklearn-wine --runs 20

If one record alone moves from cluster a to cluster b between two rounds, the sum of b
grows by this record, and the sum of a shrinks by it. So a party that sees exact sums and
counts of both rounds reads the record (Yang, Luo and Li, *Breaking Privacy in Federated
Clustering*, arXiv 2511.07073, use such temporal regularities).

Every view is of whole runs through ``simulate`` with four clients:

plain       the server of ``Lloyd`` under ``plain``.
coalition   the server and one client of ``oblivious-server``. The client unmasks the
            noisy sums and knows its own records. The server knows the noise.
client      one client of ``oblivious-server`` without the server, so with the noise.

The attack claims a record where one cluster has a record more and another one a record
less, and their sums change by opposite vectors. It also claims the sum of a cluster
that has one record. A claim is right if it is, bit by bit, a record of another client
on the grid. It can be wrong where several records move. Noise leaves no such sums. So a
client is told in addition which record moved, from where and when. Its estimate is half
the difference of the two changes, and its error stands beside that of a guess without
any sum: the middle between the two centroids, which all clients know. A column's range
is [-1, 1].
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from protocols import box_of, in_box, strategy_of

from bench import script, tables
from bench.data import BUNDLED, Data
from bench.harness import Options, Row, Suite
from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.algorithms import Algorithm, Query
from flower_kmeans.algorithms.answers import answer_of, reconstructed
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.extras import require
from flower_kmeans.protocol import noise as round_noise
from flower_kmeans.protocol import states
from flower_kmeans.protocol.phases import sums as round_sums
from flower_kmeans.strategies import KMeansStrategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN = "plain"
COALITION = "coalition"
CLIENT = "client"
N_CLIENTS = 4
N_ROUNDS = 10
EPSILONS = (1.0, 4.0)
SHOWN = "sklearn-iris"
"""The data set of the picture."""
SHOWN_RUNS = 20
SHOWN_LIMIT = 4.0
"""Coordinates of the picture's edge. A column's range is [-1, 1]."""


@dataclass(frozen=True)
class Task:
    """One run, and who sees it. ``epsilon`` is ``None`` without privacy."""

    data: str
    view: str
    epsilon: float | None
    run: int


class Seen(NamedTuple):
    """The part of a round that an adversary sees, in grid units, and its query."""

    query: Query
    sums: IntArray  # (k, d)
    counts: IntArray  # (k,)


class Move(NamedTuple):
    """A record that moves between two clusters from one round to the next, and no other does."""

    source: int
    target: int
    record: IntArray  # (d,), in grid units


class Recorded(NamedTuple):
    """A run as an adversary sees it, and what it looks for."""

    algorithm: Algorithm
    rounds: list[Seen]
    records: IntArray  # (n, d), of the clients that do not take part in the attack
    labels: IntArray  # (rounds, n), their clusters


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield all runs of a view and an epsilon after each other."""
    for run in range(options.runs):
        for name in options.data:
            yield Task(name, PLAIN, None, run)
            for epsilon in options.chosen("epsilon", EPSILONS, float):
                yield Task(name, COALITION, epsilon, run)
                yield Task(name, CLIENT, epsilon, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Attack one run, and count what was found."""
    data = in_box(task.data, options)
    with without_warnings():
        recorded = run_seen(data, task.view, task.epsilon, task.run)
    true_moves = moves_of(recorded)
    known = {record.tobytes() for record in recorded.records}
    claimed = claimed_records(recorded.rounds)
    right = {claim for claim in claimed if claim in known}
    errors, guesses = told_errors(recorded, true_moves)
    return {
        "n_records": len(known),
        "n_moves": sum(len(moves) for moves in true_moves),
        "n_right": len(right),
        "n_wrong": len(claimed) - len(right),
        "error": float(np.median(errors)) if errors else float("nan"),
        "guess": float(np.median(guesses)) if guesses else float("nan"),
    }


# ------------------------------------------------------------------------- the attack


def claimed_records(rounds: Sequence[Seen]) -> set[bytes]:
    """Return the different records that an adversary reads off the sums of all rounds."""
    found = set()
    for seen in rounds:
        for cluster in np.flatnonzero(seen.counts == 1):
            found.add(seen.sums[cluster].tobytes())
    for before, after in pairwise(rounds):
        found |= {move.record.tobytes() for move in claimed_moves(before, after)}
    return found


def claimed_moves(before: Seen, after: Seen) -> list[Move]:
    """Return the moves of single records that an adversary reads off the sums of two rounds."""
    grown = after.sums - before.sums
    more = after.counts - before.counts
    found = []
    for target in np.flatnonzero(more == 1):
        for source in np.flatnonzero(more == -1):
            if np.array_equal(grown[target], -grown[source]):
                found.append(Move(int(source), int(target), grown[target]))
    return found


def told_errors(
    recorded: Recorded, true_moves: Sequence[Sequence[Move]]
) -> tuple[list[float], list[float]]:
    """Return errors of estimates of known moves, and of guesses, in units of the domain."""
    scale = 2.0**-recorded.algorithm.fraction_bits
    errors = []
    guesses = []
    for (before, after), moves in zip(
        pairwise(recorded.rounds), true_moves, strict=True
    ):
        grown = after.sums - before.sums
        for move in moves:
            estimate = (grown[move.target] - grown[move.source]) / 2
            errors.append(scale * float(np.linalg.norm(estimate - move.record)))
            places = after.query.arrays["centroids"]
            middle = (places[move.target] + places[move.source]) / 2
            guesses.append(scale * float(np.linalg.norm(middle - move.record)))
    return errors, guesses


def moves_of(recorded: Recorded) -> list[list[Move]]:
    """Return the records that truly moved alone between two clusters, by pair of rounds."""
    found = []
    for before, after in pairwise(recorded.labels):
        moved = np.flatnonzero(before != after)
        ends = np.concatenate([before[moved], after[moved]])
        here = []
        for index in moved:
            source = int(before[index])
            target = int(after[index])
            others = np.isin(ends, (source, target)).sum()
            if others == 2:  # no other record joins or leaves these two clusters
                here.append(Move(source, target, recorded.records[index]))
        found.append(here)
    return found


# --------------------------------------------------------------------------- the runs


def run_seen(data: Data, view: str, epsilon: float | None, seed: int) -> Recorded:
    """Run a strategy over clients with random parts of the records, and return what is seen."""
    n = len(data.records)
    rng = np.random.default_rng(seed)
    parts = np.array_split(data.records[rng.permutation(n)], N_CLIENTS)
    d = data.records.shape[1]
    strategy = strategy_of(
        "Lloyd" if view == PLAIN else "GLloyd",
        data,
        box_of(data),
        PrivacyBudget(epsilon),
        seed,
        n_clients=N_CLIENTS,
        n_rounds=N_ROUNDS,
        initial=rng.uniform(-1, 1, (data.n_clusters, d)),
        trust=PLAIN if view == PLAIN else "oblivious-server",
    )
    with recording(strategy) as record:
        simulate(strategy, parts)
    algorithm = strategy.algorithm
    own = parts[:0] if view == PLAIN else parts[:1]
    others = np.concatenate(parts[len(own) :])
    rounds = []
    labels = []
    for number in sorted(record.sums):
        query = record.queries[number]
        total = record.sums[number].copy()
        if view == COALITION:
            total -= record.noise[number]
        answer = algorithm.layout(number).unflatten(total)
        for part in own:
            answer = without(answer, algorithm, query, part)
        counts = answer.blocks[COUNTS] >> algorithm.fraction_bits
        rounds.append(Seen(query, answer.blocks[SUMS], counts))
        labels.append(labels_of(algorithm, query, others))
    on_grid = on_grid_of(algorithm, others)
    return Recorded(algorithm, rounds, on_grid, np.array(labels))


def without(
    answer: Statistic, algorithm: Algorithm, query: Query, part: FloatArray
) -> Statistic:
    """Return a sum without the answer of a client with these records."""
    records = GridRecords(part, algorithm.domain, algorithm.fraction_bits)
    layout = algorithm.layout(query.round)
    own = layout.flatten(answer_of(algorithm, query, records))
    return layout.unflatten(layout.flatten(answer) - own)


def on_grid_of(algorithm: Algorithm, records: FloatArray) -> IntArray:
    """Return records, (n, d), in grid units."""
    domain = algorithm.domain
    unit = domain.place(records)
    return domain.quantise(unit, algorithm.fraction_bits).astype(np.int64)


def labels_of(algorithm: Algorithm, query: Query, records: FloatArray) -> IntArray:
    """Return the cluster that counts each of the records, (n,), by the library's answers."""
    found = []
    for record in records:
        alone = GridRecords(record[None], algorithm.domain, algorithm.fraction_bits)
        counts = algorithm.statistic(query, alone).blocks[COUNTS]
        found.append(int(np.argmax(counts)))
    return np.array(found)


class Record:
    """Sums, queries and noise of a run, by round."""

    def __init__(self) -> None:
        self.sums: dict[int, IntArray] = {}
        self.queries: dict[int, Query] = {}
        self.noise: dict[int, IntArray] = {}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leave out the warnings of each run that its clusters may be noise."""
    logger = logging.getLogger("flower_kmeans")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def recording(strategy: KMeansStrategy) -> Iterator[Record]:
    """Record the sums as they are reconstructed or unmasked, and the server's noise."""
    record = Record()
    kind = type(strategy.algorithm)
    update = kind.update
    server_noise = round_noise.server_noise

    def reconstructing(
        algorithm: Any, number: int, words: IntArray, *more: Any
    ) -> Statistic:
        record.sums.setdefault(number, words.copy())
        return reconstructed(algorithm, number, words, *more)

    def updating(own: Any, state: Any, answer: Any, *more: Any) -> Any:
        record.queries.setdefault(state.round + 1, own.query(state))
        return update(own, state, answer, *more)

    def noising(algorithm: Any, plan: Any, number: int, *more: Any) -> IntArray:
        drawn: NDArray[np.int64] = server_noise(algorithm, plan, number, *more)
        record.noise[number] = drawn
        return drawn

    with ExitStack() as stack:
        for owner, name, replacement in (
            (kind, "update", updating),
            (round_sums, "reconstructed", reconstructing),
            (states, "reconstructed", reconstructing),
            (round_noise, "server_noise", noising),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield record


# ---------------------------------------------------------------- tables and picture


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a line for each data set, view and epsilon."""

    def total(name: str) -> Any:
        return lambda found: str(sum(row[name] for row in found))

    def middle(name: str) -> Any:
        def shown(found: list[Row]) -> str:
            values = [row[name] for row in found if not np.isnan(row[name])]
            return f"{np.median(values):.3g}" if values else ""

        return shown

    return tables.by_key(
        rows,
        {"data": "data", "who sees": "view", "epsilon": "epsilon"},
        {
            "runs": lambda found: str(len(found)),
            "others' records": total("n_records"),
            "single moves": total("n_moves"),
            "records found": total("n_right"),
            "wrong claims": total("n_wrong"),
            "error if told the move": middle("error"),
            "error of a guess": middle("guess"),
        },
        3,
    )


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw the records of one data set, and what three adversaries make of them."""
    require("matplotlib", "A plot", "plots")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    views = (
        (PLAIN, None, "the server under plain"),
        (COALITION, 4.0, "server and one client, GLloyd, epsilon 4"),
        (CLIENT, 4.0, "one client, GLloyd, epsilon 4, told the moves"),
    )
    for axes, (view, epsilon, title) in zip(panels, views, strict=True):
        _draw(axes, view, epsilon, min(options.runs, SHOWN_RUNS))
        axes.set_title(title, fontsize=9)
    handles = [
        Line2D([], [], ls="", marker=".", color="0.8", label="a record"),
        Line2D([], [], ls="", marker="o", mfc="none", color="C0", label="it moved"),
        Line2D([], [], color="C3", marker="x", label="its reconstruction"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw(axes: "Axes", view: str, epsilon: float | None, n_runs: int) -> None:
    """Draw the first two columns of records, and estimates with lines to their records."""
    data = in_box(SHOWN, Options(1, data=(SHOWN,)))
    axes.plot(data.records[:, 0], data.records[:, 1], ".", color="0.8")
    for run in range(n_runs):
        recorded = run_seen(data, view, epsilon, run)
        scale = 2.0**-recorded.algorithm.fraction_bits
        for (before, after), moves in zip(
            pairwise(recorded.rounds), moves_of(recorded), strict=True
        ):
            grown = after.sums - before.sums
            claimed = {move[:2] for move in claimed_moves(before, after)}
            for move in moves:
                if view != CLIENT and move[:2] not in claimed:
                    continue
                made = scale * (grown[move.target] - grown[move.source]) / 2
                true = scale * move.record
                axes.plot(
                    [made[0], true[0]], [made[1], true[1]], "-", color="C3", lw=0.5
                )
                axes.plot(*true[:2], "o", mfc="none", color="C0")
                axes.plot(*made[:2], "x", color="C3")
    axes.set_xlim(-SHOWN_LIMIT, SHOWN_LIMIT)
    axes.set_ylim(-SHOWN_LIMIT, SHOWN_LIMIT)


SUITE = Suite(
    "reconstruction",
    "Records read off the sums of successive rounds of Lloyd's algorithm, by those who see them "
    "without noise, and by a client that sees them with noise. Columns are scaled to [-1, 1]; "
    "four clients, ten rounds, random initial centroids, the default delta.",
    Task,
    {
        "n_records": int,
        "n_moves": int,
        "n_right": int,
        "n_wrong": int,
        "error": float,
        "guess": float,
    },
    tasks_of,
    measure,
    tables_of,
    {"reconstruction": plot},
    (*BUNDLED, "separated_8_8_34"),
    choices={"view": (PLAIN, COALITION, CLIENT)},
    runs=20,
)


if __name__ == "__main__":
    script.main(SUITE)
