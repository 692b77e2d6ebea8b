"""Data sets as their publishers give them, from the files of a directory.

None of them is in the repository. `SETS` has the names of the files, and the columns that
become records. `bench.data` reads a set from these files if there is no NAME.npz.

| name | files | records, columns, clusters |
|---|---|---|
| ``mnist`` | the four IDX files' ``t10k`` pair, also ``.gz`` | 10,000, 784, 10 |
| ``yeast`` | ``yeast.data`` (UCI) | 1,484, 8, 10 |
| ``house`` | ``house.txt``: numbers in three columns | 1,837, 3, 3 |
| ``image`` | ``image.txt``: the same | 34,112, 3, 3 |
| ``letter`` | ``letter-recognition.data`` (UCI) | 20,000, 16, 26 |
| ``gas`` | ``gt_2011.csv`` to ``gt_2015.csv`` (UCI) | 36,733, 12, 6 |
| ``har`` | ``X_train.txt``, ``X_test.txt`` and ``y_...`` (UCI) | 10,299, 10, 6 |
| ``taxi`` | ``yellow_tripdata_2016-01.csv`` (NYC TLC) | 100,000, 8, 5 |
| ``bank`` | ``bank-additional-full.csv`` (UCI) | 30,090, 7, 7 |
| ``loan`` | ``application_train.csv`` (Home Credit) | 60,000, 16, 5 |

The papers do not state everything. `Published.note` says what was chosen here.
"""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import DataError

IDX_IMAGES = 2051
IDX_LABELS = 2049
"""The first numbers of IDX files of images and of labels."""
HAR_COLUMNS = 10
"""Principal components of the 561 columns of ``har``."""
CLIP = 0.95
"""Quantile above which ``taxi`` and ``loan`` are cut, as by Li et al."""
GAS_YEARS = range(2011, 2016)
BANK = (
    *("age", "duration", "emp.var.rate", "cons.price.idx", "cons.conf.idx"),
    *("euribor3m", "nr.employed"),
)
BANK_RECORDS = 30_090
LOAN = (
    *("AMT_CREDIT", "AMT_INCOME_TOTAL", "AMT_ANNUITY", "AMT_GOODS_PRICE"),
    *("CNT_CHILDREN", "CNT_FAM_MEMBERS", "DAYS_BIRTH", "DAYS_EMPLOYED"),
    *("REGION_POPULATION_RELATIVE", "APARTMENTS_AVG", "LIVINGAREA_AVG"),
    "TOTALAREA_MODE",
    *("OBS_30_CNT_SOCIAL_CIRCLE", "DEF_30_CNT_SOCIAL_CIRCLE"),
    *("OBS_60_CNT_SOCIAL_CIRCLE", "DEF_60_CNT_SOCIAL_CIRCLE"),
)
LOAN_RECORDS = 60_000
TAXI_TIMES = ("tpep_pickup_datetime", "tpep_dropoff_datetime")
TAXI = (
    *("passenger_count", "trip_distance", "pickup_longitude", "pickup_latitude"),
    *("dropoff_longitude", "dropoff_latitude"),
)
TAXI_RECORDS = 100_000


class Table(NamedTuple):
    """Records (n, d), and their classes (n,) where the files have them."""

    records: FloatArray
    classes: Sequence[object] | None = None


@dataclass(frozen=True)
class Published:
    """A published data set.

    Attributes
    ----------
    files : tuple of str
        Names of its files. ``NAME.gz`` stands for NAME, too.
    n_clusters : int
        The number of clusters in the papers.
    n_features : int
        The number of columns in the papers.
    read : callable
        Takes the paths of the files and returns a `Table`.
    note : str
        What the papers do not state, and was chosen here.
    """

    files: tuple[str, ...]
    n_clusters: int
    n_features: int
    read: Callable[[Sequence[Path]], Table]
    note: str = ""

    def paths(self, directory: Path | None) -> tuple[Path, ...] | None:
        """Return the paths of the files, or ``None`` if one is missing."""
        if directory is None:
            return None
        found = []
        for name in self.files:
            path = directory / name
            if not path.is_file():
                path = directory / f"{name}.gz"
            if not path.is_file():
                return None
            found.append(path)
        return tuple(found)

    def table(self, paths: Sequence[Path]) -> Table:
        """Return the records of the files.

        Raises
        ------
        DataError
            If the files do not have the published form.
        """
        names = ", ".join(path.name for path in paths)
        try:
            found = self.read(paths)
        except (ValueError, KeyError, OSError, EOFError) as error:
            raise DataError(
                f"Expected the published form of {names}. Got another: {error}."
            ) from error
        records = found.records
        if records.ndim != 2 or records.shape[1] != self.n_features:
            raise DataError(
                f"Expected {self.n_features} columns from {names}. Got an array of the "
                f"shape {records.shape} instead."
            )
        if not np.isfinite(records).all():
            raise DataError(f"Expected finite numbers in {names}. Got others.")
        return found


def _opened(path: Path) -> bytes:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return path.read_bytes()


