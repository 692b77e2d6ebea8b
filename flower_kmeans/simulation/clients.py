"""What simulated clients are made of, in this process or on a worker of a Ray cluster."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Context

from flower_kmeans.client import LoadData, OnResult
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.simulation.in_process import App

LoadMember = Callable[[Context], Identity]
MakeApp = Callable[[LoadData, OnResult, LoadMember | None], App]


@dataclass(frozen=True, repr=False)
class Own:
    """What only one client has: its records, or a Ray reference to them, and its secret key."""

    records: Any = None
    key: bytes = b""


@dataclass(frozen=True)
class Clients:
    """What all clients of a run have in common.

    Attributes
    ----------
    make : callable
        ``make(load_data, on_result, load_member)`` returns an app that answers for any client.
    load : callable, optional
        ``load(partition_id)`` returns a client's records, where they are in no `Own`.
    roster : Roster, optional
        Where keys are pinned. Slots are partition ids.
    """

    make: MakeApp
    load: Callable[[int], Any] | None = None
    roster: Roster | None = None

    def app(self, own: Mapping[int, Own], on_result: OnResult) -> App:
        """Return an app that answers for the clients of some partition ids."""

        def load_data(context: Context) -> Any:
            partition = partition_of(context)
            if self.load is not None:
                return self.load(partition)
            records = own[partition].records
            return sys.modules["ray"].get(records) if is_reference(records) else records

        if self.roster is None:
            return self.make(load_data, on_result, None)
        roster = self.roster

        def load_member(context: Context) -> Identity:
            slot = partition_of(context)
            return Identity(roster, own[slot].key, roster.keys[slot], slot)

        return self.make(load_data, on_result, load_member)


def partition_of(context: Context) -> int:
    """Return the partition id of a simulated client."""
    return int(context.node_config["partition-id"])


def is_reference(value: Any) -> bool:
    """Return whether a value is a reference to an object of a Ray cluster."""
    # Nobody has one without that module, or before another thread has imported all of it.
    kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
    return kind is not None and isinstance(value, kind)
