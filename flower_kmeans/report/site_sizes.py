"""One holder's own sizes of clusters, beside the noisy sizes of all holders.

The own sizes are exact counts of a holder's records, so they are private. They stay with
the holder, in its files of mode 0600. No message, log line or metric has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.clustering import assigned
from flower_kmeans.templates import TextTable

PRIVATE = (
    "PRIVATE: exact counts of this holder's own records, without noise. They must stay here: "
    "do not send or publish this file."
)
"""The mark of every file that holds own sizes."""

_MOST_SCORES = 2**22
"""Most scores of records and clusters at once: 32 MB in float64."""
_FEWEST_ROWS = 64


@dataclass(frozen=True, repr=False, eq=False)
class SiteSizes:
    """A holder's own sizes of clusters, beside the noisy ones of all holders.

    Attributes
    ----------
    own : ndarray of shape (k,), float64
        The holder's own records in each cluster, or its persons: exact, and so private.
        The records of a person count as one together.
    noisy : ndarray of shape (k,), float64
        The sizes for all holders, as the run released them.
    counted : str
        Noun for the units that are counted: "records" or "persons".

    Raises
    ------
    ConfigurationError
        If the sizes are not those of the same clusters.
    """

    own: FloatArray
    noisy: FloatArray
    counted: str = "records"

    def __post_init__(self) -> None:
        if self.own.shape != self.noisy.shape:
            raise ConfigurationError(
                f"Expected own sizes of shape {self.noisy.shape}, one for each cluster. "
                f"Got {self.own.shape} instead."
            )

    def __repr__(self) -> str:
        # It must not show the sizes, because it may go to a log.
        return f"SiteSizes(n_clusters={len(self.own)}, counted={self.counted!r})"

    @property
    def own_shares(self) -> FloatArray:
        """Fraction of the holder's own records in each cluster, (k,); 0 without records."""
        return _shares(self.own)

    @property
    def noisy_shares(self) -> FloatArray:
        """Fraction of each cluster in the noisy sizes, (k,); one below 0 counts as 0."""
        return _shares(np.maximum(self.noisy, 0.0))

    @property
    def differences(self) -> FloatArray:
        """Own fractions less the noisy ones, (k,), in [-1, 1]."""
        return self.own_shares - self.noisy_shares

    @property
    def own_cells(self) -> list[str]:
        """The own sizes as text. Parts of a person may be in several clusters."""
        digits = 0
        if (self.own % 1 > 0).any():
            digits = 1
        return [f"{size:,.{digits}f}" for size in self.own.tolist()]

    def table(self, names: Sequence[str]) -> TextTable:
        """Return a row for each cluster, by its name: own size beside the noisy one."""
        columns = zip(
            names,
            self.own_cells,
            self.own_shares.tolist(),
            self.noisy.tolist(),
            self.noisy_shares.tolist(),
            self.differences.tolist(),
            strict=True,
        )
        rows = []
        for name, own, own_share, noisy, noisy_share, difference in columns:
            shares = [f"{100 * share:.1f}%" for share in (own_share, noisy_share)]
            points = f"{100 * difference:+.1f} points"
            rows.append((name, own, shares[0], f"{noisy:,.1f}", shares[1], points))
        head = (
            "cluster",
            f"own {self.counted}",
            "own share",
            "all, released",
            "share of all",
            "difference",
        )
        return TextTable(f"Own {self.counted} beside those of all holders", head, rows)


def _shares(sizes: FloatArray) -> FloatArray:
    return sizes / (sizes.sum() or 1.0)


def cluster_sizes(
    records: NDArray[Any],
    centroids: FloatArray,
    domain: Domain,
    weights: FloatArray | None = None,
    record_weights: NDArray[Any] | None = None,
) -> IntArray:
    """Return the sum of the records' weights in each cluster, (k,) int64.

    Parameters
    ----------
    records : ndarray of shape (m, d)
        Finite records, in the user's units. The cluster of each is that of
        `Clustering.predict`, without clipping. Null records of the domain count as none.
    centroids, domain, weights
        As of a `Clustering`.
    record_weights : ndarray of shape (m,), optional
        Integer weights of the records. Default: 1.
    """
    k = len(centroids)
    found = np.zeros(k, dtype=np.int64)
    step = max(_FEWEST_ROWS, _MOST_SCORES // k)
    for start in range(0, len(records), step):
        part = records[start : start + step]
        usable = ~domain.are_null(part)
        labels = assigned(part[usable], centroids, domain, weights)
        if record_weights is None:
            found += np.bincount(labels, minlength=k)
        else:
            weighing = record_weights[start : start + step][usable]
            # Sums of integers below 2^53 are exact.
            found += np.bincount(labels, weighing, minlength=k).astype(np.int64)
    return found
