"""One encoding of everything that travels, and every other one is refused."""

import math
import tracemalloc

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from malformed import bombs, near_bytes, second_encodings, wider, write

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import wire
from flower_kmeans.protocol.wire import (
    MAX_MESSAGE,
    Arrays,
    Struct,
    VersionError,
    decode,
    decode_arrays,
    encode,
    encode_arrays,
    from_content,
    to_content,
)

MiB = 2**20


class Inner(Struct, frozen=True, kw_only=True):
    number: wire.U32
    data: bytes = b""


class Sample(Struct, tag="sample", frozen=True, kw_only=True):
    count: wire.Count
    key: wire.B16
    inner: Inner | None = None
    several: tuple[Inner, ...] = ()
    pairs: tuple[tuple[wire.U32, bytes], ...] = ()
    free: dict[str, object] = {}  # noqa: RUF012


SAMPLES = [
    Sample(count=1, key=bytes(16)),
    Sample(count=2**31 - 1, key=b"k" * 16, inner=Inner(number=0), free={"b": [1.5], "a": None}),
    Sample(count=200, key=bytes(16), several=(Inner(number=1), Inner(number=2**32 - 1, data=b"x"))),
    Sample(count=7, key=bytes(16), pairs=((0, b""), (9, bytes(300)))),
]


def refused(data, kind=Sample):
    with pytest.raises(MessageError) as caught:
        decode(data, kind)
    return str(caught.value)


@pytest.mark.parametrize("value", SAMPLES, ids=range(len(SAMPLES)))
def test_values_survive_and_every_other_writing_is_refused(value):
    data = encode(value)
    assert decode(data, Sample) == value
    assert encode(decode(data, Sample)) == data
    for other in second_encodings(data):
        if other != data:
            assert refused(other) == "A message is malformed."  # a fixed text, nothing of what came


def test_the_encoding_is_the_documented_one():
    data = encode(Sample(count=5, key=bytes(16), inner=Inner(number=3)))
    assert data == bytes.fromhex(
        "84"  # type and three fields: what has its default is left out
        "a474797065 a673616d706c65"
        "a5636f756e74 05"
        f"a36b6579 c410{'00' * 16}"
        "a5696e6e6572 81a66e756d62657203"
    )
    assert encode({"b": 1, "a": 2}) == encode({"a": 2, "b": 1}) == bytes.fromhex("82a16102a16201")


def test_defaults_that_are_written_out_are_refused():
    pairs = [("type", msgspec.msgpack.encode("sample")), ("count", b"\1"), ("key", b"\xc4\x10")]
    pairs[2] = ("key", b"\xc4\x10" + bytes(16))
    assert decode(write(pairs), Sample) == SAMPLES[0]
    for name, default in (("inner", b"\xc0"), ("several", b"\x90"), ("pairs", b"\x90")):
        refused(write([*pairs, (name, default)]))
    refused(write([*pairs, ("free", b"\x80")]))
    refused(write([*pairs, ("inner", b"\x82\xa6number\1\xa4data\xc4\0")]))


def test_types_and_sizes_are_strict():
    good = {"type": "sample", "count": 1, "key": bytes(16)}
    assert decode(msgspec.msgpack.encode(good), Sample) == SAMPLES[0]
    for name, odd in (
        ("count", 0), ("count", -1), ("count", 2**31), ("count", True), ("count", 1.0),
        ("count", "1"), ("count", None), ("count", b"\1"),
        ("key", bytes(15)), ("key", bytes(17)), ("key", "k" * 16), ("key", [0] * 16),
        ("key", ""), ("inner", {}), ("inner", {"number": 2**32}), ("inner", []),
        ("pairs", [[1]]), ("pairs", [[1, b"", 2]]), ("pairs", [[-1, b""]]), ("pairs", {}),
        ("free", []), ("free", {1: 2}), ("type", "other"), ("type", 1), ("type", b"sample"),
        ("free", {"a": {1: 2}}), ("free", {"a": {(1,): 2}}), ("free", {"a": {None: 1, "b": 2}}),
    ):  # fmt: skip
        refused(msgspec.msgpack.encode({**good, name: odd}))
    for name in good:
        refused(msgspec.msgpack.encode({key: value for key, value in good.items() if key != name}))
    for other in (b"", b"\xc0", b"\x90", b"\x80", b"\xc1", b"\1", msgspec.msgpack.encode("x")):
        refused(other)


