"""Models of scikit-learn, and of ONNX, that predict as a result does."""

import importlib
import warnings
from datetime import date

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from flower_kmeans import Ball, Box, Clustering, PrivacyBudget, Sphere, TableDomain
from flower_kmeans.client import ClientResult
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.simulation import simulate
from flower_kmeans.strategies import SynopsisKMeans

TABLE = TableDomain(
    [
        Number("age", 0, 100),
        Number("income", 1, 1e6, scale="log"),
        Category("ward", ("A", "B", "C"), weight=0.3),
        Date("day", date(2024, 1, 1), date(2024, 12, 31)),
    ]
)
DOMAINS = {
    "square": Box([-1.0] * 3, [1.0] * 3),
    "common": Box([0.0, 0.0, 0.0], [1.0, 5.0, 20.0], scale="common"),
    "columns": Box([-1.0, 0.0, -500.0], [1.0, 100.0, 500.0]),
    "weights": Box([-1.0] * 3, [1.0] * 3, weights=[1.0, 0.1, 0.5]),
    "far": Box([2e9] * 3, [2e9 + 1] * 3),
    "one column": Box([5.0], [9.0]),
    "ball": Ball(3.0, [1.0, 2.0, 3.0]),
    "sphere": Sphere(4),
    "table": TABLE,
}
PLAIN = ("square", "common", "one column", "ball")
"""Domains whose columns have one scale."""


def result(name, with_weights=False, k=6):
    """Return a clustering in a domain, and records inside and outside of the bounds."""
    domain = DOMAINS[name]
    rng = np.random.default_rng(len(name))
    centroids = domain.as_centroids(rng.uniform(-1, 1, (k, domain.n_features)))
    weights = None
    if with_weights:
        # as `Clustering.weights`: in squared user's units where there is one scale
        unit = domain.common_unit or 1.0
        weights = rng.uniform(-0.4, 0.4, k) * unit * unit
    records = domain.from_unit(rng.uniform(-1.5, 1.5, (3000, domain.n_features)))
    if name == "table":
        records = TABLE.encode(
            {
                "age": rng.uniform(0, 100, 3000).astype(str),
                "income": (10 ** rng.uniform(0, 6, 3000)).astype(str),
                "ward": rng.choice(["A", "B", "C"], 3000),
                "day": rng.integers(0, 366, 3000).astype("datetime64[D]")
                + np.datetime64("2024-01-01").astype(int),
            }
        )
    found = Clustering(centroids, np.ones(k), domain, None, weights)
    return found, records


def labels_of(model, records):
    with warnings.catch_warnings():
        # An array has no names of columns.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        return model.predict(records)


@pytest.mark.claim("own-data", "to-sklearn")
@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("name", DOMAINS)
def test_the_model_predicts_the_same(name, with_weights, tmp_path):
    clustering, records = result(name, with_weights)
    model = clustering.to_sklearn()
    expected = clustering.predict(records)
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(labels_of(model, records), expected)
    check_is_fitted(model)
    assert model.n_features_in_ == records.shape[1]
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(labels_of(again, records), expected)


@pytest.mark.parametrize("name", DOMAINS)
def test_one_scale_gives_a_k_means_with_the_centroids(name):
    clustering, records = result(name)
    model = clustering.to_sklearn()
    if name not in PLAIN:
        assert isinstance(model, Pipeline)
        assert isinstance(model[-1], KMeans)
        return
    assert type(model) is KMeans
    np.testing.assert_array_equal(model.cluster_centers_, clustering.centroids)
    assert not np.shares_memory(model.cluster_centers_, clustering.centroids)
    assert not hasattr(model, "labels_")  # nothing was fitted to records
    distances = np.linalg.norm(records[:, None] - clustering.centroids, axis=2)
    np.testing.assert_allclose(model.transform(records), distances, atol=1e-6)
    assert -model.score(records) == pytest.approx(clustering.inertia(records))


