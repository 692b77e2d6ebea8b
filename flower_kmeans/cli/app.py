"""The ``flower-kmeans`` command.

Errors are one sentence and end with exit code 1.
"""

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from flower_kmeans.cli.limits import limits_in_words
from flower_kmeans.cli.options import (
    Engine,
    Settings,
    StrategyCommand,
    escape_what_cannot_be_printed,
    even_widths,
    listed,
    one_sentence,
    placeholders,
    print_error,
    sentence_of,
    with_reading,
    with_settings,
)
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import prepare_directory, printable, written_together
from flower_kmeans.version import __version__

if TYPE_CHECKING:
    from flower_kmeans.data.reading import Reading
    from flower_kmeans.progress import ProgressBar
    from flower_kmeans.strategies import KMeansStrategy, RoundInfo, VerticalKMeans

    OnRound = Callable[[RoundInfo], None]


class _Commands(TyperGroup):
    """All commands; nothing that a terminal or a disk refuses ends one with a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command that the arguments name."""
        escape_what_cannot_be_printed()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # of what is printed outside of a command, such as its help
            print_error(sentence_of(error))
            sys.exit(1)


app = typer.Typer(
    name="flower-kmeans",
    cls=_Commands,
    help="Private, federated k-means for the Flower framework.",
    no_args_is_help=True,
    add_completion=False,
    # its traceback would print local variables, that is, records
    pretty_exceptions_enable=False,
)

