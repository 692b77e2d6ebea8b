"""Results with weights and sizes, as servers send them and as clients compute them."""

import math
import stat
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from cohorts import BLIND, Cohort, code
from documents import TRUSTS, make_algorithm

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import GLloydAlgorithm, judged, tightened
from flower_kmeans.algorithms.plausibility import (
    Finding,
    FindingKind,
    sentences,
    to_array,
)
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.messages import Code, Finished
from flower_kmeans.protocol.results import (
    ClientResult,
    encode_result,
    largest_weight,
    read_result,
)
from flower_kmeans.protocol.wire import encode_arrays
from flower_kmeans.report.columns import column_warnings
from flower_kmeans.report.site_sizes import PRIVATE, SiteSizes
from flower_kmeans.report.synopsis import Synopsis

SIGHTED = [name for name in TRUSTS if name not in BLIND]
BOUNDS = {"min_size": 300, "max_size": 700}


def cohort_of(directory, trust, n=4, **bounds):
    algorithm = make_algorithm(SynopsisAlgorithm, trust, **bounds)
    return Cohort(directory, trust, n=n, algorithm=algorithm)


def planned_size_noise(run):
    """Return the planned noise of a size; 0 without bounds on sizes."""
    sizes = run.algorithm.sizes
    return 0.0 if sizes is None else float(sizes.noise)


def result_of(cohort, **changes):
    """Return the arrays of a result that the cohort's clients accept, with changes."""
    noise, mixture = planned_size_noise(cohort.run), cohort.run.algorithm.mixture
    m, p, noises = mixture.most_parts, mixture.n_directions, mixture.noise
    arrays = {
        "centroids": np.full((2, 2), 0.5),
        "counts": np.array([400.0, 600.0]),
        "weights": np.array([-0.5, 0.25]),
        "size_noise": np.array([noise]),
        "synopsis_weights": np.full(m, 40.0),
        "synopsis_means": np.full((m, p), 0.25),
        "synopsis_scales": np.full((m, p), 0.01),
        "synopsis_directions": np.eye(2, p),
        "synopsis_rest": np.ones(1),
        "synopsis_radii": np.full(m, 0.1),
        "synopsis_noise": np.array(noises),
    }
    return {**arrays, **changes}


@pytest.mark.parametrize("trust", SIGHTED)
def test_wrong_weights_and_sizes_are_refused(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust, **BOUNDS).set_up()
    good = result_of(cohort)
    largest, noise = 4 * 2 * 0.5**2, good["size_noise"]
    one, two = np.ones(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    wrong = {
        "others": [np.zeros(2)],
        "counts": [np.zeros(3)],
        "weights": [np.zeros(3), np.zeros((2, 1)), two],
        "size_noise": [np.zeros(0), np.zeros(2), np.array(1.0), one, np.array([-1.0])],
    }
    wrong["weights"] += [
        np.array([0.0, sign * largest * (1 + 1e-9)]) for sign in (1, -1)
    ]
    # Only clients that share the noise can add more than is planned, and not any
    # multiple.
    factor = 3 if trust == "distributed-noise" else 1
    wrong["size_noise"] += [np.array([1e300]), 1e3 * noise + 1e-3]
    wrong["size_noise"] += [noise * (1 - 1e-6), 0 * noise] if noise[0] else []
    bad = [
        {n: v for n, v in good.items() if n != name}
        for name in ("weights", "size_noise")
    ]
    bad += [{**good, name: value} for name, values in wrong.items() for value in values]
    for arrays in bad:
        reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(arrays)))
        assert code(reply) == Code.BAD_MESSAGE, sorted(arrays)
    assert not cohort.nodes[0].results
    most = {
        **good,
        "weights": np.array([largest, -largest]),
        "size_noise": factor * noise,
    }
    assert isinstance(
        cohort.send(0, cohort.finish_of(0, result=encode_arrays(most))), Finished
    )
    (found,) = cohort.nodes[0].results
    np.testing.assert_array_equal(found.weights, most["weights"])
    assert found.size_report == SizeReport(
        (400.0, 600.0), float(factor * noise[0]), 300, 700
    )


@pytest.mark.parametrize("trust", SIGHTED)
def test_a_result_without_bounds_has_no_weights(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust).set_up()
    arrays = result_of(cohort)
    data = encode_arrays(arrays)
    assert code(cohort.send(0, cohort.finish_of(0, result=data))) == Code.BAD_MESSAGE
    del arrays["weights"], arrays["size_noise"]
    data = encode_arrays(arrays)
    assert isinstance(cohort.send(0, cohort.finish_of(0, result=data)), Finished)
    (found,) = cohort.nodes[0].results
    assert (found.weights, found.size_report) == (None, None)


