"""Declared columns: numbers, logarithms, categories, dates, and missing cells.

A `TableDomain` declares columns from public knowledge, in a file that all parties
share. It turns the cells of a table into records of a `Box`, and points of the box into
values in the user's units. Both happen at the holder of the table. A run agrees on the
box alone, whose column names say how the cells were turned into numbers. Each cell is
read by itself, so no record changes another.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any, Literal, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import (
    CATEGORY_WEIGHT,
    NUMBER_WEIGHT,
    Box,
    Domain,
    Factor,
    check_names,
    check_tighten,
    check_weight,
    checked_by_name,
    difference,
    domain_from_config,
)
from flower_kmeans.data.domain_file import (
    content_of,
    line_of,
    mistake,
    parsed,
    place_of,
)
from flower_kmeans.data.findings import ColumnFindings, Findings
from flower_kmeans.data.frames import frame_of
from flower_kmeans.data.spelling import USUAL, Spelling, are_missing
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    KMeansError,
)
from flower_kmeans.files import parsed_json

# from the name of a column of the box to its lower and upper bound
Coordinates = dict[str, tuple[float, float]]

_EXACT = Context(prec=40)
_ZEROS = 6  # a number that ends in so many zeros is written with an exponent
_EXACT_FLOATS = 2.0**53
_MOST_DIGITS = 4_000  # a little below the digits of an integer that Python converts
_FIRST_DAY = np.datetime64("0001-01-01")
_LAST_DAY = np.datetime64("9999-12-31")
_DAY_ZERO = date(1970, 1, 1).toordinal()  # NumPy counts days from here
_NOT_PUBLIC = """\
# NOT PRIVATE: these bounds and categories were read off records. They are exact facts about single
# records, and no run with this file is private. Replace them by public knowledge, and remove the
# line below, before you use it on private records.
from_records = true

"""


class _DeclarationError(ConfigurationError):
    """A key of a declaration contradicts another one."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class _Column(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"
):
    """The common part of all declarations of a column."""

    name: str


class Number(_Column, tag="number", frozen=True, forbid_unknown_fields=True):
    """A column of numbers between public bounds.

    Attributes
    ----------
    name : str
        The column's name in the table.
    lower, upper : float
        Public bounds in the user's units. Numbers outside are moved to them.
    scale : {"linear", "log"}
        With ``"log"`` records are compared by their decimal logarithm, and a centroid
        is a geometric mean. ``lower`` must then be above 0.
    missing : float, optional
        The public number that replaces a missing cell. Without it, the record is null.
        A cell that is not a finite number is unreadable, and its record is always null.
    weight : float, default: 1.0
        Public. The column counts in distances in proportion to it.
    """

    lower: float
    upper: float
    scale: Literal["linear", "log"] = "linear"
    missing: float | None = None
    weight: float = NUMBER_WEIGHT

    def describe(self) -> str:
        """Return the declaration in words, in the user's units."""
        scale = ", log scale" if self.scale == "log" else ""
        bounds = f"number {number_text(self.lower)} to {number_text(self.upper)}{scale}"
        missing = None if self.missing is None else number_text(self.missing)
        return bounds + _weighing(self) + _counts_as(missing)

    def coordinates(self) -> Coordinates:
        """Return the column of the box, or raise a `ConfigurationError`."""
        above = 0.0 if self.scale == "log" else -np.inf
        _require_order(self.name, self.lower, self.upper, self.missing)
        if not self.lower > above:
            raise _DeclarationError(
                "lower",
                f"Expected lower above 0 in the column {self.name!r}, whose scale is log. "
                f"Got {self.lower!r} instead.",
            )
        if self.scale == "linear":
            return {self.name: (self.lower, self.upper)}
        # All parties must have the same bounds. The logarithms of floats may differ
        # between machines, those of decimals do not.
        bounds = (_decimal_logarithm(self.lower), _decimal_logarithm(self.upper))
        return {f"log10({self.name})": bounds}

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the numbers of `read`."""
        return self.lower, self.upper

    def read(self, cells: NDArray[Any], spelling: Spelling = USUAL) -> FloatArray:
        """Return the cells of a column, (n,), as numbers, (n,), NaN for other cells."""
        values = spelling.numbers(cells)
        return np.where(np.isfinite(values), values, np.nan)

    def place(self, values: FloatArray) -> FloatArray:
        """Return the column of the box, (n, 1), of the numbers of `read`."""
        values = np.clip(values, self.lower, self.upper)
        if self.scale == "log":
            # Rounding may put this logarithm outside the logarithms of the bounds.
            ((low, high),) = self.coordinates().values()
            values = np.clip(np.log10(values), low, high)
        return values[:, None]

    def decode(self, points: FloatArray) -> dict[str, list[Any]]:
        """Return values of the box, (k, 1), in the user's units."""
        if self.scale == "log":
            values = 10.0 ** points[:, 0]
        else:
            values = points[:, 0]
        return {self.name: values.tolist()}


