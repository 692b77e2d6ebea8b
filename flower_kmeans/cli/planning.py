"""The plan of a run on the command line: its parameters, cost and expected loss."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from flower_kmeans.algorithms import judged
from flower_kmeans.cli import outputs
from flower_kmeans.cli.inputs import DEFAULT_CLIENTS
from flower_kmeans.cli.options import Settings, even_widths, placeholders, takers
from flower_kmeans.cli.preview import Change, PreviewPlan, n_runs_of, show_preview
from flower_kmeans.cli.preview_records import MadeUp, Sample, plain, sample_of
from flower_kmeans.cli.printing import quiet_logs, warn_of_bounds
from flower_kmeans.data import datasets
from flower_kmeans.data.declared import DeclaredDomain, domain_from_file
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.data.tables import read_table
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.report import clip_text
from flower_kmeans.strategies import ClusteringStrategy, KMeansStrategy

_DEFAULT_FEATURES = 3  # the columns of the photograph
_DEFAULT_PARTIES = 2


@dataclass(frozen=True)
class PlanRequest:
    """Options of ``plan``, without those of strategies, as the user gave them."""

    domain: Path | None
    tighten: float | None
    features: int | None
    parties: int | None
    server_points: int | None
    simulate: bool
    sample: Path | None
    chart: Path | None


@dataclass(frozen=True)
class _Plan:
    """A strategy that is only planned, and the public numbers that it was made from."""

    strategy: ClusteringStrategy[Any]
    domain: Domain
    parameters: dict[str, Any]


def show_plan(settings: Settings, request: PlanRequest) -> None:
    """Print the plan of a strategy, and its simulated loss if the user wants it.

    Raises
    ------
    ConfigurationError
        If options do not fit together.
    """
    declared = _declared(settings, request)
    features = request.features
    if declared is not None:
        features = declared.n_features
    _require_fitting(settings, request, features)
    domain = _domain_of(request, declared, features or _DEFAULT_FEATURES)
    made = _make(settings, request, domain)
    strategy = made.strategy
    source = None
    if request.simulate:
        # It may be refused, which nothing should precede.
        source = _source_of(request, declared, made)
    console = Console(highlight=False)
    outputs.print_plan(
        console,
        strategy.plan,
        strategy.trust,
        _size_noise(strategy),
        _facts(made),
    )
    if source is not None:
        _show_preview(console, settings, request, made, source)


def _declared(settings: Settings, request: PlanRequest) -> DeclaredDomain | None:
    """Return the domain of a file, if an option names one."""
    features = request.features
    if request.domain is not None and features is not None:
        raise ConfigurationError(
            "Expected --domain, which has columns, or --features. Got both."
        )
    if request.domain is not None:
        declared = domain_from_file(request.domain)
        is_read_off = isinstance(declared, TableDomain) and declared.from_records
        if is_read_off and settings.is_private:
            warn_of_bounds()
        return declared
    if features is not None and features < 1:
        raise ConfigurationError(
            f"Expected --features of at least 1. Got {features} instead."
        )
    return None


def _domain_of(
    request: PlanRequest, declared: DeclaredDomain | None, features: int
) -> Domain:
    """Return the domain of a plan: columns in [-1, 1], the unit ball, or directions."""
    tighten = request.tighten
    if tighten is not None and isinstance(declared, Ball | Sphere):
        raise ConfigurationError(
            "Expected --tighten with bounds of columns. "
            f"Got a domain file with a {type(declared).__name__} instead."
        )
    if isinstance(declared, Ball):
        return Ball(1.0, [0.0] * features)
    if isinstance(declared, Sphere):
        return Sphere(features)
    if declared is not None and tighten is None:
        tighten = declared.tighten
    # Only numbers and dates have ranges, so their noise depends on the declared columns.
    if declared is not None and tighten is not None:
        return declared.as_public(tighten)
    return Box([-1.0] * features, [1.0] * features, tighten=tighten)


def _require_fitting(
    settings: Settings, request: PlanRequest, features: int | None
) -> None:
    """Require options that a plan of the strategy can use."""
    _require_for_preview(settings, request)
    name = settings.name
    given = settings.given
    follows_from_points = settings.takes("server_data") and settings.unit == "client"
    if follows_from_points and "clip" not in given:
        raise ConfigurationError(
            f"Expected --clip with --unit client for the strategy {name}: its clips follow from "
            "where the server's points lie, and only their number is known here. Got none."
        )
    settings.check_server(
        "--server-points", "the number of points of the server", request.server_points
    )
    if request.parties is not None and not settings.splits_columns:
        raise ConfigurationError(
            f"Expected --parties with --strategy {takers('parties')} only. Got it with {name}."
        )
    if settings.counts_persons:
        if "n_persons" not in given and settings.is_private:
            raise ConfigurationError(
                "Expected --n-persons, the public planning value for the number of persons, with "
                "--unit person. Got none."
            )
        return
    if "n_records" not in given and features is not None and settings.is_private:
        if "n_persons" in given:
            raise ConfigurationError(
                "Expected --unit person with --n-persons, for a plan that protects persons. Got "
                f"--unit {settings.unit}."
            )
        raise ConfigurationError(
            "Expected --n-records, the public planning value for the number of records, with "
            "--domain or --features. Got none."
        )


def _require_for_preview(settings: Settings, request: PlanRequest) -> None:
    """Require options of ``--simulate`` that fit together."""
    if request.chart is not None and not request.simulate:
        raise ConfigurationError("--chart requires --simulate.")
    if request.sample is not None and not request.simulate:
        raise ConfigurationError("--sample requires --simulate.")
    if request.sample is not None and request.domain is None:
        raise ConfigurationError(
            "Expected --sample with --domain, which says how its columns are read. Got none."
        )
    if request.simulate and (settings.splits_columns or not settings.is_private):
        raise ConfigurationError(
            "Expected --simulate with a private strategy whose clients hold records. "
            f"Got {settings.name} without."
        )


def _make(settings: Settings, request: PlanRequest, domain: Domain) -> _Plan:
    """Return the strategy for records of a domain."""
    given = settings.given
    features = domain.n_features
    parameters: dict[str, Any] = {}
    if not settings.counts_persons:
        parameters["n_records"] = given.get("n_records", datasets.PHOTO_RECORDS)
    if request.server_points is not None:
        parameters["server_data"] = placeholders(request.server_points, features)
    if settings.splits_columns:
        n_parties = request.parties
        if n_parties is None:
            n_parties = _DEFAULT_PARTIES
        parameters["parties"] = even_widths(features, n_parties)
    else:
        parameters["n_clients"] = given.get("n_clients", DEFAULT_CLIENTS)
    return _Plan(settings.make(domain, **parameters), domain, parameters)


def _facts(made: _Plan) -> dict[str, str]:
    """Return the public numbers that determine the noise, in words by name."""
    strategy = made.strategy
    facts = {
        **_planned_numbers(made),
        "n_clients": str(strategy.n_clients),
        "min_clients": str(strategy.min_clients),
    }
    if strategy.trust_model.is_protected:
        facts["max_colluders"] = str(strategy.max_colluders)
    if isinstance(strategy, KMeansStrategy) and strategy.clip is not None:
        facts["clip"] = clip_text(strategy.clip, strategy.clips)
    if strategy.plan.is_private:
        facts["noise factor"] = outputs.noise_text(
            strategy.noise_factor, strategy.added_noise_factor
        )
    return facts


def _planned_numbers(made: _Plan) -> dict[str, str]:
    """Return the planned number of records, or of persons and of their clients."""
    algorithm = made.strategy.algorithm
    if algorithm.budget.counts_persons:
        return {
            "n_persons": str(algorithm.n_persons),
            "max_clients_per_person": str(algorithm.max_clients_per_person),
        }
    return {"n_records": str(made.parameters["n_records"])}


def _size_noise(strategy: ClusteringStrategy[Any]) -> float | None:
    """Return the standard deviation of the last cluster sizes' noise, in records or persons.

    Return ``None`` if it is not known before the run.
    """
    if not strategy.plan.is_private:
        return None
    algorithm = strategy.algorithm
    last = judged.result_round(algorithm)
    noise = algorithm.noise_of(last).get("counts")
    if noise is None:
        return None
    blocks = algorithm.layout(last).blocks
    (block,) = (block for block in blocks if block.name == "counts")
    if block.shape != (strategy.n_clusters,):  # counts of a synopsis' cells
        return None
    return noise * 2.0**-block.exponent * strategy.noise_factor


def _source_of(
    request: PlanRequest,
    declared: DeclaredDomain | None,
    made: _Plan,
) -> MadeUp | Sample:
    """Return where the records of a preview come from."""
    domain = made.domain
    tighten = None
    if isinstance(domain, Box):
        tighten = domain.tighten
    if declared is not None:
        domain = declared
    domain = plain(domain, tighten)
    n_clusters = made.strategy.n_clusters
    if request.sample is None:
        return MadeUp(domain, n_clusters)
    table = read_table(request.sample, domain=declared)
    return sample_of(table, domain, n_clusters)


def _with_one_record_each(
    settings: Settings, made: _Plan
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings and parameters of a preview, in which a person has one record.

    Such a run is that of as many records, with the same noise.
    """
    if not settings.counts_persons:
        return settings, made.parameters
    of_persons = ("n_persons", "max_clients_per_person")
    given = {
        name: value for name, value in settings.given.items() if name not in of_persons
    }
    n_persons = made.strategy.algorithm.n_persons
    parameters = made.parameters | {"n_records": n_persons}
    return replace(settings, unit="record", given=given), parameters


