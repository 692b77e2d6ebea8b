import math

import numpy as np
import pytest

from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.mixture import (
    laplace_delta,
    least_scale,
    mixture_delta,
    mixture_epsilon,
)


@pytest.mark.parametrize("cost", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
def test_one_laplace_release_has_a_closed_form(cost, ratio):
    delta = laplace_delta(cost, ratio * cost)
    assert delta == pytest.approx(1 - math.exp((ratio - 1) * cost / 2))
    assert mixture_delta(0.0, (cost,), ratio * cost) == pytest.approx(delta, rel=1e-3)
    assert mixture_epsilon(0.0, (cost,), delta) == pytest.approx(ratio * cost, abs=1e-3 * cost)
    assert laplace_delta(cost, cost) == 0.0


def test_two_laplace_releases_by_hand():
    # Loss of one release at scale b, from its larger side: 1/b with probability 1/2, -1/b with
    # e^(-1/b)/2, and density e^((l - 1/b)/2)/4 between.
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
@pytest.mark.parametrize("shape", [lambda x: 1 / x, lambda x: math.exp(-x), lambda x: -(x**3)])
def test_the_least_scale_is_found(place, shape):
    step = 2.0**-6  # the grid below 1000 / 64
    calls = []

    def excess(scale):
        calls.append(scale)
        return shape(scale) - shape((place - 0.5) * step)

    # A high end of 16 sets the grid's width: 2^5 / 2^16.
    fine = 2.0**-11
    found = least_scale(excess, step / 2, 16.0)
    assert excess(found) <= 0
    assert found == fine or excess(found - fine) > 0
    assert len(calls) < 60


@pytest.mark.parametrize("mu", [0.0, 0.5, 40.0])
@pytest.mark.parametrize("laplace", [(1e4,), (1e3, 1e99), (600.0,) * 1000, (400.0,) * 10])
def test_costs_beyond_numerical_composition_are_added_up(mu, laplace):
    """No budget is so large that it could not be accounted, or would take gigabytes."""
    total = math.fsum(laplace)
    gaussian = epsilon_of_mu(mu, 1e-6)
    assert mixture_epsilon(mu, laplace, 1e-6) == total + gaussian
    assert mixture_delta(mu, laplace, 1.001 * total + 2 * gaussian) <= 1e-6
    assert mixture_delta(mu, laplace, total * 0.999) == 1.0


@pytest.mark.parametrize("cost", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("mu", [0.0, 1.0, 10.0])
def test_numerical_composition_lies_between_the_gaussian_part_and_the_sum(cost, mu):
    gaussian = epsilon_of_mu(mu, 1e-6)
    found = mixture_epsilon(mu, (cost,) * 20, 1e-6)
    assert gaussian * (1 - 1e-3) <= found <= (20 * cost + gaussian) * (1 + 1e-3)
    assert mixture_epsilon(mu, (cost,), 0.0) == (math.inf if mu else cost)
