"""The largest messages of a planned run (docs/protocol.md, section 8)."""

import math
from bisect import bisect_right

from flower_kmeans.algorithms.feasibility import MAX_WORDS
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol import noise
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.trust import TrustModel
from flower_kmeans.protocol.wire import MAX_MESSAGE
from flower_kmeans.secagg.base import Sharing

MAX_RELAY = 2**31  # bytes of shares that a server passes on in one round
_OVERHEAD = 2**20  # bytes of a message that do not grow with words or clients
_PEER_BYTES = 108  # bytes of a row of a peer, which is longer than an envelope
_PART_OVERHEAD = 32


def bytes_beside_data(n_clients: int) -> int:
    """Return the largest length, in bytes, of a message to one of ``n_clients``, without data."""
    return _OVERHEAD + _PEER_BYTES * n_clients


def _sharing(
    trust: TrustModel, n_clients: int, max_colluders: int
) -> tuple[int, Sharing | None]:
    """Return the number of parts of an answer with ``n_clients``, and how it is shared."""
    if not trust.has_committee:
        return 1, None
    n_parts = min(n_clients, MAX_POSITIONS)
    n_corrupt = corrupt_positions(n_clients, max_colluders)
    return n_parts, trust.sum.set_up(n_parts, n_corrupt, n_parts)


def _planned_part(run: Run, n_clients: int) -> tuple[int, int]:
    """Return the number of parts of an answer with ``n_clients``, and their largest bytes."""
    document = run.document
    n_parts, sharing = _sharing(run.trust, n_clients, document.max_colluders)
    return n_parts, noise.part_bytes(run, max(document.words), sharing) + _PART_OVERHEAD


def most_words(
    trust: TrustModel, n_clients: int, max_colluders: int, n_levels: int
) -> int:
    """Return the most words of a round that `require_sizes` allows to ``n_clients`` clients.

    Words of queries do not count. ``n_levels`` is the number of a document's ``levels``.
    Without clients who could share a sum, or where words are not summed, it is
    `MAX_WORDS`, because the run is refused for that reason.
    """
    try:
        secure_sum = trust.sum
        n_parts, sharing = _sharing(trust, n_clients, max_colluders)
    except ConfigurationError:
        return MAX_WORDS
    most = (MAX_MESSAGE - bytes_beside_data(n_clients)) // n_parts
    if trust.has_committee:
        of_member = (MAX_MESSAGE - bytes_beside_data(n_clients)) // n_clients
        most = min(most, of_member, MAX_RELAY // (n_clients * n_parts))

    def part(n_words: int) -> int:
        found = noise.bytes_of_part(secure_sum, n_words, sharing, n_levels)
        return found + _PART_OVERHEAD

    n_allowed = bisect_right(range(1, MAX_WORDS + 1), most, key=part)
    return max(0, n_allowed - trust.checksum_words)


def answers_bytes(run: Run, n_clients: int) -> int:
    """Return the largest length, in bytes, of all answers to a round of ``n_clients``."""
    n_slots = max(n_clients, run.document.min_clients)
    n_parts, part = _planned_part(run, n_slots)
    return n_slots * n_parts * part


def planned_sizes(run: Run, n_clients: int) -> dict[str, int]:
    """Return the largest bytes of messages by kind, and of the shares in a round as ``relay``."""
    document = run.document
    trust = run.trust
    n_slots = max(n_clients, document.min_clients)
    n_parts, part = _planned_part(run, n_slots)
    clients = bytes_beside_data(n_slots)
    asked = (run.algorithm.query_ranges(t + 1) for t in range(document.rounds))
    query = max(
        sum(8 * math.prod(limits.shape) for limits in each.values()) for each in asked
    )
    entry = n_parts * part
    sizes = {
        "ask": clients + (entry if trust.is_blind else query),
        "answer": clients + entry,
    }
    if trust.has_committee:
        sizes |= {"add": clients + n_slots * part, "relay": answers_bytes(run, n_slots)}
    return sizes


def require_sizes(run: Run, n_clients: int) -> None:
    """Require messages within `wire.MAX_MESSAGE`, and a round's relay within `MAX_RELAY`."""
    ways = "fewer words (fewer columns, clusters or candidates) or fewer clients"
    if run.trust.has_committee:
        ways += ", or trust='oblivious-server', which sends 8 bytes for each word"
    for name, size in planned_sizes(run, n_clients).items():
        limit = MAX_MESSAGE
        what = f"data in one {name!r} message"
        if name == "relay":
            limit = MAX_RELAY
            what = "shares to relay in a round"
        if size > limit:
            raise ConfigurationError(
                f"Expected at most {limit / 2**20:.0f} MiB of {what}. Got {size / 2**20:.0f} MiB "
                f"with {n_clients} clients and {max(run.document.words)} words: take {ways}."
            )
