"""Records of the command line, with public bounds, and their split over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import IntArray
from flower_kmeans.cli.options import even_widths, listed, takers
from flower_kmeans.data import datasets
from flower_kmeans.data.declared import DeclaredDomain
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere, checked_by_name
from flower_kmeans.data.persons import text_of
from flower_kmeans.data.reading import Reading
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.data.tables import data_name, read_table
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.report.clustering import Clustering

DEFAULT_CLIENTS = 20
_MAX_CLIENTS_BY_VALUE = 1_000


@dataclass(frozen=True)
class InputRecords:
    """Records, and public facts about them."""

    name: str  # name of the data
    records: NDArray[np.float64]  # (n, d), in the user's units
    columns: tuple[str, ...]
    n_records: int | None = None  # number of records, if it is public
    # public bounds by column
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    table: datasets.Table | None = None  # the table of the records
    image: NDArray[np.uint8] | None = None  # (height, width, 3), with records as pixels
    domain: TableDomain | None = None  # declarations of the columns
    # what compares all columns together, in place of bounds of each
    whole: Ball | Sphere | None = None

    def bounded(
        self,
        bounds: Sequence[str],
        lower: float | None,
        upper: float | None,
        *,
        weights: Mapping[str, float] | None = None,
        tighten: float | None = None,
        from_data: bool,
    ) -> tuple[Domain, bool]:
        """Return the domain, and whether some bounds were read off the records.

        Parameters are those of `box`. A ball or a sphere has no bounds of columns, no
        weights and no ranges.
        """
        if self.whole is None:
            return self.box(
                bounds,
                lower,
                upper,
                weights=weights,
                tighten=tighten,
                from_data=from_data,
            )
        if tighten is not None:
            raise ConfigurationError(
                "Expected no --tighten with a ball or a sphere, which has no bounds of columns. "
                f"Got --tighten {tighten:g} instead."
            )
        if weights:
            raise ConfigurationError(
                "Expected no --weight with a ball or a sphere, which compares all columns alike. "
                f"Got weights of {_some(list(weights))} instead."
            )
        return self.whole, False

    @cached_property
    def persons(self) -> IntArray | None:
        """Number of each record's person, (n,), if their column is read.

        A record without an id is one person.
        """
        if self.table is None or self.table.persons is None:
            return None
        return _numbered(self.table.persons.tolist())

    @property
    def n_persons(self) -> int:
        """Number of persons, if their column is read. It is private."""
        return 0 if self.persons is None else int(self.persons.max()) + 1

    def most_clients(self, parts: Sequence[IntArray]) -> tuple[int, int]:
        """Return how many persons are at several clients, and the most clients of one.

        ``parts`` has the rows of each client.
        """
        if self.persons is None:
            return 0, 1
        n_clients = np.zeros(self.n_persons, dtype=np.int64)
        for rows in parts:
            n_clients[np.unique(self.persons[rows])] += 1
        return int(np.count_nonzero(n_clients > 1)), int(n_clients.max())

    def box(
        self,
        bounds: Sequence[str],
        lower: float | None,
        upper: float | None,
        *,
        weights: Mapping[str, float] | None = None,
        tighten: float | None = None,
        from_data: bool,
    ) -> tuple[Box, bool]:
        """Return the public bounds of all columns, and whether some were read off the records.

        ``bounds`` are ``NAME=LOW:HIGH`` for single columns, and ``lower`` and ``upper``
        for all others. With ``from_data`` missing bounds are taken from the records,
        which is not private. A declared domain has all bounds. ``weights`` are those
        of columns by name, and ``tighten`` is as for `Box`, both in place of declared ones.
        """
        if self.domain is not None:
            # Strategies refuse a domain that is marked as not public. The report of
            # this run states it instead.
            if tighten is None:
                tighten = self.domain.tighten
            unmarked = self.domain.as_public(tighten)
            return unmarked.weighted(weights or {}), self.domain.from_records
        known = self._known_bounds(bounds, lower, upper)
        missing = [name for name in self.columns if name not in known]
        if missing and not from_data:
            raise ConfigurationError(
                f"The public bounds of {_some(missing)} are missing: a private run cannot read "
                "them off the records, so give them as --bounds NAME=LOW:HIGH (or --lower and "
                "--upper for all columns) from what is publicly known. If you do not know them, "
                "give outer bounds from the meaning of the column, such as age=0:120, and add "
                "--tighten 0.1: a tenth of the budget finds the range within them. Or see "
                "--bounds-from-data."
            )
        known |= {name: self._extent(name) for name in missing}
        for name in self.columns:
            low, high = known[name]
            if not low < high:
                raise ConfigurationError(
                    f"Expected bounds of column {name!r} with LOW < HIGH. "
                    f"Got {low:g}:{high:g} instead."
                )
        lows, highs = zip(*(known[name] for name in self.columns), strict=True)
        box = Box(lows, highs)
        if weights or tighten is not None:
            by_name = checked_by_name(weights or {}, self.columns)
            of_columns = [by_name.get(name, 1.0) for name in self.columns]
            box = Box(
                lows,
                highs,
                columns=self.columns,
                weights=of_columns,
                tighten=tighten,
            )
        self._count_outside(box)
        return box, bool(missing)

    def findings(self) -> list[str]:
        """Return findings on cells and records for their holder, in at most three lines."""
        lines = [] if self.table is None else self.table.findings.lines()
        if self.whole is None:
            return lines
        n_records = len(self.records)
        (n_found,) = self.whole.outside(self.records).tolist()
        if n_found and isinstance(self.whole, Sphere):
            lines.append(
                f"{n_found:,} of {n_records:,} records have length zero; each counts as none."
            )
        elif n_found:
            lines.append(
                f"{n_found:,} of {n_records:,} records are outside the ball, and are moved to it."
            )
        return lines

    def _count_outside(self, box: Box) -> None:
        """Count the values outside the bounds, unless a domain has counted them."""
        if self.table is None:
            return
        by_name = {column.name: column for column in self.table.findings.columns}
        outside = box.outside(self.records).tolist()
        for name, n in zip(self.columns, outside, strict=True):
            by_name[name].n_above = n

    def split(
        self, split: str | None, clients: int | None, seed: int
    ) -> list[IntArray]:
        """Return the rows of each client.

        ``split`` is ``iid``, ``tiles``, ``column:NAME``, ``dirichlet:ALPHA`` or a
        partitioner of flwr-datasets. By default a photograph is split into tiles, and
        other records are split iid. If persons are known, iid splits persons, so that
        each has one client.
        """
        if split is None:
            split = "iid" if self.image is None else "tiles"
        kind, _, detail = split.partition(":")
        n_clients = DEFAULT_CLIENTS if clients is None else clients
        rng = np.random.default_rng(seed)
        if kind == "iid" and not detail and self.persons is not None:
            parts = datasets.split_groups(self.persons, n_clients, rng)
        elif kind == "iid" and not detail:
            parts = datasets.split_iid(len(self.records), n_clients, rng)
        elif kind == "tiles" and not detail:
            parts = self._tiles(n_clients)
        elif kind == "column" and detail:
            parts = self._by_column(detail, clients)
        elif kind == "dirichlet" and detail:
            parts = self._by_labels(detail, n_clients, rng)
        elif _is_partitioner(split):
            parts = self._by_partitioner(split, clients, n_clients, seed)
        else:
            raise ConfigurationError(
                "Expected --split as iid, tiles, column:NAME, dirichlet:ALPHA or a partitioner "
                f"such as 'ShardPartitioner(...)'. Got {split!r} instead."
            )
        return parts

    def parties(self, split: str | None) -> list[tuple[str, ...]]:
        """Return the columns of each party that holds columns.

        ``split`` is ``columns``, for two parties with half of them each, or
        ``columns:NAME,NAME/NAME`` with the names of each party's. Of a declared domain
        these are the declared columns.
        """
        own = self._declared
        kind, _, detail = (split or "columns").partition(":")
        if kind != "columns":
            raise ConfigurationError(
                "Expected --split as columns or columns:NAME,NAME/NAME for the strategy "
                f"{takers('parties')}. "
                f"Got {split!r} instead."
            )
        if not detail:
            first, _ = even_widths(len(own), 2)
            return [own[:first], own[first:]]
        parties = [tuple(listed(part)) for part in detail.split("/")]
        names = [name for party in parties for name in party]
        if sorted(names) != sorted(own):
            raise ConfigurationError(
                f"Expected --split columns:... with each of {_some(own)} once. "
                f"Got {_some(names)} instead."
            )
        # A picture needs centroids in the order red, green and blue.
        if self.image is not None and tuple(names) != self.columns:
            raise ConfigurationError(
                f"Expected the columns of the photograph in their order, {', '.join(self.columns)}."
            )
        return parties

    def ordered(self, names: Sequence[str]) -> "InputRecords":
        """Return the source with all its columns, or declared columns, in another order."""
        domain = self.domain
        columns = tuple(names)
        if domain is not None:
            places = {column.name: column for column in domain.declared}
            domain = TableDomain(
                [places[name] for name in names],
                domain.from_records,
                domain.tighten,
                domain.persons,
            )
            columns = domain.columns or ()
        order = [self.columns.index(name) for name in columns]
        return replace(
            self, records=self.records[:, order], columns=columns, domain=domain
        )

    def width(self, names: Sequence[str]) -> int:
        """Return the number of columns of the box for named or declared columns."""
        if self.domain is None:
            return len(names)
        return sum(
            len(c.coordinates()) for c in self.domain.declared if c.name in names
        )

    def lacks_for_picture(self) -> str | None:
        """Return the reason why a picture is impossible, or ``None``."""
        if self.image is not None and isinstance(self.whole, Sphere):
            return "none: a direction is no colour"
        if self.image is not None:
            return None
        if find_spec("matplotlib") is None:
            return "none: it needs matplotlib (pip install 'flower-kmeans[plots]')"
        try:
            require("matplotlib.figure", "it", "plots")
        except ConfigurationError as error:  # the installed package is broken
            return f"none: {error}"
        return None

    def draw(self, path: Path, clustering: Clustering, caption: str) -> bool:
        """Write the photograph in its new colours, or a table's records by their clusters.

        Return whether a picture was possible.
        """
        from flower_kmeans.report import picture

        records = clustering.domain.counted(self.records)
        labels = clustering.predict(records)
        if self.image is not None:
            picture.save_photo_picture(
                path,
                self.image,
                labels,
                clustering.centroids,
                clustering.counts,
                caption,
            )
            return True
        if self.lacks_for_picture() is not None:
            return False
        picture.save_scatter_picture(
            path,
            records,
            labels,
            clustering.centroids,
            clustering.counts,
            clustering.domain,
            self.columns,
        )
        return True

    @property
    def _declared(self) -> tuple[str, ...]:
        if self.domain is None:
            return self.columns
        return tuple(column.name for column in self.domain.declared)

    def _known_bounds(
        self, bounds: Sequence[str], lower: float | None, upper: float | None
    ) -> dict[str, tuple[float, float]]:
        if (lower is None) != (upper is None):
            raise ConfigurationError(
                "Expected both --lower and --upper. Got one of them only."
            )
        known = dict(self.bounds)
        if lower is not None and upper is not None:
            known = dict.fromkeys(self.columns, (lower, upper))
        for text in bounds:
            name, interval = parse_bounds(text)
            if name not in self.columns:
                raise ConfigurationError(
                    f"Expected bounds of one of the columns {', '.join(self.columns)}. "
                    f"Got {name!r} instead."
                )
            known[name] = interval
        return known

    def _tiles(self, n_clients: int) -> list[NDArray[np.int64]]:
        """Return the pixels of each client's tile of the photograph."""
        if self.image is None:
            raise ConfigurationError(
                "Only the photograph can be split into tiles: leave out --data, or choose iid, "
                "column:NAME or dirichlet:ALPHA."
            )
        height, width, _ = self.image.shape
        return datasets.tiles(height, width, n_clients)

    def _by_labels(
        self, alpha: str, n_clients: int, rng: np.random.Generator
    ) -> list[NDArray[np.int64]]:
        """Return the records of each client, by a Dirichlet split of the labels."""
        if self.table is None or self.table.labels is None:
            raise ConfigurationError(
                "The dirichlet split goes by labels: give a file with --data, "
                "and its column of labels with --label."
            )
        concentration = _number("dirichlet:ALPHA", alpha)
        return datasets.split_dirichlet(
            self.table.labels, n_clients, concentration, rng
        )

    def _by_partitioner(
        self, split: str, clients: int | None, n_clients: int, seed: int
    ) -> list[NDArray[np.int64]]:
        """Return the records of each partition that a partitioner of flwr-datasets makes."""
        table = self.table or datasets.Table(self.records, self.columns)
        parts = datasets.split_by_partitioner(
            split, table.column, len(self.records), n_clients, seed
        )
        if clients not in (None, len(parts)):
            raise ConfigurationError(
                f"Expected --clients {len(parts)}, as many as {split} makes, or none. "
                f"Got {clients} instead."
            )
        return parts

    def _by_column(self, name: str, clients: int | None) -> list[NDArray[np.int64]]:
        table = self.table or datasets.Table(self.records, self.columns)
        values: NDArray[Any] = table.column(name)
        parts = datasets.split_by_column(values, clients)
        # A column of reals would make a client of almost every record.
        if clients is None and len(parts) > _MAX_CLIENTS_BY_VALUE:
            raise ConfigurationError(
                f"The column {name!r} has {len(parts):,} values, too many for one client each: "
                "give --clients to spread them over fewer."
            )
        return parts

    def _extent(self, name: str) -> tuple[float, float]:
        values = self.records[:, self.columns.index(name)]
        if not len(values):
            raise ConfigurationError(
                f"There are no records to read the bounds of {name!r} off."
            )
        low = float(values.min())
        high = float(values.max())
        # A box needs a width, even if all values are equal.
        return (low, high) if low < high else (low - 0.5, high + 0.5)


