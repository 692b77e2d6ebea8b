"""Suites: what they may be, which tasks a command leaves, and values as text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness import Options, grid, parse, plan_of, seed_of, shown
from flower_kmeans.errors import ConfigurationError


def test_data_sets_that_are_missing_are_skipped_and_named(suite):
    plan = plan_of(suite, Options(2))
    assert plan.skipped == ("iris",)
    assert plan.options.data == ("g2_2_30", "mine")
    assert len(plan.tasks) == 2 * 2 * 3
    with pytest.raises(ConfigurationError, match="Got none: iris need"):
        plan_of(suite, Options(1, data=("iris",)))


def test_a_file_of_ones_own_is_a_data_set(suite, tmp_path):
    np.savez(tmp_path / "own.npz", X=np.arange(8.0).reshape(4, 2))
    plan = plan_of(suite, Options(1, data=(f"{tmp_path / 'own.npz'}:3",)))
    assert {task.data for task in plan.tasks} == {"own"}
    data = plan.options.load("own")
    assert (data.name, data.n_clusters, data.records.shape) == ("own", 3, (4, 2))


def test_columns_restrict_what_is_run(suite):
    plan = plan_of(suite, Options(2, only=(("method", ("noise",)), ("run", ("1",)))))
    assert {(task.method, task.run) for task in plan.tasks} == {("noise", 1)}
    # not among the suite's own
    plan = plan_of(suite, Options(1, only=(("epsilon", ("", "7")),)))
    assert {task.epsilon for task in plan.tasks} == {None, 7.0}


def test_a_grid_has_every_combination_run_by_run_and_other_numbers_than_the_suites(
    suite,
):
    def tasks(*only, free=()):
        options = Options(2, only=only)
        values = {"method": ("a", "b"), "epsilon": (None, 1.0)}
        found = list(grid(suite.task, options, *free, data=("x",), **values))
        assert {task.data for task in found} == {"x"}
        return [(task.run, task.method, task.epsilon) for task in found]

    every = [(r, m, e) for r in (0, 1) for m in "ab" for e in (None, 1.0)]
    assert tasks() == every
    assert tasks(("epsilon", ("3", ""))) == [(r, m, 3.0) for r in (0, 1) for m in "ab"]
    # the plan leaves these out
    assert tasks(("method", ("c",)), ("run", ("1",))) == every
    assert {method for _, method, _ in tasks(("method", ("c",)), free=["method"])} == {
        "c"
    }


@pytest.mark.parametrize(
    ("only", "words"),
    [
        (
            ("colour", ("red",)),
            "Expected a column of data, method, epsilon, run. Got 'colour'",
        ),
        (
            ("method", ("nothing",)),
            "Expected method among .*'noise', 'none'.*Got 'nothing'",
        ),
        (("run", ("first",)), "Expected run as int. Got 'first'"),
    ],
)
def test_restrictions_that_leave_nothing_are_refused(suite, only, words):
    with pytest.raises(ConfigurationError, match=words):
        plan_of(suite, Options(1, only=(only,)))


def test_values_that_no_task_has_may_be_known(suite):
    options = Options(1, only=(("method", ("noise", "other")),))
    with pytest.raises(ConfigurationError, match="Got 'other'"):
        plan_of(suite, options)
    some = replace(suite, choices={"method": ("other",)})
    assert {task.method for task in plan_of(some, options).tasks} == {"noise"}
    none = replace(options, only=(("method", ("other",)),))
    with pytest.raises(
        ConfigurationError, match=r"Expected runs of suite toy to be left. Got none"
    ):
        plan_of(some, none)
    assert plan_of(some, none, redraw=True).tasks == ()


def test_equal_tasks_are_refused(suite):
    twice = replace(suite, tasks=lambda options: [*suite.tasks(options)] * 2)
    with pytest.raises(ConfigurationError, match="tasks of suite toy that differ"):
        plan_of(twice, Options(1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "two words"}, "letters, digits and hyphens"),
        ({"measures": {"run": int}}, "beside the task's columns"),
        ({"measures": {}}, "beside the task's columns"),
    ],
)
def test_suites_that_cannot_be_run_are_refused(suite, change, words):
    with pytest.raises(ConfigurationError, match=words):
        replace(suite, **change)


VALUES = [
    (str, st.text()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (float | None, st.none() | st.floats(allow_nan=False)),
]


@given(st.data())
def test_values_are_read_as_they_were_written(data):
    kind, values = data.draw(st.sampled_from(VALUES))
    value = data.draw(values)
    assert parse(kind, shown(kind, value), "x") == value


def test_values_of_numpy_are_written_like_others():
    assert shown(float, np.float64(0.1)) == "0.1"
    assert shown(int, np.int64(3)) == "3"
    assert shown(bool, np.True_) == "1"


def test_seeds_follow_from_the_task_alone(suite):
    task = suite.task("a", "noise", 1.0, 0)
    assert seed_of(task) == seed_of(replace(task))
    others = [
        seed_of(replace(task, run=1)),
        seed_of(replace(task, data="b")),
        seed_of(task, "x"),
    ]
    assert len({seed_of(task), *others}) == 4
    assert 0 <= seed_of(task) < 2**32
    assert seed_of(task) == 1_990_714_405  # in any process
