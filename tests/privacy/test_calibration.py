import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saying import assert_within

from flower_kmeans.errors import BudgetError, ConfigurationError
from flower_kmeans.privacy.calibration import (
    delta_of_mu,
    epsilon_of_mu,
    laplace_delta,
    least_scale,
    mixture_delta,
    mixture_epsilon,
    mu_of_budget,
)

pytestmark = pytest.mark.claim("guarantees", "1", "2")

TABLE = json.loads(
    Path(__file__).with_name("tensorflow_privacy_table.json").read_text()
)


def hockey_stick(mu, epsilon):
    """delta as the integral that defines it: E_P[max(0, 1 - e^(epsilon - loss))].

    The loss of the Gaussian mechanism is N(mu^2 / 2, mu^2).
    """
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def integrand(z):
            return -mpmath.expm1(e - m * m / 2 - m * z) * mpmath.npdf(z)

        start = e / m - m / 2
        return float(
            mpmath.quad(integrand, mpmath.linspace(start, max(start, 0) + 20, 15))
        )


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 2.0, 9.0])
def test_delta_is_the_hockey_stick_divergence(mu, ratio):
    epsilon = ratio * mu
    assert delta_of_mu(mu, epsilon) == pytest.approx(
        hockey_stick(mu, epsilon), rel=1e-12
    )


@pytest.mark.parametrize("row", TABLE["delta_from_mu"])
def test_delta_agrees_with_tensorflow_privacy(row):
    assert delta_of_mu(row["mu"], row["epsilon"]) == pytest.approx(
        row["delta"], rel=1e-9
    )


@pytest.mark.parametrize("row", TABLE["epsilon_from_mu"])
def test_epsilon_agrees_with_tensorflow_privacy(row):
    assert epsilon_of_mu(row["mu"], row["delta"]) == pytest.approx(
        row["epsilon"], rel=1e-6
    )


@given(epsilon=st.floats(1e-6, 1e3), exponent=st.floats(-290, -0.1))
@settings(max_examples=40, deadline=None)
def test_calibration_is_tight_and_never_over_the_budget(epsilon, exponent):
    delta = 10**exponent
    mu = mu_of_budget(epsilon, delta)
    assert_within(
        "the calibrated mu costs a delta of", delta_of_mu(mu, epsilon), most=delta
    )
    beyond = delta_of_mu(math.nextafter(mu, math.inf), epsilon)
    assert beyond > delta, (
        f"the next larger mu costs {beyond!r}, which is within {delta!r}"
    )
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=2e-15)


def exact_delta(mu, epsilon, digits=60):
    """Return the delta of mu-GDP at an epsilon in many digits, by the error function."""
    with mpmath.workdps(digits):
        m, e, root = mpmath.mpf(mu), mpmath.mpf(epsilon), mpmath.sqrt(2)
        above = mpmath.erfc((e / m - m / 2) / root)
        return (above - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / root)) / 2


DELTAS = [1e-3, 1e-4, 1e-5, 1e-6, 3e-7, 1e-8, 1e-9, 1e-10, 1e-12]
EPSILONS = [0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 10.0]
MUS = [0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 1.3, 2.0, 3.0, 5.0, 8.0, 11.0]


@pytest.mark.claim("guarantees", "1")
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_rounded_downward(delta):
    """It stays within the budget as a real number does, and its successor does not."""
    for epsilon in EPSILONS:
        mu = mu_of_budget(epsilon, delta)
        assert exact_delta(mu, epsilon) <= delta
        assert exact_delta(math.nextafter(mu, math.inf), epsilon) > delta


@pytest.mark.claim("guarantees", "1")
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_rounded_upward(delta):
    for mu in MUS:
        epsilon = epsilon_of_mu(mu, delta)
        assert exact_delta(mu, epsilon) <= delta
        if epsilon:
            assert exact_delta(mu, math.nextafter(epsilon, 0.0)) > delta


@pytest.mark.claim("guarantees", "1")
def test_delta_is_rounded_upward():
    ups = 0
    for mu, epsilon in itertools.product(MUS, EPSILONS):
        delta, exact = delta_of_mu(mu, epsilon), exact_delta(mu, epsilon)
        if exact < 1e-300:
            continue
        assert math.nextafter(delta, 0.0) < exact <= delta
        ups += float(exact) < delta
    # Rounding to the nearest would err downward in about a half of the cases.
    assert ups > 40


def test_an_epsilon_near_zero_is_not_less_than_it_is():
    # delta(0) of this mu exceeds 1e-6 by a part of 1e-13, so the exact epsilon is about
    # 2e-19.
    mu = mu_of_budget(0.0, 1e-6) * (1 + 1e-13)
    assert epsilon_of_mu(mu, 1e-6) == 2.0**-50
    assert exact_delta(mu, 2.0**-50) < 1e-6 < exact_delta(mu, 0.0)


