"""Who has a slot: claims of nodes, nodes that share a key, and nodes that are named.

Attacks 52, 53 and 55 of docs/threat-model.md on the server, by real clients and by
nodes that a test plays.
"""

import tracemalloc

import msgspec
import pytest
from cohorts import PROTECTED, Node, make_nodes, make_run
from harness import without_noise
from serving import LOST, ROUND_TRIPS, Net, T, make_net

from flower_kmeans.errors import MessageError, TooFewClientsError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.cohort import MAX_KEYS, MAX_NODES
from flower_kmeans.protocol.incidents import (
    LATE,
    MALFORMED,
    SECOND_SLOT,
    STRANGER,
    TAKEN,
    TOO_MANY,
    TWICE,
    UNCLAIMED,
)
from flower_kmeans.protocol.messages import Answer, Code, Enrol, Enrolled, Refusal
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg import primitives

each_protected = pytest.mark.parametrize("trust", PROTECTED)
change = msgspec.structs.replace


def another_node(net, owner, node_id, **options):
    """Return another node of a client, with its key and without its ledger."""
    own = net.nodes[owner]
    net.nodes[node_id] = Node(own.policy, own.records, node_id=node_id, **options)
    return net.nodes[node_id]


def enrolled(net, node_id):
    """Return a node's enrolment."""
    return messages.decode_reply(
        net.nodes[node_id].answer(encode(Enrol(doc=net.server.run.data)))
    )


def ever_silent(request, reply):
    return reply if isinstance(reply, Enrolled) else LOST


def answers_nothing(request, reply):
    if isinstance(reply, Enrolled):
        return reply
    return Refusal(code=Code.INTERNAL, doc_hash=request.doc_hash)


# ------------------------------------------------------------------ one key, many nodes


def answers_in_part(request, reply):
    """Return an answer that cannot count, of a node that could give a whole one."""
    if isinstance(reply, Answer):
        return change(reply, words=reply.words[:-8], sealed=reply.sealed[:-1])
    return reply if isinstance(reply, Enrolled | messages.Wrapped) else LOST


@pytest.mark.claim("threat-model", "53")
@pytest.mark.parametrize("lie", [ever_silent, answers_nothing, answers_in_part])
@each_protected
def test_53_a_silent_node_loses_its_slot_to_the_next_node_with_its_key(
    trust, lie, tmp_path
):
    """A relayed claim of a real owner is active first; the owner's own node takes over."""
    net = make_net(tmp_path, trust, n=7, document={"rounds": 5, "max_attempts": 3})
    another_node(net, 10, 1, change=lie)
    with without_noise():
        net.play()
    assert net.answers[0] == 6
    assert net.answers[-2:] == [7] * 2  # after two silent trips, of rounds 1 to 3
    assert net.results.keys() == net.nodes.keys() - {1}
    assert len(set(net.results.values())) == 1
    assert TAKEN in {i.reason for i in net.server.incidents if i.node_id == 10}


@pytest.mark.claim("threat-model", "53")
@each_protected
def test_53_the_takeover_costs_two_trips_where_nobody_can_be_missing(trust, tmp_path):
    """Of five, four are enough for a sum; under masks `min_clients` of 5 waits for the owner."""
    document = {"min_clients": 5, "max_attempts": 3, "rounds": 1}
    net = make_net(tmp_path, trust, n=5, document=document)
    another_node(net, 10, 1, change=ever_silent)
    with without_noise():
        net.play()
    assert net.answers == [5]
    usual = ROUND_TRIPS[trust] - (T - 1) * (1 if trust == "oblivious-server" else 2)
    # Under a blind server the new node asks for the group key, in one trip or two.
    assert len(net.trips) <= usual + 2 + net.trips.count("keys")