_DATA = (
    "A csv, npy, npz, parquet or Excel file, a database (with --query), or a source.toml that "
    "names one."
)
_DOMAIN = "A domain.toml, which declares columns and public bounds: flower-kmeans domain init."
_DOMAIN_OF_RUN = "The domain.toml of the run, where its centroids.npz does not have it."
# Stands first in the report of such a run, whose epsilon is otherwise that of its
# noise.
_BOUNDS_READ_OFF = (
    "NOT PRIVATE: the bounds were read off the records and are exact facts about single ones; "
    "epsilon and delta would hold for public bounds."
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


@app.command(cls=StrategyCommand)
@with_settings
@with_reading
def simulate(
    settings: Settings,
    *,
    reading: "Reading",
    data: Annotated[
        str | None, typer.Option(help=f"{_DATA} By default a bundled photograph.")
    ] = None,
    domain: Annotated[Path | None, typer.Option(help=_DOMAIN)] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns to cluster by, as NAME,NAME; all by default."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column with labels; never a feature.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            help="Public bounds of one column, as NAME=LOW:HIGH; may be repeated."
        ),
    ] = None,
    lower: Annotated[
        float | None, typer.Option(help="Public lower bound of all columns.")
    ] = None,
    upper: Annotated[
        float | None, typer.Option(help="Public upper bound of all columns.")
    ] = None,
    bounds_from_data: Annotated[
        bool,
        typer.Option(
            "--bounds-from-data", help="Take missing bounds from the data: NOT private."
        ),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            help="tiles (of the photograph), iid, column:NAME (clients by its values), "
            "dirichlet:ALPHA (by the labels), or a partitioner of flwr-datasets, such as "
            "ShardPartitioner(partition_by='site', shard_size=50); for the strategy vertical "
            "columns (halves), or columns:NAME,NAME/NAME (the columns of each party)."
        ),
    ] = None,
    server_data: Annotated[
        Path | None,
        typer.Option(
            help="For feddp: a file with the server's own points, in the columns of the records."
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="Where the clients run: in this process, on Ray (the cluster in RAY_ADDRESS, or "
            "this machine), or auto: on Ray if it is installed and a run is long."
        ),
    ] = Engine.AUTO,
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path(
        "flower-kmeans-out"
    ),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Flower's own log.")
    ] = False,
) -> None:
    """Cluster a photograph, or your own table, in a federation on this machine.

    The results are centroids (npz, csv), a report (html, json) and a picture (png).
    """
    import numpy as np

    from flower_kmeans.cli import inputs as sources
    from flower_kmeans.cli import outputs as out
    from flower_kmeans.data.table_domain import TableDomain
    from flower_kmeans.data.tables import read_table
    from flower_kmeans.progress import ProgressBar
    from flower_kmeans.report.html import elbow_shown, html_report
    from flower_kmeans.simulation import simulate as run
    from flower_kmeans.simulation.engines import choose_engine, started

    console, private = Console(highlight=False), settings.is_private
    seed = settings.given.get("seed", 0)
    if data is None:
        for option, value in (
            ("--columns", columns),
            ("--label", label),
            ("--domain", domain),
        ):
            if value is not None:
                raise ConfigurationError(
                    f"{option} names columns of your own file: give it with --data."
                )
        source = sources.photo()
    elif domain is None:
        source = sources.table(data, reading, columns, label, split)
    else:
        if bounds_from_data or bounds or (columns, lower, upper) != (None, None, None):
            raise ConfigurationError(
                "Expected --domain, which has columns and bounds, without --columns, --bounds, "
                "--lower, --upper and --bounds-from-data. Got one of these as well."
            )
        source = sources.table(
            data, reading, None, label, split, TableDomain.from_file(domain)
        )
    settings.check_server(
        "--server-data", "a file with points of the server's own", server_data
    )
    parameters: dict[str, Any] = {}
    if server_data is not None:
        features = None if source.domain else list(source.columns)
        points = read_table(
            server_data, reading, features=features, domain=source.domain
        )
        parameters["server_data"] = points.records
    parties = source.parties(split) if settings.is_vertical else []
    if parties:
        source = source.ordered([name for party in parties for name in party])
    # A run without privacy may read its bounds off: it promises nothing.
    from_data = bounds_from_data or not private
    box, read_off = source.box(bounds or [], lower, upper, from_data=from_data)
    if read_off and private:
        _warn_of_bounds()
    if parties:
        parameters["parties"] = widths = [source.width(party) for party in parties]
        if source.domain is None:
            box = replace(box, columns=source.columns)
        partitions = np.split(source.records, np.cumsum(widths)[:-1], axis=1)
    else:
        partitions = source.split(split, settings.given.get("n_clients"), seed)
        parameters["n_clients"] = len(partitions)
    if "n_records" not in settings.given:
        if private and not parties and source.n_records is None:
            raise ConfigurationError(
                "A private run needs --n-records, the public planning figure for the number "
                "of records: it is not counted, because the true number is private."
            )
        # That of a photograph is public, and all parties with columns know theirs.
        parameters["n_records"] = source.n_records or len(source.records)
    chosen = settings.make(box, **parameters)
    wanted = choose_engine(chosen, engine.value)
    # Before the run, which may take long: an output that cannot be written must not
    # waste it.
    prepare_directory(output)
    start = time.perf_counter()
    is_free = engine is Engine.AUTO
    with _quiet(verbose), started(wanted, or_here=is_free) as (place, other_engine):
        console.print(
            Text(
                f"{printable(source.name)}: {_number(len(source.records), 'record')} of "
                f"{_number(len(partitions), 'party' if parties else 'client')}, "
                f"{_number(len(source.columns), 'column')}; "
                f"{type(chosen).__name__}, {_planned_clusters(chosen)}, engine {place}"
            ),
            soft_wrap=True,
        )
        for note in filter(None, (other_engine, *chosen.plan.notes)):
            console.print(Text(note, style="bold"), soft_wrap=True)
        with ProgressBar(console) as bar:
            clustering = run(
                chosen,
                partitions,
                engine=place,
                on_round=_round_printer(console, bar, "party" if parties else "client"),
            )
    seconds = time.perf_counter() - start
    inertia = clustering.inertia(source.records) / len(source.records)
    n_clusters = len(clustering.centroids)
    facts: dict[str, Any] = {
        "data": source.name,
        "columns": source.columns,
        "lower": box.lower,
        "upper": box.upper,
        "bounds_from_data": read_off,
        "n_clusters": n_clusters,
        "engine": place,
        "seed": seed,
        "total_seconds": seconds,
    }
    not_private = _BOUNDS_READ_OFF if read_off and private else None
    statements = clustering.report.statements
    if clustering.report.sizes is None and clustering.size_report is not None:
        statements += clustering.size_report.statements  # which a blind server has not
    if not_private is not None:
        statements = (not_private, *statements)
        facts |= {"private": False, "statements": statements}
    told = [
        ("data", source.name),
        ("engine", place),
        ("seed, of public randomness", str(seed)),
        ("time", f"{seconds:.1f} s"),
    ]
    names = [printable(name) for name in source.columns]
    page = html_report(clustering, columns=names, facts=told, not_private=not_private)
    # What `flower-kmeans report` needs beside the report and the centroids.
    sizes = clustering.size_report and clustering.size_report.to_dict()
    if clustering.synopsis is not None:
        facts["elbow"] = elbow_shown(clustering.synopsis, n_clusters).to_dict()
    facts["page"] = {"facts": told, "not_private": not_private, "sizes": sizes}
    privacy = f"epsilon {clustering.report.epsilon:.4g}" if private else "not private"
    caption = f"after: {n_clusters} colours, {privacy}"
    missing = source.lacks_for_picture()
    picture = missing or f"{out.PICTURE}, which shows the records themselves"
    # All together, so that a full disk leaves the results of an earlier run as they
    # were.
    with written_together(output, out.FILES) as place_of_files:
        files = out.write_page(place_of_files, page)
        files += out.write_report(place_of_files, clustering.report.to_dict() | facts)
        files += out.write_centroids(
            place_of_files, clustering, source.columns, read_off
        )
        if missing is None:
            source.draw(place_of_files / out.PICTURE, clustering, caption)
    # Beside the results: lines before the rounds would be far above them.
    for line in source.findings():
        console.print(Text(printable(line), style="yellow"), soft_wrap=True)
    out.print_warnings(console, clustering.report, statements)
    noted = " (NOT PRIVATE: bounds are from the records)" if not_private else ""
    lines = {
        "Found": f"{_number(n_clusters, 'cluster')} in "
        f"{_number(len(source.records), 'record')}, inertia {inertia:.5g} per record "
        "(exact: only a simulation can compute it)",
        "Cost": out.privacy_line(clustering.report) + noted,
        "Run": f"{_number(clustering.report.n_rounds, 'round')} in {seconds:.1f} s",
        "Files": f"{output}: {', '.join(files)}",
        "Picture": picture,
    }
    for name, value in lines.items():
        console.print(Text.assemble((f"{name:9}", "bold"), value), soft_wrap=True)


