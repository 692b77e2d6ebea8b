"""Party 0: its files, what it gives away, its workers, and that asking again changes nothing.

By default signs are straight (`soft.straight_signs`); test_engine.py has real ones.
"""

import os
import shutil
import stat
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from soft import soft_members, straight_signs
from vertical_parties import DOC_HASH, keys_of, secret, silent

from flower_kmeans.errors import ConfigurationError, MessageError, RunError
from flower_kmeans.vertical import parties, signs
from flower_kmeans.vertical.costs import disk_bytes
from flower_kmeans.vertical.engine import column_file, relin_file
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.parties import (
    RELIN_KEY,
    ComputingParty,
    StepPlan,
    column_name,
    evaluate,
)
from flower_kmeans.vertical.ring import SLOTS, N
from flower_kmeans.vertical.store import Store

BOX = np.ones(3)
C = np.array([[-0.3, 0.1, 0.0], [0.4, -0.2, 0.5]])
X = np.random.default_rng(0).uniform(-1, 1, (400, 3))
X[0, :2], X[1, :2] = 1.0, 0.0
# Of party 0: values outside of the box go to its border, and what is not finite to its
# middle.
OWN = X[:, :2].copy()
OWN[0], OWN[1, 0], OWN[1, 1] = 7.0, np.nan, -np.inf
VALUES = 2 * 4
WITHOUT_RADIUS, WITH_RADIUS = moduli(2), moduli(2, radius=True)  # of real signs


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(
    scope="module",
    autouse=True,
    params=["straight", pytest.param("real", marks=pytest.mark.thorough)],
)
def kind_of_signs(request):
    with straight_signs() if request.param == "straight" else nullcontext():
        yield


@pytest.fixture(scope="module")
def keys(kind_of_signs):
    """Keys of one holder."""
    return keys_of(1, moduli(2))


@pytest.fixture(scope="module")
def keys_with_radius(kind_of_signs):
    return keys_of(1, moduli(2, radius=True))


# ------------------------------------------------------------------------------ files


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "work" / "run")


def test_files_are_private_whole_and_known_by_their_digests(store):
    store.directory.parent.mkdir(mode=0o700)
    store.directory.mkdir()
    store.directory.chmod(0o755)  # is closed again
    store.write("a", [b"one ", memoryview(b"two")])
    other = Store(store.directory, store.digests)
    assert "a" in other
    assert other.path("a").read_bytes() == b"one two"
    assert (mode(store.directory), mode(store.path("a"))) == (0o700, 0o600)
    assert [path.name for path in store.directory.iterdir()] == ["a"]
    with pytest.raises(RunError, match=r"'a'.*start a new one"):
        Store(store.directory).path("a")  # a file without a digest does not count


def refused_by(store, pattern):
    """Require that nothing is written, and that it is said before a run begins, too."""
    for use in (lambda: store.write("a", [b"data"]), lambda: store.require_space(1)):
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.claim("threat-model", "work-dir-vertical-state")
@pytest.mark.parametrize("bits", [0o755, 0o701, 0o770, 0o1777])
def test_a_work_dir_that_is_open_to_others_is_refused(store, bits):
    store.directory.parent.mkdir()
    store.directory.parent.chmod(bits)
    refused_by(
        store, f"work_dir {store.directory.parent} with mode 0700. Got {bits:04o}"
    )
    assert not list(store.directory.parent.iterdir())


@pytest.mark.claim("threat-model", "work-dir-vertical-state")
@pytest.mark.parametrize("which", ["work", "run"])
def test_a_work_dir_of_another_user_is_refused(store, which, monkeypatch):
    store.write("a", [b"old"])
    place = store.directory.parent if which == "work" else store.directory
    stated, inode, other = os.stat, place.stat().st_ino, os.geteuid() + 12345

    def changed(*arguments, **options):
        facts = list(stated(*arguments, **options))
        if facts[1] == inode:
            facts[4] = other
        return os.stat_result(facts)

    monkeypatch.setattr(os, "stat", changed)
    monkeypatch.setattr(os, "lstat", partial(changed, follow_symlinks=False))
    with pytest.raises(
        ConfigurationError, match=f"user or to root. Got user id {other}"
    ):
        store.write("a", [b"data"])
    monkeypatch.undo()
    assert store.path("a").read_bytes() == b"old"


