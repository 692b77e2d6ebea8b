"""What a second implementation must send, byte for byte, and how it follows from definitions.

The definitions are those of docs/protocol.md, section 13. They share with the library
the ring's arithmetic, samplers, moduli and packing alone, which test_ring.py compares
with Python's integers. After a change of the format, the vectors are what `made`
returns.
"""

import hmac
import json
from pathlib import Path

import numpy as np
import pytest
from vertical_parties import ALONE, DOC_HASH, MODULI, digest, secret

from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.vertical import keys, ring
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.ring import SLOTS, N, pack, rns, small_error, ternary

pytestmark = pytest.mark.claim("protocol", "label-ciphertext-also-contains")

VECTORS = json.loads(
    (Path(__file__).parent.parent / "vertical_vectors.json").read_text()
)
COLUMN = np.full(SLOTS, VECTORS["value"])
Q0, KEY, DIGITS = MODULI.q0, MODULI.key, range(len(MODULI.data))


def sha(words, primes):
    return digest(pack(words, primes)).hex()


# -------------------------------------------------------------------------- definitions
# Words (..., primes, N) are transforms, one for each of the first primes.


def kdf(key, salt, label):
    """HKDF-SHA256 with 32 bytes of output."""
    extracted = hmac.digest(salt, key, "sha256")
    return hmac.digest(extracted, b"flower-kmeans/3 " + label + b"\1", "sha256")


def set_up_secret(party):
    """z' of a joint holder: its z, and r."""
    z, r = bytes([party]) * 32, bytes([100 + party]) * 32
    return kdf(z + r, DOC_HASH, b"vertical set-up")


def key_of(z, label, *hidden):
    """The key of a stream of a party for one purpose, and for what it is to hide."""
    if hidden:
        label += b" " + digest(b"".join(x.astype("<i8").tobytes() for x in hidden))
    return kdf(z, DOC_HASH, b"vertical " + label)


def own(z, label, *hidden):
    return Stream(key_of(z, label, *hidden))


def u32(number):
    return number.to_bytes(4, "little")


def common(seed, name, primes=KEY):
    labels = [b"vertical common " + name + u32(i) for i in range(len(primes))]
    streams = [Stream(kdf(seed, bytes(32), label)) for label in labels]
    return np.stack([ring.uniform(*each) for each in zip(streams, primes, strict=True)])


def plus(a, b):
    return ring.addmod(a, b, ring.column(KEY[: a.shape[-2]]))


def times(a, b):
    return ring.mulmod(a, b[: len(a)], ring.column(KEY[: len(a)]))


def masked(a, s, e):
    """-(a s) + e, of an error's coefficients."""
    primes = KEY[: len(a)]
    return plus(ring.negmod(times(a, s), ring.column(primes)), rns(e, primes))


def with_hidden(x, j, hidden):
    """What a digit of a relinearisation key hides is in residue j alone."""
    x[j] = (x[j] + MODULI.special * hidden.astype(object)) % KEY[j]
    return x


class Holder:
    """A key holder by the definitions; z is z' of a joint holder."""

    def __init__(self, z):
        self.z = z
        self.s = ternary(own(z, b"secret"))
        self.s_words = rns(self.s, KEY)

    def public_share(self):
        a = common(DOC_HASH, b"public key")
        return masked(a, self.s_words, small_error(own(self.z, b"public key")))

    def relin_alone(self):
        for j in DIGITS:
            error = small_error(own(self.z, b"relin " + u32(j)))
            b = masked(common(DOC_HASH, b"relin " + u32(j)), self.s_words, error)
            yield with_hidden(b, j, times(self.s_words, self.s_words)[j])

    def round1(self):
        self.u_words = rns(ternary(own(self.z, b"round 1 mask")), KEY)
        for j in DIGITS:
            a = common(DOC_HASH, b"relin " + u32(j))
            errors = own(self.z, b"round 1 errors " + u32(j))
            yield with_hidden(
                masked(a, self.u_words, small_error(errors)), j, self.s_words[j]
            )
            yield plus(times(a, self.s_words), rns(small_error(errors), KEY))

    def round2(self, h):
        """s h0 + (u - s) h1 + e + e' of every digit's sums h0 and h1."""
        difference = plus(self.u_words, ring.negmod(self.s_words, ring.column(KEY)))
        for j in DIGITS:
            h0, h1 = h[2 * j], h[2 * j + 1]
            errors = own(self.z, b"round 2 errors " + u32(j), h0, h1)
            e = rns(small_error(errors) + small_error(errors), KEY)
            yield plus(plus(times(h0, self.s_words), times(h1, difference)), e)