def _show_preview(
    console: Console,
    settings: Settings,
    request: PlanRequest,
    made: _Plan,
    source: MadeUp | Sample,
) -> None:
    """Run the plan and changes of it, and print what they lose."""
    previewed, shared = _with_one_record_each(settings, made)
    protects_clients = settings.unit == "client"

    def make(change: Change, points: NDArray[np.float64] | None) -> Any:
        parameters = dict(shared)
        parameters["n_records"] = round(change.size * shared["n_records"])
        if protects_clients:
            parameters["n_clients"] = round(change.size * shared["n_clients"])
        if request.server_points is not None and points is not None:
            parameters["server_data"] = points
        chosen = replace(previewed, epsilon=change.epsilon)
        return chosen.make(change.domain, **parameters)

    counted = "n_records"
    if settings.counts_persons:
        counted = "n_persons"
    if protects_clients:
        counted = "n_clients"
    planned = shared["n_clients"] if protects_clients else shared["n_records"]
    plan = PreviewPlan(
        n_records=shared["n_records"],
        n_clusters=made.strategy.n_clusters,
        epsilon=made.strategy.privacy.epsilon or 1.0,  # not None: the run is private
        n_points=request.server_points or 0,
        counted=counted,
        planned=planned,
        n_runs=n_runs_of(shared["n_records"], made.domain.n_features),
    )
    seed = settings.given.get("seed", 0)
    # The table says it of all runs together.
    with quiet_logs(also=("flower_kmeans.client",)):
        show_preview(console, make, source, plan, seed, request.chart)
