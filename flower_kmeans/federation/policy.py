"""What a client agrees to answer: checked before anything is computed or sent."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from flower_kmeans.domain import (
    Ball,
    Box,
    Domain,
    check_names,
    difference,
    domain_from_config,
)
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, KMeansError
from flower_kmeans.federation.document import (
    MAX_ATTEMPTS,
    NONE,
    OPENINGS,
    TRUSTS,
    RunDocument,
)
from flower_kmeans.federation.policy_file import read_key, read_values
from flower_kmeans.federation.roster import Identity, read_identity
from flower_kmeans.privacy.budget import Unit

_TYPES: dict[str, tuple[Any, str]] = {
    "trusts": (list | tuple, "a tuple of str"),
    "max_epsilon": (int | float, "a number"),
    "max_delta": (int | float, "a number"),
    "max_total_epsilon": (int | float, "a number"),
    "max_total_delta": (int | float, "a number"),
    "min_clients": (int, "an integer"),
    "max_rounds": (int, "an integer"),
    "max_attempts": (int, "an integer"),
    "colluders": (int, "an integer"),
    "algorithms": (list | tuple | None, "a tuple of str or None"),
    "openings": (list | tuple, "a tuple of str"),
    "domain": (Box | Ball | None, "a Box, a Ball or None"),
    "units": (list | tuple, "a tuple of str"),
    "group_key_file": (str | os.PathLike | None, "a path or None"),
    "roster_file": (str | os.PathLike | None, "a path or None"),
    "member_key_file": (str | os.PathLike | None, "a path or None"),
    "state_dir": (str | os.PathLike | None, "a path or None"),
}
UNITS: tuple[str, ...] = get_args(Unit)
_PATHS = ("group_key_file", "roster_file", "member_key_file", "state_dir")
_SHOWN = 200  # characters of a document's value in a client's log


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
        Largest accepted guarantee of one run, at worst: under distributed noise without a roster,
        every attempt at a round may end in a separate sum, so epsilon is that of the plan as
        often as a round may be asked for.
    min_clients : int
        Smallest accepted number of clients behind a sum.
    max_rounds : int
        Largest accepted number of rounds.
    algorithms : tuple of str, optional
        Accepted algorithms by name; ``None`` accepts those of this library.
    openings : tuple of str
        Accepted ways for the server to open sums under distributed noise. ``"simple"``, which
        lets single clients open them, withstands a passive server only.
    domain : Box or Ball, optional
        Pinned public bounds: a run with other bounds is refused. Names of its columns, if it has
        them, are pinned as well.
    columns : tuple of str, optional
        Pinned names of the records' columns, in order: a run whose domain names others, or none, is
        refused. Where the records that are loaded name their columns, these must be the same.
    units : tuple of str
        Accepted units of privacy: what the (epsilon, delta) of a private run protects, "record" or
        "client".
    group_key_file : path, optional
        A file of 32 bytes that all clients share and the server does not have. With it, runs with
        ``keys="file"`` are accepted.
    roster_file, member_key_file : path, optional
        The members' public keys in the order of their places, the same file at every member, and
        this client's own secret key (``flower-kmeans keygen --members``). With them, runs with
        ``keys="roster"`` are accepted. Relayed keys are accepted only if no file names any key.
    max_attempts : int
        Largest accepted number of attempts at a round.
    colluders : int
        Smallest accepted number of clients that may pool what they know of the noise, where clients
        add it: the others' shares alone make the planned noise.
    state_dir : path, optional
        The node's own directory for its ledger, mode 0700; one per node and data set. Lives and
        charges lie there, in a file. Without it private work is refused.
    max_total_epsilon, max_total_delta : float
        Largest accepted guarantee of all runs together, ever: everything that the ledger charged
        or reserved must meet this epsilon at this delta, also if runs were chosen after earlier
        results. The default delta is that of one run: deltas of runs are not added up. With a total
        delta of 0 all noise must be Laplace, and pure epsilons are added up.
    in_memory : bool, default: False
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
    roster_file: str | os.PathLike[str] | None = None
    member_key_file: str | os.PathLike[str] | None = None
    in_memory: bool = False
    state_dir: str | os.PathLike[str] | None = None
    max_total_epsilon: float = 10.0
    max_total_delta: float = 1e-6
    columns: tuple[str, ...] | None = None
    units: tuple[str, ...] = UNITS
    openings: tuple[str, ...] = ("deferred", "immediate")
    max_attempts: int = MAX_ATTEMPTS
    colluders: int = 1

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
        for name in ("trusts", "algorithms", "units", "openings"):
            if not all(isinstance(item, str) for item in getattr(self, name) or ()):
                raise ConfigurationTypeError(f"Expected {name} as a tuple of str.")
        for name, known in (("trusts", TRUSTS), ("units", UNITS), ("openings", OPENINGS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise ConfigurationError(f"Expected {name} from {known}. Got {unknown} instead.")
        object.__setattr__(self, "columns", self._pinned_columns())
        for name in ("max_epsilon", "max_total_epsilon"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"Expected {name} > 0. Got {getattr(self, name)} instead.")
        for name in ("max_delta", "max_total_delta"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigurationError(
                    f"Expected {name} in [0, 1). Got {getattr(self, name)} instead."
                )
        if (self.roster_file is None) != (self.member_key_file is None):
            raise ConfigurationError(
                "Expected roster_file and member_key_file together, or neither. Got one of them."
            )
        for name in ("min_clients", "max_rounds", "max_attempts", "colluders"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"Expected {name} >= 1. Got {getattr(self, name)} instead."
                )

    def _pinned_columns(self) -> tuple[str, ...] | None:
        """Return the names that `columns` or `domain` give, which may not contradict each other."""
        columns, domain = check_names(self.columns), self.domain
        if domain is None:
            return columns
        if columns is not None and len(columns) != domain.n_features:
            raise ConfigurationError(
                f"Expected columns to name the {domain.n_features} columns of domain. "
                f"Got {len(columns)} names instead."
            )
        if None not in (columns, domain.columns) and columns != domain.columns:
            raise ConfigurationError("Expected columns as in domain, or None. Got other names.")
        return columns or domain.columns

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
            openings=OPENINGS,
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
        known = [field.name for field in fields(cls)]
        return cls(**read_values(path, known, _PATHS))

    def accepts(self, document: RunDocument) -> bool:
        """Return whether a run stays within the limits. Reads nothing but the document."""
        return self.objection(document) is None

    def accepts_guarantee(self, epsilon: float | None, delta: float | None) -> bool:
        """Return whether the (epsilon, delta) of a run, recomputed by the client, is accepted."""
        return self.objection_to_guarantee(epsilon, delta) is None

    def objection(self, document: RunDocument) -> str | None:
        """Return the first limit that a run exceeds, in a sentence, or ``None``.

        Reads nothing but the document, whose values are public; for the client's own log only.
        """
        return next(self._objections(document), None)

    def _objections(self, document: RunDocument) -> Iterator[str]:
        name, keys = document.algorithm.get("name"), document.keys
        if document.trust not in self.trusts:
            yield _expected(f"trust in trusts={list(self.trusts)}", document.trust)
        if self.algorithms is not None and name not in self.algorithms:
            yield _expected(f"algorithm in algorithms={list(self.algorithms)}", name)
        if document.rounds > self.max_rounds:
            yield _expected(f"rounds <= max_rounds={self.max_rounds}", document.rounds)
        if document.min_clients < self.min_clients:
            yield _expected(f"min_clients >= {self.min_clients}", document.min_clients)
        if document.max_attempts > self.max_attempts:
            yield _expected(f"max_attempts <= {self.max_attempts}", document.max_attempts)
        if document.trust == "distributed-noise" and document.colluders < self.colluders:
            yield _expected(f"colluders >= {self.colluders}", document.colluders)
        yield from self._objections_to_domain(document.domain)
        unit = _unit_of(document)
        if document.trust != "plain" and unit not in self.units:
            yield _expected(f"unit in units={list(self.units)}", unit)
        if document.opening not in (NONE, *self.openings):
            yield _expected(f"opening in openings={list(self.openings)}", document.opening)
        if document.is_masked and keys not in self.accepted_keys:
            yield _expected(f"keys in {list(self.accepted_keys)}", keys)

    def _objections_to_domain(self, config: Mapping[str, Any]) -> Iterator[str]:
        if self.domain is None and self.columns is None:
            return
        try:
            domain = domain_from_config(config)
        except KMeansError:
            yield "Expected domain as a box or a ball. Got something else instead."
            return
        if self.domain is not None:
            found = difference(self.domain, domain)
            if found is not None:
                name, pinned, got = found
                yield _expected(f"domain as it is pinned, with {name} {pinned}", got)
        if self.columns is not None and self.columns != domain.columns:
            yield _expected(f"columns={list(self.columns)} in domain", domain.columns)

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Where the group key of a masked run may come from."""
        own = {"file": self.group_key_file, "roster": self.roster_file}
        return tuple(name for name, path in own.items() if path is not None) or ("relayed",)

    def objection_to_guarantee(
        self, epsilon: float | None, delta: float | None, n_sums: int = 1
    ) -> str | None:
        """Return why the (epsilon, delta) of a run is not accepted, in a sentence, or ``None``.

        Parameters
        ----------
        epsilon, delta : float or None
            At worst, as the client recomputed them; ``None`` for a run without privacy.
        n_sums : int, default: 1
            How many sums of a round they cover, for the sentence.
        """
        if epsilon is None or delta is None:
            if "plain" in self.trusts:
                return None
            return _expected("a private run, for trusts lacks 'plain'", "epsilon=None")
        # Not turned around: NaN is no number that either limit admits.
        if not epsilon <= self.max_epsilon:
            each = "" if n_sums == 1 else f" for {n_sums} sums of each round"
            return _expected(f"epsilon <= max_epsilon={self.max_epsilon:g}{each}", epsilon)
        if not delta <= self.max_delta:
            return _expected(f"delta <= max_delta={self.max_delta:g}", delta)
        return None

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
        return read_key(self.group_key_file, "group_key_file")

    def read_identity(self) -> Identity | None:
        """Return the client's place on its roster and its own key, or ``None`` without a roster.

        Raises
        ------
        ConfigurationError
            If one of the two files cannot be used, or the key is not on the roster.
        """
        if self.roster_file is None or self.member_key_file is None:
            return None
        return read_identity(self.roster_file, self.member_key_file)


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
        If the app names another path than the operator, or both pin different bounds or columns.
    """
    for name in _PATHS:
        theirs, ours = getattr(app, name), getattr(operator, name)
        if theirs is not None and (ours is None or not _same_path(theirs, ours)):
            raise ConfigurationError(
                f"Expected {name} of the app as in the operator's policy file, or None. "
                "Got another path instead."
            )
    domain, columns = operator.domain or app.domain, operator.columns or app.columns
    if domain and app.domain and difference(domain, app.domain):
        raise ConfigurationError(
            "Expected domain of the app as in the operator's policy file, or None. "
            "Got other bounds instead."
        )
    if app.columns not in (None, columns):
        raise ConfigurationError(
            "Expected columns of the app as in the operator's policy file, or None. "
            "Got other names instead."
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
        max_attempts=min(operator.max_attempts, app.max_attempts),
        colluders=max(operator.colluders, app.colluders),
        algorithms=algorithms,
        domain=domain,
        columns=columns,
        units=tuple(unit for unit in operator.units if unit in app.units),
        in_memory=operator.in_memory and app.in_memory,
        max_total_epsilon=min(operator.max_total_epsilon, app.max_total_epsilon),
        max_total_delta=min(operator.max_total_delta, app.max_total_delta),
        openings=tuple(opening for opening in operator.openings if opening in app.openings),
    )


def _same_path(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _unit_of(document: RunDocument) -> Any:
    budget = document.privacy.get("budget")
    return budget.get("unit") if isinstance(budget, Mapping) else None


def _expected(what: str, got: object) -> str:
    # What a server sent is shown in one line, and not all of it.
    shown = repr(got)
    return f"Expected {what}. Got {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''} instead."
