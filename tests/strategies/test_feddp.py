"""Whole runs of FedDP-KMeans: under both trust models, for records and for clients."""

import itertools
import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord
from harness import (
    RecordingGrid,
    exact_statistic,
    fits,
    run_recorded,
    stock_start,
    without_noise,
    write_roster,
)

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.cost import user_scale
from flower_kmeans.algorithms.feddp import NOTES, FedDPAlgorithm
from flower_kmeans.assignment import assign
from flower_kmeans.clustering import Clustering
from flower_kmeans.domain import GridRecords
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    ObliviousServerError,
    RunError,
)
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.noise import draw
from flower_kmeans.protocol import noise as noises
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, GLloyd, KMeansStrategy, SuLloyd

RNG = np.random.default_rng
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
PARTS = np.array_split(RNG(2).permutation(RECORDS), 6)
SERVER = (CENTERS + RNG(3).normal(size=(10, 3, 3))).reshape(30, 3)
BALL = Ball(14.0, [0.0, 0.0, 0.0])
TRUSTS = ("distributed-noise", "trusted-server")
T = 5


def make(trust="distributed-noise", *, epsilon=8.0, unit="record", k=3, domain=BALL, **options):
    if trust == "plain":
        epsilon = None
    options = {"server_data": SERVER, "n_rounds": 2, "n_clients": 6, "min_clients": 3, **options}
    return FedDPKMeans(k, domain, PrivacyBudget(epsilon, unit=unit), 1200, trust=trust, **options)


def run(strategy, parts=PARTS, **options):
    return run_recorded(strategy, parts, timeout=60, **options)


