"""Questions that only the server can compute: what members answer, and what a server cannot do."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from asking import SplitAlgorithm
from harness import (
    BOX,
    P_VALUE,
    SIMULATED,
    Node,
    Scene,
    byte_p_value,
    exact_statistic,
    key_file,
    make_run,
    roster_policies,
)
from hostile import without_noise

from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import PEMeansAlgorithm
from flower_kmeans.algorithms.base import Query, Statistic
from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.federation.arrays import decode_arrays, encode_arrays
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.coordinator import Coordinator, _ClosedRound
from flower_kmeans.federation.messages import Finish, Open, OpenReply, Refusal, RoundReply
from flower_kmeans.federation.opening import Opening
from flower_kmeans.federation.questions import read_result, tell
from flower_kmeans.federation.run import Run, UnacceptableRunError, open_run
from flower_kmeans.federation.transcript import (
    EMPTY_QUESTION_HASH,
    Entry,
    next_hash,
    pack_words,
    question_hash,
    unpack_words,
)
from flower_kmeans.initialization import public_generator
from flower_kmeans.secagg import sharing
from flower_kmeans.secagg.ring import from_ring, to_ring

TRUSTS = ("distributed-noise", "trusted-server", "plain")
KEYS = ("relayed", "file", "roster")


def run_of(trust="distributed-noise", kind=SplitAlgorithm, **options):
    return make_run(trust, rounds=2, kind=kind, **options)


def policies_of(keys, tmp_path, m):
    if keys == "roster":
        return roster_policies(tmp_path, m)
    return [replace(SIMULATED, group_key_file=key_file(tmp_path))] * m


def scene_of(tmp_path=None, m=4, ledgers=False, **options):
    """Return a scene with the policies that its keys need, and perhaps with ledgers."""
    run, policies = run_of(**options), [SIMULATED] * m
    if run.document.keys in ("file", "roster"):
        policies = policies_of(run.document.keys, tmp_path, m)
    if ledgers:
        policies = [
            replace(policy, in_memory=False, state_dir=tmp_path / f"node-{i}")
            for i, policy in enumerate(policies)
        ]
    rng = np.random.default_rng(5)
    nodes = [Node(2**63 + i, rng.random((40 + i, 2)), policies[i]) for i in range(m)]
    return Scene(run, nodes=nodes)


def code_of(answer):
    return answer.code if isinstance(answer, Refusal) else Code.OK


def play(scene, survivors=None):
    """Play a round and open its sum."""
    scene.round(survivors)
    scene.open_hop()
    assert scene.server.unopened == 0


def second(scene):
    """Play round 1, open round 2, and return its question."""
    play(scene)
    scene.open()
    return Query(2, decode_arrays(scene.request(0).question))


def changed(question, **arrays):
    return encode_arrays({**question.arrays, **arrays})


def other_question(question):
    """Return another question that can be answered, with other answers."""
    return changed(question, thresholds=question.arrays["thresholds"] // 2 - 2**14)


def exact(scene, i, question):
    return exact_statistic(scene.run, question, scene.nodes[i].records)


# --------------------------------------------------------------------------- answers


@pytest.mark.parametrize("trust", TRUSTS)
def test_members_answer_what_they_are_asked_and_learn_what_they_are_told(trust):
    scene = scene_of(trust=trust)
    question = second(scene)
    assert set(question.arrays) == {"thresholds", "radius"}
    for i in range(4):
        scene.answer(i)
        if trust != "distributed-noise":
            sent = from_ring(scene.words(i))
            np.testing.assert_array_equal(sent[:-1], exact(scene, i, question))
    scene.server.close_round()
    scene.open_hop()
    assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    algorithm, state = scene.run.algorithm, scene.server.state
    for node in scene.nodes:
        (result,) = node.results
        np.testing.assert_array_equal(result.centroids, algorithm.centroids(state))
        np.testing.assert_array_equal(result.counts, algorithm.counts(state))
    if trust == "plain":
        assert state.arrays["counts"].sum() == sum(
            exact(scene, i, question)[-2:].sum() for i in range(4)
        ) / (2**16)


def test_the_hash_of_the_question_is_in_context_and_entry():
    scene = scene_of()
    question = second(scene)
    data = scene.request(0).question
    assert data == encode_arrays(question.arrays)
    reply = scene.ask(2)
    for i in range(4):
        scene.answer(i)
    scene.server.close_round()
    first, last = (closed.entry for closed in scene.server.closed)
    assert first.question_hash == question_hash(bytes(4))
    assert last.question_hash == question_hash(data) != EMPTY_QUESTION_HASH
    life = scene.nodes[2].life(scene.run)
    assert reply.ctx == last.context(scene.doc_hash, life.chain)


def test_members_keep_no_state_of_the_algorithm():
    scene = scene_of()
    second(scene)
    assert scene.ask(1).ctx
    for node in scene.nodes:
        assert node.life(scene.run).state is None
        record = next(iter(node.state.config_records.values()))
        assert not [name for name in record if name.startswith("state")]


def test_everyone_is_sent_one_and_the_same_object():
    scene = scene_of()
    second(scene)
    sent = {id(request.question) for request in scene.requests.values()}
    repeated = scene.server.repeat_requests([scene.nodes[1].node_id])
    sent |= {id(request.question) for request in repeated.values()}
    scene.open(2)
    sent |= {id(request.question) for request in scene.requests.values()}
    assert len(sent) == 1


# --------------------------------------------------------------------------- malformed questions


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("t", [1, 2])
def test_questions_that_cannot_be_read_are_malformed(trust, t):
    scene = scene_of(trust=trust)
    if t == 1:
        scene.open()
    else:
        second(scene)
    good = scene.request(1).question
    loads = scene.nodes[1].loads
    for bad in (b"", b"?", good[:-1], good + b"\0", b"\1" + good[1:], good[:1] + b"\1" + good[2:]):
        assert code_of(scene.ask(1, question=bad)) == Code.BAD_MESSAGE
    assert scene.nodes[1].loads == loads  # before a record is read
    assert isinstance(scene.ask(1), RoundReply)


@pytest.mark.parametrize(
    "arrays",
    [
        {"more": np.zeros(1)},
        {"radius": np.array([1000.0])},
        {"radius": np.array(1000)},
        {"radius": np.array(0.5)},
        {"radius": np.array(1e300)},
        {"radius": np.array(-1000.0)},
        {"thresholds": np.array([1, 2])},
        {"thresholds": np.array([1.0])},
        {"thresholds": np.zeros((1, 1), dtype=np.int64)},
    ],
)
def test_questions_that_the_algorithm_does_not_ask_are_malformed(arrays):
    scene = scene_of()
    question = second(scene)
    before = copy.deepcopy(scene.nodes[1].life(scene.run))
    answer = scene.ask(1, question=changed(question, **arrays))
    assert code_of(answer) == Code.BAD_MESSAGE
    after = scene.nodes[1].life(scene.run)
    assert (after.answered, after.largest_m) == (before.answered, before.largest_m)
    assert isinstance(scene.ask(1), RoundReply)


def test_a_question_of_another_round_is_malformed():
    scene = scene_of()
    question = second(scene)
    assert code_of(scene.ask(1, question=bytes(4))) == Code.BAD_MESSAGE
    scene = scene_of()
    scene.open()
    data = encode_arrays(question.arrays)
    assert code_of(scene.ask(1, question=data)) == Code.BAD_MESSAGE
    # There is no round 3, and nobody asks what its question would look like.
    assert code_of(scene.ask(1, t=3, question=data)) == Code.NEED


def test_the_question_counts_after_place_transcript_and_crowd():
    scene = scene_of(m=5, min_clients=3)
    question = second(scene)
    bad = changed(question, radius=np.array(0.0))
    assert code_of(scene.ask(1, question=bad, entries=(), t=3)) == Code.NEED
    assert code_of(scene.ask(1, question=bad, t=1)) == Code.STALE
    assert code_of(scene.ask(1, question=bad, attempt=3)) == Code.POLICY
    assert code_of(scene.ask(1, question=bad, root=bytes(32))) == Code.RENEW
    assert code_of(scene.ask(1, question=bad)) == Code.BAD_MESSAGE


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
def test_replayable_algorithms_take_no_question_and_no_result(trust):
    scene = Scene(make_run(trust))
    for _ in range(2):
        scene.round()
        scene.open_hop()
    scene.open()
    assert code_of(scene.ask(1, question=bytes(4))) == Code.BAD_MESSAGE
    for i in range(4):
        assert scene.request(i).question == b""
        scene.answer(i)
    scene.server.close_round()
    request = scene.server.finish_requests()[scene.nodes[1].node_id]
    assert request.result == b""
    told = encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.ones(2)})
    assert code_of(scene.nodes[1].ask(replace(request, result=told))) == Code.BAD_MESSAGE
    assert not scene.nodes[1].results
    assert isinstance(scene.nodes[1].ask(request), OpenReply)


def blind(n_clusters, domain, budget, *, n_records, n_rounds):
    """An algorithm whose server asks only where it sees the sums."""
    return PEMeansAlgorithm(
        n_clusters, domain, budget, n_records=n_records, n_vote_rounds=n_rounds, n_variations=20
    )


def test_nobody_is_asked_or_told_anything_by_an_oblivious_server():
    """A hostile one cannot ask what it likes: members compute the question, or refuse."""
    scene = Scene(make_run(kind=blind))
    algorithm = scene.run.algorithm
    state = algorithm.initial_state()
    for t in range(1, 4):
        scene.open()
        question = encode_arrays(algorithm.query(state).arrays)
        for data in (question, encode_arrays({}), b"x"):
            assert code_of(scene.ask(1, question=data)) == Code.BAD_MESSAGE
        for i in range(4):
            assert scene.request(i).question == b""
            assert isinstance(scene.answer(i), RoundReply)
        assert scene.server.close_round()
        zeros = np.zeros(algorithm.words(t), dtype=np.int64)
        state = algorithm.update(state, algorithm.unflatten(zeros, t))
    request = scene.server.finish_requests()[scene.nodes[1].node_id]
    assert request.result == b""
    told = encode_arrays({"centroids": np.full((2, 2), 0.5), "counts": np.ones(2)})
    assert code_of(scene.nodes[1].ask(replace(request, result=told))) == Code.BAD_MESSAGE
    assert not scene.nodes[1].results
    assert isinstance(scene.nodes[1].ask(request), OpenReply)
    assert len(scene.nodes[1].results) == 1


def test_members_follow_whatever_sum_an_oblivious_server_announces(monkeypatch):
    """It may add anything to the masked words: nobody refuses, and all go on with one state."""
    scene, rng = Scene(make_run(kind=blind)), np.random.default_rng(3)

    def anything(question):
        words = scene.run.document.words_of(question.round) - 1
        return np.append(rng.integers(0, 2**64, words, dtype=np.uint64), np.uint64(0))

    monkeypatch.setattr(scene.server, "_noise", anything)
    for t in range(1, 4):
        scene.round()
        if t > 1:  # each has followed the rounds before
            states = [node.life(scene.run).state for node in scene.nodes]
            for state in states:
                assert state.round == t - 1
                for name, array in state.arrays.items():
                    np.testing.assert_array_equal(array, states[0].arrays[name])
    assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    for node in scene.nodes:
        np.testing.assert_array_equal(
            node.results[0].centroids, scene.nodes[0].results[0].centroids
        )
        assert (np.abs(node.results[0].centroids - 0.5) <= 0.5 + 2.0**-16).all()


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
def test_who_sees_the_sums_asks(trust):
    """The same algorithm: its members then update nothing, and take no empty question."""
    opening = {"opening": "immediate"} if trust == "distributed-noise" else {}
    scene = Scene(make_run(trust, kind=blind, **opening))
    scene.round()
    scene.open_hop()
    scene.open()
    assert scene.request(1).question
    assert code_of(scene.ask(1, question=b"")) == Code.BAD_MESSAGE
    assert isinstance(scene.answer(1), RoundReply)
    assert scene.nodes[1].life(scene.run).state is None


# --------------------------------------------------------------------------- the same round again


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("ledgers", [False, True])
def test_another_question_in_the_same_attempt_is_a_conflict(keys, ledgers, tmp_path):
    scene = scene_of(tmp_path, keys=keys, ledgers=ledgers)
    question = second(scene)
    first = scene.ask(1)
    assert isinstance(first, RoundReply)
    other = other_question(question)
    assert not np.array_equal(
        exact(scene, 1, question), exact(scene, 1, Query(2, decode_arrays(other)))
    )
    if ledgers:
        scene.nodes[1].restart()
    assert code_of(scene.ask(1, question=other)) == Code.CONFLICT
    assert scene.ask(1) == first  # the same bytes, also after a restart
    # In another attempt it is answered, under another mask.
    later = scene.ask(1, attempt=2, question=other)
    assert isinstance(later, RoundReply)
    assert later.ctx != first.ctx
    assert code_of(scene.ask(1, attempt=2)) == Code.CONFLICT


def test_a_member_that_lost_its_memory_answers_under_another_mask(tmp_path):
    scene = scene_of(tmp_path, keys="file")
    question = second(scene)
    first, node = scene.ask(1), scene.nodes[1]
    node.restart()
    everything = {"doc": scene.run.document.data, "entries": scene.server._packed(0)}
    refusal = scene.ask(1, question=other_question(question), **everything)
    assert code_of(refusal) == Code.RENEW
    scene.server.refuse(node.node_id, refusal, 2)
    scene.open(2)
    again = scene.ask(1, question=other_question(question))
    assert isinstance(again, RoundReply)
    assert again.ctx != first.ctx


def test_answers_to_two_questions_share_no_mask(tmp_path):
    """What a server could subtract is uniform, whichever questions it asked."""
    run = make_run("distributed-noise", rounds=2, kind=SplitAlgorithm, n_clusters=60, keys="file")
    rng = np.random.default_rng(5)
    nodes = [
        Node(2**63 + i, rng.random((40, 2)), policies_of("file", tmp_path, 1)[0]) for i in range(4)
    ]
    scene, seen = Scene(run, nodes=nodes), b""
    question = second(scene)
    before = [copy.deepcopy(node.state) for node in nodes]
    for i in range(4):
        first = unpack_words(scene.ask(i).words)
        nodes[i].state = before[i]  # a backup: it does not know that it answered
        other = unpack_words(scene.ask(i, question=other_question(question)).words)
        seen += pack_words(first - other)
    assert byte_p_value(seen) > P_VALUE


# --------------------------------------------------------------------------- a lying server


class Liar:
    """A server that asks two halves of its members two questions in round 2."""

    def __init__(self, tmp_path, m, n_first, keys):
        self.scene = scene_of(tmp_path, m, keys=keys)
        question = second(self.scene)
        self.nodes, self.server = self.scene.nodes, self.scene.server
        self.questions = [encode_arrays(question.arrays), other_question(question)]
        self.halves = [range(n_first), range(n_first, m)]
        self.words, self.contexts = {}, {}
        for data, half in zip(self.questions, self.halves, strict=True):
            for i in half:
                reply = self.scene.ask(i, question=data)
                assert isinstance(reply, RoundReply)
                self.words[i] = unpack_words(reply.words)
                self.contexts[i] = reply.ctx
        self.chain = self.nodes[0].life(self.scene.run).chain

    def entry(self, members, data):
        m = len(self.nodes)
        total = sum(self.words[i] for i in members)
        present = np.isin(np.arange(m), list(members))
        root = self.server._tree.root
        return Entry(2, 1, m, root, question_hash(data), present, total)

    def tell(self, i, entry):
        place = self.server._place(i, 2, self.server._tree)
        return self.nodes[i].ask(
            Open(**{**place, "entries": (entry.pack(),), "want_correction": True})
        )

    def open(self, entry, replies):
        context = entry.context(self.scene.doc_hash, self.chain)
        opening = Opening(entry, next_hash(self.chain, context, entry), by_quorum=True)
        for i, reply in replies.items():
            if isinstance(reply, OpenReply) and reply.share_t == 2:
                opening.take(i, reply.share, reply.correction)
        return opening.open()


@pytest.mark.parametrize("keys", KEYS)
def test_two_questions_to_two_halves_do_not_add_up(keys, tmp_path):
    liar = Liar(tmp_path, 6, 3, keys)
    assert len(set(liar.contexts.values())) == 2
    for data in liar.questions:
        both = liar.entry(range(6), data)
        assert [code_of(liar.tell(i, both)) for i in range(6)] == [Code.GARBAGE] * 6
    # Nor does one half under the question of the other.
    wrong = liar.entry(liar.halves[0], liar.questions[1])
    assert {code_of(liar.tell(i, wrong)) for i in range(6)} == {Code.GARBAGE}
    assert [node.life(liar.scene.run).head for node in liar.nodes] == [1] * 6


@pytest.mark.parametrize("keys", ["file", "roster"])
@pytest.mark.parametrize(("m", "n_first", "opens"), [(6, 3, 0), (6, 4, 1), (5, 3, 1), (4, 2, 0)])
def test_two_questions_open_one_sum_at_most(m, n_first, opens, keys, tmp_path):
    """Half a cohort is no quorum: a member votes for the question that it answered."""
    liar = Liar(tmp_path, m, n_first, keys)
    found = 0
    for data, half in zip(liar.questions, liar.halves, strict=True):
        entry = liar.entry(half, data)
        replies = {i: liar.tell(i, entry) for i in half}
        assert {code_of(reply) for reply in replies.values()} == {Code.OK}
        assert all(reply.share_t == 2 for reply in replies.values())
        assert (len(half) >= sharing.quorum(m)) == (liar.open(entry, replies) is not None)
        found += liar.open(entry, replies) is not None
    assert found == opens


def test_who_answered_another_question_has_no_vote(tmp_path):
    liar = Liar(tmp_path, 6, 3, "file")
    entry = liar.entry(liar.halves[0], liar.questions[0])
    replies = {i: liar.tell(i, entry) for i in range(6)}
    assert all(isinstance(reply, OpenReply) for reply in replies.values())  # it is a sum
    assert [replies[i].share_t for i in range(6)] == [2, 2, 2, None, None, None]
    assert liar.open(entry, replies) is None


def test_no_refusal_depends_on_other_words_than_the_checksum():
    codes = []
    for offset in (0, 1, 2**40, 2**63):
        scene = scene_of()
        scene.round()
        entry = scene.server.closed[0].entry
        words = entry.words.copy()
        words[:-1] += np.uint64(offset)
        told = replace(entry, words=words)
        place = scene.server._place(1, 1, scene.server._tree)
        reply = scene.nodes[1].ask(Open(**{**place, "entries": (told.pack(),)}))
        codes.append((code_of(reply), reply.share_t))
    assert codes == [(Code.OK, 1)] * 4


# --------------------------------------------------------------------------- results


def finished(trust="distributed-noise", **options):
    """Return a scene whose rounds are over, and what each member is to be told."""
    scene = scene_of(trust=trust, **options)
    play(scene)
    play(scene)
    return scene, scene.server.finish_requests()


def result_of(**arrays):
    return encode_arrays(
        {"centroids": np.full((2, 2), 0.5), "counts": np.array([3.0, -4.0]), **arrays}
    )


STEP = 2.0**-16 / 2  # a step of the grid, in the units of a user whose box is [0, 1]


@pytest.mark.parametrize(
    ("data", "accepted"),
    [
        (result_of(), True),
        (result_of(centroids=np.array([[0.0, 1.0], [1.0, 0.0]])), True),
        (result_of(centroids=np.array([[-STEP, 1.0 + STEP], [1.0, 0.0]])), True),
        (result_of(centroids=np.array([[-2 * STEP, 1.0], [1.0, 0.0]])), False),
        (result_of(centroids=np.array([[0.0, 1.0], [1.0 + 2 * STEP, 0.0]])), False),
        (result_of(centroids=np.full((2, 2), 1e308)), False),
        (result_of(centroids=np.full((2, 2), -1e308)), False),
        (result_of(centroids=np.full((3, 2), 0.5)), False),
        (result_of(centroids=np.full((2, 3), 0.5)), False),
        (result_of(centroids=np.full(4, 0.5)), False),
        (result_of(centroids=np.zeros((2, 2), dtype=np.int64)), False),
        (result_of(counts=np.full(2, -1e308)), True),
        (result_of(counts=np.full((2, 1), 1.0)), False),
        (result_of(counts=np.full(3, 1.0)), False),
        (result_of(counts=np.ones(2, dtype=np.int64)), False),
        (result_of(more=np.ones(1)), False),
        (encode_arrays({"centroids": np.full((2, 2), 0.5)}), False),
        (bytes(4), False),
        (result_of()[:-1], False),
        (result_of()[:-8] + b"\0\0\0\0\0\0\xf8\x7f", False),  # not a number
        (b"", False),
    ],
    ids=range(21),
)
def test_results_are_checked_before_they_are_delivered(data, accepted):
    scene, requests = finished("trusted-server")
    node = scene.nodes[1]
    answer = node.ask(replace(requests[node.node_id], result=data))
    if accepted:
        assert isinstance(answer, OpenReply)
        (result,) = node.results
        told = decode_arrays(data)
        np.testing.assert_array_equal(result.centroids, told["centroids"])
        np.testing.assert_array_equal(result.counts, told["counts"])
        return
    assert code_of(answer) == Code.BAD_MESSAGE
    assert not node.results
    assert not node.life(scene.run).finished
    assert isinstance(node.ask(requests[node.node_id]), OpenReply)  # the right one is taken
    assert len(node.results) == 1


def test_a_result_in_a_ball_lies_in_the_ball():
    algorithm = SplitAlgorithm(2, Ball(2.0, [10.0, 10.0]), PrivacyBudget(None))
    run = Run(run_of("plain").document, algorithm, algorithm.plan())
    inside = np.array([[10.0, 12.0], [10 - 2**0.5, 10 - 2**0.5]])
    read_result(run, result_of(centroids=inside))
    with pytest.raises(MessageError, match="outside"):
        read_result(run, result_of(centroids=np.array([[11.5, 11.5], [10.0, 10.0]])))


def test_a_result_counts_only_after_the_last_round():
    """A server that tells a result early opens a sum, as with any message."""
    scene = scene_of()
    play(scene)
    place = scene.server._place(1, 1, scene.server._tree)
    reply = scene.nodes[1].ask(Finish(**place, result=result_of()))
    assert isinstance(reply, OpenReply)
    assert not scene.nodes[1].results
    assert not scene.nodes[1].life(scene.run).finished


def test_a_repeated_finish_is_answered_whatever_it_tells():
    scene, requests = finished()
    node = scene.nodes[1]
    for result in (requests[node.node_id].result, result_of(), b""):
        answer = node.ask(replace(requests[node.node_id], result=result))
        assert isinstance(answer, OpenReply)
    assert len(node.results) == 1


def test_members_that_lack_something_are_told_the_result_too(tmp_path):
    scene, requests = finished()
    late = requests[scene.nodes[2].node_id]
    assert code_of(scene.nodes[2].ask(replace(late, t=3))) == Code.NEED
    scene.server.refuse(scene.nodes[2].node_id, Refusal(code=Code.NEED), 3)
    again = scene.server.finish_requests()[scene.nodes[2].node_id]
    assert (len(again.entries), again.result) == (2, late.result)
    assert isinstance(scene.nodes[2].ask(again), OpenReply)


# --------------------------------------------------------------------------- the server


def test_the_server_asks_for_nothing_before_it_knows_the_sum():
    scene = scene_of()
    scene.round()
    with pytest.raises(RunError, match="sum of round 1 could not be opened"):
        scene.open()
    scene.open_hop()
    scene.open()
    for i in range(4):
        scene.answer(i)
    scene.server.close_round()
    with pytest.raises(RunError, match="sum of round 2 could not be opened"):
        scene.server.finish_requests()
    scene.open_hop()
    assert {request.result for request in scene.server.finish_requests().values()} == {
        tell(scene.run, scene.server.state)
    }


@pytest.mark.parametrize("opening", ["immediate", "simple"])
def test_sums_are_opened_in_hops_of_their_own(opening):
    scene = scene_of(opening=opening)
    scene.round()
    assert not any(request.want_correction for request in scene.requests.values())
    replies = scene.open_hop()
    assert all((reply.share is not None) == (opening == "immediate") for reply in replies)
    assert scene.server.n_opened == 1
    scene.open()
    assert not any(request.want_correction for request in scene.requests.values())
    assert all(scene.ask(i).share_t is None for i in range(4))


@pytest.mark.parametrize("seed", [0, 7])
def test_the_servers_randomness_is_that_of_seed_and_round(seed):
    scene = scene_of(trust="plain", n_clusters=8)
    server, algorithm = Coordinator(scene.run, seed=seed), scene.run.algorithm
    state = algorithm.initial_state(public_generator(seed, 0))
    for t in (1, 2):
        expected = algorithm.query(state)
        assert server._ask(t).data == encode_arrays(expected.arrays)
        words = np.append(np.full(algorithm.words(t), 2**20), 4)
        entry = Entry(t, 1, 4, bytes(32), bytes(32), np.ones(4, dtype=bool), to_ring(words))
        server.closed.append(_ClosedRound(entry))
        server._record_opened(t, entry.words)
        answer = algorithm.unflatten(words[:-1], t)
        state = algorithm.update(state, answer, public_generator(seed, t))
        for name, array in state.arrays.items():
            np.testing.assert_array_equal(array, server.state.arrays[name])


def test_public_randomness_differs_by_seed_and_by_round():
    drawn = {public_generator(s, t).integers(2**62) for s in range(5) for t in range(5)}
    assert len(drawn) == 25
    assert public_generator(3, 1).integers(2**62) == public_generator(3, 1).integers(2**62)


class Broken(SplitAlgorithm):
    """An algorithm with one fault."""

    fault = ""

    def query(self, state):
        question = super().query(state)
        if self.fault == "encoding":
            return Query(question.round, {"thresholds": np.zeros(1, dtype=np.float32)})
        if self.fault == "rules" and question.round == 2:
            return Query(2, {**question.arrays, "radius": np.array(0.0)})
        if self.fault == "shares" and question.round == 2:
            return Query(2, {**question.arrays, "radius": np.array(1.0)})
        return question

    def centroids(self, state):
        if self.fault == "none":
            return None
        return super().centroids(state) + (7 if self.fault == "bounds" else 0)

    def counts(self, state):
        return super().counts(state) * (np.nan if self.fault == "counts" else 1)


@pytest.mark.parametrize(
    ("fault", "t", "match"),
    [
        ("encoding", 1, "Round 1 cannot be asked for. Expected array 'thresholds'"),
        ("rules", 2, "Round 2 cannot be asked for. The question has a radius"),
        ("none", 3, "Expected centroids and counts after the last round"),
        ("bounds", 3, "The result cannot be told to the clients. .*outside"),
        ("counts", 3, "The result cannot be told to the clients. .*finite"),
    ],
)
def test_what_clients_would_refuse_is_not_sent(fault, t, match):
    run = run_of(epsilon=200.0)
    own = Broken(2, BOX, run.plan.budget, n_records=1000)
    object.__setattr__(own, "fault", fault)
    scene = Scene(replace(run, algorithm=own))
    for _ in range(t - 1):
        play(scene)
    with pytest.raises(RunError, match=match):
        scene.server.finish_requests() if t == 3 else scene.open()


# --------------------------------------------------------------------------- run documents


@pytest.mark.parametrize(
    ("kind", "trust", "changes"),
    [
        (SplitAlgorithm, "oblivious-server", {"sampler": "rounded-gaussian/1"}),
        (SplitAlgorithm, "distributed-noise", {"opening": "deferred"}),
        (blind, "distributed-noise", {"opening": "deferred"}),
    ],
)
def test_a_run_in_which_the_server_lacks_the_sums_is_refused(kind, trust, changes):
    run = make_run(trust, rounds=2, kind=kind, **changes)
    with pytest.raises(UnacceptableRunError, match="needs each sum"):
        open_run(run.document.data)
    node = Node(7, np.ones((3, 2)), SIMULATED)
    server = Coordinator(run)
    answer = node.ask(server.enrol_requests([7])[7])
    assert code_of(answer) == Code.POLICY
    assert node.loads == 0


def test_clients_build_the_algorithm_without_what_the_server_holds():
    run = run_of()
    own = replace(run.algorithm, server_points=((0.25, 0.75),))
    assert own.to_config() == run.algorithm.to_config()
    assert open_run(run.document.data).algorithm.server_points == ()


def test_the_sum_that_a_server_opens_is_that_of_the_question():
    with without_noise():
        scene = scene_of(n_clusters=3)
        question = second(scene)
        for i in (0, 1, 3):
            scene.answer(i)
        scene.server.close_round()
        scene.open_hop()
    opened = from_ring(scene.server.closed[1].opened)[:-1]
    np.testing.assert_array_equal(opened, sum(exact(scene, i, question) for i in (0, 1, 3)))
    algorithm = scene.run.algorithm
    blocks = algorithm.unflatten(opened, 2).blocks
    assert isinstance(algorithm.unflatten(opened, 2), Statistic)
    np.testing.assert_array_equal(scene.server.state.arrays["counts"], blocks["counts"] / 2**16)
