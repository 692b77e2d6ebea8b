"""A simulated run of the command line: its inputs, the run, and its outputs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.cli import inputs, outputs
from flower_kmeans.cli.inputs import InputRecords, parse_weights
from flower_kmeans.cli.limits import too_narrow
from flower_kmeans.cli.options import EngineOption, Settings
from flower_kmeans.cli.printing import counted, quiet_logs, warn_of_bounds
from flower_kmeans.data.declared import domain_from_file
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere
from flower_kmeans.data.reading import Reading
from flower_kmeans.data.table_domain import TableDomain, shortened
from flower_kmeans.data.tables import read_table
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.files import prepare_directory, printable, written_together
from flower_kmeans.progress import ProgressBar
from flower_kmeans.protocol.kinds import held_by
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.html import elbow_shown, html_report
from flower_kmeans.simulation import simulate
from flower_kmeans.simulation.engines import Place, choose_engine, started
from flower_kmeans.strategies import ClusteringStrategy, RoundInfo

# Stands first in the report of such a run, whose epsilon is otherwise that of its
# noise.
_BOUNDS_READ_OFF = (
    "NOT PRIVATE: the bounds were read off the records and are exact facts about single ones; "
    "epsilon and delta would hold for public bounds."
)

_EXACT = "exact: only a simulation can compute it"


@dataclass(frozen=True)
class SimulationRequest:
    """Options of ``simulate`` beside those of strategies, as a user gave them."""

    data: str | None
    reading: Reading
    domain: Path | None
    columns: str | None
    label: str | None
    bounds: Sequence[str]
    weights: Sequence[str]
    tighten: float | None
    lower: float | None
    upper: float | None
    bounds_from_data: bool
    sphere: bool
    ball: float | None
    split: str | None
    server_data: Path | None
    engine: EngineOption
    output: Path
    verbose: bool


@dataclass(frozen=True)
class RunInputs:
    """All that a run takes: public numbers, and the records of each party."""

    source: InputRecords
    domain: Domain
    is_read_off: bool  # the bounds are from the records
    partitions: list[FloatArray]
    strategy: ClusteringStrategy[Any]
    seed: int
    # with unit="person": ids of the persons of each client's records
    persons: list[NDArray[Any]] | None = None
    caution: str | None = None  # about persons at several clients

    @property
    def holder(self) -> str:
        """The noun for those who hold records: a client, or a party with columns."""
        held = held_by(self.strategy.trust_model.kind)
        return "party" if held == "columns" else "client"

    @property
    def not_private(self) -> str | None:
        """Why the run is not private although it adds noise; ``None`` where it is."""
        if self.is_read_off and self.strategy.plan.is_private:
            return _BOUNDS_READ_OFF
        return None


@dataclass(frozen=True)
class Ended:
    """The result of a run, and how it ran."""

    clustering: Clustering
    engine: str
    seconds: float
    # with k-means without privacy: exact, and computed from the records
    comparison: Comparison | None = None
    comparison_seconds: float = 0.0
    not_compared: str = "no record counts"
    """Why there is no comparison."""

    def statements(self, not_private: str | None) -> tuple[str, ...]:
        """Return the statements of the report, first that the run is not private."""
        stated = self.clustering.report.statements
        sizes = self.clustering.size_report
        if self.clustering.report.sizes is None and sizes is not None:
            stated += sizes.statements  # which a blind server has not
        if not_private is None:
            return stated
        return (not_private, *stated)


def run_simulation(settings: Settings, request: SimulationRequest) -> None:
    """Run a federation in this process or on Ray, write its results and print them.

    Raises
    ------
    ConfigurationError, DataError, RunError
        If options do not fit together, a file cannot be used, or the run fails.
    """
    console = Console(highlight=False)
    run = read_inputs(settings, request)
    engine = choose_engine(run.strategy, request.engine.value)
    # Before the run, which may take long: an output that cannot be written must not
    # waste it.
    prepare_directory(request.output)
    ended = _compared(run, _run(console, run, engine, request))
    missing = run.source.lacks_for_picture()
    files = _write(request.output, run, ended, with_picture=missing is None)
    _print_result(console, run, ended)
    picture = missing or f"{outputs.PICTURE}, which shows the records themselves"
    _print_files(console, request.output, files, picture)
    # Last, so that it remains on the screen.
    _print_verdict(console, ended)


# --------------------------------------------------------------------------- inputs


def read_inputs(settings: Settings, request: SimulationRequest) -> RunInputs:
    """Return the records, their public bounds, their split, and the strategy."""
    source = _source_of(request)
    if source.persons is not None:
        settings = settings.with_default_unit("person")
    elif settings.counts_persons:
        raise ConfigurationError(
            "Expected --person, the column with the ids of persons, with --unit person. Got none."
        )
    settings.check_server(
        "--server-data", "a file with points of the server's own", request.server_data
    )
    parameters = _server_points(request, source)
    parties: list[tuple[str, ...]] = []
    if settings.splits_columns:
        parties = source.parties(request.split)
        source = source.ordered([name for party in parties for name in party])

    # A run without privacy may read its bounds off: it promises nothing.
    may_read = request.bounds_from_data or not settings.is_private
    domain, is_read_off = source.bounded(
        request.bounds,
        request.lower,
        request.upper,
        weights=parse_weights(request.weights),
        tighten=request.tighten,
        from_data=may_read,
    )
    if is_read_off and settings.is_private:
        warn_of_bounds()

    seed = settings.given.get("seed", 0)
    persons = None
    caution = None
    if parties:
        widths = [source.width(party) for party in parties]
        if source.domain is None:
            domain = replace(domain, columns=source.columns)
        partitions = np.split(source.records, np.cumsum(widths)[:-1], axis=1)
        parameters["parties"] = widths
    else:
        n_clients = settings.given.get("n_clients")
        parts = source.split(request.split, n_clients, seed)
        partitions = [source.records[rows] for rows in parts]
        parameters["n_clients"] = len(parts)
        if settings.counts_persons:
            persons = _ids_of(source, parts)
            caution = _caution_of_persons(settings, source, parts)
    if settings.counts_persons:
        if "n_persons" not in settings.given:
            parameters["n_persons"] = _planned_persons(settings, source)
    elif "n_records" not in settings.given:
        parameters["n_records"] = _planned_records(settings, source)
    strategy = settings.make(domain, **parameters)
    return RunInputs(
        source, domain, is_read_off, partitions, strategy, seed, persons, caution
    )


def _ids_of(source: InputRecords, parts: Sequence[IntArray]) -> list[NDArray[Any]]:
    """Return the ids of the persons of each client's records."""
    ids = None if source.table is None else source.table.persons
    if ids is None:
        return []
    return [ids[rows] for rows in parts]


