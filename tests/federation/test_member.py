"""What a client answers, and what a hostile server cannot make it answer."""

import copy
import itertools
import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from harness import (
    P_VALUE,
    SIMULATED,
    Node,
    Scene,
    byte_p_value,
    decoded,
    digest,
    key_file,
    make_run,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flower_kmeans.client import ClientPolicy
from flower_kmeans.domain import Box
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.messages import (
    Enrol,
    Lead,
    LeadReply,
    OpenReply,
    Refusal,
    Round,
    RoundReply,
    to_content,
)
from flower_kmeans.federation.transcript import Entry, pack_words, unpack_words
from flower_kmeans.privacy import randomness
from flower_kmeans.secagg import masks
from flower_kmeans.secagg.ring import from_ring

MASKED = ("oblivious-server", "distributed-noise")


def code_of(answer):
    return answer.code if isinstance(answer, Refusal) else Code.OK


def file_policy(tmp_path, **changes):
    return replace(SIMULATED, group_key_file=key_file(tmp_path), **changes)


def file_scene(tmp_path, trust="oblivious-server", m=4, **options):
    return Scene(make_run(trust, keys="file", **options), m, policy=file_policy(tmp_path))


def unmasked(scene, i, reply):
    """Return what a masked reply holds, with the key taken from the member's memory."""
    key = masks.mask_key(scene.nodes[i].life(scene.run).group_key, reply.ctx)
    words = unpack_words(reply.words)
    return from_ring(words - masks.mask(key, i, len(scene.nodes), len(words)))


# --------------------------------------------------------------------------- honest runs


@pytest.mark.parametrize("keys", ["relayed", "file"])
def test_words_are_the_statistic_the_checksum_word_and_a_mask(keys, tmp_path):
    scene = Scene(
        make_run(keys=keys), policy=file_policy(tmp_path) if keys == "file" else SIMULATED
    )
    scene.open()
    for i in range(4):
        reply = scene.answer(i)
        vector = unmasked(scene, i, reply)
        np.testing.assert_array_equal(vector[:-1], scene.plain(i))
        assert vector[-1] == 1
        assert not np.array_equal(from_ring(unpack_words(reply.words)), vector)


@pytest.mark.parametrize("trust", ["trusted-server", "plain"])
def test_words_travel_bare_where_the_server_is_trusted(trust):
    scene = Scene(make_run(trust))
    scene.open()
    np.testing.assert_array_equal(
        from_ring(unpack_words(scene.answer(2).words)), np.append(scene.plain(2), 1)
    )


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
def test_all_members_learn_the_same_result_once(trust):
    scene = Scene(make_run(trust))
    for _ in range(3):
        scene.round()
    assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    first = scene.nodes[0].results[0]
    for node in scene.nodes:
        (result,) = node.results
        np.testing.assert_array_equal(result.centroids, first.centroids)
        np.testing.assert_array_equal(result.counts, first.counts)
        assert result.run == scene.run.document.run


def test_records_are_loaded_once_per_message():
    scene = Scene()
    assert [node.loads for node in scene.nodes] == [1] * 4
    scene.round()
    assert [node.loads for node in scene.nodes] == [2] * 4


def test_records_are_loaded_once_per_message_after_a_restart(tmp_path):
    scene = file_scene(tmp_path)
    scene.open()
    scene.nodes[1].restart()
    scene.nodes[1].loads = 0
    scene.ask(1, doc=scene.run.document.data)
    assert scene.nodes[1].loads == 1


def test_delivery_loads_no_records():
    scene = Scene()
    for _ in range(3):
        scene.round()
    loads = [node.loads for node in scene.nodes]
    scene.finish()
    assert [node.loads for node in scene.nodes] == loads


def test_a_member_that_missed_rounds_catches_up_from_the_transcript():
    scene = Scene(make_run(rounds=4), m=5)
    for _ in range(3):
        scene.round([0, 1, 2, 4])
    assert 3 in np.flatnonzero(scene.round().survivors)
    scene.finish()
    np.testing.assert_array_equal(
        scene.nodes[3].results[0].centroids, scene.nodes[0].results[0].centroids
    )


def test_a_member_that_lacks_entries_says_so_and_is_sent_everything():
    scene = Scene()
    scene.round()
    scene.open()
    assert code_of(scene.ask(1, entries=())) == Code.NEED
    assert code_of(scene.ask(1)) == Code.OK


# --------------------------------------------------------------------------- ends of a run


def test_finish_twice_is_answered_and_delivers_once():
    scene = Scene()
    for _ in range(3):
        scene.round()
    scene.finish()
    assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    assert [len(node.results) for node in scene.nodes] == [1] * 4


def test_finish_erases_every_secret():
    scene = Scene(make_run("distributed-noise"))
    for _ in range(3):
        scene.round()
    secrets = []
    for node in scene.nodes:
        life = node.life(scene.run)
        secrets += [life.secret, life.group_key, life.exchange_secret, life.lead_secret]
        secrets += [array.astype("<i8").tobytes() for array in life.state.arrays.values()]
    secrets = [secret for secret in secrets if secret]
    assert len(secrets) >= 4 * 4
    scene.finish()
    for node in scene.nodes:
        life = node.life(scene.run)
        assert life.finished == 1
        kept = repr(node.state).encode() + b"".join(
            value
            if isinstance(value, bytes)
            else b"".join(value)
            if isinstance(value, list)
            else b""
            for record in node.state.config_records.values()
            for value in record.values()
        )
        assert not any(secret in kept for secret in secrets)


def test_nothing_but_finish_is_answered_after_the_end():
    scene = Scene()
    for _ in range(2):
        scene.round()
    scene.open()
    old = {i: scene.request(i) for i in range(4)}
    for i in range(4):
        scene.answer(i)
    scene.server.close_round()
    scene.finish()
    for i, node in enumerate(scene.nodes):
        document = scene.run.document
        enrol = Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False)
        for request in (old[i], enrol):
            assert code_of(node.ask(request)) == Code.STALE