@app.command(cls=StrategyCommand)
@with_settings
def plan(
    settings: Settings,
    *,
    domain: Annotated[Path | None, typer.Option(help=_DOMAIN)] = None,
    features: Annotated[
        int | None, typer.Option(help="Number of columns; default: 3.")
    ] = None,
    parties: Annotated[
        int | None,
        typer.Option(
            help="For vertical: parties that split columns evenly; default: 2."
        ),
    ] = None,
    server_points: Annotated[
        int | None, typer.Option(help="For feddp: how many points the server has.")
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Simulate the plan on generated records, with smaller and larger epsilons, and "
            "print what its noise costs: 30 runs.",
        ),
    ] = False,
    chart: Annotated[
        Path | None,
        typer.Option(help="With --simulate: an svg, png or pdf file of the losses."),
    ] = None,
) -> None:
    """Print what a run would cost, from its parameters alone.

    Columns are taken as scaled to [-1, 1]; with --domain, they are those of its box.
    The defaults are those of the photograph.
    """
    from flower_kmeans.cli import outputs as output
    from flower_kmeans.cli.inputs import DEFAULT_CLIENTS
    from flower_kmeans.data import datasets
    from flower_kmeans.data.domain import Box
    from flower_kmeans.data.table_domain import TableDomain
    from flower_kmeans.report.report import clip_text
    from flower_kmeans.strategies import KMeansStrategy

    if domain is not None and features is not None:
        raise ConfigurationError(
            "Expected --domain, which has columns, or --features. Got both."
        )
    if domain is not None:
        declared = TableDomain.from_file(domain)
        features = declared.n_features
        if declared.from_records and settings.is_private:
            _warn_of_bounds()
    if features is not None and features < 1:
        raise ConfigurationError(
            f"Expected --features of at least 1. Got {features} instead."
        )
    name, given = settings.name, settings.given
    if (
        settings.takes("server_data")
        and settings.unit == "client"
        and "clip" not in given
    ):
        raise ConfigurationError(
            f"Expected --clip with --unit client for the strategy {name}: its clips follow from "
            "where the server's points lie, and only their number is known here. Got none."
        )
    settings.check_server(
        "--server-points", "the number of points of the server", server_points
    )
    if parties is not None and not settings.is_vertical:
        raise ConfigurationError(
            f"Expected --parties with --strategy vertical only. Got it with {name}."
        )
    if "n_records" not in given and features is not None and settings.is_private:
        raise ConfigurationError(
            "Expected --n-records, the public planning figure for the number of records, with "
            "--domain or --features. Got none."
        )
    features = 3 if features is None else features
    parameters: dict[str, Any] = {
        "n_records": given.get("n_records", datasets.PHOTO_RECORDS)
    }
    if server_points is not None:
        parameters["server_data"] = placeholders(server_points, features)
    if settings.is_vertical:
        parameters["parties"] = even_widths(features, 2 if parties is None else parties)
    else:
        parameters["n_clients"] = given.get("n_clients", DEFAULT_CLIENTS)
    box = Box([-1.0] * features, [1.0] * features)
    if chart is not None and not simulate:
        raise ConfigurationError(
            "Expected --chart with --simulate, whose losses it shows."
        )
    if simulate and (settings.is_vertical or not settings.is_private):
        raise ConfigurationError(
            "Expected --simulate with a private strategy whose clients hold records. "
            f"Got {name} without."
        )
    chosen = settings.make(box, **parameters)
    facts = {
        "n_records": str(parameters["n_records"]),
        "n_clients": str(chosen.n_clients),
    }
    facts |= {"min_clients": str(chosen.min_clients)}
    if chosen.trust_model.is_protected:
        facts["max_colluders"] = str(chosen.max_colluders)
    if isinstance(chosen, KMeansStrategy) and chosen.clip is not None:
        facts["clip"] = clip_text(chosen.clip, chosen.clips)
    if chosen.plan.is_private:
        facts["noise factor"] = output.noise_text(
            chosen.noise_factor, chosen.added_noise_factor
        )
    console = Console(highlight=False)
    output.print_plan(console, chosen.plan, chosen.trust, _size_noise(chosen), facts)
    if simulate:
        from flower_kmeans.cli.preview import Sizes, show_losses

        def make(epsilon: float, points: Any) -> Any:
            own = {"server_data": points} if server_points is not None else {}
            return replace(settings, epsilon=epsilon).make(box, **parameters | own)

        sizes = Sizes(
            parameters["n_records"], features, chosen.n_clusters, server_points or 0
        )
        epsilon = chosen.privacy.epsilon or 1.0  # never None: the run is private
        with _quiet(verbose=False):
            show_losses(console, make, epsilon, sizes, given.get("seed", 0), chart)


