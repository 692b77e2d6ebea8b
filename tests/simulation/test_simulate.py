"""Whole runs: exact results, what the server sees, the noise that was really carried."""

import hashlib
import json
import math
import stat
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from harness import (
    P_VALUE,
    Outcome,
    byte_p_value,
    fits,
    noise_of_run,
    run_recorded,
    same_law_p_value,
    stock_start,
    write_roster,
)
from msgspec import structs
from scipy import optimize, stats

from flower_kmeans import Ball, Box, ClientPolicy, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.base import Statistic
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    TooFewClientsError,
)
from flower_kmeans.privacy import randomness
from flower_kmeans.protocol.exchange import CRASHED
from flower_kmeans.protocol.messages import Answer, Ask, Wrapped, decode_request
from flower_kmeans.protocol.session import DELIVERED, ContextMemory
from flower_kmeans.protocol.wire import encode, from_content
from flower_kmeans.simulation import engines
from flower_kmeans.simulation.faults import FaultyClientApp
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

BOX = Box([0.0, -5.0], [10.0, 5.0])
BLIND = ("oblivious-server", "clients-only")
SHARED = ("distributed-noise", "clients-only")
PRIVATE = (*BLIND, "distributed-noise", "trusted-server")
NOT_PRIVATE = PrivacyBudget(epsilon=None)


def blobs(n=240, seed=1, k=3, spread=0.4):
    rng = np.random.default_rng(seed)
    centres = rng.uniform([1, -4], [9, 4], (k, 2))
    return centres[rng.integers(0, k, n)] + rng.normal(0, spread, (n, 2))


def parted(records, n_clients=6):
    return np.array_split(records, n_clients)


def fast(trust="oblivious-server", k=3, n_records=240, epsilon=1.0, domain=BOX, **options):
    if trust in SHARED:
        options.setdefault("min_clients", 3)
    return FastLloyd(k, domain, PrivacyBudget(epsilon), n_records=n_records, trust=trust, **options)


# --------------------------------------------------------------------------- exact results


