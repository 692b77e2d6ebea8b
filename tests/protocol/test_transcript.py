"""Contexts, tags, trees and the transcript: everything counts."""

import hashlib
import itertools
import json
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol import transcript
from flower_kmeans.protocol.messages import Entry
from flower_kmeans.protocol.transcript import (
    EMPTY,
    ZERO,
    Tree,
    data_digest,
    leaf,
    pack_survivors,
    root_from,
    round_context,
    unpack_survivors,
    variant_hash,
)

pytestmark = pytest.mark.claim("protocol", "each-block-has-each")

V = json.loads((Path(__file__).with_name("vectors.json")).read_text())
DOC_HASH, ROOT = bytes.fromhex(V["document_hash"]), bytes.fromhex(V["root"])
COMMITTEE = bytes.fromhex(V["committee"]["hash"])


def changed(part):
    """Return another number, or bytes with another bit."""
    return part + 1 if isinstance(part, int) else bytes([part[0] ^ 1]) + part[1:]


def reference_hash(label, *parts):
    """The hash as the protocol's page writes it."""
    data = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return hashlib.sha256(b"flower-kmeans/3 " + label + b"\0" + data).digest()


def test_digests_are_the_documented_ones():
    records = np.array([[0.5, -1.0], [2.0, 0.0], [1e-9, 3.0]])
    sizes = struct.pack("<Q", 3), struct.pack("<Q", 2)
    assert data_digest(records) == reference_hash(b"data", *sizes, records.tobytes())
    assert data_digest(np.asfortranarray(records)) == data_digest(records)
    assert data_digest(np.zeros((0, 2))) != data_digest(np.zeros((0, 3)))
    parts = (bytes(32), b"\1" * 32, b"s" * 32, b"e" * 32)
    assert leaf(7, *parts[1:]) == reference_hash(
        b"leaf", struct.pack("<I", 7), *parts[1:]
    )
    assert variant_hash(*parts) == reference_hash(b"variant", *parts)


@pytest.mark.parametrize("n_slots", [1, 2, 3, 5, 8, 9, 17])
def test_every_leaf_leads_to_the_root_and_no_other_does(n_slots):
    leaves = [leaf(i, ZERO, b"", bytes([i]) * 32) for i in range(n_slots)]
    tree = Tree(leaves)
    for i, path in enumerate(map(tree.path, range(n_slots))):
        for j in range(n_slots):
            assert (root_from(leaves[j], i, n_slots, path) == tree.root) == (i == j)
            assert (root_from(leaves[i], j, n_slots, path) == tree.root) == (i == j)
        for wrong in (path + bytes(32), *((path[:-1], path[32:]) if path else ())):
            assert root_from(leaves[i], i, n_slots, wrong) is None
        assert not path or root_from(leaves[i], i, n_slots, changed(path)) != tree.root
    for slot in (n_slots, -1):
        assert root_from(leaves[0], slot, n_slots, tree.path(0)) is None


def test_absent_clients_have_empty_leaves_and_padding_is_like_them():
    leaves = [leaf(i, ZERO, b"", bytes(32)) for i in range(3)]
    assert Tree(leaves).root == Tree([*leaves, EMPTY]).root
    assert Tree([leaves[0], EMPTY, leaves[2]]).root != Tree(leaves).root
    with pytest.raises(ConfigurationError, match="at least one client"):
        Tree([])


@given(
    st.binary(max_size=12),
    st.integers(1, 80),
    st.lists(st.booleans(), min_size=1, max_size=70),
)
@settings(deadline=None)
def test_any_bytes_are_a_bitmap_or_refused(data, n_slots, bits):
    assert unpack_survivors(pack_survivors(np.array(bits)), len(bits)).tolist() == bits
    try:
        survivors = unpack_survivors(data, n_slots)
    except MessageError:
        is_beyond = (
            len(data) == (n_slots + 7) // 8
            and int.from_bytes(data, "little") >> n_slots
        )
        assert is_beyond or len(data) != (n_slots + 7) // 8
        return
    assert pack_survivors(survivors) == data


def test_contexts_and_tags_depend_on_everything():
    context = DOC_HASH, 2, 1, 5, ROOT, COMMITTEE, b"h" * 32, b"t" * 32
    others = [
        (*context[:i], changed(part), *context[i + 1 :])
        for i, part in enumerate(context)
    ]
    assert len({round_context(*parts) for parts in (context, *others)}) == 1 + len(
        context
    )
    keys, histories = (ZERO, b"k" * 32), (ZERO, b"h" * 32)
    choices = itertools.product(keys, histories, (b"", b"query"))
    assert len({transcript.query_tag(*choice) for choice in choices}) == 8


FIRST = transcript.first_hash(DOC_HASH)
ENTRY = Entry(
    t=1, attempt=1, n_slots=5, root=ROOT, committee=COMMITTEE, tag=ZERO, survivors=b"\x1f",
    packing=1, positions=b"\7" + bytes(7), shares=b"abc",
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"t": 2}, {"attempt": 2}, {"n_slots": 6}, {"root": ZERO}, {"committee": ZERO},
        {"tag": ROOT}, {"survivors": b"\x0f"}, {"shares": b"ab"},
        {"shares": b"cba"}, {"positions": b"\x0b" + bytes(7)},
        {"positions": b"\7", "shares": bytes(7) + b"abc"}, {"words": bytes(8), "shares": b""},
        {"words": bytes(16), "shares": b""},
    ],
)  # fmt: skip
def test_the_transcript_depends_on_every_announced_thing(changes):
    def after(entry, h=FIRST):
        return transcript.next_hash(
            h, transcript.entry_context(DOC_HASH, h, entry), entry
        )

    other = msgspec.structs.replace(ENTRY, **changes)
    assert after(other) != after(ENTRY)
    assert after(ENTRY, ZERO) != after(ENTRY)
    assert after(ENTRY) == after(msgspec.structs.replace(ENTRY))
