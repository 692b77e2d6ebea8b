"""Queries of whole runs: who computes them, what travels, and what algorithms note."""

import json
import logging

import msgspec
import numpy as np
import pytest
import rows
from asking import FEW
from harness import stock_start, without_noise
from rich.console import Console
from rows import make, run

from flower_kmeans.algorithms.pe_means import HALVED, WARNINGS
from flower_kmeans.cli.outputs import print_warnings
from flower_kmeans.protocol.messages import Added, Answer, Ask, decode_request
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.protocol.wire import encode, from_content, to_content
from tests.algorithms.rows import population_of

BLIND = pytest.mark.parametrize("trust", rows.BLIND)
NAMES = pytest.mark.parametrize("name", ["PEMeans", "HDPEMeans", "SynopsisKMeans"])

# ------------------------------------------------------------------ of the server alone


def queries(outcome):
    """Return the queries that clients were sent, encoded, by round and attempt."""
    asked = {}
    for item in outcome.grid.sent:
        if isinstance(item.message, Ask):
            place = item.message.t, item.message.attempt
            assert asked.setdefault(place, item.message.query) == item.message.query
    return asked


def test_evaluate_fn_is_called_where_there_are_centroids():
    seen = []

    def evaluate(number, arrays):
        seen.append((number, set(arrays)))

    run("Split", make("Split", None), evaluate_fn=evaluate)
    assert seen == [(2, {"centroids", "counts"})]


def test_the_seed_decides_about_the_queries():
    """Nothing else is drawn in a run without noise."""
    first, again, other = (
        queries(run("Split", make("Split", "plain", seed=seed))) for seed in (1, 1, 2)
    )
    assert first == again
    assert first[1, 1] == other[1, 1] == encode({})
    assert first[2, 1] != other[2, 1]


def test_a_further_attempt_asks_the_same_query():
    def spoil(grid, messages):
        """Send four clients to a cohort that is none, in the first attempt at round 2."""
        for message in messages[:4]:
            request = decode_request(from_content(message.content))
            if isinstance(request, Ask) and (request.t, request.attempt) == (2, 1):
                spoilt = msgspec.structs.replace(request, root=bytes(32))
                message.content = to_content(encode(spoilt))

    outcome = run("Split", make("Split", None), on_push=spoil)
    asked, report = queries(outcome), outcome.strategy.report
    assert set(asked) == {(1, 1), (2, 1), (2, 2)}
    assert asked[2, 1] == asked[2, 2]
    assert (report.attempts, report.answers[0]) == (3, 6)
    outcome.agreed()


@pytest.mark.claim("protocol", "m-min-clients-c")
@pytest.mark.parametrize("start", [None, stock_start])
def test_answers_hold_nothing_but_sealed_shares(start):
    """And each sum is opened before the next query."""
    trips = []

    def push(grid, messages):
        if messages:
            trips.append(
                type(decode_request(from_content(messages[0].content))).__name__.lower()
            )

    outcome = run("Split", make("Split", None), start=start, on_push=push)
    assert trips == ["enrol", "ask", "add", "ask", "add", "finish"]
    outcome.agreed()
    messages = [item.message for item in outcome.grid.received]
    answers = [each for each in messages if isinstance(each, Answer)]
    assert [(a.words, a.envelopes, len(a.sealed) % 6) for a in answers] == [
        (b"", b"", 0)
    ] * 12
    assert [each.key_id for each in messages if isinstance(each, Added)] == [b""] * 12


@pytest.mark.claim("choosing", "synopsiskmeans-second-moments-then")
@pytest.mark.claim("reading-a-report", "warnings-follow-gravest-first")
def test_warnings_of_the_algorithm_are_in_the_report(capsys):
    """All records are in one cell, so one of the two thresholds is not."""
    strategy = make("Split", None)
    with without_noise():
        run("Split", strategy, [np.full((200, 3), 5.0)] * 6)
    report = strategy.report
    assert report.warnings == (FEW,)
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == [FEW]
    console = Console(width=200)
    print_warnings(console, report, report.statements)
    assert FEW in capsys.readouterr().out


# ----------------------------------------------------------------------- of the clients


