"""What a hostile peer may send: records, run documents and bytes that are nearly right, or not.

Messages are made from the message classes themselves (their fields and checks), so a class or a
field that comes later is covered without a change here. Every function takes its choices from a
``random.Random``: hypothesis hands one in that it can shrink, a simulated run one of its own.
"""

import copy
import dataclasses
import hashlib
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.encoding import MESSAGE_VERSION, Encoded
from flower_kmeans.federation.messages import RECORD_KEY

Values = dict[str, Any]

# --------------------------------------------------------------------------- values

_BYTES = [bytes([n]) * size for size in range(130) for n in (0, 7)]
POOL: tuple[Any, ...] = (
    True,
    False,
    *(0, 1, 2, 3, 7, 8, 12, 13, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63),
    *(2**64 - 1, -1, -(2**63), 0.0, 1.0, -1.5, 1e308, math.inf, -math.inf, math.nan),
    *("", "x", "round", "refusal", "kmeans", "é" * 50),
    *_BYTES,
    *([b] for b in _BYTES),
    *([b, bytes(reversed(b[:-1])) + b"\1"] for b in _BYTES if b),
    *([], [0], [1], [1, 1], [2**31], [-1], [True], [False, True], [1.5], ["x"], ["", "x"]),
)
"""Values that a record can hold, among them some that each check of a field accepts."""

_UNHEARD: tuple[Any, ...] = (
    *(None, [None], [[]], [b"x", 1], [1, True], [1, 1.0], {}, {"v": 1}, (), (1,), (bytes(32),)),
    *(bytearray(32), memoryview(bytes(32)), np.int64(1), np.bool_(True), np.zeros(2), 1j, object()),
    *(10**400, -(10**400), {1}, range(3), "\ud800"),
)
"""Values that no record can hold, for decoders that take any mapping."""


def odd(rng: Random) -> Any:
    """Return some value that a record can hold."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randrange(-(2**63), 2**64)
    if kind == 1:
        return rng.randbytes(rng.choice((1, 8, 31, 32, 33, 48, 64, 80, 200)))
    return rng.choice(POOL)


# --------------------------------------------------------------------------- messages


@cache
def message_classes() -> tuple[type[Encoded], ...]:
    """Return every class of messages."""

    def below(cls: type[Encoded]) -> Iterator[type[Encoded]]:
        for sub in cls.__subclasses__():
            if hasattr(sub, "KIND"):
                yield sub
            yield from below(sub)

    return tuple(below(Encoded))


@cache
def candidates(cls: type[Encoded], name: str) -> list[Any]:
    """Return values of the pool that a field accepts."""
    return [value for value in POOL if cls.CHECKS[name](value)]


def plausible(rng: Random, cls: type[Encoded], **given: Any) -> Values:
    """Return a record whose fields are all acceptable, though they may not fit each other."""
    values: Values = {"v": MESSAGE_VERSION, "kind": cls.KIND, **cls.CONSTANTS}
    every = rng.random() < 0.3
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if every or item.default is dataclasses.MISSING or rng.random() < 0.5:
            values[item.name] = rng.choice(candidates(cls, item.name))
    return {**values, **given}


def message(rng: Random, cls: type[Encoded], tries: int = 500, **given: Any) -> Encoded | None:
    """Return some message of a class that its decoder accepts, if one is found."""
    for _ in range(tries):
        try:
            return cls.from_record(plausible(rng, cls, **given))
        except MessageError:
            continue
    return None


def mutated(rng: Random, values: Mapping[str, Any], others: Sequence[Values] = ()) -> Values:
    """Return a record with one to three changes.

    Parameters
    ----------
    values : mapping
        The record.
    others : sequence of dict
        Records of other rounds, runs or members, whose fields may take the place of its own.
    """
    result = dict(values)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice([*result, "doc_hash"])
        value = result.get(name)
        kind = rng.choice(("drop", "odd", "near", "near", "near", "extra", "swap", "swap", "doc"))
        if kind == "drop":
            result.pop(name, None)
        elif kind == "odd":
            result[name] = odd(rng)
        elif kind == "extra":
            result[rng.choice(("x", "num-examples", "words", "share", "code", "doc"))] = odd(rng)
        elif kind == "swap" and others:
            other = rng.choice(others)
            shared = [key for key in other if key in result] or list(other)
            if shared:
                name = rng.choice(shared)
                result[name] = other[name]
        elif kind == "doc" and isinstance(result.get("doc"), bytes):
            result["doc"] = mutated_document(rng, result["doc"])
            result["doc_hash"] = hashlib.sha256(result["doc"]).digest()
        else:
            result[name] = near(rng, value)
    return result


def near(rng: Random, value: Any) -> Any:
    """Return a value of the same type that is nearly the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        changed = value + rng.choice((-1, 1, 2, value, 2**31, -(2**31)))
        return min(max(changed, -(2**63)), 2**64 - 1)
    if isinstance(value, bytes):
        return near_bytes(rng, value)
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list) and value:
        items = list(value)
        place = rng.randrange(len(items))
        kind = rng.randrange(4)
        if kind == 0:
            del items[place]
        elif kind == 1:
            items.insert(place, items[place])
        elif kind == 2:
            rng.shuffle(items)
        else:
            items[place] = near(rng, items[place])
        return items
    return odd(rng)