@pytest.mark.claim("threat-model", "work-dir-vertical-state")
@pytest.mark.parametrize("exists", [True, False])
def test_no_file_is_written_or_removed_behind_a_link(store, exists, tmp_path):
    """Somebody placed it before the work_dir had the right mode."""
    target = tmp_path / "home"
    if exists:
        target.mkdir()
        target.chmod(0o755)
        (target / "own.txt").write_text("x")
    store.directory.parent.mkdir(mode=0o700)
    store.directory.symlink_to(target)
    with pytest.raises(ConfigurationError, match=r"work_dir\. Got a symbolic link"):
        store.write("relin", [b"data"])
    if exists:
        with pytest.raises(OSError, match="symbolic link"):
            store.erase()
        assert [path.name for path in target.iterdir()] == ["own.txt"]
        assert mode(target) == 0o755
    assert target.exists() == exists


def test_a_work_dir_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch(mode=0o600)
    refused_by(Store(tmp_path / "file" / "run"), "as a directory. Got something else")
    refused_by(
        Store(tmp_path / "unmounted" / "work" / "run"), "cannot be used: No such file"
    )
    assert not (tmp_path / "unmounted").exists()


def test_a_writing_that_fails_leaves_what_was_there_and_erased_files_are_gone(store):
    def pieces():
        yield b"new"
        raise OSError("disk full")

    store.write("a", [b"old"])
    with pytest.raises(OSError, match="disk full"):
        store.write("a", pieces())
    assert store.path("a").read_bytes() == b"old"
    assert [path.name for path in store.directory.iterdir()] == ["a"]
    store.write("b", [b"x"])
    for _ in range(2):
        store.remove("a")
    assert list(store.digests) == ["b"]
    for _ in range(2):
        store.erase()
    assert not store.directory.exists()
    assert not store.digests


def test_too_little_disk_is_an_error_beforehand(store):
    store.require_space(1)
    with pytest.raises(ConfigurationError, match=r"'work_dir'.* MB are free"):
        store.require_space(2**62)
    assert not store.directory.exists()  # nothing was made for a run that cannot start


@pytest.mark.claim("reference/command", "plan-strategy-vertical-features")
def test_the_disk_is_what_files_take(store):
    """Files of the shapes of a run with one chunk and one encrypted column."""
    q, values = WITHOUT_RADIUS, 2 * 3
    store.write(
        "relin", relin_file(q, np.zeros((len(q.data), 2, len(q.key), N), np.uint64))
    )
    store.write("column", column_file(q, np.zeros((2, len(q.data), N), np.uint64)))
    store.write("public", [bytes(2 * N * 8)])
    store.write("step", [bytes(values * 8), bytes(values * N * 8)])
    used = sum(path.stat().st_size for path in store.directory.iterdir())
    planned = disk_bytes(q, 16_384, 1, 2, 1)
    assert used <= planned < 1.02 * used
    more = [disk_bytes(q, 16_385, 1, 2, 1), disk_bytes(q, 16_385, 1, 2, 2)]
    more.append(disk_bytes(WITH_RADIUS, 16_385, 2, 2, 2))
    assert planned < more[0] < more[1] < more[2]


# ------------------------------------------------------------------------------ steps


def drawn(stream):
    """Noise that follows from the stream alone."""
    return (stream.words(VALUES) >> np.uint64(30)).astype(np.int64)


def party_of(store, number=0):
    return ComputingParty(moduli(2), store, secret(number), DOC_HASH, BOX, (2, 1))


