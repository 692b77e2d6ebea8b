"""Key files and rosters: what is written, what is read, and what is refused."""

import os
import stat
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flower_kmeans import ClientPolicy
from flower_kmeans.cli import app
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.federation.policy import tightest
from flower_kmeans.federation.roster import (
    Roster,
    read_identity,
    write_group_key,
    write_members,
)
from flower_kmeans.secagg import keys

NAMES = ["clinic-a", "b", "c_3"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_every_member_has_its_key_and_its_place(tmp_path):
    *secrets, roster = write_members(tmp_path / "new", NAMES)
    assert [path.name for path in secrets] == ["clinic-a.key", "b.key", "c_3.key"]
    assert [mode(path) for path in secrets] == [0o600] * 3
    assert mode(roster) == 0o644
    for place, secret in enumerate(secrets):
        identity = read_identity(roster, secret)
        assert identity.place == place
        assert identity.secret == secret.read_bytes()
        assert identity.public == keys.public_key(identity.secret)
        assert identity.roster.names == tuple(NAMES)
        assert identity.roster.keys[place] == identity.public
    assert len({path.read_bytes() for path in secrets}) == 3


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o377])
def test_modes_do_not_depend_on_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        (tmp_path / "keys").mkdir(exist_ok=True)
        (tmp_path / "keys").chmod(0o700)
        write_group_key(tmp_path / "keys" / "group.key")
        *secrets, roster = write_members(tmp_path / "keys", ["a"])
    finally:
        os.umask(before)
    assert mode(tmp_path / "keys" / "group.key") == 0o600
    assert (mode(secrets[0]), mode(roster)) == (0o600, 0o644)


def test_members_that_make_their_own_keys_put_their_lines_together(tmp_path):
    lines = ""
    for name in NAMES:
        lines += write_members(tmp_path / name, [name])[-1].read_text()
    roster = tmp_path / "roster.toml"
    roster.write_text(lines)
    roster.chmod(0o644)
    for place, name in enumerate(NAMES):
        assert read_identity(roster, tmp_path / name / f"{name}.key").place == place


@pytest.mark.parametrize(
    "names",
    [[], [""], ["a", "a"], ["../a"], ["a/b"], [".a"], ["-a"], ["a b"], ["a" * 65], ["ä"], ["a\n"]],
)
def test_names_that_are_no_file_names_are_refused(names, tmp_path):
    with pytest.raises(ConfigurationError, match="members"):
        write_members(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("names", [["a", "A"], ["clinic-B", "c", "Clinic-b"]])
def test_names_that_some_disks_cannot_tell_apart_are_refused(names, tmp_path):
    with pytest.raises(ConfigurationError, match="case"):
        write_members(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()
    result = keygen("--members", *names, "--output", tmp_path / "new")
    assert result.exit_code == 1
    assert str(names) in result.stderr
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path):
    (tmp_path / "b.key").write_bytes(b"in use")
    with pytest.raises(ConfigurationError, match=r"b\.key"):
        write_members(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["b.key"]
    with pytest.raises(ConfigurationError, match=r"b\.key"):
        write_group_key(tmp_path / "b.key")
    assert (tmp_path / "b.key").read_bytes() == b"in use"


def write(path, text, bits=0o644):
    path.write_text(text)
    path.chmod(bits)
    return path


GOOD = keys.public_key(b"s" * 32).hex()


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("none", ""),
        ("not TOML", "a: 1"),
        ("not TOML", f'a = "{GOOD}"\na = "{GOOD}"'),
        ("Expected a ", f'a = "{GOOD[:-1]}"'),
        ("Expected a ", f'a = "{GOOD.upper()}"'),
        ("Expected a ", "a = 7"),
        ("Expected a ", f'[a]\nb = "{GOOD}"'),
        ("once", f'a = "{GOOD}"\nb = "{GOOD}"'),
        ("X25519", f'a = "{bytes(32).hex()}"'),
        ("X25519", f'a = "{(1).to_bytes(32, "little").hex()}"'),
    ],
)
def test_what_is_no_roster_is_refused(match, text, tmp_path):
    with pytest.raises(ConfigurationError, match=match):
        Roster.from_file(write(tmp_path / "roster.toml", text))


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_roster_that_others_may_write_is_refused(bits, tmp_path):
    with pytest.raises(ConfigurationError, match="writable"):
        Roster.from_file(write(tmp_path / "roster.toml", f'a = "{GOOD}"', bits))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Roster.from_file(tmp_path / "missing.toml")


