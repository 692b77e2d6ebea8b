"""Runs of the privacy audit: recorded whole runs, repetitions of noise alone, and their scores.

A recorded run is one through ``simulate``, strategy and client code, of which the adversary's view
is kept: the opened sums of all rounds, less the noise shares of the clients that collude with it.
Where the server attacks with a client, it is the first client's answers without their masks.

A repetition calls answers and noise themselves. Where clients follow the queries from the sums,
every repetition follows its own; where the server asks, it asks those of a recorded run again,
which it may (docs/threat-model.md, 18). A repetition has one noise, for both neighbours.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from audit_cells import DELTA, FloatArray, Setting
from flwr.app import Message
from numpy.typing import NDArray

from flower_kmeans import simulate, simulation
from flower_kmeans.algorithms import Query, State
from flower_kmeans.algorithms.lloyd import LloydFamily
from flower_kmeans.domain import GridRecords
from flower_kmeans.federation import coordinator, release
from flower_kmeans.federation.arrays import encode_arrays
from flower_kmeans.federation.life import Life, load_life
from flower_kmeans.federation.messages import RECORD_KEY
from flower_kmeans.federation.transcript import first_hash, next_hash, question_hash, unpack_words
from flower_kmeans.initialization import public_generator
from flower_kmeans.privacy.audit import log_likelihood_ratio
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.noise import sampler_name
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.protocol.in_process import InProcessGrid
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
        By how much the target changes the exact sums, at the queries of these runs.
    """

    residual: IntArray
    change: IntArray


Score = Callable[["Answers", Views], FloatArray]
"""A number for each run, from the cell's answers and views; large if the target is likely there."""


class Answers:
    """Exact sums of a cell, by query, and what noise they are given."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.algorithm, self.plan = setting.strategy.algorithm, setting.strategy.plan
        by_client = self.plan.budget.protects_clients
        self._target = self._grid(setting.target)
        # What is not clipped adds up record by record, so equal records need be asked once.
        parts = setting.background if by_client else [np.concatenate(setting.background)]
        self._groups = [group for part in parts for group in self._grouped(part, by_client)]
        self._own = self._grouped(setting.background[0], by_client)

    def _grid(self, records: FloatArray) -> GridRecords:
        return GridRecords(records, self.algorithm.domain, self.algorithm.fraction_bits)

    def _grouped(self, part: FloatArray, by_client: bool) -> list[tuple[int, GridRecords]]:
        if by_client:
            return [(1, self._grid(part))] if len(part) else []
        rows, times = np.unique(part, axis=0, return_counts=True)
        return [(int(many), self._grid(rows[times == many])) for many in np.unique(times)]

    def _answer(self, query: Query, records: GridRecords) -> IntArray:
        answer = self.algorithm.answer(query, records)
        return self.algorithm.flatten(answer, query.round)

    def without(self, query: Query) -> IntArray:
        """Return the exact sum without the target."""
        return self._sum(query, self._groups)

    def own_without(self, query: Query) -> IntArray:
        """Return the first client's exact answer without the target."""
        return self._sum(query, self._own)

    def _sum(self, query: Query, groups: list[tuple[int, GridRecords]]) -> IntArray:
        total = np.zeros(self.algorithm.words(query.round), dtype=np.int64)
        for many, records in groups:
            total += many * self._answer(query, records)
        return total

    def change(self, query: Query) -> IntArray:
        """Return by how much the target changes the sum."""
        return self._answer(query, self._target)

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

    def noise(self, query: Query) -> tuple[IntArray, IntArray]:
        """Draw a round's noise: what the adversary does not know of it, and what it knows."""
        if not self.setting.shared:
            noise = release.server_noise(
                self.algorithm, self.plan, query, coordinator.Stream.fresh()
            )
            return noise, np.zeros_like(noise)
        context, shares = token(32), self.setting.shares
        drawn = [
            release.noise_share(
                self.algorithm,
                self.plan,
                query,
                shares,
                Stream.from_key(masks.noise_key(token(32), context)),
            )
            for _ in range(self.setting.n_clients)
        ]
        unknown = 1 if self.setting.alone else shares
        return np.sum(drawn[:unknown], axis=0), np.sum(drawn[unknown:], axis=0)

    def noises(self, query: Query, many: int) -> tuple[IntArray, IntArray]:
        """Draw a round's noise so many times at once: (many, words) of either kind."""
        units, words = self.algorithm.units(query.round), self.algorithm.words(query.round)
        parties = self.setting.n_clients if self.setting.shared else 1
        drawn = np.zeros((parties, many, words), dtype=np.int64)
        places, shares = self.algorithm.places(query.round), self.setting.shares
        for noise in drawn:
            stream = coordinator.Stream.fresh()
            for each in self.plan.rounds[query.round - 1]:
                own = np.concatenate([places[name] for name in each.blocks])
                tiled = np.tile(units[own], many)
                if self.setting.shared:
                    found = release.draw_share(each, tiled, shares, stream)
                else:
                    found = release.draw(each, tiled, stream)
                noise[:, own] = found.reshape(many, -1)
        unknown = shares if self.setting.shared and not self.setting.alone else 1
        return drawn[:unknown].sum(axis=0), drawn[unknown:].sum(axis=0)

    # ------------------------------------------------------------------ the claim's noise

    @property
    def lost(self) -> float:
        """The claimed mu over the plan's: √M' where a client's own share is all that covers it."""
        return math.sqrt(self.setting.shares) if self.setting.alone else 1.0

    @property
    def mu(self) -> float | None:
        """The claimed mu; ``None`` where not all noise is Gaussian."""
        return None if self.plan.mu is None else self.plan.mu * self.lost

    @property
    def epsilon(self) -> float:
        """The claimed epsilon at the plan's delta."""
        if self.mu is None or not self.setting.alone:
            return self.plan.epsilon()
        return epsilon_of_mu(self.mu, DELTA)

    @cached_property
    def laws(self) -> list[tuple[str, NDArray[np.intp], FloatArray]]:
        """Samplers with their words among those of all rounds, and the scales of the noise."""
        found, start = [], 0
        for number in range(1, self.algorithm.n_rounds + 1):
            units = self.algorithm.units(number)
            places = self.algorithm.places(number)
            for each in self.plan.rounds[number - 1]:
                words = np.concatenate([places[name] for name in each.blocks])
                scale = each.noise_multiplier * units[words] / self.lost
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
        return float(np.mean((costs / planned) ** (1 / power))) / self.lost


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
        self.answers: dict[bytes, bytes] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies, and keep the first client's masked answers by their context."""
        for reply in super().pull_messages(message_ids):
            record = reply.content[RECORD_KEY] if reply.has_content() else {}
            if record.get("kind") == "round" and reply.metadata.src_node_id == min(self._contexts):
                self.answers[record["ctx"]] = record["words"]
            yield reply

    def lives(self, doc_hash: bytes) -> list[Life]:
        """Return the clients' lives in a run."""
        found = [load_life(context.state, doc_hash) for context in self._contexts.values()]
        return [life for life in found if life is not None]


