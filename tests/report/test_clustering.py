"""Results in the user's units."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans import (
    Ball,
    Box,
    Clustering,
    PrivacyBudget,
    TableDomain,
    simulate,
)
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.data.table_domain import Number
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.strategies import GLloyd, Lloyd

WIDE = Box([0.0, -100.0], [1.0, 100.0])


def clustering(centroids, domain, weights=None, size_report=None):
    centroids = np.asarray(centroids, float)
    return Clustering(
        centroids, np.ones(len(centroids)), domain, None, weights, size_report
    )


def test_records_are_compared_in_the_runs_scale_and_inertia_is_in_the_users_units():
    result = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE)
    assert result.predict([[0.9, 0.0]]).tolist() == [1]
    assert clustering([[0.0, 0.0], [1.0, 10.0]], Ball(1.0, [0, 0])).predict(
        [[0.9, 0.0]]
    ) == [0]
    assert result.inertia([[0.9, 0.0], [0.0, 3.0]]) == pytest.approx(0.01 + 100 + 9)
    assert result.predict(np.empty((0, 2))).shape == (0,)
    assert result.inertia(np.empty((0, 2))) == 0.0


@pytest.mark.claim("own-data", "inertia-stays-squared-units")
def test_the_cost_is_that_of_the_weighted_space():
    weighted = Box([0.0, -100.0], [1.0, 100.0], weights=[1, 0.01])
    result = clustering([[0.0, 0.0], [1.0, 100.0]], weighted)
    record = [[0.4, 50.0]]
    assert clustering(result.centroids, WIDE).predict([[0.4, 100.0]]) == [1]
    assert result.predict([[0.4, 100.0]]) == [0]
    assert result.inertia(record) == pytest.approx(0.16 + 2500)
    assert result.cost(record) == pytest.approx(0.64 + 0.005**2)
    assert result.cost(np.empty((0, 2))) == 0.0
    common = Box([0.0, -100.0], [1.0, 100.0], scale="common")
    whole = clustering(result.centroids, common)
    assert whole.cost(record) == pytest.approx(whole.inertia(record) / 100**2)


def test_a_run_makes_the_cost_small_and_not_the_inertia():
    """The weight decides by which column two clusters are told apart."""
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 2, (400, 2))
    records = groups + rng.normal(0, 0.05, (400, 2))
    found = {}
    for weights in ([1, 0.2], [0.2, 1]):
        box = Box([-1, -1], [2, 2], weights=weights)
        result = simulate(Lloyd(2, box, n_rounds=20, seed=1), [records])
        column = int(weights[1] > weights[0])
        labels = result.predict(records)
        assert len(set(zip(labels, groups[:, column], strict=True))) == 2
        assert set(zip(labels, groups[:, 1 - column], strict=True)) == {
            (0, 0), (0, 1), (1, 0), (1, 1),
        }  # fmt: skip
        found[column] = result
    for column, result in found.items():
        other = clustering(found[1 - column].centroids, result.domain)
        assert result.cost(records) < 0.5 * other.cost(records)


def test_predict_agrees_with_the_run():
    rng = np.random.default_rng(0)
    records = rng.normal(size=(300, 3)) * [1, 10, 100]
    result = simulate(
        Lloyd(4, Box([-5, -50, -500], [5, 50, 500]), n_rounds=30), [records]
    )
    labels = result.predict(records)
    np.testing.assert_array_equal(np.bincount(labels, minlength=4), result.counts)


def test_names_of_columns_decide_which_is_which():
    named = Box([0.0, -100.0], [1.0, 100.0], columns=["age", "income"])
    result = clustering([[0.0, 0.0], [1.0, 10.0]], named)
    table = pd.DataFrame({"age": [0.9, 0.1], "income": [0.0, 3.0]})
    for each in (table, table[["income", "age"]], pa.table(dict(table))):
        assert result.predict(each).tolist() == [1, 0]
        assert result.inertia(each) == pytest.approx(0.01 + 100 + 0.01 + 9)
    with pytest.raises(ConfigurationError, match=r"columns from .*'age', 'income'"):
        result.predict(table.rename(columns={"age": "years"}))
    # Names that are no text may be values of a record, as of a file without a header.
    with pytest.raises(ConfigurationError) as caught:
        result.predict(table.set_axis([0.25, 17.5], axis=1))
    assert "0.25" not in str(caught.value)
    # Without names in the domain the order decides, as of an array.
    unnamed = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE)
    assert unnamed.predict(table).tolist() == [1, 0]


def test_a_unit_is_exact_where_bounds_are_far_from_zero():
    low, high = 1e16, 1e16 + 2  # between these the user's units have no further number
    ends = np.array([[low], [high]])
    found = Clustering(ends, np.ones(2), Box([low], [high]), None)
    assert found.predict(ends[::-1]).tolist() == [1, 0]


def test_a_run_from_exact_results_is_not_private():
    domain, records = Box([0.0], [1.0]), np.linspace(0, 1, 50)[:, None]
    exact = simulate(Lloyd(2, domain, n_rounds=2), [records])
    options = {
        "n_records": 50,
        "n_rounds": 1,
        "trust": "trusted-server",
        "min_clients": 1,
    }
    found = [
        simulate(
            GLloyd(2, domain, PrivacyBudget(1.0), initial=start, **options), [records]
        )
        for start in (exact, exact.centroids)
    ]
    assert (exact.is_private, *(each.is_private for each in found)) == (
        False,
        False,
        True,
    )
    assert found[0].report.epsilon == pytest.approx(1.0)


def test_many_records_are_predicted_in_blocks():
    rng = np.random.default_rng(1)
    records = rng.random((140_000, 2))
    result = clustering(rng.random((5, 2)), Box([0, 0], [1, 1]))
    labels = result.predict(records)
    parts = np.concatenate(
        [result.predict(part) for part in np.array_split(records, 7)]
    )
    np.testing.assert_array_equal(labels, parts)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        *(
            (records, DataError)
            for records in ([[np.nan, 1.0]], [1.0, 2.0], [[1.0]], [[1, 2, 3]])
        ),
        ([["a", "b"]], ConfigurationTypeError),
    ],
)
@pytest.mark.parametrize("method", ["predict", "inertia"])
def test_bad_records_are_one_sentence(records, error, method):
    with pytest.raises(error, match="X") as caught:
        getattr(clustering([[0.0, 0.0]], WIDE), method)(records)
    assert "\n" not in str(caught.value)


def test_columns_are_a_list_of_names_or_numbers():
    result = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE)
    with pytest.raises(ConfigurationTypeError, match="Expected columns as a list"):
        result.predict([[0.9]], columns="age")
    with pytest.raises(ConfigurationError, match="each once"):
        result.predict([[0.9, 0.9]], columns=[0, 0])


def test_a_table_that_was_not_encoded_is_named():
    domain = TableDomain([Number("spend", 1, 100, "log")])
    result = clustering([[1.0], [2.0]], domain)
    with pytest.raises(ConfigurationError, match=r"TableDomain\.encode"):
        result.predict(pd.DataFrame({"spend": [5.0]}))


# -------------------------------------------------------------------- weights and sizes


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4))
def test_predict_gives_the_power_cell_in_the_units_of_the_weights(seed, k, d):
    """Weights are in squared user's units where columns have one scale, else in scaled ones."""
    rng = np.random.default_rng(seed)
    lower = rng.uniform(-1e3, 1e3, d)
    width = 10.0 ** rng.uniform(-2, 3)
    upper, wide = lower + width, lower + width * np.arange(1, d + 1)
    common = (Box(lower, upper), Box(lower, wide, scale="common"), Ball(width, lower))
    for domain in (*common, Box(lower, wide)):
        is_common = d == 1 or domain in common
        scale = (
            1.0
            if is_common
            else np.array(domain.upper) / 2 - np.array(domain.lower) / 2
        )
        centroids = rng.uniform(lower, upper, (k, d))
        # also outside
        records = rng.uniform(2 * lower - upper, 2 * upper - lower, (40, d))
        distances = (((records[:, None] - centroids) / scale) ** 2).sum(axis=2)
        weights = rng.normal(0, width**2 if is_common else 1.0, k)
        result = clustering(centroids, domain, weights)
        labels = result.predict(records)
        assert labels.dtype == np.int64
        unweighted = clustering(centroids, domain).predict(records)
        for powers, chosen in ((distances - weights, labels), (distances, unweighted)):
            size = np.abs(powers).max() * 1e-9
            assert (powers[np.arange(40), chosen] <= powers.min(axis=1) + size).all()
        np.testing.assert_array_equal(result.predict(records, nearest=True), unweighted)
        residuals = records - centroids[labels]
        assert result.inertia(records) == pytest.approx(float((residuals**2).sum()))


