"""What a strategy takes: its signature and documentation, from what its algorithm declares.

`KMeansStrategy` declares and documents what all strategies have, an algorithm's
dataclass the rest. A strategy can document a parameter again where it means more to the
user of a server.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, NamedTuple

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.parameters import Kind, declared

Meaning = tuple[str, str, str]
"""Names that share a description, their type, and the indented text."""

_SECTION = re.compile(r"^\w+\n-+\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?) : (.*)\n((?:(?: .*)?\n)*)", re.MULTILINE)


class Option(NamedTuple):
    """A parameter of a strategy that a user can write."""

    kind: Kind
    default: Any
    meaning: str  # in one paragraph; empty where none is documented


def options_of(strategy: Any) -> dict[str, Option]:
    """Return the parameters of a strategy that a user can write, as on a command line."""
    kinds = {name: each.kind for name, each in declared(strategy.ALGORITHM).items()}
    rounds = getattr(strategy, "ROUNDS", "n_rounds")
    if rounds in kinds:
        kinds["n_rounds"] = kinds[rounds]
    # What a constructor declares wins over the algorithm's field of the same name.
    # From the base on, so that the most special constructor has the last word.
    for holder in reversed(strategy.__mro__):
        if "__init__" in holder.__dict__ and holder is not object:
            for name, each in signature(holder.__init__).parameters.items():
                for kind in getattr(each.annotation, "__metadata__", ()):
                    kinds[name] = kind
    meanings = meanings_of(strategy)
    return {
        name: Option(kinds[name], each.default, meanings.get(name, ""))
        for name, each in signature(strategy).parameters.items()
        if name in kinds and kinds[name].values
    }


def meanings_of(holder: Any) -> dict[str, str]:
    """Return what a docstring says of parameters, each in one paragraph."""
    entries = _ENTRY.findall(_split(holder)[1])
    return {
        name: " ".join(text.split())
        for names, _, text in entries
        for name in names.split(", ")
    }


def own_parameters(strategy: Any) -> dict[str, Parameter]:
    """Return the parameters of a strategy's algorithm that not all algorithms have."""
    common = {
        *signature(Algorithm).parameters,
        "initial",
        strategy.ROUNDS,
        *strategy.OMITS,
    }
    found = signature(strategy.ALGORITHM).parameters
    return {
        name: each.replace(kind=Parameter.KEYWORD_ONLY)
        for name, each in found.items()
        if name not in common
    }


def describe(strategy: Any, base: Any) -> None:
    """Give a strategy a signature and a docstring with all of its parameters."""
    own, common = (
        dict(signature(each.__init__).parameters) for each in (strategy, base)
    )
    del own["self"], common["self"]
    if not own or own.popitem()[1].kind is not Parameter.VAR_KEYWORD:
        # It passes no keywords on, so it takes what it shows.
        strategy.__signature__ = signature(partial(strategy.__init__, None))
        return
    common.popitem()
    keyword = Parameter.KEYWORD_ONLY
    passed_on = {name: each.replace(kind=keyword) for name, each in common.items()}
    every = own | {name: each for name, each in passed_on.items() if name not in own}
    for name in {"clip", "initial"} - signature(strategy.ALGORITHM).parameters.keys():
        del every[name]
    first = {name: each for name, each in every.items() if each.kind is not keyword}
    chosen = first | own_parameters(strategy) | every
    # Types are in the docstring: those of declarations are too long to read in a
    # signature.
    shown = [each.replace(annotation=Parameter.empty) for each in chosen.values()]
    strategy.__signature__ = Signature(shown)

    # The first that documents a parameter wins: the strategy, its algorithm, then the
    # base.
    strategies, algorithms = strategy.__mro__, strategy.ALGORITHM.__mro__
    before = (
        strategies[: strategies.index(base)] + algorithms[: algorithms.index(Algorithm)]
    )
    meanings: dict[str, Meaning] = {}
    for source in (*before, base):
        for names, kind, text in _ENTRY.findall(_split(source)[1]):
            for name in names.split(", "):
                if name == "initial" and source is not base:
                    continue  # a strategy takes a finished run, too
                known = "n_rounds" if name == strategy.ROUNDS else name
                meanings.setdefault(
                    known, (names.replace(name, known), kind, text.rstrip())
                )
    before, _, after = _split(strategy)
    section = "Parameters\n----------\n" + "".join(_entries(chosen, meanings))
    strategy.__doc__ = before + section + after


def _split(holder: Any) -> tuple[str, str, str]:
    """Return a docstring before its parameters, these, and what follows them."""
    text = cleandoc(holder.__dict__.get("__doc__") or "") + "\n"
    first = _SECTION.search(text)
    if first is None:
        return f"{text}\n", "", ""
    start = first.start()
    if not first.group().startswith("Parameters"):
        return text[:start], "", f"\n{text[start:]}"
    second = _SECTION.search(text, first.end())
    end = second.start() if second else len(text)
    return text[:start], text[first.end() : end], text[end - 1 :]


def _entries(
    chosen: Mapping[str, Parameter], meanings: Mapping[str, Meaning]
) -> Iterator[str]:
    """Yield an entry for each parameter; those that share one stand at the first one's place."""
    done = set()
    for name, each in chosen.items():
        if name in done:
            continue
        meaning = meanings.get(name)
        together = [
            other for other in chosen if meaning and meanings.get(other) == meaning
        ]
        done.update(together)
        _, kind, text = meaning or (name, "", "")
        if each.default not in (Parameter.empty, None, ()) and "default" not in kind:
            kind += f", default: {each.default!r}"
        yield f"{', '.join(together) or name} : {kind}\n{text}" + "\n" * bool(text)
