"""`flower-kmeans check`: each line well and not, and nothing on the disk is touched."""

import datetime
import ipaddress
import multiprocessing
import os
import re
import socket
import sqlite3
import ssl
import threading
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from ledger_workers import DELTA, answer_of, charge, crash_with_a_hot_journal, gaussian_plan
from typer.testing import CliRunner

from flower_kmeans import check
from flower_kmeans.cli import app
from flower_kmeans.privacy.ledger import Ledger, Limit
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.roster import read_identity, write_members

PLAN = gaussian_plan()
SECRET = 7.1325891

POLICY = """
state_dir = "state"
roster_file = "members/roster.toml"
member_key_file = "members/b.key"
max_epsilon = 0.5
max_total_epsilon = 3.0
algorithms = ["fastlloyd"]
columns = ["age", "income"]
units = ["record"]

[domain]
lower = [0, 0]
upper = [120, 250000]
"""


def written(path, text, mode=0o600):
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


@pytest.fixture
def node(tmp_path):
    """Return a node's files: a policy, a key, a roster and records; all is well with them."""
    write_members(tmp_path / "members", ("a", "b", "c"))
    written(tmp_path / "policy.toml", POLICY)
    written(tmp_path / "records.csv", f"age,income\n41,{SECRET}\n42,20000\n43,30000\n")
    return tmp_path