def test_an_early_finish_delivers_nothing():
    scene = Scene()
    scene.round()
    place = scene.server.finish_requests()
    for node in scene.nodes:
        node.ask(place[node.node_id])
        assert not node.results
        assert not node.life(scene.run).finished
    scene.round()  # and the run goes on


# --------------------------------------------------------------------------- lives


def test_a_repeated_request_gets_identical_bytes():
    for trust in MASKED:
        scene = Scene(make_run(trust))
        scene.open()
        contents = to_content(scene.request(1))
        first = scene.nodes[1].handle(contents)["kmeans"]
        assert dict(scene.nodes[1].handle(contents)["kmeans"]) == dict(first)


def test_restart_with_relayed_keys_is_out_of_the_run_and_the_run_goes_on():
    scene = Scene(m=5)
    scene.round()
    scene.nodes[2].restart()
    assert scene.round([0, 1, 3, 4]).n_survivors == 4
    scene.open()
    assert code_of(scene.answer(2)) in (Code.NEED, Code.KEY)
    scene.open(2)
    assert code_of(scene.answer(2)) == Code.KEY
    for i in (0, 1, 3, 4):
        scene.answer(i)
    assert scene.server.close_round()
    answers = scene.finish()
    assert [code_of(answer) for answer in answers] == [0, 0, Code.KEY, 0, 0]
    assert not scene.nodes[2].results


@pytest.mark.parametrize("trust", MASKED)
def test_restart_with_a_key_file_costs_one_round(trust, tmp_path):
    scene = file_scene(tmp_path, trust, rounds=4)
    scene.round()
    former = scene.nodes[2].life(scene.run)
    scene.nodes[2].restart()
    scene.open()
    codes = []
    for i in range(4):
        codes.append(code_of(scene.answer(i)))
    assert codes[2] in (Code.NEED, Code.RENEW)
    assert scene.server.close_round()
    if codes[2] == Code.NEED:  # it had nothing at all, not even the document
        scene.open()
        assert code_of(scene.answer(2)) == Code.RENEW
        for i in (0, 1, 3):
            scene.answer(i)
        assert scene.server.close_round()
    renewed = scene.nodes[2].life(scene.run)
    assert renewed.commitment != former.commitment
    assert renewed.secret != former.secret
    entry = scene.round()
    assert entry.survivors[2]
    if scene.server.head < 4:
        scene.round()
    scene.finish()
    results = [node.results[0] for node in scene.nodes]
    for result in results[1:]:
        np.testing.assert_array_equal(result.centroids, results[0].centroids)


def test_changed_records_mean_a_new_life_and_no_data(tmp_path):
    for restart in (False, True):
        scene = file_scene(tmp_path)
        scene.open()
        before = scene.answer(1)
        scene.nodes[1].records = scene.nodes[1].records + 0.125
        if restart:
            scene.nodes[1].restart()
        answer = scene.ask(1, doc=scene.run.document.data)
        assert code_of(answer) == Code.RENEW
        scene.server.refuse(scene.nodes[1].node_id, answer, 1)
        scene.open()
        after = scene.answer(1)
        assert isinstance(after, RoundReply)
        assert after.ctx != before.ctx
        # The renewed answer is the changed records' statistic, under another mask.
        np.testing.assert_array_equal(unmasked(scene, 1, after)[:-1], scene.plain(1))


def test_changed_records_with_relayed_keys_are_out():
    scene = Scene()
    scene.open()
    scene.answer(1)
    scene.nodes[1].records = scene.nodes[1].records[:-1]
    assert code_of(scene.ask(1)) == Code.KEY


def test_the_order_of_records_counts_as_a_change(tmp_path):
    scene = file_scene(tmp_path)
    scene.open()
    scene.answer(1)
    scene.nodes[1].records = scene.nodes[1].records[::-1]
    assert code_of(scene.ask(1)) == Code.RENEW


