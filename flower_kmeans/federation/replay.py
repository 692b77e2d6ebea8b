"""Updates that clients compute themselves, once for all clients of a process.

Clients of a simulation follow the same transcript, and an update may take a second. A replayable
update depends on nothing but its arguments, so its result can stand for another client's with equal
arguments. Nothing else rests on it: without it, everybody computes the same state.
"""

import hashlib
import struct
from collections import OrderedDict
from threading import Lock

from flower_kmeans.algorithms.base import Algorithm, State, Statistic

_MOST = 4  # clients of one process are rarely in more rounds of more runs at once
_known: OrderedDict[tuple[Algorithm, bytes], State] = OrderedDict()
_lock = Lock()


def updated(algorithm: Algorithm, state: State, answer: Statistic) -> State:
    """Return the state after the sum of a round, whose arrays nobody may change.

    Parameters
    ----------
    algorithm : Algorithm
        Replayable.
    state : State
    answer : Statistic
        The noisy sum of the round after ``state``.
    """
    key = algorithm, _digest(algorithm, state, answer)
    with _lock:  # clients in other threads wait for the first one's
        if key in _known:
            _known.move_to_end(key)
        else:
            found = algorithm.update(state, answer)
            for array in found.arrays.values():
                array.setflags(write=False)
            _known[key] = found
            if len(_known) > _MOST:
                _known.popitem(last=False)
        return _known[key]


def _digest(algorithm: Algorithm, state: State, answer: Statistic) -> bytes:
    digest = hashlib.sha256(struct.pack("<Id", state.round, answer.answered))
    for name, array in sorted(state.arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    digest.update(algorithm.flatten(answer, state.round + 1).tobytes())
    return digest.digest()
