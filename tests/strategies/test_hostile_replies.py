"""Whole runs within the limits of readers, and with a node that sends what it likes (row 55)."""

import tracemalloc

import pytest
from flwr.app import Message
from harness import SIMULATED, stock_start
from rows import SIGHTED, TRUSTS, M, make, parts_of, run, runs

from flower_kmeans.client import kmeans_client_app
from flower_kmeans.protocol.incidents import MALFORMED
from flower_kmeans.protocol.limits import reply_limit, request_limit
from flower_kmeans.protocol.messages import Enrol, Finish, decode_request, read_head
from flower_kmeans.protocol.results import longest_result
from flower_kmeans.protocol.wire import MAX_DOCUMENT, encode, from_content, to_content
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

MiB = 2**20
HOSTILE = M - 1
HEAD = (
    b"\x84\xa4type\xa6answer\xa8doc_hash\xc4\x20"
    + bytes(32)
    + b"\xa3tag\xc4\x20"
    + bytes(32)
)
NAMES_OF_ROWS = (
    "FastLloyd",
    "SynopsisKMeans",
    "SynopsisKMeans, bounds",
    "FedDPKMeans",
    "Split",
)
NAMES = ("answer.sealed", "answer.envelopes", "100 MB")


def content_of(name):
    if name == "100 MB":
        return to_content(bytes(10**8))
    field = name.removeprefix("answer.").encode()
    n = 8 * MiB
    many = (
        bytes([0xA0 + len(field)])
        + field
        + b"\xdd"
        + n.to_bytes(4, "big")
        + b"\xc4\0" * n
    )
    return to_content(HEAD + many)


@pytest.mark.claim("threat-model", "55")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("start", [None, stock_start], ids=["start", "stock"])
@pytest.mark.parametrize("takes_part", [True, False])
@pytest.mark.parametrize(
    "trust", ["distributed-noise", "oblivious-server", "clients-only"]
)
@pytest.mark.parametrize("name", NAMES)
def test_55_a_node_that_sends_what_it_likes_costs_itself_alone(
    name, trust, takes_part, start
):
    """A client of the run, or a stranger: its replies are not even copied."""
    content, results = content_of(name), []
    parts = parts_of("GLloyd")
    app = kmeans_client_app(
        lambda context: parts[int(context.node_config["partition-id"])],
        SIMULATED,
        lambda result, context: results.append(result),
    )

    def hostile(message, context):
        is_own = int(context.node_config["partition-id"]) == HOSTILE
        is_enrol = is_own and isinstance(
            decode_request(from_content(message.content)), Enrol
        )
        if is_own and not (is_enrol and takes_part):
            return Message(content, reply_to=message)
        return app(message, context)

    strategy = make("GLloyd", trust, n_clients=M - 1)
    begin = start or type(strategy).start
    tracemalloc.start()
    try:
        with task_identity():
            begin(strategy, InProcessGrid(hostile, M), timeout=60)
        assert tracemalloc.get_traced_memory()[1] < 8 * MiB
    finally:
        tracemalloc.stop()
    report = strategy.report
    assert report.answers == [M - 1] * 3
    assert len(results) == M - 1
    incidents = [(each.round, each.reason) for each in report.incidents]
    rounds = [1, 2, 3, 4] if takes_part else [0]
    assert sorted(set(incidents)) == [(t, MALFORMED) for t in rounds]
    assert len(incidents) == len(rounds)


@pytest.mark.default_cases(
    "FastLloyd-oblivious-server", "SynopsisKMeans-trusted-server"
)
@pytest.mark.parametrize(
    ("name", "trust"),
    [
        pytest.param(name, trust, id=f"{name}-{trust}")
        for name in (
            "FastLloyd",
            "SynopsisKMeans",
            "SynopsisKMeans, bounds",
            "FedDPKMeans",
            "Split",
        )
        for trust in TRUSTS
        if runs(name, trust)
    ],
)
def test_what_a_run_sends_is_within_the_limits_of_its_readers(name, trust):
    outcome = run(name, make(name, trust))
    sent = [item.message for item in outcome.grid.sent]
    for request in sent:
        if not isinstance(request, Enrol):
            # Without the document, which a request has for clients that lost it alone.
            limit = (
                request_limit(outcome.run, read_head(encode(request))) - MAX_DOCUMENT
            )
            assert len(encode(request)) <= limit
    asked = {item.node_id: item.message for item in outcome.grid.sent}
    for item in outcome.grid.received:
        if item.kind in ("finished", "enrolled"):
            assert len(encode(item.message)) <= reply_limit(
                outcome.run, asked[item.node_id]
            )
    results = [each.result for each in sent if isinstance(each, Finish) and each.result]
    assert bool(results) == (trust in SIGHTED)
    for data in results:
        assert len(data) <= longest_result(outcome.run) <= 16 * len(data) + 2**12
