"""Who answered in which round, and what went wrong."""

from collections.abc import Sequence

from flower_kmeans.privacy.report import Report
from flower_kmeans.webreport.charts import round_chart
from flower_kmeans.webreport.markup import Markup, number, paragraph, section, table, tag
from flower_kmeans.webreport.outcome import Outcome

_MAX_INCIDENTS = 300
_OPENINGS = {
    "simple": "Sums were opened for the server by single clients.",
    "deferred": (
        "Sums were opened for the server by more than half of the clients together, with the "
        "answers to the next round."
    ),
    "immediate": (
        "Sums were opened for the server by more than half of the clients together, in a hop of "
        "its own after each round."
    ),
}


def rounds_section(outcome: Outcome) -> Markup:
    """Return the section about rounds, and about clients that did not answer as they should."""
    report = outcome.report
    missing = missing_by_round(report)
    least = report.min_clients
    planned = len(report.plan.rounds)
    words = (
        f"{report.n_rounds} of {planned} rounds in {number(report.seconds, 3)} s, with "
        f"{report.n_clients} clients; a sum needs at least {least} of them, and a round is asked "
        f"for {report.max_attempts} times at most."
    )
    parts = [paragraph(words)]
    if report.opening in _OPENINGS:
        parts.append(paragraph(_OPENINGS[report.opening]))
    if report.answers:
        chart = round_chart(
            "round-chart",
            "Clients by round",
            f"Clients that answered: {', '.join(map(str, report.answers))}.",
            report.answers,
            missing,
            least,
        )
        legend = tag(
            "figcaption",
            tag("span", tag("i", class_="key answered"), "answered"),
            *([tag("span", tag("i", class_="key missed"), "missing")] if any(missing) else []),
            tag("span", tag("i", class_="key limit"), f"at least {least} behind a sum"),
            class_="legend",
        )
        rows = [
            (t, came + away, came, away, ", ".join(names) or "-")
            for t, (names, came, away) in enumerate(
                zip(_names(report), report.answers, missing, strict=False), 1
            )
        ]
        head = ["round", "asked", "answered", "missing", "released"]
        told = table(head, rows, caption="Clients by round", right=(0, 1, 2, 3))
        parts.append(tag("div", tag("figure", chart, legend), told, class_="pair"))
    parts += _incidents(report)
    return section("rounds", "Rounds and faults", *parts)


def missing_by_round(report: Report) -> list[int]:
    """Return how many clients each completed round went on without."""
    away = {(entry.round, entry.node_id) for entry in report.dropped}
    return [sum(t == round_ for round_, _ in away) for t in range(1, len(report.answers) + 1)]


def _incidents(report: Report) -> list[Markup]:
    dropped = {(entry.round, entry.node_id) for entry in report.dropped}
    entries = dict.fromkeys([*report.dropped, *report.incidents])
    ended: list[Markup] = []
    if report.n_rounds < len(report.plan.rounds):
        words = (
            f"The run ended before round {report.n_rounds + 1} was complete. Whoever was silent "
            "then is named by the run's error, and not here."
        )
        ended.append(paragraph(words))
    elif not entries:
        return [paragraph("No client failed: everyone answered every round and the delivery.")]
    if not entries:
        return ended
    ordered = sorted(entries, key=lambda entry: entry.round)
    rows = [
        (
            _when(entry.round, len(report.plan.rounds)),
            "-" if entry.client < 0 else entry.client,
            entry.node_id,
            entry.reason,
            "yes" if (entry.round, entry.node_id) in dropped else "no",
        )
        for entry in ordered[:_MAX_INCIDENTS]
    ]
    head = ["when", "client", "node", "what", "missed"]
    parts = [*ended, table(head, rows, caption="What was not an orderly answer", right=(1, 2))]
    if len(ordered) > _MAX_INCIDENTS:
        parts.append(paragraph(f"And {len(ordered) - _MAX_INCIDENTS} more, in the report."))
    return parts


def _names(report: Report) -> Sequence[list[str]]:
    return [[release.name for release in releases] for releases in report.plan.rounds]


def _when(round_number: int, planned: int) -> str:
    if round_number < 1:
        return "enrolment"
    return "delivery" if round_number > planned else f"round {round_number}"
