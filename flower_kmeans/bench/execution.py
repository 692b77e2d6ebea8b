"""A benchmark from a command: find the suite, run it, write tables, plots and what made them."""

import importlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from flower_kmeans.bench import lock, plots, record, rows
from flower_kmeans.bench.harness import Options, Plan, Row, Suite, plan_of, sources_of
from flower_kmeans.bench.runner import Outcome, run
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.output import prepare_directory

BUILT_IN = {"quick": "flower_kmeans.bench.quick"}
"""Suites that come with the library, and their modules."""
TABLES = "tables.md"


def load_suite(name: str) -> Suite:
    """Return the ``SUITE`` of a built-in name, or of a Python file.

    The file is run. Its folder is put in front of the search path, where processes that do its
    tasks find it, and its neighbours, as well.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if name in BUILT_IN:
        module = importlib.import_module(BUILT_IN[name])
    else:
        path = Path(name)
        if path.suffix != ".py" or not path.is_file():
            raise ConfigurationError(
                f"Expected --suite as one of {', '.join(BUILT_IN)}, or a Python file that defines "
                f"SUITE. Got {name!r} instead."
            )
        if "." in path.stem:
            raise ConfigurationError(
                f"Expected a file name that a module can have. Got {path.name!r} instead."
            )
        path = path.resolve()
        sys.path.insert(0, str(path.parent))
        importlib.invalidate_caches()
        module = importlib.import_module(path.stem)
        if Path(getattr(module, "__file__", None) or "").resolve() != path:
            raise ConfigurationError(
                f"Expected the file {path.name} to have a name that no other module has. "
                f"Got {path.stem!r}, which is taken."
            )
    suite = getattr(module, "SUITE", None)
    if not isinstance(suite, Suite):
        raise ConfigurationError(f"Expected {name} to define SUITE, a Suite. Got none.")
    return suite


def execute(
    suite: Suite,
    options: Options,
    output: Path,
    *,
    arguments: Sequence[str],
    jobs: int | None = None,
    minutes: float = math.inf,
    redraw: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Run a suite and write all that belongs to it.

    ``runs.csv`` (and runs.parquet, where pyarrow is installed), ``tables.md``, the plots as png and
    svg, where matplotlib is installed, and ``meta.json``.

    Parameters
    ----------
    suite : Suite
    options : Options
    output : Path
        Directory; runs that it holds already are not done again.
    arguments : sequence of str
        The command, to be told beside the figures.
    jobs : int, optional
        Processes; one per core by default, or one for a suite that measures time.
    minutes : float
        No task is begun after so many.
    redraw : bool
        Whether only to show what there is.
    console : rich.console.Console, optional
        For progress and tables.

    Raises
    ------
    ConfigurationError, DataError
        If options, or what the directory holds, do not fit the suite, or another command is
        writing to the directory.
    RunError
        If tasks failed; all others are done, and shown.
    """
    console = console or Console()
    plan = plan_of(suite, options, redraw=redraw)
    prepare_directory(output)
    with lock.held(output):
        meta = record.read(suite, output)
        record.remember(output, meta, sources_of(suite, options))
        if plan.skipped:
            console.print(Text(_skipped(plan)), soft_wrap=True)
        path = output / rows.NAME
        if redraw:
            outcome = run(suite, replace(plan, tasks=()), path)
        else:
            n_before = len(rows.read(suite, path))
            entry = record.entry(arguments, jobs, plan.skipped)
            meta["commands"].append(entry)
            record.write(output, meta)  # now, in case that this process ends without a word
            try:
                outcome = run(suite, plan, path, jobs=jobs, minutes=minutes, console=console)
            except KeyboardInterrupt:
                console.print("Stopped: the same command goes on.")
                raise
            finally:
                entry |= {"ended": record.now(), "rows": len(rows.read(suite, path)) - n_before}
                record.write(output, meta)
        if outcome.rows:
            show(suite, plan, outcome, output, meta, console)
        if outcome.n_left:
            console.print(f"{outcome.n_left} runs are left: the same command goes on.")
        if outcome.failures:
            first = outcome.failures[0]
            raise RunError(
                f"{len(outcome.failures)} runs failed; the first, {first.task}: {first.error}"
            )
        return outcome


def show(
    suite: Suite, plan: Plan, outcome: Outcome, output: Path, meta: dict[str, Any], console: Console
) -> None:
    """Write tables, plots and the copy of rows, and print the tables."""
    written = [rows.NAME, record.NAME, TABLES]
    tables = suite.tables(outcome.rows, plan.options)
    head = [f"# {suite.name}", suite.protocol]
    head += [f"- `{told}`" for told in made_by(meta)]
    head += [_skipped(plan)] if plan.skipped else []
    (output / TABLES).write_text("\n\n".join([*head, tables]) + "\n", "utf-8")
    written += _write_parquet(suite, outcome.rows, output)
    without = ""
    for name, draw in suite.plots.items():
        try:
            written += plots.save(draw(outcome.rows, plan.options), output, name)
        except ConfigurationError as error:
            without = str(error)
    console.print(Text(f"\n{tables}\n"), soft_wrap=True)
    console.print(Text(f"Written to {output}: {', '.join(written)}"), soft_wrap=True)
    if without:
        console.print(Text(without, style="dim"), soft_wrap=True)


def made_by(meta: dict[str, Any]) -> list[str]:
    """Return the commands behind the rows, with their days, versions and commits."""
    told = []
    for each in meta["commands"]:
        if each["rows"] != 0:
            versions = ", ".join(f"{name} {text}" for name, text in each["versions"].items())
            if each.get("commit"):  # the hash, and "+" if files differed from it
                versions += f", commit {each['commit'][:10]}{each['commit'][40:]}"
            ended = "and was killed" if each["rows"] is None else f"{each['rows']} runs"
            told.append(f"{each['command']}` on {each['started'][:10]}: {ended}; `{versions}")
    return told


def _skipped(plan: Plan) -> str:
    return f"Skipped, because their files are missing: {', '.join(plan.skipped)}."


def _write_parquet(suite: Suite, found: Sequence[Row], output: Path) -> list[str]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        return []
    columns = {name: [row[name] for row in found] for name in suite.columns}
    parquet.write_table(arrow.table(columns), output / "runs.parquet")
    return ["runs.parquet"]
