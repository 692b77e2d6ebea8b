"""Noise beyond the plan is removed, and nothing else: parts of shares, their keys, and faults."""

import itertools
import math
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from cohorts import make_run
from documents import BOX
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_parts import lengths, noise_of_parts
from saying import assert_within

from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.kept import Kept
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import noise
from flower_kmeans.protocol.noise import (
    client_noise,
    combine,
    noise_share,
    part_bytes,
    part_key,
    protect,
    reconstruct_sum,
)
from flower_kmeans.protocol.run import (
    MAX_LEVELS,
    MAX_SLOTS,
    UnacceptableRunError,
    open_run,
    verify_plan,
)
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.secagg.base import PartError, SumContext, SumError
from flower_kmeans.secagg.primitives import H, noise_key

M = 6
LEVELS = (2, 3, 5)  # with M' = 1 and one colluder: for 3, 4 and 6 answers
SUM = trust_model("distributed-noise").sum
SHARING = SUM.set_up(M, 1, M)
SPARE = SUM.set_up(12, 1, 12)  # 10 of 12 open: one may be false


def run_of(levels=LEVELS, trust="distributed-noise"):
    algorithm = FastLloydAlgorithm.planned(
        8, BOX, PrivacyBudget(1.0), n_records=500, n_rounds=2
    )
    return make_run(trust, "relayed", algorithm=algorithm, min_clients=2, levels=levels)


RUN = run_of()
N_WORDS = RUN.document.words[0]


def context_of(digest=bytes(32), sharing=SHARING):
    return SumContext(digest, N_WORDS, M, sharing=sharing)


def secret_of(slot):
    return bytes([slot, 7]) * 16


def dealt_by(slots, context):
    """Return the parts of clients whose statistic is zero, noise and checksum word included."""
    dealings = []
    for slot in slots:
        secret = secret_of(slot)
        vector = np.append(client_noise(RUN, 1, secret, context.digest), 1)
        dealings.append(protect(RUN, vector, context, slot, secret))
    return dealings


def combined(dealings, context):
    """Return what every position of the committee returns."""
    parts = zip(*dealings, strict=True)
    return {
        j: combine(RUN, part, context, len(dealings)) for j, part in enumerate(parts)
    }


def opened_of(dealings, context):
    return reconstruct_sum(
        RUN, 1, combined(dealings, context), survivors_of(len(dealings)), context
    )


def survivors_of(n):
    return np.arange(M) < n


def kept_noise(slots, context, n_parts):
    """Return what is left of the clients' noise if so many parts of each are removed."""
    total = np.zeros(N_WORDS - 1, dtype=np.int64)
    for slot in slots:
        key = part_key(secret_of(slot), context.digest, len(LEVELS), n_parts)
        total += client_noise(RUN, 1, secret_of(slot), context.digest)
        total -= noise_of_parts(RUN, 1, context.digest, key, n_parts)
    return total


# --------------------------------------------------------------------------- the levels


@pytest.mark.claim("guarantees", "43")
@pytest.mark.parametrize(
    ("shares", "most"), [(15, 19), (1, 19), (799, 999), (3, 3), (79, 99)]
)
def test_levels_end_where_everybody_answers_and_rise_by_one_ratio(shares, most):
    levels = noise.levels_up_to(shares, most)
    steps = (shares, *levels)
    assert len(levels) <= MAX_LEVELS
    assert steps[-1] == most
    assert list(steps) == sorted(set(steps))
    ratio = (most / shares) ** (1 / MAX_LEVELS)
    for honest in range(shares, most + 1):
        used = max(step for step in steps if step <= honest)
        limit = (used + 0.5) * ratio + 0.5
        what = f"the level that {used} shares reach is used for"
        assert_within(what, honest, most=limit, unit="honest answers", strict=True)
    assert noise.levels_up_to(15, 19) == (16, 17, 18, 19)  # exact for small cohorts
    assert noise.levels_up_to(4, 2) == ()
    assert noise.levels_up_to(2, 10**30)[-1] == MAX_SLOTS


@pytest.mark.claim("guarantees", "43")
def test_documents_have_levels_where_a_committee_adds_and_the_server_opens():
    for run in (RUN, run_of(levels=(), trust="clients-only"), run_of(levels=())):
        verify_plan(open_run(run.data))
    # Parts are noise.reached by honest answers.
    assert [noise.reached(RUN.document, n) for n in range(2, 9)] == [
        0,
        1,
        2,
        2,
        3,
        3,
        3,
    ]
    for trust in ("clients-only", "oblivious-server", "trusted-server"):
        with pytest.raises(UnacceptableRunError, match="removed only"):
            run_of(trust=trust)


def forget_variances():
    object.__setattr__(RUN, "kept", Kept())