def centralised(strategy, records, rounds=None):
    """Run Lloyd's algorithm over pooled records, without any part of the federation."""
    domain, q = strategy.domain, strategy.algorithm.fraction_bits
    grid = domain.quantise(domain.to_unit(np.asarray(records, dtype=np.float64)), q).astype(int)
    state = strategy.algorithm.initial_state(None)
    for _ in range(rounds or strategy.n_rounds):
        centroids = state.arrays["centroids"].astype(int)
        distances = ((grid[:, None, :] - centroids[None]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        k = len(centroids)
        sums = np.array([grid[labels == j].sum(axis=0) for j in range(k)], dtype=np.int64)
        counts = np.array([(labels == j).sum() for j in range(k)], dtype=np.int64)
        answer = Statistic({"sums": sums, "counts": counts << q})
        state = strategy.algorithm.update(state, answer)
    return strategy.algorithm.centroids(state), strategy.algorithm.counts(state)


@pytest.mark.parametrize("domain", [BOX, Box([0, -5], [10, 5], scale="common"), Ball(8.0, [5, 0])])
def test_lloyd_over_clients_is_lloyd_over_the_pooled_records(domain):
    records = blobs()
    strategy = Lloyd(3, domain)
    clustering = simulate(strategy, [*parted(records), np.empty((0, 2))])
    centroids, counts = centralised(strategy, records)
    np.testing.assert_array_equal(clustering.centroids, centroids)
    np.testing.assert_array_equal(clustering.counts, counts)


# --------------------------------------------------------------------------- a blind server


def _leaks(outcome: Outcome):
    """Return the little-endian words and floats that a server must not find in its view."""
    secrets = [outcome.one.centroids, outcome.one.counts]
    run = outcome.strategy._running.run
    q = run.algorithm.fraction_bits
    unit = run.algorithm.domain.to_unit(outcome.one.centroids)
    grid = np.rint(unit * 2**q).astype(np.int64)
    found = [array.astype("<f8") for array in secrets]
    found += [grid.astype("<i8"), np.rint(outcome.one.counts * 2**q).astype("<i8")]
    return [item.tobytes() for array in found for item in array.reshape(-1) if item]


def _view(outcome: Outcome) -> bytes:
    return b"".join(item.data for item in outcome.grid.received)


def _words(outcome: Outcome) -> bytes:
    """Return all that varies with records in the server's view: the words, or sealed shares."""
    answers = [item.message for item in outcome.grid.received if isinstance(item.message, Answer)]
    return b"".join(part for answer in answers for part in (answer.words, *answer.sealed))


def _rest(outcome: Outcome) -> bytes:
    """Return the other random bytes: commitments and sealed keys.

    Public keys are left out: their bytes are not uniform, and they are drawn before any data.
    """
    messages = [item.message for item in outcome.grid.received]
    commitments = [getattr(message, "commitment", None) or b"" for message in messages]
    sealed = [m.envelopes for m in messages if isinstance(m, Answer | Wrapped)]
    return b"".join(commitments).replace(bytes(32), b"") + b"".join(map(b"".join, sealed))


def _shape(outcome: Outcome):
    """Return everything about the view that is not random: kinds, fields, sizes, small values."""

    def shape(value):
        if isinstance(value, bytes):
            return len(value)
        if isinstance(value, tuple):
            return [shape(item) for item in value]
        return value

    return [
        (item.node_id, item.kind, {k: shape(v) for k, v in structs.asdict(item.message).items()})
        for item in outcome.grid.received
    ]


DATA_A = parted(blobs(60, seed=1), 4)
DATA_B = [np.full((5, 2), 9.99), np.empty((0, 2)), np.zeros((100, 2)), np.full((1, 2), np.nan)]


def _views(trust="oblivious-server", runs=3):
    options = {"n_records": 60, "n_rounds": 3, "min_clients": 3, "k": 20}
    return [
        [run_recorded(fast(trust, **options), data) for _ in range(runs)]
        for data in (DATA_A, DATA_B)
    ]


def _distinguishable(first, second):
    """Whether a server could distinguish two data sets, or words from uniform ones."""
    a, b = (b"".join(_words(outcome) for outcome in outcomes) for outcomes in (first, second))
    p_values = [byte_p_value(a), byte_p_value(b), same_law_p_value(a, b)]
    return min(p_values) <= P_VALUE or _shape(first[0]) != _shape(second[0])


@pytest.mark.parametrize("trust", [*BLIND, "distributed-noise"])
def test_a_server_sees_uniform_words_whatever_the_data_are(trust):
    first, second = _views(trust)
    assert not _distinguishable(first, second)
    for outcomes in (first, second):
        rest = b"".join(_rest(outcome) for outcome in outcomes)
        assert (rest == b"") == (trust == "distributed-noise")
        assert not rest or byte_p_value(rest) > P_VALUE


def test_without_masks_the_same_test_distinguishes_data_sets(monkeypatch):
    monkeypatch.setattr(
        "flower_kmeans.secagg.masks.mask",
        lambda key, slot, n_slots, n_words: np.zeros(n_words, dtype=np.uint64),
    )
    monkeypatch.setattr(
        "flower_kmeans.secagg.masks.correction",
        lambda key, survivors, n_words: np.zeros(n_words, dtype=np.uint64),
    )
    first, second = _views()
    assert _distinguishable(first, second)
    words = [b"".join(_words(outcome) for outcome in outcomes) for outcomes in (first, second)]
    assert same_law_p_value(*words) <= P_VALUE
    assert min(map(byte_p_value, words)) <= P_VALUE


def test_the_sum_of_all_answers_is_uniform_too():
    """Masks that cancelled by themselves would show the sum."""
    sums = []
    for _ in range(6):
        outcome = run_recorded(fast(n_records=60, n_rounds=3, min_clients=3, k=20), DATA_A)
        sums += [entry.words for entry in outcome.strategy._running._entries]
    assert byte_p_value(b"".join(sums)) > P_VALUE


@pytest.mark.parametrize("trust", BLIND)
def test_no_centroid_or_count_is_anywhere_in_what_the_server_sees_or_keeps(trust):
    outcome = run_recorded(fast(trust, n_records=240), parted(blobs()))
    leaks = _leaks(outcome)
    assert len(leaks) >= 12
    server = outcome.strategy._running
    kept = b"".join(encode(entry) for entry in server._entries)
    assert len(kept) > 1000
    for haystack in (_view(outcome), kept):
        assert not [leak for leak in leaks if leak in haystack]
    assert server.state.round == server.n_opened == 0
    assert not len(outcome.result.arrays)
    # The search itself can find something: the same run where the server may see everything.
    outcome = run_recorded(fast("trusted-server", n_records=240), parted(blobs()))
    states = outcome.strategy._running.state.arrays["counts"].astype("<i8").tobytes()
    assert [leak for leak in _leaks(outcome) if leak in states]


# --------------------------------------------------------------------------- errors stay at home

MARKER = "MARKER-5f1c"


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_the_text_of_a_clients_exception_never_reaches_the_server(trust):
    parts = parted(blobs())
    calls = {}

    def load(context):
        place = context.node_config["partition-id"]
        calls[place] = calls.get(place, 0) + 1
        if place == 1:
            raise ValueError(f"{MARKER} {parts[place].tolist()}")
        if place == 3 and calls[place] == 1:
            raise SystemExit(MARKER)
        return parts[place]

    def on_result(result, context):
        raise RuntimeError(f"{MARKER} {result.centroids.tolist()}")

    strategy = Lloyd(3, BOX) if trust == "plain" else fast(trust, n_rounds=3, min_clients=3)
    outcome = run_recorded(strategy, parts, load=load, on_result=on_result)
    assert len(outcome.results) >= 4
    view = _view(outcome)
    assert MARKER.encode() not in view
    texts = [repr(float(x)).encode() for part in parts for x in part.reshape(-1)]
    texts += [repr(float(x)).encode() for x in outcome.one.centroids.reshape(-1)]
    assert not [text for text in texts if text in view]
    if trust in BLIND:
        values = [np.float64(x).tobytes() for part in parts for x in part.reshape(-1)]
        assert not [value for value in values if value in view]
    nodes = sorted(outcome.grid.states)
    assert {nodes[1], nodes[3]} <= {entry.node_id for entry in strategy.report.dropped}
    assert MARKER not in json.dumps(strategy.report.to_dict())


# --------------------------------------------------------------------------- carried noise


def _mu_of(epsilon, delta):
    """Solve delta(epsilon) of mu-GDP, from its definition."""

    def excess(mu):
        a, b = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b) - delta

    return optimize.brentq(excess, 1e-3, 50, xtol=1e-14)


def _delta(n_records):
    return min(1e-6, 1 / (100 * n_records))


def _fastlloyd_scales(strategy, epsilon=1.0, q=16):
    """The standard deviations on the grid, by round: sums, counts.

    How a plan shares its mu among rounds is its own choice; that it must add up, what the radius
    of each round is, and how sums and counts share a round is docs/guarantees.
    """
    algorithm, plan = strategy.algorithm, strategy.plan
    k, d = algorithm.n_clusters, algorithm.domain.n_features
    later = 0.8 * 2 * math.sqrt(d) / (2 * k ** (1 / d))
    first = math.sqrt(d) if algorithm.radius == "step" else later
    cost, scales = 0.0, []
    for t, releases in enumerate(plan.rounds, start=1):
        eta = first if t == 1 else later
        if algorithm.relocation:  # sums, and nearness with them, are in units of the radius
            eta = 1.0
        sums, counts = (release.noise_multiplier for release in releases)
        np.testing.assert_allclose(counts / sums, (4 * d) ** 0.25)
        scales.append((sums * eta * 2**q, counts * 2**q))
        cost += (eta / (sums * eta)) ** 2 + (1 / counts) ** 2
    np.testing.assert_allclose(math.sqrt(cost), _mu_of(epsilon, _delta(plan.n_records)), rtol=1e-6)
    return scales


def _glloyd_scales(d, rounds, epsilon, n_records, q=16):
    sigma, rho = 1 / _mu_of(epsilon, _delta(n_records)), 0.225
    spread = 2 * rho + math.sqrt(d)
    sums = sigma * math.sqrt(d * rounds) * math.sqrt(spread / math.sqrt(d))
    counts = sigma * math.sqrt(rounds) * math.sqrt(spread / (2 * rho))
    for _ in range(rounds):
        yield sums * 2**q, counts * 2**q


def _sulloyd_scales(d, rounds, epsilon, q=16):
    """Laplace scales of pure differential privacy."""
    count_share = (4 * d * 0.225**2) ** (1 / 3)
    per_round = epsilon / rounds
    for _ in range(rounds):
        sums = d / (per_round * d / (d + count_share))
        counts = 1 / (per_round * count_share / (d + count_share))
        yield sums * 2**q, counts * 2**q


def _standardised(noises, scales, k, factors=None):
    """Divide noise by its planned scale; return one sample for each round and each block."""
    samples = {}
    for run_number, noise in enumerate(noises):
        for t, (vector, (sums, counts)) in enumerate(zip(noise, scales, strict=True), start=1):
            factor = 1.0 if factors is None else factors[run_number][t - 1]
            samples.setdefault((t, "sums"), []).append(vector[:-k] / (sums * factor))
            samples.setdefault((t, "counts"), []).append(vector[-k:] / (counts * factor))
    return {place: np.concatenate(parts) for place, parts in samples.items()}


def _check_noise(samples, law=stats.norm):
    pooled = np.concatenate(list(samples.values()))
    for sample in (*samples.values(), pooled):
        assert fits(sample, law)
        # The test has power: it rejects noise of 2/3 and of 3/2 of the scale, in every part.
        for wrong in (2 / 3, 3 / 2):
            assert not fits(sample * wrong, law)
    # Blocks and rounds are independent: no stream is used twice.
    names = sorted(samples)
    for i, a in enumerate(names):
        for b in names[:i]:
            n = min(len(samples[a]), len(samples[b]))
            correlation = stats.pearsonr(samples[a][:n], samples[b][:n])
            assert correlation.pvalue > P_VALUE


EMPTY = [np.empty((0, 2))] * 3
K = 100


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server"])
@pytest.mark.parametrize(
    ("radius", "relocation"), [("step", True), ("step", False), ("constant", False)]
)
def test_fastlloyd_carries_the_planned_noise_in_every_round(trust, radius, relocation):
    options = {"k": K, "n_records": 5000, "n_rounds": 4, "trust": trust}
    options |= {"radius": radius, "relocation": relocation}
    noises = [noise_of_run(fast(**options), EMPTY).noise for _ in range(6)]
    scales = _fastlloyd_scales(fast(**options))
    _check_noise(_standardised(noises, scales, K))


def _column_scales(strategy, q=16):
    """What the columns and the count cost in a round, in units of the noise's scales."""
    (sums, counts), *_ = strategy.plan.rounds
    assert sums.costs == pytest.approx([0.5 / sums.noise_multiplier, *[sums.costs[-1]] * 2])
    return [(sums.noise_multiplier * 2**q, counts.noise_multiplier * 2**q)] * 3


# Of a box with one scale, noise is the same in every column, though they are not equally wide.
UNEQUAL = Box([-1.0, -1.0, -0.5], [1.0, 1.0, 0.5], scale="common")


@pytest.mark.parametrize(
    ("kind", "domain", "budget", "scales_of", "runs", "law"),
    [
        (
            GLloyd,
            BOX,
            PrivacyBudget(0.5),
            lambda _: list(_glloyd_scales(2, 3, 0.5, 5000)),
            6,
            stats.norm,
        ),
        (
            SuLloyd,
            BOX,
            PrivacyBudget(1.0, delta=0),
            lambda _: list(_sulloyd_scales(2, 3, 1.0)),
            10,
            stats.laplace,
        ),
        (SuLloyd, UNEQUAL, PrivacyBudget(1.0), _column_scales, 10, stats.laplace),
    ],
)
def test_noise_is_carried_as_planned(kind, domain, budget, scales_of, runs, law):
    strategies = [kind(K, domain, budget, n_records=5000, n_rounds=3) for _ in range(runs)]
    empty = [np.empty((0, domain.n_features))] * 3
    noises = [noise_of_run(strategy, empty).noise for strategy in strategies]
    _check_noise(_standardised(noises, scales_of(strategies[0]), K), law)


@pytest.mark.parametrize("faults", [(), (Fault(0, 2, "drop"), Fault(4, 2, "crash"))])
@pytest.mark.parametrize("trust", SHARED)
def test_shared_noise_grows_with_the_clients_that_share_it(trust, faults):
    """Shares are planned for min_clients - 1; more answers carry more noise, never less."""

    def strategy():
        return fast(trust, k=K, n_records=5000, n_rounds=2, min_clients=4, max_colluders=1)

    opened = [noise_of_run(strategy(), EMPTY * 2, faults=faults) for _ in range(6)]
    factors = [[math.sqrt(s.sum() / 3) for s in run.survivors] for run in opened]
    assert factors[0][1] == math.sqrt((6 - len(faults)) / 3)
    scales = _fastlloyd_scales(strategy())
    _check_noise(_standardised([run.noise for run in opened], scales, K, factors))


@pytest.mark.parametrize("trust", PRIVATE)
def test_the_same_public_seed_gives_different_noise(trust):
    parts = parted(blobs())
    options = {"k": K, "n_records": 1000, "n_rounds": 2, "seed": 7}
    first, second = (noise_of_run(fast(trust, **options), parts).noise for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert np.mean(a == b) < 0.05
        assert stats.pearsonr(a, b).pvalue > P_VALUE
    strategy = fast(trust, **options)
    results = [simulate(strategy, parts) for _ in range(2)]  # also of one strategy
    assert not np.array_equal(results[0].counts, results[1].counts)
    initial = [fast(trust, **options).algorithm.initial_state(None) for _ in range(2)]
    np.testing.assert_array_equal(initial[0].arrays["centroids"], initial[1].arrays["centroids"])


# --------------------------------------------------------------------------- the randomness seam


def fixed_source(monkeypatch):
    """Replace the system's randomness: one repeatable source for the server, one for clients.

    The server's differs because on Ray the clients run in other processes.
    """
    counters = {"server": 0, "client": 0}

    def source(n_bytes):
        frame, who = sys._getframe(1), "client"
        while frame is not None:
            if frame.f_code.co_filename.endswith("client.py"):
                break
            if frame.f_code.co_filename.endswith(("protocol/server.py", "_base.py")):
                who = "server"
                break
            frame = frame.f_back
        counters[who] += 1
        seed = f"{who} {counters[who]}".encode()
        return hashlib.shake_256(seed).digest(n_bytes)

    monkeypatch.setattr(randomness, "_os_random", source)


@pytest.mark.parametrize("trust", PRIVATE)
def test_the_randomness_seam_makes_runs_repeatable(trust, monkeypatch):
    views = []
    for _ in range(2):
        fixed_source(monkeypatch)
        outcome = run_recorded(fast(trust), parted(blobs()))
        views.append((_words(outcome), _rest(outcome), outcome.one))
    assert views[0][:2] == views[1][:2]
    np.testing.assert_array_equal(views[0][2].centroids, views[1][2].centroids)


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_flowers_own_start_gives_the_same_run(trust, monkeypatch):
    parts = parted(blobs())

    def make():
        fixed_source(monkeypatch)
        return Lloyd(3, BOX) if trust == "plain" else fast(trust)

    ours = run_recorded(make(), parts)
    stock = run_recorded(make(), parts, start=stock_start)
    np.testing.assert_array_equal(ours.one.centroids, stock.one.centroids)
    np.testing.assert_array_equal(ours.one.counts, stock.one.counts)
    assert _words(ours) == _words(stock)
    assert _rest(ours) == _rest(stock)
    assert set(ours.result.arrays) == set(stock.result.arrays)
    for name in ours.result.arrays:
        np.testing.assert_array_equal(
            ours.result.arrays[name].numpy(), stock.result.arrays[name].numpy()
        )
    if trust not in BLIND:
        np.testing.assert_array_equal(ours.result.arrays["centroids"].numpy(), ours.one.centroids)
    dicts = [outcome.strategy.report.to_dict() for outcome in (ours, stock)]
    for report in dicts:
        report.pop("seconds")
    assert dicts[0] == dicts[1]


# --------------------------------------------------------------------------- sessions in whole runs


@pytest.mark.parametrize("max_attempts", [2, 3])
def test_everyone_restarting_ends_in_a_clear_error_or_a_renewed_round(max_attempts):
    """All of them lack the document, then begin new sessions, then answer."""

    def clear(grid, messages):
        first = decode_request(from_content(messages[0].content))
        if isinstance(first, Ask) and first.t == 2 and not done:
            done.append(True)
            for state in grid.states.values():
                for key in list(state):
                    del state[key]

    done = []
    strategy = fast("distributed-noise", n_rounds=3, max_attempts=max_attempts)
    if max_attempts == 2:
        with pytest.raises(TooFewClientsError, match="new session"):
            run_recorded(strategy, parted(blobs()), on_push=clear)
        return
    outcome = run_recorded(strategy, parted(blobs()), on_push=clear)
    assert strategy.report.answers == [6, 6, 6]
    assert strategy.report.renewed == {2: 6}
    assert len(outcome.results) == 6


# --------------------------------------------------------------------------- late clients


class Once(FaultyClientApp):
    """Faults of the enrolment meet the first invitation only."""

    def __call__(self, message, context):
        try:
            return super().__call__(message, context)
        finally:
            self._faults.pop((int(context.node_config["partition-id"]), 0, "ask"), None)


@pytest.mark.parametrize("trust", [*PRIVATE, "plain"])
def test_a_late_client_takes_part_and_has_the_same_result(trust, tmp_path, monkeypatch):
    """Its enrolment is lost, and it is invited again."""
    monkeypatch.setattr("harness.FaultyClientApp", Once)
    roster, policies = write_roster(tmp_path, 6)
    if trust == "plain":
        strategy = Lloyd(3, BOX, n_rounds=5)
    else:
        strategy = fast(trust, n_rounds=5, keys="roster", roster_file=roster)
    faults = [Fault(4, 0, "crash")]
    outcome = run_recorded(strategy, parted(blobs()), policy=policies, faults=faults)
    report = outcome.strategy.report
    assert report.answers[0] == 5
    assert report.answers[-1] == 6
    assert report.n_clients == 6
    assert len(outcome.results) == 6
    assert outcome.one is not None  # and all agree, the late one too
    assert next((e.client, e.round) for e in report.dropped) == (-1, 0)


def test_with_relayed_keys_nobody_comes_late():
    strategy = fast(n_rounds=4)
    outcome = run_recorded(strategy, parted(blobs()), faults=[Fault(4, 0, "crash")])
    assert strategy.report.answers == [5] * 4
    assert set(outcome.results) == {0, 1, 2, 3, 5}


# --------------------------------------------------------------------------- simulate


def test_simulate_leaves_the_strategy_as_it_was():
    strategy = fast()
    seen = []
    simulate(strategy, parted(blobs()), on_round=seen.append)
    assert strategy.on_round is None
    assert strategy.n_clients is None
    assert [info.round for info in seen] == list(range(1, strategy.n_rounds + 1))
    assert {(info.n_clients, info.n_answers, info.dropped) for info in seen} == {(6, 6, 0)}
    simulate(strategy, parted(blobs(), 4))
    assert strategy.report.n_clients == 4


def policy(**changes):
    return replace(ClientPolicy.for_simulation(), **changes)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ConfigurationTypeError, "strategy", {"strategy": "FastLloyd"}),
        (ConfigurationError, "engine", {"engine": "spark"}),
        (ConfigurationTypeError, "partitions", {"partitions": np.ones((6, 5, 2))}),
        (ConfigurationTypeError, "partitions", {"partitions": 5}),
        (ConfigurationError, "partitions", {"partitions": []}),
        (
            ConfigurationError,
            "min_clients",
            {"strategy": fast(min_clients=3), "partitions": [np.ones((2, 2))] * 2},
        ),
        (DataError, r"partitions\[1\]", {"partitions": [np.ones((2, 2)), [[np.nan, 1]]] * 2}),
        (DataError, r"partitions\[0\]", {"partitions": [np.full((2, 2), np.inf)] * 3}),
        (DataError, "2 columns", {"partitions": [np.ones((2, 3))] * 3}),
        (DataError, "two-dimensional", {"partitions": [np.ones(2)] * 3}),
        (ConfigurationTypeError, "real numbers", {"partitions": [np.array([["a", "b"]])] * 3}),
        (ConfigurationTypeError, "real numbers", {"partitions": [np.array([[None, 1]])] * 3}),
        (ConfigurationTypeError, "faults", {"faults": ["drop"]}),
        (ConfigurationTypeError, "faults", {"faults": Fault(0, 1, "drop")}),
        (ConfigurationTypeError, "faults", {"faults": None}),
        (ConfigurationError, "client=6", {"faults": [Fault(6, 1, "drop")]}),
        (ConfigurationError, "round=99", {"faults": [Fault(0, 99, "drop")]}),
        (ConfigurationError, "timeout", {"timeout": 0}),
        (ConfigurationError, "timeout", {"timeout": float("nan")}),
        (ConfigurationTypeError, "timeout", {"timeout": "soon"}),
        (ConfigurationTypeError, "timeout", {"timeout": [60]}),
        (ConfigurationTypeError, "policy", {"policy": "strict"}),
        (
            ConfigurationError,
            "simulated clients share",
            {"policy": policy(roster_file="a.toml", member_key_file="a.key")},
        ),
        (ConfigurationError, "one node", {"policy": policy(state_dir="state")}),
        (ConfigurationError, "party and work_dir", {"policy": policy(party=1)}),
        (ConfigurationError, "party and work_dir", {"policy": policy(work_dir="here")}),
        (ConfigurationTypeError, "on_round", {"on_round": "print"}),
    ],
)
def test_arguments_that_cannot_be_used_are_one_sentence(error, match, arguments, monkeypatch):
    pushed = []
    monkeypatch.setattr(
        "flower_kmeans.simulation.in_process.InProcessGrid.push_messages",
        lambda self, messages: pushed.append(messages),
    )
    values = {"strategy": fast(), "partitions": parted(blobs()), **arguments}
    with pytest.raises(error, match=match) as caught:
        simulate(values.pop("strategy"), values.pop("partitions"), **values)
    assert not pushed
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_errors_never_hold_record_values():
    records = np.array([[7.654321, np.nan], [1.234567, 3.0]])
    with pytest.raises(DataError) as caught:
        simulate(fast(), [records] * 3)
    assert "7.65" not in str(caught.value)
    assert "nan" not in str(caught.value).replace("NaN", "")