def test_wrong_ranges_are_refused_and_right_ones_are_the_bounds_of_the_result(tmp_path):
    algorithm = tightened.planned(
        GLloydAlgorithm,
        2,
        Box([0.0, 0.0], [16.0, 16.0], tighten=0.1),
        PrivacyBudget(1.0),
        n_records=1000,
        n_rounds=1,
    )
    cohort = Cohort(tmp_path, "trusted-server", n=4, algorithm=algorithm).set_up()
    box = np.array([[0, 1024], [1024, 2048]])
    good = {
        "centroids": np.array([[0.5, 1.5], [1.0, 2.0]]),
        "counts": np.array([400.0, 600.0]),
        "box": box,
    }
    wrong = [
        {name: array for name, array in good.items() if name != "box"},
        {**good, "box": box.astype(np.float64)},
        {**good, "box": box[:1]},
        {**good, "box": box[:, ::-1].copy()},
        {**good, "box": np.array([[0, 15], [0, 1024]])},
        {**good, "box": np.array([[0, 1024], [0, 2**14 + 1]])},
        {**good, "centroids": np.array([[0.5, 0.9], [1.0, 2.0]])},
    ]
    for arrays in wrong:
        reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(arrays)))
        assert code(reply) == Code.BAD_MESSAGE, arrays
    assert not cohort.nodes[0].results
    reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(good)))
    assert isinstance(reply, Finished)
    (found,) = cohort.nodes[0].results
    assert (found.domain.lower, found.domain.upper) == ((0.0, 1.0), (1.0, 2.0))


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_wrong_silhouettes_are_refused_and_right_ones_are_taken(tmp_path, trust):
    algorithm = tightened.planned(
        SynopsisAlgorithm,
        2,
        Box([0.0, 0.0], [1.0, 1.0]),
        PrivacyBudget(1.0),
        n_records=1000,
        quality=True,
    )
    cohort = Cohort(tmp_path, trust, n=4, algorithm=algorithm).set_up()
    noise = judged.noise_of(algorithm)
    good = result_of(cohort)
    del good["weights"], good["size_noise"]
    released = np.array([[400.0, 600.0], [300.0, 350.0]])
    good |= {"silhouette": released, "silhouette_noise": np.array([noise])}
    wrong = [
        {name: each for name, each in good.items() if name != "silhouette"},
        {name: each for name, each in good.items() if name != "silhouette_noise"},
        {name: each for name, each in good.items() if "silhouette" not in name},
        {**good, "silhouette": released.astype(np.int64)},
        {**good, "silhouette": released[:, :1].copy()},
        {**good, "silhouette": np.ones((3, 2))},
        {**good, "silhouette": np.ones(2)},
        {**good, "silhouette": np.full((2, 2), 1e308)},
        {**good, "silhouette_noise": np.array([noise * 0.99])},
        {**good, "silhouette_noise": np.array([noise * 1000])},
        {**good, "silhouette_noise": np.array([noise, noise])},
    ]
    for arrays in wrong:
        reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(arrays)))
        assert code(reply) == Code.BAD_MESSAGE, sorted(arrays)
    assert not cohort.nodes[0].results
    data = encode_arrays(good)
    assert isinstance(cohort.send(0, cohort.finish_of(0, result=data)), Finished)
    (found,) = cohort.nodes[0].results
    assert found.silhouette.released.counts == (400.0, 600.0)
    assert found.silhouette.released.sums == (300.0, 350.0)
    assert found.silhouette.released.noise == noise
    again = read_result(cohort.run, encode_result(found))
    assert again.silhouette == found.silhouette
    found.save(tmp_path / "result.npz")
    with np.load(tmp_path / "result.npz") as saved:
        value, low, high = saved["silhouette"]
    assert value == found.silhouette.value == 0.65
    assert (low, high) == (found.silhouette.low, found.silhouette.high)


@pytest.mark.parametrize("trust", SIGHTED)
def test_a_run_without_quality_refuses_a_silhouette(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust).set_up()
    arrays = result_of(cohort)
    del arrays["weights"], arrays["size_noise"]
    arrays |= {"silhouette": np.ones((2, 2)), "silhouette_noise": np.ones(1)}
    reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(arrays)))
    assert code(reply) == Code.BAD_MESSAGE


