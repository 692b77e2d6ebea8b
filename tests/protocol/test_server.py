"""The server of protocol 2 with real clients: whole runs, losses, dishonest clients, its limits."""

import copy
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cohorts import PROTECTED, SHARED, Node, make_run
from documents import BOX, TRUSTS
from serving import LOST, Net, make_net

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.domain import GridRecords
from flower_kmeans.errors import (
    ConfigurationError,
    MessageError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.cohort import TAKEN, ShareStore
from flower_kmeans.protocol.committee import drawn
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
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.server import DIFFERS, MAX_RELAY, Server, planned_sizes, require_sizes
from flower_kmeans.protocol.trust import trust_model
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode, encode_arrays
from flower_kmeans.secagg.base import Sharing
from flower_kmeans.version import __version__

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


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_run_without_clients_ends(trust: str, keys: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, keys, n=3, lossy=lambda n, kind, t, a: "request")
    with pytest.raises(TooFewClientsError, match=rf"Got 0 instead\. Reasons: {LOST}"):
        net.set_up()


def test_too_few_enrolments_end_a_run(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=5, min_clients=4, lossy=lambda n, k, t, a: "reply" * (n < 15))
    with pytest.raises(TooFewClientsError, match=r"min_clients=4 clients to take part\. Got 3"):
        net.set_up()
    directory = tmp_path / "more"
    directory.mkdir()
    net = make_net(directory, n=5, lossy=lambda n, k, t, a: "reply" * (n < 15))
    with pytest.raises(TooFewClientsError, match=r"more of the 5 committee members.*Got 3"):
        net.set_up()
    assert [d.node_id for d in net.server.dropped] == [3, 10]


@pytest.mark.parametrize(("trust", "keys"), MODES)
@pytest.mark.parametrize("ledger", [True, False])
def test_a_restarted_client_comes_back(trust: str, keys: str, ledger: bool, tmp_path: Path) -> None:
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

    for kinds in ((Enrol,), (Keys, Ask), (Add,)):
        name = "".join(kind.__name__ for kind in kinds)
        (tmp_path / name).mkdir()
        net = make_net(tmp_path / name, trust, n=9)
        net.nodes[3].change = lambda q, r, kinds=kinds: refuse(q, r) if isinstance(q, kinds) else r
        net.play()
        assert len({r for n, r in net.results.items() if n != 3}) == 1
        assert len([n for n in net.results if n != 3]) == 8


# ------------------------------------------------------------------------------ rules about faults


def test_strangers_are_not_heard(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=5).set_up()
    requests = net.server.ask()
    replies = list(net.trip("ask", requests, net.server.has_enough))
    doc_hash = net.server.run.doc_hash
    strangers: list[tuple[int, Reply]] = [
        (99, Refusal(code=Code.GARBAGE, doc_hash=doc_hash)),
        (98, replies[0][1]),
        (97, Refusal(code=Code.RENEW, doc_hash=doc_hash, commitment=token(32))),
        (96, replace(net.log[0][3], static=token(32), public_key=token(32))),
    ]
    net.server.take_answers(strangers + replies, net.trip)
    assert net.server.proceedings.answers == [5]
    assert net.server.n_clients == 5
    assert not net.server.join([96, 97, 99])
    assert net.server.join([98, 95]).keys() == {98, 95}


def test_a_second_answer_does_not_count(tmp_path: Path) -> None:
    net = make_net(tmp_path, "plain", n=3).set_up()
    replies = list(net.trip("ask", net.server.ask(), net.server.has_enough))
    net.server.take_answers(replies + replies, net.trip)
    assert net.server.proceedings.answers == [3]
    assert net.reasons("failed") == {3: 1, 10: 1, 17: 1}


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_trip_may_end_as_soon_as_there_is_enough(trust: str, keys: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, keys, n=9, max_attempts=3)
    net.hasty = True
    net.play()
    assert min(net.server.proceedings.answers) >= 3
    assert len(set(net.results.values())) == 1
    assert len(net.trips) == ROUND_TRIPS[trust]
    if net.server.run.trust.has_committee:
        n_added = Counter(
            request.t for kind, _, request, reply in net.log if kind == "add" and reply
        )
        committee = net.server.proceedings.committee
        assert set(n_added.values()) <= {committee.threshold, committee.threshold + 1}


def test_round_1_waits_for_a_key_distributor(tmp_path: Path) -> None:
    for trust, answers in (("clients-only", [7, 3, 3]), ("oblivious-server", [3, 3, 3])):
        net = make_net(_made(tmp_path / trust), trust, n=9).set_up()
        net.hasty = net.backwards = True
        for _ in range(T):
            net.round()
        net.finish()
        assert net.server.proceedings.answers == answers
        assert len(set(net.results.values())) == 1


def test_clients_that_others_cannot_share_with_are_left_out(tmp_path: Path) -> None:
    for change, answers in ((wrong_tags, 9), (skips_all, 8), (skips_one, 9)):
        directory = tmp_path / change.__name__
        directory.mkdir()
        net = make_net(directory, n=9)
        net.nodes[17].change = change
        net.play()
        assert net.server.proceedings.answers == [answers] * T, change
        skipped = 3 if change is skips_one else 17  # of one against one, the position
        assert net.reasons("skipped") == {skipped: T}
        adds = {node_id for node_id, _ in net.replies("add")}
        assert (skipped in adds) == (change is skips_all)
        assert len(net.trips) == ROUND_TRIPS["distributed-noise"]


@pytest.mark.parametrize("trust", SHARED)
def test_a_dealer_whose_shares_do_not_open_is_named_once(trust: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, n=9)
    net.nodes[17].change = bad_seals
    net.play()
    assert net.server.proceedings.answers == [8] * T
    assert net.server.proceedings.repeats == 1
    assert net.reasons("named") == {17: 1}
    assert len(net.trips) == ROUND_TRIPS[trust] + 1


def test_where_no_position_can_be_missed_the_dealer_is_left_out(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=4)  # R 4
    net.nodes[17].change = skips_one
    net.play()
    assert net.server.proceedings.answers == [3] * T
    assert net.reasons("skipped") == {17: T}


def test_without_a_spare_sum_share_the_checksum_word_finds_a_false_one(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=4)
    net.nodes[17].change = _lies_in({2})
    net.play()
    assert net.server.proceedings.answers == [4, 0, 4]
    assert net.reasons("liar") == {}


def _seals_badly_to(positions: int) -> Callable[[Request, Reply], Reply]:
    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Answer) and isinstance(request, Ask) and request.t == 1:
            sealed = [token(len(x)) for x in reply.sealed[:positions]]
            return replace(reply, sealed=(*sealed, *reply.sealed[positions:]))
        return reply

    return change


