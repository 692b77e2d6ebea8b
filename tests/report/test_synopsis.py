"""The mixture that a run leaves: its units, its clusterings for any k, its files."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from scipy.stats import multivariate_normal

from flower_kmeans import Ball, Box, PrivacyBudget, TableDomain, simulate
from flower_kmeans.algorithms import SynopsisAlgorithm
from flower_kmeans.algorithms.released import ReleasedMixture
from flower_kmeans.algorithms.synopsis_cells import Released, learned
from flower_kmeans.algorithms.synopsis_mixture import CellNoise
from flower_kmeans.algorithms.synopsis_state import CountedCells
from flower_kmeans.data.table_domain import Number
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    ObliviousServerError,
)
from flower_kmeans.metrics import inertia
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.report.synopsis import Synopsis
from flower_kmeans.strategies import FastLloyd, SynopsisKMeans
from tests.algorithms.rows import run_of

pytestmark = pytest.mark.claim("guarantees", "22")

RNG = np.random.default_rng
CENTERS = np.array([[-8.0, -6, 2], [-8, 6, -4], [0, 0, 6], [8, -6, -3], [8, 7, 3]])
BALL = Ball(14.0, [0.0, 0, 0])
N = 6000
WIDE = Box([-14.0, -140, -1.4, 0], [14.0, 140, 1.4, 2])  # another unit for each column


def blobs(seed=0, scale=0.6):
    rng = RNG(seed)
    records = CENTERS[np.arange(N) % 5] + rng.normal(0, scale, (N, 3))
    return rng.permutation(records)


def made(domain=WIDE, p=2, m=4, seed=0):
    """A mixture in random directions."""
    rng, d = RNG(seed), domain.n_features
    directions = np.linalg.qr(rng.normal(size=(d, p)))[0]
    means, scales = rng.uniform(-0.5, 0.5, (m, p)), rng.uniform(0.05, 0.2, (m, p))
    weights, radii = rng.uniform(50, 500, m), rng.uniform(0.1, 0.5, m)
    found = ReleasedMixture(
        weights, means, scales, directions, 0.01, radii, (3.0, 4.0, 5.0)
    )
    return Synopsis(found, domain)


def separate(weights, means, scale=0.01, radius=0.1, noise=(0.0, 0.0, 0.0)):
    """Parts in the plane, in a unit ball."""
    weights, means = np.array(weights, float), np.array(means, float)
    scales, radii = np.full(means.shape, scale), np.full(len(means), radius)
    found = ReleasedMixture(weights, means, scales, np.eye(2), 1e-12, radii, noise)
    return Synopsis(found, Ball(1.0, [0.0, 0.0]))


def moments(synopsis):
    """Mean and covariance of the whole mixture."""
    shares = synopsis.weights / synopsis.weights.sum()
    mean = shares @ synopsis.means
    offsets = synopsis.means - mean
    between = (shares[:, None] * offsets).T @ offsets
    return mean, np.einsum("m,mij->ij", shares, synopsis.covariances) + between


# --------------------------------------------------------------------------- units


def test_means_and_covariances_are_in_the_users_units():
    synopsis = made()
    found, unit = synopsis.mixture, np.array([14.0, 140, 1.4, 1])
    along = unit[:, None] * found.directions
    others = np.linalg.svd(found.directions)[0][:, 2:] * unit[:, None]
    for i in range(4):
        np.testing.assert_allclose(
            synopsis.means[i], [0, 0, 0, 1] + along @ found.means[i]
        )
        expected = (
            along @ np.diag(found.scales[i] ** 2) @ along.T + 0.01 * others @ others.T
        )
        np.testing.assert_allclose(synopsis.covariances[i], expected, atol=1e-12)
    scaled = RNG(5).normal(size=(4, 2))
    expected = scaled.T / unit @ synopsis.covariances @ (scaled / unit[:, None])
    np.testing.assert_allclose(synopsis.covariances_along(scaled), expected, atol=1e-12)


@pytest.mark.parametrize("p", [2, 4])
def test_records_that_are_drawn_have_these_moments(p):
    synopsis, n = made(p=p), 200_000
    mean, covariance = moments(synopsis)
    records = synopsis.sample(n, RNG(1))
    assert records.shape == (n, 4)
    unit = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose(
        records.mean(axis=0) / unit, mean / unit, atol=5 / n**0.5
    )
    found = np.cov(records.T) / np.outer(unit, unit)
    np.testing.assert_allclose(
        found, covariance / np.outer(unit, unit), atol=10 / n**0.5
    )
    np.testing.assert_array_equal(records, synopsis.sample(n, RNG(1)))
    assert synopsis.sample(0, RNG(1)).shape == (0, 4)


@pytest.mark.parametrize("p", [2, 4])
def test_densities_are_those_of_the_mixture(p):
    synopsis = made(p=p)
    records = synopsis.sample(50, RNG(2))
    shares = synopsis.weights / synopsis.weights.sum()
    parts = zip(shares, synopsis.means, synopsis.covariances, strict=True)
    expected = sum(
        w * multivariate_normal(mean, c).pdf(records) for w, mean, c in parts
    )
    np.testing.assert_allclose(
        synopsis.log_density(records), np.log(expected), rtol=1e-6
    )
    far = synopsis.log_density(np.full((1, 4), 1e6))
    assert np.isfinite(far).all()


@pytest.mark.parametrize("domain", [BALL, Box([-14.0] * 3, [14.0, 28.0, 14.0])])
def test_without_noise_a_run_learns_the_moments_of_the_records(domain):
    records = blobs()
    algorithm = SynopsisAlgorithm.planned(5, domain, PrivacyBudget(None), n_records=N)
    state = run_of(algorithm, [records])
    synopsis = Synopsis(algorithm.mixture.learned(state), domain)
    assert synopsis.weights.sum() == pytest.approx(N)
    mean, covariance = moments(synopsis)
    unit = records.std(axis=0)
    np.testing.assert_allclose(mean / unit, records.mean(axis=0) / unit, atol=0.002)
    found = (covariance - np.cov(records.T)) / np.outer(unit, unit)
    np.testing.assert_allclose(found, 0, atol=0.01)
    # Of each blob's parts together.
    labels = np.argmin(((synopsis.means[:, None] - CENTERS) ** 2).sum(axis=2), axis=1)
    for j in range(5):
        own = replace(
            synopsis.mixture, weights=np.where(labels == j, synopsis.weights, 1e-9)
        )
        mean, covariance = moments(Synopsis(own, domain))
        np.testing.assert_allclose(mean, CENTERS[j], atol=0.1)
        assert np.trace(covariance) == pytest.approx(3 * 0.36, rel=0.1)


@pytest.mark.claim("guarantees", "22")
def test_records_that_are_drawn_lie_as_closely_as_the_records():
    """The noise of a cell's variance grows with the square of its radius."""
    disc = Ball(1.0, [0.0, 0.0])
    centers = np.array([[0.5, 0.2], [-0.4, 0.4], [0.0, -0.5]])
    rng = RNG(2)
    records = centers[rng.integers(0, 3, 20_000)]
    records += 0.05 * rng.normal(size=records.shape)
    for key in range(4):
        algorithm = SynopsisAlgorithm.planned(
            3, disc, PrivacyBudget(1.0), n_records=20_000
        )
        last = algorithm.schedule.last_synopsis
        stream = Stream.from_key(bytes([key]) * 32)
        state = run_of(algorithm, [records], stream, until=last)
        drawn = Synopsis(algorithm.mixture.learned(state), disc).sample(20_000, RNG(3))
        found = inertia(drawn, centers) / inertia(records, centers)
        assert found == pytest.approx(1, abs=0.04)


