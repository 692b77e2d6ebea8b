"""The simulation of runs over columns: the columns of each party, and party 0's files."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flower_kmeans.data.domain import check_records
from flower_kmeans.data.sources import as_source, checked_source
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.simulation.directories import private_directory
from flower_kmeans.simulation.parts import SimulationPart
from flower_kmeans.simulation.ray import require_one_node
from flower_kmeans.strategies import VerticalKMeans
from flower_kmeans.vertical.engine import require_tenseal


def _timeout(strategy: VerticalKMeans) -> float:
    # Steps on encrypted columns take long.
    return strategy.default_timeout


def _checked(strategy: VerticalKMeans, partitions: Sequence[Any]) -> list[Any]:
    """Return the columns of each party, (n_records, width), in one order of rows."""
    columns = strategy.domain.columns
    records = []
    first = 0
    for i, (part, width) in enumerate(zip(partitions, strategy.widths, strict=True)):
        name = f"partitions[{i}]"
        own = None
        if columns is not None:
            own = columns[first : first + width]
        checked = checked_source(part, width, own, name)
        source = as_source(checked, width, own)
        records.append(check_records(source.loaded(), width, name=name))
        first += width
    lengths = [len(part) for part in records]
    if set(lengths) != {strategy.n_records}:
        raise ConfigurationError(
            f"Expected partitions of n_records={strategy.n_records} rows each, the same "
            f"records at every party. Got {lengths} rows instead."
        )
    require_tenseal()
    return records


@contextmanager
def _placed(
    policy: ClientPolicy, strategy: VerticalKMeans, engine: str
) -> Iterator[ClientPolicy]:
    """Yield a policy with a directory for the files of party 0."""
    if engine == "ray":
        require_one_node("party 0 of VerticalKMeans keeps files")
    with private_directory() as directory:
        free = shutil.disk_usage(directory).free
        needed = strategy.costs.disk
        if free < needed:
            raise ConfigurationError(
                f"Expected {needed / 1e6:.0f} MB of free disk for the files of party 0. "
                f"Got {free / 1e6:.0f} MB in {directory.parent}."
            )
        # Further processes would run an unguarded script again, so the user must ask for
        # them.
        yield replace(policy, work_dir=str(directory), workers=policy.workers or 1)


SIMULATION = SimulationPart(_timeout, _checked, _placed)
