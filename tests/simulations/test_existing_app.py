"""An app of FedAvg that gained private clustering: both work in one run, and little was added."""

import importlib
import json
import random
import re
import shutil
import sys
import threading
import tomllib
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from harness import RecordingGrid, switching_collector
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from flower_kmeans.cli.assign import read_centroids
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.protocol.messages import Code
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import SynopsisKMeans

pytestmark = pytest.mark.claim("deploy", "each-node-now-has")

ROOT = Path(__file__).parents[2]
APP = ROOT / "simulations" / "existing-app"
PACKAGE = "digits_app"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())
FLOWER = CONFIG["tool"]["flwr"]["app"]
PAGE = (ROOT / "docs" / "existing-app.md").read_text("utf-8")
MARK = "  # added"
ADDED_FILE = "clusters.py"
FORMS = {  # how apps are made: their client's and their server's file
    "decorators": ("client_app", "server_app"),
    "client_fn": ("numpy_client_app", "numpy_server_app"),
}
N_CLIENTS = 10
IMAGES, DIGITS = load_digits(return_X_y=True)
QUARTERS = IMAGES.reshape(-1, 2, 4, 2, 4).mean(axis=(2, 4)).reshape(-1, 4)


def source(name):
    return (APP / PACKAGE / f"{name}.py").read_text("utf-8")


def added(name):
    """Return the lines of a file that were added, without their mark: imports, and others."""
    lines = [
        line.removesuffix(MARK)
        for line in source(name).splitlines()
        if line.endswith(MARK)
    ]
    return imports_and_others(lines)


@pytest.fixture
def plain(tmp_path):
    """Return a folder with the app as it was: without the marked lines and the added file."""
    folder = tmp_path / "plain"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / PACKAGE / ADDED_FILE).unlink()
    for path in folder.glob("**/*.py"):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text(
            "".join(line for line in lines if not line.rstrip().endswith(MARK))
        )
    return folder


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def load(monkeypatch):
    """Import the client's and the server's app from a folder, afresh."""

    def imported(folder, form):
        forget()
        monkeypatch.syspath_prepend(str(folder))
        client, server = (
            importlib.import_module(f"{PACKAGE}.{name}") for name in FORMS[form]
        )
        assert Path(client.__file__).is_relative_to(folder)
        return client.app, server.app

    yield imported
    forget()


def run(apps, output, node_config=None, **run_config):
    """Run both apps in this process, and return what was left behind and what was sent.

    ``node_config(partition)`` returns what a node's operator configured.
    """
    client_app, server_app = apps
    config = FLOWER["config"] | {"output": str(output)} | run_config
    failed = []

    def client(message, context):
        context.run_config = config
        if node_config is not None:
            context.node_config |= node_config(context.node_config["partition-id"])
        try:
            return client_app(message, context)
        except Exception:
            failed.append(story_of(message, context))
            raise

    grid = RecordingGrid(client, N_CLIENTS)
    # Flower asks clients, and so adds up their models, in a random order
    random.seed(5)
    with task_identity(), failures_of_older_servers(failed):
        server_app(grid, Context(1, 1, {}, RecordDict(), config))
    # Flower goes on without a client that failed, and older servers do not say why it
    # did.
    assert not failed, "\n".join(failed)
    return outcome(output, grid)


def story_of(message, context):
    """Return which client fails, where and why, while its exception is handled."""
    kind, group = message.metadata.message_type, message.metadata.group_id
    return (
        f"client {context.node_config['partition-id']} (node {context.node_id}), {kind} of round "
        f"{group!r}, in {threading.current_thread().name}:\n{traceback.format_exc()}"
    )


@contextmanager
def failures_of_older_servers(failed):
    """Collect all failures that an older server counts: also its own, on the way to a client."""
    with mock.patch.multiple(
        FedAvg,
        aggregate_fit=collecting(FedAvg.aggregate_fit, failed),
        aggregate_evaluate=collecting(FedAvg.aggregate_evaluate, failed),
    ):
        yield


