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
from flwr.app import ArrayRecord
from harness import (
    P_VALUE,
    Outcome,
    byte_p_value,
    fits,
    key_file,
    noise_of_run,
    run_recorded,
    same_law_p_value,
    stock_start,
)
from scipy import optimize, stats

from flower_kmeans import Ball, Box, ClientPolicy, Fault, PrivacyBudget, simulate, simulation
from flower_kmeans.algorithms.base import Statistic
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.federation.coordinator import CRASHED
from flower_kmeans.federation.enrolment import NO_ANSWER, TWICE
from flower_kmeans.federation.life import load_life
from flower_kmeans.privacy import randomness
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

BOX = Box([0.0, -5.0], [10.0, 5.0])
NOT_PRIVATE = PrivacyBudget(epsilon=None)


def blobs(n=240, seed=1, k=3, spread=0.4):
    rng = np.random.default_rng(seed)
    centres = rng.uniform([1, -4], [9, 4], (k, 2))
    return centres[rng.integers(0, k, n)] + rng.normal(0, spread, (n, 2))


def parted(records, n_clients=6):
    return np.array_split(records, n_clients)


def fast(trust="oblivious-server", k=3, n_records=240, epsilon=1.0, domain=BOX, **options):
    if trust == "distributed-noise":
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


def test_lloyds_centroids_are_the_means_of_their_records():
    records = blobs(spread=0.05)
    clustering = simulate(Lloyd(3, BOX, n_rounds=20), parted(records))
    labels = clustering.predict(records)
    np.testing.assert_array_equal(clustering.counts, np.bincount(labels, minlength=3))
    used = np.flatnonzero(clustering.counts)
    means = [records[labels == j].mean(axis=0) for j in used]
    assert len(means) >= 2
    np.testing.assert_allclose(clustering.centroids[used], means, atol=10 * 2.0**-15)


def test_the_split_into_clients_does_not_matter():
    records = blobs()
    results = [
        simulate(Lloyd(4, BOX), parted(records[order], n))
        for n, order in ((1, slice(None)), (5, slice(None, None, -1)), (60, slice(None)))
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result.centroids, results[0].centroids)


def test_with_faults_the_result_is_that_of_the_survivors_alone():
    parts = parted(blobs(), 6)
    strategy = Lloyd(3, BOX, n_rounds=4)
    faults = [
        Fault(4, t, kind)
        for t, kind in zip(range(1, 5), ("crash", "drop", "late", "shape"), strict=True)
    ]
    faults += [Fault(1, 0, "crash")]
    clustering = simulate(strategy, parts, faults=faults)
    alone = np.concatenate([parts[i] for i in (0, 2, 3, 5)])
    centroids, counts = centralised(strategy, alone)
    np.testing.assert_array_equal(clustering.centroids, centroids)
    np.testing.assert_array_equal(clustering.counts, counts)


def test_private_runs_find_the_clusters_of_an_easy_problem():
    """Noise is small here: the result must be near the exact one, not just anything."""
    records = blobs(20_000, spread=0.2)
    for strategy in (
        fast(n_records=20_000, epsilon=20.0),
        fast("trusted-server", n_records=20_000, epsilon=20.0),
        fast("distributed-noise", n_records=20_000, epsilon=20.0),
        GLloyd(3, BOX, PrivacyBudget(20.0), n_records=20_000),
        SuLloyd(3, BOX, PrivacyBudget(20.0, delta=0), n_records=20_000),
    ):
        clustering = simulate(strategy, parted(records))
        exact = simulate(Lloyd(3, BOX, n_rounds=strategy.n_rounds), parted(records))
        assert clustering.inertia(records) < 1.3 * exact.inertia(records)


# --------------------------------------------------------------------------- the oblivious server


def _leaks(outcome: Outcome):
    """Return the little-endian words and floats that a server must not find in its view."""
    secrets = [outcome.one.centroids, outcome.one.counts]
    run = outcome.strategy._run_state.run
    q = run.algorithm.fraction_bits
    unit = run.algorithm.domain.to_unit(outcome.one.centroids)
    grid = np.rint(unit * 2**q).astype(np.int64)
    found = [array.astype("<f8") for array in secrets]
    found += [grid.astype("<i8"), np.rint(outcome.one.counts * 2**q).astype("<i8")]
    return [item.tobytes() for array in found for item in array.reshape(-1) if item]


