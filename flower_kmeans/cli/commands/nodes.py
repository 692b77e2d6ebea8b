"""``keygen``, ``check``, ``ledger`` and ``forget``: for the people who run nodes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flower_kmeans.cli.commands.texts import DATA
from flower_kmeans.cli.limits import limits_in_words
from flower_kmeans.cli.options import one_sentence, with_reading
from flower_kmeans.cli.printing import counted
from flower_kmeans.errors import ConfigurationError

if TYPE_CHECKING:
    from flower_kmeans.data.reading import Reading
    from flower_kmeans.protocol.policy import ClientPolicy


def keygen(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the clients to make keys for, by slot."),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(help="The directory for keys and roster; the current one."),
    ] = None,
    beacon: Annotated[
        str | None,
        typer.Option(
            help="For the new roster: public random hexadecimal digits, fixed after keys."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="ROSTER", help="Make nothing; check this roster."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="With --check: the own key, which must be on the roster."),
    ] = None,
) -> None:
    """Make keys for the named clients and the roster that pins them, or check a roster.

    The server may have the roster, but none of the keys. A client that makes its own
    key shares only its line of the roster. All lines, in one agreed order, are the
    roster.
    """
    with one_sentence():
        from flower_kmeans.cli.check import describe_roster
        from flower_kmeans.protocol.roster import Roster, read_identity, write_members

        makes = {
            "--output": output,
            "--beacon": beacon,
            "names of clients": names or None,
        }
        given = [name for name, value in makes.items() if value is not None]
        if check is not None and given:
            raise ConfigurationError(
                f"Expected --check alone or with --key. Got {given} as well."
            )
        if check is None and (key is not None or not names):
            raise ConfigurationError(
                "Expected names of clients to make keys for, or --check ROSTER. Got neither."
            )
        if check is None:
            for path in write_members(output or Path(), names or [], beacon):
                typer.echo(f"Wrote {path}")
            # The last path is the roster's.
            typer.echo(
                f"Digest, for all to compare: flower-kmeans keygen --check {path}"
            )
        else:
            identity = None if key is None else read_identity(check, key)
            for line in describe_roster(Roster.from_file(check), identity):
                typer.echo(line)


@with_reading
def check(
    *,
    reading: "Reading",
    policy_file: Annotated[Path, typer.Option(help="The policy that the node names.")],
    data: Annotated[
        str | None, typer.Option(help=f"The node's records. {DATA}")
    ] = None,
    domain: Annotated[
        Path | None,
        typer.Option(
            help="The domain.toml by which the node reads them; by default the policy's."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REASON",
            help="Let the findings on a column pass, for a reason in words; may be repeated. "
            f"Otherwise refused: {limits_in_words()}",
        ),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(help="The SuperLink to reach with TLS, as HOST:PORT.")
    ] = None,
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="Certificate of the SuperLink's authority (ca.crt)."),
    ] = None,
) -> None:
    """Check, as the user who runs a node, whether it could take part. Nothing is changed.

    The records are read as the node reads them. Exit code 0 if it could take part, 1
    otherwise. No record's value is printed. Numbers of records are printed only in the
    row on persons, for the holder of the table alone.
    """
    with one_sentence():
        from flower_kmeans.cli.check import check_node, print_findings

        if root_certificates is not None and superlink is None:
            raise ConfigurationError(
                "--root-certificates needs --superlink, the server to reach."
            )
        accepted = dict(map(_acceptance, accept or ()))
        findings = check_node(
            policy_file, data, superlink, root_certificates, reading, domain, accepted
        )
        print_findings(Console(highlight=False), findings)
        if not all(finding.is_well for finding in findings):
            raise typer.Exit(1)


_StateDir = Annotated[
    Path | None, typer.Option(help="The directory with the node's ledger.")
]
_PolicyFile = Annotated[
    Path | None, typer.Option(help="Or the policy that names that directory.")
]


def ledger(*, state_dir: _StateDir = None, policy_file: _PolicyFile = None) -> None:
    """Print the cost of all runs together, by unit of privacy. Nothing is changed.

    A unit is not covered after the first run that does not protect it. A run for records
    does not protect a person with many records. The total of the policy holds for the
    first unit that is covered.
    """
    with one_sentence():
        from flower_kmeans.cli.check import print_ledger

        print_ledger(Console(highlight=False), _policy_of(state_dir, policy_file))


def forget(*, state_dir: _StateDir = None, policy_file: _PolicyFile = None) -> None:
    """Erase the secrets of runs that never ended from a node's ledger.

    A failed run leaves its keys there, for 30 days at most. Charges for answered rounds
    stay. Reservations for further rounds are returned. A run in progress is refused
    from then on.
    """
    with one_sentence():
        from flower_kmeans.privacy.ledger import Ledger
        from flower_kmeans.privacy.ledger_file import find_private_file
        from flower_kmeans.protocol.leftovers import erase_ended
        from flower_kmeans.protocol.session import forget_unfinished, remove_copies

        policy = _policy_of(state_dir, policy_file)
        named = str(policy.state_dir)
        if find_private_file(Path(named)) is None:
            raise ConfigurationError(f"There is no ledger in {named}.")
        with Ledger(named) as ledger:
            # The ledger first: a copy of records or of ciphertexts goes when its run
            # has ended there.
            n = forget_unfinished(ledger)
            remove_copies(Path(named), ledger)
            erase_ended(policy, ledger)
        typer.echo(
            f"Forgot {counted(n, 'unfinished run')} in {named}. Charges for answered rounds stay; "
            "reservations for further rounds are returned."
        )


def _policy_of(state_dir: Path | None, policy_file: Path | None) -> "ClientPolicy":
    """Return a policy that names a ``state_dir``: the given one, or a file's."""
    from flower_kmeans.protocol.policy import ClientPolicy

    if (state_dir is None) == (policy_file is None):
        raise ConfigurationError("Expected either --state-dir or --policy-file.")
    if policy_file is None:
        return ClientPolicy(state_dir=state_dir)
    policy = ClientPolicy.from_file(policy_file)
    if policy.state_dir is None:
        raise ConfigurationError(f"The policy file {policy_file} names no state_dir.")
    return policy


def _acceptance(text: str) -> tuple[str, str]:
    """Return name and reason of ``NAME=REASON``; names may not hold "=", for reasons do."""
    name, _, reason = text.partition("=")
    if not name.strip() or not reason.strip():
        raise ConfigurationError(
            f"Expected --accept as NAME=REASON, with a reason in words. Got {text!r} instead."
        )
    return name.strip(), reason.strip()
