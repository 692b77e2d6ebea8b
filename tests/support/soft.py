"""The sign polynomial and the memberships that it gives, in exact arithmetic."""

import numpy as np
from numpy.polynomial import chebyshev

from flower_kmeans.vertical.signs import STAGES, near, pair

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