def snapshot(directory):
    """Return all that there is under a directory, but for the times at which it was read."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[path] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
    return found


def run(node, *arguments):
    """Run the command; return its exit code and its output as one line per finding."""
    before = snapshot(node)
    result = CliRunner().invoke(
        app,
        ["check", "--policy-file", str(node / "policy.toml"), *map(str, arguments)],
        env={"COLUMNS": "1000"},
    )
    assert snapshot(node) == before
    assert "Traceback" not in result.output
    assert str(SECRET) not in result.output
    assert isinstance(result.exception, SystemExit | None)
    found = {}
    for line in result.output.splitlines():
        cells = [cell.strip() for cell in line.split("│")]
        if len(cells) == 5:
            assert cells[1] in ("ok", "no")
            found[cells[2]] = SimpleNamespace(is_well=cells[1] == "ok", text=cells[3])
    assert (result.exit_code == 0) == all(finding.is_well for finding in found.values())
    return result.exit_code, found


def change(node, old, new):
    text = (node / "policy.toml").read_text("utf-8")
    assert text.count(old) == 1
    written(node / "policy.toml", text.replace(old, new))


def test_a_node_that_could_take_part(node):
    code, found = run(node, "--data", node / "records.csv")
    assert code == 0
    assert list(found) == ["versions", "policy file", "accepts", "keys", "ledger", "data"]


def test_the_command_says_yes_or_no(node):
    arguments = ["check", "--policy-file", str(node / "policy.toml")]
    assert "Yes, as far as this can see." in CliRunner().invoke(app, arguments).output
    (node / "members" / "b.key").chmod(0o644)
    result = CliRunner().invoke(app, arguments)
    assert "No, because of: keys." in result.output
    assert result.exit_code == 1


# --------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "transport"),
    [("1.39.0", "gRPC"), ("1.40.1", "HTTP"), ("1.41.0", "HTTP"), ("1.100.0", "HTTP")],
)
def test_versions_that_fit(version, transport, node, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    code, found = run(node)
    assert code == 0
    assert f"flwr {version} (nodes speak {transport})" in found["versions"].text


@pytest.mark.parametrize("version", ["1.38.2", "0.99", "2.0.0", "2.1"])
def test_versions_that_do_not_fit(version, node, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    code, found = run(node)
    assert code == 1
    assert not found["versions"].is_well
    assert f"Expected flwr>=1.39,<2. Got {version}" in found["versions"].text
    assert "pip install" in found["versions"].text


def test_a_package_that_is_missing_and_an_old_python(node, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "flwr to be installed" in run(node)[1]["versions"].text
    monkeypatch.setattr(check, "FIRST_PYTHON", (9, 0))
    assert "Expected Python" in run(node)[1]["versions"].text


def test_the_range_is_that_of_the_package():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"flwr>={check.FLWR[0]},<{check.FLWR[1]}" in project["dependencies"]
    assert project["requires-python"] == ">={}.{}".format(*check.FIRST_PYTHON)


# --------------------------------------------------------------------------- the policy


@pytest.mark.parametrize(
    ("text", "mode", "expected"),
    [
        (POLICY, 0o666, "Got mode 0666"),
        ("max_epsilom = 1", 0o600, "max_epsilom"),
        ("max_epsilon: 1", 0o600, "not TOML"),
        ("max_epsilon = 0", 0o600, "max_epsilon"),
        ('columns = "age"', 0o600, "columns"),
    ],
)
def test_a_policy_file_that_cannot_be_followed(text, mode, expected, node):
    written(node / "policy.toml", text, mode)
    code, found = run(node, "--data", node / "records.csv")
    assert code == 1
    assert list(found) == ["versions", "policy file"]
    assert expected in found["policy file"].text


def test_a_policy_file_that_is_not_there(node):
    (node / "policy.toml").unlink()
    code, found = run(node)
    assert code == 1
    assert "cannot be read" in found["policy file"].text


def test_what_the_node_would_accept_is_in_words(node):
    text = run(node)[1]["accepts"].text
    for words in (
        "trust oblivious-server or distributed-noise or clients-only",
        "algorithm fastlloyd",
        "epsilon up to 0.5 at delta 1e-06 in one run",
        "per record;",
        "at least 3 clients",
        "max_colluders of at least 1",
        "at most 100 rounds, with 3 attempts each",
        "keys roster",
        "bounds 0 to 120, 0 to 250000",
        "columns 'age', 'income'",
    ):
        assert words in text
    assert f'policy-file="{node.resolve()}/policy.toml"' in run(node)[1]["policy file"].text

    written(node / "policy.toml", 'state_dir = "state"')
    text = run(node)[1]["accepts"].text
    for words in ("any algorithm", "per record or client", "pin domain", "pin columns"):
        assert words in text
    written(node / "policy.toml", 'state_dir = "state"\n[domain]\nradius = 2\ncenter = [0, 0, 0]')
    assert "within 2 of a centre, 3 columns" in run(node)[1]["accepts"].text


@pytest.mark.parametrize("setting", ["trusts", "algorithms", "units"])
def test_a_policy_that_accepts_nothing(setting, node):
    written(node / "policy.toml", f'state_dir = "state"\n{setting} = []')
    code, found = run(node)
    assert code == 1
    assert f"Every run is refused: {setting}" in found["accepts"].text


# --------------------------------------------------------------------------- keys

FILES = 'roster_file = "members/roster.toml"\nmember_key_file = "members/b.key"\n'


def digest_of(node):
    return read_identity(node / "members" / "roster.toml", node / "members" / "b.key").roster.digest


def test_the_own_key_and_the_digest_to_compare(node):
    code, found = run(node)
    assert code == 0
    text = found["keys"].text
    assert "3 clients, each with a valid key. The own key is that of b, number 2 of 3." in text
    assert "no beacon" in text
    assert digest_of(node).hex() in text.replace(" ", "")
    assert "compare it by phone" in text


def test_a_beacon_comes_with_its_condition(node):
    before = digest_of(node).hex()
    with (node / "members" / "roster.toml").open("a") as file:
        file.write(f'beacon = "{"5a" * 32}"\n')
    text = run(node)[1]["keys"].text
    assert f"The beacon is {'5a' * 32}. It must have been fixed after all keys were" in text
    assert digest_of(node).hex() in text.replace(" ", "")
    assert before not in text.replace(" ", "")


def test_keys_that_are_relayed_or_not_needed(node):
    change(node, FILES, "")
    code, found = run(node)
    assert (code, "passive server only" in found["keys"].text) == (0, True)
    assert "keys relayed;" in found["accepts"].text
    change(node, "units", 'trusts = ["plain", "trusted-server"]\nunits')
    assert "Not needed" in run(node)[1]["keys"].text


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda members: (members / "b.key").chmod(0o644), "mode 0600. Got 0644"),
        (lambda members: (members / "b.key").write_bytes(b"k" * 31), "32 bytes. Got 31"),
        (lambda members: (members / "b.key").unlink(), "member_key_file"),
        (lambda members: (members / "b.key").write_bytes(b"k" * 32), "a key that is not there"),
        (lambda members: (members / "roster.toml").chmod(0o666), "Got mode 0666"),
        (lambda members: (members / "roster.toml").write_text("b = 5"), "Expected b in"),
        (lambda members: (members / "roster.toml").unlink(), "cannot be read"),
    ],
)
def test_a_roster_or_a_key_that_cannot_be_used(spoil, expected, node):
    spoil(node / "members")
    code, found = run(node)
    assert code == 1
    assert expected in found["keys"].text
    assert "keygen" in found["keys"].text
    assert "kkkk" not in found["keys"].text


@pytest.mark.parametrize(("n", "expected"), [(2, "min_clients=3 clients"), (65, "a beacon")])
def test_a_roster_that_is_too_short_or_needs_a_beacon(n, expected, node):
    names = ["b", *(f"c{i}" for i in range(1, n))]
    write_members(node / "others", names)
    change(node, FILES, FILES.replace("members", "others"))
    code, found = run(node)
    assert code == 1
    assert expected in found["keys"].text


# --------------------------------------------------------------------------- the ledger


def spend(node, runs):
    with Ledger(node / "state") as ledger:
        for number in range(1, runs + 1):
            charge(ledger, answer_of(number), PLAN, Limit(100.0, DELTA))
        return ledger.epsilon(DELTA)


def test_a_ledger_that_will_be_made(node):
    code, found = run(node)
    assert code == 0
    assert "None yet" in found["ledger"].text
    assert not (node / "state").exists()
    (node / "state").mkdir(mode=0o700)
    assert "None yet" in run(node)[1]["ledger"].text
    (node / "state" / FILE_NAME).touch(mode=0o600)  # made, and nothing written yet
    assert "epsilon 0 of 3" in run(node)[1]["ledger"].text


def test_what_was_spent_and_what_is_left(node):
    spent = spend(node, 2)
    code, found = run(node)
    assert code == 0
    text = found["ledger"].text
    left = f"epsilon {spent:.4g} of 3 at delta 1e-06 is spent or reserved, {3 - spent:.4g} is left"
    assert left in text


def test_a_ledger_with_nothing_left(node):
    spent = spend(node, 5)
    change(node, "max_total_epsilon = 3.0", f"max_total_epsilon = {spent!r}")
    code, found = run(node)
    assert code == 1
    assert "no further private run" in found["ledger"].text


def test_no_ledger_at_all(node):
    change(node, 'state_dir = "state"', "")
    code, found = run(node)
    assert code == 1
    assert "every private run is refused" in found["ledger"].text
    assert "mode 0700" in found["ledger"].text
    change(node, "units", "in_memory = true\nunits")
    code, found = run(node)
    assert (code, "nothing bounds" in found["ledger"].text) == (0, True)
    change(node, "in_memory = true", 'trusts = ["plain"]')
    code, found = run(node)
    assert (code, "no private run is accepted" in found["ledger"].text) == (0, True)


def damage(path):
    path.write_bytes(b"no database" * 100)


def other_version(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 2")
    db.close()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda state: state.chmod(0o755), "mode 0700. Got 0755"),
        (lambda state: (state / FILE_NAME).chmod(0o644), "mode 0600. Got 0644"),
        (lambda state: damage(state / FILE_NAME), "cannot be used"),
        (lambda state: other_version(state / FILE_NAME), "Got version 2"),
        (lambda state: (state / FILE_NAME).unlink() or (state / FILE_NAME).mkdir(0o700), "ledger"),
    ],
)
def test_a_ledger_that_cannot_be_opened(spoil, expected, node):
    spend(node, 1)
    spoil(node / "state")
    code, found = run(node)
    assert code == 1
    assert expected in found["ledger"].text


@pytest.mark.parametrize("name", ["file/state", "missing/state", "file"])
def test_a_ledger_that_could_not_be_made(name, node):
    written(node / "file", "")
    change(node, 'state_dir = "state"', f'state_dir = "{name}"')
    code, found = run(node)
    assert code == 1
    assert "state_dir" in found["ledger"].text


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may write everywhere")
def test_a_parent_that_cannot_be_written(node):
    (node / "sealed").mkdir()
    change(node, 'state_dir = "state"', 'state_dir = "sealed/state"')
    (node / "sealed").chmod(0o500)
    code, found = run(node)
    assert (code, "writable" in found["ledger"].text) == (1, True)


def test_a_ledger_that_a_process_left_half_written_is_not_touched(node):
    spend(node, 1)
    process = multiprocessing.get_context("spawn").Process(
        target=crash_with_a_hot_journal, args=(node / "state" / FILE_NAME,)
    )
    process.start()
    process.join(60)
    code, found = run(node)
    assert code == 1
    assert "died while it wrote" in found["ledger"].text
    with Ledger(node / "state") as ledger:  # which undoes it
        assert ledger.epsilon(DELTA) > 0
    assert run(node)[0] == 0


# --------------------------------------------------------------------------- records


def test_records_that_fit(node):
    code, found = run(node, "--data", node / "records.csv")
    assert code == 0
    assert "columns 'age', 'income', as pinned" in found["data"].text
    # Neither how many there are nor what they hold.
    assert not set(re.findall(r"\d+", found["data"].text.replace(str(node), ""))) & {"3", "41"}
    np.savez(node / "records.npz", age=[1.0], income=[2.0])
    assert run(node, "--data", node / "records.npz")[0] == 0


def test_names_that_are_not_pinned_are_not_called_pinned(node):
    change(node, 'columns = ["age", "income"]\n', "")
    code, found = run(node, "--data", node / "records.csv")
    assert (code, "and the policy pins no names" in found["data"].text) == (0, True)
    (node / "records.csv").write_text("age,income\n1,\n", "utf-8")
    code, found = run(node, "--data", node / "records.csv")
    assert (code, "without empty cells" in found["data"].text) == (1, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("income,age\n1,2\n", "got ['income', 'age']"),
        ("age,income,extra\n1,2,3\n", "'extra'"),
        ("age\n1\n", "got ['age']"),
        ("1,2\n3,4\n", "Got numbers instead"),
        (f"age,income\n{SECRET},\n2,3\n", "is empty, NaN or infinite in some records"),
        ("age,income\nx,1\n", "does not hold numbers"),
        (f"age,income\n{SECRET}\n", "not a csv table"),
    ],
)
def test_records_that_do_not_fit(text, expected, node):
    written(node / "records.csv", text)
    code, found = run(node, "--data", node / "records.csv")
    assert code == 1
    assert expected in found["data"].text


def test_a_file_without_a_header_is_named_by_its_operator(node):
    written(node / "records.csv", f"{SECRET},2\n3,4\n")
    code, found = run(node, "--data", node / "records.csv")
    assert code == 1
    assert "--header" in found["data"].text
    assert str(SECRET) not in found["data"].text
    assert run(node, "--data", node / "records.csv", "--header", "age,income")[0] == 0
    assert run(node, "--data", node / "records.csv", "--header", "income,age")[0] == 1


def test_the_number_of_columns_is_that_of_the_bounds(node):
    change(node, 'columns = ["age", "income"]', "")
    assert run(node, "--data", node / "records.csv")[0] == 0
    np.save(node / "records.npy", np.ones((2, 3)))
    code, found = run(node, "--data", node / "records.npy")
    assert code == 1
    assert "Expected 2 columns" in found["data"].text
    code, found = run(node, "--data", node / "none.csv")
    assert (code, "does not exist" in found["data"].text) == (1, True)


# --------------------------------------------------------------------------- the SuperLink


def certificate(name, issuer, public_key, signer, *, authority):
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not authority:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    else:
        usage = dict.fromkeys(
            (
                "digital_signature",
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
                "crl_sign",
            ),
            False,
        )
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, **usage), critical=True)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    """Two authorities, and a server's certificate for 127.0.0.1 by the first."""
    folder = tmp_path_factory.mktemp("link")
    for name in ("ca", "other"):
        key = ec.generate_private_key(ec.SECP384R1())
        data = certificate(name, name, key.public_key(), key, authority=True)
        (folder / f"{name}.crt").write_bytes(data)
        if name == "ca":
            authority = key
    key = ec.generate_private_key(ec.SECP384R1())
    data = certificate("link", "ca", key.public_key(), authority, authority=False)
    (folder / "server.pem").write_bytes(data)
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


