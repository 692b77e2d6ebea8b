"""Findings for the holder of a table: its persons, and ids that may be wrong.

Findings are facts about persons. They are for the holder's terminal and log alone. No id
is shown, and no message of a run contains any of it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from flower_kmeans.data.weights import MOST_WEIGHT

# largest fraction of all records that one id may have without a remark
_SHARE_OF_ONE = 0.01
_BLANKS = re.compile(r"\s+")
# zeros in front of a number, as in 007 and in P-007
_LEADING_ZEROS = re.compile(r"(?<![0-9.,])0+(?=[0-9])")


@dataclass
class PersonFindings:
    """Facts about the persons of a table, added up block by block.

    Attributes
    ----------
    name : str
        The name of the column with their ids.
    n_records : int
        Number of records.
    n_missing : int
        Number of records without an id. Each of them counts as one person.
    """

    name: str
    n_records: int = 0
    n_missing: int = 0
    # numbers of records by id, which must not be shown
    _counts: Counter[str] = field(default_factory=Counter, repr=False)

    def add(self, ids: Iterable[str | None]) -> None:
        """Count the records of a block by their ids as text; ``None`` is a missing id."""
        found = list(ids)
        present = [text for text in found if text is not None]
        self.n_records += len(found)
        self.n_missing += len(found) - len(present)
        self._counts.update(present)

    @property
    def n_persons(self) -> int:
        """Number of persons. A record without an id is one person."""
        return len(self._counts) + self.n_missing

    @property
    def mean(self) -> float:
        """Mean number of records of a person; 0 without records."""
        if not self.n_persons:
            return 0.0
        return self.n_records / self.n_persons

    @property
    def largest(self) -> int:
        """Largest number of records of a person."""
        least = 1 if self.n_missing else 0
        return max(self._counts.values(), default=least)

    @property
    def n_frequent(self) -> int:
        """Number of ids with so many records that they may stand for unknown persons."""
        most = max(1, min(_SHARE_OF_ONE * self.n_records, MOST_WEIGHT))
        return sum(count > most for count in self._counts.values())

    @property
    def n_alike(self) -> int:
        """Number of ids that differ from another one only in case, blanks or leading zeros."""
        alike = Counter(map(_folded, self._counts))
        return sum(count for count in alike.values() if count > 1)

    @property
    def n_lightened(self) -> int:
        """Number of persons whose records lose weight: more than half of W records."""
        return sum(2 * count > MOST_WEIGHT for count in self._counts.values())

    def summary(self) -> str:
        """Return the persons and their numbers of records in one sentence."""
        return (
            f"{_counted(self.n_persons, 'person')} by {self.name!r}: {self.mean:.1f} records each "
            f"on average, {self.largest:,} at most."
        )

    def doubts(self) -> list[str]:
        """Return sentences on ids to look at, without an id."""
        found = []
        if self.n_missing:
            records = _counted(self.n_missing, "record")
            found.append(f"{records} without an id: each counts as one person.")
        if self.n_frequent:
            ids = _counted(self.n_frequent, "id")
            found.append(
                f"{ids} with more than 1 % of all records, or more than {MOST_WEIGHT:,}: such an "
                "id may stand for unknown persons, and counts as one person."
            )
        if self.n_alike:
            ids = _counted(self.n_alike, "id")
            found.append(
                f"{ids} differing from another one only in case, blanks or leading zeros: each "
                "counts as another person."
            )
        if self.n_lightened:
            persons = _counted(self.n_lightened, "person")
            found.append(
                f"{persons} with more than {MOST_WEIGHT // 2:,} records: up to half of their "
                f"weight is lost, and records after the first {MOST_WEIGHT:,} do not count."
            )
        return found


def _folded(text: str) -> str:
    """Return an id without case, blanks and leading zeros."""
    return _LEADING_ZEROS.sub("", _BLANKS.sub("", text.casefold()))


def _counted(number: int, noun: str) -> str:
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"
