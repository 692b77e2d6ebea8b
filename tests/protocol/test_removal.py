"""Noise beyond the plan is removed, and nothing else: parts of shares, their keys, and faults."""

import itertools
import math
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flower_kmeans import Box, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.privacy.noise import discrete_gaussian, part_variance
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import removal
from flower_kmeans.protocol.noise import _round_noise, noise_share, sampler_of
from flower_kmeans.protocol.removal import (
    client_noise,
    combine,
    levels_up_to,
    open_sum,
    part_bytes,
    part_key,
    protect,
    reached,
    usable,
)
from flower_kmeans.protocol.run import (
    MAX_LEVELS,
    MAX_SLOTS,
    PROTOCOL,
    Horizontal,
    Run,
    RunDocument,
    UnacceptableRunError,
    open_run,
    verify_plan,
)
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import encode
from flower_kmeans.secagg.base import PartError, SumContext, SumError
from flower_kmeans.secagg.key_agreement import noise_key
from flower_kmeans.strategies import FastLloyd

M = 6
LEVELS = (2, 3, 5)  # with M' = 1 and one colluder: for 3, 4 and 6 answers
P_VALUE = 1e-9
SUM = trust_model("distributed-noise").sum
SHARING = SUM.set_up(M, 1, M)
SPARE = SUM.set_up(12, 1, 12)  # 10 of 12 open: one may be false


def run_of(levels=LEVELS, trust="distributed-noise", min_clients=2):
    box = Box([0.0, 0.0], [1.0, 1.0])
    algorithm = FastLloydAlgorithm(8, box, PrivacyBudget(1.0), n_records=500, n_rounds=2)
    plan, shared = algorithm.plan(), trust in ("distributed-noise", "clients-only")
    document = RunDocument(
        protocol=PROTOCOL,
        run=bytes(16),
        trust=trust,
        keys="none" if trust == "trusted-server" else "relayed",
        min_clients=min_clients,
        words=tuple(algorithm.words(t) + 1 for t in (1, 2)),
        privacy=plan.to_config(),
        share_variance=f"1/{min_clients - 1}" if shared else "none",
        levels=levels,
        sampler=sampler_of(plan, shared),
        body=Horizontal(algorithm=algorithm.to_config(), domain=box.to_config()),
    )
    return Run(document, algorithm, plan, trust_model(trust))


RUN = run_of()
N_WORDS = RUN.document.words[0]


def context_of(digest=bytes(32), sharing=SHARING):
    return SumContext(digest, N_WORDS, M, sharing=sharing)


def secret_of(slot):
    return bytes([slot, 7]) * 16


def dealt_by(slot, context, run=RUN, vector=None):
    """Return the parts of a client whose statistic is zero, noise and checksum word included."""
    if vector is None:
        noise = client_noise(run, 1, secret_of(slot), context.digest)
        vector = np.append(noise, 1)
    return protect(run, vector, context, slot, secret_of(slot))


def combined(dealings, context, run=RUN):
    """Return what every position of the committee returns."""
    parts = zip(*dealings, strict=True)
    return {j: combine(run, part, context, len(dealings)) for j, part in enumerate(parts)}


def survivors_of(n):
    return np.arange(M) < n


def kept_noise(slots, context, n_parts, run=RUN):
    """Return what is left of the clients' noise if so many parts of each are removed."""
    total = np.zeros(N_WORDS - 1, dtype=np.int64)
    for slot in slots:
        key = part_key(secret_of(slot), context.digest, len(run.document.levels), n_parts)
        total += client_noise(run, 1, secret_of(slot), context.digest)
        total -= removal._removable_noise(run, 1, context.digest, [key], n_parts)
    return total


# ------------------------------------------------------------------------------ the levels


