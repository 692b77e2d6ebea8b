"""The version of the library, for people, packages and commitments."""

import re
from importlib import metadata

__version__ = "0.2.0"


def flwr_version() -> str:
    """Return the version of the installed Flower, a release or a nightly build."""
    return installed_version("flwr", "flwr-nightly")


def installed_version(*names: str) -> str:
    """Return the version of the first installed distribution of these names.

    It is ``"unknown"`` if none is installed.
    """
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    # An unknown version must not cost a finished run its report.
    return "unknown"


def openssl_version() -> str:
    """Return the name and version of the library that encrypts, as ``"OpenSSL 3.5.4"``."""
    # Commands that do not encrypt start faster without this import.
    from cryptography.hazmat.backends.openssl import backend

    return " ".join(backend.openssl_version_text().split()[:2])


def stated_software(*more: str) -> str:
    """Return the versions that a client states to a server, in at most 64 characters."""
    text = " ".join((f"flower-kmeans {__version__}", openssl_version(), *more))
    return re.sub(r"[^A-Za-z0-9 ._+-]", "", text)[:64]
