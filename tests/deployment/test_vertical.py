"""docs/deploy-vertical.md on loopback: two companies that share customers, with real processes."""

import json
import re
import shlex
import time
import tomllib

import faults
import loopback
import numpy as np
import pytest
from checks import NEVER_SEEN, leak_complaints, one_result, server_files
from loopback import ROOT
from stage import kill_server

from flower_kmeans import ClientPolicy
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import spent_epsilon
from flower_kmeans.vertical.costs import costs

APP = ROOT / "simulations" / "vertical"
PAGE = (ROOT / "docs" / "deploy-vertical.md").read_text("utf-8")
N_RECORDS, ROUNDS, DELTA = 5_000, 2, 1e-6
BOUNDS = [(0.0, 1.0), (0.0, 2.0), (0.0, 1.0), (0.0, 1.0)]
CENTERS = np.array([[0.2, 0.5, 0.3, 0.2], [0.8, 1.5, 0.7, 0.8]])
POLICY = {"trusts": ["vertical"], "min_clients": 2, "workers": 1}


def columns_of(widths):
    """Return each party's columns of the same records in two clusters."""
    rng, d = np.random.default_rng(7), sum(widths)
    table = CENTERS[np.arange(N_RECORDS) % 2, :d] + rng.normal(0, 0.05, (N_RECORDS, d))
    table = np.clip(table, 0, [high for _, high in BOUNDS[:d]])
    return np.split(table, np.cumsum(widths)[:-1], axis=1)


def set_up(directory, widths=(2, 1), first_rows=None, app=APP, files=None, **more):
    """Return the deployment of all companies, with the ids of their rows.

    ``files`` are further settings of every node, and ``more`` options of `deployment`.
    """
    for party, first in enumerate(first_rows or [0] * len(widths)):
        ids = directory / f"ids{party}.txt"
        ids.write_text("".join(f"{first + row}\n" for row in range(N_RECORDS)), "utf-8")
    return loopback.deployment(
        directory,
        columns_of(widths),
        BOUNDS[: sum(widths)],
        is_vertical=True,
        app=app,
        policy=POLICY,
        settings={"ids": str(directory / "ids{node}.txt"), **(files or {})},
        patience=180,
        **more,
    )


def settings(timeout, widths=(2, 1), **changes):
    texts = [f"{low:g}:{high:g}" for low, high in BOUNDS]
    ends = np.cumsum(widths)
    bounds = "/".join(
        ",".join(texts[b - w : b]) for w, b in zip(widths, ends, strict=True)
    )
    usual = {
        "n-clients": None,
        "n-clusters": 2,
        "n-records": N_RECORDS,
        "n-rounds": ROUNDS,
    }
    return {**usual, "bounds": bounds, "timeout": timeout, **changes}


def begin_and_wait_for_round_1(running, config):
    """Start a run, and wait until round 1 has ended and the next one works."""
    processes = running.processes
    processes.start("run", running.command(config))
    processes.wait_until(
        lambda: "Round 1/2" in processes.log("run") or processes.ended("run"),
        900,
        "Round 1",
    )
    assert not processes.ended("run"), processes.log("run")


def print_row(name, running, begun):
    """Print a row of the table of faults (docs/tables/deployments.md)."""
    seconds = time.monotonic() - begun
    outcome = faults.outcome_of(running.statuses()[-1], running.processes.log("run"))
    states = [path.parent / "state" for path in running.results]
    charges = "; ".join(f"ε {spent_epsilon(state, DELTA) or 0:.3g}" for state in states)
    print("|", " | ".join([name, "vertical", faults.end_of_flwr(), outcome]), end=" | ")
    print(f"{seconds:.0f} s", charges, sep=" | ", end=" |\n")


def check_charges(directory, parties=2):
    """Check that each ledger charged the run once, and no file of it is left."""
    for slot in range(parties):
        state = directory / f"node{slot}" / "state"
        assert spent_epsilon(state, DELTA) == pytest.approx(1, rel=1e-6)
        work = state / "vertical"
        assert not work.exists() or not list(work.iterdir())


