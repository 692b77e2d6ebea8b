"""Draws of privacy noise per second.

    python benchmarks/noise.py [--runs 7] [--shapes 100x784]

One draw per coordinate of a Lloyd round: clusters * (features + 1).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.privacy.noise import SAMPLERS
from flower_kmeans.privacy.randomness import Stream

SHAPES = ("100x784",)
EXPONENTS = (2, 18, 24, 32)


@dataclass(frozen=True)
class Task:
    """One round's noise by one sampler: of clusters x features, and a scale of 2^exponent."""

    shape: str
    sampler: str
    exponent: int
    run: int


def n_draws(shape: str) -> int:
    """Return the coordinates of a round."""
    clusters, features = map(int, shape.split("x"))
    return clusters * (features + 1)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for shape in options.chosen("shape", SHAPES, str):
            for sampler in SAMPLERS:
                for exponent in EXPONENTS:
                    yield Task(shape, sampler, exponent, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the seconds of the sampler and of NumPy's, which is not private."""
    n, scale = n_draws(task.shape), 2.0**task.exponent
    values = np.full(n, scale**2 if task.sampler.startswith("discrete") else scale)
    draw = SAMPLERS[task.sampler]
    own = _seconds(lambda: draw(values, Stream.fresh()))
    # Not private, not exact: what the fastest float sampler would take.
    base = _seconds(lambda: np.rint(np.random.default_rng().normal(0, scale, n)))
    return {"seconds": own, "numpy": base}


def _seconds(call: Callable[[], object]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return medians by sampler and scale."""
    by = ("shape", "sampler", "exponent")
    base = tables.grouped(rows, by, "numpy")
    lines = []
    for (shape, sampler, exponent), seconds in tables.grouped(rows, by, "seconds").items():
        middle, other = float(np.median(seconds)), float(np.median(base[shape, sampler, exponent]))
        cells = [f"{1e3 * middle:.2f}", f"{n_draws(shape) / middle:.3g}", f"{middle / other:.1f}x"]
        lines.append([shape, sampler, f"2^{exponent}", *cells])
    head = ["k x d", "sampler", "scale", "ms", "draws/s", "vs numpy"]
    return tables.markdown(head, lines, 2)


SUITE = Suite(
    "noise",
    "The noise of one Lloyd round, a draw for each of k (d + 1) coordinates; medians.",
    Task,
    {"seconds": float, "numpy": float},
    tasks_of,
    measure,
    tables_of,
    runs=7,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
