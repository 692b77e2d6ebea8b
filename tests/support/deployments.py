"""What tests of deployments share: their scripts as modules, and what a run of three must give."""

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import FastLloyd

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "simulations" / "deployment"
PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
ROUNDS = 3

# In squared units of records that lie within 14 of 0. The noise of such a run makes about 2e-4;
# this is ten standard deviations of it and more.
CLOSE = 0.01

NEVER_SEEN = "The centroids are with the clients."  # in a page of an oblivious server


def load_script(monkeypatch, name, folder=FOLDER):
    """Import a script's module from its folder, and forget it with all that it imported there."""
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    module = importlib.import_module(name)
    for loaded in set(sys.modules) - before:
        if str(getattr(sys.modules[loaded], "__file__", "")).startswith(str(folder)):
            del sys.modules[loaded]
    return module


def left_after(processes, seconds=60.0):
    """Return which processes still run when those that were told to end had time to do so."""
    deadline = time.monotonic() + seconds
    while (left := processes.left()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def one_result(running):
    """Return the result of all nodes, which must be the same."""
    results = []
    for path in running.results:
        with np.load(path) as result:
            results.append((result["centroids"], result["counts"]))
    for centroids, counts in results:
        np.testing.assert_array_equal(centroids, results[0][0])
        np.testing.assert_array_equal(counts, results[0][1])
    return results[0]


def solution_of(partitions):
    """Return the centroids that k-means finds in all records."""
    return KMeans(3, n_init=5, random_state=0).fit(np.vstack(partitions)).cluster_centers_


def kept_by_the_server(running):
    """Return the content of whatever the SuperLink and the server left in files."""
    link = running.directory / "link"
    pages = [running.report, running.report.with_suffix(".html")]
    kept = [*pages, *running.processes.logs.glob("*.log"), *link.glob("superlink.db*")]
    assert link / "superlink.db" in kept
    return {path: path.read_bytes() for path in kept}


def check_outcome(running, partitions, trust="oblivious-server"):
    """Check that all nodes learnt the same, what they should, and the server nothing."""
    centroids, _ = one_result(running)
    report = json.loads(running.report.read_text("utf-8"))
    assert report["arrays_at_the_server"] == []
    page = running.report.with_suffix(".html").read_text("utf-8")
    assert NEVER_SEEN in page
    n_nodes = len(partitions)
    assert (report["trust"], report["keys"]) == (trust, "roster")
    assert (report["n_clients"], report["n_rounds"]) == (n_nodes, ROUNDS)
    assert report["answers"] == [n_nodes] * ROUNDS
    assert report["round_trips"] == (ROUNDS + 3 if trust == "oblivious-server" else 2 * ROUNDS + 2)
    assert report["dropped"] == []
    assert report["epsilon"] == pytest.approx(1)
    # Of whatever the SuperLink kept, nothing holds a centroid's bytes or digits. A single number
    # may be as plain as 0.0, which is found anywhere: bytes are looked for by row and by column.
    searched = [line.tobytes() for line in (*centroids, *np.ascontiguousarray(centroids.T))]
    digits = [repr(float(value)).encode() for value in centroids.ravel()]
    searched += [text for text in digits if len(text) > 8]
    assert len(searched) > sum(centroids.shape)
    for path, content in kept_by_the_server(running).items():
        assert not [text for text in searched if text in content], path

    solution = solution_of(partitions)
    strategy = FastLloyd(
        3,
        Box([-14.0] * 2, [14.0] * 2),
        PrivacyBudget(epsilon=1.0),
        n_records=30_000,
        n_clients=n_nodes,
        n_rounds=ROUNDS,
    )
    simulated = simulate(strategy, partitions, engine="in-process").centroids
    assert matched_centroid_error(simulated, solution) < CLOSE
    assert matched_centroid_error(centroids, solution) < CLOSE


def check_shared_outcome(running, partitions, strategy, n_rounds):
    """Check that nodes and server have one good result of a strategy; return its report."""
    centroids, counts = one_result(running)
    report = json.loads(running.report.read_text("utf-8"))
    assert (report["strategy"], report["trust"]) == (strategy, "distributed-noise")
    assert report["arrays_at_the_server"] == ["centroids", "counts"]
    assert report["answers"] == [3] * n_rounds
    assert report["dropped"] == []
    assert report["epsilon"] == pytest.approx(1)
    assert matched_centroid_error(centroids, solution_of(partitions)) < CLOSE
    assert np.abs(counts - 10_000).max() < 1000
    return report


def check_feddp_outcome(running, partitions, points):
    """Check that nodes and server have one good result, and the server's points went nowhere."""
    report = check_shared_outcome(running, partitions, "FedDPKMeans", 3 + ROUNDS)
    assert report["warnings"] == []
    for path, content in kept_by_the_server(running).items():
        for value in points.ravel():
            assert value.tobytes() not in content, path
            assert repr(float(value)).encode() not in content, path
