"""The sum of a round (docs/protocol.md, section 6, "Result")."""

from collections.abc import Mapping

import numpy as np

from flower_kmeans.algorithms.answers import reconstructed
from flower_kmeans.algorithms.plausibility import findings_of
from flower_kmeans.errors import RunError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import noise
from flower_kmeans.protocol.incidents import FALSE_SHARE
from flower_kmeans.protocol.noise import CleanSum
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.attempt import Attempt
from flower_kmeans.protocol.phases.course import Course
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.secagg.base import SumError


class RoundSums:
    """Phase that closes rounds with a sum that the server sees or announces, or without one.

    It sends no messages. The `Course` has the state after a round, and `Announced` has the
    entries.
    """

    def __init__(self, talk: Talk, course: Course, announced: Announced) -> None:
        self._talk = talk
        self._run = talk.run
        self._course = course
        self._announced = announced

    def add(self, attempt: Attempt) -> bool:
        """Close a round with the sum of words, to which the server may add noise.

        Returns
        -------
        bool
            Whether the sum can be unmasked, as far as the server sees.
        """
        run = self._run
        total = attempt.sums[attempt.tag]
        # The noise is drawn once, because an entry is never replaced.
        if run.trust.noise_by == "server":
            drawn = noise.server_noise(
                run.algorithm, run.plan, attempt.t, Stream.fresh()
            )
            # The checksum word counts clients, so noise leaves it alone.
            part = run.trust.sum.encode(np.append(drawn, np.int64(0)))
            context = attempt.sum_context(run, self._announced.h, attempt.tag)
            total = run.trust.sum.combine([total, part], context)
        return self.settle(attempt, {0: total})

    def settle(self, attempt: Attempt, combined: Mapping[int, bytes]) -> bool:
        """Close a round with its sum; return false if the server sees that there is none."""
        if self._run.trust.is_blind:
            self._announced.announce(attempt, combined)
        else:
            found = self._reconstructed(attempt, combined)
            if found is None:
                return False
            self._see(attempt, found)
        self._course.head = attempt.t
        self._talk.proceedings.answers.append(len(attempt.dealers))
        answered = {client.node_id for client in attempt.dealers}
        self._talk.drop(attempt.t, self._talk.cohort.clients.keys() - answered)
        return True

    def _reconstructed(
        self, attempt: Attempt, combined: Mapping[int, bytes]
    ) -> CleanSum | None:
        """Return the sum of the dealers' vectors, or ``None`` if the parts give none."""
        dealers = attempt.dealers
        context = attempt.sum_context(self._run, self._announced.h, attempt.tag)
        try:
            found = noise.reconstruct_sum(
                self._run, attempt.t, combined, attempt.frame.bits(dealers), context
            )
        except SumError:
            return None
        # A dealer shared something else than a vector. No member can see that.
        if int(found.vector[-1]) != len(dealers):
            return None
        return found

    def _see(self, attempt: Attempt, found: CleanSum) -> None:
        """Take the state after a sum, and record false sum-shares, noise and findings."""
        course = self._course
        algorithm = self._run.algorithm
        proceedings = self._talk.proceedings
        t = attempt.t
        for position in found.liars:
            self._talk.note(attempt.frame.present[position], t, FALSE_SHARE, "liar")
        course.noise_factor = found.factor
        if self._run.document.levels:
            proceedings.noise_factors.append(found.factor)
        n_dealers = len(attempt.dealers)
        fraction = n_dealers / attempt.frame.n_slots
        words = found.vector[:-1]
        answer = reconstructed(algorithm, t, words, fraction, n_dealers, found.factor)
        course.findings += findings_of(algorithm, course.state, answer, found.factor)
        course.state = algorithm.update(course.state, answer, course.generator(t))
        course.last_sum = t

    def lose(self, attempt: Attempt) -> None:
        """Close a round without a sum, if the algorithm can go on without it.

        Raises
        ------
        RunError
            If it cannot, or the server is blind.
        """
        course = self._course
        proceedings = self._talk.proceedings
        t = attempt.t
        # Clients of a blind server would wait for the entry of the lost sum.
        if self._run.trust.is_blind or not self._run.algorithm.can_miss_sums:
            raise RunError(
                f"Expected {attempt.threshold} sum-shares for the sum of round {t}. Got "
                "fewer, and the run cannot go on without this sum."
                f"{self._talk.incidents.reasons(t)}"
            )
        course.state = course.state.without_sum()
        course.head = t
        proceedings.lost_rounds.append(t)
        proceedings.answers.append(0)
        if self._run.document.levels:
            proceedings.noise_factors.append(0.0)
