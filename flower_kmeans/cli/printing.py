"""Words and lines that several commands print, and logs that commands hide."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    if n == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{n:,} {noun.removesuffix('y')}ies"
    return f"{n:,} {noun}s"


def warn_of_bounds() -> None:
    """Print on stderr that bounds were read off the records."""
    words = (
        "WARNING: the bounds were read off the records. They are exact facts about single records, "
        "so a run with them is NOT private, whatever epsilon says."
    )
    # On stderr a redirected output does not hide it.
    Console(stderr=True).print(Text(words, style="bold red"), soft_wrap=True)


@contextmanager
def quiet_logs(*, verbose: bool = False, also: Sequence[str] = ()) -> Iterator[None]:
    """Hide the logs of Flower and Ray, except errors, while a command runs.

    Clients' lines about their records are hidden, too. The command prints them for all
    clients together. ``also`` names further logs.
    """
    if verbose:
        yield
        return
    names = ("flwr", "flower_kmeans.data", *also)
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Ray warns of a change of a default that we cannot set.
            warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
