"""One encoding of everything that travels, and every other one is refused."""

import math
import struct
import tracemalloc

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from malformed import bombs, near_bytes

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import wire
from flower_kmeans.protocol.wire import (
    MAX_MESSAGE,
    Arrays,
    VersionError,
    decode,
    decode_arrays,
    encode,
    encode_arrays,
    from_content,
    to_content,
)

MiB = 2**20


AnyMapping = dict[str, object]


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1b\2\xa1a\1",  # in another order
        b"\x81\xa1x\x82\xa1b\2\xa1a\1",
        b"\x81\xa1x\xcc\1",  # an integer that is longer than it needs
        b"\x81\xa1x\xca\x3f\x80\0\0",  # a real of 32 bits
        *map(msgspec.msgpack.encode, ({1: 2}, {"a": {1: 2}}, {"a": {(1,): 2}}, {"a": {None: 1}})),
        *(b"", b"\xc0", b"\x90", b"\xc1", b"\1", b"\xa1x"),
    ],
)
def test_a_value_has_one_encoding(data):
    assert encode({"b": 1, "a": 2}) == encode({"a": 2, "b": 1}) == bytes.fromhex("82a16102a16201")
    with pytest.raises(MessageError, match=r"^A message is malformed\.$"):
        decode(data, AnyMapping)


@pytest.mark.parametrize("kind", [Arrays, AnyMapping], ids=("arrays", "any"))
def test_bombs_are_refused_in_little_memory(kind):
    for bomb in bombs(20_000):
        tracemalloc.start()
        with pytest.raises(MessageError):
            decode(bomb, kind)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * MiB, len(bomb)


def test_a_message_above_the_limit_is_not_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE", 20)
    assert decode(encode({"a": bytes(10)}), dict[str, bytes])
    with pytest.raises(MessageError, match="at most 20 bytes"):
        decode(encode({"a": bytes(20)}), dict[str, bytes])
    assert 256 * MiB == MAX_MESSAGE


@pytest.mark.parametrize("size", [0, MiB, MiB + 1, 3 * MiB + 7])
def test_messages_are_one_config_record_or_an_array_of_bytes(size):
    data = np.random.default_rng(0).bytes(size)
    content = to_content(data)
    if size <= MiB:
        assert list(content) == ["kmeans"]
        assert dict(content["kmeans"]) == {"v": 2, "m": data}
    else:
        assert list(content) == ["kmeans", "kmeans.data"]
        assert dict(content["kmeans"]) == {"v": 2, "n": size}
        assert list(content["kmeans.data"]) == ["m"]
        array = content["kmeans.data"]["m"]
        assert (array.dtype, tuple(array.shape)) == ("uint8", (size,))
    assert from_content(content) == data


def config(**values):
    return ConfigRecord(values)


def long_content(size=MiB + 8, *, n=None, array=None, name="m", record="kmeans.data"):
    array = Array(np.zeros(size, dtype=np.uint8)) if array is None else array
    header = config(v=2, n=size if n is None else n)
    return RecordDict({"kmeans": header, record: ArrayRecord({name: array})})


def raw_array(data, dtype="uint8", shape=(MiB + 8,), stype="numpy.ndarray"):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


