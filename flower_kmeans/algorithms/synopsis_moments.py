"""Round 1 of SynopsisKMeans: second moments, and the directions of the synopsis.

See docs/guarantees, Theorem 22, "Second moments". If their noise would be too large,
the round releases only the sum of squared norms, and directions are random. If their
words would be too many, it releases products of columns with groups of columns.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flower_kmeans.algorithms.layout import Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import projection as projections
from flower_kmeans.algorithms.numerics.column_groups import ColumnGroups
from flower_kmeans.algorithms.numerics.cost import squared_distances
from flower_kmeans.algorithms.numerics.eigenspace import (
    leading_eigenvectors,
    leading_of_products,
)
from flower_kmeans.algorithms.numerics.initialization import random_words, round_words
from flower_kmeans.algorithms.numerics.jacobi import orthonormal
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.algorithms.synopsis_cells import partition
from flower_kmeans.algorithms.synopsis_constants import (
    CLEAR,
    FIRST,
    LEAST_NORM,
    LEAST_REST,
    LEAST_VARIANCE,
    MOST_NORM_NOISE,
    NOISE_NORM,
    PRIOR_NORM,
    PRIOR_SPREAD,
    UNUSED_VARIANCE,
)
from flower_kmeans.algorithms.synopsis_mixture import prior
from flower_kmeans.algorithms.synopsis_state import (
    NORMS,
    Directions,
    NamedIntegers,
    NoisySum,
    Note,
    Setting,
)
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords


@dataclass(frozen=True, eq=False)
class MomentsStage:
    """The round of second moments, or of squared norms alone."""

    setting: Setting
    takes_moments: bool
    n_next: int
    """Number of cells of round 2."""
    n_groups: int = 0
    """m, the number of groups of columns. 0: moments are those of all columns."""

    def layout(self) -> Layout:
        """Return the block: the diagonal of second moments, then the entries above it.

        With groups of columns it has their products with all columns, (d, m).
        """
        d = self.setting.n_features
        if not self.takes_moments:
            return Layout((Block(NORMS, (1,), self.setting.fraction_bits),))
        exponent = 2 * self._moment_bits
        if self.n_groups:
            return Layout((Block(MOMENTS, (d, self.n_groups), exponent),))
        n_entries = d * (d + 1) // 2
        return Layout((Block(MOMENTS, (n_entries,), exponent, are_moments=True),))

    def sensitivities(self) -> dict[str, float]:
        """Return D^2, the sensitivity of squared norms and of the moments' diagonal.

        With groups of columns it is D times the largest length of their numbers.
        """
        domain = self.setting.domain
        q = self.setting.fraction_bits
        if not self.takes_moments:
            return {NORMS: float(projections.squared_bound(domain, q) >> q)}
        if self.n_groups:
            return {MOMENTS: self._groups.sensitivity}
        dropped = q - self._moment_bits
        return {MOMENTS: float(projections.squared_bound(domain, q, dropped))}

    def ranges(self) -> dict[str, Range]:
        """Return no ranges, because the query of round 1 has no arrays."""
        return {}

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return second moments of the records, or the sum of their squared norms."""
        if self.takes_moments:
            if self.n_groups:
                return Statistic({MOMENTS: self._groups.moments(records)})
            return Statistic({MOMENTS: projections.second_moments(records)})
        setting = self.setting
        origin = np.zeros((1, setting.n_features), dtype=np.int64)
        bound = projections.squared_bound(setting.domain, setting.fraction_bits)
        total = squared_distances(records, origin, bound)
        norms = np.array([total], dtype=np.int64)
        return Statistic({NORMS: norms})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits on squares of records."""
        most = self.sensitivities()
        if not self.takes_moments:
            return Meaning(counts=None, totals=most, are_clusters=False)
        if self.n_groups:
            return Meaning(
                counts=None,
                products=MOMENTS,
                product=most[MOMENTS],
                are_clusters=False,
            )
        return Meaning(
            counts=None, moments=MOMENTS, trace=most[MOMENTS], are_clusters=False
        )

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return the directions and the first cells (as `Stage.after`)."""
        source = round_words(self.setting.seed, FIRST)
        if self.n_groups:
            directions = self._directions_of_groups(found, flags)
        elif self.takes_moments:
            directions = self._clear_directions(found, flags)
        else:
            directions = self._random_directions(found, flags, source)
        first_model = prior(directions.variances)
        cells = partition(
            first_model, self.n_next, self.setting.factor, self.setting.step, source
        )
        return {
            **directions.to_arrays(),
            **cells.to_arrays(self.setting.fraction_bits),
        }

    def edge_of(self, noise: float) -> float:
        """Return the largest variance along a direction that noise alone shows, in D^2.

        ``noise`` is the standard deviation of a word (of the diagonal), over the number
        of records.
        """
        d = self.setting.n_features
        in_squares = noise * self._square
        if not self.n_groups:
            return projections.noise_edge(d, in_squares)
        edge = _edge_of_groups(d, self.n_groups, in_squares)
        return edge * math.sqrt(d / self.n_groups)

    def _clear_directions(self, found: NoisySum, flags: IntArray) -> Directions:
        """Return the leading eigenvectors of noisy second moments, with their variances.

        Those after the first that exceed the noise, and after the fewest, are not live.
        ``flags`` note whether no direction exceeds the noise.
        """
        d = self.setting.n_features
        # The moments and the standard deviation of a diagonal entry are in D^2.
        moments = projections.symmetric(found.blocks[MOMENTS], d) * self._square
        noise = found.deviations[MOMENTS] * self._square

        total = math.fsum(np.diagonal(moments))
        n = self._n_records(total, found.answered)
        of_total = noise * math.sqrt(d)
        norm = mean_norm(total / n, of_total / n)
        edge = projections.noise_edge(d, noise) / n
        p = self.setting.n_directions
        vectors, values = leading_eigenvectors(moments / n, p, edge)
        variances, n_clear = spectrum(values, edge, norm)
        return self._live_directions(vectors, variances, n_clear, flags)

    def _directions_of_groups(self, found: NoisySum, flags: IntArray) -> Directions:
        """Return the leading left singular vectors of noisy products of columns and groups.

        Otherwise it is as `_clear_directions`.
        """
        d = self.setting.n_features
        p = self.setting.n_directions
        m = self.n_groups
        # The products and the standard deviation of each are in D^2.
        products = found.blocks[MOMENTS].astype(np.float64) * self._square
        noise = found.deviations[MOMENTS] * self._square

        total = self._groups.trace(products)
        n = self._n_records(total, found.answered)
        of_total = noise * d / math.sqrt(m)
        norm = mean_norm(total / n, of_total / n)
        vectors, values = leading_of_products(products / n, min(p, m))
        variances, n_clear = spectrum_of_groups(values, noise / n, (d, m), norm)
        padded = np.zeros((d, p))
        padded[:, : len(values)] = vectors
        return self._live_directions(padded, variances, n_clear, flags)

    def _live_directions(
        self, vectors: FloatArray, variances: FloatArray, n_clear: int, flags: IntArray
    ) -> Directions:
        """Return directions, of which the clear ones and the fewest are live."""
        d = self.setting.n_features
        most = self.setting.n_directions
        if self.n_groups:
            most = min(most, self.n_groups)
        n_live = min(most, max(n_clear, self.setting.fewest_live))
        # If d directions are live, they span all columns, so no note is needed.
        flags[Note.NO_SIGNAL] = n_clear == 0 and n_live < d
        return self._directions(vectors, variances, n_live)

    def _random_directions(
        self, found: NoisySum, flags: IntArray, source: np.random.Philox
    ) -> Directions:
        """Return random directions, or the columns if p = d, all with the same variance.

        ``flags`` note whether directions are random.
        """
        d = self.setting.n_features
        p = self.setting.n_directions
        scale = self.setting.unit / self._squared_norm
        # The sum and its standard deviation are in D^2.
        total = float(found.blocks[NORMS][0]) * scale
        noise = found.deviations[NORMS] * scale

        n = self._n_records(total, found.answered)
        norm = mean_norm(total / n, noise / n)
        variances = np.full(d, norm / d)
        vectors = np.eye(d)
        if p < d:
            flags[Note.BLIND] = True
            words = random_words(source, d * p)
            vectors = orthonormal(normals(words).reshape(d, p))
        return self._directions(vectors, variances, p)

    def _directions(
        self, vectors: FloatArray, variances: FloatArray, n_live: int
    ) -> Directions:
        """Return the first vectors as live directions, with the variances, (d,), of all."""
        p = self.setting.n_directions
        matrix = self.setting.projection.matrix(vectors[:, :p])
        matrix[:, n_live:] = 0
        along = variances[:p].copy()
        along[n_live:] = UNUSED_VARIANCE
        rest = math.fsum(variances[n_live:])
        return Directions(matrix, along, rest)

    def _n_records(self, total: float, answered: float) -> float:
        """Return the planned records of the clients that answered.

        Without a planned number it is an estimate from ``total``, the sum of squared
        norms in D^2.
        """
        n_records = self.setting.n_records * answered
        if n_records < math.inf:
            return n_records
        # Without a planned number the mean squared norm is assumed to be the expected
        # one. Directions can still be compared.
        return max(total / PRIOR_NORM, 1.0)

    @cached_property
    def _groups(self) -> ColumnGroups:
        """The groups of columns, if there are any."""
        setting = self.setting
        return ColumnGroups(
            setting.domain, setting.fraction_bits, self.n_groups, setting.seed
        )

    @property
    def _moment_bits(self) -> int:
        """Fractional bits of the grid of second moments."""
        return projections.moment_bits(self.setting.fraction_bits)

    @property
    def _square(self) -> float:
        """A step of second moments, in D^2."""
        return 4.0**-self._moment_bits / self._squared_norm

    @property
    def _squared_norm(self) -> float:
        """D^2, in squared units of the scaled domain."""
        side = self.setting.longest * self.setting.unit
        return side * side