@pytest.mark.parametrize(("shares", "most"), [(15, 19), (1, 19), (799, 999), (3, 3), (79, 99)])
def test_levels_end_where_everybody_answers_and_rise_by_one_ratio(shares, most):
    levels = levels_up_to(shares, most)
    steps = (shares, *levels)
    assert len(levels) <= MAX_LEVELS
    assert steps[-1] == most
    assert list(steps) == sorted(set(steps))
    ratio = (most / shares) ** (1 / MAX_LEVELS)
    for honest in range(shares, most + 1):
        used = max(step for step in steps if step <= honest)
        assert honest < (used + 0.5) * ratio + 0.5
    assert levels_up_to(15, 19) == (16, 17, 18, 19)  # exact for small cohorts
    assert levels_up_to(4, 2) == ()
    assert levels_up_to(2, 10**30)[-1] == MAX_SLOTS


def test_documents_have_levels_where_a_committee_adds_and_the_server_opens():
    for run in (RUN, run_of(levels=(), trust="clients-only"), run_of(levels=())):
        data = encode(run.document)
        verify_plan(data)
        assert open_run(data).document == run.document
    for trust in ("clients-only", "oblivious-server", "trusted-server"):
        with pytest.raises(UnacceptableRunError, match="removed only"):
            open_run(encode(run_of(trust=trust).document))


def test_parts_are_reached_by_honest_answers():
    found = [reached(RUN.document, n) for n in range(2, 9)]
    assert found == [0, 1, 2, 2, 3, 3, 3]


def forget_variances():
    usable.cache_clear()
    removal._part_variances.cache_clear()


@pytest.mark.parametrize(
    ("variance", "expected"),
    [
        (2.0**40, (1, 2, 3, 5)),
        (31, (1, 2, 3, 5)),
        (27, (1, 2, 3)),
        (22, (1, 2, 5)),
        (14, (1, 2)),
        (6, (1,)),
    ],
)
def test_no_part_is_narrower_than_two_grid_units(variance, expected):
    """A level that would make one is left out of a round, and its noise is not removed."""
    least = min(release.noise_multiplier for release in RUN.plan.rounds[0])
    units = np.full(N_WORDS - 1, math.sqrt(variance) / least)
    forget_variances()
    with mock.patch.object(FastLloydAlgorithm, "units", return_value=units):
        numbers = usable(RUN, 1)
        assert numbers == expected
        assert variance / numbers[-1] >= 4
        assert all(variance * (1 / a - 1 / b) >= 4 for a, b in itertools.pairwise(numbers))
        context = context_of()
        opened = open_sum(
            RUN, 1, combined([dealt_by(i, context) for i in range(M)], context),
            survivors_of(M), context,
        )  # fmt: skip
        assert opened.factor == pytest.approx(math.sqrt(M / numbers[-1]))
        np.testing.assert_array_equal(opened.vector[:-1], kept_noise(range(M), context, 3))
    forget_variances()


# ------------------------------------------------------------------------------ noise of sums


@pytest.mark.parametrize("n_survivors", range(2, M + 1))
def test_what_is_left_in_a_sum_is_the_planned_noise_of_the_honest(n_survivors):
    """Every number of answers: the scale is that of the factor, and the honest have the plan's."""
    honest, steps = n_survivors - 1, (1, *LEVELS)
    level = max(step for step in steps if step <= honest)
    assert honest / level >= 1  # what is left without the colluder's share
    places, units = RUN.algorithm.places(1), RUN.algorithm.units(1)
    stds = np.zeros(N_WORDS - 1)
    for release in RUN.plan.rounds[0]:
        at = np.concatenate([places[name] for name in release.blocks])
        stds[at] = release.noise_multiplier * units[at]
    ratios = []
    for number in range(40):
        context = context_of(bytes([number]) * 32)
        dealings = [dealt_by(slot, context) for slot in range(n_survivors)]
        opened = open_sum(RUN, 1, combined(dealings, context), survivors_of(n_survivors), context)
        assert opened.vector[-1] == n_survivors
        assert opened.factor == pytest.approx(math.sqrt(n_survivors / level))
        left = kept_noise(range(n_survivors), context, steps.index(level))
        np.testing.assert_array_equal(opened.vector[:-1], left)
        ratios.append(left[stds > 0] / stds[stds > 0])
    squares = np.square(ratios)
    for scale, fits in [(1, True), (2 / 3, False), (3 / 2, False)]:
        sizes = squares.sum() / (scale * opened.factor) ** 2, squares.size
        p_value = 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes))
        assert p_value > P_VALUE if fits else p_value < 1e-12


