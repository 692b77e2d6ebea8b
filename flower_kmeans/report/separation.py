"""The flat view in which clusters lie apart best: two columns, or two directions.

It is computed from records and their clusters, so it is for their holder alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.report.names import are_numbered, shorten
from flower_kmeans.report.profiles import ColumnProfile, column_profiles

_MOST_ROWS = 2_000  # records that choose the view
_MOST_COLUMNS = 8  # columns of which pairs are tried
# Two columns are taken if they lose at most this fraction of the records against two
# directions: their axes have the user's units.
_LOST = 0.03
# of the mean variance within clusters, which is added in each direction: a direction in
# which clusters are points would otherwise win, however near they are
_RIDGE = 0.1
_MOST_NAMED = 3  # columns in the name of a direction
_LEAST_PART = 0.35  # of the largest part of a direction, for a column to be named
_REST = 0.1  # of it: columns without a name are mentioned from there on
_MOST_LETTERS = 30  # of a column in the name of an axis
_ROWS_OF_SPREAD = 500  # for a singular value decomposition, (n, d)
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class SeparatingView:
    """Two axes: each a column, or a direction of the scaled domain."""

    labels: tuple[str, ...]
    columns: tuple[ColumnProfile, ...]  # of the axes; () if they are directions
    places: tuple[slice, ...]  # of each of ``columns`` in the domain
    directions: FloatArray  # (d, 2), orthonormal; (d, 0) if the axes are columns
    # Fractions of the records whose nearest centroid in the view is that of their
    # cluster: in this view, and in the best one of the other kind, where both exist.
    agreement: float | None = None
    agreement_of_other: float | None = None
    other: str = ""  # names of the columns of the other view


def separating_view(
    records: FloatArray,
    labels: IntArray,
    centroids: FloatArray,
    domain: Domain,
    columns: Sequence[str] | None = None,
) -> SeparatingView:
    """Return the view of records (n, d), in clusters (n,), that separates these best.

    A domain with one or two columns, as people name them, has a view of these. With more
    columns it is the plane of the linear discriminants, or the best pair of columns if
    that is nearly as good. Evenly spaced records choose it.
    """
    counts = np.bincount(labels, minlength=len(centroids)).astype(np.float64)
    profiles = column_profiles(centroids, counts, domain, columns)
    places = _places(profiles)
    if len(profiles) <= 2:
        return _view_of_columns(profiles, places, range(len(profiles)))

    step = -(-len(records) // _MOST_ROWS) or 1
    own = labels[::step]
    sample = domain.scaled(domain.compared(records[::step]))
    points = domain.scaled(centroids)
    directions = _discriminants(sample, own)
    along = _agreement(sample @ directions, own, points @ directions)

    best = None
    in_pair = -1.0
    for pair in combinations(_candidates(sample, own, places), 2):
        chosen = np.r_[tuple(places[i] for i in pair)]
        found = _agreement(sample[:, chosen], own, points[:, chosen])
        if found > in_pair:
            in_pair = found
            best = pair
    if best is None:
        best = (0, 1)
    pair_view = _view_of_columns(profiles, places, best)
    if in_pair >= along - _LOST:
        return SeparatingView(
            pair_view.labels,
            pair_view.columns,
            pair_view.places,
            pair_view.directions,
            in_pair,
            along,
        )
    spreads = sample.std(axis=0)
    names = tuple(
        _direction_label(direction, spreads, profiles, domain, columns)
        for direction in directions.T
    )
    other = " and ".join(pair_view.labels)
    return SeparatingView(names, (), (), directions, along, in_pair, other)


def _places(profiles: Sequence[ColumnProfile]) -> list[slice]:
    """Return the places of each column in the domain, in order."""
    places = []
    start = 0
    for profile in profiles:
        stop = start + len(profile.rows)
        places.append(slice(start, stop))
        start = stop
    return places


def _view_of_columns(
    profiles: Sequence[ColumnProfile], places: Sequence[slice], chosen: Sequence[int]
) -> SeparatingView:
    """Return the view of one or two columns; a category is across."""
    ordered = sorted(chosen, key=lambda i: not profiles[i].is_category)
    n_features = places[-1].stop
    return SeparatingView(
        tuple(shorten(profiles[i].name, _MOST_LETTERS) for i in ordered),
        tuple(profiles[i] for i in ordered),
        tuple(places[i] for i in ordered),
        np.empty((n_features, 0)),
    )


def _candidates(
    sample: FloatArray, labels: IntArray, places: Sequence[slice]
) -> list[int]:
    """Return the columns of which pairs are tried, those that separate best first."""
    means, shares, _ = _means_of(sample, labels)
    total = sample.var(axis=0) if len(sample) else np.zeros(sample.shape[1])
    between = shares @ (means - shares @ means) ** 2
    scores = []
    for place in places:
        spread = float(total[place].sum())
        apart = float(between[place].sum())
        # Without clusters apart, columns with the largest spread are shown.
        scores.append((apart / spread if spread > _TINY else 0.0, spread))
    ordered = sorted(range(len(places)), key=lambda i: scores[i], reverse=True)
    return ordered[:_MOST_COLUMNS]


def _means_of(
    sample: FloatArray, labels: IntArray
) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Return means (m, d) and fractions (m,) of the clusters with records, and each's number."""
    used, own, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(used), sample.shape[1]))
    np.add.at(sums, own, sample)
    means = sums / counts[:, None]
    shares = counts / max(1, len(labels))
    return means, shares, own


