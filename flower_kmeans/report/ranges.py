"""Ranges of columns that a run released, as reports name them."""

from typing import NamedTuple

import numpy as np

from flower_kmeans.data.domain import Box, Domain
from flower_kmeans.report.clustering import readable


class ColumnRange(NamedTuple):
    """The range of a column that a run released, within its outer bounds."""

    column: str
    lower: float | str  # in the user's units; a date is text
    upper: float | str
    is_outer: bool  # whether the outer bounds stayed

    @property
    def text(self) -> str:
        """The range in words."""
        ends = [
            end if isinstance(end, str) else f"{end:.4g}"
            for end in (self.lower, self.upper)
        ]
        stayed = " (outer bounds)" if self.is_outer else ""
        return f"{self.column} {ends[0]} to {ends[1]}{stayed}"


def column_ranges(domain: Domain, outer: Domain) -> tuple[ColumnRange, ...]:
    """Return the ranges of a result's columns; none unless the run had to find them.

    ``domain`` is that of the result, and ``outer`` that of the run.
    """
    if not isinstance(outer, Box) or outer.tighten is None:
        return ()
    if not isinstance(domain, Box):
        return ()
    own = np.array([domain.lower, domain.upper])
    shown = readable(own, domain)
    is_outer = (own == [outer.lower, outer.upper]).all(axis=0).tolist()
    found = []
    for factor in outer.factors():
        if factor.is_category:
            continue
        _, (lower, upper) = shown[factor.start]
        found.append(ColumnRange(factor.name, lower, upper, is_outer[factor.start]))
    return tuple(found)
