"""`flower-kmeans check`: each line well and not, and nothing on the disk is touched."""

import multiprocessing
import os
import re
import shlex
import shutil
import socket
import sqlite3
import ssl
import subprocess
import threading
import tomllib
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ledger_workers import (
    DELTA,
    answer_of,
    charge,
    crash_with_a_hot_journal,
    gaussian_plan,
)
from scripts import load_script
from typer.testing import CliRunner

from flower_kmeans.cli import check
from flower_kmeans.cli.app import app
from flower_kmeans.cli.limits import LIMITS, limits_in_words
from flower_kmeans.privacy.ledger import Ledger, LifetimeLimit
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.roster import read_identity, write_members

pytestmark = pytest.mark.claim("threat-model", "flower-kmeans-check-policy")

ROOT = Path(__file__).parents[2]
PLAN = gaussian_plan()
SECRET = 7.1325891
SPAWN = multiprocessing.get_context("spawn")

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
        if len(cells) == 5 and not cells[2]:  # a further line of a finding
            assert not cells[1]
            found[list(found)[-1]].text += f"\n{cells[3]}"
        elif len(cells) == 5:
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
    assert list(found) == [
        "versions",
        "policy file",
        "accepts",
        "keys",
        "ledger",
        "files",
        "data",
    ]


def test_the_conclusion_comes_first_and_then_what_is_wrong(node):
    arguments = ["check", "--policy-file", str(node / "policy.toml")]
    answer = "Could this node take part? "
    assert (
        CliRunner()
        .invoke(app, arguments)
        .output.startswith(f"{answer}Yes, as far as this")
    )
    (node / "members" / "b.key").chmod(0o644)
    result = CliRunner().invoke(app, arguments)
    assert result.output.startswith(f"{answer}No, because of: keys.\n")
    assert result.exit_code == 1
    assert next(iter(run(node)[1])) == "keys"


def refused(node, name, expected, *arguments):
    """Require that one thing is wrong, and return what is said of it."""
    code, found = run(node, *arguments)
    assert code == 1
    assert not found[name].is_well
    assert expected in found[name].text
    return found[name].text


# --------------------------------------------------------------------------- versions


