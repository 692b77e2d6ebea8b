"""Who sits where in the cohort (docs/protocol.md, sections 4 and 5).

Members are numbered by ascending node id, unless they hold keys on a roster: then every pinned key
has its own place, in the roster's order, whether its holder is there or not. The server is told the
order by a leader, and members check it against their own rosters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flower_kmeans.federation.cohort import EMPTY, leaf
from flower_kmeans.secagg.keys import KEY_BYTES

ABSENT = -1
STRANGER = "The node's key is not on the leader's roster."
TAKEN = "Another node holds this member's place."


@dataclass
class Seat:
    """One place in the cohort as the server knows it.

    Attributes
    ----------
    node_id : int
        `ABSENT` if the holder of a pinned key is not there.
    commitment : bytes
        Of the member's life.
    public_key : bytes
        Empty where keys come from a file or are not used.
    followed : int
        Rounds whose entries the member has; -1 until its first answer.
    ledger : bool
        Whether the member says that it keeps one.
    """

    node_id: int
    commitment: bytes
    public_key: bytes
    followed: int = -1
    ledger: bool = False

    @property
    def is_taken(self) -> bool:
        """Whether a node sits there."""
        return self.node_id != ABSENT

    def leaf(self, index: int) -> bytes:
        """Return the seat's leaf in the cohort's tree."""
        if not self.is_taken:
            return EMPTY
        return leaf(index, self.node_id, self.commitment, self.public_key)


@dataclass(frozen=True)
class Offer:
    """A leader (ephemeral and pinned key) and its envelopes, by the keys of those for whom."""

    leader: bytes
    envelopes: Mapping[bytes, bytes]

    def is_known_to(self, other: "Offer") -> bool:
        """Return whether the leader's pinned key is on another leader's roster."""
        return self.leader[-KEY_BYTES:] in other.envelopes

    def covers(self, seats: Iterable[Seat]) -> int:
        """Return for how many of these members there is an envelope."""
        return sum(seat.public_key in self.envelopes for seat in seats)


def seats_by_roster(
    members: Iterable[Seat], publics: Sequence[bytes]
) -> tuple[list[Seat], dict[int, str]]:
    """Give members the places of their keys.

    Parameters
    ----------
    members : iterable of Seat
        Who enrolled. If two hold the same key, the first is seated.
    publics : sequence of bytes
        All pinned public keys in the roster's order.

    Returns
    -------
    seats : list of Seat
        One for each pinned key.
    turned_away : dict of int to str
        Nodes without a place, and why.
    """
    seats = [Seat(ABSENT, b"", public) for public in publics]
    places = {public: place for place, public in enumerate(publics)}
    turned_away = {}
    for member in members:
        place = places.get(member.public_key)
        if place is None:
            turned_away[member.node_id] = STRANGER
        elif seats[place].is_taken:
            turned_away[member.node_id] = TAKEN
        else:
            seats[place] = member
    return seats, turned_away
