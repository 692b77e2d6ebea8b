"""Flower strategies for private, federated k-means.

Each is a ``flwr.serverapp.strategy.Strategy``: build it, then call ``start(grid)`` in a ServerApp,
or hand it to ``flower_kmeans.simulate``.
"""

from flower_kmeans.strategies._base import KMeansStrategy, RoundInfo
from flower_kmeans.strategies.fastlloyd import FastLloyd
from flower_kmeans.strategies.feddp import FedDPKMeans
from flower_kmeans.strategies.lloyd import GLloyd, Lloyd, SuLloyd
from flower_kmeans.strategies.pe_means import HDPEMeans, PEMeans
from flower_kmeans.strategies.synopsis import SynopsisKMeans

__all__ = [
    "FastLloyd",
    "FedDPKMeans",
    "GLloyd",
    "HDPEMeans",
    "KMeansStrategy",
    "Lloyd",
    "PEMeans",
    "RoundInfo",
    "SuLloyd",
    "SynopsisKMeans",
]
