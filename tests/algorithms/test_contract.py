"""What every algorithm promises: its sensitivities, total updates, and a plan that is kept."""

import itertools
import warnings
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    Query,
    Statistic,
    SuLloydAlgorithm,
    algorithm_from_config,
)
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget

PAPER = partial(FastLloydAlgorithm, relocation=False)
PRIVATE = [SuLloydAlgorithm, GLloydAlgorithm, FastLloydAlgorithm, PAPER]
BUDGET = PrivacyBudget(1.0)
CLIENT_BUDGET = PrivacyBudget(1.0, unit="client")
Q = 3  # a grid small enough to enumerate

# Bounds are attained by a record in a corner, or by one at a whole radius from its centroid.
DOMAINS = {
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
    "cube": Box([0] * 3, [1] * 3),
    "slab": Box([0, 0, 0], [8, 8, 2], scale="common"),
}


def build(cls, domain, k=2, **options):
    options = {"n_records": 1000, "fraction_bits": Q, "n_rounds": 3, **options}
    return cls(k, domain, PrivacyBudget(None) if cls is LloydAlgorithm else BUDGET, **options)


def grid_points(domain):
    """All grid points that a quantised record can be."""
    axes = [range(-int(g), int(g) + 1) for g in domain.grid_half_widths(Q)]
    points = np.array(list(itertools.product(*axes)), dtype=np.int64)
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    return points


def centroid_sets(domain, seed):
    """Corners and walls, which are the extremes, and some points at random."""
    points = grid_points(domain)
    rng = np.random.default_rng(seed)
    yield points[[0, -1]]
    yield points[[-1, -1]]
    for _ in range(6):
        yield points[rng.integers(len(points), size=2)]


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("cls", PRIVATE)
def test_one_record_changes_each_release_by_its_unit_at_most(cls, name):
    domain = DOMAINS[name]
    algorithm = build(cls, domain)
    records = grid_points(domain)
    if name == "cube":  # enough to reach whole radii: 13 = |(3, 4, 12)| and 9 = |(1, 4, 8)|
        records = records[np.isin(records, [-8, -7, -5, -4, 0, 4, 8]).all(axis=1)]
    others, rounds = records[::7], algorithm.plan().rounds
    held = np.vstack([others, others[:1]])
    largest = {}
    for query in queries(cls, algorithm, centroid_sets(domain, seed=1)):
        round_number, units = query.round, algorithm.units(query.round)
        before, changes = answer(algorithm, query, others), []
        for record in records:
            held[-1] = record
            changes.append(answer(algorithm, query, held) - before)
        changes = np.abs(np.array(changes)) / units
        for release in rounds[round_number - 1]:
            parts = changes[:, words_of(algorithm, release.blocks)]
            key = (round_number, release.name)
            largest[key] = max(largest.get(key, 0.0), sizes(release, parts).max())
    assert set(largest) == {(t, name) for t in (1, 2) for name in ("sums", "counts")}
    for key, norm in largest.items():
        assert norm <= 1 + 1e-12, key
        assert norm >= attained(cls, name, key) - 1e-12, key


def sizes(release, changes):
    """Each change in the norm of the release; with parts, the share of what all parts allow.

    Infinite where more words change than there are parts, or by more than theirs.
    """
    if not release.parts:
        return np.linalg.norm(changes, 1 if release.norm == "l1" else 2, axis=1)
    bounds = np.zeros(changes.shape[1])
    given = [bound for bound, number in release.parts for _ in range(number)]
    bounds[: len(given)] = sorted(given, reverse=True)
    fits = (-np.sort(-changes, axis=1) <= bounds + 1e-12).all(axis=1)
    return np.where(fits, changes.sum(axis=1) / bounds.sum(), np.inf)


def test_sulloyd_accounts_for_the_columns_of_a_box_one_by_one():
    """By the half width of each, however many there are of it; balls and pure epsilons jointly."""
    deep = Box([0, 0, 0], [8, 8, 2], scale="common")
    (sums, counts), *_ = build(SuLloydAlgorithm, deep).plan().rounds
    assert sums.parts == ((0.25, 1), (1.0, 2))
    assert (sums.norm, counts.norm, counts.parts) == ("linf", "l1", ())
    budget = PrivacyBudget(1.0, 0.0)
    for algorithm in (
        build(SuLloydAlgorithm, DOMAINS["disc"]),
        build_for_clients(SuLloydAlgorithm, deep, 2.0),
        SuLloydAlgorithm(2, deep, budget, n_records=1000, fraction_bits=Q),
        build(SuLloydAlgorithm, Box([0] * 17, range(1, 18), scale="common"), fraction_bits=10),
    ):
        assert {(r.norm, r.parts) for r in algorithm.plan().releases} == {("l1", ())}