def test_ties_go_to_the_first_cluster_and_one_weight_for_all_changes_nothing():
    domain = Ball(4.0, [0.0, 0.0])
    records = np.array([[0.0, 0.0], [0.5, 3.0], [-0.5, 0.0]])
    for weight in (0.0, 3.0, -7.5):
        result = clustering([[1.0, 0.0], [-1.0, 0.0]], domain, np.full(2, weight))
        assert result.predict(records).tolist() == [0, 0, 1]
    # |x - c_0|^2 - 2 = |x - c_1|^2 where x_0 = -1/2.
    result = clustering([[1.0, 0.0], [-1.0, 0.0]], domain, np.array([2.0, 0.0]))
    assert result.predict(records).tolist() == [0, 0, 0]
    assert result.predict(records, nearest=True).tolist() == [0, 0, 1]
    assert result.inertia(records) == pytest.approx(1.0 + 9.25 + 2.25)


def test_weights_have_no_meaning_in_some_of_the_columns():
    result = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE, np.array([0.0, 1.0]))
    with pytest.raises(
        ConfigurationError, match=r"all 2 columns, or nearest=True.*Got 1 of them"
    ):
        result.predict([[0.9]], columns=[0])
    assert result.predict([[0.9]], columns=[0], nearest=True).tolist() == [1]
    records = np.random.default_rng(0).uniform(-3, 3, (50, 2))
    turned = result.predict(records[:, ::-1], columns=[1, 0])
    np.testing.assert_array_equal(turned, result.predict(records))


def test_sizes_and_intervals_are_those_of_the_report():
    assert clustering([[0.0, 0.0]], WIDE).sizes is None
    sizes = SizeReport((10.5, -3.0), 2.0, 5, 20)
    result = clustering([[0.0, 0.0], [1.0, 1.0]], WIDE, np.zeros(2), sizes)
    np.testing.assert_array_equal(result.sizes, [10.5, -3.0])
    np.testing.assert_array_equal(result.size_interval, sizes.interval)
    result.sizes[0] = 0.0  # a copy
    assert result.sizes[0] == 10.5
