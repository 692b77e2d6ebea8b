"""``flower-kmeans inspect``: facts about a table's cells, for the holder of the table alone.

These are facts about records. They must not get into a public domain, a message or a
report. The smallest and the largest value of a column are never shown.
"""

import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flower_kmeans.cli.limits import judge, share_text
from flower_kmeans.data.declared import DeclaredDomain, columns_read, described
from flower_kmeans.data.domain import Ball, Sphere
from flower_kmeans.data.findings import ColumnFindings, ColumnKind, Findings
from flower_kmeans.data.guesses import MOST_CATEGORIES, Guess, guess, read_dates
from flower_kmeans.data.person_findings import PersonFindings
from flower_kmeans.data.persons import text_of
from flower_kmeans.data.reading import Reading, resolved
from flower_kmeans.data.spelling import Spelling, are_missing
from flower_kmeans.data.table_domain import TableDomain, category_of
from flower_kmeans.data.tables import (
    OpenTable,
    TableBlock,
    is_nameless,
    open_table,
    records_of,
    require_apart,
)
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.files import printable, reason_and_cure

FACTS = (
    "FACTS ABOUT RECORDS, for their holder alone: all that is above. Nothing of it may be a bound, "
    "a category or a comment in a file that others see. Bounds come from public knowledge: a form, "
    "a rule, the range of a device. No smallest or largest value is shown."
)
_DRAFT = """\
# A draft of a domain.toml, to be completed from public knowledge: a form, a rule, a device's range.
# NOT FOR OTHERS AS IT IS: the kinds, categories and reasons below were read off records. Compare
# them with what is public, and remove all comments before anybody else sees this file.
"""
_READ_AS: Mapping[str, ColumnKind] = {
    "number": "number",
    "empty": "number",
    "date": "date",
    "category": "text",
    "id": "text",
    "free text": "text",
}


