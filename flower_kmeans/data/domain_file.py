"""The first mistake in a domain.toml, in one sentence with its line, column and key.

TOML's parser returns no line numbers, so they are looked up in the text.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import parsed_toml

_TABLE = re.compile(
    r"^[ \t]*\[\[[ \t]*(?:columns|\"columns\"|'columns')[ \t]*\]\]", re.MULTILINE
)
_TOP = ("columns", "from_records", "tighten", "persons")
_SHOWN = 60  # most characters of a value in a message


class _Key(NamedTuple):
    """The rule for a key: its expected value in words, the check, and whether it is needed."""

    expected: str
    is_kind: Callable[[Any], bool]
    is_needed: bool


def _is_number(value: Any) -> bool:
    # In Python a bool is an int.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_date(value: Any) -> bool:
    # In Python a datetime is a date.
    return isinstance(value, date) and not isinstance(value, datetime)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_scale(value: Any) -> bool:
    return _is_text(value) and value in ("linear", "log")


_NAME = _Key("text in quotes", _is_text, True)
_NUMBER = "a number without quotes"
_DATE = "a date without quotes, such as 2024-02-29"
KEYS: dict[str, dict[str, _Key]] = {
    "number": {
        "name": _NAME,
        "lower": _Key(_NUMBER, _is_number, True),
        "upper": _Key(_NUMBER, _is_number, True),
        "scale": _Key('"linear" or "log"', _is_scale, False),
        "missing": _Key(_NUMBER, _is_number, False),
        "weight": _Key(_NUMBER, _is_number, False),
    },
    "category": {
        "name": _NAME,
        "values": _Key('texts in quotes, such as ["a", "b"]', _is_texts, True),
        "missing": _Key("text in quotes", _is_text, False),
        "weight": _Key(_NUMBER, _is_number, False),
    },
    "date": {
        "name": _NAME,
        "lower": _Key(_DATE, _is_date, True),
        "upper": _Key(_DATE, _is_date, True),
        "missing": _Key(_DATE, _is_date, False),
        "weight": _Key(_NUMBER, _is_number, False),
    },
}
ROUND_KEYS: dict[str, dict[str, _Key]] = {
    "ball": {
        "columns": _Key('names in quotes, such as ["x", "y"]', _is_texts, True),
        "radius": _Key(_NUMBER, _is_number, True),
        "center": _Key("a number for each column", _is_numbers, False),
    },
    "sphere": {
        "columns": _Key('names in quotes, such as ["x", "y"]', _is_texts, True),
    },
}
"""Keys of the table of a domain that compares columns of numbers together."""


def content_of(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file ``domain.toml``.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The domain file {path} cannot be read: {error.strerror}."
        ) from None


def parsed(text: str | bytes, what: str) -> tuple[dict[str, Any], str]:
    """Return the content of a domain.toml, and its text without a byte order mark.

    Raises
    ------
    ConfigurationError
        If it is not TOML in UTF-8. The error calls the text ``what``.
    """
    try:
        if isinstance(text, bytes):
            decoded = text.decode("utf-8")
        else:
            decoded = text
        # Some editors begin a file with a byte order mark.
        decoded = decoded.removeprefix("\ufeff")
        return parsed_toml(decoded), decoded
    except ValueError as error:
        raise ConfigurationError(
            f"Expected the {what} as a domain. It is not TOML: {error}. "
            "Text stands in quotes, a date is 2024-12-31, and a number has a decimal point."
        ) from None


def mistake_in_round(values: Mapping[str, Any], text: str) -> str | None:
    """Return a sentence about the first mistake in a file with [ball] or [sphere].

    ``None`` if there is none. The file has this one table only.
    """
    first = next(name for name in values if name in ROUND_KEYS)
    for key in values:
        if key != first:
            # A key of the table may have the same name, so the line is unclear.
            place = place_of(None, key)
            return f"{place}: expected [{first}] alone; got {key!r} as well."
    table = values[first]
    if not isinstance(table, dict):
        place = place_of(_line_of_key(text, first), first)
        return f"{place}: expected a table [{first}]; got {_shown(table)}."
    keys = ROUND_KEYS[first]
    for key in table:
        if key not in keys:
            return f"{place_of(_line_of_key(text, key), key)}: {unknown_key(key, keys)}"
    for key, rule in keys.items():
        place = place_of(_line_of_key(text, key if key in table else first), key)
        if key not in table:
            if rule.is_needed:
                return f"{place}: expected {rule.expected}; got nothing."
        elif not rule.is_kind(table[key]):
            return f"{place}: expected {rule.expected}; got {_shown(table[key])}."
    return None


def mistake(values: Mapping[str, Any], text: str) -> str | None:
    """Return a sentence about the first mistake in a domain.toml, or ``None``.

    ``values`` are the parsed content of ``text``, which gives the line numbers.
    """
    for key in values:
        if key not in _TOP:
            return f"{place_of(_line_of_key(text, key), key)}: {unknown_key(key, _TOP)}"
    columns = values.get("columns")
    if not isinstance(columns, list) or not columns:
        place = place_of(_line_of_key(text, "columns"), "columns")
        got = "nothing" if columns is None else _shown(columns)
        return f"{place}: expected a [[columns]] for each column; got {got}."
    for key in ("from_records", "persons"):
        if not isinstance(values.get(key, False), bool):
            place = place_of(_line_of_key(text, key), key)
            return f"{place}: expected true or false; got {_shown(values[key])}."
    if "tighten" in values and not _is_number(values["tighten"]):
        place = place_of(_line_of_key(text, "tighten"), "tighten")
        return f"{place}: expected {_NUMBER}; got {_shown(values['tighten'])}."
    names = set()
    for i, column in enumerate(columns):
        found = _mistake_in(i, column, text)
        if found is not None:
            return found
        name = column["name"]
        if name in names:
            place = place_of(line_of(text, i, "name"), "name", name)
            return f"{place}: expected another name in each column; got {name!r} once more."
        names.add(name)
    return None


def _mistake_in(i: int, column: Any, text: str) -> str | None:
    if not isinstance(column, dict):
        return f"Column {i + 1}: expected a table [[columns]]; got {_shown(column)}."

    def at(key: str) -> str:
        line = line_of(text, i, key)
        return place_of(line, key, column.get("name", i + 1))

    kind = column.get("kind")
    if not isinstance(kind, str) or kind not in KEYS:
        got = "nothing" if kind is None else _shown(kind)
        hint = _did_you_mean(kind, KEYS)
        return (
            f'{at("kind")}: expected "number", "category" or "date"; got {got}{hint}.'
        )
    keys = KEYS[kind]
    for key in column:
        if key != "kind" and key not in keys:
            return f"{at(key)}: {unknown_key(key, ('kind', *keys))}"
    for key, rule in keys.items():
        if key not in column:
            if rule.is_needed:
                return f"{at(key)}: expected {rule.expected}; got nothing."
        elif not rule.is_kind(column[key]):
            value = column[key]
            hint = ""
            if key == "scale":
                hint = _did_you_mean(value, ("linear", "log"))
            return f"{at(key)}: expected {rule.expected}; got {_shown(value)}{hint}."
    return None


def line_of(text: str, column: int, key: str | None = None) -> int | None:
    """Return the number of a column key's line, or else of the line of its [[columns]].

    Lines count from 1, columns from 0. Return ``None`` if the line is unclear.
    """
    if _is_unclear(text):
        return None
    starts = list(_TABLE.finditer(text))
    if column >= len(starts):
        return None  # written as columns = [{...}]
    place = starts[column].end()
    stop = len(text)
    if column + 1 < len(starts):
        stop = starts[column + 1].start()
    if key is not None:
        found = _key(key).search(text, place, stop)
        if found is not None:
            place = found.end()
    return text.count("\n", 0, place) + 1


def unknown_key(key: str, known: Collection[str]) -> str:
    """Return the message about an unknown key."""
    hint = _did_you_mean(key, known)
    return f"expected one of {', '.join(known)}; got {key!r}{hint}."


def _did_you_mean(value: Any, known: Collection[str]) -> str:
    near = get_close_matches(value, known, 1) if isinstance(value, str) else []
    return f" (did you mean {near[0]!r}?)" if near else ""


def place_of(line: int | None, key: str | None, column: Any = None) -> str:
    """Return a place in a file as the beginning of a sentence: "Line 3, column 'age'"."""
    parts = [] if line is None else [f"line {line}"]
    if column is not None:
        parts.append(f"column {column!r}")
    if key is not None:
        parts.append(f"key {key!r}")
    place = ", ".join(parts)
    return place[0].upper() + place[1:]


def _line_of_key(text: str, key: str) -> int | None:
    """Return the number of the line of a key, or table, at the top level of the file.

    Lines count from 1. Return ``None`` if the line is unclear.
    """
    if _is_unclear(text):
        return None
    found = _key(key).search(text)
    if found is None:
        pattern = rf"^[ \t]*\[+[ \t]*{_spelled(key)}[ \t]*\]"
        found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        return None
    return text.count("\n", 0, found.end()) + 1


def _key(key: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*{_spelled(key)}[ \t]*=", re.MULTILINE)


def _spelled(key: str) -> str:
    name = re.escape(key)
    return f"(?:{name}|\"{name}\"|'{name}')"


def _is_unclear(text: str) -> bool:
    # Text over several lines may hold lines that look like keys.
    return '"""' in text or "'''" in text


def _shown(value: Any) -> str:
    """Return a value as TOML writes it, in one line, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        shown = f"the text {json.dumps(value)}"
    elif isinstance(value, dict):
        shown = "a table"
    else:
        shown = str(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
