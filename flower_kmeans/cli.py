"""The ``flower-kmeans`` command.

``simulate`` clusters a photograph, or a table of one's own, with all clients on this machine;
``plan`` prints what a private run would cost, from its parameters; ``keygen`` makes keys and a
roster for a deployment and checks them, ``check`` says whether a node could take part in one, and
``forget`` erases what runs that failed left in its ledger; ``bench`` runs benchmarks. Errors are
one sentence and end with exit code 1.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from flower_kmeans.bench.command import bench
from flower_kmeans.choice import (
    Engine,
    Keys,
    StrategyName,
    Trust,
    Unit,
    chosen_or_default,
    is_private,
    make_strategy,
    placeholders,
    read_server_points,
)
from flower_kmeans.console import one_sentence, plain_console
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import printable
from flower_kmeans.version import __version__

if TYPE_CHECKING:
    from flower_kmeans.strategies import KMeansStrategy, RoundInfo

app = typer.Typer(
    name="flower-kmeans",
    help="Private, federated k-means for the Flower framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its traceback would print local variables, that is, records
)
app.command()(bench)


# Stands first in the report of such a run, whose epsilon is otherwise that of its noise.
_BOUNDS_READ_OFF = (
    "NOT PRIVATE: the bounds were read off the records and are exact facts about single ones; "
    "epsilon and delta would hold for public bounds."
)

Clusters = Annotated[int, typer.Option(help="Number of clusters.")]
Strategy = Annotated[
    StrategyName | None,
    typer.Option(
        case_sensitive=False,
        help="Algorithm. Default: synopsis; fastlloyd with --rounds.",
        show_default=False,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(help="Privacy budget; 1.0 unless the strategy or the trust is not private."),
]
Delta = Annotated[
    float | None, typer.Option(help="Privacy budget; min(1e-6, 1/(100 n_records)) by default.")
]
TrustModel = Annotated[
    Trust | None,
    typer.Option(
        help="Who learns what; by default distributed-noise, oblivious-server for fastlloyd, "
        "glloyd and sulloyd, plain for lloyd.\n\n"
        + "\n\n".join(f"{model}: {model.learns}." for model in Trust)
    ),
]
MaxColluders = Annotated[
    int | None,
    typer.Option(
        help="How many clients may pool what they know, with or without the server; by default a "
        "tenth of them where clients share the noise, else 1."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Number of rounds, of feddp after the three of its initialisation; by default the "
        "strategy's rule, 2 to 7, or 1 or 2. Those of synopsis, 6 to 8, follow from the plan: with "
        "this option alone the strategy is fastlloyd."
    ),
]
MinClients = Annotated[
    int | None, typer.Option(help="Fewest clients behind a sum; by default the strategy's rule.")
]
ProtectedUnit = Annotated[
    Unit | None,
    typer.Option(help="What epsilon protects: one record (the default), or a client with all."),
]
Clip = Annotated[
    float | None,
    typer.Option(
        help="With --unit client: how many records' worth of one client count in each release; "
        "by default n_records divided by the number of clients, the root of that for synopsis and "
        "the votes of pe-means; that of feddp follows from the server's points."
    ),
]
NRecords = Annotated[
    int | None,
    typer.Option(help="Public planning figure for the number of records, never counted in them."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flower-kmeans {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Private, federated k-means for the Flower framework."""


