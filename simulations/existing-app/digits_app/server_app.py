"""The server averages the clients' models, and keeps the last one."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.model import initial_model
from digits_app.output import save_accuracies, save_model
from flower_kmeans import Box, PrivacyBudget  # added
from flower_kmeans.strategies import SynopsisKMeans  # added

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg."""
    strategy = FedAvg()
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(initial_model()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    save_model(context, result.arrays.to_numpy_ndarrays())
    metrics = result.evaluate_metrics_clientapp
    save_accuracies(context, {t: metrics[t]["accuracy"] for t in metrics})
    domain = Box([0.0] * 4, [10.0] * 4)  # added
    privacy = PrivacyBudget(epsilon=1.0)  # added
    kmeans = SynopsisKMeans(4, domain, privacy, n_records=1_800, n_clients=10)  # added
    kmeans.start(grid)  # added