def _view(outcome: Outcome) -> bytes:
    return b"".join(item.data for item in outcome.grid.received)


def _words(outcome: Outcome) -> bytes:
    """Return all that varies with masks in the server's view: the words of round replies."""
    return b"".join(item.fields["words"] for item in outcome.grid.received if item.kind == "round")


def _rest(outcome: Outcome) -> bytes:
    """Return the other random bytes: commitments and sealed keys.

    Public keys are left out: their bytes are not uniform, and they are drawn before any data.
    """
    commitments = (item.fields.get("commitment", b"") for item in outcome.grid.received)
    sealed = (item.fields.get("envelopes", []) for item in outcome.grid.received)
    return b"".join(commitments) + b"".join(pair[32:] for pairs in sealed for pair in pairs)


def _shape(outcome: Outcome):
    """Return everything about the view that is not random: kinds, fields, sizes, small values."""

    def shape(value):
        if isinstance(value, bytes):
            return len(value)
        if isinstance(value, list):
            return [shape(item) for item in value]
        return value

    return [
        (item.node_id, item.message_type, {name: shape(v) for name, v in item.fields.items()})
        for item in outcome.grid.received
    ]


DATA_A = parted(blobs(60, seed=1), 4)
DATA_B = [np.full((5, 2), 9.99), np.empty((0, 2)), np.zeros((100, 2)), np.full((1, 2), np.nan)]


def _views(strategy_options=None, runs=3):
    options = {
        "n_records": 60,
        "n_rounds": 3,
        "min_clients": 3,
        "k": 20,
        **(strategy_options or {}),
    }
    return [[run_recorded(fast(**options), data) for _ in range(runs)] for data in (DATA_A, DATA_B)]


def _distinguishable(first, second):
    """Whether a server could tell two data sets apart, or words from uniform ones."""
    a, b = (b"".join(_words(outcome) for outcome in outcomes) for outcomes in (first, second))
    p_values = [byte_p_value(a), byte_p_value(b), same_law_p_value(a, b)]
    return min(p_values) <= P_VALUE or _shape(first[0]) != _shape(second[0])


def test_an_oblivious_server_sees_uniform_words_whatever_the_data_are():
    first, second = _views()
    assert not _distinguishable(first, second)
    for outcomes in (first, second):
        assert byte_p_value(b"".join(_rest(outcome) for outcome in outcomes)) > P_VALUE


def test_without_masks_the_same_test_tells_data_sets_apart(monkeypatch):
    monkeypatch.setattr(
        "flower_kmeans.federation.member.masks.mask",
        lambda key, index, m, length: np.zeros(length, dtype=np.uint64),
    )
    monkeypatch.setattr(
        "flower_kmeans.federation.member.masks.correction",
        lambda key, survivors, length: np.zeros(length, dtype=np.uint64),
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
        entries = [closed.entry for closed in outcome.strategy._run_state.closed]
        sums += [entry.words.astype("<u8").tobytes() for entry in entries]
    assert byte_p_value(b"".join(sums)) > P_VALUE


def test_no_centroid_or_count_is_anywhere_in_what_the_server_sees_or_keeps():
    outcome = run_recorded(fast(n_records=240), parted(blobs()))
    leaks = _leaks(outcome)
    assert len(leaks) >= 12
    server = outcome.strategy._run_state
    kept = b"".join(closed.entry.pack() for closed in server.closed)
    for haystack in (_view(outcome), kept):
        assert not [leak for leak in leaks if leak in haystack]
    assert all(closed.opened is None for closed in server.closed)
    assert server.state.round == 0
    assert not len(outcome.result.arrays)
    # The search itself can find something: the same run where the server may see everything.
    outcome = run_recorded(fast("trusted-server", n_records=240), parted(blobs()))
    states = outcome.strategy._run_state.state.arrays["counts"].astype("<i8").tobytes()
    assert [leak for leak in _leaks(outcome) if leak in states]


def test_no_exact_sum_is_in_the_servers_view():
    parts = parted(blobs())
    outcome = run_recorded(fast(n_records=240, n_rounds=2), parts)
    run = outcome.strategy._run_state.run
    from harness import exact_statistic

    question = run.algorithm.query(run.algorithm.initial_state(None))
    exact = [exact_statistic(run, question, part) for part in parts]
    exact.append(np.sum(exact, axis=0))
    view = _view(outcome)
    for vector in exact:
        words = [word.tobytes() for word in vector.astype("<i8") if word]
        assert words
        assert not [word for word in words if word in view]


def test_results_do_not_pass_the_grid():
    outcome = run_recorded(fast(), parted(blobs()))
    assert len(outcome.results) == 6
    kinds = {item.kind for item in outcome.grid.received}
    assert kinds == {"enrol", "lead", "round", "open"}
    finished = [item.fields for item in outcome.grid.received if item.kind == "open"]
    assert all(set(fields) == {"v", "kind", "code", "doc_hash"} for fields in finished)


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "trusted-server"])
def test_no_client_reports_a_number_about_its_records(trust):
    """Replies of clients with very different records have the same fields and sizes."""
    views = []
    for data in (DATA_A, DATA_B):
        outcome = run_recorded(fast(trust, n_records=60, n_rounds=2, min_clients=3), data)
        views.append(_shape(outcome))
    assert views[0] == views[1]


