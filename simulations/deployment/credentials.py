"""Make what the machines of a deployment need to know each other: certificates and keys.

``link``   the SuperLink's certificate, and the authority that nodes check it against
``node``   one SuperNode's key pair; only the public half leaves the node

The data holders' keys, which the SuperLink must never have, are made by ``flower-kmeans keygen``.
"""

import argparse
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365


def make_link(directory: Path, names: Sequence[str], days: int = _DAYS) -> None:
    """Write ``ca.crt``, ``ca.key``, ``server.pem`` and ``server.key``.

    Parameters
    ----------
    directory : Path
        Made if it does not exist. Nodes, and those who submit runs, get ``ca.crt`` from it; the
        keys have mode 0600 and stay.
    names : sequence of str
        Names and addresses under which the SuperLink is reached. ``localhost`` and ``127.0.0.1``
        are always among them: its own processes use them.
    days : int
        How long the certificates are valid.
    """
    _private_directory(directory)
    now = dt.datetime.now(dt.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Federation authority")])
    all_names = list(dict.fromkeys([*names, "localhost", "127.0.0.1"]))

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
        )

    authority = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, all_names[0])])
    server = (
        builder(subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in all_names]),
            critical=False,
        )
        .sign(ca_key, hashes.SHA384())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    _write_new(directory / "ca.key", ca_key.private_bytes(pem, pkcs8, plain), 0o600)
    _write_new(directory / "ca.crt", authority.public_bytes(pem), 0o644)
    _write_new(directory / "server.key", key.private_bytes(pem, pkcs8, plain), 0o600)
    _write_new(directory / "server.pem", server.public_bytes(pem), 0o644)


def make_node(directory: Path) -> None:
    """Write ``node.key`` (mode 0600) and ``node.pub`` in OpenSSH's format.

    The same as ``ssh-keygen -t ecdsa -b 384 -N ""``.
    """
    _private_directory(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_new(directory / "node.key", private, 0o600)
    _write_new(directory / "node.pub", public + b"\n", 0o644)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    # Never over an existing file: a key that is in use would be lost. Never open to others, not
    # even between its creation and a chmod.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what one party needs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    link = commands.add_parser("link", help="the SuperLink's certificate and its authority")
    link.add_argument("directory", type=Path)
    link.add_argument("--name", action="append", default=[], help="name or address of the link")
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
        parser.exit(1, f"There is a file {error.filename} already; it was left as it is.\n")
    for words, names in (("public", given), ("secret, mode 0600", kept)):
        print(f"Wrote {', '.join(str(options.directory / name) for name in names)} ({words})")


if __name__ == "__main__":
    main()