@pytest.mark.parametrize("trust", SHARED)
def test_bad_seals_to_some_members_end_one_round(trust: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, n=9)  # tau 6, k 1, R 7: three that do not vote are too many
    net.nodes[59].change = _seals_badly_to(3)
    if trust_model(trust).is_blind:
        with pytest.raises(RunError, match=r"Expected 7 sum-shares that open the sum of round 1"):
            net.play()
    else:
        net.play()
        assert net.server.proceedings.answers == [0, 8, 8]
        assert net.server.proceedings.lost_rounds == [1]
        assert len(net.results) == 9
        assert net.server.n_opened == T
    assert net.reasons("named") == {59: 1}


@pytest.mark.parametrize("trust", SHARED)
def test_few_members_that_name_a_dealer_cost_no_vote(trust: str, tmp_path: Path) -> None:
    asked: Counter[int] = Counter()

    def lossy(node_id: int, kind: str, t: int, attempt: int) -> str:
        asked[node_id] += kind == "add"
        return "reply" * (kind == "add" and node_id == 73 and asked[73] == 1)

    net = make_net(tmp_path, trust, n=12, lossy=lossy)  # f 1, R 10: two of 12 may be missing
    net.nodes[80].change = _seals_badly_to(2)
    completes(net)
    assert net.server.proceedings.answers == [12, 11, 11]
    assert net.server.proceedings.repeats == 1
    assert net.reasons("named") == {80: 1}


