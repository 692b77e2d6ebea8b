"""PrivateKMeans, the scikit-learn estimator."""

import copy
import pickle
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from habits import READ, REFUSED, X
from scipy.optimize import Bounds
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from flower_kmeans import Ball, Box, Sphere, TableDomain
from flower_kmeans.data.table_domain import Category, Number
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    LedgerError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.session import LedgerMemory
from flower_kmeans.sklearn import PrivateKMeans
from flower_kmeans.strategies import SynopsisKMeans

NEW_NOISE = "The check fits twice and compares: every fit draws new noise, whatever random_state."
ABOVE_ONE = "Weights are in [0, 1]: a record of a larger one would count as several."
EXPECTED_FAILURES = {
    **dict.fromkeys(
        (
            "check_sample_weights_list",
            "check_sample_weights_not_overwritten",
            "check_sample_weight_equivalence_on_dense_data",
        ),
        ABOVE_ONE,
    ),
    "check_all_zero_sample_weights_error": "Weights are as private as records: a fit of weights "
    "that are all 0 releases noise, as one of far too few records does.",
    "check_clustering": "It reads labels_, which would carry records' clusters into a pickle.",
    **dict.fromkeys(
        (
            "check_fit_idempotent",
            "check_pipeline_consistency",
            "check_transformer_data_not_an_array",
            "check_transformer_general",
        ),
        NEW_NOISE,
    ),
}
CENTERS = np.array([[-5.0, -5.0], [0.0, 5.0], [5.0, -5.0]])
RNG = np.random.default_rng(4)
RECORDS = (CENTERS[:, None] + RNG.normal(size=(3, 400, 2))).reshape(-1, 2)
LABELS = np.repeat(np.arange(3), 400)


def estimator(**changes):
    given = {
        "n_clusters": 3,
        "bounds": (-10, 10),
        "n_records": 1200,
        "random_state": 0,
        **changes,
    }
    return PrivateKMeans(**given)


def box_of(bounds, X):
    """Return the lower and upper bounds that a fit without privacy used."""
    fitted = estimator(n_clusters=2, bounds=bounds, epsilon=None, strategy="lloyd").fit(
        X
    )
    domain = fitted.clustering_.domain
    return list(domain.lower), list(domain.upper)