def test_a_node_that_answers_keeps_its_slot(tmp_path):
    net = make_net(tmp_path, n=5, document={"rounds": 5})
    another_node(net, 10, 99)
    silent = iter([True, False, True, False])

    def now_and_then(request, reply):
        if isinstance(request, messages.Ask) and next(silent, False):
            return LOST
        return reply

    net.nodes[10].change = now_and_then
    net.play()
    assert 99 not in net.results
    assert net.results.keys() == {3, 10, 17, 24, 31}


def test_a_node_has_one_slot_also_with_the_keys_of_two(tmp_path):
    """Replies are told apart by node, so one node in two slots would answer for both at once."""
    net = make_net(tmp_path, n=5).set_up()
    cohort, run = net.server._cohort, net.server.run
    identity = net.nodes[10].policy.read_identity()
    key = primitives.public_key(token(32))
    made = primitives.claim(identity.seed, run.doc_hash, 1, 17, key)
    values = {"commitment": bytes(32), "static": identity.public, "public_key": key}
    second = Enrolled(doc_hash=run.doc_hash, claim=made, **values)
    assert cohort.take(17, second) == SECOND_SLOT
    assert [len(cohort.claims[slot]) for slot in range(5)] == [1] * 5


@pytest.mark.claim("threat-model", "55")
def test_a_slot_has_the_claims_of_few_nodes_and_of_few_keys(tmp_path):
    net = make_net(tmp_path, n=5).set_up()
    cohort, run = net.server._cohort, net.server.run
    identity = net.nodes[10].policy.read_identity()

    def claim(node_id):
        key = primitives.public_key(token(32))
        made = primitives.claim(identity.seed, run.doc_hash, 1, node_id, key)
        values = {"commitment": bytes(32), "static": identity.public, "public_key": key}
        return Enrolled(doc_hash=run.doc_hash, claim=made, **values)

    others = [cohort.take(1000 + i, claim(1000 + i)) for i in range(6)]
    assert others == [TAKEN] * 6
    assert [len(cohort.claims[slot]) for slot in range(5)] == [1, MAX_NODES, 1, 1, 1]
    # A later claim of a node replaces its own, and each new key counts.
    taken = [cohort.take(10, claim(10)) for _ in range(MAX_KEYS)]
    assert taken == [None] * (MAX_KEYS - MAX_NODES) + [TOO_MANY] * MAX_NODES
    assert len(cohort.claims[1]) == MAX_NODES
    refused = Refusal(code=Code.RENEW, doc_hash=run.doc_hash)
    last = claim(10)
    renewed = change(
        refused,
        commitment=bytes(32),
        static=identity.public,
        public_key=last.public_key,
        claim=last.claim,
    )
    assert not cohort.renew(cohort.clients[10], renewed)


def test_a_restarted_node_may_enrol_again(tmp_path):
    net = make_net(tmp_path, n=5).set_up()
    cohort, before = net.server._cohort, enrolled(net, 10)
    assert cohort.take(10, before) == TWICE
    net.nodes[10].restart()
    after = enrolled(net, 10)
    assert after.public_key != before.public_key
    assert cohort.take(10, after) is None
    assert cohort.frame().slots[1].public == after
    net.round().round().round().finish()
    assert net.answers == [5] * T


@pytest.mark.parametrize(
    "wrong", ["claim", "node_id", "static", "static alone", "key of another"]
)
@each_protected
def test_a_renewal_carries_a_claim_that_is_checked(trust, wrong, tmp_path):
    net = make_net(tmp_path, trust, n=6, document={"rounds": 4}).set_up()
    other = enrolled(net, 17)

    def lie(request, reply):
        if isinstance(reply, Refusal) and reply.code == Code.RENEW:
            if wrong == "claim":
                return change(reply, claim=bytes(64))
            if wrong == "static":
                return change(reply, static=other.static, claim=other.claim)
            if wrong == "static alone":
                return change(reply, static=other.static)
            if wrong == "key of another":
                return change(reply, public_key=other.public_key)
        return reply

    net.nodes[10].change = lie
    net.nodes[10].node_id += wrong == "node_id"
    net.round()
    net.nodes[10].restart()
    net.round().round().round()
    assert net.answers == [6, 5, 5, 5]
    assert net.reasons("renewed") == {}
    assert net.reasons("refused")[10] >= 3


