"""Runs of the privacy audit: recorded whole runs, repetitions of noise alone, and their scores.

A recorded run goes through ``simulate``, strategy and client code, and keeps the
adversary's view. That is the reconstructed sums of all rounds, minus the noise shares
of the clients that collude with the adversary. Or it is the first client's answers, as
far as the adversary can reconstruct them from the shares that it holds.

A repetition calls only the functions for answers and noise, and splits answers into
shares if the adversary sees these. If updates are cheap, every repetition has its own
queries. Otherwise it repeats the queries of a recorded run, which a server may do. Both
neighbours have the same noise.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from audit_bounds import log_likelihood_ratio
from audit_cells import DELTA, Setting
from numpy.typing import NDArray

from flower_kmeans import simulate
from flower_kmeans.algorithms import Query, State, tightened
from flower_kmeans.algorithms.answers import answer_of, reconstructed
from flower_kmeans.algorithms.lloyd import LloydFamily
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.sources import as_source, weighed
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.noise import sampler_name
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.protocol import ask, states
from flower_kmeans.protocol import noise as round_noise
from flower_kmeans.protocol.messages import Ask, split
from flower_kmeans.protocol.phases import sums as round_sums
from flower_kmeans.protocol.records import weighing_of
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import Sharing, SumContext, secure_sum


@dataclass(frozen=True)
class Views:
    """The adversary's views of several runs, with all rounds in one row.

    ``residual``, (runs, words), is every noisy sum that it saw, minus the exact sum
    without the target. ``change``, (runs, words) or (words,), is the target's change of
    the exact sums, for the queries of these runs.
    """

    residual: IntArray
    change: IntArray


Score = Callable[["Answers", Views], FloatArray]
"""A number for each run, from the cell's answers and views; large if the target is likely there."""


