"""Pictures of a clustering: a photograph with its palette, or a scatter plot.

Pictures show the records themselves, so a private run must not publish them. They are for
holders of the data, such as a simulation. Only the owner of the files can read them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private, printable

_MARGIN = 16
_CAPTION = 34
_SWATCHES = 120
_INK = (30, 30, 30)
_PAPER = (255, 255, 255)
_MAX_POINTS = 20_000


def save_photo_picture(
    path: Path,
    image: NDArray[np.uint8],
    labels: NDArray[np.int64],
    centroids: NDArray[np.float64],
    counts: NDArray[np.float64],
    caption: str,
) -> None:
    """Write a png: the photograph before and after, and its palette, largest first.

    ``image`` is (height, width, 3). ``labels``, (height * width,) row by row, are the
    clusters of its pixels. ``centroids``, (k, 3), are the colours of the clusters, and
    ``counts``, (k,), determine the widths in the palette.
    """
    require("PIL", "The picture")
    from PIL import Image, ImageDraw, ImageFont

    height, width = image.shape[:2]
    if labels.shape != (height * width,) or centroids.shape != (len(counts), 3):
        raise ConfigurationError(
            f"Expected a label for each of {height * width} pixels, and 3 columns. "
            f"Got labels of shape {labels.shape} and centroids of shape {centroids.shape} instead."
        )
    nearest = np.clip(np.rint(centroids), 0, 255)
    colours = nearest.astype(np.uint8)
    after = colours[labels].reshape(height, width, 3)

    full_width = 2 * width + 3 * _MARGIN
    palette_top = 2 * _MARGIN + _CAPTION + height
    full_height = palette_top + _CAPTION + _SWATCHES + _MARGIN
    second_left = width + 2 * _MARGIN
    page = Image.new("RGB", (full_width, full_height), _PAPER)
    page.paste(Image.fromarray(image), (_MARGIN, _MARGIN + _CAPTION))
    page.paste(Image.fromarray(after), (second_left, _MARGIN + _CAPTION))

    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=20)
    small = ImageFont.load_default(size=13)
    draw.text((_MARGIN, _MARGIN), "before", fill=_INK, font=font)
    draw.text((second_left, _MARGIN), caption, fill=_INK, font=font)
    title = f"the palette of {len(colours)} colours, by noisy size"
    draw.text((_MARGIN, palette_top), title, fill=_INK, font=font)

    top = palette_top + _CAPTION
    edges = _MARGIN + _palette_edges(counts, full_width - 2 * _MARGIN)
    order = np.argsort(-counts, kind="stable")
    swatches = zip(edges, edges[1:], order, strict=False)
    for left, right, cluster in swatches:
        colour = tuple(int(each) for each in colours[cluster])
        rectangle = (left, top, right - 1, top + _SWATCHES)
        draw.rectangle(rectangle, fill=colour)
        text = "#{:02x}{:02x}{:02x}".format(*colour)
        if draw.textlength(text, font=small) + 8 <= right - left:
            # Luma by ITU-R BT.601: white letters on dark colours, dark ones on light.
            luma = np.dot(colour, (0.299, 0.587, 0.114))
            ink = _PAPER if luma < 128 else _INK
            place = (left + 4, top + _SWATCHES - 20)
            draw.text(place, text, fill=ink, font=small)
    with open_private(path) as file:
        page.save(file, format="PNG")


def save_scatter_picture(
    path: Path,
    records: NDArray[np.float64],
    labels: NDArray[np.int64],
    centroids: NDArray[np.float64],
    columns: tuple[str, ...],
) -> None:
    """Write a png: records by their first two columns and cluster, and the centroids.

    ``records`` (n, d >= 2) and ``centroids`` (k, d) are in the user's units. If there are
    more than 20,000 records, evenly spaced ones are drawn. ``labels`` (n,) need not name
    the nearest centroids.
    """
    require("matplotlib", "The picture", extra="plots")
    from matplotlib.figure import Figure

    if centroids.shape[1] < 2:
        raise ConfigurationError("Expected at least 2 columns to plot. Got 1 instead.")
    # Every n-th record is drawn, because a random choice would change from run to run.
    step = -(-len(records) // _MAX_POINTS) or 1
    shown = records[::step]
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    dots = colours(labels[::step], len(centroids))
    axes.scatter(shown[:, 0], shown[:, 1], c=dots, s=4)
    x = centroids[:, 0]
    y = centroids[:, 1]
    axes.scatter(x, y, c="black", s=90, marker="x", label="centroids")
    # Dollar signs in a name from a file do not start a formula.
    axes.set_xlabel(printable(columns[0]), parse_math=False)
    axes.set_ylabel(printable(columns[1]), parse_math=False)
    axes.set_title(f"{len(centroids)} clusters")
    axes.legend(loc="best")
    with open_private(path) as file:
        figure.savefig(file, format="png")


def colours(clusters: NDArray[np.int64], n_clusters: int) -> list[Any]:
    """Return the colours of clusters (n,) in pictures of ``n_clusters`` clusters."""
    from matplotlib import colormaps

    # Neighbours in the longer list are shades of one colour, like light and heavy parts.
    n_colours = 10 if n_clusters <= 10 else 20
    palette = colormaps[f"tab{n_colours}"](np.arange(n_colours))
    return list(palette[clusters % n_colours])


def _palette_edges(counts: NDArray[np.float64], width: int) -> NDArray[np.int64]:
    """Return the edges of the palette's colours, in pixels. Every colour is visible."""
    sizes = np.sort(np.maximum(counts, 0.0))[::-1]
    total = float(sizes.sum())
    if total > 0:
        shares = sizes / total
    else:
        shares = np.full(len(sizes), 1 / len(sizes))
    shares = 0.92 * shares + 0.08 / len(shares)  # noise may make a size zero or less
    ends = np.concatenate([[0.0], np.cumsum(shares)])
    edges: NDArray[np.float64] = np.rint(ends * width)
    return edges.astype(np.int64)
