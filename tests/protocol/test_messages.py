"""Every message and all that travels: one encoding, and decoders that bear anything."""

import json
import math
import struct
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from harness import memory_below
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from malformed import bombs, fields_of, near_bytes, second_encodings, write

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import messages, wire
from flower_kmeans.protocol.messages import (
    Add,
    Answer,
    Ask,
    Code,
    Entry,
    Finish,
    Peer,
    Refusal,
)
from flower_kmeans.protocol.wire import (
    MAX_MESSAGE,
    decode,
    decode_arrays,
    encode,
    encode_arrays,
    from_content,
)
from flower_kmeans.vertical.protocol.messages import (
    Delivery,
    Joined,
    Parcel,
    Sent,
    Turn,
    read_receivers,
    write_receivers,
)

pytestmark = pytest.mark.claim("protocol", "receiver-decodes-encodes-requires")

VECTORS = json.loads((Path(__file__).with_name("vectors.json")).read_text())
BYTES = {name: bytes.fromhex(data) for name, data in VECTORS["messages"].items()}
MiB = 2**20
AnyMapping = dict[str, object]
decode_entry, decode_any = partial(decode, kind=Entry), partial(decode, kind=AnyMapping)
D, E = bytes(32), b"\1" * 32
PEER = Peer(slot=1, public_key=E, node_id=2**63, claim=b"c" * 64)
WRAP = messages.Wrap(distributor=PEER.row, key_id=b"k" * 16, envelope=bytes(48))
PARCEL = Parcel(step="open", t=1, receivers=bytes(8), keys=bytes(96), data=b"sealed")
DELIVERY = Delivery(sender=1, step="open", number=2, key=bytes(48), data=b"sealed")
ENTRY = Entry(t=1, attempt=1, n_slots=5, root=E, committee=D, tag=E, survivors=b"\x1f")
AT = {"doc_hash": D, "t": 3, "attempt": 2, "n_slots": 5, "root": E, "slot": 4}
ALL_AT = {
    **AT,
    "path": bytes(96),
    "committee": bytes(36),
    "claims": bytes(72),
    "doc": b"x",
}

REQUESTS = [
    messages.Enrol(doc=b"document"),
    messages.Keys(doc_hash=D, peers=PEER.row + PEER.row),
    messages.Keys(doc_hash=D, peers=b""),
    Ask(**AT),
    Ask(**AT, query=b""),
    Ask(**ALL_AT, wraps=(WRAP, WRAP), entries=(ENTRY, ENTRY), peers=PEER.row),
    Add(**AT, h=D, tag=E, survivors=b"\1", public_keys=E, sealed=b"share"),
    Add(
        **ALL_AT,
        wraps=(WRAP, WRAP),
        h=D,
        tag=E,
        survivors=b"",
        public_keys=b"",
        sealed=b"",
    ),
    Finish(doc_hash=D),
    Finish(doc_hash=D, entries=(ENTRY,), wraps=(WRAP, WRAP)),
    Finish(doc_hash=D, result=b""),
    messages.Hold(doc_hash=D, wraps=(WRAP,)),
    messages.Hold(doc_hash=D, doc=b"document", wraps=()),
    messages.Abort(doc_hash=D),
    Turn(doc_hash=D, step="keys", peers=PEER.row, commitments=(E, D)),
    Turn(doc_hash=D, step="load", part=2, deliveries=(DELIVERY, DELIVERY)),
]
REPLIES = [
    messages.Enrolled(doc_hash=D, commitment=E, static=b"", public_key=E),
    messages.Enrolled(
        doc_hash=D,
        commitment=E,
        static=E,
        public_key=E,
        claim=bytes(64),
        ledger=True,
        software="0.1",
    ),
    messages.Wrapped(doc_hash=D, key_id=bytes(16), envelopes=bytes(96)),
    Answer(doc_hash=D, tag=E),
    Answer(doc_hash=D, tag=E, words=bytes(16)),
    Answer(doc_hash=D, tag=E, sealed=b"abc", key_id=bytes(16), envelopes=bytes(48)),
    messages.Added(doc_hash=D, share=b"share"),
    messages.Added(doc_hash=D, share=b"", key_id=bytes(16)),
    messages.Finished(doc_hash=D),
    *(Refusal(code=code, doc_hash=D) for code in Code),
    Refusal(code=Code.BAD_MESSAGE),
    Refusal(
        code=Code.RENEW,
        doc_hash=D,
        commitment=E,
        static=E,
        public_key=E,
        claim=bytes(64),
    ),
    Refusal(code=Code.KEY, doc_hash=D, slot=0),
    messages.Held(doc_hash=D, key_id=b"k" * 16),
    Joined(doc_hash=D, slot=1, public_key=E),
    Joined(
        doc_hash=D,
        slot=63,
        static=E,
        public_key=E,
        claim=bytes(64),
        commitment=E,
        has_ids=True,
        ledger=True,
        software="0.1",
    ),
    Sent(doc_hash=D),
    Sent(doc_hash=D, parts=3, parcels=(PARCEL, PARCEL)),
]
EVERY = [(messages.decode_request, m) for m in REQUESTS] + [
    (messages.decode_reply, m) for m in REPLIES
]
EVERY += [(decode_entry, m) for m in (ENTRY, decode_entry(BYTES["entry"]))]
DECODERS = [messages.decode_request, messages.decode_reply, decode_entry]


