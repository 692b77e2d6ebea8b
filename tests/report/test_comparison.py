"""A clustering beside k-means without privacy and beside one cluster."""

from datetime import date

import numpy as np
import pandas as pd
import pytest
from report_pages import finished, read
from sklearn.cluster import KMeans

from flower_kmeans import (
    Ball,
    Box,
    Clustering,
    PrivacyBudget,
    Sphere,
    TableDomain,
    html_report,
    simulate,
)
from flower_kmeans.algorithms.numerics.initialization import sphere_packing
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
)
from flower_kmeans.report.comparison import BEST, Comparison
from flower_kmeans.strategies import Lloyd, SynopsisKMeans

SQUARE = Box([-10.0, -10.0], [10.0, 10.0])


def result(centroids, domain=SQUARE, weights=None):
    centroids = np.asarray(centroids, float)
    return Clustering(centroids, np.ones(len(centroids)), domain, None, weights)


def blobs(k=5, d=2, n=500, spread=0.5, seed=0):
    """Return records around k places of [-8, 8]^d, and the places."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(-8, 8, (k, d))
    return places[rng.integers(0, k, n)] + rng.normal(0, spread, (n, d)), places


def reference(records, k):
    """Return the cost of scikit-learn's k-means, and of one cluster."""
    model = KMeans(k, n_init=10, random_state=0).fit(records)
    return model.inertia_, ((records - records.mean(axis=0)) ** 2).sum()


class TestWords:
    @pytest.mark.claim("reading-a-report", "verdict-thresholds")
    @pytest.mark.parametrize(
        ("lost", "verdict"),
        [
            (-0.01, "as good as without privacy"),
            (0.05, "as good as without privacy"),
            (0.0501, "usable"),
            (0.25, "usable"),
            (0.2501, "mostly noise"),
            (0.999, "mostly noise"),
            (1.0, "worse than one cluster"),
            (30.0, "worse than one cluster"),
        ],
    )
    def test_the_lost_gain_decides_the_verdict(self, lost, verdict):
        # Costs that differ by 1, so that the lost gain is the given number.
        found = Comparison(3.0 + lost, 3.0, 4.0, 10)
        assert found.lost_gain == pytest.approx(lost, abs=1e-12)
        assert found.verdict == verdict

    def test_the_text_has_the_verdict_and_the_numbers(self):
        found = Comparison(104.0, 100.0, 293.0, 1_000)
        assert found.text == (
            "The clusters are as good as without privacy: cost 1.04 times k-means without "
            "privacy; one cluster is 2.93 times (lost gain 0.02: 0 is as k-means, 1 as one "
            "cluster)."
        )
        assert found.ratio == pytest.approx(1.04)
        assert found.one_cluster_ratio == pytest.approx(2.93)
        assert found.lost_gain == pytest.approx(4 / 193)
        assert "worse than one cluster of all records" in Comparison(9, 1, 8, 1).text
        assert "without bounds on sizes" in Comparison(2, 1, 8, 1, None, True).text
        assert "752 times" in Comparison(1, 1, 752, 1).text
        assert "(lost gain 0.00: " in Comparison(0.999_999, 1, 8, 1).text  # not -0.00

    @pytest.mark.claim("reading-a-report", "verdict-higher-cost")
    def test_a_small_lost_gain_at_a_higher_cost_is_usable_at_best(self):
        """Well separated groups: a cost of 3 times k-means is 0.004 of the gain."""
        found = Comparison(3.44, 1.0, 556.0, 1_000)
        assert found.verdict == "usable"
        assert found.text == (
            "The clusters are usable: cost 3.44 times k-means without privacy; one cluster "
            "is 556 times (lost gain 0.00: 0 is as k-means, 1 as one cluster)."
        )
        assert Comparison(1.25, 1.0, 80.0, 1_000).verdict == BEST
        assert Comparison(1.26, 1.0, 80.0, 1_000).verdict == "usable"
        equal = Comparison(0.01, 0.0, 1.0, 1_000)  # groups of equal records
        assert equal.verdict == BEST

    @pytest.mark.claim("reading-a-report", "verdict-unseen")
    def test_many_clusters_are_measured_against_centroids_that_saw_no_record(self):
        """One cluster is so bad that any hundred centroids keep 99 % of the gain."""
        found = Comparison(850.0, 100.0, 75_200.0, 1, unseen_cost=950.0)
        assert found.lost_gain < 0.01
        assert found.largest_lost_gain == pytest.approx(750 / 850)
        assert found.verdict == "mostly noise"
        assert found.text == (
            "The clusters are mostly noise: cost 8.50 times k-means without privacy; one "
            "cluster is 752 times (lost gain 0.01: 0 is as k-means, 1 as one cluster); "
            "centroids that saw no record are 9.50 times (lost gain 0.88)."
        )
        # Centroids that are worse than one cluster change nothing.
        other = Comparison(850.0, 100.0, 75_200.0, 1, unseen_cost=80_000.0)
        assert other.largest_lost_gain == other.lost_gain

    def test_values_are_plain_and_words_are_among_them(self):
        found = Comparison(104.0, 100.0, 293.0, 1_000)
        values = found.to_dict()
        assert values["cost"] == 104.0
        assert values["verdict"] == found.verdict
        assert values["text"] == found.text
        assert values["lost_gain"] == found.lost_gain
        assert {type(value) for value in values.values()} <= {
            float, int, str, bool, type(None),
        }  # fmt: skip


