"""Whole runs in which nodes are killed and come back: row 56 of the attacks.

The grid behaves as Flower's in a deployment, on a clock of its own. It notices after a
minute that a node is gone, and answers then with an error for what the node was sent.
"""

import shutil
from contextlib import suppress
from functools import partialmethod

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.protocol.exchange import CLAIMS_WAIT, Exchange
from flower_kmeans.protocol.roster import write_members
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import GLloyd

pytestmark = pytest.mark.claim("how-a-run-works", "round-too-few-answers")

BOX = Box([0.0, 0.0], [1.0, 1.0])
N, ROUNDS = 3, 2
PARTS = [np.random.default_rng(i).random((40, 2)) for i in range(6)]
NODE_GONE = 5  # Flower's code for it
NOTICED = 60.0  # seconds until Flower notices that a node is gone
BACK = 110.0  # seconds until a killed node is back
SHARED = ("clients-only", "distributed-noise")
TRUSTS = ("oblivious-server", *SHARED, "trusted-server")


class Clock:
    """A clock that moves by half a second whenever somebody sleeps."""

    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0.5)


class Deployment(InProcessGrid):
    """Nodes that can be killed, whose messages wait at the SuperLink meanwhile."""

    def __init__(self, app, n_nodes, clock):
        super().__init__(app, n_nodes)
        self.clock, self.nodes = clock, sorted(self._contexts)
        self.killed_at, self.back_at = {}, {}
        # messages by (node, kind, content); those that met a death
        self.sent, self.lost = [], {}
        self.kill = lambda node, kind: None  # "before" or "after" an answer
        self.restarts = []
        self.hears = True  # Flower answers with an error for a node that is gone

    def is_gone(self, node, after=0.0):
        killed, back = self.killed_at.get(node, np.inf), self.back_at.get(node, 0.0)
        return killed + after <= self.clock() < back

    def get_node_ids(self):
        return [node for node in self.nodes if not self.is_gone(node, NOTICED)]

    def push_messages(self, messages):
        listed = list(messages)
        for message in listed:
            data = message.metadata
            self.sent.append(
                (data.dst_node_id, data.group_id, message.content, self.clock())
            )
        return super().push_messages(listed)

    def pull_messages(self, message_ids):
        for message_id in list(message_ids):
            message = self._replies.get(message_id)
            if message is None:
                continue
            node, kind = message.metadata.dst_node_id, message.metadata.group_id
            if message_id in self.lost or self.is_gone(node):
                if self.hears and self.is_gone(node, NOTICED):
                    del self._replies[message_id]
                    yield Message(
                        Error(code=NODE_GONE, reason="gone"), reply_to=message
                    )
                continue
            moment = self.kill(node, kind)
            if moment is not None:
                self.killed_at[node], self.back_at[node] = (
                    self.clock(),
                    self.clock() + BACK,
                )
                self.lost[message_id] = kind
            if moment == "before":
                self.restarts.append(node)
                self.on_restart(node)
                continue
            reply = next(super().pull_messages([message_id]))
            if moment == "after":
                self._replies[message_id] = message  # its reply was lost
                self.restarts.append(node)
                self.on_restart(node)
                continue
            yield reply

    def on_restart(self, node):
        self._contexts[node].state = RecordDict()

    def known_lost(self, message_ids):
        return set()


class World:
    """Clients with ledgers, and with a roster if their sums are protected, and a run of theirs."""

    def __init__(self, tmp_path, trust, n=N, min_clients=N, n_clients=N):
        self.clock, self.results = Clock(), {}
        *members, roster = write_members(tmp_path / "keys", [f"h{i}" for i in range(n)])
        own = {"roster_file": roster} if trust != "trusted-server" else {}
        self.states = [tmp_path / f"s{i}" for i in range(n)]
        self.apps = []
        for i, key in enumerate(members):
            names = {**own, "member_key_file": key} if own else {}
            given = {"trusts": (trust,), "state_dir": self.states[i], "max_delta": 1e-5}
            policy = ClientPolicy(**given, **names)
            self.apps.append(
                kmeans_client_app(lambda c, i=i: PARTS[i], policy, self.keep)
            )
        self.grid = Deployment(self.answer, n, self.clock)
        given = {"keys": "roster", "roster_file": str(roster)} if own else {}
        self.strategy = GLloyd(
            2,
            BOX,
            PrivacyBudget(1.0),
            120,
            n_rounds=ROUNDS,
            trust=trust,
            n_clients=n_clients,
            min_clients=min_clients,
            **given,
        )

    def keep(self, result, context):
        self.results[int(context.node_config["partition-id"])] = result

    def answer(self, message, context):
        return self.apps[int(context.node_config["partition-id"])](message, context)

    def start(self, monkeypatch, **options):
        timed = partialmethod(
            Exchange.__init__, clock=self.clock, sleep=self.clock.sleep
        )
        monkeypatch.setattr(Exchange, "__init__", timed)
        with task_identity():
            self.strategy.start(self.grid, **{"patience": 600.0, **options})
        return self

    def forget(self, node):
        """Let a node lose all: its memory and its ledger."""
        self.grid._contexts[node].state = RecordDict()
        shutil.rmtree(self.states[self.grid.nodes.index(node)], ignore_errors=True)

    def kill_once(self, kind, moment, node):
        """Kill a node when it is sent a message of a kind for the first time."""
        victim = self.grid.nodes[node]
        killed = self.grid.killed_at

        def kill(node, of):
            return (
                moment if (node, of) == (victim, kind) and node not in killed else None
            )

        self.grid.kill = kill

    def charges(self):
        """Return what each client's ledger charged."""
        return [
            spent_epsilon(state, 1e-6) if state.exists() else 0.0
            for state in self.states
        ]


