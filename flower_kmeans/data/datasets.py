"""Records to cluster: a photograph, a user's table, and their split over clients.

Nothing here is private by itself: these functions run where the records are (in a
simulation, in one process) and produce what clients load.
"""

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.arrays import IntArray
from flower_kmeans.data.tables import Table as Table
from flower_kmeans.data.tables import load_table as load_table
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require

PHOTO_COLUMNS = ("red", "green", "blue")
PHOTO_SIZE = (427, 640)
PHOTO_RECORDS = 273_280


def load_photo() -> NDArray[np.uint8]:
    """Return scikit-learn's bundled photograph ``china.jpg``, which needs Pillow.

    An array of shape (427, 640, 3), uint8: rows, columns, and red, green, blue in 0 to
    255.
    """
    require("PIL", "The photograph")
    require("sklearn.datasets", "The photograph")
    from sklearn.datasets import load_sample_image

    photograph = load_sample_image("china.jpg")
    image: NDArray[np.uint8] = np.asarray(photograph, dtype=np.uint8)
    return image


def photo_records() -> NDArray[np.float64]:
    """Return the pixels of the photograph as records, (273280, 3), row by row."""
    return load_photo().reshape(-1, 3).astype(np.float64)


def photo_tile(client: int, n_clients: int) -> NDArray[np.float64]:
    """Return one client's records: the pixels of its tile, (n_client, 3).

    ``client`` is in [0, n_clients), and ``n_clients`` the number of `tiles`.
    """
    indices = tiles(*PHOTO_SIZE, n_clients)
    if not 0 <= client < n_clients:
        raise ConfigurationError(
            f"Expected client in [0, {n_clients}). Got {client} instead."
        )
    return photo_records()[indices[client]]


def split_iid(
    n_records: int, n_clients: int, rng: np.random.Generator
) -> list[IntArray]:
    """Return each client's row numbers: a random partition into nearly equal parts."""
    _require_clients(n_clients)
    parts: list[IntArray] = np.array_split(rng.permutation(n_records), n_clients)
    return parts


def split_by_column(values: ArrayLike, n_clients: int | None = None) -> list[IntArray]:
    """Return each client's row numbers, split by the values of a column, (n,).

    All rows with one value have one client. By default there is one client per value.
    With fewer clients than values, each gets neighbouring values (in sorted order), as
    equal in number as possible.
    """
    distinct, codes = _codes_of(values, "values")
    if n_clients is None:
        n_clients = len(distinct)
    _require_clients(n_clients)
    if n_clients > len(distinct):
        raise ConfigurationError(
            f"Expected at most as many clients as the column has values, {len(distinct)}. "
            f"Got {n_clients} instead."
        )
    parts = np.array_split(np.arange(len(distinct)), n_clients)
    owner_of_value = np.repeat(np.arange(n_clients), [len(part) for part in parts])
    return _group(owner_of_value[codes], n_clients)


def split_dirichlet(
    labels: ArrayLike, n_clients: int, alpha: float, rng: np.random.Generator
) -> list[IntArray]:
    """Return each client's row numbers, each label, (n,), split by Dirichlet(alpha).

    Small ``alpha`` gives clients with few labels each, or no records, and large
    ``alpha`` similar clients (Hsu, Qi & Brown 2019).
    """
    _require_clients(n_clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ConfigurationError(f"Expected alpha > 0 and finite. Got {alpha} instead.")
    distinct, codes = _codes_of(labels, "labels")
    owner = np.empty(len(codes), dtype=np.int64)
    for code in range(len(distinct)):
        rows = rng.permutation(np.flatnonzero(codes == code))
        fractions = rng.dirichlet(np.full(n_clients, alpha))
        # all gamma draws underflow for a tiny alpha
        if not np.isfinite(fractions).all():
            fractions = np.eye(n_clients)[rng.integers(n_clients)]
        # The last sum of the fractions may miss 1 by a rounding, on either side.
        exact_ends = np.cumsum(fractions) * len(rows)
        ends = np.minimum(np.rint(exact_ends).astype(np.int64), len(rows))
        ends[-1] = len(rows)
        parts = np.split(rows, ends[:-1])
        for client, part in enumerate(parts):
            owner[part] = client
    return _group(owner, n_clients)


def partitioner_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a flwr-datasets partitioner, written as a call.

    For example
    ``PathologicalPartitioner(partition_by='label', num_classes_per_partition=2)``.
    Values are literals: nothing of the text is run.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and not call.args
        ):
            parameters = {}
            for keyword in call.keywords:
                parameters[str(keyword.arg)] = ast.literal_eval(keyword.value)
            return call.func.id, parameters
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise ConfigurationError(
        "Expected a partitioner as NAMEPartitioner(parameter=value, ...) with plain values. "
        f"Got {text!r} instead."
    )