def photo() -> InputRecords:
    """Return the bundled photograph; its size and its bounds are public."""
    image = datasets.load_photo()
    return InputRecords(
        name="china.jpg",
        records=image.reshape(-1, 3).astype(np.float64),
        columns=datasets.PHOTO_COLUMNS,
        n_records=datasets.PHOTO_RECORDS,
        bounds=dict.fromkeys(datasets.PHOTO_COLUMNS, (0.0, 255.0)),
        image=image,
    )


def table(
    data: str,
    reading: Reading,
    columns: str | None,
    label: str | None,
    split: str | None,
    domain: DeclaredDomain | None = None,
) -> InputRecords:
    """Return the records of a user's file."""
    kind, _, detail = (split or "").partition(":")
    keep = [detail] if kind == "column" and detail else []
    if split is not None and _is_partitioner(split):
        by = datasets.partitioner_of(split)[1].get("partition_by")
        keep = [by] if isinstance(by, str) else []
    loaded = read_table(
        data,
        reading,
        label,
        None if columns is None else listed(columns),
        # The column to split by need not be a feature, and may hold text.
        keep,
        domain=domain,
    )
    name = data_name(data)
    if not len(loaded.records):
        raise ConfigurationError(f"The data file {name} has no usable records.")
    found = InputRecords(name, loaded.records, loaded.columns, table=loaded)
    if isinstance(domain, TableDomain):
        return replace(found, domain=domain)
    return replace(found, whole=domain)