def same(outcome):
    """Require that the server and all clients have one result; return it."""
    result = outcome.one
    np.testing.assert_array_equal(outcome.strategy.centroids, result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), result.counts)
    return result


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("contribution", ["record", "client", "means"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_runs_end_with_one_result(trust, contribution, start):
    unit = "record" if contribution == "record" else "client"
    means = {"contribution": "means"} if contribution == "means" else {}
    outcome = run(make(trust, unit=unit, **means), start=start)
    result, report = same(outcome), outcome.strategy.report
    assert result.centroids.shape == (3, 3)
    assert np.isfinite(result.counts).all()
    assert np.linalg.norm(result.centroids, axis=1).max() <= 14.0
    assert len(outcome.results) == 6
    assert report.answers == [6] * T
    assert (report.trust, report.unit, report.n_rounds) == (trust, unit, T)
    assert 7.9 < report.epsilon <= 8.0
    assert not report.incidents


@pytest.mark.parametrize("keys", ["relayed", "roster"])
def test_runs_take_keys_of_any_kind(keys, tmp_path):
    roster, policies = write_roster(tmp_path, 6) if keys == "roster" else (None, None)
    strategy = make(keys=keys, roster_file=roster)
    same(run(strategy, policy=policies))
    assert strategy.report.keys == keys
    assert strategy.report.answers == [6] * T


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_without_noise_it_finds_the_clusters(trust):
    with without_noise():
        outcome = run(make(trust, sums="relative"))  # a radius that holds all records
    found = same(outcome)
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(found.centroids, means) < 1e-4
    np.testing.assert_array_equal(np.sort(found.counts), [400] * 3)
    assert outcome.strategy.report.warnings == ()


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_whoever_is_missing_in_a_round_is_missing_in_its_sum_alone(trust, unit):
    """Without noise, the sum of each round is exactly that of the clients who answered it."""
    faults = [Fault(i, t, "drop") for i, t in enumerate(range(1, T + 1))]
    with without_noise():
        outcome = run(make(trust, unit=unit, n_rounds=2), faults=faults)
    same(outcome)
    report = outcome.strategy.report
    assert report.answers == [5] * T
    assert [(entry.client, entry.round) for entry in report.dropped] == [
        (i, i + 1) for i in range(T)
    ]
    for query in outcome.queries:
        away = query.round - 1
        present = [part for i, part in enumerate(PARTS) if i != away]
        expected = sum(exact_statistic(outcome.strategy.algorithm, query, part) for part in present)
        np.testing.assert_array_equal(outcome.sums[query.round], expected)


@pytest.mark.ray
def test_ray_gives_the_same_result():
    """Node ids differ, and with them the noise, so there is next to none."""
    options = {"epsilon": 1e6, "fraction_bits": 20, "cost": True}
    found = [
        simulate(make(**options), PARTS, engine=engine, timeout=120)
        for engine in ("in-process", "ray")
    ]
    # A server's k-means numbers its clusters by chance.
    first, second = (np.argsort(result.centroids[:, 0]) for result in found)
    np.testing.assert_allclose(
        found[0].centroids[first], found[1].centroids[second], rtol=0, atol=0.01
    )
    np.testing.assert_allclose(found[0].counts[first], found[1].counts[second], rtol=0, atol=1)
    assert found[1].report.answers == [6] * T
    assert found[0].report.cost.value == pytest.approx(found[1].report.cost.value, rel=0.01)


@pytest.mark.parametrize("trust", ["trusted-server", "distributed-noise"])
def test_second_moments_travel_by_half(trust):
    """With many columns the first message is d (d + 1) / 2 words, and one that is counted."""
    d = 100 if trust == "distributed-noise" else 784
    domain = Ball(4.0, np.zeros(d))
    records = RNG(4).normal(size=(9, d)) * 0.1
    strategy = make(
        trust,
        k=2,
        domain=domain,
        server_data=RNG(5).normal(size=(4, d)) * 0.1,
        n_rounds=1,
        n_clients=3,
    )
    outcome = run(strategy, np.split(records, 3))
    same(outcome)
    # No message is longer in either direction. One of d x d words would be twice as long.
    copies = 3 if trust == "distributed-noise" else 1  # shares for three; three opened a sum
    answers = [item.message for item in outcome.grid.received if item.kind == "answer"]
    longest = max(len(each.words) + sum(map(len, each.sealed)) for each in answers)
    assert 4 * d * (d + 1) <= longest / copies <= 4 * d * (d + 1) + 200
    for way in (outcome.grid.sent, outcome.grid.received):
        assert max(len(item.data) for item in way) < copies * (0.51 * 8 * d**2 + 1000)


@pytest.mark.parametrize(
    ("name", "value", "unit"),
    [
        ("margin", 0.25, "record"),
        ("min_weight", 7.5, "record"),
        ("sums", "relative", "record"),
        ("sums", "absolute", "record"),
        ("alpha", 0.3, "record"),
        ("cost", True, "record"),
        ("seed", 9, "record"),
        ("fraction_bits", 14, "record"),
        ("contribution", "means", "client"),
        ("clip", 3.5, "client"),
        ("clips", {"weights": 2.0}, "client"),
        ("shares", {"weights": 2.0}, "record"),
        ("mechanisms", {"weights": "laplace"}, "record"),
    ],
)
def test_options_reach_the_algorithm_and_what_clients_are_told(name, value, unit):
    strategy = make("trusted-server", unit=unit, **{name: value})
    usual = make("trusted-server", unit=unit)
    field = {"mechanisms": "laplace"}.get(name, name)
    expected = {"laplace": ("weights",)}.get(field)
    if field == "clips":  # those of other releases are the usual ones
        expected = tuple(sorted({**dict(usual.algorithm.clips), **value}.items()))
    elif expected is None:
        expected = tuple(value.items()) if isinstance(value, dict) else value
    assert getattr(strategy.algorithm, field) == expected
    told = strategy.algorithm.to_config()
    seen = FedDPAlgorithm.from_config(told, BALL, strategy.plan.budget)
    assert getattr(seen, field) == expected
    assert seen.plan() == strategy.plan
    if name != "sums":  # one of its values is the usual one
        assert told[field] != usual.algorithm.to_config()[field]


def test_sums_that_do_not_fit_the_words_of_the_secure_sum_are_refused():
    """A word of shares holds one bit less than a plain one."""

    def planned(trust):
        options = {"trust": trust, "server_data": SERVER, "n_clients": 6}
        return FedDPKMeans(3, BALL, PrivacyBudget(1.0, 1e-16), 3 * 2**41, **options)

    planned("trusted-server")
    with pytest.raises(ConfigurationError, match=r"below 2\^62, so that they fit into the words"):
        planned("distributed-noise")


# --------------------------------------------------------------------------- what is refused


def test_an_oblivious_server_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="trust of FedDPKMeans") as caught:
        make("oblivious-server")
    reason = "The server computes the next query, so it must see the sums."
    assert str(caught.value).endswith(reason)


@pytest.mark.parametrize("mechanisms", ["laplace", {"weights": "laplace"}, {"cost": "laplace"}])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_laplace_noise_needs_a_server_that_adds_it(mechanisms, unit):
    options = {"mechanisms": mechanisms, "unit": unit, "cost": True}
    with pytest.raises(ConfigurationError, match=r"[Ll]aplace"):
        make(**options)
    strategy = make("trusted-server", **options)
    same(run(strategy))
    report = strategy.report.to_dict()
    kinds = {release["name"]: release["mechanism"] for release in report["releases"]}
    laplace = {name for name, kind in kinds.items() if kind == "laplace"}
    everywhere = {"weights", "lift-counts", "lloyd-counts", "cost"}
    everywhere |= {"spread"} if unit == "record" else set()
    assert laplace == (everywhere if mechanisms == "laplace" else set(mechanisms))
    assert report["mu"] is None
    assert 7.9 < report["epsilon"] <= 8.0


@pytest.mark.parametrize(
    "points",
    [
        SERVER[:, :2],
        np.hstack([SERVER, SERVER]),
        SERVER[0],
        SERVER[:2],
        np.repeat(SERVER[:2], 5, axis=0),
        np.empty((0, 3)),
        np.where(SERVER[3, 1] == SERVER, np.nan, SERVER),
        np.where(SERVER[3, 1] == SERVER, -np.inf, SERVER),
        SERVER.astype(str),
        [["a", "b", "c"]] * 5,
        None,
        5.0,
    ],
    ids=str,
)
@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_server_data_that_cannot_be_used_are_refused_when_the_strategy_is_made(trust, points):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match="server_data") as caught:
        make(trust, server_data=points)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    for value in SERVER.ravel():
        assert f"{value:.3f}" not in text


