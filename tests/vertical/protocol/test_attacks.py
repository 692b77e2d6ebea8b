"""What dishonest parties and servers send in a vertical run, and how an honest party refuses it.

A test plays the other party or parties, with separate sessions (`Forged`), so it can
seal anything. Attack 1 is V1 of docs/threat-model.md, and so on. What is refused does
not depend on the polynomials of the sign: runs have straight ones, and keys of few
primes.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

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

from flower_kmeans.algorithms import plausibility
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.sql import SqlQuery
from flower_kmeans.errors import BudgetError, MessageError, RunError
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import messages
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.incidents import UNCLAIMED
from flower_kmeans.protocol.messages import Abort, Code, Enrol, Peer, Refusal
from flower_kmeans.protocol.roster import Roster, write_members
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.wire import decode, encode, encode_arrays
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.primitives import u32
from flower_kmeans.vertical import keys
from flower_kmeans.vertical.align import ids_digest
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.parties import column_name
from flower_kmeans.vertical.protocol.messages import (
    Delivery,
    Joined,
    Sent,
    Turn,
    read_receivers,
)
from flower_kmeans.vertical.protocol.parcels import (
    COLUMNS,
    DIGESTS,
    IDS,
    PUBLIC,
    RELIN,
    planned,
)
from flower_kmeans.vertical.protocol.party_session import PartySession, Progress
from flower_kmeans.vertical.ring import (
    N,
    addmod,
    column,
    intt,
    negmod,
    pack,
    packed_bytes,
    unpack,
)

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
        peers = b"".join(
            Peer(each.slot, each.pairs.public_key).row for each in self.others
        )
        fields = {"peers": peers, "deliveries": tuple(deliveries), **changes}
        return Turn(doc_hash=self.run.doc_hash, step=step, t=t, **fields)

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
        place = read_receivers(parcel.receivers).index(receiver)
        key = messages.split(parcel.keys, 48)[place]
        labels = {"step": parcel.step, "t": parcel.t, "number": parcel.number}
        delivery = Delivery(sender=self.slot, **labels, key=key, data=parcel.data)
        return forged.open(self.joined, delivery, len(parcel.data) - 16)

    def code(self, request):
        """Return the code with which the party refuses."""
        return code_of(self.party.ask(request))


def c1(seed=0, words=WORDS):
    """Return packed words modulo q0 for the values of a round."""
    random = np.random.default_rng(seed)
    return pack(random.integers(0, Q.q0, (words, 1, N), dtype=np.uint64), (Q.q0,))


def scene_of(
    directory, slot, widths=(1, 1), check_ids=False, n_records=N_RECORDS, **options
):
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
    return scene.turn(
        "open", t, [scene.deliver(c1(t) if data is None else data, "step", t)]
    )


# -------------------------------------------------------------------- a holder's rounds


@pytest.mark.claim("threat-model", "V6")
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


@pytest.mark.claim("threat-model", "V6", "V16")
def test_limit_a_holder_whose_ledger_was_restored_opens_rounds_once_more(holder):
    """Attack 16: each round since the backup, another c1 under other noise."""
    with interrupted(holder.party):
        first = [holder.party.ask(open_turn(holder, t=t)) for t in (1, 2)]
    again = [holder.party.ask(open_turn(holder, c1(99 + t), t)) for t in (1, 2)]
    assert all(isinstance(reply, Sent) for reply in first + again)
    assert not {holder.opened(sent) for sent in first} & {
        holder.opened(sent) for sent in again
    }
    # The same c1 is answered by the same bytes, so noise is not averaged.
    with interrupted(holder.party):
        repeated = holder.party.ask(open_turn(holder, c1(101), 2))
    assert encode(repeated) == encode(again[1])


@pytest.mark.claim("threat-model", "V6")
def test_a_holder_without_a_ledger_opens_a_round_once(tmp_path):
    """In a simulation; a real party refuses to take part."""
    run = make_run()
    party = Party(tmp_path, blobs()[:, 1:], replace(POLICY, in_memory=True, party=1))
    scene = Scene(party, run, 1, [Forged(run, 0)])
    assert isinstance(party.ask(scene.turn("keys")), Sent)
    test_a_round_is_opened_once_and_the_same_bytes_come_again(scene)
    party.policy = replace(party.policy, in_memory=False)
    assert scene.code(open_turn(scene, t=2)) == Code.LEDGER


@pytest.mark.claim("threat-model", "V7")
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
    assert (
        scene.code(scene.turn("finish", 0, [scene.deliver(b"", "close")])) == Code.NEED
    )


def of_another_run(scene, delivery):
    """A parcel of a run with the same parties, columns and parameters."""
    forged = Forged(make_run(run=bytes(15) + b"1"), 0, scene.others[0].session)
    return [forged.deliver(scene.joined, c1(), "step", 1)]


def largest_word():
    return c1()[:-6] + int(Q.q0).to_bytes(6, "little")


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.claim("threat-model", "V3", "V7", "V10", "V11")
@pytest.mark.claim("protocol", "slot-columns-bounds-values")
@pytest.mark.parametrize(
    ("make", "code"),
    [
        # attack 7
        (lambda s, d: [s.deliver(c1(words=WORDS - 1), "step", 1)], Code.KEY),
        (lambda s, d: [s.deliver(c1(words=WORDS + 1), "step", 1)], Code.KEY),
        # attack 11
        (lambda s, d: [s.deliver(largest_word(), "step", 1)], Code.BAD_MESSAGE),
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
    # nothing was kept of it
    assert isinstance(holder.party.ask(open_turn(holder)), Sent)


@pytest.mark.claim("threat-model", "V10")
def test_keys_of_other_parties_cannot_be_swapped_during_a_run(holder):
    """Attack 10."""
    swapped = Peer(0, Forged(holder.run, 0).pairs.public_key).row
    assert holder.code(changed(open_turn(holder), peers=swapped)) == Code.CONFLICT


@pytest.mark.claim("protocol", "slot-columns-bounds-values")
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


@pytest.mark.claim("threat-model", "V11")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_hostile_bytes_raise(holders_scene, data):
    good = encode(holders_scene.turn("open", 1))
    position = data.draw(st.integers(0, len(good) - 1))
    flipped = (
        good[:position] + bytes([data.draw(st.integers(0, 255))]) + good[position + 1 :]
    )
    reply = messages.decode_reply(holders_scene.party.client.answer_bytes(flipped))
    assert code_of(reply) in (
        Code.NEED,
        Code.BAD_MESSAGE,
        Code.POLICY,
        Code.CONFLICT,
        Code.KEY,
    )


# ------------------------------------------------------------------------------ noise


@pytest.mark.claim("guarantees", "32")
def test_noise_of_a_share_has_the_planned_scale(tmp_path):
    """A c1 of zeros makes a holder's words its noise alone; accepted at no other scale."""
    scene = scene_of(tmp_path, 1, (150, 1), n_rounds=1)
    party, run = scene.party, scene.run
    assert isinstance(party.ask(scene.turn("keys")), Sent)
    algorithm, n_values = run.algorithm, run.document.words[0]
    zeros = pack(np.zeros((n_values, 1, N), dtype=np.uint64), (Q.q0,))
    words = np.frombuffer(
        scene.opened(party.ask(open_turn(scene, zeros))), "<u8"
    ).astype(np.int64)
    noise = np.where(words > Q.q0 // 2, words - Q.q0, words).reshape(2, -1)
    multiplier = run.plan.rounds[0][0].noise_multiplier
    # which word is which value
    units = algorithm.layout(1).unflatten(np.arange(n_values)).blocks
    index = np.column_stack([units["counts"], units["sums"]])
    scale = (
        sensitivities(algorithm, 1)[index]
        * 2.0**-algorithm.fraction_bits
        * Q.unit
        * multiplier
    )
    sample = (noise / scale).ravel()
    assert [fits(sample * factor) for factor in (1, 1.5, 1 / 1.5)] == [
        True,
        False,
        False,
    ]


# ------------------------------------------------------------------------------ records


def column_parcels(sent):
    return [each.data for each in sent.parcels if each.number >= COLUMNS]


@pytest.mark.claim("vertical", "missing-value-becomes-middle")
@pytest.mark.claim("threat-model", "V13")
def test_columns_are_clipped_and_missing_values_are_the_middle(
    holders_scene, tmp_path, caplog
):
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
    # The holder's log has those that are moved, too: once, and without those that are
    # missing.
    lines = [
        each.getMessage()
        for each in caplog.records
        if each.name == "flower_kmeans.data"
    ]
    assert [line.partition(": ")[2] for line in lines] == [
        f"values moved to the bounds, of {N_RECORDS} records: 2 of 'column 1'."
    ]


@pytest.mark.claim("protocol", "slot-columns-bounds-values")
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


@pytest.mark.claim("own-data", "simulate-reads-each-partition")
def test_a_query_of_a_database_is_refused(holders_scene, tmp_path, caplog):
    """Its rows may be others, or in another order, at each message."""
    scene = holders_scene.before.copied(tmp_path / "copy")
    uri = sqlite_table(tmp_path / "x.db", ["x"], blobs()[:, 1:].tolist())
    scene.party.records = SqlQuery(uri, "SELECT * FROM t")
    reply = scene.party.ask(scene.turn("keys"))
    assert reply == Refusal(code=Code.DATA, doc_hash=scene.run.doc_hash)
    assert "write its result to a file first" in caplog.text
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


@pytest.mark.claim("threat-model", "V16")
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
def joined(first_scene, tmp_path):
    return first_scene.copied(tmp_path / "copy")


@pytest.fixture
def first(joined):
    """Party 0, which has compared rows."""
    assert isinstance(
        joined.party.ask(ids_turn(joined, ids_digest(joined.party.ids))), Sent
    )
    return joined


def ids_turn(scene, *digests):
    """Return party 0's turn with what the other parties sealed of their row ids."""
    mail = [
        scene.deliver(each, "ids", 0, IDS, sender=1 + i)
        for i, each in enumerate(digests)
    ]
    return scene.turn("ids", 0, mail)


def parcel(scene, number, data=None, step="keys", t=0):
    """Return a parcel of the set-up for party 0, of zeros unless data is given."""
    if data is None:
        (data,) = [
            bytes(e.n_bytes)
            for e in planned(scene.run, 1, "keys")
            if e.number == number
        ]
    return scene.deliver(data, step, t, number, sender=1)


@pytest.mark.claim("threat-model", "V14")
def test_v14_rows_of_another_order_are_refused_before_anything_is_loaded(joined):
    ids = joined.party.ids
    load = joined.turn("load", 0, [parcel(joined, COLUMNS)])
    assert joined.code(joined.turn("ids")) == Code.NEED
    assert joined.code(ids_turn(joined, bytes(31))) == Code.KEY
    for wrong in (ids[::-1], [*ids[:-1], "x"]):
        assert joined.code(ids_turn(joined, ids_digest(wrong))) == Code.DATA
        for early in (load, joined.turn("step", 1)):
            assert joined.code(early) == Code.NEED
    for _ in range(2):
        assert isinstance(joined.party.ask(ids_turn(joined, ids_digest(ids))), Sent)
    joined.party.ids = ids[::-1]
    for late in (ids_turn(joined, ids_digest(ids[::-1])), load, joined.turn("step", 1)):
        assert joined.code(late) == Code.DATA
    joined.party.ids = ids[:-1]  # fewer than records
    assert joined.code(load) == Code.DATA
    joined.party.ids = ids
    assert isinstance(joined.party.ask(load), Sent)
    assert spent_epsilon(joined.party.directory, 1e-6) == 0


@pytest.mark.claim("protocol", "roster-up-4-nodes")
def test_v14_rows_are_compared_again_with_another_node_of_a_party(first):
    """Whose key is another one; it may take the place as long as nothing else was given."""
    load = first.turn("load", 0, [parcel(first, COLUMNS)])
    assert isinstance(first.party.ask(first.turn("load")), Sent)
    first.others = [Forged(first.run, 1)]
    again = first.turn("load", 0, [parcel(first, COLUMNS)])
    assert first.code(again) == Code.NEED
    assert isinstance(
        first.party.ask(ids_turn(first, ids_digest(first.party.ids))), Sent
    )
    assert isinstance(first.party.ask(again), Sent)
    assert first.code(load) == Code.CONFLICT  # it has the other one's column


@pytest.mark.claim("threat-model", "V14")
def test_v14_one_of_several_parties_has_other_rows(tmp_path):
    scene = scene_of(tmp_path, 0, (1, 1, 1), check_ids=True)
    right, wrong = ids_digest(scene.party.ids), ids_digest(scene.party.ids[::-1])
    for digests in ((wrong, right), (right, wrong), (wrong, wrong)):
        assert scene.code(ids_turn(scene, *digests)) == Code.DATA
    assert isinstance(scene.party.ask(ids_turn(scene, right, right)), Sent)


@pytest.mark.claim("threat-model", "V14")
@pytest.mark.parametrize(("slot", "holders"), [(1, 1), (1, 2), (3, 2)])
def test_v14_keys_and_columns_travel_after_row_ids(slot, holders, tmp_path):
    """Of a sole holder, a joint one, and a party without a key."""
    scene = scene_of(tmp_path, slot, WIDTHS, check_ids=True, key_holders=holders)
    party, public = scene.party, bytes(packed_bytes(Q.key))
    if slot == 3:
        digests = hashlib.sha256(public).digest() + bytes(32)
        mail = [scene.deliver(public, "join", 0, PUBLIC, sender=1)]
        mail += [
            scene.deliver(digests, "join", 0, DIGESTS, sender=each) for each in (1, 2)
        ]
        turn = scene.turn("encrypt", 0, mail)
    else:
        commitments = (scene.joined.commitment, bytes(32)) if holders == 2 else ()
        turn = scene.turn("keys", commitments=commitments)
    assert scene.code(turn) == Code.NEED
    sent = party.ask(scene.turn("ids"))
    assert [(each.number, each.receivers) for each in sent.parcels] == [(IDS, u32(0))]
    assert scene.opened(sent) == ids_digest(party.ids)
    assert encode(party.ask(scene.turn("ids"))) == encode(sent)
    assert scene.code(scene.turn("ids", part=2)) == Code.BAD_MESSAGE
    ids, party.ids = party.ids, party.ids[::-1]
    assert scene.code(turn) == scene.code(scene.turn("ids")) == Code.DATA
    party.ids = ids
    assert spent_epsilon(party.directory, 1e-6) == 0
    assert isinstance(party.ask(turn), Sent)
    late = Code.STALE if spent_epsilon(party.directory, 1e-6) else None
    again = party.ask(scene.turn("ids"))
    assert encode(again) == encode(sent) if late is None else code_of(again) == late


def test_v14_row_ids_are_not_asked_for_where_they_are_not_compared(
    holders_scene, tmp_path
):
    scene = holders_scene.before.copied(tmp_path / "copy")
    assert scene.code(scene.turn("ids")) == Code.BAD_MESSAGE


@pytest.mark.claim("threat-model", "V14")
def test_v14_ids_are_hashed_under_the_key_that_aligned_the_rows(joined, tmp_path):
    """So a server that stands between parties with relayed keys cannot test guesses."""
    party, path = joined.party, tmp_path / "rows.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    party.policy = replace(party.policy, rows_key_file=path)
    assert joined.code(ids_turn(joined, ids_digest(party.ids))) == Code.DATA
    right = ids_digest(party.ids, bytes(range(32)))
    assert isinstance(party.ask(ids_turn(joined, right)), Sent)


@pytest.mark.claim("threat-model", "rows-key-file-none")
@pytest.mark.parametrize(
    ("content", "bits"), [(b"short", 0o600), (bytes(32), 0o644), (None, 0o600)]
)
def test_v14_a_key_of_rows_that_cannot_be_used_is_refused_at_once(
    content, bits, tmp_path
):
    party = make_parties(tmp_path, blobs(), ids=["1"] * N_RECORDS)[1]
    path = tmp_path / "rows.key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(bits)
    party.policy = replace(party.policy, rows_key_file=path)
    assert code_of(party.ask(Enrol(doc=make_run(check_ids=True).data))) == Code.DATA
    # which needs no key
    assert isinstance(party.ask(Enrol(doc=make_run().data)), Joined)


@pytest.mark.claim("protocol", "slot-columns-bounds-values")
def test_no_round_begins_before_everything_is_there(first):
    some = [parcel(first, PUBLIC), parcel(first, RELIN)]
    for t, loads in ((1, []), (1, some), (2, [])):
        assert first.code(first.turn("step", t, loads)) == Code.NEED
    assert first.code(first.turn("step", 3)) == Code.POLICY
    assert first.code(first.turn("close")) == Code.NEED
    assert spent_epsilon(first.party.directory, 1e-6) == 0


@pytest.mark.claim("threat-model", "V11")
@pytest.mark.parametrize(
    ("make", "code"),
    [
        # Attack 11: no other party's byte reaches SEAL unless it was checked.
        (
            lambda s: parcel(s, COLUMNS, bytes(32) + b"\xff" * packed_bytes(Q.data)),
            Code.BAD_MESSAGE,
        ),
        (lambda s: parcel(s, COLUMNS, bytes(100)), Code.KEY),
        (lambda s: parcel(s, PUBLIC, bytes(1)), Code.KEY),
        (lambda s: parcel(s, 0, bytes(48), "open", 1), Code.BAD_MESSAGE),
        (lambda s: parcel(s, COLUMNS + 1, bytes(32)), Code.BAD_MESSAGE),
        (lambda s: parcel(s, IDS, bytes(32)), Code.BAD_MESSAGE),
        (lambda s: parcel(s, IDS, bytes(32), "ids"), Code.BAD_MESSAGE),
        (lambda s: parcel(s, DIGESTS, bytes(64), "join"), Code.BAD_MESSAGE),
    ],
)
def test_party_0_takes_the_parcels_of_a_set_up_only(first, make, code):
    assert first.code(first.turn("load", 0, [make(first)])) == code


@pytest.mark.claim("threat-model", "V11")
def test_words_of_keys_are_below_their_primes_and_turns_those_of_party_0(first):
    """Attack 11."""
    wrong = parcel(first, PUBLIC, b"\xff" * packed_bytes(Q.key))
    loads = [wrong, parcel(first, RELIN), parcel(first, COLUMNS)]
    assert first.code(first.turn("step", 1, loads)) == Code.BAD_MESSAGE
    for step in ("keys", "join", "encrypt", "finish"):
        assert first.code(first.turn(step)) == Code.BAD_MESSAGE


def test_columns_lie_where_a_step_looks_for_them(tmp_path):
    """A column's number says its chunk and its place among those of its party."""
    scene = scene_of(tmp_path, 0, (1, 2, 1), n_records=20_000)
    work_dir = scene.party.directory / "vertical"
    alone, under = bytes(32 + packed_bytes(Q.data)), bytes(2 * packed_bytes(Q.data))
    loads = [scene.deliver(alone, "keys", 0, COLUMNS + i, sender=1) for i in range(4)]
    loads += [
        scene.deliver(under, "encrypt", 0, COLUMNS + i, sender=2) for i in range(2)
    ]
    assert isinstance(scene.party.ask(scene.turn("load", 0, loads)), Sent)
    found = {path.name for path in work_dir.glob(f"{scene.run.doc_hash.hex()}/column*")}
    places = [(1, chunk, i) for chunk in (0, 1) for i in (0, 1)] + [
        (2, 0, 0),
        (2, 1, 0),
    ]
    assert found == {column_name(*place) for place in places}
    assert isinstance(scene.party.ask(Abort(doc_hash=scene.run.doc_hash)), Sent)
    assert not list(work_dir.iterdir())


@pytest.mark.claim("threat-model", "V4")
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
    scene.joined_copy = scene.copied(directory / "joined")
    scene.loads = [
        scene.deliver(honest.opened(keys, i), "keys", 0, each.number, sender=1)
        for i, each in enumerate(keys.parcels)
    ]
    scene.load_turn = scene.turn("load", 0, scene.loads)
    assert isinstance(parties[0].ask(scene.load_turn), Sent)
    scene.first_turn = scene.turn("step", 1)
    with interrupted(parties[0]):
        scene.interrupted = parties[0].ask(scene.first_turn)
    scene.first = parties[0].ask(scene.first_turn)
    assert isinstance(scene.first, Sent)
    return scene


def shares(scene, t, words):
    return [scene.deliver(np.asarray(words, "<u8").tobytes(), "open", t, sender=1)]


@pytest.mark.claim("protocol", "slot-columns-bounds-values")
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


@pytest.mark.claim("threat-model", "V16")
def test_v16_zeros_under_another_key_have_other_masks(begun, tmp_path):
    """Party 0's ledger is restored, and the holder or the server swaps the public key.

    All else of round 1 is the same, and half of the key as well: with one mask c1 would
    be equal.
    """
    scene = begun.joined_copy.copied(tmp_path / "copy")
    other = KeyHolder(Q, token(32), scene.run.doc_hash).public_share()
    swapped = scene.deliver(pack(other, Q.key), "keys", 0, PUBLIC, sender=1)
    loads = [swapped if each.number == PUBLIC else each for each in begun.loads]
    assert isinstance(scene.party.ask(scene.turn("load", 0, loads)), Sent)
    again = scene.party.ask(begun.first_turn)
    first, second = (
        unpack(each.opened(sent, receiver=1), (Q.q0,), (WORDS,))
        for each, sent in ((begun, begun.first), (scene, again))
    )
    assert (first != second).mean() > 0.99
    p = Q.q0
    apart = addmod(first, negmod(second, p), p)
    assert np.minimum(apart, p - apart).max(axis=(1, 2)).min() > p // 4


def test_a_party_that_lost_its_session_does_not_go_on(begun, tmp_path):
    party = make_parties(tmp_path, blobs())[0]
    assert code_of(party.ask(begun.first_turn)) == Code.NEED
    assert isinstance(party.ask(Enrol(doc=begun.run.data)), Joined)
    assert code_of(party.ask(begun.load_turn)) == Code.KEY
    assert code_of(party.ask(begun.first_turn)) == Code.NEED


# --------------------------------------------------------------------------- joint keys

WIDTHS = (1, 1, 1, 1)


@pytest.mark.claim("threat-model", "V4")
def test_a_holder_commits_before_it_sees_a_share(tmp_path):
    """Attacks 4 and 5: rogue keys, and false sums."""
    scene = scene_of(tmp_path, 1, WIDTHS, key_holders=2)
    own, share = scene.joined.commitment, bytes(packed_bytes(Q.key))
    assert len(own) == 32
    other = bytes(32)
    for wrong in ((), (own,), (own, own), (own, other, other)):
        assert scene.code(scene.turn("keys", commitments=wrong)) == Code.BAD_MESSAGE
    assert scene.code(scene.turn("keys", commitments=(other, own))) == Code.KEY
    relin = bytes(2 * len(Q.data) * packed_bytes(Q.key))
    mail = [
        scene.deliver(share, "keys", sender=2),
        scene.deliver(relin, "keys", 0, 1, sender=2),
    ]
    assert scene.code(scene.turn("join", 0, mail)) == Code.NEED
    keys = scene.turn("keys", commitments=(own, other))
    reply = scene.party.ask(keys)
    assert isinstance(reply, Sent)
    assert [each.receivers for each in reply.parcels] == [u32(2), u32(2)]
    assert encode(scene.party.ask(keys)) == encode(reply)
    assert scene.code(scene.turn("keys", commitments=(own, b"1" * 32))) == Code.CONFLICT
    # not what was committed to
    assert scene.code(scene.turn("join", 0, mail)) == Code.KEY
    assert scene.code(scene.turn("join", 0, mail[:1])) == Code.NEED
    assert scene.code(scene.turn("join", 0, mail[::-1])) == Code.BAD_MESSAGE
    assert scene.code(open_turn(scene)) == Code.NEED
    assert spent_epsilon(scene.party.directory, 1e-6) == 0


class JointHolderAttack:
    """V4, V5: holder 2, the server and party 0 against holder 1, whose ledger a backup brings back.

    They learn its first message, choose their own by it, and read its secret in its
    answer to the sum. What the attack found is compared with the secret that the honest
    holder then has.
    """

    def __init__(self, directory):
        self.scene = scene_of(directory, 1, WIDTHS, key_holders=2)
        # holder 2's part of the public key: zeros
        self.share = bytes(packed_bytes(Q.key))
        self.own = self.scene.joined.commitment

    def first_message(self):
        """Let the holder reveal its shares of round 1 for holder 2's first commitment."""
        relin = bytes(2 * len(Q.data) * packed_bytes(Q.key))
        sent = self.ask_keys(self.committed(relin))
        assert isinstance(sent, Sent)
        (index,) = [i for i, each in enumerate(sent.parcels) if each.number == RELIN]
        data = self.scene.opened(sent, index, receiver=2)
        self.h = unpack(data, Q.key, (len(Q.data), 2))
        return sent

    def committed(self, relin):
        return hashlib.sha256(self.share + relin).digest()

    def ask_keys(self, commitment, own=None):
        return self.scene.party.ask(
            self.scene.turn("keys", commitments=(own or self.own, commitment))
        )

    def chosen(self):
        """Return holder 2's shares of round 1 by which the sum is 2^20 in h0 of each digit."""
        wanted = np.zeros_like(self.h)
        wanted[:, 0] = (np.uint64(2**20) % np.array(Q.key, dtype=np.uint64))[:, None]
        return pack(addmod(wanted, negmod(self.h, column(Q.key)), column(Q.key)), Q.key)

    def ask_join(self, relin):
        deliver = self.scene.deliver
        mail = [
            deliver(self.share, "keys", sender=2),
            deliver(relin, "keys", 0, 1, sender=2),
        ]
        return self.scene.party.ask(self.scene.turn("join", 0, mail))

    def read(self, sent):
        """Return the part of the holder's secret that its answer holds."""
        (index,) = [i for i, each in enumerate(sent.parcels) if each.number == RELIN]
        words = unpack(self.scene.opened(sent, index), Q.key, (len(Q.data),))
        x, p = intt(words[0, 0], Q.key[0]).astype(np.int64), Q.key[0]
        found = np.rint(np.where(x > p // 2, x - p, x) / 2**20)
        session = self.scene.party.session(self.scene.run)
        fresh = decode(session.party, Progress).fresh
        z = keys.set_up_secret(session.secret, fresh, self.scene.run.doc_hash)
        return (found == KeyHolder(Q, z, self.scene.run.doc_hash)._s).mean()

    @property
    def spent(self):
        return spent_epsilon(self.scene.party.directory, 1e-6)


@pytest.fixture
def attack(tmp_path):
    return JointHolderAttack(tmp_path)


@pytest.mark.claim("threat-model", "V4", "V5")
def test_v4_v5_a_restored_ledger_gives_no_first_message_under_another_list(attack):
    with interrupted(attack.scene.party):
        first = attack.first_message()
    relin = attack.chosen()
    assert code_of(attack.ask_keys(attack.committed(relin))) == Code.CONFLICT
    assert code_of(attack.ask_join(relin)) == Code.NEED
    assert attack.spent == 0
    # the list that the context knows
    assert encode(attack.first_message()) == encode(first)
    assert code_of(attack.ask_join(relin)) == Code.KEY


@pytest.mark.claim("threat-model", "V4", "V5")
def test_v4_v5_without_the_list_in_the_context_the_secret_is_read(attack, monkeypatch):
    monkeypatch.setattr(PartySession, "require_commitments", lambda *_: None)
    with interrupted(attack.scene.party):
        attack.first_message()
    relin = attack.chosen()
    assert isinstance(attack.ask_keys(attack.committed(relin)), Sent)
    assert attack.read(attack.ask_join(relin)) == 1


@pytest.mark.claim("threat-model", "V4", "V5")
def test_v4_v5_a_node_that_restarts_before_its_join_ends_the_run(attack):
    """Its ledger says that the first message was revealed, and what it followed from is lost."""
    attack.first_message()
    relin = attack.chosen()
    attack.scene.party.restart()
    party, run = attack.scene.party, attack.scene.run
    for _ in range(2):
        for commitment in (
            attack.committed(relin),
            attack.committed(bytes(len(relin))),
        ):
            assert code_of(attack.ask_keys(commitment)) == Code.KEY
        for data in (relin, bytes(len(relin))):
            assert code_of(attack.ask_join(data)) == Code.KEY
        assert code_of(party.ask(Enrol(doc=run.data))) == Code.KEY
    assert attack.spent == 0


@pytest.mark.claim("threat-model", "V4", "V5")
def test_v4_v5_a_node_that_restarts_before_its_first_message_commits_to_another(attack):
    attack.scene.party.restart()
    # its old commitment is in the list
    assert code_of(attack.ask_keys(bytes(32))) == Code.KEY
    again = attack.scene.party.ask(Enrol(doc=attack.scene.run.data))
    assert again.commitment != attack.own
    assert again.public_key == attack.scene.joined.public_key  # of the same session
    assert isinstance(attack.ask_keys(bytes(32), again.commitment), Sent)
    assert attack.spent == 0


@pytest.mark.claim("threat-model", "V4", "V5")
@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "without"])
def test_v4_v5_with_a_restored_ledger_and_a_restarted_node_every_secret_is_new(
    attack, is_bound, monkeypatch
):
    if not is_bound:
        monkeypatch.setattr(
            keys, "set_up_secret", lambda secret, fresh, doc_hash: secret
        )
        # the commitment that the session of this test has follows from r
        attack.scene.party.restart()
        session = attack.scene.party.ask(Enrol(doc=attack.scene.run.data))
        attack.own = session.commitment
    with interrupted(attack.scene.party):
        attack.first_message()
    relin = attack.chosen()
    attack.scene.party.restart()
    again = attack.scene.party.ask(Enrol(doc=attack.scene.run.data))
    assert (again.commitment == attack.own) == (not is_bound)
    if is_bound:
        assert code_of(attack.ask_keys(attack.committed(relin))) == Code.KEY
    assert isinstance(attack.ask_keys(attack.committed(relin), again.commitment), Sent)
    part = attack.read(attack.ask_join(relin))
    assert part < 0.5 if is_bound else part == 1


@pytest.mark.claim("threat-model", "V5")
def test_v5_an_answer_to_join_keeps_what_its_keys_follow_from(attack, monkeypatch):
    """In the ledger, with the answer: the node may restart afterwards, and not without one."""
    scene, party = attack.scene, attack.scene.party
    attack.first_message()

    def kept():
        return decode(party.session(scene.run).party, Progress).fresh

    relin = bytes(2 * len(Q.data) * packed_bytes(Q.key))
    records, party.records = party.records, None
    assert code_of(attack.ask_join(relin)) == Code.DATA
    party.records = records
    with monkeypatch.context() as patched:  # another process took the room
        patched.setattr(
            sessions.LedgerMemory, "answer", mock.Mock(side_effect=BudgetError(""))
        )
        assert code_of(attack.ask_join(relin)) == Code.LEDGER
    assert kept() == b""
    sent = attack.ask_join(relin)
    assert isinstance(sent, Sent)
    assert len(kept()) == 32
    party.restart()
    assert encode(attack.ask_join(relin)) == encode(sent)
    assert isinstance(party.ask(open_turn(scene, c1(words=10))), Sent)


@pytest.mark.claim("threat-model", "V18")
@pytest.mark.parametrize("end", ["abort", "finish"])
def test_v18_what_a_joint_holder_keeps_in_its_context_is_erased_at_the_end(attack, end):
    scene, party = attack.scene, attack.scene.party
    attack.first_message()
    assert list(party.state)
    if end == "finish":
        attack.ask_join(bytes(2 * len(Q.data) * packed_bytes(Q.key)))
        for t in (1, 2):
            assert isinstance(party.ask(open_turn(scene, c1(t, words=10), t)), Sent)
        arrays = {
            "centroids": np.tile(scene.run.algorithm.domain.lower, (2, 1)),
            "counts": np.ones(2),
            "findings": plausibility.padded(np.zeros((0, 6)), 2),
        }
        data = encode_arrays(arrays)
        assert isinstance(
            party.ask(scene.turn("finish", 0, [scene.deliver(data, "close")])), Sent
        )
    else:
        assert isinstance(party.ask(Abort(doc_hash=scene.run.doc_hash)), Sent)
    assert not list(party.state)


@pytest.mark.claim("threat-model", "V4")
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


@pytest.mark.claim("threat-model", "V16")
def test_columns_are_encrypted_under_one_key(tmp_path):
    """Attack 16; a restored ledger makes another mask for another key."""
    scene = scene_of(tmp_path, 3, WIDTHS)

    def sent(first_byte):
        public = bytes([first_byte]).ljust(packed_bytes(Q.key), b"\0")
        mail = [scene.deliver(public, "keys", 0, PUBLIC, sender=1)]
        return scene.party.ask(scene.turn("encrypt", 0, mail))

    with interrupted(scene.party):
        before = sent(1)
    sealed = sent(0)
    assert isinstance(sealed, Sent)
    assert encode(sent(0)) == encode(sealed)
    assert code_of(sent(1)) == Code.CONFLICT
    c1 = [unpack(scene.opened(each), Q.data, (2,))[1, 0] for each in (before, sealed)]
    p = Q.data[0]
    # the same half of both keys times masks
    apart = intt(addmod(c1[0], negmod(c1[1], p), p), p)
    assert np.minimum(apart, p - apart).max() > p // 4


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


@pytest.mark.claim("threat-model", "V10")
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


@pytest.mark.claim("threat-model", "V20")
def test_who_steals_lasting_keys_opens_nothing_that_was_recorded(rosters_scene):
    """Attack 20: ephemeral keys are erased with the run."""
    scene = rosters_scene
    sent = scene.party.ask(keys_turn(scene))
    assert scene.opened(sent)  # party 0 itself can
    assert isinstance(scene.party.ask(Abort(doc_hash=scene.run.doc_hash)), Sent)
    thief = Forged(
        scene.run, 0, ClientSession.begin(scene.run.doc_hash, b"", 1), scene.identity
    )
    scene.others = [thief]
    with pytest.raises(MessageError):
        scene.opened(sent)


def test_a_roster_has_a_line_for_each_party(tmp_path):
    run, party, _ = with_roster(tmp_path, "a", "b", "c")
    assert code_of(party.ask(Enrol(doc=run.data))) == Code.POLICY


# --------------------------------------------------------------------- V10: other nodes


class Stranger:
    """A node that is no party: it joins in a slot with whatever it has copied of its owner."""

    def __init__(self, owner, **changes):
        self.owner, self.changes, self.results = owner, changes, []

    def ask(self, data):
        request = messages.decode_request(data)
        if not isinstance(request, Enrol):
            return Refusal(code=Code.INTERNAL, doc_hash=request.doc_hash)
        joined = self.owner.ask(data)
        values = {"public_key": primitives.public_key(token(32)), **self.changes}
        return joined if self.changes.get("copies") else changed(joined, **values)


def played(run, nodes, roster=None, named=None):
    """Play a run whose server finds parties and strangers among its nodes, in this order."""
    net = Relay(run, nodes, roster=roster, nodes=named)
    net.server.set_up(range(len(nodes)), net.trip)
    for _ in range(run.document.rounds):
        net.take("step")
    net.take("close")
    return net


@pytest.mark.claim("threat-model", "V10")
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


@pytest.mark.claim("threat-model", "V10")
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
