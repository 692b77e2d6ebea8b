"""The same client as a NumPyClient, the older form that many projects have."""

from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from digits_app.clusters import keep, load_data  # added
from digits_app.model import accuracy, fit
from flower_kmeans import ClientPolicy, with_kmeans  # added

Arrays = list[NDArray[np.float64]]


class DigitsClient(NumPyClient):
    """Trains on one client's images."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def fit(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the received model for one pass, and return it."""
        return *fit(parameters, self._context, int(config["server-round"])), {}

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Return the accuracy of the received model."""
        share, n = accuracy(parameters, self._context)
        return 1 - share, n, {"accuracy": share}


def client_fn(context: Context) -> Client:
    """Return the client of one node."""
    return DigitsClient(context).to_client()


app = ClientApp(client_fn=client_fn)
app = with_kmeans(app, load_data, ClientPolicy.for_simulation(), keep)  # added
