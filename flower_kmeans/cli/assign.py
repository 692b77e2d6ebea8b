"""Clusters of new records by the files of a run, block by block."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.declared import domain_from_file
from flower_kmeans.data.domain import Box, Domain, difference
from flower_kmeans.data.findings import ColumnFindings, Findings
from flower_kmeans.data.persons import SECRET_BYTES, counts_of, keys_of, person_weights
from flower_kmeans.data.reading import USUAL_READING, Reading
from flower_kmeans.data.spelling import Spelling
from flower_kmeans.data.table_domain import TableDomain, declared_as, domain_of
from flower_kmeans.data.tables import TableBlock, open_table, records_of
from flower_kmeans.data.weights import MOST_WEIGHT, NO_PERSONS
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.results import saved_synopsis
from flower_kmeans.report.clustering import assigned
from flower_kmeans.report.site_page import site_page
from flower_kmeans.report.site_sizes import SiteSizes
from flower_kmeans.report.synopsis import FILE_NAME, Synopsis

ADDED = ("cluster", "distance")
NO_PERSON_COLUMN = (
    "The run counted persons, and these are records. To compare persons, name the column of "
    "their ids: --person, or person in the source.toml."
)


class Found(NamedTuple):
    """A clustering as it is in ``centroids.npz``."""

    centroids: FloatArray  # (k, d), in the user's units
    columns: tuple[str, ...]
    domain: Domain
    weights: FloatArray | None
    counts: FloatArray  # (k,), noisy
    is_private: bool
    # noisy sizes, (k,), and their intervals, (k, 2), in a run with bounds on sizes
    sizes: tuple[FloatArray, FloatArray] | None = None
    synopsis: Synopsis | None = None  # if it is in the same file, as at a node
    counted: str = "records"  # noun for the units of ``counts``, or "persons"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that new records must have."""
        if isinstance(self.domain, TableDomain):
            return tuple(column.name for column in self.domain.declared)
        return self.columns


