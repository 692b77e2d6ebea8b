"""Members that come late, or whose enrolment was lost, join where keys allow it."""

from dataclasses import replace

import numpy as np
import pytest
from harness import BOX, SIMULATED, Node, Scene, key_file, make_run, run_recorded

from flower_kmeans import Fault, PrivacyBudget
from flower_kmeans.federation.messages import Code, EnrolReply, OpenReply, Refusal, RoundReply
from flower_kmeans.strategies import FastLloyd, Lloyd


def _policy(tmp_path):
    return replace(SIMULATED, group_key_file=key_file(tmp_path))


def _parts(n=6):
    rng = np.random.default_rng(3)
    return [rng.random((40, 2)) for _ in range(n)]


def _join(scene, node):
    request = scene.server.join_requests([node.node_id])[node.node_id]
    reply = node.ask(request)
    assert isinstance(reply, EnrolReply)
    scene.server.accept_join(node.node_id, reply)


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise"])
def test_a_late_enrolment_joins_with_a_key_file(trust, tmp_path):
    options = {"n_clients": 6, "min_clients": 3} if trust == "distributed-noise" else {}
    strategy = FastLloyd(
        3, BOX, PrivacyBudget(1.0), 240, trust=trust, keys="file", n_rounds=4, **options
    )
    outcome = run_recorded(
        strategy, _parts(), policy=_policy(tmp_path), faults=[Fault(2, 0, "late")]
    )
    assert strategy.report.answers == [5, 6, 6, 6]
    assert strategy.report.n_clients == 6
    assert len(outcome.results) == 6
    assert outcome.one is not None  # all have the same result, the late one too


def test_a_late_member_counts_in_the_exact_sum():
    parts, strategy = _parts(), Lloyd(3, BOX, n_rounds=5)
    outcome = run_recorded(strategy, parts, faults=[Fault(1, 0, "late")])
    assert strategy.report.answers[0] == 5
    assert strategy.report.answers[-1] == 6
    assert outcome.one.counts.sum() == sum(map(len, parts))


def test_relayed_keys_take_no_late_members():
    strategy = FastLloyd(3, BOX, PrivacyBudget(1.0), 240, n_rounds=3)
    run_recorded(strategy, _parts(), faults=[Fault(2, 0, "late")])
    assert strategy.report.answers == [5, 5, 5]
    assert Scene(m=3).server.join_requests([7]) == {}


def test_joining_does_not_touch_the_open_attempt(tmp_path):
    scene = Scene(make_run(keys="file"), policy=_policy(tmp_path))
    scene.open()
    root = scene.request(0).root
    scene.answer(0)
    late = Node(2**62, np.random.default_rng(8).random((9, 2)), _policy(tmp_path))
    _join(scene, late)
    scene.answer(1)
    assert scene.request(1).root == root
    repeated = scene.server.repeat_requests([scene.nodes[2].node_id])
    assert repeated[scene.nodes[2].node_id].root == root
    assert scene.server.close_round()
    assert scene.server.closed[-1].entry.m == 4
    scene.nodes.append(late)
    scene.open()
    assert scene.request(4).m == 5
    assert scene.request(4).index == 4
    assert scene.request(0).root != root


def test_a_late_member_does_not_touch_an_attempt_that_waits_for_an_opening(tmp_path):
    scene = Scene(make_run("distributed-noise", keys="file"), policy=_policy(tmp_path))
    scene.round()
    scene.open()
    for i, node in enumerate(scene.nodes):  # nobody opens the round before on the way
        reply = replace(scene.ask(i), share_t=None, share=None, correction=None)
        scene.server.accept_round(node.node_id, reply)
    late = Node(2**62, np.random.default_rng(8).random((9, 2)), _policy(tmp_path))
    _join(scene, late)
    assert all(isinstance(opened, OpenReply) for opened in scene.open_hop())
    assert scene.server.unopened == 0
    assert scene.server.close_round()
    assert scene.server.closed[-1].entry.m == 4
    scene.open()
    assert len(scene.requests) == 5


def test_a_late_member_follows_the_transcript_from_its_beginning(tmp_path):
    scene = Scene(make_run(keys="file", rounds=3), policy=_policy(tmp_path))
    scene.round()
    late = Node(5, np.random.default_rng(8).random((9, 2)), _policy(tmp_path))
    _join(scene, late)
    scene.nodes.append(late)
    scene.round()
    assert scene.server.closed[-1].entry.survivors.tolist() == [True] * 5
    scene.round()
    assert all(isinstance(reply, OpenReply) for reply in scene.finish())
    first = scene.nodes[0].results[0]
    np.testing.assert_array_equal(late.results[0].centroids, first.centroids)


def test_a_renewal_within_an_attempt_waits_for_the_next_one(tmp_path):
    scene = Scene(make_run(keys="file"), policy=_policy(tmp_path))
    scene.nodes[1].restart()
    scene.open()
    root = scene.request(0).root
    reply = scene.nodes[1].ask(scene.request(1, doc=scene.run.document.data))
    assert isinstance(reply, Refusal)
    assert reply.code == Code.RENEW
    scene.server.refuse(scene.nodes[1].node_id, reply, 1)
    node_id = scene.nodes[2].node_id
    assert scene.server.repeat_requests([node_id])[node_id].root == root
    scene.open(attempt=2)
    assert scene.request(0).root != root
    assert isinstance(scene.ask(1), RoundReply)


def test_who_declined_is_not_asked_again(tmp_path):
    scene = Scene(make_run(keys="file"), policy=_policy(tmp_path))
    scene.server.refuse(99, Refusal(code=Code.POLICY, doc_hash=scene.doc_hash), 1)
    assert set(scene.server.join_requests([98, 99])) == {98}


def test_a_late_member_with_another_key_file_gets_no_seat(tmp_path):
    policy = _policy(tmp_path)
    scene = Scene(make_run(keys="file"), policy=policy)
    late = Node(5, np.zeros((3, 2)), replace(policy, group_key_file=key_file(tmp_path, bytes(32))))
    _join(scene, late)
    scene.open()
    assert len(scene.requests) == 4
