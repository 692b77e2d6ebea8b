"""Scripts of the repository as modules."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_script(monkeypatch, name, folder=ROOT / "benchmarks"):
    """Import a script's module from its folder, and forget it with the modules beside it.

    The package `bench` stays: tests know its classes.
    """
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    module = importlib.import_module(name)
    for loaded in set(sys.modules) - before:
        path = Path(getattr(sys.modules[loaded], "__file__", None) or "")
        if path.is_relative_to(folder) and loaded.partition(".")[0] != "bench":
            del sys.modules[loaded]
    return module
