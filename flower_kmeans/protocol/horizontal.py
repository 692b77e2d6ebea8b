"""The kind of run whose clients hold different records of the same columns."""

from flower_kmeans.protocol import limits, messages
from flower_kmeans.protocol.add import add
from flower_kmeans.protocol.ask import ask
from flower_kmeans.protocol.client import Conversation
from flower_kmeans.protocol.finish import finish
from flower_kmeans.protocol.kinds import RunKind
from flower_kmeans.protocol.policy import ClientPolicy, Limits
from flower_kmeans.protocol.run import Horizontal, Run
from flower_kmeans.protocol.session import ClientSession


def _limits(policy: ClientPolicy, run: Run) -> Limits:
    return policy.limits_of_domain(run.algorithm.domain)


def _repeated(request: messages.Request, _: ClientSession) -> messages.Finished | None:
    """Return the reply to a repeated `Finish`; ``None`` for other requests."""
    if isinstance(request, messages.Finish):
        return messages.Finished(doc_hash=request.doc_hash)
    return None


HORIZONTAL = RunKind(
    body=Horizontal,
    handlers={
        messages.Enrol: Conversation.enrol,
        messages.Keys: Conversation.keys,
        messages.Hold: Conversation.hold,
        messages.Ask: ask,
        messages.Add: add,
        messages.Finish: finish,
    },
    ended=messages.Finished,
    repeated=_repeated,
    limits=_limits,
    request_bytes=limits.request_bytes,
    reply_bytes=limits.reply_bytes,
)
