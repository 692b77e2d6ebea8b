"""Checks of ``flower-kmeans check`` for runs over columns."""

import os
import shutil
import tempfile
from pathlib import Path

from flower_kmeans.cli.checked import CheckPart
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import printable
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.vertical.costs import costs
from flower_kmeans.vertical.engine import require_tenseal
from flower_kmeans.vertical.protocol.party_rows import read_rows_key
from flower_kmeans.vertical.store import require_private


def _look(policy: ClientPolicy) -> str:
    """Compare the needs of party 0 in the smallest run with this machine."""
    identity = policy.read_identity()
    slot = policy.party if identity is None else identity.slot
    if slot is None:
        raise ConfigurationError(
            "Without a roster and without party, this node's slot, every vertical run is refused."
        )
    read_rows_key(policy)
    if slot:
        return f"Party {slot}, which needs no further package: it encrypts, and may hold a key."
    require_tenseal()
    least = costs(2, (1, 1), 1, 1, 1)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if memory < least.memory:
        raise ConfigurationError(
            f"Expected at least {least.memory:g} GB of memory. Got {memory:.2g} GB instead."
        )
    if policy.work_dir is not None:
        _require_work_dir(Path(policy.work_dir))
    place = Path(policy.work_dir or policy.state_dir or tempfile.gettempdir())
    # The node makes the directory with its first run, on the disk of the next folder
    # above.
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < least.disk:
        raise ConfigurationError(
            f"Expected at least {least.disk / 1e6:.0f} MB of free disk in {place}. "
            f"Got {free / 1e6:.0f} MB instead."
        )
    return (
        f"Party 0, which computes: tenseal works here. {memory:.3g} GB of memory, "
        f"{free / 1e9:.3g} GB free in {place}; flower-kmeans plan --strategy vertical says what a "
        "run needs."
    )


def _require_work_dir(work_dir: Path) -> None:
    """Require a private directory without links under the names of runs."""
    require_private(work_dir)
    links = [path.name for path in work_dir.glob("?" * 64) if path.is_symlink()]
    if links:
        raise ConfigurationError(
            f"Expected directories of runs in work_dir {work_dir}. Got symbolic links instead: "
            f"{', '.join(map(printable, sorted(links)[:3]))}."
        )


CHECK = CheckPart(
    _look, "Party 0 computes on encrypted columns; docs/vertical.md says what it needs."
)
