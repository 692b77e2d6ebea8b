"""Packages that only some features need: not installed, or installed but broken."""

import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

from flower_kmeans import Box, PrivacyBudget, simulate, strategies
from flower_kmeans.algorithms.numerics.initialization import (
    server_kmeans_plus_plus,
    server_lloyd,
)
from flower_kmeans.baselines import local_centers
from flower_kmeans.data.datasets import load_photo
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require

ABI = "A module that was compiled using NumPy 1.x\n  cannot be run in\nNumPy 2.0. "


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that installs a package of one file."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(text):
        (tmp_path / "brittle.py").write_text(text)
        monkeypatch.delitem(sys.modules, "brittle", raising=False)

    return install


def refusal(module="brittle", **options):
    with pytest.raises(ConfigurationError) as caught:
        require(module, "A picture", "plots", **options)
    return str(caught.value)


def test_what_is_not_installed_names_its_extra(package):
    words = "install it with pip install 'flower-kmeans[plots]'"
    assert refusal() == f"A picture needs the package brittle: {words}."
    assert refusal("brittle.part") == f"A picture needs the package brittle: {words}."
    assert refusal(instead=", or draw none").endswith(f"{words}, or draw none.")
    package("value = 5")
    assert require("brittle", "A picture").value == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"raise ImportError({ABI!r})", f"ImportError: {' '.join(ABI.split())[:-1]}"),
        (
            "import no_such_dependency",
            "ModuleNotFoundError: No module named 'no_such_dependency'",
        ),
        (
            "raise OSError('libx.so: wrong ELF class')",
            "OSError: libx.so: wrong ELF class",
        ),
        (
            "import sys; sys.no_such_name",
            "AttributeError: module 'sys' has no attribute",
        ),
        ("import", "SyntaxError: "),
        ("raise RuntimeError('x' * 10_000)", "RuntimeError: xxx"),
    ],
)
def test_what_is_broken_says_why(package, text, reason):
    package(text)
    found = refusal(instead=", or draw none")
    assert f"It is installed but cannot be imported ({reason}" in found
    assert "pip install --force-reinstall brittle, or draw none." in found
    assert "flower-kmeans[plots]" not in found
    assert "\n" not in found
    assert len(found) < 600


WITHOUT_SKLEARN = {
    "SynopsisKMeans": {},
    "FastLloyd": {},
    "GLloyd": {},
    "SuLloyd": {},
    "PEMeans": {"n_rounds": 4},
    "FedDPKMeans": {"server_data": [[-1.0, 0.0], [1.0, 0.5], [0.0, 2.0], [0.5, -1.0]]},
    "ConstrainedLloyd": {"aggregation": "mna", "n_rounds": 2, "n_clients": 4},
    "HDPEMeans": {"n_rounds": 2},
    "Lloyd": {},
}


@pytest.fixture
def no_sklearn(monkeypatch):
    """Make every import of scikit-learn fail, as where it is not installed."""
    loaded = [name for name in sys.modules if name.split(".")[0] == "sklearn"]
    parts = ("base", "cluster", "datasets", "utils", "utils.validation")
    for name in {*loaded, "sklearn", *(f"sklearn.{part}" for part in parts)}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "flower_kmeans.sklearn", raising=False)


@pytest.mark.claim("CONTRIBUTING", "scikit-learn-extra-no")
@pytest.mark.default_cases("SynopsisKMeans", "FastLloyd", "FedDPKMeans")
@pytest.mark.parametrize("name", WITHOUT_SKLEARN)
def test_a_federation_runs_without_scikit_learn(no_sklearn, name):
    width = 20 if name == "HDPEMeans" else 2
    parts = [np.random.default_rng(seed).normal(size=(100, width)) for seed in range(4)]
    options = WITHOUT_SKLEARN[name] | {"domain": Box([-9.0] * width, [9.0] * width)}
    if name != "Lloyd":
        options |= {"privacy": PrivacyBudget(8.0), "n_records": 400}
    trust = "plain" if name == "Lloyd" else "trusted-server"
    found = simulate(
        getattr(strategies, name)(n_clusters=2, trust=trust, **options), parts
    )
    assert found.centroids.shape == (2, width)


@pytest.mark.claim("CONTRIBUTING", "scikit-learn-extra-no")
def test_every_strategy_was_tried_without_scikit_learn():
    """The strategies for columns at different parties have an extra of their own."""
    assert set(WITHOUT_SKLEARN) | {"VerticalKMeans"} == {
        strategy.__name__ for strategy in strategies.BY_NAME.values()
    }


def estimator():
    import_module("flower_kmeans.sklearn")


USES = {
    "PrivateKMeans": estimator,
    "k-FED": lambda: local_centers(
        np.arange(9.0)[:, None], 2, np.random.default_rng(0)
    ),
    "k-means++ on the server's points": lambda: server_kmeans_plus_plus(
        [[0.0], [1.0]], 2, np.random.default_rng(0)
    ),
    "k-means on the server's points": lambda: server_lloyd(
        [[0.0], [1.0]], 2, np.random.default_rng(0)
    ),
}


@pytest.mark.claim("CONTRIBUTING", "scikit-learn-extra-no")
@pytest.mark.parametrize("purpose", USES)
def test_what_needs_scikit_learn_names_its_extra(no_sklearn, purpose):
    said = f"{purpose} needs the package scikit-learn: install it with pip install "
    said += "'flower-kmeans[sklearn]'"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        USES[purpose]()
    said = r"The photograph needs the package .*'flower-kmeans\[simulation\]'"
    with pytest.raises(ConfigurationError, match=said):
        load_photo()


# Runs commands as where the extras' packages are not installed.
BASE_INSTALL = """
import importlib.abc, sys
from typer.testing import CliRunner

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyarrow", "pandas", "polars", "PIL", "sklearn", "openpyxl"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from flower_kmeans.cli.app import app
BOUNDS = ["--lower", "0", "--upper", "9"]
RUN = ["--n-records", "60", "--clusters", "2", "--clients", "3", "--engine", "in-process"]
for words in (
    ["inspect", "a.csv"],
    ["simulate", "--data", "a.csv", *BOUNDS, *RUN],
    ["assign", "--data", "a.csv"],
):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
"""


@pytest.mark.claim("own-data", "csv-read-base-install")
def test_a_csv_is_read_by_the_base_install(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n8,7.5\n" * 30, "utf-8")
    subprocess.run(
        [sys.executable, "-c", BASE_INSTALL], cwd=tmp_path, check=True, timeout=600
    )
    assert (
        (tmp_path / "assigned.csv")
        .read_text("utf-8")
        .startswith("x,y,cluster,distance")
    )
