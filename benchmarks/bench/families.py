"""Synthetic families of the papers, seeded."""

import numpy as np

from flower_kmeans.data.generators import (
    Generated,
    separated_clusters,
    shuffled,
    sizes_of,
)
from flower_kmeans.errors import ConfigurationError

# of separation in the Synth families, from overlapping to separated
SYNTH_DEGREES = (0.16, 0.26)
SYNTH_OUTLIERS = 100  # at most in a set of the Synth family
ABLATION_RECORDS = 2048
ABLATION_SPREAD = 0.3  # of the mean size of a cluster
G2_MEANS = (500.0, 600.0)
G2_RECORDS = 2048


def synth(
    n_clusters: int, n_features: int, rng: np.random.Generator | int
) -> Generated:
    """Return a set of FastLloyd's Synth family.

    With two columns and k up to 128 it is one of Synth-K. Sizes have the ratio
    1 : 2 : ... : k, and the degree of separation is uniform in `SYNTH_DEGREES`. Up to
    `SYNTH_OUTLIERS` outliers are added to 10,000 records.
    """
    rng = np.random.default_rng(rng)
    degree = rng.uniform(*SYNTH_DEGREES)
    n_outliers = int(rng.integers(SYNTH_OUTLIERS, endpoint=True))
    sizes = sizes_of(10_000, np.arange(1, n_clusters + 1))
    return separated_clusters(sizes, n_features, degree, rng, n_outliers)


def time_synth(
    n_records: int, n_clusters: int, n_features: int, rng: np.random.Generator | int
) -> Generated:
    """Return a set of FastLloyd's TimeSynth family: balanced clusters and no outliers.

    The paper names no degree of separation for them, so it is drawn as for `synth`.
    """
    rng = np.random.default_rng(rng)
    degree = rng.uniform(*SYNTH_DEGREES)
    return separated_clusters(
        sizes_of(n_records, np.ones(n_clusters)), n_features, degree, rng
    )


def ablation(
    n_clusters: int, n_features: int, degree: float, rng: np.random.Generator | int
) -> Generated:
    """Return a set of FastLloyd's appendix B, of about 2,048 records.

    Sizes of clusters are uniform within 0.3 of their mean, so the number of records
    varies, too.
    """
    rng = np.random.default_rng(rng)
    mean = ABLATION_RECORDS / n_clusters
    low = int(np.ceil((1 - ABLATION_SPREAD) * mean))
    high = int((1 + ABLATION_SPREAD) * mean)
    sizes = rng.integers(low, high, n_clusters, endpoint=True)
    return separated_clusters(sizes, n_features, degree, rng)


def g2(n_features: int, spread: float, rng: np.random.Generator | int) -> Generated:
    """Return two Gaussians of equal size, with means 500 and 600 in every column.

    They are drawn like the public G2 sets, but are not equal to them. Those have 1 to
    1,024 columns and a standard deviation (``spread``) of 10 to 100.
    """
    rng = np.random.default_rng(rng)
    if n_features < 1 or not spread > 0:
        raise ConfigurationError(
            f"Expected at least one column and a positive spread. Got {n_features} and {spread} "
            "instead."
        )
    labels = np.repeat([0, 1], G2_RECORDS // 2)
    centers = np.repeat(np.array(G2_MEANS)[:, None], n_features, axis=1)
    records = centers[labels] + spread * rng.normal(size=(G2_RECORDS, n_features))
    return shuffled(records, labels, centers, rng)
