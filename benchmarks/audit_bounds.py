"""Lower bounds on mu and epsilon of a mechanism, from counted guesses of attacks.

An attacker guesses from a run's releases whether a record was in the data. The true
positive rate TPR is the fraction of runs with the record for which the guess is yes.
The false positive rate FPR is the same fraction of runs without it. A mu-GDP run allows
no guess with Phi^-1(TPR) - Phi^-1(FPR) above mu (Dong, Roth & Su 2022, definition 2.6).
An (epsilon, delta)-private run allows none with TPR above e^epsilon FPR + delta
(Kairouz, Oh & Viswanath 2015, theorem 2.1). With confidence limits in place of the
rates, both give lower bounds. The best guess compares the likelihoods of the releases
under both data sets (Neyman & Pearson). This module has the distributions of all noise
for it.

Bounds hold for any guess whose rule and threshold are fixed before the counted runs.
Runs with the record and runs without it need not be independent of each other.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, log_ndtr, ndtri

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


def clopper_pearson(
    successes: int, trials: int, confidence: float
) -> tuple[float, float]:
    """Return a lower and an upper limit of a probability, each of the given confidence (1934)."""
    # At 1 - 1e-10 the subtraction keeps six digits, which is plenty.
    missed = 1.0 - confidence

    def least(k: int) -> float:
        return float(betaincinv(k, trials - k + 1, missed)) if k else 0.0

    return least(successes), 1.0 - least(trials - successes)


def mu_lower_bound(
    true_positives: int,
    n_positive: int,
    false_positives: int,
    n_negative: int,
    confidence: float = 0.95,
) -> float:
    """Return a mu that a mechanism does not stay below: ``Phi^-1(TPR) - Phi^-1(FPR)``, at least 0.

    Positive are the runs with the record, negative those without. If the mechanism is
    mu-GDP, the bound exceeds mu with a probability of at most ``1 - confidence``, half
    of it for each rate.
    """
    tpr, fpr = _limits(
        true_positives, n_positive, false_positives, n_negative, confidence
    )
    if tpr == 0.0 or fpr == 1.0:
        return 0.0
    return max(0.0, float(ndtri(tpr) - ndtri(fpr)))


def epsilon_lower_bound(
    true_positives: int,
    n_positive: int,
    false_positives: int,
    n_negative: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return an epsilon that a mechanism does not stay below at a delta, as `mu_lower_bound`.

    For noise that is not Gaussian, where mu says nothing. Both guesses count: that the
    record is there, and that it is not.
    """
    tpr, fpr = _limits(
        true_positives, n_positive, false_positives, n_negative, confidence
    )
    guesses = ((tpr, fpr), (1.0 - fpr, 1.0 - tpr))
    bounds = [
        math.log((yes - delta) / no) for yes, no in guesses if yes > delta and no > 0.0
    ]
    return max([0.0, *bounds])


def _limits(
    true_positives: int,
    n_positive: int,
    false_positives: int,
    n_negative: int,
    confidence: float,
) -> tuple[float, float]:
    """Return the least TPR and the largest FPR."""
    each = (1.0 + confidence) / 2
    tpr, _ = clopper_pearson(true_positives, n_positive, each)
    _, fpr = clopper_pearson(false_positives, n_negative, each)
    return tpr, fpr


def _log_rounded_gaussian(noise: _Floats, scale: _Floats) -> _Floats:
    size = np.abs(noise)
    inner, outer = log_ndtr(-(size - 0.5) / scale), log_ndtr(-(size + 0.5) / scale)
    found: _Floats = inner + np.log(-np.expm1(outer - inner))
    return found


def _log_rounded_laplace(noise: _Floats, scale: _Floats) -> _Floats:
    size = np.abs(noise)
    with np.errstate(divide="ignore"):
        away = -size / scale + np.log(np.sinh(0.5 / scale))
        zero = np.log(-np.expm1(-0.5 / scale))
    return np.where(size == 0, zero, away)


def _log_discrete_gaussian(noise: _Floats, scale: _Floats) -> _Floats:
    # Up to the normalisation, which is the same wherever the mean is an integer.
    found: _Floats = -0.5 * (noise / scale) ** 2
    return found


_LAWS: dict[str, Callable[[_Floats, _Floats], _Floats]] = {
    "rounded-gaussian/1": _log_rounded_gaussian,
    "rounded-laplace/1": _log_rounded_laplace,
    "discrete-gaussian/2": _log_discrete_gaussian,
}


def log_likelihood_ratio(
    sampler: str, residual: _Integers, change: _Integers, scale: _Floats
) -> _Floats:
    """Return the log-likelihood (...) of noisy words with a record over that without it.

    ``sum_i log P(residual_i - change_i) - log P(residual_i)``, P the distribution of
    the noise on the integers, of a sampler in ``noise.SAMPLERS`` and of a scale (m,).
    The sum of shares of distributed noise is a discrete Gaussian up to 7e-17
    (docs/guarantees, Theorem 42). ``residual`` (..., m) are the noisy words
    less the exact ones without the record, which changes these by ``change`` (..., m).
    A word that it does not change adds nothing, and needs no noise.
    """
    words, moved, width = np.broadcast_arrays(residual, change, scale)
    used = moved != 0
    if (width[used] <= 0).any():
        raise ValueError("Expected scale positive where a word changes. Got 0 instead.")
    law, ratio = _LAWS[sampler], np.zeros(words.shape)
    before, shift = words[used].astype(np.float64), moved[used].astype(np.float64)
    ratio[used] = law(before - shift, width[used]) - law(before, width[used])
    total: _Floats = ratio.sum(axis=-1)
    return total
