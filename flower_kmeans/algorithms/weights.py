"""Integer weights of records: of a person's records, and of records by a public rule.

A run with weights multiplies the statistic of each record by an integer weight. The
weights of one unit of privacy add up to the full weight W at most, so the unit moves a
sum by at most W times what one record moves it without weights. Sensitivities and noise
are W times as large, and every reconstructed word is divided by W (docs/guarantees,
Theorems 46 and 47).
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from flower_kmeans.arrays import IntArray
from flower_kmeans.data.weights import LEAST_WEIGHT, MOST_WEIGHT
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import (
    ParameterKind,
    integer,
    left_out,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget

if TYPE_CHECKING:
    from flower_kmeans.algorithms.base import Algorithm

AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm")


def _check_full_weight(name: str, value: Any) -> int:
    number = integer(name, value, LEAST_WEIGHT, MOST_WEIGHT)
    if number & (number - 1):
        raise ConfigurationError(
            f"Expected {name} as a power of two. Got {number} instead."
        )
    return number


FULL_WEIGHT = ParameterKind(_check_full_weight)
"""W: a power of two from 2^6 to 2^12."""
MOST_CLIENTS = left_out(whole(1, LEAST_WEIGHT))
"""g: with more, the records of a person at one client could weigh nothing."""


def weighs_records(algorithm: "Algorithm") -> bool:
    """Return whether each record has a weight: its person's, one by a public rule, or both."""
    return algorithm.budget.counts_persons or algorithm.weighted


def record_width(algorithm: "Algorithm") -> int:
    """Return the number of columns of a client's blocks. With weights, the last one has them."""
    return algorithm.domain.n_features + int(weighs_records(algorithm))


def total_name(budget: PrivacyBudget) -> str:
    """Return the name of the parameter with the public total to which all counts add up."""
    if budget.counts_persons:
        return "n_persons"
    return "n_records"


def planned_total(algorithm: "Algorithm") -> int | None:
    """Return the public total to which all counts add up."""
    total: int | None = getattr(algorithm, total_name(algorithm.budget))
    return total


def given_total(budget: PrivacyBudget, options: Mapping[str, Any]) -> Any:
    """Return the public total of options, by the budget's unit."""
    return options.get(total_name(budget))


def require_weights(algorithm: "Algorithm") -> None:
    """Require parameters of weights that fit together, and an algorithm that takes weights."""
    by_person = algorithm.budget.counts_persons
    if weighs_records(algorithm) and not algorithm.takes_weights:
        wanted = "weighted=False"
        got = "weighted=True"
        if by_person:
            wanted = "a budget with unit='record'"
            got = "unit='person'"
        raise ConfigurationError(
            f"Expected {wanted} for {type(algorithm).__name__}, whose answer is not a sum over "
            f"records. Got {got} instead."
        )
    if (algorithm.full_weight is not None) != weighs_records(algorithm):
        raise ConfigurationError(
            "Expected full_weight exactly with unit='person' or weighted=True. "
            f"Got full_weight={algorithm.full_weight}, unit={algorithm.budget.unit!r} and "
            f"weighted={algorithm.weighted}."
        )
    if algorithm.max_clients_per_person != 1 and not by_person:
        raise ConfigurationError(
            "Expected max_clients_per_person only with unit='person'. "
            f"Got {algorithm.max_clients_per_person} with unit={algorithm.budget.unit!r}."
        )
    _require_total(algorithm)


def _require_total(algorithm: "Algorithm") -> None:
    """Require the public total of the unit, and not that of another unit."""
    wanted = "n_records"
    other = "n_persons"
    what = "records"
    if algorithm.budget.counts_persons:
        wanted = "n_persons"
        other = "n_records"
        what = "persons"
    if getattr(algorithm, other) is not None:
        raise ConfigurationError(
            f"Expected {other}=None with unit={algorithm.budget.unit!r}, whose public total is "
            f"{wanted}. Got {getattr(algorithm, other)} instead."
        )
    if planned_total(algorithm) is None and algorithm.budget.is_private:
        raise ConfigurationError(
            f"{wanted} is required with a private budget: a public total number of {what}, "
            "from which noise and rounds are planned. Got None."
        )


def with_room(
    algorithm: AnyAlgorithm,
    require: Callable[[AnyAlgorithm], None],
    remade: Callable[[int], AnyAlgorithm],
) -> AnyAlgorithm:
    """Return the algorithm with the largest full weight for which a requirement holds.

    The full weight is halved, to `LEAST_WEIGHT` at least, until ``require`` raises no
    error. ``remade`` returns the algorithm with another full weight. Without weights the
    algorithm is returned as it is.
    """
    while algorithm.full_weight is not None and algorithm.full_weight > LEAST_WEIGHT:
        try:
            require(algorithm)
        except ConfigurationError:
            algorithm = remade(algorithm.full_weight // 2)
        else:
            break
    return algorithm


_LEAST_SIGNAL = 8.0
"""Least mu n_persons / (k sqrt(d)) without a warning (docs/tables/persons.md)."""


def note_on_persons(algorithm: "Algorithm") -> str | None:
    """Return a warning if a run of so few persons learns little, or ``None``."""
    budget = algorithm.budget
    n_persons = algorithm.n_persons
    if budget.epsilon is None or budget.delta is None or n_persons is None:
        return None
    mu = mu_of_budget(budget.epsilon, budget.delta) if budget.delta else budget.epsilon
    k = algorithm.n_clusters
    d = algorithm.domain.n_features
    work = k * math.sqrt(d)
    signal = mu * n_persons / work
    if signal >= _LEAST_SIGNAL:
        return None
    return (
        "WARNING: noise may hide many of the clusters, because there are few persons for them: "
        f"{signal / _LEAST_SIGNAL:.0%} of those that {k} clusters in {d} columns need at this "
        "epsilon. Take fewer clusters or columns, a larger epsilon or more persons."
    )


def note_on_shares(algorithm: "Algorithm") -> str | None:
    """Return a sentence of the plan if a person at one client counts less, or ``None``."""
    most = algorithm.max_clients_per_person
    if most == 1:
        return None
    return (
        f"A person with records at one client alone counts as 1/{most}, so sizes may be up to "
        f"{most} times too small."
    )


def in_records(words: IntArray, full_weight: int | None) -> IntArray:
    """Return the words of a sum over the full weight W, to the nearest integer.

    It is ``floor((x + W / 2) / W)``, computed without an intermediate value beyond
    int64.
    """
    if full_weight is None:
        return words
    bits = full_weight.bit_length() - 1
    half = (words >> (bits - 1)) & 1
    return (words >> bits) + half
