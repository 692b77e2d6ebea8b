"""The answers of a round's attempts (docs/protocol.md, section 6, rules 2 and 4)."""

from collections.abc import Iterable, Mapping

from flower_kmeans.protocol.incidents import DIFFERS
from flower_kmeans.protocol.messages import Answer, Ask
from flower_kmeans.protocol.participants import Participant
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.attempt import N_REPEATS, Attempt
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.questions import Questions
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.trips import Replies, Trip
from flower_kmeans.secagg.primitives import u64


class Answers:
    """Phase that takes the replies to `ask`, and chooses the answers to add up.

    It sends `ask` again to clients that did not answer, and `keys` and `hold` through the
    `GroupKey`. It remembers nothing beyond an attempt.
    """

    def __init__(
        self,
        talk: Talk,
        frames: Frames,
        announced: Announced,
        group_key: GroupKey,
        questions: Questions,
    ) -> None:
        self._talk = talk
        self._run = talk.run
        self._cohort = talk.cohort
        self._frames = frames
        self._announced = announced
        self._group_key = group_key
        self._questions = questions

    def gather(self, attempt: Attempt, replies: Replies, trip: Trip) -> None:
        """Take the answers, and ask clients without an answer again in the same attempt.

        Complaints about the group key are served first, once per client session and round.
        """
        talk = self._talk
        least = self._run.document.min_clients
        self._collect(attempt, attempt.requests, replies)
        self._choose(attempt)
        served = self._group_key.serve(attempt, trip)
        if served:
            talk.has_enough = lambda: attempt.heard >= set(served)
            self._ask_again(attempt, served, trip)
        for _ in range(N_REPEATS):
            missing = [
                client
                for client in attempt.frame.slots.values()
                if self._is_missing(attempt, client)
            ]
            is_doubtful = self._group_key.is_doubtful(attempt)
            if attempt.is_crowd(least) or is_doubtful or not missing:
                break
            talk.proceedings.repeats += 1
            talk.has_enough = lambda: attempt.is_crowd(least)
            self._ask_again(attempt, missing, trip)
        attempt.tag = attempt.chosen
        for client in attempt.frame.slots.values():
            if client.differs:
                talk.note(client, attempt.t, DIFFERS, "differs")

    def may_change(self, attempt: Attempt, trip: Trip) -> bool:
        """Return whether another attempt would have another group key or frame."""
        if self._group_key.is_doubtful(attempt):
            return self._group_key.find(attempt, trip)
        return bool(self._frames.changed)

    def _ask_again(
        self, attempt: Attempt, clients: Iterable[Participant], trip: Trip
    ) -> None:
        requests = {
            client.node_id: self._questions.request(attempt, client)
            for client in clients
        }
        self._collect(attempt, requests, self._talk.send(trip, "ask", requests))
        self._choose(attempt)

    def _is_missing(self, attempt: Attempt, client: Participant) -> bool:
        """Return whether the same request may still bring an answer of a client."""
        is_heard = client in attempt.heard or client in attempt.complained
        is_active = self._cohort.claims[client.slot][0] is client
        return is_active and not (is_heard or client.new or client.is_banned)

    # ------------------------------------------------------------------ one answer

    def _collect(
        self, attempt: Attempt, asked: Mapping[int, Ask], replies: Replies
    ) -> None:
        """Take the answers, and the envelopes that came with them."""
        for client, reply in self._talk.take(attempt.t, asked, replies, Answer):
            request = asked.get(client.node_id)
            if request is None:
                continue
            if isinstance(reply, Answer):
                self._take_answer(attempt, client, request, reply)
            else:
                self._group_key.take_complaint(attempt, client, request, reply)

    def _take_answer(
        self, attempt: Attempt, client: Participant, request: Ask, reply: Answer
    ) -> None:
        """Keep an answer if it is complete: of the right length, with all parts."""
        if request.peers:
            self._cohort.offers.take(
                attempt.frame, client, request.peers, reply.key_id, reply.envelopes
            )
        if client.is_banned or client in attempt.heard:
            return
        if attempt.frame.sharing:
            is_complete = not reply.words and attempt.store.is_complete(reply.sealed)
        else:
            is_complete = not reply.sealed and self._is_vector(attempt, reply)
        if not is_complete:
            self._talk.take_out(client, attempt.t)
            return
        client.head = attempt.t - 1
        if attempt.tag in (b"", reply.tag):
            if attempt.frame.sharing:
                attempt.store.put(client.slot, reply.sealed)
            else:
                self._add_up(attempt, reply)
        attempt.heard.add(client)
        attempt.answers.setdefault(reply.tag, []).append(client)

    def _is_vector(self, attempt: Attempt, reply: Answer) -> bool:
        """Return whether words have the planned length and, if visible, the checksum word 1."""
        if len(reply.words) != attempt.part_bytes:
            return False
        # A wrong checksum word in the clear could not be detected in the sum.
        return self._run.trust.sum.is_protected or reply.words[-8:] == u64(1)

    def _add_up(self, attempt: Attempt, reply: Answer) -> None:
        """Add words to the sum of their tag as they arrive."""
        parts = [reply.words]
        if reply.tag in attempt.sums:
            parts.insert(0, attempt.sums[reply.tag])
        context = attempt.sum_context(self._run, self._announced.h, reply.tag)
        attempt.sums[reply.tag] = self._run.trust.sum.combine(parts, context)

    # ------------------------------------------------------------------ S

    def _choose(self, attempt: Attempt) -> None:
        """Choose the answers to add up by their tag, and mark the clients with other tags."""
        answers = attempt.answers
        tag = attempt.tag
        if not tag and answers:
            # The tag itself breaks ties, so that a repeated run chooses alike.
            tag = max(answers, key=lambda tag: (len(answers[tag]), tag))
        attempt.chosen = tag
        # Clients with another tag may have another history: their words would not add up.
        attempt.dealers = sorted(answers.get(tag, ()), key=lambda client: client.slot)
        for client in attempt.frame.slots.values():
            client.differs = client in attempt.heard and client not in attempt.dealers
        is_early = self._group_key.is_early
        needs_key = self._run.trust.is_blind and (is_early or attempt.t > 1)
        if needs_key:
            is_crowd = attempt.is_crowd(self._run.document.min_clients)
            self._cohort.offers.is_settled |= is_crowd
            for client in attempt.dealers:
                client.has_key = True
