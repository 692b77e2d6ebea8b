"""Weights of columns, and categories: the box is a product of numbers and of levels."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from flower_kmeans import Box, TableDomain
from flower_kmeans.canonical import array_to_text
from flower_kmeans.data.domain import GridRecords, difference, domain_from_config
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.errors import ConfigurationError, KMeansError

pytestmark = pytest.mark.claim("guarantees", "44")

LOWER = [-1.0, 0.0, 10.0]
UPPER = [3.0, 0.5, 11.0]
# two numbers around a category of three levels
PRODUCT = Box(
    [-1, 0, 0, 0, 10],
    [3, 1, 1, 1, 11],
    weights=[1, 0.2, 0.2, 0.2, 0.7],
    categories=[(1, 4)],
)


def table(weights, levels, weight):
    """Return a box of numbers with these weights, and a category for each number of levels."""
    numbers = [Number(f"x{i}", 0, 1, weight=w) for i, w in enumerate(weights)]
    categories = [
        Category(f"c{i}", tuple(map(str, range(m))), weight=weight)
        for i, m in enumerate(levels)
    ]
    return TableDomain([*numbers, *categories])


def every_record(domain, q):
    """Return all grid points that records of the domain have, as integers, (n, d)."""
    widths = domain.grid_half_widths(q).tolist()
    axes = []
    place = 0
    while place < domain.n_features:
        block = dict(domain.categories).get(place)
        if block is None:
            points = np.arange(-widths[place], widths[place] + 1) / max(
                widths[place], 1
            )
            center = (domain.lower[place] + domain.upper[place]) / 2
            half = (domain.upper[place] - domain.lower[place]) / 2
            axes.append([(center + half * point,) for point in points])
            place += 1
        else:
            axes.append(list(map(tuple, np.eye(block - place))))
            place = block
    rows = [sum(parts, ()) for parts in itertools.product(*axes)]
    (grid,) = GridRecords(np.array(rows), domain, q).blocks(len(rows))
    assert (grid == np.rint(grid)).all()
    return grid.astype(np.int64)


# ------------------------------------------------------------------------------ norms


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("q", [1, 2, 3, 4])
@pytest.mark.parametrize("weights", [(), (1,), (1, 0.4)])
@pytest.mark.parametrize("levels", [(2,), (3,), (5, 2)])
@pytest.mark.parametrize("weight", [0.1, 0.5, 0.8])
def test_norms_are_those_of_the_largest_record(q, weights, levels, weight):
    """Neither norm is exceeded, and both are attained, on the coarser grid too."""
    domain = table(weights, levels, weight)
    grid = every_record(domain, q)
    for coarser in range(q + 1):
        cut = np.trunc(grid / 2**coarser).astype(np.int64)
        assert (cut**2).sum(axis=1).max() == domain.squared_bound(q, coarser)
    assert np.abs(grid).sum(axis=1).max() == domain.l1_bound(q)
    numerator, denominator = domain.l2_bound(q).as_integer_ratio()
    square = Fraction(numerator, denominator) ** 2
    assert 0 <= square - domain.squared_bound(q) < Fraction(1, 2**20)
    # every level has both norms of its category
    sizes = np.abs(grid[:, len(weights) :])
    assert len(set((sizes**2).sum(axis=1))) == len(set(sizes.sum(axis=1))) == 1


@pytest.mark.parametrize("weight", [0.05, 0.5, 0.7])
@pytest.mark.parametrize("m", [2, 3, 30])
def test_norms_are_those_of_the_formula(weight, m):
    domain = table((1, 0.3), (m,), weight)
    l2 = math.sqrt(1 + 0.09 + 2 * weight**2 * (1 - 1 / m))
    l1 = 1.3 + math.sqrt(2) * weight * (2 - 2 / m)
    assert domain.l2_bound(20) * 2.0**-20 == pytest.approx(l2, abs=1e-4)
    assert domain.l1_bound(20) * 2.0**-20 == pytest.approx(l1, abs=1e-4)
    # never above it: the levels are rounded toward zero
    assert domain.l1_bound(20) * 2.0**-20 <= l1 + 2.0**-20
    units = domain.scaled(np.eye(domain.n_features)[2:])
    assert np.linalg.norm(units[0] - units[1]) == pytest.approx(2 * weight)


@pytest.mark.parametrize("q", [3, 16, 25])
def test_whatever_a_block_holds_it_is_a_level(q):
    rng = np.random.default_rng(q)
    records = rng.normal(0, 2, (500, 5))
    records[:100, 1:4] = rng.integers(-1, 3, (100, 3))  # ties
    records[100:200] *= 1e290
    (grid,) = GridRecords(records, PRODUCT, q).blocks(500)
    np.testing.assert_array_equal(grid, PRODUCT.quantise(PRODUCT.to_unit(records), q))
    chosen = grid[:, 1:4].argmax(axis=1)
    np.testing.assert_array_equal(chosen, records[:, 1:4].argmax(axis=1))
    levels = np.eye(3)[chosen]
    exact = records.copy()
    exact[:, 1:4] = levels
    (again,) = GridRecords(exact, PRODUCT, q).blocks(500)
    np.testing.assert_array_equal(grid, again)
    distances = ((records[:100, None, 1:4] - np.eye(3)) ** 2).sum(axis=2)
    np.testing.assert_array_equal(chosen[:100], distances.argmin(axis=1))
    squares = [sum(int(v) ** 2 for v in row) for row in grid]
    assert max(squares) <= PRODUCT.squared_bound(q)


def test_the_compiled_kernel_sees_levels_too():
    """It reads tables of numbers by itself, so it must not read this one."""
    fused = pytest.importorskip("flower_kmeans.algorithms.numerics.fused")
    rng = np.random.default_rng(0)
    records = GridRecords(rng.normal(0, 2, (300, 5)), PRODUCT, 10)
    (block,) = records.blocks(300)
    (total,) = fused.second_moments(records, 10)(0, 300)
    np.testing.assert_array_equal(np.triu(total), np.triu(block.T @ block))


def test_values_that_are_no_level_are_counted():
    records = np.array([[0, 1, 0, 0, 10], [9, 0.5, 0.5, 0, 10], [0, 0, 0, 2, 9]])
    assert PRODUCT.outside(records).tolist() == [1, 1, 1, 1, 1]


def test_centroids_keep_their_shares_of_levels():
    points = np.array([[0, 0.2, 0.5, 0.3, 10], [7, -0.5, 0, 1.2, 10.5]])
    scaled = PRODUCT.place(points)
    back = PRODUCT.from_unit(scaled)
    np.testing.assert_allclose(
        back, [[0, 0.2, 0.5, 0.3, 10], [3, 0, 0, 1, 10.5]], atol=1e-12
    )
    low, high = PRODUCT.grid_bounds(16)
    grid = PRODUCT.quantise(scaled, 16)
    assert (low <= grid).all()
    assert (grid <= high).all()


# ---------------------------------------------------------------------------- weights


def test_a_scaled_half_width_is_the_weight():
    box = Box(LOWER, UPPER, weights=[1, 1, 0.3])
    np.testing.assert_array_equal(box.half_widths, [1, 1, 0.3])
    np.testing.assert_allclose(
        box.to_unit(np.array([UPPER])), [[1, 1, 0.3]], rtol=1e-15
    )
    np.testing.assert_allclose(box.unit, [2, 0.25, 0.5 / 0.3])
    assert box.common_unit is None


@pytest.mark.claim("own-data", "only-ratios-weights-count")
@pytest.mark.parametrize(
    ("weights", "expected"),
    [([2, 1, 4], [0.5, 0.25, 1]), ([1e-4, 1e-4, 5e-5], [1, 1, 0.5])],
)
def test_only_ratios_of_weights_count_beyond_the_unit_box(weights, expected):
    box = Box(LOWER, UPPER, weights=weights)
    np.testing.assert_allclose(box.half_widths, expected)
    assert box.weights == tuple(weights)


def test_a_category_never_leaves_the_unit_box():
    domain = table((1,), (30,), 1.0)
    assert domain.half_widths.max() == pytest.approx(1, rel=1e-15)
    assert domain.half_widths[0] < 0.9
    assert 2**25 - 1 <= domain.grid_half_widths(25).max() <= 2**25


@pytest.mark.parametrize("m", [2, 3, 30, 1000])
@pytest.mark.parametrize("weight", [5e-324, 1e-322, 1e-281, 1e-280, 1e-3, 1, 1e300])
def test_whatever_a_document_weighs_no_level_leaves_the_unit_box(m, weight):
    """Products of numbers below float64's normal range are rounded up by as much as 2."""
    config = Box([0] * m, [1] * m, weights=[0.7] * m, categories=[(0, m)]).to_config()
    config["weights"] = array_to_text(np.full(m, weight))
    if weight < 1e-280:
        with pytest.raises(ConfigurationError, match=r"column 0 .*too small"):
            domain_from_config(config)
        return
    domain = domain_from_config(config)
    assert 0 < domain.half_widths.max() <= 1 + 2.0**-50
    assert domain.grid_half_widths(25).max() <= 2**25


