"""Outputs of a finished run: its files, and the lines that the command prints.

The files can reveal records, for example by the centroid of a small cluster in a run
without privacy, or by bounds that were read off. So only their owner may read them.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flower_kmeans.client import ClientResult
from flower_kmeans.files import csv_name, open_private, printable
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.results import result_arrays
from flower_kmeans.report.clustering import Clustering, readable
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.report import Report
from flower_kmeans.report.site_page import site_page
from flower_kmeans.report.site_sizes import SiteSizes
from flower_kmeans.report.synopsis import FILE_NAME

PICTURE = "picture.png"
_MOST_LISTED = 10  # clusters that are printed
OWN_SIZES = "own-sizes.html"
"""Name of the page that a node writes beside its result."""
OWN_FACTS = (
    "FACTS ABOUT RECORDS, for their holder alone: the own sizes are exact. The sizes of all "
    "holders are noisy, and contain these records only if they took part."
)
FILES = (
    "report.html",
    "report.json",
    "centroids.npz",
    "centroids.csv",
    FILE_NAME,
    PICTURE,
)
"""Names of all files that a simulation may write."""


def write_centroids(
    output: Path,
    result: Clustering | ClientResult,
    columns: Sequence[str],
    bounds_from_data: bool = False,
) -> list[str]:
    """Write the files of a result, and return their names.

    They are ``centroids.npz``, ``centroids.csv`` and ``synopsis.npz``, and of a client
    that has its own sizes ``own-sizes.html``.

    The first two contain centroids and noisy sizes. With bounds on sizes they also
    contain the weights of the power cells, and intervals. ``centroids.npz`` also
    contains the domain, and whether the run was private. A run whose bounds are from
    the data was not. The csv file is for people: its columns are `readable`, with names
    as `csv_name` writes them. Only `SynopsisKMeans` has a synopsis.

    With a client's own sizes, ``centroids.npz`` and ``own-sizes.html`` hold exact counts
    of its records, and say so. They must stay at the client.
    """
    names = [str(column) for column in columns]
    counts = result.counts
    weights = result.weights
    sizes = result.size_report
    arrays = result_arrays(result, names)
    arrays["private"] = np.array(result.is_private and not bounds_from_data)
    table: dict[str, Sequence[object]] = {
        "cluster": range(len(counts)),
        "noisy_size": counts.tolist(),
    }
    if weights is not None:
        table["cell_weight"] = weights.tolist()
    if sizes is not None:
        table["size_at_least"], table["size_at_most"] = sizes.interval.T.tolist()
        table["bounds"] = sizes.bounds_kept
    with open_private(output / "centroids.npz") as file:
        np.savez(file, **arrays)
    # The csv module writes its own line ends, which must not be translated.
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    shown = readable(result.centroids, result.domain, names)
    writer.writerow([*table, *(csv_name(name) for name, _ in shown)])
    cells = (
        [v if isinstance(v, float) else csv_name(v) for v in values]
        for _, values in shown
    )
    writer.writerows(zip(*table.values(), *cells, strict=True))
    _write(output / "centroids.csv", text.getvalue())
    written = ["centroids.npz", "centroids.csv", *_write_synopsis(output, result)]
    return [*written, *_write_own_sizes(output, result, names)]


def _write_synopsis(output: Path, result: Clustering | ClientResult) -> list[str]:
    """Write ``synopsis.npz`` if the run released one, else remove an earlier run's file."""
    path = output / FILE_NAME
    if result.synopsis is None:
        path.unlink(missing_ok=True)
        return []
    result.synopsis.save(path)
    return [FILE_NAME]


def _write_own_sizes(
    output: Path, result: Clustering | ClientResult, names: Sequence[str]
) -> list[str]:
    """Write the page of a client's own sizes, else remove that of an earlier run."""
    path = output / OWN_SIZES
    sizes = result.own_sizes if isinstance(result, ClientResult) else None
    if sizes is None:
        path.unlink(missing_ok=True)
        return []
    _write(path, site_page(sizes, result.centroids, result.domain, names))
    return [OWN_SIZES]


def _write(path: Path, text: str) -> None:
    with open_private(path) as file:
        file.write(text.encode("utf-8"))