def near_bytes(rng: Random, data: bytes) -> bytes:
    """Return bytes with a bit changed, or some lost, added, repeated or exchanged."""
    if not data:
        return b"\0"
    at, kind = rng.randrange(len(data)), rng.randrange(6)
    if kind <= 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data + rng.randbytes(rng.choice((1, 8, 32)))
    if kind == 4:
        return data[:at] + data
    return data[:at] + rng.randbytes(min(8, len(data) - at)) + data[at + 8 :]


def as_record(values: Mapping[str, Any]) -> ConfigRecord:
    """Return a record of those values that one can hold."""
    record = ConfigRecord()
    for name, value in values.items():
        try:
            record[name] = value
        except (TypeError, ValueError):
            continue
    return record


def content(rng: Random, values: Mapping[str, Any]) -> RecordDict:
    """Return a message's content with a record, now and then in a way that nobody expects."""
    record = as_record(values)
    if rng.random() < 0.85:
        return RecordDict({RECORD_KEY: record})
    arrays, metrics = ArrayRecord([np.zeros(2)]), MetricRecord({"v": 1, "code": 0})
    return rng.choice(
        (
            RecordDict(),
            RecordDict({"other": record}),
            RecordDict({RECORD_KEY: record, "other": record}),
            RecordDict({RECORD_KEY: record, "arrays": arrays}),
            RecordDict({RECORD_KEY: ConfigRecord()}),
            RecordDict({RECORD_KEY: arrays}),
            RecordDict({RECORD_KEY: metrics}),
        )
    )


def unheard(rng: Random, values: Mapping[str, Any]) -> Values:
    """Return a mapping with values that no Flower record can hold."""
    return {**values, rng.choice([*values, "x"]): rng.choice(_UNHEARD)}


# --------------------------------------------------------------------------- run documents

_REALS = (
    *(0.0, -0.0, 5e-324, 1e-300, 1e-100, 1e-12, 1e-6, 0.5, 1.0, 2.0, 100.0, 1e3, 1e5, 1e16),
    *(1e100, 1.7e308, -1.0, 1 - 2**-53),
)
_WHOLE = (
    *(0, -1, 1, 2, 3, 25, 26, 100, 300, 1001, 10_001, 2**20, 2**22, 2**31 - 1, 2**31, 2**32),
    *(2**40, 2**53 - 1, 2**53, 2**64, 10**400),
)
_JSON: tuple[Any, ...] = (
    *(None, True, False, 1.5, math.nan, math.inf, "", "x", "nan", "inf", "-inf", "0x1p5", "é"),
    *("0x1.0p+0", "none", "box", "ball", "lloyd", "glloyd", "sulloyd", "fastlloyd", "gaussian"),
    *("laplace", "l1", "l2", "common", "column", "step", "constant", "record", "client", "roster"),
    *("AAAA", "A" * 5000, "====", [], [1], [[]], [[], []], {}, {"a": 1}, {"name": "x"}, ["sums"]),
    *("1/2", "1/3", "simple", "deferred", "immediate", "file", "relayed", ["counts", "sums"]),
    *("plain", "trusted-server", "distributed-noise", "flower-kmeans/2"),
)


def mutated_json(rng: Random, tree: Any) -> Any:
    """Return a copy of a JSON object with one to three changes anywhere in it."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 2, 3))):
        inner = [node for node in _nodes(tree) if node]
        if not inner:
            return tree
        node = rng.choice(inner)
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        kind = rng.randrange(10)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[rng.choice(("x", "n_records", "initial", "mu", "alpha", "epsilon"))] = _leaf(
                rng, 1
            )
        elif kind == 1:
            node.insert(key, json.loads(json.dumps(node[key])))
        elif kind == 2 and isinstance(node, list):
            node *= rng.choice((2, 50))
        else:
            node[key] = _leaf(rng, node[key])
    return tree


def _nodes(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        yield tree
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _nodes(item)


def _leaf(rng: Random, old: Any) -> Any:
    if rng.random() < 0.6:
        if isinstance(old, str) and "0x" in old:
            factor = rng.choice((0.5, 2.0, 1 + 1e-9, 1e3, 1e-3, 1e9))
            return rng.choice((*_REALS, float.fromhex(old) * factor)).hex()
        if type(old) is int:
            return rng.choice((*_WHOLE, old + 1, old - 1, 2 * old))
    return copy.deepcopy(rng.choice(_JSON))


def as_json(tree: Any) -> bytes:
    """Return what a document that is written canonically, but may hold anything, looks like."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def mutated_document(rng: Random, data: bytes) -> bytes:
    """Return a run document with changed values, or with changed bytes."""
    try:
        tree = json.loads(data)
    except ValueError:
        return near_bytes(rng, data)
    return as_json(mutated_json(rng, tree)) if rng.random() < 0.9 else near_bytes(rng, data)


# --------------------------------------------------------------------------- surroundings


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Require that nothing inside holds more than so many bytes at any moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes were held at once"


@contextmanager
def without_noise() -> Iterator[None]:
    """Let all noise be 0, so that results of runs can be compared bit for bit."""

    def zeros(algorithm: Any, plan: Any, round_number: int, sampler: Callable[..., Any]) -> Any:
        return np.zeros(algorithm.words(round_number), dtype=np.int64)

    with mock.patch("flower_kmeans.protocol.noise._round_noise", zeros):
        yield
