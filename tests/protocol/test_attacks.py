"""Attacks of docs/protocol.md, section 10, on clients, by the number of their row.

Each test sends a real client what an attacker would send, and raises `SucceededError`
if the attack succeeds. `stopped_by` names the one check, key or tag that stands in the
way: `test_without_its_check_the_attack_succeeds` takes it away and requires that error.
So each test can fail, and each check is needed. Attacks on what a server opens are in
test_removal_attacks.py and test_dishonest_clients.py.
"""

import inspect
import itertools
import shutil
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from cohorts import BLIND, PROTECTED, SHARED, Cohort, kept_pairs, pieces
from documents import TRUSTS, make_algorithm
from harness import without_noise
from held import holders
from malformed import second_encodings
from ring import lied

from flower_kmeans.algorithms import tightened
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm
from flower_kmeans.algorithms.ranges import END
from flower_kmeans.algorithms.state import State
from flower_kmeans.data.domain import Box
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.ledger import MAX_UNANSWERED
from flower_kmeans.protocol import checks, messages, transcript
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Code,
    Enrol,
    Enrolled,
    Finished,
    Refusal,
)
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.protocol.session import ContextMemory, LedgerMemory, Pairs
from flower_kmeans.protocol.shared import NO_SHARED_WORK
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
from flower_kmeans.protocol.wire import decode_arrays, encode, encode_arrays
from flower_kmeans.secagg import primitives, shares
from flower_kmeans.secagg.base import SumContext
from flower_kmeans.vertical.protocol.messages import Turn

S, B, O = "distributed-noise", "clients-only", "oblivious-server"  # noqa: E741
SECAGG, PROTOCOL = "flower_kmeans.secagg", "flower_kmeans.protocol"
MUTANTS = []

each_keys = pytest.mark.parametrize("keys", ["roster", "relayed"])
each_ledger = pytest.mark.parametrize("ledger", [False, True])
blind, shared, protected, every = (
    pytest.mark.parametrize("trust", names)
    for names in (BLIND, SHARED, PROTECTED, TRUSTS)
)
change = msgspec.structs.replace


class SucceededError(Exception):
    """The attack got what it wanted."""


def always(value):
    """Return what takes a check's place: a function of anything."""
    return lambda *args, **options: value


def stopped_by(*targets, to=always(None), of=((),)):  # noqa: B008
    """Name what stops an attack, and with which arguments it then succeeds.

    A target is a function of `checks`, or a whole path; ``to`` is what takes its place.
    """
    paths = [
        target if "." in target else f"{PROTOCOL}.checks.{target}" for target in targets
    ]

    def note(attack):
        MUTANTS.extend((attack, arguments, paths, to) for arguments in of)
        return attack

    return note


def defended(reply, *codes):
    """Require a refusal, with one of the codes."""
    if not isinstance(reply, Refusal):
        raise SucceededError(type(reply).__name__)
    assert Code(reply.code) in codes, Code(reply.code)


@pytest.fixture
def start(tmp_path_factory):
    """Return a function that makes a run with its clients, who are numbered by their slots."""

    def make(trust=S, keys="roster", n=7, *, absent=(), set_up=True, **options):
        cohort = Cohort(tmp_path_factory.mktemp("run"), trust, keys, n, **options)
        return (
            cohort.set_up(i for i in range(n) if i not in absent) if set_up else cohort
        )

    return make


def fresh_key():
    secret = np.random.default_rng().bytes(32)
    return secret, primitives.public_key(secret)


def enrol(scene, i=0, data=b""):
    return scene.nodes[i].send(Enrol(doc=data or scene.run.data))


# ---------------------------------------------------------------------- 1 to 6: one sum


@pytest.mark.claim("threat-model", "1")
@shared
def test_01_sealed_shares_do_not_open_for_the_server(start, trust):
    """It has all public keys and the lasting keys of nobody; the seal's own members open it."""
    s = start(trust)
    answers = s.deal()
    context = s.context(1, 1, answers[0].tag)
    parts = {i: pieces(answers[i].sealed, len(answers)) for i in answers}
    for i, j, k in itertools.product(answers, repeat=3):
        with nullcontext() if j == k else pytest.raises(MessageError):
            assert primitives.unseal(s.pair_key(i, k, context, j), parts[i][j], context)


@pytest.mark.claim("threat-model", "1")
def test_01_a_blind_server_cannot_open_the_sum_shares_that_it_passes_on(start):
    s = start(B)
    s.round(1)
    entry = s.entries[0]
    context = transcript.entry_context(
        s.doc_hash, transcript.first_hash(s.doc_hash), entry
    )
    own = s.group_key(0)
    for position, sealed in messages.read_sum_shares(entry).items():
        # the last are what a server has
        for group in (own, ZERO, s.doc_hash, s.frame.tree.root):
            key = primitives.sum_share_key(group, context, position, entry.survivors)
            with nullcontext() if group == own else pytest.raises(MessageError):
                assert primitives.unseal(key, sealed, context)