def test_reask_after_a_change_never_shows_a_difference_of_vectors(tmp_path):
    differences = []
    for number in range(120):
        scene = file_scene(tmp_path, m=3, number=number)
        scene.open()
        first = unpack_words(scene.answer(1).words)
        scene.nodes[1].records = scene.nodes[1].records + 1
        scene.nodes[1].restart()
        scene.server.refuse(scene.nodes[1].node_id, scene.ask(1, doc=scene.run.document.data), 1)
        scene.open()
        differences.append((first - unpack_words(scene.answer(1).words)).tobytes())
    assert byte_p_value(b"".join(differences)) > P_VALUE


def test_a_life_returns_when_its_records_do():
    """Records that change and change back are the same life: the same bytes."""
    scene = Scene()
    scene.open()
    first = scene.answer(1)
    records = scene.nodes[1].records
    scene.nodes[1].records = records * 0.5
    assert code_of(scene.ask(1)) == Code.KEY
    scene.nodes[1].records = records
    assert scene.ask(1) == first


def test_records_that_differ_at_every_call_never_take_part(tmp_path):
    scene = file_scene(tmp_path)
    rng = np.random.default_rng()
    scene.nodes[1].records = lambda: rng.random((5, 2))
    for attempt in (1, 2, 1, 2):
        scene.open(attempt)
        answer = scene.answer(1)
        assert code_of(answer) == Code.RENEW


def test_attempts_do_not_share_masks_or_noise():
    scene = Scene(make_run("distributed-noise"))
    scene.open(1)
    first = scene.answer(1)
    scene.open(2)
    second = scene.answer(1)
    assert first.ctx != second.ctx
    noises = [unmasked(scene, 1, reply)[:-1] - scene.plain(1) for reply in (first, second)]
    assert not np.array_equal(*noises)
    assert np.abs(noises[0]).max() > 0


def test_two_lives_from_one_saved_memory_send_identical_bytes():
    """Two processes started from one saved state, as a node without ledger can."""
    scene = Scene()
    scene.open()
    node = scene.nodes[1]
    saved = copy.deepcopy(node.state)
    first = scene.ask(1)
    node.state = copy.deepcopy(saved)
    assert scene.ask(1) == first
    node.state, node.records = copy.deepcopy(saved), node.records + 1
    assert code_of(scene.ask(1)) == Code.KEY


def test_runs_share_a_memory_without_meeting():
    first = Scene(make_run(number=1))
    second = Scene(make_run(number=2), nodes=first.nodes)
    first.round()
    second.round()
    first.round()
    assert len(first.nodes[0].state) == 2
    for scene in (second, second, first):
        scene.round()
    first.finish()
    second.finish()
    assert [len(node.results) for node in first.nodes] == [2] * 4


# --------------------------------------------------------------------------- one answer per place


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "plain"])
def test_another_context_for_the_same_attempt_is_a_conflict(trust, tmp_path):
    # Under plain trust the words would be the same: only the context tells.
    scene = Scene(make_run(trust)) if trust == "plain" else file_scene(tmp_path, trust)
    scene.open()
    scene.answer(1)
    # Another member renews: the root changes, and the server asks again in the same attempt.
    scene.nodes[3].restart()
    scene.server.refuse(scene.nodes[3].node_id, scene.ask(3, doc=scene.run.document.data), 1)
    scene.open(1)
    assert code_of(scene.answer(1)) == Code.CONFLICT
    scene.open(2)
    assert code_of(scene.answer(1)) == Code.OK


def test_an_attempt_below_an_answered_one_is_stale():
    scene = Scene()
    scene.open(2)
    scene.answer(1)
    scene.open(1)
    assert code_of(scene.ask(1)) == Code.STALE


def test_attempts_beyond_the_document_are_refused():
    scene = Scene(make_run(max_attempts=2))
    scene.open()
    assert code_of(scene.ask(1, attempt=3)) == Code.POLICY


def test_two_places_in_one_life_are_a_conflict():
    scene = Scene()
    scene.open()
    scene.answer(1)
    server, node = scene.server, scene.nodes[1]
    server.seats.append(replace(server.seats[1]))
    server._tree.append(server.seats[4].leaf(4))
    place = server._place(4, 1, server._tree)
    assert code_of(node.ask(Round(**place, attempt=2))) == Code.CONFLICT


def test_a_question_where_none_is_asked_is_malformed():
    scene = Scene()
    scene.open()
    assert code_of(scene.ask(1, question=b"other")) == Code.BAD_MESSAGE


def test_old_rounds_are_stale_and_later_ones_lack_something():
    scene = Scene()
    scene.open()
    old = scene.request(1)
    for i in range(4):
        scene.answer(i)
    scene.server.close_round()
    scene.round()
    assert code_of(scene.nodes[1].ask(old)) == Code.STALE
    scene.open()
    assert code_of(scene.ask(1, t=5)) == Code.NEED
    assert code_of(scene.ask(1)) == Code.OK


def test_rounds_beyond_the_last_are_refused():
    scene = Scene(make_run(rounds=1))
    entry = scene.round()
    request = replace(scene.request(1), t=2, entries=(entry.pack(),))
    assert code_of(scene.nodes[1].ask(request)) == Code.POLICY


