"""Public bounds, the grid, and records as users hand them over."""

import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.data.domain import (
    Ball,
    Box,
    GridRecords,
    difference,
    domain_from_config,
    row_sums,
)
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    KMeansError,
)
from flower_kmeans.protocol.wire import decode, encode

pytestmark = pytest.mark.claim("guarantees", "7")

BOX = Box([-1.0, 0.0, 10.0], [3.0, 0.5, 11.0])
COMMON = Box([-1.0, 0.0, 10.0], [3.0, 0.5, 11.0], scale="common")
BALL = Ball(2.5, [1.0, -2.0, 300.0])
WEIGHTED = replace(BOX, weights=[1, 0.3, 0.25])
DOMAINS = [BOX, COMMON, BALL, WEIGHTED]
NO_VECTORS = [([], []), (0, 1), ([[0]], [[1]])]
NO_RADIUS = [0, -1, math.nan, math.inf, "1", True]
NO_BITS = [0, 26, 16.0, True]


@st.composite
def domains_and_records(draw):
    d = draw(st.integers(1, 9))
    finite = st.floats(-1e6, 1e6)
    bounds = st.lists(finite, min_size=d, max_size=d)
    if draw(st.booleans()):
        lower = draw(bounds)
        widths = draw(st.lists(st.floats(1e-3, 1e6), min_size=d, max_size=d))
        upper = [a + w for a, w in zip(lower, widths, strict=True)]
        domain = Box(lower, upper, draw(st.sampled_from(["column", "common"])))
        weights = st.lists(st.floats(1e-2, 1e2), min_size=d, max_size=d)
        if domain.scale == "column" and draw(st.booleans()):
            domain = replace(domain, weights=draw(weights))
    else:
        domain = Ball(draw(st.floats(1e-3, 1e6)), draw(bounds))
    # Any finite record, and some around the bounds.
    wild = st.floats(allow_nan=False, allow_infinity=False)
    unit = np.array(
        draw(st.lists(st.lists(st.floats(-2, 2), min_size=d, max_size=d), max_size=4))
    )
    rows = draw(st.lists(st.lists(wild, min_size=d, max_size=d), max_size=4))
    close = domain.from_unit(unit.reshape(-1, d))
    return domain, np.vstack([np.array(rows).reshape(-1, d), close])


