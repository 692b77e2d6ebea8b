"""Make the certificates and keys by which the machines of a deployment know each other.

``link``   the SuperLink's certificate, and the authority that nodes check it against
``node``   one SuperNode's key pair; only the public half leaves the node

The data holders' keys, which the SuperLink must never have, are made by
``flower-kmeans keygen``.
"""

import argparse
import datetime as dt
import inspect
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365
_AUTHORITY = "Federation authority"
_USAGE = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False)
_USAGE["digital_signature"] = True


def make_link(directory: Path, names: Sequence[str], days: int = _DAYS) -> None:
    """Write ``ca.crt``, ``ca.key``, ``server.pem`` and ``server.key``, valid for ``days``.

    Nodes, and people who submit runs, get ``ca.crt``. The keys have mode 0600 and stay
    here. ``names`` are the names and addresses of the SuperLink. ``localhost`` and
    ``127.0.0.1`` are always added, because its own processes use them.
    """
    _private_directory(directory)
    now = dt.datetime.now(dt.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    all_names = list(dict.fromkeys([*names, "localhost", "127.0.0.1"]))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())

    def signed(
        name: str, of: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> bytes:
        is_authority = of is ca_key
        usage = {"key_cert_sign": is_authority, "crl_sign": is_authority}
        builder = x509.CertificateBuilder(
            issuer_name=_named(_AUTHORITY),
            subject_name=_named(name),
            public_key=of.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(minutes=5),  # clocks differ
            not_valid_after=now + dt.timedelta(days=days),
        )
        path = x509.BasicConstraints(
            ca=is_authority, path_length=0 if is_authority else None
        )
        for critical in (path, x509.KeyUsage(**_USAGE | usage)):
            builder = builder.add_extension(critical, critical=True)
        for each in (
            x509.SubjectKeyIdentifier.from_public_key(of.public_key()),
            issuer,
            *extensions,
        ):
            builder = builder.add_extension(each, critical=False)
        return builder.sign(ca_key, hashes.SHA384()).public_bytes(
            serialization.Encoding.PEM
        )

    server = signed(
        all_names[0],
        key,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([_general_name(name) for name in all_names]),
    )
    authority = signed(_AUTHORITY, ca_key)
    pkcs8 = serialization.PrivateFormat.PKCS8
    _write_new(directory / "ca.key", _private(ca_key, pkcs8), 0o600)
    _write_new(directory / "ca.crt", authority, 0o644)
    _write_new(directory / "server.key", _private(key, pkcs8), 0o600)
    _write_new(directory / "server.pem", server, 0o644)


def make_node(directory: Path) -> None:
    """Write ``node.key`` (mode 0600) and ``node.pub`` in OpenSSH's format.

    The same as ``ssh-keygen -t ecdsa -b 384 -N ""``.
    """
    _private_directory(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    of = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    _write_new(
        directory / "node.key",
        _private(key, serialization.PrivateFormat.OpenSSH),
        0o600,
    )
    _write_new(
        directory / "node.pub", key.public_key().public_bytes(*of) + b"\n", 0o644
    )


def _private(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    # An existing file is never replaced, because a key in use would be lost. The file
    # has its mode from the beginning, so others can never read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what one party needs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    link = commands.add_parser(
        "link", help="the SuperLink's certificate and its authority"
    )
    link.add_argument("directory", type=Path)
    link.add_argument(
        "--name", action="append", default=[], help="name or address of the link"
    )
    link.add_argument("--days", type=int, default=_DAYS)
    node = commands.add_parser("node", help="one SuperNode's key pair")
    node.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "link":
            make_link(options.directory, options.name, options.days)
            given, kept = ("ca.crt", "server.pem"), ("ca.key", "server.key")
        else:
            make_node(options.directory)
            given, kept = ("node.pub",), ("node.key",)
    except FileExistsError as error:
        parser.exit(
            1, f"There is a file {error.filename} already; it was left as it is.\n"
        )
    for words, names in (("public", given), ("secret, mode 0600", kept)):
        print(
            f"Wrote {', '.join(str(options.directory / name) for name in names)} ({words})"
        )


if __name__ == "__main__":
    main()
