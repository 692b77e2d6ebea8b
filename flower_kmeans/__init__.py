"""Private, federated k-means for the Flower framework.

The names below are loaded when they are first used, so importing the package costs nothing and a
client process that only needs one of them does not pay for the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_kmeans.client import ClientPolicy as ClientPolicy
    from flower_kmeans.client import kmeans_client_app as kmeans_client_app
    from flower_kmeans.client import register_kmeans as register_kmeans
    from flower_kmeans.client import with_kmeans as with_kmeans
    from flower_kmeans.clustering import Clustering as Clustering
    from flower_kmeans.domain import Ball as Ball
    from flower_kmeans.domain import Box as Box
    from flower_kmeans.faults import Fault as Fault
    from flower_kmeans.privacy.budget import PrivacyBudget as PrivacyBudget
    from flower_kmeans.simulation import simulate as simulate
    from flower_kmeans.version import __version__ as __version__
    from flower_kmeans.webreport.page import html_report as html_report

_HOME = {
    "Ball": "flower_kmeans.domain",
    "Box": "flower_kmeans.domain",
    "ClientPolicy": "flower_kmeans.client",
    "Clustering": "flower_kmeans.clustering",
    "Fault": "flower_kmeans.faults",
    "PrivacyBudget": "flower_kmeans.privacy.budget",
    "__version__": "flower_kmeans.version",
    "html_report": "flower_kmeans.webreport.page",
    "kmeans_client_app": "flower_kmeans.client",
    "register_kmeans": "flower_kmeans.client",
    "simulate": "flower_kmeans.simulation",
    "with_kmeans": "flower_kmeans.client",
}

__all__ = [
    "Ball",
    "Box",
    "ClientPolicy",
    "Clustering",
    "Fault",
    "PrivacyBudget",
    "__version__",
    "html_report",
    "kmeans_client_app",
    "register_kmeans",
    "simulate",
    "with_kmeans",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'flower_kmeans' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