class TestDomains:
    @given(domains_and_records(), st.integers(1, 25))
    @settings(max_examples=200, deadline=None)
    def test_every_record_lands_within_the_declared_bounds(self, case, q):
        domain, records = case
        unit = domain.to_unit(records)
        assert (np.abs(unit) <= domain.half_widths).all()
        grid = domain.quantise(unit, q)
        assert (np.rint(grid) == grid).all()
        assert (np.abs(grid) <= domain.grid_half_widths(q)).all()
        for row in grid:
            exact = [int(v) for v in row]
            assert sum(map(abs, exact)) <= domain.l1_bound(q)
            numerator, denominator = domain.l2_bound(q).as_integer_ratio()
            assert sum(v * v for v in exact) * denominator**2 <= numerator**2

    @given(domains_and_records(), st.integers(1, 25), st.integers(1, 5))
    @settings(max_examples=150, deadline=None)
    def test_a_record_maps_alike_alone_and_in_any_block(self, case, q, max_rows):
        domain, records = case
        whole = domain.quantise(domain.to_unit(records), q)
        streamed = GridRecords(records, domain, q)
        assert streamed.shape == records.shape
        blocks = list(streamed.blocks(max_rows))
        assert all(len(block) <= max_rows for block in blocks)
        np.testing.assert_array_equal(
            np.vstack([*blocks, np.empty((0, whole.shape[1]))]), whole
        )

    @pytest.mark.parametrize("domain", DOMAINS)
    def test_long_blocks_equal_single_rows(self, domain):
        # Long enough for every way in which NumPy may split a loop.
        records = domain.from_unit(np.random.default_rng(1).normal(0, 0.7, (6_001, 3)))
        streamed = GridRecords(records, domain, 16)
        (block,) = streamed.blocks(10_000)
        # Whole groups of rows, as a box reads them, and what is left.
        np.testing.assert_array_equal(
            np.vstack(list(streamed.blocks(4_096 // 3))), block
        )
        for i in (0, 1, 17, 4_095, 4_096, 5_999, 6_000):
            (alone,) = GridRecords(records[i : i + 1], domain, 16).blocks(1)
            np.testing.assert_array_equal(alone[0], block[i])

    @pytest.mark.parametrize("domain", DOMAINS)
    def test_users_units_and_back(self, domain):
        unit = np.random.default_rng(2).uniform(-0.5, 0.5, (50, 3)) * domain.half_widths
        np.testing.assert_allclose(
            domain.to_unit(domain.from_unit(unit)), unit, atol=1e-12
        )
        # no clipping on this way
        assert domain.from_unit(np.full((1, 3), 7.0)).max() > 5
        np.testing.assert_allclose(
            domain.scaled(domain.from_unit(np.full((1, 3), 7.0))), 7
        )
        ends = domain.from_unit(np.array([[0.0] * 3, [1.0] * 3]))
        np.testing.assert_allclose(domain.unit, ends[1] - ends[0])

    def test_column_scale_maps_bounds_to_one(self):
        corners = BOX.to_unit(np.array([BOX.lower, BOX.upper, [1.0, 0.25, 10.5]]))
        np.testing.assert_allclose(corners, [[-1] * 3, [1] * 3, [0] * 3], atol=1e-15)
        np.testing.assert_array_equal(BOX.half_widths, 1)
        np.testing.assert_array_equal(
            BOX.to_unit(np.array([[-1e308, 9e9, 10.75]])), [[-1, 1, 0.5]]
        )

    def test_common_scale_keeps_proportions(self):
        np.testing.assert_allclose(COMMON.half_widths, [1, 0.125, 0.25])
        points = np.array([[0.0, 0.1, 10.2], [2.0, 0.4, 10.9]])
        step = np.diff(COMMON.to_unit(points), axis=0)
        np.testing.assert_allclose(step * 2, np.diff(points, axis=0))

    def test_ball_moves_outliers_straight_to_the_sphere(self):
        center = np.array(BALL.center)
        direction = np.array([3.0, 4.0, 12.0]) / 13
        records = np.array([center + r * 2.5 * direction for r in (0, 0.3, 1.5, 1e9)])
        expected = [r * direction for r in (0, 0.3, 1, 1)]
        np.testing.assert_allclose(BALL.to_unit(records), expected, atol=1e-7)

    def test_box_rounds_to_the_nearest_and_ball_toward_zero(self):
        unit = np.array([[0.3, 0.7, -0.3], [-0.7, 0.0, 0.9]]) / 8
        np.testing.assert_array_equal(BOX.quantise(unit, 3), [[0, 1, 0], [-1, 0, 1]])
        np.testing.assert_array_equal(BALL.quantise(unit, 3), np.zeros((2, 3)))

    @pytest.mark.parametrize("q", [1, 16, 25])
    @pytest.mark.parametrize("domain", [BOX, COMMON])
    def test_bounds_of_a_box_are_attained_in_its_corner(self, domain, q):
        corner = domain.quantise(domain.to_unit(np.array([domain.upper])), q)[0]
        np.testing.assert_array_equal(corner, domain.grid_half_widths(q))
        assert domain.l1_bound(q) == corner.sum()
        assert domain.l2_bound(q) == pytest.approx(np.linalg.norm(corner), rel=1e-15)
        assert domain.grid_half_widths(q).dtype == np.int64

    @pytest.mark.parametrize("q", [1, 16, 25])
    def test_bounds_of_a_ball_are_attained(self, q):
        pole = BALL.quantise(np.array([[0.0, -1.0, 0.0]]), q)[0]
        assert np.linalg.norm(pole) == BALL.l2_bound(q) == 2**q
        square = Ball(1, np.zeros(4))
        even = square.quantise(np.full((1, 4), 0.5), q)[0]
        assert np.abs(even).sum() == square.l1_bound(q) == 2 ** (q + 1)

    @pytest.mark.parametrize("d", [2, 3, 10, 1_000])
    def test_no_vector_of_the_sphere_is_quantised_outside(self, d):
        # Also those that roundings have made a little too long.
        rng = np.random.default_rng(d)
        unit = rng.normal(size=(300, d))
        unit /= np.linalg.norm(unit, axis=1)[:, None]
        unit[::2] *= 1 + 1e-7
        unit[0] = 0
        unit[0, 0] = 1 + 2.0**-20
        grid = Ball(1, np.zeros(d)).quantise(unit, 20)
        assert max(sum(int(v) ** 2 for v in row) for row in grid) <= 4**20
        assert grid[0, 0] >= 2**20 - 1

    @pytest.mark.parametrize("domain", DOMAINS)
    @pytest.mark.parametrize("names", [None, ("c 0", "c 1", "c 2")])
    def test_equal_domains_compare_hash_and_travel(self, domain, names):
        named = replace(domain, columns=names)
        config = decode(encode(named.to_config()), dict[str, Any])
        # Documents without names hash as they did.
        assert config == domain.to_config() | (
            {"columns": list(names)} if names else {}
        )
        again = domain_from_config(config)
        assert (again, hash(again), again.to_config()) == (named, hash(named), config)
        assert pickle.loads(pickle.dumps(named)) == named  # noqa: S301
        assert again not in [other for other in DOMAINS if other is not domain]
        assert (named == domain) == (names is None)
        assert difference(named, domain) is None
        points = np.random.default_rng(0).uniform(-3, 3, (50, 3))
        np.testing.assert_array_equal(domain.to_unit(points), named.to_unit(points))

    @pytest.mark.parametrize(
        ("columns", "error"),
        [
            *(
                (wrong, ConfigurationTypeError)
                for wrong in ("abc", 5, {"a": 1, "b": 2, "c": 3})
            ),
            *((["a", "b", wrong], ConfigurationTypeError) for wrong in (3, None)),
            *(
                (["a", "b", wrong], ConfigurationError)
                for wrong in ("a", "", "c\n", "\ud800")
            ),
            *(
                (wrong, ConfigurationError)
                for wrong in (["a", "b"], ["a", "b", "c", "d"], [])
            ),
        ],
    )
    def test_names_that_are_none_are_refused(self, columns, error):
        for domain in (BOX, BALL):
            with pytest.raises(error, match="columns") as caught:
                replace(domain, columns=columns)
            assert "\n" not in str(caught.value)
            with pytest.raises(KMeansError):
                domain_from_config(domain.to_config() | {"columns": columns})

    @pytest.mark.parametrize(
        ("first", "second", "found"),
        [
            (Box([0], [1]), Ball(1, [0]), ("kind", "box", "ball")),
            (Box([0], [1]), Box([0, 0], [1, 1]), ("number of columns", 1, 2)),
            (Box([0], [1]), Box([0], [1], "common"), ("scale", "column", "common")),
            (
                Box([0, 0], [1, 1]),
                Box([0, 0], [1, 2]),
                ("bounds of column 1", (0, 1), (0, 2)),
            ),
            (Ball(1, [0, 0]), Ball(2, [0, 0]), ("radius", 1, 2)),
            (Ball(1, [0, 0]), Ball(1, [0, 3]), ("center in column 1", 0, 3)),
            (Ball(1, [0, 0]), Ball(1, [0, 0], ["x", "y"]), None),
        ],
    )
    def test_the_first_difference_is_named(self, first, second, found):
        assert difference(first, second) == found

    def test_zero_has_one_form(self):
        assert Box([-0.0], [1]).to_config() == Box([0], [1]).to_config()

    @pytest.mark.parametrize(
        ("domain", "change"),
        [
            *((BOX, {"name": name}) for name in ("cube", ["box"], "ball")),
            *((BOX, {"n_features": width}) for width in (2, 0, True, "3")),
            *((BOX, {"lower": bound}) for bound in ("AAAA", 3)),
            (BOX, {"upper": Box([0, 0, 0], [1, 1, 1]).to_config()["lower"]}),
            (Box([0], [1]), {"lower": "AAAAAAAAAAB="}),  # bits after the last byte
            (Box([0], [1]), {"lower": b"AAAAAAAAAAA="}),
            *((BOX, {"scale": scale}) for scale in ("row", 1)),
            *((BOX, more) for more in ({"more": 1}, {"columns": None})),
            *((BALL, {"radius": radius}) for radius in (1, "1.0", "inf", "-0x1.0p+0")),
        ],
    )
    def test_malformed_configurations_are_refused(self, domain, change):
        with pytest.raises(KMeansError):
            domain_from_config(domain.to_config() | change)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Box([0, 5], [1, 4]), r"Expected lower below upper.*column 1"),
            (lambda: Box([0], [0]), "Expected lower below upper"),
            (lambda: Box([0], [1, 2]), "Got 1 and 2"),
            (lambda: Box([0, np.nan], [1, 1]), "Expected lower to be finite.*column 1"),
            (lambda: Box([0], [np.inf]), "Expected upper to be finite"),
            *((lambda a=a, b=b: Box(a, b), "one number for") for a, b in NO_VECTORS),
            (
                lambda: Box([0], [1], scale="rows"),
                "Expected scale as 'column' or 'common'",
            ),
            *((lambda r=r: Ball(r, [0]), "Expected radius") for r in NO_RADIUS),
            (lambda: Ball(1, [np.nan]), "Expected center to be finite"),
            (lambda: Box(["a"], ["b"]), "real numbers"),
            *((lambda q=q: BOX.grid_half_widths(q), "fraction_bits") for q in NO_BITS),
        ],
    )
    def test_bad_parameters_are_named(self, make, message):
        with pytest.raises((ConfigurationError, ConfigurationTypeError), match=message):
            make()


