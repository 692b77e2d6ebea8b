"""Checks whether a node could take part in private runs. They change nothing.

Each finding is one row of ``flower-kmeans check``, for the node's operator. It contains
names and limits, but no record's value. Only the row on persons has numbers of records,
for the holder of the table alone.
"""

import os
import platform
import re
import shutil
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from flower_kmeans.cli.checked import CheckPart
from flower_kmeans.cli.limits import FILES, LINES, RECORDS, judge
from flower_kmeans.data.csv_files import names_columns
from flower_kmeans.data.declared import (
    DeclaredDomain,
    columns_read,
    described,
    digest_of,
    domain_from_file,
)
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere, difference
from flower_kmeans.data.person_findings import PersonFindings
from flower_kmeans.data.persons import text_of
from flower_kmeans.data.reading import USUAL_READING, Reading, resolved
from flower_kmeans.data.records import check_columns
from flower_kmeans.data.table_domain import TableDomain, number_text, shortened
from flower_kmeans.data.tables import Table as Records
from flower_kmeans.data.tables import load_persons, open_table, read_table
from flower_kmeans.errors import ConfigurationError, DataError, KMeansError, RunError
from flower_kmeans.files import access_complaint
from flower_kmeans.imports import imported
from flower_kmeans.privacy.ledger import spent_by_unit, spent_epsilon
from flower_kmeans.privacy.ledger_file import FULL
from flower_kmeans.protocol.committee import MAX_POSITIONS
from flower_kmeans.protocol.kinds import run_kind
from flower_kmeans.protocol.policy import DOMAIN_EXAMPLES, ClientPolicy
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.protocol.trust import PLAIN, trust_model
from flower_kmeans.version import __version__, flwr_version

FLWR = ("1.39", "2")  # supported versions: from the first on, below the second
_FIRST_HTTP = (1, 40)
_SECONDS = 10.0
# Bytes. A session contains its run document, and SQLite's journal a copy of it.
_LEDGER_ROOM = 10_000_000
_WITH_TYPES = (".npy", ".npz", ".parquet")  # these files name their columns themselves
_HINTS = {
    "versions": f"Install what fits: pip install 'flwr>={FLWR[0]},<{FLWR[1]}'.",
    "policy file": "docs/deploy.md has an example under 'Several machines'.",
    "accepts": "Change these settings in the policy file.",
    "keys": "flower-kmeans keygen makes and checks them; only the node's own user may read a key.",
    "ledger": "state_dir must be this node's own directory, mode 0700, in an existing one.",
    "files": "Keys and records are their owner's alone to read.",
    "domain": f"flower-kmeans domain init makes one, which all parties share. {DOMAIN_EXAMPLES}",
    "data": "The file needs numbers in the columns that the policy pins, or what a domain.toml "
    "declares. flower-kmeans inspect shows their holder more.",
    "persons": "Runs for persons need an id for each record: see docs/own-data.md, 'My table has "
    "several lines per patient'.",
    "SuperLink": "docs/deploy.md says which ports must be open, and how certificates are made.",
}


_MARKS = {True: Text("ok", style="green"), False: Text("no", style="bold red")}


@dataclass(frozen=True)
class CheckedItem:
    """One thing that a node needs, whether it is in order, and the words for its operator."""

    name: str
    is_well: bool
    text: str


