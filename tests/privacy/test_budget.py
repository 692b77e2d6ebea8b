import math

import pytest

from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget, budget_from_config


@pytest.mark.parametrize("epsilon", [0, -1.0, math.inf, math.nan])
def test_epsilon_out_of_range(epsilon):
    with pytest.raises(ConfigurationError, match="'epsilon'"):
        PrivacyBudget(epsilon)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2.0, math.nan])
def test_delta_out_of_range(delta):
    with pytest.raises(ConfigurationError, match="'delta'"):
        PrivacyBudget(1.0, delta)


@pytest.mark.parametrize("value", ["1", True, [1.0], 1j])
@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_wrong_types(name, value):
    with pytest.raises(ConfigurationTypeError, match=f"'{name}'"):
        PrivacyBudget(**{"epsilon": 1.0, name: value})


def test_delta_without_epsilon_and_unknown_unit():
    with pytest.raises(ConfigurationError, match="'delta'"):
        PrivacyBudget(None, 1e-6)
    with pytest.raises(ConfigurationError, match="'unit'"):
        PrivacyBudget(1.0, unit="user")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_units", "delta"), [(1, 1e-6), (10_000, 1e-6), (10_001, 1 / 1_000_100), (10**9, 1e-11)]
)
def test_default_delta_stays_far_below_one_over_n(n_units, delta):
    resolved = PrivacyBudget(1.0).resolved(n_units)
    assert resolved.delta == pytest.approx(delta, rel=1e-12)
    assert resolved.delta * n_units <= 0.01 * (1 + 1e-12)
    assert resolved.resolved(7) == resolved


@pytest.mark.parametrize("n_units", [0, -3, 2.0, True, None])
def test_number_of_units_must_be_a_positive_integer(n_units):
    with pytest.raises(ConfigurationError, match="number of units"):
        PrivacyBudget(1.0).resolved(n_units)


def test_a_given_delta_and_no_privacy_are_kept():
    assert PrivacyBudget(1, 0).resolved(10).delta == 0
    assert PrivacyBudget(None).resolved(10) == PrivacyBudget(None)
    assert not PrivacyBudget(None).is_private


@pytest.mark.parametrize(
    "budget", [PrivacyBudget(None), PrivacyBudget(0.3), PrivacyBudget(1, 0, "client")]
)
def test_config_round_trip(budget):
    assert budget_from_config(budget.to_config()) == budget


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"unit": "user"},
        {"unit": ["record"]},
        {"unit": "record", "epsilon": 1.0},
        {"unit": "record", "epsilon": "-0x1.0p+0"},
        {"unit": "record", "epsilon": (-1.0).hex()},
        {"unit": "record", "delta": (0.5).hex()},
        {"unit": "record", "more": 1},
    ],
)
def test_malformed_config(config):
    with pytest.raises(MessageError):
        budget_from_config(config)
