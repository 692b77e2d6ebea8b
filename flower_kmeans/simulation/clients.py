"""Simulated clients, in this process or on a worker of a Ray cluster."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import Context

from flower_kmeans.client import LoadData, LoadIds, LoadWeights, OnResult
from flower_kmeans.data.domain import Domain
from flower_kmeans.data.sources import RecordsLike, has_a_record
from flower_kmeans.errors import DataError, KMeansError
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.protocol.shared import SharedWork
from flower_kmeans.simulation.in_process import App

LoadMember = Callable[[Context], Identity]
Check = Callable[[int, Callable[[], Any]], KMeansError | None]


class Loading(NamedTuple):
    """Functions of a context that return the data of its client."""

    data: LoadData
    """Returns the records."""
    ids: LoadIds | None = None
    """Returns the ids of the records' persons, with ``unit="person"``."""
    weights: LoadWeights | None = None
    """Returns the weights of the records, in weighted runs."""


MakeApp = Callable[[SharedWork, Loading, OnResult, LoadMember | None], App]


@dataclass(frozen=True, repr=False)
class Own:
    """One client's records, ids and weights, or Ray references to them, and its secret key."""

    records: Any = None
    key: bytes = b""
    persons: Any = None
    weights: Any = None


@dataclass(frozen=True)
class Clients:
    """The common part of all clients of a run.

    Attributes
    ----------
    make : callable
        ``make(shared, loading, on_result, load_member)`` returns an app that answers for
        any client.
    load : callable, optional
        ``load(partition_id)`` returns a client's records, if no `Own` has them.
    roster : Roster, optional
        Roster of the run, if keys are pinned. Slots are partition ids.
    has_persons : bool
        Whether each `Own` has ids of persons.
    has_weights : bool
        Whether each `Own` has weights.
    shared : SharedWork
        Results that one client computes for all. They are not sent to other processes.
    """

    make: MakeApp
    load: Callable[[int], Any] | None = None
    roster: Roster | None = None
    has_persons: bool = False
    has_weights: bool = False
    shared: SharedWork = field(default_factory=SharedWork)

    def records_of(self, partition: int, own: Own) -> Any:
        """Return the records of a client, wherever they are."""
        if self.load is not None:
            return self.load(partition)
        return _value(own.records)

    def app(self, own: Mapping[int, Own], on_result: OnResult) -> App:
        """Return an app that answers for the clients of some partition ids."""

        def load_data(context: Context) -> Any:
            partition = partition_of(context)
            return self.records_of(partition, own.get(partition, Own()))

        def load_ids(context: Context) -> Any:
            return _value(own[partition_of(context)].persons)

        def load_weights(context: Context) -> Any:
            return _value(own[partition_of(context)].weights)

        loading = Loading(
            load_data,
            load_ids if self.has_persons else None,
            load_weights if self.has_weights else None,
        )
        if self.roster is None:
            return self.make(self.shared, loading, on_result, None)
        roster = self.roster

        def load_member(context: Context) -> Identity:
            slot = partition_of(context)
            return Identity(roster, own[slot].key, roster.keys[slot], slot)

        return self.make(self.shared, loading, on_result, load_member)


@dataclass(frozen=True)
class Unusable:
    """A check of a client's records, whose result only a simulation may report.

    A node must not reveal that none of its records counts. A simulation holds all records.
    """

    domain: Domain

    def __call__(
        self, partition: int, load: Callable[[], RecordsLike]
    ) -> KMeansError | None:
        """Return an error about the records that a function returns, or ``None``."""
        try:
            domain = self.domain
            known = domain.n_features, domain.columns
            if has_a_record(load(), *known, domain.counted):
                return None
        except KMeansError as error:
            return type(error)(
                f"The records of partition {partition} cannot be used. {error}"
            )
        except Exception:
            # The user's function failed, so its client refuses, as in a deployment.
            return None
        return DataError(
            f"Expected a record of finite numbers in partition {partition}. Got none: all of its "
            "records are malformed or null, and a run would count nothing."
        )


def _value(held: Any) -> Any:
    """Return data of a client, also where it is a reference."""
    if is_reference(held):
        return sys.modules["ray"].get(held)
    return held


def partition_of(context: Context) -> int:
    """Return the partition id of a simulated client."""
    return int(context.node_config["partition-id"])


def is_reference(value: Any) -> bool:
    """Return whether a value is a reference to an object of a Ray cluster."""
    # References exist only after the module was imported completely.
    kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
    return kind is not None and isinstance(value, kind)