def test_server_data_are_required():
    with pytest.raises(TypeError, match="server_data"):
        FedDPKMeans(3, BALL, PrivacyBudget(1.0), 1200, n_clients=6)


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_initial_centroids_are_refused(trust):
    with pytest.raises(ConfigurationError, match="no initial: FedDPKMeans makes its own"):
        make(trust, initial=CENTERS)
    for start in (None, stock_start):
        grids = []

        def begin(strategy, grid, start=start, grids=grids, **options):
            grids.append(grid)
            given = ArrayRecord([CENTERS])
            begin = start or KMeansStrategy.start
            return begin(strategy, grid, initial_arrays=given, **options)

        with pytest.raises(ConfigurationError, match="no initial_arrays: FedDPKMeans"):
            run(make(trust), start=begin)
        (grid,) = grids
        assert isinstance(grid, RecordingGrid)
        assert not grid.sent


# --------------------------------------------------------------------------- what travels


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_the_servers_points_are_in_no_message(trust):
    """Neither their numbers, nor where they lie on the grid."""
    strategy = make(trust, k=2, cost=True)
    outcome = run(strategy)
    assert strategy.algorithm.server_points.shape == SERVER.shape
    messages = b"".join(item.data for item in (*outcome.grid.sent, *outcome.grid.received))
    report = json.dumps(strategy.report.to_dict())
    for value in SERVER.ravel():
        assert value.tobytes() not in messages
        for text in (repr(float(value)), float(value).hex()):
            assert text.encode() not in messages
            assert text not in report
    for row in strategy.algorithm.server_points:
        assert row.tobytes() not in messages
        assert row[:2].tobytes() not in messages
    run_ = strategy._running.run
    assert run_.data in messages
    config = run_.document.body.algorithm
    assert config["n_server_points"] == len(SERVER)
    assert not [name for name in config if "server" in name and name != "n_server_points"]
    # They were used: their projections were what the second query was made of.
    second = outcome.queries[1].arrays
    assert second["points"].shape == (len(SERVER), 2)
    algorithm = strategy.algorithm
    seen = algorithm.projection.project(
        algorithm.server_points.astype(float), second["projection"].astype(float)
    )
    np.testing.assert_array_equal(second["points"], seen)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_projections_to_all_directions_are_the_servers_points(k):
    """With as many clusters as columns a client can turn the projections back."""
    outcome = run(make("trusted-server", k=k))
    arrays, algorithm = outcome.queries[1].arrays, outcome.strategy.algorithm
    lifted = algorithm.projection.lift(arrays["points"], arrays["projection"])
    back = BALL.from_unit(lifted * 2.0**-algorithm.fraction_bits)
    assert (np.abs(back - SERVER).max() < 0.01) == (k >= 3)


