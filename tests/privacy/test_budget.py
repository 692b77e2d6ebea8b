import math

import pytest

from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.privacy.budget import PrivacyBudget, budget_from_config


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        *(
            ((bad,), ConfigurationError, "epsilon")
            for bad in (0, -1.0, math.inf, math.nan)
        ),
        *(
            ((1.0, bad), ConfigurationError, "delta")
            for bad in (-1e-9, 1.0, 2.0, math.nan)
        ),
        *(
            ((bad,), ConfigurationTypeError, "epsilon")
            for bad in ("1", True, [1.0], 1j)
        ),
        *(
            ((1.0, bad), ConfigurationTypeError, "delta")
            for bad in ("1", True, [1.0], 1j)
        ),
        ((None, 1e-6), ConfigurationError, "delta"),
        ((1.0, None, "user"), ConfigurationError, "unit"),
    ],
)
def test_what_is_no_budget_is_refused(options, error, name):
    with pytest.raises(error, match=f"'{name}'"):
        PrivacyBudget(*options)


@pytest.mark.claim("guarantees", "1")
@pytest.mark.parametrize(
    ("n_units", "delta"),
    [(1, 1e-6), (10_000, 1e-6), (10_001, 1 / 1_000_100), (10**9, 1e-11)],
)
def test_default_delta_stays_far_below_one_over_n(n_units, delta):
    resolved = PrivacyBudget(1.0).resolved(n_units)
    assert resolved.delta == pytest.approx(delta, rel=1e-12)
    assert resolved.delta * n_units <= 0.01 * (1 + 1e-12)
    for kept in (resolved, PrivacyBudget(1, 0), PrivacyBudget(None)):
        assert kept.resolved(7) == kept


@pytest.mark.parametrize("n_units", [0, -3, 2.0, True, None])
def test_number_of_units_must_be_a_positive_integer(n_units):
    with pytest.raises(
        ConfigurationError, match="'n_units' parameter must be a positive integer"
    ):
        PrivacyBudget(1.0).resolved(n_units)


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