def queries(cls, algorithm, sets):
    """Queries of two rounds. Radii of FastLloyd's: the first ones, and far shorter ones."""
    for t, centroids in itertools.product((1, 2), sets):
        asked = {"centroids": centroids}
        if cls is not FastLloydAlgorithm:
            yield Query(t, asked)
            continue
        for radius in {algorithm.radius_of(t), max(algorithm.radius_of(t) // 3, 1)}:
            yield Query(t, {**asked, "radius": np.array([radius])})


def attained(cls, name, key):
    """How much of its bound a release must reach on the grids above."""
    if key[1] == "counts":
        return 1.0
    if cls is PAPER:
        # A disc of this size holds few points at exactly a radius from a point on its rim.
        return 1.0 if name in ("line", "square", "cube") else 0.9
    if cls is SuLloydAlgorithm and name == "disc":
        return 0.9  # no grid point lies exactly on the diagonal of the disc
    return 1.0


def answer(algorithm, query, points):
    records = GridRecords.from_grid(points, algorithm.fraction_bits)
    return algorithm.flatten(algorithm.answer(query, records), query.round)


# ----------------------------------------------------------------- whole clients


FINE = 10  # truncation costs little here


def build_for_clients(cls, domain, clip, **options):
    options = {"n_records": 1000, "fraction_bits": FINE, "n_rounds": 3, **options}
    return cls(2, domain, CLIENT_BUDGET, n_clients=100, clip=clip, **options)


def fine(points):
    return points << (FINE - Q)


def clients(name):
    """Every client with up to three of some records: none, corners, the middle, and in between."""
    points = grid_points(DOMAINS[name])
    some = fine(points[np.unique(np.linspace(0, len(points) - 1, 7).astype(int))])
    for n in range(4):
        for chosen in itertools.combinations_with_replacement(range(len(some)), n):
            yield some[list(chosen)]


def exact_norm(change, units, norm):
    """The l1 norm, or the square of the l2 norm, in fractions."""
    power = 1 if norm == "l1" else 2
    pairs = zip(change.tolist(), units.tolist(), strict=True)
    return sum((Fraction(abs(c)) / Fraction(u)) ** power for c, u in pairs)


@pytest.mark.parametrize("clip", [0.75, 2.0])
@pytest.mark.parametrize("name", ["line", "square", "disc"])
@pytest.mark.parametrize("cls", PRIVATE)
def test_one_client_changes_each_release_by_its_unit_at_most(cls, name, clip):
    domain = DOMAINS[name]
    algorithm = build_for_clients(cls, domain, clip)
    rounds, held, largest = algorithm.plan().rounds, list(clients(name)), {}
    for query in queries(cls, algorithm, map(fine, centroid_sets(domain, seed=2))):
        round_number, units = query.round, algorithm.units(query.round)
        np.testing.assert_array_equal(units, clip * algorithm.record_units(query.round))
        releases = [(r, words_of(algorithm, r.blocks)) for r in rounds[round_number - 1]]
        for records in held:
            # All records of the client at once: beside those of others, it is there or it is not.
            change = answer(algorithm, query, records)
            for release, words in releases:
                norm = exact_norm(change[words], units[words], release.norm)
                assert norm <= 1
                if not len(records):
                    assert norm == 0
                largest.setdefault((round_number, release.name), []).append(
                    (norm, words.sum() / units[words].min())
                )
    assert set(largest) == {(t, name) for t in (1, 2) for name in ("sums", "counts")}
    for key, found in largest.items():
        norm, steps = max(found)
        # It is attained, but for truncation, which takes less than a step of each word.
        assert steps < 0.05
        assert float(norm) ** (1.0 if cls is SuLloydAlgorithm else 0.5) >= 1 - steps, key


@pytest.mark.parametrize("cls", PRIVATE)
def test_clients_are_clipped_one_by_one_and_never_stretched(cls):
    domain = DOMAINS["square"]
    algorithm = build_for_clients(cls, domain, 2.5)
    record_level = build(cls, domain, fraction_bits=FINE)
    query = algorithm.query(algorithm.initial_state())
    one, two = fine(grid_points(domain)[[3]]), fine(grid_points(domain)[[-1, -2]])
    for records in (one, two):  # less than two and a half records' worth
        exact = answer(record_level, query, records)
        np.testing.assert_array_equal(answer(algorithm, query, records), exact)
    many = answer(algorithm, query, np.repeat(two[:1], 500, axis=0))
    assert np.abs(many).sum() > 0
    assert np.abs(many).max() <= algorithm.units(query.round).max()
    assert int(many[-2:].sum()) == 2.5 * 2**FINE - 1  # 500 records; truncation takes the last step


@pytest.mark.parametrize("clip", [2.0, 3.5])
@pytest.mark.parametrize("cls", PRIVATE)
def test_one_record_of_a_clipped_client_changes_less_than_a_unit(cls, clip):
    """Clipping is a projection in l2; in l1 it at most doubles a distance."""
    domain = DOMAINS["square"]
    algorithm = build_for_clients(cls, domain, clip)
    *_, query = queries(cls, algorithm, [fine(grid_points(domain)[[0, -1]])])
    units = algorithm.units(query.round)
    releases = [(r, words_of(algorithm, r.blocks)) for r in algorithm.plan().rounds[1]]
    charged = algorithm.moves_of_a_record(2)
    moves = {release.name: m for (release, _), m in zip(releases, charged, strict=True)}
    for release, _ in releases:
        factor = 2 if release.norm == "l1" else 1
        assert factor / clip < moves[release.name] < factor / clip + 0.01
    seen = 0.0
    for records in clients("square"):
        before = answer(algorithm, query, records)
        for record in fine(grid_points(domain)[::60]):
            change = answer(algorithm, query, np.vstack([records, record])) - before
            for release, words in releases:
                ratios = np.abs(change[words]) / units[words]
                norm = ratios.sum() if release.norm == "l1" else np.sqrt((ratios**2).sum())
                assert norm <= moves[release.name]
                seen = max(seen, norm)
    assert seen > 0.5 / clip


def test_an_algorithm_without_a_clip_refuses_to_answer_for_clients():
    class Unclipped(GLloydAlgorithm):
        pass

    algorithm = build_for_clients(Unclipped, DOMAINS["square"], 2.0)
    query = algorithm.query(algorithm.initial_state())
    object.__delattr__(algorithm, "clip")
    with pytest.raises(ConfigurationError, match="unit='record' for Unclipped, which does not"):
        algorithm.units(query.round)
    with pytest.raises(ConfigurationError, match="unit='record' for Unclipped, which does not"):
        answer(algorithm, query, fine(grid_points(DOMAINS["square"])))


def test_words_that_no_release_covers_are_not_sent_for_clients():
    class Partial(GLloydAlgorithm):
        def releases(self, round_number):
            return tuple(r for r in super().releases(round_number) if r.name == "counts")

    algorithm = build_for_clients(Partial, DOMAINS["square"], 2.0)
    query = algorithm.query(algorithm.initial_state())
    words = answer(algorithm, query, fine(grid_points(DOMAINS["square"])[-2:]))
    assert not words[:4].any()
    assert words[4:].any()


def words_of(algorithm, blocks):
    mask, start = np.zeros(algorithm.words(1), dtype=bool), 0
    for block in algorithm.layout(1):
        mask[start : start + block.size] = block.name in blocks
        start += block.size
    return mask


@pytest.mark.parametrize("cls", PRIVATE)
def test_every_word_belongs_to_exactly_one_release(cls):
    algorithm = build(cls, DOMAINS["square"])
    for releases in algorithm.plan().rounds:
        times = sum(words_of(algorithm, release.blocks).astype(int) for release in releases)
        assert (times == 1).all()


@pytest.mark.parametrize("cls", [LloydAlgorithm, *PRIVATE])
def test_records_outside_the_bounds_count_as_records_on_them(cls):
    domain = Box([0, 0], [1, 1])
    algorithm = build(cls, domain)
    query = algorithm.query(algorithm.initial_state())
    far = GridRecords(np.array([[1e9, -1e300], [0.5, 7.0]]), domain, Q)
    near = GridRecords(np.array([[1.0, 0.0], [0.5, 1.0]]), domain, Q)
    for name, block in algorithm.statistic(query, far).blocks.items():
        np.testing.assert_array_equal(block, algorithm.statistic(query, near).blocks[name])


@pytest.mark.parametrize("cls", [LloydAlgorithm, *PRIVATE])
@pytest.mark.parametrize("n", [0, 1])
def test_clusters_without_records_send_zeros(cls, n):
    algorithm = build(cls, DOMAINS["square"], k=4)
    query = algorithm.query(algorithm.initial_state())
    statistic = algorithm.statistic(query, GridRecords.from_grid(np.zeros((n, 2), np.int64), Q))
    empty = statistic.blocks["counts"] == 0
    assert empty.sum() >= 4 - n
    assert not statistic.blocks["sums"][empty].any()


@pytest.mark.parametrize("cls", [LloydAlgorithm, *PRIVATE])
def test_answers_add_up_to_that_of_the_pooled_records(cls):
    algorithm = build(cls, DOMAINS["cube"], k=3)
    points = np.random.default_rng(0).integers(-(2**Q), 2**Q + 1, size=(60, 3))
    query = algorithm.query(algorithm.initial_state())
    parts = [answer(algorithm, query, part) for part in np.array_split(points, 7)]
    np.testing.assert_array_equal(sum(parts), answer(algorithm, query, points))


@pytest.mark.parametrize("cls", PRIVATE)
def test_every_word_has_a_unit(cls):
    algorithm = build(cls, DOMAINS["square"])
    for t in (1, 2, 3):
        units = algorithm.units(t)
        assert units.shape == (algorithm.words(t),)
        assert units.dtype == np.float64
        assert (units > 0).all()


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, 2**16, -1])
VARIANTS = [(cls, {}) for cls in (LloydAlgorithm, *PRIVATE[:3])] + [
    (FastLloydAlgorithm, {"postprocess": "truncate"}),
    (FastLloydAlgorithm, {"postprocess": "none", "radius": "constant"}),
    (FastLloydAlgorithm, {"relocation": False}),
]