@pytest.mark.parametrize("trust", SHARED)
def test_one_member_that_names_a_dealer_costs_it_nothing(trust: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, n=9)
    net.nodes[59].change = names_others
    net.play()
    assert net.server.proceedings.answers == [9] * T
    assert net.reasons("named") == {}


def test_sum_shares_of_another_length_are_not_passed_on(tmp_path: Path) -> None:
    net = make_net(tmp_path, "clients-only", n=9)
    net.nodes[59].change = long_share
    net.play()
    entries = [e for _, _, q, _ in net.log for e in getattr(q, "entries", ())]
    assert {len(entry.shares) for entry in entries} == {8}
    assert net.reasons("failed") == {59: T}


def test_a_lost_round_is_an_iteration_less(tmp_path: Path) -> None:
    def lossy(node_id: int, kind: str, t: int, attempt: int) -> str:
        return "reply" if (kind, t) == ("add", 2) and node_id > 10 else ""

    net = completes(make_net(tmp_path, lossy=lossy))
    assert net.server.proceedings.answers == [9, 0, 9]
    assert net.trips.count("add") == 1 + 3 + 1
    assert net.server.state.round == T


def test_a_run_whose_every_round_is_lost_has_no_result(tmp_path: Path) -> None:
    net = make_net(tmp_path, lossy=lambda n, kind, t, a: "reply" * (kind == "add"))
    with pytest.raises(RunError, match="Expected centroids and counts after the last round"):
        net.play()
    assert net.server.n_opened == 0


def _impostor(net: Net, impostor: int, owner: int) -> None:
    """Let a node enrol with the lasting key of another, whose secret key it lacks."""
    static = net.server._roster.keys[sorted(net.nodes).index(owner)]

    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Enrolled):
            return replace(reply, static=static)
        return replace(reply, static=static) if isinstance(reply, Refusal) else reply

    net.nodes[impostor].change = change


@pytest.mark.parametrize("trust", PROTECTED)
def test_a_slot_goes_to_the_owner_of_its_secret_key(trust: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, n=9)
    _impostor(net, 3, 31)
    net.play()
    answers = net.server.proceedings.answers
    assert answers[0] == 7  # neither the impostor nor the owner
    assert answers[-1] == 8
    assert {31, 59} <= net.results.keys()
    assert 3 not in net.results
    assert len(set(net.results.values())) == 1


@pytest.mark.parametrize("trust", PROTECTED)
def test_of_two_nodes_with_one_lasting_key_the_first_has_the_slot(
    trust: str, tmp_path: Path
) -> None:
    for ledger in (False, True):  # with one, both nodes have one session too
        net = make_net(_made(tmp_path / str(ledger)), trust, n=5, ledger=ledger)
        net.nodes[99] = Node(net.nodes[3].policy, net.nodes[3].records)
        net.play()
        assert net.server.proceedings.answers == [5] * T
        assert net.results.keys() == {3, 10, 17, 24, 31}
        assert [(d.node_id, d.reason) for d in net.server.dropped] == [(99, TAKEN)]


def test_a_key_of_another_client_is_not_accepted(tmp_path: Path) -> None:
    for keys in ("roster", "relayed"):
        net = make_net(_made(tmp_path / keys), "clients-only", keys, n=6)
        seen: list[bytes] = []

        def shows(request: Request, reply: Reply, *, seen: list[bytes] = seen) -> Reply:
            if isinstance(reply, Enrolled):
                seen.append(reply.public_key)
            return reply

        def copies(request: Request, reply: Reply, *, seen: list[bytes] = seen) -> Reply:
            if isinstance(reply, Enrolled):
                return replace(reply, public_key=seen[0])
            return reply

        net.nodes[3].change = shows
        net.nodes[38].change = copies
        net.play()
        assert net.server.proceedings.answers == [5] * T
        assert net.results.keys() == {3, 10, 17, 24, 31}


