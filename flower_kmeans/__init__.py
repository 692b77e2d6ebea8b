"""Private, federated k-means for the Flower framework.

The names below are loaded when they are first used. So importing the package is fast,
and a client process that needs one name does not load the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_kmeans.client import ClientPolicy as ClientPolicy
    from flower_kmeans.client import kmeans_client_app as kmeans_client_app
    from flower_kmeans.client import register_kmeans as register_kmeans
    from flower_kmeans.client import with_kmeans as with_kmeans
    from flower_kmeans.data.domain import Ball as Ball
    from flower_kmeans.data.domain import Box as Box
    from flower_kmeans.data.domain import Sphere as Sphere
    from flower_kmeans.data.table_domain import TableDomain as TableDomain
    from flower_kmeans.privacy.budget import PrivacyBudget as PrivacyBudget
    from flower_kmeans.progress import ProgressBar as ProgressBar
    from flower_kmeans.report.clustering import Clustering as Clustering
    from flower_kmeans.report.html import html_report as html_report
    from flower_kmeans.simulation.engines import simulate as simulate
    from flower_kmeans.simulation.faults import Fault as Fault
    from flower_kmeans.version import __version__ as __version__

# A client starts a process per message, so every import counts (docs/deploy.md, "How
# long a run takes").
_HOME = {
    "Ball": "data.domain",
    "Box": "data.domain",
    "ClientPolicy": "client",
    "Clustering": "report.clustering",
    "Fault": "simulation.faults",
    "PrivacyBudget": "privacy.budget",
    "ProgressBar": "progress",
    "Sphere": "data.domain",
    "TableDomain": "data.table_domain",
    "__version__": "version",
    "html_report": "report.html",
    "kmeans_client_app": "client",
    "register_kmeans": "client",
    "simulate": "simulation.engines",
    "with_kmeans": "client",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"flower_kmeans.{_HOME[name]}"), name)
    raise AttributeError(f"module 'flower_kmeans' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