class Answers:
    """Exact sums of a cell by query, and their noise."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.algorithm, self.plan = setting.strategy.algorithm, setting.strategy.plan
        # One assignment covers all slots of a client. What is neither assigned so nor
        # clipped adds up record by record, so equal records need be asked once.
        inner = tightened.innermost(self.algorithm)
        self.assigns_all = inner.needs_all_records
        by_client = self.plan.budget.protects_clients or self.assigns_all
        self._target = self._weighed(setting.target)
        parts = (
            setting.background if by_client else [np.concatenate(setting.background)]
        )
        self._groups = [
            group for part in parts for group in self._grouped(part, by_client)
        ]
        self._own = self._grouped(setting.background[0], by_client)

    def _grouped(
        self, part: FloatArray, by_client: bool
    ) -> list[tuple[int, FloatArray]]:
        """Return rows by how often each of them counts."""
        if by_client:
            return [(1, part)] if len(part) else []
        weight = self.algorithm.full_weight or 1  # each record is one person
        rows, times = np.unique(part, axis=0, return_counts=True)
        return [(weight * int(many), rows[times == many]) for many in np.unique(times)]

    def _weighed(self, target: FloatArray) -> list[tuple[int, FloatArray]]:
        """Return the target's records by their weights, which a client gives to one person's."""
        weighing = weighing_of(self.algorithm)
        if weighing is None:
            return [(1, target)]
        source = as_source(target, target.shape[1])
        ids = ["target"] * len(target)
        rows = weighed(source, weighing, ids, None, token(32)).source.loaded()
        return [
            (int(weight), rows[rows[:, -1] == weight, :-1])
            for weight in np.unique(rows[:, -1])
        ]

    def _answer(self, query: Query, rows: FloatArray) -> IntArray:
        # The grid is that of the query's ranges, if the run finds ranges.
        records = tightened.records_of(self.algorithm, query, rows)
        answer = answer_of(self.algorithm, query, records)
        return self.algorithm.layout(query.round).flatten(answer)

    def without(self, query: Query, *, own: bool = False) -> IntArray:
        """Return the exact sum without the target, or the first client's own part of it."""
        total = np.zeros(self.algorithm.layout(query.round).n_words, dtype=np.int64)
        for many, rows in self._own if own else self._groups:
            total += many * self._answer(query, rows)
        return total

    def change(self, query: Query) -> IntArray:
        """Return the target's change of the sum."""
        if self.assigns_all:
            first, *_ = self.setting.partitions(present=True)
            return self._answer(query, first) - self.without(query, own=True)
        total = np.zeros(self.algorithm.layout(query.round).n_words, dtype=np.int64)
        for weight, rows in self._target:
            total += weight * self._answer(query, rows)
        return total

    def start(self) -> State:
        """Return the state before round 1."""
        return self.algorithm.initial_state(self._generator(0))

    def after(self, state: State, total: IntArray) -> State:
        """Return the state after a round's noisy sum."""
        answer = reconstructed(self.algorithm, state.round + 1, total)
        return self.algorithm.update(state, answer, self._generator(state.round + 1))

    def _generator(self, number: int) -> np.random.Generator | None:
        seed = self.setting.strategy.seed
        return None if self.algorithm.replayable else public_generator(seed, number)

    def noise(self, query: Query) -> tuple[IntArray, IntArray]:
        """Draw a round's noise: the part unknown to the adversary, and the known part."""
        of_round = self.algorithm, self.plan, query.round
        if not self.setting.shared:
            drawn = round_noise.server_noise(*of_round, round_sums.Stream.fresh())
            return drawn, np.zeros_like(drawn)
        context, shares = token(32), self.setting.shares
        keys = [
            round_noise.noise_key(token(32), context)
            for _ in range(self.setting.n_clients)
        ]
        drawn = [
            round_noise.noise_share(*of_round, shares, Stream.from_key(key))
            for key in keys
        ]
        unknown = 1 if self.setting.alone else shares
        return np.sum(drawn[:unknown], axis=0), np.sum(drawn[unknown:], axis=0)

    def noises(self, query: Query, many: int) -> tuple[IntArray, IntArray]:
        """Draw a round's noise ``many`` times at once: (many, words) of each part."""
        units, words = (
            sensitivities(self.algorithm, query.round),
            self.algorithm.layout(query.round).n_words,
        )
        parties = self.setting.n_clients if self.setting.shared else 1
        drawn = np.zeros((parties, many, words), dtype=np.int64)
        places, shares = self.algorithm.layout(query.round).places, self.setting.shares
        for each_drawn in drawn:
            stream = round_sums.Stream.fresh()
            for each in self.plan.rounds[query.round - 1]:
                own = np.concatenate([places[name] for name in each.blocks])
                tiled = np.tile(units[own], many)
                if self.setting.shared:
                    found = round_noise.draw_share(each, tiled, shares, stream)
                else:
                    found = round_noise.draw(each, tiled, stream)
                each_drawn[:, own] = found.reshape(many, -1)
        unknown = shares if self.setting.shared and not self.setting.alone else 1
        return drawn[:unknown].sum(axis=0), drawn[unknown:].sum(axis=0)

    # ---------------------------------------------------------------- the claim's noise

    @property
    def lost(self) -> float:
        """The claimed mu over the plan's: √M' where a client's own share is all that covers it."""
        return math.sqrt(self.setting.shares) if self.setting.alone else 1.0

    @property
    def mu(self) -> float | None:
        """The claimed mu; ``None`` where not all noise is Gaussian, 0 where nothing may be seen."""
        if self.setting.view == "below":
            return 0.0
        return None if self.plan.mu is None else self.plan.mu * self.lost

    @property
    def epsilon(self) -> float:
        """The claimed epsilon at the plan's delta; 0 where nothing may be seen."""
        if self.setting.view == "below":
            return 0.0
        if self.mu is None or not self.setting.alone:
            return self.plan.epsilon()
        return epsilon_of_mu(self.mu, DELTA)

    @cached_property
    def laws(self) -> list[tuple[str, NDArray[np.intp], FloatArray]]:
        """Samplers with their words among those of all rounds, and the scales of the noise."""
        found, start = [], 0
        for number in range(1, self.algorithm.n_rounds + 1):
            units = sensitivities(self.algorithm, number)
            places = self.algorithm.layout(number).places
            for each in self.plan.rounds[number - 1]:
                words = np.concatenate([places[name] for name in each.blocks])
                scale = each.noise_multiplier * units[words] / self.lost
                found.append(
                    (sampler_name(each, self.setting.shared), start + words, scale)
                )
            start += self.algorithm.layout(number).n_words
        return found

    def attained(self, views: Views) -> float:
        """Return the part of the plan's cost that the neighbours' answers attain, 1 at most.

        Of mu, or of the sum of all costs where not all noise is Gaussian.
        """
        changes = np.atleast_2d(views.change)
        costs, power = 0.0, 1 if self.plan.mu is None else 2
        for sampler, words, scale in self.laws:
            order = 1 if sampler.startswith("rounded-laplace") else 2
            costs = (
                costs
                + np.linalg.norm(changes[:, words] / scale, order, axis=1) ** power
            )
        planned = sum(each.cost**power for each in self.plan.releases)
        return float(np.mean((costs / planned) ** (1 / power))) / self.lost


