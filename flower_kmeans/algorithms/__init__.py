"""Clustering algorithms as additive queries and updates: no Flower, no noise, no I/O."""

from flower_kmeans.algorithms.base import Algorithm as Algorithm
from flower_kmeans.algorithms.constrained import (
    ConstrainedLloydAlgorithm as ConstrainedLloydAlgorithm,
)
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm as FastLloydAlgorithm
from flower_kmeans.algorithms.feddp import FedDPAlgorithm as FedDPAlgorithm
from flower_kmeans.algorithms.layout import Block as Block
from flower_kmeans.algorithms.layout import Layout as Layout
from flower_kmeans.algorithms.layout import Statistic as Statistic
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm as GLloydAlgorithm
from flower_kmeans.algorithms.lloyd import LloydAlgorithm as LloydAlgorithm
from flower_kmeans.algorithms.lloyd import SuLloydAlgorithm as SuLloydAlgorithm
from flower_kmeans.algorithms.pe_means import HDPEMeansAlgorithm as HDPEMeansAlgorithm
from flower_kmeans.algorithms.pe_means import PEMeansAlgorithm as PEMeansAlgorithm
from flower_kmeans.algorithms.registry import (
    algorithm_from_config as algorithm_from_config,
)
from flower_kmeans.algorithms.state import Query as Query
from flower_kmeans.algorithms.state import Range as Range
from flower_kmeans.algorithms.state import State as State
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm as SynopsisAlgorithm
