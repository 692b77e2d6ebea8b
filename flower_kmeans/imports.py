"""Objects that are imported when they are needed, by text."""

from importlib import import_module
from typing import Any


def imported(path: str) -> Any:
    """Return the object that ``module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
