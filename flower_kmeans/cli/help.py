"""Help of commands in plain text, with the options of the chosen strategy.

`StrategyCommand` accepts the options of all strategies. An option that the chosen
strategy does not take is an error that names the strategies that take it. Its help
shows the options of the chosen strategy in groups, with a line or two each. The
documentation of the strategies has the rest.
"""

import re
from collections.abc import Iterable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar

import click
from typer.core import TyperCommand, TyperGroup

from flower_kmeans.cli.options import (
    Settings,
    one_sentence,
    options_by_strategy,
    reading_options,
    spelled,
    strategy_options,
)
from flower_kmeans.parameters import is_auto

if TYPE_CHECKING:
    from flower_kmeans.strategies import Option

HelpRow = tuple[str, str]
"""An option with its values, and its help."""

_MOST_SENTENCE = 300  # characters; no sentence has more
_MOST_VALUES = 16  # most characters of a choice beside the option's name

_NEEDS = {
    "parties": "parties",
    "quality": "quality",
    "server_data": "server_data",
    "server_points": "server_data",
}
"""Options that only some strategies need, and the parameter that such a strategy has."""

_WORDS = {
    "aggregation": "Sums and counts, or means, as the paper names them.",
    "alpha": "Factor of the radius within which offsets count.",
    "assignment": "Number of clusters that a record may be in.",
    "clip": "Records that count of a client (--unit client).",
    "clips": "Clips of single releases, in place of clip.",
    "fraction_bits": "Records are rounded to 2**-N.",
    "keys": "Origin of the clients' keys.",
    "max_attempts": "Most attempts at a round.",
    "max_clients_per_person": "Most clients with records of a person.",
    "max_colluders": "Most clients that may work together.",
    "max_size": "Most records of a cluster.",
    "min_clients": "Fewest clients behind a sum.",
    "min_size": "Fewest records of a cluster.",
    "n_clients": "Public number of clients. Default: 20.",
    "n_clusters": "Number of clusters. Default: 16.",
    "n_persons": "Planned number of persons (--unit person).",
    "n_records": "Public, planned number of records.",
    "n_rounds": "Number of rounds. Default: from public numbers.",
    "relocation": "Move useless centroids.",
    "seed": "Seed of public randomness only.",
}
"""Help of parameters in a line. Other parameters have their documentation's first clause."""

_SPLIT_OF_COLUMNS = "columns (halves), or columns:NAME,NAME/NAME."


