"""Secrets that a majority opens, and a minority knows nothing of."""

import numpy as np
import pytest
from harness import P_VALUE, byte_p_value
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg.sharing import (
    PRIME,
    SHARE_BYTES,
    Interpolation,
    open_stream,
    polynomial,
    quorum,
    secret_of,
    share_of,
)

KEY = bytes(range(32))
cohorts = st.integers(1, 30)
heads = st.binary(min_size=32, max_size=32)


def shares_of(head, m, key=KEY):
    coefficients = polynomial(key, head, m)
    return secret_of(coefficients), {i: share_of(coefficients, i) for i in range(m)}


def some(data, m, size):
    places = data.draw(st.permutations(range(m)))
    return places[:size]


@given(cohorts, heads, st.data())
@settings(max_examples=60, deadline=None)
def test_any_quorum_gives_the_secret_and_all_other_shares(m, head, data):
    secret, shares = shares_of(head, m)
    size = data.draw(st.integers(quorum(m), m))
    found = Interpolation({i: shares[i] for i in some(data, m, size)})
    assert found.secret == secret
    assert {i: found.share(i) for i in range(m)} == shares


@given(st.integers(2, 30), heads, st.integers(0, PRIME - 1), st.data())
@settings(max_examples=60, deadline=None)
def test_less_than_a_quorum_is_consistent_with_every_secret(m, head, claimed, data):
    """For any secret there is one last share that makes it the secret of all of them."""
    _, shares = shares_of(head, m)
    *known, last = some(data, m, quorum(m))
    claimed = claimed.to_bytes(SHARE_BYTES, "little")
    fitting = Interpolation({**{i: shares[i] for i in known}, -1: claimed}).share(last)
    consistent = {**{i: shares[i] for i in known}, last: fitting}
    assert Interpolation(consistent).secret == claimed


@pytest.mark.parametrize(
    ("m", "size"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (10, 6), (1000, 501)]
)
def test_a_quorum_is_more_than_half(m, size):
    assert quorum(m) == size
    assert 2 * size > m
    assert 2 * (size - 1) <= m
    assert len(polynomial(KEY, bytes(32), m)) == size


def test_a_thousand_members():
    m = 1000
    secret, shares = shares_of(b"h" * 32, m)
    places = np.random.default_rng(0).permutation(m)[: quorum(m)].tolist()
    assert Interpolation({i: shares[i] for i in places}).secret == secret


def test_a_false_share_gives_another_secret():
    secret, shares = shares_of(b"h" * 32, 9)
    right = {i: shares[i] for i in range(quorum(9))}
    for i in right:
        false = bytes([right[i][0] ^ 1]) + right[i][1:]
        assert Interpolation({**right, i: false}).secret != secret


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=30, deadline=None)
def test_any_bytes_are_taken_as_a_share(share):
    """Who sends a number beyond the field gets a value of it, never an error."""
    found = Interpolation({0: share, 4: b"\xff" * 32, 7: bytes(32)})
    assert len(found.secret) == SHARE_BYTES
    assert int.from_bytes(found.secret, "little") < PRIME


def test_every_sum_and_key_has_a_polynomial_of_its_own():
    secrets = {
        shares_of(head, 5, key)[0] for head in (b"a" * 32, b"b" * 32) for key in (KEY, bytes(32))
    }
    assert len(secrets) == 4
    streams = {open_stream(secret, b"a" * 32, 4).tobytes() for secret in secrets}
    streams |= {open_stream(secret, b"b" * 32, 4).tobytes() for secret in secrets}
    assert len(streams) == 8


def test_shares_and_streams_look_uniform():
    """All bytes but the highest, which the prime cuts at 127."""
    shares = [shares_of(bytes([i]) * 32, 40)[1] for i in range(40)]
    assert byte_p_value(b"".join(share[:31] for each in shares for share in each.values())) > (
        P_VALUE
    )
    assert byte_p_value(open_stream(KEY, bytes(32), 5000).tobytes()) > P_VALUE
