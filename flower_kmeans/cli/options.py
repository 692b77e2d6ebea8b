"""Options that simulate and plan share: a strategy, a budget, and the strategy's parameters.

The declarations of the strategies give the names, values, defaults and help of their
options. An option that is not given is not passed on. Strategies are imported when a
command runs or shows its help, because importing Flower takes a second.
"""

import csv
import errno
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from flower_kmeans.errors import ConfigurationError, KMeansError
from flower_kmeans.files import printable, reason_and_cure
from flower_kmeans.parameters import is_auto

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_kmeans.data.domain import Domain
    from flower_kmeans.data.reading import Reading
    from flower_kmeans.strategies import ClusteringStrategy, Option

EngineOption = StrEnum(
    "EngineOption", {"AUTO": "auto", "IN_PROCESS": "in-process", "RAY": "ray"}
)

_DEFAULTS = {"n_clusters": "16"}  # for parameters that strategies require
_HINTS = {
    "n_clients": "Default: 20, or one for each value of a column to split by.",
    "n_clusters": "With synopsis also LOW-HIGH or any (1-20): the run chooses.",
}


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error of the library or of the machine into its sentence and exit code 1."""
    try:
        yield
    except KMeansError as error:
        print_error(str(error))
        raise typer.Exit(1) from None
    except (OSError, MemoryError) as error:
        # The program that read the output, such as `head`, has ended. click then ends
        # silently.
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        print_error(sentence_of(error))
        raise typer.Exit(1) from None


def print_error(text: str) -> None:
    """Print an error as a line of its own on stderr."""
    Console(stderr=True).print(Text(f"Error: {printable(text)}"), soft_wrap=True)


def sentence_of(error: OSError | MemoryError) -> str:
    """Return the sentence on a refusal of the machine: its object, reason and cure.

    Output that could not be printed is dropped. Otherwise the end of the process would
    try to print it again.
    """
    if isinstance(error, MemoryError):
        return (
            f"There is not enough memory: {str(error) or 'the machine gave no more'}."
        )
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
    names = [
        str(name) for name in (error.filename, error.filename2) if name is not None
    ]
    refusal = "The operating system refused"
    if names:
        refusal = f"{' or '.join(names)} cannot be used"
    return f"{refusal}: {reason_and_cure(error)}."


def escape_what_cannot_be_printed() -> None:
    r"""Let streams print characters outside their encoding as ``\u03b5`` instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in (
            "strict",
            "surrogateescape",
        ):
            stream.reconfigure(errors="backslashreplace")


def listed(text: str) -> list[str]:
    """Return the values of ``A,B``. A value with a comma is quoted, as in a csv file."""
    return [
        each.strip() for each in next(csv.reader([text], skipinitialspace=True), [])
    ]


def spelled(parameter: str) -> str:
    """Return the option for a strategy's parameter."""
    # Two numbers keep their "n-": --records would look like the records themselves, and
    # --persons like --person, their column.
    is_kept = parameter in ("n_records", "n_persons")
    name = parameter if is_kept else parameter.removeprefix("n_")
    return f"--{name.replace('_', '-')}"


@cache
def options_by_strategy() -> "dict[str, dict[str, Option]]":
    """Return the parameters that are options, by strategy and by name."""
    from flower_kmeans.strategies import BY_NAME, options_of

    return {name: options_of(strategy) for name, strategy in BY_NAME.items()}


