"""The sign polynomial and the memberships that it gives, in exact arithmetic.

Most tests of what is around it let it be a straight line.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
from numpy.polynomial import chebyshev

from flower_kmeans.vertical import engine, moduli, parties
from flower_kmeans.vertical.signs import STAGES, SignStage, near, pair

ETA = 7e-5
"""Half of how far the polynomial leaves [-1, 1] on [-1, 1]: a win lies in [-ETA, 1 + ETA]."""


def evaluate(x):
    """The polynomial's values, nearly the sign, for x in [-1, 1]."""
    for coefficients, bound in STAGES:
        full = np.zeros(2 * len(coefficients))
        full[1::2] = coefficients
        x = chebyshev.chebval(x / bound, full)
    return x


def soft_members(X, C, half_widths, radius=None):
    """The memberships (n, k) of records in the box: products of wins, and of the radius' test."""
    members = np.ones((len(X), len(C)))
    for j, cj in enumerate(C):
        for m, cm in enumerate(C):
            if m != j:
                w, b = pair(cj, cm, half_widths)
                members[:, j] *= 0.5 + 0.5 * evaluate(X @ w + b)
        if radius is not None:
            w, u, b = near(cj, radius, half_widths)
            members[:, j] *= 0.5 + 0.5 * evaluate(X @ w + u * (X**2).sum(1) + b)
    return members


@contextmanager
def straight_signs() -> Iterator[None]:
    """Replace the sign's polynomials, of degree 15 three times, by a straight line.

    Keys have a quarter of the primes, and a step takes a tenth of the time. Nothing
    else changes: memberships are those of `soft_members` with the same line.
    """
    line = (SignStage(coefficients=(1.0,), bound=1.0),)
    with (
        mock.patch.object(moduli, "_SIGN_LEVELS", 1),
        mock.patch.object(engine, "STAGES", line),
        mock.patch.object(sys.modules[__name__], "STAGES", line),
        mock.patch.object(parties, "_start", _start_straight),
    ):
        moduli.moduli.cache_clear()
        try:
            yield
        finally:
            moduli.moduli.cache_clear()


_start, _until_the_end = parties._start, ExitStack()


def _start_straight(*state):
    """Start a worker of party 0 whose signs are straight, as long as its process lives."""
    _until_the_end.enter_context(straight_signs())
    _start(*state)
