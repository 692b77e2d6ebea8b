"""PE-means as pure mathematics: its votes, its selection, and whole runs without messages."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms import HDPEMeansAlgorithm, PEMeansAlgorithm, Query, State
from flower_kmeans.algorithms.feasibility import MAX_WORDS
from flower_kmeans.algorithms.lloyd import MAX_PACKING
from flower_kmeans.algorithms.pe_means import (
    CAPPED,
    FEW,
    HALVED,
    NO_VOTES,
    NOT_LIFTED,
    WARNINGS,
    cautions,
)
from flower_kmeans.algorithms.pe_means_population import variations
from flower_kmeans.algorithms.queries import check_query
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.strategies import HDPEMeans
from tests.algorithms.rows import population_of, run_of
from tests.support.saying import assert_within

BUDGET = PrivacyBudget(1.0)
EXACT = PrivacyBudget(None)
CLIENTS = PrivacyBudget(1.0, unit="client")
RNG = np.random.default_rng


def ball(d=2):
    return Ball(1.0, [0.0] * d)


def make(k=2, domain=None, budget=BUDGET, projects=None, **options):
    """PE-means, or HDPE-means where there are columns to project."""
    domain = domain or ball()
    projects = domain.n_features > 16 if projects is None else projects
    cls = HDPEMeansAlgorithm if projects else PEMeansAlgorithm
    return cls.planned(k, domain, budget, **{"n_records": 1000, **options})


def build(domain=None, k=2, budget=BUDGET, **options):
    """With few candidates, and without rounds and variations that follow from others."""
    options = {"n_records": 100, "n_vote_rounds": 3, "n_variations": 3, **options}
    return make(k, domain, budget, **options)


def test_a_record_has_one_vote_and_candidates_that_were_halved_away_have_none():
    algorithm = build(n_variations=8)
    points, rng = RNG(0).integers(-(2**15), 2**15, size=(60, 2)), RNG(1)
    for t, n_variations in ((1, 8), (2, 8), (2, 3), (3, 1)):
        arrays = {
            "variations": np.array([n_variations]),
            "seed": rng.integers(-9, 9, size=2),
        }
        arrays["centers"] = rng.integers(-(2**15), 2**15, size=(2, 2))
        query = Query(t, arrays if t > 1 else {})
        check_query(algorithm, query)
        for records in (points[:1], points):
            grid = GridRecords.from_grid(records, 16)
            words = algorithm.layout(t).flatten(algorithm.statistic(query, grid)) >> 16
            assert (words >= 0).all()
            assert words.sum() == len(records)
            assert t == 1 or not words[2 * (n_variations + 1) :].any()


@pytest.mark.claim("guarantees", "28")
def test_all_noise_is_alike_in_the_paper():
    algorithm = build(ball(17), equal_noise=True)
    (multiplier,) = {release.noise_multiplier for release in algorithm.plan().releases}
    # T releases of 1 / sigma are sqrt T / sigma together; T is two more than rounds of
    # votes.
    assert algorithm.plan().mu == pytest.approx(math.sqrt(5) / multiplier)


@pytest.mark.claim("guarantees", "28")
@pytest.mark.parametrize("n_vote_rounds", [1, 3])
@pytest.mark.parametrize("d", [17, 400])
def test_the_lift_has_most_of_the_budget(d, n_vote_rounds):
    algorithm = build(ball(d), n_vote_rounds=n_vote_rounds)
    plan = algorithm.plan()
    parts = {"votes": 0.0, "lift-sums": 0.0, "lift-counts": 0.0}
    for release in plan.releases:
        parts[release.name] += (1 / release.noise_multiplier / plan.mu) ** 2
    assert parts["votes"] == pytest.approx(0.4)
    assert parts["lift-sums"] + parts["lift-counts"] == pytest.approx(0.6)
    ratio = parts["lift-sums"] / parts["lift-counts"]
    assert ratio == pytest.approx(math.sqrt(4 * d))


@pytest.mark.parametrize(("factor", "warns"), [(0.99, True), (1.01, False)])
def test_the_plan_warns_of_noise_that_hides_how_clusters_differ(factor, warns):
    """Of sigma sqrt(d) k / N above 0.3, sigma the noise multiplier of the sums."""
    (*_, sums, _) = build(ball(400), 20, n_records=10**4).plan().releases
    enough = round(factor * sums.noise_multiplier * 20 * 20 / 0.3)
    algorithm = build(ball(400), 20, n_records=enough)
    assert len(cautions(algorithm)) == warns
    assert all("wrong by 0.3 times" in text for text in cautions(algorithm))
    assert cautions(build(ball(400), 20, EXACT)) == ()
    assert cautions(build(ball(2), 20)) == ()


@pytest.mark.parametrize(
    "domain", [ball(40), Box([-1] * 40, [1] * 40, tighten=0.1)], ids=["ball", "ranges"]
)
def test_a_strategys_plan_has_the_warning(domain):
    strategy = HDPEMeans(20, domain, BUDGET, 2000, n_clients=2)
    assert "WARNING: noise may hide how clusters differ" in strategy.plan.describe()


@pytest.mark.claim("guarantees", "28")
def test_votes_have_a_clip_of_their_own():
    def clips(d=2, **options):
        return dict(build(ball(d), budget=CLIENTS, n_clients=10, **options).clips)

    assert clips(17) == {"votes": math.sqrt(10), "lift-sums": 10.0, "lift-counts": 10.0}
    assert clips(clip=7.0) == {"votes": 7.0}
    assert clips(clips={"votes": 3.0}) == {"votes": 3.0}
    assert build().clips is None


@pytest.mark.parametrize("releases", [(), ("lift-sums", "votes")])
def test_a_document_has_the_clips_of_all_releases(releases):
    algorithm = build(ball(17), budget=CLIENTS, n_clients=10)
    config = algorithm_to_config(algorithm)
    config["clips"] = {name: config["clips"][name] for name in releases}
    with pytest.raises(ConfigurationError, match="Expected the clips of all releases"):
        algorithm_from_config(config, algorithm.domain, algorithm.budget)


def test_the_seed_of_a_query_is_the_key_of_its_variations():
    """Both words of it, as 128 bits without a sign."""
    algorithm, centers = build(), np.array([[0, 0], [5, 9]])
    for low, high in ((3, 0), (0, 3), (-1, -(2**63)), (2**63 - 1, 7)):
        arrays = {
            "centers": centers,
            "variations": np.array([2]),
            "seed": np.array([low, high]),
        }
        key = low % 2**64 + 2**64 * (high % 2**64)
        expected = np.concatenate(list(variations(centers, 2, key, algorithm.space)))
        np.testing.assert_array_equal(
            population_of(algorithm, Query(2, arrays)), expected
        )


# ----------------------------------------------------------------- updates


def round_of(algorithm, votes, state=None, answered=1.0):
    """The state after a round in which candidates got so many votes."""
    state = algorithm.initial_state() if state is None else state
    words = np.zeros(algorithm.layout(state.round + 1).n_words, dtype=np.int64)
    words[: len(votes)] = np.rint(np.asarray(votes) * 2.0**algorithm.fraction_bits)
    return algorithm.update(
        state, algorithm.layout(state.round + 1).unflatten(words, answered)
    )


def population(algorithm, state):
    return population_of(algorithm, algorithm.query(state))


@pytest.mark.claim("guarantees", "28")
def test_selection_is_weighted_k_means_of_what_the_zeroing_rule_keeps():
    algorithm = build(n_variations=4)
    state = algorithm.initial_state()
    points = population(algorithm, state)
    far = np.argsort(points[:, 0])
    votes = np.full(8, 5.0)
    # The two at either end get 101 votes together; the zeroing rule keeps nothing else.
    votes[far[[0, 1, -1]]] = [30, 20, 51]
    state = round_of(algorithm, votes)
    left = (30 * points[far[0]] + 20 * points[far[1]]) / 50
    found = state.arrays["centers"][np.argsort(state.arrays["centers"][:, 0])]
    np.testing.assert_allclose(found, [left, points[far[-1]]], atol=2)
    assert sorted(algorithm.counts(state)) == [50, 51]


@pytest.mark.claim("guarantees", "28")
def test_the_zeroing_rule_wants_no_votes_of_clients_that_did_not_answer():
    """Noise that fills up what is missing is kept where N votes are waited for, and no longer."""
    algorithm = build(n_variations=4)
    votes = [40.0, 5.0, -5.0, 0, 15.0, 0, 0, 0]
    assert sum(algorithm.counts(round_of(algorithm, votes))) == 60
    assert sum(algorithm.counts(round_of(algorithm, votes, answered=0.5))) == 55


@pytest.mark.claim("guarantees", "28")
def test_variations_are_halved_exactly_when_noise_exceeds_the_signal():
    """Line 8, with the noise of all candidates: sum of kept squares against |S| sigma^2."""
    algorithm = build(n_variations=6, n_records=10**6)
    noise = algorithm.noise_of(1)["counts"] / 2**16
    assert algorithm.n_start == 12
    for factor, expected in ((1.01, 6), (0.99, 3)):
        size = math.sqrt(factor * 12) * noise
        state = round_of(algorithm, [0, size / math.sqrt(2), 0, size / math.sqrt(2)])
        assert state.arrays["variations"].tolist() == [expected]
        assert (WARNINGS[HALVED] in algorithm.warnings(state)) == (expected == 3)
        assert len(population(algorithm, state)) == 2 * (expected + 1)
    # Of the smaller population, words beyond it are nothing but noise and do not count.
    votes = np.full(algorithm.layout(2).n_words, 1e6)
    votes[:8] = 0
    again = round_of(algorithm, votes, state)
    np.testing.assert_array_equal(again.arrays["centers"], state.arrays["centers"])
    assert again.arrays["variations"].tolist() == [1]
    assert WARNINGS[NO_VOTES] in algorithm.warnings(again)
    assert round_of(algorithm, votes, again).arrays["variations"].tolist() == [1]
    exact = build(budget=EXACT, n_variations=6)
    state = round_of(exact, [0, 1, 0, 1])
    assert (state.arrays["variations"].tolist(), exact.warnings(state)) == ([6], ())


@pytest.mark.claim("guarantees", "28")
def test_fewer_candidates_than_clusters_with_votes_are_noted():
    algorithm = build(k=3, n_variations=4)
    assert algorithm.centroids(algorithm.initial_state()) is None
    state = round_of(algorithm, [0, 0, 0, 90, 0, 0])
    points = population(algorithm, algorithm.initial_state())
    rows = {tuple(row) for row in state.arrays["centers"].tolist()}
    assert rows == {tuple(row) for row in points[[0, 1, 3]].astype(int).tolist()}
    assert WARNINGS[FEW] in algorithm.warnings(state)
    assert sorted(algorithm.counts(state)) == [0, 0, 90]
    # Later the first candidates are the centroids themselves.
    nothing = round_of(algorithm, [], state)
    np.testing.assert_array_equal(nothing.arrays["centers"], state.arrays["centers"])
    # Without any votes too, and of more candidates than a sort moves by insertion.
    algorithm = build(k=4, n_variations=25)
    state = round_of(algorithm, [])
    points = population(algorithm, algorithm.initial_state())
    np.testing.assert_array_equal(state.arrays["centers"], points[:4])
    assert WARNINGS[NO_VOTES] in algorithm.warnings(state)


@pytest.mark.parametrize(
    ("binds", "budget", "options"),
    [
        ("one record", EXACT, {}),
        ("length", BUDGET, {}),
        ("count", PrivacyBudget(1.0, unit="client"), {"n_clients": 50, "clip": 2.0}),
    ],
)
def test_the_last_round_divides_by_counts_that_are_worth_their_noise(
    binds, budget, options
):
    """Noise of a mean no longer than the radius, and a count above its noise, and a record."""
    if "clip" in options:
        options = {**options, "clips": {"lift-counts": 40.0}}
    domain = Box([-1] * 40, [1] * 40)
    options = {"n_records": 10**4, "n_vote_rounds": 1, **options}
    algorithm = build(domain, budget=budget, **options)
    noise = algorithm.noise_of(2)
    bounds = {
        "one record": 1.0,
        "length": noise["sums"] * math.sqrt(40) / (math.sqrt(40) * 2**16),
        "count": noise["counts"] / 2**16,
    }
    least = bounds.pop(binds)
    assert least > 1.001 * max(bounds.values())
    centers = np.array([[2**14] * 16, [-(2**13)] * 16])
    arrays = {"centers": centers, "flags": np.zeros(len(WARNINGS), dtype=bool)}
    for factor, usable in ((1.0005, True), (0.9995, False)):
        counts = np.array([factor * least, 1e6])
        words = np.concatenate([np.zeros(80), np.rint(counts * 2**16)]).astype(np.int64)
        state = algorithm.update(State(1, arrays), algorithm.layout(2).unflatten(words))
        assert (WARNINGS[NOT_LIFTED] in algorithm.warnings(state)) is not usable
        assert (not state.arrays["centroids"][0].any()) is usable


@pytest.mark.claim("guarantees", "28")
def test_the_last_round_lifts_centroids_or_leaves_them_where_the_projection_has_them():
    domain = ball(40)
    algorithm = build(domain, n_vote_rounds=1, budget=EXACT)
    centers = np.array([[2**14] * 16, [-(2**13)] * 16])
    flags = np.zeros(len(WARNINGS), dtype=bool)
    before = State(1, {"centers": centers, "counts": np.zeros(2), "flags": flags})
    sums = np.zeros((2, 40), np.int64)
    sums[0, 0] = 10 * 2**15
    words = np.concatenate([sums.ravel(), [10 * 2**16, 0]])
    state = algorithm.update(before, algorithm.layout(2).unflatten(words), RNG(0))
    centroids = algorithm.centroids(state)
    np.testing.assert_allclose(centroids[0], np.eye(40)[0] / 2, atol=1e-4)
    assert algorithm.warnings(state) == (WARNINGS[NOT_LIFTED],)
    np.testing.assert_array_equal(algorithm.counts(state), [10, 0])
    # A transposed projection lengthens by 40 / 16 on average.
    exponent = algorithm.projection.exponent
    back = centers[1] @ algorithm.matrix.T / 2**exponent * 16 / 40
    np.testing.assert_allclose(state.arrays["centroids"][1], back, atol=0.5 + 1e-9)


@pytest.mark.claim("guarantees", "28")
def test_projections_keep_lengths_on_average():
    """The scale is 1 / sqrt p of the projection's columns, not 1 / sqrt d."""
    ratios = []
    for seed in range(20):
        algorithm = build(ball(100), seed=seed)
        x = RNG(seed).normal(size=(50, 100))
        seen = x @ (algorithm.matrix / 2**16)
        ratios.extend((seen**2).sum(axis=1) / (x**2).sum(axis=1))
        assert algorithm.matrix.shape == (100, 16)
    # Each ratio has the variance 2 / 16, and those of a seed are nearly independent.
    assert abs(np.mean(ratios) - 1) < 7 * math.sqrt(2 / 16 / len(ratios)) * 3


