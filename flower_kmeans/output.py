"""What a finished run leaves behind: its files, and the tables that a user reads.

The files can hold records: the centroid of a small cluster in a run without privacy, or bounds that
were read off. So their owner alone may read them.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flower_kmeans.clustering import Clustering
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import csv_name, open_private, printable
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.report import Report

_MAX_ROWS = 24
_MAX_COLUMNS = 6
_CURVE = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


def prepare_directory(output: Path) -> None:
    """Create the directory for results, before anything is spent.

    Raises
    ------
    ConfigurationError
        If it cannot be created or written to.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another command may have removed it
    except OSError as error:
        raise ConfigurationError(
            f"Expected output to be a directory that can be written to. "
            f"Got {output} instead: {error.strerror}."
        ) from None


def write_centroids(
    output: Path,
    centroids: NDArray[np.float64],
    counts: NDArray[np.float64],
    columns: Sequence[str],
) -> list[str]:
    """Write centroids and noisy sizes to ``centroids.npz`` and ``centroids.csv``.

    Parameters
    ----------
    output : Path
        An existing directory.
    centroids : ndarray of shape (k, d)
        In the user's units.
    counts : ndarray of shape (k,)
        Noisy cluster sizes.
    columns : sequence of d str
        Names of the columns. The csv file has them as `csv_name` writes them.

    Returns
    -------
    list of str
        Names of the files.
    """
    names = [str(column) for column in columns]
    with open_private(output / "centroids.npz") as file:
        np.savez(file, centroids=centroids, counts=counts, columns=np.array(names))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["cluster", "noisy_size", *map(csv_name, names)])
    for cluster, (size, centroid) in enumerate(zip(counts, centroids, strict=True)):
        writer.writerow([cluster, repr(float(size)), *(repr(float(x)) for x in centroid)])
    _write(output / "centroids.csv", text.getvalue())
    return ["centroids.npz", "centroids.csv"]


def _write(path: Path, text: str) -> None:
    with open_private(path) as file:
        file.write(text.encode("utf-8"))


def write_report(output: Path, report: Mapping[str, Any]) -> list[str]:
    """Write plain values to ``report.json`` and return its name."""
    text = json.dumps(_jsonable(report), indent=2, allow_nan=False)
    _write(output / "report.json", text + "\n")
    return ["report.json"]


def write_page(output: Path, page: str) -> list[str]:
    """Write what `html_report` returned to ``report.html`` and return its name."""
    _write(output / "report.html", page)
    return ["report.html"]


def print_clusters(
    console: Console, clustering: Clustering, columns: Sequence[str], *, colours: bool
) -> None:
    """Print the clusters, largest first, with their sizes: noisy ones, if the run was private."""
    counts, centroids = clustering.counts, clustering.centroids
    shown = list(columns[:_MAX_COLUMNS])
    more = len(columns) - len(shown)
    table = Table(title="What was learned", title_justify="left")
    table.add_column("cluster", justify="right")
    if colours:
        table.add_column("colour")
    table.add_column("noisy size" if clustering.report.is_private else "size", justify="right")
    table.add_column("share", justify="right")
    for column in shown:
        table.add_column(Text(printable(column)), justify="right")
    if more:
        table.add_column(f"{more} more")
    total = float(np.maximum(counts, 0).sum())
    digits = [decimals(centroids[:, i]) for i in range(len(shown))]
    order = np.argsort(-counts, kind="stable")
    for cluster in order[:_MAX_ROWS]:
        share = max(float(counts[cluster]), 0.0) / total if total > 0 else 0.0
        cells: list[str | Text] = [str(cluster)]
        if colours:
            cells.append(_swatch(centroids[cluster]))
        cells += [f"{counts[cluster]:,.0f}", f"{share:.1%}"]
        cells += [f"{centroids[cluster, i]:,.{digits[i]}f}" for i in range(len(shown))]
        table.add_row(*cells, *(["..."] if more else []))
    console.print(table)
    if len(order) > _MAX_ROWS:
        console.print(
            f"and {len(order) - _MAX_ROWS} smaller clusters, in centroids.csv", style="dim"
        )