def parse_bounds(text: str) -> tuple[str, tuple[float, float]]:
    """Return the column, and the lower and upper bound, of ``NAME=LOW:HIGH``."""
    # Names of columns may contain "=", so the last one counts.
    name, equals, interval = text.rpartition("=")
    low, colon, high = interval.partition(":")
    if not (name and equals and colon):
        raise ConfigurationError(
            f"Expected --bounds as NAME=LOW:HIGH. Got {text!r} instead."
        )
    return name.strip(), (_number("--bounds", low), _number("--bounds", high))


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Return weights of columns from ``NAME=WEIGHT``, each name once."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, weight = text.rpartition("=")
        if not (name and equals):
            raise ConfigurationError(
                f"Expected --weight as NAME=WEIGHT. Got {text!r} instead."
            )
        column = name.strip()
        if column in found:
            raise ConfigurationError(
                f"Expected one --weight of each column. Got two of {column!r}."
            )
        found[column] = _number("--weight", weight)
    return found


def _is_partitioner(split: str) -> bool:
    """Return whether a split is a partitioner of flwr-datasets, with its parameters."""
    return split.split("(")[0].strip().endswith("Partitioner")


def _numbered(ids: Sequence[Any]) -> IntArray:
    """Return a number for each id, from 0; a new one for each missing id."""
    numbers: dict[str, int] = {}
    found = []
    n_persons = 0
    for cell in ids:
        text = text_of(cell)
        number = n_persons if text is None else numbers.setdefault(text, n_persons)
        n_persons = max(n_persons, number + 1)
        found.append(number)
    return np.array(found, dtype=np.int64)


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ConfigurationError(
            f"Expected a number in {option}. Got {text!r} instead."
        )
    return value


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"column{'s' if len(names) > 1 else ''} {shown}{', ...' if len(names) > 5 else ''}"
