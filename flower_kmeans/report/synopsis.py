"""The releases of `SynopsisKMeans` as a mixture, for clusterings of any k.

Post-processing of noisy sums that the run's budget covers (docs/guarantees,
Theorem 22).
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms import synopsis_choice as choice
from flower_kmeans.algorithms import synopsis_mixture as model
from flower_kmeans.algorithms.released import CONFIDENCE, ReleasedMixture
from flower_kmeans.algorithms.synopsis_constants import MODEL_BITS
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain
from flower_kmeans.data.table_domain import domain_arrays, domain_of
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.files import open_private
from flower_kmeans.parameters import integer, require_type
from flower_kmeans.report.clustering import assigned, centroid_table, in_order
from flower_kmeans.report.names import cluster_names
from flower_kmeans.templates import html_summary

# where commands and apps keep one, beside a run's other files
FILE_NAME = "synopsis.npz"
FORMAT = "flower-kmeans synopsis"
VERSION = 1
# parts: distances of all pairs of leaves take half a gigabyte then
MOST_IN_TREE = 2_000
# into which parts are divided, so that Ward's method knows their weights
_LEAVES = 2_000
_MOST_SAMPLES = 10**9
# of weights after a run: k-means works on a grid of `MODEL_BITS`, so a column with less
# weight would have too few steps
_MOST_RATIO = 1_000


@dataclass(frozen=True, eq=False, repr=False)
class SynopsisClustering:
    """Clusters of a synopsis, in the user's units."""

    centroids: FloatArray  # (k, d)
    counts: FloatArray  # (k,), noisy records of the parts that are nearest to each
    domain: Domain

    def __repr__(self) -> str:
        k, d = self.centroids.shape
        return f"SynopsisClustering(n_clusters={k}, n_features={d})"

    def _repr_html_(self) -> str:
        table = centroid_table(
            self.centroids, self.counts, self.domain, names=self.names
        )
        title = f"{len(self.centroids)} clusters of a synopsis"
        return html_summary(title, {}, [table])

    @property
    def names(self) -> tuple[str, ...]:
        """A short, unique name for each cluster in words, as `Clustering.names`."""
        return cluster_names(self.centroids, self.counts, self.domain)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each record (n,), as `Clustering.predict`."""
        return assigned(X, self.centroids, self.domain)


class Elbow(NamedTuple):
    """The cost of a synopsis' clusterings by their number of clusters.

    A cost is the mean squared distance of a record to the centroid of its part of the
    synopsis, in squares of `Synopsis.cost_unit`, else of the scaled domain's unit. On a
    `Sphere` it is that to the mean within the unit ball, which is no farther than its
    direction.
    """

    n_clusters: NDArray[np.int64]  # (n,)
    costs: FloatArray  # (n,)
    standard_errors: FloatArray  # (n,), by the noise in the last round of the synopsis
    # (n,), costs over the largest variance in one direction around centroids
    dimensions: FloatArray
    # the largest number that may be suggested, if there is a smaller one
    most_suggested: int

    @property
    def interval(self) -> FloatArray:
        """Least and largest cost for each number of clusters, (n, 2), from 0 on.

        Each holds, with a probability of about 0.95, the cost of parts and centroids
        that do not depend on the noise. Their noise is the same, so differences of
        costs are more certain.

        Parts and k-means fit the noise as well, and records far from their part are
        shortened. So the records' own cost is often larger than the interval: more so
        with outliers, many clusters, few columns and few records in a part. With many
        columns it may be smaller, as records leave their part for a nearer centroid.
        docs/tables/choose-k.md has by how much.
        """
        deviations = -NormalDist().inv_cdf((1 - CONFIDENCE) / 2)
        margin = deviations * self.standard_errors
        ends = np.stack([self.costs - margin, self.costs + margin], axis=1)
        return np.maximum(ends, 0.0)

    @property
    def gaps(self) -> FloatArray:
        """Drop of each cost's logarithm below that of records without clusters, (n,).

        Relative to the first; numbers of clusters must ascend.
        """
        return choice.gaps(self.n_clusters, self.costs, self.dimensions)

    @property
    def suggested(self) -> int:
        """The smallest number of clusters whose gap is about the largest one.

        About is half a standard error. Clusters have at least three parts on average,
        and at least 16 times as many records as a part has noise: with fewer, noise
        looks like clusters. docs/tables/choose-k.md states how often it is right.
        """
        if len(self.n_clusters) == 0:
            raise ConfigurationError(
                "Expected an elbow with a number of clusters. Got none."
            )
        order = np.argsort(self.n_clusters, kind="stable")
        values = self.costs, self.standard_errors, self.dimensions
        costs = choice.ClusteringCosts(*(each[order] for each in values))
        return choice.suggested(self.n_clusters[order], costs, self.most_suggested)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        values: dict[str, Any] = {}
        for name, each in self._asdict().items():
            values[name] = np.asarray(each).tolist()
        values["interval"] = self.interval.tolist()
        values["suggested"] = self.suggested
        return values


@dataclass(frozen=True, eq=False, repr=False)
class Synopsis:
    """A mixture of Gaussians that stands for the records.

    All of it is made from values that the run released: nothing here costs privacy.
    Parts of the mixture may reach beyond the domain. The user's units of a
    `TableDomain` are those of its box.
    """

    mixture: ReleasedMixture
    domain: Domain

    def __repr__(self) -> str:
        return f"Synopsis(n_parts={len(self.weights)}, n_features={self.domain.n_features})"

    def _repr_html_(self) -> str:
        table = centroid_table(self.means, self.weights, self.domain, "part")
        notes: list[str] = []
        if not any(self.mixture.noise):
            notes.append("NOT PRIVATE: no noise was added.")
        title = f"Synopsis of {len(self.weights)} parts"
        return html_summary(title, {}, [table], notes)

    @property
    def weights(self) -> FloatArray:
        """Noisy records of each part, (m,)."""
        return self.mixture.weights

    @property
    def means(self) -> FloatArray:
        """Means of the parts in the user's units, (m, d)."""
        return self.domain.from_unit(self._lifted(self.mixture.means))

    @property
    def covariances(self) -> FloatArray:
        """Covariances of the parts in the user's units, (m, d, d), made on request."""
        return self.covariances_along(np.diag(self.domain.unit))

    def covariances_along(self, directions: FloatArray) -> FloatArray:
        """Return covariances (m, n, n) of the parts along scaled directions (d, n)."""
        found = self.mixture
        along = found.directions.T @ directions
        squares = found.scales**2
        inside = np.einsum("pa,mp,pb->mab", along, squares, along, optimize=True)
        beside = directions.T @ directions - along.T @ along
        return np.asarray(inside + found.rest * beside)

    @property
    def spreads(self) -> FloatArray:
        """Standard deviations of columns in the user's units, (d,)."""
        # Scaled, because squares of the user's units may be no floats.
        found = self.mixture
        shares = found.weights / found.weights.sum()
        means = self._lifted(found.means)
        mean = shares @ means
        variances = np.square(found.scales) @ np.square(found.directions).T
        # In the directions that are left out.
        beside = 1 - np.square(found.directions).sum(axis=1)
        variances += found.rest * np.maximum(beside, 0.0)
        between = shares @ np.square(means - mean)
        spreads: FloatArray = np.sqrt(shares @ variances + between)
        return spreads * self.domain.unit

    @property
    def cost_unit(self) -> float | None:
        """User's units in one of `elbow`; ``None`` for costs of the scaled domain."""
        unit = self.domain.common_unit
        # Costs are squares, and a domain may be so small or large that these are no
        # floats.
        if unit is not None and 1e-140 < unit < 1e140:
            return unit
        return None

    # ------------------------------------------------------------------ clusters

    def kmeans(
        self,
        n_clusters: int,
        seed: int = 0,
        weights: Mapping[str, float] | None = None,
    ) -> SynopsisClustering:
        """Return k-means of the mixture, also with other weights of columns.

        Parameters
        ----------
        n_clusters : int
            At most the number of parts.
        seed : int
            Of the starts.
        weights : mapping from str to float, optional
            Weights of columns by name, such as ``{"ward": 0.1}``; others keep that of
            the run. Names are those of `Box.factors`: of declared columns, or of the
            box's. Nothing new is released, so this costs no privacy. The parts of the
            mixture were made for the run's weights: see docs/tables/weights.md. Weights
            differ by a factor of 1,000 at most.

        Raises
        ------
        ConfigurationError
            If there are fewer parts than clusters, a column is unknown, or weights
            differ by more.
        """
        k = self._number(n_clusters)
        number = _checked_seed(seed)
        domain = self.domain
        mixture = self._model
        directions = self.mixture.directions
        if weights is not None:
            domain = _weighted(self.domain, weights)
            mixture, directions = self._model_in(domain)
        found = choice.selection(mixture, k, number)
        centers = found.centers * _longest(domain)
        lifted = domain.from_unit(centers @ directions.T)
        points = domain.place(lifted)
        centroids = domain.from_unit(points)
        return SynopsisClustering(centroids, found.counts, domain)

    def elbow(self, n_clusters: Iterable[int], seed: int = 0) -> Elbow:
        """Return the costs of clusterings with these numbers of clusters.

        Parameters
        ----------
        n_clusters : iterable of int
            Such as ``range(1, 13)``; at most the number of parts.
        seed : int
            Of the starts.
        """
        require_type("n_clusters", n_clusters, Iterable, "numbers of clusters")
        numbers = [self._number(k) for k in n_clusters]
        found = self.mixture
        longest = _longest(self.domain)
        n_beside = self.domain.n_features - found.means.shape[1]
        count, total, slack = found.noise
        selections = choice.selections(self._model, numbers, _checked_seed(seed))
        noise = model.CellNoise(sums=total, counts=count, slacks=slack)
        costs, errors, dimensions = choice.costs_of(
            self._model,
            selections,
            found.radii / longest,
            noise,
            found.rest / longest**2,
            n_beside,
        )
        factor = (longest * (self.cost_unit or 1.0)) ** 2
        counted = np.array(numbers, np.int64)
        most = choice.most_suggested(found.weights, count)
        return Elbow(counted, costs * factor, errors * factor, dimensions, most)

    def hierarchy(self) -> FloatArray:
        """Return Ward's hierarchy of the parts, (m - 1, 4), as for SciPy's functions.

        Parts are as heavy as their weights. Merging at height h adds h^2 / 2 to the sum
        of squared distances, in the units of `elbow`, up to a part in a thousand of the
        records.

        Raises
        ------
        ConfigurationError
            If there are more than 2,000 parts: all pairs of them would not fit into
            memory.
        """
        from scipy.cluster.hierarchy import linkage

        weights = self.weights
        m = len(self.weights)
        if m > MOST_IN_TREE:
            raise ConfigurationError(
                f"Expected a synopsis of at most {MOST_IN_TREE:,} parts for a tree. Got {m:,}."
            )
        n = max(_LEAVES, 4 * m)
        of_parts = np.rint(weights / weights.sum() * n)
        leaves = np.maximum(of_parts, 1).astype(np.int64)
        part = np.repeat(np.arange(m), leaves)
        tree = linkage(self.mixture.means[part], method="ward")
        # Leaves of one part are at distance 0 and so merge first; then parts merge.
        nodes = part.tolist()
        sizes = dict.fromkeys(range(m), 1)
        merges: list[tuple[int, int, float, int]] = []
        unit = (self.cost_unit or 1.0) * math.sqrt(weights.sum() / len(part))
        for first, second, height, _ in tree:
            one, other = sorted((nodes[int(first)], nodes[int(second)]))
            if one == other:
                nodes.append(one)
                continue
            merged = m + len(merges)
            sizes[merged] = sizes[one] + sizes[other]
            nodes.append(merged)
            merges.append((one, other, height * unit, sizes[merged]))
        return np.array(merges, dtype=np.float64).reshape(-1, 4)

    # ------------------------------------------------------------------ records

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return synthetic records of the mixture, (n, d), in the user's units.

        Some may lie outside of the domain. On a `Sphere` their lengths are not 1: divide
        them by their lengths.
        """
        size = integer("n", n, 0, _MOST_SAMPLES)
        require_type("rng", rng, np.random.Generator, "a numpy.random.Generator")
        found = self.mixture
        d = self.domain.n_features
        shares = found.weights / found.weights.sum()
        chosen = rng.choice(len(found.weights), size, p=shares)
        noise = rng.standard_normal((size, found.means.shape[1]))
        along = found.means[chosen] + found.scales[chosen] * noise
        points = self._lifted(along)
        if found.means.shape[1] < d:
            others = rng.standard_normal((size, d))
            others -= others @ found.directions @ found.directions.T
            points += math.sqrt(found.rest) * others
        return self.domain.from_unit(points)

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Return the log density of the mixture at records (n, d), in user's units.

        The density is over all of R^d, also beyond the domain. Parts of the mixture are
        finer than clusters, so it may have many modes in one cluster.
        """
        found = self.mixture
        d = self.domain.n_features
        points = self.domain.scaled(in_order(X, self.domain))
        along = points @ found.directions
        p = found.means.shape[1]
        others = points - along @ found.directions.T
        beside = np.square(others).sum(axis=1) / found.rest
        common = d * math.log(2 * math.pi) + (d - p) * math.log(found.rest)
        log_weights = np.log(found.weights / found.weights.sum())
        density = np.full(len(points), -np.inf)
        parts = zip(log_weights, found.means, found.scales, strict=True)
        for weight, mean, scale in parts:
            squares = np.square((along - mean) / scale).sum(axis=1)
            logarithm = squares + 2 * np.log(scale).sum() + common
            if p < d:
                logarithm = logarithm + beside
            density = np.logaddexp(density, weight - logarithm / 2)
        return np.asarray(density - np.log(self.domain.unit).sum())

    # ------------------------------------------------------------------ files

    def save(self, path: str | PathLike[str]) -> None:
        """Write the synopsis to its owner's npz file, in place of an older one.

        It may be published wherever the run's result may be.
        """
        arrays: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        arrays |= self.arrays
        arrays |= domain_arrays(self.domain)
        with open_private(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Synopsis":
        """Return the synopsis that `save` wrote.

        A `DataError` for any other file, or one of another version.
        """
        synopsis = None
        version = VERSION
        if not os.path.isfile(path):
            raise DataError(
                f"Expected a file that Synopsis.save wrote. There is no file {path}."
            )
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays: dict[str, Any] = dict(file)
            if str(arrays.pop("format")) == FORMAT:
                version = int(arrays.pop("version"))
                domain = domain_of(arrays)
                names = arrays.keys() - {"domain", "declared"}
                mixture = {name: arrays[name] for name in names}
                synopsis = cls.from_arrays(mixture, domain)
        except Exception:  # whatever NumPy, zip files or JSON raise
            synopsis = None
        if version != VERSION:
            raise DataError(
                f"Expected a synopsis of version {VERSION}. Got one of version {version} in {path}."
            )
        if synopsis is None:
            raise DataError(f"Expected a file that Synopsis.save wrote. Got {path}.")
        return synopsis

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """All of the mixture, as files and messages hold it."""
        found = self.mixture
        values = {}
        for field in fields(found):
            value = np.array(getattr(found, field.name), np.float64)
            values[field.name] = np.atleast_1d(value)
        return values

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], domain: Domain
    ) -> "Synopsis":
        """Return the mixture of `arrays`; a `DataError` if they are other ones."""
        m = 0
        p = 0
        means = arrays.get("means", np.zeros(0))
        if means.ndim == 2:
            m, p = means.shape
        expected = {
            "weights": (m,),
            "means": (m, p),
            "scales": (m, p),
            "directions": (domain.n_features, p),
            "rest": (1,),
            "radii": (m,),
            "noise": (3,),
        }
        shapes = {name: array.shape for name, array in arrays.items()}
        # So the products of directions are no larger than these: a hostile server may
        # send them.
        are_sized = shapes == expected and m > 0 and 0 < p <= domain.n_features
        are_finite = all(map(_are_finite, arrays.values()))
        if not are_sized or not are_finite or not _are_in_range(arrays, domain):
            raise DataError("Expected the arrays of a synopsis.")
        (rest,) = arrays["rest"].tolist()
        count, total, slack = arrays["noise"].tolist()
        values = {**arrays, "rest": rest, "noise": (count, total, slack)}
        return cls(ReleasedMixture(**values), domain)

    # ------------------------------------------------------------------ details

    def _lifted(self, points: FloatArray) -> FloatArray:
        """Return scaled points (n, d) from points along the directions, (n, p)."""
        return points @ self.mixture.directions.T

    def _number(self, n_clusters: int) -> int:
        return integer("n_clusters", n_clusters, 1, len(self.weights))

    @property
    def _model(self) -> model.Mixture:
        """The mixture in units of the domain's largest norm."""
        found = self.mixture
        longest = _longest(self.domain)
        means = found.means / longest
        scales = found.scales / longest
        return model.Mixture(found.weights, means, scales, np.zeros_like(means))

    def _model_in(self, domain: Domain) -> tuple[model.Mixture, FloatArray]:
        """Return the mixture in another domain's units, and its directions there (d, p).

        Only the scales of columns differ. Each part keeps its mean, and the variances
        along the new directions; its covariances between these are left out.
        """
        found = self.mixture
        stretch = (self.domain.unit / domain.unit)[:, None]
        basis, triangle = np.linalg.qr(found.directions * stretch)
        # Turned to where covariances are none on average.
        shares = found.weights / found.weights.sum()
        squares = np.square(found.scales)
        average = (triangle * (shares @ squares)) @ triangle.T
        _, turn = np.linalg.eigh(average)
        directions = basis @ turn
        step = turn.T @ triangle
        variances = squares @ np.square(step).T
        # What the mixture leaves out has one variance, which the stretch mixes in.
        mixed = directions * stretch
        inside = found.directions.T @ mixed
        beside = np.square(mixed).sum(axis=0) - np.square(inside).sum(axis=0)
        variances += found.rest * np.maximum(beside, 0.0)

        longest = _longest(domain)
        means = found.means @ step.T / longest
        scales = np.sqrt(variances) / longest
        errors = np.zeros_like(means)
        return model.Mixture(found.weights, means, scales, errors), directions


