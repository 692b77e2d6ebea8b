"""The items of the papers: what is printed there, and the command that makes it here."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.rows import Selection

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("items.toml")
KINDS = ("figure", "table", "theorem", "algorithm")
DATA_DIR = "DIR"
"""The word of a command in whose place the directory of data sets is put."""
_NUMBER = re.compile(r"\d[.,]\d")


@dataclass(frozen=True)
class Item:
    """One item of a paper.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    number : str
        The paper's own number, such as "8.2" or "III.1".
    title : str
        The contents of the item in the paper.
    command : str
        Arguments of Python that make it, from the repository's root. It is empty if
        nothing makes it.
    quick : str
        The same in seconds to a few minutes and without files, on other data and with
        fewer runs.
    printed : str
        The numbers in the paper, or a summary.
    ours : str
        Words on what is here, with a link to its page. Numbers come from the rows.
    why : str
        The reason for a difference, or for a missing command.
    missing : tuple of str
        Data sets that were not at hand. `bench.data` reads them from a directory.
    beside : tuple of (str, str, str), or empty
        Two names in the rows' quantities, and "less" or "more": the page counts in how
        many pairs of rows the first has less, or more, than the second.
    tables : tuple of Selection
        Where the rows come from.
    """

    kind: str
    number: str
    title: str
    command: str = ""
    quick: str = ""
    printed: str = ""
    ours: str = ""
    why: str = ""
    missing: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    tables: tuple[Selection, ...] = ()

    @property
    def name(self) -> str:
        """The name of the item in its paper."""
        return f"{self.kind} {self.number}"

    @property
    def is_made(self) -> bool:
        """Whether a command makes it."""
        return bool(self.command)


@dataclass(frozen=True)
class Paper:
    """A paper, and its items in the order of the paper."""

    name: str
    title: str
    note: str
    items: tuple[Item, ...]

    def item(self, kind: str, number: str) -> Item:
        """Return an item.

        Raises
        ------
        KeyError
            If the paper has no such item.
        """
        for item in self.items:
            if (item.kind, item.number) == (kind, number):
                return item
        numbers = ", ".join(each.number for each in self.items if each.kind == kind)
        raise KeyError(
            f"Expected a {kind} of {self.name}, one of: {numbers or 'none'}. "
            f"Got {number!r} instead."
        )


def papers(file: Path = FILE) -> dict[str, Paper]:
    """Return the papers by name.

    Raises
    ------
    ValueError
        If an item is incomplete, or stands there twice.
    """
    found = {}
    for name, table in tomllib.loads(file.read_text("utf-8")).items():
        items = tuple(_item(entry) for entry in table["items"])
        _check(name, items)
        found[name] = Paper(name, table["title"], table.get("note", ""), items)
    return found


def _item(entry: Mapping[str, Any]) -> Item:
    given = dict(entry)
    selections = [_selection(each) for each in given.pop("tables", ())]
    for name in ("missing", "beside"):
        given[name] = tuple(given.get(name, ()))
    return Item(**given, tables=tuple(selections))


def _selection(entry: Mapping[str, Any]) -> Selection:
    given = dict(entry)
    for name in ("keys", "columns", "brackets"):
        if name in given:
            given[name] = tuple(given[name])
    return Selection(**given)


def _check(paper: str, items: Sequence[Item]) -> None:
    names = [item.name for item in items]
    for item in items:
        if item.kind not in KINDS or names.count(item.name) > 1:
            raise ValueError(
                f"Expected each {', '.join(KINDS)} of {paper} once. Got {item.name}."
            )
        if item.is_made != bool(item.quick):
            raise ValueError(
                f"Expected 'command' and 'quick' of {paper}, {item.name}, or neither."
            )
        if not item.is_made and not item.why:
            raise ValueError(
                f"Expected the reason why nothing makes {paper}, {item.name}. Got none."
            )
        if item.tables and _NUMBER.search(item.ours):
            raise ValueError(
                f"Expected numbers of {paper}, {item.name}, in its rows alone. "
                f"Got {item.ours!r}."
            )
