"""Sending a hop's messages and taking its replies as they arrive."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

AT_ONCE = 64
"""Replies that are taken from a grid in one go: a grid gives all that have arrived as a list."""

_FIRST_PAUSE = 0.02
_PAUSE_AMID = 0.1  # while replies arrive
_LONGEST_PAUSE = 0.5
_PAUSES_PER_LOOK = 4  # a look costs a grid work for every reply that is still awaited


def send(grid: Grid, messages: Iterable[Message]) -> dict[str, int]:
    """Push messages and return the node of each message id that was accepted."""
    listed = list(messages)
    if not listed:
        return {}
    ids = list(grid.push_messages(listed))
    if len(ids) == len(listed):
        return {str(i): m.metadata.dst_node_id for i, m in zip(ids, listed, strict=True)}
    by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in listed}
    return {str(i): by_id.get(str(i), -1) for i in ids}


def receive(
    grid: Grid,
    pushed: Mapping[str, int],
    timeout: float,
    awaited: Collection[str] | None = None,
) -> Iterator[tuple[int, Message]]:
    """Yield ``(node_id, reply)`` as replies arrive, until all are there or time is up.

    Replies are yielded one by one, so a caller that folds them holds one, and at most `AT_ONCE`
    more are in this process, however many clients there are. A node is known by the message it
    replies to, because Flower's error replies name no node. A grid may offer ``known_lost(ids)``
    to say that some messages will never be answered.

    Parameters
    ----------
    grid : Grid
    pushed : mapping of str to int
        Message ids and their nodes, from ``send``.
    timeout : float
        Seconds.
    awaited : collection of str, optional
        Message ids to wait for; replies to the others are only taken along. Default: all.
    """
    waiting = set(pushed if awaited is None else awaited)
    pending = dict.fromkeys(pushed)  # in order, so a simulated run can be repeated exactly
    known_lost = getattr(grid, "known_lost", None)
    started = time.monotonic()
    while waiting:
        progress, looking, ids = False, 0.0, list(pending)
        for first in range(0, len(ids), AT_ONCE):
            begun = time.monotonic()
            replies = iter(grid.pull_messages(ids[first : first + AT_ONCE]))
            looking += time.monotonic() - begun
            for reply in replies:
                progress = True
                reply_to = reply.metadata.reply_to_message_id
                pending.pop(reply_to, None)
                waiting.discard(reply_to)
                yield pushed.get(reply_to, reply.metadata.src_node_id), reply
        if known_lost is not None:
            for message_id in known_lost(pending):
                pending.pop(message_id, None)
                waiting.discard(message_id)
        elapsed = time.monotonic() - started
        if elapsed >= timeout:
            return
        if waiting:
            usual, longest = elapsed / 20, _LONGEST_PAUSE
            if progress:
                usual, longest = _PAUSES_PER_LOOK * looking, _PAUSE_AMID
            time.sleep(min(max(_FIRST_PAUSE, usual), longest, timeout - elapsed))
