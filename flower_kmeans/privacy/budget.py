"""The privacy that a user asks for: epsilon, delta and the unit that they protect."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, MessageError

Unit = Literal["record", "client"]

_UNITS = ("record", "client")
# A delta of 1/N allows a mechanism that publishes one record in full, see resolved().
_LARGEST_DEFAULT_DELTA = 1e-6
_UNITS_PER_DELTA = 100


@dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) that a whole run may cost.

    Attributes
    ----------
    epsilon : float or None
        Positive and finite; ``None`` asks for no privacy at all.
    delta : float or None
        In [0, 1). ``None`` means that `resolved` chooses it; 0 is pure differential
        privacy, which Laplace noise alone can give.
    unit : {"record", "client"}
        What one neighbour differs in (docs/guarantees: Neighbours, budget, delta).

    Raises
    ------
    ConfigurationError
        If a value is out of range, or a delta comes without an epsilon.
    ConfigurationTypeError
        If epsilon or delta is not a number.
    """

    epsilon: float | None
    delta: float | None = None
    unit: Unit = "record"

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, _real_or_none(name, getattr(self, name)))
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigurationError(
                "The 'epsilon' parameter of PrivacyBudget must be positive and finite, or None "
                f"for a run without privacy. Got {self.epsilon!r} instead."
            )
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ConfigurationError(
                "The 'delta' parameter of PrivacyBudget must be at least 0 and below 1. "
                f"Got {self.delta!r} instead."
            )
        if self.epsilon is None and self.delta is not None:
            raise ConfigurationError(
                "The 'delta' parameter of PrivacyBudget must be None when epsilon is None, for "
                f"such a run is not private. Got {self.delta!r} instead."
            )
        if self.unit not in _UNITS:
            raise ConfigurationError(
                "The 'unit' parameter of PrivacyBudget must be 'record' or 'client'. "
                f"Got {self.unit!r} instead."
            )

    @property
    def is_private(self) -> bool:
        """Whether any privacy is asked for."""
        return self.epsilon is not None

    @property
    def protects_clients(self) -> bool:
        """Whether privacy is asked for, and for a client with all of its records."""
        return self.is_private and self.unit == "client"

    def resolved(self, n_units: int) -> "PrivacyBudget":
        """Return this budget with its delta filled in.

        Parameters
        ----------
        n_units : int
            Public number of records or clients, whichever the unit is; never a count of the
            data.

        Returns
        -------
        PrivacyBudget
            With ``delta = min(1e-6, 1 / (100 n_units))`` where it was ``None``: a mechanism that
            publishes a random record is (0, 1 / n_units)-private, so delta has to stay well
            below that (docs/guarantees: Neighbours, budget, delta).

        Raises
        ------
        ConfigurationError
            If ``n_units`` is not a positive integer.
        """
        if isinstance(n_units, bool) or not isinstance(n_units, int) or n_units < 1:
            raise ConfigurationError(
                "The number of units behind a default delta must be a positive integer. "
                f"Got {n_units!r} instead."
            )
        if self.epsilon is None or self.delta is not None:
            return self
        delta = min(_LARGEST_DEFAULT_DELTA, 1.0 / (_UNITS_PER_DELTA * n_units))
        return replace(self, delta=delta)

    def to_config(self) -> dict[str, Any]:
        """Return the budget for a run document; what is ``None`` is left out."""
        config: dict[str, Any] = {"unit": self.unit}
        if self.epsilon is not None:
            config["epsilon"] = real_to_text(self.epsilon)
        if self.delta is not None:
            config["delta"] = real_to_text(self.delta)
        return config


def budget_from_config(config: Mapping[str, Any]) -> PrivacyBudget:
    """Return the budget that a run document states.

    Raises
    ------
    MessageError
        If it is malformed or out of range.
    """
    if not isinstance(config, Mapping) or not {"unit"} <= set(config) <= {
        "unit",
        "epsilon",
        "delta",
    }:
        raise MessageError("A privacy budget must have a unit, and may have epsilon and delta.")
    if config["unit"] not in _UNITS:
        raise MessageError("The unit of a privacy budget must be 'record' or 'client'.")
    epsilon = real_from_text(config["epsilon"]) if "epsilon" in config else None
    delta = real_from_text(config["delta"]) if "delta" in config else None
    try:
        return PrivacyBudget(epsilon, delta, cast(Unit, config["unit"]))
    except ConfigurationError:
        raise MessageError("The privacy budget of the run document is out of range.") from None


def _real_or_none(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, bool):
        try:
            # Not float(value) alone, which would also read strings.
            return float(value + 0.0)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ConfigurationTypeError(
        f"The '{name}' parameter of PrivacyBudget must be a real number or None. "
        f"Got {type(value).__name__} instead."
    )