def test_a_policy_that_refuses_everything_ends_quickly_and_says_why():
    with pytest.raises(TooFewClientsError, match="policy"):
        simulate(fast(), parted(blobs()), policy=ClientPolicy(max_epsilon=0.1, in_memory=True))
    with pytest.raises(TooFewClientsError, match="ledger"):
        simulate(fast(), parted(blobs()), policy=ClientPolicy())


@pytest.mark.parametrize("trust", BLIND)
def test_a_session_is_erased_from_every_memory_after_a_run(trust):
    outcome = run_recorded(fast(trust), parted(blobs()))
    run_id = outcome.strategy._running.run.doc_hash
    for state in outcome.grid.states.values():
        session = ContextMemory(state).load(run_id)
        assert session.over == DELIVERED
        assert not session.secret + session.group_secret + session.drawn_secret


# --------------------------------------------------------------------------- keys


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the directory in which temporary ones are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


FILES = {f"client-{i}.key": 0o600 for i in range(6)} | {"roster.toml": 0o644}


@pytest.mark.parametrize("trust", [*BLIND, "distributed-noise"])
def test_simulated_clients_are_given_the_keys_that_a_run_asks_for(trust, temporary):
    found = []

    def look(info):
        (directory,) = temporary.iterdir()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        found.append((stat.S_IMODE(directory.stat().st_mode), modes))

    strategy = fast(trust, keys="roster", n_rounds=2)
    clustering = simulate(strategy, parted(blobs()), on_round=look)
    report = clustering.report
    assert (report.keys, report.n_clients, report.n_slots) == ("roster", 6, 6)
    assert (report.answers, report.incidents) == ([6, 6], [])
    assert found == [(0o700, FILES)] * 2
    assert list(temporary.iterdir()) == []
    assert strategy.roster_file is None


