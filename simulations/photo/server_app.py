"""The server asks for noisy sums, and computes the colours from them."""

from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flower_kmeans import Box, PrivacyBudget, html_report
from flower_kmeans.cli.outputs import write_page, write_report
from flower_kmeans.data.datasets import PHOTO_COLUMNS, PHOTO_RECORDS
from flower_kmeans.strategies import SynopsisKMeans

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the clustering and write its report."""
    config = context.run_config
    output = Path(str(config["output"])).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    # in a simulation all are there from the start
    n_clients = len(list(grid.get_node_ids()))
    strategy = SynopsisKMeans(
        n_clusters=int(config["n-clusters"]),
        domain=Box([0.0] * 3, [255.0] * 3),
        privacy=PrivacyBudget(epsilon=float(config["epsilon"])),
        n_records=PHOTO_RECORDS,
        n_clients=n_clients,
        trust=str(config["trust"]),
        seed=int(config["seed"]),
    )
    result = strategy.start(grid)
    report = strategy.report
    write_report(output, report.to_dict())
    write_page(output, html_report(strategy, result, columns=PHOTO_COLUMNS))
    log(
        INFO,
        "epsilon %.4g, delta %.3g, mu %.4g",
        report.epsilon,
        report.delta,
        report.mu,
    )
    for statement in report.statements:
        log(INFO, "%s", statement)
    log(INFO, "The server wrote report.json and report.html to %s", output)