def collecting(aggregate, failed):
    def collect(self, server_round, results, failures):
        for failure in failures:
            shown = (
                "".join(traceback.format_exception(failure))
                if isinstance(failure, BaseException)
                else str(failure[1].status)
            )
            failed.append(
                f"the server, {aggregate.__name__} of round {server_round}:\n{shown}"
            )
        return aggregate(self, server_round, results, failures)

    return collect


def outcome(output, grid=None):
    with np.load(output / "model.npz") as arrays:
        model = [arrays[name] for name in arrays.files]
    accuracies = list(json.loads((output / "accuracy.json").read_text()).values())
    clusters = []
    for path in sorted(output.glob("clusters-*.npz")):
        found = read_centroids(path)  # as `assign` does
        clusters.append((found.centroids, found.counts))
    return SimpleNamespace(
        model=model, accuracies=accuracies, clusters=clusters, grid=grid
    )


def check_training(accuracies):
    assert len(accuracies) == FLOWER["config"]["num-server-rounds"]
    assert accuracies[-1] > 0.8  # of ten digits
    assert accuracies[-1] > accuracies[0] + 0.05


def check_clusters(clusters):
    assert len(clusters) == N_CLIENTS
    for centroids, counts in clusters:
        np.testing.assert_array_equal(centroids, clusters[0][0])
        np.testing.assert_array_equal(counts, clusters[0][1])
    centroids = clusters[0][0]
    distances = ((QUARTERS[:, None] - centroids[None]) ** 2).sum(axis=2)
    exact = KMeans(len(centroids), n_init=3, random_state=0).fit(QUARTERS).inertia_
    # 2.05 is one cluster for everything.
    assert distances.min(axis=1).sum() < 1.5 * exact


# ----------------------------------------------------------------------- what was added


def test_it_is_an_app_that_installs_nothing(load):
    assert CONFIG["project"]["dependencies"] == ["flwr>=1.39,<2"]  # see test_bundles.py
    assert FLOWER["components"] == {
        "serverapp": f"{PACKAGE}.server_app:app",
        "clientapp": f"{PACKAGE}.client_app:app",
    }
    client_app, server_app = load(APP, "decorators")
    assert isinstance(client_app, ClientApp)
    assert isinstance(server_app, ServerApp)


def test_without_the_marked_lines_nothing_is_left_of_it(plain):
    files = sorted(plain.glob("**/*.py"))
    assert {path.stem for path in files} > {
        name for form in FORMS.values() for name in form
    }
    for path in files:
        assert not re.search("flower_kmeans|cluster|added", path.read_text("utf-8")), (
            path
        )


def imports_and_others(lines):
    imports = [line for line in lines if re.match("(from|import) ", line)]
    return imports, [line for line in lines if line not in imports]


def test_one_call_was_added_to_the_client_and_four_lines_to_the_server():
    for name, start in (
        ("client_app", "register_kmeans(app, load_data"),
        ("numpy_client_app", "app = with_kmeans(app, load_data"),
    ):
        ((line,), server) = added(name)[1], added("server_app")[1]
        assert line.startswith(start)
    assert len(server) == 4
    assert added("numpy_server_app")[1][-4:] == server
    assert not any(
        MARK in source(name) for name in ("data", "model", "output", "__init__")
    )


def test_the_page_shows_what_was_added():
    blocks = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names = ["client_app", "server_app", "numpy_client_app", "numpy_server_app"]
    assert len(blocks) == len(names)
    for name, block in zip(names, blocks, strict=True):
        lines = [line for line in block.splitlines() if line not in ("", "+")]
        imports, others = imports_and_others(
            [line[1:] for line in lines if line.startswith("+")]
        )
        expected = ([], added(name)[1]) if name.startswith("numpy") else added(name)
        # numpy: no imports
        assert (sorted(imports), others) == (sorted(expected[0]), expected[1])
        for line in lines:
            if line.startswith(" ") and line.strip() != "...":
                assert line[1:] in source(name).splitlines()


