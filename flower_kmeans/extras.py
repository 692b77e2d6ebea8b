"""Packages that only some features need."""

from importlib import import_module
from types import ModuleType

from flower_kmeans.errors import ConfigurationError

_MOST_TEXT = 300  # of the reason why a package cannot be imported


def require(
    module: str, purpose: str, extra: str = "simulation", instead: str = ""
) -> ModuleType:
    """Import an optional package, or raise an error that says how to get it.

    The error names the extra that brings a package which is not installed, and quotes
    the reason why one that is installed cannot be imported. ``instead`` has other words
    of advice.
    """
    name = module.split(".")[0]
    # The modules that have another name than their package.
    package = {"PIL": "Pillow", "sklearn": "scikit-learn"}.get(name, name)
    try:
        return import_module(module)
    except Exception as error:  # a package that is broken may raise anything
        cure = f"install it with pip install 'flower-kmeans[{extra}]'"
        if is_missing(error, module):
            said = f"{purpose} needs the package {package}: {cure}{instead}."
        else:
            said = f"{purpose} needs the package {package}. {broken(package, error)}{instead}."
        raise ConfigurationError(said) from None


def is_missing(error: Exception, module: str) -> bool:
    """Return whether an import failed because the module is not installed, or its package."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return f"{module}.".startswith(f"{error.name}.")


def broken(package: str, error: Exception) -> str:
    """Return why an installed package cannot be imported, and the remedy."""
    reason = " ".join(str(error).split())[:_MOST_TEXT].rstrip(".")
    return (
        f"It is installed but cannot be imported ({type(error).__name__}: {reason}): "
        f"install it anew with pip install --force-reinstall {package}"
    )
