"""The secrets that client sessions share, and what a process keeps of them."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import pairs
from flower_kmeans.protocol.messages import Peer, Wrap
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.secagg import key_agreement

DOC = b"d" * 32
STATICS = [bytes([i + 1]) * 32 for i in range(4)]
ROSTER = Roster(tuple("abcd"), tuple(map(key_agreement.public_key, STATICS)))
SESSIONS = [ClientSession.begin(DOC, b"document", 1) for _ in STATICS]
SMALL_ORDER = bytes(32)


def identity(slot: int) -> Identity:
    return Identity(ROSTER, STATICS[slot], ROSTER.keys[slot], slot)


def of(slot: int, *, relayed: bool = False, doc_hash: bytes = DOC) -> Pairs:
    return Pairs(doc_hash, SESSIONS[slot], None if relayed else identity(slot))


def tag(owner: int, reader: int) -> bytes:
    return of(owner).tags(0)[16 * reader : 16 * (reader + 1)]


def peer(owner: int, reader: int, **changes: object) -> Peer:
    values = {"slot": owner, "public_key": of(owner).public_key, "tag": tag(owner, reader)}
    return Peer(**{**values, **changes})


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize(("i", "j"), [(0, 1), (2, 3), (1, 1)])
def test_two_clients_have_one_secret_and_others_another(relayed: bool, i: int, j: int) -> None:
    first, second = of(i, relayed=relayed), of(j, relayed=relayed)
    shared = first.secret(j, second.public_key)
    assert shared == second.secret(i, first.public_key)
    assert shared == first.secret(j, second.public_key)  # now from the cache
    assert len(shared) == (32 if relayed else 64)
    assert shared != of(0, relayed=relayed).secret(2, of(2).public_key)


def test_a_secret_needs_both_lasting_and_both_ephemeral_keys() -> None:
    first, second = of(0), of(1)
    others = {
        first.secret(2, second.public_key),
        first.secret(1, of(2).public_key),
        Pairs(DOC, SESSIONS[0], identity(2)).secret(1, second.public_key),
        Pairs(DOC, SESSIONS[2], identity(0)).secret(1, second.public_key),
    }
    assert first.secret(1, second.public_key) not in others


def test_owners_tags_are_accepted_and_no_others() -> None:
    reader = of(1)
    key = of(0).public_key
    for _ in range(2):  # the second time from the cache
        reader.secret(0, key, tag(0, 1))
        for slot, public_key, wrong in (
            (0, key, tag(0, 2)),
            (0, key, b""),
            (0, key, bytes(16)),
            (0, of(2).public_key, tag(0, 1)),
            (2, key, tag(0, 1)),
            (4, key, tag(0, 1)),
            (2**32 - 1, key, tag(0, 1)),
        ):
            with pytest.raises(MessageError):
                reader.secret(slot, public_key, wrong)
    other = b"e" * 32  # of another run
    with pytest.raises(MessageError):
        of(1, doc_hash=other).secret(0, key, tag(0, 1))
    of(1, doc_hash=other).secret(0, key, of(0, doc_hash=other).tags(0)[16:32])


@pytest.mark.parametrize("relayed", [False, True])
def test_both_ends_of_a_pair_have_one_secret_and_no_other_pair_has_it(relayed: bool) -> None:
    found = {}
    for kept in (True, False):  # both ends in one process, and each in its own
        for i, j in product(range(4), repeat=2):
            if not kept:
                pairs.forget()
            secret = of(i, relayed=relayed).secret(j, of(j, relayed=relayed).public_key)
            assert found.setdefault(frozenset((i, j)), secret) == secret
    assert len(set(found.values())) == len(found) == 10
    assert of(0).secret(1, of(1).public_key) != of(0, relayed=True).secret(1, of(1).public_key)


def test_relayed_keys_have_no_tags() -> None:
    assert of(0, relayed=True).tags(0) == b""
    of(1, relayed=True).secret(77, of(0).public_key, b"anything")


@pytest.mark.parametrize("relayed", [False, True])
def test_group_secrets_reach_their_peers_and_nobody_else(relayed: bool) -> None:
    secret, distributor = b"g" * 32, of(0, relayed=relayed)
    peers = tuple(peer(i, 0) for i in range(4))
    envelopes = distributor.wrap(secret, peers)
    for i, envelope in enumerate(envelopes):
        wrap = Wrap(distributor=peer(0, i), envelope=envelope)
        assert of(i, relayed=relayed).unwrap(wrap) == secret
        other = (i + 1) % 4
        with pytest.raises(MessageError):
            of(other, relayed=relayed).unwrap(Wrap(distributor=peer(0, other), envelope=envelope))
    with pytest.raises(MessageError):
        of(1, relayed=relayed, doc_hash=b"e" * 32).unwrap(
            Wrap(distributor=peer(0, 1), envelope=envelopes[1])
        )


def test_peers_with_wrong_keys_or_tags_get_no_envelope() -> None:
    wrong = (
        peer(1, 0, tag=bytes(16)),
        peer(1, 0, public_key=of(2).public_key),
        peer(2, 0, slot=9),
        peer(3, 0),
    )
    assert [bool(e) for e in of(0).wrap(b"g" * 32, wrong)] == [False, False, False, True]
    small = Peer(slot=1, public_key=SMALL_ORDER)
    assert of(0, relayed=True).wrap(b"g" * 32, (small,)) == (b"",)


@settings(deadline=None)
@given(st.binary(min_size=48, max_size=48))
def test_any_other_envelope_is_an_error(envelope: bytes) -> None:
    with pytest.raises(MessageError):
        of(1).unwrap(Wrap(distributor=peer(0, 1), envelope=envelope))


def test_clients_outside_of_a_drawn_committee_make_tags_for_it_alone() -> None:
    statics = [bytes([i + 1]) * 32 for i in range(66)]
    keys = tuple(map(key_agreement.public_key, statics))
    roster = Roster(tuple(f"c{i}" for i in range(66)), keys, b"b" * 32)
    session = SESSIONS[0]
    slots = pairs.drawn(keys, roster.beacon, 3)
    outside = next(i for i in range(66) if i not in slots)
    for slot in (outside, slots[0]):
        own = Pairs(DOC, session, Identity(roster, statics[slot], keys[slot], slot))
        readers = slots if slot == outside else tuple(range(66))
        found = own.tags(3)
        assert len(found) == 16 * len(readers)
        for place, reader in enumerate(readers[:3]):
            other = Identity(roster, statics[reader], keys[reader], reader)
            Pairs(DOC, SESSIONS[1], other).secret(
                slot, own.public_key, found[16 * place : 16 * (place + 1)]
            )


def test_what_is_kept_is_bounded_and_goes_with_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairs, "_kept", {})
    monkeypatch.setattr(pairs, "_MOST", 10)
    for i in range(4):
        for j in range(4):
            of(i).secret(j, of(j).public_key)
            assert 0 < len(pairs._kept) <= 10
    parts = [part for key in pairs._kept for part in key if isinstance(part, bytes)]
    assert any(part.startswith(of(3).public_key) for part in parts)
    assert not any(secret in part for part in parts for secret in (SESSIONS[3].ephemeral, *STATICS))
    pairs.forget()
    for _ in range(2):  # what failed is not kept
        with pytest.raises(MessageError):
            of(0).secret(1, SMALL_ORDER)
    assert not pairs._kept


def test_repr_shows_no_secret() -> None:
    shown = repr(of(0)) + repr(replace(identity(0)))
    assert STATICS[0].hex() not in shown
    assert repr(STATICS[0]) not in shown
    assert repr(SESSIONS[0].ephemeral) not in shown
