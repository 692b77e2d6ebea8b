"""Results of a run, in the directory that the configuration names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray


def directory(context: Context) -> Path:
    """Return the directory for results, and make it if it is missing."""
    path = Path(str(context.run_config["output"])).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path


def save_model(context: Context, model: Sequence[NDArray[np.float64]]) -> None:
    """Write the model to model.npz."""
    np.savez(directory(context) / "model.npz", *model)


def save_accuracies(context: Context, accuracies: Mapping[int, object]) -> None:
    """Write the clients' mean accuracy after each round to accuracy.json."""
    (directory(context) / "accuracy.json").write_text(
        json.dumps(dict(accuracies)) + "\n"
    )
