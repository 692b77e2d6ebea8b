"""``inspect`` and ``domain init``: for the holder of a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flower_kmeans.cli.commands.texts import DATA, DOMAIN
from flower_kmeans.cli.options import one_sentence, with_reading
from flower_kmeans.cli.printing import counted, warn_of_bounds
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import printable

if TYPE_CHECKING:
    from flower_kmeans.data.reading import Reading


@with_reading
def inspect(
    data: Annotated[str, typer.Argument(metavar="FILE", help=DATA)],
    *,
    reading: "Reading",
    domain: Annotated[Path | None, typer.Option(help=DOMAIN)] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Write the draft of a domain.toml to this new file; printed otherwise."
        ),
    ] = None,
) -> None:
    """Show the holder of a table its cells, column by column. Nothing is changed.

    Missing, unreadable and clamped cells, columns that look like ids, and what a run
    would cluster by. Without --domain it also drafts a domain.toml of questions,
    without a bound. All of it are facts about records: not for others.
    """
    with one_sentence():
        from flower_kmeans.cli.inspect import draft, show, write_draft
        from flower_kmeans.cli.inspect import inspect as look
        from flower_kmeans.data.declared import domain_from_file

        if domain is not None and draw is not None:
            raise ConfigurationError(
                "Expected --draw, which drafts a domain, without --domain. Got both."
            )
        declared = None if domain is None else domain_from_file(domain)
        found = look(data, reading, declared)
        show(Console(highlight=False), found)
        if declared is None:
            text = draft(found)
            if draw is None:
                typer.echo(f"\n{text}", nl=False)
            else:
                write_draft(draw, text)
                typer.echo(f"Wrote a draft of questions to {draw}.")


@with_reading
def domain_init(
    *,
    reading: "Reading",
    output: Annotated[Path, typer.Option(help="The new file.")] = Path("domain.toml"),
    from_records: Annotated[
        str | None,
        typer.Option(
            help=f"Ask nothing; derive it from these records: NOT private. {DATA}"
        ),
    ] = None,
) -> None:
    """Make a domain.toml: names, kinds and public bounds of the columns to cluster by.

    It asks for what is publicly known, and reads no records. With --from-records, it
    asks nothing: the file says that it is not private, policies refuse it, and reports
    of runs with it begin with NOT PRIVATE. It says how many cells of each column are
    missing, and why columns are left out.
    """
    with one_sentence():
        from flower_kmeans.cli.domain import ask, read_off, write

        if output.exists() or not output.parent.is_dir():
            raise ConfigurationError(
                f"Expected --output as a new file in a directory that exists. Got {output}."
            )
        found = None if from_records is None else read_off(from_records, reading)
        domain = ask() if found is None else found.domain
        write(domain, output, None if found is None else found.comments())
        typer.echo(f"Wrote {counted(len(domain.declared), 'column')} to {output}.")
        if found is not None:
            for line in found.lines():
                typer.echo(printable(line))
            warn_of_bounds()
