"""An attempt at a round: its frame, and its replies so far (docs/protocol.md, section 6)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import Any

from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.messages import Added, Ask, Refusal
from flower_kmeans.protocol.participants import Frame, Participant
from flower_kmeans.protocol.resume import KeptAttempt
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.base import SumContext

N_REPEATS = 2  # repeats of an `Ask` or `Add` for clients that did not answer it
_IN_MEMORY = 2**24  # bytes of shares; more go to a temporary file


class ShareStore:
    """The sealed shares of one attempt, in a file: all shares of a dealer, or none."""

    def __init__(self, positions: Iterable[int], part_bytes: int) -> None:
        # present positions, by their order
        self._order = {position: n for n, position in enumerate(positions)}
        self._part_bytes = part_bytes
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (see `close`)
        self._starts: dict[int, int] = {}  # by dealer
        self.close = self._file.close

    def is_complete(self, sealed: bytes) -> bool:
        """Return whether a dealer has one share for each present position."""
        return len(sealed) == self._part_bytes * len(self._order)

    def put(self, slot: int, sealed: bytes) -> None:
        """Keep the complete shares of a dealer."""
        # Reading a part moved the position, so it goes back to the end.
        self._starts[slot] = self._file.seek(0, 2)
        self._file.write(sealed)

    def of(self, slot: int) -> bytes:
        """Return all shares of a dealer, one after the other."""
        self._file.seek(self._starts[slot])
        return self._file.read(self._part_bytes * len(self._order))

    def parts(self, position: int, slots: Iterable[int]) -> Iterator[bytes]:
        """Yield the shares of dealers for a position."""
        offset = self._order[position] * self._part_bytes
        for slot in slots:
            self._file.seek(self._starts[slot] + offset)
            yield self._file.read(self._part_bytes)


@dataclass
class Attempt:
    """One attempt at a round, with its requests and replies."""

    t: int
    number: int
    frame: Frame
    query: bytes | None  # encoded, if the server sees the sums
    tag: bytes  # tag of the answers to add up; empty until all have come
    part_bytes: int  # bytes of one part of an answer, sealed if it is a share
    store: ShareStore
    members: dict[int, Participant]  # present committee members, by position
    requests: dict[int, Ask] = field(default_factory=dict)
    # clients with a complete answer, by its tag
    answers: dict[bytes, list[Participant]] = field(default_factory=dict)
    # sums of words by tag, without a committee
    sums: dict[bytes, bytes] = field(default_factory=dict)
    contexts: dict[bytes, SumContext] = field(default_factory=dict)  # by tag
    # S: clients whose answers are added up
    dealers: list[Participant] = field(default_factory=list)
    chosen: bytes = b""  # the tag of most complete answers so far
    tried: int = 0  # number of offers of group keys that failed in `add`
    # whether S is on the disk, because a restarted server must add the same answers
    is_chosen: bool = False
    distributors: tuple[int, ...] = ()  # slots of clients asked for a group key
    # clients with complete answers
    heard: set[Participant] = field(default_factory=set)
    # clients that lack the group key
    complained: set[Participant] = field(default_factory=set)
    # replies of members by position; a refusal names a dealer
    replies: dict[int, Added | Refusal] = field(default_factory=dict)

    @property
    def threshold(self) -> int:
        """Number of sum-shares that reconstruct the sum; 0 without a committee."""
        if self.frame.sharing is None:
            return 0
        return self.frame.sharing.threshold

    @property
    def shares(self) -> dict[int, bytes]:
        """Sum-shares by position."""
        return {
            j: reply.share
            for j, reply in self.replies.items()
            if isinstance(reply, Added)
        }

    @property
    def named(self) -> dict[int, int | None]:
        """Slots whose share a member could not unseal, by the member's position."""
        return {
            j: reply.slot
            for j, reply in self.replies.items()
            if isinstance(reply, Refusal)
        }

    @property
    def missing_positions(self) -> list[int]:
        """Positions of members without a sum-share so far."""
        shares = self.shares
        return [position for position in self.members if position not in shares]

    def is_crowd(self, least: int) -> bool:
        """Return whether at least ``least`` clients gave complete answers with one tag."""
        return any(len(clients) >= least for clients in self.answers.values())

    def sum_context(self, run: Run, h: bytes, tag: bytes) -> SumContext:
        """Return the context of the sum of one tag. ``h`` is the transcript's hash."""
        if tag not in self.contexts:
            frame = self.frame
            digest = transcript.round_context(
                run.doc_hash,
                self.t,
                self.number,
                frame.n_slots,
                frame.tree.root,
                frame.digest,
                h,
                tag,
            )
            n_words = run.document.words[self.t - 1]
            self.contexts[tag] = SumContext(
                digest, n_words, frame.n_slots, b"", frame.sharing
            )
        return self.contexts[tag]

    def located(self, run: Run, client: Participant) -> dict[str, Any]:
        """Return the common fields of `Ask` and `Add` for one client."""
        frame = self.frame
        return {
            "doc_hash": run.doc_hash,
            "t": self.t,
            "attempt": self.number,
            "n_slots": frame.n_slots,
            "root": frame.tree.root,
            "slot": client.slot,
            "path": frame.tree.path(client.slot),
            "committee": frame.encoded,
            "doc": client.lacking_document(run.data),
            "wraps": client.carried,
        }

    def kept(self) -> KeptAttempt:
        """Return the attempt for a journal."""
        has_sum = bool(self.frame.sharing and self.dealers)
        return KeptAttempt(
            t=self.t,
            number=self.number,
            frame=tuple(
                (slot, client.node_id) for slot, client in self.frame.slots.items()
            ),
            query=self.query,
            distributors=self.distributors,
            tag=self.tag if has_sum else b"",
            dealers=tuple(client.slot for client in self.dealers) if has_sum else (),
        )