@pytest.fixture(scope="module")
def evaluated(keys, tmp_path_factory):
    """A party with keys and the other party's column, and the words that its step 1 computed."""
    made, found = party_of(Store(tmp_path_factory.mktemp("work") / "run")), []
    made.take_keys(keys.pk, keys.relin)
    made.take_column(1, 0, 0, keys.encrypt_alone(X[:, 2], 40))

    def kept(*args):
        found.append(evaluate(*args))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parties, "evaluate", kept)
        made.step(1, OWN, C)
    (words,) = found
    return made, words


@pytest.fixture
def party(evaluated):
    """It has done step 1."""
    return evaluated[0]


@pytest.fixture
def knows_words(evaluated, monkeypatch):
    """Steps take the words of step 1: a test asks what is done with words, whatever they are."""
    monkeypatch.setattr(parties, "evaluate", lambda *args: evaluated[1])


def restarted(party, tmp_path, number=0):
    """Another process with the same files, which does not know that step 1 is done."""
    folder = shutil.copytree(
        party.store.directory, tmp_path / "run", copy_function=os.link
    )
    digests = {
        name: d
        for name, d in party.store.digests.items()
        if not name.startswith("step")
    }
    return party_of(Store(folder, digests), number)


def share(keys, c1):
    return keys.holders[0].decryption_share(1, c1, silent(len(c1)))[None]


def expected():
    A = soft_members(X, C, BOX)
    return np.concatenate([A.sum(0)[:, None], A.T @ X], 1)


def test_a_step_opens_to_the_counts_and_sums_under_own_noise(keys, party):
    c1 = party.step(1, OWN, C)
    assert c1.shape == (VALUES, N)
    assert (c1 < moduli(2).q0).all()
    values = party.open(1, share(keys, c1), silent(VALUES))
    np.testing.assert_allclose(values / moduli(2).unit, expected(), rtol=0, atol=1e-3)
    noise = party.open(1, share(keys, c1), drawn) - values
    assert ((noise > 0) & (noise < 2**34)).all()
    again = party.open(1, share(keys, c1), drawn) - values
    assert (again == noise).all()  # nothing new


@pytest.mark.claim("vertical", "party-0-all-holders")
@pytest.mark.claim("threat-model", "V3")
def test_without_its_share_of_the_key_nothing_opens(party):
    constants = party.open(1, np.zeros((1, VALUES), np.uint64), silent(VALUES))
    assert np.abs(constants / moduli(2).unit - expected()).max() > 1e3


def test_a_repeated_step_gives_what_was_sent(party, tmp_path):
    """Also where the file was written and the session not saved, so its digest is not known."""
    c1 = party.step(1, OWN, C)
    again = party_of(Store(party.store.directory, party.store.digests))
    assert (again.step(1, X[::-1, :2], C) == c1).all()  # no second value for one step
    assert (restarted(party, tmp_path).step(1, OWN, C) == c1).all()


@pytest.mark.claim("threat-model", "V2")
def test_c1_does_not_show_which_data_were_used(party, knows_words, tmp_path):
    """Other parties' zeros hide it: without them a guess of the records could be confirmed."""
    c1 = party.step(1, OWN, C)
    other = restarted(party, tmp_path, number=5)
    assert (other.step(1, OWN, C) != c1).mean() > 0.99
    assert len(np.unique(c1[:, 0])) == VALUES


def test_a_step_and_the_one_before_are_kept(party, knows_words, tmp_path):
    """A repeated request opens the values of the step before again; nothing needs older ones."""
    fresh = restarted(party, tmp_path)
    store = Store(fresh.store.directory, party.store.digests)
    for t in (2, 3):
        party_of(store).step(t, OWN, C)
        found = [name for name in store.digests if name.startswith("step")]
        assert found == [f"step-{t - 1}", f"step-{t}"]
    with pytest.raises(RunError, match="step-1"):
        party_of(store).open(1, np.zeros((1, VALUES), np.uint64), silent(VALUES))


