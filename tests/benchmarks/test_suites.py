"""The scripts that measure time, memory and bytes: each measures a small task and shows it."""

import csv
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from scripts import ROOT
from suites import cells, measured

from bench.harness import Options, plan_of
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.vertical.costs import costs

pytestmark = pytest.mark.claim("tables/papers", "vertical-k-means-has")

# Tasks that go into one line of the first table each, and measures that must be
# positive.
SMALL = {
    "client_step": [(3_000, 4, 3, 0)],
    "load": [("oblivious-server", 5, 3, 0), ("clients-only", 5, 3, 0)],
    "noise": [
        ("3x4", "rounded-gaussian/1", 2, 0),
        ("3x4", "discrete-gaussian/2", 2, 0),
    ],
    "removal": [("PEMeans", 3, 0)],
    "scaling": [("clients", 300, 2, 3, 4, 0)],
    "sums": [(5, 8, "masks", 0), (5, 8, "shares", 0)],
    "update": [("FastLloyd", 4, 2, 0), ("SynopsisKMeans", 4, 2, 0)],
}
TIMED = {
    "client_step", "fit", "load", "noise", "ray_clients", "ray_load", "ray_round", "removal",
    "scaling", "sums", "update", "vertical",
}  # fmt: skip
FRESH = {"load", "ray_clients", "ray_load", "ray_round", "vertical"}


@pytest.mark.claim("benchmarks", "plots-adds-figures-alone")
@pytest.mark.parametrize("name", sorted(TIMED))
def test_time_is_measured_by_one_process_and_memory_by_a_new_one(script, name):
    suite = script(name).SUITE
    assert (suite.alone, suite.fresh) == (True, name in FRESH)
    assert {task.run for task in plan_of(suite, Options(2)).tasks} == {0, 1}


# `test_a_shared_sum_sends_a_part_to_each_member` measures it with fewer repetitions.
LONG = {"sums"}
SMALL_CASES = [
    pytest.param(name, marks=[pytest.mark.thorough] if name in LONG else [])
    for name in SMALL
]


@pytest.mark.parametrize("name", SMALL_CASES)
def test_a_small_task_is_measured_and_shown(script, name):
    module = script(name)
    rows = measured(module.SUITE, [module.Task(*values) for values in SMALL[name]])
    for row in rows:
        assert row.keys() == module.SUITE.columns.keys()
        assert all(
            value is None or value >= 0 for value in map(row.get, module.SUITE.measures)
        )
    assert len(cells(module.tables_of(rows, Options(1)))) == len(rows)


def test_of_several_runs_the_shortest_is_shown(script):
    scaling = script("scaling")
    row = vars(scaling.Task(*SMALL["scaling"][0]))
    rows = [
        {**row, "run": run, "total": t, "round": t / 16}
        for run, t in enumerate((9.0, 4.0))
    ]
    (line,) = cells(scaling.tables_of(rows, Options(1)))
    assert line[5:] == ["4.00", "2.25", "250.0", "1.00", "62.50"]
    assert len(plan_of(scaling.SUITE, Options(1)).tasks) == 3 + 4 + 4 + 4 + 2


def test_noise_is_drawn_at_the_scale_of_the_row(script, monkeypatch):
    noise, asked = script("noise"), []
    spied = {
        name: lambda values, stream, draw=draw: (
            asked.append(values) or draw(values, stream)
        )
        for name, draw in noise.SAMPLERS.items()
    }
    monkeypatch.setattr(noise, "SAMPLERS", spied)
    measured(noise.SUITE, [noise.Task("3x4", name, 2, 0) for name in spied])
    for values, name in zip(asked[::2], spied, strict=True):
        scale = 16.0 if name.startswith("discrete") else 4.0  # a variance, or a scale
        np.testing.assert_array_equal(values, np.full(15, scale))


