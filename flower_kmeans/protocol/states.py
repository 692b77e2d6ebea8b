"""States and queries that clients compute from the sums (docs/protocol.md, section 6).

The functions depend on a run and on bytes that its clients have in common. `Run.kept`
keeps their results, so one client of a simulation computes them for all.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import plausibility, queries
from flower_kmeans.algorithms.answers import reconstructed
from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.arrays import IntArray
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks, messages, noise
from flower_kmeans.protocol.committee import announced_sharing
from flower_kmeans.protocol.messages import Entry
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.wire import decode_arrays, encode_arrays
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import Sharing, SumContext

_FINDINGS = "findings"  # beside the arrays of a session's state


def state_after(run: Run, head: int, data: bytes) -> State:
    """Return the state of a session's encoded arrays, which are empty before the first sum."""
    if data:
        arrays = decode_arrays(data)
        arrays.pop(_FINDINGS, None)
        state = State(head, arrays)
    else:
        state = run.algorithm.initial_state(None)
    _protect(state.arrays)
    return state


def query_after(run: Run, head: int, data: bytes) -> tuple[Query, bytes]:
    """Return the query of the round after a state, and its encoding."""
    query = run.algorithm.query(run.kept.once(state_after, run, head, data))
    return query, encode_arrays(dict(query.arrays))


def checked_query(run: Run, t: int, data: bytes) -> Query:
    """Return a query that a server sent, within its ranges: noise covers only such queries."""
    query = Query(t, decode_arrays(data))
    queries.check_query(run.algorithm, query)
    _protect(query.arrays)
    return query


def _protect(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Make arrays read-only, because all clients of a simulation read them."""
    for array in arrays.values():
        array.setflags(write=False)


# ------------------------------------------------------------------------------ entries


def after_entry(
    run: Run,
    before: bytes,
    entry: Entry,
    survivors: NDArray[np.bool_],
    context: bytes,
    group_key: bytes,
) -> bytes:
    """Return the encoded state after an entry, from its sum.

    Parameters
    ----------
    run : Run
        The run of the entry.
    before : bytes
        The encoded state before the entry.
    entry : Entry
        The announced sum.
    survivors : NDArray of bool, shape (n_slots,)
        Mask of the slots whose vectors are in the sum.
    context : bytes
        The entry's context, 32 bytes.
    group_key : bytes
        The group key, 32 bytes.

    Raises
    ------
    MessageError, SumError, RefuseError
        If the sum cannot be unmasked or reconstructed, or its checksum word is wrong.
    """
    n_slots = entry.n_slots
    sharing = announced_sharing(
        run.trust.sum, n_slots, run.document.max_colluders, entry.packing
    )
    combined = {0: entry.words}
    if sharing is not None:
        combined = _sum_shares(entry, sharing, context, group_key)
    # From here on no refusal may depend on the sum, except on its checksum word.
    n_words = run.document.words[entry.t - 1]
    sums = SumContext(context, n_words, n_slots, group_key, sharing)
    vector = run.trust.sum.reconstruct(combined, survivors, sums).vector
    n_survivors = int(survivors.sum())
    checks.require_checksum(vector, n_survivors)
    return _updated(run, before, entry, vector[:-1], n_survivors)


def _sum_shares(
    entry: Entry, sharing: Sharing, context: bytes, group_key: bytes
) -> dict[int, bytes]:
    """Return the unsealed sum-shares, by position."""
    found = messages.read_sum_shares(entry)
    if max(found) >= sharing.n_positions:
        raise MessageError("Expected sum-shares of the committee's positions.")
    combined = {}
    for position, sealed in found.items():
        key = primitives.sum_share_key(group_key, context, position, entry.survivors)
        # Without a share that cannot be unsealed, enough others may be left.
        with suppress(MessageError):
            combined[position] = primitives.unseal(key, sealed, context)
    return combined


def _updated(
    run: Run, before: bytes, entry: Entry, words: IntArray, n_survivors: int
) -> bytes:
    """Return the encoded state after the words of a sum, and its findings."""
    algorithm = run.algorithm
    share = n_survivors / entry.n_slots
    factor = noise.noise_factor(run, n_survivors)
    answer = reconstructed(algorithm, entry.t, words, share, n_survivors, factor)
    state = run.kept.once(state_after, run, entry.t - 1, before)
    findings = plausibility.findings_of(algorithm, state, answer, factor)
    arrays = algorithm.update(state, answer).arrays
    return _encoded(arrays, before, findings)


def _encoded(
    arrays: Mapping[str, NDArray[Any]], before: bytes, findings: Iterable[Finding]
) -> bytes:
    """Return a session's encoded state, which keeps findings beside the algorithm's arrays."""
    found = np.concatenate([findings_at(before), plausibility.to_array(findings)])
    # The number of rows is fixed, because a blind server could measure the time.
    return encode_arrays({**arrays, _FINDINGS: plausibility.condensed(found)})


def findings_at(data: bytes) -> NDArray[np.float64]:
    """Return the findings of all rounds so far in an encoded state, (n, 6) float64."""
    if not data:
        return np.zeros((0, 6))
    rows = decode_arrays(data)[_FINDINGS]
    return rows[rows.any(axis=1)]
