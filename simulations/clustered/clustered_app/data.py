"""Each client's digits as its scanner shows them, and the statistic to cluster by."""

from functools import lru_cache

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Images = NDArray[np.float64]
Labels = NDArray[np.int64]

INK = 16.0  # pixels are from 0 to 16
N_GROUPS = 4  # kinds of scanners


def split(context: Context) -> tuple[Images, Labels, Images, Labels]:
    """Return training images, (n, 8, 8), and digits, (n,), and then those for evaluation.

    The last fifth is for evaluation. No two clients have the same image.
    """
    partition, n = (
        int(context.node_config[x]) for x in ("partition-id", "num-partitions")
    )
    images, digits = _shuffled(int(context.run_config["seed"]))
    images, digits = (
        scanned(images[partition::n], partition % N_GROUPS),
        digits[partition::n],
    )
    n_train = len(images) * 4 // 5
    return images[:n_train], digits[:n_train], images[n_train:], digits[n_train:]


def scanned(images: Images, group: int) -> Images:
    """Return images as a kind of scanner shows them: maybe turned, maybe as a negative."""
    turned = np.rot90(images, axes=(1, 2)) if group % 2 else images
    return INK - turned if group >= 2 else turned


def statistic(context: Context) -> NDArray[np.float64]:
    """Return this client's one record, (1, 2): the mean ink at two pairs of edges of its images."""
    images, *_ = split(context)
    mean = images.mean(axis=0)
    lines, columns = (np.concatenate([each[:2], each[-2:]]) for each in (mean, mean.T))
    return np.array([[lines.mean(), columns.mean()]])


@lru_cache(maxsize=1)
def _shuffled(seed: int) -> tuple[Images, Labels]:
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    return images.reshape(-1, 8, 8)[order], digits[order]
