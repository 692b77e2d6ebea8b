"""Opening a sum: what members give toward it, and what the server makes of that."""

from dataclasses import replace

import numpy as np
import pytest
from harness import SIMULATED, Node, Scene, key_file, make_run, roster_policies

from flower_kmeans.errors import RunError
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.coordinator import FALSE
from flower_kmeans.federation.messages import Finish, Open, OpenReply, Refusal, RoundReply
from flower_kmeans.federation.opening import Opening
from flower_kmeans.federation.transcript import pack_words, unpack_words
from flower_kmeans.secagg import masks, sharing
from flower_kmeans.secagg.ring import from_ring

QUORUM = ("deferred", "immediate")
OPENINGS = (*QUORUM, "simple")


def code_of(answer):
    return answer.code if isinstance(answer, Refusal) else Code.OK


def shared(opening="deferred", **options):
    return make_run("distributed-noise", opening=opening, **options)


def file_policy(tmp_path, **changes):
    return replace(SIMULATED, group_key_file=key_file(tmp_path), **changes)


def file_scene(tmp_path, m=4, **options):
    return Scene(shared(keys="file", **options), m, policy=file_policy(tmp_path))


def opens(scene, i, kind=Open, **changes):
    """Ask member ``i`` to open the last sum, and for the correction."""
    server = scene.server
    place = server._place(i, server.head, server._tree)
    return scene.nodes[i].ask(kind(**{**place, "want_correction": True, **changes}))


def given(reply):
    return reply.share_t, reply.share, reply.correction


NOTHING = (None, None, None)


def expected(scene, i):
    """Return share, secret and bare correction of member ``i``, from the definition."""
    life, entry = scene.nodes[i].life(scene.run), scene.server.closed[-1].entry
    coefficients = sharing.polynomial(life.group_key, life.chain, entry.m)
    key = masks.mask_key(life.group_key, life.last_context)
    bare = sum(
        (masks.mask(key, j, entry.m, len(entry.words)) for j in np.flatnonzero(entry.survivors)),
        np.zeros(len(entry.words), dtype=np.uint64),
    )
    return sharing.share_of(coefficients, i), sharing.secret_of(coefficients), bare


# --------------------------------------------------------------------------- what a member gives


def test_the_answer_to_the_next_round_carries_the_share_and_the_sealed_correction():
    scene = Scene(shared(), m=5)
    entry = scene.round([0, 1, 2, 4])
    scene.open()
    reply = scene.ask(1, want_correction=True)
    share, secret, bare = expected(scene, 1)
    assert (reply.share_t, reply.share) == (1, share)
    stream = sharing.open_stream(secret, scene.nodes[1].life(scene.run).chain, len(bare))
    np.testing.assert_array_equal(unpack_words(reply.correction), bare + stream)
    assert int((entry.words - bare)[-1]) == 4
    unasked = scene.ask(2, want_correction=False)
    assert (unasked.share_t, unasked.correction) == (1, None)
    assert unasked.share == expected(scene, 2)[0] != share


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kind", [Open, Finish])
def test_what_a_hop_of_its_own_carries(opening, kind):
    scene = Scene(shared(opening))
    scene.round()
    reply = opens(scene, 1, kind)
    share, secret, bare = expected(scene, 1)
    sealed = bare + sharing.open_stream(secret, scene.nodes[1].life(scene.run).chain, len(bare))
    if opening == "simple":
        assert given(reply) == (1, None, pack_words(bare))
        assert given(opens(scene, 2, kind, want_correction=False)) == NOTHING
    else:
        assert given(reply) == (1, share, pack_words(sealed))
        assert opens(scene, 2, kind, want_correction=False).correction is None


