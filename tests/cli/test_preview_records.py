"""Records on which a plan is tried: within the domain, in groups, or of a sample."""

import numpy as np
import pytest

from flower_kmeans import Ball, Box, Sphere
from flower_kmeans.cli.preview_records import (
    TIGHTENED,
    USUAL,
    MadeUp,
    Sample,
    plain,
    sample_of,
    tight,
    widened,
)
from flower_kmeans.data.table_domain import Category, Date, Number, TableDomain
from flower_kmeans.data.tables import Table
from flower_kmeans.errors import DataError

BOX = Box([0.0, -5.0], [10.0, 5.0])
# two numbers beside a category of three levels
MIXED = Box([0, 0, 0, 0, 10], [1, 1, 1, 1, 20], categories=[(0, 3)])


def table(records):
    return Table(np.asarray(records, dtype=float), ("x", "y"))


def test_numbers_fill_their_bounds_and_groups_are_apart():
    made = MadeUp(BOX, 4).draw(800, 40, seed=3)
    assert made.records.shape == (800, 2)
    assert made.points.shape == (40, 2)
    both = np.concatenate(made)
    np.testing.assert_allclose(both.min(axis=0), BOX.lower)
    np.testing.assert_allclose(both.max(axis=0), BOX.upper)
    again = MadeUp(BOX, 4).draw(800, 40, seed=3)
    np.testing.assert_array_equal(again.records, made.records)
    other = MadeUp(BOX, 4).draw(800, 40, seed=4)
    assert not np.array_equal(other.records, made.records)


def test_a_category_has_a_usual_level_in_each_group():
    one = MadeUp(MIXED, 1).draw(4000, 0, seed=1).records[:, :3]
    assert {*one.ravel()} == {0.0, 1.0}
    np.testing.assert_array_equal(one.sum(axis=1), 1.0)
    # Others have any level, the usual one among them.
    largest = one.mean(axis=0).max()
    assert USUAL < largest < 1
    assert one.mean(axis=0).min() > 0
    # Groups differ in their usual levels.
    three = MadeUp(MIXED, 3).draw(3000, 0, seed=1).records[:, :3]
    assert three.mean(axis=0).max() < 0.6
    numbers = MadeUp(MIXED, 3).draw(3000, 0, seed=1).records[:, 3:]
    np.testing.assert_allclose([numbers.min(), numbers.max()], [0, 20])


def test_categories_alone_are_made_up():
    box = Box([0, 0], [1, 1], categories=[(0, 2)])
    records = MadeUp(box, 2).draw(100, 0, seed=0).records
    np.testing.assert_array_equal(records.sum(axis=1), 1.0)
    assert MadeUp(box, 2).other_bounds() == []
    assert "numbers" not in MadeUp(box, 2).text


def test_records_fill_a_ball_and_have_directions():
    ball = Ball(3.0, [1.0, 2.0])
    records = MadeUp(ball, 3).draw(500, 0, seed=0).records
    lengths = np.linalg.norm(records - np.array(ball.center), axis=1)
    assert lengths.max() == pytest.approx(3.0)
    sphere = MadeUp(Sphere(5), 3)
    directions = sphere.draw(500, 0, seed=0).records
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)
    assert sphere.other_bounds() == []
    # A direction is about 30 degrees from that of its group, the only one here.
    alone = MadeUp(Sphere(50), 1).draw(2000, 0, seed=0).records
    middle = alone.mean(axis=0) / np.linalg.norm(alone.mean(axis=0))
    assert np.degrees(np.arccos(alone @ middle)).mean() == pytest.approx(30, abs=3)


def test_made_up_records_are_compared_with_wider_bounds_and_ranges_within():
    twice, ten, found = MadeUp(BOX, 3).other_bounds()
    assert twice.domain.lower == (-5.0, -10.0)
    assert ten.domain.upper == (55.0, 50.0)
    assert found.domain.lower == ten.domain.lower
    assert found.domain.tighten == 0.1
    assert found.tick == TIGHTENED
    assert not any(other.is_offer for other in (twice, ten, found))
    # A plan with ranges has them in wider bounds, too.
    with_ranges = MadeUp(BOX.tightened(0.2), 3).other_bounds()
    assert [other.domain.tighten for other in with_ranges] == [0.2, 0.2]


def test_a_sample_is_compared_with_its_own_bounds():
    sample = Sample(BOX, np.array([[1.0, 0.0], [2.0, 0.0], [1.5, 0.0]]))
    own, found, wide = sample.other_bounds()
    # The second number is the same in all records.
    assert own.domain.lower == (1.0, -5.0)
    assert own.domain.upper == (2.0, 5.0)
    assert own.domain == sample.judged
    assert found.domain == BOX.tightened(0.1)
    assert wide.domain == widened(BOX, 2)
    assert [other.is_offer for other in (own, found, wide)] == [True, True, False]
    drawn = sample.draw(500, 20, seed=0)
    assert {*drawn.records[:, 0], *drawn.points[:, 0]} == {1.0, 1.5, 2.0}
    assert "must be public" in sample.text


def test_bounds_of_categories_and_their_weights_stay():
    wide = widened(MIXED, 10)
    assert wide.lower[:3] == (0, 0, 0)
    assert wide.upper[:3] == (1, 1, 1)
    assert wide.categories == MIXED.categories
    assert wide.weights == MIXED.weights
    records = MadeUp(MIXED, 2).draw(50, 0, seed=0).records
    close = tight(MIXED, np.minimum(records, 15.0))
    assert close.upper[:3] == (1, 1, 1)
    assert close.upper[4] == 15.0
    assert tight(Ball(4.0, [0.0]), np.array([[1.0], [-2.0]])).radius == 2.0
    assert widened(Ball(4.0, [0.0]), 2).radius == 8.0


def test_a_plain_domain_has_neither_names_nor_declarations():
    columns = [
        Number("x", 1, 1000, scale="log", weight=0.5),
        Category("ward", ("A", "B")),
        Date("born", "1950-01-01", "2000-01-01"),
    ]
    domain = TableDomain(columns, persons=True)
    found = plain(domain, 0.1)
    assert type(found) is Box
    assert found.columns is None
    assert found.tighten == 0.1
    assert (found.lower, found.upper) == (domain.lower, domain.upper)
    assert found.weights == domain.weights
    assert plain(Sphere(2, ["x", "y"]), None) == Sphere(2)
    assert plain(Ball(2, [0], ["x"]), None) == Ball(2, [0])


def test_a_sample_needs_more_different_records_than_clusters():
    records = [[1.0, 0.0]] * 50 + [[2.0, 0.0]]
    assert len(sample_of(table(records), BOX, 1).records) == 51
    with pytest.raises(DataError, match="more than 2 different records"):
        sample_of(table(records), BOX, 2)
    # One without a direction counts as none.
    with pytest.raises(DataError, match="Got 1 instead"):
        sample_of(table([[0.0, 0.0], [1.0, 0.0]]), Sphere(2), 1)


def test_a_sample_says_which_bounds_cut_it():
    ball = Ball(1.0, [0.0, 0.0])
    inside = np.linspace(0, 0.9, 95)[:, None] * [1.0, 0.0]
    few = np.vstack([inside, [[5.0, 5.0]] * 5])
    assert sample_of(table(few), ball, 2).too_narrow == ()
    many = np.vstack([few, [[5.0, 5.0]]])
    assert sample_of(table(many), ball, 2).too_narrow == (
        "about 6 % of the records are outside the ball",
    )
    assert MadeUp(ball, 2).too_narrow == ()