def check_node(
    policy_file: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    superlink: str | None = None,
    root_certificates: str | os.PathLike[str] | None = None,
    reading: Reading = USUAL_READING,
    domain: str | os.PathLike[str] | None = None,
    accepted: Mapping[str, str] | None = None,
) -> list[CheckedItem]:
    """Return the findings on everything that a node needs. Nothing is changed.

    The node could take part if all findings are in order. Call it as the user who runs
    the node.

    Parameters
    ----------
    policy_file : path
        The policy that the node names.
    data : str, optional
        The node's records: a file, a database or a ``source.toml``. They are read as
        the node reads them.
    domain : path, optional
        A file that declares the columns. By default it is the file that the policy
        pins, if any.
    accepted : mapping from str to str
        Reasons for findings that would be refused: on columns (`limits.judge`), and on
        the mode or the owner of the file.
    superlink : str, optional
        The SuperLink's address ``HOST:PORT``, to reach with TLS.
    root_certificates : path, optional
        Certificates of its authority. By default these are the system's authorities.
    reading : Reading
        Options for reading ``data``.
    """
    findings = [_find("versions", _versions)]
    try:
        policy = ClientPolicy.from_file(policy_file)
    except KMeansError as error:
        findings.append(_bad("policy file", error))
    else:
        path = Path(policy_file)
        known = accepted or {}
        findings.append(_find("policy file", _policy_file, path))
        findings.append(_find("accepts", _accepted, policy))
        findings.append(_find("keys", _keys, policy))
        findings.append(_find("ledger", _ledger, policy))
        findings.append(_find("files", _files, policy, path, data, reading, known))
        findings += _of_kinds(policy)
        try:
            named, declared = _declared(policy, policy_file, domain)
        except KMeansError as error:
            return [*findings, _bad("domain", error)]
        if declared is not None:
            looked = declared, policy, named, policy_file
            findings.append(_find("domain", _domain, *looked))
        if data is not None:
            read = str(data), policy, reading, declared, known, policy_file
            findings.append(_find("data", _data, *read))
            findings += _of_persons(str(data), policy, reading)
    if superlink is not None:
        findings.append(_find("SuperLink", _superlink, superlink, root_certificates))
    return findings


def _of_persons(data: str, policy: ClientPolicy, reading: Reading) -> list[CheckedItem]:
    """Return a finding on the persons of the records, if runs need them or ids are named."""
    try:
        _, own = resolved(data, reading)
    except KMeansError:
        return []  # a finding on the data
    if own.person is None and policy.units != ("person",):
        return []
    return [_find("persons", _persons, data, reading)]


def _of_kinds(policy: ClientPolicy) -> list[CheckedItem]:
    """Return a finding for each kind of run that needs more of a node."""
    kinds = dict.fromkeys(trust_model(name).kind for name in policy.trusts)
    parts = {kind: _check_part(kind) for kind in kinds}
    return [
        _find(kind, part.look, policy)
        for kind, part in parts.items()
        if part is not None
    ]


def _check_part(kind: str) -> CheckPart | None:
    """Return the checks that a kind of run adds for a node, if any."""
    path = run_kind(kind).check
    if path is None:
        return None
    part: CheckPart = imported(path)
    return part


def hint_for(name: str) -> str:
    """Return the advice about a finding that is not well, of the usual ones or of a kind."""
    part = None if name in _HINTS else _check_part(name)
    return _HINTS[name] if part is None else part.hint


def _declared(
    policy: ClientPolicy,
    policy_file: str | os.PathLike[str],
    domain: str | os.PathLike[str] | None,
) -> tuple[str, DeclaredDomain | None]:
    """Return the name of the declarations' source, and the columns that it declares."""
    if domain is not None:
        return f"the domain file {domain}", domain_from_file(domain)
    named = f"the policy file {policy_file}"
    pinned = policy.domain
    if isinstance(pinned, TableDomain):
        return named, pinned
    if isinstance(pinned, Ball | Sphere) and pinned.columns is not None:
        return named, pinned
    return named, None


def print_findings(console: Console, findings: list[CheckedItem]) -> None:
    """Print the conclusion, and then a row for each finding, faults first."""
    bad = [finding.name for finding in findings if not finding.is_well]
    answer = "Yes, as far as this can see."
    if bad:
        answer = f"No, because of: {', '.join(bad)}."
    console.print(
        Text(f"Could this node take part? {answer}", style="bold"), soft_wrap=True
    )
    table = Table("", "what", Column("finding", overflow="fold"))
    for finding in sorted(findings, key=lambda finding: finding.is_well):
        mark = _MARKS[finding.is_well]
        table.add_row(mark, finding.name, Text(finding.text))
    console.print(table)