def test_only_deferred_and_simple_opening_ride_on_answers():
    for opening in OPENINGS:
        scene = Scene(shared(opening))
        scene.round()
        scene.open()
        reply = scene.ask(1, want_correction=True)
        assert isinstance(reply, RoundReply)
        assert (reply.share is not None) == (opening == "deferred")
        assert (reply.correction is not None) == (opening != "immediate")
        assert (reply.share_t is None) == (opening == "immediate")


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server", "plain"])
def test_an_oblivious_server_is_never_given_anything_that_opens(trust):
    scene = Scene(make_run(trust))
    scene.round()
    scene.open()
    assert given(scene.ask(1, want_correction=True)) == NOTHING
    for kind in (Open, Finish):
        assert given(opens(scene, 2, kind)) == NOTHING


@pytest.mark.parametrize("opening", OPENINGS)
def test_nothing_is_given_for_a_context_that_this_life_did_not_answer(opening, tmp_path):
    scene = file_scene(tmp_path, 5, opening=opening, rounds=4)
    scene.round([0, 1, 2])
    scene.open()
    assert given(scene.ask(3, want_correction=True)) == NOTHING  # it was not asked
    assert given(opens(scene, 3)) == NOTHING
    # It answered, then lost its memory: the renewed life answered nothing.
    for i in range(5):
        scene.answer(i)
    scene.server.close_round()
    scene.nodes[1].restart()
    scene.open()
    renewal = scene.ask(1, doc=scene.run.document.data)
    assert code_of(renewal) == Code.RENEW
    scene.server.refuse(scene.nodes[1].node_id, renewal, 3)
    scene.open(2)
    answer = scene.ask(1, want_correction=True)
    assert isinstance(answer, RoundReply)
    assert given(answer) == NOTHING
    assert given(opens(scene, 1)) == NOTHING
    assert given(opens(scene, 2)) != NOTHING


def test_an_answer_that_came_too_late_is_a_vote_too():
    """A life votes if it answered the context, whether or not the server counted its answer."""
    scene = Scene(shared())
    scene.open()
    for i in (0, 1, 2):
        scene.answer(i)
    scene.ask(3)
    scene.server.close_round()
    scene.open()
    assert scene.ask(3).share == expected(scene, 3)[0]


def test_one_entry_of_a_round_gets_the_vote():
    """After it followed one entry, a member opens that one only."""
    scene = Scene(shared())
    entry = scene.round()
    scene.open()
    first = scene.ask(1, want_correction=True)
    fewer = replace(entry, survivors=np.arange(4) < 3)
    again = scene.ask(1, entries=(fewer.pack(),), want_correction=True)
    assert given(again) == given(first)
    assert given(opens(scene, 1, entries=(fewer.pack(),))) == given(first)


@pytest.mark.parametrize("opening", QUORUM)
def test_a_restart_with_a_ledger_gives_the_same_bytes(opening, tmp_path):
    policies = [
        file_policy(tmp_path, in_memory=False, state_dir=tmp_path / f"node-{i}") for i in range(4)
    ]
    rng = np.random.default_rng(5)
    nodes = [Node(7 + i, rng.random((6, 2)), policies[i]) for i in range(4)]
    scene = Scene(shared(opening, keys="file"), nodes=nodes)
    scene.round()
    scene.open()
    first = [given(scene.ask(1, want_correction=True)), given(opens(scene, 1))]
    scene.nodes[1].restart()
    again = [given(scene.ask(1, want_correction=True)), given(opens(scene, 1))]
    assert again == first
    assert first[1] != NOTHING
    assert first[0] == (first[1] if opening == "deferred" else NOTHING)


