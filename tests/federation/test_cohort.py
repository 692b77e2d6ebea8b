"""Leaves, paths and roots."""

import os

import numpy as np
import pytest

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.federation.cohort import (
    Tree,
    commitment,
    data_digest,
    depth,
    leaf,
    root_from,
)


def leaves(m):
    return [leaf(i, 7 * i, bytes(32)) for i in range(m)]


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 9, 33])
def test_paths_lead_to_the_root_and_nowhere_else(m):
    members = leaves(m)
    tree = Tree(members)
    assert len(tree) == m
    for i, member in enumerate(members):
        path = tree.path(i)
        assert len(path) == 32 * depth(m)
        assert root_from(member, i, m, path) == tree.root
        for other in range(m):
            if other != i:
                assert root_from(member, other, m, path) != tree.root
                assert root_from(members[other], i, m, path) != tree.root
        for flipped in range(0, len(path), 31):
            changed = path[:flipped] + bytes([path[flipped] ^ 1]) + path[flipped + 1 :]
            assert root_from(member, i, m, changed) != tree.root


@pytest.mark.parametrize(("index", "m", "size"), [(-1, 4, 64), (4, 4, 64), (0, 4, 32), (0, 5, 64)])
def test_impossible_places_have_no_root(index, m, size):
    assert root_from(bytes(32), index, m, bytes(size)) is None


def test_updates_and_growth_equal_a_new_tree():
    members = leaves(1)
    tree = Tree(members)
    for i in range(1, 20):
        members.append(leaf(i, i, bytes(32)))
        assert tree.append(members[-1]) == i
        renewed = i // 2
        members[renewed] = leaf(renewed, renewed, os.urandom(32))
        tree.update(renewed, members[renewed])
        fresh = Tree(members)
        assert tree.root == fresh.root
        assert [tree.path(j) for j in range(len(tree))] == [fresh.path(j) for j in range(len(tree))]


def test_padding_is_no_member():
    tree = Tree(leaves(3))
    for use in (tree.path, lambda i: tree.update(i, bytes(32))):
        with pytest.raises(IndexError):
            use(3)
        with pytest.raises(IndexError):
            use(-1)
    with pytest.raises(ConfigurationError):
        Tree([])


def test_a_leaf_depends_on_every_part():
    base = (1, 2**64 - 1, bytes(32), b"")
    variants = [(2, *base[1:]), (1, 5, *base[2:]), (*base[:2], b"\1" * 32, b"")]
    variants += [(*base[:3], bytes(32)), base]
    assert len({leaf(*variant) for variant in variants}) == len(variants)


def test_data_digest_sees_values_order_and_shape_only():
    records = np.array([[1.0, 2.0], [3.0, 4.0]])
    digest = data_digest(records)
    assert data_digest(np.asfortranarray(records)) == digest
    assert data_digest(records.astype(">f8")) == digest
    assert data_digest(records[::-1]) != digest
    assert data_digest(records.reshape(4, 1)) != digest
    assert data_digest(np.zeros((0, 2))) != data_digest(np.zeros((0, 3)))
    assert data_digest(np.nextafter(records, 9)) != digest


def test_commitment_depends_on_every_part():
    base = (bytes(32), bytes(32), b"1", bytes(32))
    made = {commitment(*base)}
    for i, other in enumerate([b"\1" * 32, b"\1" * 32, b"2", b"\1" * 32]):
        made.add(commitment(*base[:i], other, *base[i + 1 :]))
    assert len(made) == 5
    assert {len(value) for value in made} == {32}
