"""What a run of SynopsisKMeans asks for, what it costs, and its run document."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from flower_kmeans.algorithms import SynopsisAlgorithm, algorithm_from_config
from flower_kmeans.algorithms.synopsis_schedule import RELEASES, Schedule
from flower_kmeans.canonical import real_to_text
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.protocol.noise import check_shares
from flower_kmeans.protocol.wire import decode, encode

BUDGET = PrivacyBudget(1.0)
CLIENTS = PrivacyBudget(1.0, unit="client")
BALL = Ball(2.0, [0.5] * 4)


def build(k=3, domain=BALL, budget=BUDGET, **options):
    return SynopsisAlgorithm(k, domain, budget, **{"n_records": 1000, **options})


# ----------------------------------------------------------------- the schedule


def decided(signal, k, d):
    """The recipe's decisions, in its own words."""
    snc = signal / (k * d**0.25)
    n_synopses = 1 + (snc > 6) + (snc > 14)
    full = math.sqrt(2 * d) / (math.sqrt(0.08) * signal) < 0.35 and d <= 128
    p = min(d, 64 if full else 16)
    share = 1 / (1 + (p / 4) ** 0.2)
    weights = np.array([1.0, 1.5, 2.25])[:n_synopses]
    part = min(0.55, max(0.30, 0.55 * (8 / d) ** 0.25))
    cells = [
        int(np.clip(signal * math.sqrt(part * w) * math.sqrt(share), 2 * k, 5 * k))
        for w in weights / weights.sum()
    ]
    return full, p, cells, share


@pytest.mark.parametrize("d", [1, 2, 16, 17, 64, 65, 128, 129, 784])
@pytest.mark.parametrize("k", [1, 4, 64])
@pytest.mark.parametrize(
    "signal", [0.5, 2.9, 3.1, 5.9, 6.1, 7.9, 8.1, 13.9, 14.1, 19.9, 20.1, 100.0, 500.0, 3000.0, 1e5]
)
def test_the_schedule_is_that_of_the_recipe(signal, k, d):
    found = Schedule.of(signal, k, d)
    full, p, cells, share = decided(signal, k, d)
    assert (found.moments, found.n_directions) == (full, p)
    assert list(found.cells) == cells
    assert found.n_refinements == 4
    assert found.count_share == pytest.approx(share)
    assert 6 <= found.n_rounds <= 8
    assert found.signal == signal


@pytest.mark.parametrize(("signal", "n_synopses"), [(6.0, 1), (14.0, 2), (20.0, 3)])
def test_a_signal_at_a_threshold_does_not_exceed_it(signal, n_synopses):
    assert len(Schedule.of(signal, 1, 1).cells) == n_synopses


@pytest.mark.parametrize("d", [1, 64, 128])
def test_second_moments_are_asked_for_just_where_their_noise_allows(d):
    """Noise of the largest eigenvalue, sqrt(2 d) / (sqrt(0.08) signal), against 0.35."""
    signal = math.sqrt(2 * d / 0.08) / 0.35
    assert Schedule.of(1.0001 * signal, 3, d).moments
    assert not Schedule.of(0.9999 * signal, 3, d).moments


def test_rounds_have_one_task_each():
    found = Schedule(100.0, True, 4, (6, 7), 2, 0.5)
    assert [found.is_synopsis(t) for t in range(1, 6)] == [False, True, True, False, False]
    assert [found.n_cells(t) for t in (2, 3)] == [6, 7]
    assert found.n_rounds == 5


def test_without_noise_it_asks_for_all_there_is():
    found = Schedule.of(math.inf, 7, 100)
    assert (found.moments, found.n_directions, found.cells) == (True, 64, (35, 35, 35))
    assert found.n_rounds == 8
    assert build(budget=PrivacyBudget(None), n_records=None).schedule.cells == (15, 15, 15)


def test_the_schedule_follows_from_public_figures():
    mu = mu_of_budget(1.0, 1e-6)
    for options, signal in (
        ({}, 1000 * mu),
        ({"n_records": 2000, "budget": PrivacyBudget(1.0, 1e-6)}, 2000 * mu),
        ({"budget": CLIENTS, "n_clients": 50}, 1000 / 20**0.5 * mu),
        ({"budget": CLIENTS, "n_clients": 2000}, 1000 * mu),
        ({"budget": CLIENTS, "n_clients": 50, "clip": 2.0}, 500 * mu),
    ):
        algorithm = build(**options)
        assert algorithm.schedule.signal == pytest.approx(signal)
        assert algorithm.schedule == Schedule.of(algorithm.schedule.signal, 3, 4)
        assert algorithm.n_rounds == algorithm.schedule.n_rounds == len(algorithm.plan().rounds)