@pytest.mark.claim("guarantees", "43")
@pytest.mark.parametrize(("variance", "expected"), [
    (2.0**40, (1, 2, 3, 5)), (31, (1, 2, 3, 5)), (27, (1, 2, 3)), (22, (1, 2, 5)), (14, (1, 2)),
    (6, (1,)),
])  # fmt: skip
def test_no_part_is_narrower_than_two_grid_units(variance, expected):
    """A level that would make one is left out of a round, and its noise is not removed."""
    least = min(release.noise_multiplier for release in RUN.plan.rounds[0])
    units = np.full(N_WORDS - 1, math.sqrt(variance) / least)
    forget_variances()
    with mock.patch.object(noise, "sensitivities", return_value=units):
        numbers = noise.usable(RUN, 1)
        assert numbers == expected
        assert variance / numbers[-1] >= 4
        assert all(
            variance * (1 / a - 1 / b) >= 4 for a, b in itertools.pairwise(numbers)
        )
        context = context_of()
        opened = opened_of(dealt_by(range(M), context), context)
        assert opened.factor == pytest.approx(math.sqrt(M / numbers[-1]))
        np.testing.assert_array_equal(
            opened.vector[:-1], kept_noise(range(M), context, 3)
        )
    forget_variances()


# ------------------------------------------------------------------------ noise of sums


@pytest.mark.claim("guarantees", "43")
@pytest.mark.parametrize("n_survivors", range(2, M + 1))
def test_what_is_left_in_a_sum_has_the_noise_less_the_parts_that_are_removed(
    n_survivors,
):
    """To the word, at every number of answers, and no less than the plan's is left of the honest.

    That its scale is the planned one is tested for finished runs.
    """
    honest, steps = n_survivors - 1, (1, *LEVELS)
    level = max(step for step in steps if step <= honest)
    what = "without the colluder's share what is left is"
    assert_within(what, honest / level, least=1, unit="times the planned variance")
    for number in range(3):
        context = context_of(bytes([number]) * 32)
        opened = opened_of(dealt_by(range(n_survivors), context), context)
        assert opened.vector[-1] == n_survivors
        assert opened.factor == pytest.approx(math.sqrt(n_survivors / level))
        left = kept_noise(range(n_survivors), context, steps.index(level))
        np.testing.assert_array_equal(opened.vector[:-1], left)


def test_without_levels_every_byte_is_the_secure_sums():
    run, context = run_of(levels=()), context_of()
    vector = np.arange(N_WORDS)
    parts = protect(run, vector, context, 0, bytes(32))
    assert parts == SUM.protect(vector, context, 0, bytes(32))
    assert (
        part_bytes(run, N_WORDS, SHARING)
        == SUM.part_bytes(N_WORDS, SHARING)
        == len(parts[0])
    )
    sums = {j: combine(run, [part] * 4, context, 4) for j, part in enumerate(parts)}
    assert sums == {j: SUM.combine([part] * 4, context) for j, part in enumerate(parts)}
    opened = reconstruct_sum(run, 1, sums, survivors_of(4), context)
    np.testing.assert_array_equal(opened.vector, vector * 4)
    assert opened.factor == math.sqrt(4)
    assert reconstruct_sum(
        run_of((), "clients-only"), 1, sums, survivors_of(3), context
    ).factor == (math.sqrt(3))
    noise = client_noise(run, 1, bytes(32), context.digest)
    stream = Stream.from_key(noise_key(bytes(32), context.digest))
    np.testing.assert_array_equal(
        noise, noise_share(run.algorithm, run.plan, 1, 1, stream)
    )


@pytest.mark.claim("guarantees", "43")
def test_keys_take_few_bytes():
    """Five elements, or fewer where words are packed, for each level and position."""
    for sharing, elements in ((SHARING, 5), (SPARE, 3)):
        more = part_bytes(RUN, N_WORDS, sharing) - SUM.part_bytes(N_WORDS, sharing)
        assert more == len(LEVELS) * elements * 8
        context = context_of(sharing=sharing)
        dealings = dealt_by(range(4), context)
        sizes = {len(part) for parts in dealings for part in parts}
        assert sizes == {part_bytes(RUN, N_WORDS, sharing)}
        for n_answers, keys in ((4, 4), (3, 3), (2, 0)):  # of one level, or of none
            found = combined(dealings[:n_answers], context)
            expected = SUM.part_bytes(N_WORDS, sharing) + keys * elements * 8
            assert {len(part) for part in found.values()} == {expected}


# ------------------------------------------------------------------------------ keys


def test_a_key_gives_those_below_and_none_above():
    secret, context = bytes(32), bytes(range(32))
    keys = [part_key(secret, context, 4, n) for n in range(5)]
    assert len(set(keys)) == 5
    for above, below in itertools.pairwise(reversed(keys)):
        assert H(b"noise part", above) == below
    assert (
        part_key(secret, bytes(32), 4, 4)
        != keys[4]
        != part_key(b"1" * 32, context, 4, 4)
    )


def test_a_share_is_made_as_the_protocol_says():
    """A base under the session's key, and parts under keys of a chain, bound to the context."""
    secret, context = bytes(range(32)), b"c" * 32
    given = RUN.algorithm, RUN.plan, 1
    expected = noise_share(*given, 5, Stream.from_key(noise_key(secret, context)))
    expected += noise_of_parts(RUN, 1, context, part_key(secret, context, 3, 3), 3)
    np.testing.assert_array_equal(client_noise(RUN, 1, secret, context), expected)