def test_without_levels_every_byte_is_the_secure_sums():
    run, context = run_of(levels=()), context_of()
    vector = np.arange(N_WORDS)
    parts = protect(run, vector, context, 0, bytes(32))
    assert parts == SUM.protect(vector, context, 0, bytes(32))
    assert part_bytes(run, N_WORDS, SHARING) == SUM.part_bytes(N_WORDS, SHARING) == len(parts[0])
    sums = {j: combine(run, [part] * 4, context, 4) for j, part in enumerate(parts)}
    assert sums == {j: SUM.combine([part] * 4, context) for j, part in enumerate(parts)}
    opened = open_sum(run, 1, sums, survivors_of(4), context)
    np.testing.assert_array_equal(opened.vector, vector * 4)
    assert opened.factor == math.sqrt(4)
    assert open_sum(run_of((), "clients-only"), 1, sums, survivors_of(3), context).factor == (
        math.sqrt(3)
    )
    noise = client_noise(run, 1, bytes(32), context.digest)
    stream = Stream.from_key(noise_key(bytes(32), context.digest))
    np.testing.assert_array_equal(noise, noise_share(run.algorithm, run.plan, 1, 1, stream))


def test_keys_take_few_bytes():
    """Five elements, or fewer where words are packed, for each level and position."""
    for sharing, elements in ((SHARING, 5), (SPARE, 3)):
        more = part_bytes(RUN, N_WORDS, sharing) - SUM.part_bytes(N_WORDS, sharing)
        assert more == len(LEVELS) * elements * 8
        context = context_of(sharing=sharing)
        dealings = [dealt_by(slot, context) for slot in range(4)]
        assert {len(part) for parts in dealings for part in parts} == {
            part_bytes(RUN, N_WORDS, sharing)
        }
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
        assert removal._key_below(above) == below
    assert part_key(secret, bytes(32), 4, 4) != keys[4] != part_key(b"1" * 32, context, 4, 4)


def part_of(stream, fewer, more, release, units):
    return discrete_gaussian(part_variance(release, units, fewer, more), stream)


def test_a_share_is_made_as_the_protocol_says():
    """A base under the session's key, and parts under keys of a chain, bound to the context."""
    secret, context = bytes(range(32)), b"c" * 32
    given = RUN.algorithm, RUN.plan, 1
    expected = noise_share(*given, 5, Stream.from_key(noise_key(secret, context)))
    for n, (fewer, more) in enumerate(itertools.pairwise((1, *LEVELS)), 1):
        key = part_key(secret, context, len(LEVELS), n)
        stream = Stream.from_key(noise_key(key, context))
        expected += _round_noise(*given, partial(part_of, stream, fewer, more))
    np.testing.assert_array_equal(client_noise(RUN, 1, secret, context), expected)


@given(st.binary(min_size=32, max_size=32))
def test_keys_are_words_and_back(key):
    words = removal._to_words(key)
    assert words.shape == (removal.KEY_WORDS,)
    assert (words >= 0).all()
    assert (words < 2**56).all()
    assert removal._from_words(words) == key


@pytest.mark.parametrize("wrong", [(0, -1), (0, 2**56), (4, 2**32), (3, 2**61)])
def test_words_of_no_key_are_refused(wrong):
    words = removal._to_words(bytes(32))
    words[wrong[0]] = wrong[1]
    with pytest.raises(OverflowError):
        removal._from_words(words)


def test_each_level_and_each_context_has_separate_shares():
    """So what a place returns for one sum says nothing about a key of another level."""
    contexts = context_of(), context_of(b"\1" * 32)
    found = set()
    for context in contexts:
        length, size = removal._lengths(RUN, context)
        for part in dealt_by(0, context):
            keys = [part[length + size * n : length + size * (n + 1)] for n in range(3)]
            found |= set(keys)
    assert len(found) == 2 * M * 3


# ------------------------------------------------------------------------------ faults


