"""The releases of FedDP-KMeans: their names, fractions of the budget, and mechanisms."""

import math
from collections.abc import Mapping
from typing import Any

from flower_kmeans.algorithms import lloyd
from flower_kmeans.algorithms.numerics.cost import COST_SHARE
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import ParameterKind

RELEASES = (
    *("projection", "weights", "lift-sums", "lift-counts"),
    *("lloyd-sums", "lloyd-counts", "spread", "cost"),
)
"""Names of all releases. A Lloyd release stands for all Lloyd rounds together."""

LAPLACE_RELEASES = ("weights", "lift-counts", "lloyd-counts", "spread", "cost")
"""Releases that may have Laplace noise: one record has the same norm in l1 and l2."""

_SHARES = {"projection": 0.30, "weights": 0.10, "spread": 0.02, "cost": COST_SHARE}
_STAGE_SHARE = 0.30  # fraction of the lift, and of all Lloyd rounds together


def default_shares(n_features: int, relative: bool) -> dict[str, float]:
    """Return the fraction of mu^2 of every release; that of a Lloyd release is for all rounds."""
    # The squared errors of a centroid from sums and from counts add up to
    # d D^2 / mu_S^2 + r^2 / mu_C^2, where r is the typical norm of the averaged vectors.
    # They are least for mu_S^2 : mu_C^2 = sqrt(d) D : r. As elsewhere, r is 2 rho D (Su et
    # al.), or half of the radius for relative sums (FastLloyd, section 5.5). For Laplace
    # noise the scale replaces the standard deviation.
    root = math.sqrt(n_features)
    shares = dict(_SHARES)
    for stage, norm in (
        ("lift", 2 * lloyd.RHO),
        ("lloyd", 0.5 if relative else 2 * lloyd.RHO),
    ):
        of_sums = root / (root + norm)
        shares[f"{stage}-sums"] = _STAGE_SHARE * of_sums
        shares[f"{stage}-counts"] = _STAGE_SHARE * (1 - of_sums)
    return shares


def laplace_releases(value: Any) -> tuple[str, ...]:
    """Return the releases with Laplace noise, sorted, from the option ``mechanisms``.

    Raises
    ------
    ConfigurationError
        If a mechanism or a release is unknown, or a release cannot have Laplace noise.
    """
    given = value
    if not isinstance(given, Mapping):
        given = dict.fromkeys(LAPLACE_RELEASES, value)
    for release, mechanism in given.items():
        if mechanism not in ("gaussian", "laplace"):
            raise ConfigurationError(
                f"Expected mechanisms 'gaussian' or 'laplace'. Got {mechanism!r} instead."
            )
        known = LAPLACE_RELEASES if mechanism == "laplace" else RELEASES
        if release not in known:
            raise ConfigurationError(
                f"Expected mechanisms of Laplace noise for releases in {list(LAPLACE_RELEASES)}. "
                f"Got {release!r} instead."
            )
    return tuple(sorted(name for name, each in given.items() if each == "laplace"))


def _check_laplace(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of releases with Laplace noise from a run document, checked."""
    are_known = isinstance(value, tuple) and all(
        each in LAPLACE_RELEASES for each in value
    )
    # Another order would be a second encoding of the same algorithm.
    if not are_known or value != tuple(sorted(set(value))):
        raise ConfigurationError("The releases with Laplace noise are not as expected.")
    return tuple(value)


def _read_laplace(config: Any) -> tuple[str, ...]:
    return _check_laplace(
        "laplace", tuple(config) if isinstance(config, list) else None
    )


LAPLACE = ParameterKind(_check_laplace, list, _read_laplace)
"""The declaration of the parameter ``laplace``."""