def _find(name: str, look: Callable[..., str], *arguments: Any) -> CheckedItem:
    try:
        return CheckedItem(name, True, look(*arguments))
    except KMeansError as error:
        return _bad(name, error)


def _bad(name: str, error: KMeansError) -> CheckedItem:
    text = str(error)
    if name == "policy file" and text.endswith(DOMAIN_EXAMPLES):
        return CheckedItem(name, False, text)  # the text already points to an example
    return CheckedItem(name, False, f"{text} {hint_for(name)}")


# -------------------------------------------------------------------- what is looked at


def _versions() -> str:
    flwr = flwr_version()
    if not _numbers(FLWR[0]) <= _numbers(flwr) < _numbers(FLWR[1]):
        raise ConfigurationError(
            f"Expected flwr>={FLWR[0]},<{FLWR[1]}. Got {flwr} instead."
        )
    transport = "HTTP" if _numbers(flwr) >= _FIRST_HTTP else "gRPC"
    return (
        f"flower-kmeans {__version__}, flwr {flwr} (nodes speak {transport}), "
        f"Python {platform.python_version()}. "
        "The SuperLink and all nodes must have the same."
    )


def _numbers(version: str) -> tuple[int, ...]:
    # Development versions have major and minor numbers, too.
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _policy_file(path: Path) -> str:
    mode = stat.S_IMODE(path.stat().st_mode)
    named = f'policy-file="{path.resolve()}"'
    return f"Read, mode {mode:04o}. The node names it: --node-config '{named}'"


def _accepted(policy: ClientPolicy) -> str:
    # An empty list accepts nothing. A setting that is left out accepts everything.
    nothing = [
        name
        for name in ("trusts", "algorithms", "units")
        if getattr(policy, name) == ()
    ]
    if nothing:
        raise ConfigurationError(
            f"Every run is refused: {' and '.join(nothing)} admit nothing."
        )
    algorithms = "any algorithm"
    if policy.algorithms:
        algorithms = f"algorithm {' or '.join(policy.algorithms)}"
    return "; ".join(
        (
            f"trust {' or '.join(policy.trusts)}",
            algorithms,
            f"epsilon up to {policy.max_epsilon:g} at delta {policy.max_delta:g} in one run",
            f"per {' or '.join(policy.units)}",
            f"at least {policy.min_clients} clients",
            f"max_colluders of at least {policy.max_colluders}",
            f"max_clients_per_person of at least {policy.max_clients_per_person}",
            f"at most {policy.max_rounds} rounds, with {policy.max_attempts} attempts each",
            f"keys {' or '.join(policy.accepted_keys)}",
            *_pinned(policy),
        )
    )


def _pinned(policy: ClientPolicy) -> tuple[str, str]:
    """Return the bounds and the columns that a policy accepts, in words."""
    domain = policy.domain
    columns = policy.columns
    if isinstance(domain, TableDomain):
        names = tuple(column.name for column in domain.declared)
        declared = "bounds as its domain.toml declares them (see the row domain)"
        return declared, f"columns {_listed(names)}"
    bounds = "any bounds (pin domain)"
    if domain is not None:
        bounds = _bounds(domain, columns)
    if columns is None:
        return bounds, "any columns (pin columns)"
    return bounds, f"columns {_listed(columns)}"


def _keys(policy: ClientPolicy) -> str:
    identity = policy.read_identity()
    if not any(trust_model(name).is_protected for name in policy.trusts):
        return "Not needed: under the accepted trust models vectors leave the clients unprotected."
    if identity is None:
        return (
            "Relayed by the server, which protects against a passive server only: set roster_file "
            "and member_key_file."
        )
    if len(identity.roster) < policy.min_clients:
        raise ConfigurationError(
            f"Expected at least min_clients={policy.min_clients} clients in the roster_file "
            f"{policy.roster_file}. Got {len(identity.roster)} instead."
        )
    return " ".join(describe_roster(identity.roster, identity))


