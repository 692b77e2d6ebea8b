"""One run's messages: what a strategy sends over a grid, and where the replies go."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.federation.coordinator import CRASHED, STRAY, Coordinator
from flower_kmeans.federation.enrolment import MALFORMED, N_LEADERS
from flower_kmeans.federation.exchange import receive, send
from flower_kmeans.federation.messages import (
    Code,
    EnrolReply,
    LeadReply,
    OpenReply,
    OtherRunError,
    Refusal,
    Reply,
    Request,
    RoundReply,
    decode_reply,
    to_content,
)

TRAIN, QUERY, EVALUATE = "train.kmeans", "query.kmeans", "evaluate.kmeans"
_TTL_MARGIN = 10.0  # seconds; economy, not protection
_NODE_POLL = 0.5
_DELIVERY_RETRIES = 2  # a client that lost its memory lacks the document first, then its place


class Conversation:
    """Carries a coordinator's requests over a grid and hands it the replies.

    Parameters
    ----------
    run : Coordinator
        Decides what is asked, and what replies mean.
    grid : Grid
    timeout : float
        Seconds to wait for the answers of one hop.
    """

    def __init__(self, run: Coordinator, grid: Grid, timeout: float) -> None:
        self.run = run
        self._grid = grid
        self._timeout = timeout
        self._nodes: dict[str, int] = {}
        self._invited: dict[str, int] = {}

    # ------------------------------------------------------------------ hops

    def set_up(self, n_nodes: int) -> None:
        """Enrol the clients and, where keys are relayed, let one of them make the group key.

        Parameters
        ----------
        n_nodes : int
            For how many nodes to wait.

        Raises
        ------
        TooFewClientsError, RunError
            If too few clients enrolled, or none made the key.
        """
        run = self.run
        nodes = self._wait_for_nodes(n_nodes)
        replies = self.exchange(self.messages(QUERY, run.enrol_requests(nodes), "enrol"))
        self._absorb(0, replies, EnrolReply, run.accept_enrol)
        unanswered = dict(self._nodes)
        run.close_enrolment()
        # With a roster, the first of them were asked as they enrolled.
        for first in range(0, len(run.seats), N_LEADERS):
            if not run.needs_leader:
                break
            candidates = range(first, min(first + N_LEADERS, len(run.seats)))
            kind = EnrolReply if run.run.document.keys == "roster" else LeadReply
            replies = self.exchange(self.messages(QUERY, run.lead_requests(candidates), "lead"))
            self._absorb(0, replies, kind, run.accept_lead)
            run.close_leading()
        if run.needs_leader:
            raise RunError("No client answered when it was asked to make the group key.")
        late = run.join_requests(nodes)
        self._invited = {i: node for i, node in unanswered.items() if node in late}

    def ask_round(self, t: int, attempt: int) -> list[Message]:
        """Return the messages of one attempt at a round."""
        return self.messages(TRAIN, self.run.round_requests(attempt), str(t))

    def take_answers(self, t: int, replies: Iterable[Message]) -> None:
        """Take a round's answers; whoever lacks a part of the run is sent all of it at once.

        Raises
        ------
        RunError
            If a client could not open an announced sum, or the sum before opens in two ways.
        """
        run = self.run
        lacking = self._absorb(t, replies, RoundReply, run.accept_round, (Code.NEED,))
        if lacking:
            messages = self.messages(TRAIN, run.repeat_requests(lacking), str(t))
            self._absorb(t, self.exchange(messages), RoundReply, run.accept_round)
        run.try_open()

    def open_sum(self, t: int) -> None:
        """Ask the survivors of the last round to open its sum, and then everyone if need be.

        Raises
        ------
        RunError
            If what they gave did not open it.
        """
        run = self.run
        for everyone in (False, True):
            replies = self.exchange(self.messages(QUERY, run.open_requests(everyone), str(t)))
            self._absorb(t, replies, OpenReply, run.accept_open)
            run.try_open()
            if not run.unopened:
                return
        raise run.not_opened()

    def ask_finish(self, nodes: Sequence[int] | None = None) -> list[Message]:
        """Return the delivery of the result, to all members or some nodes."""
        requests = self.run.finish_requests()
        if nodes is not None:
            requests = {node: requests[node] for node in nodes if node in requests}
        return self.messages(EVALUATE, requests, "finish")

    def take_delivery(self, replies: Iterable[Message]) -> None:
        """Take the acknowledgements; whoever lacked something is sent everything again."""
        run, after = self.run, self.run.head + 1
        refused = self._absorb(after, replies, OpenReply, run.accept_finish)
        for _ in range(_DELIVERY_RETRIES):
            if refused:
                replies = self.exchange(self.ask_finish(refused))
                refused = self._absorb(after, replies, OpenReply, run.accept_finish)
        run.try_open()
        run.note_dropped(
            after,
            [s.node_id for s in run.seats if s.is_taken and s.node_id not in run.delivered],
        )

    def invitations(self) -> list[Message]:
        """Return the enrolment of nodes that have no seat and are not being asked for one."""
        asked = set(self._invited.values())
        nodes = (node for node in sorted(self._grid.get_node_ids()) if node not in asked)
        return self.messages(QUERY, self.run.join_requests(nodes), "enrol")

    # ------------------------------------------------------------------ messages

    def messages(
        self, message_type: str, requests: Mapping[int, Request], group_id: str
    ) -> list[Message]:
        """Return requests as Flower messages; a request to many nodes is encoded once."""
        ttl = self._timeout + _TTL_MARGIN
        contents: dict[int, Any] = {}
        messages = []
        for node_id, request in requests.items():
            content = contents.get(id(request))
            if content is None:
                content = contents[id(request)] = to_content(request)
            messages.append(Message(content, node_id, message_type, ttl=ttl, group_id=group_id))
        return messages

    def exchange(
        self, messages: Iterable[Message], invitations: Iterable[Message] = ()
    ) -> Iterable[Message]:
        """Send messages and yield replies as they arrive.

        Nobody waits for the answers to invitations: they are taken when they come, in this hop or
        in a later one.
        """
        grid = self._grid
        awaited = send(grid, messages)
        self._invited |= send(grid, invitations)
        self._nodes = awaited | self._invited
        for _, reply in receive(grid, self._nodes, self._timeout, awaited):
            yield reply
            self._invited.pop(reply.metadata.reply_to_message_id, None)
        known_lost = getattr(grid, "known_lost", None)
        for message_id in known_lost(self._invited) if known_lost is not None else ():
            del self._invited[message_id]

    def _absorb(
        self,
        t: int,
        replies: Iterable[Message],
        expected: type[Reply],
        accept: Callable[[int, Any], None],
        retry: tuple[Code, ...] = (Code.NEED, Code.RENEW),
    ) -> list[int]:
        """Hand every orderly reply to the coordinator; return who refused with a ``retry`` code."""
        run, lacking = self.run, []
        for message in replies:
            reply_to = message.metadata.reply_to_message_id
            node_id = self._nodes.get(reply_to, message.metadata.src_node_id)
            if not message.has_content():
                run.note(node_id, t, CRASHED)
                continue
            joins = reply_to in self._invited
            kind: type[Reply] = EnrolReply if joins else expected
            try:
                reply = decode_reply(message.content, kind, run.run.document.doc_hash)
            except OtherRunError:
                run.note(node_id, t, STRAY)
                continue
            except MessageError:
                run.note(node_id, t, MALFORMED)
                continue
            if isinstance(reply, Refusal):
                run.refuse(node_id, reply, t)
                if reply.code in retry:
                    lacking.append(node_id)
            elif isinstance(reply, EnrolReply) and joins:
                run.accept_join(node_id, reply)
            else:
                accept(node_id, reply)
        return lacking

    def _wait_for_nodes(self, n_nodes: int) -> list[int]:
        deadline = time.monotonic() + self._timeout
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) >= n_nodes or time.monotonic() >= deadline:
                return nodes
            time.sleep(min(_NODE_POLL, self._timeout))