def test_a_queued_message_reaches_a_restarted_node(tmp_path):
    scene = file_scene(tmp_path)
    scene.open()
    queued = scene.request(1)
    for i in range(4):
        scene.answer(i)
    scene.server.close_round()
    scene.nodes[1].restart()
    answer = scene.nodes[1].ask(replace(queued, doc=scene.run.document.data))
    assert code_of(answer) == Code.RENEW


def test_the_same_document_a_second_time_has_new_masks(tmp_path):
    policy = file_policy(tmp_path)
    first = Scene(make_run(keys="file"), 3, policy=policy)
    first.open()
    before = first.answer(1)
    for node in first.nodes:
        node.restart()
    first.nodes[1].records = first.nodes[1].records + 1
    second = Scene(make_run(keys="file"), policy=policy, nodes=first.nodes)
    second.open()
    assert second.answer(1).ctx != before.ctx


# --------------------------------------------------------------------------- places and keys


def test_a_foreign_place_means_renew_and_no_data():
    scene = Scene()
    scene.open()
    other = scene.request(2)
    for changes in (
        {"index": other.index, "path": other.path},
        {"root": bytes(32)},
        {"path": bytes(len(other.path))},
    ):
        assert code_of(scene.ask(1, **changes)) == Code.RENEW
    assert code_of(scene.ask(1)) == Code.OK


def test_cohorts_below_min_clients_are_refused(tmp_path):
    policy = file_policy(tmp_path, min_clients=3)
    node = Node(7, np.ones((3, 2)), policy)
    run = make_run(keys="file", min_clients=3)
    document = run.document
    reply = node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))
    from flower_kmeans.federation.cohort import Tree, leaf

    for m in (1, 2, 3):
        leaves = [leaf(0, 7, reply.commitment)] + [leaf(i, i, bytes(32)) for i in range(1, m)]
        tree = Tree(leaves)
        request = Round(
            doc_hash=document.doc_hash,
            t=1,
            m=m,
            index=0,
            root=tree.root,
            path=tree.path(0),
            attempt=1,
        )
        assert code_of(node.ask(request)) == (Code.OK if m == 3 else Code.POLICY)


def test_sybils_without_the_key_cannot_make_a_sum_that_opens(tmp_path):
    from flower_kmeans.federation.cohort import Tree, leaf

    views = []
    for number in range(150):
        node = Node(7, np.full((5, 2), 0.25), file_policy(tmp_path))
        run = make_run(keys="file", number=number)
        document = run.document
        reply = node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))
        tree = Tree([leaf(0, 7, reply.commitment)] + [leaf(i, i, bytes(32)) for i in range(1, 9)])
        place = {
            "doc_hash": document.doc_hash,
            "m": 9,
            "index": 0,
            "root": tree.root,
            "path": tree.path(0),
        }
        answer = node.ask(Round(**place, t=1, attempt=1))
        views.append(answer.words)
        if number:
            continue
        words = unpack_words(answer.words)
        for others in range(4):
            survivors = np.arange(9) <= others
            entry = Entry(1, 1, 9, tree.root, digest(b""), survivors, words)
            code = code_of(node.ask(Round(**place, t=2, attempt=1, entries=(entry.pack(),))))
            assert code == (Code.POLICY if others == 0 else Code.GARBAGE)
    assert byte_p_value(b"".join(views)) > P_VALUE


@pytest.mark.parametrize("part", ["leader", "envelope", "other member's", "another run's"])
def test_keys_that_were_not_sealed_for_this_member_are_refused(part):
    scene = Scene()
    scene.open()
    other = Scene(make_run(number=9), nodes=scene.nodes)
    other.open()
    request = scene.request(1)
    changed = {
        "leader": {"leader": bytes(range(64))},
        "envelope": {"envelope": bytes(48)},
        "other member's": {"envelope": scene.request(2).envelope},
        "another run's": {
            "envelope": other.request(1).envelope,
            "leader": other.request(1).leader,
        },
    }[part]
    assert code_of(scene.nodes[1].ask(replace(request, **changed))) == Code.KEY
    assert code_of(scene.ask(1)) == Code.OK  # and nothing of it stays


def test_a_key_is_taken_once_and_never_replaced():
    scene = Scene()
    scene.round()
    key = scene.nodes[1].life(scene.run).group_key
    server = scene.server
    from flower_kmeans.secagg.keys import make_envelopes

    leader, envelopes = make_envelopes(
        b"e" * 32, [seat.public_key for seat in server.seats], scene.doc_hash, b"f" * 32
    )
    scene.open()
    envelope = envelopes[server.seats[1].public_key]
    assert code_of(scene.ask(1, leader=leader, envelope=envelope)) == Code.OK
    assert scene.nodes[1].life(scene.run).group_key == key


def test_a_leader_refuses_lists_that_are_not_a_cohort():
    scene = Scene(make_run(min_clients=3))
    keys = tuple(seat.public_key for seat in scene.server.seats)
    for pubs in (keys[:2], keys[1:], keys + keys[:1], (keys[0],) * 4):
        answer = scene.nodes[0].ask(Lead(doc_hash=scene.doc_hash, pubs=pubs))
        assert code_of(answer) == Code.POLICY
    assert isinstance(scene.nodes[0].ask(Lead(doc_hash=scene.doc_hash, pubs=keys)), LeadReply)


