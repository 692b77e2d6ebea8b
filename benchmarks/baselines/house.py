"""The strategies of this library as methods of the field's benchmark."""

import numpy as np
from direct import final_state

from baselines.method import Method, Problem
from flower_kmeans import Ball
from flower_kmeans.algorithms import (
    Algorithm,
    FastLloydAlgorithm,
    GLloydAlgorithm,
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.arrays import FloatArray
from flower_kmeans.privacy import Release

# Records that are divided by the largest length may be longer than 1 by a rounding.
RADIUS = 1 + 2.0**-40

_SEES = "nobody sees a record; the server sees noisy sums, or nothing"
# PE-means' paper recommends HDPE-means beyond.
_PROJECTED = 16


def house_method(
    name: str,
    kind: type[Algorithm],
    min_features: int = 1,
    max_features: int = 1_000_000,
) -> Method:
    """Return a strategy's algorithm as a method, with the noise of ``trusted-server``.

    The domain is a ball of `RADIUS` around 0. Noise is the library's, from the
    operating system. The generator draws the seed of public randomness only.
    """

    def algorithm_of(problem: Problem, seed: int) -> Algorithm:
        return kind.planned(
            problem.n_clusters,
            Ball(RADIUS, np.zeros(problem.n_features)),
            problem.budget,
            n_records=problem.n_records,
            seed=seed,
        )

    def releases(problem: Problem) -> tuple[Release, ...]:
        return algorithm_of(problem, 0).plan().releases

    def fit(
        records: FloatArray,
        n_clusters: int,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        n, d = records.shape
        seed = int(rng.integers(2**31))
        algorithm = algorithm_of(Problem(n, d, n_clusters, epsilon, delta), seed)
        counted = algorithm.domain.counted(records)
        centroids = algorithm.centroids(final_state(algorithm, counted, seed))
        if centroids is None:
            raise RuntimeError(f"Expected centroids of {name}. Got none.")
        return centroids

    return Method(name, fit, releases, _SEES, min_features, max_features)


HOUSE = (
    house_method("SynopsisKMeans", SynopsisAlgorithm),
    house_method("FastLloyd", FastLloydAlgorithm),
    house_method("PEMeans", PEMeansAlgorithm, max_features=_PROJECTED),
    house_method("HDPEMeans", HDPEMeansAlgorithm, min_features=_PROJECTED + 1),
    house_method("GLloyd", GLloydAlgorithm),
    house_method("SuLloyd", SuLloydAlgorithm),
)
