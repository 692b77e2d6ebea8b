"""Parameters of algorithms, each declared once: as an annotated field of the algorithm's dataclass.

``seed: Annotated[int, whole(0, LARGEST)] = 0`` declares type, range and default. The
check with its message, both directions of the run document and the command line's
option follow. Documents leave out a parameter that is ``None``, where its type allows
that, and a `left_out` one that has its default.
"""

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Any, NamedTuple, get_args

import numpy as np

from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError

LARGEST = 2**53 - 1
"""Largest integer of a parameter: a float64 holds every integer up to it."""


@dataclass(frozen=True)
class ParameterKind:
    """The values of a parameter, and their form in a document."""

    check: Callable[[str, Any], Any]
    """Returns the plain value of a parameter's name and argument, or raises."""
    write: Callable[[Any], Any] = lambda value: value
    """Returns a document's value of an attribute."""
    read: Callable[[Any], Any] = lambda value: value
    """Returns an attribute of a document's value."""
    values: str = ""
    """What a user can write for it, in words; empty where it has no option."""
    parse: Callable[[str], Any] = str
    """Returns an argument of what a user wrote; a LookupError or ValueError if it is none."""
    is_left_out: bool = False
    """Whether documents leave it out where it has its default."""


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Return a parameter as an int, and require that it is one of the range."""
    try:
        # index() takes NumPy's integers too, and nothing that would have to be rounded.
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise ConfigurationTypeError(
            f"{name} must be an integer, got {type(value).__name__}."
        )
    if not low <= number <= high:
        raise ConfigurationError(
            f"Expected {name} in [{low}, {high}]. Got {number} instead."
        )
    return number


def require_type(name: str, value: object, kind: Any, expected: str) -> None:
    """Require the type of a parameter."""
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"Expected {name} as {expected}. Got {type(value).__name__} instead."
        )


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise ConfigurationTypeError(
            f"{name} must be a number, got {type(value).__name__}."
        )


def require_positive(name: str, value: Any) -> None:
    """Require a positive integer."""
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"The '{name}' parameter must be a positive integer. Got {value!r} instead."
        )


def whole(
    low: int = -LARGEST, high: int = LARGEST, *, auto: bool = False
) -> ParameterKind:
    """Declare an integer, of any range where it depends on others; ``auto`` is one to choose."""

    def check(name: str, value: Any) -> int:
        if auto and isinstance(value, str):
            raise ConfigurationError(
                f"Expected {name} as an integer or 'auto'. Got {value!r}."
            )
        return integer(name, value, low, high)

    if high < LARGEST:
        values = f"integer in [{low}, {high}]"
    else:
        values = "integer" if low < 0 else f"integer from {low}"
    return ParameterKind(check, values=values, parse=int)


def real(low: float, high: float, *, auto: bool = False) -> ParameterKind:
    """Declare a real of a range; ``auto`` is one to choose."""

    def check(name: str, value: Any) -> float:
        if auto and isinstance(value, str):
            raise ConfigurationError(
                f"Expected {name} in [{low:g}, {high:g}], or 'auto'. Got {value!r} instead."
            )
        _require_number(name, value)
        if not low <= value <= high:
            raise ConfigurationError(
                f"Expected {name} in [{low:g}, {high:g}]. Got {value!r} instead."
            )
        return float(value)

    values = f"number in [{low:g}, {high:g}]"
    return ParameterKind(check, real_to_text, real_from_text, values, float)


def instance(kind: Any, expected: str) -> ParameterKind:
    """Declare an object of a type, which no document holds."""

    def check(name: str, value: Any) -> Any:
        require_type(name, value, kind, expected)
        return value

    return ParameterKind(check)


def choice(*options: str, auto: bool = False) -> ParameterKind:
    """Declare one of some strings; ``auto`` is one to choose."""
    shown = ["auto", *options] if auto else list(options)

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ConfigurationError(
                f"Expected {name} in {shown}. Got {value!r} instead."
            )
        return value

    return ParameterKind(check, values="|".join(shown))


def reals(*names: str) -> ParameterKind:
    """Declare a mapping from some names to positive numbers; its attribute is sorted pairs."""
    number = real(1e-12, 1e12)

    def check(name: str, value: Any) -> tuple[tuple[str, float], ...]:
        if value is None:
            return ()
        if _are_pairs(value):
            value = dict(value)
        if not isinstance(value, Mapping):
            raise ConfigurationTypeError(
                f"{name} must be a mapping from releases to numbers, got {type(value).__name__}."
            )
        for key, each in value.items():
            if not isinstance(key, str) or key not in names:
                raise ConfigurationError(
                    f"Expected {name} for releases in {list(names)}. Got {key!r} instead."
                )
            number.check(f"{name} for {key!r}", each)
        return tuple(sorted((key, float(each)) for key, each in value.items()))

    def read(config: Any) -> tuple[tuple[str, float], ...]:
        if not isinstance(config, dict):
            raise ConfigurationTypeError(
                "A mapping of a run document has the wrong type."
            )
        return tuple(
            sorted((key, real_from_text(text)) for key, text in config.items())
        )

    def parse(text: str) -> dict[str, float]:
        pairs = (part.split("=") for part in text.split(","))
        return {key: float(each) for key, each in pairs}

    def write(pairs: tuple[tuple[str, float], ...]) -> dict[str, str]:
        return {key: real_to_text(each) for key, each in pairs}

    return ParameterKind(check, write, read, "NAME=NUMBER,...", parse)


def _are_pairs(value: Any) -> bool:
    """Return whether a value has the form of an attribute of `reals`."""
    return isinstance(value, tuple) and all(
        isinstance(each, tuple) and len(each) == 2 for each in value
    )


def _positive(name: str, value: Any) -> float:
    _require_number(name, value)
    if not 0 < value < math.inf:
        raise ConfigurationError(
            f"Expected {name} positive and finite. Got {value!r} instead."
        )
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationTypeError(
            f"{name} must be a bool, got {type(value).__name__}."
        )
    return value


POSITIVE = ParameterKind(
    _positive, real_to_text, real_from_text, "positive number", float
)
"""A positive, finite real."""
FLAG = ParameterKind(
    _flag, values="true|false", parse={"true": True, "false": False}.__getitem__
)
"""A bool."""


def left_out(kind: ParameterKind) -> ParameterKind:
    """Declare a parameter that documents leave out where it has its default."""
    return replace(kind, is_left_out=True)


def is_auto(value: Any) -> bool:
    """Return whether a parameter is left to the library."""
    return isinstance(value, str) and value == "auto"


def drafted(value: Any, start: Any) -> Any:
    """Return a parameter, or where it is left to the library the value to start from."""
    return start if is_auto(value) else value


def checked(holder: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for a dataclass: those that it declares are checked plain values.

    ``None`` passes where the type of the parameter allows it.
    """
    values = dict(given)
    for name, each in declared(holder).items():
        if name in given and not (given[name] is None and each.allows_none):
            values[name] = each.kind.check(name, given[name])
    return values


