"""The group key of a blind run at its server (docs/protocol.md, section 5).

The server never has the key. It passes envelopes on, and key ids show it which clients
have the same key.
"""

from collections.abc import Iterable

from flower_kmeans.errors import RunError
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.messages import Add, Ask, Code, Refusal
from flower_kmeans.protocol.participants import Frame, Participant
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.trips import Trip

_MOST_HOLDERS = 4  # holders that seal the group key for complaining clients


class GroupKey:
    """Phase of the offers of group keys, and of complaints about them.

    It sends `keys`, so that clients seal a group key for others, and `hold`, so that they
    take one. Other envelopes come with answers and go with requests.

    Attributes
    ----------
    served : set
        Pairs of a round and a client's ephemeral key whose complaint was served.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._run = talk.run
        self._offers = talk.cohort.offers
        self.served = set[tuple[int, bytes]]()

    @property
    def is_early(self) -> bool:
        """Whether clients need the group key for round 1, so it takes a round trip."""
        return self._run.trust.is_blind and not self._run.trust.has_committee

    def keyless(self, frame: Frame) -> list[Participant]:
        """Return the clients without group key and envelope in a blind run; none in others."""
        if not self._run.trust.is_blind:
            return []
        return [one for one in frame.slots.values() if not (one.wraps or one.has_key)]

    # ------------------------------------------------------------------ offers

    def make(self, t: int, frame: Frame, trip: Trip) -> bool:
        """Ask key distributors for group keys until there is an offer.

        Returns
        -------
        bool
            Whether there is an offer.
        """
        while not self._offers:
            if not self.ask_distributors(t, frame, trip):
                return False
        return True

    def require(self, frame: Frame, trip: Trip) -> None:
        """Require an offer before round 1."""
        if not self.make(0, frame, trip):
            raise RunError(
                "Expected a client that makes the group key. Got none."
                + self._talk.incidents.reasons(0)
            )

    def ask_distributors(self, t: int, frame: Frame, trip: Trip) -> bool:
        """Ask the next distributors for group keys; return whether any was left."""
        offers = self._offers
        chosen = offers.distributors(frame)
        n_offers = len(offers)
        if chosen:
            self._talk.has_enough = lambda: len(offers) > n_offers
            self._let_wrap(t, frame, chosen, frame.slots.values(), trip)
        return bool(chosen)

    def _let_wrap(
        self,
        t: int,
        frame: Frame,
        chosen: Iterable[Participant],
        peers: Iterable[Participant],
        trip: Trip,
    ) -> None:
        """Ask clients to seal a group key for peers, and take the envelopes."""
        rows = b"".join(peer.peer.row for peer in peers)
        request = messages.Keys(doc_hash=self._run.doc_hash, peers=rows)
        requests = {client.node_id: request for client in chosen}
        replies = self._talk.send(trip, "keys", requests)
        for client, reply in self._talk.take(t, requests, replies, messages.Wrapped):
            if isinstance(reply, messages.Wrapped):
                self._offers.take(frame, client, rows, reply.key_id, reply.envelopes)

    # ------------------------------------------------------------------ complaints

    def take_complaint(
        self,
        attempt: Attempt,
        client: Participant,
        request: Ask | Add,
        refusal: Refusal,
    ) -> bool:
        """Record a complaint; return whether the refusal is one about the group key."""
        has_failed = refusal.code == Code.KEY and refusal.slot is None
        lacks_key = has_failed or refusal.code == Code.NEED
        if not self._run.trust.is_blind or not lacks_key:
            return False
        if has_failed or request.wraps:
            self._offers.complain(client)
        attempt.complained.add(client)
        return True

    def serve(self, attempt: Attempt, trip: Trip) -> list[Participant]:
        """Ask holders to seal the group key for complaining clients; return the served clients."""
        colluders = self._run.document.max_colluders
        wanted = [
            client
            for client in sorted(attempt.complained, key=lambda client: client.slot)
            if (attempt.t, client.public.public_key) not in self.served
            and len(client.refused) <= colluders
        ]
        if not wanted:
            return []
        lacking = [client for client in wanted if not client.wraps]
        refused = set[int]().union(*(client.refused for client in lacking))
        holders = [
            client
            for client in self._offers.holders(attempt.frame)
            if client.slot not in refused
        ]
        chosen = holders[: min(colluders + 1, _MOST_HOLDERS)]
        if lacking and chosen:
            self._talk.has_enough = lambda: all(client.wraps for client in lacking)
            self._let_wrap(attempt.t, attempt.frame, chosen, lacking, trip)
        served = [client for client in wanted if client.wraps]
        self.served |= {(attempt.t, client.public.public_key) for client in served}
        attempt.complained -= set(served)
        return served

    # ------------------------------------------------------------------ another key

    def is_doubtful(self, attempt: Attempt) -> bool:
        """Return whether too few clients have the group key that their answers need."""
        has_doubt = bool(attempt.complained) or len(attempt.answers) > 1
        is_first = self.is_early and attempt.t == 1
        is_crowd = attempt.is_crowd(self._run.document.min_clients)
        return is_first and not is_crowd and has_doubt

    def find(self, attempt: Attempt, trip: Trip) -> bool:
        """Try the offers, then further distributors, until enough clients hold one group key."""
        n_tried = 0
        while True:
            n_tried += 1
            has_next = n_tried < len(self._offers)
            if not has_next and not self.ask_distributors(
                attempt.t, attempt.frame, trip
            ):
                return False
            self._offers.next(attempt.frame)
            held = self._hold(attempt, trip)
            for client in held:
                client.has_key = True
            if len(held) >= self._run.document.min_clients:
                return True

    def _hold(self, attempt: Attempt, trip: Trip) -> set[Participant]:
        """Send the key in use to clients, and return those that hold it."""
        talk = self._talk
        least = self._run.document.min_clients
        held = set[Participant]()
        talk.has_enough = lambda: len(held) >= least
        requests = {
            client.node_id: messages.Hold(
                doc_hash=self._run.doc_hash,
                doc=client.lacking_document(self._run.data),
                wraps=client.carried,
            )
            for client in attempt.frame.slots.values()
            if client.wraps
        }
        replies = talk.send(trip, "hold", requests)
        for client, reply in talk.take(attempt.t, requests, replies, messages.Held):
            if isinstance(reply, messages.Held):
                if reply.key_id == self._offers.key_id:
                    held.add(client)
            elif reply.code == Code.KEY:
                self._offers.complain(client)
        return held

    def change(self, attempt: Attempt, trip: Trip) -> bool:
        """Use the next offer if too few members have the present key; return whether it changed.

        The vote stays the same.
        """
        offers = self._offers
        if offers.is_settled or not attempt.complained or not self._run.trust.is_blind:
            return False
        if len(attempt.replies) >= attempt.threshold:
            return False
        attempt.tried += 1
        has_next = attempt.tried < len(offers)
        if not has_next and not self.ask_distributors(attempt.t, attempt.frame, trip):
            return False
        offers.next(attempt.frame)
        attempt.replies.clear()
        attempt.complained.clear()
        return True

    def settle(self, attempt: Attempt, trip: Trip) -> None:
        """Settle on the key in use, and ask holders to seal it for members that complained."""
        if self._run.trust.is_blind and not self._offers.is_settled:
            self._offers.is_settled = True
            self.serve(attempt, trip)