@pytest.mark.parametrize("first", ["deferred", "immediate"])
def test_two_sums_told_to_two_processes_at_once_get_one_vote(first, tmp_path):
    """With a ledger, the process that comes second follows what the first one followed."""
    policy = file_policy(tmp_path, in_memory=False, state_dir=tmp_path / "node")
    rng = np.random.default_rng(5)
    nodes = [Node(7, rng.random((6, 2)), policy)]
    nodes += [Node(8 + i, rng.random((6, 2)), file_policy(tmp_path)) for i in range(3)]
    scene = Scene(shared(first, keys="file"), nodes=nodes)
    entry = scene.round()
    other = replace(entry, words=entry.words + np.array([1, *[0] * (len(entry.words) - 1)], "<u8"))
    scene.open()
    votes, records = [], nodes[0].records

    def load():
        """While one process reads its records, the other one is told another sum."""
        nodes[0].records = records
        votes.append(given(opens(scene, 0, entries=(other.pack(),))))
        return records

    nodes[0].records = load
    votes.append(given(scene.ask(0, want_correction=True)))
    votes.append(given(opens(scene, 0)))
    assert len(votes) == 3
    assert {vote for vote in votes if vote != NOTHING} == {votes[0]}
    assert votes[0] != NOTHING


def test_a_life_has_no_part_in_a_cohort_that_shrank(tmp_path):
    scene = file_scene(tmp_path, 5)
    small = Scene(scene.run, nodes=scene.nodes[:4])
    scene.open()
    small.open()
    assert isinstance(scene.answer(1), RoundReply)
    later = small.request(1, attempt=2)
    assert code_of(small.nodes[1].ask(later)) == Code.POLICY
    # Also in the rounds that follow.
    for i in (0, 2, 3, 4):
        scene.answer(i)
    scene.server.close_round()
    scene.open()
    follow = small.request(1, t=2, entries=scene.request(1).entries)
    assert code_of(small.nodes[1].ask(follow)) == Code.POLICY
    assert isinstance(scene.ask(1), RoundReply)


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_life_does_not_vote_in_a_smaller_cohort_than_it_answered(opening, tmp_path):
    """It answers a cohort of four, then one of five; the sum of the four gets no vote of it."""
    big = file_scene(tmp_path, 5, opening=opening)
    small = Scene(big.run, nodes=big.nodes[:4])
    small.open()
    for i in range(4):
        small.answer(i)
    big.open(attempt=2)
    for i in (0, 1):
        assert isinstance(big.answer(i), RoundReply)
    small.server.close_round()
    for i in range(4):
        reply = opens(small, i)
        assert isinstance(reply, OpenReply)
        assert (given(reply) == NOTHING) == (i in (0, 1))


def test_a_cohort_that_grew_since_the_sum_does_not_take_the_vote(tmp_path):
    scene = file_scene(tmp_path, 4)
    scene.round()
    late = Node(2**62, np.ones((3, 2)) / 2, file_policy(tmp_path))
    scene.server.accept_join(
        late.node_id, late.ask(scene.server.join_requests([late.node_id])[late.node_id])
    )
    scene.nodes.append(late)
    scene.open()
    assert scene.request(0).m == 5
    for i in range(5):
        scene.answer(i)
    assert given(scene.replies[4]) == NOTHING
    assert all(scene.replies[i].share_t == 1 for i in range(4))
    scene.server.try_open()
    assert scene.server.n_opened == 1


# --------------------------------------------------------------------------- what the server makes


def answer_all(scene, members=None):
    """Let the next round be answered, and return the replies before the server takes them."""
    scene.open()
    return {i: scene.ask(i) for i in (range(len(scene.nodes)) if members is None else members)}


def take(scene, replies):
    for i, reply in replies.items():
        scene.server.accept_round(scene.nodes[i].node_id, reply)
    scene.server.try_open()


def notes(scene):
    return [
        (entry.client, entry.round) for entry in scene.server.incidents if entry.reason == FALSE
    ]


@pytest.mark.parametrize("opening", OPENINGS)
def test_an_opened_sum_is_the_exact_sum_and_the_noise(opening):
    """The server opens what the clients' own arithmetic gives."""
    scene = Scene(shared(opening))
    scene.round()
    scene.open_hop()
    assert scene.server.unopened == 0
    noise = from_ring(scene.server.closed[0].opened)[:-1] - np.sum(
        [scene.plain(i) for i in range(4)], axis=0
    )
    assert noise.any()
    scene.open()
    scene.ask(0)
    state = scene.nodes[0].life(scene.run).state
    for name, array in scene.server.state.arrays.items():
        np.testing.assert_array_equal(array, state.arrays[name])


