"""The body of the run documents of runs over columns (docs/protocol.md, section 13)."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from flower_kmeans.data.domain import keeps_categories
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.kinds import Body
from flower_kmeans.protocol.run import Config, Run
from flower_kmeans.protocol.wire import Count, Struct

MAX_PARTIES = 64
MAX_VALUES = 1_000
"""Most values that a round opens: 197 MB, one parcel."""


class Vertical(Struct, Body, tag="vertical", frozen=True, kw_only=True):
    """A run over parties that hold different columns of the same records."""

    algorithm: Config
    domain: Config
    # number of columns of each party, by slot
    widths: Annotated[
        tuple[Count, ...], msgspec.Meta(min_length=2, max_length=MAX_PARTIES)
    ]
    check_ids: bool = False  # whether party 0 compares the others' row ids with its own

    @property
    def n_noisy(self) -> int:
        """Number of parties that add noise: party 0 and the key holders."""
        return 1 + int(self.algorithm["key_holders"])

    def fewest_noisy(self, min_clients: int) -> int:
        """Return the number of parties that add noise, because none of them can be missing."""
        return self.n_noisy

    def places(self, slot: int) -> slice:
        """Return the slice of the domain's columns that a slot holds."""
        start = sum(self.widths[:slot])
        return slice(start, start + self.widths[slot])


def body_of(run: Run) -> Vertical:
    """Return the body of a run over columns.

    Raises
    ------
    MessageError
        If the run is of another kind.
    """
    body = run.document.body
    if not isinstance(body, Vertical):
        raise MessageError("Expected the document of a vertical run.")
    return body


def requirements(run: Run) -> Iterator[tuple[bool, str]]:
    """Yield (holds, text) for each requirement on a document's fields."""
    document = run.document
    body = body_of(run)
    n = len(body.widths)
    d = run.algorithm.domain.n_features
    yield sum(body.widths) == d, f"Expected widths that add up to {d} columns."
    fits = keeps_categories(run.algorithm.domain, body.widths)
    yield fits, "Expected parties that hold all columns of a category, or none."
    fits = n == document.min_clients == body.algorithm["n_parties"]
    yield fits, f"Expected {n} parties in widths, min_clients and the algorithm."
    yield (
        document.max_colluders < body.n_noisy,
        f"Expected max_colluders below {body.n_noisy}, the parties that add noise.",
    )
    yield (
        (document.max_attempts, document.epoch) == (1, 0),
        "Expected one attempt, because no party of a vertical run can be missing.",
    )
    yield (
        document.words[0] <= MAX_VALUES,
        f"Expected at most {MAX_VALUES} values in a round.",
    )
