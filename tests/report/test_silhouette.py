"""The silhouette of a result: its interval holds as often as it says, in every case."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms.released import SilhouetteSums
from flower_kmeans.report.silhouette import Silhouette, ratio

RNG = np.random.default_rng


def released(counts, sums, noise=0.0, is_gaussian=True):
    return Silhouette(SilhouetteSums(tuple(counts), tuple(sums), noise, is_gaussian))


def draws(rng, noise, size, is_gaussian):
    if is_gaussian:
        return rng.normal(0, noise, size)
    return rng.laplace(0, noise / math.sqrt(2), size)


def noisy(counts, values, noise, seed, n=1500, is_gaussian=True):
    """Yield the silhouettes of many releases over the same records."""
    rng = RNG(seed)
    counts = np.array(counts, float)
    sums = counts * values
    for _ in range(n):
        yield released(
            counts + draws(rng, noise, len(counts), is_gaussian),
            sums + draws(rng, noise, len(counts), is_gaussian),
            noise,
            is_gaussian,
        )


CASES = {
    "clear": ([3000, 2000, 1000], [0.9, 0.6, 0.7], 20.0),
    "small": ([60, 40, 30], [0.8, 0.5, 0.9], 20.0),
    "hidden": ([6, 4, 3], [0.8, 0.5, 0.9], 20.0),
    "none at all": ([0, 0], [0.5, 0.5], 5.0),
    "at the end": ([400, 300], [1.0, 1.0], 20.0),
    "at zero": ([400, 300], [0.0, 0.0], 20.0),
    "many": ([100] * 40, [0.7] * 40, 20.0),
    "one of two": ([700, 0], [0.8, 0.0], 20.0),
}


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("is_gaussian", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_interval_covers_the_true_silhouette(name, is_gaussian):
    """In at least 93 % of 1,500 releases, of the 95 % that it promises."""
    counts, values, noise = CASES[name]
    total = sum(counts)
    true = float(np.dot(counts, values)) / total if total else 0.3
    found = list(noisy(counts, values, noise, 1, is_gaussian=is_gaussian))
    covered = [each.low <= true <= each.high for each in found]
    assert np.mean(covered) >= 0.93
    assert all(0 <= each.low <= each.value <= each.high <= 1 for each in found)


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize(("size", "holds"), [(2 / 3, False), (1, True), (3 / 2, False)])
def test_the_interval_is_as_wide_as_its_noise(size, holds):
    """Of another scale it would cover too seldom, or be too wide."""
    counts, values, noise = CASES["clear"]
    true = float(np.dot(counts, values)) / sum(counts)
    covered = 0
    for each in noisy(counts, values, noise, 2, n=3000):
        other = released(each.released.counts, each.released.sums, noise * size)
        covered += other.low <= true <= other.high
    assert (0.93 < covered / 3000 < 0.97) == holds


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("name", ["clear", "many", "small", "one of two"])
def test_intervals_of_clusters_hold_all_at_once(name):
    counts, values, noise = CASES[name]
    covered = []
    for each in noisy(counts, values, noise, 3):
        pairs = zip(each.by_cluster, values, strict=True)
        covered.append(
            all(found is None or found.low <= v <= found.high for found, v in pairs)
        )
    assert np.mean(covered) >= 0.93


def test_clusters_that_are_too_small_say_nothing():
    found = released([199.0, 201.0, 0.0, -5.0], [100.0, 100.0, 0.0, 0.0], 20.0)
    assert [each is None for each in found.by_cluster] == [True, False, True, True]
    exact = released([5.0, 0.0], [2.0, 0.0])
    assert exact.by_cluster == ((0.4, 0.4, 0.4), None)


def test_the_deviation_is_that_of_the_ratio():
    counts, values, noise = CASES["clear"]
    found = list(noisy(counts, values, noise, 4))
    spread = np.std([each.value for each in found])
    assert np.mean([each.deviation for each in found]) == pytest.approx(spread, rel=0.1)
    assert found[0].means_something


@pytest.mark.claim("reading-a-report", "silhouette-too-wide-is-said")
def test_noise_that_hides_all_records_leaves_the_whole_interval():
    found = released([-3.0, 1.0], [5.0, 2.0], 20.0)
    assert (found.value, found.low, found.high, found.deviation) == (0.5, 0.0, 1.0, 1.0)
    assert "Noise hides the silhouette" in found.text
    assert not found.means_something
    assert released([10.0, 5.0], [5.0, 2.0], 20.0).low == 0


@pytest.mark.parametrize(
    ("total", "count", "reach"), [(-900.0, 1000.0, 10.0), (1900.0, 1000.0, 10.0)]
)
def test_impossible_ratios_give_the_nearest_end(total, count, reach):
    found = ratio(total, count, reach)
    assert found.low == found.value == found.high == float(total > 0)


def test_the_interval_has_the_ratios_that_the_noise_explains():
    """Against a search over all ratios."""
    rng = RNG(5)
    grid = np.linspace(0, 1, 2001)
    for _ in range(200):
        count = rng.uniform(20, 100)
        total = rng.uniform(-20, 120)
        reach = rng.uniform(0.1, 19)
        off = np.abs(total - grid * count)
        possible = grid[off <= reach * np.sqrt(1 + grid**2)]
        found = ratio(total, count, reach)
        if len(possible):
            assert found.low == pytest.approx(possible[0], abs=1e-3)
            assert found.high == pytest.approx(possible[-1], abs=1e-3)


def test_text_and_plain_values():
    clear = released([3000.0, 2000.0], [2700.0, 1400.0], 20.0)
    assert clear.text.startswith(
        "The silhouette is 0.82, and lies in 0.81 to 0.83 with"
    )
    exact = released([3.0, 2.0], [2.0, 1.0])
    assert exact.text.startswith("The silhouette is 0.60. 1 is a record on its")
    plain = clear.to_dict()
    assert plain["value"] == clear.value
    assert plain["by_cluster"][0]["low"] == clear.by_cluster[0].low
    assert (plain["confidence"], plain["means_something"]) == (0.95, True)
    assert plain["counts"] == [3000.0, 2000.0]
