"""One sum of a round opens, whatever votes honest places give (docs/protocol.md, section 3).

Corrupt places see every dealing's share for them, each honest place gives one
sum-share, of one variant. Brute force over random committees and votes: linear algebra
on the matrices that the library shares with says exactly what these values leak, and
that is compared with the theorem.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg import shares
from flower_kmeans.secagg.base import Sharing, secure_sum
from tests.support.ring import eliminate, generator

PRIME = shares.PRIMES[0]
SUM = secure_sum("shares")
seeds = st.integers(0, 2**32).map(np.random.default_rng)


def leaks(sharings, seen):
    """Return all leaks about words, by dealing, that combine: without the random elements.

    ``seen`` are pairs: dealings whose shares are added, and the position of these.
    """
    sizes = [sharing.threshold for sharing in sharings]
    starts = np.cumsum([0, *sizes])
    matrices = {sharing: generator(sharing, PRIME) for sharing in sharings}
    rows = np.zeros((len(seen), starts[-1]), dtype=np.int64)
    for row, (dealings, position) in zip(rows, seen, strict=True):
        for i in dealings:
            row[starts[i] : starts[i + 1]] = matrices[sharings[i]][position]
    is_random = np.concatenate([np.arange(s.threshold) < s.privacy for s in sharings])
    rows = np.concatenate([rows[:, is_random], rows[:, ~is_random]], axis=1)
    n_random = int(is_random.sum())
    done = eliminate(rows, n_random, PRIME)
    owners = np.repeat(np.arange(len(sharings)), [s.packing for s in sharings])
    found = []
    for row in rows[done:, n_random:]:
        parts = {i: tuple(row[owners == i].tolist()) for i in range(len(sharings))}
        if row.any():
            found.append({i: part for i, part in parts.items() if any(part)})
    return found


def seen_by(f, m, n_dealings, variants, votes):
    """Return what an adversary sees: corrupt positions 0..f-1, and the other positions' votes."""
    shares_at_corrupt = [([i], j) for i in range(n_dealings) for j in range(f)]
    return shares_at_corrupt + [
        (variants[vote], j)
        for j, vote in zip(range(f, m), votes, strict=True)
        if vote is not None
    ]


def is_one_sum(found, variants):
    """Return whether all leaks are functions of one variant's sum."""
    return any(
        all(set(leak) == set(v) and len(set(leak.values())) == 1 for leak in found)
        for v in variants
    )


def some_variants(rng, *contexts):
    """Return three variants, each a sum of dealings of one context."""
    sets = [
        list(chosen)
        for dealings in contexts
        for size in range(1, len(dealings) + 1)
        for chosen in itertools.combinations(dealings, size)
    ]
    return [sets[i] for i in rng.permutation(len(sets))[:3]]


def some_votes(rng, n_honest, n_variants):
    """Return votes of which most are for the first variant; some places give none."""
    votes = rng.integers(0, n_variants, n_honest)
    votes[rng.random(n_honest) < rng.choice([0.3, 0.7, 0.9])] = 0
    return [None if rng.random() < 0.05 else int(vote) for vote in votes]


@pytest.mark.claim("guarantees", "38")
@pytest.mark.claim("threat-model", "5", "42")
@given(seeds)
@settings(max_examples=150, deadline=None)
def test_what_leaks_is_a_function_of_one_sum(rng):
    m, f = int(rng.integers(4, 12)), int(rng.integers(1, 3))
    sharing = SUM.set_up(m, f, m)
    n = int(rng.integers(2, 5))
    variants = some_variants(rng, range(n))
    votes = some_votes(rng, m - f, len(variants))
    found = leaks([sharing] * n, seen_by(f, m, n, variants, votes))
    assert not found or is_one_sum(found, variants)
    for number, variant in enumerate(variants):
        if f + votes.count(number) >= sharing.threshold:
            assert found
            assert is_one_sum(found, [variant])


@pytest.mark.claim("guarantees", "38")
@pytest.mark.claim("threat-model", "42")
@given(seeds)
@settings(max_examples=150, deadline=None)
def test_two_attempts_with_other_absentees_and_clients_that_deal_twice(rng):
    """Dealings 0 to 2 in one context, 3 to 5 in another with another packing."""
    m, f = int(rng.integers(5, 12)), int(rng.integers(1, 3))
    full = SUM.set_up(m, f, m)
    other = SUM.set_up(m, f, int(rng.integers(full.privacy + 1, m, endpoint=True)))
    variants = some_variants(rng, range(3), range(3, 6))
    votes = some_votes(rng, m - f, len(variants))
    found = leaks([full] * 3 + [other] * 3, seen_by(f, m, 6, variants, votes))
    assert not found or is_one_sum(found, variants)


