"""Suites of benchmarks/ on the papers' figures: tasks, one run of each, what they show."""

import math

import numpy as np
import pytest

from flower_kmeans.bench.harness import Options, plan_of


def rows_of(module, options, keep=lambda task: True):
    plan = plan_of(module.SUITE, options)
    tasks = [task for task in plan.tasks if keep(task)]
    rows = [{**vars(task), **module.measure(task, plan.options)} for task in tasks]
    for row in rows:
        assert row.keys() == module.SUITE.columns.keys()
    return rows, plan.options


def test_synthetic_sets_are_those_of_the_papers_table(script):
    module = script("fastlloyd_synthetic")
    plan = plan_of(module.SUITE, Options(1))
    assert not plan.skipped
    grid = {name for name in plan.options.data if name.startswith("synth_")}
    cells = {tuple(map(int, name.split("_")[1:3])) for name in grid}
    assert {(k, d) for k in (2, 4, 8, 16, 32) for d in (2**i for i in range(1, 10))} <= cells
    assert {(64, 2), (128, 2)} <= cells
    assert sum(name.startswith("g2_") for name in plan.options.data) == 10
    assert {task.epsilon for task in plan.tasks} == {None, 0.1, 0.25, 0.5, 0.75, 1.0}


def test_ratios_on_synthetic_sets_are_those_of_areas(script):
    module = script("fastlloyd_synthetic")
    rows = [
        {"data": name, "method": method, "epsilon": epsilon, "run": 0, "nicv": value, "rounds": 2}
        for name, value_of in (("g2_4_30", {"SuLloyd": 4.0, "FastLloyd": 1.0}),
                               ("synth_4_2_0", {"SuLloyd": 2.0, "FastLloyd": 1.0}),
                               ("synth_4_2_1", {"SuLloyd": 2.0, "FastLloyd": 0.5}),
                               ("synth_4_64_0", {"SuLloyd": 1.0, "FastLloyd": 0.25}))
        for method, value in value_of.items()
        for epsilon in module.EPSILONS
    ]  # fmt: skip
    text = module.tables_of(rows, Options(1))
    assert "| 4 |  | 1.000 |  | 0.250 |  |" in text  # G2 with four columns
    assert "| 4 |  | 1.000 |  | 0.375 |  |" in text  # the mean of 1/2 and 1/4
    assert "| 4 | 0.38 |  |  |  |  | 0.25 |" in text  # the grid
    assert module.ratios_of(rows)["synth_4_64_0"] == {"SuLloyd": 1.0, "FastLloyd": 0.25}
    for draw in module.SUITE.plots.values():
        assert draw(rows, Options(1)).axes


def test_the_ablation_holds_its_variants(script):
    module = script("fastlloyd_ablation")
    plan = plan_of(module.SUITE, Options(1))
    assert len(plan.options.data) == 48
    assert len(plan.tasks) == 48 * 3 * (1 + 2 * 6)
    options = Options(1, data=("ablation_2_2_75",), only=(("alpha", ("0.8", "")),))
    rows, resolved = rows_of(module, options)
    assert len(rows) == 3 * 3
    ratios = module.ratios_of(rows)
    assert ratios["no radius", "none"] == {None: {0: 1.0}}
    assert "| no radius | none | 1.000 |" in module.tables_of(rows, resolved)
    assert module.plot(rows, resolved).axes


def test_without_a_radius_no_offset_is_too_long(script, monkeypatch):
    module = script("fastlloyd_ablation")
    seen = []

    def record(records, n_clusters, method, epsilon, seed, **parameters):
        seen.append((records.shape[1], n_clusters, parameters))
        raise StopIteration

    monkeypatch.setattr(module, "cluster", record)
    task = module.Task("ablation_4_2_50", module.NO_RADIUS, "none", None, 0)
    with pytest.raises(StopIteration):
        module.measure(task, Options(1))
    ((d, k, parameters),) = seen
    diameter = 2 * math.sqrt(d)
    assert parameters["alpha"] * diameter / (2 * k ** (1 / d)) == pytest.approx(diameter)
    assert (parameters["radius"], parameters["postprocess"]) == ("constant", "none")


