"""Tests of released sums, which find values that no records explain.

Causes are a wrong ``n_records``, a false answer, or noise alone. The tests are pure
functions of public parameters and released values, so they cost no privacy. A false
answer cannot be prevented, because nobody sees single answers. A large one can be
noticed in the sum.

Alarms are tests against the planned noise. In at most `FALSE_ALARMS` of runs any of
them fails by chance (docs/reading-a-report.md, "Warnings about released values"). Notes
state where noise exceeds the values, which is not a fault.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms import judged
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.layout import Statistic
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.algorithms.state import State
from flower_kmeans.algorithms.weights import planned_total, total_name, weighs_records
from flower_kmeans.arrays import BoolArray, FloatArray
from flower_kmeans.data.domain import Box
from flower_kmeans.privacy.plan import Release

FALSE_ALARMS = 1e-4
"""Largest fraction of runs with an alarm from noise alone, by a union bound over all tests."""

FACTOR = 3.0
"""Largest ratio of a total to ``n_records``, or of ``n_records`` to a total, without an alarm."""

LIGHT = 2.0
"""Least size of a cluster without a note, in standard deviations of its noise."""

MARGIN = 0.1
"""Largest distance of a mean from the bounds without a note, in half widths."""

_ROUNDING = 1e-9  # relative error of float64, in which exact sums are compared
_SHOWN = 10  # most rounds that a sentence names
_KEPT_OF_A_KIND = 3
_N_FIELDS = 6  # numbers of a finding


class FindingKind(IntEnum):
    """The kinds of wrong released values. Alarms come first, then notes."""

    TOO_MANY = 0
    TOO_FEW = 1
    NEGATIVE = 2
    TOO_LONG = 3
    SQUARES = 4
    UNCLIPPED = 5
    FEW_NEAR = 6
    LIGHT = 7
    OUTSIDE = 8

    @property
    def is_alarm(self) -> bool:
        """Whether noise does not explain such a value."""
        return self <= FindingKind.UNCLIPPED


class Finding(NamedTuple):
    """A failed test of one round."""

    kind: FindingKind
    """The kind of test."""
    round: int
    """Number of the round, from 1."""
    number: int
    """Number of values that fail the test."""
    place: int
    """Index of the worst value, from 0."""
    value: float
    """The worst value, in records or as a multiple of its limit."""
    deviation: float
    """Standard deviation of that value's noise, in records. 0 if it is not shown."""


# ------------------------------------------------------------------------------- tests


def findings_of(
    algorithm: Algorithm,
    before: State,
    answer: Statistic,
    noise_factor: float = 1.0,
) -> tuple[Finding, ...]:
    """Return the findings about a round's noisy sum, from released values alone.

    There is at most one finding of each kind, the worst.

    Parameters
    ----------
    algorithm : Algorithm
    before : State
        The state before the sum.
    answer : Statistic
        The noisy sum.
    noise_factor : float
        The noise's standard deviation over the planned one.
    """
    by_kind: dict[FindingKind, Finding] = {}
    tests = _Round(algorithm, before, answer, noise_factor)
    for finding in tests.findings():
        kept = by_kind.setdefault(finding.kind, finding)
        if abs(finding.value) > abs(kept.value):
            by_kind[finding.kind] = finding
    return tuple(by_kind.values())


