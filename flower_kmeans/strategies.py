"""The strategies, which a checkout holds in the folder ``strategies/`` beside this package.

An installed package contains that folder. Python and type checkers then use the folder
instead of this file. In a checkout this module becomes the package
``flower_kmeans.strategies``, with the names and the modules of the folder.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Each name has its own import, because mypy refuses names that come from `import *`.
    from strategies import BY_NAME as BY_NAME
    from strategies import ClusteringStrategy as ClusteringStrategy
    from strategies import CommonOptions as CommonOptions
    from strategies import CommonOptionsAndInitial as CommonOptionsAndInitial
    from strategies import ConstrainedLloyd as ConstrainedLloyd
    from strategies import FastLloyd as FastLloyd
    from strategies import FedDPKMeans as FedDPKMeans
    from strategies import GLloyd as GLloyd
    from strategies import HDPEMeans as HDPEMeans
    from strategies import KFed as KFed
    from strategies import KMeansStrategy as KMeansStrategy
    from strategies import Lloyd as Lloyd
    from strategies import Option as Option
    from strategies import PEMeans as PEMeans
    from strategies import RoundInfo as RoundInfo
    from strategies import SuLloyd as SuLloyd
    from strategies import SynopsisKMeans as SynopsisKMeans
    from strategies import VerticalKMeans as VerticalKMeans
    from strategies import meanings_of as meanings_of
    from strategies import options_of as options_of
    from strategies import own_options as own_options
    from strategies import parameters_of as parameters_of
else:
    import sys
    from importlib.machinery import SourceFileLoader
    from pathlib import Path

    _folder = Path(__file__).resolve().parents[1] / "strategies"
    __package__ = __name__
    __path__ = [str(_folder)]
    __file__ = str(_folder / "__init__.py")
    __spec__.submodule_search_locations = __path__
    # The folder's code runs in this module. If a second module took its place, another
    # thread's import would not wait, and would find only some of the names.
    SourceFileLoader(__name__, __file__).exec_module(sys.modules[__name__])
