import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from flower_kmeans.canonical import real_to_text
from flower_kmeans.errors import BudgetError, ConfigurationError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.filter import charge_of
from flower_kmeans.privacy.plan import PrivacyPlan, Release, calibrate, plan_from_config
from flower_kmeans.protocol.wire import decode, encode

TABLE = json.loads(Path(__file__).with_name("tensorflow_privacy_table.json").read_text())


def gaussian(multiplier, name="sums"):
    return Release(name, "gaussian", "l2", multiplier, (name,))


def laplace(multiplier, name="counts"):
    return Release(name, "laplace", "l1", multiplier, (name,))


# As FastLloyd's: the first round costs another radius than the later ones.
GAUSSIAN = [[gaussian(3.0), gaussian(5.0, "counts")], [gaussian(1.0), gaussian(1.7, "counts")]]
LAPLACE = [[laplace(1.0, "sums"), laplace(2.5)]] * 3
MIXED = [[gaussian(1.0), laplace(4.0)]] * 2


def accountant_epsilon(plan, delta):
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(plan.event()).get_epsilon(delta)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_plans_agree_with_dp_accounting(epsilon, delta):
    plan = calibrate(PrivacyBudget(epsilon, delta), GAUSSIAN, 1000)
    assert plan.mu == pytest.approx(mu_of_budget(epsilon, delta), rel=1e-14)
    assert plan.delta(epsilon) <= delta
    assert plan.delta(epsilon) == pytest.approx(delta, rel=1e-10)
    assert plan.epsilon() == pytest.approx(epsilon, rel=1e-10)
    assert accountant_epsilon(plan, delta) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("row", TABLE["rounds"])
def test_rounds_agree_with_tensorflow_privacy(row):
    rounds = ((gaussian(row["noise_multiplier"]),),) * row["rounds"]
    plan = PrivacyPlan(PrivacyBudget(1.0, row["delta"]), None, rounds)
    # Its numerical composition is pessimistic by up to half a step of 1e-4 a round.
    assert plan.epsilon() == pytest.approx(row["epsilon_pld"], rel=1e-3, abs=1e-3)
    # Renyi accounting is an upper bound, and not a sharp one.
    assert plan.epsilon() < row["epsilon_rdp"] < 1.5 * plan.epsilon()


@pytest.mark.parametrize("rounds", [GAUSSIAN, LAPLACE, MIXED])
def test_one_factor_scales_all_releases(rounds):
    plan = calibrate(PrivacyBudget(1.0, 1e-6), rounds, 1000)
    factors = [
        new.noise_multiplier / old.noise_multiplier
        for news, olds in zip(plan.rounds, rounds, strict=True)
        for new, old in zip(news, olds, strict=True)
    ]
    np.testing.assert_allclose(factors, factors[0], rtol=1e-14)
    assert [[r.name for r in group] for group in plan.rounds] == [
        [r.name for r in group] for group in rounds
    ]


@pytest.mark.parametrize("rounds", [LAPLACE, MIXED])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (5.0, 1e-9)])
def test_mixtures_meet_the_budget_and_waste_little(rounds, epsilon, delta):
    plan = calibrate(PrivacyBudget(epsilon, delta), rounds, 1000)
    assert plan.mu is None
    assert plan.delta(epsilon) <= delta
    assert plan.epsilon() <= epsilon
    assert plan.epsilon() == pytest.approx(epsilon, rel=1e-3)
    # An accountant of its own, on the event and with its own grid.
    assert accountant_epsilon(plan, delta) == pytest.approx(epsilon, rel=5e-3, abs=5e-4)


def test_pure_privacy_is_the_sum_of_the_epsilons():
    plan = calibrate(PrivacyBudget(0.8, 0.0), LAPLACE, 1000)
    total = math.fsum(1 / r.noise_multiplier for r in plan.releases)
    assert total <= 0.8
    assert total == pytest.approx(0.8, rel=1e-14)
    assert plan.epsilon() == total
    assert plan.delta(0.8) == 0.0
    with pytest.raises(BudgetError, match="'delta'"):
        calibrate(PrivacyBudget(0.8, 0.0), MIXED, 1000)
    with pytest.raises(BudgetError, match="'delta'"):
        calibrate(PrivacyBudget(0.8, 0.0), GAUSSIAN, 1000)


def test_mixture_lies_between_its_parts_and_their_sum():
    plan = calibrate(PrivacyBudget(1.0, 1e-6), MIXED, 1000)
    bare = [[r for r in group if r.mechanism == "gaussian"] for group in plan.rounds]
    part = PrivacyPlan(plan.budget, None, tuple(map(tuple, bare)))
    pure = math.fsum(1 / r.noise_multiplier for r in plan.releases if r.mechanism == "laplace")
    assert part.epsilon() < plan.epsilon() < part.epsilon() + pure


