"""Replies as they arrive, and a grid of function calls."""

import time

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from flower_kmeans.federation.exchange import receive, send
from flower_kmeans.protocol.in_process import CLIENT_RAISED, InProcessGrid, task_identity


def echo(message, context):
    context.state["seen"] = _config(context)
    return Message(RecordDict({"from": _config(context)}), reply_to=message)


def _config(context):
    return ConfigRecord({"place": int(context.node_config["partition-id"])})


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


def messages(grid):
    return [Message(RecordDict(), node, "query.kmeans") for node in grid.get_node_ids()]


class Slow:
    """A grid whose replies are there after a number of looks, or never."""

    def __init__(self, grid, never=(), after=0):
        self.grid, self.never, self.after, self.looks = grid, set(never), after, 0

    def push_messages(self, listed):
        return self.grid.push_messages(listed)

    def pull_messages(self, ids):
        self.looks += 1
        if self.looks <= self.after:
            return []
        return [
            reply
            for reply in self.grid.pull_messages(ids)
            if reply.metadata.src_node_id not in self.never
        ]


def test_every_reply_comes_with_its_node_in_order():
    grid = InProcessGrid(echo, 7)
    pushed = send(grid, messages(grid))
    nodes = list(grid.get_node_ids())
    assert list(pushed.values()) == nodes
    got = list(receive(grid, pushed, 5))
    assert [node for node, _ in got] == nodes
    assert [reply.content["from"]["place"] for _, reply in got] == list(range(7))


def test_no_messages_no_waiting():
    grid = InProcessGrid(echo, 2)
    started = time.monotonic()
    assert not list(receive(grid, send(grid, []), 60))
    assert time.monotonic() - started < 30


def test_a_missing_reply_ends_at_the_timeout():
    grid = InProcessGrid(echo, 3)
    pushed = send(grid, messages(grid))
    missing = list(pushed.values())[1]
    got = [node for node, _ in receive(Slow(grid, never=[missing]), pushed, 0.2)]
    assert got == [node for node in pushed.values() if node != missing]


def test_a_grid_that_knows_what_is_lost_is_not_waited_for():
    grid = InProcessGrid(echo, 3)
    pushed = send(grid, messages(grid))
    slow = Slow(grid, never=pushed.values())
    slow.known_lost = lambda ids: set(ids)
    started = time.monotonic()
    assert not list(receive(slow, pushed, 60))
    assert time.monotonic() - started < 30


def test_late_replies_within_the_timeout_are_taken():
    grid = InProcessGrid(echo, 3)
    pushed = send(grid, messages(grid))
    slow = Slow(grid, after=3)
    assert len(list(receive(slow, pushed, 30))) == 3
    assert slow.looks == 4


def test_replies_to_other_messages_are_named_by_their_sender():
    grid = InProcessGrid(echo, 2)
    other = send(grid, messages(grid))
    stray = next(iter(grid.pull_messages(list(other))))
    pushed = send(grid, messages(grid))

    class WithStray(Slow):
        def pull_messages(self, ids):
            replies = super().pull_messages(ids)
            return [stray, *replies] if self.looks == 1 else replies

    got = [node for node, _ in receive(WithStray(grid), pushed, 5)]
    assert got == [stray.metadata.src_node_id, *pushed.values()]


def test_a_grid_that_took_fewer_messages_is_understood():
    grid = InProcessGrid(echo, 3)

    class Picky:
        def push_messages(self, listed):
            return grid.push_messages(list(listed)[1:])

    nodes = list(grid.get_node_ids())
    assert list(send(Picky(), messages(grid)).values()) == nodes[1:]


def test_a_client_that_raises_is_an_error_reply_as_in_flower():
    def broken(message, context):
        raise RuntimeError("why")

    grid = InProcessGrid(broken, 2)
    replies = grid.send_and_receive(messages(grid))
    assert [reply.error.code for reply in replies] == [CLIENT_RAISED] * 2
    assert isinstance(replies[0].error, Error)
    # That is why the client code must never raise: the text travels.
    assert "why" in replies[0].error.reason


def test_contexts_outlive_messages_and_are_the_nodes_own():
    grid = InProcessGrid(echo, 3)
    grid.send_and_receive(messages(grid))
    states = [context.state for context in grid._contexts.values()]
    assert [state["seen"]["place"] for state in states] == [0, 1, 2]


def test_a_message_is_answered_once():
    grid = InProcessGrid(echo, 1)
    ids = list(grid.push_messages(messages(grid)))
    assert len(list(grid.pull_messages(ids))) == 1
    assert not list(grid.pull_messages(ids))
    assert grid.known_lost(ids) == set(ids)


def test_the_identity_is_given_back():
    from flwr.supercore.task_identity import TaskIdentity

    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    with pytest.raises(KeyError), task_identity():
        raise KeyError
    assert (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id) == before
