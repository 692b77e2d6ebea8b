"""The code itself that `baselines.lsh` follows, from a checkout that the user fetched.

It needs absl-py. ``--reference DIR`` names the checkout of google/differential-privacy.
Its file ``learning/clustering/clustering_algorithm.py`` is imported from there.
"""

import importlib
import math
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from baselines.lsh import DEPTH
from baselines.method import Method, Problem, plan_of
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import BudgetError, ConfigurationError
from flower_kmeans.privacy import Release

# The code is given this much of epsilon first, and a step less until the project's
# accountant agrees. The two accountants round differently.
_STEP = 0.0005
_STEPS = 40


def dominating_cost(parameter: float) -> float:
    """Return the pure epsilon of a Laplace release that costs no less than a count's.

    A record changes a count by 1. With discrete Laplace noise the privacy loss is then
    the ``parameter`` or its negative. The trade-off curve is two lines from (0, 1) and
    (1, 0) that meet on the diagonal at 1 / (1 + e^parameter). That of Laplace noise of
    cost ``c`` is convex with the same ends, and crosses the diagonal at e^(-c/2) / 2.
    If this is not above the former point, the whole curve is not above the lines.
    """
    return 2 * math.log((1 + math.exp(parameter)) / 2)


def reference_method(checkout: Path) -> Method:
    """Return the method of a checkout.

    Raises
    ------
    ConfigurationError
        If the folder is no such checkout.
    """
    folder = checkout / "learning"
    if not (folder / "clustering" / "clustering_algorithm.py").is_file():
        raise ConfigurationError(
            "Expected a checkout of google/differential-privacy, with "
            f"learning/clustering/clustering_algorithm.py. Got {checkout} instead."
        )
    sys.path.insert(0, str(folder))
    algorithm: Any = importlib.import_module("clustering.clustering_algorithm")
    params: Any = importlib.import_module("clustering.clustering_params")
    calculator: Any = importlib.import_module("clustering.privacy_calculator")

    @lru_cache(maxsize=256)
    def releases_at(share: float, problem: Problem) -> tuple[Release, ...]:
        """Return the releases of the code where it is given a share of epsilon."""
        given = params.DifferentialPrivacyParam(share * problem.epsilon, problem.delta)
        multipliers = params.PrivacyCalculatorMultiplier()
        noise = calculator.PrivacyCalculator(given, 1.0, DEPTH, multipliers)
        cost = dominating_cost(noise.count_privacy_param.dlaplace_param)
        scale = noise.average_privacy_param.gaussian_standard_deviation
        counts = Release("counts", "laplace", "l1", 1 / cost, ("counts",))
        sums = Release("sums of leaves", "gaussian", "l2", scale, ("sums",))
        return (counts,) * (DEPTH + 1) + (sums,)

    @lru_cache(maxsize=256)
    def share_of(problem: Problem) -> float:
        """Return the largest share of epsilon that the project's accountant accepts."""
        for step in range(_STEPS):
            share = 1 - step * _STEP
            plan = plan_of(releases_at(share, problem), problem)
            if plan.epsilon() <= problem.epsilon:
                return share
        raise BudgetError(
            f"Expected noise of the code within the budget at {1 - _STEPS * _STEP:g} of "
            "epsilon. Got more instead."
        )

    def releases(problem: Problem) -> tuple[Release, ...]:
        return releases_at(share_of(problem), problem)

    def fit(
        records: FloatArray,
        n_clusters: int,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        n, d = records.shape
        share = share_of(Problem(n, d, n_clusters, epsilon, delta))
        # The code draws from NumPy's global generator.
        np.random.seed(rng.integers(2**31))  # noqa: NPY002
        given = params.DifferentialPrivacyParam(share * epsilon, delta)
        data = params.Data(records, 1.0)
        found = algorithm.private_lsh_clustering(n_clusters, data, given)
        return np.asarray(found.centers)

    return Method(
        "DP-LSH, the code itself", fit, releases, "one party sees all records"
    )