# ----------------------------------------------------------------- runs


def gaussians(k, d, n, std, seed):
    angles = 2 * np.pi * np.arange(k) / k
    means = np.zeros((k, d))
    means[:, :2] = 0.7 * np.column_stack([np.cos(angles), np.sin(angles)])
    rng = RNG(seed)
    return means, np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])


@pytest.mark.parametrize("d", [2, 40])
def test_without_noise_it_finds_the_means_of_separate_gaussians(d):
    means, records = gaussians(4, d, 2000, 0.02, 7)
    algorithm = build(
        ball(d), 4, EXACT, n_records=2000, n_vote_rounds=5, n_variations=200
    )
    state = run_of(algorithm, [records])
    off = matched_centroid_error(algorithm.centroids(state), means)
    assert_within("centroids are off the means by", off, most=2e-3, strict=True)
    np.testing.assert_array_equal(np.sort(algorithm.counts(state)), [500] * 4)
    assert algorithm.warnings(state) == ()


@pytest.mark.default_cases("3-None", "40-300")
@pytest.mark.parametrize("clients", [None, 300])
@pytest.mark.parametrize("d", [3, 40])
def test_with_noise_it_comes_near_the_optimum(d, clients):
    _, records = gaussians(3, d, 6000, 0.05, 9)
    algorithm = build(
        ball(d),
        3,
        PrivacyBudget(8.0, unit="client") if clients else BUDGET,
        n_records=6000,
        n_vote_rounds=6,
        n_variations=200,
        n_clients=clients,
    )
    parts = np.array_split(RNG(0).permutation(records), clients or 1)
    state = run_of(algorithm, parts, Stream.from_key(bytes(range(32))))
    best = inertia(
        records, np.array([part.mean(axis=0) for part in np.split(records, 3)])
    )
    ratio = inertia(records, algorithm.centroids(state)) / best
    assert_within(
        "the inertia is", ratio, most=1.25, unit="of the best one", strict=True
    )
    assert WARNINGS[NO_VOTES] not in algorithm.warnings(state)


