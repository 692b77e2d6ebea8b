"""Checks of a strategy's arguments; each error is one sentence."""

import sys
from os import PathLike
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError, ObliviousServerError
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel, trust_model
from flower_kmeans.report.report import Report


def require_empty(name: str, config: ConfigRecord | None) -> None:
    """Require that a run is started without a configuration for its clients."""
    if config is not None and len(config):
        raise ConfigurationError(
            f"Expected an empty {name}: what clients need is in the run document. "
            f"Got {len(config)} entries instead."
        )


def require_start(
    n_rounds: int,
    num_rounds: int | None,
    timeout: float,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Require that the arguments of a start do not contradict the plan."""
    require_type("num_rounds", num_rounds, int | None, "an integer")
    if num_rounds is not None and num_rounds != n_rounds:
        raise ConfigurationError(
            f"Expected num_rounds={n_rounds} as planned, or None. Got {num_rounds} instead."
        )
    require_type("timeout", timeout, int | float, "a number of seconds")
    if not timeout > 0:
        raise ConfigurationError(f"Expected timeout > 0 seconds. Got {timeout} instead.")
    require_empty("train_config", train_config)
    require_empty("evaluate_config", evaluate_config)


def refuse_wrapper(strategy: Strategy) -> None:
    """Refuse that a strategy is wrapped, as Flower's own privacy wrappers would do."""
    # They clip arrays that this strategy never sends, and would report a guarantee that nobody
    # gives. A wrapper calls the hooks of the strategy that it holds: this is called in a hook.
    frame = sys._getframe(2)
    caller = frame.f_locals.get("self")
    if caller is not strategy and isinstance(caller, Strategy):
        raise ConfigurationError(
            f"Expected {type(strategy).__name__} to be driven directly. Got it wrapped in "
            f"{type(caller).__name__}, whose privacy does not apply to it."
        )


def read_roster(keys: str, roster_file: str | PathLike[str] | None) -> Roster | None:
    """Return the roster that a run needs, or ``None`` where it needs none."""
    if keys != "roster":
        return None
    if roster_file is None:
        raise ConfigurationError(
            "Expected roster_file with keys='roster': the file of the clients' public keys. "
            "Got None."
        )
    return Roster.from_file(roster_file)


def no_clip(strategy: str, privacy: PrivacyBudget, clip: float | None) -> ConfigurationError:
    """Return the error of a request for clipping to an algorithm that has none."""
    if privacy.protects_clients:
        return ConfigurationError(
            f"Expected a budget with unit='record' for {strategy}, whose algorithm does not clip "
            "what a client adds. Got unit='client' instead."
        )
    return ConfigurationError(
        f"Expected clip=None for {strategy}, which does not clip what a client adds. "
        f"Got clip={clip!r} instead."
    )


def require_trust(
    trust: TrustModel, algorithm: Algorithm, plan: PrivacyPlan, strategy: str
) -> None:
    """Require that an algorithm runs under a trust model, or name those that would do."""
    objection = trust.objection(algorithm, plan)
    if objection is not None:
        fitting = [n for n, each in TRUST_MODELS.items() if not each.objection(algorithm, plan)]
        raise ConfigurationError(
            f"Expected trust of {strategy} with epsilon={plan.budget.epsilon} in {fitting}. "
            f"Got {trust.name!r} instead. {objection}"
        )


def require_reader(cost: bool, trust: TrustModel) -> None:
    """Require that the server may see the cost, if it is to be released."""
    # Otherwise the release would cost privacy and nobody would report it.
    if cost and trust.is_blind:
        raise ObliviousServerError(
            f"Expected cost=False under trust={trust.name!r}: the report that states the cost is "
            "the server's, which must not see it. Got cost=True; choose another trust."
        )


def result_of(initial: Any, privacy: PrivacyBudget) -> tuple[Any, Report | None]:
    """Return initial centroids, and the report of the run that they are the result of, if any."""
    report = getattr(initial, "report", None)
    if not isinstance(report, Report):
        return initial, None
    # Initial centroids are public: with them, a blind server could solve for the noise it added.
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


def require_round(number: int, head: int, n_rounds: int) -> None:
    """Require that Flower's loop configures the round after the last one that is closed."""
    due = head + 1
    if number != due or number > n_rounds:
        raise ConfigurationError(
            f"Expected rounds 1 to {n_rounds} in their order, round {min(due, n_rounds)} next. "
            f"Got {number} instead."
        )


def unseen(trust: str) -> ObliviousServerError:
    """Return the error of a request for centroids at a server that must not see them."""
    return ObliviousServerError(
        f"Expected no request for centroids at the server under trust={trust!r}: the server must "
        "never see the result. Take them from a client's on_result."
    )
