"""Stamps the first connection of a process: then Python and flwr have been imported.

Python runs this as it starts, because the benchmark puts the folder onto the path of
all processes.
"""

import sys
import time
from typing import Any

stamps: dict[str, float] = {}


def _stamp(event: str, _: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        stamps.setdefault("connected", time.time())


if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    sys.addaudithook(_stamp)