class TestGridRecords:
    def test_from_grid_keeps_integers_in_blocks_of_the_callers_own(self):
        records = GridRecords.from_grid([[1, -2], [4, 0], [3, 3]], 2)
        first, second = records.blocks(2)
        assert [first.tolist(), second.tolist()] == [[[1, -2], [4, 0]], [[3, 3]]]
        first[:] = 0
        assert next(records.blocks(1)).tolist() == [[1, -2]]

    @pytest.mark.parametrize("grid", [[[0.5]], [1, 2], [[5]], [[-5]], [[np.nan]]])
    def test_from_grid_refuses_what_is_not_on_the_grid(self, grid):
        with pytest.raises(DataError):
            GridRecords.from_grid(grid, 2)

    def test_width_must_fit_the_domain(self):
        with pytest.raises(DataError, match=r"shape \(n, 3\)"):
            GridRecords(np.zeros((2, 4)), BOX, 16)


@pytest.mark.claim("guarantees", "8")
@pytest.mark.parametrize("d", [1, 2, 3, 7, 16, 100])
def test_around_the_sphere_a_record_is_cut_as_if_it_stood_alone(d):
    """Sums whose last bits may depend on the block decide nothing there."""
    rng = np.random.default_rng(d)
    directions = rng.normal(size=(500, d))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    offsets = rng.choice([-1e-8, -1e-15, 0, 2e-16, 1e-15, 1e-10, 1e-8], (500, 1))
    records = directions * (1 + offsets)
    ball = Ball(1.0, np.zeros(d))
    together = ball.to_unit(records)
    alone = np.concatenate([ball.to_unit(row[None]) for row in records])
    np.testing.assert_array_equal(together, alone)
    exact = [sum(Fraction(x) ** 2 for x in row.tolist()) for row in records]
    inside = np.array([square <= 1 - Fraction(1, 10**14) for square in exact])
    np.testing.assert_array_equal(together[inside], records[inside])
    assert (
        max(sum(Fraction(x) ** 2 for x in row.tolist()) for row in together) < 1 + 1e-14
    )


