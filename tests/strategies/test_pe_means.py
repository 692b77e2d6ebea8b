"""Whole runs of PE-means and HDPE-means: under both trust models, for records and for clients."""

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from harness import (
    SIMULATED,
    exact_statistic,
    run_recorded,
    stock_start,
    without_noise,
    write_roster,
)

from flower_kmeans import Ball, Box, ClientPolicy, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.pe_means import NOTES
from flower_kmeans.errors import ConfigurationError, RunError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import HDPEMeans, PEMeans

RNG = np.random.default_rng
TRUSTS = ("distributed-noise", "trusted-server")
D = {PEMeans: 3, HDPEMeans: 20}
ROUNDS = 4  # of votes
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])
NAMES = pytest.mark.parametrize("cls", [PEMeans, HDPEMeans])


def records_of(cls):
    """1,200 records around three centres, which lie in the first columns, by six clients."""
    centers = np.zeros((3, D[cls]))
    centers[:, :3] = CENTERS
    records = np.repeat(centers, 400, axis=0) + RNG(1).normal(0, 0.3, (1200, D[cls]))
    return records, np.array_split(RNG(2).permutation(records), 6)


RECORDS, PARTS = zip(*(records_of(cls) for cls in (PEMeans, HDPEMeans)), strict=True)
RECORDS, PARTS = dict(zip(D, RECORDS, strict=True)), dict(zip(D, PARTS, strict=True))


def make(cls, trust="distributed-noise", *, epsilon=8.0, unit="record", k=3, **options):
    if trust == "plain":
        epsilon = None
    options = {"n_rounds": ROUNDS, "n_clients": 6, "min_clients": 3, **options}
    domain = options.pop("domain", Ball(14.0, [0.0] * D[cls]))
    return cls(k, domain, PrivacyBudget(epsilon, unit=unit), 1200, trust=trust, **options)


def run(strategy, parts=None, **options):
    parts = PARTS[type(strategy)] if parts is None else parts
    return run_recorded(strategy, parts, timeout=60, **options)


@cache
def finished(cls, trust, unit):
    """A run for several tests, which only look at it."""
    return run(make(cls, trust, unit=unit))


def same(outcome):
    """Require that the server and all clients have one result; return it."""
    result = outcome.one
    np.testing.assert_array_equal(outcome.strategy.centroids, result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), result.counts)
    return result


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
@NAMES
def test_runs_end_with_one_result(cls, trust, unit, start):
    if start is None:
        outcome = finished(cls, trust, unit)
    else:
        outcome = run(make(cls, trust, unit=unit), start=start)
    result, report = same(outcome), outcome.strategy.report
    rounds = ROUNDS + (cls is HDPEMeans)
    assert result.centroids.shape == (3, D[cls])
    assert np.isfinite(result.counts).all()
    assert np.linalg.norm(result.centroids, axis=1).max() <= 14.0
    assert len(outcome.results) == 6
    assert report.answers == [6] * rounds
    assert (report.strategy, report.trust, report.unit) == (cls.__name__, trust, unit)
    assert report.n_rounds == rounds
    assert 7.9 < report.epsilon <= 8.0
    assert not report.incidents


