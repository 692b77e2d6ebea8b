"""A run's report as one HTML page without scripts, network or the plots extra.

``page.html.j2`` has the sentences of the page, with ``figures.svg.j2`` and ``page.css``.
`Outcome` holds the data of a page: all of it is public or released, never a record.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from flower_kmeans.algorithms.released import CONFIDENCE, SizeReport
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain, Sphere
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, KMeansError
from flower_kmeans.files import printable
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.plan import PrivacyPlan, Release
from flower_kmeans.report.clustering import Clustering, FinishedRun
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.figures import Axis, Dot, PlotFrame, around, principal_places
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.profiles import (
    ColumnProfile,
    column_profiles,
    largest_deviation,
    most_separating,
    weights_of,
)
from flower_kmeans.report.report import Report
from flower_kmeans.report.synopsis import MOST_IN_TREE, Elbow, Synopsis
from flower_kmeans.templates import environment, lines_of
from flower_kmeans.version import __version__

MAX_ROWS = 200
MAX_COLUMNS = 64
_NAMED_DOTS = 40
_LARGEST_DOT = 20.0
_SMALLEST_DOT = 4.0
_REACH = 2.5  # length of the axis of epsilon, in epsilons of the run
_POINTS = 241
_USUAL_NUMBERS = 20
_MOST_NUMBERS = 60
_MOST_LEAVES = 60
_MOST_NOTICES = 5
_NAMED_CLIENTS = 5
_PROFILE_COLUMNS = 12
_PROFILE_CLUSTERS = 20
# of a category: levels in a cell of the table, and their least share but for the first
_MOST_LEVELS = 3
_LEAST_SHARE = 0.15


def html_report(
    run: FinishedRun,
    result: Any = None,
    *,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    not_private: str | None = None,
    comparison: Comparison | None = None,
) -> str:
    """Return a run's report as one HTML page that fetches nothing and holds no script.

    The page holds the run's report, public parameters, and released centroids and sizes,
    but never a record. ``docs/reading-a-report.md`` explains it.

    Parameters
    ----------
    run : Clustering or a strategy
        The result of `simulate`, or a strategy after its ``start``, also after a
        `RunError`. The page of a server that saw no sum has no centroids.
    result : flwr.serverapp.strategy.Result, optional
        With a strategy: the result of ``start``. Without it the page has no sizes.
    columns : sequence of str, optional
        Names of the columns. Default: the domain's names, or numbers.
    title : str, optional
        Title of the page.
    facts : sequence of (str, str), optional
        Names and values of further public facts about the run. They must not be computed
        from records.
    not_private : str, optional
        Sentence on why the run was not private in spite of its noise.
    comparison : Comparison, optional
        Of the result with k-means without privacy. It is exact, and so not private: only
        for a simulation.

    Returns
    -------
    str
        The page.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If ``run`` is neither a `Clustering` nor a strategy, or ``columns`` or ``result``
        do not fit it.
    RunError
        If the strategy has not started.
    """
    if comparison is not None:
        require_type("comparison", comparison, Comparison, "a Comparison")
    outcome = _outcome_of(run, result, columns, not_private)
    outcome = replace(outcome, comparison=comparison)
    return page_of(outcome, title, facts, outcome.report.versions)


def page_of(
    run: "Outcome",
    title: str | None,
    facts: Sequence[tuple[str, str]],
    versions: Mapping[str, str],
) -> str:
    """Return the page of a run's outcome.

    ``versions`` are the versions of the software that made the run. The other parameters
    are those of `html_report`.
    """
    report = run.report
    first, further = _notices(run)
    template = TEMPLATES.get_template("report/page.html.j2")
    page = template.render(
        run=run,
        report=report,
        title=title,
        facts=facts,
        domain=_kind(run.domain),
        releases=_release_lines(report.plan),
        curve=_curve(report),
        first=first,
        further=further,
        comparison=run.comparison,
        missed=_missed(report),
        rounds=_round_lines(report),
        learned=_learned(run),
        sized=_sized(run),
        numbers=_numbers(run),
        versions=versions,
        version=__version__,  # of this page's writer
    )
    # All line breaks are layout of the templates, because values cannot hold any.
    page = re.sub(r"(?<=>)\s*\n\s*|\s*\n\s*(?=<)", "", page)
    return "<!doctype html>\n" + re.sub(r"\s*\n\s*", " ", page) + "\n"


# ----------------------------------------------------------------- a run for its page


_KINDS = ("bad", "caution", "fact")


class Notice(NamedTuple):
    """A notice at the top of a page."""

    kind: str  # one of `_KINDS`, the most serious first
    about: str
    words: str


class Failure(NamedTuple):
    """Where a run ended before its last round."""

    number: int  # of the round, from 1; 0 if none began
    n_missing: int  # clients that did not answer in it
    reasons: list[str]  # these clients and why, a sentence for each reason
    spent: float | None  # most epsilon that clients have spent


class ReleaseLine(NamedTuple):
    """A release of one round, or of several in which all releases are the same."""

    first: int
    last: int
    release: Release
    share: float | None  # of the cost, of all these rounds together


class RoundLine(NamedTuple):
    """A line of the table of rounds: one round, or several that were alike."""

    first: int
    last: int
    answered: int
    missing: int
    factor: float  # of the noise's standard deviation to the planned one
    is_lost: bool

    @property
    def asked(self) -> int:
        """Number of clients that were asked."""
        return self.answered + self.missing


class Missed(NamedTuple):
    """A round that a client missed."""

    round: int
    node_id: int


class ProfileLine(NamedTuple):
    """A column in the profile of a cluster."""

    column: str
    value: str
    mean: str
    deviation: float


class SizeRow(NamedTuple):
    """The size of a cluster, and its interval where it is known."""

    cluster: int
    size: float
    low: float
    high: float
    share: float
    kind: str  # of `SizeReport.bounds_kept`; empty without bounds


@dataclass(frozen=True)
class Outcome:
    """A run for its page: report, public parameters, and results that its writer may see."""

    report: Report
    domain: Domain
    columns: tuple[str, ...]
    # the most, if the run chose their number and the writer must not see it
    n_clusters: int
    clusters: str  # number of clusters in words
    centroids: FloatArray | None  # (k, d)
    counts: FloatArray | None  # (k,)
    sizes: SizeReport | None
    not_private: str | None
    synopsis: Synopsis | None = None
    comparison: Comparison | None = None

    @cached_property
    def profiles(self) -> tuple[ColumnProfile, ...]:
        """The profile of each column as people name it; empty without centroids."""
        if self.centroids is None:
            return ()
        counts = self._weights
        found = column_profiles(self.centroids, counts, self.domain, self.columns)
        if len(found) < len(self.columns):  # a category is several columns of the box
            return found
        names = map(printable, self.columns)
        pairs = zip(found, names, strict=True)
        return tuple(replace(profile, name=name) for profile, name in pairs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each cluster in words; empty without centroids."""
        if self.centroids is None:
            return ()
        counts = self._weights
        return cluster_names(self.centroids, counts, self.domain, self.columns)

    @property
    def _weights(self) -> FloatArray:
        if self.counts is None:
            return np.ones(self.n_clusters)
        return self.counts

    @property
    def n_columns(self) -> int:
        """Number of columns as people name them: a category is one."""
        if isinstance(self.domain, Box):
            return len(self.domain.factors())
        return len(self.columns)

    @property
    def size_interval(self) -> FloatArray | None:
        """Least and largest size of each cluster, (k, 2); ``None`` if it is not known."""
        if self.sizes is not None:
            return self.sizes.interval
        if self.counts is None:
            return None
        return self.report.size_interval(self.counts)

    @property
    def is_private(self) -> bool:
        """Whether the run's guarantee holds: neither its report nor its user denies it."""
        return self.not_private is None and self.report.guarantee_holds

    @property
    def is_finished(self) -> bool:
        """Whether all planned rounds were completed."""
        return self.report.n_rounds == len(self.report.plan.rounds)

    @property
    def bounds(self) -> tuple[FloatArray, FloatArray] | None:
        """Public lower and upper bounds of a `Box`, (d,) each in the user's units."""
        if not isinstance(self.domain, Box):
            return None
        return np.array(self.domain.lower), np.array(self.domain.upper)

    @property
    def are_colours(self) -> bool:
        """Whether records are colours: red, green and blue, within 0 to 255."""
        bounds = self.bounds
        names = [column.lower() for column in self.columns]
        if bounds is None or names != ["red", "green", "blue"]:
            return False
        lower, upper = bounds
        return bool(lower.min() >= 0 and upper.max() <= 255)

    @property
    def order(self) -> NDArray[np.int64]:
        """Indices of the clusters, the largest cluster first; in order without sizes."""
        if self.counts is None:
            return np.arange(self.n_clusters)
        return np.argsort(-self.counts, kind="stable")


