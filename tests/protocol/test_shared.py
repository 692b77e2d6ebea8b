"""Work that clients of a simulation share, and what a node's process keeps: nothing."""

import pickle
from functools import cache, lru_cache
from unittest import mock

import msgspec
import pytest
from cohorts import Cohort
from documents import TRUSTS
from held import holders
from vertical_runs import Relay, blobs, make_parties, straight_signs
from vertical_runs import make_run as make_vertical_run

from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.messages import decode_reply, decode_request
from flower_kmeans.protocol.session import ClientSession
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork

ROOMS = "flower_kmeans.protocol", "flower_kmeans.secagg"
_SHORTEST = 16  # bytes that are found by chance nowhere else


def bytes_of(struct):
    """Return the bytes in the fields of a struct."""
    values = msgspec.structs.asdict(struct).values()
    return {value for value in values if isinstance(value, bytes)}


def of_session(session, *messages):
    """Return all bytes of a session and of the messages to and from it.

    A single public key is not one of them: public keys that were loaded are kept.
    """
    found = set(messages) | bytes_of(session)
    request, reply = messages
    found |= bytes_of(decode_request(request)) | bytes_of(decode_reply(reply))
    public = {getattr(decode_reply(reply), "public_key", b"")}
    zeros = {bytes(32)}
    return {each for each in found - public - zeros if len(each) >= _SHORTEST}


class Watched:
    """A client, and after each of its messages what the modules hold of its session."""

    def __init__(self, client, session):
        self.client, self.session = client, session
        self.kinds = []
        self.found = {}

    def answer_bytes(self, data):
        before = self.session() or ClientSession()
        reply = self.client.answer_bytes(data)
        kind = type(decode_request(data)).__name__
        self.kinds.append(kind)
        secrets = of_session(before, data, reply)
        secrets |= of_session(self.session() or ClientSession(), data, reply)
        if found := holders(secrets, *ROOMS):
            self.found[kind] = found
        return reply


def watched(node, doc_hash):
    node.shared = NO_SHARED_WORK
    client = Watched(node.client, lambda: node.session(doc_hash))
    node.answer = client.answer_bytes
    return client


@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_a_node_keeps_no_bytes_of_a_session_in_a_module(trust, keys, tmp_path):
    cohort = Cohort(tmp_path, trust, keys)
    client = watched(cohort.nodes[0], cohort.doc_hash)
    cohort.play()
    assert not cohort.refusals
    assert {"Enrol", "Ask", "Finish"} <= set(client.kinds)
    assert ("Add" in client.kinds) == cohort.trust.has_committee
    assert client.found == {}


def test_a_party_keeps_no_bytes_of_a_session_in_a_module(tmp_path):
    with straight_signs():
        run = make_vertical_run()
        parties = make_parties(tmp_path, blobs())
        clients = []
        for party in parties:
            client = Watched(party.client, lambda party=party: session_of(party, run))
            clients.append(client)
            party.ask = lambda data, client=client: decode_reply(
                client.answer_bytes(data)
            )
        relay = Relay(run, parties)
        relay.server.set_up(range(len(parties)), relay.trip)
        relay.take("step")
    for client in clients:
        assert {"Enrol", "Turn"} <= set(client.kinds)
        assert client.found == {}


def session_of(party, run):
    try:
        return party.session(run)
    except TypeError:  # none yet
        return None


def in_dictionary(secret):
    return {"session": [secret]}


def in_bounded_cache(secret):
    keep = lru_cache(maxsize=4)(lambda data: len(data))
    keep(secret)
    return keep


def in_cache(secret):
    keep = cache(lambda: (secret,))
    keep()
    return keep


def in_class(secret):
    return type("Planted", (), {"__module__": sessions.__name__, "kept": {secret: 1}})


@pytest.mark.parametrize("plant", [in_dictionary, in_bounded_cache, in_cache, in_class])
def test_a_planted_cache_of_a_module_is_found(plant, tmp_path, monkeypatch):
    cohort = Cohort(tmp_path, "clients-only")
    client = watched(cohort.nodes[0], cohort.doc_hash)
    cohort.set_up()
    assert client.found == {}
    session = cohort.session(0)
    monkeypatch.setattr(sessions, "_planted", plant(session.ephemeral), raising=False)
    cohort.round(1)
    assert client.found["Ask"] == [session.ephemeral]


# ------------------------------------------------------------------------- shared work


def test_a_state_is_followed_once_for_each_name():
    shared = SharedWork()
    fail = mock.Mock(side_effect=ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        shared.state(b"name", fail)
    assert shared.state(b"name", lambda: b"state") == b"state"
    assert shared.state(b"name", fail) == b"state"
    with pytest.raises(ValueError, match="no"):
        shared.state(b"other", fail)


def test_secrets_and_states_of_one_name_differ():
    shared = SharedWork()
    assert shared.secret((b"name",), lambda: b"secret") == b"secret"
    assert shared.state(b"name", lambda: b"state") == b"state"
    assert shared.secret((b"name",), bytes) == b"secret"


def test_a_client_alone_computes_everything_anew():
    shared, made = NO_SHARED_WORK, []

    def make(*inputs):
        made.append(inputs)
        return b"made"

    for _ in range(2):
        assert shared.once(make, 1) == b"made"
        assert shared.secret((b"name",), make) == b"made"
        assert shared.state(b"name", make) == b"made"
    assert made == [(1,), (), ()] * 2


def test_no_secret_travels_to_a_worker():
    shared = SharedWork()
    shared.secret((b"name",), lambda: b"a secret of two clients")
    shared.state(b"name", lambda: b"a state of the run")
    shared.once(bytes, 16)
    data = pickle.dumps(shared)
    assert b"secret of" not in data
    assert b"state of" not in data
    copy = pickle.loads(data)  # noqa: S301
    assert isinstance(copy, SharedWork)
    assert copy.secret((b"name",), lambda: b"another") == b"another"
