"""The server asks for noisy sums, and writes a report of the run and a page of the report.

Under ``trust="distributed-noise"``, the default, it sees the noisy sums, and the page
shows the centroids. Under ``"clients-only"`` and ``"oblivious-server"`` it never sees a
sum, and neither file has a centroid. All strategies have these two trust models except
``"feddp"``, which starts from the server's own points.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any, Literal

from bounds import domain_of
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from flower_kmeans import PrivacyBudget, TableDomain, html_report
from flower_kmeans.data.datasets import load_table
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.files import open_private
from flower_kmeans.strategies import (
    FastLloyd,
    FedDPKMeans,
    HDPEMeans,
    KMeansStrategy,
    PEMeans,
    RoundInfo,
    SynopsisKMeans,
)

STRATEGIES: dict[str, Callable[..., KMeansStrategy]] = {
    "fastlloyd": FastLloyd,
    "synopsis": SynopsisKMeans,
    "feddp": FedDPKMeans,
    "hdpe-means": HDPEMeans,
    "pe-means": PEMeans,
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the clustering and write its reports."""
    config = context.run_config
    path = Path(str(config["report"])).expanduser()
    ends: list[float] = []

    def on_round(info: RoundInfo) -> None:
        ends.append(round(info.seconds, 3))

    strategy = strategy_of(config, on_round)
    try:
        waits = {name: float(config[name]) or None for name in ("timeout", "patience")}
        resume = Path(str(config["resume"])).expanduser() if config["resume"] else None
        result = strategy.start(grid, **waits, resume=resume)
    except RunError:  # its report says who was missing, when and why
        write_reports(path, strategy, None, ends)
        raise
    write_reports(path, strategy, result, ends)
    for statement in strategy.report.statements:
        log(INFO, "%s", statement)


def strategy_of(
    config: Mapping[str, Any], on_round: Callable[[RoundInfo], None] | None = None
) -> KMeansStrategy:
    """Return the strategy of the run's configuration."""
    name, domain = str(config["strategy"]), domain_of(config)
    options: dict[str, Any] = {
        "n_clusters": int(config["n-clusters"]),
        "domain": domain,
        "privacy": PrivacyBudget(float(config["epsilon"]), unit=unit_of(config)),
        **numbers_of(config),
        "quality": bool(config["quality"]),
        "n_clients": int(config["n-clients"]),
        "min_clients": int(config["min-clients"]),
        "n_rounds": int(config["n-rounds"]) or "auto",
        "trust": str(config["trust"]),
        "max_colluders": int(config["max-colluders"]) or None,
        "keys": str(config["keys"]),
        "roster_file": Path(str(config["roster"])).expanduser()
        if config["roster"]
        else None,
        "nodes": [int(node) for node in str(config["nodes"]).split()] or None,
        "seed": int(config["seed"]),
        "on_round": on_round,
    }
    if name not in STRATEGIES:
        raise ConfigurationError(
            f"Expected strategy in {list(STRATEGIES)}. Got {name!r}."
        )
    if name == "feddp":
        path = Path(str(config["server-data"])).expanduser()
        declared = domain if isinstance(domain, TableDomain) else None
        features = domain.columns if declared is None else None
        options["server_data"] = load_table(path, features=features, domain=declared)
    return STRATEGIES[name](**options)


def unit_of(config: Mapping[str, Any]) -> Literal["record", "person"]:
    """Return who is protected by the run's configuration."""
    if config["unit"] == "record":
        return "record"
    if config["unit"] == "person":
        return "person"
    raise ConfigurationError(
        f"Expected unit as 'record' or 'person'. Got {config['unit']!r}."
    )


def numbers_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the planning values for the unit of the run's configuration."""
    if unit_of(config) == "record":
        return {"n_records": int(config["n-records"])}
    return {
        "n_persons": int(config["n-persons"]),
        "max_clients_per_person": int(config["max-clients-per-person"]),
    }


def write_reports(
    path: Path, strategy: KMeansStrategy, result: Result | None, ends: Sequence[float]
) -> None:
    """Write the report of a run, for programs and as a page, even if the run failed.

    ``result`` is ``None`` if the server has no centroids. Otherwise the page shows
    them. So both files have mode 0600.
    """
    arrays = () if result is None else result.arrays
    values = strategy.report.to_dict()
    values["finished"] = result is not None
    values["arrays_at_the_server"] = sorted(arrays)
    values["seconds_at_the_end_of_rounds"] = list(ends)
    page = path.with_name(f"{path.name.removesuffix('.json')}.html")
    with open_private(path) as file:
        file.write(json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")
    with open_private(page) as file:
        file.write(html_report(strategy, result).encode())
    log(INFO, "The server wrote %s and %s", path, page)
