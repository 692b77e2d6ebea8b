"""The guarantee in plain words, and what has to be read first."""

import math
from dataclasses import dataclass
from typing import Literal

from scipy.stats import norm

from flower_kmeans.privacy.report import Report
from flower_kmeans.webreport.markup import Markup, facts, number, paragraph, section, table, tag
from flower_kmeans.webreport.outcome import Outcome

_ALARMS = (0.01, 0.05, 0.1)
PARTIES = {
    "passive server": "Against a server that follows the protocol (passive)",
    "active server": "Against a server that breaks the protocol (active)",
    "server and clients": "Against the server together with clients",
    "clients": "Against clients without the server",
    "committee": "Against too many committee members",
}
"""Labels of the parties of ``report.protects_against``."""


@dataclass(frozen=True)
class Notice:
    """A sentence that comes first on the page, and how grave it is."""

    kind: Literal["bad", "fact", "caution"]
    about: str
    words: str


def warnings_of(outcome: Outcome) -> list[Notice]:
    """Return what a reader has to know before anything else, the gravest first."""
    report = outcome.report
    found = [] if outcome.not_private is None else [_bad("Privacy", outcome.not_private)]
    found += [_bad("Privacy", words) for words in report.statements if _is_void(words)]
    if not outcome.is_finished:
        done, planned = report.n_rounds, len(report.plan.rounds)
        words = f"The run did not finish: {done} of {planned} rounds were completed."
        found.append(_bad("Run", words))
    found += [
        Notice("caution", "Faults", words)
        for words in report.statements
        if words.startswith("WARNING")
    ]
    if report.is_private:
        found.append(Notice("fact", "Who sees what", report.statements[0]))
        for party, words in report.protects_against.items():
            if not words.startswith("Yes"):
                found.append(Notice("caution", PARTIES[party], words))
        found += [
            Notice("caution", "Ledger", words)
            for words in report.statements
            if words.startswith("No ledger")
        ]
    missed = {entry.node_id for entry in report.dropped}
    if missed:
        clients = "1 client" if len(missed) == 1 else f"{len(missed)} clients"
        words = f"{clients} missed a round or the delivery; see rounds and faults."
        found.append(Notice("caution", "Faults", words))
    found += [Notice("caution", "Algorithm", note) for note in report.warnings]
    return found


def warnings_section(outcome: Outcome) -> Markup:
    """Return what has to be read first."""
    entries = [
        tag("li", tag("strong", entry.about), " ", entry.words, class_=entry.kind)
        for entry in warnings_of(outcome)
    ]
    if not entries:
        return Markup("")
    return section("first", "Read this first", tag("ul", *entries, class_="warnings"))


def guarantee_section(outcome: Outcome) -> Markup:
    """Return what epsilon and delta mean for this run's unit and trust."""
    report = outcome.report
    if report.epsilon is None or report.delta is None:
        nothing = paragraph(
            "There is none. No noise was added: the server saw every client's exact sums, and the "
            "results are exact. Readers of the results may find out what single records are."
        )
        return section("guarantee", "What is guaranteed, in plain words", nothing)
    head = []
    if outcome.not_private is not None:
        head.append(paragraph(outcome.not_private, class_="bad"))
        head.append(paragraph("But for that, epsilon and delta would mean the following."))
    return section(
        "guarantee",
        "What is guaranteed, in plain words",
        *head,
        *(paragraph(words) for words in plain_words(report)),
        *_told_apart(report),
        facts(_groups(report)),
    )


def plain_words(report: Report) -> list[str]:
    """Return the guarantee of a private run as sentences, from its own figures."""
    epsilon, delta = _guarantee(report)
    whole = report.unit == "client"
    who = "One client with all of its records" if whole else "One record"
    factor = f"e^{number(epsilon)} = {number(math.exp(epsilon), 3)}" if epsilon < 700 else "e^ε"
    words = [
        f"{who} is protected. Take anything that somebody might conclude from all that the run "
        f"released. The probability of it is at most {factor} times what it would be had that "
        f"{report.unit} not been there, plus {number(delta, 3)}; and the other way round."
    ]
    neighbours = report.to_dict()["neighbours"]
    words.append(f"Not being there means: {neighbours}.")
    words.append(_holds_against(report))
    if report.clip is not None:
        words.append(f"How much of a client counts: {report.clip_text}.")
    together = report.protects_against["server and clients"]
    words.append(f"If the server and clients work together, are records protected? {together}")
    if report.together is not None and report.together.budget.delta is not None:
        words.append(
            "The run started from the result of an earlier one. Both together cost epsilon "
            f"{number(report.together.epsilon())} at delta "
            f"{number(report.together.budget.delta, 3)}."
        )
    words += [text for text in report.statements if text.startswith("Not protected")]
    return words


def _holds_against(report: Report) -> str:
    model = report.trust_model
    if not model.is_protected:
        return (
            "It holds against the clients and readers of the results, and not against the server, "
            "which saw every client's exact sums."
        )
    if not model.shares_noise:
        return (
            "It holds against the clients and readers of the results. Against the server masks "
            "protect: it sees masked words only, and adds the noise without learning a result."
        )
    count = "1 client" if report.max_colluders == 1 else f"{report.max_colluders} clients"
    passive = " as long as it is passive," if report.keys == "relayed" else ""
    return (
        f"It holds against readers of the results, the server,{passive} up to {count}, and all of "
        "them together."
    )


def detection(report: Report, alarm: float) -> float:
    """Return how often somebody can at most find out that a record (or client) was there.

    Parameters
    ----------
    report : Report
        Of a private run.
    alarm : float
        In (0, 1): how often they may say so where it was not.

    Returns
    -------
    float
        One minus the trade-off function of the run (Dong, Roth & Su 2022, section 2): for Gaussian
        noise ``Phi(Phi^-1(alarm) + mu)``, which is attained; otherwise what (epsilon, delta)
        allows, ``min(e^epsilon alarm + delta, 1 - e^-epsilon (1 - delta - alarm))``.
    """
    if report.mu is not None:
        return float(norm.cdf(norm.ppf(alarm) + report.mu))
    epsilon, delta = _guarantee(report)
    grown = alarm * math.exp(min(epsilon, 700.0)) + delta
    return min(1.0, grown, 1 - math.exp(-epsilon) * max(0.0, 1 - delta - alarm))


def _told_apart(report: Report) -> list[Markup]:
    words = (
        f"Another way to say it: somebody knows everything but whether one {report.unit} was "
        "there, and sees everything that was released. The more often they may cry wolf, the more "
        "often they are right; guessing alone would be right as often as it is wrong."
    )
    rows = [(f"{alarm:.0%}", f"{_percent(detection(report, alarm))} at most") for alarm in _ALARMS]
    told = table(
        [f"says so although the {report.unit} was not there", "says so when it was"],
        rows,
        caption=f"How often they can find out that the {report.unit} was there",
    )
    return [paragraph(words), told]


def _groups(report: Report) -> list[tuple[str, object]]:
    groups = report.to_dict()["epsilon_of_groups"]
    return [
        (f"epsilon for a group of {size} {report.unit}s", number(value))
        for size, value in groups.items()
    ]


def _guarantee(report: Report) -> tuple[float, float]:
    epsilon, delta = report.epsilon, report.delta
    return (math.inf if epsilon is None else epsilon), (1.0 if delta is None else delta)


def _bad(about: str, words: str) -> Notice:
    return Notice("bad", about, words)


def _is_void(words: str) -> bool:
    return words.startswith("NOT PRIVATE")


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
