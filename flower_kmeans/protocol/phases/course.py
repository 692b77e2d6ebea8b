"""The course of a run: its head, and the sums that the server saw (docs/protocol.md, section 6)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.state import State


class Course:
    """The closed rounds of a run. This phase sends no messages.

    Parameters
    ----------
    algorithm : Algorithm
        Algorithm that computes each state from the sum before.
    seed : int
        Seed for public randomness, if only the server can compute the queries.

    Attributes
    ----------
    state : State
        State after the last sum that the server saw, or the first state.
    head, last_sum : int
        Numbers of the last closed round, and of the last round whose sum the server saw.
    noise_factor : float
        Ratio of the noise's standard deviation to the planned one in the last sum.
    findings : list of Finding
        Findings about sums that the server saw: values that no records explain.
    """

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self._algorithm = algorithm
        self._seed = seed
        self.state: State = algorithm.initial_state(self.generator(0))
        self.head = 0
        self.last_sum = 0
        self.noise_factor = 1.0
        self.findings: list[Finding] = []

    def generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; ``None`` if clients could compute the step."""
        if self._algorithm.replayable:
            return None
        return public_generator(self._seed, number)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Restore the course if an error ends the context."""
        before = {**vars(self), "findings": list(self.findings)}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise
