"""The server's side of a run: whom it asks what, and what it makes of the replies.

A server knows nothing of Flower's messages or clocks (docs/protocol.md, sections 5 and 6). It makes
requests per node and hands them to a `Trip`, which carries them and yields the replies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flower_kmeans.algorithms.base import State
from flower_kmeans.privacy.report import Dropped
from flower_kmeans.protocol.messages import Ask, Enrol, Finish, Reply, Request
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.base import Sharing

Kind = Literal["enrol", "keys", "ask", "add", "finish"]
Replies = Iterable[tuple[int, Reply | str]]
"""Node and reply; a string says why there is no orderly reply."""


class Trip(Protocol):
    """Carries one round trip: sends a request to each node and yields the replies as they come.

    ``has_enough()`` says whether the server could go on without those that have not answered. A
    trip may also yield replies to the enrolments that `Server.join` returned.
    """

    def __call__(
        self, kind: Kind, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]: ...


@dataclass
class Proceedings:
    """How a run went, as its server saw it; the report is made from it.

    Attributes
    ----------
    n_slots : int
        M: slots of the cohort in the last round.
    present : int
        Slots of the committee whose clients take part; 0 without a committee.
    sharing : Sharing, optional
        m, f, tau, k of the last round, where a committee adds.
    drawn : bool
        Whether the committee was drawn among more slots.
    survivors : dict of int to int
        |S| of each round with a sum, by round.
    noise_factors : dict of int to float
        Where clients add the noise: its standard deviation in a round's sum over the planned one.
    differed : list of (node, round, software)
        Clients whose query or history differed.
    skipped, named : list of (slot, round)
        Clients that were left out because others could not share with them, or because committee
        members reported that their shares do not open.
    renewed : dict of int to int
        How many clients without a ledger began a new session, by round.
    liars : list of (slot, round)
        Committee members whose sum-shares were false, where the server reconstructs.
    lost_rounds : list of int
    attempts, repeats, round_trips : int
        Attempts beyond the first of each round, repeats of an `Add`, and all round trips.
    """

    n_slots: int = 0
    present: int = 0
    sharing: Sharing | None = None
    drawn: bool = False
    survivors: dict[int, int] = field(default_factory=dict)
    noise_factors: dict[int, float] = field(default_factory=dict)
    differed: list[tuple[int, int, str]] = field(default_factory=list)
    skipped: list[tuple[int, int]] = field(default_factory=list)
    named: list[tuple[int, int]] = field(default_factory=list)
    renewed: dict[int, int] = field(default_factory=dict)
    liars: list[tuple[int, int]] = field(default_factory=list)
    lost_rounds: list[int] = field(default_factory=list)
    attempts: int = 0
    repeats: int = 0
    round_trips: int = 0


class Server:
    """The server of one run.

    Parameters
    ----------
    run : Run
        Its algorithm is the server's own. What that holds beside the parameters in the document
        never travels.
    seed : int, default: 0
        Public randomness of an algorithm whose queries only the server can compute.
    roster : Roster, optional
        The clients' public keys; needed exactly under ``keys="roster"``.

    Attributes
    ----------
    run : Run
        With a roster beyond 64 slots its epoch may be another one after `set_up`.
    proceedings : Proceedings
    incidents : list of Dropped
        Everything that was not an orderly reply.
    dropped : list of Dropped
        Whom a round went on without, and the last incident that explains it. Round 0 is the
        enrolment, ``n_rounds + 1`` the delivery.
    delivered : set of int
        Nodes that have the result.
    head : int
        Rounds that are closed.
    n_opened : int
        The last round whose sum the server has opened; 0 where it is blind.
    """

    def __init__(self, run: Run, *, seed: int = 0, roster: Roster | None = None) -> None:
        self.run = run
        self.proceedings = Proceedings()
        self.incidents: list[Dropped] = []
        self.dropped: list[Dropped] = []
        self.delivered: set[int] = set()
        self.head = 0
        self.n_opened = 0

    @property
    def state(self) -> State:
        """The algorithm's state after all rounds that are closed, where the server sees sums."""
        raise NotImplementedError

    @property
    def n_clients(self) -> int:
        """Number of clients that have a slot."""
        raise NotImplementedError

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client reported that it keeps a ledger, which only they can know."""
        raise NotImplementedError

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots and choose the committee and the group key.

        Parameters
        ----------
        node_ids : iterable of int
        trip : Trip

        Raises
        ------
        TooFewClientsError
            If too few clients enrolled for a sum.
        RunError
            If no client made the group key.
        """
        raise NotImplementedError

    def join(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return enrolments for nodes that came late or whose enrolment was lost.

        Their replies may come in any later trip. Relayed keys serve the first clients only, so
        such a run takes no late ones.
        """
        raise NotImplementedError

    def ask(self) -> dict[int, Ask]:
        """Begin the next round and return the requests of its first attempt.

        Raises
        ------
        RunError
            If the query has no encoding, or clients would refuse it.
        """
        raise NotImplementedError

    def has_enough(self) -> bool:
        """Return whether the round trip that is under way could end with what has come."""
        raise NotImplementedError

    def take_answers(self, replies: Replies, trip: Trip) -> None:
        """Take the replies to `ask` and close the round, with further round trips as needed.

        Raises
        ------
        TooFewClientsError
            If too few clients answered in all attempts.
        RunError
            If the round is lost and the run cannot go on without its sum.
        """
        raise NotImplementedError

    def finish_requests(self) -> dict[int, Finish]:
        """Return the last entries, or the result, for every client.

        Raises
        ------
        RunError
            If the server should have a result and has none that clients would accept.
        """
        raise NotImplementedError

    def take_finished(self, replies: Replies, trip: Trip) -> None:
        """Take the acknowledgements of the delivery."""
        raise NotImplementedError


def planned_sizes(run: Run, n_clients: int) -> dict[str, int]:
    """Return the largest messages of a run in bytes, by their kind, and the ``relay`` of a round.

    Parameters
    ----------
    run : Run
    n_clients : int
        Number of slots, at least ``min_clients``.
    """
    raise NotImplementedError


def require_sizes(run: Run, n_clients: int) -> None:
    """Require that a run's messages can be sent.

    Raises
    ------
    ConfigurationError
        If a message would be longer than `wire.MAX_MESSAGE`, or a round's relay than 2 GiB.
    """
    raise NotImplementedError