@pytest.mark.parametrize(
    "box", [Box([-1, 0], [1, 8]), Box([-1, 0], [1, 8], scale="common")]
)
def test_a_box_is_taken_as_a_part_of_its_enclosing_ball(box):
    algorithm = build(box)
    widths = box.grid_half_widths(16)
    assert algorithm.space.half_widths == tuple(widths)
    assert algorithm.space.radius == math.isqrt(int((widths**2).sum()))
    records = np.repeat([[-0.5, 2.0], [0.5, 6.0]], 100, axis=0)
    plain = build(box, budget=EXACT, n_variations=200)
    state = run_of(plain, [records])
    np.testing.assert_allclose(
        np.sort(plain.centroids(state), axis=0), [[-0.5, 2], [0.5, 6]], atol=0.2
    )


# ----------------------------------------------------- what follows from public figures


@pytest.mark.claim("guarantees", "28")
@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("d", [1, 2, 16, 128])
def test_rounds_are_those_of_the_paper(d, epsilon):
    rounds, budget = int(4 * max(1, epsilon) * math.sqrt(d)), PrivacyBudget(epsilon)
    assert make(domain=ball(d), budget=budget, projects=False).n_rounds == rounds
    if d > 16:
        projected, of_16 = (
            make(domain=ball(d), budget=budget),
            int(16 * max(1, epsilon)),
        )
        assert (projected.n_vote_rounds, projected.n_rounds) == (of_16 - 2, of_16 - 1)
        # In the paper two rounds less of votes pay for the sums and the counts: there
        # are of_16 releases in all.
        alike = make(domain=ball(d), budget=budget, equal_noise=True)
        multiplier = alike.plan().rounds[0][0].noise_multiplier
        mu = mu_of_budget(epsilon, projected.budget.delta)
        assert multiplier == pytest.approx(math.sqrt(of_16) / mu)