def read_centroids(path: Path, declared: Path | None = None) -> Found:
    """Return the clustering that `outputs.write_centroids` or `ClientResult.save` wrote.

    A node's file may lack the declarations of columns. ``declared`` is then the domain
    file of the run.

    Raises
    ------
    DataError
        If it is another file.
    """
    if not path.is_file():
        raise DataError(
            f"Expected the centroids.npz of a run. There is no file {path}."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            found = _found_in(dict(file))
    except Exception:
        # For a damaged archive zipfile, zlib, numpy and json raise many types.
        found = None
    if found is None:
        raise DataError(f"Expected the centroids.npz of a run. Got {path}.")
    if declared is None:
        return found
    domain = domain_from_file(declared)
    if not isinstance(domain, TableDomain):
        differs = difference(domain, found.domain)
        if differs is not None:
            raise DataError(
                f"Expected the domain of the run. Got one with another {differs[0]}."
            )
    else:
        domain = declared_as(domain, found.domain)
    if domain.columns != found.columns:
        raise DataError(
            f"Expected the domain file of the run, with {found.columns}. Got {declared}."
        )
    synopsis = found.synopsis
    if synopsis is not None:
        synopsis = replace(synopsis, domain=domain)
    return found._replace(domain=domain, synopsis=synopsis)


def _found_in(arrays: Mapping[str, NDArray[Any]]) -> Found | None:
    """Return the clustering of a file's arrays, or ``None`` if they do not fit together.

    Everything is checked, because the file may come from anywhere.
    """
    centroids = arrays["centroids"]
    private = arrays["private"]
    domain = domain_of(arrays)
    columns = tuple(map(str, arrays["columns"]))
    k = len(centroids)
    is_table = centroids.shape == (k, domain.n_features) and k > 0
    is_named = len(columns) == domain.n_features
    is_flag = private.ndim == 0 and private.dtype == np.bool_
    if not (is_table and is_named and is_flag):
        return None

    shapes = {"centroids": centroids.shape, "counts": (k,)}
    optional = {"weights": (k,), "sizes": (k,), "size_interval": (k, 2)}
    shapes |= {name: shape for name, shape in optional.items() if name in arrays}
    for name, shape in shapes.items():
        numbers = arrays[name]
        if numbers.shape != shape or numbers.dtype != np.float64:
            return None
        if not np.isfinite(numbers).all():
            return None

    counted = str(arrays.get("counted", "records"))
    if counted not in ("records", "persons"):
        return None

    sizes = None
    if "sizes" in arrays:
        sizes = arrays["sizes"], arrays["size_interval"]
    return Found(
        centroids,
        columns,
        domain,
        arrays.get("weights"),
        arrays["counts"],
        bool(private),
        sizes,
        saved_synopsis(arrays, domain),
        counted,
    )


def synopsis_of(found: Found, path: Path) -> Synopsis | None:
    """Return the synopsis of a run from its file, or from the file beside it."""
    return found.synopsis or synopsis_beside(path, found.domain)


def synopsis_beside(path: Path, domain: Domain) -> Synopsis | None:
    """Return the synopsis from the file beside a run's file, or ``None`` without one."""
    file = path.with_name(FILE_NAME)
    if not file.exists():
        return None
    synopsis = Synopsis.load(file)
    if synopsis.domain.to_config() != domain.to_config():
        raise DataError(
            f"Expected the synopsis of the run in {path}. Got that of another: {file}."
        )
    return synopsis


def with_clusters(
    found: Found,
    path: Path,
    n_clusters: int | None,
    weights: Mapping[str, float] | None = None,
) -> Found:
    """Return another clustering of a run, from its synopsis.

    Number of clusters and weights of columns are those of the run by default.
    """
    synopsis = synopsis_of(found, path)
    if synopsis is None:
        raise DataError(
            f"Expected {FILE_NAME} beside {path}, for other clusters than the run's."
        )
    if n_clusters is None:
        n_clusters = len(found.centroids)
    clusters = synopsis.kmeans(n_clusters, weights=weights or None)
    return found._replace(
        centroids=clusters.centroids,
        counts=clusters.counts,
        domain=clusters.domain,
        weights=None,
        sizes=None,
    )


class Placed(NamedTuple):
    """Clusters of m records: the columns that the output adds."""

    labels: NDArray[np.int64]  # (m,)
    distances: FloatArray  # (m,)
    missing: NDArray[np.bool_]  # (m,): records without both


class Assigned(NamedTuple):
    """Facts about assigned records, for their holder."""

    n_without: int  # records without a cluster
    findings: Findings
    sizes: SiteSizes


def assign(
    found: Found,
    data: str,
    output: Path,
    reading: Reading = USUAL_READING,
    page: Path | None = None,
) -> Assigned:
    """Write the records of a file with their clusters and distances.

    ``cluster`` is the result of `Clustering.predict`. ``distance`` is the Euclidean
    distance to its centroid, in the user's units, between scaled records with a
    `TableDomain`, or between directions on a `Sphere`. Both are empty for a record with
    a missing cell, unless the domain states a value for missing cells, and for one of
    length zero on a `Sphere`. Malformed cells are an error, and an earlier
    output is then unchanged. Other columns of a csv file are copied as text, so a code
    such as 007 does not change. An output in csv is separated by commas.

    The result has the sizes of the clusters in these records. They go to ``page``, too,
    if that is given: an HTML page for the holder alone.
    """
    suffix = output.suffix.lower()
    is_place = output.parent.is_dir() and not output.is_dir()
    if suffix not in _OUTPUTS or not is_place:
        raise ConfigurationError(
            "Expected an output that ends in .csv or .parquet, in a directory that exists. "
            f"Got {output}."
        )
    if page is not None:
        _require_page(page, output)
    opened = open_table(data, reading)
    # Files are compared, not names, because the output replaces an existing file.
    source = Path(opened.path)
    places = [output] if page is None else [output, page]
    for place in places:
        if place.exists() and source.exists() and place.samefile(source):
            raise ConfigurationError(
                f"Expected an output beside the data. Got {place} for both."
            )
    names = (*opened.names, *opened.beside)
    _require_columns(names, found, opened.path)
    person = None
    if found.counted == "persons" and opened.person is not None:
        opened.require([opened.person])
        person = opened.person
    findings = _findings_of(found)
    tally = _Tally(found, person)
    n_without = 0
    with open_private(output) as file:
        writer = _OUTPUTS[suffix](file, names)
        for block in opened.blocks(names):
            placed = _clusters(block, found, findings, opened.spelling)
            writer.write(block, placed)
            tally.add(block, placed)
            n_without += int(np.count_nonzero(placed.missing))
        # All blocks are read first, so the error names all columns. The output is then
        # dropped.
        findings.require_readable(opened.path)
        writer.close()
    sizes = tally.sizes()
    if page is not None:
        text = site_page(sizes, found.centroids, found.domain, found.columns)
        with open_private(page) as file:
            file.write(text.encode("utf-8"))
    return Assigned(n_without, findings, sizes)


def _require_page(page: Path, output: Path) -> None:
    """Require a place for the page: an HTML file beside the output."""
    is_place = page.parent.is_dir() and not page.is_dir()
    is_page = page.suffix.lower() in (".html", ".htm")
    if not is_page or not is_place:
        raise ConfigurationError(
            "Expected --page as a file that ends in .html, in a directory that exists. "
            f"Got {page}."
        )


class _Tally:
    """Counts the records of each cluster, or the persons by their column of ids.

    The records of a person count as one together: each of a person's c records with a
    cluster weighs 1/c, rounded down as in a run.
    """

    def __init__(self, found: Found, person: str | None) -> None:
        self._noisy = found.counts
        self._person = person
        self._counts = np.zeros(len(found.centroids), dtype=np.int64)
        # of all blocks, because a person may have records in each
        self._ids: list[Any] = []
        self._labels = [np.zeros(0, dtype=np.int64)]
        self._usable = [np.zeros(0, dtype=bool)]

    def add(self, block: TableBlock, placed: Placed) -> None:
        """Count the records of a block."""
        if self._person is not None:
            self._ids += block.columns[self._person].tolist()
            self._labels.append(placed.labels)
            self._usable.append(~placed.missing)
            return
        labels = placed.labels[~placed.missing]
        self._counts += np.bincount(labels, minlength=len(self._counts))

    def sizes(self) -> SiteSizes:
        """Return the sizes of all blocks, beside the noisy ones of the run."""
        if self._person is None:
            return SiteSizes(self._counts.astype(np.float64), self._noisy)
        persons = keys_of(self._ids, token(SECRET_BYTES))
        usable = np.concatenate(self._usable)
        labels = np.concatenate(self._labels)
        totals = counts_of(persons, usable)
        weights = person_weights(persons, usable, totals, NO_PERSONS, MOST_WEIGHT)
        own = np.bincount(labels, weights, len(self._noisy))
        return SiteSizes(own / MOST_WEIGHT, self._noisy, "persons")


def _findings_of(found: Found) -> Findings:
    if isinstance(found.domain, TableDomain):
        return found.domain.findings()
    return Findings(tuple(map(ColumnFindings, found.columns)))


def _require_columns(names: Sequence[str], found: Found, data: str) -> None:
    wanted = found.inputs
    missing = [name for name in wanted if name not in names]
    doubled = [name for name in wanted if list(names).count(name) > 1]
    if doubled:
        raise DataError(
            f"Expected the columns {list(wanted)} once in {data}. Got {doubled} twice."
        )
    if missing:
        hint = " Of a run with a domain.toml, name this file with --domain."
        if isinstance(found.domain, TableDomain):
            hint = ""
        raise DataError(
            f"Expected the columns {list(wanted)} in {data}. It lacks {missing}.{hint}"
        )
    taken = [name for name in ADDED if name in names]
    if taken:
        raise DataError(
            f"Expected no columns {list(ADDED)} in {data}: the output has them anew."
        )


def _clusters(
    block: TableBlock, found: Found, findings: Findings, spelling: Spelling
) -> Placed:
    """Return each record's cluster and distance, and whether both are missing."""
    records = records_of(block, found.inputs, _declared(found), findings, spelling)
    missing = np.asarray(~np.isfinite(records).all(axis=1))
    missing |= found.domain.are_null(records)
    # Any finite record with a direction will do, because these results are masked.
    records[missing] = 1.0
    labels = assigned(records, found.centroids, found.domain, found.weights)
    offsets = found.domain.compared(records) - found.centroids[labels]
    # Days, logarithms and categories have no common unit, and weights choose one.
    is_weighted = isinstance(found.domain, Box) and found.domain.is_weighted
    if isinstance(found.domain, TableDomain) or is_weighted:
        offsets /= found.domain.unit
    distances: FloatArray = np.linalg.norm(offsets, axis=1)
    return Placed(labels, distances, missing)


def _declared(found: Found) -> TableDomain | None:
    return found.domain if isinstance(found.domain, TableDomain) else None


# --------------------------------------------------------------------------- outputs


class _CsvOutput:
    """Writes records with their clusters as csv, in UTF-8."""

    def __init__(self, file: BinaryIO, names: Sequence[str]) -> None:
        # Bytes that are not UTF-8 are written unchanged.
        self._text = io.TextIOWrapper(
            file, "utf-8", errors="surrogateescape", newline=""
        )
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow([*names, *ADDED])

    def write(self, block: TableBlock, placed: Placed) -> None:
        """Add a block of records."""
        absent = placed.missing.tolist()
        values = [
            [
                "" if is_absent else value
                for value, is_absent in zip(column, absent, strict=True)
            ]
            for column in (placed.labels.tolist(), placed.distances.tolist())
        ]
        cells = [map(_as_text, column.tolist()) for column in block.columns.values()]
        self._writer.writerows(zip(*cells, *values, strict=True))

    def close(self) -> None:
        """Write the remaining rows, and leave the file open for its owner."""
        self._text.flush()
        self._text.detach()


class _ParquetOutput:
    """Writes records with their clusters as parquet. Columns from parquet keep their types."""

    def __init__(self, file: BinaryIO, names: Sequence[str]) -> None:
        self._pa = require("pyarrow", "A parquet file")
        self._file = file
        self._names = names
        self._writer: Any = None

    def write(self, block: TableBlock, placed: Placed) -> None:
        """Add a block of records."""
        batch = block.stored
        if batch is None:
            batch = self._pa.table(
                {name: self._column(cells) for name, cells in block.columns.items()}
            )
        table = self._pa.table(batch)
        for name, values in zip(ADDED, (placed.labels, placed.distances), strict=True):
            table = table.append_column(
                name, self._pa.array(values, mask=placed.missing)
            )
        if self._writer is None:
            from pyarrow.parquet import ParquetWriter

            self._writer = ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the end of the file."""
        if self._writer is None:  # a table without records
            none = np.empty(0, dtype=object)
            empty = TableBlock(
                dict.fromkeys(self._names, none), 0, np.zeros(0, dtype=bool)
            )
            nothing = Placed(
                np.zeros(0, np.int64), np.zeros(0), np.zeros(0, dtype=bool)
            )
            self.write(empty, nothing)
        self._writer.close()

    def _column(self, cells: NDArray[Any]) -> Any:
        """Return a column with a type that no single cell decides."""
        if cells.dtype != object:
            return self._pa.array(cells)
        texts = [None if cell is None else _as_text(cell) for cell in cells.tolist()]
        return self._pa.array(texts, self._pa.string())


_OUTPUTS: dict[str, type[_CsvOutput] | type[_ParquetOutput]] = {
    ".csv": _CsvOutput,
    ".parquet": _ParquetOutput,
}


def _as_text(cell: Any) -> Any:
    """Return a cell as text for a csv file. A missing cell is empty."""
    return "" if cell is None or cell != cell else cell