@dataclass(frozen=True)
class Settings:
    """Choices for a run: the strategy, its budget, and the given parameters."""

    name: str  # name of the strategy's algorithm
    strategy: Any  # class of the strategy
    epsilon: float | None
    delta: float | None
    unit: str
    trust: str | None
    given: dict[str, Any]
    is_unit_given: bool = False

    @classmethod
    def read(
        cls,
        *,
        strategy: str | None,
        epsilon: float | None,
        delta: float | None,
        unit: str | None,
        trust: str | None,
        **texts: str | None,
    ) -> "Settings":
        """Return the settings of options, or raise an error if options contradict."""
        from flower_kmeans.strategies import BY_NAME

        written = {name: text for name, text in texts.items() if text is not None}
        # The default has the lowest loss without points of the server
        # (docs/choosing.md). Synopsis chooses its own rounds. If their number is given,
        # the best of the others is the default.
        default = "fastlloyd" if "n_rounds" in written else "synopsis"
        name = default if strategy is None else strategy.lower()
        if name not in BY_NAME:
            raise ConfigurationError(
                f"Expected --strategy in {list(BY_NAME)}. Got {strategy!r} instead."
            )
        settings = cls(
            name,
            BY_NAME[name],
            epsilon,
            delta,
            unit or "record",
            trust,
            {},
            is_unit_given=unit is not None,
        )
        settings._take(written)
        if not settings.is_private and (
            settings.unit == "client" or "clip" in settings.given
        ):
            raise ConfigurationError(
                "Nobody is protected in this run: leave out --unit and --clip, or choose another "
                "--strategy or --trust."
            )
        if settings.splits_columns and trust not in (None, settings.strategy.TRUST):
            raise ConfigurationError(
                f"The strategy {name} has its own trust: leave out --trust."
            )
        return settings

    def _take(self, written: Mapping[str, str]) -> None:
        known = options_by_strategy()[self.name]
        unknown = [parameter for parameter in written if parameter not in known]
        if unknown:
            options = " and ".join(map(spelled, unknown))
            raise ConfigurationError(
                f"The strategy {self.name} does not take {options}: leave out {options}, or choose "
                f"{takers(*unknown) or 'other options'}."
            )
        for parameter, text in written.items():
            kind, default, _ = known[parameter]
            # "auto" means the same as not giving the option.
            if text == default and is_auto(default):
                continue
            try:
                value = kind.parse(text)
            except (LookupError, ValueError):
                raise ConfigurationError(
                    f"Expected {spelled(parameter)} as {kind.values}. Got {text!r} instead."
                ) from None
            # The check is made here as well, so the error names the option instead of
            # the parameter.
            kind.check(spelled(parameter), value)
            self.given[parameter] = value

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return "plain" not in (self.strategy.TRUST, self.trust)

    @property
    def counts_persons(self) -> bool:
        """Whether each person counts as one, with all their records."""
        return self.unit == "person"

    def with_default_unit(self, unit: str) -> "Settings":
        """Return the settings with a unit of privacy, unless an option gives another."""
        if self.is_unit_given:
            return self
        return replace(self, unit=unit)

    def with_quality(self, quality: bool) -> "Settings":
        """Return the settings with a last round for the silhouette, if an option wants it."""
        if not quality:
            return self
        if not self.takes("quality"):
            raise ConfigurationError(
                f"The strategy {self.name} does not take --quality: leave out --quality, or choose "
                f"{takers('quality')}."
            )
        return replace(self, given={**self.given, "quality": True})

    @property
    def splits_columns(self) -> bool:
        """Whether the strategy's clients hold columns of the same records."""
        from flower_kmeans.protocol.kinds import held_by

        return held_by(self.strategy.ALGORITHM.kind) == "columns"

    def takes(self, parameter: str) -> bool:
        """Return whether the strategy has a parameter."""
        from flower_kmeans.strategies import parameters_of

        return parameter in parameters_of(self.strategy)

    def check_server(self, option: str, what: str, value: object) -> None:
        """Require the option for the server's points, or its absence, as the strategy needs."""
        takes = self.takes("server_data")
        if takes and value is None:
            raise ConfigurationError(
                f"The strategy {self.name} needs {option}, {what}."
            )
        if not takes and value is not None:
            raise ConfigurationError(
                f"The strategy {self.name} takes no server data: leave out {option}, or choose "
                f"{takers('server_data')}."
            )

    def make(self, domain: "Domain", **parameters: Any) -> "ClusteringStrategy[Any]":
        """Return the strategy with these settings and further parameters."""
        from flower_kmeans.privacy.budget import PrivacyBudget

        epsilon = 1.0 if self.is_private and self.epsilon is None else self.epsilon
        budget = PrivacyBudget(epsilon, self.delta, self.unit)  # type: ignore[arg-type]
        # Some strategies have one trust model, and no parameter for it.
        if self.trust is not None and self.takes("trust"):
            parameters["trust"] = self.trust
        strategy: ClusteringStrategy[Any] = self.strategy(
            domain=domain, privacy=budget, **self.given | parameters
        )
        return strategy