def test_a_dealer_whose_key_does_not_open_keeps_its_noise_and_costs_nobody_else():
    context = context_of(sharing=SPARE)
    dealings = [dealt_by(slot, context) for slot in range(M)]
    length, size = removal._lengths(RUN, context)
    rng, key_context = np.random.default_rng(0), replace(context, n_words=removal.KEY_WORDS)
    spoilt = []
    for part in dealings[2]:  # on no polynomial
        random = SUM.protect(rng.integers(0, 99, 5), key_context, 0, rng.bytes(32))
        spoilt.append(part[: length + 2 * size] + random[0])
    dealings[2] = tuple(spoilt)
    other = removal._to_words(bytes(32))
    other[1] = 2**60  # of no key
    wrong = SUM.protect(other, key_context, 0, bytes(32))
    dealings[4] = tuple(
        part[: length + 2 * size] + key for part, key in zip(dealings[4], wrong, strict=True)
    )
    opened = open_sum(RUN, 1, combined(dealings, context), survivors_of(M), context)
    left = kept_noise((0, 1, 3, 5), context, 3) + kept_noise((2, 4), context, 0)
    np.testing.assert_array_equal(opened.vector[:-1], left)
    assert opened.liars == ()
    assert opened.factor == pytest.approx(math.sqrt(4 / 5 + 2))


def test_a_false_share_of_a_key_is_corrected():
    context = context_of(sharing=SPARE)
    found = combined([dealt_by(slot, context) for slot in range(M)], context)
    expected = open_sum(RUN, 1, found, survivors_of(M), context)
    length, _ = removal._lengths(RUN, context)
    for wrong in (
        found[3][:length] + bytes(len(found[3]) - length),  # false in the keys alone
        found[3][:length],
        found[3][:-1],
        bytes(length) + found[3][length:],  # false in the sum: its keys are not used
        b"",
    ):
        opened = open_sum(RUN, 1, {**found, 3: wrong}, survivors_of(M), context)
        np.testing.assert_array_equal(opened.vector, expected.vector)
        assert opened.factor == expected.factor == pytest.approx(math.sqrt(6 / 5))
        assert opened.liars == ((3,) if wrong[:length] != found[3][:length] else ())


def test_a_malformed_part_is_named():
    context = context_of()
    parts = [dealt_by(slot, context)[0] for slot in range(M)]
    length, _ = removal._lengths(RUN, context)
    for wrong in (parts[2][:-1], parts[2] + b"\0", b"\xff" * length + parts[2][length:], b""):
        with pytest.raises(PartError) as caught:
            combine(RUN, [*parts[:2], wrong, *parts[3:]], context, M)
        assert caught.value.index == 2


def test_malformed_shares_of_a_key_leave_its_noise_and_make_no_member_a_liar():
    context = context_of()
    _, size = removal._lengths(RUN, context)
    whole = part_bytes(RUN, N_WORDS, SHARING)
    dealings = [dealt_by(slot, context) for slot in range(M)]
    honest = open_sum(RUN, 1, combined(dealings, context), survivors_of(M), context)
    dealings[2] = tuple(part[: whole - size] + b"\xff" * size for part in dealings[2])
    opened = open_sum(RUN, 1, combined(dealings, context), survivors_of(M), context)
    assert opened.liars == honest.liars == ()
    assert opened.factor > honest.factor
    assert (opened.vector[:-1] != honest.vector[:-1]).any()


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, M))
@settings(deadline=None)
def test_any_parts_are_added_or_refused(parts, n_survivors):
    context = context_of()
    if parts:
        with pytest.raises(PartError):
            combine(RUN, parts, context, n_survivors)
    else:
        combine(RUN, parts, context, n_survivors)


@given(st.dictionaries(st.integers(0, M), st.binary(max_size=900), max_size=M), st.integers(2, M))
@settings(deadline=None)
def test_any_sum_shares_open_or_are_refused(found, n_survivors):
    context = context_of()
    good = combined([dealt_by(slot, context) for slot in range(2)], context)
    for given_shares in (found, {**good, **found}):
        try:
            opened = open_sum(RUN, 1, given_shares, survivors_of(n_survivors), context)
        except SumError:
            continue
        assert opened.vector.shape == (N_WORDS,)