class TestPage:
    def test_the_page_shows_the_comparison_and_says_that_it_is_exact(self):
        run = finished("FastLloyd", "distributed-noise")
        found = Comparison(104.0, 100.0, 293.0, 1_000)
        section = read(html_report(run, comparison=found)).the("section", id="quality")
        assert found.text in section.text
        assert "exact" in section.text
        without = html_report(run)
        assert found.text not in without
        with pytest.raises(ConfigurationTypeError, match="comparison as a Comparison"):
            html_report(run, comparison=found.to_dict())


class TestCosts:
    @pytest.mark.parametrize(
        ("k", "d", "n"), [(2, 1, 50), (5, 2, 500), (12, 3, 3000), (4, 30, 400)]
    )
    def test_k_means_is_as_good_as_that_of_scikit_learn(self, k, d, n):
        records, _ = blobs(k, d, n, spread=1.5, seed=k)
        box = Box([-20.0] * d, [20.0] * d)
        best, one = reference(records / 20, k)
        found = result(records[:k], box).compare(records)
        assert found.kmeans_cost <= 1.01 * best
        assert found.kmeans_cost >= 0.97 * best
        assert found.one_cluster_cost == pytest.approx(one)
        assert found.cost == pytest.approx(result(records[:k], box).cost(records))
        assert found.n_records == n

    def test_costs_are_in_the_space_that_was_clustered(self):
        records, _ = blobs(3, 2, 300)
        box = Box([-10.0, -1000.0], [10.0, 1000.0], weights=[1.0, 0.5])
        wide = records * [1, 100]
        best, one = reference(records / 10 * [1, 0.5], 3)
        found = result(wide[:3], box).compare(wide)
        assert found.kmeans_cost == pytest.approx(best, rel=1e-2)
        assert found.one_cluster_cost == pytest.approx(one)

    def test_nothing_is_clipped(self):
        """A record outside of the bounds counts as it is, in all costs."""
        records, places = blobs(3, 2, 300)
        far = np.vstack([records, [[1000.0, 0.0]]])
        found = result(places).compare(far)
        best, one = reference(far / 10, 3)
        assert found.one_cluster_cost == pytest.approx(one)
        assert found.kmeans_cost == pytest.approx(best, rel=1e-2)
        assert found.cost > 90**2

    @pytest.mark.claim("reading-a-report", "verdict-of-moved-records")
    @pytest.mark.parametrize("domain", [SQUARE, Ball(20.0, [0.0, 0.0])])
    def test_records_outside_are_also_compared_as_the_run_moved_them(self, domain):
        """One record far away decides all costs; the clusters are good all the same."""
        records, places = blobs(3, 2, 300)
        far = np.vstack([records, [[1e9, 0.0]]])
        found = result(places, domain).compare(far)
        assert found.verdict == "worse than one cluster"
        assert found.n_outside == 1
        edge = [[10.0 if domain is SQUARE else 20.0, 0.0]]
        inside = result(places, domain).compare(np.vstack([records, edge]))
        assert found.within.cost == pytest.approx(inside.cost)
        assert found.within.kmeans_cost == pytest.approx(inside.kmeans_cost)
        assert inside.n_outside == 0
        assert inside.within is None
        sentence = (
            "1 of 301 records lie outside the bounds, and the run moved them there. With the "
            f"moved records, the clusters are {found.within.verdict}: cost "
        )
        assert sentence in found.text
        assert found.to_dict()["within"]["cost"] == found.within.cost

    def test_records_outside_have_one_sentence_if_both_verdicts_are_equal(self):
        records, places = blobs(3, 2, 300)
        good = result(places).compare(np.vstack([records, [[10.1, 0.0]]]))
        assert (good.n_outside, good.within) == (1, None)
        bad = result(places * [1, -1]).compare(np.vstack([records, [[10.1, 0.0]]]))
        assert bad.within.verdict == bad.verdict
        assert "outside" not in good.text + bad.text

    def test_records_whose_costs_overflow_are_refused(self):
        records, places = blobs(3, 2, 300)
        with pytest.raises(DataError, match=r"within 1e\+100 half widths .* row 300"):
            result(places).compare(np.vstack([records, [[0.0, 1e160]]]))

    @pytest.mark.claim("own-data", "compare-exact")
    def test_the_same_seed_gives_the_same_numbers(self):
        records, places = blobs(8, 2, 2000, spread=3.0)
        one = result(places).compare(records)
        assert one == result(places).compare(records)
        assert one.kmeans_cost == pytest.approx(
            result(places).compare(records, seed=5).kmeans_cost, rel=0.02
        )

    def test_many_records_are_fitted_by_a_sample_and_counted_all(self, monkeypatch):
        module = "flower_kmeans.report.comparison"
        monkeypatch.setattr(f"{module}._START_RECORDS", 200)
        monkeypatch.setattr(f"{module}._STEP_RECORDS", 1000)
        records, places = blobs(5, 2, 20_000, spread=1.0)
        found = result(places).compare(records)
        best, one = reference(records / 10, 5)
        assert best * 0.999 <= found.kmeans_cost <= 1.02 * best
        assert found.one_cluster_cost == pytest.approx(one)

    def test_directions_are_compared_as_directions(self):
        rng = np.random.default_rng(0)
        axes = np.eye(4)[rng.integers(0, 3, 300)] + rng.normal(0, 0.1, (300, 4))
        lengths = rng.uniform(1, 1000, (300, 1))
        found = result(np.eye(4)[:3], Sphere(4)).compare(axes * lengths)
        unit = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        best, _ = reference(unit, 3)
        # Means of k-means lie inside of the sphere, those of directions on it.
        assert best < found.kmeans_cost < 1.05 * best
        mean = unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
        assert found.one_cluster_cost == pytest.approx(((unit - mean) ** 2).sum())
        assert found.verdict == "as good as without privacy"
        with pytest.raises(DataError, match="length zero"):
            result(np.eye(4)[:3], Sphere(4)).compare(np.zeros((3, 4)))

    def test_a_ball_is_scaled_by_its_radius(self):
        records, places = blobs(3, 2, 300)
        best, one = reference(records / 12, 3)
        found = result(places, Ball(12.0, [1.0, 1.0])).compare(records)
        assert found.kmeans_cost == pytest.approx(best, rel=1e-2)
        assert found.one_cluster_cost == pytest.approx(one)

    def test_categories_and_dates_are_columns_of_records(self):
        domain = TableDomain(
            [
                Number("age", 0, 100),
                Category("ward", ("A", "B")),
                Date("day", date(2024, 1, 1), date(2024, 12, 31)),
            ]
        )
        rng = np.random.default_rng(0)
        ward = rng.integers(0, 2, 400)
        table = {
            "age": (30 + 40 * ward + rng.normal(0, 2, 400)).astype(str),
            "ward": np.array(["A", "B"])[ward],
            "day": np.array(["2024-03-01", "2024-10-01"])[ward],
        }
        records = domain.encode(table)
        centroids = [records[ward == i].mean(axis=0) for i in (0, 1)]
        found = result(centroids, domain).compare(records)
        best, one = reference(domain.scaled(records), 2)
        assert found.kmeans_cost == pytest.approx(best)
        assert found.one_cluster_cost == pytest.approx(one)
        assert found.verdict == "as good as without privacy"

    def test_names_of_columns_decide_which_is_which(self):
        records, places = blobs(3, 2, 300)
        named = Box([-10, -20], [10, 20], columns=["x", "y"])
        table = pd.DataFrame(records, columns=["x", "y"])
        found = result(places, named).compare(table[["y", "x"]])
        assert found == result(places, named).compare(records)

    def test_weights_of_a_power_diagram_are_part_of_the_result_alone(self):
        records, places = blobs(3, 2, 300)
        weights = np.array([400.0, 0.0, 0.0])  # the first cluster takes most records
        plain = result(places).compare(records)
        found = result(places, weights=weights).compare(records)
        assert found.cost == pytest.approx(
            result(places, weights=weights).cost(records)
        )
        assert found.cost > 2 * plain.cost
        assert found.kmeans_cost == plain.kmeans_cost
        assert found.has_bounds
        assert "without bounds on sizes" in found.text