@pytest.mark.parametrize("keys", ["relayed", "roster"])
def test_runs_take_keys_of_any_kind(keys, tmp_path):
    roster, policies = write_roster(tmp_path, 6) if keys == "roster" else (None, None)
    strategy = make(PEMeans, keys=keys, roster_file=roster, n_rounds=2)
    same(run(strategy, policy=policies))
    assert strategy.report.keys == keys
    assert strategy.report.answers == [6] * 2


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
@NAMES
def test_without_noise_it_finds_the_clusters(cls, trust):
    with without_noise():
        outcome = run(make(cls, trust, n_rounds=8))
    found = same(outcome)
    means = RECORDS[cls].reshape(3, 400, D[cls]).mean(axis=1)
    # Candidates come close; sums and counts are exact.
    error = matched_centroid_error(found.centroids, means)
    assert error < (0.05 if cls is PEMeans else 1e-4)
    np.testing.assert_array_equal(np.sort(found.counts), [400] * 3)
    if trust == "plain":
        assert outcome.strategy.report.warnings == ()


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
@NAMES
def test_whoever_is_missing_in_a_round_is_missing_in_its_sum_alone(cls, trust, unit):
    """Without noise, the sum of each round is exactly that of the clients who answered it."""
    rounds = ROUNDS + (cls is HDPEMeans)
    faults = [Fault(i, t, "drop") for i, t in enumerate(range(1, rounds + 1))]
    with without_noise():
        outcome = run(make(cls, trust, unit=unit), faults=faults)
    same(outcome)
    report = outcome.strategy.report
    assert report.answers == [5] * rounds
    assert [(entry.client, entry.round) for entry in report.dropped] == [
        (i, i + 1) for i in range(rounds)
    ]
    for query in outcome.queries:
        away = query.round - 1
        present = [part for i, part in enumerate(PARTS[cls]) if i != away]
        expected = sum(exact_statistic(outcome.strategy.algorithm, query, part) for part in present)
        np.testing.assert_array_equal(outcome.sums[query.round], expected)


@pytest.mark.ray
@NAMES
def test_ray_gives_the_same_result(cls):
    """Node ids differ, and with them the noise, so there is next to none."""
    found = [
        simulate(make(cls, epsilon=1e6, fraction_bits=20), PARTS[cls], engine=engine, timeout=120)
        for engine in ("in-process", "ray")
    ]
    first, second = (np.argsort(result.centroids[:, 0]) for result in found)
    np.testing.assert_allclose(
        found[0].centroids[first], found[1].centroids[second], rtol=0, atol=0.1
    )
    np.testing.assert_allclose(found[0].counts[first], found[1].counts[second], rtol=0, atol=1)
    assert found[1].report.answers == [6] * (ROUNDS + (cls is HDPEMeans))


@NAMES
def test_a_box_can_be_the_domain(cls):
    box = Box([-14.0] * D[cls], [14.0] * D[cls])
    result = same(run(make(cls, domain=box)))
    assert np.abs(result.centroids).max() <= 14.0 + 1e-3


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
@NAMES
def test_clients_without_records_and_equal_records_are_no_error(cls, trust):
    for records in (np.empty((0, D[cls])), np.full((200, D[cls]), 1.5)):
        strategy = make(cls, trust, n_rounds=2)
        assert np.isfinite(same(run(strategy, [records] * 6)).centroids).all()
        assert not set(strategy.report.warnings) - set(NOTES)
        if trust == "plain" and not len(records):
            assert NOTES[2] in strategy.report.warnings


# --------------------------------------------------------------------------- what is refused


@NAMES
def test_initial_centroids_are_refused(cls):
    with pytest.raises(ConfigurationError, match=f"no initial: {cls.__name__} makes its own"):
        make(cls, initial=np.zeros((3, D[cls])))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_variations": 0}, "n_variations"),
        ({"max_candidates": 5}, "max_candidates"),
        ({"max_candidates": 2**22 + 1}, "max_candidates"),
        ({"n_rounds": 0}, "n_vote_rounds"),
        ({"clips": {"votes": 2.0}}, "clips=None unless"),
        ({"clip": 2.0}, "clip=None unless"),
        ({"unit": "client", "clips": {"more": 2.0}}, "releases in"),
    ],
)
@NAMES
def test_parameters_out_of_range_are_refused_when_the_strategy_is_made(cls, options, match):
    with pytest.raises(ConfigurationError, match=match):
        make(cls, **options)


def test_few_columns_need_no_projection():
    with pytest.raises(ConfigurationError, match="take PE-means"):
        HDPEMeans(3, Ball(1.0, [0.0] * 16), PrivacyBudget(1.0), 1200, n_clients=6)


def test_records_that_are_not_finite_are_an_error_in_a_simulation():
    parts = [part.copy() for part in PARTS[PEMeans]]
    parts[2][5, 1] = np.nan
    with pytest.raises(Exception, match="finite") as caught:
        simulate(make(PEMeans), parts)
    assert f"{parts[2][4, 1]:.3f}" not in str(caught.value)


