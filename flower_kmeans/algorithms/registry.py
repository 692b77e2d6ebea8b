"""Registry of algorithms by name, and their encoding in run documents."""

from collections.abc import Mapping
from typing import Any, TypeVar

from flower_kmeans import parameters
from flower_kmeans.algorithms import judged, tightened
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.data.domain import Domain
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.imports import imported
from flower_kmeans.privacy.budget import PrivacyBudget

_REGISTRY: dict[str, type[Algorithm]] = {}
_LATER: dict[str, str] = {}  # ``module:class`` of late algorithms, by name
AlgorithmType = TypeVar("AlgorithmType", bound=type[Algorithm])


def register(algorithm: AlgorithmType) -> AlgorithmType:
    """Register an algorithm for `algorithm_from_config` under its name, as a class decorator."""
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def register_later(name: str, path: str) -> None:
    """Register an algorithm by its ``module:class``, which is imported when it is needed."""
    _LATER[name] = path


def algorithm_to_config(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm's parameters for a run document, without domain and budget."""
    own = tightened.innermost(algorithm)
    config = {"name": own.name, **parameters.write_parameters(own)}
    if algorithm.judges:
        config[judged.QUALITY] = True
    return config


def algorithm_from_config(
    config: Mapping[str, Any],
    domain: Domain,
    budget: PrivacyBudget,
    kind_of_run: str | None = None,
) -> Algorithm:
    """Return the algorithm that a run document describes.

    It imports no algorithm of another kind of run than the document's.

    Raises
    ------
    ConfigurationError
        If its name is unknown, or its parameters are not acceptable.
    """
    name = config.get("name")
    may_import = kind_of_run is None or name == kind_of_run
    if isinstance(name, str) and name in _LATER and may_import:
        imported(_LATER[name])  # registers it
    if not isinstance(name, str) or name not in _REGISTRY:
        known = sorted({*_REGISTRY, *_LATER})
        raise ConfigurationError(f"Expected the name of an algorithm in {known}.")
    kind = _REGISTRY[name]
    quality = judged.is_wanted(config)
    own_config = {key: each for key, each in config.items() if key != judged.QUALITY}
    values = kind.read_config(own_config, domain)

    def made(own_domain: Domain, own_budget: PrivacyBudget) -> Algorithm:
        return kind(domain=own_domain, budget=own_budget, **values)

    algorithm = tightened.made(kind, made, domain, budget, values, quality)
    algorithm.require_feasible()
    return algorithm
