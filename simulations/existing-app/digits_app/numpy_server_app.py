"""The server of NumPyClients, in the older form: FedAvg, made by a server_fn."""

import numpy as np
from flwr.app import Context
from flwr.common import Metrics, NDArrays, Scalar, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid, ServerApp

from digits_app.model import initial_model
from digits_app.output import save_accuracies, save_model
from flower_kmeans import Box, PrivacyBudget  # added
from flower_kmeans.strategies import SynopsisKMeans  # added


def server_fn(context: Context) -> ServerAppComponents:
    """Return FedAvg and its number of rounds."""
    accuracies: dict[int, float] = {}

    def on_metrics(metrics: list[tuple[int, Metrics]]) -> Metrics:
        n, shares = zip(*((n, float(m["accuracy"])) for n, m in metrics), strict=True)
        accuracies[len(accuracies) + 1] = float(np.average(shares, weights=n))
        save_accuracies(context, accuracies)
        return {"accuracy": accuracies[len(accuracies)]}

    def on_model(server_round: int, model: NDArrays, config: dict[str, Scalar]) -> None:
        save_model(context, model)

    strategy = FedAvg(
        initial_parameters=ndarrays_to_parameters(initial_model()),
        on_fit_config_fn=lambda server_round: {"server-round": server_round},
        evaluate_fn=on_model,
        evaluate_metrics_aggregation_fn=on_metrics,
    )
    rounds = int(context.run_config["num-server-rounds"])
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=rounds)
    )


app = ServerApp(server_fn=server_fn)
train = app  # added
app = ServerApp()  # added


@app.main()  # added
def main(grid: Grid, context: Context) -> None:  # added
    """Train as before, then cluster."""  # added
    train(grid, context)  # added
    domain = Box([0.0] * 4, [10.0] * 4)  # added
    privacy = PrivacyBudget(epsilon=1.0)  # added
    kmeans = SynopsisKMeans(4, domain, privacy, n_records=1_800, n_clients=10)  # added
    kmeans.start(grid)  # added