def test_a_client_with_another_roster_takes_no_part(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    net, other = make_net(tmp_path, n=5), make_net(tmp_path / "other", n=5)
    net.nodes[3].policy = other.nodes[3].policy
    net.play()
    assert net.results.keys() == {10, 17, 24, 31}
    assert net.server.incidents[0].reason == Code.POLICY.sentence


def test_a_server_requires_the_roster_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    net, other = make_net(tmp_path, n=3), make_net(tmp_path / "other", n=3)
    for roster in (None, other.server._roster):
        with pytest.raises(ConfigurationError, match="roster that the run document names"):
            Server(net.server.run, roster=roster)
    with pytest.raises(ConfigurationError, match="roster that the run document names"):
        Server(make_run("plain", "none"), roster=net.server._roster)


# ------------------------------------------------------------------------------ group keys


@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
@pytest.mark.parametrize("n_other", [2, 5, 7])
def test_a_distributor_of_two_group_keys_ends_no_run(
    trust: str, n_other: int, tmp_path: Path
) -> None:
    net = make_net(tmp_path, trust, n=9)
    node, secret = net.nodes[3], token(32)

    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Answer | Wrapped) and reply.envelopes:
            session = node.session(request.doc_hash)
            identity = node.policy.read_identity()
            other = Pairs(request.doc_hash, session, identity).wrap(secret, request.peers)
            mixed = (*other[:n_other], *reply.envelopes[n_other:])
            return replace(reply, envelopes=mixed)
        return reply

    node.change = change
    net.play()
    assert len(net.results) >= 8
    assert len(set(net.results.values())) == 1
    assert net.server.proceedings.answers[-1] >= 8
    assert len(net.trips) <= ROUND_TRIPS[trust] + 2


def test_the_next_distributors_envelopes_follow_those_that_do_not_open(tmp_path: Path) -> None:
    net = make_net(tmp_path, "clients-only", n=9)
    for node_id in (3, 10):
        net.nodes[node_id].change = bad_envelopes
    net.play()
    adds = [request for kind, _, request, _ in net.log if kind == "add"]
    assert [adds[9 * i].wrap_for.distributor.slot for i in range(3)] == [0, 1, 2]
    assert net.trips[:6] == ["enrol", "ask", "add", "add", "add", "ask"]
    assert net.server.proceedings.answers == [9] * T
    assert len(net.results) == 9
    net = make_net(_made(tmp_path / "masks"), "oblivious-server", n=9, max_attempts=3)
    for node_id in (3, 10):
        net.nodes[node_id].change = bad_envelopes
    net.play()
    assert net.trips[:6] == ["enrol", "keys", "ask", "ask", "ask", "ask"]
    assert net.server.proceedings.attempts == 3 + T - 1
    assert len(net.results) == 9


@pytest.mark.parametrize(
    ("trust", "answers"),
    [("oblivious-server", [9, 8, 8, 8, 9, 9]), ("clients-only", [9, 8, 8, 9, 9, 9])],
)
def test_a_renewed_client_is_back_after_two_rounds_with_a_group_key(
    trust: str, answers: list[int], tmp_path: Path
) -> None:
    net = make_net(tmp_path, trust, n=9, rounds=6).set_up().round()
    net.nodes[31].restart()
    for _ in range(5):
        net.round()
    assert net.server.proceedings.answers == answers


def test_other_distributors_are_asked_if_none_replies(tmp_path: Path) -> None:
    lost = {3, 10, 17}
    net = make_net(
        tmp_path,
        "oblivious-server",
        lossy=lambda n, kind, t, a: "request" * (kind == "keys" and n in lost),
    )
    completes(net)
    assert net.trips[:4] == ["enrol", "keys", "keys", "ask"]
    (tmp_path / "none").mkdir()
    net = make_net(
        tmp_path / "none", "oblivious-server", n=5, lossy=lambda n, k, t, a: "reply" * (k == "keys")
    )
    with pytest.raises(RunError, match="Expected a client that makes the group key"):
        net.play()


# ------------------------------------------------------------------------------ false sums


def test_random_words_end_a_run_of_an_oblivious_server(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Answer) and isinstance(request, Ask) and request.t == 2:
            return replace(reply, words=token(len(reply.words)))
        return reply

    net = make_net(tmp_path, "oblivious-server", n=5)
    net.nodes[31].change = change
    with pytest.raises(TooFewClientsError, match="The announced sum does not open"):
        net.play()


