"""Released values that no records explain: which lies are flagged, and what sentences say of them.

How rarely noise alone raises an alarm is measured by ``benchmarks/false_alarms.py``,
whose small algorithms of all strategies these tests use.
"""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    SynopsisAlgorithm,
    plausibility,
)
from flower_kmeans.algorithms.plausibility import (
    FALSE_ALARMS,
    Finding,
    FindingKind,
    deviations,
    findings_of,
    from_array,
    padded,
    sentences,
    to_array,
)
from flower_kmeans.algorithms.state import State
from tests.algorithms.rows import RUNS, sum_of, words_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from false_alarms import ALGORITHMS, N_CLIENTS, N, noise_draws, parts_of

from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.sensitivity import sensitivities

pytestmark = pytest.mark.claim("reading-a-report", "warning-counts-add-up")

ROOT = Path(__file__).resolve().parents[2]
BOX = Box([-1.0, -1.0], [1.0, 1.0])
ONE = 2**16


def kinds(findings):
    return [finding.kind for finding in findings]


def run(algorithm, lie=None, seed=0, answering=N_CLIENTS):
    """Return the findings of a run with noise, in which the first client's answers are changed.

    Sums wrap modulo 2^64, as those of secure sums do.
    """
    parts = parts_of(algorithm)[:answering]
    rng = np.random.default_rng(seed)
    state = algorithm.initial_state(rng)
    found = []
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        total = np.rint(noise_draws(algorithm, number, 1, rng)[0]).astype(np.int64)
        for i, part in enumerate(parts):
            words = algorithm.layout(number).flatten(answer_of(algorithm, query, part))
            with np.errstate(over="ignore"):
                total = total + (lie(words) if lie and i == 0 else words)
        n_slots = 1 if algorithm.kind == "vertical" else N_CLIENTS
        answer = algorithm.layout(number).unflatten(
            total, len(parts) / n_slots, len(parts)
        )
        found += findings_of(algorithm, state, answer)
        state = algorithm.update(state, answer, rng)
    return found


# -------------------------------------------------------------------------- honest runs


@pytest.mark.claim("reading-a-report", "report-dict-warnings-at")
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.default_cases(
    *(
        "SuLloyd",
        "GLloyd, clients",
        "FastLloyd",
        "SynopsisKMeans",
        "FedDPKMeans, means",
    ),
    *("PEMeans", "ConstrainedLloyd", "VerticalKMeans"),
)
def test_honest_runs_raise_no_alarm(name):
    algorithm = ALGORITHMS[name](N)
    assert not [each for each in run(algorithm) if each.kind.is_alarm]


@pytest.mark.parametrize("answering", [2, 5])
def test_totals_are_compared_with_the_clients_that_answered(answering):
    found = run(ALGORITHMS["GLloyd"](N), answering=answering)
    assert not [each for each in found if each.kind.is_alarm]


@pytest.mark.parametrize("name", ["GLloyd", "FastLloyd", "SynopsisKMeans", "PEMeans"])
@pytest.mark.parametrize(
    ("factor", "kind"), [(0.1, FindingKind.TOO_MANY), (10, FindingKind.TOO_FEW)]
)
def test_a_wrong_number_of_records_is_flagged_beyond_the_factor(name, factor, kind):
    assert kind in kinds(run(ALGORITHMS[name](round(factor * N))))


# --------------------------------------------------------------------------- lies

LIES = {
    "times a million": lambda words: words * 10**6,
    "times minus 1000": lambda words: words * -1000,
    "huge": lambda words: np.full_like(words, 2**45),
    "huge and negative": lambda words: np.full_like(words, -(2**45)),
    "largest": lambda words: np.full_like(words, 2**63 - 1),
    "least": lambda words: np.full_like(words, -(2**63)),
    "alternating": lambda words: np.where(np.arange(len(words)) % 2, 2**62, -(2**62)),
}


