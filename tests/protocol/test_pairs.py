"""The secrets that client sessions share, and what a process keeps of them."""

from contextlib import nullcontext
from itertools import product

import pytest
from cohorts import kept_pairs
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


def identity(slot):
    return Identity(ROSTER, STATICS[slot], ROSTER.keys[slot], slot)


def of(slot, *, relayed=False, doc_hash=DOC):
    return Pairs(doc_hash, SESSIONS[slot], None if relayed else identity(slot))


def tag(owner, reader):
    return of(owner).tags(0)[16 * reader : 16 * (reader + 1)]


def peer(owner, reader, **changes):
    values = {"slot": owner, "public_key": of(owner).public_key, "tag": tag(owner, reader)}
    return Peer(**{**values, **changes})


each_keys = pytest.mark.parametrize("relayed", [False, True])


def test_a_secret_needs_both_lasting_and_both_ephemeral_keys():
    first, second = of(0), of(1)
    others = {
        first.secret(2, second.public_key),
        first.secret(1, of(2).public_key),
        Pairs(DOC, SESSIONS[0], identity(2)).secret(1, second.public_key),
        Pairs(DOC, SESSIONS[2], identity(0)).secret(1, second.public_key),
    }
    assert first.secret(1, second.public_key) not in others


def test_owners_tags_are_accepted_and_no_others():
    reader, key, right = of(1), of(0).public_key, tag(0, 1)
    for _ in range(2):  # the second time from the cache
        reader.secret(0, key, right)
        wrong = [(0, key, false) for false in (tag(0, 2), b"", bytes(16))]
        wrong += [(0, of(2).public_key, right), *((i, key, right) for i in (2, 4, 2**32 - 1))]
        for arguments in wrong:
            with pytest.raises(MessageError):
                reader.secret(*arguments)
    other = of(1, doc_hash=b"e" * 32)  # of another run
    with pytest.raises(MessageError):
        other.secret(0, key, right)
    other.secret(0, key, of(0, doc_hash=b"e" * 32).tags(0)[16:32])


@each_keys
def test_both_ends_of_a_pair_have_one_secret_and_no_other_pair_has_it(relayed):
    found = {}
    for kept in (True, False):  # both ends in one process, and each in its own
        for i, j in product(range(4), repeat=2):
            if not kept:
                pairs.forget()
            secret = of(i, relayed=relayed).secret(j, of(j, relayed=relayed).public_key)
            assert len(secret) == (32 if relayed else 64)
            assert found.setdefault(frozenset((i, j)), secret) == secret
    assert len(set(found.values())) == len(found) == 10
    assert of(0).secret(1, of(1).public_key) != of(0, relayed=True).secret(1, of(1).public_key)


def test_relayed_keys_have_no_tags():
    assert of(0, relayed=True).tags(0) == b""
    of(1, relayed=True).secret(77, of(0).public_key, b"anything")


@each_keys
def test_group_secrets_reach_their_peers_and_nobody_else(relayed):
    secret, readers = b"g" * 32, [of(i, relayed=relayed) for i in range(4)]
    envelopes = readers[0].wrap(secret, tuple(peer(i, 0) for i in range(4)))
    for i, j in product(range(4), repeat=2):
        with nullcontext() if i == j else pytest.raises(MessageError):
            wrap = Wrap(distributor=peer(0, j), envelope=envelopes[i])
            assert readers[j].unwrap(wrap) == secret
    with pytest.raises(MessageError):
        of(3, relayed=relayed, doc_hash=b"e" * 32).unwrap(wrap)


def test_peers_with_wrong_keys_or_tags_get_no_envelope():
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
def test_any_other_envelope_is_an_error(envelope):
    with pytest.raises(MessageError):
        of(1).unwrap(Wrap(distributor=peer(0, 1), envelope=envelope))


def test_what_is_kept_is_bounded_and_goes_with_the_session(monkeypatch):
    monkeypatch.setattr(pairs, "_kept", {})
    monkeypatch.setattr(pairs, "_MOST", 10)
    for i, j in product(range(4), repeat=2):
        of(i).secret(j, of(j).public_key)
        assert 0 < len(kept_pairs()) <= 10
    parts = [part for key in kept_pairs() for part in key if isinstance(part, bytes)]
    assert any(part.startswith(of(3).public_key) for part in parts)
    assert not any(secret in part for part in parts for secret in (SESSIONS[3].ephemeral, *STATICS))
    pairs.forget()
    of(0)
    kept = kept_pairs()
    for _ in range(2):  # what failed is not kept
        with pytest.raises(MessageError):
            of(0).secret(1, SMALL_ORDER)
    assert kept_pairs() == kept