@pytest.mark.parametrize("name", ["rectangle", "disc"])
@pytest.mark.parametrize(("cls", "options"), VARIANTS)
@settings(max_examples=30, deadline=None)
@given(words=arrays(np.int64, (3, 8), elements=INT64))
def test_update_accepts_any_integers(cls, options, name, words):
    algorithm = build(cls, DOMAINS[name], **options)
    state = algorithm.initial_state()
    before = state.arrays["centroids"].copy()
    limit = 2 if options.get("postprocess") == "none" else 1
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for t, vector in enumerate(words[:, : algorithm.words(1)], start=1):
            following = algorithm.update(state, algorithm.unflatten(vector, t))
            again = algorithm.update(state, algorithm.unflatten(vector, t))
            assert following.round == t
            for key, array in following.arrays.items():
                assert array.dtype == np.int64
                np.testing.assert_array_equal(array, again.arrays[key])
            state = following
            centroids = state.arrays["centroids"]
            assert (np.abs(centroids) <= limit * algorithm.domain.grid_half_widths(Q)).all()
            if name == "disc" and limit == 1:
                assert ((centroids**2).sum(axis=1) <= 4**Q).all()
            assert np.isfinite(algorithm.centroids(state)).all()
            np.testing.assert_array_equal(algorithm.counts(state), vector[-2:] / 2.0**Q)
            # The next query can be asked whatever came back.
            statistic = algorithm.statistic(
                algorithm.query(state), GridRecords.from_grid(grid_points(algorithm.domain), Q)
            )
            assert statistic.blocks["counts"].sum() <= len(grid_points(algorithm.domain)) << Q
    np.testing.assert_array_equal(algorithm.initial_state().arrays["centroids"], before)