def test_a_member_key_that_cannot_be_used_is_refused(tmp_path):
    *secrets, roster = write_members(tmp_path, ["a", "b"])
    stranger = write_members(tmp_path / "other", ["c"])[0]
    with pytest.raises(ConfigurationError, match=keys.public_key(stranger.read_bytes()).hex()):
        read_identity(roster, stranger)
    for bits in (0o640, 0o604, 0o620):
        secrets[0].chmod(bits)
        with pytest.raises(ConfigurationError, match=r"member_key_file .* mode 0600"):
            read_identity(roster, secrets[0])
    secrets[1].write_bytes(b"k" * 31)
    with pytest.raises(ConfigurationError, match="32 bytes"):
        read_identity(roster, secrets[1])


def test_files_of_another_user_are_refused(tmp_path, monkeypatch):
    *secrets, roster = write_members(tmp_path, ["a", "b"])
    write_group_key(tmp_path / "group.key")
    policy = ClientPolicy(
        roster_file=roster, member_key_file=secrets[0], group_key_file=tmp_path / "group.key"
    )
    assert policy.read_identity() is not None
    owner = roster.stat().st_uid
    facts = os.fstat

    def of_another(descriptor):
        values = list(facts(descriptor))
        values[4] = owner + 1 if owner else 12345
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", of_another)
    for read in (policy.read_identity, policy.read_group_key):
        with pytest.raises(ConfigurationError, match="belong to this user"):
            read()


def test_apps_name_no_other_roster_than_the_operator(tmp_path):
    operators = ClientPolicy(roster_file=tmp_path / "r", member_key_file=tmp_path / "k")
    assert tightest(operators, ClientPolicy()) == operators
    assert tightest(operators, operators) == operators
    for other in (
        replace(operators, roster_file=tmp_path / "other"),
        replace(operators, member_key_file=tmp_path / "other"),
    ):
        with pytest.raises(ConfigurationError, match="Got another path"):
            tightest(operators, other)
        with pytest.raises(ConfigurationError, match="Got another path"):
            tightest(ClientPolicy(), other)


def test_a_policy_names_both_files_or_neither(tmp_path):
    for name in ("roster_file", "member_key_file"):
        with pytest.raises(ConfigurationError, match="together"):
            ClientPolicy(**{name: tmp_path / "file"})
    assert ClientPolicy().read_identity() is None
    *secrets, roster = write_members(tmp_path, ["a", "b"])
    policy = ClientPolicy(roster_file=roster, member_key_file=secrets[1])
    assert policy.read_identity().place == 1


# --------------------------------------------------------------------------- the command


def keygen(*arguments):
    return CliRunner().invoke(app, ["keygen", *map(str, arguments)])


def test_keygen_writes_member_keys_and_their_roster(tmp_path):
    result = keygen("--members", "a", "b", "c", "--output", tmp_path / "new")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["a.key", "b.key", "c.key", "roster.toml"]
    assert mode(tmp_path / "new") == 0o700
    assert Roster.from_file(tmp_path / "new" / "roster.toml").names == ("a", "b", "c")
    for name in names:
        assert f"{name}" in result.stdout
        assert (tmp_path / "new" / name).read_bytes().hex() not in result.stdout
    again = keygen("--members", "a", "--output", tmp_path / "new")
    assert again.exit_code == 1
    assert again.stderr.startswith("Error: ")


def test_keygen_writes_a_group_key(tmp_path):
    assert keygen(tmp_path / "group.key").exit_code == 0
    assert len(ClientPolicy(group_key_file=tmp_path / "group.key").read_group_key()) == 32
    assert keygen(tmp_path / "group.key").exit_code == 1
    assert keygen(tmp_path / "missing" / "group.key").exit_code == 1


def test_keygen_refuses_names_without_members(tmp_path):
    for arguments in (("a", "b"), ("a", "--output", tmp_path)):
        result = keygen(*arguments)
        assert result.exit_code == 1
        assert "--members" in result.stderr
