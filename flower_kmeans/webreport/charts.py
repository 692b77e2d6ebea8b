"""Small charts as inline SVG: lines, bars of rounds, and centroids. Colours are the page's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flower_kmeans.webreport.markup import Markup, number, tag

WIDTH, HEIGHT = 440.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 14.0, 46.0
_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes
    ----------
    label : str
    low, high : float
        ``low < high``; positive where it is logarithmic.
    log : bool
    """

    label: str
    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one; cut to that."""
        if self.log:
            above = max(value, self.low) / self.low
            place = math.log(above) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> list[float]:
        """Return round values between both ends."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            powers = range(last, first - 1, -max(1, -(-(last - first) // _TICKS)))
            return [10.0**power for power in powers][::-1]
        step = _round_step((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


@dataclass(frozen=True)
class Curve:
    """A line through points, or one marked point, with the name that the legend gives it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line-1", "line-2", "limit"] = "line-1"


@dataclass(frozen=True)
class Dot:
    """A centroid in a scatter plot.

    Attributes
    ----------
    name : str
        Written beside it.
    x, y : float
    radius : float
        In units of the drawing.
    colour : str or None
        As ``#rrggbb``; the page's accent by default.
    told : str
        What a reader is told who points at it.
    """

    name: str
    x: float
    y: float
    radius: float
    colour: str | None = None
    told: str = ""


def drawing(
    name: str, title: str, told: str, *parts: object, width: float, height: float
) -> Markup:
    """Return an SVG that fits the page's width, with a title and a text that replaces it.

    Parameters
    ----------
    name : str
        Different from those of all other drawings on the page.
    title, told : str
    *parts : object
    width, height : float
        Of its own units.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", told, id=f"{name}-desc"),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        style=f"max-width:{width * 1.25:g}px",
    )


def line_chart(
    name: str,
    title: str,
    told: str,
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    marked: Curve | None = None,
) -> Markup:
    """Return a chart of lines, and of one marked point with a line to both axes."""
    parts = _frame(x, y)
    for curve in curves:
        points = [(_across(x, a), _up(y, b)) for a, b in zip(curve.x, curve.y, strict=True)]
        path = " ".join(f"{a:.2f},{b:.2f}" for a, b in points)
        parts.append(tag("polyline", points=path, class_=f"curve {curve.style}"))
    if marked is not None:
        a, b = _across(x, marked.x[0]), _up(y, marked.y[0])
        guide = f"M{_LEFT:g},{b:.2f} H{a:.2f} V{HEIGHT - _BOTTOM:g}"
        parts.append(tag("path", d=guide, class_="guide"))
        parts.append(tag("circle", tag("title", marked.name), cx=_n(a), cy=_n(b), r=5, class_="at"))
        side = -1 if a > WIDTH * 0.6 else 1
        below = b < _TOP + 24
        parts.append(
            tag(
                "text",
                marked.name,
                x=_n(a + 9 * side),
                y=_n(b + 20 if below else b - 9),
                text_anchor="start" if side > 0 else "end",
                class_="label strong",
            )
        )
    return drawing(name, title, told, *parts, width=WIDTH, height=HEIGHT)


def round_chart(
    name: str,
    title: str,
    told: str,
    answered: Sequence[int],
    missing: Sequence[int],
    least: int,
) -> Markup:
    """Return bars by round: who answered, above them who was missing, and the least number."""
    n, most = len(answered), max([*map(sum, zip(answered, missing, strict=True)), least, 1])
    y = Axis("clients", 0.0, most * 1.05)
    parts = _scale_of(y, whole=True)
    slot = (WIDTH - _LEFT - _RIGHT) / n
    width, floor = min(34.0, 0.72 * slot), HEIGHT - _BOTTOM
    shown = max(1, -(-n // 16))
    for i, (came, away) in enumerate(zip(answered, missing, strict=True)):
        middle = _LEFT + slot * (i + 0.5)
        top, over = _up(y, came), _up(y, came + away)
        what = tag("title", f"round {i + 1}: {came} answered, {away} missing")
        left = _n(middle - width / 2)
        parts.append(
            tag(
                "g",
                what,
                tag("rect", x=left, y=_n(top), width=_n(width), height=_n(floor - top), class_="a"),
                tag("rect", x=left, y=_n(over), width=_n(width), height=_n(top - over), class_="m"),
            )
        )
        if i % shown == 0:
            place = {"x": _n(middle), "y": _n(floor + 16), "text_anchor": "middle"}
            parts.append(tag("text", i + 1, class_="label", **place))
    limit = _up(y, least)
    parts.append(tag("path", d=f"M{_LEFT:g},{limit:.2f} H{WIDTH - _RIGHT:g}", class_="limit"))
    parts.append(_x_label("round"))
    return drawing(name, title, told, *parts, width=WIDTH, height=HEIGHT)


def scatter_chart(
    name: str,
    title: str,
    told: str,
    x: Axis,
    y: Axis | None,
    dots: Sequence[Dot],
    *,
    ticks: bool = True,
) -> Markup:
    """Return circles at their places; without ``y`` along a line. The first are drawn below.

    Parameters
    ----------
    name, title, told : str
    x, y : Axis
    dots : sequence of Dot
    ticks : bool, default: True
        Whether values are written along the axes.
    """
    height = HEIGHT if y is not None else 130.0
    parts = _frame(x, y, height=height, ticks=ticks)
    middle = (_TOP + height - _BOTTOM) / 2
    marks = []
    for dot in dots:
        a, b = _across(x, dot.x), middle if y is None else _up(y, dot.y)
        fill = None if dot.colour is None else f"fill:{dot.colour}"
        circle = tag("circle", cx=_n(a), cy=_n(b), r=_n(dot.radius), class_="dot", style=fill)
        marks.append(tag("g", tag("title", dot.told or dot.name), circle))
    for dot in dots:
        a, b = _across(x, dot.x), middle if y is None else _up(y, dot.y)
        if dot.name:
            place = {"x": _n(a), "y": _n(b - dot.radius - 3), "text_anchor": "middle"}
            marks.append(tag("text", dot.name, class_="label dot-name", **place))
    return drawing(name, title, told, *parts, *marks, width=WIDTH, height=height)


def around(values: Sequence[float], label: str) -> Axis:
    """Return an axis that holds all values, with room at both ends."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or max(1.0, abs(low)) * 0.5
    return Axis(label, low - room, high + room)


# --------------------------------------------------------------------------- frames


def _frame(x: Axis, y: Axis | None, *, height: float = HEIGHT, ticks: bool = True) -> list[Markup]:
    """Return grid lines, ticks and labels of both axes."""
    parts = [] if y is None else _scale_of(y, ticks=ticks)
    floor = height - _BOTTOM
    for tick in x.ticks():
        a = _n(_across(x, tick))
        parts.append(tag("path", d=f"M{a},{_TOP:g} V{floor:g}", class_="grid"))
        if ticks:
            place = {"x": a, "y": _n(floor + 16), "text_anchor": "middle"}
            parts.append(tag("text", _tick(tick, x), class_="label", **place))
    parts.append(tag("path", d=f"M{_LEFT:g},{floor:g} H{WIDTH - _RIGHT:g}", class_="axis"))
    parts.append(_x_label(x.label, height))
    return parts


def _scale_of(y: Axis, *, ticks: bool = True, whole: bool = False) -> list[Markup]:
    parts = []
    for tick in y.ticks():
        if whole and tick != round(tick):
            continue
        b = _up(y, tick)
        parts.append(tag("path", d=f"M{_LEFT:g},{b:.2f} H{WIDTH - _RIGHT:g}", class_="grid"))
        if ticks:
            place = {"x": _n(_LEFT - 6), "y": _n(b + 4), "text_anchor": "end"}
            parts.append(tag("text", _tick(tick, y), class_="label", **place))
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    turned = f"rotate(-90 13 {middle:g})"
    place = {"x": "13", "y": _n(middle), "text_anchor": "middle", "transform": turned}
    return [*parts, tag("text", _short(y.label), class_="label", **place)]


def _x_label(label: str, height: float = HEIGHT) -> Markup:
    place = {"x": _n((_LEFT + WIDTH - _RIGHT) / 2), "y": _n(height - 8), "text_anchor": "middle"}
    return tag("text", _short(label), class_="label", **place)


def _across(x: Axis, value: float) -> float:
    return _LEFT + x.share(value) * (WIDTH - _LEFT - _RIGHT)


def _up(y: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - y.share(value) * (HEIGHT - _TOP - _BOTTOM)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * f for f in (1.0, 2.0, 5.0, 10.0) if step <= power * f * (1 + 1e-9))


def _tick(value: float, axis: Axis) -> str:
    if axis.log:
        return f"1e{round(math.log10(value))}" if not 0.001 <= value <= 1000 else number(value)
    return number(0.0 if abs(value) < 1e-12 * (axis.high - axis.low) else value, 6)


def _short(label: str) -> str:
    return label if len(label) <= 48 else label[:47] + "…"


def _n(value: float) -> str:
    return f"{value:.2f}"


def steps(low: float, high: float, n: int) -> list[float]:
    """Return n values from low to high, evenly spaced."""
    return [low + (high - low) * i / (n - 1) for i in range(n)]