HONEST = Array(np.zeros(MiB + 8, dtype=np.uint8)).data
MALFORMED = {
    "nothing": RecordDict(),
    "another name": RecordDict({"other": config(v=2, m=b"x")}),
    "arrays under the name": RecordDict({"kmeans": ArrayRecord([np.zeros(2)])}),
    "metrics": RecordDict({"kmeans": MetricRecord({"v": 2})}),
    "no version": RecordDict({"kmeans": config(m=b"x")}),
    "no message": RecordDict({"kmeans": config(v=2)}),
    "text": RecordDict({"kmeans": config(v=2, m="x")}),
    "a list": RecordDict({"kmeans": config(v=2, m=[b"x"])}),
    "more fields": RecordDict({"kmeans": config(v=2, m=b"x", n=1)}),
    "more records": RecordDict({"kmeans": config(v=2, m=b"x"), "more": config()}),
    "too long for a config": RecordDict({"kmeans": config(v=2, m=bytes(MiB + 1))}),
    "no array": RecordDict({"kmeans": config(v=2, n=MiB + 8)}),
    "an array that is short": long_content(MiB),
    "another length": long_content(n=MiB + 9),
    "a real length": long_content(n=float(MiB + 8)),
    "a true length": long_content(n=True),
    "a negative length": long_content(n=-1),
    "above the limit": long_content(n=MAX_MESSAGE + 1),
    "another array name": long_content(name="data"),
    "another record name": long_content(record="data"),
    "int8": long_content(array=Array(np.zeros(MiB + 8, dtype=np.int8))),
    "two dimensions": long_content(array=Array(np.zeros((2, MiB // 2 + 4), dtype=np.uint8))),
    "no array's bytes": long_content(array=raw_array(bytes(MiB + 8))),
    "bytes of another type": long_content(array=raw_array(Array(np.zeros(MiB + 8, np.int8)).data)),
    "a shape that lies": long_content(array=raw_array(Array(np.zeros(MiB + 9, np.uint8)).data)),
    "another serialiser": long_content(array=raw_array(HONEST, stype="pickle")),
    "bytes that are longer": long_content(array=raw_array(HONEST + bytes(2000))),
    "a pickle": long_content(
        array=raw_array(HONEST.replace(b"'|u1'", b"'|O' ") + bytes(8), dtype="uint8")
    ),
    "two arrays": RecordDict(
        {
            "kmeans": config(v=2, n=MiB + 8),
            "kmeans.data": ArrayRecord(
                {"m": raw_array(HONEST), "x": Array(np.zeros(1, dtype=np.uint8))}
            ),
        }
    ),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
def test_other_records_are_refused(content):
    with pytest.raises(MessageError, match="malformed"):
        from_content(content)


@pytest.mark.parametrize("version", [1, 3, 2.0, "2", [2], True])
def test_other_versions_are_said_to_be_other_versions(version):
    with pytest.raises(VersionError, match="version 2"):
        from_content(RecordDict({"kmeans": config(v=version, m=b"x")}))


values = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(), st.binary(max_size=9), st.text(max_size=3),
    st.lists(st.integers(0, 9), max_size=2),
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["v", "m", "n", "kind", "x"]), values, max_size=4),
    st.sampled_from(["kmeans", "kmeans", "kmeans.data", "x"]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_any_record_is_read_or_refused(fields, name, right_version, with_array):
    record = ConfigRecord(fields)
    if right_version:
        record["v"] = 2
    content = RecordDict({name: record})
    if with_array:
        content["kmeans.data"] = ArrayRecord({"m": raw_array(HONEST)})
    try:
        data = from_content(content)
    except MessageError:
        return
    assert dict(to_content(data)["kmeans"]) == dict(record)


names = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = st.one_of(
    hnp.arrays(np.int64, shapes),
    hnp.arrays(
        np.float64, shapes, elements=st.floats(width=64, allow_nan=False, allow_infinity=False)
    ),
)


@given(st.dictionaries(names, arrays, max_size=4))
@settings(deadline=None, max_examples=60)
def test_arrays_survive_and_have_one_encoding(given_arrays):
    data = encode_arrays(given_arrays)
    read = decode_arrays(data)
    assert list(read) == sorted(given_arrays)
    for name, array in given_arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()  # minus zero too
    assert encode_arrays(read) == data
    turned = {name: np.asfortranarray(array) for name, array in reversed(given_arrays.items())}
    assert encode_arrays({n: a.reshape(given_arrays[n].shape) for n, a in turned.items()}) == data


@given(st.dictionaries(names, arrays, max_size=3), st.randoms(use_true_random=False), st.binary())
@settings(deadline=None, max_examples=150)
def test_bytes_of_arrays_are_read_or_refused(given_arrays, rng, data):
    honest = encode_arrays(given_arrays)
    for sent in (data, near_bytes(rng, honest), near_bytes(rng, near_bytes(rng, honest))):
        try:
            read = decode_arrays(sent)
        except MessageError:
            continue
        assert encode_arrays(read) == sent


def packed(name="a", dtype="<i8", shape=(1,), data=bytes(8), **more):
    return msgspec.msgpack.encode({name: {"dtype": dtype, "shape": shape, "data": data, **more}})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x90", packed()[:-1], packed() + b"\0", packed(""), packed("A"), packed("1"),
        packed("a-b"), packed("a\0"), packed("a\n"), packed("é"), packed("a" * 33),
        packed(dtype=">i8"), packed(dtype="<i4"), packed(dtype="i8"), packed(dtype=8),
        packed(shape=(2,)), packed(shape=(), data=b""), packed(shape=(0,)),
        packed(shape=(1, 1, 1, 1, 1)),
        packed(shape=(-1,)), packed(shape=(1.0,)), packed(shape=(2**31,)), packed(shape=8),
        packed(data=bytes(7)), packed(data=bytes(16)), packed(data=[0] * 8), packed(order="F"),
        packed(dtype="<f8", data=np.float64(np.nan).tobytes()),
        packed(dtype="<f8", data=np.float64(np.inf).tobytes()),
        packed(dtype="<f8", data=np.float64(-np.inf).tobytes()),
        packed(shape=(0, 2**31 - 1, 2**31 - 1), data=b""),  # no memory has so many addresses
        msgspec.msgpack.encode({f"a{i}": {} for i in range(65)}),
    ],
    ids=range(33),
)  # fmt: skip
def test_other_bytes_are_no_arrays(data):
    with pytest.raises(MessageError):
        decode_arrays(data)


def test_sizes_are_compared_before_anything_is_made():
    tracemalloc.start()
    for shape in ((2**31 - 1,) * 4, (2**28, 2), (2**20, 8)):
        with pytest.raises(MessageError):
            decode_arrays(packed(shape=shape))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MiB


@pytest.mark.parametrize(
    ("given_arrays", "match"),
    [
        ({"a": np.zeros(2, dtype=np.float32)}, "'a' as int64 or finite float64"),
        ({"a": np.zeros(2, dtype=bool)}, "'a' as int64"),
        ({"a": np.array([1.0, math.nan])}, "finite"),
        ({"a": np.zeros((1,) * 5)}, "malformed"),
        ({"A": np.zeros(2)}, "malformed"),
        ({f"a{i}": np.zeros(1) for i in range(65)}, "malformed"),
    ],
)
def test_what_has_no_encoding_is_refused(given_arrays, match):
    with pytest.raises(MessageError, match=match):
        encode_arrays(given_arrays)


def test_arrays_are_what_the_protocol_describes():
    """Written by hand from docs/protocol.md, section 7."""
    given_arrays = {"b": np.array([[1.0, -2.0]]), "a": np.array(3)}
    a = b"\x83\xa5dtype\xa3<i8\xa5shape\x90\xa4data\xc4\x08" + struct.pack("<q", 3)
    b = b"\x83\xa5dtype\xa3<f8\xa5shape\x92\x01\x02\xa4data\xc4\x10" + struct.pack("<2d", 1, -2)
    assert encode_arrays(given_arrays) == b"\x82\xa1a" + a + b"\xa1b" + b
    assert encode_arrays({}) == b"\x80"