def name_of(value):
    return type(value).__name__


@pytest.mark.parametrize(("decoder", "message"), EVERY, ids=name_of)
def test_messages_survive_and_every_other_writing_is_refused(decoder, message):
    data = encode(message)
    assert decoder(data) == message
    for other in second_encodings(data):
        with pytest.raises(MessageError):
            decoder(other)


@pytest.mark.parametrize("message", REQUESTS, ids=name_of)
def test_a_request_is_no_reply_and_a_reply_no_request(message):
    with pytest.raises(MessageError):
        messages.decode_reply(encode(message))
    for reply in REPLIES:
        with pytest.raises(MessageError):
            messages.decode_request(encode(reply))


ODD = [
    True, False, -1, 0, 1, 2**31, 2**32, 2**63, 1.0, None, "", "x", b"", b"x", bytes(15), bytes(17),
    bytes(31), bytes(33), bytes(47), bytes(49), [], [1], [b"x"], [None], [[1, b""]], [[b"", 1]], {},
    {"slot": 1}, {"place": 1}, [{}],
]  # fmt: skip


@pytest.mark.parametrize(("decoder", "message"), EVERY, ids=name_of)
def test_other_values_are_refused_or_read_as_they_are(decoder, message):
    fields = fields_of(encode(message))
    # defaults that are written out too
    for key in {*fields, *message.__struct_encode_fields__}:
        for odd in ODD:
            changed = fields | {key: msgspec.msgpack.encode(odd)}
            data = write(list(changed.items()))
            try:
                read = decoder(data)
            except MessageError:
                continue
            assert encode(read) == data


A_WRAP = {"leader": bytes(36), "key_id": bytes(16), "envelope": bytes(48)}


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (REQUESTS[1], "peers", bytes(108 * 2**17 + 1)), (REQUESTS[5], "claims", bytes(72 * 64 + 1)),
        (REQUESTS[5], "wraps", [A_WRAP | {"leader": bytes(35)}]),
        (REQUESTS[5], "wraps", [A_WRAP | {"leader": bytes(109)}]),
        (REQUESTS[5], "wraps", [A_WRAP | {"envelope": bytes(47)}]),
        (REQUESTS[5], "wraps", [A_WRAP | {"key_id": bytes(15)}]),
        (REQUESTS[5], "wraps", [A_WRAP] * 5), (REQUESTS[9], "wraps", [A_WRAP] * 5),
        (REPLIES[1], "claim", bytes(65)), (REPLIES[2], "envelopes", bytes(48 * 2**17 + 1)),
        (REQUESTS[5], "t", 0), (REQUESTS[5], "attempt", 0), (REQUESTS[5], "m", 0),
        (REQUESTS[5], "root", bytes(31)), (REQUESTS[5], "place", -1),
        (REQUESTS[6], "h", bytes(33)), (REQUESTS[6], "sealed", [None]),
        *((REQUESTS[6], "sealed", value) for value in ([b""], [b"share"], [], "share")),
        (REPLIES[5], "sealed", [b"abc"]),
        (REPLIES[0], "static", bytes(33)), (REPLIES[0], "eph", bytes(33)),
        *((REPLIES[1], "software", text) for text in ("0.1\n", "<b>", "x" * 65, "é")),
        (REPLIES[1], "ledger", 1), (REPLIES[2], "envelopes", [bytes(48)]),
        (REPLIES[3], "tag", bytes(31)), (REPLIES[7], "key_id", bytes(17)),
        (REPLIES[9], "code", 0), (REPLIES[9], "code", 13),
        (ENTRY, "shares", [[1, b""]]), (ENTRY, "k", -1), (ENTRY, "positions", bytes(9)),
        (ENTRY, "positions", [1]),
    ],
)  # fmt: skip
def test_sizes_are_checked_by_the_decoder(message, field, value):
    fields = fields_of(encode(message)) | {field: msgspec.msgpack.encode(value)}
    for decoder in DECODERS:
        with pytest.raises(MessageError):
            decoder(write(list(fields.items())))