def test_everything_that_may_open_does_in_some_of_the_random_votes():
    """The two tests above look at votes that open sums, not at silence."""
    rng, opened = np.random.default_rng(0), 0
    for m in rng.integers(4, 12, 60).tolist():
        variants, votes = some_variants(rng, range(3)), some_votes(rng, m - 1, 3)
        opened += bool(
            leaks([SUM.set_up(m, 1, m)] * 3, seen_by(1, m, 3, variants, votes))
        )
    assert 10 < opened < 60


THREE = [[0, 1], [2, 3], [0, 1, 2, 3]]  # the last is the sum of the others


@pytest.mark.claim("guarantees", "38")
@pytest.mark.claim("threat-model", "5")
@pytest.mark.parametrize(("m", "f"), [(5, 2), (7, 2), (6, 1), (4, 1)])
def test_a_majority_would_not_be_enough(m, f):
    """Three variants split the votes: none has a majority, and two sums combine all the same."""
    votes = [j * 3 // (m - f) for j in range(m - f)]
    seen = seen_by(f, m, 4, THREE, votes)
    majority = Sharing(m, f, (m + f) // 2, 1)
    if majority.privacy < f + m - f - (m - f) // 3:
        found = leaks([majority] * 4, seen)
        assert found
        assert not is_one_sum(found, THREE)
    assert not leaks([SUM.set_up(m, f, m)] * 4, seen)


@pytest.mark.claim("threat-model", "5")
def test_packed_shares_under_less_than_a_majority_leak_one_clients_words():
    variants = [[0, 1, 2], [0, 1]]
    seen = seen_by(1, 9, 3, variants, [0] * 4 + [1] * 4)
    found = leaks([Sharing(9, 1, 3, 4)] * 3, seen)
    assert found
    assert not is_one_sum(found, variants)
    assert not leaks([SUM.set_up(9, 1, 9)] * 3, seen)


def sums_and_keys(rng, binds_keys):
    """Return the honest dealings of the sum that opens, and (level, dealing) of keys that open.

    Honest dealings 0 to 3, and a corrupt one, 4, that may stand in any variant. Block
    ``4 level - 3 + i`` is the key of dealing i for so many honest answers, 2 to 4. A
    variant of n dealings reaches the level n - 1, whether or not one of them is
    corrupt.
    """
    m, f = int(rng.integers(4, 12)), 1
    sharing = SUM.set_up(m, f, m)
    variants = some_variants(rng, range(5))
    votes = some_votes(rng, m - f, len(variants))
    seen = seen_by(f, m, 17, variants, votes) + [([4], j) for j in range(m)]
    for j, vote in zip(range(f, m), votes, strict=True):
        voted = [] if vote is None else [variants[vote]]
        for variant in voted if binds_keys else variants:
            level = len(variant) - 1
            seen += [([4 * level - 3 + i], j) for i in variant if i < 4 and level >= 2]
    found = leaks([sharing] * 17, seen)
    sums = {frozenset(set(leak) - {4}) for leak in found if min(leak) < 4}
    keys = {divmod(block + 3, 4) for leak in found for block in leak if block >= 5}
    assert len(sums) <= 1
    return next(iter(sums), None), keys


@pytest.mark.claim("guarantees", "43")
@given(seeds)
@settings(max_examples=150, deadline=None)
def test_keys_that_open_are_of_the_level_of_the_sum_that_opens(rng):
    """Noise beyond the plan: a place that votes gives its shares of the keys of one level."""
    honest, keys = sums_and_keys(rng, binds_keys=True)
    assert len({level for level, _ in keys}) <= 1
    if honest is not None:
        assert all(level <= len(honest) and i in honest for level, i in keys)


@pytest.mark.claim("guarantees", "43")
def test_keys_that_no_vote_binds_would_leave_too_little_noise():
    found = [
        sums_and_keys(np.random.default_rng(n), binds_keys=False) for n in range(40)
    ]
    wrong = [
        level > len(honest) for honest, keys in found if honest for level, _ in keys
    ]
    assert any(wrong)
    found = [
        sums_and_keys(np.random.default_rng(n), binds_keys=True) for n in range(40)
    ]
    assert any(honest and keys for honest, keys in found)