# --------------------------------------------------------------------------- errors stay at home

MARKER = "MARKER-5f1c"


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
def test_the_text_of_a_clients_exception_never_reaches_the_server(trust):
    parts = parted(blobs())
    calls = {}

    def load(context):
        place = context.node_config["partition-id"]
        calls[place] = calls.get(place, 0) + 1
        if place == 1 or (place == 2 and calls[place] == 3):
            raise ValueError(f"{MARKER} {parts[place].tolist()}")
        if place == 3 and calls[place] == 2:
            raise SystemExit(MARKER)
        return parts[place]

    def on_result(result, context):
        raise RuntimeError(f"{MARKER} {result.centroids.tolist()}")

    strategy = Lloyd(3, BOX) if trust == "plain" else fast(trust, n_rounds=3, min_clients=3)
    outcome = run_recorded(strategy, parts, load=load, on_result=on_result)
    assert len(outcome.results) == 5
    view = _view(outcome)
    assert MARKER.encode() not in view
    texts = [repr(float(x)).encode() for part in parts for x in part.reshape(-1)]
    texts += [repr(float(x)).encode() for x in outcome.one.centroids.reshape(-1)]
    assert not [text for text in texts if text in view]
    if trust == "oblivious-server":
        values = [np.float64(x).tobytes() for part in parts for x in part.reshape(-1)]
        assert not [value for value in values if value in view]
    dropped = {(entry.client, entry.round) for entry in strategy.report.dropped}
    assert {(-1, 0), (1, 2), (2, 1)} <= dropped
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


def test_the_first_rounds_radius_is_half_of_the_diagonal():
    """One radius for all rounds would leave round 1 with noise for another sensitivity."""
    strategy = fast(k=K, n_records=5000, n_rounds=2, relocation=False)
    noises = [noise_of_run(strategy, EMPTY).noise for _ in range(3)]
    sums = np.concatenate([noise[0][: 2 * K] for noise in noises]).astype(float)
    scales = _fastlloyd_scales(strategy)
    assert fits(sums / scales[0][0])
    assert not fits(sums / (scales[0][0] * 0.8 / math.sqrt(K)))


def test_glloyd_carries_the_planned_noise():
    def strategy():
        return GLloyd(K, BOX, PrivacyBudget(0.5), n_records=5000, n_rounds=3)

    noises = [noise_of_run(strategy(), EMPTY).noise for _ in range(6)]
    _check_noise(_standardised(noises, list(_glloyd_scales(2, 3, 0.5, 5000)), K))


def test_sulloyd_carries_the_planned_noise():
    def strategy():
        return SuLloyd(K, BOX, PrivacyBudget(1.0, delta=0), n_records=5000, n_rounds=3)

    noises = [noise_of_run(strategy(), EMPTY).noise for _ in range(10)]
    _check_noise(_standardised(noises, list(_sulloyd_scales(2, 3, 1.0)), K), stats.laplace)


