"""The server relays sealed messages and writes what the run was; it never sees a centroid."""

import json
from logging import INFO
from pathlib import Path

from customers import read_domains, read_parties
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from flower_kmeans import PrivacyBudget, html_report
from flower_kmeans.errors import RunError
from flower_kmeans.files import open_private
from flower_kmeans.strategies import VerticalKMeans

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the clustering and write its reports."""
    config = context.run_config
    path = Path(str(config["report"])).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    files, bounds = str(config["domains"]), str(config["bounds"])
    domain, widths = read_domains(files) if files else read_parties(bounds)
    roster = str(config["roster"])
    strategy = VerticalKMeans(
        int(config["n-clusters"]),
        domain,
        PrivacyBudget(epsilon=float(config["epsilon"])),
        int(config["n-records"]),
        parties=widths,
        n_rounds=int(config["n-rounds"]) or "auto",
        key_holders=int(config["key-holders"]) or None,
        keys="roster" if roster else "relayed",
        roster_file=Path(roster).expanduser() if roster else None,
        nodes=[int(node) for node in str(config["nodes"]).split()] or None,
        radius=bool(config["radius"]),
        check_ids=bool(config["check-ids"]),
        seed=int(config["seed"]),
    )
    try:
        resume = Path(str(config["resume"])).expanduser() if config["resume"] else None
        result = strategy.start(
            grid, timeout=float(config["timeout"]) or None, resume=resume
        )
    except RunError:  # its report says which party failed, when and why
        write_reports(path, strategy, None)
        raise
    write_reports(path, strategy, result)
    for statement in strategy.report.statements:
        log(INFO, "%s", statement)


def write_reports(path: Path, strategy: VerticalKMeans, result: Result | None) -> None:
    """Write what a run was, for programs and as a page, also if it failed (``result=None``)."""
    values = strategy.report.to_dict()
    values["finished"] = result is not None
    values["arrays_at_the_server"] = [] if result is None else sorted(result.arrays)
    page = path.with_suffix(".html")
    with open_private(path) as file:
        file.write(json.dumps(values, indent=2, allow_nan=False).encode() + b"\n")
    with open_private(page) as file:
        file.write(html_report(strategy, result).encode())
    log(INFO, "The server wrote %s and %s", path, page)