# --------------------------------------------------------------------------- the report


def exact_cost(outcome, parts):
    """Return what `CostEstimate.value` estimates, from the records, and the loss of rounding."""
    algorithm, query = outcome.strategy.algorithm, outcome.queries[-1]
    before, q = query.arrays["centroids"], algorithm.fraction_bits
    records = GridRecords(np.vstack(parts), algorithm.domain, q)
    points = np.vstack(list(records.blocks(10**6)))
    labels, d2 = assign(points, before)
    kept = slice(None) if algorithm.radius is None else d2 <= algorithm.radius**2
    scale = user_scale(algorithm.domain)[0]
    near = algorithm.domain.from_unit(points[kept] * 2.0**-q)
    moved = outcome.strategy.centroids[labels[kept]]
    # Half a step of every squared distance at most is not known.
    return float(((near - moved) ** 2).sum()), len(near) * 2.0 ** -(q + 1) * scale**2


@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("domain", [BALL, Box([-12.0] * 3, [12.0] * 3)], ids=["ball", "box"])
def test_without_privacy_the_cost_is_exact(domain, sums):
    outcome = run(make("plain", domain=domain, sums=sums, cost=True))
    exact, rounding = exact_cost(outcome, PARTS)
    cost = outcome.strategy.report.cost
    assert cost.users_units
    assert cost.standard_error == 0
    assert abs(cost.value - exact) <= rounding * 1.000001
    assert 2000 < cost.value < 4500  # about the 3 * 1200 of the records' variance


@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_the_cost_is_within_six_standard_errors(trust, sums):
    outcome = run(make(trust, epsilon=100.0, sums=sums, cost=True))
    exact, _ = exact_cost(outcome, PARTS)
    strategy, cost = outcome.strategy, outcome.strategy.report.cost
    assert 0 < cost.standard_error < exact
    assert abs(cost.value - exact) < 6 * cost.standard_error
    told = strategy.report.to_dict()["cost"]
    assert told == {**vars(cost)}


def test_the_error_of_the_cost_grows_with_the_noise_that_was_added():
    """Five of six shares are left the planned noise: the sixth is what a colluder may know."""
    strategy = make(cost=True)
    run(strategy)
    server = strategy._running
    planned = strategy.algorithm.cost_estimate(server.state, 1.0)
    assert strategy.report.noise_factor == pytest.approx(math.sqrt(6 / 5))
    assert strategy.report.cost.standard_error == pytest.approx(
        math.sqrt(6 / 5) * planned.standard_error
    )


def test_the_cost_has_the_noise_of_the_last_round_and_the_report_the_most_of_all():
    """One of six is missing in all rounds but the last: the plan's share is one of 4, then of 5."""
    strategy = make(cost=True)
    run(strategy, faults=[Fault(1, t, "drop") for t in range(1, T)])
    report, state = strategy.report, strategy._running.state
    assert report.answers == [5] * (T - 1) + [6]
    assert report.noise_factor == pytest.approx(math.sqrt(5 / 4))
    planned = strategy.algorithm.cost_estimate(state, 1.0)
    assert report.cost.standard_error == pytest.approx(math.sqrt(6 / 5) * planned.standard_error)


def test_no_cost_is_told_unless_it_was_released():
    strategy = make()
    run(strategy)
    assert strategy.report.cost is None
    assert strategy.report.to_dict()["cost"] is None


