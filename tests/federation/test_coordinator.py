"""The server's bookkeeping: who counts, who is asked what, and what is announced."""

from dataclasses import replace

import numpy as np
import pytest
from harness import SIMULATED, Node, Scene, key_file, make_run

from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.coordinator import STRAY, Coordinator
from flower_kmeans.federation.enrolment import MALFORMED, NO_ANSWER, TWICE
from flower_kmeans.federation.messages import EnrolReply, OpenReply, Refusal, RoundReply
from flower_kmeans.federation.transcript import Entry, unpack_words
from flower_kmeans.secagg.ring import from_ring


def reasons(coordinator, t=None):
    return [
        (entry.node_id, entry.reason) for entry in coordinator.incidents if t in (None, entry.round)
    ]


def enrolled(run, node_ids, key=b"p" * 32):
    coordinator = Coordinator(run)
    coordinator.enrol_requests(node_ids)
    for i, node_id in enumerate(node_ids):
        public_key = bytes([i]) + key[1:] if run.document.keys == "relayed" else b""
        coordinator.accept_enrol(
            node_id,
            EnrolReply(
                doc_hash=run.document.doc_hash, commitment=bytes([i]) * 32, public_key=public_key
            ),
        )
    return coordinator


def test_members_are_numbered_by_node_id():
    ids = [2**64 - 1, 7, 2**63, 19]
    coordinator = enrolled(make_run("plain"), ids)
    coordinator.close_enrolment()
    assert [seat.node_id for seat in coordinator.seats] == sorted(ids)
    requests = coordinator.round_requests(1)
    assert {node: request.index for node, request in requests.items()} == {
        node: i for i, node in enumerate(sorted(ids))
    }


def test_too_few_members_end_the_run_with_numbers_and_reasons():
    coordinator = enrolled(make_run("plain", min_clients=4), [1, 2])
    coordinator.refuse(3, Refusal(code=Code.POLICY), 0)
    with pytest.raises(TooFewClientsError, match=r"min_clients=4.*Got 2.*policy"):
        coordinator.close_enrolment()


def test_who_does_not_enrol_is_dropped_with_a_reason():
    run = make_run("plain")
    coordinator = Coordinator(run)
    coordinator.enrol_requests([1, 2, 3, 4])
    for node in (1, 2):
        coordinator.accept_enrol(
            node, EnrolReply(doc_hash=run.document.doc_hash, commitment=bytes(32))
        )
    coordinator.refuse(3, Refusal(code=Code.DATA), 0)
    coordinator.close_enrolment()
    dropped = {
        (entry.node_id, entry.client, entry.round): entry.reason for entry in coordinator.dropped
    }
    assert dropped == {(3, -1, 0): Code.DATA.sentence, (4, -1, 0): NO_ANSWER}


def test_a_second_enrolment_and_a_missing_key_do_not_count():
    run = make_run()
    coordinator = Coordinator(run)
    reply = EnrolReply(doc_hash=run.document.doc_hash, commitment=bytes(32), public_key=b"p" * 32)
    coordinator.accept_enrol(1, reply)
    coordinator.accept_enrol(1, replace(reply, commitment=b"x" * 32))
    coordinator.accept_enrol(2, replace(reply, public_key=b""))
    assert [seat.commitment for seat in coordinator.seats] == [bytes(32)]
    assert reasons(coordinator) == [(1, TWICE), (2, MALFORMED)]


@pytest.mark.parametrize(("trust", "keys"), [("plain", "none"), ("oblivious-server", "file")])
def test_a_public_key_where_none_is_used_is_malformed(trust, keys):
    run = make_run(trust, keys=keys)
    coordinator = Coordinator(run)
    reply = EnrolReply(doc_hash=run.document.doc_hash, commitment=bytes(32), public_key=b"p" * 32)
    reply = replace(reply, key_id=b"k" * 8) if keys == "file" else reply
    coordinator.accept_enrol(1, reply)
    coordinator.accept_enrol(2, replace(reply, public_key=b""))
    assert [seat.node_id for seat in coordinator.seats] == [2]
    assert reasons(coordinator) == [(1, MALFORMED)]


@pytest.mark.parametrize(
    ("ledgers", "all_keep"), [([True] * 3, True), ([True, False, True], False)]
)
@pytest.mark.parametrize("late", [None, True, False])
def test_ledgers_are_said_to_be_kept_if_every_member_says_so(ledgers, all_keep, late):
    run = make_run("plain")
    coordinator = Coordinator(run)
    assert not coordinator.all_keep_ledgers
    coordinator.enrol_requests([1, 2, 3])
    reply = EnrolReply(doc_hash=run.document.doc_hash, commitment=bytes(32))
    for node_id, ledger in enumerate(ledgers, 1):
        coordinator.accept_enrol(node_id, replace(reply, ledger=ledger))
    coordinator.close_enrolment()
    assert coordinator.all_keep_ledgers is all_keep
    if late is not None:
        coordinator.accept_join(4, replace(reply, ledger=late))
        coordinator.round_requests(1)
        assert coordinator.all_keep_ledgers is (all_keep and late)


