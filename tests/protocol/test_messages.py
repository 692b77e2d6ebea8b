"""Every message: the documented bytes, strict fields, and decoders that bear anything."""

import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed import bombs, fields_of, near_bytes, second_encodings, write

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Finish,
    Finished,
    Keys,
    Peer,
    Refusal,
    Wrap,
    Wrapped,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.wire import decode, encode

VECTORS = json.loads((Path(__file__).with_name("vectors.json")).read_text())
BYTES = {name: bytes.fromhex(data) for name, data in VECTORS["messages"].items()}
D, E = bytes(32), b"\1" * 32
PEER = Peer(slot=1, public_key=E, tag=b"t" * 16)
WRAP = Wrap(distributor=PEER, envelope=bytes(48))
ENTRY = Entry(t=1, attempt=1, n_slots=5, root=E, committee=D, tag=E, survivors=b"\x1f")
AT = {"doc_hash": D, "t": 3, "attempt": 2, "n_slots": 5, "root": E, "slot": 4}
ALL_AT = {**AT, "path": bytes(96), "committee": bytes(36), "tags": bytes(16), "doc": b"x"}

REQUESTS = [
    Enrol(doc=b"document"),
    Keys(doc_hash=D, peers=(PEER, Peer(slot=2, public_key=D))),
    Keys(doc_hash=D, peers=()),
    Ask(**AT),
    Ask(**AT, query=b""),
    Ask(**ALL_AT, wrap_for=WRAP, entries=(ENTRY, ENTRY), peers=(PEER,)),
    Add(**AT, h=D, tag=E, survivors=b"\1", public_keys=E, sealed=(b"share",)),
    Add(**ALL_AT, wrap_for=WRAP, h=D, tag=E, survivors=b"", public_keys=b"", sealed=()),
    Finish(doc_hash=D),
    Finish(doc_hash=D, entries=(ENTRY,), wrap_for=WRAP),
    Finish(doc_hash=D, result=b""),
]
REPLIES = [
    Enrolled(doc_hash=D, commitment=E, static=b"", public_key=E),
    Enrolled(
        doc_hash=D,
        commitment=E,
        static=E,
        public_key=E,
        tags=bytes(32),
        ledger=True,
        software="0.1",
    ),
    Wrapped(doc_hash=D, envelopes=(b"", bytes(48))),
    Answer(doc_hash=D, tag=E),
    Answer(doc_hash=D, tag=E, words=bytes(16)),
    Answer(doc_hash=D, tag=E, sealed=(b"", b"abc"), envelopes=(bytes(48), b"")),
    Added(doc_hash=D, share=b"share"),
    Added(doc_hash=D, share=b"", key_id=bytes(16)),
    Finished(doc_hash=D),
    *(Refusal(code=code, doc_hash=D) for code in Code),
    Refusal(code=Code.BAD_MESSAGE),
    Refusal(code=Code.RENEW, doc_hash=D, commitment=E, static=E, public_key=E, tags=bytes(16)),
    Refusal(code=Code.KEY, doc_hash=D, slot=0),
]
DECODERS = [decode_request, decode_reply, lambda data: decode(data, Entry)]
EVERY = [(decode_request, m) for m in REQUESTS] + [(decode_reply, m) for m in REPLIES]
EVERY += [(DECODERS[2], entry) for entry in (ENTRY, decode(BYTES["entry"], Entry))]


def name(value):
    return type(value).__name__


@pytest.mark.parametrize(("decoder", "message"), EVERY, ids=lambda m: name(m))
def test_messages_survive_and_every_other_writing_is_refused(decoder, message):
    data = encode(message)
    assert decoder(data) == message
    for other in second_encodings(data):
        if other != data:
            with pytest.raises(MessageError):
                decoder(other)


@pytest.mark.parametrize("message", REQUESTS, ids=name)
def test_a_request_is_no_reply_and_a_reply_no_request(message):
    with pytest.raises(MessageError):
        decode_reply(encode(message))
    for reply in REPLIES:
        with pytest.raises(MessageError):
            decode_request(encode(reply))


ODD = [
    True, False, -1, 0, 1, 2**31, 2**32, 2**63, 1.0, None, "", "x", b"", b"x", bytes(15), bytes(17),
    bytes(31), bytes(33), bytes(47), bytes(49), [], [1], [b"x"], [None], [[1, b""]], [[b"", 1]], {},
    {"slot": 1}, {"place": 1}, [{}],
]  # fmt: skip


@pytest.mark.parametrize(("decoder", "message"), EVERY, ids=lambda m: name(m))
def test_other_values_are_refused_or_read_as_they_are(decoder, message):
    fields = fields_of(encode(message))
    for key in {*fields, *message.__struct_encode_fields__}:  # defaults that are written out too
        for odd in ODD:
            changed = fields | {key: msgspec.msgpack.encode(odd)}
            data = write(list(changed.items()))
            try:
                read = decoder(data)
            except MessageError:
                continue
            assert encode(read) == data


A_PEER = {"place": 1, "eph": E}


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (REQUESTS[1], "wrap", [{"place": 1, "eph": bytes(31)}]),
        (REQUESTS[1], "wrap", [A_PEER | {"tag": bytes(17)}]),
        (REQUESTS[1], "wrap", [A_PEER | {"place": 2**32}]), (REQUESTS[1], "wrap", [{"slot": 1}]),
        (REQUESTS[5], "wrap_for", {"leader": A_PEER, "envelope": bytes(47)}),
        (REQUESTS[5], "t", 0), (REQUESTS[5], "attempt", 0), (REQUESTS[5], "m", 0),
        (REQUESTS[5], "root", bytes(31)), (REQUESTS[5], "place", -1),
        (REQUESTS[6], "h", bytes(33)), (REQUESTS[6], "sealed", [None]),
        (REPLIES[0], "static", bytes(33)), (REPLIES[0], "eph", bytes(33)),
        *((REPLIES[1], "software", text) for text in ("0.1\n", "<b>", "x" * 65, "é")),
        (REPLIES[1], "ledger", 1), (REPLIES[2], "envelopes", [bytes(49)]),
        (REPLIES[3], "tag", bytes(31)), (REPLIES[7], "key_id", bytes(17)),
        (REPLIES[9], "code", 0), (REPLIES[9], "code", 13),
        (ENTRY, "shares", [[-1, b""]]), (ENTRY, "k", -1),
    ],
)  # fmt: skip
def test_sizes_are_checked_by_the_decoder(message, field, value):
    fields = fields_of(encode(message)) | {field: msgspec.msgpack.encode(value)}
    for decoder in DECODERS:
        with pytest.raises(MessageError):
            decoder(write(list(fields.items())))


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
    for bomb in bombs(20_000):
        yield bomb
        for message, field in (
            (REQUESTS[1], "wrap"),
            (REQUESTS[5], "entries"),
            (REQUESTS[5], "wrap_for"),
            (REQUESTS[5], "doc"),
            (REQUESTS[6], "sealed"),
            (REPLIES[5], "sealed"),
            (REPLIES[1], "software"),
            (decode(BYTES["entry"], Entry), "shares"),
        ):
            fields = fields_of(encode(message)) | {field: bomb}
            yield write(list(fields.items()))


def test_bombs_are_refused_in_little_memory():
    for bomb in nested_bombs():
        for decoder in DECODERS:
            tracemalloc.start()
            with pytest.raises(MessageError):
                decoder(bomb)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 8 * 2**20