@parametrize_with_checks(
    [estimator(epsilon=100.0)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("strategy", ["synopsis", "fastlloyd"])
@pytest.mark.parametrize(
    "bounds",
    [(-10, 10), ([-10, -9], [10, 9]), Box([-10] * 2, [10] * 2), Ball(15, [0, 0])],
)
def test_clusters_that_stand_apart_are_found(bounds, strategy):
    fitted = estimator(bounds=bounds, strategy=strategy, epsilon=5.0).fit(RECORDS)
    nearest = fitted.predict(CENTERS)
    assert sorted(nearest) == [0, 1, 2]
    np.testing.assert_allclose(fitted.cluster_centers_[nearest], CENTERS, atol=0.5)
    np.testing.assert_allclose(fitted.cluster_counts_, 400, atol=40)
    np.testing.assert_array_equal(fitted.predict(RECORDS), nearest[LABELS])
    distances = fitted.transform(RECORDS)
    np.testing.assert_array_equal(distances.argmin(axis=1), nearest[LABELS])
    np.testing.assert_allclose(
        distances[:, 0], np.linalg.norm(RECORDS - fitted.cluster_centers_[0], axis=1)
    )


def test_what_a_fit_spends_is_what_its_plan_says():
    fitted = estimator(epsilon=0.5, n_records=2_000).fit(RECORDS)
    assert fitted.privacy_spent_ == (pytest.approx(0.5), min(1e-6, 1 / 200_000))
    assert fitted.privacy_spent_[0] <= 0.5
    assert fitted.clustering_.report.delta == fitted.privacy_spent_[1]
    assert estimator(epsilon=0.5, delta=1e-4).fit(RECORDS).privacy_spent_[1] == 1e-4


def test_without_privacy_it_is_lloyds_algorithm():
    fitted = estimator(epsilon=None, strategy="lloyd").fit(RECORDS)
    assert fitted.privacy_spent_ == (np.inf, 1.0)
    exact = KMeans(3, n_init=10, random_state=0).fit(RECORDS)
    assert -exact.score(RECORDS) == pytest.approx(
        fitted.clustering_.inertia(RECORDS), rel=1e-3
    )


def test_noise_does_not_follow_from_the_random_state():
    first, second = (estimator().fit(RECORDS).cluster_centers_ for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_pickle_holds_no_label_and_predicts_the_same():
    fitted = estimator().fit(RECORDS)
    assert not hasattr(fitted, "labels_")
    data = pickle.dumps(fitted)
    assert len(data) < RECORDS.nbytes / 2
    again = pickle.loads(data)  # noqa: S301 (made in the line before)
    np.testing.assert_array_equal(again.predict(RECORDS), fitted.predict(RECORDS))


def test_it_is_a_step_of_a_pipeline_and_names_its_columns():
    pipeline = make_pipeline(
        FunctionTransformer(lambda X: X / 10), estimator(bounds=(-1, 1))
    )
    found = pipeline.set_output(transform="pandas").fit(RECORDS).transform(RECORDS[:5])
    assert list(found.columns) == [f"privatekmeans{i}" for i in range(3)]
    assert found.shape == (5, 3)


def test_options_reach_the_strategy():
    bounded = estimator(options={"max_size": 500}, epsilon=10.0).fit(RECORDS)
    assert bounded.clustering_.sizes is not None
    with pytest.raises(
        ConfigurationError, match=r"'max_size'.*Got .'no_such', 'trust'."
    ):
        estimator(options={"no_such": 1, "trust": "plain"}).fit(RECORDS)
    with pytest.raises(ConfigurationTypeError, match="options as a mapping"):
        estimator(options=5).fit(RECORDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, "Expected bounds as .lower, upper."),
        ({"bounds": ([0, 0, 0], [1, 1, 1])}, "for 2 columns"),
        ({"n_records": None}, r"Expected n_records.*Got None with epsilon=1\.0"),
        ({"n_records": 0}, "n_records"),
        (
            {"epsilon": None, "state_dir": "ledger"},
            "Expected a private epsilon.*Got None",
        ),
        ({"strategy": "vertical"}, "Expected strategy in"),
        ({"strategy": "kmeans"}, "Got 'kmeans'"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"n_clusters": 0}, "n_clusters"),
        (
            {"max_total_epsilon": 0.5},
            r"Expected state_dir.*Got None with max_total_epsilon=0\.5",
        ),
        ({"max_total_delta": 1e-9, "epsilon": None}, "with max_total_delta=1e-09"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        estimator(**changes).fit(RECORDS)


@pytest.mark.parametrize(
    ("habit", "message"),
    [
        ("masked", "without a mask, or a DataFrame. Got MaskedArray"),
        ("dict of arrays", "or a DataFrame. Got dict"),
        ("dicts", "or a DataFrame. Got list"),
        ("structured", "or a DataFrame. Got ndarray"),
        ("datasets", "or a DataFrame. Got Dataset"),
        ("lazy", r"Got LazyFrame instead: call collect\(\)"),
        ("splits", "Got DatasetDict"),
        ("a name of a file", "Got str"),
    ],
)
def test_what_is_no_array_and_no_table_is_refused_by_its_type(
    habit, message, monkeypatch
):
    """Nothing is spent, and no cell is in the text. A mask would be ignored."""
    monkeypatch.setattr("flower_kmeans.sklearn.simulate", None)
    make = READ[habit] if habit in READ else REFUSED[habit][0]
    model = PrivateKMeans(2, epsilon=1.0, bounds=(0, 8), n_records=4)
    with pytest.raises(ConfigurationTypeError, match=message):
        model.fit(make())
    assert model.total_privacy_spent_ == (0.0, 0.0)


@pytest.mark.parametrize(
    "habit", ["pandas Int64", "pandas pyarrow", "polars", "pyarrow"]
)
def test_tables_of_other_libraries_are_fitted(habit):
    model = PrivateKMeans(1, epsilon=None, bounds=(0, 8))
    np.testing.assert_allclose(
        model.fit(READ[habit]()).cluster_centers_, [X.mean(axis=0)]
    )


def test_columns_are_those_of_the_bounds():
    frame = pd.DataFrame(RECORDS, columns=["a", "b"])
    named = estimator(bounds=Box([-10] * 2, [10] * 2, columns=["a", "b"]))
    assert sorted(named.fit(frame).predict(frame.iloc[[0, 400, 800]])) == [0, 1, 2]
    # of encoded records
    logs = TableDomain([Number(name, 1, 10, "log") for name in "ab"])
    for bounds, records in (
        (named.bounds, frame[["b", "a"]]),
        (logs, frame),
        (Ball(9, [0] * 3), RECORDS),
    ):
        with pytest.raises(DataError, match="columns"):
            estimator(bounds=bounds).fit(records)


def test_a_table_that_was_not_encoded_is_named_without_its_cells():
    domain = TableDomain([Number("a", 0, 9), Category("plan", ("basic", "plus"))])
    frame = pd.DataFrame({"a": [1.0, 2.0], "plan": ["basic", "secret"]})
    with pytest.raises(DataError, match=r"TableDomain\.encode") as caught:
        estimator(bounds=domain).fit(frame)
    assert "secret" not in str(caught.value)


FRAME = pd.DataFrame(
    {"a": [0.0, 1.0, 2.0], "b": [10.0, 20.0, 30.0], "c": [-1.0, 0.0, 1.0]}
)


@pytest.mark.claim("reference/sklearn", "bounds-read-columns-refused")
@pytest.mark.parametrize(
    "bounds",
    [
        ([0, 10, -1], [2, 30, 1]),
        np.array([[0, 10, -1], [2, 30, 1]]),
        [(0, 2), (10, 30), (-1, 1)],
        np.array([[0, 2], [10, 30], [-1, 1]]),
        Bounds([0, 10, -1], [2, 30, 1]),
        {"c": (-1, 1), "a": (0, 2), "b": [10, 30]},
        {2: (-1, 1), 1: (10, 30), 0: (0, 2)},
        pd.DataFrame({"c": [-1, 1], "b": [10, 30], "a": [0, 2]}),
        (pd.Series({"c": -1, "b": 10, "a": 0}), pd.Series({"a": 2, "b": 30, "c": 1})),
        ({"c": -1, "b": 10, "a": 0}, [2, 30, 1]),
    ],
    ids=lambda bounds: type(bounds).__name__,
)
def test_every_form_of_bounds_is_read_by_columns(bounds):
    assert box_of(bounds, FRAME) == ([0, 10, -1], [2, 30, 1])


@pytest.mark.claim("reference/sklearn", "bounds-read-columns-refused")
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((-1, 40), ([-1, -1], [40, 40])),
        (np.array([-1, 40]), ([-1, -1], [40, 40])),
        (Bounds(-1, 40), ([-1, -1], [40, 40])),
        ((-1, [2, 30]), ([-1, -1], [2, 30])),
        # One of the readings alone gives bounds, or both give the same.
        ([(0, 2), (0, 30)], ([0, 0], [2, 30])),
        ([[0, 0], [2, 30]], ([0, 0], [2, 30])),
        ([(0, 10), (10, 30)], ([0, 10], [10, 30])),
        # Names say which rows are sides.
        (({"a": 0, "b": 10}, {"a": 2, "b": 30}), ([0, 10], [2, 30])),
        (Bounds([0, 10], [2, 30]), ([0, 10], [2, 30])),
    ],
)
def test_bounds_of_two_columns(bounds, expected):
    assert box_of(bounds, FRAME[["a", "b"]]) == expected


@pytest.mark.claim("reference/sklearn", "bounds-read-columns-refused")
@pytest.mark.parametrize(
    "bounds", [([0, 10], [2, 30]), [(0, 10), (2, 30)], [[0, 10], [2, 30]]]
)
def test_two_rows_that_are_other_bounds_when_read_the_other_way_are_refused(bounds):
    for given in (bounds, np.array(bounds)):
        with pytest.raises(
            ConfigurationError, match=r"read in one way, such as Box.*Got .*0"
        ):
            box_of(given, FRAME[["a", "b"]])
    box = Box(*bounds)
    assert box_of(box, FRAME[["a", "b"]]) == (list(box.lower), list(box.upper))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([(0, 2)] * 2, "Expected bounds as .* for 3 columns"),
        ([(0, 2)] * 4, "for 3 columns"),
        ([(0, 2), (0, 2), (0, 1, 2)], "for 3 columns"),
        (([0], [2]), "for 3 columns"),
        (Bounds([0, 10], [2, 30]), "for 3 columns"),
        (Bounds(), "finite"),
        ([(None, 2)] * 3, "for 3 columns"),
        ((0, np.nan), "finite.*nan in column 0"),
        ([(0, 2), (10, np.inf), (-1, 1)], "finite.*inf in column 1"),
        (
            [(0, 2), (30, 10), (-1, 1)],
            r"low below high.*lower=30\.0 and upper=10\.0 in column 1",
        ),
        ((2, 2), "low below high"),
        ("02", "Got '02'"),
        (("0", "2"), "for 3 columns"),
        ([(False, True)] * 3, "for 3 columns"),
        (zip((0, 10, -1), (2, 30, 1), strict=True), "Got <zip"),
        ({0, 2}, "for 3 columns"),
        (5, "Got 5"),
        (np.array(5), "for 3 columns"),
        (np.ma.masked_array([[0, 2]] * 3, [[True, False]] * 3), "for 3 columns"),
        (
            {"a": (0, 2), "b": (10, 30)},
            r"columns \['a', 'b', 'c'\] of X. Got \['a', 'b'\]",
        ),
        ({"a": (0, 2), "b": (10, 30), "d": (-1, 1)}, "Got .*'d'"),
        ({"a": 0, "b": 10, "c": -1}, "for 3 columns"),
        ({"lower": [0, 10, -1], "upper": [2, 30, 1]}, "Got .'lower', 'upper'."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, zip) else repr(value),
)
def test_other_bounds_are_refused_with_the_reason(bounds, message):
    with pytest.raises(ConfigurationError, match=message):
        box_of(bounds, FRAME)


