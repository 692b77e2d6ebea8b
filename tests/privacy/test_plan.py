import json
import math
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from flower_kmeans.canonical import real_to_text
from flower_kmeans.errors import BudgetError, ConfigurationError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.filter import charge_of
from flower_kmeans.privacy.plan import PrivacyPlan, Release, calibrate, plan_from_config
from flower_kmeans.protocol.wire import decode, encode

TABLE = json.loads(
    Path(__file__).with_name("tensorflow_privacy_table.json").read_text()
)


def gaussian(multiplier, name="sums"):
    return Release(name, "gaussian", "l2", multiplier, (name,))


def laplace(multiplier, name="counts"):
    return Release(name, "laplace", "l1", multiplier, (name,))


# As FastLloyd's: the first round costs another radius than the later ones.
GAUSSIAN = [
    [gaussian(3.0), gaussian(5.0, "counts")],
    [gaussian(1.0), gaussian(1.7, "counts")],
]
LAPLACE = [[laplace(1.0, "sums"), laplace(2.5)]] * 3
MIXED = [[gaussian(1.0), laplace(4.0)]] * 2


def accountant_epsilon(plan, delta):
    """Return what another accountant says of the plan's releases."""
    events = {
        "gaussian": dp_accounting.GaussianDpEvent,
        "laplace": dp_accounting.LaplaceDpEvent,
    }
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for release in plan.releases:
        for bound, number in release.parts or ((1.0, 1),):
            event = events[release.mechanism](release.noise_multiplier / bound)
            accountant.compose(event, number)
    return accountant.get_epsilon(delta)


@pytest.mark.claim("guarantees", "1")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_plans_agree_with_dp_accounting(epsilon, delta):
    plan = calibrate(PrivacyBudget(epsilon, delta), GAUSSIAN, 1000)
    assert plan.mu == pytest.approx(mu_of_budget(epsilon, delta), rel=1e-14)
    assert plan.delta(epsilon) <= delta
    assert plan.delta(epsilon) == pytest.approx(delta, rel=1e-10)
    assert plan.epsilon() == pytest.approx(epsilon, rel=1e-10)
    assert accountant_epsilon(plan, delta) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.claim("guarantees", "1")
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
    given = [release for group in rounds for release in group]
    factors = [
        new.noise_multiplier / old.noise_multiplier
        for new, old in zip(plan.releases, given, strict=True)
    ]
    np.testing.assert_allclose(factors, factors[0], rtol=1e-14)
    scaled = [
        replace(r, noise_multiplier=r.noise_multiplier / factors[0])
        for r in plan.releases
    ]
    assert [r.name for r in scaled] == [r.name for r in given]
    # What a client reads is what was made.
    assert plan_from_config(decode(encode(plan.to_config()), dict[str, Any])) == plan


@pytest.mark.claim("guarantees", "2")
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
    for rounds in (MIXED, GAUSSIAN):
        with pytest.raises(BudgetError, match="'delta'"):
            calibrate(PrivacyBudget(0.8, 0.0), rounds, 1000)


@pytest.mark.parametrize("delta", [1e-12, 1e-14, 1e-15, 1e-17, 1e-300, 5e-324])
@pytest.mark.parametrize(
    "rounds", [GAUSSIAN, LAPLACE, MIXED], ids=["gaussian", "laplace", "mixed"]
)
def test_a_delta_of_nearly_nothing_has_a_plan_or_is_named(delta, rounds):
    budget = PrivacyBudget(0.8, delta)
    if rounds is MIXED and delta <= 1e-15:
        with pytest.raises(
            BudgetError, match=f"larger delta, such as 1e-9. Got {delta:g}, "
        ):
            calibrate(budget, rounds, 1000)
        return
    plan = calibrate(budget, rounds, 1000)
    assert plan.epsilon() <= 0.8
    assert plan.epsilon() == pytest.approx(0.8, rel=1e-3)
    assert plan.delta(0.8) <= delta
    assert plan_from_config(plan.to_config()) == plan