def test_delta_is_that_of_the_units():
    assert build(n_records=10**5).budget.delta == 1e-7
    many = build(budget=CLIENTS, n_clients=10**5, n_records=10**6)
    assert (many.budget.delta, many.plan().n_clients, many.plan().n_records) == (
        1e-7,
        10**5,
        10**6,
    )


# ----------------------------------------------------------------- the plan


@pytest.mark.parametrize("d", [1, 4, 16, 100])
@pytest.mark.parametrize("signal", [1.0, 200.0, 1e5])
def test_shares_are_those_of_the_guarantees(signal, d):
    schedule = Schedule.of(signal, 5, d)
    rounds = [schedule.releases(t, d) for t in range(1, schedule.n_rounds + 1)]
    shares = [{r.name: r.cost**2 for r in releases} for releases in rounds]
    name = "moments" if schedule.moments else "norms"
    assert shares[0] == pytest.approx({name: 0.08})
    synopses = shares[1 : 1 + len(schedule.cells)]
    synopsis = {1: 0.55, 4: 0.55, 16: 0.55 * 0.5**0.25, 100: 0.30}[d]
    assert sum(sum(s.values()) for s in synopses) == pytest.approx(synopsis)
    for before, after in itertools.pairwise(synopses):
        assert after["synopsis"] == pytest.approx(1.5 * before["synopsis"])
    for t, found in enumerate(synopses, start=2):
        assert list(found) == ["synopsis"]
        counts = schedule.count_share
        expected = {"sums": 1 - counts, "counts": counts, "slacks": 1 - counts}
        assert schedule.parts(t, d) == pytest.approx(expected)
    refinements = shares[1 + len(schedule.cells) :]
    for found in refinements:
        assert sum(found.values()) == pytest.approx((0.92 - synopsis) / 4)
        assert found["refinement-counts"] == pytest.approx(
            0.4 / (1 + math.sqrt(4 * d)) * sum(found.values())
        )
    assert {r.name for releases in rounds for r in releases} <= set(RELEASES)
    assert sum(sum(found.values()) for found in shares) == pytest.approx(1, rel=1e-12)


def test_the_plan_meets_the_budget_exactly():
    plan = build().plan()
    assert plan.mu == pytest.approx(mu_of_budget(1.0, plan.budget.delta), rel=1e-12)
    assert plan.epsilon() <= 1.0
    assert sum(r.cost**2 for r in plan.releases) == pytest.approx(plan.mu**2)


@pytest.mark.parametrize("d", [1, 2, 100, 784])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("shares", [2, 80, 4000])
def test_noise_can_be_shared_among_clients(d, epsilon, shares):
    algorithm = build(10, Ball(3.0, [0] * d), PrivacyBudget(epsilon), n_records=100_000)
    check_shares(algorithm, algorithm.plan(), shares)
    algorithm.require_capacity(math.sqrt(5))


# ----------------------------------------------------------------- the document

