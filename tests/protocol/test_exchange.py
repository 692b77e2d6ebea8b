"""Round trips over a grid: waves, replies as they arrive, grace for clients that are silent."""

import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from flower_kmeans.protocol import exchange
from flower_kmeans.protocol.exchange import CRASHED, MALFORMED, Exchange
from flower_kmeans.protocol.in_process import CLIENT_RAISED, InProcessGrid, task_identity
from flower_kmeans.protocol.messages import Enrol, Enrolled, Finish, Finished, decode_request
from flower_kmeans.protocol.wire import RECORD, encode, from_content, to_content

DOC_HASH = bytes(range(32))
FINISH = Finish(doc_hash=DOC_HASH)
FINISHED = Finished(doc_hash=DOC_HASH)
ENROL = Enrol(doc=b"doc")
ENROLLED = Enrolled(doc_hash=DOC_HASH, commitment=bytes(32), static=b"", public_key=b"")


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


class Clock:
    """A clock that moves when somebody sleeps; threads get a moment to run."""

    def __init__(self, pause=0.0):
        self.now, self.pause = 1000.0, pause

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        time.sleep(self.pause)


class Nodes:
    """A grid whose nodes answer each message after some seconds of a clock, or never.

    Parameters
    ----------
    clock : Clock
    n_nodes : int
    seconds : callable
        From node and number of the message to it (from 0) to seconds, or ``None`` for never.
    """

    def __init__(self, clock, n_nodes, seconds=lambda node, n: 1.0):
        self.clock, self.seconds = clock, seconds
        self.nodes = list(range(n_nodes))
        self.counts, self.under_way, self.most = Counter(), {}, 0
        self.waves, self.pulls, self.pushed = [], [], []

    def get_node_ids(self):
        return self.nodes

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            seconds, n = self.seconds(node, self.counts[node]), self.counts[node]
            message.metadata.__dict__["_message_id"] = message_id = f"{node}/{n}"
            self.counts[node] += 1
            due = float("inf") if seconds is None else self.clock() + seconds
            self.under_way[message_id] = (due, message)
            self.pushed.append(message)
            ids.append(message_id)
        self.waves.append(len(ids))
        self.most = max(self.most, len(self.under_way))
        return ids

    def pull_messages(self, ids):
        listed = list(ids)
        self.pulls.append(listed)
        there = [i for i in listed if i in self.under_way and self.under_way[i][0] <= self.clock()]
        return [self.answer(self.under_way.pop(i)[1]) for i in there]

    def answer(self, message):
        kind = type(decode_request(from_content(message.content)))
        reply = ENROLLED if kind is Enrol else FINISHED
        return Message(to_content(encode(reply)), reply_to=message)

    def known_lost(self, ids):
        return set()


def requests(nodes, request=FINISH):
    return dict.fromkeys(nodes, request)


def made(grid, clock, timeout=600.0):
    return Exchange(grid, timeout, clock=clock, sleep=clock.sleep)


def go(own, nodes, enough=None, kind="finish", request=FINISH):
    """Make a trip that has enough after a number of replies; return the nodes that replied."""
    got = []
    for node, reply in own.trip(
        kind,
        requests(nodes, request),
        lambda: len(got) >= (len(nodes) if enough is None else enough),
    ):
        got.append((node, reply))
    return got


def echo(message, context):
    if int(context.node_config["partition-id"]) == 2:
        raise ValueError("a node's own business")
    if int(context.node_config["partition-id"]) == 3:
        return Message(RecordDict({RECORD: ConfigRecord({"v": 2, "m": b"?"})}), reply_to=message)
    assert decode_request(from_content(message.content)) == FINISH
    return Message(to_content(encode(FINISHED)), reply_to=message)


# --------------------------------------------------------------------------- replies


def test_every_reply_comes_with_its_node_in_order():
    grid = InProcessGrid(echo, 5)
    nodes = grid.get_node_ids()
    got = list(Exchange(grid, 5).trip("finish", requests(nodes), lambda: False))
    assert got == [
        (nodes[0], FINISHED),
        (nodes[1], FINISHED),
        (nodes[2], CRASHED),
        (nodes[3], MALFORMED),
        (nodes[4], FINISHED),
    ]


