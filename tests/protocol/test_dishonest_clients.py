"""Dishonest clients in whole runs: each costs itself, or a round, or a clear error.

Results are compared bit for bit with those of the records in each sum
(docs/protocol.md, section 10, rows 26, 32 to 34, 43, 48 and 50).
"""

import tracemalloc
from collections import Counter
from functools import partial

import msgspec
import numpy as np
import pytest
from cohorts import BLIND, PROTECTED, SHARED, Node
from documents import TRUSTS
from harness import exact_statistic, without_noise
from ring import lied
from serving import LOST, ROUND_TRIPS, T, make_net

from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.privacy.ledger import Ledger, spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import ask, messages
from flower_kmeans.protocol.exchange import CRASHED, MALFORMED
from flower_kmeans.protocol.incidents import DIFFERS, LATE, STRANGER, TWICE, UNCLAIMED
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrolled,
    Keys,
    Refusal,
)
from flower_kmeans.protocol.session import Pairs
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg.primitives import claim, public_key
from flower_kmeans.version import stated_software

N = 9  # R = 7 sum-shares open: one false one is corrected
VOTES = "flower_kmeans.protocol.phases.votes"
replace = msgspec.structs.replace


def is_right(net, *liars):
    """Require that all honest clients have one result: that of the records in each sum."""
    server, algorithm = net.server, net.server.run.algorithm
    state = algorithm.initial_state(None)
    for t, n_answers in enumerate(net.answers, 1):
        if t in server.proceedings.lost_rounds:
            state = state.without_sum()
            continue
        who = set(net.nodes) - {
            entry.node_id for entry in server.dropped if entry.round == t
        }
        # who has no slot is not even dropped
        who -= set(liars) if len(who) > n_answers else set()
        assert len(who) == n_answers
        query = algorithm.query(state)
        total = sum(
            exact_statistic(algorithm, query, net.nodes[i].records) for i in who
        )
        fraction = n_answers / server.proceedings.n_slots
        state = algorithm.update(state, algorithm.layout(t).unflatten(total, fraction))
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


# ------------------------------------------------------------------------ what it sends


def on(kind, rounds=range(99), **changes):
    """Return a lie: changed fields in the replies of a kind, each made of the right value."""

    def lie(request, reply):
        if not isinstance(reply, kind) or getattr(request, "t", 0) not in rounds:
            return reply
        return replace(
            reply,
            **{name: made(getattr(reply, name)) for name, made in changes.items()},
        )

    return lie


def instead(*kinds, make):
    """Return a lie: another reply to the requests of some kinds, made of the request."""
    return lambda request, reply: make(request) if isinstance(request, kinds) else reply


def refusing(*kinds, **fields):
    return instead(
        *kinds, make=lambda request: Refusal(doc_hash=request.doc_hash, **fields)
    )


def noise(data):
    return token(len(data)) if data else b""


def empty(data):
    return b""


def zeros(data):
    return bytes(len(data))


def renews(request):
    fields = {
        "commitment": token(32),
        "public_key": token(32),
        "doc_hash": request.doc_hash,
    }
    return Refusal(code=Code.RENEW, **fields)