@pytest.mark.parametrize(
    ("unit", "numbers"),
    [
        ("record", (50_000, None, None)),
        ("client", (10**7, 50_000, None)),
        ("person", (None, None, 50_000)),
    ],
)
def test_delta_is_resolved_from_the_public_number_of_what_is_protected(unit, numbers):
    plan = calibrate(PrivacyBudget(1.0, unit=unit), GAUSSIAN, *numbers)
    assert plan.budget.delta == 1 / 5_000_000
    assert (plan.n_records, plan.n_clients, plan.n_persons) == numbers
    assert plan_from_config(plan.to_config()) == plan
    assert f"for one {unit}" in plan.describe()
    assert calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, None).n_records is None


@pytest.mark.parametrize(
    ("budget", "numbers", "name"),
    [
        (PrivacyBudget(1.0), (None,), "n_records"),
        (PrivacyBudget(1.0, 1e-6), (0,), "n_records"),
        (PrivacyBudget(1.0, unit="client"), (1000,), "n_clients"),
        (PrivacyBudget(1.0, 1e-6, "client"), (1000, 0), "n_clients"),
        (PrivacyBudget(1.0), (1000, 40), "n_clients"),
        (PrivacyBudget(None, unit="client"), (1000, 40), "n_clients"),
        (PrivacyBudget(1.0, unit="person"), (None,), "n_persons"),
        (PrivacyBudget(1.0, unit="person"), (1000, None, 40), "n_records"),
        (PrivacyBudget(1.0, 1e-6, "person"), (None, None, 0), "n_persons"),
        (PrivacyBudget(1.0, 1e-6, "person"), (None, 9, 40), "n_clients"),
        (PrivacyBudget(1.0), (1000, None, 40), "n_persons"),
        (PrivacyBudget(None), (1000, None, 40), "n_persons"),
    ],
)
def test_public_numbers_that_do_not_fit_the_budget_are_refused(budget, numbers, name):
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        calibrate(budget, GAUSSIAN, *numbers)


def test_without_privacy():
    plan = calibrate(PrivacyBudget(None), GAUSSIAN, None)
    assert not plan.is_private
    assert all(release.noise_multiplier == 0 for release in plan.releases)
    found = (plan.mu, plan.epsilon(), plan.delta(3.0), plan.group(2))
    assert found == (None, math.inf, 1.0, math.inf)
    assert plan.describe().startswith("NOT PRIVATE")
    assert plan_from_config(plan.to_config()) == plan


def test_groups():
    plan = calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000)
    assert plan.group(1) == plan.epsilon() == pytest.approx(1.0, rel=1e-9)
    assert plan.group(3) == pytest.approx(epsilon_of_mu(3 * plan.mu, 1e-6), rel=1e-9)
    pure = calibrate(PrivacyBudget(0.8, 0.0), LAPLACE, 1000)
    assert pure.group(5) == pytest.approx(4.0, rel=1e-12)
    with pytest.raises(ConfigurationError, match="'size'"):
        plan.group(0)


def exact_delta(square, epsilon):
    """Return the delta at an epsilon from the exact mu^2, a fraction, in 60 digits."""
    with mpmath.workdps(60):
        mu = mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)
        e, root = mpmath.mpf(epsilon), mpmath.sqrt(2)
        above = mpmath.erfc((e / mu - mu / 2) / root)
        return (above - mpmath.exp(e) * mpmath.erfc((e / mu + mu / 2) / root)) / 2


@pytest.mark.claim("guarantees", "1")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 3e-7, 1e-9])
def test_what_a_gaussian_plan_states_is_rounded_upward(epsilon, delta):
    for n_rounds in (1, 4, 7):
        plan = calibrate(PrivacyBudget(epsilon, delta), GAUSSIAN * n_rounds, 1000)
        square = sum(
            1 / Fraction(release.noise_multiplier) ** 2 for release in plan.releases
        )
        assert exact_delta(square, epsilon) <= delta
        assert plan.epsilon() <= epsilon
        for other in (delta, delta / 7):
            assert exact_delta(square, plan.epsilon(other)) <= other
            for size in (2, 3, 10):
                assert exact_delta(square * size**2, plan.group(size, other)) <= other
        assert exact_delta(square, epsilon / 2) <= plan.delta(epsilon / 2)