class _Round:
    """The noisy sum of one round, with the limits that it should keep."""

    def __init__(
        self,
        algorithm: Algorithm,
        before: State,
        answer: Statistic,
        noise_factor: float,
    ) -> None:
        self.algorithm = algorithm
        self.before = before
        self.answer = answer
        self.number = before.round + 1
        self.meaning = algorithm.meaning(before, answer)
        self.releases = algorithm.releases(self.number)
        self.one = 2.0**algorithm.fraction_bits
        noise = algorithm.noise_of(self.number)
        self.noise = {name: std * noise_factor for name, std in noise.items()}
        if weighs_records(algorithm):
            # Each word of a sum was rounded to the nearest integer.
            for name in self.noise.keys() - {self.meaning.counts}:
                self.noise[name] = math.hypot(self.noise[name], 0.5)
        # Conversion comes first, because the least int64 has no absolute value.
        self.blocks = {
            name: block.astype(np.float64) for name, block in answer.blocks.items()
        }
        n_words = sum(block.size for block in self.blocks.values())
        # There are at most two tests of each word, four of each place, and a few of the
        # total.
        n_tests = 2 * n_words + 4 * self._n_places + 8
        self.chance = FALSE_ALARMS / algorithm.n_rounds / n_tests
        mechanisms = {release.mechanism for release in self.releases}
        self.is_gaussian = mechanisms <= {"gaussian"}
        self.reach = deviations(self.chance, "laplace" in mechanisms)

    @property
    def _n_places(self) -> int:
        name = self.meaning.counts or self.meaning.sums
        if name is None:
            return 1
        return len(self.blocks[name])

    @property
    def _has_known_total(self) -> bool:
        """Whether the planned total bounds the total. With clipped clients it does not."""
        has_total = planned_total(self.algorithm) is not None
        return has_total and self.algorithm.clip is None

    @property
    def _planned(self) -> int:
        """The planned number of records, or 1 if there is none."""
        return planned_total(self.algorithm) or 1

    def findings(self) -> Iterator[Finding]:
        """Yield the findings. Every test is made for every value."""
        if self.meaning.counts is not None:
            yield from self._of_total()
        yield from self._of_signs()
        if self.meaning.sums is not None:
            yield from self._of_sums()
        yield from self._of_shares()
        yield from self._of_totals()
        if self.meaning.moments is not None:
            yield from self._of_moments(self.blocks[self.meaning.moments])
        if self.meaning.products is not None:
            yield from self._of_products(self.meaning.products)
        if self.algorithm.clip is not None:
            yield from self._of_clients()
        is_result = self.number == judged.result_round(self.algorithm)
        if is_result and self.meaning.are_clusters:
            yield from self._of_result()

    # ------------------------------------------------------------------ counts

    @property
    def _counts(self) -> tuple[FloatArray, float]:
        """The records in each place, and the standard deviation of their noise."""
        name = self.meaning.counts
        if name is not None:
            counts = self.blocks[name] / self.one
            return counts, self.noise[name] / self.one
        size = float(self.meaning.public_size or 0)
        return np.full(self._n_places, size), 0.0

    def _of_total(self) -> Iterator[Finding]:
        planned = planned_total(self.algorithm)
        if planned is None or not self.meaning.are_records:
            return
        counts, noise = self._counts
        total = math.fsum(counts)
        std = noise * math.sqrt(len(counts))
        most = FACTOR * planned * self.meaning.times
        if total - most > self.reach * std:
            yield Finding(FindingKind.TOO_MANY, self.number, 1, 0, total, std)
        # Clipped clients count as fewer records than they have, and a person at one of
        # g clients counts as 1 / g.
        least = planned * self.answer.answered / FACTOR
        least /= self.algorithm.max_clients_per_person
        if self.algorithm.clip is None and least - total > self.reach * std:
            kind = (
                FindingKind.TOO_FEW if self.meaning.all_count else FindingKind.FEW_NEAR
            )
            yield Finding(kind, self.number, 1, 0, total, std)

    def _of_signs(self) -> Iterator[Finding]:
        """Yield a finding if counts are below 0 by more than their noise."""
        if self.meaning.counts is None:
            return
        counts, std = self._counts
        wrong = -counts > self.reach * std + self.meaning.tolerance
        yield from self._found(FindingKind.NEGATIVE, wrong, counts, counts, std)

    # ------------------------------------------------------------------ sums

    @property
    def _bounds_hold(self) -> bool:
        """Whether a count bounds its sum. It does not if the two are clipped separately."""
        if self.algorithm.clip is None or self.algorithm.clipping.is_joint:
            return True
        return len(self.releases) == 1

    def _of_sums(self) -> Iterator[Finding]:
        """Yield a finding if sums are larger than records within the bounds can make them."""
        name = self.meaning.sums
        if name is None or not self._bounds_hold:
            return
        sums = self.blocks[name]
        noise = self.noise[name]
        d = sums.shape[1]
        counts, count_noise = self._counts
        counts = np.maximum(counts, 0.0) + self.meaning.tolerance
        length = self.meaning.length
        widths = np.full(d, length)
        if self.meaning.widths is not None:
            widths = np.minimum(self.meaning.widths.astype(np.float64), length)

        sizes = np.abs(sums)
        most = counts[:, None] * widths
        std = np.hypot(noise, widths * count_noise)
        wrong = sizes - most > self.reach * std + _ROUNDING * most
        found = wrong.any(axis=1)
        scales = np.maximum(most, np.maximum(std, 1.0))
        worst = (sizes / scales).max(axis=1)
        # With Laplace noise only coordinates are tested, and not lengths.
        if self.is_gaussian:
            lengths = _lengths(sums)
            room = noise * math.sqrt(d)
            room += self.reach * math.hypot(noise, length * count_noise)
            found |= lengths - counts * length > room + _ROUNDING * counts * length
        yield from self._found(FindingKind.TOO_LONG, found, worst, -worst)

    def _of_shares(self) -> Iterator[Finding]:
        """Yield a finding if sums of squares or silhouettes are below 0 or above the counts."""
        for name in self.meaning.shares:
            if not self._bounds_hold:
                return
            values = self.blocks[name] / self.one
            noise = self.noise[name] / self.one
            counts, count_noise = self._counts
            std = math.hypot(noise, count_noise)
            most = np.maximum(counts, 0.0)
            wrong = -values > self.reach * noise
            wrong |= values - most > self.reach * std + _ROUNDING * most
            scales = np.maximum(most, max(std, 1.0))
            ratios = np.abs(values) / scales
            yield from self._found(FindingKind.SQUARES, wrong, ratios, -ratios)

    def _of_totals(self) -> Iterator[Finding]:
        """Yield a finding if totals are below 0, or above the most that records can add."""
        totals = self.meaning.totals or {}
        for name, most in totals.items():
            value = self.blocks[name]
            noise = self.noise[name]
            room = self.reach * noise
            wrong = -value > room
            if self._has_known_total:
                wrong |= value - FACTOR * self._planned * most > room
            scale = max(self._planned * most, noise, 1.0)
            ratios = np.abs(value) / scale
            yield from self._found(FindingKind.SQUARES, wrong, ratios, -ratios)

    def _of_moments(self, words: FloatArray) -> Iterator[Finding]:
        """Yield a finding if squares are below 0, or products exceed their squares."""
        d = self.algorithm.domain.n_features
        noise = self.noise[self.meaning.moments or ""]
        squares = words[:d]
        products = words[d:]
        wrong = -squares > self.reach * noise
        rows, columns = np.triu_indices(d, 1)
        # 2 |x y| <= x^2 + y^2. The noise of a product has half the variance of the
        # noise of a square.
        pairs = squares[rows] + squares[columns]
        std = noise * math.sqrt(2.0 + 4.0 * 0.5)
        room = self.reach * std + _ROUNDING * np.abs(pairs)
        wide = 2 * np.abs(products) - pairs > room
        found = np.concatenate([wrong, wide])
        if self._has_known_total:
            excess = math.fsum(squares) - FACTOR * self._planned * self.meaning.trace
            found[0] |= excess > self.reach * noise * math.sqrt(d)
        scale = max(self._planned * self.meaning.trace, noise, 1.0)
        ratios = np.abs(words) / scale
        yield from self._found(FindingKind.SQUARES, found, ratios, -ratios)

    def _of_products(self, name: str) -> Iterator[Finding]:
        """Yield a finding if products are longer than those of the planned records."""
        words = self.blocks[name]
        noise = self.noise[name]
        length = math.sqrt(math.fsum(np.square(words).ravel()))
        most = FACTOR * self._planned * self.meaning.product
        # The length of n words of noise exceeds its root mean square by at most `reach`
        # deviations of a word.
        room = (math.sqrt(words.size) + self.reach) * noise
        is_wrong = self._has_known_total and length - most > room
        ratios = np.array(
            [length / max(self._planned * self.meaning.product, noise, 1)]
        )
        found = np.array([is_wrong])
        yield from self._found(FindingKind.SQUARES, found, ratios, -ratios)

    def _of_clients(self) -> Iterator[Finding]:
        """Yield a finding for a release that is longer than clipped answers can make it."""
        algorithm = self.algorithm
        n_answers = self.answer.n_answers or algorithm.n_clients or 1
        layout = algorithm.layout(self.number)
        vector = layout.flatten(self.answer).astype(np.float64)
        scales = sensitivities(algorithm, self.number)
        for release in self.releases:
            if release.norm == "linf":
                # Its parts have their own bounds, and clients are never clipped in it.
                continue
            words = layout.words_of(release)
            units = scales[words]
            used = units > 0
            values = vector[words][used] / units[used]
            length, room = self._length_of(release, values)
            ratios = np.array([length / max(n_answers, room)])
            wrong = np.array([length - n_answers > room + _ROUNDING * n_answers])
            yield from self._found(FindingKind.UNCLIPPED, wrong, ratios, -ratios)

    def _length_of(self, release: Release, values: FloatArray) -> tuple[float, float]:
        """Return a release's length in its norm, and the length that noise explains.

        ``values``, (n,), and both lengths are relative to the longest clipped answer.
        """
        name = release.blocks[0]
        unit = self.algorithm.block_sensitivities(self.number)[name]
        scale = self.noise[name] / (unit * self.algorithm.clipping.of(release))
        n = len(values)
        if release.mechanism == "laplace":
            scale /= math.sqrt(2.0)
            length = math.fsum(np.abs(values))
            log = -math.log(self.chance)
            return length, scale * (n + math.sqrt(2 * n * log) + log)
        length = float(_lengths(values[None])[0])
        return length, scale * (math.sqrt(n) + self.reach)

    # ------------------------------------------------------------------ the result

    def _of_result(self) -> Iterator[Finding]:
        """Yield findings if clusters of the result are mostly noise."""
        if self.meaning.counts is None:
            return
        counts, std = self._counts
        if std > 0:
            is_light = counts < LIGHT * std
            yield from self._found(FindingKind.LIGHT, is_light, counts, counts, std)
        if self.meaning.sums is not None:
            yield from self._of_means(self.blocks[self.meaning.sums], counts)

    def _of_means(self, sums: FloatArray, counts: FloatArray) -> Iterator[Finding]:
        """Yield a finding if means of clusters lie outside the bounds."""
        meaning = self.meaning
        usable = counts >= 1.0
        sizes = np.maximum(counts, 1.0)
        means = sums * meaning.unit / sizes[:, None]
        # Noise moves a mean on the boundary beyond it, for example the fraction of a
        # category that all records have.
        far = 1.0 + MARGIN
        beyond = np.zeros(len(counts), dtype=bool)
        if meaning.offsets:
            longest = meaning.length * meaning.unit
            beyond = _lengths(means) > longest * far
            means = means + self.before.arrays["centroids"]
        domain = self.algorithm.domain
        if isinstance(domain, Box):
            widths = domain.grid_half_widths(self.algorithm.fraction_bits)
            is_outside = np.abs(means) > widths * far
            beyond |= is_outside.any(axis=1)
        else:
            beyond |= _lengths(means) > self.one * far
        excess = np.abs(means).max(axis=1) / self.one
        yield from self._found(FindingKind.OUTSIDE, usable & beyond, excess, -excess)

    def _found(
        self,
        kind: FindingKind,
        wrong: BoolArray,
        values: FloatArray,
        order: FloatArray,
        deviation: float = 0.0,
    ) -> Iterator[Finding]:
        """Yield one finding for all wrong values. The worst has the least ``order``."""
        # The finding is made in any case: a server that sees no sum may measure the
        # client's time.
        number = int(np.count_nonzero(wrong))
        order = np.where(wrong, order, np.inf)
        place = int(np.argmin(order))
        value = float(values[place])
        finding = Finding(kind, self.number, number, place, value, deviation)
        if number:
            yield finding