def test_a_budget_beyond_all_reason_is_kept_too():
    mu = mu_of_budget(0.0, 1e-160)
    more = math.nextafter(mu, 1.0)
    assert (
        exact_delta(mu, 0.0, digits=400) <= 1e-160 < exact_delta(more, 0.0, digits=400)
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (delta_of_mu(0.0, 0.0), 0.0),
        (delta_of_mu(1e-3, 1.0), 0.0),
        (delta_of_mu(1e9, 1.0), 1.0),
        # delta(0) is the total variation distance, 2 Phi(mu / 2) - 1.
        (
            delta_of_mu(1e-12, 0.0),
            pytest.approx(1e-12 / math.sqrt(2 * math.pi), rel=1e-12),
        ),
        (epsilon_of_mu(0.0, 0.0), 0.0),
        (epsilon_of_mu(1.0, 0.0), math.inf),
        (epsilon_of_mu(0.1, 0.5), 0.0),
    ],
)
def test_limits(found, expected):
    assert found == expected


@pytest.mark.parametrize(
    ("function", "arguments", "error", "name"),
    [
        (mu_of_budget, (1.0, 0.0), BudgetError, "delta"),
        (mu_of_budget, (1.0, 1.0), ConfigurationError, "delta"),
        (delta_of_mu, (1.0, -1.0), ConfigurationError, "epsilon"),
        (delta_of_mu, (math.nan, 1.0), ConfigurationError, "mu"),
        (epsilon_of_mu, (1.0, 1.0), ConfigurationError, "delta"),
    ],
)
def test_refusals(function, arguments, error, name):
    with pytest.raises(error, match=f"'{name}'"):
        function(*arguments)


# --------------------------------------------------------------------------- mixtures


@pytest.mark.parametrize("cost", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
def test_one_laplace_release_has_a_closed_form(cost, ratio):
    delta = laplace_delta(cost, ratio * cost)
    assert delta == pytest.approx(1 - math.exp((ratio - 1) * cost / 2))
    assert mixture_delta(0.0, (cost,), ratio * cost) == pytest.approx(delta, rel=1e-3)
    assert mixture_epsilon(0.0, (cost,), delta) == pytest.approx(
        ratio * cost, abs=1e-3 * cost
    )
    assert laplace_delta(cost, cost) == 0.0


def test_two_laplace_releases_by_hand():
    # Loss of one release at scale b, from its larger side: 1/b with probability 1/2,
    # -1/b with e^(-1/b)/2, and density e^((l - 1/b)/2)/4 between.
    cost, epsilon = 0.7, 0.4
    nodes, weights = np.polynomial.legendre.leggauss(400)
    loss, weight = cost * nodes, cost * weights * np.exp((cost * nodes - cost) / 2) / 4
    loss = np.concatenate([loss, [cost, -cost]])
    weight = np.concatenate([weight, [0.5, math.exp(-cost) / 2]])
    total = loss[:, None] + loss[None, :]
    delta = np.sum(weight[:, None] * weight * np.maximum(0, -np.expm1(epsilon - total)))
    # The integrand has a kink, which limits the quadrature.
    assert mixture_delta(0.0, (cost, cost), epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("place", [1, 2, 3, 499, 500, 998, 999, 1000])
@pytest.mark.parametrize(
    "shape", [lambda x: 1 / x, lambda x: math.exp(-x), lambda x: -(x**3)]
)
def test_the_least_scale_is_found(place, shape):
    step = 2.0**-6  # the grid below 1000 / 64
    calls = []

    def excess(scale):
        calls.append(scale)
        return shape(scale) - shape((place - 0.5) * step)

    # A high end of 16 sets the grid's width: 2^5 / 2^16.
    fine = 2.0**-11
    found = least_scale(excess, step / 2, 16.0)
    assert_within(
        "the scale that is found exceeds the budget by", excess(found), most=0
    )
    less = excess(found - fine)
    assert found == fine or less > 0, (
        f"a smaller scale, {found - fine!r}, is within the budget"
    )
    assert_within("it took", len(calls), most=59, unit="evaluations")


def test_the_least_scale_is_found_beside_scales_without_any_epsilon():
    def excess(scale):
        return math.inf if scale < 3.0 else 5.0 - scale

    assert least_scale(excess, 0.5, 16.0) == 5.0


@pytest.mark.parametrize("mu", [0.0, 0.5, 40.0])
@pytest.mark.parametrize(
    "laplace", [(1e4,), (1e3, 1e99), (600.0,) * 1000, (400.0,) * 10]
)
def test_costs_beyond_numerical_composition_are_added_up(mu, laplace):
    """No budget is so large that it could not be accounted, or would take gigabytes."""
    total = math.fsum(laplace)
    gaussian = epsilon_of_mu(mu, 1e-6)
    assert mixture_epsilon(mu, laplace, 1e-6) == total + gaussian
    found = mixture_delta(mu, laplace, 1.001 * total + 2 * gaussian)
    assert_within("beyond the sum of all costs delta is", found, most=1e-6)
    assert mixture_delta(mu, laplace, total * 0.999) == 1.0


@pytest.mark.parametrize("cost", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("mu", [0.0, 1.0, 10.0])
def test_numerical_composition_lies_between_the_gaussian_part_and_the_sum(cost, mu):
    gaussian = epsilon_of_mu(mu, 1e-6)
    found = mixture_epsilon(mu, (cost,) * 20, 1e-6)
    least, most = gaussian * (1 - 1e-3), (20 * cost + gaussian) * (1 + 1e-3)
    assert_within(
        "numerical composition gives an epsilon of", found, least=least, most=most
    )
    assert mixture_epsilon(mu, (cost,), 0.0) == (math.inf if mu else cost)
