"""Whole runs of SynopsisKMeans: fallbacks, sizes of messages, absent clients, bounds on sizes."""

import json
import logging
import math
from functools import partial

import numpy as np
import pytest
import rows
from harness import run_recorded, stock_start, without_noise

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, Sphere, simulate
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.algorithms.synopsis_state import WARNINGS, Note
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
)
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import SynopsisKMeans
from tests.support.saying import assert_within

RNG = np.random.default_rng
RECORDS = np.repeat(rows.CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
BALL = Ball(14.0, [0.0, 0.0, 0.0])


def make(
    trust="distributed-noise",
    *,
    epsilon=8.0,
    k=3,
    domain=BALL,
    n_records=1200,
    **options,
):
    options = {"n_clients": 6, "min_clients": 3, **options}
    budget = PrivacyBudget(None if trust == "plain" else epsilon)
    return SynopsisKMeans(k, domain, budget, n_records, trust=trust, **options)


@pytest.mark.claim("choosing", "synopsiskmeans-second-moments-then")
def test_the_plan_and_shares_of_noise_limit_rounds_and_bits():
    with pytest.raises(ConfigurationError, match="n_rounds='auto' for SynopsisKMeans"):
        make(n_rounds=5)
    with pytest.raises(ConfigurationError, match="noise share"):
        make(fraction_bits=1, epsilon=500.0)


@pytest.mark.parametrize("d", [100, 128])
def test_second_moments_travel_by_half_and_only_where_they_are_worth_it(d):
    parts, domain = (
        np.split(RNG(4).normal(size=(9, d)) * 0.1, 3),
        Ball(4.0, np.zeros(d)),
    )
    longest = []
    for n_records in (10**6, 40):
        options = {"k": 2, "domain": domain, "n_clients": 3, "n_records": n_records}
        outcome = run_recorded(make("trusted-server", **options), parts)
        answers = [
            item.message for item in outcome.grid.received if item.kind == "answer"
        ]
        longest.append(max(len(answer.words) for answer in answers) // 8)
    assert longest[0] == d * (d + 1) // 2 + 1
    assert longest[1] < 2000


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("alone", [None, 0, 2])
def test_a_cluster_stays_where_it_was_while_all_of_its_clients_are_away(alone):
    """Each cluster is that of two clients; or one holds everything, and misses one round.

    There is no noise, so that only the drops can move a centroid.
    """
    strategy = make("plain")
    synopses = len(strategy.algorithm.schedule.cells)
    assert synopses == 3
    if alone is None:
        parts = [
            half for rows in np.split(RECORDS, 3) for half in np.array_split(rows, 2)
        ]
        away = {
            3: (0, 1),
            4: (2, 3),
            5: (4, 5),
            6: (0, 1),
            7: (2, 3),
            strategy.n_rounds: (4, 5),
        }
    else:  # then there are only empty cells: the model is what it was
        parts, away = [RECORDS, *[RECORDS[:0]] * 5], {1 + synopses + alone: (0,)}
    faults = [
        Fault(client, t, "drop") for t, clients in away.items() for client in clients
    ]
    outcome = run_recorded(strategy, parts, faults=faults)
    found, means = outcome.agreed(), RECORDS.reshape(3, 400, 3).mean(axis=1)
    off = matched_centroid_error(found.centroids, means)
    assert_within("centroids are off the means by", off, most=0.2, strict=True)
    np.testing.assert_allclose(sorted(found.counts), [400] * 3, atol=10)
    first, *others = outcome.strategy.report.warnings
    assert first == WARNINGS[Note.HELD]
    # Five of six clients answered, and had none of the records that were planned.
    assert ["add up to as few as 0 records" in words for words in others] == [True] * (
        alone is not None
    )


@pytest.mark.claim("guarantees", "22")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", ["plain", *rows.TRUSTS])
def test_clients_and_servers_agree_on_the_number_of_clusters(trust, start):
    outcome = run_recorded(
        make(trust, k=(2, 7)), np.array_split(RECORDS, 6), start=start
    )
    strategy = outcome.strategy
    found = outcome.one if trust in rows.BLIND else outcome.agreed()
    assert strategy.n_rounds == 4
    k = len(found.centroids)
    assert 2 <= k == len(found.counts) <= 7
    if trust == "plain":  # or its noise may mislead it
        assert matched_centroid_error(found.centroids, rows.CENTERS) < 0.5
    assert "n_clusters=(2, 7)" in repr(strategy)
    if trust not in rows.BLIND:
        assert strategy.synopsis is not None


def test_a_number_of_clusters_is_one_a_pair_or_none():
    assert (
        make(k=None).n_clusters,
        make(k=(2, 5)).n_clusters,
        make(k=4).n_clusters,
    ) == (20, 5, 4)
    with pytest.raises(ConfigurationError, match="a pair of them, or None"):
        make(k=(1, 2, 3))
    with pytest.raises(
        ConfigurationTypeError, match="takes no parameter 'min_clusters'"
    ):
        make(k=4, min_clusters=2)


# ---------------------------------------------------------------------- bounds on sizes

LABELS = np.repeat(np.arange(3), (800, 450, 250))
UNEVEN = rows.CENTERS[LABELS] + RNG(1).normal(size=(1500, 3))
PARTS = np.array_split(RNG(2).permutation(UNEVEN), 6)
TRUSTS = ("plain", *rows.TRUSTS)


bounded = partial(make, n_records=1500, min_size=450, max_size=550)


def run(strategy, parts=PARTS, **options):
    return run_recorded(strategy, parts, **options)


def sizes_of(strategy, result, parts=PARTS):
    """Return the exact sizes of the cells that a run released, on its grid."""
    q, domain = strategy.algorithm.fraction_bits, strategy.domain
    records = GridRecords(np.vstack(parts), domain, q)
    points = np.vstack(list(records.blocks(10**6)))
    centroids = np.rint(domain.to_unit(result.centroids) * 2**q).astype(np.int64)
    unit = domain.common_unit or 1.0
    weights = np.rint(result.weights / unit**2 * 4**q).astype(np.int64)
    labels = assign(points, centroids, weights)[0]
    return np.bincount(labels, minlength=strategy.n_clusters)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_and_servers_have_weights_and_sizes(trust, start):
    """And the report states bounds, noise and what was kept, where the server may see it."""
    outcome = run(bounded(trust), start=start)
    strategy, result = outcome.strategy, outcome.one
    sizes, report = result.size_report, strategy.report
    written = report.to_dict()
    about = [
        words
        for words in report.statements
        if "size" in words and "bound" in words.lower()
    ]
    assert len(outcome.results) == 6
    assert np.ptp(result.weights) > 0
    assert sizes.counts == tuple(result.counts)
    assert (sizes.min_size, sizes.max_size) == (450, 550)
    assert sizes.noise == pytest.approx(
        strategy.algorithm.sizes.noise * strategy.noise_factor
    )
    assert (sizes.noise > 0) == (trust != "plain")
    # Seven deviations of noise around the true sizes of the released cells.
    off = np.abs(sizes_of(strategy, result) - result.counts)
    assert_within(
        "a released size is off by", off, most=7 * sizes.noise, unit="records"
    )
    if trust in rows.BLIND:
        assert report.sizes is written["sizes"] is None
        assert not outcome.result.arrays
        assert not about
        with pytest.raises(ObliviousServerError):
            _ = strategy.weights
        return
    assert report.sizes == sizes
    np.testing.assert_array_equal(strategy.weights, result.weights)
    np.testing.assert_array_equal(
        outcome.result.arrays["weights"].numpy(), result.weights
    )
    assert list(outcome.result.arrays) == ["centroids", "counts", "weights"]
    assert json.loads(json.dumps(written["sizes"])) == sizes.to_dict()
    assert set(sizes.statements) <= set(report.statements)
    assert f"{sizes.bounds_kept.count('kept')} of 3 clusters kept them" in about[0]
    assert "450 to 550 records" in about[0]
    assert [each["name"] for each in written["releases"]][-4:] == ["sizes"] * 4


@pytest.mark.default_cases("oblivious-server", "distributed-noise")
@pytest.mark.parametrize("trust", TRUSTS)
def test_simulate_returns_clusters_within_the_bounds(trust):
    result = simulate(bounded(trust), PARTS)
    labels = result.predict(UNEVEN, nearest=True)
    true = np.bincount(result.predict(UNEVEN), minlength=3)
    assert sorted(np.round(np.bincount(labels, minlength=3), -1)) == [250, 450, 800]
    assert_within(
        "a cluster has", true, least=400, most=600, unit="records", strict=True
    )
    assert isinstance(result.size_report, SizeReport)
    np.testing.assert_array_equal(result.sizes, result.counts)
    # Seven deviations, and records on a boundary that change sides by the grid's
    # rounding: the interval itself misses in one run of twenty, which a test of many
    # runs below is for.
    off = np.abs(true - result.counts)
    most = 7 * result.size_report.noise + 3
    assert_within("a released size is off by", off, most=most, unit="records")
    low, high = result.size_interval.T
    assert ((low <= result.counts) & (result.counts <= high)).all()
    assert result.inertia(UNEVEN) > ((UNEVEN - result.centroids[labels]) ** 2).sum()
    assert (result.report.sizes is None) == (trust in rows.BLIND)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    ("domain", "unit"),
    [
        (Box([-12.0] * 3, [12.0] * 3), 12.0),
        (Box([-12.0, -12.0, -6.0], [12.0, 12.0, 6.0], scale="common"), 12.0),
        (Box([-12.0, -12.0, -6.0], [12.0, 12.0, 6.0]), 1.0),
    ],
    ids=["box", "common", "columns"],
)
@pytest.mark.parametrize("trust", ["trusted-server", "oblivious-server"])
def test_weights_are_in_the_units_that_predict_takes(trust, domain, unit):
    strategy = bounded(trust, domain=domain)
    result = simulate(strategy, PARTS)
    true = np.bincount(result.predict(UNEVEN), minlength=3)
    # Records on a boundary may change sides by the grid's rounding.
    off = np.abs(true - sizes_of(strategy, result))
    assert_within(
        "predicted sizes are off those on the grid by", off, most=3, unit="records"
    )
    assert_within("a weight has the size", np.abs(result.weights), most=4 * 3 * unit**2)
    off = np.abs(true - 500)
    assert_within("a cluster is off 500 records by", off, most=100, strict=True)


@pytest.mark.default_cases("oblivious-server", "distributed-noise")
@pytest.mark.parametrize("trust", TRUSTS)
def test_sizes_are_those_of_the_clients_that_answered_the_last_round(trust):
    strategy = bounded(trust)
    last = strategy.n_rounds
    # Who was away before does not matter.
    faults = [Fault(5, 3, "drop"), Fault(1, last, "drop"), Fault(4, last, "drop")]
    outcome = run(strategy, faults=faults)
    result, report = outcome.one, strategy.report
    assert (report.answers[2], report.answers[-1]) == (5, 4)
    noise, factor = result.size_report.noise, 1.0
    if trust == "clients-only":
        factor = math.sqrt(4 / 2)
    elif trust == "distributed-noise":
        factor = report.factors[-1]
        assert factor <= report.factors[0] * math.sqrt(2)
        assert report.sizes.noise == noise
    assert noise == pytest.approx(strategy.algorithm.sizes.noise * factor)
    true = sizes_of(strategy, result, [PARTS[i] for i in (0, 2, 3, 5)])
    off, most = np.abs(true - result.counts), max(7 * noise, 1e-9)
    assert_within(
        "a size is off that of the present clients by", off, most=most, unit="records"
    )
    assert np.abs(sizes_of(strategy, result) - result.counts).max() > 50


@pytest.mark.claim("equal-groups", "equal-records-always-one")
@pytest.mark.default_cases("oblivious-server")
@pytest.mark.parametrize("trust", ["distributed-noise", "oblivious-server"])
def test_clients_may_hold_whole_clusters(trust):
    """Only sums over all clients are bounded: who holds what changes nothing."""
    parts = [UNEVEN[LABELS == 0][i::4] for i in range(4)]
    parts += [UNEVEN[LABELS == 1], UNEVEN[LABELS == 2]]
    with without_noise():
        skewed, mixed = run(bounded(trust), parts).one, run(bounded(trust)).one
    for name in ("weights", "counts", "centroids"):
        np.testing.assert_array_equal(getattr(skewed, name), getattr(mixed, name))


@pytest.mark.default_cases("oblivious-server", "distributed-noise")
@pytest.mark.parametrize("trust", TRUSTS[1:])
def test_a_plan_warns_where_the_noise_is_more_than_is_useful(trust, caplog):
    assert bounded(trust).plan.notes == ()
    strategy = bounded(trust, epsilon=0.1)
    (note,) = strategy.plan.notes
    noise = strategy.algorithm.sizes.noise * strategy.noise_factor
    assert noise > 1500 / 12
    assert f"{noise:.3g} records" in note
    assert "N/(4k) = 125" in note
    assert strategy.plan.describe().endswith(note)
    assert "sizes" in strategy.plan.describe()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert not caplog.records
        run(strategy)
    assert [record.getMessage() for record in caplog.records].count(note) == 1
    assert note not in json.dumps(strategy.plan.to_config())


@pytest.mark.thorough
def test_the_warning_is_for_the_clients_that_a_run_expects(caplog):
    """Planned for at least 4 clients, and run with 6, whose shares make more noise."""
    epsilon = next(
        float(e)
        for e in np.geomspace(4.0, 0.05, 200)
        if bounded("clients-only", epsilon=float(e), min_clients=4).plan.notes
    )
    strategy = bounded("clients-only", epsilon=epsilon, n_clients=None, min_clients=4)
    assert strategy.plan.notes == ()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = simulate(strategy, PARTS)
    (note,) = strategy.plan.notes
    assert f"{result.size_report.noise:.3g} records" in note
    assert [record.getMessage() for record in caplog.records].count(note) == 1


# ----------------------------------------------------------------- embeddings

D = 140


def embeddings(n, seed=0):
    """Unit vectors around five directions in many columns, and these directions."""
    rng = RNG(seed)
    centers = np.linalg.qr(rng.normal(size=(D, 5)))[0].T
    vectors = centers[rng.integers(0, 5, n)] + rng.normal(size=(n, D)) / D**0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), centers