def test_versions_that_fit_are_those_of_the_package(node, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"flwr>={check.FLWR[0]},<{check.FLWR[1]}" in project["dependencies"]
    for version, transport in (
        ("1.39.0", "gRPC"),
        ("1.40.1", "HTTP"),
        ("1.100.0", "HTTP"),
    ):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        assert (
            f"flwr {version} (nodes speak {transport})" in run(node)[1]["versions"].text
        )
    for version in ("1.38.2", "2.0.0"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        text = refused(node, "versions", f"Expected flwr>=1.39,<2. Got {version}")
        assert "pip install" in text


# ------------------------------------------------------------------------ what is wrong

FILES = 'roster_file = "members/roster.toml"\nmember_key_file = "members/b.key"\n'


def policy(text, mode=0o600):
    return lambda node: written(node / "policy.toml", text, mode)


def records(text):
    return lambda node: written(node / "records.csv", text)


def state_of(name):
    """Name another directory for the ledger, where there is a file."""
    return lambda node: (
        written(node / "file", "")
        and change(node, 'state_dir = "state"', f'state_dir = "{name}"')
    )


def members(n):
    """Return what makes a roster of n clients and names it in the policy."""

    def make(node):
        write_members(node / "others", ["b", *(f"c{i}" for i in range(1, n))])
        change(node, FILES, FILES.replace("members", "others"))

    return make


def spend(node, runs):
    with Ledger(node / "state") as ledger:
        for number in range(1, runs + 1):
            charge(ledger, answer_of(number), PLAN, LifetimeLimit(100.0, DELTA))
        return ledger.epsilon(DELTA)


def spent_ledger(spoil):
    return lambda node: spend(node, 1) and spoil(node / "state")


def spend_all(node):
    change(node, "max_total_epsilon = 3.0", f"max_total_epsilon = {spend(node, 5)!r}")


def half_written(state):
    process = SPAWN.Process(target=crash_with_a_hot_journal, args=(state / FILE_NAME,))
    process.start()
    process.join(60)


def other_version(state):
    with sqlite3.connect(state / FILE_NAME) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()


def three_columns(node):
    change(node, 'columns = ["age", "income"]\n', "")
    written(node / "records.csv", "a,b,c\n1,2,3\n")


@pytest.mark.parametrize(
    ("name", "expected", "spoil"),
    [
        ("policy file", "Got mode 0666", policy(POLICY, 0o666)),
        ("policy file", "max_epsilom", policy("max_epsilom = 1")),
        ("policy file", "not TOML", policy("max_epsilon: 1")),
        ("policy file", "cannot be read", lambda node: (node / "policy.toml").unlink()),
        *(
            (
                "accepts",
                f"Every run is refused: {each}",
                policy(f'state_dir = "s"\n{each} = []'),
            )
            for each in ("trusts", "algorithms", "units")
        ),
        (
            "keys",
            "0600. Got 0644",
            lambda node: (node / "members" / "b.key").chmod(0o644),
        ),
        (
            "keys",
            "Got 31",
            lambda node: (node / "members" / "b.key").write_bytes(b"k" * 31),
        ),
        (
            "keys",
            "not there",
            lambda node: (node / "members" / "b.key").write_bytes(b"k" * 32),
        ),
        (
            "keys",
            "cannot be read",
            lambda node: (node / "members" / "roster.toml").unlink(),
        ),
        ("keys", "min_clients=3 clients", members(2)),
        ("keys", "a beacon", members(65)),
        (
            "vertical",
            "party, this node's slot",
            policy('trusts = ["vertical"]\nstate_dir = "s"'),
        ),
        ("ledger", "mode 0700", lambda node: change(node, 'state_dir = "state"', "")),
        ("ledger", "0700. Got 0755", spent_ledger(lambda state: state.chmod(0o755))),
        (
            "ledger",
            "0600. Got 0644",
            spent_ledger(lambda s: (s / FILE_NAME).chmod(0o644)),
        ),
        ("ledger", "Got version 2", spent_ledger(other_version)),
        ("ledger", "died while it wrote", spent_ledger(half_written)),
        ("ledger", "no further private run", spend_all),
        ("ledger", "state_dir", state_of("file/state")),
        ("ledger", "state_dir", state_of("missing/state")),
        ("ledger", "state_dir", state_of("file")),
        ("files", "table", lambda node: (node / "records.csv").chmod(0o640)),
        ("files", "rows.key", lambda node: written(node / "rows.key", "k" * 32, 0o644)),
        ("data", "Got ['income', 'age']", records("income,age\n1,2\n")),
        ("data", "Got ['age']", records("age\n1\n")),
        (
            "data",
            "Got numbers instead: name the columns with --header",
            records("1,2\n3,4\n"),
        ),
        (
            "data",
            "has no value in about 50 %",
            records(f"age,income\n{SECRET},\n2,3\n"),
        ),
        ("data", "'age' holds no number in all of its", records("age,income\nx,1\n")),
        ("data", "all of the lines are malformed", records(f"age,income\n{SECRET}\n")),
        ("data", "say that it names the columns", records(f"age,{SECRET}\n1,2\n")),
        ("data", "no usable record", records("age,income\n")),
        (
            "data",
            "'age' is a column with one value only",
            records("age,income\n1,2\n1,3\n"),
        ),
        ("data", "does not exist", lambda node: (node / "records.csv").unlink()),
        (
            "data",
            "Expected 2 columns, as the key domain in the policy file",
            three_columns,
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(name, expected, spoil, node):
    spoil(node)
    text = refused(node, name, expected, "--data", node / "records.csv")
    assert check.hint_for(name) in text
    assert "kkkk" not in text  # of a key


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may write everywhere")
def test_a_parent_that_cannot_be_written(node):
    (node / "sealed").mkdir()
    change(node, 'state_dir = "state"', 'state_dir = "sealed/state"')
    (node / "sealed").chmod(0o500)
    refused(node, "ledger", "writable")


@pytest.mark.claim("protocol", "10-ledger-clients-privacy")
@pytest.mark.parametrize("exists", [True, False])
def test_a_ledger_whose_disk_is_full_is_not_one_that_does_not_allow(
    node, exists, monkeypatch
):
    if exists:
        Ledger(node / "state").close()
    usage = shutil.disk_usage(node)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=9_990_000))
    text = refused(node, "ledger", "The ledger's disk is full")
    assert "does not allow" not in text
    monkeypatch.undo()
    assert run(node)[1]["ledger"].is_well
    spend_all(node)
    text = refused(node, "ledger", "The ledger does not allow it")
    assert "disk" not in text


@pytest.mark.claim("threat-model", "work-dir-vertical-state")
@pytest.mark.skipif(find_spec("tenseal") is None, reason="party 0 needs tenseal")
def test_the_work_dir_of_party_0_is_private_and_without_links(node):
    work = node / "work"
    settings = (
        'trusts = ["vertical"]\nparty = 0\nstate_dir = "state"\nwork_dir = "work"'
    )
    written(node / "policy.toml", settings)
    assert run(node)[1]["vertical"].is_well  # it will be made
    work.mkdir(mode=0o700)
    assert run(node)[1]["vertical"].is_well
    for bits in (0o755, 0o1777):
        work.chmod(bits)
        refused(node, "vertical", f"with mode 0700. Got {bits:04o}")
    work.chmod(0o700)
    (work / ("ab" * 32)).symlink_to(node)
    assert "ab" * 32 in refused(node, "vertical", "Got symbolic links instead")
    written(node / "policy.toml", settings.replace('"work"', '"unmounted/work"'))
    refused(node, "vertical", "cannot be used")


@pytest.mark.claim("threat-model", "rows-key-file-none")
def test_the_key_of_rows_is_read_by_its_owner_alone(node):
    settings = 'trusts = ["vertical"]\nparty = 1\nstate_dir = "state"\nrows_key_file = "rows.key"'
    written(node / "policy.toml", settings)
    refused(node, "vertical", "rows.key cannot be read")
    key = node / "rows.key"
    key.write_bytes(bytes(8))
    key.chmod(0o644)
    refused(node, "vertical", "with mode 0600. Got 0644")
    key.chmod(0o600)
    refused(node, "vertical", "rows_key_file with at least 16 bytes. Got 8")
    key.write_bytes(bytes(32))
    assert run(node)[1]["vertical"].is_well


# ------------------------------------------------------------------------- what is well


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
        "bounds age 0 to 120, income 0 to 250000;",
        "columns 'age', 'income'",
    ):
        assert words in text
    assert (
        f'policy-file="{node.resolve()}/policy.toml"'
        in run(node)[1]["policy file"].text
    )
    written(node / "policy.toml", 'state_dir = "state"')
    text = run(node)[1]["accepts"].text
    for words in ("any algorithm", "per record or client", "pin domain", "pin columns"):
        assert words in text
    written(
        node / "policy.toml",
        'state_dir = "state"\n[domain]\nradius = 2\ncenter = [0, 0, 0]',
    )
    assert "within 2 of a centre, 3 columns" in run(node)[1]["accepts"].text


def test_bounds_without_names_are_numbered_and_long_lists_are_counted(node):
    def accepted(n):
        bounds = f"lower = {[0.25] * n}\nupper = {[10**6] * n}"
        written(node / "policy.toml", f'state_dir = "state"\n[domain]\n{bounds}')
        return run(node)[1]["accepts"].text

    text = accepted(2)
    assert "bounds column 0: 0.25 to 1e6, column 1: 0.25 to 1e6;" in text
    text = accepted(25)
    assert "column 19: 0.25 to 1e6, and 5 more;" in text
    assert "column 20" not in text


@pytest.mark.parametrize("beacon", ["", "5a" * 32])
def test_the_own_key_the_beacon_and_the_digest_to_compare(node, beacon):
    folder = node / "members"
    if beacon:
        with (folder / "roster.toml").open("a") as file:
            file.write(f'beacon = "{beacon}"\n')
    text = run(node)[1]["keys"].text
    assert (
        "3 clients, each with a valid key. The own key is that of b, number 2 of 3."
        in text
    )
    must = f"The beacon is {beacon}. It must have been fixed after all keys were"
    assert (must if beacon else "no beacon") in text
    digest = read_identity(folder / "roster.toml", folder / "b.key").roster.digest
    assert digest.hex() in text.replace(" ", "")
    assert "compare it by phone" in text


def test_a_ledger_that_will_be_made_and_what_is_left_in_one(node):
    assert "None yet" in run(node)[1]["ledger"].text
    assert not (node / "state").exists()
    (node / "state").mkdir(mode=0o700)
    assert "None yet" in run(node)[1]["ledger"].text
    (node / "state" / FILE_NAME).touch(mode=0o600)  # made, and nothing written yet
    assert "epsilon 0 of 3" in run(node)[1]["ledger"].text
    spent = spend(node, 2)
    left = f"epsilon {spent:.4g} of 3 at delta 1e-06 is spent or reserved, {3 - spent:.4g} is left"
    assert left in run(node)[1]["ledger"].text


STATE, PINNED = 'state_dir = "state"', 'columns = ["age", "income"]\n'


@pytest.mark.parametrize(
    ("old", "new", "name", "expected"),
    [
        (STATE, "in_memory = true", "ledger", "nothing bounds"),
        (STATE, 'trusts = ["plain"]', "ledger", "no private run is accepted"),
        (FILES, "", "keys", "passive server only"),
        (FILES, "", "accepts", "keys relayed;"),
        (FILES, 'trusts = ["plain", "trusted-server"]\n', "keys", "Not needed"),
        (PINNED, "", "data", "and the policy pins no names"),
    ],
)
def test_a_node_without_a_ledger_keys_or_names_of_columns(
    node, old, new, name, expected
):
    change(node, old, new)
    code, found = run(node, "--data", node / "records.csv")
    assert (code, expected in found[name].text) == (0, True)


def test_records_that_fit(node):
    code, found = run(node, "--data", node / "records.csv")
    assert code == 0
    assert "columns 'age', 'income', as pinned" in found["data"].text
    # Neither how many there are nor what they hold.
    assert not set(re.findall(r"\d+", found["data"].text.replace(str(node), ""))) & {
        "3",
        "41",
    }
    np.savez(node / "records.npz", age=[1.0], income=[2.0])
    (node / "records.npz").chmod(0o600)
    assert run(node, "--data", node / "records.npz")[0] == 0
    written(node / "records.csv", f"{SECRET},2\n3,4\n")
    assert run(node, "--data", node / "records.csv", "--header", "age,income")[0] == 0
    assert run(node, "--data", node / "records.csv", "--header", "income,age")[0] == 1


# ------------------------------------------------------------------- who may read files


def key_file(place):
    """Return what writes a secret to a place of the node, and returns its path."""

    def write(node):
        (node / place).parent.mkdir(exist_ok=True)
        return written(node / place, "k" * 32)

    return write


def source_file(node):
    """Name the table in a source.toml that lies elsewhere; return the table."""
    (node / "named").mkdir()
    written(node / "named" / "source.toml", 'data = "../records.csv"\n')
    return node / "records.csv"


def database(node):
    """Keep the table in SQLite, in a file that a source.toml names; return the file."""
    path = node / "visits.db"
    path.touch(0o600)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE visits (age REAL, income REAL)")
        connection.executemany(
            "INSERT INTO visits VALUES (?, ?)", [(41, 1e4), (42, 2e4)]
        )
    query = "SELECT age, income FROM visits"
    written(node / "source.toml", f'data = "sqlite:///{path}"\nquery = "{query}"\n')
    return path


SECRETS = {  # what the pages' commands make at a node, and what --data names then
    "the table": (lambda node: node / "records.csv", "records.csv"),
    "the table of a source.toml": (source_file, "named/source.toml"),
    "the database of a source.toml": (database, "source.toml"),
    "the key of rows beside the table": (key_file("rows.key"), "records.csv"),
    "the node's key beside the policy": (key_file("node.key"), None),
    "another key beside the member key": (key_file("members/d.key"), None),
}


@pytest.mark.claim("deploy", "check-names-file-others")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o666])
@pytest.mark.parametrize("name", SECRETS)
def test_what_others_may_read_or_change_is_refused_with_the_command_that_mends_it(
    name, mode, node
):
    make, named = SECRETS[name]
    path = make(node)
    data = () if named is None else ("--data", node / named)
    assert run(node, *data)[0] == 0
    path.chmod(mode)
    text = refused(node, "files", f"Got {mode:04o} instead: ", *data)
    assert "kkkk" not in text
    (command,) = re.findall(r"instead: (chmod 600 \S+)\.", text)
    subprocess.run(shlex.split(command), check=True)
    assert run(node, *data)[0] == 0


