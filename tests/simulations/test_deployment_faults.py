"""Faults on real deployments, and that the checks which judge them can fail."""

import base64
from functools import partial

import numpy as np
import pytest
from deployments import FOLDER, load_script
from ledger_workers import answer_of, charge, gaussian_plan

from flower_kmeans.privacy.ledger import Ledger, Limit
from flower_kmeans.privacy.randomness import token

NAMES = (
    "client-raises",
    "client-killed",
    "slow-client",
    "supernode-killed",
    "supernode-late",
    "stale-messages",
    "superlink-killed",
    "network-silent",
    "network-refused",
)
DELTA = 1e-6


@pytest.fixture
def scripts(monkeypatch):
    return partial(load_script, monkeypatch)


@pytest.fixture
def checks(scripts):
    return scripts("fault_checks")


@pytest.mark.deployment
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_costs_nothing_but_time(scripts, tmp_path, name):
    outcome = scripts("faults").run_fault(name, tmp_path)
    assert outcome.complaints == []


def test_every_fault_is_tested(scripts):
    assert {"undisturbed", *NAMES} == set(scripts("fault_runs").FAULTS)


# --------------------------------------------------------------------------- masks


def sent(node, ctx, words):
    words = np.asarray(words, dtype="<u8").tobytes()
    return {"node": node, "ctx": ctx, "words": base64.b64encode(words).decode()}


def mask(length=10):
    return np.frombuffer(token(8 * length), "<u8")


def test_fresh_masks_pass(checks):
    lines = [sent(node, f"c{t}", mask()) for node in range(3) for t in range(4)]
    assert checks.mask_complaints([*lines, lines[5]]) == []  # the same bytes again are nothing new
    assert checks.n_ciphertexts([*lines, lines[5]]) == (13, 12)


def test_another_answer_in_one_context_is_found(checks):
    lines = [sent(1, "c", mask()), sent(2, "c", mask()), sent(1, "c", mask())]
    assert checks.mask_complaints(lines) == ["node 1 sent 2 ciphertexts in one context"]


@pytest.mark.parametrize(("node", "ctx"), [(1, "d"), (2, "c"), (2, "d")])
def test_a_mask_used_twice_is_found(checks, node, ctx):
    rng = np.random.default_rng(0)
    once, again = (rng.integers(0, 2**40, 10).astype(np.uint64) for _ in range(2))
    one = mask()
    lines = [sent(1, "c", once + one), sent(node, ctx, again + one), sent(0, "e", mask())]
    assert checks.mask_complaints(lines) == ["two ciphertexts share a mask"]
    lines[1] = sent(node, ctx, again + mask())
    assert checks.mask_complaints(lines) == []


def test_answers_without_a_mask_are_found(checks):
    rng = np.random.default_rng(0)
    lines = [sent(0, f"c{i}", rng.integers(0, 2**40, 10).astype(np.uint64)) for i in range(12)]
    assert "the bytes of the ciphertexts are not uniform" in checks.mask_complaints(lines)
    assert checks.mask_complaints([]) == ["there is no ciphertext"]


# --------------------------------------------------------------------------- ledgers and files


def test_a_ledger_that_charged_twice_is_found(checks, tmp_path):
    plan = gaussian_plan(rounds=2)
    states = [tmp_path / name for name in ("good", "twice", "again")]
    answers = {
        "good": [answer_of(t=1), answer_of(t=1), answer_of(t=2)],
        "twice": [answer_of(run=1), answer_of(run=2)],
        "again": [answer_of(t=1), answer_of(t=1, attempt=2, member=2)],
    }
    for state in states:
        with Ledger(state) as ledger:
            for answer in answers[state.name]:
                charge(ledger, answer, plan, Limit(100.0, DELTA))
    epsilon = plan.epsilon()
    assert checks.ledger_complaints(states[:1], 1, epsilon, DELTA) == []
    found = checks.ledger_complaints([*states, tmp_path / "none"], 1, epsilon, DELTA)
    assert [text.split(" is charged")[0] for text in found] == [
        "node 1 charged 2 runs instead of 1",
        "node 1",
        "node 2 answered a round as 2 members",
        "node 2",
        "node 3 charged 0 runs instead of 1",
        "node 3",
    ]
    assert checks.ledger_complaints(states[1:2], 2, epsilon, DELTA) == []


def test_what_must_not_be_in_a_file_is_found(checks, tmp_path):
    result, clean = tmp_path / "result.npz", tmp_path / "clean.log"
    np.savez(result, centroids=np.array([[0.123456789, 2.5e-3]]), counts=np.array([1.0]))
    clean.write_text("nothing")
    records = [np.array([[1.23456789, 9.87654321]])]
    leaks = {
        "bytes": np.float64(0.123456789).tobytes(),
        "digits": b"centroid 0.0025 here",
        "record": b"[9.87654321]",
        "text": b"RuntimeError: secret",
    }
    for name, content in leaks.items():
        (tmp_path / name).write_bytes(content)
    files = [clean, *(tmp_path / name for name in leaks)]
    assert checks.leak_complaints(files, [result], records, ["secret"]) == [
        f"{name} holds 1 values that it must not hold" for name in leaks
    ]


def test_results_that_differ_lack_or_are_wrong_are_found(checks, scripts, tmp_path):
    partitions = scripts("loopback").example_partitions()
    centers = np.array([[-7.0, -7.0], [7.0, -6.0], [0.0, 8.0]])
    results = [tmp_path / f"{i}.npz" for i in range(3)]
    for path in results[:2]:
        np.savez(path, centroids=centers, counts=np.ones(3))
    assert checks.result_complaints(results, [0, 1], partitions) == []
    assert checks.result_complaints(results, [2], partitions) == ["node 2 has no result"]
    np.savez(results[2], centroids=centers + 1e-9, counts=np.ones(3))
    assert checks.result_complaints(results, [], partitions) == ["nodes have different results"]
    for path in results:
        np.savez(path, centroids=centers + 1, counts=np.ones(3))
    (complaint,) = checks.result_complaints(results, [], partitions)
    assert "away from the non-private solution" in complaint


# --------------------------------------------------------------------------- the table


def test_the_table_sets_faults_beside_undisturbed_runs(scripts):
    faults = scripts("faults")
    plain = faults.Outcome("undisturbed", "1.0, gRPC", ["finished:completed"], [60.0])
    failed = faults.Outcome(
        "superlink-killed",
        "1.0, gRPC",
        ["finished:failed", "finished:completed"],
        [31.0, 64.4],
        complaints=["node 1 has no result"],
    )
    lines = faults.table([plain, failed]).splitlines()
    assert [line.count("|") for line in lines] == [lines[0].count("|")] * 4
    assert "| failed, then completed | 31 + 64 (60) | nobody |" in lines[3]
    assert lines[3].endswith("| FAILED: node 1 has no result |")
    assert lines[2].endswith("| passed |")


def test_an_unknown_fault_is_an_error(scripts, capsys):
    with pytest.raises(SystemExit):
        scripts("faults").main(["--faults", "earthquake"])
    assert "earthquake" in capsys.readouterr().err


def test_the_app_under_test_is_the_deployments_own(scripts, tmp_path):
    app = scripts("faults")._hooked_app(tmp_path / "app")
    for file in (FOLDER / "app").glob("*.py"):
        assert (app / file.name).read_bytes() == file.read_bytes()
    project = (app / "pyproject.toml").read_text("utf-8")
    assert 'serverapp = "server_hooks:app"' in project
    assert 'clientapp = "client_hooks:app"' in project
    assert project.endswith("\nreplay = 0\nttl = 0.0\n")
