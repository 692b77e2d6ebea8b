"""The library reproduces the protocol's published test vectors (docs/protocol.md)."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol import messages, transcript
from flower_kmeans.protocol.committee import (
    Committee,
    corrupt_positions,
    drawn,
    roster_digest,
)
from flower_kmeans.protocol.messages import (
    Abort,
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Held,
    Hold,
    Keys,
    Refusal,
    Wrapped,
)
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.transcript import ZERO, Tree
from flower_kmeans.protocol.wire import decode, encode
from flower_kmeans.secagg import masks
from flower_kmeans.secagg import primitives as keys
from flower_kmeans.secagg.base import SumContext, secure_sum
from flower_kmeans.secagg.primitives import H, u32, u64
from flower_kmeans.secagg.shares import PRIMES, from_residues, to_residues, uniform
from flower_kmeans.vertical.protocol.messages import Delivery, Parcel, Sent, Turn
from tests.support.ring import pack, unpack

pytestmark = pytest.mark.claim("protocol", "each-block-has-each")

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())
M = 5
ROUND, GROUP, MESSAGES = VECTORS["round"], VECTORS["group"], VECTORS["messages"]
SHARES, MASKS = secure_sum("shares"), secure_sum("masks")


def octets(value):
    return (
        [octets(item) for item in value]
        if isinstance(value, list)
        else bytes.fromhex(value)
    )


DOC_HASH, ROOT, H0 = (octets(VECTORS[name]) for name in ("document_hash", "root", "h0"))
CONTEXT, TAG, BITMAP = (octets(ROUND[name]) for name in ("context", "tag", "bitmap"))
STATIC, EPHEMERAL, SESSION = (
    octets(VECTORS[name]) for name in ("static_secrets", "ephemeral_secrets", "z")
)
ROSTER, PUBLIC = octets(VECTORS["roster"]), octets(VECTORS["ephemeral_publics"])
NODES, CLAIMS = VECTORS["nodes"], octets(VECTORS["claims"])
P = 2**255 - 19
COMMITTEE = Committee(tuple(range(M)), tuple(PUBLIC), M, 1)
GROUP_KEY = octets(GROUP["key"])
SURVIVORS = np.isin(np.arange(M), ROUND["survivors"])
N_WORDS = len(ROUND["sum"])


def sum_context(group=b""):
    return SumContext(CONTEXT, N_WORDS, M, group, COMMITTEE.sharing(SHARES))


def secret_of(i, j):
    lasting = keys.exchange_secret(STATIC[i]), keys.exchange_key(ROSTER[j])
    return keys.pair_secret(EPHEMERAL[i], PUBLIC[j], *lasting)


def test_hash_is_the_described_one():
    assert VECTORS["hash"].startswith("sha256('flower-kmeans/3 ' || label || 0x00 ||")
    content = b"flower-kmeans/3 start\0" + (32).to_bytes(8, "little") + DOC_HASH
    assert hashlib.sha256(content).digest() == H(b"start", DOC_HASH)
    assert VECTORS["protocol"] == "flower-kmeans/3"


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
    assert [keys.public_key(secret) for secret in EPHEMERAL] == PUBLIC
    digest = transcript.data_digest(np.array([[1.0, -2.0], [0.5, 0.25]]))
    assert digest == octets(VECTORS["data_digest"])
    software = VECTORS["software"].encode()
    found = [
        transcript.commitment(secret, DOC_HASH, software, digest) for secret in SESSION
    ]
    assert found == octets(VECTORS["commitments_if_oblivious"])


def test_lasting_keys():
    assert [keys.lasting_key(seed) for seed in STATIC] == ROSTER
    assert [keys.exchange_secret(seed) for seed in STATIC] == octets(
        VECTORS["exchange_secrets"]
    )
    assert [keys.exchange_key(key) for key in ROSTER] == octets(
        VECTORS["exchange_publics"]
    )
    for seed, converted in zip(
        STATIC, octets(VECTORS["exchange_secrets"]), strict=True
    ):
        assert hashlib.sha512(seed).digest()[:32] == converted
    for key, converted in zip(ROSTER, octets(VECTORS["exchange_publics"]), strict=True):
        u, y = (int.from_bytes(each, "little") % 2**255 for each in (converted, key))
        assert u * (1 - y) % P == (1 + y) % P


def test_claims_and_rows():
    for slot, (node_id, claim) in enumerate(zip(NODES, CLAIMS, strict=True)):
        given = DOC_HASH, slot, node_id, PUBLIC[slot]
        assert keys.claim(STATIC[slot], *given) == claim
        assert keys.is_claim(claim, ROSTER[slot], *given)
        content = b"flower-kmeans/3 claim\0"
        for part in (DOC_HASH, u32(slot), u64(node_id), PUBLIC[slot]):
            content += u64(len(part)) + part
        Ed25519PublicKey.from_public_bytes(ROSTER[slot]).verify(
            claim, hashlib.sha256(content).digest()
        )
    assert peer_of(1).row == octets(VECTORS["row_of_1"])
    assert messages.Peer(1, PUBLIC[1]).row == octets(VECTORS["relayed_row_of_1"])
    assert messages.read_rows(octets(VECTORS["row_of_1"]), True) == (peer_of(1),)


def test_rosters_that_are_refused(tmp_path):
    refused = VECTORS["refused_in_rosters"]
    assert [len(each) for each in refused.values()] == [10, 3, 2]
    rosters = [[key] for kind in ("small_order", "too_large") for key in refused[kind]]
    for lines in [*rosters, refused["two_signs"]]:
        path = tmp_path / "roster.toml"
        path.write_text("".join(f'c{i} = "{key}"\n' for i, key in enumerate(lines)))
        path.chmod(0o600)
        with pytest.raises(ConfigurationError):
            Roster.from_file(path)
    assert [bytes.fromhex(key) in ROSTER for key in refused["two_signs"]] == [
        True,
        False,
    ]


def peer_of(slot):
    return messages.Peer(slot, PUBLIC[slot], NODES[slot], CLAIMS[slot])


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
    assert (
        transcript.round_context(DOC_HASH, *numbers, ROOT, COMMITTEE.digest, H0, TAG)
        == CONTEXT
    )


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
        opened = SHARES.reconstruct(
            {j: sums[j] for j in chosen}, SURVIVORS, sum_context()
        )
        assert opened.vector.tolist() == ROUND["sum"]
        assert opened.liars == ()


def test_group_key_and_envelope():
    secret, envelope = octets(GROUP["secret"]), octets(GROUP["envelope_from_0_to_2"])
    assert keys.group_key(secret, DOC_HASH) == GROUP_KEY
    assert keys.key_id(GROUP_KEY, DOC_HASH) == octets(GROUP["key_id"])
    for pair in ((0, 2), (2, 0)):
        key = keys.wrap_key(secret_of(*pair), DOC_HASH, PUBLIC[0], PUBLIC[2])
        assert keys.seal(key, secret, DOC_HASH) == envelope


def test_announced_sum():
    sealed = octets(GROUP["sealed_sum_shares"])
    for j, part in enumerate(octets(ROUND["sum_shares"])):
        key = keys.sum_share_key(GROUP_KEY, CONTEXT, j, BITMAP)
        assert keys.seal(key, part, CONTEXT) == sealed[j]
    entry = decode(octets(MESSAGES["entry"]), Entry)
    assert messages.read_sum_shares(entry) == {j: sealed[j] for j in GROUP["announced"]}
    assert entry.positions == octets(GROUP["positions"])
    content = b"flower-kmeans/3 shares\0"
    for part in (entry.positions, entry.shares):
        content += u64(len(part)) + part
    assert hashlib.sha256(content).digest() == octets(GROUP["body"])
    assert H(b"entry", H0, CONTEXT, BITMAP, octets(GROUP["body"])) == octets(
        GROUP["h1"]
    )
    assert entry.packing == COMMITTEE.sharing(SHARES).packing
    assert transcript.entry_context(DOC_HASH, H0, entry) == CONTEXT
    h1 = transcript.next_hash(H0, CONTEXT, entry)
    assert h1 == octets(GROUP["h1"])
    query, tag = (octets(VECTORS["second_query"][name]) for name in ("query", "tag"))
    assert transcript.query_tag(keys.query_key(GROUP_KEY), h1, query) == tag
    assert transcript.query_hash(h1, query) == octets(VECTORS["second_query"]["hash"])


def test_variant():
    public_keys = b"".join(PUBLIC[i] for i in ROUND["survivors"])
    sealed = b"".join(octets(ROUND["sealed"][i][2]) for i in ROUND["survivors"])
    variant = octets(ROUND["variant_at_2"])
    assert transcript.variant_hash(CONTEXT, BITMAP, public_keys, sealed) == variant
    content = b"flower-kmeans/3 variant\0"
    for part in (CONTEXT, BITMAP, public_keys, sealed):
        content += u64(len(part)) + part
    assert hashlib.sha256(content).digest() == variant


def test_masks():
    row = VECTORS["masks"]
    key = masks.mask_key(sum_context(GROUP_KEY))
    assert key == octets(row["key"])
    for i, expected in enumerate(row["masks"]):
        assert list(map(str, masks.mask(key, i, M, N_WORDS).tolist())) == expected
        zeros = np.zeros(N_WORDS, dtype=np.int64)
        (part,) = MASKS.protect(zeros, sum_context(GROUP_KEY), i, SESSION[i])
        assert np.frombuffer(part, dtype="<u8").tolist() == [
            int(word) for word in expected
        ]
    removed = masks.correction(key, SURVIVORS, N_WORDS)
    assert list(map(str, removed.tolist())) == row["correction_of_survivors"]


def located(slot):
    cohort = {"n_slots": M, "root": ROOT, "committee": COMMITTEE.encode()}
    return {"doc_hash": DOC_HASH, **cohort, "slot": slot, "path": TREE.path(slot)}


def expected_messages():
    """Return every message of the vectors, made here."""
    entry = Entry(
        t=1, attempt=1, n_slots=M, root=ROOT, committee=COMMITTEE.digest, tag=TAG,
        survivors=BITMAP, packing=1, positions=b"\x1d" + bytes(7),
        shares=b"".join(octets(GROUP["sealed_sum_shares"][j]) for j in GROUP["announced"]),
    )  # fmt: skip
    sealed, envelope = octets(ROUND["sealed"]), octets(GROUP["envelope_from_0_to_2"])
    claims = messages.write_claims(zip(NODES, CLAIMS, strict=True))
    rows, key_id = [peer_of(i).row for i in range(M)], octets(GROUP["key_id"])
    wrap = messages.Wrap(distributor=rows[0], key_id=key_id, envelope=envelope)
    parcel = Parcel(
        step="join", number=3, receivers=u32(0) + u32(3) + u32(4), keys=envelope * 3,
        data=sealed[0][0],
    )  # fmt: skip
    delivery = Delivery(
        sender=1, step="join", number=3, key=envelope, data=sealed[0][0]
    )
    return {
        "enrol": Enrol(doc=octets(VECTORS["document"])),
        "enrolled": Enrolled(
            doc_hash=DOC_HASH, commitment=ZERO, static=ROSTER[0], public_key=PUBLIC[0],
            claim=CLAIMS[0], ledger=True, software="flower-kmeans 2.0",
        ),
        "keys": Keys(doc_hash=DOC_HASH, peers=b"".join(rows[:3])),
        "wrapped": Wrapped(doc_hash=DOC_HASH, key_id=key_id, envelopes=envelope),
        "hold": Hold(doc_hash=DOC_HASH, wraps=(wrap,)),
        "held": Held(doc_hash=DOC_HASH, key_id=key_id),
        "abort": Abort(doc_hash=DOC_HASH),
        "ask": Ask(
            t=2, attempt=1, entries=(entry,), peers=rows[1] + rows[4], claims=claims,
            wraps=(wrap,), **located(3),
        ),
        "entry": entry,
        "finish": messages.Finish(doc_hash=DOC_HASH, entries=(entry,)),
        "refusal": Refusal(code=Code.KEY, doc_hash=DOC_HASH, slot=2),
        "renewal": Refusal(
            code=Code.RENEW, doc_hash=DOC_HASH, commitment=ZERO, static=ROSTER[1],
            public_key=PUBLIC[1], claim=CLAIMS[1],
        ),
        "added": Added(
            doc_hash=DOC_HASH, share=octets(GROUP["sealed_sum_shares"][0]),
            key_id=keys.key_id(GROUP_KEY, DOC_HASH),
        ),
        "answer": Answer(doc_hash=DOC_HASH, tag=TAG, sealed=b"".join(sealed[0])),
        "add": Add(
            t=1, attempt=1, h=H0, tag=TAG, survivors=BITMAP,
            public_keys=b"".join(PUBLIC[i] for i in ROUND["survivors"]),
            sealed=b"".join(sealed[i][2] for i in ROUND["survivors"]), **located(2),
        ),
        "parcel": parcel,
        "sent": Sent(doc_hash=DOC_HASH, parts=2, parcels=(parcel,)),
        "turn": Turn(
            doc_hash=DOC_HASH, step="load", peers=rows[1] + rows[2], deliveries=(delivery,)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(MESSAGES))
def test_messages(name):
    expected, data = expected_messages()[name], octets(MESSAGES[name])
    assert encode(expected) == data
    if isinstance(expected, Entry | Parcel):
        assert decode(data, type(expected)) == expected
        return
    is_request = isinstance(expected, messages.Request)
    read = messages.decode_request if is_request else messages.decode_reply
    assert read(data) == expected


def test_a_parcel_by_hand():
    """Written from docs/protocol.md: no element of it is an array."""
    keys, data = (
        octets(GROUP["envelope_from_0_to_2"]) * 3,
        octets(ROUND["sealed"][0][0]),
    )
    assert (len(keys), len(data)) == (144, 64)
    receivers = bytes([0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])
    written = b"\x85\xa4step\xa4join\xa6number\3\xa9receivers\xc4\x0c" + receivers
    written += b"\xa4keys\xc4\x90" + keys + b"\xa4data\xc4\x40" + data
    assert written == octets(MESSAGES["parcel"])
