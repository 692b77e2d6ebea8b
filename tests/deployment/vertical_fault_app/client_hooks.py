"""Test only: the vertical app, whose nodes can hold their first reply or say another one.

One setting comes in ``--node-config`` beside the app's: ``hooks``, a directory of the
test. If it holds ``say``, the node replies with the bytes of this file to every request.
If it holds ``hold``, the node waits for ``go`` before its first reply leaves, and its
claim of a slot stands in ``enrolled``.
"""

import time
from pathlib import Path

import client_app
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_kmeans.protocol.messages import decode_reply
from flower_kmeans.protocol.wire import from_content, to_content
from flower_kmeans.vertical.protocol.messages import Joined

_POLL = 0.1
_LONGEST = 600.0


class _HookedApp(ClientApp):
    """The app under test, whose node can hold its claim or say another one."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message as the app does, or as the test wants."""
        hooks = Path(str(context.node_config["hooks"]))
        said = hooks / "say"
        if said.exists():
            (hooks / "asked").touch()
            return Message(to_content(said.read_bytes()), reply_to=message)
        reply = client_app.app(message, context)
        if (hooks / "hold").exists() and reply.has_content():
            data = from_content(reply.content)
            if isinstance(decode_reply(data), Joined):
                partial = hooks / "enrolled.partial"
                partial.write_bytes(data)
                partial.rename(hooks / "enrolled")
                deadline = time.monotonic() + _LONGEST
                while not (hooks / "go").exists() and time.monotonic() < deadline:
                    time.sleep(_POLL)
        return reply


app = _HookedApp()
