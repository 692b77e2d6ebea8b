"""Pictures of a clustering: a photograph with its palette, a scatter plot, an elbow.

The first two show the records themselves. They are for those who hold the data, as a simulation
does, and nothing that a private run would publish: their owner alone may read the files. The elbow
shows released values only.
"""

from importlib.util import find_spec
from pathlib import Path

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
    """Write a png: the photograph before and after, and below them the palette.

    Parameters
    ----------
    path : Path
        Where to write.
    image : ndarray of shape (height, width, 3), uint8
        The photograph.
    labels : ndarray of shape (height * width,)
        Nearest cluster of each pixel, row by row.
    centroids : ndarray of shape (k, 3)
        Red, green and blue in 0 to 255.
    counts : ndarray of shape (k,)
        Noisy cluster sizes: the widths of the palette's colours, largest first.
    caption : str
        What the picture after says about itself.

    Raises
    ------
    ConfigurationError
        If Pillow is not installed, or the shapes do not belong together.
    """
    require("PIL", "The picture")
    from PIL import Image, ImageDraw, ImageFont

    height, width = image.shape[:2]
    if labels.shape != (height * width,) or centroids.shape != (len(counts), 3):
        raise ConfigurationError(
            f"Expected a label for each of {height * width} pixels, and 3 columns. "
            f"Got labels of shape {labels.shape} and centroids of shape {centroids.shape} instead."
        )
    colours = np.clip(np.rint(centroids), 0, 255).astype(np.uint8)
    after = colours[labels].reshape(height, width, 3)

    full_width = 2 * width + 3 * _MARGIN
    palette_top = 2 * _MARGIN + _CAPTION + height
    page = Image.new("RGB", (full_width, palette_top + _CAPTION + _SWATCHES + _MARGIN), _PAPER)
    page.paste(Image.fromarray(image), (_MARGIN, _MARGIN + _CAPTION))
    page.paste(Image.fromarray(after), (width + 2 * _MARGIN, _MARGIN + _CAPTION))

    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=20)
    small = ImageFont.load_default(size=13)
    draw.text((_MARGIN, _MARGIN), "before", fill=_INK, font=font)
    draw.text((width + 2 * _MARGIN, _MARGIN), caption, fill=_INK, font=font)
    title = f"the palette of {len(colours)} colours, by noisy size"
    draw.text((_MARGIN, palette_top), title, fill=_INK, font=font)

    top = palette_top + _CAPTION
    edges = _MARGIN + _palette_edges(counts, full_width - 2 * _MARGIN)
    for left, right, cluster in zip(edges, edges[1:], _by_size(counts), strict=False):
        colour = tuple(int(c) for c in colours[cluster])
        draw.rectangle((left, top, right - 1, top + _SWATCHES), fill=colour)
        text = "#{:02x}{:02x}{:02x}".format(*colour)
        if draw.textlength(text, font=small) + 8 <= right - left:
            ink = _PAPER if np.dot(colour, (0.299, 0.587, 0.114)) < 128 else _INK
            draw.text((left + 4, top + _SWATCHES - 20), text, fill=ink, font=small)
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

    Parameters
    ----------
    path : Path
        Where to write.
    records : ndarray of shape (n, d), d >= 2
        In the user's units. Of more than 20,000, evenly spaced ones are drawn.
    labels : ndarray of shape (n,)
        Nearest cluster of each record.
    centroids : ndarray of shape (k, d)
        In the user's units.
    columns : tuple of str
        Names of the columns.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, or there is one column only.
    """
    require("matplotlib", "The picture", extra="plots")
    from matplotlib.figure import Figure

    if centroids.shape[1] < 2:
        raise ConfigurationError("Expected at least 2 columns to plot. Got 1 instead.")
    step = -(-len(records) // _MAX_POINTS) or 1
    shown = records[::step]
    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(
        shown[:, 0], shown[:, 1], c=labels[::step] % 20, s=4, cmap="tab20", vmin=0, vmax=19
    )
    axes.scatter(centroids[:, 0], centroids[:, 1], c="black", s=90, marker="x", label="centroids")
    # Dollars in a name from a file are no formula to set.
    axes.set_xlabel(printable(columns[0]), parse_math=False)
    axes.set_ylabel(printable(columns[1]), parse_math=False)
    axes.set_title(f"{len(centroids)} clusters")
    axes.legend(loc="best")
    with open_private(path) as file:
        figure.savefig(file, format="png")


def save_elbow_picture(path: Path, costs: NDArray[np.float64]) -> None:
    """Write a png: the cost of k-means by the number of clusters.

    Parameters
    ----------
    path : Path
        Where to write.
    costs : ndarray of shape (k_max,)
        For k = 1, 2, ..., as ``FedDPAlgorithm.elbow`` returns them.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, or there is no cost.
    """
    require("matplotlib", "The picture", extra="plots")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if costs.ndim != 1 or not len(costs):
        raise ConfigurationError(f"Expected costs of shape (k_max,). Got {costs.shape} instead.")
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(np.arange(1, len(costs) + 1), costs, marker="o", color="tab:blue")
    axes.set(xlabel="number of clusters", ylabel="cost on the weighted server points")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, format="png")


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def _by_size(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(-counts, kind="stable")
    return order


def _palette_edges(counts: NDArray[np.float64], width: int) -> NDArray[np.int64]:
    """Return where the palette's colours begin and end, in pixels; each has a visible width."""
    sizes = np.maximum(counts[_by_size(counts)], 0.0)
    total = float(sizes.sum())
    shares = sizes / total if total > 0 else np.full(len(sizes), 1 / len(sizes))
    shares = 0.92 * shares + 0.08 / len(shares)
    edges: NDArray[np.float64] = np.rint(np.concatenate([[0.0], np.cumsum(shares)]) * width)
    return edges.astype(np.int64)
