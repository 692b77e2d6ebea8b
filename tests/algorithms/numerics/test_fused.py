"""The compiled kernel answers as NumPy does, bit for bit."""

import hashlib
import sys
from functools import partial

import numpy as np
import pytest
from processors import printed

from flower_kmeans import threads
from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.algorithms.numerics.assignment import (
    assign,
    cluster_sums,
    vote_counts,
)
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.cost import squared_distances
from flower_kmeans.algorithms.numerics.projection import (
    ProjectedRecords,
    Projection,
    lifted_sums,
    second_moments,
)
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere

SHAPES = (
    (0, 2, 3), (1, 1, 1), (127, 3, 5), (128, 4, 8), (129, 5, 9), (1000, 17, 2), (3001, 64, 32),
    (777, 300, 7), (200, 30, 784), (600, 16, 24),
)  # fmt: skip
RNG = np.random.default_rng


def check(call):
    """Call with NumPy and with the kernel, compare what they return, and return it."""
    results = []
    for work in (np.inf, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(assignment, "_FUSED_WORK", work)
            found = call()
            results.append(found if isinstance(found, tuple) else (found,))
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
    return results[0]


def unit_box(d):
    return Box(-np.ones(d), np.ones(d))


def domain_of(kind, lower, upper):
    """Return a ball around ``lower``, a sphere, or a box with this scale."""
    if kind == "ball":
        return Ball(4.0, lower)
    if kind == "sphere":
        return Sphere(len(lower))
    return Box(lower, upper, kind)


def test_the_kernel_is_there():
    assert assignment._load_fused().__name__.endswith("fused")


def statistics_of(grid, centroids, radii, projected):
    """Return all statistics of records, some with a radius, some with weights of cells."""
    k, d = centroids.shape
    q, bits = min(grid.fraction_bits, 16), grid.fraction_bits
    weights = np.arange(k) * 4**bits // 7
    projection, matrix, centers = projected
    seen = ProjectedRecords(grid, projection, matrix)
    largest = d * 4**bits
    return (
        *cluster_sums(grid, centroids),
        *cluster_sums(grid, centroids, d * 4**bits),
        *cell_sums(grid, centroids, radii, q),
        *cell_sums(grid, centroids, radii, q, weighted=True),
        *cell_sums(grid, centroids, radii, q, weights=weights),
        *cluster_sums(seen, centers),
        *lifted_sums(grid, projection, matrix, centers),
        *lifted_sums(grid, projection, matrix, centers, 0.5),
        second_moments(grid),
        vote_counts(grid, [centroids.astype(float)], k),
        vote_counts(grid, np.array_split(centroids.astype(float), k), k),
        np.array([squared_distances(grid, centroids, largest)]),
        np.array([squared_distances(grid, centroids, largest, d * 4**bits)]),
    )


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("shape", [(1, 1, 1), (130, 3, 5), (700, 9, 8), (640, 20, 33)])
@pytest.mark.parametrize("bits", [4, 16, 19])
def test_a_record_counts_as_often_as_its_weight(shape, bits):
    """All statistics are those of records that are repeated."""
    (n, k, d), rng = shape, RNG([*shape, bits])
    centroids = rng.integers(-(2**bits), 2**bits, (k, d), endpoint=True)
    radii = rng.integers(1, 2**bits, k, endpoint=True)
    projection = Projection(Box(-np.ones(d), np.ones(d)), bits, min(d, 2))
    matrix = projection.matrix(rng.normal(size=(d, min(d, 2))))
    limit = projection.limit
    centers = rng.integers(-limit, limit, (k, min(d, 2)), endpoint=True)
    projected = projection, matrix, centers
    rows = rng.uniform(-1.2, 1.2, (n, d))
    times = rng.integers(0, 4, n)
    domain = unit_box(d)
    once = GridRecords(np.repeat(rows, times, axis=0), domain, bits)
    weighted = GridRecords(rows, domain, bits)
    weighted.weights = times.astype(float)
    expected = statistics_of(once, centroids, radii, projected)
    found = check(lambda: statistics_of(weighted, centroids, radii, projected))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)
    # The largest weight keeps all sums exact.
    weighted.weights = np.full(n, 4096.0)
    plain = GridRecords(rows, domain, bits)
    expected = statistics_of(plain, centroids, radii, projected)
    found = check(lambda: statistics_of(weighted, centroids, radii, projected))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, 4096 * other)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "bits",
    # Finer grids have wider integers, for which the kernel is compiled once more.
    [1, 16, 20, pytest.param(25, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("kind", ["column", "common", "ball", "sphere"])
def test_all_statistics_of_random_records(shape, bits, kind):
    (n, k, d), rng = shape, RNG([*shape, bits])
    if d * 4 ** (bits + 1) > 2**52:  # with weights, not exact in float64
        bits = 19
    lower = rng.normal(0, 3, d)
    domain = domain_of(kind, lower, lower + rng.uniform(1, 9, d))
    grid = GridRecords(rng.uniform(lower - 1, lower + 10, (n, d)), domain, bits)
    limit, one = domain.grid_half_widths(bits), 2**bits
    centroids = rng.integers(-limit, limit, (k, d), endpoint=True)
    for share in (None, 0, 0.02, 0.3, 2, 5):
        radius2 = None if share is None else int(share * d * 4**bits)
        check(lambda r=radius2: cluster_sums(grid, centroids, r))
    radii, q = rng.integers(1, one, k, endpoint=True), min(bits, 16)
    weights = rng.integers(-one, one, k) * rng.integers(0, one * d, k)
    check(lambda: cell_sums(grid, centroids, radii, q))
    check(lambda: cell_sums(grid, centroids, radii, q, weighted=True))
    check(lambda: cell_sums(grid, centroids, radii, q, weights=weights))
    check(lambda: second_moments(grid))
    candidates = centroids.astype(float)
    blocks = [block for block in np.array_split(candidates, 3) if len(block)]
    votes = check(lambda: vote_counts(grid, blocks, k))[0]
    np.testing.assert_array_equal(
        votes, check(lambda: vote_counts(grid, [candidates], k))[0]
    )
    missing = check(lambda: vote_counts(grid, blocks, k + 2))[0]
    np.testing.assert_array_equal(missing, [*votes, 0, 0])
    assert votes.sum() == n


@pytest.mark.default_cases("(30000, 9, 3)")
@pytest.mark.parametrize(
    "shape", [(9_000, 15, 64), (9_000, 40, 20), (30_000, 9, 3)], ids=str
)
def test_threads_that_share_the_rows_do_not_share_buffers(shape, monkeypatch):
    for module in (threads, assignment):
        monkeypatch.setattr(module, "blas_threads", lambda: 3)
    monkeypatch.setattr(threads, "_WORK_PER_THREAD", 1)
    for kind in ("column", "ball", "sphere"):
        test_all_statistics_of_random_records(shape, 16, kind)


@pytest.mark.parametrize("d", [1, 2, 3, 8, 9, 40])
def test_ties_and_the_edge_of_the_radius(d):
    """Lattices, where most records are as near to several centroids, and exactly at the radius."""
    rng = RNG(d)
    grid = rng.integers(-3, 4, (3_000, d)) * 2**13
    centroids = rng.integers(-3, 4, (40, d)) * 2**13
    centroids[20:] = centroids[:20]  # the second half never wins
    records = GridRecords(grid * 2.0**-16, unit_box(d), 16)
    d2 = ((grid[:, None] - centroids) ** 2).sum(axis=2).min(axis=1)
    seen = np.unique(d2)
    for edge in [*seen[:: max(1, len(seen) // 6)].tolist(), 0]:
        for radius2 in (int(edge) - 1, int(edge), int(edge) + 1):
            if radius2 >= 0:
                counts = check(lambda r=radius2: cluster_sums(records, centroids, r))[1]
                assert counts.sum() == (d2 <= radius2).sum()
                assert not counts[20:].any()
    assert not check(lambda: vote_counts(records, [centroids.astype(float)], 40))[0][
        20:
    ].any()
    check(lambda: cell_sums(records, centroids, np.full(40, 2**13), 16))


@pytest.mark.parametrize("d", [2, 7, 24, 784])
@pytest.mark.parametrize("gap", [0, 1, 2, 3])
def test_near_ties_that_float32_cannot_resolve(d, gap):
    """Two centroids of nearly the same distance, in the corners where float32 rounds most."""
    rng = RNG(d)
    grid = rng.choice([-65_536, -65_535, -65_534, 65_535, 65_536], (2_000, d))
    first = rng.choice([-65_536, 65_533], d)
    second = first.copy()
    second[rng.integers(0, d)] -= gap * np.sign(first[0])
    centroids = np.clip([first, second, -first, second[::-1]], -65_536, 65_536)
    records = GridRecords(grid * 2.0**-16, unit_box(d), 16)
    check(lambda: cluster_sums(records, centroids))
    check(lambda: cluster_sums(records, centroids[::-1].copy(), int(d * 2**33)))
    weights = np.array([0, 2 * gap - 1, 3, 0]) + d * 4**16
    check(lambda: cell_sums(records, centroids, np.full(4, 2**16), 16, weights=weights))


@pytest.mark.parametrize("d", [2, 24])
@pytest.mark.parametrize("every", [20, 100, 400])
def test_some_near_ties_among_other_records(d, every):
    """Few in a block are settled one by one, and more in a second pass."""
    rng = RNG(d)
    grid, centroids = (
        rng.integers(-60_000, 60_000, (2_000, d)),
        rng.integers(-2_000, 2_000, (8, d)),
    )
    centroids[1] = centroids[0] + 2 * rng.integers(-1, 2, d)
    # as near to the first as to the second
    grid[::every] = (centroids[0] + centroids[1]) // 2
    records = GridRecords(grid * 2.0**-16, unit_box(d), 16)
    swapped = centroids[[1, 0, *range(2, 8)]]
    found = [
        check(lambda c=c: cluster_sums(records, c))[1][0] for c in (centroids, swapped)
    ]
    assert min(found) >= len(grid[::every])  # the first of both has them
    check(lambda: cell_sums(records, centroids, np.full(8, 2**14), 16))


def test_halves_round_to_even_and_values_out_of_range_are_clipped():
    half = np.arange(-7_000, 7_000)[:, None] + np.array([0.5, 0.0, -0.5, 0.25])
    records = half * 2.0**-13
    records[::7] *= 1e6
    records[::11] = [1e300, -1e300, np.finfo(float).max, -0.0]
    centroids = RNG(0).integers(-8_192, 8_193, (9, 4))
    for box in (unit_box(4), Box([-1, -2, 0, -1], [1, 1, 1e-6, 1], "common")):
        check(lambda b=box: cluster_sums(GridRecords(records, b, 13), centroids))
        check(
            lambda b=box: cell_sums(
                GridRecords(records, b, 13), centroids, np.full(9, 99), 13
            )
        )


def test_kept_centroids_are_those_of_the_query():
    """The kernel keeps the last centroids for other clients."""
    rng = RNG(3)
    domain = Box(-np.ones(20), np.ones(20))
    rows = rng.uniform(-1, 1, (600, 20))
    centroids = rng.integers(-(2**12), 2**12, (4, 20))
    radii = np.full(4, 2**12)
    weights = np.array([0, 2**20, -(2**20), 5])
    for bits in (13, 12):
        grid = GridRecords(rows, domain, bits)
        check(partial(cluster_sums, grid, centroids))
        check(partial(cluster_sums, grid, centroids))
        check(partial(cell_sums, grid, centroids, radii, bits))
        check(partial(cell_sums, grid, centroids, radii, bits, weights=weights))
    before = check(partial(cluster_sums, grid, centroids))[1].copy()
    centroids[0] = 10**4  # in place
    after = check(partial(cluster_sums, grid, centroids))[1]
    assert before[0] > 0
    assert after[0] == 0


def records_where_lengths_round(n, d):
    """Return records, (n, d), of which many lie on spheres, lattices and axes, or far out."""
    rng = RNG(d)
    rows = rng.normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::3] *= rng.uniform(0.2, 1.5, (len(rows[::3]), 1))
    rows[1::9] = rng.integers(-3, 4, rows[1::9].shape) / 4
    rows[2::9] = 0
    rows[2::9, 0] = rng.choice([1, -1, 0.5, 2, 1e-30, -0.0], len(rows[2::9]))
    rows[4::27] *= 10.0 ** rng.integers(-37, 37, (len(rows[4::27]), 1))
    rows[5::27] = np.sign(rows[5::27]) / np.sqrt(d)
    rows[6::9] *= 1 + rng.uniform(-5e-10, 5e-10, (len(rows[6::9]), 1))
    rows[7::54] *= 1 + 2.0**-50
    return rows


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("d", [1, 3, 8, 9, 40, 384])
@pytest.mark.parametrize(
    "bits", [4, 16, 21, pytest.param(25, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_every_record_of_a_ball_or_sphere_has_the_same_grid_point(d, bits, kind):
    """The squared distance of each record to some point is compared."""
    fused = assignment._load_fused()
    rows = records_where_lengths_round(1_300, d)
    if kind == "float64":  # beyond the range of float32, and of squares
        rows[8::54] *= 1e290
        rows[9::54] *= 1e-290
    while d * 4 ** (bits + 1) > 2**53:
        bits -= 1
    point = RNG(bits).integers(1, 2**bits, (1, d), endpoint=True)
    balls = [Ball(1.0, np.zeros(d)), Ball(3.7, np.full(d, 0.3)), Ball(1e-270, rows[0])]
    balls.append(Ball(1e290, np.zeros(d)))
    for domain in (*balls, Sphere(d)):
        grid = GridRecords(rows.astype(kind), domain, bits)
        expected = np.concatenate([assign(part, point)[1] for part in grid.blocks(300)])
        ranges = fused.nearest(grid, point.astype(float), 0, len(rows))
        found = np.concatenate([d2[: own.stop - own.start] for own, _, d2 in ranges])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("domain", [Ball(1.0, np.zeros(300)), Sphere(300)])
def test_near_ties_of_short_records_that_float32_cannot_resolve(domain):
    """Each centroid has neighbours one step of the grid away."""
    rng = RNG(300)
    rows = rng.normal(size=(1_500, 300))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::5] = rows[0]
    grid = GridRecords(rows.astype(np.float32), domain, 16)
    first = (rows[:10] * 60_000).astype(np.int64)
    near = np.concatenate([first, first + rng.integers(-1, 2, first.shape)])
    check(lambda: cluster_sums(grid, near))
    check(lambda: cluster_sums(grid, near[::-1].copy(), 4**15))
    check(lambda: cluster_sums(grid, np.tile(near, (4, 1))))


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("d", [3, 12])
@pytest.mark.parametrize("kind", ["column", "common", "ball", "sphere"])
def test_float32_records_count_as_the_same_numbers_in_float64(d, kind):
    rng = RNG(d)
    lower, upper = rng.normal(0, 3, d), rng.normal(0, 3, d) + 9
    domain = domain_of(kind, lower, upper)
    short = rng.uniform(lower - 1, upper + 1, (2_000, d)).astype(np.float32)
    limit = domain.grid_half_widths(16)
    centroids = rng.integers(-limit, limit, (5, d), endpoint=True)
    grids = [GridRecords(table, domain, 16) for table in (short, short.astype(float))]
    found = [check(lambda r=grid: cluster_sums(r, centroids, 2**31)) for grid in grids]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert grids[0].table is short


@pytest.mark.parametrize("change", [{0: np.nan}, {1: 1}])
def test_the_comparison_can_fail(change, monkeypatch):
    """With no slack, float32 decides near ties; or the kernel adds one record too many."""
    fused = assignment._load_fused()
    if 0 in change:
        monkeypatch.setattr(fused, "_slack", lambda size, d: np.float32([-1e9, -1e9]))
    else:
        real = fused.cluster_sums

        def more(*args):
            def part(*rows):
                sums, counts = real(*args)(*rows)
                return sums, counts + 1

            return part

        monkeypatch.setattr(fused, "cluster_sums", more)
    with pytest.raises(AssertionError):
        test_near_ties_that_float32_cannot_resolve(24, 1)


CODE = """
import hashlib, itertools, numpy as np
from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere
from flower_kmeans.algorithms.numerics.cells import cell_sums
rng = np.random.default_rng(3)
assignment._FUSED_WORK = {work}
found = hashlib.sha256()
for d, kind in itertools.product((3, 20), ("box", "ball", "sphere")):
    domain = {{
        "box": Box(-np.ones(d), np.ones(d)), "ball": Ball(1.0, np.zeros(d)), "sphere": Sphere(d)
    }}[kind]
    grid = GridRecords(rng.uniform(-1, 1, (3000, d)), domain, 16)
    centroids = rng.integers(-2**16, 2**16, (9, d))
    for array in (*assignment.cluster_sums(grid, centroids, d * 4**15),
                  *cell_sums(grid, centroids, np.full(9, 2**15), 16, True)):
        found.update(array.tobytes())
print(found.hexdigest())
"""


@pytest.mark.thorough
def test_a_processor_without_wide_instructions_gives_the_same():
    generic = printed(CODE.format(work=0), {"NUMBA_CPU_NAME": "generic"})
    assert generic == printed(CODE.format(work="float('inf')"), {})
    assert len(generic) == 2 * hashlib.sha256().digest_size


LIMITS = """
from threadpoolctl import threadpool_info
from flower_kmeans import threads
threads.blas_threads()  # finds NumPy's library
from flower_kmeans.algorithms.numerics import fused
with threads.single_threaded_blas():
    print({found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"})
"""


def test_the_library_that_multiplies_for_the_kernel_has_one_thread_for_each_of_ours():
    assert printed(LIMITS, {"OPENBLAS_NUM_THREADS": "2"}) == "{1}"


def test_the_kernel_is_loaded_once_it_pays(monkeypatch):
    monkeypatch.setattr(assignment, "_work_so_far", 0.0)
    monkeypatch.setattr(assignment, "_FUSED_WORK", 100)
    assert assignment.fused_kernel(50, 3) is None
    assert assignment.fused_kernel(50, 3) is not None
    assert assignment.fused_kernel(1, 2**12) is not None
    assert assignment.fused_kernel(1, 2**12 + 1) is None


@pytest.mark.parametrize(
    "error", [ImportError("no Numba"), RuntimeError("cannot cache function")]
)
def test_numpy_serves_where_there_is_no_kernel(error, monkeypatch):
    """Without Numba, or without a folder where it may keep compiled code."""

    def njit(*args, **options):
        raise error

    monkeypatch.setattr("numba.njit", njit)
    monkeypatch.delitem(
        sys.modules, "flower_kmeans.algorithms.numerics.fused", raising=False
    )
    monkeypatch.delattr("flower_kmeans.algorithms.numerics.fused", raising=False)
    monkeypatch.setattr(assignment, "_FUSED_WORK", 0)
    load = assignment._load_fused.__wrapped__
    assert load() is None
    monkeypatch.setattr(assignment, "_load_fused", load)
    grid = GridRecords(np.eye(3), unit_box(3), 8)
    np.testing.assert_array_equal(
        cluster_sums(grid, np.eye(3, dtype=int) * 256)[1], [1, 1, 1]
    )
