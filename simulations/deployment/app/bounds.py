"""Public bounds of a run, from a file that all parties share or from its configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_kmeans import Box
from flower_kmeans.data.declared import DeclaredDomain, domain_from_file


def domain_of(config: Mapping[str, Any]) -> Box | DeclaredDomain:
    """Return the domain of the file that ``domain`` names, or the Box of ``bounds``."""
    if config["domain"]:
        return domain_from_file(Path(str(config["domain"])).expanduser())
    return read_box(str(config["bounds"]))


def read_box(text: str) -> Box:
    """Return the Box of ``LOW:HIGH,...`` or of ``NAME=LOW:HIGH,...``, one for every column."""
    named = [column.rpartition("=") for column in text.split(",")]
    pairs = [pair.split(":") for _, _, pair in named]
    columns = [name for name, _, _ in named] if "=" in text else None
    return Box(
        [float(low) for low, _ in pairs],
        [float(high) for _, high in pairs],
        columns=columns,
    )
