"""Replayable algorithms: the same integers from the same sums, on every processor.

Clients of an oblivious server each compute the next query. Digests of all states are
compared between other instructions, BLAS kernels and numbers of threads, and with what
is written here: the latter holds for every NumPy that is supported, and every operating
system.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from flower_kmeans import algorithms
from flower_kmeans.algorithms import Algorithm, SynopsisAlgorithm, tightened
from flower_kmeans.algorithms.answers import reconstructed
from flower_kmeans.algorithms.numerics.initialization import public_words, random_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from tests.support.documents import library_algorithms
from tests.support.processors import environments, outputs, printed

N = 1500
BUDGET = PrivacyBudget(1.0, 1e-6)
CLIENTS = PrivacyBudget(2.0, 1e-6, unit="client")
BOX = Box([0] * 6, [1, 1, 1, 2, 2, 3], scale="common")


def synopsis(*parameters, **options) -> SynopsisAlgorithm:
    """Return it as a client has it: from numbers that the server has calibrated.

    They are rounded here, so that no library's last bits decide about a test.
    """
    made = SynopsisAlgorithm.planned(*parameters, **options)
    share, signal = (
        float(np.float32(x)) for x in (made.schedule.count_share, made.schedule.signal)
    )
    schedule = replace(made.schedule, count_share=share, signal=signal)
    return replace(made, schedule=schedule)


def with_ranges(*parameters, **options) -> Algorithm:
    """Return it behind a round for ranges, with rounded numbers as `synopsis`."""
    made = tightened.planned(SynopsisAlgorithm, *parameters, **options)
    schedule = made.inner.schedule
    share, signal = (
        float(np.float32(x)) for x in (schedule.count_share, schedule.signal)
    )
    schedule = replace(schedule, count_share=share, signal=signal)
    return replace(made, inner=replace(made.inner, schedule=schedule))


WIDE = Box([-9] * 6, [9] * 6, tighten=0.1)
PURE = PrivacyBudget(None)
BALLS = {d: Ball(1.0, [0.0] * d) for d in (20, 70, 130, 140, 160)}
TWICE = {"assignment": "e-exclusive", "max_contribution": 2, "min_size": 300}


def of(kind: str, *parameters, **options) -> partial[Algorithm]:
    planned = getattr(algorithms, f"{kind}Algorithm").planned
    return partial(planned, *parameters, **options)


noisy = partial(of, n_records=N)
constrained = partial(
    noisy, "ConstrainedLloyd", 5, BOX, BUDGET, n_clients=3, n_rounds=3
)
CASES: dict[str, Callable[[], Algorithm]] = {
    "lloyd": of("Lloyd", 5, BOX, PURE, n_rounds=3),
    "sulloyd": noisy("SuLloyd", 5, BOX, BUDGET),
    "glloyd": noisy("GLloyd", 5, BOX, BUDGET),
    "constrained-lloyd": constrained(**TWICE),
    "constrained-lloyd-means": constrained(aggregation="amn"),
    "fastlloyd": noisy("FastLloyd", 5, BOX, BUDGET),
    "pe-means": noisy("PEMeans", 5, BOX, BUDGET),
    "hdpe-means": noisy("HDPEMeans", 3, BALLS[20], BUDGET),
    "vertical": partial(VerticalAlgorithm.planned, 5, BOX, BUDGET, n_records=N),
    "synopsis": partial(synopsis, 5, BOX, BUDGET, n_records=N),
    "synopsis-wide": partial(synopsis, 3, BALLS[70], PrivacyBudget(4.0), n_records=N),
    "synopsis-embeddings": partial(
        synopsis, 3, BALLS[160], PrivacyBudget(4.0), n_records=N
    ),
    "synopsis-embeddings-persons": partial(
        synopsis,
        3,
        BALLS[140],
        PrivacyBudget(6.0, 1e-6, unit="person"),
        n_persons=N,
    ),
    "synopsis-embeddings-clients": partial(
        synopsis,
        3,
        BALLS[140],
        PrivacyBudget(20.0, 1e-6, unit="client"),
        n_records=N,
        n_clients=300,
    ),
    "synopsis-embeddings-ranges": partial(
        with_ranges,
        3,
        Box([-9] * 140, [9] * 140, tighten=0.3),
        PrivacyBudget(40.0),
        n_records=N,
    ),
    "synopsis-embeddings-sphere": partial(
        synopsis, 3, Sphere(140), PrivacyBudget(6.0), n_records=N
    ),
    "synopsis-groups": partial(
        synopsis,
        3,
        BALLS[160],
        PrivacyBudget(4.0),
        n_records=N,
        most_words=160 * 40,
    ),
    "synopsis-blind": partial(
        synopsis, 3, BALLS[130], PrivacyBudget(0.1, 1e-6), n_records=N
    ),
    "synopsis-clients": partial(
        synopsis, 3, BOX, CLIENTS, n_records=N, n_clients=300, seed=7
    ),
    "synopsis-sized": partial(
        synopsis, 5, BOX, BUDGET, n_records=N, min_size=250, max_size=400
    ),
    "synopsis-sized-exact": partial(
        synopsis, 4, BALLS[20], PURE, n_records=N, min_size=N // 4, seed=3
    ),
    "synopsis-exact": partial(synopsis, 4, BOX, PURE, seed=2),
    "synopsis-chosen": partial(
        synopsis, (2, 7), BALLS[20], BUDGET, n_records=N, seed=5
    ),
    "synopsis-ranges": partial(with_ranges, 5, WIDE, PrivacyBudget(4.0), n_records=N),
    "fastlloyd-ranges": partial(
        tightened.planned,
        algorithms.FastLloydAlgorithm,
        5,
        Box([-1] * 6, [9] * 6, "common", tighten=0.2),
        CLIENTS,
        n_records=N,
        n_clients=300,
    ),
    "fastlloyd-ranges-quality": partial(
        tightened.planned,
        algorithms.FastLloydAlgorithm,
        5,
        Box([-1] * 6, [9] * 6, "common", tighten=0.2),
        CLIENTS,
        n_records=N,
        n_clients=300,
        quality=True,
    ),
    "pe-means-quality": partial(
        tightened.planned,
        algorithms.PEMeansAlgorithm,
        5,
        BALLS[20],
        BUDGET,
        n_records=N,
        n_vote_rounds=2,
        quality=True,
    ),
    "glloyd-sphere-quality": partial(
        tightened.planned,
        algorithms.GLloydAlgorithm,
        5,
        Sphere(6),
        BUDGET,
        n_records=N,
        quality=True,
    ),
    "glloyd-sphere": noisy("GLloyd", 5, Sphere(6), BUDGET),
    "fastlloyd-sphere": noisy("FastLloyd", 5, Sphere(6), BUDGET),
}
LONG = [name for name in CASES if name.startswith("synopsis-embeddings-")]
"""Cases whose records are about half as long as the radius, so that directions are clear."""

# Of all states of each run. A change of a digest is a change of what clients of other
# versions would compute: the run document must not accept both.
DIGESTS = {
    "lloyd": "96beca489a8992c2b53727da44f480d3",
    "sulloyd": "0638acbc2dd0e591cfa82367a0c6112b",
    "glloyd": "13367a84f22a2b7b7fd40335e80ffca7",
    "constrained-lloyd": "b0091c8f770c75f590e5f5313ded3a0a",
    "constrained-lloyd-means": "66281976bd3cf8b475810908c525efd1",
    "fastlloyd": "1c8fdef3c498b9e9fc69224d7c70804c",
    "pe-means": "0ebb708f043c318bbf6e06037570093d",
    "hdpe-means": "4d7c3c3d1e3007f24ece2622a26a0195",
    "vertical": "ff66b4f5e72a6ab144fa0b46bf1cd1d4",
    "synopsis": "2277943336eeaad4f265526a8cfad14a",
    "synopsis-wide": "8515b2d699ea18518ffbab803d246dda",
    "synopsis-embeddings": "896e451fdd59e121f4d10e6968983f58",
    "synopsis-embeddings-persons": "bf29f7eede608b80fb0ac041a997c0f0",
    "synopsis-embeddings-clients": "c15f58ae0668d7d39db6f55f3c252404",
    "synopsis-embeddings-ranges": "8935417b66b0b48ff4f10ad1bda6fcd0",
    "synopsis-embeddings-sphere": "31acddb61c5812cab6740dca3366ca22",
    "synopsis-groups": "c07cf6d4a2bad0cb2fcc1ad09b44bfd2",
    "synopsis-blind": "25137754cf096de5a3c7084460b33087",
    "synopsis-clients": "491792cea11f1488e0f1f28b9d705932",
    "synopsis-sized": "70794ebbcbc6df647ad975202fdb641d",
    "synopsis-sized-exact": "544b55d988ddd3cb9abdff542573e24e",
    "synopsis-exact": "5a206d91ebeb034f26828cf0aca237c8",
    "synopsis-chosen": "ffeaaa8471e86e493f3630e2a34c3b57",
    "synopsis-ranges": "a126df7d636a256fe9d483fd3441fd92",
    "fastlloyd-ranges": "97a15d1de9c555f9477d356d17666f1e",
    "fastlloyd-ranges-quality": "71442b19c3124cb468a349041bc013e5",
    "pe-means-quality": "e41c437dfc3aefcc5c7eadddb01a2fee",
    "glloyd-sphere-quality": "ce57e2ce16d46e400cf4b2eef5f8e3b7",
    "glloyd-sphere": "76b9ba81c20f07c7f738a6c6aa54bfb0",
    "fastlloyd-sphere": "77ef3449a811f47c1c2c131bc0087f33",
}


def digest(name: str) -> str:
    """Return a digest of all states of a run, over sums that are the same integers everywhere."""
    algorithm = CASES[name]()
    source, d, q = public_words(1), algorithm.domain.n_features, algorithm.fraction_bits
    means = normals(random_words(source, 7 * d)).reshape(7, d)
    points = (
        means[np.arange(N) % 7] + normals(random_words(source, N * d)).reshape(N, d) / 4
    )
    length = 1 / 24 if name in LONG else 1 / 8 / d
    points = np.floor(points * (2.0**q * length))
    records = GridRecords.from_grid(np.clip(points, -(2**q) // 3, 2**q // 3), q)
    state, found = algorithm.initial_state(), hashlib.sha256()
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        words = algorithm.layout(number).flatten(algorithm.statistic(query, records))
        words *= algorithm.full_weight or 1
        # Rounded, so that calibration cannot matter.
        scale = np.floor(sensitivities(algorithm, number) * 16) / 16
        noise = np.floor(normals(random_words(source, len(words))) * scale)
        answered = 0.75 if number in (2, algorithm.n_rounds) else 1.0
        total = words + noise.astype(np.int64)
        answer = reconstructed(algorithm, number, total, answered)
        state = algorithm.update(state, answer)
        for key, array in sorted(state.arrays.items()):
            assert array.dtype == np.int64, key
            found.update(key.encode() + np.ascontiguousarray(array, "<i8").tobytes())
    return found.hexdigest()[:32]


TAKE_LONG = (
    "synopsis-embeddings",
    "synopsis-embeddings-persons",
    "synopsis-embeddings-clients",
    "synopsis-embeddings-ranges",
    "synopsis-embeddings-sphere",
    "synopsis-groups",
    *LONG,
    "synopsis-sized",
    "synopsis-sized-exact",
    "synopsis-wide",
)


def test_every_replayable_algorithm_is_here():
    assert {make().name for make in CASES.values()} == {
        name for name, algorithm in library_algorithms().items() if algorithm.replayable
    }


@pytest.fixture(scope="module")
def found():
    """Digests of every case, in every environment."""
    code = "from tests.algorithms.test_replay import CASES, digest; print(*map(digest, CASES))"
    return [dict(zip(CASES, line.split(), strict=True)) for line in outputs(code)]


def test_states_are_the_same_integers_on_an_older_processor():
    names = ["fastlloyd", "pe-means", "synopsis", "synopsis-embeddings-clients"]
    code = (
        f"from tests.algorithms.test_replay import digest; print(*map(digest, {names}))"
    )
    assert printed(code, environments()[-1]).split() == [
        DIGESTS[name] for name in names
    ]


@pytest.mark.claim("guarantees", "11")
@pytest.mark.claim("protocol", "this-needs-replayable-algorithm")
@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_states_are_the_same_integers_on_every_processor(name, found):
    assert {digests[name] for digests in found} == {DIGESTS[name]}


@pytest.mark.claim("guarantees", "11")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name in TAKE_LONG))
        for name in CASES
    ],
)
def test_no_generator_decides_about_a_state(name, monkeypatch):
    """A replayable update draws from raw words of its seed and round alone."""

    def fail(*args, **kwargs):
        raise AssertionError("a generator was made")

    # Packages that are imported late, and so here at the latest, name generators in
    # their types.
    assert digest(name) == DIGESTS[name]
    monkeypatch.setattr(np.random, "default_rng", fail)
    monkeypatch.setattr(np.random, "Generator", fail)
    for function in ("eigh", "eigvalsh", "qr", "svd", "norm"):
        monkeypatch.setattr(np.linalg, function, fail)
    assert digest(name) == DIGESTS[name]