def deviations(chance: float, is_laplace: bool = False) -> float:
    """Return the quantile that noise exceeds with probability ``chance``.

    It is in standard deviations of the noise. With ``is_laplace`` it is the quantile of
    one Laplace variable, because sums of Laplace noise, and mixtures with Gaussian
    noise, have shorter tails.
    """
    if is_laplace:
        return -math.log(2 * chance) / math.sqrt(2.0)
    return -NormalDist().inv_cdf(chance)


def _lengths(rows: FloatArray) -> FloatArray:
    """Return the l2 norm of each row, (n,), without overflow of squares."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.maximum(largest, 1.0)
    scaled = rows / scale[:, None]
    squares = np.einsum("ij,ij->i", scaled, scaled)
    found: FloatArray = scale * np.sqrt(squares)
    return found


# ---------------------------------------------------------------------------- sentences


def sentences(algorithm: Algorithm, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return a text of one or two sentences for each kind of finding, alarms first."""
    by_kind: dict[FindingKind, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    return tuple(_words(algorithm, kind, by_kind[kind]) for kind in sorted(by_kind))


_DOUBT = (
    "Either a client sent false numbers, or it did not use the run's bounds: do not use the result "
    "before you know."
)

_SENTENCES = {
    FindingKind.TOO_MANY: (
        "WARNING: the noisy counts of {where} add up to as many as {most.value:,.0f} {counted}, "
        "more than {factor:g} times {total_name}={planned} and than noise explains. Either "
        "{total_name} is wrong, or a client sent false numbers: do not use the result before you "
        "know."
    ),
    FindingKind.TOO_FEW: (
        "WARNING: the noisy counts of {where} add up to as few as {least.value:,.0f} {counted}, "
        "less than a third of {total_name}={planned} among the clients that answered, and less "
        "than noise explains. Either {total_name} is wrong, or clients that did not answer hold "
        "most records, or clients could not read theirs (run `flower-kmeans check` at each), "
        "or a client sent false numbers."
    ),
    FindingKind.NEGATIVE: (
        "WARNING: a noisy count of {where} is {least.value:,.0f}, further below 0 than its "
        "noise of standard deviation {least.deviation:,.3g} explains. A client sent false "
        "numbers: do not use the result."
    ),
    FindingKind.TOO_LONG: (
        "WARNING: noisy sums of {where} are {most.value:,.3g} times the most that the counted "
        "records can add within the bounds, beyond the noise. " + _DOUBT
    ),
    FindingKind.SQUARES: (
        "WARNING: noisy sums of squares, or of silhouettes, of {where} are those of no records "
        "within the bounds, beyond the noise. " + _DOUBT
    ),
    FindingKind.UNCLIPPED: (
        "WARNING: noisy sums of {where} are {most.value:,.3g} times the most that all clipped "
        "clients can add together, beyond the noise. A client sent false numbers: do not use "
        "the result."
    ),
    FindingKind.FEW_NEAR: (
        "The noisy counts of {where} add up to as few as {least.value:,.0f} {counted}, less "
        "than a third of {total_name}={planned} among the clients that answered. Here only "
        "records near a centroid count: allow a larger radius, and check {total_name}."
    ),
    FindingKind.LIGHT: (
        "The noisy sizes of {least.number} of {k} clusters are below {limit:,.0f}, which is "
        "{light:g} standard deviations of their noise. The least is {least.value:,.0f} of "
        "cluster {least.place}. These clusters may be noise alone: take fewer clusters, a "
        "larger epsilon or more {counted}."
    ),
    FindingKind.OUTSIDE: (
        "The noisy means of {most.number} of {k} clusters, as of cluster {most.place}, lay more "
        "than {margin:.0%} of a half width outside the bounds or farther away than any record "
        "that counts. Their centroids are noise for the most part: take fewer clusters, a larger "
        "epsilon or more {counted}."
    ),
}


def _words(algorithm: Algorithm, kind: FindingKind, found: Sequence[Finding]) -> str:
    """Return the sentences about the findings of one kind."""
    total = planned_total(algorithm)
    planned = "unknown" if total is None else f"{total:,}"
    least = min(found, key=lambda finding: finding.value)
    return _SENTENCES[kind].format(
        where=_rounds([finding.round for finding in found]),
        most=max(found, key=lambda finding: abs(finding.value)),
        least=least,
        limit=LIGHT * least.deviation,
        planned=planned,
        total_name=total_name(algorithm.budget),
        counted=total_name(algorithm.budget).removeprefix("n_"),
        k=algorithm.n_clusters,
        factor=FACTOR,
        light=LIGHT,
        margin=MARGIN,
    )


def _rounds(numbers: Sequence[int]) -> str:
    """Return rounds in words."""
    rounds = sorted(set(numbers))
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if len(rounds) > _SHOWN:
        return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return f"rounds {', '.join(map(str, rounds[:-1]))} and {rounds[-1]}"


# -------------------------------------------------------------------------- as an array


def to_array(findings: Iterable[Finding]) -> FloatArray:
    """Return findings as rows, (m, 6), float64, for a state or a message."""
    rows = [tuple(map(float, each)) for each in findings]
    return np.array(rows).reshape(-1, _N_FIELDS)


def condensed(rows: FloatArray) -> FloatArray:
    """Return the findings of many rounds in a fixed number of rows, padded with zeros.

    Of each kind three findings are kept: the first round's, and those with the largest
    and the least value. So a client's memory does not grow with the rounds, and its
    size does not reveal the number of findings.
    """
    kept = []
    for kind in FindingKind:
        of_kind = rows[rows[:, 0] == kind]
        if len(of_kind):
            rounds = of_kind[:, 1]
            values = of_kind[:, 4]
            first = int(np.argmin(rounds))
            largest = int(np.argmax(np.abs(values)))
            least = int(np.argmin(values))
            kept.append(of_kind[sorted({first, largest, least})])
    none = np.zeros((0, _N_FIELDS))
    found = np.concatenate([none, *kept])
    return _filled_up(found, _KEPT_OF_A_KIND * len(FindingKind))


def padded(rows: FloatArray, n_rounds: int) -> FloatArray:
    """Return findings as rows, padded with zeros to a run's most rows."""
    # A round can have findings on the total, signs and lengths, and the last round also
    # on sizes and means.
    most = 3 * n_rounds + 2
    return _filled_up(rows, most)


def _filled_up(rows: FloatArray, n_rows: int) -> FloatArray:
    """Return rows of findings, padded with zeros to ``n_rows``."""
    zeros = np.zeros((n_rows - len(rows), _N_FIELDS))
    return np.concatenate([rows, zeros])


def from_array(array: FloatArray, n_rounds: int, n_words: int) -> tuple[Finding, ...]:
    """Return the findings of an array.

    Parameters
    ----------
    array : ndarray of shape (m, 6), float64
        Rows of `to_array`.
    n_rounds : int
        Number of rounds of the run.
    n_words : int
        Largest number of words of a round.

    Raises
    ------
    ValueError
        If no run has such findings.
    """
    is_table = array.dtype == np.float64 and array.ndim == 2
    if not is_table or array.shape[1] != _N_FIELDS:
        raise ValueError("Expected findings as rows of six numbers.")
    most = len(FindingKind) * n_rounds
    if len(array) > most or not np.isfinite(array).all():
        raise ValueError("Expected finite findings, not more than tests.")
    whole = array[:, :4]
    deviations_of_values = array[:, 5]
    low = np.array([0, 1, 1, 0])
    high = np.array([len(FindingKind) - 1, n_rounds, n_words, n_words - 1])
    is_whole = (whole == np.rint(whole)).all()
    is_in_range = (low <= whole).all() and (whole <= high).all()
    if not (is_whole and is_in_range) or (deviations_of_values < 0).any():
        raise ValueError("Expected findings of the rounds and words of the run.")
    return tuple(_finding_of(row) for row in array.tolist())


def _finding_of(row: Sequence[float]) -> Finding:
    """Return the finding of a row of six numbers."""
    kind, round_number, number, place, value, deviation = row
    return Finding(
        kind=FindingKind(int(kind)),
        round=int(round_number),
        number=int(number),
        place=int(place),
        value=float(value),
        deviation=float(deviation),
    )