def split_by_partitioner(
    text: str,
    column: Callable[[str], NDArray[Any]],
    n_records: int,
    n_clients: int,
    seed: int,
) -> list[IntArray]:
    """Return each client's row numbers by a partitioner of flwr-datasets.

    Parameters
    ----------
    text : str
        As `partitioner_of` reads it.
    column : callable
        Returns the values (n_records,) of a column by its name, for ``partition_by``.
    n_records : int
    n_clients : int
        ``num_partitions`` of partitioners that take it, unless the text has it.
    seed : int
        The same of ``seed``.

    Raises
    ------
    ConfigurationError
        If flwr-datasets is not installed, has no such partitioner of records, or
        refuses these parameters or records.
    """
    name, given = partitioner_of(text)
    package = require("flwr_datasets.partitioner", "A partitioner", "partitioners")
    every = [each for each in package.__all__ if each != "Partitioner"]  # their base
    names = [each for each in every if _divides_records(getattr(package, each))]
    if name not in names:
        raise ConfigurationError(
            f"Expected a partitioner in {names}. Got {name!r} instead."
        )
    kind = getattr(package, name)
    defaults = {"num_partitions": n_clients, "seed": seed}
    known = inspect.signature(kind).parameters
    parameters: dict[str, Any] = {}
    for key, value in defaults.items():
        if key in known:
            parameters[key] = value
    parameters |= given
    columns = {"row": np.arange(n_records)}
    if isinstance(by := given.get("partition_by"), str):
        columns["by"] = column(by)
        parameters["partition_by"] = "by"
    try:
        partitioner = kind(**parameters)
        datasets = require("datasets", "A partitioner", "partitioners")
        lists = {key: values.tolist() for key, values in columns.items()}
        partitioner.dataset = datasets.Dataset.from_dict(lists)
        parts = []
        for i in range(partitioner.num_partitions):
            rows = partitioner.load_partition(i)["row"]
            parts.append(np.array(rows, dtype=np.int64))
    except Exception as error:  # whatever another package raises
        # Not its text, which may hold values of records.
        raise ConfigurationError(
            f"Expected {name} to divide the records with {given or 'its defaults'}. "
            f"Got a {type(error).__name__} of flwr-datasets instead: see its documentation."
        ) from error
    return parts


def _divides_records(kind: type) -> bool:
    """Return whether a partitioner divides records. Others divide columns among parties."""
    return "active_party_columns" not in inspect.signature(kind).parameters


def tiles(height: int, width: int, n_tiles: int) -> list[IntArray]:
    """Return the pixels of tiles: nearly square rectangles of nearly equal size.

    Pixels and tiles are counted row by row.
    """
    _require_clients(n_tiles)
    pairs = []
    for rows in range(1, n_tiles + 1):
        cols = n_tiles // rows
        if rows * cols == n_tiles and rows <= height and cols <= width:
            pairs.append((rows, cols))
    if not pairs:
        raise ConfigurationError(
            f"Expected a number of tiles into which {height} x {width} pixels can be cut as a "
            f"grid. Got {n_tiles} instead."
        )

    def stretch(pair: tuple[int, int]) -> float:
        # The logarithm counts a tile twice as high as wide like one twice as wide as
        # high.
        rows, cols = pair
        return float(abs(np.log(height / rows / (width / cols))))

    rows, cols = min(pairs, key=stretch)
    pixels = np.arange(height * width, dtype=np.int64).reshape(height, width)
    found: list[IntArray] = []
    for band in np.array_split(pixels, rows, axis=0):
        found += [tile.reshape(-1) for tile in np.array_split(band, cols, axis=1)]
    return found


def _codes_of(values: ArrayLike, name: str) -> tuple[NDArray[Any], IntArray]:
    """Return a column's different values, sorted, and the place of each record's."""
    column = np.asarray(values)
    if column.ndim != 1:
        raise DataError(f"Expected {name} in one dimension. Got {column.ndim} instead.")
    if column.dtype == object:  # text from a table, where a null is None
        texts = ["" if value is None else str(value) for value in column]
        column = np.array(texts)
    distinct, codes = np.unique(column, return_inverse=True)
    return distinct, codes.reshape(-1)  # whose shape differs between versions of NumPy


def _group(owner: IntArray, n_clients: int) -> list[IntArray]:
    # Stable, so that a client's rows stay in the order of the data.
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=n_clients))
    parts: list[IntArray] = np.split(order, ends[:-1])
    return parts


def _require_clients(n_clients: int) -> None:
    if n_clients < 1:
        raise ConfigurationError(f"Expected n_clients >= 1. Got {n_clients} instead.")
