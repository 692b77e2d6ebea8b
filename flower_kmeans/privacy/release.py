"""One noisy answer: its blocks and its noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, MessageError

Mechanism = Literal["gaussian", "laplace"]
Norm = Literal["l2", "l1", "linf"]

_NORMS_OF = {"gaussian": ("l2",), "laplace": ("l1", "linf")}
_FIELDS = {"name", "mechanism", "norm", "noise_multiplier", "blocks"}
# Below it, costs and their squares would overflow.
_MIN_MULTIPLIER = 1e-100
MAX_PARTS = 2**17
"""Most parts of a release, and of a plan: a hostile document cannot occupy a client."""


@dataclass(frozen=True)
class Release:
    """One noisy answer, or a part of one.

    Attributes
    ----------
    name : str
        What a user reads.
    mechanism : {"gaussian", "laplace"}
        Law of the noise, before rounding.
    norm : {"l2", "l1", "linf"}
        Norm of the sensitivity: l2 for Gaussian, l1 for Laplace noise; linf for the
        latter where there are ``parts``.
    noise_multiplier : float
        Noise of a coordinate over its public unit: a standard deviation for Gaussian,
        the scale ``b`` for Laplace noise. Neighbours differ by at most 1 in ``norm``,
        in units, jointly over all blocks. 0 in a run without privacy.
    blocks : tuple of str
        Blocks of the round's statistic that this release covers.
    parts : tuple of (float, int)
        With the norm linf only: bounds in units, in (0, 1], each with the number of
        words that one record changes at most by that bound. Each of these words has a
        Laplace mechanism to itself, of cost bound / multiplier.
    """

    name: str
    mechanism: Mechanism
    norm: Norm
    noise_multiplier: float
    blocks: tuple[str, ...]
    parts: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "blocks", tuple(self.blocks))
        parts = tuple((float(bound), number) for bound, number in self.parts)
        object.__setattr__(self, "parts", parts)
        if self.mechanism not in _NORMS_OF:
            raise _wrong("mechanism", "be 'gaussian' or 'laplace'", self.mechanism)
        if self.norm not in _NORMS_OF[self.mechanism]:
            norms = " or ".join(map(repr, _NORMS_OF[self.mechanism]))
            raise _wrong("norm", f"be {norms} for {self.mechanism} noise", self.norm)
        if bool(self.parts) != (self.norm == "linf"):
            expected = "be given where its norm is 'linf', and only there"
            raise _wrong("parts", expected, (self.norm, self.parts))
        for bound, number in self.parts:
            # type(), since True is an int as well; these values may come from a
            # document.
            is_number = type(number) is int and 1 <= number <= MAX_PARTS
            if not 0 < bound <= 1 or not is_number:
                expected = (
                    f"be bounds in (0, 1] with numbers of words in [1, {MAX_PARTS}]"
                )
                raise _wrong("parts", expected, (bound, number))
        multiplier = self.noise_multiplier
        if multiplier != 0 and not _MIN_MULTIPLIER <= multiplier < math.inf:
            expected = f"be 0, or at least {_MIN_MULTIPLIER:g} and finite"
            raise _wrong("noise_multiplier", expected, multiplier)
        if not self.blocks:
            raise _wrong("blocks", "name at least one block", self.blocks)

    @property
    def cost(self) -> float:
        """Joint mu (Gaussian) or pure epsilon (Laplace) of all parts, or infinity."""
        parts = self.parts or ((1.0, 1),)
        bound = math.fsum(bound * number for bound, number in parts)
        if self.noise_multiplier:
            return bound / self.noise_multiplier
        return math.inf

    @property
    def costs(self) -> tuple[float, ...]:
        """The cost of each mechanism in the release: one, or one for each part."""
        if not self.parts or not self.noise_multiplier:
            return (self.cost,)
        costs: list[float] = []
        for bound, number in self.parts:
            costs += [bound / self.noise_multiplier] * number
        return tuple(costs)

    @property
    def measure(self) -> str:
        """The norm for a reader, with the number of words where there are parts."""
        words = sum(number for _, number in self.parts)
        return f"{self.norm} of {words} words" if self.parts else self.norm

    def to_config(self) -> dict[str, Any]:
        """Return the release for a run document."""
        config: dict[str, Any] = {
            "name": self.name,
            "mechanism": self.mechanism,
            "norm": self.norm,
            "noise_multiplier": real_to_text(self.noise_multiplier),
            "blocks": list(self.blocks),
        }
        if self.parts:
            parts = [[real_to_text(bound), number] for bound, number in self.parts]
            config["parts"] = parts
        return config


def release_from_config(config: Any) -> Release:
    """Return the release that a run document states, or raise ``MessageError``."""
    if not isinstance(config, Mapping) or set(config) - {"parts"} != _FIELDS:
        raise MessageError("A release must have exactly the fields of a release.")
    blocks = config["blocks"]
    parts = config.get("parts", [])
    name = config["name"]
    mechanism = config["mechanism"]
    norm = config["norm"]
    texts = [name, mechanism, norm]
    are_listed = isinstance(blocks, list)
    if not are_listed or not all(isinstance(text, str) for text in texts + blocks):
        raise MessageError("The names of a release and of its blocks must be text.")
    is_listed = isinstance(parts, list)
    if not is_listed or not all(_is_pair(part) for part in parts):
        raise MessageError(
            "The parts of a release must be pairs of a bound and a number."
        )
    multiplier = real_from_text(config["noise_multiplier"])
    bounds = tuple((real_from_text(bound), number) for bound, number in parts)
    try:
        return Release(name, mechanism, norm, multiplier, tuple(blocks), bounds)
    except ConfigurationError:
        raise MessageError("A release of the run document is out of range.") from None


def _is_pair(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2


def _wrong(name: str, expected: str, value: Any) -> ConfigurationError:
    return ConfigurationError(
        f"The '{name}' of a release must {expected}. Got {value!r} instead."
    )
