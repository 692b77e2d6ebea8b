"""Runs of the privacy audit: recorded whole runs, repetitions of noise alone, and their scores.

A recorded run is one through ``simulate``, strategy and client code, of which the adversary's view
is kept: the opened sums of all rounds, less the noise shares of the clients that collude with it. A
repetition calls answers and noise themselves. Where clients follow the questions from the sums,
every repetition follows its own; where the server asks, it asks those of a recorded run again,
which it may (docs/threat-model.md, 18). A repetition draws its noise once, for both neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from audit_cells import COLLUDERS, N_CLIENTS, FloatArray, Setting
from numpy.typing import NDArray

from flower_kmeans import simulate, simulation
from flower_kmeans.algorithms import Question, State
from flower_kmeans.domain import GridRecords
from flower_kmeans.federation import coordinator, release
from flower_kmeans.federation.arrays import encode_arrays
from flower_kmeans.federation.in_process import InProcessGrid
from flower_kmeans.federation.life import Life, load_life
from flower_kmeans.federation.transcript import first_hash, next_hash, question_hash
from flower_kmeans.initialization import public_generator
from flower_kmeans.privacy.audit import log_likelihood_ratio
from flower_kmeans.privacy.noise import sampler_name
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.secagg import masks
from flower_kmeans.secagg.ring import from_ring

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Views:
    """What adversaries saw in some runs, of all rounds one after the other.

    Attributes
    ----------
    residual : ndarray of shape (runs, words), int64
        Every noisy sum that was seen, less the exact one without the target.
    change : ndarray of shape (runs, words) or (words,), int64
        By how much the target changes the exact sums, at the questions of these runs.
    """

    residual: IntArray
    change: IntArray


Score = Callable[["Answers", Views], FloatArray]
"""A number for each run, from the cell's answers and views; large if the target is likely there."""


class Answers:
    """Exact sums of a cell, by question, and what noise they are given."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.algorithm, self.plan = setting.strategy.algorithm, setting.strategy.plan
        by_client = self.plan.budget.protects_clients
        self._target = self._grid(setting.target)
        # What is not clipped adds up record by record, so equal records need be asked once.
        parts = setting.background if by_client else [np.concatenate(setting.background)]
        self._groups: list[tuple[int, GridRecords]] = []
        for part in parts:
            if by_client:
                self._groups.append((1, self._grid(part)))
                continue
            rows, times = np.unique(part, axis=0, return_counts=True)
            for many in np.unique(times):
                self._groups.append((int(many), self._grid(rows[times == many])))

    def _grid(self, records: FloatArray) -> GridRecords:
        return GridRecords(records, self.algorithm.domain, self.algorithm.fraction_bits)

    def _answer(self, question: Question, records: GridRecords) -> IntArray:
        answer = self.algorithm.answer(question, records)
        return self.algorithm.flatten(answer, question.round)

    def without(self, question: Question) -> IntArray:
        """Return the exact sum without the target."""
        total = np.zeros(self.algorithm.words(question.round), dtype=np.int64)
        for many, records in self._groups:
            total += many * self._answer(question, records)
        return total

    def change(self, question: Question) -> IntArray:
        """Return by how much the target changes the sum."""
        return self._answer(question, self._target)

    def start(self) -> State:
        """Return the state before round 1."""
        return self.algorithm.initial_state(self._generator(0))

    def after(self, state: State, total: IntArray) -> State:
        """Return the state after a round's noisy sum."""
        number = state.round + 1
        answer = self.algorithm.unflatten(total, number)
        return self.algorithm.update(state, answer, self._generator(number))

    def _generator(self, number: int) -> np.random.Generator | None:
        replayable = self.algorithm.replayable
        return None if replayable else public_generator(self.setting.strategy.seed, number)

    def noise(self, question: Question) -> tuple[IntArray, IntArray]:
        """Draw a round's noise: what the adversary does not know of it, and what it knows."""
        if not self.setting.shared:
            noise = release.server_noise(
                self.algorithm, self.plan, question, coordinator.Stream.fresh()
            )
            return noise, np.zeros_like(noise)
        context, shares = token(32), N_CLIENTS - COLLUDERS
        drawn = [
            release.noise_share(
                self.algorithm,
                self.plan,
                question,
                shares,
                Stream.from_key(masks.noise_key(token(32), context)),
            )
            for _ in range(N_CLIENTS)
        ]
        return np.sum(drawn[:shares], axis=0), np.sum(drawn[shares:], axis=0)

    # ------------------------------------------------------------------ the claim's noise

    @cached_property
    def laws(self) -> list[tuple[str, NDArray[np.intp], FloatArray]]:
        """Samplers with their words among those of all rounds, and the scales of the noise."""
        found, start = [], 0
        for number in range(1, self.algorithm.n_rounds + 1):
            units = self.algorithm.fixed_units(number)
            if units is None:
                raise ValueError("Expected an algorithm whose units depend on the round alone.")
            places = self.algorithm.places(number)
            for each in self.plan.rounds[number - 1]:
                words = np.concatenate([places[name] for name in each.blocks])
                scale = each.noise_multiplier * units[words]
                found.append((sampler_name(each, self.setting.shared), start + words, scale))
            start += self.algorithm.words(number)
        return found

    def attained(self, views: Views) -> float:
        """Return the part of the plan's cost that the neighbours' answers attain, 1 at most.

        Of mu, or of the sum of all costs where not all noise is Gaussian.
        """
        changes = np.atleast_2d(views.change)
        costs, power = 0.0, 1 if self.plan.mu is None else 2
        for sampler, words, scale in self.laws:
            order = 1 if sampler.startswith("rounded-laplace") else 2
            costs = costs + np.linalg.norm(changes[:, words] / scale, order, axis=1) ** power
        planned = sum(each.cost**power for each in self.plan.releases)
        return float(np.mean((costs / planned) ** (1 / power)))