def _outcome_of(
    run: Any, result: Any, columns: Sequence[str] | None, not_private: str | None
) -> Outcome:
    """Return the outcome of a run, after checks of the arguments of `html_report`."""
    arrays: tuple[FloatArray | None, FloatArray | None]
    if isinstance(run, Clustering):
        n_clusters = len(run.centroids)
        arrays = run.centroids, run.counts
        fewest = n_clusters
    elif all(hasattr(run, name) for name in ("domain", "n_clusters", "plan")):
        fewest = run.algorithm.fewest_clusters
        n_clusters = int(run.n_clusters)
        arrays = _of_server(run, result)
        if arrays[0] is not None and fewest <= len(arrays[0]) <= n_clusters:
            fewest = n_clusters = len(arrays[0])
    else:
        raise ConfigurationTypeError(
            "Expected run as a Clustering, or one of flower_kmeans.strategies after its start. "
            f"Got {type(run).__name__} instead."
        )
    require_type("the run's report", report := run.report, Report, "a Report")
    d = run.domain.n_features
    names: Sequence[str] | None
    if columns is not None:
        names = columns
    else:
        names = run.domain.columns
    if names is None:
        names = [f"column {i + 1}" for i in range(d)]
    if isinstance(names, str) or len(names) != d:
        raise ConfigurationError(
            f"Expected columns as {d} names. Got {len(names)} instead."
        )
    shapes = {"centroids": (n_clusters, d), "counts": (n_clusters,)}
    for (name, shape), array in zip(shapes.items(), arrays, strict=True):
        if array is not None and array.shape != shape:
            raise ConfigurationError(
                f"Expected {name} of shape {shape}. Got {array.shape} instead."
            )
    if isinstance(run, Clustering):
        sizes = run.size_report
    else:
        sizes = report.sizes
    known = str(n_clusters) if fewest == n_clusters else f"{fewest} to {n_clusters}"
    columns = tuple(map(str, names))
    # A blind server must not see the synopsis. Some strategies have no such attribute.
    if report.trust_model.is_blind:
        synopsis = None
    else:
        synopsis = getattr(run, "synopsis", None)
    if isinstance(run, Clustering):
        synopsis = run.synopsis
    return Outcome(
        report,
        run.domain,
        columns,
        n_clusters,
        known,
        *arrays,
        sizes,
        not_private,
        synopsis,
    )


