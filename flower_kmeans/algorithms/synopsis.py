"""SynopsisKMeans: a private synopsis of the records is clustered, and the result refined.

The first round asks for second moments: in which directions records vary, and how much. Rounds of
the synopsis ask for counts, residuals and slacks of records by nearest cell; each makes a mixture
of Gaussians whose records the next round's cells are made for. Weighted k-means on the last mixture
gives centroids, and Lloyd rounds with residuals that are clipped to a shrinking radius refine them.
Numbers and shares: docs/guarantees.md, "SynopsisKMeans".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flower_kmeans.algorithms.base import (
    FloatArray,
    IntArray,
    Query,
    Range,
    State,
    Statistic,
    register,
)
from flower_kmeans.algorithms.cells import cell_sums, squared_norms
from flower_kmeans.algorithms.feddp_releases import MOMENTS
from flower_kmeans.algorithms.histogram import expected_total
from flower_kmeans.algorithms.jacobi import eigenvectors, orthonormal
from flower_kmeans.algorithms.lloyd import COUNTS, SUMS
from flower_kmeans.algorithms.portable import logarithm, normals
from flower_kmeans.algorithms.postprocess import into_domain, scaled, to_grid
from flower_kmeans.algorithms.projection import (
    ProjectedRecords,
    moment_bits,
    second_moments,
    squared_bound,
    symmetric,
)
from flower_kmeans.algorithms.synopsis_model import (
    DRIFT,
    DRIFT_DECAY,
    Answers,
    Mixture,
    Noise,
    Partition,
    absent,
    continued,
    learned,
    mean_norm,
    partition,
    prior,
    select,
    shortened,
    spectrum,
    steps_of,
    weighed,
)
from flower_kmeans.algorithms.synopsis_parameters import SynopsisParameters
from flower_kmeans.algorithms.synopsis_schedule import FIRST, NORMS, SLACKS
from flower_kmeans.domain import GridRecords, row_sums
from flower_kmeans.initialization import random_words, round_words

NOTES = (
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
BLIND, NO_SIGNAL, NO_CELL, FEW, LIGHT, HELD = range(len(NOTES))

RADIUS_FACTOR, LEAST_RADIUS2 = 0.9, 0.15
"""Refinement: radius over that of the synopsis' rule, and least part of the first mean square."""

REAL_BITS = 52
"""Fractional bits of reals in a state, which are lengths and variances in units of D."""


