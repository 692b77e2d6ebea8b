"""Dishonest clients in whole runs: each costs itself, or a round, or a clear error.

Results are compared bit for bit with those of the records in each sum (docs/protocol.md,
section 10, rows 26, 32 to 34, 43, 48 and 50).
"""

from collections import Counter
from functools import partial

import msgspec
import numpy as np
import pytest
from cohorts import BLIND, PROTECTED, SHARED
from documents import TRUSTS
from harness import exact_statistic, without_noise
from ring import lied
from serving import ROUND_TRIPS, T, make_net

from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import client as clients
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.cohort import LATE, STRANGER, TAKEN, TWICE
from flower_kmeans.protocol.exchange import CRASHED, MALFORMED
from flower_kmeans.protocol.messages import Add, Added, Answer, Ask, Code, Enrolled, Keys, Refusal
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.server import DIFFERS
from flower_kmeans.version import __version__

N = 9  # R = 7 sum-shares open: one false one is corrected
SERVER = "flower_kmeans.protocol.server"
replace = msgspec.structs.replace


def is_right(net, *liars):
    """Require that all honest clients have one result: that of the records in each sum."""
    server, algorithm = net.server, net.server.run.algorithm
    state = algorithm.initial_state(None)
    for t, n_answers in enumerate(net.answers, 1):
        if t in server.proceedings.lost_rounds:
            state = algorithm.without_sum(state)
            continue
        who = set(net.nodes) - {entry.node_id for entry in server.dropped if entry.round == t}
        who -= set(liars) if len(who) > n_answers else set()  # who has no slot is not even dropped
        assert len(who) == n_answers
        query = algorithm.query(state)
        total = sum(exact_statistic(algorithm, query, net.nodes[i].records) for i in who)
        fraction = n_answers / server.proceedings.n_slots
        state = algorithm.update(state, algorithm.unflatten(total, t, fraction))
    assert net.results.keys() >= net.nodes.keys() - set(liars)
    for node_id in net.nodes.keys() - set(liars):
        result = net.nodes[node_id].results[0]
        np.testing.assert_array_equal(result.centroids, algorithm.centroids(state))
        np.testing.assert_array_equal(result.counts, algorithm.counts(state))


def play(directory, trust, lies, keys="roster", n=N, **options):
    """Play a run without noise in which some clients do not send what they should."""
    net = make_net(directory, trust, keys, n, lies=lies, **options)
    with without_noise():
        return net.play()


# ------------------------------------------------------------------------------ what it sends


def on(kind, rounds=range(99), **changes):
    """Return a lie: changed fields in the replies of a kind, each made of the right value."""

    def lie(request, reply):
        if not isinstance(reply, kind) or getattr(request, "t", 0) not in rounds:
            return reply
        return replace(
            reply, **{name: made(getattr(reply, name)) for name, made in changes.items()}
        )

    return lie


def instead(*kinds, make):
    """Return a lie: another reply to the requests of some kinds, made of the request."""
    return lambda request, reply: make(request) if isinstance(request, kinds) else reply


def refusing(*kinds, **fields):
    return instead(*kinds, make=lambda request: Refusal(doc_hash=request.doc_hash, **fields))


def noise(data):
    return token(len(data)) if data else b""


def empty(data):
    return b""


def zeros(data):
    return bytes(len(data))


def each(make):
    return lambda parts: tuple(make(part) if part else part for part in parts)


def renews(request):
    fields = {"commitment": token(32), "public_key": token(32), "doc_hash": request.doc_hash}
    return Refusal(code=Code.RENEW, **fields)