@pytest.mark.claim("deploy", "check-names-file-others")
@pytest.mark.parametrize("name", SECRETS)
def test_what_is_another_users_is_refused_with_the_command_that_mends_it(
    name, node, monkeypatch
):
    make, named = SECRETS[name]
    path = make(node)
    data = () if named is None else ("--data", node / named)
    stat, uid = Path.stat, os.geteuid() + 1

    def stat_of_another(self, **options):
        facts = stat(self, **options)
        is_it = self.name == path.name
        return os.stat_result((*facts[:4], uid, *facts[5:])) if is_it else facts

    monkeypatch.setattr(Path, "stat", stat_of_another)
    text = refused(node, "files", f"Got user id {uid} instead. As root: ", *data)
    assert f"chown {os.geteuid()} {path.resolve()}." in text.replace("named/../", "")


@pytest.mark.claim("deploy", "check-names-file-others")
def test_a_reason_lets_others_read_the_table_and_never_a_key(node):
    (node / "records.csv").chmod(0o640)
    data = ("--data", node / "records.csv")
    assert "--accept files=REASON" in refused(node, "files", "Got 0640", *data)
    because = ("--accept", "files=the group exports it")
    code, found = run(node, *data, *because)
    assert code == 0
    assert "Got 0640" in found["files"].text
    assert "Accepted because: the group exports it." in found["files"].text
    written(node / "rows.key", "k" * 32, 0o640)
    text = refused(node, "files", "key file", *data, *because)
    assert "records.csv" not in text.replace(str(node / "rows.key"), "")


