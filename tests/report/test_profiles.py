"""Profiles have every column in the user's units, on one scale for all of them."""

from datetime import date

import numpy as np
import pytest

from flower_kmeans import Ball, Box, Sphere, TableDomain
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.report.profiles import (
    column_profiles,
    largest_deviation,
    most_separating,
    short_number,
)

DOMAIN = TableDomain(
    [
        Number("age", 0, 100),
        Number("days", 1, 1000, "log"),
        Category("ward", ("A", "B", "C")),
        Date("admitted", date(2020, 1, 1), date(2024, 1, 1)),
        Category("smoker", ("No", "Yes")),
    ]
)
CENTROIDS = DOMAIN.encode(
    {
        "age": [20, 40, 90],
        "days": [10, 10, 100],
        "ward": ["A", "B", "C"],
        "admitted": [date(2020, 1, 1), date(2022, 1, 1), date(2024, 1, 1)],
        "smoker": ["Yes", "No", "No"],
    }
)
COUNTS = np.array([30.0, 10.0, -5.0])


def test_columns_are_decoded():
    age, days, ward, admitted, smoker = column_profiles(CENTROIDS, COUNTS, DOMAIN)
    assert age.texts == ("20", "40", "90")
    assert days.texts == ("10", "10", "100")
    assert ward.texts == ("A 100%", "B 100%", "C 100%")
    assert admitted.texts == ("2020-01-01", "2022-01-01", "2024-01-01")
    assert [row.label for row in ward.rows] == ["ward A", "ward B", "ward C"]
    assert [row.label for row in smoker.shown_rows] == ["smoker Yes"]
    assert [profile.is_category for profile in (age, ward)] == [False, True]


def test_the_mean_is_that_of_the_noisy_sizes():
    age, days, ward, admitted, _ = column_profiles(CENTROIDS, COUNTS, DOMAIN)
    (row,) = age.rows
    assert row.text(row.mean) == "25"
    assert row.mean_place == pytest.approx(0.25)
    np.testing.assert_allclose(row.places, [0.2, 0.4, 0.9])
    assert [row.text(row.mean) for row in ward.rows] == ["75%", "25%", "0%"]
    (row,) = days.rows
    assert row.places == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    np.testing.assert_allclose(admitted.rows[0].places, [0, 0.5, 1], atol=1e-3)
    alike = column_profiles(CENTROIDS, np.array([-1.0, -2, 0]), DOMAIN)
    assert alike[0].rows[0].mean == pytest.approx(50)


def test_deviations_are_distances_in_the_space_that_was_clustered():
    profiles = column_profiles(CENTROIDS, COUNTS, DOMAIN)
    mean = np.array([0.75, 0.25, 0.0]) @ CENTROIDS
    squares = sum(profile.distances**2 for profile in profiles)
    expected = ((DOMAIN.scaled(CENTROIDS) - DOMAIN.scaled(mean)) ** 2).sum(axis=1)
    np.testing.assert_allclose(squares, expected)
    separations = [profile.separation for profile in most_separating(profiles)]
    assert separations == sorted(separations, reverse=True)
    total = 0.75 * expected[0] + 0.25 * expected[1]
    assert np.square(separations).sum() == pytest.approx(total)
    rows = [row for profile in profiles for row in profile.rows]
    most = max(np.abs(row.deviations).max() for row in rows)
    assert largest_deviation(profiles) == most


def test_weights_of_columns_count():
    points = np.array([[0.0, 0.0], [10.0, 10.0]])
    box = Box([0, 0], [10, 10], columns=["a", "b"], weights=[1, 0.1])
    a, b = column_profiles(points, np.ones(2), box)
    assert a.separation == pytest.approx(10 * b.separation)


@pytest.mark.parametrize(
    "domain", [Box([-1, -1], [1, 1]), Ball(1.0, [0.0, 0.0]), Sphere(2)]
)
def test_every_domain_has_profiles(domain):
    points = np.array([[1.0, 0.0], [0.0, 1.0]])
    first, second = column_profiles(points, np.ones(2), domain)
    assert (first.name, second.name) == ("column 1", "column 2")
    np.testing.assert_allclose(first.rows[0].places, [1, 0.5])
    named = column_profiles(points, np.ones(2), domain, ["a\n", "b"])
    assert [profile.name for profile in named] == ["a\\n", "b"]


def test_noise_leaves_fractions_and_places_in_their_bounds():
    points = CENTROIDS.copy()
    points[0, 2:5] = [1.2, -0.1, -0.1]
    points[0, 0] = 130.0
    age, _, ward, *_ = column_profiles(points, COUNTS, DOMAIN)
    assert ward.texts[0] == "A 100%"
    assert ward.rows[1].texts[0] == "0%"
    assert age.rows[0].places[0] == 1.0


def test_clusters_at_one_place_have_no_deviation():
    profiles = column_profiles(np.full((2, 2), 0.5), np.ones(2), Box([0, 0], [1, 1]))
    assert largest_deviation(profiles) == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(63.21, "63.2"), (12345.6, "12,346"), (-0.0, "0"), (1.234e-5, "1.23e-05"), (1e9, "1e+09")],
)  # fmt: skip
def test_numbers_have_about_three_digits(value, text):
    assert short_number(value) == text
