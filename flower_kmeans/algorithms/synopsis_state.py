"""The public numbers of a run of SynopsisKMeans, and its state between rounds.

A `State` has only named arrays of int64, so all clients of an oblivious server have
the same state (docs/guarantees, Theorem 11). Each class here is a part of it. ``read``
makes the part from a state's arrays, and ``to_arrays`` returns the arrays of the part.

D is the largest norm of a record around the domain's centre. d, p, k and m are the
numbers of columns, directions, clusters and cells.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np

from flower_kmeans.algorithms.layout import Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.eigenspace import MOST_ROTATED
from flower_kmeans.algorithms.numerics.portable import logarithm
from flower_kmeans.algorithms.numerics.postprocess import scaled, to_grid
from flower_kmeans.algorithms.numerics.projection import Projection, squared_bound
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.algorithms.synopsis_constants import (
    ALL_LIVE_COLUMNS,
    ALL_LIVE_SIGNAL,
    CLEAR_SIGNAL,
    FACTOR_GROWTH,
    FACTOR_START,
    FEWEST_LIVE,
    FREE_FACTOR,
    LEAST_FACTOR,
    LEAST_SIGNAL,
    LONGEST_FACTOR,
    MANY_CLUSTERS,
    MOST_FACTOR,
    MOST_SIGNAL,
    RADIUS_FACTOR,
    REAL_BITS,
    SMALLEST,
    STEPS_PER_FACTOR,
)
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords

NamedIntegers = dict[str, IntArray]

NORMS = "norms"
"""Block of round 1 without second moments: the sum of squared norms."""

SLACKS = "slacks"
"""Block of a synopsis round: the sum of 1 minus squared offsets, by cell."""

WARNINGS = (
    "The noise is too large for second moments of so many columns: the synopsis took random "
    "directions.",
    "The noisy second moments do not exceed their noise in any direction: the synopsis took "
    "arbitrary ones.",
    "In a round of the synopsis no cell had more noisy records than its noise: only the largest "
    "was kept.",
    "Fewer cells than clusters had more noisy records than their noise: some centroids started "
    "from points of the model.",
    "Some clusters had a noisy count within its noise in a refinement round: their centroids moved "
    "less than their records would have moved them.",
    "Clients did not answer in a round, and with them most records of a cell or cluster were "
    "missing: it was kept as the round before had left it.",
)


class Note(IntEnum):
    """Indices into `WARNINGS`, and into a state's ``flags``."""

    BLIND = 0
    NO_SIGNAL = 1
    NO_CELL = 2
    FEW = 3
    LIGHT = 4
    HELD = 5


@dataclass(frozen=True, eq=False)
class NoisySum:
    """The noisy sum of a round, and its noise."""

    blocks: Mapping[str, IntArray]
    """The integers of each block, in steps of its grid."""
    deviations: Mapping[str, float]
    """Planned standard deviation of the noise in each block, in the same steps."""
    exponent: int
    """q, the fractional bits of all blocks except second moments."""
    answered: float
    """Fraction of the run's slots that answered, in (0, 1]."""

    def values(self, block: str) -> FloatArray:
        """Return the values of a block: counts in records, all others in radii."""
        return scaled(self.blocks[block], self.exponent)

    def noise(self, block: str) -> float:
        """Return the standard deviation of a block's noise, in the unit of `values`."""
        return self.deviations[block] * 2.0**-self.exponent


class Stage(Protocol):
    """One round: its query, the answer to it, and the state after the noisy sum."""

    def layout(self) -> Layout:
        """Return the blocks of the round."""

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of every block: how far one record can change it."""

    def ranges(self) -> dict[str, Range]:
        """Return the shape and the least and largest value of every array of the query."""

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return the client's answer to the query."""

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits that exact sums of the round keep."""

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return the arrays that the round changes in the state.

        Parameters
        ----------
        before : mapping of str to array
            The state before the round.
        found : NoisySum
            The noisy sum of the round.
        flags : array of int64, (6,)
            Set to 1 in place for every `Note` that applies.
        """


# ------------------------------------------------------------------ public figures


def are_all_live(n_clusters: int, n_features: int) -> bool:
    """Return whether all directions are live at any signal ("Second moments")."""
    if n_features <= ALL_LIVE_COLUMNS:
        return True
    return n_features <= MOST_ROTATED and n_clusters >= MANY_CLUSTERS * n_features