# One party of a vertical run holds no answer of its own: what it opens is tested as a
# sum below.
@pytest.mark.claim("reading-a-report", "report-dict-warnings-at")
@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name != "VerticalKMeans"]
)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.default_cases(
    *("times a million-GLloyd", "least-SuLloyd", "huge-FastLloyd, clients"),
    *("largest-SynopsisKMeans", "alternating-FedDPKMeans", "times minus 1000-PEMeans"),
    *(
        "huge and negative-ConstrainedLloyd, means",
        "times a million-FedDPKMeans, means",
    ),
)
def test_a_large_lie_of_one_client_of_ten_is_flagged(name, lie):
    found = run(ALGORITHMS[name](N), LIES[lie])
    assert [each for each in found if each.kind.is_alarm]


@pytest.mark.claim("reading-a-report", "client-multiplies-answer-3")
def test_limit_a_lie_that_other_records_could_be_is_not_flagged():
    algorithm = ALGORITHMS["FastLloyd"](N)
    for lie in (np.zeros_like, lambda words: 3 * words):
        assert not [each for each in run(algorithm, lie) if each.kind.is_alarm]


def test_a_sum_that_a_party_opens_is_flagged():
    algorithm = ALGORITHMS["VerticalKMeans"](N)
    assert FindingKind.TOO_MANY in kinds(run(algorithm, LIES["times a million"]))
    assert FindingKind.NEGATIVE in kinds(run(algorithm, LIES["times minus 1000"]))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.default_cases(
    "feddp-narrowing",
    "glloyd-cost",
    "fastlloyd-ball",
    "synopsis-strong",
    "vertical-sums",
)
def test_findings_are_total(name):
    """Noise makes every word possible, and an error would tell something about the sum."""
    algorithm = RUNS[name]()
    for kind in ("zeros", "largest", "least", "alternating", "noise"):
        rng = np.random.default_rng(3)
        state, rows = algorithm.initial_state(rng), 0
        for number in range(1, algorithm.n_rounds + 1):
            words = words_of(algorithm, kind, algorithm.query(state), None, rng)
            answer = algorithm.layout(number).unflatten(words)
            with np.errstate(all="raise", under="ignore"):
                found = findings_of(algorithm, state, answer)
            assert len(sentences(algorithm, found)) == len(set(kinds(found)))
            again = from_array(
                to_array(found), algorithm.n_rounds, algorithm.layout(number).n_words
            )
            assert again == found
            if algorithm.kind == "vertical":
                rows += len(found)
            state = algorithm.update(state, answer, rng)
        # Party 0 must be able to send them all.
        assert rows <= len(padded(np.zeros((0, 6)), algorithm.n_rounds))


# ------------------------------------------------------------------------- single tests


def glloyd(**options):
    return GLloydAlgorithm.planned(
        2, BOX, PrivacyBudget(1.0), n_records=1000, n_rounds=2, **options
    )


def lloyd_findings(counts, sums, algorithm=None, number=1):
    """Return the findings of Lloyd sums in records and half widths, of two clusters."""
    algorithm = algorithm or glloyd()
    state = State(number - 1, algorithm.initial_state().arrays)
    counts, sums = np.array(counts) * ONE, np.array(sums) * ONE
    answer = sum_of(
        algorithm, number, counts=counts.astype(np.int64), sums=sums.astype(np.int64)
    )
    return findings_of(algorithm, state, answer)


def test_totals_are_compared_beyond_their_noise():
    noise = glloyd().noise_of(1)["counts"] / ONE * math.sqrt(2)
    n_tests = 2 * 6 + 4 * 2 + 8
    reach = deviations(FALSE_ALARMS / 2 / n_tests)
    none = [[0, 0], [0, 0]]
    for sign, limit, kind in (
        (1, 3000, FindingKind.TOO_MANY),
        (-1, 1000 / 3, FindingKind.TOO_FEW),
    ):
        for beyond in (False, True):
            total = limit + sign * (reach * noise + (1 if beyond else -1))
            found = lloyd_findings([total / 2, total / 2], none)
            assert kinds(found) == [kind] * beyond
            assert [round(each.value) for each in found] == [round(total)] * beyond