def test_paths_are_quoted_in_the_commands(node):
    (node / "my records.csv").write_text("age,income\n1,2\n3,4\n", "utf-8")
    (node / "my records.csv").chmod(0o644)
    path = node / "my records.csv"
    assert f"chmod 600 '{path}'." in refused(node, "files", "Got 0644", "--data", path)


# -------------------------------------------------------------------------- the records

DOMAIN = """
[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 100
[[columns]]
kind = "number"
name = "income"
lower = 0
upper = 100000
missing = 20000
"""


def people(n, n_commas=0, n_missing=0, n_old=0, sign=";"):
    """Return a file of n records, some of which have incomes with commas, no age or a high one."""
    rng = np.random.default_rng(6)
    ages = [
        *[""] * n_missing,
        *["123"] * n_old,
        *rng.integers(20, 60, n - n_missing - n_old),
    ]
    incomes = [f"{x:.2f}".replace(".", ",") for x in rng.uniform(9e3, 9e4, n_commas)]
    incomes += [str(x) for x in rng.integers(9_000, 90_000, n - n_commas)]
    lines = [f"{age}{sign}{income}" for age, income in zip(ages, incomes, strict=True)]
    return records("\n".join([f"age{sign}income", *lines]))


@pytest.fixture
def declared(node):
    """Return a node whose policy pins a domain file."""
    written(node / "domain.toml", DOMAIN)
    text = POLICY[: POLICY.index("[domain]")].replace(
        'columns = ["age", "income"]\n', ""
    )
    written(node / "policy.toml", f'{text}domain = "domain.toml"\n')
    return node