def _idx(path: Path, first: int) -> FloatArray:
    """Return the array of an IDX file: its first number, its shape, then bytes."""
    content = _opened(path)
    n_axes = first % 256
    head = np.frombuffer(content, ">u4", 1 + n_axes)
    if head[0] != first:
        raise ValueError(f"the first number is {head[0]} and not {first}")
    body = np.frombuffer(content, np.uint8, offset=head.nbytes)
    return body.reshape(head[1:]).astype(np.float64)


def _mnist(paths: Sequence[Path]) -> Table:
    images, labels = paths
    records = _idx(images, IDX_IMAGES)
    flat = records.reshape(len(records), -1)
    return Table(flat, _idx(labels, IDX_LABELS).tolist())


def _yeast(paths: Sequence[Path]) -> Table:
    (path,) = paths
    frame = pd.read_csv(path, sep=r"\s+", header=None)
    numbers = frame.iloc[:, 1:-1].to_numpy(np.float64)
    return Table(numbers, frame.iloc[:, -1].tolist())


def _numbers(paths: Sequence[Path]) -> Table:
    (path,) = paths
    return Table(np.loadtxt(path, ndmin=2))


def _letter(paths: Sequence[Path]) -> Table:
    (path,) = paths
    frame = pd.read_csv(path, header=None)
    return Table(frame.iloc[:, 1:].to_numpy(np.float64), frame.iloc[:, 0].tolist())


def _gas(paths: Sequence[Path]) -> Table:
    parts = []
    for year, path in zip(GAS_YEARS, paths, strict=True):
        numbers = pd.read_csv(path).to_numpy(np.float64)
        years = np.full((len(numbers), 1), float(year))
        parts.append(np.concatenate([years, numbers], axis=1))
    return Table(np.concatenate(parts))


def _har(paths: Sequence[Path]) -> Table:
    train, test, train_labels, test_labels = paths
    wide = np.concatenate([np.loadtxt(train, ndmin=2), np.loadtxt(test, ndmin=2)])
    centred = wide - wide.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    labels = np.concatenate(
        [np.loadtxt(train_labels, ndmin=1), np.loadtxt(test_labels, ndmin=1)]
    )
    return Table(centred @ directions[:HAR_COLUMNS].T, labels.tolist())


def _clipped(records: FloatArray) -> FloatArray:
    """Return records, each column cut at its quantile `CLIP`."""
    return np.minimum(records, np.quantile(records, CLIP, axis=0))


def _taxi(paths: Sequence[Path]) -> Table:
    (path,) = paths
    columns = [*TAXI_TIMES, *TAXI]
    frame = pd.read_csv(path, usecols=columns, nrows=TAXI_RECORDS)
    times = []
    for name in TAXI_TIMES:
        moments = pd.to_datetime(frame[name])
        seconds = moments - moments.dt.normalize()
        times.append(seconds.dt.total_seconds().to_numpy(np.float64))
    numbers = frame[list(TAXI)].to_numpy(np.float64)
    return Table(_clipped(np.column_stack([*times, numbers])))


def _bank(paths: Sequence[Path]) -> Table:
    (path,) = paths
    frame = pd.read_csv(path, sep=";", usecols=list(BANK), nrows=BANK_RECORDS)
    return Table(frame[list(BANK)].to_numpy(np.float64))


def _loan(paths: Sequence[Path]) -> Table:
    (path,) = paths
    frame = pd.read_csv(path, usecols=list(LOAN), nrows=LOAN_RECORDS)
    numbers = frame[list(LOAN)]
    # Many houses have no entry: they get the column's mean.
    filled = numbers.fillna(numbers.mean()).to_numpy(np.float64)
    return Table(_clipped(filled))


SETS = {
    "mnist": Published(
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), 10, 784, _mnist
    ),
    "yeast": Published(("yeast.data",), 10, 8, _yeast),
    "house": Published(("house.txt",), 3, 3, _numbers),
    "image": Published(("image.txt",), 3, 3, _numbers),
    "letter": Published(("letter-recognition.data",), 26, 16, _letter),
    "gas": Published(
        tuple(f"gt_{year}.csv" for year in GAS_YEARS),
        6,
        12,
        _gas,
        "the files have 11 columns; the twelfth is taken to be the year",
    ),
    "har": Published(
        ("X_train.txt", "X_test.txt", "y_train.txt", "y_test.txt"),
        6,
        HAR_COLUMNS,
        _har,
        "principal components of all records",
    ),
    "taxi": Published(
        ("yellow_tripdata_2016-01.csv",),
        5,
        8,
        _taxi,
        "the first records of January; both times of day, passengers, distance and places",
    ),
    "bank": Published(
        ("bank-additional-full.csv",), 7, 7, _bank, "the first records of the file"
    ),
    "loan": Published(
        ("application_train.csv",),
        5,
        16,
        _loan,
        "the first records; 16 columns that fit the paper's words, means for gaps",
    ),
}
"""By name of the data set."""
