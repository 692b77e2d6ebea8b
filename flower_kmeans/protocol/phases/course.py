"""The course of a run: its head, and the sums that the server saw (docs/protocol.md, section 6)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.state import State


class Course:
    """The rounds that are closed. No message is sent here.

    Parameters
    ----------
    algorithm : Algorithm
        What computes each state from the sum before.
    seed : int
        Public randomness of an algorithm whose queries only the server can compute.

    Attributes
    ----------
    state : State
        After the last sum that the server saw, or the first one.
    head, n_opened : int
        The last closed round, and the last one whose sum the server saw.
    noise_factor : float
        Of the last sum: the deviation of its noise over the planned one.
    findings : list of Finding
        What no records explain in sums that the server saw.
    """

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self._algorithm = algorithm
        self._seed = seed
        self.state: State = algorithm.initial_state(self.generator(0))
        self.head = 0
        self.n_opened = 0
        self.noise_factor = 1.0
        self.findings: list[Finding] = []

    def generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; none where clients could take the same step."""
        if self._algorithm.replayable:
            return None
        return public_generator(self._seed, number)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Restore the course if the block inside ends by an error."""
        before = {**vars(self), "findings": list(self.findings)}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise
