"""Imports point downwards only, and Flower's internals are touched in one file."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import flower_kmeans

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "flower_kmeans"

# A room may import rooms of lower numbers, and its own. Within a number, only what is
# listed.
LEVELS = {
    name: level
    for level, names in enumerate(
        (
            "arrays data extras files imports kept threads canonical parameters errors"
            " templates version",
            "metrics baselines privacy",
            "algorithms secagg vertical vertical.algorithm",
            "report vertical.report",
            "client protocol vertical.protocol",
            "strategies",
            "progress simulation vertical.simulation",
            "cli sklearn vertical.check",
        )
    )
    for name in names.split()
}
STRATEGIES = ROOT / "strategies"
# what is imported in a checkout, in place of the folder
SHIM = PACKAGE / "strategies.py"
MODULES = sorted(
    path for folder in (PACKAGE, STRATEGIES) for path in folder.rglob("*.py")
)


def name_of(path):
    if path.is_relative_to(STRATEGIES):
        return ".".join(["flower_kmeans", "strategies", path.stem])
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """Return every module that a file imports, also inside functions and type checks."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = imported_from(path, node)
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def imported_from(path, node):
    """Return the module that names are imported from, also where a dot stands for its package."""
    if not node.level:
        return node.module
    assert path.is_relative_to(STRATEGIES), f"{path} has a relative import"
    package = name_of(path).split(".")[: -node.level]
    return ".".join([*package, node.module] if node.module else package)


def importing(*prefixes):
    """Return the names of the modules that import a package."""
    return {
        name_of(path)
        for path in MODULES
        if any(f"{module}.".startswith(prefixes) for module in imports(path))
    }


def assert_in_process(code):
    """Run code in a new interpreter."""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=600)


def room(module):
    """Return the room of a module; runs over columns have a house with rooms of their own."""
    parts = module.split(".")
    if parts[0] != "flower_kmeans" or len(parts) == 1:
        return None
    own = ".".join(parts[1:3])
    return own if own in LEVELS else parts[1]


def of(name):
    return [path for path in MODULES if room(name_of(path)) == name]


def test_imports_point_downwards():
    for path in MODULES:
        own = room(name_of(path))
        if own not in (None, "__init__"):
            assert own in LEVELS, f"{own} needs a place in the layers"
            others = {room(module) for module in imports(path)} & set(LEVELS)
            assert all(LEVELS[other] <= LEVELS[own] for other in others), (path, others)


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


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("secagg", {"algorithms", "data", "protocol"}),
        ("privacy", {"algorithms", "protocol", "strategies", "secagg", "data"}),
        ("algorithms", {"protocol", "strategies", "client", "secagg"}),
        (
            "vertical",
            {"algorithms", "protocol", "strategies", "client", "data"}
            | {"vertical.algorithm", "vertical.report", "vertical.protocol"},
        ),
        ("vertical.algorithm", {"protocol", "strategies", "client", "secagg"}),
        ("vertical.protocol", {"strategies", "client", "simulation"}),
        ("protocol", {"strategies", "client", "simulation"}),
        ("client", {"strategies", "simulation"}),
    ],
)
def test_rooms_know_nothing_of_these(name, forbidden):
    """And the mathematics knows nothing of Flower."""
    for path in of(name):
        assert not {room(module) for module in imports(path)} & forbidden
    knowing = {room(name) for name in importing("flwr.")}
    assert not knowing & {
        "algorithms",
        "privacy",
        "secagg",
        "vertical",
        "vertical.algorithm",
        "vertical.report",
        "data",
        "report",
    }


@pytest.mark.parametrize(
    ("prefixes", "module"),
    [
        (
            [
                f"flwr.{x}."
                for x in ("supercore", "superlink", "supernode", "server", "proto")
            ],
            "simulation.in_process",
        ),
        (["tenseal."], "vertical.engine"),
        (["numba."], "algorithms.numerics.fused"),
        (["secrets.", "random."], None),
    ],
)
def test_internals_and_large_packages_are_imported_in_one_file(prefixes, module):
    assert importing(*prefixes) == ({f"flower_kmeans.{module}"} if module else set())


@pytest.mark.claim("CONTRIBUTING", "scikit-learn-extra-no")
@pytest.mark.default_cases("strategies-absent1", "client-absent3")
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("vertical.parties", {"tenseal", "flwr"}),
        ("strategies", {"ortools", "numba"}),
        ("cli.preview", {"matplotlib", "sklearn"}),
        # A client's process starts for every message: these take a second of it.
        (
            "client",
            {"scipy.stats", "scipy.optimize", "ray", "sklearn", "jinja2", "openpyxl"},
        ),
    ],
)
def test_large_packages_are_imported_when_they_are_used(modules, absent):
    solving = [name_of(path) for path in MODULES if '"ortools.' in path.read_text()]
    assert solving == ["flower_kmeans.algorithms.constrained"]
    assert_in_process(
        f"import sys, flower_kmeans.{modules}; assert not {absent} & {{*sys.modules}}"
    )


def test_only_one_module_reads_the_operating_systems_randomness():
    reading = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("urandom", "getrandom")
    }
    assert reading == {"flower_kmeans.privacy.randomness"}


def test_no_generator_of_numpy_makes_keys_or_noise_and_no_assertion_checks_input():
    """Seeded generators are for public randomness only; assertions vanish under python -O."""
    allowed = {
        "algorithms.numerics.initialization",
        "data.datasets",
        "data.generators",
        "metrics",
        "cli.inputs",
        "cli.preview_records",
    }
    for path in MODULES:
        nodes, name = (
            list(ast.walk(tree(path))),
            name_of(path).removeprefix("flower_kmeans."),
        )
        assert not any(isinstance(node, ast.Assert) for node in nodes), path
        if name not in allowed:
            calls = [
                ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)
            ]
            assert not [call for call in calls if "np.random." in call], name


