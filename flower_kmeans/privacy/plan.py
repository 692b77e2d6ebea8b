"""The releases of a run, round by round, and their joint cost.

Guarantee: a run whose answers have the planned noise is (epsilon,
delta)-differentially private for its unit under null-record adjacency, adaptively
composed over all rounds (docs/guarantees, Theorem 2). The filter of `privacy.filter`
adds up the cost of several runs, each chosen after the results of others. The same
:class:`Release` objects draw the noise and are accounted, so the two cannot drift
apart.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

from flower_kmeans.canonical import real_to_text
from flower_kmeans.errors import BudgetError, ConfigurationError, MessageError
from flower_kmeans.parameters import require_positive
from flower_kmeans.privacy.budget import PrivacyBudget, budget_from_config
from flower_kmeans.privacy.calibration import (
    epsilon_of_mu,
    laplace_delta,
    least_scale,
    mixture_delta,
    mixture_epsilon,
    mu_of_budget,
)
from flower_kmeans.privacy.filter import charge_of
from flower_kmeans.privacy.release import MAX_PARTS, release_from_config
from flower_kmeans.privacy.release import Release as Release
from flower_kmeans.templates import TextTable, html_summary, shown

# No run has so many. A hostile document must not occupy a client for long.
_MAX_RELEASES = 10_000
# Each scale of Laplace noise costs one more numerical composition.
_MAX_LAPLACE_SCALES = 256
_NOT_PRIVATE = "NOT PRIVATE: no noise is added to any answer."


@dataclass(frozen=True, repr=False)
class PrivacyPlan:
    """All releases of a run, calibrated together.

    Attributes
    ----------
    budget : PrivacyBudget
        The budget that the run keeps, with its delta resolved.
    n_records : int or None
        The public number of record slots.
    rounds : tuple of tuples of Release
        Releases by round.
    n_clients : int or None
        The public number of client slots, if the budget protects clients.
    n_persons : int or None
        The public number of persons, if the unit of the budget is the person.
        ``n_records`` is then ``None``.
    is_chosen_later : bool
        Whether the rounds are from several runs, each of which may have been chosen
        after the results of earlier runs. `then` returns such a plan. It describes a
        joint cost, and no run can have it.
    notes : tuple of str
        Further sentences for the reader, at the end of `describe`. They are not part of
        the plan.

    Raises
    ------
    ConfigurationError
        If the parts do not fit together, such as noise in a run without privacy.
    """

    budget: PrivacyBudget
    n_records: int | None
    rounds: tuple[tuple[Release, ...], ...]
    n_clients: int | None = None
    n_persons: int | None = None
    is_chosen_later: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        rounds = tuple(tuple(releases) for releases in self.rounds)
        object.__setattr__(self, "rounds", rounds)
        for name in ("n_records", "n_clients", "n_persons"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        counted = "n_records" if self.budget.counts_persons else "n_persons"
        if getattr(self, counted) is not None:
            raise ConfigurationError(
                f"The '{counted}' parameter must be None with unit={self.budget.unit!r}. "
                f"Got {getattr(self, counted)!r} instead."
            )
        if self.n_clients is not None and not self.budget.protects_clients:
            raise ConfigurationError(
                "The 'n_clients' parameter must be None unless the budget is private with "
                f"unit='client'. Got {self.n_clients!r} instead."
            )
        if self.budget.is_private:
            self._check_private()
        elif any(release.noise_multiplier for release in self.releases):
            raise ConfigurationError(
                "The releases of a plan with epsilon=None must have noise_multiplier 0."
            )

    def _check_private(self) -> None:
        if self.budget.delta is None:
            raise ConfigurationError(
                "The 'budget' of a plan must be resolved: its delta is None. Use "
                "PrivacyBudget.resolved, or calibrate."
            )
        if not 1 <= len(self.releases) <= _MAX_RELEASES:
            raise ConfigurationError(
                f"A private plan must have between 1 and {_MAX_RELEASES} releases. "
                f"Got {len(self.releases)} instead."
            )
        if not all(release.noise_multiplier for release in self.releases):
            raise ConfigurationError(
                "The 'noise_multiplier' of every release in a private plan must be positive."
            )
        n_parts = 0
        for release in self.releases:
            n_parts += sum(number for _, number in release.parts)
        # One client can change every word, so bounds of single words protect records
        # only (docs/guarantees, Theorem 15).
        most = 0 if self.budget.protects_clients else MAX_PARTS
        if n_parts > most:
            raise ConfigurationError(
                f"The releases of a plan for one {self.budget.unit} must have at most {most} parts "
                f"together. Got {n_parts} instead."
            )
        scales: set[float] = set()
        for release in self.releases:
            if release.mechanism == "laplace":
                scales.update(release.costs)
        n_scales = len(scales)
        if n_scales > _MAX_LAPLACE_SCALES:
            raise ConfigurationError(
                f"A plan must have at most {_MAX_LAPLACE_SCALES} different scales of Laplace "
                f"noise. Got {n_scales} instead."
            )

    @property
    def is_private(self) -> bool:
        """Whether the run has a privacy guarantee."""
        return self.budget.is_private

    @property
    def releases(self) -> tuple[Release, ...]:
        """Releases of all rounds, in order."""
        return tuple(release for releases in self.rounds for release in releases)

    @property
    def mu(self) -> float | None:
        """The run's mu-GDP level, or ``None`` without privacy or with Laplace noise."""
        mu, laplace = _split(self.releases)
        return mu if self.is_private and not laplace else None

    def epsilon(self, delta: float | None = None) -> float:
        """Return the run's least epsilon at a delta, by default the budget's delta.

        It is infinite without privacy.
        """
        return self.group(1, delta)

    def delta(self, epsilon: float) -> float:
        """Return the run's least delta at an epsilon. It is 1 without privacy."""
        if not self.is_private:
            return 1.0
        if self.is_chosen_later:
            return charge_of(self.releases).delta(epsilon)
        mu, laplace = _split(self.releases)
        if not laplace:
            mu = _mu_above(mu, self.releases)
        return mixture_delta(mu, laplace, epsilon)

    def group(self, size: int, delta: float | None = None) -> float:
        """Return the least epsilon for a group of ``size`` records, clients or persons.

        A group changes every answer by at most ``size`` sensitivities. Its guarantee is
        therefore that of noise ``size`` times smaller. With Gaussian noise alone it is
        ``size * mu``-GDP.
        """
        require_positive("size", size)
        if not self.is_private:
            return math.inf
        if delta is None:
            delta = cast(float, self.budget.delta)
        mu, laplace = _split(self.releases)
        if not laplace and not self.is_chosen_later:
            return epsilon_of_mu(_mu_above(mu, self.releases, size), delta)
        # Clients compute epsilon for every request, and copies of the releases would
        # take most of the time.
        if size == 1:
            releases = self.releases
        else:
            releases = _scaled(self.releases, 1.0 / size)
        if self.is_chosen_later:
            return charge_of(releases).epsilon(delta)
        return mixture_epsilon(*_split(releases), delta)

    def then(self, other: "PrivacyPlan") -> "PrivacyPlan":
        """Return the joint plan of this run and another run over the same records.

        The other run may have been chosen after the results of this one
        (docs/guarantees, Theorem 3). The joint plan has the larger of the two deltas,
        and the epsilon that both runs together meet there. Public numbers that differ
        become ``None``.

        Raises
        ------
        ConfigurationError
            If a plan is not private, or the units of privacy differ.
        """
        if not (self.is_private and other.is_private):
            raise ConfigurationError(
                "Expected two private plans: a run without privacy has no cost to add. "
                f"Got epsilon={self.budget.epsilon} and epsilon={other.budget.epsilon} instead."
            )
        if self.budget.unit != other.budget.unit:
            raise ConfigurationError(
                "Expected two plans of the same unit of privacy. "
                f"Got {self.budget.unit!r} and {other.budget.unit!r} instead."
            )
        deltas = (cast(float, self.budget.delta), cast(float, other.budget.delta))
        delta = max(deltas)
        epsilon = charge_of((*self.releases, *other.releases)).epsilon(delta)
        same_records = self.n_records == other.n_records
        same_clients = self.n_clients == other.n_clients
        same_persons = self.n_persons == other.n_persons
        return PrivacyPlan(
            budget=replace(self.budget, epsilon=epsilon, delta=delta),
            n_records=self.n_records if same_records else None,
            rounds=self.rounds + other.rounds,
            n_clients=self.n_clients if same_clients else None,
            n_persons=self.n_persons if same_persons else None,
            is_chosen_later=True,
        )

    def describe(self) -> str:
        """Return the plan as a table in plain text, with the joint cost below it."""
        if not self.is_private:
            return _NOT_PRIVATE
        (releases,) = self.tables
        rows = [releases.head, *releases.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = zip(row, widths, strict=True)
            line = "  ".join(cell.ljust(width) for cell, width in cells)
            lines.append(line.rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        mu = "" if self.mu is None else f"mu {self.mu:.6g}, "
        together = f"{mu}epsilon {self.epsilon():.6g} at delta {self.budget.delta:.4g}"
        epsilon = cast(float, self.budget.epsilon)
        epsilons = [factor * epsilon for factor in (0.25, 0.5, 2.0, 4.0)]
        curve = ", ".join(f"{e:.3g}: {self.delta(e):.2g}" for e in epsilons)
        unit = self.budget.unit
        groups = ", ".join(f"{size} {unit}s {self.group(size):.4g}" for size in (2, 10))
        lines += [
            f"All rounds together: {together}, for one {unit}.",
            f"delta at other epsilon: {curve}.",
            f"epsilon of groups: {groups}.",
        ]
        return "\n".join((*lines, *self.notes))

    @property
    def tables(self) -> tuple[TextTable, ...]:
        """A table with the noise and the cost of each release; none without privacy."""
        if not self.is_private:
            return ()
        rows = []
        for number, group in enumerate(self.rounds, 1):
            for release in group:
                cost = "mu" if release.mechanism == "gaussian" else "epsilon"
                row = (
                    str(number),
                    release.name,
                    release.mechanism,
                    release.measure,
                    f"{release.noise_multiplier:.6g}",
                    f"{cost} {release.cost:.4g}",
                )
                rows.append(row)
        head = ("round", "release", "noise", "norm", "multiplier", "alone")
        return (TextTable("Releases", head, rows),)

    def __repr__(self) -> str:
        budget = self.budget
        guarantee = f"epsilon={shown(budget.epsilon)}, delta={shown(budget.delta)}"
        return (
            f"PrivacyPlan({guarantee}, unit={budget.unit!r}, n_records={self.n_records}, "
            f"n_rounds={len(self.rounds)}, n_releases={len(self.releases)})"
        )

    def _repr_html_(self) -> str:
        private = self.is_private
        persons = {} if self.n_persons is None else {"n_persons": self.n_persons}
        facts = {
            "epsilon": f"{self.epsilon():.6g}" if private else None,
            "delta": f"{self.budget.delta:.4g}" if private else None,
            "mu": None if self.mu is None else f"{self.mu:.6g}",
            "protected": f"one {self.budget.unit}" if private else "nobody",
            "n_records": self.n_records,
            "n_clients": self.n_clients,
            **persons,
            "rounds": len(self.rounds),
        }
        if private:
            notes = self.notes
        else:
            notes = _NOT_PRIVATE, *self.notes
        return html_summary("PrivacyPlan", facts, self.tables, notes)

    def to_config(self) -> dict[str, Any]:
        """Return the plan for a run document.

        Raises
        ------
        ConfigurationError
            If this is the joint plan of several runs.
        """
        if self.is_chosen_later:
            raise ConfigurationError(
                "Expected the plan of one run for a run document. Got that of several instead."
            )
        rounds = []
        for releases in self.rounds:
            rounds.append([release.to_config() for release in releases])
        config: dict[str, Any] = {"budget": self.budget.to_config(), "rounds": rounds}
        mu = None if self.mu is None else real_to_text(self.mu)
        given = {
            "n_records": self.n_records,
            "n_clients": self.n_clients,
            "n_persons": self.n_persons,
            "mu": mu,
        }
        for name, value in given.items():
            if value is not None:
                config[name] = value
        return config


@lru_cache(maxsize=256)
def _calibrated(
    budget: PrivacyBudget,
    rounds: tuple[tuple[Release, ...], ...],
    n_records: int | None,
    n_clients: int | None,
    n_persons: int | None,
) -> PrivacyPlan:
    releases = tuple(release for group in rounds for release in group)
    mu, laplace = _split(releases)
    epsilon = cast(float, budget.epsilon)
    delta = cast(float, budget.delta)
    # With Gaussian noise, a delta of 0 is an error here.
    if mu:
        allowed = mu_of_budget(epsilon, delta)
    else:
        allowed = math.inf
    if not laplace:
        scale = _widened(releases, mu / allowed, budget)
    elif delta == 0:
        scale = _widened(releases, math.fsum(laplace) / epsilon, budget)
    else:
        scale = _mixture_scale(releases, epsilon, delta)
    scaled = tuple(_scaled(group, scale) for group in rounds)
    return PrivacyPlan(budget, n_records, scaled, n_clients, n_persons)


def calibrate(
    budget: PrivacyBudget,
    rounds: Sequence[Sequence[Release]],
    n_records: int | None,
    n_clients: int | None = None,
    n_persons: int | None = None,
) -> PrivacyPlan:
    """Scale the noise of all releases by one factor, so that together they meet a budget.

    The factor has a closed form if all noise is Gaussian. If delta is 0 and all noise
    is Laplace, it follows from the sum of the epsilons. Otherwise it is found by a
    search over numerical compositions of privacy loss distributions (docs/guarantees,
    Theorem 2).

    Parameters
    ----------
    budget : PrivacyBudget
        The budget of the run. If its delta is ``None``, it is resolved with the public
        number of records, clients or persons, depending on its unit.
    rounds : sequence of sequences of Release
        Releases by round. Only the ratios of their noise multipliers matter. All
        multipliers become 0 if ``budget.epsilon`` is ``None``.
    n_records : int or None
        Public number of record slots.
    n_clients : int, optional
        Public number of client slots, only for a private budget with ``unit="client"``.
    n_persons : int, optional
        Public number of persons, only for a budget with ``unit="person"``.

    Returns
    -------
    PrivacyPlan

    Raises
    ------
    BudgetError
        If no scale can meet the budget: with Gaussian noise and delta 0, or with both
        kinds of noise and a delta near 0.
    ConfigurationError
        If delta cannot be resolved, or the parts do not fit together.
    """
    given = tuple(tuple(releases) for releases in rounds)
    if not budget.is_private:
        bare = []
        for group in given:
            bare.append(tuple(replace(each, noise_multiplier=0.0) for each in group))
        return PrivacyPlan(budget, n_records, tuple(bare), n_clients, n_persons)
    if budget.delta is None:
        numbers = {"record": n_records, "client": n_clients, "person": n_persons}
        n_units = numbers[budget.unit]
        if n_units is None:
            raise ConfigurationError(
                f"The 'n_{budget.unit}s' parameter is required: delta is to be chosen from the "
                f"public number of {budget.unit}s. Got None instead."
            )
        # Delta must come from a public number. A delta from len(records) would reveal
        # that number.
        budget = budget.resolved(n_units)
    # This checks multipliers and public numbers before anything is computed from them.
    PrivacyPlan(budget, n_records, given, n_clients, n_persons)
    return _calibrated(budget, given, n_records, n_clients, n_persons)


def plan_from_config(config: Mapping[str, Any]) -> PrivacyPlan:
    """Return the plan of a run document.

    Raises
    ------
    MessageError
        If the plan is malformed, or its releases cost more than its budget.
    """
    required = {"budget", "rounds"}
    optional = {"n_records", "n_clients", "n_persons", "mu"}
    known = required | optional
    if not isinstance(config, Mapping) or not required <= set(config) <= known:
        raise MessageError("A privacy plan must have a budget and rounds.")
    rounds = config["rounds"]
    is_listed = isinstance(rounds, list)
    if not is_listed or not all(isinstance(group, list) for group in rounds):
        raise MessageError("The rounds of a privacy plan must be lists of releases.")
    budget = budget_from_config(config["budget"])
    # Releases are counted before any is parsed, because the document may be hostile.
    if sum(map(len, rounds)) > _MAX_RELEASES:
        raise MessageError(
            f"A privacy plan must have at most {_MAX_RELEASES} releases."
        )
    found = []
    for group in rounds:
        found.append(tuple(release_from_config(item) for item in group))
    releases = tuple(found)
    try:
        plan = PrivacyPlan(
            budget,
            config.get("n_records"),
            releases,
            config.get("n_clients"),
            config.get("n_persons"),
        )
    except ConfigurationError:
        raise MessageError(
            "The privacy plan of the run document is out of range."
        ) from None
    # Mu follows from the releases, so its text must be the same bit for bit.
    if config.get("mu") != plan.to_config().get("mu"):
        raise MessageError("The mu of a privacy plan must be that of its releases.")
    if plan.is_private and not _meets(plan.releases, budget):
        raise MessageError("The releases of a privacy plan must meet its budget.")
    return plan


def _scaled(releases: Iterable[Release], scale: float) -> tuple[Release, ...]:
    return tuple(
        replace(r, noise_multiplier=r.noise_multiplier * scale) for r in releases
    )


def _widened(releases: Sequence[Release], scale: float, budget: PrivacyBudget) -> float:
    """Return a scale, widened until the plan and the exact sums of ledgers fit.

    The sums of ledgers are too coarse for a mu near 2^-48. The plan meets such a budget
    all the same, but a ledger with such a limit refuses it.
    """
    epsilon = cast(float, budget.epsilon)
    delta = cast(float, budget.delta)
    wider = scale
    # The step begins at one rounding of float64 and doubles, so the noise grows by at
    # most a fraction 2^-32.
    for bits in range(52, 32, -1):
        scaled = _scaled(releases, wider)
        if _meets(scaled, budget) and charge_of(scaled).fits(epsilon, delta):
            return wider
        wider *= 1 + 2.0**-bits
    return wider


def _split(releases: Iterable[Release]) -> tuple[float, tuple[float, ...]]:
    """Return the joint mu of the Gaussian releases, and the Laplace mechanisms' epsilons."""
    releases = tuple(releases)
    gaussian = [each for each in releases if each.mechanism == "gaussian"]
    squares = [each.cost * each.cost for each in gaussian]
    laplace: list[float] = []
    for each in releases:
        if each.mechanism == "laplace":
            laplace += each.costs
    return math.sqrt(math.fsum(squares)), tuple(laplace)


def _mu_above(mu: float, releases: Iterable[Release], size: int = 1) -> float:
    """Return a float64 that is not below the exact mu of a group of ``size``.

    ``mu`` is the joint mu of Gaussian releases. It was rounded at every step, so it may
    be some roundings below the exact root.
    """
    # Sums of fractions would have growing denominators, so integers are used. Each
    # square is rounded upward, by at most 2^-238 of the sum.
    bits = max(0, 120 - math.frexp(mu)[1])
    total = 0
    numbers = Counter(each.noise_multiplier for each in releases)
    for multiplier, number in numbers.items():
        cost = Fraction(1 << bits) / Fraction(multiplier)
        total += number * math.ceil(cost * cost)
    square = Fraction(total * size * size, 1 << 2 * bits)
    above = mu * size
    while Fraction(above) ** 2 < square:
        above = math.nextafter(above, math.inf)
    return above


def _meets(releases: Iterable[Release], budget: PrivacyBudget) -> bool:
    """Return whether releases meet a budget.

    Cheap refusals come first, so they bound the work of the numerical composition.
    """
    epsilon = cast(float, budget.epsilon)
    delta = cast(float, budget.delta)
    mu, laplace = _split(releases)
    if mu and (delta == 0 or mu > mu_of_budget(epsilon, delta)):
        return False
    # For Gaussian noise alone, mu decides exactly. For Laplace noise alone, the sum of
    # epsilons suffices.
    if not laplace or (not mu and math.fsum(laplace) <= epsilon):
        return True
    if delta == 0 or any(laplace_delta(cost, epsilon) > delta for cost in laplace):
        return False
    # Another processor may have found a scale with other last bits.
    return mixture_delta(mu, laplace, epsilon) <= delta * (1 + 1e-6)


def _mixture_scale(releases: Sequence[Release], epsilon: float, delta: float) -> float:
    mu, laplace = _split(releases)
    # Half of the budget for each kind of noise meets it by basic composition.
    high = math.fsum(laplace) / epsilon
    if mu:
        high = max(2 * high, mu / mu_of_budget(epsilon / 2, delta))
    # Each kind of noise must meet the budget alone, which gives lower bounds. The first
    # is the inverse of `laplace_delta` for the costliest Laplace release.
    low = max(laplace) / (epsilon - 2 * math.log1p(-delta))
    if mu:
        low = max(low, mu / mu_of_budget(epsilon, delta))

    def excess(scale: float) -> float:
        scaled = _scaled(releases, scale)
        mu, laplace = _split(scaled)
        over = mixture_epsilon(mu, laplace, delta) / epsilon - 1
        # Every composition adds about 1e-15 to the probability of an infinite loss,
        # even with large noise.
        if over == math.inf and scale >= high:
            raise BudgetError(
                f"Expected a larger delta, such as 1e-9. Got {delta:g}, which the numerical "
                "composition of Laplace and Gaussian noise does not reach: take a larger one, or "
                "noise of one kind."
            )
        # The plan prints epsilon and delta, so both must hold. Their last digits may
        # disagree.
        if mixture_delta(mu, laplace, epsilon) > delta:
            return max(over, 1e-9)
        return over

    return least_scale(excess, low, high)