def test_weights_of_one_leave_a_box_as_it_was():
    plain = Box(LOWER, UPPER)
    named = Box(LOWER, UPPER, weights=[1, 1, 1])
    assert plain == named
    assert plain.to_config() == named.to_config()
    assert "weights" not in plain.to_config()
    assert not plain.is_weighted


@pytest.mark.parametrize(
    "domain",
    [
        Box(LOWER, UPPER, weights=[1, 0.5, 0.1]),
        PRODUCT,
        table((1, 0.5), (3, 2), 0.5),
        table((1,), (2,), 0.1),
    ],
)
def test_documents_carry_weights_and_categories(domain):
    config = json.loads(json.dumps(domain.to_config()))
    again = domain_from_config(config)
    assert again.to_config() == config
    assert difference(again, domain) is None
    assert (again.weights, again.categories) == (domain.weights, domain.categories)
    np.testing.assert_array_equal(again.half_widths, domain.half_widths)


def test_the_first_difference_is_the_weight():
    box = Box(LOWER, UPPER)
    other = Box(LOWER, UPPER, weights=[1, 0.5, 1])
    assert difference(box, other) == ("weight of column 1", 1, 0.5)
    one = table((1,), (2, 2), 0.5)
    two = table((1,), (4,), 0.5)
    found = ("columns of categories", ((1, 3), (3, 5)), ((1, 5),))
    assert difference(one, two) == found


