"""A run for its page: report, public parameters, and results that its writer may see."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.profiles import ColumnProfile, column_profiles
from flower_kmeans.report.report import Report
from flower_kmeans.report.synopsis import Synopsis


@dataclass(frozen=True)
class Outcome:
    """A run for its page: report, public parameters, and results that its writer may see."""

    report: Report
    domain: Domain
    columns: tuple[str, ...]
    # the most, if the run chose their number and the writer must not see it
    n_clusters: int
    clusters: str  # number of clusters in words
    centroids: FloatArray | None  # (k, d)
    counts: FloatArray | None  # (k,)
    sizes: SizeReport | None
    not_private: str | None
    synopsis: Synopsis | None = None
    comparison: Comparison | None = None  # of a simulation: exact, and not private

    @cached_property
    def profiles(self) -> tuple[ColumnProfile, ...]:
        """The profile of each column as people name it; empty without centroids."""
        if self.centroids is None:
            return ()
        counts = self._weights
        found = column_profiles(self.centroids, counts, self.domain, self.columns)
        if len(found) < len(self.columns):  # a category is several columns of the box
            return found
        pairs = zip(found, self.columns, strict=True)
        return tuple(replace(profile, name=name) for profile, name in pairs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each cluster in words; empty without centroids."""
        if self.centroids is None:
            return ()
        counts = self._weights
        return cluster_names(self.centroids, counts, self.domain, self.columns)

    @property
    def _weights(self) -> FloatArray:
        if self.counts is not None:
            return self.counts
        if self.sizes is not None:
            return np.array(self.sizes.counts)
        return np.ones(self.n_clusters)

    @property
    def n_columns(self) -> int:
        """Number of columns as people name them: a category is one."""
        if isinstance(self.domain, Box):
            return len(self.domain.factors())
        return len(self.columns)

    @property
    def size_interval(self) -> FloatArray | None:
        """Least and largest size of each cluster, (k, 2); ``None`` if it is not known."""
        if self.sizes is not None:
            return self.sizes.interval
        if self.counts is None:
            return None
        return self.report.size_interval(self.counts)

    @property
    def is_private(self) -> bool:
        """Whether the run's guarantee holds: neither its report nor its user denies it."""
        return self.not_private is None and self.report.guarantee_holds

    @property
    def is_finished(self) -> bool:
        """Whether all planned rounds were completed."""
        return self.report.n_rounds == len(self.report.plan.rounds)

    @property
    def bounds(self) -> tuple[FloatArray, FloatArray] | None:
        """Public lower and upper bounds of a `Box`, (d,) each in the user's units."""
        if not isinstance(self.domain, Box):
            return None
        return np.array(self.domain.lower), np.array(self.domain.upper)

    @property
    def are_colours(self) -> bool:
        """Whether records are colours: red, green and blue, within 0 to 255."""
        bounds = self.bounds
        names = [column.lower() for column in self.columns]
        if bounds is None or names != ["red", "green", "blue"]:
            return False
        lower, upper = bounds
        return bool(lower.min() >= 0 and upper.max() <= 255)

    @property
    def order(self) -> NDArray[np.int64]:
        """Indices of the clusters, the largest cluster first; in order without sizes."""
        if self.counts is None:
            return np.arange(self.n_clusters)
        return np.argsort(-self.counts, kind="stable")
