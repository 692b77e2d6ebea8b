"""Every message: what is sent is what is read, and nothing else is."""

import contextlib

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.document import VersionError
from flower_kmeans.federation.messages import (
    Code,
    Enrol,
    EnrolReply,
    Finish,
    Lead,
    LeadReply,
    Open,
    OpenReply,
    Refusal,
    Round,
    RoundReply,
    decode_reply,
    decode_request,
    to_content,
)

D, E = bytes(32), b"\1" * 32
PLACE = {"doc_hash": D, "t": 3, "m": 5, "index": 4, "root": E, "path": bytes(96)}
SEALED = {"leader": bytes(64), "envelope": bytes(48), "doc": b"{}"}

REQUESTS = [
    Enrol(doc_hash=D, doc=b"{}", lead=False),
    Enrol(doc_hash=D, doc=b"{}", lead=True),
    Lead(doc_hash=D, pubs=(D, E)),
    Round(**PLACE, attempt=1),
    Round(**PLACE, **SEALED, attempt=3, question=b"?", entries=(b"a", b"bc"), want_correction=True),
    Round(doc_hash=D, t=1, m=1, index=0, root=E, attempt=1),
    Open(**PLACE, want_correction=True),
    Finish(**PLACE, entries=(b"a",)),
]
REPLIES = [
    EnrolReply(doc_hash=D, commitment=E, versions=(1,)),
    EnrolReply(doc_hash=D, commitment=E, versions=(1,), ledger=True),
    EnrolReply(doc_hash=D, commitment=E, versions=(1, 2), public_key=E, key_id=bytes(8)),
    EnrolReply(
        doc_hash=D, commitment=E, versions=(1,), leader=bytes(64), envelopes=(bytes(80),) * 2
    ),
    LeadReply(doc_hash=D, leader=bytes(64), envelopes=(bytes(80),)),
    RoundReply(doc_hash=D, ctx=E, words=bytes(16)),
    RoundReply(doc_hash=D, ctx=E, words=bytes(16), share_t=2, correction=bytes(16)),
    OpenReply(doc_hash=D),
    OpenReply(doc_hash=D, share_t=2, correction=bytes(16)),
]
REFUSALS = [
    *(Refusal(code=code, doc_hash=D) for code in Code if code not in (Code.OK, Code.RENEW)),
    Refusal(code=Code.BAD_MESSAGE),
    Refusal(code=Code.RENEW, doc_hash=D, commitment=E),
    Refusal(code=Code.RENEW, doc_hash=D, commitment=E, public_key=E),
]


def name(message):
    return type(message).__name__


def over_the_wire(content):
    """Return what Flower makes of a record when it is serialised."""
    return RecordDict(
        {key: type(record).inflate(record.deflate()) for key, record in content.items()}
    )


@pytest.mark.parametrize("message", REQUESTS, ids=name)
def test_requests_survive_the_wire(message):
    content = to_content(message)
    assert decode_request(content) == message
    assert decode_request(over_the_wire(content)) == message
    assert content["kmeans"].count_bytes() > 0  # Flower cannot count empty values


@pytest.mark.parametrize("message", REPLIES, ids=name)
def test_replies_survive_the_wire(message):
    content = to_content(message)
    assert decode_reply(content, type(message), D) == message
    assert decode_reply(over_the_wire(content), type(message), D) == message
    assert content["kmeans"]["code"] == Code.OK
    assert content["kmeans"].count_bytes() > 0


@pytest.mark.parametrize("message", REFUSALS, ids=lambda m: m.code.name)
def test_refusals_survive_the_wire(message):
    for expected in (EnrolReply, LeadReply, RoundReply, OpenReply):
        read = decode_reply(over_the_wire(to_content(message)), expected, D)
        assert read == message
        assert isinstance(read.code, Code)


def test_every_message_has_version_kind_and_document():
    for message in REQUESTS + REPLIES:
        record = to_content(message)["kmeans"]
        assert record["v"] == 1
        assert type(record["kind"]) is str
        assert record["doc_hash"] == D


def test_versions_are_always_told():
    content = to_content(EnrolReply(doc_hash=D, commitment=E))
    assert content["kmeans"].pop("versions") == [1]
    with pytest.raises(MessageError):
        decode_reply(content, EnrolReply, D)


def decode(content, message):
    if isinstance(message, tuple(type(request) for request in REQUESTS)):
        return decode_request(content)
    expected = RoundReply if isinstance(message, Refusal) else type(message)
    return decode_reply(content, expected, D)


