"""Test only: the deployment's server app over a grid that sends messages again.

With the setting ``replay`` 1, the questions of the first round that a node left
unanswered are sent again to that node: in front of the next round's, and behind those
of the last one. Nobody awaits answers to them. A ``ttl`` above 0 is theirs, in seconds;
else it is the strategy's.
"""

from collections.abc import Iterable
from typing import Any

import server_app
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


class _RepeatingGrid:
    """A grid that delivers some messages twice."""

    def __init__(self, grid: Grid, n_rounds: int, ttl: float) -> None:
        self._grid = grid
        self._last = f"ask {n_rounds}"
        self._ttl = ttl
        self._asked: dict[str, Message] = {}
        self._unanswered: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, some earlier ones among them, and return the ids of the messages."""
        listed = list(messages)
        if not listed or not listed[0].metadata.message_type.startswith("train"):
            return self._grid.push_messages(listed)
        if self._asked and not self._unanswered:
            self._unanswered = list(self._asked.values())
            self._push_again()
        # Made anew, because a node is given what was made first.
        sent = [self._copy(message, message.metadata.ttl) for message in listed]
        ids = list(self._grid.push_messages(sent))
        for message, copy in zip(listed, sent, strict=True):
            message.metadata.__dict__["_message_id"] = copy.metadata.message_id
        self._asked = dict(zip(ids, sent, strict=True))
        if sent[0].metadata.group_id == self._last:
            self._push_again()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            if reply.has_content():
                self._asked.pop(reply.metadata.reply_to_message_id, None)
        return replies

    def _push_again(self) -> None:
        again = self._unanswered
        self._grid.push_messages(
            [self._copy(one, self._ttl or one.metadata.ttl) for one in again]
        )

    @staticmethod
    def _copy(message: Message, ttl: float) -> Message:
        data = message.metadata
        return Message(
            message.content,
            data.dst_node_id,
            data.message_type,
            ttl=ttl,
            group_id=data.group_id,
        )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app under test."""
    config = context.run_config
    if config["replay"]:
        grid = _RepeatingGrid(grid, int(config["n-rounds"]), float(config["ttl"]))
    server_app.main(grid, context)