# -------------------------------------------------------------------------- clusterings


def test_the_cost_bends_at_the_true_number_of_clusters():
    algorithm = SynopsisAlgorithm.planned(8, BALL, PrivacyBudget(1.0), n_records=N)
    state = run_of(algorithm, [blobs()], Stream.from_key(bytes(32)))
    elbow = Synopsis(algorithm.mixture.learned(state), BALL).elbow(range(1, 10))
    np.testing.assert_array_equal(elbow.n_clusters, np.arange(1, 10))
    falls = -np.diff(np.log(elbow.costs))
    assert np.argmax(falls[:-1] - falls[1:]) + 2 == 5
    assert elbow.costs[4] == pytest.approx(3 * 0.36, rel=0.15)
    low, high = elbow.interval.T
    clear = -np.diff(elbow.costs) > (high - low)[1:]
    assert np.flatnonzero(clear)[-1] + 2 == 5
    assert elbow.suggested == 5
    falling = type(elbow)(*(values[::-1] for values in elbow[:4]), elbow.most_suggested)
    assert falling.suggested == 5
    assert elbow._replace(most_suggested=4).suggested == 4
    np.testing.assert_allclose((low + high) / 2, elbow.costs)
    np.testing.assert_allclose(
        high - low, 2 * 1.959964 * elbow.standard_errors, rtol=1e-6
    )
    assert (elbow.standard_errors > 0).all()


