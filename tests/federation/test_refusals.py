"""A refusal tells the operator why, in the client's log, and the server only its code."""

import importlib.util
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import SIMULATED, Node, Scene, decoded, key_file, make_run

from flower_kmeans.client import ClientPolicy
from flower_kmeans.domain import Ball, Box
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.messages import Enrol, EnrolReply, Refusal, to_content
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.records import usable_records
from flower_kmeans.tables import Table

MARKER = 0.7132589  # in the records
NAMED = Box([0, 0], [1, 1], columns=["age", "income"])
ROOT = Path(__file__).parents[2]


def records():
    return np.full((4, 2), MARKER)


def lines(caplog):
    """Return the client's warnings so far."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "flower_kmeans.client" and record.levelno >= logging.WARNING
    ]


def refused(node, content, caplog):
    """Hand a message to a node; return the code that left and the only line that was logged."""
    caplog.clear()
    reply = node.handle(content)
    answer = decoded(reply)
    assert isinstance(answer, Refusal)
    # All that leaves is a code: nothing tells two reasons of one code apart.
    assert answer == Refusal(code=answer.code, doc_hash=answer.doc_hash)
    assert set(reply["kmeans"]) <= {"v", "kind", "code", "doc_hash"}
    (line,) = lines(caplog)
    assert "\n" not in line
    assert str(MARKER) not in caplog.text
    return answer.code, line


def enrolment(run):
    return to_content(Enrol(doc_hash=run.document.doc_hash, doc=run.document.data, lead=False))


@pytest.mark.parametrize(
    ("limits", "asked", "expected", "got"),
    [
        ({"trusts": ("plain",)}, {}, "trusts=['plain']", "'oblivious-server'"),
        ({"algorithms": ("glloyd",)}, {}, "algorithms=['glloyd']", "'fastlloyd'"),
        ({"max_rounds": 2}, {"rounds": 3}, "max_rounds=2", "3"),
        ({"min_clients": 4}, {"min_clients": 3}, "min_clients >= 4", "3"),
        ({"max_epsilon": 0.5}, {"epsilon": 0.75}, "max_epsilon=0.5", "0.75"),
        ({"max_delta": 1e-9}, {}, "max_delta=1e-09", "1e-06"),
        ({"domain": Box([0, 0], [1, 9])}, {}, "bounds of column 1 (0.0, 9.0)", "(0.0, 1.0)"),
        ({"domain": Ball(1, [0, 0])}, {}, "kind ball", "'box'"),
        ({"columns": ("age", "income")}, {}, "columns=['age', 'income']", "None"),
        ({"columns": ("a", "b")}, {"domain": NAMED.to_config()}, "columns=['a', 'b']", "'income'"),
        ({"units": ("client",)}, {}, "units=['client']", "'record'"),
        ({"group_key_file": "/a/key"}, {}, "keys in", "'relayed'"),
        ({}, {"keys": "file"}, "keys in", "'file'"),
        ({"trusts": ("trusted-server",)}, {"trust": "plain"}, "trusts=", "'plain'"),
        (
            {"openings": ("immediate",)},
            {"trust": "distributed-noise", "opening": "simple"},
            "openings=['immediate']",
            "'simple'",
        ),
        ({}, {"keys": "roster"}, "keys in ['relayed']", "'roster'"),
        ({"max_attempts": 1}, {}, "max_attempts <= 1", "2"),
        ({"colluders": 2}, {"trust": "distributed-noise"}, "colluders >= 2", "1"),
        (
            {"max_epsilon": 1.2},
            {"trust": "distributed-noise"},
            "max_epsilon=1.2 for 2 sums of each round",
            "1.45",
        ),
    ],
)
def test_a_limit_that_is_exceeded_is_named_in_the_log_alone(limits, asked, expected, got, caplog):
    run = make_run(**{"min_clients": 3, **asked})
    node = Node(3, records(), replace(SIMULATED, **limits))
    code, line = refused(node, enrolment(run), caplog)
    assert code == Code.POLICY
    assert expected in line
    assert got in line.split("Got")[1]
    assert run.document.doc_hash.hex()[:8] in line
    assert node.loads == 0


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize(
    ("trust", "keys", "each_opens"),
    [
        ("oblivious-server", "relayed", False),
        ("trusted-server", "none", False),
        ("distributed-noise", "relayed", True),
        ("distributed-noise", "file", True),
        ("distributed-noise", "roster", False),
    ],
)
def test_the_worst_case_has_a_sum_of_each_attempt_where_others_may_open_it(
    trust, keys, each_opens, attempts
):
    run = make_run(trust, keys=keys, max_attempts=attempts)
    sums = attempts if each_opens else 1
    epsilon = epsilon_of_mu(run.plan.mu * sums**0.5, 1e-6)
    assert run.worst_case == (pytest.approx(epsilon, rel=1e-12), 1e-6)
    policy = replace(SIMULATED, max_epsilon=epsilon * (1 + 1e-9))
    assert policy.objection_to_guarantee(*run.worst_case) is None
    policy = replace(SIMULATED, max_epsilon=epsilon * (1 - 1e-9))
    assert "max_epsilon" in policy.objection_to_guarantee(*run.worst_case)


def test_a_run_without_privacy_has_no_worst_case():
    assert make_run("plain").worst_case == (None, None)
    assert make_run("plain").price is None


def test_every_limit_of_a_policy_refuses_with_the_same_bytes(caplog):
    run = make_run(min_clients=3)
    replies = set()
    for limits in (
        {"trusts": ("plain",)},
        {"max_epsilon": 0.5},
        {"min_clients": 9},
        {"columns": ("age", "income")},
        {"domain": Box([0, 0], [1, 9])},
    ):
        node = Node(3, records(), replace(SIMULATED, **limits))
        replies.add(repr(node.handle(enrolment(run))))
    assert len(replies) == 1
    assert len(set(lines(caplog))) == 5


def test_plans_and_documents_that_do_not_fit_are_explained(caplog):
    run = make_run()
    node = Node(3, records(), SIMULATED)
    document = replace(run.document, sampler="none")
    code, line = refused(node, enrolment(replace(run, document=document)), caplog)
    assert (code, "sampler" in line) == (Code.POLICY, True)


def test_what_a_ledger_does_not_allow_is_explained(tmp_path, caplog):
    run = make_run(min_clients=3, epsilon=0.8)
    code, line = refused(Node(3, records(), ClientPolicy()), enrolment(run), caplog)
    assert (code, "state_dir" in line) == (Code.LEDGER, True)

    policy = ClientPolicy(state_dir=tmp_path / "state", max_total_epsilon=0.5)
    code, line = refused(Node(3, records(), policy), enrolment(run), caplog)
    assert code == Code.LEDGER
    assert "epsilon <= 0.5" in line
    assert "Got 0.8" in line

    (tmp_path / "state").chmod(0o755)
    code, line = refused(Node(3, records(), policy), enrolment(run), caplog)
    assert code == Code.LEDGER
    assert "0700" in line
    assert "0755" in line


def test_a_key_file_that_cannot_be_used_is_explained(tmp_path, caplog):
    run = make_run(keys="file")
    for path, expected in (
        (key_file(tmp_path, mode=0o640), "0640"),
        (tmp_path / "none", "cannot be read"),
    ):
        node = Node(3, records(), replace(SIMULATED, group_key_file=path))
        code, line = refused(node, enrolment(run), caplog)
        assert code == Code.KEY
        assert expected in line


def test_records_that_cannot_be_used_are_explained_without_a_value(caplog):
    run = make_run(domain=NAMED.to_config())
    for loaded, expected in (
        (Table(records(), ("income", "age")), "['income', 'age']"),
        (np.full((3, 4), MARKER), "must have 2 columns, got 4"),
        (np.full(3, MARKER), "two-dimensional"),
    ):
        code, line = refused(Node(3, loaded, SIMULATED), enrolment(run), caplog)
        assert code == Code.DATA
        assert expected in line
    node = Node(3, Table(records(), ("age", "income")), SIMULATED)
    assert not isinstance(decoded(node.handle(enrolment(run))), Refusal)


APP = ROOT / "simulations" / "deployment" / "app" / "client_app.py"
ROWS = [[x, y] for x, y in np.random.default_rng(0).random((9, 2)).tolist()]
WRONG = ["nan,1", "0.5,", ",", "0.5", "1,2,3", "n/a,1", '"0.5,1', "1j,1", "inf,1", "\xff,1"]


def shipped_load_data():
    spec = importlib.util.spec_from_file_location("client_app_of_the_deployment", APP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_data


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("place", [0, 4, 9])
def test_no_refusal_depends_on_a_record_of_a_file(place, named, tmp_path):
    """17: whatever one line of a node's file is, the shipped app answers with the others."""
    load_data, path = shipped_load_data(), tmp_path / "records.csv"
    settings = {"data": str(path)} | ({} if named else {"header": "age,income"})
    run = make_run(domain=NAMED.to_config())
    for wrong in WRONG:
        lines = [f"{x!r},{y!r}" for x, y in ROWS]
        lines.insert(place, wrong)
        path.write_text("\n".join(["age,income"] * named + lines), "latin-1")
        loaded = load_data(SimpleNamespace(node_config=settings))
        np.testing.assert_array_equal(usable_records(loaded, 2)[0], ROWS)
        node = Node(1, lambda table=loaded: table, SIMULATED)
        assert isinstance(decoded(node.handle(enrolment(run))), EnrolReply)


