"""Client-level privacy: how much one client may count, and the clipping that holds it to that.

A client's part of a release, divided by the release's units, is scaled to norm 1 at most and
truncated toward zero. Units are those of the noise: ``clip`` times those of one record. So one
client, with all of its records, changes a release by 1 at most (docs/guarantees.md, "Client-level
privacy").
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Norm

# Operations whose rounding the margin covers beside the additions of a sum.
_ROUNDINGS = 16


def client_clip(
    budget: PrivacyBudget, n_records: int | None, n_clients: int | None, clip: Any = None
) -> float | None:
    """Return how many records' worth of one client count in each release.

    Every algorithm with a ``clip`` parameter passes it through here once, when it is constructed.

    Parameters
    ----------
    budget : PrivacyBudget
    n_records, n_clients : int or None
        Public planning figures. Both are needed with a private budget of ``unit="client"``;
        ``n_clients`` is for no other.
    clip : float or None
        What the user gave. Default: ``n_records / n_clients``.

    Returns
    -------
    float or None
        ``None`` unless the budget is private and its unit is the client.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If ``clip`` or ``n_clients`` is given where nothing is clipped, is out of range, or a public
        figure is missing.
    """
    if not budget.protects_clients:
        for name, value in (("clip", clip), ("n_clients", n_clients)):
            if value is not None:
                raise ConfigurationError(
                    f"Expected {name}=None unless the budget is private with unit='client'. "
                    f"Got {name}={value!r}, unit={budget.unit!r}, epsilon={budget.epsilon} instead."
                )
        return None
    if n_clients is None:
        raise ConfigurationError(
            "n_clients is required with unit='client': a public figure for the number of clients, "
            "from which delta and the default clip follow. Got None."
        )
    if isinstance(n_clients, bool) or not isinstance(n_clients, int) or n_clients < 1:
        raise ConfigurationError(
            f"Expected n_clients as an integer >= 1. Got {n_clients!r} instead."
        )
    if clip is None:
        if n_records is None:
            raise ConfigurationError(
                "n_records or clip is required with unit='client': n_records / n_clients records' "
                "worth of a client count by default. Got neither."
            )
        return n_records / n_clients
    if isinstance(clip, bool) or not isinstance(clip, int | float | np.integer | np.floating):
        raise ConfigurationTypeError(f"clip must be a number, got {type(clip).__name__}.")
    if not 0 < clip < math.inf:
        raise ConfigurationError(f"Expected clip positive and finite. Got {clip!r} instead.")
    return float(clip)


def clip_to_units(
    values: NDArray[np.int64], units: NDArray[np.float64], norm: Norm
) -> NDArray[np.int64]:
    """Return integers ``w`` with ``||w / units|| <= 1`` in real arithmetic, not only in floats.

    ``w = values * min(1, 1 / ||values / units||)``, truncated toward zero. Where rounding leaves
    open whether the norm exceeds 1, it is taken to be larger: by ``m + 16`` times 2^-52 for ``m``
    values, which is more than all roundings below add up to, in whatever order a sum is made.

    Parameters
    ----------
    values : ndarray of shape (m,), int64
        One client's part of a release.
    units : ndarray of shape (m,), float64
        Of the release's noise, finite. A value of unit 0, which nobody can change and whose noise
        is 0, becomes 0.
    norm : {"l1", "l2"}
        Of the release.

    Returns
    -------
    ndarray of shape (m,), int64
        Every value between 0 and that of ``values``; the values themselves if their norm is at
        most 1 beyond doubt.
    """
    return shortened(values, units, clip_factor(values, units, norm))


def clip_factor(values: NDArray[np.int64], units: NDArray[np.float64], norm: Norm) -> float:
    """Return by how much `clip_to_units` multiplies values: at most 1, and 1 if nothing is clipped.

    0 where units are so small that no integer but 0 fits.
    """
    sizes = _sizes(values)
    used = units > 0
    with np.errstate(over="ignore", under="ignore"):
        ratios = np.divide(sizes, units, out=np.zeros_like(sizes), where=used)
        largest = float(ratios.max(initial=0.0))
        if largest == math.inf:
            return 0.0
        if largest > 0:
            # Relative to the largest, so that no square overflows.
            parts = ratios / largest
            total = np.sqrt(np.sum(parts * parts)) if norm == "l2" else np.sum(parts)
        else:
            total = 0.0
        margin = (values.size + _ROUNDINGS) * 2.0**-52
        size = largest * float(total) * (1.0 + margin)
    return 1.0 if size <= 1.0 else (1.0 - margin) / size


def move_of_a_record(
    units: NDArray[np.float64], norm: Norm, step: float, shared: float | None = None
) -> float:
    """Return by how much one record of a client at most moves a release after clipping.

    In units of the noise (docs/guarantees.md, "Client-level privacy"). Clipped by itself in l2, a
    release moves no more than before, since that is a projection. Else the factor changes too,
    which adds as much as the release that sets it can move.

    Parameters
    ----------
    units : ndarray of shape (m,), float64
        Of the release's noise.
    norm : {"l1", "l2"}
    step : float
        By how much one record moves the release before clipping: the reciprocal of its clip.
    shared : float, optional
        The largest step among the releases that one factor shortens together; ``None`` where the
        release has a separate factor.

    Returns
    -------
    float
        At most 2, the way from one end of the clip to the other.
    """
    move = step
    if shared is not None:
        move += shared
    elif norm == "l1":
        move += step
    # Truncation moves every word by less than one step of the grid, and the factor itself is
    # within four margins of the exact one.
    with np.errstate(over="ignore"):
        grid = 1.0 / units[units > 0]
        truncated = math.sqrt(float(np.sum(grid * grid))) if norm == "l2" else float(np.sum(grid))
    margin = (units.size + _ROUNDINGS) * 2.0**-52
    return min(2.0, (move + truncated + 8.0 * margin) * (1.0 + margin))


def shortened(
    values: NDArray[np.int64], units: NDArray[np.float64], factor: float
) -> NDArray[np.int64]:
    """Return values times a factor of at most 1, truncated toward zero; 0 where the unit is 0.

    With a smaller factor no value is larger, so a bound that one factor keeps holds for all below.
    """
    used = units > 0
    if factor == 1.0:
        return np.where(used, values, 0)
    clipped = np.where(used, np.floor(_sizes(values) * factor), 0.0).astype(np.int64)
    return np.where(values < 0, -clipped, clipped)


def _sizes(values: NDArray[np.int64]) -> NDArray[np.float64]:
    # Not np.abs of integers: the least int64 has no absolute value among them.
    return np.abs(values.astype(np.float64))
