"""An algorithm behind a round that finds the ranges of columns."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from flower_kmeans.algorithms import (
    ConstrainedLloydAlgorithm,
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    PEMeansAlgorithm,
    Query,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
    ranges,
    tightened,
)
from flower_kmeans.algorithms.answers import contribution, words_of_rows
from flower_kmeans.algorithms.budget_parts import rest_of
from flower_kmeans.algorithms.queries import UNUSABLE, check_query
from flower_kmeans.algorithms.ranges import BINS, COARSE
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.algorithms.tightened import BOX, RANGES, Tightened
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.data.table_domain import Category, Number, TableDomain
from flower_kmeans.errors import (
    BudgetError,
    ConfigurationError,
    MessageError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.vertical.algorithm import VerticalAlgorithm

RNG = np.random.default_rng
BUDGET = PrivacyBudget(1.0, 1e-6)
CLIENTS = PrivacyBudget(2.0, 1e-6, unit="client")
WIDE = Box([-100, 0, -3], [100, 1000, 3], tighten=0.1)
N = 20_000


def make(kind=GLloydAlgorithm, domain=WIDE, budget=BUDGET, k=3, **options):
    return tightened.planned(kind, k, domain, budget, **{"n_records": N, **options})


def records(n=N):
    """Return records in three groups within a small part of the bounds."""
    centers = np.array([[2, 400, -1], [4, 402, 1], [2, 404, 0]])
    return centers[np.arange(n) % 3] + RNG(0).normal(0, 0.2, (n, 3))


def run(algorithm, rows, noise=None):
    """Return the state after all rounds."""
    state = algorithm.initial_state(RNG(1))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        check_query(algorithm, query)
        words = words_of_rows(algorithm, query, rows)
        if noise is not None:
            words = words + noise(number)
        answer = algorithm.layout(number).unflatten(words)
        state = algorithm.update(state, answer, RNG(number))
    return state


# --------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(
    "kind", [GLloydAlgorithm, FastLloydAlgorithm, SynopsisAlgorithm]
)
def test_ranges_cost_their_share_of_mu_squared_and_the_rest_is_as_planned(kind, share):
    algorithm = make(kind, WIDE.tightened(share))
    plan = algorithm.plan()
    first, *others = plan.rounds
    (release,) = first
    mu = mu_of_budget(1.0, 1e-6)
    assert plan.mu == pytest.approx(mu, rel=1e-12)
    assert release.name == RANGES
    assert release.blocks == ("coarse", "middle", "fine")
    assert release.cost**2 / mu**2 == pytest.approx(share, rel=1e-12)
    inner = kind.planned(
        3, WIDE.tightened(None), rest_of(BUDGET, share), n_records=N
    ).plan()
    assert len(others) == len(inner.rounds)
    for own, expected in zip(others, inner.rounds, strict=True):
        for each, other in zip(own, expected, strict=True):
            multiplier = pytest.approx(other.noise_multiplier, rel=1e-9)
            assert each.noise_multiplier == multiplier
            assert replace(each, noise_multiplier=1.0) == replace(
                other, noise_multiplier=1.0
            )


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize("budget", [BUDGET, CLIENTS])
def test_the_noise_of_a_bin_is_that_of_the_plan(budget):
    n_clients = 50 if budget is CLIENTS else None
    algorithm = make(budget=budget, n_clients=n_clients)
    (release,) = algorithm.plan().rounds[0]
    clip = N / (4 * 50) if budget is CLIENTS else 1.0
    assert algorithm.clipping.of(release) == clip
    expected = release.noise_multiplier * clip * math.sqrt(9) * 2**16
    for found in algorithm.noise_of(1).values():
        assert found == pytest.approx(expected, rel=1e-12)
    assert set(algorithm.block_sensitivities(1).values()) == {3.0 * 2**16}


def test_categories_have_no_histograms():
    columns = [Number("x", 0, 9), Category("c", ("a", "b", "c")), Number("y", 0, 9)]
    algorithm = make(domain=TableDomain(columns, tighten=0.1))
    assert algorithm.layout(1).n_words == 2 * (16 + 128 + 1024)
    assert algorithm.block_sensitivities(1)["fine"] == math.sqrt(6) * 2**16
    rows = algorithm.domain.encode({"x": [1, 8], "c": ["a", "c"], "y": [5, 5]})
    state = run(make(domain=algorithm.domain, budget=PrivacyBudget(None), k=2), rows)
    assert state.arrays[BOX][1:4].tolist() == [[0, ranges.END]] * 3
    assert not ranges.stays_outer(state.arrays[BOX])[4]


# --------------------------------------------------------------------------- the rounds


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize("scale", ["column", "common"])
@pytest.mark.parametrize(
    "kind",
    [
        LloydAlgorithm,
        GLloydAlgorithm,
        FastLloydAlgorithm,
        PEMeansAlgorithm,
        SynopsisAlgorithm,
    ],
)
def test_later_rounds_are_those_of_a_run_over_the_ranges(kind, scale):
    """Bit for bit, as if a user had known the ranges, with one scale for each column."""
    budget = PrivacyBudget(None)
    wide = Box(WIDE.lower, WIDE.upper, scale, tighten=0.1)
    algorithm = make(kind, wide, budget)
    state = run(algorithm, records())
    domain = algorithm.released_domain(state)
    assert domain.scale == scale
    assert (np.array(domain.lower) >= wide.lower).all()
    assert (np.ptp([domain.lower, domain.upper], axis=0)[:2] < [9, 20]).all()
    if scale == "common":
        return
    other = kind.planned(3, domain, budget, n_records=N)
    known = run(other, records())
    for name, array in known.arrays.items():
        np.testing.assert_array_equal(state.arrays[name], array)
    np.testing.assert_array_equal(algorithm.centroids(state), other.centroids(known))


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize("scale", ["column", "common"])
def test_no_ranges_change_what_was_planned(scale):
    """Sensitivities, noise, words and ranges of queries are those of the outer bounds."""
    algorithm = make(SynopsisAlgorithm, Box(WIDE.lower, WIDE.upper, scale, tighten=0.3))
    rng = RNG(2)
    for _ in range(20):
        low = rng.integers(0, ranges.END - 16, 3, endpoint=True)
        high = low + rng.integers(16, ranges.END - low, endpoint=True)
        box = np.stack([low, high], axis=1)
        within = algorithm._within(box)
        rows = rng.uniform(-2000, 2000, (60, 3))
        for number in range(1, algorithm.inner.n_rounds + 1):
            inner = algorithm.inner
            assert within.releases(number) == inner.releases(number)
            assert within.layout(number) == inner.layout(number)
            assert within.noise_of(number) == inner.noise_of(number)
            own = within.block_sensitivities(number)
            assert own == inner.block_sensitivities(number)
        query = Query(2, {BOX: box})
        grid = np.concatenate([*algorithm.records_of(query, rows).blocks(99)])
        widths = algorithm.domain.grid_half_widths(16)
        assert (np.abs(grid) <= widths).all()
        assert widths.tolist() == [2**16] * 3


def test_with_one_scale_each_column_is_clipped_to_its_own_range():
    wide = Box([0, 0], [100, 1000], "common", tighten=0.1)
    algorithm = make(domain=wide, k=2)
    box = np.array([[0, 1638], [0, 1638]])  # a tenth of each
    query = Query(2, {BOX: box})
    rows = np.array([[1e9, 1e9], [-1.0, 50.0], [5.0, 50.0]])
    grid = np.concatenate([*algorithm.records_of(query, rows).blocks(99)])
    unit = 50.0 * (16380 / 16384)
    short = 5.0 * (16380 / 16384)
    most = np.rint(short / unit * 2**16)
    assert grid[0].tolist() == [most, 2**16]
    assert grid[1].tolist() == [-most, grid[2, 1]]
    within = algorithm._within(box).domain
    reread = within.quantise(within.to_unit(rows), 16)
    np.testing.assert_array_equal(reread, grid)


def test_given_centroids_and_points_of_a_server_are_placed_after_the_ranges_are_known():
    """On the grid of the outer bounds their differences would be lost."""
    points = records(30)
    given = make(
        GLloydAlgorithm, initial=points[:3], n_rounds=1, budget=PrivacyBudget(None)
    )
    state = given.update(
        given.initial_state(),
        given.layout(1).unflatten(words_of_rows(given, Query(1), records())),
    )
    step = np.ptp(np.array(WIDE.lower + WIDE.upper).reshape(2, 3), axis=0) * 2**-17
    own = slice(2)  # the third column stays within its outer bounds
    off = np.abs(given.centroids(state) - points[:3])
    assert (off < step / 20)[:, own].all()
    server = make(
        FedDPAlgorithm, server_data=points, budget=PrivacyBudget(None), n_lloyd_rounds=1
    )
    state = server.update(
        server.initial_state(),
        server.layout(1).unflatten(words_of_rows(server, Query(1), records())),
    )
    within = server.at(state).domain
    placed = within.from_unit(state.arrays["server"] * 2.0**-16)
    inside = np.clip(points, within.lower, within.upper)
    assert (np.abs(placed - inside) < step / 20)[:, own].all()


def test_a_lost_first_round_leaves_the_outer_bounds():
    algorithm = make(GLloydAlgorithm, n_rounds=2)
    assert algorithm.can_miss_sums
    state = algorithm.initial_state().without_sum()
    query = algorithm.query(state)
    check_query(algorithm, query)
    assert query.arrays[BOX].tolist() == [[0, ranges.END]] * 3
    assert "outer bounds" in algorithm.warnings(state)[-1]


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize(
    "rows",
    [
        [[0, 15], [0, 16], [0, 16]],
        [[16, 0], [0, 16], [0, 16]],
        [[-1, 16], [0, 16], [0, 16]],
        [[0, 16], [0, 16], [0, ranges.END + 1]],
        [[0, 2**62], [0, 16], [0, 16]],
        [[-(2**63), 2**63 - 1], [0, 16], [0, 16]],
        [[0, 16], [0, 16]],
    ],
)
def test_hostile_ranges_are_refused(rows):
    algorithm = make(GLloydAlgorithm)
    state = run(algorithm, records())
    good = algorithm.query(replace(state, round=1))
    check_query(algorithm, good)
    bad = Query(2, {**good.arrays, BOX: np.array(rows, dtype=np.int64)})
    with pytest.raises(MessageError) as error:
        check_query(algorithm, bad)
    assert str(error.value) == UNUSABLE


def test_ranges_of_a_category_are_refused():
    columns = [Number("x", 0, 9), Category("c", ("a", "b"))]
    algorithm = make(domain=TableDomain(columns, tighten=0.1), k=2)
    good = algorithm.query(algorithm.initial_state().without_sum())
    check_query(algorithm, good)
    box = good.arrays[BOX].copy()
    box[1] = [0, 100]
    with pytest.raises(MessageError, match=UNUSABLE):
        check_query(algorithm, Query(2, {**good.arrays, BOX: box}))


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            SuLloydAlgorithm,
            {},
            "without tighten for SuLloyd: histograms of columns need Gaussian",
        ),
        (
            FedDPAlgorithm,
            {"server_data": records(9), "mechanisms": "laplace"},
            "for FedDP: .*Gaussian",
        ),
        (
            FedDPAlgorithm,
            {"server_data": records(9), "budget": CLIENTS, "n_clients": 50},
            "for FedDP: its clips follow from server_data.*give clip",
        ),
        (
            ConstrainedLloydAlgorithm,
            {"n_clients": 4, "mechanism": "laplace"},
            "for ConstrainedLloyd: .*Gaussian",
        ),
        (VerticalAlgorithm, {}, "without tighten for Vertical"),
    ],
)
def test_algorithms_that_cannot_begin_with_ranges_are_refused_by_name(
    kind, options, message
):
    with pytest.raises(ConfigurationError, match=message):
        make(kind, **options)


def test_a_clip_lets_points_of_a_server_begin_with_ranges():
    algorithm = make(
        FedDPAlgorithm, server_data=records(9), budget=CLIENTS, n_clients=50, clip=2.0
    )
    assert dict(algorithm.clipping.own)[RANGES] == N / 200


def test_delta_zero_has_no_gaussian_noise():
    with pytest.raises(BudgetError, match="delta"):
        make(budget=PrivacyBudget(1.0, 0.0))


def test_an_algorithm_alone_refuses_a_domain_with_tighten():
    with pytest.raises(ConfigurationError, match=r"no round that finds.*tighten=0\.1"):
        GLloydAlgorithm.planned(3, WIDE, BUDGET, n_records=N)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_errors_say_which_epsilon_was_given_and_which_remains(epsilon):
    domain = Box(WIDE.lower, WIDE.upper, tighten=0.13)
    budget = PrivacyBudget(epsilon, 1e-6)
    remains = rest_of(budget, 0.13).epsilon
    message = (
        rf"epsilon={remains} instead\. This is the budget after tighten=0\.13 of mu\^2: "
        rf"epsilon={remains:.3g} remains of epsilon={epsilon:g}\."
    )
    with pytest.raises(ConfigurationError, match=message):
        make(domain=domain, budget=budget, clip=3.0)


def test_errors_without_an_epsilon_stay_as_they_are():
    with pytest.raises(ConfigurationError) as caught:
        make(n_records=0)
    assert "tighten" not in str(caught.value)


def test_another_domain_has_no_round_for_ranges():
    for domain in (Ball(1.0, [0, 0]), WIDE.tightened(None)):
        assert not isinstance(make(domain=domain), Tightened)


# --------------------------------------------------------------------------- documents


def test_a_document_has_the_inner_algorithm_and_the_domain_says_the_rest():
    algorithm = make(SynopsisAlgorithm)
    config = algorithm_to_config(algorithm)
    assert config == algorithm_to_config(algorithm.inner)
    assert algorithm_from_config(config, WIDE, BUDGET) == algorithm
    other = algorithm_from_config(
        algorithm_to_config(make(GLloydAlgorithm)), WIDE.tightened(0.2), BUDGET
    )
    assert other.plan() != make(GLloydAlgorithm).plan()


# --------------------------------------------------------------------------- an attack


def units_of_one(unit):
    """Return an algorithm, and the rows of one unit that moves the histograms by most."""
    budget = PrivacyBudget(60.0, 1e-6, unit)
    row = np.array([[2.0, 400.0, -1.0]])
    if unit == "person":
        algorithm = make(budget=budget, n_records=None, n_persons=N)
        # A person of three records, each of a third of the weight.
        weight = algorithm.full_weight // 3
        return algorithm, np.column_stack([np.repeat(row, 3, axis=0), [weight] * 3])
    if unit == "client":
        return make(budget=budget, n_clients=50), np.repeat(row, 4_000, axis=0)
    return make(budget=budget), row


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize("unit", ["record", "person", "client"])
@pytest.mark.parametrize("size", [1.0, 2 / 3])
def test_an_attack_on_ranges_finds_the_cost_of_one_unit_and_more_with_less_noise(
    unit, size
):
    """The best attack: the part of the noise along the change of the unit.

    With 1,500 sums an estimate of mu is within 0.3 but for one in a million tests. With
    less noise it is 10 deviations above.
    """
    algorithm, rows = units_of_one(unit)
    (release,) = algorithm.plan().rounds[0]
    query = algorithm.query(algorithm.initial_state())
    change = contribution(algorithm, 1, words_of_rows(algorithm, query, rows))
    scale = release.noise_multiplier * sensitivities(algorithm, 1)
    direction = change / scale
    moved = float(np.linalg.norm(direction))
    assert 0.99 * release.cost < moved <= release.cost * (1 + 1e-9)
    stream = Stream.fresh()
    sums = []
    for _ in range(1_500):
        noise = size * server_noise(algorithm, algorithm.plan(), 1, stream)
        sums.append(float(noise / scale @ direction) / moved)
    found = np.array(sums)
    present = np.mean(found + moved > moved / 2)
    absent = np.mean(found > moved / 2)
    attacked = norm.ppf(present) - norm.ppf(absent)
    assert (attacked > release.cost + 0.3) == (size < 1)
    if size == 1:
        assert attacked > release.cost - 0.3


# --------------------------------------------------------------------------- the notes


def test_the_plan_says_which_groups_may_be_cut_off():
    small = make(domain=Box([0, 0], [1, 1], tighten=0.1), n_records=5000)
    (note,) = small.notes
    # 5 s of two columns
    assert "groups of fewer than 164 records that lie apart may be cut off" in note
    assert make(n_records=20_000).cautions == ()
    (warning,) = make(n_records=9000).cautions
    assert warning.startswith("WARNING: 201 records are more than a fiftieth of")
    open_ = make(budget=PrivacyBudget(None))
    assert (open_.notes, open_.cautions) == ((), ())


def test_the_rule_knows_noise_beyond_the_plan():
    """A bin of 4 deviations is inhabited, unless the noise is a fourth larger."""
    algorithm = make(domain=Box([0, 0], [1, 1], tighten=0.1))
    words = np.zeros(algorithm.layout(1).n_words, dtype=np.int64)
    answer = algorithm.layout(1).unflatten(words)
    coarse, middle, fine = (answer.blocks[name] for name in BINS)
    much = int(40 * algorithm.noise_of(1)[COARSE])
    few = int(4 * algorithm.noise_of(1)[COARSE])
    for column in range(2):
        for block, n_bins in ((coarse, 16), (middle, 128), (fine, 1024)):
            own = block.reshape(2, n_bins)[column]
            own[n_bins // 2] = much
            own[-1] = few
    box = algorithm.update(algorithm.initial_state(), answer).arrays[BOX]
    louder = replace(answer, noise_factor=1.25)
    narrow = algorithm.update(algorithm.initial_state(), louder).arrays[BOX]
    # With the bin at the end the range is longer than a fifth, so the bounds stay.
    np.testing.assert_array_equal(box, [[0, 2**14]] * 2)
    assert (narrow[:, 1] - narrow[:, 0] < 2**11).all()


def test_for_persons_the_plan_counts_persons():
    by_person = PrivacyBudget(1.0, unit="person")
    few = make(budget=by_person, n_records=None, n_persons=5000)
    (note,) = few.notes
    assert re.search(r"groups of fewer than \d+ persons that lie apart", note)
    (warning,) = few.cautions
    assert re.search(
        r"\d+ persons are more than a fiftieth of n_persons=5,000", warning
    )
    many = make(budget=by_person, n_records=None, n_persons=100_000)
    assert many.cautions == ()


def test_for_clients_the_plan_says_which_share_may_be_cut_off():
    (warning,) = make(budget=CLIENTS, n_clients=50).cautions
    assert warning.startswith("WARNING: 0.")
    many = make(budget=CLIENTS, n_clients=5000, n_records=10**6)
    assert many.cautions == ()
    (note,) = many.notes
    assert "of the records that lie apart may be cut off" in note


def test_columns_that_stayed_outer_are_named_with_what_may_help():
    algorithm = make(LloydAlgorithm, budget=PrivacyBudget(None))
    rows = records()
    rows[:, 2] = RNG(3).uniform(-3, 3, N)
    (text,) = algorithm.warnings(run(algorithm, rows))
    assert text.startswith("The outer bounds of 'column 3' stayed")
    assert "sentinel" in text
    assert "clamped" in text
