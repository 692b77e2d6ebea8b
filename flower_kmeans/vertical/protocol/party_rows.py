"""A party's records in a vertical run, as columns, and the ids of its rows.

Records and ids are loaded for each turn. Both must stay the same during the run.
"""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

from flower_kmeans import errors
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Box, Domain
from flower_kmeans.data.findings import moved_text
from flower_kmeans.data.sources import RecordsLike, as_source
from flower_kmeans.files import read_file
from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from flower_kmeans.vertical.align import ids_digest, require_long
from flower_kmeans.vertical.protocol.party_session import PartySession
from flower_kmeans.vertical.ring import SLOTS
from flower_kmeans.vertical.signs import scaled_columns, scaled_squares

_require = RefuseError.unless
log = logging.getLogger("flower_kmeans.client")
log_of_data = logging.getLogger("flower_kmeans.data")

ReadIds = Callable[[], Iterable[object]]


def half_widths_of(algorithm: VerticalAlgorithm) -> FloatArray:
    """Return the half widths of the domain on its grid, (d,), in scaled units."""
    bits = algorithm.fraction_bits
    on_grid = algorithm.domain.grid_half_widths(bits)
    return np.ldexp(on_grid.astype(np.float64), -bits)


def _filler(domain: Domain) -> FloatArray:
    """Return a record (1, d) in the middle of the domain, with first levels of categories."""
    filler = domain.from_unit(np.zeros((1, domain.n_features)))
    if isinstance(domain, Box):
        for start, stop in domain.categories:
            filler[:, start:stop] = np.arange(stop - start) == 0
    return filler


def read_rows_key(policy: ClientPolicy) -> bytes:
    """Return the key under which row ids are compared; empty without a file."""
    if policy.rows_key_file is None:
        return b""
    key = read_file(policy.rows_key_file, "rows_key_file", is_secret=True)
    require_long(key, "rows_key_file")
    return key


class PartyRows:
    """The rows of one party: encrypted columns, and ids that party 0 compares."""

    def __init__(
        self,
        own: PartySession,
        policy: ClientPolicy,
        load_records: Callable[[], RecordsLike],
        load_ids: ReadIds | None,
    ) -> None:
        self._own = own
        self._policy = policy
        self._load_records = load_records
        self._load_ids = load_ids
        self._algorithm = own.algorithm
        self._places = own.body.places(own.slot)

    # ------------------------------------------------------------------ columns

    @cached_property
    def columns(self) -> FloatArray:
        """Clipped columns of this party on the scaled grid, then squares, (n, width).

        Party 0 keeps its columns, in scaled units. The others encrypt and send theirs, each
        divided by its half width.
        """
        is_first = not self._own.session.digest
        table = self._table()
        columns, outside = self._on_grid(table)
        if is_first:
            self._log_changes(table, outside)

        half_widths = half_widths_of(self._algorithm)[self._places]
        scaled = columns
        if self._own.slot > 0:
            scaled = scaled_columns(columns, half_widths)
        if not self._own.shape.moduli.radius:
            return scaled
        squares = scaled_squares(columns, half_widths)
        return np.column_stack([scaled, squares])

    def _table(self) -> FloatArray:
        """Return the party's records, (n, width), the same in the whole run."""
        domain = self._algorithm.domain
        names = None
        if domain.columns is not None:
            names = domain.columns[self._places]
        width = self._own.body.widths[self._own.slot]
        with RefuseError.of_user():
            # The records are copied, because another process may write to the memory.
            source = as_source(self._load_records(), width, names)
            if source.is_live:
                raise errors.DataError(
                    "Expected the same records in the same order in the whole vertical run. Got a "
                    "query of a database: write its result to a file first."
                )
            table = source.loaded(keep_null=True)
        if len(table) != self._algorithm.n_records:
            expected = f"Expected n_records={self._algorithm.n_records} records."
            raise RefuseError(Code.DATA, expected)
        session = self._own.session
        digest = transcript.data_digest(table)
        if session.digest not in (b"", digest):
            raise RefuseError(Code.DATA, "Expected the same records in the whole run.")
        session.digest = digest
        return table

    def _on_grid(self, table: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return a table on the scaled grid, clipped, and the number of moved values.

        A value that is missing or not finite becomes the middle of its column's range,
        and a category's levels their mean.

        Returns
        -------
        columns : array of shape (n, width), float64
        outside : array of shape (d,), int64
            Values outside of the domain, by its columns.
        """
        domain = self._algorithm.domain
        bits = self._algorithm.fraction_bits
        own = self._places
        outside = np.zeros(domain.n_features, dtype=np.int64)
        columns = np.empty(table.shape)
        filler = _filler(domain)
        # The work is done chunk by chunk, to limit memory.
        for start in range(0, len(table), SLOTS):
            rows = table[start : start + SLOTS]
            is_there = np.isfinite(rows)
            whole = np.repeat(filler, len(rows), axis=0)
            whole[:, own] = np.where(is_there, rows, filler[:, own])
            outside += domain.outside(whole)
            grid = domain.quantise(domain.to_unit(whole), bits)[:, own]
            # The mean of levels is none of them.
            columns[start : start + SLOTS] = np.ldexp(
                np.where(is_there, grid, 0), -bits
            )
        return columns, outside

    def _log_changes(self, table: FloatArray, outside: IntArray) -> None:
        """Log the numbers of missing values, and of values moved into the domain."""
        n_missing = int(table.size - np.isfinite(table).sum())
        if n_missing:
            text = "%d values are missing or not finite; each is the middle of its column's range."
            log.warning(text, n_missing)
        domain = self._algorithm.domain
        names = domain.columns or [f"column {i}" for i in range(domain.n_features)]
        by_column = list(zip(names, outside.tolist(), strict=True))
        moved = moved_text(len(table), by_column)
        if moved:
            log_of_data.warning("Run %s: %s.", self._own.doc_hash.hex()[:8], moved)

    # ------------------------------------------------------------------ ids

    def require_ids(self) -> ReadIds:
        """Return the loader of row ids, which the run requires."""
        if self._load_ids is None:
            missing = "Expected load_ids, because the run compares rows. Got none."
            raise RefuseError(Code.DATA, missing)
        return self._load_ids

    def require_rows_key(self) -> None:
        """Require a readable key of row ids if the policy names one."""
        with RefuseError.of_user():
            read_rows_key(self._policy)

    def require_same_ids(self) -> bytes:
        """Return the digest of this party's row ids, the same in the whole run."""
        own = self._ids_digest()
        if self._own.progress.ids not in (b"", own):
            raise RefuseError(Code.DATA, "Expected the same row ids in the whole run.")
        return own

    def require_compared(self) -> None:
        """Require that rows were compared and have not changed since, if the run compares them."""
        if self._own.shape.check_ids:
            _require(bool(self._own.progress.ids), Code.NEED)
            self.require_same_ids()

    def _ids_digest(self) -> bytes:
        load = self.require_ids()
        with RefuseError.of_user():
            key = read_rows_key(self._policy)
            ids = list(load())
        if len(ids) != self._algorithm.n_records:
            expected = f"Expected n_records={self._algorithm.n_records} ids."
            raise RefuseError(Code.DATA, expected)
        return ids_digest(ids, key)
