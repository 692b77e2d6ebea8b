"""Parameters of FedDP-KMeans: checks, the run document, and how the privacy is shared."""

import math
from typing import Any

import numpy as np
import pytest

from flower_kmeans.algorithms import FedDPAlgorithm, algorithm_from_config
from flower_kmeans.algorithms.feddp_releases import LAPLACE_RELEASES, RELEASES
from flower_kmeans.domain import Ball, Box
from flower_kmeans.errors import (
    BudgetError,
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.protocol.noise import check_shares
from flower_kmeans.protocol.wire import decode, encode

BUDGET = PrivacyBudget(1.0)
DATA = np.random.default_rng(0).uniform(0, 1, (12, 4))
BOX = Box([0] * 4, [1] * 4)


def build(**options):
    options = {"server_data": DATA, "n_records": 1000, "budget": BUDGET, **options}
    return FedDPAlgorithm(options.pop("k", 3), options.pop("domain", BOX), **options)


# ----------------------------------------------------------------- the plan


def shares_of(algorithm):
    """Share of mu^2 by release, all Lloyd rounds together."""
    budget = algorithm.plan().budget
    total, found = mu_of_budget(budget.epsilon, budget.delta) ** 2, {}
    for release in algorithm.plan().releases:
        found[release.name] = found.get(release.name, 0.0) + release.cost**2 / total
    return found


@pytest.mark.parametrize("n_lloyd_rounds", [1, 2, 7])
@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("d", [2, 100])
def test_default_shares_are_those_of_the_guarantees(d, sums, n_lloyd_rounds):
    data = np.random.default_rng(1).uniform(0, 1, (12, d))
    domain = Box([0] * d, [1] * d)
    algorithm = build(domain=domain, server_data=data, sums=sums, n_lloyd_rounds=n_lloyd_rounds)
    shares = shares_of(algorithm)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["projection"] == pytest.approx(0.30)
    assert shares["weights"] == pytest.approx(0.10)
    for stage in ("lift", "lloyd"):
        assert shares[f"{stage}-sums"] + shares[f"{stage}-counts"] == pytest.approx(0.30)
    # sqrt(d) D : r, with r = 0.45 D, or half of the radius where sums are relative.
    norm = 0.5 if sums == "relative" else 0.45
    assert shares["lift-sums"] / shares["lift-counts"] == pytest.approx(math.sqrt(d) / 0.45)
    assert shares["lloyd-sums"] / shares["lloyd-counts"] == pytest.approx(math.sqrt(d) / norm)
    costs = [[r.cost for r in releases] for releases in algorithm.plan().rounds[3:]]
    assert len(costs) == n_lloyd_rounds
    assert all(cost == costs[0] for cost in costs)


def test_a_cost_has_a_small_share_of_the_last_round():
    algorithm = build(cost=True)
    names = [[r.name for r in releases] for releases in algorithm.plan().rounds]
    assert names[3:] == [["lloyd-sums", "lloyd-counts"], ["lloyd-sums", "lloyd-counts", "cost"]]
    assert shares_of(algorithm)["cost"] == pytest.approx(0.02 / 1.02)
    assert [block.name for block in algorithm.layout(5)] == ["sums", "counts", "cost"]
    assert [block.name for block in algorithm.layout(4)] == ["sums", "counts"]


def test_a_spread_has_a_small_share_of_the_first_lloyd_round():
    algorithm = build(sums="narrowing", n_lloyd_rounds=3)
    rounds = algorithm.plan().rounds[3:]
    lloyd = ["lloyd-sums", "lloyd-counts"]
    assert [[r.name for r in releases] for releases in rounds] == [[*lloyd, "spread"], lloyd, lloyd]
    assert shares_of(algorithm)["spread"] == pytest.approx(0.02 / 1.02)
    assert [block.name for block in algorithm.layout(4)] == ["sums", "counts", "spread"]
    assert [block.name for block in algorithm.layout(5)] == ["sums", "counts"]
    # Noise is that of the radius, whatever it narrows to.
    places, units = algorithm.places(4), algorithm.units(4)
    assert (units[places["sums"]] == 4 * algorithm.radius).all()
    assert units[places["spread"]] == algorithm.radius**2 >> 16
    np.testing.assert_array_equal(algorithm.units(5), algorithm.units(6))


def test_a_radius_narrows_unless_something_is_against_it():
    square = {"domain": Box([0] * 2, [1] * 2), "server_data": DATA[:, :2]}
    clients = {"budget": PrivacyBudget(1.0, unit="client"), "n_clients": 10}
    assert build(**square, n_lloyd_rounds=2).sums == "narrowing"
    for options in (
        {"n_lloyd_rounds": 1},
        {"alpha": 0.8},
        {"budget": PrivacyBudget(None)},
        clients,
    ):
        assert build(**square, **{"n_lloyd_rounds": 2, **options}).sums == "relative"
    assert build(n_lloyd_rounds=2).sums == "absolute"
    for options in ({"n_lloyd_rounds": 1}, clients, {"alpha": 1e-3}):
        with pytest.raises(ConfigurationError, match="sums='narrowing'"):
            build(**square, **{"n_lloyd_rounds": 2, "sums": "narrowing", **options})


def test_shares_can_be_given_by_release():
    options = {"shares": dict.fromkeys(RELEASES, 5), "sums": "narrowing", "cost": True}
    options["n_lloyd_rounds"] = 2
    assert shares_of(build(**options)) == pytest.approx(dict.fromkeys(RELEASES, 1 / 8))
    default, more = shares_of(build()), shares_of(build(shares={"projection": 0.60}))
    assert more["projection"] == pytest.approx(0.60 / 1.30)
    assert more["weights"] == pytest.approx(default["weights"] / 1.30)


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_laplace_noise_where_it_is_asked_for(delta):
    budget = PrivacyBudget(1.0, delta)
    algorithm = build(mechanisms="laplace", cost=True, budget=budget)
    for release in algorithm.plan().releases:
        laplace = release.name in LAPLACE_RELEASES
        assert (release.mechanism, release.norm) == (
            ("laplace", "l1") if laplace else ("gaussian", "l2")
        )
    assert algorithm.plan().epsilon() <= 1.0
    one = build(mechanisms={"weights": "laplace", "cost": "gaussian"}, cost=True)
    assert one.laplace == ("weights",)
    assert {r.name for r in one.plan().releases if r.mechanism == "laplace"} == {"weights"}
    with pytest.raises(ConfigurationError, match="must be Gaussian"):
        check_shares(one, one.plan(), 10)
    with pytest.raises(BudgetError, match="delta"):
        build(mechanisms="laplace", budget=PrivacyBudget(1.0, 0.0)).plan()


def test_the_planned_noise_is_known_by_block():
    algorithm = build(mechanisms={"lift-counts": "laplace"}, fraction_bits=16)
    sums, counts = algorithm.plan().rounds[2]
    noise = algorithm.noise_of(3)
    assert noise["sums"] == pytest.approx(sums.noise_multiplier * 2 * 2**16)  # D = sqrt(4)
    assert noise["counts"] == pytest.approx(counts.noise_multiplier * math.sqrt(2) * 2**16)
    assert set(build(budget=PrivacyBudget(None)).noise_of(3).values()) == {0.0}


@pytest.mark.parametrize("d", [1, 2, 100, 784])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("shares", [2, 80, 4000])
def test_noise_can_be_shared_among_clients(d, epsilon, shares):
    algorithm = FedDPAlgorithm(
        10,
        Ball(3.0, [0] * d),
        PrivacyBudget(epsilon),
        n_server_points=300,
        n_records=100_000,
        cost=True,
    )
    check_shares(algorithm, algorithm.plan(), shares)
    algorithm.require_capacity(math.sqrt(5))


# ----------------------------------------------------------------- the document

CLIENTS = PrivacyBudget(1.0, unit="client")
VARIANTS = [
    {},
    {"budget": PrivacyBudget(None), "n_records": None},
    {"sums": "relative"},
    {"alpha": 0.3, "margin": 1 / 3, "min_weight": 2.5, "seed": 9},
    {"cost": True, "shares": {"cost": 0.3, "lift-sums": 1}, "mechanisms": "laplace"},
    {"budget": CLIENTS, "n_clients": 50, "clips": {"projection": 1}},
    {"budget": CLIENTS, "n_clients": 50, "clip": 3.5, "contribution": "means"},
    {"budget": CLIENTS, "n_clients": 50, "contribution": "means"},
    {"budget": CLIENTS, "n_clients": 50, "cost": True, "mechanisms": "laplace"},
    {"n_lloyd_rounds": 0, "mechanisms": {"weights": "laplace"}, "fraction_bits": 12},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("domain", [BOX, Ball(2.0, [0.5] * 4)])
def test_an_algorithm_survives_its_configuration(options, domain):
    algorithm = build(domain=domain, **options)
    config = decode(encode(algorithm.to_config()), dict[str, Any])
    again = algorithm_from_config(config, domain, algorithm.budget)
    assert type(again) is FedDPAlgorithm
    assert again == algorithm
    assert hash(again) == hash(algorithm)
    assert again.to_config() == config
    assert again.plan() == algorithm.plan()
    assert again.server_points is None


def test_the_servers_points_do_not_travel():
    algorithm = build()
    other = build(server_data=DATA[::-1])
    assert algorithm == other
    assert algorithm.to_config() == other.to_config()
    assert "array" not in repr(algorithm)
    assert algorithm != build(server_data=DATA[:-1])
    numbers = str(algorithm.server_points[0, 0]), float(DATA[0, 0]).hex()
    assert not any(number in str(algorithm.to_config()) for number in numbers)


def test_variants_are_different():
    variants = [build(**options) for options in VARIANTS[:1] + VARIANTS[2:]]
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"margin": 1.0},
        {"margin": "0x1p-1000"},
        {"seed": "0"},
        {"cost": 1},
        {"n_lloyd_rounds": "auto"},
        {"n_lloyd_rounds": True},
        {"n_server_points": 2},
        {"n_server_points": 2**50},
        {"n_clusters": 0},
        {"shares": []},
        {"shares": {"noise": "0x1p+0"}},
        {"shares": {"cost": "-0x1p+0"}},
        {"laplace": ["projection"]},
        {"laplace": [["weights"]]},
        {"laplace": "weights"},
        {"sums": "none"},
        {"sums": "auto"},
    ],
)
def test_other_configurations_are_refused(change):
    config = {**build().to_config(), **change}
    with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
        algorithm_from_config(config, BOX, BUDGET)


