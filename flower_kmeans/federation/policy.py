"""What a client agrees to answer: checked before anything is computed or sent."""

import os
import stat
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flower_kmeans.domain import Ball, Box, Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.federation.document import NONE, TRUSTS, RunDocument
from flower_kmeans.secagg.keys import KEY_BYTES

_TYPES: dict[str, tuple[Any, str]] = {
    "trusts": (list | tuple, "a tuple of str"),
    "max_epsilon": (int | float, "a number"),
    "max_delta": (int | float, "a number"),
    "max_total_epsilon": (int | float, "a number"),
    "max_total_delta": (int | float, "a number"),
    "min_clients": (int, "an integer"),
    "max_rounds": (int, "an integer"),
    "algorithms": (list | tuple | None, "a tuple of str or None"),
    "domain": (Box | Ball | None, "a Box, a Ball or None"),
    "group_key_file": (str | os.PathLike | None, "a path or None"),
    "state_dir": (str | os.PathLike | None, "a path or None"),
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
    state_dir : path, optional
        The node's own directory for its ledger, mode 0700; one per node and data set. Lives and
        charges lie there, in a file. Without it private work is refused.
    max_total_epsilon, max_total_delta : float
        Largest accepted guarantee of all runs together, ever: everything that the ledger charged
        must meet this epsilon at this delta, as one composition. The default delta is that of one
        run: the composition is computed as a whole, so deltas of runs are not added up.
    in_memory : bool (default: False)
        Accept private runs although no ledger survives this process. Only for simulations, where
        no real client is at risk: without a ledger a restarted client cannot know what it already
        answered, so by default private work is refused. Of no effect with a ``state_dir``.
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
    state_dir: str | os.PathLike[str] | None = None
    max_total_epsilon: float = 10.0
    max_total_delta: float = 1e-6

    def __post_init__(self) -> None:
        for name, (kind, expected) in _TYPES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ConfigurationTypeError(
                    f"Expected {name} as {expected}. Got {type(value).__name__} instead."
                )
        if not isinstance(self.in_memory, bool):
            raise ConfigurationTypeError(
                f"Expected in_memory as a bool. Got {type(self.in_memory).__name__} instead."
            )
        for name in ("trusts", "algorithms"):
            if not all(isinstance(item, str) for item in getattr(self, name) or ()):
                raise ConfigurationTypeError(f"Expected {name} as a tuple of str.")
        unknown = sorted(set(self.trusts) - set(TRUSTS))
        if unknown:
            raise ConfigurationError(f"Expected trusts from {TRUSTS}. Got {unknown} instead.")
        for name in ("max_epsilon", "max_total_epsilon"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"Expected {name} > 0. Got {getattr(self, name)} instead.")
        for name in ("max_delta", "max_total_delta"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigurationError(
                    f"Expected {name} in [0, 1). Got {getattr(self, name)} instead."
                )
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
            max_total_epsilon=float("inf"),
            max_total_delta=1.0 - 2.0**-53,
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "ClientPolicy":
        """Read a policy from a TOML file of the operator's.

        Its keys are the parameters of this class; what it leaves out keeps its strict default.
        ``domain`` is a table with ``lower``, ``upper`` and perhaps ``scale``, or with ``radius``
        and ``center``. Relative paths are taken from the file's own directory.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, may be written by others than its owner, is not TOML, has a
            key that is not known, or a value that is out of range.
        ConfigurationTypeError
            If a value has the wrong type.
        """
        path = Path(path)
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"The policy file {path} cannot be read: {error.strerror}."
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"The policy file {path} is not TOML: {error}.") from None
        if mode & 0o022:
            raise ConfigurationError(
                f"Expected the policy file {path} to be writable by its owner alone. "
                f"Got mode {mode:04o} instead."
            )
        known = {field.name for field in fields(cls)}
        if not set(values) <= known:
            raise ConfigurationError(
                f"Expected keys of ClientPolicy in the policy file {path}. "
                f"Got {sorted(set(values) - known)} instead."
            )
        for name in ("group_key_file", "state_dir"):
            if isinstance(values.get(name), str):
                values[name] = str(path.resolve().parent / values[name])
        for name in ("trusts", "algorithms"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        if "domain" in values:
            values["domain"] = _domain_of(values["domain"])
        return cls(**values)

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

    @property
    def allows_private_work(self) -> bool:
        """Whether releases are recorded, or the operator said that they need not be."""
        return self.state_dir is not None or self.in_memory

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
        if len(content) != KEY_BYTES:
            raise ConfigurationError(
                f"Expected group_key_file {path} of {KEY_BYTES} bytes. Got {len(content)} instead."
            )
        return content


def tightest(operator: ClientPolicy, app: ClientPolicy) -> ClientPolicy:
    """Return the policy that accepts only what both accept.

    The paths are the operator's. An app may repeat them, or leave them out, but not name others:
    another ledger would be another account, and another key file admits other runs.

    Parameters
    ----------
    operator : ClientPolicy
        Of the node.
    app : ClientPolicy
        Of the code that runs on it.

    Raises
    ------
    ConfigurationError
        If the app names another path than the operator, or both pin different bounds.
    """
    for name in ("group_key_file", "state_dir"):
        theirs, ours = getattr(app, name), getattr(operator, name)
        if theirs is not None and (ours is None or not _same_path(theirs, ours)):
            raise ConfigurationError(
                f"Expected {name} of the app as in the operator's policy file, or None. "
                "Got another path instead."
            )
    if None not in (operator.domain, app.domain) and operator.domain != app.domain:
        raise ConfigurationError(
            "Expected domain of the app as in the operator's policy file, or None. "
            "Got other bounds instead."
        )
    algorithms = operator.algorithms if app.algorithms is None else app.algorithms
    if operator.algorithms is not None:
        algorithms = tuple(name for name in operator.algorithms if name in (algorithms or ()))
    return replace(
        operator,
        trusts=tuple(trust for trust in operator.trusts if trust in app.trusts),
        max_epsilon=min(operator.max_epsilon, app.max_epsilon),
        max_delta=min(operator.max_delta, app.max_delta),
        min_clients=max(operator.min_clients, app.min_clients),
        max_rounds=min(operator.max_rounds, app.max_rounds),
        algorithms=algorithms,
        domain=app.domain if operator.domain is None else operator.domain,
        in_memory=operator.in_memory and app.in_memory,
        max_total_epsilon=min(operator.max_total_epsilon, app.max_total_epsilon),
        max_total_delta=min(operator.max_total_delta, app.max_total_delta),
    )


def _same_path(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _domain_of(values: Any) -> Domain:
    if isinstance(values, dict):
        try:
            if {"lower", "upper"} <= set(values) <= {"lower", "upper", "scale"}:
                return Box(**values)
            if set(values) == {"radius", "center"}:
                return Ball(**values)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"The domain of a policy file is unusable: {error}") from None
    raise ConfigurationError(
        "Expected domain in a policy file as a table of lower, upper and perhaps scale, or of "
        "radius and center. Got something else instead."
    )