def similarity(directions, centroids):
    lengths = np.linalg.norm(centroids, axis=1)
    cosines = directions @ (centroids / lengths[:, None]).T
    return cosines.max(axis=1).min()


@pytest.mark.default_cases(
    "ball-oblivious-server-record", "sphere-trusted-server-record"
)
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server"])
@pytest.mark.parametrize("space", ["ball", "sphere"])
def test_the_directions_of_embeddings_are_found(space, trust, unit):
    domain = Sphere(D)
    if space == "ball":
        domain = Ball(1 + 1e-9, [0.0] * D)
    n, n_clients = 6000, 3
    options = {"n_records": n}
    if unit == "client":
        n_clients = 400
        options["clip"] = 4.0
    vectors, directions = embeddings(n)
    budget = PrivacyBudget(40.0 if unit == "client" else 4.0, unit=unit)
    strategy = SynopsisKMeans(
        5, domain, budget, trust=trust, n_clients=n_clients, **options
    )
    assert strategy.algorithm.schedule.moments
    result = simulate(strategy, np.array_split(vectors, n_clients))
    found = similarity(directions, result.centroids)
    assert_within("the least cosine is", found, least=0.9)


def test_second_moments_of_many_columns_have_room_for_some_clients_with_shares():
    """The numbers of the page on known limitations. Beyond, groups of columns have room."""

    def plan(d, n_clients, trust="distributed-noise"):
        return SynopsisKMeans(
            20,
            Ball(1.0, [0.0] * d),
            PrivacyBudget(1.0),
            50_000,
            trust=trust,
            n_clients=n_clients,
        )

    for d, n_clients in ((768, 100), (1536, 20)):
        found = plan(d, n_clients)
        assert found.algorithm.layout(1).n_words == d * (d + 1) // 2
        assert found.plan.notes == ()
    for d, n_clients, n_groups in ((768, 200, 128), (768, 400, 81), (1536, 50, 128)):
        found = plan(d, n_clients)
        assert found.algorithm.layout(1).n_words == d * n_groups
        (note,) = found.plan.notes
        assert f"{n_groups} random groups" in note
        found = plan(d, n_clients, "oblivious-server")
        assert found.algorithm.layout(1).n_words == d * (d + 1) // 2


@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_groups_of_columns_find_the_directions_of_embeddings(trust, monkeypatch):
    """With 24 groups, the most that a smaller limit leaves room for."""
    monkeypatch.setattr("flower_kmeans.protocol.sizes.MAX_RELAY", 3 * 3 * 8 * 3500)
    n = 6000
    vectors, directions = embeddings(n)
    strategy = SynopsisKMeans(
        5,
        Ball(1 + 1e-9, [0.0] * D),
        PrivacyBudget(4.0),
        n,
        trust=trust,
        n_clients=3,
    )
    assert strategy.algorithm.schedule.n_groups == 24
    result = simulate(strategy, np.array_split(vectors, 3))
    found = similarity(directions, result.centroids)
    assert_within("the least cosine is", found, least=0.9)
    if trust == "distributed-noise":
        assert "24 random groups" in " ".join(result.report.warnings)
