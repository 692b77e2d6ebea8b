"""Whole runs with clients that are silent, as nodes that have lost their network are."""

from functools import partialmethod

import numpy as np
import pytest
from harness import SIMULATED

from flower_kmeans import Box, PrivacyBudget, kmeans_client_app
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.protocol import exchange
from flower_kmeans.protocol.exchange import Exchange
from flower_kmeans.protocol.incidents import NO_ANSWER
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import GLloyd, Lloyd

BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((20, 2)) for i in range(6)]
TRUSTS = (
    "oblivious-server",
    "clients-only",
    "distributed-noise",
    "trusted-server",
    "plain",
)
ROUNDS = 6


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class SilentGrid(InProcessGrid):
    """A grid that never delivers some messages, and does not know of the loss."""

    def __init__(self, client_app, n_nodes, is_lost):
        super().__init__(client_app, n_nodes)
        self.is_lost = is_lost
        self.nodes = sorted(self.get_node_ids())

    def pull_messages(self, message_ids):
        for message_id in list(message_ids):
            message = self._replies.get(message_id)
            if message is None:
                continue
            client = self.nodes.index(message.metadata.dst_node_id)
            if not self.is_lost(client, message.metadata.group_id):
                yield from super().pull_messages([message_id])

    def known_lost(self, message_ids):
        return set()


def make(trust, **options):
    options = {"n_rounds": ROUNDS, "min_clients": 4, **options}
    if trust == "plain":
        return Lloyd(2, BOX, **options)
    return GLloyd(2, BOX, PrivacyBudget(1.0), 120, trust=trust, **options)


def run(strategy, is_lost, monkeypatch, timeout=3600.0):
    """Run a strategy and return the seconds of its clock and the results by client."""
    clock, results = Clock(), {}
    timed = partialmethod(Exchange.__init__, clock=clock, sleep=clock.sleep)
    monkeypatch.setattr(Exchange, "__init__", timed)
    app = kmeans_client_app(
        lambda context: PARTS[int(context.node_config["partition-id"])],
        SIMULATED,
        lambda result, context: results.update(
            {context.node_config["partition-id"]: result}
        ),
    )
    with task_identity():
        strategy.start(SilentGrid(app, len(PARTS), is_lost), timeout=timeout)
    return clock.now, results


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_silent_client_costs_a_run_two_grace_times_at_most(
    trust, from_the_start, monkeypatch
):
    def is_lost(client, kind):
        return client == 2 and (from_the_start or kind != "enrol")

    strategy = make(trust)
    seconds, results = run(strategy, is_lost, monkeypatch)
    assert seconds <= 2 * exchange.LEAST_GRACE + 1
    assert strategy.report.answers == [5] * ROUNDS
    assert set(results) == {0, 1, 3, 4, 5}
    assert {entry.reason for entry in strategy.report.dropped} == {NO_ANSWER}


@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_a_client_that_is_silent_in_add_alone_is_still_in_the_sums(trust, monkeypatch):
    strategy = make(trust)
    seconds, results = run(
        strategy,
        lambda client, kind: client == 2 and kind.startswith("add"),
        monkeypatch,
    )
    assert seconds <= 2 * exchange.LEAST_GRACE + 1
    assert strategy.report.answers == [6] * ROUNDS
    assert len(results) == 6


def test_too_many_silent_clients_end_the_run_at_the_timeout(monkeypatch):
    strategy = make("oblivious-server")
    with pytest.raises(TooFewClientsError, match="Got 3 of 6"):
        run(
            strategy,
            lambda client, kind: client < 3 and kind.startswith("ask"),
            monkeypatch,
            timeout=100.0,
        )
    assert strategy.report.n_rounds == 0
