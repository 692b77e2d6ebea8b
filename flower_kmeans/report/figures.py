"""Axes of the page's charts and places of values, which figures.svg.j2 draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flower_kmeans.arrays import FloatArray

_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """One axis of a chart, with ``low < high``; both are positive if it is logarithmic."""

    label: str
    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return a value's place, from 0 at the low end to 1 at the high one."""
        if self.log:
            above = max(value, self.low) / self.low
            place = math.log(above) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> list[float]:
        """Return round values between both ends."""
        if self.log:
            first = math.ceil(math.log10(self.low))
            last = math.floor(math.log10(self.high))
            stride = max(1, -(-(last - first) // _TICKS))
            powers = range(last, first - 1, -stride)
            return [10.0**power for power in powers][::-1]
        least = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(least))
        # The margin keeps a step that is too small only by rounding.
        steps = [power * f for f in (1.0, 2.0, 5.0, 10.0)]
        step = next(each for each in steps if least <= each * (1 + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def text(self, tick: float) -> str:
        """Return the text of a tick at the axis."""
        if self.log:
            if 0.001 <= tick <= 1000:
                return f"{tick:.4g}"
            return f"1e{round(math.log10(tick))}"
        if abs(tick) < 1e-12 * (self.high - self.low):
            return "0"
        if 1e6 <= abs(tick) < 1e10:
            return f"{tick / 1e6:.6g}M"
        return f"{tick:.6g}"


def around(values: Sequence[float], label: str) -> Axis:
    """Return an axis that holds all values, with room at both ends."""
    low = min(values)
    high = max(values)
    room = 0.08 * (high - low) or max(1.0, abs(low)) * 0.5
    return Axis(label, low - room, high + room)


@dataclass(frozen=True)
class PlotFrame:
    """The part of a drawing that its axes enclose, in the drawing's units."""

    x: Axis | None = None
    y: Axis | None = None
    height: float = 280
    left: float = 58
    right: float = 426
    top: float = 14

    def __post_init__(self) -> None:
        if self.y is not None:
            # Room for the longest number, beside the axis' label.
            texts = [self.y.text(tick) for tick in self.y.ticks()]
            longest = max(map(len, texts), default=0)
            vars(self).update(left=max(self.left, 23 + 7 * longest))

    @property
    def floor(self) -> float:
        """Vertical place of the lower axis."""
        return self.height - 46

    def across(self, value: float) -> float:
        """Return the place of a value of x."""
        share = self.x.share(value) if self.x else 0
        return self.left + share * (self.right - self.left)

    def up(self, value: float) -> float:
        """Return the place of a value of y; the middle without such an axis."""
        share = self.y.share(value) if self.y else 0.5
        return self.floor - share * (self.floor - self.top)


class Dot(NamedTuple):
    """A centroid in a plot, with its name and its tooltip."""

    name: str
    x: float
    y: float
    radius: float
    title: str
    colour: str | None = None


def principal_places(
    points: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the places of points, (k, d >= 2), along their first two principal directions.

    ``weights`` are (k,) and not negative.

    Returns
    -------
    places : array of shape (k, 2)
        Signed distances from the weighted mean.
    fractions : array of shape (2,)
        Fractions of the weighted variance; 0 if there is no variance.
    """
    # All noisy sizes may be cut to 0, but the plot needs a centre.
    if not weights.sum() > 0:
        weights = np.ones(len(points))
    weights = weights / weights.sum()
    centred = points - weights @ points
    weighted = np.sqrt(weights)[:, None] * centred
    _, values, directions = np.linalg.svd(weighted, full_matrices=False)
    # A single point has fewer than two directions.
    first = np.zeros((2, points.shape[1]))
    first[: len(directions[:2])] = directions[:2]
    # The decomposition leaves the signs open. The largest entry is made positive, so
    # that pages of one result are alike.
    largest = np.abs(first).argmax(axis=1)
    signs = np.where(first[[0, 1], largest] < 0, -1.0, 1.0)
    first *= signs[:, None]
    squares = np.zeros(2)
    squares[: len(values[:2])] = values[:2] ** 2
    total = float((values**2).sum())
    shares = squares / total if total > 0 else np.zeros(2)
    return centred @ first.T, shares