@app.command()
def simulate(
    *,
    data: Annotated[
        Path | None,
        typer.Option(help="A csv, npy, npz or parquet file; by default a bundled photograph."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to cluster by, as NAME,NAME; all by default.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column with labels; never a feature.")] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(help="Public bounds of one column, as NAME=LOW:HIGH; may be repeated."),
    ] = None,
    lower: Annotated[float | None, typer.Option(help="Public lower bound of all columns.")] = None,
    upper: Annotated[float | None, typer.Option(help="Public upper bound of all columns.")] = None,
    bounds_from_data: Annotated[
        bool, typer.Option("--bounds-from-data", help="Read missing bounds off: NOT private.")
    ] = False,
    n_records: NRecords = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; 20, or one per value of the column.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="tiles (of the photograph), iid, column:NAME (clients by its values), or "
            "dirichlet:ALPHA (by the labels)."
        ),
    ] = None,
    clusters: Clusters = 16,
    strategy: Strategy = None,
    server_data: Annotated[
        Path | None,
        typer.Option(
            help="For feddp: a file with the server's own points, in the columns of the records."
        ),
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    unit: ProtectedUnit = None,
    clip: Clip = None,
    trust: TrustModel = None,
    keys: Annotated[
        Keys,
        typer.Option(help="Whether clients' keys are relayed by the server or pinned in a roster."),
    ] = Keys.RELAYED,
    rounds: Rounds = None,
    min_clients: MinClients = None,
    max_colluders: MaxColluders = None,
    seed: Annotated[int, typer.Option(help="Public randomness only: never that of noise.")] = 0,
    engine: Annotated[Engine, typer.Option(help="Where the clients run.")] = Engine.RAY,
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path(
        "flower-kmeans-out"
    ),
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Flower's own log.")] = False,
) -> None:
    """Cluster a photograph, or your own table, in a federation on this machine.

    The results are centroids (npz, csv), a report (html, json) and a picture (png).
    """
    with one_sentence():
        from flower_kmeans import output as out
        from flower_kmeans import source as sources
        from flower_kmeans.simulation import simulate as run
        from flower_kmeans.webreport.page import html_report

        console, named = plain_console(), chosen_or_default(strategy, rounds)
        private = is_private(named, epsilon, trust)
        if data is None:
            _refuse_for_photo(columns, label)
            source = sources.photo()
        else:
            source = sources.table(data, columns, label, split, n_records)
        points = read_server_points(named, server_data, source.columns)
        box = source.box(bounds or [], lower, upper, from_data=bounds_from_data or not private)
        read_off = bool(source.without_bounds(bounds or [], lower, upper))
        if read_off and private:
            _warn_of_bounds()
        partitions = source.split(split, clients, seed)
        planned = n_records if n_records is not None else source.n_records
        if planned is None:
            if private:
                raise ConfigurationError(
                    "A private run needs --n-records, the public planning figure for the number "
                    "of records: it is not counted, because the true number is private."
                )
            planned = len(source.records)
        chosen = make_strategy(
            named,
            box,
            epsilon,
            trust,
            n_clusters=clusters,
            delta=delta,
            unit=unit,
            clip=clip,
            n_records=planned,
            n_clients=len(partitions),
            n_rounds=rounds,
            min_clients=min_clients,
            max_colluders=max_colluders,
            keys=keys.value,
            server_data=points,
            seed=seed,
        )
        out.prepare_directory(output)
        console.print(
            Text(
                f"{printable(source.name)}: {_number(len(source.records), 'record')} of "
                f"{_number(len(partitions), 'client')}, {_number(len(source.columns), 'column')}; "
                f"{type(chosen).__name__}, {_number(clusters, 'cluster')}, engine {engine}"
            ),
            soft_wrap=True,
        )
        start = time.perf_counter()
        with console.status("starting the clients") as status, _quiet(verbose):
            clustering = run(
                chosen, partitions, engine=engine.value, on_round=_round_printer(console, status)
            )
        seconds = time.perf_counter() - start
        inertia = clustering.inertia(source.records) / len(source.records)
        facts: dict[str, Any] = {
            "data": source.name,
            "columns": source.columns,
            "lower": box.lower,
            "upper": box.upper,
            "bounds_from_data": read_off,
            "n_clusters": clusters,
            "engine": engine.value,
            "seed": seed,
            "seconds": seconds,
        }
        statements = clustering.report.statements
        if read_off and private:
            statements = (_BOUNDS_READ_OFF, *statements)
            facts |= {"private": False, "statements": statements}
        files = out.write_centroids(output, clustering.centroids, clustering.counts, source.columns)
        files += out.write_report(output, clustering.report.to_dict() | facts)
        page = html_report(
            clustering,
            columns=[printable(name) for name in source.columns],
            facts=[
                ("data", source.name),
                ("engine", str(engine)),
                ("seed, of public randomness", str(seed)),
                ("time", f"{seconds:.1f} s"),
            ],
            not_private=_BOUNDS_READ_OFF if read_off and private else None,
        )
        files += out.write_page(output, page)
        privacy = f"epsilon {clustering.report.epsilon:.4g}" if private else "not private"
        caption = f"after: {clusters} colours, {privacy}"
        pictured = source.draw(output / "picture.png", clustering, caption)
        out.print_clusters(console, clustering, source.columns, colours=source.image is not None)
        out.print_cost(
            console,
            clustering.report,
            statements,
            not_private="the bounds were read off the records" if read_off and private else None,
            facts=[
                ("time", f"{seconds:.1f} s on engine {engine}"),
                ("inertia", f"{inertia:.5g} per record (exact; only a simulation can know it)"),
            ],
        )
        if read_off and private:
            _warn_of_bounds()
        files += ["picture.png"] if pictured else []
        console.print(Text(f"Written to {output}: {', '.join(files)}"), soft_wrap=True)
        if pictured:
            console.print(Text("picture.png shows the records themselves.", style="dim"))
        else:
            note = (
                "No picture was drawn: that of a table needs at least two columns, and the package "
                "matplotlib (pip install 'flower-kmeans[plots]')."
            )
            console.print(Text(note, style="dim"), soft_wrap=True)