def test_only_a_complete_set_of_envelopes_is_taken_and_never_two():
    from flower_kmeans.federation.messages import LeadReply

    coordinator = enrolled(make_run(), [1, 2, 3])
    coordinator.close_enrolment()
    keys = [seat.public_key for seat in coordinator.seats]

    def lead(mark, members):
        envelopes = tuple(key + mark * 48 for key in members)
        return LeadReply(doc_hash=bytes(32), leader=mark * 64, envelopes=envelopes)

    coordinator.accept_lead(1, lead(b"a", keys[:2]))
    assert coordinator.needs_leader
    coordinator.accept_lead(2, lead(b"b", keys))
    coordinator.accept_lead(3, lead(b"c", keys))
    assert not coordinator.needs_leader
    for request in coordinator.round_requests(1).values():
        assert request.leader == b"b" * 64
        assert request.envelope == b"b" * 48


def test_the_first_answer_counts():
    scene = Scene(make_run("plain"))
    scene.open()
    first = scene.answer(1)
    node = scene.nodes[1].node_id
    scene.server.accept_round(node, replace(first, words=bytes(len(first.words))))
    scene.server.accept_round(node, first)
    for i in (0, 2, 3):
        scene.answer(i)
    scene.server.close_round()
    entry = scene.server.closed[0].entry
    expected = np.sum([scene.plain(i) for i in range(4)], axis=0)
    np.testing.assert_array_equal(from_ring(entry.words)[:-1], expected)
    assert reasons(scene.server, 1) == [(node, TWICE)] * 2
    assert not scene.server.dropped


def test_answers_of_another_context_node_or_size_do_not_count():
    scene = Scene(make_run("plain"))
    scene.open()
    server, node = scene.server, scene.nodes[1].node_id
    good = scene.ask(1)
    server.accept_round(node, replace(good, ctx=bytes(32)))
    server.accept_round(12345, good)
    server.accept_round(node, replace(good, words=good.words[:-8]))
    server.accept_round(node, replace(good, words=good.words + bytes(8)))
    assert reasons(server) == [(node, STRAY), (12345, STRAY), (node, MALFORMED), (node, MALFORMED)]
    assert server.missing() == [item.node_id for item in scene.nodes]
    server.accept_round(node, good)  # the orderly answer still counts
    assert node not in server.missing()


def test_an_answer_of_a_former_attempt_does_not_count():
    scene = Scene(make_run("oblivious-server"))
    scene.open(1)
    old = scene.ask(1)
    scene.open(2)
    scene.server.accept_round(scene.nodes[1].node_id, old)
    assert reasons(scene.server) == [(scene.nodes[1].node_id, STRAY)]


def test_a_round_closes_with_enough_answers_only():
    scene = Scene(make_run(min_clients=3))
    scene.open()
    for i in (0, 2):
        scene.answer(i)
        assert not scene.server.has_enough
        assert not scene.server.close_round()
    error = scene.server.too_few()
    assert "min_clients=3 answers in round 1 of 3. Got 2 of 4" in str(error)
    scene.answer(3)
    assert scene.server.close_round()
    entry = scene.server.closed[0].entry
    np.testing.assert_array_equal(entry.survivors, [True, False, True, True])
    assert [(d.client, d.round, d.reason) for d in scene.server.dropped] == [(1, 1, NO_ANSWER)]
    assert not scene.server.close_round()  # a round is announced once


def test_a_failed_attempt_leaves_nothing_in_the_next():
    scene = Scene(make_run("plain", min_clients=3))
    scene.open(1)
    scene.answer(0)
    scene.open(2)
    for i in (1, 2, 3):
        scene.answer(i)
    scene.server.close_round()
    entry = scene.server.closed[0].entry
    assert entry.attempt == 2
    expected = np.sum([scene.plain(i) for i in (1, 2, 3)], axis=0)
    np.testing.assert_array_equal(from_ring(entry.words)[:-1], expected)


@pytest.mark.parametrize(
    "trust", ["oblivious-server", "distributed-noise", "trusted-server", "plain"]
)
def test_the_checksum_word_carries_no_noise(trust):
    scene = Scene(make_run(trust))
    entry = scene.round()
    if trust in ("trusted-server", "plain"):
        assert int(entry.words[-1]) == 4
    scene.open()
    assert all(isinstance(scene.ask(i), RoundReply) for i in range(4))


def test_noise_is_added_once_and_the_announced_bytes_are_repeated():
    scene = Scene()
    scene.round()
    first = scene.server.finish_requests()
    again = scene.server.finish_requests()
    entries = {request.entries for request in first.values()}
    assert entries == {request.entries for request in again.values()}
    assert len(entries) == 1
    assert Entry.unpack(next(iter(entries))[0]).t == 1