@pytest.mark.parametrize("trust", ["trusted-server", "plain", "oblivious-server"])
def test_malformed_words_are_not_added(trust: str, tmp_path: Path) -> None:
    for words in (b"", token(8), token(24), bytes(8 * 7)):
        name = str(len(words))
        (tmp_path / name).mkdir()
        net = make_net(tmp_path / name, trust, n=5)
        protected = net.server.run.trust.is_protected
        if protected and len(words) == 8 * net.server.run.document.words[0]:
            continue

        def change(request: Request, reply: Reply, *, words: bytes = words) -> Reply:
            return replace(reply, words=words) if isinstance(reply, Answer) else reply

        net.nodes[31].change = change
        net.play()
        assert net.server.proceedings.answers == [4] * T
        assert net.reasons("failed") == {31: T}


def _lies_in(rounds: set[int]) -> Callable[[Request, Reply], Reply]:
    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Added) and isinstance(request, Add) and request.t in rounds:
            return replace(reply, share=bytes(len(reply.share)))
        return reply

    return change


def test_false_sum_shares_are_corrected_and_named_up_to_the_limit(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=64, rounds=2)  # tau 43, k 10, R 53: up to 5 of 64
    nodes = sorted(net.nodes)
    for node_id in nodes[:8]:
        net.nodes[node_id].change = _lies_in({1} if node_id >= nodes[5] else {1, 2})
    completes(net, at_least=64)
    assert net.server.proceedings.answers == [0, 64]  # eight are too many, and no name is made up
    assert net.reasons("liar") == dict.fromkeys(nodes[:5], 1)
    assert {i.round for i in net.server.incidents} == {2}


# ------------------------------------------------------------------------------ large cohorts


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("keys", ["roster", "relayed"])
def test_beyond_64_slots_a_committee_is_drawn(trust: str, keys: str, tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, trust, keys, n=70, rounds=1), at_least=70)
    committee = net.server.proceedings.committee
    assert len(committee.slots) == committee.n_present == 64
    assert net.server.proceedings.answers == [70]
    assert len(net.replies("add")) == 64
    assert net.trips == ["enrol", "ask", "add", "finish"]
    assert (committee.epoch, committee.beacon != "") == (
        (0, True) if keys == "roster" else (None, False)
    )


def test_the_server_takes_an_epoch_whose_committee_is_there(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=90, rounds=1, min_clients=40, max_colluders=1)
    roster = net.server._roster
    first = set(drawn(roster.keys, roster.beacon, 0))
    present = {e: set(drawn(roster.keys, roster.beacon, e)) for e in range(16)}
    absent = set(sorted(first)[:22])  # of epoch 0 too few are left: 42 of 64
    expected = next(e for e in range(16) if len(present[e] - absent) > 44)
    nodes = sorted(net.nodes)
    net.late = [nodes[slot] for slot in absent]
    doc_hash = net.server.run.doc_hash
    net.set_up()
    assert net.server.run.document.epoch == expected > 0
    assert net.server.run.doc_hash != doc_hash
    net.round().finish()
    assert net.trips[:3] == ["enrol", "enrol", "ask"]
    assert net.server.proceedings.answers == [68]
    assert len(set(net.results.values())) == 1


