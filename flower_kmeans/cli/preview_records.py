"""Records on which a plan is tried: made up within its domain, or of a public sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.cli.limits import too_narrow
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere
from flower_kmeans.data.generators import separated_clusters, shuffled, sizes_of
from flower_kmeans.data.tables import Table
from flower_kmeans.errors import DataError

DEGREE = 0.0
"""Degree of separation of made-up groups (`data.generators`): they just touch."""
USUAL = 0.7
"""Fraction of a group's records that have its usual level of a category."""
ANGLE = 30.0
"""Degrees between a made-up direction and that of its group, about."""
WIDER = (2, 10)
"""How many times as wide as the records the bounds are, beside made-up records."""
TIGHTEN = 0.1
"""Fraction of mu^2 that finds ranges, as an alternative to narrower bounds."""
TIGHTENED = "tighten"
"""The tick of bounds with this fraction."""
_WIDER_THAN_SAMPLE = 2  # than the given bounds, beside a sample
_STREAM = 1  # of the categories' random numbers, which numbers have not


class Drawn(NamedTuple):
    """Records of one seed, in random order."""

    records: FloatArray  # (n, d), in the columns of the domain
    points: FloatArray  # (m, d), the server's own


class OtherBounds(NamedTuple):
    """Other bounds for the same records."""

    label: str
    tick: str  # on an axis
    domain: Domain
    is_offer: bool = False  # whether they may make a run better


class RecordSource(Protocol):
    """Where the records of a preview come from."""

    @property
    def domain(self) -> Domain:
        """The planned bounds."""

    @property
    def judged(self) -> Domain:
        """The bounds in whose units all costs are measured: as tight as the records."""

    @property
    def text(self) -> str:
        """How records are made, in sentences."""

    @property
    def fills(self) -> bool:
        """Whether the records fill the planned bounds by assumption."""

    @property
    def too_narrow(self) -> Sequence[str]:
        """The planned bounds that cut many values off, in words."""

    def draw(self, n_records: int, n_points: int, seed: int) -> Drawn:
        """Return records, (n, d), and points of the server, (m, d)."""

    def other_bounds(self) -> Sequence[OtherBounds]:
        """Return other bounds to compare with; none for directions."""


@dataclass(frozen=True)
class MadeUp:
    """Groups of records made up within a domain, as many as clusters.

    Numbers are Gaussian, and fill their bounds. A category has a usual level in each
    group.
    """

    domain: Domain
    n_clusters: int

    @property
    def judged(self) -> Domain:
        """The bounds in whose units all costs are measured: the planned ones."""
        return self.domain

    @property
    def fills(self) -> bool:
        """Whether the records fill the planned bounds by assumption: they do."""
        return True

    @property
    def too_narrow(self) -> Sequence[str]:
        """The planned bounds that cut many values off: none."""
        return ()

    @property
    def text(self) -> str:
        """How records are made, in sentences."""
        begin = f"Records are made up: {self.n_clusters} groups of equal sizes"
        if isinstance(self.domain, Sphere):
            return (
                f"{begin} around random directions, from which a record is about {ANGLE:g} degrees "
                "away."
            )
        gaussian = "are Gaussian, just touch and fill"
        if isinstance(self.domain, Ball):
            return f"{begin}, which {gaussian} the ball."
        parts = []
        if len(self.domain.numbers):
            parts.append(f"in numbers and dates they {gaussian} the bounds")
        if self.domain.categories:
            usual = f"{round(10 * USUAL)} of 10 records"
            parts.append(f"{usual} have the usual category of their group, others any")
        return f"{begin}; {'; '.join(parts)}."

    def draw(self, n_records: int, n_points: int, seed: int) -> Drawn:
        """Return records, (n, d), and points of the server, (m, d)."""
        sizes = sizes_of(n_records + n_points, np.ones(self.n_clusters))
        if isinstance(self.domain, Sphere):
            found = _directions(self.domain, sizes, seed)
        elif isinstance(self.domain, Ball):
            found = _in_ball(self.domain, sizes, seed)
        else:
            found = _in_box(self.domain, sizes, seed)
        return Drawn(found[:n_records], found[n_records:])

    def other_bounds(self) -> Sequence[OtherBounds]:
        """Return wider bounds, and ranges within them; none for directions."""
        domain = _with_numbers(self.domain)
        if domain is None:
            return []
        found = []
        for factor in WIDER:
            label = f"bounds {factor} times too wide"
            wide = widened(domain, factor)
            found.append(OtherBounds(label, f"{factor} times", wide))
        tightened = _tightened(wide)
        if tightened is not None:
            label = f"{WIDER[-1]} times, --tighten {TIGHTEN}"
            found.append(OtherBounds(label, TIGHTENED, tightened))
        return found


