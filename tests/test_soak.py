"""Many clients, many rounds, many runs: what may grow, and what must not."""

import functools
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
from harness import SIMULATED, run_recorded

from flower_kmeans import Box, PrivacyBudget, kmeans_client_app, simulate
from flower_kmeans.protocol.exchange import WAVE
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Ask,
    Enrolled,
    Finished,
    Refusal,
    Wrapped,
)
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd

REPLIES = (Added, Answer, Enrolled, Finished, Refusal, Wrapped)


def box(d):
    return Box(np.zeros(d), np.ones(d))


def parts(m, d=2, each=3):
    return list(np.random.default_rng(0).random((m, each, d)))


def private(m, *, k=2, d=2, trust="oblivious-server", **options):
    kind = GLloyd if trust == "distributed-noise" else FastLloyd
    options = {
        "max_colluders": 1,
        "n_clients": m,
        "n_rounds": 2,
        "trust": trust,
    } | options
    return kind(k, box(d), PrivacyBudget(1.0), 1000 * m, **options)


@pytest.fixture(autouse=True)
def caches():
    """Let collections see what a test makes alone; return the caches that were there before.

    A process that has run thousands of tests has millions of objects: a collection
    looks at all.
    """
    gc.collect()
    found = [thing for thing in gc.get_objects() if is_cache(thing)]
    gc.freeze()
    yield found
    gc.unfreeze()


def is_cache(thing):
    return type(thing) is functools._lru_cache_wrapper


# --------------------------------------------------------------------------- replies


def replies_read():
    """Return how many replies are alive as the server reads them."""
    return sum(type(thing) in REPLIES for thing in gc.get_objects())


class ListGrid(InProcessGrid):
    """A grid that gives all replies that are asked for as a list, as Flower's own do.

    It watches how many replies are alive, as messages and as what the server reads from
    them.
    """

    def __init__(self, client_app, n_nodes):
        super().__init__(client_app, n_nodes)
        self.alive, self.peak, self.read = set(), 0, 0
        gc.collect()
        self.before = replies_read()

    def pull_messages(self, message_ids):
        replies = list(self._watch(super().pull_messages(message_ids)))
        self.read = max(self.read, replies_read() - self.before)
        return replies

    def _watch(self, replies):
        for reply in replies:
            for thing in (reply, reply.content["kmeans"]):
                number = id(thing)
                self.alive.add(number)
                weakref.finalize(thing, self.alive.discard, number)
            self.peak = max(self.peak, len(self.alive))
            yield reply


