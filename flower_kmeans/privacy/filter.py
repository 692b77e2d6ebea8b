"""The joint cost of several runs, each chosen after earlier results.

This *filter* adds up two sums over all releases. If one of them stays within its limit,
all releases together meet (epsilon, delta), however the runs were chosen
(docs/guarantees, Theorems 3 and 5). The first is the sum of mu^2. In it a Laplace
release counts as the Gaussian release that reveals at least as much. The second is the
sum of pure epsilons, which holds as long as all noise is Laplace. Sums are integers, so
they are exact in any order, and every term is rounded upward.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import repeat

import mpmath

from flower_kmeans.privacy.calibration import delta_of_mu, epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.release import Release

# Both sums count in steps of 2^-96, which is fine enough for a mu of 2^-48.
_BITS = 96
# For smaller and larger costs the level is replaced by a bound, which is then within
# 1e-12 or 1e-3 of it.
_SMALL = 1e-12
_LARGE = 1e5
_DIGITS = 50

COVERED_UNITS: Mapping[str, tuple[str, ...]] = {
    "client": ("client", "person", "record"),
    "person": ("person", "record"),
    "record": ("record",),
}
"""For each unit of privacy of a run, the units for which the run has a finite charge."""

# A person moves a clipped client from one end of the clip to the other at most. It is the
# move at each client at which the person has records (`Price.for_persons_at`).
_PERSON_OF_A_CLIENT = 2.0


@dataclass(frozen=True)
class Charge:
    """The sums of a filter over some releases. Charges can be added.

    Attributes
    ----------
    square : int
        Sum of mu^2, in steps of 2^-96.
    pure : int
        Sum of the pure epsilons of the Laplace releases, in steps of 2^-96.
    n_gaussian : int
        Number of releases with Gaussian noise, which has no pure epsilon.
    """

    square: int = 0
    pure: int = 0
    n_gaussian: int = 0

    def __add__(self, other: "Charge") -> "Charge":
        return Charge(
            self.square + other.square,
            self.pure + other.pure,
            self.n_gaussian + other.n_gaussian,
        )

    def __mul__(self, number: int) -> "Charge":
        return Charge(
            self.square * number, self.pure * number, self.n_gaussian * number
        )

    def __sub__(self, other: "Charge") -> "Charge":
        return self + other * -1

    def of_group(self, size: int) -> "Charge":
        """Return a bound of the charge for a group of ``size`` steps.

        A group's mu is at most ``size`` times that of one step, and so is its epsilon.
        """
        return Charge(self.square * size * size, self.pure * size, self.n_gaussian)

    @property
    def mu(self) -> float:
        """Square root of the sum of mu^2, rounded upward."""
        # Quotient and root are rounded once each, together by less than the step that
        # `_upward` adds.
        return _upward(math.sqrt(Fraction(self.square, 1 << _BITS)))

    def fits(self, epsilon: float, delta: float) -> bool:
        """Return whether one of the sums keeps the limit (epsilon, delta)."""
        if epsilon == math.inf or not self.square or self._is_pure(epsilon):
            return True
        # At delta 0 only the sum of pure epsilons counts, which was compared above.
        return delta > 0 and self.square <= _largest_square(epsilon, delta)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon for which the limit (epsilon, delta) is kept."""
        if not self.square:
            return 0.0
        if self.n_gaussian:
            pure = math.inf
        else:
            pure = _upward(float(Fraction(self.pure, 1 << _BITS)))
        return min(pure, epsilon_of_mu(self.mu, delta))

    def delta(self, epsilon: float) -> float:
        """Return the least delta for which the limit (epsilon, delta) is kept."""
        if self._is_pure(epsilon):
            return 0.0
        return delta_of_mu(self.mu, epsilon)

    def _is_pure(self, epsilon: float) -> bool:
        steps = math.floor(Fraction(epsilon) * (1 << _BITS))
        return not self.n_gaussian and self.pure <= steps


def charge_of(
    releases: Iterable[Release], moves: Iterable[float] | None = None
) -> Charge:
    """Return the charge of releases with noise.

    ``moves`` has the distance, for each release, by which neighbours can change its
    answer, relative to the sensitivity and in the release's norm. It is 1 for the
    neighbours that the noise is calibrated to, which is the default.
    """
    total = Charge()
    releases = tuple(releases)
    if moves is None:
        moves = repeat(1.0, len(releases))
    for release, move in zip(releases, moves, strict=True):
        gaussian = release.mechanism == "gaussian"
        multiplier = release.noise_multiplier
        for bound, number in release.parts or ((1.0, 1),):
            total += _charge(gaussian, multiplier, move, bound) * number
    return total


