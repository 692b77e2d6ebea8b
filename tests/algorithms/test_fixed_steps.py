"""Replayable updates take the same steps, on arrays of the same sizes, whatever the sums are.

Under a blind server, clients compute the queries. The server may pass any sum to one of them, and
measure how long its reply takes. So every call of a function of the library is counted, with the
shapes of its arguments, on sums that could not differ more.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import flower_kmeans
from flower_kmeans.algorithms import (
    Algorithm,
    FastLloydAlgorithm,
    GLloydAlgorithm,
    HDPEMeansAlgorithm,
    LloydAlgorithm,
    PEMeansAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
    grid_kmeans,
    jacobi,
    relocation,
)
from flower_kmeans.algorithms.base import _REGISTRY
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.privacy.budget import PrivacyBudget

PACKAGE = str(Path(flower_kmeans.__file__).parent)
N = 2000
BUDGET = PrivacyBudget(1.0, 1e-6)
CLIENTS = PrivacyBudget(2.0, 1e-6, unit="client")
BOX = Box([0] * 6, [1, 1, 1, 2, 2, 3], scale="common")
BALL = Ball(1.0, [0.0] * 6)

CASES: dict[str, Callable[[], Algorithm]] = {
    "lloyd": lambda: LloydAlgorithm(5, BALL, PrivacyBudget(None), n_rounds=3),
    "sulloyd": lambda: SuLloydAlgorithm(5, BOX, BUDGET, n_records=N),
    "glloyd": lambda: GLloydAlgorithm(5, BALL, BUDGET, n_records=N, n_rounds=3, cost=True),
    "fastlloyd": lambda: FastLloydAlgorithm(12, BOX, BUDGET, n_records=N, n_rounds=4),
    "fastlloyd-ball": lambda: FastLloydAlgorithm(12, BALL, CLIENTS, n_records=N, n_clients=50),
    "fastlloyd-paper": lambda: FastLloydAlgorithm(5, BOX, BUDGET, n_records=N, relocation=False),
    "pe-means": lambda: PEMeansAlgorithm(5, BOX, BUDGET, n_records=N, n_vote_rounds=5),
    "pe-means-exact": lambda: PEMeansAlgorithm(
        3, BALL, PrivacyBudget(None), n_vote_rounds=3, n_variations=50
    ),
    "hdpe-means": lambda: HDPEMeansAlgorithm(
        3, Ball(1.0, [0.0] * 20), BUDGET, n_records=N, n_vote_rounds=3
    ),
    "synopsis": lambda: SynopsisAlgorithm(5, BOX, BUDGET, n_records=N),
    "synopsis-strong": lambda: SynopsisAlgorithm(4, BALL, PrivacyBudget(8.0), n_records=10 * N),
    "synopsis-blind": lambda: SynopsisAlgorithm(3, Ball(1.0, [0.0] * 130), BUDGET, n_records=N),
    "synopsis-clients": lambda: SynopsisAlgorithm(3, BOX, CLIENTS, n_records=N, n_clients=50),
    "synopsis-exact": lambda: SynopsisAlgorithm(4, BOX, PrivacyBudget(None)),
}
SUMS = ("data", "noisy data", "noise", "zeros", "largest", "least", "alternating")


def records_of(algorithm):
    """Records around as many points as there are clusters."""
    rng = np.random.default_rng(1)
    one, d = 2**algorithm.fraction_bits, algorithm.domain.n_features
    centers = rng.integers(-one // (2 * d), one // (2 * d), size=(algorithm.n_clusters, d))
    points = centers[np.arange(N) % len(centers)] + rng.normal(0, one / 50 / d, (N, d))
    widths = algorithm.domain.grid_half_widths(algorithm.fraction_bits) // d
    return GridRecords.from_grid(np.clip(points.astype(np.int64), -widths, widths), 16)


def words_of(algorithm, kind, query, records, rng):
    """Return one round's sum."""
    number = query.round
    words = algorithm.words(number)
    if kind == "zeros":
        return np.zeros(words, dtype=np.int64)
    if kind in ("largest", "least"):
        return np.full(words, 2**63 - 1 if kind == "largest" else -(2**63), dtype=np.int64)
    if kind == "alternating":
        return np.where(np.arange(words) % 2, 2**63 - 1, -(2**63)).astype(np.int64)
    found = np.zeros(words, dtype=np.int64)
    if kind != "noise":
        found += algorithm.flatten(algorithm.statistic(query, records), number)
    if kind != "data":
        found += np.rint(rng.normal(size=words) * algorithm.units(number) * 5).astype(np.int64)
    return found


