"""What the FedDP-KMeans experiments keep of a run, and how they show it."""

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import Row
from bench.tables import by_key, grouped
from flower_kmeans.report.curves import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEDDP, SYNOPSIS, PE, PACKING, PLUS_PLUS, LLOYD, K_FED, OPTIMUM = METHODS = (
    "FedDP-KMeans",
    "SynopsisKMeans",
    "PE-means",
    "sphere packing + DP-Lloyd",
    "server k-means++ + DP-Lloyd",
    "server Lloyd + DP-Lloyd",
    "k-FED (not private)",
    "optimum (not private)",
)
NOT_PRIVATE = (K_FED, OPTIMUM)
OWN_CLIPS = (FEDDP, SYNOPSIS, PE)
"""Methods with other clips than DP-Lloyd, whatever it starts from."""
FIGURES = {
    "cost / optimum": ("ratio", 4),
    "lost gain": ("lost", 3),
    "cost per record": ("cost", 2),
    "accuracy": ("accuracy", 3),
    "ARI": ("ari", 3),
    "FMI": ("fmi", 3),
    "NMI": ("nmi", 3),
}
"""Columns of the tables: what they show, nan without classes, and with how many decimals."""
COLUMNS = 3
"""Panels beside each other in the plot."""
MEASURES: dict[str, type] = {
    **{name: float for name, _ in FIGURES.values()},
    "trust": str,
    "unit": str,
    "n_clients": int,
    "min_clients": int,
    "noise_factor": float,
    "clip": str,
    "n_rounds": int,
    "epsilon_told": float,
    "delta": float,
    "seconds": float,
    "notes": str,
}


@dataclass(frozen=True)
class Task:
    """One run of one method; what is not private has neither a variant nor an epsilon (0)."""

    table: str
    population: str
    variant: str
    method: str
    epsilon: float
    run: int


# --------------------------------------------------------------------------- tables


def figure_of(name: str, decimals: int) -> Callable[[list[Row]], str]:
    """Return a function that shows mean and interval of a measure."""

    def show(rows: list[Row]) -> str:
        mean, half = interval([row[name] for row in rows])
        if math.isnan(mean):
            return ""
        text = f"{mean:.{decimals}f}"
        return text if math.isnan(half) else f"{text} ± {half:.{decimals}f}"

    return show


def stated(rows: Sequence[Row]) -> str:
    """Say under which guarantee the private runs stand, from their reports."""
    names: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["method"] in NOT_PRIVATE:
            continue
        who = row["method"] if row["method"] in OWN_CLIPS else "DP-Lloyd"
        clip = f", {who}'s clip {row['clip']} ({row['variant']})" if row["clip"] else ""
        fact = (
            f"trust={row['trust']!r}, unit={row['unit']!r}, n_clients={row['n_clients']}, "
            f"min_clients={row['min_clients']}, noise factor {row['noise_factor']:.4g}, "
            f"delta={row['delta']:.3g}{clip}"
        )
        names[fact].add(row["population"])
    return "\n".join(
        f"- {', '.join(sorted(of))}: {fact}." for fact, of in names.items()
    )


def table_of(rows: Sequence[Row]) -> str:
    """Return means and intervals as a markdown table, the guarantee above it, notes below."""

    def place(row: Row) -> tuple[str, float, int]:
        return row["population"], row["epsilon"], METHODS.index(row["method"])

    shown = [
        {**row, "at": f"{row['epsilon']:g}" if row["epsilon"] else ""} for row in rows
    ]
    table = by_key(
        sorted(shown, key=place),
        {"population": "population", "epsilon": "at", "method": "method"},
        {
            "runs": lambda of: str(len(of)),
            **{h: figure_of(*of) for h, of in FIGURES.items()},
        },
        (0, 2),
    )
    lines = [stated(rows), "", table]
    for method in METHODS:
        notes = Counter(
            f"{row['population']}, epsilon {row['epsilon']:g}: {row['notes']}"
            for row in rows
            if row["notes"] and row["method"] == method
        )
        if notes:
            lines += ["", f"Notes of {method}'s reports (and in how many runs):", ""]
            lines += [f"- {note} ({count})" for note, count in notes.items()]
    return "\n".join(lines)


# --------------------------------------------------------------------------- plot


def panels_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs of each panel: a population over epsilon, or what the server misses.

    ``place`` is where a run stands; one that is the same whatever epsilon is stands at
    all.
    """
    panels: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["method"] not in NOT_PRIVATE:
            missing = row["table"] == "missing"
            what = f"epsilon {row['epsilon']:g}" if missing else row["population"]
            place = (
                float(row["population"].partition(" ")[0])
                if missing
                else row["epsilon"]
            )
            panels[f"{row['table']}: {what}, {row['variant']}"].append(
                {**row, "place": place}
            )
    for runs in panels.values():
        at = {(row["table"], row["population"], row["place"]) for row in runs}
        runs += [
            {**row, "place": place}
            for row in rows
            if row["method"] in NOT_PRIVATE
            for place in sorted(
                p for *of, p in at if of == [row["table"], row["population"]]
            )
        ]
    return panels


def plot(rows: Sequence[Row]) -> "Figure":
    """Return mean cost over the optimum's, one panel per population and setting.

    Bands reach from the least to the largest of the runs: few runs have an interval of
    no use.
    """
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    columns = max(1, min(len(panels), COLUMNS))  # none where all runs are not private
    n_rows = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(4.6 * columns, 3.4 * n_rows + 0.4), layout="constrained")
    axes = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    drawn: dict[str, Any] = {}  # a panel need not have all methods
    for (title, runs), panel in zip(panels.items(), axes, strict=False):
        found = grouped(runs, ("method", "place"), "ratio")
        places = sorted({place for _, place in found})
        for number, method in enumerate(METHODS):
            here = [place for place in places if (method, place) in found]
            if here:
                mean, low, high = (
                    [float(of(found[method, place])) for place in here]
                    for of in (np.mean, np.min, np.max)
                )
                line = "--" if method in NOT_PRIVATE else "-"
                color = f"C{number}" if method != OPTIMUM else "0.3"
                (drawn[method],) = panel.plot(
                    here,
                    mean,
                    line,
                    color=color,
                    marker="o",
                    markersize=3,
                    label=method,
                )
                panel.fill_between(here, low, high, color=color, alpha=0.2, lw=0)
        missing = title.startswith("missing")
        if not missing:
            panel.set_xscale("log")
            panel.set_xticks(places, [f"{epsilon:g}" for epsilon in places])
            panel.minorticks_off()
        panel.set_xlabel("components missing at the server" if missing else "epsilon")
        panel.set_ylabel("cost / optimum")
        panel.set_title(textwrap.fill(title, 60), fontsize=8)
        panel.grid(alpha=0.3)
    names = [method for method in METHODS if method in drawn]
    lines = [drawn[name] for name in names]
    look = {"loc": "outside upper center", "ncols": 3, "frameon": False, "fontsize": 8}
    figure.legend(lines, names, **look)
    return figure