def test_many_shares_for_one_round_are_sent_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_kmeans.protocol.server._ADD_BYTES", 4000)
    net = completes(make_net(tmp_path, "clients-only", n=9))
    parts = net.trips.count("add") // T
    assert parts > 2
    assert net.server.proceedings.repeats == 0
    for t in range(1, T + 1):
        assert len(net.replies("add", t)) == 9
    hasty = make_net(_made(tmp_path / "hasty"), "distributed-noise", n=9)
    hasty.hasty = True
    hasty.play()
    assert hasty.server.proceedings.answers == [3] * T


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_entries_go_to_clients_that_lack_them_as_many_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(node_id: int, kind: str, t: int, attempt: int) -> str:
        return "request" if node_id == 31 and kind == "ask" and 1 <= t <= 4 else ""

    cases = [(2**28, 4, [4, 1, 1], 0), (700, 5, [3, 2, 1], 0), (100, 9, [1, 1, 1], 3)]
    for room, missed, expected, more in cases:
        most = 2**20 + 80 * 9 + room
        monkeypatch.setattr("flower_kmeans.protocol.server.MAX_MESSAGE", most)
        net = make_net(_made(tmp_path / str(room)), "oblivious-server", n=9, rounds=9, lossy=lossy)
        net.play()
        sent = [len(q.entries) for kind, n, q, _ in net.log if (kind, n) == ("ask", 3)]
        assert sent == [0] + [1] * 8
        late = [len(q.entries) for kind, n, q, _ in net.log if (kind, n) == ("ask", 31)]
        assert late[4:7] == expected
        assert len(set(net.results.values())) == 1
        assert len(net.results) == 9
        assert 9 * 9 - sum(net.server.proceedings.answers) == missed
        assert net.trips.count("finish") == 1 + more


def test_the_document_goes_to_those_that_have_not_answered(tmp_path: Path) -> None:
    lost = {("ask", 1), ("add", 1), ("ask", 2)}
    net = make_net(tmp_path, lossy=lambda n, kind, t, a: "reply" * (n == 31 and (kind, t) in lost))
    completes(net)
    for node_id, first in ((3, ["ask"]), (31, ["ask", "add", "ask", "add"])):
        with_document = [
            kind for kind, n, q, _ in net.log if n == node_id and getattr(q, "doc", b"")
        ]
        assert with_document == ["enrol", *first][: 1 + len(first)]


# ------------------------------------------------------------------------------ sizes, memory


def test_large_shares_lie_on_disk(tmp_path: Path) -> None:
    store, size = ShareStore(Sharing(8, 1, 2, 1), 2**17), 2**17
    dealt = {dealer: [bytes([dealer + j]) * size for j in range(8)] for dealer in range(3)}
    tracemalloc.start()
    for dealer in range(60):  # 60 MiB
        store.put(dealer, dealt[dealer % 3])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * 2**20
    assert list(store.parts(5, [58, 0, 4])) == [dealt[58 % 3][5], dealt[0][5], dealt[1][5]]
    store.put(99, dealt[0][:7])
    store.put(98, [b"", *dealt[0][1:7], b"short"])
    assert store.missing(99) == set(range(8))
    assert store.missing(98) == {0, 7}
    assert store.missing(3) == set()
    store.close()


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_messages_are_no_longer_than_planned(trust: str, keys: str, tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, trust, keys, n=12))
    sizes = planned_sizes(net.server.run, 12)
    overhead = 2**20
    for kind, _, request, _ in net.log:
        if kind in ("ask", "add"):
            assert len(encode(request)) <= sizes[kind] - overhead + 8192
    answers = [len(encode(reply)) for _, reply in net.replies("ask") if reply is not None]
    assert max(answers) <= sizes["answer"] - overhead + 4096