def describe_roster(roster: Roster, identity: Identity | None = None) -> list[str]:
    """Return lines about a roster, for operators to compare.

    ``identity`` is the identity of the reader.
    """
    roster.require_points()
    lines = [f"The roster has {len(roster)} clients, each with a valid key."]
    if identity is not None:
        name = roster.names[identity.slot]
        number = identity.slot + 1
        lines.append(
            f"The own key is that of {name}, number {number} of {len(roster)}."
        )
    if roster.beacon:
        lines.append(
            f"The beacon is {roster.beacon.hex()}. It must have been fixed after all keys were: "
            "somebody who knew it before could choose keys that come into a committee."
        )
    else:
        lines.append(
            f"There is no beacon, and none is needed up to {MAX_POSITIONS} clients."
        )
    lines.append(f"Digest: {_groups(roster.digest.hex())}")
    lines.append(
        "All operators must have the same digest: compare it by phone, not through the server."
    )
    return lines


def _groups(digest: str) -> str:
    # Groups of four digits are easy to read aloud.
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def _ledger(policy: ClientPolicy) -> str:
    delta = policy.max_total_delta
    total = policy.max_total_epsilon
    if policy.state_dir is None:
        if set(policy.trusts) <= {PLAIN.name}:
            return "Not needed: no private run is accepted."
        if policy.in_memory:
            return (
                "None is kept (in_memory): nothing bounds what all runs cost together."
            )
        raise ConfigurationError("Without state_dir every private run is refused.")
    spent = spent_epsilon(policy.state_dir, delta, policy.max_clients_per_person)
    _require_ledger_room(Path(policy.state_dir))
    if spent is None:
        return (
            f"None yet in {policy.state_dir}; the first run makes it. Of epsilon {total:g} at "
            f"delta {delta:g}, all is left."
        )
    if spent >= total:
        raise ConfigurationError(
            f"The ledger does not allow it. Expected less than max_total_epsilon={total:g} spent "
            f"at delta {delta:g}. Got {spent:.4g} instead, so no further private run is accepted."
        )
    return (
        f"In {policy.state_dir}: epsilon {spent:.4g} of {total:g} at delta {delta:g} is spent or "
        f"reserved, {total - spent:.4g} is left (runs cost less than the sum of their epsilons)."
    )


def print_ledger(console: Console, policy: ClientPolicy) -> None:
    """Print the joint cost of all runs of a policy's ledger, a row for each unit.

    Raises
    ------
    ConfigurationError, LedgerError
        If there is no ledger, or it cannot be read.
    """
    directory = str(policy.state_dir)
    delta = policy.max_total_delta
    spent = spent_by_unit(directory, delta, policy.max_clients_per_person)
    if spent is None:
        raise ConfigurationError(f"There is no ledger in {directory}.")
    table = Table("unit of privacy", f"epsilon of all runs at delta {delta:g}")
    for unit, epsilon in spent.items():
        shown = "not covered" if epsilon is None else f"{epsilon:.4g}"
        table.add_row(f"one {unit}", shown)
    console.print(table)
    covered = [unit for unit, epsilon in spent.items() if epsilon is not None]
    console.print(
        Text(
            f"The total of epsilon {policy.max_total_epsilon:g} holds for one {covered[0]}. A "
            "round counts once it is answered, and is reserved from the run's first answer on."
        ),
        soft_wrap=True,
    )


