"""Where the sign polynomial's constants come from: ``python benchmarks/vertical_sign.py``.

Three odd polynomials of degree 15, each the best one in the largest error (Remez
exchange) on the interval that the one before it gives, the first on [0.0035, 1]. What
is printed are the stages of `flower_kmeans.vertical.signs`, as hexadecimal reals.
"""

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.vertical.signs import SignStage

DEGREES = (15, 15, 15)
TAU = 0.0035
SLACK = 2.0**-16
"""Largest noise of CKKS in a stage's value, with a margin."""


def remez(degree: int, a: float, b: float) -> tuple[FloatArray, float]:
    """Return the odd polynomial that is nearest to 1 on [a, b], and its largest error.

    Returns
    -------
    coefficients : ndarray of shape ((degree + 1) / 2,)
        Of the odd Chebyshev polynomials of x / b.
    error : float
    """
    n = (degree + 1) // 2
    odd = 2 * np.arange(n) + 1
    ends = a + (b - a) * (1 - np.cos(np.linspace(0, np.pi, 4000))) / 2
    grid = np.unique(
        np.concatenate([np.geomspace(a, b, 4000), np.linspace(a, b, 4000), ends])
    )

    def basis(x: FloatArray) -> FloatArray:
        return np.asarray(np.cos(np.outer(np.arccos(np.clip(x / b, -1, 1)), odd)))

    on_grid = basis(grid)
    x = a + (b - a) * (1 - np.cos(np.pi * np.linspace(0, 1, n + 1))) / 2
    best, least = np.zeros(n), np.inf
    for _ in range(60):
        system = np.hstack([basis(x), ((-1.0) ** np.arange(n + 1))[:, None]])
        c = np.linalg.solve(system, np.ones(n + 1))[:n]
        e = on_grid @ c - 1
        # the largest error of every interval in which it has one sign
        parts = np.split(
            np.arange(len(grid)), np.flatnonzero(np.diff(np.sign(e) >= 0)) + 1
        )
        points = [part[np.argmax(np.abs(e[part]))] for part in parts]
        while len(points) > n + 1:
            points.pop(0 if abs(e[points[0]]) < abs(e[points[-1]]) else -1)
        error = float(np.abs(e).max())
        if error < least:
            best, least = c, error
        if (
            len(points) < n + 1
            or error - np.abs(e[points]).min() < 1e-13 + 1e-9 * error
        ):
            break
        x = grid[points]
    return best, least


def stages() -> tuple[list[SignStage], float]:
    """Return the stages, and the last one's largest error on [TAU, 1]."""
    a, b, found, error = TAU, 1.0, [], 0.0
    for degree in DEGREES:
        c, error = remez(degree, a, b)
        found.append(SignStage(tuple(c.tolist()), b))
        a, b = 1 - error - SLACK, 1 + error + SLACK
    return found, error


def main() -> None:
    """Print the constants."""
    found, error = stages()
    for stage in found:
        print(stage.bound.hex(), *(c.hex() for c in stage.coefficients), sep="\n    ")
    print(f"largest error on [{TAU}, 1]: {error:.2e}")


if __name__ == "__main__":
    main()