def test_deviations_are_those_of_the_noise():
    rng = np.random.default_rng(0)
    for is_laplace, noise in (
        (False, rng.normal(size=10**5)),
        (True, rng.laplace(size=10**5)),
    ):
        z = deviations(0.01, is_laplace)
        rate = (noise > z * noise.std()).mean()
        assert 0.008 < rate < 0.012
    # A sum of Laplace variables has shorter tails than one of them.
    total = rng.laplace(size=(10**5, 4)).sum(axis=1)
    assert (total > deviations(0.01, True) * total.std()).mean() < 0.01


def test_counts_below_their_noise_and_sums_above_their_counts():
    assert lloyd_findings([400, 600], [[390, -390], [590, 0]]) == ()
    assert kinds(lloyd_findings([-400, 1400], [[0, 0], [0, 0]])) == [
        FindingKind.NEGATIVE
    ]
    (found,) = lloyd_findings([400, 600], [[0, 0], [0, 1300]])
    assert (found.kind, found.place, found.number) == (FindingKind.TOO_LONG, 1, 1)
    assert found.value == pytest.approx(1300 / 600)


def test_exact_sums_have_no_tolerance():
    exact = LloydAlgorithm.planned(
        2, BOX, PrivacyBudget(None), n_records=1000, n_rounds=2
    )
    assert lloyd_findings([400, 600], [[400, -400], [600, 0]], exact) == ()
    assert kinds(lloyd_findings([400, 600], [[401, 0], [0, 0]], exact)) == [
        FindingKind.TOO_LONG
    ]
    assert kinds(lloyd_findings([-1, 1001], [[0, 0], [0, 0]], exact)) == [
        FindingKind.NEGATIVE
    ]
    # An empty cluster is a fact, and no noise.
    assert lloyd_findings([0, 1000], [[0, 0], [0, 0]], exact, number=2) == ()


def test_a_ball_bounds_the_length_of_a_sum():
    exact = LloydAlgorithm.planned(
        2, Ball(1.0, [0, 0]), PrivacyBudget(None), n_records=1000, n_rounds=2
    )
    assert lloyd_findings([500, 500], [[300, 400], [0, 0]], exact) == ()
    assert kinds(lloyd_findings([500, 500], [[400, 400], [0, 0]], exact)) == [
        FindingKind.TOO_LONG
    ]


def test_no_n_records_no_totals():
    exact = LloydAlgorithm.planned(2, BOX, PrivacyBudget(None), n_rounds=2)
    assert lloyd_findings([1e6, 1e6], [[0, 0], [0, 0]], exact) == ()


def test_light_and_outside_are_notes_on_the_result():
    private = glloyd()
    noise = private.noise_of(2)["counts"] / ONE
    sums = [[0.0, 0.0], [0.0, 0.0]]
    assert lloyd_findings([1.9 * noise, 800], sums, number=1) == ()
    (found,) = lloyd_findings([1.9 * noise, 800], sums, number=2)
    assert (found.kind, found.number, found.place) == (FindingKind.LIGHT, 1, 0)
    assert found.deviation == pytest.approx(noise)
    assert lloyd_findings([2.1 * noise, 800], sums, number=2) == ()
    # On the wall, where noise moves a mean a little beyond; and farther beyond, of few
    # records.
    count = 2.1 * noise
    assert lloyd_findings([count, 800], [[1.05 * count, 0], [0, 0]], number=2) == ()
    wide = [[1.2 * count, 0], [0, 0]]
    assert lloyd_findings([count, 800], wide, number=1) == ()
    (found,) = lloyd_findings([count, 800], wide, number=2)
    assert (found.kind, found.place) == (FindingKind.OUTSIDE, 0)
    assert not found.kind.is_alarm


@pytest.mark.claim("reading-a-report", "warning-further-below-0")
def test_a_count_of_minus_536_under_client_privacy_is_said():
    algorithm = FastLloydAlgorithm.planned(
        8,
        BOX,
        PrivacyBudget(1.0, unit="client"),
        n_records=60_000,
        n_clients=60,
        n_rounds=2,
    )
    assert algorithm.noise_of(2)["counts"] / ONE > 536  # it is within its noise
    state = State(1, algorithm.initial_state().arrays)
    counts = np.full(8, 8000)
    counts[4] = -536
    answer = sum_of(algorithm, 2, counts=counts * ONE)
    found = findings_of(algorithm, state, answer)
    assert FindingKind.LIGHT in kinds(found)
    (words,) = [each for each in sentences(algorithm, found) if "-536" in each]
    assert "The least is -536 of cluster 4" in words
    assert not any(each.kind.is_alarm for each in found)