def test_keys_are_removed_from_a_run_that_fails(temporary):
    faults = [Fault(i, 2, "crash") for i in range(6)]
    with pytest.raises(TooFewClientsError, match="round 2"):
        simulate(fast(keys="roster"), parted(blobs()), faults=faults)
    assert list(temporary.iterdir()) == []


def test_two_runs_have_other_keys(temporary):
    seen = []
    for _ in range(2):
        simulate(
            fast(keys="roster", n_rounds=2),
            parted(blobs()),
            on_round=lambda info: seen.extend(p.read_bytes() for p in temporary.glob("*/*.key")),
        )
    assert len(seen) == 2 * 2 * 6
    assert len(set(seen)) == 2 * 6


def test_a_large_roster_has_a_beacon_and_draws_its_committee():
    strategy = FastLloyd(
        3, BOX, PrivacyBudget(1.0), 2000, trust="clients-only", keys="roster", n_rounds=2,
        n_clients=70,
    )  # fmt: skip
    report = simulate(strategy, parted(blobs(2000), 70)).report
    assert report.answers == [70, 70]
    assert (report.max_colluders, report.committee.n_positions, report.n_slots) == (7, 64, 70)
    assert report.committee.epoch is not None
    assert len(report.committee.beacon) == 64


# --------------------------------------------------------------------------- Ray


