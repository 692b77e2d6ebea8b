"""The version of the library, for people, packages and commitments."""

import re
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


def openssl_version() -> str:
    """Return name and version of the library that encrypts and signs: ``"OpenSSL 3.5.4"``."""
    # Imported here: commands that encrypt nothing start without it.
    from cryptography.hazmat.backends.openssl import backend

    return " ".join(backend.openssl_version_text().split()[:2])


def stated_software(*more: str) -> str:
    """Return the versions that a client states to a server, at most 64 characters of a message."""
    text = " ".join((f"flower-kmeans {__version__}", openssl_version(), *more))
    return re.sub(r"[^A-Za-z0-9 ._+-]", "", text)[:64]