@NAMES
def test_policies_may_name_the_algorithm(cls):
    strategy = make(cls, n_rounds=2)
    name = strategy.algorithm.name
    allowed = replace(SIMULATED, algorithms=(name,))
    assert isinstance(allowed, ClientPolicy)
    same(run(strategy, policy=[allowed]))
    with pytest.raises(RunError):
        run(make(cls, n_rounds=2), policy=[replace(SIMULATED, algorithms=("fastlloyd",))])


# --------------------------------------------------------------------------- what travels


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
@NAMES
def test_queries_do_not_grow_with_the_population(cls, trust):
    """No candidate but the selected ones is in a message; answers have a word for each."""
    sizes = []
    for n_variations in (5, 400):
        strategy = make(cls, trust, n_variations=n_variations, n_rounds=3)
        outcome = run(strategy)
        rounds = [item.message for item in outcome.grid.sent if item.kind == "ask"]
        sizes.append(
            [
                max(len(each.query) for each in rounds if each.t == t)
                for t in range(1, strategy.n_rounds + 1)
            ]
        )
        asked = outcome.queries
        assert not asked[0].arrays
        assert {name: a.size for name, a in asked[2].arrays.items()} == {
            "centers": 3 * strategy.algorithm.space.n_features,
            "variations": 1,
            "seed": 2,
        }
        candidates = np.concatenate(list(strategy.algorithm._population(asked[2])))
        sent = b"".join(item.data for item in outcome.grid.sent)
        assert len(candidates) <= 3 * (n_variations + 1)
        chosen = {row.tobytes() for q in asked[1:] for row in q.arrays["centers"]}
        for row in candidates.astype(np.int64):
            assert row.tobytes() in chosen or row.tobytes() not in sent
        lengths = [
            len(item.message.words) // 8 for item in outcome.grid.received if item.kind == "answer"
        ]
        # The one word more is the checksum.
        if trust != "distributed-noise":  # shares are shorter, and there is one for each client
            assert lengths.count(3 * (n_variations + 1) + 1) >= 2 * 6
    assert sizes[0] == sizes[1]


# --------------------------------------------------------------------------- the report


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
@NAMES
def test_the_report_lists_every_release_with_its_cost(cls, trust, unit):
    report = finished(cls, trust, unit).strategy.report.to_dict()
    expected = list(itertools.product(range(1, ROUNDS + 1), ["votes"]))
    if cls is HDPEMeans:
        expected += itertools.product([ROUNDS + 1], ["lift-sums", "lift-counts"])
    assert [(release["round"], release["name"]) for release in report["releases"]] == expected
    mus = [release["mu"] for release in report["releases"]]
    assert mus == pytest.approx([mus[0]] * len(mus))
    assert math.hypot(*mus) == pytest.approx(report["mu"], rel=1e-9)


def test_a_cap_that_binds_is_told():
    strategy = make(PEMeans, max_candidates=30)
    run(strategy)
    assert NOTES[0] in strategy.report.warnings
    assert strategy.report.to_dict()["warnings"] == list(strategy.report.warnings)
    free = finished(PEMeans, "distributed-noise", "record").strategy
    assert NOTES[0] not in free.report.warnings


@pytest.mark.parametrize("unit", ["record", "client"])
@NAMES
def test_noise_has_the_planned_scale(cls, unit):
    """Of all words of all rounds: the opened sums less the exact ones, over their units."""
    strategy = make(cls, "trusted-server", unit=unit, epsilon=2.0, n_variations=400)
    outcome = run(strategy)
    parts, found = PARTS[cls], []
    for query in outcome.queries:
        exact = sum(exact_statistic(outcome.strategy.algorithm, query, part) for part in parts)
        noise = (outcome.sums[query.round] - exact) / strategy.algorithm.units(query.round)
        found.append(noise / strategy.plan.rounds[query.round - 1][0].noise_multiplier)
    noise = np.concatenate(found)
    # The mean square of n normal numbers has the standard deviation sqrt(2 / n).
    assert abs(np.mean(noise**2) - 1) < 7 * math.sqrt(2 / len(noise))