@app.command()
@with_reading
def assign(
    *,
    reading: "Reading",
    centroids: Annotated[
        Path,
        typer.Option(help="The centroids.npz of a run: of simulate, or of a node."),
    ] = Path("flower-kmeans-out/centroids.npz"),
    clusters: Annotated[
        int | None,
        typer.Option(
            help="Use another number of clusters, from the synopsis.npz beside the file."
        ),
    ] = None,
    domain: Annotated[Path | None, typer.Option(help=_DOMAIN_OF_RUN)] = None,
    data: Annotated[str, typer.Option(help=_DATA)],
    output: Annotated[
        Path, typer.Option(help="The file to write, csv or parquet.")
    ] = Path("assigned.csv"),
) -> None:
    """Assign new records to the clusters of a run.

    The output has the data's columns, and the cluster of each record with its distance
    to the centroid: in the data's units, or with a domain.toml after scaling, which
    makes each column's bounds 2 apart. Records are read a batch at a time. The output
    is as confidential as the data.
    """
    with one_sentence():
        from flower_kmeans.cli.assign import assign, read_centroids, with_clusters

        found = read_centroids(centroids, domain)
        if clusters is not None:
            found = with_clusters(found, centroids, clusters)
        done = assign(found, data, output, reading)
        without = (
            f"; {done.n_without:,} with missing cells have none"
            if done.n_without
            else ""
        )
        number = _number(done.findings.n_records, "record")
        typer.echo(f"Assigned clusters to {number} in {output}{without}.")
        for line in done.findings.lines():
            typer.echo(line, err=True)