class Category(_Column, tag="category", frozen=True, forbid_unknown_fields=True):
    """A column of categories. The box has a column for each, which holds 1 or 0.

    Attributes
    ----------
    name : str
        The column's name in the table.
    values : tuple of str
        The public categories, two or more. Spaces around a cell do not count. A float
        below 2^53 that equals an integer is read as that integer. Larger floats are in
        no category, because they may be rounded.
    missing : str, optional
        The category, such as "other", of cells that are missing or not in ``values``.
        It is one of ``values``. Without it, such a record is null.
    weight : float, default: 0.5
        Public. Two categories are ``2 weight`` apart, where the range of a number of
        weight 1 is 2 wide.
    """

    values: tuple[str, ...]
    missing: str | None = None
    weight: float = CATEGORY_WEIGHT

    def describe(self) -> str:
        """Return the declaration in words, with at most the first 20 categories."""
        values = [_category_text(value) for value in self.values]
        if self.missing is None:
            missing = None
        else:
            missing = _category_text(self.missing)
        return f"category {shortened(values)}{_weighing(self)}{_counts_as(missing)}"

    def coordinates(self) -> Coordinates:
        """Return the columns of the box, or raise a `ConfigurationError`."""
        check_names(self.values, f"values of the column {self.name!r}")
        stripped = [value for value in self.values if value == value.strip()]
        if len(self.values) < 2 or len(stripped) < len(self.values):
            raise _DeclarationError(
                "values",
                f"Expected values of the column {self.name!r} as two or more, without spaces "
                f"around them. Got {list(self.values)} instead.",
            )
        if self.missing is not None and self.missing not in self.values:
            raise _DeclarationError(
                "missing",
                f"Expected missing of the column {self.name!r} as one of its values "
                f"{list(self.values)}. Got {self.missing!r} instead.",
            )
        return {f"{self.name}={value}": (0.0, 1.0) for value in self.values}

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the numbers of `read`."""
        return 0.0, float(len(self.values) - 1)

    def read(self, cells: NDArray[Any], spelling: Spelling = USUAL) -> FloatArray:
        """Return the index of each cell's category, (n,), NaN for other cells."""
        places: dict[str | None, float] = {}
        for i, value in enumerate(self.values):
            places[value] = float(i)
        categories = map(category_of, cells.tolist())
        found = [places.get(category, np.nan) for category in categories]
        return np.array(found, dtype=np.float64)

    def place(self, values: FloatArray) -> FloatArray:
        """Return the columns of the box, (n, m), of the indices of `read`."""
        columns = np.zeros((len(values), len(self.values)))
        known = np.flatnonzero(~np.isnan(values))
        columns[known, values[known].astype(np.intp)] = 1.0
        columns[np.isnan(values)] = np.nan
        return columns

    def decode(self, points: FloatArray) -> dict[str, list[Any]]:
        """Return the values of the box, (k, m), as a column for each category."""
        shares = points.T.tolist()
        return dict(zip(self.coordinates(), shares, strict=True))


def _decimal_logarithm(bound: float) -> float:
    exact = _EXACT.create_decimal_from_float(bound)
    return float(_EXACT.log10(exact))