ODD_VALUES = [
    True, False, -1, 0, 4, 2**32, 2**63, 1.0, "", "round", b"", b"x", bytes(31), bytes(33),
    bytes(1000), [], [1], [True], [b""], [b"x"], [bytes(32), bytes(31)], ["x"], [1.5],
]  # fmt: skip


@pytest.mark.parametrize("message", REQUESTS + REPLIES + REFUSALS, ids=name)
def test_every_field_is_required_or_falls_back_to_its_default(message):
    for key in dict(to_content(message)["kmeans"]):
        content = to_content(message)
        del content["kmeans"][key]
        with contextlib.suppress(MessageError):
            assert decode(content, message) != message


@pytest.mark.parametrize("message", REQUESTS + REPLIES + REFUSALS, ids=name)
def test_other_values_are_refused_or_read_as_they_are(message):
    """What is accepted encodes to the very record that was read: one encoding per message."""
    for key in dict(to_content(message)["kmeans"]):
        for odd in ODD_VALUES:
            content = to_content(message)
            content["kmeans"][key] = odd
            try:
                read = decode(content, message)
            except MessageError:
                continue
            again = to_content(read)["kmeans"]
            assert dict(again) == dict(content["kmeans"])
            assert [type(v) for v in again.values()] == [type(again[k]) for k in again]
            assert all(type(again[k]) is type(content["kmeans"][k]) for k in again)


@pytest.mark.parametrize("message", REQUESTS + REPLIES + REFUSALS, ids=name)
def test_unknown_fields_and_other_versions_are_refused(message):
    content = to_content(message)
    content["kmeans"]["num-examples"] = 5
    with pytest.raises(MessageError):
        decode(content, message)
    content = to_content(message)
    content["kmeans"]["v"] = 2
    with pytest.raises(VersionError):
        decode(content, message)


BAD_COMBINATIONS = [
    (REQUESTS[3], {"index": 5}),
    (REQUESTS[3], {"index": -1}),
    (REQUESTS[3], {"path": bytes(64)}),
    (REQUESTS[3], {"t": 0}),
    (REQUESTS[3], {"attempt": 4}),
    (REQUESTS[3], {"attempt": 0}),
    (REQUESTS[3], {"m": 2**32}),
    (REQUESTS[3], {"m": True, "index": 0}),
    (REQUESTS[3], {"leader": bytes(64)}),
    (REQUESTS[3], {"envelope": bytes(48)}),
    (REQUESTS[3], {"want_correction": False}),
    (REQUESTS[3], {"doc": bytes(2**20 + 1)}),
    (REQUESTS[6], {"attempt": 1}),
    (REQUESTS[7], {"question": b"?"}),
    (REPLIES[0], {"leader": bytes(64)}),
    (REPLIES[0], {"envelopes": [bytes(80)]}),
    (REPLIES[4], {"words": bytes(15)}),
    (REPLIES[4], {"correction": bytes(16)}),
    (REPLIES[4], {"share_t": 1}),
    (REPLIES[4], {"code": 5}),
    (REPLIES[4], {"code": False}),
    (REPLIES[4], {"kind": "open"}),
    (REPLIES[4], {"doc_hash": E}),
    (REFUSALS[0], {"doc_hash": E}),
    (REFUSALS[0], {"code": 0}),
    (REFUSALS[0], {"code": 13}),
    (REFUSALS[0], {"commitment": E}),
    (REFUSALS[0], {"public_key": E}),
    (REFUSALS[0], {"code": 6}),
]


@pytest.mark.parametrize(("message", "changes"), BAD_COMBINATIONS)
def test_contradictions_are_refused(message, changes):
    content = to_content(message)
    content["kmeans"].update(changes)
    with pytest.raises(MessageError) as caught:
        decode(content, message)
    assert str(caught.value) in (
        "A message is malformed.",  # fixed texts: nothing of what came
        "A message belongs to another run.",
    )


def test_content_is_one_config_record():
    good = to_content(REQUESTS[0])["kmeans"]
    arrays = ArrayRecord([np.zeros(2)])
    for content in (
        RecordDict(),
        RecordDict({"other": good}),
        RecordDict({"kmeans": good, "more": ConfigRecord()}),
        RecordDict({"kmeans": arrays}),
        RecordDict({"kmeans": MetricRecord({"v": 1})}),
        RecordDict({"kmeans": ConfigRecord()}),
    ):
        with pytest.raises(MessageError):
            decode_request(content)
        with pytest.raises(MessageError):
            decode_reply(content, RoundReply, D)


def test_codes_have_one_sentence_each():
    sentences = [code.sentence for code in Code]
    assert len(set(sentences)) == len(Code) == 13
    assert all(sentence.endswith(".") for sentence in sentences)