@app.command()
def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT", help="The report.json, with centroids.npz beside."
        ),
    ],
) -> None:
    """Rebuild report.html from the report.json of a run, with centroids.npz beside it.

    These files are not signed: anyone could have edited them.
    """
    with one_sentence():
        from flower_kmeans.cli.outputs import write_page
        from flower_kmeans.cli.page import page_again

        page = page_again(run)
        prepare_directory(run.parent)
        (name,) = write_page(run.parent, page)
        typer.echo(f"Wrote {run.with_name(name)}")


@app.command()
@with_reading
def plot(
    *,
    reading: "Reading",
    kind: Annotated[
        str,
        typer.Option(
            metavar="axes|pairs|sizes|profiles",
            help="Clusters on the principal axes, or by pairs of columns; their noisy sizes; or "
            "their centroids by column.",
        ),
    ] = "axes",
    centroids: Annotated[
        Path,
        typer.Option(
            help="The centroids.npz of a run, with any synopsis.npz beside it."
        ),
    ] = Path("flower-kmeans-out/centroids.npz"),
    output: Annotated[
        Path, typer.Option(help="The file to write: svg, png or pdf.")
    ] = Path("clusters.svg"),
    columns: Annotated[
        str | None,
        typer.Option(help="Of pairs, as NAME,NAME; the first six by default."),
    ] = None,
    records: Annotated[
        str | None, typer.Option(help=f"Your own records to draw. {_DATA}")
    ] = None,
    domain: Annotated[Path | None, typer.Option(help=_DOMAIN_OF_RUN)] = None,
) -> None:
    """Draw the clusters of a run, from what it released alone.

    With --records the picture holds these records: it is as confidential as they are,
    and says so.
    """
    with one_sentence():
        from flower_kmeans.cli.plot import NOT_PRIVATE, Kind, draw

        if kind not in list(Kind):
            raise ConfigurationError(
                f"Expected --kind in {[*map(str, Kind)]}. Got {kind!r}."
            )
        names = None if columns is None else listed(columns)
        is_private = draw(
            Kind(kind), centroids, output, records, names, domain, reading
        )
        held = (
            "only what the run released"
            if records is None
            else "THE RECORDS THEMSELVES"
        )
        typer.echo(f"Wrote {output}, which shows {held}.")
        if not is_private:
            typer.echo(f"{NOT_PRIVATE}.", err=True)


