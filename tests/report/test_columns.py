"""Warnings that name columns which decide too much or nothing, from released values."""

import shlex
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flower_kmeans import Ball, Box, PrivacyBudget, TableDomain, simulate
from flower_kmeans.algorithms.released import ReleasedMixture
from flower_kmeans.data.table_domain import Category, Number
from flower_kmeans.report.columns import column_warnings
from flower_kmeans.report.synopsis import Synopsis
from flower_kmeans.strategies import FastLloyd, GLloyd, SynopsisKMeans

DOMAIN = TableDomain(
    [
        Number("age", 0, 120),
        Category("ward", ("a", "b")),
        Category("sex", ("f", "m")),
    ]
)


def synopsis(domain, spread):
    """Return a synopsis of one part, whose columns have this spread in scaled units."""
    d = domain.n_features
    mixture = ReleasedMixture(
        weights=np.array([100.0]),
        means=np.zeros((1, d)),
        scales=np.full((1, d), spread),
        directions=np.eye(d),
        rest=1e-9,
        radii=np.ones(1),
        noise=(1.0, 1.0, 1.0),
    )
    return Synopsis(mixture, domain)


def warned(centroids, spread=None, domain=DOMAIN):
    found = None if spread is None else synopsis(domain, spread)
    return column_warnings(np.array(centroids, float), domain, found)


# ------------------------------------------------------------------- one category


@pytest.mark.claim("own-data", "columns-that-decide")
def test_clusters_that_are_the_values_of_a_category_are_said_to_be_so():
    (only,) = warned([[50, 0.95, 0.05, 0.5, 0.5], [52, 0.02, 0.98, 0.3, 0.7]], 0.2)
    assert "'ward'" in only
    assert "--weight ward=0.1" in only
    assert "kmeans(2, weights={'ward': 0.1})" in only
    assert "'sex'" not in only
    # without a synopsis there is nothing to cluster again
    (only,) = warned([[50, 0.95, 0.05, 0.5, 0.5], [52, 0.02, 0.98, 0.3, 0.7]])
    assert "--weight ward=0.1" in only
    assert "synopsis" not in only
    # nor a spread of the records
    assert "spread" not in only
    assert "15 % of its bounds" in only


def test_a_name_of_several_words_is_quoted_for_a_shell():
    domain = TableDomain([Number("age", 0, 120), Category("the ward", ("a", "b"))])
    (text,) = warned([[50, 1, 0], [50, 0, 1]], 0.2, domain)
    option = text.partition("--weight ")[2].partition(", in the next run")[0]
    assert shlex.split(option) == ["the ward=0.1"]


def test_without_numbers_none_is_named():
    ward, sex = Category("ward", ("a", "b")), Category("sex", ("f", "m"))
    clusters = [[0.95, 0.05, 0.5, 0.5], [0.02, 0.98, 0.5, 0.5]]
    (text,) = warned(clusters, 0.2, TableDomain([ward, sex]))
    assert "'ward'" in text
    assert "no number" not in text
    # no other column could decide instead
    assert warned([row[:2] for row in clusters], 0.2, TableDomain([ward])) == ()
    alike = [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]
    assert warned(alike, 0.2, TableDomain([ward, sex])) == ()


@pytest.mark.parametrize(
    "centroids",
    [
        [[50, 0.89, 0.11, 0.5, 0.5], [52, 0.02, 0.98, 0.3, 0.7]],  # not all of one
        [[50, 0.95, 0.05, 0.5, 0.5], [52, 0.98, 0.02, 0.3, 0.7]],  # the same level
        [[50, 0.95, 0.05, 0.5, 0.5], [57, 0.02, 0.98, 0.3, 0.7]],  # 12 is the spread
    ],
)
def test_other_clusters_are_not_warned_about(centroids):
    assert warned(centroids, 0.2) == ()


def test_without_a_released_spread_it_is_that_of_the_bounds():
    one, other = [0.95, 0.05, 0.5, 0.5], [0.02, 0.98, 0.3, 0.7]
    assert len(warned([[40, *one], [57, *other]])) == 1
    assert warned([[40, *one], [58, *other]]) == ()  # half of 120 / sqrt(12) is 17.3


# -------------------------------------------------------------------- no category


def test_categories_that_do_not_differ_are_named_together():
    (none,) = warned([[20, 0.5, 0.5, 0.3, 0.7], [80, 0.55, 0.45, 0.25, 0.75]], 0.2)
    assert "'ward', 'sex'" in none
    assert "--weight" in none
    assert warned([[20, 0.5, 0.5, 0.3, 0.7], [80, 0.65, 0.35, 0.3, 0.7]], 0.2) == ()
    assert warned([[20, 0.5, 0.5, 0.3, 0.7]], 0.2) == ()
    numbers = Box([0, 0], [1, 1])
    assert warned([[0, 0], [1, 1]], 0.2, numbers) == ()
    assert warned([[0, 0], [1, 1]], 0.2, Ball(1, [0, 0])) == ()


