"""The encoding of messages: MessagePack of structs (docs/protocol.md, section 8).

A receiver decodes strictly, encodes again and requires equal bytes. So both sides compute
with the bytes that one of them hashed, and a message has only one encoding.
"""

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError

VERSION = 3
RECORD = "kmeans"
MAX_MESSAGE = 256 * 2**20
"""Length of the longest message, in bytes. A run with longer messages is refused when planned."""
MAX_DOCUMENT = 2**20
"""Length of the longest run document, in bytes."""
MAX_SLOTS = 2**17
"""Most slots of a cohort, because a client's time and memory grow with the announced number."""
# bytes; longer messages travel as one uint8 array, which Flower sends in chunks
_IN_CONFIG = 2**20
_DATA = RECORD + ".data"
# The header is kept, because Flower takes long to check each value that is set.
_HEADER = ConfigRecord({"v": VERSION})

B16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
B32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
B48 = Annotated[bytes, msgspec.Meta(min_length=48, max_length=48)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

# The keys of mappings have a fixed order: the hash of a document must not depend on how it
# was built.
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
# Decoders are kept: making one takes ten times as long as decoding a short message with it.
_decoder = lru_cache(maxsize=32)(msgspec.msgpack.Decoder)
NOT_A_MESSAGE = "A message is malformed."


class VersionError(MessageError):
    """A message is of another version of the protocol."""


class Struct(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
):
    """Base of messages, without unknown fields, with fields in order and defaults omitted."""


def encode(value: Any) -> bytes:
    """Return the one encoding of a struct, or of a mapping or sequence of them."""
    return _ENCODER.encode(value)


def decode(data: bytes, kind: Any, read: Callable[..., Any] | None = None) -> Any:
    """Return the value of a kind that bytes encode.

    ``read(type, value)`` makes values of types that msgspec does not know.

    Raises
    ------
    MessageError
        If the bytes are too long, or not the one encoding of the value.
    """
    if len(data) > MAX_MESSAGE:
        raise MessageError(f"Expected a message of at most {MAX_MESSAGE} bytes.")
    try:
        value = _decoder(kind, dec_hook=read).decode(data)
        is_the_one = encode(value) == data
    # A TypeError comes from a mapping in a configuration with keys that are not text.
    except (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError):
        is_the_one = False
    if not is_the_one:
        raise MessageError(NOT_A_MESSAGE)
    return value


class Tagged(msgspec.Struct, frozen=True):
    """The tag of a tagged struct. A decoder of it reads nothing else."""

    tag: str = msgspec.field(name="type")


_read_tag = msgspec.msgpack.Decoder(Tagged).decode
T = TypeVar("T", bound=Struct)


def tag_of(kind: type[Struct]) -> str:
    """Return the tag of a tagged struct."""
    return str(kind.__struct_config__.tag)


class Family(Generic[T]):
    """A set of message structs, which differ in their tags.

    ``later(tag, accepted)`` returns the struct of a tag that is not among ``kinds``, or
    ``None``. ``accepted`` names the kinds of runs whose own messages are read; by default
    all.
    """

    def __init__(
        self,
        kinds: Iterable[type[T]],
        later: Callable[[str, Collection[str] | None], type[T] | None],
    ) -> None:
        self.kinds = {tag_of(kind): kind for kind in kinds}
        self._later = later

    def of_tag(self, tag: str, accepted: Collection[str] | None = None) -> type[T]:
        """Return the struct of a tag.

        Raises
        ------
        MessageError
            If there is none, or only kinds of runs have it that are not ``accepted``.
        """
        found = self.kinds.get(tag)
        if found is None:
            found = self._later(tag, accepted)
        if found is None:
            raise MessageError(NOT_A_MESSAGE)
        return found

    def type_of(self, data: bytes, accepted: Collection[str] | None = None) -> type[T]:
        """Return the struct of an encoded message.

        Raises
        ------
        MessageError
            If the message is malformed, or no struct has its tag.
        """
        try:
            tag = _read_tag(data).tag
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise MessageError(NOT_A_MESSAGE) from None
        return self.of_tag(tag, accepted)

    def decode(self, data: bytes, accepted: Collection[str] | None = None) -> T:
        """Return the message that bytes encode.

        Raises
        ------
        MessageError
            If they encode none.
        """
        message: T = decode(data, self.type_of(data, accepted))
        return message


def to_content(data: bytes) -> RecordDict:
    """Return an encoded message as Flower's records."""
    if len(data) <= _IN_CONFIG:
        record = _HEADER.copy()
        record["m"] = data
        return RecordDict({RECORD: record})
    header = ConfigRecord({"v": VERSION, "n": len(data)})
    array = Array(np.frombuffer(data, dtype=np.uint8))
    return RecordDict({RECORD: header, _DATA: ArrayRecord({"m": array})})


def from_content(content: RecordDict, limit: int = MAX_MESSAGE) -> bytes:
    """Return the encoded message in Flower's records.

    Raises
    ------
    MessageError
        If the records hold no message, or one above ``limit`` bytes. Nothing is copied then.
    VersionError
        If the message is of another version of the protocol.
    """
    # The records become a dict, because Flower's mappings are slow to look up by key.
    records = dict(content.items())
    header = records.pop(RECORD, None)
    fields = {}
    if isinstance(header, ConfigRecord):
        fields = dict(header.items())
    if "v" not in fields:
        raise MessageError(NOT_A_MESSAGE)
    version = fields.pop("v")
    # The type is compared, because isinstance would accept True as an integer.
    if type(version) is not int or version != VERSION:
        raise VersionError(f"Expected a message of version {VERSION}.")
    match list(fields.items()), list(records.items()):
        case [("m", bytes(data))], [] if len(data) <= min(limit, _IN_CONFIG):
            return data
        case [("n", int(length))], [(name, ArrayRecord() as record)] if name == _DATA:
            if type(length) is int and length <= limit and list(record) == ["m"]:
                return _from_array(record["m"], length)
    raise MessageError(NOT_A_MESSAGE)


def _from_array(array: Array, length: int) -> bytes:
    found = (array.dtype, tuple(array.shape), array.stype)
    is_array = found == ("uint8", (length,), "numpy.ndarray")
    # NumPy writes a header before the values.
    is_complete = length <= len(array.data) <= length + 1024
    if _IN_CONFIG < length <= MAX_MESSAGE and is_array and is_complete:
        with suppress(Exception):  # NumPy raises errors of many kinds
            values = array.numpy()
            if values.dtype == np.uint8 and values.shape == (length,):
                return values.tobytes()
    raise MessageError(NOT_A_MESSAGE)


Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ArrayName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,31}\\Z")]