def takers(*parameters: str) -> str:
    """Return the strategies that have all of these parameters, in words."""
    from flower_kmeans.strategies import BY_NAME, parameters_of

    names = (
        name
        for name, kind in BY_NAME.items()
        if {*parameters} <= parameters_of(kind).keys()
    )
    return " or ".join(names)


# -------------------------------------------------------------------------- the options


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a `StrategyCommand` its settings as the first argument, and print its errors."""
    _, *own = signature(command).parameters.values()

    @wraps(command)
    def called(**options: Any) -> None:
        with one_sentence():
            others = {each.name: options.pop(each.name) for each in own}
            command(Settings.read(**options), **others)

    return _with_signature(called, own)


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command the options for reading a party's file as one ``reading``."""
    own = [
        each
        for each in signature(command).parameters.values()
        if each.name != "reading"
    ]
    added = reading_options()

    @wraps(command)
    def called(*arguments: Any, **options: Any) -> None:
        written = {each.name: options.pop(each.name) for each in added}
        with one_sentence():
            reading = _reading_of(**written)
        command(*arguments, reading=reading, **options)

    return _with_signature(called, [*own, *added])


def reading_options() -> list[Parameter]:
    """Return the options for reading a party's file."""
    own = [
        ("header", "true|NAME,NAME",
         "true if the first line names the columns, or their names if it is a record."),
        ("delimiter", None,
         "Character between the cells of a csv file, such as ';' or tab."),
        ("decimal", ".|,", "Decimal point or comma."),
        ("thousands", None,
         "Character between groups of three digits: . , ' or a space."),
        ("date_format", None,
         "Format of dates, such as %d.%m.%Y. Default: 2024-02-29."),
        ("encoding", None, "Encoding of a csv file, such as cp1252. Default: UTF-8."),
        ("sheet", None, "Sheet of an Excel file with several sheets."),
        ("query", "SQL", "SELECT whose rows are the records of a database."),
        ("person", "NAME",
         "Column with the id of each record's person, who is protected. Never a feature."),
    ]  # fmt: skip
    return [
        _option(name, spelled(name), str | None, values, text)
        for name, values, text in own
    ]


def _reading_of(
    *,
    header: str | None,
    delimiter: str | None,
    decimal: str | None,
    thousands: str | None,
    date_format: str | None,
    encoding: str | None,
    sheet: str | None,
    query: str | None,
    person: str | None,
) -> "Reading":
    """Return the reading with the given options."""
    from flower_kmeans.data.reading import Reading

    names: Any = None if header is None else listed(header)
    is_said = header is not None and header.strip().lower() == "true"
    return Reading().with_options(
        header=True if is_said else names,
        # Few shells let people type a tab.
        delimiter="\t" if delimiter in ("tab", "\\t") else delimiter,
        decimal=decimal,
        thousands=thousands,
        format=date_format,
        encoding=encoding,
        sheet=sheet,
        query=query,
        person=person,
    )


def _with_signature(
    function: Callable[..., None], own: list[Parameter]
) -> Callable[..., None]:
    # typer reads order and defaults from the signature, and types from the annotations.
    function.__signature__ = Signature(own)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in own}
    return function