def note_on_groups(n_features: int, n_groups: int) -> str:
    """Return what the products of columns with groups cost, and how to avoid them."""
    d = n_features
    return (
        f"messages of so many clients cannot carry second moments of {d} columns, "
        f"{d * (d + 1) // 2:,} words. Products of the columns with {n_groups} random groups of "
        "them stand for these, which shows clusters less exactly. trust='oblivious-server', "
        "fewer clients or fewer columns avoid that."
    )


def mean_norm(found: float, error: float) -> float:
    """Return an estimate of the mean squared norm, between ``found`` and the expected one.

    ``error`` is the standard deviation of the noise of ``found``.
    """
    variance = error * error
    doubt = variance / (variance + PRIOR_SPREAD * PRIOR_SPREAD)
    norm = doubt * PRIOR_NORM + (1 - doubt) * found
    least = NOISE_NORM * min(error, MOST_NORM_NOISE)
    return min(1.0, max(norm, LEAST_NORM, least))


def spectrum(values: FloatArray, edge: float, norm: float) -> tuple[FloatArray, int]:
    """Return the variances along all directions, (d,), and the number above the noise.

    From an eigenvalue v above the noise's edge the effect of noise is subtracted, which
    leaves ``(v + sqrt(v^2 - edge^2)) / 2``. The other directions get equal parts of the
    remaining norm. ``edge`` is the largest eigenvalue of noise alone, about
    ``sqrt(2 d)`` standard deviations of its diagonal (Wigner's semicircle).
    """
    clear = values > CLEAR * edge
    # Noise moves an eigenvalue t to v = t + edge^2 / (4 t); this is the inverse.
    squares = np.maximum(values * values - edge * edge, 0.0)
    without_noise = (values + np.sqrt(squares)) / 2
    return _with_rest(without_noise, clear, norm), int(np.count_nonzero(clear))


