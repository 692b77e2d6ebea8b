"""Length limits of messages, which a reader checks before it decodes.

docs/protocol.md, section 8, defines them. For a server, the limit of a reply follows from
the run document and the request. For a client, the limit of a request follows from the
run document, which is in its session or comes with the request. The types of the fields
bound all other lengths.
"""

import math

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol import messages, noise
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee
from flower_kmeans.protocol.messages import (
    ENVELOPE_BYTES,
    Add,
    Ask,
    Head,
    Keys,
    Request,
)
from flower_kmeans.protocol.results import longest_result
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.wire import MAX_DOCUMENT, MAX_MESSAGE, MAX_SLOTS
from flower_kmeans.secagg.base import Sharing
from flower_kmeans.secagg.primitives import KEY_BYTES, SEAL_BYTES

SHORT = 2**10
"""Bytes of a reply without data, and of the other fields of a reply with data."""
FIRST = MAX_DOCUMENT + 2**14
"""Bytes of a request that a client decodes without its run: a document and short fields."""
_OF_AN_ENTRY = 512  # most bytes of an entry beside its bitmap and its sum
_OF_A_QUERY = 2**14  # most bytes of a query beside its numbers: 64 names, types, shapes
_LONGEST = Sharing(MAX_POSITIONS, n_corrupt=0, privacy=MAX_POSITIONS - 1, packing=1)


def short(_: Request) -> int:
    """Return the limit of a reply without data."""
    return SHORT


# ------------------------------------------------------------------------------ replies


def reply_limit(run: Run, request: Request) -> int:
    """Return an upper bound on the bytes of an orderly reply to a request."""
    return SHORT + run.kind.reply_bytes(run, request)


def reply_bytes(run: Run, request: Request) -> int:
    """Return the length, in bytes, of a reply's data in a run over records."""
    match request:
        case Keys():
            return _envelopes(run, request.peers)
        case Ask():
            # The requests of a round name one committee.
            answer = run.kept.once(
                _answer, run, request.t, request.committee, request.n_slots
            )
            return answer + _envelopes(run, request.peers)
        case Add():
            return _sum_share(run, request)
    return 0


def _envelopes(run: Run, rows: bytes) -> int:
    row = messages.row_bytes(run.document.keys == "roster")
    n_peers = len(rows) // row
    return ENVELOPE_BYTES * n_peers


def _answer(run: Run, t: int, committee: bytes, n_slots: int) -> int:
    """Return the length, in bytes, of a client's protected vector."""
    n_words = run.document.words[t - 1]
    if not run.trust.has_committee:
        return noise.part_bytes(run, n_words, None)
    members = Committee.decode(committee, n_slots, run.document.max_colluders)
    sharing = _sharing(run, committee, n_slots)
    if sharing is None:
        return 0
    share = noise.part_bytes(run, n_words, sharing) + SEAL_BYTES
    return len(members.present) * share


def _sum_share(run: Run, request: Add) -> int:
    n_words = run.document.words[request.t - 1]
    sharing = run.kept.once(_sharing, run, request.committee, request.n_slots)
    n_survivors = int.from_bytes(request.survivors, "little").bit_count()
    return noise.combined_bytes(run, n_words, sharing, n_survivors) + SEAL_BYTES


def _sharing(run: Run, committee: bytes, n_slots: int) -> Sharing | None:
    """Return a committee's sharing of vectors; ``None`` if too few are present."""
    members = Committee.decode(committee, n_slots, run.document.max_colluders)
    try:
        return members.sharing(run.trust.sum)
    except ConfigurationError:
        return None


# ----------------------------------------------------------------------------- requests


def request_limit(run: Run, head: Head) -> int:
    """Return an upper bound on the bytes of a request of a run."""
    return min(MAX_MESSAGE, FIRST + run.kind.request_bytes(run, head))


def request_bytes(run: Run, head: Head) -> int:
    """Return the largest length, in bytes, of a request's data in a run over records."""
    length = 0
    n_slots = min(head.n_slots, MAX_SLOTS)
    row = messages.row_bytes(run.document.keys == "roster")
    has_round = 1 <= head.t <= run.document.rounds
    match head.kind:
        case "keys":
            length = row * MAX_SLOTS
        case "ask" if has_round and run.trust.is_blind:
            length = row * n_slots + _entries(run, head.t - 1)
        case "ask" if has_round:
            length = _query(run, head.t)
        case "add" if has_round and run.trust.has_committee:
            entry = KEY_BYTES + _longest_share(run, head.t)
            length = entry * n_slots + n_slots // 8
        case "finish" if run.trust.is_blind:
            length = _entries(run, run.document.rounds)
        case "finish":
            length = longest_result(run)
    return length


def _query(run: Run, t: int) -> int:
    n_numbers = 0
    for limits in run.algorithm.query_ranges(t).values():
        n_numbers += math.prod(limits.shape)
    return 8 * n_numbers + _OF_A_QUERY


def _longest_share(run: Run, t: int) -> int:
    """Return the largest length, in bytes, of a sealed share: with the fewest members present."""
    return noise.part_bytes(run, run.document.words[t - 1], _LONGEST) + SEAL_BYTES


def _entries(run: Run, n_rounds: int) -> int:
    """Return the largest length, in bytes, of the entries of the first rounds of a run."""
    n_parts = MAX_POSITIONS if run.trust.has_committee else 1
    n_bytes = n_rounds * (MAX_SLOTS // 8 + _OF_AN_ENTRY)
    for t in range(1, n_rounds + 1):
        n_bytes += n_parts * _longest_share(run, t)
    return n_bytes