@pytest.mark.parametrize("count", [1e308, -1e308, 2.0**64])
def test_counts_beyond_all_sums_are_refused(tmp_path, count):
    """Sums of them would overflow in a client's on_result."""
    cohort = cohort_of(tmp_path, "distributed-noise").set_up()
    arrays = result_of(cohort, counts=np.full(2, count))
    data = encode_arrays(arrays)
    assert code(cohort.send(0, cohort.finish_of(0, result=data))) == Code.BAD_MESSAGE


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("trust", SIGHTED)
def test_results_have_as_many_clusters_as_the_run_may_find(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust, min_clusters=1).set_up()
    good = {n: v for n, v in result_of(cohort).items() if n.startswith("synopsis_")}
    results = {
        k: {"centroids": np.full((k, 2), 0.5), "counts": np.ones(k)} for k in range(4)
    }
    bad = [good, {**good, **results[0]}, {**good, **results[3]}]
    bad += [{**good, **results[1], "centroids": results[2]["centroids"]}]
    for arrays in bad:
        reply = cohort.send(0, cohort.finish_of(0, result=encode_arrays(arrays)))
        assert code(reply) == Code.BAD_MESSAGE, sorted(arrays)
    for k in (1, 2):
        data = encode_arrays({**good, **results[k]})
        assert isinstance(cohort.send(k, cohort.finish_of(k, result=data)), Finished)
        assert len(cohort.nodes[k].results[0].centroids) == k


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("trust", SIGHTED)
def test_wrong_synopses_are_refused(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust, **BOUNDS).set_up()
    good = {n: v for n, v in result_of(cohort).items() if n.startswith("synopsis_")}
    m, p = good["synopsis_means"].shape
    factor = 3 if trust == "distributed-noise" else 1
    longer = {n: np.repeat(v, 2, axis=0) if len(v) == m else v for n, v in good.items()}
    bad = [{n: good[n] for n in good if n != name} for name in good]
    bad += [{**good, name: good[name].astype(np.int64)} for name in good]
    bad += [
        {**good, name: -good[name] - 1} for name in good if name != "synopsis_means"
    ]
    large = [
        name
        for name, array in good.items()
        if name != "synopsis_weights" and array.any()
    ]
    bad += [{**good, name: 1e5 * good[name]} for name in large]
    bad += [longer, {**good, "synopsis_more": np.ones(1)}]
    if "synopsis_noise" in large:
        bad += [{**good, "synopsis_noise": 0.99 * good["synopsis_noise"]}]
    rest = {n: v for n, v in result_of(cohort).items() if n not in good}
    for arrays in bad:
        reply = cohort.send(
            0, cohort.finish_of(0, result=encode_arrays({**rest, **arrays}))
        )
        assert code(reply) == Code.BAD_MESSAGE, sorted(arrays)
    assert not cohort.nodes[0].results
    most = {**rest, **good, "synopsis_noise": factor * good["synopsis_noise"]}
    assert isinstance(
        cohort.send(0, cohort.finish_of(0, result=encode_arrays(most))), Finished
    )
    (found,) = cohort.nodes[0].results
    np.testing.assert_array_equal(found.synopsis.weights, np.full(m, 40.0))
    assert found.synopsis.means.shape == (m, p)


@pytest.mark.parametrize("trust", SIGHTED)
def test_findings_are_those_of_the_run_or_refused(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust).set_up()
    arrays = result_of(cohort)
    del arrays["weights"], arrays["size_noise"]
    rounds = cohort.document.rounds
    found = (
        Finding(FindingKind.TOO_MANY, rounds, 1, 0, 5e8, 3.5),
        Finding(FindingKind.LIGHT, rounds, 2, 1, -536.0, 700.0),
    )
    good = to_array(found)
    bad = [good[:0], good[:, :5], good.astype(np.int64), np.tile(good, (1000, 1))]
    for column, value in (
        (0, 9.0),
        (0, 0.5),
        (1, 0.0),
        (1, rounds + 1.0),
        (2, 0.0),
        (3, 1e9),
    ):
        changed = good.copy()
        changed[0, column] = value
        bad.append(changed)
    for array in bad:
        data = encode_arrays({**arrays, "findings": array})
        assert (
            code(cohort.send(0, cohort.finish_of(0, result=data))) == Code.BAD_MESSAGE
        )
    assert not cohort.nodes[0].results
    data = encode_arrays({**arrays, "findings": good})
    assert isinstance(cohort.send(0, cohort.finish_of(0, result=data)), Finished)
    (result,) = cohort.nodes[0].results
    assert result.findings == found
    # The sentences are the client's own: no server writes into its log.
    own = column_warnings(result.centroids, result.domain, result.synopsis)
    assert result.warnings == (*sentences(cohort.run.algorithm, found), *own)
    assert encode_result(result) == data
    # Without findings nothing is sent of them.
    assert isinstance(
        cohort.send(1, cohort.finish_of(1, result=encode_arrays(arrays))), Finished
    )
    assert cohort.nodes[1].results[0].warnings == own


