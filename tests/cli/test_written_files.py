"""Every file that a command writes, with its mode: what holds records or keys is its owner's alone.

The commands run with the widest umask, so that a file that is left to it is seen.
"""

import os
import stat

import numpy as np
import pytest
from scripts import ROOT, load_script
from typer.main import get_command
from typer.testing import CliRunner

from flower_kmeans.cli import preview
from flower_kmeans.cli.app import app
from flower_kmeans.cli.new import _FILES as APP_FILES
from flower_kmeans.cli.outputs import FILES as RUN_FILES

pytestmark = pytest.mark.claim("deploy", "commands-these-pages-write")

OWN, PUBLIC = 0o600, 0o644
SHARED = 0o666  # less what the umask takes: nothing in it is secret
DIRECTORY = 0o700  # of a key
SIZES = "--n-records 400 --clusters 2 --clients 3 --epsilon 8"
POLICY = 'state_dir = "state"\n'

# Of each command the arguments, and the files that it writes with their modes.
WRITTEN = {
    "simulate": (
        f"--data records.csv {SIZES} --lower 0 --upper 1 --output out --engine in-process",
        {f"out/{name}": OWN for name in RUN_FILES},
    ),
    "report": ("out/report.json", {}),  # over the page that is there
    "assign": (
        "--centroids out/centroids.npz --data records.csv --page own-sizes.html",
        {"assigned.csv": OWN, "own-sizes.html": OWN},
    ),
    "plot": (
        "--centroids out/centroids.npz --records records.csv --output records.svg",
        {"records.svg": OWN},
    ),
    "inspect": ("records.csv --draw questions.toml", {"questions.toml": OWN}),
    "domain init": (
        "--from-records records.csv --output read-off.toml",
        {"read-off.toml": OWN},
    ),
    "plan": (
        f"--features 2 {SIZES} --simulate --chart losses.svg",
        {"losses.svg": OWN},
    ),
    "keygen": ("a b", {"a.key": OWN, "b.key": OWN, "roster.toml": PUBLIC}),
    "check": ("--policy-file policy.toml --data records.csv", {}),
    "ledger": ("--policy-file policy.toml", {}),
    "forget": ("--policy-file policy.toml", {}),
    "new": (
        "my-app",
        {
            f"my-app/{place.format(package='my_app')}": SHARED
            for place in APP_FILES.values()
        },
    ),
}
AGAIN = ("simulate", "report", "assign", "plot")  # over what is there


def commands():
    """Return the names of all commands, those of groups with the group's name."""
    found = set()
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        found |= {name} if inner is None else {f"{name} {each}" for each in inner}
    return found


def files(directory):
    """Return the mode of each file below a directory, by its path."""
    return {
        path.relative_to(directory).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in directory.rglob("*")
        if path.is_file()
    }


def run(name):
    arguments, _ = WRITTEN[name]
    result = CliRunner().invoke(app, [*name.split(), *arguments.split()])
    # There is no ledger yet.
    needs_one = name in ("ledger", "forget")
    assert (result.exit_code == 0) == (not needs_one), (name, result.output)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a directory with records and a policy, in which new files are open to all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preview, "RUNS", 1)  # of plan --simulate
    monkeypatch.setattr(preview, "FACTORS", ())
    records = np.random.default_rng(0).random((400, 2))
    np.savetxt("records.csv", records, delimiter=",", header="x,y", comments="")
    (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
    for name in ("records.csv", "policy.toml"):
        (tmp_path / name).chmod(OWN)
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def test_every_command_is_here():
    assert commands() == WRITTEN.keys()


def test_all_files_that_commands_write_have_their_modes(place):
    """In order, as some commands read what others wrote."""
    pytest.importorskip("matplotlib")
    for name, (_, expected) in WRITTEN.items():
        before = files(place)
        run(name)
        after = files(place)
        assert {
            path: after[path] for path in after.keys() - before.keys()
        } == expected, name
        assert {path: after[path] for path in before} == before, name


def test_files_that_were_open_are_closed_when_they_are_written_again(place):
    pytest.importorskip("matplotlib")
    outputs = {path for name in AGAIN for path in WRITTEN[name][1]}
    for _ in range(2):
        for name in AGAIN:
            run(name)
        assert {files(place)[path] for path in outputs} == {OWN}
        for path in outputs:
            (place / path).chmod(PUBLIC)


def test_a_declared_domain_is_public(place):
    """All parties share it; nothing in it is of records."""
    typed = "age\nnumber\n0\n120\n"
    result = CliRunner().invoke(app, ["domain", "init"], input=typed + "\n" * 9)
    assert result.exit_code == 0, result.output
    assert files(place)["domain.toml"] == SHARED


def test_credentials_of_a_deployment_have_their_modes(place, monkeypatch):
    folder = ROOT / "simulations" / "deployment"
    credentials = load_script(monkeypatch, "credentials", folder)
    before = files(place)
    credentials.main(["link", "link", "--name", "link.example.org"])
    credentials.main(["node", "node"])
    after = files(place)
    assert {path: after[path] for path in after.keys() - before.keys()} == {
        "link/ca.key": OWN,
        "link/ca.crt": PUBLIC,
        "link/server.key": OWN,
        "link/server.pem": PUBLIC,
        "node/node.key": OWN,
        "node/node.pub": PUBLIC,
    }
    for name in ("link", "node"):
        assert stat.S_IMODE((place / name).stat().st_mode) == DIRECTORY