def constant():
    """A column of one value, whose encoded polynomial is a constant on any processor."""
    m = np.zeros(N, np.int64)
    m[0] = round(VECTORS["value"] * MODULI.scales[0])
    return m


def column_alone(holder, number):
    m = constant()
    label = b"column nonce " + u32(number) + b" " + digest(m.astype("<i8").tobytes())
    nonce = kdf(holder.z, DOC_HASH, b"vertical " + label)
    e = small_error(own(holder.z, b"column error " + nonce))
    return nonce, masked(common(nonce, b"column", MODULI.data), holder.s_words, e + m)


def named(pk):
    """The public key as labels have it."""
    return digest(pack(pk[0], KEY))


def column_under(pk, z, number):
    m, label = constant(), u32(number) + named(pk)
    u = rns(ternary(own(z, b"column mask " + label, m)), MODULI.data)
    errors = own(z, b"column errors " + label, m)
    hidden = (small_error(errors) + m, small_error(errors))
    return [
        plus(times(half[:-1], u), rns(e, MODULI.data))
        for half, e in zip(pk, hidden, strict=True)
    ]


def randomised(pk, c, z, w):
    label = w + named(pk)
    u = rns(ternary(own(z, b"zero mask " + label, *c)), KEY[:1])
    errors = own(z, b"zero errors " + label, *c)
    c0, c1 = (
        ring.intt(
            plus(plus(x[None], times(half[:1], u)), rns(small_error(errors), KEY[:1])),
            Q0,
        )
        for half, x in zip(pk, c, strict=True)
    )
    return int(c0[0, 0]), c1[0]


def share(holder, t, c1):
    """Words of one round under noise that is made of the first words of its stream."""
    row = np.concatenate([holder.s[:1], -holder.s[:0:-1]])
    noise = own(holder.z, b"noise " + u32(t), *c1).words(len(c1)) >> np.uint64(30)
    return [
        int((x.astype(object) @ row + int(e)) % Q0)
        for x, e in zip(c1, noise, strict=True)
    ]


def stream_keys(pk, z, number, w, c):
    """The keys of the four streams whose labels have the public key."""
    m, column, zero = constant(), u32(number) + named(pk), w + named(pk)
    hidden = {b"column": (column, m), b"zero": (zero, *c)}
    return {
        (what + b" " + name).decode(): key_of(
            z, what + b" " + name + b" " + label, *content
        ).hex()
        for what, (label, *content) in hidden.items()
        for name in (b"mask", b"errors")
    }


def made():
    one = Holder(secret(1))
    half = one.public_share()
    pk = half, common(DOC_HASH, b"public key")
    nonce, column_half = column_alone(one, 3)
    sent = column_under(pk, secret(9), 4)
    c = [x[0] for x in sent]
    c0, c1 = randomised(pk, c, secret(0), u32(2) + u32(5))
    first, second = (Holder(set_up_secret(party)) for party in (1, 2))
    firsts = [
        np.stack([holder.public_share(), *holder.round1()])
        for holder in (first, second)
    ]
    sums = plus(*firsts)
    return {
        "doc_hash": DOC_HASH.hex(),
        "primes": list(KEY),
        "value": VECTORS["value"],
        "public_key": sha(half, KEY),
        "relin_key": sha(np.stack(list(one.relin_alone())), KEY),
        "column_alone": {"nonce": nonce.hex(), "half": sha(column_half, MODULI.data)},
        "column": sha(np.stack(sent), MODULI.data),
        "streams": stream_keys(pk, secret(9), 4, u32(2) + u32(5), c),
        "randomised": {"c0": c0, "c1": sha(c1[None], (Q0,))},
        "share": share(one, 2, [c1, c1[::-1]]),
        "joint": {
            "set_up_secrets": [set_up_secret(party).hex() for party in (1, 2)],
            "commitments": [sha(first, KEY) for first in firsts],
            "digests": [sha(sums[:1], KEY), sha(sums[2::2], KEY)],
            "round2": sha(np.stack(list(first.round2(sums[1:]))), KEY),
        },
    }