def test_a_configuration_that_lacks_a_field_is_refused():
    config = build().to_config()
    for name in set(config) - {"name", "n_records"}:
        lacking = {key: value for key, value in config.items() if key != name}
        with pytest.raises(ConfigurationError, match="not as expected"):
            algorithm_from_config(lacking, BOX, BUDGET)


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"server_data": None}, ConfigurationError, "server_data is required"),
        ({"server_data": DATA[:, :3]}, ConfigurationError, "server_data must have 4 columns"),
        ({"server_data": DATA * [1, 1, 1, np.nan]}, ConfigurationError, "server_data must be fin"),
        ({"server_data": [["a"] * 4] * 9}, ConfigurationTypeError, "server_data"),
        ({"server_data": DATA[:2]}, ConfigurationError, "server_data with at least n_clusters=3"),
        ({"server_data": DATA[[0, 1] * 5]}, ConfigurationError, "different points. Got 2"),
        ({"n_server_points": 13}, ConfigurationError, "n_server_points=12.*Got 13"),
        ({"server_data": None, "n_server_points": 2}, ConfigurationError, "n_server_points in"),
        ({"n_records": None}, ConfigurationError, "n_records is required"),
        ({"n_records": 2}, ConfigurationError, "n_clusters of at most n_records=2"),
        ({"n_lloyd_rounds": -1}, ConfigurationError, "n_lloyd_rounds in"),
        ({"n_lloyd_rounds": "many"}, ConfigurationError, "n_lloyd_rounds.*Got 'many'"),
        ({"n_lloyd_rounds": 0, "cost": True}, ConfigurationError, "n_lloyd_rounds >= 1 with cost"),
        ({"cost": "yes"}, ConfigurationTypeError, "cost must be a bool"),
        ({"margin": 0}, ConfigurationError, "margin in"),
        ({"margin": 1.01}, ConfigurationError, "margin in"),
        ({"margin": math.nan}, ConfigurationError, "margin in"),
        ({"margin": "1"}, ConfigurationTypeError, "margin must be a number"),
        ({"min_weight": 0}, ConfigurationError, "min_weight in"),
        ({"sums": None}, ConfigurationError, "sums in.*Got None"),
        ({"sums": "both"}, ConfigurationError, "sums in.*Got 'both'"),
        ({"sums": "relative", "alpha": 1e-9}, ConfigurationError, "alpha so large"),
        ({"alpha": 0}, ConfigurationError, "alpha in"),
        ({"shares": [1]}, ConfigurationTypeError, "shares must be a mapping"),
        ({"shares": {"lift": 1}}, ConfigurationError, "shares for releases in.*Got 'lift'"),
        ({"shares": {"cost": 0}}, ConfigurationError, "shares between.*Got 0 for 'cost'"),
        ({"shares": {"cost": "1"}}, ConfigurationTypeError, "shares must hold numbers"),
        ({"mechanisms": "poisson"}, ConfigurationError, "Got 'poisson'"),
        ({"mechanisms": {"lift-sums": "laplace"}}, ConfigurationError, "Got 'lift-sums'"),
        ({"seed": 2**53}, ConfigurationError, "seed in"),
        ({"domain": Ball(1.0, [0] * 9), "fraction_bits": 25}, ConfigurationError, "too fine"),
        ({"fraction_bits": 26}, ConfigurationError, "fraction_bits in"),
        ({"budget": CLIENTS}, ConfigurationError, "n_clients is required with unit='client'"),
        ({"budget": CLIENTS, "n_clients": 9, "clip": 0}, ConfigurationError, "clip positive"),
        ({"budget": CLIENTS, "n_clients": 0}, ConfigurationError, "n_clients in"),
        ({"budget": CLIENTS, "n_clients": 9, "clips": {"x": 1}}, ConfigurationError, "Got 'x'"),
        ({"budget": CLIENTS, "n_clients": 9, "clip": 1e-9}, ConfigurationError, "one step of the"),
        ({"budget": CLIENTS, "n_clients": 2**53}, ConfigurationError, "n_clients in"),
        ({"n_clients": 9}, ConfigurationError, "n_clients=None unless"),
        ({"clips": {"cost": 1}}, ConfigurationError, "clips=None unless"),
        ({"contribution": "all"}, ConfigurationError, "contribution in.*Got 'all'"),
        ({"contribution": "means"}, ConfigurationError, "contribution='sums' with unit='record'"),
        (
            {"budget": CLIENTS, "n_clients": 9, "contribution": "means", "cost": True},
            ConfigurationError,
            "contribution='sums' with cost=True",
        ),
        ({"alpha": "wide"}, ConfigurationTypeError, "alpha must be a number"),
        ({"k": 0}, ConfigurationError, "n_clusters in"),
        ({"n_records": 2**48}, ConfigurationError, "n_records=281474976710656 and noise"),
    ],
)
def test_bad_parameters_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        build(**options)