def test_a_leader_refuses_where_keys_come_from_a_file(tmp_path):
    scene = file_scene(tmp_path)
    pubs = tuple(bytes([i]) * 32 for i in range(4))
    assert code_of(scene.nodes[0].ask(Lead(doc_hash=scene.doc_hash, pubs=pubs))) == Code.POLICY


def test_two_leaders_give_garbage_and_no_sum():
    from flower_kmeans.secagg.keys import make_envelopes

    scene = Scene()
    leader, envelopes = make_envelopes(
        b"e" * 32, [seat.public_key for seat in scene.server.seats], scene.doc_hash, b"f" * 32
    )
    scene.open()
    for i, node in enumerate(scene.nodes):
        key = scene.server.seats[i].public_key
        changes = {"leader": leader, "envelope": envelopes[key]} if i == 1 else {}
        scene.server.accept_round(node.node_id, scene.ask(i, **changes))
    scene.server.close_round()
    scene.open()
    assert code_of(scene.ask(0)) == Code.GARBAGE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o700 | 0o010])
def test_a_key_file_that_others_can_read_is_no_key(mode, tmp_path):
    policy = replace(SIMULATED, group_key_file=key_file(tmp_path, mode=mode))
    document = make_run(keys="file").document
    node = Node(1, np.ones((2, 2)), policy)
    answer = node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))
    assert code_of(answer) == Code.KEY


# --------------------------------------------------------------------------- announced sums


def _lies(entry, words):
    """Yield entries that announce other survivors than those whose words were added."""
    m = entry.m
    for size in range(2, m + 1):
        for members in itertools.combinations(range(m), size):
            survivors = np.isin(np.arange(m), members)
            for total, truth in words:
                if not np.array_equal(survivors, truth):
                    yield replace(entry, survivors=survivors, words=total)


def test_lying_about_the_survivors_is_garbage():
    scene = Scene(m=4)
    entry = scene.round()
    everyone = (entry.words, entry.survivors)
    alone = (scene.words(2), np.arange(4) == 2)
    scene.open()
    lies = list(_lies(entry, [everyone, alone]))
    assert len(lies) > 15
    for lie in lies:
        assert code_of(scene.ask(1, entries=(lie.pack(),))) == Code.GARBAGE
    single = replace(entry, survivors=alone[1], words=alone[0])
    assert code_of(scene.ask(1, entries=(single.pack(),))) == Code.POLICY
    assert code_of(scene.ask(1)) == Code.OK  # a refused entry leaves no trace


def test_survivors_below_the_policy_are_refused(tmp_path):
    scene = Scene(make_run(min_clients=3), policy=replace(SIMULATED, min_clients=3))
    entry = scene.round()
    two = np.arange(4) < 2
    lie = replace(entry, survivors=two, words=scene.words(0) + scene.words(1))
    scene.open()
    assert code_of(scene.ask(3, entries=(lie.pack(),))) == Code.POLICY


def test_spliced_words_open_to_nothing_but_noise():
    """The checksum word of an honest sum with one client's other words tells nothing of it."""
    views = []
    for number in range(100):
        scene = Scene(make_run(number=number), m=3)
        entry = scene.round()
        spliced = scene.words(2).copy()
        spliced[-1] = entry.words[-1]
        scene.open()
        lie = replace(entry, words=spliced)
        assert code_of(scene.ask(1, entries=(lie.pack(),))) == Code.OK
        counts = scene.nodes[1].life(scene.run).state.arrays["counts"]
        views.append(counts.astype("<i8").tobytes())
    assert byte_p_value(b"".join(views)) > P_VALUE


@pytest.mark.parametrize("offset", [0, 1, 2**40, 2**63, 2**64 - 1])
def test_no_refusal_depends_on_other_words_than_the_checksum(offset):
    scene = Scene()
    entry = scene.round()
    words = entry.words.copy()
    words[:-1] += np.uint64(offset)
    scene.open()
    assert code_of(scene.ask(1, entries=(replace(entry, words=words).pack(),))) == Code.OK


def test_equivocation_forks_the_masks():
    scene = Scene(m=4)
    entry = scene.round()
    three = replace(
        entry,
        survivors=np.arange(4) < 3,
        words=scene.words(0) + scene.words(1) + scene.words(2),
    )
    scene.open()
    replies = [scene.ask(i, **({"entries": (three.pack(),)} if i < 2 else {})) for i in range(4)]
    contexts = [reply.ctx for reply in replies]
    assert contexts[0] == contexts[1] != contexts[2] == contexts[3]
    total = np.sum([unpack_words(reply.words) for reply in replies], axis=0, dtype=np.uint64)
    key = scene.nodes[0].life(scene.run).group_key
    for context in set(contexts):
        removed = masks.correction(masks.mask_key(key, context), np.ones(4, dtype=bool), len(total))
        assert int((total - removed)[-1]) != 4