@pytest.mark.claim("deploy", "check-persons")
def test_persons_are_counted_for_the_holder_of_the_table(node):
    ids = ["A", "A", "a", ""]
    lines = [f"{one},{40 + i},{20000 + i}" for i, one in enumerate(ids)]
    written(node / "records.csv", "\n".join(["who,age,income", *lines]))
    source = written(node / "source.toml", 'data = "records.csv"\nperson = "who"\n')
    code, found = run(node, "--data", source)
    assert code == 0, found
    text = found["persons"].text
    assert text.startswith("For the holder of the table alone: 3 persons by 'who': 1.3")
    assert "LOOK: 1 record without an id" in text
    assert "LOOK: 2 ids differing from another one only in case" in text
    _, without = run(node, "--data", node / "records.csv")
    assert "persons" not in without


@pytest.mark.claim("deploy", "check-persons")
def test_a_node_of_persons_alone_needs_their_column(node):
    written(
        node / "policy.toml", POLICY.replace('units = ["record"]', 'units = ["person"]')
    )
    refused(
        node, "persons", "person in the source.toml", "--data", node / "records.csv"
    )


@pytest.mark.claim("deploy", "shares-rounded-neither-value")
def test_a_decimal_comma_is_refused_with_what_to_do(declared):
    """Of all columns and causes at once; a stated value for missing cells does not hide it."""
    people(200, n_commas=190, n_missing=42, n_old=20)(declared)
    data = ("--data", declared / "records.csv")
    text = refused(
        declared, "data", "'income' holds no number in about 95 % of its cells", *data
    )
    for words in (
        "which look like a decimal comma: --decimal ,",
        "(limit 5 %: its format is not the declared one",
        "'age' has no value in about 21 % of its cells (limit 20 %",
        "'age' is outside the bounds with about 13 % of its values (limit 5 %",
        "about 95 % of the records count as none (limit 50 %",
        "--accept NAME=REASON",
        "flower-kmeans inspect",
    ):
        assert words in text
    assert "190" not in text
    text = refused(declared, "data", "'age' is outside", *data, "--decimal", ",")
    assert "income" not in text
    people(200, n_commas=190, n_missing=40, n_old=8)(declared)
    code, found = run(declared, *data, "--decimal", ",")
    assert code == 0
    assert found["data"].text.endswith(
        " Its first line names the columns, as the node takes it. Noted: 'age' has no value in "
        "about 20 % of its cells; 'age' is outside the bounds with about 5 % of its values; about "
        "20 % of the records count as none."
    )


