"""A run on the server's disk (docs/protocol.md, section 9, "A server that ends")."""

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.phases.course import Course
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.resume import (
    Journal,
    KeptRun,
    is_same_state,
    read_state,
    write_state,
)


class Keeping:
    """Phase that writes a run to its journal, and reads it. Without a journal it does nothing.

    Each write is made before the messages that depend on it. This phase sends no messages.
    """

    def __init__(
        self,
        journal: Journal | None,
        talk: Talk,
        frames: Frames,
        course: Course,
        announced: Announced,
        group_key: GroupKey,
    ) -> None:
        self._journal = journal
        self._talk = talk
        self._frames = frames
        self._course = course
        self._announced = announced
        self._group_key = group_key
        self._start = b""  # the first state, if it follows from data of the server
        if journal is not None and not talk.run.algorithm.replayable:
            self._start = write_state(course.state)

    # ------------------------------------------------------------------ writing

    def write(self, attempt: Attempt | None = None) -> None:
        """Keep the present state of the run, with the open attempt."""
        if self._journal is not None:
            self._journal.write(self._kept(attempt))

    def write_sum(self, attempt: Attempt) -> None:
        """Keep the choice of answers and their sealed shares, because votes for them are final."""
        if self._journal is not None:
            shares = ((one.slot, attempt.store.of(one.slot)) for one in attempt.dealers)
            self._journal.write_parts(self._kept(attempt), shares)

    def write_closed(self) -> None:
        """Keep a closed round: its entry, with the noise, or the state after it."""
        if self._journal is not None:
            self._journal.write_closed(self._kept(), self._announced.last)

    def finish(self) -> None:
        """Keep the fact that the run is over, and nothing else."""
        if self._journal is not None:
            self._journal.finish(self._talk.run.doc_hash)

    def _kept(self, attempt: Attempt | None = None) -> KeptRun:
        """Return the state from which another server can go on."""
        run = self._talk.run
        cohort = self._talk.cohort
        incidents = self._talk.incidents
        course = self._course
        has_state = course.head > 0 and not run.trust.is_blind
        return KeptRun(
            document=run.data,
            nodes=cohort.nodes,
            start=self._start,
            head=course.head,
            last_sum=course.last_sum,
            noise_factor=course.noise_factor,
            h=self._announced.h,
            state=write_state(course.state) if has_state else b"",
            findings=tuple(course.findings),
            proceedings=self._talk.proceedings,
            incidents=tuple(incidents.all),
            dropped=tuple(incidents.dropped),
            served=tuple(sorted(self._group_key.served)),
            caused=tuple(sorted(self._frames.caused)),
            cohort=cohort.kept() if cohort.clients else None,
            attempt=None if attempt is None else attempt.kept(),
        )

    # ------------------------------------------------------------------ reading

    def restore(self, kept: KeptRun, *, has_roster: bool) -> bool:
        """Restore a run from the journal of the former process.

        Returns
        -------
        bool
            Whether the set-up of the run was over.

        Raises
        ------
        ConfigurationError
            If the run began with other nodes or other data of the server.
        """
        nodes = self._talk.cohort.nodes
        # With a roster, nodes may have new ids since.
        if not has_roster and kept.nodes != nodes:
            raise ConfigurationError(
                f"Expected nodes={kept.nodes}, in whose order the run in resume gave the slots. "
                f"Got {nodes} instead."
            )
        course = self._course
        if kept.start and not is_same_state(kept.start, course.state):
            raise ConfigurationError(
                "Expected the server's data with which the run in resume began. Got others: use "
                "those data, or name another directory."
            )
        self._talk.incidents.restore(kept.incidents, kept.dropped)
        if kept.cohort is None:
            return False
        self._talk.cohort.restore(kept.cohort)
        course.head = kept.head
        course.last_sum = kept.last_sum
        course.noise_factor = kept.noise_factor
        course.findings = list(kept.findings)
        if kept.state:
            course.state = read_state(kept.state)
        self._group_key.served = set(kept.served)
        self._frames.caused = set(kept.caused)
        if self._journal is not None:
            self._announced.restore(self._journal.entries(), kept.h)
        return True

    def restore_sum(
        self, attempt: Attempt, tag: bytes, dealers: tuple[int, ...]
    ) -> None:
        """Restore S of an open attempt, and its sealed shares."""
        if self._journal is None:
            return
        attempt.is_chosen = True
        attempt.tag = tag
        attempt.dealers = [attempt.frame.slots[slot] for slot in dealers]
        for slot, shares in self._journal.parts():
            attempt.store.put(slot, shares)
