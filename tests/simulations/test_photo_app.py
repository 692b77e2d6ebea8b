"""The Flower app of the photograph: its configuration, and a whole run of its two apps."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from scripts import load_script

from flower_kmeans.data.datasets import PHOTO_RECORDS
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

APP = Path(__file__).parents[2] / "simulations" / "photo"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())
FLOWER = CONFIG["tool"]["flwr"]["app"]


@pytest.fixture
def apps(monkeypatch):
    """Return the app's client and server, as its configuration names them."""
    found = []
    for side in ("clientapp", "serverapp"):
        name, _, attribute = FLOWER["components"][side].partition(":")
        found.append(getattr(load_script(monkeypatch, name, APP), attribute))
    return found


def test_it_is_an_app_that_installs_nothing(apps):
    # Flower installs an app's dependencies from the package index, offline or not.
    assert CONFIG["project"]["dependencies"] == ["flwr>=1.39,<2"]  # see test_bundles.py
    assert FLOWER["publisher"]
    assert [type(app) for app in apps] == [ClientApp, ServerApp]
    defaults = FLOWER["config"]  # those of the command line
    assert (defaults["n-clusters"], defaults["epsilon"]) == (16, 1.0)
    assert defaults["trust"] == "distributed-noise"


@pytest.mark.default_cases("distributed-noise")
@pytest.mark.parametrize(
    "trust", ["clients-only", "distributed-noise", "trusted-server"]
)
def test_a_run_leaves_report_centroids_and_picture(apps, tmp_path, trust):
    client_app, server_app = apps
    output = tmp_path / "out"
    config = FLOWER["config"] | {"n-clusters": 4, "trust": trust, "output": str(output)}

    def client(message, context):
        context.run_config = config
        return client_app(message, context)

    with task_identity():
        server_app(InProcessGrid(client, 5), Context(1, 1, {}, RecordDict(), config))
    report = json.loads((output / "report.json").read_text())
    assert (report["trust"], report["n_clients"]) == (trust, 5)
    assert report["epsilon"] == pytest.approx(1)
    assert report["n_records"] == PHOTO_RECORDS
    page = (output / "report.html").read_text("utf-8")
    assert ("must never see them" in page) == (trust == "clients-only")
    assert ("<caption>Centroids</caption>" in page) == (trust != "clients-only")
    with np.load(output / "centroids.npz") as saved:
        assert saved["centroids"].shape == (4, 3)
    assert len((output / "centroids.csv").read_text().splitlines()) == 5
    assert (output / "picture.png").read_bytes().startswith(b"\x89PNG")
