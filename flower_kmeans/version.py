"""The version of the library, for people, packages and commitments."""

from importlib import metadata

__version__ = "0.2.0"


def flwr_version() -> str:
    """Return the version of the Flower that is installed, whatever its distribution is called."""
    return installed_version("flwr", "flwr-nightly")


def installed_version(*names: str) -> str:
    """Return the version of a distribution that has one of some names, or ``"unknown"``."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    # A run that is over must not lose its report because nobody knows the name.
    return "unknown"