def test_costs_are_those_of_the_mixtures_records():
    synopsis = made(WIDE, p=4, m=6)
    found = synopsis.kmeans(3)
    records = synopsis.sample(100_000, RNG(3))
    unit = np.array([14.0, 140, 1.4, 1])
    labels = np.argmin(
        ((synopsis.means[:, None] - found.centroids) / unit) ** 2 @ np.ones(4), 1
    )
    # Parts count as a whole: their records have no nearer centroid.
    own = sum(
        w
        * (
            np.trace(c / np.outer(unit, unit))
            + (((x - found.centroids[j]) / unit) ** 2).sum()
        )
        for w, x, c, j in zip(
            synopsis.weights, synopsis.means, synopsis.covariances, labels, strict=True
        )
    )
    # Of other starts, and so of slightly other centres.
    assert synopsis.elbow([3]).costs[0] == pytest.approx(
        own / synopsis.weights.sum(), rel=0.01
    )
    counts = np.bincount(labels, synopsis.weights, minlength=3)
    np.testing.assert_allclose(found.counts, counts)
    assert set(found.predict(records)) == {0, 1, 2}


def test_standard_errors_are_those_of_the_noise():
    """Of costs that many noisy answers of the same cells give; 2/3 and 3/2 are refused."""
    cells = CountedCells(
        np.array([[-300, 0], [200, 300], [400, -100], [-100, -400]]),
        np.array([200, 150, 250, 200]),
        np.full((4, 2), 0.004),
        0.008,
        np.zeros(4),
    )
    step, noise = 2.0**-10, CellNoise(4.0, 6.0, 5.0)
    sums, counts, slacks = (
        np.zeros((4, 2)),
        np.array([900.0, 700, 800, 600]),
        np.zeros(4),
    )
    squares = 0.008 / (cells.radii * step) ** 2
    slacks[:] = counts * (1 - squares)
    rng, costs, errors = RNG(4), [], []
    for _ in range(120):
        answer = Released(
            sums + rng.normal(0, noise.sums, (4, 2)),
            counts + rng.normal(0, noise.counts, 4),
            slacks + rng.normal(0, noise.slacks, 4),
        )
        found, _ = learned(cells, answer, noise, step, np.inf)
        mixture = ReleasedMixture(
            found.weights, found.means, found.scales, np.eye(2), 1e-12, cells.radii * step,
            (noise.counts, noise.sums, noise.slacks),
        )  # fmt: skip
        elbow = Synopsis(mixture, Ball(1.0, [0.0, 0.0])).elbow([2])
        costs.append(elbow.costs)
        errors.append(elbow.standard_errors)
    ratios = np.std(costs, axis=0) / np.mean(errors, axis=0)
    assert ((ratios > 0.8) & (ratios < 1.25)).all(), ratios


def test_wards_hierarchy_knows_how_heavy_parts_are():
    synopsis = separate(
        [100, 200, 100, 500], [[0, 0], [0.1, 0], [0.5, 0.5], [0.5, 0.6]]
    )
    tree = synopsis.hierarchy()
    assert is_valid_linkage(tree)
    np.testing.assert_array_equal(tree[:, [0, 1, 3]], [[0, 1, 2], [2, 3, 2], [4, 5, 4]])
    ward = [2 * a * b / (a + b) * 0.01 for a, b in ((100, 200), (100, 500))]
    np.testing.assert_allclose(tree[:2, 2], np.sqrt(ward), rtol=0.01)
    # A heavy part that is as near is merged later.
    heavy = separate([100, 900, 100, 100], [[0, 0], [0.1, 0], [0.5, 0.5], [0.5, 0.6]])
    np.testing.assert_array_equal(heavy.hierarchy()[0, :2], [2, 3])
    assert separate([10], [[0, 0]]).hierarchy().shape == (0, 4)


def test_the_hierarchy_separates_blobs():
    algorithm = SynopsisAlgorithm.planned(6, BALL, PrivacyBudget(2.0), n_records=N)
    synopsis = Synopsis(
        algorithm.mixture.learned(
            run_of(algorithm, [blobs()], Stream.from_key(bytes(32)))
        ),
        BALL,
    )
    labels = fcluster(synopsis.hierarchy(), 5, "maxclust")
    nearest = np.argmin(((synopsis.means[:, None] - CENTERS) ** 2).sum(axis=2), axis=1)
    assert len({*zip(labels.tolist(), nearest.tolist(), strict=True)}) == 5


