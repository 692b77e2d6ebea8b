"""The grid that runs every client in this process, where several threads ask."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

N_NODES = 4


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


def request(node_id):
    return Message(RecordDict(), node_id, "query")


def ask_in_threads(grid):
    """Ask every node in a thread of its own; return each node's replies."""
    nodes = list(grid.get_node_ids())
    start = threading.Barrier(len(nodes))

    def ask(node_id):
        start.wait()
        return list(grid.send_and_receive([request(node_id)]))

    with ThreadPoolExecutor(len(nodes)) as pool:
        return dict(zip(nodes, pool.map(ask, nodes), strict=True))


def test_clients_run_one_at_a_time_whatever_threads_ask():
    running, at_once = set(), []

    def app(message, context):
        running.add(context.node_id)
        time.sleep(0.02)  # where another client would start
        at_once.append(len(running))
        running.remove(context.node_id)
        content = RecordDict({"own": ConfigRecord({"node": context.node_id})})
        return Message(content, reply_to=message)

    replies = ask_in_threads(InProcessGrid(app, N_NODES))
    assert at_once == [1] * N_NODES
    for node_id, (reply,) in replies.items():
        assert reply.content["own"]["node"] == node_id


def test_a_client_that_fails_lets_the_others_run():
    def app(message, context):
        if context.node_config["partition-id"] == 0:
            raise ValueError("a node's own business")
        return Message(RecordDict(), reply_to=message)

    replies = ask_in_threads(InProcessGrid(app, N_NODES))
    failed = [reply.has_error() for (reply,) in replies.values()]
    assert failed == [True] + [False] * (N_NODES - 1)


def test_a_message_that_two_threads_pull_is_answered_once():
    calls = Counter()

    def app(message, context):
        calls[context.node_id] += 1
        time.sleep(0.002)
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, N_NODES)
    ids = list(
        grid.push_messages([request(node_id) for node_id in grid.get_node_ids()])
    )
    start = threading.Barrier(2)

    def pull(_):
        start.wait()
        return [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)]

    with ThreadPoolExecutor(2) as pool:
        pulled = [each for some in pool.map(pull, range(2)) for each in some]
    assert sorted(pulled) == sorted(ids)
    assert calls == dict.fromkeys(grid.get_node_ids(), 1)