def test_sulloyd_carries_the_planned_noise_column_by_column():
    """Of a box with one scale: the same in every column, though they are not equally wide."""
    domain = Box([-1.0, -1.0, -0.5], [1.0, 1.0, 0.5], scale="common")

    def strategy():
        return SuLloyd(K, domain, PrivacyBudget(1.0), n_records=5000, n_rounds=3)

    noises = [noise_of_run(strategy(), [np.empty((0, 3))] * 3).noise for _ in range(10)]
    # What the columns and the count cost in a round, in units of the noise's scales.
    (sums, counts), *_ = strategy().plan.rounds
    assert sums.costs == pytest.approx([0.5 / sums.noise_multiplier, *[sums.costs[-1]] * 2])
    scales = [(sums.noise_multiplier * 2**16, counts.noise_multiplier * 2**16)] * 3
    _check_noise(_standardised(noises, scales, K), stats.laplace)


@pytest.mark.parametrize("faults", [(), (Fault(0, 2, "drop"), Fault(4, 2, "crash"))])
def test_distributed_noise_grows_with_the_clients_that_share_it(faults):
    """Shares are planned for min_clients - 1; more answers carry more noise, never less."""

    def strategy():
        return fast(
            "distributed-noise", k=K, n_records=5000, n_rounds=2, min_clients=4, colluders=1
        )

    opened = [noise_of_run(strategy(), EMPTY * 2, faults=faults) for _ in range(6)]
    factors = [[math.sqrt(s.sum() / 3) for s in run.survivors] for run in opened]
    assert factors[0][1] == math.sqrt((6 - len(faults)) / 3)
    scales = _fastlloyd_scales(strategy())
    _check_noise(_standardised([run.noise for run in opened], scales, K, factors))


def test_noise_is_added_to_the_exact_sum_of_the_survivors():
    parts = parted(blobs(), 6)
    faults = [Fault(2, 1, "drop"), Fault(3, 2, "late")]
    for trust in ("oblivious-server", "distributed-noise", "trusted-server"):
        strategy = fast(trust, k=K, n_rounds=3, n_records=1000)
        noise = noise_of_run(strategy, parts, faults=faults)
        scales = _fastlloyd_scales(strategy)
        factors = [
            math.sqrt(s.sum() / 2) if trust == "distributed-noise" else 1 for s in noise.survivors
        ]
        samples = _standardised([noise.noise], scales, K, [factors])
        for sample in samples.values():
            assert fits(sample)


def test_no_noise_without_privacy():
    noise = noise_of_run(Lloyd(4, BOX), parted(blobs()))
    assert not np.any(noise.noise)


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "trusted-server"])
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


def test_sums_and_counts_do_not_share_a_stream():
    (noise,) = (noise_of_run(fast(k=K, n_records=5000, n_rounds=2), EMPTY).noise,)
    for vector in noise:
        assert len(np.unique(vector)) > 0.9 * len(vector)
        assert stats.pearsonr(vector[:K], vector[-K:]).pvalue > P_VALUE


# --------------------------------------------------------------------------- the randomness seam


def fixed_source(monkeypatch):
    """Replace the system's randomness: one repeatable source for the server, one for clients.

    The server's is told apart because on Ray the clients live in other processes.
    """
    counters = {"server": 0, "client": 0}

    def source(n_bytes):
        frame, who = sys._getframe(1), "client"
        while frame is not None:
            if frame.f_code.co_filename.endswith("member.py"):
                break
            if frame.f_code.co_filename.endswith(
                ("coordinator.py", "_base.py", "_conversation.py")
            ):
                who = "server"
                break
            frame = frame.f_back
        counters[who] += 1
        seed = f"{who} {counters[who]}".encode()
        return hashlib.shake_256(seed).digest(n_bytes)

    monkeypatch.setattr(randomness, "_os_random", source)


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "trusted-server"])
def test_the_randomness_seam_makes_runs_repeatable(trust, monkeypatch):
    views = []
    for _ in range(2):
        fixed_source(monkeypatch)
        outcome = run_recorded(fast(trust), parted(blobs()))
        views.append((_words(outcome), _rest(outcome), outcome.one))
    assert views[0][:2] == views[1][:2]
    np.testing.assert_array_equal(views[0][2].centroids, views[1][2].centroids)


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
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
    assert set(ours.result.arrays) == set(stock.result.arrays)
    for name in ours.result.arrays:
        np.testing.assert_array_equal(
            ours.result.arrays[name].numpy(), stock.result.arrays[name].numpy()
        )
    if trust != "oblivious-server":
        np.testing.assert_array_equal(ours.result.arrays["centroids"].numpy(), ours.one.centroids)
    dicts = [outcome.strategy.report.to_dict() for outcome in (ours, stock)]
    for report in dicts:
        report.pop("seconds")
    assert dicts[0] == dicts[1]