@pytest.mark.claim("reading-a-report", "how-large-clusters-runs")
@pytest.mark.default_cases("distributed-noise", "oblivious-server")
@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_of_every_server_have_weights_and_sizes(tmp_path, trust):
    cohort = cohort_of(tmp_path, trust, **BOUNDS).play()
    assert not cohort.refusals
    first, *others = [node.results[0] for node in cohort.nodes]
    assert {len(node.results) for node in cohort.nodes} == {1}
    assert first.run == cohort.document.run.hex()
    for other in others:
        np.testing.assert_array_equal(other.weights, first.weights)
        assert other.size_report == first.size_report
        for name, array in first.synopsis.arrays.items():
            np.testing.assert_array_equal(other.synopsis.arrays[name], array)
    assert first.size_report.counts == tuple(first.counts)
    assert (first.size_report.min_size, first.size_report.max_size) == (300, 700)
    planned = planned_size_noise(cohort.run)
    factor = {"clients-only": math.sqrt(4 / 2), "distributed-noise": math.sqrt(4 / 2)}
    assert first.size_report.noise == pytest.approx(planned * factor.get(trust, 1.0))


@pytest.mark.default_cases("oblivious-server")
@pytest.mark.parametrize("trust", BLIND)
def test_the_noise_is_that_of_the_last_round_also_of_a_repeated_result(tmp_path, trust):
    """``on_result`` fails once, so the client answers a repeated request from its memory."""
    cohort = cohort_of(tmp_path, trust, **BOUNDS).set_up()
    rounds = cohort.document.rounds
    for t in range(1, rounds):
        cohort.round(t)
    assert len(cohort.round(rounds, who=range(3))) == 3
    keep = mock.Mock(side_effect=[OSError("no room"), None])
    cohort.nodes[0].results = mock.Mock(append=keep)
    for _ in range(2):
        cohort.send(0, cohort.finish_of(0))
    planned = planned_size_noise(cohort.run)
    factor = 1.0 if trust == "oblivious-server" else math.sqrt(3 / 2)
    noises = [call.args[0].size_report.noise for call in keep.call_args_list]
    assert noises == [pytest.approx(planned * factor)] * 2


@pytest.mark.parametrize(
    ("domain", "largest"),
    [
        (Ball(3.0, [0.0] * 5), 4 * 5 * 9.0),
        (Box([0.0, 0.0], [2.0, 8.0], scale="common"), 4 * 2 * 16.0),
        (Box([0.0, 5.0], [2.0, 7.0]), 4 * 2 * 1.0),
        (Box([0.0, 0.0], [2.0, 8.0]), 4 * 2 * 1.0),
    ],
)
def test_every_weight_of_a_query_is_possible_in_a_result(domain, largest):
    assert largest_weight(domain) == pytest.approx(largest, rel=1e-12)
    assert largest_weight(domain) >= largest


