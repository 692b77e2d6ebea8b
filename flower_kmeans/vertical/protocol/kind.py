"""The kind of run whose clients are parties with different columns of the same records."""

from flower_kmeans.protocol import messages
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.client import Conversation
from flower_kmeans.protocol.finish import deliver
from flower_kmeans.protocol.kinds import RunKind
from flower_kmeans.protocol.messages import Code, Request
from flower_kmeans.protocol.results import read_result
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.wire import decode
from flower_kmeans.vertical.protocol import limits
from flower_kmeans.vertical.protocol.body import Vertical, requirements
from flower_kmeans.vertical.protocol.messages import Joined, Sent, Turn
from flower_kmeans.vertical.protocol.party import VerticalParty


def _party(conversation: Conversation) -> VerticalParty:
    client = conversation.client
    run = conversation.run
    return VerticalParty(
        run,
        conversation.memory,
        conversation.session,
        conversation.pairs,
        conversation.policy,
        conversation.identity,
        client.load_records,
        client.load_ids,
        lambda data: deliver(conversation, read_result(run, data)),
        client.node_id,
        client.state,
    )


def _join(conversation: Conversation, _: messages.Enrol) -> Joined:
    return _party(conversation).join()


def _turn(conversation: Conversation, request: Turn) -> Sent:
    return _party(conversation).take(request)


def _repeated(request: Request, former: ClientSession) -> Sent | None:
    """Return the last reply of a session that ended with its result, for a repeat."""
    # A run of another kind has ended without one.
    if not isinstance(request, Turn) or not former.party:
        return None
    reply: Sent = decode(former.party, Sent)
    last_step = "close" if reply.parcels else "finish"
    if request.step != last_step:
        raise RefuseError(Code.STALE)
    return reply


VERTICAL = RunKind(
    body=Vertical,
    messages=(Turn, Joined, Sent),
    handlers={messages.Enrol: _join, Turn: _turn},
    ended=Sent,
    repeated=_repeated,
    limits=limits.limits,
    requirements=requirements,
    request_bytes=limits.request_bytes,
    reply_bytes=limits.reply_bytes,
    pads_findings=True,
    simulation="flower_kmeans.vertical.simulation:SIMULATION",
    check="flower_kmeans.vertical.check:CHECK",
)