def test_numbers_that_name_columns_are_their_names_before_their_places():
    frame = FRAME[["a", "b"]].set_axis([1, 0], axis=1)
    assert box_of({0: (10, 30), 1: (0, 2)}, frame) == ([0, 10], [2, 30])
    twice = pd.Series([0, 10, -1], index=["a", "b", "b"])
    with pytest.raises(ConfigurationError, match=r"of X. Got \['a', 'b', 'b'\]"):
        box_of((twice, [2, 30]), FRAME[["a", "b"]])
    with pytest.raises(
        ConfigurationError, match=r"columns \[0, 1\] of X. Got \['a', 'b'\]"
    ):
        box_of({"a": (0, 2), "b": (10, 30)}, frame.to_numpy())


@pytest.mark.claim("own-data", "private-fit-counts-no")
def test_a_private_fit_counts_no_record():
    """What is released of neighbours, and for how much, follows from public numbers alone."""
    with pytest.raises(ConfigurationError) as first:
        estimator(n_records=None).fit(RECORDS)
    with pytest.raises(ConfigurationError) as second:
        estimator(n_records=None).fit(RECORDS[1:])
    assert str(first.value) == str(second.value)
    for given in (100, 453, 10_000):
        plans = set()
        for records in (RECORDS, RECORDS[1:], RECORDS[:5]):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                fitted = estimator(n_clusters=15, n_records=given).fit(records)
            plans.add(fitted.clustering_.report.plan)
        expected = SynopsisKMeans(
            15,
            Box([-10] * 2, [10] * 2),
            PrivacyBudget(1.0),
            n_records=given,
            trust="trusted-server",
            min_clients=1,
        )
        assert plans == {expected.plan}


