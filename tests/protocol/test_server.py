"""The server of protocol 2 with real clients: whole runs, losses, dishonest clients, its limits."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.cohort import ShareStore
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Keys,
    Refusal,
    Reply,
    Request,
    Wrapped,
)
from flower_kmeans.protocol.server import MAX_RELAY, Server, planned_sizes, require_sizes
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode
from flower_kmeans.secagg.shares import PRIMES
from tests.support.cohorts import PROTECTED, TRUSTS, algorithm_for, make_run
from tests.support.serving import LOST, Net, make_net

T = 3
ROUND_TRIPS = {
    "oblivious-server": T + 3,
    "distributed-noise": 2 * T + 2,
    "clients-only": 2 * T + 2,
    "trusted-server": T + 2,
    "plain": T + 2,
}
MODES = [(trust, keys) for trust in PROTECTED for keys in ("roster", "relayed")]
MODES += [(trust, "none") for trust in TRUSTS if trust not in PROTECTED]
SHARED = [trust for trust in PROTECTED if trust_model(trust).has_committee]

replace = msgspec.structs.replace


def completes(net: Net, at_least: int | None = None) -> Net:
    """Play a run whose clients have one result, but for so many."""
    net.play()
    results = net.results
    assert len(set(results.values())) == 1
    assert len(results) >= (len(net.nodes) if at_least is None else at_least)
    assert len(net.trips) == net.server.proceedings.round_trips
    return net


# ------------------------------------------------------------------------------ whole runs


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_run_takes_the_announced_round_trips(trust: str, keys: str, tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, trust, keys))
    server = net.server
    assert len(net.trips) == ROUND_TRIPS[trust]
    assert (server.incidents, server.dropped) == ([], [])
    assert server.proceedings.answers == [9] * T
    assert (server.proceedings.attempts, server.proceedings.repeats) == (T, 0)
    assert server.delivered == set(net.nodes)
    assert server.head == T
    assert server.n_opened == (0 if server.run.trust.is_blind else T)
    assert not server.all_keep_ledgers


def test_the_servers_result_is_that_of_the_records(tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, "plain", n=4))
    algorithm = net.server.run.algorithm
    state, total = algorithm.initial_state(None), None
    for t in range(1, T + 1):
        query = algorithm.query(state)
        total = sum(
            algorithm.flatten(algorithm.answer(query, _grid(net, node_id)), t)
            for node_id in net.nodes
        )
        state = algorithm.update(state, algorithm.unflatten(total, t))
    assert np.array_equal(algorithm.centroids(state), algorithm.centroids(net.server.state))
    result = net.nodes[3].results[0]
    assert np.array_equal(result.centroids, algorithm.centroids(state))


def _grid(net: Net, node_id: int) -> Any:
    from flower_kmeans.domain import GridRecords

    algorithm = net.server.run.algorithm
    return GridRecords(net.nodes[node_id].load(), algorithm.domain, algorithm.fraction_bits)


STEPS = [("enrol", 0), ("keys", 0), ("finish", 0)]
STEPS += [(kind, t) for t in (1, 2, 3) for kind in ("ask", "add")]


@pytest.mark.parametrize("fate", ["request", "reply", "twice"])
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_loss_at_any_point_costs_no_round_trip(
    trust: str, keys: str, fate: str, tmp_path: Path
) -> None:
    for kind, t in STEPS:
        directory = tmp_path / f"{kind}{t}"
        directory.mkdir()

        def lossy(node_id: int, this: str, round_: int, attempt: int, *, at=(kind, t)) -> str:
            return fate if node_id == 17 and (this, round_) == at else ""

        net = completes(make_net(directory, trust, keys, lossy=lossy), at_least=8)
        assert len(net.trips) == ROUND_TRIPS[trust], (kind, t)


@pytest.mark.parametrize("trust", SHARED)
def test_missing_sum_shares_are_asked_for_again(trust: str, tmp_path: Path) -> None:
    for gone, repeats in ((2, 0), (3, 1)):  # of 12: tau 8, k 2, R 10
        asked: Counter[int] = Counter()

        def lossy(node_id: int, kind: str, t: int, attempt: int, *, gone=gone, asked=asked) -> str:
            if (kind, t) != ("add", 2) or node_id >= 3 + 7 * gone:
                return ""
            asked[node_id] += 1
            return "reply" if asked[node_id] == 1 else ""

        directory = tmp_path / str(gone)
        directory.mkdir()
        net = completes(make_net(directory, trust, n=12, lossy=lossy))
        assert net.server.proceedings.repeats == repeats
        assert len(net.trips) == ROUND_TRIPS[trust] + repeats
        assert net.server.proceedings.committee.threshold == 10


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_round_with_too_few_answers_is_asked_for_again(trust: str, tmp_path: Path) -> None:
    def lossy(node_id: int, kind: str, t: int, attempt: int) -> str:
        return "reply" if (kind, t, attempt) == ("ask", 2, 1) and node_id > 10 else ""

    net = completes(make_net(tmp_path, trust, n=5, lossy=lossy))
    assert net.server.proceedings.attempts == T + 1
    assert len(net.trips) == ROUND_TRIPS[trust] + 1


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_ends_when_too_few_answer_in_all_attempts(trust: str, tmp_path: Path) -> None:
    def lossy(node_id: int, kind: str, t: int, attempt: int) -> str:
        return "request" if (kind, t) == ("ask", 2) and node_id > 10 else ""

    net = make_net(tmp_path, trust, n=5, lossy=lossy)
    with pytest.raises(TooFewClientsError, match=f"round 2 of 3.*Got 2 of 5.*{LOST}"):
        net.play()


def test_too_few_enrolments_end_a_run(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=5, min_clients=4, lossy=lambda n, k, t, a: "reply" * (n < 15))
    with pytest.raises(TooFewClientsError, match=r"min_clients=4 clients to take part\. Got 3"):
        net.set_up()
    directory = tmp_path / "more"
    directory.mkdir()
    net = make_net(directory, n=5, lossy=lambda n, k, t, a: "reply" * (n < 15))
    with pytest.raises(TooFewClientsError, match="more of the 5 committee members.*Got 3"):
        net.set_up()
    assert [d.node_id for d in net.server.dropped] == [3, 10]


@pytest.mark.parametrize(("trust", "keys"), MODES)
@pytest.mark.parametrize("ledger", [True, False])
def test_a_restarted_client_comes_back(
    trust: str, keys: str, ledger: bool, tmp_path: Path
) -> None:
    net = make_net(tmp_path, trust, keys, ledger=ledger, rounds=6).set_up()
    for t in range(1, 7):
        if t in (2, 3):
            net.nodes[31].restart()
        net.round()
    results = net.finish().results
    missed = 9 * 6 - sum(net.server.proceedings.answers)
    assert len(set(results.values())) == 1
    assert len(results) == 9
    if ledger or not net.server.run.trust.is_protected:
        assert missed <= (0 if ledger else 2)
    else:
        assert 1 <= missed <= 5
        assert set(net.reasons("renewed")) == {31}


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_that_come_late_join_unless_keys_are_relayed(trust: str, tmp_path: Path) -> None:
    for keys in ("roster", "relayed"):
        directory = tmp_path / keys
        directory.mkdir()
        net = make_net(directory, trust, keys, rounds=4)
        net.late = [59]
        net.play()
        late_joined = keys == "roster" or not net.server.run.trust.is_protected
        assert (59 in net.results) == late_joined
        assert len(set(net.results.values())) == 1
        assert net.server.proceedings.answers[-1] == 8 + late_joined


# ------------------------------------------------------------------------------ dishonest clients


def wrong_tags(request: Request, reply: Reply) -> Reply:
    return replace(reply, tags=token(len(reply.tags))) if isinstance(reply, Enrolled) else reply


def zero_key(request: Request, reply: Reply) -> Reply:
    return replace(reply, public_key=bytes(32)) if isinstance(reply, Enrolled) else reply


def small_order(request: Request, reply: Reply) -> Reply:
    one = (1).to_bytes(32, "little")
    return replace(reply, public_key=one) if isinstance(reply, Enrolled) else reply


def claims_garbage(request: Request, reply: Reply) -> Reply:
    if isinstance(request, Enrol):
        return reply
    return Refusal(code=Code.GARBAGE, doc_hash=request.doc_hash)


def skips_all(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Answer):
        return replace(reply, sealed=tuple(b"" for _ in reply.sealed))
    return reply


def skips_one(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Answer) and reply.sealed:
        return replace(reply, sealed=(b"", *reply.sealed[1:]))
    return reply


def bad_seals(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Answer):
        return replace(reply, sealed=tuple(token(len(x)) if x else x for x in reply.sealed))
    return reply


def other_tag(request: Request, reply: Reply) -> Reply:
    return replace(reply, tag=token(32)) if isinstance(reply, Answer) else reply


def names_others(request: Request, reply: Reply) -> Reply:
    if isinstance(request, Add):
        return Refusal(code=Code.KEY, doc_hash=request.doc_hash, slot=3)
    return reply


def bad_envelopes(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Answer | Wrapped):
        return replace(reply, envelopes=tuple(token(48) for _ in reply.envelopes))
    return reply


def no_envelopes(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Answer | Wrapped):
        return replace(reply, envelopes=tuple(b"" for _ in reply.envelopes))
    return reply


def false_share(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Added):
        return replace(reply, share=bytes(len(reply.share)))
    return reply


def malformed_share(request: Request, reply: Reply) -> Reply:
    return replace(reply, share=b"\xff" * len(reply.share)) if isinstance(reply, Added) else reply


def long_share(request: Request, reply: Reply) -> Reply:
    return replace(reply, share=reply.share + bytes(8)) if isinstance(reply, Added) else reply


def other_key_id(request: Request, reply: Reply) -> Reply:
    if isinstance(reply, Added) and reply.key_id:
        return replace(reply, key_id=token(16))
    return reply


def another_kind(request: Request, reply: Reply) -> Reply:
    if isinstance(request, Ask | Add):
        return Wrapped(doc_hash=request.doc_hash, envelopes=())
    return reply


def another_run(request: Request, reply: Reply) -> Reply:
    return reply if isinstance(request, Enrol) else replace(reply, doc_hash=token(32))


def renews_always(request: Request, reply: Reply) -> Reply:
    if isinstance(request, Ask | Add):
        return Refusal(
            code=Code.RENEW,
            doc_hash=request.doc_hash,
            commitment=token(32),
            public_key=token(32),
        )
    return reply


DISHONEST = [
    wrong_tags,
    zero_key,
    small_order,
    claims_garbage,
    skips_all,
    skips_one,
    bad_seals,
    other_tag,
    names_others,
    bad_envelopes,
    no_envelopes,
    false_share,
    malformed_share,
    long_share,
    other_key_id,
    another_kind,
    another_run,
    renews_always,
]


@pytest.mark.parametrize("trust", PROTECTED)
@pytest.mark.parametrize("change", DISHONEST)
def test_one_dishonest_client_costs_itself_only(
    trust: str, change: Callable[[Request, Reply], Reply], tmp_path: Path
) -> None:
    for who in (3, 17, 59):  # two of them are key distributors
        directory = tmp_path / str(who)
        directory.mkdir()
        net = make_net(directory, trust, n=9)
        net.nodes[who].change = change
        net.play()
        honest = {n: r for n, r in net.results.items() if n != who}
        assert len(honest) == 8, (who, net.server.incidents)
        assert len(set(honest.values())) == 1
        assert len(net.trips) <= ROUND_TRIPS[trust] + 3


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("code", list(Code))
def test_no_refusal_ends_a_run(trust: str, code: Code, tmp_path: Path) -> None:
    def refuse(request: Request, reply: Reply) -> Reply:
        return Refusal(code=code, doc_hash=request.doc_hash)

    for kinds in ((Enrol,), (Keys,), (Ask,), (Add,), (Ask, Add)):
        name = "".join(kind.__name__ for kind in kinds)
        (tmp_path / name).mkdir()
        net = make_net(tmp_path / name, trust, n=9)
        net.nodes[3].change = lambda q, r, kinds=kinds: refuse(q, r) if isinstance(q, kinds) else r
        net.play()
        assert len({r for n, r in net.results.items() if n != 3}) == 1
        assert len([n for n in net.results if n != 3]) == 8
