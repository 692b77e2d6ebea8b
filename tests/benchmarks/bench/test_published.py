"""Data sets as their publishers give them, on tiny files of their form."""

import gzip

import numpy as np
import pandas as pd
import pytest

from bench import published
from bench.data import identity, load
from flower_kmeans.errors import ConfigurationError, DataError


def idx(first, array):
    head = np.array([first, *array.shape], dtype=">u4")
    return head.tobytes() + array.astype(np.uint8).tobytes()


def mnist(folder):
    images = np.arange(3 * 784).reshape(3, 28, 28) % 256
    content = gzip.compress(idx(published.IDX_IMAGES, images))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    labels = idx(published.IDX_LABELS, np.array([7, 2, 7]))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels)
    return images.reshape(3, 784)


def yeast(folder):
    text = "ADT1_YEAST  0.58  0.61  0.47  0.13  0.50  0.00  0.48  0.22  MIT\n"
    text += "ADT2_YEAST  0.43  0.67  0.48  0.27  0.50  0.00  0.53  0.22  NUC\n"
    (folder / "yeast.data").write_text(text, "utf-8")
    first = [0.58, 0.61, 0.47, 0.13, 0.50, 0.00, 0.48, 0.22]
    return np.array([first, [0.43, 0.67, 0.48, 0.27, 0.50, 0.00, 0.53, 0.22]])


def house(folder):
    (folder / "house.txt").write_text("  1 2 3\n  4 5 6\n", "utf-8")
    return np.array([[1.0, 2, 3], [4, 5, 6]])


def image(folder):
    (folder / "image.txt").write_text("  1 2 3\n  4 5 6\n", "utf-8")
    return np.array([[1.0, 2, 3], [4, 5, 6]])


def letter(folder):
    lines = ["T," + ",".join(map(str, range(16))), "I," + ",".join(["1"] * 16)]
    (folder / "letter-recognition.data").write_text("\n".join(lines), "utf-8")
    return np.array([np.arange(16.0), np.ones(16)])


def gas(folder):
    names = ["AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX"]
    lines = []
    for year in range(2011, 2016):
        row = np.arange(11.0) + year
        frame = pd.DataFrame([row], columns=names)
        frame.to_csv(folder / f"gt_{year}.csv", index=False)
        lines.append([year, *row])
    return np.array(lines)


def har(folder):
    wide = np.random.default_rng(0).normal(size=(30, 561))
    for part, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        np.savetxt(folder / f"X_{part}.txt", wide[rows])
        np.savetxt(folder / f"y_{part}.txt", np.arange(30)[rows] % 6 + 1, fmt="%d")
    return


def taxi(folder):
    frame = pd.DataFrame(
        {
            "VendorID": [1, 2],
            "tpep_pickup_datetime": ["2016-01-01 00:00:10", "2016-01-02 00:01:00"],
            "tpep_dropoff_datetime": ["2016-01-01 01:00:00", "2016-01-02 02:00:00"],
            "passenger_count": [1, 1],
            "trip_distance": [2.0, 2.0],
            "pickup_longitude": [-74.0, -74.0],
            "pickup_latitude": [40.0, 40.0],
            "dropoff_longitude": [-73.0, -73.0],
            "dropoff_latitude": [41.0, 41.0],
        }
    )
    frame.to_csv(folder / "yellow_tripdata_2016-01.csv", index=False)
    rest = [1, 2, -74, 40, -73, 41]
    # The larger times are cut at the 0.95 quantile.
    return np.array([[10.0, 3600, *rest], [57.5, 7020, *rest]])


def bank(folder):
    frame = pd.DataFrame([range(7), range(1, 8)], columns=list(published.BANK))
    frame.insert(1, "job", ["services", "admin."])
    frame.to_csv(folder / "bank-additional-full.csv", sep=";", index=False)
    return np.array([np.arange(7.0), np.arange(1.0, 8)])


def loan(folder):
    names = list(published.LOAN)
    frame = pd.DataFrame([[1.0] * 16, [1.0] * 16, [1.0] * 16], columns=names)
    frame.loc[2, "APARTMENTS_AVG"] = np.nan
    frame.insert(0, "SK_ID_CURR", [1, 2, 3])
    frame.to_csv(folder / "application_train.csv", index=False)
    return np.ones((3, 16))


MAKERS = {
    each.__name__: each
    for each in (mnist, yeast, house, image, letter, gas, har, taxi, bank, loan)
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_set_is_read_from_files_of_its_form(name, tmp_path):
    assert identity(name, tmp_path) is None
    expected = MAKERS[name](tmp_path)
    each = published.SETS[name]
    found = load(name, tmp_path)
    assert (found.name, found.n_clusters) == (name, each.n_clusters)
    assert found.records.shape[1] == each.n_features
    if expected is not None:
        np.testing.assert_allclose(found.records, expected)
    known = identity(name, tmp_path)
    assert known is not None
    assert len(known["sha256"]) == 64


def test_classes_are_numbers_from_zero(tmp_path):
    mnist(tmp_path)
    assert load("mnist", tmp_path).labels.tolist() == [1, 0, 1]
    har(tmp_path)
    assert load("har", tmp_path).labels[:7].tolist() == [0, 1, 2, 3, 4, 5, 0]


def test_components_keep_the_variance(tmp_path):
    har(tmp_path)
    records = load("har", tmp_path).records
    spread = records.var(axis=0)
    assert np.all(np.diff(spread) <= 0)
    np.testing.assert_allclose(records.mean(axis=0), 0, atol=1e-9)


def test_a_file_of_another_form_is_refused(tmp_path):
    (tmp_path / "yeast.data").write_text("A 1 2 MIT\n", "utf-8")
    with pytest.raises(DataError, match="Expected 8 columns from yeast"):
        load("yeast", tmp_path)
    (tmp_path / "house.txt").write_text("a b c\n", "utf-8")
    with pytest.raises(DataError, match="Expected the published form of house"):
        load("house", tmp_path)
    (tmp_path / "image.txt").write_text("1 2 nan\n", "utf-8")
    with pytest.raises(DataError, match="Expected finite numbers in image"):
        load("image", tmp_path)
    mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(1, np.zeros(3)))
    with pytest.raises(DataError, match="the first number is 1"):
        load("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="or letter-recognition"):
        load("letter", tmp_path)


def test_an_npz_file_comes_first(tmp_path):
    house(tmp_path)
    np.savez(tmp_path / "house.npz", X=np.zeros((4, 3)))
    assert load("house", tmp_path).records.shape == (4, 3)