# By default the library of one holder is compared with the vectors.
@pytest.mark.thorough
def test_vectors_follow_from_the_definitions():
    assert made() == VECTORS


# -------------------------------------------------------------------------- the library


def test_a_sole_holders_keys_and_columns():
    assert sha(ALONE.half, KEY) == VECTORS["public_key"]
    assert sha(ALONE.relin[:, 0], KEY) == VECTORS["relin_key"]
    nonce, half = ALONE.holders[0].encrypt_alone(COLUMN, 3)
    found = {"nonce": nonce.hex(), "half": sha(half, MODULI.data)}
    assert found == VECTORS["column_alone"]
    assert sha(ALONE.encrypt(COLUMN, 4), MODULI.data) == VECTORS["column"]


def test_an_encryption_of_zero_and_a_share():
    words = ALONE.encrypt(COLUMN, 4)[:, 0]
    own = ALONE.pk_digest, words, secret(0), DOC_HASH, u32(2) + u32(5)
    c0, c1 = keys.randomise(MODULI, ALONE.pk, *own)
    assert c0 == VECTORS["randomised"]["c0"]
    assert sha(c1[None], (Q0,)) == VECTORS["randomised"]["c1"]

    def noise(stream):
        return (stream.words(2) >> np.uint64(30)).astype(np.int64)

    share = ALONE.holders[0].decryption_share(2, np.stack([c1, c1[::-1]]), noise)
    assert share.tolist() == VECTORS["share"]


@pytest.mark.claim("threat-model", "V16")
def test_labels_of_ciphertexts_have_the_public_key(monkeypatch):
    found, derive, pk = {}, keys.secret_key, ALONE.pk  # made before streams are noted

    def noted(z, doc_hash, label, hidden=None):
        key = derive(z, doc_hash, label, hidden)
        found[b" ".join(label.split(b" ")[:2]).decode()] = key.hex()
        return key

    monkeypatch.setattr(keys, "secret_key", noted)
    words = ALONE.encrypt(COLUMN, 4)[:, 0]
    w = u32(2) + u32(5)
    keys.randomise(MODULI, pk, ALONE.pk_digest, words, secret(9), DOC_HASH, w)
    assert found == VECTORS["streams"]


def joint_secrets():
    z, r = ([bytes([n + party]) * 32 for party in (1, 2)] for n in (0, 100))
    return [keys.set_up_secret(*each, DOC_HASH) for each in zip(z, r, strict=True)]


@pytest.mark.claim("threat-model", "V16")
def test_the_secrets_of_joint_holders():
    assert [each.hex() for each in joint_secrets()] == VECTORS["joint"][
        "set_up_secrets"
    ]


@pytest.mark.thorough  # by default test_keys.py has what holders of fewer primes send
def test_joint_keys():
    first, second = (KeyHolder(MODULI, each, DOC_HASH) for each in joint_secrets())
    message = second.first_message()
    commitments = [first.commitment(), second.commitment()]
    assert commitments[1] == digest(message)
    share = first.join(commitments[1:], [message])
    found = {
        "set_up_secrets": [each.hex() for each in joint_secrets()],
        "commitments": [each.hex() for each in commitments],
        "digests": [each.hex() for each in share.digests],
        "round2": sha(share.round2, KEY),
    }
    assert found == VECTORS["joint"]
