"""Parts of a budget for rounds beside those of an algorithm: ranges first, quality last.

A round beside the others has a fraction of mu^2, and the algorithm was planned for the
rest. So the noise of its rounds is the planned one.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.release import Release

_FACTS = (
    "name",
    "replayable",
    "kind",
    "needs_all_records",
    "bounds_clients",
    "can_miss_sums",
    "weighs_in_one_pass",
)


def rest_of(budget: PrivacyBudget, fraction: float) -> PrivacyBudget:
    """Return the budget of the other rounds: 1 - ``fraction`` of mu^2.

    With delta 0 there is no mu, and it is the same part of epsilon.
    """
    if budget.epsilon is None or budget.delta is None:
        # without privacy, or an error of the algorithm about a missing number
        return budget
    if budget.delta == 0:
        return replace(budget, epsilon=(1 - fraction) * budget.epsilon)
    mu = mu_of_budget(budget.epsilon, budget.delta)
    return replace(
        budget, epsilon=epsilon_of_mu(math.sqrt(1 - fraction) * mu, budget.delta)
    )


@contextmanager
def errors_with_epsilon(
    budget: PrivacyBudget, fraction: float, option: str
) -> Iterator[None]:
    """Say in errors about an epsilon which one was given, and which one remains.

    ``option`` names the user's option that takes the fraction.
    """
    try:
        yield
    except ConfigurationError as error:
        epsilon = rest_of(budget, fraction).epsilon
        if epsilon == budget.epsilon or "epsilon=" not in str(error):
            raise
        raise type(error)(
            f"{error} This is the budget after {option}: epsilon={epsilon:.3g} remains of "
            f"epsilon={budget.epsilon:g}."
        ) from None


def releases_of(algorithm: Algorithm) -> list[Release]:
    """Return the releases of all rounds, with relative noise multipliers."""
    rounds = range(1, algorithm.n_rounds + 1)
    return [release for t in rounds for release in algorithm.releases(t)]


def multiplier_beside(algorithm: Algorithm, fraction: float) -> float | None:
    """Return the noise multiplier of a release with a fraction of mu^2 of all rounds.

    It is relative to the multipliers of the algorithm, which have the rest. With
    delta 0 it is a fraction of epsilon. ``None`` if the algorithm has no releases.
    """
    releases = releases_of(algorithm)
    if not releases:  # Lloyd's, without noise
        return None
    # fsum is exact: clients compare the plan that they compute with the server's plan
    # bit by bit.
    if algorithm.budget.delta == 0:
        epsilons = math.fsum(each.cost for each in releases)
        return (1 - fraction) / (fraction * epsilons)
    others = math.fsum(_square(each) for each in releases)
    return math.sqrt((1 - fraction) / (fraction * others))


def _square(release: Release) -> float:
    """Return the sum of the squared costs of a release's mechanisms."""
    parts = release.parts or ((1.0, 1),)
    squares = math.fsum(bound * bound * number for bound, number in parts)
    return squares / release.noise_multiplier**2


def take_facts(outer: Algorithm, inner: Algorithm) -> None:
    """Give an algorithm the facts about its class that follow from the algorithm inside it."""
    # The dataclass is frozen: attributes cannot be set in the ordinary way.
    vars(outer).update({name: getattr(inner, name) for name in _FACTS})
