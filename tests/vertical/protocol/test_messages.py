"""How many parcels, receivers, keys and commitments the messages of a vertical run hold.

Their encoding is tested with all other messages (tests/protocol/test_messages.py).
"""

import pytest

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.messages import decode_reply, decode_request
from flower_kmeans.protocol.wire import encode
from flower_kmeans.vertical.protocol.messages import Delivery, Parcel, Sent, Turn

HASH = bytes(32)


def with_deliveries(n):
    delivery = Delivery(sender=1, step="open", key=bytes(48), data=b"sealed")
    return Turn(doc_hash=HASH, step="load", deliveries=(delivery,) * n)


def with_commitments(n):
    return Turn(doc_hash=HASH, step="keys", commitments=(HASH,) * n)


def parcel_of(receivers=bytes(4), keys=bytes(48)):
    return Parcel(step="open", receivers=receivers, keys=keys, data=b"sealed")


def with_parcels(n):
    return Sent(doc_hash=HASH, parcels=(parcel_of(),) * n)


def with_receivers(n):
    return Sent(doc_hash=HASH, parcels=(parcel_of(receivers=bytes(4 * n)),))


def with_keys(n):
    return Sent(doc_hash=HASH, parcels=(parcel_of(keys=bytes(48 * n)),))


@pytest.mark.parametrize(
    ("decoder", "message_with", "most"),
    [
        (decode_request, with_deliveries, 256),
        (decode_request, with_commitments, 64),
        (decode_reply, with_parcels, 256),
        (decode_reply, with_receivers, 64),
        (decode_reply, with_keys, 64),
    ],
)
def test_as_many_are_read_as_the_protocol_says_and_no_more(decoder, message_with, most):
    fullest = message_with(most)
    assert decoder(encode(fullest)) == fullest
    with pytest.raises(MessageError):
        decoder(encode(message_with(most + 1)))
