"""Replayable updates take the same steps, on arrays of the same sizes, whatever the sums are.

Under a blind server, clients compute the queries. The server may pass any sum to one of
them, and measure how long its reply takes. So every call of a function of the library
is counted, with the shapes of its arguments, on sums that could not differ more.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import flower_kmeans
from flower_kmeans.algorithms import relocation
from flower_kmeans.algorithms.numerics import grid_kmeans, jacobi, transport
from tests.algorithms.rows import REPLAYABLE, SUMS, records_of, words_of

PACKAGE = str(Path(flower_kmeans.__file__).parent)


@contextmanager
def counted() -> Iterator[Counter]:
    """Count the calls of the library's functions, by name and by the shapes of their arguments."""
    found: Counter = Counter()

    def seen(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            names = code.co_varnames[: code.co_argcount]
            given = (frame.f_locals.get(name) for name in names)
            shapes = tuple(
                x.shape if isinstance(x, np.ndarray) else None for x in given
            )
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
        answer = algorithm.layout(number).unflatten(
            words, 0.75 if number in (2, 3) else 1.0
        )
        with counted() as updated:
            state = algorithm.update(state, answer)
        found.append(queried + updated)
    return found


def expect_equal_steps(algorithm):
    records = records_of(algorithm)
    steps_of(algorithm, "data", records)  # what is made once and kept
    expected = steps_of(algorithm, SUMS[0], records)
    for kind in SUMS[1:]:
        for number, (one, other) in enumerate(
            zip(steps_of(algorithm, kind, records), expected, strict=True), start=1
        ):
            assert one == other, (kind, number, (one - other, other - one))


TAKE_LONG = (
    "hdpe-means",
    "pe-means-exact",
    "synopsis-blind",
    "synopsis-embeddings",
    "synopsis-exact",
    "synopsis-sized",
    "synopsis-strong",
    "synopsis-wide",
)
# Exact sizes take the steps of bounds on sizes.
TESTED = [
    pytest.param(
        name,
        marks=[pytest.mark.slow] * (name == "synopsis-sized-exact")
        + [pytest.mark.thorough] * (name in TAKE_LONG),
    )
    for name in REPLAYABLE
]


@pytest.mark.claim("guarantees", "11")
@pytest.mark.parametrize("name", TESTED)
def test_steps_do_not_depend_on_sums(name):
    expect_equal_steps(REPLAYABLE[name]())


@pytest.mark.claim("guarantees", "11")
@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("synopsis", grid_kmeans, "_steps"),
        ("pe-means", grid_kmeans, "_steps"),
        ("synopsis", jacobi, "_rotate"),
        ("fastlloyd", relocation, "to_grid"),
        pytest.param("synopsis-sized", transport, "rake", marks=pytest.mark.thorough),
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

    # in place: another look at the matrix instead of another turn
    if function == "_rotate":

        def sometimes(first, *others):
            real(first, *others)
            if first.sum() > 0:
                real(first, np.ones(len(first.T) // 2), np.zeros(len(first.T) // 2))

    monkeypatch.setattr(module, function, sometimes)
    with pytest.raises(AssertionError):
        expect_equal_steps(REPLAYABLE[name]())