def test_without_privacy_the_records_are_counted():
    fitted = estimator(epsilon=None, n_records=None).fit(RECORDS)
    assert fitted.clustering_.report.plan.n_records == len(RECORDS)


@pytest.mark.parametrize("offset", [0.0, 1e8, 1.7e9, -1e12])
@pytest.mark.parametrize("width", [1e-3, 1.0, 1e200])
def test_distances_are_exact_wherever_the_records_are(offset, width):
    records = (RECORDS * width / 10) + offset
    # Bounds of some columns are far from 0, and of others not.
    records[:, 1] -= offset
    low = np.array([offset - 2 * width, -2 * width])
    bounds = Box(low, low + 4 * width)
    fitted = estimator(epsilon=None, bounds=bounds).fit(records)
    differences = (records[:, None] - fitted.cluster_centers_) / width
    expected = np.sqrt((differences**2).sum(axis=2))
    found = fitted.transform(records) / width
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(found.argmin(axis=1), fitted.predict(records))


def test_distances_of_equal_points_are_zero_and_of_the_farthest_finite():
    fitted = estimator(epsilon=None).fit(RECORDS)
    fitted.cluster_centers_ = np.array([[0.0, 0.0], [1e-300, 0.0], [-1e300, 1e300]])
    found = fitted.transform([[0.0, 0.0], [1e-300, 0.0], [2e-300, 0.0]])
    np.testing.assert_allclose(found[:, 0], [0, 1e-300, 2e-300], rtol=1e-12)
    np.testing.assert_allclose(found[:, 1], [1e-300, 0, 1e-300], rtol=1e-12)
    np.testing.assert_allclose(found[:, 2], np.sqrt(2) * 1e300, rtol=1e-12)


def test_the_score_is_minus_the_cost_of_these_records():
    fitted = estimator(epsilon=5.0).fit(RECORDS)
    held_out = RECORDS[::7]
    residuals = held_out - fitted.cluster_centers_[fitted.predict(held_out)]
    assert fitted.score(held_out) == pytest.approx(-(residuals**2).sum())
    assert fitted.score(held_out, y=LABELS[::7]) == fitted.score(held_out)
    exact = KMeans(3, init=fitted.cluster_centers_, n_init=1, max_iter=1).fit(RECORDS)
    exact.cluster_centers_ = fitted.cluster_centers_
    assert fitted.score(held_out) == pytest.approx(exact.score(held_out))
    assert "not private" in PrivateKMeans.score.__doc__


