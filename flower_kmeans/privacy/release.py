"""One noisy answer: the blocks of a statistic that it covers, and its noise."""

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
# With a smaller multiplier, costs and their squares would overflow.
_MIN_MULTIPLIER = 1e-100
MAX_PARTS = 2**17
"""Most parts of a release, and of a plan, so a hostile document cannot occupy a client."""


@dataclass(frozen=True)
class Release:
    """One noisy answer, or some blocks of one.

    Each coordinate has a public sensitivity. Answers of neighbouring data, divided by
    it, differ by at most 1 in ``norm``, jointly over all blocks.

    Attributes
    ----------
    name : str
        The name for users, in plans and reports.
    mechanism : {"gaussian", "laplace"}
        The law of the noise before rounding.
    norm : {"l2", "l1", "linf"}
        The norm of the sensitivity: l2 for Gaussian noise, l1 for Laplace noise, and
        linf for Laplace noise with ``parts``.
    noise_multiplier : float
        The scale of the noise over the sensitivity: the standard deviation of Gaussian
        noise, the scale ``b`` of Laplace noise. 0 in a run without privacy.
    blocks : tuple of str
        The blocks of the round's statistic that this release covers.
    parts : tuple of (float, int)
        Only with the norm linf: pairs of a bound in (0, 1] and a number of words. One
        record changes each of these words by at most the bound, relative to the
        sensitivity. Each word has its own Laplace mechanism of cost bound / multiplier.

    Raises
    ------
    ConfigurationError
        If a value is out of range, or the values do not fit together.
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
            # type(), because True is an int as well. The values may come from a run
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
        """Joint mu (Gaussian) or pure epsilon (Laplace) of all parts.

        It is infinite without noise.
        """
        parts = self.parts or ((1.0, 1),)
        bound = math.fsum(bound * number for bound, number in parts)
        if self.noise_multiplier:
            return bound / self.noise_multiplier
        return math.inf

    @property
    def costs(self) -> tuple[float, ...]:
        """The cost of each mechanism: one, or one for each word of the parts."""
        if not self.parts or not self.noise_multiplier:
            return (self.cost,)
        costs: list[float] = []
        for bound, number in self.parts:
            costs += [bound / self.noise_multiplier] * number
        return tuple(costs)

    @property
    def measure(self) -> str:
        """The norm in words, with the number of words of the parts."""
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
    """Return a release of a run document, or raise ``MessageError``."""
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
