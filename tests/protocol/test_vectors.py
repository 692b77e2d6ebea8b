"""The library reproduces the protocol's published test vectors (docs/protocol.md)."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from flower_kmeans.protocol import messages, transcript
from flower_kmeans.protocol.committee import Committee, corrupt_positions, drawn, roster_digest
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Refusal,
)
from flower_kmeans.protocol.transcript import ZERO, Tree
from flower_kmeans.protocol.wire import decode, encode
from flower_kmeans.secagg import key_agreement as keys
from flower_kmeans.secagg import masks
from flower_kmeans.secagg.base import SumContext, secure_sum
from flower_kmeans.secagg.hashing import H, u32
from flower_kmeans.secagg.shares import PRIMES, from_residues, to_residues, uniform
from tests.support.ring import pack, unpack

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())
M = 5
ROUND, GROUP, MESSAGES = VECTORS["round"], VECTORS["group"], VECTORS["messages"]
SHARES, MASKS = secure_sum("shares"), secure_sum("masks")


def octets(value):
    return [octets(item) for item in value] if isinstance(value, list) else bytes.fromhex(value)


DOC_HASH, ROOT, H0 = (octets(VECTORS[name]) for name in ("document_hash", "root", "h0"))
CONTEXT, TAG, BITMAP = (octets(ROUND[name]) for name in ("context", "tag", "bitmap"))
STATIC, EPHEMERAL, SESSION = (
    octets(VECTORS[name]) for name in ("static_secrets", "ephemeral_secrets", "z")
)
ROSTER, PUBLIC = octets(VECTORS["roster"]), octets(VECTORS["ephemeral_publics"])
COMMITTEE = Committee(tuple(range(M)), tuple(PUBLIC), M, 1)
GROUP_KEY = octets(GROUP["key"])
SURVIVORS = np.isin(np.arange(M), ROUND["survivors"])
N_WORDS = len(ROUND["sum"])


def sum_context(group=b""):
    return SumContext(CONTEXT, N_WORDS, M, group, COMMITTEE.sharing(SHARES))


def secret_of(i, j):
    return keys.pair_secret(EPHEMERAL[i], PUBLIC[j], STATIC[i], ROSTER[j])


def test_hash_is_the_described_one():
    assert VECTORS["hash"].startswith("sha256('flower-kmeans/2 ' || label || 0x00 ||")
    content = b"flower-kmeans/2 start\0" + (32).to_bytes(8, "little") + DOC_HASH
    assert hashlib.sha256(content).digest() == H(b"start", DOC_HASH)
    assert VECTORS["protocol"] == "flower-kmeans/2"


def test_ring():
    assert VECTORS["primes"] == list(PRIMES)
    for row in VECTORS["ring"]:
        residues = to_residues(np.array([row["value"]]))
        assert residues[:, 0].tolist() == row["residues"]
        assert pack(residues) == octets(row["word"])
        assert unpack(octets(row["word"]), 1).tobytes() == octets(row["word"])
        assert from_residues(residues).tolist() == [row["value"]]

    row = VECTORS["uniform"]
    elements = uniform(octets(row["key"]), row["stream"], len(row["words"]))
    assert pack(elements) == b"".join(octets(row["words"]))


def test_thresholds_and_drawn_committees():
    for row in VECTORS["parameters"]:
        sharing = SHARES.set_up(row["places"], row["f"], row["places"])
        assert (sharing.privacy, sharing.packing) == (row["tau"], row["k"]), row
    for row in VECTORS["committee_bound"]:
        assert corrupt_positions(row["members"], row["colluders"]) == row["f"], row
    row = VECTORS["drawn"]
    assert row["roster"] == "keys H('p', u32 i), i < 100"
    drawn_from = tuple(H(b"p", u32(i)) for i in range(100))
    assert list(drawn(drawn_from, octets(row["beacon"]), row["epoch"])) == row["places"]


def test_roster_and_committee():
    beacon = octets(VECTORS["beacon"])
    assert roster_digest(tuple(ROSTER), beacon) == octets(VECTORS["roster_digest"])
    row, sharing = VECTORS["committee"], COMMITTEE.sharing(SHARES)
    assert COMMITTEE.encode() == octets(row["list"])
    assert Committee.decode(octets(row["list"]), M, 1) == COMMITTEE
    numbers = (COMMITTEE.n_corrupt, sharing.privacy, sharing.packing)
    assert numbers == (row["f"], row["tau"], row["k"])
    assert COMMITTEE.digest == octets(row["hash"])


def test_sessions():
    assert hashlib.sha256(octets(VECTORS["document"])).digest() == DOC_HASH
    assert transcript.first_hash(DOC_HASH) == H0
    assert [keys.public_key(secret) for secret in STATIC] == ROSTER
    assert [keys.public_key(secret) for secret in EPHEMERAL] == PUBLIC
    for own, other in ((1, 4), (4, 1)):
        tag = keys.ownership_tag(STATIC[own], ROSTER[other], DOC_HASH, 1, 4, PUBLIC[1])
        assert tag == octets(VECTORS["tag_from_1_to_4"])
    digest = transcript.data_digest(np.array([[1.0, -2.0], [0.5, 0.25]]))
    assert digest == octets(VECTORS["data_digest"])
    software = VECTORS["software"].encode()
    found = [transcript.commitment(secret, DOC_HASH, software, digest) for secret in SESSION]
    assert found == octets(VECTORS["commitments_if_oblivious"])


LEAVES = [transcript.leaf(i, ZERO, ROSTER[i], PUBLIC[i]) for i in range(M)]
TREE = Tree(LEAVES)


def test_cohort_tag_and_context():
    assert octets(VECTORS["leaves"]) == LEAVES
    assert TREE.root == ROOT
    path = octets(VECTORS["path_of_3"])
    assert TREE.path(3) == path
    assert transcript.root_from(LEAVES[3], 3, M, path) == ROOT
    assert transcript.query_tag(ZERO, H0, octets(ROUND["query"])) == TAG
    numbers = (ROUND["t"], ROUND["attempt"], M)
    assert transcript.round_context(DOC_HASH, *numbers, ROOT, COMMITTEE.digest, H0, TAG) == CONTEXT


def test_shares_and_seals():
    for i in range(M):
        vector = np.array(ROUND["vectors"][i])
        parts = SHARES.protect(vector, sum_context(), i, SESSION[i])
        assert list(parts) == octets(ROUND["shares"][i])
        for j in range(M):
            sealed = octets(ROUND["sealed"][i][j])
            key = keys.share_key(secret_of(i, j), CONTEXT, i, j, PUBLIC[i], PUBLIC[j])
            assert keys.seal(key, parts[j], CONTEXT) == sealed
            key = keys.share_key(secret_of(j, i), CONTEXT, i, j, PUBLIC[i], PUBLIC[j])
            assert keys.unseal(key, sealed, CONTEXT) == parts[j]
    assert keys.noise_key(SESSION[0], CONTEXT) == octets(ROUND["noise_key_of_0"])


def test_sum():
    assert transcript.pack_survivors(SURVIVORS) == BITMAP
    np.testing.assert_array_equal(transcript.unpack_survivors(BITMAP, M), SURVIVORS)
    sums = octets(ROUND["sum_shares"])
    for j in range(M):
        parts = [octets(ROUND["shares"][i][j]) for i in ROUND["survivors"]]
        assert SHARES.combine(parts, sum_context()) == sums[j]
    for chosen in (range(M), GROUP["announced"]):
        opened = SHARES.open({j: sums[j] for j in chosen}, SURVIVORS, sum_context())
        assert opened.vector.tolist() == ROUND["sum"]
        assert opened.liars == ()


def test_group_key_and_envelope():
    secret, envelope = octets(GROUP["secret"]), octets(GROUP["envelope_from_0_to_2"])
    assert keys.group_key(secret, DOC_HASH) == GROUP_KEY
    for pair in ((0, 2), (2, 0)):
        key = keys.wrap_key(secret_of(*pair), DOC_HASH, PUBLIC[0], PUBLIC[2])
        assert keys.seal(key, secret, DOC_HASH) == envelope


def test_announced_sum():
    sealed = octets(GROUP["sealed_sum_shares"])
    for j, part in enumerate(octets(ROUND["sum_shares"])):
        key = keys.sum_share_key(GROUP_KEY, CONTEXT, j, BITMAP)
        assert keys.seal(key, part, CONTEXT) == sealed[j]
    entry = decode(octets(MESSAGES["entry"]), Entry)
    assert entry.shares == tuple((j, sealed[j]) for j in GROUP["announced"])
    assert entry.packing == COMMITTEE.sharing(SHARES).packing
    assert transcript.entry_context(DOC_HASH, H0, entry) == CONTEXT
    h1 = transcript.next_hash(H0, CONTEXT, entry)
    assert h1 == octets(GROUP["h1"])
    query, tag = (octets(VECTORS["second_query"][name]) for name in ("query", "tag"))
    assert transcript.query_tag(keys.query_key(GROUP_KEY), h1, query) == tag


def test_masks():
    row = VECTORS["masks"]
    key = masks.mask_key(sum_context(GROUP_KEY))
    assert key == octets(row["key"])
    for i, expected in enumerate(row["masks"]):
        assert list(map(str, masks.mask(key, i, M, N_WORDS).tolist())) == expected
        zeros = np.zeros(N_WORDS, dtype=np.int64)
        (part,) = MASKS.protect(zeros, sum_context(GROUP_KEY), i, SESSION[i])
        assert np.frombuffer(part, dtype="<u8").tolist() == [int(word) for word in expected]
    removed = masks.correction(key, SURVIVORS, N_WORDS)
    assert list(map(str, removed.tolist())) == row["correction_of_survivors"]


def tag_of(owner, reader):
    own = STATIC[owner], ROSTER[reader]
    return keys.ownership_tag(*own, DOC_HASH, owner, reader, PUBLIC[owner])


def located(slot):
    tags = b"".join(tag_of(j, slot) for j in range(M))
    cohort = {"n_slots": M, "root": ROOT, "committee": COMMITTEE.encode()}
    return {"doc_hash": DOC_HASH, **cohort, "slot": slot, "path": TREE.path(slot), "tags": tags}


def expected_messages():
    """Return every message of the vectors, made here."""
    entry = Entry(
        t=1, attempt=1, n_slots=M, root=ROOT, committee=COMMITTEE.digest, tag=TAG,
        survivors=BITMAP, packing=1,
        shares=tuple((j, octets(GROUP["sealed_sum_shares"][j])) for j in GROUP["announced"]),
    )  # fmt: skip
    sealed, own_tags = octets(ROUND["sealed"]), b"".join(tag_of(0, j) for j in range(M))
    return {
        "enrol": Enrol(doc=octets(VECTORS["document"])),
        "enrolled": Enrolled(
            doc_hash=DOC_HASH, commitment=ZERO, static=ROSTER[0], public_key=PUBLIC[0],
            tags=own_tags, ledger=True, software="flower-kmeans 2.0",
        ),
        "ask": Ask(t=2, attempt=1, entries=(entry,), **located(3)),
        "entry": entry,
        "finish": messages.Finish(doc_hash=DOC_HASH, entries=(entry,)),
        "refusal": Refusal(code=Code.KEY, doc_hash=DOC_HASH, slot=2),
        "added": Added(
            doc_hash=DOC_HASH, share=octets(GROUP["sealed_sum_shares"][0]),
            key_id=keys.key_id(GROUP_KEY, DOC_HASH),
        ),
        "answer": Answer(doc_hash=DOC_HASH, tag=TAG, sealed=tuple(sealed[0])),
        "add": Add(
            t=1, attempt=1, h=H0, tag=TAG, survivors=BITMAP,
            public_keys=b"".join(PUBLIC[i] for i in ROUND["survivors"]),
            sealed=tuple(sealed[i][2] for i in ROUND["survivors"]), **located(2),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(MESSAGES))
def test_messages(name):
    expected, data = expected_messages()[name], octets(MESSAGES[name])
    assert encode(expected) == data
    if name == "entry":
        assert decode(data, Entry) == expected
        return
    read = (
        messages.decode_request
        if isinstance(expected, Enrol | Ask | Add | messages.Finish)
        else messages.decode_reply
    )
    assert read(data) == expected