def test_the_package_loads_lazily_and_has_its_public_names():
    assert_in_process(
        "import sys, flower_kmeans; "
        "assert 'flwr' not in sys.modules and 'numpy' not in sys.modules; "
        "flower_kmeans.Box; assert 'flwr' not in sys.modules; "
        "assert set(flower_kmeans.__all__) == set(dir(flower_kmeans)); "
        "[getattr(flower_kmeans, name) for name in flower_kmeans.__all__]"
    )
    assert not hasattr(flower_kmeans, "no_such_name")
    wanted = "Lloyd SuLloyd GLloyd FastLloyd FedDPKMeans KFed PEMeans HDPEMeans SynopsisKMeans"
    names = importlib.import_module("flower_kmeans.strategies").__all__
    assert {*wanted.split(), "ConstrainedLloyd", "VerticalKMeans"} <= {*names}


def public_names(path):
    """Return the names that a module has for type checkers, without imports of modules."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names


def test_type_checkers_find_all_public_names_of_the_strategies():
    expected = public_names(STRATEGIES / "__init__.py")
    assert {
        *importlib.import_module("flower_kmeans.strategies").__all__,
        "BY_NAME",
    } <= expected
    (for_checkers,) = [node for node in tree(SHIM).body if isinstance(node, ast.If)]
    assert ast.unparse(for_checkers.test) == "TYPE_CHECKING"
    assert all(node.module == "strategies" for node in for_checkers.body)
    aliases = [alias for node in for_checkers.body for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)  # or it is not exported
    assert {alias.name for alias in aliases} == expected
    # Without it a checkout that is installed as editable has no types for other
    # projects.
    assert (STRATEGIES / "py.typed").exists()


def test_strategies_have_one_name_everywhere():
    """Type checkers know modules of the folder by other names, so they import each other by dots.

    A class that Python knew by two names would not be the class that workers of Ray
    load.
    """
    for path in STRATEGIES.glob("*.py"):
        absolute = {
            node.module
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ImportFrom) and not node.level
        }
        assert not [name for name in absolute if "strategies" in name.split(".")], path
    strategies = importlib.import_module("flower_kmeans.strategies")
    for name in set(strategies.__all__) - {"KFed"}:
        each = getattr(strategies, name)
        assert each.__module__.startswith("flower_kmeans.strategies."), each
        assert getattr(sys.modules[each.__module__], name) is each


WHILE_ANOTHER_THREAD_IMPORTS = """
import sys, threading
from importlib.machinery import PathFinder, SourceFileLoader

found = []

def import_too():
    from flower_kmeans.strategies import BY_NAME, VerticalKMeans
    found.append(VerticalKMeans in BY_NAME.values())

class Loader(SourceFileLoader):
    def exec_module(self, module):
        other.start()
        other.join(1)  # it fails at once, or waits for the end of this import
        assert other.is_alive()
        super().exec_module(module)

class AtTheLastModule:
    def find_spec(name, path, target=None):
        if name == "flower_kmeans.strategies.vertical":
            spec = PathFinder.find_spec(name, path)
            spec.loader = Loader(name, spec.origin)
            return spec

other = threading.Thread(target=import_too)
sys.meta_path.insert(0, AtTheLastModule)
import flower_kmeans.strategies
other.join()
assert found == [True]
"""


def test_a_thread_that_imports_the_strategies_too_waits_for_all_names():
    assert_in_process(WHILE_ANOTHER_THREAD_IMPORTS)


def test_no_file_is_a_symbolic_link():
    """A checkout without symbolic links holds a text file in place of each."""
    folders = (
        "flower_kmeans",
        "strategies",
        "tests",
        "docs",
        "simulations",
        "benchmarks",
        ".ci",
    )
    paths = [
        *ROOT.glob("*.*"),
        *(path for each in folders for path in (ROOT / each).rglob("*")),
    ]
    assert STRATEGIES / "__init__.py" in paths
    assert not [path for path in paths if path.is_symlink()]
    if (ROOT / ".git").exists():  # not in a source distribution
        listed = subprocess.run(
            ["git", "ls-files", "--stage"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        assert any(line.endswith("\tstrategies/__init__.py") for line in listed)
        assert not [line for line in listed if line.startswith("120000 ")]


def test_no_name_of_a_package_hides_its_module():
    for path in MODULES:
        if path.stem not in ("__init__", "__main__"):
            package, _, name = name_of(path).rpartition(".")
            module = importlib.import_module(f"{package}.{name}")
            assert getattr(importlib.import_module(package), name) is module


CLOCKS = {"time", "datetime"}
SERVER_SIDE = {"exchange"}


@pytest.mark.claim("threat-model", "no-rule-client-reads")
def test_no_rule_of_a_client_reads_a_clock():
    rooms = ("protocol", "algorithms", "secagg")
    rooms += ("vertical", "vertical.protocol", "vertical.algorithm")
    own = [path for name in rooms for path in of(name) if path.stem not in SERVER_SIDE]
    assert {"client", "session", "checks", "server", "committee"} <= {
        path.stem for path in own
    }
    for path in [*own, *of("client")]:
        found = {name.split(".")[0] for name in imports(path)}
        assert not found & CLOCKS, f"{path} reads a clock"