@pytest.mark.claim("deploy", "shares-rounded-neither-value")
def test_what_is_accepted_needs_a_reason_and_is_printed_with_it(declared):
    people(200, n_missing=120)(declared)
    data = ("--data", declared / "records.csv")
    text = refused(declared, "data", "'age' has no value in about 60 %", *data)
    assert "about 60 % of the records count as none" in text
    because = (
        "--accept",
        "age=not asked before 2020",
        "--accept",
        "records = as the study says",
    )
    code, found = run(declared, *data, *because)
    assert code == 0
    assert found["data"].text.endswith(
        "Accepted: 'age' has no value in about 60 % of its cells, accepted because: not asked "
        "before 2020; about 60 % of the records count as none, accepted because: as the study says."
    )
    refused(declared, "data", "Got ['size'] instead", *data, "--accept", "size=why")
    for text in ("age", "age=", "=why", "age= "):
        result = CliRunner().invoke(
            app, ["check", "--policy-file", "p", "--accept", text]
        )
        assert result.exit_code == 1
        assert "Expected --accept as NAME=REASON" in result.stderr


def test_bounds_that_a_policy_pins_without_a_domain_file_count_as_well(node):
    people(100, n_old=6, sign=",")(node)
    data = ("--data", node / "records.csv")
    refused(
        node, "data", "'age' is outside the bounds with about 6 % of its values", *data
    )
    change(
        node,
        POLICY[POLICY.index("[domain]") :],
        "[domain]\nradius = 1e5\ncenter = [0, 0]\n",
    )
    assert run(node, *data)[0] == 0
    change(node, "1e5", "2e4")
    text = refused(node, "data", "of the records are outside the ball", *data)
    assert run(node, *data, "--accept", "records=few are rich")[0] == 0
    assert "limit 5 %" in text


def test_numbers_of_rows_and_ids(node):
    ids = np.random.default_rng(1).permutation(60)
    for ages, words in (
        (range(60), "looks like a number of rows"),
        (ids, "looks like an id"),
    ):
        records("\n".join(["age,income", *(f"{age},{age % 7}" for age in ages)]))(node)
        refused(
            node,
            "data",
            f"'age' is a column that {words}",
            "--data",
            node / "records.csv",
        )


