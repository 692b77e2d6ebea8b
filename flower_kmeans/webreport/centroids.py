"""What was learned: the centroids as a table and as a plot, made from released values alone."""

import numpy as np

from flower_kmeans.output import decimals
from flower_kmeans.webreport.charts import Axis, Dot, around, scatter_chart
from flower_kmeans.webreport.markup import Markup, escaped, join, number, paragraph, section, tag
from flower_kmeans.webreport.markup import table as table_of
from flower_kmeans.webreport.outcome import FloatArray, Outcome, column_bounds, scaled

MAX_ROWS, MAX_COLUMNS = 200, 64
_NAMED_DOTS = 40
_TOGETHER = 8  # columns of the table on paper
_LARGEST_DOT, _SMALLEST_DOT = 20.0, 4.0


def centroids_section(outcome: Outcome) -> Markup:
    """Return the section with the centroids, or with the reason why there are none."""
    title = "What was learned"
    if outcome.centroids is None:
        if outcome.report.trust_model.is_blind:
            words = (
                "The centroids are with the clients. This page was written by the server, which "
                "must never see them."
            )
        else:
            words = "There are no centroids: the run did not get that far, or they were not given."
        return section("centroids", title, paragraph(words))
    shown = outcome.order[:MAX_ROWS]
    parts = [paragraph(words) for words in _words(outcome, len(shown))]
    figure = tag("figure", *_plots(outcome, outcome.centroids))
    parts += [figure, _table(outcome, outcome.centroids, shown)]
    return section("centroids", title, *parts)


