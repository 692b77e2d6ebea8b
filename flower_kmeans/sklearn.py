"""Private k-means as a scikit-learn estimator, for one holder of all records.

This is the central model of differential privacy.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from reprlib import repr as shortened
from threading import Lock
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds
from scipy.spatial.distance import cdist

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Ball, Box, Domain, Sphere
from flower_kmeans.data.frames import is_sparse, require_table_type
from flower_kmeans.data.records import check_columns, named_columns
from flower_kmeans.data.weights import checked_weights, require_one_each
from flower_kmeans.errors import (
    BudgetError,
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    RunError,
)
from flower_kmeans.extras import require
from flower_kmeans.parameters import require_type
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.filter import Charge, price_of
from flower_kmeans.privacy.ledger import (
    Ledger,
    LifetimeLimit,
    spent_by_unit,
    spent_epsilon,
)
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.report.report import Report
from flower_kmeans.simulation import simulate
from flower_kmeans.strategies import BY_NAME, KMeansStrategy, parameters_of

try:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    require("sklearn.utils.validation", "PrivateKMeans", "sklearn")
    raise


__all__ = ["PrivateKMeans"]

_FORMS = (
    "bounds as (lower, upper), numbers or one for each column, or as one (low, high) for each "
    "column in a list, or in a dict by the columns' names, or as a Box, Ball or Sphere, which are "
    "public"
)
# The squares of larger distances leave float64's range, and those of smaller distances
# lose digits.
_SMALLEST_DISTANCE = 1e-140
_LARGEST_DISTANCE = 1e150


class PrivateKMeans(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """k-means under differential privacy, for one holder of all records.

    The estimator runs a strategy of this library, with the same noise and the same
    accounting, over a single client that trusts itself. Its centroids and noisy counts
    may be published. Labels and distances are computed from the records, and are as
    confidential as the records. So a fitted estimator has no ``labels_``, which a
    pickle would disclose.

    **Every call of** ``fit`` **spends its budget again.** So does every clone that a
    grid search or a cross-validation fits, and these budgets add up. With ``state_dir``
    all fits are charged to one ledger, and a fit that would exceed
    ``max_total_epsilon`` is refused before the ledger is charged. Without it nothing is
    refused: `total_privacy_spent_` is the joint cost of the fits of an estimator and
    its clones, and a warning states it at the 2nd, 10th, 100th, ... fit.

    A search without ``scoring`` uses `score`, which is exact. So its choice among fits,
    and the scores that it keeps, are not private. ``n_clusters`` says how to choose the
    number of clusters within one budget.

    Parameters
    ----------
    n_clusters : int
        Number of clusters. With ``strategy="synopsis"`` it may also be a pair (low,
        high) or ``None``; the fit then chooses the number.
    epsilon : float or None, default: 1.0
        Epsilon of each fit. ``None`` fits without privacy, and is refused with a
        ledger (``state_dir``).
    delta : float, optional
        Delta of each fit. Default: ``min(1e-6, 1 / (100 n_records))``, with
        ``n_persons`` in place of ``n_records`` for ``unit="person"``.
    bounds : (lower, upper) or list of (low, high) or dict or Box or Ball or Sphere
        Public bounds in the units of ``X``. Records outside are clipped. Bounds that
        were read from the records are not private. The forms are:

        - ``(lower, upper)``, each a number for all columns or one number for each
          column,
        - ``[(low, high), ...]``, one pair for each column,
        - a dict from each column of ``X``, by name or by number, to its
          ``(low, high)``,
        - ``scipy.optimize.Bounds``, `Box`, `Ball` or `Sphere`. With a `TableDomain`,
          ``X`` must be the result of its ``encode``.

        Two rows for two columns may be ``(lower, upper)`` or two pairs. The reading
        that gives bounds is taken. If both give bounds, and these differ, they are
        refused.
    n_records : int, optional
        Approximate public number of records. A private fit requires it, because the
        exact number of records is itself private. It need not equal ``len(X)``: a fold
        of a cross-validation has fewer records. Default, without privacy: ``len(X)``.
        With ``sample_weight`` it is the planned sum of the weights.
    strategy : str, default: "synopsis"
        Name of a strategy that runs with a trusted server, as on the command line.
    options : mapping of str to object, optional
        Further parameters of the strategy, for example ``{"max_size": 500}``. They
        cannot be parameters that the estimator sets.
    random_state : int, RandomState instance or None
        Seed for public randomness only, such as initial centroids. Noise never uses it,
        so two fits differ.
    state_dir : path, optional
        Private directory of the ledger to which every fit is charged.
    max_total_epsilon, max_total_delta : float, optional
        Limit on the joint cost of all fits in the ledger. Only with ``state_dir``.
        Default: 10.0 and 1e-6.
    unit : {"record", "person"}, default: "record"
        What a fit protects: one record, or one person with all their records. With
        ``"person"`` each fit takes ``groups``, the ids of the records' persons. Each
        person then counts as one, with equal weights of their records.
    n_persons : int, optional
        With ``unit="person"``: approximate public number of persons. A private fit
        requires it, or this number as ``n_records``.
    quality : bool, default: False
        Whether a last round measures how well the clusters are apart, for
        ``silhouette_``. It has a twentieth of mu^2 of the budget.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features_in_)
        Centroids in the units of ``X``.
    cluster_counts_ : ndarray of shape (n_clusters,)
        Noisy number of records of each cluster, of persons with ``unit="person"``, or
        sum of weights with ``sample_weight``.
    clustering_ : Clustering
        Centroids, counts and the report of the fit.
    silhouette_ : Silhouette
        Private silhouette of the clusters with its interval, only with ``quality=True``.
    privacy_spent_ : tuple of (float, float)
        Epsilon and delta of the last fit, or ``(inf, 1.0)`` if it is not private.
    n_features_in_ : int
        Number of columns of ``X``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, only if ``X`` names them.
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
        unit: str = "record",
        n_persons: int | None = None,
        quality: bool = False,
    ) -> None:
        # `clone` requires that attributes are the arguments. So `fit` checks them.
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
        self.unit = unit
        self.n_persons = n_persons
        self.quality = quality

    def fit(
        self,
        X: ArrayLike,
        y: None = None,
        *,
        groups: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Cluster records, and spend the budget.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Finite numbers.
        y : None
            Ignored.
        groups : array-like of shape (n,), optional
            Ids of the records' persons, exactly with ``unit="person"``. An id is
            compared by its text. Each record with a missing id is one person. A search
            passes ``groups`` to its splitter alone, unless metadata routing is enabled
            and the estimator requests them (``set_fit_request(groups=True)``).
        sample_weight : array-like of shape (n,), optional
            Weights of the records in [0, 1], from a public rule such as a survey's. A
            record of weight 1 has the guarantee of the budget. A larger weight is
            refused: such a record would count as several.

        Returns
        -------
        PrivateKMeans
            This estimator.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError
            If a parameter cannot be used, ``n_records`` is missing for a private fit,
            or ``epsilon`` is ``None`` with a ledger. Nothing is spent then.
        DataError
            If ``X`` has other columns than ``bounds``, in number or names, or
            ``groups`` or ``sample_weight`` do not fit. Nothing is spent then.
        LedgerError
            If the ledger in ``state_dir`` cannot be used. Nothing is spent then.
        RunError
            If ``max_total_epsilon`` would be exceeded; nothing is spent then. Also if
            the fit could not be finished; its charges remain.
        """
        _require_public_parameters(self)
        _require_readable(X)
        if isinstance(self.bounds, Box | Ball | Sphere):
            # scikit-learn would quote a cell of a table that was not encoded.
            check_columns(named_columns(X), self.bounds.columns)
        records = validate_data(self, X, dtype=np.float64, order="C")
        persons = _checked_groups(self, groups, len(records))
        weights = _checked_sample_weight(sample_weight, len(records))
        seed = int(check_random_state(self.random_state).randint(2**31))
        kind = BY_NAME.get(self.strategy)
        if kind is None or not issubclass(kind, KMeansStrategy):
            names = []
            for name, each in BY_NAME.items():
                if issubclass(each, KMeansStrategy):
                    names.append(name)
            raise ConfigurationError(
                f"Expected strategy in {names}. Got {self.strategy!r} instead."
            )
        parameters: dict[str, Any] = {
            "n_clusters": self.n_clusters,
            "domain": self._domain(X, records.shape[1]),
            "privacy": PrivacyBudget(self.epsilon, self.delta, _checked_unit(self)),
            **self._planned_numbers(len(records), weights),
            "trust": "plain" if self.epsilon is None else "trusted-server",
            "min_clients": 1,
            "seed": seed,
            "quality": self.quality,
        }
        require_type("options", self.options, Mapping | None, "a mapping of parameters")
        options = dict(self.options or {})
        # Weights are those of `sample_weight`, and there is one client.
        own = {"n_records", "n_persons", "weighted", "max_clients_per_person"}
        known = parameters_of(kind).keys() - parameters.keys() - own
        if not options.keys() <= known:
            raise ConfigurationError(
                f"Expected options of {sorted(known)}. Got {sorted(options.keys() - known)}."
            )
        strategy = kind(**parameters, **options)
        self.clustering_ = self._clustered(strategy, records, persons, weights)
        report = self.clustering_.report
        epsilon = np.inf
        delta = 1.0
        if (
            report.guarantee_holds
            and report.epsilon is not None
            and report.delta is not None
        ):
            epsilon = report.epsilon
            delta = report.delta
        self.privacy_spent_ = (epsilon, delta)
        self._own_account().is_fitted = True
        self.cluster_centers_ = self.clustering_.centroids
        self.cluster_counts_ = self.clustering_.counts
        if report.silhouette is not None:
            self.silhouette_ = report.silhouette
        elif hasattr(self, "silhouette_"):
            del self.silhouette_  # of an earlier fit
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each record, (n,), int64, by `Clustering.predict`.

        Distances are computed after scaling by ``bounds``. If the columns' widths
        differ, the cluster may differ from the one with the least distance in
        `transform`.
        """
        records = self._checked(X)  # an error before `fit`
        return self.clustering_.predict(records)

    def fit_predict(
        self,
        X: ArrayLike,
        y: None = None,
        *,
        groups: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """Fit, and return the cluster of each record, (n,), int64. It is not private.

        See `fit` for the parameters.
        """
        # ClusterMixin's own method would read labels_, which does not exist here.
        return self.fit(X, groups=groups, sample_weight=sample_weight).predict(X)

    def transform(self, X: ArrayLike) -> FloatArray:
        """Return the distances of records to centroids, (n, k), in the units of X.

        On a `Sphere` they are those of directions.
        """
        records = self.clustering_.domain.compared(self._checked(X))
        return _distances(records, self.cluster_centers_)

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Return minus the cost of records. It is exact and **not private**.

        The cost is `Clustering.inertia`: the sum of squared distances of all records to
        the centroids of `predict`, in squared units of ``X``. The score reveals
        something about ``X`` beyond the budget, and so does a choice by scores. The
        cost falls with the number of clusters, so scores compare only fits with the
        same number.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Finite numbers.
        y : None
            Ignored.
        """
        records = self._checked(X)  # an error before `fit`
        return -self.clustering_.inertia(records)

    @property
    def total_privacy_spent_(self) -> tuple[float, float]:
        """Epsilon and delta of all fits together, by the filter that ledgers use.

        With ``state_dir`` this is the joint cost of all charges of the ledger at
        ``max_total_delta``. Without it, it is the joint cost of the fits of this
        estimator and its clones in this process, at their largest delta. Failed fits
        count, and fits of other estimators do not. It is ``(inf, 1.0)`` if a fit was
        not private, or if an estimator was pickled before it was fitted, as by a search
        with several processes: only a ledger counts such fits.

        With ``unit="person"`` it is the cost for one person. A fit with
        ``unit="record"`` bounds nothing for a person, so it is ``(inf, 1.0)`` then.
        """
        unit = _checked_unit(self)
        if self.state_dir is None:
            return self._own_account().sums.total(unit)
        delta = _limit(self).delta
        if unit == "record":
            return spent_epsilon(self.state_dir, delta) or 0.0, delta
        spent = spent_by_unit(self.state_dir, delta)
        if spent is None:
            return 0.0, delta
        epsilon = spent[unit]
        if epsilon is None:
            return np.inf, 1.0
        return epsilon, delta

    def __sklearn_clone__(self) -> Self:
        """Return a clone whose fits count together with this estimator's fits."""
        twin: Self = super().__sklearn_clone__()
        twin._account = _Account(self._own_account().sums)
        return twin

    def _own_account(self) -> "_Account":
        # __init__ may set only its arguments, so the account is made here.
        if not hasattr(self, "_account"):
            self._account = _Account(_Sums())
        return self._account

    def _planned_numbers(
        self, n_records: int, weights: FloatArray | None
    ) -> dict[str, Any]:
        """Return the public numbers of the strategy; without privacy they are counted."""
        if self.unit == "person":
            planned = self.n_records if self.n_persons is None else self.n_persons
            return {"n_persons": planned, "weighted": weights is not None}
        if self.n_records is not None:
            return {"n_records": self.n_records, "weighted": weights is not None}
        # Then the fit is not private (`_require_public_parameters`).
        if weights is None:
            return {"n_records": n_records}
        total = max(1, math.ceil(float(weights.sum())))
        return {"n_records": total, "weighted": True}

    def _clustered(
        self,
        strategy: KMeansStrategy,
        records: FloatArray,
        persons: Any,
        weights: FloatArray | None,
    ) -> Clustering:
        policy = ClientPolicy.for_simulation()
        if self.state_dir is None:
            is_private = strategy.plan.is_private and _starts_privately(self.options)
            self._own_account().sums.add(strategy.plan, is_private)
        else:
            limit = _limit(self)
            policy = replace(
                policy,
                state_dir=self.state_dir,
                max_total_epsilon=limit.epsilon,
                max_total_delta=limit.delta,
            )
            if not _starts_privately(self.options):
                raise ConfigurationError(
                    "Expected initial from a private run beside the ledger in state_dir. Got the "
                    "result of a run that was not private."
                )
            _require_room(self.state_dir, strategy.plan, limit)
        return simulate(
            strategy,
            [records],
            persons=None if persons is None else [persons],
            weights=None if weights is None else [weights],
            policy=policy,
        )

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for scikit-learn's names of them."""
        return len(self.cluster_centers_)

    def _checked(self, X: ArrayLike) -> FloatArray:
        check_is_fitted(self)
        _require_readable(X)
        records = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        return np.asarray(records)

    def _domain(self, X: ArrayLike, n_features: int) -> Domain:
        if isinstance(self.bounds, Box | Ball | Sphere):
            found = self.bounds.n_features
            if found != n_features:
                raise DataError(
                    f"Expected bounds of {n_features} columns. Got {found}."
                )
            return self.bounds
        return _read_bounds(self.bounds, _names_of(X, n_features))


def _require_readable(X: object) -> None:
    """Refuse types that scikit-learn would misread, or whose cells it would quote."""
    if is_sparse(X):  # scikit-learn refuses it
        return
    require_table_type(X)
    is_masked = isinstance(X, np.ma.MaskedArray)
    is_structured = isinstance(X, np.ndarray) and X.dtype.names is not None
    is_named = isinstance(X, Mapping) or is_structured
    is_list = False
    if isinstance(X, list | tuple):
        is_list = any(isinstance(row, Mapping) for row in X)
    # scikit-learn would index such an object by rows.
    is_rows = hasattr(X, "__getitem__") and hasattr(X, "column_names")
    is_rows = is_rows and not hasattr(X, "__array__")
    if is_masked or is_named or is_list or is_rows:
        raise ConfigurationTypeError(
            "Expected X as a two-dimensional array of real numbers, without a mask, or a "
            f"DataFrame. Got {type(X).__name__}."
        )


def _length_of(groups: Any) -> int:
    """Return the number of ids."""
    if not hasattr(groups, "__len__"):
        raise ConfigurationTypeError(
            "Expected groups as a list or one column of ids. "
            f"Got {type(groups).__name__}."
        )
    return len(groups)


def _checked_sample_weight(
    sample_weight: ArrayLike | None, n_records: int
) -> FloatArray | None:
    """Return the weights of records as floats in [0, 1], or ``None``."""
    if sample_weight is None:
        return None
    weights = checked_weights(sample_weight, "sample_weight")
    require_one_each("sample_weight", len(weights), n_records)
    return weights


class _Sums:
    """The joint cost of the fits of an estimator and its clones, without a ledger."""

    # whether this process was warned about copies
    _is_told_here: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lock = Lock()
        # by unit, as long as all fits cover it
        self._charges = {"person": Charge(), "record": Charge()}
        self._delta = 0.0
        self._n_fits = 0
        self._is_private = True
        self._is_complete = True  # whether all fits are counted here
        self._is_copy = False  # whether it was unpickled
        self._must_tell = False  # whether to warn that fits may not be counted

    def total(self, unit: str) -> tuple[float, float]:
        """Return epsilon and delta of all fits, or ``(inf, 1.0)`` without a known bound."""
        is_covered = unit in self._charges
        if not (self._is_private and self._is_complete and is_covered):
            return np.inf, 1.0
        return self._charges[unit].epsilon(self._delta), self._delta

    def add(self, plan: PrivacyPlan, is_private: bool) -> None:
        """Count a fit before it begins, and warn of the joint cost at some numbers."""
        with self._lock:
            number = self._n_fits + 1
            if not is_private:
                self._is_private = False
                self._n_fits = number
                return
            own = price_of(plan.budget.unit, plan.rounds).whole
            charges = {}
            for unit, charge in self._charges.items():
                if unit in own:
                    charges[unit] = charge + own[unit]
            delta = max(self._delta, plan.budget.delta or 0.0)
            # The warning comes before counting: if warnings are errors, there is no
            # fit.
            if not self._is_complete:
                self._tell_of_copies()
            elif self._is_private and _is_told(number):
                epsilon = charges["record"].epsilon(delta)
                forecast = ""
                if number < 10:
                    ten = (own["record"] * 10).epsilon(delta)
                    forecast = (
                        f", and ten fits like this one would cost epsilon={ten:.3g}"
                    )
                warnings.warn(
                    f"This is fit {number} of an estimator and its clones. On the same records "
                    f"they cost epsilon={epsilon:.3g} at delta={delta:.3g} together"
                    f"{forecast}. Without state_dir no ledger limits them.",
                    stacklevel=4,
                )
            self._charges = charges
            self._delta = delta
            self._n_fits = number

    def lose_count(self) -> None:
        """Note that other processes may fit copies, which are not counted."""
        self._is_complete = False
        self._must_tell = True

    def _tell_of_copies(self) -> None:
        # Each task of a search has its own copy in a worker. A worker warns once.
        if self._must_tell and not (self._is_copy and _Sums._is_told_here):
            warnings.warn(
                "This estimator was pickled before it was fitted, as for other processes, and the "
                "fits of its copies are not counted: total_privacy_spent_ is (inf, 1.0). Fits on "
                "the same records add up. With state_dir a ledger counts and limits all of them.",
                stacklevel=5,
            )
            _Sums._is_told_here = True
        self._must_tell = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for a pickle, without the lock."""
        state = dict(vars(self))
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the content of a pickle, with a new lock."""
        vars(self).update(state)
        self._lock = Lock()
        self._is_copy = True


class _Account:
    """One estimator's account with the sums that it shares with its clones."""

    def __init__(self, sums: _Sums, is_fitted: bool = False) -> None:
        self.sums = sums
        self.is_fitted = is_fitted

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Account":
        """Return an account with the same sums, for a copy in the same process."""
        return _Account(self.sums, self.is_fitted)

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for a pickle."""
        # A fitted estimator is pickled for storage or use. Any other is pickled to be
        # fitted elsewhere.
        if not self.is_fitted:
            self.sums.lose_count()
        return dict(vars(self))


def _is_told(number: int) -> bool:
    """Return whether to warn at this number of fits: 2, 10, 100 and so on."""
    digits = str(number)
    is_power_of_ten = digits == "1".ljust(len(digits), "0")
    return number == 2 or (number > 1 and is_power_of_ten)


# --------------------------------------------------------------------------- bounds


def _names_of(X: Any, n_features: int) -> list[Any]:
    """Return the names of a table's columns, of any type, or else their numbers from 0."""
    # The `columns` of a pyarrow table are not names, but its `column_names` are.
    names = getattr(X, "column_names", None)
    if names is None:
        names = getattr(X, "columns", None)
    if names is None or callable(names) or len(names) != n_features:
        return list(range(n_features))
    return list(names)


def _read_bounds(bounds: Any, names: Sequence[Any]) -> Box:
    """Return the box of bounds in one of the forms that `PrivateKMeans` takes."""
    n_features = len(names)
    columns = None
    if hasattr(bounds, "keys"):
        columns = _as_text(names)
        readings = [_as_pairs(_in_order(bounds, names), n_features)]
    elif isinstance(bounds, Bounds):
        # SciPy stores a single number as an array with one element.
        sides = []
        for side in (bounds.lb, bounds.ub):
            sides.append(np.squeeze(side) if np.size(side) == 1 else side)
        readings = [_as_sides(sides, n_features)]
    elif _has_rows(bounds):
        # A side may have names too, for example if it is a row of a table.
        are_named = [hasattr(row, "keys") for row in bounds]
        rows = []
        for row, is_named in zip(bounds, are_named, strict=True):
            rows.append(_in_order(row, names) if is_named else row)
        readings = [_as_sides(rows, n_features)]
        if not any(are_named):
            readings.append(_as_pairs(rows, n_features))
    else:
        readings = []
    boxes: list[Box] = []
    errors: list[str] = []
    for reading in readings:
        if reading is not None:
            try:
                boxes.append(Box(*reading, columns=columns))
            except ConfigurationError as error:
                errors.append(str(error))
    if len(set(boxes)) == 1:
        return boxes[0]
    if boxes:
        raise ConfigurationError(
            "Expected bounds of two columns that can be read in one way, such as Box(lower, upper) "
            f"or a dict from columns to (low, high). Got {shortened(bounds)}, which are other "
            "bounds as (lower, upper) than as two (low, high)."
        )
    if errors:
        # With two readings it is unclear which one the caller meant.
        detail = f": {errors[0]}" if len(errors) == 1 else "."
        raise ConfigurationError(
            "Expected bounds that are finite, with low below high in each column. Got "
            f"{shortened(bounds)}{detail}"
        )
    raise ConfigurationError(
        f"Expected {_FORMS}. Got {shortened(bounds)} for {n_features} columns."
    )


def _has_rows(bounds: Any) -> bool:
    if isinstance(bounds, np.ndarray):
        return bounds.ndim > 0
    return isinstance(bounds, list | tuple)


def _in_order(bounds: Any, names: Sequence[Any]) -> list[Any]:
    """Return the values of a mapping, or of a table's row, in the order of the columns.

    Its keys are the names of the columns, or their numbers from 0.
    """
    given = dict(bounds.items())
    numbers = range(len(names))
    for keys in (names, numbers):
        # Names that occur twice do not identify a column.
        is_clear = len(given) == len(bounds.keys()) == len(names)
        if is_clear and given.keys() == set(keys):
            return [given[key] for key in keys]
    raise ConfigurationError(
        f"Expected bounds for the columns {shortened(list(names))} of X. "
        f"Got {shortened(list(bounds.keys()))}."
    )


def _as_text(names: Sequence[Any]) -> list[str] | None:
    """Return the names if a `Box` can have them, or ``None``."""
    strings = [name for name in names if isinstance(name, str)]
    texts = [name for name in strings if name and name.isprintable()]
    if len(texts) == len(names):
        return texts
    return None


def _as_sides(
    rows: Sequence[Any], n_features: int
) -> tuple[FloatArray, FloatArray] | None:
    """Return (lower, upper), each (d,), or ``None`` if the rows have another form."""
    if len(rows) != 2:
        return None
    sides = []
    for row in rows:
        side = _real_numbers(row)
        if side is None or side.shape not in ((), (n_features,)):
            return None
        sides.append(np.broadcast_to(side, n_features))
    return sides[0], sides[1]


def _as_pairs(
    rows: Sequence[Any], n_features: int
) -> tuple[FloatArray, FloatArray] | None:
    """Return (lower, upper), each (d,), from pairs (low, high), or ``None``."""
    pairs = [_real_numbers(row) for row in rows]
    if len(pairs) != n_features:
        return None
    if any(pair is None or pair.shape != (2,) for pair in pairs):
        return None
    table = np.array(pairs, dtype=np.float64)
    return table[:, 0], table[:, 1]


def _real_numbers(values: Any) -> FloatArray | None:
    """Return an array of real numbers, or ``None``. Text that spells numbers is not one."""
    if isinstance(values, np.ma.MaskedArray):
        return None
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    return None


# --------------------------------------------------------------------------- distances


def _distances(records: FloatArray, centroids: FloatArray) -> FloatArray:
    """Return the distances of records to centroids, (n, k), from differences.

    The faster expansion of squares loses digits for records far from the origin.
    """
    distances: FloatArray = cdist(records, centroids)
    is_safe = (distances > _SMALLEST_DISTANCE) & (distances < _LARGEST_DISTANCE)
    for j in np.flatnonzero(~is_safe.all(axis=0)):
        rows = np.flatnonzero(~is_safe[:, j])
        differences = np.abs(records[rows] - centroids[j])
        largest = differences.max(axis=1)
        scale = np.where((largest > 0) & (largest < np.inf), largest, 1.0)
        norms = np.linalg.norm(differences / scale[:, None], axis=1)
        distances[rows, j] = scale * norms
    return distances


# --------------------------------------------------------------------------- ledgers


def _starts_privately(options: Mapping[str, Any] | None) -> bool:
    """Return whether the initial centroids do not come from a run without privacy."""
    report = getattr((options or {}).get("initial"), "report", None)
    return not isinstance(report, Report) or report.guarantee_holds


def _require_room(
    state_dir: str | PathLike[str], plan: PrivacyPlan, limit: LifetimeLimit
) -> None:
    """Require room for a fit in the ledger, or raise an error that names the parameter."""
    if plan.is_private:
        price = price_of(plan.budget.unit, plan.rounds)
    else:
        price = None
    with Ledger(state_dir) as ledger:
        try:
            ledger.require_room(b"", price, limit)
        except BudgetError as error:
            raise RunError(
                f"Expected all fits in the ledger {str(state_dir)!r} to cost at most "
                f"max_total_epsilon={limit.epsilon:g} at max_total_delta={limit.delta:g}. This "
                "fit would exceed it, and was refused."
            ) from error


def _require_public_parameters(estimator: PrivateKMeans) -> None:
    """Require a public number for a private fit, and a ledger for its limits."""
    unit = _checked_unit(estimator)
    if unit == "record" and estimator.n_persons is not None:
        raise ConfigurationError(
            "Expected n_persons with unit='person' only. "
            f"Got n_persons={estimator.n_persons!r} with unit='record'."
        )
    has_number = estimator.n_records is not None or estimator.n_persons is not None
    if estimator.epsilon is not None and not has_number and unit == "person":
        raise ConfigurationError(
            "Expected n_persons, the approximate public number of persons, with a private "
            f"budget and unit='person'. Got None with epsilon={estimator.epsilon!r}."
        )
    if estimator.epsilon is not None and not has_number:
        raise ConfigurationError(
            "Expected n_records, the approximate public number of records, with a private "
            f"budget. Got None with epsilon={estimator.epsilon!r}."
        )
    if estimator.state_dir is None:
        for name in ("max_total_epsilon", "max_total_delta"):
            limit = getattr(estimator, name)
            if limit is not None:
                raise ConfigurationError(
                    "Expected state_dir, for the ledger of all fits, with max_total_epsilon or "
                    f"max_total_delta. Got None with {name}={limit!r}."
                )
    elif estimator.epsilon is None:
        raise ConfigurationError(
            "Expected a private epsilon beside the ledger in state_dir, to which every fit is "
            "charged. Got None."
        )


def _checked_unit(estimator: PrivateKMeans) -> Literal["record", "person"]:
    if estimator.unit == "record":
        return "record"
    if estimator.unit == "person":
        return "person"
    raise ConfigurationError(
        "Expected unit as 'record' or 'person', because all records have one holder. "
        f"Got {estimator.unit!r} instead."
    )


def _checked_groups(estimator: PrivateKMeans, groups: Any, n_records: int) -> Any:
    """Return the ids of persons, exactly one for each record with ``unit="person"``."""
    if (groups is not None) != (estimator.unit == "person"):
        found = "none" if groups is None else "some"
        raise ConfigurationError(
            "Expected groups, the ids of the records' persons, exactly with unit='person'. "
            f"Got {found} with unit={estimator.unit!r}."
        )
    if groups is not None:
        require_one_each("groups", _length_of(groups), n_records)
    return groups


def _limit(estimator: PrivateKMeans) -> LifetimeLimit:
    """Return the limit on the joint cost of all fits in the ledger."""
    if estimator.max_total_epsilon is None:
        epsilon = 10.0
    else:
        epsilon = estimator.max_total_epsilon
    if estimator.max_total_delta is None:
        delta = 1e-6
    else:
        delta = estimator.max_total_delta
    return LifetimeLimit(epsilon, delta)
