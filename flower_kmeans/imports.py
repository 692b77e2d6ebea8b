"""Late imports: objects named by text, which are imported when they are needed."""

from importlib import import_module
from typing import Any


def imported(path: str) -> Any:
    """Return the object with the path ``module:name``, importing its module."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
