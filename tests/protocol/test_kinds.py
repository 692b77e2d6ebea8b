"""Kinds of runs: their bodies, their messages, and a third kind by registration alone."""

import json
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from cohorts import Node, code
from documents import make_algorithm, make_document
from flwr.app import Message
from malformed import fields_of, second_encodings, write
from vertical_runs import make_document as make_document_of_columns

from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.cli.page import report_from
from flower_kmeans.client import kmeans_client_app
from flower_kmeans.data.domain import Box
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol import kinds, limits, messages, wire
from flower_kmeans.protocol.incidents import MALFORMED
from flower_kmeans.protocol.kinds import kind_names, run_kind
from flower_kmeans.protocol.messages import (
    Abort,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Finished,
    Head,
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
from flower_kmeans.protocol.wire import encode, to_content
from flower_kmeans.report.html import page_of
from flower_kmeans.report.outcome import Outcome
from flower_kmeans.report.report import Report
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import FastLloyd
from flower_kmeans.vertical.protocol.messages import Joined, Sent, Turn, TurnHead
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
def test_a_policy_knows_trust_models_that_were_registered_after_its_import():
    with pytest.raises(ConfigurationError, match=r"^Expected trusts .*'toy'\]\. Got"):
        ClientPolicy(trusts=("no trust model",))


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


# ---------------------------------------------------------------- code of other kinds

READING = """
import pickle, sys

from flwr.app import RecordDict

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.client import Client
from flower_kmeans.protocol.messages import Code, decode_reply
from flower_kmeans.protocol.policy import ClientPolicy

requests, replies = pickle.load(sys.stdin.buffer)
policy = ClientPolicy(trusts=("plain", "clients-only"), in_memory=True)
for data in requests:
    refusal = decode_reply(Client(policy, RecordDict(), lambda: [[0.1]]).answer_bytes(data))
    print(Code(refusal.code).name)
for data in replies:
    try:
        decode_reply(data, ("horizontal",))
    except MessageError:
        print("refused")
print([name for name in sys.modules if name.startswith("flower_kmeans.vertical")])
"""


@pytest.mark.claim("threat-model", "no-message-makes-it")
def test_no_message_makes_a_reader_load_the_code_of_another_kind():
    """Neither at a client whose policy accepts no such runs, nor at a server of another run."""
    document = make_document_of_columns()
    algorithm = make_document("plain").body.algorithm | {"name": "vertical"}
    body = msgspec.structs.replace(make_document("plain").body, algorithm=algorithm)
    turn = Turn(doc_hash=bytes(32), step="load")
    of_columns = encode(document)
    fields = [*fields_of(of_columns).items()]
    both = write([*fields, ("body", encode(body))])
    requests = {
        encode(turn): "BAD_MESSAGE",
        encode(msgspec.structs.replace(turn, peers=bytes(2**21))): "NEED",
        encode(Enrol(doc=of_columns)): "POLICY",
        encode(Enrol(doc=both)): "POLICY",
        encode(Enrol(doc=encode(make_document("plain", body=body)))): "POLICY",
    }
    replies = [
        encode(Joined(doc_hash=bytes(32), slot=0, public_key=bytes(32))),
        encode(Sent(doc_hash=bytes(32))),
    ]
    done = subprocess.run(
        [sys.executable, "-c", READING],
        input=pickle.dumps(([*requests], replies)),
        capture_output=True,
        check=True,
        timeout=600,
    )
    *found, loaded = done.stdout.decode().splitlines()
    assert found == [*requests.values(), "refused", "refused"]
    assert loaded == "[]"


@pytest.mark.parametrize(
    "reply",
    [
        Joined(doc_hash=bytes(32), slot=0, public_key=bytes(32)),
        Sent(doc_hash=bytes(32)),
    ],
    ids=["joined", "sent"],
)
def test_a_server_reads_replies_of_its_own_kind_of_run_alone(reply, monkeypatch):
    """A node that replies as in a vertical run is left out, and nothing more."""
    parts = np.random.default_rng(1).random((4, 50, 2))
    app = kmeans_client_app(
        lambda context: parts[int(context.node_config["partition-id"])],
        ClientPolicy.for_simulation(),
        lambda result, context: None,
    )

    def hostile(message, context):
        if int(context.node_config["partition-id"]) == 3:
            return Message(to_content(encode(reply)), reply_to=message)
        return app(message, context)

    imported, real = [], kinds.imported
    monkeypatch.setattr(
        kinds, "imported", lambda path: imported.append(path) or real(path)
    )
    strategy = FastLloyd(
        2, Box([0, 0], [1, 1]), PrivacyBudget(4.0), n_records=200, n_clients=3
    )
    with task_identity():
        strategy.start(InProcessGrid(hostile, 4), timeout=60)
    assert {*imported} == {kinds._REGISTERED["horizontal"].path}
    assert {each.reason for each in strategy.report.incidents} == {MALFORMED}
    assert {*strategy.report.answers} == {3}


@pytest.mark.usefixtures("_toy")
def test_a_kind_whose_code_cannot_be_imported_is_refused(monkeypatch, caplog):
    request = encode(Greet(doc_hash=bytes(32), name="Ada"))
    reply = encode(Greeted(doc_hash=bytes(32)))
    document = encode(toy_document())
    node = Node(ClientPolicy(trusts=("toy",), in_memory=True), [[0.1, 0.2]])
    assert isinstance(node.send(Enrol(doc=document)), Enrolled)
    aborted = replace(node, state=deepcopy(node.state))
    abort = Abort(doc_hash=open_run(document).doc_hash)
    assert isinstance(aborted.send(abort), Greeted)
    lacking = replace(kinds._REGISTERED["toy"], path="tests.support.no_kind:TOY")
    monkeypatch.setitem(kinds._REGISTERED, "toy", lacking)
    for read, data in ((decode_request, request), (decode_reply, reply)):
        with pytest.raises(MessageError, match="toy runs cannot be imported"):
            read(data)
    assert code(node.send(Enrol(doc=document))) == Code.POLICY
    assert "The code of toy runs cannot be imported: No module named" in caplog.text
    for each in (node, aborted):  # with a session, and with the last reply
        assert each.send(abort) == Finished(doc_hash=abort.doc_hash)
        assert not each.session(abort.doc_hash).secret


def test_the_first_fields_of_a_long_request_are_read_once(monkeypatch):
    """A second time only where its kind of run has further ones."""
    walks, real = [], messages._head_reader

    def counted(head):
        return lambda data: walks.append(head) or real(head)(data)

    monkeypatch.setattr(messages, "_head_reader", counted)
    monkeypatch.setattr(wire, "_read_tag", lambda _: pytest.fail("walked once more"))
    ask = Ask(doc_hash=bytes(32), t=2, attempt=1, n_slots=3, root=bytes(32), slot=0)
    head = read_head(encode(ask))
    assert (head.kind, head.t, head.n_slots) == ("ask", 2, 3)
    assert walks == [Head]
    turn = Turn(doc_hash=bytes(32), step="load", part=2)
    head = read_head(encode(turn))
    assert (head.kind, head.step, head.part) == ("turn", "load", 2)
    assert walks == [Head, Head, TurnHead]


def test_the_toy_is_gone():
    assert "toy" not in kind_names()
    assert kinds.kind_of_message("greet") is None