@pytest.mark.claim("threat-model", "V13")
def test_records_cannot_make_a_step_fail(keys, party):
    """Values outside of the box, and what is not finite."""
    assert (np.abs(OWN[:2]) > 1).any(axis=1).tolist() == [True, True]
    assert np.isnan(OWN).any()
    c1 = party.step(1, OWN, C)
    values = party.open(1, share(keys, c1), silent(VALUES)) / moduli(2).unit
    np.testing.assert_allclose(values, expected(), rtol=0, atol=1e-3)


def test_hostile_shares_are_refused_and_no_secret_is_shown(party):
    hostile = np.full((1, VALUES), moduli(2).q0 * (np.arange(VALUES) == 3), np.uint64)
    with pytest.raises(MessageError, match="words below q0"):
        party.open(1, hostile, silent(VALUES))
    assert not [
        form for form in (repr(secret(0)), secret(0).hex()) if form in repr(party)
    ]


# ------------------------------------------------------------------------------ workers

RADIUS = 0.8
CENTROIDS = np.array([[-0.4, 0.1, 0.3], [0.5, -0.2, -0.1]])
HALF_WIDTHS = np.array([1.0, 0.5, 0.8])
RECORDS = np.random.default_rng(0).uniform(-1, 1, (SLOTS + 300, 3)) * HALF_WIDTHS
STEP = StepPlan(RECORDS[:, :1], CENTROIDS, HALF_WIDTHS, (1, 1, 1), RADIUS)


@pytest.fixture(scope="module")
def filled(keys_with_radius, tmp_path_factory):
    """Keys, and two chunks of the columns and squares of two parties."""
    keys, filled = keys_with_radius, Store(tmp_path_factory.mktemp("work") / "run")
    filled.write(RELIN_KEY, relin_file(keys.moduli, keys.relin))
    for slot in (1, 2):
        x, widths = RECORDS[:, slot : slot + 1], HALF_WIDTHS[slot : slot + 1]
        columns = signs.scaled_columns(x, widths)[:, 0], signs.scaled_squares(x, widths)
        for column in (0, 1):
            for chunk, part in enumerate(np.split(columns[column], [SLOTS])):
                words = keys.encrypt_alone(part, 4 * slot + 2 * column + chunk)
                filled.write(
                    column_name(slot, chunk, column), column_file(keys.moduli, words)
                )
    return filled


@pytest.fixture(scope="module")
def words(filled):
    return evaluate(filled, STEP, 1)


@pytest.mark.claim("tables/vertical", "two-workers-share-step")
@pytest.mark.thorough
def test_two_workers_give_the_words_of_one(filled, words):
    before = sorted(path.name for path in filled.directory.iterdir())
    assert (evaluate(filled, STEP, 2) == words).all()
    assert sorted(path.name for path in filled.directory.iterdir()) == before


def test_chunks_are_added_and_rows_beyond_the_records_do_not_count(
    keys_with_radius, words
):
    A = soft_members(RECORDS, CENTROIDS, HALF_WIDTHS, RADIUS)
    offsets = [A[:, j] @ (RECORDS - c) for j, c in enumerate(CENTROIDS)]
    expected = np.concatenate([A.sum(0)[:, None], np.stack(offsets)], 1)
    np.testing.assert_allclose(
        keys_with_radius.open(words), expected, rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("name", [RELIN_KEY, column_name(2, 0, 1)])
def test_changed_and_missing_files_are_refused(filled, name):
    path = filled.path(name)
    kept = path.read_bytes()
    try:
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        with pytest.raises(RunError, match=f"{name}.*changed"):
            evaluate(filled, STEP, 1)
        path.unlink()
        with pytest.raises(RunError, match=f"{name}.*missing"):  # workers find it too
            evaluate(filled, STEP, 2)
    finally:
        path.write_bytes(kept)


def test_a_worker_that_dies_ends_the_step_with_an_error(filled, monkeypatch):
    monkeypatch.setattr(parties, "_start", _die)
    with pytest.raises(RunError, match="ended early"):
        evaluate(filled, STEP, 2)


def _die(*_):
    raise SystemExit(1)