class Command(TyperCommand):
    """A command whose help is plain text."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help without frames, which take a third of the width."""
        click.Command.format_help(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands whose help is plain text."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help without frames."""
        click.Command.format_help(self, ctx, formatter)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands, each with the first sentence of its help."""
        commands = [
            (name, self.get_command(ctx, name)) for name in self.list_commands(ctx)
        ]
        rows = [
            (name, command.get_short_help_str(_MOST_SENTENCE))
            for name, command in commands
            if command is not None
        ]
        _write_rows(formatter, "Commands", rows)


class StrategyCommand(Command):
    """A command that takes its own options and the options of all strategies."""

    lists_trust_models: ClassVar[bool] = False
    _own: list[Any]
    _is_complete = False

    @property
    def params(self) -> list[Any]:
        """Its options. Options of strategies are looked up at first use."""
        if not self._is_complete:
            self._is_complete = True
            self._own += strategy_options()
        return self._own  # always the same list, because click adds to it

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._own = own

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, and keep them for the help, which depends on them."""
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options of the command and of the chosen strategy."""
        with one_sentence():
            chosen = self._chosen(ctx)
        of_strategies = {each.name for each in strategy_options()}
        of_files = {each.name for each in reading_options()}
        own = []
        reading = []
        for each in self.get_params(ctx):
            if "--help" in each.opts:
                continue  # its reader knows it, and a line is worth another option
            if each.name in of_files:
                reading.append(each.opts[0])
            elif each.name not in of_strategies and _serves(each.name, chosen):
                own.append(each)
        _write_rows(formatter, "Options", _own_rows(ctx, own, chosen))
        _write_rows(formatter, "Strategy and privacy", _choice_rows(chosen))
        parameters = options_by_strategy()[chosen.name]
        rows = [_parameter_row(name, each) for name, each in parameters.items()]
        _write_rows(formatter, f"Parameters of {chosen.name}", rows)
        _write_rows(formatter, "More", self._more_rows(ctx, reading))

    def _more_rows(self, ctx: click.Context, reading: Sequence[str]) -> list[HelpRow]:
        """Return the commands that show the help of other options."""
        others = f"flower-kmeans {ctx.info_name} --strategy NAME --help"
        rows = [("other strategies", others)]
        if not self.lists_trust_models:
            rows.append(("trust models", "flower-kmeans plan --help"))
        if reading:
            first, *_ = reading
            rows.append((f"{first} and others", "flower-kmeans inspect --help"))
        return rows

    def _chosen(self, ctx: click.Context) -> Settings:
        """Return the settings of the strategy that the arguments choose, or the default."""
        arguments = list(ctx.meta.get(_ARGUMENTS, ()))
        given, _, _ = self.make_parser(ctx).parse_args(arguments)
        strategy = given.get("strategy")
        rounds = given.get("n_rounds") if strategy is None else None
        return Settings.read(
            strategy=strategy,
            epsilon=None,
            delta=None,
            unit=None,
            trust=None,
            n_rounds=rounds,
        )


class PlanCommand(StrategyCommand):
    """A command whose help also lists the trust models."""

    lists_trust_models = True

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options, and then the trust models."""
        from flower_kmeans.protocol.trust import TRUST_MODELS

        super().format_options(ctx, formatter)
        rows = [(name, f"{model.learns}.") for name, model in TRUST_MODELS.items()]
        _write_rows(formatter, "Trust models", rows)


_ARGUMENTS = f"{__name__}.arguments"


def _write_rows(
    formatter: click.HelpFormatter, title: str, rows: Sequence[HelpRow]
) -> None:
    """Write a group of options or words with their meanings."""
    with formatter.section(title):
        formatter.write_dl(rows)


def _serves(option: str | None, chosen: Settings) -> bool:
    """Return whether the chosen strategy needs an option of the command."""
    parameter = _NEEDS.get(option or "")
    return parameter is None or chosen.takes(parameter)


def _own_rows(
    ctx: click.Context, own: Iterable[click.Parameter], chosen: Settings
) -> list[HelpRow]:
    """Return the options of the command."""
    rows = []
    for each in own:
        row = each.get_help_record(ctx)
        if row is not None and each.name == "split" and chosen.splits_columns:
            row = row[0], _SPLIT_OF_COLUMNS
        if row is not None:
            rows.append(row)
    return rows


def _choice_rows(chosen: Settings) -> list[HelpRow]:
    """Return the options that choose a strategy, its budget and its trust model."""
    from flower_kmeans.strategies import BY_NAME

    names = ", ".join(BY_NAME).replace("synopsis", "synopsis (default)")
    rows = [
        ("--strategy NAME", f"{names}."),
        ("--epsilon NUMBER", "Privacy budget. Default: 1.0."),
        ("--delta NUMBER", "Default: min(1e-6, 1/(100 n)), with n protected units."),
        ("--unit UNIT", "Unit of privacy: record (default), person or client."),
    ]  # fmt: skip
    if not chosen.splits_columns:
        default = chosen.strategy.TRUST
        text = f"Who learns what. Default: {default}."
        rows.append(("--trust MODEL", text))
    return rows


def _parameter_row(name: str, option: "Option") -> HelpRow:
    """Return an option for a parameter of a strategy."""
    text = _WORDS.get(name) or _first_clause(option.meaning)
    values = option.kind.values
    if values.startswith("integer"):
        values = re.sub("^integer[^|]*", "N", values)
    elif "number" in values and "=" not in values:
        values = "NUMBER"
    elif len(values) > _MOST_VALUES:
        text = f"{text} One of {values.replace('|', ', ')}."
        values = "WORD"
    default = option.default
    is_shown = default not in (None, (), Parameter.empty) and not is_auto(default)
    if is_shown and "Default:" not in text:
        text = f"{text} Default: {str(default).lower()}."
    return f"{spelled(name)} {values}", text


def _first_clause(meaning: str) -> str:
    """Return the first clause of a description as a sentence."""
    clause = re.split(r"[.;:] ", meaning, maxsplit=1)[0].removesuffix(".")
    return f"{clause}.".replace("`", "")