def test_fits_are_of_the_strategies_and_trust_models_of_their_names(
    script, monkeypatch
):
    fit = script("fit")
    data = fit.Data("small", np.random.default_rng(0).uniform(-0.5, 0.5, (400, 2)), 2)
    monkeypatch.setattr(fit, "in_ball", lambda name, options: data)
    tasks = [fit.Task(fit.SMALL, name, 0) for name in fit.FITS if name[0] in "KF"]
    rows = measured(fit.SUITE, tasks)
    assert [line[2] for line in cells(fit.tables_of(rows, Options(1)))] == ["", "8"]
    names = [
        task.fit
        for task in plan_of(fit.SUITE, Options(1)).tasks
        if task.data == fit.LARGE
    ]
    assert names == [name for name in fit.FITS if "PEMeans" not in name]
    for name in fit.FITS[1:]:
        strategy = fit.strategy_of(name, data)
        assert f"{type(strategy).__name__}, {strategy.trust}" == name


@pytest.mark.claim("tables/deployments", "last-column-adds-up")
def test_every_message_of_a_run_is_weighed_by_round_trip(script):
    size = script("weighing").Size(4, clusters=3, columns=2, rounds=2)
    grid = size.over(size.fastlloyd(lambda info: None, "oblivious-server"))
    numbers = {"enrol": 4, "keys": 3, "ask 1": 4, "ask 2": 4, "finish": 4}
    for weighed in (grid.asked, grid.answered):
        assert {name: len(sizes) for name, sizes in weighed.items()} == numbers
        assert all(min(sizes) > 0 for sizes in weighed.values())
    assert size.reply == 8 * (3 * (2 + 1) + 1)
    assert size.reply < min(grid.answered["ask 2"]) < size.reply + 200


def test_noise_beyond_the_plan_costs_keys_and_the_drawing_of_parts(script, monkeypatch):
    module = script("removal")
    best = module.seconds
    monkeypatch.setattr(module, "seconds", lambda call, times=3: best(call, 3))
    (row,) = measured(module.SUITE, [module.Task("PEMeans", 20, 0)])
    assert row["parts"] > 0
    assert row["factor"] < row["added_factor"]
    assert row["bytes"] > 1
    assert row["server"] > row["server_whole"]


def test_a_shared_sum_sends_a_part_to_each_member(script, monkeypatch):
    module = script("sums")
    best = module.best
    monkeypatch.setattr(module, "best", lambda action: best(action, 0.0))
    tasks = [module.Task(5, 8, kind, 0) for kind in module.KINDS]
    masks, shares = measured(module.SUITE, tasks)
    assert masks["sent"] == 8 * 8
    assert masks["member"] is None
    assert shares["held"] == 5 * shares["sent"] == 5 * shares["received"]
    assert shares["sent"] > masks["sent"]
    table = module.tables_of([masks, shares], Options(1))
    assert cells(table)[1][-1] == f"{shares['sent'] / masks['sent']:.1f}"


def test_messages_of_second_moments_are_the_largest(script):
    module = script("message_sizes")
    rows = measured(module.SUITE, [module.Task("feddp", "trusted-server", 40)])
    answered = module.trips_of(rows[0]["answered"])
    assert list(answered) == ["enrol", "ask 1", "ask 2", "ask 3", "ask 4", "finish"]
    largest = max(answered.values())
    assert answered["ask 1"] == largest
    assert 0 < largest - 4 * 40 * 41 < 1_000
    table = cells(module.tables_of(rows, Options(1)).split("\n\n")[1])
    assert ["ask 1", largest] == [table[1][0], int(table[1][2].replace(",", ""))]


@pytest.mark.thorough
def test_messages_of_vertical_runs_are_weighed(script):
    module = script("message_sizes")
    (row,) = measured(module.SUITE, [module.Task("vertical", "2 2 1", 1)])
    assert {"enrol", "keys", "step", "open"} <= module.trips_of(row["asked"]).keys()
    assert 0 < row["sent"] - row["planned"] < 1_000
    assert "2 parties, 1 with the key" in module.tables_of([row], Options(1))


