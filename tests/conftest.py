"""What tests all over the tree share."""

import logging
import math
import os
import platform
import shutil
import sys
from importlib.metadata import version

# Before NumPy is loaded, and for all processes that tests start: together these use all
# processors already. Where OpenMP and BLAS start more threads than there are
# processors, they wait for each other. Tests of threads ask for some.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from _pytest.junitxml import xml_key
from hypothesis import settings
from seamed import NamedSource
from selection import (  # noqa: F401  hooks of pytest
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.privacy import randomness

settings.register_profile("no stopwatch", deadline=None)
settings.load_profile("no stopwatch")

# Also for the processes of tests: ray.init() would join a cluster that another test
# has.
os.environ["RAY_ADDRESS"] = "local"

# NumPy serves all tests but the kernel's own: otherwise what ran before would decide.
assignment._FUSED_WORK = math.inf

# Tests write their files into memory where there is room: ledgers wait for a disk at
# each answer.
_MEMORY, _ROOM = "/dev/shm", 4 * 2**30  # noqa: S108
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

# A run that fails by its noise fails again. Tests pass for any seed:
# `pytest --noise-seed 2`.
_source = NamedSource()
randomness._os_random = _source


def pytest_addoption(parser):
    parser.addoption(
        "--noise-seed", default="1", help="of the noise and keys in this process"
    )


def pytest_sessionstart(session):
    """Name the versions in a report, for the page of claims (.ci/claims.py)."""
    report = session.config.stash.get(xml_key, None)
    if report is not None:
        report.add_global_property("Python", platform.python_version())
        for name in ("flwr", "numpy"):
            report.add_global_property(name, version(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with _source.named(f"{item.config.getoption('noise_seed')} {item.nodeid}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    # The test that is first to use it is by chance, where several processes run tests.
    parts = (
        request.config.getoption("noise_seed"),
        fixturedef.baseid,
        fixturedef.argname,
    )
    with _source.named(f"{parts} {request.param_index}"):
        return (yield)


@pytest.fixture(params=["straight", pytest.param("real", marks=pytest.mark.thorough)])
def is_real(request):
    """Let signs of vertical runs be straight by default: for tests of everything around a step."""
    if request.param == "real":
        yield True
        return
    from vertical_runs import straight_signs

    with straight_signs():
        yield False


@pytest.fixture
def quiet():
    """Keep Flower's log of every round from what a test prints."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def on_ray():
    """Start Ray once for a module's tests."""
    ray = pytest.importorskip("ray")
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init("local", num_cpus=2, runtime_env={"env_vars": path}, **options)
    yield
    ray.shutdown()