def test_the_report_tells_every_clip():
    for options, most in (
        ({}, None),
        ({"clip": 9.0, "sums": "absolute"}, 9.0),
    ):
        strategy = make(unit="client", **options)
        run(strategy)
        report = strategy.report
        assert list(report.clips) == [
            *("projection", "weights", "lift-sums", "lift-counts", "lloyd-sums", "lloyd-counts"),
        ]
        assert dict(report.clips) == strategy.clips
        assert most is None or set(report.clips.values()) == {most}
        assert report.to_dict()["clips"] == dict(report.clips)
    records = make()
    run(records)
    assert records.report.to_dict()["clips"] == {}


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_the_report_lists_every_release_with_its_cost(trust, unit):
    strategy = make(trust, unit=unit, cost=True)
    run(strategy)
    report = strategy.report.to_dict()
    more = {"spread": 0.02} if unit == "record" else {}  # its radius narrows
    assert [(release["round"], release["name"]) for release in report["releases"]] == [
        (1, "projection"),
        (2, "weights"),
        (3, "lift-sums"),
        (3, "lift-counts"),
        *itertools.product([4], ["lloyd-sums", "lloyd-counts", *more]),
        *itertools.product([5], ["lloyd-sums", "lloyd-counts", "cost"]),
    ]
    mus = [release["mu"] for release in report["releases"]]
    assert all(mu > 0 for mu in mus)
    assert math.hypot(*mus) == pytest.approx(report["mu"], rel=1e-9)
    shares = {}
    for release in report["releases"]:
        stage = release["name"].partition("-")[0]
        shares[stage] = shares.get(stage, 0.0) + release["mu"] ** 2 / report["mu"] ** 2
    defaults = {"projection": 0.30, "weights": 0.10, "lift": 0.30, "lloyd": 0.30, "cost": 0.02}
    defaults |= more
    assert set(shares) == set(defaults)
    for stage, share in defaults.items():
        assert shares[stage] == pytest.approx(share / sum(defaults.values()), rel=1e-9)


def test_finished_runs_carry_the_planned_noise_while_the_radius_narrows(monkeypatch):
    """The words of all Lloyd rounds, in their units: those of sums are of the first radius."""
    drawn = {}

    def recorded(each, units, stream):
        noise = draw(each, units, stream)
        found = drawn.setdefault((each.name, set(units.tolist()).pop()), [])
        found.append((each.noise_multiplier, noise / units))
        return noise

    monkeypatch.setattr(noises, "draw", recorded)
    for _ in range(4):
        strategy = make("trusted-server", k=60, server_data=RNG(2).uniform(-8, 8, (80, 3)))
        run(strategy, [np.zeros((200, 3))] * 6)  # so near to each other that the radius narrows
    algorithm = strategy.algorithm
    assert algorithm.sums == "narrowing"
    assert int(strategy._running.state.arrays["factor"][0]) > 4
    words = {name: (unit, values) for (name, unit), values in drawn.items()}
    assert words["lloyd-sums"][0] == 4.0 * algorithm.radius
    assert words["spread"][0] == algorithm.radius**2 >> algorithm.fraction_bits
    for name in ("lloyd-sums", "lloyd-counts"):
        assert len(words[name][1]) == 2 * 4  # two rounds of four runs
        sample = np.concatenate([noise / multiplier for multiplier, noise in words[name][1]])
        assert fits(sample)
        for wrong in (2 / 3, 3 / 2):
            assert not fits(sample * wrong)


@pytest.mark.parametrize("options", [{"clips": {"weights": 90.0}}, {"contribution": "means"}])
def test_the_report_tells_how_much_of_a_client_counts_in_each_release(options):
    strategy = make("trusted-server", unit="client", clip=30.0, n_rounds=1, **options)
    run(strategy)
    report = strategy.report
    clips = {r.name: strategy.algorithm.clip_of(r) for r in strategy.plan.releases}
    assert report.to_dict()["clips"] == clips
    assert len(set(clips.values())) > 1
    told = ", ".join(f"{name} {clip:.4g}" for name, clip in clips.items())
    assert report.clip_text == f"by release: {told}"
    (statement,) = (text for text in report.statements if "One client is protected" in text)
    assert told in statement
    assert "30 records at most" not in statement


