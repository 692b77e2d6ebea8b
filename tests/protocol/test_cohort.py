"""The server's cohort: who gets a slot, and what a client with a new session is sent."""

import pytest
from cohorts import Cohort as Clients
from cohorts import make_run

from flower_kmeans.protocol import cohort as cohorts
from flower_kmeans.protocol.cohort import Cohort
from flower_kmeans.protocol.incidents import FULL
from flower_kmeans.protocol.messages import Enrolled


def enrolled(run, key):
    return Enrolled(
        doc_hash=run.doc_hash, commitment=bytes([key]) * 32, static=b"", public_key=b""
    )


def test_no_client_gets_a_slot_beyond_the_last(monkeypatch):
    monkeypatch.setattr(cohorts, "MAX_SLOTS", 2)
    run = make_run("plain", "none")
    cohort = Cohort(run, None)
    assert cohort.take(10, enrolled(run, 1)) is None
    assert cohort.take(11, enrolled(run, 2)) is None
    assert cohort.take(12, enrolled(run, 3)) == FULL
    # A client with a slot may still begin a new session.
    assert cohort.take(11, enrolled(run, 4)) is None
    frame = cohort.frame()
    assert {slot: client.node_id for slot, client in frame.slots.items()} == {
        0: 10,
        1: 11,
    }


@pytest.mark.claim("protocol", "late-restarted-renewed-clients")
def test_a_client_that_enrols_again_is_sent_all_entries(tmp_path):
    """At once, without a refusal that costs a round trip: its new session has none of them."""
    clients = Clients(tmp_path, "oblivious-server").set_up()
    clients.round(1)
    clients.round(2)
    clients.nodes[0].restart()
    clients.set_up([0])
    requests = clients.server.ask()
    assert [entry.t for entry in requests[0].entries] == [1, 2]
    assert [entry.t for entry in requests[1].entries] == [2]
