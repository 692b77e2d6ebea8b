"""What the commands share: where they print, and how they report an error."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from flower_kmeans.errors import KMeansError
from flower_kmeans.files import printable


def plain_console() -> Console:
    """Return the console of a command's results."""
    return Console(highlight=False)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error of ours into its sentence and exit code 1."""
    try:
        yield
    except KMeansError as error:
        Console(stderr=True).print(Text(f"Error: {printable(str(error))}"), soft_wrap=True)
        raise typer.Exit(1) from None
