"""One name, one thing: no two modules give a type the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    path
    for folder in ("flower_kmeans", "strategies")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def types_of(path):
    """Yield the names of the classes and type aliases that a module defines."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and is_type_name(target.id):
                    yield target.id


def is_type_name(name):
    """Return whether a name is spelled as types are, not as constants."""
    plain = name.lstrip("_")
    return plain[:1].isupper() and not plain.isupper()


def test_a_type_has_one_module():
    places = defaultdict(list)
    for path in MODULES:
        for name in set(types_of(path)):
            places[name].append(path.relative_to(ROOT).as_posix())
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint64", "bool_"])
def test_arrays_of_a_type_have_one_name(dtype):
    aliases = [
        path.name
        for path in MODULES
        if f" = NDArray[np.{dtype}]\n" in path.read_text("utf-8")
    ]
    assert aliases == ["arrays.py"]