def test_delta_is_resolved_from_the_public_number_of_records():
    assert calibrate(PrivacyBudget(1.0), GAUSSIAN, 50_000).budget.delta == 1 / 5_000_000
    with pytest.raises(ConfigurationError, match="'n_records'"):
        calibrate(PrivacyBudget(1.0), GAUSSIAN, None)
    assert calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, None).n_records is None


def test_delta_is_resolved_from_the_public_number_of_clients_where_they_are_protected():
    budget = PrivacyBudget(1.0, unit="client")
    plan = calibrate(budget, GAUSSIAN, 10**7, 50_000)
    assert plan.budget.delta == 1 / 5_000_000
    assert (plan.n_records, plan.n_clients) == (10**7, 50_000)
    assert plan_from_config(plan.to_config()) == plan
    assert "for one client" in plan.describe()
    with pytest.raises(ConfigurationError, match="'n_clients'"):
        calibrate(budget, GAUSSIAN, 1000)
    with pytest.raises(ConfigurationError, match="'n_clients'"):
        calibrate(PrivacyBudget(1.0, 1e-6, "client"), GAUSSIAN, 1000, 0)
    for without in (PrivacyBudget(1.0), PrivacyBudget(None, unit="client")):
        with pytest.raises(ConfigurationError, match="'n_clients'"):
            calibrate(without, GAUSSIAN, 1000, 40)


@pytest.mark.parametrize("change", [{"n_clients": True}, {"n_clients": 0}, {"n_clients": "40"}])
def test_only_a_plan_for_clients_states_their_number(change):
    config = calibrate(PrivacyBudget(1.0, unit="client"), GAUSSIAN, 1000, 40).to_config()
    with pytest.raises(MessageError):
        plan_from_config({**config, **change})
    records = calibrate(PrivacyBudget(1.0), GAUSSIAN, 1000).to_config()
    with pytest.raises(MessageError):
        plan_from_config({**records, "n_clients": 40})


def test_without_privacy():
    plan = calibrate(PrivacyBudget(None), GAUSSIAN, None)
    assert not plan.is_private
    assert all(release.noise_multiplier == 0 for release in plan.releases)
    assert plan.mu is None
    assert plan.epsilon() == math.inf
    assert plan.delta(3.0) == 1.0
    assert plan.group(2) == math.inf
    assert isinstance(plan.event(), dp_accounting.NonPrivateDpEvent)
    assert plan.describe().startswith("NOT PRIVATE")
    assert plan_from_config(plan.to_config()) == plan


def test_groups():
    plan = calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000)
    assert plan.group(1) == pytest.approx(1.0, rel=1e-9)
    threefold = PrivacyPlan(
        plan.budget,
        None,
        tuple(
            tuple(gaussian(r.noise_multiplier / 3, r.name) for r in group) for group in plan.rounds
        ),
    )
    assert threefold.mu == pytest.approx(3 * plan.mu)
    assert plan.group(3) == pytest.approx(threefold.epsilon(), rel=1e-9)
    pure = calibrate(PrivacyBudget(0.8, 0.0), LAPLACE, 1000)
    assert pure.group(5) == pytest.approx(4.0, rel=1e-12)
    with pytest.raises(ConfigurationError, match="'size'"):
        plan.group(0)


@pytest.mark.parametrize("rounds", [GAUSSIAN, MIXED])
def test_curve_falls_and_agrees_with_delta(rounds):
    plan = calibrate(PrivacyBudget(1.0, 1e-6), rounds, 1000)
    epsilons = np.linspace(0, 2, 9)
    curve = plan.curve(epsilons)
    assert curve.shape == (9,)
    assert np.all(np.diff(curve) < 0)
    assert curve[4] == plan.delta(1.0)
    assert plan.epsilon(float(curve[2])) == pytest.approx(0.5, abs=1e-3)


def test_describe_names_every_release_and_the_composition():
    plan = calibrate(PrivacyBudget(1.0, 1e-6), MIXED, 1000)
    text = plan.describe()
    assert text.count("sums") == text.count("counts") == 2
    assert f"{plan.rounds[0][0].noise_multiplier:.6g}" in text
    assert "delta 1e-06" in text
    assert "for one record" in text
    assert "mu 0.2367" in calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000).describe()


