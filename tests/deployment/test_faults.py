"""Faults on real deployments, and that the checks which judge them can fail."""

import base64
import json

import checks
import faults
import loopback
import numpy as np
import pytest
import stage as stages
from disks import SmallDisk
from ledger_workers import answer_of, charge, gaussian_plan

from flower_kmeans.privacy.ledger import Ledger, LifetimeLimit
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.privacy.randomness import token

pytestmark = pytest.mark.claim("deploy", "all-this-was-measured")

DELTA = 1e-6


@pytest.mark.claim("deploy", "superlink-dies-same-database")
@pytest.mark.deployment
@pytest.mark.parametrize("trust", faults.TRUSTS)
@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_costs_nothing_but_time(tmp_path, name, trust):
    if faults.FAULTS[name].needs_mount and not SmallDisk.can_be_made():
        pytest.skip("A small file system can be mounted by root on Linux only.")
    assert faults.run_fault(name, tmp_path, trust) == []


# -------------------------------------------------------------------------- ciphertexts


def sent(node, words, t=1, attempt=1, kind="ask"):
    """Return the line of a protected answer, or of a sum-share."""
    data = base64.b64encode(np.asarray(words, dtype="<u8").tobytes()).decode()
    line = {"node": node, "run": "ab" * 32, "kind": kind, "t": t, "attempt": attempt}
    return {**line, "words": data}


def mask(length=10):
    return np.frombuffer(token(8 * length), "<u8")


def test_fresh_masks_pass():
    lines = [sent(node, mask(), t) for node in range(3) for t in range(4)]
    lines += [sent(node, mask(), t, kind="add") for node in range(3) for t in range(4)]
    # The same bytes again are nothing new.
    assert checks.secrecy_complaints([*lines, lines[5]]) == []
    assert checks.n_ciphertexts([*lines, lines[5]]) == (25, 24)


def test_bytes_that_are_no_whole_words_are_compared_too():
    lines = [sent(node, mask()) for node in range(3)]
    for line in lines:
        line["words"] = base64.b64encode(base64.b64decode(line["words"])[:-3]).decode()
    assert checks.secrecy_complaints(lines) == []
    lines[1]["words"] = lines[0]["words"]
    assert "two ciphertexts share a mask" in checks.secrecy_complaints(lines)


@pytest.mark.parametrize(
    ("attempts", "kind", "place"), [([1, 1, 2], "ask", "ask 1"), ([1, 2], "add", "add")]
)
def test_a_second_answer_or_sum_share_is_found(attempts, kind, place):
    lines = [sent(1, mask(), attempt=n, kind=kind) for n in attempts] + [
        sent(2, mask())
    ]
    found = f"node 1 sent 2 ciphertexts for {place} of round 1 of run abababab"
    assert checks.secrecy_complaints(lines) == [found]


@pytest.mark.parametrize(("node", "t"), [(1, 2), (2, 1), (2, 2)])
def test_a_mask_used_twice_is_found(node, t):
    rng = np.random.default_rng(0)
    once, again = (rng.integers(0, 2**40, 10).astype(np.uint64) for _ in range(2))
    one = mask()
    lines = [sent(1, once + one), sent(node, again + one, t), sent(0, mask())]
    assert checks.secrecy_complaints(lines) == ["two ciphertexts share a mask"]
    lines[1] = sent(node, again + mask(), t)
    assert checks.secrecy_complaints(lines) == []


def test_answers_without_a_mask_are_found():
    rng = np.random.default_rng(0)
    lines = [
        sent(0, rng.integers(0, 2**40, 10).astype(np.uint64), t) for t in range(12)
    ]
    assert "the bytes of the ciphertexts are not uniform" in checks.secrecy_complaints(
        lines
    )
    assert checks.secrecy_complaints([]) == ["there is no ciphertext"]


# -------------------------------------------------------------------- ledgers and files