@dataclass(frozen=True)
class Sample:
    """A public sample, of which records are drawn with replacement."""

    domain: Domain
    records: FloatArray  # (n, d), in the columns of the domain
    findings: Sequence[str] = ()  # on its cells, in sentences
    too_narrow: Sequence[str] = ()  # bounds that cut many of its values, in words

    @property
    def judged(self) -> Domain:
        """The bounds in whose units all costs are measured: those of the sample."""
        return tight(self.domain, self.records)

    @property
    def fills(self) -> bool:
        """Whether the records fill the planned bounds by assumption."""
        return False

    @property
    def text(self) -> str:
        """How records are made, in sentences."""
        sentences = [
            f"Records are drawn with replacement from the sample's {len(self.records):,}.",
            "This output depends on the sample, so it must be public: no noise covers it.",
            "With its bounds, private records beyond them are clipped.",
            *self.findings,
        ]
        return " ".join(sentences)

    def draw(self, n_records: int, n_points: int, seed: int) -> Drawn:
        """Return records, (n, d), and points of the server, (m, d)."""
        rng = np.random.default_rng(seed)
        rows = rng.integers(len(self.records), size=n_records + n_points)
        found = self.records[rows]
        return Drawn(found[:n_records], found[n_records:])

    def other_bounds(self) -> Sequence[OtherBounds]:
        """Return bounds of the sample, ranges, and wider bounds; none for directions."""
        domain = _with_numbers(self.domain)
        if domain is None:
            return []
        label = "bounds of the sample"
        found = [OtherBounds(label, "tight", self.judged, is_offer=True)]
        tightened = _tightened(domain)
        if tightened is not None:
            label = f"--tighten {TIGHTEN}"
            found.append(OtherBounds(label, TIGHTENED, tightened, is_offer=True))
        factor = _WIDER_THAN_SAMPLE
        label = f"bounds {factor} times as wide"
        found.append(OtherBounds(label, f"{factor} times", widened(domain, factor)))
        return found


def sample_of(table: Table, domain: Domain, n_clusters: int) -> Sample:
    """Return a sample of a table that was read within a domain.

    Raises
    ------
    DataError
        If it has no more different records than clusters.
    """
    known = domain.counted(table.records)
    n_different = len(np.unique(known, axis=0))
    if n_different <= n_clusters:
        raise DataError(
            f"Expected --sample with more than {n_clusters} different records, the number of "
            f"clusters. Got {n_different} instead."
        )
    share = 0.0
    if isinstance(domain, Ball):
        share = int(domain.outside(known).sum()) / len(known)
    narrow = too_narrow(table.findings, share)
    return Sample(domain, known, tuple(table.findings.lines()), tuple(narrow))


def plain(domain: Domain, tighten: float | None) -> Domain:
    """Return a domain without names and declarations, and with a fraction ``tighten``."""
    if isinstance(domain, Ball):
        return Ball(domain.radius, domain.center)
    if isinstance(domain, Sphere):
        return Sphere(domain.n_features)
    return Box(
        domain.lower,
        domain.upper,
        weights=domain.weights,
        categories=domain.categories,
        tighten=tighten,
    )


def widened(domain: Box | Ball, factor: int) -> Box | Ball:
    """Return bounds with numbers ``factor`` times as wide, around the same middle."""
    if isinstance(domain, Ball):
        return Ball(factor * domain.radius, domain.center)
    numbers = domain.numbers
    lower = np.array(domain.lower)
    upper = np.array(domain.upper)
    added = (factor - 1) * (upper[numbers] - lower[numbers]) / 2
    lower[numbers] -= added
    upper[numbers] += added
    return _with_bounds(domain, lower, upper, domain.tighten)


