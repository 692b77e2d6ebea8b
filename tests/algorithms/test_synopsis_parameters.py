"""The schedule of SynopsisKMeans, its parameters, and its run document."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from flower_kmeans.algorithms import SynopsisAlgorithm, algorithm_from_config
from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.synopsis import Schedule
from flower_kmeans.canonical import real_to_text
from flower_kmeans.data.domain import Ball
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.protocol.noise import check_shares

BUDGET = PrivacyBudget(1.0)
CLIENTS = PrivacyBudget(1.0, unit="client")
EXACT = PrivacyBudget(None)
OF_CLIENTS = {"budget": CLIENTS, "n_clients": 9}
BALL = Ball(2.0, [0.5] * 4)
SIZED = {"min_size": 250, "max_size": 400}


def build(k=3, domain=BALL, budget=BUDGET, **options):
    return SynopsisAlgorithm.planned(
        k, domain, budget, **{"n_records": 1000, **options}
    )


# Worked out by hand from the schedule (docs/guarantees, Theorem 22), for (S, k, d). How
# many rounds the synopsis has follows from c = S/(k d^1/4). They have 0.55 (8/d)^1/4 of
# mu^2, at least 0.30 and at most 0.55, each 1.5 times as much as the one before. Counts
# have f = 1/(1 + (p/4)^0.2) of it. So a round with the part x has S sqrt(x f) cells,
# rounded down, between 2k and 5k.
BY_HAND = {
    # c = 20/(10 * 1.414) = 1.4: one round. sqrt(8) = 2.83 is not below 0.35 sqrt(0.08)
    # 20 = 1.98. f = 1/2, and 20 sqrt(0.55/2) = 10.5 cells are fewer than 2 * 10.
    "weak": ((20, 10, 4), (False, 4, (20,), 0.5)),
    # c = 8.5: two rounds, with 0.22 and 0.33. 2.83 is below 11.9.
    # 120 sqrt(0.22/2) = 39.8 and 120 sqrt(0.33/2) = 48.7 cells.
    "two rounds": ((120, 10, 4), (True, 4, (39, 48), 0.5)),
    # c = 70.7: three rounds. 1000 sqrt(0.55/4.75/2) = 241 cells are more than 5 * 10.
    "strong": ((1000, 10, 4), (True, 4, (50, 50, 50), 0.5)),
    # c = 500/(40 * 2.83) = 4.4: one round. sqrt(128) = 11.3 is below 49.5, so p = 64.
    # f = 1/(1 + 16^0.2) = 1/2.7411 = 0.36482, and the round has 0.55/8^1/4 = 0.32703.
    # 500 sqrt(0.32703 * 0.36482) = 172.7 cells.
    "64 directions": ((500, 40, 64), (True, 64, (172,), 0.36482)),
    # sqrt(512) = 22.6 is not below 0.35 sqrt(0.35) 100 = 20.7: no second moments, and
    # p = 16. c = 100/(10 * 4) = 2.5: one round. f = 1/(1 + 4^0.2) = 1/2.31951 =
    # 0.43113, and 0.55/32^1/4 = 0.231 is less than 0.30. 100 sqrt(0.30 * 0.43113) =
    # 35.96 cells.
    "many columns": ((100, 10, 256), (False, 16, (35,), 0.43113)),
    # 22.6 is below 41.4, and moments have 512/(0.01 200)^2 = 128 of mu^2, so 0.35. The
    # rest has 0.65/0.92 of the signal's square: 168.1. c = 4.2, and 168.1 sqrt(0.30 *
    # 0.36482) = 55.6, but at most 5k = 50.
    "moments of many columns": ((200, 10, 256), (True, 64, (50,), 0.36482)),
    # 512/(0.01 5000)^2 = 0.2048. c = 5000 sqrt(0.7952/0.92)/(100 * 4) = 11.6: two
    # rounds, with 0.12 and 0.18. 4648 sqrt(0.12 * 0.36482) = 972 cells are too many.
    "a clear signal in many columns": (
        (5000, 100, 256),
        (True, 64, (500, 500), 0.36482),
    ),
}


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("case", BY_HAND)
def test_the_schedule_is_that_of_the_recipe(case):
    (signal, k, d), (moments, n_directions, cells, count_share) = BY_HAND[case]
    found = Schedule.of(signal, k, d)
    assert (found.moments, found.n_directions, found.cells) == (
        moments,
        n_directions,
        cells,
    )
    assert found.count_share == pytest.approx(count_share, abs=1e-5)
    assert found.n_rounds == 1 + len(cells) + found.n_refinements
    assert found.signal == signal


@pytest.mark.parametrize("d", [1, 17, 128, 129, 2048, 2049])
def test_a_stronger_signal_buys_more_of_everything(d):
    """More rounds of the synopsis, cells, and second moments, within the limits."""
    for k in (1, 4, 64):
        schedules = [
            Schedule.of(signal, k, d) for signal in np.geomspace(0.5, 1e5, 60).tolist()
        ]
        moments = [found.moments for found in schedules]
        assert moments == sorted(moments)
        assert (moments[0], moments[-1]) == (False, d <= 2048)
        # Second moments of many columns cost a part of what cells had before.
        for has_moments in {*moments} if d > 128 else {None}:
            alike = [x for x in schedules if has_moments in (None, x.moments)]
            rounds = [len(found.cells) for found in alike]
            assert rounds == sorted(rounds)
            n_cells = [sum(found.cells) for found in alike]
            assert n_cells == sorted(n_cells)
        assert (len(schedules[0].cells), len(schedules[-1].cells)) == (1, 3)
        for found in schedules:
            assert list(found.cells) == sorted(found.cells)
            assert all(2 * k <= number <= 5 * k for number in found.cells)
            assert found.n_directions == min(d, 64 if found.moments else 16)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("k", "d", "s", "n_refinements"),
    [
        (1, 1, 0.1, 8),
        (5, 4, 49.9, 8),
        (5, 4, 50.1, 4),
        (5, 4, math.inf, 4),
        (3, 32, 1.0, 8),
        (3, 33, 1.0, 4),
        (32, 64, 49.9, 8),
        (32, 64, 50.1, 4),
        (31, 64, 1.0, 4),
        (64, 128, 1.0, 8),
        (65, 129, 1.0, 4),
        (20, 768, 1.0, 4),
    ],
)
def test_weak_signals_have_more_refinements_where_all_directions_are_live(
    k, d, s, n_refinements
):
    signal = s * k * math.sqrt(d)
    found = Schedule.of(signal, k, d)
    assert found.n_refinements == n_refinements
    if d > 128:
        return
    refinements = [
        found.fraction(t, d) for t in range(found.last_synopsis + 1, found.n_rounds + 1)
    ]
    synopsis = max(0.3, min(0.55, 0.55 * (8 / d) ** 0.25))
    assert refinements == pytest.approx(
        [(0.92 - synopsis) / n_refinements] * n_refinements
    )
    # Bounds on sizes leave 0.9 of mu^2 to the other rounds.
    sized = Schedule.of(signal / math.sqrt(0.9), k, d, n_sizings=4)
    assert sized.n_refinements == n_refinements


def test_a_signal_at_a_threshold_does_not_exceed_it():
    for signal, n_synopses in ((6.0, 1), (6.1, 2), (14.0, 2), (14.1, 3)):
        assert len(Schedule.of(signal, 1, 1).cells) == n_synopses
    for d in (1, 64, 128):  # noise of the largest eigenvalue against 0.35
        signal = math.sqrt(2 * d / 0.08) / 0.35
        assert Schedule.of(1.0001 * signal, 3, d).moments
        assert not Schedule.of(0.9999 * signal, 3, d).moments
    found = Schedule.of(math.inf, 7, 100)
    assert (found.moments, found.n_directions, found.cells) == (True, 64, (35, 35, 35))


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("d", "most_words", "moments", "n_groups"),
    [
        (200, None, True, 0),
        (200, 20_100, True, 0),
        (200, 20_099, True, 100),
        (2048, 2_098_175, True, 128),
        (200, 3_200, True, 16),
        (200, 3_199, False, 0),
        (2049, 10**6, False, 0),
    ],
)
def test_groups_stand_for_columns_where_messages_cannot_carry_all_moments(
    d, most_words, moments, n_groups
):
    found = Schedule.of(1e5, 10, d, most_words=most_words)
    assert (found.moments, found.n_groups) == (moments, n_groups)
    # All else is as with moments of all columns, or as with none of them.
    if moments:
        assert replace(found, n_groups=0) == Schedule.of(1e5, 10, d)
    else:
        assert found.n_directions == 16


def test_a_document_names_the_groups():
    domain = Ball(1.0, [0.0] * 200)
    algorithm = build(3, domain, n_records=10**6, most_words=200 * 40)
    config = algorithm_to_config(algorithm)
    assert config["schedule"]["n_groups"] == 40
    assert algorithm_from_config(config, domain, algorithm.budget) == algorithm
    assert algorithm.layout(1).n_words == 200 * 40
    whole = build(3, domain, n_records=10**6)
    assert "n_groups" not in algorithm_to_config(whole)["schedule"]
    for n_groups, moments in ((15, True), (129, True), (40, False)):
        config["schedule"].update(n_groups=n_groups, moments=moments)
        with pytest.raises(ConfigurationError, match="n_groups"):
            algorithm_from_config(config, domain, algorithm.budget)
    narrow = build(3, Ball(1.0, [0.0] * 30), n_records=10**6)
    config = algorithm_to_config(narrow)
    config["schedule"]["n_groups"] = 30
    with pytest.raises(
        ConfigurationError, match="at least 16 and fewer than the 30 columns"
    ):
        algorithm_from_config(config, narrow.domain, narrow.budget)


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
        assert (
            algorithm.n_rounds
            == algorithm.schedule.n_rounds
            == len(algorithm.plan().rounds)
        )


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("signal", "moments"), [(200.0, 0.35), (5000.0, 0.2048), (1e5, 0.15), (1.0, None)]
)
def test_second_moments_of_many_columns_have_a_larger_share(signal, moments):
    d = 256
    schedule = Schedule.of(signal, 5, d)
    rounds = [schedule.releases(t, d) for t in range(1, schedule.n_rounds + 1)]
    shares = [{r.name: r.cost**2 for r in releases} for releases in rounds]
    if moments is None:
        assert shares[0] == pytest.approx({"norms": 0.08})
        moments = 0.08
    else:
        assert shares[0] == pytest.approx({"moments": moments})
    # The others keep their proportions.
    left = (1 - moments) / 0.92
    n_synopses = len(schedule.cells)
    synopses = shares[1 : 1 + n_synopses]
    assert sum(sum(s.values()) for s in synopses) == pytest.approx(0.30 * left)
    for found in shares[1 + n_synopses :]:
        assert sum(found.values()) == pytest.approx(0.62 * left / 4)
    assert sum(sum(found.values()) for found in shares) == pytest.approx(1, rel=1e-12)
    assert schedule.strength(d) == pytest.approx(signal * math.sqrt(left))


@pytest.mark.claim("guarantees", "22")
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
        assert schedule.block_fractions(t, d) == pytest.approx(expected)
    refinements = shares[1 + len(schedule.cells) :]
    # s = signal / (5 sqrt d) is below 50, but for the strongest signal.
    n_refinements = 8 if d <= 32 and signal < 1e5 else 4
    assert len(refinements) == n_refinements
    for found in refinements:
        assert sum(found.values()) == pytest.approx((0.92 - synopsis) / n_refinements)
        assert found["refinement-counts"] == pytest.approx(
            0.4 / (1 + math.sqrt(4 * d)) * sum(found.values())
        )
    assert sum(sum(found.values()) for found in shares) == pytest.approx(1, rel=1e-12)


@pytest.mark.claim("equal-groups", "tenth-runs-goes-four")
@pytest.mark.parametrize("d", [1, 4, 16, 100])
@pytest.mark.parametrize("signal", [1.0, 200.0, 1e5])
def test_sizes_have_a_tenth_of_the_plan_and_the_rest_its_proportions(signal, d):
    schedule = Schedule.of(signal, 5, d, 4)
    assert schedule.signal == signal
    alone = replace(Schedule.of(signal * math.sqrt(0.9), 5, d), signal=signal)
    assert schedule.n_rounds == alone.n_rounds + 4
    assert schedule.strength(d) == pytest.approx(signal * math.sqrt(0.9))
    for t in range(1, schedule.n_rounds + 1):
        found = {r.name: r.cost**2 for r in schedule.releases(t, d)}
        assert schedule.is_sizing(t) == (t > alone.n_rounds)
        if schedule.is_sizing(t):
            assert found == pytest.approx({"sizes": 0.1 / 4})
            assert schedule.block_fractions(t, d) == {"counts": 1.0}
            assert not schedule.is_synopsis(t)
        else:
            before = {r.name: 0.9 * r.cost**2 for r in alone.releases(t, d)}
            assert found == pytest.approx(before, rel=1e-12)
    shares = [schedule.fraction(t, d) for t in range(1, schedule.n_rounds + 1)]
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("d", [1, 100, 784])
@pytest.mark.parametrize("epsilon", [0.1, 10.0])
@pytest.mark.parametrize("shares", [2, 4000])
def test_noise_can_be_shared_among_clients(d, epsilon, shares):
    algorithm = build(10, Ball(3.0, [0] * d), PrivacyBudget(epsilon), n_records=100_000)
    check_shares(algorithm, algorithm.plan(), shares)
    require_capacity(algorithm, math.sqrt(5))


# ----------------------------------------------------------------- the document


def changed_schedule(**change):
    return {"schedule": {**algorithm_to_config(build())["schedule"], **change}}


WRONG = {
    "more": [1],
    "name": ["synopsis"],
    "moments": [1],
    "cells": [[], 9, [6] * 9, [0], [2**23], ["6"]],
    "n_directions": [5, 0],
    "n_refinements": [0, 33],
    "n_sizings": [4],
    "count_share": ["0x1p+0", "0x0p+0", 0.5],
    "signal": [100, "0x0p+0", "-0x1.0000000000000p+3", "0x1.0000000000000p+20"],
}


@pytest.mark.parametrize(
    "change",
    [
        *({"n_rounds": 4}, {"schedule": []}, {"schedule": {}}, SIZED),
        *(changed_schedule(**{name: value}) for name in WRONG for value in WRONG[name]),
        *({**SIZED, **changed_schedule(n_sizings=number)} for number in (0, 33, "4")),
        *(
            {"min_size": size, **changed_schedule(n_sizings=4)}
            for size in (400, 250.0, None)
        ),
    ],
    ids=str,
)
def test_other_configurations_are_refused(change):
    algorithm = build()
    config = algorithm_to_config(algorithm)
    assert algorithm_from_config(config, BALL, algorithm.budget) == algorithm
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config({**config, **change}, BALL, algorithm.budget)


def test_the_largest_schedule_that_a_client_follows():
    """And one direction more, or all of a round for counts, is not followed."""

    def read(d, **change):
        config = {**algorithm_to_config(build()), **changed_schedule(**change)}
        domain = Ball(2.0, [0.5] * d)
        return algorithm_from_config(config, domain, build().budget).schedule

    for share in (math.nextafter(1, 0), 1e-300):
        change = {
            "cells": [6] * 8,
            "n_refinements": 32,
            "count_share": real_to_text(share),
        }
        config = changed_schedule(**change, n_directions=4)["schedule"]
        assert Schedule.from_config(config).n_rounds == 41
    assert read(4, cells=[6] * 8, n_refinements=32).n_rounds == 41
    assert read(4, cells=[1], n_refinements=1).n_rounds == 3
    assert read(100, n_directions=64).n_directions == 64
    assert read(2048).moments
    for d, change in (
        (100, {"count_share": real_to_text(1.0)}),
        (100, {"n_directions": 65}),
        (4, {"n_directions": 5}),
        (2049, {}),
    ):
        with pytest.raises(ConfigurationError):
            read(d, **change)


@pytest.mark.claim("guarantees", "11")
def test_the_noise_is_read_from_the_document():
    """Calibration may differ between processors in its last bits: clients take the server's."""
    algorithm = build()
    config = algorithm_to_config(algorithm)
    signal = float.fromhex(config["schedule"]["signal"]) * (1 + 2.0**-40)
    config["schedule"]["signal"] = real_to_text(signal)
    other = algorithm_from_config(config, BALL, algorithm.budget)
    assert other.noise_of(2)["sums"] < algorithm.noise_of(2)["sums"]
    assert other.plan() == algorithm.plan()


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rounds": 5}, "n_rounds='auto'.*Got 5"),
        ({"n_rounds": "many"}, "n_rounds='auto'.*Got 'many'"),
        ({**OF_CLIENTS, "clips": {"x": 1}}, "Got 'x'"),
        ({"clips": {"moments": 1}}, "clips=None unless"),
        ({"min_size": -1}, "min_size in"),
        ({"min_size": 334}, "min_size=334, max_size=None, n_records=1000"),
        ({"max_size": 333}, "min_size=None, max_size=333, n_records=1000 and"),
        ({"min_size": 3, "max_size": 2}, "min_size=3, max_size=2, .*=3"),
        (
            {"min_size": 1, "n_records": None, "budget": EXACT},
            "n_records is required with min",
        ),
        (
            {**OF_CLIENTS, "max_size": 500},
            "with unit='client': counts .* no sizes.*max_size=500",
        ),
        (
            {"k": 257, "n_records": 10**6, "min_size": 1},
            "n_clusters of at most 256 with min_size",
        ),
        (
            {"domain": Ball(1.0, [0] * 8), "fraction_bits": 24, "min_size": 1},
            "too fine for 8 col",
        ),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**options)


