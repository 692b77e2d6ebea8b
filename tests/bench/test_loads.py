"""The suites on round trips, bytes and many clients: what they count, and what tables show."""

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
    assert size.reply == 8 * (3 * (2 + 1) + 1)
    assert grid.trips["ask 2"].words == 4 * [size.reply]
    assert grid.trips["enrol"].words == []
    assert min(grid.trips["ask 2"].answered) > size.reply
    assert min(grid.trips["ask 2"].asked) > size.reply  # the sum of round 1 comes with it
    for name, trip in grid.trips.items():  # Flower adds some bytes to every message
        assert all(a > b > 0 for a, b in zip(trip.asked, grid.asked[name].values(), strict=True))


def test_shares_take_a_second_round_trip(script):
    _, grid = run_weighed(script, trust="clients-only")
    assert list(grid.trips) == ["enrol", "ask 1", "add 1", "ask 2", "add 2", "finish"]
    assert set(grid.pushes) == {4}


def test_only_some_messages_may_be_weighed(script):
    _, everything = run_weighed(script)
    _, grid = run_weighed(script, lambda trip, client: client == 3 and trip.startswith("ask"))
    assert grid.pushes == everything.pushes
    assert list(grid.trips) == ["ask 1", "ask 2"]
    assert len(grid.trips["ask 1"].asked) == 1


def test_the_bytes_of_second_moments(script):
    moments = script("moments")
    only = (("columns", ("40",)), ("clusters", ("2",)), ("server_points", ("12",)))
    options = Options(1, only=only)
    tasks = plan_of(moments.SUITE, options).tasks
    rows = measured(moments.SUITE, tasks)
    assert [row["trip"] for row in rows] == [t for trips in moments.TRIPS.values() for t in trips]
    by_trip = {(row["trust"], row["trip"]): row for row in rows}
    half = 4 * 40 * 41  # a half of a dense matrix, in bytes
    plain = by_trip["trusted-server", "ask 1"]
    assert half < plain["answered"] < half + 1_000 < 8 * 40 * 40
    assert (
        plain["as_large"] == by_trip["distributed-noise", "ask 1"]["as_large"] == moments.N_CLIENTS
    )
    assert by_trip["distributed-noise", "ask 1"]["answered"] > half
    assert by_trip["distributed-noise", "add 1"]["asked"] > half
    for trust in moments.TRIPS:  # queries are small, and no sum comes down to clients
        assert by_trip[trust, "ask 2"]["asked"] < half
    parts = moments.tables_of(rows, options).split("\n\n")
    assert parts[0] == "`distributed-noise`, 40 columns, k = 2, 12 server points, 5 clients:"
    assert [line[0] for line in cells(parts[1])] == list(moments.TRIPS["distributed-noise"])
    assert parts[2] == "d² words: 12,800 bytes; d(d+1)/2 words: 6,560."
    assert len(cells(parts[4])) == len(moments.TRIPS["trusted-server"])


def test_no_round_trip_is_left_out_of_the_bytes_of_second_moments(script, monkeypatch):
    moments = script("moments")
    monkeypatch.setitem(moments.TRIPS, "trusted-server", moments.TRIPS["trusted-server"][:-1])
    with pytest.raises(ValueError, match="Expected the round trips"):
        moments.trips_of("trusted-server", 3, 2, 12)


def test_round_trips_of_every_trust_model(script):
    module = script("round_trips")
    plan = plan_of(module.SUITE, Options(1, only=(("rounds", ("2",)),)))
    rows = measured(module.SUITE, plan.tasks)
    assert {row["trust"]: row["trips"] for row in rows} == {
        "plain": 2 + 2,
        "trusted-server": 2 + 2,
        "oblivious-server": 2 + 3,
        "distributed-noise": 2 * 2 + 2,
        "clients-only": 2 * 2 + 2,
    }
    table = cells(module.tables_of(rows, plan.options))
    assert ["plain", "2", "4", "4.0"] in table
    assert ["oblivious-server", "2", "5", "4.6"] in table


def test_deployed_round_trips_are_shown_by_the_way_of_waiting(script):
    module = script("round_trips")
    table = cells(module.show({"send_and_receive": [3.0, 6.2, 6.1], "own polling": [3.8]}))
    assert table == [
        ["send_and_receive", "6.10", "3.00", "6.20"],
        ["own polling", "3.80", "3.80", "3.80"],
    ]


# --------------------------------------------------------------------------- many clients