def test_separation_is_measured_on_the_clusters_of_the_centroids(script):
    module = script("fastlloyd_metrics")
    records = np.array([[0.0], [0.1], [1.0], [1.1]])
    found = module.separation_of(records, np.array([0, 0, 1, 1]))
    # Of each record: (b - a) / max(a, b) with a = 0.1, and b = 1.05 or 0.95.
    assert found["silhouette"] == pytest.approx(((0.95 / 1.05) + (0.85 / 0.95)) / 2)
    assert found["davies_bouldin"] == pytest.approx((0.05 + 0.05) / 1.0)
    one = module.separation_of(records, np.zeros(4, dtype=int))
    assert one == {"silhouette": -1.0, "davies_bouldin": None}


def test_bytes_of_an_iteration_are_those_of_its_words_and_messages(script):
    module = script("fastlloyd_overhead")
    rows, options = rows_of(module, Options(1, data=("timesynth_10000_2_5",)))
    words = 2 * 5 + 2 + 1  # sums, counts and the checksum word
    # Under masks one vector of each of two clients; of shares one for each of two, with its seal.
    sizes = {"oblivious-server": 8 * words, "distributed-noise": 2 * (8 * words + 16)}
    for row in rows:
        assert row["words"] == 2 * 2 * sizes[row["trust"]]
        assert row["total"] > row["words"]
        assert row["seconds"] > 0
    assert {row["trust"] for row in rows} == set(module.TRUSTS)
    assert "| timesynth_10000_2_5 | oblivious-server |" in module.tables_of(rows, options)


def test_top_k_takes_the_most_votes_and_weighted_k_means_does_better(script):
    module = script("pe_means_selection")
    rows, options = rows_of(module, Options(3))
    steps = module.steps_of(module.TOP, 0)
    for step in steps:
        chosen = [int(np.flatnonzero((step.population == s).all(axis=1))[0]) for s in step.selected]
        assert min(step.votes[chosen]) >= np.sort(step.votes)[-module.N_CLUSTERS]
    last = {
        selection: [r["ratio"] for r in rows if r["selection"] == selection and r["round"] == 4]
        for selection in module.SELECTIONS
    }
    assert max(last[module.WEIGHTED]) < 1.2
    assert min(last[module.TOP]) > max(last[module.WEIGHTED])
    assert "| top-k |" in module.tables_of(rows, options)
    for draw in module.SUITE.plots.values():
        assert draw(rows, options).axes


def test_pairs_around_the_papers_rules_are_ranked(script):
    module = script("pe_means_heuristics")
    plan = plan_of(module.SUITE, Options(1, data=("sklearn-iris",)))
    assert len(plan.tasks) == 5 * 4
    assert {(task.share, task.factor) for task in plan.tasks} >= {module.RULE}
    task = next(t for t in plan.tasks if (t.share, t.factor) == (1 / 40, 1.0))
    found = module.measure(task, plan.options)
    assert (found["records"], found["columns"]) == (150, 4)
    rows = [
        {**vars(each), **found, "loss": 2.0 + each.factor * (each.share == 1 / 5)}
        for each in plan.tasks
    ]
    rows[0]["loss"] = 1.0
    text = module.tables_of(rows, plan.options)
    assert "| sklearn-iris | 150 | 4 | N/40, 1 √d;" in text
    assert "| 6.000 | 10.00 |" in text  # the rule's loss of 2 + 4, and the worst of 2 + 8
    assert module.plot(rows, plan.options).axes


def test_revisions_are_compared_by_their_least_times(script, monkeypatch, capsys):
    module = script("before_after")
    options = Options(2, only=(("revision", ("old", "HEAD")),))
    tasks = list(module.tasks_of(options))
    assert len(tasks) == 2 * 2 * len(module.CASES)
    assert [task.revision for task in tasks[:4]] == ["old", "HEAD", "old", "HEAD"]
    times = {("old", 0): 4.0, ("old", 1): 5.0, ("HEAD", 0): 3.0, ("HEAD", 1): 1.0}
    rows = [
        {**vars(task), "seconds": times[task.revision, task.run], "processor": 2.0}
        for task in tasks
    ]
    for case in module.CASES:
        expected = f"| {case} | 4 | 1 | 0.25 | 2 | 2 | 1.00 |"
        assert expected in module.tables_of(rows, options)
    small = (
        module.federation("FastLloyd", 300, 2, 3, "oblivious-server", k=2),
        module.client_step(300, 2, 3, radius=True),
        module.correction(30, 7),
        module.noise("discrete-gaussian/1", 7, 4),
    )
    for run in small:
        monkeypatch.setitem(module.CASES, "small", lambda run=run: run)
        module.subject("small", 1e-3)
        seconds, processor = map(float, capsys.readouterr().out.split())
        assert min(seconds, processor) > 0