def spectrum_of_groups(
    values: FloatArray, noise: float, shape: tuple[int, int], norm: float
) -> tuple[FloatArray, int]:
    """Return the variances along all directions, (d,), and the number above the noise.

    ``values`` are singular values of a matrix, ``shape`` (d, m), of products of columns
    with groups, whose entries have noise of the standard deviation ``noise``. A variance
    t has the singular value ``t sqrt(m / d)``, because groups keep m / d of a squared
    length. Noise alone has values up to ``noise (sqrt(d) + sqrt(m))``.
    """
    d, m = shape
    clear = values > CLEAR * _edge_of_groups(d, m, noise)
    # Noise moves the square t of a singular value to (t + d e) (t + m e) / t, e its
    # variance; this is the inverse.
    variance = noise * noise
    moved = values * values - (d + m) * variance
    within = np.maximum(moved * moved - 4 * d * m * variance * variance, 0.0)
    squares = np.maximum(moved + np.sqrt(within), 0.0) / 2
    found = np.zeros(d)
    found[: len(values)] = np.sqrt(squares * (d / m))
    is_clear = np.zeros(d, dtype=np.bool_)
    is_clear[: len(values)] = clear
    return _with_rest(found, is_clear, norm), int(np.count_nonzero(clear))


def _edge_of_groups(n_features: int, n_groups: int, noise: float) -> float:
    """Return the largest singular value of noise in products of columns with groups."""
    return noise * (math.sqrt(n_features) + math.sqrt(n_groups))


def _with_rest(variances: FloatArray, clear: BoolArray, norm: float) -> FloatArray:
    """Return variances, where those that are not clear are equal parts of the other norm."""
    found = np.where(clear, variances, 0.0)
    n_others = len(found) - int(np.count_nonzero(clear))
    if n_others:
        rest = norm - math.fsum(found)
        rest = max(rest, LEAST_REST * norm)
        found[~clear] = rest / n_others
    return np.maximum(found, LEAST_VARIANCE)
