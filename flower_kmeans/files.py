"""Files that the library writes: who may read them, and names from data files in them."""

import os
from pathlib import Path
from typing import BinaryIO

from flower_kmeans.errors import ConfigurationError

_FORMULA = ("=", "+", "-", "@")


def open_private(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a new binary file, its owner's alone to read and write, in place of what was there.

    A `ConfigurationError` if that cannot be, as where a directory has the name.
    """
    try:
        # A new file, since an old one keeps its mode, and a link would be followed.
        Path(path).unlink(missing_ok=True)
        # "x" fails if somebody puts a file there in between; the mode holds from the first moment.
        return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"Expected a file that can be written. Got {path}: {error.strerror}."
        ) from None


def printable(text: str) -> str:
    r"""Return text in which all that cannot be seen is escaped, as ``\x1b``.

    Names of columns come from data files. A terminal would obey control characters in them, and
    others change the order of what is read.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def csv_name(text: str) -> str:
    """Return a name for a csv file: `printable`, and after ``'`` if it could be a formula.

    Spreadsheets compute cells that begin with =, +, - or @.
    """
    shown = printable(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def prepare_directory(output: Path) -> None:
    """Create the directory for results, and require that it can be written to."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another command may have removed it
    except OSError as error:
        raise ConfigurationError(
            f"Expected output to be a directory that can be written to. "
            f"Got {output} instead: {error.strerror}."
        ) from None
