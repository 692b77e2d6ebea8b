"""``flower-kmeans simulate``: a federation on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_kmeans.cli.options import (
    EngineOption,
    Settings,
    with_reading,
    with_settings,
)

if TYPE_CHECKING:
    from flower_kmeans.data.reading import Reading

_DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Records (csv, Excel, ...). Default: a photograph.",
    ),
]
_DomainOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Columns and bounds: flower-kmeans domain init."),
]
_Columns = Annotated[
    str | None,
    typer.Option(metavar="NAME,NAME", help="Columns to cluster by. By default all."),
]
_Label = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column with labels, which is never a feature."),
]
_BoundsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LOW:HIGH", help="Public bounds of a column. May be repeated."
    ),
]
_WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        metavar="NAME=WEIGHT",
        help="Of a column in distances. May be repeated.",
    ),
]
_Tighten = Annotated[
    float | None,
    typer.Option(
        metavar="FRACTION",
        help="Of mu^2, to find ranges in outer bounds: 0.1.",
    ),
]
_Lower = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Public lower bound of all columns."),
]
_Upper = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Public upper bound of all columns."),
]
_BoundsFromData = Annotated[
    bool,
    typer.Option(
        "--bounds-from-data", help="Take missing bounds from the data: NOT private."
    ),
]
_SphereOption = Annotated[
    bool,
    typer.Option(
        "--sphere",
        help="Only the direction of a record counts. No bounds.",
    ),
]
_BallOption = Annotated[
    float | None,
    typer.Option(
        metavar="RADIUS",
        help="Public bound of the length of a record.",
    ),
]
_Quality = Annotated[
    bool,
    typer.Option(
        "--quality",
        help="Measure how well clusters are apart: 0.05 of mu^2.",
    ),
]
_Split = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="iid, tiles, column:NAME, dirichlet:ALPHA or others.",
    ),
]
_ServerData = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The server's own points, in the same columns."),
]
_Engine = Annotated[
    EngineOption,
    typer.Option(
        metavar="WHERE",
        show_default=False,
        help="auto, in-process or ray. Default: auto.",
    ),
]
_Output = Annotated[
    Path,
    typer.Option(
        metavar="DIRECTORY",
        show_default=False,
        help="Where the results go. Default: flower-kmeans-out.",
    ),
]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Show Flower's own log.")]


@with_settings
@with_reading
def simulate(
    settings: Settings,
    *,
    reading: "Reading",
    data: _DataOption = None,
    domain: _DomainOption = None,
    columns: _Columns = None,
    label: _Label = None,
    bounds: _BoundsOption = None,
    weight: _WeightOption = None,
    tighten: _Tighten = None,
    lower: _Lower = None,
    upper: _Upper = None,
    bounds_from_data: _BoundsFromData = False,
    sphere: _SphereOption = False,
    ball: _BallOption = None,
    quality: _Quality = False,
    split: _Split = None,
    server_data: _ServerData = None,
    engine: _Engine = EngineOption.AUTO,
    output: _Output = Path("flower-kmeans-out"),
    verbose: _Verbose = False,
) -> None:
    """Cluster a photograph, or your own table, in a federation on this machine."""
    from flower_kmeans.cli.simulation import SimulationRequest, run_simulation

    request = SimulationRequest(
        data=data,
        reading=reading,
        domain=domain,
        columns=columns,
        label=label,
        bounds=bounds or [],
        weights=weight or [],
        tighten=tighten,
        lower=lower,
        upper=upper,
        bounds_from_data=bounds_from_data,
        sphere=sphere,
        ball=ball,
        split=split,
        server_data=server_data,
        engine=engine,
        output=output,
        verbose=verbose,
    )
    run_simulation(settings.with_quality(quality), request)
