"""Parameters of algorithms. Each is declared once, as an annotated field of a dataclass.

``seed: Annotated[int, whole(0, LARGEST)] = 0`` declares type, range and default. From
it follow the check with its message, the text in run documents, its reader, and the
option on the command line. Documents leave out a parameter that may be ``None`` and is,
and a `left_out` parameter that has its default.
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
    """The values that a parameter may have, and their form in run documents."""

    check: Callable[[str, Any], Any]
    """Takes a parameter's name and a caller's value, and returns the plain value or raises."""
    write: Callable[[Any], Any] = lambda value: value
    """Takes a plain value, and returns its form in a run document."""
    read: Callable[[Any], Any] = lambda value: value
    """Takes a form of `write`, and returns the plain value."""
    values: str = ""
    """The values on the command line in words. Empty if it has no option there."""
    parse: Callable[[str], Any] = str
    """Takes a text of the command line, and returns the value, or a LookupError or ValueError."""
    is_left_out: bool = False
    """Whether run documents leave out the parameter if it has its default."""


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Return a parameter as an int, or raise an error unless it is in [low, high].

    Raises
    ------
    ConfigurationTypeError
        If it is not an integer of Python or NumPy.
    ConfigurationError
        If it is out of range.
    """
    try:
        # index() accepts NumPy's integers, and nothing that would need rounding.
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise ConfigurationTypeError(
            f"Expected {name} as an integer. Got {type(value).__name__} instead."
        )
    if not low <= number <= high:
        raise ConfigurationError(
            f"Expected {name} in [{low}, {high}]. Got {number} instead."
        )
    return number


def require_type(name: str, value: object, kind: Any, expected: str) -> None:
    """Require the type of a parameter. ``expected`` is the type in words."""
    if not isinstance(value, kind):
        raise ConfigurationTypeError(
            f"Expected {name} as {expected}. Got {type(value).__name__} instead."
        )


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise ConfigurationTypeError(
            f"Expected {name} as a number. Got {type(value).__name__} instead."
        )


def require_positive(name: str, value: Any) -> None:
    """Require a positive int."""
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"The '{name}' parameter must be a positive integer. Got {value!r} instead."
        )


def whole(
    low: int = -LARGEST, high: int = LARGEST, *, auto: bool = False
) -> ParameterKind:
    """Declare an integer in [low, high]. With ``auto`` a caller may leave it to the library."""

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
    """Declare a real in [low, high]. With ``auto`` a caller may leave it to the library."""

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
    """Declare an object of a type, which run documents cannot contain."""

    def check(name: str, value: Any) -> Any:
        require_type(name, value, kind, expected)
        return value

    return ParameterKind(check)


def choice(*options: str, auto: bool = False) -> ParameterKind:
    """Declare one of some strings. With ``auto`` a caller may leave it to the library."""
    shown = ["auto", *options] if auto else list(options)

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ConfigurationError(
                f"Expected {name} in {shown}. Got {value!r} instead."
            )
        return value

    return ParameterKind(check, values="|".join(shown))


def reals(*names: str) -> ParameterKind:
    """Declare a mapping from some of ``names`` to numbers in [1e-12, 1e12].

    Its plain value is a tuple of pairs, sorted by name.
    """
    number = real(1e-12, 1e12)

    def check(name: str, value: Any) -> tuple[tuple[str, float], ...]:
        if value is None:
            return ()
        if _are_pairs(value):
            value = dict(value)
        if not isinstance(value, Mapping):
            raise ConfigurationTypeError(
                f"Expected {name} as a mapping from releases to numbers. "
                f"Got {type(value).__name__} instead."
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
    """Return whether a value has the form of a plain value of `reals`."""
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
            f"Expected {name} as a bool. Got {type(value).__name__} instead."
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
    """Return a kind of parameter that run documents leave out if it has its default."""
    return replace(kind, is_left_out=True)


def without_option(kind: ParameterKind) -> ParameterKind:
    """Return a kind of parameter that is no option on the command line."""
    return replace(kind, values="")


def is_auto(value: Any) -> bool:
    """Return whether a parameter is "auto", which leaves it to the library."""
    return isinstance(value, str) and value == "auto"


def drafted(value: Any, start: Any) -> Any:
    """Return a parameter, or ``start`` if it is "auto"."""
    return start if is_auto(value) else value


def checked(holder: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for a dataclass, with plain values for the declared parameters.

    ``None`` is accepted if the type of the parameter allows it. Other arguments are
    returned unchanged. Errors are those of the parameters' checks.
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
        If a parameter is out of range, or is not a plain value, such as an integer of
        NumPy. `checked` returns plain values.
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
    """Return the checked arguments of the parameters that a signature declares.

    Defaults are not checked.
    """
    checked = {}
    for name, each in inspect.signature(function).parameters.items():
        for kind in getattr(each.annotation, "__metadata__", ()):
            value = arguments[name]
            checked[name] = value if value is each.default else kind.check(name, value)
    return checked


def write_parameters(holder: Any) -> dict[str, Any]:
    """Return the declared parameters of a dataclass for a run document."""
    config = {}
    for name, each in declared(type(holder)).items():
        value = getattr(holder, name)
        if not each.may_lack or value != each.default:
            config[name] = each.kind.write(value)
    return config


def read_parameters(holder: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a configuration that `write_parameters` wrote.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, MessageError
        If a parameter is missing or unknown, or `write_parameters` would write it in
        another way.
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
        # Each algorithm has one encoding: defaults are left out, and no parameter is
        # "auto".
        is_default = each.may_lack and values[name] == each.default
        if is_default or is_auto(values[name]):
            raise ConfigurationTypeError(
                f"Expected {name} to be resolved in a run document, and no default."
            )
    return values


class Declared(NamedTuple):
    """The declaration of a parameter: its kind, its default, and whether it may be None."""

    kind: ParameterKind
    default: Any
    allows_none: bool

    @property
    def may_lack(self) -> bool:
        """Whether run documents leave it out if it has its default."""
        return self.allows_none or self.kind.is_left_out


def declared(holder: type[Any]) -> dict[str, Declared]:
    """Return the declared parameters of a dataclass by name."""
    found = {}
    for each in fields(holder):
        # Types must be objects here. So a module that declares parameters must not
        # import annotations from __future__, which turns types into strings.
        hint: Any = each.type
        for kind in getattr(hint, "__metadata__", ()):
            if isinstance(kind, ParameterKind) and each.init:
                allows_none = NoneType in get_args(hint.__origin__)
                found[each.name] = Declared(kind, each.default, allows_none)
    return found