def test_products_that_are_longer_than_those_of_the_records():
    """Three times the planned records, all of them the longest, are allowed."""
    domain = Ball(1.0, [0.0] * 40)
    algorithm = SynopsisAlgorithm.planned(
        2, domain, PrivacyBudget(20.0, 1e-6), n_records=1000, most_words=40 * 16
    )
    assert algorithm.schedule.n_groups == 16
    state = algorithm.initial_state()
    noise = algorithm.noise_of(1)["moments"]
    rng = np.random.default_rng(0)

    def found(n_records):
        length = n_records * algorithm.block_sensitivities(1)["moments"]
        words = noise * rng.normal(size=(40, 16)) + length / math.sqrt(40 * 16)
        words = np.rint(words).astype(np.int64)
        return kinds(findings_of(algorithm, state, sum_of(algorithm, 1, moments=words)))

    assert found(0) == []
    assert found(1000) == []
    assert found(2900) == []
    assert found(3500) == [FindingKind.SQUARES]


def test_moments_of_no_records():
    algorithm = SynopsisAlgorithm.planned(2, BOX, PrivacyBudget(1.0), n_records=1000)
    state = algorithm.initial_state()
    unit = algorithm.block_sensitivities(1)["moments"] / 2  # of one column

    def found(*moments):
        words = (np.array(moments) * unit).astype(np.int64)
        return kinds(findings_of(algorithm, state, sum_of(algorithm, 1, moments=words)))

    assert found(1000, 1000, 900) == []
    assert found(1000, -500, 0) == [FindingKind.SQUARES]
    assert found(500, 500, 900) == [FindingKind.SQUARES]
    assert found(5000, 5000, 0) == [FindingKind.SQUARES]


def test_slacks_and_nearness_lie_between_nothing_and_the_counts():
    algorithm = FastLloydAlgorithm.planned(
        2, BOX, PrivacyBudget(1.0), n_records=1000, n_rounds=2
    )
    state = algorithm.initial_state()
    counts = np.array([500, 500]) * ONE
    for nearness, expected in (
        (400, []),
        (900, [FindingKind.SQUARES]),
        (-400, [FindingKind.SQUARES]),
    ):
        answer = sum_of(
            algorithm, 1, counts=counts, nearness=np.array([nearness, 0]) * ONE
        )
        assert kinds(findings_of(algorithm, state, answer)) == expected


def test_clipped_clients_cannot_be_longer_than_their_number():
    algorithm = ALGORITHMS["GLloyd, clients"](N)
    state, number = algorithm.initial_state(), 1
    words = algorithm.layout(number).n_words
    unit = sensitivities(algorithm, number)
    one = np.zeros(words)
    one[0] = 1.0
    for length, expected in ((10, []), (200, [FindingKind.UNCLIPPED])):
        vector = np.rint(one * unit * length).astype(np.int64)
        answer = algorithm.layout(number).unflatten(vector, 1.0, N_CLIENTS)
        assert [
            k for k in kinds(findings_of(algorithm, state, answer)) if k.is_alarm
        ] == expected


def test_sums_and_counts_that_are_clipped_apart_are_not_compared():
    """Clients of many records in several clusters: their counts may be shortened more."""
    private = PrivacyBudget(100.0, unit="client")
    algorithm = GLloydAlgorithm.planned(
        2, BOX, private, n_records=1000, n_clients=100, n_rounds=2
    )
    unit = sensitivities(algorithm, 1)
    vector = np.zeros(algorithm.layout(1).n_words)
    vector[0] = 50 * unit[0]  # fifty clients of no shortened count
    answer = algorithm.layout(1).unflatten(np.rint(vector).astype(np.int64), 1.0, 100)
    assert algorithm.noise_of(1)["sums"] < unit[0]
    assert findings_of(algorithm, algorithm.initial_state(), answer) == ()


