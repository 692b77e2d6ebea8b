"""The scripts that measure time: what they measure, and what their tables show of it."""

import numpy as np
import pytest
from suites import cells, measured

from flower_kmeans.bench.harness import Options, plan_of


@pytest.mark.parametrize("name", ["client_step", "fit", "noise", "scaling", "update"])
def test_time_is_measured_by_one_process(script, name):
    suite = script(name).SUITE
    assert suite.alone
    tasks = plan_of(suite, Options(2)).tasks
    assert {task.run for task in tasks} == {0, 1}


def test_the_cost_of_a_run(script):
    scaling = script("scaling")
    small = scaling.Task("clients", 300, 2, 3, 4, 0)
    (row,) = measured(scaling.SUITE, [small])
    assert min(row["round"], row["total"]) > 0
    rows = [
        {**row, "total": 9.0, "round": 0.5, "run": 1},  # disturbed
        {**row, "total": 4.0, "round": 0.25},
        {**row, "clients": 8, "total": 5.0, "round": 0.5},
    ]
    table = cells(scaling.tables_of(rows, Options(1)))
    first = ["clients", "300", "2", "3", "4", "4.00", "2.25", "250.0", "1.00", "62.50"]
    assert table == [first, [*first[:4], "8", "5.00", "1.50", "500.0", "2.00", "62.50"]]
    assert len(plan_of(scaling.SUITE, Options(1)).tasks) == 3 + 4 + 4 + 4 + 1


def test_a_clients_step(script):
    step = script("client_step")
    rows = measured(step.SUITE, [step.Task(3_000, 4, 3, run) for run in (0, 1)])
    assert all(row["memory"] > 0 and row["sums"] > 0 for row in rows)
    rows[0] |= {"scikit_learn": 0.5, "sums": 0.2, "with_radius": 0.9, "memory": 2**20}
    rows[1] |= {"scikit_learn": 0.1, "sums": 0.3, "with_radius": 0.4, "memory": 2**20}
    (line,) = cells(step.tables_of(rows, Options(1)))
    assert line == ["3,000", "4", "3", "100.00", "200.00", "2.00", "400.00", "4.00", "1.0"]


def test_what_clients_compute_between_rounds(script):
    update = script("update")
    (row,) = measured(update.SUITE, [update.Task("FastLloyd", 4, 2, 0)])
    assert 0 < row["longest"] <= row["together"]
    assert row["rounds"] == 8
    rows = [{**row, "longest": 0.5, "together": 2.0}, {**row, "longest": 1.0, "together": 1.5}]
    (line,) = cells(update.tables_of(rows, Options(1)))
    assert line == ["FastLloyd", "4", "2", "0.500", "1.500", "8"]


def test_a_rounds_noise(script, monkeypatch):
    noise = script("noise")
    asked = []
    real = dict(noise.SAMPLERS)
    spied = {
        name: lambda values, stream, draw=draw: asked.append(values) or draw(values, stream)
        for name, draw in real.items()
    }
    monkeypatch.setattr(noise, "SAMPLERS", spied)
    options = Options(1, only=(("shape", ("3x4",)), ("exponent", ("2",))))
    tasks = plan_of(noise.SUITE, options).tasks
    rows = measured(noise.SUITE, tasks)
    assert [row["sampler"] for row in rows] == list(real)
    for values, name in zip(asked[::2], real, strict=True):
        scale = 16.0 if name.startswith("discrete") else 4.0  # a variance, or a scale
        np.testing.assert_array_equal(values, np.full(15, scale))
    row = rows[0]
    rows = [{**row, "seconds": s, "numpy": 0.5} for s in (1.0, 2.0, 30.0)]
    (line,) = cells(noise.tables_of(rows, options))
    assert line == ["3x4", row["sampler"], "2^2", "2000.00", "7.5", "4.0x"]


def test_whole_fits_and_the_memory_of_an_answer(script, monkeypatch):
    fit = script("fit")
    rng = np.random.default_rng(0)
    data = fit.Data("small", rng.uniform(-0.5, 0.5, (400, 2)), 2)
    monkeypatch.setattr(fit, "load", lambda name, options: data)
    tasks = [fit.Task("KMeans", None, 0), fit.Task("FastLloyd, oblivious-server", None, 0)]
    rows = measured(fit.SUITE, [*tasks, fit.Task("PEMeans, an answer", 64, 0)])
    assert rows[0]["rounds"] is None
    assert rows[1]["rounds"] >= 2
    assert rows[2]["seconds"] is None
    assert rows[2]["records"] == 200 * 2 * 8
    assert rows[2]["candidates"] == 2 * (1 + 64)
    assert rows[2]["answer"] == 8 * rows[2]["candidates"] < rows[2]["peak"]
    rows[0]["seconds"], rows[1]["seconds"] = 0.5, 2.0
    times, answers = fit.tables_of(rows, Options(1)).split("\n\n")
    assert cells(times)[0] == ["KMeans", "", "0.50", "1.0"]
    assert cells(times)[1][2:] == ["2.00", "4.0"]
    assert cells(answers)[0][0] == "130"
    for name in fit.FITS[1:]:
        strategy = fit.strategy_of(name, data)
        assert f"{type(strategy).__name__}, {strategy.trust}" == name


def test_masks_and_shares(script, monkeypatch):
    sums = script("sums")
    monkeypatch.setattr(sums, "best", lambda action, seconds=0.3: action() is None or 2.0)
    options = Options(1, only=(("clients", ("10",)), ("words", ("64",))))
    tasks = plan_of(sums.SUITE, options).tasks
    assert [task.kind for task in tasks] == ["masks", "shares"]
    rows = measured(sums.SUITE, tasks)
    masks, shares = rows
    assert masks["sent"] == 8 * 64
    assert shares["sent"] == 10 * (8 * 64 + 16)  # a sealed share for each position: k = 1
    rows.append({**shares, "run": 1, "client": 1.0})
    first, second = cells(sums.tables_of(rows, options))
    assert (first[:4], first[-2:]) == (["10", "64", "masks", "2.00"], ["", ""])
    assert (second[:4], second[-2:]) == (["10", "64", "shares", "1.00"], ["0.5", "10.3"])