@register
@dataclass(frozen=True, init=False)
class SynopsisAlgorithm(SynopsisParameters):
    """k-means from a private synopsis.

    Formal guarantee: one record changes the second moments by D^2 at most (with off-diagonal
    entries counted sqrt 2 times), in rounds of the synopsis one cell by (u, 1, 1 - |u|^2), u no
    longer than 1, whose norm is 1 in units of a joint release, and later one centroid by (u, 1);
    the plan composes all releases (docs/guarantees.md, "SynopsisKMeans").

    Parameters
    ----------
    n_clusters : int
        k, at most 10,000.
    domain : Box or Ball
        Public bounds and scaling. D is the largest norm around its centre: a ball that fits the
        data has a smaller one than their box.
    budget : PrivacyBudget
        For the whole run.
    n_records : int, optional
        Public planning figure for the total number of records. Required with a private budget.
    n_clients : int, optional
        Public planning figure for the number of clients. Required with a private budget of
        ``unit="client"``, and refused otherwise.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each release.
        Default: the root of ``n_records / n_clients``, at least 1.
    clips : mapping of str to float, optional
        Clips of single releases, in place of ``clip``.
    n_rounds : "auto"
        Follows from the public figures.
    seed : int
        Public randomness, in [0, 2**53): of the points on which ``update`` clusters.
    fraction_bits : int
        q; the grid's step is ``2**-q`` of the scaled domain.
    schedule : Schedule, optional
        What a run document states, for the plan's signal; otherwise made from the public figures.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, parameters contradict each other, or sums could overflow.
    """

    name: ClassVar[str] = "synopsis"
    replayable: ClassVar[bool] = True
    remarks: ClassVar[tuple[str, ...]] = NOTES

    # ------------------------------------------------------------------ queries

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return that nothing is known. ``rng`` is not used."""
        return State(0, {"flags": np.zeros(len(NOTES), dtype=np.int64)})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the arrays of a round's query.

        Round 1: none. Synopsis: ``projection`` (d, p), ``cells`` (M, p) and ``radii`` (M,).
        Refinement: ``centroids`` (k, d) and ``radius`` (1,).
        """
        d, p = self.domain.n_features, self.schedule.n_directions
        if round_number == FIRST:
            return {}
        if self.schedule.is_synopsis(round_number):
            m, one, limit = (
                self.schedule.n_cells(round_number),
                2**self.fraction_bits,
                self.projection.limit,
            )
            return {
                "projection": ((d, p), -one, one),
                "cells": ((m, p), -limit, limit),
                "radii": ((m,), 1, limit),
            }
        widths = self.domain.grid_half_widths(self.fraction_bits)
        longest = math.isqrt(squared_bound(self.domain, self.fraction_bits))
        return {
            "centroids": ((self.n_clusters, d), -widths, widths),
            "radius": ((1,), 1, longest),
        }

    # ------------------------------------------------------------------ answers

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the client's answer to the round's query; zeros for no records."""
        arrays, number, q = query.arrays, query.round, self.fraction_bits
        if number == FIRST:
            if self.schedule.moments:
                return Statistic({MOMENTS: second_moments(records)})
            return Statistic({NORMS: np.array([squared_norms(records)], dtype=np.int64)})
        if self.schedule.is_synopsis(number):
            projected = ProjectedRecords(records, self.projection, arrays["projection"])
            sums, counts, slacks = cell_sums(projected, arrays["cells"], arrays["radii"], q)
            return Statistic({SUMS: sums, COUNTS: counts << q, SLACKS: slacks})
        radii = np.full(self.n_clusters, arrays["radius"][0])
        sums, counts, _ = cell_sums(records, arrays["centroids"], radii, q)
        return Statistic({SUMS: sums, COUNTS: counts << q})

    # ------------------------------------------------------------------ updates

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum: the same integers on every processor.

        Random numbers are Philox words of the seed and the round. ``rng`` is not used.
        """
        number, before = state.round + 1, state.arrays
        flags, source = before["flags"].copy(), round_words(self.seed, number)
        if number == FIRST:
            arrays = self._after_moments(answer, flags, source)
        elif self.schedule.is_synopsis(number):
            arrays = self._after_synopsis(number, before, answer, flags, source)
        else:
            arrays = self._after_refinement(number, before, answer, flags)
        return State(number, {**before, **arrays, "flags": flags})

    def _after_moments(
        self, answer: Statistic, flags: IntArray, source: np.random.Philox
    ) -> dict[str, IntArray]:
        d, p, noise = self.domain.n_features, self.schedule.n_directions, self.noise_of(FIRST)
        side = self._longest * 2.0**-self.fraction_bits
        norm2 = side * side
        n_records = None if self.n_records is None else self.n_records * answer.answered
        directions = np.eye(d)
        if self.schedule.moments:
            scale = 4.0 ** -moment_bits(self.fraction_bits) / norm2
            moments = symmetric(answer.blocks[MOMENTS], d) * scale
            total, std = math.fsum(np.diagonal(moments)), noise[MOMENTS] * scale
            # Without a public figure, all that is known is how the directions compare.
            n = float(n_records) if n_records else max(total / 0.25, 1.0)
            norm = mean_norm(total / n, std * math.sqrt(d) / n)
            directions, values = eigenvectors(moments / n)
            variances, n_clear = spectrum(values, math.sqrt(2 * d) * std / n, norm)
            flags[NO_SIGNAL] = n_clear == 0 and p < d
        else:
            scale = 2.0**-self.fraction_bits / norm2
            total, std = float(answer.blocks[NORMS][0]) * scale, noise[NORMS] * scale
            n = float(n_records) if n_records else max(total / 0.25, 1.0)
            norm = mean_norm(total / n, std / n)
            variances = np.full(d, norm / d)
            flags[BLIND] = p < d
            if p < d:
                directions = orthonormal(normals(random_words(source, d * p)).reshape(d, p))
        mixture = prior(variances[:p])
        return {
            "projection": self.projection.matrix(directions[:, :p]),
            "prior": _stored(variances[:p]),
            "rest": _stored(math.fsum(variances[p:])),
            **self._cells(FIRST + 1, mixture, source),
        }

    def _cells(
        self,
        number: int,
        mixture: Mixture,
        source: np.random.Philox,
        unseen: Mixture | None = None,
    ) -> dict[str, IntArray]:
        """Return the cells of a round."""
        n_cells, step = self.schedule.n_cells(number), self._projected_step
        cells = partition(mixture, n_cells, self._factor, step, source, unseen)
        return {
            "cells": cells.centers,
            "radii": cells.radii,
            "variances": _stored(cells.variances),
            "spread": _stored(cells.spread),
            "expected": to_grid(cells.expected * 2.0**self.fraction_bits),
        }

    def _after_synopsis(
        self,
        number: int,
        before: Mapping[str, IntArray],
        answer: Statistic,
        flags: IntArray,
        source: np.random.Philox,
    ) -> dict[str, IntArray]:
        q, names, noises = self.fraction_bits, (SUMS, COUNTS, SLACKS), self.noise_of(number)
        cells = Partition(
            before["cells"],
            before["radii"],
            _real(before["variances"]),
            float(_real(before["spread"])[0]),
            scaled(before["expected"], q),
        )
        answers = Answers(*(scaled(answer.blocks[name], q) for name in names))
        noise = Noise(*(noises[name] * 2.0**-q for name in names))
        total = expected_total(answers.counts, noise.counts, self._planned, answer.answered)
        missing = np.zeros(len(answers.counts), dtype=bool)
        if answer.answered < 1 and number > FIRST + 1:  # before, nothing was counted
            missing = absent(cells.expected, answers.counts, noise.counts)
        flags[HELD] |= missing.any()
        mixture, stood_out = learned(cells, answers, noise, self._projected_step, total, missing)
        flags[NO_CELL] |= not stood_out
        if self.schedule.is_synopsis(number + 1):
            unseen = None
            if answer.answered < 1 and number == FIRST + 1:
                share = (1 - answer.answered) * math.fsum(mixture.weights)
                unseen = prior(_real(before["prior"]))
                unseen = unseen._replace(weights=share * unseen.weights)
            return self._cells(number + 1, mixture, source, unseen)
        found = select(mixture, self.n_clusters, source)
        flags[FEW] = found.few
        lifted = self.projection.lift(
            to_grid(found.centers / self._projected_step), before["projection"]
        )
        d, p = self.domain.n_features, self.schedule.n_directions
        rest = float(_real(before["rest"])[0])
        first, beside = math.fsum(found.within) + rest, rest / max(d - p, 1)
        within = np.append(found.within, beside)
        doubts = np.hstack([found.doubts, np.full((self.n_clusters, 1), beside)])
        return {
            "centroids": into_domain(to_grid(lifted), self.domain, q),
            "counts": to_grid(found.counts * 2.0**q),
            "moves": np.zeros((self.n_clusters, d), dtype=np.int64),
            "within": _stored(within),
            "doubts": _stored(doubts + DRIFT * within),
            "first": _stored(first),
            "mean_square": _stored(RADIUS_FACTOR * RADIUS_FACTOR * first),
            "radius": self._radius(first),
        }

    def _after_refinement(
        self,
        number: int,
        before: Mapping[str, IntArray],
        answer: Statistic,
        flags: IntArray,
    ) -> dict[str, IntArray]:
        q, noises = self.fraction_bits, self.noise_of(number)
        sums, counts = scaled(answer.blocks[SUMS], q), scaled(answer.blocks[COUNTS], q)
        sizes_before, doubts_before = scaled(before["counts"], q), _real(before["doubts"])
        count_noise = noises[COUNTS] * 2.0**-q
        flags[LIGHT] |= (counts < count_noise).any()
        radius = float(before["radius"][0]) / self._longest
        moves, sizes = steps_of(sums, counts, radius, count_noise)
        errors = radius * noises[SUMS] * 2.0**-q / sizes
        moves, doubts = weighed(moves, doubts_before, errors * errors, before["projection"], q)
        moves = continued(moves, _real(before["moves"]))
        last = FIRST + len(self.schedule.cells)  # of the synopsis
        # With own clips, counts of the first round are of another size than those of the synopsis.
        if answer.answered < 1 and not (number == last + 1 and self.clips):
            missing = absent(sizes_before, counts, count_noise)
            flags[HELD] |= missing.any()
            moves[missing], doubts[missing] = 0.0, doubts_before[missing]
            counts = np.where(missing, sizes_before, counts)
            sizes = np.where(missing, sizes_before, sizes)
        # A centroid that moves by s comes nearer to each of its records by |s|^2 on average.
        saved = math.fsum(sizes * row_sums(moves * moves))
        planned = self._planned if self.n_records else 0.0
        mean_square = float(_real(before["mean_square"])[0])
        mean_square -= saved / max(math.fsum(sizes), planned)
        mean_square = max(LEAST_RADIUS2 * float(_real(before["first"])[0]), mean_square)
        drift = DRIFT * math.prod([DRIFT_DECAY] * (number - last))
        wanted = shortened(before["centroids"] / self._longest + moves, 1.0)
        return {
            "centroids": into_domain(to_grid(wanted * self._longest), self.domain, q),
            "counts": to_grid(counts * 2.0**q),
            "moves": _stored(moves),
            "doubts": _stored(doubts + drift * _real(before["within"])),
            "mean_square": _stored(mean_square),
            "radius": self._radius(mean_square),
        }

    # ------------------------------------------------------------------ results

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before the synopsis ends."""
        if "centroids" not in state.arrays:
            return None
        return self.domain.from_unit(scaled(state.arrays["centroids"], self.fraction_bits))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,); ``None`` before the synopsis ends."""
        if "counts" not in state.arrays:
            return None
        return scaled(state.arrays["counts"], self.fraction_bits)

    # ------------------------------------------------------------------ details

    @property
    def _factor(self) -> float:
        """Return a radius over the root mean square of what it is to cut."""
        k, d = self.n_clusters, self.domain.n_features
        signal = min(max(self.schedule.signal / (k * math.sqrt(d)), 0.1), 1e6)
        return min(2.6, max(1.0, 0.7 + 0.3 * float(logarithm(np.array(signal)))))

    @property
    def _planned(self) -> float:
        return math.inf if self.n_records is None else float(self.n_records)

    @property
    def _longest(self) -> float:
        """D, the largest norm of a record, in grid units."""
        return self.domain.l2_bound(self.fraction_bits)

    @property
    def _projected_step(self) -> float:
        """A step of the projection's grid over D."""
        return 2.0 ** (self.fraction_bits - self.projection.exponent) / self._longest

    def _radius(self, mean_square: float) -> IntArray:
        """Return a refinement round's radius, (1,), for a mean squared residual, on the grid."""
        radius = min(1.0, RADIUS_FACTOR * self._factor * math.sqrt(mean_square)) * self._longest
        longest = math.isqrt(squared_bound(self.domain, self.fraction_bits))
        return np.array([min(max(math.floor(radius), 1), longest)], dtype=np.int64)


def _stored(values: FloatArray | float) -> IntArray:
    """Return reals as integers of a state; a single one as (1,)."""
    return to_grid(np.atleast_1d(values) * 2.0**REAL_BITS)


def _real(integers: IntArray) -> FloatArray:
    return scaled(integers, REAL_BITS)