def test_mappings_within_a_configuration_have_one_order_too():
    head = [("type", b"\xa6sample"), ("count", b"\1"), ("key", b"\xc4\x10" + bytes(16))]
    inner = {"a": b"\1", "b": b"\2"}
    ordered = write(list(inner.items()))
    assert decode(write([*head, ("free", b"\x81\xa1x" + ordered)]), Sample).free["x"]["b"] == 2
    turned = write(list(inner.items())[::-1])
    refused(write([*head, ("free", b"\x81\xa1x" + turned)]))
    refused(write([*head, ("free", turned)]))
    refused(write([*head, ("free", b"\x81\xa1x\xcc\1")]))  # an integer that is longer than it needs
    refused(write([*head, ("free", b"\x81\xa1x\xca\x3f\x80\0\0")]))  # a real of 32 bits


@given(st.binary(max_size=200), st.sampled_from(SAMPLES), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_read_or_refused(data, value, rng):
    honest = encode(value)
    for sent in (data, near_bytes(rng, honest), near_bytes(rng, near_bytes(rng, honest))):
        try:
            read = decode(sent, Sample)
        except MessageError as error:
            assert str(error) == "A message is malformed."  # noqa: PT017
        else:
            assert encode(read) == sent


@pytest.mark.parametrize(
    "kind", [Sample, Arrays, dict[str, object]], ids=("struct", "arrays", "any")
)
def test_bombs_are_refused_in_little_memory(kind):
    for bomb in bombs(20_000):
        tracemalloc.start()
        refused(bomb, kind)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * MiB, len(bomb)


def test_a_message_above_the_limit_is_not_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE", 20)
    assert decode(encode({"a": bytes(10)}), dict[str, bytes])
    assert "at most 20 bytes" in refused(encode({"a": bytes(20)}), dict[str, bytes])
    assert 256 * MiB == MAX_MESSAGE


# ------------------------------------------------------------------------------ Flower's records


def over_the_wire(content):
    """Return what Flower makes of records when they are serialised."""
    return RecordDict(
        {key: type(record).inflate(record.deflate()) for key, record in content.items()}
        if not any(isinstance(record, ArrayRecord) for record in content.values())
        else dict(content.items())
    )


@pytest.mark.parametrize("size", [0, 1, MiB - 1, MiB])
def test_short_messages_are_one_config_record(size):
    data = bytes(size)
    content = to_content(data)
    assert dict(content["kmeans"]) == {"v": 2, "m": data}
    assert list(content) == ["kmeans"]
    assert from_content(over_the_wire(content)) == data


@pytest.mark.parametrize("size", [MiB + 1, 3 * MiB + 7])
def test_long_messages_travel_as_one_array_of_bytes(size):
    data = np.random.default_rng(0).bytes(size)
    content = to_content(data)
    assert dict(content["kmeans"]) == {"v": 2, "n": size}
    array = content["kmeans.data"]["m"]
    assert (array.dtype, tuple(array.shape)) == ("uint8", (size,))
    assert from_content(content) == data
    assert from_content(over_the_wire(content)) == data


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


@pytest.mark.parametrize("version", [1, 3, 0, -2, 2.0, "2", b"2", [2], True])
def test_other_versions_are_said_to_be_other_versions(version):
    with pytest.raises(VersionError, match="version 2"):
        from_content(RecordDict({"kmeans": config(v=version, m=b"x")}))
    with pytest.raises(VersionError):  # whatever else the record holds
        from_content(RecordDict({"kmeans": config(v=version, kind="enrol", doc=b"{}")}))


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


# ------------------------------------------------------------------------------ arrays


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


def test_the_bytes_that_others_are_made_of_are_arrays():
    assert decode_arrays(packed())["a"].tolist() == [0]
    assert decode_arrays(b"\x80") == {}


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
        packed(shape=(0, 2**31 - 1, 2**31 - 1)),
        msgspec.msgpack.encode({f"a{i}": {} for i in range(65)}),
    ],
    ids=range(33),
)  # fmt: skip
def test_other_bytes_are_no_arrays(data):
    with pytest.raises(MessageError):
        decode_arrays(data)


def test_empty_arrays_have_any_shape_with_a_zero():
    data = packed(shape=(0, 2**31 - 1, 2), data=b"")
    assert decode_arrays(data)["a"].shape == (0, 2**31 - 1, 2)


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


def test_wider_integers_in_arrays_are_refused():
    honest = packed()
    for other in wider(b"\1"):
        sent = honest.replace(b"\x91\1", b"\x91" + other)
        assert sent != honest
        with pytest.raises(MessageError):
            decode_arrays(sent)
