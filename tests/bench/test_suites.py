"""The scripts that measure time, memory and bytes: each measures a small task and shows it."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from scripts import ROOT
from suites import cells, measured

from flower_kmeans import ClientPolicy, kmeans_client_app
from flower_kmeans.bench.harness import Options, plan_of
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.vertical.costs import costs

# Tasks that go into one line of the first table each, and measures that must be positive.
SMALL = {
    "client_step": [(3_000, 4, 3, 0)],
    "load": [("oblivious-server", 5, 3, 0), ("clients-only", 5, 3, 0)],
    "noise": [("3x4", "rounded-gaussian/1", 2, 0), ("3x4", "discrete-gaussian/1", 2, 0)],
    "removal": [("SynopsisKMeans", 5, 0)],
    "round_trips": [("plain", 2), ("oblivious-server", 2)],
    "scaling": [("clients", 300, 2, 3, 4, 0)],
    "sums": [("masks", 10, 64, 0), ("shares", 10, 64, 0)],
    "update": [("FastLloyd", 4, 2, 0), ("SynopsisKMeans", 4, 2, 0)],
}
TIMED = {"client_step", "fit", "load", "load_memory", "load_ray", "noise", "ray_round", "removal"}
TIMED |= {"scaling", "sums", "update", "vertical"}
FRESH = {"load", "load_memory", "load_ray", "ray_round", "vertical"}


@pytest.mark.parametrize("name", sorted(TIMED))
def test_time_is_measured_by_one_process_and_memory_by_a_new_one(script, name):
    suite = script(name).SUITE
    assert (suite.alone, suite.fresh) == (True, name in FRESH)
    assert {task.run for task in plan_of(suite, Options(2)).tasks} == {0, 1}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_task_is_measured_and_shown(script, name, monkeypatch):
    module = script(name)
    if name == "sums":
        monkeypatch.setattr(module, "best", lambda action, seconds=0.3: action() is None or 2.0)
    rows = measured(module.SUITE, [module.Task(*values) for values in SMALL[name]])
    for row in rows:
        assert row.keys() == module.SUITE.columns.keys()
        assert all(value is None or value >= 0 for value in map(row.get, module.SUITE.measures))
    table = module.tables_of(rows, Options(1)).split("\n\n")[0]
    assert len(cells(table)) == len(rows)


def test_of_several_runs_the_shortest_is_shown(script):
    scaling = script("scaling")
    row = {"grows": "clients", "records": 300, "columns": 2, "clusters": 3, "clients": 4}
    rows = [{**row, "run": run, "total": t, "round": t / 16} for run, t in enumerate((9.0, 4.0))]
    (line,) = cells(scaling.tables_of(rows, Options(1)))
    assert line[5:] == ["4.00", "2.25", "250.0", "1.00", "62.50"]
    assert len(plan_of(scaling.SUITE, Options(1)).tasks) == 3 + 4 + 4 + 4 + 1


def test_noise_is_drawn_at_the_scale_of_the_row(script, monkeypatch):
    noise, asked = script("noise"), []
    spied = {
        name: lambda values, stream, draw=draw: asked.append(values) or draw(values, stream)
        for name, draw in noise.SAMPLERS.items()
    }
    monkeypatch.setattr(noise, "SAMPLERS", spied)
    measured(noise.SUITE, [noise.Task("3x4", name, 2, 0) for name in spied])
    for values, name in zip(asked[::2], spied, strict=True):
        scale = 16.0 if name.startswith("discrete") else 4.0  # a variance, or a scale
        np.testing.assert_array_equal(values, np.full(15, scale))


def test_whole_fits_and_the_memory_of_an_answer(script, monkeypatch):
    fit = script("fit")
    rng = np.random.default_rng(0)
    data = fit.Data("small", rng.uniform(-0.5, 0.5, (400, 2)), 2)
    monkeypatch.setattr(fit, "load", lambda name, options: data)
    tasks = [fit.Task("KMeans", None, 0), fit.Task("FastLloyd, oblivious-server", None, 0)]
    rows = measured(fit.SUITE, [*tasks, fit.Task("PEMeans, an answer", 64, 0)])
    assert rows[2]["candidates"] == 2 * (1 + 64)
    assert rows[2]["answer"] == 8 * rows[2]["candidates"] < rows[2]["peak"]
    times, answers = fit.tables_of(rows, Options(1)).split("\n\n")
    assert (len(cells(times)), cells(answers)[0][0]) == (2, "130")
    for name in fit.FITS[1:]:
        strategy = fit.strategy_of(name, data)
        assert f"{type(strategy).__name__}, {strategy.trust}" == name


def test_bytes_of_masks_shares_and_vertical_runs_are_the_planned(script, monkeypatch):
    sums = script("sums")
    assert sums.masks(10, 64)["sent"] == 8 * 64
    assert sums.shares(10, 64)["sent"] == 10 * (8 * 64 + 16)  # a sealed share for each: k = 1
    vertical = script("vertical")
    monkeypatch.setitem(sys.modules, "vertical", vertical)  # its processes import it by name
    (row,) = measured(vertical.SUITE, [vertical.Task(2, False, 1, 1, 0)])
    assert row["peak"] > 10 * row["relin_bytes"]
    assert len(cells(vertical.tables_of([row], Options(1)).split("\n\n")[0])) == 1
    planned, seals = costs(2, (1, 1), 16_384, 1, 1), 16
    assert row["public_bytes"] + row["relin_bytes"] + 2 * seals == planned.key_bytes
    assert row["column_bytes"] + seals == planned.column_bytes
    assert row["c1_bytes"] + row["share_bytes"] + 2 * seals == planned.round_bytes


# --------------------------------------------------------------------------- bytes and round trips


def run_weighed(script, *weighs, trust="oblivious-server"):
    size = script("uniform_clients").Size(4, clusters=3, columns=2, rounds=2)
    app = kmeans_client_app(size.load, ClientPolicy.for_simulation(), lambda *_: None)
    grid = script("weighing").WeighingGrid(app, 4, *weighs)
    with task_identity():
        size.fastlloyd("relayed", lambda info: None, trust).start(grid)
    return size, grid


def test_every_message_of_a_run_is_weighed_by_round_trip(script):
    size, grid = run_weighed(script)
    assert list(grid.trips) == ["enrol", "keys", "ask 1", "ask 2", "finish"]
    assert [len(trip.asked) for trip in grid.trips.values()] == grid.pushes
    assert [len(trip.answered) for trip in grid.trips.values()] == grid.pushes
    assert grid.pushes == [4, 3, 4, 4, 4]
    assert grid.trips["ask 2"].words == 4 * [size.reply] == 4 * [8 * (3 * (2 + 1) + 1)]
    assert min(grid.trips["ask 2"].answered) > size.reply
    for name, trip in grid.trips.items():  # Flower adds some bytes to every message
        assert all(a > b > 0 for a, b in zip(trip.asked, grid.asked[name].values(), strict=True))
    _, some = run_weighed(script, lambda trip, client: client == 3 and trip.startswith("ask"))
    assert some.pushes == grid.pushes
    assert {name: len(trip.asked) for name, trip in some.trips.items()} == {"ask 1": 1, "ask 2": 1}


def test_the_bytes_of_second_moments(script, monkeypatch):
    moments = script("moments")
    only = (("columns", ("40",)), ("clusters", ("2",)), ("server_points", ("12",)))
    rows = measured(moments.SUITE, plan_of(moments.SUITE, Options(1, only=only)).tasks)
    by_trip = {(row["trust"], row["trip"]): row for row in rows}
    half = 4 * 40 * 41  # a half of a dense matrix, in bytes
    assert half < by_trip["trusted-server", "ask 1"]["answered"] < half + 1_000 < 8 * 40 * 40
    assert by_trip["distributed-noise", "add 1"]["asked"] > half
    for trust in moments.TRIPS:  # queries are small, and no sum comes down to clients
        assert by_trip[trust, "ask 2"]["asked"] < half
    parts = moments.tables_of(rows, Options(1)).split("\n\n")
    assert parts[2] == "d² words: 12,800 bytes; d(d+1)/2 words: 6,560."
    monkeypatch.setitem(moments.TRIPS, "trusted-server", moments.TRIPS["trusted-server"][:-1])
    with pytest.raises(ValueError, match="Expected the round trips"):
        moments.trips_of("trusted-server", 3, 2, 12)


def test_round_trips_of_every_trust_model(script):
    module = script("round_trips")
    plan = plan_of(module.SUITE, Options(1, only=(("rounds", ("2",)),)))
    assert {row["trust"]: row["trips"] for row in measured(module.SUITE, plan.tasks)} == {
        "plain": 2 + 2,
        "trusted-server": 2 + 2,
        "oblivious-server": 2 + 3,
        "distributed-noise": 2 * 2 + 2,
        "clients-only": 2 * 2 + 2,
    }
    table = cells(module.show({"own polling": [3.0, 6.2, 6.1]}))
    assert table == [["own polling", "6.10", "3.00", "6.20"]]


def test_every_message_of_a_vertical_run_is_weighed(script):
    module = script("vertical_messages")
    rows = measured(module.SUITE, list(module.tasks_of(Options(1)))[:6])
    by = {row["trip"]: row for row in rows}
    assert list(by) == list(module.kinds_of(2, 1))
    assert by["enrol"]["trips"] == 2 * module.ROUNDS + 4
    planned = costs(2, (1, 1), 16_384, 1, 1)
    least = planned.key_bytes + planned.column_bytes
    assert least < by["keys"]["answered"] < by["step"]["asked"] < least + 2_000
    assert 0 < by["finish"]["sent"] - by["finish"]["planned"] < 1_000
    assert module.tables_of(rows, Options(1)).startswith("k = 2, 2 parties, 1 with the key: 8 rou")


def test_losses_of_vertical_runs(script, monkeypatch):
    loss = script("vertical_loss")
    monkeypatch.setattr(loss, "MADE", ("synth_2000_3_2",))
    rows = measured(loss.SUITE, loss.tasks_of(Options(1, only=(("rounds", ("2",)),))))
    assert {row["method"] for row in rows} == set(loss.METHODS)
    assert all(0 < row["loss"] < 1 and 0 < row["accuracy"] <= 1 for row in rows)
    assert len(cells(loss.tables_of(rows, Options(1)))) == 1
    labels = np.array([5, 5, 5, 7, 7, 9])
    assert loss.accuracy(labels, np.array([1, 1, 0, 0, 0, 2])) == pytest.approx(5 / 6)
    assert loss.accuracy(labels, np.zeros(6, dtype=np.int64)) == pytest.approx(3 / 6)


# --------------------------------------------------------------------------- on Ray


def test_the_peak_of_memory_outlasts_what_was_held(script):
    weighing = script("weighing")
    before = weighing.resident()
    records = np.ones(2**23)
    assert weighing.resident() > before + 2**25
    del records
    assert weighing.peak() > before + 2**25


def test_strategies_run_in_turn_on_the_same_nodes(script):
    module, size = script("ray_runs"), script("uniform_clients").Size(3, rounds=4)
    runs = module.Runs(size, "clients-only")
    app, asked = module.client_app(size, ClientPolicy.for_simulation()), []

    def listen(message, context):
        asked.append(message.metadata.message_type)
        return app(message, context)

    grid = InProcessGrid(listen, size.clients)
    with task_identity():
        runs.warm_up(grid)
        assert asked == size.clients * ["train"]
        found = [(runs.cost(grid, name), asked.count("evaluate")) for name in module.NAMES]
    for cost, _ in found:
        assert len(cost.rounds) == 3  # after the first
        assert len(cost.resident) == 4
        assert min(cost.rounds) > 0
        assert sum(cost.rounds) < cost.whole
        assert min(cost.resident) > 2**20
    # FedAvg's default alone evaluates, after every round.
    assert [evaluations for _, evaluations in found] == [0, 0, 4 * 3]


@pytest.mark.parametrize("name", ["ray_round", "load_ray", "load_memory"])
def test_runs_on_ray_take_turns_and_are_shown(script, monkeypatch, name):
    module, orders = script(name), []

    def on_ray(size, trust, names):
        orders.append(tuple(names))
        seconds = {"FastLloyd": 1.0, "FedAvg": 2.0, "FedAvg+": 4.0}
        cost = script("ray_runs").Cost
        memory = tuple(t * 2**20 for t in range(1, 29))
        return {each: cost(10 * s, (s, s, s), 2 * s, memory, 77) for each, s in seconds.items()}

    monkeypatch.setattr(module, "on_ray", on_ray)
    rows = measured(module.SUITE, plan_of(module.SUITE, Options(2)).tasks)
    text = module.tables_of(rows, Options(2))
    if name == "load_memory":
        assert cells(text)[0][4:9] == ["1", "2", "7", "", ""]
    else:  # who is first changes from run to run
        assert set(orders) == {orders[0], orders[0][::-1]}
        assert "| 0.50 |" in text or "0.50 (0.50 to 0.50)" in text


@pytest.mark.ray
def test_a_simulation_for_each_run_from_the_installed_command(tmp_path):
    command = [sys.executable, "-c", "from flower_kmeans.cli.app import main; main()", "bench"]
    command += ["--suite", str(ROOT / "benchmarks" / "ray_round.py"), "--output", "out"]
    command += ["--only", "shape=3x2", "--only", "clients=2", "--runs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "| 3 | 2 | 2 | 80 |" in done.stdout
    with (tmp_path / "out" / "runs.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["run"] for row in found] == ["0", "1"]
    assert all(float(row[name]) > 0 for row in found for name in ("fastlloyd", "fedavg"))