@pytest.mark.parametrize("rounds", [GAUSSIAN, MIXED])
def test_epsilon_and_delta_are_inverse_and_described(rounds):
    plan = calibrate(PrivacyBudget(1.0, 1e-6), rounds, 1000)
    deltas = [plan.delta(epsilon) for epsilon in np.linspace(0, 2, 9)]
    assert np.all(np.diff(deltas) < 0)
    assert plan.epsilon(deltas[2]) == pytest.approx(0.5, abs=1e-3)
    text = plan.describe()
    assert text.count("sums") == text.count("counts") == 2
    assert f"{plan.rounds[0][0].noise_multiplier:.6g}" in text
    assert "delta 1e-06" in text
    assert ("mu 0.2367" in text) == (rounds is GAUSSIAN)


def test_every_plan_that_is_made_is_accepted_by_clients_and_ledgers():
    """Whatever the last bits of its noise are, and also where sums of mu are rounded upward."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        budget = PrivacyBudget(float(rng.choice([0.01, 0.25, 1.0, 4.0])), 1e-5)
        rounds = [
            [gaussian(m) for m in rng.uniform(0.5, 20, 2)]
            for _ in range(rng.integers(1, 6))
        ]
        plan = calibrate(budget, rounds, 1000)
        assert plan_from_config(plan.to_config()) == plan
        assert charge_of(plan.releases).fits(budget.epsilon, budget.delta)
    # Also one that is too small for a ledger to count ends.
    assert calibrate(PrivacyBudget(1e-14, 1e-30), GAUSSIAN, 1000).mu <= mu_of_budget(
        1e-14, 1e-30
    )


def test_a_plan_that_exceeds_its_budget_is_refused():
    for rounds in (GAUSSIAN, LAPLACE, MIXED):
        plan = calibrate(PrivacyBudget(2.0, 1e-6), rounds, 1000)
        false = PrivacyPlan(PrivacyBudget(1.0, 1e-6), plan.n_records, plan.rounds)
        with pytest.raises(MessageError, match="must meet its budget"):
            plan_from_config(false.to_config())


FIRST = ("rounds", 0, 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("more",), 1),
        (("budget",), {}),
        (("budget",), {"unit": "record", "epsilon": real_to_text(1.0)}),
        (("rounds",), {}),
        (("rounds",), []),
        (("rounds",), [[], 3]),
        (("n_records",), 0),
        (("n_records",), "5"),
        (("n_records",), [5]),
        (("n_clients",), 40),
        (("n_persons",), 40),
        (("mu",), real_to_text(0.01)),
        ((*FIRST, "name"), 3),
        ((*FIRST, "mechanism"), "none"),
        ((*FIRST, "mechanism"), []),
        ((*FIRST, "norm"), "l1"),
        ((*FIRST, "blocks"), []),
        ((*FIRST, "blocks"), [1]),
        ((*FIRST, "noise_multiplier"), 1.0),
        ((*FIRST, "noise_multiplier"), real_to_text(0.0)),
        ((*FIRST, "noise_multiplier"), real_to_text(5e-324)),
        ((*FIRST, "noise_multiplier"), real_to_text(-1.0)),
        ((*FIRST, "more"), 1),
        ((), None),
        ((), {"rounds": []}),
    ],
)
def test_malformed_config(path, value):
    config = calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000).to_config()
    if path:
        *parents, last = path
        reduce(getitem, parents, config)[last] = value
    with pytest.raises(MessageError):
        plan_from_config(config if path else value)


def test_releases_are_counted_before_any_is_read():
    config = calibrate(PrivacyBudget(1.0, 1e-6), GAUSSIAN, 1000).to_config()
    config["rounds"] = [[{}] * 5_000, [{}] * 5_000]
    with pytest.raises(MessageError) as of_a_release:
        plan_from_config(config)
    assert "at most" not in str(of_a_release.value)
    config["rounds"] = [[{}] * 5_000, [{}] * 5_001]
    with pytest.raises(MessageError, match="at most 10000 releases"):
        plan_from_config(config)


COLUMNS = Release("sums", "laplace", "linf", 3.0, ("sums",), ((1.0, 2**17),))


@pytest.mark.parametrize(
    ("budget", "releases", "message"),
    [
        (PrivacyBudget(1.0), [gaussian(1.0)], "resolved"),
        (PrivacyBudget(1.0, 1e-6), [gaussian(0.0)], "'noise_multiplier'"),
        (PrivacyBudget(1.0, 1e-6), [], "between 1 and"),
        (
            PrivacyBudget(1.0, 1e-6),
            [laplace(1.0 + i) for i in range(257)],
            "different scales",
        ),
        (
            PrivacyBudget(1.0, 1e-6),
            [COLUMNS, COLUMNS],
            "record must have at most 131072 parts",
        ),
        (
            PrivacyBudget(1.0, 1e-6, "client"),
            [COLUMNS],
            "client must have at most 0 parts",
        ),
        (PrivacyBudget(None), [gaussian(1.0)], "epsilon=None"),
    ],
)
def test_plan_refuses_what_it_cannot_promise(budget, releases, message):
    with pytest.raises(ConfigurationError, match=message):
        PrivacyPlan(budget, 10, (tuple(releases),))
    assert len(PrivacyPlan(PrivacyBudget(1.0, 1e-6), 10, ((COLUMNS,),)).releases) == 1


@pytest.mark.claim("guarantees", "15")
def test_parts_of_a_release_compose_as_releases_do():
    columns = Release("sums", "laplace", "linf", 12.0, ("sums",), ((0.5, 3), (1.0, 2)))
    one_by_one = [laplace(24.0, f"{i}") for i in range(3)] + [
        laplace(12.0, f"{i}") for i in (3, 4)
    ]
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
        assert together.epsilon() == pytest.approx(
            parts.then(parts).epsilon(), rel=1e-12
        )
    assert accountant_epsilon(whole, 1e-6) == pytest.approx(whole.epsilon(), rel=2e-3)
    assert "linf of 5 words" in whole.describe()


# -------------------------------------------------------------------- two runs together


@pytest.mark.claim("guarantees", "6")
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
    # As the second run may depend on the first one, Laplace noise costs more than in
    # one plan that is fixed beforehand; Gaussian noise does not.
    fixed = accountant_epsilon(together, 1e-6)
    if second is GAUSSIAN:
        assert together.epsilon() == pytest.approx(fixed, rel=5e-3)
        assert plans[1].epsilon() < together.epsilon() < plans[0].epsilon(1e-6) + 1.0
        assert together.mu == pytest.approx(
            math.hypot(plans[0].mu, plans[1].mu), rel=1e-12
        )
    else:
        assert together.epsilon() > 1.01 * fixed
        assert together.epsilon() == charge_of(together.releases).epsilon(1e-6)
    assert together.delta(together.epsilon()) == pytest.approx(1e-6, rel=1e-6)
    assert together.group(2) > 2 * together.epsilon() * 0.9
    assert "All rounds together" in together.describe()
    with pytest.raises(ConfigurationError, match="plan of one run"):
        together.to_config()


def test_only_costs_of_one_unit_are_added():
    record, nothing = (calibrate(PrivacyBudget(e), GAUSSIAN, 1000) for e in (1.0, None))
    clients = PrivacyBudget(1.0, 1e-6, "client")
    client, other = (calibrate(clients, GAUSSIAN, *n) for n in ((900, 30), (800, 20)))
    for plan, message in (
        (client, "same unit of privacy"),
        (nothing, "two private plans"),
    ):
        for first, second in ((record, plan), (plan, record)):
            with pytest.raises(ConfigurationError, match=message):
                first.then(second)
    together = client.then(other)
    assert (together.n_records, together.n_clients) == (None, None)
    assert client.then(client).n_clients == 30
    pure = [
        calibrate(PrivacyBudget(epsilon, 0.0), LAPLACE, None) for epsilon in (0.5, 1.0)
    ]
    together = pure[0].then(pure[1])  # epsilons of pure runs add up
    assert (together.epsilon(), together.budget.delta) == (
        pytest.approx(1.5, rel=1e-9),
        0,
    )