@pytest.mark.parametrize("cost", [False, True])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_cost_of_clipped_clients_says_so(unit, cost):
    strategy = make("trusted-server", unit=unit, cost=cost, n_rounds=1)
    run(strategy)
    text = " ".join(strategy.report.statements)
    said = "The cost is made of what clients added after clipping" in text
    assert said == (cost and unit == "client")


def test_shares_that_are_given_are_those_of_the_report():
    strategy = make("trusted-server", shares={"projection": 3.0, "weights": 0.5})
    run(strategy)
    first, second = (entry["mu"] ** 2 for entry in strategy.report.to_dict()["releases"][:2])
    assert first / second == pytest.approx(6.0)


LIGHT, FEW, EQUAL = NOTES[2], NOTES[3], NOTES[4]
NO_SIGNAL, NOT_LIFTED, KEPT = NOTES[0], NOTES[5], NOTES[6]


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_weights_below_the_least_are_told(trust):
    strategy = make(trust, min_weight=1e9)
    same(run(strategy))
    assert LIGHT in strategy.report.warnings
    assert strategy.report.to_dict()["warnings"] == list(strategy.report.warnings)
    ended = make(trust)
    run(ended)
    assert LIGHT not in ended.report.warnings


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_fewer_heavy_points_than_clusters_are_told(trust):
    """All records lie at one of the server's points, and the others get nothing but noise."""
    parts = [np.repeat(CENTERS[:1], 200, axis=0)] * 6
    strategy = make(trust, server_data=CENTERS, min_weight=300.0)
    with without_noise():
        same(run(strategy, parts))
    assert FEW in strategy.report.warnings
    assert LIGHT not in strategy.report.warnings


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_records_that_are_all_equal_are_no_error(trust, value):
    """Their second moments have one direction, or none."""
    strategy = make(trust, epsilon=1.0, cost=True)
    outcome = run(strategy, [np.full((200, 3), value)] * 6)
    result = same(outcome)
    assert np.isfinite(result.centroids).all()
    assert NO_SIGNAL in strategy.report.warnings
    if trust == "plain":
        assert {NOT_LIFTED, KEPT} <= set(strategy.report.warnings)
        nearest = np.linalg.norm(result.centroids - value, axis=1).min()
        assert nearest < 1e-3
        # Half a step for every record is added for what rounding lost, here nothing.
        assert strategy.report.cost.value == pytest.approx(1200 * 2.0**-17 * 14**2, abs=0.01)


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_without_records_are_no_error(trust):
    strategy = make(trust)
    result = same(run(strategy, [np.empty((0, 3))] * 6))
    assert np.isfinite(result.centroids).all()


def test_clusters_of_nothing_but_noise_are_told():
    """Without noise, a server point far from all records gets none of them."""
    server = np.vstack([CENTERS[:2], [[0.0, 0.0, 13.0]]])
    parts = np.array_split(RECORDS[:800], 6)
    strategy = make("plain", server_data=server, min_weight=1e-6)
    run(strategy, parts)
    assert not set(strategy.report.warnings) - set(NOTES)
    assert strategy.report.warnings


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_elbow_is_told_after_a_run_and_bends_at_the_number_of_clusters(trust):
    strategy = make(trust, k=4, epsilon=50.0)
    with pytest.raises(RunError, match="not started"):
        strategy.elbow(6)
    run(strategy)
    costs = strategy.elbow(6)
    assert costs.shape == (6,)
    gains = -np.diff(costs)
    assert gains[1] > 5 * max(gains[2:])  # three clusters, of which the fourth splits one
    np.testing.assert_array_equal(costs, strategy.elbow(6))


def test_the_elbow_takes_the_strategys_seed_or_what_it_is_given(monkeypatch):
    strategy, seeds = make("trusted-server", epsilon=50.0, seed=7), []
    run(strategy)

    def generator(*of):
        seeds.append(of)
        return RNG(0)

    monkeypatch.setattr("flower_kmeans.strategies.feddp.public_generator", generator)
    strategy.elbow(3)
    assert seeds == [(7, 0)]
    given = RNG(1)
    strategy.elbow(3, given)
    assert seeds == [(7, 0)]
    assert given.random() != RNG(1).random()


