"""Softmax regression in NumPy: one matrix and one offset per digit."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clustered_app.data import INK, Images, Labels

Array = NDArray[np.float64]


def initial_model() -> list[Array]:
    """Return the model that FedAvg starts from."""
    return [np.zeros((64, 10)), np.zeros(10)]


def fit(
    model: Sequence[Array], images: Images, digits: Labels, rate: float, passes: int
) -> list[Array]:
    """Return the model after gradient steps on all images."""
    weights, offsets = model
    inputs = _inputs(images)
    for _ in range(passes):
        error = _probabilities([weights, offsets], inputs)
        error[np.arange(len(digits)), digits] -= 1
        weights = weights - rate * inputs.T @ error / len(inputs)
        offsets = offsets - rate * error.mean(axis=0)
    return [weights, offsets]


def n_right(model: Sequence[Array], images: Images, digits: Labels) -> int:
    """Return the number of images that the model recognises."""
    return int((_probabilities(model, _inputs(images)).argmax(axis=1) == digits).sum())


def _inputs(images: Images) -> Array:
    return images.reshape(len(images), 64) / INK - 0.5


def _probabilities(model: Sequence[Array], inputs: Array) -> Array:
    weights, offsets = model
    scores = inputs @ weights + offsets
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