def test_rows_of_peers_are_whole_and_have_one_length():
    relayed = Peer(slot=7, public_key=E)
    assert (len(relayed.row), len(PEER.row)) == (36, 108)
    assert PEER.row == b"\1\0\0\0" + E + bytes(7) + b"\x80" + b"c" * 64
    assert messages.read_rows(relayed.row * 3, has_claims=False) == (relayed,) * 3
    assert messages.read_rows(PEER.row * 2, has_claims=True) == (PEER,) * 2
    for data, has_claims in (
        (relayed.row, True),
        (PEER.row[:-1], True),
        (PEER.row[:-1], False),
    ):
        with pytest.raises(MessageError, match="whole rows"):
            messages.read_rows(data, has_claims)
    made = [(2**64 - 1, b"a" * 64), (0, b"b" * 64)]
    assert messages.read_claims(messages.write_claims(made), 2) == tuple(made)
    for n in (1, 3):
        with pytest.raises(MessageError, match="each present position"):
            messages.read_claims(messages.write_claims(made), n)
    assert messages.split(b"a" * 48 + b"b" * 48, 48) == (b"a" * 48, b"b" * 48)
    with pytest.raises(MessageError, match="whole pieces of 48 bytes"):
        messages.split(bytes(97), 48)


def test_sum_shares_travel_in_order_of_position_and_have_one_length():
    bits, shares = messages.write_sum_shares({63: b"cc", 0: b"aa", 9: b"bb"})
    assert (bits, shares) == (b"\1\2" + bytes(5) + b"\x80", b"aabbcc")
    read = messages.read_sum_shares
    entry = msgspec.structs.replace(ENTRY, positions=bits, shares=shares)
    assert read(entry) == {0: b"aa", 9: b"bb", 63: b"cc"}
    for wrong in ((b"", shares), (bits, b""), (bytes(8), shares), (bits[:7], shares)):
        with pytest.raises(MessageError, match="a bitmap of positions"):
            read(msgspec.structs.replace(ENTRY, positions=wrong[0], shares=wrong[1]))
    with pytest.raises(MessageError, match="of the same length"):
        read(msgspec.structs.replace(entry, shares=shares + b"c"))


def test_receivers_of_a_parcel_are_four_bytes_each():
    assert write_receivers([1, 258]) == b"\1\0\0\0\2\1\0\0"
    assert read_receivers(b"\1\0\0\0\2\1\0\0") == (1, 258)
    with pytest.raises(MessageError, match="whole pieces of 4 bytes"):
        read_receivers(bytes(5))


@pytest.mark.claim("threat-model", "29")
@given(
    st.sampled_from([message for _, message in EVERY]),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=500)
def test_changed_messages_are_read_as_they_are_or_refused(message, rng, changes):
    data = encode(message)
    for _ in range(changes):
        data = near_bytes(rng, data)
    for decoder in DECODERS:
        try:
            read = decoder(data)
        except MessageError as error:
            assert str(error) == "A message is malformed."  # noqa: PT017
        else:
            assert encode(read) == data


def nested_bombs():
    """Yield bombs in the places of real fields, where a decoder goes down into them."""
    places = [(REQUESTS[1], "peers"), (REQUESTS[6], "sealed"), (REPLIES[1], "software")]
    places += [(REQUESTS[5], name) for name in ("entries", "wraps", "doc")]
    places += [(REPLIES[5], "sealed"), (decode_entry(BYTES["entry"]), "shares")]
    for bomb in bombs(20_000):
        yield bomb
        for message, field in places:
            yield write(list((fields_of(encode(message)) | {field: bomb}).items()))


