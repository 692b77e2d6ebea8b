"""A client's records in one message: the user's own, or a run's copy of them.

If a trust model commits to records, a session belongs to the records that it hashed: one
mask must not cover two vectors. The other trust models need no commitment, because shares
of another vector have other polynomials.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import errors
from flower_kmeans.algorithms.answers import split, words_of_rows
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.state import Query
from flower_kmeans.algorithms.weights import record_width
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Ball, Domain, Sphere
from flower_kmeans.data.findings import moved_text
from flower_kmeans.data.sources import (
    RecordsLike,
    RowPart,
    Source,
    as_source,
    joined,
    weighed,
)
from flower_kmeans.data.weights import Weighing, WeightCounts
from flower_kmeans.privacy.ledger import MemoryChangedError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import checks, transcript
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Code
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.session import SPENT, ClientSession, Memory
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.report.site_sizes import cluster_sizes
from flower_kmeans.version import __version__

SOFTWARE = f"flower-kmeans {__version__}"
_NO_COPIES = (
    "Expected copy_records = true in the policy for records from a database, which can change "
    "between messages. Got copy_records = false: set it, or load the records from a file."
)
_SECRET_BYTES = 32  # of the hash that compares ids in one message
log = logging.getLogger("flower_kmeans.client")
log_of_data = logging.getLogger("flower_kmeans.data")

Blocks = Iterator[NDArray[Any]]  # of records, which may share one memory


class Loaders(NamedTuple):
    """A user's functions, without arguments, that return a client's data."""

    records: Callable[[], RecordsLike]
    """Returns the records."""
    ids: Callable[[], Iterable[object]] | None = None
    """Returns the ids of the records, in their order."""
    weights: Callable[[], Any] | None = None
    """Returns the weights of the records by a public rule, in their order."""


class ChangedError(RefuseError):
    """Refusal, because records differ from those of the session's commitment."""


