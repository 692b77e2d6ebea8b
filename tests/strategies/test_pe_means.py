"""What travels in runs of PE-means and HDPE-means, and what their reports note."""

import numpy as np
import pytest
from harness import run_recorded

from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms.pe_means import WARNINGS
from flower_kmeans.strategies import HDPEMeans, PEMeans

D = {PEMeans: 3, HDPEMeans: 20}


def make(cls, trust="distributed-noise", **options):
    budget = PrivacyBudget(None if trust == "plain" else 8.0)
    options = {"n_rounds": 4, "n_clients": 6, "min_clients": 3, **options}
    return cls(3, Ball(14.0, [0.0] * D[cls]), budget, 1200, trust=trust, **options)


def run(strategy):
    rng = np.random.default_rng(1)
    records = rng.normal(scale=4.0, size=(1200, D[type(strategy)]))
    return run_recorded(strategy, np.array_split(records, 6), timeout=60)


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
@pytest.mark.parametrize("cls", D)
def test_queries_do_not_grow_with_the_population(cls, trust):
    """No candidate but the selected ones is in a message; answers have a word for each."""
    sizes = []
    for n_variations in (5, 400):
        strategy = make(cls, trust, n_variations=n_variations, n_rounds=3)
        outcome = run(strategy)
        rounds = [item.message for item in outcome.grid.sent if item.kind == "ask"]
        sizes.append(
            [
                max(len(each.query) for each in rounds if each.t == t)
                for t in range(1, strategy.n_rounds + 1)
            ]
        )
        asked = outcome.queries
        assert not asked[0].arrays
        assert {name: a.size for name, a in asked[2].arrays.items()} == {
            "centers": 3 * len(strategy.algorithm.space.half_widths),
            "variations": 1,
            "seed": 2,
        }
        candidates = np.concatenate(list(strategy.algorithm._population(asked[2])))
        sent = b"".join(item.data for item in outcome.grid.sent)
        assert len(candidates) <= 3 * (n_variations + 1)
        chosen = {row.tobytes() for q in asked[1:] for row in q.arrays["centers"]}
        for row in candidates.astype(np.int64):
            assert row.tobytes() in chosen or row.tobytes() not in sent
        lengths = [
            len(item.message.words) // 8 for item in outcome.grid.received if item.kind == "answer"
        ]
        # The one word more is the checksum.
        if trust != "distributed-noise":  # shares are shorter, and there is one for each client
            assert lengths.count(3 * (n_variations + 1) + 1) >= 2 * 6
    assert sizes[0] == sizes[1]


def test_a_cap_that_binds_is_reported():
    strategy = make(PEMeans, max_candidates=30)
    run(strategy)
    assert WARNINGS[0] in strategy.report.warnings
    assert strategy.report.to_dict()["warnings"] == list(strategy.report.warnings)
    free = make(PEMeans)
    run(free)
    assert WARNINGS[0] not in free.report.warnings
