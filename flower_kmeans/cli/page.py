"""The page of an earlier run, from its ``report.json`` and ``centroids.npz``.

If there is a ``synopsis.npz`` beside them, it is used, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.cli.assign import read_centroids, synopsis_beside
from flower_kmeans.errors import DataError, KMeansError
from flower_kmeans.files import parsed_json, printable
from flower_kmeans.privacy.plan import plan_from_config
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.html import page_of
from flower_kmeans.report.outcome import Outcome
from flower_kmeans.report.parts import part_type
from flower_kmeans.report.ranges import ColumnRange
from flower_kmeans.report.report import Report


@dataclass(frozen=True)
class _Page:
    """Words that ``simulate`` adds to a page beside the run's report."""

    facts: list[tuple[str, str]]
    not_private: str | None
    sizes: SizeReport | None


def page_again(path: Path) -> str:
    """Return the page of a run.

    Raises
    ------
    DataError
        If the files are not from the same run.
    """
    found = read_centroids(path.with_name("centroids.npz"))
    try:
        values = parsed_json(path.read_text("utf-8"))
        report = report_from(values)
        versions = msgspec.convert(values["versions"], dict[str, str])
        # The server of an app writes only its report.
        page = msgspec.convert(values.get("page", _Page([], None, report.sizes)), _Page)
        comparison = msgspec.convert(values.get("comparison"), Comparison | None)
        columns = values.get("columns", list(found.columns))
        is_right = columns == list(found.columns)
        is_right &= values.get("n_clusters", len(found.centroids)) == len(
            found.centroids
        )
        is_right &= page.sizes is None or len(page.sizes.counts) == len(found.centroids)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, KMeansError):
        is_right = False
    if not is_right:
        raise DataError(
            f"Expected the report.json of a run, with its centroids.npz. Got {path}."
        )
    columns = tuple(map(printable, found.columns))
    k = len(found.centroids)
    arrays = k, str(k), found.centroids, found.counts
    synopsis = synopsis_beside(path, found.domain)
    run = Outcome(
        report,
        found.domain,
        columns,
        *arrays,
        page.sizes,
        page.not_private,
        synopsis,
        comparison,
    )
    return page_of(run, None, page.facts, versions)


def report_from(values: Mapping[str, Any]) -> Report:
    """Return the report that `Report.to_dict` wrote.

    Raises
    ------
    KeyError, ValueError, TypeError, KMeansError
        If values are missing, of a wrong type, or contradict each other.
    """
    plan = replace(
        plan_from_config(values["plan"]), notes=tuple(values.get("notes", ()))
    )
    earlier = values["earlier"] and report_from(values["earlier"])
    model = trust_model(values["trust"])
    part = values.get(model.kind)
    if part is not None:
        part = msgspec.convert(part, part_type(model.kind))
    ranges = [
        [each[name] for name in ColumnRange._fields]
        for each in values.get("ranges", [])
    ]
    own = {
        "plan": plan,
        "trust_model": model,
        "earlier": earlier,
        "part": part,
        "ranges": ranges,
    }
    given = {
        field.name: values[field.name]
        for field in fields(Report)
        if field.name in values
    }
    return msgspec.convert(given | own, Report)
