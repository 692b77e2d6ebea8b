"""What FedDP-KMeans releases in each round, and how the privacy is shared among its releases.

A share is a part of mu^2 before all noise is scaled to the budget, so only ratios matter. For
Laplace noise the scale ``1 / sqrt(share)`` takes the place of the standard deviation
(docs/guarantees.md, "FedDP-KMeans").
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from flower_kmeans.algorithms.cost import COST, COST_SHARE
from flower_kmeans.algorithms.lloyd import COUNTS, RHO, SUMS
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.release import Mechanism, Norm, Release

PROJECTION, WEIGHTS, LIFT, N_INITIAL = 1, 2, 3, 3

MOMENTS = "moments"
SPREAD = "spread"

RELEASES = (
    "projection",
    "weights",
    "lift-sums",
    "lift-counts",
    "lloyd-sums",
    "lloyd-counts",
    "spread",
    "cost",
)
"""Names of all releases; those of the Lloyd rounds stand for all of these rounds together."""

LAPLACE_RELEASES = ("weights", "lift-counts", "lloyd-counts", "spread", "cost")
"""Releases that may carry Laplace noise: of a record, they have the same norm in l1 and l2."""

_STAGES = {
    "projection": 0.30,
    "weights": 0.10,
    "lift": 0.30,
    "lloyd": 0.30,
    "spread": 0.02,
    "cost": COST_SHARE,
}


def default_shares(n_features: int, relative: bool) -> dict[str, float]:
    """Return the share of every release, those of the Lloyd rounds for all rounds together.

    Within a round, the errors of a centroid from sums and from counts add up to
    ``d D^2 / mu_S^2 + r^2 / mu_C^2``, r the typical norm of what is averaged, which is least for
    ``mu_S^2 : mu_C^2 = sqrt(d) D : r``. As elsewhere r is ``2 rho D`` (Su et al.), and half of the
    radius where sums are relative (FastLloyd, section 5.5).
    """
    root = math.sqrt(n_features)
    absolute = root / (root + 2 * RHO)
    shares = {name: _STAGES[name] for name in ("projection", "weights", "spread", "cost")}
    for stage, part in (
        ("lift", absolute),
        ("lloyd", root / (root + 0.5) if relative else absolute),
    ):
        shares[f"{stage}-sums"] = _STAGES[stage] * part
        shares[f"{stage}-counts"] = _STAGES[stage] * (1 - part)
    return shares


def releases_of(
    round_number: int,
    n_lloyd_rounds: int,
    shares: Mapping[str, float],
    laplace: Collection[str],
    *,
    spread: bool,
    cost: bool,
) -> tuple[Release, ...]:
    """Return a round's releases with noise multipliers relative to those of other rounds.

    Parameters
    ----------
    round_number : int
        From 1.
    n_lloyd_rounds : int
        T, after the three rounds of the initialisation.
    shares : mapping of str to float
        Of every release.
    laplace : collection of str
        Releases with Laplace noise.
    spread : bool
        Whether the first Lloyd round has a spread.
    cost : bool
        Whether the last round has a cost.
    """

    def release(name: str, block: str, parts: int = 1) -> Release:
        mechanism: Mechanism = "laplace" if name in laplace else "gaussian"
        norm: Norm = "l1" if mechanism == "laplace" else "l2"
        return Release(name, mechanism, norm, 1 / math.sqrt(shares[name] / parts), (block,))

    if round_number == PROJECTION:
        return (release("projection", MOMENTS),)
    if round_number == WEIGHTS:
        return (release("weights", COUNTS),)
    stage, parts = ("lift", 1) if round_number == LIFT else ("lloyd", n_lloyd_rounds)
    found = [release(f"{stage}-sums", SUMS, parts), release(f"{stage}-counts", COUNTS, parts)]
    if spread and round_number == N_INITIAL + 1:
        found.append(release("spread", SPREAD))
    if cost and round_number == N_INITIAL + n_lloyd_rounds:
        found.append(release("cost", COST))
    return tuple(found)


def per_release(
    name: str, values: Any, allowed: Collection[str] = RELEASES
) -> tuple[tuple[str, float], ...]:
    """Return a mapping from releases to positive numbers as sorted pairs, which can be hashed.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If it is no mapping, names another release, or a number is not positive and finite.
    """
    if values is None:
        return ()
    if not isinstance(values, Mapping):
        raise ConfigurationTypeError(
            f"{name} must be a mapping from releases to numbers, got {type(values).__name__}."
        )
    for release, value in values.items():
        if not isinstance(release, str) or release not in allowed:
            raise ConfigurationError(
                f"Expected {name} for releases in {list(allowed)}. Got {release!r} instead."
            )
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ConfigurationTypeError(
                f"{name} must hold numbers, got {type(value).__name__} for {release!r}."
            )
        if not 1e-12 <= value <= 1e12:
            raise ConfigurationError(
                f"Expected {name} between 1e-12 and 1e12. Got {value!r} for {release!r} instead."
            )
    return tuple(sorted((release, float(value)) for release, value in values.items()))


def laplace_releases(value: Any) -> tuple[str, ...]:
    """Return the releases with Laplace noise, sorted.

    Parameters
    ----------
    value : str or mapping of str to str
        ``"gaussian"`` or ``"laplace"`` for all of `LAPLACE_RELEASES`, or one of them for each
        release that is named; the others are Gaussian.

    Raises
    ------
    ConfigurationError
        If a mechanism is unknown, or a release cannot carry Laplace noise.
    """
    given = value if isinstance(value, Mapping) else dict.fromkeys(LAPLACE_RELEASES, value)
    for release, mechanism in given.items():
        if mechanism not in ("gaussian", "laplace"):
            raise ConfigurationError(
                f"Expected mechanisms 'gaussian' or 'laplace'. Got {mechanism!r} instead."
            )
        if release not in RELEASES or (mechanism == "laplace" and release not in LAPLACE_RELEASES):
            raise ConfigurationError(
                f"Expected mechanisms of Laplace noise for releases in {list(LAPLACE_RELEASES)}. "
                f"Got {release!r} instead."
            )
    return tuple(sorted(release for release, mechanism in given.items() if mechanism == "laplace"))
