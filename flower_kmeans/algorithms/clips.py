"""How much of one client counts where clients are protected: the numbers, and their checks."""

from dataclasses import dataclass

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Release

Clips = tuple[tuple[str, float], ...]
"""Clips of single releases by name, sorted."""


@dataclass(frozen=True)
class Clipping:
    """How the part of one client in each release is limited (docs/guarantees, Theorem 34)."""

    clip: float | None = None
    """How many records' worth of one client count; ``None`` where clients are not protected."""
    own: Clips = ()
    """Clips of single releases, in place of it."""
    is_joint: bool = False
    """Whether one factor, the least that one of them needs, shortens all releases of a round."""
    first_means: int | None = None
    """First round in which clients add means in place of sums; ``None`` if they never do."""

    def of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping."""
        if self.clip is None:
            return 1.0
        return dict(self.own).get(release.name, self.clip)

    def adds_means(self, round_number: int) -> bool:
        """Return whether clients add means in a round."""
        return self.first_means is not None and round_number >= self.first_means


def require_clip(
    budget: PrivacyBudget, n_clients: int | None, clip: float | None
) -> None:
    """Require a number of clients where they are protected; else neither it nor a clip.

    Ranges are checked before.
    """
    if budget.protects_clients:
        if n_clients is None:
            raise ConfigurationError(
                "n_clients is required with unit='client': a public number of clients, from which "
                "delta and the default clip follow. Got None."
            )
        return
    for name, value in (("clip", clip), ("n_clients", n_clients)):
        if value is not None:
            raise ConfigurationError(
                f"Expected {name}=None unless the budget is private with unit='client'. "
                f"Got {name}={value!r}, unit={budget.unit!r}, epsilon={budget.epsilon} instead."
            )


def require_no_clips(clips: Clips | None, clip: float | None) -> None:
    """Require that releases have no clips of their own where clients are not clipped."""
    if clips and clip is None:
        raise ConfigurationError(
            "Expected clips=None unless the budget is private with unit='client'. "
            f"Got clips for {[name for name, _ in clips]}."
        )


def require_clips(
    clips: Clips | None, clip: float | None, budget: PrivacyBudget
) -> None:
    """Require clips of single releases exactly where clients are clipped."""
    require_no_clips(clips, clip)
    # Otherwise a document would have two encodings.
    if (clips is None) != (clip is None):
        raise ConfigurationError(
            "Expected clips, which may be empty, exactly with unit='client'. "
            f"Got clips={clips!r} and unit={budget.unit!r} instead."
        )


def default_clip(n_records: int | None, n_clients: int | None) -> float | None:
    """Return the records of an average client, so no smaller one is clipped.

    ``None`` where a number is missing, which the constructor refuses.
    """
    if n_records is None or n_clients is None:
        return None
    return n_records / n_clients
