"""Clients with ledgers: restarts lose nothing, everything sent was charged, secrets do not stay."""

import multiprocessing
import os
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from cohorts import Cohort, Node, code
from documents import BOX, make_algorithm, make_document
from ledger_workers import CRASHED, row_sizes, unfinished
from typer.testing import CliRunner

from flower_kmeans.algorithms.lloyd import GLloydAlgorithm
from flower_kmeans.cli.app import app
from flower_kmeans.data.domain import Box
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.filter import Charge
from flower_kmeans.privacy.ledger import FORGET_AFTER, MAX_UNANSWERED, Ledger
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.protocol.messages import (
    Abort,
    Added,
    Answer,
    Code,
    Enrol,
    Enrolled,
    Finish,
    Finished,
)
from flower_kmeans.protocol.phases.attempt import N_REPEATS
from flower_kmeans.protocol.wire import encode

DELTA = 1e-6
SPAWN = multiprocessing.get_context("spawn")
TRUSTS = ("clients-only", "distributed-noise", "oblivious-server", "trusted-server")


def start(tmp_path, trust="distributed-noise", **options):
    return Cohort(tmp_path, trust, ledger=True, **options)


def kept(node, run):
    """Return the last answer and the last vote that a ledger knows of a run."""
    with Ledger(node.policy.state_dir) as ledger:
        return ledger.last_answer(run.doc_hash), ledger.last_vote(run.doc_hash)


def file_of(node):
    return node.policy.state_dir / FILE_NAME


def spent(node):
    with Ledger(node.policy.state_dir) as ledger:
        return ledger.epsilon(DELTA)


def cost(run, n_rounds=None):
    """Return what the first rounds of a run cost, all by default."""
    rounds = run.price.rounds[:n_rounds]
    own = [charges[run.price.unit] for charges in rounds]
    return sum(own, Charge()).epsilon(DELTA)


# --------------------------------------------------------------------------- restarts


@pytest.mark.claim("protocol", "ledger-kept-restored-from")
@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_a_restart_before_every_message_changes_nothing(trust, tmp_path):
    cohort = start(tmp_path, trust).set_up()
    former = cohort.nodes[2].session(cohort.doc_hash)
    for t in (1, 2, 3):
        request = cohort.ask_of(2, t)
        cohort.round(t)
        for node in cohort.nodes:
            node.restart()
        # whose envelope came with the first request
        if not (cohort.trust.is_blind and t == 1):
            first = encode(cohort.nodes[2].send(request))
            assert encode(cohort.nodes[2].send(request)) == first
    session = cohort.nodes[2].session(cohort.doc_hash)
    assert (session.secret, session.ephemeral) == (former.secret, former.ephemeral)
    assert all(isinstance(reply, Finished) for reply in cohort.finish().values())
    assert not cohort.refusals
    for node in cohort.nodes:
        (result,) = node.results
        assert len(node.state) == 0
        np.testing.assert_array_equal(
            result.centroids, cohort.nodes[0].results[0].centroids
        )
        expected = 0 if trust == "plain" else cost(cohort.run)
        assert spent(node) == pytest.approx(expected, rel=1e-9)


@pytest.mark.claim("threat-model", "last-answer-last-vote")
@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_attempts_and_changed_records_are_charged_once(trust, tmp_path):
    cohort = start(tmp_path, trust, max_attempts=3).set_up()
    node = cohort.nodes[1]
    for attempt in (1, 2, 3):
        node.records = node.records + 0.125
        assert all(isinstance(r, Answer) for r in cohort.deal(1, attempt).values())
        assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)
    assert code(cohort.send(1, cohort.ask_of(1, 1, 2))) == Code.STALE


