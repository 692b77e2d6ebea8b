"""Flower strategies for private, federated k-means.

Each strategy but `KFed` is a ``flwr.serverapp.strategy.Strategy``: build it, then call
``start(grid)`` in a ServerApp, or hand it to ``flower_kmeans.simulate``. `KFed` is a
baseline for comparisons: it is not private, and one process must hold all partitions.
"""

from flower_kmeans.baselines import KFed

from .clustering import ClusteringStrategy as ClusteringStrategy
from .constrained import ConstrainedLloyd
from .fastlloyd import FastLloyd
from .feddp import FedDPKMeans
from .kmeans import KMeansStrategy
from .lloyd import GLloyd, Lloyd, SuLloyd
from .options import CommonOptions as CommonOptions
from .options import CommonOptionsAndInitial as CommonOptionsAndInitial
from .options import Option as Option
from .options import meanings_of as meanings_of
from .options import options_of as options_of
from .options import own_options as own_options
from .options import parameters_of as parameters_of
from .pe_means import HDPEMeans, PEMeans
from .progress import RoundInfo
from .synopsis import SynopsisKMeans
from .vertical import VerticalKMeans

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
    # The others are a base class, RoundInfo, and KFed, which no server can run.
    if hasattr(globals()[each], "ALGORITHM")
}
"""Strategies by algorithm name, as run documents and the command line write it."""
