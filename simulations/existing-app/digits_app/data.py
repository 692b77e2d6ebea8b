"""Each client's share of scikit-learn's digits: 1,797 images of 8 x 8 values from 0 to 16."""

from functools import lru_cache

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Images = NDArray[np.float64]
Labels = NDArray[np.int64]


@lru_cache(maxsize=1)
def _digits() -> tuple[Images, Labels]:
    images, labels = load_digits(return_X_y=True)
    return np.asarray(images, np.float64), np.asarray(labels, np.int64)


def load_images(context: Context) -> Images:
    """Return this client's images, shape (n, 64): every num-partitions-th of all."""
    images, _ = _digits()
    return images[int(context.node_config["partition-id"]) :: _n_partitions(context)]


def load_labels(context: Context) -> Labels:
    """Return the digits that this client's images show, shape (n,)."""
    _, labels = _digits()
    return labels[int(context.node_config["partition-id"]) :: _n_partitions(context)]


def split(context: Context) -> tuple[Images, Labels, Images, Labels]:
    """Return training images and labels, and then the last fifth for evaluation."""
    images, labels = load_images(context), load_labels(context)
    n_train = len(images) * 4 // 5
    return images[:n_train], labels[:n_train], images[n_train:], labels[n_train:]


def _n_partitions(context: Context) -> int:
    return int(context.node_config["num-partitions"])
