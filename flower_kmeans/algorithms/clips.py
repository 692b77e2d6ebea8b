"""Clips for client-level privacy: how much of one client counts, and checks of the numbers."""

from dataclasses import dataclass

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Release

Clips = tuple[tuple[str, float], ...]
"""Clips of single releases by name, sorted."""


@dataclass(frozen=True)
class Clipping:
    """Limits of the part of one client in each release (docs/guarantees, Theorem 34)."""

    clip: float | None = None
    """How many records' worth of one client count; ``None`` if clients are not protected."""
    own: Clips = ()
    """Clips of single releases, in place of ``clip``."""
    is_joint: bool = False
    """Whether all releases of a round are shortened by the least factor that one of them needs."""
    first_means: int | None = None
    """First round in which clients add means in place of sums; ``None`` if they never do."""
    last_means: int | None = None
    """Last such round; ``None`` if it is the last of the run."""

    def of(self, release: Release) -> float:
        """Return the clip of a release, in records; 1 without clipping."""
        if self.clip is None:
            return 1.0
        return dict(self.own).get(release.name, self.clip)

    def adds_means(self, round_number: int) -> bool:
        """Return whether clients add means in a round."""
        if self.first_means is None:
            return False
        has_begun = round_number >= self.first_means
        is_over = self.last_means is not None and round_number > self.last_means
        return has_begun and not is_over


def require_clip(
    budget: PrivacyBudget, n_clients: int | None, clip: float | None
) -> None:
    """Require a number of clients if clients are protected; otherwise no number and no clip.

    The ranges of both have been checked before.
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
    """Require no clips of single releases if clients are not clipped."""
    if clips and clip is None:
        raise ConfigurationError(
            "Expected clips=None unless the budget is private with unit='client'. "
            f"Got clips for {[name for name, _ in clips]}."
        )


def require_clips(
    clips: Clips | None, clip: float | None, budget: PrivacyBudget
) -> None:
    """Require clips of single releases, which may be empty, exactly if clients are clipped."""
    require_no_clips(clips, clip)
    # An algorithm must not have two encodings in a document.
    if (clips is None) != (clip is None):
        raise ConfigurationError(
            "Expected clips, which may be empty, exactly with unit='client'. "
            f"Got clips={clips!r} and unit={budget.unit!r} instead."
        )


def default_clip(n_records: int | None, n_clients: int | None) -> float | None:
    """Return the number of records of an average client: no smaller client is clipped.

    ``None`` if a number is missing; the constructor then raises.
    """
    if n_records is None or n_clients is None:
        return None
    return n_records / n_clients


def quarter_clip(n_records: int | None, n_clients: int | None) -> float:
    """Return a fourth of the records of an average client, the clip of rounds beside others.

    It shortens most clients. That loses size, and not the place or the ratio of what
    they add, and the rule needs no sizes. It is 1 if a number is missing.
    """
    average = default_clip(n_records, n_clients)
    return 1.0 if average is None else average / 4
