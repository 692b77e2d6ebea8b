"""Each node answers with masked, noisy sums of the records in its own file.

What a node has and accepts is said by its operator, in ``--node-config``:

``data``
    The file with the node's records: csv or npy.
``bounds``
    Public bounds of its columns. A run with other bounds is refused.
``group-key``
    The key file that all data holders share and the server does not have, mode 0600.
``state``
    The directory of the node's ledger, mode 0700; its parent must exist.
``result``
    The npz file that the node writes its result to.
"""

import os
from logging import INFO
from pathlib import Path

import numpy as np
from bounds import read_box
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from numpy.typing import NDArray

from flower_kmeans import ClientPolicy, kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.datasets import load_table


def load_data(context: Context) -> NDArray[np.float64]:
    """Return the records of the node's file."""
    return load_table(Path(str(context.node_config["data"]))).records


def policy_of(context: Context) -> ClientPolicy:
    """Return what this node accepts.

    A node that was not told its bounds, its key and where its ledger lies gets the library's
    default policy, which accepts no private run.
    """
    config = context.node_config
    if not {"bounds", "group-key", "state"} <= config.keys():
        return ClientPolicy()
    return ClientPolicy(
        trusts=("oblivious-server",),
        domain=read_box(str(config["bounds"])),
        group_key_file=str(config["group-key"]),
        state_dir=str(config["state"]),
    )


def on_result(result: ClientResult, context: Context) -> None:
    """Write the centroids and noisy sizes to the node's result file, whole or not at all."""
    path = Path(str(context.node_config["result"]))
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, centroids=result.centroids, counts=result.counts)
    os.replace(partial, path)
    log(INFO, "Wrote the result to %s", path)


class _NodeApp(ClientApp):
    """An app whose policy comes from the configuration of the node that it runs on."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message."""
        return kmeans_client_app(load_data, policy_of(context), on_result)(message, context)


app = _NodeApp()
