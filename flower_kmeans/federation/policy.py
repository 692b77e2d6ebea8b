"""What a client agrees to answer: checked before anything is computed or sent."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_kmeans.domain import Ball, Box, Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.federation.document import NONE, TRUSTS, RunDocument

_KEY_BYTES = 32
_TYPES: dict[str, tuple[Any, str]] = {
    "trusts": (list | tuple, "a tuple of str"),
    "max_epsilon": (int | float, "a number"),
    "max_delta": (int | float, "a number"),
    "min_clients": (int, "an integer"),
    "max_rounds": (int, "an integer"),
    "algorithms": (list | tuple | None, "a tuple of str or None"),
    "domain": (Box | Ball | None, "a Box, a Ball or None"),
    "group_key_file": (str | os.PathLike | None, "a path or None"),
}


@dataclass(frozen=True)
class ClientPolicy:
    """Limits that the operator of a client sets on the runs it takes part in.

    A run that exceeds any of them is refused with the code POLICY (or LEDGER) and nothing else:
    no statistic is computed and no record is read. The defaults are strict.

    Parameters
    ----------
    trusts : tuple of str
        Accepted trust models.
    max_epsilon, max_delta : float
        Largest accepted guarantee of one run.
    min_clients : int
        Smallest accepted number of clients behind a sum.
    max_rounds : int
        Largest accepted number of rounds.
    algorithms : tuple of str, optional
        Accepted algorithms by name; ``None`` accepts those of this library.
    domain : Box or Ball, optional
        Pinned public bounds: a run with other bounds is refused.
    group_key_file : path, optional
        A file of 32 bytes that all clients share and the server does not have. With it, only runs
        with ``keys="file"`` are accepted; without it, only relayed keys are.
    in_memory : bool (default: False)
        Accept private runs although no ledger survives this process. Only for simulations, where
        no real client is at risk: without a ledger a restarted client cannot know what it already
        answered, so by default private work is refused.
    """

    trusts: tuple[str, ...] = ("oblivious-server", "distributed-noise")
    max_epsilon: float = 1.0
    max_delta: float = 1e-6
    min_clients: int = 3
    max_rounds: int = 100
    algorithms: tuple[str, ...] | None = None
    domain: Domain | None = None
    group_key_file: str | os.PathLike[str] | None = None
    in_memory: bool = False

    def __post_init__(self) -> None:
        for name, (kind, expected) in _TYPES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ConfigurationTypeError(
                    f"Expected {name} as {expected}. Got {type(value).__name__} instead."
                )
        unknown = sorted(set(self.trusts) - set(TRUSTS))
        if unknown:
            raise ConfigurationError(f"Expected trusts from {TRUSTS}. Got {unknown} instead.")
        if not self.max_epsilon > 0:
            raise ConfigurationError(f"Expected max_epsilon > 0. Got {self.max_epsilon} instead.")
        if not 0 <= self.max_delta < 1:
            raise ConfigurationError(f"Expected max_delta in [0, 1). Got {self.max_delta} instead.")
        if self.min_clients < 1 or self.max_rounds < 1:
            raise ConfigurationError(
                "Expected min_clients >= 1 and max_rounds >= 1. "
                f"Got {self.min_clients} and {self.max_rounds} instead."
            )

    @classmethod
    def for_simulation(cls) -> "ClientPolicy":
        """Return the policy of simulated clients: they accept what the simulation asks for."""
        return cls(
            trusts=TRUSTS,
            max_epsilon=float("inf"),
            max_delta=1.0 - 2.0**-53,
            min_clients=1,
            max_rounds=10**6,
            in_memory=True,
        )

    def accepts(self, document: RunDocument) -> bool:
        """Return whether a run stays within the limits. Reads nothing but the document."""
        if document.trust not in self.trusts or document.rounds > self.max_rounds:
            return False
        if document.min_clients < self.min_clients:
            return False
        if document.opening not in (NONE, "simple"):
            return False  # quorum opening is not spoken by this version
        if self.algorithms is not None and document.algorithm.get("name") not in self.algorithms:
            return False
        if self.domain is not None and document.domain != self.domain.to_config():
            return False
        if not document.is_masked:
            return document.keys == NONE
        return document.keys == ("relayed" if self.group_key_file is None else "file")

    def accepts_guarantee(self, epsilon: float | None, delta: float | None) -> bool:
        """Return whether the (epsilon, delta) of a run, recomputed by the client, is accepted."""
        if epsilon is None or delta is None:
            return "plain" in self.trusts
        return epsilon <= self.max_epsilon and delta <= self.max_delta

    def read_group_key(self) -> bytes | None:
        """Return the content of the group key file, or ``None`` without one.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, has another length than 32 bytes, or is open to others.
        """
        if self.group_key_file is None:
            return None
        path = Path(self.group_key_file)
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"The group_key_file {path} cannot be read: {error.strerror}."
            ) from None
        if mode & 0o077:
            raise ConfigurationError(
                f"Expected group_key_file {path} with mode 0600. Got {mode:04o} instead."
            )
        if len(content) != _KEY_BYTES:
            raise ConfigurationError(
                f"Expected group_key_file {path} of {_KEY_BYTES} bytes. Got {len(content)} instead."
            )
        return content