def test_no_repr_shows_the_sum():
    context = context_of()
    found = combined([dealt_by(slot, context) for slot in range(M)], context)
    opened = open_sum(RUN, 1, found, survivors_of(M), context)
    assert "array" not in repr(opened)
    assert "liars=()" in repr(opened)


# ------------------------------------------------------------------------------ finished runs

PARTS = [np.random.default_rng(i).uniform(0, 1, (30, 2)) for i in range(20)]


def noise_of_runs(monkeypatch, faults=(), seeds=range(6), **options):
    """Run the strategy for 20 clients; return the noise over the plan's, and the last strategy."""
    dealt, opened = {}, []
    real = {name: getattr(removal, name) for name in ("client_noise", "protect", "open_sum")}

    def client_noise(run, t, secret, context):
        noise = real["client_noise"](run, t, secret, context)
        dealt[secret, context] = -np.append(noise, 0)
        return noise

    def protect(run, vector, context, slot, secret):
        dealt[secret, context.digest] += vector
        exact[context.digest, slot] = dealt[secret, context.digest]
        return real["protect"](run, vector, context, slot, secret)

    def open_sum(run, t, combined, survivors, context):
        found = real["open_sum"](run, t, combined, survivors, context)
        statistic = sum(exact[context.digest, i] for i in np.flatnonzero(survivors).tolist())
        opened.append((run, t, found.vector - statistic))
        return found

    for name, function in {"client_noise": client_noise, "protect": protect}.items():
        monkeypatch.setattr(removal, name, function)
    monkeypatch.setattr(removal, "open_sum", open_sum)
    ratios, exact = [], {}
    for seed in seeds:
        strategy = FastLloyd(
            8, Box([0.0, 0.0], [1.0, 1.0]), PrivacyBudget(1.0), 600, trust="distributed-noise",
            n_clients=20, n_rounds=2, seed=seed, **options,
        )  # fmt: skip
        opened.clear()
        simulate(strategy, PARTS, faults=faults)
        assert [t for _, t, _ in opened] == [1, 2]
        for run, t, noise in opened:
            assert noise[-1] == 0
            units, places = run.algorithm.units(t), run.algorithm.places(t)
            for release in run.plan.rounds[t - 1]:
                at = np.concatenate([places[name] for name in release.blocks])
                at = at[units[at] > 0]
                ratios.append(noise[at] / (release.noise_multiplier * units[at]))
    return np.concatenate(ratios), strategy


DROPOUTS = [Fault(i, t, "drop") for i, t in [(3, 1), (4, 1), (3, 2), (9, 2)]]
SILENT = [Fault(i, t, "drop", "add") for i in (3, 7) for t in (1, 2)]


@pytest.mark.parametrize(
    ("faults", "options", "factor", "added"),
    [
        ((), {"max_colluders": 1}, 20 / 19, 20 / 15),
        ((), {"max_colluders": 2}, 20 / 18, 20 / 14),
        ((), {"min_clients": 3, "max_colluders": 2}, 20 / 18, 20 / 1),
        (DROPOUTS, {"max_colluders": 1}, 18 / 17, 18 / 15),
        (SILENT, {"max_colluders": 1}, 20 / 19, 20 / 15),  # others give shares of all keys
        ((), {"min_clients": 20, "max_colluders": 1}, 20 / 19, 20 / 19),  # nothing is beyond
    ],
    ids=["all", "two", "few", "dropouts", "silent", "none"],
)
@pytest.mark.usefixtures("quiet")
def test_finished_runs_carry_the_noise_that_the_report_says(
    faults, options, factor, added, monkeypatch
):
    ratios, strategy = noise_of_runs(monkeypatch, faults, **options)
    report = strategy.report
    assert report.noise_factor == pytest.approx(math.sqrt(factor))
    assert report.added_noise_factor == pytest.approx(math.sqrt(added))
    squares = ratios**2
    for wrong in (1.0, 2 / 3, 3 / 2):
        sizes = squares.sum() / (factor * wrong**2), squares.size
        p_value = 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes))
        assert p_value > P_VALUE if wrong == 1.0 else p_value < 1e-9