shift = partial(lied, prime=slice(None), by=10**6)  # a proper sum-share of another sum
wrong_tags = on(Enrolled, tags=noise)
empty_shares = on(Answer, sealed=each(empty))
one_empty_share = on(Answer, sealed=lambda parts: (b"", *parts[1:]) if parts else parts)
no_shares = on(Answer, sealed=lambda parts: (), words=empty)
bad_seals = on(Answer, sealed=each(noise))
bad_envelopes = on(Answer | messages.Wrapped, envelopes=each(noise))
other_tag = on(Answer, tag=noise)
false_share = on(Added, share=zeros)
long_share = on(Added, share=lambda share: share + bytes(8))
names_another = refusing(Add, code=Code.KEY, slot=2)
crashes = instead(Keys, Ask, Add, messages.Finish, make=lambda request: CRASHED)

LIES = {
    "wrong tags": wrong_tags,
    "zero key": on(Enrolled, public_key=zeros),
    "small order": on(Enrolled, public_key=lambda key: (1).to_bytes(32, "little")),
    "garbage": refusing(Keys, Ask, Add, messages.Finish, code=Code.GARBAGE),
    "need": refusing(Keys, Ask, Add, messages.Finish, code=Code.NEED),
    "empty shares": empty_shares,
    "one empty share": one_empty_share,
    "no shares": no_shares,
    "bad seals": bad_seals,
    "other tag": other_tag,
    "names another": names_another,
    "bad envelopes": bad_envelopes,
    "no envelopes": on(Answer | messages.Wrapped, envelopes=each(empty)),
    "false share": false_share,
    "flipped share": on(Added, share=lambda share: bytes(b ^ 1 for b in share)),
    "malformed share": on(Added, share=lambda share: b"\xff" * len(share)),
    "long share": long_share,
    "other key id": on(Added, key_id=noise),
    "another kind": instead(
        Ask, Add, make=lambda q: messages.Wrapped(doc_hash=q.doc_hash, envelopes=())
    ),
    "another run": on(Answer | Added | messages.Wrapped, doc_hash=noise),
    "renews always": instead(Ask, Add, make=renews),
    "no message": lambda request, reply: MALFORMED,
    "crashes": crashes,
}


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("liar", [3, 38])  # the first of them is a key distributor
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("lie", LIES)
def test_one_dishonest_client_costs_itself_only(lie, trust, keys, liar, tmp_path):
    net = play(tmp_path, trust, {liar: LIES[lie]}, keys)
    is_right(net, liar)
    assert min(net.answers) >= N - 1
    assert net.server.proceedings.lost_rounds == []
    assert len(net.trips) <= ROUND_TRIPS[trust] + 3


# A well-formed false sum-share is attack 32, which needs two further ones to be corrected.
@pytest.mark.parametrize(
    "lie", [lie for lie in LIES if lie not in ("false share", "flipped share")]
)
@pytest.mark.parametrize("trust", PROTECTED)
def test_one_dishonest_client_of_six_ends_no_run(lie, trust, tmp_path):
    net = play(tmp_path, trust, {3: LIES[lie]}, n=6, document={"min_clients": 4})
    is_right(net, 3)
    assert min(net.answers) >= 5


@pytest.mark.parametrize("trust", SHARED)
def test_limit_one_dishonest_client_of_four_ends_a_run(trust, tmp_path):
    """All four sum-shares are needed."""
    for lie in ("garbage", "malformed share", "wrong tags"):
        with pytest.raises((RunError, TooFewClientsError)):
            play(tmp_path, trust, {3: LIES[lie]}, n=4)


@pytest.mark.parametrize("trust", PROTECTED)
def test_limit_a_tag_that_is_wrong_for_one_peer_leaves_out_this_peer(trust, tmp_path):
    """Attack 48: the server cannot tell which of the two is the liar."""

    def one_wrong_tag(tags):
        return tags[:16] + noise(tags[16:32]) + tags[32:]

    net = play(tmp_path, trust, {3: on(Enrolled, tags=one_wrong_tag)}, n=4)
    assert {entry.node_id for entry in net.server.dropped} == {10}
    assert net.answers == [3, 3, 3]


