import json
import math
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import BudgetError, ConfigurationError
from flower_kmeans.privacy.calibration import delta_of_mu, epsilon_of_mu, mu_of_budget

TABLE = json.loads(Path(__file__).with_name("tensorflow_privacy_table.json").read_text())


def hockey_stick(mu, epsilon):
    """delta as the integral that defines it: E_P[max(0, 1 - e^(epsilon - loss))].

    The loss of the Gaussian mechanism is N(mu^2 / 2, mu^2).
    """
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def integrand(z):
            return -mpmath.expm1(e - m * m / 2 - m * z) * mpmath.npdf(z)

        start = e / m - m / 2
        return float(mpmath.quad(integrand, mpmath.linspace(start, max(start, 0) + 20, 15)))


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 2.0, 9.0])
def test_delta_is_the_hockey_stick_divergence(mu, ratio):
    epsilon = ratio * mu
    assert delta_of_mu(mu, epsilon) == pytest.approx(hockey_stick(mu, epsilon), rel=1e-12)


@pytest.mark.parametrize("row", TABLE["delta_from_mu"])
def test_delta_agrees_with_tensorflow_privacy(row):
    assert delta_of_mu(row["mu"], row["epsilon"]) == pytest.approx(row["delta"], rel=1e-9)


@pytest.mark.parametrize("row", TABLE["epsilon_from_mu"])
def test_epsilon_agrees_with_tensorflow_privacy(row):
    assert epsilon_of_mu(row["mu"], row["delta"]) == pytest.approx(row["epsilon"], rel=1e-6)


@given(
    epsilon=st.floats(1e-6, 1e3),
    exponent=st.floats(-290, -0.1),
)
@settings(max_examples=40, deadline=None)
def test_calibration_is_tight_and_never_over_the_budget(epsilon, exponent):
    delta = 10**exponent
    mu = mu_of_budget(epsilon, delta)
    assert delta_of_mu(mu, epsilon) <= delta
    assert delta_of_mu(math.nextafter(mu, math.inf), epsilon) > delta
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=2e-15)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (delta_of_mu(0.0, 0.0), 0.0),
        (delta_of_mu(1e-3, 1.0), 0.0),
        (delta_of_mu(1e9, 1.0), 1.0),
        # delta(0) is the total variation distance, 2 Phi(mu / 2) - 1.
        (delta_of_mu(1e-12, 0.0), pytest.approx(1e-12 / math.sqrt(2 * math.pi), rel=1e-12)),
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
