"""Scripts of the repository as modules."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_script(monkeypatch, name, folder=ROOT / "benchmarks"):
    """Import a script's module from its folder, and forget it with all that it imported there."""
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    module = importlib.import_module(name)
    for loaded in set(sys.modules) - before:
        if str(getattr(sys.modules[loaded], "__file__", "")).startswith(str(folder)):
            del sys.modules[loaded]
    return module