def test_an_error_reply_that_names_no_node_is_known_by_the_message_it_answers():
    clock = Clock()
    grid = Nodes(clock, 3)

    def unavailable(message):
        reply = Message(Error(code=CLIENT_RAISED, reason="gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 0
        return reply

    grid.answer = unavailable
    assert sorted(go(made(grid, clock), grid.nodes)) == [(n, CRASHED) for n in range(3)]


def test_a_reply_is_handed_on_before_the_next_client_has_run():
    order = []

    def app(message, context):
        order.append("client")
        return Message(to_content(encode(FINISHED)), reply_to=message)

    grid = InProcessGrid(app, 3)
    for _ in Exchange(grid, 5).trip("finish", requests(grid.get_node_ids()), lambda: False):
        order.append("server")
    assert order == ["client", "server"] * 3


@pytest.mark.parametrize(
    ("kind", "message_type"),
    [
        ("enrol", "query.kmeans"),
        ("keys", "query.kmeans"),
        ("ask", "train.kmeans"),
        ("add", "query.kmeans"),
        ("finish", "evaluate.kmeans"),
    ],
)
def test_message_types_are_those_that_clients_register(kind, message_type):
    clock = Clock()
    grid = Nodes(clock, 2)
    go(made(grid, clock), grid.nodes, kind=kind)
    assert {message.metadata.message_type for message in grid.pushed} == {message_type}


def test_long_messages_travel_as_one_array():
    clock = Clock()
    grid = Nodes(clock, 1)
    grid.answer = lambda message: Message(to_content(encode(FINISHED)), reply_to=message)
    long = Finish(doc_hash=DOC_HASH, result=bytes(2**20 + 1))
    go(made(grid, clock), grid.nodes, request=long)
    (content,) = [message.content for message in grid.pushed]
    assert sum(len(array.data) for r in content.array_records.values() for array in r.values()) > (
        2**20
    )
    assert decode_request(from_content(content)) == long


def test_the_same_request_to_many_nodes_is_encoded_once(monkeypatch):
    encoded = []
    monkeypatch.setattr(exchange, "encode", lambda value: encoded.append(value) or encode(value))
    clock = Clock()
    grid = Nodes(clock, 150)
    go(made(grid, clock), grid.nodes)
    assert len(encoded) == 2  # once for each wave


def test_messages_can_be_sent_by_somebody_else():
    grid = InProcessGrid(echo, 5)
    own, nodes = Exchange(grid, 5), grid.get_node_ids()
    sent = own.messages("finish", requests(nodes))
    replies = list(grid.send_and_receive(sent))
    got = list(own.replies([replies[4], replies[2], replies[2], replies[0]], sent))
    assert got == [(nodes[4], FINISHED), (nodes[2], CRASHED), (nodes[0], FINISHED)]


# --------------------------------------------------------------------------- waves


def test_messages_go_out_in_waves():
    clock = Clock()
    grid = Nodes(clock, 550, lambda node, n: 1.0 + node % 7 / 5)
    assert len(go(made(grid, clock), grid.nodes)) == 550
    assert max(grid.waves) == 100
    assert 100 < grid.most <= 200


def test_waves_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(exchange, "WAVE_BYTES", 10_000)
    clock = Clock()
    grid = Nodes(clock, 12)
    request = Finish(doc_hash=DOC_HASH, result=bytes(4_000))
    assert len(go(made(grid, clock), grid.nodes, request=request)) == 12
    assert max(grid.waves) == 3
    assert grid.most <= 6


def test_requests_are_made_when_they_are_sent():
    clock = Clock()
    grid = Nodes(clock, 300, lambda node, n: 5.0)
    made_at = {}

    class Lazy(dict):
        def __getitem__(self, node):
            made_at[node] = len(grid.pushed)
            return super().__getitem__(node)

    for _ in made(grid, clock).trip("finish", Lazy(requests(grid.nodes)), lambda: False):
        assert len(made_at) <= len(grid.pushed) + 100
    assert made_at[250] == 200


def test_silent_clients_do_not_keep_the_next_wave_from_being_sent():
    clock = Clock()
    grid = Nodes(clock, 400, lambda node, n: None if node < 200 else 1.0)
    assert len(go(made(grid, clock), grid.nodes, enough=200)) == 200


# --------------------------------------------------------------------------- grace


def test_a_trip_ends_a_grace_time_after_enough_have_answered():
    clock = Clock()
    grid = Nodes(clock, 5, lambda node, n: None if node == 3 else 1.0)
    begin = clock()
    assert len(go(made(grid, clock), grid.nodes, enough=3)) == 4
    assert 11.0 <= clock() - begin <= 11.5


def test_the_grace_time_grows_with_the_usual_answer_time():
    clock = Clock()
    grid = Nodes(clock, 5, lambda node, n: 75.0 if node == 3 else 20.0)
    begin = clock()
    assert len(go(made(grid, clock), grid.nodes, enough=3)) == 5  # 75 < 20 + 3 * 20
    assert 75.0 <= clock() - begin <= 75.5
    grid = Nodes(clock, 5, lambda node, n: 85.0 if node == 3 else 20.0)
    begin = clock()
    assert len(go(made(grid, clock), grid.nodes, enough=3)) == 4
    assert 80.0 <= clock() - begin <= 80.5


def test_without_enough_answers_a_trip_lasts_until_the_timeout():
    clock = Clock()
    grid = Nodes(clock, 5, lambda node, n: None if node >= 2 else 1.0)
    begin = clock()
    assert len(go(made(grid, clock, timeout=120.0), grid.nodes, enough=3)) == 2
    assert 120.0 <= clock() - begin <= 120.5


def test_six_rounds_with_a_silent_client_cost_at_most_two_grace_times():
    clock = Clock()
    grid = Nodes(clock, 6, lambda node, n: None if node == 2 else 1.0)
    own = made(grid, clock)
    begin = clock()
    for _ in range(14):  # 2 T + 2
        assert {node for node, _ in go(own, grid.nodes, enough=4)} == {0, 1, 3, 4, 5}
    assert clock() - begin <= 14 * 1.5 + 2 * exchange.LEAST_GRACE
    assert grid.counts[2] == 14  # it is asked all the same


def test_who_was_silent_once_and_answers_again_is_waited_for_again_but_not_after_two_silences():
    clock = Clock()
    # Client 2 is silent in trips 0 and 2, and takes 5 s otherwise.
    grid = Nodes(clock, 4, lambda node, n: (None if n in (0, 2) else 5.0) if node == 2 else 6.0)
    own, seconds = made(grid, clock), []
    for _ in range(3):
        begin = clock()
        go(own, grid.nodes, enough=3)
        seconds.append(clock() - begin)
    assert seconds[0] > 20  # waited for
    assert seconds[1] < 7  # invited
    assert seconds[2] > 20  # waited for again
    grid.seconds = lambda node, n: 8.0 if node == 2 else 1.0
    begin = clock()
    assert len(go(own, grid.nodes, enough=3)) == 3
    begin = clock()
    assert len(go(own, grid.nodes, enough=3)) == 3
    assert clock() - begin < 1.5


def test_who_is_not_waited_for_is_given_a_grace_time_if_there_are_too_few_without_it():
    clock = Clock()
    grid = Nodes(clock, 3, lambda node, n: None if node == 2 and n == 0 else 1.0 + 3 * (node == 2))
    own = made(grid, clock)
    assert len(go(own, grid.nodes, enough=2)) == 2
    assert len(go(own, grid.nodes, enough=3)) == 3  # it came after 4 s
    grid.seconds = lambda node, n: None if node == 2 else 1.0
    go(own, grid.nodes, enough=2)
    begin = clock()
    assert len(go(own, grid.nodes, enough=3)) == 2
    assert clock() - begin <= exchange.LEAST_GRACE + 1


def test_who_was_silent_twice_is_not_waited_for_even_if_there_are_too_few():
    clock = Clock()
    grid = Nodes(clock, 3, lambda node, n: None if node == 2 else 1.0)
    own = made(grid, clock, timeout=100.0)
    seconds = []
    for _ in range(4):
        begin = clock()
        assert len(go(own, grid.nodes, enough=3)) == 2
        seconds.append(round(clock() - begin))
    assert seconds == [100, 10, 1, 1]


# --------------------------------------------------------------------------- late replies


def test_late_replies_of_former_trips_and_second_ones_are_ignored():
    clock = Clock()
    grid = Nodes(clock, 3)
    held, trip = [], 1

    def pull(ids):
        replies = Nodes.pull_messages(grid, ids)
        if trip == 1:
            held.extend(r for r in replies if r.metadata.reply_to_message_id == "1/0")
            return [reply for reply in replies if reply not in held]
        return [*held, *replies, *replies]

    grid.pull_messages = pull
    own = made(grid, clock)
    assert sorted(node for node, _ in go(own, grid.nodes, enough=2)) == [0, 2]
    trip = 2
    assert sorted(node for node, _ in go(own, grid.nodes)) == [0, 1, 2]


def test_late_enrolments_are_taken_along_in_later_trips():
    clock = Clock()
    grid = Nodes(clock, 5, lambda node, n: 25.0 if node >= 3 and n == 0 else 1.0)
    own = made(grid, clock)
    enrolled = go(own, grid.nodes[:4], enough=3, kind="enrol", request=ENROL)
    assert sorted(node for node, _ in enrolled) == [0, 1, 2]
    assert set(own.invited) == {3}
    own.invite({4: ENROL})
    assert set(own.invited) == {3, 4}
    assert len(go(own, [0, 1, 2])) == 3  # nobody waits for the invited
    clock.now += 30
    grid.seconds = lambda node, n: 2.0
    assert sorted(go(own, [0, 1, 2])) == [
        (0, FINISHED),
        (1, FINISHED),
        (2, FINISHED),
        (3, ENROLLED),
        (4, ENROLLED),
    ]
    assert not own.invited


def test_lost_enrolments_may_be_sent_again():
    clock = Clock()
    grid = Nodes(clock, 3, lambda node, n: None if node == 2 else 1.0)
    grid.known_lost = lambda ids: {i for i in ids if i == "2/0"}
    own = made(grid, clock)
    begin = clock()
    go(own, grid.nodes, enough=2, kind="enrol", request=ENROL)
    assert clock() - begin < 1.5  # a grid that knows of the loss spares the grace time
    assert set(own.invited) == {2}
    go(own, [0, 1])
    assert not own.invited


def test_nodes_are_waited_for():
    clock = Clock()
    grid = Nodes(clock, 2)
    begin = clock()
    assert made(grid, clock, timeout=7.0).wait_for_nodes(3) == [0, 1]
    assert clock() - begin >= 7.0
    grid.get_node_ids = lambda: [3, 1, 2] if clock() - begin > 9 else [1]
    assert made(grid, clock, timeout=60.0).wait_for_nodes(3) == [1, 2, 3]
    assert clock() - begin < 10


def test_polls_come_four_times_a_second():
    clock = Clock()
    grid = Nodes(clock, 1, lambda node, n: 30.0)
    looks = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: looks.append(clock()) or pull(ids)
    go(made(grid, clock), grid.nodes)
    gaps = [after - before for before, after in pairwise(looks)]
    assert max(gaps) < 0.275
    assert len(looks) < 30 / 0.25 + 20


# --------------------------------------------------------------------------- a grid that blocks


class Uploads(Nodes):
    """Nodes of a deployment: a pull returns only when every reply in it is complete."""

    known_lost = None

    def __init__(self, clock, n_nodes, slow=(), **options):
        super().__init__(clock, n_nodes, **options)
        self.slow, self.complete = set(slow), threading.Event()
        self.lock = threading.Lock()

    def push_messages(self, messages):
        with self.lock:
            return super().push_messages(messages)

    def pull_messages(self, ids):
        with self.lock:
            replies = super().pull_messages(ids)
        if any(reply.metadata.src_node_id in self.slow for reply in replies):
            self.complete.wait(30)
        return replies


@pytest.fixture
def uploads():
    grids = []

    def make(*arguments, **options):
        grids.append(Uploads(*arguments, **options))
        return grids[-1]

    yield make
    for grid in grids:
        grid.complete.set()


def test_a_slow_upload_does_not_hold_up_the_others(uploads):
    clock = Clock(pause=0.002)
    grid = uploads(clock, 6, slow={0, 2})
    own = made(grid, clock)
    begin = clock()
    got = {}
    for node, _ in own.trip("ask", requests(grid.nodes), lambda: len(got) >= 4):
        got[node] = clock() - begin
    assert set(got) == {1, 3, 4, 5}
    assert max(got.values()) < exchange.LEAST_GRACE
    assert clock() - begin < exchange.LEAST_GRACE + 5
    assert {node for node, _ in go(own, [1, 3, 4, 5])} == {1, 3, 4, 5}


@pytest.mark.parametrize("n_nodes", [9, 20, 150])
def test_one_slow_upload_holds_up_nobody_in_a_cohort_of_any_size(uploads, n_nodes):
    clock = Clock(pause=0.002)
    slow = n_nodes // 2
    grid = uploads(clock, n_nodes, slow={slow})
    begin, got = clock(), {}
    for node, _ in made(grid, clock).trip("ask", requests(grid.nodes), lambda: len(got) >= 5):
        got[node] = clock() - begin
    assert set(got) == set(grid.nodes) - {slow}
    assert all(len(ids) == 1 for ids in grid.pulls)


def test_many_slow_uploads_hold_up_nobody_else(uploads):
    clock = Clock(pause=0.002)
    grid = uploads(clock, 100, slow=range(60))
    own = made(grid, clock)
    assert set(go(own, grid.nodes, enough=30)) == {(node, FINISHED) for node in range(60, 100)}
    # Those that are still uploading neither hold up the next trip nor take the place of others.
    assert set(go(own, grid.nodes, enough=30)) == {(node, FINISHED) for node in range(60, 100)}


def test_what_is_being_fetched_is_not_fetched_again_in_the_next_trip(uploads):
    clock = Clock(pause=0.002)
    grid = uploads(clock, 4, slow={3})
    own = made(grid, clock)
    assert len(go(own, grid.nodes, enough=3, kind="enrol", request=ENROL)) == 3
    assert set(own.invited) == {3}
    assert len(go(own, [0, 1, 2])) == 3
    grid.complete.set()
    grid.seconds = lambda node, n: 5.0
    assert (3, ENROLLED) in go(own, [0, 1, 2])
    assert Counter(i for ids in grid.pulls for i in ids)["3/0"] < 60
    assert not own.invited


def test_the_number_of_requests_is_bounded(uploads):
    clock = Clock(pause=0.002)
    for n_nodes, most in ((4, 16), (200, 40)):  # a second
        grid = uploads(clock, n_nodes, seconds=lambda node, n: None)
        begin = clock()
        assert go(made(grid, clock, timeout=20.0), grid.nodes) == []
        assert len(grid.pulls) <= (most + 8) * (clock() - begin)
        assert {i for ids in grid.pulls for i in ids} == set(grid.under_way)


def test_what_goes_wrong_in_a_pull_ends_the_trip(uploads):
    clock = Clock(pause=0.002)
    grid = uploads(clock, 2)

    def broken(ids):
        raise ConnectionError("the link is gone")

    grid.pull_messages = broken
    with pytest.raises(ConnectionError, match="the link is gone"):
        go(made(grid, clock), grid.nodes)


def test_what_goes_wrong_in_a_pull_of_an_earlier_trip_does_not_end_a_later_one(uploads):
    clock = Clock(pause=0.002)
    grid = uploads(clock, 3)
    pull, failed = grid.pull_messages, threading.Event()

    def broken(ids):
        if ids == ["2/0"]:
            grid.complete.wait(30)
            failed.set()
            raise ConnectionError("the link is gone")
        return pull(ids)

    grid.pull_messages = broken
    own = made(grid, clock)
    assert len(go(own, grid.nodes, enough=2)) == 2
    grid.complete.set()
    assert failed.wait(30)
    time.sleep(0.05)
    assert len(go(own, [0, 1])) == 2