def trips(trust):
    """Return the messages of a run, as Flower's groups name them."""
    per_round = ("ask", "add") if trust in SHARED else ("ask",)
    rounds = [f"{kind} {t}" for t in range(1, ROUNDS + 1) for kind in per_round]
    return [
        "enrol",
        *(["keys"] if trust == "oblivious-server" else []),
        *rounds,
        "finish",
    ]


CASES = [(trust, kind) for trust in TRUSTS for kind in trips(trust)]


@pytest.mark.claim("threat-model", "56")
@pytest.mark.default_cases("pairs")
# the first distributor of the group key, and not
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("trust", "kind"), CASES)
def test_56_a_killed_node_that_comes_back_costs_a_run_nothing_but_time(
    trust, kind, moment, victim, tmp_path, monkeypatch
):
    world = World(tmp_path, trust)
    world.kill_once(kind, moment, victim)
    world.start(monkeypatch)
    report = world.strategy.report
    assert world.grid.restarts == [world.grid.nodes[victim]]
    assert report.answers == [N] * ROUNDS
    assert report.attempts == ROUNDS  # a wait uses up no attempt
    assert set(world.results) == {0, 1, 2}
    np.testing.assert_allclose(world.charges(), report.epsilon, rtol=0.02)
    assert world.clock() < BACK + 40
    # What goes out again is the same request.
    place = world.grid.nodes[victim], kind
    asked = [content for node, of, content, _ in world.grid.sent if (node, of) == place]
    # two others make keys
    assert len(asked) == 1 if kind == "keys" else 2 <= len(asked) <= 5
    assert len({content.object_id for content in asked}) == 1


@pytest.mark.claim("threat-model", "56")
@pytest.mark.default_cases("values")
# the first distributor of the group key, and not
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("trust", "kind"), CASES)
def test_56_a_killed_node_whose_memory_is_lost_costs_one_attempt(
    trust, kind, moment, victim, tmp_path, monkeypatch
):
    world = World(tmp_path, trust)
    world.kill_once(kind, moment, victim)
    world.grid.on_restart = world.forget
    if kind.startswith("add"):  # of three members none may be missing there
        with suppress(RunError):
            world.start(monkeypatch)
        report, t = world.strategy.report, int(kind[-1])
        assert report.lost_rounds == [t] or report.n_rounds == t - 1
        return
    report = world.start(monkeypatch).strategy.report
    # Another attempt opens only where the frame must change.
    is_in_frame = kind not in ("enrol", "finish") and trust != "trusted-server"
    assert report.attempts == ROUNDS + is_in_frame
    assert report.answers == [N] * ROUNDS
    survivors = [charge for i, charge in enumerate(world.charges()) if i != victim]
    np.testing.assert_allclose(survivors, report.epsilon, rtol=0.02)
    assert {0, 1, 2} - {victim} <= set(world.results)
    assert world.clock() < BACK + 60


def test_a_node_is_sent_its_request_again_where_flower_says_nothing_of_its_death(
    tmp_path, monkeypatch
):
    world = World(tmp_path, "clients-only")
    world.grid.hears = False
    world.kill_once("add 2", "after", 1)
    assert world.start(monkeypatch).strategy.report.answers == [N] * ROUNDS
    assert world.clock() < BACK + 40


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_where_enough_answer_a_killed_node_costs_a_grace_time_alone(
    trust, tmp_path, monkeypatch
):
    world = World(tmp_path, trust, n=6, n_clients=6, min_clients=4)
    world.kill_once("ask 1", "after", 2)
    assert world.start(monkeypatch).strategy.report.answers == [5] * ROUNDS
    assert world.clock() < 15
    assert len(world.results) == 5


