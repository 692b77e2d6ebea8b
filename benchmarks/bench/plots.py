"""Figures as files."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def save(figure: "Figure", directory: Path, name: str) -> list[str]:
    """Write a figure in all `FORMATS`, and return the files' names."""
    from matplotlib import rc_context

    written = [f"{name}.{form}" for form in FORMATS]
    for file in written:
        with rc_context({"svg.hashsalt": name}):  # the same figure is the same file
            metadata = {"Date": None} if file.endswith("svg") else {}
            figure.savefig(directory / file, dpi=90, metadata=metadata)
    return written
