"""Assertions whose failure says what was measured, and what was allowed."""

from typing import Any

import numpy as np


def assert_within(
    sentence: str,
    found: Any,
    *,
    least: Any = None,
    most: Any = None,
    unit: str = "",
    slack: Any = 0,
    strict: bool = False,
) -> None:
    """Require numbers within bounds, which they may miss by ``slack``, or not equal (``strict``).

    A failure is the sentence, ended by the number that is farthest off and its unit:
    "release 'sums': a record moves it by 2 units, at most 1 is allowed". Integers and
    fractions are compared exactly, and NaN is within no bounds.
    """
    __tracebackhide__ = True
    numbers = np.atleast_1d(np.asarray(found, dtype=object))
    for bound, is_most in ((most, True), (least, False)):
        if bound is None:
            continue
        limits = np.broadcast_to(np.asarray(bound, dtype=object), numbers.shape)
        wrong = [
            (abs(float(number - limit)), place)
            for place, (number, limit) in enumerate(
                zip(numbers.flat, limits.flat, strict=True)
            )
            if not _holds(number, limit, is_most, slack, strict)
        ]
        if wrong:
            worst = max(wrong)[1]
            value, limit = numbers.flat[worst], limits.flat[worst]
            name = ("less than" if strict else "at most") if is_most else "at least"
            name = "more than" if strict and not is_most else name
            place = f" (number {worst} of {numbers.size})" if numbers.size > 1 else ""
            measured = f"{sentence} {_text(value)} {unit}".rstrip()
            raise AssertionError(f"{measured}, {name} {_text(limit)} is allowed{place}")


def _holds(number: Any, limit: Any, is_most: bool, slack: Any, strict: bool) -> bool:
    """Return whether a number is on the right side of a limit."""
    if is_most:
        return bool(number < limit if strict else number <= limit + slack)
    return bool(number > limit if strict else number >= limit - slack)


def _text(number: Any) -> str:
    """Return an integer, or a number with six digits; with all where six would make it whole."""
    if isinstance(number, int):
        return str(number)
    value = float(number)
    short = f"{value:.6g}"
    return repr(value) if float(short) != value and float(short).is_integer() else short
