"""The server's side of a run, in the order of docs/protocol.md, sections 5 and 6.

A server uses neither Flower's messages nor clocks. It makes requests by node and hands
them to a `Trip`, which sends them and yields the replies. The numbered rules about faults
are in section 6. Privacy does not depend on them, so clients do not check them: only one
sum of a round can be unmasked or reconstructed.

Each phase has its own object in `flower_kmeans.protocol.phases`. The server puts them
together and calls them in turn.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain

import msgspec

from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.state import State
from flower_kmeans.errors import (
    ConfigurationError,
    KMeansError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.protocol.cohort import Cohort
from flower_kmeans.protocol.incidents import Incidents
from flower_kmeans.protocol.messages import Abort, Ask, Enrol, Finish
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.answers import Answers
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.phases.course import Course
from flower_kmeans.protocol.phases.finishing import Finishing
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.keeping import Keeping
from flower_kmeans.protocol.phases.questions import Questions
from flower_kmeans.protocol.phases.resumption import Resumption
from flower_kmeans.protocol.phases.set_up import SetUp
from flower_kmeans.protocol.phases.sums import RoundSums
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.phases.votes import Votes
from flower_kmeans.protocol.resume import Journal, KeptRun
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.trips import HasEnough, Replies, Trip
from flower_kmeans.report.report import Dropped, Proceedings


class Server:
    """The server of one run.

    Parameters
    ----------
    run : Run
        The run. Fields of its algorithm that the document does not have never travel.
    seed : int, default: 0
        Seed for public randomness, if only the server can compute the queries.
    roster : Roster, optional
        The clients' public keys. It is required exactly with ``keys="roster"``.
    nodes : sequence of int, optional
        The only nodes that can take part. Without a roster they are in the order of their
        slots.
    journal : Journal, optional
        Journal that keeps the run, so that it goes on if this process ends. If it holds a
        run, the server goes on with that run.

    Raises
    ------
    ConfigurationError
        If the roster is not that of the document, or the journal holds a run of other
        nodes.
    """

    def __init__(
        self,
        run: Run,
        *,
        seed: int = 0,
        roster: Roster | None = None,
        nodes: Sequence[int] | None = None,
        journal: Journal | None = None,
    ) -> None:
        if (None if roster is None else roster.digest) != run.document.roster:
            raise ConfigurationError(
                "Expected the roster that the run document names. Got another, or none."
            )
        self._roster = roster
        self._nodes = None if nodes is None else tuple(nodes)
        self._journal = journal
        kept = None if journal is None else journal.load(KeptRun)
        self.proceedings = Proceedings() if kept is None else kept.proceedings
        self._incidents = Incidents()
        self._course = Course(run.algorithm, seed)
        self._resumption = Resumption(run.document.max_colluders)
        self._begin(run)
        if kept is not None:
            self.proceedings.resumptions += 1
            self._restore(kept)

    def _begin(self, run: Run) -> None:
        """Make the phases of a run, without clients: no session is for this document yet."""
        self.run = run  # beyond 64 slots, `set_up` may give it another epoch
        self._attempt: Attempt | None = None  # the open attempt
        course = self._course
        cohort = Cohort(run, self._roster, self._nodes)
        announced = Announced(run)
        talk = Talk(
            run,
            cohort,
            announced,
            self._incidents,
            self.proceedings,
            self._resumption,
        )
        frames = Frames(run, self._roster, cohort, self.proceedings)
        group_key = GroupKey(talk)
        keeping = Keeping(self._journal, talk, frames, course, announced, group_key)
        questions = Questions(talk, frames, course, announced, group_key, keeping)
        sums = RoundSums(talk, course, announced)
        self._cohort = cohort
        self._announced = announced
        self._talk = talk
        self._frames = frames
        self._keeping = keeping
        self._set_up = SetUp(talk, frames, group_key)
        self._questions = questions
        self._answers = Answers(talk, frames, announced, group_key, questions)
        self._sums = sums
        self._votes = Votes(talk, announced, group_key, keeping, sums)
        self._finishing = Finishing(talk, frames, course, announced, keeping)

    # ------------------------------------------------------------------ proceedings

    @property
    def incidents(self) -> list[Dropped]:
        """Incidents of the run: for each node and round, the last one of each kind."""
        return self._incidents.all

    @property
    def dropped(self) -> list[Dropped]:
        """Clients that were missing in a round, each with its last incident."""
        return self._incidents.dropped

    @property
    def n_clients(self) -> int:
        """Number of clients with a slot."""
        return len(self._cohort.clients)

    @property
    def n_claims(self) -> int:
        """Number of slots that a client has claimed."""
        return len(self._cohort.claims)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client stated that it keeps a ledger. The server cannot check it."""
        clients = self._cohort.clients.values()
        return bool(clients) and all(client.public.ledger for client in clients)

    @property
    def has_enough(self) -> HasEnough:
        """Function that returns whether the present round trip has enough replies."""
        return self._talk.has_enough

    @property
    def head(self) -> int:
        """Number of the last closed round."""
        return self._course.head

    @property
    def last_sum(self) -> int:
        """Number of the last round whose sum the server saw."""
        return self._course.last_sum

    @property
    def state(self) -> State:
        """The state after the last sum that the server saw."""
        return self._course.state

    @property
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one in the sum of `state`."""
        return self._course.noise_factor

    @property
    def findings(self) -> list[Finding]:
        """Findings about sums that the server saw: values that no records explain."""
        return self._course.findings

    @property
    def delivered(self) -> set[int]:
        """Nodes that have the result."""
        return self._finishing.delivered

    # ------------------------------------------------------------------ set-up

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots, and choose the committee and the group key.

        Raises
        ------
        TooFewClientsError
            If too few clients enrolled.
        ConfigurationError
            If messages to so many clients would be too long.
        RunError
            If no client made the group key.
        """
        with self._aborting(trip):
            nodes = self._set_up.named(node_ids)
            if self._resumption.is_under_way:
                self._set_up.repeat(nodes, self._resumption, trip)
                return
            self._keeping.write()
            asked = self._set_up.enrol(sorted(nodes), trip)
            epoch = self._cohort.better_epoch()
            if epoch is not None:  # clients begin new sessions for the new document
                document = msgspec.structs.replace(self.run.document, epoch=epoch)
                self._begin(replace(self.run, document=document))
                self._keeping.write()
                self._set_up.enrol(asked, trip)
            self._set_up.complete(asked, trip)

    def join(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return enrolments for late nodes that can have a slot."""
        return self._set_up.join(node_ids)

    # ------------------------------------------------------------------ a round

    def ask(self) -> dict[int, Ask]:
        """Begin the next round, and return its first requests by node.

        A round that was open when the former process ended goes on. If its answers were
        chosen, there are no requests.
        """
        kept = self._resumption.attempt
        if kept is None:
            self._attempt = self._questions.open(1, self._questions.query())
        else:
            self._attempt = self._questions.reopen(kept)
            if self._attempt.is_chosen:
                return {}
            self._questions.make_requests(self._attempt)
        self.proceedings.round_trips += 1
        return self._attempt.requests

    def take_answers(self, replies: Replies, trip: Trip) -> None:
        """Take the replies to `ask` and close the round, with further round trips as needed.

        Raises
        ------
        TooFewClientsError
            If too few clients answered in all attempts.
        RunError
            If the round is lost, and the run cannot go on without its sum.
        """
        attempt = self._attempt
        if attempt is None:
            raise RunError("Expected `ask` before `take_answers`. Got no open attempt.")
        # Nobody may see a sum that was not kept: when the run goes on, it gets other noise.
        with self._aborting(trip), self._course.undone_by_errors():
            self._close_round(attempt, replies, trip)
            self._keeping.write_closed()
        self._attempt = None
        self._resumption.end()

    def _close_round(self, attempt: Attempt, replies: Replies, trip: Trip) -> None:
        document = self.run.document
        while True:
            with closing(attempt.store):
                if not attempt.is_chosen:
                    self._answers.gather(attempt, replies, trip)
                is_crowd = len(attempt.dealers) >= document.min_clients
                is_last = attempt.number == document.max_attempts
                is_final = is_last or attempt.is_chosen
                if is_crowd and (is_final or not self._frames.must_change(attempt)):
                    if not self._make_sum(attempt, trip):
                        self._sums.lose(attempt)
                    return
            if is_last or not (is_crowd or self._answers.may_change(attempt, trip)):
                raise self._too_few(attempt)
            attempt = self._questions.open(attempt.number + 1, attempt.query)
            replies = self._talk.send(trip, "ask", attempt.requests)

    def _make_sum(self, attempt: Attempt, trip: Trip) -> bool:
        """Make the sum of a round; return whether it exists, as far as the server sees."""
        if attempt.frame.sharing:
            return self._votes.add(attempt, trip)
        return self._sums.add(attempt)

    def _too_few(self, attempt: Attempt) -> TooFewClientsError:
        """Record the clients that did not answer the last attempt at a round; return the error."""
        document = self.run.document
        answered = {one.node_id for one in attempt.dealers}
        self._talk.drop(attempt.t, self._cohort.clients.keys() - answered)
        return TooFewClientsError(
            f"Expected at least min_clients={document.min_clients} answers to one query "
            f"in round {attempt.t} of {document.rounds}. Got {len(attempt.dealers)} of "
            f"{self.n_clients} in the last of {attempt.number} attempts."
            f"{self._incidents.reasons(attempt.t)}"
        )

    # ------------------------------------------------------------------ the end

    def finish_requests(self) -> dict[int, Finish]:
        """Return the requests with the last entries or the result, by node."""
        return self._finishing.requests()

    def take_finished(self, replies: Replies, trip: Trip) -> None:
        """Take the confirmations of the delivery, and send missing entries to their clients."""
        self._finishing.take(replies, trip)

    def abort(self, trip: Trip) -> None:
        """Tell all clients to erase their secrets, without waiting for replies."""
        request = Abort(doc_hash=self.run.doc_hash)
        claims = chain.from_iterable(self._cohort.claims.values())
        nodes = {client.node_id for client in claims} - self.delivered
        if nodes:
            requests = dict.fromkeys(sorted(nodes), request)
            deque(trip("abort", requests, lambda: True), maxlen=0)

    @contextmanager
    def _aborting(self, trip: Trip) -> Iterator[None]:
        """Tell all clients to erase their secrets if an error ends the run in the context.

        A kept run can be resumed, so its clients keep their secrets.
        """
        try:
            yield
        except KMeansError:
            if self._journal is None:
                self.abort(trip)
            raise

    # ------------------------------------------------------------------ after a restart

    def _restore(self, kept: KeptRun) -> None:
        """Restore a run from the journal of the former process."""
        has_roster = self._roster is not None
        if self._keeping.restore(kept, has_roster=has_roster):
            self._set_up.close()
            self._resumption.begin(kept.attempt)
