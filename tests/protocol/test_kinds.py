"""Kinds of runs: their bodies, their messages, and a third kind by registration alone."""

import json
from dataclasses import replace

import pytest
from cohorts import Node, code
from documents import make_algorithm, make_document
from malformed import second_encodings
from vertical_runs import make_document as make_document_of_columns

from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.cli.page import report_from
from flower_kmeans.data.domain import Box
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import kinds, limits
from flower_kmeans.protocol.kinds import kind_names, run_kind
from flower_kmeans.protocol.messages import (
    Abort,
    Ask,
    Code,
    Enrol,
    Enrolled,
    decode_reply,
    decode_request,
    read_head,
)
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.run import (
    Horizontal,
    UnacceptableRunError,
    open_run,
    parse_document,
)
from flower_kmeans.protocol.wire import encode
from flower_kmeans.report.html import Outcome, page_of
from flower_kmeans.report.report import Report
from flower_kmeans.strategies import FastLloyd
from tests.support.toy_kind import (
    TOY,
    Greet,
    Greeted,
    Toy,
    ToyAlgorithm,
    ToyPart,
    register_toy,
)

DOCUMENTS = {"horizontal": make_document, "vertical": make_document_of_columns}


def toy_document(greeting="hello", trust="toy", **changes):
    """Return the document of a small run of the third kind."""
    algorithm = make_algorithm(ToyAlgorithm)
    body = Toy(
        algorithm=algorithm_to_config(algorithm),
        domain=algorithm.domain.to_config(),
        greeting=greeting,
        times=3,
    )
    return make_document(trust, algorithm=algorithm, **{"body": body, **changes})


@pytest.fixture
def _toy(monkeypatch):
    register_toy(monkeypatch)


# ------------------------------------------------------------------------------- bodies


def in_body(name, old, new):
    """Return a document with other bytes at one place, which is in its body."""
    data = encode(DOCUMENTS[name]())
    start = data.index(encode(DOCUMENTS[name]().body))
    assert data.count(old, start) == 1
    return data[:start] + data[start:].replace(old, new)


def test_the_kinds_of_the_library_are_these():
    assert set(kind_names()) == set(DOCUMENTS)
    for name, make in DOCUMENTS.items():
        document = parse_document(encode(make()))
        assert document == make()
        assert (type(document.body), document.body.kind) == (run_kind(name).body, name)


# 2 is the number of clusters, and of the least parties.
@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@pytest.mark.parametrize("longer", [b"\xcc\2", b"\xcd\0\2", b"\xd3" + bytes(7) + b"\2"])
def test_a_body_has_one_encoding(name, longer):
    field = b"\xaan_clusters"
    other = in_body(name, field + b"\2", field + longer)
    with pytest.raises(MessageError):
        parse_document(other)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_no_other_text_of_a_body_is_read(name):
    data = encode(DOCUMENTS[name]())
    body = encode(DOCUMENTS[name]().body)
    others = list(second_encodings(body))
    assert len(others) > 10
    for other in others:
        with pytest.raises(MessageError):
            parse_document(data.replace(body, other))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@pytest.mark.parametrize("unknown", ["toy", "horizontaX", ""])
def test_a_body_of_no_known_kind_is_refused(name, unknown):
    tag = b"\xa4type" + encode(name)
    other = in_body(name, tag, b"\xa4type" + encode(unknown))
    with pytest.raises(MessageError):
        parse_document(other)


@pytest.mark.parametrize(
    ("name", "other"), [("horizontal", "vertical"), ("vertical", "horizontal")]
)
def test_a_body_has_the_fields_of_its_own_kind(name, other):
    data = in_body(name, b"\xa4type" + encode(name), b"\xa4type" + encode(other))
    with pytest.raises(MessageError):
        parse_document(data)


@pytest.mark.parametrize(
    "body", [[], 3, None, {"algorithm": {}, "domain": {}}, {"type": []}]
)
def test_a_body_is_a_struct_with_a_tag(body):
    document = make_document()
    fields = {name: getattr(document, name) for name in document.__struct_fields__}
    given = {"type": "run", **{k: v for k, v in fields.items() if k != "body"}}
    with pytest.raises(MessageError):
        parse_document(encode({**given, "body": body}))


# ---------------------------------------------------------------------------- third kind


