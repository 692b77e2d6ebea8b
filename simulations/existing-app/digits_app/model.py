"""Softmax regression in NumPy: one matrix and one offset per digit."""

from collections.abc import Sequence

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from digits_app.data import split

Array = NDArray[np.float64]

BATCH = 16


def initial_model() -> list[Array]:
    """Return the model that FedAvg starts from."""
    return [np.zeros((64, 10)), np.zeros(10)]


def fit(
    model: Sequence[Array], context: Context, server_round: int
) -> tuple[list[Array], int]:
    """Make one pass over this client's training images.

    Returns
    -------
    list of ndarray
        The model after the pass.
    int
        Number of images that it was trained with.
    """
    images, labels, _, _ = split(context)
    rate, seed = (
        float(context.run_config["learning-rate"]),
        int(context.run_config["seed"]),
    )
    rng = np.random.default_rng(
        [seed, server_round, int(context.node_config["partition-id"])]
    )
    weights, offsets = (array.copy() for array in model)
    order = rng.permutation(len(images))
    for batch in (order[i : i + BATCH] for i in range(0, len(order), BATCH)):
        error = _probabilities([weights, offsets], images[batch])
        error[np.arange(len(batch)), labels[batch]] -= 1
        weights -= rate * images[batch].T @ error / len(batch)
        offsets -= rate * error.mean(axis=0)
    return [weights, offsets], len(images)


def accuracy(model: Sequence[Array], context: Context) -> tuple[float, int]:
    """Return the fraction of recognised evaluation images, and the number of images."""
    _, _, images, labels = split(context)
    return float((_probabilities(model, images).argmax(axis=1) == labels).mean()), len(
        images
    )


def _probabilities(model: Sequence[Array], images: Array) -> Array:
    weights, offsets = model
    scores = images @ weights + offsets
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