def tight(domain: Domain, records: FloatArray) -> Domain:
    """Return bounds that are as tight as records, (n, d), without a round for ranges."""
    if isinstance(domain, Sphere):
        return domain
    if isinstance(domain, Ball):
        lengths = np.linalg.norm(domain.to_unit(records), axis=1)
        return Ball(domain.radius * float(lengths.max()), domain.center)
    lower = np.array(domain.lower)
    upper = np.array(domain.upper)
    low = np.clip(records.min(axis=0), lower, upper)
    high = np.clip(records.max(axis=0), lower, upper)
    # A number that is the same in all records has no range.
    is_number = np.isin(np.arange(domain.n_features), domain.numbers)
    has_range = is_number & (high > low)
    lower[has_range] = low[has_range]
    upper[has_range] = high[has_range]
    return _with_bounds(domain, lower, upper, None)


def _with_bounds(
    domain: Box, lower: FloatArray, upper: FloatArray, tighten: float | None
) -> Box:
    return Box(
        lower,
        upper,
        weights=domain.weights,
        categories=domain.categories,
        tighten=tighten,
    )


def _with_numbers(domain: Domain) -> Box | Ball | None:
    """Return a domain with bounds that can be wider; ``None`` for others."""
    if isinstance(domain, Sphere):
        return None
    if isinstance(domain, Box) and not len(domain.numbers):
        return None
    return domain


def _tightened(domain: Box | Ball) -> Box | None:
    """Return bounds within which a run finds ranges; ``None`` if it cannot or does."""
    if isinstance(domain, Ball) or domain.tighten is not None:
        return None
    return domain.tightened(TIGHTEN)


def _in_box(domain: Box, sizes: IntArray, seed: int) -> FloatArray:
    """Return records, (n, d), of groups in a box, in random order."""
    numbers = domain.numbers
    # The labels are of one column at least.
    made = separated_clusters(sizes, max(len(numbers), 1), DEGREE, seed)
    records = np.zeros((len(made.records), domain.n_features))
    lower = np.array(domain.lower)[numbers]
    upper = np.array(domain.upper)[numbers]
    if len(numbers):
        low = made.records.min(axis=0)
        width = made.records.max(axis=0) - low
        records[:, numbers] = lower + (upper - lower) * (made.records - low) / width
    rng = np.random.default_rng([seed, _STREAM])
    for start, stop in domain.categories:
        levels = _levels(made.labels, len(sizes), stop - start, rng)
        records[np.arange(len(records)), start + levels] = 1.0
    return records


def _levels(
    labels: IntArray, n_groups: int, n_levels: int, rng: np.random.Generator
) -> IntArray:
    """Return the level of a category of each record, (n,).

    The usual levels of groups are as different as can be. Those of other records become
    rarer like 1, 1/2, 1/3, ...
    """
    usual = rng.permutation(n_groups) % n_levels
    frequencies = 1 / np.arange(1, n_levels + 1)
    frequencies /= frequencies.sum()
    others = rng.choice(n_levels, size=len(labels), p=frequencies)
    is_usual = rng.random(len(labels)) < USUAL
    found: IntArray = np.where(is_usual, usual[labels], others)
    return found


def _in_ball(domain: Ball, sizes: IntArray, seed: int) -> FloatArray:
    """Return records, (n, d), of groups in a ball, of which the farthest is on its edge."""
    made = separated_clusters(sizes, domain.n_features, DEGREE, seed)
    offsets = made.records - made.records.mean(axis=0)
    longest = np.linalg.norm(offsets, axis=1).max()
    found: FloatArray = domain.center + offsets * (domain.radius / longest)
    return found


def _directions(domain: Sphere, sizes: IntArray, seed: int) -> FloatArray:
    """Return directions, (n, d), of groups around random ones, in random order."""
    rng = np.random.default_rng(seed)
    d = domain.n_features
    centers = domain.to_unit(rng.normal(size=(len(sizes), d)))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    spread = np.tan(np.radians(ANGLE)) / np.sqrt(d)
    records = centers[labels] + spread * rng.normal(size=(len(labels), d))
    made = shuffled(domain.to_unit(records), labels, centers, rng)
    return made.records