class TestWeightsOfRecords:
    def test_a_weight_counts_as_often_as_it_says(self):
        records, places = blobs(3, 2, 300, spread=2.0)
        halves = np.repeat([1.0, 0.5], 150)
        found = result(places).compare(records, weights=halves)
        doubled = np.vstack([records, records[:150]])
        twice = result(places).compare(doubled)
        assert 2 * found.cost == pytest.approx(twice.cost)
        assert 2 * found.one_cluster_cost == pytest.approx(twice.one_cluster_cost)
        assert 2 * found.kmeans_cost == pytest.approx(twice.kmeans_cost, rel=0.02)
        assert found.n_records == 300

    def test_records_without_weight_change_nothing(self):
        records, places = blobs(3, 2, 300)
        more = np.vstack([records, np.full((10, 2), 1e6)])
        weights = np.repeat([1.0, 0.0], [300, 10])
        found = result(places).compare(more, weights=weights)
        assert found.cost == result(places).compare(records).cost
        with pytest.raises(DataError, match="weight above 0"):
            result(places).compare(records, weights=np.zeros(300))

    @pytest.mark.claim("own-data", "compare-persons")
    def test_each_person_weighs_the_same(self):
        records, places = blobs(3, 2, 200)
        ids = [f"p{i}" for i in range(200)]
        repeated = np.vstack([records, np.repeat(records[:1], 99, axis=0)])
        found = result(places).compare(repeated, persons=[*ids, *["p0"] * 99])
        plain = result(places).compare(records, persons=ids)
        assert found.cost == pytest.approx(plain.cost)
        assert found.one_cluster_cost == pytest.approx(plain.one_cluster_cost)
        # Each record without an id is one person.
        unknown = result(places).compare(repeated, persons=[None] * 299)
        assert unknown == result(places).compare(repeated)


