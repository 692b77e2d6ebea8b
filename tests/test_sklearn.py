"""PrivateKMeans, the scikit-learn estimator."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from flower_kmeans import Ball, Box, TableDomain
from flower_kmeans.data.table_domain import Number
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    LedgerError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.session import LedgerMemory
from flower_kmeans.sklearn import PrivateKMeans

NEW_NOISE = "The check fits twice and compares: every fit draws new noise, whatever random_state."
EXPECTED_FAILURES = {
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
    given = {"n_clusters": 3, "bounds": (-10, 10), "random_state": 0, **changes}
    return PrivateKMeans(**given)


@parametrize_with_checks(
    [estimator(epsilon=100.0)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("strategy", ["synopsis", "fastlloyd"])
@pytest.mark.parametrize(
    "bounds", [(-10, 10), ([-10, -9], [10, 9]), Box([-10] * 2, [10] * 2), Ball(15, [0, 0])]
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
    assert -exact.score(RECORDS) == pytest.approx(fitted.clustering_.inertia(RECORDS), rel=1e-3)


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
    pipeline = make_pipeline(FunctionTransformer(lambda X: X / 10), estimator(bounds=(-1, 1)))
    found = pipeline.set_output(transform="pandas").fit(RECORDS).transform(RECORDS[:5])
    assert list(found.columns) == [f"privatekmeans{i}" for i in range(3)]
    assert found.shape == (5, 3)


def test_options_reach_the_strategy():
    bounded = estimator(options={"max_size": 500}, epsilon=10.0).fit(RECORDS)
    assert bounded.clustering_.sizes is not None
    with pytest.raises(ConfigurationError, match=r"'max_size'.*Got .'no_such', 'trust'."):
        estimator(options={"no_such": 1, "trust": "plain"}).fit(RECORDS)
    with pytest.raises(ConfigurationTypeError, match="options as a mapping"):
        estimator(options=5).fit(RECORDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, "Expected bounds as .lower, upper."),
        ({"bounds": ([0, 0, 0], [1, 1, 1])}, "for 2 columns"),
        ({"strategy": "vertical"}, "Expected strategy in"),
        ({"strategy": "kmeans"}, "Got 'kmeans'"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"max_total_epsilon": 0.5}, "Expected state_dir"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        estimator(**changes).fit(RECORDS)


def test_columns_are_those_of_the_bounds():
    frame = pd.DataFrame(RECORDS, columns=["a", "b"])
    named = estimator(bounds=Box([-10] * 2, [10] * 2, columns=["a", "b"]))
    assert sorted(named.fit(frame).predict(frame.iloc[[0, 400, 800]])) == [0, 1, 2]
    logs = TableDomain([Number(name, 1, 10, "log") for name in "ab"])  # of encoded records
    for bounds, records in (
        (named.bounds, frame[["b", "a"]]),
        (logs, frame),
        (Ball(9, [0] * 3), RECORDS),
    ):
        with pytest.raises(DataError, match="columns"):
            estimator(bounds=bounds).fit(records)


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
    scores = [*search.cv_results_["split0_test_score"], *search.cv_results_["split1_test_score"]]
    assert np.isnan(scores).sum() == 2
    with pytest.raises(RunError, match=r"at most max_total_epsilon=1\.5 at max_total_delta=1e-06"):
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
    assert spent_epsilon(tmp_path / "own", 1e-6) > 0.4


def test_a_search_without_scoring_is_refused():
    with pytest.raises(TypeError, match="score"):
        GridSearchCV(estimator(), {"n_clusters": [2, 3]}).fit(RECORDS)
