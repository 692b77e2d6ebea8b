"""Parts of simulations for kinds of runs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from flower_kmeans.imports import imported
from flower_kmeans.protocol.kinds import run_kind
from flower_kmeans.protocol.policy import ClientPolicy


@dataclass(frozen=True)
class SimulationPart:
    """The part of a simulation that a kind of run has in place of the usual one.

    A function cannot give the data of its clients, and Ray runs them only if the engine is
    named.

    Parameters
    ----------
    timeout : callable
        ``timeout(strategy)`` returns the seconds after which a round trip ends.
    checked : callable
        ``checked(strategy, partitions)`` returns the data of each client, or raises.
    placed : callable
        ``placed(policy, strategy, engine)`` is a context that yields the clients' policy,
        with the files that they need.
    """

    timeout: Callable[[Any], float]
    checked: Callable[[Any, Sequence[Any]], list[Any]]
    placed: Callable[[ClientPolicy, Any, str], AbstractContextManager[ClientPolicy]]


def simulation_part(kind: str) -> SimulationPart | None:
    """Return the part for a kind of run; ``None`` for the usual simulation."""
    path = run_kind(kind).simulation
    if path is None:
        return None
    part: SimulationPart = imported(path)
    return part