def _require_ledger_room(state_dir: Path) -> None:
    """Require room for the next answers. An answer that cannot be stored is never sent."""
    place = state_dir if state_dir.exists() else state_dir.parent
    free = shutil.disk_usage(place).free
    if free < _LEDGER_ROOM:
        raise ConfigurationError(
            f"{FULL}. Expected at least {_LEDGER_ROOM / 1e6:.0f} MB of free disk in {place}. "
            f"Got {free / 1e6:.1f} MB instead."
        )


def _files(
    policy: ClientPolicy,
    policy_file: Path,
    data: str | os.PathLike[str] | None,
    reading: Reading,
    accepted: Mapping[str, str],
) -> str:
    """Require that others cannot read the table, nor keys beside files that the node names.

    A source.toml and the node's own member key are checked when they are read.
    """
    table = None if data is None else _table_file(str(data), reading)
    keys = _keys_beside(policy, policy_file, table)
    wrong = []
    notes = []
    for key in keys:
        complaint = access_complaint(key, "key file", key.stat(), is_secret=True)
        if complaint is not None:
            wrong.append(complaint)
    if table is not None:
        complaint = access_complaint(table, "table", table.stat(), is_secret=True)
        if complaint is None:
            notes.append(f"The table {table} is its owner's alone to read.")
        elif FILES in accepted:
            notes.append(f"{complaint} Accepted because: {accepted[FILES]}.")
        else:
            wrong.append(
                f"{complaint} If that is how the table must be, say why: --accept {FILES}=REASON."
            )
    if wrong:
        raise ConfigurationError(" ".join(wrong))
    if keys:
        names = _listed(tuple(key.name for key in keys))
        notes.append(f"Keys that their owner alone can read: {names}.")
    if not notes:
        return "No table is named, and no key lies beside the policy file."
    return " ".join(notes)


def _keys_beside(
    policy: ClientPolicy, policy_file: Path, table: Path | None
) -> list[Path]:
    """Return the keys beside files that the node names, except its own member key."""
    named = [policy_file]
    own = None
    if policy.member_key_file is not None:
        own = Path(policy.member_key_file).resolve()
        named.append(own)
    if table is not None:
        named.append(table)
    folders = {path.resolve().parent for path in named}
    keys = {key.resolve() for folder in folders for key in folder.glob("*.key")}
    return sorted(key for key in keys - {own} if key.is_file())


def _table_file(data: str, reading: Reading) -> Path | None:
    """Return the file with the records, or ``None``. Its faults are findings on the data."""
    try:
        named, _ = resolved(data, reading)
    except KMeansError:
        return None
    path = Path(str(named).removeprefix("sqlite:///"))
    return path if path.is_file() else None


def _domain(
    declared: DeclaredDomain,
    policy: ClientPolicy,
    named: str,
    policy_file: str | os.PathLike[str],
) -> str:
    if isinstance(declared, TableDomain) and declared.from_records:
        raise ConfigurationError(
            f"Expected a domain from public knowledge in {named}. Got one that was read off "
            "records (from_records)."
        )
    pinned = policy.domain
    differs = None if pinned is None else _mismatch(declared, pinned)
    if differs is not None:
        expected, got = differs
        raise ConfigurationError(
            f"Expected the domain as the key domain in the policy file {policy_file} pins it: "
            f"{expected}. Got in {named}: {got}."
        )
    if policy.columns not in (None, declared.columns):
        raise ConfigurationError(
            f"Expected the columns of the box in the order of the key columns in the policy file "
            f"{policy_file}: {_listed(policy.columns or ())}. Got in {named}: "
            f"{_listed(declared.columns or ())}."
        )
    whole = digest_of(declared)
    if not isinstance(declared, TableDomain):
        return (
            f"{declared.n_features} declared columns; a missing cell drops its record; digest "
            f"{_groups(whole)}, which all parties must have.\n"
            f"{shortened(described(declared), _LINE)}"
        )
    rules = [column.name for column in declared.declared if column.missing is None]
    void = f"a missing cell in {_listed(tuple(rules))} drops its record; "
    return (
        f"{len(declared.declared)} declared columns, {declared.n_features} in the box; "
        f"{void if rules else ''}digest {_groups(whole)}, which all parties must have.\n"
        f"{shortened(declared.describe(), _LINE)}"
    )