# --------------------------------------------------------------------------- whole runs


@pytest.mark.default_cases("distributed-noise", "clients-only")
@pytest.mark.parametrize(
    "trust", ["trusted-server", "distributed-noise", "clients-only", "oblivious-server"]
)
def test_a_run_leaves_it_to_those_who_see_the_result(trust):
    records = blobs()
    strategy = SynopsisKMeans(5, BALL, PrivacyBudget(1.0), N, n_clients=5, trust=trust)
    result = simulate(strategy, np.array_split(records, 5))
    synopsis = result.synopsis
    if trust in ("clients-only", "oblivious-server"):
        with pytest.raises(ObliviousServerError, match="on_result"):
            _ = strategy.synopsis
    else:
        for name, array in strategy.synopsis.arrays.items():
            np.testing.assert_array_equal(array, synopsis.arrays[name])
    assert abs(synopsis.weights.sum() - N) < 0.1 * N
    again = synopsis.kmeans(5)
    assert inertia(records, again.centroids) < 1.02 * inertia(records, result.centroids)
    np.testing.assert_allclose(again.counts, N / 5, rtol=0.2)
    agrees = [
        len({*labels})
        for labels in np.split(again.predict(np.repeat(CENTERS, 3, 0)), 5)
    ]
    assert agrees == [1] * 5
    means = simulate(
        SynopsisKMeans(
            3, BALL, PrivacyBudget(1.0), N, n_clients=5, trust=trust, min_size=1500
        ),
        np.array_split(records, 5),
    ).synopsis.means
    assert means.shape[1] == 3


def test_other_strategies_have_none():
    strategy = FastLloyd(
        5, BALL, PrivacyBudget(1.0), N, trust="trusted-server", n_rounds=1
    )
    assert simulate(strategy, np.array_split(blobs(), 5)).synopsis is None
    assert strategy.synopsis is None


def test_a_notebook_shows_declared_columns_and_what_is_not_private():
    table = TableDomain([Number("a", 10, 1000, "log"), Number("b", 0, 1)])
    records = table.encode(
        {"a": np.geomspace(10, 1000, 400), "b": np.linspace(0, 1, 400)}
    )
    for epsilon, is_marked in ((5.0, False), (None, True)):
        options = {"n_records": 400, "trust": "trusted-server" if epsilon else "plain"}
        strategy = SynopsisKMeans(2, table, PrivacyBudget(epsilon), **options)
        synopsis = simulate(strategy, np.array_split(records, 4)).synopsis
        assert synopsis.domain == table
        page = synopsis._repr_html_()
        assert '<th scope="col">a</th>' in page
        assert "log10" not in page
        assert ("NOT PRIVATE" in page) == is_marked


# ------------------------------------------------------------------ files and bad input


def test_what_is_saved_is_loaded(tmp_path):
    named = Box(WIDE.lower, WIDE.upper, columns=["a", "b", "c", "é"])
    table = TableDomain(
        [Number("a", 1, 9, "log"), *(Number(name, 0, 1) for name in "bcd")]
    )
    for synopsis in (made(), made(named, p=4), made(table), separate([1], [[0, 0]])):
        path = tmp_path / "synopsis"
        synopsis.save(path)
        found = Synopsis.load(path)
        assert found.domain == synopsis.domain
        for name, array in synopsis.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)
        assert path.stat().st_mode & 0o077 == 0
        np.testing.assert_array_equal(
            found.kmeans(1).centroids, synopsis.kmeans(1).centroids
        )


def broken(name, change):
    return lambda arrays: {**arrays, name: change(arrays[name])}


@pytest.mark.parametrize(
    "change",
    [
        broken("format", lambda _: "something else"),
        broken("domain", lambda _: "{}"),
        broken("domain", lambda _: "[" * 100_000),
        broken("domain", lambda _: json.dumps(BALL.to_config())),
        broken("weights", lambda x: -x),
        broken("weights", lambda x: x[1:]),
        broken("weights", lambda x: x.astype(np.float32)),
        broken("weights", lambda x: x.astype(object)),
        broken("means", lambda x: x * np.nan),
        broken("means", lambda x: x * 1e200),
        broken("means", lambda x: x[0]),
        broken("scales", lambda x: x * 0),
        broken("directions", lambda x: 1.1 * x),
        broken("rest", lambda x: -x),
        broken("noise", lambda x: x[:2]),
        lambda arrays: {**arrays, "more": np.zeros(1)},
        lambda arrays: {
            name: array for name, array in arrays.items() if name != "means"
        },
    ],
)
def test_other_files_are_refused(tmp_path, change):
    path = tmp_path / "synopsis.npz"
    made().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    with pytest.raises(
        DataError, match=r"Expected a file that Synopsis.save wrote\. Got .*npz"
    ):
        Synopsis.load(path)