def test_a_node_that_stays_away_costs_the_patience_and_no_attempt(
    tmp_path, monkeypatch
):
    world = World(tmp_path, "oblivious-server")
    world.kill_once("ask 2", "before", 2)
    world.grid.on_restart = lambda node: world.grid.back_at.update({node: np.inf})
    with pytest.raises(
        TooFewClientsError, match=r"Got 2 of 3 in the last of 1 attempts.*failed"
    ):
        world.start(monkeypatch, patience=300.0)
    assert 300 <= world.clock() <= 300 + NOTICED + 40
    assert world.strategy.report.attempts == 2


def test_who_seals_a_key_after_the_death_of_its_maker_is_asked_for_it(
    tmp_path, monkeypatch
):
    """Two memories are lost in two rounds, each costs one attempt, and the key goes on."""
    world = World(tmp_path, "clients-only")
    first, second = world.grid.nodes[:2]
    world.grid.on_restart = world.forget
    moments = {(first, "ask 1"): "before", (second, "ask 2"): "after"}
    world.grid.kill = lambda *place: moments.pop(place, None)
    report = world.start(monkeypatch).strategy.report
    assert report.answers == [N] * ROUNDS
    assert report.attempts == ROUNDS + 2
    assert set(world.results) == {0, 1, 2}


# ------------------------------------------------------------------------------ set-up


def connected_after(world, seconds):
    """Let nodes connect after so many seconds each, or never."""
    for node, after in zip(world.grid.nodes, seconds, strict=True):
        if after:
            world.grid.killed_at[node], world.grid.back_at[node] = -NOTICED, after


@pytest.mark.parametrize(
    ("seconds", "answers", "took"),
    [
        ((0, 0, 0, 0, 0), 5, 0),
        ((0, 0, 0, 0, 120), 5, 120),
        ((0, 0, 0, 170, 90), 5, 170),
        ((0, 0, 0, 0, np.inf), 4, CLAIMS_WAIT),
        # with two there can be no run, so the wait is longer
        ((0, 0, 400, 400, 450), 5, 450),
        ((0, 0, 400, np.inf, np.inf), 3, 400 + CLAIMS_WAIT),
    ],
)
def test_the_set_up_waits_for_all_clients_once(
    seconds, answers, took, tmp_path, monkeypatch
):
    world = World(tmp_path, "oblivious-server", n=5, n_clients=5, min_clients=3)
    connected_after(world, seconds)
    report = world.start(monkeypatch).strategy.report
    assert report.answers == [answers] * ROUNDS
    assert took <= world.clock() <= took + 15
    assert len(world.results) == answers


def test_the_set_up_goes_on_without_the_one_member_that_a_committee_can_miss(
    tmp_path, monkeypatch
):
    """Of five members four can add: the fifth is waited for as long as any other client."""
    world = World(tmp_path, "clients-only", n=5, n_clients=5, min_clients=4)
    connected_after(world, (0, 0, 0, 0, np.inf))
    assert world.start(monkeypatch).strategy.report.answers == [4] * ROUNDS
    assert CLAIMS_WAIT <= world.clock() <= CLAIMS_WAIT + 15


def test_the_set_up_waits_for_the_lines_of_a_roster(tmp_path, monkeypatch):
    world = World(tmp_path, "oblivious-server", n=5, n_clients=None, min_clients=3)
    connected_after(world, (0, 0, 0, 0, 100))
    assert world.start(monkeypatch).strategy.report.answers == [5] * ROUNDS


def test_the_set_up_waits_for_the_named_nodes_and_says_who_is_refused(
    tmp_path, monkeypatch, caplog
):
    world = World(tmp_path, "trusted-server", n=5, n_clients=None, min_clients=3)
    world.strategy.nodes = tuple(world.grid.nodes[:4])
    connected_after(world, (0, 0, 0, 50, 0))
    world.apps[0] = kmeans_client_app(lambda c: PARTS[0], ClientPolicy(), world.keep)
    report = world.start(monkeypatch).strategy.report
    assert report.answers == [3] * ROUNDS
    assert CLAIMS_WAIT <= world.clock() <= CLAIMS_WAIT + 70
    said = [
        each.message for each in caplog.records if "does not take part" in each.message
    ]
    assert len(said) == 1
    assert str(world.grid.nodes[0]) in said[0]


@pytest.mark.parametrize(
    ("error", "patience"),
    [
        (ConfigurationError, -1),
        (ConfigurationError, float("nan")),
        (ConfigurationTypeError, "600"),
    ],
)
def test_the_patience_is_a_number_of_seconds(error, patience, tmp_path, monkeypatch):
    world = World(tmp_path, "trusted-server")
    with pytest.raises(error, match="patience"):
        world.start(monkeypatch, patience=patience)
    assert not world.grid.sent
