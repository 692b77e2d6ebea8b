"""Whole runs whose queries only the server can compute: round trips, faults, keys, the report."""

import json

import msgspec
import numpy as np
import pytest
from asking import FEW, Split
from harness import (
    run_recorded,
    stock_start,
    without_noise,
)
from rich.console import Console

from flower_kmeans import Box, Fault, PrivacyBudget
from flower_kmeans.cli.outputs import print_warnings
from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.protocol.messages import Added, Answer, Ask, decode_request
from flower_kmeans.protocol.wire import encode, from_content, to_content

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (60, 2)) for i in range(6)]
TRUSTS = ("distributed-noise", "trusted-server", "plain")


def make(trust="distributed-noise", cls=Split, **options):
    budget = PrivacyBudget(None if trust == "plain" else 1.0)
    options = {"min_clients": 3, "n_clients": 6, **options}
    return cls(3, BOX, budget, 360, trust=trust, **options)


def run(strategy, **options):
    """Run a strategy; return what happened, and the round trips by kind."""
    trips = []

    def push(grid, messages):
        if messages:
            request = decode_request(from_content(messages[0].content))
            trips.append(type(request).__name__.lower())

    return run_recorded(strategy, PARTS, on_push=push, timeout=60, **options), trips


def queries(outcome):
    """Return the queries that clients were sent, encoded, by round and attempt."""
    asked = {}
    for item in outcome.grid.sent:
        if isinstance(item.message, Ask):
            place = item.message.t, item.message.attempt
            assert asked.setdefault(place, item.message.query) == item.message.query
    return asked


@pytest.mark.parametrize("start", [None, stock_start])
def test_each_sum_is_opened_before_the_next_query(start):
    outcome, trips = run(make(), start=start)
    assert trips == ["enrol", "ask", "add", "ask", "add", "finish"]
    outcome.agreed()


def test_evaluate_fn_is_called_where_there_are_centroids():
    seen = []
    run(make(), evaluate_fn=lambda number, arrays: seen.append((number, set(arrays))))
    assert seen == [(2, {"centroids", "counts"})]


def test_the_seed_decides_about_the_queries():
    """Nothing else is drawn in a run without noise."""
    first, again, other = (queries(run(make("plain", seed=seed))[0]) for seed in (1, 1, 2))
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

    strategy = make()
    outcome = run_recorded(strategy, PARTS, on_push=spoil, timeout=60)
    asked = queries(outcome)
    assert set(asked) == {(1, 1), (2, 1), (2, 2)}
    assert asked[2, 1] == asked[2, 2]
    assert strategy.report.attempts == 3
    assert strategy.report.answers[0] == 6
    outcome.agreed()


def test_a_round_with_too_few_answers_ends_the_run():
    with pytest.raises(TooFewClientsError, match=r"at least min_clients=4 .* in round 2"):
        run(make(min_clients=4), faults=[Fault(i, 2, "drop") for i in range(3)])


def test_a_round_without_enough_sum_shares_ends_a_run_that_needs_its_sum():
    faults = [Fault(i, 2, "drop", trip="add") for i in range(3)]
    with pytest.raises(RunError, match=r"sum-shares that open the sum of round 2"):
        run(make(), faults=faults)


def test_restarts_without_a_ledger_cost_a_round():
    """A client that lost its memory renews, and then answers and has the result."""
    cleared = []

    def restart(grid, messages):
        kinds = {type(decode_request(from_content(m.content))).__name__ for m in messages}
        if "Add" in kinds and not cleared:
            cleared.append(True)
            list(grid.states.values())[2].clear()

    strategy = make()
    outcome = run_recorded(strategy, PARTS, on_push=restart, timeout=60)
    assert strategy.report.answers == [6, 5]
    assert len(outcome.results) == 6
    outcome.agreed()
    assert strategy.report.renewed == {2: 1}


def test_answers_hold_nothing_but_sealed_shares():
    outcome, _ = run(make())
    answers = [item.message for item in outcome.grid.received]
    for answer in answers:
        if isinstance(answer, Answer):
            assert answer.words == b""
            assert answer.envelopes == ()
            assert len(answer.sealed) == 6
        elif isinstance(answer, Added):
            assert answer.key_id == b""
    assert sum(isinstance(answer, Answer) for answer in answers) == 12
    assert sum(isinstance(answer, Added) for answer in answers) == 12


def test_warnings_of_the_algorithm_are_in_the_report(capsys):
    """All records are in one cell, so one of the two thresholds is not."""
    strategy = make()
    with without_noise():
        run_recorded(strategy, [np.full((5, 2), 5.0)] * 6, timeout=60)
    report = strategy.report
    assert report.warnings == (FEW,)
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == [FEW]
    console = Console(width=200)
    print_warnings(console, report, report.statements)
    assert FEW in capsys.readouterr().out