def principal_places(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return points along their first two principal directions.

    Parameters
    ----------
    points : ndarray of shape (k, d), d >= 2
    weights : ndarray of shape (k,)
        Not negative; equal weights if all are 0.

    Returns
    -------
    places : ndarray of shape (k, 2), float64
        Distances from the weighted mean; the largest entry of a direction is positive.
    shares : ndarray of shape (2,), float64
        Of the weighted variance; 0 where there is none.
    """
    if not weights.sum() > 0:
        weights = np.ones(len(points))
    weights = weights / weights.sum()
    centred = points - weights @ points
    _, values, directions = np.linalg.svd(np.sqrt(weights)[:, None] * centred, full_matrices=False)
    first = np.zeros((2, points.shape[1]))
    first[: len(directions[:2])] = directions[:2]
    largest = np.abs(first).argmax(axis=1)
    first *= np.where(first[[0, 1], largest] < 0, -1.0, 1.0)[:, None]
    squares = np.zeros(2)
    squares[: len(values[:2])] = values[:2] ** 2
    total = float((values**2).sum())
    return centred @ first.T, squares / total if total > 0 else np.zeros(2)


def colour_of(centroid: FloatArray) -> str:
    """Return red, green and blue in 0 to 255, (3,), as the name of a colour."""
    red, green, blue = (int(c) for c in np.clip(np.rint(centroid), 0, 255))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _words(outcome: Outcome, n_shown: int) -> list[str]:
    report, k, d = outcome.report, outcome.n_clusters, len(outcome.columns)
    words = [
        f"{k} centroids in {d} {'column' if d == 1 else 'columns'}, in the units of the records"
        + ("." if outcome.counts is None else ", the largest cluster first.")
    ]
    if outcome.counts is not None and report.is_private:
        words.append("Sizes carry noise too: that of an empty cluster may be negative.")
    if n_shown < k:
        words.append(f"The table shows the {n_shown} largest of {k} clusters.")
    if d > MAX_COLUMNS:
        words.append(f"The table shows the first {MAX_COLUMNS} of {d} columns.")
    if report.cost is not None:
        square = "the units of the records" if report.cost.users_units else "the scaled domain"
        words.append(
            f"Released cost of the clustering: {number(report.cost.value, 5)} with a standard "
            f"error of {number(report.cost.standard_error, 3)}, in squares of {square}."
        )
    return words


def _table(outcome: Outcome, centroids: FloatArray, shown: np.ndarray) -> Markup:
    counts, columns = outcome.counts, outcome.columns[:MAX_COLUMNS]
    digits = [decimals(centroids[:, i]) for i in range(len(columns))]
    head: list[object] = ["cluster"]
    if outcome.are_colours:
        head.append("colour")
    if counts is not None:
        head += ["noisy size" if outcome.report.is_private else "size", "share"]
    n_before = len(head)
    head += columns
    shares = _shares(counts)
    rows = []
    for cluster in shown:
        row: list[object] = [int(cluster)]
        if outcome.are_colours:
            name = colour_of(centroids[cluster])
            row.append(join([_swatch(name), " ", name]))
        if counts is not None:
            row += [f"{counts[cluster]:,.0f}", _bar(float(shares[cluster]), float(shares.max()))]
        row += [f"{centroids[cluster, i]:,.{digits[i]}f}" for i in range(len(columns))]
        rows.append(row)
    first = 2 if outcome.are_colours else 1
    return table_of(
        head,
        rows,
        caption="Centroids",
        right=(0, *range(first, len(head))),
        foot=_bounds(outcome, n_before, len(columns)),
        wide=True,
        together=_TOGETHER,
    )


def _bounds(outcome: Outcome, n_before: int, n_columns: int) -> list[object]:
    """Return the last row: the public bounds, or the centre of the public ball."""
    bounds, blank = column_bounds(outcome.domain), [""] * (n_before - 1)
    if bounds is not None:
        pairs = zip(bounds[0][:n_columns], bounds[1][:n_columns], strict=True)
        return ["bounds", *blank, *(f"{number(a)} to {number(b)}" for a, b in pairs)]
    radius = number(float(getattr(outcome.domain, "radius", np.nan)))
    center = getattr(outcome.domain, "center", ())[:n_columns]
    return [f"within {radius} of", *blank, *(number(float(c)) for c in center)]


def _plots(outcome: Outcome, centroids: FloatArray) -> list[Markup]:
    weights = np.maximum(outcome.counts, 0.0) if outcome.counts is not None else None
    sized = np.ones(len(centroids)) if weights is None else weights
    largest = float(sized.max())
    radii = [
        max(_SMALLEST_DOT, _LARGEST_DOT * (float(size) / largest) ** 0.5) if largest > 0 else 6.0
        for size in (sized if weights is not None else 0.15 * sized)
    ]
    d = centroids.shape[1]
    bounds = column_bounds(outcome.domain)
    note = ""
    if d > 2:
        places, shares = principal_places(scaled(centroids, outcome.domain), sized)
        axes = [
            around(places[:, i].tolist(), f"principal direction {i + 1} ({100 * shares[i]:.0f}%)")
            for i in (0, 1)
        ]
        note = (
            "The first two principal directions of the centroids after the scaling of the run, "
            "and how much of their spread each shows."
        )
    else:
        places = centroids
        axes = [
            Axis(str(name), float(bounds[0][i]), float(bounds[1][i]))
            if bounds is not None
            else around(centroids[:, i].tolist(), str(name))
            for i, name in enumerate(outcome.columns)
        ]
    dots = [
        Dot(
            name=str(cluster) if len(centroids) <= _NAMED_DOTS else "",
            x=float(places[cluster, 0]),
            y=float(places[cluster, 1]) if d > 1 else 0.0,
            radius=radii[cluster],
            colour=colour_of(centroids[cluster]) if outcome.are_colours else None,
            told=_told(outcome, int(cluster)),
        )
        for cluster in outcome.order
    ]
    size = "" if weights is None else " A circle's area is the noisy size of its cluster."
    if weights is not None and not outcome.report.is_private:
        size = " A circle's area is the size of its cluster."
    chart = scatter_chart(
        "centroid-chart",
        "Centroids",
        f"{len(centroids)} centroids; their values are in the table.{size}",
        axes[0],
        axes[1] if d > 1 else None,
        dots,
        ticks=d <= 2,
    )
    palette = [_palette(outcome, centroids)] if outcome.are_colours else []
    return [*palette, chart, tag("figcaption", f"{note}{size}".strip())]


def _told(outcome: Outcome, cluster: int) -> str:
    if outcome.counts is None:
        return f"cluster {cluster}"
    return f"cluster {cluster}, size {outcome.counts[cluster]:,.0f}"


def _palette(outcome: Outcome, centroids: FloatArray) -> Markup:
    """Return all colours side by side, as wide as their clusters are large."""
    shares = _shares(outcome.counts) if outcome.counts is not None else np.ones(len(centroids))
    return tag(
        "div",
        *(
            tag(
                "span",
                style=f"background:{colour_of(centroids[cluster])};"
                f"flex-grow:{max(float(shares[cluster]), 0.004):.4f}",
                title=colour_of(centroids[cluster]),
            )
            for cluster in outcome.order
        ),
        class_="palette",
        role="img",
        aria_label="The colours of all centroids, largest cluster first",
    )


def _swatch(name: str) -> Markup:
    return tag("span", class_="swatch", style=f"background:{name}")


def _bar(share: float, largest: float) -> Markup:
    width = 100 * share / largest if largest > 0 else 0.0
    bar = tag("span", class_="bar", style=f"width:{width:.1f}%")
    return join([tag("span", bar, class_="track"), escaped(f"{share:.1%}")])


def _shares(counts: FloatArray | None) -> FloatArray:
    if counts is None:
        return np.zeros(1)
    sizes = np.maximum(counts, 0.0)
    total = float(sizes.sum())
    return sizes / total if total > 0 else np.zeros_like(sizes)
