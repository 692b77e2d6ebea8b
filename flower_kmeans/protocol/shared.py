"""Work that the clients of one simulation share.

A deployed node answers for one client, so its results are of no use to others, and its
secrets belong in its session only. A `Client` therefore shares no results unless it gets
a `SharedWork`. `simulate` makes one for each run, and drops it with the run.
"""

from flower_kmeans.kept import Kept, Results

_MOST_RESULTS = 8  # results of each function
_MOST_SECRETS = 2**18
_MOST_STATES = 4  # clients are rarely in more rounds at once; states may be large


class SharedWork(Kept):
    """Results that one client of a simulation computes for all of them.

    Attributes
    ----------
    secret : callable
        ``secret(name, make)`` returns a secret of a pair of clients, by a name that both
        clients can compute.
    state : callable
        ``state(name, follow)`` returns the state after an entry; reconstructing its sum
        may take a second.
    """

    def __init__(
        self,
        most: int = _MOST_RESULTS,
        most_secrets: int = _MOST_SECRETS,
        most_states: int = _MOST_STATES,
    ) -> None:
        super().__init__(most)
        self._limits = (most, most_secrets, most_states)
        self.secret = Results[bytes](most_secrets).first
        self.state = Results[bytes](most_states).first

    def __reduce__(self) -> tuple[type["SharedWork"], tuple[int, int, int]]:
        return type(self), self._limits


NO_SHARED_WORK = SharedWork(most=0, most_secrets=0, most_states=0)
"""Shared work of a client that shares no results: it computes all of them."""