def log_likelihood(answers: Answers, views: Views) -> FloatArray:
    """Return the exact log-likelihood ratio of every view under the claimed noise, (runs,)."""
    parts = [
        log_likelihood_ratio(
            sampler, views.residual[:, words], views.change[..., words], scale
        )
        for sampler, words, scale in answers.laws
    ]
    return np.asarray(sum(parts))


KNOWN_KEY = bytes(64)
"""The key that everybody knows: no share may be sealed under it."""
_SECRETS = [bytes([i + 1]) * 32 for i in range(8)]
_PUBLIC = [primitives.public_key(secret) for secret in _SECRETS]


def held_by(setting: Setting) -> tuple[int, ...]:
    """Return whose shares of the first client's answers are pooled: the last members'.

    tau of them below the threshold, by the formula of docs/protocol.md, section 3; else
    all.
    """
    m, f = setting.n_clients, int(setting.strategy.max_colluders)
    tau = f + 2 * (m - f) // 3
    return tuple(range(m))[-tau:] if setting.view == "below" else tuple(range(m))


def guessed(
    sums: SumContext, held: Mapping[int, bytes], sealed: Mapping[int, bytes]
) -> IntArray:
    """Return the adversary's guess from shares that it holds and from sealed shares.

    It tries the key that everybody knows. With too few shares to reconstruct a sum, it
    assumes polynomials of a lower degree.
    """
    shares = dict(held)
    for position, data in sealed.items():
        try:
            shares[position] = primitives.unseal(KNOWN_KEY, data, sums.digest)
        except MessageError:
            continue
    sharing = sums.sharing
    if sharing is not None and len(shares) < sharing.threshold:
        n_positions, n_corrupt, packing = (
            sharing.n_positions,
            sharing.n_corrupt,
            sharing.packing,
        )
        fewer = Sharing(n_positions, n_corrupt, len(shares) - packing, packing)
        sums = replace(sums, sharing=fewer)
    alone = np.zeros(sums.n_slots, dtype=np.bool_)
    alone[0] = True
    vector: IntArray = secure_sum("shares").reconstruct(shares, alone, sums).vector
    return vector[:-1]


def dealt(setting: Setting, words: IntArray) -> IntArray:
    """Return the adversary's guess of one vector of the first client, (words,)."""
    m, f = setting.n_clients, int(setting.strategy.max_colluders)
    kind, held = setting.strategy.trust_model.sum, held_by(setting)
    sums = SumContext(token(32), len(words) + 1, m, sharing=kind.set_up(m, f, m))
    parts = kind.protect(np.append(words, np.int64(1)), sums, 0, token(32))
    sealed = {}
    for position in set(range(m)) - set(held):
        shared = primitives.pair_secret(_SECRETS[0], _PUBLIC[position])
        keys = _PUBLIC[0], _PUBLIC[position]
        key = primitives.share_key(shared, sums.digest, 0, position, *keys)
        sealed[position] = primitives.seal(key, parts[position], sums.digest)
    return guessed(sums, {position: parts[position] for position in held}, sealed)


def in_shares(answers: Answers, views: Views) -> Views:
    """Return views of the first client's answers as the adversary has them, in shares.

    All repetitions of a round are dealt as one vector: each block has separate
    polynomials.
    """
    rounds = range(1, answers.algorithm.n_rounds + 1)
    ends = np.cumsum([answers.algorithm.layout(number).n_words for number in rounds])[
        :-1
    ]
    seen = [
        dealt(answers.setting, words.ravel()).reshape(words.shape)
        for words in np.split(views.residual, ends, axis=1)
    ]
    return Views(np.concatenate(seen, axis=1), views.change)