class TestDegenerate:
    def test_no_record(self):
        with pytest.raises(DataError, match="at least one record"):
            result([[0.0, 0.0]]).compare(np.empty((0, 2)))

    def test_one_cluster_of_one(self):
        records, _ = blobs(3, 2, 300)
        mean = records.mean(axis=0)
        found = result([mean]).compare(records)
        assert not found.has_gain
        assert found.lost_gain == pytest.approx(0, abs=1e-9)
        assert found.verdict == "as good as without privacy"
        assert "gains nothing over one cluster" in found.text
        moved = result([mean + 20.0]).compare(records)
        assert moved.lost_gain == pytest.approx(moved.ratio - 1)
        assert moved.verdict == "worse than one cluster"

    def test_equal_records(self):
        records = np.full((50, 2), 3.0)
        found = result([[3.0, 3.0], [9.0, 9.0]]).compare(records)
        assert (found.cost, found.kmeans_cost, found.one_cluster_cost) == (0, 0, 0)
        assert found.ratio == found.one_cluster_ratio == 1
        assert found.verdict == "as good as without privacy"
        assert found.text.endswith(
            "all records are equal, up to the rounding of a run."
        )
        off = result([[3.5, 3.0], [9.0, 9.0]]).compare(records)
        assert off.ratio == off.lost_gain == np.inf
        assert off.verdict == "worse than one cluster"
        # The rounding of a run's grid is no cost.
        near = result([[3.0 + 10 * 2**-17, 3.0]]).compare(records)
        assert near.cost == 0

    def test_as_many_clusters_as_different_records(self):
        records = np.repeat([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], 20, axis=0)
        for k in (3, 7):
            places = np.resize([[0.1, 0.0], [5.0, 0.1], [0.0, 5.0]], (k, 2))
            found = result(places).compare(records)
            assert found.kmeans_cost == 0
            assert found.ratio == np.inf
            assert found.lost_gain == pytest.approx(found.cost / found.one_cluster_cost)
            assert found.verdict == "as good as without privacy"
            assert "groups of equal records" in found.text

    def test_fewer_records_than_clusters(self):
        found = result(np.eye(2).repeat(5, axis=0)).compare([[1.0, 0.0], [0.0, 1.0]])
        assert found.kmeans_cost == 0
        assert found.n_records == 2

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"persons": ["a"]}, DataError),
            ({"persons": "abc"}, ConfigurationTypeError),
            ({"weights": [1.0]}, DataError),
            ({"weights": [1.0, 1.0, 2.0]}, DataError),
            ({"seed": -1}, ConfigurationError),
            ({"seed": 0.5}, ConfigurationTypeError),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options, error):
        with pytest.raises(error):
            result([[0.0, 0.0]]).compare(np.ones((3, 2)), **options)


