"""Whole runs with nodes that are named, and with nodes that come without being asked."""

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from harness import RecordingGrid

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.incidents import UNCLAIMED
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.protocol.wire import encode, from_content, to_content
from flower_kmeans.secagg.primitives import public_key
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FastLloyd, SynopsisKMeans, VerticalKMeans

BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = np.array_split(np.random.default_rng(0).random((500, 2)), 5)


class Deployed(Grid):
    """A grid as of a deployment: nothing is known of messages that were lost."""

    def __init__(self, grid):
        self.grid = grid

    def __getattr__(self, name):
        if name == "known_lost":
            raise AttributeError(name)
        return getattr(self.grid, name)

    run = property(lambda self: self.grid.run)

    def set_run(self, run):
        self.grid.set_run(run)

    def create_message(self, *args, **options):
        return self.grid.create_message(*args, **options)

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, messages, *, timeout=None):
        return self.grid.send_and_receive(messages, timeout=timeout)


def members(directory, n):
    """Return the policies of clients with keys and ledgers, and their roster."""
    *keys, roster = write_members(directory / "keys", [f"h{i}" for i in range(n)])
    policies = [
        ClientPolicy(
            state_dir=directory / f"s{i}",
            roster_file=roster,
            member_key_file=key,
            max_delta=1e-5,
        )
        for i, key in enumerate(keys)
    ]
    return policies, roster


def squatting(request, static, n):
    """Return what a node sends that holds no key: another's slot, and errors afterwards."""
    if not isinstance(request, messages.Enrol):
        return messages.Refusal(code=messages.Code.INTERNAL, doc_hash=request.doc_hash)
    values = {
        "commitment": bytes(32),
        "static": static,
        "ledger": True,
        "software": "x",
    }
    made = {"public_key": public_key(token(32)), "claim": token(64)}
    return messages.Enrolled(doc_hash=request.doc_hash, **values, **made)


@pytest.mark.claim("threat-model", "52")
@pytest.mark.parametrize("n", [5, 6])
def test_52_a_node_in_anothers_slot_ends_no_run(n, tmp_path):
    """The last client stays away, and its node claims the first one's slot before its owner."""
    policies, roster = members(tmp_path, n)
    parts = np.array_split(np.random.default_rng(0).random((500, 2)), n)
    results = []
    apps = [
        kmeans_client_app(
            lambda context, i=i: parts[i], policy, lambda r, c: results.append(r)
        )
        for i, policy in enumerate(policies)
    ]
    static = Roster.from_file(roster).keys[0]

    def app(message, context):
        place = int(context.node_config["partition-id"])
        if place == 0:
            reply = squatting(
                messages.decode_request(from_content(message.content)), static, n
            )
            return Message(to_content(encode(reply)), reply_to=message)
        return apps[place - 1](message, context)

    privacy, crowd = PrivacyBudget(1.0), {"n_clients": n, "min_clients": n - 1}
    given = {"keys": "roster", "roster_file": str(roster), "seed": 0}
    strategy = SynopsisKMeans(3, BOX, privacy, n_records=500, **crowd, **given)
    with task_identity():
        strategy.start(RecordingGrid(app, n), timeout=8)
    assert strategy.report.answers == [n - 1] * strategy.n_rounds
    assert len(results) == n - 1
    assert {i.reason for i in strategy.report.incidents} == {UNCLAIMED}
    spent = [spent_epsilon(tmp_path / f"s{i}", 1e-6) for i in range(n - 1)]
    assert len(set(spent)) == 1
    assert spent[0] == pytest.approx(strategy.report.epsilon, rel=0.02)


# ------------------------------------------------------------------------------ nodes=


def fast(**options):
    given = {"n_rounds": 2, "min_clients": 3, **options}
    return FastLloyd(2, BOX, PrivacyBudget(1.0), 500, **given)


def grid_of(results):
    policy = ClientPolicy.for_simulation()

    def keep(result, context):
        results.append(int(context.node_config["partition-id"]))

    load = lambda context: PARTS[int(context.node_config["partition-id"])]  # noqa: E731
    return RecordingGrid(kmeans_client_app(load, policy, keep), 5)


def test_only_named_nodes_take_part_and_are_waited_for():
    results, grid = [], None
    grid = grid_of(results)
    nodes = sorted(grid.get_node_ids())
    named = [nodes[3], nodes[0], nodes[2]]
    strategy = fast(nodes=named)
    with task_identity():
        strategy.start(grid, timeout=8)
    assert sorted(results) == [0, 2, 3]
    assert {item.node_id for item in grid.sent} == set(named)
    assert strategy.report.n_slots == 3


OPEN = "any node that the SuperLink admits can join"


@pytest.mark.claim("threat-model", "43")
def test_the_report_says_when_any_node_can_join():
    said = []
    for options, wrap in (
        ({}, Deployed),
        ({}, lambda grid: grid),
        ({"nodes": "all"}, Deployed),
    ):
        grid = grid_of([])
        if options:
            options = {"nodes": sorted(grid.get_node_ids())}
        strategy = fast(**options)
        with task_identity():
            strategy.start(wrap(grid), timeout=8)
        said.append(any(OPEN in each for each in strategy.report.statements))
    assert said == [True, False, False]


@pytest.mark.claim("threat-model", "V10")
@pytest.mark.parametrize("options", [{}, {"keys": "relayed"}])
def test_v10_a_vertical_run_needs_a_roster_or_names_outside_of_simulations(options):
    strategy = VerticalKMeans(
        2, BOX, PrivacyBudget(1.0), 100, parties=[1, 1], **options
    )
    grid = grid_of([])
    with (
        task_identity(),
        pytest.raises(ConfigurationError, match="nodes, the ids of the parties"),
    ):
        strategy.start(Deployed(grid), timeout=8)
    assert not grid.sent


@pytest.mark.parametrize(
    ("match", "nodes"),
    [
        ("a list of node ids", 7),
        ("a list of node ids", "123"),
        ("different node ids", []),
        ("different node ids", [1, 2, 3, 1]),
        ("nodes", [1, 2, -3]),
        ("nodes", [1, 2, 2**64]),
        ("nodes", [1, 2, "3"]),
        ("at most 2, the number of nodes", [1, 2]),
    ],
)
def test_names_that_are_no_node_ids_are_refused(match, nodes):
    with (
        task_identity(),
        pytest.raises((ConfigurationError, ConfigurationTypeError), match=match),
    ):
        fast(nodes=nodes).start(grid_of([]), timeout=8)


def test_a_vertical_run_names_as_many_nodes_as_parties():
    given = {"parties": [1, 1], "nodes": [1, 2, 3]}
    strategy = VerticalKMeans(2, BOX, PrivacyBudget(1.0), 100, **given)
    with task_identity(), pytest.raises(ConfigurationError, match="nodes of 2 parties"):
        strategy.start(grid_of([]), timeout=8)
