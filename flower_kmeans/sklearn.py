"""Private k-means as a scikit-learn estimator, for one holder of all records (central model)."""

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.data.records import check_columns, named_columns
from flower_kmeans.errors import BudgetError, ConfigurationError, DataError, RunError
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.filter import price_of
from flower_kmeans.privacy.ledger import Ledger, Limit
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.simulation import simulate
from flower_kmeans.strategies import BY_NAME, KMeansStrategy

Floats = NDArray[np.float64]

__all__ = ["PrivateKMeans"]


class PrivateKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """k-means under differential privacy, for one holder of all records.

    It runs a strategy of this library, with the same noise and the same accounting, over a single
    client that trusts itself. Its centroids and noisy counts may be published. Labels and distances
    are computed from the records, and are as confidential as these. So a fitted estimator has no
    ``labels_``, which a pickle would disclose.

    **Every call of** ``fit`` **spends its budget again**, and with it every clone that a grid
    search or a cross-validation fits: their budgets add up. With ``state_dir`` all fits are
    charged to one ledger, and a fit that would exceed ``max_total_epsilon`` is refused before it
    reads a record. There is no ``score`` method, so a search needs its own ``scoring``, whose
    choice is not private.

    Parameters
    ----------
    n_clusters : int
        Number of clusters. With ``strategy="synopsis"`` also a pair (low, high) or ``None``: the
        fit chooses it.
    epsilon : float or None, default: 1.0
        Of each fit; ``None`` fits without privacy.
    delta : float, optional
        Default: ``min(1e-6, 1 / (100 n_records))``.
    bounds : (lower, upper) or Box or Ball
        Public bounds, numbers or one for each column, in the units of ``X``. Records outside are
        clipped. Bounds that were read from the records are not private. With a `TableDomain`,
        ``X`` is what its ``encode`` returns.
    n_records : int, optional
        Approximate public number of records. Default: ``len(X)``, then public.
    strategy : str, default: "synopsis"
        Name of a strategy that runs with a trusted server, as on the command line.
    options : mapping of str to object, optional
        Further parameters of the strategy, for example ``{"max_size": 500}``. Those that the
        estimator sets cannot be among them.
    random_state : int, RandomState instance or None
        Seed for public randomness only, such as initial centroids. Noise never uses it, so two
        fits differ.
    state_dir : path, optional
        Private directory of the ledger to which every fit is charged.
    max_total_epsilon, max_total_delta : float, optional
        Most that all fits in a ledger may cost together, composed. Only with ``state_dir``.
        Default: 10.0 and 1e-6.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features_in_)
    cluster_counts_ : ndarray of shape (n_clusters,)
        Noisy records of each cluster.
    clustering_ : Clustering
        Centroids, counts and the report of the fit.
    privacy_spent_ : tuple of (float, float)
        Epsilon and delta of the last fit; ``(inf, 1.0)`` without privacy.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Where ``X`` names its columns.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        n_records: int | None = None,
        strategy: str = "synopsis",
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        state_dir: str | PathLike[str] | None = None,
        max_total_epsilon: float | None = None,
        max_total_delta: float | None = None,
    ) -> None:
        # As given, and checked by `fit`: `clone` requires that attributes are the arguments.
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.n_records = n_records
        self.strategy = strategy
        self.options = options
        self.random_state = random_state
        self.state_dir = state_dir
        self.max_total_epsilon = max_total_epsilon
        self.max_total_delta = max_total_delta

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Cluster records, and spend the budget.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Finite numbers.
        y : None
            Ignored.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError
            If a parameter cannot be used; nothing is spent then.
        DataError
            If ``X`` has other columns than ``bounds``, in number or names; nothing is spent then.
        LedgerError
            If the ledger in ``state_dir`` cannot be used; nothing is spent then.
        RunError
            If ``max_total_epsilon`` would be exceeded; nothing is spent then. Or if the fit could
            not be finished; what was charged before stays charged.
        """
        records = validate_data(self, X, dtype=np.float64, order="C")
        seed = int(check_random_state(self.random_state).randint(2**31))
        n_records = len(records) if self.n_records is None else self.n_records
        kind = BY_NAME.get(self.strategy)
        if kind is None or not issubclass(kind, KMeansStrategy):
            names = [name for name, each in BY_NAME.items() if issubclass(each, KMeansStrategy)]
            raise ConfigurationError(
                f"Expected strategy in {names}. Got {self.strategy!r} instead."
            )
        parameters: dict[str, Any] = {
            "n_clusters": self.n_clusters,
            "domain": self._domain(X, records.shape[1]),
            "privacy": PrivacyBudget(self.epsilon, self.delta),
            "n_records": n_records,
            "trust": "plain" if self.epsilon is None else "trusted-server",
            "min_clients": 1,
            "seed": seed,
        }
        require_type("options", self.options, Mapping | None, "a mapping of parameters")
        options = dict(self.options or {})
        known = set(signature(kind).parameters) - parameters.keys()
        if not options.keys() <= known:
            raise ConfigurationError(
                f"Expected options of {sorted(known)}. Got {sorted(options.keys() - known)}."
            )
        strategy = kind(**parameters, **options)
        self.clustering_ = self._clustered(strategy, records)
        report = self.clustering_.report
        self.privacy_spent_ = (
            (np.inf, 1.0) if report.epsilon is None else (report.epsilon, report.delta)
        )
        self.cluster_centers_ = self.clustering_.centroids
        self.cluster_counts_ = self.clustering_.counts
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each record, (n,): `Clustering.predict`.

        Distances are computed after scaling by ``bounds``. If the columns' widths differ, this need
        not be the cluster with the least distance in `transform`.
        """
        records = self._checked(X)  # first: before `fit` there is no clustering
        return self.clustering_.predict(records)

    def fit_predict(self, X: ArrayLike, y: None = None) -> NDArray[np.int64]:
        """Fit, and return the cluster of each record, (n,), which is not private."""
        # ClusterMixin's own would read labels_, which does not exist here (see the class).
        return self.fit(X).predict(X)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the distance of each record to each centroid, (n, n_clusters), in X's units."""
        return np.asarray(euclidean_distances(self._checked(X), self.cluster_centers_))

    def _clustered(self, strategy: KMeansStrategy, records: Floats) -> Clustering:
        epsilon, delta = self.max_total_epsilon, self.max_total_delta
        policy = ClientPolicy.for_simulation()
        if self.state_dir is not None:
            epsilon, delta = 10.0 if epsilon is None else epsilon, 1e-6 if delta is None else delta
            policy = replace(
                policy, state_dir=self.state_dir, max_total_epsilon=epsilon, max_total_delta=delta
            )
            _require_room(self.state_dir, strategy.plan, Limit(epsilon, delta))
        elif epsilon is not None or delta is not None:
            raise ConfigurationError(
                "Expected state_dir, for the ledger of all fits, with max_total_epsilon or "
                "max_total_delta. Got none."
            )
        return simulate(strategy, [records], policy=policy)

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, after which scikit-learn names them."""
        return len(self.cluster_centers_)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64, order="C"))

    def _domain(self, X: ArrayLike, n_features: int) -> Box | Ball:
        if isinstance(self.bounds, Box | Ball):
            found = self.bounds.n_features
            if found != n_features:
                raise DataError(f"Expected bounds of {n_features} columns. Got {found}.")
            check_columns(named_columns(X), self.bounds.columns)
            return self.bounds
        try:
            lower, upper = self.bounds
            low, high = (np.broadcast_to(np.asarray(e, float), n_features) for e in (lower, upper))
        except (TypeError, ValueError):
            raise ConfigurationError(
                "Expected bounds as (lower, upper), numbers or one for each column, which are "
                f"public. Got {type(self.bounds).__name__} for {n_features} columns."
            ) from None
        return Box(low, high)


def _require_room(state_dir: str | PathLike[str], plan: PrivacyPlan, limit: Limit) -> None:
    """Require room in the ledger, whose refusal during a run does not name the parameter."""
    price = price_of(plan.budget.unit, plan.rounds) if plan.is_private else None
    with Ledger(state_dir) as ledger:
        try:
            ledger.require_room(b"", price, limit)
        except BudgetError as error:
            raise RunError(
                f"Expected all fits in the ledger {str(state_dir)!r} to cost at most "
                f"max_total_epsilon={limit.epsilon:g} at max_total_delta={limit.delta:g}. This "
                "fit would exceed it, and was refused."
            ) from error