def test_a_second_broadcast_is_ignored():
    scene = Scene(m=4)
    entry = scene.round()
    scene.open()
    first = scene.ask(0)
    state = scene.nodes[0].life(scene.run).state
    second = replace(
        entry,
        survivors=np.arange(4) < 3,
        words=scene.words(0) if 0 in scene.replies else entry.words,
    )
    assert scene.ask(0, entries=(second.pack(),)) == first
    assert scene.ask(0, entries=(entry.pack(), second.pack())) == first
    after = scene.nodes[0].life(scene.run).state
    np.testing.assert_array_equal(after.arrays["counts"], state.arrays["counts"])


def test_entries_of_another_run_are_garbage():
    first = Scene(make_run(number=1))
    second = Scene(make_run(number=2), nodes=first.nodes)
    foreign = first.round()
    second.round()
    second.open()
    assert code_of(second.ask(1, entries=(foreign.pack(),))) == Code.GARBAGE


def test_entries_out_of_order_lack_something():
    scene = Scene()
    first, second = scene.round(), scene.round()
    scene.open()
    node = scene.nodes[1]
    assert node.life(scene.run).head == 1
    assert code_of(scene.ask(1, entries=(first.pack(),))) == Code.NEED
    skipping = replace(second, t=3)
    assert code_of(scene.ask(1, entries=(skipping.pack(),))) == Code.NEED
    assert code_of(scene.ask(1)) == Code.OK


@pytest.mark.parametrize("change", ["words", "attempt", "truncated", "bitmap"])
def test_malformed_entries_are_refused(change):
    scene = Scene(make_run(max_attempts=2))
    entry = scene.round()
    data = {
        "words": replace(entry, words=entry.words[1:]).pack(),
        "attempt": replace(entry, attempt=3).pack(),
        "truncated": entry.pack()[:-1],
        "bitmap": replace(entry, survivors=np.ones(8, dtype=bool)).pack(),
    }[change]
    scene.open()
    assert code_of(scene.ask(1, entries=(data,))) == Code.BAD_MESSAGE
    assert code_of(scene.ask(1)) == Code.OK


# --------------------------------------------------------------------------- policy and documents


def enrol(node, run):
    document = run.document
    return node.ask(Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False))


@pytest.mark.parametrize(
    ("policy", "run"),
    [
        ({"trusts": ("oblivious-server",)}, {"trust": "trusted-server"}),
        ({"trusts": ("oblivious-server",)}, {"trust": "plain"}),
        ({"max_epsilon": 0.5}, {}),
        ({"max_delta": 1e-9}, {}),
        ({"min_clients": 3}, {}),
        ({"max_rounds": 2}, {}),
        ({"algorithms": ("lloyd", "glloyd")}, {}),
        ({"domain": Box([0, 0], [1, 2])}, {}),
        ({}, {"keys": "file"}),
        ({"group_key_file": "somewhere"}, {}),
    ],
)
def test_runs_outside_of_the_policy_are_refused_before_records_are_read(policy, run):
    node = Node(3, np.ones((4, 2)), replace(SIMULATED, **policy))
    assert code_of(enrol(node, make_run(**run))) == Code.POLICY
    assert node.loads == 0
    assert not len(node.state)


def test_private_runs_without_a_ledger_are_refused_by_default():
    node = Node(3, np.ones((4, 2)), ClientPolicy())
    assert code_of(enrol(node, make_run(min_clients=3))) == Code.LEDGER
    assert node.loads == 0
    assert code_of(enrol(node, make_run("plain", min_clients=3))) == Code.POLICY


def _with_releases(run, factor):
    privacy = copy.deepcopy(dict(run.document.privacy))
    from flower_kmeans.canonical import real_from_text, real_to_text

    for releases in privacy["rounds"]:
        for release in releases:
            value = real_from_text(release["noise_multiplier"])
            release["noise_multiplier"] = real_to_text(value * factor)
    return replace(run, document=replace(run.document, privacy=privacy))


def test_a_release_goes_by_the_name_that_its_algorithm_gives_it():
    run = make_run()
    privacy = copy.deepcopy(dict(run.document.privacy))
    privacy["rounds"][0][0]["name"] = "harmless"
    document = replace(run.document, privacy=privacy)
    assert code_of(enrol(Node(3, np.ones((4, 2)), SIMULATED), run)) == Code.OK
    node = Node(3, np.ones((4, 2)), SIMULATED)
    assert code_of(enrol(node, replace(run, document=document))) == Code.POLICY


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 2},
        {"words": 8},
        {"trust": "plain", "keys": "none", "sampler": "none"},
        {"algorithm": {"name": "unknown"}},
        {"domain": {}},
        {"privacy": {}},
        {"sampler": "none"},
        {"sampler": "discrete-gaussian/0"},
    ],
)
def test_documents_that_contradict_themselves_are_refused(changes):
    run = make_run()
    document = replace(run.document, **changes)
    node = Node(3, np.ones((4, 2)), SIMULATED)
    assert code_of(enrol(node, replace(run, document=document))) == Code.POLICY
    assert node.loads == 0


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        ("plain", {"trust": "oblivious-server", "keys": "relayed"}),
        ("plain", {"trust": "trusted-server"}),
        ("trusted-server", {"trust": "plain"}),
    ],
)
def test_a_trust_that_does_not_fit_the_plan_is_refused(run, changes):
    """No noise under a trust that promises it, or a plan that nobody would carry out."""
    run = make_run(run)
    document = replace(run.document, **changes)
    node = Node(3, np.ones((4, 2)), SIMULATED)
    assert code_of(enrol(node, run)) == Code.OK
    assert code_of(enrol(node, replace(run, document=document))) == Code.POLICY


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-6, 2.0])
def test_a_plan_with_other_noise_than_the_client_computes_is_refused(factor):
    node = Node(3, np.ones((4, 2)), SIMULATED)
    assert code_of(enrol(node, _with_releases(make_run(), factor))) == Code.POLICY
    assert code_of(enrol(node, _with_releases(make_run(), 1.0))) == Code.OK