@pytest.mark.parametrize(
    "wrong", [[0.5, "n/a"], [0.5, 1j], [0.5, None], [0.5], [[0.5, 0.5]], None, np.ones((1, 2)), 5]
)
@pytest.mark.parametrize("place", [0, 1, 9])
def test_no_refusal_depends_on_a_record_of_an_array(wrong, place):
    """17: nor does it where the loader's array becomes one of text, complex numbers or objects."""
    rows = [*ROWS[:place], wrong, *ROWS[place:]]
    tables = [rows, tuple(rows)]
    if isinstance(wrong, list) and len(wrong) == 2:
        tables.append(np.array(rows))
        tables.append(np.array(rows, dtype=object))
    for table in tables:
        np.testing.assert_array_equal(usable_records(table, 2)[0], ROWS)
        node = Node(1, lambda table=table: table, SIMULATED)
        assert isinstance(decoded(node.handle(enrolment(make_run()))), EnrolReply)


def test_a_crowd_that_is_too_small_is_explained(caplog):
    scene = Scene(make_run(min_clients=4))
    scene.open()
    code, line = refused(scene.nodes[1], to_content(scene.request(1, m=3)), caplog)
    assert code == Code.POLICY
    assert "min_clients=4 members of the cohort. Got 3" in line

    for i in range(4):
        scene.answer(i)
    assert scene.server.close_round()
    few = replace(scene.server.closed[-1].entry, survivors=np.arange(4) < 2)
    scene.open()
    request = scene.request(1, entries=(few.pack(),))
    code, line = refused(scene.nodes[1], to_content(request), caplog)
    assert code == Code.POLICY
    assert "min_clients=4 survivors. Got 2" in line


