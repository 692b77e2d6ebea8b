"""Profiles of clusters: how each differs from the mean of all, column by column.

They are computed from released values alone and have no layout. The page draws them as
svg, ``flower-kmeans plot --kind profiles`` with matplotlib, and `cluster_names` makes
words of them. A picture takes the columns of `column_profiles` in the order of
`most_separating`, one line for each of their `shown_rows`. A mark or bar goes from the middle by
``row.deviations / largest_deviation(profiles)``, in [-1, 1], beside ``row.texts``. This
scale is the same for all columns: a column that separates the clusters little has short
bars, whatever its unit. ``row.places`` is for a scale from one bound to the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Literal

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Ball, Box, Domain, Factor
from flower_kmeans.data.table_domain import Date, Number, TableDomain
from flower_kmeans.files import printable

YES_AND_NO = (("yes", "no"), ("true", "false"), ("1", "0"), ("y", "n"), ("t", "f"))
"""Levels of categories that are answers, without regard to capital letters."""

RowKind = Literal["number", "logarithm", "date", "level"]


@dataclass(frozen=True, eq=False)
class ProfileRow:
    """One column of the domain: a number, a date, or one level of a category."""

    label: str  # printable: "age", or "ward B" for a level
    kind: RowKind
    values: FloatArray  # (k,), of the centroids, in the domain's form of the column
    mean: float  # of all clusters, weighted by their noisy sizes
    low: float  # public bounds, in the same form
    high: float
    deviations: FloatArray  # (k,), from the mean, in scaled units of the domain
    separation: float  # root of the weighted mean of their squares

    @property
    def texts(self) -> tuple[str, ...]:
        """Values of the clusters as text, in the user's units."""
        return tuple(self.text(value) for value in self.values.tolist())

    @property
    def places(self) -> FloatArray:
        """Places of the clusters between the bounds, (k,), in [0, 1]."""
        return self._place(self.values)

    @property
    def mean_place(self) -> float:
        """Place of the mean of all clusters between the bounds, in [0, 1]."""
        return float(self._place(np.array(self.mean)))

    def text(self, value: float) -> str:
        """Return a value in the domain's form of the column as text, in user's units."""
        if self.kind == "level":
            # Noise may move a fraction out of its bounds.
            return f"{min(1.0, max(0.0, value)):.0%}"
        if self.kind == "date":
            day = min(date.max.toordinal(), max(1, round(value)))
            return str(date.fromordinal(day))
        if self.kind == "logarithm":
            return short_number(10.0**value)
        return short_number(value)

    def _place(self, values: FloatArray) -> FloatArray:
        places = (values - self.low) / (self.high - self.low)
        return np.clip(places, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """A column as people name it. A category has a row for each of its levels."""

    name: str  # printable
    is_category: bool
    levels: tuple[str, ...]  # printable, in the order of the rows; () of others
    rows: tuple[ProfileRow, ...]

    @property
    def shown_rows(self) -> tuple[ProfileRow, ...]:
        """Rows for a picture: of two levels only one, since the other is what remains.

        It is that for "yes" if the levels are such answers, else the first one.
        """
        if len(self.rows) != 2:
            return self.rows
        plain = tuple(level.casefold() for level in self.levels)
        if plain[::-1] in YES_AND_NO:
            return self.rows[1:]
        return self.rows[:1]

    @property
    def separation(self) -> float:
        """How far clusters are from their mean, in scaled units of the domain."""
        squares = [row.separation**2 for row in self.rows]
        return float(np.sqrt(sum(squares)))

    @property
    def distances(self) -> FloatArray:
        """Distance of each cluster from the mean of all, (k,), in scaled units."""
        deviations = np.array([row.deviations for row in self.rows])
        distances: FloatArray = np.linalg.norm(deviations, axis=0)
        return distances

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Value of each cluster as text; the most frequent level of a category."""
        if not self.is_category:
            return self.rows[0].texts
        shares = np.array([row.values for row in self.rows])
        texts = []
        for cluster, level in enumerate(shares.argmax(axis=0).tolist()):
            row = self.rows[level]
            share = row.text(float(row.values[cluster]))
            texts.append(f"{self.levels[level]} {share}")
        return tuple(texts)


def column_profiles(
    centroids: FloatArray,
    counts: FloatArray,
    domain: Domain,
    columns: Sequence[str] | None = None,
) -> tuple[ColumnProfile, ...]:
    """Return the profile of each column, in the domain's order.

    Parameters
    ----------
    centroids : array of shape (k, d), float64
        In the user's units, as in a `Clustering`.
    counts : array of shape (k,), float64
        Noisy sizes, the weights of the mean. Negative ones count as 0.
    domain : Box, Ball or Sphere
    columns : sequence of str, optional
        Names for a domain that has none. By default columns have numbers from 1 on.
    """
    shares = weights_of(counts)
    means = shares @ centroids
    deviations = (centroids - means) / domain.unit
    with np.errstate(over="ignore"):
        separations = np.sqrt(shares @ deviations**2)
    lower, upper = _bounds(domain)
    labels = _labels(domain, columns)
    kinds = _kinds(domain)

    def row(place: int, label: str, kind: RowKind) -> ProfileRow:
        return ProfileRow(
            label,
            kind,
            centroids[:, place],
            float(means[place]),
            float(lower[place]),
            float(upper[place]),
            deviations[:, place],
            float(separations[place]),
        )

    found = []
    for factor in _factors(domain, labels):
        name = printable(factor.name)
        if not factor.is_category:
            rows = [row(factor.start, name, kinds[factor.start])]
            found.append(ColumnProfile(name, False, (), tuple(rows)))
            continue
        levels = []
        rows = []
        for place in range(factor.start, factor.stop):
            level = printable(labels[place].removeprefix(f"{factor.name}="))
            levels.append(level)
            rows.append(row(place, f"{name} {level}", "level"))
        found.append(ColumnProfile(name, True, tuple(levels), tuple(rows)))
    return tuple(found)


def most_separating(profiles: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """Return the profiles, those in which the clusters differ most first."""
    return sorted(profiles, key=lambda profile: -profile.separation)


def largest_deviation(profiles: Sequence[ColumnProfile]) -> float:
    """Return the largest absolute deviation in any row; 1 if there is none above 0."""
    rows = [row for profile in profiles for row in profile.rows]
    most = max((float(np.abs(row.deviations).max()) for row in rows), default=0.0)
    if most > 0:
        return most
    return 1.0


def weights_of(counts: FloatArray) -> FloatArray:
    """Return the fraction of the records in each cluster, (k,), from noisy sizes.

    Negative sizes count as 0. If none is positive, all clusters count alike.
    """
    sizes = np.maximum(counts, 0.0)
    if not sizes.any():
        sizes = np.ones(len(sizes))
    shares: FloatArray = sizes / sizes.sum()
    return shares


def short_number(value: float) -> str:
    """Return a number with about three digits, such as 63.2, 12,345 or 1.2e-05."""
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value + 0.0:.3g}"


def _bounds(domain: Domain) -> tuple[FloatArray, FloatArray]:
    """Return the least and largest value of each column in the domain, (d,) each."""
    if isinstance(domain, Box):
        return np.array(domain.lower), np.array(domain.upper)
    if isinstance(domain, Ball):
        center = np.array(domain.center)
        return center - domain.radius, center + domain.radius
    ones = np.ones(domain.n_features)
    return -ones, ones


def _labels(domain: Domain, columns: Sequence[str] | None) -> list[str]:
    """Return a name for each of the d columns."""
    numbered = [f"column {i + 1}" for i in range(domain.n_features)]
    return list(domain.columns or columns or numbered)


def _kinds(domain: Domain) -> list[RowKind]:
    """Return the kind of each of the d columns."""
    if not isinstance(domain, TableDomain):
        return ["number"] * domain.n_features
    kinds: list[RowKind] = []
    for column in domain.declared:
        if isinstance(column, Date):
            kinds.append("date")
        elif isinstance(column, Number):
            kinds.append("logarithm" if column.scale == "log" else "number")
        else:
            kinds += ["level"] * len(column.values)
    return kinds


def _factors(domain: Domain, labels: Sequence[str]) -> list[Factor]:
    """Return the columns as people name them, with their places in the domain."""
    if isinstance(domain, Box) and domain.columns is not None:
        return domain.factors()
    if isinstance(domain, Box):
        return [
            factor if factor.is_category else factor._replace(name=labels[factor.start])
            for factor in domain.factors()
        ]
    return [
        Factor(label, i, i + 1, is_category=False) for i, label in enumerate(labels)
    ]