@given(st.binary(min_size=32, max_size=32))
def test_keys_are_words_and_back(key):
    words = noise._to_words(key)
    assert ((words >= 0) & (words < 2**56)).all()
    assert noise._from_words(words) == key


@pytest.mark.parametrize(
    ("place", "word"), [(0, -1), (0, 2**56), (4, 2**32), (3, 2**61)]
)
def test_words_of_no_key_are_refused(place, word):
    words = noise._to_words(bytes(32))
    words[place] = word
    with pytest.raises(OverflowError):
        noise._from_words(words)


def test_each_level_and_each_context_has_separate_shares():
    """So what a place returns for one sum says nothing about a key of another level."""
    found = set()
    for context in (context_of(), context_of(b"\1" * 32)):
        length, size = lengths(RUN, context)
        for part in dealt_by([0], context)[0]:
            found |= {
                part[length + size * n : length + size * (n + 1)] for n in range(3)
            }
    assert len(found) == 2 * M * 3


# ------------------------------------------------------------------------------ faults


@pytest.mark.claim("guarantees", "43")
def test_a_dealer_whose_key_does_not_open_keeps_its_noise_and_costs_nobody_else():
    context = context_of(sharing=SPARE)
    dealings = dealt_by(range(M), context)
    length, size = lengths(RUN, context)
    rng, key_context = (
        np.random.default_rng(0),
        replace(context, n_words=noise.KEY_WORDS),
    )

    def shared(words):
        return SUM.protect(words, key_context, 0, rng.bytes(32))

    spoilt = {
        1: [b"\xff" * size] * 12,  # malformed
        2: [shared(rng.integers(0, 99, 5))[0] for _ in range(12)],  # on no polynomial
        4: shared(np.array([0, 2**60, 0, 0, 0])),  # of no key
    }
    for slot, keys in spoilt.items():
        pairs = zip(dealings[slot], keys, strict=True)
        dealings[slot] = tuple(part[: length + 2 * size] + key for part, key in pairs)
    opened = opened_of(dealings, context)
    left = kept_noise((0, 3, 5), context, 3) + kept_noise((1, 2, 4), context, 0)
    np.testing.assert_array_equal(opened.vector[:-1], left)
    assert opened.liars == ()
    assert opened.factor == pytest.approx(math.sqrt(3 / 5 + 3))
    assert "array" not in repr(opened)


def test_a_false_share_of_a_key_is_corrected():
    context = context_of(sharing=SPARE)
    found = combined(dealt_by(range(M), context), context)
    expected = reconstruct_sum(RUN, 1, found, survivors_of(M), context)
    length, _ = lengths(RUN, context)
    vector, keys = found[3][:length], found[3][length:]
    for wrong, liars in (
        (vector + bytes(len(keys)), ()),  # false in the keys alone
        *((vector + few, ()) for few in (b"", keys[:-1])),
        # false in the sum too
        *((other, (3,)) for other in (bytes(length) + keys, b"")),
    ):
        opened = reconstruct_sum(RUN, 1, {**found, 3: wrong}, survivors_of(M), context)
        np.testing.assert_array_equal(opened.vector, expected.vector)
        assert opened.factor == expected.factor == pytest.approx(math.sqrt(6 / 5))
        assert opened.liars == liars


@pytest.mark.claim("guarantees", "43")
def test_a_false_share_of_the_sum_uses_up_no_correction_of_the_keys():
    """12 of 15 open, so one share may be false, also after another was left out."""
    context = context_of(sharing=SUM.set_up(15, 1, 15))
    found = combined(dealt_by(range(M), context), context)
    expected = reconstruct_sum(RUN, 1, found, survivors_of(M), context)
    length, _ = lengths(RUN, context)
    found[3] = bytes(len(found[3]))
    found[7] = found[7][:length] + bytes(len(found[7]) - length)
    opened = reconstruct_sum(RUN, 1, found, survivors_of(M), context)
    np.testing.assert_array_equal(opened.vector, expected.vector)
    assert opened.factor == expected.factor == pytest.approx(math.sqrt(6 / 5))
    assert opened.liars == (3,)


def test_a_malformed_part_is_named():
    context = context_of()
    parts = [part[0] for part in dealt_by(range(M), context)]
    length, _ = lengths(RUN, context)
    assert combine(RUN, [], context, 0) == bytes(length)
    for wrong in (
        parts[2][:-1],
        parts[2] + b"\0",
        b"\xff" * length + parts[2][length:],
        b"",
    ):
        with pytest.raises(PartError) as caught:
            combine(RUN, [*parts[:2], wrong, *parts[3:]], context, M)
        assert caught.value.index == 2


@given(
    st.dictionaries(st.integers(0, M), st.binary(max_size=900), max_size=M),
    st.integers(2, M),
)
@settings(deadline=None)
def test_any_sum_shares_open_or_are_refused(found, n_survivors):
    context = context_of()
    good = combined(dealt_by(range(2), context), context)
    for given_shares in (found, {**good, **found}):
        with suppress(SumError):
            opened = reconstruct_sum(
                RUN, 1, given_shares, survivors_of(n_survivors), context
            )
            assert opened.vector.shape == (N_WORDS,)
