"""Simulations on Ray clusters: on two nodes, over lost workers and nodes, without a cluster."""

import os
import re
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ray_clusters import two_nodes

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, simulate
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.simulation.ray import _shared_by_run, _shared_in
from flower_kmeans.strategies import FastLloyd, Lloyd, VerticalKMeans

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")

BOX = Box([0.0, -5.0], [10.0, 5.0])
M = 8


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of two nodes, whose workers need not find this file."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = two_nodes()
    yield cluster
    cluster.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def connected(cluster):
    """Connect this process to the cluster for all runs from here on; workers are started once."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(cluster.address, log_to_driver=False, runtime_env={"env_vars": path})
    yield
    ray.shutdown()


def records_of(partition):
    return np.random.default_rng(partition).uniform(
        [0, -5], [10, 5], (5 + partition, 2)
    )


def lloyd():
    return Lloyd(3, BOX, n_clients=M, n_rounds=3)


def assert_same(clustering):
    """Compare with the same run in this process."""
    expected = simulate(lloyd(), [records_of(i) for i in range(M)])
    np.testing.assert_array_equal(clustering.centroids, expected.centroids)
    np.testing.assert_array_equal(clustering.counts, expected.counts)
    assert clustering.report.answers == [M] * 3


class Found:
    """What Ray finds among the processes of this machine: no cluster."""

    def __call__(self):
        return set()

    def cache_clear(self):
        pass


def test_a_worker_keeps_what_clients_of_one_run_share():
    first = _shared_in("first")
    assert _shared_in("first") is first
    assert first.secret((b"name",), lambda: b"secret") == b"secret"
    second = _shared_in("second")
    assert second is not first
    assert list(_shared_by_run) == ["second"]


def node():
    return ray.get_runtime_context().get_node_id()


def noted(directory, partition):
    """Return records, and leave word of the node that reads them."""
    (directory / node()).touch()
    return records_of(partition)


def dying(directory, partition):
    """Return records, but not before one worker has died at it."""
    if partition == 2 and not (directory / "died").exists():
        (directory / "died").touch()
        os._exit(1)
    return records_of(partition)


def data_set(partition):
    import ray.data

    return ray.data.from_items([{"data": row} for row in records_of(partition)])


def wait_for(seconds):
    time.sleep(seconds)


def always_dying(partition):
    if partition == M - 1:
        os._exit(1)
    return records_of(partition)


@pytest.mark.claim("reference/simulation", "partitions-function-partition-id")
@pytest.mark.thorough
def test_a_function_is_called_on_both_nodes_which_need_no_file_of_this_process(
    cluster, tmp_path, monkeypatch
):
    own, nodes = tmp_path / "temporary", tmp_path / "nodes"
    own.mkdir()
    nodes.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    load = partial(noted, nodes)
    assert_same(simulate(lloyd(), load, engine="ray", ray_address=cluster.address))
    assert {path.name for path in nodes.iterdir()} == {
        each["NodeID"] for each in alive(cluster)
    }
    assert list(own.iterdir()) == []
    assert not ray.is_initialized()


def alive(cluster):
    ray.init(cluster.address, log_to_driver=False)
    try:
        return [each for each in ray.nodes() if each["Alive"]]
    finally:
        ray.shutdown()


@pytest.mark.claim("reference/simulation", "engine-ray-error-then")
@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize("address", ["127.0.0.1:9", "auto", "nobody"])
def test_an_address_without_a_cluster_is_refused(by, address, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # "auto" finds none there
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", Found())
    if by == "environment":
        monkeypatch.setenv("RAY_ADDRESS", address)
    else:
        monkeypatch.delenv("RAY_ADDRESS")
    given = address if by == "argument" else None
    with pytest.raises(
        ConfigurationError, match=rf"Expected ray_address.*'{re.escape(address)}'"
    ):
        simulate(lloyd(), records_of, engine="ray", ray_address=given)
    assert not ray.is_initialized()


@pytest.mark.claim("reference/simulation", "partitions-function-partition-id")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_references_and_arrays_are_partitions_and_the_connection_stays():
    references = [ray.put(records_of(i)) for i in range(M)]
    assert_same(simulate(lloyd(), references, engine="ray"))
    large = [np.repeat(records_of(i), 1000, axis=0) for i in range(M)]
    expected = simulate(lloyd(), large)
    found = simulate(lloyd(), large, engine="ray")
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert ray.is_initialized()


@pytest.mark.claim(
    "reference/simulation",
    "simulate-makes-keys-rosters",
    "partitions-function-partition-id",
)
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_keys_of_a_roster_reach_both_nodes_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = []
    strategy = FastLloyd(
        3,
        BOX,
        PrivacyBudget(1e6),
        n_records=68,
        n_clients=M,
        n_rounds=2,
        trust="clients-only",
        keys="roster",
        on_round=lambda info: found.extend(path.name for path in tmp_path.glob("*/*")),
    )
    clustering = simulate(strategy, [records_of(i) for i in range(M)], engine="ray")
    assert clustering.report.keys == "roster"
    assert clustering.report.answers == [M] * 2
    assert found == ["roster.toml"] * 2


@pytest.mark.claim("reference/simulation", "worker-node-lost-tasks")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_run_survives_a_worker(tmp_path):
    assert_same(simulate(lloyd(), partial(dying, tmp_path), engine="ray"))
    assert (tmp_path / "died").exists()


@pytest.mark.claim("reference/simulation", "worker-node-lost-tasks")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_run_ends_where_workers_die_again_and_again():
    with pytest.raises(
        RunError, match=r"workers of a task 4 times.*Start the run again"
    ):
        simulate(lloyd(), always_dying, engine="ray")


@pytest.mark.claim("reference/simulation", "worker-node-lost-tasks")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_run_survives_a_node(cluster):
    extra = cluster.add_node(num_cpus=1)

    def lose(info):
        if info.round == 1:
            cluster.remove_node(extra, allow_graceful=False)

    assert_same(simulate(lloyd(), records_of, engine="ray", on_round=lose))


@pytest.mark.claim("reference/simulation", "engine-ray-error-then")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_data_sets_of_ray_are_not_read_by_tasks_that_hold_the_processors():
    """They are read by tasks, which would wait for these."""
    with pytest.raises(TooFewClientsError, match="records could not be loaded"):
        simulate(lloyd(), data_set, engine="ray", timeout=60)


@pytest.mark.claim("reference/simulation", "worker-node-lost-tasks")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_run_for_which_no_processor_becomes_free_ends_at_its_timeout(cluster):
    held = [ray.remote(num_cpus=1)(wait_for).remote(600) for _ in range(2)]
    while ray.available_resources().get("CPU", 0):
        time.sleep(0.1)
    try:
        with pytest.raises(TooFewClientsError, match="Got 0"):
            simulate(lloyd(), records_of, engine="ray", timeout=1.0)
    finally:
        for task in held:
            ray.cancel(task, force=True)


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_function_that_workers_cannot_read_ends_the_run():
    class Unreadable:
        def __call__(self, partition):
            return records_of(partition)

        def __reduce__(self):
            return exec, ("raise ValueError('7.25 is a record')",)

    with pytest.raises(RunError, match="same Python and packages") as caught:
        simulate(lloyd(), Unreadable(), engine="ray")
    assert "7.25" not in str(caught.value)


def table(partition):
    """Return the records as a partitioner of flwr-datasets returns them."""
    from datasets import Dataset

    return Dataset.from_dict(dict(zip("xy", records_of(partition).T, strict=True)))


def lazy_table(partition):
    """Return a table for one partition that is not read."""
    import polars

    return polars.LazyFrame({"x": [1.0]}) if partition == 3 else table(partition)


def malformed(partition):
    return [["n/a", 1.0]] if partition == 3 else records_of(partition)


@pytest.mark.claim("own-data", "refused-type-one-sentence")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_function_whose_tables_are_refused_sends_nothing(monkeypatch):
    """Workers read what a function or a reference has before the run begins."""
    assert_same(simulate(lloyd(), table, engine="ray"))
    assert_same(simulate(lloyd(), [ray.put(table(i)) for i in range(M)], engine="ray"))
    monkeypatch.setattr("flower_kmeans.simulation.ray.RayGrid.push_messages", None)
    with pytest.raises(
        ConfigurationTypeError, match=r"partition 3 cannot be used.*Got LazyFrame"
    ):
        simulate(lloyd(), lazy_table, engine="ray")
    with pytest.raises(
        ConfigurationTypeError, match=r"partition 3 cannot be used.*Got LazyFrame"
    ):
        simulate(lloyd(), [ray.put(lazy_table(i)) for i in range(M)], engine="ray")
    with pytest.raises(DataError, match=r"finite numbers in partition 3"):
        simulate(lloyd(), malformed, engine="ray")
    assert ray.is_initialized()


@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_another_address_than_that_of_the_connection_is_refused():
    with pytest.raises(ConfigurationError, match="to which this process is connected"):
        simulate(lloyd(), records_of, engine="ray", ray_address="127.0.0.1:1")


@pytest.mark.claim("reference/simulation", "engine-ray-error-then")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_a_ledger_needs_a_cluster_of_one_node(tmp_path):
    policy = replace(ClientPolicy.for_simulation(), state_dir=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"state_dir.*Got [23] nodes"):
        simulate(Lloyd(3, BOX), [records_of(0)], engine="ray", policy=policy)


@pytest.mark.claim("reference/simulation", "engine-ray-error-then")
@pytest.mark.thorough
@pytest.mark.usefixtures("connected")
def test_columns_need_a_cluster_of_one_node():
    strategy = VerticalKMeans(2, BOX, PrivacyBudget(1.0), n_records=5, parties=[1, 1])
    parts = np.split(records_of(0), 2, axis=1)
    with pytest.raises(
        ConfigurationError, match=r"party 0 of VerticalKMeans.*Got [23] nodes"
    ):
        simulate(strategy, parts, engine="ray")