def test_known_classes_change_nothing():
    fitted = estimator(epsilon=None).fit(RECORDS, LABELS)
    again = estimator(epsilon=None).fit(RECORDS, LABELS[::-1])
    np.testing.assert_array_equal(fitted.cluster_centers_, again.cluster_centers_)


# -------------------------------------------------------------------- persons, weights


def of_persons(**changes):
    """Return an estimator that protects persons, of whom a third has each cluster."""
    return estimator(n_records=None, **{"n_persons": 300, "unit": "person"} | changes)


PERSONS = np.array([f"P{i // 4}" for i in range(1200)])  # four records each


@pytest.mark.claim("reference/sklearn", "groups-persons")
def test_a_person_counts_as_one_with_all_records():
    fitted = of_persons(epsilon=20.0).fit(RECORDS, groups=PERSONS)
    assert fitted.clustering_.report.unit == "person"
    assert fitted.clustering_.report.plan.n_persons == 300
    np.testing.assert_allclose(fitted.cluster_counts_, 100, atol=20)
    nearest = fitted.predict(CENTERS)
    np.testing.assert_allclose(fitted.cluster_centers_[nearest], CENTERS, atol=1.0)
    assert fitted.privacy_spent_ == (pytest.approx(20.0), 1e-6)


def test_with_one_record_each_and_no_noise_persons_are_records():
    options = {"epsilon": None, "strategy": "lloyd"}
    records = estimator(**options).fit(RECORDS)
    persons = of_persons(n_persons=1200, **options).fit(RECORDS, groups=range(1200))
    np.testing.assert_array_equal(persons.cluster_centers_, records.cluster_centers_)
    np.testing.assert_array_equal(persons.cluster_counts_, records.cluster_counts_)
    counted = of_persons(n_persons=None, **options).fit(RECORDS, groups=range(1200))
    np.testing.assert_array_equal(counted.cluster_counts_, records.cluster_counts_)


def test_the_number_of_persons_is_public_and_may_be_given_as_records():
    with pytest.raises(ConfigurationError, match="n_persons, the approximate public"):
        of_persons(n_persons=None).fit(RECORDS, groups=PERSONS)
    as_records = estimator(n_records=300, unit="person").fit(RECORDS, groups=PERSONS)
    both = estimator(n_records=9, n_persons=300, unit="person")
    both.fit(RECORDS, groups=PERSONS)
    plan = of_persons().fit(RECORDS, groups=PERSONS).clustering_.report.plan
    assert as_records.clustering_.report.plan == plan
    assert both.clustering_.report.plan == plan


@pytest.mark.parametrize(
    ("given", "groups", "words"),
    [
        ({}, PERSONS, "exactly with unit='person'"),
        ({"unit": "person"}, None, "exactly with unit='person'"),
        ({"unit": "client"}, PERSONS, "unit as 'record' or 'person'"),
        ({"n_persons": 300}, None, "n_persons with unit='person' only"),
        ({"unit": "person"}, PERSONS[1:], "Expected groups for each record"),
        ({"unit": "person"}, 7, "Expected groups as a list"),
    ],
)
def test_ids_are_given_exactly_for_persons(given, groups, words):
    model = estimator(**given)
    with pytest.raises(
        (ConfigurationError, ConfigurationTypeError, DataError), match=words
    ) as caught:
        model.fit(RECORDS, groups=groups)
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "cluster_centers_")


@pytest.mark.parametrize("has_ledger", [False, True])
def test_fits_for_records_bound_nothing_for_a_person(has_ledger, tmp_path):
    place = {"state_dir": tmp_path / "state"} if has_ledger else {}
    base = of_persons(**place)
    base.fit(RECORDS, groups=PERSONS)
    assert base.total_privacy_spent_[0] == pytest.approx(1.0)
    told = pytest.warns(UserWarning, match="This is fit 2")
    with nullcontext() if has_ledger else told:
        clone(base).fit(RECORDS, groups=PERSONS)
    assert base.total_privacy_spent_[0] == pytest.approx(composed(2))
    other = clone(base).set_params(unit="record", n_records=1200, n_persons=None)
    other.fit(RECORDS)
    assert base.total_privacy_spent_ == (np.inf, 1.0)
    assert other.total_privacy_spent_[0] == pytest.approx(composed(3))