@pytest.mark.parametrize(("m", "enough"), [(2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_of_shares_and_one_correction_open_a_sum_and_less_does_not(m, enough):
    scene = Scene(shared(), m)
    scene.round()
    replies = answer_all(scene)
    order = list(reversed(range(m)))
    for n, i in enumerate(order, 1):
        if n == enough - 1:
            bare = replace(replies[i], correction=opens(scene, i).correction)
            take(scene, {i: bare})
        else:
            take(scene, {i: replace(replies[i], correction=None)})
        assert (scene.server.n_opened == 1) == (n >= enough)


def test_shares_without_a_correction_open_nothing():
    scene = Scene(shared())
    scene.round()
    take(scene, {i: replace(r, correction=None) for i, r in answer_all(scene).items()})
    assert scene.server.unopened == 1
    assert "4 of 3 shares and 0 corrections" in str(scene.server.not_opened())
    scene.open_hop()
    assert scene.server.unopened == 0


def test_a_round_takes_a_majority_of_answers():
    scene = Scene(shared(min_clients=2), m=6)
    assert not Scene(shared("simple", min_clients=2), m=6).server.has_enough
    scene.open()
    for i in range(3):
        scene.answer(i)
        assert not scene.server.has_enough
        assert not scene.server.close_round()
    text = str(scene.server.too_few())
    assert "at least 4 (more than half of 6 places) answers in round 1 of 3. Got 3 of 6" in text
    scene.answer(3)
    assert scene.server.close_round()
    simple = Scene(shared("simple", min_clients=2), m=6)
    simple.open()
    for i in range(2):
        simple.answer(i)
    assert simple.server.close_round()


def flipped(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_false_share_is_left_out_if_there_are_others_and_its_sender_is_named():
    for liar in range(5):
        scene = Scene(shared(), m=5)
        scene.round()
        replies = answer_all(scene)
        replies[liar] = replace(replies[liar], share=flipped(replies[liar].share))
        take(scene, replies)
        assert scene.server.n_opened == 1
        assert notes(scene) == [(liar, 1)]
        np.testing.assert_array_equal(
            scene.server.state.arrays["counts"],
            scene.nodes[0].life(scene.run).state.arrays["counts"],
        )


def test_false_shares_without_others_open_nothing_and_more_shares_help():
    scene = Scene(shared(), m=5)
    scene.round()
    replies = answer_all(scene)
    false = replace(replies[1], share=bytes(32))
    take(scene, {0: replies[0], 1: false, 2: replies[2]})
    assert scene.server.unopened == 1
    assert isinstance(scene.server.not_opened(), RunError)
    take(scene, {3: replies[3]})
    assert scene.server.n_opened == 1
    assert notes(scene) == [(1, 1)]


def test_several_false_shares_in_a_large_cohort():
    """So many sets of shares are possible that not all are tried."""
    key, head, m, length = b"k" * 32, b"h" * 32, 60, 5
    scene = Scene(shared())
    entry = replace(
        scene.round(), m=m, survivors=np.ones(m, dtype=bool), words=np.arange(length, dtype="<u8")
    )
    coefficients = sharing.polynomial(key, head, m)
    bare = entry.words - np.array([5, 4, 3, 2, m], dtype=np.uint64)
    stream = sharing.open_stream(sharing.secret_of(coefficients), head, length)
    opening = Opening(entry, head, by_quorum=True)
    liars = {3, 17, 40}
    for i in range(m):
        share = sharing.share_of(coefficients, i)
        opening.take(i, flipped(share) if i in liars else share, None)
    opening.take(0, None, pack_words(bare + stream))
    np.testing.assert_array_equal(opening.open(), [5, 4, 3, 2, m])
    assert opening.false == liars


@pytest.mark.parametrize(
    ("m", "errors", "named"), [(7, {0: 1, 2: -1}, {0, 2}), (5, {0: -2, 1: -2}, set())]
)
def test_liars_who_make_up_a_polynomial_of_the_same_secret_get_nobody_else_named(m, errors, named):
    """Errors are those of x (x - 2) (x - 4) / 3 among seven, of x (x - 3) among five.

    Of five each polynomial fits three, and there is no telling which is the right one.
    """
    key, head, length = b"k" * 32, b"h" * 32, 5
    scene = Scene(shared())
    entry = replace(
        scene.round(), m=m, survivors=np.ones(m, dtype=bool), words=np.arange(length, dtype="<u8")
    )
    coefficients = sharing.polynomial(key, head, m)
    opening = Opening(entry, head, by_quorum=True)
    for i in range(m):
        share = int.from_bytes(sharing.share_of(coefficients, i), "little")
        share += errors.get(i, 0)
        opening.take(i, (share % sharing.PRIME).to_bytes(32, "little"), None)
    stream = sharing.open_stream(sharing.secret_of(coefficients), head, length)
    bare = entry.words - np.array([5, 4, 3, 2, m], dtype=np.uint64)
    opening.take(0, None, pack_words(bare + stream))
    np.testing.assert_array_equal(opening.open(), [5, 4, 3, 2, m])
    assert opening.false == named


def test_a_false_correction_is_left_out_and_its_sender_is_named():
    scene = Scene(shared(), m=5)
    scene.round()
    replies = answer_all(scene)
    checksum = len(replies[2].correction) - 8
    replies[2] = replace(replies[2], correction=flipped(replies[2].correction, checksum))
    take(scene, replies)
    assert scene.server.n_opened == 1
    assert notes(scene) == [(2, 1)]


@pytest.mark.parametrize("opening", ["deferred", "simple"])
def test_corrections_that_open_a_sum_in_two_ways_end_the_run(opening):
    """The checksum word is right in both, so nobody can tell who lies."""
    scene = Scene(shared(opening), m=5)
    scene.round()
    replies = answer_all(scene)
    replies[2] = replace(replies[2], correction=flipped(replies[2].correction))
    with pytest.raises(RunError, match="in 2 ways"):
        take(scene, replies)
    assert scene.server.n_opened == 0


def test_what_does_not_belong_to_the_sum_is_ignored(tmp_path):
    scene = file_scene(tmp_path, 4)
    scene.round()
    replies = answer_all(scene)
    server, good = scene.server, replies[1]
    for wrong in (
        {"share_t": 2},
        {"correction": good.correction[:-8]},
        {"correction": bytes(len(good.correction))},
    ):
        reply = OpenReply(
            doc_hash=scene.doc_hash,
            **{"share_t": 1, "share": None, "correction": good.correction, **wrong},
        )
        server.accept_open(scene.nodes[0].node_id, reply)
        server.accept_open(12345, reply)  # no member
    take(scene, {i: replace(replies[i], correction=None) for i in (1, 2, 3)})
    assert server.unopened == 1
    take(scene, {0: replies[0]})
    assert server.unopened == 1  # the first correction of a member counts, and it was false
    scene.open_hop()
    assert server.unopened == 0
    assert notes(scene) == [(0, 1)]
    server.accept_open(scene.nodes[0].node_id, opens(scene, 0))
    assert server.state.round == 1  # what comes later changes nothing


def test_a_place_that_the_context_did_not_have_is_ignored():
    scene = Scene(shared())
    opening = Opening(scene.round(), b"h" * 32, by_quorum=True)
    opening.take(4, bytes(32), bytes(8 * len(opening.entry.words)))
    assert not opening.shares
    assert not opening.corrections


# --------------------------------------------------------------------------- whom it asks


def wanted(scene, requests):
    return [
        i
        for i, node in enumerate(scene.nodes)
        if requests.get(node.node_id) is not None and requests[node.node_id].want_correction
    ]


def test_five_survivors_are_asked_on_the_way_and_others_in_the_next_attempt():
    scene = Scene(shared(max_attempts=3), m=12)
    scene.round([1, 2, 3, 5, 6, 7, 8, 10, 11])
    assert wanted(scene, scene.server.round_requests(1)) == [1, 2, 3, 5, 6]
    repeated = scene.server.repeat_requests([scene.nodes[1].node_id, scene.nodes[7].node_id])
    assert wanted(scene, repeated) == [1]
    assert wanted(scene, scene.server.round_requests(2)) == [1, 7, 8, 10, 11]
    assert len(wanted(scene, scene.server.round_requests(3))) == 5


def test_a_hop_of_its_own_asks_survivors_who_are_there_and_then_everyone():
    scene = Scene(shared(), m=12)
    scene.round([1, 2, 3, 5, 6, 7, 8, 10, 11])
    scene.open()
    for i in (3, 7, 9):
        scene.answer(i)
    scene.server.try_open()
    assert scene.server.unopened == 1
    first = scene.server.open_requests()
    assert [i for i, node in enumerate(scene.nodes) if node.node_id in first] == [
        1, 2, 3, 5, 6, 7, 8, 10, 11,
    ]  # fmt: skip
    assert wanted(scene, first) == [3, 7, 8, 10, 11]
    everyone = scene.server.open_requests(everyone=True)
    assert wanted(scene, everyone) == list(range(12))
    assert {request.t for request in everyone.values()} == {1}


@pytest.mark.parametrize("opening", QUORUM)
def test_absent_members_of_a_roster_are_not_asked_but_count(opening, tmp_path):
    rng = np.random.default_rng(5)
    policies = roster_policies(tmp_path, 7)
    there = [6, 1, 3, 4]
    nodes = [Node(50 + i, rng.random((6, 2)), policies[place]) for i, place in enumerate(there)]
    scene = Scene(shared(opening, keys="roster"), nodes=nodes)
    entry = scene.round()
    assert entry.m == 7
    replies = scene.open_hop(everyone=True)
    assert len(replies) == 4
    assert scene.server.n_opened == 1
    scene.open()
    for i in range(3):
        scene.answer(i)
    assert not scene.server.close_round()
    assert "at least 4 (more than half of 7 places)" in str(scene.server.too_few())


def test_under_immediate_opening_no_question_asks_for_a_correction():
    scene = Scene(shared("immediate"), m=7)
    scene.round()
    assert wanted(scene, scene.server.round_requests(1)) == []
    assert len(wanted(scene, scene.server.open_requests())) == 5


def test_under_simple_opening_all_survivors_are_asked():
    scene = Scene(shared("simple"), m=7)
    scene.round([1, 2, 3, 4, 5, 6])
    assert wanted(scene, scene.server.open_requests()) == [1, 2, 3, 4, 5, 6]


def test_the_delivery_asks_all_survivors_for_the_last_correction():
    """Whoever has the result erases its keys, so nobody can be asked again."""
    scene = Scene(shared(), m=8)
    for _ in range(3):
        scene.round([0, 1, 2, 3, 4, 5, 7])
    requests = scene.server.finish_requests()
    assert len(requests) == 8
    assert wanted(scene, requests) == [0, 1, 2, 3, 4, 5, 7]
    scene.finish()
    assert scene.server.n_opened == 3
    for _ in range(2):
        assert [given(reply) for reply in scene.finish()] == [NOTHING] * 8


def test_nobody_is_asked_for_what_is_open():
    scene = Scene(shared())
    scene.round()
    scene.open_hop()
    assert scene.server.open_requests() == {}
    assert scene.server.open_requests(everyone=True) == {}
    assert wanted(scene, scene.server.round_requests(1)) == []


def test_a_member_that_opened_a_sum_is_not_sent_it_again():
    scene = Scene(shared("immediate"))
    scene.round()
    scene.open_hop()
    scene.open()
    assert [len(scene.request(i).entries) for i in range(4)] == [0] * 4
    assert all(isinstance(scene.ask(i), RoundReply) for i in range(4))