@app.command()
def new(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The new directory; its name is the app's, such as my-app."
        ),
    ],
) -> None:
    """Make a Flower app that runs as it is, in a new DIRECTORY with the app's name.

    It has a client, a server, their options, a README and a test. Put your own records
    into it.
    """
    with one_sentence():
        from flower_kmeans.cli.new import make_app

        make_app(directory)
        typer.echo(
            f"Wrote a Flower app to {directory}. Test it, then run it with five clients:"
        )
        typer.echo(f"  python -m pytest {directory}")
        typer.echo(
            f"  flwr run {directory} local --stream "
            '--federation-config "num-supernodes=5 client-resources-num-cpus=1"'
        )


domain_app = typer.Typer(
    no_args_is_help=True, help="Make the file that declares columns."
)
app.add_typer(domain_app, name="domain")


@domain_app.callback()
def _domain() -> None:
    """Declare the columns of tables, with public bounds, in a file that all parties share."""


@domain_app.command("init")
@with_reading
def domain_init(
    *,
    reading: "Reading",
    output: Annotated[Path, typer.Option(help="The new file.")] = Path("domain.toml"),
    from_records: Annotated[
        str | None,
        typer.Option(
            help=f"Ask nothing; derive it from these records: NOT private. {_DATA}"
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
        typer.echo(f"Wrote {_number(len(domain.declared), 'column')} to {output}.")
        if found is not None:
            for line in found.lines():
                typer.echo(printable(line))
            _warn_of_bounds()


@app.command()
def keygen(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the clients to make keys for, by slot."),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(help="The directory for keys and roster; the current one."),
    ] = None,
    beacon: Annotated[
        str | None,
        typer.Option(
            help="For the new roster: public random hexadecimal digits, fixed after keys."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="ROSTER", help="Make nothing; check this roster."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="With --check: the own key, which must be on the roster."),
    ] = None,
) -> None:
    """Make keys for the named clients and the roster that pins them, or check a roster.

    The server may have the roster, but none of the keys. A client that makes its own
    key shares only its line of the roster. All lines, in one agreed order, are the
    roster.
    """
    with one_sentence():
        from flower_kmeans.cli.check import describe_roster
        from flower_kmeans.protocol.roster import Roster, read_identity, write_members

        makes = {
            "--output": output,
            "--beacon": beacon,
            "names of clients": names or None,
        }
        given = [name for name, value in makes.items() if value is not None]
        if check is not None and given:
            raise ConfigurationError(
                f"Expected --check alone or with --key. Got {given} as well."
            )
        if check is None and (key is not None or not names):
            raise ConfigurationError(
                "Expected names of clients to make keys for, or --check ROSTER. Got neither."
            )
        if check is None:
            for path in write_members(output or Path(), names or [], beacon):
                typer.echo(f"Wrote {path}")
            # The last path is the roster's.
            typer.echo(
                f"Digest, for all to compare: flower-kmeans keygen --check {path}"
            )
        else:
            identity = None if key is None else read_identity(check, key)
            for line in describe_roster(Roster.from_file(check), identity):
                typer.echo(line)


@app.command()
@with_reading
def inspect(
    data: Annotated[str, typer.Argument(metavar="FILE", help=_DATA)],
    *,
    reading: "Reading",
    domain: Annotated[Path | None, typer.Option(help=_DOMAIN)] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Write the draft of a domain.toml to this new file; printed otherwise."
        ),
    ] = None,
) -> None:
    """Show the holder of a table what its cells are, column by column. Nothing is changed.

    Missing, unreadable and clamped cells, columns that look like ids, and what a run
    would cluster by. Without --domain it also drafts a domain.toml of questions,
    without a bound. All of it are facts about records: not for others.
    """
    with one_sentence():
        from flower_kmeans.cli.inspect import draft, show, write_draft
        from flower_kmeans.cli.inspect import inspect as look
        from flower_kmeans.data.table_domain import TableDomain

        if domain is not None and draw is not None:
            raise ConfigurationError(
                "Expected --draw, which drafts a domain, without --domain. Got both."
            )
        declared = None if domain is None else TableDomain.from_file(domain)
        found = look(data, reading, declared)
        show(Console(highlight=False), found)
        if declared is None:
            text = draft(found)
            if draw is None:
                typer.echo(f"\n{text}", nl=False)
            else:
                write_draft(draw, text)
                typer.echo(f"Wrote a draft of questions to {draw}.")


