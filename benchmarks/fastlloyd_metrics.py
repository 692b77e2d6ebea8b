"""FastLloyd's figures 6 to 8: silhouette, Davies-Bouldin index and matched centroid error.

    python benchmarks/fastlloyd_metrics.py --data-dir DIR --output build/fastlloyd-metrics

The measures are those of the paper's appendix D, of the records in the clusters that the
centroids make: the silhouette (of 2,000 random records where there are more) and the
Davies-Bouldin index; and the mean squared distance between the centroids and those of
scikit-learn's KMeans, matched by the Hungarian algorithm. A result with one cluster has
the silhouette -1 and no index, as in the paper.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from protocols import as_fastlloyd, best_of_ten, in_box
from scipy.spatial.distance import cdist
from sklearn.metrics import davies_bouldin_score, silhouette_score

from bench import script, tables
from bench.harness import Options, Row, Suite, Task
from flower_kmeans.arrays import FloatArray, LabelArray
from flower_kmeans.metrics import matched_centroid_error, nicv
from flower_kmeans.report.curves import draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LLOYD = "Lloyd"
OURS = "SynopsisKMeans"
PAPERS = "FastLloyd:paper"
COLORS = {LLOYD: "0.5", "SuLloyd": "C0", "GLloyd": "C1", PAPERS: "C2", OURS: "C3"}
METHODS = tuple(COLORS)
EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
MOST_RECORDS = 2_000
MEASURES = {
    "silhouette": "silhouette (more is better)",
    "davies_bouldin": "Davies-Bouldin index",
    "centroid_error": "matched centroid error",
}


def tasks_on(
    names: Sequence[str], runs: int, methods: Sequence[str] = METHODS
) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(runs):
        for name in names:
            for method in methods:
                epsilons: Sequence[float | None] = EPSILONS
                if method == LLOYD:
                    epsilons = (None,)
                for epsilon in epsilons:
                    yield Task(name, method, epsilon, run)


@lru_cache(maxsize=2)
def best(name: str, options: Options) -> FloatArray:
    """Return the centroids without privacy."""
    return np.asarray(best_of_ten(in_box(name, options)).cluster_centers_)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return all measures of one run."""
    data = in_box(task.data, options)
    found = as_fastlloyd(data, task.method, task.epsilon, task.run)
    distances = cdist(data.records, found.centroids, "sqeuclidean")
    labels = distances.argmin(axis=1)
    error = matched_centroid_error(found.centroids, best(task.data, options))
    return {
        **separation_of(data.records, labels),
        "centroid_error": error,
        "nicv": nicv(data.records, found.centroids),
    }


def separation_of(records: FloatArray, labels: LabelArray) -> dict[str, float | None]:
    """Return the silhouette and the Davies-Bouldin index of labelled records."""
    if not 1 < len(np.unique(labels)) < len(records):
        return {"silhouette": -1.0, "davies_bouldin": None}
    kept = np.random.default_rng(0).permutation(len(records))[:MOST_RECORDS]
    silhouette = -1.0
    if len(np.unique(labels[kept])) > 1:
        silhouette = float(silhouette_score(records[kept], labels[kept]))
    index = float(davies_bouldin_score(records, labels))
    return {"silhouette": silhouette, "davies_bouldin": index}


def measured(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the rows that have a measure."""
    return [row for row in rows if row[column] is not None]


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each measure."""
    parts = []
    for column, title in MEASURES.items():
        found = measured(rows, column)
        table = tables.over_grid(found, column, EPSILONS, form=".3g", count=False)
        parts.append(f"{title[0].upper()}{title[1:]}:\n\n{table}")
    return "\n\n".join(parts)


def plot(rows: Sequence[Row], options: Options, *, column: str) -> "Figure":
    """Return one measure over epsilon, a panel for each data set."""
    curves = tables.curves_of(measured(rows, column), column)
    return draw_lines(
        tables.panels(curves),
        EPSILONS,
        colors=COLORS,
        dashed=(LLOYD,),
        ylabel=MEASURES[column],
    )


SUITE = Suite(
    "fastlloyd-metrics",
    "FastLloyd's figures 6 to 8 in its protocol: silhouette, Davies-Bouldin index and matched "
    "squared centroid error, on columns scaled to [-1, 1]. Means and 95% intervals. Lloyd is not "
    "private.",
    Task,
    {
        "silhouette": float,
        "davies_bouldin": float | None,
        "centroid_error": float,
        "nicv": float,
    },
    lambda options: tasks_on(options.data, options.runs),
    measure,
    tables_of,
    {
        f"fastlloyd-{column.replace('_', '-')}": partial(plot, column=column)
        for column in MEASURES
    },
    ("iris", "wine", "breast", "lsun", "s1", "sklearn-iris", "sklearn-wine"),
    runs=20,
)

if __name__ == "__main__":
    script.main(SUITE)
