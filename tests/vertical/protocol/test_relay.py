"""The server of a vertical run whose set-up fails: who is charged, and whose node has a place.

Parties are real ones; what fails is a node, a party's rows, or the server itself.
"""

from dataclasses import replace

import pytest
from vertical_runs import (
    N_RECORDS,
    Relay,
    blobs,
    make_algorithm,
    make_parties,
    make_run,
    straight_signs,
)

from flower_kmeans.errors import RunError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.protocol.exchange import CRASHED
from flower_kmeans.protocol.messages import Abort, Enrol, decode_request
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.vertical.protocol.messages import Turn
from flower_kmeans.vertical.protocol.parcels import COLUMNS

IDS = [f"customer {i}" for i in range(N_RECORDS)]


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with straight_signs():
        yield


class Node:
    """A party behind a node that fails where it should."""

    def __init__(self, party, fails=lambda request: False):
        self.party, self.fails, self.asked = party, fails, []

    def ask(self, data):
        request = decode_request(data)
        step = (
            request.step if isinstance(request, Turn) else request.__struct_config__.tag
        )
        self.asked.append(step)
        return None if self.fails(request) else self.party.ask(data)

    @property
    def spent(self):
        return spent_epsilon(self.party.directory, 1e-6) or 0.0


def network(directory, n_parties=2, n_holders=1, check_ids=False, changes=None):
    """Return a run's relay and its nodes; ``changes`` are what a slot has that others have not."""
    widths = (1,) * n_parties
    run = make_run(
        widths, make_algorithm(widths, key_holders=n_holders, n_rounds=1), check_ids
    )
    parties = make_parties(directory, blobs(d=n_parties), widths, IDS)
    nodes = [
        Node(replace(party, **(changes or {}).get(i, {})))
        for i, party in enumerate(parties)
    ]
    return Relay(run, nodes), nodes


def set_up(net):
    net.server.set_up(range(len(net.parties)), net.trip)


def finish(net):
    """Play the rounds and the end of a run whose set-up is done."""
    for _ in range(net.run.document.rounds):
        net.take("step")
    net.take("close")


def play(net):
    set_up(net)
    finish(net)


def steps_of(net):
    """Return the turns of a run in their order, and to which nodes."""
    requests = [(node, decode_request(data)) for node, data, _ in net.seen]
    return [(node, each.step) for node, each in requests if isinstance(each, Turn)]


# --------------------------------------------------------------------- V14: rows differ


@pytest.mark.claim("threat-model", "V14")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("n_holders", [1, 2])
def test_v14_nobody_is_charged_for_rows_that_differ(slot, n_holders, tmp_path):
    """Another order at one party: neither keys nor columns travel."""
    net, nodes = network(tmp_path, 3, n_holders, True, {slot: {"ids": IDS[::-1]}})
    with pytest.raises(
        RunError, match=r"party 0 to 'ids'.*could not be loaded or checked"
    ):
        set_up(net)
    assert [node.spent for node in nodes] == [0, 0, 0]
    assert {step for _, step in steps_of(net)} == {"ids"}
    assert [node.asked[-1] for node in nodes] == ["abort"] * 3


@pytest.mark.claim("threat-model", "V14")
def test_rows_are_compared_before_keys_and_columns_travel(tmp_path):
    net, nodes = network(tmp_path, 3, 2, True)
    set_up(net)
    order = steps_of(net)
    assert order[:3] == [(1, "ids"), (2, "ids"), (0, "ids")]
    assert "ids" not in [step for _, step in order[3:]]
    finish(net)
    assert all(node.party.results for node in nodes)


# --------------------------------------------------------------------- the server fails


class BrokenError(Exception):
    """What Flower may raise."""