def test_weights_are_sums_of_counts():
    weights = np.where(LABELS == 0, 0.5, np.where(LABELS == 1, 1.0, 0.0))
    options = {"epsilon": None, "strategy": "lloyd", "n_clusters": 2}
    fitted = estimator(**options).fit(RECORDS, sample_weight=weights)
    assert sorted(fitted.cluster_counts_) == pytest.approx([200, 400])
    kept = estimator(**options).fit(RECORDS[LABELS < 2])
    order, other = (np.argsort(each.cluster_centers_[:, 0]) for each in (fitted, kept))
    np.testing.assert_allclose(
        fitted.cluster_centers_[order], kept.cluster_centers_[other], atol=1e-3
    )
    # A pandas column, a list, and weights that are all 1.
    ones = estimator(epsilon=None).fit(RECORDS, sample_weight=[1] * len(RECORDS))
    plain = estimator(epsilon=None).fit(RECORDS)
    np.testing.assert_array_equal(ones.cluster_counts_, plain.cluster_counts_)


def test_private_weights_have_the_noise_of_a_record_of_weight_one():
    weights = np.full(len(RECORDS), 0.5)
    fitted = estimator(epsilon=20.0, n_records=600).fit(RECORDS, sample_weight=weights)
    np.testing.assert_allclose(fitted.cluster_counts_, 200, atol=20)
    assert fitted.privacy_spent_[0] == pytest.approx(20.0)


@pytest.mark.parametrize(
    "weights", [[2.0] * 1200, [-0.5] * 1200, [np.nan] * 1200, [1.0] * 7, [[1.0]] * 1200]
)
def test_other_weights_are_refused(weights):
    with pytest.raises(DataError, match="sample_weight"):
        estimator().fit(RECORDS, sample_weight=weights)


def test_groups_and_weights_are_named():
    with pytest.raises(TypeError):
        of_persons().fit(RECORDS, None, PERSONS)


def composed(n_fits, delta=1e-6):
    """Return the epsilon of fits with epsilon 1 each, from the textbook of Gaussian noise."""
    return epsilon_of_mu(mu_of_budget(1.0, delta) * np.sqrt(n_fits), delta)


@pytest.mark.claim("reference/sklearn", "state-dir-ledger-counts")
def test_a_search_without_scoring_says_what_its_fits_cost_together():
    """Three candidates, three folds and the last fit: ten fits."""
    search = GridSearchCV(estimator(), {"n_clusters": [2, 3, 4]}, cv=3)
    with pytest.warns(UserWarning, match="This is fit") as told:
        search.fit(RECORDS)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    texts = [str(warning.message) for warning in told]
    assert [text.split(" of ")[0] for text in texts] == [
        "This is fit 2",
        "This is fit 10",
    ]
    assert f"they cost epsilon={composed(2):.3g} at delta=1e-06 together" in texts[0]
    assert f"ten fits like this one would cost epsilon={composed(10):.3g}" in texts[0]
    assert f"they cost epsilon={composed(10):.3g} at delta=1e-06 together. " in texts[1]
    for estimators in (search.best_estimator_, search.estimator):
        epsilon, delta = estimators.total_privacy_spent_
        assert (epsilon, delta) == (pytest.approx(composed(10), rel=1e-6), 1e-6)
    assert search.best_estimator_.privacy_spent_[0] == pytest.approx(1.0)
    assert search.score(RECORDS) == search.best_estimator_.score(RECORDS)


def test_a_cross_validation_and_a_pipeline_count_their_fits():
    base = estimator()
    pipeline = make_pipeline(FunctionTransformer(lambda X: X / 2), base)
    with pytest.warns(UserWarning, match="This is fit 2"):
        scores = cross_val_score(pipeline, RECORDS, cv=3)
    assert np.isfinite(scores).all()
    assert base.total_privacy_spent_[0] == pytest.approx(composed(3), rel=1e-6)
    assert estimator().total_privacy_spent_ == (0.0, 0.0)


def test_fits_of_different_budgets_add_up_at_the_largest_delta(tmp_path):
    """And to the same as a ledger says of them."""
    pure = {"strategy": "sulloyd", "delta": 0.0, "epsilon": 0.5}
    base = estimator(**pure).fit(RECORDS)
    assert base.total_privacy_spent_ == (pytest.approx(0.5), 0.0)
    with pytest.warns(UserWarning, match="epsilon=1 at delta=0 together"):
        base.fit(RECORDS)
    other = {"strategy": "synopsis", "delta": 1e-7, "epsilon": 1.0}
    twin = clone(base).set_params(**other).fit(RECORDS)
    charged = estimator(state_dir=tmp_path / "own", max_total_delta=1e-7)
    for budget in (pure, pure, other):
        charged.set_params(**budget).fit(RECORDS)
    assert base.total_privacy_spent_ == charged.total_privacy_spent_
    assert base.total_privacy_spent_[1] == 1e-7
    twin.set_params(epsilon=None, delta=None).fit(RECORDS)
    assert base.total_privacy_spent_ == (np.inf, 1.0)


