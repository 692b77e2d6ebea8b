"""Declarations of benchmarks: a suite names data sets, tasks, a measurement and tables.

`bench.runner` runs every task once, and writes rows, tables and plots.
"""

import hashlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import msgspec

from bench import data as data_sets
from flower_kmeans.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
"""One line of runs.csv, with its values in their types."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Task:
    """One run of one method on one data set: the task of many suites."""

    data: str
    method: str
    epsilon: float | None
    run: int


@dataclass(frozen=True)
class Options:
    """The options of a command for a suite.

    Attributes
    ----------
    runs : int
        Number of repetitions.
    data : tuple of str
        Names of data sets. If it is empty, the suite's own choice counts. Functions of
        a suite see only the names whose files exist.
    files : tuple of (str, str)
        Names of data sets from other files, and their ``FILE.npz:K``.
    data_dir : Path or None
        Directory of NAME.npz files.
    only : tuple of (str, tuple of str)
        Columns of tasks, and the values to which they are restricted, as text.
    """

    runs: int
    data: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    data_dir: Path | None = None
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def chosen(
        self, column: str, default: Sequence[Value], kind: type[Value]
    ) -> tuple[Value, ...]:
        """Return the command's values of a column, without None, or the suite's values.

        Raises
        ------
        ConfigurationError
            If a text is not a value of this column.
        """
        given = dict(self.only).get(column)
        if given is None:
            return tuple(default)
        return tuple(
            parse(kind, text, column) for text in given if text not in ("", "None")
        )

    def load(self, name: str) -> data_sets.Data:
        """Return a data set by its name in `data`; `bench.data.load` keeps it."""
        return data_sets.load(dict(self.files).get(name, name), self.data_dir)


@dataclass(frozen=True)
class Suite:
    """A benchmark.

    Attributes
    ----------
    name : str
        Letters, digits and hyphens.
    protocol : str
        One paragraph above the tables that describes measurement, method and data.
    task : type
        A frozen dataclass whose fields (str, int, float, bool, or one of them or None)
        identify one run. They are the first columns of runs.csv.
    measures : mapping of str to type
        The other columns.
    tasks : callable
        Takes options and returns all tasks in the order of execution (`grid`).
    measure : callable
        Takes a task and options, and returns a mapping with the keys of ``measures``.
        It is pickled, so it must be at the top of a module. All randomness must follow
        from the task (`seed_of`), except privacy noise, which has no seed.
    tables : callable
        Takes rows and options, and returns markdown.
    plots : mapping of str to callable
        Functions that take rows and options and return a figure, by the name of its
        file.
    datasets : tuple of str
        Names of data sets in `bench.data`, unless the command names others.
    choices : mapping of str to tuple
        Values of a column that a command may name even if no task has them, for example
        because a method does not apply to a data set.
    runs : int
        Default number of repetitions.
    settings : mapping of str to str
        Further settings on which rows depend. Rows with other settings are refused.
    sources : mapping of str to (mapping of str to str)
        The same for data sets that the suite makes itself, by their names.
    alone : bool
        Whether tasks measure time, and run one at a time by default.
    fresh : bool
        Whether each task has its own new process, for example to measure memory or to
        start Ray.
    """

    name: str
    protocol: str
    task: type
    measures: Mapping[str, type]
    tasks: Callable[[Options], Iterable[Any]]
    measure: Callable[[Any, Options], Mapping[str, Any]]
    tables: Callable[[Sequence[Row], Options], str]
    plots: Mapping[str, "Callable[[Sequence[Row], Options], Figure]"] = field(
        default_factory=dict
    )
    datasets: tuple[str, ...] = ()
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    runs: int = 5
    settings: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    alone: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum():
            raise ConfigurationError(
                f"Expected a suite's name of letters, digits and hyphens. Got {self.name!r}."
            )
        if self.task_columns.keys() & self.measures.keys() or not self.measures:
            raise ConfigurationError(
                f"Expected measures of suite {self.name} beside the task's columns. "
                f"Got {sorted(self.measures)} instead."
            )

    @property
    def task_columns(self) -> dict[str, Any]:
        """Return names and types of the columns that identify a run."""
        return get_type_hints(self.task)

    @property
    def columns(self) -> dict[str, Any]:
        """Return names and types of all columns of runs.csv."""
        return {**self.task_columns, **self.measures}

    def wanted(self, options: Options) -> dict[str, tuple[Any, ...]]:
        """Return the restrictions of a command in the types of their columns."""
        kinds = self.task_columns
        for column, _ in options.only:
            if column not in kinds:
                raise ConfigurationError(
                    f"Expected a column of {', '.join(kinds)}. Got {column!r} instead."
                )
        return {
            column: tuple(parse(kinds[column], text, column) for text in texts)
            for column, texts in options.only
        }

    def known(self, options: Options) -> dict[str, dict[str, Any]]:
        """Return the properties that identify each data set, without missing files."""
        found = {name: dict(each) for name, each in self.sources.items()}
        for given in options.data or self.datasets:
            known = (
                None if given in found else data_sets.identity(given, options.data_dir)
            )
            if known is not None:
                found[data_sets.name_of(given)] = known
        return found


process_suite = partial(Suite, runs=1, alone=True, fresh=True)
"""Makes a suite that measures whole processes: each task runs once, alone, in a new one."""


@dataclass(frozen=True)
class Plan:
    """Tasks, and the data sets of a command."""

    options: Options  # with the data sets whose files exist
    tasks: tuple[Any, ...]
    skipped: tuple[str, ...] = ()  # data sets whose files are missing
    named: tuple[str, ...] = ()  # data sets that the command named


def plan_of(suite: Suite, options: Options, *, redraw: bool = False) -> Plan:
    """Return the tasks of a suite under a command's options.

    With ``redraw`` no task will be done, so data sets and tasks may be missing.

    Raises
    ------
    ConfigurationError
        If all data sets are missing, ``only`` names what does not exist, or two tasks
        are equal.
    """
    known = suite.known(options)
    names = {
        given: data_sets.name_of(given) for given in options.data or suite.datasets
    }
    there = {given: name for given, name in names.items() if name in known}
    missing = tuple(given for given in names if given not in there)
    # If only some files are missing, the others are measured, and the tables list the
    # missing ones.
    if missing and not there and not redraw:
        raise ConfigurationError(
            f"Expected a data set of suite {suite.name} to be there. Got none: "
            f"{', '.join(missing)} need NAME.npz files in --data-dir."
        )
    files = tuple((name, given) for given, name in there.items() if name != given)
    resolved = replace(options, data=tuple(there.values()), files=files)
    wanted, tasks = suite.wanted(options), list(suite.tasks(resolved))
    if len(set(tasks)) != len(tasks):
        raise ConfigurationError(
            f"Expected tasks of suite {suite.name} that differ. Got equal ones."
        )
    for column, values in wanted.items():
        possible = {getattr(task, column) for task in tasks} | {
            *suite.choices.get(column, ())
        }
        strange = [value for value in values if value not in possible]
        if tasks and strange:
            raise ConfigurationError(
                f"Expected {column} among {sorted(possible, key=str)}. Got {strange[0]!r} instead."
            )
        tasks = [task for task in tasks if getattr(task, column) in values]
    if not tasks and not redraw:
        raise ConfigurationError(
            f"Expected runs of suite {suite.name} to be left. Got none."
        )
    return Plan(
        resolved, tuple(tasks), missing, tuple(map(data_sets.name_of, options.data))
    )


def grid(
    task: type, options: Options, *free: str, **columns: Iterable[Any]
) -> Iterator[Any]:
    """Yield a task for every combination of values, all first runs before any second.

    Parameters
    ----------
    task : type
        Type of the tasks. If it has a column ``run``, the command gives the number of
        runs.
    options : Options
        The options of the command. They may give other numbers than the suite's, but
        other words only in the columns ``free``.
    *free : str
        Columns for which the command may give other words than the suite's.
    **columns : iterable
        Values of the other columns. Those of the last column change fastest.
    """
    kinds = {name: inner_kind(kind) for name, kind in get_type_hints(task).items()}
    values = [
        options.chosen(name, tuple(given), kinds[name])
        if name in free or kinds[name] in (int, float)
        else given
        for name, given in columns.items()
    ]
    runs = {"run": range(options.runs)} if "run" in kinds else {}
    for each in product(*runs.values(), *values):
        yield task(**dict(zip((*runs, *columns), each, strict=True)))


def seed_of(task: Any, *words: int | str) -> int:
    """Return a seed in [0, 2^32) that follows from a task and further words."""
    # hash() differs between processes, SHA-256 does not.
    text = repr((type(task).__name__, astuple(task), words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def inner_kind(kind: Any) -> Any:
    """Return the type of a column, without its None."""
    inner = [each for each in get_args(kind) if each is not types.NoneType]
    return inner[0] if len(inner) == 1 else kind


def parse(kind: Any, text: str, column: str) -> Any:
    """Return a value from its text in runs.csv or on a command line, or raise an error."""
    inner = inner_kind(kind)
    if inner is not kind and text in ("", "None"):
        return None
    try:
        return msgspec.convert(text, inner, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(
            f"Expected {column} as {inner.__name__}. Got {text!r} instead."
        ) from None


def shown(kind: Any, value: Any) -> str:
    """Return the text of a value in runs.csv, from which `parse` gets the same value."""
    if value is None:
        return ""
    inner = inner_kind(kind)
    # A float's repr is exact; numbers of NumPy have another.
    return (
        repr(float(value))
        if inner is float
        else str(int(value) if inner is bool else value)
    )
