"""Test only: the deployment's client app, which keeps what it sends and makes planned faults.

One setting comes in ``--node-config`` beside the app's: ``hooks``, a directory of the
test. There ``faults.json`` lists the faults, each with the round of the request that it
spoils. ``sent.jsonl`` has one line per answered message, with all protected words or
shares that it holds. The line is on the disk before the answer leaves, so nothing that
was ever sent is missing from it. Each result is kept: ``result-RUN.npz``.
"""

import base64
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import client_app
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_kmeans import kmeans_client_app
from flower_kmeans.client import ClientResult
from flower_kmeans.data.datasets import Table
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Ask,
    Enrolled,
    Located,
    Refusal,
    Reply,
    Request,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.wire import encode, from_content, to_content

_POLL = 0.05
_LONGEST = 600.0


def _fires(hooks: Path, number: int) -> bool:
    """Return whether a fault has not happened yet; from now on it has."""
    try:
        os.close(
            os.open(hooks / f"fired-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        )
    except FileExistsError:
        return False
    return True


def _faults(hooks: Path, action: str, t: int) -> list[dict[str, Any]]:
    """Return the faults of a kind that are due in a round."""
    faults = json.loads((hooks / "faults.json").read_text("utf-8"))
    due = [
        (i, fault)
        for i, fault in enumerate(faults)
        if (fault["action"], fault["t"]) == (action, t)
    ]
    return [fault for i, fault in due if _fires(hooks, i)]


def _hold(hooks: Path, t: int) -> None:
    """Write the id of this process, and wait until the test lets go."""
    partial = hooks / f"held-{t}.partial"
    partial.write_text(str(os.getpid()), "utf-8")
    partial.rename(hooks / f"held-{t}")
    deadline = time.monotonic() + _LONGEST
    while not (hooks / f"go-{t}").exists() and time.monotonic() < deadline:
        time.sleep(_POLL)


def _protected(reply: Reply | None) -> bytes:
    """Return what a reply holds of the records, all of it encrypted."""
    if isinstance(reply, Answer):
        return reply.words or reply.sealed
    return reply.share if isinstance(reply, Added) else b""


def _keep(
    hooks: Path, message: Message, asked: float, request: Request, reply: Reply | None
) -> None:
    t, attempt = (
        (request.t, request.attempt) if isinstance(request, Located) else (0, 0)
    )
    line = {
        "node": message.metadata.dst_node_id,
        "message": message.metadata.message_id,
        "created": message.metadata.created_at,
        "ttl": message.metadata.ttl,
        "asked": asked,
        "answered": time.time(),
        "kind": request.__struct_config__.tag,
        "run": request.doc_hash.hex(),
        "t": t,
        "attempt": attempt,
        "code": reply.code if isinstance(reply, Refusal) else 0,
        "words": base64.b64encode(_protected(reply)).decode(),
        "enrolled": encode(reply).hex() if isinstance(reply, Enrolled) else "",
    }
    with (hooks / "sent.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _on_result(result: ClientResult, context: Context) -> None:
    client_app.on_result(result, context)
    hooks = Path(str(context.node_config["hooks"]))
    shutil.copy(
        str(context.node_config["result"]), hooks / f"result-{context.run_id}.npz"
    )


class _FaultyApp(ClientApp):
    """The app under test between what spoils its messages and what keeps its answers."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message as the app does; then misbehave."""
        begun = time.time()
        hooks = Path(str(context.node_config["hooks"]))
        request = decode_request(from_content(message.content))
        t = request.t if isinstance(request, Ask) else 0
        for fault in _faults(hooks, "say", t):
            _keep(hooks, message, begun, request, None)
            said = to_content(bytes.fromhex(fault["reply"]))
            return Message(said, reply_to=message)

        def load_data(context: Context) -> Table:
            for fault in _faults(hooks, "raise", t):
                raise RuntimeError(fault["text"])
            return client_app.load_data(context)

        reply = kmeans_client_app(load_data, on_result=_on_result)(message, context)
        _keep(hooks, message, begun, request, decode_reply(from_content(reply.content)))
        for fault in _faults(hooks, "sleep", t):
            time.sleep(
                max(0.0, message.metadata.created_at + fault["until"] - time.time())
            )
        for _ in _faults(hooks, "hold", t):
            _hold(hooks, t)
        return reply


app = _FaultyApp()
