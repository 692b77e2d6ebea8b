"""The votes of a committee (docs/protocol.md, section 6, round trip B and rules 3 and 4)."""

from collections import Counter
from collections.abc import Sequence

from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.incidents import MALFORMED, NAMED
from flower_kmeans.protocol.messages import Add, Added, Code, Refusal
from flower_kmeans.protocol.participants import Participant
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.attempt import N_REPEATS, Attempt
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.keeping import Keeping
from flower_kmeans.protocol.phases.sums import RoundSums
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.trips import Trip

_ADD_BYTES = 256 * 2**20  # most bytes of `Add` requests at a time


class Votes:
    """Phase in which the members of a committee add the survivors' shares.

    It sends `add`, and `keys` through the `GroupKey`. It remembers nothing beyond an
    attempt.
    """

    def __init__(
        self,
        talk: Talk,
        announced: Announced,
        group_key: GroupKey,
        keeping: Keeping,
        sums: RoundSums,
    ) -> None:
        self._talk = talk
        self._run = talk.run
        self._cohort = talk.cohort
        self._announced = announced
        self._group_key = group_key
        self._keeping = keeping
        self._sums = sums

    def add(self, attempt: Attempt, trip: Trip) -> bool:
        """Ask the committee to add, and close the round. Asking again costs no privacy.

        Returns
        -------
        bool
            Whether the sum can be reconstructed, as far as the server sees.
        """
        n_left = N_REPEATS
        is_blind = self._run.trust.is_blind
        if is_blind and not self._group_key.make(attempt.t, attempt.frame, trip):
            return False
        self._keeping.write_sum(attempt)
        while True:
            asked = attempt.missing_positions
            if not asked:
                return False
            self._ask(attempt, asked, trip)
            out = self._leave_out_named(attempt)
            shares = attempt.shares
            has_enough = len(shares) >= attempt.threshold
            if has_enough and self._sums.settle(attempt, shares):
                self._group_key.settle(attempt, trip)
                return True
            if self._group_key.change(attempt, trip):
                continue
            self._change_sum(attempt, out)
            if not n_left:
                return False
            n_left -= 1
            self._talk.proceedings.repeats += 1

    def _change_sum(self, attempt: Attempt, out: set[int]) -> None:
        """Remove slots from the sum, if enough members can still vote for the sum of the rest."""
        left = [dealer for dealer in attempt.dealers if dealer.slot not in out]
        is_crowd = len(left) >= self._run.document.min_clients
        # A member that named a dealer has not voted. If there are enough of them, they can
        # vote for a new sum.
        if out and len(attempt.named) >= attempt.threshold and is_crowd:
            attempt.dealers = left
            attempt.replies.clear()
            self._keeping.write_sum(attempt)

    # ------------------------------------------------------------------ sum-shares

    def _ask(self, attempt: Attempt, asked: Sequence[int], trip: Trip) -> None:
        """Send an `Add` to these positions, in portions of at most `_ADD_BYTES`."""
        talk = self._talk
        size = len(attempt.dealers) * (attempt.part_bytes + len(ZERO))
        at_once = max(1, _ADD_BYTES // size)
        # One more share than needed shows a false share. One client may always be silent.
        possible = len(attempt.shares) + len(asked) - 1
        enough = max(attempt.threshold, min(attempt.threshold + 1, possible))
        for first in range(0, len(asked), at_once):
            n_to_come = max(0, len(asked) - first - at_once)
            needed = enough - n_to_come
            talk.has_enough = lambda n=needed: len(attempt.shares) >= n  # type: ignore[misc]
            positions = {
                attempt.members[j].node_id: j for j in asked[first : first + at_once]
            }
            requests = self._requests(attempt, positions)
            replies = talk.send(trip, "add", requests)
            for client, reply in talk.take(attempt.t, requests, replies, Added):
                node_id = client.node_id
                if node_id in requests:
                    self._take_share(
                        attempt, positions[node_id], client, requests[node_id], reply
                    )

    def _requests(self, attempt: Attempt, positions: dict[int, int]) -> dict[int, Add]:
        """Return the requests to positions, by node."""
        dealers = attempt.dealers
        slots = [dealer.slot for dealer in dealers]
        survivors = transcript.pack_survivors(attempt.frame.bits(dealers))
        public_keys = b"".join(dealer.public.public_key for dealer in dealers)
        return {
            node_id: Add(
                **attempt.located(self._run, attempt.members[position]),
                h=self._announced.h,
                tag=attempt.tag,
                survivors=survivors,
                public_keys=public_keys,
                sealed=b"".join(attempt.store.parts(position, slots)),
            )
            for node_id, position in positions.items()
        }

    def _take_share(
        self,
        attempt: Attempt,
        position: int,
        client: Participant,
        request: Add,
        reply: Added | Refusal,
    ) -> None:
        is_blind = self._run.trust.is_blind
        if isinstance(reply, Refusal):
            if self._group_key.take_complaint(attempt, client, request, reply):
                attempt.replies.pop(position, None)
            elif reply.code == Code.KEY:
                attempt.replies[position] = reply
        # A server that reconstructs the sum finds false shares then.
        elif is_blind and len(reply.share) != attempt.part_bytes:
            attempt.replies.pop(position, None)
            self._talk.note(client, attempt.t, MALFORMED, "failed")
        elif is_blind and reply.key_id != self._cohort.offers.key_id:
            attempt.replies.pop(position, None)
            client.has_key = False
            attempt.complained.add(client)
        else:
            attempt.replies[position] = reply
            client.has_key |= is_blind

    def _leave_out_named(self, attempt: Attempt) -> set[int]:
        """Ban dealers that more members named than can be corrupt; return the dealers' slots."""
        sharing = attempt.frame.sharing
        out = set[int]()
        dealers: dict[int | None, Participant] = {
            dealer.slot: dealer for dealer in attempt.dealers
        }
        for slot, times in Counter(attempt.named.values()).items():
            client = dealers.get(slot)
            if client and sharing and times > sharing.n_corrupt:
                out.add(client.slot)
                if not client.is_banned:
                    client.is_banned = True
                    self._talk.note(client, attempt.t, NAMED, "named")
                    self._cohort.give_up(client)
        return out