@pytest.mark.claim("threat-model", "2")
@stopped_by("require_one_vote", of=[(S, "roster"), (B, "relayed")])
@shared
@each_keys
def test_02_two_survivor_sets_of_one_context(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    assert isinstance(s.add(0, answers), Added)
    fewer = {i: answers[i] for i in list(answers)[:-1]}
    defended(s.add(0, fewer), Code.CONFLICT)
    assert isinstance(s.add(0, answers), Added)  # the same one may be repeated


@pytest.mark.claim("threat-model", "3")
@stopped_by("require_one_vote", of=[(S, "roster", False)])
@shared
@each_keys
@each_ledger
def test_03_sums_of_two_attempts_of_one_round(start, trust, keys, ledger):
    s = start(trust, keys, ledger=ledger)
    first, second = s.deal(), s.deal(attempt=2)
    assert isinstance(s.add(0, first), Added)
    if ledger:  # which keeps the vote
        s.nodes[0].restart()
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


@pytest.mark.claim("threat-model", "4")
@stopped_by("require_one_vote", of=[(B,)])
@shared
def test_04_other_shares_of_the_same_survivors(start, trust):
    s = start(trust)
    first = s.deal()
    assert isinstance(s.add(0, first), Added)
    s.nodes[1].restart()  # a dealer that lost its memory deals again
    s.take(1, s.ask(1))
    if trust in BLIND:
        s.wrap_again(1, by=0)
    defended(s.add(0, s.deal(attempt=2), attempt=2), Code.CONFLICT)


@pytest.mark.claim("threat-model", "6")
@stopped_by("require_crowd", of=[(S, "roster"), (B, "relayed")])
@shared
@each_keys
def test_06_the_shares_of_one_client(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    for who in ([0], [0, 1], [1, 2]):
        defended(s.add(0, {i: answers[i] for i in who}), Code.POLICY)
    defended(
        s.add(0, answers, survivors=s.bitmap([]), public_keys=b"", sealed=b""),
        Code.POLICY,
    )


# ------------------------------------------------------------------- 7 to 9: committees


@pytest.mark.claim("threat-model", "7")
@stopped_by("require_crowd", of=[(S,), (O,)])
@protected
def test_07_a_cohort_of_two(start, trust):
    s = start(trust, "relayed")
    s.reframe(present=[0, 1])
    defended(s.ask(0), Code.POLICY)


@pytest.mark.claim("threat-model", "7")
@stopped_by("require_committee", of=[(S, "roster"), (B, "relayed")])
@shared
@each_keys
def test_07_a_committee_without_some_slots(start, trust, keys):
    s = start(trust, keys)
    s.reframe(committee=[0, 1])
    defended(s.ask(0), Code.POLICY)


@pytest.mark.claim("threat-model", "8")
@stopped_by("require_committee")
def test_08_a_committee_that_the_server_chose(start):
    s = start(S, n=70)
    assert isinstance(s.ask(s.committee.slots[0]), Answer)
    chosen = range(64)
    assert set(chosen) != set(s.committee.slots)
    s.reframe(committee=chosen)
    # it may be the one above
    defended(s.ask(s.committee.slots[1], attempt=2), Code.POLICY)


@pytest.mark.claim("threat-model", "8")
@shared
def test_08_two_committees_in_two_attempts(start, trust):
    """Each half is called absent in one attempt: too few are left to open in either."""
    s = start(trust, n=8)
    for attempt, half in enumerate((range(4), range(4, 8)), 1):
        s.reframe(present=half)
        for i in half:
            defended(s.ask(i, attempt=attempt), Code.POLICY)


def replace_committee(scene, slots=None, keys=None):
    found = scene.committee
    slots, keys = slots or found.slots, keys or found.public_keys
    return Committee(slots, keys, scene.frame.n_slots, 1).encode()


@pytest.mark.claim("threat-model", "9")
def test_09_an_epoch_beyond_the_last(start):
    s = start(set_up=False, epoch=15)
    assert isinstance(enrol(s), Enrolled)
    defended(
        enrol(s, data=s.run.data.replace(b"epoch\x0f", b"epoch\x10")), Code.BAD_MESSAGE
    )


@pytest.mark.claim("threat-model", "9")
def test_09_run_ids_commitments_and_presence_do_not_move_the_committee(start):
    s = start(S, n=70, absent=[3])
    for run in (b"\1" * 16, b"\2" * 16):
        other = start(S, n=70, others=s, run=run, absent=[5, 6])
        assert other.committee.slots == s.committee.slots
        member = next(i for i in other.committee.slots if i not in (3, 5, 6))
        assert isinstance(other.ask(member), Answer)  # the client draws the same one


# ---------------------------------------------------------------------- 10 to 14: slots


@pytest.mark.claim("threat-model", "10")
@stopped_by("is_claimed", to=always(True), of=[(S,)])
@shared
def test_10_a_swapped_public_key_of_a_member(start, trust):
    """The server puts its key in a member's position, perhaps to open it after a theft."""
    s = start(trust)
    right = s.ask(0)
    secret, public = fresh_key()
    s.reframe(keys={2: public})
    defended(s.ask(0, attempt=2), Code.KEY)
    assert isinstance(right, Answer)
    stolen = s.exchange_secret(2)
    assert primitives.pair_secret(secret, s.key(0), stolen, s.exchange_key(0))


CLAIMS = {
    "no claim": lambda s, claim: bytes(64),
    "another slot": lambda s, claim: claim(slot=1),
    "another run": lambda s, claim: claim(doc_hash=ZERO),
    "another node": lambda s, claim: claim(node_id=9),
    "another key": lambda s, claim: claim(ephemeral=s.key(1)),
    "another member": lambda s, claim: claim(seed=s.identity(1).seed),
}


@pytest.mark.claim("threat-model", "10")
@pytest.mark.default_cases("values")
@stopped_by("is_claimed", to=always(True), of=[(S, claim) for claim in CLAIMS])
@pytest.mark.parametrize("wrong", CLAIMS)
@shared
def test_10_a_claim_for_another_slot_run_node_or_key(start, trust, wrong):
    """Whatever else the server has of a client's claims, no share is sealed by it."""
    s = start(trust)
    right = {
        "seed": s.identity(2).seed,
        "doc_hash": s.doc_hash,
        "slot": 2,
        "node_id": 2,
    }

    def claim(**other):
        return primitives.claim(**{**right, "ephemeral": s.key(2), **other})

    def claims(third):
        made = [(peer.node_id, peer.claim) for peer in map(s.peer, range(7))]
        return messages.write_claims([*made[:2], (2, third), *made[3:]])

    false = CLAIMS[wrong](s, claim)
    assert isinstance(s.ask(0, claims=claims(claim())), Answer)
    defended(s.ask(0, claims=claims(false)), Code.KEY)


@pytest.mark.claim("threat-model", "11")
@stopped_by("static_secret", to=always(b""), of=[(S,), (B,)])
@shared
def test_11_a_share_dealt_in_a_clients_name(start, trust):
    """The server seals a share for its own ephemeral key, in the slot of client 3."""
    s = start(trust)
    answers = s.deal()
    secret, public = fresh_key()
    context = s.context(1, 1, answers[3].tag)
    member = s.key(0)
    ikm = primitives.pair_secret(secret, member)
    key = primitives.share_key(ikm, context, 3, 0, public, member)
    sealed = primitives.seal(key, share_of(s, 3, s.sums(1, 1, answers[3].tag)), context)
    request = s.add_of(0, answers)
    keys = request.public_keys[:96] + public + request.public_keys[128:]
    sealed = exchanged(request.sealed, 3, sealed)
    reply = s.nodes[0].send(change(request, public_keys=keys, sealed=sealed))
    defended(reply, Code.KEY)
    assert reply.slot == 3


def exchanged(sealed, place, other):
    """Return shares that travel together, one of them exchanged for another."""
    at = place * len(other)
    return sealed[:at] + other + sealed[at + len(other) :]


def share_of(scene, i, sums):
    """Return what a dealer of zeros gives the first position."""
    vector = np.zeros(sums.n_words, dtype=np.int64)
    return scene.run.trust.sum.protect(vector, sums, i, bytes(32))[0]


@pytest.mark.claim("threat-model", "12")
@shared
@each_keys
def test_12_shares_of_another_member_attempt_order_or_run(start, trust, keys):
    s = start(trust, keys)
    answers, later = s.deal(), s.deal(attempt=2)
    request = s.add_of(0, answers)
    others, own = s.add_of(1, answers).sealed, pieces(request.sealed, len(answers))
    for changes in (
        {"sealed": others},
        {"sealed": exchanged(others, 0, own[0])},
        {"sealed": b"".join(own[::-1])},
        {"attempt": 2},
        {"sealed": s.add_of(0, later, attempt=2).sealed},
        {"public_keys": request.public_keys[32:] + request.public_keys[:32]},
        {"tag": b"t" * 32},
    ):
        defended(s.nodes[0].send(change(request, **changes)), Code.KEY)
    # who names a dealer has not voted
    assert isinstance(s.nodes[0].send(request), Added)
    other = start(trust, keys, others=s, run=b"\1" * 16)
    other.deal()
    defended(other.add(0, answers), Code.KEY)


def slot_of_another(scene, i, slot):
    """Return a request to client ``i`` that gives it another client's slot."""
    own = scene.enrolled[i].public
    mine = leaf(slot, own.commitment, own.static, own.public_key)
    keys = [scene.key(j) for j in scene.committee.slots]
    keys[slot], keys[i] = own.public_key, b""
    tree = Tree([mine if j == slot else EMPTY for j in range(scene.frame.n_slots)])
    committee = replace_committee(scene, keys=tuple(keys))
    request = {
        "root": tree.root,
        "path": tree.path(slot),
        "slot": slot,
        "committee": committee,
    }
    if scene.roster is not None and scene.trust.has_committee:
        made = [(0, bytes(64))] * (len(keys) - 1)  # no owner claimed another's slot
        request["claims"] = messages.write_claims(made)
    return request


@pytest.mark.claim("threat-model", "13")
@stopped_by("require_own_slot", "is_claimed", to=always(True), of=[(S,)])
@stopped_by("require_own_slot", of=[(O,)])
@protected
def test_13_a_slot_that_the_server_chose(start, trust):
    s = start(trust)
    defended(s.ask(0, **slot_of_another(s, 0, 2)), Code.POLICY)
    defended(s.ask(0, n_slots=8), Code.POLICY)


@pytest.mark.claim("threat-model", "13")
@stopped_by("require_one_slot", of=[(S,), (O,)])
@protected
def test_13_one_client_at_two_slots(start, trust):
    s = start(trust, "relayed")
    assert isinstance(s.ask(0), Answer)
    defended(s.ask(0, attempt=2, **slot_of_another(s, 0, 2)), Code.CONFLICT)


@pytest.mark.claim("threat-model", "14")
@stopped_by("require_leaf", of=[(S, "roster"), (O, "relayed")])
@protected
@each_keys
def test_14_a_cohort_without_this_session(start, trust, keys):
    """The refusal holds the session's public values, as an enrolment does."""
    s = start(trust, keys)
    own = s.enrolled[0].public
    for changes in ({"root": b"r" * 32}, {"path": b""}):
        reply = s.ask(0, **changes)
        defended(reply, Code.RENEW)
        found = (reply.commitment, reply.static, reply.public_key, reply.claim)
        assert found == (own.commitment, own.static, own.public_key, own.claim)
    s.reframe(keys={0: fresh_key()[1]})
    defended(s.ask(0), Code.RENEW)


@pytest.mark.claim("threat-model", "14")
def test_14_a_committee_without_the_clients_own_key(start):
    s = start(S)
    keys = list(s.committee.public_keys)
    keys[0] = fresh_key()[1]
    defended(s.ask(0, committee=replace_committee(s, keys=tuple(keys))), Code.RENEW)


# -------------------------------------------------------------------- 15 to 17: answers


def vector_lost(scene):
    """Make client 0 forget the vector that a repeated request gets."""
    session = change(scene.session(0), answered=b"")
    ContextMemory(scene.nodes[0].state).save(scene.doc_hash, session)


def halve_records(scene):
    scene.nodes[0].records = scene.nodes[0].records / 2


def two_vectors_under_one_mask(first, second):
    if isinstance(second, Answer) and second.words != first.words:
        raise SucceededError


@pytest.mark.claim("threat-model", "15")
@stopped_by("is_committed", to=always(True), of=[(False,)])
@pytest.mark.parametrize("copies", [False, True])
def test_15_records_changed_after_a_ledger_was_rolled_back(start, copies):
    s = start(O, policy={"copy_records": copies})
    first = s.ask(0)
    for record in s.nodes[0].state.values():  # as a restored backup does
        record["answer"] = record["vote"] = b""
    vector_lost(s)
    halve_records(s)
    second = s.ask(0)
    two_vectors_under_one_mask(first, second)
    assert isinstance(second, Answer) == copies
    if not copies:
        defended(second, Code.RENEW)


@pytest.mark.claim("threat-model", "15")
@stopped_by("require_one_answer")
def test_15_records_changed_between_two_requests(start):
    """Even if a commitment were blind to the change, an attempt has one answer."""
    s = start(O, policy={"copy_records": False})
    with mock.patch.object(checks, "is_committed", return_value=True):
        first = s.ask(0)
        halve_records(s)
        assert s.ask(0) == first
        vector_lost(s)
        second = s.ask(0)
        two_vectors_under_one_mask(first, second)
        defended(second, Code.CONFLICT)


@pytest.mark.claim("threat-model", "15")
@stopped_by("require_one_answer", of=[(S,)])
@shared
def test_15_under_shares_an_attempt_has_one_answer_and_the_next_another(start, trust):
    s = start(trust)
    answers = s.deal()
    halve_records(s)
    assert s.ask(0).sealed == answers[0].sealed
    vector_lost(s)
    defended(s.ask(0), Code.CONFLICT)
    assert isinstance(s.ask(0, attempt=2), Answer)


@pytest.mark.claim("threat-model", "15")
@pytest.mark.claim("protocol", "ledger-kept-restored-from")
def test_15_a_ledger_from_a_backup_repeats_its_bytes(start):
    s = start(O, ledger=True, policy={"copy_records": False})
    directory = s.nodes[0].policy.state_dir
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    first = s.ask(0)
    shutil.rmtree(directory)
    shutil.move(backup, directory)
    assert s.ask(0) == first
    halve_records(s)
    assert s.ask(0) == first  # a repeated request shows nothing
    defended(s.ask(0, attempt=2), Code.RENEW)


def first_query(scene):
    algorithm = scene.run.algorithm
    return dict(algorithm.query(algorithm.initial_state(None)).arrays)


@pytest.mark.claim("threat-model", "16")
@stopped_by("require_one_answer", "require_one_query", of=[(False,)])
@each_ledger
def test_16_two_queries_in_one_attempt(start, ledger):
    """The refusal in between does not change what was answered."""
    s = start(S, ledger=ledger)
    first = s.ask(0)
    query = encode_arrays(
        {name: array[::-1].copy() for name, array in first_query(s).items()}
    )
    assert query != s.query_data()
    defended(s.ask(0, query=query), Code.CONFLICT)
    halve_records(s)
    assert s.ask(0) == first


@pytest.mark.claim("threat-model", "59")
@stopped_by("require_one_query", of=[(S, False), ("trusted-server", False)])
@pytest.mark.parametrize("trust", [S, "trusted-server"])
@each_ledger
def test_59_two_queries_in_two_attempts(start, trust, ledger):
    """Two answers to two queries of one round would be two releases for one charge."""
    s = start(trust, ledger=ledger)
    assert isinstance(s.ask(0), Answer)
    query = encode_arrays(
        {name: array[::-1].copy() for name, array in first_query(s).items()}
    )
    assert query != s.query_data()
    defended(s.ask(0, attempt=2, query=query), Code.CONFLICT)
    # the same query is what a fault needs
    assert isinstance(s.ask(0, attempt=2), Answer)


@pytest.mark.claim("threat-model", "59")
@stopped_by("require_one_query", of=[(False,)])
@each_ledger
def test_59_two_histories_in_two_sessions(start, ledger):
    """A blind server makes another query by an entry that it announces to a new session alone."""
    s = start(O, ledger=ledger, policy={"copy_records": False})
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    halve_records(s)  # the next session knows no entry yet
    s.take(0, s.ask(0, t=2, attempt=2))
    s.enrolled[0].head = 0
    s.wrap_again(0, by=1)
    other = change(s.entries[0], words=entry_with_other_words(s))
    defended(s.ask(0, t=2, attempt=2, entries=(other,)), Code.CONFLICT)


def entry_with_other_words(scene):
    """Return the words of the first entry, with another value in a word without the checksum."""
    words = bytearray(scene.entries[0].words)
    words[0] ^= 1
    return bytes(words)


@pytest.mark.claim("threat-model", "17")
@stopped_by(
    "flower_kmeans.algorithms.queries.check_query",
    of=[(S,), ("trusted-server",)],
)
@pytest.mark.parametrize("trust", [S, "trusted-server"])
def test_17_a_query_out_of_range(start, trust):
    s = start(trust)
    wide = {name: np.full_like(array, 2**40) for name, array in first_query(s).items()}
    defended(s.ask(0, query=encode_arrays(wide)), Code.BAD_MESSAGE)


HOSTILE_BOXES = [
    [[0, 15], [0, 16]],
    [[16, 0], [0, 16]],
    [[-1, 16], [0, 16]],
    [[0, 16], [0, END + 1]],
]


@pytest.mark.claim("threat-model", "17")
@stopped_by("flower_kmeans.algorithms.queries.check_query", of=[(HOSTILE_BOXES[0],)])
@pytest.mark.parametrize("box", HOSTILE_BOXES)
def test_17_ranges_that_no_rule_finds(start, box):
    """Ranges that are possible cost nothing: noise was planned for all of them."""
    algorithm = tightened.planned(
        GLloydAlgorithm,
        2,
        Box([0.0, 0.0], [1.0, 1.0], tighten=0.1),
        PrivacyBudget(1.0),
        n_records=1000,
        n_rounds=1,
    )
    s = start("trusted-server", algorithm=algorithm)
    s.round(1)
    query = algorithm.query(s.server.state)
    for i, rows in enumerate([[[0, 16], [9, END]], [[0, END], [0, END]]], start=1):
        arrays = {**query.arrays, tightened.BOX: np.array(rows, dtype=np.int64)}
        assert isinstance(s.ask(i, t=2, query=encode_arrays(arrays)), messages.Answer)
    arrays = {**query.arrays, tightened.BOX: np.array(box, dtype=np.int64)}
    defended(s.ask(0, t=2, query=encode_arrays(arrays)), Code.BAD_MESSAGE)


@pytest.mark.claim("threat-model", "17")
@every
def test_17_a_malformed_query(start, trust):
    """A blind server sends none."""
    s = start(trust)
    right = first_query(s)
    malformed = [
        {name: array.astype(np.float64) for name, array in right.items()},
        {name: array[:1] for name, array in right.items()},
        {**right, "more": np.zeros(1)},
    ]
    queries = [
        None,
        b"",
        b"?",
        b"\x80",
        encode_arrays(right)[:-1],
        *map(encode_arrays, malformed),
    ]
    for query in [encode_arrays(right)] if trust in BLIND else queries:
        defended(s.ask(0, query=query), Code.BAD_MESSAGE)


# -------------------------------------------------------------------- 18, 19: documents


WEAK = {
    "an epsilon above the limit": ({}, {"max_epsilon": 0.5}),
    "a delta above the limit": ({}, {"max_delta": 1e-9}),
    "fewer clients": ({"min_clients": 2}, {}),
    "fewer colluders": ({}, {"max_colluders": 2}),
    "more rounds": ({}, {"max_rounds": 2}),
    "more attempts": ({}, {"max_attempts": 1}),
    "another trust": ({}, {"trusts": (O,)}),
    "another algorithm": ({}, {"algorithms": ("fastlloyd",)}),
    "another unit": ({}, {"units": ("client",)}),
}


@pytest.mark.claim("threat-model", "18")
@stopped_by("require_policy", of=[(B, name) for name in WEAK])
@pytest.mark.parametrize("name", WEAK)
@shared
def test_18_a_weak_plan_or_few_clients(start, trust, name):
    changes, policy = WEAK[name]
    s = start(trust, set_up=False, policy=policy, **changes)
    defended(enrol(s), Code.POLICY)
    assert s.nodes[0].n_loads == 0


@pytest.mark.claim("threat-model", "18")
@stopped_by("require_policy")
def test_18_relayed_keys_at_a_client_with_a_roster(start):
    s = start(B, set_up=False)
    defended(
        enrol(s, data=encode(change(s.document, keys="relayed", roster=None))),
        Code.POLICY,
    )
    other = start(B, "relayed", set_up=False)
    defended(enrol(other, data=s.run.data), Code.POLICY, Code.KEY)


@pytest.mark.claim("threat-model", "18")
@stopped_by("require_policy")
def test_18_a_policy_that_was_tightened_counts_at_once(start):
    s = start(B)
    answers = s.deal()
    s.nodes[0].policy = replace(s.nodes[0].policy, max_epsilon=0.5)
    finish = messages.Finish(doc_hash=s.doc_hash)
    for reply in (s.ask(0), s.add(0, answers), s.nodes[0].send(finish), enrol(s)):
        defended(reply, Code.POLICY)


@stopped_by("require_hash")
def test_18_another_document_under_a_runs_hash(start):
    s = start(B)
    other = start(B, others=s, run=b"\1" * 16, set_up=False)
    s.nodes[0].restart()
    reply = s.ask(0, doc=other.run.data)
    # it began a session for it
    if isinstance(reply, Refusal) and reply.code == Code.RENEW:
        raise SucceededError
    defended(reply, Code.BAD_MESSAGE)


@pytest.mark.claim("threat-model", "19")
@stopped_by("require_roster")
def test_19_another_roster_or_beacon(start):
    s = start(B, set_up=False)
    names, keys, beacon = s.roster.names, s.roster.keys, s.roster.beacon
    others = [(keys, b"chosen later" * 3), (keys[::-1], beacon), (keys[:-1], beacon)]
    for other in (*others, ((*keys[:-1], fresh_key()[1]), beacon)):
        document = change(s.document, roster=Roster(names, *other).digest)
        defended(enrol(s, data=encode(document)), Code.POLICY)


@stopped_by("require_roster")
def test_19_levels_of_noise_that_no_sum_of_the_roster_reaches(start):
    """They would leave a client next to no noise before those who open its answer alone."""
    s = start(S, set_up=False)
    for levels in ((6,), (3, 6)):
        assert isinstance(
            enrol(s, data=encode(change(s.document, levels=levels))), Enrolled
        )
    for levels in ((7,), (3, 10**5)):
        defended(enrol(s, data=encode(change(s.document, levels=levels))), Code.POLICY)


@pytest.mark.claim("threat-model", "19")
def test_19_one_poisoned_line_at_one_client(start, tmp_path):
    """A client that holds another key for an absent one takes part in no run of the others."""
    s = start(O, set_up=False)
    listed, roster = (
        tmp_path / "poisoned.toml",
        Path(s.nodes[0].policy.roster_file).read_text(),
    )
    listed.write_text(roster.replace(s.roster.keys[-1].hex(), fresh_key()[1].hex()))
    s.nodes[0].policy = replace(s.nodes[0].policy, roster_file=str(listed))
    defended(enrol(s), Code.POLICY)
    assert all(isinstance(enrol(s, i), Enrolled) for i in range(1, 7))


# -------------------------------------------------------------------- 20 to 24: entries


def entry_changed(scene, **changes):
    return (change(scene.entries[-1], **changes),)


@pytest.mark.claim("threat-model", "20")
@stopped_by("require_checksum", of=[(O,)])
@blind
def test_20_an_announced_sum_that_is_not_the_survivors(start, trust):
    s = start(trust)
    s.round(1)
    fewer = s.bitmap(range(6))
    defended(s.ask(0, t=2, entries=entry_changed(s, survivors=fewer)), Code.GARBAGE)


def close_with(scene, named, added):
    """Announce the sum of some answers as that of others."""
    answers = scene.deal()
    sums = scene.sums(1, 1, answers[0].tag)
    total = scene.run.trust.sum.combine([answers[i].words for i in added], sums)
    entry = scene.entry(
        1, 1, tag=answers[0].tag, survivors=scene.bitmap(named), words=total
    )
    scene.announce(entry)


@pytest.mark.claim("threat-model", "20")
@stopped_by("require_checksum")
def test_20_masked_words_that_are_not_the_survivors(start):
    """One client's words are left out of the sum that is announced for all."""
    s = start(O)
    close_with(s, range(7), range(6))
    defended(s.ask(0, t=2), Code.GARBAGE)


@pytest.mark.claim("threat-model", "20")
@stopped_by("require_crowd", of=[("roster",)])
@each_keys
def test_21_a_sum_of_two_clients(start, keys):
    s = start(O, keys)
    close_with(s, range(2), range(2))
    defended(s.ask(4, t=2), Code.POLICY)


@pytest.mark.claim("threat-model", "21")
@stopped_by("is_followed", to=always(False), of=[(B,), (O,)])
@blind
def test_22_a_second_sum_of_a_round(start, trust):
    """It is not read: the first one counts."""
    s = start(trust)
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    before = s.session(0)
    for changes in (
        {"survivors": s.bitmap(range(6))},
        {"attempt": 2, "tag": b"t" * 32},
    ):
        reply = s.ask(0, t=2, entries=entry_changed(s, **changes))
        if not isinstance(reply, Answer) or s.session(0) != before:
            raise SucceededError


@pytest.mark.claim("threat-model", "22")
@stopped_by(f"{SECAGG}.primitives.query_key", to=always(ZERO))
def test_23_a_blind_server_guesses_the_query(start):
    """Even the right guess of query and history does not confirm itself, from the first key on."""
    s = start(B)
    s.round(1)
    answer = s.deal(t=2, who=[0])[0]
    session = s.session(0)
    query = s.run.algorithm.query(State(1, decode_arrays(session.state)))
    for guess, h in itertools.product(
        (dict(query.arrays), first_query(s)), (session.h, ZERO)
    ):
        if answer.tag == transcript.query_tag(ZERO, h, encode_arrays(guess)):
            raise SucceededError


QUERY_TAG, NOISE_KEY = transcript.query_tag, primitives.noise_key


@pytest.mark.claim("threat-model", "23")
@stopped_by(
    f"{PROTOCOL}.transcript.query_tag",
    to=lambda key, h, query: QUERY_TAG(key, b"", query),
)
def test_24_equal_tags_as_an_oracle_for_a_word(start):
    """The server adds what it likes to the masked sum, and reports another one to each client.

    Tags that are equal would show that two sums lead to one query: whether a word of
    the true sum lies above a threshold, so the word by bisection, without noise and
    without a colluder.
    """
    at_the_wall = make_algorithm(
        FastLloydAlgorithm, relocation=False, postprocess="truncate"
    )
    s = start(O, algorithm=at_the_wall)
    with without_noise():
        s.round(1)
    honest = np.frombuffer(s.entries[0].words, dtype="<u8")
    truth = sum(s.exact(i) for i in range(7))
    algorithm = s.run.algorithm

    def asked(i, step):
        """Return a client's answer, and the query that follows, if the first word moves so far."""
        words, moved = honest.copy(), truth.copy()
        words[0] += np.uint64(step)
        moved[0] += step
        total = algorithm.layout(1).unflatten(moved, 1.0)
        state = algorithm.update(algorithm.initial_state(None), total)
        reply = s.ask(
            i, t=2, entries=entry_changed(s, words=words.astype("<u8").tobytes())
        )
        assert isinstance(reply, Answer)
        return reply.tag, encode_arrays(dict(algorithm.query(state).arrays))

    top, far_query = asked(0, 2**50)
    read = [asked(i, 2**bits) for i, bits in enumerate((10, 16, 22, 28, 34, 40), 1)]
    expected = [query == far_query for _, query in read]
    seen = [tag == top for tag, _ in read]
    assert len(set(expected)) == 2  # the question separates
    if seen == expected:
        raise SucceededError
    assert not any(seen)


@pytest.mark.claim("threat-model", "24")
@stopped_by(f"{PROTOCOL}.session.ContextMemory.save_records", of=[(O, False)])
@protected
@each_ledger
def test_24_commitments_do_not_show_that_records_changed(start, trust, ledger):
    s = start(trust, set_up=False, ledger=ledger)
    replies = []
    for _ in range(3):
        halve_records(s)
        replies.append(enrol(s))
        assert isinstance(replies[-1], Enrolled)
    if len(set(replies)) > 1:
        raise SucceededError


@pytest.mark.claim("threat-model", "24")
@stopped_by("require_few_sessions", of=[(False,)])
@each_ledger
def test_24_without_a_copy_three_sessions_show_it_at_most(start, ledger):
    s = start(O, set_up=False, ledger=ledger, policy={"copy_records": False})
    seen = set()
    for _ in range(10):
        halve_records(s)
        reply = enrol(s)
        seen.add(reply.commitment)
    if len(seen - {None}) > 3:
        raise SucceededError
    assert len(seen - {None}) == checks.MAX_SESSIONS == 3
    assert reply.code == Code.STALE  # the run is over for this client
    assert s.nodes[0].session(s.doc_hash).secret == b""


# ------------------------------------------------------------------------- 25: decoding

SHARING = shares.SharedSum().set_up(12, 1, 12)  # R = 10 of 12: one false share is found


def dealt():
    vector = np.arange(-2, 3)
    context = SumContext(bytes(32), 5, 12, sharing=SHARING)
    parts = shares.SharedSum().protect(vector, context, 0, b"z" * 32)
    return vector, context, dict(enumerate(parts))


def opened(parts, context, vector):
    """Open, and require that nothing wrong comes out."""
    try:
        found = shares.SharedSum().reconstruct(
            parts, np.ones(12, dtype=np.bool_), context
        )
    except shares.SumError:
        return None
    if not np.array_equal(found.vector, vector):
        raise SucceededError
    return found


@pytest.mark.claim("threat-model", "25")
@stopped_by(f"{SECAGG}.shares._require_few")
def test_25_other_false_shares_for_every_prime():
    """One false position in each prime is correctable there; together they are too many."""
    vector, context, parts = dealt()
    false = {j: lied(parts[j], prime=j) for j in range(3)}
    assert opened(parts | false, context, vector) is None


@pytest.mark.claim("threat-model", "25")
@stopped_by(f"{SECAGG}.shares._fit", to=always(True))
def test_25_a_false_share_that_the_random_combination_misses():
    vector, context, parts = dealt()
    drawn = shares.uniform
    missed = mock.Mock(side_effect=lambda *args: drawn(*args) * (missed.call_count > 1))
    with mock.patch.object(shares, "uniform", missed):
        assert opened({**parts, 0: lied(parts[0], 0)}, context, vector).liars == (0,)


# ----------------------------------------------------------------------------- 26 to 31


@pytest.mark.claim("threat-model", "26")
@stopped_by("require_same_query", of=[(B,), (O,)])
@blind
def test_26_a_sum_of_a_query_that_it_did_not_have(start, trust):
    """A client whose software computes another query does not follow the others' sums."""
    s = start(trust, n=8)
    update = GLloydAlgorithm.update

    def other_update(*args):
        state = update(*args)
        return replace(
            state, arrays={name: array + 1 for name, array in state.arrays.items()}
        )

    def from_other_software(t):
        with (
            mock.patch.object(GLloydAlgorithm, "update", other_update),
            # by itself
            mock.patch.object(s.nodes[7], "shared", NO_SHARED_WORK),
        ):
            return s.ask(7, t=t)

    s.round(1)
    differs = from_other_software(t=2)
    s.round(2, who=range(7))
    assert isinstance(differs, Answer)
    assert differs.tag != s.entries[-1].tag
    s.enrolled[7].head = 1
    defended(from_other_software(t=3), Code.CONFLICT)
    assert s.session(7).head == 1
    assert isinstance(s.ask(0, t=3), Answer)


@pytest.mark.claim("threat-model", "27")
@stopped_by("require_add_history")
def test_27_add_for_a_history_that_it_does_not_share(start):
    s = start(B)
    s.round(1)
    answers = s.deal(t=2)
    defended(s.add(0, answers, t=2, h=b"h" * 32), Code.CONFLICT, Code.KEY)
    # dealers that followed another history
    with mock.patch.object(s.server._announced, "h", b"h" * 32):
        context = s.context(2, 1, answers[0].tag)
        sums = replace(s.sums(2, 1, ZERO), digest=context)
        dealers = [
            (s.pair_key(i, 0, context, 0), share_of(s, i, sums)) for i in answers
        ]
    sealed = b"".join(primitives.seal(key, share, context) for key, share in dealers)
    defended(s.add(0, answers, t=2, h=b"h" * 32, sealed=sealed), Code.CONFLICT)


@pytest.mark.claim("threat-model", "27")
@stopped_by("require_add_history")
def test_27_add_for_a_round_whose_sum_it_followed(start):
    s = start(B)
    answers = s.deal()
    before = s.h
    s.round(1)
    s.deal(t=2)
    defended(s.add(0, answers, h=before), Code.STALE)


@pytest.mark.claim("threat-model", "28")
@stopped_by("require_next_round", "require_not_stale", of=[(B, False)])
@stopped_by("require_not_stale", of=[(S, False)])
@every
@each_ledger
def test_28_an_old_round_again(start, trust, ledger):
    s = start(trust, ledger=ledger)
    s.round(1)
    s.round(2)
    assert isinstance(s.ask(0, t=3), Answer)
    for t, attempt in ((1, 1), (1, 2), (2, 1)):
        defended(s.ask(0, t=t, attempt=attempt, entries=()), Code.STALE)


@pytest.mark.claim("threat-model", "28")
@stopped_by("require_attempt_order", of=[(S, False), (O, False)])
@every
@each_ledger
def test_28_a_lower_attempt(start, trust, ledger):
    s = start(trust, ledger=ledger)
    assert isinstance(s.ask(0, attempt=2), Answer)
    defended(s.ask(0, attempt=1), Code.STALE)


@stopped_by("require_attempt", of=[(S,), (O,)])
@every
def test_28_an_attempt_or_a_round_beyond_the_last(start, trust):
    s = start(trust)
    defended(s.ask(0, attempt=4), Code.POLICY)
    defended(s.ask(0, t=4), Code.POLICY)


@pytest.mark.claim("threat-model", "28")
@stopped_by("require_no_later_vote")
def test_28_a_vote_for_an_old_round(start):
    s = start(S)
    answers = s.deal()
    later = s.deal(t=2)
    assert isinstance(s.add(0, later, t=2), Added)
    defended(s.add(0, answers), Code.STALE)


@pytest.mark.claim("threat-model", "28")
@every
def test_28_a_run_that_is_over(start, trust):
    s = start(trust)
    for t in (1, 2, 3):
        s.round(t)
    request = s.ask_of(0, t=3)
    assert all(isinstance(reply, Finished) for reply in s.finish().values())
    for late in (
        request,
        Enrol(doc=s.run.data),
        messages.Keys(doc_hash=s.doc_hash, peers=b""),
    ):
        defended(s.nodes[0].send(late), Code.STALE)
    assert isinstance(s.nodes[0].send(messages.Finish(doc_hash=s.doc_hash)), Finished)
    assert len(s.nodes[0].results) == 1


@pytest.mark.claim("threat-model", "29")
@stopped_by(
    f"{PROTOCOL}.messages.decode_request",
    to=lambda data, _: msgspec.msgpack.decode(
        data, type=messages.REQUESTS.type_of(data)
    ),
    of=[(S,)],
)
@shared
def test_29_a_second_encoding(start, trust):
    s = start(trust)
    for other in second_encodings(encode(s.ask_of(0))):
        defended(messages.decode_reply(s.nodes[0].answer(other)), Code.BAD_MESSAGE)


@pytest.mark.claim("threat-model", "30")
@stopped_by(
    f"{PROTOCOL}.session.LedgerMemory.require_room",
    "flower_kmeans.privacy.ledger._require",
)
def test_30_many_runs(start):
    s = start(
        S, ledger=True, policy={"max_total_epsilon": 1.9, "max_total_delta": 1e-6}
    )
    assert isinstance(s.ask(0), Answer)
    for number in (
        1,
        2,
    ):  # mu of three runs with epsilon 1 fit into epsilon 1.9, of four they do not
        assert isinstance(start(others=s, run=bytes([number]) * 16).ask(0), Answer)
    defended(enrol(start(others=s, run=b"\3" * 16, set_up=False)), Code.LEDGER)


@pytest.mark.claim("threat-model", "31")
@stopped_by(
    f"{PROTOCOL}.noise.noise_key",
    to=lambda secret, _: NOISE_KEY(secret, ZERO),
    of=[(S,)],
)
@shared
def test_31_the_difference_of_two_attempts(start, trust):
    """Noise of another attempt is new: the difference of a client's answers is not exact."""
    s = start(trust)
    vectors = [
        single_vector(s, s.deal(attempt=attempt, who=[0])[0], attempt)
        for attempt in (1, 2)
    ]
    noise = [vector[:-1] - s.exact(0) for vector in vectors]
    assert any(noise[0])
    if np.array_equal(*noise):
        raise SucceededError


def single_vector(scene, answer, attempt=1, of=0):
    """Open one client's shares with the secrets of the whole committee."""
    context = scene.context(1, attempt, answer.tag)
    parts = {
        j: primitives.unseal(scene.pair_key(of, j, context, j), sealed, context)
        for j, sealed in enumerate(pieces(answer.sealed, len(scene.frame.present)))
    }
    survivors = np.isin(np.arange(scene.frame.n_slots), [of])
    return scene.run.trust.sum.reconstruct(
        parts, survivors, scene.sums(1, attempt, answer.tag)
    ).vector


# ----------------------------------------------------------------------------- 33 to 49


@pytest.mark.claim("threat-model", "33")
@shared
@each_keys
def test_33_a_dealer_that_seals_nonsense_is_named(start, trust, keys):
    s = start(trust, keys)
    answers = s.deal()
    right, context = answers[3], s.context(1, 1, answers[3].tag)
    key = s.pair_key(3, 0, context, 0)
    # A false seal, and a right one of no elements of the ring.
    size = len(pieces(right.sealed, len(answers))[0])
    for share in (b"?" * size, primitives.seal(key, b"\xff" * (size - 16), context)):
        answers[3] = change(right, sealed=exchanged(right.sealed, 0, share))
        assert s.add(0, answers) == Refusal(code=Code.KEY, doc_hash=s.doc_hash, slot=3)
    answers[3] = right
    assert isinstance(s.add(0, answers), Added)  # who names has not voted


@pytest.mark.claim("threat-model", "35")
def test_35_a_second_vote_in_a_new_session_with_a_ledger(start):
    """A ledger keeps the last answer and vote apart from the session."""
    s = start(S, ledger=True)
    assert isinstance(s.add(0, s.deal()), Added)
    load = LedgerMemory.load
    with mock.patch.object(LedgerMemory, "load", lambda *args: load(*args) and None):
        s.take(0, s.ask(0, attempt=2))
    defended(s.ask(0), Code.CONFLICT)
    second = s.deal(attempt=2)
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


def test_35_many_enrolments_do_not_drop_a_vote(start):
    """The ledger forgets sessions that gave nothing. A member that only added has given a vote."""
    s = start(S, ledger=True)
    first = s.deal(who=range(1, 7))
    assert isinstance(s.add(0, first), Added)
    for number in range(2 * MAX_UNANSWERED):
        document = change(s.document, run=(1 + number).to_bytes(16, "big"))
        assert isinstance(enrol(s, data=encode(document)), Enrolled)
    second = s.deal(attempt=2, who=range(1, 7))
    defended(s.add(0, second, attempt=2), Code.CONFLICT)


@pytest.mark.claim("threat-model", "35")
def test_35_limit_without_a_ledger_a_lost_vote_counts_among_the_corrupt(start):
    """Not defended: such a client may vote twice in the round, and is one of the f."""
    s = start(S)
    assert isinstance(s.add(0, s.deal()), Added)
    s.nodes[0].restart()
    s.take(0, s.ask(0, attempt=2))
    assert isinstance(s.add(0, s.deal(attempt=2), attempt=2), Added)


def outsiders_wrap(scene, slot=2):
    """Return a group secret that a node without a lasting key offers to client 0."""
    secret, public = fresh_key()
    ikm = primitives.pair_secret(secret, scene.key(0))
    key = primitives.wrap_key(ikm, scene.doc_hash, public, scene.key(0))
    envelope = primitives.seal(key, b"k" * 32, scene.doc_hash)
    peer = messages.Peer(
        slot, public, slot % 7, b"" if scene.roster is None else bytes(64)
    )
    group_key = primitives.group_key(b"k" * 32, scene.doc_hash)
    key_id = primitives.key_id(group_key, scene.doc_hash)
    return messages.Wrap(distributor=peer.row, key_id=key_id, envelope=envelope)


@pytest.mark.claim("threat-model", "36")
@stopped_by(
    "is_claimed",
    "static_secret",
    to=lambda *args: True if len(args) == 3 else b"",
    of=[(O,)],
)
@blind
def test_36_an_outsider_as_key_distributor(start, trust):
    s = start(trust)
    for slot in (2, 0, 7, 2**32 - 1):
        defended(s.ask(0, wraps=(outsiders_wrap(s, slot),)), Code.KEY)


@pytest.mark.claim("threat-model", "36")
@stopped_by("is_claimed", to=always(True), of=[(O,), (B,)])
@blind
def test_36_envelopes_go_to_owners_of_their_keys_only(start, trust):
    """The server puts its own key among the peers of a key distributor."""
    s = start(trust)
    peers = [s.peer(i) for i in range(7)]
    peers[3] = peers[3]._replace(public_key=fresh_key()[1])
    request = s.keys_of() if trust == O else s.ask_of(0)
    reply = s.send(0, request)
    assert len(reply.envelopes) == 7 * 48
    defended(s.send(0, change(request, peers=rows(peers))), Code.KEY)


def rows(peers):
    return b"".join(peer.row for peer in peers)


@stopped_by("require_peers")
@stopped_by("require_distinct")
def test_36_a_key_distributor_needs_a_crowd_and_its_own_key(start):
    s = start(O)
    peers = [s.peer(i) for i in range(7)]

    def keys(*peers):
        return s.nodes[0].send(messages.Keys(doc_hash=s.doc_hash, peers=rows(peers)))

    assert isinstance(keys(*peers), messages.Wrapped)
    defended(keys(*peers[1:]), Code.POLICY)
    defended(keys(*peers[:2]), Code.POLICY)
    defended(keys(*peers, peers[3]), Code.POLICY)
    false = [peer._replace(claim=bytes(64)) for peer in peers]
    defended(keys(*peers[:2], *false[2:]), Code.KEY)
    sighted = start(S)
    reply = sighted.nodes[0].send(
        messages.Keys(doc_hash=sighted.doc_hash, peers=rows(peers))
    )
    defended(reply, Code.POLICY)


@stopped_by("require_blind")
def test_36_a_server_that_sees_the_sums_gets_no_group_key(start):
    s = start(S)
    peers = rows([s.peer(i) for i in range(7)])
    defended(
        s.nodes[0].send(messages.Keys(doc_hash=s.doc_hash, peers=peers)), Code.POLICY
    )
    wrap = outsiders_wrap(s)
    defended(
        s.nodes[0].send(messages.Hold(doc_hash=s.doc_hash, wraps=(wrap,))), Code.POLICY
    )


@blind
def test_36_a_second_key_of_a_client_with_a_right_claim(start, trust):
    """A dishonest client of the roster seals another key, before and after the first entry."""
    s = start(trust)
    dishonest = Pairs(s.doc_hash, s.session(1), s.identity(1))

    def hold(secret):
        key = primitives.group_key(secret, s.doc_hash)
        key_id = primitives.key_id(key, s.doc_hash)
        envelope = dishonest.wrap(secret, (s.peer(0),))
        wrap = messages.Wrap(
            distributor=s.peer(1).row, key_id=key_id, envelope=envelope
        )
        return s.nodes[0].send(messages.Hold(doc_hash=s.doc_hash, wraps=(wrap,)))

    for secret in (b"x" * 32, b"y" * 32):
        assert isinstance(hold(secret), messages.Held)
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    before = s.group_key(0)
    defended(hold(b"z" * 32), Code.KEY)
    assert s.group_key(0) == before
    # the one that it has
    assert isinstance(hold(s.session(0).group_secret), messages.Held)


@pytest.mark.claim("threat-model", "36")
@blind
def test_36_two_keys_of_one_distributor(start, trust):
    """An envelope that opens to another key than its id says is none: a complaint, no other key."""
    s = start(trust)
    request = s.keys_of()
    first, second = (s.send(i, request) for i in (0, 1))
    assert first.key_id != second.key_id
    s.take_envelopes(0, second.key_id, first.envelopes, range(7))
    hold = messages.Hold(doc_hash=s.doc_hash, wraps=s.wraps(2))
    defended(s.nodes[2].send(hold), Code.KEY)
    s.take_envelopes(0, first.key_id, first.envelopes, range(7))
    right, own = s.wraps(2)[0], messages.split(first.envelopes, 48)
    false = change(right, distributor=s.peer(1).row)
    others = (
        change(right, envelope=own[3]),
        false,
        change(right, key_id=second.key_id),
    )
    for wraps in ((others[0],), (false,), (others[2],)):
        defended(s.nodes[2].send(change(hold, wraps=wraps)), Code.KEY)
    for wraps in ((), (right, right), (right, others[2])):
        defended(s.nodes[2].send(change(hold, wraps=wraps)), Code.BAD_MESSAGE)
    held = s.nodes[2].send(change(hold, wraps=(false, right)))  # the first that fits
    assert held == messages.Held(doc_hash=s.doc_hash, key_id=first.key_id)
    # A holder seals it for any number of owners, and no other one.
    one = s.nodes[2].send(messages.Keys(doc_hash=s.doc_hash, peers=s.peer(5).row))
    assert one.key_id == first.key_id
    s.take_envelopes(2, one.key_id, one.envelopes, [5])
    assert s.nodes[5].send(change(hold, wraps=s.wraps(5))) == held


@pytest.mark.claim("threat-model", "36")
def test_36_limit_relayed_keys_let_an_active_server_be_the_distributor(start):
    """Not defended: relayed keys protect against a server that only reads."""
    s = start(O, "relayed")
    assert isinstance(s.ask(0, wraps=(outsiders_wrap(s),)), Answer)
    assert s.session(0).group_secret == b"k" * 32


@pytest.mark.claim("threat-model", "36")
@blind
def test_36_another_group_key_after_the_first_entry(start, trust):
    s = start(trust)
    s.round(1)
    assert isinstance(s.ask(0, t=2), Answer)
    before = s.group_key(0)
    defended(s.ask(0, t=2, attempt=2, wraps=(outsiders_wrap(s),)), Code.KEY)
    defended(
        s.send(0, messages.Hold(doc_hash=s.doc_hash, wraps=(outsiders_wrap(s),))),
        Code.KEY,
    )
    assert s.group_key(0) == before


@pytest.mark.claim("threat-model", "37")
@pytest.mark.default_cases("values")
@stopped_by(
    f"{PROTOCOL}.session.ClientSession.end",
    to=lambda session, how: setattr(session, "over", how),
    of=[(S, False)],
)
@protected
@each_ledger
def test_37_lasting_keys_stolen_after_the_run_open_nothing(start, trust, ledger):
    """All that is secret while a run goes on is erased with it: in memory and on the disk."""
    s = start(trust, ledger=ledger)
    recorded = s.deal()
    context = s.context(1, 1, recorded[0].tag)
    sessions = [s.session(i) for i in range(7)]
    names = [
        Pairs(s.doc_hash, session, s.identity(i))._name
        for i, session in enumerate(sessions)
    ]
    kept = [value for key, value in pairs_of(s).items() if key[0] in names]
    assert kept
    for node in s.nodes:  # from here on as nodes, which share nothing
        node.shared = NO_SHARED_WORK
    for t in (1, 2, 3):
        s.round(t)
    assert all(isinstance(reply, Finished) for reply in s.finish().values())
    keys = (
        "secret",
        "ephemeral",
        "group_secret",
        "group_key",
        "query_key",
        "drawn_secret",
    )
    fields = (*keys, "state")
    if any(getattr(s.session(i), field) for i in range(7) for field in fields):
        raise SucceededError
    secrets = {getattr(session, field) for session in sessions for field in keys} - {
        b""
    }
    left = b"".join(everything_in(node) for node in s.nodes)
    assert not any(secret in left for secret in (*secrets, *kept))
    packages = "flower_kmeans.protocol", "flower_kmeans.secagg"
    assert not holders(secrets, *packages)

    # A thief of all lasting keys tries every secret that two recorded public keys make.
    stolen = [s.exchange_secret(i) for i in range(7)]
    public, lasting = (
        [s.key(i) for i in range(7)],
        [s.exchange_key(i) for i in range(7)],
    )
    agreed = {
        primitives.agree(own, key) for own in stolen for key in (*public, *lasting)
    }
    real = primitives.pair_secret(
        sessions[0].ephemeral, public[1], stolen[0], lasting[1]
    )

    def opens(ikm):
        with suppress(MessageError):
            if s.trust.has_committee:
                key = primitives.share_key(ikm, context, 0, 1, *public[:2])
                return (
                    primitives.unseal(key, pieces(recorded[0].sealed, 7)[1], context)
                    != b""
                )
            key = primitives.wrap_key(ikm, s.doc_hash, *public[:2])
            return primitives.unseal(key, s.wraps(1)[0].envelope, s.doc_hash) != b""
        return False

    assert opens(real)
    assert not any(
        opens(ikm) for ikm in (*agreed, *(x + y for x in agreed for y in agreed))
    )


def pairs_of(scene):
    """Return what the clients of a cohort share of pairs."""
    (shared,) = {node.shared for node in scene.nodes}
    return kept_pairs(shared)


def everything_in(node):
    """Return all bytes of a client's state and of its ledger's directory."""
    values = [value for record in node.state.values() for value in record.values()]
    if node.policy.state_dir is not None:
        values += [path.read_bytes() for path in Path(node.policy.state_dir).iterdir()]
    return b"".join(value for value in values if isinstance(value, bytes))


@pytest.mark.claim("threat-model", "38")
def test_38_refusals_depend_on_the_checksum_word_alone(start):
    s, rng = start(O), np.random.default_rng(3)
    s.round(1)
    checksum = s.entries[0].words[-8:]
    for i in range(7):
        words = rng.bytes(len(s.entries[0].words) - 8) + checksum
        if not isinstance(s.ask(i, t=2, entries=entry_changed(s, words=words)), Answer):
            raise SucceededError


@pytest.mark.claim("threat-model", "39")
@stopped_by(f"{PROTOCOL}.run.PROTOCOL", to=mock.ANY, of=[("flower-kmeans/2",)])
@pytest.mark.parametrize(
    "protocol", ["flower-kmeans/2", "flower-kmeans/4", "flower-kmeans/3 "]
)
def test_39_a_downgrade(start, protocol):
    s = start(set_up=False)
    defended(enrol(s, data=encode(change(s.document, protocol=protocol))), Code.VERSION)


@pytest.mark.claim("threat-model", "40")
@every
@each_ledger
def test_40_a_repeated_request_repeats_the_bytes(start, trust, ledger):
    s = start(trust, ledger=ledger)
    requests = [Enrol(doc=s.run.data), s.ask_of(0)]
    if trust == O:
        requests.append(s.keys_of())
    if trust in SHARED:
        requests.append(s.add_of(0, s.deal()))
    for request in requests:
        first = s.nodes[0].send(request)
        assert not isinstance(first, Refusal)
        assert s.nodes[0].send(request) == first
    if ledger:
        s.nodes[0].restart()
        assert s.nodes[0].send(request) == first


@pytest.mark.claim("threat-model", "41")
@pytest.mark.parametrize("trust", [O, "trusted-server", "plain"])
def test_41_a_server_without_a_committee_asks_to_add(start, trust):
    s = start(trust)
    at = s.at(0, 1, 1)
    some = {"survivors": b"\x7f", "public_keys": bytes(224), "sealed": b"x" * 7}
    defended(s.nodes[0].send(messages.Add(**at, h=ZERO, tag=ZERO, **some)), Code.POLICY)


@pytest.mark.claim("threat-model", "43")
def test_43_a_client_that_is_not_on_the_roster(start, tmp_path):
    s = start(B, set_up=False)
    (key, _) = write_members(tmp_path / "outsider", ["outsider"])
    s.nodes[0].policy = replace(s.nodes[0].policy, member_key_file=str(key))
    defended(enrol(s), Code.KEY)


@pytest.mark.claim("guarantees", "40")
@pytest.mark.claim("threat-model", "49")
def test_49_limit_more_than_tau_members_read_single_answers(start):
    """Not defended: R members that pool their shares see each answer, under its own noise."""
    s = start(S, n=10)
    answers = s.deal()
    context = s.context(1, 1, answers[9].tag)
    assert s.committee.sharing(s.run.trust.sum).threshold == 8
    vector = single_vector(s, answers[9], of=9)
    assert np.array_equal(vector[:-1], s.exact(9) + s.noise(9, context))
    assert vector[-1] == 1


@protected
def test_a_turn_of_a_vertical_run_is_none_of_another_kind(start, trust):
    s = start(trust)
    turn = Turn(doc_hash=s.doc_hash, step="open", t=1)
    defended(s.nodes[0].send(turn), Code.BAD_MESSAGE)
    assert isinstance(enrol(s), Enrolled)


@pytest.mark.claim("threat-model", "61")
@every
@each_ledger
def test_61_after_an_abort_nothing_is_answered(start, trust, ledger):
    """The server may end a run at any time. What it was answered counts, and no more is."""
    s = start(trust, ledger=ledger)
    request = s.ask_of(0)
    assert isinstance(s.send(0, request), Answer)
    for _ in range(2):
        abort = s.nodes[0].send(messages.Abort(doc_hash=s.doc_hash))
        assert abort == Finished(doc_hash=s.doc_hash)
    assert not s.session(0).secret
    late = change(request, attempt=2), Enrol(doc=s.run.data)
    for again in (request, *late, messages.Finish(doc_hash=s.doc_hash)):
        defended(s.nodes[0].send(again), Code.STALE)
    assert s.nodes[0].results == []


# ------------------------------------------------------------------- without the checks


@pytest.mark.claim("CONTRIBUTING", "if-change-stops-attack")
@pytest.mark.parametrize(
    ("attack", "arguments", "paths", "to"),
    MUTANTS,
    ids=[
        f"{attack.__name__[5:]}-{paths[0].rsplit('.', 1)[1]}"
        for attack, _, paths, _ in MUTANTS
    ],
)
def test_without_its_check_the_attack_succeeds(attack, arguments, paths, to, start):
    names = list(inspect.signature(attack).parameters)
    own = [name for name in names if name != "start"]
    given = {"start": start} if "start" in names else {}
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(mock.patch(path, to))
        stack.enter_context(pytest.raises(SucceededError))
        attack(**given, **dict(zip(own, arguments, strict=True)))


NOT_ONE_CHECK = {
    "accepted_committee",  # made of two that are
    "require_not_over",  # what is over has no secret left: see row 37
    "require_sharing",  # too few positions have no sharing at all; row 8
}


@pytest.mark.claim("CONTRIBUTING", "if-change-stops-attack")
def test_every_check_stops_an_attack():
    taken_away = {
        path.rsplit(".", 1)[1] for _, _, paths, _ in MUTANTS for path in paths
    }
    functions = inspect.getmembers(checks, inspect.isfunction)
    named = {
        name
        for name, value in functions
        if value.__module__ == checks.__name__ and not name.startswith("_")
    }
    assert named - taken_away == NOT_ONE_CHECK & named
