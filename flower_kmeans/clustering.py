"""The result of a clustering, in the user's units."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.domain import Domain, check_records
from flower_kmeans.privacy.report import Report

_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class Clustering:
    """Centroids, noisy cluster sizes and the report of the run that made them.

    Attributes
    ----------
    centroids : ndarray of shape (n_clusters, n_features), float64
        In the user's units.
    counts : ndarray of shape (n_clusters,), float64
        Records per cluster in the last round, with that round's noise.
    domain : Box or Ball
        The public bounds and scaling under which records were compared.
    report : Report
        What the run guaranteed, and who was missing.
    """

    centroids: NDArray[np.float64]
    counts: NDArray[np.float64]
    domain: Domain
    report: Report

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the nearest cluster of each record.

        Records and centroids are compared after the domain's scaling, as during the run, but
        without clipping, so with one scale for all columns this is the nearest centroid in the
        user's units.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            In the user's units.

        Returns
        -------
        ndarray of shape (n,), int64

        Raises
        ------
        DataError
            If ``X`` is not a finite two-dimensional array of that width.
        """
        records = check_records(X, self.domain.n_features, name="X")
        scale, shift = self._scale(), self.centroids.mean(axis=0)  # the shift saves digits
        centroids = (self.centroids - shift) / scale
        norms = np.einsum("ij,ij->i", centroids, centroids)
        labels = np.empty(len(records), dtype=np.int64)
        for start in range(0, len(records), _BLOCK_ROWS):
            block = (records[start : start + _BLOCK_ROWS] - shift) / scale
            labels[start : start + len(block)] = np.argmin(norms - 2 * block @ centroids.T, axis=1)
        return labels

    def inertia(self, X: ArrayLike) -> float:
        """Return the sum of squared distances of records to their cluster's centroid.

        This is an exact figure about ``X``, for whoever holds ``X``; it is not private.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            In the user's units.

        Returns
        -------
        float
            In squared user's units.
        """
        records = check_records(X, self.domain.n_features, name="X")
        residuals = records - self.centroids[self.predict(records)]
        return float(np.einsum("ij,ij->", residuals, residuals))

    def _scale(self) -> NDArray[np.float64]:
        """Return the (1, d) user's units in one unit of the scaled domain."""
        d = self.domain.n_features
        return self.domain.from_unit(np.ones((1, d))) - self.domain.from_unit(np.zeros((1, d)))
