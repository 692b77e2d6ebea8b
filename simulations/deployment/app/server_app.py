"""The server asks for noisy sums and never sees what they are: it writes a report, no centroid."""

import json
from collections.abc import Sequence
from logging import INFO
from pathlib import Path

from bounds import read_box
from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flower_kmeans import PrivacyBudget
from flower_kmeans.errors import RunError
from flower_kmeans.privacy.report import Report
from flower_kmeans.strategies import FastLloyd, RoundInfo

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the clustering and write its report."""
    config = context.run_config
    path = Path(str(config["report"])).expanduser()
    ends: list[float] = []

    def on_round(info: RoundInfo) -> None:
        ends.append(round(info.seconds, 3))

    strategy = FastLloyd(
        n_clusters=int(config["n-clusters"]),
        domain=read_box(str(config["bounds"])),
        privacy=PrivacyBudget(epsilon=float(config["epsilon"])),
        n_records=int(config["n-records"]),
        n_clients=int(config["n-clients"]),
        min_clients=int(config["min-clients"]),
        n_rounds=int(config["n-rounds"]) or "auto",
        trust=str(config["trust"]),
        keys=str(config["keys"]),
        seed=int(config["seed"]),
        on_round=on_round,
    )
    try:
        result = strategy.start(grid, timeout=float(config["timeout"]))
    except RunError:  # its report says who was missing, when and why
        write_report(path, strategy.report, None, ends)
        raise
    write_report(path, strategy.report, result.arrays, ends)
    for statement in strategy.report.statements:
        log(INFO, "%s", statement)


def write_report(
    path: Path, report: Report, arrays: ArrayRecord | None, ends: Sequence[float]
) -> None:
    """Write what a run was, whether it finished (``arrays``) or not (``None``)."""
    values = report.to_dict()
    values["finished"] = arrays is not None
    values["arrays_at_the_server"] = sorted(arrays or ())
    values["seconds_at_the_end_of_rounds"] = list(ends)
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    log(INFO, "The server wrote %s", path)