class Date(_Column, tag="date", frozen=True, forbid_unknown_fields=True):
    """A column of dates between public bounds, compared by days.

    Attributes
    ----------
    name : str
        The column's name in the table.
    lower, upper : datetime.date
        Public bounds. Dates outside are moved to them.
    missing : datetime.date, optional
        The public date that replaces a missing cell. Without it, the record is null. A
        cell that is not a date is unreadable, and its record is always null.
    weight : float, default: 1.0
        As for `Number`.

    Notes
    -----
    A cell is a text in the spelling's format, by default ISO 8601 such as 2024-02-29, or a date of
    Python, NumPy, pandas, polars or pyarrow. A time counts as its date, a time with a zone as the
    date in that zone, and a period as its first day. A date before the year 1 or after the year
    9999 is unreadable.
    """

    lower: date
    upper: date
    missing: date | None = None
    weight: float = NUMBER_WEIGHT

    def describe(self) -> str:
        """Return the declaration in words."""
        missing = None if self.missing is None else str(self.missing)
        bounds = f"date {self.lower} to {self.upper}"
        return bounds + _weighing(self) + _counts_as(missing)

    def coordinates(self) -> Coordinates:
        """Return the column of the box, or raise a `ConfigurationError`."""
        _require_order(self.name, self.lower, self.upper, self.missing)
        return {f"days({self.name})": self.limits}

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of the numbers of `read`."""
        return float(self.lower.toordinal()), float(self.upper.toordinal())

    def read(self, cells: NDArray[Any], spelling: Spelling = USUAL) -> FloatArray:
        """Return the days of a column since the year 1, (n,), NaN for other cells."""
        if cells.dtype.kind == "M":
            dates = cells.astype("datetime64[D]")
            days = dates.astype(np.int64) + float(_DAY_ZERO)
            return np.where(np.isnat(dates), np.nan, days)
        found = [day_of(cell, spelling) for cell in cells.tolist()]
        return np.array(found, dtype=np.float64)

    def place(self, values: FloatArray) -> FloatArray:
        """Return the column of the box, (n, 1), of the numbers of `read`."""
        return np.clip(values, *self.limits)[:, None]

    def decode(self, points: FloatArray) -> dict[str, list[Any]]:
        """Return values of the box, (k, 1), as the nearest dates."""
        nearest = np.rint(points[:, 0])
        days = np.clip(nearest, 1, date.max.toordinal())
        return {self.name: [date.fromordinal(int(day)) for day in days]}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    columns: list[Number | Category | Date]
    from_records: bool = False
    tighten: float | None = None
    persons: bool = False


@dataclass(frozen=True, init=False)
class TableDomain(Box):
    """A `Box` made from declarations of a table's columns.

    Parameters
    ----------
    declared : sequence of Number, Category or Date
        The columns, in order.
    from_records : bool, default: False
        Whether bounds or categories were read off records. No run with the domain is
        then private: a strategy with a private budget refuses it, and so does a
        `ClientPolicy` that would pin it.
    tighten : float, optional
        As for `Box`: the bounds of numbers and dates are outer bounds, and this fraction
        of mu^2 finds ranges within them.
    persons : bool, default: False
        Whether persons with all of their records are protected. A strategy with a
        private budget of another unit then refuses the domain, and a `ClientPolicy`
        that pins it accepts only private runs with ``unit="person"``.

    Raises
    ------
    ConfigurationError
        If a declaration has a wrong type or contradicts itself, or two have one name.

    Notes
    -----
    In the box a logarithm is called ``log10(NAME)``, a date ``days(NAME)``, and each category
    ``NAME=VALUE``. Clients whose declarations differ therefore have other names, bounds or
    weights, and a policy that pins the domain refuses them. The rules for missing cells are not in
    the box, but in its `digest`.
    """

    declared: tuple[Number | Category | Date, ...] = ()
    from_records: bool = False
    persons: bool = False
    outer: "TableDomain | None" = field(default=None, init=False)
    """The domain within whose bounds a run found the box of this one; ``None`` of others."""

    def __init__(
        self,
        declared: Sequence[Number | Category | Date],
        from_records: bool = False,
        tighten: float | None = None,
        persons: bool = False,
    ) -> None:
        if tighten is not None:
            check_tighten(tighten)
        if not isinstance(persons, bool):
            raise ConfigurationTypeError(
                f"Expected persons as True or False. Got {type(persons).__name__} instead."
            )
        try:
            # A struct does not check the types of its fields when it is made.
            values = {"columns": list(declared), "from_records": from_records}
            columns = msgspec.convert(msgspec.to_builtins(values), _File).columns
        except (msgspec.ValidationError, TypeError) as error:
            raise ConfigurationError(
                f"Expected a domain of declared columns. {error}."
            ) from None
        check_names([column.name for column in columns], "names of declared columns")
        names: list[str] = []
        lower: list[float] = []
        upper: list[float] = []
        weights: list[float] = []
        categories = []
        for column in columns:
            _require_weight(column)
            start = len(names)
            for name, (low, high) in column.coordinates().items():
                names.append(name)
                lower.append(low)
                upper.append(high)
                weights.append(column.weight)
            if isinstance(column, Category):
                categories.append((start, len(names)))
        super().__init__(
            lower,
            upper,
            columns=names,
            weights=weights,
            categories=categories,
            tighten=tighten,
        )
        vars(self).update(
            declared=tuple(columns),
            from_records=from_records,
            persons=persons,
            outer=None,
        )

    @classmethod
    def from_toml(cls, text: str | bytes, what: str = "text") -> Self:
        """Return the domain of a TOML text in UTF-8. Errors call the text ``what``.

        Raises
        ------
        ConfigurationError
            If the text is not TOML, has other keys or values, or a declaration
            contradicts itself.
        """
        begin = f"Expected the {what} as a domain."
        values, decoded = parsed(text, what)
        found = mistake(values, decoded)
        if found is not None:
            raise ConfigurationError(f"{begin} {found}")
        try:
            file = msgspec.convert(values, _File)
        except ValueError as error:  # msgspec's errors are among them
            raise ConfigurationError(f"{begin} {error}.") from None
        for i, column in enumerate(file.columns):
            try:
                cls([column])
            except KMeansError as error:
                if isinstance(error, _DeclarationError):
                    key = error.key
                else:
                    key = None
                place = place_of(line_of(decoded, i, key), key, column.name)
                raise ConfigurationError(f"{begin} {place}: {error}") from None
        try:
            return cls(file.columns, file.from_records, file.tighten, file.persons)
        except KMeansError as error:
            raise ConfigurationError(f"{begin} {error}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the domain of a file ``domain.toml``.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, or as of `from_toml`.
        """
        return cls.from_toml(content_of(path), f"domain file {path}")

    def describe(self) -> list[str]:
        """Return each declaration in words, as ``NAME: ...``, in the user's units."""
        return [f"{column.name}: {column.describe()}" for column in self.declared]

    def to_toml(self, comments: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the text that `from_toml` reads. Equal domains have equal texts.

        ``comments`` has lines to write below a column, by the column's name. They are
        not part of the domain.
        """
        if self.outer is not None:
            # The file declares how cells are read. A run's ranges stand in no declaration.
            return self.outer.to_toml(comments)
        notes = comments or {}
        parts = [_NOT_PUBLIC] if self.from_records else []
        if self.tighten is not None:
            parts.append(f"tighten = {_toml(self.tighten)}\n")
        if self.persons:
            parts.append("persons = true\n")
        for column in self.declared:
            values = {"kind": column.__struct_config__.tag}
            values |= msgspec.structs.asdict(column)
            lines = ["[[columns]]"]
            if not _is_weighted(column):
                # so that files without weights are what they were
                values.pop("weight")
            for key, value in values.items():
                if value is not None:
                    lines.append(f"{key} = {_toml(value)}")
            lines += [f"# {note}" for note in notes.get(column.name, ())]
            parts.append("\n".join([*lines, ""]))
        return "\n".join(parts)

    @property
    def digest(self) -> str:
        """SHA-256 of all declarations in hexadecimal, the same at all parties.

        Ranges that a run released do not change it.
        """
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def encode(
        self,
        table: Any,
        malformed: Literal["error", "nan"] = "error",
        spelling: Spelling = USUAL,
    ) -> FloatArray:
        """Return the records of a table in the columns of the box, (n, d).

        Parameters
        ----------
        table : mapping, DataFrame of pandas or polars, table of pyarrow, or datasets.Dataset
            A table with the declared columns. Other columns are ignored. It may also be
            a structured array, or any object with ``__arrow_c_stream__``.
        malformed : {"error", "nan"}
            How to treat an unreadable cell, and a missing cell of a column without
            ``missing``. ``"error"`` raises an error. ``"nan"`` is for ``load_data`` in
            a run: the cell becomes NaN, which makes a null record. If no cell of a
            record is usable, all its cells become NaN, even with ``missing``.
        spelling : Spelling
            The spelling of numbers and dates in text.

        Returns
        -------
        ndarray of shape (n, d), float64
            Records within the bounds of the box.

        Raises
        ------
        DataError, ConfigurationTypeError
            If this is not a table, a column is missing or its type cannot hold the
            declared cells, or columns differ in length. No single record decides any of
            these. With ``malformed="error"`` also for cells as above. The error names
            all columns with such cells.
        """
        findings = self.findings()
        records = self.examine(table, findings, spelling)
        if malformed == "error":
            findings.require_readable("the table")
            findings.require_present("the table")
        return records

    def factors(self) -> list[Factor]:
        """Return the declared columns, with their places in the box."""
        found = []
        start = 0
        for column in self.declared:
            stop = start + len(column.coordinates())
            is_category = isinstance(column, Category)
            found.append(Factor(column.name, start, stop, is_category))
            start = stop
        return found

    def weighted(self, weights: Mapping[str, float]) -> "TableDomain":
        """Return the domain with other weights of declared columns, by name."""
        if self.outer is not None:
            # The box has ranges, which no declaration has.
            return self.outer.weighted(weights).within(self.lower, self.upper)
        names = [column.name for column in self.declared]
        chosen = checked_by_name(weights, names)
        columns = [
            replace(column, weight=chosen.get(column.name, column.weight))
            for column in self.declared
        ]
        return TableDomain(columns, self.from_records, self.tighten, self.persons)

    def as_public(self, tighten: float | None) -> "TableDomain":
        """Return the domain without its mark ``from_records``, and with a fraction ``tighten``."""
        return TableDomain(self.declared, tighten=tighten, persons=self.persons)

    def tightened(self, tighten: float | None) -> "TableDomain":
        """Return the domain with another fraction ``tighten``."""
        return TableDomain(self.declared, self.from_records, tighten, self.persons)

    def within(self, lower: ArrayLike, upper: ArrayLike) -> "TableDomain":
        """Return the domain with released ranges as its box. Cells are read as before."""
        found = TableDomain(self.declared, self.from_records, persons=self.persons)
        Box.__init__(
            found,
            lower,
            upper,
            columns=self.columns,
            weights=self.weights,
            categories=self.categories,
        )
        vars(found).update(outer=self)
        return found

    def findings(self) -> Findings:
        """Return empty findings for the declared columns."""
        of_columns = []
        for column in self.declared:
            found = ColumnFindings(
                column.name,
                column.__struct_config__.tag,  # type: ignore[arg-type]
                has_rule=column.missing is not None,
            )
            of_columns.append(found)
        return Findings(tuple(of_columns))

    def examine(
        self, table: Any, findings: Findings, spelling: Spelling = USUAL
    ) -> FloatArray:
        """Return records as `encode` does with ``malformed="nan"``, and count their cells.

        The counts are added to ``findings``, which `findings` made.
        """
        _require_types(table, self.declared)
        cells = [_cells(table, column.name) for column in self.declared]
        if len({len(each) for each in cells}) > 1:
            raise DataError("Expected columns of one length.")
        parts = []
        unusable = np.ones(len(cells[0]), dtype=bool)
        columns = zip(self.declared, cells, findings.columns, strict=True)
        for column, own, found in columns:
            values = column.read(own, spelling)
            # A readable cell is not missing: a category may be called NA.
            missing = are_missing(own) & np.isnan(values)
            found.add(own, values, missing, column.limits)
            unusable &= np.isnan(values)
            part = column.place(values)
            if column.missing is not None:
                cell = np.array([column.missing], dtype=object)
                rule = column.place(column.read(cell))
                # A category may stand for all texts that are not listed. A number or
                # date must not stand for an unreadable cell.
                is_for_all = isinstance(column, Category)
                part[np.isnan(values) if is_for_all else missing] = rule
            parts.append(part)
        records = np.concatenate(parts, axis=1)
        records[unusable] = np.nan
        findings.n_records += len(records)
        is_void = np.isnan(records).any(axis=1)
        findings.n_void += int(np.count_nonzero(is_void))
        return records

    def decode(self, points: FloatArray) -> dict[str, list[Any]]:
        """Return points of the box, (k, d), as columns in the user's units, by name.

        Numbers are floats, and dates are ``datetime.date``. A category has a column
        ``NAME=VALUE`` for each of its values, with the fraction of records that have
        it. In a private run this fraction is as noisy as the rest of a centroid.
        """
        columns: dict[str, list[Any]] = {}
        for column, factor in zip(self.declared, self.factors(), strict=True):
            columns |= column.decode(points[:, factor.start : factor.stop])
        return columns


def declared_as(domain: TableDomain, box: Domain) -> TableDomain:
    """Return a domain of declarations, or raise a `DataError` unless it makes the box.

    With ``tighten`` the box may have ranges within the domain's bounds.
    """
    if isinstance(box, TableDomain) and box.outer is not None:
        # Another option than the file's may have set `tighten`.
        domain = domain.tightened(box.outer.tighten)
    if isinstance(box, Box) and _has_ranges(domain, box):
        domain = domain.within(box.lower, box.upper)
    differs = difference(domain, box)
    if differs is not None:
        raise DataError(
            f"Expected the domain of the run. Got one with another {differs[0]}."
        )
    return domain


def _has_ranges(domain: TableDomain, box: Box) -> bool:
    """Return whether a box can have a run's ranges within a domain's outer bounds."""
    if domain.tighten is None or box.tighten is not None:
        return False
    if box.n_features != domain.n_features:
        return False
    lower = zip(domain.lower, box.lower, strict=True)
    upper = zip(domain.upper, box.upper, strict=True)
    is_above = all(outer <= own for outer, own in lower)
    is_below = all(own <= outer for outer, own in upper)
    return is_above and is_below


def domain_arrays(domain: Domain) -> dict[str, NDArray[np.str_]]:
    """Return a domain as arrays for an npz file.

    ``domain`` is its configuration as JSON. A `TableDomain` also has ``declared``, its
    declarations as TOML.
    """
    # Arrays of text, because NumPy would need pickle for objects.
    text = json.dumps(domain.to_config())
    arrays = {"domain": np.array(text)}
    if isinstance(domain, TableDomain):
        arrays["declared"] = np.array(domain.to_toml())
    return arrays


def domain_of(arrays: Mapping[str, NDArray[Any]]) -> Domain:
    """Return the domain that `domain_arrays` wrote.

    Other arrays raise exceptions of various types.
    """
    domain = domain_from_config(parsed_json(str(arrays["domain"])))
    if "declared" not in arrays:
        return domain
    return declared_as(TableDomain.from_toml(str(arrays["declared"])), domain)


def _require_weight(column: Number | Category | Date) -> None:
    try:
        check_weight(column.weight, f"the column {column.name!r}")
    except ConfigurationError as error:
        raise _DeclarationError("weight", str(error)) from None


def _is_weighted(column: Number | Category | Date) -> bool:
    """Return whether a column's weight is not the default one of its kind."""
    usual = CATEGORY_WEIGHT if isinstance(column, Category) else NUMBER_WEIGHT
    return column.weight != usual


def _weighing(column: Number | Category | Date) -> str:
    if not _is_weighted(column):
        return ""
    return f", weight {number_text(column.weight)}"


def _require_order(name: str, lower: Any, upper: Any, missing: Any) -> None:
    if not lower < upper:
        raise _DeclarationError(
            "lower",
            f"Expected lower below upper in the column {name!r}. Got {lower} and {upper} instead.",
        )
    if missing is not None and not lower <= missing <= upper:
        raise _DeclarationError(
            "missing",
            f"Expected missing of the column {name!r} within its bounds. Got {missing} instead.",
        )


def _require_types(table: Any, declared: Sequence[Number | Category | Date]) -> None:
    """Refuse a column whose type cannot hold the declared cells.

    All its records would be null.
    """
    frame = frame_of(table)
    if frame is None:
        return
    for column in declared:
        if isinstance(column, Category) or column.name not in frame.names:
            continue
        found = frame.column(frame.names.index(column.name))
        is_number = isinstance(column, Number)
        if not (found.may_be_numbers if is_number else found.may_be_dates):
            raise ConfigurationTypeError(
                f"Expected the column {column.name!r} as {'numbers' if is_number else 'dates'}. "
                f"Got {found.kind}."
            )


def _cells(table: Any, name: str) -> NDArray[Any]:
    """Return the cells of a column, (n,), of any type."""
    frame = frame_of(table)
    if frame is None or frame.names.count(name) != 1:
        if frame is not None and frame.is_empty and not isinstance(table, Mapping):
            return np.empty(0, dtype=object)
        # Other names are not listed: in a file without a header they are a record.
        if frame is not None:
            got = ""
        else:
            got = f" with names of columns. Got {type(table).__name__}"
        raise DataError(f"Expected the column {name!r} once in the table{got}.")
    cells = frame.column(frame.names.index(name)).cells()
    if cells.dtype.kind == "M":
        return _whole_days(cells)
    return cells


def _whole_days(times: NDArray[Any]) -> NDArray[Any]:
    """Return times of NumPy as days, NaT outside Python's calendar."""
    unit, _ = np.datetime_data(times.dtype)
    if unit in ("ps", "fs", "as"):  # the limits of the calendar do not fit these units
        times = times.astype("datetime64[us]")
    days = times.astype("datetime64[D]")
    is_known = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    if unit in ("Y", "M", "W"):  # large counts overflow when they become days
        is_known &= days.astype(times.dtype) == times
    return np.where(is_known, days, np.datetime64("NaT"))


def category_of(cell: Any) -> str | None:
    """Return the text of a cell that names a category, or ``None`` without one.

    A whole number is written as an integer.
    """
    try:
        if isinstance(cell, bytes):
            return cell.decode().strip()
        if isinstance(cell, np.datetime64):
            cell = _whole_days(np.array([cell])).item()
        if isinstance(cell, datetime):
            # In a column of times only the date counts, so also for a single time.
            return str(cell.date())
        if isinstance(cell, np.floating):
            cell = float(cell)
        elif isinstance(cell, np.generic):
            cell = cell.item()
        if isinstance(cell, bool):
            return str(cell).lower()  # csv files have true and false
        if isinstance(cell, Decimal) and cell.adjusted() > _MOST_DIGITS:
            return None  # converting so large a number would take long
        if isinstance(cell, Decimal) and cell == int(cell):
            return str(int(cell))
        if isinstance(cell, float):
            if cell != int(cell):
                return str(cell)
            # A larger float may be a rounded integer.
            if abs(cell) < _EXACT_FLOATS:
                return str(int(cell))
            return None
        if cell is None:
            return None
        return str(cell).strip()
    except Exception:  # NaN, infinity, or any error of the loader's object
        return None


def day_of(cell: Any, spelling: Spelling = USUAL) -> float:
    """Return the day of a date, counted from the year 1, or NaN."""
    try:
        if isinstance(cell, np.datetime64):
            cell = _whole_days(np.array([cell])).item()
        # A period of pandas counts as its first day.
        cell = getattr(cell, "start_time", cell)
        if isinstance(cell, bytes):
            cell = cell.decode()
        if isinstance(cell, str):
            cell = spelling.date(cell)
        return float(cell.toordinal())
    except Exception:  # as in `category_of`
        return np.nan


def shortened(texts: Sequence[str], separator: str = ", ", n: int = 20) -> str:
    """Return the first ``n`` texts as one text, and the number of the others."""
    shown = list(texts[:n])
    if len(texts) > n:
        shown.append(f"and {len(texts) - n:,} more")
    return separator.join(shown)


def number_text(number: float) -> str:
    """Return a number as its shortest exact text, such as 120, 0.5 or 1e6."""
    text = repr(float(number) + 0.0).removesuffix(".0").replace("e+", "e")
    digits = text.rstrip("0")
    zeros = len(text) - len(digits)
    is_whole = text.removeprefix("-").isdigit()
    return f"{digits}e{zeros}" if is_whole and zeros >= _ZEROS else text


def _category_text(value: str) -> str:
    # In a list, a category with a comma would look like two.
    if "," in value:
        return json.dumps(value, ensure_ascii=False)
    return value


def _counts_as(missing: str | None) -> str:
    return "" if missing is None else f", a missing cell counts as {missing}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # The text is printable, so TOML reads JSON's quoting alike.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # Adding 0.0 removes a negative zero.
    if isinstance(value, float):
        return repr(value + 0.0)
    return str(value)
