"""Each client holds one tile of the photograph and answers with protected, noisy sums of it."""

from logging import INFO
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.common.logger import log
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin

from flower_kmeans import ClientPolicy, kmeans_client_app
from flower_kmeans.cli.outputs import write_centroids
from flower_kmeans.client import ClientResult
from flower_kmeans.data.datasets import PHOTO_COLUMNS, load_photo, photo_tile
from flower_kmeans.report.picture import save_photo_picture


def load_data(context: Context) -> NDArray[np.float64]:
    """Return the pixels of this client's tile, as (n, 3) values of red, green and blue."""
    config = context.node_config
    return photo_tile(int(config["partition-id"]), int(config["num-partitions"]))


def on_result(result: ClientResult, context: Context) -> None:
    """Keep the centroids, which all clients have. One client does for all."""
    if context.node_config["partition-id"] != 0:
        return
    output = Path(str(context.run_config["output"])).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    write_centroids(output, result, PHOTO_COLUMNS)
    # Only a simulation's client can open the whole photograph.
    image = load_photo()
    labels = pairwise_distances_argmin(
        image.reshape(-1, 3).astype(np.float64), result.centroids
    )
    caption = f"after: {len(result.centroids)} colours, epsilon {context.run_config['epsilon']}"
    path = output / "picture.png"
    save_photo_picture(path, image, labels, result.centroids, result.counts, caption)
    log(
        INFO, "A client kept centroids.npz, centroids.csv and picture.png in %s", output
    )


# A simulation puts no real person at risk, so its clients accept whatever they are
# asked; real nodes name a policy file and a ledger instead.
app = kmeans_client_app(
    load_data, policy=ClientPolicy.for_simulation(), on_result=on_result
)
