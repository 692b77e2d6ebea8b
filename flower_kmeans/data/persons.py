"""Weights of persons: those of one person's records add up to W at most.

A weight depends on the number and order of the person's own usable records alone: not on
other persons, on values, or on the division of records into blocks (docs/guarantees,
Theorem 46). Ids are compared by keyed hashes, because a Python object for each person
would take most of a client's memory. Nothing here leaves the client.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import BoolArray, IntArray
from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.kept import Results

SECRET_BYTES = 32
"""Length of a secret for `keys_of` that only one party uses, once."""

_KEY_BYTES = 16
"""Two persons with one key would share their weight. With 2^-128 this does not happen."""
_KEYS = np.dtype(f"S{_KEY_BYTES}")
_AT_ONCE = 2**16  # ids that are hashed together
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NO_TRUTH = ("NAType", "NaTType")  # of pandas, whose comparisons have no truth value

KeyArray = NDArray[np.bytes_] | IntArray
"""Keys of ids, (n,): hashes with 16 bytes each, or numbers of persons from 0 on."""


class PersonKeys(NamedTuple):
    """Keys of the ids of records, in their order."""

    keys: KeyArray
    """One for each record, (n,); any key for a missing id."""
    is_missing: BoolArray
    """Whether the id of a record is missing, (n,)."""


class KnownPersons:
    """The persons of a simulated client, whose ids and records stay the same for a run.

    Parameters
    ----------
    persons : PersonKeys
        Of the records, in their order.

    Attributes
    ----------
    results : Results
        The client's records with their weights, which are computed once for all rounds.
        A pickled copy, for example for a worker of a cluster, has none.
    """

    def __init__(self, persons: "PersonKeys") -> None:
        self.persons = persons
        self.results = Results[Any](most=1)

    def __len__(self) -> int:
        return len(self.persons.keys)

    def __reduce__(self) -> tuple[type["KnownPersons"], tuple["PersonKeys"]]:
        return type(self), (self.persons,)


class PersonCounts(NamedTuple):
    """Numbers of usable records by person, 24 bytes for each."""

    keys: KeyArray
    """Distinct keys in ascending order, (p,)."""
    counts: IntArray
    """Number of records with each key, (p,)."""


# ------------------------------------------------------------------------------- ids


def keys_of(ids: Any, secret: bytes) -> PersonKeys:
    """Return the keys of ids.

    Parameters
    ----------
    ids : iterable of hashable, or KnownPersons
        One id for each record. The id of a person is its text, without blanks around
        it. Floats with integral values are read as integers. ``None``, NaN, NaT, empty
        text and missing values of pandas and pyarrow are missing ids.
    secret : bytes
        Secret key of the hash, 32 bytes.

    Raises
    ------
    ConfigurationTypeError, DataError
        If these are not ids, or an id is a float that has lost digits.
    """
    if isinstance(ids, KnownPersons):
        return ids.persons
    rest = _iterated(ids)
    digests = []
    missing = []
    while True:
        texts = [text_of(one) for one in islice(rest, _AT_ONCE)]
        if not texts:
            break
        missing.append(np.array([text is None for text in texts], dtype=bool))
        hashed = b"".join(_digest(text or "", secret) for text in texts)
        digests.append(np.frombuffer(hashed, dtype=_KEYS))
    if not digests:
        return PersonKeys(np.empty(0, dtype=_KEYS), np.empty(0, dtype=bool))
    return PersonKeys(np.concatenate(digests), np.concatenate(missing))


def known(ids: Any, secret: bytes) -> KnownPersons:
    """Return the persons of a simulated client, whose keys are numbers.

    Parameters and errors are those of `keys_of`.
    """
    is_missing: BoolArray
    if type(ids) is np.ndarray and ids.ndim == 1 and ids.dtype.kind in "iu":
        keys = ids  # integers are ids as they are
        is_missing = np.zeros(len(ids), dtype=bool)
    else:
        keys, is_missing = keys_of(ids, secret)
    _, numbers = np.unique(keys, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    return KnownPersons(PersonKeys(numbers, is_missing))


def _digest(text: str, secret: bytes) -> bytes:
    # "surrogatepass", because text of files may hold lone surrogates.
    data = text.encode(errors="surrogatepass")
    return hashlib.blake2b(data, key=secret, digest_size=_KEY_BYTES).digest()


def _iterated(ids: Any) -> Iterator[Any]:
    """Return an iterator over ids, or raise for an object that has no order of ids."""
    if hasattr(ids, "to_pylist"):  # an array of pyarrow, whose scalars are objects
        return iter(ids.to_pylist())
    has_order = isinstance(ids, Iterable) and not isinstance(
        ids, str | bytes | Mapping | AbstractSet
    )
    if not has_order or hasattr(ids, "columns") or getattr(ids, "ndim", 1) != 1:
        raise ConfigurationTypeError(
            "Expected ids as a list or one column, with one id for each record. "
            f"Got {type(ids).__name__}."
        )
    return iter(ids)


def text_of(one: Any) -> str | None:
    """Return the text of an id, or ``None`` if it is missing."""
    if type(one).__module__.partition(".")[0] == "pyarrow" and hasattr(one, "as_py"):
        one = one.as_py()
    if isinstance(one, bytes | bytearray | memoryview):
        one = bytes(one).decode(errors="surrogateescape")
    if isinstance(one, str):
        return one.strip() or None
    if one is None or one is np.ma.masked or type(one).__name__ in _NO_TRUTH:
        return None
    if isinstance(one, float | np.floating):
        return _text_of_float(one)
    if isinstance(one, Decimal):
        return _text_of_decimal(one)
    if isinstance(one, tuple):
        # With the lengths, texts of other parts cannot be the same.
        parts = [text_of(each) or "" for each in one]
        return "".join(f"{len(part)}:{part}," for part in parts) or None
    if isinstance(one, np.timedelta64):  # a NumPy integer that may be missing
        return None if np.isnat(one) else str(one)
    if isinstance(one, int | np.integer):
        return str(one)
    text = _own_text(one)
    if _is_unequal_to_itself(one):
        return None
    return text.strip() or None


def _text_of_decimal(one: Decimal) -> str | None:
    if one.is_nan():
        return None
    if one == one.to_integral_value():
        return str(int(one))
    return str(one.normalize())


def _text_of_float(one: Any) -> str | None:
    if one != one:  # NaN
        return None
    if not one.is_integer():
        return str(one)
    digits = np.finfo(type(one)).nmant + 1
    if abs(one) >= 2.0**digits:
        raise DataError(
            f"Expected ids as text or integers. Got a float of at least 2^{digits}, which has "
            "lost digits: two persons could have become one."
        )
    return str(int(one))


def _own_text(one: Any) -> str:
    """Return the text of an object that is an id: hashable, with a text that shows its value.

    The text of some objects is the address of their memory. Each of a person's records
    would then be a person.
    """
    kind = type(one)
    defined = {name for holder in kind.__mro__[:-1] for name in vars(holder)}
    has_text = not defined.isdisjoint({"__str__", "__repr__"})
    is_id = kind.__hash__ is not None and has_text
    text = ""
    if is_id:
        text = str(one)
    if not is_id or _ADDRESS.search(text):
        raise ConfigurationTypeError(
            "Expected ids as text, numbers or other values that can be compared. "
            f"Got {kind.__name__}."
        )
    return text


def _is_unequal_to_itself(one: Any) -> bool:
    """Return whether an object is a missing value, such as NaT of NumPy."""
    try:
        return bool(one != one)
    except Exception:  # an object of the loader may raise anything
        return False


# ----------------------------------------------------------------------------- counts


def counts_of(persons: PersonKeys, usable: BoolArray) -> PersonCounts:
    """Return the numbers of usable records by person, without those of missing ids."""
    is_counted = usable & ~persons.is_missing
    if persons.keys.dtype == np.int64:  # numbers of persons
        by_number = np.bincount(persons.keys[is_counted]).astype(np.int64)
        return PersonCounts(np.arange(len(by_number)), by_number)
    counted: NDArray[Any] = persons.keys[is_counted]
    keys, counts = np.unique(counted, return_counts=True)
    return PersonCounts(keys, counts.astype(np.int64))


def merged(parts: Iterable[PersonCounts]) -> PersonCounts:
    """Return the sum of counts."""
    found = list(parts)
    if not found:
        return PersonCounts(np.empty(0, dtype=_KEYS), np.zeros(0, dtype=np.int64))
    keys, places = np.unique(
        np.concatenate([each.keys for each in found]), return_inverse=True
    )
    counts = np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, places.reshape(-1), np.concatenate([e.counts for e in found]))
    return PersonCounts(keys, counts)


class Tally:
    """A sum of counts, one part after the other.

    Parts are merged only when they are as long as the sum, so that many small parts
    take no more time than few large ones.
    """

    def __init__(self) -> None:
        self._total = merged([])
        self._waiting: list[PersonCounts] = []
        self._n_waiting = 0

    def add(self, counts: PersonCounts) -> None:
        """Add counts."""
        self._waiting.append(counts)
        self._n_waiting += len(counts.keys)
        if self._n_waiting > len(self._total.keys):
            self.total()

    def total(self) -> PersonCounts:
        """Return the sum of all counts so far."""
        self._total = merged([self._total, *self._waiting])
        self._waiting = []
        self._n_waiting = 0
        return self._total


def above(counts: PersonCounts, room: int) -> PersonCounts:
    """Return the counts of the persons with more than ``room`` records."""
    heavy = counts.counts > room
    return PersonCounts(counts.keys[heavy], counts.counts[heavy])


def count_at(counts: PersonCounts, keys: KeyArray) -> IntArray:
    """Return the count of each key, (n,); 0 of a key that has none."""
    if not len(counts.keys):
        return np.zeros(len(keys), dtype=np.int64)
    if keys.dtype == np.int64:  # numbers of persons
        places = keys
    else:
        places = np.searchsorted(counts.keys, keys)
    places = np.minimum(places, len(counts.keys) - 1)
    is_there = counts.keys[places] == keys
    return np.where(is_there, counts.counts[places], 0)


# ---------------------------------------------------------------------------- weights


def room_of(full_weight: int, n_clients: int) -> int:
    """Return the most that the records of a person weigh at one client.

    ``full_weight`` is W, and ``n_clients`` the most clients g with records of a person.
    """
    return full_weight // n_clients


def person_weights(
    persons: PersonKeys,
    usable: BoolArray,
    totals: PersonCounts,
    before: PersonCounts,
    room: int,
) -> IntArray:
    """Return the weights of the records of a block, (n,) int64.

    Each of a person's c usable records weighs ``floor(room / c)``. If that is 0, the
    first ``room`` of them weigh 1, and the others 0. A record without an id is one
    person. Null records weigh 0.

    Parameters
    ----------
    persons : PersonKeys
        Of the records of the block.
    usable : ndarray of bool, shape (n,)
        Whether a record is not a null record.
    totals : PersonCounts
        Of all records of the client.
    before : PersonCounts
        Of the records in earlier blocks, at least for the persons above ``room``.
    room : int
        Most that the records of a person weigh at this client.
    """
    counts = np.where(persons.is_missing, 1, count_at(totals, persons.keys))
    weights = room // np.maximum(counts, 1)
    heavy = np.flatnonzero(usable & (counts > room))
    if len(heavy):
        keys = persons.keys[heavy]
        ranks = count_at(before, keys) + _ranks(keys)
        weights[heavy] = ranks < room
    weights[~usable] = 0
    return weights


def _ranks(keys: KeyArray) -> IntArray:
    """Return how many earlier keys equal each key, (n,)."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    places = np.arange(len(keys))
    starts = np.maximum.accumulate(np.where(is_first, places, 0))
    ranks = np.empty(len(keys), dtype=np.int64)
    ranks[order] = places - starts
    return ranks
