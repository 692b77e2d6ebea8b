"""How often noise alone raises an alarm of `flower_kmeans.algorithms.plausibility`.

    python benchmarks/false_alarms.py --draws 1000
    python benchmarks/false_alarms.py --draws 300 --chance 0.5

Every strategy's algorithm answers for 2,000 honest records around as many points as
there are clusters, in ten clients. One run with noise gives the queries. Then every
round gets ``--draws`` independent noises of the planned law, and draw i of all rounds
together is one run. A run counts if any round has an alarm. Notes do not count. The
columns of the table are cases just without an alarm: half of the clients answer;
``n_records`` is a third of the true number, or three times it; all records lie in
corners of the domain.

The noise is numpy's, not the library's exact sampler: only its law matters here. Errors
of the encryption of vertical runs are not simulated. ``--chance`` takes the place of
`FALSE_ALARMS`: with a large one alarms must appear, or the tests would be far too weak.
The bound is that of Clopper and Pearson at 95%, one-sided.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import (
    Algorithm,
    ConstrainedLloydAlgorithm,
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    HDPEMeansAlgorithm,
    LloydAlgorithm,
    PEMeansAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
    plausibility,
)
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.algorithms.state import State
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.vertical.algorithm import VerticalAlgorithm

N = 2000
N_CLIENTS = 10
BOX = Box([-1.0] * 4, [1.0] * 4)
BALL = Ball(1.0, [0.0] * 4)
WIDE = Box([-1.0] * 20, [1.0] * 20)
RECORD = PrivacyBudget(1.0)
CLIENT = PrivacyBudget(2.0, unit="client")
POINTS = np.random.default_rng(0).uniform(-0.7, 0.7, (60, 4))
CLIENTS = {"n_clients": N_CLIENTS}

ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "Lloyd, exact": lambda n: LloydAlgorithm.planned(
        4, BOX, PrivacyBudget(None), n_records=n
    ),
    "GLloyd": lambda n: GLloydAlgorithm.planned(4, BOX, RECORD, n_records=n, cost=True),
    "GLloyd, ball": lambda n: GLloydAlgorithm.planned(4, BALL, RECORD, n_records=n),
    "GLloyd, clients": lambda n: GLloydAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, **CLIENTS
    ),
    "SuLloyd": lambda n: SuLloydAlgorithm.planned(4, BOX, RECORD, n_records=n),
    "SuLloyd, delta 0": lambda n: SuLloydAlgorithm.planned(
        4, BOX, PrivacyBudget(1.0, 0.0), n_records=n
    ),
    "FastLloyd": lambda n: FastLloydAlgorithm.planned(
        4, BOX, RECORD, n_records=n, cost=True
    ),
    "FastLloyd, paper": lambda n: FastLloydAlgorithm.planned(
        4, BOX, RECORD, n_records=n, relocation=False
    ),
    "FastLloyd, clients": lambda n: FastLloydAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, **CLIENTS
    ),
    "SynopsisKMeans": lambda n: SynopsisAlgorithm.planned(4, BOX, RECORD, n_records=n),
    "SynopsisKMeans, sizes": lambda n: SynopsisAlgorithm.planned(
        2, BOX, RECORD, n_records=n, min_size=n // 4
    ),
    "SynopsisKMeans, clients": lambda n: SynopsisAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, **CLIENTS
    ),
    "FedDPKMeans": lambda n: FedDPAlgorithm.planned(
        4, BOX, RECORD, n_records=n, server_data=POINTS
    ),
    "FedDPKMeans, Laplace": lambda n: FedDPAlgorithm.planned(
        4, BOX, RECORD, n_records=n, server_data=POINTS, mechanisms="laplace"
    ),
    "FedDPKMeans, clients": lambda n: FedDPAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, server_data=POINTS, **CLIENTS
    ),
    "FedDPKMeans, means": lambda n: FedDPAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, server_data=POINTS, contribution="means", **CLIENTS
    ),
    "PEMeans": lambda n: PEMeansAlgorithm.planned(
        4, BOX, RECORD, n_records=n, n_variations=50
    ),
    "PEMeans, clients": lambda n: PEMeansAlgorithm.planned(
        4, BOX, CLIENT, n_records=n, n_variations=50, **CLIENTS
    ),
    "HDPEMeans": lambda n: HDPEMeansAlgorithm.planned(
        4, WIDE, RECORD, n_records=n, n_variations=50
    ),
    "ConstrainedLloyd": lambda n: ConstrainedLloydAlgorithm.planned(
        4, BOX, RECORD, n_records=n, n_rounds=3, **CLIENTS
    ),
    "ConstrainedLloyd, means": lambda n: ConstrainedLloydAlgorithm.planned(
        4, BOX, RECORD, n_records=n, n_rounds=3, aggregation="amn", **CLIENTS
    ),
    "ConstrainedLloyd, nearest": lambda n: ConstrainedLloydAlgorithm.planned(
        4, BOX, RECORD, n_records=n, n_rounds=3, assignment="non-exclusive", **CLIENTS
    ),
    "VerticalKMeans": lambda n: VerticalAlgorithm.planned(4, BOX, RECORD, n_records=n),
}
"""Small algorithms of all strategies, by the number of records that they plan for."""


def honest_records(
    algorithm: Algorithm, n: int = N, corners: bool = False
) -> FloatArray:
    """Return records (n, d) around as many points as there are clusters, or in the corners."""
    rng = np.random.default_rng(1)
    d = algorithm.domain.n_features
    if corners:
        return rng.choice([-1.0, 1.0], (algorithm.n_clusters, d))[
            np.arange(n) % algorithm.n_clusters
        ]
    centers = rng.uniform(-0.5, 0.5, (algorithm.n_clusters, d)) / np.sqrt(d)
    spread = 0.1 / np.sqrt(d)
    return centers[rng.integers(len(centers), size=n)] + rng.normal(0, spread, (n, d))


def noise_draws(
    algorithm: Algorithm, number: int, n_draws: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return noises of one round, (n_draws, words), of the planned laws."""
    planned = algorithm.noise_of(number)
    laws = {
        name: release.mechanism
        for release in algorithm.releases(number)
        for name in release.blocks
    }
    drawn = []
    for block in algorithm.layout(number).blocks:
        shape = n_draws, block.size
        std = np.full(block.size, planned[block.name])
        if block.name == MOMENTS:  # that of products has half of the variance
            std[algorithm.domain.n_features :] /= np.sqrt(2.0)
        if laws.get(block.name) == "laplace":
            drawn.append(rng.laplace(0.0, 1.0, shape) * std / np.sqrt(2.0))
        else:
            drawn.append(rng.normal(0.0, 1.0, shape) * std)
    return np.concatenate(drawn, axis=1)


