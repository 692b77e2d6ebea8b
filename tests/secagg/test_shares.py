"""Packed shares: sums open exactly, few shares say nothing, false shares are named."""

import itertools
import math
import os
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg import shares
from flower_kmeans.secagg.base import (
    PartError,
    Sharing,
    SumContext,
    SumError,
    secure_sum,
)
from flower_kmeans.secagg.shares import (
    PRIMES,
    RING,
    from_residues,
    to_residues,
    uniform,
)
from tests.support.ring import eliminate, generator, lied, pack, residues_of, unpack
from tests.support.saying import assert_within

pytestmark = pytest.mark.claim("how-sums-work", "masks-shares-do-not")

SUM = secure_sum("shares")
EVERYONE = np.ones(5, dtype=bool)
seeds = st.integers(0, 2**32).map(np.random.default_rng)
words_of_sums = st.integers(-(RING // 2), RING // 2)


@st.composite
def committees(draw):
    """Return the sharing of a committee, of which some may be absent."""
    m = draw(st.integers(2, 64))
    f = draw(st.integers(1, max(1, m // 3)))
    least = f + 2 * (m - f) // 3 + 1
    return SUM.set_up(m, f, draw(st.integers(least, m)))


def context_of(sharing, n_words, digest=bytes(32)):
    return SumContext(digest, n_words, sharing.n_positions, sharing=sharing)


def sum_shares(vectors, context):
    dealt = [SUM.protect(vector, context, 0, os.urandom(32)) for vector in vectors]
    return {
        j: SUM.combine(parts, context)
        for j, parts in enumerate(zip(*dealt, strict=True))
    }


@given(committees())
def test_thresholds_leave_room_for_one_sum_of_a_round(sharing):
    m, f = sharing.n_positions, sharing.n_corrupt
    assert 3 * (sharing.privacy - f + 1) > 2 * (m - f)
    assert 3 * (sharing.privacy - f) <= 2 * (m - f)  # and no more than that
    assert f <= sharing.privacy < sharing.threshold <= m


@pytest.mark.parametrize(
    ("positions", "corrupt", "present", "named"),
    [
        (5, 0, 5, "0"),
        (5, 5, 5, "5"),
        (1, 1, 1, "1"),
        (5, 1, 3, "3"),
        (64, 63, 63, "63"),
    ],
)
def test_committees_that_cannot_open_are_refused(positions, corrupt, present, named):
    with pytest.raises(ConfigurationError, match=f"Got {named} instead"):
        SUM.set_up(positions, corrupt, present)


def test_parts_shrink_with_the_packing():
    assert SUM.part_bytes(81, Sharing(64, 6, 44, 10)) == 8 * 9
    assert SUM.part_bytes(81, Sharing(10, 1, 7, 1)) == 8 * 81
    for call in (
        lambda: SUM.part_bytes(1, None),
        lambda: SUM.combine([], SumContext(b"", 1, 1)),
    ):
        with pytest.raises(ConfigurationError, match="sharing"):
            call()


@pytest.mark.claim("guarantees", "38")
@given(committees(), st.integers(1, 30), st.integers(1, 4), seeds)
@settings(max_examples=60, deadline=None)
def test_any_threshold_of_sum_shares_opens_the_exact_sum(
    sharing, n_words, n_clients, rng
):
    bound = (SUM.limit - 1) // n_clients
    vectors = rng.integers(-bound, bound, (n_clients, n_words), endpoint=True)
    context = context_of(sharing, n_words)
    found = sum_shares(vectors, context)
    assert {len(part) for part in found.values()} == {SUM.part_bytes(n_words, sharing)}
    n_added = rng.integers(sharing.threshold, sharing.n_positions, endpoint=True)
    chosen = rng.permutation(sharing.n_positions)[:n_added].tolist()
    opened = SUM.reconstruct({j: found[j] for j in chosen}, EVERYONE, context)
    assert opened.vector.tolist() == vectors.sum(axis=0).tolist()
    assert opened.liars == ()
    with pytest.raises(SumError, match=f"at least {sharing.threshold}"):
        SUM.reconstruct(
            {j: found[j] for j in chosen[: sharing.threshold - 1]}, EVERYONE, context
        )


def test_many_parts_are_added_exactly(monkeypatch):
    """In batches of any size, with the largest residues."""
    context = context_of(Sharing(5, 1, 3, 1), 3)
    largest = pack(np.array([[p - 1] * 3 for p in PRIMES]))
    for batch in (1, 7, 2**17):
        monkeypatch.setattr(shares, "_BATCH_ELEMENTS", batch)
        total = unpack(SUM.combine(iter([largest] * 1000), context), 3)
        assert residues_of(total).tolist() == [[(p - 1) * 1000 % p] * 3 for p in PRIMES]


def test_dealings_are_repeatable_and_differ_by_everything():
    def dealt(shift=0, digest=bytes(32), secret=bytes(32)):
        context = context_of(Sharing(5, 1, 3, 2), 6, digest)
        return SUM.protect(np.arange(6) + shift, context, 0, secret)

    assert dealt() == dealt()
    others = dealt(shift=1), dealt(digest=b"\1" * 32), dealt(secret=b"\1" * 32)
    assert len({parts[0] for parts in (dealt(), *others)}) == 4


@pytest.mark.claim("guarantees", "38")
@pytest.mark.claim("threat-model", "1")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    "sharing",
    [
        Sharing(3, 1, 2, 1),
        Sharing(4, 1, 1, 2),
        Sharing(4, 1, 2, 1),
        Sharing(4, 1, 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("secret", [(0, 0), (171, -3)])
def test_any_tau_shares_are_uniform(sharing, secret, monkeypatch):
    """Over a small ring, for all random elements: every tuple of tau shares comes exactly once.

    Each block of one dealing has another choice of the random elements, and the same
    secrets. So the law of tau shares is uniform, whatever the secrets are.
    """
    ring = [a | b << 21 | c << 42 for a, b, c in itertools.product(range(7), repeat=3)]
    free = np.array(
        list(itertools.product(ring, repeat=sharing.privacy)), dtype=np.uint64
    ).T
    monkeypatch.setattr(shares, "PRIMES", (7, 7, 7))
    monkeypatch.setattr(
        shares, "_uniform_words", lambda key, length: free.reshape(length)
    )
    n_blocks = free.shape[1]
    vector = np.repeat(secret[: sharing.packing], n_blocks)
    parts = SUM.protect(vector, context_of(sharing, len(vector)), 0, bytes(32))
    values = [np.frombuffer(part, "<u8").tolist() for part in parts]
    for chosen in itertools.combinations(values, sharing.privacy):
        assert (
            len(set(zip(*chosen, strict=True)))
            == n_blocks
            == len(ring) ** sharing.privacy
        )
    if sharing.privacy + 1 <= sharing.n_positions:  # one share more is not uniform
        more = set(zip(*values[: sharing.privacy + 1], strict=True))
        assert len(more) < len(ring) ** (sharing.privacy + 1)


@pytest.mark.claim("guarantees", "38")
@given(committees(), st.sampled_from(PRIMES), seeds)
@settings(max_examples=60, deadline=None)
def test_any_tau_shares_hide_the_words_at_the_real_primes(sharing, prime, rng):
    """What random elements put into any tau shares has full rank, so the shares are uniform."""
    tau = sharing.privacy
    chosen = rng.permutation(sharing.n_positions)[:tau]
    assert eliminate(generator(sharing, prime)[chosen, :tau], tau, prime) == tau


@pytest.mark.claim("threat-model", "32")
@given(committees(), st.integers(1, 20), seeds)
@settings(max_examples=60, deadline=None)
def test_false_shares_are_named_up_to_half_of_what_is_left_over(sharing, n_words, rng):
    """Each of them false in a few blocks and modulo a few primes."""
    vectors = rng.integers(-(2**50), 2**50, (2, n_words))
    context = context_of(sharing, n_words)
    found = sum_shares(vectors, context)
    n_added = int(rng.integers(sharing.threshold, sharing.n_positions, endpoint=True))
    chosen = rng.permutation(sharing.n_positions)[:n_added].tolist()
    most = (n_added - sharing.threshold) // 2
    liars = chosen[: int(rng.integers(most, endpoint=True))]
    given = {j: found[j] for j in chosen}
    for j in liars:
        block = int(rng.integers(len(found[j]) // 8))
        given[j] = lied(
            found[j], int(rng.integers(3)), block, int(rng.integers(1, 2**20))
        )
    if n_added > sharing.threshold + 2 * len(liars):  # malformed ones are false ones
        given[chosen[-1]] = given[chosen[-1]][:-1]
        liars = [*liars, chosen[-1]]
    others = {sharing.n_positions: b"", -1: b"", 2**40: b""}  # which are no positions
    opened = SUM.reconstruct(given | others, EVERYONE, context)
    assert opened.vector.tolist() == vectors.sum(axis=0).tolist()
    assert opened.liars == tuple(sorted(liars))


@pytest.mark.claim("threat-model", "32")
@given(st.integers(2, 7), seeds)
@settings(max_examples=200, deadline=None)
def test_decoding_is_the_search_for_the_nearest_polynomial(n, rng):
    """Any number of false values, also too many: as trying all polynomials through some values."""
    degree, prime = int(rng.integers(1, n)), 31
    points = rng.permutation(np.arange(1, 12))[:n]
    coefficients = rng.integers(0, prime, degree)
    values = sum(c * points**i for i, c in enumerate(coefficients)) % prime
    false = rng.permutation(n)[: rng.integers(n, endpoint=True)]
    values[false] = rng.integers(0, prime, len(false))
    near = []
    for chosen in itertools.combinations(range(n), degree):
        nodes, rest = list(chosen), np.setdiff1d(np.arange(n), chosen)
        matrix = shares._lagrange(tuple(points[nodes]), tuple(points[rest]), prime)
        fits = np.ones(n, dtype=bool)
        fits[rest] = (matrix @ values[nodes]) % prime == values[rest]
        if 2 * np.count_nonzero(~fits) <= n - degree:
            near.append(fits)
    with nullcontext() if near else pytest.raises(SumError):
        found = shares._decode(points, values, degree, prime)
        assert all((found == fits).all() for fits in near)


MANY = Sharing(64, 6, 44, 3)  # 47 of 64 open: 8 may be false


def test_shares_that_are_consistent_among_themselves_do_not_outvote_the_others():
    """Eight positions give shares of another vector, all right for it."""
    context = context_of(MANY, 10)
    truth, other = (sum_shares([np.full(10, value)], context) for value in (5, -5))
    given = {**truth, **{j: other[j] for j in range(20, 28)}}
    opened = SUM.reconstruct(given, EVERYONE, context)
    assert opened.vector.tolist() == [5] * 10
    assert opened.liars == tuple(range(20, 28))


def test_a_lie_that_one_combination_misses_is_found_by_the_next(monkeypatch):
    context = context_of(SUM.set_up(12, 1, 12), 5)
    given = sum_shares([np.arange(5)], context)
    given[0] = lied(given[0], 1)
    drawn = []

    def unlucky(key, stream, length):
        drawn.append(uniform(key, stream, length))
        return drawn[-1] * (len(drawn) > n_missed)

    monkeypatch.setattr(shares, "uniform", unlucky)
    n_missed = 3
    opened = SUM.reconstruct(given, EVERYONE, context)
    assert (opened.vector.tolist(), opened.liars) == ([0, 1, 2, 3, 4], (0,))
    # they differ from call to call
    assert len({weights.tobytes() for weights in drawn}) == 4
    n_missed = 100  # no combination ever finds it: nothing opens
    with pytest.raises(SumError, match="no polynomials"):
        SUM.reconstruct(given, EVERYONE, context)


blocks = st.binary(min_size=16, max_size=16)
elements = st.tuples(*(st.integers(0, p - 1) for p in PRIMES)).map(
    lambda r: (r[0] | r[1] << 21 | r[2] << 42).to_bytes(8, "little")
)
parts_of_two = st.one_of(
    blocks, st.binary(max_size=24), st.tuples(elements, elements).map(b"".join)
)


@given(st.lists(parts_of_two, max_size=5))
@settings(deadline=None)
def test_any_parts_are_added_or_the_first_malformed_one_is_named(parts):
    context = context_of(Sharing(4, 1, 2, 1), 2)

    def is_proper(part):
        values = [
            int.from_bytes(part[i : i + 8], "little") for i in range(0, len(part), 8)
        ]
        fields = [(v & 2**21 - 1, v >> 21 & 2**21 - 1, v >> 42) for v in values]
        return len(part) == 16 and all(
            a < b for f in fields for a, b in zip(f, PRIMES, strict=True)
        )

    wrong = [i for i, part in enumerate(parts) if not is_proper(part)]
    for at_once in (1, 2**17):  # elements that are added up: one part, or all
        with mock.patch.object(shares, "_BATCH_ELEMENTS", at_once):
            try:
                assert len(SUM.combine(parts, context)) == 16
                assert not wrong
            except PartError as error:
                assert error.index == wrong[0]  # noqa: PT017


@given(st.dictionaries(st.integers(-1, 6), parts_of_two, max_size=7))
@settings(max_examples=200, deadline=None)
def test_any_sum_shares_open_or_are_refused(given):
    context = context_of(Sharing(5, 1, 2, 1), 2)
    try:
        opened = SUM.reconstruct(given, EVERYONE, context)
    except SumError:
        return
    assert opened.vector.shape == (2,)
    assert set(opened.liars) <= set(range(5)) & set(given)


def test_primes_are_the_largest_below_2_21():
    def is_prime(n):
        return all(n % d for d in range(2, math.isqrt(n) + 1))

    found = itertools.islice((n for n in range(2**21 - 1, 0, -1) if is_prime(n)), 3)
    assert tuple(found) == PRIMES
    assert 1 - 2.4e-5 < RING / 2**63 < 1
    assert SUM.limit == RING // 2


@given(st.lists(words_of_sums, min_size=1, max_size=9))
@settings(deadline=None)
def test_signed_words_are_residues_and_back(values):
    residues = to_residues(np.array(values))
    assert residues.tolist() == [[value % p for value in values] for p in PRIMES]
    assert from_residues(residues).tolist() == values
    assert (
        residues_of(unpack(pack(residues), len(values))).tolist() == residues.tolist()
    )


@given(
    st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=20),
    st.sampled_from(PRIMES),
)
@settings(deadline=None)
def test_reduction_of_floats_is_exact(values, prime):
    near = [q * prime + r for q in (0, 1, 2**31, 2**32 - 3) for r in (0, 1, prime - 1)]
    floats = np.array(values + near, dtype=np.float64)
    shares._reduce(floats, prime)
    assert floats.tolist() == [value % prime for value in values + near]


def test_sums_of_the_most_products_are_exact():
    """A random combination of more blocks than a float sums exactly, at the largest residues."""
    n_blocks = 2 * shares._EXACT_TERMS + 3
    largest = np.full((2, n_blocks), PRIMES[0] - 1.0)
    found = shares._combination(largest, largest[0], PRIMES[0])
    assert found.tolist() == [n_blocks % PRIMES[0]] * 2  # (-1)^2 in each


def test_words_that_are_no_elements_are_skipped_in_order(monkeypatch):
    good = [
        0,
        5 | 6 << 21 | 7 << 42,
        (PRIMES[0] - 1) | (PRIMES[1] - 1) << 21,
        2**63 + 9,
    ]
    bad = [PRIMES[0], PRIMES[1] << 21, PRIMES[2] << 42, 2**63 + PRIMES[0], 2**64 - 1]
    stream = np.array(
        [word for pair in zip(bad, good, strict=False) for word in pair] * 50, "u8"
    )
    asked = []

    def drawn(key, number, length):
        asked.append(length)
        return stream[:length]

    monkeypatch.setattr(shares, "words", drawn)
    expected = [word % 2**63 for word in good] * 10
    found = uniform(bytes(32), 0, 40)
    np.testing.assert_array_equal(
        found, residues_of(np.array(expected, dtype=np.uint64))
    )
    assert len(asked) > 1  # the first draw did not hold enough


def test_elements_have_the_uniform_law():
    """Chi-square over high bits and low bits of the residues of each prime."""
    n = 200_000
    drawn = uniform(os.urandom(32), 0, n)
    for residues, prime in zip(drawn, PRIMES, strict=True):
        assert residues.max() < prime
        for kept, size in ((residues * 64 // prime, 64), (residues % 61, 61)):
            counts = np.bincount(kept, minlength=size)
            starts = (
                np.arange(prime) * 64 // prime if size == 64 else np.arange(prime) % 61
            )
            expected = np.bincount(starts, minlength=size) * (n / prime)
            found = stats.chisquare(counts, expected).pvalue
            what = (
                f"{size} kinds of residues modulo {prime} have, if uniform, the p-value"
            )
            assert_within(what, found, least=1e-9, strict=True)
