"""Round trips as a server knows them: it has no messages of Flower's and no clock.

It makes requests per node and hands them to a `Trip`, which carries them and yields the
replies.
"""

from collections.abc import Callable, Iterable, Mapping

from flower_kmeans.protocol import messages

RequestKind = (
    str  # "enrol", "keys", "hold", "ask", "add", "finish", "abort", or of a kind of run
)
Replies = Iterable[tuple[int, messages.Reply | str]]
"""Node and reply; a string states why there is no orderly reply."""
HasEnough = Callable[[], bool]
"""Whether the server could go on without further replies to the round trip that is under way."""
Trip = Callable[[RequestKind, Mapping[int, messages.Request], HasEnough], Replies]
"""Sends requests by node, and yields each node with its reply or why there is none, as they come.
Replies to the enrolments that `Server.join` returned may come too."""