@pytest.mark.parametrize("m", [2, 30, 1000])
def test_clusters_that_share_out_many_levels_do_differ(m):
    """Each level has a small share in all of them, so no single share differs by much."""
    levels = tuple(map(str, range(m)))
    domain = TableDomain([Number("age", 0, 120), Category("place", levels)])
    half = np.repeat([2.0 / m, 0.0], m // 2)
    assert warned([[20, *half], [80, *half[::-1]]], 0.2, domain) == ()
    even = np.full(m, 1 / m)
    (text,) = warned([[20, *even], [80, *even]], 0.2, domain)
    assert "'place'" in text


# ------------------------------------------------------------------- wide bounds


@pytest.mark.parametrize(("spread", "n"), [(0.0114, 1), (0.0117, 0)])
def test_numbers_that_fill_little_of_their_bounds_are_named(spread, n):
    """A fiftieth of the bounds, as numbers that fill it evenly have the spread 1 / sqrt(3)."""
    domain = Box([0, 10], [1, 20], columns=["low", "high"])
    found = warned([[0, 10], [1, 20]], spread, domain)
    assert [("'low', 'high'" in text) for text in found] == [True] * n
    # in units of the bounds, whatever the weight is
    weighted = domain.weighted({"low": 0.5})
    (text,) = warned([[0, 10], [1, 20]], spread / 2, weighted)
    assert "'high'" in text
    assert ("'low'" in text) == bool(n)


@pytest.mark.parametrize(
    "domain", [Ball(2.0, [0, 0]), Box([0, 0], [4, 1], scale="common")]
)
def test_domains_of_one_scale_are_filled_as_a_whole(domain):
    assert warned([[0, 0], [1, 1]], 0.1, domain) == ()
    (text,) = warned([[0, 0], [1, 1]], 0.005, domain)
    assert "fill less than 1/50 of the domain" in text


@pytest.mark.parametrize("width", [1e-200, 1e-160, 1, 1e160, 1e200])
@pytest.mark.parametrize("make", [Box, partial(Box, scale="common"), Ball])
def test_units_whose_squares_are_no_floats_change_no_warning(make, width):
    domain = Ball(width, [0, 0]) if make is Ball else make([0, 0], [width, width])
    assert warned([[0, 0], [width, width]], 0.1, domain) == ()
    (text,) = warned([[0, 0], [width, width]], 0.005, domain)
    assert "fill less than 1/50" in text


# ---------------------------------------------------------------------------- runs


def mixed(seed, n_wards, places, n=6000):
    """Return ages in clear groups, beside a ward that means nothing."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, len(places), n)
    ward = rng.integers(0, n_wards, n).astype(str)
    age = rng.normal(np.array(places)[group], 4)
    return {"age": age.astype(str), "ward": ward}, group


def clustered(table, domain, k, n=6000):
    records = domain.encode(table)
    strategy = SynopsisKMeans(
        k, domain, PrivacyBudget(1.0), n_records=n, n_clients=6, seed=0
    )
    parts = np.array_split(records, 6)
    return simulate(strategy, parts, engine="in-process"), records


@pytest.mark.default_cases("id", "0-3-places0")
@pytest.mark.parametrize(
    ("seed", "n_wards", "places"),
    [
        (0, 3, (30, 45, 60)),
        (1, 2, (20, 70)),
        (2, 5, (25, 50, 80)),
        (3, 3, (36, 52, 68)),
    ],
)
def test_a_weight_finds_the_groups_that_a_meaningless_ward_hides(seed, n_wards, places):
    table, group = mixed(seed, n_wards, places)
    k = len(places)
    wards = tuple(map(str, range(n_wards)))
    age = Number("age", 0, 120)
    usual, records = clustered(table, TableDomain([age, Category("ward", wards)]), k)
    labels = usual.predict(records)
    if adjusted_rand_score(group, labels) < 0.5:
        if k == n_wards:
            (text,) = usual.report.to_dict()["warnings"]
            assert "'ward'" in text
        # the same run, in another weighting
        again = usual.synopsis.kmeans(k, weights={"ward": 0.1})
        assert adjusted_rand_score(group, again.predict(records)) > 0.8
    weighted = TableDomain([age, Category("ward", wards, weight=0.1)])
    found, records = clustered(table, weighted, k)
    assert adjusted_rand_score(group, found.predict(records)) > 0.85


@pytest.mark.default_cases("id", "distributed-noise-GLloyd")
@pytest.mark.parametrize("kind", [GLloyd, FastLloyd, SynopsisKMeans])
@pytest.mark.parametrize("trust", ["distributed-noise", "oblivious-server"])
def test_server_and_clients_warn_alike(kind, trust):
    rng = np.random.default_rng(0)
    ward = rng.integers(0, 2, 4000)
    domain = TableDomain([Number("age", 0, 120), Category("ward", ("0", "1"))])
    records = domain.encode(
        {"age": rng.normal(50, 5, 4000), "ward": ward.astype(str).tolist()}
    )
    strategy = kind(
        2, domain, PrivacyBudget(2.0), n_records=4000, n_clients=4, trust=trust, seed=1
    )
    report = simulate(strategy, np.array_split(records, 4), engine="in-process").report
    assert any("values of the column 'ward'" in text for text in report.warnings)