def _of_server(
    strategy: Any, result: Any
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the centroids and counts that the server saw; ``None`` for each that it did not."""
    # The page of a blind server must not show a sum, even if its caller has a result.
    if strategy.report.trust_model.is_blind:
        return None, None
    arrays = getattr(result, "arrays", result)
    if arrays is None:
        try:
            return _floats(strategy.centroids), None
        except KMeansError:  # no round is finished
            return None, None
    require_type("result", arrays, Mapping, "what start returned")
    return _floats(arrays.get("centroids")), _floats(arrays.get("counts"))


def _floats(array: Any) -> FloatArray | None:
    if hasattr(array, "numpy"):
        values = array.numpy()
    else:
        values = array
    if values is None:
        return None
    return np.asarray(values, dtype=np.float64)


# ------------------------------------------------------------------ numbers of the page


def detection(report: Report, alarm: float) -> float:
    """Return the largest true positive rate of a test for one record (or client).

    ``alarm`` in (0, 1) is the false positive rate of the test. The result is one minus the
    trade-off function of the run (Dong, Roth & Su 2022, section 2). It is attained for
    Gaussian noise, and otherwise a bound from epsilon and delta.
    """
    if report.mu is not None:
        return float(ndtr(ndtri(alarm) + report.mu))
    epsilon = math.inf if report.epsilon is None else report.epsilon
    delta = 1.0 if report.delta is None else report.delta
    grown = alarm * math.exp(min(epsilon, 700.0)) + delta  # e^710 is no float
    # Both constraints of (epsilon, delta) hold, one for each order of the data sets.
    quiet = max(0.0, 1 - delta - alarm)
    return min(1.0, grown, 1 - math.exp(-epsilon) * quiet)


def cost_shares(plan: PrivacyPlan) -> list[float | None]:
    """Return each release's fraction of the cost, or ``None`` if costs do not add up.

    Squares of mu add up if all noise is Gaussian, and epsilons if all of it is Laplace
    noise.
    """
    costs = [release.cost for release in plan.releases]
    if plan.mu is not None:
        return [(cost / plan.mu) ** 2 for cost in costs]
    if plan.is_private and plan.budget.delta == 0:
        total = math.fsum(costs)
        return [cost / total for cost in costs]
    return [None] * len(costs)


def _release_lines(plan: PrivacyPlan) -> list[ReleaseLine]:
    """Return the releases of a plan, those of equal rounds in a row in one line."""
    shares = iter(cost_shares(plan))
    lines: list[ReleaseLine] = []
    before: tuple[Release, ...] = ()
    for number, group in enumerate(plan.rounds, 1):
        of_group = [next(shares) for _ in group]
        if group and group == before:
            for place, share in enumerate(of_group, len(lines) - len(group)):
                line = lines[place]
                total = None
                if line.share is not None and share is not None:
                    total = line.share + share
                lines[place] = line._replace(last=number, share=total)
            continue
        before = group
        for release, share in zip(group, of_group, strict=True):
            lines.append(ReleaseLine(number, number, release, share))
    return lines


def colour_of(centroid: FloatArray) -> str:
    """Return the hexadecimal name of the colour of red, green and blue, (3,), in 0 to 255."""
    rounded = np.clip(np.rint(centroid), 0, 255)
    red, green, blue = (int(each) for each in rounded)
    return f"#{red:02x}{green:02x}{blue:02x}"


def whole(low: float, high: float) -> str:
    """Return an interval of records in whole numbers, rounded outwards."""
    return f"{math.floor(low):,} to {math.ceil(high):,}"


def texts(values: Sequence[float | str]) -> list[str]:
    """Return the cells of a column, with the decimals that give its largest number four digits."""
    numbers = [value for value in values if isinstance(value, float)]
    largest = max(map(abs, numbers), default=0.0)
    digits = 0
    if largest > 0:
        before = math.floor(math.log10(largest))
        digits = int(np.clip(3 - before, 0, 9))
    cells = []
    for value in values:
        cells.append(f"{value:,.{digits}f}" if isinstance(value, float) else value)
    return cells


def least_shown(delta: float) -> float:
    """Return the low end of delta's axis: a power of ten well below the claim."""
    if delta > 0:
        exponent = math.floor(math.log10(delta)) - 3
        return max(1e-15, 10.0**exponent)
    return 1e-12


def _curve(report: Report) -> dict[str, Any] | None:
    """Return axes and lines of delta by epsilon, for the run and with earlier runs."""
    epsilon = report.epsilon
    delta = report.delta
    together = report.together
    if epsilon is None or delta is None:
        return None
    if together is None:
        plans = [report.plan]
    else:
        plans = [report.plan, together]
    reach = _REACH * max(plan.epsilon() or 0.0 for plan in plans)
    low = least_shown(delta)
    # The claim must be a point of the line, so that its mark lies on the line.
    even = np.linspace(reach / (_POINTS - 1), reach, _POINTS)
    epsilons = sorted([*even.tolist(), epsilon])
    return {
        "epsilon": Axis("epsilon", 0.0, reach),
        "delta": Axis("delta", low, 1.0, log=True),
        "lines": [_line(plan, epsilons, low) for plan in plans],
    }


def _line(
    plan: PrivacyPlan, epsilons: list[float], low: float
) -> tuple[list[float], list[float]]:
    """Return epsilons and deltas down to ``low``, which may replace the last delta."""
    deltas = [plan.delta(epsilon) for epsilon in epsilons]
    # One more point lets the line reach the axis.
    n = sum(delta >= low for delta in deltas) + 1
    return epsilons[:n], [max(delta, low) for delta in deltas[:n]]


def _learned(run: Outcome) -> dict[str, Any] | None:
    """Return rows of the table of centroids, and axes and dots of their plot."""
    centroids = run.centroids
    counts = run.counts
    bounds = run.bounds
    if centroids is None:
        return None
    k, d = centroids.shape
    if counts is None:
        sizes = np.ones(k)
    else:
        sizes = np.maximum(counts, 0.0)
    relative = sizes / (sizes.max() or 1.0)
    places = centroids
    labels = list(run.columns)
    if d > 2:
        places, parts = principal_places(run.domain.scaled(centroids), sizes)
        labels = []
        for i in (0, 1):
            labels.append(f"principal direction {i + 1} ({100 * parts[i]:.0f}%)")
    axes = []
    for i, label in enumerate(labels):
        if d > 2 or bounds is None:
            axis = around(places[:, i].tolist(), label)
        else:
            axis = Axis(label, float(bounds[0][i]), float(bounds[1][i]))
        axes.append(axis)
    # The area of a circle shows the size. Without positive sizes all circles are equal.
    if counts is None:
        drawn = 0.15 * relative
    elif sizes.any():
        drawn = relative
    else:
        drawn = np.full(k, 0.09)
    radii = np.maximum(_SMALLEST_DOT, _LARGEST_DOT * np.sqrt(drawn))
    dots = []
    # The largest is drawn first, so that small circles are above large ones.
    for cluster in run.order:
        title = f"cluster {cluster}"
        if counts is not None:
            title += f", size {counts[cluster]:,.0f}"
        dot = Dot(
            name=str(cluster) if k <= _NAMED_DOTS else "",
            x=float(places[cluster, 0]),
            y=float(places[cluster, 1]) if d > 1 else 0.0,
            radius=float(radii[cluster]),
            title=title,
            colour=colour_of(centroids[cluster]) if run.are_colours else None,
        )
        dots.append(dot)
    return {
        **_table(run),
        **_profiles(run),
        "weights": _weights(run),
        "shares": (sizes / (sizes.sum() or 1.0)).tolist(),
        "axes": axes,
        "dots": dots,
    }


def _table(run: Outcome) -> dict[str, Any]:
    """Return the shown clusters, and their rows of the table of centroids."""
    columns = run.profiles[:MAX_COLUMNS]
    cells = [_cells(column) for column in columns]
    shown = run.order[:MAX_ROWS].tolist()
    return {
        "shown": shown,
        "columns": [column.name for column in columns],
        "numbers": [i for i, column in enumerate(columns) if not column.is_category],
        "n_columns": len(run.profiles),
        "rows": [[column[cluster] for column in cells] for cluster in shown],
        "mean": ["all clusters", *map(_mean, columns)],
        "bounds": _last_row(run)[: MAX_COLUMNS + 1],
    }


def _cells(column: ColumnProfile) -> list[str]:
    """Return the value of each cluster in a column, in the user's units.

    A category has its most frequent levels.
    """
    if not column.is_category:
        (row,) = column.rows
        if row.kind == "date":
            return list(row.texts)
        if row.kind == "logarithm":
            return texts((10.0**row.values).tolist())
        return texts(row.values.tolist())
    shares = np.array([row.values for row in column.rows])
    cells = []
    for own in shares.T:
        cells.append(_levels(column, own))
    return cells


def _levels(column: ColumnProfile, shares: FloatArray) -> str:
    """Return the most frequent levels of a category in words, of their shares, (m,)."""
    order = np.argsort(-shares, kind="stable")[:_MOST_LEVELS].tolist()
    words = []
    for level in order:
        if words and shares[level] < _LEAST_SHARE:
            break
        share = column.rows[level].text(float(shares[level]))
        words.append(f"{column.levels[level]} {share}")
    return ", ".join(words)


def _mean(column: ColumnProfile) -> str:
    """Return the mean of all clusters in a column, in the user's units."""
    if column.is_category:
        return _levels(column, np.array([row.mean for row in column.rows]))
    (row,) = column.rows
    return row.text(row.mean)


def _profiles(run: Outcome) -> dict[str, Any]:
    """Return the clusters and columns of the picture of profiles, and its scale."""
    columns = most_separating(run.profiles)[:_PROFILE_COLUMNS]
    cards = []
    for cluster in run.order[:_PROFILE_CLUSTERS].tolist():
        lines = [_profile_line(column, cluster) for column in columns]
        cards.append((cluster, lines))
    return {
        "cards": cards,
        "n_profile_columns": len(columns),
        "most": largest_deviation(columns),
    }


def _profile_line(column: ColumnProfile, cluster: int) -> ProfileLine:
    """Return the line of a column in the profile of a cluster."""
    level = 0
    if column.is_category:
        level = int(np.argmax([row.values[cluster] for row in column.rows]))
    row = column.rows[level]
    return ProfileLine(
        column.name,
        column.texts[cluster],
        row.text(row.mean),
        float(row.deviations[cluster]),
    )


def _kind(domain: Domain) -> str:
    """Return the kind of a domain in words."""
    if isinstance(domain, Box):
        return "Box"
    if isinstance(domain, Sphere):
        return "Sphere (directions: records are divided by their length)"
    return "Ball"


def _last_row(run: Outcome) -> list[str]:
    """Return the bounds below the table of centroids: a name, and a cell for each column.

    A sphere has none.
    """
    domain = run.domain
    if isinstance(domain, Sphere):
        return []
    if not isinstance(domain, Box):
        cells = [f"{coordinate:.4g}" for coordinate in domain.center]
        return [f"within {domain.radius:.4g} of", *cells]
    cells = []
    for column in run.profiles:
        row = column.rows[0]
        both = f"{row.text(row.low)} to {row.text(row.high)}"
        cells.append("" if column.is_category else both)
    return ["bounds", *cells]


def _weights(run: Outcome) -> str:
    """Return the weights of columns in words; empty where all are the usual ones."""
    if not isinstance(run.domain, Box) or not run.domain.is_weighted:
        return ""
    pairs = run.domain.weights_by_name().items()
    return ", ".join(f"{name} {weight:.4g}" for name, weight in pairs)


def _sized(run: Outcome) -> dict[str, Any] | None:
    """Return the sizes of the shown clusters with the largest first, and their axis."""
    sizes = run.sizes
    counts = run.counts
    if sizes is not None:
        counts = np.array(sizes.counts)
    if counts is None:
        return None
    interval = run.size_interval
    low, high = (counts, counts) if interval is None else interval.T
    least = None
    most = None
    order = np.argsort(-counts, kind="stable")
    if sizes is not None:
        least = sizes.min_size or None
        most = sizes.max_size
    if sizes is not None and len(order) > MAX_ROWS:  # then those nearest to a bound
        room = low - sizes.min_size
        if most is not None:
            room = np.minimum(room, most - high)
        tightest = np.argsort(room, kind="stable")[:MAX_ROWS]
        order = order[np.isin(order, tightest)]
    order = order[:MAX_ROWS]
    shares = weights_of(counts)
    rows = []
    for cluster in order.tolist():
        row = SizeRow(
            cluster,
            float(counts[cluster]),
            float(low[cluster]),
            float(high[cluster]),
            float(shares[cluster]),
            "" if sizes is None else sizes.bounds_kept[cluster],
        )
        rows.append(row)
    bounds = [float(bound) for bound in (least, most) if bound is not None]
    longest = max(*(row.high for row in rows), *(row.size for row in rows), 1.0)
    # From 0, so that the lengths of bars compare as the sizes do.
    axis = Axis(run.report.counted, 0.0, 1.05 * max(longest, *bounds, 1.0))
    return {
        "least": least,
        "most": most,
        "rows": rows,
        "axis": axis,
        "is_known": interval is not None,
        "margin": None if interval is None else _margin(run, counts),
    }


def _margin(run: Outcome, counts: FloatArray) -> float:
    """Return the half width of the sizes' intervals, in records."""
    if run.sizes is not None:
        return run.sizes.margin
    return run.report.size_margin(len(counts)) or 0.0


def _round_lines(report: Report) -> list[RoundLine]:
    """Return a line for each round, or for several in which all clients answered alike."""
    away = Counter(entry.round for entry in _missed(report))
    eventful = {entry.round for entry in (*report.dropped, *report.incidents)}
    lines: list[RoundLine] = []
    numbered = enumerate(zip(report.answers, report.factors, strict=False), 1)
    for number, (answered, factor) in numbered:
        is_lost = number in report.lost_rounds
        is_quiet = number not in eventful and not is_lost
        line = RoundLine(number, number, answered, away[number], factor, is_lost)
        before = lines[-1] if lines else None
        if before is not None and is_quiet and before.last not in eventful:
            if before == line._replace(first=before.first, last=before.last):
                lines[-1] = before._replace(last=number)
                continue
        lines.append(line)
    return lines


def _missed(report: Report) -> set[Missed]:
    """Return the rounds that clients missed, each once."""
    return {Missed(entry.round, entry.node_id) for entry in report.dropped}


def _failure(run: Outcome) -> Failure | None:
    """Return where an unfinished run ended; ``None`` of a finished one."""
    report = run.report
    if run.is_finished:
        return None
    number = report.n_rounds + 1 if report.attempts else 0
    entries = {
        entry.node_id: entry
        for entry in (*report.dropped, *report.incidents)
        if entry.round == number
    }
    by_reason: dict[str, list[str]] = {}
    for entry in entries.values():
        who = f"node {entry.node_id}"
        if entry.client >= 0:
            who = f"client {entry.client}"
        by_reason.setdefault(entry.reason, []).append(who)
    reasons = []
    for reason, names in by_reason.items():
        more = len(names) - _NAMED_CLIENTS
        shown = names[:_NAMED_CLIENTS] + ([f"{more} more"] if more > 0 else [])
        reasons.append(f"{', '.join(shown).capitalize()}: {reason}")
    spent = None
    if number and report.is_private:
        spent = replace(report.plan, rounds=report.plan.rounds[:number]).epsilon()
    return Failure(number, len(entries), reasons, spent)


def _notices(run: Outcome) -> tuple[list[Notice], list[Notice]]:
    """Return the notices that a reader must know first, and further ones.

    All of those that deny something are among the first.
    """
    report = run.report
    n_missed = len({entry.node_id for entry in report.dropped})
    lines = lines_of(
        "report/notices.txt.j2",
        run=run,
        report=report,
        failure=_failure(run),
        n_missed=n_missed,
    )
    found: list[Notice] = []
    for line in lines:
        if line.strip():
            kind, about, words = line.split(" | ", 2)
            found.append(Notice(kind, about, words))
    found.sort(key=lambda notice: _KINDS.index(notice.kind))
    n_bad = sum(notice.kind == "bad" for notice in found)
    most = max(n_bad, _MOST_NOTICES)
    return found[:most], found[most:]


def numbers_shown(synopsis: Synopsis, n_clusters: int) -> range:
    """Return the numbers of clusters whose costs a page shows, also the run's number."""
    most = max(_USUAL_NUMBERS, min(n_clusters + 5, _MOST_NUMBERS))
    return range(1, min(most, len(synopsis.weights)) + 1)


@lru_cache(maxsize=1)  # report.json and the page both have it
def elbow_shown(synopsis: Synopsis, n_clusters: int) -> Elbow:
    """Return the costs of `numbers_shown`."""
    return synopsis.elbow(numbers_shown(synopsis, n_clusters))


def _numbers(run: Outcome) -> dict[str, Any] | None:
    """Return the costs of other numbers of clusters, and the tree of the parts."""
    synopsis = run.synopsis
    if synopsis is None:
        return None
    elbow = elbow_shown(synopsis, run.n_clusters)
    n_parts = len(synopsis.weights)
    rows = zip(
        elbow.n_clusters.tolist(),
        elbow.costs.tolist(),
        elbow.interval.tolist(),
        elbow.gaps.tolist(),
        strict=True,
    )
    tree = None
    if 1 < n_parts <= MOST_IN_TREE:
        tree = _tree(synopsis.hierarchy(), run.n_clusters)
    return {
        "elbow": elbow,
        "rows": list(rows),
        "n_parts": n_parts,
        "users_units": synopsis.cost_unit is not None,
        "axes": (
            Axis("clusters", 0.5, max(elbow.n_clusters[-1] + 0.5, 2.0)),
            Axis("cost", 0.0, 1.05 * float(elbow.interval.max())),
        ),
        "tree": tree,
    }


def _tree(tree: FloatArray, n_clusters: int) -> dict[str, Any]:
    """Return a dendrogram's links, four points each, and its cut into clusters."""
    from scipy.cluster.hierarchy import dendrogram

    n_leaves = min(len(tree) + 1, _MOST_LEAVES)
    drawn = dendrogram(tree, p=n_leaves, truncate_mode="lastp", no_plot=True)
    # The first height merges two clusters. The last one, 0, merges none.
    heights = np.append(tree[::-1, 2], 0.0)
    cut = None
    if 1 < n_clusters <= n_leaves:
        cut = float(heights[n_clusters - 2] + heights[n_clusters - 1]) / 2
    links = []
    for across, up in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        links.append(list(zip(across, up, strict=True)))
    return {
        "links": links,
        "cut": cut,
        "n_leaves": n_leaves,
        "axes": (
            Axis("", 0.0, 10.0 * n_leaves),
            Axis("height", 0.0, 1.05 * float(heights[0])),
        ),
    }


# --------------------------------------------------------------------------- templates


def column_parts(n_columns: int, fit: int) -> list[list[int]]:
    """Return the columns of each part of a table, at most ``fit``.

    The first column is in every part.
    """
    if n_columns <= fit:
        return [list(range(n_columns))]
    starts = range(1, n_columns, fit - 1)
    return [[0, *range(start, min(start + fit - 1, n_columns))] for start in starts]


# They are here and not in templates.py, because reports in text do not need them.
TEMPLATES = environment()
TEMPLATES.filters.update(
    px=lambda value: f"{value:.2f}", commas=lambda value: f"{value:,.0f}"
)
_FUNCTIONS = (
    Axis,
    PlotFrame,
    colour_of,
    column_parts,
    detection,
    whole,
    zip,
)
for _function in _FUNCTIONS:
    TEMPLATES.globals[_function.__name__] = _function
TEMPLATES.globals.update(exp=math.exp, confidence=CONFIDENCE)