def test_equal_centroids_and_a_single_one():
    same = Clustering(np.ones((3, 2)), np.ones(3), Box([0, 0], [2, 2]), None)
    assert same.to_sklearn().predict([[0.0, 1.0]]) == same.predict([[0.0, 1.0]]) == 0
    one = Clustering(np.ones((1, 2)), np.ones(1), Box([0, 0], [2, 9]), None)
    assert one.to_sklearn().predict([[0.0, 1.0]]) == 0


def test_columns_have_the_names_of_the_domain():
    domain = Box([0, 0], [1, 50], columns=["share", "age"])
    clustering = Clustering(
        np.array([[0.2, 10.0], [0.8, 40.0]]), np.ones(2), domain, None
    )
    table = pd.DataFrame({"share": [0.1, 0.9], "age": [5.0, 45.0]})
    model = clustering.to_sklearn()
    assert model.feature_names_in_.tolist() == ["share", "age"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.predict(table).tolist() == clustering.predict(table).tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["age", "share"]])
    encoded = result("table")[0].to_sklearn().feature_names_in_.tolist()
    assert encoded == list(TABLE.columns)
    assert "ward=A" in encoded


def test_a_clients_result_has_it_too():
    clustering, records = result("columns")
    own = ClientResult(
        clustering.centroids, clustering.counts, clustering.domain, "0" * 32
    )
    model = own.to_sklearn()
    np.testing.assert_array_equal(model.predict(records), own.predict(records))


@pytest.mark.claim("own-data", "to-sklearn")
def test_bounds_on_sizes_are_part_of_the_model():
    rng = np.random.default_rng(4)
    records = np.concatenate(
        [rng.normal(0.2, 0.1, (700, 2)), rng.normal(0.8, 0.1, (300, 2))]
    ).clip(0, 1)
    strategy = SynopsisKMeans(
        2,
        Box([0, 0], [1, 1]),
        PrivacyBudget(8.0, 1e-6),
        n_records=1000,
        n_clients=2,
        min_size=450,
    )
    clustering = simulate(strategy, np.array_split(records, 2))
    labels = clustering.predict(records)
    np.testing.assert_array_equal(clustering.to_sklearn().predict(records), labels)
    assert (labels != clustering.predict(records, nearest=True)).any()


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "sklearn.cluster", None)
    monkeypatch.setitem(importlib.sys.modules, "sklearn", None)
    with pytest.raises(ConfigurationError, match=r"flower-kmeans\[sklearn\]"):
        result("square")[0].to_sklearn()


# ------------------------------------------------------------------------------- ONNX


def as_onnx(model, n_columns, type_name):
    """Return the labels of a model's ONNX graph as a function of records."""
    skl2onnx = pytest.importorskip("skl2onnx", reason="needs the extra test: skl2onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra test")
    types = importlib.import_module("skl2onnx.common.data_types")
    given = [("X", getattr(types, type_name)([None, n_columns]))]
    graph = skl2onnx.convert_sklearn(model, initial_types=given)
    session = runtime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    dtype = {"DoubleTensorType": np.float64, "FloatTensorType": np.float32}[type_name]
    return lambda records: session.run(["label"], {"X": records.astype(dtype)})[0]


@pytest.mark.claim("own-data", "to-onnx")
@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("name", DOMAINS)
def test_onnx_predicts_the_same_in_double_precision(name, with_weights):
    clustering, records = result(name, with_weights)
    labels = as_onnx(clustering.to_sklearn(), records.shape[1], "DoubleTensorType")
    np.testing.assert_array_equal(labels(records), clustering.predict(records))


@pytest.mark.claim("own-data", "to-onnx")
def test_onnx_in_single_precision_is_wrong_far_from_zero():
    clustering, records = result("columns")
    labels = as_onnx(clustering.to_sklearn(), 3, "FloatTensorType")
    assert (labels(records) == clustering.predict(records)).mean() > 0.999
    clustering, records = result("far")
    labels = as_onnx(clustering.to_sklearn(), 3, "FloatTensorType")
    assert (labels(records) == clustering.predict(records)).mean() < 0.5