@pytest.mark.claim("protocol", "set-up-was-open")
@pytest.mark.parametrize(
    ("n_holders", "step", "charged"),
    [
        (1, "keys", []),
        (2, "keys", []),
        (2, "join", []),
        (1, "encrypt", [1]),
        (2, "encrypt", [1, 2]),
    ],
)
def test_a_set_up_that_the_server_ends_charges_who_answered_from_records(
    n_holders, step, charged, tmp_path
):
    """Nobody before `join`, with one holder before `keys`; all parties get an abort."""
    net, nodes = network(tmp_path, 1 + n_holders + 1, n_holders, True)
    carried = net.trip

    def trip(kind, requests, has_enough):
        if kind == step:
            raise BrokenError
        yield from carried(kind, requests, has_enough)

    net.trip = trip
    with pytest.raises(BrokenError):
        set_up(net)
    assert [i for i, node in enumerate(nodes) if node.spent] == charged
    assert [node.asked[-1] for node in nodes] == ["abort"] * len(nodes)
    assert [node.party.session(net.run).secret for node in nodes] == [b""] * len(nodes)


@pytest.mark.claim("protocol", "set-up-was-open")
def test_an_error_of_the_abort_does_not_hide_why_the_run_ended(tmp_path):
    net, _ = network(tmp_path)

    def trip(kind, requests, has_enough):
        raise BrokenError(kind)

    net.trip = trip
    with pytest.raises(BrokenError, match="enrol"):
        set_up(net)


@pytest.mark.claim("threat-model", "V4")
def test_v4_a_joint_holder_that_restarts_before_its_join_ends_the_run(tmp_path):
    """It has no column out and no charge; a holder that answered `join` before stays charged."""
    net, nodes = network(tmp_path, 3, 2)

    def restarts(request):
        if isinstance(request, Turn) and request.step == "join":
            nodes[2].party.restart()
        return False

    nodes[2].fails = restarts
    with pytest.raises(RunError, match=r"party 2 to 'join'\. .*A key"):
        set_up(net)
    assert [node.spent > 0 for node in nodes] == [False, True, False]
    replies = [
        each
        for node, data, _ in net.seen
        if node == 2
        for each in [decode_request(data)]
    ]
    assert isinstance(replies[-1], Abort)


@pytest.mark.claim("protocol", "party-missing-waited-rule")
@pytest.mark.default_cases("encrypt")
@pytest.mark.parametrize("step", ["encrypt", "step", "open"])
def test_a_joint_holder_may_restart_once_it_answered_join(step, tmp_path):
    net, nodes = network(tmp_path, 4, 2)

    def restarts(request):
        if isinstance(request, Turn) and request.step == step:
            for node in nodes:
                node.party.restart()
        return False

    for node in nodes:
        node.fails = restarts
    play(net)
    assert all(node.party.results for node in nodes)


# ---------------------------------------------------------------------- a party returns


@pytest.mark.claim("protocol", "party-missing-waited-rule")
def test_a_party_that_ends_in_any_turn_and_returns_finishes_the_run(tmp_path):
    """In each trip Flower first reports an error in its place, then it answers the same request."""
    net, nodes = network(tmp_path, 4, 2, True)
    carried, errors = net.trip, []

    def trip(kind, requests, has_enough):
        for node_id in requests:
            if kind not in ("enrol", "abort"):
                errors.append((node_id, kind))
                yield node_id, CRASHED
        yield from carried(kind, requests, has_enough)

    net.trip = trip
    play(net)
    assert all(node.party.results for node in nodes)
    assert [node.spent for node in nodes] == [pytest.approx(8.0)] * 4
    noted = {(each.client, each.kind, each.reason) for each in net.server.incidents}
    assert noted == {(node_id, "failed", CRASHED) for node_id, _ in errors}
    steps = {
        "ids",
        "keys",
        "join",
        "encrypt",
        "load",
        "step",
        "open",
        "close",
        "finish",
    }
    # which goes along with others
    assert {kind for _, kind in errors} == steps - {"load"}
    assert {node_id for node_id, _ in errors} == set(range(4))


# ----------------------------------------------------------------------------- takeover


