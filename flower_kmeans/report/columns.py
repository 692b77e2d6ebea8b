"""Warnings about columns that decide too much or nothing, from released values alone.

They cost no privacy: they are functions of centroids and of the mixture that a run
released. Each names its columns and what helps.
"""

import math
import shlex
from collections.abc import Iterator

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain, Factor
from flower_kmeans.report.synopsis import Synopsis

# share of a cluster's records, from which on the cluster is a level of a category
_ONE_LEVEL = 0.9
# of a number's spread, from which on clusters differ in the number
_DIFFERENT = 0.5
# of shares of a level, up to which clusters do not differ in a category
_SAME_SHARE = 0.1
# of the bounds: records that fill less could do with narrower ones
_LEAST_FILLED = 1 / 50
# half widths of a column over its standard deviation, for numbers that fill it evenly
_EVEN = math.sqrt(3.0)
_LESS = 5  # what a suggested weight is smaller by


def column_warnings(
    centroids: FloatArray, domain: Domain, synopsis: Synopsis | None
) -> tuple[str, ...]:
    """Return warnings about columns of a result, in the user's units.

    Parameters
    ----------
    centroids : array of shape (k, d), float64
    domain : Box, Ball or Sphere
    synopsis : Synopsis or None
        Of the run, where it released one.
    """
    found: list[str] = []
    if isinstance(domain, Box):
        found += _only_a_category(centroids, domain, synopsis)
        found += _no_category(centroids, domain)
    if synopsis is not None:
        found += _little_filled(domain, synopsis.spreads / domain.unit)
    return tuple(found)


def _only_a_category(
    centroids: FloatArray, domain: Box, synopsis: Synopsis | None
) -> Iterator[str]:
    """Yield a warning for each category whose levels the clusters are."""
    factors = domain.factors()
    if len(factors) == 1:  # a weight would change nothing
        return
    if _numbers_differ(centroids, domain, synopsis):
        return
    and_no_number = ""
    if not all(factor.is_category for factor in factors):
        least = "half of its spread" if synopsis is not None else "15 % of its bounds"
        and_no_number = f", and no number differs between them by {least}"
    for factor in _categories(domain):
        shares = centroids[:, factor.start : factor.stop]
        n_levels = len(set(shares.argmax(axis=1).tolist()))
        if n_levels < 2 or shares.max(axis=1).min() <= _ONE_LEVEL:
            continue
        weight = domain.weights_by_name()[factor.name] / _LESS
        option = shlex.quote(f"{factor.name}={weight:.2g}")
        again = ""
        if synopsis is not None:
            again = (
                " The same run can be clustered with another weight, at no cost: "
                f"clustering.synopsis.kmeans({len(centroids)}, "
                f"weights={{{factor.name!r}: {weight:.2g}}})."
            )
        yield (
            f"The clusters are the values of the column {factor.name!r}: each has one of "
            f"them{and_no_number}. If this column should decide less, give it a smaller weight, "
            f"such as --weight {option}, in the next run.{again}"
        )


def _numbers_differ(
    centroids: FloatArray, domain: Box, synopsis: Synopsis | None
) -> bool:
    """Return whether clusters differ in some number by half of its released spread.

    Without a released spread, it is that of numbers that fill the bounds evenly. Half of
    it is 14.4 % of the bounds, which the warning rounds up.
    """
    if synopsis is not None:
        spreads = synopsis.spreads
    else:
        spreads = np.asarray(domain.unit * domain.half_widths / _EVEN)
    ranges = np.ptp(centroids, axis=0)
    numbers = [each.start for each in domain.factors() if not each.is_category]
    return bool((ranges[numbers] >= _DIFFERENT * spreads[numbers]).any())


def _no_category(centroids: FloatArray, domain: Box) -> Iterator[str]:
    """Yield a warning if clusters differ in no category."""
    categories = _categories(domain)
    has_others = len(categories) < len(domain.factors())
    if not categories or not has_others or len(centroids) < 2:
        return
    for factor in categories:
        shares = centroids[:, factor.start : factor.stop]
        # Clusters may share out many levels, of which each has a small share. Where
        # all are as near as this to the mean, no share of a level differs by more.
        differences = np.abs(shares - shares.mean(axis=0)).sum(axis=1) / 2
        if differences.max() > _SAME_SHARE / 2:
            return
    names = ", ".join(repr(factor.name) for factor in categories)
    yield (
        f"The clusters do not differ in the categories {names}: no share of a value differs by "
        f"more than {_SAME_SHARE:g}. If a category should decide more, give it a larger weight in "
        "the next run (--weight)."
    )


def _little_filled(domain: Domain, spreads: FloatArray) -> Iterator[str]:
    """Yield a warning about columns whose records lie in a small part of the bounds.

    ``spreads``, (d,), are scaled.
    """
    advice = (
        "Narrower bounds from public knowledge would leave more of the records' differences, and "
        "less noise."
    )
    if not isinstance(domain, Box) or domain.scale == "common":
        # Distances are those of all columns together.
        longest = 1.0
        if isinstance(domain, Box):
            longest = float(np.linalg.norm(domain.half_widths))
        if _EVEN * float(np.linalg.norm(spreads)) < _LEAST_FILLED * longest:
            yield f"The records fill less than 1/50 of the domain. {advice}"
        return
    filled = _EVEN * spreads / domain.half_widths
    names = [
        repr(factor.name)
        for factor in domain.factors()
        if not factor.is_category and filled[factor.start] < _LEAST_FILLED
    ]
    if names:
        yield (
            f"The records fill less than 1/50 of the bounds of {', '.join(names)}. {advice}"
        )


def _categories(domain: Box) -> list[Factor]:
    return [factor for factor in domain.factors() if factor.is_category]
