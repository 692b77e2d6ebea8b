"""A method of the field's benchmark, and the check of its guarantee."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from flower_kmeans import PrivacyBudget
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import BudgetError, ConfigurationError
from flower_kmeans.privacy import PrivacyPlan, Release


class Problem(NamedTuple):
    """The public numbers of a clustering."""

    n_records: int
    n_features: int
    n_clusters: int
    epsilon: float
    delta: float

    @property
    def budget(self) -> PrivacyBudget:
        """The budget, for single records."""
        return PrivacyBudget(self.epsilon, self.delta)


class Fit(Protocol):
    """A private clustering of records in one place."""

    def __call__(
        self,
        records: FloatArray,
        n_clusters: int,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return centroids, (at most k, d), of records, (n, d), in the unit ball.

        The number of records is public, as that of slots: a record is added or removed
        in one of them.
        """
        ...


@dataclass(frozen=True)
class Method:
    """A private clustering that can be compared with others.

    Attributes
    ----------
    name : str
        The name in tables.
    fit : callable
        See `Fit`.
    releases : callable
        Returns all noisy answers of a run for the public numbers of a `Problem`. The
        noise of ``fit`` is theirs: `checked_plan` sees nothing else.
    sees : str
        Who sees what, in a phrase.
    min_features, max_features : int
        The least and the largest number of columns that the method is for.
    """

    name: str
    fit: Fit
    releases: Callable[[Problem], Sequence[Release]]
    sees: str
    min_features: int = 1
    max_features: int = 1_000_000

    def applies(self, n_features: int) -> bool:
        """Return whether the method is for records of this width."""
        return self.min_features <= n_features <= self.max_features


def plan_of(releases: Sequence[Release], problem: Problem) -> PrivacyPlan:
    """Return the plan of releases. Its cost is that of the project's accountant.

    Records are added or removed, and all releases are composed (docs/guarantees,
    Theorem 2).

    Raises
    ------
    ConfigurationError
        If there is no release, or one without noise.
    """
    return PrivacyPlan(problem.budget, problem.n_records, (tuple(releases),))


def checked_plan(method: Method, problem: Problem) -> PrivacyPlan:
    """Return the plan of a method's run, whose joint cost is within the budget.

    Raises
    ------
    BudgetError
        If all releases together exceed (epsilon, delta).
    ConfigurationError
        If the method names no release, or one without noise.
    """
    plan = plan_of(method.releases(problem), problem)
    spent = plan.epsilon()
    if spent > problem.epsilon:
        raise BudgetError(
            f"The releases of {method.name!r} must together have an epsilon of at most "
            f"{problem.epsilon:g} at delta {problem.delta:.3g}. Got {spent:.4g} instead."
        )
    return plan


def loaded(given: str) -> Method:
    """Return the method of ``FILE.py:NAME``.

    Raises
    ------
    ConfigurationError
        If there is no such file, or no method of that name in it.
    """
    path, _, name = given.rpartition(":")
    file = Path(path)
    spec = None
    if file.is_file():
        spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(
            f"Expected FILE.py:NAME with an existing Python file. Got {given!r} instead."
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    method = getattr(module, name, None)
    if not isinstance(method, Method):
        raise ConfigurationError(
            f"Expected a Method named {name!r} in {path}. Got {method!r} instead."
        )
    return method
