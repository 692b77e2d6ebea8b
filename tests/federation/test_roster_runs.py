"""Runs whose keys are pinned by a roster: places, leaders, strangers, restarts."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from harness import (
    BOX,
    KMEANS,
    P_VALUE,
    SIMULATED,
    Node,
    Scene,
    byte_p_value,
    key_file,
    make_run,
    roster_policies,
    run_recorded,
)

from flower_kmeans import ClientPolicy, Fault, PrivacyBudget
from flower_kmeans.errors import MessageError, RunError, TooFewClientsError
from flower_kmeans.federation.cohort import EMPTY, Tree, leaf
from flower_kmeans.federation.coordinator import Coordinator
from flower_kmeans.federation.life import load_life
from flower_kmeans.federation.messages import (
    Code,
    Enrol,
    EnrolReply,
    Lead,
    Refusal,
    Round,
    RoundReply,
)
from flower_kmeans.federation.roster import Identity, Roster
from flower_kmeans.federation.seating import STRANGER, TAKEN
from flower_kmeans.secagg import keys
from flower_kmeans.strategies import FastLloyd

TRUSTS = ("oblivious-server", "distributed-noise")


def code_of(answer):
    return answer.code if isinstance(answer, Refusal) else Code.OK


def nodes_of(policies):
    """Return nodes whose ids run against the order of the roster."""
    rng = np.random.default_rng(5)
    return [Node(2**63 - i, rng.random((6 + i, 2)), policy) for i, policy in enumerate(policies)]


def roster_scene(tmp_path, n=4, present=None, **options):
    """Return a scene, and the nodes of all members in the roster's order."""
    nodes = nodes_of(roster_policies(tmp_path, n))
    there = nodes if present is None else [nodes[i] for i in present]
    return Scene(make_run(keys="roster", **options), nodes=there), nodes


def strategy_of(trust="oblivious-server", **options):
    shared = {"n_clients": 6, "min_clients": 3} if trust == "distributed-noise" else {}
    options = {"n_rounds": 3, **shared, **options}
    return FastLloyd(3, BOX, PrivacyBudget(1.0), 240, trust=trust, keys="roster", **options)


def parts(n=6):
    rng = np.random.default_rng(3)
    return [rng.random((40, 2)) for _ in range(n)]


def hops(outcome):
    """Return the kinds of messages in the order of their hops, one for each hop."""
    kinds = [(message.kind, message.fields.get("t", 0)) for message in outcome.grid.sent]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]


# --------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_with_a_roster_needs_no_further_hop(trust, tmp_path):
    policies = roster_policies(tmp_path, 6)[::-1]
    outcome = run_recorded(strategy_of(trust), parts(), policy=policies)
    report = outcome.strategy.report
    assert (report.keys, report.n_clients, report.answers) == ("roster", 6, [6, 6, 6])
    assert report.dropped == []
    assert outcome.one is not None
    assert len(outcome.results) == 6
    assert hops(outcome) == [("enrol", 0), ("round", 1), ("round", 2), ("round", 3), ("finish", 3)]
    leading = [m.node_id for m in outcome.grid.sent if m.fields.get("lead")]
    assert leading == sorted(leading)[:3]
    assert any("roster of pinned public keys" in text for text in report.statements)


@pytest.mark.parametrize("trust", TRUSTS)
def test_absent_members_keep_their_places(trust, tmp_path):
    policies = roster_policies(tmp_path, 8)
    chosen = [7, 2, 4, 1, 6]
    strategy = strategy_of(trust, n_clients=5, min_clients=3)
    outcome = run_recorded(strategy, parts(5), policy=[policies[i] for i in chosen])
    report = outcome.strategy.report
    assert (report.n_clients, report.n_places, report.answers) == (5, 8, [5, 5, 5])
    assert "5 of 8 members on the roster took part." in report.statements
    assert report.to_dict()["n_places"] == 8
    assert report.dropped == []
    assert len(outcome.results) == 5
    asked = [m.fields for m in outcome.grid.sent if m.kind == "round"]
    assert {fields["m"] for fields in asked} == {8}
    assert {fields["index"] for fields in asked} == set(chosen)


