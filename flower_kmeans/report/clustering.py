"""The result of a clustering, in the user's units."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain, Sphere, check_records, squared_norms
from flower_kmeans.data.records import encode_hint, named_columns
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
)
from flower_kmeans.parameters import LARGEST, integer
from flower_kmeans.report.comparison import (
    BEST,
    Comparison,
    compared,
    masses_of,
    moved,
    require_near,
)
from flower_kmeans.report.export import sklearn_model
from flower_kmeans.report.names import cluster_names
from flower_kmeans.templates import TextTable, html_summary

if TYPE_CHECKING:
    from flower_kmeans.report.report import Report
    from flower_kmeans.report.synopsis import Synopsis


_BLOCK_ROWS = 65_536


class FinishedRun(Protocol):
    """The result of a run: a `Clustering`, or a strategy after its start."""

    @property
    def centroids(self) -> FloatArray:
        """Centroids in the user's units, (n_clusters, n_features)."""

    @property
    def report(self) -> "Report":
        """The run's report."""


@dataclass(frozen=True, repr=False)
class Clustering:
    """Centroids, noisy cluster sizes and the report of the run that made them.

    Attributes
    ----------
    centroids : ndarray of shape (n_clusters, n_features), float64
        In the user's units.
    counts : ndarray of shape (n_clusters,), float64
        Records per cluster in the last round, with that round's noise; persons with
        ``unit="person"``.
    domain : Box, Ball or Sphere
        The public bounds, and the scaling under which records were compared.
    report : Report
    weights : ndarray of shape (n_clusters,), float64, or None
        With bounds on sizes: a record x is in the cluster with the least
        ``|x - c_j|^2 - w_j``. In squared user's units where all columns have one scale
        (a `Ball`, or a `Box` with ``scale="common"`` or equal widths), else in squared
        units of the scaled domain.
    size_report : SizeReport or None
        With bounds on sizes: the noisy sizes of these clusters beside them.
    synopsis : Synopsis or None
        Of `SynopsisKMeans`: what the run released, for clusterings with any number of
        clusters.
    """

    centroids: FloatArray
    counts: FloatArray
    domain: Domain
    report: "Report"
    weights: FloatArray | None = None
    size_report: SizeReport | None = None
    synopsis: "Synopsis | None" = None

    def __repr__(self) -> str:
        k, d = self.centroids.shape
        return f"Clustering(n_clusters={k}, n_features={d}, report={self.report!r})"

    def _repr_html_(self) -> str:
        report = self.report
        title = f"{len(self.centroids)} clusters by {self.report.strategy}"
        serious = ("NOT PRIVATE", "WARNING")
        notes = [each for each in report.statements if each.startswith(serious)]
        notes += report.warnings
        tables = [
            centroid_table(self.centroids, self.counts, self.domain, names=self.names)
        ]
        return html_summary(title, report.facts, tables, notes)

    @property
    def is_private(self) -> bool:
        """Whether the guarantee holds; not after a start from exact results, say."""
        return self.report.guarantee_holds

    @property
    def counted(self) -> str:
        """Noun for the units of ``counts``: "records" or "persons"."""
        return self.report.counted

    @property
    def names(self) -> tuple[str, ...]:
        """A short, unique name for each cluster in words, from released values alone.

        As of `flower_kmeans.report.names.cluster_names`, which also takes names of
        columns for a domain without them.
        """
        return cluster_names(self.centroids, self.counts, self.domain)

    @property
    def sizes(self) -> FloatArray | None:
        """Noisy records of clusters by `predict`, (k,); ``None`` without bounds.

        Of the clients that answered the last round. Without bounds, ``counts`` are of
        the centroids before the last step.
        """
        if self.size_report is None:
            return None
        return np.array(self.size_report.counts)

    @property
    def size_interval(self) -> FloatArray | None:
        """Least and largest size of each cluster, (k, 2), around `sizes` or ``counts``.

        All k intervals hold at once with probability 0.95 over the noise. Sizes are of the
        clients that answered the last round. Without bounds on sizes, they are numbers of
        records that this round counted for the centroids before its step. The step moves
        records between clusters, so sizes by `predict` lie outside more often. ``None``
        if the noise of ``counts`` is not known, such as after a clip.
        """
        if self.size_report is None:
            return self.report.size_interval(self.counts)
        return self.size_report.interval

    def predict(
        self,
        X: ArrayLike,
        columns: Sequence[str] | Sequence[int] | None = None,
        nearest: bool = False,
    ) -> NDArray[np.int64]:
        """Return the cluster of each record, by the nearest centroid or the weights.

        Records and centroids are compared after the domain's scaling, with the weights
        of columns, but without clipping. On a `Sphere` the cluster is that of the
        centroid with the largest cosine similarity.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            In the user's units. If both the domain and a DataFrame name their columns,
            the names decide which column is which.
        columns : sequence of str or of int, optional
            The columns that ``X`` has, by the domain's names or by number: the nearest
            centroid in these alone, as a party that holds these alone can compute it.
        nearest : bool, default: False
            Ignore the weights.

        Returns
        -------
        ndarray of shape (n,), int64

        Raises
        ------
        ConfigurationError
            If a column is unknown or named twice, or is missing and the weights are not
            ignored, or on a `Sphere`.
        DataError
            If ``X`` is not a finite two-dimensional array of that width, or on a
            `Sphere` a record has length zero.
        """
        return assigned(X, self.centroids, self.domain, self.weights, columns, nearest)

    def inertia(self, X: ArrayLike) -> float:
        """Return the sum of squared distances of records to the centroids of `predict`.

        In squared user's units, whatever scale or weights columns have. It is exact,
        and so not private. ``X`` is (n, n_features) in the user's units. On a `Sphere`
        distances are those of directions: records are divided by their lengths, and the
        mean cosine similarity to the centroids is ``1 - inertia / (2 n)``.
        """
        return _sum_of_squares(self._residuals(X))

    def cost(self, X: ArrayLike) -> float:
        """Return the sum of squared distances in the space that was clustered.

        As `inertia`, but in squared units of the scaled domain, in which columns have
        their weights: what the run made small.
        """
        return _sum_of_squares(self._residuals(X) / self.domain.unit)

    def compare(
        self,
        X: ArrayLike,
        *,
        persons: Iterable[object] | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> Comparison:
        """Return the cost beside k-means without privacy and beside one cluster.

        The result is exact, and so not private: it is for tests with records that may be
        seen. Every cost is that of `cost`: without clipping, in the space that was
        clustered. If records lie outside the bounds, and the clusters are not as good as
        without privacy, ``within`` compares the records as the run moved them.

        k-means has as many clusters as this result. Bounds on sizes bind this result
        alone. k-means is the best of ten starts by greedy k-means++. Of more than 100,000
        records it is fitted on a random sample of so many, but its cost is that of all
        records.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Records in the user's units, as for `predict`.
        persons : iterable of hashable, optional
            One id for each record, for a run with ``unit="person"``: each person then
            weighs as much as any other one, however many records it has.
        weights : array-like of shape (n,), optional
            The records' weights in [0, 1], for a run with ``weighted=True``.
        seed : int, default: 0
            Seed of the samples and of the starts of k-means.

        Returns
        -------
        Comparison
            With the costs, ``lost_gain``, ``verdict`` and ``text``.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError, DataError
            If ``X`` is as `predict` refuses it, no record has a weight above 0, there is
            not one id or weight for each record, a record lies so far outside that its
            cost overflows, or ``seed`` is no integer of at least 0.
        """
        integer("seed", seed, 0, LARGEST)
        records = in_order(X, self.domain)
        require_near(records, self.domain)
        masses = masses_of(len(records), persons, weights)
        found = self._compared(records, masses, seed)
        inside, n_outside = moved(records, self.domain)
        found = replace(found, n_outside=n_outside)
        if not n_outside or found.verdict == BEST:
            return found
        return replace(found, within=self._compared(inside, masses, seed))

    def _compared(
        self, records: FloatArray, masses: FloatArray, seed: int
    ) -> Comparison:
        """Return the comparison for records, (n, d), columns in the domain's order."""
        return compared(
            records,
            squared_norms(self._residuals(records) / self.domain.unit),
            self.domain,
            len(self.centroids),
            masses,
            seed,
            has_bounds=self.weights is not None,
        )

    def to_sklearn(self) -> Any:
        """Return a fitted model of scikit-learn that predicts the same clusters.

        joblib stores it, and skl2onnx converts it. It needs the extra ``sklearn``. The
        model takes records of float64 in the user's units, with the columns of the domain
        in order. Of a `TableDomain` these are the columns of `encode`.

        Returns
        -------
        KMeans or Pipeline
            A `KMeans` with the centroids if all columns have one scale, and the bounds
            lie within 1,000 half widths of zero. Otherwise a `Pipeline`: it scales records
            as the domain does, or on a `Sphere` divides them by their length, before the
            `KMeans`. With bounds on sizes it adds a column, in which centroids have their
            weights.

        Raises
        ------
        ConfigurationError
            If scikit-learn is not installed.

        Notes
        -----
        A record that is equally near to two centroids may get the other one. The model of a
        `Sphere` gives a record of length zero some cluster, where `predict` refuses it, and
        does not divide a record shorter than 1e-14 by its length.
        """
        return sklearn_model(self.centroids, self.domain, self.weights)

    def _residuals(self, X: ArrayLike) -> FloatArray:
        """Return records less the centroids of `predict`, (n, d), in the user's units."""
        nearest = self.centroids[self.predict(X)]
        return in_order(X, self.domain) - nearest


def _sum_of_squares(residuals: FloatArray) -> float:
    return float(np.einsum("ij,ij->", residuals, residuals))


def centroid_table(
    centroids: FloatArray,
    counts: FloatArray,
    domain: Domain,
    name: str = "cluster",
    names: Sequence[str] | None = None,
) -> TextTable:
    """Return a row for each cluster: noisy size, and centroid (d,) in user's units.

    ``names`` are those of clusters in words, if the table shows them.
    """
    labels, columns = zip(*readable(centroids, domain), strict=True)
    centroids_by_row = zip(*columns, strict=True)
    head = [name, "noisy size", *labels]
    rows = []
    for j, centroid in enumerate(centroids_by_row):
        cells = [e if isinstance(e, str) else f"{e:.4g}" for e in centroid]
        rows.append([str(j), f"{counts[j]:.1f}", *cells])
    if names is not None:
        head.insert(1, "name")
        for row, words in zip(rows, names, strict=True):
            row.insert(1, words)
    return TextTable(f"Every {name}: noisy size and centre", head, rows)


def readable(
    points: FloatArray, domain: Domain, columns: Sequence[str] | None = None
) -> list[tuple[str, list[float] | list[str]]]:
    """Return names and values of columns for points (k, d), in the user's units.

    Dates are text. A `TableDomain` has its own names; the ``columns`` of others are the
    domain's by default, or numbers.
    """
    if isinstance(domain, TableDomain):
        found = []
        for name, values in domain.decode(points).items():
            is_number = isinstance(values[0], float)
            found.append((name, values if is_number else [str(day) for day in values]))
        return found
    numbered = [f"column {i + 1}" for i in range(domain.n_features)]
    names = columns or domain.columns or numbered
    return list(zip(names, points.T.tolist(), strict=True))


def assigned(
    X: ArrayLike,
    centroids: FloatArray,
    domain: Domain,
    weights: FloatArray | None = None,
    columns: Sequence[str] | Sequence[int] | None = None,
    nearest: bool = False,
) -> NDArray[np.int64]:
    """Return the cluster of each record (n,), as `Clustering.predict`."""
    chosen = _places(_names_of(X, domain) if columns is None else columns, domain)
    if isinstance(domain, Sphere) and len(chosen) < domain.n_features:
        raise ConfigurationError(
            f"Expected all {domain.n_features} columns on a Sphere: the length of a record, by "
            f"which it is divided, needs them. Got {len(chosen)} of them instead."
        )
    records = _compared(check_records(X, len(chosen), name="X"), domain)
    unit = domain.unit[chosen]
    shift = centroids[:, chosen].mean(axis=0)
    scaled = (centroids[:, chosen] - shift) / unit  # the shift saves digits
    # |x|^2 is left out below: it is the same for all centroids of a record.
    norms = squared_norms(scaled)
    if weights is not None and not nearest:
        if len(chosen) < domain.n_features:
            raise ConfigurationError(
                f"Expected all {domain.n_features} columns, or nearest=True: the weights belong to "
                f"distances in all columns. Got {len(chosen)} of them instead."
            )
        # Where columns have different units, the weights are in scaled units already.
        common = domain.common_unit or 1.0
        # Divided twice, since the square of a wide unit may overflow.
        norms = norms - weights / common / common
    labels = np.empty(len(records), dtype=np.int64)
    for start in range(0, len(records), _BLOCK_ROWS):
        block = (records[start : start + _BLOCK_ROWS] - shift) / unit
        scores = norms - 2 * block @ scaled.T
        labels[start : start + len(block)] = np.argmin(scores, axis=1)
    return labels


def in_order(X: ArrayLike, domain: Domain) -> FloatArray:
    """Return records (n, d), columns in the domain's order where both have names.

    On a sphere they are directions.
    """
    places = _places(_names_of(X, domain), domain)
    records = check_records(X, domain.n_features, name="X")
    return _compared(records, domain)[:, np.argsort(places)]


def _compared(records: FloatArray, domain: Domain) -> FloatArray:
    """Return records (n, d) as distances compare them; on a sphere their directions."""
    null = np.flatnonzero(domain.are_null(records))
    if len(null):
        raise DataError(
            "Expected X with a direction in each row, on a Sphere. "
            f"Got length zero in row {null[0]} instead."
        )
    return domain.compared(records)


def _names_of(X: ArrayLike, domain: Domain) -> list[str] | None:
    """Return the names of a table's columns, where the domain has names as well."""
    names = named_columns(X)
    if names is None or domain.columns is None:
        return None
    return list(names)


def _places(columns: Sequence[str] | Sequence[int] | None, domain: Domain) -> list[int]:
    """Return the numbers of columns, from their names or numbers."""
    known = list(range(domain.n_features))
    if columns is None:
        return known
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ConfigurationTypeError(
            f"Expected columns as a list of names or numbers. Got {type(columns).__name__}."
        )
    # Not strict: a domain may have no names.
    names: dict[object, int] = dict(zip(domain.columns or (), known, strict=False))
    places = []
    for each in columns:
        places.append(names.get(each, -1) if isinstance(each, str) else each)
    different = set(places)
    if not places or not different <= set(known) or len(different) != len(places):
        hint = encode_hint(columns, domain.columns or ())
        raise ConfigurationError(
            f"Expected columns from {domain.columns or known}, each once. "
            f"Got {columns!r} instead.{hint}"
        )
    return places
