"""Times round trips of a small message, by Flower's ``send_and_receive`` and by own polling."""

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_kmeans.protocol.exchange import Exchange
from flower_kmeans.protocol.messages import Finish

TIMEOUT = 120.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take turns, and write the seconds."""
    exchange = Exchange(grid, TIMEOUT)
    nodes = exchange.wait_for_nodes(1)
    requests = {node: Finish(doc_hash=bytes(32)) for node in nodes}
    seconds: dict[str, list[float]] = {"send_and_receive": [], "own polling": []}
    for number in range(1 + int(context.run_config["round-trips"])):
        started = time.perf_counter()
        replies = list(
            grid.send_and_receive(
                exchange.messages("finish", requests), timeout=TIMEOUT
            )
        )
        middle = time.perf_counter()
        polled = list(exchange.trip("finish", requests, lambda: False))
        ended = time.perf_counter()
        if len(replies) != 1 or len(polled) != 1 or isinstance(polled[0][1], str):
            raise RuntimeError("Expected one reply to each message.")
        if number:  # the first ones start processes
            seconds["send_and_receive"].append(middle - started)
            seconds["own polling"].append(ended - middle)
    Path(str(context.run_config["report"])).write_text(
        json.dumps(seconds), encoding="utf-8"
    )
