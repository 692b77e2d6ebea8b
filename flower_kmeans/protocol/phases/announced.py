"""The sums that a blind server announced (docs/protocol.md, sections 6 and 7)."""

from collections.abc import Iterable, Mapping
from itertools import islice

from flower_kmeans.protocol import messages, transcript
from flower_kmeans.protocol.messages import Entry
from flower_kmeans.protocol.participants import Participant
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.sizes import bytes_beside_data
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode


class Announced:
    """The entries of a run, and its transcript's hash. Only a blind server has them.

    `ask` and `finish` carry to each client the entries that it lacks.

    Attributes
    ----------
    entries : dict
        The entries in the order of their rounds, each with its length in bytes.
    h : bytes
        The transcript's hash at the head; `ZERO` if the server sees the sums.
    """

    def __init__(self, run: Run) -> None:
        self._doc_hash = run.doc_hash
        self.entries: dict[Entry, int] = {}
        self.h = ZERO
        if run.trust.is_blind:
            self.h = transcript.first_hash(run.doc_hash)

    @property
    def last(self) -> Entry | None:
        """The entry of the last closed round."""
        if not self.entries:
            return None
        return next(reversed(self.entries))

    def announce(self, attempt: Attempt, combined: Mapping[int, bytes]) -> None:
        """Announce a sum: the masked words at position 0, or the sealed sum-shares."""
        frame = attempt.frame
        words, positions, shares, packing = b"", b"", b"", 0
        if frame.sharing is None:
            words = combined[0]
        else:
            packing = frame.sharing.packing
            positions, shares = messages.write_sum_shares(combined)
        entry = Entry(
            t=attempt.t,
            attempt=attempt.number,
            n_slots=frame.n_slots,
            root=frame.tree.root,
            committee=frame.digest,
            tag=attempt.tag,
            survivors=transcript.pack_survivors(frame.bits(attempt.dealers)),
            packing=packing,
            words=words,
            positions=positions,
            shares=shares,
        )
        self.entries[entry] = len(encode(entry))
        context_digest = transcript.entry_context(self._doc_hash, self.h, entry)
        self.h = transcript.next_hash(self.h, context_digest, entry)

    def lacking(self, client: Participant, n_slots: int) -> tuple[Entry, ...]:
        """Return the entries that a client lacks: as many as fit into a message, at least one."""
        entries = list[Entry]()
        room = MAX_MESSAGE - bytes_beside_data(n_slots)
        for entry, size in islice(self.entries.items(), client.head, None):
            room -= size
            if room < 0 and entries:
                break
            entries.append(entry)
        client.sent = client.head + len(entries)
        return tuple(entries)

    def restore(self, entries: Iterable[Entry], h: bytes) -> None:
        """Restore the entries of a journal."""
        self.entries = {entry: len(encode(entry)) for entry in entries}
        self.h = h
