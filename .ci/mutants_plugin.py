"""What `.ci/mutants.py` does within pytest: note what tests reach, and run chosen ones in order.

It is loaded by `-p mutants_plugin`. The environment says for which of the two.
"""

import functools
import importlib
import json
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "flower_kmeans"
ROOMS = ("privacy", "secagg", "protocol", "vertical", "algorithms", "data")


def pytest_configure(config: pytest.Config) -> None:
    """Register what a task needs."""
    # Where xdist starts the processes that run tests, they inherit this one's
    # environment.
    runs_tests = hasattr(config, "workerinput") or not config.getoption(
        "numprocesses", None
    )
    if "MUTANTS_MAP" in os.environ and runs_tests:
        config.pluginmanager.register(_Mapping(Path(os.environ["MUTANTS_MAP"])))
    if "MUTANTS_PLAN" in os.environ:
        config.pluginmanager.register(_Chosen(Path(os.environ["MUTANTS_PLAN"])))


class _Mapping:
    """Gives every test a context of coverage, and notes its seconds and fixtures."""

    def __init__(self, directory: Path) -> None:
        import coverage

        self._coverage = coverage.Coverage.current()
        self._notes = (directory / f"tests-{os.getpid()}.jsonl").open(
            "a", encoding="utf-8"
        )
        self._failed = False
        self._context = "import"
        self._switch("import")
        for room in ROOMS:
            for each in pkgutil.walk_packages(
                [str(ROOT / PACKAGE / room)], f"{PACKAGE}.{room}."
            ):
                if not each.name.endswith(".fused"):  # needs numba, and is compiled
                    importlib.import_module(each.name)

    def _switch(self, context: str) -> None:
        if self._coverage is not None:
            self._coverage.switch_context(context)
        os.environ["MUTANTS_CONTEXT"] = context

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Note what a test module runs while it is imported."""
        if isinstance(collector, pytest.Module):
            self._switch(f"collect {collector.nodeid}")
        result = yield
        self._switch(self._context)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        """Note what a fixture runs that many tests share."""
        if fixturedef.scope != "function":
            self._switch(_fixture(fixturedef))
        result = yield
        self._switch(self._context)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Note whether a test failed or was skipped."""
        report = yield
        self._failed = self._failed or not report.passed
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Run a test in its context."""
        _empty_caches()
        self._failed, self._context = False, f"test {item.nodeid}"
        self._switch(self._context)
        start = time.perf_counter()
        result = yield
        seconds = time.perf_counter() - start
        self._context = "between"
        self._switch(self._context)
        info = getattr(item, "_fixtureinfo", None)
        given = (
            [each for group in info.name2fixturedefs.values() for each in group]
            if info
            else []
        )
        fixtures = sorted(
            {_fixture(each) for each in given if each.scope != "function"}
        )
        note = {
            "id": item.nodeid,
            "seconds": round(seconds, 3),
            "passed": not self._failed,
        }
        self._notes.write(json.dumps({**note, "fixtures": fixtures}) + "\n")
        self._notes.flush()
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the data: processes of xdist end without it otherwise."""
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()


def _fixture(fixturedef: Any) -> str:
    return f"fixture {fixturedef.baseid}::{fixturedef.argname}"


def _empty_caches() -> None:
    """Empty the library's caches: what is cached runs no line."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(PACKAGE):
            continue
        owners = [
            module,
            *(each for each in vars(module).values() if isinstance(each, type)),
        ]
        for owner in owners:
            for value in list(vars(owner).values()):
                function = getattr(value, "__func__", value)
                if isinstance(function, functools._lru_cache_wrapper):
                    function.cache_clear()


class _Chosen:
    """Runs the chosen tests in their order, and writes what happens."""

    def __init__(self, plan: Path) -> None:
        self._plan = json.loads(plan.read_text("utf-8"))

    def _write(self, kind: str, nodeid: str) -> None:
        with open(self._plan["events"], "a", encoding="utf-8") as file:
            file.write(json.dumps([kind, nodeid]) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[Any]
    ) -> None:
        """Keep the chosen tests."""
        order = {nodeid: i for i, nodeid in enumerate(self._plan["ids"])}
        others = [item for item in items if item.nodeid not in order]
        items[:] = sorted(
            (item for item in items if item.nodeid in order),
            key=lambda item: order[item.nodeid],
        )
        config.hook.pytest_deselected(items=others)

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Write which test module is imported."""
        if isinstance(collector, pytest.Module):
            self._write("import", collector.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write that a test module cannot be imported."""
        if report.failed:
            self._write("fail", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test starts."""
        self._write("start", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write that a test failed."""
        if report.failed:
            self._write("fail", report.nodeid)
        if report.when == "teardown":
            self._write("end", report.nodeid)