def _mismatch(declared: DeclaredDomain, pinned: Domain) -> tuple[str, str] | None:
    """Return in words how a domain was pinned and how it is declared, where they differ."""
    if not isinstance(pinned, TableDomain) or not isinstance(declared, TableDomain):
        found = difference(declared, pinned)
        if found is None:
            return None
        return f"{found[0]} {found[2]}", f"{found[1]}, in the columns of its box"
    if pinned.digest == declared.digest:
        return None
    ours = pinned.declared
    theirs = declared.declared
    length = max(len(ours), len(theirs))
    first = next(i for i in range(length) if ours[i : i + 1] != theirs[i : i + 1])
    return _declaration(pinned, first), _declaration(declared, first)


def _declaration(domain: TableDomain, i: int) -> str:
    lines = domain.describe()
    column = lines[i] if i < len(lines) else "no further column"
    return f"{column} (digest {_groups(domain.digest)})"


def _data(
    data: str,
    policy: ClientPolicy,
    reading: Reading,
    declared: DeclaredDomain | None,
    accepted: Mapping[str, str],
    policy_file: str | os.PathLike[str],
) -> str:
    table, header = _read_as_node(data, reading, declared)
    columns = table.columns
    check_columns(columns, policy.columns)
    if policy.domain is not None and policy.domain.n_features != len(columns):
        raise DataError(
            f"Expected {policy.domain.n_features} columns, as the key domain in the policy file "
            f"{policy_file} has. Got {len(columns)} ({_listed(columns)}) instead. "
            f"{DOMAIN_EXAMPLES}"
        )
    share_outside = 0.0
    # Declared cells are counted when they are read.
    bounds = None if isinstance(declared, TableDomain) else declared or policy.domain
    if bounds is not None:
        share_outside = _count_outside(table, bounds)
    known = {column.name for column in table.findings.columns}
    unknown = set(accepted) - known - {LINES, RECORDS, FILES}
    if unknown:
        raise ConfigurationError(
            f"Expected --accept with one of the columns that are read, {LINES!r}, {RECORDS!r} or "
            f"{FILES!r}. Got {sorted(unknown)} instead."
        )
    judged = judge(table.findings, accepted, share_outside)
    if judged.refused:
        raise DataError(
            f"Expected a table as a run needs it in {data}. Found: {'; '.join(judged.refused)}. "
            f"If that is how the table must be, say why: --accept NAME=REASON, with a column's "
            f"name, {LINES!r} or {RECORDS!r}."
        )
    kind = "numbers"
    if isinstance(declared, TableDomain):
        kind = "declared cells"
        columns = tuple(columns_read(declared))
    pinned = "as pinned" if policy.columns else "and the policy pins no names"
    found = f"{data} is a table of {kind} with the columns {_listed(columns)}, {pinned}. {header}"
    if judged.notes:
        found += f" Noted: {'; '.join(judged.notes)}."
    if judged.accepted:
        found += f" Accepted: {'; '.join(judged.accepted)}."
    return found


def _read_as_node(
    data: str, reading: Reading, declared: DeclaredDomain | None
) -> tuple[Records, str]:
    """Return the records as a node reads them, and how it must be told to."""
    named, own = resolved(data, reading)
    has_types = "://" in str(named) or Path(named).suffix.lower() in _WITH_TYPES
    if has_types or own.header is not None:
        header = ""
        if own.header is not None and own.header is not True and not has_types:
            header = (
                "Its first line is a record: the node needs these names as header=."
            )
        return read_table(named, own, malformed="nan", domain=declared), header
    # As in a run, a first line is not recognised: it is taken for names even if it has
    # numbers.
    own = own.with_options(header=True)
    names = open_table(named, own).names
    if not names_columns(names, Path(named)):
        raise DataError(  # it quotes no names, because they may be a record
            f"Expected the names of columns in the first line of {named}. Got numbers instead: "
            "name the columns with --header here, and with header= in the node's --node-config."
        )
    header = "Its first line names the columns, as the node takes it."
    return read_table(named, own, malformed="nan", domain=declared), header