def test_more_directions_than_columns_are_refused_before_they_are_multiplied():
    arrays = made().arrays
    for name in ("means", "scales", "directions"):
        # their products have 8 TB
        arrays[name] = np.full((len(arrays[name]), 2**20), 0.5)
    with pytest.raises(DataError, match="arrays of a synopsis"):
        Synopsis.from_arrays(arrays, made().domain)


def test_other_versions_and_no_files_are_refused(tmp_path):
    path = tmp_path / "synopsis.npz"
    made().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, "version": 2})
    with pytest.raises(DataError, match=r"of version 1\. Got one of version 2"):
        Synopsis.load(path)
    path.write_bytes(b"PK nothing")
    for missing in (path, tmp_path / "none.npz"):
        with pytest.raises(DataError, match="Expected a file that"):
            Synopsis.load(missing)


def test_bad_input_is_one_sentence():
    synopsis = made()
    for k in (0, 5):
        with pytest.raises(
            ConfigurationError, match=r"Expected n_clusters in \[1, 4\]"
        ):
            synopsis.kmeans(k)
        with pytest.raises(
            ConfigurationError, match=r"Expected n_clusters in \[1, 4\]"
        ):
            synopsis.elbow([1, k])
    with pytest.raises(ConfigurationTypeError, match="n_clusters"):
        synopsis.elbow(3)
    with pytest.raises(ConfigurationError, match="Got none"):
        _ = synopsis.elbow([]).suggested
    with pytest.raises(ConfigurationError, match="Expected n in"):
        synopsis.sample(-1, RNG(0))
    with pytest.raises(ConfigurationTypeError, match="Expected rng"):
        synopsis.sample(3, 0)
    with pytest.raises(DataError, match="Expected X with 4 columns"):
        synopsis.log_density([[1.0]])


# ------------------------------------------------------------------- other weights


def groups_of_two_numbers(seed=4, n=N):
    """Return records of two numbers, and the groups of each: far apart in both."""
    rng = RNG(seed)
    groups = rng.integers(0, 2, (n, 2))
    return np.where(groups == 1, 0.6, -0.6) + rng.normal(0, 0.1, (n, 2)), groups


@pytest.mark.claim("own-data", "weights-after-run-cost")
def test_weights_decide_after_the_run_by_which_column_clusters_differ():
    records, groups = groups_of_two_numbers()
    box = Box([-1, -1], [1, 1], columns=["x", "y"])
    found = SynopsisKMeans(4, box, PrivacyBudget(1.0), n_records=N, n_clients=2, seed=0)
    synopsis = simulate(found, np.array_split(records, 2)).synopsis
    for column, name in enumerate(("y", "x")):
        again = synopsis.kmeans(2, weights={name: 0.2})
        labels = again.predict(records)
        own = groups[:, column]
        assert max(np.mean(labels == own), np.mean(labels != own)) > 0.99
        assert again.domain == box.weighted({name: 0.2})
        # in the user's units
        assert sorted(again.centroids[:, column]) == pytest.approx(
            [-0.6, 0.6], abs=0.05
        )
        assert again.counts.sum() == pytest.approx(synopsis.weights.sum())


@pytest.mark.parametrize("weight", [0.001, 0.01, 1, 100, 1000])
def test_a_column_that_decides_nothing_keeps_its_mean(weight):
    """Up to the largest ratio of weights, whichever of the columns it is."""
    box = Box([-1, -1], [1, 1], columns=["x", "y"])
    mixture = ReleasedMixture(
        weights=np.array([200.0, 100.0]),
        means=np.array([[-0.5, 0.3], [0.5, -0.7]]),
        scales=np.full((2, 2), 0.001),
        directions=np.eye(2),
        rest=0.1,
        radii=np.ones(2),
        noise=(1.0, 1.0, 1.0),
    )
    found = Synopsis(mixture, box).kmeans(2, weights={"y": weight})
    in_order = found.centroids[np.argsort(found.centroids[:, 0])]
    np.testing.assert_allclose(in_order, [[-0.5, 0.3], [0.5, -0.7]], atol=0.015)


