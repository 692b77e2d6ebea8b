"""Many clients, many rounds, many runs: what may grow, and what must not."""

import gc
import logging
import math
import os
import threading
import tracemalloc
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flower_kmeans.federation.exchange import AT_ONCE
from harness import KMEANS, SIMULATED, run_recorded

from flower_kmeans import Box, PrivacyBudget, kmeans_client_app, simulate
from flower_kmeans.federation.cohort import depth
from flower_kmeans.federation.messages import EnrolReply, LeadReply, OpenReply, Refusal, RoundReply
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd

REPLIES = (EnrolReply, LeadReply, OpenReply, Refusal, RoundReply)


def box(d):
    return Box(np.zeros(d), np.ones(d))


def parts(m, d=2, each=3):
    return list(np.random.default_rng(0).random((m, each, d)))


def private(m, *, k=2, d=2, rounds=2, trust="oblivious-server", **options):
    kind = GLloyd if trust == "distributed-noise" else FastLloyd
    return kind(
        k,
        box(d),
        PrivacyBudget(1.0),
        n_records=1000 * m,
        n_clients=m,
        n_rounds=rounds,
        trust=trust,
        **options,
    )


# --------------------------------------------------------------------------- replies


def replies_read():
    """Return how many replies are alive as the server reads them."""
    return sum(type(thing) in REPLIES for thing in gc.get_objects())


class ListGrid(InProcessGrid):
    """A grid that gives all replies that are asked for as a list, as Flower's own do.

    It watches how many replies are alive, as messages and as what the server reads from them.
    """

    def __init__(self, client_app, n_nodes):
        super().__init__(client_app, n_nodes)
        self.alive, self.peak, self.read = set(), 0, 0
        gc.collect()
        self.before = replies_read()  # other tests may keep some

    def pull_messages(self, message_ids):
        replies = list(self._watch(super().pull_messages(message_ids)))
        self.read = max(self.read, replies_read() - self.before)
        return replies

    def _watch(self, replies):
        for reply in replies:
            for thing in (reply, reply.content[KMEANS]):
                number = id(thing)
                self.alive.add(number)
                weakref.finalize(thing, self.alive.discard, number)
            self.peak = max(self.peak, len(self.alive))
            yield reply


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_replies_are_folded_as_they_arrive_and_let_go(trust):
    """Two things are watched of each reply; the one before may live until the next is there."""
    m = 2 * AT_ONCE + 10
    app = kmeans_client_app(
        lambda context: PARTS[int(context.node_config["partition-id"])], SIMULATED
    )
    grid = ListGrid(app, m)
    strategy = private(m, trust=trust, min_clients=m // 2)
    with task_identity():
        strategy.start(grid)
    assert strategy.report.answers == [m, m]
    assert AT_ONCE < grid.peak <= 2 * (AT_ONCE + 2)
    assert grid.read <= 2
    gc.collect()
    assert not grid.alive


PARTS = parts(2 * AT_ONCE + 10)


def test_memory_does_not_grow_with_rounds_times_clients():
    m, k, d, few, many = 40, 16, 8, 3, 15
    reply = 8 * (k * (d + 2) + 1)

    def peak(rounds):
        strategy, partitions = private(m, k=k, d=d, rounds=rounds), parts(m, d)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            simulate(strategy, partitions)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    peak(few)  # fills caches
    grown = peak(many) - peak(few)
    # One entry of the transcript a round, several times over, is far below one reply per client.
    assert grown < (many - few) * m * reply / 4


# --------------------------------------------------------------------------- messages


def requests_of(m, **options):
    """Return the requests of a run by kind and round, and the seats that it had."""
    outcome = run_recorded(private(m, rounds=3, **options), parts(m))
    seats = outcome.strategy._run_state.seats
    requests = {}
    for sent in outcome.grid.sent:
        requests.setdefault((sent.kind, sent.fields.get("t")), []).append(sent)
    return requests, seats


def test_what_a_client_is_sent_does_not_grow_with_the_cohort_but_for_path_and_bitmap():
    sizes = {}
    for m in (10, 1000):
        requests, seats = requests_of(m)
        assert all(len(requests["round", t]) == m for t in (1, 2, 3))
        everyone = [(seat.node_id, seat.commitment, seat.public_key) for seat in seats]
        assert len({key for _, _, key in everyone}) == m
        for place in (("round", 1), ("round", 2), ("round", 3), ("finish", 3)):
            sizes[m, place] = max(len(sent.data) for sent in requests[place])
            for sent in requests[place][:: max(1, m // 10)]:
                # Nobody's commitment or key, and no other list of the cohort's length.
                assert not any(c in sent.data or key in sent.data for _, c, key in everyone)
                lists = [value for value in sent.fields.values() if isinstance(value, list)]
                assert all(len(value) <= 1 for value in lists)
    path, bitmap = 32 * (depth(1000) - depth(10)), math.ceil(1000 / 8) - math.ceil(10 / 8)
    for place in (("round", 2), ("round", 3), ("finish", 3)):
        grown = sizes[1000, place] - sizes[10, place]
        assert (
            0 <= grown - path - bitmap <= 16
        )  # lengths and counts take a byte more here and there
    grown = sizes[1000, ("round", 1)] - sizes[10, ("round", 1)]
    assert 0 <= grown - path <= 16


@pytest.mark.slow
def test_ten_thousand_clients_run_in_this_process():
    m = 10_000
    clustering = simulate(private(m), parts(m))
    assert clustering.report.answers == [m, m]
    assert not clustering.report.dropped


# --------------------------------------------------------------------------- many runs


def kinds():
    """Yield strategies over and over, of every trust model."""
    while True:
        yield private(3)
        yield Lloyd(2, box(2), n_rounds=2)
        yield private(3, trust="distributed-noise", min_clients=2)
        yield private(3, trust="trusted-server")
        yield private(3, trust="distributed-noise", min_clients=2, opening="immediate")


@pytest.fixture
def quiet(caplog):
    """Pytest keeps what is logged until a test ends."""
    with caplog.at_level(logging.ERROR, "flwr"), caplog.at_level(logging.ERROR, "flower_kmeans"):
        yield


def handles():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def objects():
    gc.collect()
    return Counter(f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.get_objects())


@pytest.mark.usefixtures("quiet")
def test_two_hundred_runs_leave_nothing_behind():
    """Caches are full after the first quarter; then a run may not leave a single object."""
    strategies, partitions = kinds(), parts(3)
    objects()  # once before: counting makes entries in the caches of abstract classes itself
    for _ in range(50):
        simulate(next(strategies), partitions)
    tracemalloc.start()
    try:
        for _ in range(10):
            simulate(next(strategies), partitions)
        objects_before, handles_before = objects(), handles()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(140):
            simulate(next(strategies), partitions)
        grown = objects() - objects_before
        memory = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert handles() == handles_before
    assert not {name: n for name, n in grown.items() if n >= 140 // 5}, (grown, memory)
    assert memory < 140 * 1000, memory


def test_runs_with_ledgers_close_their_files(tmp_path):
    policies = [
        replace(SIMULATED, in_memory=False, state_dir=str(tmp_path / f"{i}")) for i in range(3)
    ]
    for policy in policies:
        os.mkdir(policy.state_dir, 0o700)
    strategies, partitions, seen = kinds(), parts(3), []
    for _ in range(15):
        run_recorded(next(strategies), partitions, policy=policies)
        seen.append(handles())
    assert len(set(seen[5:])) == 1, seen