@pytest.mark.parametrize(
    "change",
    [
        {"weights": Box([0] * 5, [1] * 5).to_config()["lower"]},  # zeros
        {"weights": "AAAA"},
        {"weights": None},
        {"categories": []},
        {"categories": None},
        {"categories": "13"},
        {"categories": [[1, 2]]},
        {"categories": [[1, 9]]},
        {"categories": [[3, 1]]},
        {"categories": [[0, 3]]},  # other bounds
        {"categories": [[1, 4], [1, 4]]},
        {"categories": [[1.0, 4.0]]},
        {"categories": [[True, 4]]},
        {"categories": [[1, 3, 4]]},
        {"categories": [1, 4]},
        {"scale": "common"},
    ],
)
def test_malformed_documents_are_refused(change):
    config = PRODUCT.to_config()
    assert domain_from_config(config) == PRODUCT
    with pytest.raises(KMeansError):
        domain_from_config(config | change)


def test_default_weights_have_no_second_document():
    config = Box([0], [1]).to_config()
    weights = replace(PRODUCT, weights=None).to_config()
    assert "weights" not in weights
    ones = Box([1.0], [2.0]).to_config()["lower"]
    with pytest.raises(ConfigurationError, match="default"):
        domain_from_config(config | {"weights": ones})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 1], "one number for each of 3 columns. Got 2"),
        ([1, 0, 1], "weight of column 1 as positive and finite. Got 0.0"),
        ([1, -1, 1], "column 1 as positive"),
        ([1, 1, math.nan], "weights to be finite"),
        ([1, 1, math.inf], "weights to be finite"),
        (["a", 1, 1], "weights as an array of real numbers"),
        ([1, 1e-290, 1], "too small"),
        ([1, 5e-324, 1], "weight of column 1 as at least 1e-280"),
        ([1e300, 1e-280, 1], "too small"),
        (0.5, "one number for each column"),
    ],
)
def test_weights_that_are_none_are_named(weights, message):
    with pytest.raises(KMeansError, match=message):
        Box(LOWER, UPPER, weights=weights)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (0, "positive and finite"),
        (10**400, "positive and finite"),
        (5e-324, "too small"),
        (True, "as a number. Got bool"),
        ("1", "as a number. Got str"),
        (np.complex128(1), "as a number. Got complex128"),
    ],
)
def test_a_weight_by_name_that_is_none_is_named(weight, message):
    for domain in (Box([0, 0], [1, 1], columns=["age", "b"]), table((1,), (), 1)):
        name = domain.factors()[0].name
        with pytest.raises(KMeansError, match=f"column '{name}' .*{message}"):
            domain.weighted({name: weight})


