"""The seals of parcels: who opens one, and which parcels have one key."""

from flower_kmeans.protocol.messages import Peer, split
from flower_kmeans.protocol.session import ClientSession, Pairs
from flower_kmeans.vertical.protocol.messages import Delivery
from flower_kmeans.vertical.protocol.parcels import Planned, Seals

DOC = b"d" * 32
SESSIONS = [ClientSession.begin(DOC, b"document", 1) for _ in range(3)]
PAIRS = [Pairs(DOC, session, None) for session in SESSIONS]
PEERS = {slot: Peer(slot, pairs.public_key) for slot, pairs in enumerate(PAIRS)}


def seals_of(slot):
    return Seals(DOC, bytes([slot]) * 32, slot, PAIRS[slot], PEERS)


def planned(data, number=0):
    return Planned(1, "open", 2, number, (0, 2), len(data))


def test_every_receiver_opens_a_parcel():
    plan = planned(b"integers")
    parcel = seals_of(1).seal(plan, b"integers")
    for receiver, key in zip(plan.receivers, split(parcel.keys, 48), strict=True):
        delivery = Delivery(sender=1, step="open", t=2, key=key, data=parcel.data)
        assert seals_of(receiver).open(plan, delivery) == b"integers"


def test_equal_plaintexts_give_equal_parcels_and_different_ones_have_different_keys():
    """The key of the data is sealed for each receiver (docs/protocol.md, section 13)."""
    own = seals_of(1)
    first = own.seal(planned(b"integers"), b"integers")
    assert seals_of(1).seal(planned(b"integers"), b"integers") == first
    second = own.seal(planned(b"integerz"), b"integerz")
    assert not set(split(first.keys, 48)) & set(split(second.keys, 48))
