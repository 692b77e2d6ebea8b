"""Mixtures that tests of SynopsisKMeans share."""

import numpy as np

from flower_kmeans.algorithms.synopsis_constants import MODEL_BITS
from flower_kmeans.algorithms.synopsis_mixture import Mixture

STEP = 2.0**-MODEL_BITS


def mixture_of(weights, means, scales):
    """Parts whose means are exact."""
    return Mixture(
        *(np.asarray(part, float) for part in (weights, means, scales)), 0.0 * means
    )


def random_mixture(m, p, seed=0):
    rng = np.random.default_rng(seed)
    shape = (m, p)
    means, scales = rng.uniform(-0.4, 0.4, shape), rng.uniform(0.01, 0.05, shape)
    return Mixture(rng.uniform(1, 30, m), means, scales, np.full(shape, 1e-4))
