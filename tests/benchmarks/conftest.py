"""Scripts of benchmarks/ as modules."""

import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    """Return a suite's module in benchmarks/ by its name."""
    return lambda name: load_script(monkeypatch, name)
