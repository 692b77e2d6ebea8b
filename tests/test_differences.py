"""Numbers of the page on differences from the papers (docs/tables/differences.md)."""

import math
import re
from itertools import combinations

import numpy as np
import pytest
from pages import ROOT, page_id

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.strategies import ConstrainedLloyd, FastLloyd, HDPEMeans
from flower_kmeans.vertical.costs import costs
from flower_kmeans.vertical.engine import comparisons
from flower_kmeans.vertical.ring import SLOTS

BUDGET = PrivacyBudget(1.0, 1e-6)
PAGES = sorted(
    path
    for pattern in ("differences.md", "papers.md", "papers/*.md")
    for path in (ROOT / "docs/tables").glob(pattern)
)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_rows_have_as_many_cells_as_the_head_of_their_table(page):
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text("utf-8"), re.MULTILINE)
    assert tables
    for table in tables:
        head, *rows = table.replace("\\|", "").splitlines()
        for row in rows:
            assert row.count("|") == head.count("|"), row


def box(d):
    return Box(np.full(d, -1.0), np.full(d, 1.0))


@pytest.mark.claim("tables/differences", "delta-noise")
def test_the_default_delta_costs_noise():
    factors = []
    for n in (150, 100_000):
        for epsilon in (0.1, 1.0):
            papers = mu_of_budget(epsilon, 1 / (n * math.log(n)))
            ours = mu_of_budget(epsilon, min(1e-6, 1 / (100 * n)))
            factors.append(papers / ours)
    assert f"{min(factors):.1f} to {max(factors):.1f}" == "1.1 to 2.2"


@pytest.mark.claim("tables/differences", "fraction-of-round-1")
@pytest.mark.parametrize(("k", "d"), [(15, 2), (3, 4), (2, 1)])
def test_the_fraction_of_round_1(k, d):
    """It is larger than that of another round with few columns, and smaller with many."""
    made = FastLloyd(
        k, box(d), BUDGET, n_records=5000, n_clients=2, n_rounds=3, relocation=False
    )
    first, second, _ = (group[0].noise_multiplier for group in made.plan.rounds)
    fraction = (second / first) ** 2
    assert fraction == pytest.approx(k ** (1 / d) / 1.6, rel=1e-3)


@pytest.mark.claim("tables/differences", "replaced-slot")
@pytest.mark.parametrize("k", [2, 5])
def test_a_replaced_slot_changes_all_clusters(k):
    made = ConstrainedLloyd(
        k, box(2), BUDGET, n_records=1000, n_clients=4, min_size=100, n_rounds=2
    )
    bound = made.algorithm.domain.l2_bound(made.algorithm.fraction_bits)
    sums = made.algorithm.block_sensitivities(1)["sums"]
    assert sums / bound == pytest.approx(2 * math.sqrt(k), rel=1e-12)
    means = ConstrainedLloyd(
        k,
        box(2),
        BUDGET,
        n_records=1000,
        n_clients=4,
        min_size=100,
        n_rounds=2,
        aggregation="amn",
    )
    own = means.algorithm.block_sensitivities(1)["means"]
    rounding = math.sqrt(2 * k)
    assert (own - rounding) / bound == pytest.approx(2 * math.sqrt(k) / 25, rel=1e-9)


@pytest.mark.claim("tables/differences", "columns-that-vote")
@pytest.mark.parametrize("d", [17, 64, 384])
def test_hdpe_means_has_the_rounds_of_sixteen_columns(d):
    rounds = []
    for epsilon in (0.25, 1.0, 2.0):
        budget = PrivacyBudget(epsilon, 1e-6)
        domain = Ball(1.0, np.zeros(d))
        made = HDPEMeans(3, domain, budget, n_records=5000, n_clients=2)
        rounds.append(made.algorithm.n_vote_rounds)
    assert rounds == [14, 14, 30]


def memberships(ranks):
    """Return the paper's polynomial through the ranks 1 to k, which is 1 at the first."""
    k = len(ranks)
    found = np.ones(k)
    for node in range(2, k + 1):
        found *= (np.array(ranks) - node) / (1 - node)
    return found


@pytest.mark.claim("tables/differences", "rank-polynomial")
def test_the_rank_polynomial_between_ranks():
    whole = memberships([1.0, 2.0, 3.0])
    np.testing.assert_allclose(whole, [1, 0, 0], atol=1e-15)
    tie_of_the_farther = memberships([1.0, 2.5, 2.5])
    np.testing.assert_allclose(tie_of_the_farther, [1, -1 / 8, -1 / 8])
    np.testing.assert_allclose(memberships([1.5, 1.5]), [1 / 2, 1 / 2])
    of_fifteen = memberships([1.5, 1.5, *range(3, 16)])
    np.testing.assert_allclose(of_fifteen[:2], 0.15, atol=5e-3)


@pytest.mark.claim("tables/differences", "comparisons-of-pairs")
@pytest.mark.parametrize(("k", "here", "there"), [(5, 10, 26), (8, 28, 64)])
def test_comparisons_of_a_full_ciphertext(k, here, there):
    pairs = comparisons(k, None)
    assert pairs == list(combinations(range(k), 2))
    assert len(pairs) == here == k * (k - 1) // 2
    in_one = SLOTS // k**2
    assert math.ceil(SLOTS / in_one) == there


@pytest.mark.claim("tables/differences", "joint-key-bytes")
def test_bytes_of_joint_keys():
    planned = [costs(5, [1] * 4, SLOTS, 10, holders) for holders in (1, 2, 3)]
    sizes = [each.key_bytes / 1e6 for each in planned]
    assert [round(size) for size in sizes] == [55, 372, 530]
    assert round(sizes[2] - sizes[1]) == 158