def log_likelihood(answers: Answers, views: Views) -> FloatArray:
    """Return the exact log-likelihood ratio of every view under the claimed noise, (runs,)."""
    total = np.zeros(len(views.residual))
    for sampler, words, scale in answers.laws:
        total += log_likelihood_ratio(
            sampler, views.residual[:, words], views.change[..., words], scale
        )
    return total


# --------------------------------------------------------------------------- whole runs


class _RecordingGrid(InProcessGrid):
    """A grid that shows what its nodes remember."""

    last: "_RecordingGrid"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _RecordingGrid.last = self

    def lives(self, doc_hash: bytes) -> list[Life]:
        """Return the clients' lives in a run."""
        found = [load_life(context.state, doc_hash) for context in self._contexts.values()]
        return [life for life in found if life is not None]


def recorded(setting: Setting, present: bool) -> tuple[list[Question], Views]:
    """Run the strategy over its clients, and return the questions and the adversary's view."""
    lives: list[Life] = []

    def remember(_: Any) -> None:
        doc_hash = setting.strategy._run_state.run.document.doc_hash
        lives[:] = _RecordingGrid.last.lives(doc_hash)  # before the delivery erases them

    with mock.patch.object(simulation, "InProcessGrid", _RecordingGrid):
        simulate(setting.strategy, setting.partitions(present), on_round=remember)
    server = setting.strategy._run_state
    document, answers = server.run.document, Answers(setting)
    chain, state = first_hash(document.doc_hash), answers.start()
    questions, residuals, changes = [], [], []
    for closed in server.closed:
        entry = closed.entry
        context, words = entry.context(document.doc_hash, chain), entry.words
        if document.is_masked:  # as every client does
            key = masks.mask_key(lives[-1].group_key, context)
            words = words - masks.correction(key, entry.survivors, len(words))
        total, question = from_ring(words[:-1]), answers.algorithm.question(state)
        if not answers.algorithm.replayable:
            asked = question_hash(encode_arrays(question.arrays))
            if asked != entry.question_hash:
                raise RuntimeError("The questions that were asked are not those of the replay.")
        known = np.zeros_like(total)
        for life in lives[N_CLIENTS - COLLUDERS :] if setting.shared else ():
            stream = Stream.from_key(masks.noise_key(life.secret, context))
            known += release.noise_share(
                answers.algorithm, answers.plan, question, document.shares, stream
            )
        questions.append(question)
        residuals.append(total - known - answers.without(question))
        changes.append(answers.change(question))
        state, chain = answers.after(state, total), next_hash(chain, context, entry)
    return questions, Views(np.concatenate(residuals)[None], np.concatenate(changes)[None])


# --------------------------------------------------------------------------- repetitions


def repeated(
    answers: Answers, questions: Sequence[Question], runs: int, tick: Callable[[], None]
) -> tuple[Views, Views]:
    """Repeat answers and noise; return the views without the target, and with it.

    Parameters
    ----------
    answers : Answers
    questions : sequence of Question
        Of a recorded run; asked again unless clients follow them from the sums.
    runs : int
    tick : callable
        Called after each repetition.
    """
    repeat = _following if answers.algorithm.replayable else _asking
    return repeat(answers, questions, runs, tick)


def _asking(
    answers: Answers, questions: Sequence[Question], runs: int, tick: Callable[[], None]
) -> tuple[Views, Views]:
    change = np.concatenate([answers.change(question) for question in questions])
    noise = np.empty((runs, len(change)), dtype=np.int64)
    for i in range(runs):
        noise[i] = np.concatenate([answers.noise(question)[0] for question in questions])
        tick()
    return Views(noise, change), Views(noise + change, change)


def _following(
    answers: Answers, questions: Sequence[Question], runs: int, tick: Callable[[], None]
) -> tuple[Views, Views]:
    words = sum(answers.algorithm.words(question.round) for question in questions)
    residual = np.empty((2, runs, words), dtype=np.int64)
    change = np.empty((2, runs, words), dtype=np.int64)
    for i in range(runs):
        # Units depend on the round alone, so any question of the round has the same noise.
        drawn = [answers.noise(question) for question in questions]
        for present in (0, 1):
            state, start = answers.start(), 0
            for unknown, known in drawn:
                question = answers.algorithm.question(state)
                here = slice(start, start + len(unknown))
                change[present, i, here] = moved = answers.change(question)
                residual[present, i, here] = unknown + present * moved
                if question.round < len(drawn):
                    total = answers.without(question) + residual[present, i, here] + known
                    state = answers.after(state, total)
                start = here.stop
        tick()
    return Views(residual[0], change[0]), Views(residual[1], change[1])