@pytest.mark.claim("deploy-vertical", "both-then-have-centroids")
@pytest.mark.deployment
@pytest.mark.parametrize(
    ("widths", "holders", "trips"),
    [
        pytest.param((2, 1), 1, 6, id="both_parties"),
        pytest.param((1, 1, 1), 1, 7, id="three_one_holder"),
        pytest.param((1, 1, 1), 2, 7, id="three_joint"),
        pytest.param((1, 1, 1, 1), 3, 7, id="four_joint"),
    ],
)
def test_all_parties_learn_the_same_and_the_server_nothing(
    tmp_path, widths, holders, trips
):
    with set_up(tmp_path, widths) as running:
        running.run(settings(300, widths, **{"key-holders": holders}), timeout=1_800)
    assert running.processes.left() == []
    centroids, counts = one_result(running)
    assert matched_centroid_error(centroids, CENTERS[:, : sum(widths)]) < 0.01
    np.testing.assert_allclose(counts, N_RECORDS / 2, atol=N_RECORDS / 20)
    report = json.loads(running.report.read_text("utf-8"))
    assert (report["trust"], report["keys"]) == ("vertical", "roster")
    assert (report["n_rounds"], report["finished"]) == (ROUNDS, True)
    assert report["n_clients"] == len(widths)
    assert (report["round_trips"], report["incidents"]) == (2 * ROUNDS + trips, [])
    assert report["arrays_at_the_server"] == []
    assert report["ledger"] is True
    assert NEVER_SEEN in running.report.with_suffix(".html").read_text("utf-8")
    assert leak_complaints(server_files(running), [centroids, counts]) == []
    check_charges(tmp_path, len(widths))


@pytest.mark.claim("deploy-vertical", "then-run-ends-at")
@pytest.mark.deployment
def test_a_party_that_dies_between_requests_ends_the_run_and_is_named(tmp_path):
    config = settings(120, radius=False)
    with set_up(tmp_path) as running:
        processes = running.processes
        begin_and_wait_for_round_1(running, config)
        processes.kill("supernode1")
        processes.wait("run", 900)
        assert running.statuses()[-1] == "finished:failed"
    assert running.processes.left() == []
    expected = "Expected an answer from party 1 to 'open' in round 2."
    assert expected in processes.log("run")
    report = json.loads(running.report.read_text("utf-8"))
    assert (report["n_rounds"], report["finished"]) == (1, False)
    assert {(each["client"], each["round"]) for each in report["incidents"]} == {(1, 2)}
    assert not any(path.exists() for path in running.results)
    check_charges(tmp_path)


@pytest.mark.deployment
def test_an_undisturbed_run_to_compare_with(tmp_path):
    with set_up(tmp_path) as running:
        begun = time.monotonic()
        running.run(settings(120, radius=False), timeout=1_800)
        print_row("undisturbed", running, begun)
    check_charges(tmp_path)


@pytest.mark.claim("deploy-vertical", "partys-process-dies-repeated")
@pytest.mark.deployment
@pytest.mark.parametrize("party", [0, 1])
def test_a_party_that_is_killed_and_started_again_goes_on(tmp_path, party):
    with set_up(tmp_path) as running:
        processes, begun = running.processes, time.monotonic()
        begin_and_wait_for_round_1(running, settings(120, radius=False))
        processes.kill(f"supernode{party}")
        processes.keep(f"supernode{party}")
        processes.restart(f"supernode{party}")
        processes.wait("run", 900)
        print_row(f"party {party} killed", running, begun)
        assert running.statuses()[-1] == "finished:completed", processes.log("run")
    assert running.processes.left() == []
    centroids, _ = one_result(running)
    assert matched_centroid_error(centroids, CENTERS[:, :3]) < 0.01
    check_charges(tmp_path)