def test_categories_that_are_no_sequence_are_refused():
    for categories in (None, 5, {0: 2}):
        with pytest.raises(KMeansError, match="categories as a sequence of pairs"):
            Box([0, 0], [1, 1], categories=categories)


def test_a_common_scale_has_no_weights():
    with pytest.raises(ConfigurationError, match=r"weights.*scale='common'"):
        Box(LOWER, UPPER, scale="common", weights=[1, 1, 1])
    with pytest.raises(ConfigurationError, match=r"categories.*scale='common'"):
        Box([0, 0], [1, 1], scale="common", categories=[(0, 2)])


def test_a_category_has_one_weight():
    with pytest.raises(ConfigurationError, match="equal weights in the columns 1 to 3"):
        replace(PRODUCT, weights=[1, 0.5, 0.5, 0.4, 1])


# -------------------------------------------------------------------------- parts


def test_a_part_has_whole_categories():
    part = PRODUCT.part(slice(1, 5))
    assert part.categories == ((0, 3),)
    assert part.weights == (0.2, 0.2, 0.2, 0.7)
    assert PRODUCT.part(slice(4, 5)) == Box([10], [11], weights=[0.7])
    for own in (slice(0, 2), slice(2, 5)):
        with pytest.raises(ConfigurationError, match="whole categories"):
            PRODUCT.part(own)


# ------------------------------------------------------------------------ declarations


def test_declarations_carry_weights():
    domain = TableDomain(
        [
            Number("age", 0, 120, weight=0.9),
            Category("ward", ("A", "B"), weight=0.2),
            Date("since", "2020-01-01", "2021-01-01", weight=2),
        ]
    )
    assert domain.weights == (0.9, 0.2, 0.2, 2)
    assert TableDomain.from_toml(domain.to_toml()) == domain
    assert [line.rpartition(", ")[2] for line in domain.describe()] == [
        "weight 0.9", "weight 0.2", "weight 2",
    ]  # fmt: skip
    usual = TableDomain([Number("age", 0, 120), Category("ward", ("A", "B"))])
    assert usual.weights == (1, 0.5, 0.5)
    assert "weight" not in usual.to_toml()
    assert "weight" not in "".join(usual.describe())
    assert usual.digest != domain.digest


@pytest.mark.parametrize("weight", ["0", "-1", "inf", "nan"])
def test_a_weight_that_is_none_is_named_with_its_line(weight):
    text = f"""[[columns]]
kind = "number"
name = "age"
lower = 0
upper = 120
weight = {weight}
"""
    with pytest.raises(
        ConfigurationError, match=r"Line 6, column 'age', key 'weight': .*positive"
    ):
        TableDomain.from_toml(text)
    with pytest.raises(ConfigurationError, match="number without quotes"):
        TableDomain.from_toml(text.replace(f"weight = {weight}", 'weight = "1"'))