# -------------------------------------------------------------------------- its initialisation


def from_result(cls, initial, trust=None, *, epsilon=3.0, unit="record", **options):
    """Return a strategy that starts from the result of another run."""
    options = {"n_rounds": 2, "n_clients": 6, "min_clients": 3, "initial": initial, **options}
    return cls(3, BALL, PrivacyBudget(epsilon, unit=unit), 1200, trust=trust, **options)


def test_the_initialisation_stands_alone():
    """Without noise it is near the clusters, where a record has a nearest one."""
    with without_noise():
        outcome = run(make(n_rounds=0))
    found = same(outcome)
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(found.centroids, means) < 0.01
    assert outcome.strategy.report.answers == [6] * 3
    releases = [release["name"] for release in outcome.strategy.report.to_dict()["releases"]]
    assert releases == ["projection", "weights", "lift-sums", "lift-counts"]


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("cls", [FastLloyd, GLloyd, SuLloyd])
def test_any_strategy_starts_from_it_and_reports_both_costs(cls, unit):
    first = make(n_rounds=0, unit=unit, epsilon=4.0)
    run(first)
    clustering = Clustering(first.centroids, np.ones(3), BALL, first.report)
    for initial in (first, clustering):
        strategy = from_result(cls, initial, unit=unit)
        state = strategy.algorithm.initial_state(None)
        np.testing.assert_allclose(strategy.algorithm.centroids(state), first.centroids, atol=1e-3)
        run(strategy)
        report = strategy.report
        assert report.trust == "oblivious-server"
        together = first.plan.then(strategy.plan)
        assert report.together == together
        # Laplace noise counts as the Gaussian noise that covers it, for the run was chosen later.
        assert 4.0 < together.epsilon() < (11.0 if cls is SuLloyd else 7.0)
        told = report.to_dict()
        assert told["together"]["epsilon"] == together.epsilon()
        assert told["earlier"]["strategy"] == "FedDPKMeans"
        assert told["earlier"]["epsilon"] == first.report.epsilon
        (statement,) = (text for text in report.statements if "earlier run" in text)
        assert "(FedDPKMeans, trust distributed-noise)" in statement
        assert f"epsilon {together.epsilon():.4g} at delta" in statement


def test_costs_of_a_chain_of_runs_are_added():
    first = make("trusted-server", n_rounds=0, epsilon=1.0)
    run(first)
    second = from_result(GLloyd, first, "trusted-server", epsilon=2.0)
    run(second)
    third = from_result(FastLloyd, second, "trusted-server")
    run(third)
    plans = (first.plan, second.plan, third.plan)
    mu = math.hypot(*(plan.mu for plan in plans))
    assert third.report.together.mu == pytest.approx(mu, rel=1e-12)
    assert first.report.together is None
    assert first.report.to_dict()["together"] is None
    json.dumps(third.report.to_dict())


def test_a_start_from_a_run_without_privacy_is_told():
    first = make("plain", n_rounds=0)
    run(first)
    second = from_result(FastLloyd, first)
    run(second)
    report = second.report
    assert report.together is None
    assert report.to_dict()["together"] is None
    assert any(text.startswith("NOT PRIVATE together") for text in report.statements)


def test_results_that_a_server_must_not_see_are_no_start():
    """Initial centroids are public: with them, that server could solve for the noise it added."""
    first = from_result(FastLloyd, CENTERS)
    result = run(first).one
    clustering = Clustering(result.centroids, result.counts, BALL, first.report)
    for initial in (first, clustering):
        with pytest.raises(ObliviousServerError, match="must never see it"):
            from_result(FastLloyd, initial)


def test_a_start_from_another_unit_or_none_yet_is_refused():
    first = make(n_rounds=0)
    with pytest.raises(RunError, match="no report before the run"):
        from_result(FastLloyd, first)
    run(first)
    with pytest.raises(ConfigurationError, match="with unit='client', so that the costs"):
        from_result(FastLloyd, first, unit="client")
    with pytest.raises(ConfigurationError, match="no initial: FedDPKMeans"):
        make(initial=first)