@cache
def strategy_options() -> list[Any]:
    """Return the options of `Settings.read`, as typer makes them."""
    from flower_kmeans.protocol.trust import TRUST_MODELS
    from flower_kmeans.strategies import BY_NAME, KMeansStrategy, meanings_of

    models = "\n\n".join(
        f"{name}: {model.learns}." for name, model in TRUST_MODELS.items()
    )
    own = [
        _option("strategy", "--strategy", str | None, "|".join(BY_NAME),
                "The algorithm. Default: synopsis, or fastlloyd with --rounds."),
        _option("epsilon", "--epsilon", float | None, None,
                "Privacy budget. Default: 1.0, unless strategy or trust is not private."),
        _option("delta", "--delta", float | None, None,
                "Privacy budget. Default: min(1e-6, 1/(100 n)), with n protected units."),
        _option("unit", "--unit", str | None, "record|person|client",
                "Unit of privacy: one record (default), a person with all their records (default "
                "with --person), or a client with all its records."),
        _option("trust", "--trust", str | None, "|".join(TRUST_MODELS),
                "Who learns which values. The strategy has the default.\n\n" + models),
    ]  # fmt: skip
    common = meanings_of(KMeansStrategy)
    for parameter in dict.fromkeys(
        name for each in options_by_strategy().values() for name in each
    ):
        takers = {
            name: each[parameter]
            for name, each in options_by_strategy().items()
            if parameter in each
        }
        spellings = (each.kind.values.split("|") for each in takers.values())
        values = "|".join(dict.fromkeys(value for each in spellings for value in each))
        text = common.get(parameter) or _meanings(takers)
        text = f"{text} {_HINTS.get(parameter, '')}".strip().replace("`", "")
        own.append(
            _option(
                parameter,
                spelled(parameter),
                str | None,
                values,
                text,
                _DEFAULTS.get(parameter),
            )
        )
    # typer has no function from parameters to click options, so an app makes them that
    # never runs.
    maker = typer.Typer(add_completion=False)
    maker.command()(_with_signature(lambda: None, own))
    return typer.main.get_command(maker).params


def _option(
    name: str,
    option: str,
    kind: Any,
    values: str | None,
    text: str,
    default: str | None = None,
) -> Parameter:
    annotation = Annotated[kind, typer.Option(option, metavar=values, help=text)]
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _meanings(takers: "Mapping[str, Option]") -> str:
    """Return the first sentence that each strategy's documentation has on a parameter."""
    names: dict[str, list[str]] = {}
    for name, (_, default, meaning) in takers.items():
        sentence = meaning.partition(". ")[0].removesuffix(".") + "."
        if default not in (None, ()) and not is_auto(default):
            sentence += f" Default: {str(default).lower()}."
        names.setdefault(sentence, []).append(name)
    return " ".join(f"For {' or '.join(each)}: {text}" for text, each in names.items())


def even_widths(n_features: int, n_parties: int) -> list[int]:
    """Return how many columns each party has in an even split; the first ones have more."""
    if not 2 <= n_parties <= n_features:
        raise ConfigurationError(
            f"Expected from 2 to {n_features} parties, for each has a column. "
            f"Got {n_parties} instead."
        )
    least, more = divmod(n_features, n_parties)
    return [least + 1] * more + [least] * (n_parties - more)


def placeholders(n_points: int, n_features: int) -> "NDArray[np.float64]":
    """Return different points, (m, d) within [-1, 1], that stand for those of a server.

    What releases cost follows from how many points there are, and not from where they
    lie. Clips derived from them do not: a plan for whole clients has to be given one.
    """
    if not 1 <= n_points <= 2**22:
        raise ConfigurationError(
            f"Expected --server-points in [1, {2**22}]. Got {n_points} instead."
        )
    return np.repeat(np.linspace(-1.0, 1.0, n_points)[:, None], n_features, axis=1)