# --------------------------------------------------------------------------- sentences


def made(kind, t=2, number=1, place=0, value=10.0, deviation=3.0):
    return Finding(kind, t, number, place, value, deviation)


def test_alarms_come_first_and_say_what_to_do():
    algorithm = glloyd()
    found = sentences(algorithm, [made(kind) for kind in reversed(FindingKind)])
    assert len(found) == len(FindingKind)
    for words, kind in zip(found, FindingKind, strict=True):
        assert words.startswith("WARNING: ") == kind.is_alarm
        assert words.endswith(".")
    assert all("client sent false numbers" in words for words in found[:6])


def test_the_documents_list_every_kind_in_order():
    page = (ROOT / "docs/reading-a-report.md").read_text("utf-8")
    section = page.partition("## Warnings about released values")[2].partition("\n## ")[
        0
    ]
    rows = [
        line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")
    ][1:]
    for first, kind in zip(rows, FindingKind, strict=True):
        (words,) = sentences(glloyd(), [made(kind)])
        assert ("`WARNING`" in first) == words.startswith("WARNING")
        for phrase in re.findall('"([^"]+)"', first):
            for part in phrase.split(" ... "):
                assert part in words, (part, words)


def test_a_kind_has_one_sentence_for_all_rounds():
    algorithm = glloyd()
    rounds = [made(FindingKind.TOO_MANY, t, value=4000.0 + t) for t in (1, 2, 4)]
    (words,) = sentences(algorithm, rounds)
    assert "of rounds 1, 2 and 4 add up to as many as 4,004 records" in words
    assert "n_records=1,000" in words
    (words,) = sentences(
        algorithm, [made(FindingKind.TOO_FEW, t) for t in range(1, 21)]
    )
    assert "of 20 rounds from 1 to 20" in words


def test_arrays_that_hold_no_findings_are_refused():
    good = to_array([made(FindingKind.LIGHT), made(FindingKind.TOO_MANY, t=1)])
    assert from_array(good, 2, 6) == (
        made(FindingKind.LIGHT),
        made(FindingKind.TOO_MANY, t=1),
    )
    wrong = {
        0: (-1, 9, 0.5),
        1: (0, 3, 1.5),
        2: (0, 7, 1.5),
        3: (-1, 6, 0.5),
        5: (-1.0,),
    }
    for column, values in wrong.items():
        for value in values:
            array = good.copy()
            array[0, column] = value
            with pytest.raises(ValueError, match="findings"):
                from_array(array, 2, 6)
    for array in (good.astype(np.int64), good[:, :5], good[0], np.tile(good, (100, 1))):
        with pytest.raises(ValueError, match="findings"):
            from_array(array, 2, 6)
    for value in (np.inf, np.nan):
        array = good.copy()
        array[0, 4] = value
        with pytest.raises(ValueError, match="findings"):
            from_array(array, 2, 6)


def test_a_fixed_number_of_rows_holds_the_findings_of_any_number_of_rounds():
    found = [
        Finding(FindingKind.TOO_MANY, t, 1, 0, 10.0 + t, 1.0) for t in range(1, 50)
    ]
    found += [
        Finding(FindingKind.NEGATIVE, 7, 2, 1, -3.0, 0.5),
        Finding(FindingKind.LIGHT, 49, 1, 0, 0.5, 1.0),
    ]
    rows = plausibility.condensed(plausibility.to_array(found))
    assert rows.shape == plausibility.condensed(np.zeros((0, 6))).shape
    kept = plausibility.from_array(rows[rows.any(axis=1)], 49, 10)
    assert [(each.kind, each.round) for each in kept] == [
        (FindingKind.TOO_MANY, 1),
        (FindingKind.TOO_MANY, 49),
        (FindingKind.NEGATIVE, 7),
        (FindingKind.LIGHT, 49),
    ]
    again = plausibility.condensed(rows[rows.any(axis=1)])
    np.testing.assert_array_equal(again, rows)
