"""Kinds of runs: the data that clients hold, and the code that only such runs need.

A run document names its kind by the tag of its body. Each kind is registered by an
import string and loaded on first use. A reader of another party's bytes names the kinds
that it takes part in, and loads the code of no other kind: a client those of its policy,
a server that of its run.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import StructConfig

from flower_kmeans.algorithms.registry import register_later
from flower_kmeans.errors import KMeansError
from flower_kmeans.imports import imported
from flower_kmeans.protocol.wire import Tagged
from flower_kmeans.report.parts import register_part

if TYPE_CHECKING:
    from flower_kmeans.protocol.client import Conversation
    from flower_kmeans.protocol.messages import Head, Reply, Request
    from flower_kmeans.protocol.policy import ClientPolicy, Limits
    from flower_kmeans.protocol.run import Run
    from flower_kmeans.protocol.session import ClientSession

USUAL = "horizontal"
"""The kind whose clients hold records. Most trust models are for this kind."""


class KindError(KMeansError):
    """A message or document is of a kind of run that its reader does not take part in."""


class Body:
    """Base of the bodies of run documents: the part that depends on the kind of run.

    A body is a tagged struct with these two fields, and others.
    """

    __slots__ = ()
    __struct_config__: ClassVar[StructConfig]

    algorithm: dict[str, Any]
    domain: dict[str, Any]

    @property
    def kind(self) -> str:
        """Name of the kind of run."""
        return str(self.__struct_config__.tag)

    def fewest_noisy(self, min_clients: int) -> int:
        """Return the fewest clients that add noise in a run with at least ``min_clients``."""
        return min_clients


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """A kind of run.

    Parameters
    ----------
    body : type of Body
        The struct in the run document.
    messages : tuple of types
        Requests and replies that no other kind has. `register_kind` has their tags.
    handlers : mapping
        A client's function for each request of a run, which returns the reply. `Abort`
        needs none.
    ended : type of Reply
        The reply to `Abort`: a struct whose one required field is ``doc_hash``. Unless it
        is `Finished`, an ended session keeps it for a repeated request.
    repeated : callable
        ``repeated(request, session)`` returns the reply to a request that comes again
        after the run's end, or ``None`` if the run is over for it.
    limits : callable
        ``limits(policy, run)`` yields limits of a client's policy, as
        ``ClientPolicy.objection`` states them.
    requirements : callable, optional
        ``requirements(run)`` yields (holds, text) for each requirement on a document.
    request_bytes, reply_bytes : callable
        ``request_bytes(run, head)`` and ``reply_bytes(run, request)`` return the largest
        length, in bytes, of a request and an orderly reply beyond their short fields.
    pads_findings : bool
        Whether a result always has findings, padded with zeros to a fixed size.
    simulation, check : str, optional
        ``module:name`` of the kind's `SimulationPart`, and of its `CheckPart` for
        ``flower-kmeans check``. They are text, because these modules import this one.
    """

    body: type[Body]
    messages: "tuple[type[Request | Reply], ...]" = ()
    handlers: "Mapping[type[Request], Callable[[Conversation, Any], Reply]]"
    ended: "Callable[..., Reply]"
    repeated: "Callable[[Request, ClientSession], Reply | None]"
    limits: "Callable[[ClientPolicy, Run], Limits]"
    requirements: "Callable[[Run], Iterator[tuple[bool, str]]] | None" = None
    request_bytes: "Callable[[Run, Head], int]"
    reply_bytes: "Callable[[Run, Request], int]"
    pads_findings: bool = False
    simulation: str | None = None
    check: str | None = None


@dataclass(frozen=True)
class _Registered:
    """A registered kind, which may not be loaded yet."""

    path: str  # "module:name" of its `RunKind`
    holds: str  # word for the data of its clients
    tags: tuple[str, ...]  # tags of the messages that no other kind has


_REGISTERED: dict[str, _Registered] = {}


def register_kind(
    name: str,
    path: str,
    holds: str = "records",
    tags: tuple[str, ...] = (),
    part: str | None = None,
    algorithm: str | None = None,
) -> None:
    """Register a kind of run, which is imported from ``module:name`` when it is needed.

    ``holds`` is the word for the data of its clients, and ``tags`` are the tags of messages
    that no other kind has. ``part`` is the ``module:name`` of the `ReportPart` of its
    reports, and ``algorithm`` is that of the algorithm with the kind's name.
    """
    if part is not None:
        register_part(name, part)
    if algorithm is not None:
        register_later(name, algorithm)
    _REGISTERED[name] = _Registered(path, holds, tags)


def run_kind(name: str) -> RunKind:
    """Return a registered kind of run."""
    found: RunKind = imported(_REGISTERED[name].path)
    return found


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds."""
    return tuple(_REGISTERED)


def held_by(name: str) -> str:
    """Return the word for the data that clients of a kind of run hold."""
    return _REGISTERED[name].holds


def _accepted_kind(name: str, accepted: Collection[str] | None) -> RunKind:
    """Return a kind that a message or document names.

    Raises
    ------
    KindError
        If the kind is not accepted, or its code cannot be imported.
    """
    # Before anything is imported: another party chose the name. The code of the usual
    # kind is there, and a policy has its own words on such runs.
    if accepted is not None and name not in (USUAL, *accepted):
        raise KindError(
            f"Expected a kind of run that a trust model in trusts is for. Got {name!r} instead."
        )
    try:
        return run_kind(name)
    except ImportError as error:
        raise KindError(
            f"The code of {name} runs cannot be imported: {error}"
        ) from None


def kind_of_message(
    tag: str, accepted: Collection[str] | None = None
) -> RunKind | None:
    """Return the only kind that has messages with a tag; ``None`` if there is none.

    Raises
    ------
    KindError
        If it is none of the ``accepted`` kinds, which by default are all.
    """
    for name, registered in _REGISTERED.items():
        if tag in registered.tags:
            return _accepted_kind(name, accepted)
    return None


class _Shown(msgspec.Struct, frozen=True):
    body: Tagged


_read_shown = msgspec.msgpack.Decoder(_Shown).decode


def kind_shown(document: bytes) -> RunKind:
    """Return the kind that a run document names, and the usual kind if it names none.

    Nothing else of the document is read.
    """
    try:
        name = _read_shown(document).body.tag
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        name = USUAL
    return _accepted_kind(name if name in _REGISTERED else USUAL, None)


# One object for equal kinds, so that decoders with it are kept.
@cache
def body_reader(accepted: frozenset[str] | None) -> Callable[[type, Any], Body]:
    """Return `read_body` for the accepted kinds, as a decoder of msgspec needs it."""
    return partial(read_body, accepted)


def read_body(accepted: frozenset[str] | None, _: type, value: Any) -> Body:
    """Return the body of a run document from plain values.

    Raises
    ------
    ValueError
        If the kind is unknown, or the values do not fit it.
    KindError
        If the kind is not accepted.
    """
    name = value.get("type") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in _REGISTERED:
        raise ValueError("Expected the body of a known kind of run.")
    return msgspec.convert(value, _accepted_kind(name, accepted).body)


register_kind(USUAL, "flower_kmeans.protocol.horizontal:HORIZONTAL")
register_kind(
    "vertical",
    "flower_kmeans.vertical.protocol.kind:VERTICAL",
    holds="columns",
    tags=("turn", "joined", "sent"),
    part="flower_kmeans.vertical.report:VerticalReport",
    algorithm="flower_kmeans.vertical.algorithm:VerticalAlgorithm",
)