def test_a_ledger_that_charged_twice_is_found(tmp_path):
    plan = gaussian_plan(rounds=2)
    states = [tmp_path / name for name in ("good", "twice")]
    answers = {
        "good": [
            answer_of(t=1),
            answer_of(t=1),
            answer_of(t=1, attempt=2),
            answer_of(t=2),
        ],
        "twice": [answer_of(run=1), answer_of(run=2)],
    }
    for state in states:
        with Ledger(state) as ledger:
            for answer in answers[state.name]:
                charge(ledger, answer, plan, LifetimeLimit(100.0, DELTA))
    with Ledger(states[0]) as ledger:
        ledger.save(bytes([9]) * 32, 0, b"an enrolment alone is no charge")
    epsilon = plan.epsilon()
    assert checks.ledger_complaints(states[:1], 1, epsilon, DELTA) == []
    found = checks.ledger_complaints([*states, tmp_path / "none"], 1, epsilon, DELTA)
    assert [text.split(" is charged")[0] for text in found] == [
        "node 1 charged 2 runs instead of 1",
        "node 1",
        "node 2 charged 0 runs instead of 1",
        "node 2",
    ]
    assert checks.ledger_complaints(states[1:2], 2, epsilon, DELTA) == []
    assert checks.charged(states[1], DELTA)[0] == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / FILE_NAME).touch()
    assert checks.charged(empty, DELTA) == (0, 0.0)


def test_what_must_not_be_in_a_file_is_found(tmp_path):
    clean = tmp_path / "clean.log"
    clean.write_text("nothing but 0.0")
    centroids = np.array([[0.123456789, 2.5125e-3, 0.0], [0.5, 0.25, 1.0]])
    records = np.array([[1.23456789, 9.87654321]])
    leaks = {
        "bytes": np.float64(0.123456789).tobytes(),
        "digits": b"centroid 0.0025125 here",
        "record": b"[9.87654321]",
        "text": b"RuntimeError: secret",
        "row": np.array([0.5, 0.25, 1.0]).tobytes(),
        "column": np.array([0.0, 1.0]).tobytes(),
    }
    for name, content in leaks.items():
        (tmp_path / name).write_bytes(content)
    files = [clean, *(tmp_path / name for name in leaks)]
    assert checks.leak_complaints(files, [centroids, records], ["secret"]) == [
        f"{name} holds 1 values that it must not hold" for name in leaks
    ]


def test_results_that_differ_lack_or_are_wrong_are_found(tmp_path):
    partitions = loopback.example_partitions()
    centers = np.array([[-7.0, -7.0], [7.0, -6.0], [0.0, 8.0]])
    results = [tmp_path / f"{i}.npz" for i in range(3)]
    for path in results[:2]:
        np.savez(path, centroids=centers, counts=np.ones(3))
    assert checks.result_complaints(results, [0, 1], partitions) == []
    assert checks.result_complaints(results, [2], partitions) == [
        "node 2 has no result"
    ]
    np.savez(results[2], centroids=centers + 1e-9, counts=np.ones(3))
    assert checks.result_complaints(results, [], partitions) == [
        "nodes have different results"
    ]
    for path in results:
        np.savez(path, centroids=centers + 1, counts=np.ones(3))
    (complaint,) = checks.result_complaints(results, [], partitions)
    assert "away from the non-private solution" in complaint


# --------------------------------------------------------------------- what faults show


LEDGER = 10


class Logs:
    """The processes of a deployment, of which nothing is left but their logs."""

    def __init__(self, logs):
        self.log = logs.__getitem__


@pytest.fixture
def stage(tmp_path):
    """Return three nodes after two runs that all of them answered."""
    results = tuple(tmp_path / f"node{i}" / "result.npz" for i in range(3))
    logs = dict.fromkeys(
        ("run1", "run2"), "ServerApp raised an exception: the disk is full"
    )
    running = loopback.Deployment(
        tmp_path,
        Logs(logs),
        "",
        "",
        results,
        tmp_path / "report.json",
        tmp_path,
        tmp_path,
    )
    made = stages.Stage(running, 60.0, runs={1: 9.0, 2: 9.0}, _begun={1: 0.0, 2: 0.0})
    for n in made.runs:
        report(made, n)
    for i in range(3):
        made.hooks(i).mkdir()
    return made


def report(stage, n, answers=(3, 3, 3, 3), finished=True, nodes=()):
    """Write the report of a run, with incidents of these nodes."""
    incidents = [{"node_id": node, "reason": ""} for node in nodes]
    content = {"answers": list(answers), "finished": finished, "incidents": incidents}
    stage.report(n).write_text(json.dumps(content), "utf-8")


def said(stage, node, *lines):
    """Write what a node was asked, and with which code it refused: pairs of round and code."""
    made = [
        {"node": 77, "kind": kind, "t": t, "code": code, "words": ""}
        for kind, t, code in lines
    ]
    stage.hooks(node).mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in made)
    (stage.hooks(node) / "sent.jsonl").write_text(text, "utf-8")


