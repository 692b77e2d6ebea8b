"""One noisy answer: what it covers and how much noise it carries."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, MessageError

Mechanism = Literal["gaussian", "laplace"]
Norm = Literal["l2", "l1"]

_NORM_OF = {"gaussian": "l2", "laplace": "l1"}
_FIELDS = {"name", "mechanism", "norm", "noise_multiplier", "blocks"}
# Below it, costs and their squares would overflow.
_MIN_MULTIPLIER = 1e-100


@dataclass(frozen=True)
class Release:
    """One noisy answer, or a part of one.

    Attributes
    ----------
    name : str
        What a user reads.
    mechanism : {"gaussian", "laplace"}
        Law of the noise, before rounding.
    norm : {"l2", "l1"}
        Norm of the sensitivity: l2 for Gaussian, l1 for Laplace noise.
    noise_multiplier : float
        Noise of a coordinate over its public unit: a standard deviation for Gaussian, the scale
        ``b`` for Laplace noise. Neighbours differ by at most 1 in ``norm``, in units, jointly
        over all blocks. 0 in a run without privacy.
    blocks : tuple of str
        Blocks of the round's statistic that this release covers.

    Raises
    ------
    ConfigurationError
        If a value is out of range, or norm and mechanism do not belong together.
    """

    name: str
    mechanism: Mechanism
    norm: Norm
    noise_multiplier: float
    blocks: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if self.mechanism not in _NORM_OF:
            raise ConfigurationError(
                "The 'mechanism' of a release must be 'gaussian' or 'laplace'. "
                f"Got {self.mechanism!r} instead."
            )
        if self.norm != _NORM_OF[self.mechanism]:
            raise ConfigurationError(
                f"The 'norm' of a {self.mechanism} release must be {_NORM_OF[self.mechanism]!r}. "
                f"Got {self.norm!r} instead."
            )
        multiplier = self.noise_multiplier
        if multiplier != 0 and not _MIN_MULTIPLIER <= multiplier < math.inf:
            raise ConfigurationError(
                f"The 'noise_multiplier' of a release must be 0, or at least {_MIN_MULTIPLIER:g} "
                f"and finite. Got {self.noise_multiplier!r} instead."
            )
        if not self.blocks:
            raise ConfigurationError("The 'blocks' of a release must name at least one block.")

    @property
    def cost(self) -> float:
        """The release's own mu (Gaussian) or pure epsilon (Laplace); infinite without noise."""
        return 1.0 / self.noise_multiplier if self.noise_multiplier else math.inf

    def to_config(self) -> dict[str, Any]:
        """Return the release for a run document."""
        return {
            "name": self.name,
            "mechanism": self.mechanism,
            "norm": self.norm,
            "noise_multiplier": real_to_text(self.noise_multiplier),
            "blocks": list(self.blocks),
        }


def release_from_config(config: Any) -> Release:
    """Return the release that a run document states.

    Raises
    ------
    MessageError
        If it is malformed or out of range.
    """
    if not isinstance(config, Mapping) or set(config) != _FIELDS:
        raise MessageError("A release must have exactly the fields of a release.")
    blocks = config["blocks"]
    texts = [config["name"], config["mechanism"], config["norm"]]
    if not isinstance(blocks, list) or not all(isinstance(text, str) for text in texts + blocks):
        raise MessageError("The names of a release and of its blocks must be text.")
    try:
        return Release(
            config["name"],
            config["mechanism"],
            config["norm"],
            real_from_text(config["noise_multiplier"]),
            tuple(blocks),
        )
    except ConfigurationError:
        raise MessageError("A release of the run document is out of range.") from None
