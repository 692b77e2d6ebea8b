"""Arrays as bytes: one encoding each, and nothing else is read."""

import struct

import numpy as np
import pytest
from hostile import little_memory, near_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.arrays import (
    MAX_ARRAYS,
    MAX_BYTES,
    MAX_DIMENSIONS,
    decode_arrays,
    encode_arrays,
)

MiB = 2**20
names = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
shapes = hnp.array_shapes(min_dims=0, max_dims=MAX_DIMENSIONS, min_side=0, max_side=4)
values = st.one_of(
    hnp.arrays(np.int64, shapes),
    hnp.arrays(
        np.float64, shapes, elements=st.floats(width=64, allow_nan=False, allow_infinity=False)
    ),
)


def test_the_encoding_is_the_documented_one():
    data = encode_arrays({"b": np.array([[1, -2]], dtype=np.int64), "a": np.array(0.5)})
    assert data == bytes.fromhex(
        "02000000"  # two arrays
        "01 61 01 00 000000000000e03f"  # a: float64, no dimension
        "01 62 00 02 01000000 02000000 0100000000000000 feffffffffffffff"  # b: int64, 1 x 2
    )
    assert encode_arrays({}) == bytes(4)
    assert decode_arrays(bytes(4)) == {}


@given(st.dictionaries(names, values, max_size=4))
@settings(deadline=None, max_examples=60)
def test_arrays_survive_and_have_one_encoding(arrays):
    data = encode_arrays(arrays)
    read = decode_arrays(data)
    assert list(read) == sorted(arrays)
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()  # minus zero too
        assert not read[name].flags.writeable
        assert read[name].flags.aligned
    assert encode_arrays(read) == data
    turned = {name: np.asfortranarray(array) for name, array in reversed(arrays.items())}
    assert encode_arrays({n: a.reshape(arrays[n].shape) for n, a in turned.items()}) == data


def attempt(data):
    """Return the arrays that bytes hold, or the one error that they may end in."""
    try:
        return decode_arrays(data)
    except MessageError as error:
        return error


@given(st.dictionaries(names, values, max_size=3), st.randoms(use_true_random=False), st.binary())
@settings(deadline=None, max_examples=150)
def test_bytes_are_read_or_refused(arrays, rng, data):
    honest = encode_arrays(arrays)
    for sent in (data, near_bytes(rng, honest), near_bytes(rng, near_bytes(rng, honest))):
        read = attempt(sent)
        if isinstance(read, MessageError):
            assert str(read) == "The arrays of a message are malformed."
        else:
            assert encode_arrays(read) == sent


def packed(name=b"a", code=0, shape=(1,), values=bytes(8), count=1):
    head = struct.pack(f"<IB{len(name)}sBB", count, len(name), name, code, len(shape))
    return head + struct.pack(f"<{len(shape)}I", *shape) + values


def test_the_bytes_that_others_are_made_of_are_arrays():
    assert decode_arrays(packed())["a"].tolist() == [0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(3),
        bytes(5),
        packed(count=0),
        packed(count=2),
        packed(count=2) + packed()[4:],  # the same name twice
        packed(b"b", count=2) + packed(b"a")[4:],  # not in order
        packed() + b"\0",
        packed()[:-1],
        packed(b""),
        packed(b"A"),
        packed(b"1"),
        packed(b"a-b"),
        packed(b"a\0"),
        packed("é".encode()),
        packed(b"a" * 33),
        packed(code=2),
        packed(code=255),
        packed(shape=(1,) * (MAX_DIMENSIONS + 1)),
        packed(shape=(2,)),
        packed(shape=(0,)),
        packed(code=1, values=struct.pack("<d", float("nan"))),
        packed(code=1, values=struct.pack("<d", float("inf"))),
        packed(code=1, values=struct.pack("<d", -float("inf"))),
        packed(shape=(0, 2**32 - 1), values=b""),
        packed(count=MAX_ARRAYS + 1)
        + b"".join(packed(bytes([98 + i]))[4:] for i in range(MAX_ARRAYS)),
    ],
    ids=range(26),
)
def test_other_bytes_are_refused(data):
    with pytest.raises(MessageError, match="malformed"):
        decode_arrays(data)


def test_sizes_are_compared_before_anything_is_made():
    with little_memory(MiB):
        for shape in ((2**32 - 1,) * 4, (2**23 + 1,), (2**32 - 1, 2**32 - 1), (2**20, 8)):
            with pytest.raises(MessageError):
                decode_arrays(packed(shape=shape))


def test_more_than_the_most_is_refused_on_both_sides():
    most = np.zeros((MAX_BYTES - 64) // 8, dtype=np.int64)
    data = encode_arrays({"a": most})
    assert decode_arrays(data)["a"].shape == most.shape
    with pytest.raises(MessageError, match="bytes"):
        encode_arrays({"a": most, "b": np.zeros(8)})
    with pytest.raises(MessageError):
        decode_arrays(data + bytes(MAX_BYTES + 1 - len(data)))


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"a": np.zeros(2, dtype=np.float32)}, "float32"),
        ({"a": np.zeros(2, dtype=np.int32)}, "int32"),
        ({"a": np.zeros(2, dtype=bool)}, "bool"),
        ({"a": np.array(["x"])}, "int64 or finite float64"),
        ({"a": np.array([1.0, np.nan])}, "finite"),
        ({"a": np.array([np.inf])}, "finite"),
        ({"a": np.zeros((1,) * 5)}, "dimensions"),
        ({"a": np.zeros((0, 2**40))}, "dimensions"),
        ({"A": np.zeros(2)}, "name"),
        ({"": np.zeros(2)}, "name"),
        ({"\ud800": np.zeros(2)}, "name"),
        ({f"a{i}": np.zeros(1) for i in range(MAX_ARRAYS + 1)}, "at most 16"),
    ],
)
def test_what_has_no_encoding_is_refused(arrays, match):
    with pytest.raises(MessageError, match=match):
        encode_arrays(arrays)
