"""The server clusters clients privately, and trains one model for all and one per cluster."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from clustered_app.data import INK
from clustered_app.model import initial_model
from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.strategies import SynopsisKMeans

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Cluster, train, and compare."""
    config = context.run_config
    n_clients, n_clusters = int(config["n-clients"]), int(config["n-clusters"])
    epsilon, seed = float(config["epsilon"]), int(config["seed"])
    box = Box([0.0, 0.0], [INK, INK])  # the public range of pixels
    # Each client has one record, so epsilon protects a client with all its images.
    clustering = SynopsisKMeans(
        n_clusters,
        box,
        PrivacyBudget(epsilon or None),
        n_records=n_clients,
        n_clients=n_clients,
        seed=seed,
    )
    clustering.start(grid)
    clusters = clusters_of(grid, ArrayRecord([clustering.centroids]))
    rounds = int(config["num-server-rounds"])
    for_all = train(grid, sorted(grid.get_node_ids()), rounds)
    each = [train(grid, nodes, rounds) for nodes in clusters]
    found = {
        "epsilon": clustering.report.epsilon,
        "clients": [len(nodes) for nodes in clusters],
        "one model for all": accuracy([for_all]),
        "one model per cluster": accuracy(each),
    }
    output = Path(str(config["output"])).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    (output / "accuracy.json").write_text(json.dumps(found, indent=2) + "\n")


def clusters_of(grid: Grid, centroids: ArrayRecord) -> list[list[int]]:
    """Return the nodes of each cluster with nodes, after asking the nodes."""
    messages = [
        Message(RecordDict({"centroids": centroids}), node, "query.cluster")
        for node in sorted(grid.get_node_ids())
    ]
    found: dict[int, list[int]] = {}
    for reply in grid.send_and_receive(messages, timeout=600):
        if reply.has_content():
            cluster = int(reply.content.metric_records["metrics"]["cluster"])
            found.setdefault(cluster, []).append(reply.metadata.src_node_id)
    return [found[cluster] for cluster in sorted(found)]


def train(grid: Grid, nodes: Collection[int], num_rounds: int) -> MetricRecord:
    """Train a model by FedAvg among ``nodes``, and return the number of recognised images."""
    strategy = FedAvgAmong(nodes, num_rounds)
    result = strategy.start(grid, ArrayRecord(initial_model()), num_rounds)
    return result.evaluate_metrics_clientapp[num_rounds]


class FedAvgAmong(FedAvg):
    """FedAvg among some of the nodes, which evaluate the model after the last round."""

    def __init__(self, nodes: Collection[int], num_rounds: int) -> None:
        super().__init__(
            min_train_nodes=1,
            min_evaluate_nodes=1,
            min_available_nodes=1,
            evaluate_metrics_aggr_fn=_totals,
        )
        self._nodes, self._num_rounds = set(nodes), num_rounds

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages to the nodes."""
        return self._own(super().configure_train(server_round, arrays, config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages to the nodes in the last round."""
        if server_round < self._num_rounds:
            return []
        return self._own(super().configure_evaluate(server_round, arrays, config, grid))

    def _own(self, messages: Iterable[Message]) -> list[Message]:
        return [each for each in messages if each.metadata.dst_node_id in self._nodes]


def _totals(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    metrics = [content.metric_records["metrics"] for content in contents]
    return MetricRecord(
        {
            name: sum(int(each[name]) for each in metrics)
            for name in ("right", "num-examples")
        }
    )


def accuracy(totals: Collection[MetricRecord]) -> float:
    """Return the fraction of the images of all clients that their model recognises."""
    right, n = (
        sum(int(each[name]) for each in totals) for name in ("right", "num-examples")
    )
    return right / n