@pytest.mark.parametrize("rounds", [{"t": 4}, {"attempt": 3}])
def test_what_goes_beyond_the_document_is_refused(rounds, caplog):
    scene = Scene()
    for _ in range(3 if "t" in rounds else 0):
        scene.round()
    if "t" in rounds:
        entries = tuple(closed.entry.pack() for closed in scene.server.closed)
        request = scene.request(1, entries=entries, **rounds)
    else:
        scene.open()
        request = scene.request(1, **rounds)
    code, line = refused(scene.nodes[1], to_content(request), caplog)
    assert code == Code.POLICY
    assert re.search(r"round up to 3 and an attempt up to 2\. Got round \d, attempt \d", line)


def test_messages_that_cannot_be_read_are_logged_without_what_they_hold(caplog):
    node, content = Node(3, records(), SIMULATED), enrolment(make_run())
    content["kmeans"]["more"] = "MARKER"
    code, line = refused(node, content, caplog)
    assert code == Code.BAD_MESSAGE
    assert "BAD_MESSAGE" in line
    assert "MARKER" not in caplog.text
    content = enrolment(make_run())
    content["kmeans"]["v"] = 2
    code, line = refused(node, content, caplog)
    assert (code, "VERSION" in line) == (Code.VERSION, True)


def test_the_operator_of_a_node_sees_the_reason_once():
    """In a process like that in which a SuperNode runs the client, whatever Flower logs there."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from flwr.supernode.cli.flwr_clientapp import flwr_clientapp\n"
        "from harness import *\n"
        "from flower_kmeans.federation.messages import Enrol\n"
        "document = make_run(min_clients=3).document\n"
        "enrol = Enrol(doc_hash=document.doc_hash, doc=document.data, lead=False)\n"
        "node = Node(3, [[0.5, 0.5]], ClientPolicy(in_memory=True, max_epsilon=0.25))\n"
        "assert node.ask(enrol).code == 3\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "tests" / "support")],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seen = [line for line in (result.stdout + result.stderr).splitlines() if "max_epsilon" in line]
    assert len(seen) == 1
    assert "Expected epsilon <= max_epsilon=0.25. Got 1.0" in seen[0]


def test_a_document_that_the_policy_refuses_is_read_and_nothing_is_computed(monkeypatch, caplog):
    """Placing thousands of centroids takes long, and is never done against a node's policy."""

    def compute(data):
        raise AssertionError("The run was opened.")

    monkeypatch.setattr("flower_kmeans.federation.member.open_run", compute)
    run = make_run("trusted-server")
    node = Node(1, records(), replace(SIMULATED, trusts=("oblivious-server",)))
    code, _ = refused(node, enrolment(run), caplog)
    assert code == Code.POLICY
    assert node.loads == 0
