"""IBM's diffprivlib, whose guarantee is purely epsilon. It is used where it is installed."""

import numpy as np

from baselines.method import Method, Problem
from flower_kmeans.arrays import FloatArray
from flower_kmeans.privacy import Release


def releases(problem: Problem) -> tuple[Release, ...]:
    """Return one release in place of all of them, by the library's own accounting."""
    scale = 1 / problem.epsilon
    return (Release("the whole run", "laplace", "l1", scale, ("run",)),)


def fit(
    records: FloatArray,
    n_clusters: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Return centroids within [-1, 1] in each column."""
    from diffprivlib.models import KMeans

    seed = int(rng.integers(2**31))
    model = KMeans(n_clusters, epsilon=epsilon, bounds=(-1.0, 1.0), random_state=seed)
    return np.asarray(model.fit(records).cluster_centers_)


DIFFPRIVLIB = Method("diffprivlib", fit, releases, "one party sees all records")