def test_a_run_whose_messages_are_too_long_is_not_planned() -> None:
    def with_words(trust: str, words: int, n_clients: int = 3) -> Any:
        run = make_run(trust, "relayed", min_clients=n_clients)
        return replaced(run, document=replace(run.document, words=(words,)))

    for trust in TRUSTS:
        require_sizes(with_words(trust, 2112), 1000)
    for trust in SHARED:
        require_sizes(with_words(trust, 80_000), 100)
        with pytest.raises(ConfigurationError, match=r"oblivious-server.*8 bytes") as error:
            require_sizes(with_words(trust, 80_000), 1000)
        assert "fewer words" in str(error.value)
        assert planned_sizes(with_words(trust, 80_000), 1000)["relay"] > MAX_RELAY
    require_sizes(with_words("oblivious-server", 80_000), 10_000)
    with pytest.raises(ConfigurationError, match="one 'ask' message"):
        require_sizes(with_words("oblivious-server", MAX_MESSAGE // 8), 10)


def test_the_query_of_a_sighted_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = PrivacyBudget(epsilon=None)
    algorithm = LloydAlgorithm(n_clusters=900, domain=BOX, budget=budget, n_rounds=2)
    run = make_run("plain", "none", algorithm=algorithm)
    query = algorithm.query(algorithm.initial_state(None))
    size = len(encode_arrays(dict(query.arrays)))
    assert size > 8 * 900 * 2
    n_slots = max(3, run.document.min_clients)
    assert size - 500 <= planned_sizes(run, 3)["ask"] - 2**20 - 80 * n_slots <= size
    require_sizes(run, 3)
    monkeypatch.setattr("flower_kmeans.protocol.server.MAX_MESSAGE", 2**20 + size // 2)
    with pytest.raises(ConfigurationError, match="one 'ask' message"):
        require_sizes(run, 3)


def test_a_cohort_that_is_larger_than_planned_ends_the_run_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_kmeans.protocol.server.MAX_RELAY", 2000)
    net = make_net(tmp_path, n=9)
    with pytest.raises(ConfigurationError, match="MiB of shares to relay"):
        net.set_up()
    assert net.trips == ["enrol"]


# ------------------------------------------------------------------------------ sums and queries


@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_that_differ_are_left_out_with_their_versions(trust: str, tmp_path: Path) -> None:
    net = make_net(tmp_path, trust, n=7)
    for node_id in (17, 24):
        net.nodes[node_id].change = other_tag
    net.play()
    assert net.server.proceedings.answers == [5] * T
    assert net.reasons("differs") == {17: T, 24: T}
    versions = {i.software for i in net.server.incidents if i.kind == "differs"}
    assert versions == {f"flower-kmeans {__version__}"}
    assert {d.reason for d in net.server.dropped} == {DIFFERS}


def test_of_two_groups_the_larger_one_is_added_up(tmp_path: Path) -> None:
    net = make_net(tmp_path, "oblivious-server", n=9, rounds=1)
    tag = token(32)
    for node_id in sorted(net.nodes)[:4]:
        net.nodes[node_id].change = lambda q, r: replace(r, tag=tag) if isinstance(r, Answer) else r
    net.play()
    assert net.server.proceedings.answers == [5]
    assert sum(net.reasons("differs").values()) == 4


def test_a_server_that_adds_the_noise_adds_it_once_to_all_words_but_the_last(
    tmp_path: Path,
) -> None:
    net = completes(make_net(tmp_path, "oblivious-server", n=9))
    noises = []
    for t in range(1, T + 1):
        entries = {
            encode(e)
            for _, _, request, _ in net.log
            for e in getattr(request, "entries", ())
            if e.t == t
        }
        assert len(entries) == 1
        entry = msgspec.msgpack.decode(entries.pop())
        answers = [r.words for _, r in net.replies("ask", t) if isinstance(r, Answer)]
        total = sum(np.frombuffer(words, "<u8") for words in answers)
        noise = (np.frombuffer(entry["words"], "<u8") - total).astype(np.int64)
        assert noise[-1] == 0
        noises.append(noise[:-1])
    run = net.server.run
    release = run.plan.rounds[0][0]
    units = run.algorithm.units(1)
    scaled = np.concatenate(noises) / (release.noise_multiplier * np.tile(units, T))
    assert np.all(scaled != 0)
    assert 0.3 < np.sqrt(np.mean(scaled**2)) < 3  # 18 normal values: beyond with less than 1e-9


@pytest.mark.parametrize("trust", ["plain", "trusted-server", "distributed-noise"])
def test_a_server_that_sees_the_sums_sends_every_query_and_no_entry(
    trust: str, tmp_path: Path
) -> None:
    net = completes(make_net(tmp_path, trust, n=5))
    for t in range(1, T + 1):
        queries = {q.query for kind, _, q, _ in net.log if kind == "ask" and q.t == t}
        assert len(queries) == 1
        assert None not in queries
    assert not any(q.entries for kind, _, q, _ in net.log if kind == "ask")
    finishes = {q.result for kind, _, q, _ in net.log if kind == "finish"}
    assert len(finishes) == 1


@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_a_blind_server_sends_no_query_and_no_result(trust: str, tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, trust, n=5))
    assert all(q.query is None for kind, _, q, _ in net.log if kind == "ask")
    assert all(q.result is None for kind, _, q, _ in net.log if kind == "finish")
    assert net.server.state.round == 0


def test_noise_beyond_the_plan_is_removed(tmp_path: Path) -> None:
    net = completes(make_net(tmp_path, n=9, levels=(4, 8)))  # M' = 2
    assert net.server.proceedings.noise_factors == pytest.approx([math.sqrt(9 / 8)] * T)
    lossy = make_net(
        _made(tmp_path / "lossy"),
        n=9,
        levels=(4, 8),
        lossy=lambda n, kind, t, a: (
            {1: "reply" * (n < 20), 2: "reply"}.get(t, "")
            if kind == ("ask" if t == 1 else "add")
            else ""
        ),
    )
    completes(lossy)
    assert lossy.server.proceedings.answers == [6, 0, 9]
    factors = lossy.server.proceedings.noise_factors
    assert factors == pytest.approx([math.sqrt(6 / 4), 0, math.sqrt(9 / 8)])


def _synopsis() -> Algorithm:
    budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    return SynopsisAlgorithm(n_clusters=2, domain=BOX, budget=budget, n_records=100_000)


def test_a_sum_that_the_algorithm_cannot_miss_ends_the_run(tmp_path: Path) -> None:
    net = make_net(
        tmp_path, algorithm=_synopsis(), lossy=lambda n, kind, t, a: "reply" * (kind == "add")
    )
    with pytest.raises(RunError, match=r"sum-shares that open the sum of round 1.*No answer"):
        net.play()


def test_an_algorithm_that_only_the_server_steps_uses_its_public_seed(tmp_path: Path) -> None:
    queries = {}
    for seed in (1, 1, 2):
        algorithm = LloydAlgorithm(
            n_clusters=2, domain=BOX, budget=PrivacyBudget(epsilon=None), n_rounds=2
        )
        server = Server(make_run("plain", "none", algorithm=algorithm), seed=seed)
        assert server._generator(1) is None  # replayable: no randomness but the seed in its config
        queries.setdefault(seed, []).append(server.state.arrays["centroids"].tobytes())
    assert len({each for pair in queries.values() for each in pair}) == 1


def test_a_query_that_clients_would_refuse_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Algorithm, query: Any) -> None:
        raise MessageError("The query is out of range.")

    net = make_net(tmp_path, "plain", n=3).set_up()
    monkeypatch.setattr(LloydAlgorithm, "check_query", refuse)
    with pytest.raises(RunError, match=r"Round 1 cannot be asked for\. The query is out of range"):
        net.round()
    assert net.trips == ["enrol"]


def test_answers_need_a_round_that_was_asked_for(tmp_path: Path) -> None:
    net = make_net(tmp_path, "plain", n=3).set_up()
    with pytest.raises(RunError, match="Expected `ask` before"):
        net.server.take_answers([], net.trip)


def test_more_sum_shares_are_asked_for_when_a_sum_does_not_open(tmp_path: Path) -> None:
    net = make_net(tmp_path, n=12).set_up()  # R 10: of 11 none can be false, of 12 one
    net.hasty = True
    net.nodes[3].change = false_share
    net.round()
    assert net.server.proceedings.answers == [3]
    assert net.trips == ["enrol", "ask", "add", "add"]
    assert [len(net.replies("add")), net.server.proceedings.repeats] == [12, 1]
    assert net.reasons("liar") == {3: 1}


@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
def test_a_client_that_lost_the_group_key_alone_is_sent_it_again(
    trust: str, tmp_path: Path
) -> None:
    net = make_net(tmp_path, trust, n=9, rounds=4).set_up()
    before = copy.deepcopy(net.nodes[31].state)
    net.round().round()
    net.nodes[31].state = before
    net.round().round().finish()
    assert sum(net.server.proceedings.answers) == 9 * 4 - 1
    assert len(net.results) == 9
    assert len(set(net.results.values())) == 1
    assert net.reasons("renewed") == {}
