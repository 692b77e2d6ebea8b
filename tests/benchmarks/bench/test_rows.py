"""runs.csv: as it was written, whatever happened to its last line."""

from dataclasses import replace

import pytest

from bench.runner import append_run, read_runs
from flower_kmeans.errors import DataError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.csv"


@pytest.fixture
def tasks(suite):
    return [suite.task("g2, or so", "noise", 0.1, run) for run in range(3)]


@pytest.fixture
def written(suite, path, tasks):
    return [
        append_run(suite, path, task, {"loss": 0.1 + task.run, "capped": task.run == 2})
        for task in tasks
    ]


def test_rows_are_read_as_they_were_written(suite, path, tasks, written):
    assert path.read_text().splitlines() == [
        "data,method,epsilon,run,loss,capped",
        '"g2, or so",noise,0.1,0,0.1,0',
        '"g2, or so",noise,0.1,1,1.1,0',
        '"g2, or so",noise,0.1,2,2.1,1',
    ]
    found = read_runs(suite, path)
    assert list(found) == tasks
    assert list(found.values()) == written
    key = {"data": "g2, or so", "method": "noise", "epsilon": 0.1, "run": 2}
    assert written[2] == {**key, "loss": 2.1, "capped": True}
    assert read_runs(suite, path.with_name("other.csv")) == {}


@pytest.mark.claim("benchmarks", "same-command-continues-where")
def test_a_file_cut_off_anywhere_loses_its_last_row_alone(suite, path, tasks, written):
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        n_whole = max(0, sum(end <= size for end in ends) - 1)
        assert list(read_runs(suite, path)) == tasks[:n_whole], size
        for task in tasks[n_whole:]:
            append_run(
                suite, path, task, {"loss": 0.1 + task.run, "capped": task.run == 2}
            )
        assert path.read_bytes() == whole, size


def test_a_file_cut_off_within_a_character_loses_its_last_row_alone(suite, path):
    tasks = [suite.task(name, "größer", None, 0) for name in ("é", "κ", "数据")]
    for task in tasks:
        append_run(suite, path, task, {"loss": 0.5, "capped": False})
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        assert list(read_runs(suite, path)) == tasks[:2], size
        assert path.read_bytes() == whole[:last], size


def test_a_header_cut_off_within_a_character_is_begun_again(suite, path):
    named = replace(suite, measures={"größe": float})
    header = "data,method,epsilon,run,größe".encode()
    for size in range(len(header) + 1):
        path.write_bytes(header[:size])
        assert read_runs(named, path) == {}
        assert not path.read_bytes()


def test_of_rows_of_one_task_the_first_counts(suite, path, tasks, written):
    append_run(suite, path, tasks[0], {"loss": 9.0, "capped": False})
    assert read_runs(suite, path)[tasks[0]]["loss"] == 0.1


@pytest.mark.claim("benchmarks", "rows-another-suite-settings")
def test_files_of_others_are_refused_and_left_alone(suite, path, written):
    for text in (
        "a,b\n1,2\n",
        path.read_text().replace("1.1,", "one,"),
        path.read_text().replace("1.1,0", "1.1"),
        path.read_text().replace("1.1,0", "1.1,0,0"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match="choose another --output"):
            read_runs(suite, path)
        assert path.read_text() == text
    path.write_bytes(b"data,method\n\xff,1\n")
    with pytest.raises(DataError, match="choose another --output"):
        read_runs(suite, path)
    assert path.read_bytes() == b"data,method\n\xff,1\n"


def test_runs_give_what_the_suite_says(suite, path, tasks):
    with pytest.raises(DataError, match=r"to give loss, capped. Got loss instead"):
        append_run(suite, path, tasks[0], {"loss": 1.0})
    assert not path.exists()
