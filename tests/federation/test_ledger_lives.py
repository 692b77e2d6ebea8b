"""Lives that lie in a ledger: a restart loses nothing, and every answer was charged before."""

import multiprocessing
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import RecordDict
from harness import SIMULATED, Node, Scene, decoded, key_file, make_run, roster_policies
from ledger_workers import CRASHED, answer_and_die
from typer.testing import CliRunner

from flower_kmeans.cli import app
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.life import Life, forget_unfinished, unpack_life
from flower_kmeans.federation.member import Member
from flower_kmeans.federation.messages import Enrol, OpenReply, Refusal, RoundReply, to_content
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.privacy.plan import composed_epsilon

DELTA = 1e-6
SPAWN = multiprocessing.get_context("spawn")


def code_of(answer):
    return answer.code if isinstance(answer, Refusal) else Code.OK


def ledger_scene(tmp_path, run, m=4, nodes=None, **limits):
    """Return nodes that keep ledgers of their own, and a server."""
    if nodes is None:
        file = key_file(tmp_path) if run.document.keys == "file" else None
        rng = np.random.default_rng(5)
        nodes = [
            Node(
                2**63 + i,
                rng.random((6 + i, 2)),
                replace(
                    SIMULATED,
                    in_memory=False,
                    state_dir=tmp_path / f"node-{i}",
                    group_key_file=file,
                    max_total_delta=DELTA,
                    **limits,
                ),
            )
            for i in range(m)
        ]
    return Scene(run, nodes=nodes)


def spent(node, delta=DELTA):
    with Ledger(node.policy.state_dir) as ledger:
        return ledger.epsilon(delta)


def life_of(node, run):
    with Ledger(node.policy.state_dir) as ledger:
        return unpack_life(ledger.load(run.document.doc_hash)[1])


def enrolment(run):
    return Enrol(doc_hash=run.document.doc_hash, doc=run.document.data, lead=False)


