"""Named data sets: generated, from files, and their scales."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from bench import data, families
from bench.data import identity, load, name_of, to_unit_ball, to_unit_box
from flower_kmeans.data import generators
from flower_kmeans.errors import ConfigurationError, DataError


@pytest.mark.parametrize(
    ("name", "shape", "n_clusters"),
    [
        ("g2_7_30", (2048, 7), 2),
        ("separated_5_2_21", (5000, 2), 5),
        ("timesynth_10000_2_5", (10_000, 5), 2),
        ("sklearn-wine", (178, 13), 3),
    ],
)
def test_sets_that_need_no_file(name, shape, n_clusters):
    found = load(name)
    assert (found.name, found.records.shape, found.n_clusters) == (
        name,
        shape,
        n_clusters,
    )
    assert found.records.dtype == np.float64
    assert set(np.unique(found.labels)) == set(range(n_clusters))
    with pytest.raises(ValueError, match="read-only"):
        found.records[0] = 0


def test_names_hold_the_parameters():
    made = families.synth(3, 2, 7)
    found = load("synth_3_2_7")
    np.testing.assert_array_equal(found.records, made.records)
    np.testing.assert_array_equal(found.labels, made.labels)
    made = generators.separated_clusters([2500, 2500], 3, 0.4, 0)
    np.testing.assert_array_equal(load("separated_2_3_40").records, made.records)
    records, _ = make_blobs(20_000, n_features=3, centers=4, random_state=1)
    np.testing.assert_array_equal(load("blobs_4_3").records, records)
    sizes = np.bincount(load("uneven_4_3").labels)
    assert sizes.sum() == pytest.approx(20_000, abs=4)
    np.testing.assert_allclose(sizes[1:] / sizes[:-1], 20 ** (-1 / 3), rtol=2e-3)


def test_files_of_a_directory(tmp_path):
    records = np.arange(60.0).reshape(30, 2)
    np.savez(tmp_path / "iris.npz", X=records, y=np.repeat([3, 5, 9], 10))
    found = load("iris", tmp_path)
    np.testing.assert_array_equal(found.records, records)
    np.testing.assert_array_equal(found.labels, np.repeat([0, 1, 2], 10))
    assert found.n_clusters == 3
    assert identity("iris", None) is None
    with pytest.raises(ConfigurationError, match=r"Expected wine.npz in --data-dir"):
        load("wine", tmp_path)


def test_files_are_known_by_contents_clusters_and_the_part_that_is_taken(tmp_path):
    path = tmp_path / "birch2.npz"
    np.savez(path, X=np.zeros((3, 1)))
    known = identity("birch2", tmp_path)
    assert known == {
        "clusters": 100,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "drawn": 25_000,
    }
    whole = identity(f"{path}:100", None)
    assert whole == {name: value for name, value in known.items() if name != "drawn"}
    assert identity("g2_7_30", tmp_path) == {"generated": True}
    assert identity("sklearn-wine", tmp_path) == {"bundled": True}
    for name in ("wine", f"{tmp_path / 'none.npz'}:2"):
        assert identity(name, tmp_path) is None


def test_records_of_no_class_are_marked(tmp_path):
    np.savez(tmp_path / "own.npz", X=np.zeros((4, 1)), y=[-3, 2, -1, 7])
    assert load(f"{tmp_path / 'own.npz'}:2").labels.tolist() == [-1, 0, -1, 1]


def test_a_part_of_birch2_is_drawn_once(tmp_path):
    records = np.arange(60_000.0).reshape(-1, 2)
    np.savez(tmp_path / "birch2.npz", X=records)
    found = load("birch2", tmp_path)
    assert found.records.shape == (25_000, 2)
    assert found.note == "25,000 of 30,000 records, drawn once"
    keep = np.sort(np.random.default_rng(0).choice(30_000, 25_000, replace=False))
    np.testing.assert_array_equal(found.records, records[keep])


def test_files_of_ones_own(tmp_path):
    np.savez(tmp_path / "own.npz", X=np.zeros((4, 3)))
    given = f"{tmp_path / 'own.npz'}:6"
    assert name_of(given) == "own"
    assert load(given).n_clusters == 6
    np.savez(tmp_path / "bad.npz", X=np.zeros(3))
    with pytest.raises(DataError, match="array X of two dimensions"):
        load(f"{tmp_path / 'bad.npz'}:2")


@pytest.mark.parametrize(
    "name", ["s3", "blobs_4", "g2_4", "iris:", "synth", "blobs_4_x"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ConfigurationError, match="Expected a data set: one of s1, "):
        identity(name, None)
    assert data.family_of(name) is None


def test_the_unit_ball_is_centred_and_its_largest_norm_is_1():
    rng = np.random.default_rng(0)
    found = to_unit_ball(rng.normal(5, 3, (100, 4)))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-12)
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(1)


def test_the_unit_box_is_full_in_every_column():
    rng = np.random.default_rng(0)
    records = np.column_stack([rng.normal(5, 3, (100, 2)), np.full(100, 4.0)])
    found = to_unit_box(records)
    assert found.min(axis=0).tolist() == [-1, -1, 0]
    assert found.max(axis=0).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"PK\x03\x04 cut off", "array"]
)
def test_files_that_are_no_npz_are_refused(tmp_path, content):
    path = tmp_path / "own.npz"
    if content == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros((3, 2)))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match="Expected an npz file"):
        data.load(f"{path}:2")
