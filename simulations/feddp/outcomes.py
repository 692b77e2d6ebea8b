"""What the FedDP-KMeans experiments keep of a run, and how they show it."""

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from flower_kmeans.bench.tables import interval, markdown

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
FIGURES = {"ratio": 4, "cost": 2, "accuracy": 3, "ari": 3, "fmi": 3, "nmi": 3}
"""Columns of the tables, and the decimals that they show."""
COLUMNS = 3
"""Panels beside each other in the plot."""
HEADINGS = ("cost / optimum", "cost per record", "accuracy", "ARI", "FMI", "NMI")


@dataclass(frozen=True)
class Task:
    """One run of one method; what is not private has neither a variant nor an epsilon (0)."""

    table: str
    population: str
    variant: str
    method: str
    epsilon: float
    run: int


@dataclass(frozen=True)
class Outcome(Task):
    """What one run gave; figures of accuracy are nan where there are no classes."""

    ratio: float
    cost: float
    accuracy: float
    ari: float
    fmi: float
    nmi: float
    trust: str
    unit: str
    n_clients: int
    min_clients: int
    noise_factor: float
    clip: str
    n_rounds: int
    epsilon_told: float
    delta: float
    seconds: float
    notes: str


MEASURES = {
    name: kind
    for name, kind in get_type_hints(Outcome).items()
    if name not in {each.name for each in fields(Task)}
}


# --------------------------------------------------------------------------- tables


def shown(values: Sequence[float], decimals: int) -> str:
    """Return mean and interval as text."""
    mean, half = interval(values)
    if math.isnan(mean):
        return ""
    text = f"{mean:.{decimals}f}"
    return text if math.isnan(half) else f"{text} ± {half:.{decimals}f}"


def grouped(outcomes: Sequence[Outcome]) -> dict[tuple[str, float, str], list[Outcome]]:
    """Return the runs of every population, epsilon and method, in the order of the tables."""
    groups: dict[tuple[str, float, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.population, outcome.epsilon, outcome.method].append(outcome)
    return dict(sorted(groups.items(), key=lambda item: (item[0][:2], METHODS.index(item[0][2]))))


def stated(outcomes: Sequence[Outcome]) -> str:
    """Say under which guarantee the private runs stand, from their reports."""
    names: dict[str, set[str]] = defaultdict(set)
    for each in outcomes:
        if each.method in NOT_PRIVATE:
            continue
        who = each.method if each.method in OWN_CLIPS else "DP-Lloyd"
        fact = (
            f"trust={each.trust!r}, unit={each.unit!r}, n_clients={each.n_clients}, "
            f"min_clients={each.min_clients}, noise factor {each.noise_factor:.4g}, "
            f"delta={each.delta:.3g}"
            + (f", {who}'s clip {each.clip} ({each.variant})" if each.clip else "")
        )
        names[fact].add(each.population)
    return "\n".join(f"- {', '.join(sorted(of))}: {fact}." for fact, of in names.items())


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return means and intervals as a markdown table, the guarantee above it, notes below."""
    rows = []
    for (population, epsilon, method), runs in grouped(outcomes).items():
        cells = [population, f"{epsilon:g}" if epsilon else "", method, str(len(runs))]
        for figure, decimals in FIGURES.items():
            cells.append(shown([getattr(run, figure) for run in runs], decimals))
        rows.append(cells)
    head = ["population", "epsilon", "method", "runs", *HEADINGS]
    lines = [stated(outcomes), "", markdown(head, rows, (0, 2))]
    for method in METHODS:
        notes = Counter(
            f"{each.population}, epsilon {each.epsilon:g}: {each.notes}"
            for each in outcomes
            if each.notes and each.method == method
        )
        if notes:
            lines += ["", f"Notes of {method}'s reports (and in how many runs):", ""]
            lines += [f"- {note} ({count})" for note, count in notes.items()]
    return "\n".join(lines)


# --------------------------------------------------------------------------- plot


def panels_of(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the runs of each panel: a population over epsilon, or what the server misses."""
    panels: dict[str, list[Outcome]] = defaultdict(list)
    flat = [each for each in outcomes if each.method in NOT_PRIVATE]
    for each in outcomes:
        if each.method not in NOT_PRIVATE:
            missing = each.table == "missing"
            what = f"epsilon {each.epsilon:g}" if missing else each.population
            panels[f"{each.table}: {what}, {each.variant}"].append(each)
    for runs in panels.values():
        populations = {(each.table, each.population) for each in runs}
        runs += [each for each in flat if (each.table, each.population) in populations]
    return panels


def plot(outcomes: Sequence[Outcome]) -> "Figure":
    """Return mean cost over the optimum's, one panel per population and setting.

    Bands reach from the least to the largest of the runs: few runs have an interval of no use.
    """
    from matplotlib.figure import Figure

    panels = panels_of(outcomes)
    columns = min(len(panels), COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    axes = axes[: len(panels)]
    for (title, runs), panel in zip(panels.items(), axes, strict=True):
        missing = title.startswith("missing")
        epsilons = sorted({each.epsilon for each in runs if each.epsilon})
        for number, method in enumerate(METHODS):
            points: dict[float, list[float]] = defaultdict(list)
            for each in runs:
                if each.method != method:
                    continue
                if missing:
                    points[float(each.population.partition(" ")[0])].append(each.ratio)
                elif each.epsilon:
                    points[each.epsilon].append(each.ratio)
                else:  # the same whatever epsilon is
                    for epsilon in epsilons:
                        points[epsilon].append(each.ratio)
            if not points:
                continue
            places = sorted(points)
            mean, low, high = (
                [float(figure(points[place])) for place in places]
                for figure in (np.mean, np.min, np.max)
            )
            line = "--" if method in NOT_PRIVATE else "-"
            color = f"C{number}" if method != OPTIMUM else "0.3"
            panel.plot(places, mean, line, color=color, marker="o", markersize=3, label=method)
            panel.fill_between(places, low, high, color=color, alpha=0.2, lw=0)
        if not missing:
            panel.set_xscale("log")
            panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            panel.minorticks_off()
        panel.set_xlabel("components missing at the server" if missing else "epsilon")
        panel.set_ylabel("cost / optimum")
        panel.set_title(textwrap.fill(title, 60), fontsize=8)
        panel.grid(alpha=0.3)
    drawn: dict[str, Any] = {}  # a panel need not have all methods
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        drawn = dict(zip(labels, handles, strict=True)) | drawn
    names = [method for method in METHODS if method in drawn]
    figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=8,
    )
    return figure
