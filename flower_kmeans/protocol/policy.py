"""A client's policy: limits on runs, checked before anything is computed or sent."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple, get_args

from flower_kmeans.data.declared import domain_from_toml
from flower_kmeans.data.domain import (
    Ball,
    Box,
    Domain,
    Sphere,
    check_names,
    difference,
)
from flower_kmeans.data.domain_file import unknown_key
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, KMeansError
from flower_kmeans.files import read_file, read_toml
from flower_kmeans.privacy.budget import Unit
from flower_kmeans.protocol import trust
from flower_kmeans.protocol.roster import Identity, read_identity
from flower_kmeans.protocol.run import MAX_ATTEMPTS, Run

UNITS: tuple[str, ...] = get_args(Unit)
_STRICT = (trust.OBLIVIOUS_SERVER, trust.DISTRIBUTED_NOISE, trust.CLIENTS_ONLY)
DOMAIN_EXAMPLES = "docs/reference/domains.md has examples under 'In a policy'."
_SHOWN = 200  # most characters of a document's value in a client's log

Limits = Iterator[tuple[bool, str, object]]


@dataclass(frozen=True)
class ClientPolicy:
    """Limits that the operator of a client sets on the runs it takes part in.

    A client refuses a run that exceeds any limit, with the code POLICY (or LEDGER) and
    nothing else: it computes no statistic and reads no record. The defaults are strict.

    Parameters
    ----------
    trusts : tuple of str
        Accepted trust models.
    max_epsilon, max_delta : float
        Largest accepted epsilon and delta of one run, whatever the number of its attempts.
    min_clients : int
        Smallest accepted number of clients behind a sum.
    max_rounds, max_attempts : int
        Largest accepted numbers of rounds, and of attempts at a round.
    algorithms : tuple of str, optional
        Accepted algorithms by name; ``None`` accepts those of this library.
    domain : Box, Ball or Sphere, optional
        Pinned public bounds, with the names of the columns if the domain has them (a
        `TableDomain` does).
    roster_file, member_key_file : path, optional
        Paths of the roster and of this client's secret key (``flower-kmeans keygen``).
        The roster has the clients' public keys in the order of their slots, and is the
        same at every client. With both files, a run must use the same roster; without
        them, relayed keys.
    in_memory : bool, default: False
        Whether to accept private runs without a ``state_dir``. It is for simulations only:
        a restarted client cannot know what it already answered.
    state_dir : path, optional
        The node's own directory for its ledger, mode 0700, one per node and data set.
        Without it the client refuses private runs.
    max_total_epsilon, max_total_delta : float
        Largest accepted epsilon and delta of all runs together, ever, also if runs were
        chosen after earlier results: the ledger's charges and reservations must meet this
        epsilon at this delta. Deltas of runs are not added up. With a total delta of 0
        all noise must be Laplace, and pure epsilons are added up.
    columns : tuple of str, optional
        Pinned names of the columns, in order, in a run's domain and in records that
        name them.
    units : tuple of str
        Accepted units of privacy of a private run, of ``"record"``, ``"client"`` and
        ``"person"``. A client of persons with several records accepts ``("person",)``.
    max_colluders : int
        Smallest accepted number of colluders against which a run protects: clients that
        pool their knowledge with each other and the server. It has no effect in
        unprotected runs.
    max_clients_per_person : int
        Smallest accepted number of clients at which a run with ``unit="person"`` lets one
        person have records. Ids are never compared between clients, so it is an
        assumption: a person at more clients has less than the run's guarantee. The ledger
        charges a person twice this number for a run with ``unit="client"``: 2 at each
        client.
    copy_records : bool, default: True
        Whether the client answers the whole run from a private copy of its records, if it
        commits to them or reads them from a database. The copy is kept with the session
        and removed with it. Without a copy the server can see up to three times in a run
        that committed records changed (docs/threat-model.md), and runs on a database are
        refused.
    party : int, optional
        This client's slot in vertical runs. Without it, vertical runs with relayed keys
        are refused. ``domain`` and ``columns`` then pin only the columns of this slot.
    max_opened : int
        Largest accepted number of values that a vertical run opens: k (d + 1) in each
        round.
    must_hold_key : bool, default: False
        Whether to refuse vertical runs in which this client only encrypts. In such a run
        all other parties together could read its columns.
    workers : int, optional
        Number of processes that compute on encrypted columns. Default: all processors but
        one.
    work_dir : path, optional
        Directory of keys and encrypted columns during a run. Default: ``vertical`` in
        ``state_dir``.
    rows_key_file : path, optional
        The key file, mode 0600, with which all parties of vertical runs aligned their
        rows. Runs that compare rows (``check_ids``) then compare hashes of ids under this
        key. Either all parties or none must have the file.
    """

    trusts: tuple[str, ...] = tuple(model.name for model in _STRICT)
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
    max_clients_per_person: int = 1
    copy_records: bool = True
    party: int | None = None
    max_opened: int = 1_000
    must_hold_key: bool = False
    workers: int | None = None
    work_dir: str | os.PathLike[str] | None = None
    rows_key_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for rule in _RULES:
            for name in rule.names:
                value = getattr(self, name)
                rule.check(name, value)
                if isinstance(value, list):
                    object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "columns", self._pinned_columns())
        domain = self.domain
        if isinstance(domain, TableDomain) and domain.from_records:
            raise ConfigurationError(
                "Expected domain from public knowledge. Got one that was read off records. "
                f"{DOMAIN_EXAMPLES}"
            )
        # With only one file the client would use relayed keys without notice.
        if (self.roster_file is None) != (self.member_key_file is None):
            raise ConfigurationError(
                "Expected roster_file and member_key_file together, or neither. Got one of them."
            )

    def _pinned_columns(self) -> tuple[str, ...] | None:
        """Return the pinned names of the columns, from ``columns`` or from the domain."""
        columns = check_names(self.columns)
        domain = self.domain
        if domain is None:
            return columns
        columns = columns or domain.columns
        if not columns:
            return columns
        is_complete = len(columns) == domain.n_features
        if not is_complete or domain.columns not in (None, columns):
            raise ConfigurationError(
                f"Expected columns as the {domain.n_features} of domain, or None. Got {columns}. "
                f"{DOMAIN_EXAMPLES}"
            )
        return columns

    @classmethod
    def for_simulation(cls) -> "ClientPolicy":
        """Return the policy of simulated clients, which accept every request."""
        return cls(
            trusts=tuple(trust.TRUST_MODELS),
            max_epsilon=float("inf"),
            # It is the largest float64 below 1, because delta must be below 1.
            max_delta=1.0 - 2.0**-53,
            min_clients=1,
            max_rounds=10**6,
            max_opened=10**6,
            in_memory=True,
            max_total_epsilon=float("inf"),
            max_total_delta=1.0 - 2.0**-53,
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "ClientPolicy":
        """Read a policy from a TOML file of the operator.

        The keys of the file are the parameters of this class. Parameters without a key
        keep their strict default. ``domain`` is the path of a ``domain.toml``
        (`TableDomain`), or a table with ``lower``, ``upper`` and perhaps ``scale`` or
        ``weights``, or with ``radius`` and ``center``, or with ``n_features`` for a
        `Sphere`. Relative paths start from the
        file's directory.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError
            If the file cannot be read, other users can write it, or it has an unknown key
            or a wrong value.
        """
        # The file needs the care of a key: a user who can write it can lift every limit.
        values = read_toml(read_file(path, "policy file"), f"policy file {path}")
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ConfigurationError(
                f"Expected keys of ClientPolicy in the policy file {path}. Got {unknown} instead."
            )
        folder = Path(path).resolve().parent
        for name, value in values.items():
            if name in _PATHS and isinstance(value, str):
                # Flower chooses the working directory, so it cannot be the start.
                values[name] = str(folder / value)
            elif name == "domain":
                values[name] = _domain_of(value, Path(path))
        try:
            return cls(**values)
        except KMeansError as error:
            raise type(error)(f"In the policy file {path}: {error}") from None

    def objection(self, run: Run) -> str | None:
        """Return a sentence on the first limit that a run exceeds, or ``None``.

        Only the document and its plan count, which are public. `checks` compares the
        roster's digest, and refuses private runs without a ledger with the code LEDGER.
        """
        return first_exceeded(self._limits(run))

    def _limits(self, run: Run) -> Limits:
        """Yield (holds, limit, actual) for each limit of the policy."""
        document = run.document
        trusts = list(self.trusts)
        yield document.trust in self.trusts, f"trust in trusts={trusts}", document.trust
        if self.algorithms is not None:
            algorithms = list(self.algorithms)
            name = document.body.algorithm.get("name")
            yield name in self.algorithms, f"algorithm in algorithms={algorithms}", name
        yield from self._limits_of_size(run)
        yield from run.kind.limits(self, run)
        if run.trust.is_protected:
            least = self.max_colluders
            colluders = document.max_colluders
            yield colluders >= least, f"max_colluders >= {least}", colluders
            keys = self.accepted_keys
            yield document.keys in keys, f"keys in {list(keys)}", document.keys
        yield from self._limits_of_guarantee(run)

    def _limits_of_size(self, run: Run) -> Limits:
        document = run.document
        rounds = document.rounds
        limit = f"rounds <= max_rounds={self.max_rounds}"
        yield rounds <= self.max_rounds, limit, rounds
        clients = document.min_clients
        yield clients >= self.min_clients, f"min_clients >= {self.min_clients}", clients
        attempts = document.max_attempts
        limit = f"max_attempts <= {self.max_attempts}"
        yield attempts <= self.max_attempts, limit, attempts

    def _limits_of_guarantee(self, run: Run) -> Limits:
        epsilon, delta = run.guarantee
        if epsilon is None or delta is None:
            is_met = trust.PLAIN.name in self.trusts
            yield is_met, "a private run, for trusts lacks 'plain'", "epsilon=None"
            return
        # The comparisons must keep this form: with NaN they are false.
        limit = f"epsilon <= max_epsilon={self.max_epsilon}"
        yield epsilon <= self.max_epsilon, limit, _shown_epsilon(epsilon)
        yield delta <= self.max_delta, f"delta <= max_delta={self.max_delta}", delta
        unit = run.plan.budget.unit
        yield unit in self.units, f"unit in units={list(self.units)}", unit
        if isinstance(self.domain, TableDomain) and self.domain.persons:
            yield unit == "person", "unit='person', as the pinned domain says", unit
        if run.plan.budget.protects_persons:
            least = self.max_clients_per_person
            assumed = run.algorithm.max_clients_per_person
            limit = f"max_clients_per_person >= {least}"
            yield assumed >= least, limit, assumed

    def limits_of_domain(self, domain: Domain) -> Limits:
        """Yield (holds, limit, actual) for the pinned bounds and columns."""
        found = None
        if self.domain:
            found = difference(self.domain, domain)
        if found is not None:
            field, pinned, got = found
            yield False, f"domain as it is pinned, with {field} {pinned}", got
        if self.columns is not None:
            limit = f"columns={list(self.columns)} in domain"
            yield self.columns == domain.columns, limit, domain.columns

    @cached_property
    def accepted_kinds(self) -> frozenset[str]:
        """The names of the kinds of runs that the accepted trust models are for."""
        return frozenset(trust.trust_model(name).kind for name in self.trusts)

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Accepted sources of the clients' keys in a protected run."""
        if self.roster_file is None:
            return ("relayed",)
        return ("roster",)

    @property
    def allows_private_work(self) -> bool:
        """Whether a ledger records releases, or the operator does not require one."""
        return self.state_dir is not None or self.in_memory

    def read_identity(self) -> Identity | None:
        """Return the client's slot and key, or ``None`` without a roster."""
        if self.roster_file is None or self.member_key_file is None:
            return None
        return read_identity(self.roster_file, self.member_key_file)


