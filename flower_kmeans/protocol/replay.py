"""Entries that clients open and follow themselves, once for all clients of a process.

Clients of a simulation follow the same transcript, and opening a sum and updating a state may take
a second. Both depend on nothing but their arguments, so their result can stand for another client's
with equal arguments. Nothing else rests on it: without it, everybody computes the same state.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg.hashing import H

_MOST = 4  # clients of one process are rarely in more rounds of more runs at once
_known: OrderedDict[bytes, bytes] = OrderedDict()
_lock = Lock()


def followed(
    session: ClientSession, group_key: bytes, entry: bytes, follow: Callable[[], bytes]
) -> bytes:
    """Return the state after an encoded entry: what ``follow`` returns, unless it raises.

    The session's hash names the run and all entries before, its state what they opened to.
    """
    key = H(b"followed", session.h, group_key, entry, session.state)
    with _lock:  # clients in other threads wait for the first one's
        if key in _known:
            _known.move_to_end(key)
        else:
            _known[key] = follow()
            if len(_known) > _MOST:
                _known.popitem(last=False)
        return _known[key]