class ArrayData(Struct, frozen=True, kw_only=True):
    """One array of a query or a result, in C order and little-endian."""

    dtype: Literal["<i8", "<f8"]
    shape: Annotated[tuple[Dimension, ...], msgspec.Meta(max_length=4)]
    data: bytes


Arrays = Annotated[dict[ArrayName, ArrayData], msgspec.Meta(max_length=64)]


def encode_arrays(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the encoding of named int64 or float64 arrays.

    Raises
    ------
    MessageError
        If an array has another dtype, a value that is not finite, or a name or shape that a
        receiver refuses.
    """
    values = {}
    for name, array in arrays.items():
        dtype: Any = array.dtype.newbyteorder("<").str
        if dtype not in ("<i8", "<f8") or not np.isfinite(array).all():
            raise MessageError(f"Expected {name!r} as int64 or finite float64.")
        data = array.astype(dtype, copy=False).tobytes()
        values[name] = ArrayData(dtype=dtype, shape=array.shape, data=data)
    data = encode(values)
    decode_arrays(data)  # raises for names and shapes that a receiver refuses
    return data


def decode_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that `encode_arrays` encoded.

    Raises
    ------
    MessageError
        If bytes encode no such arrays.
    """
    arrays = {}
    for name, value in decode(data, Arrays).items():
        if len(value.data) != 8 * math.prod(value.shape):
            raise MessageError(NOT_A_MESSAGE)
        flat = np.frombuffer(value.data, dtype=value.dtype)
        try:
            native = flat.astype(flat.dtype.newbyteorder("="))
            arrays[name] = native.reshape(value.shape)
        except ValueError:
            # The array is empty, but its shape exceeds all addresses.
            raise MessageError(NOT_A_MESSAGE) from None
        if not np.isfinite(flat).all():
            raise MessageError(NOT_A_MESSAGE)
    return arrays