def test_rounds_are_no_more_than_a_run_can_have():
    for epsilon, rounds in ((24.0, 960), (25.0, 1000), (30.0, 1000)):
        found = make(domain=ball(100), budget=PrivacyBudget(epsilon), projects=False)
        assert found.n_rounds == rounds
    assert make(domain=ball(16), budget=EXACT).n_rounds == 16  # those of epsilon 1


@pytest.mark.claim("guarantees", "28")
@pytest.mark.parametrize(
    ("n", "expected"), [(5, 4), (19, 4), (25, 5), (1000, 200), (5000, 1000)]
)
def test_variations_are_those_of_the_paper(n, expected):
    algorithm = make(2, n_records=n)
    assert algorithm.n_variations == algorithm.most_variations == expected
    assert not algorithm.warnings(algorithm.initial_state())
    assert algorithm.layout(1).n_words == algorithm.n_start == 2 * expected
    assert {algorithm.layout(t).n_words for t in (2, 5)} == {2 * (expected + 1)}


@pytest.mark.claim("guarantees", "28")
def test_the_cap_binds_and_says_so():
    free = make(10, n_records=1000, max_candidates=2010)
    assert free.warnings(free.initial_state()) == ()
    for cap, most in ((2009, 199), (1000, 99), (20, 1)):
        algorithm = make(10, n_records=1000, max_candidates=cap)
        assert (algorithm.n_variations, algorithm.most_variations) == (200, most)
        assert algorithm.layout(2).n_words == 10 * (most + 1) <= cap
        assert algorithm.layout(1).n_words <= cap
        assert algorithm.warnings(algorithm.initial_state()) == (WARNINGS[CAPPED],)
    exact = make(10, budget=EXACT, n_records=None, max_candidates=500)
    assert exact.n_variations == 49  # without a number of records they fill the cap
    assert not exact.warnings(exact.initial_state())


