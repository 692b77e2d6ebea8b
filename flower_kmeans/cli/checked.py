"""The part that a kind of run adds to ``flower-kmeans check``."""

from collections.abc import Callable
from dataclasses import dataclass

from flower_kmeans.protocol.policy import ClientPolicy


@dataclass(frozen=True)
class CheckPart:
    """A finding on the needs of a kind of run.

    ``look(policy)`` returns the words for an operator, or raises a `KMeansError`, whose
    words ``hint`` follows.
    """

    look: Callable[[ClientPolicy], str]
    hint: str