@dataclass(frozen=True, eq=False)
class Setting:
    """The public numbers that the stages of a run share."""

    domain: Domain
    fraction_bits: int
    """q, the fractional bits of records, counts and centroids."""
    n_clusters: int
    """k, the number of clusters, or the largest number in a run that chooses."""
    n_directions: int
    """p, the number of directions of the synopsis."""
    strength: float
    """S, the strength of the rounds after the first. It is infinite without noise."""
    n_records: float
    """N, the planned number of records, or infinity if there is none."""
    seed: int

    @property
    def n_features(self) -> int:
        """d, the number of columns."""
        return self.domain.n_features

    @cached_property
    def projection(self) -> Projection:
        """The grids of the synopsis."""
        return Projection(self.domain, self.fraction_bits, self.n_directions)

    @property
    def unit(self) -> float:
        """A step of the records' grid, in units of the scaled domain."""
        return 2.0**-self.fraction_bits

    @property
    def longest(self) -> float:
        """D, the largest norm of a record, in grid units."""
        return self.domain.l2_bound(self.fraction_bits)

    @property
    def step(self) -> float:
        """A step of the projection's grid, in units of D."""
        return 2.0 ** (self.fraction_bits - self.projection.exponent) / self.longest

    @property
    def fewest_live(self) -> int:
        """Fewest directions that are live, also if fewer exceed the noise."""
        d = self.n_features
        p = self.n_directions
        if are_all_live(self.n_clusters, d):
            return p
        signal = self.strength / (self.n_clusters * math.sqrt(d))
        if p == d and signal >= ALL_LIVE_SIGNAL:
            return p
        return min(p, FEWEST_LIVE)

    @property
    def factor(self) -> float:
        """rho, a cell's radius over the root mean square of its lengths ("Cells").

        It is larger with less noise.
        """
        grown = FACTOR_START + FACTOR_GROWTH * float(logarithm(np.array(self._signal)))
        return min(MOST_FACTOR, max(LEAST_FACTOR, grown))

    @property
    def refinement_factor(self) -> float:
        """Rho of the refinement rounds, which is longer where noise is small ("Refinement").

        Where noise costs next to nothing, hardly any offset is clipped: clipping moves
        the mean of a cluster with a heavy tail. Radii of cells stay short, because the
        noise of a cell's variance grows with the square of its radius.
        """
        # In a long radius offsets would have too few steps of a coarse grid.
        most = min(LONGEST_FACTOR, STEPS_PER_FACTOR * 2.0**self.fraction_bits)
        free = min(FREE_FACTOR * self._signal, most)
        return max(self.factor, free)

    @property
    def _signal(self) -> float:
        """s, within limits. It is finite even without noise, where S is infinite."""
        share = self.strength / (self.n_clusters * math.sqrt(self.n_features))
        return min(max(share, LEAST_SIGNAL), MOST_SIGNAL)

    @property
    def clear_size(self) -> float:
        """Records from which a cluster's signal is clear ("Refinement")."""
        if math.isinf(self.strength):
            return 0.0
        of_record = self.strength / (self.n_records * math.sqrt(self.n_features))
        return CLEAR_SIGNAL / max(of_record, SMALLEST)

    def radius(self, mean_square: float) -> int:
        """Return a refinement round's radius, in grid units ("Refinement").

        ``mean_square`` is the mean squared distance to the centroids, in D^2.
        """
        length = RADIUS_FACTOR * self.refinement_factor * math.sqrt(mean_square)
        radius = math.floor(min(1.0, length) * self.longest)
        return min(max(radius, 1), self.largest_radius)

    @property
    def largest_radius(self) -> int:
        """D in whole grid units. A larger radius clips nothing."""
        return math.isqrt(squared_bound(self.domain, self.fraction_bits))


# ----------------------------------------------------------------------- the state


class Directions(NamedTuple):
    """The directions of the synopsis, which round 1 finds ("Second moments").

    The first of them are live. The others are zeros, so that no shape depends on how
    many are live.

    Attributes
    ----------
    projection : array of int64, (d, p)
        Orthonormal columns, with q fractional bits, or zeros.
    variances : array of float64, (p,)
        Variance of the records along each direction, in D^2. A state calls it
        ``prior``.
    rest : float
        Variance in all directions that are not live together, in D^2.
    """

    projection: IntArray
    variances: FloatArray
    rest: float

    @classmethod
    def read(cls, arrays: StateArrays) -> Self:
        """Return the directions of a state's arrays."""
        return cls(
            projection=arrays["projection"],
            variances=real(arrays["prior"]),
            rest=one_real(arrays["rest"]),
        )

    def to_arrays(self) -> NamedIntegers:
        """Return the arrays of a state."""
        return {
            "projection": self.projection,
            "prior": stored(self.variances),
            "rest": stored(self.rest),
        }

    @property
    def n_live(self) -> int:
        """Number of live directions."""
        return int(np.count_nonzero(self.projection.any(axis=0)))

    @property
    def n_beside(self) -> int:
        """Number of directions that are orthogonal to the live ones."""
        return len(self.projection) - self.n_live

    @property
    def beside(self) -> float:
        """Variance in each direction that is orthogonal to the live ones, in D^2."""
        return self.rest / max(self.n_beside, 1)


