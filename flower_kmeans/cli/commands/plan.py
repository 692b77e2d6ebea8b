"""``flower-kmeans plan``: the cost of a run, before any run."""

from pathlib import Path
from typing import Annotated

import typer

from flower_kmeans.cli.options import Settings, with_settings

_PlanDomainOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Columns and public bounds: flower-kmeans domain init."
    ),
]
_PlanTighten = Annotated[
    float | None,
    typer.Option(
        metavar="FRACTION",
        help="Of mu^2, which finds ranges of columns. Default: that of --domain.",
    ),
]
_PlanQuality = Annotated[
    bool,
    typer.Option(
        "--quality",
        help="Measure how well clusters are apart: 0.05 of mu^2.",
    ),
]
_Features = Annotated[
    int | None, typer.Option(metavar="N", help="Number of columns. Default: 3.")
]
_Parties = Annotated[
    int | None,
    typer.Option(metavar="N", help="Parties that split columns evenly. Default: 2."),
]
_ServerPoints = Annotated[
    int | None, typer.Option(metavar="N", help="Number of the server's own points.")
]
_Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate",
        help="Simulate the plan, and other epsilons, numbers and bounds; print what each loses "
        "and what to change first.",
    ),
]
_Sample = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --simulate: PUBLIC records (csv, Excel, source.toml, ...) of the columns of "
        "--domain, in place of made-up ones.",
    ),
]
_Chart = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --simulate: an svg, png or pdf of the table."
    ),
]


@with_settings
def plan(
    settings: Settings,
    *,
    domain: _PlanDomainOption = None,
    tighten: _PlanTighten = None,
    quality: _PlanQuality = False,
    features: _Features = None,
    parties: _Parties = None,
    server_points: _ServerPoints = None,
    simulate: _Simulate = False,
    sample: _Sample = None,
    chart: _Chart = None,
) -> None:
    """Print the cost of a run, from its parameters alone.

    Columns are taken as scaled to [-1, 1]; with --domain, they are those of its box,
    ball or sphere.
    The defaults are those of the photograph.
    """
    from flower_kmeans.cli.planning import PlanRequest, show_plan

    request = PlanRequest(
        domain=domain,
        tighten=tighten,
        features=features,
        parties=parties,
        server_points=server_points,
        simulate=simulate,
        sample=sample,
        chart=chart,
    )
    show_plan(settings.with_quality(quality), request)
