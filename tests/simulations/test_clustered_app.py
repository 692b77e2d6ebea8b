"""The app of clustered federated learning: its parts, whole runs in one process, and its table."""

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from harness import RecordingGrid

from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

pytestmark = pytest.mark.claim("existing-app", "cluster-clients-model-per")

APP = Path(__file__).parents[2] / "simulations" / "clustered"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())
FLOWER = CONFIG["tool"]["flwr"]["app"]
N = 16


@pytest.fixture
def parts(monkeypatch):
    """Return the app's modules, imported afresh."""
    monkeypatch.syspath_prepend(str(APP))
    names = ("data", "model", "client_app", "server_app")
    found = {name: importlib.import_module(f"clustered_app.{name}") for name in names}
    yield SimpleNamespace(**found, table=importlib.import_module("table"))
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("clustered_app", "table")
    ]:
        del sys.modules[name]


def context_of(partition, n=N, **changes):
    node = {"partition-id": partition, "num-partitions": n}
    return Context(1, partition, node, RecordDict(), FLOWER["config"] | changes)


def run(parts, output, **changes):
    config = {
        "n-clients": N,
        "epsilon": 200.0,
        "num-server-rounds": 3,
        "output": str(output),
    }
    config = FLOWER["config"] | config | changes

    def client(message, context):
        context.run_config = config
        return parts.client_app.app(message, context)

    grid = RecordingGrid(client, N)
    with task_identity():
        parts.server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    return json.loads((output / "accuracy.json").read_text()), grid


def test_it_is_an_app_that_installs_nothing(parts):
    assert CONFIG["project"]["dependencies"] == ["flwr>=1.39,<2"]  # see test_bundles.py
    assert FLOWER["components"] == {
        "serverapp": "clustered_app.server_app:app",
        "clientapp": "clustered_app.client_app:app",
    }
    assert isinstance(parts.client_app.app, ClientApp)
    assert isinstance(parts.server_app.app, ServerApp)


def test_every_image_is_at_one_client_as_its_scanner_shows_it(parts):
    seen = []
    for partition in range(N):
        train, digits, aside, others = parts.data.split(context_of(partition))
        assert (len(train), len(aside)) == (len(digits), len(others))
        assert len(aside) == pytest.approx(len(train) / 4, abs=1)
        for image in np.concatenate([train, aside]):
            image = 16 - image if partition % 4 >= 2 else image
            seen.append((np.rot90(image, -1) if partition % 2 else image).tobytes())
    original, _ = parts.data.load_digits(return_X_y=True)
    assert sorted(seen) == sorted(image.tobytes() for image in original)
    first, _, _, _ = parts.data.split(context_of(0))
    other, _, _, _ = parts.data.split(context_of(0, seed=1))
    assert not np.array_equal(first, other)


def test_statistics_are_one_record_in_the_public_bounds_and_tell_scanners_apart(parts):
    records = np.concatenate(
        [parts.data.statistic(context_of(i, 100)) for i in range(100)]
    )
    assert records.shape == (100, 2)
    assert records.min() >= 0
    assert records.max() <= 16
    means = np.array([records[group::4].mean(axis=0) for group in range(4)])
    nearest = np.linalg.norm(records[:, None] - means, axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, np.arange(100) % 4)
    # Of training images alone: those that are kept aside are not in it.
    images, *_ = parts.data.split(context_of(0, 100))
    edges = np.concatenate([images[:, :2], images[:, -2:]], axis=1)
    assert records[0, 0] == pytest.approx(edges.mean())


def test_a_model_per_cluster_reads_what_one_for_all_does_not(parts, tmp_path):
    found, grid = run(parts, tmp_path)
    assert found["epsilon"] == pytest.approx(200)
    assert found["clients"] == [N // 4] * 4
    assert found["one model per cluster"] > 0.75
    assert found["one model for all"] < 0.5
    # What the clients clustered left none of them as it is.
    sent = b"".join(message.data for message in [*grid.sent, *grid.received])
    for partition in range(N):
        assert parts.data.statistic(context_of(partition)).tobytes() not in sent


def test_without_privacy_the_clusters_are_exact(parts, tmp_path):
    found, _ = run(parts, tmp_path, epsilon=0.0)
    assert (found["epsilon"], found["clients"]) == (None, [N // 4] * 4)


def test_a_client_returns_its_nearest_cluster(parts):
    with task_identity():
        grid = InProcessGrid(
            lambda message, _: parts.client_app.app(message, context_of(5)), 1
        )
        own = parts.data.statistic(context_of(5))
        for centroids, nearest in (
            ([own + 3, own - 0.1, own - 3], 1),
            ([own, own + 1], 0),
        ):
            content = RecordDict(
                {"centroids": ArrayRecord([np.concatenate(centroids)])}
            )
            (node,) = grid.get_node_ids()
            (reply,) = grid.send_and_receive([Message(content, node, "query.cluster")])
            assert reply.content.metric_records["metrics"]["cluster"] == nearest


def test_a_model_is_trained_among_its_clients_alone_and_evaluated_once(parts):
    arrays, config = ArrayRecord(parts.model.initial_model()), ConfigRecord()
    with task_identity():
        grid = InProcessGrid(parts.client_app.app, 6)
        nodes = sorted(grid.get_node_ids())
        strategy = parts.server_app.FedAvgAmong(nodes[1:3], num_rounds=2)
        for t, evaluating in ((1, []), (2, nodes[1:3])):
            messages = strategy.configure_train(t, arrays, config, grid)
            assert sorted(each.metadata.dst_node_id for each in messages) == nodes[1:3]
            messages = strategy.configure_evaluate(t, arrays, config, grid)
            assert sorted(each.metadata.dst_node_id for each in messages) == evaluating


def test_the_table_is_made_by_its_script(parts):
    changes = {"n-clients": 8, "num-server-rounds": 1, "local-passes": 1}
    head, line, *made = parts.table.rows([100.0], 1, **changes)
    assert (head, line) == ("| model | accuracy |", "|---|---|")
    names = [
        "one per private cluster, ε = 100",
        "one per cluster, no noise",
        "one for all",
    ]
    assert [row.split(" | ")[0].removeprefix("| ") for row in made] == names
    readme = (APP / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (one .*?) \| (0\.\d+) \(", readme, re.MULTILINE)
    shown = {name: float(value) for name, value in rows}
    assert [name for name in shown if "private" not in name] == names[1:]
    assert {f"one per private cluster, ε = {e}" for e in ("0.5", "1", "2")} < set(shown)
    # What the page says of them.
    assert shown.pop("one for all") < 0.3 < 0.7 < min(shown.values())
