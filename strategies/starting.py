"""Checks of the arguments of ``start``, which Flower defines for all strategies."""

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import require_type

NO_STOP = (
    "should_stop is never called: the number of rounds is part of the plan that clients accept, "
    "and they get the result after the last one."
)


def require_start(
    n_rounds: int,
    *,
    initial_arrays: Any,
    evaluate_fn: Any,
    should_stop: Any,
    num_rounds: Any,
    timeout: Any,
    patience: Any,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Require that a run of ``n_rounds`` planned rounds can follow the arguments."""
    arrays = ArrayRecord | None
    require_type("initial_arrays", initial_arrays, arrays, "an ArrayRecord")
    require_type("evaluate_fn", evaluate_fn, Callable | None, "a callable")
    require_type("should_stop", should_stop, Callable | None, "a callable")
    require_type("num_rounds", num_rounds, int | None, "an integer")
    if num_rounds not in (None, n_rounds):
        raise ConfigurationError(
            f"Expected num_rounds={n_rounds} as planned, or None. "
            f"Got {num_rounds} instead."
        )
    require_type("timeout", timeout, int | float | None, "a number of seconds")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(
            f"Expected timeout > 0 seconds. Got {timeout} instead."
        )
    require_type("patience", patience, int | float | None, "a number of seconds")
    if patience is not None and not patience >= 0:
        raise ConfigurationError(
            f"Expected patience >= 0 seconds. Got {patience} instead."
        )
    require_empty("train_config", train_config)
    require_empty("evaluate_config", evaluate_config)


def require_empty(name: str, config: ConfigRecord | None) -> None:
    """Require that a configuration of Flower's loop is empty."""
    if config:
        raise ConfigurationError(
            f"Expected an empty {name}: the run document has all that clients need. "
            f"Got {len(config)} entries instead."
        )