class TestVerdicts:
    """The thresholds separate centroids that saw no record from those of good runs."""

    @pytest.mark.claim("reading-a-report", "verdict-thresholds")
    @pytest.mark.default_cases("values")
    @pytest.mark.parametrize(
        "k", [2, 5, 10, pytest.param(40, marks=pytest.mark.thorough)]
    )
    @pytest.mark.parametrize("d", [2, 5])
    def test_centroids_without_records_are_never_usable(self, k, d):
        records, _ = blobs(k, d, 2000, spread=1.0, seed=k)
        box = Box([-10.0] * d, [10.0] * d)
        for seed in range(20, 25):
            packed = sphere_packing(k, np.full(d, 2**16), seed) * 10 / 2**16
            random = np.random.default_rng(seed).uniform(-10, 10, (k, d))
            for centroids in (packed, random):
                found = result(centroids, box).compare(records)
                assert found.verdict in ("mostly noise", "worse than one cluster")

    def test_a_private_run_with_much_budget_is_good_and_one_with_little_is_not(self):
        records, _ = blobs(4, 3, 1500, spread=0.7, seed=3)
        box = Box([-10.0] * 3, [10.0] * 3)
        parts = np.array_split(records, 3)
        verdicts = []
        for epsilon in (20.0, 0.005):
            strategy = SynopsisKMeans(
                4,
                box,
                PrivacyBudget(epsilon, 1e-6),
                n_records=1500,
                n_clients=3,
                seed=1,
            )
            verdicts.append(simulate(strategy, parts).compare(records).verdict)
        assert verdicts[0] == "as good as without privacy"
        assert verdicts[1] in ("mostly noise", "worse than one cluster")

    def test_a_run_without_privacy_is_as_good_as_without_privacy(self):
        records, places = blobs(4, 3, 1500, spread=0.7, seed=3)
        box = Box([-10.0] * 3, [10.0] * 3)
        strategy = Lloyd(4, box, initial=places, n_rounds=10)
        found = simulate(strategy, [records]).compare(records)
        assert found.verdict == "as good as without privacy"
        assert found.ratio == pytest.approx(1.0, abs=0.01)

    @pytest.mark.claim("reading-a-report", "verdict-says-no-groups")
    def test_records_without_groups_can_have_good_clusters_and_a_silhouette(self):
        """Only the elbow says that there are none."""
        records = np.random.default_rng(3).random((3000, 4))
        box = Box([0.0] * 4, [1.0] * 4)
        best = KMeans(4, n_init=10, random_state=0).fit(records).cluster_centers_
        verdict = result(best, box).compare(records).verdict
        assert verdict == "as good as without privacy"
        strategy = SynopsisKMeans(
            4, box, PrivacyBudget(1.0), 3000, n_clients=3, quality=True
        )
        found = simulate(strategy, np.array_split(records, 3))
        silhouette = found.report.silhouette
        assert silhouette.value == pytest.approx(0.3, abs=0.1)
        assert found.synopsis.elbow(range(1, 7)).suggested == 1
