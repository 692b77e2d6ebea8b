"""A further secure sum is one class in one file, and a trust model is one line.

`AdditiveSum` is defined here, registered, and runs through the real strategy, server
and clients.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import pytest

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationError, TooFewClientsError
from flower_kmeans.protocol.trust import TRUST_MODELS, TrustModel, register_trust_model
from flower_kmeans.secagg.base import (
    SECURE_SUMS,
    ReconstructedSum,
    SecureSum,
    Sharing,
    SumContext,
    SumError,
    add_words,
    register_secure_sum,
)
from flower_kmeans.secagg.primitives import kdf, words
from flower_kmeans.strategies import FastLloyd


class AdditiveSum(SecureSum):
    """All members of a committee together: random vectors, and what is missing to the vector."""

    name: ClassVar[str] = "additive"
    by_committee: ClassVar[bool] = True

    def set_up(self, n_positions: int, n_corrupt: int, n_present: int) -> Sharing:
        if n_present < n_positions:
            raise ConfigurationError(
                f"Expected {n_positions} members. Got {n_present} instead."
            )
        return Sharing(n_positions, n_corrupt, privacy=n_positions - 1, packing=1)

    def protect(
        self, vector, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        data = self.encode(vector)
        key = kdf(secret, context.digest + data[:32], b"additive")
        parts = [
            words(key, j, len(vector)) for j in range(context.sharing.n_positions - 1)
        ]
        parts.append(vector.view(np.uint64) - sum(parts))
        return tuple(part.astype("<u8").tobytes() for part in parts)

    def combine(self, parts: Iterable[bytes], context: SumContext) -> bytes:
        return add_words(parts, context.n_words).astype("<u8").tobytes()

    def reconstruct(
        self, combined: Mapping[int, bytes], survivors, context: SumContext
    ) -> ReconstructedSum:
        if len(combined) < context.sharing.n_positions:
            raise SumError("A sum-share is missing.")
        return ReconstructedSum(
            add_words(combined.values(), context.n_words).view(np.int64)
        )

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        return 8 * n_words


PARTS = [
    np.random.default_rng(i).normal((0.2, 0.8)[i % 2], 0.02, (40, 2)) for i in range(6)
]
SIGHTED = TrustModel("toy-server-opens", "clients", "additive", "server")
BLIND = TrustModel("toy-clients-open", "clients", "additive", "clients")


@pytest.fixture
def registered(monkeypatch):
    """Register the sum and both trust models for one test."""
    for registry in (SECURE_SUMS, TRUST_MODELS):
        for name in (AdditiveSum.name, SIGHTED.name, BLIND.name):
            # so that it goes when the test is over
            monkeypatch.setitem(registry, name, None)
            del registry[name]
    register_secure_sum(AdditiveSum)
    for trust in (SIGHTED, BLIND):
        register_trust_model(trust)


def strategy_under(trust, **options):
    box, budget = Box([0.0, 0.0], [1.0, 1.0]), PrivacyBudget(50.0, 1e-6)
    return FastLloyd(
        2, box, budget, 240, trust=trust, n_clients=6, n_rounds=3, **options
    )


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("keys", ["relayed", "roster"])
@pytest.mark.parametrize("trust", [SIGHTED, BLIND], ids=lambda trust: trust.name)
def test_a_third_sum_runs_end_to_end(trust, keys, quiet):
    strategy = strategy_under(trust.name, keys=keys)
    clustering = simulate(strategy, PARTS)
    found = clustering.centroids[np.argsort(clustering.centroids[:, 0])]
    expected = [[0.2, 0.2], [0.8, 0.8]]
    np.testing.assert_allclose(found, expected, atol=0.05)
    report = clustering.report
    assert (report.trust, report.n_rounds, report.n_clients) == (trust.name, 3, 6)
    # Noise beyond the plan is removed by the shares of keys, which are additive ones
    # here.
    kept = 5 if trust is SIGHTED else strategy.min_clients - 1
    assert report.noise_factor == pytest.approx(np.sqrt(6 / kept))


@pytest.mark.usefixtures("registered")
def test_clients_refuse_a_trust_model_that_their_policy_does_not_name(quiet):
    policy = ClientPolicy(in_memory=True, max_epsilon=100.0, trusts=("clients-only",))
    with pytest.raises(TooFewClientsError, match="policy"):
        simulate(strategy_under(SIGHTED.name), PARTS, policy=policy)