def print_cost(
    console: Console,
    report: Report,
    statements: Sequence[str],
    *,
    facts: Sequence[tuple[str, str]],
    not_private: str | None = None,
) -> None:
    """Print what the run cost: its guarantee, and who was there; then what it rests on.

    Parameters
    ----------
    console : Console
        Where to print.
    report : Report
        Of the run.
    statements : sequence of str
        The report's, and what else the user must know.
    facts : sequence of (str, str)
        Further rows.
    not_private : str, optional
        Why the run was not private in spite of its noise.
    """
    table = Table(title="What it cost", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    if not_private is not None:
        table.add_row("privacy", Text(f"NOT PRIVATE ({not_private})", style="bold red"))
    for name, value in (*_guarantee(report), *facts):
        table.add_row(name, Text(value))
    for warning in report.warnings:
        table.add_row("warning", Text(warning))
    console.print(table)
    for statement in statements:
        console.print(Text(f"- {statement}", style="dim"))


def print_plan(
    console: Console,
    plan: PrivacyPlan,
    *,
    size_noise: float | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> None:
    """Print a plan's releases, what they rest on, and delta as a function of epsilon.

    Parameters
    ----------
    console : Console
        Where to print.
    plan : PrivacyPlan
    size_noise : float, optional
        Standard deviation of the noise of the last cluster sizes.
    facts : sequence of (str, str)
        Names and values of what else the noise follows from: trust, numbers of clients.
    """
    console.print(Text(plan.describe()))
    if facts:
        text = ", ".join(f"{name} {value}" for name, value in facts)
        console.print(Text(f"{text[0].upper()}{text[1:]}."), soft_wrap=True)
    if not plan.is_private:
        return
    if size_noise is not None:
        console.print(
            Text(f"A cluster's size is known up to noise of about {size_noise:.3g} records.")
        )
    table = Table(title="delta by epsilon", title_justify="left")
    table.add_column("epsilon", justify="right")
    table.add_column("delta", justify="right")
    epsilon = float(plan.epsilon())
    for factor in _CURVE:
        delta = float(plan.delta(epsilon * factor))
        style = "bold" if factor == 1.0 else None
        table.add_row(f"{epsilon * factor:.4g}", f"{delta:.3g}", style=style)
    console.print(table)


def _guarantee(report: Report) -> Iterator[tuple[str, str]]:
    if report.epsilon is None:
        yield "privacy", "NOT PRIVATE (no noise was added)"
    else:
        yield "epsilon", f"{report.epsilon:.4g} per {report.unit}"
        yield "delta", f"{report.delta:.3g}"
        yield "mu", "-" if report.mu is None else f"{report.mu:.4g}"
    if report.clip is not None:
        yield "clip", report.clip_text
    yield "trust", report.trust
    yield "rounds", str(report.n_rounds)
    missing = {entry.client for entry in report.dropped}
    yield (
        "clients",
        f"{report.n_clients}"
        + (f" ({len(missing)} missed a round)" if missing else "")
        + f", at least {report.min_clients} behind a sum",
    )
    if report.epsilon is not None:
        factor = noise_text(report.noise_factor, report.added_noise_factor)
        yield "noise", f"{factor} times the planned standard deviation"


def noise_text(noise_factor: float, added: float) -> str:
    """Return a noise factor, and what it was before noise beyond the plan was removed."""
    factor, before = f"{noise_factor:.4g}", f"{added:.4g}"
    return factor if factor == before else f"{factor} ({before} before removal)"


def _swatch(centroid: NDArray[np.float64]) -> Text:
    red, green, blue = (int(c) for c in np.clip(np.rint(centroid), 0, 255))
    return Text.assemble(
        ("   ", f"on rgb({red},{green},{blue})"), f" #{red:02x}{green:02x}{blue:02x}"
    )


def decimals(column: NDArray[np.float64]) -> int:
    """Return how many decimals show four digits of a column's largest value."""
    largest = float(np.abs(column).max(initial=0.0))
    return int(np.clip(3 - math.floor(math.log10(largest)), 0, 9)) if largest > 0 else 0


def _jsonable(value: Any) -> Any:
    """Return plain values; JSON has no infinity and no NaN, so those become text."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, np.generic):
        return _jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return value
