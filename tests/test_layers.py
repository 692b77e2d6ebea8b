"""Imports point downwards only, and Flower's internals are touched in one file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "flower_kmeans"

# A room may import rooms of lower numbers, and its own. Within a number, only what is listed.
LEVELS = {
    "cli": 5,
    "bench": 5,
    "check": 5,
    "choice": 5,
    "output": 5,
    "webreport": 5,
    "picture": 5,
    "source": 5,
    "simulation": 5,
    "strategies": 4,
    "faults": 4,
    "client": 3,
    "clustering": 3,
    "protocol": 3,
    "algorithms": 2,
    "secagg": 2,
    "privacy": 1,
    "datasets": 1,
    "tables": 1,
    "metrics": 1,
    "baselines": 1,
    "console": 0,
    "extras": 0,
    "files": 0,
    "domain": 0,
    "records": 0,
    "assignment": 0,
    "threads": 0,
    "initialization": 0,
    "canonical": 0,
    "errors": 0,
    "version": 0,
}
MODULES = sorted(
    path
    for folder in (PACKAGE, ROOT / "strategies")
    for path in folder.rglob("*.py")
    if not path.is_relative_to(PACKAGE / "strategies")
)


def name_of(path):
    if path.is_relative_to(ROOT / "strategies"):
        return ".".join(["flower_kmeans", "strategies", path.stem])
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path):
    """Return every module that a file imports, also inside functions and type checks."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(node.module)
    return found


def room(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "flower_kmeans" and len(parts) > 1 else None


def of(name):
    return [path for path in MODULES if room(name_of(path)) == name]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_downwards(path):
    own = room(name_of(path))
    if own is None or own == "__init__":
        return
    assert own in LEVELS, f"{own} needs a place in the layers"
    for module in imports(path):
        other = room(module)
        if other in LEVELS and other != own:
            assert LEVELS[other] <= LEVELS[own], f"{own} must not import {other}"


def test_rooms_of_one_level_do_not_import_each_other_in_circles():
    edges = {
        (room(name_of(path)), room(module))
        for path in MODULES
        for module in imports(path)
        if room(module) in LEVELS and room(name_of(path)) in LEVELS
    }
    edges = {(a, b) for a, b in edges if a != b}
    reachable = dict.fromkeys({a for a, _ in edges}, frozenset())
    for _ in LEVELS:
        for a, b in edges:
            reachable[a] = reachable[a] | {b} | reachable.get(b, frozenset())
    assert not [a for a, found in reachable.items() if a in found]


@pytest.mark.parametrize("name", ["algorithms", "privacy", "secagg", "assignment", "domain"])
def test_the_mathematics_knows_nothing_of_flower(name):
    assert of(name)
    for path in of(name):
        assert not [module for module in imports(path) if module.split(".")[0] == "flwr"]


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("secagg", {"algorithms", "domain", "assignment", "federation", "protocol"}),
        ("privacy", {"algorithms", "protocol", "strategies", "secagg", "domain"}),
        ("algorithms", {"protocol", "strategies", "client"}),
        ("protocol", {"strategies", "client", "simulation", "faults"}),
        ("client", {"strategies", "simulation", "faults"}),
    ],
)
def test_rooms_know_nothing_of_these(name, forbidden):
    for path in of(name):
        assert not {room(module) for module in imports(path)} & forbidden


def test_flowers_internals_are_touched_in_one_file():
    internal = ("flwr.supercore", "flwr.superlink", "flwr.supernode", "flwr.server.", "flwr.proto")
    touching = {
        name_of(path)
        for path in MODULES
        if any(module.startswith(internal) for module in imports(path))
    }
    assert touching == {"flower_kmeans.protocol.in_process"}


def test_only_one_module_asks_the_operating_system_for_randomness():
    sources = ("secrets", "random")
    for path in MODULES:
        tree = ast.parse(path.read_text())
        asks = [module for module in imports(path) if module.split(".")[0] in sources]
        asks += [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in ("urandom", "getrandom")
        ]
        if name_of(path) != "flower_kmeans.privacy.randomness":
            assert not asks, name_of(path)
        else:
            assert asks


def test_no_generator_of_numpy_makes_keys_or_noise():
    """Seeded generators are for public randomness only, where clients must agree."""
    allowed = {"initialization", "datasets", "metrics", "source", "bench"}
    for path in MODULES:
        calls = [
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and "random." in ast.unparse(node.func)
        ]
        if room(name_of(path)) not in allowed:
            assert not [call for call in calls if "np.random" in call], name_of(path)


def test_inputs_are_not_checked_by_assertions():
    """They vanish under python -O."""
    for path in MODULES:
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)]


def test_the_package_loads_lazily():
    code = (
        "import sys, flower_kmeans; "
        "assert 'flwr' not in sys.modules and 'numpy' not in sys.modules; "
        "flower_kmeans.Box; assert 'flwr' not in sys.modules; "
        "assert set(flower_kmeans.__all__) == set(dir(flower_kmeans)); "
        "[getattr(flower_kmeans, name) for name in flower_kmeans.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_unknown_names_are_attribute_errors():
    import flower_kmeans

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = flower_kmeans.no_such_name


CLOCKS = {"time", "datetime"}
SERVER_SIDE = {"exchange", "in_process"}


def test_no_rule_of_a_client_reads_a_clock():
    rooms = ("protocol", "algorithms", "secagg")
    own = [path for name in rooms for path in of(name) if path.stem not in SERVER_SIDE]
    assert {"client", "session", "checks", "server", "committee"} <= {path.stem for path in own}
    for path in [*own, *of("client")]:
        found = {name.split(".")[0] for name in imports(path)}
        assert not found & CLOCKS, f"{path} reads a clock"
