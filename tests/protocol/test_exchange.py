"""Round trips over a grid: waves, replies as they arrive, grace for clients that are silent."""

import threading
from collections import Counter
from itertools import pairwise

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.superlink.grid import InMemoryGrid

from flower_kmeans.errors import RunError
from flower_kmeans.protocol import exchange
from flower_kmeans.protocol.exchange import (
    CLAIMS_WAIT,
    CRASHED,
    LEAST_GRACE,
    MALFORMED,
    PATIENCE,
    Exchange,
    Newcomers,
)
from flower_kmeans.protocol.messages import (
    Enrol,
    Enrolled,
    Finish,
    Finished,
    decode_request,
)
from flower_kmeans.protocol.wire import RECORD, encode, from_content, to_content
from flower_kmeans.simulation.in_process import (
    CLIENT_RAISED,
    InProcessGrid,
    task_identity,
)

DOC_HASH = bytes(range(32))
FINISH, FINISHED = Finish(doc_hash=DOC_HASH), Finished(doc_hash=DOC_HASH)
ENROL = Enrol(doc=b"doc")
ENROLLED = Enrolled(doc_hash=DOC_HASH, commitment=bytes(32), static=b"", public_key=b"")


@pytest.fixture(autouse=True)
def _identity():
    with task_identity():
        yield


class Clock:
    """A clock that moves when somebody sleeps; ``settle`` is called then."""

    def __init__(self, settle):
        self.now, self.settle = 1000.0, settle

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.settle()


class Nodes:
    """A grid whose nodes answer each message after some seconds of a clock, or never.

    ``seconds`` is a function of the node and the number of the message to it (from 0);
    it returns ``None`` for never.
    """

    def __init__(self, n_nodes, seconds=lambda node, n: 1.0):
        self.clock, self.seconds = Clock(self.settle), seconds
        self.nodes = list(range(n_nodes))
        self.counts, self.under_way, self.most = Counter(), {}, 0
        self.waves, self.pulls, self.pushed = [], [], []

    def settle(self):
        """Let threads run, where there are some."""

    def exchange(self, timeout=600.0, **options):
        return Exchange(
            self, timeout, clock=self.clock, sleep=self.clock.sleep, **options
        )

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
        there = [
            i
            for i in listed
            if i in self.under_way and self.under_way[i][0] <= self.clock()
        ]
        return [self.answer(self.under_way.pop(i)[1]) for i in there]

    def answer(self, message):
        kind = type(decode_request(from_content(message.content)))
        reply = ENROLLED if kind is Enrol else FINISHED
        return Message(to_content(encode(reply)), reply_to=message)

    def known_lost(self, ids):
        return set()


def go(own, nodes, enough=None, kind="finish", request=FINISH):
    """Make a trip that has enough after a number of replies; return the nodes that replied."""
    got, needed = [], len(nodes) if enough is None else enough
    got.extend(
        own.trip(kind, dict.fromkeys(nodes, request), lambda: len(got) >= needed)
    )
    return got


def seconds_of(grid, own, **options):
    """Return how many nodes replied in a trip, and how long it took."""
    begin = grid.clock()
    return len(go(own, grid.nodes, **options)), grid.clock() - begin


def echo(message, context):
    if int(context.node_config["partition-id"]) == 2:
        raise ValueError("a node's own business")
    if int(context.node_config["partition-id"]) == 3:
        return Message(
            RecordDict({RECORD: ConfigRecord({"v": 3, "m": b"?"})}), reply_to=message
        )
    assert decode_request(from_content(message.content)) == FINISH
    return Message(to_content(encode(FINISHED)), reply_to=message)


# --------------------------------------------------------------------------- replies


def test_every_reply_comes_with_its_node_in_order():
    grid = InProcessGrid(echo, 5)
    nodes = grid.get_node_ids()
    expected = [FINISHED, FINISHED, CRASHED, MALFORMED, FINISHED]
    assert go(Exchange(grid, 5), nodes) == list(zip(nodes, expected, strict=True))