def _count_outside(table: Records, domain: Domain) -> float:
    """Count values outside a box, or return the fraction of records outside a ball.

    On a sphere records of length zero are counted as null records.
    """
    is_used = np.isfinite(table.records).all(axis=1)
    outside: list[int] = domain.outside(table.records[is_used]).tolist()
    if isinstance(domain, Box):
        for column, n in zip(table.findings.columns, outside, strict=True):
            column.n_above = n
        return 0.0
    if isinstance(domain, Sphere):
        table.findings.n_void += outside[0]
        return 0.0
    return outside[0] / max(1, len(table.records))


def _persons(data: str, reading: Reading) -> str:
    ids = load_persons(data, reading=reading)
    _, own = resolved(data, reading)
    found = PersonFindings(own.person or "")
    found.add(map(text_of, ids.tolist()))
    lines = [f"For the holder of the table alone: {found.summary()}"]
    lines += [f"LOOK: {doubt}" for doubt in found.doubts()]
    return _LINE.join(lines)


def _superlink(address: str, root_certificates: str | os.PathLike[str] | None) -> str:
    # An IPv6 address in brackets has colons, too, so the last one counts.
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigurationError(
            f"Expected --superlink as HOST:PORT. Got {address!r} instead."
        )
    try:
        context = ssl.create_default_context(cafile=root_certificates)
    except (OSError, ssl.SSLError):
        raise ConfigurationError(
            f"The root certificates {root_certificates} cannot be read as PEM."
        ) from None
    # A SuperLink uses gRPC (HTTP/2) or HTTP/1.1. gRPC servers refuse clients without
    # ALPN.
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((host, int(port)), _SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host) as tls,
        ):
            version = tls.version()
    except ssl.SSLCertVerificationError as error:
        raise RunError(
            f"The certificate of {address} is refused: {error.verify_message}."
        ) from None
    except ssl.SSLError:
        raise RunError(f"{address} was reached, but does not speak TLS.") from None
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no answer in time"
        raise RunError(f"{address} cannot be reached: {reason}.") from None
    authority = (
        "the system's authorities" if root_certificates is None else root_certificates
    )
    return (
        f"{address} was reached with {version}, and its certificate verified by {authority}. "
        "Whether this node is registered there shows when it connects."
    )


# --------------------------------------------------------------------------- words


_LINE = "\n"  # between the columns of a domain


def _listed(names: tuple[str, ...]) -> str:
    return shortened([repr(name) for name in names])


def _bounds(domain: Domain, columns: tuple[str, ...] | None) -> str:
    if isinstance(domain, Ball):
        radius = number_text(domain.radius)
        return f"bounds: within {radius} of a centre, {domain.n_features} columns"
    if isinstance(domain, Sphere):
        return f"bounds: none, because only directions of {domain.n_features} columns count"
    names = columns or tuple(f"column {i}:" for i in range(domain.n_features))
    pairs = zip(names, domain.lower, domain.upper, strict=True)
    texts = [
        f"{name} {number_text(low)} to {number_text(high)}" for name, low, high in pairs
    ]
    weights = ""
    if domain.is_weighted:
        found = domain.weights_by_name().items()
        by_name = [f"{name} {number_text(weight)}" for name, weight in found]
        weights = f"; weights {shortened(by_name)}"
    tighten = ""
    if domain.tighten is not None:
        tighten = f"; tighten {number_text(domain.tighten)}"
    return f"bounds {shortened(texts)}{weights}{tighten}"
