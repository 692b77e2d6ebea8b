"""Checks of a strategy's arguments; each error is one sentence."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.report import Report
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel, trust_model


def require_type(name: str, value: object, kind: Any, expected: str) -> None:
    """Require the type of a parameter."""
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"Expected {name} as {expected}. Got {type(value).__name__} instead."
        )


def require_empty(name: str, config: ConfigRecord | None) -> None:
    """Require that a run is started without a configuration for its clients."""
    if config is not None and len(config):
        raise ConfigurationError(
            f"Expected an empty {name}: what clients need is in the run document. "
            f"Got {len(config)} entries instead."
        )


def checked_count(name: str, value: int | None) -> int | None:
    """Return a count that is at least 1, or ``None``."""
    if value is not None:
        require_count(name, value)
    return value


def require_count(name: str, value: int, most: int | None = None) -> None:
    """Require an integer that is at least 1, and at most ``most``."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not is_count or (most is not None and value > most):
        expected = ">= 1" if most is None else f"from 1 to {most}"
        raise ConfigurationError(
            f"Expected {name} as an integer {expected}. Got {value!r} instead."
        )


def require_clip(
    algorithm: Callable[..., Any], strategy: str, privacy: PrivacyBudget, clip: float | None
) -> None:
    """Require that what makes an algorithm has the parameters of one that clips clients.

    It is a class, or what calls one; where it passes on any keywords, those of the class decide.
    """
    parameters = inspect.signature(algorithm).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    if {"n_clients", "clip"} <= set(parameters):
        return
    if privacy.protects_clients:
        raise no_clip(strategy)
    raise ConfigurationError(
        f"Expected clip=None for {strategy}, which does not clip what a client adds. "
        f"Got clip={clip!r} instead."
    )


def no_clip(strategy: str) -> ConfigurationError:
    """Return the error of an algorithm that cannot protect whole clients."""
    return ConfigurationError(
        f"Expected a budget with unit='record' for {strategy}, whose algorithm does not clip what "
        "a client adds. Got unit='client' instead."
    )


def require_trust(
    trust: TrustModel, algorithm: Algorithm, plan: PrivacyPlan, strategy: str
) -> None:
    """Require that an algorithm runs under a trust model.

    The error holds the reason and the trust models that would do.
    """
    objection = trust.objection(algorithm, plan)
    if objection is not None:
        fitting = [n for n, each in TRUST_MODELS.items() if not each.objection(algorithm, plan)]
        raise ConfigurationError(
            f"Expected trust of {strategy} with epsilon={plan.budget.epsilon} in {fitting}. "
            f"Got {trust.name!r} instead. {objection}"
        )


def require_reader(cost: bool, trust: TrustModel) -> None:
    """Require that the server may see the cost, if it is to be released.

    Otherwise the release would cost privacy and nobody would report it.
    """
    if cost and trust.is_blind:
        raise ObliviousServerError(
            f"Expected cost=False under trust={trust.name!r}: the report that states the cost is "
            "the server's, which must not see it. Got cost=True; choose another trust."
        )


class FinishedRun(Protocol):
    """What a run left: a `Clustering`, or a strategy after its start."""

    @property
    def centroids(self) -> NDArray[np.float64]:
        """Centroids in the user's units, (n_clusters, n_features)."""

    @property
    def report(self) -> Report:
        """The run's report."""


def result_of(initial: Any, privacy: PrivacyBudget) -> tuple[Any, Report | None]:
    """Return initial centroids, and the report of the run that they are the result of, if any.

    Initial centroids are public, so that run's server must see its result; and both runs must
    protect the same unit.
    """
    report = getattr(initial, "report", None)
    if not isinstance(report, Report):
        return initial, None
    if trust_model(report.trust).is_blind:
        raise ObliviousServerError(
            "Expected initial centroids that the server may see. Got the result of a run under "
            f"trust={report.trust!r}, whose server must never see it."
        )
    if report.is_private and privacy.is_private and report.unit != privacy.unit:
        raise ConfigurationError(
            f"Expected initial centroids of a run with unit={privacy.unit!r}, so that the costs of "
            f"both runs can be added. Got those of one with unit={report.unit!r}."
        )
    return initial.centroids, report


def initial_centroids(arrays: ArrayRecord) -> NDArray[Any] | None:
    """Return the one array of public initial centroids, or ``None`` if there is none."""
    if not len(arrays):
        return None
    if len(arrays) != 1:
        raise ConfigurationError(
            "Expected initial_arrays with one array of shape (n_clusters, n_features). "
            f"Got {len(arrays)} arrays instead."
        )
    return next(iter(arrays.values())).numpy()