def test_the_largest_messages_and_runs():
    """2^22 words of a query or an answer, and 2^27 of all answers, but not one more."""

    def sized(k, d, m, **options):
        domain, budget = Ball(1.0, [0] * d), PrivacyBudget(None)
        return FedDPAlgorithm(k, domain, budget, n_server_points=m, **options)

    assert sized(2, 2895, 5).words(1) == 2895 * 1448 < 2**22
    with pytest.raises(ConfigurationError, match="Expected columns so that"):
        sized(2, 2896, 5)
    assert sized(4, 4, 2**20 - 4).n_server_points == 2**20 - 4
    with pytest.raises(ConfigurationError, match="Expected n_server_points so that"):
        sized(4, 4, 2**20 - 3)
    assert sized(1000, 1000, 1000, n_lloyd_rounds=132).n_rounds == 135
    with pytest.raises(ConfigurationError, match="Got n_lloyd_rounds=133"):
        sized(1000, 1000, 1000, n_lloyd_rounds=133)


def test_sizes_of_gigabytes_are_refused():
    wide = Box([0] * 3000, [1] * 3000)
    with pytest.raises(ConfigurationError, match="Expected columns so that"):
        FedDPAlgorithm(2, wide, PrivacyBudget(None), n_server_points=4)
    with pytest.raises(ConfigurationError, match="Expected n_server_points so that"):
        FedDPAlgorithm(4, BOX, PrivacyBudget(None), n_server_points=2**20)
    with pytest.raises(ConfigurationError, match="n_lloyd_rounds so that"):
        FedDPAlgorithm(
            1000,
            Box([0] * 999, [1] * 999),
            PrivacyBudget(None),
            n_server_points=1000,
            n_lloyd_rounds=200,
        )