def test_a_new_session_of_changed_records_costs_nothing_and_cannot_answer_again(
    tmp_path,
):
    cohort = start(
        tmp_path, "oblivious-server", policy={"copy_records": False}
    ).set_up()
    before = cohort.deal(1)[1]
    node = cohort.nodes[1]
    node.records = node.records + 0.125
    # a repeated request shows nothing
    assert cohort.send(1, cohort.ask_of(1, 1)) == before
    session = cohort.session(1)
    session.answered = b""
    node.save(cohort.doc_hash, session)
    renewed = cohort.send(1, cohort.ask_of(1, 1))
    assert code(renewed) == Code.RENEW
    cohort.take(1, renewed)
    made = cohort.send(0, cohort.keys_of())
    cohort.take_envelopes(0, made.key_id, made.envelopes, cohort.enrolled)
    assert code(cohort.send(1, cohort.ask_of(1, 1))) == Code.CONFLICT  # was answered
    after = cohort.send(1, cohort.ask_of(1, 1, 2))
    assert isinstance(after, Answer)
    assert after.words != before.words
    assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)


# --------------------------------------------------------------------------- the end


def secrets_of(cohort, index):
    session = cohort.session(index)
    names = (
        "secret",
        "ephemeral",
        "group_secret",
        "group_key",
        "query_key",
        "drawn_secret",
    )
    return {name: getattr(session, name) for name in names if getattr(session, name)}


def in_the_file(node, secrets):
    content = file_of(node).read_bytes()
    return {name for name, secret in secrets.items() if secret in content}


@pytest.mark.claim("threat-model", "last-answer-last-vote")
@pytest.mark.parametrize(
    "trust", ["clients-only", "distributed-noise", "oblivious-server"]
)
def test_the_end_erases_secrets_from_the_file_and_keeps_charge_answer_and_vote(
    trust, tmp_path
):
    cohort = start(tmp_path, trust).set_up()
    for t in (1, 2, 3):
        cohort.round(t)
    secrets, node = secrets_of(cohort, 0), cohort.nodes[0]
    assert len(secrets) == 2 + 4 * cohort.trust.is_blind
    assert in_the_file(node, secrets) == set(secrets)
    cohort.finish()
    assert in_the_file(node, secrets) == set()
    assert [path.name for path in node.policy.state_dir.iterdir()] == [FILE_NAME]
    assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)
    answer, vote = kept(node, cohort.run)
    assert answer[:2] == (3, 1)
    assert (vote is not None) == cohort.trust.has_committee
    assert vote is None or vote[0] == 3
    # The same document cannot be run again without a charge.
    assert code(node.send(Enrol(doc=cohort.run.data))) == Code.STALE
    assert code(node.send(cohort.ask_of(0, 1))) == Code.STALE


@pytest.mark.parametrize("trust", ["clients-only", "trusted-server"])
def test_the_end_gives_back_what_was_reserved_for_rounds_without_an_answer(
    trust, tmp_path
):
    cohort = start(tmp_path, trust).set_up()
    everyone = range(len(cohort.nodes))
    for t in (1, 2):
        cohort.round(t)
    cohort.round(3, [i for i in everyone if i != 0])
    assert spent(cohort.nodes[0]) == pytest.approx(cost(cohort.run), rel=1e-9)
    cohort.finish()
    assert spent(cohort.nodes[0]) == pytest.approx(cost(cohort.run, 2), rel=1e-9)
    assert spent(cohort.nodes[1]) == pytest.approx(cost(cohort.run), rel=1e-9)


@pytest.mark.claim("threat-model", "61")
@pytest.mark.parametrize(
    "trust", ["clients-only", "oblivious-server", "trusted-server"]
)
def test_an_abort_gives_back_what_was_reserved_for_rounds_without_an_answer(
    trust, tmp_path
):
    """A run that ends by an error sends it to all clients: one of them could not be told."""
    cohort = start(tmp_path, trust).set_up()
    cohort.round(1)
    assert spent(cohort.nodes[0]) == pytest.approx(cost(cohort.run), rel=1e-9)
    kinds = []

    def trip(kind, requests, has_enough):
        kinds.append(kind)
        return (
            []
            if kind == "ask"
            else cohort.trip(kind, {i: requests[i] for i in requests if i})
        )

    cohort.server.ask()
    with pytest.raises(TooFewClientsError):
        cohort.server.take_answers([], trip)
    assert kinds == ["ask"] * N_REPEATS + ["abort"]
    for i, node in enumerate(cohort.nodes):
        whole = pytest.approx(cost(cohort.run), rel=1e-9)
        assert spent(node) == (
            whole if i == 0 else pytest.approx(cost(cohort.run, 1), rel=1e-9)
        )
    assert in_the_file(cohort.nodes[1], secrets_of(cohort, 0)) == set()
    assert code(cohort.nodes[1].send(cohort.ask_of(1, 2))) == Code.STALE


