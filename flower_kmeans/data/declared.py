"""Domains that a file ``domain.toml`` declares: columns, a ball, or directions.

A file with ``[[columns]]`` is a `TableDomain`. A file with one table ``[ball]`` or
``[sphere]`` names columns of numbers, which such a domain compares together::

    [sphere]
    columns = ["x", "y", "z"]
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from flower_kmeans.data.domain import Ball, Domain, Sphere
from flower_kmeans.data.domain_file import (
    ROUND_KEYS,
    content_of,
    mistake_in_round,
    parsed,
)
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import ConfigurationError, KMeansError

DeclaredDomain = TableDomain | Ball | Sphere
"""A domain that a file declares, with names of its columns."""


def domain_from_toml(text: str | bytes, what: str = "text") -> DeclaredDomain:
    """Return the domain of a TOML text in UTF-8. Errors call the text ``what``.

    Raises
    ------
    ConfigurationError
        If the text is not TOML, has other keys or values, or a declaration contradicts
        itself.
    """
    values, decoded = parsed(text, what)
    found = [name for name in ROUND_KEYS if name in values]
    if not found:
        return TableDomain.from_toml(text, what)
    begin = f"Expected the {what} as a domain."
    wrong = mistake_in_round(values, decoded)
    if wrong is not None:
        raise ConfigurationError(f"{begin} {wrong}")
    (kind,) = found
    try:
        return _made(kind, values[kind])
    except KMeansError as error:
        raise ConfigurationError(f"{begin} {error}") from None


def domain_from_file(path: str | os.PathLike[str]) -> DeclaredDomain:
    """Return the domain of a file ``domain.toml``.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or as of `domain_from_toml`.
    """
    return domain_from_toml(content_of(path), f"domain file {path}")


def digest_of(domain: DeclaredDomain) -> str:
    """Return the SHA-256 of a domain's declarations in hexadecimal, the same at all parties."""
    if isinstance(domain, TableDomain):
        return domain.digest
    text = json.dumps(domain.to_config(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def described(domain: DeclaredDomain) -> list[str]:
    """Return the declarations of a domain, in words."""
    if isinstance(domain, TableDomain):
        return domain.describe()
    names = ", ".join(domain.columns or ())
    if isinstance(domain, Sphere):
        return [f"the direction of {names}: records are divided by their length"]
    center = ", ".join(f"{value:.6g}" for value in domain.center)
    return [f"{names} within a ball of radius {domain.radius:.6g} around ({center})"]


def columns_read(domain: Domain) -> list[str]:
    """Return the columns of a table that a domain is read from; none if it names none."""
    if isinstance(domain, TableDomain):
        return [column.name for column in domain.declared]
    return list(domain.columns or ())


def _made(kind: str, values: Mapping[str, Any]) -> Ball | Sphere:
    columns = values["columns"]
    if kind == "sphere":
        return Sphere(len(columns), columns)
    center = values.get("center", [0.0] * len(columns))
    if len(center) != len(columns):
        raise ConfigurationError(
            f"Expected center with a number for each of {len(columns)} columns. "
            f"Got {len(center)} instead."
        )
    return Ball(values["radius"], center, columns)