@app.command()
@with_reading
def check(
    *,
    reading: "Reading",
    policy_file: Annotated[Path, typer.Option(help="The policy that the node names.")],
    data: Annotated[
        str | None, typer.Option(help=f"The node's records. {_DATA}")
    ] = None,
    domain: Annotated[
        Path | None,
        typer.Option(
            help="The domain.toml by which the node reads them; by default the policy's."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REASON",
            help="Let the findings on a column pass, for a reason in words; may be repeated. "
            f"Otherwise refused: {limits_in_words()}",
        ),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(help="The SuperLink to reach with TLS, as HOST:PORT.")
    ] = None,
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="Certificate of the SuperLink's authority (ca.crt)."),
    ] = None,
) -> None:
    """Check, as the user who runs a node, whether it could take part. Nothing is changed.

    The records are read as the node reads them. Exit code 0 if it could take part, 1
    otherwise. No record's value and no number of records is printed.
    """
    with one_sentence():
        from flower_kmeans.cli.check import check_node, print_findings

        if root_certificates is not None and superlink is None:
            raise ConfigurationError(
                "--root-certificates needs --superlink, the server to reach."
            )
        accepted = dict(map(_acceptance, accept or ()))
        findings = check_node(
            policy_file, data, superlink, root_certificates, reading, domain, accepted
        )
        print_findings(Console(highlight=False), findings)
        if not all(finding.is_well for finding in findings):
            raise typer.Exit(1)


@app.command()
def forget(
    *,
    state_dir: Annotated[
        Path | None, typer.Option(help="The directory with the node's ledger.")
    ] = None,
    policy_file: Annotated[
        Path | None, typer.Option(help="Or the policy that names that directory.")
    ] = None,
) -> None:
    """Erase the secrets of runs that never ended from a node's ledger.

    A failed run leaves its keys there, for 30 days at most. Charges for answered rounds
    stay. Reservations for further rounds are returned. A run in progress is refused
    from then on.
    """
    with one_sentence():
        from flower_kmeans.privacy.ledger import Ledger
        from flower_kmeans.privacy.ledger_file import find_private_file
        from flower_kmeans.protocol.leftovers import erase_ended
        from flower_kmeans.protocol.policy import ClientPolicy
        from flower_kmeans.protocol.session import forget_unfinished, remove_copies

        if (state_dir is None) == (policy_file is None):
            raise ConfigurationError("Expected either --state-dir or --policy-file.")
        if policy_file is not None:
            policy = ClientPolicy.from_file(policy_file)
        else:
            policy = ClientPolicy(state_dir=state_dir)
        named = policy.state_dir
        if named is None:
            raise ConfigurationError(
                f"The policy file {policy_file} names no state_dir."
            )
        if find_private_file(Path(named)) is None:
            raise ConfigurationError(f"There is no ledger in {named}.")
        with Ledger(named) as ledger:
            # The ledger first: a copy of records or of ciphertexts goes when its run
            # has ended there.
            n = forget_unfinished(ledger)
            remove_copies(Path(named), ledger)
            erase_ended(policy, ledger)
        typer.echo(
            f"Forgot {_number(n, 'unfinished run')} in {named}. Charges for answered rounds stay; "
            "reservations for further rounds are returned."
        )