def no_room(node):
    node.policy = replace(node.policy, max_total_epsilon=1e-3)


def another_version(node, doc_hash):
    session = node.session(doc_hash)
    session.document = session.document.replace(b"flower-kmeans/3", b"flower-kmeans/2")
    node.save(doc_hash, session)


def unknown_kind(node, doc_hash):
    session = node.session(doc_hash)
    session.document = session.document.replace(b"horizontal", b"HORIZONTAL")
    node.save(doc_hash, session)


def no_document(node, doc_hash):
    session = node.session(doc_hash)
    session.document = b"no document"
    node.save(doc_hash, session)


@pytest.mark.claim("threat-model", "61")
@pytest.mark.parametrize("spoil", [no_room, another_version, unknown_kind, no_document])
@pytest.mark.parametrize("has_answered", [False, True])
def test_an_abort_is_refused_by_nothing(spoil, has_answered, tmp_path):
    """A policy that was tightened since, or a run that this software cannot open."""
    cohort = start(tmp_path, "oblivious-server").set_up()
    node, doc_hash = cohort.nodes[0], cohort.doc_hash
    if has_answered:
        assert isinstance(cohort.ask(0), Answer)
    secrets = secrets_of(cohort, 0)
    before = spent(node)
    assert in_the_file(node, secrets) == set(secrets) != set()
    spoil(node) if spoil is no_room else spoil(node, doc_hash)
    assert code(cohort.send(0, cohort.ask_of(0, 2))) is not None
    for _ in range(2):
        assert node.send(Abort(doc_hash=doc_hash)) == Finished(doc_hash=doc_hash)
    assert node.session(doc_hash).over
    assert in_the_file(node, secrets) == set()
    assert (0 < spent(node) <= before) if has_answered else spent(node) == 0


@pytest.mark.parametrize("how", ["forget", "30 days"])
def test_a_run_that_failed_is_forgotten_and_stays_charged(how, tmp_path, monkeypatch):
    cohort = start(tmp_path, "clients-only").set_up()
    cohort.round(1)
    cohort.deal(2)
    node, secrets = cohort.nodes[0], secrets_of(cohort, 0)
    assert in_the_file(node, secrets) == set(secrets)
    assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)
    if how == "forget":
        result = CliRunner().invoke(
            app, ["forget", "--state-dir", str(node.policy.state_dir)]
        )
        assert "Forgot 1 unfinished run in" in result.output
    else:
        now = ledgers.time.time()
        Ledger(node.policy.state_dir, clock=lambda: now + FORGET_AFTER + 60).close()
    assert in_the_file(node, secrets) == set()
    # Two of three rounds were answered; what was reserved for the third has come back.
    assert spent(node) == pytest.approx(cost(cohort.run, 2), rel=1e-9)
    requests = [Enrol(doc=cohort.run.data), cohort.ask_of(0, 2), cohort.ask_of(0, 3)]
    # it does not say that it has a result
    for request in (*requests, cohort.finish_of(0)):
        assert code(node.send(request)) == Code.STALE
    assert not node.results
    assert spent(node) == pytest.approx(cost(cohort.run, 2), rel=1e-9)


# --------------------------------------------------------------------------- enrolments


