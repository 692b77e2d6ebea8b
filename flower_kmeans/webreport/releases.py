"""What was released and what it cost, and delta as a function of epsilon."""

import math
from collections.abc import Sequence

from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.privacy.report import Report
from flower_kmeans.webreport.charts import Axis, Curve, line_chart, steps
from flower_kmeans.webreport.markup import Markup, join, number, paragraph, section, table, tag
from flower_kmeans.webreport.outcome import Outcome

_TITLE = "What was released, and what it cost"
_POINTS = 241
_REACH = 2.5
_LEAST_DELTA = 1e-15


def releases_section(outcome: Outcome) -> Markup:
    """Return the section with every release of the plan, its noise, and its part of the cost."""
    report = outcome.report
    plan = report.plan
    shares = cost_shares(plan)
    if not plan.releases:
        return section("releases", _TITLE, *_words(report))
    names = [
        (number_, release) for number_, group in enumerate(plan.rounds, 1) for release in group
    ]
    rows = [
        (
            round_number,
            release.name,
            ", ".join(release.blocks),
            f"1 unit in {release.measure}",
            "-" if not release.noise_multiplier else release.mechanism,
            number(release.noise_multiplier),
            _alone(release),
            "-" if share is None else f"{100 * share:.3g}%",
        )
        for (round_number, release), share in zip(names, shares, strict=True)
    ]
    head = ["round", "release", "made of", "sensitivity", "noise", "multiplier", "alone", "share"]
    told = table(
        head,
        rows,
        caption="Every release of the plan",
        right=(0, 5, 7),
        foot=("all", "", "", "", "", "", _together(report), "-" if None in shares else "100%"),
        wide=True,
    )
    return section("releases", _TITLE, *_words(report), told)


def cost_shares(plan: PrivacyPlan) -> list[float | None]:
    """Return the part of the run's cost that is each release's.

    Of mu squared where all noise is Gaussian, since squares add up exactly; of the sum of the
    epsilons where all of it is Laplace noise and delta is 0. Otherwise costs do not add up, and
    there are no shares.
    """
    costs = [release.cost for release in plan.releases]
    if plan.mu is not None:
        return [(cost / plan.mu) ** 2 for cost in costs]
    if plan.is_private and plan.budget.delta == 0:
        total = math.fsum(costs)
        return [cost / total for cost in costs]
    return [None] * len(costs)


def curve_section(outcome: Outcome) -> Markup:
    """Return the section with delta as a function of epsilon; empty without privacy."""
    report = outcome.report
    epsilon, delta = report.epsilon, report.delta
    if epsilon is None or delta is None:
        return Markup("")
    together = report.together
    furthest = max(epsilon, 0.0 if together is None else together.epsilon())
    evenly = steps(_REACH * furthest / (_POINTS - 1), _REACH * furthest, _POINTS)
    epsilons = sorted([*evenly, epsilon])
    low = least_shown(delta)
    curves = [curve_of(report.plan, epsilons, low, "this run", "line-1")]
    if together is not None:
        curves.append(curve_of(together, epsilons, low, "with the run before", "line-2"))
    claimed = f"epsilon {number(epsilon)}, delta {number(delta, 3)}"
    chart = line_chart(
        "delta-curve",
        "delta by epsilon",
        f"The least delta that the run meets at every epsilon; claimed is {claimed}.",
        Axis("epsilon", 0.0, _REACH * furthest),
        Axis("delta", low, 1.0, log=True),
        curves,
        Curve(claimed, [epsilon], [delta]),
    )
    legend = [
        tag("span", tag("i", class_=f"key {curve.style}"), curve.name)
        for curve in curves
        if len(curves) > 1
    ]
    figure = tag("figure", chart, tag("figcaption", *legend, class_="legend"))
    rows = [(number(e), number(d, 3)) for e, d in report.to_dict()["delta_at_epsilon"]]
    values = table(["epsilon", "delta"], rows, caption="The same as numbers", right=(0, 1))
    words = paragraph(
        "The same noise can be read at other epsilons: a smaller epsilon holds but for a larger "
        "delta. The point is what the run claims; the line is exact for Gaussian noise, and an "
        "upper bound where there is Laplace noise."
    )
    pair = tag("div", figure, values, class_="pair")
    return section("curve", "What the same noise means at other epsilons", words, pair)


def curve_of(
    plan: PrivacyPlan, epsilons: Sequence[float], low: float, name: str, style: str
) -> Curve:
    """Return delta(epsilon) of a plan, down to ``low``, which its last point may have instead."""
    deltas = [float(delta) for delta in plan.curve(epsilons)]
    n = sum(delta >= low for delta in deltas) + 1
    x, y = epsilons[:n], [max(delta, low) for delta in deltas[:n]]
    return Curve(name, x, y, "line-2" if style == "line-2" else "line-1")


def least_shown(delta: float) -> float:
    """Return the lower end of the axis of delta: a power of ten well below the claimed one."""
    if delta <= 0:
        return 1e-12
    return max(_LEAST_DELTA, 10.0 ** (math.floor(math.log10(delta)) - 3))


def _words(report: Report) -> list[Markup]:
    if not report.is_private:
        return [paragraph("Nothing was noisy: every answer was exact, and none of it has a price.")]
    whole = report.unit == "client"
    unit = f"one {report.unit}" + (" (as far as it counts)" if whole else "")
    factor = ""
    if report.noise_factor != 1.0:
        factor = (
            f" The noise that was there is {number(report.noise_factor)} times the planned, since "
            "more clients added a share than the plan needs; the cost is that of the planned noise."
        )
    return [
        paragraph(
            f"A unit is the most that {unit} can add to a coordinate; over all coordinates of a "
            "release together it adds no more than 1 in the norm that is named. The multiplier, in "
            "units, is the standard deviation of Gaussian noise, and the scale of Laplace noise."
            f"{factor}"
        ),
        paragraph(_shares_are(report.plan)),
    ]


def _shares_are(plan: PrivacyPlan) -> str:
    if plan.mu is not None:
        return (
            "Alone is what a release would cost if it were the only one. Squares of mu add up "
            "exactly to that of the run, and shares are of that sum."
        )
    if plan.budget.delta == 0:
        return "Alone is what a release would cost if it were the only one. Epsilons add up."
    return (
        "Alone is what a release would cost if it were the only one. All together they cost less "
        "than the sum: their composition is numerical, so there are no shares."
    )


def _together(report: Report) -> Markup:
    if report.epsilon is None or report.delta is None:
        return join(["no guarantee"])
    words = f"epsilon {number(report.epsilon)} at delta {number(report.delta, 3)}"
    return join([words if report.mu is None else f"mu {number(report.mu)}: {words}"])


def _alone(release: Release) -> str:
    if not release.noise_multiplier:
        return "-"
    return f"{'mu' if release.mechanism == 'gaussian' else 'epsilon'} {number(release.cost)}"