@pytest.mark.parametrize(("cls", "options"), VARIANTS)
@pytest.mark.parametrize("name", ["rectangle", "disc"])
def test_an_algorithm_survives_its_configuration(cls, options, name):
    options = {**options, "initial": [[0.1, 0.2], [0.3, 0.4]], "n_rounds": "auto", "seed": 5}
    algorithm = build(cls, DOMAINS[name], **options)
    again = algorithm_from_config(algorithm.to_config(), algorithm.domain, algorithm.budget)
    assert type(again) is cls
    assert again == algorithm
    assert hash(again) == hash(algorithm)
    assert again.to_config() == algorithm.to_config()
    assert again.plan() == algorithm.plan()
    assert again != build(cls, DOMAINS["square"], **options)


@pytest.mark.parametrize("cls", [LloydAlgorithm, *PRIVATE])
def test_centroids_are_in_the_users_units(cls):
    initial = np.array([[10.0, -3.0], [20.0, -1.0], [12.5, -2.0]])
    domain = Box([10, -3], [20, -1])
    algorithm = build(cls, domain, k=3, initial=initial, fraction_bits=16)
    state = algorithm.initial_state()
    np.testing.assert_allclose(algorithm.centroids(state), initial, atol=1e-4)
    assert algorithm.counts(state) is None
    assert state.round == 0


def test_statistics_are_named_as_the_layout():
    algorithm = build(FastLloydAlgorithm, DOMAINS["square"])
    query = algorithm.query(algorithm.initial_state())
    statistic = algorithm.statistic(query, GridRecords.from_grid(np.zeros((1, 2), int), Q))
    assert isinstance(statistic, Statistic)
    assert list(statistic.blocks) == [block.name for block in algorithm.layout(1)]
    assert {block.exponent for block in algorithm.layout(1)} == {Q}