def test_a_fit_that_fails_counts_and_one_that_is_refused_does_not(monkeypatch):
    base = estimator()
    with pytest.raises(ConfigurationError):
        base.set_params(n_clusters=0).fit(RECORDS)
    assert base.total_privacy_spent_ == (0.0, 0.0)

    def fails(*_, **__):
        raise TooFewClientsError("No client answered.")

    monkeypatch.setattr("flower_kmeans.sklearn.simulate", fails)
    with pytest.raises(TooFewClientsError):
        base.set_params(n_clusters=3).fit(RECORDS)
    assert base.total_privacy_spent_[0] == pytest.approx(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="This is fit 2"):
            base.fit(RECORDS)
    assert base.total_privacy_spent_[0] == pytest.approx(1.0)


def test_copies_count_together_and_a_fitted_pickle_goes_on():
    base = estimator()
    copied = copy.deepcopy(base.fit(RECORDS))
    with pytest.warns(UserWarning, match="This is fit 2"):
        copied.fit(RECORDS)
    assert base.total_privacy_spent_ == copied.total_privacy_spent_
    kept = pickle.loads(pickle.dumps(base))  # noqa: S301 (made in this line)
    assert kept.total_privacy_spent_ == base.total_privacy_spent_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(estimator()).fit(RECORDS)
        kept.fit(RECORDS)
    assert kept.total_privacy_spent_[0] == pytest.approx(composed(3), rel=1e-6)


