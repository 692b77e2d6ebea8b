"""Journal structs of a run over columns at its server (docs/protocol.md, section 9)."""

from flower_kmeans.protocol.resume import Journaled
from flower_kmeans.report.report import Dropped
from flower_kmeans.vertical.protocol.messages import Joined


class KeptParty(Journaled, frozen=True, kw_only=True):
    """A party of a vertical run: its node, and its statement when it joined."""

    node_id: int
    public: Joined


class KeptRelay(Journaled, tag="vertical", frozen=True, kw_only=True):
    """An unfinished vertical run, without the contents of the mailboxes."""

    document: bytes
    nodes: tuple[int, ...]  # nodes that were asked to take part
    # whether the parties have the keys, and their columns are encrypted
    is_set_up: bool = False
    parties: tuple[KeptParty, ...] = ()  # by slot
    head: int = 0
    round_trips: int = 0
    sent_bytes: int = 0
    delivered_bytes: int = 0
    incidents: tuple[Dropped, ...] = ()
    resumptions: int = 0
