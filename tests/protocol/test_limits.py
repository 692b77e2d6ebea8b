"""How much a message may hold, and what is not read at all (docs/protocol.md, section 8).

Row 55 of section 10: whatever a node or a server sends, it takes little more memory
than its bytes.
"""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from cohorts import BLIND, SHARED, Cohort, make_run
from documents import BOX, TRUSTS, make_algorithm
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from harness import memory_below
from malformed import fields_of, write
from serving import make_net

from flower_kmeans.algorithms.lloyd import GLloydAlgorithm, LloydAlgorithm
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.errors import MessageError, TooFewClientsError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol import exchange, limits, messages
from flower_kmeans.protocol.exchange import MALFORMED, Exchange
from flower_kmeans.protocol.kinds import kind_names, run_kind
from flower_kmeans.protocol.limits import SHORT, reply_limit, request_limit
from flower_kmeans.protocol.messages import (
    Add,
    Answer,
    Ask,
    Code,
    Finish,
    Finished,
    Keys,
    Refusal,
)
from flower_kmeans.protocol.results import longest_result
from flower_kmeans.protocol.run import parse_document
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import decode, encode, to_content
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.vertical.protocol import parcels
from flower_kmeans.vertical.protocol.messages import Delivery, Parcel, Sent, Turn
from flower_kmeans.vertical.protocol.relay import Mailboxes
from tests.protocol.test_messages import ENTRY, PARCEL, REPLIES, REQUESTS, WRAP

MiB = 2**20
DOC_HASH = bytes(32)
FINISH, FINISHED = Finish(doc_hash=DOC_HASH), Finished(doc_hash=DOC_HASH)

AN_ADD = {"h": DOC_HASH, "tag": DOC_HASH, "survivors": b"", "public_keys": b""}

# ------------------------------------------------------------------------ small objects

SMALL = {
    "integers": b"\1",
    "empty bytes": b"\xc4\0",
    "single bytes": b"\xc4\1a",
    "texts": b"\xa1a",
    "arrays": b"\x90",
    "maps": b"\x80",
    "pairs": b"\x92\1\xc4\0",
    "nothing": b"\xc0",
}


def array_of(element, n_bytes, lacking=0):
    """Return an array of equal elements; it lacks some of those that it announces."""
    n = n_bytes // len(element)
    return b"\xdd" + n.to_bytes(4, "big") + element * (n - lacking)


def map_of(element, n_bytes):
    """Return a map from different names to equal elements."""
    n = n_bytes // (len(element) + 7)
    pairs = (b"\xa6%06x" % i + element for i in range(n))
    return b"\xdf" + n.to_bytes(4, "big") + b"".join(pairs)


def names_of(message):
    return message.__struct_encode_fields__


def within(message, name, value):
    """Return a message with another value of a field."""
    return write(list((fields_of(encode(message)) | {name: value}).items()))


def places():
    """Yield each decoder with a function that puts a value into one place of one message."""
    for decoder, listed in (
        (messages.decode_request, REQUESTS),
        (messages.decode_reply, REPLIES),
    ):
        for message in listed:
            for name in (*names_of(message), "type", "unknown"):
                yield (
                    decoder,
                    lambda value, m=message, name=name: within(m, name, value),
                )
    sent = Sent
    inner = {
        "entries": (Finish, ENTRY),
        "wraps": (Finish, WRAP),
        "parcels": (sent, PARCEL),
    }
    for field, (kind, part) in inner.items():
        decoder = messages.decode_reply if kind is sent else messages.decode_request
        for name in (*names_of(part), "unknown"):

            def put(value, field=field, kind=kind, part=part, name=name):
                return within(
                    kind(doc_hash=DOC_HASH), field, b"\x91" + within(part, name, value)
                )

            yield decoder, put
    for decoder in (messages.decode_request, messages.decode_reply):
        yield decoder, lambda value: value


