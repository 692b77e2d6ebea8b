"""Clients with a few uniform records, and FastLloyd over them: what the suites on load share."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.client import ClientResult
from flower_kmeans.strategies import FastLloyd, RoundInfo


@dataclass(frozen=True)
class Size:
    """The numbers that a run's cost depends on; ``records`` are those of each client."""

    clients: int
    clusters: int = 15
    columns: int = 2
    records: int = 20
    rounds: int = 7

    @property
    def reply(self) -> int:
        """Bytes of the numbers in a reply of FastLloyd: sums, counts and the checksum."""
        return 8 * (self.clusters * (self.columns + 1) + 1)

    def box(self) -> Box:
        """Return the domain."""
        return Box(np.full(self.columns, -1.0), np.full(self.columns, 1.0))

    def load(self, context: Context) -> NDArray[np.float64]:
        """Return a client's records (records, columns)."""
        source = np.random.default_rng(int(context.node_config["partition-id"]))
        return source.uniform(-1, 1, (self.records, self.columns))

    def fastlloyd(
        self,
        keys: str,
        on_round: Callable[[RoundInfo], None],
        trust: str = "oblivious-server",
    ) -> FastLloyd:
        """Return the private strategy."""
        return FastLloyd(
            self.clusters,
            self.box(),
            PrivacyBudget(1.0),
            n_records=self.clients * self.records,
            n_clients=self.clients,
            n_rounds=self.rounds,
            relocation=False,  # whose replies are those of all Lloyd algorithms
            trust=trust,
            keys=keys,  # type: ignore[arg-type]
            on_round=on_round,
        )


def numbers(shape: str) -> tuple[int, int]:
    """Return clusters and columns of a shape such as "15x2"."""
    clusters, columns = map(int, shape.split("x"))
    return clusters, columns


def forget(result: ClientResult, context: Context) -> None:
    """Let a client's result go."""