def test_flowers_own_start_takes_initial_centroids():
    parts, initial = parted(blobs()), np.array([[1.0, 1.0], [2.0, -2.0], [9.0, 4.0]])
    results = [
        run_recorded(Lloyd(3, BOX), parts, initial_arrays=ArrayRecord([initial]), **options).one
        for options in ({}, {"start": stock_start})
    ]
    np.testing.assert_array_equal(results[0].centroids, results[1].centroids)
    other = run_recorded(Lloyd(3, BOX, n_rounds=1), parts).one
    moved = run_recorded(
        Lloyd(3, BOX, n_rounds=1), parts, initial_arrays=ArrayRecord([initial])
    ).one
    assert not np.array_equal(other.centroids, moved.centroids)


# --------------------------------------------------------------------------- lives in whole runs


def _restart(place, before_round):
    """Clear a client's memory just before a round's messages are sent."""
    done = []

    def hook(grid, messages):
        first = messages[0].content["kmeans"]
        due = first.get("t") == before_round and first["kind"] == "round"
        due = due or (before_round == "finish" and first["kind"] == "finish")
        if due and not done:
            done.append(True)
            state = grid.states[sorted(grid.states)[place]]
            for key in list(state):
                del state[key]

    return hook


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_a_restart_with_relayed_keys_ends_that_clients_part_only(trust):
    strategy = fast(trust, n_rounds=4)
    outcome = run_recorded(strategy, parted(blobs()), on_push=_restart(2, 2))
    assert strategy.report.answers == [6, 5, 5, 5]
    assert set(outcome.results) == {0, 1, 3, 4, 5}
    reasons = {entry.round: entry.reason for entry in strategy.report.dropped}
    assert set(reasons) == {2, 3, 4, 5}
    assert all("group key" in reason for reason in reasons.values())


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_a_restart_with_a_key_file_costs_one_round(trust, tmp_path):
    strategy = fast(trust, n_rounds=5, keys="file")
    policy = ClientPolicy.for_simulation().__class__(
        **{**vars(ClientPolicy.for_simulation()), "group_key_file": key_file(tmp_path)}
    )
    outcome = run_recorded(strategy, parted(blobs()), policy=policy, on_push=_restart(2, 2))
    assert strategy.report.answers == [6, 5, 6, 6, 6]
    assert len(outcome.results) == 6
    assert outcome.one is not None  # and all agree


def test_a_restart_before_the_delivery_costs_nothing(tmp_path):
    strategy = fast(n_rounds=3, keys="file")
    policy = ClientPolicy(
        **{**vars(ClientPolicy.for_simulation()), "group_key_file": key_file(tmp_path)}
    )
    outcome = run_recorded(strategy, parted(blobs()), policy=policy, on_push=_restart(2, "finish"))
    assert len(outcome.results) == 6
    assert outcome.one is not None
    assert not strategy.report.dropped


def test_a_restart_under_plain_trust_costs_one_round_and_no_exactness():
    """Where nothing is masked a renewed client has the same part as before."""
    parts, strategy = parted(blobs()), Lloyd(3, BOX, n_rounds=1)
    simulate(strategy, parts)
    strategy = Lloyd(3, BOX, n_rounds=4)
    outcome = run_recorded(strategy, parts, on_push=_restart(2, 2))
    assert strategy.report.answers == [6, 5, 6, 6]
    assert len(outcome.results) == 6
    assert outcome.one is not None


def test_everyone_restarting_ends_in_a_clear_error_or_a_renewed_round(tmp_path):
    def clear(grid, messages):
        if messages[0].content["kmeans"].get("t") == 2 and not done:
            done.append(True)
            for state in grid.states.values():
                for key in list(state):
                    del state[key]

    done = []
    policy = ClientPolicy(
        **{**vars(ClientPolicy.for_simulation()), "group_key_file": key_file(tmp_path)}
    )
    strategy = fast(n_rounds=3, keys="file")
    outcome = run_recorded(strategy, parted(blobs()), policy=policy, on_push=clear)
    assert strategy.report.answers == [6, 6, 6]
    assert len(outcome.results) == 6
    done.clear()
    with pytest.raises(TooFewClientsError, match="group key"):
        run_recorded(fast(n_rounds=3), parted(blobs()), on_push=clear)


