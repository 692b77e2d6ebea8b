"""What a second implementation must send, byte for byte (make_vertical_vectors.py)."""

import json
from pathlib import Path

import numpy as np
from vertical_parties import ALONE, DOC_HASH, MODULI, digest, secret

from flower_kmeans.vertical import keys
from flower_kmeans.vertical.keys import KeyHolder
from flower_kmeans.vertical.ring import SLOTS, pack

VECTORS = json.loads((Path(__file__).parent.parent / "vertical_vectors.json").read_text())
COLUMN = np.full(SLOTS, VECTORS["value"])


def sha(words, primes):
    return digest(pack(words, primes)).hex()


def test_moduli():
    assert VECTORS["doc_hash"] == DOC_HASH.hex()
    assert tuple(VECTORS["primes"]) == MODULI.key


def test_keys_of_a_sole_holder():
    assert sha(ALONE.half, MODULI.key) == VECTORS["public_key"]
    assert sha(ALONE.relin[:, 0], MODULI.key) == VECTORS["relin_key"]


def test_columns():
    nonce, half = ALONE.holders[0].encrypt_alone(COLUMN, 3)
    assert nonce.hex() == VECTORS["column_alone"]["nonce"]
    assert sha(half, MODULI.data) == VECTORS["column_alone"]["half"]
    assert sha(ALONE.encrypt(COLUMN, 4), MODULI.data) == VECTORS["column"]


def test_an_encryption_of_zero_and_a_share():
    words = ALONE.encrypt(COLUMN, 4)[:, 0]
    c0, c1 = keys.randomise(MODULI, ALONE.pk, words, secret(0), DOC_HASH, b"value 5")
    assert c0 == VECTORS["randomised"]["c0"]
    assert sha(c1[None], (MODULI.q0,)) == VECTORS["randomised"]["c1"]

    def noise(stream):
        return (stream.words(2) >> np.uint64(30)).astype(np.int64)

    share = ALONE.holders[0].decryption_share(2, np.stack([c1, c1[::-1]]), noise)
    assert share.tolist() == VECTORS["share"]


def test_joint_keys():
    first, second = (KeyHolder(MODULI, secret(party), DOC_HASH) for party in (1, 2))
    message = second.first_message()
    commitments = [first.commitment(), second.commitment()]
    assert commitments[1] == digest(message)
    assert [each.hex() for each in commitments] == VECTORS["joint"]["commitments"]
    share = first.join(commitments[1:], [message])
    assert [each.hex() for each in share.digests] == VECTORS["joint"]["digests"]
    assert sha(share.round2, MODULI.key) == VECTORS["joint"]["round2"]
