"""The polynomial that finds the nearer centroid (docs/vertical.md, "How it works").

CKKS has only additions and products, so the sign of a number is a polynomial: a
composition of three odd minimax polynomials of degree 15. It is within 1.4e-4 of -1 or 1
for every argument of size 0.0035 to 1. Nearer to 0 it passes from -1 to 1 with slope 640,
and such a record belongs to two clusters in part. Beyond 1 it diverges, so every argument
is divided by its exact maximum over the public box.
"""

from typing import NamedTuple

import numpy as np

from flower_kmeans.arrays import FloatArray


class SignStage(NamedTuple):
    """An odd polynomial on [-bound, bound]."""

    # of Chebyshev polynomials 1, 3, ..., 15 of x / bound
    coefficients: tuple[float, ...]
    bound: float  # largest argument: a little more than the stage before gives


def _stage(bound: str, *coefficients: str) -> SignStage:
    return SignStage(tuple(map(float.fromhex, coefficients)), float.fromhex(bound))


# Remez exchange for [0.0035, 1]: benchmarks/vertical_sign.py finds them.
STAGES = (
    _stage(
        "0x1.0000000000000p+0",
        *("0x1.463257e48b2b1p+0", "-0x1.b599a4ca1e3bdp-2", "0x1.09e01785adbb1p-2"),
        *("-0x1.83581e737319ap-3", "0x1.35bda875d83dfp-3", "-0x1.071b4843a76d7p-3"),
        *("0x1.d3f3053a1ad40p-4", "-0x1.f0dcfea97c6edp-1"),
    ),
    _stage(
        "0x1.ea831235d5c8ap+0",
        *("0x1.45e698fe2541cp+0", "-0x1.b2087961f16d4p-2", "0x1.03df944c92bd6p-2"),
        *("-0x1.7249f98c1cca2p-3", "0x1.1f5a7bbc996d9p-3", "-0x1.d5f1b8e05f84bp-4"),
        *("0x1.8efb861775e4dp-4", "-0x1.a6540c28fc783p-2"),
    ),
    _stage(
        "0x1.5e06f637f08e0p+0",
        *("0x1.419f098f8ccd0p+0", "-0x1.8105b36f18a0bp-2", "0x1.72c2abb3d2330p-3"),
        *("-0x1.78075b258c6dbp-4", "0x1.689abd8771a76p-5", "-0x1.315477cebac09p-6"),
        *("0x1.a30344a4214f1p-8", "-0x1.84476e72bba9ap-10"),
    ),
)

_ABOVE = 1 + 2.0**-20
"""Factor by which arguments stay below 1. It is more than the noise of CKKS."""


def pair(
    cj: FloatArray, cl: FloatArray, half_widths: FloatArray
) -> tuple[FloatArray, float]:
    """Return w and b of the comparison of two centroids.

    ``w.x + b`` is positive where ``cj`` is nearer. It is ``|x - cl|^2 - |x - cj|^2``, which
    is linear in x, divided by (1 + 2^-20) times its maximum over the public box
    [-half_widths, half_widths]. Equal centroids give 0 everywhere, so each gets half of a
    record.
    """
    w = 2 * (cj - cl)
    b = float(cl @ cl - cj @ cj)
    at_corner = float(half_widths @ np.abs(w))
    largest = (at_corner + abs(b)) * _ABOVE
    if largest > 0:
        return w / largest, b / largest
    return w, 0.0


def near(
    c: FloatArray, radius: float, half_widths: FloatArray
) -> tuple[FloatArray, float, float]:
    """Return w, u and b of the test of a radius.

    ``w.x + u |x|^2 + b`` is positive where ``|x - c| < radius``. It is
    ``radius^2 - |x - c|^2``, divided by (1 + 2^-20) times its largest size over the box: at
    the centroid, where it is ``radius^2``, or at the farthest corner.
    """
    square = radius * radius
    corner = half_widths + np.abs(c)
    farthest = float((corner**2).sum())
    largest = max(square, farthest - square) * _ABOVE
    b = (square - float(c @ c)) / largest
    return 2 * c / largest, -1 / largest, b


def scaled_columns(columns: FloatArray, half_widths: FloatArray) -> FloatArray:
    """Return a party's columns over their half widths, (n, w), in [-1, 1].

    The error of an encrypted number does not depend on its size. Without the division,
    centroids that differ only in a narrow column would multiply the error by 1 over the
    half width.
    """
    divisors = np.where(half_widths > 0, half_widths, 1.0)
    scaled: FloatArray = columns / divisors
    return scaled


def scaled_squares(columns: FloatArray, half_widths: FloatArray) -> FloatArray:
    """Return a party's part of ``|x|^2``, (n,), scaled to [-1, 1] for encryption.

    It is twice the sum of squares over its maximum, minus 1.
    """
    # The maximum is 0 if the columns are far narrower than others.
    largest = float(half_widths @ half_widths) or 1.0
    squares = (columns**2).sum(1)
    scaled: FloatArray = squares * (2 / largest) - 1
    return scaled