# --------------------------------------------------------------------------- late members


def _late(trust, tmp_path, rounds=4):
    """Client 4's enrolment is lost, and it is invited again."""
    policy = ClientPolicy(
        **{**vars(ClientPolicy.for_simulation()), "group_key_file": key_file(tmp_path)}
    )
    if trust == "plain":
        strategy = Lloyd(3, BOX, n_rounds=rounds)
    else:
        options = {} if trust == "trusted-server" else {"keys": "file"}
        strategy = fast(trust, n_rounds=rounds, **options)
    return run_recorded(strategy, parted(blobs()), policy=policy, faults=[Fault(4, 0, "crash")])


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
def test_a_late_member_takes_part_and_learns_the_same_result(trust, tmp_path, monkeypatch):
    # The fault of the enrolment meets the first invitation only.
    from flower_kmeans.faults import FaultyClientApp

    class Once(FaultyClientApp):
        def __call__(self, message, context):
            try:
                return super().__call__(message, context)
            finally:
                self._faults.pop((4, 0, "answer"), None) if context.node_config[
                    "partition-id"
                ] == 4 else None

    monkeypatch.setattr("harness.FaultyClientApp", Once)
    outcome = _late(trust, tmp_path)
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


def test_late_members_do_not_spoil_an_exact_sum(monkeypatch):
    """Plain Lloyd with a member that joins is the pooled computation over whoever answered."""
    from harness import exact_statistic

    from flower_kmeans.faults import FaultyClientApp

    class Once(FaultyClientApp):
        def __call__(self, message, context):
            try:
                return super().__call__(message, context)
            finally:
                self._faults.pop((int(context.node_config["partition-id"]), 0, "answer"), None)

    monkeypatch.setattr("harness.FaultyClientApp", Once)
    parts, strategy = parted(blobs()), Lloyd(3, BOX, n_rounds=4)
    outcome = run_recorded(strategy, parts, faults=[Fault(4, 0, "drop"), Fault(1, 0, "drop")])
    run = strategy._run_state.run
    nodes = [seat.node_id for seat in strategy._run_state.seats]
    partition = {node: i for i, node in enumerate(sorted(outcome.grid.states))}
    state = run.algorithm.initial_state(None)
    sizes = []
    for closed in strategy._run_state.closed:
        question = run.algorithm.query(state)
        present = [partition[nodes[i]] for i in np.flatnonzero(closed.entry.survivors)]
        sizes.append(len(present))
        total = np.sum([exact_statistic(run, question, parts[i]) for i in present], axis=0)
        state = run.algorithm.update(state, run.algorithm.unflatten(total, closed.entry.t))
    assert sizes[0] == 4
    assert sizes[-1] == 6
    np.testing.assert_array_equal(outcome.one.centroids, run.algorithm.centroids(state))


# --------------------------------------------------------------------------- simulate


def test_a_thousand_clients_run_in_this_process():
    strategy = fast(n_records=2000, n_rounds=2, min_clients=800)
    clustering = simulate(strategy, parted(blobs(2000), 1000))
    assert clustering.report.answers == [1000] * 2