VARIANTS = [
    {},
    {"budget": PrivacyBudget(None), "n_records": None},
    {"k": 1, "seed": 9, "fraction_bits": 12},
    {"n_records": 20},
    {"budget": CLIENTS, "n_clients": 50, "clips": {"moments": 1}},
    {"budget": CLIENTS, "n_clients": 50, "clip": 3.5},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("domain", [Box([0] * 4, [1, 2, 3, 4]), BALL])
def test_an_algorithm_survives_its_configuration(options, domain):
    algorithm = build(domain=domain, **options)
    config = decode(encode(algorithm.to_config()), dict[str, Any])
    again = algorithm_from_config(config, domain, algorithm.budget)
    assert type(again) is SynopsisAlgorithm
    assert again == algorithm
    assert hash(again) == hash(algorithm)
    assert again.to_config() == config
    assert again.plan() == algorithm.plan()


def test_variants_are_different():
    variants = [build(**options) for options in VARIANTS]
    assert len(set(variants)) == len(variants)


def changed_schedule(**change):
    return {"schedule": {**build().to_config()["schedule"], **change}}


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"seed": "0"},
        {"n_clusters": 0},
        {"n_rounds": 4},
        {"clips": {}},
        {"schedule": []},
        {"schedule": {}},
        changed_schedule(more=1),
        changed_schedule(moments=1),
        changed_schedule(cells=[]),
        changed_schedule(cells=9),
        changed_schedule(cells=[6] * 9),
        changed_schedule(cells=[0]),
        changed_schedule(cells=[2**23]),
        changed_schedule(cells=["6"]),
        changed_schedule(n_directions=5),
        changed_schedule(n_directions=0),
        changed_schedule(n_refinements=0),
        changed_schedule(n_refinements=33),
        changed_schedule(count_share="0x1p+0"),
        changed_schedule(count_share="0x0p+0"),
        changed_schedule(count_share=0.5),
        changed_schedule(signal=100),
        changed_schedule(signal="0x0p+0"),
        changed_schedule(signal="-0x1.0000000000000p+3"),
        changed_schedule(signal="0x1.0000000000000p+20"),
    ],
    ids=str,
)
def test_other_configurations_are_refused(change):
    config = {**build().to_config(), **change}
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config(config, BALL, BUDGET)


def test_the_largest_schedule_that_a_client_follows():
    """And one round, direction or cell more, or a larger part for counts, is not followed."""
    for share in (math.nextafter(1, 0), 1e-300):
        change = {"cells": [6] * 8, "n_refinements": 32, "n_directions": 4}
        change["count_share"] = real_to_text(share)
        schedule = Schedule.from_config(changed_schedule(**change)["schedule"], 4)
        assert schedule.n_rounds == 41
    least = Schedule.from_config(changed_schedule(cells=[1], n_refinements=1)["schedule"], 4)
    assert least.n_rounds == 3
    for change in ({"count_share": real_to_text(1.0)}, {"n_directions": 65}):
        with pytest.raises(ConfigurationError):
            Schedule.from_config(changed_schedule(**change)["schedule"], 100)
    assert (
        Schedule.from_config(changed_schedule(n_directions=64)["schedule"], 100).n_directions == 64
    )
    assert Schedule.from_config(changed_schedule()["schedule"], 128).moments
    with pytest.raises(ConfigurationError, match="moments=false for more than 128 columns"):
        Schedule.from_config(changed_schedule()["schedule"], 129)


@pytest.mark.parametrize("change", [{"clips": []}, {"clips": {"noise": "0x1p+0"}}, {"clip": 1.0}])
def test_other_clips_are_refused(change):
    config = {**build(budget=CLIENTS, n_clients=50).to_config(), **change}
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config(config, BALL, CLIENTS)


def test_a_configuration_that_lacks_a_field_is_refused():
    config = build().to_config()
    for name in set(config) - {"name", "n_records"}:
        lacking = {key: value for key, value in config.items() if key != name}
        with pytest.raises(ConfigurationError, match="not as expected"):
            algorithm_from_config(lacking, BALL, BUDGET)


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, ConfigurationError, "n_clusters in"),
        ({"n_records": None}, ConfigurationError, "n_records is required"),
        ({"n_records": 2}, ConfigurationError, "n_clusters of at most n_records=2"),
        ({"n_rounds": 5}, ConfigurationError, "n_rounds='auto'.*Got 5"),
        ({"n_rounds": "many"}, ConfigurationError, "n_rounds='auto'.*Got 'many'"),
        ({"seed": 2**53}, ConfigurationError, "seed in"),
        ({"seed": "x"}, ConfigurationTypeError, "seed must be an integer"),
        ({"fraction_bits": 26}, ConfigurationError, "fraction_bits in"),
        ({"domain": Ball(1.0, [0] * 9), "fraction_bits": 25}, ConfigurationError, "too fine"),
        ({"budget": CLIENTS}, ConfigurationError, "n_clients is required with unit='client'"),
        ({"budget": CLIENTS, "n_clients": 9, "clip": 0}, ConfigurationError, "clip positive"),
        ({"budget": CLIENTS, "n_clients": 9, "clip": 1e-9}, ConfigurationError, "one step of the"),
        ({"budget": CLIENTS, "n_clients": 9, "clips": {"x": 1}}, ConfigurationError, "Got 'x'"),
        ({"budget": CLIENTS, "n_clients": 2**53}, ConfigurationError, "n_clients in"),
        ({"n_clients": 9}, ConfigurationError, "n_clients=None unless"),
        ({"clips": {"moments": 1}}, ConfigurationError, "clips=None unless"),
        ({"n_records": 2**48}, ConfigurationError, "n_records=281474976710656 and noise"),
    ],
)
def test_bad_parameters_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        build(**options)