@app.command()
def bench(
    *,
    suite: Annotated[
        str | None,
        typer.Option(
            help="A built-in suite, or a Python file that defines SUITE; listed if left out."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for the results; build/SUITE by default."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes; by default one per core, or one if time is measured."
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Repetitions; by default the suite's.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set, or FILE.npz:K for K clusters; may be repeated."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory of NAME.npz files.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE[,VALUE]: these runs alone; may be repeated."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Start no run after this.")] = math.inf,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Only show what the output directory holds."),
    ] = False,
) -> None:
    """Measure, and write tables and plots. The same command resumes a stopped suite.

    A suite in a file executes that file. Results are runs.csv, tables.md, plots,
    meta.json.
    """
    with one_sentence():
        from flower_kmeans.bench.harness import Options
        from flower_kmeans.bench.runner import BUILT_IN, execute, load_suite

        console = Console(highlight=False)
        if suite is None:
            for name in BUILT_IN:
                console.print(f"{name}: {load_suite(name).protocol}\n")
            console.print("flower-kmeans bench --suite NAME runs one.")
            return
        chosen = load_suite(suite)
        options = Options(
            chosen.runs if runs is None else runs,
            data=tuple(data or ()),
            data_dir=data_dir,
            only=tuple(map(_restriction, only or ())),
        )
        execute(
            chosen,
            options,
            Path("build") / chosen.name if output is None else output,
            arguments=sys.argv,
            jobs=jobs,
            minutes=minutes,
            redraw=redraw,
            console=console,
        )


def main() -> None:
    """Run the command."""
    app()


def _warn_of_bounds() -> None:
    words = (
        "WARNING: the bounds were read off the records. They are exact facts about single records, "
        "so a run with them is NOT private, whatever epsilon says."
    )
    # On stderr, where a redirected output does not hide it.
    Console(stderr=True).print(Text(words, style="bold red"), soft_wrap=True)


def _size_noise(strategy: "KMeansStrategy | VerticalKMeans") -> float | None:
    """Return the standard deviation of the last cluster sizes' noise, if it is known by now."""
    algorithm, last = strategy.algorithm, strategy.n_rounds
    noise = algorithm.noise_of(last).get("counts") if strategy.plan.is_private else None
    if noise is None:
        return None
    (block,) = (block for block in algorithm.layout(last) if block.name == "counts")
    if block.shape != (strategy.n_clusters,):  # those of the cells of a synopsis
        return None
    return noise * 2.0**-block.exponent * strategy.noise_factor


def _planned_clusters(strategy: "KMeansStrategy | VerticalKMeans") -> str:
    fewest, most = (
        strategy.algorithm.fewest_clusters,
        _number(strategy.n_clusters, "cluster"),
    )
    return most if fewest == strategy.n_clusters else f"{fewest} to {most}"


def _round_printer(console: Console, bar: "ProgressBar", who: str) -> "OnRound":
    def on_round(info: "RoundInfo") -> None:
        missing = f", {info.dropped} missing" if info.dropped else ""
        console.print(
            f"round {info.round} of {info.n_rounds}: "
            f"{_number(info.n_answers, who)} answered{missing}",
            highlight=False,
        )
        bar(info)

    return on_round


def _number(n: int, noun: str) -> str:
    if n != 1:
        noun = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{n:,} {noun}"


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Keep the logs of Flower and Ray, but not their errors, from between the rounds' lines.

    Also what each client would log of its records: the command says that of all of
    them.
    """
    if verbose:
        yield
        return
    loggers = [logging.getLogger(name) for name in ("flwr", "flower_kmeans.data")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Ray warns that one of its defaults will change, which nobody here can set.
            warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _acceptance(text: str) -> tuple[str, str]:
    """Return name and reason of ``NAME=REASON``; names may not hold "=", for reasons do."""
    name, _, reason = text.partition("=")
    if not name.strip() or not reason.strip():
        raise ConfigurationError(
            f"Expected --accept as NAME=REASON, with a reason in words. Got {text!r} instead."
        )
    return name.strip(), reason.strip()


def _restriction(text: str) -> tuple[str, tuple[str, ...]]:
    column, found, values = text.partition("=")
    if not found or not values:
        raise ConfigurationError(
            f"Expected --only COLUMN=VALUE[,VALUE]. Got {text!r} instead."
        )
    return column, tuple(values.split(","))
