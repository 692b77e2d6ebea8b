"""Meaning of a round's sums: the limits that exact sums keep for any records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flower_kmeans.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Meaning:
    """The limits that the exact sums of a round keep for any records, in grid units.

    A *place* is a cluster, a cell or a candidate. The defaults are for sums and counts
    of records, each of which counts in one place.
    """

    counts: str | None = "counts"
    """Name of the block with the number of records in each place, if there is one."""
    are_records: bool = True
    """Whether counts are numbers of records. Otherwise they are numbers of clients."""
    all_count: bool = True
    """Whether every record counts, even if it is far from all places."""
    times: float = 1.0
    """Number of places in which a record may count."""
    are_clusters: bool = True
    """Whether places are the clusters of the result."""
    public_size: int | None = None
    """Number of records in each place, if it is public and no counts are released."""
    sums: str | None = None
    """Name of the block of sums by place, if there is one."""
    length: float = math.inf
    """Largest l2 norm that one record adds to a row of the sums."""
    widths: IntArray | None = None
    """Largest number that one record adds to each column of the sums. Default: ``length``."""
    unit: float = 1.0
    """Factor from the grid of the sums to the grid of the records."""
    offsets: bool = False
    """Whether sums are sums of offsets from the centroids, of at most ``length``."""
    shares: tuple[str, ...] = ()
    """Names of blocks by place to which a record adds a number between 0 and its count."""
    totals: Mapping[str, float] | None = None
    """Largest number that one record adds to blocks of one word, by name. The least is 0."""
    moments: str | None = None
    """Name of the block of second moments, if there is one."""
    trace: float = 0.0
    """Largest number that one record adds to the trace of the moments."""
    products: str | None = None
    """Name of the block of products of columns with groups of columns, if there is one."""
    product: float = 0.0
    """Largest l2 norm that one record adds to the products."""
    tolerance: float = 0.0
    """Other errors of a count, in records, such as those of an encryption."""
