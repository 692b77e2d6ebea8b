"""Integer weights of a client's records: of persons, by a public rule, or both.

The weights of the records of one unit of privacy add up to the full weight W at most
(docs/guarantees, Theorems 46 and 47). They are private: only their upper bound W is
public.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.persons import (
    PersonCounts,
    PersonKeys,
    above,
    merged,
    person_weights,
)
from flower_kmeans.data.records import as_numbers
from flower_kmeans.errors import DataError

MOST_WEIGHT = 2**12
"""Largest full weight W. Persons with up to 64 records lose less than 2 % of theirs."""
LEAST_WEIGHT = 2**6
"""Smallest full weight W. Below it, persons with few records would lose much of theirs."""


_WEIGHT_STEPS = 2.0**40
"""Steps of a weight in [0, 1]. Its products with integers up to 2^12 are exact in float64."""


class WeightCounts(NamedTuple):
    """Numbers of a client's records that weights changed. They stay with the client."""

    n_missing: int = 0
    """Records without an id: each is one person."""
    n_heavy: int = 0
    """Persons with more records than their weight can be divided among."""
    n_left_out: int = 0
    """Records of these persons that do not count."""
    n_vanished: int = 0
    """Records with a weight by the public rule above 0 that is too small to count."""


@dataclass(frozen=True)
class Weighing:
    """The public rule by which the records of every client of a run are weighed.

    Attributes
    ----------
    full_weight : int
        W: what the records of one person weigh together at most, or one record.
    max_clients_per_person : int or None
        The most clients g with records of one person. ``None`` if records are weighed
        without persons.
    has_weights : bool
        Whether each record also has a weight in [0, 1] by a public rule.
    """

    full_weight: int
    max_clients_per_person: int | None = None
    has_weights: bool = False

    @property
    def counts_persons(self) -> bool:
        """Whether records are weighed by persons, so that ids are needed."""
        return self.max_clients_per_person is not None

    @property
    def room(self) -> int:
        """Most that the records of a person, or one record, weigh at one client."""
        return self.full_weight // (self.max_clients_per_person or 1)

    def of_block(
        self,
        usable: BoolArray,
        persons: PersonKeys | None,
        totals: PersonCounts,
        before: PersonCounts,
        own: FloatArray | None,
    ) -> IntArray:
        """Return the weights of the records of a block, (n,) int64.

        Null records, where ``usable`` is false, weigh 0. ``own`` are the weights by the
        public rule, (n,). See `person_weights` for the other parameters.
        """
        if persons is None:
            found = np.where(usable, self.full_weight, 0)
        else:
            found = person_weights(persons, usable, totals, before, self.room)
        if own is not None:
            # `checked_weights` has so few bits that the product is exact.
            found = np.floor(own * found).astype(np.int64)
        return found

    def counts(self, n_missing: int, totals: PersonCounts) -> WeightCounts:
        """Return the numbers of records that weights change, for the client's log."""
        heavy = above(totals, self.room).counts
        n_left_out = int(heavy.sum()) - self.room * len(heavy)
        return WeightCounts(n_missing, len(heavy), n_left_out)


NO_PERSONS = merged([])
"""Counts of no persons."""


def checked_weights(weights: Any, name: str = "weights") -> FloatArray:
    """Return weights of records as floats, (n,), rounded down to multiples of 2^-40.

    Raises
    ------
    ConfigurationTypeError, DataError
        If they are not one-dimensional numbers in [0, 1]. The error has no value of a
        record.
    """
    found = np.asarray(as_numbers(weights, name), dtype=np.float64)
    if found.ndim != 1:
        raise DataError(
            f"Expected {name} in one dimension, one for each record. "
            f"Got shape {found.shape} instead."
        )
    # A comparison with NaN is false, so NaN is refused too.
    n_outside = int(np.count_nonzero(~((found >= 0) & (found <= 1))))
    if n_outside:
        raise DataError(
            f"Expected {name} in [0, 1]. Got {n_outside} of {len(found)} outside, or NaN."
        )
    return np.floor(found * _WEIGHT_STEPS) / _WEIGHT_STEPS


def require_one_each(name: str, n_found: int, n_records: int) -> None:
    """Require as many ids or weights as records, null records included."""
    if n_found != n_records:
        raise DataError(
            f"Expected {name} for each record, in the same order. "
            f"Got {n_found} for {n_records} records."
        )