@contextmanager
def counted() -> Iterator[Counter]:
    """Count the calls of the library's functions, by name and by the shapes of their arguments."""
    found: Counter = Counter()

    def seen(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            names = code.co_varnames[: code.co_argcount]
            given = (frame.f_locals.get(name) for name in names)
            shapes = tuple(x.shape if isinstance(x, np.ndarray) else None for x in given)
            found[(Path(code.co_filename).name, code.co_name, shapes)] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(before)


def steps_of(algorithm, kind, records):
    """Return the calls of each round of a run: of its query, and of the update after it."""
    rng, state, found = np.random.default_rng(2), algorithm.initial_state(), []
    for number in range(1, algorithm.n_rounds + 1):
        with counted() as queried:
            query = algorithm.query(state)
        words = words_of(algorithm, kind, query, records, rng)
        answer = algorithm.unflatten(words, number, 0.75 if number in (2, 3) else 1.0)
        with counted() as updated:
            state = algorithm.update(state, answer)
        found.append(queried + updated)
    return found


def test_every_replayable_algorithm_is_here():
    made = {make().name for make in CASES.values()}
    assert made == {name for name, kind in _REGISTRY.items() if kind.replayable}


def expect_equal_steps(algorithm):
    records = records_of(algorithm)
    steps_of(algorithm, "data", records)  # what is made once and kept
    expected = steps_of(algorithm, SUMS[0], records)
    for kind in SUMS[1:]:
        for number, (one, other) in enumerate(
            zip(steps_of(algorithm, kind, records), expected, strict=True), start=1
        ):
            assert one == other, (kind, number, (one - other, other - one))


@pytest.mark.parametrize("name", CASES)
def test_steps_do_not_depend_on_sums(name):
    expect_equal_steps(CASES[name]())


def test_the_steps_are_counted():
    """Of k-means, rotations and relocations: a count of nothing would always be the same."""
    algorithm = CASES["synopsis"]()
    calls = sum(steps_of(algorithm, "noise", records_of(algorithm)), Counter())
    by_name = Counter()
    for (_, name, _), times in calls.items():
        by_name[name] += times
    assert by_name["_rotate"] == 3 * 9 * 5  # sweeps, and rounds of each in six columns
    assert by_name["assign"] > 25 * 8
    algorithm = CASES["fastlloyd"]()
    calls = sum(steps_of(algorithm, "noise", records_of(algorithm)), Counter())
    assert sum(times for (_, name, _), times in calls.items() if name == "put_beside") == 3 * 2 * 12


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("synopsis", grid_kmeans, "_steps"),
        ("pe-means", grid_kmeans, "_steps"),
        ("synopsis", jacobi, "_rotate"),
        ("fastlloyd", relocation, "to_grid"),
    ],
)
def test_a_step_less_on_some_sums_is_found(name, module, function, monkeypatch):
    """A step that is left out where the values before are even is no fixed number of steps."""
    real = getattr(module, function)

    def sometimes(first, *others):
        array = first if isinstance(first, np.ndarray) else first.weights
        if int(array.sum()) % 2:
            real(first, *others)
        return real(first, *others)

    if function == "_rotate":  # in place: another look at the matrix instead of another turn

        def sometimes(first, *others):
            real(first, *others)
            if first.sum() > 0:
                real(first, np.ones(len(first.T) // 2), np.zeros(len(first.T) // 2))

    monkeypatch.setattr(module, function, sometimes)
    with pytest.raises(AssertionError):
        expect_equal_steps(CASES[name]())
