"""One name, one thing: no two modules give a type the same name."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@cache
def sources():
    """Return the text of each module of the library, by path."""
    return {
        path: path.read_text("utf-8")
        for folder in ("flower_kmeans", "strategies")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def types_of(text):
    """Yield the names of the classes and type aliases that a module's text defines."""
    for node in ast.parse(text).body:
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
    for path, text in sources().items():
        for name in set(types_of(text)):
            places[name].append(path.relative_to(ROOT).as_posix())
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint64", "bool_"])
def test_arrays_of_a_type_have_one_name(dtype):
    aliases = [
        path.name
        for path, text in sources().items()
        if f" = NDArray[np.{dtype}]\n" in text
    ]
    assert aliases == ["arrays.py"]