def test_members_are_sent_what_they_lack_and_no_more():
    scene = Scene(make_run(rounds=5), m=4)
    scene.round()
    scene.round([0, 1, 2])
    scene.round([0, 1, 2])
    requests = scene.server.round_requests(1)
    lengths = {node: len(request.entries) for node, request in requests.items()}
    nodes = [node.node_id for node in scene.nodes]
    assert [lengths[node] for node in nodes] == [1, 1, 1, 3]
    assert [requests[node].doc is None for node in nodes] == [True] * 4
    scene.server.refuse(nodes[1], Refusal(code=Code.NEED), 4)
    repeated = scene.server.repeat_requests([nodes[1], 999])
    assert set(repeated) == {nodes[1]}
    assert len(repeated[nodes[1]].entries) == 3
    assert repeated[nodes[1]].doc == scene.run.document.data
    assert repeated[nodes[1]].envelope is not None


def test_asking_again_in_an_attempt_keeps_what_came():
    scene = Scene()
    scene.open()
    scene.answer(0)
    scene.server.repeat_requests([scene.nodes[1].node_id])
    assert len(scene.server.missing()) == 3


def test_renewal_changes_the_root_from_the_next_attempt_on(tmp_path):
    policy = replace(SIMULATED, group_key_file=key_file(tmp_path))
    scene = Scene(make_run(keys="file"), policy=policy)
    scene.open()
    root = scene.requests[scene.nodes[0].node_id].root
    scene.answer(0)
    renewal = Refusal(code=Code.RENEW, doc_hash=scene.doc_hash, commitment=b"n" * 32)
    scene.server.refuse(scene.nodes[3].node_id, renewal, 1)
    for i in (1, 2):
        assert isinstance(scene.answer(i), RoundReply)
    scene.server.close_round()
    assert scene.server.closed[0].entry.root == root
    assert scene.server.round_requests(1)[scene.nodes[0].node_id].root != root


def test_garbage_from_anyone_ends_the_run():
    scene = Scene()
    with pytest.raises(RunError, match="could not open"):
        scene.server.refuse(scene.nodes[0].node_id, Refusal(code=Code.GARBAGE), 1)


def test_refusals_of_strangers_are_noted_only():
    scene = Scene()
    before = [replace(seat) for seat in scene.server.seats]
    renewal = Refusal(code=Code.RENEW, doc_hash=scene.doc_hash, commitment=b"n" * 32)
    scene.server.refuse(999, renewal, 1)
    assert scene.server.seats == before
    assert scene.server.incidents[-1].client == -1


def test_an_oblivious_server_opens_nothing():
    scene = Scene(make_run("oblivious-server"))
    scene.round()
    scene.round()
    assert scene.server.unopened == 0
    assert not scene.server.open_requests()
    assert not any(request.want_correction for request in scene.server.round_requests(1).values())
    assert not any(request.want_correction for request in scene.server.finish_requests().values())
    length = 8 * scene.run.document.words_of(1)
    reply = OpenReply(doc_hash=scene.doc_hash, share_t=2, share=bytes(32), correction=bytes(length))
    scene.server.accept_open(scene.nodes[0].node_id, reply)
    scene.server.try_open()
    assert scene.server.n_opened == 0
    assert scene.server.state.round == 0


def test_nothing_is_asked_before_the_enrolment_is_closed():
    coordinator = Coordinator(make_run())
    with pytest.raises(RunError, match="enrolment"):
        coordinator.round_requests(1)


def test_sums_are_exact_modulo_the_ring_for_any_survivors():
    scene = Scene(make_run("plain", rounds=3), m=6)
    for survivors in ([0, 5], [1, 2, 3], [4, 0, 2]):
        state = scene.server.state
        entry = scene.round(survivors)
        expected = np.sum([scene.plain(i, state) for i in survivors], axis=0)
        np.testing.assert_array_equal(from_ring(entry.words)[:-1], expected)
        assert int(entry.words[-1]) == len(survivors)


def test_what_a_member_sends_is_not_changed_by_adding_it():
    scene = Scene(make_run("plain"))
    scene.open()
    reply = scene.answer(0)
    words = unpack_words(reply.words).copy()
    scene.answer(1)
    np.testing.assert_array_equal(unpack_words(reply.words), words)


def test_members_that_never_answer_keep_the_document_coming():
    scene = Scene(nodes=[Node(i, np.ones((2, 2)), SIMULATED) for i in range(1, 5)])
    scene.round([0, 1, 2])
    requests = scene.server.round_requests(1)
    assert requests[4].doc == scene.run.document.data
    assert requests[4].envelope
    assert requests[1].doc is None


@pytest.mark.parametrize("late", [True, False])
def test_a_node_that_names_no_key_file_gets_no_seat(late, tmp_path):
    """Its place would be counted for the quorum, and nobody there could ever answer."""
    policy = replace(SIMULATED, group_key_file=key_file(tmp_path))
    nodes = [Node(2**63 + i, [[0.25, 0.5]] * 4, policy) for i in range(3)]
    scene = Scene(make_run("distributed-noise", keys="file"), nodes=nodes)
    server = scene.server if late else Coordinator(scene.run)
    stranger = EnrolReply(doc_hash=scene.doc_hash, commitment=bytes(32))
    before = server.n_places
    for number in range(4):
        (server.accept_join if late else server.accept_enrol)(number, stranger)
    if late:
        scene.open()
    assert server.n_places == before
    assert [entry.reason for entry in server.incidents] == [MALFORMED] * 4
