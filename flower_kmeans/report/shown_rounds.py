"""What a page shows of the course of a run: notices, releases, rounds and failures."""

import math
import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from flower_kmeans.algorithms import feddp_stage, pe_means, synopsis_state
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.report.outcome import Outcome
from flower_kmeans.report.report import Report
from flower_kmeans.templates import lines_of

_MOST_NOTICES = 5
_NAMED_CLIENTS = 5
_KINDS = ("bad", "caution", "fact", "further")
# Warnings of algorithms about noise, in their own terms. The page has one sentence in
# plain words for all of them.
_REMARKS = tuple(
    words
    for module in (feddp_stage, pe_means, synopsis_state)
    for words in module.WARNINGS
    if re.search("nois|votes", words)
)


class Notice(NamedTuple):
    """A notice at the top of a page."""

    kind: str  # one of `_KINDS`, the most serious first
    about: str
    words: str


class Failure(NamedTuple):
    """Where a run ended before its last round."""

    number: int  # of the round, from 1; 0 if none began
    n_missing: int  # clients that did not answer in it
    reasons: list[str]  # these clients and why, a sentence for each reason
    spent: float | None  # most epsilon that clients have spent


class ReleaseLine(NamedTuple):
    """A release of one round, or of several in which all releases are the same."""

    first: int
    last: int
    release: Release
    share: float | None  # of the cost, of all these rounds together


class RoundLine(NamedTuple):
    """A line of the table of rounds: one round, or several that were alike."""

    first: int
    last: int
    answered: int
    missing: int
    factor: float  # of the noise's standard deviation to the planned one
    is_lost: bool

    @property
    def asked(self) -> int:
        """Number of clients that were asked."""
        return self.answered + self.missing


class Missed(NamedTuple):
    """A round that a client missed."""

    round: int
    node_id: int


def notices_of(run: Outcome) -> tuple[list[Notice], list[Notice]]:
    """Return the notices that a reader must know first, and further ones.

    All bad ones are among the first.
    """
    report = run.report
    n_missed = len({entry.node_id for entry in report.dropped})
    lines = lines_of(
        "report/notices.txt.j2",
        run=run,
        report=report,
        failure=failure_of(run),
        n_missed=n_missed,
        remarks=_REMARKS,
    )
    found: list[Notice] = []
    for line in lines:
        if line.strip():
            kind, about, words = line.split(" | ", 2)
            found.append(Notice(kind, about, words))
    found.sort(key=lambda notice: _KINDS.index(notice.kind))
    n_bad = sum(notice.kind == "bad" for notice in found)
    n_first = sum(notice.kind != "further" for notice in found)
    most = max(n_bad, min(n_first, _MOST_NOTICES))
    return found[:most], found[most:]


def failure_of(run: Outcome) -> Failure | None:
    """Return where an unfinished run ended; ``None`` of a finished one."""
    report = run.report
    if run.is_finished:
        return None
    number = report.n_rounds + 1 if report.attempts else 0
    entries = {
        entry.node_id: entry
        for entry in (*report.dropped, *report.incidents)
        if entry.round == number
    }
    by_reason: dict[str, list[str]] = {}
    for entry in entries.values():
        who = f"node {entry.node_id}"
        if entry.client >= 0:
            who = f"client {entry.client}"
        by_reason.setdefault(entry.reason, []).append(who)
    reasons = []
    for reason, names in by_reason.items():
        more = len(names) - _NAMED_CLIENTS
        shown = names[:_NAMED_CLIENTS] + ([f"{more} more"] if more > 0 else [])
        reasons.append(f"{', '.join(shown).capitalize()}: {reason}")
    spent = None
    if number and report.is_private:
        spent = replace(report.plan, rounds=report.plan.rounds[:number]).epsilon()
    return Failure(number, len(entries), reasons, spent)


def round_lines(report: Report) -> list[RoundLine]:
    """Return a line for each round, or for several in which all clients answered alike."""
    away = Counter(entry.round for entry in missed_of(report))
    eventful = {entry.round for entry in (*report.dropped, *report.incidents)}
    lines: list[RoundLine] = []
    numbered = enumerate(zip(report.answers, report.factors, strict=False), 1)
    for number, (answered, factor) in numbered:
        is_lost = number in report.lost_rounds
        line = RoundLine(number, number, answered, away[number], factor, is_lost)
        are_quiet = not {number - 1, number} & eventful and not is_lost
        if (
            are_quiet
            and lines
            and lines[-1]._replace(first=number, last=number) == line
        ):
            lines[-1] = lines[-1]._replace(last=number)
        else:
            lines.append(line)
    return lines


def missed_of(report: Report) -> set[Missed]:
    """Return the rounds that clients missed, each once."""
    return {Missed(entry.round, entry.node_id) for entry in report.dropped}


def release_lines(plan: PrivacyPlan) -> list[ReleaseLine]:
    """Return the releases of a plan, those of equal rounds in a row in one line."""
    shares = iter(cost_shares(plan))
    lines: list[ReleaseLine] = []
    before: tuple[Release, ...] = ()
    for number, group in enumerate(plan.rounds, 1):
        of_group = [next(shares) for _ in group]
        if group and group == before:
            for place, share in enumerate(of_group, len(lines) - len(group)):
                line = lines[place]
                total = None
                if line.share is not None and share is not None:
                    total = line.share + share
                lines[place] = line._replace(last=number, share=total)
            continue
        before = group
        for release, share in zip(group, of_group, strict=True):
            lines.append(ReleaseLine(number, number, release, share))
    return lines


def cost_shares(plan: PrivacyPlan) -> list[float | None]:
    """Return each release's fraction of the cost, or ``None`` if costs do not add up.

    Squares of mu add up if all noise is Gaussian, and epsilons if all of it is Laplace
    noise.
    """
    costs = [release.cost for release in plan.releases]
    if plan.mu is not None:
        return [(cost / plan.mu) ** 2 for cost in costs]
    if plan.is_private and plan.budget.delta == 0:
        total = math.fsum(costs)
        return [cost / total for cost in costs]
    return [None] * len(costs)
