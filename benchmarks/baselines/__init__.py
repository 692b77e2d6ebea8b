"""Private clusterings to compare: a method's function, its releases, and who sees what.

A method is registered in ten lines (docs/tables/field.md)::

    from baselines import Method, Problem
    from flower_kmeans.privacy import Release
    from flower_kmeans.privacy.calibration import mu_of_budget

    def releases(problem: Problem):
        scale = 1 / mu_of_budget(problem.epsilon, problem.delta)
        return (Release("sum of all records", "gaussian", "l2", scale, ("sum",)),)

    def fit(records, n_clusters, epsilon, delta, rng):
        scale = 1 / mu_of_budget(epsilon, delta)
        noise = rng.normal(0, scale, records.shape[1])
        return (records.sum(axis=0) + noise)[None] / len(records)

    ONE_MEAN = Method("one mean", fit, releases, "one party sees all records")

All of them draw floating-point noise from a seeded generator. That is for measurements
only: no record is safe behind it.
"""

from baselines.method import Method as Method
from baselines.method import Problem as Problem
from baselines.method import checked_plan as checked_plan
from baselines.method import loaded as loaded
from baselines.registry import METHODS as METHODS
