import math

import pytest

from flower_kmeans.algorithms import (
    FedDPAlgorithm,
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
    SynopsisAlgorithm,
    feasibility,
)
from flower_kmeans.algorithms.feasibility import require_below, require_capacity
from flower_kmeans.algorithms.sensitivity import record_sensitivities
from flower_kmeans.data.domain import Ball
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget

pytestmark = pytest.mark.claim("guarantees", "10")


@pytest.mark.parametrize("bits", [31, 62, 63])
def test_capacity_is_exact(bits):
    require_below(2**bits - 1, 2**bits)
    require_below(0, 2**bits)
    with pytest.raises(
        ConfigurationError, match=rf"below 2\^{bits},.*up to 2\^{bits}\.0 instead"
    ):
        require_below(2**bits, 2**bits)


@pytest.mark.parametrize("bound", [math.nan, math.inf, -1.0])
def test_meaningless_bounds_are_refused(bound):
    with pytest.raises(
        ConfigurationError, match=f"{bound} instead. It follows from n_records=7"
    ):
        require_below(bound, explanation="It follows from n_records=7.")


# ----------------------------------------------------------------------- sums and clips

RECORDS, CLIENTS = PrivacyBudget(1.0, 1e-6), PrivacyBudget(1.0, 1e-6, unit="client")


def make(cls, budget=RECORDS, **options):
    d = 20 if cls is HDPEMeansAlgorithm else 3
    if cls is FedDPAlgorithm:
        options = {"n_server_points": 5, **options}
    return cls.planned(
        2, Ball(1.0, [0.0] * d), budget, **{"n_records": 1000, **options}
    )


ALGORITHMS = {
    "votes": (PEMeansAlgorithm, {}),
    "votes of clients": (PEMeansAlgorithm, {"budget": CLIENTS, "n_clients": 50}),
    "lift of clients": (HDPEMeansAlgorithm, {"budget": CLIENTS, "n_clients": 50}),
    "synopsis": (SynopsisAlgorithm, {}),
    "Laplace": (FedDPAlgorithm, {"mechanisms": "laplace", "cost": True}),
    "more clients": (FedDPAlgorithm, {"budget": CLIENTS, "n_clients": 4000}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_there_is_room_for_all_records_and_for_noise_of_one_in_a_billion(
    monkeypatch, name
):
    """Of all words together: P(|Z| > t) < 2 exp(-t^2 / 2), and exp(-t) of Laplace noise."""
    cls, options = ALGORITHMS[name]
    algorithm, found = make(cls, **options), []
    monkeypatch.setattr(
        feasibility, "require_below", lambda bound, *_: found.append(bound)
    )
    require_capacity(algorithm, 3.0)
    words = sum(algorithm.layout(t).n_words for t in range(1, algorithm.n_rounds + 1))
    expected = []
    for t, releases in enumerate(algorithm.plan().rounds, start=1):
        units, places = record_sensitivities(algorithm, t), algorithm.layout(t).places
        for release in releases:
            unit = max(units[places[name]].max() for name in release.blocks)
            scale = 3 * release.noise_multiplier * algorithm.clipping.of(release) * unit
            logarithm = math.log(2e9 * words)
            tail = (
                logarithm
                if release.mechanism == "laplace"
                else math.sqrt(2 * logarithm)
            )
            most = max(1000, algorithm.n_clients or 0)
            expected.append(most * unit + scale * tail)
    assert found == pytest.approx(expected, rel=1e-12)
    found.clear()
    require_capacity(algorithm)
    assert max(found) < max(expected)


@pytest.mark.parametrize("name", ["votes", "lift-sums", "lift-counts"])
def test_a_clip_of_exactly_one_step_is_the_least(name):
    """In the first round and the last, and of every release: 2^-16 records change a word by 1."""
    options = {"budget": CLIENTS, "n_clients": 50, "n_vote_rounds": 1}
    least = 2.0**-16
    algorithm = make(HDPEMeansAlgorithm, clips={name: least}, **options)
    assert dict(algorithm.clips)[name] == least
    with pytest.raises(
        ConfigurationError, match=f"release '{name}' of at least 1.53e-05"
    ):
        make(HDPEMeansAlgorithm, clips={name: math.nextafter(least, 0)}, **options)
