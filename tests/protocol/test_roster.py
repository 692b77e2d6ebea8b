"""Rosters and key files: what is written, what is read, and what is refused."""

import os
import stat
from contextlib import nullcontext

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.roster import Roster, read_identity, write_members
from flower_kmeans.secagg.primitives import H, lasting_key

pytestmark = pytest.mark.claim("deploy", "new-data-holder-means")

NAMES = ["clinic-a", "b", "c_3"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_every_client_has_its_key_and_its_slot(umask, tmp_path):
    """Modes do not depend on the umask."""
    (tmp_path / "new").mkdir(0o700)
    before = os.umask(umask)
    try:
        *secrets, roster = write_members(tmp_path / "new", NAMES)
    finally:
        os.umask(before)
    assert [path.name for path in secrets] == ["clinic-a.key", "b.key", "c_3.key"]
    assert [mode(path) for path in (*secrets, roster)] == [0o600] * 3 + [0o644]
    for slot, path in enumerate(secrets):
        identity, seed = read_identity(roster, path), path.read_bytes()
        public = lasting_key(seed)
        assert (identity.slot, identity.seed, identity.public) == (slot, seed, public)
        assert (identity.roster.names, identity.roster.keys[slot]) == (
            tuple(NAMES),
            public,
        )
    assert len({path.read_bytes() for path in secrets}) == 3


def test_clients_that_make_their_own_keys_put_their_lines_together(tmp_path):
    lines = (write_members(tmp_path / name, [name])[-1].read_text() for name in NAMES)
    roster = write(tmp_path / "roster.toml", "".join(lines))
    for slot, name in enumerate(NAMES):
        assert read_identity(roster, tmp_path / name / f"{name}.key").slot == slot


@pytest.mark.parametrize("names", [
    [], [""], ["a", "a"], ["../a"], ["a/b"], [".a"], ["-a"], ["a b"], ["a" * 65], ["ä"], ["a\n"],
    ["a", "beacon"], ["a", "A"], ["clinic-B", "c", "Clinic-b"],
])  # fmt: skip
def test_names_that_are_no_file_names_or_differ_in_case_are_refused(names, tmp_path):
    with pytest.raises(ConfigurationError, match=r"members .* case"):
        write_members(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path):
    (tmp_path / "b.key").write_bytes(b"in use")
    with pytest.raises(ConfigurationError, match=r"b\.key"):
        write_members(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["b.key"]
    assert (tmp_path / "b.key").read_bytes() == b"in use"


def write(path, text, bits=0o644):
    path.write_text(text)
    path.chmod(bits)
    return path


GOOD = lasting_key(b"s" * 32).hex()
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def spelt(y, sign=0):
    return (y + sign * 2**255).to_bytes(32, "little").hex()


def plus(a, b):
    """Add two points of -x^2 + y^2 = 1 + d x^2 y^2."""
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    return x % P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def x_of(y):
    """Return a coordinate x of a point, or ``None`` if the curve has none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            return x
    return None


def small_order():
    """Return y of all points whose eightfold is neutral: multiples of points by the large prime."""
    prime, found = 2**252 + 27742317777372353535851937790883648493, set()
    for y in range(2, 40):
        x = x_of(y)
        if x is not None:
            total, base, n = (0, 1), (x, y), prime
            while n:
                total = plus(total, base) if n & 1 else total
                base, n = plus(base, base), n >> 1
            found.add(total)
            found.add(plus(total, total))
            found.add(plus(plus(total, total), plus(total, total)))
    return sorted({y for _, y in found} | {(P - y) % P for _, y in found})


def test_points_of_small_order_are_those_of_the_curve():
    """A signature of nobody verifies under such a key, so it could be on no roster."""
    assert small_order() == sorted(SMALL)
    # With s = 0 and R = k A every message has one, wherever k A is the key again or
    # neutral.
    neutral = Ed25519PublicKey.from_public_bytes(bytes.fromhex(spelt(1)))
    neutral.verify(bytes.fromhex(spelt(1)) + bytes(32), b"whatever")


Y8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL = (0, 1, P - 1, Y8, P - Y8)


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("none", ""),
        ("not TOML", "a: 1"),
        ("not TOML", f'a = "{GOOD}"\na = "{GOOD}"'),
        ("more than 32 deep", f'a = "{GOOD}"\nx = {"[" * 5_000}{"]" * 5_000}'),
        ("Expected a ", f'a = "{GOOD[:-1]}"'),
        ("Expected a ", f'a = "{GOOD.upper()}"'),
        ("Expected a ", "a = 7"),
        ("Expected a ", f'[a]\nb = "{GOOD}"'),
        ("once", f'a = "{GOOD}"\nb = "{GOOD}"'),
        ("once", f'a = "{GOOD}"\nb = "{GOOD[:-2]}{int(GOOD[-2:], 16) ^ 128:02x}"'),
        *(("Ed25519", f'a = "{spelt(y, sign)}"') for y in SMALL for sign in (0, 1)),
        *(
            ("Ed25519", f'a = "{spelt(y, sign)}"')
            for y in (P, P + 5, 2**255 - 1)
            for sign in (0, 1)
        ),
    ],
)
def test_what_is_no_roster_is_refused(match, text, tmp_path):
    with pytest.raises(ConfigurationError, match=match):
        Roster.from_file(write(tmp_path / "roster.toml", text))


def test_a_key_that_is_no_point_is_found_by_those_who_look(tmp_path):
    """Half of all numbers are no points. Nobody can sign for them, and no message needs to know."""
    off = next(y for y in range(2, 40) if x_of(y) is None)
    text = f'a = "{GOOD}"\nb = "{spelt(off)}"'
    roster = Roster.from_file(write(tmp_path / "roster.toml", text))
    with pytest.raises(ConfigurationError, match=r"Expected b .* no point"):
        roster.require_points()
    made = Roster.from_file(write_members(tmp_path / "made", NAMES)[-1])
    made.require_points()
    on = [y for y in range(2, 40) if x_of(y) is not None]
    keys = tuple(bytes.fromhex(spelt(y, y % 2)) for y in on)
    Roster(tuple(map(str, on)), keys).require_points()


def test_a_roster_that_others_may_write_is_refused(tmp_path):
    for bits in (0o620, 0o602, 0o666):
        with pytest.raises(ConfigurationError, match="writable"):
            Roster.from_file(write(tmp_path / "roster.toml", f'a = "{GOOD}"', bits))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Roster.from_file(tmp_path / "missing.toml")


def test_a_key_that_cannot_be_used_is_refused(tmp_path):
    *secrets, roster = write_members(tmp_path, ["a", "b"])
    stranger = write_members(tmp_path / "other", ["c"])[0]
    with pytest.raises(
        ConfigurationError, match=lasting_key(stranger.read_bytes()).hex()
    ):
        read_identity(roster, stranger)
    for bits in (0o640, 0o604, 0o620):
        secrets[0].chmod(bits)
        with pytest.raises(ConfigurationError, match=r"member_key_file .* mode 0600"):
            read_identity(roster, secrets[0])
    secrets[1].write_bytes(b"k" * 31)
    with pytest.raises(ConfigurationError, match="32 bytes"):
        read_identity(roster, secrets[1])


def test_files_of_another_user_are_refused(tmp_path, monkeypatch):
    secret, roster = write_members(tmp_path, ["a"])
    facts = list(roster.stat())
    facts[4] += 12345
    monkeypatch.setattr(os, "fstat", lambda descriptor: os.stat_result(facts))
    with pytest.raises(ConfigurationError, match="belong to this user"):
        read_identity(roster, secret)


BEACON = "5a" * 32


def test_the_digest_is_that_of_the_beacon_and_the_keys_in_order(tmp_path):
    roster = Roster.from_file(write_members(tmp_path / "1", NAMES)[-1])
    assert roster.digest == H(b"roster", b"", *roster.keys)
    # names do not count
    beaconed = Roster(("x", "y", "z"), roster.keys, bytes.fromhex(BEACON))
    assert beaconed.digest == H(b"roster", bytes.fromhex(BEACON), *roster.keys)


def test_a_beacon_is_written_and_read(tmp_path):
    *secrets, roster = write_members(tmp_path, NAMES, BEACON)
    found = Roster.from_file(roster)
    assert (found.names, found.beacon) == (tuple(NAMES), bytes.fromhex(BEACON))
    assert read_identity(roster, secrets[1]).slot == 1
    # Wherever its line stands.
    lines = roster.read_text().splitlines(keepends=True)
    roster.write_text("".join(lines[1:] + lines[:1]))
    assert Roster.from_file(roster) == found


@pytest.mark.parametrize(
    "beacon", ["", "5a" * 15, "5a" * 65, "5A" * 32, "5a" * 16 + "5", "zz" * 32]
)
def test_a_beacon_is_enough_hexadecimal_digits(beacon, tmp_path):
    with pytest.raises(ConfigurationError, match="beacon"):
        write_members(tmp_path / "new", NAMES, beacon)
    assert not (tmp_path / "new").exists()
    lines = [f'beacon = "{beacon}"'] if beacon else ["beacon = 5", "[beacon]\nx = 1"]
    for line in lines:
        with pytest.raises(ConfigurationError, match="beacon"):
            Roster.from_file(write(tmp_path / "roster.toml", f'a = "{GOOD}"\n{line}'))


@pytest.mark.parametrize("n", [64, 65])
def test_a_roster_that_draws_committees_needs_a_beacon(n, tmp_path):
    names = [f"c{i}" for i in range(n)]
    without = write_members(tmp_path / "without", names)[-1]
    with pytest.raises(ConfigurationError, match="beacon") if n > 64 else nullcontext():
        assert len(Roster.from_file(without)) == n
    assert (
        len(Roster.from_file(write_members(tmp_path / "with", names, BEACON)[-1])) == n
    )


def test_a_roster_that_changed_is_read_again(tmp_path):
    roster = write_members(tmp_path, NAMES)[-1]
    assert len(Roster.from_file(roster)) > 2
    lines = roster.read_text().splitlines(keepends=True)
    roster.write_text("".join(lines[:2]))
    assert len(Roster.from_file(roster)) == 2
    roster.chmod(0o666)
    with pytest.raises(ConfigurationError, match="writable"):
        Roster.from_file(roster)