def test_a_source_file_says_how_the_node_reads(declared):
    people(100, n_commas=90)(declared)
    source = written(declared / "source.toml", 'data = "records.csv"\n')
    refused(declared, "data", "--decimal ,", "--data", source)
    written(source, 'data = "records.csv"\ndecimal = ","\n')
    code, found = run(declared, "--data", source)
    assert code == 0
    assert "Its first line names the columns" in found["data"].text
    text = (declared / "records.csv").read_text().partition("\n")[2]
    written(declared / "records.csv", text)
    header = 'header = ["age", "income"]\ndelimiter = ";"'
    written(source, f'data = "records.csv"\ndecimal = ","\n{header}\n')
    code, found = run(declared, "--data", source)
    assert code == 0
    assert "the node needs these names as header=" in found["data"].text


@pytest.mark.claim("deploy", "shares-rounded-neither-value")
def test_each_limit_is_in_the_help_and_in_the_documents():
    text = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    for limit in LIMITS:
        assert f"| {limit.text} | {limit.why} |" in text
    result = CliRunner().invoke(app, ["check", "--help"])
    assert limits_in_words() in " ".join(result.output.split())


# ------------------------------------------------------------------------ the SuperLink


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    """Two authorities, and a server's certificate for 127.0.0.1 by the first."""
    folder = tmp_path_factory.mktemp("link")
    with pytest.MonkeyPatch.context() as patch:
        script = load_script(patch, "credentials", ROOT / "simulations" / "deployment")
    for name in ("own", "other"):
        script.make_link(folder / name, [])
    return folder


@pytest.fixture
def link(credentials):
    """Return the ports of a server that speaks TLS, and of one that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        credentials / "own/server.pem", credentials / "own/server.key"
    )
    servers = [ThreadingHTTPServer(("", 0), BaseHTTPRequestHandler) for _ in range(2)]
    servers[0].socket = context.wrap_socket(servers[0].socket, server_side=True)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield [server.server_port for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.claim("deploy", "superlinks-address-nodes-also")
def test_a_superlink_that_is_reached_and_verified(node, link, credentials):
    authority = ("--root-certificates", credentials / "own/ca.crt")
    arguments = ("--superlink", f"127.0.0.1:{link[0]}", *authority)
    code, found = run(node, *arguments)
    assert code == 0
    assert "verified by" in found["SuperLink"].text
    (node / "policy.toml").unlink()  # it is looked at also without a policy
    code, found = run(node, *arguments)
    assert (code, found["SuperLink"].is_well) == (1, True)
    result = CliRunner().invoke(
        app, ["check", "--policy-file", "p", *map(str, authority)]
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --root-certificates needs --superlink")


@pytest.mark.claim("deploy", "superlinks-address-nodes-also")
def test_a_superlink_that_cannot_be_trusted_or_reached(node, link, credentials):
    secure, without_tls = link
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = closed.getsockname()[1]
    for superlink, authority, expected in (
        (f"127.0.0.1:{secure}", "other/ca.crt", "is refused"),
        (f"127.0.0.1:{secure}", None, "is refused"),
        # which the certificate does not name
        (f"127.0.0.2:{secure}", "own/ca.crt", "is refused"),
        (f"127.0.0.1:{without_tls}", "own/ca.crt", "does not speak TLS"),
        (f"127.0.0.1:{unused}", "own/ca.crt", "cannot be reached"),
        ("no-such-host.invalid:443", "own/ca.crt", "cannot be reached"),
        ("127.0.0.1:99999", "own/ca.crt", "cannot be reached"),
        ("127.0.0.1", "own/ca.crt", "HOST:PORT"),
        ("127.0.0.1:http", "own/ca.crt", "HOST:PORT"),
        (f"127.0.0.1:{secure}", "own/none.crt", "cannot be read"),
        (f"127.0.0.1:{secure}", "own/server.key", "cannot be read"),
    ):
        trusted = (
            ()
            if authority is None
            else ("--root-certificates", credentials / authority)
        )
        text = refused(node, "SuperLink", expected, "--superlink", superlink, *trusted)
        assert "docs/deploy.md" in text