class CountedCells(NamedTuple):
    """The cells of a synopsis round, and the model's records in them ("Cells").

    Attributes
    ----------
    centers : array of int64, (m, p)
        Centres on the projection's grid. A state and a query call them ``cells``.
    radii : array of int64, (m,)
        Radii on the same grid.
    variances : array of float64, (m, p)
        Variances of the model's records in each cell, in D^2.
    spread : float
        Mean squared distance of the model's records to the centres of their cells, in
        D^2.
    expected : array of float64, (m,)
        Number of the model's records in each cell.
    """

    centers: IntArray
    radii: IntArray
    variances: FloatArray
    spread: float
    expected: FloatArray

    @classmethod
    def read(cls, arrays: StateArrays, fraction_bits: int) -> Self:
        """Return the cells of a state's arrays."""
        return cls(
            centers=arrays["cells"],
            radii=arrays["radii"],
            variances=real(arrays["variances"]),
            spread=one_real(arrays["spread"]),
            expected=scaled(arrays["expected"], fraction_bits),
        )

    def to_arrays(self, fraction_bits: int) -> NamedIntegers:
        """Return the arrays of a state."""
        return {
            "cells": self.centers,
            "radii": self.radii,
            "variances": stored(self.variances),
            "spread": stored(self.spread),
            "expected": to_grid(self.expected * 2.0**fraction_bits),
        }


class Spread(NamedTuple):
    """The spread of records around the centroids of the synopsis ("Selection").

    Attributes
    ----------
    within : array of float64, (p + 1,)
        Variance of the mixture's records around the centroids by direction, in D^2. The
        last entry is for every direction that is orthogonal to the live ones.
    first : float
        Mean squared distance of the records to the centroids, in D^2.
    """

    within: FloatArray
    first: float

    @classmethod
    def read(cls, arrays: StateArrays) -> Self:
        """Return the spread of a state's arrays."""
        return cls(within=real(arrays["within"]), first=one_real(arrays["first"]))

    def to_arrays(self) -> NamedIntegers:
        """Return the arrays of a state."""
        return {"within": stored(self.within), "first": stored(self.first)}

    def with_variance_beside(self, scale: float) -> Self:
        """Return it with the variance beside the live directions times a scale."""
        within = self.within.copy()
        within[-1] *= scale
        return self._replace(within=within)


class Clusters(NamedTuple):
    """The clusters between two refinement rounds ("Refinement").

    Attributes
    ----------
    centroids : array of int64, (k, d)
        The centroids, in grid units.
    counts : array of float64, (k,)
        Noisy number of records of each cluster.
    moves : array of float64, (k, d)
        The last moves, in D.
    doubts : array of float64, (k, p + 1)
        Expected square of each centroid's remaining error, in D^2: along each
        direction, and in every direction orthogonal to the live ones.
    mean_square : float
        Mean squared distance of the records to their centroids, in D^2.
    radius : int
        Radius of the next round, in grid units.
    """

    centroids: IntArray
    counts: FloatArray
    moves: FloatArray
    doubts: FloatArray
    mean_square: float
    radius: int

    @classmethod
    def read(cls, arrays: StateArrays, fraction_bits: int) -> Self:
        """Return the clusters of a state's arrays."""
        return cls(
            centroids=arrays["centroids"],
            counts=scaled(arrays["counts"], fraction_bits),
            moves=real(arrays["moves"]),
            doubts=real(arrays["doubts"]),
            mean_square=one_real(arrays["mean_square"]),
            radius=int(arrays["radius"][0]),
        )

    def to_arrays(self, fraction_bits: int) -> NamedIntegers:
        """Return the arrays of a state."""
        return {
            "centroids": self.centroids,
            "counts": to_grid(self.counts * 2.0**fraction_bits),
            "moves": stored(self.moves),
            "doubts": stored(self.doubts),
            "mean_square": stored(self.mean_square),
            "radius": np.array([self.radius], dtype=np.int64),
        }

    def with_doubts_beside(self, scale: float) -> Self:
        """Return them with the doubts beside the live directions times a scale."""
        doubts = self.doubts.copy()
        doubts[:, -1] *= scale
        return self._replace(doubts=doubts)


def stored(values: FloatArray | float) -> IntArray:
    """Return reals as integers of a state. A single real becomes an array (1,)."""
    return to_grid(np.atleast_1d(values) * 2.0**REAL_BITS)


def real(integers: IntArray) -> FloatArray:
    """Return the reals of integers of a state."""
    return scaled(integers, REAL_BITS)


def one_real(integers: IntArray) -> float:
    """Return the real of an array (1,) of a state."""
    return float(real(integers)[0])
