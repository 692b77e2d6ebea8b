"""FastLloyd's figures 6 to 8: silhouette, Davies-Bouldin index and matched centroid error.

    python benchmarks/fastlloyd_metrics.py --data-dir DIR --runs 20 --output build/fastlloyd-metrics

The protocol is that of figure 2 (`fastlloyd_protocol`), the measures those of the paper's appendix
D: with the records in the clusters that the centroids make, the silhouette (of 2,000 random records
where there are more) and the Davies-Bouldin index; and the mean squared distance between centroids
and those of scikit-learn's KMeans (best of ten starts), matched by the Hungarian algorithm. A
result with one cluster only has the silhouette -1 and no index, as in the paper.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fastlloyd_protocol import (
    COLORS,
    EPSILONS,
    LLOYD,
    METHODS,
    FloatArray,
    cluster,
    records_of,
    tasks_on,
)
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics import davies_bouldin_score, silhouette_score

from flower_kmeans.bench import plots, tables
from flower_kmeans.bench.harness import Options, Row, Suite, Task
from flower_kmeans.bench.script import main
from flower_kmeans.metrics import matched_centroid_error, nicv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASETS = ("iris", "wine", "breast", "lsun", "s1", "sklearn-iris", "sklearn-wine")
MOST_RECORDS = 2_000
MEASURES = {
    "silhouette": "silhouette (more is better)",
    "davies_bouldin": "Davies-Bouldin index",
    "centroid_error": "matched centroid error",
}


class Case(NamedTuple):
    """Scaled records, and the centroids without privacy."""

    records: FloatArray
    best: FloatArray


@lru_cache(maxsize=2)
def case_of(name: str, options: Options) -> Case:
    """Return what all runs on a data set share."""
    records, n_clusters = records_of(name, options)
    model = KMeans(n_clusters, n_init=10, random_state=0).fit(records)
    return Case(records, model.cluster_centers_)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            yield from tasks_on(name, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return all measures of one run."""
    records, best = case_of(task.data, options)
    centroids = cluster(records, len(best), task.method, task.epsilon, task.run).centroids
    labels = cdist(records, centroids, "sqeuclidean").argmin(axis=1)
    return {
        **separation_of(records, labels),
        "centroid_error": matched_centroid_error(centroids, best),
        "nicv": nicv(records, centroids),
    }


def separation_of(records: FloatArray, labels: NDArray[np.intp]) -> dict[str, float | None]:
    """Return silhouette and Davies-Bouldin index of labelled records."""
    n_found = len(np.unique(labels))
    if not 1 < n_found < len(records):
        return {"silhouette": -1.0, "davies_bouldin": None}
    rng = np.random.default_rng(0)
    kept = rng.permutation(len(records))[:MOST_RECORDS]
    several = len(np.unique(labels[kept])) > 1
    silhouette = float(silhouette_score(records[kept], labels[kept])) if several else -1.0
    return {
        "silhouette": silhouette,
        "davies_bouldin": float(davies_bouldin_score(records, labels)),
    }


def curves_of(rows: Sequence[Row], measured: str) -> dict[tuple[Any, ...], tables.Curve]:
    """Return curves of one measure; runs without it are left out."""
    return tables.curves_of([row for row in rows if row[measured] is not None], measured)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each measure."""
    parts = []
    for measured, title in MEASURES.items():
        curves = curves_of(rows, measured)
        lines = [
            [name, method, *(tables.cell(v, ".3g", count=False) for v in found)]
            for name in tables.unique(row["data"] for row in rows)
            for method in METHODS
            if (name, method) in curves
            and (found := tables.points_of(curves[name, method], EPSILONS))
        ]
        head = ["data", "method", *(f"eps {epsilon:g}" for epsilon in EPSILONS)]
        parts += [f"{title[0].upper()}{title[1:]}:", tables.markdown(head, lines, 2)]
    return "\n\n".join(parts)


def plot_of(rows: Sequence[Row], measured: str) -> "Figure":
    """Return one measure over epsilon, a panel for each data set."""
    curves = curves_of(rows, measured)
    panels = {
        name: {method: curves[name, method] for method in METHODS if (name, method) in curves}
        for name in tables.unique(row["data"] for row in rows)
    }
    return plots.lines(
        panels,
        EPSILONS,
        colors=COLORS,
        dashed=(LLOYD,),
        ylabel=MEASURES[measured],
        ylog=measured != "silhouette",
    )


def silhouette_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 6."""
    return plot_of(rows, "silhouette")


def index_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 7."""
    return plot_of(rows, "davies_bouldin")


def error_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 8."""
    return plot_of(rows, "centroid_error")


SUITE = Suite(
    "fastlloyd-metrics",
    "FastLloyd's figures 6 to 8 in its protocol: silhouette, Davies-Bouldin index and matched "
    "squared centroid error, on columns scaled to [-1, 1]. Means and 95% intervals. Lloyd is not "
    "private.",
    Task,
    {"silhouette": float, "davies_bouldin": float | None, "centroid_error": float, "nicv": float},
    tasks_of,
    measure,
    tables_of,
    {
        "fastlloyd-silhouette": silhouette_plot,
        "fastlloyd-davies-bouldin": index_plot,
        "fastlloyd-centroid-error": error_plot,
    },
    DATASETS,
    runs=20,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
