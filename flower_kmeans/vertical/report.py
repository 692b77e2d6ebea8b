"""The report of a vertical run: views of the parties, and the basis of the guarantee.

Its texts are those of docs/threat-model.md, "Vertical runs", for the parties of the run.
"""

import math
from dataclasses import dataclass
from typing import Any

from flower_kmeans.report.report import Report
from flower_kmeans.templates import lines_of


@dataclass
class VerticalReport:
    """The parties of a vertical run, and their messages."""

    columns: tuple[tuple[str, ...], ...]  # column names of each party, by slot
    key_holders: int  # number H of key holders, in slots 1 to H
    # number t of party 0 and the key holders that may pool their noise
    max_colluders: int
    keys: str  # "roster" or "relayed"
    rho: float  # largest norm of a record's memberships
    soft: float  # the part of ``rho`` that is proved
    # whether party 0 compared row ids before keys and columns travelled
    check_ids: bool
    n_values: int  # number of values that the key holders open in the run
    # most bits that one opened word reveals to a party 0 that breaks the protocol
    bits: float
    sent_bytes: int = 0  # bytes of parcels that parties sent
    delivered_bytes: int = 0  # bytes of parcels that were delivered
    software: tuple[str, ...] = ()  # versions that each party stated, by slot

    @property
    def n_parties(self) -> int:
        """Number N of parties."""
        return len(self.columns)

    @property
    def noise_shares(self) -> int:
        """Number H + 1 - t of noise shares that make the planned noise."""
        return self.key_holders + 1 - self.max_colluders

    @property
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one."""
        return math.sqrt((self.key_holders + 1) / self.noise_shares)

    @property
    def holders(self) -> str:
        """The key holders in words."""
        return _parties(1, self.key_holders)

    @property
    def encrypting(self) -> str:
        """The parties that only encrypt, in words; empty if there are none."""
        return _parties(self.key_holders + 1, self.n_parties - 1)

    @property
    def neighbours(self) -> str:
        """The neighbours of the guarantee, in words."""
        return "one record replaced by another; n_records is public"

    @property
    def page(self) -> str:
        """Path of the template with the texts of a page that depend on the kind of run."""
        return "vertical/page.html.j2"

    def statements(self, report: Report) -> tuple[str, ...]:
        """Return the statements for all parties, in sentences."""
        return lines_of("vertical/statements.txt.j2", report=report, run=self)

    def protection(self, report: Report) -> tuple[str, ...]:
        """Return a sentence on the protection against each of `report.PARTIES`, in order."""
        return lines_of("vertical/protection.txt.j2", run=self)

    @property
    def trust_table(self) -> tuple[tuple[str, ...], ...]:
        """Rows of a table: parties, their views, and the knowledge that they gain."""
        lines = lines_of("vertical/parties.txt.j2", run=self)
        return tuple(tuple(line.split("|")) for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain values for JSON."""
        keys = ("who", "sees", "learns")
        rows = [dict(zip(keys, row, strict=True)) for row in self.trust_table]
        return {
            **vars(self),
            "columns": [list(names) for names in self.columns],
            "software": list(self.software),
            "n_parties": self.n_parties,
            "measured": self.rho - self.soft,
            "trust_table": rows,
        }


def _parties(first: int, last: int) -> str:
    numbers = [str(slot) for slot in range(first, last + 1)]
    if len(numbers) < 2:
        return "".join(f"party {number}" for number in numbers)
    return f"parties {', '.join(numbers[:-1])} and {numbers[-1]}"
