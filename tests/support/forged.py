"""A cohort whose server has no rules: it sends clients whatever a test makes of honest requests.

It asks for any round, any attempt, any committee and any set of survivors. The clients are those of
the library, with all of their checks.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.domain import GridRecords
from flower_kmeans.protocol import removal
from flower_kmeans.protocol.messages import Answer, Ask, Refusal, Reply
from flower_kmeans.protocol.roster import Identity, read_identity
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg import key_agreement
from flower_kmeans.secagg.base import SumContext
from tests.support.cohorts import Cohort

SHARED = ("distributed-noise", "clients-only")
BLIND = ("clients-only", "oblivious-server")
PROTECTED = ("distributed-noise", "clients-only", "oblivious-server")


class Scene(Cohort):
    """A run with its clients, who are numbered by their slots."""

    def __init__(
        self,
        directory: Path,
        trust: str = "distributed-noise",
        keys: str = "roster",
        n: int = 7,
        *,
        absent: Iterable[int] = (),
        set_up: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(directory, trust, keys, n, **options)
        self.present: set[int] | None = None
        self.chosen: tuple[int, ...] = ()
        self.absent = set(absent)
        if set_up:
            self.enrol()

    @property
    def data(self) -> bytes:
        return self.run.data

    @property
    def blind(self) -> bool:
        return self.trust.is_blind

    # ------------------------------------------------------------------ cohorts of its choice

    def enrol(self) -> None:
        self.set_up(i for i in range(len(self.nodes)) if i not in self.absent)

    def frame(self, *, present: Iterable[int] | None = None, committee: Iterable[int] = ()) -> None:
        """Take some clients for absent, or others for the committee."""
        self.present = None if present is None else set(present)
        self.chosen = tuple(committee)

    def by_slot(self) -> dict[int, int]:
        found = super().by_slot()
        return {k: i for k, i in found.items() if self.present is None or i in self.present}

    @property
    def n_slots(self) -> int:
        return super().n_slots if self.has_roster else len(self.by_slot())

    @property
    def slots(self) -> tuple[int, ...]:
        return self.chosen or super().slots

    def renew(self, i: int, reply: Reply) -> None:
        """Take a client's new session."""
        assert isinstance(reply, Refusal)
        assert reply.commitment is not None, reply
        self.take(i, reply)

    def wrap_again(self, i: int, by: int) -> None:
        """Let a client that has the group key seal it for one that began a new session."""
        own, key = self.session(by), self.enrolled[i].public_key
        statics = (self.identity(by).secret, self.roster.keys[i]) if self.roster else ()
        shared = key_agreement.pair_secret(own.ephemeral, key, *statics)
        public = self.enrolled[by].public_key
        seal_key = key_agreement.wrap_key(shared, self.doc_hash, public, key)
        self.envelopes[i] = (by, key_agreement.seal(seal_key, own.group_secret, self.doc_hash))

    # ------------------------------------------------------------------ requests

    def ask_of(self, index: int, t: int = 1, attempt: int = 1, **changes: Any) -> Ask:
        if self.trust.has_committee and self.blind and not self.envelopes and t == 1:
            peers = tuple(self.peer(i, index) for i in sorted(self.enrolled))
            changes = {"peers": peers, **changes}
        return super().ask_of(index, t, attempt, **changes)

    def ask(self, i: int, t: int = 1, attempt: int = 1, **changes: Any) -> Reply:
        return self.send(i, self.ask_of(i, t, attempt, **changes))

    def add(self, i: int, answers: Any, t: int = 1, attempt: int = 1, **changes: Any) -> Reply:
        return self.send(i, self.add_of(i, answers, t, attempt, **changes))

    def deal(
        self, t: int = 1, attempt: int = 1, who: Iterable[int] | None = None, **changes: Any
    ) -> dict[int, Any]:
        """Ask clients and return their answers, which they must give."""
        answers = super().deal(t, attempt, who, **changes)
        for i, answer in answers.items():
            assert isinstance(answer, Answer), (i, answer)
            self.have[i] = t - 1
        if self.blind and not self.envelopes:
            self.take_envelopes(
                min(answers), answers[min(answers)].envelopes, sorted(self.enrolled)
            )
        return answers

    # ------------------------------------------------------------------ rounds

    def round(self, t: int, attempt: int = 1, who: Iterable[int] | None = None) -> list[int]:
        """Play one round with some clients, without a server's noise."""
        answers = self.deal(t, attempt, who)
        if self.trust.has_committee:
            self._add(t, attempt, answers)
        else:
            sums = self.sums(t, attempt, answers[min(answers)].tag)
            parts = [answer.words for answer in answers.values()]
            self.close(t, attempt, answers, words=self.trust.sum.combine(parts, sums))
        return sorted(answers)

    def sums(self, t: int, attempt: int, tag: bytes) -> SumContext:
        return self._sum_context(self.context(t, attempt, tag), t)

    # ------------------------------------------------------------------ what only clients know

    def session(self, i: int) -> ClientSession:
        """Return what a client remembers of the run, secrets included."""
        session = self.nodes[i].session(self.doc_hash)
        assert session is not None
        return session

    def identity(self, i: int) -> Identity:
        policy = self.nodes[i].policy
        assert policy.roster_file is not None
        assert policy.member_key_file is not None
        return read_identity(policy.roster_file, policy.member_key_file)

    def group_key(self, i: int) -> bytes:
        return key_agreement.group_key(self.session(i).group_secret, self.doc_hash)

    def exact(self, i: int) -> NDArray[np.int64]:
        """Return a client's statistic of round 1, without noise."""
        algorithm = self.run.algorithm
        records = np.asarray(self.nodes[i].records, dtype=np.float64)
        grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
        query = algorithm.query(algorithm.initial_state(None))
        return algorithm.flatten(algorithm.answer(query, grid), 1)

    def noise(self, i: int, context: bytes) -> NDArray[np.int64]:
        """Return a client's noise share of round 1 in a context."""
        return removal.client_noise(self.run, 1, self.session(i).secret, context)

    def pair_key(self, i: int, j: int, context: bytes, position: int) -> bytes:
        """Return the key of dealer i's share for committee member j, by the member's secrets."""
        dealer, own = self.enrolled[i].public_key, self.session(j).ephemeral
        statics = (self.identity(j).secret, self.roster.keys[i]) if self.roster else ()
        ikm = key_agreement.pair_secret(own, dealer, *statics)
        mine = key_agreement.public_key(own)
        return key_agreement.share_key(ikm, context, i, position, dealer, mine)
