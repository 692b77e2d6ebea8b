"""Models of scikit-learn that assign records as a result does, for other tools to take over.

joblib stores them, and skl2onnx converts them. Nothing is fitted to records: every number
of a model is from the result and its public domain.
"""

from typing import Any

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain, Sphere
from flower_kmeans.extras import require

# A model without a scaler computes in the user's units. Products lose digits if records
# are farther from zero than so many half widths.
_FAR = 1000.0


def sklearn_model(
    centroids: FloatArray, domain: Domain, weights: FloatArray | None = None
) -> Any:
    """Return a fitted model of scikit-learn that predicts as `Clustering.predict`.

    See `Clustering.to_sklearn`, which has these parameters as attributes.
    """
    require("sklearn.cluster", "to_sklearn", "sklearn")
    from sklearn.pipeline import make_pipeline

    steps: list[Any] = []
    if isinstance(domain, Sphere):
        steps.append(_normalizer(domain))
    elif weights is not None or _needs_scaler(domain):
        steps.append(_scaler(domain))
        centroids = domain.scaled(centroids)
    if weights is not None:
        # Where columns have different units, the weights are in scaled units already.
        common = domain.common_unit or 1.0
        steps.append(_zero_column(domain.n_features))
        centroids = _with_weights(centroids, weights / common / common)
    model = _kmeans(centroids)
    if not steps:
        _name_columns(model, domain)
        return model
    return make_pipeline(*steps, model)


def _needs_scaler(domain: Domain) -> bool:
    """Return whether columns differ in scale, or records are far from zero."""
    if domain.common_unit is None:
        return True
    origin = np.zeros((1, domain.n_features))
    return bool(np.abs(domain.scaled(origin)).max() > _FAR)


def _normalizer(domain: Domain) -> Any:
    """Return the step that divides records by their length."""
    from sklearn.preprocessing import Normalizer

    step = Normalizer("l2").fit(np.ones((1, domain.n_features)))
    _name_columns(step, domain)
    return step


def _scaler(domain: Domain) -> Any:
    """Return the step that scales records as the domain does, without clipping."""
    from sklearn.preprocessing import StandardScaler

    step = StandardScaler().fit(np.zeros((1, domain.n_features)))
    unit = np.array(domain.unit)
    step.mean_ = domain.from_unit(np.zeros((1, domain.n_features)))[0]
    step.scale_ = unit
    step.var_ = unit**2
    _name_columns(step, domain)
    return step


def _zero_column(n_features: int) -> Any:
    """Return the step that adds a column of zeros behind the others.

    It is a linear map. Steps that add constants are converted to float32 by skl2onnx.
    """
    from sklearn.decomposition import PCA

    points = np.zeros((2, n_features))
    points[1, 0] = 1.0
    step = PCA(n_components=1).fit(points)
    step.set_params(n_components=n_features + 1)
    step.components_ = np.eye(n_features + 1, n_features)
    step.mean_ = np.zeros(n_features)
    # Older versions of scikit-learn look at its type.
    step.explained_variance_ = np.zeros(n_features + 1)
    # These would be facts about the points.
    del step.explained_variance_ratio_
    del step.singular_values_
    return step


def _with_weights(centroids: FloatArray, weights: FloatArray) -> FloatArray:
    """Return centroids, (k, d + 1), whose distances contain the weights of a power diagram.

    The last coordinate of every record is 0. With ``sqrt(max(w) - w_j)`` as that of
    centroid j, the squared distance is ``|x - c_j|^2 - w_j``, plus a constant.
    """
    heights = np.sqrt(weights.max() - weights)
    return np.column_stack([centroids, heights])


def _kmeans(centroids: FloatArray) -> Any:
    """Return a k-means with these centroids, (k, d)."""
    from sklearn.cluster import KMeans

    n_clusters = len(centroids)
    # A fit sets what this version of scikit-learn needs. Its points must differ.
    points = np.zeros_like(centroids)
    points[:, 0] = np.arange(n_clusters)
    model = KMeans(n_clusters, init=points, n_init=1, max_iter=1).fit(points)
    model.set_params(init="k-means++")
    model.cluster_centers_ = np.array(centroids)
    # These would be facts about the points.
    del model.labels_
    del model.inertia_
    del model.n_iter_
    return model


def _name_columns(step: Any, domain: Domain) -> None:
    """Name the columns that the first step expects, if the domain has names."""
    if domain.columns is not None:
        step.feature_names_in_ = np.array(domain.columns, dtype=object)