@pytest.mark.parametrize("trust", PROTECTED)
def test_limit_who_claims_anothers_slot_first_ends_a_run_of_few(trust, tmp_path):
    """Attack 48: the first node with a long-term key has the slot."""
    net = make_net(tmp_path, trust, n=5, document={"min_clients": 4})
    victims_key = Roster.from_file(net.nodes[10].policy.roster_file).keys[1]
    net.nodes[3].change = on(Enrolled, static=lambda key: victims_key)
    with pytest.raises((RunError, TooFewClientsError)), without_noise():
        net.play()
    assert TAKEN in {incident.reason for incident in net.server.incidents}


REQUESTS = [
    (trust, kinds)
    for trust in TRUSTS
    for kinds in ((messages.Enrol,), (Keys, Ask), (messages.Finish,))
]


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("trust", "kinds"), [*REQUESTS, *((trust, (Add,)) for trust in SHARED)])
@pytest.mark.parametrize("code", list(Code))
def test_no_refusal_ends_a_run(trust, code, kinds, tmp_path):
    net = play(
        tmp_path, trust, {3: refusing(*kinds, code=code)}, n=5 if kinds == (messages.Finish,) else N
    )
    is_right(net, 3)
    assert {entry.node_id for entry in net.server.dropped} <= {3}


# ------------------------------------------------------------------------------ who is heard


@pytest.mark.parametrize(("keys", "why"), [("roster", STRANGER), ("relayed", LATE)])
@pytest.mark.parametrize("trust", PROTECTED)
def test_strangers_are_not_heard(trust, keys, why, tmp_path):
    net = make_net(tmp_path, trust, keys, n=5).set_up()
    requests, doc_hash = net.server.ask(), net.server.run.doc_hash
    replies = list(net.trip("ask", requests, net.server.has_enough))
    enrolments = dict(net.replies("enrol"))
    strangers = [
        (99, Refusal(code=Code.GARBAGE, doc_hash=doc_hash)),
        (98, replies[0][1]),
        (97, Refusal(code=Code.RENEW, doc_hash=doc_hash, commitment=token(32))),
        (96, replace(enrolments[3], static=token(32), public_key=token(32))),
    ]
    net.server.take_answers([*strangers, *replies, replies[0], (10, enrolments[10])], net.trip)
    assert net.answers == [5]
    assert net.server.n_clients == 5
    assert not net.server.join([96, 97, 99])
    reasons = {incident.node_id: incident.reason for incident in net.server.incidents}
    assert (reasons[96], reasons[3], reasons[10]) == (why, TWICE, TWICE)


@pytest.mark.parametrize("trust", PROTECTED)
def test_a_slot_goes_to_the_owner_of_its_secret_key(trust, tmp_path):
    """A node that enrols with another's lasting public key cannot make its tags."""
    net = make_net(tmp_path, trust)
    static = net.roster.keys[sorted(net.nodes).index(31)]
    net.nodes[3].change = on(Enrolled | Refusal, static=lambda own: static)
    net.play()
    assert net.answers[0] == 7  # neither the impostor nor the owner
    assert net.answers[-1] == 8
    assert {31, 59} <= net.results.keys()
    assert 3 not in net.results
    assert len(set(net.results.values())) == 1


@pytest.mark.parametrize("keys", ["roster", "relayed"])
def test_a_key_of_another_client_is_not_accepted(keys, tmp_path):
    seen = []
    lies = {
        3: on(Enrolled, public_key=lambda key: seen.append(key) or key),
        38: on(Enrolled, public_key=lambda key: seen[0]),
    }
    net = play(tmp_path, "clients-only", lies, keys, n=6)
    is_right(net, 38)
    assert net.answers == [5] * T


# ------------------------------------------------------------------------------ whose answers count


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_that_differ_are_left_out_with_their_versions(trust, tmp_path):
    net = play(tmp_path, trust, {17: other_tag, 24: other_tag}, n=7)
    is_right(net, 17, 24)
    assert net.answers == [5] * T
    assert net.reasons("differs") == {17: T, 24: T}
    versions = {i.software for i in net.server.incidents if i.kind == "differs"}
    assert versions == {f"flower-kmeans {__version__}"}
    assert {d.reason for d in net.server.dropped} == {DIFFERS}


