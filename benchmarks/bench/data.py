"""Named data sets: generated ones, scikit-learn's, and NAME.npz files of a directory.

| name | records |
|---|---|
| ``blobs_K_D`` | ``make_blobs(20000, n_features=D, centers=K, random_state=1)`` |
| ``manyblobs_N_K_D`` | the same with N records |
| ``uneven_K_D`` | the same of K sizes that fall geometrically, the first 20 times the last |
| ``g2_D_SD`` | `families.g2`, 2,048 records |
| ``separated_K_D_PERCENT`` | 5,000 in K balanced clusters of a degree of separation PERCENT / 100 |
| ``synth_K_D_SEED`` | `families.synth`, 10,000 and outliers |
| ``timesynth_N_K_D`` | `families.time_synth` |
| ``ablation_K_D_PERCENT`` | `families.ablation` with a degree of separation PERCENT / 100 |
| ``sklearn-iris``, ``sklearn-wine``, ``sklearn-breast`` | those that come with scikit-learn |
| a name of `FILES` | ``NAME.npz`` of the directory: array ``X`` (n, d), maybe ``y`` (n,) |
| a name of `published.SETS` | the same, or the files of their publishers |
| ``FILE.npz:K`` | any other file, to be divided into K clusters |
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from bench import families, published
from flower_kmeans.arrays import FloatArray, LabelArray
from flower_kmeans.data import generators
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require

FILES = {"s1": 15, "lsun": 3, "iris": 3, "wine": 3, "breast": 2, "birch2": 100}
FILES |= {"adult": 3, "unbalance": 8}
FILES |= {f"g2mg_{d}_30": 2 for d in (2, 4, 16, 128)}
FILES |= {name: each.n_clusters for name, each in published.SETS.items()}
"""Names of files in the directory, and their numbers of clusters."""
SUBSETS = {"birch2": 25_000}
"""Files from which the papers use a random sample, and its size. It is always the same."""
BUNDLED = {
    "sklearn-iris": ("load_iris", "two records differ from Fisher's"),
    "sklearn-wine": ("load_wine", "the same wines"),
    "sklearn-breast": (
        "load_breast_cancer",
        "the diagnostic set, 569 records of 30 columns; not the original of the papers",
    ),
}


@dataclass(frozen=True)
class Data:
    """Records, (n, d), in their own units, read-only, and the number of clusters to find.

    ``labels``, (n,), are their known clusters, or -1 for records in none.
    """

    name: str
    records: FloatArray
    n_clusters: int
    note: str = ""
    labels: LabelArray | None = None


class _File(NamedTuple):
    path: Path | None  # None without a directory
    n_clusters: int


def _blobs(
    sizes: int | list[int], d: int, k: int | None = None
) -> generators.Generated:
    require("sklearn.datasets", "A benchmark", "test")
    from sklearn.datasets import make_blobs

    made = make_blobs(
        sizes, n_features=d, centers=k, random_state=1, return_centers=True
    )
    return generators.Generated(*made)


def _uneven(k: int, d: int) -> generators.Generated:
    shares = 20.0 ** (-np.arange(k) / max(k - 1, 1))
    sizes = np.maximum(1, np.rint(20_000 * shares / shares.sum())).astype(int)
    return _blobs(sizes.tolist(), d)


def _separated(k: int, d: int, percent: int) -> generators.Generated:
    sizes = generators.sizes_of(5_000, np.ones(k))
    return generators.separated_clusters(sizes, d, percent / 100, 0)


_FAMILIES: dict[str, tuple[int, Callable[..., generators.Generated]]] = {
    "blobs": (2, lambda k, d: _blobs(20_000, d, k)),
    "manyblobs": (3, lambda n, k, d: _blobs(n, d, k)),
    "uneven": (2, _uneven),
    "g2": (2, lambda d, spread: families.g2(d, spread, 0)),
    "separated": (3, _separated),
    "synth": (3, families.synth),
    "timesynth": (3, lambda n, k, d: families.time_synth(n, k, d, 0)),
    "ablation": (3, lambda k, d, percent: families.ablation(k, d, percent / 100, 0)),
}
"""By family: the number of numbers in its names, and the function that makes a set."""


def family_of(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the family and the numbers of a generated set's name, or ``None``."""
    match = re.fullmatch(r"([a-z]+2?)((?:_\d+)+)", name)
    if match is None or match[1] not in _FAMILIES:
        return None
    numbers = tuple(map(int, match[2].split("_")[1:]))
    return (match[1], numbers) if len(numbers) == _FAMILIES[match[1]][0] else None


def name_of(given: str) -> str:
    """Return the name of a data set in tables."""
    path, _, clusters = given.rpartition(":")
    return Path(path).stem if path and clusters.isdigit() else given