def _agreement(sample: FloatArray, labels: IntArray, points: FloatArray) -> float:
    """Return the fraction of records (n, m) whose nearest point (k, m) is their cluster's.

    Of several points at one place, each has an equal part of its records.
    """
    if not len(sample):
        return 0.0
    scores = (points**2).sum(axis=1) - 2 * sample @ points.T
    least = scores.min(axis=1)
    slack = 1e-9 * (1 + np.abs(least))
    are_nearest = scores <= (least + slack)[:, None]
    is_own = are_nearest[np.arange(len(labels)), labels]
    return float((is_own / are_nearest.sum(axis=1)).mean())


def _discriminants(sample: FloatArray, labels: IntArray) -> FloatArray:
    """Return two orthonormal directions, (d, 2), that separate the clusters best.

    They span the first two linear discriminants within the span of the clusters' means.
    Where the means span less, the records' largest spread decides.
    """
    n_features = sample.shape[1]
    if not len(sample):
        return np.eye(n_features, 2)
    means, shares, own = _means_of(sample, labels)
    offsets = (means - shares @ means) * np.sqrt(shares)[:, None]
    _, lengths, basis = np.linalg.svd(offsets, full_matrices=False)
    basis = basis[lengths > 1e-6 * max(1e-6, lengths[0])]
    found = np.empty((n_features, 0))
    if len(basis):
        along = offsets @ basis.T
        between = along.T @ along
        inner = (sample - means[own]) @ basis.T
        within = inner.T @ inner / len(inner)
        ridge = _RIDGE * np.trace(within) / len(basis) + _TINY
        root = np.linalg.cholesky(within + ridge * np.eye(len(basis)))
        inverse = np.linalg.inv(root)
        _, vectors = np.linalg.eigh(inverse @ between @ inverse.T)
        found = basis.T @ inverse.T @ vectors[:, :-3:-1]
        found, _ = np.linalg.qr(found)
    if found.shape[1] < 2:
        found = _completed(found, sample)
    largest = np.abs(found).argmax(axis=0)
    # Signs are arbitrary. With this rule every picture of a run is the same.
    return found * np.where(found[largest, [0, 1]] < 0, -1.0, 1.0)


def _completed(found: FloatArray, sample: FloatArray) -> FloatArray:
    """Return two directions: those that are found, and those of the largest spread beside."""
    step = -(-len(sample) // _ROWS_OF_SPREAD)
    rows = sample[::step] - sample.mean(axis=0)
    rows = rows - rows @ found @ found.T
    _, _, vectors = np.linalg.svd(rows, full_matrices=False)
    # Records on a line, or a single one, leave other directions open.
    several = np.hstack([found, vectors[:2].T, np.eye(sample.shape[1], 3)])
    chosen = found
    for candidate in several.T:
        rest = candidate - chosen @ (chosen.T @ candidate)
        length = np.linalg.norm(rest)
        if chosen.shape[1] < 2 and length > 1e-3:
            chosen = np.hstack([chosen, rest[:, None] / length])
    return chosen


def _direction_label(
    direction: FloatArray,
    spreads: FloatArray,
    profiles: Sequence[ColumnProfile],
    domain: Domain,
    columns: Sequence[str] | None,
) -> str:
    """Return the columns that a direction (d,) follows, with their signs."""
    if are_numbered(domain, columns):
        return f"a direction of all {domain.n_features} columns together"
    labels = [
        shorten(row.label, _MOST_LETTERS)
        for profile in profiles
        for row in profile.rows
    ]
    parts = direction * spreads
    sizes = np.abs(parts)
    if not sizes.any():
        sizes = np.abs(direction)
    order = np.argsort(-sizes, kind="stable")
    largest = sizes[order[0]]
    named = [i for i in order[:_MOST_NAMED] if sizes[i] >= _LEAST_PART * largest]
    text = ", ".join(f"{labels[i]} ({'+' if direction[i] > 0 else '−'})" for i in named)
    if int((sizes >= _REST * largest).sum()) > len(named):
        return f"mostly {text}"
    return text