def test_one_client_is_enough_where_nothing_is_hidden():
    assert simulate(Lloyd(2, BOX), [blobs(10)]).report.n_clients == 1


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
        (ConfigurationTypeError, "timeout", {"timeout": None}),
        (ConfigurationTypeError, "policy", {"policy": "strict"}),
        (ConfigurationTypeError, "on_round", {"on_round": "print"}),
    ],
)
def test_arguments_that_cannot_be_used_are_one_sentence(error, match, arguments, monkeypatch):
    pushed = []
    monkeypatch.setattr(
        "flower_kmeans.simulation.InProcessGrid.push_messages",
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
        simulate(fast(), parted(blobs()), policy=ClientPolicy(max_epsilon=0.1))
    with pytest.raises(TooFewClientsError, match="ledger"):
        simulate(fast(), parted(blobs()), policy=ClientPolicy())


def test_different_key_files_end_the_run(tmp_path):
    """Clients tell the server whether they hold the same file before anything is summed."""
    (tmp_path / "a").mkdir()
    from harness import SIMULATED, Node, make_run

    from flower_kmeans.federation.coordinator import Coordinator

    run = make_run(keys="file")
    coordinator = Coordinator(run)
    requests = coordinator.enrol_requests([1, 2])
    for node_id, content in ((1, b"a" * 32), (2, b"b" * 32)):
        path = tmp_path / str(node_id)
        path.write_bytes(content)
        path.chmod(0o600)
        policy = ClientPolicy(**{**vars(SIMULATED), "group_key_file": str(path)})
        coordinator.accept_enrol(
            node_id, Node(node_id, np.ones((2, 2)), policy).ask(requests[node_id])
        )
    with pytest.raises(RunError, match="group key file"):
        coordinator.close_enrolment()


def test_a_life_is_erased_from_every_memory_after_a_run():
    outcome = run_recorded(fast(), parted(blobs()))
    doc_hash = outcome.strategy._run_state.run.document.doc_hash
    for state in outcome.grid.states.values():
        life = load_life(state, doc_hash)
        assert life.finished == 1
        assert not life.secret + life.group_key + life.exchange_secret + life.lead_secret


# --------------------------------------------------------------------------- keys


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the directory in which temporary ones are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


KEYS = {
    "file": {"group.key": 0o600},
    "roster": {f"member-{i}.key": 0o600 for i in range(6)} | {"roster.toml": 0o644},
}


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
@pytest.mark.parametrize("keys", KEYS)
def test_simulated_clients_are_given_the_keys_that_a_run_asks_for(keys, trust, temporary):
    found = []

    def look(info):
        (directory,) = temporary.iterdir()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        found.append((stat.S_IMODE(directory.stat().st_mode), modes))

    strategy = fast(trust, keys=keys, n_rounds=2)
    clustering = simulate(strategy, parted(blobs()), on_round=look)
    report = clustering.report
    assert (report.keys, report.n_clients, report.n_places) == (keys, 6, 6)
    assert (report.answers, report.incidents) == ([6, 6], [])
    assert found == [(0o700, KEYS[keys])] * 2
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("keys", KEYS)
def test_keys_are_removed_from_a_run_that_fails(keys, temporary):
    faults = [Fault(i, 2, "crash") for i in range(6)]
    with pytest.raises(TooFewClientsError, match="round 2"):
        simulate(fast(keys=keys), parted(blobs()), faults=faults)
    assert list(temporary.iterdir()) == []


def test_two_runs_have_other_keys(temporary):
    seen = []
    for keys in ("file", "file", "roster", "roster"):
        simulate(
            fast(keys=keys, n_rounds=2),
            parted(blobs()),
            on_round=lambda info: seen.extend(p.read_bytes() for p in temporary.glob("*/*.key")),
        )
    assert len(seen) == 2 * (1 + 1 + 6 + 6)
    assert len(set(seen)) == 1 + 1 + 6 + 6


def test_a_policy_decides_also_where_keys_are_made(tmp_path, temporary):
    own, found = replace(ClientPolicy.for_simulation(), group_key_file=key_file(tmp_path)), []

    def look(info):
        found.append(list(temporary.iterdir()))

    simulate(fast(keys="file", n_rounds=2), parted(blobs()), policy=own, on_round=look)
    assert found == [[], []]  # its own file is the one
    for keys in KEYS:
        with pytest.raises(TooFewClientsError, match="policy"):
            simulate(fast(keys=keys), parted(blobs()), policy=ClientPolicy(max_epsilon=0.1))
    with pytest.raises(TooFewClientsError, match="policy"):
        simulate(fast(keys="roster"), parted(blobs()), policy=own)
    member = replace(own, roster_file="roster.toml", member_key_file="a.key")
    with pytest.raises(ConfigurationError, match="one client's"):
        simulate(fast(keys="roster"), parted(blobs()), policy=member)


# --------------------------------------------------------------------------- Ray


@pytest.mark.ray
@pytest.mark.parametrize("trust", ["oblivious-server", "plain"])
def test_ray_gives_the_same_result(trust, monkeypatch, tmp_path):
    parts = parted(blobs(), 4)
    options = {"seed": 3, "n_rounds": 3}
    policy = ClientPolicy(
        **{**vars(ClientPolicy.for_simulation()), "group_key_file": key_file(tmp_path)}
    )

    def make():
        fixed_source(monkeypatch)
        if trust == "plain":
            return Lloyd(3, BOX, **options)
        return fast(keys="file", **options)

    here = simulate(make(), parts, policy=policy)
    there = simulate(make(), parts, policy=policy, engine="ray", timeout=120)
    np.testing.assert_array_equal(here.centroids, there.centroids)
    np.testing.assert_array_equal(here.counts, there.counts)


@pytest.mark.ray
@pytest.mark.parametrize("opening", ["deferred", "immediate"])
def test_ray_opens_the_same_sums(opening, tmp_path):
    """Node ids differ, and with them the noise, so there is next to none."""
    parts = parted(blobs(), 4)
    policy = replace(ClientPolicy.for_simulation(), group_key_file=key_file(tmp_path))
    found = []
    for engine in ("in-process", "ray"):
        strategy = fast(
            "distributed-noise",
            opening=opening,
            keys="file",
            n_rounds=3,
            epsilon=1e6,
            min_clients=3,
            fraction_bits=20,
        )
        found.append(simulate(strategy, parts, policy=policy, engine=engine, timeout=120))
        assert strategy._run_state.n_opened == 3
        np.testing.assert_array_equal(found[-1].centroids, strategy.centroids)
    np.testing.assert_allclose(found[0].centroids, found[1].centroids, atol=0.01)
    np.testing.assert_allclose(found[0].counts, found[1].counts, atol=1)


@pytest.mark.ray
@pytest.mark.parametrize("keys", KEYS)
def test_ray_gives_every_client_its_key(keys, monkeypatch):
    directories, make = [], simulation._private_directory

    @contextmanager
    def made():
        with make() as path:
            directories.append(path)
            yield path

    monkeypatch.setattr(simulation, "_private_directory", made)
    strategy = fast("distributed-noise", keys=keys, n_rounds=2, epsilon=20.0)
    faults = [Fault(1, 2, "crash")]
    clustering = simulate(strategy, parted(blobs(), 4), engine="ray", faults=faults, timeout=120)
    report = clustering.report
    assert (report.keys, report.n_clients, report.n_places) == (keys, 4, 4)
    assert report.answers == [4, 3]
    assert {(entry.round, entry.reason) for entry in report.incidents} == {(2, CRASHED)}
    np.testing.assert_array_equal(clustering.centroids, strategy.centroids)
    assert len(directories) == 2  # of keys, and of records
    assert not any(path.exists() for path in directories)


@pytest.mark.ray
@pytest.mark.parametrize("opening", ["deferred", "immediate"])
def test_ray_runs_faults_and_distributed_noise(opening):
    strategy = fast("distributed-noise", n_rounds=2, epsilon=20.0, min_clients=2, opening=opening)
    faults = [Fault(0, 1, "drop"), Fault(1, 2, "crash"), Fault(2, 1, "twice")]
    clustering = simulate(strategy, parted(blobs(), 4), engine="ray", faults=faults, timeout=120)
    report = clustering.report
    assert report.answers == [3, 3]
    # On Ray node ids are random, so a client's place in the cohort is not its partition.
    why = {(entry.round, entry.reason) for entry in report.dropped}
    assert why == {(1, NO_ANSWER), (2, CRASHED)}
    assert {(entry.round, entry.reason) for entry in report.incidents} == {(1, TWICE), (2, CRASHED)}
    assert np.isfinite(clustering.centroids).all()
    np.testing.assert_array_equal(clustering.centroids, strategy.centroids)


@pytest.mark.ray
def test_fastlloyd_runs_on_ray_with_relayed_keys_and_finds_the_clusters():
    records = blobs(6000, spread=0.2)
    strategy = fast(n_records=6000, epsilon=5.0)
    clustering = simulate(strategy, parted(records, 5), engine="ray", timeout=120)
    exact = simulate(Lloyd(3, BOX, n_rounds=strategy.n_rounds), parted(records, 5))
    assert clustering.report.answers == [5] * strategy.n_rounds
    assert clustering.inertia(records) < 1.5 * exact.inertia(records)


@pytest.mark.parametrize("n_clients", [1, 2, 5])
def test_min_clients_follows_the_number_of_partitions_where_nothing_was_given(n_clients):
    strategy = fast(n_rounds=2)
    clustering = simulate(strategy, parted(blobs(), n_clients))
    assert clustering.report.n_clients == n_clients
    assert clustering.report.min_clients == min(3, n_clients)
    assert strategy.n_clients is None
    assert strategy.min_clients == 3
