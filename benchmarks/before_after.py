"""Two revisions of this project, in turn: what a change made faster or slower.

    python benchmarks/before_after.py --revisions REV HEAD --runs 5 --output build/before-after

Cases are whole runs, and single parts from the other tables of performance: a client's step, masks
and noise. Each revision is unpacked into a directory of its own, and each measurement is a process
of its own, with that revision's package and this file's cases. The package is loaded and the case
done once before the clock starts; what takes less than a second is repeated for one, and its least
time counts.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SUBJECT = "subject"


def records_of(n: int, d: int, k: int) -> Any:
    """Return records around k centres in [-1, 1]^d."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(-0.8, 0.8, (k, d))
    return np.clip(centers[rng.integers(0, k, n)] + rng.normal(0, 0.1, (n, d)), -1, 1)


def federation(
    name: str, n: int, d: int, clients: int, trust: str, k: int = 16, **parameters: Any
) -> Callable[[], object]:
    """Return a call that runs a strategy once."""
    from flower_kmeans import Ball, Box, PrivacyBudget, simulate, strategies

    parts = np.array_split(records_of(n, d, k), clients)
    ball = Ball(float(np.sqrt(d)), np.zeros(d))
    domain = ball if name == "SynopsisKMeans" else Box(-np.ones(d), np.ones(d))

    def run() -> object:
        strategy = getattr(strategies, name)(
            k,
            domain,
            PrivacyBudget(1.0, 1e-6),
            n,
            n_clients=clients,
            trust=trust,
            seed=1,
            **parameters,
        )
        return simulate(strategy, parts)

    return run


def server_points(n: int, d: int, k: int) -> Any:
    """Return points of the server's own: some of each centre, and uniform ones."""
    rng = np.random.default_rng(1)
    return np.concatenate([records_of(n, d, k), rng.uniform(-1, 1, (100, d))])


def client_step(n: int, d: int, k: int, *, radius: bool = False) -> Callable[[], object]:
    """Return a call of one client's statistic over all of its records."""
    from flower_kmeans import Box
    from flower_kmeans.algorithms.numerics.assignment import cluster_sums
    from flower_kmeans.data.domain import GridRecords

    fraction_bits = 16
    grid = GridRecords(records_of(n, d, k), Box(-np.ones(d), np.ones(d)), fraction_bits)
    centroids = np.random.default_rng(0).uniform(-0.8, 0.8, (k, d))
    points = np.rint(centroids * 2**fraction_bits).astype(np.int64)
    squared_radius = d * 4**fraction_bits // 4 if radius else None
    return lambda: cluster_sums(grid, points, squared_radius)


def correction(members: int, words: int) -> Callable[[], object]:
    """Return a call that takes off the masks of a cohort, a tenth of it missing here and there."""
    from flower_kmeans.secagg.masks import correction

    present = np.arange(members) >= members // 10
    scattered = np.random.default_rng(0).permutation(present)
    return lambda: correction(bytes(range(32)), scattered, words)