@pytest.mark.claim("threat-model", "ledger-keeps-at-most")
def test_enrolments_do_not_let_the_ledger_grow(tmp_path):
    """Each has another document, padded with names of columns; a run that answered is kept."""
    cohort = start(tmp_path).set_up()
    node = cohort.nodes[1]
    cohort.round(1)
    sizes = []
    for number in range(4 * MAX_UNANSWERED):
        run = number.to_bytes(16, "big")
        other = start(tmp_path, others=cohort, run=run, **padded(100_000))
        assert isinstance(node.send(Enrol(doc=other.run.data)), Enrolled)
        sizes.append(file_of(node).stat().st_size)
    assert max(sizes) <= 1.3 * sizes[MAX_UNANSWERED]
    with Ledger(node.policy.state_dir) as ledger:
        assert len(unfinished(node.policy.state_dir)) == MAX_UNANSWERED + 1
        assert ledger.epsilon(DELTA) == pytest.approx(cost(cohort.run), rel=1e-9)
    cohort.round(2)
    cohort.round(3)
    assert all(isinstance(reply, Finished) for reply in cohort.finish().values())
    # A run whose session was dropped is not known any more.
    dropped = start(tmp_path, others=cohort, run=bytes(16), **padded(100_000))
    assert code(node.send(Finish(doc_hash=dropped.doc_hash, result=b""))) == Code.NEED


