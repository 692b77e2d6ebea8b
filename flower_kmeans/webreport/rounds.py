"""Who answered in which round, and what went wrong."""

from flower_kmeans.privacy.report import CommitteeReport, Dropped, Report
from flower_kmeans.webreport.charts import round_chart
from flower_kmeans.webreport.markup import Markup, facts, number, paragraph, section, table, tag
from flower_kmeans.webreport.outcome import Outcome

_MAX_INCIDENTS = 300


def rounds_section(outcome: Outcome) -> Markup:
    """Return the section about rounds, and about clients that did not answer as they should."""
    report = outcome.report
    missing = missing_by_round(report)
    least = report.min_clients
    planned = len(report.plan.rounds)
    words = (
        f"{report.n_rounds} of {planned} rounds in {number(report.seconds, 3)} s and "
        f"{report.round_trips} round trips, with {report.n_clients} clients; a sum needs at least "
        f"{least} of them, and a round has {report.max_attempts} attempts at most. There were "
        f"{report.attempts} attempts, and {report.repeats} repeated requests for sum-shares."
    )
    if report.trust_model.shares_noise:
        words += " Noise is given as a multiple of the planned standard deviation."
    parts = [paragraph(words)]
    if report.committee is not None:
        parts.append(facts(committee_facts(report.committee)))
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
        shared = report.trust_model.shares_noise
        rows = [
            (t, came + away, came, away, *([number(noise)] if shared else []), released)
            for t, (came, away, noise, released) in enumerate(
                zip(report.answers, missing, report.factors, _released(report), strict=False), 1
            )
        ]
        head = ["round", "asked", "answered", "missing", *(["noise"] if shared else []), "released"]
        right = tuple(range(len(head) - 1))
        values = table(head, rows, caption="Clients by round", right=right)
        parts.append(tag("div", tag("figure", chart, legend), values, class_="pair"))
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
            f"The run ended before round {report.n_rounds + 1} was complete. The run's error names "
            "the clients that were silent then."
        )
        ended.append(paragraph(words))
    elif not entries:
        return [paragraph("No client failed: all clients answered every round and the delivery.")]
    if not entries:
        return ended
    ordered = sorted(entries, key=lambda entry: entry.round)
    rows = [
        (
            _when(entry.round, len(report.plan.rounds)),
            "-" if entry.client < 0 else entry.client,
            entry.node_id,
            _what(entry),
            "yes" if (entry.round, entry.node_id) in dropped else "no",
        )
        for entry in ordered[:_MAX_INCIDENTS]
    ]
    head = ["when", "client", "node", "what", "missed"]
    parts = [*ended, table(head, rows, caption="What was not an orderly reply", right=(1, 2))]
    if len(ordered) > _MAX_INCIDENTS:
        parts.append(paragraph(f"And {len(ordered) - _MAX_INCIDENTS} more, in the report."))
    return parts


def committee_facts(committee: CommitteeReport) -> list[tuple[str, object]]:
    """Return what a reader has to know about a committee: names and values."""
    pairs: list[tuple[str, object]] = [
        ("committee, positions (m)", committee.n_positions),
        ("present", committee.n_present),
        ("may be corrupt (f)", committee.n_corrupt),
        ("shares that say nothing (tau)", committee.privacy),
        ("words in one element of a share (k)", committee.packing),
        ("sum-shares that open a sum (R)", committee.threshold),
    ]
    if committee.epoch is not None:
        pairs += [
            ("drawn with epoch", committee.epoch),
            ("and beacon", committee.beacon),
            ("more corrupt ones with probability", "at most 2^-40"),
        ]
    return pairs


def _what(entry: Dropped) -> str:
    """Return why a client is listed, with its software where that is the reason."""
    if entry.kind != "differs":
        return entry.reason
    return f"{entry.reason} Its software: {entry.software or 'not stated'}."


def _released(report: Report) -> list[str]:
    """Return what each round released."""
    return [
        "lost: the sum could not be opened"
        if number in report.lost_rounds
        else ", ".join(release.name for release in releases) or "-"
        for number, releases in enumerate(report.plan.rounds, 1)
    ]


def _when(round_number: int, planned: int) -> str:
    if round_number < 1:
        return "enrolment"
    return "delivery" if round_number > planned else f"round {round_number}"
