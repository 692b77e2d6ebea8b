"""The set-up of a run: enrolment, slots and group key (docs/protocol.md, section 5)."""

from collections.abc import Collection, Iterable

import msgspec

from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.protocol.messages import Enrol, Enrolled
from flower_kmeans.protocol.participants import Frame
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.resumption import Resumption
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.sizes import require_sizes
from flower_kmeans.protocol.trips import Trip


class SetUp:
    """Phase that enrols clients, gives them slots, and chooses committee and group key.

    It sends `enrol`, and `keys` if round 1 needs the group key.
    """

    def __init__(self, talk: Talk, frames: Frames, group_key: GroupKey) -> None:
        self._talk = talk
        self._run = talk.run
        self._cohort = talk.cohort
        self._frames = frames
        self._group_key = group_key

    # ------------------------------------------------------------------ nodes

    def named(self, node_ids: Iterable[int]) -> set[int]:
        """Return the nodes that can take part."""
        nodes = set(node_ids)
        if self._cohort.nodes is None:
            return nodes
        return nodes & set(self._cohort.nodes)

    def join(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return enrolments for late nodes that can have a slot."""
        new = set[int]()
        if not self._cohort.is_closed:
            new = self.named(node_ids) - self._cohort.known
        return dict.fromkeys(sorted(new), Enrol(doc=self._run.data))

    def close(self) -> None:
        """Refuse later clients, if the order of enrolment gave the slots."""
        is_relayed = self._run.document.keys == "relayed"
        self._cohort.is_closed = is_relayed and self._cohort.nodes is None

    # ------------------------------------------------------------------ the first time

    def enrol(self, nodes: Collection[int], trip: Trip) -> list[int]:
        """Ask clients to begin a session and claim a slot; return all nodes that were asked."""
        cohort = self._cohort
        least = self._run.document.min_clients
        self._talk.has_enough = lambda: (
            len(cohort.claims) >= least and cohort.can_add(spare=0)
        )
        self._enrol(dict.fromkeys(nodes, Enrol(doc=self._run.data)), trip)
        return sorted({*nodes, *cohort.known})  # some connected meanwhile

    def _enrol(self, requests: dict[int, Enrol], trip: Trip) -> None:
        replies = self._talk.send(trip, "enrol", requests)
        list(self._talk.take(0, (), replies, Enrolled))

    def complete(self, nodes: Iterable[int], trip: Trip) -> None:
        """Require enough clients, feasible messages and, if round 1 needs it, a group key."""
        asked = set(nodes)
        self._require_crowd(asked)
        frame = self._frames.next()
        self._talk.drop(0, asked - self._cohort.clients.keys())
        self._require_committee(frame)
        require_sizes(self._run, frame.n_slots)
        self.close()
        if self._group_key.is_early:
            self._group_key.require(frame, trip)

    def _require_crowd(self, asked: set[int]) -> None:
        claims = self._cohort.claims
        n_taken = len(claims)
        least = self._run.document.min_clients
        if n_taken < least:
            taken = {client.node_id for each in claims.values() for client in each}
            self._talk.drop(0, asked - taken)
            raise TooFewClientsError(
                f"Expected at least min_clients={least} clients to take part. "
                f"Got {n_taken} of {len(asked)} connected nodes instead."
                f"{self._talk.incidents.reasons(0)}"
            )

    def _require_committee(self, frame: Frame) -> None:
        committee = frame.committee
        is_too_small = committee is not None and frame.sharing is None
        if committee is not None and is_too_small and self._run.trust.has_committee:
            raise TooFewClientsError(
                f"Expected more of the {len(committee.slots)} committee members to take "
                f"part. Got {len(frame.present)} instead.{self._talk.incidents.reasons(0)}"
            )

    # ------------------------------------------------------------------ after a restart

    def repeat(
        self, connected: Collection[int], resumption: Resumption, trip: Trip
    ) -> None:
        """Find clients of a roster whose nodes have new ids since the run was kept.

        Such a node makes a new claim. If it has the session of the lost node, it takes its
        slot. No context depends on node or claim, so the open attempt stays the same.
        """
        cohort = self._cohort
        least = self._run.document.min_clients
        kept = resumption.attempt
        if kept is None:
            active = {slot: each[0].node_id for slot, each in cohort.claims.items()}
        else:
            active = dict(kept.frame)
        present = set(connected)
        known = set(cohort.known)
        requests = self.join(connected)

        def has_enough() -> bool:
            present.update(cohort.known - known)
            claims = (cohort.claims[slot] for slot in active)
            n_back = sum(any(one.node_id in present for one in each) for each in claims)
            has_all_replies = requests.keys() <= cohort.known
            return n_back == len(active) or (n_back >= least and has_all_replies)

        if requests:
            self._talk.has_enough = has_enough
            self._enrol(requests, trip)
            present |= cohort.known - known  # some connected meanwhile
        for slot, node_id in active.items():
            if node_id not in present:
                active[slot] = cohort.stand_in(slot, node_id, present)
        if kept is None:
            self._frames.next()
        else:
            resumption.attempt = msgspec.structs.replace(
                kept, frame=tuple(active.items())
            )
