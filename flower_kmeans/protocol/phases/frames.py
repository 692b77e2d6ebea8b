"""The frames of a run's attempts (docs/protocol.md, sections 4 and 6, rule 6)."""

from collections.abc import Iterable

from flower_kmeans.protocol.cohort import Cohort
from flower_kmeans.protocol.participants import Frame
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.report.report import CommitteeReport, Proceedings


class Frames:
    """The frames of attempts, which the report describes. This phase sends no messages.

    Attributes
    ----------
    caused : set
        Pairs of a round and a slot that caused another attempt.
    """

    def __init__(
        self, run: Run, roster: Roster | None, cohort: Cohort, proceedings: Proceedings
    ) -> None:
        self._document = run.document
        self._roster = roster
        self._cohort = cohort
        self._proceedings = proceedings
        self.caused = set[tuple[int, int]]()

    def next(self) -> Frame:
        """Apply all changes of the cohort, and return the frame of the next attempt."""
        frame = self._cohort.frame()
        self._report(frame)
        return frame

    def of(self, active: Iterable[tuple[int, int]]) -> Frame:
        """Return the frame with these active nodes, as (slot, node), without later changes."""
        frame = self._cohort.framed_as(active)
        self._report(frame)
        return frame

    def _report(self, frame: Frame) -> None:
        self._proceedings.n_slots = frame.n_slots
        sharing = frame.sharing
        if frame.committee is None or sharing is None:
            return
        epoch = None
        beacon = ""
        if (
            self._roster is not None and len(self._roster) > sharing.n_positions
        ):  # drawn
            epoch = self._document.epoch
            beacon = self._roster.beacon.hex()
        self._proceedings.committee = CommitteeReport(
            frame.committee.slots,
            len(frame.present),
            sharing.n_corrupt,
            sharing.privacy,
            sharing.packing,
            epoch=epoch,
            beacon=beacon,
        )

    @property
    def changed(self) -> set[int]:
        """Slots that have another client or session in the next frame."""
        return {
            slot
            for slot, claims in self._cohort.claims.items()
            if claims[0].new is not None
        }

    def must_change(self, attempt: Attempt) -> bool:
        """Return whether a vote must wait for clients of the next frame.

        Votes are final, so the server asks for none that ``max_colluders`` members could
        make fail without these clients. Each slot can cause the wait once per round.
        """
        if not attempt.frame.sharing:
            return False
        changed = self.changed
        waiting = {slot for slot in changed if (attempt.t, slot) not in self.caused}
        self.caused |= {(attempt.t, slot) for slot in waiting}
        members = [c for c in attempt.members.values() if c.slot not in changed]
        n_honest = len(members) - self._document.max_colluders
        is_weak = n_honest < attempt.threshold
        return bool(waiting) and is_weak