@dataclass
class _Record:
    """The recorded data of a whole run, by round."""

    setting: Setting
    sums: dict[int, IntArray] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)  # before these
    noise: dict[tuple[int, int], IntArray] = field(default_factory=dict)  # by slot, too
    # What the adversary makes of the first client's shares.
    guesses: dict[int, IntArray] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the arguments and results of functions of clients and server."""
        kind = type(self.setting.strategy.algorithm)
        update = kind.update
        protected = ask._protected
        protect = round_noise.protect
        client_noise = round_noise.client_noise
        last: dict[str, Any] = {}

        def updating(own: Any, state: State, answer: Any, *more: Any) -> State:
            self.states.setdefault(state.round + 1, state)
            return update(own, state, answer, *more)

        def reconstructing(
            algorithm: Any, number: int, words: IntArray, *more: Any
        ) -> Any:
            self.sums.setdefault(number, words.copy())
            return reconstructed(algorithm, number, words, *more)

        def noising(*given: Any) -> IntArray:
            last["noise"] = client_noise(*given)
            return last["noise"]

        def protecting(
            run: Any, vector: Any, sums: SumContext, *more: Any
        ) -> tuple[bytes, ...]:
            last["parts"], last["sums"] = protect(run, vector, sums, *more), sums
            return last["parts"]

        def sealing(own: Any, request: Ask, *more: Any) -> bytes:
            sealed: bytes = protected(own, request, *more)
            if "noise" in last:
                self.noise[request.t, request.slot] = last["noise"]
            if self.setting.alone and request.slot == 0:
                held = held_by(self.setting)
                own_shares = {position: last["parts"][position] for position in held}
                # All positions are present, and their shares have one length.
                size = len(sealed) // len(last["parts"])
                shares = split(sealed, size)
                others = {j: part for j, part in enumerate(shares) if j not in held}
                self.guesses[request.t] = guessed(last["sums"], own_shares, others)
            return sealed

        with ExitStack() as stack:
            for target, name, replacement in (
                (kind, "update", updating),
                (round_sums, "reconstructed", reconstructing),
                (states, "reconstructed", reconstructing),
                (round_noise, "client_noise", noising),
                (round_noise, "protect", protecting),
                (ask, "_protected", sealing),
            ):
                stack.enter_context(mock.patch.object(target, name, replacement))
            yield


def recorded(
    setting: Setting, present: bool, *, replay: bool = True
) -> tuple[list[Query], Views]:
    """Run the strategy over its clients, and return the queries and the adversary's view.

    The states of the run are computed again from the sums, and must be the same.
    ``replay=False`` takes those of the run, which saves the time.
    """
    record, answers = _Record(setting), Answers(setting)
    with record.recording():
        partitions = setting.partitions(present)
        simulate(setting.strategy, partitions, persons=setting.persons(present))
    state, queries, residuals, changes = answers.start(), [], [], []
    for number in range(1, answers.algorithm.n_rounds + 1):
        own = record.states[number]
        for name, array in own.arrays.items():
            if replay and not np.array_equal(array, state.arrays[name]):
                raise RuntimeError("The states of the run are not those of the replay.")
        state = own
        total, query = record.sums[number], answers.algorithm.query(state)
        if setting.alone:
            seen = record.guesses[number] - answers.without(query, own=True)
        else:
            seen = total - answers.without(query)
            if setting.shared:  # the last clients collude
                for slot in range(setting.shares, setting.n_clients):
                    seen = seen - record.noise[number, slot]
        queries.append(query)
        residuals.append(seen)
        changes.append(answers.change(query))
        if replay and number < answers.algorithm.n_rounds:
            state = answers.after(state, total)
    return queries, Views(
        np.concatenate(residuals)[None], np.concatenate(changes)[None]
    )


def repeated(
    answers: Answers, queries: Sequence[Query], runs: int, at_once: bool
) -> tuple[Views, Views]:
    """Repeat answers and noise; return the views without the target, and with it.

    ``queries`` of a recorded run are asked again where updates are not cheap.
    ``at_once`` draws the noise of all repetitions by one call for each release.
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
    inner = tightened.innermost(answers.algorithm)
    # Updates are cheap, but not the assignment of all slots of a client.
    if isinstance(inner, LloydFamily) and not answers.assigns_all:
        views = _following(answers, drawn)
    else:
        unknown = np.concatenate([each for each, _ in drawn], axis=1)
        change = np.concatenate([answers.change(query) for query in queries])
        views = Views(unknown, change), Views(unknown + change, change)
    if answers.setting.alone:
        return in_shares(answers, views[0]), in_shares(answers, views[1])
    return views


def _following(
    answers: Answers, drawn: list[tuple[IntArray, IntArray]]
) -> tuple[Views, Views]:
    noise = np.concatenate([unknown for unknown, _ in drawn], axis=1)
    residual, change = (
        np.empty((2, *noise.shape), np.int64),
        np.empty((2, *noise.shape), np.int64),
    )
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
