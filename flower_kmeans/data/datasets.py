"""Records to cluster: a photograph, a user's table, and their split over clients.

Nothing here is private. These functions run where the records are, for example in the
one process of a simulation, and make the records that clients load.
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
    """Return scikit-learn's bundled photograph ``china.jpg``. This needs Pillow.

    Returns
    -------
    ndarray of shape (427, 640, 3), uint8
        Rows, columns, and red, green and blue from 0 to 255.
    """
    require("PIL", "The photograph")
    require("sklearn.datasets", "The photograph")
    from sklearn.datasets import load_sample_image

    photograph = load_sample_image("china.jpg")
    image: NDArray[np.uint8] = np.asarray(photograph, dtype=np.uint8)
    return image


def photo_records() -> NDArray[np.float64]:
    """Return the photograph's pixels, row by row, as records, (273280, 3), float64."""
    return load_photo().reshape(-1, 3).astype(np.float64)


def photo_tile(client: int, n_clients: int) -> NDArray[np.float64]:
    """Return one client's records: the pixels of its tile, (n, 3), float64.

    ``client`` is in [0, n_clients). The photograph is cut into ``n_clients`` `tiles`.
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
    """Return each client's row numbers, from a random split into nearly equal parts."""
    _require_clients(n_clients)
    parts: list[IntArray] = np.array_split(rng.permutation(n_records), n_clients)
    return parts


def split_groups(
    groups: IntArray, n_clients: int, rng: np.random.Generator
) -> list[IntArray]:
    """Return each client's row numbers, with all rows of a group at one client.

    ``groups`` has the number of each row's group, (n,), from 0. Groups are split at
    random into nearly equal numbers.
    """
    _require_clients(n_clients)
    n_groups = int(groups.max(initial=-1)) + 1
    owners = rng.permutation(np.arange(n_groups) % n_clients)
    return _group(owners[groups], n_clients)


def split_by_column(values: ArrayLike, n_clients: int | None = None) -> list[IntArray]:
    """Return each client's row numbers, split by the values of a column, (n,).

    All rows with the same value go to the same client. By default each value has its
    own client. With fewer clients than values, each client gets values that are
    neighbours in sorted order, as equal in number as possible.

    Raises
    ------
    ConfigurationError, DataError
        If there are more clients than values, or ``values`` is not one-dimensional.
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
    """Return each client's row numbers, with each label split by Dirichlet(alpha).

    With a small ``alpha`` each client has few labels, or no records. With a large
    ``alpha`` clients are similar (Hsu, Qi & Brown 2019). ``labels`` has the shape (n,).

    Raises
    ------
    ConfigurationError, DataError
        If ``alpha`` is not positive and finite, or ``labels`` is not one-dimensional.
    """
    _require_clients(n_clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ConfigurationError(f"Expected alpha > 0 and finite. Got {alpha} instead.")
    distinct, codes = _codes_of(labels, "labels")
    owner = np.empty(len(codes), dtype=np.int64)
    for code in range(len(distinct)):
        rows = rng.permutation(np.flatnonzero(codes == code))
        fractions = rng.dirichlet(np.full(n_clients, alpha))
        # For a tiny alpha all gamma draws underflow, and the fractions are NaN.
        if not np.isfinite(fractions).all():
            fractions = np.eye(n_clients)[rng.integers(n_clients)]
        # The fractions may add up to slightly less or more than 1.
        exact_ends = np.cumsum(fractions) * len(rows)
        ends = np.minimum(np.rint(exact_ends).astype(np.int64), len(rows))
        ends[-1] = len(rows)
        parts = np.split(rows, ends[:-1])
        for client, part in enumerate(parts):
            owner[part] = client
    return _group(owner, n_clients)


def partitioner_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and parameters of a flwr-datasets partitioner, written as a call.

    An example is
    ``PathologicalPartitioner(partition_by='label', num_classes_per_partition=2)``.
    Values must be literals, and the text is not executed.

    Raises
    ------
    ConfigurationError
        If the text is not such a call.
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
        The partitioner, as `partitioner_of` reads it.
    column : callable
        Returns the values, (n_records,), of the column with a given name, for
        ``partition_by``.
    n_records : int
    n_clients : int
        ``num_partitions`` of partitioners that take it, unless the text gives it.
    seed : int
        ``seed`` of partitioners that take it, unless the text gives it.

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
    except Exception as error:  # another package may raise anything
        # The package's own text may hold values of records, so it is not shown.
        raise ConfigurationError(
            f"Expected {name} to divide the records with {given or 'its defaults'}. "
            f"Got a {type(error).__name__} of flwr-datasets instead: see its documentation."
        ) from error
    return parts


def _divides_records(kind: type) -> bool:
    """Return whether a partitioner divides records. Others divide columns among parties."""
    return "active_party_columns" not in inspect.signature(kind).parameters


def tiles(height: int, width: int, n_tiles: int) -> list[IntArray]:
    """Return the pixels of each tile: nearly square rectangles of nearly equal size.

    Pixels are numbered row by row from 0, and tiles are in row order.

    Raises
    ------
    ConfigurationError
        If the pixels cannot be cut into a grid of ``n_tiles``.
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
        # The logarithm treats a tile twice as high as wide, and one twice as wide as
        # high, alike.
        rows, cols = pair
        return float(abs(np.log(height / rows / (width / cols))))

    rows, cols = min(pairs, key=stretch)
    pixels = np.arange(height * width, dtype=np.int64).reshape(height, width)
    found: list[IntArray] = []
    for band in np.array_split(pixels, rows, axis=0):
        found += [tile.reshape(-1) for tile in np.array_split(band, cols, axis=1)]
    return found


def _codes_of(values: ArrayLike, name: str) -> tuple[NDArray[Any], IntArray]:
    """Return a column's distinct values, sorted, and each record's index into them."""
    column = np.asarray(values)
    if column.ndim != 1:
        raise DataError(f"Expected {name} in one dimension. Got {column.ndim} instead.")
    if column.dtype == object:  # text from a table, where a null is None
        texts = ["" if value is None else str(value) for value in column]
        column = np.array(texts)
    distinct, codes = np.unique(column, return_inverse=True)
    return distinct, codes.reshape(-1)  # versions of NumPy return different shapes


def _group(owner: IntArray, n_clients: int) -> list[IntArray]:
    # A stable sort keeps a client's rows in the order of the data.
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=n_clients))
    parts: list[IntArray] = np.split(order, ends[:-1])
    return parts


def _require_clients(n_clients: int) -> None:
    if n_clients < 1:
        raise ConfigurationError(f"Expected n_clients >= 1. Got {n_clients} instead.")
