"""Options of a strategy: its parameters, how each is written, and its documentation.

A strategy's ``__init__`` names its own options, and passes on those that all strategies
have (`CommonOptions`). The algorithm's dataclass, or the annotation of ``__init__``,
declares the values of an option.
"""

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, cleandoc, signature
from os import PathLike
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from numpy.typing import ArrayLike

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.parameters import (
    FLAG,
    ParameterKind,
    choice,
    declared,
    instance,
    whole,
    without_option,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.run import KEYS, MAX_ATTEMPTS
from flower_kmeans.report.clustering import FinishedRun

from .progress import RoundInfo

Privacy = Annotated[PrivacyBudget, instance(PrivacyBudget, "a PrivacyBudget")]
KeyDistribution = Annotated[Literal["relayed", "roster"], choice(*KEYS)]
RosterFile = Annotated[str | PathLike[str] | None, instance(str | PathLike, "a path")]
Nodes = Annotated[Sequence[int] | None, instance(list | tuple, "a list of node ids")]
OnRound = Annotated[
    Callable[[RoundInfo], None] | None, instance(Callable, "a callable")
]
PositiveCount = Annotated[int | None, whole(1)]
Attempts = Annotated[int, whole(1, MAX_ATTEMPTS)]
Quality = Annotated[bool, without_option(FLAG)]
Initial = ArrayLike | FinishedRun | None


WEIGHT_OPTIONS = frozenset({"n_persons", "max_clients_per_person", "weighted"})
"""Options of weights, which some algorithms refuse (`Algorithm.takes_weights`)."""


class CommonOptions(TypedDict, total=False):
    """Options of all strategies; `KMeansStrategy` has their defaults and documentation."""

    n_clients: PositiveCount
    n_persons: PositiveCount
    max_clients_per_person: int
    weighted: bool
    trust: str | None
    n_rounds: int | Literal["auto"]
    min_clients: PositiveCount
    seed: int
    fraction_bits: int
    clip: float | None
    keys: KeyDistribution
    roster_file: RosterFile
    nodes: Nodes
    max_attempts: Attempts
    max_colluders: PositiveCount
    quality: Quality
    on_round: OnRound


class CommonOptionsAndInitial(CommonOptions, total=False):
    """Options of all strategies that can start from given centroids."""

    initial: Initial


class Option(NamedTuple):
    """A parameter of a strategy that a user can write as text."""

    kind: ParameterKind
    default: Any
    meaning: str  # one paragraph of its docstring; empty without documentation


def parameters_of(strategy: Any) -> dict[str, Parameter]:
    """Return all parameters of a strategy by name: its own, then those of all strategies."""
    found: dict[str, Parameter] = {}
    for constructor in _constructors(strategy):
        _, *parameters = signature(constructor).parameters.values()
        for each in parameters:
            if each.kind is not Parameter.VAR_KEYWORD:
                found.setdefault(each.name, each)
    # Not every algorithm has these, though all constructors take them.
    lacking = {"clip", "initial"} - signature(strategy.ALGORITHM).parameters.keys()
    if not strategy.ALGORITHM.takes_weights:
        lacking |= WEIGHT_OPTIONS
    return {name: each for name, each in found.items() if name not in lacking}


def _constructors(strategy: Any) -> Iterator[Callable[..., None]]:
    """Yield each ``__init__`` that gets a user's arguments, the strategy's own first."""
    for holder in strategy.__mro__:
        if "__init__" not in holder.__dict__ or holder is object:
            continue
        yield holder.__init__
        kinds = {each.kind for each in signature(holder.__init__).parameters.values()}
        if Parameter.VAR_KEYWORD not in kinds:
            return  # it passes no keywords on


def own_options(strategy: Any) -> frozenset[str]:
    """Return the names of options that not all algorithms have."""
    kind = strategy.ALGORITHM
    fields = signature(kind).parameters.keys()
    chosen = {
        name
        for holder in kind.__mro__
        if "planned" in holder.__dict__
        for name in signature(holder.planned).parameters
    }
    common = {*signature(Algorithm).parameters, "options", "n_rounds", "initial"}
    return frozenset({*fields, *chosen} - common - {strategy.ROUNDS, *strategy.OMITS})


def options_of(strategy: Any) -> dict[str, Option]:
    """Return the parameters of a strategy that a user can write as text, by name."""
    kinds = {name: each.kind for name, each in declared(strategy.ALGORITHM).items()}
    rounds = getattr(strategy, "ROUNDS", "n_rounds")
    if rounds in kinds:
        kinds["n_rounds"] = kinds[rounds]
    parameters = parameters_of(strategy)
    meanings = meanings_of(strategy)
    found = {}
    for name, each in parameters.items():
        # What a constructor declares wins over the algorithm's field of the same name.
        for kind in getattr(each.annotation, "__metadata__", ()):
            kinds[name] = kind
        if name in kinds and kinds[name].values:
            found[name] = Option(kinds[name], each.default, meanings.get(name, ""))
    return found


def meanings_of(strategy: Any) -> dict[str, str]:
    """Return the text on each parameter in the docstrings of a strategy and its bases.

    Each text is one paragraph. A subclass's docstring wins over that of its base.
    """
    found = {}
    for holder in reversed(strategy.__mro__):
        for names, text in _entries(holder.__dict__.get("__doc__") or ""):
            # An entry with `**common` only refers to the base.
            if "**common" not in names:
                found.update(dict.fromkeys(names, " ".join(text)))
    return found


def _entries(docstring: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the names and the lines of text of each entry in the section "Parameters"."""
    lines = cleandoc(docstring).splitlines()
    if "Parameters" not in lines:
        return
    names: list[str] = []
    text: list[str] = []
    for line in lines[lines.index("Parameters") + 2 :]:
        if line.startswith("---"):
            break  # the title of the next section was taken for an entry
        if line.startswith(" "):
            text.append(line.strip())
        elif line:
            if text:
                yield names, text
            names = line.partition(" : ")[0].split(", ")
            text = []
    if text:
        yield names, text
