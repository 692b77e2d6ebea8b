"""Each client adds its statistic to the clustering, and then trains in one cluster."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clustered_app.data import split, statistic
from clustered_app.model import fit, n_right
from flower_kmeans import ClientPolicy, register_kmeans
from flower_kmeans.client import ClientResult

app = ClientApp()


def keep(result: ClientResult, context: Context) -> None:
    """Keep nothing, because the server sends the centroids when it asks for the cluster."""


register_kmeans(app, statistic, ClientPolicy.for_simulation(), keep)


@app.query("cluster")
def cluster(message: Message, context: Context) -> Message:
    """Return the cluster whose centroid is nearest to this client's statistic."""
    (centroids,) = message.content.array_records["centroids"].to_numpy_ndarrays()
    nearest = int(np.linalg.norm(centroids - statistic(context), axis=1).argmin())
    return Message(
        RecordDict({"metrics": MetricRecord({"cluster": nearest})}), reply_to=message
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this client's images, and return it."""
    model = message.content.array_records["arrays"].to_numpy_ndarrays()
    images, digits, _, _ = split(context)
    config = context.run_config
    rate, passes = float(config["learning-rate"]), int(config["local-passes"])
    content = {
        "arrays": ArrayRecord(fit(model, images, digits, rate, passes)),
        "metrics": MetricRecord({"num-examples": len(images)}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the number of evaluation images that the model recognises."""
    model = message.content.array_records["arrays"].to_numpy_ndarrays()
    _, _, images, digits = split(context)
    metrics = MetricRecord(
        {"right": n_right(model, images, digits), "num-examples": len(images)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