@pytest.mark.parametrize(
    "decoder", [*DECODERS, decode_any, partial(decode, kind=wire.Arrays)]
)
def test_bombs_are_refused_in_little_memory(decoder):
    for bomb in nested_bombs():
        with memory_below(8 * MiB), pytest.raises(MessageError):
            decoder(bomb)


# ------------------------------------------------------------------- values and records


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1b\2\xa1a\1",  # in another order
        b"\x81\xa1x\x82\xa1b\2\xa1a\1",
        b"\x81\xa1x\xcc\1",  # an integer that is longer than it needs
        b"\x81\xa1x\xca\x3f\x80\0\0",  # a real of 32 bits
        *map(
            msgspec.msgpack.encode,
            ({1: 2}, {"a": {1: 2}}, {"a": {(1,): 2}}, {"a": {None: 1}}),
        ),
        *(b"", b"\xc0", b"\x90", b"\xc1", b"\1", b"\xa1x"),
    ],
)
def test_a_value_has_one_encoding(data):
    assert (
        encode({"b": 1, "a": 2})
        == encode({"a": 2, "b": 1})
        == bytes.fromhex("82a16102a16201")
    )
    with pytest.raises(MessageError, match=r"^A message is malformed\.$"):
        decode_any(data)


def test_a_message_above_the_limit_is_not_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE", 20)
    assert decode(encode({"a": bytes(10)}), dict[str, bytes])
    with pytest.raises(MessageError, match="at most 20 bytes"):
        decode(encode({"a": bytes(20)}), dict[str, bytes])
    assert 256 * MiB == MAX_MESSAGE


@pytest.mark.parametrize("size", [0, MiB, MiB + 1, 3 * MiB + 7])
def test_messages_are_one_config_record_or_an_array_of_bytes(size):
    data = np.random.default_rng(0).bytes(size)
    content = wire.to_content(data)
    header, *arrays = map(dict, content.values())
    if size <= MiB:
        assert (list(content), header) == (["kmeans"], {"v": 3, "m": data})
    else:
        assert (list(content), header) == (
            ["kmeans", "kmeans.data"],
            {"v": 3, "n": size},
        )
        assert {name: array.dtype for name, array in arrays[0].items()} == {
            "m": "uint8"
        }
    assert from_content(content) == data


def config(**values):
    return ConfigRecord(values)


def long_content(
    size=MiB + 8, *, n=None, array=None, name="m", record="kmeans.data", **more
):
    array = Array(np.zeros(size, dtype=np.uint8)) if array is None else array
    header = config(v=3, n=size if n is None else n)
    return RecordDict({"kmeans": header, record: ArrayRecord({name: array, **more})})


def raw_array(data, dtype="uint8", shape=(MiB + 8,), stype="numpy.ndarray"):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