def _shown_epsilon(epsilon: float) -> float:
    """Return an epsilon for a message, rounded upward to six decimals."""
    if not math.isfinite(epsilon):
        return epsilon
    return math.ceil(epsilon * 1e6) / 1e6


def first_exceeded(limits: Limits) -> str | None:
    """Return a sentence on the first limit that is not met, or ``None``."""
    for is_met, limit, got in limits:
        if not is_met:
            # A server chose the value, so a limited part of it is shown, in one line.
            shown = repr(got)
            more = "..." if len(shown) > _SHOWN else ""
            return f"Expected {limit}. Got {shown[:_SHOWN]}{more} instead."
    return None


# ----------------------------------------------------------------------------- settings


class _Rule(NamedTuple):
    """A check of settings: their values, and the tighter of two; ``None`` for pinned settings."""

    names: tuple[str, ...]
    kind: Any
    expected: str
    is_in: Callable[[Any], bool] = lambda _: True
    tighter: Callable[[Any, Any], Any] | None = None

    def check(self, name: str, value: Any) -> None:
        # A bool is an integer in Python, and must not pass as a limit.
        is_bool = isinstance(value, bool)
        is_kind = isinstance(value, self.kind) and is_bool == (self.kind is bool)
        items = value if isinstance(value, list | tuple) else ()
        is_right = is_kind and all(isinstance(item, str) for item in items)
        if not is_right:
            got = value if is_kind else type(value).__name__
            raise ConfigurationTypeError(self._sentence(name, got))
        if not self.is_in(value):
            raise ConfigurationError(self._sentence(name, value))

    def _sentence(self, name: str, got: object) -> str:
        # Trust models may be registered later than this module is imported.
        expected = self.expected.format(trusts=[*trust.TRUST_MODELS])
        return f"Expected {name} as {expected}. Got {got} instead."


