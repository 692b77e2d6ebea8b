"""The Flower app of the photograph: its configuration, and a whole run of its two apps."""

import importlib.util
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_kmeans.datasets import PHOTO_RECORDS
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity

APP = Path(__file__).parents[2] / "simulations" / "photo"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())
FLOWER = CONFIG["tool"]["flwr"]["app"]


def load(component):
    module_name, _, attribute = FLOWER["components"][component].partition(":")
    spec = importlib.util.spec_from_file_location(f"photo_{module_name}", APP / f"{module_name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, attribute)


def run(run_config, n_clients=5):
    client_app = load("clientapp")

    def client(message, context):
        context.run_config = run_config
        return client_app(message, context)

    context = Context(1, 1, {}, RecordDict(), run_config)
    with task_identity():
        load("serverapp")(InProcessGrid(client, n_clients), context)


def test_it_is_an_app_that_installs_nothing():
    # Flower installs an app's dependencies from the package index, offline or not.
    assert CONFIG["project"]["dependencies"] == []
    assert FLOWER["publisher"]
    assert isinstance(load("serverapp"), ServerApp)
    assert isinstance(load("clientapp"), ClientApp)


def test_its_defaults_are_the_photograph_of_the_command_line():
    defaults = FLOWER["config"]
    assert (defaults["n-clusters"], defaults["epsilon"]) == (16, 1.0)
    assert defaults["trust"] == "oblivious-server"


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "trusted-server"])
def test_a_run_leaves_report_centroids_and_picture(tmp_path, trust):
    output = tmp_path / "out"
    run(FLOWER["config"] | {"n-clusters": 4, "trust": trust, "output": str(output)})
    report = json.loads((output / "report.json").read_text())
    assert (report["trust"], report["n_clients"]) == (trust, 5)
    assert report["epsilon"] == pytest.approx(1)
    assert report["n_records"] == PHOTO_RECORDS
    page = (output / "report.html").read_text("utf-8")
    assert ("must never see them" in page) == (trust == "oblivious-server")
    assert ("<caption>Centroids</caption>" in page) == (trust != "oblivious-server")
    with np.load(output / "centroids.npz") as saved:
        assert saved["centroids"].shape == (4, 3)
    assert len((output / "centroids.csv").read_text().splitlines()) == 5
    assert (output / "picture.png").read_bytes().startswith(b"\x89PNG")