HONEST = Array(np.zeros(MiB + 8, dtype=np.uint8)).data
CONFIGS = {
    "no version": {"m": b"x"},
    "no message": {"v": 3},
    "text": {"v": 3, "m": "x"},
    "a list": {"v": 3, "m": [b"x"]},
    "more fields": {"v": 3, "m": b"x", "n": 1},
    "too long for a config": {"v": 3, "m": bytes(MiB + 1)},
    "no array": {"v": 3, "n": MiB + 8},
}
LENGTHS = {
    "another": MiB + 9, "real": float(MiB + 8), "true": True, "negative": -1,
    "above the limit": MAX_MESSAGE + 1,
}  # fmt: skip
ARRAYS = {
    "int8": Array(np.zeros(MiB + 8, dtype=np.int8)),
    "two dimensions": Array(np.zeros((2, MiB // 2 + 4), dtype=np.uint8)),
    "no array's bytes": raw_array(bytes(MiB + 8)),
    "bytes of another type": raw_array(Array(np.zeros(MiB + 8, np.int8)).data),
    "a shape that lies": raw_array(Array(np.zeros(MiB + 9, np.uint8)).data),
    "another serialiser": raw_array(HONEST, stype="pickle"),
    "bytes that are longer": raw_array(HONEST + bytes(2000)),
    "a pickle": raw_array(HONEST.replace(b"'|u1'", b"'|O' ") + bytes(8), dtype="uint8"),
}
RIGHT = config(v=3, m=b"x")
OTHER_RECORDS = {
    "nothing": RecordDict(),
    "another name": RecordDict({"other": RIGHT}),
    "arrays under the name": RecordDict({"kmeans": ArrayRecord([np.zeros(2)])}),
    "metrics": RecordDict({"kmeans": MetricRecord({"v": 3})}),
    "more records": RecordDict({"kmeans": RIGHT, "more": config()}),
    **{
        name: RecordDict({"kmeans": config(**fields)})
        for name, fields in CONFIGS.items()
    },
    "an array that is short": long_content(MiB),
    "another array name": long_content(name="data"),
    "another record name": long_content(record="data"),
    "two arrays": long_content(more=raw_array(HONEST)),
    **{f"length: {name}": long_content(n=n) for name, n in LENGTHS.items()},
    **{name: long_content(array=array) for name, array in ARRAYS.items()},
}


@pytest.mark.parametrize("content", OTHER_RECORDS.values(), ids=OTHER_RECORDS.keys())
def test_other_records_are_refused(content):
    with pytest.raises(MessageError, match="malformed"):
        from_content(content)


@pytest.mark.parametrize("version", [1, 2, 4, 3.0, "3", [3], True])
def test_other_versions_are_said_to_be_other_versions(version):
    with pytest.raises(wire.VersionError, match="version 3"):
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
    assert dict(wire.to_content(data)["kmeans"]) == dict(record)


names = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = st.one_of(
    hnp.arrays(np.int64, shapes),
    hnp.arrays(
        np.float64,
        shapes,
        elements=st.floats(width=64, allow_nan=False, allow_infinity=False),
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
    turned = {
        name: np.asfortranarray(array) for name, array in reversed(given_arrays.items())
    }
    assert (
        encode_arrays({n: a.reshape(given_arrays[n].shape) for n, a in turned.items()})
        == data
    )


@given(
    st.dictionaries(names, arrays, max_size=3),
    st.randoms(use_true_random=False),
    st.binary(),
)
@settings(deadline=None, max_examples=150)
def test_bytes_of_arrays_are_read_or_refused(given_arrays, rng, data):
    honest = encode_arrays(given_arrays)
    for sent in (
        data,
        near_bytes(rng, honest),
        near_bytes(rng, near_bytes(rng, honest)),
    ):
        try:
            read = decode_arrays(sent)
        except MessageError:
            continue
        assert encode_arrays(read) == sent


def packed(name="a", dtype="<i8", shape=(1,), data=bytes(8), **more):
    return msgspec.msgpack.encode(
        {name: {"dtype": dtype, "shape": shape, "data": data, **more}}
    )


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x90", packed()[:-1], packed() + b"\0", packed(""), packed("A"), packed("1"),
        packed("a-b"), packed("a\0"), packed("a\n"), packed("é"), packed("a" * 33),
        packed(dtype=">i8"), packed(dtype="<i4"), packed(dtype="i8"), packed(dtype=8),
        packed(shape=(2,)), packed(shape=(), data=b""), packed(shape=(0,)),
        packed(shape=(1, 1, 1, 1, 1)),
        packed(shape=(-1,)), packed(shape=(1.0,)), packed(shape=(2**31,)), packed(shape=8),
        *(packed(shape=shape) for shape in ((2**31 - 1,) * 4, (2**28, 2), (2**20, 8))),
        packed(data=bytes(7)), packed(data=bytes(16)), packed(data=[0] * 8), packed(order="F"),
        packed(dtype="<f8", data=np.float64(np.nan).tobytes()),
        packed(dtype="<f8", data=np.float64(np.inf).tobytes()),
        packed(dtype="<f8", data=np.float64(-np.inf).tobytes()),
        # no memory has so many addresses
        packed(shape=(0, 2**31 - 1, 2**31 - 1), data=b""),
        msgspec.msgpack.encode({f"a{i}": {} for i in range(65)}),
    ],
)  # fmt: skip
def test_other_bytes_are_no_arrays(data):
    # sizes are compared before all else
    with memory_below(MiB), pytest.raises(MessageError):
        decode_arrays(data)


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
    b = b"\x83\xa5dtype\xa3<f8\xa5shape\x92\x01\x02\xa4data\xc4\x10" + struct.pack(
        "<2d", 1, -2
    )
    assert encode_arrays(given_arrays) == b"\x82\xa1a" + a + b"\xa1b" + b
    assert encode_arrays({}) == b"\x80"