def noise(sampler: str, words: int, exponent: int) -> Callable[[], object]:
    """Return a call that draws the noise of a round, of the scale 2^exponent."""
    from flower_kmeans.privacy.noise import SAMPLERS
    from flower_kmeans.privacy.randomness import Stream

    scale = 2.0**exponent
    values = np.full(words, scale**2 if sampler.startswith("discrete") else scale)
    return lambda: SAMPLERS[sampler](values, Stream.fresh())


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "SynopsisKMeans, 1,000,000 x 16, 2 clients": lambda: federation(
        "SynopsisKMeans", 1_000_000, 16, 2, "trusted-server"
    ),
    "FastLloyd, 2,000,000 x 8, 2 clients": lambda: federation(
        "FastLloyd", 2_000_000, 8, 2, "oblivious-server"
    ),
    "FedDPKMeans, 200,000 x 64, 4 clients": lambda: federation(
        "FedDPKMeans", 200_000, 64, 4, "trusted-server", server_data=server_points(400, 64, 16)
    ),
    "FastLloyd, 1,000 clients, oblivious-server": lambda: federation(
        "FastLloyd", 50_000, 8, 1_000, "oblivious-server"
    ),
    "FastLloyd, 1,000 clients, distributed-noise": lambda: federation(
        "FastLloyd", 50_000, 8, 1_000, "distributed-noise"
    ),
    "SynopsisKMeans, 20,000 x 16, 2 clients": lambda: federation(
        "SynopsisKMeans", 20_000, 16, 2, "trusted-server"
    ),
    "PEMeans, 20,000 x 16, 2 clients": lambda: federation(
        "PEMeans", 20_000, 16, 2, "trusted-server"
    ),
    "client's step, 1,000,000 x 32, k = 64": lambda: client_step(1_000_000, 32, 64),
    "client's step with a radius, 1,000,000 x 5, k = 16": lambda: client_step(
        1_000_000, 5, 16, radius=True
    ),
    "masks off, 10,000 clients, 78,501 words": lambda: correction(10_000, 78_501),
    "noise, rounded-gaussian/1, 78,500 draws": lambda: noise("rounded-gaussian/1", 78_500, 24),
    "noise, rounded-laplace/1, 78,500 draws": lambda: noise("rounded-laplace/1", 78_500, 24),
    "noise, discrete-gaussian/1, 78,500 draws": lambda: noise("discrete-gaussian/1", 78_500, 24),
}


@dataclass(frozen=True)
class Task:
    """One measurement."""

    case: str
    revision: str
    run: int


@cache
def checked_out(revision: str) -> str:
    """Return a directory with a revision's files; it is gone when this process ends."""
    place = tempfile.TemporaryDirectory(prefix="before-after-")
    _KEPT.append(place)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", place.name], input=archive.stdout, check=True)
    return place.name


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def tasks_of(options: Any) -> Iterator[Task]:
    """Yield every measurement; revisions take turns."""
    for run in range(options.runs):
        for case in options.chosen("case", tuple(CASES), str):
            for revision in options.chosen("revision", ("HEAD",), str):
                yield Task(case, revision, run)


def measure(task: Task, options: Any) -> Mapping[str, Any]:
    """Return the seconds of one run, by the clock and of all processors."""
    environment = {**os.environ, "PYTHONPATH": checked_out(task.revision)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), SUBJECT, task.case],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    seconds, processor = map(float, done.stdout.split())
    return {"seconds": seconds, "processor": processor}


def subject(case: str, enough: float = 1.0) -> None:
    """Print the seconds of one case with the package that is on the path."""
    run = CASES[case]()
    run()
    times: list[tuple[float, float]] = []
    while sum(seconds for seconds, _ in times) < enough:
        started, before = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - started, time.process_time() - before))
    print(*min(times))


def tables_of(rows: Sequence[Any], options: Any) -> str:
    """Return the least seconds of each case, a column for each revision, and their ratio."""
    from flower_kmeans.bench import tables

    revisions = tables.unique(row["revision"] for row in rows)
    lines = []
    for case in tables.unique(row["case"] for row in rows):
        line = [case]
        for column in ("seconds", "processor"):
            least = [
                min(
                    (r[column] for r in rows if (r["case"], r["revision"]) == (case, revision)),
                    default=float("nan"),
                )
                for revision in revisions
            ]
            line += [f"{value:.3g}" for value in least]
            line.append(f"{least[-1] / least[0]:.2f}")
        lines.append(line)
    head = ["case", *(f"{revision}, s" for revision in revisions), "ratio"]
    head += [*(f"{revision}, processor s" for revision in revisions), "ratio"]
    return tables.markdown(head, lines)


if __name__ == "__main__" and sys.argv[1:2] == [SUBJECT]:
    subject(sys.argv[2])  # of a revision that may not have the harness
    sys.exit()

from flower_kmeans.bench.harness import Suite  # noqa: E402
from flower_kmeans.bench.script import main  # noqa: E402

SUITE = Suite(
    "before-after",
    "Seconds of whole runs and of single parts in one process, by the clock and of all processors: "
    "the least of several measurements, in which the revisions take turns.",
    Task,
    {"seconds": float, "processor": float},
    tasks_of,
    measure,
    tables_of,
    runs=5,
    alone=True,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
