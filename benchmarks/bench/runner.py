"""Runs a suite: each task once, in several processes. A stopped suite can be continued.

The row of a task is written to runs.csv as soon as the task is done. tables.md, plots
and meta.json are written beside it. meta.json states the commands that made the rows,
their times and their versions.
"""

import importlib
import logging
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track
from rich.text import Text
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench import plots
from bench.harness import Options, Plan, Row, Suite, parse, plan_of, shown
from flower_kmeans.errors import ConfigurationError, DataError, RunError
from flower_kmeans.extras import require
from flower_kmeans.files import prepare_directory
from flower_kmeans.version import __version__

Measured = Mapping[str, Any]

RUNS, META, TABLES, LOCK = "runs.csv", "meta.json", "tables.md", ".lock"
PACKAGES = ("flwr", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Outcome:
    """Results of a command: the rows that its options admit, and how many are new or left."""

    rows: list[Row]
    n_done: int = 0
    n_left: int = 0


class Meta(msgspec.Struct):
    """The content of meta.json."""

    suite: str
    settings: dict[str, str]
    commands: list[dict[str, Any]]
    files: dict[str, dict[str, Any]]
    protocol: str = ""

    def write(self, directory: Path) -> None:
        """Write the file. A killed process leaves either the old or the new one."""
        partial_file = directory / f"{META}.partial"
        partial_file.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        os.replace(partial_file, directory / META)


def load_suite(file: str | Path) -> Suite:
    """Return the ``SUITE`` of a Python file, after running the file.

    The file's folder is put in front of the search path, so other processes find its
    modules.

    Raises
    ------
    ConfigurationError
        If the file has no suite.
    """
    path = Path(file).resolve()
    if path.suffix != ".py" or not path.is_file() or "." in path.stem:
        raise ConfigurationError(
            "Expected a suite as a Python file NAME.py that defines SUITE. "
            f"Got {str(file)!r} instead."
        )
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    module = importlib.import_module(path.stem)
    # Another module of this name was imported before, and would be measured instead.
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise ConfigurationError(
            f"Expected the file {path.name} to have a name that no other module has. "
            f"Got {path.stem!r}, which is taken."
        )
    suite = getattr(module, "SUITE", None)
    if not isinstance(suite, Suite):
        raise ConfigurationError(f"Expected {file} to define SUITE, a Suite. Got none.")
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
    """Run a suite, and write ``runs.csv``, ``tables.md``, ``meta.json`` and the plots.

    Parameters
    ----------
    suite : Suite
    options : Options
    output : Path
        The directory for results. Runs that it already has are not repeated.
    arguments : sequence of str
        The command, as ``sys.argv``. tables.md and meta.json show it.
    jobs : int, optional
        Number of processes. By default it is the number of cores, or one for a suite
        that measures time.
    minutes : float
        No task begins after so many minutes.
    redraw : bool
        Whether to show the existing rows without running tasks.
    console : rich.console.Console, optional
        The console for progress and tables.

    Raises
    ------
    ConfigurationError, DataError
        If options, or what the directory holds, do not fit the suite, or another
        command is writing to the directory.
    RunError
        If tasks failed, after all others are done and shown; or if a process was
        killed.
    """
    require("pandas", "A benchmark", "test")
    filelock = require("filelock", "A benchmark", "test")
    console = console or Console()
    if jobs is None:
        jobs = 1 if suite.alone else available_cores()
    if jobs < 1:
        raise ConfigurationError(f"Expected jobs >= 1. Got {jobs} instead.")
    plan = plan_of(suite, options, redraw=redraw)
    prepare_directory(output)
    try:
        lock = filelock.FileLock(output / LOCK).acquire(timeout=0)
    except filelock.Timeout:
        raise ConfigurationError(
            f"Expected {output} for this command alone. Got another command that is writing to "
            "it: wait for its end, or choose another --output."
        ) from None
    with lock:
        meta = read_meta(suite, output, suite.known(options))
        if plan.skipped:
            console.print(Text(_skipped(plan)), soft_wrap=True)
        known = read_runs(suite, output / RUNS)
        left = [] if redraw else [task for task in plan.tasks if task not in known]
        before, failures = len(known), list[str]()
        if not redraw:
            entry = _entry(arguments, jobs)
            meta.commands.append(entry)
            meta.write(output)  # now: this process may be killed
            results = track(
                _results(suite, plan.options, left, jobs, minutes),
                suite.name,
                len(left),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
            try:
                for task, result in results:
                    if isinstance(result, Exception):
                        failures.append(f"{task}: {type(result).__name__}: {result}")
                    else:
                        known[task] = append_run(suite, output / RUNS, task, result)
            except KeyboardInterrupt:
                console.print("Stopped: the same command continues.")
                raise
            finally:
                entry |= {"ended": _now(), "rows": len(known) - before}
                meta.write(output)
        n_done = len(known) - before
        n_left = len(left) - n_done - len(failures)
        rows = admitted(suite, plan, known)
        if rows:
            _show(suite, plan, rows, output, meta, console)
        if n_left:
            console.print(f"{n_left} runs are left: the same command continues.")
        if failures:
            raise RunError(f"{len(failures)} runs failed; the first, {failures[0]}")
        return Outcome(rows, n_done, n_left)


def admitted(suite: Suite, plan: Plan, known: Mapping[Any, Row]) -> list[Row]:
    """Return the rows that the options accept, with the plan's tasks first and in order.

    Rows of further repetitions, and of data sets whose files are missing, are accepted
    unless the command names others. So a finished file can be shown without its data.
    """
    wanted = suite.wanted(plan.options) | ({"data": plan.named} if plan.named else {})
    order = {task: number for number, task in enumerate(plan.tasks)}
    tasks = sorted(known, key=lambda task: order.get(task, len(order)))
    return [
        known[task]
        for task in tasks
        if all(known[task][column] in values for column, values in wanted.items())
    ]


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _results(
    suite: Suite, options: Options, tasks: Sequence[Any], jobs: int, minutes: float
) -> Iterator[tuple[Any, Measured | Exception]]:
    """Yield tasks with their measurements, or the error that ended them, in any order."""
    joblib = require("joblib", "A benchmark", "test")
    from joblib.externals import loky  # type: ignore[import-untyped]

    until = time.monotonic() + 60 * minutes
    # Processes share the cores, or each would start a BLAS thread for every core.
    threads = max(1, available_cores() // jobs) if jobs > 1 else None
    pool = joblib.Parallel(
        min(jobs, max(1, len(tasks))),
        # Threads suffice where each task waits for a new process.
        backend="threading" if suite.fresh else "loky",
        return_as="generator_unordered",
    )
    call = _in_fresh_process if suite.fresh else _tried
    ended = (
        BrokenProcessPool
        if suite.fresh
        else loky.process_executor.TerminatedWorkerError
    )
    begun = (task for task in tasks if time.monotonic() < until)
    try:
        yield from pool(
            joblib.delayed(call)(suite.measure, task, options, threads)
            for task in begun
        )
    except ended:
        raise RunError(
            "A process that did a task ended by itself, maybe because memory was short: try fewer "
            "--jobs."
        ) from None
    finally:
        # the next suite's modules may have the same names
        if jobs > 1 and not suite.fresh:
            loky.get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _tried(
    measure: Callable[[Any, Options], Measured],
    task: Any,
    options: Options,
    threads: int | None,
) -> tuple[Any, Measured | Exception]:
    # Flower's log of every round stays out of the output; flwr sets its level where it
    # loads.
    logging.getLogger("flwr").addFilter(_is_warning)
    with threadpool_limits(threads):
        try:
            return task, measure(task, options)
        except Exception as error:
            return task, error


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _in_fresh_process(*given: Any) -> tuple[Any, Measured | Exception]:
    # A forked process would begin with this one's memory, which may be what is
    # measured.
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_tried, args=(there, given))
    process.start()
    there.close()  # of this process: the end of the other one shall be noticed
    try:
        result: tuple[Any, Measured | Exception] = here.recv()
        return result
    except EOFError:
        raise BrokenProcessPool from None
    finally:
        # It would wait for all threads of its task: where Flower's simulation could not
        # start, its server waits for clients until its timeout, an hour.
        process.kill()
        process.join()


def _send_tried(pipe: Connection, given: tuple[Any, ...]) -> None:
    pipe.send(_tried(*given))


def read_runs(suite: Suite, path: Path) -> dict[Any, Row]:
    """Return the rows of a file by their tasks, in its order, or none without a file.

    Only the last line can be cut off, for example by a full disk. It is removed from
    the file, and its task is repeated. If a task has several rows, the first counts, so
    files may be joined.

    Raises
    ------
    DataError
        If the file is no text, has other columns than the suite, or values of other
        types.
    """
    import pandas as pd

    held = path.read_bytes() if path.exists() else b""
    n_whole = held.rfind(b"\n") + 1
    if n_whole < len(held):
        # Otherwise the next row would be appended to half a line.
        os.truncate(path, n_whole)
    if not n_whole:
        return {}
    columns, rows = suite.columns, dict[Any, Row]()
    try:
        # All as text: pandas would turn "None" and empty cells into NaN, and round
        # floats its own way.
        table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
        if list(table.columns) != list(columns):
            raise ValueError(f"columns {', '.join(table.columns)}")
        for texts in table.to_dict("records"):
            row = {
                name: parse(kind, texts[name], name) for name, kind in columns.items()
            }
            rows.setdefault(
                suite.task(**{name: row[name] for name in suite.task_columns}), row
            )
    except (ValueError, TypeError, ConfigurationError) as error:
        raise DataError(
            f"Expected {path} with the columns {', '.join(columns)} of suite {suite.name} "
            f"and their values. Got {error}: choose another --output."
        ) from None
    return rows


def append_run(suite: Suite, path: Path, task: Any, measured: Measured) -> Row:
    """Add a run to a file, with its header if it is the first, and return its row as read back.

    Raises
    ------
    DataError
        If the suite measured other things than it declares.
    """
    import pandas as pd

    if measured.keys() != suite.measures.keys():
        raise DataError(
            f"Expected a run of suite {suite.name} to give {', '.join(suite.measures)}. "
            f"Got {', '.join(measured)} instead."
        )
    kinds = suite.columns
    values = [*astuple(task), *(measured[name] for name in suite.measures)]
    texts = {
        name: shown(kinds[name], value)
        for name, value in zip(kinds, values, strict=True)
    }
    is_new = not path.exists() or not path.stat().st_size
    pd.DataFrame([texts]).to_csv(
        path, mode="a", header=is_new, index=False, lineterminator="\n"
    )
    # The row is parsed again, so it is the same now and after a restart.
    return {name: parse(kinds[name], text, name) for name, text in texts.items()}


def _show(
    suite: Suite,
    plan: Plan,
    rows: Sequence[Row],
    output: Path,
    meta: Meta,
    console: Console,
) -> None:
    """Write tables and plots, and print the tables."""
    written, without = [RUNS, META, TABLES], ""
    tables = suite.tables(rows, plan.options)
    # None: the command was killed, and its rows are in the file.
    made_by = [_made_by(entry) for entry in meta.commands if entry["rows"] != 0]
    skipped = [_skipped(plan)] if plan.skipped else []
    parts = [f"# {suite.name}", suite.protocol, *made_by, *skipped, tables]
    (output / TABLES).write_text("\n\n".join(parts) + "\n", "utf-8")
    for name, draw in suite.plots.items():
        try:
            written += plots.save(draw(rows, plan.options), output, name)
        except ConfigurationError as error:
            # without matplotlib there are tables all the same
            without = str(error)
    for text in (
        f"\n{tables}\n",
        f"Written to {output}: {', '.join(written)}",
        without,
    ):
        if text:
            console.print(Text(text), soft_wrap=True)


def _skipped(plan: Plan) -> str:
    return f"Skipped, because their files are missing: {', '.join(plan.skipped)}."


def _made_by(entry: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in entry["versions"].items())
    if entry["commit"]:  # the hash, and "+" if files differed from it
        versions += f", commit {entry['commit'][:10]}{entry['commit'][40:]}"
    ended = "and was killed" if entry["rows"] is None else f"{entry['rows']} runs"
    return f"- `{entry['command']}` on {entry['started'][:10]}: {ended}; `{versions}`"


def read_meta(
    suite: Suite, directory: Path, sources: Mapping[str, Mapping[str, Any]]
) -> Meta:
    """Return the content of meta.json, or a new one if there is no file.

    Raises
    ------
    DataError
        If the file is no benchmark's.
    ConfigurationError
        If it belongs to another suite, to other settings, or to other data sets of
        these names.
    """
    path, settings = directory / META, dict(suite.settings)
    meta = Meta(suite.name, settings, [], {})
    if path.exists():
        try:
            meta = msgspec.json.decode(path.read_bytes(), type=Meta)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise DataError(
                f"Expected {path} to be a benchmark's. Got another file."
            ) from None
    if (meta.suite, meta.settings) != (suite.name, settings):
        raise ConfigurationError(
            f"Expected {directory} with runs of {_words(suite.name, settings)}. Got those of "
            f"{_words(meta.suite, meta.settings)} instead: choose another --output."
        )
    for name, own in sources.items():
        if own:
            before = meta.files.setdefault(name, dict(own))
            differing = [
                "other contents"
                if key == "sha256"
                else f"{key} {own.get(key)}, not {old}"
                for key in sorted({*before, *own})
                if (old := before.get(key)) != own.get(key)
            ]
            if differing:
                raise ConfigurationError(
                    f"Expected {name} to be what {directory} holds runs of by that name. "
                    f"Got {'; '.join(differing)}: choose another --output."
                )
    meta.protocol = suite.protocol
    return meta


def _words(suite: str, settings: Mapping[str, str]) -> str:
    given = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"suite {suite}" + (f" with {given}" if given else "")


def _entry(arguments: Sequence[str], jobs: int) -> dict[str, Any]:
    """Return the entry of a command that begins. Its end and number of rows come later."""
    versions = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "flower-kmeans": __version__,
    }
    return {
        "command": _command_of(arguments),
        "started": _now(),
        "ended": None,
        "rows": None,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "versions": versions | {name: version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _command_of(arguments: Sequence[str]) -> str:
    """Return a command line with absolute paths cut to their names, for any machine."""
    program, *given = (_shortened(each) for each in arguments)
    return shlex.join(
        [*(["python"] if program.endswith(".py") else []), program, *given]
    )


def _shortened(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    path = Path(value)
    away = path.is_absolute() or ".." in path.parts
    return f"{option}{equals}{path.name}" if away else argument


def _commit() -> str | None:
    """Return the commit of this file's checkout, with "+" if files differ from it.

    ``None`` in a source distribution, or without git.
    """
    git = ("git", "-C", str(Path(__file__).parent))
    run = partial(
        subprocess.run, capture_output=True, text=True, check=True, timeout=20
    )
    try:
        # A source distribution may be inside a checkout of another project, whose commit
        # does not matter.
        run([*git, "ls-files", "--error-unmatch", Path(__file__).name])
        found = run(
            [*git, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return str(found.stdout.strip())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
