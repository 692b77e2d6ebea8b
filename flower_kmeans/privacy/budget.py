"""The privacy of a run: epsilon, delta and the unit that they protect."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, MessageError

Unit = Literal["record", "client"]

_UNITS = ("record", "client")
_LARGEST_DEFAULT_DELTA = 1e-6
_UNITS_PER_DELTA = 100


@dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) that a whole run may cost.

    Attributes
    ----------
    epsilon : float or None
        Positive and finite; ``None`` for a run without privacy.
    delta : float or None
        In [0, 1). ``None`` means that `resolved` chooses it; 0 is pure differential
        privacy, which Laplace noise alone can give.
    unit : {"record", "client"}
        What one neighbour differs in (docs/guarantees: Neighbours, budget, delta).
    """

    epsilon: float | None
    delta: float | None = None
    unit: Unit = "record"

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, _real_or_none(name, getattr(self, name)))
        self._require(
            "epsilon",
            self.epsilon is None or 0 < self.epsilon < math.inf,
            "be positive and finite, or None for a run without privacy",
        )
        self._require(
            "delta", self.delta is None or 0 <= self.delta < 1, "be at least 0 and below 1"
        )
        self._require(
            "delta",
            self.epsilon is not None or self.delta is None,
            "be None when epsilon is None, for such a run is not private",
        )
        self._require("unit", self.unit in _UNITS, "be 'record' or 'client'")

    def _require(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ConfigurationError(
                f"The '{name}' parameter of PrivacyBudget must {expected}. "
                f"Got {getattr(self, name)!r} instead."
            )

    @property
    def is_private(self) -> bool:
        """Whether the run is private at all."""
        return self.epsilon is not None

    @property
    def protects_clients(self) -> bool:
        """Whether the run is private for a client with all of its records."""
        return self.is_private and self.unit == "client"

    def resolved(self, n_units: int) -> "PrivacyBudget":
        """Return this budget with a delta of ``None`` replaced by ``min(1e-6, 1 / (100 n_units))``.

        ``n_units`` is the public number of records or clients, whichever the unit is; never a count
        of the data. A mechanism that publishes a random record is (0, 1 / n_units)-private, so
        delta has to stay well below that (docs/guarantees: Neighbours, budget, delta).
        """
        if isinstance(n_units, bool) or not isinstance(n_units, int) or n_units < 1:
            raise ConfigurationError(
                "The number of units behind a default delta must be a positive integer. "
                f"Got {n_units!r} instead."
            )
        if self.epsilon is None or self.delta is not None:
            return self
        return replace(self, delta=min(_LARGEST_DEFAULT_DELTA, 1.0 / (_UNITS_PER_DELTA * n_units)))

    def to_config(self) -> dict[str, Any]:
        """Return the budget for a run document; what is ``None`` is left out."""
        reals = {"epsilon": self.epsilon, "delta": self.delta}
        given = {name: real_to_text(real) for name, real in reals.items() if real is not None}
        return {"unit": self.unit, **given}


def budget_from_config(config: Mapping[str, Any]) -> PrivacyBudget:
    """Return the budget that a run document states, or raise ``MessageError``."""
    if not isinstance(config, Mapping) or not {"unit"} <= set(config) <= {
        "unit",
        "epsilon",
        "delta",
    }:
        raise MessageError("A privacy budget must have a unit, and may have epsilon and delta.")
    epsilon, delta = (
        real_from_text(config[name]) if name in config else None for name in ("epsilon", "delta")
    )
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