# ------------------------------------------------------------------------- what is kept


@pytest.mark.claim("threat-model", "55")
def test_55_what_strangers_send_is_not_kept(tmp_path):
    """Six nodes that know a public key, with the longest enrolments that can be read."""
    net = make_net(tmp_path, n=5)
    run, static = net.server.run, net.roster.keys[4]
    strangers = range(100, 106)

    def of_stranger():
        values = {"commitment": token(32), "static": static, "software": "x" * 64}
        key = primitives.public_key(token(32))
        return Enrolled(
            doc_hash=run.doc_hash, public_key=key, claim=token(64), **values
        )

    longest = encode(of_stranger())
    assert len(longest) < 1024
    with pytest.raises(MessageError):  # whatever is added
        messages.decode_reply(encode(of_stranger()).replace(b"claim", b"tags!"))

    def trip(kind, requests, has_enough):
        for node_id in sorted(requests, reverse=True):
            if node_id in strangers:
                for _ in range(200):
                    yield node_id, messages.decode_reply(encode(of_stranger()))
            else:
                yield node_id, net.nodes[node_id].send(requests[node_id])

    tracemalloc.start()
    net.server.set_up([*net.nodes, *strangers], trip)
    kept = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/protocol/*")]
    )
    tracemalloc.stop()
    assert sum(trace.size for trace in kept.traces) < 2**20
    cohort = net.server._cohort
    assert {
        slot: len(claims) for slot, claims in cohort.claims.items()
    } == dict.fromkeys(range(5), 1)
    assert len(cohort._owners) == 5
    assert {i.reason for i in net.server.incidents} == {UNCLAIMED}


@pytest.mark.claim("threat-model", "48")
@pytest.mark.parametrize("keys", ["roster", "relayed"])
def test_keys_that_a_committee_cannot_list_are_refused(keys, tmp_path):
    net = make_net(tmp_path, keys=keys, n=5)
    seeds = {i: node.policy.read_identity() for i, node in net.nodes.items()}
    first = {}

    def with_key(key):
        def lie(request, reply):
            if not isinstance(reply, Enrolled):
                return reply
            identity, made = seeds[17], b""
            if identity is not None:
                made = primitives.claim(
                    identity.seed, reply.doc_hash, 2, 17, key(reply)
                )
            return change(reply, public_key=key(reply), claim=made)

        return lie

    def spy(request, reply):
        if isinstance(reply, Enrolled):
            first["key"] = reply.public_key
        return reply

    net.nodes[3].change = spy
    for key in (
        lambda reply: bytes(32),
        lambda reply: reply.public_key[:31] + bytes([reply.public_key[31] | 128]),
        lambda reply: reply.public_key[:31],
        lambda reply: first["key"],
    ):
        net.nodes[17].change = with_key(key)
        server = Server(net.server.run, roster=net.roster)
        server.set_up(net.nodes, Net(server, net.nodes).trip)
        assert server.n_clients == 4
        assert [(i.node_id, i.reason) for i in server.incidents] == [(17, MALFORMED)]


def test_relayed_keys_have_no_claims(tmp_path):
    claims = lambda q, r: change(r, claim=token(64)) if isinstance(r, Enrolled) else r  # noqa: E731
    net = make_net(tmp_path, keys="relayed", n=5, lies={3: claims}).set_up()
    assert net.server.n_clients == 4
    assert [(i.node_id, i.reason) for i in net.server.incidents] == [(3, MALFORMED)]


# -------------------------------------------------------------------------- named nodes


def named_net(directory, trust, keys, n, named, **options):
    """Return a net whose server names some nodes, in this order."""
    nodes, roster = make_nodes(n, directory, keys=keys)
    run = make_run(trust, keys, roster=roster, min_clients=3)
    server = Server(run, roster=roster, nodes=named)
    net = Net(
        server, {7 * i + 3: node for i, node in enumerate(nodes)}, roster, **options
    )
    for node_id, node in net.nodes.items():
        node.node_id = node_id
    return net


@pytest.mark.claim("threat-model", "43")
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@each_protected
def test_nodes_that_are_not_named_are_neither_asked_nor_read(trust, keys, tmp_path):
    net = named_net(tmp_path, trust, keys, 7, [31, 3, 17, 24, 10, 45])
    stranger = enrolled(net, 38)
    with without_noise():
        net.set_up()
        requests = net.server.ask()
        assert sorted(requests) == [3, 10, 17, 24, 31, 45]
        replies = list(net.trip("ask", requests, net.server.has_enough))
        unread = [(38, stranger), (52, object()), (38, Refusal(code=Code.RENEW))]
        net.server.take_answers([*unread, *replies], net.trip)
        net.round().round().finish()
    assert net.answers == [6] * T
    assert net.results.keys() == {3, 10, 17, 24, 31, 45}
    assert not net.server.incidents
    assert not net.server.join([38, 52])
    assert 38 not in {node_id for _, node_id, _, _ in net.log}


@each_protected
def test_under_relayed_keys_the_order_of_names_gives_the_slots(trust, tmp_path):
    order = [31, 3, 17, 24, 10, 45, 38]
    net = named_net(tmp_path, trust, "relayed", 7, order, late=[10])
    with without_noise():
        net.set_up()
        assert net.server.proceedings.n_slots == 7
        frame = net.server._frames.next()
        taken = {slot: client.node_id for slot, client in frame.slots.items()}
        assert taken == {
            slot: node_id for slot, node_id in enumerate(order) if node_id != 10
        }
        assert [bool(key) for key in frame.committee.public_keys] == [True] * 4 + [
            False
        ] + [True] * 2
        for _ in range(T):
            net.round()
        net.finish()
    # The late one has its slot, as with a roster. Where one of six members could stop a
    # vote, it is waited for in round 1.
    assert net.answers[0] == (6 if trust == "oblivious-server" else 7)
    assert net.answers[-1] == 7
    assert len(set(net.results.values())) == 1
    assert len(net.results) == 7


def test_without_names_relayed_keys_take_the_first_that_come(tmp_path):
    net = make_net(tmp_path, keys="relayed", n=5, late=[31]).set_up()
    assert not net.server.join([31])
    assert net.server._cohort.take(31, enrolled(net, 31)) == LATE


@pytest.mark.parametrize("n_present", [64, 65])
def test_of_many_named_nodes_those_that_are_there_are_drawn(n_present, tmp_path):
    named = range(70)
    run = make_run("distributed-noise", "relayed", rounds=1)
    server = Server(run, nodes=named)
    nodes, _ = make_nodes(n_present, tmp_path, keys="relayed")
    present = dict(zip(range(70 - n_present, 70), nodes, strict=True))
    for node_id, node in present.items():
        node.node_id = node_id
    net = Net(server, present).set_up()
    frame = server._frames.next()
    assert frame.n_slots == 70
    assert len(frame.present) == 64
    assert min(frame.committee.slots) >= 70 - n_present
    net.round().finish()
    assert net.answers == [n_present]


def test_too_few_named_nodes_for_a_committee_are_said(tmp_path):
    net = named_net(
        tmp_path, "distributed-noise", "relayed", 7, [3, 10, 17, 24, 31, 38, 45]
    )
    net.nodes = {i: net.nodes[i] for i in (3, 10, 17)}
    with pytest.raises(TooFewClientsError, match="more of the 7 committee members"):
        net.set_up()


def test_a_key_on_no_roster_is_a_strangers(tmp_path):
    net, other = make_net(tmp_path, n=5), make_net(tmp_path, n=5)
    foreign = change(enrolled(net, 3), static=other.roster.keys[0])
    assert net.server._cohort.take(3, foreign) == STRANGER
