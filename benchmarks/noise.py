"""Draws of privacy noise per second.

    python benchmarks/noise.py [--clusters 100] [--features 784] [--repeats 7]

One draw per coordinate of a Lloyd round: clusters * (features + 1).
"""

import argparse
import time

import numpy as np

from flower_kmeans.privacy.noise import SAMPLERS
from flower_kmeans.privacy.randomness import Stream


def main() -> None:
    """Print a table: time of one round's noise by sampler and scale."""
    parser = argparse.ArgumentParser(description="Draws of privacy noise per second.")
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    n_draws = options.clusters * (options.features + 1)
    print(f"{n_draws} draws (k={options.clusters}, d={options.features}), median of repeats")
    print(f"{'sampler':<20} {'scale':>8} {'ms':>8} {'draws/s':>10} {'vs numpy':>9}")
    for name, sampler in SAMPLERS.items():
        for exponent in (2, 18, 24, 32):
            scale = 2.0**exponent
            value = scale**2 if name.startswith("discrete") else scale
            values = np.full(n_draws, value)
            seconds = _median(lambda f=sampler, v=values: f(v, Stream.fresh()), options.repeats)
            # Not private, not exact: what the fastest float sampler would take.
            base = _median(
                lambda s=scale: np.rint(np.random.default_rng().normal(0, s, n_draws)),
                options.repeats,
            )
            print(
                f"{name:<20} {'2^' + str(exponent):>8} {1e3 * seconds:>8.2f} "
                f"{n_draws / seconds:>10.3g} {seconds / base:>8.1f}x"
            )


def _median(call, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


if __name__ == "__main__":
    main()