def test_an_error_reply_that_names_no_node_is_known_by_the_message_it_answers():
    def unavailable(message):
        reply = Message(Error(code=CLIENT_RAISED, reason="gone"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 0
        return reply

    grid = Nodes(3)
    grid.answer = unavailable
    assert sorted(go(grid.exchange(), grid.nodes)) == [(n, CRASHED) for n in range(3)]


def test_a_reply_is_handed_on_before_the_next_client_has_run():
    order = []

    def app(message, context):
        order.append("client")
        return Message(to_content(encode(FINISHED)), reply_to=message)

    grid = InProcessGrid(app, 3)
    requests = dict.fromkeys(grid.get_node_ids(), FINISH)
    for _ in Exchange(grid, 5).trip("finish", requests, lambda: False):
        order.append("server")
    assert order == ["client", "server"] * 3


def test_message_types_are_those_that_clients_register():
    queries = dict.fromkeys(("enrol", "keys", "add"), "query.kmeans")
    for kind, name in {
        **queries,
        "ask": "train.kmeans",
        "finish": "evaluate.kmeans",
    }.items():
        grid = Nodes(2)
        go(grid.exchange(), grid.nodes, kind=kind)
        assert {message.metadata.message_type for message in grid.pushed} == {name}


def test_the_same_request_to_many_nodes_is_encoded_once(monkeypatch):
    encoded = []
    monkeypatch.setattr(
        exchange, "encode", lambda value: encoded.append(value) or encode(value)
    )
    grid = Nodes(150)
    go(grid.exchange(), grid.nodes)
    assert len(encoded) == 2  # once for each wave


def test_messages_can_be_sent_by_somebody_else():
    grid = InProcessGrid(echo, 5)
    own, nodes = Exchange(grid, 5), grid.get_node_ids()
    sent = own.messages("finish", dict.fromkeys(nodes, FINISH))
    replies = list(grid.send_and_receive(sent))
    got = list(own.replies([replies[4], replies[2], replies[2], replies[0]], sent))
    assert got == [(nodes[4], FINISHED), (nodes[2], CRASHED), (nodes[0], FINISHED)]


# --------------------------------------------------------------------------- waves


@pytest.mark.parametrize(
    ("n_nodes", "n_bytes", "wave"), [(550, 0, 100), (12, 4_000, 3)]
)
def test_messages_go_out_in_waves_bounded_in_number_and_bytes(
    n_nodes, n_bytes, wave, monkeypatch
):
    monkeypatch.setattr(exchange, "WAVE_BYTES", 10_000)
    request = Finish(doc_hash=DOC_HASH, result=bytes(n_bytes))
    grid = Nodes(n_nodes, lambda node, n: 1.0 + node % 7 / 5)
    assert len(go(grid.exchange(), grid.nodes, request=request)) == n_nodes
    assert max(grid.waves) == wave
    assert wave < grid.most <= 2 * wave


def test_requests_are_made_when_they_are_sent():
    grid, made_at = Nodes(300, lambda node, n: 5.0), {}

    class Lazy(dict):
        def __getitem__(self, node):
            made_at[node] = len(grid.pushed)
            return super().__getitem__(node)

    requests = Lazy(dict.fromkeys(grid.nodes, FINISH))
    for _ in grid.exchange().trip("finish", requests, lambda: False):
        assert len(made_at) <= len(grid.pushed) + 100
    assert made_at[250] == 200


def test_silent_clients_do_not_keep_the_next_wave_from_being_sent():
    grid = Nodes(400, lambda node, n: None if node < 200 else 1.0)
    assert len(go(grid.exchange(), grid.nodes, enough=200)) == 200


# --------------------------------------------------------------------------- grace


@pytest.mark.parametrize(
    ("usual", "last", "enough", "n_replies", "seconds"),
    [
        (1.0, None, 3, 4, 11.0),  # a grace time after enough have answered
        (20.0, 75.0, 3, 5, 75.0),  # it grows with the usual time: 75 < 20 + 3 * 20
        (20.0, 85.0, 3, 4, 80.0),
        (1.0, None, 5, 4, 120.0),  # without enough, until the timeout
    ],
)
def test_a_trip_ends_a_grace_time_after_enough_have_answered(
    usual, last, enough, n_replies, seconds
):
    grid = Nodes(5, lambda node, n: last if node == 3 else usual)
    found, took = seconds_of(grid, grid.exchange(120.0), enough=enough)
    assert found == n_replies
    assert seconds <= took <= seconds + 0.5


@pytest.mark.claim("protocol", "so-64-slow-nodes")
def test_six_rounds_with_a_silent_client_cost_at_most_two_grace_times():
    grid = Nodes(6, lambda node, n: None if node == 2 else 1.0)
    own, begin = grid.exchange(), grid.clock()
    for _ in range(14):  # 2 T + 2
        assert {node for node, _ in go(own, grid.nodes, enough=4)} == {0, 1, 3, 4, 5}
    assert grid.clock() - begin <= 14 * 1.5 + 2 * LEAST_GRACE
    assert grid.counts[2] == 14  # it is asked all the same


@pytest.mark.parametrize(
    ("n_nodes", "trips"),
    [
        # Waited for, only asked, waited for again; after two silences not even if it
        # answers.
        (4, [(6, None, 3, 3, 25), (6, 5, 3, 4, 6), (6, None, 3, 3, 25), (1, 8, 3, 3, 1)]),
        # Given a grace time if there are too few without it: it comes, and it does not.
        (3, [(1, None, 2, 2, 11), (1, 4, 3, 3, 4), (1, None, 2, 2, 11), (1, None, 3, 2, 1)]),
        # Not waited for after two silences, even if there are too few.
        (3, [(1, None, 3, 2, 100), (1, None, 3, 2, 10), (1, None, 3, 2, 1), (1, None, 3, 2, 1)]),
    ],
)  # fmt: skip
def test_how_long_a_client_that_was_silent_is_waited_for(n_nodes, trips):
    """Seconds of the others and of client 2, enough; then replies and seconds of the trip."""
    grid = Nodes(n_nodes)
    own, found = grid.exchange(100.0), []
    for usual, last, enough, _, _ in trips:
        grid.seconds = lambda node, _, usual=usual, last=last: (
            last if node == 2 else usual
        )
        n, took = seconds_of(grid, own, enough=enough)
        found.append((usual, last, enough, n, int(took)))
    assert found == trips


# --------------------------------------------------------------------------- patience

GONE = 5  # Flower's code for a node that it cannot reach


class Returning(Nodes):
    """Nodes that are away for a while, and whose messages may come back with errors at once.

    ``away`` returns the nodes that are away at a time, and ``fails`` whether the n-th
    message of a node comes back with an error.
    """

    def __init__(
        self, n_nodes, *arguments, away=lambda at: (), fails=lambda node, n: False
    ):
        super().__init__(n_nodes, *arguments)
        self.away, self.fails, self.looks, self.begin = away, fails, [], self.clock()
        self.sent_at = [[] for _ in self.nodes]

    @property
    def at(self):
        return self.clock() - self.begin

    def get_node_ids(self):
        self.looks.append(self.at)
        return [node for node in self.nodes if node not in self.away(self.at)]

    def push_messages(self, messages):
        for message in messages:
            self.sent_at[message.metadata.dst_node_id].append(self.at)
        return super().push_messages(messages)

    def answer(self, message):
        node, n = map(int, message.metadata.message_id.split("/"))
        if self.fails(node, n):
            return Message(Error(code=GONE, reason="gone"), reply_to=message)
        return super().answer(message)


def gaps(times):
    return [after - before for before, after in pairwise(times)]


@pytest.mark.claim("how-a-run-works", "round-too-few-answers")
def test_a_request_that_came_back_with_an_error_is_sent_again_every_15_seconds():
    grid = Returning(3, fails=lambda node, n: node == 2 and n < 4)
    found = take_all(grid)
    # The error is passed on once, for the report; the answer follows.
    assert [reply for node, reply in found if node == 2] == [CRASHED, FINISHED]
    assert sorted(found[:2]) == [(0, FINISHED), (1, FINISHED)]
    again = gaps(grid.sent_at[2])
    assert len(again) == 4
    assert all(15 <= gap <= 15 + 5.1 for gap in again)
    assert [len(times) for times in grid.sent_at[:2]] == [1, 1]
    contents = [m.content for m in grid.pushed if m.metadata.dst_node_id == 2]
    assert len({content.object_id for content in contents}) == 1


def take_all(grid, **options):
    """Make a trip that has enough when all have given an answer."""
    got, done = [], set()
    own = grid.exchange(300.0, patience=600.0, **options)
    requests = dict.fromkeys(grid.nodes, FINISH)
    for node, reply in own.trip(
        "finish", requests, lambda: len(done) == len(grid.nodes)
    ):
        got.append((node, reply))
        if reply == FINISHED:
            done.add(node)
    return got


def test_a_node_that_was_away_is_sent_its_request_again():
    grid = Returning(
        3,
        lambda node, n: None if (node, n) == (2, 0) else 1.0,
        away=lambda at: {2} if 30 < at < 80 else (),
    )
    assert len(take_all(grid)) == 3
    assert 80 <= grid.at <= 80 + 5.1 + 1.1
    assert len(grid.sent_at[2]) == 2
    assert max(gaps(grid.looks)) <= 5.1
    assert min(gaps(grid.looks)) >= 5


def test_a_request_without_a_reply_in_time_is_sent_again_until_the_patience_ends():
    grid = Returning(3, lambda node, n: None if node == 2 else 1.0)
    own = grid.exchange(100.0, patience=250.0)
    assert len(go(own, grid.nodes)) == 2
    assert [round(at / 100) for at in grid.sent_at[2]] == [0, 1, 2]
    assert 300 <= grid.at <= 306


def test_a_node_that_stays_away_is_waited_for_as_long_as_the_patience_lasts():
    grid = Returning(
        3,
        lambda node, n: None if node == 2 else 1.0,
        away=lambda at: {2} if at > 50 else (),
    )
    own = grid.exchange(1000.0, patience=200.0)
    assert len(go(own, grid.nodes)) == 2
    assert 250 <= grid.at <= 256
    assert len(grid.sent_at[2]) == 1  # there was nobody to send it to
    # It was waited for in vain: the next trip gives it a grace time, until it answers
    # again.
    begin = grid.at
    go(own, grid.nodes)
    assert LEAST_GRACE <= grid.at - begin <= LEAST_GRACE + 2
    grid.away, grid.seconds = (lambda at: ()), (lambda node, n: 2.0)
    assert len(go(own, grid.nodes)) == 3
    grid.seconds, begin = (lambda node, n: None if node == 2 else 1.0), grid.at
    assert len(go(own, grid.nodes)) == 2
    assert grid.at - begin >= 200


def test_a_long_request_is_waited_for_beyond_the_patience():
    """A step on encrypted columns takes hours; its party is there all the time."""
    grid = Returning(2, lambda node, n: 200.0 if node else 1.0)
    assert len(go(grid.exchange(1000.0, patience=50.0), grid.nodes)) == 2
    assert len(grid.sent_at[1]) == 1


@pytest.mark.claim("how-a-run-works", "round-too-few-answers")
def test_a_trip_that_has_enough_never_waits_for_who_is_gone():
    grid = Returning(4, fails=lambda node, n: node == 3, away=lambda at: {3})
    assert len(go(grid.exchange(patience=600.0), grid.nodes, enough=3)) == 4
    assert grid.at <= 1.5
    grid = Returning(4, lambda node, n: None if node == 3 else 1.0, away=lambda at: {3})
    assert len(go(grid.exchange(patience=600.0), grid.nodes, enough=3)) == 3
    assert LEAST_GRACE <= grid.at <= LEAST_GRACE + 1.5
    assert len(grid.sent_at[3]) == 1
    assert len(grid.looks) <= 1


def test_a_message_that_the_grid_did_not_take_is_sent_again():
    grid = Returning(2, away=lambda at: {1} if at < 40 else ())
    push = grid.push_messages

    def refusing(messages):
        return [i for i in push(messages) if grid.at >= 40 or not i.startswith("1/")]

    grid.push_messages = refusing
    assert len(take_all(grid)) == 2
    assert 40 <= grid.at <= 47


def test_the_first_of_two_replies_to_one_request_counts():
    """The first request was slow, so it was sent again as its node seemed to be away."""
    grid = Returning(
        2,
        lambda node, n: (40.0, 30.0)[n] if node else 1.0,
        away=lambda at: {1} if 2 < at < 12 else (),
    )
    assert sorted(node for node, _ in take_all(grid)) == [0, 1]
    assert len(grid.sent_at[1]) == 2
    assert grid.at <= 41


def test_an_error_that_comes_twice_is_taken_once():
    """Also when its node has answered the second request, and the trip waits for another."""
    grid = Returning(
        3,
        lambda node, n: 40.0 if node == 2 else 1.0,
        fails=lambda node, n: node == 1 and n == 0,
    )
    pull, errors = grid.pull_messages, []

    def pull_again(ids):
        replies = pull(ids)
        errors.extend(reply for reply in replies if reply.has_error())
        return [*replies, *errors]

    grid.pull_messages = pull_again
    expected = [(0, FINISHED), (1, CRASHED), (1, FINISHED), (2, FINISHED)]
    assert take_all(grid) == expected
    assert len(errors) == 1


def test_patience_is_for_grids_whose_nodes_come_back(uploads):
    simulation = type(InMemoryGrid.__name__, (Uploads,), {})
    assert Nodes(1).exchange().patience == 0
    assert simulation(1).exchange().patience == 0
    assert uploads(1).exchange().patience == PATIENCE
    assert uploads(1).exchange(patience=7.0).patience == 7
    for grid, patience, expected in (
        (Nodes(1), None, False),
        (Nodes(1), 5.0, True),
        (uploads(1), 0.0, True),
    ):
        assert grid.exchange(patience=patience).has_newcomers == expected


def test_where_no_party_can_be_missing_a_silence_is_not_remembered():
    grid = Nodes(3, lambda node, n: None if node == 2 else 1.0)
    own = grid.exchange(100.0, awaits_all=True)
    assert [int(seconds_of(grid, own)[1]) for _ in range(3)] == [100] * 3


def test_requests_that_are_sent_again_keep_to_the_waves():
    grid = Returning(400, fails=lambda node, n: n == 0)
    assert len(take_all(grid)) == 800
    assert max(grid.waves) <= 100


# --------------------------------------------------------------------------- newcomers


def enrolled_of(grid, own, expected, enough):
    """Enrol nodes as they connect, and return those that did."""
    got = set()
    newcomers = Newcomers(
        lambda nodes: dict.fromkeys(nodes, ENROL), lambda: len(got) >= expected
    )
    first = dict.fromkeys(grid.get_node_ids(), ENROL)
    for node, reply in own.trip("enrol", first, lambda: len(got) >= enough, newcomers):
        if reply == ENROLLED:
            got.add(node)
    return got


@pytest.mark.parametrize(
    ("comes", "took", "n"),
    [(0, 1, 5), (100, 101, 5), (170, 171, 5), (1000, CLAIMS_WAIT + 1, 4)],
)
def test_the_set_up_waits_for_nodes_that_connect(comes, took, n):
    grid = Returning(5, away=lambda at: {4} if at < comes else ())
    own = grid.exchange(300.0, patience=600.0)
    assert len(enrolled_of(grid, own, 5, 3)) == n
    assert took <= grid.at <= took + 1.5
    # Once per run: a second enrolment, of another document, waits no longer for who is
    # missing.
    begin = grid.at
    enrolled_of(grid, own, 5, 3)
    assert grid.at - begin <= (LEAST_GRACE + 1.5 if n == 4 else 3)


def test_too_few_clients_are_waited_for_as_long_as_the_patience_lasts():
    grid = Returning(3, away=lambda at: {2} if at < 500 else ())
    assert len(enrolled_of(grid, grid.exchange(300.0, patience=600.0), 3, 3)) == 3
    assert 500 <= grid.at <= 503
    grid = Returning(3, away=lambda at: {2})
    own = grid.exchange(300.0, patience=600.0)
    assert len(enrolled_of(grid, own, 3, 3)) == 2
    assert 600 <= grid.at <= 603
    # Once per run: a second enrolment asks those who are there once more.
    begin = grid.at
    assert len(enrolled_of(grid, own, 3, 3)) == 2
    assert grid.at - begin <= LEAST_GRACE + 1.5


# ------------------------------------------------------------------------- late replies


def test_late_replies_of_former_trips_and_second_ones_are_ignored():
    grid, held, is_first = Nodes(3), [], True

    def pull(ids):
        replies = Nodes.pull_messages(grid, ids)
        if is_first:
            held.extend(r for r in replies if r.metadata.reply_to_message_id == "1/0")
            return [reply for reply in replies if reply not in held]
        return [*held, *replies, *replies]

    grid.pull_messages = pull
    own = grid.exchange()
    assert sorted(node for node, _ in go(own, grid.nodes, enough=2)) == [0, 2]
    is_first = False
    assert sorted(node for node, _ in go(own, grid.nodes)) == [0, 1, 2]


def test_late_enrolments_are_taken_along_in_later_trips():
    grid = Nodes(5, lambda node, n: 25.0 if node >= 3 and n == 0 else 1.0)
    own = grid.exchange()
    enrolled = go(own, grid.nodes[:4], enough=3, kind="enrol", request=ENROL)
    assert sorted(node for node, _ in enrolled) == [0, 1, 2]
    assert set(own.invited) == {3}
    own.invite({4: ENROL})
    assert set(own.invited) == {3, 4}
    assert len(go(own, [0, 1, 2])) == 3  # nobody waits for the invited
    grid.clock.now += 30
    grid.seconds = lambda node, n: 2.0
    replies = {**dict.fromkeys((0, 1, 2), FINISHED), 3: ENROLLED, 4: ENROLLED}
    assert dict(go(own, [0, 1, 2])) == replies
    assert not own.invited


def test_lost_enrolments_may_be_sent_again():
    grid = Nodes(3, lambda node, n: None if node == 2 else 1.0)
    grid.known_lost = lambda ids: {i for i in ids if i == "2/0"}
    own = grid.exchange()
    # A grid that knows of the loss spares the grace time.
    assert seconds_of(grid, own, enough=2, kind="enrol", request=ENROL)[1] < 1.5
    assert set(own.invited) == {2}
    go(own, [0, 1])
    assert not own.invited


def test_nodes_are_waited_for():
    grid = Nodes(2)
    begin = grid.clock()
    assert grid.exchange(7.0).wait_for_nodes(3) == [0, 1]
    assert grid.clock() - begin >= 7.0
    grid.get_node_ids = lambda: [3, 1, 2] if grid.clock() - begin > 9 else [1]
    assert grid.exchange(60.0).wait_for_nodes(3) == [1, 2, 3]
    assert grid.clock() - begin < 10


def test_polls_come_four_times_a_second():
    grid = Nodes(1, lambda node, n: 30.0)
    go(grid.exchange(), grid.nodes)
    assert 30 / 0.275 < len(grid.pulls) < 30 / 0.25 + 20


# ------------------------------------------------------------------- a grid that blocks


class Uploads(Nodes):
    """Nodes of a deployment: a pull returns only when every reply in it is complete."""

    known_lost = None

    def __init__(self, n_nodes, slow=(), **options):
        super().__init__(n_nodes, **options)
        self.slow, self.complete = set(slow), threading.Event()
        self.lock, self.uploading, self.most_pulls = threading.Lock(), set(), 0
        self.others = set(threading.enumerate())

    def settle(self):
        """Wait for all pulls but those of slow uploads: no busy machine decides who is late."""
        while running := set(threading.enumerate()) - self.others - self.uploading:
            for thread in running:
                thread.join(0.01)

    def upload(self):
        """Wait until uploads are complete."""
        self.uploading.add(threading.current_thread())
        self.most_pulls = max(self.most_pulls, len(self.uploading))
        self.complete.wait(60)
        self.uploading.discard(threading.current_thread())

    def push_messages(self, messages):
        with self.lock:
            return super().push_messages(messages)

    def pull_messages(self, ids):
        with self.lock:
            replies = super().pull_messages(ids)
        if any(reply.metadata.src_node_id in self.slow for reply in replies):
            self.upload()
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


@pytest.mark.claim("protocol", "so-64-slow-nodes")
@pytest.mark.parametrize(
    ("n_nodes", "slow", "enough"),
    [
        (6, {0, 2}, 4),
        (9, {4}, 5),
        (20, {10}, 5),
        (150, {75}, 5),
        (100, set(range(60)), 30),
    ],
)
def test_a_slow_upload_does_not_hold_up_the_others(uploads, n_nodes, slow, enough):
    grid = uploads(n_nodes, slow=slow)
    own, begin = grid.exchange(), grid.clock()
    rest = {(node, FINISHED) for node in set(grid.nodes) - slow}
    assert set(go(own, grid.nodes, enough=enough)) == rest
    assert n_nodes > 20 or grid.clock() - begin < LEAST_GRACE + 5
    assert all(len(ids) == 1 for ids in grid.pulls)
    # Those that are still uploading neither hold up the next trip nor take the place of
    # others.
    assert set(go(own, grid.nodes, enough=enough)) == rest


def honest_seconds(grid, own, honest, others):
    """Return how long a trip to slow and honest nodes took until all honest ones had replied."""
    got, begin, last = set(), grid.clock(), 0.0
    requests = dict.fromkeys([*others, *honest], FINISH)
    for node, _ in own.trip("finish", requests, lambda: got >= set(honest)):
        if node in honest:
            got.add(node)
            last = grid.clock() - begin
    assert got == set(honest)
    return last


@pytest.mark.claim("threat-model", "55")
def test_55_64_slow_uploads_cost_honest_nodes_at_most_two_grace_times(uploads):
    """Also if they are all looked at before the honest ones."""
    grid = uploads(84, slow=range(64), seconds=lambda node, n: 0.0)
    own, honest = grid.exchange(), range(64, 84)
    begin = grid.clock()
    took = [honest_seconds(grid, own, honest, range(64))]
    assert LEAST_GRACE < took[0] <= 2 * LEAST_GRACE
    # The wait for the others, after enough have replied, included.
    assert grid.clock() - begin <= 2 * LEAST_GRACE + 1
    took += [honest_seconds(grid, own, honest, range(64)) for _ in range(2)]
    assert max(took[1:]) <= 3  # late nodes have places of their own
    assert grid.most_pulls <= 56 + 8 + 64


@pytest.mark.claim("threat-model", "55")
def test_55_300_slow_uploads_cost_honest_nodes_at_most_two_grace_times(uploads):
    """They join a run whose clients have replied once, and are looked at before these."""
    grid = uploads(320, slow=range(300), seconds=lambda node, n: 0.0)
    own, honest = grid.exchange(), range(300, 320)
    took = [honest_seconds(grid, own, honest, ())]
    own.invite(dict.fromkeys(range(100), ENROL))
    for first in range(100, 300, 25):
        took.append(honest_seconds(grid, own, honest, range(first, first + 25)))
    assert sum(took) <= 2 * LEAST_GRACE
    # However many they are, so many pulls are under way at most.
    assert grid.most_pulls == 128


@pytest.mark.claim("protocol", "fetch-longer-than-grace")
def test_a_late_node_is_pulled_once_at_a_time_and_is_prompt_after_one_reply_in_time(
    uploads,
):
    grid = uploads(68, slow=range(56), seconds=lambda node, n: 0.0)
    slow, honest = range(56), range(56, 60)
    own = grid.exchange()

    def complete():
        """Let all slow uploads end, long after the grace time, and others be quick."""
        grid.slow = set()
        grid.complete.set()
        for thread in list(grid.uploading):
            thread.join(30)
        assert len(go(own, honest)) == 4
        grid.complete.clear()

    assert honest_seconds(grid, own, honest, slow) > LEAST_GRACE
    assert honest_seconds(grid, own, honest, slow) <= 3
    assert len(grid.uploading) <= 56 + 8  # late nodes have eight places
    complete()
    grid.slow = set(slow)
    # They are late, and have eight places: new nodes do not wait for them.
    assert honest_seconds(grid, own, range(60, 64), slow) <= 3
    complete()
    assert len(go(own, grid.nodes[:64])) == 64
    grid.slow = set(slow)
    assert honest_seconds(grid, own, range(64, 68), slow) > LEAST_GRACE


def test_a_reply_that_never_ends_does_not_keep_its_node_out_for_good(uploads):
    """Flower waits for it until the run ends, and the node's next replies are fetched beside it."""
    grid = uploads(4, slow={3})
    own = grid.exchange()
    assert len(go(own, grid.nodes, enough=3)) == 3
    grid.slow = set()
    assert len(go(own, grid.nodes, enough=4)) == 4
    assert len(grid.uploading) == 1
    grid.slow = {3}
    for _ in range(4):
        assert len(go(own, grid.nodes, enough=3)) == 3
    assert len(grid.uploading) == 2  # and no more, whatever it does


def test_what_is_being_fetched_is_not_fetched_again_in_the_next_trip(uploads):
    grid = uploads(4, slow={3})
    own = grid.exchange()
    assert len(go(own, grid.nodes, enough=3, kind="enrol", request=ENROL)) == 3
    assert set(own.invited) == {3}
    assert len(go(own, [0, 1, 2])) == 3
    grid.complete.set()
    grid.seconds = lambda node, n: 5.0
    assert (3, ENROLLED) in go(own, [0, 1, 2])
    assert Counter(i for ids in grid.pulls for i in ids)["3/0"] < 60
    assert not own.invited


@pytest.mark.parametrize(("n_nodes", "most"), [(4, 16), (200, 40)])  # a second
def test_the_number_of_requests_is_bounded(uploads, n_nodes, most):
    grid = uploads(n_nodes, seconds=lambda node, n: None)
    n_replies, took = seconds_of(grid, grid.exchange(20.0, patience=0.0))
    assert n_replies == 0
    assert len(grid.pulls) <= (most + 8) * took
    assert {i for ids in grid.pulls for i in ids} == set(grid.under_way)


def test_what_goes_wrong_in_a_pull_ends_its_trip_and_no_later_one(uploads):
    grid = uploads(3)
    pull, failed = grid.pull_messages, threading.Event()

    def broken(ids):
        if ids == ["2/0"]:
            grid.upload()
            failed.set()
        if ids == ["2/0"] or ids[0].endswith("/2"):
            raise ConnectionError("the link is gone")
        return pull(ids)

    grid.pull_messages = broken
    own = grid.exchange()
    assert len(go(own, grid.nodes, enough=2)) == 2
    grid.complete.set()
    assert failed.wait(30)
    grid.settle()
    assert len(go(own, [0, 1])) == 2
    with pytest.raises(ConnectionError, match="the link is gone"):
        go(own, [0, 1])


def test_a_grid_that_answers_all_has_no_grace_time():
    grid = Nodes(4, lambda node, n: 50.0 * LEAST_GRACE if node == 3 else 1.0)
    assert len(go(grid.exchange(), grid.nodes, enough=2)) == 3
    grid = Nodes(4, grid.seconds)
    grid.answers_all = True
    assert len(go(grid.exchange(), grid.nodes, enough=2)) == 4
    assert seconds_of(grid, grid.exchange(timeout=20.0), enough=2)[0] == 3


# ------------------------------------------------------------------ Flower's simulation


class Simulation(Nodes):
    """The grid of Flower's own simulation, whose node 2 is on a Ray worker that was lost."""

    def answer(self, message):
        if message.metadata.dst_node_id != 2:
            return super().answer(message)
        reason = (
            "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly.'>"
        )
        return Message(Error(code=0, reason=reason), reply_to=message)


@pytest.fixture
def simulation(monkeypatch):
    """Return the grid under the name of Flower's, and without what Flower's has not."""
    monkeypatch.delattr(Nodes, "known_lost")
    return type(InMemoryGrid.__name__, (Simulation,), {})


def test_flowers_simulation_is_polled_in_this_thread_for_all_replies_at_once(
    simulation,
):
    grid, threads = simulation(2), set()
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: threads.add(threading.get_ident()) or pull(ids)
    assert len(go(grid.exchange(), grid.nodes)) == 2
    assert threads == {threading.get_ident()}
    assert {len(ids) for ids in grid.pulls} == {2}


@pytest.mark.claim("reference/simulation", "after-lost-worker-node")
def test_a_run_in_flowers_simulation_ends_where_a_ray_worker_was_lost(simulation):
    grid = simulation(4)
    with pytest.raises(RunError, match=r"Ray cluster was lost.*start the run again"):
        go(grid.exchange(), grid.nodes)
    own = grid.exchange()
    sent = own.messages("finish", dict.fromkeys(grid.nodes, FINISH))
    grid.push_messages(sent)
    with pytest.raises(RunError, match="Ray cluster was lost"):
        list(own.replies([grid.answer(each) for each in sent], sent))


def test_nodes_of_a_deployment_cannot_end_a_run_by_such_an_error(uploads):
    grid = uploads(4)
    grid.answer = lambda message: Simulation.answer(Simulation(4), message)
    assert dict(go(grid.exchange(), grid.nodes))[2] == CRASHED
