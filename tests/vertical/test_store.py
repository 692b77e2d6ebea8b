"""Party 0's files: private, whole, and refused if they were changed."""

import stat

import numpy as np
import pytest

from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.vertical.engine import column_file, relin_file
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import N
from flower_kmeans.vertical.store import Store, disk_bytes


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "work" / "run")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_private_whole_and_known_by_their_digests(store):
    store.directory.mkdir(parents=True)
    store.directory.chmod(0o755)  # is closed again
    store.write("a", [b"one ", memoryview(b"two")])
    other = Store(store.directory, store.digests)
    assert "a" in other
    assert other.path("a").read_bytes() == b"one two"
    assert (mode(store.directory), mode(store.path("a"))) == (0o700, 0o600)
    assert [path.name for path in store.directory.iterdir()] == ["a"]
    with pytest.raises(RunError, match=r"'a'.*start a new one"):
        Store(store.directory).path("a")  # a file without a digest does not count


def test_changed_and_lost_files_are_refused(store):
    store.write("a", [b"x"])
    store.path("a").write_bytes(b"y")
    with pytest.raises(RunError, match="changed"):
        store.path("a")
    (store.directory / "a").unlink()
    with pytest.raises(RunError, match="missing"):
        store.path("a")


def test_a_writing_that_fails_leaves_what_was_there(store):
    def pieces():
        yield b"new"
        raise OSError("disk full")

    store.write("a", [b"old"])
    with pytest.raises(OSError, match="disk full"):
        store.write("a", pieces())
    assert store.path("a").read_bytes() == b"old"
    assert [path.name for path in store.directory.iterdir()] == ["a"]


def test_removed_and_erased_files_are_gone(store):
    store.write("a", [b"x"])
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


def test_the_disk_is_what_files_take(store):
    """Files of the shapes of a run with one chunk and one encrypted column."""
    q, values = moduli(2), 2 * 3
    store.write("relin", relin_file(q, np.zeros((len(q.data), 2, len(q.key), N), np.uint64)))
    store.write("column", column_file(q, np.zeros((2, len(q.data), N), np.uint64)))
    store.write("public", [bytes(2 * N * 8)])
    store.write("step", [bytes(values * 8), bytes(values * N * 8)])
    used = sum(path.stat().st_size for path in store.directory.iterdir())
    planned = disk_bytes(q, 16_384, 1, 2, 1)
    assert used <= planned < 1.02 * used
    more = [disk_bytes(q, 16_385, 1, 2, 1), disk_bytes(q, 16_385, 1, 2, 2)]
    more.append(disk_bytes(moduli(2, radius=True), 16_385, 2, 2, 2))
    assert planned < more[0] < more[1] < more[2]
