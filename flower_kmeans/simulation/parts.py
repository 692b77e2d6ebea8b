"""Parts of simulations for single kinds of runs."""

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

    Its clients cannot be given by a function, and Ray runs them only where it is named.

    Parameters
    ----------
    timeout : callable
        ``timeout(strategy)`` returns the seconds after which a round trip ends.
    checked : callable
        ``checked(strategy, partitions)`` returns what each client holds, or raises.
    placed : callable
        ``placed(policy, strategy, engine)`` is a context in which the clients have the
        policy that it yields, with the files that they need.
    """

    timeout: Callable[[Any], float]
    checked: Callable[[Any, Sequence[Any]], list[Any]]
    placed: Callable[[ClientPolicy, Any, str], AbstractContextManager[ClientPolicy]]


def simulation_part(kind: str) -> SimulationPart | None:
    """Return the part for a kind of run; ``None`` where it is simulated as most are."""
    path = run_kind(kind).simulation
    if path is None:
        return None
    part: SimulationPart = imported(path)
    return part
