"""Checks of a strategy's arguments; each error is one sentence."""

from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError


def require_type(name: str, value: object, kind: Any, expected: str) -> None:
    """Require the type of a parameter."""
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"Expected {name} as {expected}. Got {type(value).__name__} instead."
        )


def checked_count(name: str, value: int | None) -> int | None:
    """Return a count that is at least 1, or ``None``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"Expected {name} as an integer >= 1. Got {value!r} instead.")
    return value


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