@pytest.mark.ray
@pytest.mark.parametrize("trust", [*BLIND, "distributed-noise", "plain"])
def test_ray_gives_the_same_result(trust):
    """Node ids differ, and with them the noise, so there is next to none."""
    parts, found = parted(blobs(), 4), []
    for engine in ("in-process", "ray"):
        options = {"seed": 3, "n_rounds": 3}
        if trust == "plain":
            strategy = Lloyd(3, BOX, **options)
        else:
            strategy = fast(trust, epsilon=1e6, fraction_bits=20, **options)
        found.append(simulate(strategy, parts, engine=engine, timeout=120))
        assert strategy.report.answers == [4] * 3
    atol = 0 if trust == "plain" else 0.01
    np.testing.assert_allclose(found[0].centroids, found[1].centroids, rtol=0, atol=atol)
    np.testing.assert_allclose(found[0].counts, found[1].counts, rtol=0, atol=1)


@pytest.mark.ray
@pytest.mark.parametrize("trust", ["clients-only", "oblivious-server"])
def test_ray_gives_every_client_its_key(trust, monkeypatch):
    directories, make = [], engines._private_directory

    @contextmanager
    def made():
        with make() as path:
            directories.append(path)
            yield path

    monkeypatch.setattr(engines, "_private_directory", made)
    strategy = fast(trust, keys="roster", n_rounds=2, epsilon=20.0)
    faults = [Fault(1, 2, "crash")]
    clustering = simulate(strategy, parted(blobs(), 5), engine="ray", faults=faults, timeout=120)
    report = clustering.report
    assert (report.keys, report.n_clients, report.n_slots) == ("roster", 5, 5)
    assert report.answers == [5, 4]
    assert {(entry.round, entry.reason) for entry in report.incidents} == {(2, CRASHED)}
    assert len(directories) == 2  # of keys, and of records
    assert not any(path.exists() for path in directories)


@pytest.mark.parametrize("n_clients", [2, 3, 5])
def test_min_clients_follows_the_number_of_partitions_where_nothing_was_given(n_clients):
    strategy = fast(n_rounds=2)
    clustering = simulate(strategy, parted(blobs(), n_clients))
    assert clustering.report.n_clients == n_clients
    assert clustering.report.min_clients == min(3, n_clients)
    assert strategy.n_clients is None
    assert strategy.min_clients == 3


def test_one_client_has_nobody_to_hide_among():
    with pytest.raises(ConfigurationError, match="max_colluders < min_clients=1"):
        simulate(fast(n_rounds=2), parted(blobs(), 1))
    assert simulate(fast("trusted-server"), parted(blobs(), 1)).report.n_clients == 1