@pytest.mark.default_cases("oblivious-server")
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_replies_are_folded_as_they_arrive_and_let_go(trust):
    """Two things are watched of each reply; the one before may live until the next is there."""
    m = WAVE + 20
    app = kmeans_client_app(
        lambda context: PARTS[int(context.node_config["partition-id"])], SIMULATED
    )
    grid = ListGrid(app, m)
    strategy = private(m, trust=trust, min_clients=m // 2)
    with task_identity():
        strategy.start(grid)
    assert strategy.report.answers == [m, m]
    assert WAVE < grid.peak <= 2 * (m + 2)  # at most two waves
    # Sum-shares are 64, and kept until the round is closed; they are not messages.
    assert grid.read <= 2
    gc.collect()
    assert not grid.alive


PARTS = parts(WAVE + 20)


@pytest.mark.thorough
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_memory_does_not_grow_with_rounds_times_clients(trust):
    m, k, d, few, many = 40, 16, 8, 3, 15
    reply, held = 8 * (k * (d + 2) + 1), []

    def weigh(info):
        gc.collect()  # what a message left in a circle
        held.append(tracemalloc.get_traced_memory()[0])

    strategy, partitions = private(m, k=k, d=d, n_rounds=many, trust=trust), parts(m, d)
    tracemalloc.start()
    try:
        simulate(strategy, partitions, on_round=weigh)
    finally:
        tracemalloc.stop()
    # One entry of the transcript a round is far below one reply per client, but not
    # with shares.
    entry = reply if trust == "oblivious-server" else m * reply // 9
    assert held[many - 1] - held[few - 1] < (many - few) * (4 * entry + m * reply / 8)


# --------------------------------------------------------------------------- messages


def asks_of(m, trust):
    """Return the bytes of the longest and of all requests of each round, and the clients' keys."""
    outcome = run_recorded(private(m, n_rounds=3, trust=trust), parts(m))
    asks = {}
    for sent in outcome.grid.sent:
        if isinstance(sent.message, Ask):
            asks.setdefault(sent.message.t, []).append(sent.data)
    enrolled = [
        item.message for item in outcome.grid.received if item.kind == "enrolled"
    ]
    keys = {reply.public_key for reply in enrolled} | {
        reply.commitment for reply in enrolled
    }
    return asks, keys - {bytes(32)}


@pytest.mark.thorough
def test_what_a_client_is_sent_does_not_grow_with_the_cohort_but_for_path_and_bitmap():
    """Only committee members are sent keys of others, at most 64."""
    sizes = {}
    for m in (10, 1000):
        asks, keys = asks_of(m, "oblivious-server")
        assert all(len(asks[t]) == m for t in (1, 2, 3))
        assert len(keys) == 2 * m
        for t in (2, 3):
            sizes[m, t] = max(map(len, asks[t]))
            for data in asks[t][:: max(1, m // 5)]:
                # No list of the cohort's length: the committee's keys, and no others.
                assert sum(key in data for key in keys) <= 64
    path, bitmap = 32 * 6, math.ceil(1000 / 8) - math.ceil(10 / 8)
    committee = (64 - 10) * 36
    for t in (2, 3):
        grown = sizes[1000, t] - sizes[10, t]
        assert 0 <= grown - path - bitmap - committee <= 32  # lengths take a byte more


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
        yield private(3, trust="clients-only", min_clients=2)


@pytest.fixture
def quiet(caplog):
    """Pytest keeps what is logged until a test ends."""
    with (
        caplog.at_level(logging.ERROR, "flwr"),
        caplog.at_level(logging.ERROR, "flower_kmeans"),
    ):
        yield


def handles():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def objects(caches):
    """Count the objects that a test made, after everything that is made again has been let go."""
    for thing in (*caches, *filter(is_cache, gc.get_objects())):
        thing.cache_clear()  # of at most so many entries, which 140 runs do not fill
    gc.collect()
    return Counter(
        f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.get_objects()
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("quiet")
def test_two_hundred_runs_leave_nothing_behind(caches):
    """Beside bounded caches, a run may not leave a single object."""
    strategies, partitions = kinds(), parts(3)
    # once before: counting makes entries in the caches of abstract classes itself
    objects(caches)
    for _ in range(50):
        simulate(next(strategies), partitions)
    tracemalloc.start()
    try:
        for _ in range(10):
            simulate(next(strategies), partitions)
        objects_before, handles_before = objects(caches), handles()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(140):
            simulate(next(strategies), partitions)
        grown = objects(caches) - objects_before
        memory = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert handles() == handles_before
    assert not {name: n for name, n in grown.items() if n >= 140 // 5}, (grown, memory)
    assert memory < 140 * 1000, memory


def test_runs_with_ledgers_close_their_files(tmp_path):
    policies = [
        replace(SIMULATED, in_memory=False, state_dir=str(tmp_path / f"{i}"))
        for i in range(3)
    ]
    for policy in policies:
        os.mkdir(policy.state_dir, 0o700)
    seen = []
    for strategy, _ in zip(kinds(), range(15)):  # noqa: B905 (kinds never end)
        run_recorded(strategy, parts(3), policy=policies)
        seen.append(handles())
    assert len(set(seen[5:])) == 1, seen
