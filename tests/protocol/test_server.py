"""The server of protocol 2 with honest clients: whole runs, losses, rules about faults, limits."""

import copy
import math
from collections import Counter
from dataclasses import replace as replaced
from unittest import mock

import msgspec
import numpy as np
import pytest
from cohorts import BLIND, PROTECTED, SHARED, Node, make_run
from documents import BOX, TRUSTS
from harness import memory_below
from serving import LOST, ROUND_TRIPS, T, make_net

from flower_kmeans.algorithms import queries
from flower_kmeans.algorithms.feasibility import MAX_WORDS
from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.errors import (
    ConfigurationError,
    MessageError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.protocol.committee import drawn
from flower_kmeans.protocol.incidents import TAKEN
from flower_kmeans.protocol.messages import Answer, Code
from flower_kmeans.protocol.phases.attempt import N_REPEATS, ShareStore
from flower_kmeans.protocol.server import Server
from flower_kmeans.protocol.sizes import (
    MAX_RELAY,
    most_words,
    planned_sizes,
    require_sizes,
)
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode, encode_arrays

PROTOCOL = "flower_kmeans.protocol"
MODES = [(trust, keys) for trust in PROTECTED for keys in ("roster", "relayed")]
MODES += [(trust, "none") for trust in TRUSTS if trust not in PROTECTED]

replace = msgspec.structs.replace


def completes(net, at_least=None):
    """Play a run whose clients have one result, but for so many."""
    net.play()
    assert len(set(net.results.values())) == 1
    assert len(net.results) >= (len(net.nodes) if at_least is None else at_least)
    assert len(net.trips) == net.server.proceedings.round_trips
    return net


def losing(fate, kind, *rounds, of=lambda node_id: True, attempts=range(99)):
    """Return what loses some clients' messages of some rounds, or of all."""

    def lossy(node_id, this, t, attempt):
        hit = this == kind and (t in rounds or not rounds) and attempt in attempts
        return fate if hit and of(node_id) else ""

    return lossy


# --------------------------------------------------------------------------- whole runs


@pytest.mark.claim("how-a-run-works", "protocol-has-number-round")
@pytest.mark.claim("protocol", "limits-when-run-planned")
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_run_takes_the_announced_round_trips(trust, keys, tmp_path):
    net = completes(make_net(tmp_path, trust, keys))
    server, is_blind = net.server, net.server.run.trust.is_blind
    assert len(net.trips) == ROUND_TRIPS[trust]
    assert (server.incidents, server.dropped) == ([], [])
    assert net.answers == [9] * T
    assert (server.proceedings.attempts, server.proceedings.repeats) == (T, 0)
    assert server.delivered == set(net.nodes)
    assert (server.head, server.last_sum) == (T, 0 if is_blind else T)
    assert not server.all_keep_ledgers
    # Who sees the sums asks: a blind server sends neither query nor result, others no
    # entry.
    for t in range(1, T + 1):
        queries = {q.query for kind, _, q, _ in net.log if kind == "ask" and q.t == t}
        assert len(queries) == 1
        assert (None in queries) == is_blind
    assert is_blind == any(q.entries for kind, _, q, _ in net.log if kind == "ask")
    finishes = {q.result for kind, _, q, _ in net.log if kind == "finish"}
    assert len(finishes) == 1
    assert (None in finishes) == is_blind
    assert server.state.round == (0 if is_blind else T)
    # No message is longer than planned.
    sizes, overhead = planned_sizes(server.run, 9), 2**20
    for kind, _, request, reply in net.log:
        if kind in ("ask", "add"):
            assert len(encode(request)) <= sizes[kind] - overhead + 8192
        if kind == "ask":
            assert len(encode(reply)) <= sizes["answer"] - overhead + 4096


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("fate", ["request", "reply", "twice"])
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_loss_at_any_point_costs_no_round_trip(trust, keys, fate, tmp_path):
    steps = [("enrol", 0), ("keys", 0), ("finish", 0)]
    steps += [(kind, t) for t in (1, 2, 3) for kind in ("ask", "add")]
    for kind, t in steps:
        lossy = losing(fate, kind, t, of=lambda node_id: node_id == 17)
        net = completes(make_net(tmp_path, trust, keys, lossy=lossy), at_least=8)
        assert len(net.trips) == ROUND_TRIPS[trust], (kind, t)


# of 12: tau 8, k 2, R 10
@pytest.mark.claim("protocol", "named-clients-if-at")
@pytest.mark.parametrize(("gone", "repeats"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("trust", SHARED)
def test_missing_sum_shares_are_asked_for_again(trust, gone, repeats, tmp_path):
    asked = Counter()

    def lossy(node_id, kind, t, attempt):
        asked[node_id] += (kind, t) == ("add", 2)
        return "reply" * (
            (kind, t) == ("add", 2) and node_id < 3 + 7 * gone and asked[node_id] < 2
        )

    net = completes(make_net(tmp_path, trust, n=12, lossy=lossy))
    assert net.server.proceedings.repeats == repeats
    assert len(net.trips) == ROUND_TRIPS[trust] + repeats
    assert net.server.proceedings.committee.threshold == 10


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_round_with_too_few_answers_is_asked_for_again(trust, tmp_path):
    """The same request goes to those who are missing: no attempt, and the same bytes."""
    most, asked = {"of": lambda node_id: node_id > 10}, Counter()

    def lossy(node_id, kind, t, attempt):
        asked[node_id] += (kind, t) == ("ask", 2)
        return "reply" * (
            (kind, t) == ("ask", 2) and node_id > 10 and asked[node_id] < 2
        )

    net = completes(make_net(tmp_path, trust, n=5, lossy=lossy))
    assert (net.server.proceedings.attempts, net.server.proceedings.repeats) == (T, 1)
    assert len(net.trips) == ROUND_TRIPS[trust] + 1
    assert net.answers == [5] * T
    sent = [
        (n, encode(q), r) for kind, n, q, r in net.log if kind == "ask" and q.t == 2
    ]
    assert [n for n, _, _ in sent] == [3, 10, 17, 24, 31, 17, 24, 31]
    assert [each[1:] for each in sent[2:5]] == [each[1:] for each in sent[5:]]
    net = make_net(tmp_path, trust, n=5, lossy=losing("request", "ask", 2, **most))
    with pytest.raises(TooFewClientsError, match=f"round 2 of 3.*Got 2 of 5.*{LOST}"):
        net.play()
    assert net.server.proceedings.attempts == 2
    assert net.trips.count("ask") == 2 + N_REPEATS


def test_too_few_enrolments_end_a_run(tmp_path):
    for trust, keys in MODES:
        net = make_net(tmp_path, trust, keys, n=3, lossy=losing("request", "enrol"))
        with pytest.raises(
            TooFewClientsError, match=rf"Got 0 of 3 connected.*Reasons: {LOST}"
        ):
            net.set_up()
    lossy = losing("reply", "enrol", of=lambda node_id: node_id < 15)
    found = r"min_clients=4 clients to take part\. Got 3 of 5 connected"
    with pytest.raises(TooFewClientsError, match=found):
        make_net(tmp_path, n=5, document={"min_clients": 4}, lossy=lossy).set_up()
    net = make_net(tmp_path, n=5, lossy=lossy)
    with pytest.raises(
        TooFewClientsError, match=r"more of the 5 committee members.*Got 3"
    ):
        net.set_up()
    assert [d.node_id for d in net.server.dropped] == [3, 10]


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_run_that_silence_ends_names_who_was_silent(trust, keys, tmp_path):
    def silent(kind, requests, has_enough):
        return iter(())

    net = make_net(tmp_path, trust, keys, n=3)
    with pytest.raises(
        TooFewClientsError, match=r"Got 0 of 3 connected nodes.*No answer in time"
    ):
        net.server.set_up(net.nodes, silent)
    assert {d.node_id for d in net.server.dropped if d.kind == "silent"} == set(
        net.nodes
    )
    net = make_net(tmp_path, trust, keys, n=3).set_up()
    net.server.ask()
    with pytest.raises(
        TooFewClientsError, match=r"Got 0 of 3 in the last.*No answer in time"
    ):
        net.server.take_answers(iter(()), silent)
    missing = {(d.node_id, d.round, d.kind) for d in net.server.dropped}
    assert missing == {(node_id, 1, "silent") for node_id in net.nodes}


@pytest.mark.claim(
    "protocol", "late-restarted-renewed-clients", "ledger-kept-restored-from"
)
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("trust", "keys"), MODES)
@pytest.mark.parametrize("ledger", [True, False])
def test_a_restarted_client_comes_back(trust, keys, ledger, tmp_path):
    net = make_net(
        tmp_path, trust, keys, ledger=ledger, document={"rounds": 6}
    ).set_up()
    for t in range(1, 7):
        if t in (2, 3):
            net.nodes[31].restart()
        net.round()
    results = net.finish().results
    assert len(set(results.values())) == 1
    assert len(results) == 9
    missed = 9 * 6 - sum(net.answers)
    if ledger or not net.server.run.trust.is_protected:
        assert missed <= (0 if ledger else 2)
    else:
        assert 1 <= missed <= 5
        assert set(net.reasons("renewed")) == {31}


@pytest.mark.claim("protocol", "late-restarted-renewed-clients")
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_clients_that_come_late_join_unless_keys_are_relayed(trust, keys, tmp_path):
    net = make_net(tmp_path, trust, keys, late=[59], document={"rounds": 4}).play()
    late_joined = keys == "roster" or not net.server.run.trust.is_protected
    assert (59 in net.results) == late_joined
    assert len(set(net.results.values())) == 1
    assert net.answers[-1] == 8 + late_joined


# -------------------------------------------------------------------------- lost rounds


@pytest.mark.claim("protocol", "named-clients-if-at")
def test_a_lost_round_is_an_iteration_less(tmp_path):
    net = make_net(
        tmp_path, lossy=losing("reply", "add", 2, of=lambda node_id: node_id > 10)
    )
    completes(net)
    assert net.answers == [9, 0, 9]
    assert net.trips.count("add") == 1 + 3 + 1
    assert net.server.state.round == T
    net = make_net(tmp_path, lossy=losing("reply", "add"))  # all of them
    with pytest.raises(
        RunError, match="Expected centroids and counts after the last round"
    ):
        net.play()
    assert net.server.last_sum == 0


def test_a_sum_that_the_algorithm_cannot_miss_ends_the_run(tmp_path):
    budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    synopsis = SynopsisAlgorithm.planned(
        n_clusters=2, domain=BOX, budget=budget, n_records=100_000
    )
    net = make_net(
        tmp_path, document={"algorithm": synopsis}, lossy=losing("reply", "add")
    )
    with pytest.raises(RunError, match=r"sum-shares for the sum of round 1.*No answer"):
        net.play()


# ----------------------------------------------------------------------- slots and keys


# with one, both nodes have one session too
@pytest.mark.claim("protocol", "named-clients-if-at")
@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("trust", PROTECTED)
def test_of_two_nodes_with_one_lasting_key_the_first_has_the_slot(
    trust, ledger, tmp_path
):
    net = make_net(tmp_path, trust, n=5, ledger=ledger)
    net.nodes[99] = Node(net.nodes[3].policy, net.nodes[3].records, node_id=99)
    net.play()
    assert net.answers == [5] * T
    assert net.results.keys() == {3, 10, 17, 24, 31}
    assert [(d.node_id, d.reason) for d in net.server.dropped] == [(99, TAKEN)]


def test_clients_and_server_agree_on_the_roster(tmp_path):
    net, other = make_net(tmp_path, n=5), make_net(tmp_path, n=5)
    for run, roster in (
        (net.server.run, None),
        (net.server.run, other.roster),
        (make_run("plain", "none"), net.roster),
    ):
        with pytest.raises(
            ConfigurationError, match="roster that the run document names"
        ):
            Server(run, roster=roster)
    net.nodes[3].policy = other.nodes[3].policy
    net.play()
    assert net.results.keys() == {10, 17, 24, 31}
    assert net.server.incidents[0].reason == Code.POLICY.sentence


@pytest.mark.parametrize(
    ("trust", "answers"),
    [("oblivious-server", [9, 8, 9, 9, 9, 9]), ("clients-only", [9, 8, 9, 9, 9, 9])],
)
def test_a_renewed_client_is_back_in_the_next_round_with_a_group_key(
    trust, answers, tmp_path
):
    net = make_net(tmp_path, trust, document={"rounds": 6}).set_up().round()
    net.nodes[31].restart()
    for _ in range(5):
        net.round()
    assert net.answers == answers


@pytest.mark.parametrize("trust", BLIND)
def test_a_client_that_lost_the_group_key_alone_is_sent_it_again(trust, tmp_path):
    net = make_net(tmp_path, trust, document={"rounds": 4}).set_up()
    before = copy.deepcopy(net.nodes[31].state)
    net.round().round()
    net.nodes[31].state = before
    net.round().round().finish()
    # it is asked again with its envelope, in the same round
    assert net.answers == [9] * 4
    assert len(net.results) == 9
    assert len(set(net.results.values())) == 1
    assert net.reasons("renewed") == {}


def test_other_distributors_are_asked_if_none_replies(tmp_path):
    lossy = losing("request", "keys", of=lambda node_id: node_id in {3, 10, 17})
    net = completes(make_net(tmp_path, "oblivious-server", lossy=lossy))
    assert net.trips[:4] == ["enrol", "keys", "keys", "ask"]
    net = make_net(tmp_path, "oblivious-server", n=5, lossy=losing("reply", "keys"))
    with pytest.raises(RunError, match="Expected a client that makes the group key"):
        net.play()


# ------------------------------------------------------------------------ large cohorts


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize(
    ("keys", "epoch", "has_beacon"), [("roster", 0, True), ("relayed", None, False)]
)
def test_beyond_64_slots_a_committee_is_drawn(trust, keys, epoch, has_beacon, tmp_path):
    net = completes(make_net(tmp_path, trust, keys, n=70, document={"rounds": 1}))
    committee = net.server.proceedings.committee
    assert len(committee.slots) == committee.n_present == len(net.replies("add")) == 64
    assert net.answers == [70]
    assert net.trips == ["enrol", "ask", "add", "finish"]
    assert (committee.epoch, committee.beacon != "") == (epoch, has_beacon)


def test_the_server_takes_an_epoch_whose_committee_is_there(tmp_path):
    document = {"rounds": 1, "min_clients": 40, "max_colluders": 1}
    net = make_net(tmp_path, n=90, document=document)
    roster = net.roster
    present = [set(drawn(roster.keys, roster.beacon, e)) for e in range(16)]
    absent = set(sorted(present[0])[:22])  # of epoch 0 too few are left: 42 of 64
    expected = next(e for e in range(16) if len(present[e] - absent) > 44)
    nodes, doc_hash = sorted(net.nodes), net.server.run.doc_hash
    net.late = [nodes[slot] for slot in absent]
    net.set_up()
    assert net.server.run.document.epoch == expected > 0
    assert net.server.run.doc_hash != doc_hash
    net.round().finish()
    assert net.trips[:3] == ["enrol", "enrol", "ask"]
    assert net.answers == [68]
    assert len(set(net.results.values())) == 1


@pytest.mark.parametrize("hasty", [False, True])
def test_many_shares_for_one_round_are_sent_in_parts(hasty, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{PROTOCOL}.phases.votes._ADD_BYTES", 4000)
    net = make_net(
        tmp_path, "distributed-noise" if hasty else "clients-only", hasty=hasty
    )
    net.play()
    assert net.answers == [3 if hasty else 9] * T
    assert net.server.proceedings.repeats == 0
    if not hasty:
        assert net.trips.count("add") // T > 2
        assert [len(net.replies("add", t)) for t in range(1, T + 1)] == [9] * T


@pytest.mark.parametrize(
    ("room", "missed", "expected", "more"),
    [(2**28, 4, [4, 1, 1], 0), (700, 4, [3, 1, 1], 0), (100, 9, [1, 1, 1], 2)],
)
def test_entries_go_to_clients_that_lack_them_as_many_as_fit(
    room, missed, expected, more, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        f"{PROTOCOL}.phases.announced.MAX_MESSAGE", 2**20 + 108 * 9 + room
    )
    lossy = losing("request", "ask", 1, 2, 3, 4, of=lambda node_id: node_id == 31)
    net = completes(
        make_net(tmp_path, "oblivious-server", lossy=lossy, document={"rounds": 9})
    )
    sent, late = (
        [len(q.entries) for kind, n, q, _ in net.log if (kind, n) == ("ask", node_id)]
        for node_id in (3, 31)
    )
    assert sent == [0] + [1] * 8
    assert late[4:7] == expected
    assert 9 * 9 - sum(net.answers) == missed
    assert net.trips.count("finish") == 1 + more


def test_the_document_goes_to_those_that_have_not_answered(tmp_path):
    lost = {("ask", 1), ("add", 1), ("ask", 2)}
    lossy = lambda n, kind, t, a: "reply" * (n == 31 and (kind, t) in lost)  # noqa: E731
    net = completes(make_net(tmp_path, lossy=lossy))
    for node_id, first in ((3, ["ask"]), (31, ["ask", "add", "ask", "add"])):
        kinds = [
            kind for kind, n, q, _ in net.log if n == node_id and getattr(q, "doc", b"")
        ]
        assert kinds == ["enrol", *first][: 1 + len(first)]


# ------------------------------------------------------------------------ sizes, memory


def test_large_shares_lie_on_disk():
    size = 2**17
    store = ShareStore(range(8), size)
    parts = {
        dealer: [bytes([dealer + j]) * size for j in range(8)] for dealer in range(3)
    }
    dealt = {dealer: b"".join(parts[dealer]) for dealer in parts}
    with memory_below(24 * 2**20):
        for dealer in range(60):  # 60 MiB
            store.put(dealer, dealt[dealer % 3])
    assert list(store.parts(5, [58, 0, 4])) == [parts[i % 3][5] for i in (58, 0, 4)]
    assert store.is_complete(dealt[0])
    for wrong in (
        b"",
        dealt[0][:-size],
        dealt[0] + parts[0][0],
        dealt[0][1:],
        dealt[0] + b"x",
    ):
        assert not store.is_complete(wrong)
    store.close()
    sparse = ShareStore((1, 4, 6), 2)  # positions that are present
    sparse.put(9, b"aabbcc")
    assert [next(sparse.parts(j, [9])) for j in (6, 1, 4)] == [b"cc", b"aa", b"bb"]
    sparse.close()


def with_words(trust, words, n_clients=3):
    run = make_run(trust, "relayed", min_clients=n_clients)
    return replaced(run, document=replace(run.document, words=(words,)))


@pytest.mark.claim("protocol", "limits-when-run-planned")
def test_a_run_whose_messages_are_too_long_is_not_planned():
    for trust in TRUSTS:
        require_sizes(with_words(trust, 2112), 1000)
    for trust in SHARED:
        require_sizes(with_words(trust, 80_000), 100)
        with pytest.raises(
            ConfigurationError, match=r"fewer words.*columns.*oblivious-server.*8 bytes"
        ):
            require_sizes(with_words(trust, 80_000), 1000)
        assert planned_sizes(with_words(trust, 80_000), 1000)["relay"] > MAX_RELAY
    require_sizes(with_words("oblivious-server", 80_000), 10_000)
    with pytest.raises(ConfigurationError, match="one 'ask' message"):
        require_sizes(with_words("oblivious-server", MAX_MESSAGE // 8), 10)


@pytest.mark.claim("protocol", "limits-when-run-planned")
@pytest.mark.parametrize("n_clients", [3, 50, 200, 1000])
@pytest.mark.parametrize("trust", TRUSTS)
def test_the_most_words_of_a_round_are_those_that_are_not_refused(trust, n_clients):
    run = with_words(trust, 1, n_clients)
    document = run.document
    most = most_words(
        run.trust, n_clients, document.max_colluders, len(document.levels)
    )
    at_most = most + run.trust.checksum_words
    require_sizes(with_words(trust, at_most, n_clients), n_clients)
    if most < MAX_WORDS - run.trust.checksum_words:
        assert run.trust.has_committee
        with pytest.raises(ConfigurationError, match="MiB of"):
            require_sizes(with_words(trust, at_most + 64, n_clients), n_clients)


def test_the_query_of_a_sighted_run_counts(monkeypatch):
    budget = PrivacyBudget(epsilon=None)
    algorithm = LloydAlgorithm.planned(
        n_clusters=900, domain=BOX, budget=budget, n_rounds=2
    )
    run = make_run("plain", "none", algorithm=algorithm)
    size = len(
        encode_arrays(dict(algorithm.query(algorithm.initial_state(None)).arrays))
    )
    assert size > 8 * 900 * 2
    assert size - 500 <= planned_sizes(run, 3)["ask"] - 2**20 - 108 * 3 <= size
    require_sizes(run, 3)
    monkeypatch.setattr(f"{PROTOCOL}.sizes.MAX_MESSAGE", 2**20 + size // 2)
    with pytest.raises(ConfigurationError, match="one 'ask' message"):
        require_sizes(run, 3)


def test_a_cohort_that_is_larger_than_planned_ends_the_run_before_anything_is_asked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(f"{PROTOCOL}.sizes.MAX_RELAY", 2000)
    net = make_net(tmp_path)
    with pytest.raises(ConfigurationError, match="MiB of shares to relay"):
        net.set_up()
    assert net.trips == ["enrol", "abort"]


# --------------------------------------------------------------------- sums and queries


def test_a_server_that_adds_the_noise_adds_it_once_to_all_words_but_the_last(tmp_path):
    net = completes(make_net(tmp_path, "oblivious-server"))
    entries = {
        entry
        for _, _, request, _ in net.log
        for entry in getattr(request, "entries", ())
    }
    assert sorted(entry.t for entry in entries) == [1, 2, 3]
    noises = []
    for entry in entries:
        answers = [
            r.words for _, r in net.replies("ask", entry.t) if isinstance(r, Answer)
        ]
        total = sum(np.frombuffer(words, "<u8") for words in answers)
        noise = (np.frombuffer(entry.words, "<u8") - total).astype(np.int64)
        assert noise[-1] == 0
        noises.append(noise[:-1])
    run = net.server.run
    stds = run.plan.rounds[0][0].noise_multiplier * np.tile(
        sensitivities(run.algorithm, 1), T
    )
    scaled = np.concatenate(noises) / stds
    assert np.all(scaled != 0)
    # 18 normal values: beyond with less than 1e-9
    assert 0.3 < np.sqrt(np.mean(scaled**2)) < 3


def test_noise_beyond_the_plan_is_removed(tmp_path):
    levels = {"levels": (4, 8)}
    net = completes(make_net(tmp_path, document=levels))  # M' = 2
    assert net.server.proceedings.noise_factors == pytest.approx([math.sqrt(9 / 8)] * T)

    def lossy(node_id, kind, t, attempt):
        lost = {("ask", 1): node_id < 20, ("add", 2): True}
        return "reply" * lost.get((kind, t), False)

    net = completes(make_net(tmp_path, document=levels, lossy=lossy))
    assert net.answers == [6, 0, 9]
    factors = net.server.proceedings.noise_factors
    assert factors == pytest.approx([math.sqrt(6 / 4), 0, math.sqrt(9 / 8)])


def test_a_query_that_clients_would_refuse_is_not_sent(tmp_path, monkeypatch):
    net = make_net(tmp_path, "plain", n=3).set_up()
    with pytest.raises(RunError, match="Expected `ask` before"):
        net.server.take_answers([], net.trip)
    refuse = mock.Mock(side_effect=MessageError("The query is out of range."))
    monkeypatch.setattr(queries, "check_query", refuse)
    with pytest.raises(
        RunError, match=r"Round 1 cannot be asked for\. The query is out of range"
    ):
        net.round()
    assert net.trips == ["enrol"]
