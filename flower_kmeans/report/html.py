"""A run's report as one HTML page without scripts, network or the plots extra.

``page.html.j2`` has the sentences of the page, with ``notices.txt.j2``, ``figures.svg.j2``
and ``page.css``. `Outcome` holds the data of a page: all of it is public or released, never
a record.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from flower_kmeans.algorithms.released import CONFIDENCE
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain, Sphere
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, KMeansError
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.report.clustering import Clustering, FinishedRun
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.figures import Axis, PlotFrame
from flower_kmeans.report.outcome import Outcome
from flower_kmeans.report.report import Report
from flower_kmeans.report.shown_clusters import colour_of, learned_of, sized_of
from flower_kmeans.report.shown_rounds import (
    missed_of,
    notices_of,
    release_lines,
    round_lines,
)
from flower_kmeans.report.synopsis import MOST_IN_TREE, Elbow, Synopsis
from flower_kmeans.templates import environment
from flower_kmeans.version import __version__

_REACH = 2.5  # length of the axis of epsilon, in epsilons of the run
_POINTS = 241
_USUAL_NUMBERS = 20
_MOST_NUMBERS = 60
_MOST_LEAVES = 60
_LONG_WORD = 11  # characters: longer words may be broken in a table
# a date or a small number, at whose hyphen no line may break
_WHOLE = re.compile(r"(?:\d{4}-\d\d-\d\d|\d[\d.]*e-\d+)[,;]?")


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
        Of a simulated run, with k-means without privacy (`Clustering.compare`). It is
        exact, and the page says so.

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
    require_type("comparison", comparison, Comparison | None, "a Comparison")
    outcome = _outcome_of(run, result, columns, not_private)
    outcome = replace(outcome, comparison=comparison)
    return page_of(outcome, title, facts, outcome.report.versions)


def page_of(
    run: Outcome,
    title: str | None,
    facts: Sequence[tuple[str, str]],
    versions: Mapping[str, str],
) -> str:
    """Return the page of a run's outcome.

    ``versions`` are the versions of the software that made the run. The other parameters
    are those of `html_report`.
    """
    report = run.report
    first, further = notices_of(run)
    template = TEMPLATES.get_template("report/page.html.j2")
    page = template.render(
        run=run,
        report=report,
        title=title,
        facts=facts,
        domain=_kind(run.domain),
        releases=release_lines(report.plan),
        curve=_curve(report),
        first=first,
        further=further,
        comparison=run.comparison,
        missed=missed_of(report),
        rounds=round_lines(report),
        learned=learned_of(run),
        sized=sized_of(run),
        numbers=_numbers(run),
        versions=versions,
        version=__version__,  # of this page's writer
    )
    # All line breaks are layout of the templates, because values cannot hold any.
    page = re.sub(r"(?<=>)\s*\n\s*|\s*\n\s*(?=<)", "", page)
    return "<!doctype html>\n" + re.sub(r"\s*\n\s*", " ", page) + "\n"


# ----------------------------------------------------------------- a run for its page


_KINDS = ("bad", "caution", "fact")


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


def whole(low: float, high: float) -> str:
    """Return an interval of records in whole numbers, rounded outwards."""
    return f"{math.floor(low):,} to {math.ceil(high):,}"


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


def _kind(domain: Domain) -> str:
    """Return the kind of a domain in words."""
    if isinstance(domain, Box):
        return "Box"
    if isinstance(domain, Sphere):
        return "Sphere (directions: records are divided by their length)"
    return "Ball"


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


def breakable(value: object) -> list[object]:
    """Return the parts of a cell's text, between which its line may break.

    Only words longer than `_LONG_WORD` have several. A date is a part that stays whole.
    """
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return [value]
    parts = [""]
    for word in re.split(r"(?<=\s)", value):
        if _WHOLE.fullmatch(word.strip()):
            parts += [word.rstrip(), word[len(word.rstrip()) :]]
            continue
        n_parts = max(1, math.ceil(len(word) / _LONG_WORD))
        size = math.ceil(len(word) / n_parts)
        parts[-1] += word[:size]
        parts += [word[i : i + size] for i in range(size, len(word), size or 1)]
    return [*parts]


def is_unbroken(part: object) -> bool:
    """Return whether no line may break within a part of a cell's text."""
    return isinstance(part, str) and _WHOLE.fullmatch(part) is not None


# They are here and not in templates.py, because reports in text do not need them.
TEMPLATES = environment()
TEMPLATES.filters.update(
    breakable=breakable,
    px=lambda value: f"{value:.2f}",
    commas=lambda value: f"{value:,.0f}",
)
_FUNCTIONS = (
    Axis,
    PlotFrame,
    colour_of,
    column_parts,
    detection,
    is_unbroken,
    whole,
    zip,
)
for _function in _FUNCTIONS:
    TEMPLATES.globals[_function.__name__] = _function
TEMPLATES.globals.update(exp=math.exp, confidence=CONFIDENCE)