class Records:
    """The records of a client in one message of a run.

    Parameters
    ----------
    run : Run
        The run of the message.
    policy : ClientPolicy
        The operator's limits.
    memory : Memory
        Memory of sessions and copies of records.
    loaders : Loaders
        The user's functions. Each is called at most once.

    Raises
    ------
    RefuseError
        If the run needs ids or weights, and the client has no function that loads them.
    """

    def __init__(
        self,
        run: Run,
        policy: ClientPolicy,
        memory: Memory,
        loaders: Loaders,
    ) -> None:
        self._run = run
        self._policy = policy
        self._memory = memory
        self._loaders = loaders
        self._weighing = weighing_of(run.algorithm)
        _require_loaders(self._weighing, loaders)
        self._copy: Source | None = None

    # ------------------------------------------------------------------ sessions

    def session(self, former: ClientSession | None, *, are_read: bool) -> ClientSession:
        """Return the session of these records and this software, or a new one.

        Parameters
        ----------
        former : ClientSession, optional
            The session that the client remembers.
        are_read : bool
            Whether a pass over the records follows, which compares them with the
            commitment.
        """
        if not self._run.trust.commits_to_records:
            return former or self._begun(None, b"")
        if former is not None and former.software == SOFTWARE:
            if self._policy.copy_records:
                # A copy has the session's commitment in its name, so it is not hashed
                # again.
                self._copy = self._memory.load_records(self._run.doc_hash, former)
            if self._copy is not None:
                return former
            if are_read and not self._may_copy:
                return former
        return self.committed(former)

    def committed(self, former: ClientSession | None) -> ClientSession:
        """Return the session of the present records, and copy them if the policy allows it."""
        doc_hash = self._run.doc_hash
        width = record_width(self._run.algorithm)
        own = joined(self._blocks(), width) if self._source.in_memory else None

        def read() -> Blocks:
            # Records in memory are copied once, so nobody changes them between two uses.
            return self._blocks() if own is None else iter([own])

        n_records = sum(map(len, read()))
        data = transcript.DataHash(n_records, width)
        deque(data.of(read()), maxlen=0)
        session = former
        if session is None or not self._is_of(session, data.digest()):
            session = self._begun(session, data.digest(), n_records)
        if self._may_copy:
            blocks = self._compared(session, read()) if own is None else read()
            self._memory.save_records(doc_hash, session, blocks, (n_records, width))
            self._copy = self._memory.load_records(doc_hash, session)
        return session

    def _begun(
        self, former: ClientSession | None, digest: bytes, n_records: int = 0
    ) -> ClientSession:
        """Return a session for a client that lost its memory, or whose records changed."""
        doc_hash = self._run.doc_hash
        n_sessions = 1 if former is None else former.n_sessions + 1
        try:
            checks.require_few_sessions(n_sessions)
        except (
            RefuseError
        ):  # each new session reveals to the server that a record changed
            self._memory.save(doc_hash, ClientSession(over=SPENT))
            raise
        session = ClientSession.begin(doc_hash, self._run.data, n_sessions)
        session.digest = digest
        session.n_records = n_records
        session.software = SOFTWARE
        session.commitment = self._commitment(session, digest) if digest else ZERO
        self._memory.save(doc_hash, session)
        return session

    def _compared(self, session: ClientSession, blocks: Blocks) -> Blocks:
        """Yield records, and raise at their end unless the session is committed to them."""
        width = record_width(self._run.algorithm)
        data = transcript.DataHash(session.n_records, width)
        yield from data.of(blocks)
        if not self._is_of(session, data.digest()):
            expected = (
                "Expected the same records in the same order in all passes. Got others."
            )
            raise ChangedError(Code.DATA, expected)

    def _is_of(self, session: ClientSession, digest: bytes) -> bool:
        return checks.is_committed(session, self._commitment(session, digest))

    def _commitment(self, session: ClientSession, digest: bytes) -> bytes:
        return transcript.commitment(
            session.secret, self._run.doc_hash, SOFTWARE.encode(), digest
        )

    # ------------------------------------------------------------------ sources

    @property
    def _may_copy(self) -> bool:
        return self._policy.copy_records and self._memory.can_copy(self._source)

    @cached_property
    def _source(self) -> Source:
        """The user's records, loaded once per message at most. Live ones are held in a copy."""
        domain = self._run.algorithm.domain
        with RefuseError.of_user():
            records = self._loaders.records()
            source = as_source(records, domain.n_features, domain.columns)
        if not source.is_live:
            return self._weighed(source)
        RefuseError.unless(self._policy.copy_records, Code.POLICY, _NO_COPIES)
        source = self._weighed(source)
        held = self._memory.held(_usable(source), record_width(self._run.algorithm))
        return replace(held, is_live=True)

    def _weighed(self, source: Source) -> Source:
        """Return the records with their weights as a last column, if the run weighs records."""
        weighing = self._weighing
        if weighing is None:
            return source
        ids: Any = None
        weights: Any = None
        with RefuseError.of_user():
            if weighing.counts_persons and self._loaders.ids is not None:
                ids = self._loaders.ids()
            if weighing.has_weights and self._loaders.weights is not None:
                weights = self._loaders.weights()
            found = weighed(
                source,
                weighing,
                ids,
                weights,
                token(_SECRET_BYTES),
                self._run.algorithm.domain.are_null,
            )
        _warn_of_weights(found.counts, weighing)
        return found.source

    def _copy_of_live(self, session: ClientSession) -> Source | None:
        """Return a run's copy of live records; ``None`` for records that do not change."""
        if not self._policy.copy_records:
            _ = self._source  # it refuses live records
            return None
        doc_hash = self._run.doc_hash
        copy = self._memory.load_records(doc_hash, session)
        if copy is None and self._source.is_live:
            # A lost copy is made again: each round protects the records that it reads.
            shape = self._source.n_rows, self._source.n_features
            self._memory.save_records(doc_hash, session, self._source.blocks(), shape)
            return self._source
        return copy

    def _blocks(self) -> Blocks:
        return _usable(self._source)

    # ------------------------------------------------------------------ sums

    def total(self, query: Query, session: ClientSession) -> IntArray:
        """Return the statistic of all records, (words,) int64, in one pass.

        The first round also counts the values outside the bounds, for this node's log.

        Raises
        ------
        ChangedError
            If the records are not those of the session.
        """
        run = self._run
        # without the checksum word
        n_words = run.document.words[query.round - 1] - 1
        part: RowPart = partial(words_of_rows, run.algorithm, query)
        if query.round > 1:
            return self._summed(part, n_words, session)
        domain = run.algorithm.domain
        part = partial(_counted, part, run.algorithm)
        n_counts = len(_nobody_outside(domain))
        found = self._summed(part, n_words + n_counts, session)
        # A session that has answered has logged the counts in an earlier attempt.
        if not session.answered:
            _log_outside(run.doc_hash, domain, found[n_words:])
        return found[:n_words]

    def own_sizes(self, result: ClientResult, session: ClientSession) -> FloatArray:
        """Return the exact sizes of a result's clusters in all records, (k,), in one pass.

        Records, or persons if the run protects persons, as the rounds weighed them. The
        result is for the client's own files only.

        Raises
        ------
        ChangedError, RefuseError
            If the records are not those of the session, or cannot be read.
        """
        run = self._run
        if run.trust.commits_to_records and self._policy.copy_records:
            self._copy = self._memory.load_records(run.doc_hash, session)
        part: RowPart = partial(
            _cluster_sizes,
            run.algorithm,
            result.centroids,
            result.domain,
            result.weights,
        )
        total = self._summed(part, len(result.centroids), session)
        if self._weighing is None:
            return total.astype(np.float64)
        # A person with records here alone weighs this much at most.
        return total / self._weighing.room

    def _summed(self, part: RowPart, n_words: int, session: ClientSession) -> IntArray:
        """Return the sum of a function over all records, (words,) int64, in one pass."""
        algorithm = self._run.algorithm
        commits = self._run.trust.commits_to_records
        copy = self._copy if commits else self._copy_of_live(session)
        total = np.zeros(n_words, dtype=np.int64)
        is_in_any_order = not (commits or algorithm.needs_all_records)
        if copy is None and is_in_any_order and self._source.sum_in_place is not None:
            with RefuseError.of_user():
                words, n_null = self._source.sum_in_place(part)
            _warn_of_null(n_null)
            return total + words

        blocks = self._blocks() if copy is None else _of_copy(copy)
        if commits and copy is None:
            blocks = self._compared(session, blocks)
        if algorithm.needs_all_records:
            blocks = iter([joined(blocks, record_width(algorithm))])
        for block in blocks:
            total += part(block)
        return total