@pytest.mark.parametrize(
    "budget", [PrivacyBudget(1.0, 1e-6), PrivacyBudget(0.3), PrivacyBudget(2.0, 1e-7, "client")]
)
@pytest.mark.parametrize("rounds", [GAUSSIAN, LAPLACE, MIXED])
def test_config_round_trip(budget, rounds):
    plan = calibrate(budget, rounds, 1000)
    config = decode(encode(plan.to_config()), dict[str, Any])
    assert plan_from_config(config) == plan


def test_every_plan_that_is_made_is_accepted_by_clients_and_ledgers():
    """Whatever the last bits of its noise are, and also where sums of mu are rounded upward."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        budget = PrivacyBudget(float(rng.choice([0.01, 0.25, 1.0, 4.0])), 1e-5)
        rounds = [[gaussian(m) for m in rng.uniform(0.5, 20, 2)] for _ in range(rng.integers(1, 6))]
        plan = calibrate(budget, rounds, 1000)
        assert plan_from_config(plan.to_config()) == plan
        assert charge_of(plan.releases).fits(budget.epsilon, budget.delta)


def test_a_budget_that_no_ledger_can_count_ends():
    plan = calibrate(PrivacyBudget(1e-14, 1e-30), GAUSSIAN, 1000)
    assert plan.mu <= mu_of_budget(1e-14, 1e-30)


def weaker(config):
    release = config["rounds"][0][0]
    release["noise_multiplier"] = real_to_text(0.5 * float.fromhex(release["noise_multiplier"]))
    config.pop("mu", None)
    return config


@pytest.mark.parametrize("rounds", [GAUSSIAN, LAPLACE, MIXED])
def test_a_plan_that_breaks_its_promise_is_refused(rounds):
    config = calibrate(PrivacyBudget(1.0, 1e-6), rounds, 1000).to_config()
    with pytest.raises(MessageError):
        plan_from_config(weaker(config))


def test_a_gaussian_plan_below_its_budget_is_refused_for_its_promise_alone():
    plan = calibrate(PrivacyBudget(2.0, 1e-6), GAUSSIAN, 1000)
    false = PrivacyPlan(PrivacyBudget(1.0, 1e-6), plan.n_records, plan.rounds)
    with pytest.raises(MessageError, match="must meet its budget"):
        plan_from_config(false.to_config())


def edits():
    def edit(path, value):
        def change(config):
            place = config
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            return config

        return change

    release = ("rounds", 0, 0)
    for path, value in [
        (("more",), 1),
        (("budget",), {}),
        (("budget",), {"unit": "record", "epsilon": real_to_text(1.0)}),
        (("rounds",), {}),
        (("rounds",), []),
        (("rounds",), [[], 3]),
        (("n_records",), 0),
        (("n_records",), "5"),
        (("n_records",), [5]),
        (("mu",), real_to_text(0.01)),
        ((*release, "name"), 3),
        ((*release, "mechanism"), "none"),
        ((*release, "mechanism"), []),
        ((*release, "norm"), "l1"),
        ((*release, "blocks"), []),
        ((*release, "blocks"), [1]),
        ((*release, "noise_multiplier"), 1.0),
        ((*release, "noise_multiplier"), real_to_text(0.0)),
        ((*release, "noise_multiplier"), real_to_text(5e-324)),
        ((*release, "noise_multiplier"), real_to_text(-1.0)),
        ((*release, "more"), 1),
    ]:
        yield pytest.param(edit(path, value), id=f"{path[-1]}={value}")


@pytest.mark.parametrize("change", list(edits()))
def test_malformed_config(change):
    config = change(calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000).to_config())
    with pytest.raises(MessageError):
        plan_from_config(config)


@pytest.mark.parametrize("config", [None, 3, [], {}, {"rounds": []}])
def test_not_a_plan_at_all(config):
    with pytest.raises(MessageError):
        plan_from_config(config)


def test_plan_refuses_what_it_cannot_promise():
    budget = PrivacyBudget(1.0, 1e-6)
    with pytest.raises(ConfigurationError, match="resolved"):
        PrivacyPlan(PrivacyBudget(1.0), 10, ((gaussian(1.0),),))
    with pytest.raises(ConfigurationError, match="'noise_multiplier'"):
        PrivacyPlan(budget, 10, ((gaussian(0.0),),))
    with pytest.raises(ConfigurationError, match="between 1 and"):
        PrivacyPlan(budget, 10, ((),))
    with pytest.raises(ConfigurationError, match="'n_records'"):
        PrivacyPlan(budget, 0, ((gaussian(1.0),),))
    with pytest.raises(ConfigurationError, match="different scales"):
        PrivacyPlan(budget, 10, (tuple(laplace(1.0 + i) for i in range(257)),))
    columns = Release("sums", "laplace", "linf", 3.0, ("sums",), ((1.0, 2**17),))
    assert len(PrivacyPlan(budget, 10, ((columns,),)).releases) == 1
    with pytest.raises(ConfigurationError, match="one record must have at most 131072 parts"):
        PrivacyPlan(budget, 10, ((columns, columns),))
    with pytest.raises(ConfigurationError, match="one client must have at most 0 parts"):
        PrivacyPlan(replace(budget, unit="client"), 10, ((columns,),))
    with pytest.raises(ConfigurationError, match="epsilon=None"):
        PrivacyPlan(PrivacyBudget(None), None, ((gaussian(1.0),),))


def test_parts_of_a_release_compose_as_releases_do():
    columns = Release("sums", "laplace", "linf", 12.0, ("sums",), ((0.5, 3), (1.0, 2)))
    one_by_one = [laplace(24.0, f"{i}") for i in range(3)] + [laplace(12.0, f"{i}") for i in (3, 4)]
    for delta in (0.0, 1e-6):
        whole, parts = (
            calibrate(PrivacyBudget(1.0, delta), [group] * 4, 1000)
            for group in ([columns], one_by_one)
        )
        ratio = parts.releases[0].noise_multiplier / whole.releases[0].noise_multiplier
        assert ratio == pytest.approx(2.0, rel=1e-12)
        assert whole.epsilon() == pytest.approx(parts.epsilon(), rel=1e-12)
        assert whole.group(3) == pytest.approx(parts.group(3), rel=1e-12)
        assert whole.delta(0.5) == pytest.approx(parts.delta(0.5), rel=1e-12)
        together = whole.then(parts)
        assert together.epsilon() == pytest.approx(parts.then(parts).epsilon(), rel=1e-12)
    assert accountant_epsilon(whole, 1e-6) == pytest.approx(whole.epsilon(), rel=2e-3)
    assert "linf of 5 words" in whole.describe()


# --------------------------------------------------------------------------- two runs together


@pytest.mark.parametrize(("first", "second"), [(GAUSSIAN, GAUSSIAN), (GAUSSIAN, MIXED)])
def test_two_runs_cost_what_all_of_their_releases_cost(first, second):
    plans = [
        calibrate(PrivacyBudget(epsilon, delta), rounds, 1000)
        for rounds, epsilon, delta in ((first, 0.5, 1e-7), (second, 1.0, 1e-6))
    ]
    together = plans[0].then(plans[1])
    assert together.rounds == plans[0].rounds + plans[1].rounds
    assert (together.budget.delta, together.n_records) == (1e-6, 1000)
    assert together.budget.epsilon == pytest.approx(together.epsilon(), rel=1e-9)
    # As the second run may depend on what the first one told, Laplace noise costs more than in one
    # plan that is fixed beforehand; Gaussian noise does not.
    fixed = accountant_epsilon(together, 1e-6)
    if second is GAUSSIAN:
        assert together.epsilon() == pytest.approx(fixed, rel=5e-3)
        assert plans[1].epsilon() < together.epsilon() < plans[0].epsilon(1e-6) + 1.0
        assert together.mu == pytest.approx(math.hypot(plans[0].mu, plans[1].mu), rel=1e-12)
    else:
        assert together.epsilon() > 1.01 * fixed
        assert together.epsilon() == charge_of(together.releases).epsilon(1e-6)
    assert together.delta(together.epsilon()) == pytest.approx(1e-6, rel=1e-6)
    assert together.group(2) > 2 * together.epsilon() * 0.9
    assert "All rounds together" in together.describe()
    with pytest.raises(ConfigurationError, match="plan of one run"):
        together.to_config()


def test_pure_runs_add_their_epsilons():
    plans = [calibrate(PrivacyBudget(epsilon, 0.0), LAPLACE, None) for epsilon in (0.5, 1.0)]
    together = plans[0].then(plans[1])
    assert together.epsilon() == pytest.approx(1.5, rel=1e-9)
    assert together.budget.delta == 0


def test_only_costs_of_one_unit_are_added():
    record = calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000)
    client = calibrate(PrivacyBudget(1.0, 1e-6, "client"), GAUSSIAN, 900, 30)
    other = calibrate(PrivacyBudget(1.0, 1e-6, "client"), GAUSSIAN, 800, 20)
    nothing = calibrate(PrivacyBudget(None), GAUSSIAN, 1000)
    for first, second in ((record, client), (client, record)):
        with pytest.raises(ConfigurationError, match="same unit of privacy"):
            first.then(second)
    for first, second in ((record, nothing), (nothing, record)):
        with pytest.raises(ConfigurationError, match="two private plans"):
            first.then(second)
    together = client.then(other)
    assert (together.n_records, together.n_clients) == (None, None)
    assert client.then(client).n_clients == 30
