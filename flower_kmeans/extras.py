"""Packages that only some features need."""

from importlib import import_module
from types import ModuleType

from flower_kmeans.errors import ConfigurationError


def require(module: str, purpose: str, extra: str = "simulation") -> ModuleType:
    """Import an optional package, or raise an error that names the extra which brings it."""
    try:
        return import_module(module)
    except ImportError:
        # The one module that has another name than its package.
        package = {"PIL": "Pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise ConfigurationError(
            f"{purpose} needs the package {package}: "
            f"install it with pip install 'flower-kmeans[{extra}]'."
        ) from None