@pytest.mark.claim("known-limitations", "warnings-algorithm-not-report")
@BLIND
def test_what_the_algorithm_notes_is_in_the_clients_logs_alone(caplog, trust):
    strategy = make("PEMeans", trust, epsilon=0.05, n_variations=300)
    with caplog.at_level(logging.WARNING, "flower_kmeans.client"):
        run("PEMeans", strategy)
    texts = [record.getMessage() for record in caplog.records]
    # of six in one process
    assert [WARNINGS[HALVED] in text for text in texts].count(True) == 1
    assert strategy.report.warnings == ()


@pytest.mark.claim("protocol", "clients-replay-entries-ask")
@pytest.mark.default_cases("values")
@BLIND
@NAMES
def test_clients_that_lose_their_memory_replay_the_transcript(name, trust):
    """A client forgets everything before round 3, renews there, and has the result in the end."""
    cleared = []

    def restart(grid, messages):
        requests = [
            decode_request(from_content(message.content)) for message in messages
        ]
        if not cleared and any(
            isinstance(each, Ask) and each.t == 3 for each in requests
        ):
            cleared.append(True)
            list(grid.states.values())[2].clear()

    strategy = make(name, trust)
    outcome = run(name, strategy, on_push=restart)
    # It lacks the run document, is asked again with it, and begins a new session. In
    # the next round it is given the group key, and answers; in the same round, where
    # votes wait for it.
    missed = 1 if trust == "oblivious-server" else 0
    answers = [6, 6] + [5] * missed + [6] * strategy.n_rounds
    assert strategy.report.answers == answers[: strategy.n_rounds]
    assert [each.round for each in strategy.report.incidents_of("renewed")] == [3]
    assert len(outcome.results) == 6
    assert outcome.one.centroids.shape[0] == 3


@pytest.mark.default_cases("SynopsisKMeans")
@NAMES
def test_clients_of_one_process_share_their_updates_and_need_not(name, monkeypatch):
    algorithm = type(make(name, "oblivious-server").algorithm)
    calls, update, found = [], algorithm.update, []

    def counted(self, state, answer, rng=None):
        calls.append(state.round)
        return update(self, state, answer, rng)

    monkeypatch.setattr(algorithm, "update", counted)
    for shared in (SharedWork(), NO_SHARED_WORK):
        monkeypatch.setattr("harness.SharedWork", lambda shared=shared: shared)
        with without_noise():
            outcome = run(name, make(name, "oblivious-server"))
        found.append((outcome.one, len(calls)))
    rounds = outcome.strategy.n_rounds
    assert sorted(set(calls)) == list(range(rounds))
    # One call of a subclass may be two, but never one for each client.
    assert found[0][1] <= 2 * rounds < 6 * rounds <= found[1][1] - found[0][1]
    np.testing.assert_array_equal(found[0][0].centroids, found[1][0].centroids)
    np.testing.assert_array_equal(found[0][0].counts, found[1][0].counts)


# -------------------------------------------------------------------------- of PE-means


@pytest.mark.claim("guarantees", "28")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
@pytest.mark.parametrize("name", ["PEMeans", "HDPEMeans"])
def test_queries_do_not_grow_with_the_population(name, trust):
    """No candidate but the selected ones is in a message; answers have a word for each."""
    sizes = []
    for n_variations in (5, 400):
        strategy = make(name, trust, n_variations=n_variations, n_rounds=3)
        outcome, algorithm = run(name, strategy), strategy.algorithm
        asks = [item.message for item in outcome.grid.sent if item.kind == "ask"]
        sizes.append({each.t: len(each.query) for each in asks})
        asked, most = outcome.queries, 3 * (n_variations + 1)
        assert not asked[0].arrays
        assert {name: a.size for name, a in asked[2].arrays.items()} == {
            "centers": 3 * len(algorithm.space.half_widths), "variations": 1, "seed": 2,
        }  # fmt: skip
        candidates = population_of(algorithm, asked[2]).astype(np.int64)
        sent = b"".join(item.data for item in outcome.grid.sent)
        assert len(candidates) <= most
        chosen = {row.tobytes() for q in asked[1:] for row in q.arrays["centers"]}
        others = {row.tobytes() for row in candidates} - chosen
        assert not [row for row in others if row in sent]
        answers = [
            item.message for item in outcome.grid.received if item.kind == "answer"
        ]
        # The one word more is the checksum. Shares are shorter, and there is one for
        # each client.
        lengths = [len(each.words) // 8 for each in answers]
        assert trust == "distributed-noise" or lengths.count(most + 1) >= 2 * 6
    assert sizes[0] == sizes[1]
