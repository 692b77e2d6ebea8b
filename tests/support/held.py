"""What the modules of a package hold in memory, in whatever their globals lead to."""

import gc
import logging
import sys
import types
from collections.abc import Iterable

import numpy as np

# What these lead to belongs to others: modules to all of Python, frames to callers, and
# loggers to their handlers, which keep what pytest shows.
_FOREIGN = (types.ModuleType, types.FrameType, logging.Logger)


def held_bytes(*packages: str) -> set[bytes]:
    """Return all bytes and arrays that the globals of packages' modules lead to.

    Caches and their contents are included: closures, defaults, attributes of classes
    and of functions, and what `functools.lru_cache` keeps.
    """
    names = tuple(f"{package}." for package in packages)
    modules = [
        module for name, module in sys.modules.items() if f"{name}.".startswith(names)
    ]
    globals_of_modules = {
        id(vars(module))
        for module in list(sys.modules.values())
        if isinstance(module, types.ModuleType)
    }
    found, seen = set[bytes](), set[int]()
    left: list[object] = []
    for module in modules:
        left.extend(vars(module).values())
    while left:
        thing = left.pop()
        if id(thing) in seen or id(thing) in globals_of_modules:
            continue
        seen.add(id(thing))
        if isinstance(thing, bytes | bytearray | memoryview):
            found.add(bytes(thing))
        elif isinstance(thing, str):
            found.add(thing.encode(errors="surrogatepass"))
        elif isinstance(thing, np.ndarray):
            if not thing.dtype.hasobject:
                found.add(thing.tobytes())
        elif not isinstance(thing, _FOREIGN) and _is_ours(thing, names):
            left.extend(gc.get_referents(thing))
    return found


def _is_ours(thing: object, names: tuple[str, ...]) -> bool:
    """Return whether to look into a thing: into all but classes of other packages."""
    if not isinstance(thing, type):
        return True
    return f"{thing.__module__}.".startswith(names)


def holders(secrets: Iterable[bytes], *packages: str) -> list[bytes]:
    """Return those of some secrets that are part of what packages' modules hold."""
    held = b"\0".join(held_bytes(*packages))
    return [secret for secret in secrets if secret in held]