@dataclass
class Inspected:
    """Findings on a table.

    Attributes
    ----------
    opened : OpenTable
    findings : Findings
    guesses : dict from str to Guess
        Guesses by column. It is empty with a domain.
    domain : TableDomain, Ball or Sphere, optional
        The declarations, if they are given.
    categories : dict from str to set of str
        Texts in columns of categories, which are values of records.
    unread : list of str
        Reasons why columns could not be read.
    undeclared : tuple of str
        Columns that the domain does not declare.
    n_outside : int
        Number of records outside a `Ball`.
    """

    opened: OpenTable
    findings: Findings
    guesses: dict[str, Guess] = field(default_factory=dict)
    domain: DeclaredDomain | None = None
    categories: dict[str, set[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    undeclared: tuple[str, ...] = ()
    n_outside: int = 0

    @property
    def used(self) -> list[str]:
        """Columns that a run would cluster by if the user names none."""
        if self.domain is not None:
            return columns_read(self.domain)
        return [
            name
            for name, found in self.guesses.items()
            if found.kind == "number" and name != self.opened.person
        ]

    def left_out(self) -> list[tuple[str, str]]:
        """Return the columns that no run would cluster by, each with the reason."""
        person = self.opened.person
        left_out = [] if person is None else [(person, "ids of persons")]
        if self.domain is not None:
            return left_out + [(name, "not declared") for name in self.undeclared]
        for name, found in self.guesses.items():
            if found.kind != "number" and name != person:
                left_out.append((name, _without_numbers(found)))
        return left_out


def inspect(
    data: str, reading: Reading, domain: DeclaredDomain | None = None
) -> Inspected:
    """Return findings on a table's cells, or only on the columns that a domain declares."""
    named, reading = resolved(data, reading)
    opened = open_table(named, reading)
    if domain is None:
        return _undeclared(opened, reading.spelling)
    names = columns_read(domain)
    read = names
    if opened.person is not None:
        require_apart(opened.person, features=names)
        read = [*names, opened.person]
    table = domain if isinstance(domain, TableDomain) else None
    findings = Findings(tuple(map(ColumnFindings, names)))
    if table is not None:
        findings = table.findings()
    n_outside = 0
    for block in opened.blocks(read):
        records = records_of(block, names, table, findings, reading.spelling)
        _add_persons(findings, block, opened.person)
        if table is None:
            orderly = records[~block.malformed]
            finite = orderly[np.isfinite(orderly).all(axis=1)]
            counted = domain.counted(finite)
            findings.n_void += len(orderly) - len(counted)
            if isinstance(domain, Ball):
                n_outside += int(domain.outside(counted)[0])
    others = tuple(name for name in opened.names if name not in read)
    return Inspected(
        opened, findings, domain=domain, undeclared=others, n_outside=n_outside
    )


def _add_persons(findings: Findings, block: TableBlock, person: str | None) -> None:
    """Count the persons of a block, if their column is named."""
    if person is None:
        return
    if findings.persons is None:
        findings.persons = PersonFindings(person)
    findings.persons.add(map(text_of, block.columns[person].tolist()))


def _undeclared(opened: OpenTable, spelling: Spelling) -> Inspected:
    """Return findings on all columns, whose kinds are guessed from the first records."""
    counts = Counter(opened.names)
    once = [name for name, n in counts.items() if n == 1 and not is_nameless(name)]
    if not once:
        raise DataError(
            f"Expected a name of one column at least in {opened.path}. Got none."
        )
    if opened.person is not None:
        opened.require([opened.person])
    findings = Findings(tuple(map(ColumnFindings, once)))
    found = Inspected(opened, findings)
    for place, name in enumerate(opened.names, 1):
        if name not in once:
            has_name = not is_nameless(name)
            why = f"{name!r} occurs twice" if has_name else "has no name"
            found.unread.append(f"column {place} {why}")
    for block in opened.blocks(once):
        cells = block.whole(once)
        if any(own.ndim != 1 for own in cells.values()):
            raise DataError(
                f"Expected columns of {opened.path} as one cell for each record."
            )
        if not found.guesses:
            found.guesses = {name: guess(own, spelling) for name, own in cells.items()}
            for column in findings.columns:
                column.kind = _READ_AS[found.guesses[column.name].kind]
        _add(found, cells, spelling)
        findings.add_malformed(block.n_malformed, block.first_malformed)
        _add_persons(findings, block, opened.person)
    if not found.guesses:
        found.guesses = dict.fromkeys(once, Guess("empty"))
    _correct(found)
    return found


def _add(
    found: Inspected, cells: Mapping[str, NDArray[Any]], spelling: Spelling
) -> None:
    """Count the cells of a block, and the records that would be null."""
    findings = found.findings
    n_records = len(next(iter(cells.values())))
    is_void = np.zeros(n_records, dtype=bool)
    for column in findings.columns:
        own = cells[column.name]
        guessed = found.guesses[column.name]
        values = _values(own, guessed, spelling)
        column.add(own, values, are_missing(own))
        if guessed.kind == "number" and column.name != found.opened.person:
            is_void |= np.isnan(values)
        if guessed.kind == "category":
            known = found.categories.setdefault(column.name, set())
            present = own[~are_missing(own)].tolist()
            known.update(text for text in map(category_of, present) if text is not None)
    findings.n_records += n_records
    findings.n_void += int(np.count_nonzero(is_void))


def _values(
    own: NDArray[Any], guessed: Guess, spelling: Spelling
) -> NDArray[np.float64]:
    """Return cells as numbers: their own numbers, days, or a number for each text."""
    if guessed.kind in ("number", "empty"):
        values = spelling.numbers(own)
        return np.where(np.isfinite(values), values, np.nan)
    if guessed.kind == "date":
        if guessed.formats:
            spelling = replace(spelling, date_format=guessed.formats[0])
        return read_dates(own, spelling)
    return np.array([float(hash(category_of(cell)) >> 12) for cell in own.tolist()])


def _correct(found: Inspected) -> None:
    """Correct guesses with the records after the first ones."""
    for column in found.findings.columns:
        kind = found.guesses[column.name].kind
        if kind == "empty" and not column.is_empty and column.n_records:
            found.guesses[column.name] = Guess(
                "number" if column.n_read else "free text"
            )
        if kind == "id" and not column.looks_like_id:
            found.guesses[column.name] = Guess("free text")
        if kind == "category" and len(found.categories[column.name]) > MOST_CATEGORIES:
            del found.categories[column.name]
            found.guesses[column.name] = Guess("free text")


# ---------------------------------------------------------------------- what is printed


def show(console: Console, found: Inspected) -> None:
    """Print findings, and that they are not public."""
    findings = found.findings
    has_bounds = isinstance(found.domain, TableDomain)
    bounds = ["outside the bounds"] if has_bounds else []
    table = Table(
        "column",
        "kind",
        "missing",
        "unreadable",
        *bounds,
        Column("look", overflow="fold"),
    )
    for column in findings.columns:
        n = column.n_records
        counts = [_counted(column.n_missing, n), _counted(column.n_unreadable, n)]
        counts += [_counted(column.n_outside, column.n_read)] if has_bounds else []
        name = Text(printable(column.name))
        table.add_row(
            name, _kind(found, column), *counts, Text(printable(_look(found, column)))
        )
    console.print(
        _line(f"{found.opened.path}: {findings.n_records:,} records."), soft_wrap=True
    )
    if not found.opened.has_names:
        console.print(
            _line("The first line is a record: name the columns, --header NAME,NAME."),
            soft_wrap=True,
        )
    console.print(table)
    # Lines are not wrapped, so options can be copied.
    for line in _conclusions(found):
        console.print(_line(line), soft_wrap=True)
    console.print(_line(FACTS, "bold"), soft_wrap=True)


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, overflow="fold")


def _counted(n: int, total: int) -> str:
    return f"{n:,} ({share_text(n / total)})" if n else "none"


def _kind(found: Inspected, column: ColumnFindings) -> str:
    return column.kind if found.domain is not None else found.guesses[column.name].kind


def _look(found: Inspected, column: ColumnFindings) -> str:
    """Return doubts on one column, for its holder to look at."""
    parts = []
    if column.name == found.opened.person:
        return "ids of persons"
    if column.suspicion and _kind(found, column) not in ("empty", "id"):
        parts.append(column.suspicion)
    if column.doubt:
        parts.append(column.doubt)
    if column.n_unreadable and column.cause is not None:
        parts.append(f"looks like {column.cause}")
    guessed = found.guesses.get(column.name, Guess("number"))
    if guessed.formats:
        parts.append(f"--date-format {' or '.join(guessed.formats)}")
    if guessed.kind == "category":
        parts.append(f"{column.n_distinct} categories")
    if found.domain is None and column.looks_like_a_code:
        parts.append("a few whole numbers: is it a code of categories?")
    return "; ".join(parts)


def _conclusions(found: Inspected) -> list[str]:
    """Return sentences on the use of the table in a run, and on the refusals of `check`."""
    findings = found.findings
    used = found.used
    lines = _clustered(found)
    left_out = found.left_out()
    if left_out:
        names = "; ".join(f"{name} ({why})" for name, why in left_out)
        lines.append(f"Left out: {names}.")
    if found.unread:
        lines.append(f"Not read: {'; '.join(found.unread)}.")
    if findings.n_malformed:
        first = findings.first_malformed
        lines.append(
            f"Malformed lines: {findings.n_malformed:,}; the first is line {first:,}."
        )
    lines += _of_persons(found)
    if used:
        why = "a cell that is used is missing without a rule, or unreadable"
        if isinstance(found.domain, Sphere):
            why += ", or all cells are 0"
        lines.append(
            f"{findings.n_void:,} of {findings.n_records:,} records would count as none: {why}."
        )
    if found.n_outside:
        lines.append(
            f"{found.n_outside:,} of {findings.n_records:,} records are outside the ball, and "
            "would be moved to it."
        )
    own = Findings(
        tuple(column for column in findings.columns if column.name in used),
        findings.n_records,
        findings.n_malformed,
        findings.first_malformed,
        findings.n_void,
    )
    refused = judge(own, {}).refused if used else []
    if refused:
        lines.append("At a node, flower-kmeans check would refuse this:")
        lines += [f"  {each}" for each in refused]
    return lines


def _of_persons(found: Inspected) -> list[str]:
    """Return sentences on persons, or on columns that may name them."""
    persons = found.findings.persons
    if persons is not None:
        return [persons.summary(), *persons.doubts()]
    named = [each.name for each in found.findings.columns if each.may_name_persons]
    if not named:
        return []
    names = " or ".join(named)
    return [
        f"Values of {names} repeat. If they name persons, a run that protects one record protects "
        f'no person: take unit="person" (--person {shlex.quote(named[0])}).'
    ]


def _clustered(found: Inspected) -> list[str]:
    """Return the columns that a run would cluster by, in words."""
    if found.domain is not None:
        columns = ", ".join(found.domain.columns or ())
        if not isinstance(found.domain, TableDomain):
            return [f"A run clusters by {' '.join(described(found.domain))}."]
        n_columns = found.domain.n_features
        return [f"A run clusters by {n_columns} columns of the box: {columns}."]
    used = found.used
    if not used:
        return ["There is no column of numbers to cluster by."]
    quoted = [f'"{name}"' if "," in name else name for name in used]
    names = shlex.quote(",".join(quoted))
    lines = [f"A run would cluster by all columns of numbers: --columns {names}."]
    columns_used = [each for each in found.findings.columns if each.name in used]
    doubted = [column.name for column in columns_used if column.suspicion]
    if doubted:
        lines.append(f"Rather leave out: {', '.join(doubted)}.")
    return lines


def _without_numbers(found: Guess) -> str:
    if found.kind in ("category", "date"):
        return f"{found.kind}: declare it in a domain.toml"
    return found.kind


# --------------------------------------------------------------------------- the draft


def draft(found: Inspected) -> str:
    """Return the draft of a domain.toml: questions in comments, without bounds."""
    parts = [_DRAFT]
    left_out = []
    for column in found.findings.columns:
        guessed = found.guesses[column.name]
        why = column.suspicion or (
            "holds free text" if guessed.kind == "free text" else None
        )
        if column.name == found.opened.person:
            why = "has the ids of persons"
        if guessed.kind in ("id", "empty", "free text") or why is not None:
            left_out.append(
                f"# Left out: {column.name}, which {why or 'looks like an id'}."
            )
        else:
            parts.append(_commented(_questions(found, column, guessed)))
    left_out += [f"# Left out: {each}." for each in found.unread]
    return (
        "\n".join([*parts, _commented([line[2:] for line in left_out])]).rstrip("\n")
        + "\n"
    )


def _questions(found: Inspected, column: ColumnFindings, guessed: Guess) -> list[str]:
    """Return questions on one column, and its declaration with question marks."""
    name = column.name
    keys = ["lower = ?", "upper = ?", "missing = ?"]
    if guessed.kind == "category":
        occurring = ", ".join(map(_quoted, sorted(found.categories.get(name, ()))))
        lines = [
            f"{name}: categories. In the records, not for others: {occurring}.",
            "Which ones does the public list have?",
            "Which of them stands for all other cells? Without missing, their records count as "
            "none.",
        ]
        keys = ["values = [?]", "missing = ?"]
    elif guessed.kind == "date":
        lines = [
            f"{name}: dates.",
            "Between which days may they lie, by the rules of the register or the study?",
            "Which day does a missing cell count as? Without missing, its record counts as none.",
        ]
        if guessed.formats:
            formats = " or ".join(guessed.formats)
            lines.insert(
                1,
                f"How are they written, days or months first? --date-format {formats}",
            )
    else:
        lines = [
            f"{name}: numbers.",
            "Which bounds does the form, the rule or the device have? Not those of the records.",
            'Do values span powers of ten, as prices do? Then scale = "log", with lower above 0.',
            "Which number does a missing cell count as? Without missing, its record counts as "
            "none.",
        ]
        if column.n_unreadable and column.cause is not None:
            lines.insert(1, f"How are they written? They look like {column.cause}")
        if column.looks_like_a_code:
            lines.insert(
                1, 'Is it a code of categories? Then kind = "category", with values.'
            )
    kind = guessed.kind
    return [*lines, "[[columns]]", f'kind = "{kind}"', f"name = {_quoted(name)}", *keys]


def _commented(lines: Sequence[str]) -> str:
    return "".join(f"# {printable(line)}\n" for line in lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_draft(path: Path, text: str) -> None:
    """Write a draft to a new file that only its owner may read."""
    try:
        with open(path, "xb", opener=lambda at, how: os.open(at, how, 0o600)) as file:
            file.write(text.encode())
    except FileExistsError:
        raise ConfigurationError(
            f"Expected --draw as a new file. {path} exists."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {reason_and_cure(error)}."
        ) from None
