"""What dishonest parties and servers send in a vertical run, and how an honest party refuses it.

A test plays the other party or parties, with separate sessions (`Forged`), so it can seal
anything. Attack 1 is V1 of docs/threat-model.md, and so on. What is refused does not depend on the
polynomials of the sign: runs have straight ones, and keys of few primes.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from databases import sqlite_table
from harness import fits
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from vertical_runs import (
    N_RECORDS,
    POLICY,
    Forged,
    Party,
    Relay,
    blobs,
    code_of,
    interrupted,
    make_algorithm,
    make_parties,
    make_run,
    straight_signs,
)

from flower_kmeans.data.sql import Query
from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import messages
from flower_kmeans.protocol.cohort import UNCLAIMED
from flower_kmeans.protocol.messages import Abort, Code, Enrol, Joined, Peer, Refusal, Sent
from flower_kmeans.protocol.parcels import COLUMNS, DIGESTS, IDS, PUBLIC, RELIN, planned
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg import key_agreement
from flower_kmeans.secagg.hashing import u32
from flower_kmeans.vertical.align import ids_digest
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.parties import column_name
from flower_kmeans.vertical.ring import N, pack, packed_bytes

with straight_signs():
    Q = moduli(2)
WORDS = 6  # of a round with two clusters and two columns


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with straight_signs():
        yield


class Scene:
    """One honest party of a run whose other parties the test plays."""

    def __init__(self, party, run, slot, others):
        self.party, self.run, self.slot, self.others = party, run, slot, others
        joined = party.ask(Enrol(doc=run.data))
        assert isinstance(joined, Joined)
        self.joined = joined

    def turn(self, step, t=0, deliveries=(), **changes):
        """Return a turn for the honest party, with the keys of the others."""
        peers = b"".join(Peer(each.slot, each.pairs.public_key).row for each in self.others)
        fields = {"peers": peers, "deliveries": tuple(deliveries), **changes}
        return messages.Turn(doc_hash=self.run.doc_hash, step=step, t=t, **fields)

    def deliver(self, data, step, t=0, number=0, sender=0):
        """Return what a forged party seals for the honest one."""
        (forged,) = [each for each in self.others if each.slot == sender]
        return forged.deliver(self.joined, data, step, t, number)

    def copied(self, directory):
        """Return the same scene with a copy of the party."""
        copy = object.__new__(type(self))
        copy.__dict__ = {**self.__dict__, "party": self.party.copied(directory)}
        return copy

    def opened(self, sent, index=0, receiver=0):
        """Return the plaintext of a parcel that the honest party sent."""
        parcel = sent.parcels[index]
        (forged,) = [each for each in self.others if each.slot == receiver]
        place = messages.read_receivers(parcel.receivers).index(receiver)
        key = messages.split(parcel.keys, 48)[place]
        labels = {"step": parcel.step, "t": parcel.t, "number": parcel.number}
        delivery = messages.Delivery(sender=self.slot, **labels, key=key, data=parcel.data)
        return forged.open(self.joined, delivery, len(parcel.data) - 16)

    def code(self, request):
        """Return the code with which the party refuses."""
        return code_of(self.party.ask(request))


def c1(seed=0, words=WORDS):
    """Return packed words modulo q0 for the values of a round."""
    random = np.random.default_rng(seed)
    return pack(random.integers(0, Q.q0, (words, 1, N), dtype=np.uint64), (Q.q0,))


def scene_of(directory, slot, widths=(1, 1), check_ids=False, n_records=N_RECORDS, **options):
    """Return the scene of the party at a slot of a new run."""
    algorithm = make_algorithm(widths, n_records=n_records, **options)
    run = make_run(widths, algorithm, check_ids)
    ids = [str(i) for i in range(n_records)] if check_ids else None
    table = blobs(n_records, len(widths))
    parties = make_parties(directory, table, [1] * len(widths), ids)
    others = [Forged(run, other) for other in range(len(widths)) if other != slot]
    return Scene(parties[slot], run, slot, others)


@pytest.fixture(scope="module")
def holders_scene(tmp_path_factory):
    """A holder that has made its keys; the test plays party 0."""
    scene = scene_of(tmp_path_factory.mktemp("holder"), 1)
    scene.before = scene.copied(tmp_path_factory.mktemp("before") / "1")
    scene.keys = scene.party.ask(scene.turn("keys"))
    assert isinstance(scene.keys, Sent)
    return scene


@pytest.fixture
def holder(holders_scene, tmp_path):
    return holders_scene.copied(tmp_path / "copy")


def open_turn(scene, data=None, t=1):
    return scene.turn("open", t, [scene.deliver(c1(t) if data is None else data, "step", t)])


# ------------------------------------------------------------------------------ a holder's rounds


def test_a_round_is_opened_once_and_the_same_bytes_come_again(holder):
    """Attack 6: another c1, or averaging repeated noise."""
    first = holder.party.ask(open_turn(holder))
    assert isinstance(first, Sent)
    assert encode(holder.party.ask(open_turn(holder))) == encode(first)
    assert holder.code(open_turn(holder, c1(99))) == Code.CONFLICT
    assert isinstance(holder.party.ask(open_turn(holder, t=2)), Sent)
    assert holder.code(open_turn(holder)) == Code.STALE
    assert holder.code(open_turn(holder, c1(99))) == Code.STALE
    assert holder.code(holder.turn("keys")) == Code.STALE


def test_limit_a_holder_whose_ledger_was_restored_opens_rounds_once_more(holder):
    """Attack 16: each round since the backup, another c1 under other noise."""
    with interrupted(holder.party):
        first = [holder.party.ask(open_turn(holder, t=t)) for t in (1, 2)]
    again = [holder.party.ask(open_turn(holder, c1(99 + t), t)) for t in (1, 2)]
    assert all(isinstance(reply, Sent) for reply in first + again)
    assert not {holder.opened(sent) for sent in first} & {holder.opened(sent) for sent in again}
    # The same c1 is answered by the same bytes, so noise is not averaged.
    with interrupted(holder.party):
        repeated = holder.party.ask(open_turn(holder, c1(101), 2))
    assert encode(repeated) == encode(again[1])


def test_a_holder_without_a_ledger_opens_a_round_once(tmp_path):
    """In a simulation; a real party refuses to take part."""
    run = make_run()
    party = Party(tmp_path, blobs()[:, 1:], replace(POLICY, in_memory=True, party=1))
    scene = Scene(party, run, 1, [Forged(run, 0)])
    assert isinstance(party.ask(scene.turn("keys")), Sent)
    test_a_round_is_opened_once_and_the_same_bytes_come_again(scene)
    party.policy = replace(party.policy, in_memory=False)
    assert scene.code(open_turn(scene, t=2)) == Code.LEDGER


def test_rounds_are_opened_in_order_and_no_more_than_planned(holder):
    """Attack 7."""
    assert holder.code(open_turn(holder, t=2)) == Code.NEED
    for t in (1, 2):
        assert isinstance(holder.party.ask(open_turn(holder, t=t)), Sent)
    assert holder.code(open_turn(holder, t=3)) == Code.POLICY
    assert holder.code(open_turn(holder, t=0)) == Code.POLICY


def test_nothing_is_opened_before_the_keys_are_made(holders_scene, tmp_path):
    scene = holders_scene.before.copied(tmp_path / "copy")
    assert scene.code(open_turn(scene)) == Code.NEED
    assert scene.code(scene.turn("finish", 0, [scene.deliver(b"", "close")])) == Code.NEED


def of_another_run(scene, delivery):
    """A parcel of a run with the same parties, columns and parameters."""
    forged = Forged(make_run(run=bytes(15) + b"1"), 0, scene.others[0].session)
    return [forged.deliver(scene.joined, c1(), "step", 1)]


def largest_word():
    return c1()[:-6] + int(Q.q0).to_bytes(6, "little")


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda s, d: [s.deliver(c1(words=WORDS - 1), "step", 1)], Code.KEY),  # attack 7
        (lambda s, d: [s.deliver(c1(words=WORDS + 1), "step", 1)], Code.KEY),
        (lambda s, d: [s.deliver(largest_word(), "step", 1)], Code.BAD_MESSAGE),  # attack 11
        (of_another_run, Code.KEY),  # attack 10: replays
        (lambda s, d: [changed(s.deliver(c1(), "step", 2), t=1)], Code.KEY),
        (lambda s, d: [s.deliver(c1(), "step", 2)], Code.BAD_MESSAGE),
        (lambda s, d: [Forged(s.run, 0).deliver(s.joined, c1(), "step", 1)], Code.KEY),
        (lambda s, d: [changed(d, key=flipped(d.key))], Code.KEY),
        (lambda s, d: [changed(d, data=flipped(d.data))], Code.KEY),
        (lambda s, d: [d, d], Code.BAD_MESSAGE),
        (lambda s, d: [changed(d, sender=1)], Code.BAD_MESSAGE),
        (lambda s, d: [changed(d, number=1)], Code.BAD_MESSAGE),
        (lambda s, d: [changed(d, step="open")], Code.BAD_MESSAGE),
        (lambda s, d: [], Code.NEED),
    ],
)
def test_other_parcels_than_those_of_a_turn_are_refused(holder, make, code):
    deliveries = make(holder, holder.deliver(c1(), "step", 1))
    assert holder.code(holder.turn("open", 1, deliveries)) == code
    assert isinstance(holder.party.ask(open_turn(holder)), Sent)  # nothing was kept of it


def test_keys_of_other_parties_cannot_be_swapped_during_a_run(holder):
    """Attack 10."""
    swapped = Peer(0, Forged(holder.run, 0).pairs.public_key).row
    assert holder.code(changed(open_turn(holder), peers=swapped)) == Code.CONFLICT


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"peers": b""}, Code.BAD_MESSAGE),
        ({"step": "load", "t": 0}, Code.BAD_MESSAGE),
        ({"step": "step"}, Code.BAD_MESSAGE),
        ({"step": "close", "t": 0}, Code.BAD_MESSAGE),
        ({"step": "join", "t": 0}, Code.BAD_MESSAGE),
        ({"step": "encrypt", "t": 0}, Code.BAD_MESSAGE),
        ({"step": "finish", "t": 0}, Code.BAD_MESSAGE),
        ({"step": "finish", "t": 0, "deliveries": ()}, Code.NEED),
        ({"step": "keys"}, Code.BAD_MESSAGE),
        ({"step": "keys", "t": 0}, Code.BAD_MESSAGE),  # with a parcel that is not due
        ({"step": "keys", "t": 0, "deliveries": (), "part": 2}, Code.BAD_MESSAGE),
        ({"part": 2}, Code.BAD_MESSAGE),
        ({"commitments": (bytes(32),)}, Code.BAD_MESSAGE),
        ({"doc_hash": bytes(32)}, Code.NEED),
    ],
)
def test_turns_of_another_step_role_or_run_are_refused(holder, changes, code):
    assert holder.code(changed(open_turn(holder), **changes)) == code
    assert isinstance(holder.party.ask(open_turn(holder)), Sent)


@pytest.mark.parametrize("public_key", [bytes(32), (1).to_bytes(32, "little")])
def test_keys_that_agree_with_everyone_are_refused(holders_scene, tmp_path, public_key):
    scene = holders_scene.before.copied(tmp_path / "copy")
    peers = Peer(0, public_key).row
    assert scene.code(scene.turn("keys", peers=peers)) == Code.KEY


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_hostile_bytes_raise(holders_scene, data):
    good = encode(holders_scene.turn("open", 1))
    position = data.draw(st.integers(0, len(good) - 1))
    flipped = good[:position] + bytes([data.draw(st.integers(0, 255))]) + good[position + 1 :]
    reply = messages.decode_reply(holders_scene.party.client.answer_bytes(flipped))
    assert code_of(reply) in (Code.NEED, Code.BAD_MESSAGE, Code.POLICY, Code.CONFLICT, Code.KEY)


# ------------------------------------------------------------------------------ noise


def test_noise_of_a_share_has_the_planned_scale(tmp_path):
    """A c1 of zeros makes a holder's words its noise alone; accepted at no other scale."""
    scene = scene_of(tmp_path, 1, (150, 1), n_rounds=1)
    party, run = scene.party, scene.run
    assert isinstance(party.ask(scene.turn("keys")), Sent)
    algorithm, n_values = run.algorithm, run.document.words[0]
    zeros = pack(np.zeros((n_values, 1, N), dtype=np.uint64), (Q.q0,))
    words = np.frombuffer(scene.opened(party.ask(open_turn(scene, zeros))), "<u8").astype(np.int64)
    noise = np.where(words > Q.q0 // 2, words - Q.q0, words).reshape(2, -1)
    multiplier = run.plan.rounds[0][0].noise_multiplier
    units = algorithm.unflatten(np.arange(n_values), 1).blocks  # which word is which value
    index = np.column_stack([units["counts"], units["sums"]])
    scale = algorithm.sensitivities(1)[index] * 2.0**-algorithm.fraction_bits * Q.unit * multiplier
    sample = (noise / scale).ravel()
    assert [fits(sample * factor) for factor in (1, 1.5, 1 / 1.5)] == [True, False, False]


# ------------------------------------------------------------------------------ records


def column_parcels(sent):
    return [each.data for each in sent.parcels if each.number >= COLUMNS]


def test_columns_are_clipped_and_missing_values_are_the_middle(holders_scene, tmp_path, caplog):
    """Attacks 12 and 13; one session encrypts equal columns to equal bytes."""
    table = blobs()[:, 1:].copy()
    strange, plain = table.copy(), table.copy()
    strange[:6, 0] = [7.5, -1e308, np.nan, np.inf, -np.inf, 2.0]
    plain[:6, 0] = [2.0, 0.0, 1.0, 1.0, 1.0, 2.0]
    found = []
    for name, records in (("a", strange), ("b", plain), ("c", table)):
        scene = holders_scene.before.copied(tmp_path / name)
        scene.party.records = records
        found.append(column_parcels(scene.party.ask(scene.turn("keys"))))
    assert found[0] == found[1] != found[2]
    lines = [record.message for record in caplog.records if "missing" in record.message]
    assert lines == [
        "3 values are missing or not finite; each is the middle of its column's range."
    ]
    # The holder's log has those that are moved, too: once, and without those that are missing.
    lines = [each.getMessage() for each in caplog.records if each.name == "flower_kmeans.data"]
    assert [line.partition(": ")[2] for line in lines] == [
        f"values moved to the bounds, of {N_RECORDS} records: 2 of 'column 1'."
    ]


@pytest.mark.parametrize(
    "records",
    [
        blobs()[: N_RECORDS - 1, 1:],
        blobs(),
        np.zeros((0, 1)),
        [],
        np.zeros(N_RECORDS),
        np.array([["2024-01-01"]] * N_RECORDS, dtype="datetime64[D]"),
        None,
        SystemExit("customer 17 has no age"),  # what the loader raises
    ],
)
def test_other_records_than_announced_are_refused_before_anything_is_charged(
    holders_scene, tmp_path, records
):
    scene = holders_scene.before.copied(tmp_path / "copy")

    scene.party.records = records
    reply = scene.party.ask(scene.turn("keys"))
    assert reply == Refusal(code=Code.DATA, doc_hash=scene.run.doc_hash)
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


def test_a_query_of_a_database_is_refused(holders_scene, tmp_path, caplog):
    """Its rows may be others, or in another order, at each message."""
    scene = holders_scene.before.copied(tmp_path / "copy")
    uri = sqlite_table(tmp_path / "x.db", ["x"], blobs()[:, 1:].tolist())
    scene.party.records = Query(uri, "SELECT * FROM t")
    reply = scene.party.ask(scene.turn("keys"))
    assert reply == Refusal(code=Code.DATA, doc_hash=scene.run.doc_hash)
    assert "write its result to a file first" in caplog.text
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


def test_changed_records_end_the_run(holder):
    """Attack 16: nothing is encrypted twice under one number."""
    holder.party.records = holder.party.records + 1e-9
    assert holder.code(holder.turn("keys")) == Code.DATA
    holder.party.records = blobs()[:, 1:]
    again = holder.party.ask(holder.turn("keys"))
    assert isinstance(again, Sent)


# ------------------------------------------------------------------------------ party 0


@pytest.fixture(scope="module")
def first_scene(tmp_path_factory):
    """Party 0, which has joined; the test plays the holder."""
    return scene_of(tmp_path_factory.mktemp("first"), 0, check_ids=True)


@pytest.fixture
def first(first_scene, tmp_path):
    return first_scene.copied(tmp_path / "copy")


def parcel(scene, number, data=None, step="keys", t=0):
    """Return a parcel of the set-up for party 0, of zeros unless data is given."""
    if data is None:
        (data,) = [bytes(e.n_bytes) for e in planned(scene.run, 1, "keys") if e.number == number]
    return scene.deliver(data, step, t, number, sender=1)


def test_rows_of_another_order_are_refused_at_the_first_load(first):
    """Attack 14."""
    right, wrong = ids_digest(first.party.ids), ids_digest(first.party.ids[::-1])
    loads = {each: first.turn("load", 0, [parcel(first, IDS, each)]) for each in (right, wrong)}
    assert first.code(loads[wrong]) == Code.DATA
    for _ in range(2):
        assert isinstance(first.party.ask(loads[right]), Sent)
    assert first.code(loads[wrong]) == Code.CONFLICT
    first.party.ids = first.party.ids[:-1]  # as many as records
    assert first.code(loads[right]) == Code.DATA


def test_no_round_begins_before_everything_is_there(first):
    ids = parcel(first, IDS, ids_digest(first.party.ids))
    some = [ids, parcel(first, PUBLIC), parcel(first, RELIN)]
    for t, loads in ((1, []), (1, some), (2, [])):
        assert first.code(first.turn("step", t, loads)) == Code.NEED
    assert first.code(first.turn("step", 3)) == Code.POLICY
    assert first.code(first.turn("close")) == Code.NEED
    assert spent_epsilon(first.party.directory, 1e-6) == 0


@pytest.mark.parametrize(
    ("make", "code"),
    [
        # Attack 11: no other party's byte reaches SEAL unless it was checked.
        (
            lambda s: parcel(s, COLUMNS, bytes(32) + b"\xff" * packed_bytes(Q.data)),
            Code.BAD_MESSAGE,
        ),
        (lambda s: parcel(s, IDS, bytes(31)), Code.KEY),
        (lambda s: parcel(s, COLUMNS, bytes(100)), Code.KEY),
        (lambda s: parcel(s, PUBLIC, bytes(1)), Code.KEY),
        (lambda s: parcel(s, 0, bytes(48), "open", 1), Code.BAD_MESSAGE),
        (lambda s: parcel(s, COLUMNS + 1, bytes(32)), Code.BAD_MESSAGE),
        (lambda s: parcel(s, IDS, bytes(32), "keys", 1), Code.BAD_MESSAGE),
        (lambda s: parcel(s, DIGESTS, bytes(64), "join"), Code.BAD_MESSAGE),
    ],
)
def test_party_0_takes_the_parcels_of_a_set_up_only(first, make, code):
    assert first.code(first.turn("load", 0, [make(first)])) == code


def test_words_of_keys_are_below_their_primes_and_turns_those_of_party_0(first):
    """Attack 11."""
    ids = parcel(first, IDS, ids_digest(first.party.ids))
    keys = [parcel(first, PUBLIC, b"\xff" * packed_bytes(Q.key)), parcel(first, RELIN)]
    loads = [*keys, ids, parcel(first, COLUMNS)]
    assert first.code(first.turn("step", 1, loads)) == Code.BAD_MESSAGE
    for step in ("keys", "join", "encrypt", "finish"):
        assert first.code(first.turn(step)) == Code.BAD_MESSAGE


def test_columns_lie_where_a_step_looks_for_them(tmp_path):
    """A column's number says its chunk and its place among those of its party."""
    scene = scene_of(tmp_path, 0, (1, 2, 1), n_records=20_000)
    work_dir = scene.party.directory / "vertical"
    alone, under = bytes(32 + packed_bytes(Q.data)), bytes(2 * packed_bytes(Q.data))
    loads = [scene.deliver(alone, "keys", 0, COLUMNS + i, sender=1) for i in range(4)]
    loads += [scene.deliver(under, "encrypt", 0, COLUMNS + i, sender=2) for i in range(2)]
    assert isinstance(scene.party.ask(scene.turn("load", 0, loads)), Sent)
    found = {path.name for path in work_dir.glob(f"{scene.run.doc_hash.hex()}/column*")}
    places = [(1, chunk, i) for chunk in (0, 1) for i in (0, 1)] + [(2, 0, 0), (2, 1, 0)]
    assert found == {column_name(*place) for place in places}
    assert isinstance(scene.party.ask(Abort(doc_hash=scene.run.doc_hash)), Sent)
    assert not list(work_dir.iterdir())


def test_party_0_computes_only_with_keys_on_which_all_holders_agree(tmp_path):
    scene = scene_of(tmp_path, 0, (1, 1, 1), key_holders=2)
    loads = [
        scene.deliver(bytes(each.n_bytes), "join", 0, each.number, sender=sender)
        for sender in (1, 2)
        for each in planned(scene.run, sender, "join")
    ]
    assert scene.code(scene.turn("step", 1, loads)) == Code.KEY
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Party 0 after its first step, with the honest keys of the holder that the test plays."""
    directory = tmp_path_factory.mktemp("begun")
    run = make_run()
    parties = make_parties(directory, blobs())
    honest = Scene(parties[1], run, 1, [Forged(run, 0)])
    session = parties[0].ask(Enrol(doc=run.data)) and parties[0].session(run)
    honest.others = [Forged(run, 0, session)]
    keys = parties[1].ask(honest.turn("keys"))
    scene = Scene(parties[0], run, 0, [Forged(run, 1, parties[1].session(run))])
    loads = [
        scene.deliver(honest.opened(keys, i), "keys", 0, each.number, sender=1)
        for i, each in enumerate(keys.parcels)
    ]
    scene.load_turn = scene.turn("load", 0, loads)
    assert isinstance(parties[0].ask(scene.load_turn), Sent)
    scene.first_turn = scene.turn("step", 1)
    with interrupted(parties[0]):
        scene.interrupted = parties[0].ask(scene.first_turn)
    scene.first = parties[0].ask(scene.first_turn)
    assert isinstance(scene.first, Sent)
    return scene


def shares(scene, t, words):
    return [scene.deliver(np.asarray(words, "<u8").tobytes(), "open", t, sender=1)]


def test_a_step_is_done_once(begun, tmp_path):
    """Party 0 goes on with whatever opens, and with one answer for each round."""
    scene = begun.copied(tmp_path / "copy")
    for words, code in (
        ([Q.q0] * WORDS, Code.BAD_MESSAGE),  # attack 11
        ([2**64 - 1] * WORDS, Code.BAD_MESSAGE),
        ([0] * (WORDS - 1), Code.KEY),
    ):
        assert scene.code(scene.turn("step", 2, shares(scene, 1, words))) == code
    assert scene.code(scene.turn("step", 2)) == Code.NEED
    for reply in (scene.interrupted, scene.party.ask(scene.first_turn)):
        assert encode(reply) == encode(scene.first)
    second = scene.turn("step", 2, shares(scene, 1, [5] * WORDS))
    close = scene.turn("close", 0, shares(scene, 2, [7] * WORDS))
    reply = scene.party.ask(second)
    assert isinstance(reply, Sent)
    assert encode(scene.party.ask(second)) == encode(reply)
    other = scene.turn("step", 2, shares(scene, 1, [6] * WORDS))
    assert scene.code(other) == Code.CONFLICT
    assert scene.code(scene.first_turn) == scene.code(scene.load_turn) == Code.STALE
    reply = scene.party.ask(close)
    assert isinstance(reply, Sent)
    assert encode(scene.party.ask(close)) == encode(reply)
    assert len(scene.party.results) == 1
    assert scene.code(second) == Code.STALE


def test_a_party_that_lost_its_session_does_not_go_on(begun, tmp_path):
    party = make_parties(tmp_path, blobs())[0]
    assert code_of(party.ask(begun.first_turn)) == Code.NEED
    assert isinstance(party.ask(Enrol(doc=begun.run.data)), Joined)
    assert code_of(party.ask(begun.load_turn)) == Code.KEY
    assert code_of(party.ask(begun.first_turn)) == Code.NEED


# ------------------------------------------------------------------------------ joint keys

WIDTHS = (1, 1, 1, 1)


def test_a_holder_commits_before_it_sees_a_share(tmp_path):
    """Attacks 4 and 5: rogue keys, and false sums."""
    scene = scene_of(tmp_path, 1, WIDTHS, key_holders=2)
    own, share = scene.joined.commitment, bytes(packed_bytes(Q.key))
    assert len(own) == 32
    other = bytes(32)
    for wrong in ((), (own,), (other, own), (own, own), (own, other, other)):
        assert scene.code(scene.turn("keys", commitments=wrong)) == Code.BAD_MESSAGE
    relin = bytes(2 * len(Q.data) * packed_bytes(Q.key))
    mail = [scene.deliver(share, "keys", sender=2), scene.deliver(relin, "keys", 0, 1, sender=2)]
    assert scene.code(scene.turn("join", 0, mail)) == Code.NEED
    keys = scene.turn("keys", commitments=(own, other))
    reply = scene.party.ask(keys)
    assert isinstance(reply, Sent)
    assert [each.receivers for each in reply.parcels] == [u32(2), u32(2)]
    assert encode(scene.party.ask(keys)) == encode(reply)
    assert scene.code(scene.turn("keys", commitments=(own, b"1" * 32))) == Code.CONFLICT
    assert scene.code(scene.turn("join", 0, mail)) == Code.KEY  # not what was committed to
    assert scene.code(scene.turn("join", 0, mail[:1])) == Code.NEED
    assert scene.code(scene.turn("join", 0, mail[::-1])) == Code.BAD_MESSAGE
    assert scene.code(open_turn(scene)) == Code.NEED
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


def test_limit_a_restored_ledger_takes_commitments_that_follow_its_first_message(tmp_path):
    """Attacks 4, 5 and 16: the other holder chooses its part by this one's."""
    scene = scene_of(tmp_path, 1, WIDTHS, key_holders=2)
    own, share = scene.joined.commitment, bytes(packed_bytes(Q.key))
    with interrupted(scene.party):
        first = scene.party.ask(scene.turn("keys", commitments=(own, bytes(32))))
    relin = bytes(2 * len(Q.data) * packed_bytes(Q.key))  # any, made when the first one is known
    commitment = hashlib.sha256(share + relin).digest()
    second = scene.party.ask(scene.turn("keys", commitments=(own, commitment)))
    assert encode(second) == encode(first)
    mail = [scene.deliver(share, "keys", sender=2), scene.deliver(relin, "keys", 0, 1, sender=2)]
    assert isinstance(scene.party.ask(scene.turn("join", 0, mail)), Sent)


def test_columns_are_encrypted_only_under_a_key_that_all_holders_confirm(tmp_path):
    scene = scene_of(tmp_path, 3, WIDTHS, key_holders=2)
    party = scene.party
    public = bytes(packed_bytes(Q.key))
    right, wrong = hashlib.sha256(public).digest() + bytes(32), bytes(64)

    def mail(first, second):
        return [
            scene.deliver(public, "join", 0, PUBLIC, sender=1),
            scene.deliver(first, "join", 0, DIGESTS, sender=1),
            scene.deliver(second, "join", 0, DIGESTS, sender=2),
        ]

    for first, second in ((right, wrong), (wrong, right), (wrong, wrong)):
        assert scene.code(scene.turn("encrypt", 0, mail(first, second))) == Code.KEY
    assert scene.code(scene.turn("encrypt", 0, mail(right, right)[:2])) == Code.NEED
    assert spent_epsilon(party.directory, 1e-6) == 0
    turn = scene.turn("encrypt", 0, mail(right, right))
    sent = party.ask(turn)
    assert [each.receivers for each in sent.parcels] == [u32(0)]
    assert spent_epsilon(party.directory, 1e-6) == pytest.approx(8.0)
    assert encode(party.ask(turn)) == encode(sent)


def test_columns_are_encrypted_under_one_key(tmp_path):
    """Under two the mask is the same: the difference of the ciphertexts gives it."""
    scene = scene_of(tmp_path, 3, WIDTHS)

    def sent(first_byte):
        public = bytes([first_byte]).ljust(packed_bytes(Q.key), b"\0")
        mail = [scene.deliver(public, "keys", 0, PUBLIC, sender=1)]
        return scene.party.ask(scene.turn("encrypt", 0, mail))

    sealed = sent(0)
    assert isinstance(sealed, Sent)
    assert encode(sent(0)) == encode(sealed)
    assert code_of(sent(1)) == Code.CONFLICT


# ------------------------------------------------------------------------------ rosters


def with_roster(directory, *names):
    """Return a run with a roster, its party 1, and the identity of its party 0."""
    *keys, roster = write_members(directory / "keys", names)
    run = make_run(keys="roster", roster=Roster.from_file(roster).digest)
    party = make_parties(directory, blobs())[1]
    files = {"roster_file": roster, "member_key_file": keys[1]}
    party.policy = replace(party.policy, **files, party=0)
    return run, party, replace(party.policy, member_key_file=keys[0]).read_identity()


@pytest.fixture
def rosters_scene(tmp_path):
    """A holder with a roster, and the identity of party 0, whom the test plays."""
    run, party, identity = with_roster(tmp_path, "a", "b")
    scene = Scene(party, run, 1, [Forged(run, 0, identity=identity)])
    scene.identity = identity
    return scene


def keys_turn(scene, public_key=b"", node_id=7, claim=b""):
    """Return the turn with a public key of party 0, its own by default, and its claim."""
    pairs = scene.others[0].pairs
    peer = Peer(0, public_key or pairs.public_key, node_id, claim or pairs.claim(7))
    return scene.turn("keys", peers=peer.row)


def test_a_roster_gives_the_slot_and_authenticates_the_keys(rosters_scene):
    """Attack 10: the policy's party does not count, and no key without its owner's claim."""
    scene, stranger = rosters_scene, Forged(rosters_scene.run, 0)
    assert (scene.joined.slot, len(scene.joined.claim)) == (1, 64)
    false = [
        keys_turn(scene, claim=bytes(64)),
        keys_turn(scene, claim=scene.joined.claim),
        keys_turn(scene, node_id=8),
        keys_turn(scene, stranger.pairs.public_key),
    ]
    assert [scene.code(turn) for turn in false] == [Code.KEY] * 4
    assert scene.code(scene.turn("keys")) == Code.BAD_MESSAGE  # a row without a claim
    assert isinstance(scene.party.ask(keys_turn(scene)), Sent)


def test_who_steals_lasting_keys_opens_nothing_that_was_recorded(rosters_scene):
    """Attack 20: ephemeral keys are erased with the run."""
    scene = rosters_scene
    sent = scene.party.ask(keys_turn(scene))
    assert scene.opened(sent)  # party 0 itself can
    assert isinstance(scene.party.ask(Abort(doc_hash=scene.run.doc_hash)), Sent)
    thief = Forged(scene.run, 0, ClientSession.begin(scene.run.doc_hash, b"", 1), scene.identity)
    scene.others = [thief]
    with pytest.raises(MessageError):
        scene.opened(sent)


def test_a_roster_has_a_line_for_each_party(tmp_path):
    run, party, _ = with_roster(tmp_path, "a", "b", "c")
    assert code_of(party.ask(Enrol(doc=run.data))) == Code.POLICY


# ------------------------------------------------------------------------------ V10: other nodes


class Stranger:
    """A node that is no party: it joins in a slot with whatever it has copied of its owner."""

    def __init__(self, owner, **changes):
        self.owner, self.changes, self.results = owner, changes, []

    def ask(self, data):
        request = messages.decode_request(data)
        if not isinstance(request, Enrol):
            return Refusal(code=Code.INTERNAL, doc_hash=request.doc_hash)
        joined = self.owner.ask(data)
        values = {"public_key": key_agreement.public_key(token(32)), **self.changes}
        return joined if self.changes.get("copies") else changed(joined, **values)


def played(run, nodes, roster=None, named=None):
    """Play a run whose server finds parties and strangers among its nodes, in this order."""
    net = Relay(run, nodes, roster=roster, nodes=named)
    net.server.set_up(range(len(nodes)), net.trip)
    for _ in range(run.document.rounds):
        net.take("step")
    net.take("close")
    return net


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("changes", [{}, {"claim": bytes(64)}, {"copies": True}])
def test_v10_a_stranger_takes_no_partys_slot_of_a_roster(slot, changes, tmp_path):
    """It comes first, with the party's public key, or with all that the party sent."""
    run, party, _ = with_roster(tmp_path, "a", "b")
    files = {"roster_file": party.policy.roster_file}
    parties = make_parties(tmp_path / "parties", blobs())
    for number, (each, name) in enumerate(zip(parties, "ab", strict=True)):
        key = Path(party.policy.member_key_file).with_name(f"{name}.key")
        each.policy = replace(each.policy, **files, member_key_file=key, party=None)
        each.node_id = 1 + number
    stranger = Stranger(parties[slot], **changes)
    net = played(run, [stranger, *parties], Roster.from_file(files["roster_file"]))
    assert [incident.reason for incident in net.server.incidents] == [UNCLAIMED]
    assert [bool(each.results) for each in (stranger, *parties)] == [False, True, True]


@pytest.mark.parametrize("slot", [0, 1])
def test_v10_under_relayed_keys_the_named_nodes_are_the_parties(slot, tmp_path):
    """A stranger has a whole client of its own; without names it would be the party."""
    run, parties = make_run(), make_parties(tmp_path / "parties", blobs())
    made_up = np.random.default_rng(9).random((len(blobs()), 2))
    stranger = make_parties(tmp_path / "stranger", made_up)[slot]
    net = played(run, [stranger, *parties], named=[1, 2])
    assert [bool(each.results) for each in (stranger, *parties)] == [False, True, True]
    assert net.server.incidents == []
    squatted = make_run()
    with pytest.raises(RunError):  # the attack: whoever comes first
        played(squatted, [stranger, parties[1 - slot]], named=[1, 2])
    played(squatted, [stranger, *make_parties(tmp_path / "again", blobs())])
    assert stranger.results


def test_v10_a_named_node_takes_no_other_slot(tmp_path):
    run, parties = make_run(), make_parties(tmp_path / "parties", blobs())
    with pytest.raises(RunError, match="named for another slot"):
        played(run, parties, named=[1, 0])