def test_a_result_is_read_as_it_was_written(tmp_path):
    cohort = cohort_of(tmp_path, "trusted-server", **BOUNDS)
    run, prefix = cohort.run, "synopsis_"
    parts = {
        n.removeprefix(prefix): v for n, v in result_of(cohort).items() if prefix in n
    }
    synopsis = Synopsis.from_arrays(parts, run.algorithm.domain)
    sizes = SizeReport((400.0, 600.5), planned_size_noise(run), 300, 700)
    arrays = [[[0.25, 0.5], [0.75, 0.5]], [400.0, 600.5], [0.125, -0.25]]
    centroids, counts, weights = map(np.array, arrays)
    written = ClientResult(
        centroids,
        counts,
        run.algorithm.domain,
        run.document.run.hex(),
        weights,
        sizes,
        synopsis,
    )
    found = read_result(run, encode_result(written))
    for name in ("centroids", "counts", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    assert (found.run, found.size_report) == (written.run, sizes)
    for name, array in parts.items():
        np.testing.assert_array_equal(found.synopsis.arrays[name], array)


# ------------------------------------------------------------------ a client's own file

PLACES = np.array([[1.0, 2.0], [3.0, 4.0]])
SQUARE = {"lower": [0.0, 0.0], "upper": [5.0, 5.0]}


def whole_result(**changes):
    """Return a result with all that a client can learn."""
    domain = Box(**SQUARE, columns=["age", "visits"])
    shape = {
        "weights": 3,
        "means": (3, 2),
        "scales": (3, 2),
        "directions": (2, 2),
        "rest": 1,
    }
    arrays = {
        name: np.ones(size) for name, size in {**shape, "radii": 3, "noise": 3}.items()
    }
    arrays["directions"] = np.eye(2)
    sizes = SizeReport((400.0, 600.5), 2.0, 300, 700)
    parts = (
        domain,
        "ab" * 16,
        np.array([0.5, -0.5]),
        sizes,
        Synopsis.from_arrays(arrays, domain),
    )
    return replace(ClientResult(PLACES, np.array([400.0, 600.5]), *parts), **changes)


@pytest.mark.claim("deploy", "each-node-now-has")
def test_a_saved_result_is_whole_and_its_owners_alone(tmp_path):
    path, result = tmp_path / "result.npz", whole_result()
    path.write_text("that of a run before")
    path.chmod(0o644)
    result.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_centroids(path)
    for name in ("centroids", "counts", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(result, name))
    assert (found.columns, found.is_private) == (("age", "visits"), True)
    assert found.domain.to_config() == result.domain.to_config()
    np.testing.assert_array_equal(found.sizes[1], result.size_report.interval)
    for name, array in result.synopsis.arrays.items():
        np.testing.assert_array_equal(found.synopsis.arrays[name], array)
    assert read_centroids(saved(tmp_path, is_private=False)).is_private is False
    assert list(tmp_path.iterdir()) == [path]


def saved(directory, columns=None, **changes):
    path = directory / "result.npz"
    whole_result(**changes).save(path, columns)
    return path


@pytest.mark.claim("deploy", "result-has-own-sizes")
def test_a_saved_result_has_own_sizes_with_their_mark_unless_they_are_left_out(
    tmp_path,
):
    own = np.array([3.0, 4.0])
    result = whole_result(own_sizes=SiteSizes(own, np.array([400.0, 600.5])))
    path = tmp_path / "result.npz"
    result.save(path)
    with np.load(path) as file:
        np.testing.assert_array_equal(file["own_sizes"], own)
        assert str(file["PRIVATE"]) == PRIVATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read_centroids(path)  # other commands take it
    whole = whole_result()
    result.save(path, own_sizes=False)
    with np.load(path) as file:
        found = dict(file)
    whole.save(path)
    with np.load(path) as file:
        np.testing.assert_equal(found, dict(file))
    assert "PRIVATE" not in found
    assert "4.0" not in repr(result)


def test_a_file_says_whether_its_sizes_count_persons(tmp_path):
    assert read_centroids(saved(tmp_path)).counted == "records"
    assert read_centroids(saved(tmp_path, counted="persons")).counted == "persons"


def test_own_sizes_are_not_in_the_message_of_a_result():
    result = whole_result()
    own = replace(result, own_sizes=SiteSizes(np.ones(2), result.counts))
    assert encode_result(own) == encode_result(result)


def test_sizes_of_records_need_ids_exactly_for_persons():
    result = whole_result(weights=None)
    records = [[1.0, 2.0], [3.0, 4.0], [3.0, 3.5], [np.nan, 1.0]]
    assert result.sizes_of(records).own.tolist() == [1, 2]
    # a stream, in blocks
    stream = partial(iter, [np.array(records[:2]), np.array(records[2:])])
    assert result.sizes_of(stream).own.tolist() == [1, 2]
    of_persons = replace(result, counted="persons")
    found = of_persons.sizes_of(records, ["a", "a", "b", "b"])
    assert (found.own.tolist(), found.counted) == ([0.5, 1.5], "persons")
    for wrong, arguments in ((of_persons, ()), (result, (["a"] * 4,))):
        with pytest.raises(ConfigurationError, match="Expected ids exactly"):
            wrong.sizes_of(records, *arguments)


def test_columns_without_names_are_given_some(tmp_path):
    bare = {"domain": Box(**SQUARE), "synopsis": None}
    assert read_centroids(saved(tmp_path, **bare)).columns == ("x0", "x1")
    assert read_centroids(saved(tmp_path, ["a", "b"], **bare)).columns == ("a", "b")
    assert read_centroids(saved(tmp_path, ["age", "visits"])).columns == (
        "age",
        "visits",
    )
    for columns, changes in ((["a"], bare), ([], bare), (["visits", "age"], {})):
        with pytest.raises(ConfigurationError, match="Expected columns as the names"):
            saved(tmp_path, columns, **changes)


def test_an_error_leaves_the_file_of_the_run_before(tmp_path):
    path = saved(tmp_path)
    before = path.read_bytes()
    full = mock.patch.object(
        np, "savez", side_effect=OSError(28, "No space left on device")
    )
    with full, pytest.raises(OSError, match="No space"):
        saved(tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