def padded(n_bytes):
    """Return fields of a document whose columns have long names."""
    names = [letter * (n_bytes // 2) for letter in "ab"]
    domain = Box([0, 0], [1, 1], columns=names)
    return {
        "algorithm": replace(make_algorithm(GLloydAlgorithm, n_rounds=3), domain=domain)
    }


def voted_only(tmp_path, others, **document):
    """Let the server's own three nodes deal, and node 0 add without an answer; return its reply."""
    cohort = start(tmp_path, keys="relayed", others=others, **document).set_up()
    return cohort, cohort.add(0, {i: cohort.ask(i, 1) for i in (1, 2, 3)})


@pytest.mark.claim("threat-model", "vote-reserves-like-answer")
def test_votes_without_an_answer_are_bounded_by_the_budget(tmp_path):
    """A server makes up runs whose documents are padded, and lets a client add in each."""
    first = start(tmp_path, keys="relayed")
    room = {
        "max_total_epsilon": (first.run.price.whole["record"] * 3).epsilon(DELTA)
        * 1.0001
    }
    node = first.nodes[0]
    node.policy = replace(node.policy, max_total_delta=DELTA, **room)
    runs = []
    for _ in range(3):
        cohort, reply = voted_only(tmp_path, first, **padded(100_000))
        assert isinstance(reply, Added)
        runs.append(cohort.doc_hash)
    assert spent(node) == pytest.approx(room["max_total_epsilon"], rel=1e-3)
    sizes = [file_of(node).stat().st_size]
    for _ in range(MAX_UNANSWERED + 4):
        cohort = start(tmp_path, keys="relayed", others=first, **padded(100_000))
        assert code(node.send(Enrol(doc=cohort.run.data))) == Code.LEDGER
        sizes.append(file_of(node).stat().st_size)
    assert len(set(sizes)) == 1
    assert unfinished(node.policy.state_dir) == set(runs)
    # The end gives back what was reserved, and nothing was ever charged.
    result = CliRunner().invoke(
        app, ["forget", "--state-dir", str(node.policy.state_dir)]
    )
    assert "Forgot 3 unfinished runs in" in result.output
    assert spent(node) == 0
    assert isinstance(voted_only(tmp_path, first)[1], Added)


def test_of_two_runs_that_enrolled_for_the_last_room_one_may_be_voted_in(tmp_path):
    policy = {"max_total_epsilon": 1.2, "max_total_delta": DELTA}
    first = start(tmp_path, keys="relayed", policy=policy).set_up()
    second = start(tmp_path, keys="relayed", others=first).set_up()
    assert isinstance(second.add(0, {i: second.ask(i, 1) for i in (1, 2, 3)}), Added)
    assert code(first.ask(0, 1)) == Code.LEDGER
    assert isinstance(second.ask(0, 1), Answer)  # its plan was reserved by the vote
    assert spent(first.nodes[0]) == pytest.approx(cost(second.run), rel=1e-9)


@pytest.mark.claim("threat-model", "vote-reserves-like-answer")
@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("how", ["finish", "forget"])
def test_the_row_of_a_run_that_is_over_is_small(how, trust, tmp_path):
    cohort = start(tmp_path, trust, **padded(10_000)).set_up()
    for t in (1, 2, 3):
        cohort.round(t)
    state_dir = cohort.nodes[0].policy.state_dir
    assert max(row_sizes(state_dir)) > 10_000
    if how == "finish":
        cohort.finish()
    else:
        CliRunner().invoke(app, ["forget", "--state-dir", str(state_dir)])
    assert max(row_sizes(state_dir)) <= 200


# -------------------------------------------------------------------------- the account


@pytest.mark.parametrize("most", [1, 3])
def test_a_run_for_clients_costs_a_person_at_each_client_of_the_policy(tmp_path, most):
    budget = PrivacyBudget(1.0, DELTA, unit="client")
    algorithm = GLloydAlgorithm.planned(
        2, BOX, budget, n_records=1000, n_clients=4, n_rounds=3
    )
    cohort = start(tmp_path, algorithm=algorithm)
    for node in cohort.nodes:
        node.policy = replace(node.policy, max_clients_per_person=most)
    cohort.play()
    assert not cohort.refusals
    mu = 2 * most * mu_of_budget(1.0, DELTA)
    for node in cohort.nodes:
        costs = ledgers.spent_by_unit(node.policy.state_dir, DELTA)
        assert costs["client"] == pytest.approx(1.0, rel=1e-6)
        assert costs["person"] == pytest.approx(epsilon_of_mu(mu, DELTA), rel=1e-6)


@pytest.mark.claim("threat-model", "30")
def test_runs_beyond_the_total_are_refused_before_records_are_read(tmp_path):
    first = start(tmp_path)
    whole = first.run.price.whole["record"]
    total = (whole + whole).epsilon(DELTA) * 1.0001
    for node in first.nodes:
        node.policy = replace(
            node.policy, max_total_epsilon=total, max_total_delta=DELTA
        )
    first.play()
    second = start(tmp_path, others=first).play()
    third = start(tmp_path, others=first)
    assert not first.refusals + second.refusals
    for node in first.nodes:
        loads = node.n_loads
        assert code(node.send(Enrol(doc=third.run.data))) == Code.LEDGER
        assert node.n_loads == loads
        assert node.session(third.doc_hash) is None
        assert spent(node) <= total


def test_the_last_room_goes_to_the_run_that_answers_first(tmp_path):
    """Both enrol while there is room for one."""
    policy = {"max_total_epsilon": 1.2, "max_total_delta": DELTA}
    first = start(tmp_path, policy=policy).set_up()
    second = start(tmp_path, others=first).set_up()
    assert not first.refusals + second.refusals
    assert isinstance(second.deal(1)[1], Answer)
    before = spent(first.nodes[1])
    for _ in range(2):
        assert code(first.deal(1)[1]) == Code.LEDGER
    assert spent(first.nodes[1]) == before
    assert kept(first.nodes[1], first.run)[0] is None
    assert kept(first.nodes[1], second.run)[0][:2] == (1, 1)


def test_a_total_that_is_tightened_during_a_run_holds_from_the_next_message_on(
    tmp_path,
):
    cohort = start(tmp_path).set_up()
    cohort.round(1)
    node, whole = cohort.nodes[1], spent(cohort.nodes[1])
    given = replace(node.policy, max_total_delta=DELTA)
    loads = node.n_loads
    for tight in ({"max_total_epsilon": whole * 0.999}, {"max_total_delta": 1e-30}):
        node.policy = replace(given, max_total_epsilon=whole * 1.001)
        node.policy = replace(node.policy, **tight)
        assert code(cohort.send(1, cohort.ask_of(1, 2))) == Code.LEDGER
        assert (node.n_loads, spent(node)) == (loads, whole)
    # As much as the run costs, which was charged as a whole.
    node.policy = replace(given, max_total_epsilon=whole * 1.001)
    assert isinstance(cohort.send(1, cohort.ask_of(1, 2)), Answer)
    assert spent(node) == whole


@pytest.mark.parametrize("trust", ["clients-only", "plain"])
def test_a_ledger_that_cannot_be_used_allows_nothing(trust, tmp_path):
    cohort = start(tmp_path, trust).set_up()
    node, other = cohort.nodes[1], start(tmp_path, trust, others=cohort)
    requests = (cohort.ask_of(1, 1), Enrol(doc=other.run.data))
    right = file_of(node).read_bytes()

    def codes():
        return {code(node.send(request)) for request in requests}

    node.policy.state_dir.chmod(0o755)
    assert codes() == {Code.LEDGER}
    node.policy.state_dir.chmod(0o700)
    file_of(node).write_bytes(b"torn" * 500)
    assert codes() == {Code.LEDGER}
    for torn in (b"{}", b"\x81", b"\xff" * 9):  # a session that cannot be read
        file_of(node).write_bytes(right)
        with sqlite3.connect(file_of(node)) as db:
            db.execute("UPDATE runs SET memory = ?", (torn,))
        assert code(node.send(requests[0])) == Code.LEDGER
    with sqlite3.connect(file_of(node)) as db:
        db.execute("PRAGMA user_version = 2")
    assert codes() == {Code.LEDGER}


def full(node, monkeypatch):
    monkeypatch.setattr(
        ledgers, "_SETTINGS", (*ledgers._SETTINGS, "max_page_count = 1")
    )


def read_only(node, monkeypatch):
    monkeypatch.setattr(ledgers, "_SETTINGS", (*ledgers._SETTINGS, "query_only = ON"))


def damaged(node, monkeypatch):
    file_of(node).write_bytes(b"torn" * 500)


def open_to_others(node, monkeypatch):
    node.policy.state_dir.chmod(0o755)


def locked(node, monkeypatch):
    monkeypatch.setattr(ledgers, "_BUSY_SECONDS", 0.05)
    other = sqlite3.connect(file_of(node), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    return other


@pytest.mark.claim("protocol", "10-ledger-clients-privacy")
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (full, "The ledger's disk is full"),
        (read_only, "The ledger is read-only"),
        (damaged, "The ledger is damaged"),
        (open_to_others, "with mode 0700"),
        (locked, "The ledger is locked"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_another_sentence_than_one_that_does_not_allow(
    spoil, sentence, tmp_path, monkeypatch, caplog
):
    """In the node's log; the server gets the same bytes for all of them."""
    cohort = start(tmp_path).set_up()
    node = cohort.nodes[1]
    other = start(tmp_path, others=cohort, **padded(100_000))
    given, request = node.policy, encode(Enrol(doc=other.run.data))
    node.policy = replace(given, max_total_epsilon=0.01)
    refusal = node.answer(request)
    assert "The ledger does not allow it." in caplog.text
    node.policy = given
    caplog.clear()
    held = spoil(node, monkeypatch)
    assert node.answer(request) == refusal
    assert sentence in caplog.text
    assert "does not allow" not in caplog.text
    if held is not None:
        held.close()


def test_a_policy_that_lost_its_ledger_refuses_the_rest_of_a_private_run(tmp_path):
    cohort = Cohort(tmp_path).set_up()
    node = cohort.nodes[1]
    node.policy = replace(node.policy, in_memory=False)
    other = Cohort(tmp_path, others=cohort)
    for request in (cohort.ask_of(1, 1), Enrol(doc=other.run.data)):
        assert code(cohort.send(1, request)) == Code.LEDGER
    assert node.n_loads == 0


# --------------------------------------------------------------------------- processes


@pytest.mark.default_cases("False")
@pytest.mark.parametrize("sends", [False, True])
def test_a_process_that_dies_before_or_after_sending_is_charged_once(sends, tmp_path):
    cohort = start(tmp_path).set_up()
    node, data = cohort.nodes[1], encode(cohort.ask_of(1))
    sent = SPAWN.Queue() if sends else None
    process = SPAWN.Process(
        target=answer_and_die, args=(node.policy, node.records, data, sent)
    )
    process.start()
    reply = sent.get(timeout=600) if sends else None
    process.join(600)
    assert process.exitcode == CRASHED
    assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)
    before, again = kept(node, cohort.run), node.answer(data)
    assert reply in (None, again)
    assert kept(node, cohort.run) == before
    assert spent(node) == pytest.approx(cost(cohort.run), rel=1e-9)


def answer_and_die(policy, records, data, sent):
    """Handle a message as a client does and end before, or after, the reply has left."""
    reply = Node(policy, records).answer(data)
    if sent is not None:
        sent.put(reply)
        sent.close()
        sent.join_thread()
    os._exit(CRASHED)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("ask", "ask", None),  # the same bytes
        ("ask", "other cohort", Code.CONFLICT),
        ("ask", "next attempt", Code.STALE),
        ("enrol", "enrol", None),  # one session
    ],
)
def test_what_another_process_did_meanwhile_counts(first, second, expected, tmp_path):
    cohort = start(
        tmp_path, "oblivious-server" if first == "enrol" else "distributed-noise"
    )
    requests = {"enrol": Enrol(doc=cohort.run.data)}
    if first == "ask":
        cohort.set_up([0, 1, 2, 3])
        requests["ask"] = cohort.ask_of(1)
        requests["next attempt"] = cohort.ask_of(1, 1, 2)
        cohort.set_up([4])
        requests["other cohort"] = cohort.ask_of(1)
    node, replies = cohort.nodes[1], []

    def records():  # while they are read for the first time, another process answers
        if not replies:
            replies.append(None)
            replies[0] = node.send(requests[second])
        return node.records

    process = Node(node.policy, records, results=node.results, node_id=node.node_id)
    reply = process.send(requests[first])
    assert isinstance(replies[0], Answer | Enrolled)
    assert code(reply) == expected
    assert expected is not None or reply == replies[0]
    assert spent(node) == pytest.approx(
        cost(cohort.run) if first == "ask" else 0, rel=1e-9
    )


@pytest.mark.claim("threat-model", "40")
def test_of_two_sums_at_once_one_gets_the_vote(tmp_path, monkeypatch):
    """Both find no vote; the second to write finds one in the ledger, and looks again."""
    cohort = start(tmp_path).set_up()
    answers = cohort.deal(1)
    node = cohort.nodes[1]
    fewer = {i: answer for i, answer in answers.items() if i != 4}
    one, other = cohort.add_of(1, answers), cohort.add_of(1, fewer)
    vote, replies = Ledger.vote, []

    def later(ledger, *arguments):
        monkeypatch.setattr(Ledger, "vote", vote)
        replies.append(node.send(other))
        return vote(ledger, *arguments)

    monkeypatch.setattr(Ledger, "vote", later)
    late = node.send(one)
    assert isinstance(replies[0], Added)
    assert code(late) == Code.CONFLICT


# ------------------------------------------------------------------- what refusals tell


def probe(epsilon):
    """Return an enrolment for a run of one round that costs an epsilon."""
    budget = PrivacyBudget(epsilon, DELTA)
    algorithm = GLloydAlgorithm.planned(2, BOX, budget, n_records=1_000, n_rounds=1)
    document = make_document("distributed-noise", algorithm=algorithm, run=bytes(16))
    return Enrol(doc=encode(document))


@pytest.mark.claim("threat-model", "server-may-enrol-node")
def test_limit_a_server_learns_by_20_free_enrolments_how_much_is_spent_and_nothing_else(
    tmp_path,
):
    """It enrols nodes for runs that it never starts, and sees which of them still fit.

    Nodes with other records, and with the same costs of another run, answer alike.
    """
    total = 10.0
    policy = {"max_epsilon": 50.0, "max_total_epsilon": total, "max_total_delta": DELTA}
    first = start(tmp_path, keys="relayed", policy=policy).set_up()
    second = start(tmp_path, keys="relayed", others=first).set_up()
    nodes = first.nodes[:2]
    assert isinstance(first.ask(0, 1), Answer)
    assert isinstance(second.ask(1, 1), Answer)
    before = [spent(node) for node in nodes]
    assert before[0] == before[1] > 0

    low, high = 0.0, total
    for _ in range(20):
        middle = (low + high) / 2
        codes = {code(node.send(probe(middle))) for node in nodes}
        assert len(codes) == 1
        assert codes <= {None, Code.LEDGER}
        low, high = (middle, high) if codes == {None} else (low, middle)

    # What the largest run that fits leaves of the total is what was spent.
    left = mu_of_budget(total, DELTA) ** 2 - mu_of_budget(low, DELTA) ** 2
    assert epsilon_of_mu(left**0.5, DELTA) == pytest.approx(before[0], rel=1e-4)
    assert [spent(node) for node in nodes] == before  # and nothing is charged for it
