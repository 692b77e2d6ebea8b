"""The deployment's server app over a grid that writes when messages were sent and replies fetched.

The setting ``stamps`` is the file that gets one line for each.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BEGUN = time.time()  # before the imports of the library

import server_app  # noqa: E402
from flwr.app import Context, Message  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

LOADED = time.time()

app = ServerApp()


class _StampingGrid:
    """A grid that records the times at which messages were sent and replies arrived."""

    def __init__(self, grid: Grid, path: Path) -> None:
        self._grid, self._path = grid, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def write(self, **line: Any) -> None:
        """Write one line."""
        # one write, also from threads
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        listed, begun = list(messages), time.time()
        ids = list(self._grid.push_messages(listed))
        ended = time.time()
        for message_id, message in zip(ids, listed, strict=True):
            node, group = message.metadata.dst_node_id, message.metadata.group_id
            self.write(
                message=message_id, node=node, group=group, push=begun, pushed=ended
            )
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        begun = time.time()
        replies = list(self._grid.pull_messages(message_ids))
        ended = time.time()
        for reply in replies:
            self.write(
                reply_to=reply.metadata.reply_to_message_id, pull=begun, pulled=ended
            )
        return replies


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the deployment's server app."""
    stamping = _StampingGrid(grid, Path(str(context.run_config["stamps"])))
    stamping.write(begun=BEGUN, loaded=LOADED, called=time.time())
    server_app.main(stamping, context)
    stamping.write(returned=time.time())