@dataclass(frozen=True)
class Price:
    """The charges of a run, round by round (docs/guarantees, Theorem 6).

    Attributes
    ----------
    unit : {"record", "person", "client"}
        The unit of privacy of the run.
    rounds : tuple of mapping from str to Charge
        For each round the charge by unit, for the units that the run covers
        (`COVERED_UNITS`). A run that protects records has no charge for a person or a
        client: their records may be any number.
    """

    unit: str
    rounds: tuple[Mapping[str, Charge], ...]

    def for_persons_at(self, clients: int, assumed: int) -> "Price":
        """Return the price for persons with records at up to ``clients`` clients.

        Parameters
        ----------
        clients : int
            Most clients at which one person has records.
        assumed : int
            Number of clients per person that a run for persons assumes at least.
        """
        group = 1
        if self.unit == "client":
            # This price is for one client, which the person moves by 2.
            group = clients
        elif self.unit == "person":
            # The run charges what a person moves at `assumed` clients together.
            group = math.ceil(Fraction(clients, assumed))
        if group == 1:
            return self
        rounds = []
        for charges in self.rounds:
            of_persons = charges["person"].of_group(group)
            rounds.append({**charges, "person": of_persons})
        return Price(self.unit, tuple(rounds))

    @property
    def whole(self) -> dict[str, Charge]:
        """The charges of all rounds together, by unit."""
        total = no_charges(self.unit)
        for charges in self.rounds:
            for unit, charge in charges.items():
                total[unit] += charge
        return total

    def only(self, number: int) -> "Price":
        """Return the price of an answer to one round, by its number from 1."""
        return Price(self.unit, (self.rounds[number - 1],))

    def without(self, number: int) -> "Price":
        """Return the price with one round free, by its number from 1."""
        left = list(self.rounds)
        left[number - 1] = no_charges(self.unit)
        return Price(self.unit, tuple(left))


def no_charges(unit: str) -> dict[str, Charge]:
    """Return charges of 0 for the units that a run of this unit covers."""
    return {covered: Charge() for covered in COVERED_UNITS[unit]}


def price_of(
    unit: str,
    rounds: Sequence[Sequence[Release]],
    moves: Sequence[Sequence[float]] | None = None,
) -> Price:
    """Return the charges of a run for its releases.

    Parameters
    ----------
    unit : {"record", "person", "client"}
        The unit of privacy of the run. One record of a person moves an answer by no
        more than the person does, so a run for persons charges both alike.
    rounds : sequence of sequences of Release
        Releases by round.
    moves : sequence of sequences of float, optional
        For a run that protects clients: the distance, for each release, by which one
        record of a client that stays can change its answer, relative to the
        sensitivity. By default it is 2, from one end of the clip to the other. A person
        of that client is always charged 2. The person may have records at other
        clients, too: `Price.for_persons_at` has the charge for all of them together.
    """
    charges = []
    for number, releases in enumerate(rounds):
        of_round = dict.fromkeys(COVERED_UNITS[unit], charge_of(releases))
        if unit == "client":
            most = [_PERSON_OF_A_CLIENT] * len(releases)
            of_round["person"] = charge_of(releases, most)
            of_record = most if moves is None else moves[number]
            of_round["record"] = charge_of(releases, of_record)
        charges.append(of_round)
    return Price(unit, tuple(charges))


def _laplace_square(cost: float) -> Fraction:
    """Return the square of a Laplace release's level, rounded upward.

    ``cost`` is the pure epsilon of the release. Its level is
    ``-2 Phi^-1(exp(-cost / 2) / 2)``: the least mu whose trade-off curve is nowhere
    above the release's own (docs/guarantees, Theorem 4).
    """
    # The square is below both of these bounds, and tends to the first for small costs
    # and to the second for large costs.
    exact = Fraction(cost)
    # math.pi is below pi, by less than the last factor adds.
    least = min(exact * exact * Fraction(math.pi) / 2, 4 * exact)
    bound = least * (1 + Fraction(1, 1 << 50))
    if not _SMALL < cost < _LARGE:
        return bound
    with mpmath.workdps(_DIGITS):
        target = -mpmath.mpf(cost) / 2 - mpmath.log(2)
        x = mpmath.sqrt(mpmath.mpf(bound.numerator) / bound.denominator) / 2
        # ln Phi(-x) is concave and falling, so Newton's steps from above stay above
        # the root.
        while True:
            tail = mpmath.ncdf(-x)
            step = (target - mpmath.log(tail)) * tail / mpmath.npdf(x)
            x -= step
            if step < x * mpmath.mpf(10) ** (5 - _DIGITS / 2):
                break
        # A further step would change less than this margin.
        widened = 4 * x * x * (1 + mpmath.mpf(2) ** -70)
        mantissa, exponent = mpmath.frexp(widened)
        # The 50 digits are rounded upward to 120 bits.
        numerator = int(mpmath.ceil(mpmath.ldexp(mantissa, 120)))
        return Fraction(numerator) * Fraction(2) ** (int(exponent) - 120)


@lru_cache(maxsize=4096)
def _charge(is_gaussian: bool, multiplier: float, move: float, bound: float) -> Charge:
    cost = Fraction(move) * Fraction(bound) / Fraction(multiplier)
    if is_gaussian:
        return Charge(_steps_above(cost * cost), 0, 1)
    # The level grows with the cost, so the cost may be rounded upward.
    square = _laplace_square(_upward(float(cost)))
    return Charge(_steps_above(square), _steps_above(cost), 0)


def _steps_above(value: Fraction) -> int:
    return math.ceil(value * (1 << _BITS))


@lru_cache(maxsize=64)
def _largest_square(epsilon: float, delta: float) -> int:
    # The limit is rounded downward and terms are rounded upward, so no rounding hides a
    # cost.
    largest = Fraction(mu_of_budget(epsilon, delta))
    return math.floor(largest * largest * (1 << _BITS))


def _upward(value: float) -> float:
    """Return a float64 that is not below any number that rounds to this value."""
    if value:
        return math.nextafter(value, math.inf)
    return 0.0
