"""The privacy budget of a run: epsilon, delta and the unit that they protect."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.parameters import require_positive

Unit = Literal["record", "client", "person"]


@dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) that a whole run may cost.

    Attributes
    ----------
    epsilon : float or None
        Positive and finite. ``None`` is a run without privacy.
    delta : float or None
        In [0, 1). If it is ``None``, `resolved` chooses it. 0 is pure differential
        privacy, which only Laplace noise can give.
    unit : {"record", "client", "person"}
        The unit of privacy: neighbouring data differ in one record, in one client with
        all its records (docs/guarantees, Theorem 2), or in one person with all records
        that have the person's id (docs/guarantees, Theorem 46).

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a value is out of range or has another type, or ``delta`` is given without
        ``epsilon``.
    """

    epsilon: float | None
    delta: float | None = None
    unit: Unit = "record"

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, _real_or_none(name, getattr(self, name)))
        epsilon = self.epsilon
        delta = self.delta
        if epsilon is not None and not 0 < epsilon < math.inf:
            raise self._wrong(
                "epsilon", "positive and finite, or None for a run without privacy"
            )
        if delta is not None and not 0 <= delta < 1:
            raise self._wrong("delta", "at least 0 and below 1")
        if epsilon is None and delta is not None:
            raise self._wrong(
                "delta", "None when epsilon is None, for such a run is not private"
            )
        if self.unit not in get_args(Unit):
            raise self._wrong("unit", "'record', 'client' or 'person'")

    def _wrong(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(
            f"The '{name}' parameter of PrivacyBudget must be {expected}. "
            f"Got {getattr(self, name)!r} instead."
        )

    @property
    def is_private(self) -> bool:
        """Whether the run has a privacy guarantee."""
        return self.epsilon is not None

    @property
    def protects_clients(self) -> bool:
        """Whether the run protects a client with all its records."""
        return self.is_private and self.unit == "client"

    @property
    def protects_persons(self) -> bool:
        """Whether the run protects a person with all their records."""
        return self.is_private and self.unit == "person"

    @property
    def counts_persons(self) -> bool:
        """Whether each person counts as one, however many records they have."""
        return self.unit == "person"

    @property
    def counted(self) -> str:
        """Noun for the units in which sizes of clusters are counted: records or persons."""
        return "persons" if self.counts_persons else "records"

    def resolved(self, n_units: int) -> "PrivacyBudget":
        """Return this budget with a delta in place of ``None``.

        The delta is ``min(1e-6, 1 / (100 n_units))``. ``n_units`` is the public number
        of records, clients or persons, depending on the unit. It must not be counted from
        private data. A mechanism that publishes a random record is (0, 1 /
        n_units)-private, so delta must stay well below that (docs/guarantees,
        Theorem 1).
        """
        require_positive("n_units", n_units)
        if self.epsilon is None or self.delta is not None:
            return self
        return replace(self, delta=min(1e-6, 1.0 / (100 * n_units)))

    def to_config(self) -> dict[str, Any]:
        """Return the budget for a run document, without fields that are ``None``."""
        reals = {"epsilon": self.epsilon, "delta": self.delta}
        given = {}
        for name, real in reals.items():
            if real is not None:
                given[name] = real_to_text(real)
        return {"unit": self.unit, **given}


def budget_from_config(config: Mapping[str, Any]) -> PrivacyBudget:
    """Return the budget of a run document, or raise ``MessageError``."""
    names = {"unit", "epsilon", "delta"}
    if not isinstance(config, Mapping) or not {"unit"} <= set(config) <= names:
        raise MessageError(
            "A privacy budget must have a unit, and may have epsilon and delta."
        )
    epsilon = real_from_text(config["epsilon"]) if "epsilon" in config else None
    delta = real_from_text(config["delta"]) if "delta" in config else None
    try:
        return PrivacyBudget(epsilon, delta, cast(Unit, config["unit"]))
    except ConfigurationError:
        # The inner text advises the author of the budget, which is the server here.
        raise MessageError(
            "The privacy budget of the run document is out of range."
        ) from None


def _real_or_none(name: str, value: Any) -> float | None:
    try:
        if isinstance(value, bool):
            raise TypeError
        # float(value) alone would also accept text.
        if value is None:
            return None
        return float(value + 0.0)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationTypeError(
            f"The '{name}' parameter of PrivacyBudget must be a real number or None. "
            f"Got {type(value).__name__} instead."
        ) from None