def test_of_two_groups_the_larger_one_is_added_up(tmp_path):
    lie = on(Answer, tag=lambda tag: b"t" * 32)
    lies = dict.fromkeys((3, 10, 17, 24), lie)
    net = play(tmp_path, "oblivious-server", lies, document={"rounds": 1})
    assert net.answers == [5]
    assert sum(net.reasons("differs").values()) == 4


@pytest.mark.parametrize("trust", ["trusted-server", "plain", "oblivious-server"])
@pytest.mark.parametrize("words", [b"", b"w" * 8, b"w" * 24, bytes(8 * 7)], ids=len)
def test_malformed_words_are_not_added(trust, words, tmp_path):
    net = make_net(tmp_path, trust, n=5, lies={31: on(Answer, words=lambda right: words)})
    if not (net.server.run.trust.is_protected and len(words) == 8 * 7):  # then nobody can know
        net.play()
        assert net.answers == [4] * T
        assert net.reasons("failed") == {31: T}


def test_random_words_end_a_run_of_an_oblivious_server(tmp_path):
    """Not defended: clients refuse the sum, and a second one would cost privacy."""
    with pytest.raises(TooFewClientsError, match="The announced sum does not open"):
        play(tmp_path, "oblivious-server", {31: on(Answer, [2], words=noise)}, n=5)


# ------------------------------------------------------------------------------ shares


@pytest.mark.parametrize(
    ("lie", "n", "answers", "skipped"),
    [
        (wrong_tags, N, N, 17),
        (empty_shares, N, N - 1, 17),
        (one_empty_share, N, N, 3),  # of one against one, the position
        (one_empty_share, 4, 3, 17),  # R 4: no position can be missed
    ],
)
def test_clients_that_others_cannot_share_with_are_left_out(lie, n, answers, skipped, tmp_path):
    net = play(tmp_path, "distributed-noise", {17: lie}, n=n)
    is_right(net, 17)
    assert net.answers == [answers] * T
    assert net.reasons("skipped") == {skipped: T}
    adds = {node_id for node_id, _ in net.replies("add")}
    assert (skipped in adds) == (answers < n)
    assert len(net.trips) == ROUND_TRIPS["distributed-noise"]


def seals_badly_to(positions):
    def make(parts):
        return (*map(noise, parts[:positions]), *parts[positions:])

    return on(Answer, [1], sealed=make)


@pytest.mark.parametrize("trust", SHARED)
def test_a_dealer_whose_shares_do_not_open_is_named_once(trust, tmp_path):
    net = play(tmp_path, trust, {17: bad_seals})
    assert net.answers == [8] * T
    assert net.server.proceedings.repeats == 1
    assert net.reasons("named") == {17: 1}
    assert len(net.trips) == ROUND_TRIPS[trust] + 1


@pytest.mark.parametrize("trust", SHARED)
def test_bad_seals_to_some_members_end_one_round(trust, tmp_path):
    lies = {59: seals_badly_to(3)}  # tau 6, k 1, R 7: three that do not vote are too many
    net = make_net(tmp_path, trust, lies=lies)
    if trust in BLIND:
        with pytest.raises(RunError, match=r"Expected 7 sum-shares that open the sum of round 1"):
            net.play()
    else:
        net.play()
        assert net.answers == [0, 8, 8]
        assert net.server.proceedings.lost_rounds == [1]
        assert len(net.results) == N
        assert net.server.n_opened == T
    assert net.reasons("named") == {59: 1}


@pytest.mark.parametrize("trust", SHARED)
def test_few_members_that_name_a_dealer_cost_no_vote(trust, tmp_path):
    asked = Counter()

    def lossy(node_id, kind, t, attempt):
        asked[node_id] += kind == "add"
        return "reply" * (kind == "add" and node_id == 73 and asked[73] == 1)

    lies = {80: seals_badly_to(2)}  # f 1, R 10: two of 12 may be missing
    net = play(tmp_path, trust, lies, n=12, lossy=lossy)
    is_right(net, 80)
    assert net.answers == [12, 11, 11]
    assert net.server.proceedings.repeats == 1
    assert net.reasons("named") == {80: 1}


