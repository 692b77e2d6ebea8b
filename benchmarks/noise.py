"""Draws of privacy noise per second.

    python benchmarks/noise.py [--runs 7] [--shapes 100x784]

One draw per coordinate of a Lloyd round: clusters * (features + 1).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import script, tables
from bench.harness import Options, Row, Suite, grid
from flower_kmeans.privacy.noise import SAMPLERS
from flower_kmeans.privacy.randomness import Stream


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

    def median(rows: list[Row], name: str = "seconds") -> float:
        return float(np.median([row[name] for row in rows]))

    return tables.by_key(
        rows,
        {"k x d": "shape", "sampler": "sampler", "scale, log2": "exponent"},
        {
            "ms": lambda of: f"{1e3 * median(of):.2f}",
            "draws/s": lambda of: f"{n_draws(of[0]['shape']) / median(of):.3g}",
            "vs numpy": lambda of: f"{median(of) / median(of, 'numpy'):.1f}x",
        },
        2,
    )


SUITE = Suite(
    "noise",
    "The noise of one Lloyd round, a draw for each of k (d + 1) coordinates; medians.",
    Task,
    {"seconds": float, "numpy": float},
    lambda options: grid(
        Task,
        options,
        "shape",
        shape=("100x784",),
        sampler=SAMPLERS,
        exponent=(2, 18, 24, 32),
    ),
    measure,
    tables_of,
    runs=7,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