def _common(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in ours if name in theirs)


_PATHS = ("roster_file", "member_key_file", "state_dir", "work_dir", "rows_key_file")
_NAMES: Any = list | tuple
_REAL = int | float
_RULES = (
    _Rule(
        ("trusts",),
        _NAMES,
        "a tuple of {trusts}",
        lambda v: {*v} <= {*trust.TRUST_MODELS},
        _common,
    ),
    _Rule(
        ("units",),
        _NAMES,
        f"a tuple of {[*UNITS]}",
        lambda v: {*v} <= {*UNITS},
        _common,
    ),
    _Rule(("algorithms",), _NAMES | None, "a tuple of str or None", tighter=_common),
    _Rule(
        ("max_epsilon", "max_total_epsilon"),
        _REAL,
        "a number > 0",
        lambda v: v > 0,
        min,
    ),
    _Rule(
        ("max_delta", "max_total_delta"),
        _REAL,
        "a number in [0, 1)",
        lambda v: 0 <= v < 1,
        min,
    ),
    _Rule(
        ("max_rounds", "max_attempts", "max_opened"),
        int,
        "an integer >= 1",
        lambda v: v >= 1,
        min,
    ),
    _Rule(
        ("min_clients", "max_colluders", "max_clients_per_person"),
        int,
        "an integer >= 1",
        lambda v: v >= 1,
        max,
    ),
    _Rule(
        ("workers",),
        int | None,
        "an integer >= 1 or None",
        lambda v: v is None or v >= 1,
        min,
    ),
    _Rule(
        ("party",),
        int | None,
        "an integer >= 0 or None",
        lambda v: v is None or v >= 0,
        min,
    ),
    # For bools, min is "and", and max is "or".
    _Rule(("in_memory", "copy_records"), bool, "a bool", tighter=min),
    _Rule(("must_hold_key",), bool, "a bool", tighter=max),
    _Rule(("domain",), Box | Ball | Sphere | None, "a Box, a Ball, a Sphere or None"),
    _Rule(_PATHS, str | os.PathLike | None, "a path or None"),
)

