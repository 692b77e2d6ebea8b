"""Runs beside each other in one process: threads, joblib, asyncio, and one connection to Ray."""

import asyncio
import contextlib
import itertools
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from joblib import Parallel, delayed

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy import randomness
from flower_kmeans.simulation import engines
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.simulation.ray import connected
from flower_kmeans.strategies import FastLloyd, Lloyd, SynopsisKMeans

pytestmark = pytest.mark.claim("reference/simulation", "runs-may-overlap-one")

BOX = Box([0.0, -5.0], [10.0, 5.0])
CENTRES = np.array([[2.0, -3.0], [5.0, 3.0], [8.0, -1.0]])
ORDERS = list(itertools.permutations(range(3)))
SECONDS = 60  # after which a thread that waits for another one gives up


def records_of(seed, n=300):
    rng = np.random.default_rng(seed)
    return CENTRES[rng.integers(0, 3, n)] + rng.normal(0, 0.3, (n, 2))


def parts_of(seed):
    return np.array_split(records_of(seed), 4)


def lloyd(n_rounds=4):
    return Lloyd(3, BOX, n_clients=4, n_rounds=n_rounds)


def assert_is_run(found, seed):
    """Compare with the same run by itself."""
    expected = simulate(lloyd(), parts_of(seed))
    np.testing.assert_array_equal(found.centroids, expected.centroids)
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert found.report.answers == [4] * 4


def identity():
    return TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id


@pytest.fixture(autouse=True)
def _nothing_is_left():
    assert identity() == (None, None, None)
    yield
    assert identity() == (None, None, None)


@pytest.mark.parametrize("order", ORDERS)
def test_messages_can_be_made_until_the_last_of_overlapping_runs_has_ended(order):
    own = [contextlib.ExitStack() for _ in order]
    for stack in own:
        stack.enter_context(task_identity())
    for i in order:
        Message(RecordDict(), 1001, "query")
        own[i].close()
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1001, "query")


def test_an_identity_that_flower_has_set_stays(monkeypatch):
    for name, value in (("_task_id", 5), ("_run_id", 6), ("_node_id", 7)):
        monkeypatch.setattr(TaskIdentity, name, value)
    assert_is_run(simulate(lloyd(), parts_of(1)), 1)
    assert identity() == (5, 6, 7)
    monkeypatch.undo()
    with task_identity():
        # By a thread that starts a run of Flower meanwhile, which never removes it.
        for name, value in (("task_id", 5), ("run_id", 6), ("node_id", 7)):
            monkeypatch.setattr(TaskIdentity, f"_{name}", value)
    assert identity() == (5, 6, 7)
    monkeypatch.undo()
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = None


def run_in_order(begun, ended, **options):
    """Run in three threads that all are in their first round at once; return what they found.

    The threads begin in one order and end in another.
    """
    inside = [threading.Event() for _ in begun]
    go_on = [threading.Event() for _ in begun]

    def run(i):
        def on_round(info):
            if info.round == 1:
                inside[i].set()
                assert go_on[i].wait(SECONDS)

        return simulate(lloyd(), parts_of(i), on_round=on_round, **options)

    found = {}
    with ThreadPoolExecutor(3) as pool:
        for i in begun:
            found[i] = pool.submit(run, i)
            assert inside[i].wait(SECONDS), found[i].exception(0)
        for i in ended:
            go_on[i].set()
            found[i] = found[i].result(SECONDS)
    return found


@pytest.mark.parametrize("ended", ORDERS)
def test_runs_in_threads_may_end_in_any_order(ended):
    for i, found in run_in_order((0, 1, 2), ended).items():
        assert_is_run(found, i)


def test_a_run_that_fails_leaves_the_others(monkeypatch):
    begun, failed = threading.Event(), threading.Event()

    def on_round(info):
        begun.set()
        assert failed.wait(SECONDS)

    def fail(info):
        raise ValueError("the caller's own")

    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(simulate, lloyd(), parts_of(1), on_round=on_round)
        assert begun.wait(SECONDS)
        with pytest.raises(ValueError, match="the caller's own"):
            simulate(lloyd(), parts_of(2), on_round=fail)
        failed.set()
        assert_is_run(good.result(SECONDS), 1)


def private(name):
    if name == "FastLloyd":  # of which every client has keys
        budget = PrivacyBudget(20.0)
        return FastLloyd(3, BOX, budget, 300, n_clients=4, trust="distributed-noise")
    return SynopsisKMeans(3, BOX, PrivacyBudget(20.0), 300, n_clients=4)


@pytest.mark.parametrize("name", ["FastLloyd", "SynopsisKMeans"])
def test_runs_of_equal_records_at_once_have_their_own_keys_and_noise(name, monkeypatch):
    drawn, source = [], randomness._os_random

    def recorded(n):
        drawn.append(source(n))
        return drawn[-1]

    monkeypatch.setattr(randomness, "_os_random", recorded)
    start = threading.Barrier(4)

    def run(_):
        strategy = private(name)
        start.wait(SECONDS)
        return simulate(strategy, parts_of(1))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    keys = [each for each in drawn if len(each) >= 16]
    assert len(keys) >= 4
    assert len(set(keys)) == len(keys)
    assert len({each.counts.tobytes() for each in found}) == 4
    for each in found:
        distances = np.linalg.norm(CENTRES[:, None] - each.centroids, axis=2)
        assert (distances.min(axis=1) < 1.0).all()
        assert each.counts.sum() == pytest.approx(300, abs=60)