def test_a_roster_of_which_no_quorum_came_ends_before_any_record_counts(tmp_path):
    policies = roster_policies(tmp_path, 12)[:5]
    strategy = strategy_of("distributed-noise", n_clients=5, min_clients=3)
    with pytest.raises(TooFewClientsError, match=r"quorum of 7 of the 12 members .* Got 5"):
        run_recorded(strategy, parts(5), policy=policies)
    simple = strategy_of("distributed-noise", n_clients=5, min_clients=3, opening="simple")
    assert run_recorded(simple, parts(5), policy=policies).strategy.report.answers == [5, 5, 5]


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    "kind", ["drop", "crash", "late", "twice", "shape", "type", "round", "run"]
)
def test_faults_cost_their_clients_only(kind, trust, tmp_path):
    faults = [Fault(1, 2, kind), Fault(4, 1, kind)]
    policies = roster_policies(tmp_path, 6)[::-1]
    outcome = run_recorded(
        strategy_of(trust), parts(), policy=policies, faults=faults, timeout=30.0
    )
    answers = outcome.strategy.report.answers
    assert answers == ([6, 6, 6] if kind == "twice" else [5, 5, 6])
    assert len(outcome.results) == 6
    assert outcome.one is not None


def test_a_late_member_takes_its_own_place_and_finds_its_envelope(tmp_path):
    policies = roster_policies(tmp_path, 6)[::-1]
    strategy = strategy_of(n_rounds=4)
    outcome = run_recorded(strategy, parts(), policy=policies, faults=[Fault(3, 0, "late")])
    assert strategy.report.answers == [5, 6, 6, 6]
    assert len(outcome.results) == 6
    assert outcome.one is not None
    late = [m.fields for m in outcome.grid.sent if m.fields.get("index") == 2]
    assert {fields["m"] for fields in late} == {6}
    assert sum("envelope" in fields for fields in late) >= 1


def test_the_next_three_lead_if_the_first_do_not_answer(tmp_path):
    policies = roster_policies(tmp_path, 6)
    faults = [Fault(i, 0, "drop") for i in range(3)]
    strategy = strategy_of(min_clients=3)
    outcome = run_recorded(strategy, parts(), policy=policies, faults=faults)
    enrols = [m for m in outcome.grid.sent if m.kind == "enrol"]
    leads = [m for m in enrols if m.fields["lead"]]
    nodes = sorted({m.node_id for m in enrols})
    assert [m.node_id for m in leads] == nodes  # three in the first hop, the rest in one more
    assert strategy.report.answers == [3, 3, 3]
    assert sorted(entry.round for entry in strategy.report.dropped) == [0, 0, 0]
    assert outcome.one is not None


# --------------------------------------------------------------------------- places


