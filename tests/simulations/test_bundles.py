"""Shipped apps are bundles of format 1 from which a SuperLink installs nothing, also offline."""

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.app import app as flwr
from flwr.supercore.superexec import dependency_installer
from typer.testing import CliRunner

from flower_kmeans.cli.app import app as flower_kmeans
from flower_kmeans.cli.check import FLWR

pytestmark = pytest.mark.claim("deploy", "flowers-bundle-format-1")

ROOT = Path(__file__).parents[2]
LICENSE = (ROOT / "LICENSE").read_bytes()
SHIPPED = {
    path.parent.relative_to(ROOT).as_posix(): path.parent
    for path in ROOT.glob("simulations/**/pyproject.toml")
}
NEW = "flower-kmeans new"


@pytest.fixture(params=[*sorted(SHIPPED), NEW])
def bundle(request, tmp_path, monkeypatch):
    """Return the directory of an app that `flwr build` packed, as a SuperLink unpacks it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the build adds the app to it
    before = set(sys.modules)
    if request.param == NEW:
        assert CliRunner().invoke(flower_kmeans, ["new", "my-app"]).exit_code == 0
    app = SHIPPED.get(request.param, tmp_path / "my-app")
    result = CliRunner().invoke(flwr, ["build", "--app", str(app)])
    # It looks for the app's modules, too, and leaves their packages.
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(app)):
            del sys.modules[name]
    assert result.exit_code == 0, result.output
    # It would name what an app of this format should have and has not.
    assert "missing" not in result.output
    (packed,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def test_the_shipped_apps_are_those_of_the_page():
    page = (ROOT / "simulations" / "README.md").read_text("utf-8")
    (line,) = (line for line in page.splitlines() if "are Flower apps" in line)
    names = line.partition(" are Flower apps")[0].split("`")[1::2]
    assert {f"simulations/{name}" for name in names} == set(SHIPPED)


def test_an_app_has_format_1_with_its_license_and_versions(bundle):
    project = tomllib.loads((bundle / "pyproject.toml").read_text("utf-8"))
    app = project["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    assert (bundle / project["project"]["license"]["file"]).read_bytes() == LICENSE
    assert project["project"]["dependencies"] == [f"flwr>={FLWR[0]},<{FLWR[1]}"]
    # The newest with which the tests ran; an older one may run them as well.
    assert app["flwr-version-target"] == "1.42.0"
    assert project["project"]["version"] == "0.1.0"


def test_a_superlink_installs_nothing_for_an_app_also_offline(
    bundle, tmp_path, monkeypatch
):
    """What the SuperLink does before a run, without network and without a cache of packages."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    # It would put the new environment before all that is installed, in this process.
    monkeypatch.setattr(
        dependency_installer, "_activate_runtime_env", lambda path: None
    )
    made = dependency_installer.install_app_dependencies(bundle, "a run")
    (packages,) = made.glob("lib/python*/site-packages") or made.glob(
        "Lib/site-packages"
    )
    assert not list(packages.glob("*.dist-info"))


def test_without_the_apps_own_line_it_would_fetch_flower_anew(tmp_path, monkeypatch):
    """So the test above can fail."""
    text = (ROOT / "simulations" / "photo" / "pyproject.toml").read_text("utf-8")
    (line,) = (
        line
        for line in text.splitlines(True)
        if line.startswith("override-dependencies")
    )
    (tmp_path / "pyproject.toml").write_text(text.replace(line, ""), "utf-8")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(
        dependency_installer.RuntimeDependencyInstallationError, match="flwr"
    ):
        dependency_installer.install_app_dependencies(tmp_path, "a run")
