"""The suites on hops, bytes and many clients: what they count, and what their tables show of it."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from deployments import ROOT
from suites import cells, measured

from flower_kmeans import ClientPolicy, kmeans_client_app
from flower_kmeans.bench.harness import Options, plan_of
from flower_kmeans.protocol.in_process import InProcessGrid, task_identity


@pytest.mark.parametrize("name", ["load", "load_memory", "load_ray", "ray_round"])
def test_time_and_memory_are_measured_by_one_process_made_for_it(script, name):
    suite = script(name).SUITE
    assert (suite.alone, suite.fresh) == (True, True)
    assert {task.run for task in plan_of(suite, Options(2)).tasks} == {0, 1}


# --------------------------------------------------------------------------- bytes and hops


def run_weighed(script, *weighs):
    size = script("uniform_clients").Size(4, clusters=3, columns=2, rounds=2)
    app = kmeans_client_app(size.load, ClientPolicy.for_simulation(), lambda *_: None)
    grid = script("weighing").WeighingGrid(app, 4, *weighs)
    with task_identity():
        size.fastlloyd("relayed", lambda info: None).start(grid)
    return size, grid


def test_every_message_of_a_run_is_weighed_hop_by_hop(script):
    size, grid = run_weighed(script)
    assert list(grid.hops) == ["enrol", "lead", "round 1", "round 2", "finish 2"]
    assert [len(hop.asked) for hop in grid.hops.values()] == grid.pushes
    assert [len(hop.answered) for hop in grid.hops.values()] == grid.pushes
    assert grid.pushes[0] == grid.pushes[2] == 4 > grid.pushes[1]
    assert size.reply == 8 * (3 * (2 + 1) + 1)
    assert grid.hops["round 2"].words == 4 * [size.reply]
    assert grid.hops["enrol"].words == []
    assert min(grid.hops["round 2"].answered) > size.reply
    assert min(grid.hops["round 2"].asked) > size.reply  # the sum of round 1 comes with it


def test_only_some_messages_may_be_weighed(script):
    _, everything = run_weighed(script)
    _, grid = run_weighed(script, lambda hop, client: client == 3 and hop.startswith("round"))
    assert grid.pushes == everything.pushes
    assert list(grid.hops) == ["round 1", "round 2"]
    assert grid.hops["round 1"].asked == everything.hops["round 1"].asked[-1:]


def test_the_bytes_of_second_moments(script):
    moments = script("moments")
    only = (("columns", ("40",)), ("clusters", ("2",)), ("server_points", ("12",)))
    options = Options(1, only=only)
    tasks = plan_of(moments.SUITE, options).tasks
    rows = measured(moments.SUITE, tasks)
    assert [row["hop"] for row in rows] == [hop for hops in moments.HOPS.values() for hop in hops]
    by_hop = {(row["trust"], row["hop"]): row for row in rows}
    half = 4 * 40 * 41  # a half of a dense matrix, in bytes
    for trust in moments.HOPS:
        assert half < by_hop[trust, "round 1"]["answered"] < half + 1_000 < 8 * 40 * 40
        assert by_hop[trust, "round 1"]["as_large"] == moments.N_CLIENTS
    assert by_hop["trusted-server", "round 2"]["asked"] > half  # the noisy sum comes down
    assert by_hop["distributed-noise", "open 1"]["asked"] > half
    assert by_hop["distributed-noise", "round 2"]["asked"] < half
    parts = moments.tables_of(rows, options).split("\n\n")
    assert parts[0] == "`distributed-noise`, 40 columns, k = 2, 12 server points, 5 clients:"
    assert [line[0] for line in cells(parts[1])] == list(moments.HOPS["distributed-noise"])
    assert parts[2] == "d² words: 12,800 bytes; d(d+1)/2 words: 6,560."
    assert len(cells(parts[4])) == len(moments.HOPS["trusted-server"])


def test_no_hop_is_left_out_of_the_bytes_of_second_moments(script, monkeypatch):
    moments = script("moments")
    monkeypatch.setitem(moments.HOPS, "trusted-server", moments.HOPS["trusted-server"][:-1])
    with pytest.raises(ValueError, match="Expected the hops"):
        moments.hops_of("trusted-server", 3, 2, 12)


def test_hops_of_every_kind_of_run(script):
    hops = script("hops")
    plan = plan_of(hops.SUITE, Options(1, only=(("rounds", ("2",)),)))
    rows = measured(hops.SUITE, plan.tasks)
    assert len(rows) == 2 + 3 + 3 * 3
    for row in rows:
        # Enrolment and delivery; the leader's keys; opening of every sum but the last.
        beside = 2 + (row["keys"] == "relayed") + (row["opening"] == "immediate")
        assert row["hops"] == 2 + beside, row
    table = cells(hops.tables_of(rows, plan.options))
    assert ["plain", "none", "none", "2", "4", "2", "4.0"] in table
    assert ["oblivious-server", "relayed", "none", "2", "5", "3", "4.6"] in table


# --------------------------------------------------------------------------- many clients


def test_many_clients_in_one_process(script):
    load = script("load")
    (row,) = measured(load.SUITE, [load.Task(4, 3, 0)])
    assert row["whole"] > row["round"] > 0
    assert row["peak"] < 2**30  # of this run alone
    # The first round brings the run's document, the later ones a sum.
    assert row["first_asked"] > row["second_asked"] == row["last_asked"] > 8 * 46
    assert row["last_answered"] > 8 * 46
    rows = [
        {**row, "run": 1, "round": 0.5, "whole": 9.0},  # disturbed
        {**row, "round": 0.25, "whole": 4.0, "set_up": 1.5, "peak": 3 * 2**20},
        {**row, "clients": 2_000, "round": 0.5, "run": 1},
        {**row, "clients": 2_000, "round": 1.0},
    ]
    first, second = cells(load.tables_of(rows, Options(1)))
    assert first[:6] == ["4", "3", "4.0", "1.5", "62.50", "3"]
    assert [int(cell.replace(",", "")) for cell in first[6:]] == list(row.values())[-4:]
    assert (second[0], second[4]) == ("2,000", "0.25")


def test_the_peak_of_memory_outlasts_what_was_held(script):
    weighing = script("weighing")
    before = weighing.resident()
    records = np.ones(2**23)
    assert weighing.resident() > before + 2**25
    del records
    assert weighing.peak() > before + 2**25


@pytest.fixture
def in_turn(script):
    """Return what runs in a simulation, in this process."""
    module = script("ray_runs")

    def run(size, names):
        runs = module.Runs(size, "relayed")
        app = module.client_app(size, ClientPolicy.for_simulation())
        asked = []

        def listen(message, context):
            asked.append(message.metadata.message_type)
            return app(message, context)

        grid = InProcessGrid(listen, size.clients)
        with task_identity():
            runs.warm_up(grid)
            assert asked == size.clients * ["train"]
            return {name: (runs.cost(grid, name), asked.count("evaluate")) for name in names}

    return run


def test_strategies_run_in_turn_on_the_same_nodes(script, in_turn):
    names = script("ray_runs").NAMES
    size = script("uniform_clients").Size(3, rounds=4)
    found = in_turn(size, names)
    for cost, _ in found.values():
        assert len(cost.rounds) == 3  # after the first
        assert len(cost.resident) == 4
        assert min(cost.rounds) > 0
        assert sum(cost.rounds) < cost.whole
        assert cost.computed > 0
        assert min(cost.resident) > 2**20
    # FedAvg's default alone evaluates, after every round.
    assert [evaluations for _, evaluations in found.values()] == [0, 0, 4 * 3]


def costs(script, **seconds):
    cost = script("ray_runs").Cost
    return {
        name.replace("_", "+"): cost(10 * s, (s, s, 4 * s), 2 * s, (5 * 2**20, 6 * 2**20))
        for name, s in seconds.items()
    }


def test_a_round_on_ray_is_the_mean_of_all_but_the_first(script, monkeypatch):
    module = script("ray_round")
    called = []

    def on_ray(size, keys, names):
        called.append((size.clusters, size.columns, size.clients, keys, *names))
        return costs(script, FastLloyd=0.5 + size.clients, FedAvg=1.0)

    monkeypatch.setattr(module, "on_ray", on_ray)
    options = Options(2, only=(("shape", ("3x2",)), ("clients", ("4",))))
    rows = measured(module.SUITE, plan_of(module.SUITE, options).tasks)
    assert called == [
        (3, 2, 4, "relayed", "FastLloyd", "FedAvg"),
        (3, 2, 4, "relayed", "FedAvg", "FastLloyd"),
    ]
    assert [(row["fastlloyd"], row["fedavg"]) for row in rows] == [(9.0, 2.0)] * 2
    rows[1] |= {"fastlloyd": 3.0, "fedavg": 6.0}
    table = cells(module.tables_of(rows, options))
    assert table == [["3", "2", "4", "80", "4000", "6000", "1.50"]]


def test_runs_on_ray_are_compared_run_by_run(script, monkeypatch):
    module = script("load_ray")
    called = []

    def on_ray(size, keys, names):
        called.append((keys, names))
        return costs(script, FastLloyd=1.0, FedAvg=2.0, FedAvg_=4.0)

    monkeypatch.setattr(module, "on_ray", on_ray)
    rows = measured(module.SUITE, plan_of(module.SUITE, Options(2)).tasks)
    names = ("FastLloyd", "FedAvg", "FedAvg+")
    assert called == [
        ("relayed", names),
        ("file", names),
        ("relayed", names[::-1]),
        ("file", names[::-1]),
    ]
    assert rows[0]["FastLloyd round"] == 1.0  # the median
    assert (rows[0]["FedAvg whole"], rows[0]["FedAvg computed"]) == (20.0, 4.0)
    rows[2]["FastLloyd whole"] = 30.0
    table = cells(module.tables_of(rows, Options(1)))
    assert [line[3:5] for line in table] == [
        [keys, other] for keys in ("relayed", "file") for other in ("FedAvg", "FedAvg+")
    ]
    assert table[0][:3] == ["15", "2", "1,000"]
    assert table[0][5:9] == ["1.00 : 2.00", "0.50 (0.50 to 0.50)", "20.00 : 20.00",
                             "1.00 (0.50 to 1.50)"]  # fmt: skip
    (one, *_) = cells(module.tables_of(rows[:1], Options(1)))
    assert one[6] == "0.50"


def test_memory_is_shown_after_some_rounds(script, monkeypatch):
    module = script("load_memory")
    resident = tuple(t * 2**20 for t in range(1, 29))
    one = script("ray_runs").Cost(1.0, (), 1.0, resident)
    monkeypatch.setattr(module, "on_ray", lambda size, keys, names: {names[0]: one})
    rows = measured(module.SUITE, plan_of(module.SUITE, Options(1)).tasks)
    short, long = cells(module.tables_of(rows, Options(1)))
    replies = 1_000 * 8 * (64 * 33 + 1) / 2**20
    assert short == ["64x32", "1,000", "7", "1", "2", "7", "", "", f"{7 * replies:.0f}"]
    assert long[3:8] == ["1", "2", "7", "14", "28"]


@pytest.mark.ray
def test_a_simulation_for_each_run_from_the_installed_command(tmp_path):
    command = [sys.executable, "-c", "from flower_kmeans.cli import main; main()", "bench"]
    command += [
        "--suite",
        str(ROOT / "benchmarks" / "ray_round.py"),
        "--output",
        str(tmp_path / "out"),
    ]
    command += ["--only", "shape=3x2", "--only", "clients=2", "--runs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "| 3 | 2 | 2 | 80 |" in done.stdout
    with (tmp_path / "out" / "runs.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["run"] for row in found] == ["0", "1"]
    assert all(float(row[name]) > 0 for row in found for name in ("fastlloyd", "fedavg"))
