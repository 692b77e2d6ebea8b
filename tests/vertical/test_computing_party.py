"""Party 0: what it keeps, what it gives away, and that asking again changes nothing."""

import os
import shutil
import stat

import numpy as np
import pytest
from soft import soft_members
from vertical_parties import ALONE, DOC_HASH, MODULI, secret, silent

from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.vertical.parties import ComputingParty
from flower_kmeans.vertical.ring import N
from flower_kmeans.vertical.store import Store

BOX = np.ones(3)
C = np.array([[-0.3, 0.1, 0.0], [0.4, -0.2, 0.5]])
X = np.random.default_rng(0).uniform(-1, 1, (400, 3))
VALUES = 2 * 4


def drawn(stream):
    """Noise that follows from the stream alone."""
    return (stream.words(VALUES) >> np.uint64(30)).astype(np.int64)


def party_of(store, number=0):
    return ComputingParty(MODULI, store, secret(number), DOC_HASH, BOX, (2, 1))


@pytest.fixture(scope="module")
def party(tmp_path_factory):
    """It has the keys and the other party's column, and has done step 1."""
    made = party_of(Store(tmp_path_factory.mktemp("work") / "run"))
    made.take_keys(ALONE.pk, ALONE.relin)
    made.take_column(1, 0, 0, ALONE.encrypt_alone(X[:, 2], 40))
    made.step(1, X[:, :2], C)
    return made


def restarted(party, tmp_path, number=0):
    """Another process with the same files, which does not know that step 1 is done."""
    folder = shutil.copytree(party.store.directory, tmp_path / "run", copy_function=os.link)
    digests = {name: d for name, d in party.store.digests.items() if not name.startswith("step")}
    return party_of(Store(folder, digests), number)


def share(c1):
    return ALONE.holders[0].decryption_share(1, c1, silent(len(c1)))[None]


def expected(table=X):
    A = soft_members(table, C, BOX)
    return np.concatenate([A.sum(0)[:, None], A.T @ table], 1)


def test_a_step_opens_to_the_counts_and_sums_under_own_noise(party):
    c1 = party.step(1, X[:, :2], C)
    assert c1.shape == (VALUES, N)
    assert (c1 < MODULI.q0).all()
    values = party.open(1, share(c1), silent(VALUES))
    np.testing.assert_allclose(values / MODULI.unit, expected(), rtol=0, atol=1e-3)
    noise = party.open(1, share(c1), drawn) - values
    assert ((noise > 0) & (noise < 2**34)).all()
    assert (party.open(1, share(c1), drawn) - values == noise).all()  # asked again: nothing new


def test_without_its_share_of_the_key_nothing_opens(party):
    constants = party.open(1, np.zeros((1, VALUES), np.uint64), silent(VALUES))
    assert np.abs(constants / MODULI.unit - expected()).max() > 1e3


def test_a_repeated_step_gives_what_was_sent(party, tmp_path):
    """Also where the file was written and the session not saved, so its digest is not known."""
    c1 = party.step(1, X[:, :2], C)
    again = party_of(Store(party.store.directory, party.store.digests))
    assert (again.step(1, X[::-1, :2], C) == c1).all()  # no second value for one step
    assert (restarted(party, tmp_path).step(1, X[:, :2], C) == c1).all()


def test_c1_does_not_show_which_data_were_used(party, tmp_path):
    """Other parties' zeros hide it: without them a guess of the records could be confirmed."""
    c1 = party.step(1, X[:, :2], C)
    other = restarted(party, tmp_path, number=5)
    assert (other.step(1, X[:, :2], C) != c1).mean() > 0.99
    assert len(np.unique(c1[:, 0])) == VALUES


def test_files_are_private(party):
    assert stat.S_IMODE(party.store.directory.stat().st_mode) == 0o700
    for path in party.store.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_step_and_the_one_before_are_kept(party, tmp_path):
    """A repeated request opens the values of the step before again; nothing needs older ones."""
    fresh = restarted(party, tmp_path)
    store = Store(fresh.store.directory, party.store.digests)
    for t in (2, 3):
        party_of(store).step(t, X[:, :2], C)
        found = [name for name in store.digests if name.startswith("step")]
        assert found == [f"step-{t - 1}", f"step-{t}"]
    with pytest.raises(RunError, match="step-1"):
        party_of(store).open(1, np.zeros((1, VALUES), np.uint64), silent(VALUES))


def test_records_cannot_make_a_step_fail(party, tmp_path):
    """Values outside of the box go to its border, and what is not finite to its middle."""
    odd, tame = X[:, :2].copy(), X.copy()
    odd[0], odd[1, 0], odd[1, 1] = 7.0, np.nan, -np.inf
    tame[0, :2], tame[1, :2] = 1.0, 0.0
    fresh = restarted(party, tmp_path)
    c1 = fresh.step(1, odd, C)
    values = fresh.open(1, share(c1), silent(VALUES)) / MODULI.unit
    np.testing.assert_allclose(values, expected(tame), rtol=0, atol=1e-3)


def test_hostile_shares_are_refused(party):
    hostile = np.zeros((1, VALUES), np.uint64)
    hostile[0, 3] = MODULI.q0
    with pytest.raises(MessageError, match="words below q0"):
        party.open(1, hostile, silent(VALUES))


def test_no_secret_is_shown(party):
    assert repr(secret(0)) not in repr(party)
    assert secret(0).hex() not in repr(party)