@pytest.mark.parametrize("width", [1e-200, 1, 1e200])
def test_spreads_are_those_of_the_parts_in_any_unit(width):
    """Squares of the user's units may be no floats."""
    box = Box([0, 0], [2 * width, 4 * width])
    mixture = ReleasedMixture(
        weights=np.array([200.0, 100.0]),
        means=np.array([[-0.5, 0.3], [0.4, 0.3]]),
        scales=np.array([[0.1, 0.2], [0.3, 0.2]]),
        directions=np.eye(2),
        rest=0.1,
        radii=np.ones(2),
        noise=(1.0, 1.0, 1.0),
    )
    # the mean of variances, and the variance of means -0.5 and 0.4
    first = (0.1**2 * 2 + 0.3**2) / 3 + 0.9**2 * 2 / 9
    expected = [math.sqrt(first) * width, 0.2 * 2 * width]
    np.testing.assert_allclose(Synopsis(mixture, box).spreads, expected, rtol=1e-12)


@pytest.mark.parametrize("p", [2, 3])
def test_a_mixture_in_other_weights_is_the_stretched_one(p):
    """Means and variances along the new directions are those of the stretched Gaussians."""
    rng = RNG(p)
    box = Box([-1] * 3, [3] * 3, columns=["a", "b", "c"])
    directions, _ = np.linalg.qr(rng.normal(size=(3, p)))
    mixture = ReleasedMixture(
        weights=np.array([200.0, 100.0]),
        means=rng.uniform(-0.5, 0.5, (2, p)),
        scales=rng.uniform(0.1, 0.3, (2, p)),
        directions=directions,
        rest=0.02,
        radii=np.ones(2),
        noise=(1.0, 1.0, 1.0),
    )
    synopsis = Synopsis(mixture, box)
    other = box.weighted({"a": 0.1, "c": 0.6})
    made, new = synopsis._model_in(other)
    longest = other.l2_bound(20) * 2.0**-20
    np.testing.assert_allclose(new.T @ new, np.eye(p), atol=1e-12)
    stretch = np.diag([0.1, 1.0, 0.6])
    means = mixture.means @ directions.T @ stretch
    np.testing.assert_allclose(made.means @ new.T * longest, means, atol=1e-6)
    for scales, found in zip(mixture.scales, made.scales, strict=True):
        whole = directions @ np.diag(scales**2 - 0.02) @ directions.T + 0.02 * np.eye(3)
        along = np.diag(new.T @ stretch @ whole @ stretch @ new)
        np.testing.assert_allclose((found * longest) ** 2, along, rtol=1e-5)


def test_weights_of_the_run_change_nothing():
    records, _ = groups_of_two_numbers(5)
    box = Box([-1, -1], [1, 1], columns=["x", "y"], weights=[1, 0.7])
    algorithm = SynopsisAlgorithm.planned(4, box, PrivacyBudget(1.0), n_records=N)
    state = run_of(algorithm, [records], Stream.from_key(bytes(32)))
    synopsis = Synopsis(algorithm.mixture.learned(state), box)
    one = synopsis.kmeans(4)
    two = synopsis.kmeans(4, weights={"y": 0.7})
    for centroid in one.centroids:
        assert np.abs(two.centroids - centroid).max(axis=1).min() < 0.02


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"z": 1.0}, r"columns from \['x', 'y'\]. Got 'z'"),
        ({"x": 0.0}, "weight of the column 'x' as positive"),
        ({"x": "1"}, "weight of the column 'x' as a number"),
        ([0.5, 1], "mapping"),
        ({"x": 1001}, r"factor of 1,000 at most. Got 1 for 'y' and 1001 for 'x'"),
        ({"x": 1e-9, "y": 2}, "Got 1e-09 for 'x' and 2 for 'y'"),
        ({"x": 1e-280, "y": 1e300}, "too small"),
    ],
)
def test_other_weights_are_of_columns(weights, message):
    box = Box([-1, -1], [1, 1], columns=["x", "y"])
    mixture = ReleasedMixture(
        weights=np.ones(2),
        means=np.array([[-0.5, 0], [0.5, 0]]),
        scales=np.full((2, 2), 0.1),
        directions=np.eye(2),
        rest=0.1,
        radii=np.ones(2),
        noise=(1.0, 1.0, 1.0),
    )
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=message):
        Synopsis(mixture, box).kmeans(2, weights=weights)
    with pytest.raises(ConfigurationError, match="Got those of a Ball"):
        Synopsis(mixture, Ball(1.0, [0, 0])).kmeans(2, weights={"x": 1.0})
