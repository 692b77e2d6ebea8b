"""``flower-kmeans bench``: run a suite of benchmarks, or list those that there are."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from flower_kmeans.cli.console import one_sentence, plain_console
from flower_kmeans.errors import ConfigurationError


def bench(
    *,
    suite: Annotated[
        str | None,
        typer.Option(
            help="A built-in suite, or a Python file that defines SUITE; listed if left out."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the results; build/SUITE by default.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes; by default one per core, or one if time is measured."),
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Repetitions; by default the suite's.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set, or FILE.npz:K for K clusters; may be repeated."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Directory of NAME.npz files.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE[,VALUE]: these runs alone; may be repeated."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many.")] = math.inf,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only show what the output directory holds.")
    ] = False,
) -> None:
    """Measure, and write tables and plots. The same command goes on where it was stopped.

    A suite in a file runs that file. Results are runs.csv, tables.md, plots and meta.json.
    """
    with one_sentence():
        from flower_kmeans.bench.harness import Options
        from flower_kmeans.bench.runner import BUILT_IN, execute, load_suite

        console = plain_console()
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


def _restriction(text: str) -> tuple[str, tuple[str, ...]]:
    column, found, values = text.partition("=")
    if not found or not values:
        raise ConfigurationError(f"Expected --only COLUMN=VALUE[,VALUE]. Got {text!r} instead.")
    return column, tuple(values.split(","))