def write_report(output: Path, report: Mapping[str, Any]) -> list[str]:
    """Write plain values to ``report.json`` and return its name."""
    text = json.dumps(_jsonable(report), indent=2, allow_nan=False)
    _write(output / "report.json", text + "\n")
    return ["report.json"]


def write_page(output: Path, page: str) -> list[str]:
    """Write the page of `html_report` to ``report.html`` and return its name."""
    _write(output / "report.html", page)
    return ["report.html"]


def print_warnings(console: Console, report: Report, statements: Sequence[str]) -> None:
    """Print the warnings of a report, each as a line."""
    lines = [
        words for words in statements if words.startswith(("NOT PRIVATE", "WARNING"))
    ]
    missed = len({entry.node_id for entry in report.dropped})
    if missed:
        lines.append(f"WARNING: {missed} of {report.n_clients} clients missed a round.")
    for words in (*lines, *report.warnings):
        console.print(Text(words, style="bold red"), soft_wrap=True)


def print_own_sizes(sizes: SiteSizes, names: Sequence[str]) -> None:
    """Print own sizes beside the noisy ones, and that they are private."""
    console = Console()
    shown = sizes.table(names)
    first, *others = shown.head
    columns = [Column(name, justify="right") for name in others]
    table = Table(Column(first, overflow="fold"), *columns)
    for row in shown.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    console.print(Text(OWN_FACTS, style="bold"), soft_wrap=True)


def privacy_line(report: Report) -> str:
    """Return the run's cost, its unit of privacy and its trust model, as a line."""
    if report.epsilon is None:
        cost = "NOT PRIVATE (no noise was added)"
    else:
        cost = (
            f"epsilon {report.epsilon:.4g}, delta {report.delta:.3g} per {report.unit}"
        )
    return f"{cost}, trust model {report.trust}"


def print_clusters(
    console: Console, clustering: Clustering, columns: Sequence[str]
) -> None:
    """Print the largest clusters, each as a line with its name and noisy size.

    ``columns`` are names for a domain that has none.
    """
    counts = clustering.counts
    names = cluster_names(clustering.centroids, counts, clustering.domain, columns)
    counted = "persons" if clustering.report.unit == "person" else "records"
    about = "about " if clustering.is_private else ""
    digits = len(str(len(counts) - 1))
    largest = np.argsort(-counts, kind="stable")[:_MOST_LISTED].tolist()
    lines = []
    for cluster in largest:
        size = f"{max(0.0, counts[cluster]):,.0f}"
        lines.append(f"{cluster:>{digits}}  {names[cluster]}: {about}{size} {counted}")
    n_others = len(counts) - len(largest)
    if n_others:
        word = "cluster" if n_others == 1 else "clusters"
        lines.append(f"and {n_others} smaller {word}")
    head = "Clusters"
    for line in lines:
        console.print(Text.assemble((f"{head:9}", "bold"), line), soft_wrap=True)
        head = ""


def print_plan(
    console: Console,
    plan: PrivacyPlan,
    trust: str,
    size_noise: float | None,
    facts: Mapping[str, str],
) -> None:
    """Print the cost of a plan, the size of its noise, and then its releases.

    ``size_noise`` is the standard deviation of the noise of the last cluster sizes, in
    records or persons, if it is known. ``facts`` are the public numbers that determine the noise,
    in words by name.
    """
    lines = [f"Trust model {trust}."]
    if plan.is_private:
        unit = plan.budget.unit
        delta = plan.budget.delta
        lines = [
            f"Epsilon {plan.epsilon():.6g}, delta {delta:.4g} per {unit}, {lines[0].lower()}"
        ]
        if size_noise is not None:
            counted = "persons" if plan.budget.unit == "person" else "records"
            lines += [
                f"A cluster's size is known up to noise of about {size_noise:.3g} {counted}."
            ]
    lines += [
        plan.describe(),
        ", ".join(f"{name} {value}" for name, value in facts.items()),
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def noise_text(noise_factor: float, added: float) -> str:
    """Return a noise factor, and its value before surplus noise was removed."""
    factor = f"{noise_factor:.4g}"
    before = f"{added:.4g}"
    if factor == before:
        return factor
    return f"{factor} ({before} before removal)"


def _jsonable(value: Any) -> Any:
    """Return plain values for JSON, with infinity and NaN as text."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