def test_many_clients_in_one_process(script):
    load = script("load")
    masks, shares = measured(
        load.SUITE, [load.Task(trust, 5, 3, 0) for trust in ("oblivious-server", "clients-only")]
    )
    for row in (masks, shares):
        assert row["whole"] > row["round"] > 0
        assert row["peak"] < 2**30  # of this run alone
    assert (masks["trips"], shares["trips"]) == (3 + 3, 2 * 3 + 2)
    assert masks["client"] > 8 * 46
    assert masks["member"] == 0
    assert shares["client"] > 5 * 8 * 46
    assert shares["member"] > 5 * 8 * 46
    assert shares["server"] > 5 * shares["member"]
    rows = [
        {**masks, "run": 1, "round": 0.5, "whole": 9.0},  # disturbed
        {**masks, "round": 0.25, "whole": 4.0, "set_up": 1.5, "peak": 3 * 2**20},
        {**shares, "round": 0.5},
        {**masks, "clients": 2_000, "round": 1.0},
    ]
    own, first, second = cells(load.tables_of(rows, Options(1)))
    assert first[:9] == ["5", "oblivious-server", "3", "6", "4.0", "1.5", "50.00", "1.00", "3"]
    assert (own[1], own[7]) == ("clients-only", "2.00")
    assert int(own[-1].replace(",", "")) == shares["server"]
    assert second[0] == "2,000"


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
        runs = module.Runs(size, "clients-only")
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
        name.replace("_", "+"): cost(
            10 * s, (s, s, 4 * s), 2 * s, (5 * 2**20, 6 * 2**20), 7 * 2**20
        )
        for name, s in seconds.items()
    }


def test_a_round_on_ray_is_the_mean_of_all_but_the_first(script, monkeypatch):
    module = script("ray_round")
    called = []

    def on_ray(size, trust, names):
        called.append((size.clusters, size.columns, size.clients, trust, *names))
        return costs(script, FastLloyd=0.5 + size.clients, FedAvg=1.0)

    monkeypatch.setattr(module, "on_ray", on_ray)
    options = Options(2, only=(("shape", ("3x2",)), ("clients", ("4",))))
    rows = measured(module.SUITE, plan_of(module.SUITE, options).tasks)
    assert called == [
        (3, 2, 4, "oblivious-server", "FastLloyd", "FedAvg"),
        (3, 2, 4, "oblivious-server", "FedAvg", "FastLloyd"),
    ]
    assert [(row["fastlloyd"], row["fedavg"]) for row in rows] == [(9.0, 2.0)] * 2
    rows[1] |= {"fastlloyd": 3.0, "fedavg": 6.0}
    table = cells(module.tables_of(rows, options))
    assert table == [["3", "2", "4", "80", "4000", "6000", "1.50"]]


def test_runs_on_ray_are_compared_run_by_run(script, monkeypatch):
    module = script("load_ray")
    called = []

    def on_ray(size, trust, names):
        called.append((trust, names))
        return costs(script, FastLloyd=1.0, FedAvg=2.0, FedAvg_=4.0)

    monkeypatch.setattr(module, "on_ray", on_ray)
    rows = measured(module.SUITE, plan_of(module.SUITE, Options(2)).tasks)
    names = ("FastLloyd", "FedAvg", "FedAvg+")
    assert called == [
        ("oblivious-server", names),
        ("clients-only", names),
        ("oblivious-server", names[::-1]),
        ("clients-only", names[::-1]),
    ]
    assert rows[0]["FastLloyd round"] == 1.0  # the median
    assert (rows[0]["FedAvg whole"], rows[0]["FedAvg computed"]) == (20.0, 4.0)
    rows[2]["FastLloyd whole"] = 30.0
    table = cells(module.tables_of(rows, Options(1)))
    assert [line[3:5] for line in table] == [
        [trust, other] for trust in module.TRUSTS for other in ("FedAvg", "FedAvg+")
    ]
    assert table[0][:3] == ["15", "2", "1,000"]
    assert table[0][5:9] == ["1.00 : 2.00", "0.50 (0.50 to 0.50)", "20.00 : 20.00",
                             "1.00 (0.50 to 1.50)"]  # fmt: skip
    (one, *_) = cells(module.tables_of(rows[:1], Options(1)))
    assert one[6] == "0.50"


def test_memory_is_shown_after_some_rounds(script, monkeypatch):
    module = script("load_memory")
    resident = tuple(t * 2**20 for t in range(1, 29))
    one = script("ray_runs").Cost(9.0, (), 5.0, resident, 77 * 2**20)
    monkeypatch.setattr(module, "on_ray", lambda size, trust, names: {names[0]: one})
    rows = measured(module.SUITE, plan_of(module.SUITE, Options(1)).tasks)
    short, long, *_ = cells(module.tables_of(rows, Options(1)))
    replies = 1_000 * 8 * (64 * 33 + 1) / 2**20
    assert short == [
        "oblivious-server",
        "64x32",
        "1,000",
        "7",
        "1",
        "2",
        "7",
        "",
        "",
        "77",
        f"{7 * replies:.0f}",
        "9",
        "5",
    ]
    assert long[4:9] == ["1", "2", "7", "14", "28"]


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