def recorded(setting: Setting, present: bool) -> tuple[list[Query], Views]:
    """Run the strategy over its clients, and return the queries and the adversary's view."""
    lives: list[Life] = []

    def remember(_: Any) -> None:
        doc_hash = setting.strategy._run_state.run.document.doc_hash
        lives[:] = _RecordingGrid.last.lives(doc_hash)  # before the delivery erases them

    with mock.patch.object(simulation, "InProcessGrid", _RecordingGrid):
        simulate(setting.strategy, setting.partitions(present), on_round=remember)
    server = setting.strategy._run_state
    document, answers = server.run.document, Answers(setting)
    chain, state = first_hash(document.doc_hash), answers.start()
    queries, residuals, changes = [], [], []
    for closed in server.closed:
        entry = closed.entry
        context, words = entry.context(document.doc_hash, chain), entry.words
        if document.is_masked:  # as every client does
            key = masks.mask_key(lives[-1].group_key, context)
            words = words - masks.correction(key, entry.survivors, len(words))
        total, query = from_ring(words[:-1]), answers.algorithm.query(state)
        if setting.alone:
            place = masks.mask(key, lives[0].index, entry.m, len(words))
            sent = unpack_words(_RecordingGrid.last.answers[context]) - place
            seen = from_ring(sent[:-1]) - answers.own_without(query)
        else:
            seen = total - answers.without(query)
        if server.run.server_asks:
            asked = question_hash(encode_arrays(query.arrays))
            if asked != entry.question_hash:
                raise RuntimeError("The queries that were asked are not those of the replay.")
        known = np.zeros_like(total)
        colluding = lives[setting.shares :] if setting.shared and not setting.alone else ()
        for life in colluding:
            stream = Stream.from_key(masks.noise_key(life.secret, context))
            known += release.noise_share(
                answers.algorithm, answers.plan, query, document.shares, stream
            )
        queries.append(query)
        residuals.append(seen - known)
        changes.append(answers.change(query))
        state, chain = answers.after(state, total), next_hash(chain, context, entry)
    return queries, Views(np.concatenate(residuals)[None], np.concatenate(changes)[None])


# --------------------------------------------------------------------------- repetitions


def repeated(
    answers: Answers, queries: Sequence[Query], runs: int, at_once: bool
) -> tuple[Views, Views]:
    """Repeat answers and noise; return the views without the target, and with it.

    Parameters
    ----------
    answers : Answers
    queries : sequence of Query
        Of a recorded run; asked again where updates are not cheap.
    runs : int
    at_once : bool
        Whether the noise of all repetitions is drawn by one call for each release.
    """
    # Units depend on the round alone, so any query of the round has the same noise.
    if at_once:
        drawn = [answers.noises(query, runs) for query in queries]
    else:
        by_run = [[answers.noise(query) for query in queries] for _ in range(runs)]
        drawn = [
            (np.array([one for one, _ in each]), np.array([two for _, two in each]))
            for each in zip(*by_run, strict=True)
        ]
    if isinstance(answers.algorithm, LloydFamily):  # updates are cheap
        return _following(answers, drawn)
    noise = np.concatenate([unknown for unknown, _ in drawn], axis=1)
    change = np.concatenate([answers.change(query) for query in queries])
    return Views(noise, change), Views(noise + change, change)


def _following(answers: Answers, drawn: list[tuple[IntArray, IntArray]]) -> tuple[Views, Views]:
    noise = np.concatenate([unknown for unknown, _ in drawn], axis=1)
    residual, change = np.empty((2, *noise.shape), np.int64), np.empty((2, *noise.shape), np.int64)
    first = answers.algorithm.query(answers.start())
    exact = answers.without(first), answers.change(first)
    for i in range(len(noise)):
        for present in (0, 1):
            state, start = answers.start(), 0
            for number, (unknown, known) in enumerate(drawn, start=1):
                query = answers.algorithm.query(state)
                moved = exact[1] if number == 1 else answers.change(query)
                here = slice(start, start + len(moved))
                seen = unknown[i] + present * moved
                change[present, i, here], residual[present, i, here] = moved, seen
                if number < len(drawn):
                    without = exact[0] if number == 1 else answers.without(query)
                    state = answers.after(state, without + seen + known[i])
                start = here.stop
    return Views(residual[0], change[0]), Views(residual[1], change[1])
