"""A kind of run beside the library's: clients that are asked for a greeting."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from flower_kmeans.algorithms import registry
from flower_kmeans.algorithms.lloyd import GLloydAlgorithm
from flower_kmeans.protocol import kinds, trust
from flower_kmeans.protocol.client import Conversation
from flower_kmeans.protocol.kinds import Body, RunKind
from flower_kmeans.protocol.messages import Enrol, Head, Reply, Request
from flower_kmeans.protocol.policy import ClientPolicy, Limits
from flower_kmeans.protocol.run import Config, Run
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.trust import TrustModel
from flower_kmeans.protocol.wire import B32, Struct
from flower_kmeans.report import parts
from flower_kmeans.report.report import Report

PATH = "tests.support.toy_kind"
_BYTES = 64

Word = Annotated[str, msgspec.Meta(max_length=_BYTES)]


class Toy(Struct, Body, tag="toy", frozen=True, kw_only=True):
    """A run whose clients greet."""

    algorithm: Config
    domain: Config
    greeting: Word
    times: int = 1


class Greet(Request, tag="greet", frozen=True, kw_only=True):
    """Asks for a greeting."""

    doc_hash: B32
    name: Word


class Greeted(Reply, tag="greeted", frozen=True, kw_only=True):
    """A greeting; empty at the end."""

    doc_hash: B32
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ToyAlgorithm(GLloydAlgorithm):
    """An algorithm of such runs."""

    name: ClassVar[str] = "toy"
    kind: ClassVar[str] = "toy"


@dataclass
class ToyPart:
    """The part of a report of such a run."""

    greeting: str
    neighbours: ClassVar[str] = "one greeting replaced by another"
    noise_shares: ClassVar[int] = 1
    noise_factor: ClassVar[float] = 1.0
    page: ClassVar[str] = "report/usual.html.j2"
    trust_table: ClassVar[tuple[tuple[str, ...], ...]] = (("a client", "it", "all"),)

    def statements(self, report: Report) -> tuple[str, ...]:
        """Return one statement."""
        return (f"All {report.min_clients} clients say {self.greeting}.",)

    def protection(self, report: Report) -> tuple[str, ...]:
        """Return the same sentence for each of the parties."""
        return (f"No: it hears {self.greeting}.",) * 4

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return vars(self)


def _greet(conversation: Conversation, request: Greet) -> Greeted:
    body = conversation.run.document.body
    assert isinstance(body, Toy)
    conversation.session.party = request.name.encode()
    text = f"{body.greeting}, {request.name}"
    return Greeted(doc_hash=request.doc_hash, text=text)


def _repeated(request: Request, _: ClientSession) -> Greeted | None:
    if isinstance(request, Greet):
        return Greeted(doc_hash=request.doc_hash)
    return None


def _limits(policy: ClientPolicy, run: Run) -> Limits:
    body = run.document.body
    assert isinstance(body, Toy)
    limit = f"letters <= max_opened={policy.max_opened}"
    yield len(body.greeting) <= policy.max_opened, limit, len(body.greeting)


def _requirements(run: Run) -> Iterator[tuple[bool, str]]:
    body = run.document.body
    assert isinstance(body, Toy)
    yield bool(body.greeting), "Expected a greeting."


def _request_bytes(run: Run, head: Head) -> int:
    return _BYTES


def _reply_bytes(run: Run, request: Request) -> int:
    return 2 * _BYTES if isinstance(request, Greet) else 0


TOY = RunKind(
    body=Toy,
    messages=(Greet, Greeted),
    handlers={Enrol: Conversation.enrol, Greet: _greet},
    ended=Greeted,
    repeated=_repeated,
    limits=_limits,
    requirements=_requirements,
    request_bytes=_request_bytes,
    reply_bytes=_reply_bytes,
)
MODEL = TrustModel("toy", "server", "plain", "server", kind="toy")


def register_toy(patch: pytest.MonkeyPatch) -> None:
    """Make the kind known as long as a test runs."""
    registries: tuple[dict[str, Any], ...] = (
        kinds._REGISTERED,
        parts._PATHS,
        trust.TRUST_MODELS,
        registry._REGISTRY,
    )
    for names in registries:
        # Added and removed by the patch, so that its end removes what is put there now.
        patch.setitem(names, "toy", None)
    tags = ("greet", "greeted")
    kinds.register_kind("toy", f"{PATH}:TOY", "words", tags, f"{PATH}:ToyPart")
    trust.register_trust_model(MODEL)
    registry.register(ToyAlgorithm)