def test_clips_are_factors_of_the_default(script, monkeypatch):
    module = script("clips")
    monkeypatch.setattr(module, "N_SMALL", 20)
    case = module.mixture(0, 20)
    options = Options(1, data=("mixture",))
    tasks = list(module.tasks_of(options))
    assert {task.factor for task in tasks} == {*module.FACTORS}
    for method, names in (
        (module.PE_VOTES, {"votes"}),
        (module.PE_LIFT, {"lift-sums", "lift-counts"}),
    ):
        one, two = (
            dict(module.strategy_of(case, task).clips)
            for task in tasks
            if (task.method, task.setting) == (method, "clients")
            and task.factor in (1.0, 2.0)
        )
        assert {name for name in one if two[name] != one[name]} == names
        assert all(two[name] == 2 * one[name] for name in names)


def test_a_loss_over_the_least_is_shown_by_clip(script, monkeypatch):
    module = script("clips")
    monkeypatch.setattr(module, "N_SMALL", 20)
    monkeypatch.setitem(module.parts_of.__globals__, "N_SMALL", 20)
    monkeypatch.setattr(module, "case_of", lambda *_: module.mixture(0, 20))
    tasks = [
        module.Task("mixture", "clients", module.SYNOPSIS, 50.0, factor, 0)
        for factor in (1.0, 2.0)
    ]
    rows = measured(module.SUITE, tasks)
    assert all(row["ratio"] > 1 for row in rows)
    assert len(cells(module.tables_of(rows, Options(1)))) == 1


@pytest.mark.claim("tables/deployments", "last-column-adds-up")
def test_round_trips_of_every_trust_model(script):
    module = script("load")
    tasks = [module.Task(trust, 5, 2, 0) for trust in module.TRUSTS]
    assert {row["trust"]: row["trips"] for row in measured(module.SUITE, tasks)} == {
        "trusted-server": 2 + 2,
        "oblivious-server": 2 + 3,
        "distributed-noise": 2 * 2 + 2,
        "clients-only": 2 * 2 + 2,
    }
    assert {*module.TRUSTS} == {*TRUST_MODELS} - {"plain", "vertical"}
    table = cells(
        script("round_trips").show("waiting by", {"own polling": [3.0, 6.2, 6.1]})
    )
    assert table == [["own polling", "6.10", "3.00", "6.20"]]


# by default tests/strategies/test_vertical.py compares the bytes of a run
@pytest.mark.thorough
def test_bytes_of_vertical_runs_are_the_planned(script, monkeypatch):
    vertical = script("vertical")
    # its processes import it by name
    monkeypatch.setitem(sys.modules, "vertical", vertical)
    (row,) = measured(vertical.SUITE, [vertical.Task(2, False, 1, 1, 0)])
    assert row["peak"] > 10 * row["relin_bytes"]
    assert len(cells(vertical.tables_of([row], Options(1)).split("\n\n")[0])) == 1
    planned, seals = costs(2, (1, 1), 16_384, 1, 1), 16
    assert row["public_bytes"] + row["relin_bytes"] + 2 * seals == planned.key_bytes
    assert row["column_bytes"] + seals == planned.column_bytes
    assert row["c1_bytes"] + row["share_bytes"] + 2 * seals == planned.round_bytes


def test_losses_of_vertical_runs(script, monkeypatch):
    loss = script("vertical_loss")
    monkeypatch.setattr(loss, "MADE", ("synth_2000_3_2",))
    options = Options(1, data=loss.MADE, only=(("rounds", ("2",)),))
    rows = measured(loss.SUITE, loss.SUITE.tasks(options))
    assert {row["method"] for row in rows} == set(loss.METHODS)
    assert all(0 < row["loss"] < 1 and 0 < row["accuracy"] <= 1 for row in rows)
    first, second = loss.tables_of(rows, Options(1)).split("\n\n")
    assert len(cells(first)) == 1
    ((_, _, _, *compared, one),) = cells(second)
    for method, cell in zip(loss.METHODS, compared, strict=True):
        ratio, lost = map(float, cell.split("; "))
        (row,) = [row for row in rows if row["method"] == method]
        assert ratio == pytest.approx(row["ratio"], abs=0.001)
        assert lost == pytest.approx((ratio - 1) / (float(one) - 1), abs=0.01)
    labels = np.array([5, 5, 5, 7, 7, 9])
    assert loss.accuracy(labels, np.array([1, 1, 0, 0, 0, 2])) == pytest.approx(5 / 6)
    assert loss.accuracy(labels, np.zeros(6, dtype=np.int64)) == pytest.approx(3 / 6)


