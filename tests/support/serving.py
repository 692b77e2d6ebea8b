"""The library's server and real clients in memory, with round trips that lose what a test names."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohorts import Node, make_nodes, make_run

from flower_kmeans.protocol.messages import Reply, Request
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.wire import encode

LOST = "No answer in time."
Lossy = Callable[[int, str, int, int], str]
"""Of node, kind, round and attempt: "request", "reply", "twice" or nothing."""


def nothing_lost(node_id: int, kind: str, t: int, attempt: int) -> str:
    """Lose nothing."""
    return ""


@dataclass
class Net:
    """A server, its clients by node, and what travels between them.

    Attributes
    ----------
    server : Server
    nodes : dict of int to Node
    lossy : callable
        What happens to a request.
    on_trip : callable, optional
        Called with the kind of each round trip before it.
    trips : list of str
        Kinds of all round trips.
    log : list of (kind, node, request, reply)
        All that clients received and sent.
    """

    server: Server
    nodes: dict[int, Node]
    lossy: Lossy = nothing_lost
    on_trip: Callable[[str], None] | None = None
    trips: list[str] = field(default_factory=list)
    log: list[tuple[str, int, Request, Reply | None]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    """Nodes that are not there when the run begins, and are invited in every later trip."""
    hasty: bool = False
    """Whether a trip ends as soon as the server has enough."""
    backwards: bool = False
    """Whether the last client answers first."""

    def trip(
        self, kind: str, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]:
        """Carry one round trip, as `exchange.Exchange.trip` does over a grid."""
        self.trips.append(kind)
        if self.on_trip is not None:
            self.on_trip(kind)
        for node_id in sorted(requests, reverse=self.backwards):
            yield node_id, self._carry(kind, node_id, requests[node_id])
            if self.hasty and has_enough():
                break
        if kind == "ask":
            for node_id, request in self.server.join(self.late).items():
                yield node_id, self._carry("enrol", node_id, request)

    def _carry(self, kind: str, node_id: int, request: Request) -> Reply | str:
        t, attempt = getattr(request, "t", 0), getattr(request, "attempt", 0)
        encode(request)
        fate = self.lossy(node_id, kind, t, attempt)
        if fate == "request":
            self.log.append((kind, node_id, request, None))
            return LOST
        reply = self.nodes[node_id].send(request)
        if fate == "twice":
            reply = self.nodes[node_id].send(request)
        self.log.append((kind, node_id, request, reply))
        return LOST if fate == "reply" else reply

    # ------------------------------------------------------------------ whole runs

    def set_up(self) -> "Net":
        """Enrol all clients that are not late."""
        self.server.set_up([n for n in self.nodes if n not in self.late], self.trip)
        return self

    def round(self) -> "Net":
        """Play the next round."""
        requests = self.server.ask()
        self.server.take_answers(self.trip("ask", requests, self.server.has_enough), self.trip)
        return self

    def finish(self) -> "Net":
        """Deliver the result."""
        requests = self.server.finish_requests()
        replies = self.trip("finish", requests, self.server.has_enough)
        self.server.take_finished(replies, self.trip)
        return self

    def play(self) -> "Net":
        """Play a whole run."""
        self.set_up()
        for _ in range(self.server.run.document.rounds):
            self.round()
        return self.finish()

    # ------------------------------------------------------------------ looking at it

    @property
    def results(self) -> dict[int, bytes]:
        """The result of each client that has one, as bytes."""
        return {
            node_id: node.results[0].centroids.tobytes() + node.results[0].counts.tobytes()
            for node_id, node in self.nodes.items()
            if node.results
        }

    def replies(self, kind: str, t: int | None = None) -> list[tuple[int, Reply | None]]:
        """Return the replies to a kind of request, of one round."""
        return [
            (node_id, reply)
            for each, node_id, request, reply in self.log
            if each == kind and (t is None or getattr(request, "t", None) == t)
        ]

    def reasons(self, kind: str) -> Counter[int]:
        """Return how often each node is in the incidents of a kind."""
        return Counter(i.node_id for i in self.server.incidents if i.kind == kind)


def make_net(
    directory: Path,
    trust: str = "distributed-noise",
    keys: str = "roster",
    n: int = 9,
    *,
    lossy: Lossy = nothing_lost,
    ledger: bool = False,
    policy: dict[str, Any] | None = None,
    **document: Any,
) -> Net:
    """Return a server and its clients; ``document`` as for `cohorts.make_run`."""
    nodes, roster = make_nodes(n, directory, keys=keys, ledger=ledger, **(policy or {}))
    run = make_run(trust, keys, roster=roster, **document)
    server = Server(run, roster=roster if run.document.keys == "roster" else None)
    return Net(server, {7 * i + 3: node for i, node in enumerate(nodes)}, lossy)