def test_rounds_are_the_initialisation_and_those_of_lloyd():
    assert build(n_lloyd_rounds=4).n_rounds == 7
    assert build(n_lloyd_rounds=0).n_rounds == 3
    assert build().n_rounds == len(build().plan().rounds)
    assert not FedDPAlgorithm.replayable


@pytest.mark.parametrize(
    ("k", "d", "alpha", "sums"),
    [
        (15, 2, 0.8, "relative"),
        (8, 5, 0.8, "relative"),
        (10, 20, 0.8, "absolute"),
        (10, 20, 0.5, "relative"),
        (1, 1, 0.8, "absolute"),
        (10, 100, 0.8, "absolute"),
    ],
)
def test_sums_are_relative_where_the_radius_is_small(k, d, alpha, sums):
    algorithm = build(
        k=k, domain=Ball(1.0, [0] * d), server_data=None, n_server_points=k, alpha=alpha
    )
    assert algorithm.sums == sums
    radius = alpha / k ** (1 / d)
    assert (radius <= 0.6) is (sums == "relative")
    assert algorithm.radius == (pytest.approx(radius * 2**16, abs=1) if radius <= 0.6 else None)


def test_a_second_lloyd_round_needs_little_noise():
    def rounds(n_records, **options):
        return build(n_records=n_records, sums="absolute", **options)

    # Noise of a sum's coordinate, over N / k records and D, times sqrt(d).
    one = rounds(10**4, n_lloyd_rounds=2)
    noise = one.noise_of(4)["sums"] / 2**16 / 2 * math.sqrt(4)
    enough = math.ceil(10 * noise * 3)
    delta = one.plan().budget.delta
    budget = PrivacyBudget(1.0, delta)
    assert rounds(enough, budget=budget).n_lloyd_rounds == 2
    assert rounds(enough - 2, budget=budget).n_lloyd_rounds == 1
    assert rounds(None, budget=PrivacyBudget(None)).n_lloyd_rounds == 2
    assert rounds(10**4, budget=PrivacyBudget(None)).n_lloyd_rounds == 2