# --------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("trust", ["oblivious-server", "distributed-noise", "plain"])
@pytest.mark.parametrize("keys", ["relayed", "file"])
def test_a_restart_keeps_the_life_and_loses_no_round(trust, keys, tmp_path):
    scene = ledger_scene(tmp_path, make_run(trust, keys=keys if trust != "plain" else "none"))
    former = life_of(scene.nodes[2], scene.run)
    for _ in range(3):
        scene.open()
        for i, node in enumerate(scene.nodes):
            node.restart()  # every message finds a process without memory
            assert isinstance(scene.answer(i), RoundReply)
            assert not len(node.state)
        first = scene.replies[2]
        scene.nodes[2].restart()
        assert scene.ask(2) == first  # the same bytes
        assert scene.server.close_round()
        assert scene.server.closed[-1].entry.n_survivors == 4
    life = life_of(scene.nodes[2], scene.run)
    assert (life.secret, life.commitment) == (former.secret, former.commitment)
    assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    assert [len(node.results) for node in scene.nodes] == [1] * 4
    np.testing.assert_array_equal(
        scene.nodes[2].results[0].centroids, scene.nodes[0].results[0].centroids
    )
    for node in scene.nodes:
        if trust == "plain":
            assert spent(node) == 0
        else:
            assert spent(node) == pytest.approx(scene.run.plan.epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize("keys", ["relayed", "file"])
def test_changed_records_are_a_new_life_with_a_ledger_too(keys, tmp_path):
    scene = ledger_scene(tmp_path, make_run(keys=keys))
    scene.open()
    before, node = scene.ask(1), scene.nodes[1]
    former = life_of(node, scene.run)
    node.records = node.records + 0.125
    node.restart()
    if keys == "relayed":
        assert code_of(scene.ask(1)) == Code.KEY
        return
    answer = scene.ask(1)
    assert code_of(answer) == Code.RENEW
    assert life_of(node, scene.run).secret != former.secret
    scene.server.refuse(node.node_id, answer, 1)
    scene.open(1)  # the round and attempt that the former life answered
    assert code_of(scene.answer(1)) == Code.CONFLICT
    assert spent(node) == pytest.approx(scene.run.plan.epsilon(DELTA), rel=1e-9)
    scene.open(2)
    after = scene.answer(1)
    assert isinstance(after, RoundReply)
    assert after.ctx != before.ctx
    # A round that was given twice costs twice.
    plan = scene.run.plan
    again = composed_epsilon([*plan.releases, *plan.rounds[0]], DELTA)
    assert spent(node) == pytest.approx(again, rel=1e-9)
    assert again > plan.epsilon(DELTA)


def test_a_restored_backup_gives_the_same_bytes(tmp_path):
    scene = ledger_scene(tmp_path, make_run("distributed-noise"))
    scene.open()
    file = scene.nodes[1].policy.state_dir / FILE_NAME
    backup = file.read_bytes()
    first = scene.answer(1)
    file.write_bytes(backup)
    assert spent(scene.nodes[1]) == 0
    assert scene.ask(1) == first
    assert spent(scene.nodes[1]) > 0


def test_the_end_erases_secrets_from_the_file_and_keeps_the_charge(tmp_path):
    scene = ledger_scene(tmp_path, make_run("distributed-noise"))
    for _ in range(3):
        scene.round()
    before = life_of(scene.nodes[1], scene.run)
    file = scene.nodes[1].policy.state_dir / FILE_NAME
    secrets = [before.secret, before.group_key, before.exchange_secret]
    kept = file.read_bytes()
    assert all(secret and secret.hex().encode() in kept for secret in secrets)
    cost = spent(scene.nodes[1])
    scene.finish()
    kept = file.read_bytes()
    assert not any(secret in kept or secret.hex().encode() in kept for secret in secrets)
    assert life_of(scene.nodes[1], scene.run).finished == 1
    assert spent(scene.nodes[1]) == cost > 0
    assert code_of(scene.nodes[1].ask(enrolment(scene.run))) == Code.STALE


def in_the_file(node, secrets):
    """Return the secrets that the ledger's file holds, in whatever form."""
    kept = (node.policy.state_dir / FILE_NAME).read_bytes()
    return {name for name, s in secrets.items() if s and (s in kept or s.hex().encode() in kept)}


@pytest.mark.parametrize("keys", ["relayed", "file"])
@pytest.mark.parametrize("option", ["--state-dir", "--policy-file"])
def test_a_run_that_failed_is_forgotten_and_stays_charged(option, keys, tmp_path):
    """25: nobody sends `finish` for a run that failed, so its keys lie there until then."""
    scene = ledger_scene(tmp_path, make_run("distributed-noise", keys=keys))
    scene.round()
    scene.open()
    assert isinstance(scene.answer(1), RoundReply)
    node, run = scene.nodes[1], scene.run
    life = life_of(node, run)
    secrets = {name: getattr(life, name) for name in ("secret", "group_key", "exchange_secret")}
    secrets["state"] = life.state.arrays["centroids"].astype("<i8").tobytes()
    secrets["answer"] = next(iter(life.answered.values()))[1]
    expected = {name for name, secret in secrets.items() if secret}
    assert in_the_file(node, secrets) == expected
    assert expected >= {"secret", "group_key", "state", "answer"}
    cost = spent(node)
    policy = tmp_path / "policy.toml"
    policy.write_text(f'state_dir = "{node.policy.state_dir}"')
    policy.chmod(0o600)
    named = node.policy.state_dir if option == "--state-dir" else policy
    result = CliRunner().invoke(app, ["forget", option, str(named)])
    assert result.exit_code == 0
    assert "Forgot 1 unfinished run in" in result.output
    assert in_the_file(node, secrets) <= {"answer"}  # whose digest is part of the charge
    assert life_of(node, run) == Life(secret=b"", chain=b"", finished=2, head=life.head)
    # Two of three rounds were answered; what was reserved for the third has come back.
    two = composed_epsilon([*run.plan.rounds[0], *run.plan.rounds[1]], DELTA)
    assert spent(node) == pytest.approx(two, rel=1e-9)
    assert spent(node) < cost
    question = scene.request(1)
    assert code_of(node.ask(enrolment(run))) == Code.STALE
    assert code_of(node.ask(question)) == Code.STALE
    assert code_of(node.ask(replace(question, doc=run.document.data))) == Code.STALE
    finish = scene.server.finish_requests()[node.node_id]
    assert code_of(node.ask(finish)) == Code.STALE  # it has no result, and does not say so
    assert not node.results
    result = CliRunner().invoke(app, ["forget", option, str(named)])
    assert "Forgot 0 unfinished runs in" in result.output
    assert spent(node) == pytest.approx(two, rel=1e-9)


def test_finished_runs_are_left_as_they_are_and_unreadable_ones_are_erased(tmp_path):
    scene = ledger_scene(tmp_path, make_run())
    for _ in range(3):
        scene.round()
    scene.finish()
    node = scene.nodes[1]
    finished = life_of(node, scene.run)
    with Ledger(node.policy.state_dir) as ledger:
        version = ledger.load(scene.run.document.doc_hash)[0]
        ledger.save(b"r" * 32, 0, b'{"secret": "KEPT"}')
        assert forget_unfinished(ledger) == 1
        assert ledger.load(scene.run.document.doc_hash)[0] == version
        assert unpack_life(ledger.load(b"r" * 32)[1]).finished == 2
    assert life_of(node, scene.run) == finished
    assert b"KEPT" not in (node.policy.state_dir / FILE_NAME).read_bytes()


def test_forgetting_makes_no_ledger_and_needs_one_directory(tmp_path):
    (tmp_path / "policy.toml").write_text("")
    (tmp_path / "policy.toml").chmod(0o600)
    for arguments, expected in (
        (["--state-dir", tmp_path / "state"], "no ledger"),
        (["--policy-file", tmp_path / "policy.toml"], "no state_dir"),
        ([], "either"),
        (["--state-dir", tmp_path, "--policy-file", tmp_path / "policy.toml"], "either"),
    ):
        result = CliRunner().invoke(app, ["forget", *map(str, arguments)])
        assert result.exit_code == 1
        assert expected in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["policy.toml"]


@pytest.mark.parametrize("sends", [False, True])
def test_a_process_that_dies_before_or_after_sending_is_charged_once(tmp_path, sends):
    scene = ledger_scene(tmp_path, make_run("distributed-noise"))
    scene.open()
    node, content = scene.nodes[1], to_content(scene.request(1))
    sent = SPAWN.Queue() if sends else None
    process = SPAWN.Process(target=answer_and_die, args=(node.policy, node.records, content, sent))
    process.start()
    words = sent.get(timeout=60) if sends else None
    process.join(60)
    assert process.exitcode == CRASHED
    cost = spent(node)
    assert cost == pytest.approx(scene.run.plan.epsilon(DELTA), rel=1e-9)
    with Ledger(node.policy.state_dir) as ledger:
        digest = ledger._db.execute("SELECT digest FROM answers").fetchall()
    reply = scene.answer(1)
    assert isinstance(reply, RoundReply)
    assert words in (None, reply.words)
    with Ledger(node.policy.state_dir) as ledger:
        assert ledger._db.execute("SELECT digest FROM answers").fetchall() == digest
    assert spent(node) == cost


# --------------------------------------------------------------------------- the account


def test_runs_beyond_the_total_are_refused_before_records_are_read(tmp_path):
    runs = [make_run(number=number) for number in (1, 2, 3)]
    total = epsilon_of_mu(runs[0].plan.mu * 2**0.5, DELTA) * 1.0001
    nodes = None
    for run in runs[:2]:
        scene = ledger_scene(tmp_path, run, nodes=nodes, max_total_epsilon=total)
        nodes = scene.nodes
        for _ in range(3):
            scene.round()
        assert all(isinstance(answer, OpenReply) for answer in scene.finish())
    for node in nodes:
        loads = node.loads
        assert code_of(node.ask(enrolment(runs[2]))) == Code.LEDGER
        assert node.loads == loads
        with Ledger(node.policy.state_dir) as ledger:
            assert ledger.load(runs[2].document.doc_hash) is None
        assert spent(node) <= total


def test_the_last_room_goes_to_the_run_that_answers_first(tmp_path):
    """Both enrol while there is room for one."""
    first = ledger_scene(tmp_path, make_run(number=1), max_total_epsilon=1.2)
    second = ledger_scene(tmp_path, make_run(number=2), nodes=first.nodes)
    first.open()
    second.open()
    assert isinstance(second.answer(1), RoundReply)
    before = spent(first.nodes[1])
    assert code_of(first.ask(1)) == Code.LEDGER
    assert code_of(first.ask(1)) == Code.LEDGER
    assert spent(first.nodes[1]) == before
    assert not life_of(first.nodes[1], first.run).answered
    second_life = life_of(first.nodes[1], second.run)
    assert set(second_life.answered) == {(1, 1)}


def test_a_total_that_is_tightened_during_a_run_holds_from_the_next_message_on(tmp_path):
    scene = ledger_scene(tmp_path, make_run())
    scene.round()
    node, cost = scene.nodes[1], spent(scene.nodes[1])
    with_room = replace(node.policy, max_total_epsilon=cost * 1.001)
    node.policy = replace(node.policy, max_total_epsilon=cost * 0.999)
    scene.open()
    loads = node.loads
    assert code_of(scene.ask(1)) == Code.LEDGER
    assert (node.loads, spent(node)) == (loads, cost)
    node.policy = with_room  # as much as the run costs, which was charged as a whole
    assert isinstance(scene.answer(1), RoundReply)
    assert spent(node) == cost
    assert code_of(node.ask(enrolment(make_run(number=2)))) == Code.LEDGER


def test_a_total_delta_that_is_tightened_during_a_run_holds_as_well(tmp_path):
    scene = ledger_scene(tmp_path, make_run(), max_total_epsilon=1.1)
    scene.round()
    scene.nodes[1].policy = replace(scene.nodes[1].policy, max_total_delta=1e-12)
    scene.open()
    assert code_of(scene.ask(1)) == Code.LEDGER
    assert isinstance(scene.ask(0), RoundReply)


@pytest.mark.parametrize("trust", ["oblivious-server", "plain"])
def test_a_ledger_that_cannot_be_used_allows_nothing(trust, tmp_path):
    scene = ledger_scene(tmp_path, make_run(trust))
    scene.open()
    node = scene.nodes[1]
    node.policy.state_dir.chmod(0o755)
    assert code_of(scene.ask(1)) == Code.LEDGER
    assert code_of(node.ask(enrolment(make_run(trust, number=2)))) == Code.LEDGER
    node.policy.state_dir.chmod(0o700)
    (node.policy.state_dir / FILE_NAME).write_bytes(b"torn" * 500)
    assert code_of(scene.ask(1)) == Code.LEDGER


def test_a_life_in_the_ledger_that_cannot_be_read_allows_nothing(tmp_path):
    scene = ledger_scene(tmp_path, make_run())
    scene.open()
    db = sqlite3.connect(scene.nodes[1].policy.state_dir / FILE_NAME)
    for torn in (b"", b"{}", b"[]", b"\xff", b'{"answered": 5}'):
        with db:
            db.execute("UPDATE memories SET memory = ?", (torn,))
        assert code_of(scene.ask(1)) == Code.LEDGER
    db.close()


def test_a_policy_that_lost_its_ledger_refuses_the_rest_of_a_private_run():
    scene = Scene()
    scene.open()
    scene.nodes[1].policy = replace(SIMULATED, in_memory=False)
    assert code_of(scene.ask(1)) == Code.LEDGER


# --------------------------------------------------------------------------- two processes at once


class Interrupted:
    """Records whose reading another process uses to act: one call, then never again."""

    def __init__(self, records, act):
        self.records, self.act, self.calls = records, act, 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            self.act()
        return self.records


def member(node, records):
    return Member(node.policy, RecordDict(), node.node_id, records, node.results.append)


def test_another_context_that_comes_in_between_is_a_conflict(tmp_path):
    """The server asks two processes the same question in two contexts, at the same time."""
    scene = ledger_scene(tmp_path, make_run(keys="file"))
    node, other = scene.nodes[1], scene.nodes[3]
    scene.open()
    first = scene.request(1)
    other.records = other.records + 0.125
    scene.server.refuse(other.node_id, scene.ask(3), 1)  # another root
    scene.open()
    second = scene.request(1)
    assert first.root != second.root
    replies = []

    def act():
        answer = member(node, lambda: node.records).handle(to_content(second))
        replies.append(decoded(answer))

    late = decoded(member(node, Interrupted(node.records, act)).handle(to_content(first)))
    assert isinstance(replies[0], RoundReply)
    assert code_of(late) == Code.CONFLICT


def test_a_repetition_that_comes_in_between_gets_the_same_bytes(tmp_path):
    scene = ledger_scene(tmp_path, make_run("distributed-noise"))
    node = scene.nodes[1]
    scene.open()
    content = to_content(scene.request(1))
    replies = []

    def act():
        replies.append(decoded(member(node, lambda: node.records).handle(content)))

    late = decoded(member(node, Interrupted(node.records, act)).handle(content))
    assert isinstance(late, RoundReply)
    assert late == replies[0]


def test_two_enrolments_at_once_are_one_life(tmp_path):
    run = make_run()
    policy = replace(SIMULATED, in_memory=False, state_dir=tmp_path / "node")
    node = Node(7, np.ones((4, 2)) / 2, policy)
    content, replies = to_content(enrolment(run)), []

    def act():
        replies.append(decoded(member(node, lambda: node.records).handle(content)))

    late = decoded(member(node, Interrupted(node.records, act)).handle(content))
    assert late == replies[0]


# --------------------------------------------------------------------------- attempts


@pytest.mark.parametrize(
    ("trust", "keys", "n_charged"),
    [
        ("oblivious-server", "file", 1),  # whoever opens a sum accepts one of a round
        ("distributed-noise", "relayed", 2),
        ("distributed-noise", "file", 2),  # others may open a sum of each attempt
    ],
)
def test_attempts_are_charged_where_each_can_end_in_a_sum(trust, keys, n_charged, tmp_path):
    run = make_run(trust, keys=keys)
    scene = ledger_scene(tmp_path, run)
    for attempt in (1, 2):
        scene.open(attempt)
        assert isinstance(scene.answer(1), RoundReply)
        assert isinstance(scene.answer(1), RoundReply)  # the same bytes again cost nothing
    expected = [*run.plan.releases, *run.plan.rounds[0] * (n_charged - 1)]
    assert spent(scene.nodes[1]) == pytest.approx(composed_epsilon(expected, DELTA), rel=1e-12)


def test_attempts_that_are_paid_for_are_refused_when_the_total_is_reached(tmp_path):
    run = make_run("distributed-noise", keys="file", rounds=1)
    scene = ledger_scene(tmp_path, run, max_total_epsilon=run.plan.epsilon(DELTA) * 1.01)
    scene.open(1)
    assert isinstance(scene.answer(1), RoundReply)
    scene.open(2)
    assert code_of(scene.ask(1)) == Code.LEDGER
    assert spent(scene.nodes[1]) <= run.plan.epsilon(DELTA) * 1.01


def test_a_pinned_cohort_has_one_sum_of_a_round(tmp_path):
    run = make_run("distributed-noise", keys="roster")
    policies = roster_policies(tmp_path, 4)
    nodes = [
        Node(
            2**63 + i,
            [[0.25, 0.5]] * 5,
            replace(policy, in_memory=False, state_dir=tmp_path / f"{i}", max_total_delta=DELTA),
        )
        for i, policy in enumerate(policies)
    ]
    scene = Scene(run, nodes=nodes)
    for attempt in (1, 2):
        scene.open(attempt)
        assert isinstance(scene.answer(1), RoundReply)
    assert spent(nodes[1]) == pytest.approx(composed_epsilon(run.plan.releases, DELTA), rel=1e-12)


# --------------------------------------------------------------------------- results


@pytest.mark.parametrize("with_ledger", [True, False])
def test_a_result_whose_keeper_fails_is_not_lost(with_ledger, tmp_path):
    run = make_run()
    scene = ledger_scene(tmp_path, run) if with_ledger else Scene(run)
    for _ in range(3):
        scene.round()
    node, kept = scene.nodes[1], []

    def keep(result):
        if len(kept) == 0:
            kept.append(None)
            raise OSError("No space left on device")
        kept.append(result)

    finish = scene.server.finish_requests()[node.node_id]
    answers = []
    for _ in range(3):
        member = Member(node.policy, node.state, node.node_id, lambda: node.records, keep)
        answers.append(decoded(member.handle(to_content(finish))))
    assert [type(answer) for answer in answers] == [OpenReply] * 3  # the server learns nothing
    assert answers[0] == answers[1] == answers[2]
    assert kept[0] is None
    assert len(kept) == 2  # the third finds the run over
    assert kept[1].centroids.shape == (2, 2)
