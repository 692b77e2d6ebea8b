"""Names of clusters in words, from released values alone, such as "high age, ward B".

A name has the one to three columns in which the cluster differs most from the mean of
all clusters, in the space that was clustered. The noise of centroids is not known here.
So a difference must be large beside those of other columns and clusters before it
becomes a word, and a name says where the released size is small. The noise may exceed
this size, so a name never says that a cluster has few records.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.report.profiles import (
    YES_AND_NO,
    ColumnProfile,
    column_profiles,
    most_separating,
)

_MOST_WORDS = 3
# most characters of a name before details make it unique, and of a column or level in it
_MOST_LETTERS = 64
_MOST_OF_COLUMN = 24
# of the separation of the column that separates most, in scaled units: columns with less
# give no words
_LEAST_SEPARATION = 0.25
# of a column's separation, and of the cluster's largest difference: smaller ones give no
# words
_LEAST_DIFFERENCE = 0.5
# scaled: smaller differences are rounding
_ROUNDING = 1e-9
# shares of a level, from which on it is that of the cluster, or of most of it
_ONE_LEVEL = 0.85
_MOST_LEVEL = 0.5
# of the mean size: noise moved a cluster with less most
_SMALL = 1 / 10
# in the unit of the sizes: a cluster with less may be empty
_LEAST_SIZE = 1.0
# so many columns with numbers for names mean something to a reader; more do not
_MOST_NUMBERED = 20


def cluster_names(
    centroids: FloatArray,
    counts: FloatArray,
    domain: Domain,
    columns: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return a short, unique name for each cluster, in words.

    Parameters
    ----------
    centroids : array of shape (k, d), float64
        In the user's units, as in a `Clustering`.
    counts : array of shape (k,), float64
        Noisy sizes.
    domain : Box, Ball or Sphere
    columns : sequence of str, optional
        Names for a domain that has none. By default columns have numbers from 1 on.

    Returns
    -------
    tuple of str
        One printable line each, at most 160 characters. "high" and "low" are relative
        to the mean of all clusters, not to a norm. Clusters are numbered where their
        columns have no meaning, as those of embeddings, or where the noisy size is
        below 1. Their true size may be large: noise hides it.
    """
    k = len(centroids)
    if are_numbered(domain, columns):
        return tuple(f"cluster {cluster}" for cluster in range(k))
    if k == 1:
        return ("all records",)
    # In this order, sums round alike however the clusters are numbered.
    order = np.lexsort((counts, *centroids.T))
    places = np.argsort(order).tolist()
    profiles = column_profiles(centroids[order], counts[order], domain, columns)
    wording = _Wording(profiles)
    small = _SMALL * np.maximum(counts[order], 0.0).mean()
    names = []
    for cluster, count in enumerate(counts.tolist()):
        name = wording.name(places[cluster])
        if count < _LEAST_SIZE:
            name = f"cluster {cluster} (may be empty)"
        elif count < small:
            name += " (small released size)"
        names.append(name)
    for same in _repeated(names):
        details = wording.details([places[cluster] for cluster in same])
        for cluster, detail in zip(same, details, strict=True):
            names[cluster] += detail
    return _numbered(names)


def are_numbered(domain: Domain, columns: Sequence[str] | None = None) -> bool:
    """Return whether columns are many and only numbers tell them apart.

    So are those of embeddings and pixels: x0 to x383, or columns without names.
    """
    if domain.n_features <= _MOST_NUMBERED:
        return False
    names = domain.columns or columns
    if names is None:
        return True
    stems = {re.sub(r"\d+", "", name) for name in names}
    return len(stems) == 1