# Keys of a domain's table in a policy file.
_BOX = ("lower", "upper", "scale", "weights", "tighten")
_OPTIONAL = ("scale", "weights", "tighten")
_BALL = ("center", "radius")
_SPHERE = ("n_features",)


def _domain_of(values: Any, path: Path) -> Domain:
    """Return the domain of the key ``domain`` in the policy file at a path."""
    begin = f"The key domain in the policy file {path}:"
    try:
        if isinstance(values, str):
            file = path.resolve().parent / values
            content = read_file(file, "domain file")
            return domain_from_toml(content, f"domain file {file}")
        if isinstance(values, dict):
            return _domain_of_table(values)
    except (KMeansError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{begin} {error} {DOMAIN_EXAMPLES}") from None
    raise ConfigurationError(
        f"{begin} expected the path of a domain.toml in quotes, or a table of lower and upper, or "
        f"of radius and center, or of n_features. Got {values!r} instead. {DOMAIN_EXAMPLES}"
    )


def _domain_of_table(values: dict[str, Any]) -> Domain:
    names = set(values)
    is_box = bool(names & set(_BOX))
    is_ball = bool(names & set(_BALL)) and not is_box
    is_sphere = bool(names & set(_SPHERE)) and not is_box and not is_ball
    known: tuple[str, ...] = _BOX
    if is_ball:
        known = _BALL
    elif is_sphere:
        known = _SPHERE
    for key in values:
        if key not in known:
            raise ConfigurationError(f"In its table: {unknown_key(key, known)}")
    for key in known:
        if key not in values and key not in _OPTIONAL:
            raise ConfigurationError(f"In its table: expected {key}; got nothing.")
    if is_ball:
        return Ball(**values)
    if is_sphere:
        return Sphere(**values)
    return Box(**values)


def tightest(operator: ClientPolicy, app: ClientPolicy) -> ClientPolicy:
    """Return the policy that accepts a run only if both accept it.

    The paths come from the node's operator. An app can repeat or omit them, but not
    replace them: another ledger would be another account, and another key file would admit
    other runs.

    Raises
    ------
    ConfigurationError
        If the app names other paths, or both pin different bounds, columns or parties.
    """
    columns = operator.columns or app.columns
    for name, contradicts in _contradictions(operator, app, columns):
        if contradicts:
            raise ConfigurationError(
                f"Expected {name} of the app as in the operator's policy file, or None. "
                "Got another instead."
            )
    tightened: dict[str, Any] = {
        "domain": operator.domain or app.domain,
        "columns": columns,
    }
    for rule in _RULES:
        if rule.tighter is None:
            continue
        for name in rule.names:
            values = [getattr(operator, name), getattr(app, name)]
            given = [value for value in values if value is not None]
            tightened[name] = None
            if given:
                tightened[name] = reduce(rule.tighter, given)
    return replace(operator, **tightened)


def _contradictions(
    operator: ClientPolicy, app: ClientPolicy, columns: tuple[str, ...] | None
) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it contradicts) for each setting that must agree."""
    domains_differ = False
    if operator.domain is not None and app.domain is not None:
        domains_differ = difference(operator.domain, app.domain) is not None
    yield "domain", domains_differ
    yield "columns", app.columns not in (None, columns)
    parties = {operator.party, app.party} - {None}
    yield "party", len(parties) > 1
    for name in _PATHS:
        theirs = getattr(app, name)
        ours = getattr(operator, name)
        yield name, theirs is not None and not _is_same_path(theirs, ours)


def _is_same_path(
    theirs: str | os.PathLike[str], ours: str | os.PathLike[str] | None
) -> bool:
    if ours is None:
        return False
    return os.path.realpath(theirs) == os.path.realpath(ours)