def _weighted(domain: Domain, weights: Mapping[str, float]) -> Domain:
    """Return a box with other weights of columns, by name."""
    if not isinstance(domain, Box):
        raise ConfigurationError(
            "Expected weights of the columns of a Box. "
            f"Got those of a {type(domain).__name__}, which has none."
        )
    found = domain.weighted(weights)
    by_name = found.weights_by_name()
    least = min(by_name, key=by_name.__getitem__)
    most = max(by_name, key=by_name.__getitem__)
    if by_name[most] / _MOST_RATIO > by_name[least]:
        raise ConfigurationError(
            f"Expected weights that differ by a factor of {_MOST_RATIO:,} at most. Got "
            f"{by_name[least]:g} for {least!r} and {by_name[most]:g} for {most!r}."
        )
    return found


def _checked_seed(seed: int) -> int:
    return integer("seed", seed, 0, 2**63 - 1)


def _are_finite(array: NDArray[Any]) -> bool:
    return array.dtype == np.float64 and bool(np.isfinite(array).all())


def _are_in_range(arrays: Mapping[str, NDArray[Any]], domain: Domain) -> bool:
    """Return whether finite arrays of the right shapes have values of a synopsis."""
    longest = _longest(domain)
    are_positive = [(arrays[name] > 0).all() for name in ("weights", "scales", "rest")]
    are_signless = [(arrays[name] >= 0).all() for name in ("radii", "noise")]
    # A mean is at most twice as far out, and a scale five times as long.
    most = {
        "means": longest,
        "scales": longest,
        "rest": longest**2,
        "radii": longest,
    }
    are_short = [np.abs(arrays[name]) <= 16 * bound for name, bound in most.items()]
    if not all(are_positive) or not all(are_signless):
        return False
    if not all(each.all() for each in are_short):
        return False
    directions = arrays["directions"]
    if not (np.abs(directions) < 2).all():
        return False
    products = directions.T @ directions
    return np.allclose(products, np.eye(len(products)), atol=1e-9)


def _longest(domain: Domain) -> float:
    """Return the largest norm of a record, in units of the scaled domain."""
    return domain.l2_bound(MODEL_BITS) * 2.0**-MODEL_BITS
