"""The deployment's client app, which writes when each step of an answer began and ended.

``stamps`` in ``--node-config`` is the file that gets one line per message.
"""

import time

BEGUN = time.time()  # before any import of the app's

import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import client_app  # noqa: E402
import sitecustomize  # noqa: E402
from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from flower_kmeans import kmeans_client_app  # noqa: E402
from flower_kmeans.privacy import calibration, plan  # noqa: E402
from flower_kmeans.privacy.ledger import Ledger  # noqa: E402
from flower_kmeans.protocol import records  # noqa: E402
from flower_kmeans.secagg import primitives  # noqa: E402

LOADED = time.time()


def process_start() -> float:
    """Return the time at which this process began, in steps of 0.01 s (Linux only)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


class Parts:
    """Seconds of the parts of an answer. Time in an inner part does not count in the outer."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within: list[float] = []

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose seconds are added to a part."""

        @functools.wraps(function)
        def timing(*args: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            self._within.append(0.0)
            try:
                return function(*args, **more)
            finally:
                seconds = time.perf_counter() - begun
                own = seconds - self._within.pop()
                self.seconds[part] = self.seconds.get(part, 0.0) + own
                if self._within:
                    self._within[-1] += seconds

        return timing

    def time(self, part: str, owner: Any, *names: str) -> None:
        """Time functions of a module, or methods of a class, from now on."""
        for name in names:
            setattr(owner, name, self.timed(part, getattr(owner, name)))


PARTS = Parts()
PUBLIC = [
    name for name, each in vars(Ledger).items() if callable(each) and name[0] != "_"
]
PARTS.time("ledger", Ledger, "__init__", *PUBLIC)
PARTS.time("records", client_app, "load_data")
PARTS.time("records", records, "words_of_rows")
PARTS.time(
    "keys", primitives, "agree", "claim", "is_claim", "lasting_key", "exchange_key"
)
PARTS.time("keys", primitives, "seal", "unseal")
for module in (calibration, plan):
    PARTS.time("budget", module, "mu_of_budget", "epsilon_of_mu")


class _StampingApp(ClientApp):
    """The deployment's app, whose answers are timed."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message, and write down its times."""
        called = time.time()
        answer = kmeans_client_app(client_app.load_data, on_result=client_app.on_result)
        reply = answer(message, context)
        line = {
            "message": message.metadata.message_id,
            "started": process_start(),
            "connected": sitecustomize.stamps["connected"],
            "begun": BEGUN,
            "loaded": LOADED,
            "called": called,
            "returned": time.time(),
            "parts": PARTS.seconds,
        }
        with Path(str(context.node_config["stamps"])).open(
            "a", encoding="utf-8"
        ) as file:
            file.write(json.dumps(line) + "\n")
        return reply


app = _StampingApp()