@pytest.mark.claim("guarantees", "28")
def test_many_columns_start_from_fewer_candidates_but_one_for_every_cluster():
    options = {"n_records": 10**6, "max_candidates": 2**20}
    for d, p in ((2, 2), (16, 16), (800, 16)):
        algorithm = make(4, ball(d), **options)
        assert (
            algorithm.n_start
            == math.isqrt(MAX_PACKING // p)
            < algorithm.layout(2).n_words
        )
    assert (
        make(
            3000, ball(16), n_records=10**6, max_candidates=6000, n_variations=1
        ).n_start
        == 3000
    )


def test_projected_candidates_lie_in_a_ball_of_one_and_a_half_radii():
    """On a grid whose coordinates have one bit more than those of the records."""
    narrow = make(domain=ball(20))
    assert (narrow.projection.bits, narrow.projection.exponent) == (17, 16)
    assert narrow.space.half_widths == (2**17,) * 16
    assert narrow.space.radius == 3 * 2**15
    # A box of 400 columns has D = 20, and 4 bits less for its fractions.
    wide = make(domain=Box([-1] * 400, [1] * 400))
    assert (wide.projection.bits, wide.projection.exponent) == (17, 12)
    assert wide.space.half_widths == (2**17,) * 16
    assert wide.space.radius == 30 * 2**12


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"n_vote_rounds": 0}, ConfigurationError, "n_vote_rounds"),
        (
            {"n_vote_rounds": "some"},
            ConfigurationError,
            "n_vote_rounds as an integer or 'auto'",
        ),
        ({"n_variations": 0}, ConfigurationError, "n_variations"),
        ({"max_candidates": 5.5}, ConfigurationTypeError, "max_candidates"),
        (
            {"max_candidates": 3},
            ConfigurationError,
            rf"max_candidates in \[4, {MAX_WORDS}\]",
        ),
        ({"max_candidates": MAX_WORDS + 1}, ConfigurationError, "max_candidates in"),
        ({"clips": {"votes": 1.0}}, ConfigurationError, "clips=None unless"),
        (
            {"budget": CLIENTS, "n_clients": 5, "clips": {"lift-sums": 1.0}},
            ConfigurationError,
            "in",
        ),
        (
            {"budget": CLIENTS, "n_clients": 5, "clips": {"votes": 1e-9}},
            ConfigurationError,
            "step",
        ),
        (
            {"domain": ball(16), "projects": True},
            ConfigurationError,
            "more than 16 columns.*take PE",
        ),
        (
            {"k": 2049, "domain": ball(2047), "n_records": 10**6},
            ConfigurationError,
            r"k \(d \+ 1\)",
        ),
    ],
)
def test_bad_parameters_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        make(**options)


def test_the_longest_run_has_128_times_a_million_words():
    options = {"n_records": 10**8, "max_candidates": 2**20}
    longest = make(4, ball(1), n_vote_rounds=128, **options)
    assert longest.layout(2).n_words == 2**20
    assert sum(longest.layout(t).n_words for t in range(1, 129)) < 2**27
    with pytest.raises(
        ConfigurationError, match=r"n_rounds and max_candidates.*in 129 rounds"
    ):
        make(4, ball(1), n_vote_rounds=129, **options)
    assert make(2048, ball(2047), n_records=10**6).n_clusters == 2048