@pytest.mark.claim("threat-model", "55")
@pytest.mark.default_cases("empty bytes")
@pytest.mark.parametrize("element", SMALL.values(), ids=SMALL.keys())
def test_55_many_small_objects_in_any_field_take_no_memory(element):
    bombs = [
        array_of(element, 2 * MiB),
        array_of(element, 2 * MiB, lacking=1),
        map_of(element, 2 * MiB),
    ]
    for name in kind_names():
        run_kind(name)  # the first message of a kind imports its modules
    for decoder, put in places():
        for bomb in bombs:
            data = put(bomb)
            with memory_below(MiB // 4), pytest.raises(MessageError):
                decoder(data)


@pytest.mark.claim("threat-model", "55")
def test_55_the_messages_that_took_twenty_times_their_size():
    """At a server that did not know which reply it waits for, and at a client."""
    size = 32 * MiB
    answer, sent = (
        Answer(doc_hash=DOC_HASH, tag=DOC_HASH),
        Sent(doc_hash=DOC_HASH),
    )
    parcel = within(PARCEL, "receivers", b"\xc4\0")
    many = array_of(parcel, size)
    at = {
        "doc_hash": DOC_HASH,
        "t": 2,
        "attempt": 1,
        "n_slots": 3,
        "root": DOC_HASH,
        "slot": 0,
    }
    entry = within(ENTRY, "shares", array_of(b"\x92\1\xc4\0", size))
    bombs = [
        within(answer, "envelopes", array_of(b"\xc4\0", size)),
        within(answer, "sealed", array_of(b"\xc4\1a", size)),
        within(
            sent,
            "parcels",
            b"\x91" + within(PARCEL, "receivers", array_of(b"\1", size)),
        ),
        within(sent, "parcels", many),
        within(answer, "sealed", array_of(b"\xc4\1a", size, lacking=1)),
    ]
    asked = within(Ask(**at), "entries", b"\x91" + entry)
    with memory_below(MiB):
        for bomb in bombs:
            with pytest.raises(MessageError):
                messages.decode_reply(bomb)
        with pytest.raises(MessageError):
            messages.decode_request(asked)


def test_arrays_have_as_many_elements_as_they_may_have():
    entries = [msgspec.structs.replace(ENTRY, t=t + 1) for t in range(4_097)]
    delivery = Delivery(sender=1, step="open", key=bytes(48), data=b"")
    turn = Turn(doc_hash=DOC_HASH, step="load")
    for message, field, elements, most in (
        (FINISH, "entries", entries, 4_096),
        (Sent(doc_hash=DOC_HASH), "parcels", [PARCEL] * 257, 256),
        (turn, "deliveries", [delivery] * 257, 256),
        (turn, "commitments", [DOC_HASH] * 65, 64),
    ):
        is_reply = isinstance(message, Sent)
        read = messages.decode_reply if is_reply else messages.decode_request
        right = msgspec.structs.replace(message, **{field: tuple(elements[:most])})
        assert read(encode(right)) == right
        with pytest.raises(MessageError):
            read(encode(msgspec.structs.replace(message, **{field: tuple(elements)})))


LONGEST = [
    (REQUESTS[5], "path", 17 * 32),
    (REQUESTS[5], "committee", 64 * 36),
    (REQUESTS[5], "doc", 2**20),
    (REQUESTS[0], "doc", 2**20),
    (REQUESTS[6], "survivors", 2**14),
    (REQUESTS[6], "public_keys", 2**22),
]


@pytest.mark.parametrize(("message", "field", "most"), LONGEST)
def test_fields_are_as_long_as_they_may_be(message, field, most):
    right = msgspec.structs.replace(message, **{field: bytes(most)})
    assert messages.decode_request(encode(right)) == right
    longer = msgspec.structs.replace(message, **{field: bytes(most + 1)})
    with pytest.raises(MessageError):
        messages.decode_request(encode(longer))


def test_a_parcel_has_at_most_64_receivers():
    for receivers, keys in ((65 * 4, 48), (4, 65 * 48)):
        parcel = msgspec.structs.replace(
            PARCEL, receivers=bytes(receivers), keys=bytes(keys)
        )
        with pytest.raises(MessageError):
            decode(encode(parcel), Parcel)


@pytest.mark.claim("threat-model", "55")
def test_a_run_document_has_at_most_4096_rounds_and_a_mebibyte():
    document = make_run("plain", "none").document
    words = msgspec.structs.replace(document, words=(1,) * 4_096)
    assert len(parse_document(encode(words)).words) == 4_096
    with pytest.raises(MessageError, match="malformed"):
        parse_document(encode(msgspec.structs.replace(document, words=(1,) * 4_097)))
    # in fields that hold any values
    for element in (SMALL["maps"], SMALL["single bytes"]):
        for value in (
            map_of(element, MiB - 3_000),
            b"\x81\xa1a" + array_of(element, MiB - 3_000),
        ):
            bomb = within(document, "privacy", value)
            assert MiB - 3_000 < len(bomb) <= MiB
            with memory_below(100 * MiB), suppress(MessageError):
                parse_document(bomb)
    longer = bomb + bytes(MiB)
    with memory_below(MiB), pytest.raises(MessageError, match="at most 1048576 bytes"):
        parse_document(longer)


# ------------------------------------------------------------------------------ replies


def large(trust):
    """Return an algorithm whose answers and queries are longer than all that does not grow."""
    is_private = trust_model(trust).is_private
    kind = GLloydAlgorithm if is_private else LloydAlgorithm
    budget = PrivacyBudget(1.0 if is_private else None)
    return kind.planned(300, BOX, budget, n_records=10**6, n_rounds=3)


@pytest.fixture(params=TRUSTS)
def played(request, tmp_path):
    """A whole run, all of whose longer requests were measured before they were decoded."""
    document = {"algorithm": large(request.param)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "FIRST", 4_000)
        patch.setattr(messages, "read_head", seen := Seen(messages.read_head))
        net = make_net(tmp_path, request.param, n=9, document=document).play()
        assert len(net.results) == 9
        yield SimpleNamespace(net=net, heads=list(seen.results))


class Seen:
    """A function whose results a test may look at."""

    def __init__(self, function):
        self.function, self.results = function, []

    def __call__(self, *args):
        self.results.append(self.function(*args))
        return self.results[-1]


@pytest.mark.claim("protocol", "request-at-most-1")
def test_replies_of_a_run_are_as_long_as_planned(played):
    run, kinds = played.net.server.run, set()
    for _, _, request, reply in played.net.log:
        limit, length = reply_limit(run, request), len(encode(reply))
        assert length <= limit <= length + SHORT, request
        kinds.add(type(request))
    assert {messages.Enrol, Ask, Finish} <= kinds
    assert (Add in kinds) == run.trust.has_committee
    assert (Keys in kinds) == (run.trust.is_blind and not run.trust.has_committee)


@pytest.mark.parametrize("keys", ["roster", "relayed"])
def test_a_reply_may_have_an_envelope_for_each_peer_of_its_request(keys, tmp_path):
    cohort = Cohort(tmp_path, "clients-only", keys).set_up()
    run, row = cohort.run, 108 if keys == "roster" else 36
    asks = [cohort.ask_of(0, peers=bytes(row * n)) for n in (0, 1_000)]
    keys_of = [Keys(doc_hash=run.doc_hash, peers=bytes(row * n)) for n in (0, 1_000)]
    for without, many in (asks, keys_of):
        assert reply_limit(run, many) - reply_limit(run, without) == 48_000


@pytest.mark.claim("protocol", "request-at-most-1")
def test_requests_of_a_run_are_no_longer_than_planned(played):
    run, trust = played.net.server.run, played.net.server.run.trust
    for _, _, request, _ in played.net.log:
        if isinstance(request, messages.Enrol):
            continue
        length, head = len(encode(request)), messages.read_head(encode(request))
        assert head.doc_hash == run.doc_hash
        assert length <= request_limit(run, head)
        if not (trust.is_blind or isinstance(request, Finish)):
            assert request_limit(run, head) < length + limits.FIRST + 2**15
    measured = {head.kind for head in played.heads}
    assert measured == ({"add"} if trust.has_committee else set()) | {"ask", "finish"}


def planned(run, kind, **fields):
    """Return for how many bytes of planned data a request of a kind has room."""
    return (
        request_limit(run, messages.Head(kind=kind, doc_hash=DOC_HASH, **fields))
        - limits.FIRST
    )


def test_planned_lengths_of_requests_by_hand():
    """From docs/protocol.md, for 901 words, a query of 300 x 2 numbers, and three rounds."""
    share, entry = 8 * 901 + 16, 2**14 + 512
    sighted = make_run(
        "distributed-noise", "relayed", algorithm=large("distributed-noise")
    )
    assert planned(sighted, "add", t=1, n_slots=1_000) == 1_000 * (32 + share) + 125
    assert planned(sighted, "ask", t=2, n_slots=1_000) == 8 * 300 * 2 + 2**14
    assert planned(sighted, "finish") == 8 * (300 * 4 + 1 + 6 * 9 * 3) + 2**10
    blind = make_run("clients-only", "relayed", algorithm=large("clients-only"))
    assert planned(blind, "ask", t=3, n_slots=1_000) == 36_000 + 2 * (
        64 * share + entry
    )
    assert planned(blind, "finish") == 3 * (64 * share + entry)
    masks = make_run("oblivious-server", "relayed", algorithm=large("oblivious-server"))
    assert planned(masks, "keys") == 36 * 2**17
    assert planned(masks, "ask", t=3, n_slots=1_000) == 36_000 + 2 * (share + entry)
    for kind, fields in (
        ("add", {"t": 0}), ("add", {"t": 4, "n_slots": 9}), ("ask", {"t": 4}), ("hold", {}),
        ("abort", {}), ("turn", {}),
    ):  # fmt: skip
        assert planned(sighted, kind, **fields) == 0
    assert planned(masks, "add", t=1, n_slots=9) == 0  # nobody adds
    # Longer ones than any message do not exist.
    assert planned(sighted, "add", t=1, n_slots=2**32 - 1) == 256 * MiB - limits.FIRST


def test_the_planned_length_of_a_result_with_a_synopsis():
    algorithm = make_algorithm(SynopsisAlgorithm, "trusted-server")
    run = make_run("trusted-server", "none", algorithm=algorithm)
    most_parts, p = algorithm.mixture.most_parts, algorithm.mixture.n_directions
    rounds = run.document.rounds
    synopsis = 2 * p + most_parts * (2 * p + 2) + 4
    assert longest_result(run) == 8 * (2 * 4 + 1 + 54 * rounds + synopsis) + 2**10


def content_of(n_bytes):
    return to_content(bytes(n_bytes))


def reply_of(content):
    """Return a message as a grid hands it over."""
    return SimpleNamespace(has_content=lambda: True, content=content)


@pytest.mark.claim("threat-model", "55")
@pytest.mark.parametrize("n_bytes", [2**10 + 1, 10**6, 2**20 + 8, 10**8])
def test_55_a_reply_that_is_too_long_is_not_decoded(n_bytes, monkeypatch):
    monkeypatch.setattr(exchange, "decode_reply", seen := Seen(messages.decode_reply))
    message = reply_of(content_of(n_bytes))
    with memory_below(MiB // 8):
        assert exchange.read(message, SHORT) == MALFORMED
    assert seen.results == []
    assert exchange.read(reply_of(to_content(encode(FINISHED))), SHORT) == FINISHED


def test_a_reply_of_the_longest_length_is_decoded():
    answer = encode(Answer(doc_hash=DOC_HASH, tag=DOC_HASH, words=bytes(3 * MiB)))
    assert isinstance(exchange.read(reply_of(to_content(answer)), len(answer)), Answer)
    assert exchange.read(reply_of(to_content(answer)), len(answer) - 1) == MALFORMED


def test_a_length_that_is_announced_is_the_length_that_travels():
    """A header that announces less than its array holds passes no limit."""
    array = dict(to_content(bytes(4 * MiB))["kmeans.data"])["m"]
    header = ConfigRecord({"v": 3, "n": 2 * MiB})
    content = RecordDict({"kmeans": header, "kmeans.data": ArrayRecord({"m": array})})
    with memory_below(MiB):
        assert exchange.read(reply_of(content), 3 * MiB) == MALFORMED


class Grid:
    """Nodes of which some send what they like; `known_lost` makes it one that never waits."""

    def __init__(self, answers):
        self.answers, self.pushed, self.n_sent = answers, {}, 0

    def get_node_ids(self):
        return list(self.answers)

    def push_messages(self, listed):
        ids = []
        for message in listed:
            self.n_sent += 1
            message.metadata.__dict__["_message_id"] = str(self.n_sent)
            self.pushed[str(self.n_sent)] = message
            ids.append(str(self.n_sent))
        return ids

    def pull_messages(self, ids):
        found = []
        for message_id in ids:
            message = self.pushed.pop(message_id, None)
            if message is not None:
                found += self.answers[message.metadata.dst_node_id](message)
        return found

    def known_lost(self, ids):
        return set()


def honest(message):
    return [Message(to_content(encode(FINISHED)), reply_to=message)]


@pytest.mark.claim("threat-model", "55")
def test_55_of_a_trip_one_reply_of_each_node_is_read(monkeypatch):
    """Neither second replies, nor those to other trips, nor those of nodes that were not asked."""
    large = content_of(10**8)

    def stray(message, reply_to):
        reply = Message(large, reply_to=message)
        reply.metadata.__dict__["_reply_to_message_id"] = reply_to
        return reply

    def twice(message):
        return [*honest(message), Message(large, reply_to=message), *honest(message)]

    def of_others(message):
        return [stray(message, "1"), stray(message, "no message"), *honest(message)]

    monkeypatch.setattr(exchange, "read", seen := Seen(exchange.read))
    with task_identity():
        own = Exchange(Grid({1: honest, 2: twice, 3: of_others}), 60.0)
        first = list(own.trip("finish", {1: FINISH}, lambda: False))
        with memory_below(MiB):
            got = list(
                own.trip("finish", dict.fromkeys((1, 2, 3), FINISH), lambda: False)
            )
    assert first == [(1, FINISHED)]
    assert sorted(node_id for node_id, _ in got) == [1, 2, 3]
    assert seen.results == [FINISHED] * 4


def test_an_exchange_has_a_limit_for_each_request():
    asked = []

    def limit_of(request):
        asked.append(request)
        return 2_000 if isinstance(request, Ask) else SHORT

    answer = Answer(doc_hash=DOC_HASH, tag=DOC_HASH, words=bytes(1_600))
    at = {
        "doc_hash": DOC_HASH,
        "t": 1,
        "attempt": 1,
        "n_slots": 3,
        "root": DOC_HASH,
        "slot": 0,
    }

    def words(message):
        return [Message(to_content(encode(answer)), reply_to=message)]

    with task_identity():
        own = Exchange(Grid({1: words, 2: words}), 60.0, limit_of=limit_of)
        ask = Ask(**at)
        assert dict(own.trip("ask", {1: ask, 2: ask}, bool)) == {1: answer, 2: answer}
        assert dict(own.trip("finish", {1: FINISH}, bool)) == {1: MALFORMED}
        assert dict(Exchange(Grid({1: words}), 60.0).trip("ask", {1: ask}, bool)) == {
            1: MALFORMED
        }
        sent = own.messages("ask", {1: ask})
        sent[0].metadata.__dict__["_message_id"] = "0"
        assert list(own.replies(words(sent[0]), sent)) == [(1, answer)]
    assert asked == [ask, FINISH, ask]


# ----------------------------------------------------------------------------- requests


@pytest.fixture
def long_ones(monkeypatch):
    """Let requests of more than 4,000 bytes be measured, and keep those that are decoded."""
    monkeypatch.setattr(limits, "FIRST", 4_000)
    seen = Seen(messages.decode_request)
    monkeypatch.setattr(messages, "decode_request", seen)
    return seen.results


def refused(cohort, request, expected):
    reply = cohort.send(0, request)
    assert isinstance(reply, Refusal)
    assert (Code(reply.code), reply.doc_hash) == (expected, request.doc_hash)


@pytest.mark.claim("threat-model", "55")
@pytest.mark.parametrize("trust", TRUSTS)
def test_55_a_longer_request_than_the_run_has_is_not_decoded(
    trust, tmp_path, long_ones
):
    cohort = Cohort(tmp_path, trust).set_up()
    right = cohort.ask_of(0)
    run = cohort.run
    for request in (
        msgspec.structs.replace(right, path=bytes(544), query=bytes(MiB)),
        Finish(doc_hash=cohort.doc_hash, result=bytes(MiB)),
        messages.Hold(doc_hash=cohort.doc_hash, doc=bytes(6_000), wraps=()),
        Add(**cohort.at(0, 1), **AN_ADD, sealed=bytes(MiB)),
        Turn(doc_hash=cohort.doc_hash, step="load", deliveries=(delivery(MiB),)),
    ):
        if len(encode(request)) <= request_limit(
            run, messages.read_head(encode(request))
        ):
            assert trust_model(trust).is_blind
            assert isinstance(request, Finish | Ask)
            continue
        del long_ones[:]
        data = encode(request)
        with memory_below(MiB // 2):
            reply = cohort.nodes[0].answer(data)
        refusal = Refusal(code=Code.BAD_MESSAGE, doc_hash=cohort.doc_hash)
        assert messages.decode_reply(reply) == refusal
        assert long_ones == []
    assert isinstance(cohort.send(0, right), Answer)


def delivery(n_bytes):
    return Delivery(sender=1, step="open", key=bytes(48), data=bytes(n_bytes))


@pytest.mark.parametrize("trust", BLIND)
def test_entries_of_more_rounds_than_the_run_has_had_are_not_decoded(
    trust, tmp_path, long_ones
):
    cohort = Cohort(tmp_path, trust).set_up()
    cohort.round(1)
    long = msgspec.structs.replace(cohort.entries[0], words=bytes(MiB))
    refused(cohort, cohort.ask_of(0, t=2, entries=(long,)), Code.BAD_MESSAGE)
    assert isinstance(cohort.ask(0, t=2), Answer)


@pytest.mark.claim("protocol", "request-at-most-1")
@pytest.mark.parametrize("trust", SHARED)
def test_what_a_client_of_an_unknown_run_is_sent_is_not_decoded_without_its_document(
    trust, tmp_path, long_ones
):
    """A request of any length then has the refusal that brings the document."""
    cohort = Cohort(tmp_path, trust).set_up()
    answers = cohort.deal()
    add = cohort.add_of(0, answers)
    padded = msgspec.structs.replace(add, sealed=bytes(MiB), doc=b"")
    cohort.nodes[0].restart()
    for request in (padded, cohort.ask_of(0, peers=bytes(MiB), doc=b"")):
        del long_ones[:]
        refused(cohort, request, Code.NEED)
        assert long_ones == []
    rows = Keys(doc_hash=cohort.doc_hash, peers=bytes(36 * 2_000))
    refused(cohort, rows, Code.STALE)
    assert long_ones == []
    doc = cohort.run.data
    refused(cohort, msgspec.structs.replace(padded, doc=doc), Code.BAD_MESSAGE)
    assert long_ones == []
    refused(cohort, msgspec.structs.replace(padded, doc=doc + b"\0"), Code.BAD_MESSAGE)
    other = make_run(trust, "relayed", run=bytes(16), min_clients=7).data
    refused(cohort, msgspec.structs.replace(padded, doc=other), Code.BAD_MESSAGE)
    assert long_ones == []


def test_a_long_request_of_a_run_that_the_policy_refuses_is_not_decoded(
    tmp_path, long_ones
):
    cohort = Cohort(tmp_path, "distributed-noise").set_up()
    node = cohort.nodes[0]
    del long_ones[:]
    node.policy = replace(node.policy, trusts=("plain",))
    refused(cohort, cohort.ask_of(0, query=bytes(60_000)), Code.POLICY)
    assert long_ones == []


@pytest.mark.claim("protocol", "request-at-most-1")
@pytest.mark.parametrize("trust", TRUSTS)
def test_a_long_request_of_a_run_that_is_over_is_not_decoded(
    trust, tmp_path, long_ones
):
    cohort = Cohort(tmp_path, trust).set_up()
    request = cohort.ask_of(0, query=bytes(60_000))
    for t in (1, 2, 3):
        cohort.round(t)
    cohort.finish()
    del long_ones[:]
    refused(cohort, request, Code.STALE)
    # Its acknowledgement was lost: nothing of what it brings is needed again.
    long = Finish(doc_hash=cohort.doc_hash, result=bytes(60_000))
    assert cohort.send(0, long) == Finished(doc_hash=cohort.doc_hash)
    assert long_ones == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        b"\xff",
        b"\x81\xa4type\xa3ask",
        b"\x82\xa4type\xa5enrol\xa3doc\xc4\1a",
        write([("type", b"\xa3ask"), ("doc_hash", b"\xc4\x1f" + bytes(31))]),
        b"\x81\xa1a" + b"\x91" * 10**6,
    ],
)
def test_long_bytes_that_have_no_head_are_malformed(data, tmp_path, long_ones):
    cohort = Cohort(tmp_path, "plain").set_up()
    del long_ones[:]
    reply = messages.decode_reply(cohort.nodes[0].answer(data + bytes(5_000)))
    assert reply == Refusal(code=Code.BAD_MESSAGE)
    assert long_ones == []


@pytest.mark.parametrize("element", [b"\xc4\0", b"\x90"])
def test_55_the_head_of_a_message_takes_no_memory(element):
    for message in REQUESTS[1:]:
        for name in (*names_of(message), "unknown"):
            # The first message of a process may load code.
            with suppress(MessageError):
                messages.read_head(within(message, name, array_of(element, 1)))
            data = within(message, name, array_of(element, MiB))
            with memory_below(MiB // 8):
                try:
                    head = messages.read_head(data)
                except MessageError:
                    continue
            assert head.doc_hash == message.doc_hash


# ------------------------------------------------------------------------- what is kept


def test_55_a_server_keeps_one_incident_of_a_kind_in_a_round(tmp_path):
    """Of a client that is asked again and again, because there are too few without it."""
    lies = {3: lambda request, reply: MALFORMED if isinstance(request, Ask) else reply}
    net = make_net(
        tmp_path, "distributed-noise", n=5, lies=lies, document={"min_clients": 5}
    )
    net.set_up()
    with pytest.raises(TooFewClientsError):
        net.round()
    assert [node_id for node_id, _ in net.replies("ask", 1)].count(3) == 3
    assert [(each.node_id, each.round) for each in net.server.incidents] == [(3, 1)]


def test_a_message_holds_at_most_256_parcels():
    planned = [parcels.Planned(1, "keys", 0, n, (0,), 1) for n in range(300)]
    assert [len(part) for part in parcels.in_parts(tuple(planned))] == [256, 44]
    mail = Mailboxes(n_parties=2)
    for n in range(300):
        mail.add(
            0,
            Delivery(sender=1, step="keys", number=n, key=bytes(48), data=b"1"),
        )
    assert not mail.fits(0)
    collected = [list(mail.collect(0)), list(mail.collect(0)), list(mail.collect(0))]
    assert [len(each) for each in collected] == [256, 44, 0]
    assert [each.number for each in collected[0] + collected[1]] == list(range(300))
    for delivery in collected[0]:
        mail.add(0, delivery)
    assert mail.fits(0)