@pytest.mark.claim("reference/sklearn", "state-dir-ledger-counts")
def test_fits_in_other_processes_have_no_total_without_a_ledger(monkeypatch):
    monkeypatch.setattr("flower_kmeans.sklearn._Sums._is_told_here", False)
    base = estimator().fit(RECORDS)
    # As a search with several processes does for each of its tasks.
    sent = [pickle.loads(pickle.dumps(clone(base))) for _ in range(3)]  # noqa: S301 (own pickles)
    assert base.total_privacy_spent_ == (np.inf, 1.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for each in (*sent, base, base):
            each.fit(RECORDS)
            assert each.total_privacy_spent_ == (np.inf, 1.0)
            assert each.privacy_spent_[0] == pytest.approx(1.0)
    # Once for all tasks of a worker, and once in the process of the search.
    assert ["pickled before it was fitted" in str(each.message) for each in told] == [
        True,
        True,
    ]


@pytest.mark.claim("reference/sklearn", "state-dir-ledger-counts")
def test_with_a_ledger_the_total_is_that_of_the_ledger(tmp_path):
    charged = estimator(state_dir=tmp_path / "own", max_total_epsilon=5.0)
    assert charged.total_privacy_spent_ == (0.0, 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = GridSearchCV(charged, {"n_clusters": [2, 3, 4]}, cv=3).fit(RECORDS)
    assert search.best_estimator_.total_privacy_spent_ == (
        pytest.approx(composed(10), rel=1e-6),
        1e-6,
    )
    assert spent_epsilon(tmp_path / "own", 1e-6) == charged.total_privacy_spent_[0]


def test_a_start_from_a_fit_without_privacy_is_not_private(tmp_path):
    start = {"initial": estimator(epsilon=None).fit(RECORDS).clustering_}
    given = {"strategy": "fastlloyd", "options": start}
    base = estimator(**given).fit(RECORDS)
    assert base.privacy_spent_ == base.total_privacy_spent_ == (np.inf, 1.0)
    with pytest.raises(ConfigurationError, match="Expected initial from a private run"):
        estimator(**given, state_dir=tmp_path / "own").fit(RECORDS)
    private = {"initial": estimator(strategy="fastlloyd").fit(RECORDS).clustering_}
    fitted = estimator(
        strategy="fastlloyd", options=private, state_dir=tmp_path / "own"
    )
    assert fitted.fit(RECORDS).privacy_spent_[0] == pytest.approx(1.0)


@pytest.mark.claim("own-data", "private-fit-counts-no")
def test_no_fit_passes_a_ledger_for_free(tmp_path):
    spent = estimator(state_dir=tmp_path / "own", max_total_epsilon=1.0).fit(RECORDS)
    before = spent.total_privacy_spent_
    for strategy in ("synopsis", "lloyd", "fastlloyd"):
        with pytest.raises(
            ConfigurationError, match="Expected a private epsilon beside"
        ):
            clone(spent).set_params(epsilon=None, strategy=strategy).fit(RECORDS)
    with pytest.raises(ConfigurationError, match="Lloyd, which is not private"):
        clone(spent).set_params(strategy="lloyd").fit(RECORDS)
    assert spent.total_privacy_spent_ == before


@pytest.mark.claim("reference/sklearn", "state-dir-ledger-counts")
def test_all_fits_are_charged_to_one_ledger_and_refused_beyond_its_limit(tmp_path):
    """A grid search fits clones: the third of them finds too little left."""
    charged = estimator(epsilon=1.0, state_dir=tmp_path, max_total_epsilon=1.5)
    search = GridSearchCV(
        charged,
        {"n_clusters": [2, 3]},
        scoring=lambda fitted, X, y=None: -fitted.clustering_.inertia(X),
        cv=2,
        refit=False,
        error_score=np.nan,
    )
    with pytest.warns(FitFailedWarning), pytest.warns(UserWarning, match="non-finite"):
        search.fit(RECORDS)
    scores = [
        *search.cv_results_["split0_test_score"],
        *search.cv_results_["split1_test_score"],
    ]
    assert np.isnan(scores).sum() == 2
    with pytest.raises(
        RunError, match=r"at most max_total_epsilon=1\.5 at max_total_delta=1e-06"
    ):
        clone(charged).fit(RECORDS)


def test_a_ledger_that_cannot_be_used_is_named_before_anything_is_spent(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(LedgerError, match="0700"):
        estimator(state_dir=tmp_path / "open").fit(RECORDS)
    charged = estimator(epsilon=0.5, state_dir=tmp_path / "own").fit(RECORDS)
    (tmp_path / "own" / FILE_NAME).write_bytes(b"no database")
    with pytest.raises(LedgerError, match="cannot be used"):
        charged.fit(RECORDS)


def test_a_fit_that_fails_on_its_way_is_not_said_to_be_refused(tmp_path, monkeypatch):
    answer = LedgerMemory.answer

    def full(self, run, last, *others):
        if last.t > 2:
            raise LedgerError("The disk is full.")
        return answer(self, run, last, *others)

    monkeypatch.setattr(LedgerMemory, "answer", full)
    with pytest.raises(TooFewClientsError, match=r"in round 3 of") as error:
        estimator(epsilon=0.5, state_dir=tmp_path / "own").fit(RECORDS)
    assert "max_total_epsilon" not in str(error.value)
    # What the answered rounds cost; the run's end gives back what it reserved for the
    # others.
    assert 0.1 < spent_epsilon(tmp_path / "own", 1e-6) < 0.4


def test_bounds_may_be_a_sphere():
    rng = np.random.default_rng(6)
    directions = np.eye(3)[rng.integers(0, 3, 900)] + rng.normal(0, 0.05, (900, 3))
    records = directions * np.exp(rng.normal(0, 1, (900, 1)))
    model = PrivateKMeans(3, epsilon=4.0, bounds=Sphere(3), n_records=900)
    model.fit(np.vstack([records, np.zeros((3, 3))]))
    lengths = np.linalg.norm(model.cluster_centers_, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-12)
    distances = model.transform(records)
    np.testing.assert_allclose(model.transform(5 * records), distances)
    np.testing.assert_array_equal(distances.argmin(axis=1), model.predict(records))
    nearest = distances.min(axis=1)
    assert model.score(records) == pytest.approx(-(nearest**2).sum())
    with pytest.raises(DataError, match=r"bounds of 3 columns\. Got 2"):
        PrivateKMeans(3, bounds=Sphere(2), n_records=900).fit(records)


def test_quality_measures_the_silhouette_of_a_fit_and_a_fit_without_it_has_none():
    fitted = estimator(epsilon=8.0, quality=True).fit(RECORDS)
    found = fitted.silhouette_
    assert found == fitted.clustering_.report.silhouette
    distances = np.sort(fitted.transform(RECORDS), axis=1)
    exact = np.mean(1 - distances[:, 0] / distances[:, 1])
    assert abs(found.value - exact) < 5 * found.deviation
    assert fitted.privacy_spent_[0] <= 8.0
    fitted.set_params(quality=False).fit(RECORDS)
    assert not hasattr(fitted, "silhouette_")