@pytest.mark.parametrize("trust", SHARED)
def test_one_member_that_names_a_dealer_costs_it_nothing(trust, tmp_path):
    net = play(tmp_path, trust, {59: names_another})
    assert net.answers == [N] * T
    assert net.reasons("named") == {}


def test_sum_shares_of_another_length_are_not_passed_on(tmp_path):
    net = play(tmp_path, "clients-only", {59: long_share})
    entries = [e for _, _, q, _ in net.log for e in getattr(q, "entries", ())]
    assert {len(entry.shares) for entry in entries} == {N - 1}
    assert net.reasons("failed") == {59: T}


def test_false_sum_shares_are_corrected_and_named_up_to_the_limit(tmp_path):
    net = make_net(tmp_path, n=64, document={"rounds": 2})  # tau 43, k 10, R 53: up to 5 of 64
    nodes = sorted(net.nodes)
    for number, node_id in enumerate(nodes[:8]):
        net.nodes[node_id].change = on(Added, [1] if number >= 5 else [1, 2], share=zeros)
    net.play()
    assert len(set(net.results.values())) == 1
    assert len(net.results) == 64
    assert net.answers == [0, 64]  # eight are too many, and no name is made up
    assert net.reasons("liar") == dict.fromkeys(nodes[:5], 1)
    assert {i.round for i in net.server.incidents} == {2}


def test_without_a_spare_sum_share_the_checksum_word_finds_a_false_one(tmp_path):
    net = play(tmp_path, "distributed-noise", {17: on(Added, [2], share=zeros)}, n=4)
    assert net.answers == [4, 0, 4]
    assert net.reasons("liar") == {}


def test_more_sum_shares_are_asked_for_when_a_sum_does_not_open(tmp_path):
    # R 10: of 11 none can be false, of 12 one.
    net = make_net(tmp_path, n=12, lies={3: false_share}).set_up()
    net.hasty = True
    net.round()
    assert net.answers == [3]
    assert net.trips == ["enrol", "ask", "add", "add"]
    assert [len(net.replies("add")), net.server.proceedings.repeats] == [12, 1]
    assert net.reasons("liar") == {3: 1}


last_shift = on(Added, [T], share=shift)


def away(request, reply):
    is_last = isinstance(request, Add) and request.t == T
    return Refusal(code=Code.CONFLICT, doc_hash=request.doc_hash) if is_last else reply


def test_32_limit_a_false_share_of_just_enough_shifts_the_sum(tmp_path):
    """Not defended: with R sum-shares there is nothing to compare with."""
    net = play(tmp_path, "distributed-noise", {3: away, 10: away, 38: last_shift})
    assert net.server.proceedings.lost_rounds == []
    assert not net.reasons("liar")
    with pytest.raises(AssertionError, match="not equal"):
        is_right(net, 3, 10, 38)


def test_32_limit_one_more_share_shows_that_one_is_false_but_not_which(tmp_path):
    net = play(tmp_path, "distributed-noise", {3: away, 38: last_shift})
    is_right(net, 3, 38)
    assert net.server.proceedings.lost_rounds == [T]
    assert not net.reasons("liar")


def test_34_limit_a_dealer_with_another_checksum_word_costs_the_round(tmp_path, monkeypatch):
    """Not defended, but seen: the sum does not count the clients, and nobody is named."""
    vector = clients._Conversation._vector

    def spoilt(self, query, context):
        result = vector(self, query, context)
        if self._session.slot == 5 and query.round == 2:
            result[-1] = 3
        return result

    monkeypatch.setattr(clients._Conversation, "_vector", spoilt)
    net = play(tmp_path, "distributed-noise", {}, "relayed")
    is_right(net)
    assert net.server.proceedings.lost_rounds == [2]
    assert net.server.incidents == []
    with pytest.raises(RunError, match=Code.GARBAGE.sentence):
        play(tmp_path, "clients-only", {}, "relayed")


