"""Flower strategies for private, federated k-means.

Each is a ``flwr.serverapp.strategy.Strategy``: build it, then call ``start(grid)`` in a ServerApp,
or hand it to ``flower_kmeans.simulate``. `KFed` stands beside them to compare with: it is not
private, and runs only where one process holds all partitions.
"""

from flower_kmeans.baselines import KFed
from flower_kmeans.strategies._base import KMeansStrategy, RoundInfo
from flower_kmeans.strategies.constrained import ConstrainedLloyd
from flower_kmeans.strategies.fastlloyd import FastLloyd
from flower_kmeans.strategies.feddp import FedDPKMeans
from flower_kmeans.strategies.lloyd import GLloyd, Lloyd, SuLloyd
from flower_kmeans.strategies.pe_means import HDPEMeans, PEMeans
from flower_kmeans.strategies.synopsis import SynopsisKMeans
from flower_kmeans.strategies.vertical import VerticalKMeans

__all__ = [
    "ConstrainedLloyd",
    "FastLloyd",
    "FedDPKMeans",
    "GLloyd",
    "HDPEMeans",
    "KFed",
    "KMeansStrategy",
    "Lloyd",
    "PEMeans",
    "RoundInfo",
    "SuLloyd",
    "SynopsisKMeans",
    "VerticalKMeans",
]

BY_NAME: dict[str, type[KMeansStrategy] | type[VerticalKMeans]] = {
    globals()[each].ALGORITHM.name: globals()[each]
    for each in __all__
    # Not of bases, functions and KFed, which have no algorithm to run.
    if hasattr(globals()[each], "ALGORITHM")
}
"""The strategies by the names of their algorithms, in run documents and on the command line."""