class _Wording:
    """Words for the differences of clusters in the columns that separate them."""

    def __init__(self, profiles: Sequence[ColumnProfile]) -> None:
        ordered = most_separating(profiles)
        most = ordered[0].separation
        least = max(_LEAST_SEPARATION * most, _ROUNDING)
        self._columns = [each for each in ordered if each.separation >= least]
        # (m, k), of the m columns that give words
        self._distances = np.array([each.distances for each in self._columns])

    def name(self, cluster: int) -> str:
        """Return words for the columns in which a cluster differs most."""
        if not self._columns:
            return "average"
        distances = self._distances[:, cluster]
        own = [
            (column, distance)
            for column, distance in zip(self._columns, distances, strict=True)
            if distance >= _LEAST_DIFFERENCE * max(distances.max(), column.separation)
        ]
        if not own and len(self._columns) == 1:
            return _middle(self._columns[0])
        if not own:
            return "average"
        own.sort(key=lambda pair: -pair[1])
        chosen = [column for column, _ in own[:_MOST_WORDS]]
        # All names have their columns in one order, so that they can be compared.
        words = [_word(each, cluster) for each in most_separating(chosen)]
        while len(words) > 1 and len(", ".join(words)) > _MOST_LETTERS:
            words.pop()
        return ", ".join(words)

    def details(self, clusters: Sequence[int]) -> list[str]:
        """Return additions to equal names: values where these clusters differ most."""
        if not self._columns:
            return [""] * len(clusters)
        spans = []
        for column in self._columns:
            rows = np.array([row.deviations[clusters] for row in column.rows])
            spans.append(float(np.linalg.norm(np.ptp(rows, axis=1))))
        column = self._columns[int(np.argmax(spans))]
        name = shorten(column.name, _MOST_OF_COLUMN)
        texts = [
            shorten(column.texts[cluster], _MOST_OF_COLUMN) for cluster in clusters
        ]
        return [f" ({name} {text})" for text in texts]


def _word(column: ColumnProfile, cluster: int) -> str:
    """Return words for a cluster's difference in a column."""
    name = shorten(column.name, _MOST_OF_COLUMN)
    if column.is_category:
        return _level_word(column, cluster)
    row = column.rows[0]
    is_above = row.deviations[cluster] > 0
    if row.kind == "date":
        return f"late {name}" if is_above else f"early {name}"
    return f"high {name}" if is_above else f"low {name}"


def _level_word(column: ColumnProfile, cluster: int) -> str:
    """Return words for the level whose share is most above that in all clusters."""
    above = [row.values[cluster] - row.mean for row in column.rows]
    level = int(np.argmax(above))
    share = column.rows[level].values[cluster]
    text = _level(column, level)
    if share >= _ONE_LEVEL:
        return text
    if share >= _MOST_LEVEL:
        return f"mostly {text}"
    return f"more often {text}"


def _level(column: ColumnProfile, level: int) -> str:
    """Return a level with its column: "ward B", or "smoker" and "not smoker"."""
    name = shorten(column.name, _MOST_OF_COLUMN)
    plain = [text.casefold() for text in column.levels]
    for yes, no in YES_AND_NO:
        if sorted(plain) == sorted((yes, no)):
            return name if plain[level] == yes else f"not {name}"
    return f"{name} {shorten(column.levels[level], _MOST_OF_COLUMN)}"


def _middle(column: ColumnProfile) -> str:
    """Return words for a cluster near the mean of the only column that gives words."""
    name = shorten(column.name, _MOST_OF_COLUMN)
    if column.is_category:
        return f"mixed {name}"
    return f"middle {name}"


def shorten(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters, without spaces around it."""
    text = " ".join(text.split()) or "unnamed"
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def _repeated(names: Sequence[str]) -> list[list[int]]:
    """Return the clusters of each name that several have."""
    places = defaultdict(list)
    for cluster, name in enumerate(names):
        places[name].append(cluster)
    return [same for same in places.values() if len(same) > 1]


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Return names with the cluster's number where several clusters have the same."""
    found = list(names)
    for same in _repeated(names):
        for cluster in same:
            found[cluster] += f" (cluster {cluster})"
    if _repeated(found):
        # Names of columns may imitate such a number.
        return tuple(f"cluster {cluster}" for cluster in range(len(found)))
    return tuple(found)