def test_a_larger_epsilon_has_less_noise(script):
    loss = script("vertical_loss")
    found = {}
    for epsilon in (0.25, 5.0):
        task = loss.Task("sklearn-iris", "sums", epsilon, 5, 0)
        found[epsilon] = loss.measure(task, Options(1))["loss"]
    assert found[5.0] < found[0.25]


def test_planned_costs_of_vertical_runs(script):
    """Bytes are those of the plan; more parties and columns send more."""
    plan = script("vertical_plan")
    rows = measured(plan.SUITE, plan.SUITE.tasks(Options(1)))
    by_parties = {
        row["parties"]: row["n_bytes"]
        for row in rows
        if row["part"] == "parties" and row["data"] == "loan"
    }
    assert list(by_parties) == [2, 4, 8, 16]
    assert sorted(by_parties.values()) == list(by_parties.values())
    widths = (1,) * 16
    assert by_parties[16] == costs(5, widths, 60_000, 10, 1).total_bytes
    (wired,) = [
        row
        for row in rows
        if (row["network"], row["n"], row["clusters"]) == ("ccWAN50", 100_000, 5)
    ]
    seconds = wired["n_bytes"] * 8 / 50e6 + wired["round_trips"] * 0.3
    assert wired["wire"] == pytest.approx(seconds)
    assert len(cells(plan.tables_of(rows, Options(1)).split("\n\n")[3])) == 9


def test_the_noise_that_the_paper_describes(script):
    """Few rounds divide epsilon by their number, many by its root; sums are of columns 2 wide."""
    loss, delta = script("vertical_loss"), 1e-4
    for rounds in (1, 5):
        of_a_round = math.sqrt(2 * math.log(1.25 * rounds / delta)) * rounds
        assert loss.described_multiplier(1.0, delta, rounds) == pytest.approx(
            of_a_round
        )
    part = 1 / (2 * math.sqrt(2 * 400 * math.log(2 / delta)))
    of_a_round = math.sqrt(2 * math.log(1.25 * 800 / delta)) / part
    assert loss.described_multiplier(1.0, delta, 400) == pytest.approx(of_a_round)
    budget = loss.PrivacyBudget(1.0, delta)
    box = loss.Box([0.0] * 40, [1.0] * 40)
    algorithm = loss.VerticalAlgorithm.planned(
        10, box, budget, n_records=10_000, radius=False
    )
    noise = loss.described_noise(algorithm, 1, 5, np.random.default_rng(0), 1.0)
    sums, counts = np.split(noise / 2.0**algorithm.fraction_bits, [400])
    assert len(counts) == 10
    assert sums.std() == pytest.approx(
        2 * loss.described_multiplier(1.0, delta, 5), rel=0.1
    )
    assert counts.std() == pytest.approx(
        loss.described_multiplier(1.0, delta, 5), rel=0.6
    )


def test_the_peak_of_memory_outlasts_what_was_held(script):
    weighing = script("weighing")
    before = weighing.resident()
    records = np.ones(2**23)
    assert weighing.resident() > before + 2**25
    del records
    assert weighing.peak() > before + 2**25


def test_strategies_run_in_turn_on_the_same_nodes(script):
    module = script("ray_round")
    runs = module.Runs(module.Size(3, rounds=4), "clients-only")
    app, asked = module.client_app(runs.size), []

    def listen(message, context):
        asked.append(message.metadata.message_type)
        return app(message, context)

    grid = InProcessGrid(listen, 3)
    with task_identity():
        runs.fedavg(grid, 1)
        assert asked == 3 * ["train"]
        for name in module.NAMES:
            runs.run(grid, name)
    assert asked.count("train") == 3 * (1 + 4)
    assert runs.found["peak"] > 2**20
    # of rounds after the first
    assert 3 * runs.found["fastlloyd"] < runs.found["whole"]
    assert min(runs.found.values()) > 0


