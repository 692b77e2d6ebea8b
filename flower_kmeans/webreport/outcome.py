"""What a page may know of a run: its report, its released result, and public figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.clustering import Clustering
from flower_kmeans.domain import Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, KMeansError
from flower_kmeans.privacy.report import Report

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """A run as its report tells it.

    Attributes
    ----------
    report : Report
    domain : Box or Ball
        The public bounds.
    columns : tuple of d str
        Names of the columns.
    n_clusters : int
    centroids : ndarray of shape (n_clusters, d), or None
        In the user's units, where whoever writes the page may see them.
    counts : ndarray of shape (n_clusters,), or None
        Noisy cluster sizes.
    title : str
    facts : tuple of (str, str)
        What else is publicly known of the run: names and values.
    not_private : str or None
        Why the run was not private in spite of its noise, as a sentence.
    """

    report: Report
    domain: Domain
    columns: tuple[str, ...]
    n_clusters: int
    centroids: FloatArray | None
    counts: FloatArray | None
    title: str
    facts: tuple[tuple[str, str], ...]
    not_private: str | None

    @property
    def is_private(self) -> bool:
        """Whether the run's guarantee holds: none of its statements denies it."""
        denied = any(words.startswith("NOT PRIVATE") for words in self.report.statements)
        return self.not_private is None and not denied

    @property
    def is_finished(self) -> bool:
        """Whether all planned rounds were completed."""
        return self.report.n_rounds == len(self.report.plan.rounds)

    @property
    def are_colours(self) -> bool:
        """Whether records are colours: red, green and blue, within 0 to 255."""
        bounds = column_bounds(self.domain)
        named = [column.lower() for column in self.columns] == ["red", "green", "blue"]
        return named and bounds is not None and bounds[0].min() >= 0 and bounds[1].max() <= 255

    @property
    def order(self) -> NDArray[np.int64]:
        """Clusters by size, the largest first; as they come, where sizes are not known."""
        if self.counts is None:
            return np.arange(self.n_clusters)
        return np.argsort(-self.counts, kind="stable")


def outcome_of(
    run: Any,
    result: Any = None,
    *,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    not_private: str | None = None,
) -> Outcome:
    """Return what a page may know of a run; parameters are those of `html_report`.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If ``run`` is neither a clustering nor a strategy, or names or arrays do not fit it.
    RunError
        If the strategy has not started.
    """
    domain = getattr(run, "domain", None)
    centroids: FloatArray | None
    counts: FloatArray | None
    if isinstance(run, Clustering):
        centroids, counts = run.centroids, run.counts
        n_clusters = len(run.centroids)
    elif domain is not None and hasattr(run, "n_clusters") and hasattr(run, "plan"):
        n_clusters = int(run.n_clusters)
        centroids, counts = _of_server(run, result)
    else:
        raise ConfigurationTypeError(
            "Expected run as a Clustering, or one of flower_kmeans.strategies after its start. "
            f"Got {type(run).__name__} instead."
        )
    report = run.report
    if not isinstance(report, Report):
        raise ConfigurationTypeError(
            f"Expected the run's report as a Report. Got {type(report).__name__} instead."
        )
    d = run.domain.n_features
    names = columns if columns is not None else run.domain.columns
    if names is None:
        names = [f"column {i + 1}" for i in range(d)]
    if isinstance(names, str) or len(names) != d:
        raise ConfigurationError(f"Expected columns as {d} names. Got {len(names)} instead.")
    for name, array, shape in (
        ("centroids", centroids, (n_clusters, d)),
        ("counts", counts, (n_clusters,)),
    ):
        if array is not None and array.shape != shape:
            raise ConfigurationError(
                f"Expected {name} of shape {shape}. Got {array.shape} instead."
            )
    return Outcome(
        report=report,
        domain=run.domain,
        columns=tuple(str(name) for name in names),
        n_clusters=n_clusters,
        centroids=centroids,
        counts=counts,
        title=title or f"Report of a {report.strategy} run",
        facts=tuple((str(name), str(value)) for name, value in facts),
        not_private=not_private,
    )


def column_bounds(domain: Domain) -> tuple[FloatArray, FloatArray] | None:
    """Return the public lower and upper bounds, (d,) each in the user's units; of a `Box` only."""
    lower, upper = getattr(domain, "lower", None), getattr(domain, "upper", None)
    if lower is None or upper is None:
        return None
    return np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)


def scaled(points: FloatArray, domain: Domain) -> FloatArray:
    """Return points, (k, d) in the user's units, in the scale in which records were compared."""
    origin = domain.from_unit(np.zeros((1, domain.n_features)))
    return (points - origin) / (domain.from_unit(np.ones((1, domain.n_features))) - origin)


def _of_server(strategy: Any, result: Any) -> tuple[FloatArray | None, FloatArray | None]:
    """Return what the server knows of the result: nothing, where it saw no sum."""
    if strategy.report.trust_model.is_blind:
        return None, None
    arrays = getattr(result, "arrays", result)
    if arrays is not None:
        if not isinstance(arrays, Mapping):
            raise ConfigurationTypeError(
                f"Expected result as what start returned. Got {type(result).__name__} instead."
            )
        found = [arrays.get(name) for name in ("centroids", "counts")]
        centroids, counts = (None if each is None else _floats(each) for each in found)
        return centroids, counts
    try:
        return _floats(strategy.centroids), None
    except KMeansError:  # no round was opened
        return None, None


def _floats(array: Any) -> FloatArray:
    values = array.numpy() if hasattr(array, "numpy") else array
    return np.asarray(values, dtype=np.float64)
