"""The time of float32 embeddings, beside scikit-learn and faiss.

    python benchmarks/embedding_speed.py pass
    python benchmarks/embedding_speed.py round
    python benchmarks/embedding_speed.py fit

Records are directions around 60 centres, as float32. ``pass`` prints the processor time
of one pass over them in one thread, which is one iteration of k-means: that of
scikit-learn's KMeans in float32 (its private kernel), and a client's sums by the
compiled kernel in a box, a ball and on a sphere, without and with the checked copy of
the records that a run makes. Calls take turns; times and ratios are medians.

``fit`` prints the processor time and the peak memory of whole fits in a ball, each in a
separate process, beside scikit-learn's KMeans, and faiss's if it is installed, with
ten iterations. Private strategies have epsilon 1 under ``trusted-server``. A fit that
has taken ``--limit`` seconds ends after its round, and its time is projected to all
rounds. VerticalKMeans refuses so many clusters and columns: its row has the errors, and
the plan of the largest run that it takes.

``round`` prints the processor time of a round of `Lloyd` under ``plain``, with
`simulate`, over an iteration of scikit-learn's KMeans, and where the time goes.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import threadpool_limits

from flower_kmeans import (
    Ball,
    Box,
    PrivacyBudget,
    simulate,
    strategies,
)
from flower_kmeans.algorithms import lloyd
from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.cli.printing import quiet_logs
from flower_kmeans.data.domain import Domain, GridRecords, Sphere
from flower_kmeans.data.sources import as_source
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol import records as records_of_run
from flower_kmeans.simulation import in_process
from flower_kmeans.strategies import RoundInfo

# records, columns, clusters
PASSES = (
    (200_000, 384, 50),
    (100_000, 768, 20),
    (100_000, 64, 20),
    (200_000, 32, 20),
    (200_000, 10, 20),
    (500_000, 3, 20),
)
# sizes of rounds
ROUNDS = PASSES[:2]
FITS = (
    "scikit-learn",
    "faiss",
    "Lloyd",
    "SuLloyd",
    "GLloyd",
    "FastLloyd",
    "SynopsisKMeans",
    "HDPEMeans",
    "FedDPKMeans",
    "ConstrainedLloyd",
    "PEMeans",
    "VerticalKMeans",
)
N_RECORDS = 100_000
N_FEATURES = 768
N_CLUSTERS = 50
N_CLIENTS = 20
N_ITERATIONS = 10
N_SERVER_POINTS = 1_000  # public points for FedDPKMeans
# the largest run over columns
MOST_VERTICAL = 16
MOST_VERTICAL_COLUMNS = 61
FRACTION_BITS = 16

Call = Callable[[], object]


def directions(n: int, d: int) -> NDArray[np.float32]:
    """Return records of length 1, (n, d), around 60 centres."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((60, d), dtype=np.float32)
    rows = centers[rng.integers(0, 60, n)]
    rows += 1.5 * rng.standard_normal((n, d), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def calls_of(n: int, d: int, k: int) -> dict[str, Call]:
    """Return the calls of one size by name, scikit-learn's first."""
    records = directions(n, d)
    centers = records[:k].copy()
    weights = np.ones(n, np.float32)
    labels = np.zeros(n, np.int32)
    new = np.zeros_like(centers)
    sizes = np.zeros(k, np.float32)
    moves = np.zeros(k, np.float32)
    points = np.rint(centers.astype(np.float64) * 2**FRACTION_BITS * 0.9)
    grid_points = points.astype(np.int64)

    def scikit_learn() -> None:
        lloyd_iter_chunked_dense(
            records, weights, centers, new, sizes, labels, moves, 1
        )

    def sums(domain: Domain) -> None:
        grid = GridRecords(records, domain, FRACTION_BITS)
        assignment.cluster_sums(grid, grid_points)

    def checked_sums(domain: Domain) -> None:
        for block in as_source(records, d).blocks():
            grid = GridRecords(block, domain, FRACTION_BITS)
            assignment.cluster_sums(grid, grid_points)

    box = Box(-np.ones(d), np.ones(d))
    ball = Ball(1.0, np.zeros(d))
    return {
        "scikit-learn": scikit_learn,
        "box": lambda: sums(box),
        "ball": lambda: sums(ball),
        "sphere": lambda: sums(Sphere(d)),
        "box, checked": lambda: checked_sums(box),
        "ball, checked": lambda: checked_sums(ball),
    }


def seconds_of(call: Call) -> float:
    """Return the processor time of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def passes(repeats: int) -> None:
    """Print a row for each size."""
    with mock.patch.object(assignment, "_FUSED_WORK", 0), threadpool_limits(1):
        for n, d, k in PASSES:
            calls = calls_of(n, d, k)
            for call in calls.values():
                call()  # compiles
            turns = [
                {name: seconds_of(call) for name, call in calls.items()}
                for _ in range(repeats)
            ]
            base = np.array([turn["scikit-learn"] for turn in turns])
            cells = [f"{n:,}", str(d), str(k), f"{1e3 * np.median(base):.1f}"]
            for name in list(calls)[1:]:
                own = np.array([turn[name] for turn in turns])
                cells.append(f"{np.median(own / base):.2f}")
            print("| " + " | ".join(cells) + " |", flush=True)


class Timer:
    """Processor time inside one function, of all its calls."""

    def __init__(self, place: Any, name: str) -> None:
        self.place = place
        self.name = name
        self.seconds = 0.0
        self._call = getattr(place, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function, and add the time."""
        started = time.process_time()
        try:
            return self._call(*arguments, **options)
        finally:
            self.seconds += time.process_time() - started

    def method(self) -> Callable[..., Any]:
        """Return a function, which classes bind to their objects."""
        return lambda *arguments, **options: self(*arguments, **options)


def seconds_by_place(strategy: Any, parts: list[NDArray[Any]]) -> list[float]:
    """Run a strategy, and return the time of all, and within ever fewer layers of it.

    The layers are: the clients' answers, their passes over the records, the sums by
    cluster, and the compiled loop.
    """
    fused = assignment.fused_kernel(np.inf, 1)
    places = (
        (in_process, "answered"),
        (records_of_run.Records, "total"),
        (lloyd, "cluster_sums"),
        (fused, "_sum_rows"),
    )
    timers = [Timer(*place) for place in places]
    with ExitStack() as stack:
        for timer in timers:
            stack.enter_context(
                mock.patch.object(timer.place, timer.name, timer.method())
            )
        started = time.process_time()
        simulate(strategy, parts)
        total = time.process_time() - started
    return [total, *(timer.seconds for timer in timers)]


def rounds(repeats: int, n_clients: int) -> None:
    """Print a row for each size and domain: a round's time, and where it goes.

    A round takes the difference of ten and two rounds, by eight. Least times count.
    """
    few = 2
    many = 10
    with mock.patch.object(assignment, "_FUSED_WORK", 0), threadpool_limits(1):
        for n, d, k in ROUNDS:
            base = calls_of(n, d, k)["scikit-learn"]
            parts = np.array_split(directions(n, d), n_clients)
            for domain in (Box(-np.ones(d), np.ones(d)), Ball(1.0, np.zeros(d))):
                iterations = []
                found: dict[int, list[list[float]]] = {few: [], many: []}
                for _ in range(repeats + 1):
                    iterations.append(seconds_of(base))
                    for n_rounds, times in found.items():
                        strategy = strategies.Lloyd(
                            k,
                            domain,
                            n_clients=n_clients,
                            trust="plain",
                            n_rounds=n_rounds,
                        )
                        times.append(seconds_by_place(strategy, parts))
                # The first turn compiles.
                least = min(iterations[1:])
                longer = min(found[many][1:])
                shorter = min(found[few][1:])
                gaps = np.subtract(longer, shorter) / (many - few)
                own = gaps - np.append(gaps[1:], 0.0)
                cells = [f"{n:,}", str(d), str(k), type(domain).__name__]
                cells += [f"{1e3 * least:.1f}", f"{gaps[0] / least:.2f}"]
                cells += [f"{longer[0] / many / least:.2f}"]
                cells += [f"{1e3 * part:.1f}" for part in own[::-1]]
                print("| " + " | ".join(cells) + " |", flush=True)


class StoppedError(Exception):
    """The end of a fit that took too long, after some of its rounds."""


def fit_of(name: str, records: NDArray[np.float32], limit: float) -> tuple[int, int]:
    """Fit by a method, and return the numbers of its finished and of all its rounds.

    A fit that has taken ``limit`` seconds ends after its round.
    """
    if name == "scikit-learn":
        model = KMeans(
            N_CLUSTERS, init="random", n_init=1, max_iter=N_ITERATIONS, tol=0
        )
        rounds = int(model.fit(records).n_iter_)
        return rounds, rounds
    if name == "faiss":
        import faiss  # type: ignore[import-not-found]

        faiss.Kmeans(
            N_FEATURES,
            N_CLUSTERS,
            niter=N_ITERATIONS,
            max_points_per_centroid=N_RECORDS,
        ).train(records)
        return N_ITERATIONS, N_ITERATIONS
    strategy = strategy_of(name)
    parts = np.array_split(records, N_CLIENTS)
    finished = 0
    started = time.process_time()

    def count(_: RoundInfo) -> None:
        nonlocal finished
        finished += 1
        is_over = finished == strategy.n_rounds
        if not is_over and time.process_time() - started > limit:
            raise StoppedError

    with suppress(StoppedError):
        simulate(strategy, parts, on_round=count)
    return finished, strategy.n_rounds


def strategy_of(name: str) -> Any:
    """Return a strategy for the records of all fits."""
    ball = Ball(1.0, np.zeros(N_FEATURES))
    options: dict[str, Any] = {"n_clients": N_CLIENTS}
    if name == "Lloyd":
        options |= {"trust": "plain", "n_rounds": N_ITERATIONS}
    else:
        options |= {
            "privacy": PrivacyBudget(1.0),
            "n_records": N_RECORDS,
            "trust": "trusted-server",
        }
    if name == "FedDPKMeans":
        more = directions(N_RECORDS + N_SERVER_POINTS, N_FEATURES)
        options["server_data"] = more[N_RECORDS:].copy()
    return getattr(strategies, name)(N_CLUSTERS, ball, **options)


def print_vertical_plan() -> None:
    """Print why VerticalKMeans cannot fit these records, and what its largest run costs."""
    sizes = (
        (N_CLUSTERS, N_FEATURES),
        (MOST_VERTICAL, N_FEATURES),
        (MOST_VERTICAL, MOST_VERTICAL_COLUMNS),
    )
    for n_clusters, d in sizes:
        first = d // 2
        box = Box(-np.ones(d), np.ones(d))
        try:
            strategy = strategies.VerticalKMeans(
                n_clusters,
                box,
                PrivacyBudget(1.0),
                N_RECORDS,
                parties=[first, d - first],
            )
            costs = " ".join(strategy.costs.describe())
            found = f"{strategy.n_rounds} rounds planned. {costs}"
        except ConfigurationError as error:
            found = str(error)
        print(
            f"VerticalKMeans, k = {n_clusters}, d = {d}, 2 parties: {found}", flush=True
        )


def peak_bytes() -> int:
    """Return the largest memory of this process since it began, on Linux."""
    status = Path("/proc/self/status").read_text("utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def one_fit(name: str, limit: float) -> None:
    """Print the row of a fit."""
    if name == "VerticalKMeans":
        print_vertical_plan()
        return
    records = directions(N_RECORDS, N_FEATURES)
    # The peak so far is that of making the records.
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    before = peak_bytes()
    started = time.process_time()
    finished, rounds = fit_of(name, records, limit)
    seconds = time.process_time() - started
    megabytes = (peak_bytes() - before) / 2**20
    shown = f"{rounds} | {seconds:.1f}"
    if finished < rounds:
        shown = f"{finished} of {rounds} | {seconds:.0f}, all: about "
        shown += f"{seconds / finished * rounds:.0f}"
    print(f"| {name} | {shown} | {megabytes:.0f} |", flush=True)


def fits(limit: float, names: list[str]) -> None:
    """Print the row of each fit."""
    for name in names:
        command = [sys.executable, __file__, "one", "--names", name]
        command += ["--limit", str(limit)]
        if subprocess.run(command, check=False).returncode:
            print(f"| {name} | | failed | |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("pass", "round", "fit", "one"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clients", type=int, default=10, help="of a round")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a fit")
    parser.add_argument("--names", nargs="+", default=list(FITS))
    options = parser.parse_args(arguments)
    with quiet_logs():
        if options.table == "pass":
            passes(options.repeats)
        elif options.table == "round":
            rounds(options.repeats, options.clients)
        elif options.table == "fit":
            fits(options.limit, options.names)
        else:
            one_fit(options.names[0], options.limit)


if __name__ == "__main__":
    main()