def test_seats_are_the_rosters_and_not_the_node_ids(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    assert [seat.node_id for seat in scene.server.seats] == [node.node_id for node in nodes]
    assert sorted(node.node_id for node in nodes) != [node.node_id for node in nodes]


def test_only_the_own_place_is_answered(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    seats = scene.server.seats
    node, seat = nodes[1], seats[1]
    for m in range(2, 7):
        for index in range(m):
            leaves = [leaf(i, i, bytes(32), seats[i % 4].public_key) for i in range(m)]
            leaves[index] = leaf(index, node.node_id, seat.commitment, seat.public_key)
            tree = Tree(leaves)
            scene.open()
            place = {"m": m, "index": index, "root": tree.root, "path": tree.path(index)}
            answer = node.ask(replace(scene.requests[node.node_id], **place))
            if (m, index) == (4, 1):
                continue
            assert code_of(answer) == Code.POLICY
    assert node.life(scene.run).index == 1


def test_one_member_at_two_places_has_one(tmp_path):
    _, nodes = roster_scene(tmp_path)
    twin = Node(5, np.ones((3, 2)), nodes[1].policy)
    both = Scene(make_run(keys="roster", number=2), nodes=[*nodes, twin])
    assert [seat.is_taken for seat in both.server.seats] == [True] * 4
    assert both.server.seats[1].node_id == 5  # the first by node id
    assert [(e.node_id, e.reason) for e in both.server.incidents] == [(nodes[1].node_id, TAKEN)]
    late = Scene(make_run(keys="roster", number=3), nodes=nodes)
    reply = twin.ask(late.server.join_requests([5])[5])
    assert isinstance(reply, EnrolReply)
    late.server.accept_join(5, reply)
    assert late.server.incidents[-1].reason == TAKEN
    assert 5 not in late.server.round_requests(1)


def test_two_late_nodes_with_one_key_take_one_place(tmp_path):
    scene, nodes = roster_scene(tmp_path, present=[0, 1, 3])
    assert [seat.is_taken for seat in scene.server.seats] == [True, True, False, True]
    assert scene.server.seats[2].leaf(2) == EMPTY
    twin = Node(5, np.ones((3, 2)), nodes[2].policy)
    for node in (nodes[2], twin):
        scene.server.accept_join(
            node.node_id, node.ask(scene.server.join_requests([node.node_id])[node.node_id])
        )
    assert scene.server.incidents[-1].reason == TAKEN
    scene.nodes.append(nodes[2])
    entry = scene.round()
    assert (entry.m, entry.n_survivors) == (4, 4)
    assert scene.server.seats[2].node_id == nodes[2].node_id


# --------------------------------------------------------------------------- leaders, strangers


def test_a_stranger_with_a_roster_of_its_own_is_turned_away(tmp_path):
    policies = roster_policies(tmp_path, 4)
    stranger = roster_policies(tmp_path, 2, name="other")[0]
    nodes = [Node(1, np.ones((3, 2)), stranger), *nodes_of(policies)]  # it is asked first
    scene = Scene(make_run(keys="roster", min_clients=3), nodes=nodes)
    assert [seat.node_id for seat in scene.server.seats] == [node.node_id for node in nodes[1:]]
    assert [(e.node_id, e.reason) for e in scene.server.incidents] == [(1, STRANGER)]
    scene.nodes = nodes[1:]
    assert scene.round().n_survivors == 4
    join = scene.server.join_requests([1])
    assert join == {}


def test_a_cohort_of_strangers_is_too_small(tmp_path):
    policies = [roster_policies(tmp_path, 3, name=f"roster{i}")[i] for i in range(3)]
    with pytest.raises(TooFewClientsError, match="min_clients=2"):
        Scene(make_run(keys="roster"), nodes=nodes_of(policies))


def test_nobody_who_leads_ends_the_run(tmp_path):
    def refuse_to_lead(grid, messages):
        for message in messages:
            record = message.content[KMEANS]
            if record["kind"] == "enrol":
                record["lead"] = False

    with pytest.raises(RunError, match="group key"):
        run_recorded(
            strategy_of(), parts(), policy=roster_policies(tmp_path, 6), on_push=refuse_to_lead
        )


def forged(scene, nodes, kind):
    """Return a leader and an envelope for member 1, as a server without pinned keys makes them."""
    publics = [seat.public_key for seat in scene.server.seats]
    own = b"s" * 32
    if kind == "the server leads":
        leader, envelopes = keys.make_envelopes(b"e" * 32, publics, scene.doc_hash, b"f" * 32, own)
        return leader, envelopes[publics[1]]
    if kind == "under a member's name":
        leader, envelopes = keys.make_envelopes(b"e" * 32, publics, scene.doc_hash, b"f" * 32, own)
        return leader[:32] + publics[0], envelopes[publics[1]]
    if kind == "relayed":
        leader, envelopes = keys.make_envelopes(b"e" * 32, publics, scene.doc_hash, b"f" * 32)
        return leader, envelopes[publics[1]]
    request = scene.requests[nodes[1].node_id]
    if kind == "another member's":
        return request.leader, scene.requests[nodes[2].node_id].envelope
    if kind == "swapped leader":
        return request.leader[:32] + publics[3], request.envelope
    if kind == "another run's":
        other = Scene(make_run(keys="roster", number=9), nodes=nodes)
        other.open()
        return other.request(1).leader, other.request(1).envelope
    assert kind == "zero point"
    return bytes(32) + request.leader[32:], request.envelope


@pytest.mark.parametrize(
    "kind",
    [
        "the server leads",
        "under a member's name",
        "relayed",
        "another member's",
        "swapped leader",
        "another run's",
        "zero point",
    ],
)
def test_keys_that_no_pinned_leader_made_are_refused(kind, tmp_path):
    scene, nodes = roster_scene(tmp_path)
    scene.open()
    leader, envelope = forged(scene, nodes, kind)
    assert code_of(scene.ask(1, leader=leader, envelope=envelope)) == Code.KEY
    assert code_of(scene.ask(1)) == Code.OK  # and nothing of it stays


def test_a_swapped_public_key_has_no_place(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    seats, own = scene.server.seats, keys.public_key(b"s" * 32)
    leaves = [seat.leaf(i) for i, seat in enumerate(seats)]
    leaves[1] = leaf(1, nodes[1].node_id, seats[1].commitment, own)
    tree = Tree(leaves)
    scene.open()
    answer = scene.ask(1, root=tree.root, path=tree.path(1))
    assert code_of(answer) == Code.RENEW
    assert answer.public_key == seats[1].public_key
    scene.server.refuse(nodes[1].node_id, replace(answer, public_key=own), 1)
    assert scene.server._renewed == {}  # an honest server keeps to the pinned key, too


def test_sybils_find_no_envelope_and_make_no_sum(tmp_path):
    views = []
    policies = roster_policies(tmp_path, 4)
    for number in range(100):
        nodes = nodes_of(policies)
        scene = Scene(make_run(keys="roster", number=number), nodes=nodes[:2])
        scene.open()
        requests = [scene.request(i) for i in range(2)]
        for request in requests:  # a node that is not on the list is given all envelopes
            with pytest.raises(MessageError):
                keys.open_envelope(
                    request.envelope, request.leader, b"s" * 32, scene.doc_hash, pinned=True
                )
        answer = scene.ask(0)
        views.append(answer.words)
        if number:
            continue
        from flower_kmeans.federation.transcript import Entry, question_hash, unpack_words

        for others in ([0, 1], [0, 2], [0, 1, 2, 3]):
            survivors = np.isin(np.arange(4), others)
            request = requests[0]
            words = unpack_words(answer.words)
            entry = Entry(1, 1, 4, request.root, question_hash(), survivors, words)
            later = replace(request, t=2, entries=(entry.pack(),))
            assert code_of(nodes[0].ask(later)) == Code.GARBAGE
    assert byte_p_value(b"".join(views)) > P_VALUE


@dataclass(frozen=True)
class Claim(ClientPolicy):
    """The policy of a node that names another member's line, which is public, and has its own key.

    The client's own code would refuse such files (``not on it`` below); this one believes them.
    """

    line: int = 0

    def read_identity(self):
        roster = Roster.from_file(self.roster_file)
        secret = Path(self.member_key_file).read_bytes()
        return Identity(roster, secret, roster.keys[self.line], self.line)


def run_with_a_sybil(tmp_path, trust, at, claimed=4, with_holder=True):
    """Run with a node at a place in the order of node ids that claims the line of a member."""
    policies = roster_policies(tmp_path, 6)
    files = {"roster_file": policies[0].roster_file, "member_key_file": key_file(tmp_path)}
    sybil = Claim(**{**vars(SIMULATED), **files, "line": claimed})
    chosen = policies if with_holder else [p for i, p in enumerate(policies) if i != claimed]
    chosen = [*chosen[:at], sybil, *chosen[at:]]
    received, strategy = [], strategy_of(trust, n_clients=len(chosen))

    def keep(grid, messages):
        received[:] = [grid]

    try:
        outcome = run_recorded(
            strategy, parts(len(chosen)), policy=chosen, on_push=keep, timeout=30.0
        )
    except TooFewClientsError as error:
        outcome = error
    (grid,) = received
    return strategy, outcome, grid


def answers_of(grid, node):
    """Return the codes of a node's replies after its enrolment; none of its words may count."""
    replies = [item.fields for item in grid.received if item.node_id == node]
    assert not [fields for fields in replies if "words" in fields]
    return {fields["code"] for fields in replies if fields["kind"] != "enrol"}


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("with_holder", [True, False])
def test_a_sybil_with_a_members_line_has_its_seat_and_no_part_in_any_sum(
    with_holder, trust, tmp_path
):
    """The member itself comes later, and is turned away: who holds a seat is not proven there."""
    strategy, outcome, grid = run_with_a_sybil(tmp_path, trust, 3, with_holder=with_holder)
    sybil, holder = sorted(grid.states)[3], sorted(grid.states)[5]
    report = strategy.report
    assert report.answers == [5, 5, 5]
    assert set(outcome.results) == ({0, 1, 2, 4, 6} if with_holder else {0, 1, 2, 4, 5})
    assert outcome.one is not None
    assert answers_of(grid, sybil) == {Code.KEY}
    assert load_life(grid.states[sybil], strategy._run_state.run.document.doc_hash).group_key == b""
    turned_away = [(e.node_id, e.reason) for e in report.incidents if e.reason == TAKEN]
    assert turned_away == ([(holder, TAKEN)] if with_holder else [])
    assert {(e.node_id, e.round) for e in report.dropped} == {
        *((sybil, t) for t in (1, 2, 3, 4)),
        *((node, 0) for node, _ in turned_away),
    }


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_sybil_that_comes_after_the_member_itself_has_no_seat(trust, tmp_path):
    strategy, outcome, grid = run_with_a_sybil(tmp_path, trust, 6)
    assert strategy.report.answers == [6, 6, 6]
    assert set(outcome.results) == set(range(6))
    assert [(e.node_id, e.reason) for e in strategy.report.incidents] == [(max(grid.states), TAKEN)]
    assert answers_of(grid, max(grid.states)) == set()


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_sybil_that_is_asked_to_lead_is_not_followed_and_learns_nothing(trust, tmp_path):
    """Its own key is on nobody else's roster."""
    strategy, outcome, grid = run_with_a_sybil(tmp_path, trust, 0)
    assert strategy.report.answers == [5, 5, 5]
    sybil = sorted(grid.states)[0]
    assert answers_of(grid, sybil) <= {Code.KEY}
    assert load_life(grid.states[sybil], strategy._run_state.run.document.doc_hash).group_key == b""
    assert outcome.one is not None


def test_two_leaders_give_garbage(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    publics = [seat.public_key for seat in scene.server.seats]
    other = nodes[2].policy.read_identity().secret
    leader, envelopes = keys.make_envelopes(b"e" * 32, publics, scene.doc_hash, b"f" * 32, other)
    scene.open()
    for i, node in enumerate(nodes):
        changes = {"leader": leader, "envelope": envelopes[publics[i]]} if i == 1 else {}
        scene.server.accept_round(node.node_id, scene.ask(i, **changes))
    scene.server.close_round()
    scene.open()
    assert code_of(scene.ask(0)) == Code.GARBAGE


def test_a_second_hop_for_relayed_keys_is_refused(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    pubs = tuple(seat.public_key for seat in scene.server.seats)
    assert code_of(nodes[0].ask(Lead(doc_hash=scene.doc_hash, pubs=pubs))) == Code.POLICY


def test_a_leader_keeps_one_secret_per_life_and_never_an_ephemeral_key(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    document = scene.run.document
    enrol = Enrol(doc_hash=document.doc_hash, doc=document.data, lead=True)
    first, second = nodes[0].ask(enrol), nodes[0].ask(enrol)
    assert first.leader[:32] != second.leader[:32]
    assert first.leader[32:] == second.leader[32:] == scene.server.seats[0].public_key
    own = nodes[3].policy.read_identity().secret
    secrets = {
        keys.open_envelope(reply.envelopes[3][32:], reply.leader, own, scene.doc_hash, pinned=True)
        for reply in (first, second)
    }
    assert len(secrets) == 1
    assert [item[:32] for item in first.envelopes] == [s.public_key for s in scene.server.seats]


# --------------------------------------------------------------------------- files and policies


def spoil(policy, how):
    if how == "open key":
        Path(policy.member_key_file).chmod(0o640)
    elif how == "short key":
        Path(policy.member_key_file).write_bytes(b"k" * 16)
    elif how == "open roster":
        Path(policy.roster_file).chmod(0o666)
    elif how == "no roster":
        Path(policy.roster_file).unlink()
    elif how == "not on it":
        Path(policy.member_key_file).write_bytes(b"k" * 32)


@pytest.mark.parametrize("how", ["open key", "short key", "open roster", "no roster", "not on it"])
def test_a_client_without_its_key_reads_no_record_and_says_why_in_its_log(how, tmp_path, caplog):
    policy = roster_policies(tmp_path, 3)[0]
    spoil(policy, how)
    node, document = Node(1, np.ones((2, 2)), policy), make_run(keys="roster").document
    answer = node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=True))
    assert code_of(answer) == Code.KEY
    assert node.loads == 0
    assert "member_key_file" in caplog.text or "roster_file" in caplog.text


def test_other_sources_of_keys_are_refused(tmp_path):
    pinned = roster_policies(tmp_path, 3)[0]
    for keys_of_run, policy in (("relayed", pinned), ("file", pinned), ("roster", SIMULATED)):
        document = make_run(keys=keys_of_run).document
        node = Node(1, np.ones((2, 2)), policy)
        answer = node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))
        assert (code_of(answer), node.loads) == (Code.POLICY, 0)


# --------------------------------------------------------------------------- restarts


def test_a_members_key_is_never_in_its_memory(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    scene.round()
    for node in nodes:
        secret = node.policy.read_identity().secret
        life = load_life(node.state, scene.doc_hash)
        assert life.exchange_secret == b""
        assert all(secret not in value for value in vars(life).values() if type(value) is bytes)


@pytest.mark.parametrize("changed", [False, True])
def test_lost_memory_costs_one_round(changed, tmp_path):
    scene, nodes = roster_scene(tmp_path)
    scene.round()
    nodes[1].restart()
    if changed:
        nodes[1].records = np.full((3, 2), 0.5)
    scene.open()
    assert code_of(scene.answer(1)) == Code.NEED
    repeated = scene.server.repeat_requests([nodes[1].node_id])[nodes[1].node_id]
    refusal = nodes[1].ask(repeated)
    assert code_of(refusal) == Code.RENEW
    scene.server.refuse(nodes[1].node_id, refusal, 2)
    for i in (0, 2, 3):
        scene.answer(i)
    assert scene.server.close_round()
    assert scene.round().n_survivors == 4
    assert [code_of(answer) for answer in scene.finish()] == [Code.OK] * 4


def test_changed_records_renew_where_memory_is_kept(tmp_path):
    scene, nodes = roster_scene(tmp_path)
    scene.round()
    nodes[1].records = np.full((3, 2), 0.5)
    scene.open()
    assert code_of(scene.answer(1)) == Code.RENEW


def test_a_ledger_gives_the_same_bytes_after_a_restart(tmp_path):
    policies = [
        replace(policy, state_dir=str(tmp_path / f"state{i}"))
        for i, policy in enumerate(roster_policies(tmp_path, 4))
    ]
    nodes = nodes_of(policies)
    scene = Scene(make_run(keys="roster"), nodes=nodes)
    scene.round()
    scene.open()
    before = scene.ask(1)
    nodes[1].restart()
    assert scene.ask(1) == before
    assert isinstance(scene.requests[nodes[1].node_id], Round)


def test_a_stranger_that_leads_with_all_pinned_keys_and_more_is_not_followed(tmp_path):
    scene_nodes = nodes_of(roster_policies(tmp_path, 5))
    run = make_run(keys="roster", min_clients=3)
    server = Coordinator(run)
    requests = server.enrol_requests([1, *(node.node_id for node in scene_nodes)])
    assert requests[1].lead  # the lowest node id
    pinned = Roster.from_file(scene_nodes[0].policy.roster_file).keys
    own, *junk = (keys.public_key(bytes([8 + i]) * 32) for i in range(40))
    server.accept_enrol(
        1,
        EnrolReply(
            doc_hash=run.document.doc_hash,
            commitment=bytes(32),
            public_key=own,
            leader=own + own,
            envelopes=tuple(public + bytes(48) for public in (own, *pinned, *junk)),
        ),
    )
    for node in scene_nodes:
        server.accept_enrol(node.node_id, node.ask(requests[node.node_id]))
    server.close_enrolment()
    assert [seat.public_key for seat in server.seats] == list(pinned)
    for node_id, request in server.round_requests(1).items():
        node = next(node for node in scene_nodes if node.node_id == node_id)
        assert isinstance(node.ask(request), RoundReply)