@pytest.mark.usefixtures("_toy")
def test_a_third_kind_runs_by_its_registration_alone():
    data = encode(toy_document())
    run = open_run(data)
    assert (run.kind, run.document.body.times) == (TOY, 3)
    policy = ClientPolicy(trusts=("toy",), in_memory=True)
    node = Node(policy, [[0.1, 0.2]])
    assert isinstance(node.send(Enrol(doc=data)), Enrolled)
    greet = Greet(doc_hash=run.doc_hash, name="Ada")
    assert node.send(greet) == Greeted(doc_hash=run.doc_hash, text="hello, Ada")
    assert node.session(run.doc_hash).party == b"Ada"

    longest = limits.request_limit(run, read_head(encode(greet)))
    assert longest == limits.FIRST + 64
    assert limits.reply_limit(run, greet) == limits.SHORT + 128

    for _ in range(2):  # the second one is answered by what the session kept
        ended = node.send(Abort(doc_hash=run.doc_hash))
        assert ended == Greeted(doc_hash=run.doc_hash)
    assert code(node.send(greet)) == Code.STALE


@pytest.mark.usefixtures("_toy")
def test_requests_of_another_kind_of_run_are_refused():
    greeting = encode(toy_document())
    others = {
        encode(make_document("trusted-server")): lambda h: Greet(
            doc_hash=h, name="Ada"
        ),
        greeting: lambda h: Ask(
            doc_hash=h, t=1, attempt=1, n_slots=3, root=bytes(32), slot=0
        ),
    }
    for data, make in others.items():
        node = Node(ClientPolicy.for_simulation(), [[0.1, 0.2]])
        node = replace(
            node, policy=replace(node.policy, trusts=("toy", "trusted-server"))
        )
        assert isinstance(node.send(Enrol(doc=data)), Enrolled)
        request = make(open_run(data).doc_hash)
        assert code(node.send(request)) == Code.BAD_MESSAGE


@pytest.mark.usefixtures("_toy")
def test_messages_of_a_kind_are_requests_or_replies():
    request = encode(Greet(doc_hash=bytes(32), name="Ada"))
    reply = encode(Greeted(doc_hash=bytes(32)))
    assert decode_request(request).name == "Ada"
    assert decode_reply(reply).text == ""
    for read, data in ((decode_request, reply), (decode_reply, request)):
        with pytest.raises(MessageError):
            read(data)
    longer = request.replace(b"\xa3Ada", b"\xd9\3Ada")
    with pytest.raises(MessageError):
        decode_request(longer)
    with pytest.raises(MessageError):
        read_head(reply)


def test_messages_of_a_kind_that_is_not_registered_are_refused():
    with pytest.raises(MessageError):
        decode_request(encode(Greet(doc_hash=bytes(32), name="Ada")))


@pytest.mark.usefixtures("_toy")
def test_a_kind_has_limits_and_requirements_of_its_own():
    run = open_run(encode(toy_document()))
    policy = ClientPolicy(trusts=("toy",), max_opened=4)
    expected = "Expected letters <= max_opened=4. Got 5 instead."
    assert policy.objection(run) == expected
    assert replace(policy, max_opened=5).objection(run) is None
    with pytest.raises(UnacceptableRunError, match="Expected a greeting"):
        open_run(encode(toy_document(greeting="")))


@pytest.mark.usefixtures("_toy")
def test_a_kind_belongs_to_its_trust_model_and_its_algorithms():
    document = toy_document()
    body = document.body
    usual = Horizontal(algorithm=body.algorithm, domain=body.domain)
    with pytest.raises(UnacceptableRunError, match="A toy body belongs to trust='toy'"):
        open_run(encode(toy_document(body=usual)))
    with pytest.raises(UnacceptableRunError, match="Its parties hold words"):
        open_run(encode(toy_document(trust="trusted-server")))
    algorithm = make_algorithm(FastLloyd.ALGORITHM)
    other = Toy(
        algorithm=algorithm_to_config(algorithm),
        domain=body.domain,
        greeting=body.greeting,
    )
    with pytest.raises(UnacceptableRunError, match="Its parties hold records"):
        open_run(encode(toy_document(body=other)))


@pytest.mark.usefixtures("_toy")
def test_a_kind_has_a_part_of_its_report():
    run = open_run(encode(toy_document()))
    report = Report("Toy", run.plan, run.trust, "none", 3, part=ToyPart("hello"))
    assert report.statements[0] == "All 3 clients say hello."
    assert set(report.protects_against.values()) == {"No: it hears hello."}
    assert report.neighbours == "one greeting replaced by another"
    values = json.loads(json.dumps(report.to_dict()))
    assert (values["toy"], values["vertical"]) == ({"greeting": "hello"}, None)
    assert report_from(values).part == ToyPart("hello")
    outcome = Outcome(
        report, Box([0], [1]), ("x",), 2, "2", None, None, None, None, None
    )
    page = page_of(outcome, None, [], {})
    assert "Who learns what" in page
    assert "All 3 clients say hello." in page


def test_the_toy_is_gone():
    assert "toy" not in kind_names()
    assert kinds.kind_of_message("greet") is None
