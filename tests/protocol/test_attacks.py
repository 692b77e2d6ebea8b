"""Attacks of docs/protocol.md, section 10, on clients, by the number of their row.

Each test sends a real client what an attacker would send, and raises `SucceededError` if the
attack succeeds. `test_without_its_check_the_attack_succeeds` takes away the one check, key or tag
that stands in the way and requires that error: so each test can fail, and each check is needed.
Attacks on what a server opens are in test_server_attacks.py.
"""

import inspect
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from documents import make_algorithm
from forged import BLIND, PROTECTED, SHARED, Scene
from malformed import second_encodings

from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.ledger import MAX_UNANSWERED
from flower_kmeans.protocol import checks, messages, transcript
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Code,
    Enrol,
    Enrolled,
    Finish,
    Finished,
    Keys,
    Peer,
    Refusal,
    Wrap,
    Wrapped,
    decode_reply,
)
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.protocol.session import ContextMemory
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
from flower_kmeans.protocol.wire import decode_arrays, encode, encode_arrays
from flower_kmeans.secagg import key_agreement, shares
from flower_kmeans.secagg.base import SumContext
from tests.support import ring

KEYS = ("roster", "relayed")


class SucceededError(Exception):
    """The attack got what it wanted."""


def defended(reply, *codes):
    """Require a refusal, with one of the codes."""
    if not isinstance(reply, Refusal):
        raise SucceededError(type(reply).__name__)
    assert Code(reply.code) in codes, Code(reply.code)


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a scene with its own directory."""
    made = []

    def make(*args, **options):
        directory = tmp_path / f"scene-{len(made)}"
        directory.mkdir()
        made.append(directory)
        return Scene(directory, *args, **options)

    return make


def fresh_key():
    secret = np.random.default_rng().bytes(32)
    return secret, key_agreement.public_key(secret)


# ------------------------------------------------------------------------------ 1 to 6: one sum


@pytest.mark.parametrize("trust", SHARED)
def test_01_sealed_shares_do_not_open_for_the_server(start, trust):
    """It has all public keys and the lasting keys of nobody; the seal's own members open it."""
    s = start(trust)
    answers = s.deal()
    context = s.context(1, 1, answers[0].tag)
    for i in answers:
        for j, sealed in enumerate(answers[i].sealed):
            assert key_agreement.unseal(s.pair_key(i, j, context, j), sealed, context)
            for other in (k for k in answers if k != j):
                with pytest.raises(MessageError):
                    key_agreement.unseal(s.pair_key(i, other, context, j), sealed, context)


