"""Clustering of a private coreset whose points are leaves of a tree of random hyperplanes.

This is the recipe of the clustering library in google/differential-privacy, folder
``learning/clustering``, at commit b5b0286e (2026-08-06), with its defaults, written
anew (after Chang, Ghazi, Kumar & Manurangsi 2021, "Locally Private k-Means in One
Round"):

1. 20 random hyperplanes through the origin. A node of the tree at depth ``i`` holds
   the records on one side each of the first ``i`` hyperplanes.
2. The count of each node with Laplace noise. A node of at least ``3 m`` records has
   children. Children of fewer than ``m`` records are left out. ``m`` is the number of
   records whose mean has noise of a tenth of the radius, but at most N / 2 k by the
   noisy count of all records.
3. The sum of each leaf with Gaussian noise. Noisy means and noisy counts are the points
   and weights of the coreset. Means are clipped to the ball.
4. k-means on the coreset, which needs no noise.

The scale of a count's noise is 20 times the multiplier of a sum's. Two things differ:
k-means has ten starts instead of one, and counts have rounded Laplace noise instead of
discrete Laplace noise, because the project's accountant knows the former.
"""

import math
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from baselines.method import Problem
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.privacy import Release, calibrate

DEPTH = 20
COUNT_MULTIPLIER = 20.0
"""The noise of a count over that of a sum, by the library's default."""

_STARTS = 10


class Node(NamedTuple):
    """The records of a node, and its size: their noisy count."""

    rows: IntArray
    size: int


def releases(problem: Problem) -> tuple[Release, ...]:
    """Return the counts of each depth of the tree, and the sums of its leaves."""
    rounds = [
        [
            Release(
                f"counts at depth {depth}",
                "laplace",
                "l1",
                COUNT_MULTIPLIER,
                ("counts",),
            )
        ]
        for depth in range(DEPTH + 1)
    ]
    rounds.append([Release("sums of leaves", "gaussian", "l2", 1.0, ("sums",))])
    return calibrate(problem.budget, rounds, problem.n_records).releases


def fit(
    records: FloatArray,
    n_clusters: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Return centroids; fewer than k if the tree has fewer leaves."""
    n, d = records.shape
    planned = releases(Problem(n, d, n_clusters, epsilon, delta))
    count_scale = planned[0].noise_multiplier
    sum_scale = planned[-1].noise_multiplier
    points = clipped(records)
    leaves = leaves_of(points, n_clusters, count_scale, sum_scale, rng)
    means = means_of(points, leaves, sum_scale, rng)
    counts = np.array([leaf.size for leaf in leaves])
    n_found = min(n_clusters, len(leaves))
    seed = int(rng.integers(2**31))
    model = KMeans(n_found, n_init=_STARTS, random_state=seed)
    model.fit(means, sample_weight=counts)
    return np.asarray(model.cluster_centers_)


def clipped(points: FloatArray) -> FloatArray:
    """Return points, (n, d), with longer ones shortened to length 1."""
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points / np.maximum(lengths, 1.0))


def leaves_of(
    points: FloatArray,
    n_clusters: int,
    count_scale: float,
    sum_scale: float,
    rng: np.random.Generator,
) -> list[Node]:
    """Return the leaves of a tree over points, (n, d), at least one.

    ``count_scale`` and ``sum_scale`` are the scales of the noise of counts and of sums.
    """
    n, d = points.shape
    planes = rng.normal(size=(DEPTH, d))

    def counted(rows: IntArray) -> Node:
        noise = rng.laplace(0, count_scale)
        return Node(rows, len(rows) + round(noise))

    root = counted(np.arange(n))
    root = Node(root.rows, max(1, root.size))
    enough = int(10 * math.sqrt(d) * sum_scale)
    fewest = max(1, min(enough, root.size // (2 * n_clusters)))
    leaves: list[Node] = []
    level = [root]
    for plane in planes:
        below: list[Node] = []
        for node in level:
            children: list[Node] = []
            if node.size >= 3 * fewest:
                is_above = points[node.rows] @ plane >= 0
                both = (counted(node.rows[is_above]), counted(node.rows[~is_above]))
                children = [child for child in both if child.size >= fewest]
            if children:
                below += children
            else:
                leaves.append(node)
        level = below
    return leaves + level


def means_of(
    points: FloatArray, leaves: list[Node], sum_scale: float, rng: np.random.Generator
) -> FloatArray:
    """Return the noisy mean of each leaf, in the ball."""
    sums = np.array([points[leaf.rows].sum(axis=0) for leaf in leaves])
    sums += rng.normal(0, sum_scale, sums.shape)
    sizes = np.array([leaf.size for leaf in leaves])
    return clipped(sums / sizes[:, None])