@pytest.fixture
def link(credentials):
    """A server that speaks TLS, and the same without, on 127.0.0.1; their addresses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials / "server.pem", credentials / "server.key")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]

    def serve(listener, is_secure):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if is_secure:
                        context.wrap_socket(connection, server_side=True).close()
                    else:
                        connection.recv(1)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                except OSError:
                    continue

    threads = [
        threading.Thread(target=serve, args=(listener, is_secure), daemon=True)
        for listener, is_secure in zip(listeners, (True, False), strict=True)
    ]
    for thread in threads:
        thread.start()
    yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


def test_a_superlink_that_is_reached_and_verified(node, link, credentials):
    arguments = ("--superlink", link[0], "--root-certificates", credentials / "ca.crt")
    code, found = run(node, *arguments)
    assert code == 0
    assert "verified by" in found["SuperLink"].text


def test_a_superlink_is_looked_at_also_without_a_policy(node, link, credentials):
    (node / "policy.toml").unlink()
    arguments = ("--superlink", link[0], "--root-certificates", credentials / "ca.crt")
    code, found = run(node, *arguments)
    assert (code, found["SuperLink"].is_well) == (1, True)


def test_a_superlink_that_cannot_be_trusted_or_reached(node, link, credentials):
    secure, open_one = link
    port = secure.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = closed.getsockname()[1]
    for superlink, authority, expected in (
        (secure, "other.crt", "is refused"),
        (secure, None, "is refused"),
        (f"localhost:{port}", "ca.crt", "is refused"),  # a name that is not in the certificate
        (open_one, "ca.crt", "does not speak TLS"),
        (f"127.0.0.1:{unused}", "ca.crt", "cannot be reached"),
        ("no-such-host.invalid:443", "ca.crt", "cannot be reached"),
        ("127.0.0.1:99999", "ca.crt", "cannot be reached"),
        ("127.0.0.1", "ca.crt", "HOST:PORT"),
        ("127.0.0.1:http", "ca.crt", "HOST:PORT"),
        (secure, "none.crt", "cannot be read"),
        (secure, "server.key", "cannot be read"),
    ):
        trusted = () if authority is None else ("--root-certificates", credentials / authority)
        code, found = run(node, "--superlink", superlink, *trusted)
        assert code == 1
        assert not found["SuperLink"].is_well
        assert expected in found["SuperLink"].text
        assert "docs/deploy.md" in found["SuperLink"].text


def test_certificates_without_a_server_are_an_error(node, credentials):
    result = CliRunner().invoke(
        app,
        [
            "check",
            "--policy-file",
            str(node / "policy.toml"),
            "--root-certificates",
            str(credentials / "ca.crt"),
        ],
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --root-certificates needs --superlink")