shift = partial(lied, prime=slice(None), by=10**6)  # a proper sum-share of another sum
wrong_claim = on(Enrolled, claim=noise)
empty_shares = on(Answer, sealed=empty)
one_empty_share = on(Answer, sealed=lambda data: data[len(data) // N :])
one_share_more = on(Answer, sealed=lambda data: data + data[: len(data) // N])
words_too = on(Answer, words=lambda words: words or bytes(8))
no_shares = on(Answer, sealed=empty, words=empty)
bad_seals = on(Answer, sealed=noise)
bad_envelopes = on(Answer | messages.Wrapped, envelopes=noise)
other_tag = on(Answer, tag=noise)
false_share = on(Added, share=zeros)
long_share = on(Added, share=lambda share: share + bytes(8))
names_another = refusing(Add, code=Code.KEY, slot=2)
crashes = instead(Keys, Ask, Add, messages.Finish, make=lambda request: CRASHED)

LIES = {
    "wrong claim": wrong_claim,
    "zero key": on(Enrolled, public_key=zeros),
    "small order": on(Enrolled, public_key=lambda key: (1).to_bytes(32, "little")),
    "garbage": refusing(Keys, Ask, Add, messages.Finish, code=Code.GARBAGE),
    "second spelling": on(
        Enrolled, public_key=lambda key: key[:31] + bytes([key[31] | 128])
    ),
    "need": refusing(Keys, Ask, Add, messages.Finish, code=Code.NEED),
    "empty shares": empty_shares,
    "one empty share": one_empty_share,
    "no shares": no_shares,
    "bad seals": bad_seals,
    "other tag": other_tag,
    "names another": names_another,
    "bad envelopes": bad_envelopes,
    "no envelopes": on(Answer | messages.Wrapped, envelopes=empty),
    "false share": false_share,
    "flipped share": on(Added, share=lambda share: bytes(b ^ 1 for b in share)),
    "malformed share": on(Added, share=lambda share: b"\xff" * len(share)),
    "long share": long_share,
    "other key id": on(Added, key_id=noise),
    "another kind": instead(
        Ask,
        Add,
        make=lambda q: messages.Wrapped(
            doc_hash=q.doc_hash, key_id=bytes(16), envelopes=b""
        ),
    ),
    "another run": on(Answer | Added | messages.Wrapped, doc_hash=noise),
    "renews always": instead(Ask, Add, make=renews),
    "no message": lambda request, reply: MALFORMED,
    "crashes": crashes,
}


@pytest.mark.claim("threat-model", "48")
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


def renews_rightly(net, node_id):
    """Return a lie: in every trip a new session of its own, with a right claim."""
    identity, slot = (
        net.nodes[node_id].policy.read_identity(),
        sorted(net.nodes).index(node_id),
    )

    def make(request):
        key = public_key(token(32))
        made = claim(identity.seed, request.doc_hash, slot, node_id, key)
        values = {
            "commitment": bytes(32),
            "static": identity.public,
            "doc_hash": request.doc_hash,
        }
        return Refusal(code=Code.RENEW, public_key=key, claim=made, **values)

    return instead(Keys, messages.Hold, Ask, Add, make=make)


def two_keys(net, node_id):
    """Return a lie: a distributor's other half of the peers gets another group key."""
    return with_two_keys(net, node_id, len(net.nodes) // 2)


EVERY_REQUEST = (Keys, messages.Hold, Ask, Add, messages.Finish)
# A well-formed false sum-share is attack 32, which needs two further ones to be
# corrected.
LIES_48 = {
    **{
        name: lie
        for name, lie in LIES.items()
        if name not in ("false share", "flipped share")
    },
    "complains always": refusing(*EVERY_REQUEST, code=Code.KEY),
    "complains to add": refusing(Add, code=Code.KEY),
    "complains to ask": refusing(Ask, code=Code.KEY),
    "one share more": one_share_more,
    "words too": words_too,
    "junk as a distributor": bad_envelopes,
    "other key id as a distributor": on(Answer | messages.Wrapped, key_id=noise),
    "lies to hold": on(messages.Held, key_id=noise),
    "silent": lambda request, reply: reply if isinstance(reply, Enrolled) else LOST,
    "silent to add": instead(Add, make=lambda request: LOST),
    "conflict": refusing(Ask, Add, code=Code.CONFLICT),
}
MADE_48 = {"renews rightly": renews_rightly, "two keys": two_keys}


# With shares and n = 4, R = m: no position may be missing, and such a run is not fit.
FIT = [("oblivious-server", 4), *((trust, n) for trust in PROTECTED for n in (5, 6, 7))]


@pytest.mark.claim("threat-model", "48")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("liar", [3, 17])
@pytest.mark.parametrize("lie", [*LIES_48, *MADE_48])
@pytest.mark.parametrize(("trust", "n"), FIT)
def test_48_one_liar_of_few_costs_itself_only(trust, lie, liar, n, tmp_path):
    """All honest clients are in every sum, and are charged once for each round."""
    net = make_net(tmp_path, trust, n=n, ledger=True, document={"min_clients": n - 1})
    made = MADE_48.get(lie)
    net.nodes[liar].change = LIES_48[lie] if made is None else made(net, liar)
    with without_noise():
        net.play()
    is_right(net, liar)
    assert min(net.answers) >= n - 1
    assert {entry.node_id for entry in net.server.dropped} <= {liar}
    # a renewal causes one more in each round
    assert net.server.proceedings.attempts <= 2 * T
    run = net.server.run
    whole = run.price.whole[run.price.unit].epsilon(1e-6)
    for node_id in net.nodes.keys() - {liar}:
        with Ledger(net.nodes[node_id].policy.state_dir) as ledger:
            assert ledger.epsilon(1e-6) == pytest.approx(whole, rel=1e-9)


@pytest.mark.claim("threat-model", "48")
@pytest.mark.parametrize("trust", SHARED)
def test_limit_one_dishonest_client_of_four_ends_a_run(trust, tmp_path):
    """All four sum-shares are needed."""
    for lie in ("garbage", "malformed share", "wrong claim"):
        with pytest.raises((RunError, TooFewClientsError)):
            play(tmp_path, trust, {3: LIES[lie]}, n=4)


@pytest.mark.claim("threat-model", "48")
@pytest.mark.parametrize("n", [5, 6, 7])
@pytest.mark.parametrize("trust", PROTECTED)
def test_a_wrong_claim_leaves_out_who_makes_it_and_nobody_else(trust, n, tmp_path):
    """Attack 48: a signature is right or wrong for everybody, so the server can tell who lies."""
    net = play(tmp_path, trust, {3: wrong_claim}, n=n)
    is_right(net, 3)
    assert net.answers == [n - 1] * T
    assert {entry.node_id for entry in net.server.dropped} == {3}
    assert net.reasons("failed") == {3: 1}
    assert len(net.trips) == ROUND_TRIPS[trust]


# -------------------------------------------------------------------------- other slots


def claims_of(net, victim):
    """Return lies of a node about the slot of another one, whose public key everybody knows."""
    own = net.nodes[victim].policy.read_identity()

    def copy(request, reply):
        if isinstance(reply, Enrolled):
            return messages.decode_reply(net.nodes[victim].answer(encode(request)))
        return Refusal(code=Code.INTERNAL, doc_hash=request.doc_hash)

    return {
        "its own claim": on(Enrolled, static=lambda key: own.public),
        "any claim": on(Enrolled, static=lambda key: own.public, claim=noise),
        "a copied claim": copy,
    }


@pytest.mark.claim("threat-model", "52")
@pytest.mark.parametrize("kind", ["its own claim", "any claim", "a copied claim"])
@pytest.mark.parametrize(
    ("trust", "n"),
    [("oblivious-server", 4), *((trust, n) for trust in PROTECTED for n in (5, 7))],
)
def test_52_nobody_takes_the_slot_of_another_even_if_it_comes_first(
    trust, n, kind, tmp_path
):
    """One client of the roster, which claims another's slot in place of its own."""
    net = make_net(tmp_path, trust, n=n, ledger=True)
    net.nodes[3].change = claims_of(net, 10)[kind]
    with without_noise():
        net.play()
    is_right(net, 3)
    assert net.answers == [n - 1] * T
    assert {i.reason for i in net.server.incidents} == {UNCLAIMED}
    assert len(net.trips) == ROUND_TRIPS[trust]
    spent = {
        spent_epsilon(node.policy.state_dir, 1e-6)
        for i, node in net.nodes.items()
        if i != 3
    }
    assert len(spent) == 1  # charged once for each round, like a run without the liar


@pytest.mark.claim("threat-model", "52")
@pytest.mark.parametrize("kind", ["any claim", "a copied claim"])
@pytest.mark.parametrize("trust", PROTECTED)
def test_52_six_strangers_that_come_first_take_nothing_and_leave_nothing(
    trust, kind, tmp_path
):
    """Nodes of the SuperLink that are no clients, each in the slot of another client of seven."""
    net = make_net(tmp_path, trust, n=7)
    honest = {node_id + 100: node for node_id, node in net.nodes.items()}
    for node_id, node in honest.items():
        node.node_id = node_id
    net.nodes = dict(honest)
    for stranger, victim in zip(range(6), honest, strict=False):
        own = honest[victim]
        lie = claims_of(net, victim)[kind]
        net.nodes[stranger] = Node(
            own.policy, own.records, change=lie, node_id=stranger
        )
    tracemalloc.start()
    before = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/protocol/*")]
    )
    with without_noise():
        net.set_up()
    after = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/protocol/*")]
    )
    tracemalloc.stop()
    assert sum(stat.size_diff for stat in after.compare_to(before, "filename")) < 2**20
    assert net.server.n_clients == 7
    with without_noise():
        for _ in range(T):
            net.round()
        net.finish()
    assert net.answers == [7] * T
    assert net.results.keys() == honest.keys()
    assert [i.reason for i in net.server.incidents] == [UNCLAIMED] * 6
    assert {len(claims) for claims in net.server._cohort.claims.values()} == {1}


REQUESTS = [
    (trust, kinds)
    for trust in TRUSTS
    for kinds in ((messages.Enrol,), (Keys, Ask), (messages.Finish,))
]


@pytest.mark.claim("threat-model", "48")
@pytest.mark.claim("protocol", "named-clients-if-at")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    ("trust", "kinds"), [*REQUESTS, *((trust, (Add,)) for trust in SHARED)]
)
@pytest.mark.parametrize("code", list(Code))
def test_no_refusal_ends_a_run(trust, code, kinds, tmp_path):
    net = play(
        tmp_path,
        trust,
        {3: refusing(*kinds, code=code)},
        n=5 if kinds == (messages.Finish,) else N,
    )
    is_right(net, 3)
    assert {entry.node_id for entry in net.server.dropped} <= {3}


# ------------------------------------------------------------------------- who is heard


@pytest.mark.claim("threat-model", "43")
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
    net.server.take_answers(
        [*strangers, *replies, replies[0], (10, enrolments[10])], net.trip
    )
    assert net.answers == [5]
    assert net.server.n_clients == 5
    assert not net.server.join([96, 97, 99])
    reasons = {incident.node_id: incident.reason for incident in net.server.incidents}
    assert (reasons[96], reasons[3], reasons[10]) == (why, TWICE, TWICE)


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


# ------------------------------------------------------------------ whose answers count


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_that_differ_are_left_out_with_their_versions(trust, tmp_path):
    net = play(tmp_path, trust, {17: other_tag, 24: other_tag}, n=7)
    is_right(net, 17, 24)
    assert net.answers == [5] * T
    assert net.reasons("differs") == {17: T, 24: T}
    versions = {i.software for i in net.server.incidents if i.kind == "differs"}
    assert versions == {stated_software()}
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
    net = make_net(
        tmp_path, trust, n=5, lies={31: on(Answer, words=lambda right: words)}
    )
    # then nobody can know
    if not (net.server.run.trust.is_protected and len(words) == 8 * 7):
        net.play()
        assert net.answers == [4] * T
        assert net.reasons("failed") == {31: T}


@pytest.mark.claim("threat-model", "50")
def test_random_words_end_a_run_of_an_oblivious_server(tmp_path):
    """Not defended: clients refuse the sum, and a second one would cost privacy."""
    with pytest.raises(
        TooFewClientsError, match="The announced sum cannot be unmasked"
    ):
        play(tmp_path, "oblivious-server", {31: on(Answer, [2], words=noise)}, n=5)


# ------------------------------------------------------------------------------ shares


@pytest.mark.claim("threat-model", "48")
@pytest.mark.claim("protocol", "named-clients-if-at")
@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize(
    "lie", [empty_shares, one_empty_share, one_share_more, words_too]
)
@pytest.mark.parametrize("n", [4, N])
def test_an_answer_that_is_not_complete_leaves_out_its_dealer_and_nobody_else(
    lie, n, trust, tmp_path
):
    net = play(tmp_path, trust, {17: lie}, n=n)
    is_right(net, 17)
    assert net.answers == [n - 1] * T
    assert net.reasons("failed") == {17: T}
    assert {node_id for node_id, _ in net.replies("add")} == set(net.nodes)
    assert len(net.trips) == ROUND_TRIPS[trust]


def seals_badly_to(positions, n=N):
    def make(data):
        length = positions * len(data) // n
        return noise(data[:length]) + data[length:]

    return on(Answer, [1], sealed=make)


@pytest.mark.claim("threat-model", "33")
@pytest.mark.claim("protocol", "named-clients-if-at")
@pytest.mark.parametrize("trust", SHARED)
def test_a_dealer_whose_shares_do_not_open_is_named_once(trust, tmp_path):
    net = play(tmp_path, trust, {17: bad_seals})
    assert net.answers == [8] * T
    assert net.server.proceedings.repeats == 1
    assert net.reasons("named") == {17: 1}
    assert len(net.trips) == ROUND_TRIPS[trust] + 1


@pytest.mark.claim("threat-model", "33")
@pytest.mark.parametrize("trust", SHARED)
def test_bad_seals_to_some_members_end_one_round(trust, tmp_path):
    # tau 6, k 1, R 7: three that do not vote are too many
    lies = {59: seals_badly_to(3)}
    net = make_net(tmp_path, trust, lies=lies)
    if trust in BLIND:
        with pytest.raises(
            RunError, match=r"Expected 7 sum-shares for the sum of round 1"
        ):
            net.play()
    else:
        net.play()
        assert net.answers == [0, 8, 8]
        assert net.server.proceedings.lost_rounds == [1]
        assert len(net.results) == N
        assert net.server.last_sum == T
    assert net.reasons("named") == {59: 1}


@pytest.mark.parametrize("trust", SHARED)
def test_few_members_that_name_a_dealer_cost_no_vote(trust, tmp_path):
    asked = Counter()

    def lossy(node_id, kind, t, attempt):
        asked[node_id] += kind == "add"
        return "reply" * (kind == "add" and node_id == 73 and asked[73] == 1)

    lies = {80: seals_badly_to(2, n=12)}  # f 1, R 10: two of 12 may be missing
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
    assert {len(messages.read_sum_shares(entry)) for entry in entries} == {N - 1}
    assert net.reasons("failed") == {59: T}


@pytest.mark.claim("threat-model", "32")
def test_false_sum_shares_are_corrected_and_named_up_to_the_limit(tmp_path):
    # tau 43, k 10, R 53: up to 5 of 64
    net = make_net(tmp_path, n=64, document={"rounds": 2})
    nodes = sorted(net.nodes)
    for number, node_id in enumerate(nodes[:8]):
        net.nodes[node_id].change = on(
            Added, [1] if number >= 5 else [1, 2], share=zeros
        )
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


@pytest.mark.claim("threat-model", "34")
def test_34_limit_a_dealer_with_another_checksum_word_costs_the_round(
    tmp_path, monkeypatch
):
    """Not defended, but seen: the sum does not count the clients, and nobody is named."""
    vector = ask._vector

    def spoilt(conversation, query, context):
        result = vector(conversation, query, context)
        if conversation.session.slot == 5 and query.round == 2:
            result[-1] = 3
        return result

    monkeypatch.setattr(ask, "_vector", spoilt)
    net = play(tmp_path, "distributed-noise", {}, "relayed")
    is_right(net)
    assert net.server.proceedings.lost_rounds == [2]
    assert net.server.incidents == []
    with pytest.raises(RunError, match=Code.GARBAGE.sentence):
        play(tmp_path, "clients-only", {}, "relayed")


# --------------------------------------------------------------------------- group keys


@pytest.mark.claim("threat-model", "48")
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


@pytest.mark.claim("threat-model", "48")
@pytest.mark.parametrize("n_other", [3, 4, 5, 6])
@pytest.mark.parametrize("trust", BLIND)
def test_two_group_keys_leave_out_nobody_where_those_with_one_are_too_few(
    trust, n_other, tmp_path
):
    """Those whose envelopes do not fit the key id get the key from others, or another key."""
    net = with_two_group_keys(tmp_path, trust, n_other, document={"min_clients": 7})
    net.play()
    assert net.answers == [9] * T
    assert len(net.results) == 9
    assert len(set(net.results.values())) == 1


def with_two_group_keys(directory, trust, n_other, **options):
    """Return a server and clients, of which a distributor gives the first ones another key."""
    net = make_net(directory, trust, **options)
    net.nodes[3].change = with_two_keys(net, 3, n_other)
    return net


def with_two_keys(net, node_id, n_other):
    """Return a lie of a distributor: the first peers get another key than the others."""
    node, secret = net.nodes[node_id], token(32)

    def change(request, reply):
        if isinstance(reply, Answer | messages.Wrapped) and reply.envelopes:
            session, identity = (
                node.session(request.doc_hash),
                node.policy.read_identity(),
            )
            pairs = Pairs(request.doc_hash, session, identity)
            other = pairs.wrap(secret, pairs.peers(request.peers))
            # Whatever key id it names, those with the other key complain.
            split = 48 * n_other
            return replace(reply, envelopes=other[:split] + reply.envelopes[split:])
        return reply

    return change


def test_the_next_distributors_envelopes_follow_those_that_do_not_open(tmp_path):
    lies = dict.fromkeys((3, 10), bad_envelopes)
    net = play(tmp_path, "clients-only", lies)
    adds = [request for kind, _, request, _ in net.log if kind == "add"]
    leaders = [
        messages.read_rows(adds[N * i].wraps[0].distributor, True)[0] for i in range(3)
    ]
    assert [leader.slot for leader in leaders] == [0, 1, 2]
    assert net.trips[:6] == ["enrol", "ask", "add", "add", "add", "ask"]
    is_right(net)
    assert net.answers == [N] * T
    net = play(tmp_path, "oblivious-server", lies)
    assert net.trips[:6] == ["enrol", "keys", "ask", "hold", "hold", "ask"]
    assert net.server.proceedings.attempts == T + 1
    assert net.answers == [N] * T
    assert len(net.results) == N


def once_lost(kind, node_id):
    """Return what loses the first reply of a node to a kind of request."""
    lost = []

    def lossy(this_node, this_kind, t, attempt):
        if (this_kind, this_node) == (kind, node_id) and not lost:
            lost.append(True)
            return "reply"
        return ""

    return lossy


def test_who_says_to_hold_another_key_is_no_holder(tmp_path):
    def lie(request, reply):
        return on(messages.Held, key_id=noise)(request, bad_envelopes(request, reply))

    lossy = once_lost("hold", 24)
    net = make_net(tmp_path, "oblivious-server", n=4, lies={3: lie}, lossy=lossy)
    with without_noise():
        net.play()
    is_right(net, 3)
    assert net.trips.count("hold") == 2  # of the first one two held the key
    assert net.answers == [4] * T  # where its words are right, they count


def test_a_sum_share_under_another_key_does_not_count(tmp_path):
    """With R = 4 of 5, it would be one of those that clients have to open."""
    lies, lossy = {3: on(Added, key_id=noise, share=noise)}, once_lost("add", 24)
    net = make_net(tmp_path, "clients-only", n=5, lies=lies, lossy=lossy)
    with without_noise():
        net.play()
    is_right(net, 3)
    assert net.answers == [5] * T


# -------------------------------------------------------------------- without the rules


def believe(points, values, degree):
    return np.ones(len(points), dtype=np.bool_)


@pytest.mark.parametrize(
    ("lie", "target", "stand_in"),
    [
        (on(Added, share=shift), "flower_kmeans.secagg.shares._true_shares", believe),
        (bad_seals, f"{VOTES}.Votes._leave_out_named", lambda self, attempt: set()),
    ],
    ids=["reed-solomon", "named dealers"],
)
def test_without_a_rule_of_the_server_one_client_is_enough(
    lie, target, stand_in, tmp_path, monkeypatch
):
    """Each rule is needed: without it the run of all others ends, or its sum is wrong."""
    is_right(play(tmp_path, "distributed-noise", {3: lie}), 3)
    monkeypatch.setattr(target, stand_in)
    with pytest.raises((AssertionError, RunError, KeyError)):
        is_right(play(tmp_path, "distributed-noise", {3: lie}), 3)