@pytest.mark.parametrize("contribution", ["sums", "means"])
def test_where_clients_are_protected_a_second_lloyd_round_needs_half_the_noise(contribution):
    """Noise of a sum over N / k records, or over as many means as there are clients."""
    budget = PrivacyBudget(1.0, 1e-6, unit="client")

    def rounds(units, **options):
        figures = {"n_clients": units} if contribution == "means" else {"n_records": units}
        options = {"n_records": 10**5, "n_clients": 100, "clip": 5.0, **figures, **options}
        return build(budget=budget, contribution=contribution, sums="absolute", **options)

    noise = rounds(10**4, n_lloyd_rounds=2).noise_of(4)["sums"] / 2**16 / 2 * math.sqrt(4)
    enough = math.ceil(20 * noise * (3 if contribution == "sums" else 1))
    assert rounds(enough).n_lloyd_rounds == 2
    assert rounds(enough - 2).n_lloyd_rounds == 1


def test_numbers_at_the_ends_of_their_ranges():
    assert (build().seed, build(seed=2**53 - 1).seed) == (0, 2**53 - 1)
    assert (build().margin, build().min_weight, build().fraction_bits) == (1.0, 5.0, 16)
    for name, low, high in (("margin", 1e-6, 1.0), ("min_weight", 1e-6, 2.0**53)):
        for value in (low, high):
            assert getattr(build(**{name: value}), name) == value
        for value in (math.nextafter(low, 0), math.nextafter(high, math.inf)):
            with pytest.raises(ConfigurationError, match=f"{name} in"):
                build(**{name: value})
    assert build(alpha=1e9, sums="absolute").alpha == 1e9
    with pytest.raises(ConfigurationError, match="alpha in"):
        build(alpha=1.1e9)


def test_delta_is_that_of_the_units():
    assert build().budget.delta == min(1e-6, 1 / (100 * 1000))
    many = build(budget=CLIENTS, n_clients=10**5, n_records=10**6)
    assert many.budget.delta == 1e-7
    assert many.plan().n_clients == 10**5
    assert many.clip == 10.0