def test_a_private_round_stands_beside_one_of_fedavg(script):
    module = script("ray_round")
    seconds = {
        "fastlloyd": 1.0,
        "fedavg": 2.0,
        "engine": 0.5,
        "whole": 9.0,
        "computed": 3.0,
    }
    measures = {**seconds, "peak": 2**21}
    tasks = plan_of(module.SUITE, Options(2)).tasks
    rows = [{**vars(task), **measures, "fedavg": 2.0 + 4 * task.run} for task in tasks]
    size = ["15x2", "10", "oblivious-server", "7", "368"]
    numbers = ["4000", "1000", "0.25", "500", "0.12", "9", "3", "2"]
    assert cells(module.tables_of(rows, Options(2)))[0] == size + numbers


@pytest.mark.thorough
@pytest.mark.ray
def test_a_client_on_ray_is_measured(script):
    module = script("ray_clients")
    (row,) = measured(module.SUITE, [module.Task("3x2", 4, 3, 0)])
    assert row["complete"] == 1
    assert all(
        row[name] > 0
        for name in ("whole", "clock", "packing", "client", "rest", "peak")
    )
    assert len(cells(module.tables_of([row], Options(1)))) == 1


@pytest.fixture
def stranded():
    """Return an environment in which the last cluster of the machine has left no usable address."""
    with tempfile.TemporaryDirectory(
        prefix="ray", ignore_cleanup_errors=True
    ) as folder:
        # Not below tmp_path, which is too long for the paths of sockets.
        address = Path(folder) / "ray" / "ray_current_cluster"
        address.parent.mkdir()
        address.write_text("nobody")
        known = {
            name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"
        }
        yield known | {"RAY_TMPDIR": folder}


@pytest.mark.claim("reference/simulation", "after-lost-worker-node")
@pytest.mark.claim("benchmarks", "plots-adds-figures-alone")
@pytest.mark.slow
@pytest.mark.ray
def test_a_simulation_for_each_run_from_the_script(tmp_path, stranded):
    """Each starts Ray for itself, whatever other cluster the machine has or had."""
    command = [sys.executable, str(ROOT / "benchmarks" / "ray_round.py")]
    command += ["--shapes", "3x2", "--clients", "2", "--runs", "2", "--output", "out"]
    options = {"cwd": tmp_path, "env": stranded, "capture_output": True, "text": True}
    # a hang must end
    done = subprocess.run(command, **options, check=False, timeout=3_600)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "| 3x2 | 2 | oblivious-server | 7 | 80 |" in done.stdout
    with (tmp_path / "out" / "runs.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["run"] for row in found] == ["0", "1"]
    assert all(
        float(row[name]) > 0 for row in found for name in ("fastlloyd", "fedavg")
    )


@pytest.mark.thorough
@pytest.mark.ray
def test_whole_runs_on_ray_stand_beside_those_of_fedavg(tmp_path, stranded):
    command = [sys.executable, str(ROOT / "benchmarks" / "ray_load.py")]
    command += ["--shapes", "3x2", "--clients", "3", "--trusts", "oblivious-server"]
    command += ["--runs", "1", "--output", "out"]
    options = {"cwd": tmp_path, "env": stranded, "capture_output": True, "text": True}
    done = subprocess.run(command, **options, check=False, timeout=1_200)
    assert done.returncode == 0, done.stderr[-2_000:]
    with (tmp_path / "out" / "runs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    ratios = [
        f"{float(row[f'FastLloyd {part}']) / float(row[f'{other} {part}']):.2f}"
        for other in ("FedAvg", "FedAvg+")
        for part in ("whole", "computed")
    ]
    assert f"| {' | '.join(ratios)} |" in done.stdout
