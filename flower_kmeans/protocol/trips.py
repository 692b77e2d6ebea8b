"""Round trips of a server, without Flower's messages and without a clock.

A server makes requests by node and hands them to a `Trip`, which sends them and yields
the replies.
"""

from collections.abc import Callable, Iterable, Mapping

from flower_kmeans.protocol import messages

# "enrol", "keys", "hold", "ask", "add", "finish", "abort", or a kind of run's own
RequestKind = str
Replies = Iterable[tuple[int, messages.Reply | str]]
"""Nodes with their replies. A string is the reason for which there is no orderly reply."""
HasEnough = Callable[[], bool]
"""Returns whether the server could go on without further replies to the present round trip."""
Trip = Callable[[RequestKind, Mapping[int, messages.Request], HasEnough], Replies]
"""Sends requests by node, and yields each node with its reply, or the reason for none.
Replies to the enrolments of `Server.join` may come too."""