def _caution_of_persons(
    settings: Settings, source: InputRecords, parts: Sequence[IntArray]
) -> str | None:
    """Return a warning if persons are at more clients than the run assumes."""
    assumed = settings.given.get("max_clients_per_person", 1)
    n_persons, most = source.most_clients(parts)
    if most <= assumed:
        return None
    size = -(-most // assumed)
    return (
        f"WARNING: {counted(n_persons, 'person')} with records at several clients, at most "
        f"{most}. The run assumes {assumed}: such a person has the guarantee of a group of "
        f"up to {size}. Take --max-clients-per-person {most}, or another --split."
    )


def _planned_persons(settings: Settings, source: InputRecords) -> int:
    """Return the number of persons of a run without privacy, which may count them."""
    if settings.is_private:
        raise ConfigurationError(
            "A private run for persons needs --n-persons, the public planning value for the "
            "number of persons: it is not counted, because the true number is private."
        )
    return source.n_persons


def _source_of(request: SimulationRequest) -> InputRecords:
    """Return the photograph, or the records of a file, with a ball or a sphere if chosen."""
    source = _records_of(request)
    if not request.sphere and request.ball is None:
        return source
    has_limits = (request.lower, request.upper) != (None, None)
    has_limits = has_limits or bool(request.bounds) or request.bounds_from_data
    if request.sphere and request.ball is not None:
        raise ConfigurationError("Expected --sphere or --ball. Got both.")
    option = "--sphere" if request.sphere else "--ball"
    if has_limits or request.domain is not None:
        raise ConfigurationError(
            f"Expected {option} without --domain, --bounds, --lower, --upper and "
            "--bounds-from-data. Got one of these as well."
        )
    width = len(source.columns)
    if request.ball is not None:
        return replace(source, whole=Ball(request.ball, [0.0] * width))
    return replace(source, whole=Sphere(width))


def _records_of(request: SimulationRequest) -> InputRecords:
    """Return the photograph, or the records of a file."""
    data = request.data
    columns = request.columns
    label = request.label
    if data is None:
        named = {"--columns": columns, "--label": label, "--domain": request.domain}
        for option, value in named.items():
            if value is not None:
                raise ConfigurationError(
                    f"{option} names columns of your own file: give it with --data."
                )
        return inputs.photo()
    if request.domain is None:
        return inputs.table(data, request.reading, columns, label, request.split)

    declared_twice = (columns, request.lower, request.upper) != (None, None, None)
    if request.bounds_from_data or request.bounds or declared_twice:
        raise ConfigurationError(
            "Expected --domain, which has columns and bounds, without --columns, --bounds, "
            "--lower, --upper and --bounds-from-data. Got one of these as well."
        )
    domain = domain_from_file(request.domain)
    return inputs.table(data, request.reading, None, label, request.split, domain)


def _server_points(request: SimulationRequest, source: InputRecords) -> dict[str, Any]:
    """Return the parameter with the server's own points; none without such a file."""
    if request.server_data is None:
        return {}
    features = None if source.domain else list(source.columns)
    points = read_table(
        request.server_data, request.reading, features=features, domain=source.domain
    )
    return {"server_data": points.records}


def _planned_records(settings: Settings, source: InputRecords) -> int:
    """Return the public number of records, where no option gives it."""
    if source.n_records is not None:  # of the photograph
        return source.n_records
    if settings.is_private and not settings.splits_columns:
        raise ConfigurationError(
            "A private run needs --n-records, the public planning value for the number "
            "of records: it is not counted, because the true number is private."
        )
    # All parties with columns know the number of their rows.
    return len(source.records)


# --------------------------------------------------------------------------- the run


def _run(
    console: Console, run: RunInputs, engine: Place, request: SimulationRequest
) -> Ended:
    """Run the strategy on the partitions, and print a line for each round."""
    start = time.perf_counter()
    may_fall_back = request.engine is EngineOption.AUTO
    with (
        quiet_logs(verbose=request.verbose),
        started(engine, or_here=may_fall_back) as (place, other_engine),
    ):
        console.print(Text(_title(run, place)), soft_wrap=True)
        for note in (other_engine, run.caution, *run.strategy.plan.notes):
            if note:
                console.print(Text(note, style="bold"), soft_wrap=True)
        with ProgressBar(console) as bar:
            clustering = simulate(
                run.strategy,
                run.partitions,
                persons=run.persons,
                engine=place,
                on_round=_round_printer(console, bar, run.holder),
            )
    return Ended(clustering, place, time.perf_counter() - start)


def _compared(run: RunInputs, ended: Ended) -> Ended:
    """Return a result with its comparison; without one if there can be none."""
    start = time.perf_counter()
    is_counted = ~run.domain.are_null(run.source.records)
    if not is_counted.any():
        return ended
    persons = None
    if run.persons is not None and run.source.table is not None:
        ids = run.source.table.persons
        persons = None if ids is None else ids[is_counted]
    try:
        comparison = ended.clustering.compare(
            run.source.records[is_counted], persons=persons, seed=run.seed
        )
    except DataError as error:
        # The result is good for more than its comparison.
        return replace(ended, not_compared=str(error))
    comparison = replace(comparison, notes=_notes_on_bounds(run))
    seconds = time.perf_counter() - start
    return replace(ended, comparison=comparison, comparison_seconds=seconds)


def _notes_on_bounds(run: RunInputs) -> tuple[str, ...]:
    """Return what the costs do not show: declared cells are moved when they are read."""
    table = run.source.table
    if table is None or not isinstance(run.domain, TableDomain):
        return ()
    narrow = too_narrow(table.findings)
    if not narrow:
        return ()
    cut = "; ".join(narrow)
    return (
        f"The bounds are too narrow: {cut}. The values were moved to the bounds before all "
        "costs, which do not show what this loses.",
    )


def _title(run: RunInputs, engine: str) -> str:
    """Return the first line that a run prints."""
    source = run.source
    records = f"{counted(len(source.records), 'record')} of"
    if run.persons is not None:
        records += f" {counted(source.n_persons, 'person')} at"
    return (
        f"{printable(source.name)}: {records} "
        f"{counted(len(run.partitions), run.holder)}, "
        f"{counted(len(source.columns), 'column')}; "
        f"{type(run.strategy).__name__}, {_planned_clusters(run.strategy)}, "
        f"engine {engine}"
    )


def _planned_clusters(strategy: ClusteringStrategy[Any]) -> str:
    """Return the number of clusters, or the range from which the run chooses."""
    most = counted(strategy.n_clusters, "cluster")
    fewest = strategy.algorithm.fewest_clusters
    if fewest == strategy.n_clusters:
        return most
    return f"{fewest} to {most}"


def _round_printer(
    console: Console, bar: ProgressBar, holder: str
) -> Callable[[RoundInfo], None]:
    """Return a function that prints a round and moves the bar."""

    def on_round(info: RoundInfo) -> None:
        missing = f", {info.dropped} missing" if info.dropped else ""
        console.print(
            f"round {info.round} of {info.n_rounds}: "
            f"{counted(info.n_answers, holder)} answered{missing}",
            highlight=False,
        )
        bar(info)

    return on_round


# --------------------------------------------------------------------------- outputs


def _write(
    output: Path, run: RunInputs, ended: Ended, *, with_picture: bool
) -> list[str]:
    """Write the page, the report, the centroids and a picture, and return their names.

    All together, so that a full disk leaves the results of an earlier run as they were.
    The picture is not among the names.
    """
    clustering = ended.clustering
    told = [
        ("data", run.source.name),
        ("engine", ended.engine),
        ("seed, of public randomness", str(run.seed)),
        ("time", f"{ended.seconds:.1f} s"),
    ]
    names = [printable(name) for name in run.source.columns]
    page = html_report(
        clustering,
        columns=names,
        facts=told,
        not_private=run.not_private,
        comparison=ended.comparison,
    )
    report = clustering.report.to_dict() | _facts(run, ended, told)
    with written_together(output, outputs.FILES) as place:
        files = outputs.write_page(place, page)
        files += outputs.write_report(place, report)
        files += outputs.write_centroids(
            place, clustering, run.source.columns, run.is_read_off
        )
        if with_picture:
            run.source.draw(place / outputs.PICTURE, clustering, _caption(clustering))
    return files


def _facts(
    run: RunInputs, ended: Ended, told: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return the facts of ``report.json`` beside the report of the run.

    ``flower-kmeans report`` needs ``page`` beside the report and the centroids.
    """
    clustering = ended.clustering
    n_clusters = len(clustering.centroids)
    facts: dict[str, Any] = {
        "data": run.source.name,
        "columns": run.source.columns,
    }
    if isinstance(run.domain, Box):
        facts |= {"lower": run.domain.lower, "upper": run.domain.upper}
    facts |= {
        "bounds_from_data": run.is_read_off,
        "n_clusters": n_clusters,
        "engine": ended.engine,
        "seed": run.seed,
        "total_seconds": ended.seconds,
    }
    not_private = run.not_private
    if not_private is not None:
        facts["private"] = False
        facts["statements"] = ended.statements(not_private)
    if clustering.synopsis is not None:
        facts["elbow"] = elbow_shown(clustering.synopsis, n_clusters).to_dict()
    if ended.comparison is not None:
        facts["comparison"] = ended.comparison.to_dict()
    sizes = clustering.size_report and clustering.size_report.to_dict()
    facts["page"] = {"facts": told, "not_private": not_private, "sizes": sizes}
    return facts


def _caption(clustering: Clustering) -> str:
    """Return the words below the photograph's new colours."""
    report = clustering.report
    colours = f"after: {len(clustering.centroids)} colours"
    if report.epsilon is None:
        return f"{colours}, not private"
    return f"{colours}, epsilon {report.epsilon:.4g}"


def _print_result(console: Console, run: RunInputs, ended: Ended) -> None:
    """Print findings on the records, warnings, and the run's clusters and cost."""
    clustering = ended.clustering
    report = clustering.report
    # Beside the results: lines before the rounds would be far above them.
    for line in run.source.findings():
        console.print(Text(printable(line), style="yellow"), soft_wrap=True)
    outputs.print_warnings(console, report, ended.statements(run.not_private))
    outputs.print_clusters(console, clustering, run.source.columns)

    records = clustering.domain.counted(run.source.records)
    n_clusters = counted(len(clustering.centroids), "cluster")
    found = f"{n_clusters} in {counted(len(records), 'record')}"
    if isinstance(run.domain, Sphere):
        inertia = clustering.inertia(records) / max(1, len(records))
        found += f", mean cosine similarity {1 - inertia / 2:.5g} to their centroids"
        found += f" ({_EXACT})"
    cost = outputs.privacy_line(report)
    if run.not_private is not None:
        cost += " (NOT PRIVATE: bounds are from the records)"
    _print_line(console, "Found", found)
    if report.ranges:
        texts = [each.text for each in report.ranges]
        _print_line(console, "Ranges", shortened(texts, "; "))
    if report.silhouette is not None:
        _print_line(console, "Quality", report.silhouette.text)
    _print_line(console, "Cost", cost)
    rounds = counted(report.n_rounds, "round")
    times = f"{rounds} in {ended.seconds:.1f} s"
    if ended.comparison is not None:
        times += f", and {ended.comparison_seconds:.1f} s to compare the result"
    _print_line(console, "Run", times)


def _print_files(
    console: Console, output: Path, files: Sequence[str], picture: str
) -> None:
    """Print which files were written, and the picture or why there is none."""
    _print_line(console, "Files", f"{output}: {', '.join(files)}")
    _print_line(console, "Picture", picture)


def _print_verdict(console: Console, ended: Ended) -> None:
    """Print whether the result is good, by exact costs."""
    if ended.comparison is None:
        _print_line(console, "Verdict", f"none: {ended.not_compared}")
    else:
        limits = f"This is {_EXACT}. It does not judge columns, bounds and weights."
        _print_line(console, "Verdict", f"{ended.comparison.text} {limits}")


def _print_line(console: Console, name: str, value: str) -> None:
    console.print(Text.assemble((f"{name:9}", "bold"), value), soft_wrap=True)