def test_shares_that_could_not_be_drawn_are_refused():
    run = make_run("distributed-noise", min_clients=10**6, epsilon=1e5)
    node = Node(3, np.ones((4, 2)), SIMULATED)
    assert code_of(enrol(node, run)) == Code.POLICY


def test_a_document_under_another_hash_is_malformed():
    run, node = make_run(), Node(3, np.ones((4, 2)), SIMULATED)
    request = Enrol(doc_hash=bytes(32), doc=run.document.data, lead=False)
    assert code_of(node.ask(request)) == Code.BAD_MESSAGE
    for data in (run.document.data + b" ", b"{}", b"\xff"):
        request = Enrol(doc_hash=digest(data), doc=data, lead=False)
        assert code_of(node.ask(request)) == Code.BAD_MESSAGE


def test_other_versions_are_named():
    node, run = Node(3, np.ones((4, 2)), SIMULATED), make_run()
    content = to_content(Enrol(doc_hash=run.document.doc_hash, doc=run.document.data, lead=False))
    content["kmeans"]["v"] = 2
    assert code_of(decoded(node.handle(content))) == Code.VERSION
    data = run.document.data.replace(b"flower-kmeans/1", b"flower-kmeans/0")
    assert code_of(node.ask(Enrol(doc_hash=digest(data), doc=data, lead=False))) == Code.VERSION


# --------------------------------------------------------------------------- records inside a run


def test_rows_that_are_not_finite_count_as_none(caplog):
    good = np.random.default_rng(0).random((8, 2))
    bad = np.insert(good, [0, 3, 8], [[np.nan, 0.5], [np.inf, 0.1], [0.2, -np.inf]], axis=0)
    with caplog.at_level(logging.WARNING, "flower_kmeans.client"):
        scene = Scene(nodes=[Node(1, good, SIMULATED), Node(2, bad, SIMULATED)])
    assert "3 records" in caplog.text
    scene.open()
    vectors = [unmasked(scene, i, scene.answer(i)) for i in range(2)]
    np.testing.assert_array_equal(vectors[0], vectors[1])


@pytest.mark.parametrize(
    "records",
    [
        np.empty((0, 2)),
        [],
        np.array([]),
        np.empty((0, 2), dtype=object),
        np.full((3, 2), np.nan),
    ],
)
@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "plain"])
def test_a_client_without_records_answers_zeros_as_usual(records, trust):
    full = Node(1, np.random.default_rng(0).random((8, 2)), SIMULATED)
    scene = Scene(make_run(trust), nodes=[full, Node(2, records, SIMULATED)])
    scene.open()
    replies = [scene.answer(i) for i in range(2)]
    assert [len(reply.words) for reply in replies] == [8 * scene.run.document.words_of(1)] * 2
    if trust == "plain":
        assert not from_ring(unpack_words(replies[1].words))[:-1].any()
        return
    vector = unmasked(scene, 1, replies[1])
    assert vector[-1] == 1
    if trust == "oblivious-server":
        assert not vector[:-1].any()
        assert np.count_nonzero(unpack_words(replies[1].words)) == len(vector)
    else:
        assert vector[:-1].any()  # its share of the noise


@pytest.mark.parametrize(
    "bad",
    [
        ["x", 0.5],
        [None, 0.5],
        [0.5],
        [0.5, 0.5, 0.5],
        [10**400, 0.5],
        [1 + 2j, 0.5],
        [[0.5], [0.5]],
        None,
        7,
        "text",
    ],
)
def test_one_malformed_record_counts_as_none(bad):
    """Whether a client answers must not depend on one of its records."""
    good = [[0.25, 0.5], [0.75, 0.125]]
    scene = Scene(nodes=[Node(1, good, SIMULATED), Node(2, [good[0], bad, good[1]], SIMULATED)])
    scene.open()
    vectors = [unmasked(scene, i, scene.answer(i)) for i in range(2)]
    np.testing.assert_array_equal(vectors[0], vectors[1])


@pytest.mark.parametrize(
    "records",
    [np.ones((3, 4)), np.ones(2), np.ones((2, 2, 2)), None, "text", 5],
)
def test_a_table_that_is_none_is_refused_as_data(records):
    node = Node(1, records, SIMULATED)
    assert code_of(enrol(node, make_run())) == Code.DATA