def exact_sum(
    algorithm: Algorithm, state: State, parts: Sequence[GridRecords]
) -> NDArray[np.int64]:
    """Return the sum of all answers to the query after a state."""
    query = algorithm.query(state)
    answers = [
        algorithm.layout(query.round).flatten(answer_of(algorithm, query, part))
        for part in parts
    ]
    return np.sum(answers, axis=0)


def alarms_of(
    algorithm: Algorithm,
    parts: Sequence[GridRecords],
    n_slots: int,
    n_draws: int,
    seed: int = 0,
) -> NDArray[np.bool_]:
    """Return whether each run has an alarm, (n_draws,)."""
    rng = np.random.default_rng(seed)
    state = algorithm.initial_state(rng)
    raised = np.zeros(n_draws, dtype=bool)
    for number in range(1, algorithm.n_rounds + 1):
        total = exact_sum(algorithm, state, parts)
        noises = np.rint(noise_draws(algorithm, number, n_draws + 1, rng)).astype(
            np.int64
        )
        for i, noise in enumerate(noises):
            answer = algorithm.layout(number).unflatten(
                total + noise, len(parts) / n_slots, len(parts)
            )
            if i == n_draws:
                break
            found = plausibility.findings_of(algorithm, state, answer)
            raised[i] |= any(finding.kind.is_alarm for finding in found)
        # under the last noise, which no run has
        state = algorithm.update(state, answer, rng)
    return raised


def parts_of(
    algorithm: Algorithm, n: int = N, corners: bool = False
) -> list[GridRecords]:
    """Return the records of each client on the grid; all of them together in a vertical run."""
    records = honest_records(algorithm, n, corners)
    pieces = (
        [records]
        if algorithm.kind == "vertical"
        else np.array_split(records, N_CLIENTS)
    )
    return [
        GridRecords(piece, algorithm.domain, algorithm.fraction_bits)
        for piece in pieces
    ]


class Case(NamedTuple):
    """The special numbers of some runs."""

    name: str
    factor: float = 1.0  # n_records over the number of records
    n_answers: int = N_CLIENTS
    corners: bool = False


CASES = (
    Case("all answer"),
    Case("half answer", n_answers=N_CLIENTS // 2),
    Case("n_records a third", factor=1 / 3),
    Case("n_records three times", factor=3.0),
    Case("records in corners", corners=True),
)


def alarms_in(algorithm: Algorithm, case: Case, n_draws: int) -> NDArray[np.bool_]:
    """Return whether each run of a case has an alarm, (n_draws,)."""
    parts = parts_of(algorithm, corners=case.corners)
    n_slots = 1 if algorithm.kind == "vertical" else N_CLIENTS
    return alarms_of(algorithm, parts[: case.n_answers], n_slots, n_draws)


def bound(n_raised: int, n_draws: int) -> float:
    """Return the upper bound of Clopper and Pearson at 95%."""
    return float(beta.ppf(0.95, n_raised + 1, n_draws - n_raised))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--only", nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--chance", type=float, default=plausibility.FALSE_ALARMS)
    given = parser.parse_args()
    plausibility.FALSE_ALARMS = given.chance
    print("| algorithm |", " | ".join(case.name for case in CASES), "|")
    print("|---|" + "--:|" * len(CASES))
    n_all, n_raised = 0, 0
    for name in given.only:
        cells = []
        for case in CASES:
            algorithm = ALGORITHMS[name](math.ceil(N * case.factor))
            # A vertical run needs all of its parties, and its rows are n_records.
            if algorithm.kind == "vertical" and (
                case.factor != 1.0 or case.n_answers != N_CLIENTS
            ):
                cells.append("-")
                continue
            raised = alarms_in(algorithm, case, given.draws)
            cells.append(f"{int(raised.sum())} of {given.draws}")
            n_all += given.draws
            n_raised += int(raised.sum())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{n_raised} of {n_all} runs; at most {bound(n_raised, n_all):.2g} at 95%.")


if __name__ == "__main__":
    main()