@pytest.mark.parametrize("d", [1, 3, 300])
def test_what_is_outside_is_counted_in_any_number_of_rows(d):
    rng = np.random.default_rng(d)
    rows = rng.normal(size=(70_000 // d + 500, d))
    box = Box(np.full(d, -0.5), np.full(d, 1.5))
    expected = np.count_nonzero((rows < -0.5) | (rows > 1.5), axis=0)
    np.testing.assert_array_equal(box.outside(rows), expected)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::3] *= rng.uniform(0.5, 1.5, (len(rows[::3]), 1))
    ball = Ball(1.0, np.zeros(d))
    is_outside = row_sums(rows**2) > 1
    # Some lie outside by the last bit only, which the fast sum does not decide.
    assert is_outside[1::3].any() or d == 1
    assert ball.outside(rows) == np.count_nonzero(is_outside)


def test_columns_have_one_unit_if_their_widths_are_meant_to_be_equal():
    lower = np.random.default_rng(0).uniform(-1e3, 1e3, 9)
    assert len(set((lower + 0.3) / 2 - lower / 2)) > 1  # rounded bounds
    assert Box(lower, lower + 0.3).common_unit == pytest.approx(0.15, rel=1e-9)
    assert Ball(3.0, lower).common_unit == 3.0
    assert COMMON.common_unit == 2.0  # half the longest side
    assert BOX.common_unit is Box([0, 0], [1, 1 + 1e-6]).common_unit is None


# ------------------------------------------------------------------ outer bounds

TIGHT = replace(BOX, tighten=0.1)
CUBE = replace(COMMON, tighten=0.25)


@pytest.mark.parametrize("box", [TIGHT, CUBE, replace(WEIGHTED, tighten=0.5)])
def test_a_box_with_tighten_survives_its_document(box):
    config = decode(encode(box.to_config()), dict[str, Any])
    again = domain_from_config(config)
    assert (again, again.tighten, hash(again)) == (box, box.tighten, hash(box))
    assert again.to_config() == config
    plain = box.tightened(None)
    assert config == plain.to_config() | {"tighten": config["tighten"]}
    assert plain != box
    assert difference(plain, box) == ("tighten", None, box.tighten)
    with pytest.raises(KMeansError):
        domain_from_config({**config, "tighten": 0.1})


@pytest.mark.parametrize(
    ("tighten", "error", "message"),
    [
        (0, ConfigurationError, "tighten between 0 and 1.*Got 0"),
        (1.0, ConfigurationError, "Got 1"),
        (-0.1, ConfigurationError, "Got -0.1"),
        (math.nan, ConfigurationError, "Got nan"),
        (True, ConfigurationTypeError, "tighten as a number.*Got bool"),
        ("0.1", ConfigurationTypeError, "Got str"),
    ],
)
def test_a_fraction_that_cannot_be_is_refused(tighten, error, message):
    with pytest.raises(error, match=message):
        Box([0], [1], tighten=tighten)


def test_bounds_too_near_for_ranges_and_categories_alone_are_refused():
    with pytest.raises(ConfigurationError, match=r"so far apart.*in column 1"):
        Box([0, 1e12], [1, 1e12 + 1], tighten=0.1)
    with pytest.raises(ConfigurationError, match="numbers or dates with tighten"):
        Box([0, 0], [1, 1], categories=[(0, 2)], tighten=0.1)


def test_with_one_scale_noise_is_planned_for_a_cube_and_records_keep_their_bounds():
    assert CUBE.half_widths.tolist() == [1, 1, 1]
    assert CUBE.unit.tolist() == COMMON.unit.tolist()
    assert CUBE.l2_bound(8) == pytest.approx(math.sqrt(3) * 256)
    records = np.random.default_rng(0).uniform(-9, 20, (500, 3))
    np.testing.assert_array_equal(CUBE.to_unit(records), COMMON.to_unit(records))
    for q in (3, 16):
        own = GridRecords(records, CUBE, q)
        plain = GridRecords(records, COMMON, q)
        np.testing.assert_array_equal(
            np.concatenate([*own.blocks(99)]), np.concatenate([*plain.blocks(99)])
        )
    # A centroid may be anywhere in the cube.
    (point,) = CUBE.from_unit(np.array([[1.0, -1.0, 1.0]]))
    np.testing.assert_allclose(CUBE.place(point[None]), [[1, -1, 1]])


@pytest.mark.parametrize("outer", [TIGHT, CUBE, replace(WEIGHTED, tighten=0.5)])
def test_a_box_within_ranges_keeps_the_half_widths(outer):
    lower, upper = [-0.5, 0.1, 10.2], [0.5, 0.2, 10.9]
    read = outer.read_within(lower, upper)
    np.testing.assert_array_equal(read.half_widths, outer.half_widths)
    result = outer.within(lower, upper)
    assert (result.lower, result.upper) == (tuple(lower), tuple(upper))
    assert result.tighten is None
    assert not result.is_cube
    assert (result.scale, result.weights) == (outer.scale, outer.weights)
    np.testing.assert_array_equal(read.unit, result.unit)
