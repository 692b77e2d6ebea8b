"""``assign``, ``report`` and ``plot``: uses of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_kmeans.cli.commands.texts import DATA, DOMAIN_OF_RUN
from flower_kmeans.cli.options import listed, one_sentence, with_reading
from flower_kmeans.cli.printing import counted
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import prepare_directory

if TYPE_CHECKING:
    from flower_kmeans.data.reading import Reading


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
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="Use another weight of a column, from the synopsis.npz beside the file. May be "
            "repeated.",
        ),
    ] = None,
    domain: Annotated[Path | None, typer.Option(help=DOMAIN_OF_RUN)] = None,
    data: Annotated[str, typer.Option(help=DATA)],
    output: Annotated[
        Path, typer.Option(help="The file to write, csv or parquet.")
    ] = Path("assigned.csv"),
    page: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page of the sizes of the clusters here, html. It holds exact counts "
            "of these records.",
        ),
    ] = None,
) -> None:
    """Assign new records to the clusters of a run, and count them beside its noisy sizes.

    The output has the data's columns, and the cluster of each record with its distance
    to the centroid: in the data's units, or with a domain.toml or weights after
    scaling, which makes each number's bounds twice its weight apart. Records are read a
    batch at a time. The output, the printed sizes and the page are as confidential as
    the data.
    """
    with one_sentence():
        from flower_kmeans.cli.assign import (
            NO_PERSON_COLUMN,
            assign,
            read_centroids,
            with_clusters,
        )
        from flower_kmeans.cli.inputs import parse_weights
        from flower_kmeans.cli.outputs import print_own_sizes
        from flower_kmeans.data.domain import Sphere
        from flower_kmeans.report.names import cluster_names

        found = read_centroids(centroids, domain)
        if clusters is not None or weight:
            weights = parse_weights(weight or [])
            found = with_clusters(found, centroids, clusters, weights)
        done = assign(found, data, output, reading, page)
        without = ""
        if done.n_without:
            why = "missing cells"
            if isinstance(found.domain, Sphere):
                why += " or of length zero"
            without = f"; {done.n_without:,} with {why} have none"
        number = counted(done.findings.n_records, "record")
        typer.echo(f"Assigned clusters to {number} in {output}{without}.")
        names = cluster_names(
            found.centroids, found.counts, found.domain, found.columns
        )
        print_own_sizes(done.sizes, names)
        if found.counted != done.sizes.counted:
            typer.echo(NO_PERSON_COLUMN)
        if page is not None:
            typer.echo(f"Wrote {page}, which shows EXACT COUNTS OF THE RECORDS.")
        for line in done.findings.lines():
            typer.echo(line, err=True)


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
        str | None, typer.Option(help=f"Your own records to draw. {DATA}")
    ] = None,
    domain: Annotated[Path | None, typer.Option(help=DOMAIN_OF_RUN)] = None,
) -> None:
    """Draw the clusters of a run, from released values alone.

    With --records the picture holds these records: it is as confidential as they are,
    and says so.
    """
    with one_sentence():
        from flower_kmeans.cli.plot import NOT_PRIVATE, PlotKind, draw

        if kind not in list(PlotKind):
            raise ConfigurationError(
                f"Expected --kind in {[*map(str, PlotKind)]}. Got {kind!r}."
            )
        names = None if columns is None else listed(columns)
        is_private = draw(
            PlotKind(kind), centroids, output, records, names, domain, reading
        )
        held = "only what the run released"
        if records is not None:
            held = "THE RECORDS THEMSELVES"
        typer.echo(f"Wrote {output}, which shows {held}.")
        if not is_private:
            typer.echo(f"{NOT_PRIVATE}.", err=True)
