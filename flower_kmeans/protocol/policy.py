"""What a client agrees to answer: checked before anything is computed or sent."""

import os
from collections.abc import Callable, Iterator, Mapping
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
from flower_kmeans.privacy.budget import Unit
from flower_kmeans.protocol.policy_file import read_values
from flower_kmeans.protocol.roster import Identity, read_identity
from flower_kmeans.protocol.run import MAX_ATTEMPTS, Run
from flower_kmeans.protocol.trust import (
    CLIENTS_ONLY,
    DISTRIBUTED_NOISE,
    OBLIVIOUS_SERVER,
    PLAIN,
    TRUST_MODELS,
)

UNITS: tuple[str, ...] = get_args(Unit)
_PATHS = ("roster_file", "member_key_file", "state_dir")
_EPSILONS = ("max_epsilon", "max_total_epsilon")
_DELTAS = ("max_delta", "max_total_delta")
_COUNTS = ("min_clients", "max_rounds", "max_attempts", "max_colluders")
_FLAGS = ("in_memory", "copy_records")
_TYPES: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (("trusts", "units"), list | tuple, "a tuple of str"),
    (("algorithms",), list | tuple | None, "a tuple of str or None"),
    (_EPSILONS + _DELTAS, int | float, "a number"),
    (_COUNTS, int, "an integer"),
    (("domain",), Box | Ball | None, "a Box, a Ball or None"),
    (_PATHS, str | os.PathLike | None, "a path or None"),
    (_FLAGS, bool, "a bool"),
)
_RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (_EPSILONS, lambda value: value > 0, "> 0"),
    (_DELTAS, lambda value: 0 <= value < 1, "in [0, 1)"),
    (_COUNTS, lambda value: value >= 1, ">= 1"),
)
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
        Largest accepted guarantee of one run. One sum of a round opens, whatever the number of
        attempts, so it is that of the plan.
    min_clients : int
        Smallest accepted number of clients behind a sum.
    max_rounds : int
        Largest accepted number of rounds.
    algorithms : tuple of str, optional
        Accepted algorithms by name; ``None`` accepts those of this library.
    domain : Box or Ball, optional
        Pinned public bounds: a run with other bounds is refused. Names of its columns, if it has
        them, are pinned as well.
    roster_file, member_key_file : path, optional
        The clients' public keys in the order of their slots, the same file at every client, and
        this client's own secret key (``flower-kmeans keygen``). With them, runs with
        ``keys="roster"`` over the same roster are accepted. Without them, relayed keys are.
    in_memory : bool, default: False
        Accept private runs although no ledger survives this process. Only for simulations, where
        no real client is at risk: without a ledger a restarted client cannot know what it already
        answered, so by default private work is refused. Of no effect with a ``state_dir``.
    state_dir : path, optional
        The node's own directory for its ledger, mode 0700; one per node and data set. Client
        sessions and charges lie there, in a file. Without it private work is refused.
    max_total_epsilon, max_total_delta : float
        Largest accepted guarantee of all runs together, ever: everything that the ledger charged
        or reserved must meet this epsilon at this delta, also if runs were chosen after earlier
        results. The default delta is that of one run: deltas of runs are not added up. With a total
        delta of 0 all noise must be Laplace, and pure epsilons are added up.
    columns : tuple of str, optional
        Pinned names of the records' columns, in order: a run whose domain names others, or none, is
        refused. Where the records that are loaded name their columns, these must be the same.
    units : tuple of str
        Accepted units of privacy: what the (epsilon, delta) of a private run protects, "record" or
        "client".
    max_attempts : int
        Largest accepted number of attempts at a round.
    max_colluders : int
        Smallest accepted value of the run's ``max_colluders``, the number of clients that may pool
        what they know with each other and the server. Of no effect where nothing is protected
        among clients.
    copy_records : bool, default: True
        Where a client commits to its records, answer the whole run from a private copy that lies
        with the client's session and is removed with it. If the operator forbids the copy, the
        server can see up to three times in a run that records changed (docs/threat-model.md).
    """

    trusts: tuple[str, ...] = (OBLIVIOUS_SERVER.name, DISTRIBUTED_NOISE.name, CLIENTS_ONLY.name)
    max_epsilon: float = 1.0
    max_delta: float = 1e-6
    min_clients: int = 3
    max_rounds: int = 100
    algorithms: tuple[str, ...] | None = None
    domain: Domain | None = None
    roster_file: str | os.PathLike[str] | None = None
    member_key_file: str | os.PathLike[str] | None = None
    in_memory: bool = False
    state_dir: str | os.PathLike[str] | None = None
    max_total_epsilon: float = 10.0
    max_total_delta: float = 1e-6
    columns: tuple[str, ...] | None = None
    units: tuple[str, ...] = UNITS
    max_attempts: int = MAX_ATTEMPTS
    max_colluders: int = 1
    copy_records: bool = True

    def __post_init__(self) -> None:
        for names, kind, expected in _TYPES:
            for name in names:
                value = getattr(self, name)
                if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
                    raise ConfigurationTypeError(
                        f"Expected {name} as {expected}. Got {type(value).__name__} instead."
                    )
        for name in ("trusts", "units", "algorithms"):
            if not all(isinstance(item, str) for item in getattr(self, name) or ()):
                raise ConfigurationTypeError(f"Expected {name} as a tuple of str.")
        for name, known in (("trusts", tuple(TRUST_MODELS)), ("units", UNITS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise ConfigurationError(f"Expected {name} from {known}. Got {unknown} instead.")
        object.__setattr__(self, "columns", self._pinned_columns())
        for names, is_in, text in _RANGES:
            for name in names:
                if not is_in(getattr(self, name)):
                    raise ConfigurationError(
                        f"Expected {name} {text}. Got {getattr(self, name)} instead."
                    )
        if (self.roster_file is None) != (self.member_key_file is None):
            raise ConfigurationError(
                "Expected roster_file and member_key_file together, or neither. Got one of them."
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
            trusts=tuple(TRUST_MODELS),
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
        """Read a policy from a TOML file of the operator.

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

    def accepts(self, run: Run) -> bool:
        """Return whether a run stays within the limits."""
        return self.objection(run) is None

    def objection(self, run: Run) -> str | None:
        """Return the first limit that a run exceeds, in a sentence, or ``None``.

        Reads nothing but the document, whose values are public, and the guarantee of the plan that
        it announces; for the client's own log only. The client itself compares the roster's digest,
        and refuses private work without a ledger (`allows_private_work`) by another code.
        """
        return next(self._objections(run), None)

    def _objections(self, run: Run) -> Iterator[str]:
        document, trust = run.document, run.trust
        name = document.body.algorithm.get("name")
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
        if trust.is_protected and document.max_colluders < self.max_colluders:
            yield _expected(f"max_colluders >= {self.max_colluders}", document.max_colluders)
        yield from self._objections_to_domain(document.body.domain)
        yield from self._objections_to_guarantee(run)
        if trust.is_protected and document.keys not in self.accepted_keys:
            yield _expected(f"keys in {list(self.accepted_keys)}", document.keys)

    def _objections_to_guarantee(self, run: Run) -> Iterator[str]:
        epsilon, delta = run.guarantee
        if epsilon is None or delta is None:
            if PLAIN.name not in self.trusts:
                yield _expected("a private run, for trusts lacks 'plain'", "epsilon=None")
            return
        # Not turned around: neither limit admits NaN.
        if not epsilon <= self.max_epsilon:
            yield _expected(f"epsilon <= max_epsilon={self.max_epsilon:g}", epsilon)
        if not delta <= self.max_delta:
            yield _expected(f"delta <= max_delta={self.max_delta:g}", delta)
        unit = run.plan.budget.unit
        if unit not in self.units:
            yield _expected(f"unit in units={list(self.units)}", unit)

    def _objections_to_domain(self, config: Mapping[str, Any]) -> Iterator[str]:
        if self.domain is None and self.columns is None:
            return
        try:
            domain = domain_from_config(config)
        except KMeansError:
            yield "Expected domain as a box or a ball. Got something else instead."
            return
        found = None if self.domain is None else difference(self.domain, domain)
        if found is not None:
            name, pinned, got = found
            yield _expected(f"domain as it is pinned, with {name} {pinned}", got)
        if self.columns is not None and self.columns != domain.columns:
            yield _expected(f"columns={list(self.columns)} in domain", domain.columns)

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Where the clients' keys of a protected run may come from."""
        return ("relayed",) if self.roster_file is None else ("roster",)

    @property
    def allows_private_work(self) -> bool:
        """Whether releases are recorded, or the operator said that they need not be."""
        return self.state_dir is not None or self.in_memory

    def read_identity(self) -> Identity | None:
        """Return the client's slot on its roster and its own key, or ``None`` without a roster.

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

    The paths are those of the node's operator. An app may repeat them, or leave them out, but not
    name others: another ledger would be another account, and another key file admits other runs.

    Raises
    ------
    ConfigurationError
        If the app names another path than the operator, or both pin different bounds or columns.
    """
    for name in _PATHS:
        theirs, ours = getattr(app, name), getattr(operator, name)
        if theirs is not None and (ours is None or not _is_same_path(theirs, ours)):
            raise _another(name, "another path")
    if operator.domain and app.domain and difference(operator.domain, app.domain):
        raise _another("domain", "other bounds")
    columns = operator.columns or app.columns
    if app.columns not in (None, columns):
        raise _another("columns", "other names")
    tightened: dict[str, Any] = {"domain": operator.domain or app.domain, "columns": columns}
    for name in (*_EPSILONS, *_DELTAS, "max_rounds", "max_attempts", *_FLAGS):
        tightened[name] = min(getattr(operator, name), getattr(app, name))
    for name in ("min_clients", "max_colluders"):
        tightened[name] = max(getattr(operator, name), getattr(app, name))
    for name in ("trusts", "units", "algorithms"):
        ours, theirs = getattr(operator, name), getattr(app, name)
        both = ours if theirs is None else theirs
        tightened[name] = both if ours is None else tuple(x for x in ours if x in both)
    return replace(operator, **tightened)


def _another(name: str, got: str) -> ConfigurationError:
    return ConfigurationError(
        f"Expected {name} of the app as in the operator's policy file, or None. Got {got} instead."
    )


def _is_same_path(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _expected(what: str, got: object) -> str:
    # What a server sent is shown in one line, and not all of it.
    shown = repr(got)
    return f"Expected {what}. Got {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''} instead."
