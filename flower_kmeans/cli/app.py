"""The ``flower-kmeans`` command.

An error is printed as one sentence, with exit code 1.
"""

import sys
from typing import Annotated, Any

import typer

from flower_kmeans.cli.commands.new import new
from flower_kmeans.cli.commands.nodes import check, forget, keygen, ledger
from flower_kmeans.cli.commands.plan import plan
from flower_kmeans.cli.commands.records import domain_init, inspect
from flower_kmeans.cli.commands.results import assign, plot, report
from flower_kmeans.cli.commands.simulate import simulate
from flower_kmeans.cli.help import Command, Group, PlanCommand, StrategyCommand
from flower_kmeans.cli.options import (
    escape_what_cannot_be_printed,
    print_error,
    sentence_of,
)
from flower_kmeans.version import __version__


class _Commands(Group):
    """All commands. An error of a terminal or disk never ends one with a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command that the arguments name."""
        escape_what_cannot_be_printed()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # Such an error comes from printing outside a command, such as its help.
            print_error(sentence_of(error))
            sys.exit(1)


app = typer.Typer(
    name="flower-kmeans",
    cls=_Commands,
    help="Private, federated k-means for the Flower framework.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback would print local variables, such as records.
    pretty_exceptions_enable=False,
)
_domain = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Make the file that declares columns.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flower-kmeans {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Private, federated k-means for the Flower framework."""


@_domain.callback()
def _declare() -> None:
    """Declare the columns of tables, with public bounds, in a file that all parties share."""


app.command(cls=StrategyCommand)(simulate)
app.command(cls=PlanCommand)(plan)
for _command in (assign, report, plot, new, keygen, inspect, check, ledger, forget):
    app.command(cls=Command)(_command)
_domain.command("init", cls=Command)(domain_init)
app.add_typer(_domain, name="domain")


def main() -> None:
    """Run the command."""
    app()
