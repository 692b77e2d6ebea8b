"""The library reproduces the protocol's published test vectors (docs/protocol.md)."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from flower_kmeans.canonical import canonical_bytes, parse_canonical
from flower_kmeans.federation.cohort import Tree, commitment, data_digest, leaf, root_from
from flower_kmeans.federation.removal import is_committed, part_key
from flower_kmeans.federation.transcript import (
    EMPTY_QUESTION_HASH,
    Entry,
    first_hash,
    next_hash,
    pack_survivors,
    pack_words,
    question_hash,
    round_context,
    unpack_words,
)
from flower_kmeans.secagg import keys, masks, sharing

VECTORS = json.loads(Path(__file__).with_name("protocol_vectors.json").read_text())
ROUND = VECTORS["round"]
M = ROUND["M"]
DOC_HASH = bytes.fromhex(VECTORS["document_hash"])
KEY = bytes.fromhex(ROUND["mask_key"])
CONTEXT = bytes.fromhex(ROUND["context"])
H0 = bytes.fromhex(VECTORS["h0"])
ROOT = bytes.fromhex(VECTORS["root"])


def words(texts):
    return np.array([int(text) for text in texts], dtype=np.uint64)


L = len(ROUND["G"])


def test_document_and_its_hash():
    text = VECTORS["document"].encode()
    assert canonical_bytes(parse_canonical(text)) == text
    assert hashlib.sha256(text).digest() == DOC_HASH


def test_keys_of_a_run():
    file_key = bytes.fromhex(VECTORS["group_file_key"])
    assert keys.group_key(file_key, DOC_HASH).hex() == VECTORS["group_key"]
    assert keys.key_id(file_key, DOC_HASH).hex() == VECTORS["key_id"]
    assert first_hash(DOC_HASH) == H0


def test_life():
    life = VECTORS["life"]
    digest = data_digest(np.array(life["data_f8"]))
    assert digest.hex() == life["data_digest"]
    made = commitment(bytes.fromhex(life["z"]), DOC_HASH, life["software"].encode(), digest)
    assert made.hex() == life["commitment"]


def test_cohort():
    members = VECTORS["cohort"]
    leaves = [
        leaf(
            member["index"],
            int(member["node_id"]),
            bytes.fromhex(member["commitment"]),
            bytes.fromhex(member["public_key"]),
        )
        for member in members
    ]
    tree = Tree(leaves)
    assert [made.hex() for made in leaves] == [member["leaf"] for member in members]
    assert [tree.path(i).hex() for i in range(M)] == [member["path"] for member in members]
    assert tree.root == ROOT
    assert all(root_from(leaves[i], i, M, tree.path(i)) == ROOT for i in range(M))


def test_context_and_keys():
    t, attempt = ROUND["t"], ROUND["attempt"]
    digest = question_hash(ROUND["question"].encode())
    assert round_context(DOC_HASH, t, attempt, M, ROOT, H0, digest) == CONTEXT
    assert masks.mask_key(bytes.fromhex(VECTORS["group_key"]), CONTEXT) == KEY


def test_noise_key():
    noise = VECTORS["noise"]
    key = masks.noise_key(bytes.fromhex(VECTORS["life"]["z"]), CONTEXT)
    assert key.hex() == noise["key"]
    assert pack_words(masks.words(key, 0, 4)).hex() == noise["first_32_bytes"]


def test_keys_of_parts_of_the_noise():
    vector = VECTORS["noise_parts"]
    z, n = bytes.fromhex(VECTORS["life"]["z"]), vector["n_levels"]
    made = [part_key(z, CONTEXT, n, i) for i in range(n + 1)]
    assert [key.hex() for key in made] == vector["keys"]
    assert [masks.noise_key(key, CONTEXT).hex() for key in made[1:]] == vector["stream_keys"]
    assert all(is_committed(key, i, made[0]) for i, key in enumerate(made))
    sealed = vector["sealed"]
    opening = VECTORS["openings"][sealed["opening"]]
    secret, head = bytes.fromhex(opening["secret"]), bytes.fromhex(opening["h1"])
    stream = sharing.open_stream(secret, head, 4, sealed["index"] + 1)
    key = made[sealed["n_parts"]]
    assert pack_words(unpack_words(key) + stream).hex() == sealed["key"]


def test_streams_and_masks():
    for i in range(M):
        assert np.array_equal(masks.words(KEY, i, L), words(ROUND["F"][str(i)]))
        assert np.array_equal(masks.mask(KEY, i, M, L), words(ROUND["masks"][i]))
        masked = words(ROUND["plain"][i]) + masks.mask(KEY, i, M, L)
        assert np.array_equal(masked, words(ROUND["masked"][i]))
    assert np.array_equal(masks.words(KEY, 2**64 - 1, L), words(ROUND["G"]))


@pytest.mark.parametrize("opening", VECTORS["openings"], ids=lambda o: f"S={o['S']}")
def test_openings(opening):
    survivors = np.zeros(M, dtype=bool)
    survivors[opening["S"]] = True
    assert pack_survivors(survivors).hex() == opening["bitmap"]
    total = np.zeros(L, dtype=np.uint64)
    for i in opening["S"]:
        total += words(ROUND["masked"][i])
    assert np.array_equal(total, words(opening["masked_sum"]))
    correction = masks.correction(KEY, survivors, L)
    assert np.array_equal(correction, words(opening["correction"]))
    assert np.array_equal(total - correction, words(opening["sum"]))
    entry = Entry(ROUND["t"], ROUND["attempt"], M, ROOT, EMPTY_QUESTION_HASH, survivors, total)
    assert hashlib.sha256(entry.pack()).hexdigest() == opening["entry_sha256"]
    assert entry.context(DOC_HASH, H0) == CONTEXT
    assert next_hash(H0, CONTEXT, entry).hex() == opening["h1"]


@pytest.mark.parametrize("opening", VECTORS["openings"], ids=lambda o: f"S={o['S']}")
def test_shares_of_openings(opening):
    head = bytes.fromhex(opening["h1"])
    assert sharing.quorum(M) == opening["quorum"]
    coefficients = sharing.polynomial(bytes.fromhex(VECTORS["group_key"]), head, M)
    assert len(coefficients) == opening["quorum"]
    secret = sharing.secret_of(coefficients)
    assert secret.hex() == opening["secret"]
    shares = [sharing.share_of(coefficients, i) for i in range(M)]
    assert [share.hex() for share in shares] == opening["shares"]
    sealed = words(opening["correction"]) + sharing.open_stream(secret, head, L)
    assert np.array_equal(sealed, words(opening["sealed_correction"]))
    for places in itertools.combinations(range(M), opening["quorum"]):
        found = sharing.Interpolation({i: shares[i] for i in places})
        assert found.secret == secret
        unsealed = sealed - sharing.open_stream(found.secret, head, L)
        assert np.array_equal(words(opening["masked_sum"]) - unsealed, words(opening["sum"]))


@pytest.mark.parametrize("kind", ["roster", "relayed"])
def test_envelopes(kind):
    vector = {name: bytes.fromhex(text) for name, text in VECTORS[f"envelope_{kind}"].items()}
    pinned = kind == "roster"
    static = vector["leader_static_secret"] if pinned else None
    member = vector["member_public"]
    assert keys.public_key(vector["member_secret"]) == member
    leader, envelopes = keys.make_envelopes(
        vector["wrapped"], [member], DOC_HASH, vector["leader_ephemeral_secret"], static
    )
    assert leader == vector["leader_ephemeral_public"] + vector["leader_public"]
    assert envelopes == {member: vector["envelope"]}
    opened = keys.open_envelope(
        vector["envelope"], leader, vector["member_secret"], DOC_HASH, pinned=pinned
    )
    assert opened == vector["wrapped"]
    assert keys.group_key(opened, DOC_HASH) == vector["group_key"]