@pytest.mark.claim("deploy-vertical", "partys-process-dies-repeated")
@pytest.mark.deployment
def test_a_server_that_is_killed_goes_on_and_costs_one_charge(tmp_path):
    config = settings(120, radius=False, resume=str(tmp_path / "kept"))
    with set_up(tmp_path) as running:
        processes, begun = running.processes, time.monotonic()
        begin_and_wait_for_round_1(running, config)
        kill_server(processes)
        processes.wait("run", 900)
        print_row("server killed", running, begun)
        assert running.statuses()[-1] == "finished:failed"
        resumed = time.monotonic()
        processes.start("run2", running.command(config))
        processes.wait("run2", 900)
        print_row("and resumed", running, resumed)
        assert running.statuses()[-1] == "finished:completed", processes.log("run2")
    assert running.processes.left() == []
    report = json.loads(running.report.read_text("utf-8"))
    assert report["resumptions"] == 1
    centroids, _ = one_result(running)
    assert matched_centroid_error(centroids, CENTERS[:, :3]) < 0.01
    check_charges(tmp_path)


@pytest.mark.claim("deploy-vertical", "partys-process-dies-repeated")
@pytest.mark.deployment
def test_rows_that_differ_end_the_run_before_anybody_is_charged(tmp_path):
    with set_up(tmp_path, first_rows=[0, 1]) as running:
        begun = time.monotonic()
        running.processes.start("run", running.command(settings(120)))
        running.processes.wait("run", 900)
        print_row("rows differ", running, begun)
        assert running.statuses()[-1] == "finished:failed"
    assert "Expected an answer from party 0 to 'ids'." in running.processes.log("run")
    # the server is not told why
    assert "have other rows" in running.processes.log("supernode0")
    assert not any(path.exists() for path in running.results)
    for slot in range(2):
        assert spent_epsilon(tmp_path / f"node{slot}" / "state", DELTA) in (None, 0)


# --------------------------------------------------------------------------- the page


@pytest.mark.claim("deploy", "commands-these-pages-write")
def test_the_pages_words_are_those_that_run(tmp_path):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines()
    ]
    documented = [shlex.split(line) for line in lines]
    settings = {
        "data": "/srv/own.csv",
        "policy-file": "/srv/node/policy.toml",
        "result": "/srv/result.npz",
        "ids": "/srv/ids.txt",
    }
    node = loopback.supernode_command("node", "link.example.org:8000", 9094, settings)
    assert node in documented
    assert loopback.check_command("/srv/node/policy.toml", "/srv/own.csv") in documented
    config = {
        "report": "/srv/report.json",
        "roster": "/srv/roster.toml",
        "n-records": 10_000,
    }
    assert loopback.run_command("simulations/vertical", config) in documented
    known = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"][
        "app"
    ]
    assert set(config) <= set(known["config"])
    assert known["config"]["bounds"] in PAGE


@pytest.mark.claim("deploy", "commands-these-pages-write")
def test_the_pages_policy_is_read_and_pins_one_partys_columns(tmp_path):
    limits = {"min_clients": 2, "max_opened": 100, "work_dir": "/srv/work"}
    limits["rows_key_file"] = "rows.key"
    changed = {"trusts": ["vertical"], **limits, "columns": ["income", "age"]}
    text = loopback.policy_text([(0.0, 80_000.0), (18.0, 100.0)], changed, "bank")
    assert text in PAGE
    path = tmp_path / "policy.toml"
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    policy = ClientPolicy.from_file(path)
    assert (policy.trusts, policy.columns) == (("vertical",), ("income", "age"))


@pytest.mark.claim("deploy", "commands-these-pages-write")
def test_the_pages_figures_are_those_of_the_plan():
    rows = re.findall(
        r"^\| (?!with a radius|-)(.*) \|$", PAGE.split("## What it takes")[1], re.M
    )
    cells = [[cell.strip() for cell in row.split("|")] for row in rows[:6]]
    found = np.array([[float(cell.split()[0]) for cell in row[1:]] for row in cells])
    expected = []
    for k in (2, 5, 8):
        near, all_records = (
            costs(k, (2, 2), 16_384, 1, 1, radius=r) for r in (True, False)
        )
        sizes = [near.key_bytes / 1e6, near.column_bytes / 1e6, near.disk / 1e6]
        expected.append(
            [near.memory, *sizes, near.step_seconds, all_records.step_seconds]
        )
    np.testing.assert_allclose(found, np.transpose(expected), rtol=0.1)
