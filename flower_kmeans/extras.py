"""Packages that only some features need."""

from importlib import import_module
from types import ModuleType

from flower_kmeans.errors import ConfigurationError

_MOST_TEXT = 300  # most characters of the reason why a package cannot be imported


def require(
    module: str, purpose: str, extra: str = "simulation", instead: str = ""
) -> ModuleType:
    """Return a module of an optional package, or raise an error with the remedy.

    If the package is not installed, the error names the extra that installs it. If it
    cannot be imported, the error quotes the reason.

    Parameters
    ----------
    module : str
        The module to import.
    purpose : str
        The feature that needs it, as the subject of the error's sentence.
    extra : str
        The extra of flower-kmeans that installs the package.
    instead : str
        Further advice at the end of the sentence.

    Raises
    ------
    ConfigurationError
        If the module cannot be imported.
    """
    name = module.split(".")[0]
    # These modules do not have the name of their package.
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
    """Return whether an import failed because the module or its package is not installed."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return f"{module}.".startswith(f"{error.name}.")


def broken(package: str, error: Exception) -> str:
    """Return the reason why an installed package cannot be imported, and the remedy."""
    reason = " ".join(str(error).split())[:_MOST_TEXT].rstrip(".")
    return (
        f"It is installed but cannot be imported ({type(error).__name__}: {reason}): "
        f"install it anew with pip install --force-reinstall {package}"
    )