def test_joblibs_threads():
    tasks = (delayed(simulate)(lloyd(), parts_of(i)) for i in range(5))
    for i, found in enumerate(Parallel(n_jobs=3, prefer="threads")(tasks)):
        assert_is_run(found, i)


def test_asyncio_and_a_loop_that_runs_as_in_a_notebook():
    async def cells():
        here = simulate(lloyd(), parts_of(0))
        tasks = (asyncio.to_thread(simulate, lloyd(), parts_of(i)) for i in range(1, 4))
        return [here, *await asyncio.gather(*tasks)]

    for i, found in enumerate(asyncio.run(cells())):
        assert_is_run(found, i)


def test_one_strategy_has_one_run_at_a_time():
    strategy, begun, refused = lloyd(), threading.Event(), threading.Event()

    def on_round(info):
        begun.set()
        assert refused.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(simulate, strategy, parts_of(1), on_round=on_round)
        assert begun.wait(SECONDS)
        with pytest.raises(
            ConfigurationError, match="a different strategy for each run"
        ):
            simulate(strategy, parts_of(2))
        refused.set()
        assert_is_run(first.result(SECONDS), 1)
    assert_is_run(simulate(strategy, parts_of(3)), 3)  # one after the other


# --------------------------------------------------------------------------- Ray


@pytest.fixture
def pretended(monkeypatch):
    """Put a module in the place of Ray, which only says whether it is connected."""
    ray = types.ModuleType("ray")
    calls = []

    def init(**options):
        calls.append("init")

    def shutdown():
        calls.append("shutdown")

    ray.init, ray.shutdown, ray.calls = init, shutdown, calls
    ray.is_initialized = lambda: calls.count("init") > calls.count("shutdown")
    ray.cluster_resources = lambda: {"CPU": 2.0}
    ray.get_runtime_context = lambda: types.SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.claim("reference/simulation", "runs-engine-ray-share")
@pytest.mark.parametrize("order", ORDERS)
def test_runs_share_one_connection_which_the_last_one_ends(pretended, order):
    own = [contextlib.ExitStack() for _ in order]
    for stack in own:
        stack.enter_context(connected(None))
    for i in order:
        assert pretended.calls == ["init"]
        own[i].close()
    assert pretended.calls == ["init", "shutdown"]


@pytest.mark.claim("reference/simulation", "runs-engine-ray-share")
def test_a_connection_of_the_caller_stays(pretended):
    pretended.init()
    other = connected("10.0.0.2:6379")
    with connected(None), connected("10.0.0.1:6379"):
        with pytest.raises(
            ConfigurationError, match=r"ray_address as '10\.0\.0\.1:6379'"
        ):
            other.__enter__()
        assert pretended.calls == ["init"]
    assert pretended.calls == ["init"]


@pytest.fixture
def without_start(pretended, monkeypatch):
    """Let Ray not start, and all runs be long."""

    def init(**options):
        raise RuntimeError("The raylet\n  died early. ")

    pretended.init = init
    monkeypatch.setattr(engines, "_MUCH_WORK", 0)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    monkeypatch.delenv("RAY_ADDRESS")


REASON = r"Ray cannot be started \(RuntimeError: The raylet died early\)"


@pytest.mark.claim("reference/simulation", "where-ray-cannot-be")
@pytest.mark.usefixtures("without_start")
def test_where_ray_does_not_start_auto_goes_on_here_and_says_so():
    strategy = Lloyd(3, BOX, n_records=300, n_clients=4, n_rounds=4)
    with pytest.warns(
        RuntimeWarning, match=f"goes on in this process. {REASON}"
    ) as caught:
        found = simulate(strategy, parts_of(1), engine="auto")
    assert caught[0].filename == __file__
    assert_is_run(found, 1)
    with pytest.raises(ConfigurationError, match=REASON):
        simulate(strategy, parts_of(1), engine="ray")
    assert_is_run(simulate(strategy, parts_of(1)), 1)


@pytest.mark.claim("reference/simulation", "where-ray-cannot-be")
def test_auto_goes_on_here_where_ray_is_broken(monkeypatch, tmp_path):
    (tmp_path / "ray.py").write_text("raise OSError('libray.so: wrong ELF class')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(engines, "_MUCH_WORK", 0)
    strategy = Lloyd(3, BOX, n_records=300, n_clients=4, n_rounds=4)
    with pytest.warns(RuntimeWarning, match="OSError: libray.so: wrong ELF class"):
        assert_is_run(simulate(strategy, parts_of(1), engine="auto"), 1)


@pytest.mark.claim("reference/simulation", "runs-engine-ray-share")
@pytest.mark.ray
@pytest.mark.thorough
def test_runs_on_ray_may_end_in_another_order_than_they_began():
    ray = pytest.importorskip("ray")
    # The one that started Ray ends first, and the last one uses it on.
    for i, found in run_in_order((0, 1, 2), (0, 2, 1), engine="ray").items():
        assert_is_run(found, i)
    assert not ray.is_initialized()