def _cluster_sizes(
    algorithm: Algorithm,
    centroids: FloatArray,
    domain: Domain,
    weights: FloatArray | None,
    rows: NDArray[Any],
) -> IntArray:
    """Return the sum of the weights of rows, which may have none, in each cluster."""
    records, record_weights = split(algorithm, rows)
    return cluster_sizes(records, centroids, domain, weights, record_weights)


def weighing_of(algorithm: Algorithm) -> Weighing | None:
    """Return the rule by which a run weighs records, or ``None`` without weights."""
    if algorithm.full_weight is None:
        return None
    most = None
    if algorithm.budget.counts_persons:
        most = algorithm.max_clients_per_person
    return Weighing(algorithm.full_weight, most, algorithm.weighted)


def _require_loaders(weighing: Weighing | None, loaders: Loaders) -> None:
    """Require the functions that a run needs beside that of the records."""
    if weighing is None:
        return
    if weighing.counts_persons and loaders.ids is None:
        reason = "Expected load_ids, because the run protects persons. Got none."
        raise RefuseError(Code.DATA, reason)
    if weighing.has_weights and loaders.weights is None:
        reason = "Expected load_weights, because the run weighs records. Got none."
        raise RefuseError(Code.DATA, reason)


def _warn_of_weights(counts: WeightCounts, weighing: Weighing) -> None:
    """Log the numbers of records that weights changed. Only this node may know them."""
    if counts.n_missing:
        log.warning(
            "%d records have no id of a person; each counts as one person.",
            counts.n_missing,
        )
    if counts.n_heavy:
        log.warning(
            "%d persons have more than %d records; %d records beyond do not count.",
            counts.n_heavy,
            weighing.room,
            counts.n_left_out,
        )
    if counts.n_vanished:
        log.warning(
            "%d records have a weight too small to count: it is below one part in %d, or its "
            "person has too many records.",
            counts.n_vanished,
            weighing.room,
        )


def _usable(source: Source) -> Blocks:
    """Yield the records of a source, and warn of null records at their end."""
    n_records = 0
    for block in _guarded(source.blocks()):
        n_records += len(block)
        yield block
    _warn_of_null(source.n_null, n_records)


def _guarded(blocks: Blocks) -> Blocks:
    """Yield blocks, and refuse after any error of the user's function that makes them."""
    while True:
        with RefuseError.of_user():
            block = next(blocks, None)
        if block is None:
            break
        yield block


def _of_copy(copy: Source) -> Blocks:
    """Yield the records of a session's copy, which another process may change."""
    try:
        yield from copy.blocks()
    except errors.DataError as error:
        raise MemoryChangedError(
            "Another process changed a copy of records."
        ) from error


def _warn_of_null(n_null: int, n_records: int = 1) -> None:
    if n_null:
        log.warning(
            "%d records are malformed or not finite; each counts as none.", n_null
        )
        if not n_records:
            log.warning(
                "No record is left. Expected one table of numbers, without labels."
            )


def _counted(part: RowPart, algorithm: Algorithm, block: NDArray[Any]) -> IntArray:
    """Return a function of a block, with its numbers of records and of values outside behind."""
    words = part(block)
    records, _ = split(algorithm, block)
    n_records = np.array([len(records)], dtype=np.int64)
    outside = algorithm.domain.outside(records)
    return np.concatenate([words, n_records, outside])


def _nobody_outside(domain: Domain) -> IntArray:
    """Return zeros of the length of the counts that `_counted` puts behind the words."""
    outside = domain.outside(np.empty((0, domain.n_features)))
    return np.concatenate([np.zeros(1, np.int64), outside])


def _log_outside(doc_hash: bytes, domain: Domain, counts: IntArray) -> None:
    """Log the numbers of values that the bounds moved. Only this node may know them."""
    n_records, *outside = counts.tolist()
    if isinstance(domain, Sphere):
        (n_null,) = outside
        if n_null:
            log_of_data.warning(
                "Run %s: %d of %d records have length zero; each counts as none.",
                doc_hash.hex()[:8],
                n_null,
                n_records,
            )
        return
    if isinstance(domain, Ball):
        names = ["the records"]
    elif domain.columns:
        names = list(domain.columns)
    else:
        names = [f"column {i}" for i in range(domain.n_features)]
    moved = moved_text(n_records, list(zip(names, outside, strict=True)))
    if moved:
        log_of_data.warning("Run %s: %s.", doc_hash.hex()[:8], moved)