def require_parameters(holder: Any) -> None:
    """Require that the declared parameters of a frozen dataclass are plain values in range.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If one is out of range, or would be another value after its check, such as an
        integer of NumPy: `checked` gives plain ones.
    """
    for name, each in declared(type(holder)).items():
        value = getattr(holder, name)
        if value is None and each.allows_none:
            continue
        plain = each.kind.check(name, value)
        if type(plain) is not type(value) or plain != value:
            raise ConfigurationTypeError(
                f"Expected {name} as a plain {type(plain).__name__}. "
                f"Got {type(value).__name__} instead."
            )


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the checked arguments of the parameters that a signature declares; defaults pass."""
    checked = {}
    for name, each in inspect.signature(function).parameters.items():
        for kind in getattr(each.annotation, "__metadata__", ()):
            value = arguments[name]
            checked[name] = value if value is each.default else kind.check(name, value)
    return checked


def write_parameters(holder: Any) -> dict[str, Any]:
    """Return the declared parameters for a run document."""
    config = {}
    for name, each in declared(type(holder)).items():
        value = getattr(holder, name)
        if not each.may_lack or value != each.default:
            config[name] = each.kind.write(value)
    return config


def read_parameters(holder: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that `write_parameters` wrote.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, MessageError
        If one is missing or unknown, no canonical text, or has a second encoding.
    """
    known = declared(holder)
    given = set(config) - {"name"}
    required = {name for name, each in known.items() if not each.may_lack}
    # An unknown field would be a parameter that this client ignores.
    if not required <= given <= known.keys():
        raise ConfigurationError(
            f"The fields of algorithm {holder.name!r} are not as expected."
        )
    values = {}
    for name in sorted(given):
        each = known[name]
        values[name] = each.kind.read(config[name])
        # A default is left out, and a choice is made: one encoding for each algorithm.
        is_default = each.may_lack and values[name] == each.default
        if is_default or is_auto(values[name]):
            raise ConfigurationTypeError(f"{name} must be resolved in a run document.")
    return values


class Declared(NamedTuple):
    """A field that declares a parameter."""

    kind: ParameterKind
    default: Any
    allows_none: bool

    @property
    def may_lack(self) -> bool:
        """Whether documents leave it out where it has its default."""
        return self.allows_none or self.kind.is_left_out


def declared(holder: type[Any]) -> dict[str, Declared]:
    """Return the parameters that a dataclass declares."""
    found = {}
    for each in fields(holder):
        # Types must be objects here: a module that declares parameters cannot import
        # annotations from __future__, which turns them into strings.
        hint: Any = each.type
        for kind in getattr(hint, "__metadata__", ()):
            if isinstance(kind, ParameterKind) and each.init:
                allows_none = NoneType in get_args(hint.__origin__)
                found[each.name] = Declared(kind, each.default, allows_none)
    return found
