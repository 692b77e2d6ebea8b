"""The command line of a file with a suite: ``python FILE.py --runs 20 --output DIR``.

Each column of the suite's tasks has an option in the plural, such as ``--methods`` and
``--epsilons``. It restricts the column to the given values.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Options, Suite
from bench.runner import Outcome, execute, load_suite
from flower_kmeans.errors import KMeansError


def parser_of(suite: Suite) -> argparse.ArgumentParser:
    """Return the options that every suite has."""
    parser = argparse.ArgumentParser(description=suite.protocol)
    for column in suite.task_columns:
        plural = (
            f"{column[:-1]}ies"
            if column.endswith("y")
            else f"{column.removesuffix('s')}s"
        )
        # The options below are for these two.
        if column not in ("run", "data"):
            parser.add_argument(
                f"--{plural}", dest=f"only_{column}", nargs="*", metavar="VALUE"
            )
    if suite.datasets:
        parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
        parser.add_argument("--data", nargs="+", help="data sets, or FILE.npz:K")
    parser.add_argument("--runs", type=int, default=suite.runs, help="repetitions")
    default = "one, as time is measured" if suite.alone else "one per core"
    parser.add_argument("--jobs", type=int, help=f"processes (default: {default})")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many"
    )
    parser.add_argument(
        "--redraw", action="store_true", help="show the runs of --output"
    )
    parser.add_argument("--output", type=Path, default=Path("build") / suite.name)
    return parser


def options_of(suite: Suite, parsed: argparse.Namespace) -> Options:
    """Return the options of a parsed command line."""
    given = vars(parsed)
    only = ((column, given.get(f"only_{column}")) for column in suite.task_columns)
    return Options(
        parsed.runs,
        data=tuple(given.get("data") or ()),
        data_dir=given.get("data_dir"),
        only=tuple(
            (column, tuple(values)) for column, values in only if values is not None
        ),
    )


def run(suite: Suite, parsed: argparse.Namespace) -> Outcome:
    """Run a suite under parsed options; an error of ours is one sentence and exit code 1."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        if suite.measure.__module__ == "__main__" and script:
            # other processes find its functions in a module of a name
            suite = load_suite(script)
        return execute(
            suite,
            options_of(suite, parsed),
            parsed.output,
            arguments=sys.argv,
            jobs=parsed.jobs,
            minutes=parsed.minutes,
            redraw=parsed.redraw,
        )
    except KMeansError as error:
        sys.exit(f"Error: {error}")


def main(suite: Suite, arguments: Sequence[str] | None = None) -> None:
    """Run a suite from the command line."""
    run(suite, parser_of(suite).parse_args(arguments))