def test_a_seed_is_any_integer_below_2_to_the_53():
    assert (build().seed, build(seed=2**53 - 1).seed) == (0, 2**53 - 1)
    assert build().fraction_bits == 16


def test_sizes_of_gigabytes_are_refused():
    with pytest.raises(ConfigurationError, match="in round 5 with n_clusters=10000 and 784"):
        build(10_000, Ball(1.0, [0] * 784), n_records=10**9)


def fixed(k, d, *, cells=(8,), n_directions=4, n_refinements=1):
    signal = build(k, n_records=10**6).schedule.signal
    schedule = Schedule(signal, False, n_directions, cells, n_refinements, 0.4)
    return build(k, Ball(1.0, [0] * d), n_records=10**6, schedule=schedule)


def test_the_largest_messages_and_runs():
    """2^22 words of a query or an answer, and 2^27 of all answers, but not one more."""
    assert fixed(1, 2000, cells=(63_536,), n_directions=64).schedule.cells == (63_536,)
    with pytest.raises(ConfigurationError, match="Got 4194368 in round 2"):  # p more
        fixed(1, 2000, cells=(63_537,), n_directions=64)
    assert fixed(1, 4, cells=(2**20,), n_directions=2).words(2) == 2**22
    with pytest.raises(ConfigurationError, match="Got 4194308 in round 2"):
        fixed(1, 4, cells=(2**20 + 1,), n_directions=2)
    assert fixed(2048, 2047, n_refinements=31).words(3) == 2**22
    with pytest.raises(ConfigurationError, match=f"Got {2**27 + 8 * 6 + 1} with n_clusters=2048"):
        fixed(2048, 2047, n_refinements=32)


def test_second_moments_need_little_noise():
    """Thousands of words travel only where they are worth their noise."""
    few = build(4, Ball(1.0, [0] * 128), n_records=100)
    assert (few.words(1), few.schedule.n_directions) == (1, 16)
    many = build(4, Ball(1.0, [0] * 128), n_records=10**6)
    assert (many.words(1), many.schedule.n_directions) == (128 * 129 // 2, 64)
    assert few.layout(1)[0].name == "norms"
    assert many.layout(1)[0].name == "moments"


def test_the_planned_noise_is_known_by_block():
    algorithm = build()
    releases = algorithm.plan().rounds
    one = 2**16
    assert algorithm.noise_of(1) == pytest.approx(
        {"moments": releases[0][0].noise_multiplier * 4**10}
    )
    for t in (2, algorithm.n_rounds):
        parts = algorithm.schedule.parts(t, 4) if t == 2 else {"sums": 1, "counts": 1}
        expected = {
            name: release.noise_multiplier * one / math.sqrt(parts[name])
            for release in releases[t - 1]
            for name in release.blocks
        }
        assert algorithm.noise_of(t) == pytest.approx(expected)
    clients = build(budget=CLIENTS, n_clients=50, clips={"refinement-counts": 3})
    sums, counts = clients.plan().rounds[-1]
    assert clients.noise_of(clients.n_rounds) == pytest.approx(
        {
            "sums": sums.noise_multiplier * one * 20**0.5,
            "counts": counts.noise_multiplier * one * 3,
        }
    )
    assert set(build(budget=PrivacyBudget(None)).noise_of(2).values()) == {0.0}


def test_the_noise_is_read_from_the_document():
    """Calibration may differ between processors in its last bits: clients take the server's."""
    algorithm = build()
    config = algorithm.to_config()
    signal = float.fromhex(config["schedule"]["signal"]) * (1 + 2.0**-40)
    config["schedule"]["signal"] = real_to_text(signal)
    other = algorithm_from_config(config, BALL, BUDGET)
    assert other.noise_of(2)["sums"] < algorithm.noise_of(2)["sums"]
    assert other.plan() == algorithm.plan()
