"""Each client trains on its own images, and evaluates on images that it kept aside."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.clusters import keep, load_data  # added
from digits_app.model import accuracy, fit
from flower_kmeans import ClientPolicy, register_kmeans  # added

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model for one pass, and return it."""
    model = message.content.array_records["arrays"].to_numpy_ndarrays()
    server_round = message.content.config_records["config"]["server-round"]
    model, n = fit(model, context, int(str(server_round)))
    metrics = MetricRecord({"num-examples": n})
    return Message(
        RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy of the received model."""
    share, n = accuracy(
        message.content.array_records["arrays"].to_numpy_ndarrays(), context
    )
    metrics = MetricRecord({"accuracy": share, "num-examples": n})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


register_kmeans(app, load_data, ClientPolicy.for_simulation(), keep)  # added
