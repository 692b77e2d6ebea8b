"""The end of a run at a client (docs/protocol.md, section 6): its result goes to on_result."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from flower_kmeans.algorithms import plausibility
from flower_kmeans.protocol import noise, states
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Code, Finish, Finished
from flower_kmeans.protocol.results import ClientResult, read_result, result_of
from flower_kmeans.protocol.session import DELIVERED
from flower_kmeans.report.site_sizes import SiteSizes

if TYPE_CHECKING:
    from flower_kmeans.protocol.client import Conversation

log = logging.getLogger("flower_kmeans.client")


def finish(conversation: "Conversation", request: Finish) -> Finished:
    """Hand the result to ``on_result``, and erase all secrets if it succeeds."""
    result = _result(conversation, request)
    if result is not None:
        result = replace(result, own_sizes=_own_sizes(conversation, result))
    if deliver(conversation, result):
        conversation.session.end(DELIVERED)
    return Finished(doc_hash=conversation.doc_hash)


def _result(conversation: "Conversation", request: Finish) -> ClientResult | None:
    """Return the result from the entries, or the one that the server sent."""
    run = conversation.run
    is_expected = (request.result is None) == run.trust.is_blind
    reason = "Expected a result exactly from a server that sees sums."
    RefuseError.unless(is_expected, Code.BAD_MESSAGE, reason)
    if request.result is not None:
        return read_result(run, request.result)

    conversation.take_group_key(request.wraps)
    conversation.follow(request.entries)
    session = conversation.session
    n_rounds = run.document.rounds
    RefuseError.unless(session.head == n_rounds, Code.NEED)
    rows = states.findings_at(session.state)
    findings = plausibility.from_array(rows, n_rounds, max(run.document.words))
    factor = noise.noise_factor(run, session.n_answers)
    return result_of(run, conversation.state(), factor, findings)


def _own_sizes(conversation: "Conversation", result: ClientResult) -> SiteSizes | None:
    """Return this client's own sizes of a result's clusters; ``None`` without a use for them.

    They go to ``on_result`` alone. The reply is the same with and without them, also
    after an error. Records of a client that answered no round are not read, because
    nothing was charged for the run.
    """
    client = conversation.client
    is_used = client.with_own_sizes and client.on_result is not None
    session = conversation.session
    if not is_used or not session.answered:
        return None
    try:
        own = conversation.records.own_sizes(result, session)
    except Exception as error:
        name = conversation.run.document.run.hex()
        log.warning(
            "Run %s: this client's own sizes of clusters are unknown: %s",
            name,
            error,
            exc_info=error,
        )
        return None
    return SiteSizes(own, result.counts, result.counted)


def deliver(conversation: "Conversation", result: ClientResult | None) -> bool:
    """Hand a result to ``on_result``; return whether secrets can be erased."""
    if result is None:
        return True
    run = conversation.run
    name = run.document.run.hex()
    for warning in result.warnings:
        run.kept.once(_warn, name, warning)  # one client of a simulation warns
    if conversation.on_result is None:
        log.warning("Run %s has a result, but no on_result keeps it.", name)
        return True
    try:
        conversation.on_result(result)
    except BaseException:  # the reply must reveal nothing about the result
        log.exception(
            "on_result failed; it is called again if the last request is repeated."
        )
        return False
    return True


def _warn(run: str, warning: str) -> None:
    """Log a warning for readers of the result."""
    log.warning("Run %s: %s", run, warning)