def test_the_page_quotes_what_a_server_says():
    # Of a `TooFewClientsError` Flower's log has the sentence.
    quoted = re.findall(r"`Expected at least min_clients=` … `([^`]+)`", PAGE)
    for words, code in zip(quoted, (Code.LEDGER, Code.POLICY, Code.DATA), strict=True):
        assert words in code.sentence


# ------------------------------------------------------------------------- what it does


@pytest.mark.claim("existing-app", "training-stays")
@pytest.mark.parametrize("form", FORMS)
def test_training_is_what_it_was_without_the_clustering(form, load, plain, tmp_path):
    before = run(load(plain, form), tmp_path / "before")
    after = run(load(APP, form), tmp_path / "after")
    check_training(after.accuracies)
    check_clusters(after.clusters)
    assert not before.clusters
    assert len(before.model) == len(after.model) == 2
    for array, other in zip(before.model, after.model, strict=True):
        assert array.any()
        if form == "decorators":
            np.testing.assert_array_equal(array, other)
        else:  # older servers add up in the order in which threads end
            np.testing.assert_allclose(array, other, rtol=1e-9, atol=1e-12)
    assert after.accuracies == pytest.approx(before.accuracies, rel=1e-9)
    other_seed = run(load(APP, form), tmp_path / "other", seed=1)
    assert (other_seed.model[0] != after.model[0]).any()


def test_clients_of_an_older_servers_threads_do_not_disturb_each_other(
    load, plain, tmp_path
):
    """Python before 3.11.8 fails if two clients read an array while the collector runs."""
    with switching_collector():
        run(load(plain, "client_fn"), tmp_path / "out")  # requires that no client fails


def test_a_client_that_fails_is_told_with_its_reason(load, plain, tmp_path):
    client_app, server_app = load(plain, "client_fn")

    def client(message, context):
        metadata = message.metadata
        asked = (
            context.node_config["partition-id"],
            metadata.message_type,
            metadata.group_id,
        )
        if asked == (3, "train", "2"):
            raise ValueError("a node's own business")
        return client_app(message, context)

    with pytest.raises(AssertionError) as told:
        run((client, server_app), tmp_path / "out")
    of_client, of_server = str(told.value).split("the server, ")
    assert (
        "client 3 (node 1004), train of round '2', in ThreadPoolExecutor" in of_client
    )
    assert 'raise ValueError("a node\'s own business")' in of_client
    assert of_server.startswith("aggregate_fit of round 2:")
    assert "a node's own business" in of_server


@pytest.fixture
def blind(tmp_path):
    """Return a folder with the app as the page changes it for a server that sees no cluster."""
    folder = tmp_path / "blind"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / PACKAGE / "server_app.py"
    text = path.read_text("utf-8")
    (trust,) = set(re.findall(r'`(trust="[a-z-]+")`', PAGE))
    assert "n_clients=10)" in text
    path.write_text(text.replace("n_clients=10)", f"n_clients=10, {trust})"), "utf-8")
    return folder


@pytest.fixture
def results(monkeypatch):
    """Return a list to which each run of the strategy adds what its server has."""
    found, start = [], SynopsisKMeans.start
    monkeypatch.setattr(
        SynopsisKMeans, "start", lambda *given: found.append(start(*given)) or found[-1]
    )
    return found


@pytest.mark.claim("existing-app", "under-clients-only-client")
def test_server_and_clients_have_the_same_centroids(load, results, tmp_path):
    done = run(load(APP, "decorators"), tmp_path / "out")
    (result,) = results
    np.testing.assert_array_equal(
        result.arrays["centroids"].numpy(), done.clusters[0][0]
    )


