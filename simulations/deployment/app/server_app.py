"""The server asks for noisy sums and never sees what they are: it writes a report, no centroid."""

import json
from logging import INFO
from pathlib import Path

from bounds import read_box
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flower_kmeans import PrivacyBudget
from flower_kmeans.strategies import FastLloyd, RoundInfo

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the clustering and write its report."""
    config = context.run_config
    ends: list[float] = []

    def on_round(info: RoundInfo) -> None:
        ends.append(round(info.seconds, 3))

    strategy = FastLloyd(
        n_clusters=int(config["n-clusters"]),
        domain=read_box(str(config["bounds"])),
        privacy=PrivacyBudget(epsilon=float(config["epsilon"])),
        n_records=int(config["n-records"]),
        n_clients=int(config["n-clients"]),
        n_rounds=int(config["n-rounds"]) or "auto",
        trust="oblivious-server",
        keys="file",
        seed=int(config["seed"]),
        on_round=on_round,
    )
    result = strategy.start(grid, timeout=float(config["timeout"]))
    report = strategy.report.to_dict()
    report["arrays_at_the_server"] = sorted(result.arrays)
    report["seconds_at_the_end_of_rounds"] = ends
    path = Path(str(config["report"])).expanduser()
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    for statement in strategy.report.statements:
        log(INFO, "%s", statement)
    log(INFO, "The server wrote %s", path)
