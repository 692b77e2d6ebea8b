"""The library's server and real clients in memory, with round trips that lose what a test names."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohorts import Node, make_nodes, make_run

from flower_kmeans.protocol.messages import Reply, Request
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.wire import encode

LOST = "No answer in time."
T = 3  # rounds, unless a test says so
ROUND_TRIPS = {
    "oblivious-server": T + 3,
    "distributed-noise": 2 * T + 2,
    "clients-only": 2 * T + 2,
    "trusted-server": T + 2,
    "plain": T + 2,
}
Lossy = Callable[[int, str, int, int], str]
"""Of node, kind, round and attempt: "request", "reply", "twice" or nothing."""


@dataclass
class Net:
    """A server, its clients by node, and what travels between them."""

    server: Server
    nodes: dict[int, Node]
    roster: Roster | None = None
    lossy: Lossy = lambda node_id, kind, t, attempt: ""  # what happens to a request
    trips: list[str] = field(default_factory=list)  # kinds of all round trips
    log: list[tuple[str, int, Request, Any]] = field(default_factory=list)
    """Kind, node, request and reply of all that clients received and sent."""
    late: list[int] = field(default_factory=list)
    """Nodes that are not there when the run begins, and are invited in every later trip."""
    hasty: bool = False
    """Whether a trip ends as soon as the server has enough."""

    def trip(
        self, kind: str, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]:
        """Carry one round trip, as `exchange.Exchange.trip` does over a grid."""
        self.trips.append(kind)
        for node_id in sorted(requests):
            yield node_id, self._carry(kind, node_id, requests[node_id])
            if self.hasty and has_enough():
                break
        if kind == "ask":
            for node_id, request in self.server.join(self.late).items():
                yield node_id, self._carry("enrol", node_id, request)

    def _carry(self, kind: str, node_id: int, request: Request) -> Reply | str:
        encode(request)
        fate = self.lossy(
            node_id, kind, getattr(request, "t", 0), getattr(request, "attempt", 0)
        )
        reply = None
        for _ in range({"request": 0, "twice": 2}.get(fate, 1)):
            reply = self.nodes[node_id].send(request)
        self.log.append((kind, node_id, request, reply))
        return LOST if reply is None or fate == "reply" else reply

    # ------------------------------------------------------------------ whole runs

    def set_up(self) -> "Net":
        """Enrol all clients that are not late."""
        self.server.set_up([n for n in self.nodes if n not in self.late], self.trip)
        return self

    def round(self) -> "Net":
        """Play the next round."""
        requests = self.server.ask()
        self.server.take_answers(
            self.trip("ask", requests, self.server.has_enough), self.trip
        )
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
    def answers(self) -> list[int]:
        """How many answers are in the sum of each round."""
        return self.server.proceedings.answers

    @property
    def results(self) -> dict[int, bytes]:
        """The result of each client that has one, as bytes."""
        return {
            node_id: node.results[0].centroids.tobytes()
            + node.results[0].counts.tobytes()
            for node_id, node in self.nodes.items()
            if node.results
        }

    def replies(self, kind: str, t: int | None = None) -> list[tuple[int, Any]]:
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
    ledger: bool = False,
    lies: Mapping[int, Any] | None = None,
    document: Mapping[str, Any] | None = None,
    **net: Any,
) -> Net:
    """Return a server and its clients, whose nodes are 3, 10, 17, ...

    ``lies`` are what nodes send instead of their replies, and ``document`` is as for
    `cohorts.make_run`.
    """
    own = Path(tempfile.mkdtemp(dir=directory))
    nodes, roster = make_nodes(n, own, keys=keys, ledger=ledger)
    run = make_run(trust, keys, roster=roster, **(document or {}))
    server = Server(run, roster=roster if run.document.keys == "roster" else None)
    made = Net(server, {7 * i + 3: node for i, node in enumerate(nodes)}, roster, **net)
    for node_id, node in made.nodes.items():
        node.node_id = node_id
    for node_id, lie in (lies or {}).items():
        made.nodes[node_id].change = lie
    return made