class Owners:
    """Parties of a roster, of which one has two nodes with its key."""

    def __init__(self, directory, twice, check_ids=False, n_parties=3, n_holders=1):
        names = [f"p{i}" for i in range(n_parties)]
        *keys, roster = write_members(directory / "keys", names)
        self.roster, widths = Roster.from_file(roster), (1,) * n_parties
        self.run = make_run(
            widths,
            make_algorithm(widths, key_holders=n_holders, n_rounds=1),
            check_ids,
            keys="roster",
            roster=self.roster.digest,
        )
        self.nodes = []
        for which in range(2):
            table = blobs(d=n_parties)
            parties = make_parties(directory / f"nodes-{which}", table, widths, IDS)
            for slot, party in enumerate(parties):
                if which == 0 or slot == twice:
                    files = {"roster_file": roster, "member_key_file": keys[slot]}
                    party.policy = replace(party.policy, **files, party=None)
                    party.node_id = len(self.nodes)
                    self.nodes.append(Node(party))
        self.net = Relay(self.run, self.nodes, roster=self.roster)
        self.first, self.second = self.nodes[twice], self.nodes[-1]

    def first_dies_at(self, step):
        def fails(request):
            if isinstance(request, Turn) and request.step == step:
                self.is_dead = True
            return self.is_dead

        self.is_dead, self.first.fails = False, fails


@pytest.mark.claim("protocol", "roster-up-4-nodes")
@pytest.mark.parametrize(
    ("twice", "check_ids", "step"),
    [(1, False, "keys"), (1, True, "ids"), (2, True, "ids"), (0, True, "ids")],
)
def test_a_second_node_with_a_partys_key_takes_over_before_its_first_answer(
    twice, check_ids, step, tmp_path
):
    owners = Owners(tmp_path, twice, check_ids)
    owners.first_dies_at(step)
    play(owners.net)
    has_result = [bool(node.party.results) for node in owners.nodes]
    assert has_result == [i != twice for i in range(len(owners.nodes))]
    assert owners.first.asked.count(step) == 2  # two trips
    assert owners.first.spent == 0


@pytest.mark.claim("protocol", "roster-up-4-nodes")
@pytest.mark.parametrize(
    ("twice", "check_ids", "n_holders", "step"),
    [
        (1, True, 1, "keys"),  # it answered once
        (0, False, 1, "load"),  # others sealed their keys for the first node
        (2, False, 2, "keys"),  # the other holder revealed its first message
        (1, False, 1, "open"),
    ],
)
def test_no_node_takes_over_after_an_answer_that_needs_the_partys_key(
    twice, check_ids, n_holders, step, tmp_path
):
    owners = Owners(tmp_path, twice, check_ids, n_holders=n_holders)
    owners.first_dies_at(step)
    with pytest.raises(RunError, match=f"party {twice} to"):
        play(owners.net)
    assert set(owners.second.asked) == {"enrol", "abort"}
    assert owners.second.spent == 0


@pytest.mark.claim("protocol", "roster-up-4-nodes")
def test_nodes_with_a_partys_key_are_few(tmp_path):
    """The server remembers four of them."""
    owners = Owners(tmp_path, 1, n_parties=2)
    template = owners.nodes[-1].party
    for i in range(8):
        party = template.copied(tmp_path / f"copy-{i}")
        party.node_id = len(owners.nodes)
        owners.nodes.append(Node(party))
    set_up(owners.net)
    assert len(owners.net.server._members.others[1]) == 3
    assert {each.reason for each in owners.net.server.incidents} == {
        "Another node has the party's slot."
    }


def test_enrolments_are_not_sent_again_to_nodes_that_joined(tmp_path):
    """A party that comes late lets the others be asked once."""
    owners = Owners(tmp_path, 1)
    late = owners.nodes[0]
    late.fails = lambda request: (
        isinstance(request, Enrol) and late.asked.count("enrol") == 1
    )
    set_up(owners.net)
    assert [node.asked.count("enrol") for node in owners.nodes] == [2, 1, 1, 1]


def test_columns_are_sealed_once_for_the_node_that_took_over(tmp_path):
    """Nothing of the first pass of a set-up is delivered in the second one."""
    owners = Owners(tmp_path, 0, True)
    owners.first_dies_at("ids")
    set_up(owners.net)
    found = []
    for node, data, _ in owners.net.seen:
        request = decode_request(data)
        if node == 3 and isinstance(request, Turn):
            found += [(each.sender, each.number) for each in request.deliveries]
    assert len(found) == len(set(found))
    assert {sender for sender, number in found if number >= COLUMNS} <= {1, 2}