# ------------------------------------------------------------------------------ group keys


@pytest.mark.parametrize("trust", BLIND)
@pytest.mark.parametrize("n_other", [2, 5, 7])
def test_a_distributor_of_two_group_keys_ends_no_run(trust, n_other, tmp_path):
    """Where those with one of the keys are enough (`min_clients` of 3)."""
    net = with_two_group_keys(tmp_path, trust, n_other)
    net.play()
    assert len(net.results) >= 8
    assert len(set(net.results.values())) == 1
    assert net.answers[-1] >= 8
    assert len(net.trips) <= ROUND_TRIPS[trust] + 2


@pytest.mark.parametrize("n_other", [3, 4, 5, 6])
def test_limit_two_group_keys_end_a_run_where_those_with_one_are_too_few(n_other, tmp_path):
    """Attack 48 under masks."""
    net = with_two_group_keys(tmp_path, "oblivious-server", n_other, document={"min_clients": 7})
    with pytest.raises(TooFewClientsError):
        net.play()


def with_two_group_keys(directory, trust, n_other, **options):
    """Return a server and clients, of which a distributor gives the first ones another key."""
    net, secret = make_net(directory, trust, **options), token(32)
    node = net.nodes[3]

    def change(request, reply):
        if isinstance(reply, Answer | messages.Wrapped) and reply.envelopes:
            session, identity = node.session(request.doc_hash), node.policy.read_identity()
            other = Pairs(request.doc_hash, session, identity).wrap(secret, request.peers)
            return replace(reply, envelopes=(*other[:n_other], *reply.envelopes[n_other:]))
        return reply

    node.change = change
    return net


def test_the_next_distributors_envelopes_follow_those_that_do_not_open(tmp_path):
    lies = dict.fromkeys((3, 10), bad_envelopes)
    net = play(tmp_path, "clients-only", lies)
    adds = [request for kind, _, request, _ in net.log if kind == "add"]
    assert [adds[N * i].wrap_for.distributor.slot for i in range(3)] == [0, 1, 2]
    assert net.trips[:6] == ["enrol", "ask", "add", "add", "add", "ask"]
    is_right(net)
    assert net.answers == [N] * T
    net = play(tmp_path, "oblivious-server", lies, document={"max_attempts": 3})
    assert net.trips[:6] == ["enrol", "keys", "ask", "ask", "ask", "ask"]
    assert net.server.proceedings.attempts == 3 + T - 1
    assert len(net.results) == N


# ------------------------------------------------------------------------------ without the rules


def believe(points, values, degree):
    return np.ones(len(points), dtype=np.bool_)


@pytest.mark.parametrize(
    ("lie", "target", "stand_in"),
    [
        (on(Added, share=shift), "flower_kmeans.secagg.shares._true_shares", believe),
        (wrong_tags, f"{SERVER}.Server._leave_out", lambda self, attempt: None),
        (no_shares, f"{SERVER}.Server._leave_out", lambda self, attempt: None),
        (bad_seals, f"{SERVER}.Server._leave_out_named", lambda self, attempt: set()),
        (crashes, f"{SERVER}.N_REPEATS", -1),
    ],
    ids=["reed-solomon", "empty shares", "no shares", "named dealers", "repeats"],
)
def test_without_a_rule_of_the_server_one_client_is_enough(
    lie, target, stand_in, tmp_path, monkeypatch
):
    """Each rule is needed: without it the run of all others ends, or its sum is wrong."""
    is_right(play(tmp_path, "distributed-noise", {3: lie}), 3)
    monkeypatch.setattr(target, stand_in)
    with pytest.raises((AssertionError, RunError, KeyError)):
        is_right(play(tmp_path, "distributed-noise", {3: lie}), 3)