def identity(given: str, directory: Path | None) -> dict[str, Any] | None:
    """Return the properties that identify a data set, or ``None`` for a missing file.

    For a file these are the number of clusters, its SHA-256, and the number of sampled
    records unless that is all. An unknown name is an error.
    """
    if family_of(given) is not None:
        return {"generated": True}
    if given in BUNDLED:
        return {"bundled": True}
    path, n_clusters = _file_of(given, directory)
    if path is None or not path.is_file():
        return _published_identity(given, directory)
    with path.open("rb") as file:
        # The content identifies the data. The path may differ between machines.
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    drawn = {"drawn": SUBSETS[given]} if given in SUBSETS else {}
    return {"clusters": n_clusters, "sha256": digest, **drawn}


@lru_cache(maxsize=4)
def load(given: str, directory: Path | None = None) -> Data:
    """Return a data set: a name of the table above, or ``FILE.npz:K``.

    Raises
    ------
    ConfigurationError
        If there is no such data set, or its file is missing.
    DataError
        If the file does not hold what it should.
    """
    family = family_of(given)
    if family is not None:
        made = _FAMILIES[family[0]][1](*family[1])
        return _data(given, made.records, len(made.centers), "generated", made.labels)
    if given in BUNDLED:
        datasets = require("sklearn.datasets", "A benchmark", "test")
        loader, note = BUNDLED[given]
        bunch = getattr(datasets, loader)()
        return _data(given, bunch.data, len(bunch.target_names), note, bunch.target)
    path, n_clusters = _file_of(given, directory)
    if path is None or not path.is_file():
        return _load_published(given, directory)
    with _opened(path) as stored:
        if "X" not in stored or stored["X"].ndim != 2:
            raise DataError(
                f"Expected an array X of two dimensions in {path}. Got none."
            )
        records = stored["X"]
        labels = (
            stored["y"]
            if "y" in stored and stored["y"].shape == (len(records),)
            else None
        )
    size, note = SUBSETS.get(given, len(records)), ""
    if size < len(records):
        note = f"{size:,} of {len(records):,} records, drawn once"
        # The seed is fixed, because every run and command must see the same sample.
        keep = np.sort(
            np.random.default_rng(0).choice(len(records), size, replace=False)
        )
        records, labels = records[keep], None if labels is None else labels[keep]
    return _data(name_of(given), records, n_clusters, note, labels)


def _published_identity(name: str, directory: Path | None) -> dict[str, Any] | None:
    """Return the properties that identify the publisher's files, or ``None``."""
    if name not in published.SETS:
        return None
    each = published.SETS[name]
    paths = each.paths(directory)
    if paths is None:
        return None
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return {"clusters": each.n_clusters, "sha256": digest.hexdigest()}


def _load_published(name: str, directory: Path | None) -> Data:
    files = ""
    if name in published.SETS:
        each = published.SETS[name]
        paths = each.paths(directory)
        if paths is not None:
            table = each.table(paths)
            note = f"the publisher's files; {each.note}".removesuffix("; ")
            return _data(name, table.records, each.n_clusters, note, table.classes)
        files = f", or {', '.join(each.files)}"
    raise ConfigurationError(
        f"Expected {name}.npz{files} in --data-dir. Got {directory} instead, where it is "
        "not."
    )


def _file_of(given: str, directory: Path | None) -> _File:
    if name_of(given) != given:
        path, _, clusters = given.rpartition(":")
        return _File(Path(path), int(clusters))
    if given not in FILES:
        raise ConfigurationError(
            f"Expected a data set: one of {', '.join((*FILES, *BUNDLED))}, a family "
            f"({', '.join(_FAMILIES)}) with its numbers as blobs_16_4, or FILE.npz:K. "
            f"Got {given!r} instead."
        )
    return _File(
        None if directory is None else directory / f"{given}.npz", FILES[given]
    )


def _opened(path: Path) -> Any:
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, BadZipFile):
        stored = None
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise DataError(f"Expected an npz file in {path}. Got something else.")
    return stored


def _data(name: str, records: Any, n_clusters: int, note: str, labels: Any) -> Data:
    table = np.array(records, dtype=np.float64)
    # `load` keeps data sets, so a task that changed one would change it for later tasks.
    table.setflags(write=False)
    if labels is not None:  # classes as numbers from 0, and what belongs to none as -1
        classes, labels = np.unique(labels, return_inverse=True)
        n_none = np.count_nonzero(classes < 0) if classes.dtype.kind in "if" else 0
        labels = np.maximum(labels.astype(np.int64) - n_none, -1)
    return Data(name, table, n_clusters, note, labels)


def to_unit_ball(records: FloatArray) -> FloatArray:
    """Return records, centred and scaled to a largest l2 norm of 1 (PE-means, section IV).

    Centre and norm are read off the records. This is only for comparison with papers.
    """
    centred = records - records.mean(axis=0)
    return np.asarray(centred / np.linalg.norm(centred, axis=1).max())


def to_unit_box(records: FloatArray) -> FloatArray:
    """Return records with every column scaled to [-1, 1] (FastLloyd, section 6).

    A constant column becomes 0. Bounds are read off the records. This is only for
    comparison with papers.
    """
    low, high = records.min(axis=0), records.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.where(high > low, 2 * (records - low) / width - 1, 0.0)
