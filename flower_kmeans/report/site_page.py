"""A holder's own sizes of clusters as one HTML page, which must stay with the holder.

``site_page.html.j2`` has its sentences. Like the page of a run it holds no script and
fetches nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.report.clustering import readable
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.site_sizes import PRIVATE, SiteSizes
from flower_kmeans.templates import environment
from flower_kmeans.version import __version__

_MOST_ROWS = 200
_MOST_COLUMNS = 64


def site_page(
    sizes: SiteSizes,
    centroids: FloatArray,
    domain: Domain,
    columns: Sequence[str] | None = None,
) -> str:
    """Return the page of a holder's own sizes of clusters, for this holder alone.

    Parameters
    ----------
    sizes : SiteSizes
        Own sizes beside the noisy ones.
    centroids : ndarray of shape (k, d)
        In the user's units.
    domain : Box, Ball or Sphere
        The domain of the run, or the declared columns.
    columns : sequence of str, optional
        Names of the columns of a domain that has none.
    """
    names = cluster_names(centroids, sizes.noisy, domain, columns)
    order = np.argsort(-sizes.own, kind="stable")[:_MOST_ROWS].tolist()
    shares = np.maximum(sizes.own_shares, sizes.noisy_shares)
    largest = float(shares.max()) or 1.0
    found = sizes.table(names).rows
    rows: list[dict[str, Any]] = []
    for j in order:
        row = {
            "cells": found[j],
            "own_width": 100 * sizes.own_shares[j] / largest,
            "noisy_width": 100 * sizes.noisy_shares[j] / largest,
        }
        rows.append(row)
    shown = readable(centroids, domain, columns)
    centres = []
    for j in order:
        cells = [_cell(values[j]) for _, values in shown[:_MOST_COLUMNS]]
        centres.append((names[j], cells))
    template = environment().get_template("report/site_page.html.j2")
    page = template.render(
        private=PRIVATE,
        counted=sizes.counted,
        n_own=sizes.own.sum(),
        n_clusters=len(names),
        largest=100 * largest,
        rows=rows,
        columns=[name for name, _ in shown[:_MOST_COLUMNS]],
        n_columns=len(shown),
        centres=centres,
        version=__version__,
    )
    return "<!doctype html>\n" + page + "\n"


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}"