@app.command()
def plan(
    *,
    features: Annotated[int, typer.Option(help="Number of columns.")] = 3,
    n_records: NRecords = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 20,
    clusters: Clusters = 16,
    strategy: Strategy = None,
    server_points: Annotated[
        int | None, typer.Option(help="For feddp: how many points the server has.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    unit: ProtectedUnit = None,
    clip: Clip = None,
    trust: TrustModel = None,
    rounds: Rounds = None,
    min_clients: MinClients = None,
    max_colluders: MaxColluders = None,
) -> None:
    """Print what a run would cost, from its parameters alone.

    Columns are taken as scaled to [-1, 1]. The defaults are those of the photograph.
    """
    with one_sentence():
        from flower_kmeans import datasets, output
        from flower_kmeans.domain import Box
        from flower_kmeans.privacy.report import clip_text

        if features < 1:
            raise ConfigurationError(f"Expected --features of at least 1. Got {features} instead.")
        named = chosen_or_default(strategy, rounds)
        if named.takes_server_data and unit is Unit.CLIENT and clip is None:
            raise ConfigurationError(
                f"Expected --clip with --unit client for the strategy {named}: its clips follow "
                "from where the server's points lie, and only their number is known here. Got none."
            )
        chosen = make_strategy(
            named,
            Box([-1.0] * features, [1.0] * features),
            epsilon,
            trust,
            n_clusters=clusters,
            delta=delta,
            unit=unit,
            clip=clip,
            n_records=datasets.PHOTO_RECORDS if n_records is None else n_records,
            n_clients=clients,
            n_rounds=rounds,
            min_clients=min_clients,
            max_colluders=max_colluders,
            server_data=placeholders(named, server_points, features),
            seed=0,
        )
        facts = [
            ("trust", chosen.trust),
            ("n_clients", str(chosen.n_clients)),
            ("min_clients", str(chosen.min_clients)),
        ]
        if chosen.trust_model.is_protected:
            facts.append(("max_colluders", str(chosen.max_colluders)))
        if chosen.clip is not None:
            facts.append(("clip", clip_text(chosen.clip, chosen.clips)))
        if chosen.plan.is_private:
            factor = output.noise_text(chosen.noise_factor, chosen.added_noise_factor)
            facts.append(("noise factor", factor))
        output.print_plan(plain_console(), chosen.plan, size_noise=_size_noise(chosen), facts=facts)


@app.command()
def keygen(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of the clients to make keys for, by slot.")
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option(help="The directory for keys and roster; the current one.")
    ] = None,
    beacon: Annotated[
        str | None,
        typer.Option(
            help="For the new roster: public random hexadecimal digits, fixed after keys."
        ),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="ROSTER", help="Make nothing; check this roster.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="With --check: the own key, which must be on the roster.")
    ] = None,
) -> None:
    """Make keys for the named clients and the roster that pins them, or check a roster.

    The server may have the roster, and none of the keys. A client that makes its own key gives away
    its line of the roster only; the lines of all, in one order, are the roster of everybody.
    """
    with one_sentence():
        from flower_kmeans.check import describe_roster
        from flower_kmeans.protocol.roster import Roster, read_identity, write_members

        makes = {"--output": output, "--beacon": beacon, "names of clients": names or None}
        given = [name for name, value in makes.items() if value is not None]
        if check is not None and given:
            raise ConfigurationError(f"Expected --check alone or with --key. Got {given} as well.")
        if check is None and (key is not None or not names):
            raise ConfigurationError(
                "Expected names of clients to make keys for, or --check ROSTER. Got neither."
            )
        if check is None:
            for path in write_members(output or Path(), names or [], beacon):
                typer.echo(f"Wrote {path}")
            typer.echo(f"Read the digest of the roster that all use: keygen --check {path}")
        else:
            identity = None if key is None else read_identity(check, key)
            for line in describe_roster(Roster.from_file(check), identity):
                typer.echo(line)


@app.command()
def check(
    *,
    policy_file: Annotated[Path, typer.Option(help="The policy that the node names.")],
    data: Annotated[
        Path | None, typer.Option(help="The node's records: a csv, npy, npz or parquet file.")
    ] = None,
    header: Annotated[
        str | None,
        typer.Option(help="NAME,NAME: columns of a csv file whose first line is a record already."),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(help="The SuperLink to reach with TLS, as HOST:PORT.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the SuperLink's authority (ca.crt).")
    ] = None,
) -> None:
    """Say whether a node could take part, as the user who runs it. Nothing is changed.

    Exit code 0 if all is well, 1 otherwise. No record's value and no number of records is printed.
    """
    with one_sentence():
        from flower_kmeans.check import check_node, print_findings

        if root_certificates is not None and superlink is None:
            raise ConfigurationError("--root-certificates needs --superlink, the server to reach.")
        names = None if header is None else header.split(",")
        findings = check_node(policy_file, data, superlink, root_certificates, names)
        print_findings(plain_console(), findings)
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

    A run that failed leaves its keys there, for 30 days at most. What it answered stays charged,
    and what was reserved for its further rounds comes back. A run that still goes on is refused
    from then on.
    """
    with one_sentence():
        from flower_kmeans.privacy.ledger import Ledger
        from flower_kmeans.privacy.ledger_file import find_private_file
        from flower_kmeans.protocol.policy import ClientPolicy
        from flower_kmeans.protocol.session import forget_unfinished, remove_copies

        if (state_dir is None) == (policy_file is None):
            raise ConfigurationError("Expected either --state-dir or --policy-file.")
        named = ClientPolicy.from_file(policy_file).state_dir if policy_file else state_dir
        if named is None:
            raise ConfigurationError(f"The policy file {policy_file} names no state_dir.")
        if find_private_file(Path(named)) is None:
            raise ConfigurationError(f"There is no ledger in {named}.")
        with Ledger(named) as ledger:
            n = forget_unfinished(ledger)
            remove_copies(Path(named), ledger)
        typer.echo(
            f"Forgot {_number(n, 'unfinished run')} in {named}. What they answered stays charged; "
            "what was reserved for further rounds comes back."
        )


def main() -> None:
    """Run the command."""
    app()


def _refuse_for_photo(columns: str | None, label: str | None) -> None:
    for option, value in (("--columns", columns), ("--label", label)):
        if value is not None:
            raise ConfigurationError(
                f"{option} names columns of your own file: give it with --data."
            )


def _size_noise(strategy: "KMeansStrategy") -> float | None:
    """Return the planned standard deviation of the last cluster sizes, if it is known by now."""
    algorithm, last = strategy.algorithm, strategy.n_rounds
    units = algorithm.units(last)
    for release in strategy.plan.rounds[-1]:
        for block in algorithm.layout(last):
            if release.blocks == (block.name,) and block.name == "counts":
                spread = 2**0.5 if release.mechanism == "laplace" else 1.0
                unit = float(units[algorithm.places(last)[block.name]].max())
                return release.noise_multiplier * spread * unit * 2.0**-block.exponent
    return None


def _round_printer(console: Console, status: Status) -> "Callable[[RoundInfo], None]":
    def on_round(info: "RoundInfo") -> None:
        missing = f", {info.dropped} missing" if info.dropped else ""
        console.print(
            f"round {info.round} of {info.n_rounds}: "
            f"{_number(info.n_answers, 'client')} answered{missing}",
            highlight=False,
        )
        status.update("delivering" if info.round == info.n_rounds else "sending the next query")

    return on_round


def _number(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _warn_of_bounds() -> None:
    Console(stderr=True).print(
        Text(
            "WARNING: --bounds-from-data read the bounds off the records. They are exact facts "
            "about single records, so this run is NOT private, whatever epsilon says.",
            style="bold red",
        ),
        soft_wrap=True,
    )


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Keep the logs of Flower and Ray, but not their errors, from between the rounds' lines."""
    if verbose:
        yield
        return
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
            yield
    finally:
        logger.setLevel(level)
