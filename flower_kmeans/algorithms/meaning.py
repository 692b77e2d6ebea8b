"""What the sums of a round mean: the limits that exact sums keep to, whatever the records are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flower_kmeans.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Meaning:
    """The limits that exact sums of a round keep to for any records; in grid units.

    The defaults are those of sums and counts of records, each of which counts in one
    place.
    """

    counts: str | None = "counts"
    """The block of the numbers of records by place, if there is one."""
    are_records: bool = True
    """Whether counts are numbers of records, not of clients."""
    all_count: bool = True
    """Whether every record counts somewhere, however far away it is."""
    times: float = 1.0
    """Number of places in which a record may count."""
    are_clusters: bool = True
    """Whether places are the clusters of the result, not cells or candidates."""
    public_size: int | None = None
    """Number of records of each place, where it is public and no counts are released."""
    sums: str | None = None
    """The block of sums by place, if there is one."""
    length: float = math.inf
    """The most that one record adds to a row of the sums, in l2."""
    widths: IntArray | None = None
    """The most that one record adds to each column of the sums; ``length`` by default."""
    unit: float = 1.0
    """A step of the records' grid over one of the sums."""
    offsets: bool = False
    """Whether sums are of offsets from the centroids, no longer than ``length``."""
    shares: tuple[str, ...] = ()
    """Blocks by place to which a record adds 0 to as much as to the counts."""
    totals: Mapping[str, float] | None = None
    """Blocks of one word, with the most that one record adds to them, and at least 0."""
    moments: str | None = None
    """The block of second moments, if there is one."""
    trace: float = 0.0
    """The most that one record adds to their trace."""
    tolerance: float = 0.0
    """Records by which counts may be wrong otherwise, as by errors of an encryption."""
