"""Clusters of new records, from what a run left: csv or parquet in and out, a batch at a time."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.domain import Domain
from flower_kmeans.data.table_domain import TableDomain, declared_as, domain_of
from flower_kmeans.data.tables import first_line
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private
from flower_kmeans.report.clustering import Floats, assigned
from flower_kmeans.report.synopsis import FILE_NAME, Synopsis

ADDED = ("cluster", "distance")
_BATCH_ROWS = 65_536


class Found(NamedTuple):
    """What ``centroids.npz`` says of a clustering."""

    centroids: Floats  # (k, d), in the user's units
    columns: tuple[str, ...]
    domain: Domain
    weights: Floats | None
    counts: Floats  # (k,), noisy
    is_private: bool
    sizes: tuple[Floats, Floats] | None = None  # (k,), and intervals (k, 2): of a run with bounds

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that new records must have."""
        if isinstance(self.domain, TableDomain):
            return tuple(column.name for column in self.domain.declared)
        return self.columns


def read_centroids(path: Path, declared: Path | None = None) -> Found:
    """Return what `outputs.write_centroids` wrote; a `DataError` for any other file.

    A node may have kept no declarations: then ``declared`` is the domain file of the run.
    """
    if not path.is_file():
        raise DataError(f"Expected the centroids.npz of a run. There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        domain, private = domain_of(arrays), arrays["private"]
        centroids, counts, weights = arrays["centroids"], arrays["counts"], arrays.get("weights")
        columns = tuple(map(str, arrays["columns"]))
        # All of it is checked, since the file may come from anywhere.
        is_right = centroids.shape[1:] == (domain.n_features,) == (len(columns),)
        is_right &= (k := len(centroids)) > 0 == private.ndim and private.dtype == np.bool_
        names = {"counts": (k,), "weights": (k,), "sizes": (k,), "size_interval": (k, 2)}
        is_right &= all(arrays[name].shape == names[name] for name in names.keys() & arrays.keys())
        numbers = [arrays[name] for name in ("centroids", *names) if name in arrays]
        is_right &= all(each.dtype == np.float64 and np.isfinite(each).all() for each in numbers)
        sizes = (arrays["sizes"], arrays["size_interval"]) if "sizes" in arrays else None
    except Exception:  # a damaged archive raises what zipfile, zlib, numpy and json have
        is_right = False
    if not is_right:
        raise DataError(f"Expected the centroids.npz of a run. Got {path}.")
    if declared is not None:
        domain = declared_as(TableDomain.from_file(declared), domain)
        if domain.columns != columns:
            raise DataError(f"Expected the domain file of the run, with {columns}. Got {declared}.")
    return Found(centroids, columns, domain, weights, counts, bool(private), sizes)


def synopsis_beside(path: Path, domain: Domain) -> Synopsis | None:
    """Return the synopsis of a run, from beside its file; ``None`` where there is none."""
    file = path.with_name(FILE_NAME)
    if not file.exists():
        return None
    synopsis = Synopsis.load(file)
    if synopsis.domain.to_config() != domain.to_config():
        raise DataError(f"Expected the synopsis of the run in {path}. Got that of another: {file}.")
    return synopsis


def with_clusters(found: Found, path: Path, n_clusters: int) -> Found:
    """Return another number of clusters of a run, from the synopsis beside its file."""
    synopsis = synopsis_beside(path, found.domain)
    if synopsis is None:
        raise DataError(f"Expected {FILE_NAME} beside {path}, for another number of clusters.")
    clusters = synopsis.kmeans(n_clusters)
    return found._replace(
        centroids=clusters.centroids, counts=clusters.counts, weights=None, sizes=None
    )


class Assigned(NamedTuple):
    """What was assigned: facts about the records, for their holder."""

    n_records: int
    n_without: int  # records without a cluster
    unread: list[str]  # declared columns without any usable cell


def assign(found: Found, data: Path, output: Path) -> Assigned:
    """Write the records of a file with their clusters and distances.

    ``cluster`` is that of `Clustering.predict`, and ``distance`` the Euclidean one to its centroid,
    in the user's units. Both are empty for a record with an empty cell, NaN or infinity. A cell
    without a number is an error, which leaves an earlier output as it was. Other columns of a csv
    file are text, so that a code such as 007 stays what it is. It may have commas, semicolons or
    tabs; an output in csv has commas. With a `TableDomain`, cells are those that it declares, none
    is an error, and distances are of scaled records.
    """
    pa, csv, parquet = (
        require(name, "Assigning records") for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet")
    )
    for path in (data, output):
        is_right = path.suffix.lower() in (".csv", ".parquet") and path.parent.is_dir()
        if not is_right or path.is_dir():
            raise ConfigurationError(
                "Expected files that end in .csv or .parquet, in directories that exist. "
                f"Got {path}."
            )
    if not data.is_file():
        raise DataError(f"The data file {data} does not exist.")
    # By the file and not the name: the output takes the place of what was there.
    if output.exists() and output.samefile(data):
        raise ConfigurationError(f"Expected an output beside the data. Got {output} for both.")
    make = csv.CSVWriter if output.suffix.lower() == ".csv" else parquet.ParquetWriter
    n_records, n_without = 0, 0
    unread = list(found.inputs) if isinstance(found.domain, TableDomain) else []
    with ExitStack() as stack:
        try:
            if data.suffix.lower() == ".csv":
                parts = csv.ParseOptions(delimiter=first_line(data)[1])
                header = stack.enter_context(csv.open_csv(data, parse_options=parts))
                names = [name.strip() for name in header.schema.names]
                lines = csv.ReadOptions(column_names=names, skip_rows_after_names=1)
                # Whatever a column looks like in its first lines.
                types = dict.fromkeys(names, pa.string())
                if not isinstance(found.domain, TableDomain):
                    types |= dict.fromkeys(found.columns, pa.float64())
                cells = csv.ConvertOptions(column_types=types)
                source = stack.enter_context(csv.open_csv(data, lines, parts, cells))
                batches, schema = iter(source), source.schema
            else:
                source = stack.enter_context(parquet.ParquetFile(data))
                batches, schema = source.iter_batches(_BATCH_ROWS), source.schema_arrow
            _require_columns(schema.names, found, data)
            for name, kind in zip(ADDED, (pa.int64(), pa.float64()), strict=True):
                schema = schema.append(pa.field(name, kind))
            with open_private(output) as file, make(file, schema) as writer:
                for batch in batches:
                    labels, distances, missing = _clusters(batch, found)
                    added = pa.array(labels, mask=missing), pa.array(distances, mask=missing)
                    arrays = [*batch.columns, *added]
                    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
                    n_records += batch.num_rows
                    n_without += int(np.count_nonzero(missing))
                    if isinstance(found.domain, TableDomain):
                        unread = found.domain.unread(batch, unread)
        except (pa.ArrowException, UnicodeError):
            # The reader's own text quotes the cell it failed on.
            raise DataError(
                f"Expected {data} as a table in UTF-8, with numbers in the columns "
                f"{list(found.inputs)}. It cannot be read as one."
            ) from None
    return Assigned(n_records, n_without, unread if n_records else [])


def _require_columns(names: Sequence[str], found: Found, data: Path) -> None:
    wanted = found.inputs
    missing = [name for name in wanted if name not in names]
    doubled = [name for name in wanted if list(names).count(name) > 1]
    if doubled:
        raise DataError(f"Expected the columns {list(wanted)} once in {data}. Got {doubled} twice.")
    if missing:
        hint = " Of a run with a domain.toml, name this file with --domain."
        if isinstance(found.domain, TableDomain):
            hint = ""
        raise DataError(f"Expected the columns {list(wanted)} in {data}. It lacks {missing}.{hint}")
    taken = [name for name in ADDED if name in names]
    if taken:
        raise DataError(f"Expected no columns {list(ADDED)} in {data}: the output has them anew.")


def _clusters(batch: Any, found: Found) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """Return cluster, distance and whether both are missing, for each record of a batch."""
    if isinstance(found.domain, TableDomain):
        records = found.domain.encode(batch, "nan")
    else:
        columns = (batch.column(name).cast("float64", safe=False) for name in found.columns)
        records = np.column_stack([each.to_numpy(zero_copy_only=False) for each in columns])
    missing = np.asarray(~np.isfinite(records).all(axis=1))
    # Any finite number does: what is computed from it is masked.
    records[missing] = 0.0
    labels = assigned(records, found.centroids, found.domain, found.weights)
    offsets = records - found.centroids[labels]
    if isinstance(found.domain, TableDomain):  # days, logarithms and shares have no common unit
        offsets /= found.domain.unit
    distances: Floats = np.linalg.norm(offsets, axis=1)
    return labels, distances, missing
