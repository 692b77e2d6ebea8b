"""Registry of report parts for kinds of runs, which are imported when they are needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flower_kmeans.imports import imported

if TYPE_CHECKING:
    from flower_kmeans.report.report import Report


@runtime_checkable
class ReportPart(Protocol):
    """The part of a report that a kind of run has in place of the usual one."""

    @property
    def neighbours(self) -> str:
        """The neighbours of the guarantee, in words."""

    @property
    def noise_shares(self) -> int:
        """Number M' of noise shares that make the planned noise: the fewest honest ones."""

    @property
    def noise_factor(self) -> float:
        """Ratio of the noise's standard deviation to the planned one."""

    @property
    def page(self) -> str:
        """Path of the template with the texts of a page that depend on the kind of run."""

    @property
    def trust_table(self) -> Sequence[tuple[str, ...]]:
        """Rows of a table: participants, their views, and the knowledge that they gain."""

    def statements(self, report: "Report") -> tuple[str, ...]:
        """Return the statements for all participants, in sentences."""

    def protection(self, report: "Report") -> tuple[str, ...]:
        """Return a sentence on the protection against each of `report.PARTIES`, in order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain values for JSON."""


_PATHS: dict[str, str] = {}  # by the name of the kind of run


def register_part(name: str, path: str) -> None:
    """Register the class of a kind's part by its ``module:name``."""
    _PATHS[name] = path


def part_names() -> tuple[str, ...]:
    """Return the names of all kinds whose reports have a part."""
    return tuple(_PATHS)


def part_type(name: str) -> Any:
    """Return the class of a kind's part: a dataclass that is a `ReportPart`."""
    return imported(_PATHS[name])
