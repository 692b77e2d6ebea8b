"""Packages that only some features need: not installed, or installed but broken."""

import sys

import pytest

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
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("raise OSError('libx.so: wrong ELF class')", "OSError: libx.so: wrong ELF class"),
        ("import sys; sys.no_such_name", "AttributeError: module 'sys' has no attribute"),
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