def test_an_error_in_load_data_leaves_as_a_code_only(caplog):
    def load():
        raise ValueError("MARKER 0.123456789")

    scene = Scene()
    scene.open()
    scene.nodes[1].records = load
    content = scene.nodes[1].handle(to_content(scene.request(1)))
    assert code_of(decoded(content)) == Code.DATA
    assert "MARKER" not in repr(content)
    assert "MARKER" in caplog.text


@pytest.mark.parametrize("error", [SystemExit("MARKER"), MemoryError("MARKER"), RecursionError()])
def test_no_error_of_user_code_escapes(error):
    def load():
        raise error

    node = Node(1, load, SIMULATED)
    content = node.handle(
        to_content(
            Enrol(doc_hash=make_run().document.doc_hash, doc=make_run().document.data, lead=False)
        )
    )
    assert code_of(decoded(content)) == Code.DATA
    assert "MARKER" not in repr(content)


def test_an_internal_error_leaves_as_a_code_only(monkeypatch, caplog):
    scene = Scene()
    scene.open()

    def broken(n_bytes):
        raise OSError("MARKER")

    monkeypatch.setattr(
        "flower_kmeans.federation.member.GridRecords", lambda *a: broken(0), raising=True
    )
    answer = scene.ask(1)
    assert answer == Refusal(code=Code.INTERNAL)
    assert "MARKER" in caplog.text


# --------------------------------------------------------------------------- fuzz


_JUNK = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=100),
    st.lists(st.integers(0, 9), max_size=4),
    st.lists(st.binary(max_size=100), max_size=4),
    st.booleans(),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_whatever_arrives_gets_a_code_and_costs_nothing(data):
    scene = FUZZED
    scene.open()
    record = to_content(scene.request(1))["kmeans"]
    for name in data.draw(st.lists(st.sampled_from(sorted(record)), min_size=1, max_size=3)):
        value = data.draw(_JUNK)
        if value is None:
            record.pop(name, None)
        else:
            record[name] = value
    content = RecordDict({"kmeans": ConfigRecord(dict(record))})
    before = copy.deepcopy(scene.nodes[1].state)
    answer = decoded(scene.nodes[1].handle(content))
    if isinstance(answer, RoundReply):
        assert answer == scene.ask(1) or len(record) < 12
    scene.nodes[1].state = before
    assert isinstance(scene.ask(1), RoundReply)


FUZZED = Scene()


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"kmeans": MetricRecord({"a": 1})}),
        RecordDict({"other": ConfigRecord({"v": 1})}),
    ],
)
def test_other_contents_are_malformed(content):
    node = Node(1, np.ones((2, 2)), SIMULATED)
    assert code_of(decoded(node.handle(content))) == Code.BAD_MESSAGE


def test_noise_shares_repeat_for_a_life_and_differ_between_members():
    scene = Scene(make_run("distributed-noise"))
    scene.open()
    noises = [unmasked(scene, i, scene.answer(i))[:-1] - scene.plain(i) for i in range(4)]
    again = [unmasked(scene, i, scene.ask(i))[:-1] - scene.plain(i) for i in range(4)]
    np.testing.assert_array_equal(noises, again)
    assert len({noise.tobytes() for noise in noises}) == 4


def test_nothing_secret_depends_on_anything_but_the_systems_source(monkeypatch):
    """Two equal federations with the same public seed share no byte of masks or noise."""
    views = []
    for _ in range(2):
        scene = Scene(make_run("distributed-noise"))
        scene.round()
        views.append(pack_words(scene.server.closed[0].entry.words))
    assert views[0] != views[1]
    used = []
    source = randomness._os_random
    monkeypatch.setattr(randomness, "_os_random", lambda n: used.append(n) or source(n))
    Scene(make_run("distributed-noise"))
    assert used


@pytest.mark.parametrize(
    ("tightened", "code"),
    [
        ({"max_rounds": 2}, Code.POLICY),
        ({"max_epsilon": 0.5}, Code.POLICY),
        ({"max_delta": 1e-9}, Code.POLICY),
        ({"in_memory": False}, Code.LEDGER),
        ({"trusts": ("distributed-noise",)}, Code.POLICY),
        ({"min_clients": 5}, Code.POLICY),
        ({"algorithms": ("glloyd",)}, Code.POLICY),
        ({"domain": Box([0, 0], [1, 2])}, Code.POLICY),
        ({"columns": ("age", "income")}, Code.POLICY),
        ({"units": ("client",)}, Code.POLICY),
        ({"group_key_file": "/a/key"}, Code.POLICY),
    ],
)
def test_a_policy_that_was_tightened_during_a_run_counts(tightened, code):
    scene = Scene(make_run(rounds=3))
    scene.round()
    scene.nodes[1].policy = replace(SIMULATED, **tightened)
    scene.open()
    refused = scene.ask(1)
    assert isinstance(refused, Refusal)
    assert refused.code == code
    assert isinstance(scene.ask(0), RoundReply)