def test_bounds_may_be_as_narrow_as_equal_sizes():
    for bounds in (
        {"min_size": 333, "max_size": 334},
        {"min_size": 333},
        {"max_size": 334},
    ):
        assert build(**bounds).bounded
    assert build(n_records=999, min_size=333, max_size=333).sizes.bounds == (333, 333)
    assert build(min_size=5).sizes.bounds == (5, None)
    assert build(max_size=500).sizes.bounds == (0, 500)
    assert build().sizes is None


def test_the_noise_of_a_size_is_that_of_its_release():
    """sqrt(4 / 0.1) / mu, and nothing without privacy."""
    algorithm = build(**SIZED)
    (release,) = algorithm.plan().rounds[-1]
    assert (release.name, release.blocks) == ("sizes", ("counts",))
    assert algorithm.sizes.noise == pytest.approx(release.noise_multiplier)
    mu = mu_of_budget(1.0, algorithm.budget.delta)
    assert algorithm.sizes.noise == pytest.approx(math.sqrt(40) / mu)
    assert build(budget=EXACT, **SIZED).sizes.noise == 0.0
    assert algorithm.layout(algorithm.n_rounds).names == ("counts",)


def fixed(k, d, *, cells=(8,), n_directions=4, n_refinements=1):
    signal = build(k, n_records=10**6).schedule.signal
    fields = {
        "n_directions": n_directions,
        "cells": cells,
        "n_refinements": n_refinements,
    }
    schedule = Schedule(signal=signal, moments=False, count_share=0.4, **fields)
    planned = build(k, Ball(1.0, [0] * d), n_records=10**6)
    algorithm = replace(planned, schedule=schedule)
    algorithm.require_feasible()
    return algorithm


def test_the_largest_messages_and_runs():
    """2^22 words of a query or an answer, and 2^27 of all answers, but not one more."""
    # Of a query: the directions, and of every cell its centre and its radius.
    assert fixed(1, 2000, cells=(62_558,), n_directions=64).schedule.cells == (62_558,)
    with pytest.raises(
        ConfigurationError, match=f"Got {2000 * 64 + 62_559 * 65} in round 2"
    ):
        fixed(1, 2000, cells=(62_559,), n_directions=64)
    assert fixed(1, 4, cells=(2**20,), n_directions=2).layout(2).n_words == 2**22
    with pytest.raises(ConfigurationError, match="Got 4194308 in round 2"):
        fixed(1, 4, cells=(2**20 + 1,), n_directions=2)
    assert fixed(2048, 2047, n_refinements=31).layout(3).n_words == 2**22
    with pytest.raises(
        ConfigurationError, match=f"and {2**27 + 49} up to it.*n_clusters=2048"
    ):
        fixed(2048, 2047, n_refinements=32)
