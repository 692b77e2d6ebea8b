"""A run that goes on after its server ended (docs/protocol.md, section 9)."""

from flower_kmeans.errors import RunError
from flower_kmeans.protocol.resume import KeptAttempt


class Resumption:
    """The first round of a run that was resumed.

    Parameters
    ----------
    max_colluders : int
        Most clients that may wrongly state that a round is over.

    Attributes
    ----------
    is_under_way : bool
        Whether the first round is not closed yet.
    attempt : KeptAttempt, optional
        The attempt that was open when the former process ended.
    """

    def __init__(self, max_colluders: int) -> None:
        self._max_colluders = max_colluders
        self._stale = set[int]()  # slots whose client stated that the round is over
        self.is_under_way = False
        self.attempt: KeptAttempt | None = None

    def begin(self, attempt: KeptAttempt | None) -> None:
        """Begin the resumed run, perhaps in the middle of a round."""
        self.is_under_way = True
        self.attempt = attempt

    def end(self) -> None:
        """End the resumption, because a round is closed."""
        self.is_under_way = False
        self.attempt = None

    def hear_stale(self, slot: int, t: int) -> None:
        """Record that a client stated that a round is over.

        Raises
        ------
        RunError
            If the kept run is older than its clients' memory of it.
        """
        if not self.is_under_way:
            return
        self._stale.add(slot)
        n_stale = len(self._stale)
        if n_stale > self._max_colluders:
            raise RunError(
                f"Expected resume to hold the run as its server left it. Got round {t}, which is "
                f"over for {n_stale} clients: the directory is an older copy, or they called "
                "flower-kmeans forget. Begin a new run in another directory."
            )
