"""Limits of a party: of its policy, and of the lengths of messages."""

from flower_kmeans.data.domain import Box
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.messages import ENVELOPE_BYTES, Head, Request
from flower_kmeans.protocol.policy import ClientPolicy, Limits, first_exceeded
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.primitives import SEAL_BYTES
from flower_kmeans.vertical.protocol.body import Vertical
from flower_kmeans.vertical.protocol.messages import Turn, TurnHead
from flower_kmeans.vertical.protocol.parcels import Planned, due, in_parts, planned

_OF_A_PARCEL = 128  # most bytes of a parcel beside its keys, receivers and data

# ------------------------------------------------------------------------------- policy


def limits(policy: ClientPolicy, run: Run) -> Limits:
    """Yield (holds, limit, actual) for limits of a run; `objection_to_slot` has columns."""
    values = sum(run.document.words)
    limit = f"values <= max_opened={policy.max_opened}"
    yield values <= policy.max_opened, limit, values


def objection_to_slot(policy: ClientPolicy, run: Run, slot: int) -> str | None:
    """Return the first limit of a policy that a slot of a run exceeds, or ``None``."""
    return first_exceeded(_limits_of_slot(policy, run, slot))


def _limits_of_slot(policy: ClientPolicy, run: Run, slot: int) -> Limits:
    body = run.document.body
    is_there = isinstance(body, Vertical) and slot < len(body.widths)
    yield is_there, "a slot among the run's parties", slot
    if not isinstance(body, Vertical) or not is_there:
        return
    is_met = not policy.must_hold_key or slot < body.n_noisy
    yield is_met, f"must_hold_key: a slot below {body.n_noisy}", slot
    domain = run.algorithm.domain
    own = body.places(slot)
    if isinstance(domain, Box):
        domain = domain.part(own)
    yield from policy.limits_of_domain(domain)


# ------------------------------------------------------------------- lengths of messages


def request_bytes(run: Run, head: Head) -> int:
    """Return the largest length, in bytes, of the parcels that a turn brings to a party."""
    if not isinstance(head, TurnHead):
        return 0
    lengths = []
    for slot in range(run.document.min_clients):
        parcels = due(run, slot, head.step, head.t, head.part)
        lengths.append(sum(map(_parcel, parcels)))
    return max(lengths)


def reply_bytes(run: Run, request: Request) -> int:
    """Return the length, in bytes, of an answer's parcels. Its party has no row in the peers."""
    if not isinstance(request, Turn):
        return 0
    rows = messages.read_rows(request.peers, run.document.keys == "roster")
    others = {peer.slot for peer in rows}
    slot = next(i for i in range(len(rows) + 1) if i not in others)
    parts = in_parts(planned(run, slot, request.step, request.t))
    if request.part > len(parts):
        return 0
    return sum(map(_parcel, parts[request.part - 1]))


def _parcel(each: Planned) -> int:
    receivers = len(each.receivers) * (4 + ENVELOPE_BYTES)
    return each.n_bytes + SEAL_BYTES + receivers + _OF_A_PARCEL