def test_a_round_that_lacks_an_answer_is_found_in_every_run(stage):
    assert faults._all_answered(stage) == []
    report(stage, 1, [3, 2, 3, 3], finished=False)
    assert faults._all_answered(stage) == []
    report(stage, 1, [3, 2, 3, 3])
    assert faults._all_answered(stage) == ["answers [[3, 2, 3, 3], [3, 3, 3, 3]]"]
    for n in (1, 2):
        report(stage, n, finished=False)
    assert faults._all_answered(stage) == ["answers []"]


def test_an_outsider_that_took_part_or_was_not_named_is_found(stage):
    stage.outsiders.append("junk")
    said(stage, "junk", ("enrol", 0, 0))
    report(stage, 2, nodes=[77])
    assert faults._kept_out(stage) == []
    report(stage, 2, nodes=[78])
    assert faults._kept_out(stage) == ["the report does not have junk"]
    said(stage, "junk", ("enrol", 0, 0), ("ask", 1, 0))
    assert faults._kept_out(stage) == ["junk was asked ['enrol', 'ask']"]
    said(stage, "junk")
    assert faults._kept_out(stage) == ["junk was asked []"]


def test_an_answer_of_a_node_with_a_full_disk_is_found(stage):
    said(stage, stages.VICTIM, ("enrol", 0, LEDGER))
    assert faults._refused_by_ledger(stage) == []
    said(stage, stages.VICTIM, ("enrol", 0, LEDGER), ("ask", 1, 0))
    assert faults._refused_by_ledger(stage) != []
    codes = [("ask", t, code) for t, code in enumerate([0, LEDGER, LEDGER, 0], 1)]
    said(stage, stages.VICTIM, *codes)
    assert faults._refused_while_full(stage) == []
    said(stage, stages.VICTIM, *codes, ("ask", 2, 0))
    assert faults._refused_while_full(stage) != []


def test_a_run_that_does_not_say_that_the_disk_is_full_is_found(stage):
    assert faults._says_why(stage) == []
    stage.running.processes.log = {
        "run1": "flower_kmeans.errors.RunError: the disk is full",
        "run2": "-",
    }.get
    assert faults._says_why(stage) == ["run 2 does not say that the disk is full"]


def test_the_sentence_of_an_error_is_found_on_both_ends_of_flwr():
    new = (
        "a\nERROR : ServerApp raised an exception: The disk is full. Stop.\n"
        "ERROR: Exit Code: 201\n"
    )
    old = "Traceback\nValueError: one\nflower_kmeans.errors.RunError: The disk is full. Stop.\n\nb"
    assert faults.error_of(new) == faults.error_of(old) == "The disk is full. Stop."
    assert faults.error_of("no error here\n") == ""
    assert (
        faults.outcome_of("finished:failed", new) == "failed (The disk is full. Stop.)"
    )
    assert faults.outcome_of("finished:failed", "") == "failed"
    assert faults.outcome_of("finished:completed", new) == "completed"


def test_two_runs_with_other_results_at_a_node_are_found(stage):
    centers = np.array([[-7.0, -7.0], [7.0, -6.0], [0.0, 8.0]])
    for i in range(3):
        for name in ("result-1.npz", "result-2.npz"):
            np.savez(stage.hooks(i) / name, centroids=centers, counts=np.ones(3))
    assert faults._both_ran(stage) == []
    np.savez(
        stage.hooks(1) / "result-2.npz", centroids=centers + 1e-9, counts=np.ones(3)
    )
    assert faults._both_ran(stage) == ["nodes have different results"]
    (stage.hooks(1) / "result-2.npz").unlink()
    assert faults._both_ran(stage) == ["a node lacks a result of one of two runs"]


def test_the_app_under_test_is_the_deployments_own(tmp_path):
    app = loopback.hooked_app(tmp_path / "app", faults.HOOKS, faults.SETTINGS)
    for file in (loopback.APP).glob("*.py"):
        assert (app / file.name).read_bytes() == file.read_bytes()
    project = (app / "pyproject.toml").read_text("utf-8")
    assert 'serverapp = "server_hooks:app"' in project
    assert 'clientapp = "client_hooks:app"' in project
    assert project.endswith("\nreplay = 0\nttl = 0.0\n")