@pytest.mark.claim("threat-model", "does-not-cover-other")
@pytest.mark.claim("existing-app", "under-clients-only-client")
def test_the_server_gets_models_and_no_centroid(load, blind, results, tmp_path):
    output = tmp_path / "out"
    done = run(load(blind, "decorators"), output)
    (result,) = results
    assert not len(result.arrays)
    check_clusters(done.clusters)
    seen = b"".join(message.data for message in [*done.grid.sent, *done.grid.received])
    assert done.model[0][20, 3].tobytes() in seen  # so a centroid would be found
    # A centroid that lies on a bound could be there by chance.
    values = [value for value in done.clusters[0][0].ravel() if value % 1]
    assert len(values) >= 8
    assert not [value for value in values if value.tobytes() in seen]
    clusters = {f"clusters-{i}.npz" for i in range(N_CLIENTS)}
    assert {path.name for path in output.iterdir()} == {
        "model.npz",
        "accuracy.json",
    } | clusters


def policy_files(tmp_path, text):
    """Return what gives every node a policy file, and a ledger, of its own."""

    def node_config(partition):
        folder = tmp_path / f"node-{partition}"
        folder.mkdir(exist_ok=True)
        path = folder / "policy.toml"
        path.write_text(f'state_dir = "state"\n{text}')
        path.chmod(0o644)
        return {"policy-file": str(path)}

    return node_config


@pytest.mark.claim("existing-app", "under-clients-only-client")
def test_on_a_node_the_operators_file_decides(load, tmp_path):
    apps = load(APP, "decorators")
    done = run(apps, tmp_path / "accepted", policy_files(tmp_path, "max_epsilon = 1.0"))
    check_clusters(done.clusters)
    assert (tmp_path / "node-3" / "state").is_dir()
    with pytest.raises(
        TooFewClientsError, match="outside of what the client's policy accepts"
    ):
        run(apps, tmp_path / "refused", policy_files(tmp_path, "max_epsilon = 0.5"))
    # The training came first, and was not lost.
    refused = outcome(tmp_path / "refused")
    check_training(refused.accuracies)
    assert not refused.clusters


@pytest.mark.thorough
@pytest.mark.ray
def test_both_work_on_ray(load, tmp_path, monkeypatch):
    # for the clients' processes
    monkeypatch.setenv("PYTHONPATH", str(APP), prepend=":")
    client_app, server_app = load(APP, "decorators")
    config = FLOWER["config"] | {
        "output": str(tmp_path / "out"),
        "num-server-rounds": 2,
    }
    with_main = ServerApp()

    @with_main.main()
    def main(grid, context):
        context.run_config = config
        server_app(grid, context)

    class Configured(ClientApp):  # `run_simulation` passes no configuration of the run
        def __call__(self, message, context):
            given = context.run_id, context.node_id, context.node_config, context.state
            return client_app(message, Context(*given, run_config=config))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            with_main,
            Configured(),
            num_supernodes=N_CLIENTS,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
        )
    done = outcome(tmp_path / "out")
    assert len(done.accuracies) == 2
    assert done.accuracies[-1] > 0.7
    check_clusters(done.clusters)


# ----------------------------------------------------------------------- what comes out


@pytest.mark.claim("existing-app", "medians-this-function-over")
def test_costs_are_as_the_page_says():
    found = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = (each for each in found if "def cost(" in each)
    code, _, call = block.rpartition("print(")
    namespace = {}
    exec(compile(code, "docs/existing-app.md", "exec"), namespace)  # noqa: S102
    cost, quarters, images = (
        namespace[name] for name in ("cost", "quarters", "images")
    )
    assert "quarters, n_clusters=4, upper=10.0" in call
    np.testing.assert_array_equal(quarters, QUARTERS)
    # The middle 90% of 40, 40 and 20 runs: 1.01 to 1.06, 1.01 to 1.05, and 1.14 to
    # 1.24.
    assert 0.99 < cost(quarters, 4, 10.0) < 1.3
    assert 0.99 < cost(quarters, 4, 16.0) < 1.3
    assert 1.05 < cost(images, 10, 16.0) < 1.4
