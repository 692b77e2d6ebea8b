"""One encoding for every message: typed fields, exact checks, no second way to say the same.

`Encoded` turns a frozen dataclass into a ``ConfigRecord`` and back. What comes in is checked field
by field, and whatever is wrong ends in one ``MessageError`` with a fixed text.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple, Self

from flwr.app import ConfigRecord

from flower_kmeans.canonical import MAX_BYTES
from flower_kmeans.errors import MessageError
from flower_kmeans.federation.arrays import MAX_BYTES as MAX_ARRAY_BYTES
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.document import VersionError

MESSAGE_VERSION = 1
MALFORMED = "A message is malformed."

# Whether one field of a record has the right type and size.
Check = Callable[[Any], bool]


def sized(size: int) -> Check:
    """Return a check for bytes of one length."""
    return lambda value: type(value) is bytes and len(value) == size


def integer(low: int, high: int) -> Check:
    """Return a check for an integer in ``[low, high]``; a bool is none."""
    return lambda value: type(value) is int and low <= value <= high


def list_of(check: Check, most: int = 2**31 - 1) -> Check:
    """Return a check for a list of 1 to ``most`` items that pass a check."""
    return lambda value: type(value) is list and 1 <= len(value) <= most and all(map(check, value))


def is_bytes(value: Any) -> bool:
    """Return whether the value is bytes, at least one."""
    return type(value) is bytes and bool(value)


def is_document(value: Any) -> bool:
    """Return whether the value may be a run document."""
    return is_bytes(value) and len(value) <= MAX_BYTES


def is_arrays(value: Any) -> bool:
    """Return whether the value may be the encoding of arrays."""
    return is_bytes(value) and len(value) <= MAX_ARRAY_BYTES


def is_words(value: Any) -> bool:
    """Return whether the value is bytes of whole words, at least one."""
    return is_bytes(value) and len(value) % 8 == 0


def is_bool(value: Any) -> bool:
    """Return whether the value is a bool."""
    return type(value) is bool


def is_true(value: Any) -> bool:
    """Return whether the value is True: a flag that is not set is not sent."""
    return value is True


# What a server must hear from every client, although there is an obvious value.
_ALWAYS_SENT = frozenset({"versions"})

# Flower's records know lists and plain integers; messages are frozen and know codes by name.
_CONVERSIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "code": (int, Code),
    "entries": (list, tuple),
    "envelopes": (list, tuple),
    "pubs": (list, tuple),
    "versions": (list, tuple),
}


class _Field(NamedTuple):
    name: str
    default: Any
    check: Check
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None


class Encoded:
    """Conversion to and from a record, driven by the fields and checks of the subclass."""

    KIND: ClassVar[str]
    CHECKS: ClassVar[Mapping[str, Check]]
    CONSTANTS: ClassVar[Mapping[str, int]] = {}
    _cached: ClassVar[tuple[_Field, ...]]

    def to_record(self) -> ConfigRecord:
        """Return the message as a record. Nothing is checked: the sender made it."""
        values: dict[str, Any] = {"v": MESSAGE_VERSION, "kind": self.KIND, **self.CONSTANTS}
        for name, default, _, encode, _ in self._table():
            value = getattr(self, name)
            if value != default:
                values[name] = value if encode is None else encode(value)
        return ConfigRecord(values)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a message of this class from a record.

        Raises
        ------
        VersionError
            If the record is of another version.
        MessageError
            If the record is of another kind, or anything in it is not as the protocol says.
        """
        values = dict(record)
        require_version(values.pop("v", None))
        kind = values.pop("kind", None)
        if type(kind) is not str or kind != cls.KIND:
            raise MessageError(MALFORMED)
        for name, constant in cls.CONSTANTS.items():
            value = values.pop(name, None)
            if type(value) is not int or value != constant:
                raise MessageError(MALFORMED)
        found = {}
        for name, default, check, _, decode in cls._table():
            value = values.pop(name, MISSING)
            if value is MISSING:
                if default is MISSING:
                    raise MessageError(MALFORMED)
            elif not check(value):
                raise MessageError(MALFORMED)
            else:
                found[name] = value if decode is None else decode(value)
        if values:
            raise MessageError(MALFORMED)
        message = cls(**found)
        if not message._is_consistent():
            raise MessageError(MALFORMED)
        return message

    def _is_consistent(self) -> bool:
        """Return whether fields fit each other; called on what was received."""
        return True

    @classmethod
    def _table(cls) -> tuple[_Field, ...]:
        """Return the fields with their checks and conversions, worked out once per class."""
        if "_cached" not in cls.__dict__:
            cls._cached = tuple(
                _Field(
                    field.name,
                    MISSING if field.name in _ALWAYS_SENT else field.default,
                    cls.CHECKS[field.name],
                    *_CONVERSIONS.get(field.name, (None, None)),
                )
                for field in fields(cls)  # type: ignore[arg-type]
            )
        return cls._cached


def require_version(version: Any) -> None:
    """Raise unless a record's version is the one that this code speaks."""
    if type(version) is not int:
        raise MessageError(MALFORMED)
    if version != MESSAGE_VERSION:
        raise VersionError("A message is of another version of the protocol.")
