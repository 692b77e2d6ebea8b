"""Limits on the findings on a table, beyond which `check` refuses it, with reasons.

No usable table exceeds them by chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flower_kmeans.data.findings import ColumnFindings, Findings

# Names that stand in place of a column in accepted findings:
LINES = "lines"  # malformed lines
RECORDS = "records"  # null records, and records outside a ball
FILES = "files"  # a table that others than its owner can read


@dataclass(frozen=True)
class CheckLimit:
    """A fault of tables, the largest fraction that passes, and the reason of the limit.

    Without a fraction the fault is always refused.
    """

    what: str
    most: float | None
    why: str

    @property
    def text(self) -> str:
        """Return the limit in words."""
        if self.most is None:
            return self.what
        return f"more than {self.most:.0%} {self.what}".replace("%", " %")


UNREADABLE = CheckLimit(
    "of a column's cells unreadable",
    0.05,
    "its format is not the declared one, such as a decimal comma",
)
MISSING = CheckLimit(
    "of a column's cells missing",
    0.20,
    "these records are left out, or their common value becomes a cluster",
)
OUTSIDE = CheckLimit(
    "of a column's values outside the bounds",
    0.05,
    "they are moved to the bounds, often because of a different unit",
)
MALFORMED = CheckLimit(
    "of the lines malformed",
    0.01,
    "the delimiter or the quotes are wrong",
)
VOID = CheckLimit(
    "of the records counting as none",
    0.50,
    "the clusters would describe the other records only",
)
EMPTY = CheckLimit(
    "a column without a value",
    None,
    "each record is left out, or all are equal in it",
)
CONSTANT = CheckLimit(
    "a column with one value only", None, "it does not distinguish records"
)
ROW_NUMBERS = CheckLimit(
    "a column that looks like a number of rows",
    None,
    "clusters would follow the order of the file",
)
ID = CheckLimit("a column that looks like an id", None, "its distances mean nothing")
NOTHING = CheckLimit(
    "no usable record", None, "the node would answer like a node without records"
)

LIMITS = (
    *(UNREADABLE, MISSING, OUTSIDE, MALFORMED, VOID),
    *(EMPTY, CONSTANT, ROW_NUMBERS, ID, NOTHING),
)
"""All limits, in the order of docs/deploy.md."""


@dataclass(frozen=True)
class Judgement:
    """Findings on a table in words, with fractions and without numbers of records.

    Attributes
    ----------
    refused : list of str
        Findings above a limit.
    accepted : list of str
        Findings above a limit that pass for a given reason.
    notes : list of str
        Findings below the limits.
    """

    refused: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def limits_in_words() -> str:
    """Return all limits in one sentence."""
    return f"{'; '.join(limit.text for limit in LIMITS)}."


def share_text(share: float) -> str:
    """Return a fraction in words, rounded to a percent."""
    if share == 0.0:
        return "none"
    if share == 1.0:
        return "all"
    if share < 0.01:
        return "under 1 %"
    if share > 0.99:
        return "over 99 %"
    return f"about {share:.0%}".replace("%", " %")


def judge(
    findings: "Findings", accepted: Mapping[str, str], share_outside_ball: float = 0.0
) -> Judgement:
    """Return a table's findings, sorted into refused, accepted and noted ones.

    Parameters
    ----------
    findings : Findings
    accepted : mapping from str to str
        Reasons in words by column, by ``"lines"`` for malformed lines, and by
        ``"records"`` for null records and records outside a ball.
    share_outside_ball : float
        Fraction of the records outside the bounds, if these are a ball.
    """
    judged = Judgement()
    for column in findings.columns:
        for limit, share, text in _of_column(column):
            _sort(
                judged,
                limit,
                share,
                f"{column.name!r} {text}",
                accepted.get(column.name),
            )
    n_records = findings.n_records
    if findings.n_malformed:
        share = findings.n_malformed / n_records
        text = f"{share_text(share)} of the lines are malformed"
        _sort(judged, MALFORMED, share, text, accepted.get(LINES))
    if share_outside_ball:
        text = f"{share_text(share_outside_ball)} of the records are outside the ball"
        _sort(judged, OUTSIDE, share_outside_ball, text, accepted.get(RECORDS))
    if findings.n_void == n_records:
        _sort(judged, NOTHING, 1.0, NOTHING.what, None)
    elif findings.n_void:
        share = findings.n_void / n_records
        text = f"{share_text(share)} of the records count as none"
        _sort(judged, VOID, share, text, accepted.get(RECORDS))
    return judged


def too_narrow(findings: "Findings", share_outside_ball: float = 0.0) -> list[str]:
    """Return in words where more values than `OUTSIDE` allows lie outside the bounds."""
    most = OUTSIDE.most or 0.0
    found = []
    for column in findings.columns:
        for limit, share, text in _of_column(column):
            if limit is OUTSIDE and share > most:
                found.append(f"{column.name!r} {text}")
    if share_outside_ball > most:
        found.append(
            f"{share_text(share_outside_ball)} of the records are outside the ball"
        )
    return found


def _of_column(column: "ColumnFindings") -> list[tuple[CheckLimit, float, str]]:
    """Return the findings on a column, each as (limit, fraction, words)."""
    from flower_kmeans.data.findings import NOT_READ

    found = []
    n = column.n_records
    if column.n_unreadable:
        share = column.n_unreadable / n
        text = f"holds {NOT_READ[column.kind]} in {share_text(share)} of its cells"
        if column.cause is not None:
            text += f", which look like {column.cause}"
        found.append((UNREADABLE, share, text))
    if column.n_missing and not column.is_empty:
        share = column.n_missing / n
        found.append(
            (MISSING, share, f"has no value in {share_text(share)} of its cells")
        )
    if column.n_outside:
        share = column.n_outside / column.n_read
        text = f"is outside the bounds with {share_text(share)} of its values"
        found.append((OUTSIDE, share, text))
    looks = (
        (EMPTY, column.is_empty),
        (ROW_NUMBERS, column.looks_like_row_numbers),
        (ID, column.looks_like_id and not column.looks_like_row_numbers),
        (CONSTANT, column.is_constant),
    )
    found += [(limit, 1.0, f"is {limit.what}") for limit, is_found in looks if is_found]
    return found


def _sort(
    judged: Judgement, limit: CheckLimit, share: float, text: str, reason: str | None
) -> None:
    """Add a finding to the notes, or to the accepted or refused findings."""
    if limit.most is not None and share <= limit.most:
        judged.notes.append(text)
    elif reason is not None:
        judged.accepted.append(f"{text}, accepted because: {reason}")
    else:
        most = (
            "" if limit.most is None else f"limit {limit.most:.0%}: ".replace("%", " %")
        )
        judged.refused.append(f"{text} ({most}{limit.why})")
