"""Steps on several processes give the words of one."""

import numpy as np
import pytest
from soft import soft_members
from vertical_parties import keys_of

from flower_kmeans.errors import RunError
from flower_kmeans.vertical import signs, workers
from flower_kmeans.vertical.engine import column_file, relin_file
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import SLOTS
from flower_kmeans.vertical.store import Store
from flower_kmeans.vertical.workers import RELIN_KEY, Step, column_name, evaluate

RADIUS = 0.8
KEYS = keys_of(1, moduli(2, radius=True))
CENTROIDS = np.array([[-0.4, 0.1, 0.3], [0.5, -0.2, -0.1]])
HALF_WIDTHS = np.array([1.0, 0.5, 0.8])
RECORDS = np.random.default_rng(0).uniform(-1, 1, (SLOTS + 300, 3)) * HALF_WIDTHS
STEP = Step(RECORDS[:, :1], CENTROIDS, HALF_WIDTHS, (1, 1, 1), RADIUS)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Keys, and two chunks of the columns and squares of two parties."""
    filled = Store(tmp_path_factory.mktemp("work") / "run")
    filled.write(RELIN_KEY, relin_file(KEYS.moduli, KEYS.relin))
    for slot in (1, 2):
        x, widths = RECORDS[:, slot : slot + 1], HALF_WIDTHS[slot : slot + 1]
        columns = signs.scaled_columns(x, widths)[:, 0], signs.scaled_squares(x, widths)
        for column in (0, 1):
            for chunk, part in enumerate(np.split(columns[column], [SLOTS])):
                words = KEYS.encrypt_alone(part, 4 * slot + 2 * column + chunk)
                filled.write(column_name(slot, chunk, column), column_file(KEYS.moduli, words))
    return filled


@pytest.fixture(scope="module")
def words(store):
    return evaluate(store, STEP, 1)


def test_two_workers_give_the_words_of_one(store, words):
    before = sorted(path.name for path in store.directory.iterdir())
    assert (evaluate(store, STEP, 2) == words).all()
    assert sorted(path.name for path in store.directory.iterdir()) == before


def test_chunks_are_added_and_rows_beyond_the_records_do_not_count(words):
    A = soft_members(RECORDS, CENTROIDS, HALF_WIDTHS, RADIUS)
    offsets = [A[:, j] @ (RECORDS - c) for j, c in enumerate(CENTROIDS)]
    expected = np.concatenate([A.sum(0)[:, None], np.stack(offsets)], 1)
    np.testing.assert_allclose(KEYS.open(words), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", [RELIN_KEY, column_name(2, 0, 1)])
def test_changed_and_missing_files_are_refused(store, name):
    path = store.path(name)
    kept = path.read_bytes()
    try:
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        with pytest.raises(RunError, match=f"{name}.*changed"):
            evaluate(store, STEP, 1)
        path.unlink()
        with pytest.raises(RunError, match=f"{name}.*missing"):  # workers find it too
            evaluate(store, STEP, 2)
    finally:
        path.write_bytes(kept)


def test_a_worker_that_dies_ends_the_step_with_an_error(store, monkeypatch):
    monkeypatch.setattr(workers, "_start", _die)
    with pytest.raises(RunError, match="ended early"):
        evaluate(store, STEP, 2)


def _die(*_):
    raise SystemExit(1)