def test_01_a_blind_server_cannot_open_the_sum_shares_that_it_passes_on(start):
    s = start("clients-only")
    s.round(1)
    entry, context = (
        s.entries[0],
        transcript.entry_context(s.doc_hash, transcript.first_hash(s.doc_hash), s.entries[0]),
    )
    for position, sealed in entry.shares:
        for key in (ZERO, s.doc_hash, s.tree().root):  # no group key that a server could make
            with pytest.raises(MessageError):
                key_agreement.unseal(
                    key_agreement.sum_share_key(key, context, position, entry.survivors),
                    sealed,
                    context,
                )
        right = key_agreement.sum_share_key(s.group_key(0), context, position, entry.survivors)
        assert key_agreement.unseal(right, sealed, context)


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_02_two_survivor_sets_of_one_context(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    assert isinstance(s.add(0, answers), Added)
    fewer = {i: answers[i] for i in list(answers)[:-1]}
    defended(s.add(0, fewer), Code.CONFLICT)
    assert isinstance(s.add(0, answers), Added)  # the same one may be repeated


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_03_sums_of_two_attempts_of_one_round(start, trust, keys):
    s = start(trust, keys)
    first, second = s.deal(), s.deal(attempt=2)
    assert isinstance(s.add(0, first), Added)
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


def test_03_also_where_a_ledger_keeps_the_vote(start):
    s = start("distributed-noise", ledger=True)
    first, second = s.deal(), s.deal(attempt=2)
    assert isinstance(s.add(0, first), Added)
    s.nodes[0].restart()
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


@pytest.mark.parametrize("trust", SHARED)
def test_04_other_shares_of_the_same_survivors(start, trust):
    s = start(trust)
    first = s.deal()
    assert isinstance(s.add(0, first), Added)
    s.nodes[1].restart()  # a dealer that lost its memory deals again
    s.renew(1, s.ask(1))
    if trust in BLIND:
        s.wrap_again(1, by=0)
    defended(s.add(0, s.deal(attempt=2), attempt=2), Code.CONFLICT)


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_06_the_shares_of_one_client(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    for who in ([0], [0, 1], [1, 2]):
        defended(s.add(0, {i: answers[i] for i in who}), Code.POLICY)
    defended(s.add(0, answers, survivors=s.bitmap([]), public_keys=b"", sealed=()), Code.POLICY)


# ------------------------------------------------------------------------------ 7 to 9: committees


@pytest.mark.parametrize("trust", PROTECTED)
def test_07_a_cohort_of_two(start, trust):
    s = start(trust, "relayed")
    s.frame(present=[0, 1])
    defended(s.ask(0), Code.POLICY)


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_07_a_committee_without_some_slots(start, trust, keys):
    s = start(trust, keys)
    s.frame(committee=[0, 1])
    defended(s.ask(0), Code.POLICY)


def test_08_a_committee_that_the_server_chose(start):
    s = start("distributed-noise", n=70)
    assert isinstance(s.ask(s.committee().slots[0]), Answer)
    chosen = range(64)
    assert set(chosen) != set(s.committee().slots)
    s.frame(committee=chosen)
    defended(s.ask(s.committee().slots[1], attempt=2), Code.POLICY)  # it may be the one above


@pytest.mark.parametrize("trust", SHARED)
def test_08_two_committees_in_two_attempts(start, trust):
    """Each half is called absent in one attempt: too few are left to open in either."""
    s = start(trust, n=8)
    for attempt, half in ((1, range(4)), (2, range(4, 8))):
        s.frame(present=half)
        for i in half:
            defended(s.ask(i, attempt=attempt), Code.POLICY)


def test_08_keys_twice_and_slots_in_another_order(start):
    s = start("distributed-noise", "relayed")
    slots, keys = s.committee().slots, s.committee().public_keys
    for changed in (
        replace_committee(s, keys=(keys[1], *keys[1:])),
        replace_committee(s, slots=slots[::-1]),
        replace_committee(s, slots=(0, 0, *slots[2:])),
        replace_committee(s, slots=(*slots[:-1], 7)),
        b"",
        s.committee().encode()[:-1],
    ):
        defended(s.ask(1, committee=changed), Code.BAD_MESSAGE, Code.POLICY)


def replace_committee(scene, slots=None, keys=None):
    committee = scene.committee()
    return Committee(
        slots or committee.slots, keys or committee.public_keys, scene.n_slots, 1
    ).encode()


def test_09_an_epoch_beyond_the_last(start):
    s = start(set_up=False, epoch=15)
    assert isinstance(s.nodes[0].send(Enrol(doc=s.data)), Enrolled)
    beyond = s.data.replace(b"epoch\x0f", b"epoch\x10")
    defended(s.nodes[0].send(Enrol(doc=beyond)), Code.BAD_MESSAGE)


def test_09_run_ids_commitments_and_presence_do_not_move_the_committee(start):
    s = start("distributed-noise", n=70, absent=[3])
    for run in (b"\1" * 16, b"\2" * 16):
        other = start("distributed-noise", n=70, others=s, run=run, absent=[5, 6])
        assert other.committee().slots == s.committee().slots
        member = next(i for i in other.committee().slots if i not in (3, 5, 6))
        assert isinstance(other.ask(member), Answer)  # the client draws the same one


# ------------------------------------------------------------------------------ 10 to 14: slots


@pytest.mark.parametrize("trust", SHARED)
def test_10_a_swapped_public_key_of_a_member(start, trust):
    """The server puts its key in a member's position, perhaps to open it after a theft."""
    s = start(trust)
    secret, public = fresh_key()
    s.enrolled[2] = replace(s.enrolled[2], public_key=public)
    s.frame()
    reply = s.ask(0)
    assert isinstance(reply, Answer)
    assert all(reply.sealed[j] for j in range(7) if j != 2)  # it costs the others nothing
    if reply.sealed[2]:
        raise SucceededError
    stolen = s.identity(2).secret
    assert key_agreement.pair_secret(secret, s.enrolled[0].public_key, stolen, s.roster.keys[0])


@pytest.mark.parametrize("trust", SHARED)
def test_11_a_share_dealt_in_a_clients_name(start, trust):
    """The server seals a share for its own ephemeral key, in the slot of client 3."""
    s = start(trust)
    answers = s.deal()
    secret, public = fresh_key()
    context = s.context(1, 1, answers[3].tag)
    member = s.enrolled[0].public_key
    key = key_agreement.share_key(
        key_agreement.pair_secret(secret, member), context, 3, 0, public, member
    )
    sums = s.sums(1, 1, answers[3].tag)
    zeros = np.zeros(sums.n_words, dtype=np.int64)
    forged = s.run.trust.sum.protect(zeros, sums, 3, bytes(32))[0]
    request = s.add_of(0, answers)
    reply = s.nodes[0].send(
        msgspec.structs.replace(
            request,
            public_keys=request.public_keys[:96] + public + request.public_keys[128:],
            sealed=(
                *request.sealed[:3],
                key_agreement.seal(key, forged, context),
                *request.sealed[4:],
            ),
        )
    )
    defended(reply, Code.KEY)
    assert reply.slot == 3


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_12_shares_of_another_member_attempt_or_order(start, trust, keys):
    s = start(trust, keys)
    answers, later = s.deal(), s.deal(attempt=2)
    request = s.add_of(0, answers)
    others = s.add_of(1, answers).sealed
    for changes in (
        {"sealed": others},
        {"sealed": (others[0], *request.sealed[1:])},
        {"sealed": request.sealed[::-1]},
        {"attempt": 2},
        {"sealed": s.add_of(0, later, attempt=2).sealed},
        {"public_keys": request.public_keys[32:] + request.public_keys[:32]},
        {"tag": b"t" * 32},
    ):
        defended(s.nodes[0].send(msgspec.structs.replace(request, **changes)), Code.KEY)
    assert isinstance(s.nodes[0].send(request), Added)  # who names a dealer has not voted


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_12_shares_of_another_run(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    other = start(trust, keys, others=s, run=b"\1" * 16)
    other.deal()
    defended(other.add(0, answers), Code.KEY)


def slot_of_another(scene, i, slot):
    """Return a request to client ``i`` that gives it another client's slot."""
    own = scene.enrolled[i]
    leaves = [
        leaf(slot, own.commitment, own.static, own.public_key) if j == slot else EMPTY
        for j in range(scene.n_slots)
    ]
    keys = [scene.enrolled[j].public_key for j in scene.committee().slots]
    keys[slot], keys[i] = own.public_key, b""
    tree = Tree(leaves)
    committee = replace_committee(scene, keys=tuple(keys))
    return {"root": tree.root, "path": tree.path(slot), "slot": slot, "committee": committee}


@pytest.mark.parametrize("trust", PROTECTED)
def test_13_a_slot_that_the_server_chose(start, trust):
    s = start(trust)
    defended(s.ask(0, **slot_of_another(s, 0, 2)), Code.POLICY)
    defended(s.ask(0, n_slots=8), Code.POLICY)


@pytest.mark.parametrize("trust", PROTECTED)
def test_13_one_client_at_two_slots(start, trust):
    s = start(trust, "relayed")
    assert isinstance(s.ask(0), Answer)
    defended(s.ask(0, attempt=2, **slot_of_another(s, 0, 2)), Code.CONFLICT)


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("keys", KEYS)
def test_14_a_cohort_without_this_session(start, trust, keys):
    s = start(trust, keys)
    reply = s.ask(0, root=b"r" * 32)
    defended(reply, Code.RENEW)
    seat = s.enrolled[0]
    assert (reply.commitment, reply.public_key) == (seat.commitment, seat.public_key)
    s.enrolled[0] = replace(seat, public_key=fresh_key()[1])
    s.frame()
    defended(s.ask(0), Code.RENEW)


def test_14_a_committee_without_the_clients_own_key(start):
    s = start("distributed-noise")
    keys = list(s.committee().public_keys)
    keys[0] = fresh_key()[1]
    defended(s.ask(0, committee=replace_committee(s, keys=tuple(keys))), Code.RENEW)


# ------------------------------------------------------------------------------ 15 to 17: answers


def rolled_back(scene, i):
    """Make a client's memory forget its answers and votes, as a restored backup does."""
    for record in scene.nodes[i].state.values():
        for name in ("answer", "vote"):
            if name in record:
                del record[name]
    vector_lost(scene, i)


def vector_lost(scene, i):
    """Make a client forget the vector that a repeated request gets."""
    session = scene.session(i)
    session.answered = b""
    ContextMemory(scene.nodes[i].state).save(scene.doc_hash, session)


def two_vectors_under_one_mask(first, second):
    if isinstance(second, Answer) and second.words != first.words:
        raise SucceededError


@pytest.mark.parametrize("copies", [False, True])
def test_15_records_changed_after_a_ledger_was_rolled_back(start, copies):
    s = start("oblivious-server", policy={"copy_records": copies})
    first = s.ask(0)
    rolled_back(s, 0)
    s.nodes[0].records = s.nodes[0].records / 2
    second = s.ask(0)
    two_vectors_under_one_mask(first, second)
    assert isinstance(second, Answer) == copies
    if not copies:
        defended(second, Code.RENEW)


def test_15_records_changed_between_two_requests(start):
    """Even if a commitment were blind to the change, an attempt has one answer."""
    s = start("oblivious-server", policy={"copy_records": False})
    with mock.patch.object(checks, "is_committed", return_value=True):
        first = s.ask(0)
        s.nodes[0].records = s.nodes[0].records / 2
        assert s.ask(0) == first
        vector_lost(s, 0)
        second = s.ask(0)
        two_vectors_under_one_mask(first, second)
        defended(second, Code.CONFLICT)


@pytest.mark.parametrize("trust", SHARED)
def test_15_under_shares_an_attempt_has_one_answer_and_the_next_another(start, trust):
    s = start(trust)
    answers = s.deal()
    s.nodes[0].records = s.nodes[0].records / 2
    assert s.ask(0).sealed == answers[0].sealed
    vector_lost(s, 0)
    defended(s.ask(0), Code.CONFLICT)
    assert isinstance(s.ask(0, attempt=2), Answer)


def test_15_a_ledger_from_a_backup_repeats_its_bytes(start):
    s = start("oblivious-server", ledger=True, policy={"copy_records": False})
    directory = s.nodes[0].policy.state_dir
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    first = s.ask(0)
    shutil.rmtree(directory)
    shutil.move(backup, directory)
    assert s.ask(0) == first
    s.nodes[0].records = s.nodes[0].records / 2
    defended(s.ask(0), Code.RENEW)


def other_query(scene):
    """Return a query that the algorithm accepts, and that is not the first one."""
    algorithm = scene.run.algorithm
    arrays = dict(algorithm.query(algorithm.initial_state(None)).arrays)
    return encode_arrays({name: array[::-1].copy() for name, array in arrays.items()})


def test_16_two_queries_in_one_attempt(start):
    s = start("distributed-noise")
    assert isinstance(s.ask(0), Answer)
    query = other_query(s)
    assert query != s.query_data()
    defended(s.ask(0, query=query), Code.CONFLICT)


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_17_a_query_out_of_range(start, trust):
    s = start(trust)
    algorithm = s.run.algorithm
    right = dict(algorithm.query(algorithm.initial_state(None)).arrays)
    wide = {name: np.full_like(array, 2**40) for name, array in right.items()}
    defended(s.ask(0, query=encode_arrays(wide)), Code.BAD_MESSAGE)


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_17_a_malformed_query(start, trust):
    s = start(trust)
    algorithm = s.run.algorithm
    right = dict(algorithm.query(algorithm.initial_state(None)).arrays)
    for query in (
        None,
        b"",
        b"\x80",
        encode_arrays(right)[:-1],
        encode_arrays({name: array.astype(np.float64) for name, array in right.items()}),
        encode_arrays({name: array[:1] for name, array in right.items()}),
        encode_arrays({**right, "more": np.zeros(1)}),
    ):
        defended(s.ask(0, query=query), Code.BAD_MESSAGE)


@pytest.mark.parametrize("trust", BLIND)
def test_17_a_blind_server_sends_no_query(start, trust):
    s = start(trust)
    algorithm = s.run.algorithm
    query = encode_arrays(dict(algorithm.query(algorithm.initial_state(None)).arrays))
    defended(s.ask(0, query=query), Code.BAD_MESSAGE)


# ------------------------------------------------------------------------------ 18, 19: documents


WEAK = {
    "an epsilon above the limit": ({}, {"max_epsilon": 0.5}),
    "a delta above the limit": ({}, {"max_delta": 1e-9}),
    "fewer clients": ({"min_clients": 2}, {}),
    "fewer colluders": ({}, {"max_colluders": 2}),
    "more rounds": ({}, {"max_rounds": 2}),
    "more attempts": ({}, {"max_attempts": 1}),
    "another trust": ({}, {"trusts": ("oblivious-server",)}),
    "another algorithm": ({}, {"algorithms": ("fastlloyd",)}),
    "another unit": ({}, {"units": ("client",)}),
}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("trust", SHARED)
def test_18_a_weak_plan_or_few_clients(start, trust, name):
    changes, policy = WEAK[name]
    s = start(trust, set_up=False, policy=policy, **changes)
    defended(s.nodes[0].send(Enrol(doc=s.data)), Code.POLICY)


def test_18_relayed_keys_at_a_client_with_a_roster(start):
    s = start("clients-only", set_up=False)
    relayed = msgspec.structs.replace(s.document, keys="relayed", roster=None)
    defended(s.nodes[0].send(Enrol(doc=encode(relayed))), Code.POLICY)
    other = start("clients-only", "relayed", set_up=False)
    defended(other.nodes[0].send(Enrol(doc=s.data)), Code.POLICY, Code.KEY)


def test_18_a_policy_that_was_tightened_counts_at_once(start):
    s = start("clients-only")
    answers = s.deal()
    s.nodes[0].policy = replace(s.nodes[0].policy, max_epsilon=0.5)
    for reply in (
        s.ask(0),
        s.add(0, answers),
        s.nodes[0].send(Finish(doc_hash=s.doc_hash)),
        s.nodes[0].send(Enrol(doc=s.data)),
    ):
        defended(reply, Code.POLICY)


def test_18_another_document_under_a_runs_hash(start):
    s = start("clients-only")
    other = start("clients-only", others=s, run=b"\1" * 16, set_up=False)
    s.nodes[0].restart()
    reply = s.ask(0, doc=other.data)
    if isinstance(reply, Refusal) and reply.code == Code.RENEW:  # it began a session for it
        raise SucceededError
    defended(reply, Code.BAD_MESSAGE)


def test_19_another_roster_or_beacon(start, tmp_path):
    s = start("clients-only", set_up=False)
    roster = s.roster
    for other in (
        Roster(roster.names, roster.keys, b"chosen later" * 3),
        Roster(roster.names, roster.keys[::-1], roster.beacon),
        Roster(roster.names[:-1], roster.keys[:-1], roster.beacon),
        Roster(roster.names, (*roster.keys[:-1], fresh_key()[1]), roster.beacon),
    ):
        document = msgspec.structs.replace(s.document, roster=other.digest)
        defended(s.nodes[0].send(Enrol(doc=encode(document))), Code.POLICY)


def test_19_one_poisoned_line_at_one_client(start, tmp_path):
    """A client that holds another key for an absent one takes part in no run of the others."""
    s = start("oblivious-server", set_up=False)
    listed = tmp_path / "poisoned.toml"
    lines = Path(s.nodes[0].policy.roster_file).read_text().splitlines()
    lines[-1] = f'm6 = "{fresh_key()[1].hex()}"'
    listed.write_text("\n".join(lines) + "\n")
    s.nodes[0].policy = replace(s.nodes[0].policy, roster_file=str(listed))
    defended(s.nodes[0].send(Enrol(doc=s.data)), Code.POLICY)
    for node in s.nodes[1:]:
        assert isinstance(node.send(Enrol(doc=s.data)), Enrolled)


# ------------------------------------------------------------------------------ 20 to 24: entries


def entry_changed(scene, **changes):
    return (msgspec.structs.replace(scene.entries[-1], **changes),)


@pytest.mark.parametrize("trust", BLIND)
def test_20_an_announced_sum_that_is_not_the_survivors(start, trust):
    s = start(trust)
    s.round(1)
    fewer = s.bitmap(range(6))
    defended(s.ask(0, t=2, entries=entry_changed(s, survivors=fewer)), Code.GARBAGE)


def test_20_masked_words_that_are_not_the_survivors(start):
    """One client's words are left out of the sum that is announced for all."""
    s = start("oblivious-server")
    answers = s.deal()
    some = [answers[i].words for i in range(6)]
    total = s.run.trust.sum.combine(some, s.sums(1, 1, answers[0].tag))
    s.close(1, 1, answers, words=total)
    defended(s.ask(0, t=2), Code.GARBAGE)


@pytest.mark.parametrize("keys", KEYS)
def test_21_a_sum_of_two_clients(start, keys):
    s = start("oblivious-server", keys)
    answers = s.deal()
    two = {i: answers[i] for i in range(2)}
    total = s.run.trust.sum.combine([a.words for a in two.values()], s.sums(1, 1, two[0].tag))
    s.close(1, 1, two, words=total)
    defended(s.ask(4, t=2), Code.POLICY)


@pytest.mark.parametrize("trust", BLIND)
def test_22_a_second_sum_of_a_round(start, trust):
    """It is not read: the first one counts."""
    s = start(trust)
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    before = s.session(0).h
    for entries in (
        entry_changed(s, survivors=s.bitmap(range(6))),
        entry_changed(s, attempt=2, tag=b"t" * 32),
    ):
        reply = s.ask(0, t=2, entries=entries)
        if not isinstance(reply, Answer) or s.session(0).h != before:
            raise SucceededError


def test_23_a_blind_server_guesses_the_query(start):
    """Even the right guess of query and history does not confirm itself, from the first key on."""
    s = start("clients-only")
    s.round(1)
    answer = s.deal(t=2, who=[0])[0]
    algorithm, session = s.run.algorithm, s.session(0)
    state = algorithm.initial_state(None)
    arrays = decode_arrays(session.state)
    query = encode_arrays(dict(algorithm.query(type(state)(1, arrays)).arrays))
    for guess in (query, encode_arrays(dict(algorithm.query(state).arrays))):
        for h in (session.h, ZERO):
            if answer.tag == transcript.query_tag(ZERO, h, guess):
                raise SucceededError


def test_24_equal_tags_as_an_oracle_for_a_word(start):
    """The server adds what it likes to the masked sum, and reports another one to each client.

    Tags that are equal would show that two sums lead to one query: whether a word of the true
    sum lies above a threshold, so the word by bisection, without noise and without a colluder.
    """
    at_the_wall = make_algorithm(FastLloydAlgorithm, relocation=False, postprocess="truncate")
    s = start("oblivious-server", algorithm=at_the_wall)
    s.round(1)
    honest = np.frombuffer(s.entries[0].words, dtype="<u8").copy()
    truth = sum(s.exact(i) for i in range(7))
    algorithm = s.run.algorithm

    def with_offset(offset):
        words = honest.copy()
        words[: len(offset)] += offset.astype(np.int64).view(np.uint64)
        return words.astype("<u8").tobytes()

    def next_query(offset):
        state = algorithm.initial_state(None)
        total = algorithm.unflatten(truth + offset, 1, 1.0)
        return encode_arrays(dict(algorithm.query(algorithm.update(state, total)).arrays))

    far = np.zeros(len(truth), dtype=np.int64)
    far[0] = 2**50
    far_query = next_query(far)
    top = s.ask(0, t=2, entries=entry_changed(s, words=with_offset(far)))
    assert isinstance(top, Answer)
    read = []
    for i, step in enumerate((2**10, 2**16, 2**22, 2**28, 2**34, 2**40), 1):
        offset = np.zeros(len(truth), dtype=np.int64)
        offset[0] = step
        reply = s.ask(i, t=2, entries=entry_changed(s, words=with_offset(offset)))
        assert isinstance(reply, Answer)
        read.append((reply.tag == top.tag, next_query(offset) == far_query))
    assert len({expected for _, expected in read}) == 2  # the question separates
    if all(seen == expected for seen, expected in read):
        raise SucceededError
    assert not any(seen for seen, _ in read)


@pytest.mark.parametrize("trust", PROTECTED)
def test_24_commitments_do_not_show_that_records_changed(start, trust):
    s = start(trust, set_up=False)
    seen = set()
    for change in range(3):
        s.nodes[0].records = s.nodes[0].records * 0.9 + change / 100
        reply = s.nodes[0].send(Enrol(doc=s.data))
        assert isinstance(reply, Enrolled)
        seen.add(encode(reply))
    if len(seen) > 1:
        raise SucceededError


def test_24_without_a_copy_three_sessions_show_it_at_most(start):
    s = start("oblivious-server", set_up=False, policy={"copy_records": False})
    seen = set()
    for _ in range(10):
        s.nodes[0].records = s.nodes[0].records * 0.9
        reply = s.nodes[0].send(Enrol(doc=s.data))
        seen.add(reply.commitment)
    if len(seen - {None}) > 3:
        raise SucceededError
    assert len(seen - {None}) == 3
    assert reply.code == Code.STALE  # the run is over for this client
    assert s.nodes[0].session(s.doc_hash).secret == b""


# ------------------------------------------------------------------------------ 25: decoding

SHARING = shares.SharedSum().set_up(12, 1, 12)  # R = 10 of 12: one false share is found


def dealt():
    vector = np.arange(-2, 3)
    context = SumContext(bytes(32), 5, 12, sharing=SHARING)
    parts = shares.SharedSum().protect(vector, context, 0, b"z" * 32)
    return vector, context, dict(enumerate(parts))


def false_in(part, prime):
    """Return a share whose first element is another one modulo one of the primes."""
    elements = ring.unpack(part, len(part) // 8)
    residues = np.stack([elements >> np.uint64(21 * i) & np.uint64(2**21 - 1) for i in range(3)])
    residues[prime, 0] = (residues[prime, 0] + np.uint64(1)) % np.uint64(shares.PRIMES[prime])
    return ring.pack(residues)


def opened(parts, context, vector):
    """Open, and require that nothing wrong comes out."""
    try:
        found = shares.SharedSum().open(parts, np.ones(12, dtype=np.bool_), context)
    except shares.SumError:
        return None
    if not np.array_equal(found.vector, vector):
        raise SucceededError
    return found


def test_25_other_false_shares_for_every_prime():
    """One false position in each prime is correctable there; together they are too many."""
    vector, context, parts = dealt()
    for position, prime in ((0, 0), (1, 1), (2, 2)):
        parts[position] = false_in(parts[position], prime)
    assert opened(parts, context, vector) is None


def test_25_a_false_share_that_the_random_combination_misses():
    vector, context, parts = dealt()
    parts[0] = false_in(parts[0], 0)
    honest, drawn = shares.uniform, []

    def unlucky(*args):
        drawn.append(args)
        weights = honest(*args)
        return weights * 0 if len(drawn) == 1 else weights

    with mock.patch.object(shares, "uniform", unlucky):
        found = opened(parts, context, vector)
    assert found is not None
    assert found.liars == (0,)


# ------------------------------------------------------------------------------ 26 to 31


@pytest.mark.parametrize("trust", BLIND)
def test_26_a_sum_of_a_query_that_it_did_not_have(start, trust):
    """A client whose software computes another query does not follow the others' sums."""
    s = start(trust, n=8)
    update = GLloydAlgorithm.update

    def other_update(self, state, answer, rng=None):
        state = update(self, state, answer, rng)
        moved = {name: array + 1 for name, array in state.arrays.items()}
        return replace(state, arrays=moved)

    def by_itself(session, group_key, entry, follow):
        return follow()

    def other_software(reply):
        with (
            mock.patch.object(GLloydAlgorithm, "update", other_update),
            mock.patch("flower_kmeans.protocol.client.followed", by_itself),
        ):
            return reply()

    s.round(1)
    differs = other_software(lambda: s.ask(7, t=2))
    s.round(2, who=range(7))
    assert isinstance(differs, Answer)
    assert differs.tag != s.entries[-1].tag
    s.have[7] = 1
    defended(other_software(lambda: s.ask(7, t=3)), Code.CONFLICT)
    assert s.session(7).head == 1
    assert isinstance(s.ask(0, t=3), Answer)


def test_27_add_for_a_history_that_it_does_not_share(start):
    s = start("clients-only")
    s.round(1)
    answers = s.deal(t=2)
    defended(s.add(0, answers, t=2, h=b"h" * 32), Code.CONFLICT, Code.KEY)
    with mock.patch.object(s, "h", b"h" * 32):  # dealers that followed another history
        context = s.context(2, 1, answers[0].tag)
        sealed = tuple(
            key_agreement.seal(s.pair_key(i, 0, context, 0), share_of(s, i, context), context)
            for i in answers
        )
    reply = s.add(0, answers, t=2, h=b"h" * 32, sealed=sealed)
    defended(reply, Code.CONFLICT)


def share_of(scene, i, context):
    sums = replace(scene.sums(2, 1, ZERO), digest=context)
    zeros = np.zeros(sums.n_words, dtype=np.int64)
    return scene.run.trust.sum.protect(zeros, sums, i, bytes(32))[0]


def test_27_add_for_a_round_whose_sum_it_followed(start):
    s = start("clients-only")
    answers = s.deal()
    before = s.h
    s.round(1)
    s.deal(t=2)
    defended(s.add(0, answers, h=before), Code.STALE)


@pytest.mark.parametrize("attempt", [1, 2])
def test_28_an_old_round_again(start, attempt):
    s = start("distributed-noise")
    s.round(1)
    s.round(2)
    defended(s.ask(0, t=1, attempt=attempt), Code.STALE)


@pytest.mark.parametrize("trust", BLIND)
def test_28_an_old_round_again_where_clients_follow(start, trust):
    s = start(trust)
    s.round(1)
    s.round(2)
    assert isinstance(s.ask(0, t=3), Answer)
    defended(s.ask(0, t=1, entries=()), Code.STALE)
    defended(s.ask(0, t=2, entries=()), Code.STALE)


@pytest.mark.parametrize("trust", PROTECTED)
def test_28_a_lower_attempt(start, trust):
    s = start(trust)
    assert isinstance(s.ask(0, attempt=2), Answer)
    defended(s.ask(0, attempt=1), Code.STALE)


@pytest.mark.parametrize("trust", [*PROTECTED, "plain"])
def test_28_an_attempt_or_a_round_beyond_the_last(start, trust):
    s = start(trust)
    defended(s.ask(0, attempt=3), Code.POLICY)
    defended(s.ask(0, t=4), Code.POLICY)


def test_28_a_vote_for_an_old_round(start):
    s = start("distributed-noise")
    answers = s.deal()
    later = s.deal(t=2)
    assert isinstance(s.add(0, later, t=2), Added)
    defended(s.add(0, answers), Code.STALE)


@pytest.mark.parametrize("trust", [*PROTECTED, "trusted-server", "plain"])
def test_28_a_run_that_is_over(start, trust):
    s = start(trust)
    for t in (1, 2, 3):
        s.round(t)
    request = s.ask_of(0, t=3)
    assert all(isinstance(reply, Finished) for reply in s.finish().values())
    defended(s.nodes[0].send(request), Code.STALE)
    defended(s.nodes[0].send(Enrol(doc=s.data)), Code.STALE)
    assert isinstance(s.nodes[0].send(Finish(doc_hash=s.doc_hash)), Finished)
    assert len(s.nodes[0].results) == 1


@pytest.mark.parametrize("trust", SHARED)
def test_29_a_second_encoding(start, trust):
    s = start(trust)
    data = encode(s.ask_of(0))
    for other in second_encodings(data):
        if other != data:
            defended(decode_reply(s.nodes[0].answer(other)), Code.BAD_MESSAGE)


def test_30_many_runs(start):
    s = start(
        "distributed-noise", ledger=True, policy={"max_total_epsilon": 1.9, "max_total_delta": 1e-6}
    )
    nodes = s.nodes
    assert isinstance(s.ask(0), Answer)
    paid = 1
    for number in range(1, 6):
        other = start(others=s, run=bytes([number]) * 16, set_up=False)
        reply = nodes[0].send(Enrol(doc=other.data))
        if not isinstance(reply, Enrolled):
            defended(reply, Code.LEDGER)
            break
        other.enrol()
        assert isinstance(other.ask(0), Answer)
        paid += 1
    else:
        raise SucceededError
    assert paid == 3  # mu of three runs with epsilon 1 fit into epsilon 1.9, of four they do not


@pytest.mark.parametrize("trust", SHARED)
def test_31_the_difference_of_two_attempts(start, trust):
    """Noise of another attempt is new: the difference of a client's answers is not exact."""
    s = start(trust)
    vectors = []
    for attempt in (1, 2):
        answer = s.deal(attempt=attempt, who=[0])[0]
        vectors.append(single_vector(s, answer, attempt))
    noise = [vector[:-1] - s.exact(0) for vector in vectors]
    assert any(noise[0])
    if np.array_equal(*noise):
        raise SucceededError


def single_vector(scene, answer, attempt=1, of=0):
    """Open one client's shares with the secrets of the whole committee."""
    context = scene.context(1, attempt, answer.tag)
    parts = {
        j: key_agreement.unseal(scene.pair_key(of, j, context, j), sealed, context)
        for j, sealed in enumerate(answer.sealed)
    }
    survivors = np.isin(np.arange(scene.n_slots), [of])
    return scene.run.trust.sum.open(parts, survivors, scene.sums(1, attempt, answer.tag)).vector


# ------------------------------------------------------------------------------ 33 to 43


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", KEYS)
def test_33_a_dealer_that_seals_nonsense_is_named(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    right = answers[3]
    answers[3] = msgspec.structs.replace(right, sealed=tuple(b"?" * len(x) for x in right.sealed))
    reply = s.add(0, answers)
    defended(reply, Code.KEY)
    assert reply.slot == 3
    answers[3] = right
    assert isinstance(s.add(0, answers), Added)  # who names has not voted


def test_35_a_second_vote_in_a_new_session_with_a_ledger(start):
    """A ledger keeps the last vote apart from the session."""
    s = start("distributed-noise", ledger=True)
    answers = s.deal()
    assert isinstance(s.add(0, answers), Added)
    memory = mock.patch.object(checks, "require_not_over")
    with memory, mock.patch("flower_kmeans.protocol.client.LedgerMemory.load", lost_session):
        s.renew(0, s.ask(0, attempt=2))
    second = s.deal(attempt=2)
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


def test_35_many_enrolments_do_not_drop_a_vote(start):
    """The ledger forgets sessions that gave nothing. A member that only added has given a vote."""
    s = start("distributed-noise", ledger=True)
    first = s.deal(who=range(1, 7))
    assert isinstance(s.add(0, first), Added)
    for number in range(2 * MAX_UNANSWERED):
        run = (1 + number).to_bytes(16, "big")
        document = msgspec.structs.replace(s.document, run=run)
        assert isinstance(s.nodes[0].send(Enrol(doc=encode(document))), Enrolled)
    second = s.deal(attempt=2, who=range(1, 7))
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


def lost_session(self, run):
    found = self._ledger.load(run)
    self._read[run] = (0, b"") if found is None else found


def test_35_limit_without_a_ledger_a_lost_vote_counts_among_the_corrupt(start):
    """Not defended: such a client may vote twice in the round, and is one of the f."""
    s = start("distributed-noise")
    assert isinstance(s.add(0, s.deal()), Added)
    s.nodes[0].restart()
    s.renew(0, s.ask(0, attempt=2))
    assert isinstance(s.add(0, s.deal(attempt=2), attempt=2), Added)


def outsiders_wrap(scene, slot=2, tag=bytes(16)):
    """Return a group secret that a node without a lasting key offers to client 0."""
    secret, public = fresh_key()
    own = scene.enrolled[0].public_key
    key = key_agreement.wrap_key(
        key_agreement.pair_secret(secret, own), scene.doc_hash, public, own
    )
    envelope = key_agreement.seal(key, b"k" * 32, scene.doc_hash)
    return Wrap(distributor=Peer(slot=slot, public_key=public, tag=tag), envelope=envelope)


@pytest.mark.parametrize("trust", BLIND)
def test_36_an_outsider_as_key_distributor(start, trust):
    s = start(trust)
    for slot in (2, 0, 7, 2**32 - 1):
        defended(s.ask(0, wrap_for=outsiders_wrap(s, slot)), Code.KEY)


@pytest.mark.parametrize("trust", BLIND)
def test_36_envelopes_go_to_owners_of_their_keys_only(start, trust):
    """The server puts its own key among the peers of a key distributor."""
    s = start(trust)
    _, public = fresh_key()
    peers = [s.peer(i, 0) for i in range(7)]
    peers[3] = Peer(slot=3, public_key=public, tag=s.tag(3, 0))
    if trust == "oblivious-server":
        reply = s.nodes[0].send(Keys(doc_hash=s.doc_hash, peers=tuple(peers)))
    else:
        reply = s.ask(0, peers=tuple(peers))
    assert isinstance(reply, Wrapped | Answer)
    if reply.envelopes[3]:
        raise SucceededError
    assert sum(map(bool, reply.envelopes)) == 6


def test_36_a_key_distributor_needs_a_crowd_and_its_own_key(start):
    s = start("oblivious-server")
    peers = [s.peer(i, 0) for i in range(7)]

    def keys(*peers):
        return s.nodes[0].send(Keys(doc_hash=s.doc_hash, peers=peers))

    assert isinstance(keys(*peers), Wrapped)
    defended(keys(*peers[1:]), Code.POLICY)
    defended(keys(*peers[:2]), Code.POLICY)
    defended(keys(*peers, peers[3]), Code.POLICY)
    false = [msgspec.structs.replace(peer, tag=bytes(16)) for peer in peers]
    defended(keys(*peers[:2], *false[2:]), Code.KEY)


def test_36_limit_relayed_keys_let_an_active_server_be_the_distributor(start):
    """Not defended: relayed keys protect against a server that only reads."""
    s = start("oblivious-server", "relayed")
    assert isinstance(s.ask(0, wrap_for=outsiders_wrap(s)), Answer)
    assert s.session(0).group_secret == b"k" * 32


@pytest.mark.parametrize("trust", BLIND)
def test_36_another_group_key_after_the_first_entry(start, trust):
    s = start(trust)
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    before = s.group_key(0)
    assert isinstance(s.ask(0, t=2, wrap_for=outsiders_wrap(s)), Answer)  # it is not looked at
    assert s.group_key(0) == before


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("ledger", [False, True])
def test_37_lasting_keys_stolen_after_the_run_open_nothing(start, trust, ledger):
    s = start(trust, ledger=ledger)
    recorded = s.deal()
    context = s.context(1, 1, recorded[0].tag)
    secrets = [s.session(i) for i in range(7)]
    for t in (1, 2, 3):
        s.round(t)
    assert all(isinstance(reply, Finished) for reply in s.finish().values())
    for i in range(7):
        left = s.session(i)
        if left.secret or left.ephemeral or left.group_secret or left.state:
            raise SucceededError
        for where in (s.nodes[i].state, s.nodes[i].policy.state_dir):
            for gone in (secrets[i].secret, secrets[i].ephemeral, secrets[i].group_secret):
                assert not gone or gone not in everything_in(where)
    stolen = [s.identity(i).secret for i in range(7)]
    for i in range(7):
        for j, sealed in enumerate(recorded[i].sealed):
            for own, other in (
                (stolen[j], s.roster.keys[i]),
                (stolen[j], s.enrolled[i].public_key),
            ):
                for ikm in (
                    key_agreement.agree(own, other),
                    key_agreement.pair_secret(own, other, own, other),
                ):
                    key = key_agreement.share_key(
                        ikm, context, i, j, s.enrolled[i].public_key, s.enrolled[j].public_key
                    )
                    with pytest.raises(MessageError):
                        key_agreement.unseal(key, sealed, context)


def everything_in(where):
    """Return all bytes of a state, or of a ledger's directory."""
    if where is None:
        return b""
    if isinstance(where, Path):
        return b"".join(path.read_bytes() for path in where.iterdir())
    return b"".join(
        value for record in where.values() for value in record.values() if isinstance(value, bytes)
    )


def test_38_refusals_depend_on_the_checksum_word_alone(start):
    rng = np.random.default_rng(3)
    s = start("oblivious-server")
    s.round(1)
    honest = np.frombuffer(s.entries[0].words, dtype="<u8")
    for i in range(7):
        words = honest.copy()
        words[:-1] += rng.integers(0, 2**63, len(words) - 1).astype(np.uint64)
        words = words.astype("<u8").tobytes()
        reply = s.ask(i, t=2, entries=entry_changed(s, words=words))
        if not isinstance(reply, Answer):
            raise SucceededError


@pytest.mark.parametrize("protocol", ["flower-kmeans/1", "flower-kmeans/3", "flower-kmeans/2 "])
def test_39_a_downgrade(start, protocol):
    s = start(set_up=False)
    other = msgspec.structs.replace(s.document, protocol=protocol)
    defended(s.nodes[0].send(Enrol(doc=encode(other))), Code.VERSION)


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("ledger", [False, True])
def test_40_a_repeated_request_repeats_the_bytes(start, trust, ledger):
    s = start(trust, ledger=ledger)
    data = encode(s.ask_of(0))
    first = s.nodes[0].answer(data)
    assert isinstance(decode_reply(first), Answer)
    assert s.nodes[0].answer(data) == first
    if trust in SHARED:
        data = encode(s.add_of(0, s.deal()))
        first = s.nodes[0].answer(data)
        assert isinstance(decode_reply(first), Added)
        assert s.nodes[0].answer(data) == first
    if ledger:
        s.nodes[0].restart()
        assert s.nodes[0].answer(data) == first


def test_41_a_server_of_masks_asks_to_add(start):
    s = start("oblivious-server")
    answers = s.deal()
    reply = s.add(
        0,
        {i: msgspec.structs.replace(a, sealed=(a.words,) * 7) for i, a in answers.items()},
    )
    defended(reply, Code.POLICY)


@pytest.mark.parametrize("trust", ["trusted-server", "plain"])
def test_41_a_server_of_plain_sums_asks_to_add(start, trust):
    s = start(trust)
    at = s.at(0, 1, 1)
    request = messages.Add(
        **at, h=ZERO, tag=ZERO, survivors=b"\x7f", public_keys=bytes(224), sealed=(b"x",) * 7
    )
    defended(s.nodes[0].send(request), Code.POLICY)


def test_43_a_client_that_is_not_on_the_roster(start, tmp_path):
    s = start("clients-only", set_up=False)
    (key, _) = write_members(tmp_path / "outsider", ["outsider"])
    policy = replace(s.nodes[0].policy, member_key_file=str(key))
    s.nodes[0].policy = policy
    defended(s.nodes[0].send(Enrol(doc=s.data)), Code.KEY)


def test_49_limit_more_than_tau_members_read_single_answers(start):
    """Not defended: R members that pool their shares see each answer, under its own noise."""
    s = start("distributed-noise", n=10)
    answers = s.deal()
    context = s.context(1, 1, answers[9].tag)
    sharing = s.committee().sharing(s.run.trust.sum)
    assert sharing.threshold == 8
    vector = single_vector(s, answers[9], of=9)
    assert np.array_equal(vector[:-1], s.exact(9) + s.noise(9, context))
    assert vector[-1] == 1


# ------------------------------------------------------------------------------ without the checks

CLIENT = "flower_kmeans.protocol.client"


def nothing(*args, **options):
    """Stand for a check that objects to nothing."""


def yes(*args):
    return True


def no(*args):
    return False


def lenient(data, kind):
    """Decode without the comparison of encodings."""
    return msgspec.msgpack.decode(data, type=kind)


def without(name, stand_in=nothing):
    """Return the replacement of one function of `checks`."""
    return f"flower_kmeans.protocol.checks.{name}", stand_in


def tag_without_history(key, h, query):
    return QUERY_TAG(key, b"", query)


def noise_of_the_run(secret, context):
    return NOISE_KEY(secret, ZERO)


def keep_secrets(self, how):
    self.over = how


QUERY_TAG, NOISE_KEY = transcript.query_tag, key_agreement.noise_key
S, B, O = "distributed-noise", "clients-only", "oblivious-server"  # noqa: E741
SHARES = "flower_kmeans.secagg.shares"
SECAGG = "flower_kmeans.secagg.key_agreement"

MUTANTS = [
    (test_02_two_survivor_sets_of_one_context, (S, "roster"), [without("require_one_vote")]),
    (test_02_two_survivor_sets_of_one_context, (B, "relayed"), [without("require_one_vote")]),
    (test_03_sums_of_two_attempts_of_one_round, (S, "roster"), [without("require_one_vote")]),
    (test_04_other_shares_of_the_same_survivors, (B,), [without("require_one_vote")]),
    (test_06_the_shares_of_one_client, (S, "roster"), [without("require_add_crowd")]),
    (test_06_the_shares_of_one_client, (B, "relayed"), [without("require_add_crowd")]),
    (test_07_a_cohort_of_two, (S,), [without("require_cohort_size")]),
    (test_07_a_cohort_of_two, (O,), [without("require_cohort_size")]),
    (test_07_a_committee_without_some_slots, (S, "roster"), [without("require_committee")]),
    (test_07_a_committee_without_some_slots, (B, "relayed"), [without("require_committee")]),
    (test_08_a_committee_that_the_server_chose, (), [without("require_committee")]),
    (test_10_a_swapped_public_key_of_a_member, (S,), [without("is_owned", yes)]),
    (test_11_a_share_dealt_in_a_clients_name, (S,), [without("static_secret", lambda _: b"")]),
    (test_11_a_share_dealt_in_a_clients_name, (B,), [without("static_secret", lambda _: b"")]),
    (test_13_a_slot_that_the_server_chose, (S,), [without("require_own_slot")]),
    (test_13_a_slot_that_the_server_chose, (O,), [without("require_own_slot")]),
    (test_13_one_client_at_two_slots, (S,), [without("require_one_slot")]),
    (test_13_one_client_at_two_slots, (O,), [without("require_one_slot")]),
    (test_14_a_cohort_without_this_session, (S, "roster"), [without("is_in_cohort", yes)]),
    (test_14_a_cohort_without_this_session, (O, "relayed"), [without("is_in_cohort", yes)]),
    (
        test_15_records_changed_after_a_ledger_was_rolled_back,
        (False,),
        [without("is_committed", yes)],
    ),
    (test_15_records_changed_between_two_requests, (), [without("require_one_answer")]),
    (
        test_15_under_shares_an_attempt_has_one_answer_and_the_next_another,
        (S,),
        [without("require_one_answer")],
    ),
    (test_16_two_queries_in_one_attempt, (), [without("require_one_answer")]),
    (test_17_a_query_out_of_range, (S,), [without("require_range")]),
    (test_17_a_query_out_of_range, ("trusted-server",), [without("require_range")]),
    *(
        (test_18_a_weak_plan_or_few_clients, (B, name), [without("require_policy")])
        for name in WEAK
    ),
    (test_18_relayed_keys_at_a_client_with_a_roster, (), [without("require_policy")]),
    (test_18_a_policy_that_was_tightened_counts_at_once, (), [without("require_policy")]),
    (test_18_another_document_under_a_runs_hash, (), [without("require_hash")]),
    (test_19_another_roster_or_beacon, (), [without("require_roster")]),
    (test_20_masked_words_that_are_not_the_survivors, (), [without("require_checksum")]),
    (test_20_an_announced_sum_that_is_not_the_survivors, (O,), [without("require_checksum")]),
    (test_21_a_sum_of_two_clients, ("roster",), [without("require_crowd")]),
    (test_22_a_second_sum_of_a_round, (B,), [without("is_followed", no)]),
    (test_22_a_second_sum_of_a_round, (O,), [without("is_followed", no)]),
    (test_23_a_blind_server_guesses_the_query, (), [(f"{SECAGG}.query_key", lambda _: ZERO)]),
    (
        test_24_equal_tags_as_an_oracle_for_a_word,
        (),
        [("flower_kmeans.protocol.transcript.query_tag", tag_without_history)],
    ),
    (
        test_24_commitments_do_not_show_that_records_changed,
        (O,),
        [(f"{CLIENT}._Conversation._copies_records", False)],
    ),
    (
        test_24_without_a_copy_three_sessions_show_it_at_most,
        (),
        [without("require_few_sessions")],
    ),
    (test_25_other_false_shares_for_every_prime, (), [(f"{SHARES}._require_few", nothing)]),
    (test_25_a_false_share_that_the_random_combination_misses, (), [(f"{SHARES}._fit", yes)]),
    (test_26_a_sum_of_a_query_that_it_did_not_have, (B,), [without("require_same_query")]),
    (test_26_a_sum_of_a_query_that_it_did_not_have, (O,), [without("require_same_query")]),
    (test_27_add_for_a_history_that_it_does_not_share, (), [without("require_add_history")]),
    (test_27_add_for_a_round_whose_sum_it_followed, (), [without("require_add_history")]),
    (test_28_an_old_round_again, (1,), [without("require_not_stale")]),
    (test_28_an_old_round_again, (2,), [without("require_not_stale")]),
    (
        test_28_an_old_round_again_where_clients_follow,
        (B,),
        [without("require_next_round"), without("require_not_stale")],
    ),
    (test_28_a_lower_attempt, (S,), [without("require_attempt_order")]),
    (test_28_a_lower_attempt, (O,), [without("require_attempt_order")]),
    (test_28_an_attempt_or_a_round_beyond_the_last, (S,), [without("require_attempt")]),
    (test_28_an_attempt_or_a_round_beyond_the_last, (O,), [without("require_attempt")]),
    (test_28_a_vote_for_an_old_round, (), [without("require_no_later_vote")]),
    (test_29_a_second_encoding, (S,), [("flower_kmeans.protocol.messages.decode", lenient)]),
    (
        test_30_many_runs,
        (),
        [without("require_room"), ("flower_kmeans.privacy.ledger._require", nothing)],
    ),
    (
        test_31_the_difference_of_two_attempts,
        (S,),
        [("flower_kmeans.protocol.removal.noise_key", noise_of_the_run)],
    ),
    (
        test_36_an_outsider_as_key_distributor,
        (O,),
        [without("is_owned", yes), without("static_secret", lambda _: b"")],
    ),
    (test_36_envelopes_go_to_owners_of_their_keys_only, (O,), [without("is_owned", yes)]),
    (test_36_envelopes_go_to_owners_of_their_keys_only, (B,), [without("is_owned", yes)]),
    (test_36_a_key_distributor_needs_a_crowd_and_its_own_key, (), [without("require_peers")]),
    (test_36_a_key_distributor_needs_a_crowd_and_its_own_key, (), [without("require_distinct")]),
    (
        test_37_lasting_keys_stolen_after_the_run_open_nothing,
        (S, False),
        [("flower_kmeans.protocol.session.ClientSession.end", keep_secrets)],
    ),
    (
        test_39_a_downgrade,
        ("flower-kmeans/1",),
        [("flower_kmeans.protocol.run.PROTOCOL", mock.ANY)],
    ),
]


def name_of(value):
    if callable(value):
        return value.__name__.removeprefix("test_")
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "+".join(target.rsplit(".", 1)[1] for target, _ in value)


@pytest.mark.parametrize(("attack", "arguments", "stand_ins"), MUTANTS, ids=name_of)
def test_without_its_check_the_attack_succeeds(attack, arguments, stand_ins, start, tmp_path):
    fixtures = {"start": start, "tmp_path": tmp_path}
    names = inspect.signature(attack).parameters
    given = {name: fixtures[name] for name in names if name in fixtures}
    own = [name for name in names if name not in fixtures]
    with ExitStack() as stack:
        for target, stand_in in stand_ins:
            stack.enter_context(mock.patch(target, stand_in))
        stack.enter_context(pytest.raises(SucceededError))
        attack(**given, **dict(zip(own, arguments, strict=True)))


NOT_ONE_CHECK = {
    "drawn",  # the committee of a roster; see test_committee.py
    "require_not_over",  # what is over has no secret left: see row 37
    "require_sharing",  # too few positions have no sharing at all; row 8
    "require_sound_committee",  # `Committee.decode` has refused it; row 8
}


def test_every_check_stops_an_attack():
    taken_away = {
        target.rsplit(".", 1)[1] for _, _, stand_ins in MUTANTS for target, _ in stand_ins
    }
    named = {
        name
        for name, value in vars(checks).items()
        if getattr(value, "__module__", "") == checks.__name__
        and callable(value)
        and not isinstance(value, type)
        and not name.startswith("_")
    }
    assert named - taken_away == NOT_ONE_CHECK & named
